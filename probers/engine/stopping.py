"""Ends of texts before their length limit.

A stop string or a sentence end is a place in the text, found as soon as it cannot move
any more. Kept are the tokens that lie wholly before it: where one token holds both the
last characters and the beginning of the stop string, it is left out. Callables see the
text after each token, which is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..text import split_sentences
from ..types import UserError

StopCallable = Callable[[str], bool]

_OPEN = re.compile(r"\s*\S*$")


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """Ends a text with its ``count``-th sentence, by the rules of :func:`probers.text.split_sentences`.

    That a sentence has ended shows when the next one begins, so a token or two of that
    are decoded, and left out.
    """

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"SentenceEnd({self.count}): count must be at least 1")

    def find(self, text: str) -> int | None:
        """End of the sentence, once that is certain; None before."""
        # "U.S. The" ends a sentence and "U.S. Theodore" does not: whether a word that is
        # still growing begins a sentence is taken to be open, which a longer word shows.
        known = text if not text or text[-1].isspace() else text + "x"
        spans = split_sentences(known)
        return spans[self.count - 1][1] if len(spans) > self.count else None


Stop = str | SentenceEnd | StopCallable


@dataclass(frozen=True, slots=True)
class Stops:
    """Everything that can end a text."""

    eos: frozenset[int]
    strings: tuple[str, ...] = ()
    sentences: tuple[SentenceEnd, ...] = ()
    callables: tuple[StopCallable, ...] = ()

    @classmethod
    def of(cls, eos: frozenset[int], stop: Sequence[Any]) -> Stops:
        """Sort what a user gave.

        Raises:
            UserError: something that is neither a text, a SentenceEnd nor callable.
        """
        if isinstance(stop, str):
            raise UserError(f"stop={stop!r} must be a list, not one text: use stop=[{stop!r}]")
        strings, sentences, callables = [], [], []
        for each in stop:
            if each == "":
                raise UserError("a stop string is empty; leave it out or give its text")
            if isinstance(each, str):
                strings.append(each)
            elif isinstance(each, SentenceEnd):
                sentences.append(each)
            elif callable(each):
                callables.append(each)
            else:
                raise UserError(f"stop={each!r} is neither a text, a SentenceEnd nor a function of the text")
        return cls(eos, tuple(strings), tuple(sentences), tuple(callables))

    @property
    def read_text(self) -> bool:
        """The text must be decoded as it grows."""
        return bool(self.strings or self.sentences or self.callables)

    @property
    def look_back(self) -> bool:
        """A later token may cut off earlier ones."""
        return bool(self.strings or self.sentences)

    def find(self, text: str, known: int) -> int | None:
        """End of the text, None while it runs; its first ``known`` characters hold none."""
        places = [text.find(stop, max(0, known - len(stop) + 1)) for stop in self.strings]
        found = [place for place in places if place >= 0]
        ends = [sentence.find(text) for sentence in self.sentences]
        found += [end for end in ends if end is not None]
        return min(found, default=None)

    def safe(self, text: str) -> int:
        """Characters that stay whatever comes next: no stop can begin before them."""
        reach = max((len(stop) for stop in self.strings), default=1) - 1
        sure = len(text) - reach
        if self.sentences:  # the border before the last word may still prove to be one
            match = _OPEN.search(text)
            sure = min(sure, match.start() if match else 0)
        return sure
