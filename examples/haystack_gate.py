"""Haystack pipeline that retrieves only if the server says that the closed-book answer is probably wrong.

A question that the gate can answer goes no further. To run it:
    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/haystack_gate.py http://127.0.0.1:8000/v1 testbed
"""

import sys

import openai
from haystack import Document, Pipeline, component
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from probers.data import load_corpus
from probers.testbed.assets import load_questions

url, model = sys.argv[1:]


def write(question: str, passages: str = ""):
    """The model's answer with what the prober says of it (docs/serving.md)."""
    asked = {"prompt": f"{passages}Question: {question}\nAnswer:", "max_tokens": 48, "stop": ["\n"]}
    return openai.OpenAI(base_url=url).completions.create(model=model, temperature=0, **asked).choices[0]


@component
class Gate:
    """Answers what it is sure of; other questions go on to a retriever."""

    @component.output_types(answer=str, question=str)
    def run(self, question: str):
        draft = write(question)
        told = draft.hallucination
        print(f"P(wrong) {told['p_wrong']:.2f}{', retrieving' if told['fires'] else ''}: {draft.text!r}")
        return {"question": question} if told["fires"] else {"answer": draft.text}


@component
class Reader:
    """Answers from documents."""

    @component.output_types(answer=str)
    def run(self, question: str, documents: list[Document]):
        return {"answer": write(question, "\n".join(["Context:", *(d.content for d in documents), ""])).text}


store = InMemoryDocumentStore()
store.write_documents([Document(content=passage.text) for passage in load_corpus("testbed")])
pipeline = Pipeline()
pipeline.add_component("gate", Gate())
pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=3))
pipeline.add_component("reader", Reader())
pipeline.connect("gate.question", "retriever.query")
pipeline.connect("gate.question", "reader.question")
pipeline.connect("retriever.documents", "reader.documents")
for question in load_questions()[:4]:
    (found,) = pipeline.run({"gate": {"question": question.question}}).values()
    print(f"{question.question} {found['answer'].strip()}")
