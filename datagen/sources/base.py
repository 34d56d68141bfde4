"""What every source of articles shares: problems, drawing, splits and the source itself."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from probers.data import SPLIT_SHARES
from probers.drawing import draw_key
from probers.leftout import LeftOut
from probers.types import Article, RunError, UserError

from .cleaning import clean

#: Called with the articles delivered so far, how many are expected (None: unknown) and what is going on.
Progress = Callable[[int, "int | None", str], None]


def no_progress(done: int, total: int | None, text: str) -> None:
    """A :data:`Progress` that says nothing."""


@dataclass
class Problems(LeftOut):
    """Articles that could not be used; iterates over (title, reason).

    Attributes:
        failed: how many were failures of the network rather than of the article.
    """

    failed: int = 0

    noun: ClassVar[str] = "article"
    kinds: ClassVar[int | None] = 5

    def add(self, title: str, reason: str, *, failure: bool = False) -> None:
        super().add(clean(title), clean(reason))  # as one printable line each
        self.failed += failure

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.listed)

    def nothing_usable(self, spec: str) -> UserError | RunError:
        """The error for a source that delivered no article at all."""
        why = self.summary() or "the source is empty"
        first = f" (first: {self.listed[0][0]}: {self.listed[0][1]})" if self.listed else ""
        kind = RunError if self.failed else UserError
        return kind(f"articles={spec} holds no usable article: {why}{first}")


@dataclass
class ArticleSource:
    """Articles, made one at a time while it is iterated, once.

    Attributes:
        spec: the option's value.
        articles: the articles; raises UserError or RunError at its end when there was none.
        problems: what was left out and why; complete when the iteration has ended.
        total: how many articles are expected at most, None when nobody knows.
    """

    spec: str
    articles: Iterator[Article]
    problems: Problems
    total: int | None

    def __iter__(self) -> Iterator[Article]:
        return self.articles


def at_least_one(spec: str, articles: Iterator[Article], problems: Problems) -> Iterator[Article]:
    """The articles themselves; an error at the end when there was none."""
    empty = True
    for article in articles:
        empty = False
        yield article
    if empty:
        raise problems.nothing_usable(spec)


class Splits:
    """Deals titles to splits by their hash, so that one title is always on one side.

    Given all titles' keys the shares are exact to within one title; without, they are
    met on average, which needs no memory and no second pass.
    """

    def __init__(self, seed: int, keys: array[int] | None = None) -> None:
        self.seed = seed
        self.ends: list[tuple[int, str]] = []
        unique = np.unique(np.frombuffer(keys, dtype=np.uint64)) if keys else None
        upto = 0.0
        for name, share in SPLIT_SHARES:
            upto += share
            if unique is None:
                end = round(upto * 2**64)
            else:
                rank = round(upto * len(unique))
                end = int(unique[rank]) if rank < len(unique) else 2**64
            self.ends.append((end, name))

    def key(self, title: str) -> int:
        return draw_key("split", self.seed, title)

    def __call__(self, title: str) -> str:
        key = self.key(title)
        return next((name for end, name in self.ends if key < end), self.ends[-1][1])
