"""Kinds of things that texts call their subject ("an American football coach"), and which may be the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from probers.words.text import is_stop_word, split_sentences
from probers.words.wordnet import find_wordnet, open_wordnet

_COPULA = re.compile(r"\b(?:is|was|are|were)\s(?:an?|the|one\sof\sthe|one\sof)\s|\s[–—-]\san?\s")
#: End of the noun phrase after "is a".
_END = re.compile(
    r"[.;:,()\"]|\b(?:who|that|which|where|when|by|for|from|with|about|in|at|on|of|to|as|between|during|"
    r"whose|known|called|named|used|set|run|located|based)\b"
)
#: Nouns that tell no kind; the noun after "of" does.
_VAGUE = frozenset(
    "form type kind part member one name series set group example piece term variety style work person "
    "figure individual place way collection combination concept former list case classic masterpiece staple "
    "tale treasure icon matter drama comedy thriller franchise conglomerate story narrative stretch "
    "reference area region artist".split()
)
#: WordNet's classes of things; other nouns ("aspect", "journey") do not distinguish things.
_THINGS = frozenset(
    "noun.person noun.artifact noun.animal noun.plant noun.food noun.location noun.group noun.communication "
    "noun.object noun.substance".split()
)
#: Classes of places that a text may exchange: a bay and a region, a country and a continent.
_PLACES = frozenset(("noun.location", "noun.object"))
#: Similarity (Wu and Palmer 1994) from which two nouns may name one thing.
_ALIKE = 0.65
_SENSES = 3
_SENTENCES = 2
#: Letters of a noun that its other forms share.
_STEM = 5


def another_kind(answer: str, article: str, subject: str) -> str:
    """Tell two kinds apart that cannot be one thing, as "coach / cosmologist"; "" if they may be one.

    The answer's kind is neither named in the article nor like any noun that the article uses for the kind of
    its subject. Without WordNet's files no kinds are known.
    """
    folder = find_wordnet()
    if folder is None:
        return ""
    said = _nouns(answer, subject, folder)
    # The kind in "Tangled Lives (1910 film)".
    named = [w for w in _words(subject.partition("(")[2]) if _senses(w, folder)]
    own = [*_nouns(article, subject, folder), *named]
    if not said or not own or not any(s.lexname() in _THINGS for s in _senses(said[0], folder)[:1]):
        return ""
    text = article.lower()
    if any(noun[:_STEM].lower() in text or _alike(noun, one, folder) for noun in said for one in own):
        return ""
    return f"{own[0]} / {said[0]}"


def _nouns(text: str, subject: str, folder: str) -> list[str]:
    """List the nouns of the first phrase "the subject is a ..", the head first; [] if none tells a kind."""
    own = {word for word in map(str.lower, _words(subject)) if not is_stop_word(word)}
    for start, end in split_sentences(text)[:_SENTENCES]:
        copula = _COPULA.search(text, start, end)
        if copula is None or not own & set(map(str.lower, _words(text[start : copula.start()]))):
            continue
        for phrase in _phrases(text, copula.end(), end):
            words = [w for w in _words(phrase) if w[0].islower() and not w.endswith(("ed", "ing"))]
            if not words or not _is_noun(words[-1], folder):
                break
            if words[-1] not in _VAGUE:
                return [w for w in reversed(words) if _is_noun(w, folder)]
    return []


def _phrases(text: str, place: int, end: int) -> Iterator[str]:
    """Yield the noun phrase that begins at ``place``, and those after each "of" that follows."""
    while place < end:
        stop = _END.search(text, place, end)
        yield text[place : stop.start() if stop else end]
        if stop is None or stop.group() != "of":
            return
        place = stop.end()


def _words(phrase: str) -> list[str]:
    return re.findall(r"[^\W\d_][^\W\d_-]{2,}", phrase)


def _is_noun(word: str, folder: str) -> bool:
    """Tell whether a word is more often a noun than an adjective."""
    nouns = _senses(word, folder)
    return bool(nouns) and len(open_wordnet(folder).synsets(word.lower(), pos="a")) <= len(nouns)


@lru_cache(maxsize=4096)
def _senses(noun: str, folder: str) -> list[Any]:
    return open_wordnet(folder).synsets(noun.lower(), pos="n")[:_SENSES]  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _alike(a: str, b: str, folder: str) -> bool:
    if _is_place(a, folder) and _is_place(b, folder):
        return True
    pairs = ((x, y) for x in _senses(a, folder) for y in _senses(b, folder))
    return any((x.wup_similarity(y) or 0) >= _ALIKE for x, y in pairs)


def _is_place(noun: str, folder: str) -> bool:
    return any(sense.lexname() in _PLACES for sense in _senses(noun, folder)[:2])
