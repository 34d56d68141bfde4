"""Layouts of published labelled sets, each turned into lines as :func:`.base.read_text` reads them.

A format gives one line for each text of a record. Formats are told apart by their fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ...options import shown
from ...parts import PARTS, load_part
from ...prompts import turns_of
from ...types import UserError
from ...words import Recogniser
from ..questions.retrieval import AdaRAGUE
from ..questions.values import Record, optional, records, strings, text, unchanged
from ..records import UnusableError, check_object, ending_of, file_rows, open_text
from ..rows import lacking
from ..tables import Row
from .base import find_text, truth

Line = dict[str, Any]

#: Labels of judges in words.
_VERDICTS: dict[str, bool | None] = {
    "s": False, "supported": False, "ns": True, "not supported": True, "not_supported": True,
    "contradicted": True, "ir": None, "n/a": None, "unknown": None,
}  # fmt: skip
#: Further labels of hallucination_probes, whose code counts a fact that nobody could verify as wrong.
_UNVERIFIED: dict[str, bool | None] = {"insufficient information": True, "none": None}


@dataclass(frozen=True)
class Place:
    """Context of a record: its file, sources beside RAGTruth's responses, and counts of dropped labels."""

    path: Path
    sources: Mapping[str, Record] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Name of the file up to its first dot."""
        return self.path.name.partition(".")[0]


Reader = Callable[[Record, Place], Iterator[Line]]
#: Reader of a format -> sets of fields; a record of the format has all of one set.
_FIELDS: dict[Reader, tuple[set[str], ...]] = {}


def recognised(*fields: set[str]) -> Callable[[Reader], Reader]:
    """Register the fields of a format at its reader."""

    def register(reader: Reader) -> Reader:
        _FIELDS[reader] = fields
        return reader

    return register


@recognised({"answer"})
def jsonl(record: Record, place: Place) -> Iterator[Line]:
    """Lines of this package: answer, prompt or messages, and labels."""
    yield dict(record)


@recognised({"labels", "response", "source_id"})
def ragtruth(record: Record, place: Place) -> Iterator[Line]:
    """RAGTruth (Niu et al. 2024): ``response.jsonl``, its prompts in ``source_info.jsonl`` beside it."""
    if (quality := optional(record, "quality") or "good") != "good":
        raise UnusableError(f"of quality {quality}")  # as its own loader
    source = str(record["source_id"])
    if place.sources and source not in place.sources:
        raise ValueError(f"source_info.jsonl beside the file has no source_id {shown(source)}")
    about = place.sources.get(source, {})
    yield {
        "id": record["id"], "prompt": _ended(about.get("prompt")), "answer": unchanged(record, "response"),
        "spans": _wrong(record, "label_type"), "group": source, "split": optional(record, "split"),
        "writer": optional(record, "model"), "dataset": optional(about, "task_type"), "outside": "right",
    }  # fmt: skip


@recognised({"answer", "labels", "prompt"})
def lettucedetect(record: Record, place: Place) -> Iterator[Line]:
    """LettuceDetect (Kovács and Recski 2025): answers with the spans that the passages do not support."""
    yield {
        "prompt": _ended(record["prompt"]), "answer": record["answer"], "spans": _wrong(record, "label"),
        "group": _mark(record["prompt"]), "split": optional(record, "split"), "outside": "right",
        "dataset": optional(record, "task_type") or optional(record, "dataset"),
    }  # fmt: skip


def _wrong(record: Record, kind: str) -> list[Line] | None:
    """Wrong spans of ``labels``, or None without a list: an empty one says that nothing is wrong."""
    if record.get("labels") is None:
        return None
    keys = ("start", "end", "text")
    return [
        {**{key: each.get(key) for key in keys}, "wrong": True, "type": str(each.get(kind) or "")}
        for each in records(record, "labels")
    ]


def _ended(prompt: Any) -> Any:
    """End a prompt with a line break where its answers begin with a word: "output:The" is no text."""
    return f"{prompt}\n" if isinstance(prompt, str) and prompt and not prompt[-1].isspace() else prompt


@recognised({"no_retrieve", "question_text", "rag_one_retrieve", "reference"})
def adarague(record: Record, place: Place) -> Iterator[Line]:
    """AdaRAGUE: closed-book answers of Llama-3.1-8B, and whether one retrieval turns them right or wrong."""
    question = AdaRAGUE().question(record)
    if not question.truth["without"]:
        raise UnusableError("no answer without retrieval")
    yield {
        "id": question.id, "prompt": f"Question: {question.question}\nAnswer:",
        "answer": f" {question.truth['without']}", "wrong": question.truth["wrong"],
        "helps": question.truth["helps"], "writer": "Llama-3.1-8B",
    }  # fmt: skip


@recognised({"annotations", "conversation"}, {"exact_answer", "gt_completion"})
def hallucination_probes(record: Record, place: Place) -> Iterator[Line]:
    """Obeso et al. 2025: a conversation whose last message is judged span by span.

    Or a short answer (triviaqa-balanced), of which the first place of the exact answer is judged.
    """
    before = turns_of(records(record, "conversation")) if "conversation" in record else []
    if "gt_completion" in record:
        answer, span = unchanged(record, "gt_completion"), text(record, "exact_answer")
        label = optional(record, "llm_judge_label") or optional(record, "label")
        annotations: Any = [{"span": span, "label": label, "index": answer.find(span)}]
        question = [{"role": "user", "content": text(record, "question")}] if "question" in record else None
        before = question or before[:1]
    else:
        *before, last = before or [{}]
        answer, annotations = unchanged(last, "content"), record["annotations"]
    yield {
        **({"messages": before} if before else {}), "answer": answer,
        "spans": list(_readable(annotations, answer, place)), "outside": "unknown",
        "group": _mark(json.dumps(before)), "writer": optional(record, "model"),
        "split": optional(record, "split"),
    }  # fmt: skip


def _readable(annotations: Any, answer: str, place: Place) -> Iterator[Line]:
    """Yield the annotations that can be read; others are dropped alone and counted."""
    reach: list[tuple[int, int, bool | None]] = []
    for each in annotations or ():
        try:
            reason = "its span is not in the answer, or not only once"
            check_object(each)
            start, end = find_text(answer, each.get("span"), each.get("index"), "its span")
            reason = "its label is unknown"
            wrong = _verdict(each.get("label"), _UNVERIFIED)
        except ValueError:
            place.dropped[reason] += 1
            continue
        if any(a < end and start < b and wrong is not other for a, b, other in reach):
            place.dropped["it overlaps one of another label"] += 1
            continue
        reach.append((start, end, wrong))
        yield {"text": answer[start:end], "index": start, "wrong": wrong}


@recognised({"chatgpt_response", "user_query"}, {"right_answer"}, {"right_response"}, {"right_summary"})
def halueval(record: Record, place: Place) -> Iterator[Line]:
    """HaluEval (Li et al. 2023): a right and a wrong text of one question, or a judged answer of ChatGPT."""
    if "user_query" in record:
        wrong, answer = truth(record["hallucination"], "hallucination"), unchanged(record, "chatgpt_response")
        # Some of its spans are remarks on the answer; then the answer's label is all there is.
        marked = strings(record, "hallucination_spans") if wrong else ()
        once = (span for span in marked if 0 <= answer.find(span) == answer.rfind(span))
        spans = [{"text": span, "wrong": True} for span in once]
        yield {
            "id": str(record.get("ID") or "").strip() or None, "prompt": f"{text(record, 'user_query')}\n",
            "answer": answer, "wrong": wrong, "group": _mark(record["user_query"]), "dataset": "general",
            "spans": spans if len(spans) == len(marked) else [], "outside": "right",
        }  # fmt: skip
        return
    for kind, (context, question) in _PAIRS.items():
        if f"right_{kind}" not in record:
            continue
        summary = context == question
        for wrong in (False, True):
            answer = text(record, f"{'hallucinated' if wrong else 'right'}_{kind}")
            yield {
                "prompt": text(record, question) + ("\nSummary:" if summary else ""),
                "passages": [text(record, context)] if record.get(context) and not summary else [],
                "answer": f" {answer}", "wrong": wrong, "dataset": kind, "group": _mark(record[question]),
            }  # fmt: skip


#: Of HaluEval's pairs, by what is answered: the field that is shown, and the one that is asked.
_PAIRS = {
    "answer": ("knowledge", "question"), "response": ("knowledge", "dialogue_history"),
    "summary": ("document", "document"),
}  # fmt: skip


@recognised({"model_input", "model_output_text"}, {"llm_answer"})
def shroom(record: Record, place: Place) -> Iterator[Line]:
    """mu-SHROOM (Vázquez et al. 2025) and PsiloQA: answers with ranges, marked by most annotators."""
    psilo = "llm_answer" in record
    question, answered = ("question", "llm_answer") if psilo else ("model_input", "model_output_text")
    hard = record.get("hard_labels", record.get("labels"))
    if hard is None and record.get("soft_labels") is not None:
        soft = records(record, "soft_labels")
        hard = [[part.get("start"), part.get("end")] for part in soft if float(part.get("prob", 0)) > 0.5]
    yield {
        "id": record.get("id"), "prompt": f"{text(record, question)}\n", "answer": record[answered],
        "spans": None if hard is None else [{"ranges": [list(pair)], "wrong": True} for pair in hard],
        "outside": "right", "group": _mark(record[question]), "dataset": optional(record, "lang"),
        "writer": optional(record, "llm_checkpoint" if psilo else "model_id"),
    }  # fmt: skip


@recognised({"id", "prompt", "sentences"})
def helm(record: Record, place: Place) -> Iterator[Line]:
    """HELM (Su et al. 2024, MIND): articles that a model continued, labelled sentence by sentence."""
    answer, sentences = "", []
    for each in records(record, "sentences"):
        sentence = text(each, "sentence")
        answer += f" {sentence}"
        start = len(answer) - len(sentence)
        sentences.append({"start": start, "end": len(answer), "wrong": truth(each.get("label"), "label")})
    writer = place.path.parent.name
    yield {
        "id": f"{writer}/{record['id']}", "prompt": text(record, "prompt"), "answer": answer,
        "sentences": sentences, "group": str(record["id"]), "writer": writer, "dataset": "helm",
    }  # fmt: skip


@recognised({"annotations", "input", "output"})
def factscore(record: Record, place: Place) -> Iterator[Line]:
    """FActScore (Min et al. 2023): biographies whose atomic facts are judged, each at its sentence."""
    answer, end = text(record, "output"), 0
    sentences, claims = [], []
    for number, each in enumerate(records(record, "annotations")):
        sentence = text(each, "text")
        start, end = find_text(answer, sentence, answer.find(sentence, end), f"annotations[{number}]")
        labels = [_verdict(fact.get("label")) for fact in records(each, "human-atomic-facts")]
        claims += [{"start": start, "end": end, "wrong": label} for label in labels]
        wrong = True if True in labels else False if labels and None not in labels else None
        sentences.append({"start": start, "end": end, "wrong": wrong})
    yield {
        **({"wrong": None} if record["annotations"] is None else {}),  # an answer that says nothing
        "prompt": f"{text(record, 'input')}\n", "answer": answer, "sentences": sentences, "claims": claims,
        "group": text(record, "topic"), "writer": place.name,
    }  # fmt: skip


@recognised(
    {"question", "correct", "incorrect"}, {"Question", "Correct Answers"},
    {"question", "correct_answers", "incorrect_answers"},
)  # fmt: skip
def truthfulqa(record: Record, place: Place) -> Iterator[Line]:
    """TruthfulQA (Lin et al. 2022): the right and wrong answers to each question, one text each."""
    question = text(record, "question" if "question" in record else "Question")
    for wrong, kind in ((False, "correct"), (True, "incorrect")):
        names = (kind, f"{kind}_answers", f"{kind.title()} Answers")
        given: Any = next((record[name] for name in names if name in record), [])
        answers = [each.strip() for each in given.split(";")] if isinstance(given, str) else given
        for answer in filter(None, answers):
            yield {
                "prompt": f"Question: {question}\nAnswer:", "answer": f" {answer}", "wrong": wrong,
                "group": _mark(question), "dataset": "truthfulqa",
            }  # fmt: skip


@recognised({"label", "statement"})
def statements(record: Record, place: Place) -> Iterator[Line]:
    """True and false statements (Azaria and Mitchell 2023; Marks and Tegmark 2024): label 1 is true."""
    statement, label = text(record, "statement"), truth(record["label"], "label")
    subject = next((str(record[name]) for name in _SUBJECTS if record.get(name)), "")
    yield {
        "id": record.get("id"), "answer": statement, "wrong": None if label is None else not label,
        **({"group": subject} if subject else {}), "split": optional(record, "split"),
        "dataset": optional(record, "set") or place.name,
    }  # fmt: skip


#: Columns that name what a statement is about, of which there are several statements.
_SUBJECTS = ("group", "subject", "city", "company", "entity")


def opening(statement: str) -> str:
    """Name the subject of a statement by its beginning: its first words up to the first name in it.

    "The city of Krasnodar is in Russia." and the same of South Africa are one group. Words in quotes are what
    a statement is about: "The Spanish word 'con'".
    """
    if (quoted := _QUOTED.search(statement)) is not None:
        return " ".join(statement[: quoted.end()].split()).lower()
    names = _recogniser()(statement)
    first = next((e for e in names if e.text.split()[0].lower() not in ("the", "a", "an")), None)
    return " ".join((statement if first is None else statement[: first.end]).split()).lower()


#: Words in quotes, which are no apostrophes.
_QUOTED = re.compile(r"(?<!\w)(['\"‘“«„]).+?['\"’”»“](?!\w)")


@cache
def _recogniser() -> Recogniser:
    return Recogniser("rules")


def _verdict(label: Any, more: Mapping[str, bool | None] = {}) -> bool | None:
    verdicts, word = {**_VERDICTS, **more}, str(label).strip().lower()
    return verdicts[word] if word in verdicts else truth(label, "label")


def _mark(text_: Any) -> str:
    """Make a short name of a prompt for groups."""
    return hashlib.blake2b(" ".join(str(text_).split()).encode(), digest_size=8).hexdigest()


def format_of(record: Any, path: str) -> str:
    """Tell the format by the fields of the first record (UserError: of none)."""
    names = set(record) if isinstance(record, Mapping) else set()
    for name in PARTS["format"]:
        fields = _FIELDS[load_part("format", name)]
        if any(one <= names for one in fields) and not (name == "helm" and "answer" in names):
            return name
    listed = ", ".join(PARTS["format"])
    message = f"texts={path}: {lacking('answer', sorted(names))}"
    raise UserError(f"{message}; published layouts are read too (texts.format: {listed})", "bad-file")


def lines_of(format_: str, record: Any, place: Place) -> Iterable[Line]:
    """Turn a record into lines (ValueError, KeyError: it is of another format)."""
    check_object(record)
    reader: Reader = load_part("format", format_)
    if not any(one <= set(record) for one in _FIELDS[reader]):
        needed = " or ".join(", ".join(sorted(one)) for one in _FIELDS[reader])
        raise ValueError(f"no {needed}, the fields of texts.format={format_}")
    return reader(record, place)


def rows_of(path: Path) -> Iterator[Row]:
    """Records of a file: a table by its name, one JSON object by id (HELM), an array, or JSON lines."""
    if (ending := ending_of(path)) not in (".csv", ".tsv"):
        yield from file_rows(path, by_id=ending != ".parquet" and _is_object(path))
        return
    for row in file_rows(path):  # an empty cell is null
        yield row._replace(record=row.record and {name: cell or None for name, cell in row.record.items()})


def _is_object(path: Path) -> bool:
    """Tell whether a file is one JSON object over several lines, or of objects by id."""
    with open_text(path) as (lines, _):
        first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith("{"):
        return False
    try:
        record = json.loads(first)
    except ValueError:
        return first.strip() == "{"
    return bool(record) and all(isinstance(value, dict) and "sentences" in value for value in record.values())


def sources_beside(path: Path) -> dict[str, Record]:
    """RAGTruth's sources by id, from ``source_info.jsonl`` beside its responses; {} where it is missing."""
    file = path.with_name("source_info.jsonl")
    if not file.is_file():
        return {}
    return {
        str(row.record["source_id"]): {k: row.record.get(k) for k in ("prompt", "task_type")}
        for row in file_rows(file)
        if isinstance(row.record, dict) and "source_id" in row.record
    }
