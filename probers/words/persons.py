"""Names by their parts: given and family names, initials, titles, places with their state, subtitles."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Literal

from .language import english, pairs, table
from .numbers import Relation
from .spelling import GIVEN, LANDFORMS, SIGN_WORDS, merge_letters, name_words, same_plural

_TITLES, _PARTICLES, _COMPANY = map(english, ("person_titles", "family_particles", "company"))
_SUFFIXES = frozenset(["jr", "sr"])
_FORMS = [form.replace("_", " ") for form in table("en")["lists"]["forms"].split()]
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
    if a == b or (min(len(a), len(b)) == 1 and a[0] == b[0]):
        return True
    full_a, full_b = _NICKNAMES.get(a, a), _NICKNAMES.get(b, b)
    return full_a == full_b


def _qualified(a: str, b: str) -> Finding | None:
    """Compare places with their state: "Houston, Texas" is Houston, is not Texas, nor "Houston, Ohio"."""
    heads, tails = [], []
    for mention in (a, b):
        head, _, tail = mention.partition(",")
        tail_words = name_words(tail)
        title = not tail_words or (set(tail_words) & (_COMPANY | _SUFFIXES)) or "," in tail
        heads.append(name_words(mention) if title else name_words(head))
        tails.append(() if title else tail_words)
    if not (tails[0] or tails[1]) or not heads[0] or not heads[1]:
        return None
    shown = f"{' '.join(heads[0])} ({' '.join(tails[0])}) / {' '.join(heads[1])} ({' '.join(tails[1])})"
    if heads[0] == heads[1]:
        return ("different" if tails[0] and tails[1] and tails[0] != tails[1] else "equivalent"), shown
    if tails[0] == tails[1] or heads[0] == tails[1] or heads[1] == tails[0]:
        return "different", shown
    return None


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
    bare = [_bare(name_words(m)) for m in (a, b)]
    plain = [name_words(m) for m in (a, b)]
    if bare[0] and bare[0] == bare[1] and plain[0] != plain[1] and "".join(bare[0]) not in _TWO_STATES:
        return "equivalent", f"{' '.join(plain[0])} / {' '.join(plain[1])} without its descriptor"
    return None


def _bare(whole: tuple[str, ...]) -> tuple[str, ...]:
    text = " ".join(whole)
    for form in _FORMS:
        if text.startswith(form + " "):
            return tuple(text.removeprefix(form + " ").split())
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
    if relation is None:
        small, large = sorted((set(x), set(y)), key=len)
        if small < large:
            relation = "different" if large - small <= DIRECTIONS else "partial"
        elif same_plural(x, y):
            relation = "partial"
    return None if relation is None else (relation, shown)


def _person(mention: str) -> tuple[str, tuple[str, ...], str]:
    """Split title, name and suffix ("jr"), each "" or () when missing."""
    parts = [w for w in name_words(mention) if w]
    title = suffix = ""
    titles = len(list(takewhile(_TITLES.__contains__, parts[:-1])))
    if titles and parts[titles] != "of":  # "Lieutenant Governor of Kentucky" is an office
        title, parts = parts[titles - 1], parts[titles:]
    if len(parts) > 2 and parts[-1] in _SUFFIXES:
        suffix, parts = parts[-1], parts[:-1]
    return title, tuple(parts), suffix


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
