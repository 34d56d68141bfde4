"""Charts: right answers against their cost, and ROC of triggers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from probers.pages import num

from .lookup import HEADLINES, Findings, Headline, Json
from .svg import WIDTH, Axis, Box, Plot, Point, clipped, place

_ROW = 18  # height of a legend's row, in user units


def roc_chart(findings: Findings) -> Markup:
    """Draw ROC curves; a marker where each crosses the falling diagonal ties it to the legend."""
    curves = [
        (name, list(zip(roc["fpr"], roc["tpr"], strict=True)), roc.get("auroc"))
        for name, roc in findings.data.get("roc", {}).items()
        if roc.get("fpr") and roc.get("tpr")
    ]
    if not curves:
        return Markup()
    curves.sort(key=lambda curve: -1.0 if curve[2] is None else curve[2], reverse=True)
    lines = -(-len(curves) // 2)
    ticks = Axis.fit("", [0.0, 1.0]).ticks
    below = _ROW * lines + 6
    plot = Plot(
        "roc",
        "ROC of every trigger",
        "; ".join(f"{name}: AUROC {num(auroc)}" for name, _, auroc in curves) + ".",
        Axis("share of right answers on which it fires", 0, 1, ticks),
        Axis("share of wrong answers on which it fires", 0, 1, ticks),
        (WIDTH, 330 + below),
        (42, 14, 42 + below),
    )
    plot.line([(0, 0), (1, 1)], "line level", dash="1 4")
    for name, points, _ in reversed(curves):
        plot.line(points, f"line {findings.looks[name].css}", dash=findings.looks[name].dash)
    for name, points, _ in reversed(curves):
        x, y = np.transpose(points)
        # Crossing of the curve from (0, 0) to (1, 1) with fpr + tpr = 1.
        crossing = float(np.interp(1.0, x + y, x)), float(np.interp(1.0, x + y, y))
        plot.marker(findings.looks[name].marker, crossing, findings.looks[name].mark)
    for index, (name, _, auroc) in enumerate(curves):
        x, y = (index // lines) * WIDTH / 2 + 4, plot.size[1] - _ROW * (lines - index % lines) + 6
        plot.key(x, y, findings.looks[name], f"{clipped(name, 20)} {num(auroc)}")
    return plot.figure(
        "ROC of every trigger for “the answer is wrong”, with its AUROC. Markers only tell the curves apart;"
        " on the dotted line a trigger is guessing."
    )


class Cost(NamedTuple):
    """Cost on the axis of a chart: the figures that add up to it, its unit, and the axis in words."""

    keys: tuple[str, ...]
    unit: str
    words: str

    def of(self, entry: Json) -> np.ndarray:
        """Sum the figures of an entry, which is that of a method or of a curve."""
        return np.sum([entry[key] for key in self.keys], axis=0)


_RETRIEVALS = Cost(("retrievals",), "retrievals", "retrievals per question")
_TOKENS = Cost(("tokens", "read_tokens"), "tokens", "tokens per question, written and read")
#: Captions of the headline's charts: one sentence, and how to read them.
_CAPTION = " against retrievals per question: higher and further left is better."
_HOW = (
    "Large markers are the methods of the table, with 95% intervals where there is room; hollow grey ones"
    " bound the others. Lines are the same methods at other settings, thresholds unless something else is"
    " named. For methods that judge whole answers, every threshold is computed from recorded answers, and so"
    " is the expected result of random retrieval with the same query (grey): a trigger is worth its height"
    " above that line. The others change the text itself, so each dot is a run of its own; without retrieval"
    " the answers are the closed-book ones. By n: tokens between two retrievals. By limit: most retrievals"
    " per question, for methods without a threshold. The oracle of helps knows of each retrieval whether it"
    " makes an answer right or wrong. Numbers beside names are shares of its gain over random retrieval."
)
_OF_TOKENS = (
    "The same against all tokens per question: those written, discarded ones among them, and those read,"
    " which are the prompts of all calls, as if nothing were cached. With as many retrievals one method may"
    " take more tokens than another: it discards more, writes in shorter pieces, or asks the model to judge."
    " Points that come from the closed-book answers are left out of the lines here."
)
_WHISKERS = 10  # most methods with intervals; more would hide the markers
_BROAD, _HEIGHT = 520, 360  # of a chart without its legend, in user units; readable on a phone


def tradeoff_charts(findings: Findings) -> tuple[Markup, Markup]:
    """Draw the headline against retrievals; and against tokens, and ACC where it is another figure."""
    first = findings.headline
    chart = _tradeoff(findings, first, _RETRIEVALS, "tradeoff", first.words.capitalize() + _CAPTION, _HOW)
    further = _tradeoff(findings, first, _TOKENS, "tradeoff-tokens", _OF_TOKENS)
    points = findings.data.get("points", {}).values()
    if any(point.get("acc") != point.get(first.key) for point in points):
        caption = "ACC (a gold answer is in the text) against retrievals per question."
        further += _tradeoff(findings, HEADLINES["acc"], _RETRIEVALS, "tradeoff-acc", caption)
    return chart, further


def _tradeoff(
    findings: Findings, headline: Headline, cost: Cost, key: str, caption: str, how: str = ""
) -> Markup:
    """Draw a figure against a cost per question: methods as markers, curves as lines, with dots where run."""
    figure, short, long = headline
    reruns = findings.data.get("reruns", {})
    read, run = _curves(findings.data.get("replay", {}), cost, figure), _curves(reruns, cost, figure)
    curves = read | run
    measured = {
        name: (float(cost.of(entry)), entry[figure])
        for name, entry in findings.data.get("points", {}).items()
        if entry.keys() >= {*cost.keys, figure}
    }
    if not curves and not measured:
        return Markup()
    intervals = {name: ci for name in measured if (ci := findings.data["points"][name].get(f"{figure}_ci"))}
    intervals = intervals if len(measured) <= _WHISKERS else {}

    def labelled(name: str, more: str = "") -> tuple[str, str]:
        gain = findings.methods.get(name, {}).get("gain_share") if headline is findings.headline else None
        more += "" if gain is None else f" {num(gain)}"
        return name, clipped(name, 22 - len(more)) + more

    legend: list[tuple[str | None, str]] = []  # the method, None for a heading, and the text
    if read:
        legend += [(None, "read from recorded answers"), *map(labelled, read)]
    if run:
        turned = {"n": " by n", "max_retrievals": " by limit"}
        dotted = [labelled(name, turned.get(reruns[name].get("option"), "")) for name in run]
        legend += [(None, "run at each dot"), *dotted]
    places = [*(point for curve in curves.values() for point in curve), *measured.values()]
    lines = -(-len(legend) // 2)
    below = _ROW * lines + 6 if legend else 0
    costs, digits = [x for x, _ in places], 0 if cost is _TOKENS else 2
    texts = (f"{n}: {short} {num(y)} at {num(x, digits)} {cost.unit}" for n, (x, y) in measured.items())
    plot = Plot(
        key,
        f"{long.capitalize()} against {cost.unit} per question",
        "; ".join(texts) + ".",
        Axis.wide(cost.words, costs) if cost is _TOKENS else Axis.fit(cost.words, costs, least=(0.0, 1.0)),
        Axis.fit(long, [y for _, y in places] + [end for ci in intervals.values() for end in ci]),
        (_BROAD, _HEIGHT + below),
        (42, 14, 42 + below),
    )
    obstacles: list[Box] = []
    for name, curve in curves.items():
        plot.line(curve, f"line thin {findings.looks[name].css}", dash=findings.looks[name].dash)
        for point in curve:
            x, y = plot.at(point)
            obstacles.append((x - 3, y - 3, x + 3, y + 3))
            if name in run:
                plot.marker("circle", point, f"mark {findings.looks[name].css}", size=2.6)
    for name, ci in intervals.items():
        ends = [(measured[name][0], end) for end in ci]
        (x, low), (_, high) = map(plot.at, ends)
        plot.line(ends, f"whisker {findings.looks[name].css}")
        obstacles.append((x - 1, high, x + 1, low))
    for name, point in measured.items():
        plot.marker(findings.looks[name].marker, point, findings.looks[name].mark, size=5)
    # Names stand beside markers that bound the others, and beside markers without a line in the legend.
    named = [name for name in measured if findings.looks[name].reference or name not in curves]
    anchors = [(plot.at(measured[name]), clipped(name)) for name in named]
    left, top, right, bottom = plot.box
    labels = place(anchors, (left + 2, top - 4, right + 12, bottom - 2), obstacles)
    for ((x, y), text), label in zip(anchors, labels, strict=True):
        if label.leader:
            plot.path([(x, y), (min(max(x, label.box[0]), label.box[2]), label.at[1])], "leader")
        plot.text(*label.at, text, css="label halo", anchor=label.anchor)
    for row, (entry, text) in enumerate(legend):
        at = (row // lines) * _BROAD / 2 + 4, plot.size[1] - _ROW * (lines - row % lines) + 6
        if entry is None:
            plot.text(*at, text, css="label muted")
        else:
            plot.key(*at, findings.looks[entry], text)
    return plot.figure(caption, how)


def _curves(entries: Json, cost: Cost, figure: str) -> dict[str, list[Point]]:
    """Find the points of each method's curve in the order of retrievals, if the cost is known."""
    curves = {}
    for name, curve in entries.items():
        if all(curve.get(key) for key in (*cost.keys, "retrievals", figure)):
            values, spent = curve[figure], cost.of(curve).tolist()
            every = [True] * len(values)
            priced = curve.get("priced", every) if cost is _TOKENS else every
            places = sorted(zip(curve["retrievals"], values, spent, priced, strict=True))
            curves[name] = [(x, y) for _, y, x, known in places if known]
    return curves
