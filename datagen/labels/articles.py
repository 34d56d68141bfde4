"""Articles that a source reads: where they are, in which language, and what finds entities in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from probers.commands.settings import plain
from probers.data.articles import ArticleSource, Rules, open_articles
from probers.data.topics import Topic
from probers.entities import Recogniser
from probers.languages import ENGLISH, Language, language_named
from probers.languages.detection import detect
from probers.text import join_sentences
from probers.types import UserError

from ..settings import OfArticles, Options

#: Number of articles that are looked at, the first of those drawn.
_LOOK = 200
#: Number of prompts that make one text; alone they are too short.
_PROMPTS = 10


@dataclass(frozen=True, kw_only=True)
class ReadsArticles(OfArticles):
    """Source that reads articles."""

    def open(self, options: Options, limit: int | None) -> ArticleSource:
        """Open the articles anew."""
        return open_articles(
            self.articles, limit=limit, seed=options.seed, on_bad_line=options.on_bad_line,
            rules=Rules(self.min_sentences, self.max_chars), wikipedia=plain(self.wikipedia),
        )  # fmt: skip

    def language_of_articles(self, source: ArticleSource) -> Language:
        """Find the language of articles; ``source`` must be unread (UserError: not supported, or several)."""
        if (chosen := self._chosen_language()) is not None:
            return chosen
        first = list(islice(source.articles, _LOOK))
        source.articles = chain(first, source.articles)
        return detect(join_sentences(article.sentences) for article in first)

    def language_of_topics(self, topics: Sequence[Topic]) -> Language:
        """Find the language of the topics: of the reference articles, or of the prompts without any."""
        if (chosen := self._chosen_language()) is not None:
            return chosen
        texts = [join_sentences(topic.reference) for topic in topics[:_LOOK] if topic.reference]
        prompts = [topic.prompt for topic in topics[:_LOOK] if topic.prompt and not topic.reference]
        blocks = (" ".join(prompts[i : i + _PROMPTS]) for i in range(0, len(prompts), _PROMPTS))
        return detect([*texts, *blocks])

    def _chosen_language(self) -> Language | None:
        """Return the language asked for, or that of the Wikipedia to read; None if it must be found."""
        wikipedia = self.wikipedia.language if self.articles == "wikipedia" else None
        read = None if wikipedia is None else "en" if wikipedia == "simple" else wikipedia
        if self.language == "auto":
            return None if read is None else language_named(read, "wikipedia.language")
        if read not in (None, self.language):
            told = f"language={self.language} and wikipedia.language={wikipedia} differ"
            raise UserError(f"{told}: leave language out, as it is that of the Wikipedia", "conflict")
        return language_named(self.language)

    def recogniser_in(self, language: Language) -> Recogniser:
        """Make the requested recogniser in a language (UserError: one for another language)."""
        kind = self.recogniser
        plain_ = kind in ("rules", "auto") and not language.english
        recognise = Recogniser(f"{kind}:{language.code}" if plain_ else kind, fine=True)
        if recognise.language is not language:
            told = f"recogniser={kind} is for {recognise.language.name}, but the language is {language.name}"
            raise UserError(f"{told}: name a pipeline of that language, or recogniser=rules", "mismatch")
        return recognise


def recorded_language(language: Language) -> dict[str, Any]:
    """Record the language of a run; English is not recorded, as before there were others."""
    return {} if language is ENGLISH else {"language": language.code}
