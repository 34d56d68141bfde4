"""Interface of a judge, what it is asked about, and what it may look up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from probers.data.texts.base import Mark
from probers.entities import Recognise
from probers.equivalence import EntityMatcher
from probers.types import Passage, Retriever

Verdict = Literal["supported", "contradicted", "unknown"]
#: The judged answers of a run, a line of labelled texts each.
JUDGED = "judged.jsonl"
#: Each verdict as the ``wrong`` of a labelled text.
WRONG: dict[Verdict, bool | None] = {"supported": False, "contradicted": True, "unknown": None}
VERDICT_OF: dict[bool | None, Verdict] = {wrong: verdict for verdict, wrong in WRONG.items()}


class Ruling(NamedTuple):
    """A verdict, the passage or reason behind it, and the name of the rule or judge that gave it."""

    verdict: Verdict
    evidence: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to judge.

    Attributes:
        id: its name in the run.
        prompt: what the model was asked.
        text: what it wrote.
        units: entities or sentences to judge, characters of ``text``, ascending; their ``wrong`` is None and
            their ``type`` that of an entity, or "sentence".
        subject: title of the article that the prompt asks about; "" where there is none.
        reference: sentences of that article, in natural text; () where there is none.
    """

    id: str
    prompt: str
    text: str
    units: tuple[Mark, ...]
    subject: str = ""
    reference: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grounds:
    """What a judge may look up and compare with.

    Attributes:
        matcher: compares entities, as for all other labels.
        recognise: finds entities.
        open_retriever: opens the corpus, which is read only if a judge asks for passages.
        folder: the run's folder, for what a judge must not lose.
    """

    matcher: EntityMatcher
    recognise: Recognise
    open_retriever: Callable[[], Retriever]
    folder: Path

    @cached_property
    def _retriever(self) -> Retriever:
        return self.open_retriever()

    def passages(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The ``k`` best passages of the corpus for each query; none where ``k`` is 0."""
        return self._retriever.search(list(queries), k) if k else [[] for _ in queries]


class Judge(ABC):
    """Judges the units of answers; it is made from :class:`Grounds` and its options.

    One of your own is ``judge._target_=my_package.MyJudge``.
    """

    @abstractmethod
    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        """Give a ruling for each unit of each answer, in their order.

        Verdicts depend on the answer alone, so that an interrupted run comes out the same.
        """

    def lines(self) -> list[str]:
        """Say what it cost, and what it could not use, for the end of the run."""
        return []
