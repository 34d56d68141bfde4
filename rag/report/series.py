"""How each method is drawn: one colour, dash and marker per method, the same in every chart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Methods that bound the others; drawn in grey.
REFERENCES = ("never", "always", "random", "oracle")

_COLOURS = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")
_REFERENCE_MARKERS = {"never": "circle", "always": "square", "random": "diamond", "oracle": "triangle"}


@dataclass(frozen=True, slots=True)
class Series:
    """A method's look.

    Attributes:
        css: class that sets the custom property ``--line``.
        dash: SVG dash pattern, empty for a solid line.
        marker: name of the marker's shape.
        reference: drawn hollow and grey.
    """

    name: str
    css: str
    dash: str
    marker: str
    reference: bool


def stem(name: str) -> str:
    """The kind of method in a name: "rind" for "rind_released" or "rind (paper)"."""
    found = re.match(r"[a-z]+", name.strip().lower())
    return found.group() if found else name


def assign(names: Iterable[str]) -> dict[str, Series]:
    """A look for every method; probers and entropy come first so that theirs hardly ever change."""
    order = {"probing": 0, "entropy": 1, "rind": 2}
    distinct = list(dict.fromkeys(names))
    ranked = sorted(
        (name for name in distinct if stem(name) not in REFERENCES),
        key=lambda name: (order.get(stem(name), 3), distinct.index(name)),
    )
    looks = {}
    for name in distinct:
        if stem(name) in REFERENCES:
            looks[name] = Series(name, "m0", "3 3", _REFERENCE_MARKERS[stem(name)], True)
            continue
        index = ranked.index(name)
        turn = index + index // _COLOURS  # a colour that comes round again gets another dash and marker
        looks[name] = Series(
            name,
            f"m{index % _COLOURS + 1}",
            _DASHES[turn % len(_DASHES)],
            _MARKERS[turn % len(_MARKERS)],
            False,
        )
    return looks
