"""Workload of a comparison: its stages, the texts that the model will write, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from probers.data.cache import duration
from probers.types import count

from ..queries.text import AnswerQuery
from .methods import Method

#: Names of the stages that are no method.
THRESHOLDS, REPLAY, CURVES = "thresholds", "replay", "curves"


@dataclass(frozen=True)
class Workload:
    """Texts that the model writes at most, by stage; those that exist are left out."""

    stages: Mapping[str, int]

    @classmethod
    def of(
        cls, methods: Sequence[Method], questions: int, *, tuned_on: int, reference: str, retrievals: int,
        sweep: int, traces: Path,
    ) -> Workload:  # fmt: skip
        """Count the texts of every stage.

        Methods that ask with the answer judge whole answers, and share what is written before and after each
        retrieval: the first of them has these texts. Every other method writes texts of its own.

        Args:
            questions: questions that are asked, and ``tuned_on`` those that thresholds are chosen on.
            reference: name of the closed-book method.
            retrievals: most retrievals of a question.
            traces: folder with the answers of an interrupted run.
        """
        stages = {THRESHOLDS: tuned_on} if tuned_on else {}
        shared: set[int] = set()  # retrievers with which whole answers are retrieved for
        for name, method in {reference: None, **{method.name: method for method in methods}}.items():
            texts = 1
            if name != reference and method is not None and method.trigger.after:
                first = id(method.retriever) not in shared
                whole = isinstance(method.query, AnswerQuery)
                shared |= {id(method.retriever)} if whole else set()
                texts = (retrievals if first else 0) if whole else 1 + retrievals
                if method.trigger.draws:
                    texts += int(method.trigger.options.get("samples", 1)) * (1 + retrievals)
            written = 0
            with suppress(FileNotFoundError), (traces / f"{name}.jsonl").open("rb") as lines:
                written = sum(1 for _ in lines)
            stages[name] = texts * max(0, questions - written)
        adaptive = [method for method in methods if method.adaptive]
        if adaptive and retrievals:
            # What of these is recorded already is not looked up: they are the smaller part.
            stages[REPLAY] = questions * retrievals * len({id(method.retriever) for method in adaptive})
            if sweep:
                stages[CURVES] = questions * sweep * (1 + retrievals) * len(adaptive)
        return cls(stages)

    @property
    def texts(self) -> int:
        return sum(self.stages.values())

    @property
    def lengths(self) -> dict[str, float]:
        """Relative lengths of the stages: every one has answers to write down, whoever wrote their texts."""
        least = 0.02 * max(1, self.texts)
        return {name: max(least, texts) for name, texts in self.stages.items()}

    def summary(self, methods: int, questions: int) -> str:
        """Say how many texts will be written."""
        what = f"{count(methods, 'method')} on {count(questions, 'question')}"
        if tuned_on := self.stages.get(THRESHOLDS):
            what += f", thresholds on {tuned_on:,}"
        return f"{what}: at most {count(self.texts, 'generation')}"

    def left(self, closed: str, seconds: float) -> str:
        """Say how long the rest takes after the closed-book answers took ``seconds``; "" if that is unknown.

        Closed-book answers are needed anyway, so that no text is written only to learn the model's speed.
        Texts that read passages take several times as long.
        """
        written = self.stages.get(THRESHOLDS, 0) + self.stages[closed]
        rest = self.texts - written
        more = duration(seconds / written * rest) if written and rest else ""
        return more and f"about {more} more at this speed; texts with passages take longer"
