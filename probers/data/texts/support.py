"""Layouts of published sets that judge texts by the passages they were made from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..questions.values import Record, optional, records, strings, text
from .base import truth
from .formats import Line, Place, _mark, _wrong, recognised

#: Label of a passage in RAGTruth's prompts.
_NUMBERED = re.compile(r"(?:^|\n+)passage \d+:\s*")
#: What a summary answers.
_SUMMARISE = "Summarize the passage."


@recognised({"context", "hall_info", "output"})
def raglens(record: Record, place: Place) -> Iterator[Line]:
    """RAGTruth and Dolly with their passages, as RAGLens (Xiong et al. 2025) has them."""
    context = record["context"]
    if not isinstance(context, Mapping):
        raise ValueError("context must be an object with question and passages")
    question, shown = text(context, "question"), text(context, "passages")
    labels = record["hall_info"] or []
    if not isinstance(labels, list) or not all(isinstance(span, Mapping | list) for span in labels):
        raise ValueError("hall_info must be a list of spans")
    spans = _wrong({"labels": [*map(_as_object, labels)]}, "label_type")
    yield {
        "prompt": question, "passages": [p.strip() for p in _NUMBERED.split(shown) if p.strip()],
        "answer": record["output"], "spans": spans, "outside": "right", "group": _mark(shown),
        "writer": optional(record, "model"), "split": optional(record, "split"),
    }  # fmt: skip


def _as_object(span: Any) -> Mapping[str, Any]:
    """Read a span, which some files have as [start, end, text, label]."""
    if isinstance(span, Mapping):
        meta = span.get("meta")
        return {**meta, **span} if isinstance(meta, Mapping) else span
    return dict(zip(("start", "end", "text", "label_type"), span, strict=False))


@recognised({"doc", "label", "original_summary", "summary"})
def summedits(record: Record, place: Place) -> Iterator[Line]:
    """SummEdits (Laban et al. 2023): summaries with small edits; label 1 is consistent with the document."""
    consistent = truth(record["label"], "label")
    document = text(record, "doc")
    yield {
        "id": record.get("id"), "prompt": _SUMMARISE, "passages": [document],
        "answer": f" {text(record, 'summary')}", "wrong": None if consistent is None else not consistent,
        "group": _mark(document), "dataset": f"summedits-{place.name.removeprefix('summedits_')}",
        "split": "",
    }  # fmt: skip


@recognised({"begin_label", "history", "knowledge"}, {"BEGIN", "evidence", "history", "response"})
def faithdial(record: Record, place: Place) -> Iterator[Line]:
    """FaithDial's audit of dialogues (Dziri et al. 2022), by the labels of BEGIN.

    A response with any hallucination is wrong, one that only entails is right; generic and uncooperative ones
    say nothing of the knowledge and have no label.
    """
    gold = "BEGIN" in record
    named = "response" if gold else next((name for name in _SYSTEMS if name in record), "response")
    labels = set(re.findall(r"[a-z]+", str(record["BEGIN" if gold else "begin_label"]).lower()))
    wrong = True if labels & {"hallucination", "hallucinated"} else False if labels & _ENTAILS else None
    knowledge = text(record, "evidence" if gold else "knowledge")
    yield {
        "prompt": optional(record, "history"), "passages": [knowledge], "answer": f" {text(record, named)}",
        "wrong": wrong, "group": _mark(knowledge), "writer": "people" if gold else named,
        "dataset": f"faithdial-{place.name}",
    }  # fmt: skip


#: Columns of the responses of systems, and spellings of the label.
_SYSTEMS = ("gpt2", "doha", "ctrl")
_ENTAILS = {"entailment", "entailmentt"}


@recognised({"annotations", "source", "summary"})
def faithbench(record: Record, place: Place) -> Iterator[Line]:
    """FaithBench (Bao et al. 2024): summaries whose spans several people marked; "Unwanted" is wrong.

    Questionable and benign spans are undecided.
    """
    spans: list[Line] = [
        {
            "start": each.get("summary_start"), "end": each.get("summary_end"),
            "text": each.get("summary_span"),
            "wrong": True if "Unwanted" in "".join(strings(each, "label")) else None,
        }
        for each in records(record, "annotations")
    ]  # fmt: skip
    unwanted = [(span["start"], span["end"]) for span in spans if span["wrong"]]
    apart = [  # without undecided spans that overlap wrong ones
        span for span in spans
        if span["wrong"] or not any(a < span["end"] and b > span["start"] for a, b in unwanted)
    ]  # fmt: skip
    about = record.get("metadata") or {}
    source = text(record, "source")
    yield {
        "id": str(record["sample_id"]) if record.get("sample_id") is not None else None,
        "prompt": _SUMMARISE, "passages": [source], "answer": record["summary"],
        "wrong": True if unwanted else None if spans else False, "spans": apart, "outside": "right",
        "group": _mark(source), "writer": str(about.get("summarizer") or ""), "dataset": "faithbench",
    }  # fmt: skip


@recognised({"doc_id", "sent_label", "summ_sent"}, {"document", "sent_label", "summ_sent"})
def tofueval(record: Record, place: Place) -> Iterator[Line]:
    """TofuEval (Tang et al. 2024): sentences of summaries of dialogues about a topic; "no" is wrong.

    Its files name the documents only: put each one's text into a column ``document``.
    """
    document = optional(record, "document")
    if not document:
        raise ValueError("no document: add a column document with the text that doc_id names")
    label = str(record["sent_label"]).strip().lower()
    topic = optional(record, "topic")
    yield {
        "prompt": f"Summarize the passage about {topic}." if topic else _SUMMARISE, "passages": [document],
        "answer": f" {text(record, 'summ_sent')}", "wrong": {"yes": False, "no": True}.get(label),
        "group": _mark(document), "writer": optional(record, "model_name"), "dataset": "tofueval",
    }  # fmt: skip


@recognised({"claim", "evidence", "label"})
def wice(record: Record, place: Place) -> Iterator[Line]:
    """WiCE (Kamoi et al. 2023): claims of Wikipedia and the articles they cite; in part is not supported."""
    label = text(record, "label")
    if label not in _SUPPORT:
        raise ValueError(f"label must be {', '.join(_SUPPORT)}, found {label!r}")
    passage = " ".join(strings(record, "evidence"))
    about = record.get("meta") or {}
    yield {
        "id": about.get("id"), "prompt": "", "passages": [passage], "answer": f" {text(record, 'claim')}",
        "wrong": _SUPPORT[label], "group": _mark(passage), "dataset": "wice",
    }  # fmt: skip


_SUPPORT = {"supported": False, "partially_supported": True, "not_supported": True}


@recognised({"article", "summary_sentences"})
def qags(record: Record, place: Place) -> Iterator[Line]:
    """QAGS (Wang et al. 2020): sentences of summaries, each judged by the majority of three people."""
    article = text(record, "article")
    answer, sentences = "", []
    for each in records(record, "summary_sentences"):
        start = len(answer) + 1
        answer += f" {text(each, 'sentence')}"
        votes = Counter(str(vote.get("response")).lower() for vote in records(each, "responses"))
        wrong = None if votes["yes"] == votes["no"] else votes["no"] > votes["yes"]
        sentences.append({"start": start, "end": len(answer), "wrong": wrong})
    yield {
        "prompt": _SUMMARISE, "passages": [article], "answer": answer, "sentences": sentences,
        "group": _mark(article), "dataset": place.name,
    }  # fmt: skip
