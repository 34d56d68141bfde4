"""Charts of the triggers: ROC against the truth, and exact match against what retrieval costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from probers.markup import interval, num, number

from .labels import Box, place
from .series import Series
from .svg import WIDTH, Axis, Plot, Point, clipped, marker

_WHISKERS = 10  # methods at most whose intervals are drawn; those of more would hide the markers


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
        plot.path([(x, y), (x + 28, y)], f"line {looks[name].css}", dash=looks[name].dash)
        plot.add(marker(looks[name].marker, x + 14, y, _mark(looks[name]), size=4))
        plot.text(x + 34, y, f"{clipped(name, 20)} {num(auroc)}", css="label")
    return plot.svg()


def _falling_diagonal(points: Sequence[Point]) -> Point:
    """Where a curve from (0, 0) to (1, 1) meets fpr + tpr = 1."""
    for (x0, y0), (x1, y1) in pairwise(points):
        before, after = x0 + y0, x1 + y1
        if before <= 1 <= after and after > before:
            share = (1 - before) / (after - before)
            return x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    return points[len(points) // 2]


def _mark(look: Series) -> str:
    return f"mark {look.css}{' hollow' if look.reference else ''}"


def tradeoff_chart(
    data: Mapping[str, Any], looks: Mapping[str, Series], figure: Literal["em", "acc"] = "em"
) -> str:
    """EM or ACC against retrievals per question: replayed thresholds as lines, measured runs as markers."""
    short, long = {"em": ("EM", "exact match"), "acc": ("ACC", "accuracy by containment")}[figure]
    replay = {
        name: sorted(zip(map(float, curve["retrievals"]), map(float, curve[figure]), strict=True))
        for name, curve in (data.get("replay") or {}).items()
        if curve.get("retrievals") and curve.get(figure)
    }
    points = {
        name: (float(point["retrievals"]), float(point[figure]), interval(point.get(f"{figure}_ci")))
        for name, point in (data.get("points") or {}).items()
        if number(point.get("retrievals")) is not None and number(point.get(figure)) is not None
    }
    if not replay and not points:
        return ""
    xs = [x for curve in replay.values() for x, _ in curve] + [x for x, _, _ in points.values()]
    ys = [y for curve in replay.values() for _, y in curve]
    drawn = len(points) <= _WHISKERS
    ys += [end for _, y, ci in points.values() for end in ((y, *ci) if ci and drawn else (y,))]
    plot = Plot(
        "tradeoff" if figure == "em" else f"tradeoff-{figure}",
        f"{long.capitalize()} against retrievals per question",
        "; ".join(f"{name}: {short} {num(y)} at {num(x)} retrievals" for name, (x, y, _) in points.items())
        + ".",
        Axis.fit("retrievals per question", xs, least=(0.0, 1.0)),
        Axis.fit(long, ys),
        height=378,
        right=20,
    )
    obstacles: list[Box] = []
    for name, curve in replay.items():
        plot.line(curve, f"line thin {looks[name].css}", dash=looks[name].dash)
        for x, y in curve:
            at = (plot.sx(x), plot.sy(y))
            obstacles.append((at[0] - 3, at[1] - 3, at[0] + 3, at[1] + 3))
    for name, (x, _, ci) in points.items():
        if ci and drawn:
            centre, low, high = plot.sx(x), plot.sy(ci[0]), plot.sy(ci[1])
            plot.path([(centre, low), (centre, high)], f"whisker {looks[name].css}")
            obstacles.append((centre - 1, high, centre + 1, low))
    anchors = [((plot.sx(x), plot.sy(y)), clipped(name)) for name, (x, y, _) in points.items()]
    left, top, right, bottom = plot.box
    for name, ((x, y), _) in zip(points, anchors, strict=True):
        plot.add(marker(looks[name].marker, x, y, _mark(looks[name]), size=5))
    labels = place(anchors, (left + 2, top - 4, right + 18, bottom - 2), obstacles)
    for ((x, y), text), label in zip(anchors, labels, strict=True):
        if label.leader:
            plot.path([(x, y), (min(max(x, label.box[0]), label.box[2]), label.at[1])], "leader")
        plot.text(*label.at, text, css="label halo", anchor=label.anchor)
    return plot.svg()
