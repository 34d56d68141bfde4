"""LlamaIndex retriever that retrieves only if the server says that the closed-book answer is probably wrong.

    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/llama_index_gate.py http://127.0.0.1:8000/v1 testbed

The gate wraps your retriever, so it fits into any query engine. Two lines are the testbed's, change them
to yours: ``retriever = ..`` and ``questions = ..``.
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
    """Return the model's answer with the prober's score (docs/serving.md)."""
    prompt = f"{passages}Question: {question}\nAnswer:"
    made = client.completions.create(model=model, prompt=prompt, max_tokens=48, temperature=0, stop=["\n"])
    return made.choices[0]


class Gate(BaseRetriever):
    """Passages from ``inner`` where a draft of the answer is probably wrong, none elsewhere."""

    def __init__(self, inner: BaseRetriever) -> None:
        super().__init__()
        self._inner = inner

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        draft = write(query_bundle.query_str)
        score = draft.hallucination
        print(f"P(wrong) {score['p_wrong']:.2f}{', retrieving' if score['fires'] else ''}: {draft.text!r}")
        return self._inner.retrieve(query_bundle) if score["fires"] else []


class Passages(BaseRetriever):
    """The testbed's passages, by BM25."""

    index = BM25(load_corpus("testbed"))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        passages = self.index.search([query_bundle.query_str], 3)[0]
        return [NodeWithScore(node=TextNode(text=p.text, id_=p.id), score=p.score) for p in passages]


retriever = Passages()  # change to your retriever
questions = [question.question for question in load_questions()[:4]]  # change to your questions

gate = Gate(retriever)
for question in questions:
    nodes = gate.retrieve(question)
    context = "Context:\n" * bool(nodes) + "".join(f"{node.text}\n" for node in nodes)
    print(f"{question} {write(question, context).text.strip()}")
