"""MuSiQue (Trivedi et al., TACL 2022), answerable and full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from scipy.cluster.hierarchy import DisjointSet

from ...options import Name
from ...types import Question
from ..records import UnusableError
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, passage, records, strings, text


@dataclass(frozen=True, kw_only=True)
class MuSiQue(QuestionSource):
    """``musique_ans_v1.0_{train,dev}.jsonl`` and ``musique_full_v1.0_{train,dev}.jsonl``.

    The rationale is the chain of single questions with their answers.

    Attributes:
        unanswerable: treatment of the full set's questions that their paragraphs do not answer.
            "exclude" leaves them out; "noanswer" makes that word the gold answer, which only matches itself.
            Such a question shares the id of its answerable twin: it gets a suffix, and both are one group.
    """

    hub: Name | None = "dgslibisey/MuSiQue"
    unanswerable: Literal["exclude", "noanswer"] = "exclude"

    name: ClassVar[str] = "musique"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("MuSiQue", "id question paragraphs"),)

    def question(self, record: Record) -> Question:
        id = identifier(record, "id")
        answerable = flag(record, "answerable") is not False
        if not answerable and self.unanswerable == "exclude":
            raise UnusableError(f"unanswerable: {id}")
        given = (optional(record, "answer"), *strings(record, "answer_aliases"))
        passages = (
            passage(p, str(p.get("idx", i)), "paragraph_text", is_gold=flag(p, "is_supporting"))
            for i, p in enumerate(records(record, "paragraphs"))
        )
        asked, answers = text(record, "question"), accepted(given) if answerable else ("noanswer",)
        return self.made(
            id if answerable else f"{id}-unanswerable", asked, answers,
            rationale=_chain(record) if answerable else "",
            passages=tuple(p for p in passages if p is not None), group=self._groups.get(id, id),
        )  # fmt: skip

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Id of each question -> its group: questions that share a single question, even indirectly, are one.

        An id lists its single questions: 2hop__482757_12019.
        """
        rows = (row.record for row in self.rows() if isinstance(row.record, Mapping))
        ids = [id for record in rows if "__" in (id := str(record.get("id")))]
        parts = {id: id.partition("__")[2].split("_") for id in ids}
        joined = DisjointSet(sorted({part for own in parts.values() for part in own}))
        for first, *others in parts.values():
            for other in others:
                joined.merge(first, other)
        least: dict[str, str] = {}  # names a group the same in any order of the file
        for part in joined:
            least.setdefault(joined[part], part)
        return {id: f"musique:{least[joined[own[0]]]}" for id, own in parts.items()}


def _chain(record: Record) -> str:
    """Write the steps as sentences; "#1" in a question stands for the first step's answer."""
    said: list[str] = []
    answers: dict[int, str] = {}
    for number, step in enumerate(records(record, "question_decomposition"), 1):
        asked = re.sub(r"#(\d+)", lambda m: answers.get(int(m[1]), m[0]), optional(step, "question"))
        answers[number] = optional(step, "answer")
        said.append(f"{asked}{'' if asked.endswith('?') else ':'} {answers[number]}.")
    return " ".join(said)
