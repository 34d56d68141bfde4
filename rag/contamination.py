"""Contamination: what a prober or classifier was trained or tuned on is not asked again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from probers.bank.io import locate
from probers.data.overlap import Seen
from probers.types import Question, UserError


@dataclass(frozen=True)
class Contamination:
    """What the trained parts of a run have seen.

    Attributes:
        seen: by all of them together.
        silent: parts that do not say what they were trained on.
        allowed: ``allow_overlap``: everything is asked, and said.
    """

    seen: Seen
    silent: Sequence[str]
    allowed: bool

    @classmethod
    def of(cls, parts: Sequence[str], *, allowed: bool) -> Contamination:
        """Of the folders or hub ids of trained parts.

        Raises:
            UserError: one does not say what it was trained on, and ``allowed`` is not set.
        """
        found = {part: Seen.read(locate(part)) for part in parts}
        silent = [part for part, seen in found.items() if seen is None]
        if silent and not allowed:
            raise UserError(
                f"{silent[0]} does not say which questions it was trained on, and the same could be asked: "
                "train it again with probers-train, or pass allow_overlap=true, which the report shows"
            )
        known = (seen for seen in found.values() if seen is not None)
        return cls(reduce(or_, known, Seen({})), silent, allowed)

    def beside(self, part: str) -> Contamination:
        """With a further part, of which nobody says what it was trained on."""
        return replace(self, silent=[*self.silent, part])

    def not_asked(self, question: Question) -> bool:
        """Whether a question is left out: a part was trained on it, or its threshold chosen."""
        return not self.allowed and self.seen.split_of(question) in ("train", "validation")

    def not_tuned_on(self, question: Question) -> bool:
        """Whether no threshold may be chosen on a question."""
        return not self.allowed and self.seen.split_of(question) == "train"

    def notes(self, questions: Sequence[Question]) -> list[str]:
        """What a report has to say first: overlap that was allowed, and parts that do not say."""
        sides = [self.seen.split_of(question) for question in questions]
        told = []
        if known := sum(side in ("train", "validation") for side in sides):
            told.append(
                f"Overlap: {known} of the {len(questions)} questions are among those that a part of this run "
                "was trained or tuned on (allow_overlap=true); figures of that part are too good."
            )
        if self.silent:
            told.append(f"Overlap unknown: {', '.join(self.silent)} does not say what it was trained on.")
        return told
