"""The entity span and what all recognisers share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

EntityType = Literal["name", "date", "year", "number", "work", "organisation", "place"]

#: A span [start, end) of a text without its type.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entity:
    """A span [start, end) of a text, with the text itself and its type."""

    start: int
    end: int
    text: str
    type: EntityType


class Cover:
    """The characters of a text that spans have taken; each question costs the span's length."""

    def __init__(self, length: int, spans: Iterable[Span] = ()) -> None:
        self._taken = bytearray(length)
        for start, end in spans:
            self.take((start, end))

    def take(self, span: Span) -> None:
        start, end = span
        self._taken[start:end] = b"\1" * (end - start)

    def free(self, span: Span) -> bool:
        """Whether no character of the span is taken."""
        return not any(self._taken[slice(*span)])

    def take_longest(self, spans: Iterable[Span]) -> list[Span]:
        """Takes of the free spans the longest first, of equally long ones the first; returns those taken."""
        kept = []
        for span in sorted(set(spans), key=lambda s: (s[0] - s[1], s[0])):
            if self.free(span):
                self.take(span)
                kept.append(span)
        return kept
