"""Interface of a judge, of the answers it gets, and of the sources it may look up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from probers.data.texts.base import Mark
from probers.types import Passage, Retriever
from probers.words import EntityMatcher, Recognise

Verdict = Literal["supported", "contradicted", "unknown"]
#: File of the judged answers of a run, one labelled text per line.
JUDGED = "judged.jsonl"
#: Value of ``wrong`` in a labelled text for each verdict.
WRONG: dict[Verdict, bool | None] = {"supported": False, "contradicted": True, "unknown": None}
VERDICT_OF: dict[bool | None, Verdict] = {wrong: verdict for verdict, wrong in WRONG.items()}


class Ruling(NamedTuple):
    """Verdict, the passage or reason behind it, and the name of the rule or judge that gave it."""

    verdict: Verdict
    evidence: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to judge.

    Attributes:
        id: name of the answer in the run.
        prompt: prompt that the model got.
        text: text that it wrote.
        units: entities or sentences to judge, characters of ``text``, ascending; their ``wrong`` is None and
            their ``type`` that of an entity, or "sentence".
        subject: title of the article that the prompt asks about; "" without one.
        reference: sentences of that article, in natural text; () without one.
    """

    id: str
    prompt: str
    text: str
    units: tuple[Mark, ...]
    subject: str = ""
    reference: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grounds:
    """Sources and functions that a judge may use.

    Attributes:
        matcher: compares entities, as for all other labels.
        recognise: finds entities.
        open_retriever: opens the corpus, which is read only if a judge asks for passages.
        folder: folder of the run, for files that a judge must not lose.
    """

    matcher: EntityMatcher
    recognise: Recognise
    open_retriever: Callable[[], Retriever]
    folder: Path

    @cached_property
    def _retriever(self) -> Retriever:
        return self.open_retriever()

    def passages(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the ``k`` best passages of the corpus for each query; none if ``k`` is 0."""
        return self._retriever.search(list(queries), k) if k else [[] for _ in queries]


class Judge(ABC):
    """Judge of the units of answers, made from :class:`Grounds` and its options.

    A judge of your own is ``judge._target_=my_package.MyJudge``.
    """

    @abstractmethod
    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        """Give a ruling for each unit of each answer, in their order.

        Verdicts depend on the answer alone, so that an interrupted run gives the same.
        """

    def lines(self) -> list[str]:
        """Report its cost and the replies that it could not use, for the end of the run."""
        return []
