"""Completions: real articles cut right before an entity, which is the answer.

A question is the text before the entity, unchanged, and the model continues it. The start of its
continuation is right if it means the same as the article's entity. Articles are read, cut and
dealt to splits as in ``probers-datagen --source wiki``; an article that it does not use, or
without anything to ask for, gives no question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ...options import Count, Limits, Name, Natural, Seed
from ...types import Passage, Question, UserError
from ...words import Entity, EntityType, Recogniser, normalise
from ...words.text import join_sentences
from ..articles import open_articles
from ..articles.cuts import cut_article, natural
from ..tables import Row
from .base import QuestionSource

#: Places where a text could as well continue otherwise: in a list, or within two words of a sentence's start.
_OPEN = re.compile(r"""(?:[,;:/&]|\b(?:and|or|nor))\s*["“]?\s*$|[.!?]["”)]*\s+\S+(?:\s+\S+)?$""")
#: Characters before an entity that are searched for such a place.
_NEAR = 60
#: Words after an entity in the passage of its own place.
_AFTER = 20
#: Number of latest articles whose questions are kept, since a comparison reads them for each split.
_MOST = 100_000
_LAST: dict[Any, list[Question]] = {}


@dataclass(frozen=True, kw_only=True)
class Completion(QuestionSource):
    """Beginnings of articles up to an entity that they have not named before.

    Attributes:
        articles: articles as in ``probers-datagen articles=..``, except a live Wikipedia.
        max_articles: number of articles, drawn by seed; None takes all.
        per_article: largest number of entities per article to cut before, drawn by seed.
        kinds: types of entities; None takes all.
        words: number of last words before the entity that make the question.
        min_words: least number of words in the article before an entity to ask for.
        seed: draws articles and entities, and deals articles to splits; None for the run's.
        known: share of the completions that a model writes without passages: all of these, and so many
            others, drawn by seed, in every split. One greedy pass finds them, once, and its answers stay in
            the user's folder for caches. None asks all.
        known_to: that model.
        own_passages: share of the completions, drawn by seed, whose own place in the article is in
            ``corpus_to``; the others find passages of other articles only.
        corpus_to: file of passages to write, for ``corpus=``, where ``known`` is given.
    """

    articles: str | None = None
    max_articles: Count | None = None
    per_article: Count = 1
    kinds: tuple[EntityType, ...] | None = None
    words: Count = 60
    min_words: Natural = 8
    seed: Seed | None = None
    known: Annotated[float, Limits(gt=0, lt=1)] | None = None
    known_to: Name = "smollm2"
    own_passages: Annotated[float, Limits(ge=0, le=1)] = 0.7
    corpus_to: Name | None = None

    name: ClassVar[str] = "completion"
    mentions: ClassVar[bool] = True
    prompt: ClassVar[str | None] = "completion"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds is not None:
            object.__setattr__(self, "kinds", tuple(self.kinds))
        if self.path is not None or self.hub is not None:
            raise UserError("questions=completion takes questions.articles=FILE alone", "missing-value")
        if self.articles == "wikipedia":
            raise UserError("questions.articles=wikipedia changes daily: give a file or hf:ID", "unsupported")

    @property
    def spec(self) -> str:
        known = "" if self.known is None else f" questions.known={self.known} (to {self.known_to})"
        return f"questions=completion questions.articles={self.articles}{known}"

    @property
    def files(self) -> tuple[str, ...]:
        return () if self._stamp is None else (str(self.articles),)

    def seeded(self, seed: int) -> Completion:
        return self if self.seed is not None else replace(self, seed=seed)

    def rows(self) -> Iterator[Row]:
        if self.known is not None:
            message = f"questions.known={self.known} needs the model's own answers"
            raise UserError(f"{message}: ask by a command, or by known_share", "unsupported")
        yield from self.every_row()

    def every_row(self) -> Iterator[Row]:
        """Yield all completions of the articles, whatever is known."""
        if self.articles is None:
            raise UserError("questions=completion needs questions.articles=FILE", "missing-value")
        key = (replace(self, corpus_to=None), self._stamp)
        if key in _LAST:
            yield from (Row(question.id, question) for question in _LAST[key])
            return
        questions: list[Question] = []
        for row in self._rows(self.articles):
            if isinstance(row.record, Question) and len(questions) <= _MOST:
                questions.append(row.record)
            yield row
        _LAST.clear()
        if len(questions) <= _MOST:
            _LAST[key] = questions

    def _rows(self, articles: str) -> Iterator[Row]:
        seed, recognise = self.seed or 0, Recogniser("rules", fine=True, quiet=True)
        source = open_articles(articles, limit=self.max_articles, seed=seed, on_bad_line="skip")
        for where, reason in source.problems:
            if reason.startswith("malformed"):
                yield Row(where, None, reason.partition(": ")[2])
        for article in map(natural, source):
            cuts = cut_article(
                article, recognise, per_article=self.per_article, within=None, seed=seed,
                wanted=self._wanted,
            )  # fmt: skip
            for cut in cuts:
                shown, about = self._shown(cut.before), {"type": cut.entity.type}
                places: dict[str, Any] = {"group": cut.group, "split": cut.split}
                if self.known is not None:
                    behind = join_sentences(article.sentences)[cut.entity.end :]
                    after = behind.split(maxsplit=_AFTER)[:_AFTER]
                    text = " ".join([f"{shown}{cut.between}{cut.entity.text}", *after])
                    places["passages"] = (Passage(cut.id, article.title, text, is_gold=True),)
                yield Row(cut.id, self.made(cut.id, shown, (cut.entity.text,), truth=about, **places))

    @property
    def _stamp(self) -> tuple[int, int] | None:
        """Size and time of the file; None without a file."""
        path = Path(self.articles or "")
        return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None

    def _wanted(self, text: str, entity: Entity) -> bool:
        """Tell whether to ask for an entity: a settled one of its kind that the question does not name."""
        before = text[: entity.start]
        early = len(before.split(maxsplit=self.min_words)) < self.min_words
        other = self.kinds is not None and entity.type not in self.kinds
        if other or early or _OPEN.search(before.rstrip()[-_NEAR:]):
            return False
        return f" {normalise(entity.text)} " not in f" {normalise(self._shown(before))} "

    def _shown(self, before: str) -> str:
        """Return the last words of the text before an entity, with the spaces between them."""
        words = before.rsplit(maxsplit=self.words)
        return before[len(words[0]) :].strip() if len(words) > self.words else before.strip()


@dataclass(frozen=True, kw_only=True)
class Chosen(Completion):
    """Completions of which some are asked, by their ``ids``; ``selected`` says how they were chosen."""

    ids: frozenset[str] = frozenset()
    selected: str = ""

    def rows(self) -> Iterator[Row]:
        for row in self.every_row():
            if not isinstance(row.record, Question) or row.record.id in self.ids:
                yield row
