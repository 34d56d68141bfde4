"""Passages that a prompt shows: their places in it, and those about the subject of an answer's sentences.

The subject of a sentence is the name that it begins with, else the names of the question. That of a passage
is the name that it begins with, which may be its title; one that begins with none is about all names in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ...words.language import ENGLISH, LANGUAGES, Language, language_in
from ...words.recogniser import find_entities
from ...words.text import is_stop_word, split_sentences, tokenize

#: Types of entities that are names.
_NAMES = ("name", "work", "organisation", "place")
#: Most characters before the name that a sentence begins with: an article, a quotation mark.
_BEFORE = 4

Stretch = tuple[int, int, tuple[int, ...]]


def subjects(question: str, answer: str, passages: Sequence[str]) -> tuple[Stretch, ...]:
    """List the sentences of an answer with the numbers of the passages about their subject, from 0.

    No number means that no passage names the subject. Sentences without a known subject, where neither they
    nor the question have a name, are left out.
    """
    if not passages:
        return ()
    language = LANGUAGES.get(language_in(f"{question} {answer}"), ENGLISH)
    about = [_subject(passage, language) for passage in passages]
    named = [_words(name) for _, name in _names(question, language)]
    stretches = []
    for start, end in split_sentences(answer, language):
        leading = _leading(answer[start:end], language)
        # A short answer is the value that was asked for and begins with it.
        alone = len(tokenize(answer[start:end])) <= len(tokenize(leading)) + 1
        names = [_words(leading)] if leading and not alone else named
        if names:
            numbers = (place for place, words in enumerate(about) if any(words(name) for name in names))
            stretches.append((start, end, tuple(numbers)))
    return tuple(stretches)


def _subject(passage: str, language: Language) -> Callable[[frozenset[str]], bool]:
    """Return a test whether a passage is about a name, by its words."""
    if leading := _words(_leading(passage, language)):
        return lambda name: name <= leading or leading <= name  # a family name alone, or a longer title
    words = frozenset(tokenize(passage))
    return lambda name: name <= words


def _names(text: str, language: Language) -> list[tuple[int, str]]:
    entities = find_entities(text, language=language)
    return [(entity.start, entity.text) for entity in entities if entity.type in _NAMES]


def _leading(text: str, language: Language) -> str:
    """Return the name that a text begins with, "" if there is none."""
    start = next(iter(split_sentences(text, language)), (0, 0))
    names = _names(text[slice(*start)], language)
    return names[0][1] if names and names[0][0] <= _BEFORE else ""


def _words(name: str) -> frozenset[str]:
    return frozenset(word for word in tokenize(name) if not is_stop_word(word))


def place_passages(prompt: str, passages: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Find the [start, end) of passages in a prompt, each after the one before (ValueError: not there)."""
    places, start = [], 0
    for number, passage in enumerate(passages, 1):
        text = passage.strip()
        place = prompt.find(text, start)
        if place < 0:
            raise ValueError(f"passage {number} is not in the prompt as it stands: {text[:40]!r}")
        start = place + len(text)
        places.append((place, start))
    return tuple(places)


def overlap(part: str, passages: Sequence[str]) -> dict[str, float]:
    """Count what a part of an answer has and no passage: shares of words and of pairs, names and numbers.

    These are the controls that a detector of support has to beat: they read no model.
    """
    words, known = tokenize(part), [tokenize(passage) for passage in passages]
    content = [word for word in words if not is_stop_word(word)] or words
    pairs_of = [set(pairwise(text)) for text in known]
    together = set().union(*known)
    pairs = list(pairwise(words))
    values = [frozenset(tokenize(entity.text)) for entity in find_entities(part)]
    return {
        "new_words": float(np.mean([word not in together for word in content])) if content else 0.0,
        "new_pairs": float(np.mean([not any(p in text for text in pairs_of) for p in pairs]))
        if pairs
        else 0.0,
        "new_values": float(sum(not value <= together for value in values)),
    }
