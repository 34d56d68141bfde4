"""What a comparison found, by method: its figures, its paired differences, and how it is drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

#: Methods that bound the others, with their markers; drawn hollow and grey.
_REFERENCES = {"never": "circle", "always": "square", "random": "diamond", "oracle": "triangle"}
#: Methods that never or always fire by definition: no news.
FIXED = ("never", "always")
_COLOURS = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")


class Findings:
    """What a comparison found; figures that are null or not finite are absent from all of it.

    Attributes:
        results: results.json.
        data: what the page needs beyond it.
        methods: the figures of each method of results.json.
        n: number of questions, None where nothing says.
        differences: all paired differences of results.json.
        looks: how each method that any part of the page names is drawn.
    """

    def __init__(self, results: Json, data: Json) -> None:
        self.results: Json = _known(results)
        self.data: Json = _known(data)
        self.methods: dict[str, Json] = self.results.get("methods", {})
        self.n: int | None = self.data.get("n", self.results.get("n"))
        self.differences = [
            Difference(first, second, figure.removeprefix("trigger."), entry["diff"], entry.get("ci95"))
            for pair, figures in self.results.get("pairs", {}).items()
            for first, _, second in [pair.partition(" vs ")]
            for figure, entry in figures.items()
            if "diff" in entry
        ]
        self._by_pair = {
            (entry.first, entry.second, entry.figure): entry
            for filed in self.differences
            for entry in (filed.turned(), filed)
        }
        names = [*self.methods]
        for part in ("knowledge_em", "roc", "replay", "reruns", "points"):
            names += self.data.get(part, {})
        for example in self.data.get("examples", ()):
            names += [method["method"] for method in example.get("methods", ())]
        self.looks = assign(names)

    def figure(self, method: str, name: str) -> float | None:
        """One figure of a method; ``trigger.x`` reaches into its trigger part."""
        part, _, last = name.rpartition(".")
        figures = self.methods[method]
        return (figures.get(part, {}) if part else figures).get(last)

    def interval(self, method: str, name: str) -> Sequence[float] | None:
        """The 95% interval of a figure; trigger figures may be filed as ``trigger.x`` or ``x``."""
        intervals = self.methods[method].get("ci95", {})
        return intervals.get(name, intervals.get(name.removeprefix("trigger.")))

    def difference(self, first: str, second: str, name: str) -> Difference | None:
        """The paired difference in a figure, in whichever order it is filed."""
        return self._by_pair.get((first, second, name.removeprefix("trigger.")))


def _known(value: Any) -> Any:
    """The same JSON without entries that are null or not finite; a list with one of them is left out."""
    if isinstance(value, Mapping):
        kept = ((key, _known(item)) for key, item in value.items())
        return {key: item for key, item in kept if item is not None}
    if isinstance(value, (list, tuple)):
        items = [_known(item) for item in value]
        return None if None in items else items
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class Difference:
    """First method minus second in one figure on the same questions, with the paired 95% interval."""

    first: str
    second: str
    figure: str
    value: float
    ci: Sequence[float] | None

    def turned(self) -> Difference:
        """Second minus first."""
        ci = self.ci and (-self.ci[1], -self.ci[0])
        return Difference(self.second, self.first, self.figure, -self.value, ci)


def verdict(ci: Sequence[float]) -> str:
    """What an interval of a difference allows to say."""
    return "above" if ci[0] > 0 else "below" if ci[1] < 0 else "not settled"


def stem(name: str) -> str:
    """The kind of method in a name: "rind" for "rind_released" or "rind (paper)"."""
    found = re.match(r"[a-z]+", name.strip().lower())
    return found.group() if found else name


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn, the same in every chart.

    Attributes:
        css: class that sets the custom property ``--line``.
        dash: SVG dash pattern, empty for a solid line.
        marker: name of the marker's shape.
        reference: drawn hollow and grey, as it bounds the others.
    """

    css: str
    dash: str
    marker: str
    reference: bool = False

    @property
    def mark(self) -> str:
        """Classes of the method's markers."""
        return f"mark {self.css}{' hollow' if self.reference else ''}"


def assign(names: Iterable[str]) -> dict[str, Look]:
    """A look for every method; probers and entropy come first so that theirs hardly ever change."""
    order = ("probing", "entropy", "rind")
    looks: dict[str, Look] = {}
    compared: list[tuple[int, int, str]] = []
    for name in dict.fromkeys(names):
        kind = stem(name)
        if kind in _REFERENCES:
            looks[name] = Look("m0", "3 3", _REFERENCES[kind], reference=True)
        else:
            compared.append((order.index(kind) if kind in order else len(order), len(compared), name))
    for index, (*_, name) in enumerate(sorted(compared)):
        turn = index + index // _COLOURS  # a colour that comes round again gets another dash and marker
        css = f"m{index % _COLOURS + 1}"
        looks[name] = Look(css, _DASHES[turn % len(_DASHES)], _MARKERS[turn % len(_MARKERS)])
    return looks
