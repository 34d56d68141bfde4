"""Verdicts of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["equivalent", "different", "undecided"]

#: What a comparison by value says; "partial" is left to the matcher's option of that name.
Relation = Literal["equivalent", "different", "partial"]

#: Longer mentions (characters) are not read as dates or numbers.
LONGEST_VALUE = 100


@dataclass(frozen=True, slots=True)
class Match:
    """A verdict with the stage that reached it and what that stage compared."""

    verdict: Verdict
    stage: str
    evidence: str
