"""LlamaIndex retriever that retrieves only if the server says that the closed-book answer is probably wrong.

    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/llama_index_gate.py http://127.0.0.1:8000/v1 testbed

The gate wraps your retriever, so it fits into any query engine.
"""

import sys

import openai
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from probers.data import load_corpus
from probers.rag.retrievers.bm25 import BM25
from probers.testbed.assets import load_questions

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url)


def write(question: str, passages: str = ""):
    """The model's answer with what the prober says of it (docs/serving.md)."""
    prompt = f"{passages}Question: {question}\nAnswer:"
    made = client.completions.create(model=model, prompt=prompt, max_tokens=48, temperature=0, stop=["\n"])
    return made.choices[0]


class Gate(BaseRetriever):
    """What ``inner`` finds where a draft of the answer is probably wrong, and nothing elsewhere."""

    def __init__(self, inner: BaseRetriever) -> None:
        super().__init__()
        self._inner = inner

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        draft = write(query_bundle.query_str)
        told = draft.hallucination
        print(f"P(wrong) {told['p_wrong']:.2f}{', retrieving' if told['fires'] else ''}: {draft.text!r}")
        return self._inner.retrieve(query_bundle) if told["fires"] else []


class Passages(BaseRetriever):
    """Stands for your retriever."""

    index = BM25(load_corpus("testbed"))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.index.search([query_bundle.query_str], 3)[0]
        return [NodeWithScore(node=TextNode(text=p.text, id_=p.id), score=p.score) for p in found]


gate = Gate(Passages())
for question in load_questions()[:4]:
    nodes = gate.retrieve(question.question)
    context = "Context:\n" * bool(nodes) + "".join(f"{node.text}\n" for node in nodes)
    print(f"{question.question} {write(question.question, context).text.strip()}")
