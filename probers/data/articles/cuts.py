"""Cuts of articles right before an entity that is inside a sentence and not in the title (RaDIO, MIND)."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from ...types import Article, UserError
from ...words import Entity, Recognise, language_of, normalise
from ...words.text import detokenise_sentences, join_sentences, split_sentences
from .base import ArticleSource


@dataclass(frozen=True, slots=True)
class Cut:
    """An article, in natural text, cut before ``entity``, a span in its sentences joined by spaces.

    ``before`` is the article up to the entity, or its end, and ``between`` the space before the entity, ""
    after a bracket or a quote; ``sentence`` is the index of the entity's sentence.
    """

    article: Article
    entity: Entity
    before: str
    between: str
    sentence: int

    @property
    def id(self) -> str:
        return f"{self.article.id}/{self.entity.start}"

    @property
    def split(self) -> str:
        return self.article.split

    @property
    def group(self) -> str:
        return self.article.id


def cut_article(
    article: Article,
    recognise: Recognise,
    *,
    per_article: int,
    within: int | None,
    seed: int,
    wanted: Callable[[str, Entity], bool] = lambda text, entity: True,
) -> list[Cut]:
    """Cut an article in natural text before at most ``per_article`` entities, drawn by ``seed``.

    They are in its first ``within`` sentences (None: in all), and ``wanted`` accepts them.
    """
    language = language_of(recognise)
    text = join_sentences(article.sentences)
    sentences = split_sentences(text, language)[:within]
    if not sentences:
        return []
    starts = [start for start, _ in sentences]
    text = text[: sentences[-1][1]]
    # A title names an entity by its words in a row, or without spaces by its characters.
    space = " " if language.spaced else ""
    title = f"{space}{normalise(article.title)}{space}"
    inside = [e for e in recognise(text) if e.start not in starts and text[: e.start].strip()]
    new = [e for e in inside if f"{space}{normalise(e.text)}{space}" not in title]
    usable = [e for e in new if wanted(text, e)]
    rng = random.Random(f"cuts:{seed}:{article.id}")
    cuts = []
    for entity in sorted(rng.sample(usable, min(per_article, len(usable))), key=lambda e: e.start):
        before = text[: entity.start].rstrip()
        between = text[len(before) : entity.start]
        cuts.append(Cut(article, entity, before, between, bisect_right(starts, entity.start) - 1))
    return cuts


def shortened(cuts: Iterable[Cut], tokens: int, starts: Callable[[str], Sequence[int]]) -> Iterator[Cut]:
    """Keep at most the last ``tokens`` tokens before each cut; cuts of an article must be adjacent.

    Shortened texts begin at multiples of half of ``tokens``, moved on to the start of a sentence, or a word
    if none begins soon. Cuts near each other share their beginning, so that the model reads it only once.
    ``starts`` returns the ascending places in a text where its tokens begin.
    """
    step = max(1, tokens // 2)
    for article, group in groupby(cuts, key=lambda cut: cut.article):
        of_article = list(group)
        # A token is at least one byte.
        if all(len(cut.before.encode()) <= tokens for cut in of_article):
            yield from of_article
            continue
        text = join_sentences(article.sentences)
        places, sentences = starts(text), [start for start, _ in split_sentences(text)]
        for cut in of_article:
            beyond = bisect_left(places, len(cut.before)) - tokens
            first = -(-beyond // step) * step
            if beyond <= 0:
                yield cut
                continue
            begin, latest = places[first], places[first + step // 2]
            place = bisect_left(sentences, begin)
            if place < len(sentences) and sentences[place] <= latest:
                begin = sentences[place]
            else:
                begin = max(begin, text.find(" ", begin, latest))
            yield replace(cut, before=cut.before[begin:].lstrip())


def natural(article: Article) -> Article:
    """Put an article into natural text."""
    return replace(article, sentences=tuple(detokenise_sentences(article.sentences)))


@dataclass(slots=True)
class CutPlan:
    """The cuts of all articles of a source, made one article at a time while it is iterated, once.

    Articles without a cut join the problems of ``source``. ``articles`` and ``cuts`` are counts so far.
    """

    source: ArticleSource
    recognise: Recognise
    per_article: int
    within: int | None
    seed: int
    articles: int = field(default=0, init=False)
    cuts: int = field(default=0, init=False)
    _stream: Iterator[Cut] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._stream = self._all()

    def peek(self) -> None:
        """Make the first cut and keep it, so that articles without any cut are an error now."""
        self._stream = chain([next(self._stream)], self._stream)

    def __iter__(self) -> Iterator[Cut]:
        """Iterate over the cuts; UserError at the end if there were none."""
        return self._stream

    def _all(self) -> Iterator[Cut]:
        for article in self.source:
            self.articles += 1
            cuts = cut_article(
                natural(article), self.recognise, per_article=self.per_article, within=self.within,
                seed=self.seed,
            )  # fmt: skip
            if not cuts:
                self.source.problems.add(article.title, "no entity: none in a sentence, outside the title")
            self.cuts += len(cuts)
            yield from cuts
        if not self.cuts:
            where = f"articles={self.source.spec}: nothing to cut at in {self.articles} articles"
            raise UserError(f"{where}, no entity inside a sentence and outside the title", "empty")
