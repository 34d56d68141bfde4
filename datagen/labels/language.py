"""Language of a run: as asked for, that of the Wikipedia, or found in the texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from probers.data.articles import ArticleSource
from probers.data.topics import Topic
from probers.types import UserError
from probers.words import Language, Recogniser
from probers.words.language import Language, detect, language_named
from probers.words.text import join_sentences

from ..settings import Datagen

#: Number of articles that are looked at, the first of those drawn.
_LOOK = 200
#: Number of prompts that make one text; alone they are too short.
_PROMPTS = 10


def language_of_articles(settings: Datagen, source: ArticleSource) -> Language:
    """Find the language of articles; ``source`` must be unread (UserError: not supported, or several)."""
    if (told := _told(settings)) is not None:
        return told
    first = list(islice(source.articles, _LOOK))
    source.articles = chain(first, source.articles)
    return detect(join_sentences(article.sentences) for article in first)


def language_of_topics(settings: Datagen, topics: Sequence[Topic]) -> Language:
    """Find the language of the topics: of the reference articles, or of the prompts without any."""
    if (told := _told(settings)) is not None:
        return told
    texts = [join_sentences(topic.reference) for topic in topics[:_LOOK] if topic.reference]
    prompts = [topic.prompt for topic in topics[:_LOOK] if topic.prompt and not topic.reference]
    return detect([*texts, *(" ".join(prompts[i : i + _PROMPTS]) for i in range(0, len(prompts), _PROMPTS))])


def _told(settings: Datagen) -> Language | None:
    """Return the language asked for, or that of the Wikipedia to read; None if it must be found."""
    wikipedia = settings.wikipedia.language if settings.articles == "wikipedia" else None
    read = None if wikipedia is None else "en" if wikipedia == "simple" else wikipedia
    if settings.language == "auto":
        return None if read is None else language_named(read, "wikipedia.language")
    if read not in (None, settings.language):
        told = f"language={settings.language} and wikipedia.language={wikipedia} differ"
        raise UserError(f"{told}: leave language out, as it is that of the Wikipedia", "conflict")
    return language_named(settings.language)


def recogniser_in(kind: str, language: Language) -> Recogniser:
    """Make the requested recogniser in a language (UserError: one for another language)."""
    plain = kind in ("rules", "auto") and not language.english
    recognise = Recogniser(f"{kind}:{language.code}" if plain else kind, fine=True)
    if recognise.language is not language:
        told = f"recogniser={kind} is for {recognise.language.name}, but the language is {language.name}"
        raise UserError(f"{told}: name a pipeline of that language, or recogniser=rules", "mismatch")
    return recognise
