"""Haystack pipeline that retrieves only if the server says that the closed-book answer is probably wrong.

A question that the gate can answer goes no further. To run it:
    probers-serve model=testbed prober=runs/train/cot-all &
    OPENAI_API_KEY=- python examples/haystack_gate.py http://127.0.0.1:8000/v1 testbed

Two lines are the testbed's, change them to yours: ``documents = ..`` and ``questions = ..``.
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
    """Return the model's answer with the prober's score (docs/serving.md)."""
    prompt = f"{passages}Question: {question}\nAnswer:"
    client = openai.OpenAI(base_url=url)
    made = client.completions.create(model=model, prompt=prompt, max_tokens=48, temperature=0, stop=["\n"])
    return made.choices[0]


@component
class Gate:
    """Gate that answers what the prober trusts and passes other questions on to a retriever."""

    @component.output_types(answer=str, question=str)
    def run(self, question: str):
        draft = write(question)
        score = draft.hallucination
        print(f"P(wrong) {score['p_wrong']:.2f}{', retrieving' if score['fires'] else ''}: {draft.text!r}")
        return {"question": question} if score["fires"] else {"answer": draft.text}


@component
class Reader:
    """Reader that answers from documents."""

    @component.output_types(answer=str)
    def run(self, question: str, documents: list[Document]):
        return {"answer": write(question, "\n".join(["Context:", *(d.content for d in documents), ""])).text}


documents = [Document(content=passage.text) for passage in load_corpus("testbed")]  # change to yours
questions = [question.question for question in load_questions()[:4]]  # change to yours

store = InMemoryDocumentStore()
store.write_documents(documents)
pipeline = Pipeline()
pipeline.add_component("gate", Gate())
pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=3))
pipeline.add_component("reader", Reader())
pipeline.connect("gate.question", "retriever.query")
pipeline.connect("gate.question", "reader.question")
pipeline.connect("retriever.documents", "reader.documents")
for question in questions:
    (output,) = pipeline.run({"gate": {"question": question}}).values()
    print(f"{question} {output['answer'].strip()}")
