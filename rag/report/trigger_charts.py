"""Charts of the triggers: ROC against the truth, and exact match against what retrieval costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from probers.markup import interval, num, number

from .labels import Box, place
from .series import Series
from .svg import WIDTH, Axis, Plot, Point, clipped, marker

_WHISKERS = 10  # methods at most whose intervals are drawn; those of more would hide the markers
_ROOM = 210  # for the legend, in user units
_ROW = 18  # of the legend


def roc_chart(data: Mapping[str, Any], looks: Mapping[str, Series]) -> str:
    """ROC curves; a marker where each crosses the falling diagonal ties it to the legend."""
    curves = [
        (
            name,
            list(zip(map(float, roc["fpr"]), map(float, roc["tpr"]), strict=True)),
            number(roc.get("auroc")),
        )
        for name, roc in (data.get("roc") or {}).items()
        if roc.get("fpr") and roc.get("tpr")
    ]
    if not curves:
        return ""
    curves.sort(key=lambda curve: -(curve[2] if curve[2] is not None else -1.0))
    lines = -(-len(curves) // 2)
    shares = Axis.fit("", [0.0, 1.0])
    plot = Plot(
        "roc",
        "ROC of every trigger",
        "; ".join(f"{name}: AUROC {num(auroc)}" for name, _, auroc in curves) + ".",
        Axis("share of right answers on which it fires", 0, 1, shares.ticks),
        Axis("share of wrong answers on which it fires", 0, 1, shares.ticks),
        height=330,
        below=18 * lines + 6,
    )
    plot.line([(0, 0), (1, 1)], "line level", dash="1 4")
    for name, points, _ in reversed(curves):
        plot.line(points, f"line {looks[name].css}", dash=looks[name].dash)
    for name, points, _ in reversed(curves):
        x, y = _falling_diagonal(points)
        plot.add(marker(looks[name].marker, plot.sx(x), plot.sy(y), _mark(looks[name])))
    for index, (name, _, auroc) in enumerate(curves):
        x, y = (index // lines) * WIDTH / 2 + 4, plot.height - 18 * (lines - index % lines) + 6
        _key(plot, x, y, looks[name], f"{clipped(name, 20)} {num(auroc)}")
    return plot.svg()


def _falling_diagonal(points: Sequence[Point]) -> Point:
    """Where a curve from (0, 0) to (1, 1) meets fpr + tpr = 1."""
    for (x0, y0), (x1, y1) in pairwise(points):
        before, after = x0 + y0, x1 + y1
        if before <= 1 <= after and after > before:
            share = (1 - before) / (after - before)
            return x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    return points[len(points) // 2]


def _key(plot: Plot, x: float, y: float, look: Series, text: str) -> None:
    """An entry of a legend: line, marker and text, from ``x`` in user units."""
    plot.path([(x, y), (x + 28, y)], f"line {look.css}", dash=look.dash)
    plot.add(marker(look.marker, x + 14, y, _mark(look), size=4))
    plot.text(x + 34, y, text, css="label")


def _mark(look: Series) -> str:
    return f"mark {look.css}{' hollow' if look.reference else ''}"


@dataclass(frozen=True, slots=True)
class _Measured:
    """A method as it is in the table: retrievals per question, figure, 95% interval of the figure."""

    x: float
    y: float
    ci: tuple[float, float] | None


def tradeoff_chart(
    data: Mapping[str, Any], looks: Mapping[str, Series], figure: Literal["em", "acc"] = "em"
) -> str:
    """EM or ACC against retrievals per question: curves as lines, methods of the table as markers.

    Curves are read from recorded answers, or run at a few settings, of which each is a dot.
    """
    short, long = {"em": ("EM", "exact match"), "acc": ("ACC", "accuracy by containment")}[figure]
    read, run = _curves(data.get("replay"), figure), _curves(data.get("reruns"), figure)
    points = {
        name: _Measured(float(p["retrievals"]), float(p[figure]), interval(p.get(f"{figure}_ci")))
        for name, p in (data.get("points") or {}).items()
        if number(p.get("retrievals")) is not None and number(p.get(figure)) is not None
    }
    if not read and not run and not points:
        return ""
    legend = _legend(read, run, data.get("reruns") or {})
    places = [place for curve in (read | run).values() for place in curve]
    whiskers = [p.ci for p in points.values() if p.ci] if len(points) <= _WHISKERS else []
    plot = Plot(
        "tradeoff" if figure == "em" else f"tradeoff-{figure}",
        f"{long.capitalize()} against retrievals per question",
        "; ".join(f"{name}: {short} {num(p.y)} at {num(p.x)} retrievals" for name, p in points.items()) + ".",
        Axis.fit(
            "retrievals per question",
            [x for x, _ in places] + [p.x for p in points.values()],
            least=(0.0, 1.0),
        ),
        Axis.fit(
            long, [y for _, y in places] + [p.y for p in points.values()] + [e for ci in whiskers for e in ci]
        ),
        width=2 * WIDTH + 40,
        height=max(460, 80 + _ROW * len(legend)),
        right=_ROOM,
    )
    obstacles: list[Box] = []
    for name, curve in (read | run).items():
        plot.line(curve, f"line thin {looks[name].css}", dash=looks[name].dash)
        for x, y in curve:
            at = (plot.sx(x), plot.sy(y))
            obstacles.append((at[0] - 3, at[1] - 3, at[0] + 3, at[1] + 3))
            if name in run:
                plot.add(marker("circle", *at, f"mark {looks[name].css}", size=2.6))
    if whiskers:
        for name, p in points.items():
            if p.ci:
                centre, low, high = plot.sx(p.x), plot.sy(p.ci[0]), plot.sy(p.ci[1])
                plot.path([(centre, low), (centre, high)], f"whisker {looks[name].css}")
                obstacles.append((centre - 1, high, centre + 1, low))
    for name, p in points.items():
        plot.add(marker(looks[name].marker, plot.sx(p.x), plot.sy(p.y), _mark(looks[name]), size=5))
    _label(plot, {name: p for name, p in points.items() if _named(name, read, run, looks)}, obstacles)
    left, top = plot.width - _ROOM + 26, plot.box[1] + 8
    for row, (entry, text) in enumerate(legend):
        if entry is None:
            plot.text(left, top + _ROW * row, text, css="label muted")
        else:
            _key(plot, left, top + _ROW * row, looks[entry], text)
    return plot.svg()


def _curves(found: Mapping[str, Any] | None, figure: str) -> dict[str, list[Point]]:
    """Places of each method's curve from left to right."""
    return {
        name: sorted(zip(map(float, curve["retrievals"]), map(float, curve[figure]), strict=True))
        for name, curve in (found or {}).items()
        if curve.get("retrievals") and curve.get(figure)
    }


def _legend(
    read: Mapping[str, Any], run: Mapping[str, Any], reruns: Mapping[str, Any]
) -> list[tuple[str | None, str]]:
    """Lines of the legend: the method, None for a heading, and the text."""
    turned = {"n": " by n", "max_retrievals": " by limit"}
    lines: list[tuple[str | None, str]] = []
    if read:
        lines += [(None, "read from recorded answers")]
        lines += [(name, clipped(name, 22)) for name in read]
    if run:
        lines += [(None, "run at each dot")]
        lines += [(name, clipped(name, 18) + turned.get(reruns[name].get("option"), "")) for name in run]
    return lines


def _named(name: str, read: Mapping[str, Any], run: Mapping[str, Any], looks: Mapping[str, Series]) -> bool:
    """Whether a marker has its name beside it: where it bounds the others, and where no line leads to it."""
    return looks[name].reference or (name not in read and name not in run)


def _label(plot: Plot, points: Mapping[str, _Measured], obstacles: list[Box]) -> None:
    """Names beside markers, where they cover least."""
    anchors = [((plot.sx(p.x), plot.sy(p.y)), clipped(name)) for name, p in points.items()]
    left, top, right, bottom = plot.box
    labels = place(anchors, (left + 2, top - 4, right + 18, bottom - 2), obstacles)
    for ((x, y), text), label in zip(anchors, labels, strict=True):
        if label.leader:
            plot.path([(x, y), (min(max(x, label.box[0]), label.box[2]), label.at[1])], "leader")
        plot.text(*label.at, text, css="label halo", anchor=label.anchor)
