"""Text whose opening marks cling to the word before them: ``film" Aces"``, ``Goma( 1918``, ``Jean- Claude``.

This is what some question sets (2WikiMultihopQA) have for Wikipedia's text. Natural text
never opens a bracket after a letter and before a space, nor a sentence's first quote.
"""

from __future__ import annotations

import re

_BRACKET = re.compile(r"(?<=[\w)])([(\[]) (?=\S)|^([(\[]) (?=\S)")
_QUOTED = re.compile(r"(?<=[\w)])\(\" (?=\S)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])- (?!(?:and|or|to|nor|but)\b)(?=[^\W_])")
_AMPERSAND = re.compile(r"(?<=\w)& (?=\w)")
_OPENING = re.compile(r"(?:[^\W\d_]|[,:;'])\"\s\S")  # after a digit it is inches


def is_shifted(sentence: str) -> bool:
    """Whether a sentence opens a bracket or its first quote the shifted way."""
    marks = _BRACKET.search(sentence) or _QUOTED.search(sentence)
    return marks is not None or _first_quote(sentence)


def unshift(sentence: str) -> str:
    """The sentence with its opening marks before what they open, and broken hyphens joined."""
    sentence = _QUOTED.sub(' ("', sentence)
    sentence = _BRACKET.sub(lambda m: f" {m[1]}" if m[1] else m[2], sentence)
    return _AMPERSAND.sub(" & ", _HYPHEN.sub("-", _unshift_quotes(sentence)))


def _first_quote(sentence: str) -> bool:
    place = sentence.find('"')
    return sentence.count('"') % 2 == 0 and place > 0 and bool(_OPENING.match(sentence, place - 1))


def _unshift_quotes(sentence: str) -> str:
    if sentence.count('"') % 2:
        return sentence  # which ones open cannot be told
    parts = sentence.split('"')
    for index in range(1, len(parts), 2):  # the text inside each pair of quotes
        before, inside = parts[index - 1], parts[index]
        if inside[:1] == " " and (not before or not before[-1].isspace()):
            parts[index - 1] = f"{before} " if before else before
            parts[index] = inside[1:]
    return '"'.join(parts)
