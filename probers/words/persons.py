"""Names by their parts: given and family names, initials, titles, places with their state, subtitles."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Literal

from .language import either, english, pairs, table
from .numbers import Relation
from .spelling import GIVEN, LANDFORMS, SIGN_WORDS, merge_letters, name_words, same_plural

_TITLES, _PARTICLES, _COMPANY = map(english, ("person_titles", "family_particles", "company"))
_SUFFIXES = frozenset(["jr", "sr"])
_FORM = re.compile(rf"(?:{either(english('forms'))})\s")
#: Forms whose long and short name are two different places.
_TWO_STATES = frozenset(["china", "congo"])
_NAMESAKES, _GENERIC, DIRECTIONS = map(english, ("namesakes", "generic", "directions"))
_NO_GIVEN = DIRECTIONS | english("no_given")
#: Nickname -> given name.
_NICKNAMES = pairs(table("en")["nicknames"])

#: A relation, or "family" for a family name alone against a full name, with the compared parts.
PartRelation = Relation | Literal["family"]
Finding = tuple[PartRelation, str]


def compare_parts(a: str, b: str) -> Finding | None:
    """Compare the parts of two names; None when they decide nothing."""
    return _qualified(a, b) or _subtitled(a, b) or _described(a, b) or _people(a, b)


def same_given(a: str, b: str) -> bool:
    """Tell whether two given names may be one: the same, an initial, or a nickname."""
    initial = min(len(a), len(b)) == 1 and a[0] == b[0]
    return initial or _NICKNAMES.get(a, a) == _NICKNAMES.get(b, b)


def _qualified(a: str, b: str) -> Finding | None:
    """Compare places with their state: "Houston, Texas" is Houston, is not Texas, nor "Houston, Ohio"."""
    (x, state_x), (y, state_y) = map(_with_state, (a, b))
    if not (state_x or state_y) or not x or not y:
        return None
    shown = f"{' '.join(x)} ({' '.join(state_x)}) / {' '.join(y)} ({' '.join(state_y)})"
    if x == y:
        return ("different" if state_x and state_y and state_x != state_y else "equivalent"), shown
    return ("different", shown) if state_y in (state_x, x) or state_x == y else None


def _with_state(mention: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split off the state of a place, () of another name; "Jr." and "Inc." are none."""
    head, _, tail = mention.partition(",")
    state = name_words(tail)
    if not state or "," in tail or set(state) & (_COMPANY | _SUFFIXES):
        return name_words(mention), ()
    return name_words(head), state


def _subtitled(a: str, b: str) -> Finding | None:
    """Compare a work with its subtitle, which alone is the work; its series alone is a part of the name."""
    for long, short in ((a, b), (b, a)):
        pieces = [name_words(p) for p in re.split(r":|\s[–—-]\s", long)]
        whole = name_words(short)
        if len(pieces) < 2 or not whole or re.search(r":|\s[–—-]\s", short):
            continue
        if len(whole) > 1 and whole == pieces[-1]:
            return "equivalent", f"subtitle {' '.join(whole)}"
        if whole == pieces[0]:
            return "partial", f"{' '.join(whole)} before the colon"
    return None


def _described(a: str, b: str) -> Finding | None:
    """Compare without "Inc.", "Republic of", "Mount" and the like, where the names are then the same."""
    x, y = name_words(a), name_words(b)
    bare = _bare(x)
    if x != y and bare and bare == _bare(y) and "".join(bare) not in _TWO_STATES:
        return "equivalent", f"{' '.join(x)} / {' '.join(y)} without its descriptor"
    return None


def _bare(whole: tuple[str, ...]) -> tuple[str, ...]:
    text = " ".join(whole)
    if form := _FORM.match(text):
        return tuple(text[form.end() :].split())
    words = merge_letters(whole)
    # A club is not the city it is named after: "FC" goes only from a longer name.
    if len(words) > 2 and "fc" in (words[0], words[-1]):
        return words[1:] if words[0] == "fc" else words[:-1]
    while len(words) > 1 and words[-1] in _COMPANY:
        words = words[:-1]
    if len(words) == 2:
        for landform, name in (words, words[::-1]):
            if landform in LANDFORMS and name not in _NAMESAKES | GIVEN:
                return (name,)
    return words


def _people(a: str, b: str) -> Finding | None:
    (title_a, x, suffix_a), (title_b, y, suffix_b) = _person(a), _person(b)
    if not x or not y:
        return None
    shown = f"{' '.join(x)} / {' '.join(y)}"
    if x == y:
        if suffix_a != suffix_b:
            return ("different" if suffix_a and suffix_b else "partial"), f"{shown} ({suffix_a}/{suffix_b})"
        return ("different" if title_a and title_b and title_a != title_b else "equivalent"), shown
    if set(x) ^ set(y) <= SIGN_WORDS:
        return "different", shown
    alone = min(len(x), len(y)) == 1 or _family(x) == y or _family(y) == x
    titled = bool(title_a or title_b)
    relation = _single(x, y, titled=titled) if alone else _full(x, y)
    if relation == "equivalent" and suffix_a and suffix_b and suffix_a != suffix_b:
        relation = "different"
    small, large = sorted((set(x), set(y)), key=len)
    if relation is None and (small < large or same_plural(x, y)):
        relation = "different" if small < large and large - small <= DIRECTIONS else "partial"
    return relation and (relation, shown)


def _person(mention: str) -> tuple[str, tuple[str, ...], str]:
    """Split title, name and suffix ("jr"), each "" or () when missing."""
    parts, title, suffix = name_words(mention), "", ""
    titles = len(list(takewhile(_TITLES.__contains__, parts[:-1])))
    if titles and parts[titles] != "of":  # "Lieutenant Governor of Kentucky" is an office
        title, parts = parts[titles - 1], parts[titles:]
    if len(parts) > 2 and parts[-1] in _SUFFIXES:
        suffix, parts = parts[-1], parts[:-1]
    return title, parts, suffix


def _family(name: tuple[str, ...]) -> tuple[str, ...]:
    """Return the family name with its particles: "da vinci" of "leonardo da vinci"."""
    start = len(name) - 1
    while start > 0 and name[start - 1] in _PARTICLES:
        start -= 1
    return name[start:]


def _single(x: tuple[str, ...], y: tuple[str, ...], *, titled: bool) -> PartRelation | None:
    """Compare a family name alone with the full name; any other part of a name is a part."""
    short, long = sorted((x, y), key=len)
    if len(short) == len(long):
        return None
    if long[0] == short[0] and long[-1] != short[-1]:
        return "partial"
    if short not in (_family(long), long[-1:]):
        return None
    if set(long) <= DIRECTIONS | set(short):
        return "different"
    extra = long[: -len(short)]
    plural = short[-1].endswith("s") and len(extra) > 1  # a team: "Lakers"
    no_family = short[-1] in _GENERIC or short[-1].isdigit() or len(short[-1]) < 2
    first = extra[0]
    known = first in GIVEN or first in _NICKNAMES or len(first) == 1 or bool(_PARTICLES & set(long))
    person = titled or (known and first not in _NO_GIVEN)
    return "family" if not no_family and not {"of", "and"} & set(extra) and (plural or person) else "partial"


def _full(x: tuple[str, ...], y: tuple[str, ...]) -> PartRelation | None:
    """Compare two names of several words each: the same family name, given names that agree."""
    if x[-1] != y[-1] or x[-1].isdigit() or x[-1] in _GENERIC or "of" in x + y or "and" in x + y:
        return None
    if not same_given(x[0], y[0]):
        short, long = sorted((x, y), key=len)
        return None if long[-len(short) :] == short else "different"  # "British Royal Family"
    family = len(_family(x)) if _family(x) == _family(y) else 1
    middle_x, middle_y = x[1:-family], y[1:-family]
    if middle_x and middle_y:
        agree = len(middle_x) == len(middle_y) and all(map(same_given, middle_x, middle_y))
        return "equivalent" if agree else "different"
    initials = all(len(name) == 1 for name in middle_x + middle_y)
    return "equivalent" if initials else "partial"  # John Quincy Adams is John Adams's son
