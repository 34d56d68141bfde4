"""LangChain retriever that retrieves only if the server says that the closed-book answer is probably wrong.

    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/langchain_gate.py http://127.0.0.1:8000/v1 testbed

The gate wraps your retriever, so it fits into any chain that takes a retriever.
"""

import sys
from typing import Any

import openai
from langchain_core.documents import Document
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import OpenAI

from probers.data import load_corpus
from probers.rag.retrievers.bm25 import BM25
from probers.testbed.assets import load_questions


class Gate(BaseRetriever):
    """What ``inner`` finds where a draft of the answer is probably wrong, and nothing elsewhere."""

    inner: BaseRetriever
    client: openai.OpenAI
    model: str

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        prompt = f"Question: {query}\nAnswer:"
        draft = self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=48, temperature=0, stop=["\n"]
        ).choices[0]
        told = draft.hallucination  # docs/serving.md
        print(f"P(wrong) {told['p_wrong']:.2f}{', retrieving' if told['fires'] else ''}: {draft.text!r}")
        return self.inner.invoke(query) if told["fires"] else []


class Passages(BaseRetriever):
    """Stands for your retriever."""

    index: BM25

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(p.text) for p in self.index.search([query], 3)[0]]


url, model = sys.argv[1:]
gate = Gate(
    inner=Passages(index=BM25(load_corpus("testbed"))), client=openai.OpenAI(base_url=url), model=model
)
prompt = PromptTemplate.from_template("{context}Question: {question}\nAnswer:")
writer = OpenAI(base_url=url, model=model, temperature=0, max_tokens=48).bind(stop=["\n"])
context = gate | (lambda found: "Context:\n" * bool(found) + "".join(f"{d.page_content}\n" for d in found))
chain = {"context": context, "question": RunnablePassthrough()} | prompt | writer
for question in load_questions()[:4]:
    print(f"{question.question} {chain.invoke(question.question).strip()}")
