"""Titles of works in double quotes, told from quoted speech by their capitals."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probers.text import is_stop_word

from .base import Span

_QUOTED = re.compile(r"[\"“]\s?([^\"“”\n]+?)\s?[\"”]")
_MAX_WORDS = 14
#: Share of a title's content words that begin with a capital or a digit.
_CAPITALS = 0.7
_WORD = re.compile(r"[^\W_][\w’'.&-]*")


def find_works(text: str) -> Iterator[Span]:
    """Spans between double quotes that are written like titles, without the quotes."""
    for match in _QUOTED.finditer(text):
        inside = match.group(1).rstrip(",;. ")
        if _is_title(inside):
            yield match.start(1), match.start(1) + len(inside)


def _is_title(inside: str) -> bool:
    words = _WORD.findall(inside)
    if not words or len(words) > _MAX_WORDS or not (words[0][0].isupper() or words[0][0].isdigit()):
        return False
    content = [w for w in words if not is_stop_word(w)] or words
    return sum(w[0].isupper() or w[0].isdigit() for w in content) >= _CAPITALS * len(content)
