"""IIRC (Ferguson et al., EMNLP 2020): questions on a passage that holds only a part of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ...options import shown
from ...types import Passage, Question
from ..records import UnusableError
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, identifier, optional, passage, records, text

#: Name of the question's own passage in its context.
_MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class IIRC(QuestionSource):
    """``train.json``, ``dev.json`` or ``iirc_test.json``.

    Answers are of type span, value (a number with or without its unit is right), binary (yes
    or no) or none; questions of type none, without an answer, are left out. Passages are
    the question's own, gold where the annotators needed it, and the snippets of
    linked articles they needed. Questions on one passage are one group.

    Attributes:
        spans: for an answer of several spans, "all" wants them together ("A, B" or "A and B"),
            "any" accepts each alone, like DRAGIN's released evaluation.
    """

    spans: Literal["all", "any"] = "all"

    name: ClassVar[str] = "iirc"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("IIRC", "questions text title"),)

    def unfold(self, record: Record) -> Sequence[Record]:
        main = passage(record, _MAIN, is_gold=None)
        if main is None:
            raise ValueError("text must be a non-empty string")
        name = identifier(record, "pid") if record.get("pid") is not None else main.title
        # The context may name articles in lower case; the links have their titles.
        titles = {t.lower(): t for link in records(record, "links") if (t := optional(link, "target"))}
        shared = {"on": main, "of": name, "titles": titles}
        return [{**shared, "number": i, "asked": q} for i, q in enumerate(records(record, "questions"))]

    def question(self, record: Record) -> Question:
        asked, name = record["asked"], record["of"]
        id = identifier(asked, "qid") if asked.get("qid") is not None else f"{name}-{record['number']}"
        said, answers = text(asked, "question"), accepted(self._answers(asked.get("answer"), id))
        passages = _passages(record["on"], records(asked, "context"), record["titles"])
        return self.made(id, said, answers, passages=passages, group=f"iirc:{name}")

    def layout_of(self, record: Record) -> str:
        return self.layouts[0].name

    def _answers(self, answer: Any, id: str) -> Sequence[str]:
        if answer is None:
            return ()
        if not isinstance(answer, dict):
            raise ValueError(f"answer must be an object, found {shown(answer)}")
        kind = text(answer, "type")
        if kind in ("none", "bad"):
            raise UnusableError(f"answer type {kind}: {id}")
        if kind == "span":
            spans = [s for part in records(answer, "answer_spans") if (s := optional(part, "text"))]
            if len(spans) < 2 or self.spans == "any":
                return spans
            return (", ".join(spans), f"{', '.join(spans[:-1])} and {spans[-1]}")
        if kind == "value":
            value = answer["answer_value"]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise ValueError(f"answer_value must be a number or a string, found {value!r}")
            value = str(value).strip()
            return (f"{value} {optional(answer, 'answer_unit')}".strip(), value)
        if kind == "binary":
            verdict = text(answer, "answer_value").lower()
            if verdict not in ("yes", "no"):
                raise ValueError(f"answer_value must be yes or no, found {verdict!r}")
            return (verdict,)
        raise ValueError(f"the answer's type must be span, value, binary or none, found {kind!r}")


def _passages(main: Passage, needed: Sequence[Record], titles: Mapping[str, str]) -> tuple[Passage, ...]:
    """List the main passage, then the snippets of other articles, each once."""
    named = [(optional(part, "passage"), optional(part, "text")) for part in needed]
    found = [Passage(_MAIN, main.title, main.text, is_gold=any(title == _MAIN for title, _ in named))]
    others = dict.fromkeys((titles.get(t.lower(), t), body) for t, body in named if t != _MAIN and body)
    found += [Passage(str(i), title, body, is_gold=True) for i, (title, body) in enumerate(others, 1)]
    return tuple(found)
