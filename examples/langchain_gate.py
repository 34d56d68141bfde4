"""LangChain retriever that retrieves only if the server says that the closed-book answer is probably wrong.

    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/langchain_gate.py http://127.0.0.1:8000/v1 testbed

The gate wraps your retriever, so it fits into any chain that takes a retriever. Two lines are the
testbed's, change them to yours: ``retriever = ..`` and ``questions = ..``.
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
    """Passages from ``inner`` where a draft of the answer is probably wrong, none elsewhere."""

    inner: BaseRetriever
    client: openai.OpenAI
    model: str

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        prompt = f"Question: {query}\nAnswer:"
        draft = self.client.completions.create(
            model=self.model, prompt=prompt, max_tokens=48, temperature=0, stop=["\n"]
        ).choices[0]
        score = draft.hallucination  # docs/serving.md
        print(f"P(wrong) {score['p_wrong']:.2f}{', retrieving' if score['fires'] else ''}: {draft.text!r}")
        return self.inner.invoke(query) if score["fires"] else []


class Passages(BaseRetriever):
    """The testbed's passages, by BM25."""

    index: BM25

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(p.text) for p in self.index.search([query], 3)[0]]


retriever = Passages(index=BM25(load_corpus("testbed")))  # change to your retriever
questions = [question.question for question in load_questions()[:4]]  # change to your questions

url, model = sys.argv[1:]
gate = Gate(inner=retriever, client=openai.OpenAI(base_url=url), model=model)
prompt = PromptTemplate.from_template("{context}Question: {question}\nAnswer:")
writer = OpenAI(base_url=url, model=model, temperature=0, max_tokens=48).bind(stop=["\n"])
context = gate | (lambda docs: "Context:\n" * bool(docs) + "".join(f"{d.page_content}\n" for d in docs))
chain = {"context": context, "question": RunnablePassthrough()} | prompt | writer
for question in questions:
    print(f"{question} {chain.invoke(question).strip()}")
