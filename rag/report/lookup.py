"""Findings of a comparison by method: figures, paired differences, and colours of charts and tokens."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = Mapping[str, Any]

#: Methods that bound the others, with their markers, which are hollow and grey.
_REFERENCES = {"never": "circle", "always": "square", "random": "diamond", "oracle": "triangle"}
_COLOURS = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")

#: Level of significance: a difference with a smaller p-value is settled.
LEVEL = 0.05
#: Figures by which answers are judged, in words.
_RULES = {
    "em": "exact match",
    "acc": "ACC (a gold answer's words stand in the text)",
    "match": "match (the answer means the same as a gold answer)",
    "acc_substring": "ACC of characters (a gold answer stands anywhere in the text)",
}


class Headline(NamedTuple):
    """Figure that methods are ranked by: its key in results.json, and its name in a column and a sentence."""

    key: str
    short: str
    words: str


HEADLINES = {
    "em": Headline("em", "EM", "exact match"),
    "acc": Headline("acc", "ACC", "accuracy by containment"),
    "match": Headline("match", "Match", "match by meaning"),
}


class Findings:
    """Findings of a comparison by method, without figures that are null or not finite."""

    def __init__(self, results: Json, data: Json) -> None:
        self.results: Json = _known(results)
        self.data: Json = _known(data)
        self.headline = HEADLINES[self.results.get("headline", "em")]
        self.methods: dict[str, Json] = self.results.get("methods", {})
        self.n: int | None = self.data.get("n", self.results.get("n"))
        self.differences = [
            Difference(first, second, figure, entry["diff"], entry.get("ci95"), entry.get("p_holm"))
            for pair, figures in self.results.get("pairs", {}).items()
            for first, _, second in [pair.partition(" vs ")]
            for figure, entry in figures.items()
            if "diff" in entry
        ]
        flags: Mapping[str, str] = self.data.get("flags", {})
        # It is no news that these never or always fired.
        self.flags = {name: flag for name, flag in flags.items() if stem(name) not in ("never", "always")}
        names = [*self.methods]
        for part in ("knowledge_em", "roc", "replay", "reruns", "points"):
            names += self.data.get(part, {})
        for example in self.data.get("examples", ()):
            names += _rounds(example)
        self.looks = assign(names)

    def figure(self, method: str, name: str) -> float | None:
        """Look up one figure of a method; ``trigger.x`` reaches into its trigger part."""
        figures, (part, _, last) = self.methods[method], name.rpartition(".")
        return (figures.get(part, {}) if part else figures).get(last)

    def by_gain(self) -> list[tuple[str, Json]]:
        """Sort the methods by their share of the oracle's gain, highest first, then by the headline."""
        keys = ("gain_share", self.headline.key)
        return sorted(self.methods.items(), key=lambda item: [-item[1].get(key, -math.inf) for key in keys])

    def interval(self, method: str, name: str) -> Sequence[float] | None:
        """Look up the 95% interval of a figure."""
        return self.methods[method].get("ci95", {}).get(name)

    def telling(self, columns: Sequence[Json]) -> list[Json]:
        """Leave out columns that equal for every method the one they stand ``beside``, or that none has.

        The latter only where they have no column ``beside`` them: that is None.
        """

        def equal(key: str, beside: str | None) -> bool:
            same = {name: None if beside is None else self.figure(name, beside) for name in self.methods}
            shown = key != self.headline.key
            return shown and all(self.figure(name, key) in (None, value) for name, value in same.items())

        return [c for c in columns if "beside" not in c or not equal(c["key"], c["beside"])]

    @property
    def wrong(self) -> str:
        """The rule by which an answer counts as wrong, in words."""
        rule = str(self.results.get("wrong", "em"))
        return _RULES.get(rule, rule)

    def family(self) -> bool:
        """Tell whether p-values of the headline are corrected for a family of pairs."""
        return any(e.p_holm is not None for e in self.differences if e.figure == self.headline.key)

    def shared(self) -> float | None:
        """Return the headline that all methods have in common, oracle included; None if there is none."""
        key = self.headline.key
        known = [figures[key] for figures in self.methods.values() if key in figures]
        return known[0] if len(known) > 1 and len(set(known)) == 1 else None

    def ranked(self) -> dict[str, float]:
        """Sort the headline by method without the oracle, highest first."""
        key = self.headline.key
        known = {name: entry[key] for name, entry in self._but_oracle().items() if key in entry}
        return dict(sorted(known.items(), key=lambda item: -item[1]))

    def best(self, name: str, digits: int, better: str | None) -> float | None:
        """Find the best displayed value of a figure without the oracle; None if none is better."""
        values = [self.figure(method, name) for method in self._but_oracle()]
        known = sorted({round(value, digits) for value in values if value is not None})
        if better is None or len(known) < 2:
            return None
        return known[-1] if better == "high" else known[0]

    def _but_oracle(self) -> dict[str, Json]:
        return {name: entry for name, entry in self.methods.items() if stem(name) != "oracle"}

    def ends(self) -> tuple[float, float]:
        """Find the lowest and the highest end of all intervals of the headline."""
        ends = [end for name in self.methods for end in self.interval(name, self.headline.key) or ()]
        return (min(ends), max(ends)) if ends else (0.0, 1.0)

    def kinds(self) -> dict[str, int | None]:
        """Map the kinds of knowledge in the headline's breakdown to their numbers of questions."""
        sizes: dict[str, int | None] = {}
        for row in self.data.get("knowledge_em", {}).values():
            for kind, entry in row.items():
                sizes.setdefault(kind, entry.get("n"))
        return sizes

    def widest(self) -> float:
        """Find the largest distance from zero of the paired differences and their intervals."""
        ends = [end for entry in self.differences for end in entry.ci or (entry.value,)]
        return max(map(abs, ends), default=0.0) or 1.0

    def pairs(self) -> list[Difference]:
        """List all paired differences, those with a prober first, turned so that it comes first."""
        turned = [e.turned() if stem(e.second) == "probing" != stem(e.first) else e for e in self.differences]
        return sorted(turned, key=lambda e: (0, e.first) if stem(e.first) == "probing" else (1, ""))


def _known(value: Any) -> Any:
    """Remove null and non-finite entries from JSON, and lists that contain one."""
    if isinstance(value, Mapping):
        return {key: known for key, item in value.items() if (known := _known(item)) is not None}
    if isinstance(value, (list, tuple)):
        items = [_known(item) for item in value]
        return None if None in items else items
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class Difference:
    """First method minus second in one figure, with the paired 95% interval and Holm's p-value."""

    first: str
    second: str
    figure: str
    value: float
    ci: Sequence[float] | None
    p_holm: float | None = None

    def turned(self) -> Difference:
        """Swap the two methods."""
        ci = self.ci and (-self.ci[1], -self.ci[0])
        return Difference(self.second, self.first, self.figure, -self.value, ci, self.p_holm)

    @property
    def corrected(self) -> str | None:
        """Verdict by the corrected p-value, as :func:`verdict`."""
        if self.p_holm is None:
            return None
        return "not settled" if self.p_holm >= LEVEL else "above" if self.value > 0 else "below"


def verdict(ci: Sequence[float]) -> str:
    """Tell what the interval of a difference settles."""
    return "above" if ci[0] > 0 else "below" if ci[1] < 0 else "not settled"


def stem(name: str) -> str:
    """Return the kind of method in a name: "rind" for "rind_released" or "rind (paper)"."""
    kind = re.match(r"[a-z]+", name.strip().lower())
    return kind.group() if kind else name


@dataclass(frozen=True, slots=True)
class Look:
    """Style of a method, the same in every chart.

    ``css`` is a class that sets the custom property ``--line``, ``dash`` an SVG dash pattern. Methods that
    bound the others are drawn hollow and grey (``reference``).
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
    """Choose a style for every method; probers and entropy come first so that theirs hardly ever change."""
    order = ("probing", "entropy", "rind")
    kinds = {name: stem(name) for name in names}
    bounds = {name: _REFERENCES[kind] for name, kind in kinds.items() if kind in _REFERENCES}
    looks = {name: Look("m0", "3 3", marker, reference=True) for name, marker in bounds.items()}
    compared = [name for name in kinds if name not in looks]
    compared.sort(key=lambda name: order.index(kinds[name]) if kinds[name] in order else len(order))
    for index, name in enumerate(compared):
        turn = index + index // _COLOURS  # a repeated colour gets another dash and marker
        dash, marker = _DASHES[turn % len(_DASHES)], _MARKERS[turn % len(_MARKERS)]
        looks[name] = Look(f"m{index % _COLOURS + 1}", dash, marker)
    return looks


#: Number of token colours; they are the classes s0 .. s6 of the style sheet.
LEVELS = 7
Scale = tuple[float, float]


def token_scores(rounds: Iterable[Json]) -> list[float]:
    """List the scores of all tokens that have one."""
    return [token["score"] for entry in rounds for token in entry.get("tokens", ()) if "score" in token]


def _rounds(example: Json) -> dict[str, Sequence[Json]]:
    return {method["method"]: method.get("rounds", ()) for method in example.get("methods", ())}


def scales(examples: Iterable[Json]) -> dict[str, Scale]:
    """Find each method's lowest and highest score over all examples, of its tokens or else its rounds."""
    rounds = defaultdict[str, list[Json]](list)
    for example in examples:
        for name, entries in _rounds(example).items():
            rounds[name] += entries
    return {
        name: (min(scores), max(scores))
        for name, entries in rounds.items()
        if (scores := token_scores(entries) or [entry["score"] for entry in entries if "score" in entry])
    }


def level(score: float, scale: Scale) -> int:
    """Find the step of a score's colour on its method's scale; the middle one if all scores are equal."""
    low, high = scale
    share = (score - low) / (high - low) if high > low else 0.5
    return min(LEVELS - 1, int(share * LEVELS))


def shown_at_once(example: Json) -> tuple[str, ...]:
    """Choose methods to unfold so that readers see the colours: a prober, and one that fired on a token."""
    rounds = _rounds(example)
    probers = [name for name in rounds if stem(name) == "probing"]
    tokens = (
        (n, token) for n, entries in rounds.items() for each in entries for token in each.get("tokens", ())
    )
    fired = [name for name, token in tokens if token.get("fired")]
    return (*probers[:1], *fired[:1])
