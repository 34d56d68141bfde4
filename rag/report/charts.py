"""Charts: accuracy and AUROC by layer, controls, ROC of triggers, exact match against retrievals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from probers.html import interval, num, number, span

from .series import Series
from .svg import WIDTH, Axis, Box, Plot, Point, clipped, marker, place, spread, text_width


def layers_chart(data: Mapping[str, Any]) -> str:
    """AUROC with its interval band and accuracy by layer; controls as labelled level lines."""
    rows = [row for row in data.get("layers") or [] if number(row.get("auroc")) is not None]
    if not rows:
        return ""
    controls = {name: number(entry.get("auroc")) for name, entry in (data.get("controls") or {}).items()}
    levels = [(name, value, "level") for name, value in controls.items() if value is not None]
    ensemble = number((data.get("ensemble") or {}).get("auroc"))
    if ensemble is not None:
        levels.append(("all layers", ensemble, "level strong"))
    auroc = [(float(row["layer"]), float(row["auroc"])) for row in rows]
    accuracy = [
        (float(row["layer"]), float(row["accuracy"]))
        for row in rows
        if number(row.get("accuracy")) is not None
    ]
    bands = [(float(row["layer"]), found) for row in rows if (found := interval(row.get("auroc_ci")))]
    labels = [(auroc[-1][1], "AUROC, by layer", "strong")]
    if accuracy:
        labels.append((accuracy[-1][1], "accuracy, by layer", ""))
    labels += [(value, clipped(name, 20), "muted") for name, value, _ in levels]
    values = [y for _, y in auroc + accuracy] + [value for _, value, _ in levels]
    values += [end for _, ends in bands for end in ends]
    first, last = auroc[0][0], auroc[-1][0]
    room = max(text_width(text) for _, text, _ in labels) + 22
    plot = Plot(
        "layers",
        "Accuracy and AUROC of the head of each layer",
        f"{len(rows)} layers; AUROC between {num(min(y for _, y in auroc))} and "
        f"{num(max(y for _, y in auroc))}. Level lines: "
        + ("; ".join(f"{name} {num(value)}" for name, value, _ in levels) or "none")
        + ".",
        _layer_axis(first, last),
        Axis.fit("accuracy · AUROC", values, least=(0.5, 0.8)),
        height=max(300, 70 + 15 * len(labels)),
        right=int(room),
    )
    if len(bands) > 1:
        plot.band([(x, low) for x, (low, _) in bands], [(x, high) for x, (_, high) in bands], "band m1")
    elif bands:
        at, (low, high) = bands[0]
        plot.line([(at, low), (at, high)], "whisker m1")
    for _, value, css in levels:
        plot.line(
            [(plot.x.low, value), (plot.x.high, value)], f"line {css}", dash="" if "strong" in css else "1 4"
        )
    if accuracy:
        plot.line(accuracy, "line m0", dash="6 4")
        _dots(plot, accuracy, "square", "mark m0")
    plot.line(auroc, "line m1")
    _dots(plot, auroc, "circle", "mark m1")
    _, top, right, bottom = plot.box
    wanted = [plot.sy(value) for value, _, _ in labels]
    starts = [plot.sx(last)] * (1 + bool(accuracy)) + [float(right)] * len(levels)
    for start, at, y, (_, text, css) in zip(starts, wanted, spread(wanted, top, bottom), labels, strict=True):
        plot.path([(start + 4, at), (right + 3, at), (right + 12, y), (right + 15, y)], "leader")
        plot.text(right + 18, y, text, css=f"label {css}")
    return plot.svg()


def _layer_axis(first: float, last: float) -> Axis:
    step = next((nice for nice in (1, 2, 5, 10, 20) if (last - first) / nice <= 8), 50)
    start = int(-(-first // step) * step)  # a round layer number, not wherever the range happens to begin
    ticks = tuple((float(layer), str(layer)) for layer in range(start, int(last) + 1, step))
    margin = 0.5 if first == last else 0.02 * (last - first)
    return Axis("layer (residual stream after this block)", first - margin, last + margin, ticks)


def _dots(plot: Plot, points: Sequence[Point], shape: str, css: str) -> None:
    if len(points) > 24:  # dots would cut the line to pieces; its dash tells it apart
        return
    for x, y in points:
        plot.add(marker(shape, plot.sx(x), plot.sy(y), css, size=3.2))


def controls_chart(data: Mapping[str, Any]) -> str:
    """AUROC with 95% interval of the ensemble and of every control, best first."""
    entries = [(name, entry, "m0") for name, entry in (data.get("controls") or {}).items()]
    if data.get("ensemble"):
        entries.append(("all layers", data["ensemble"], "m1"))
    rows = [
        (name, value, interval(entry.get("auroc_ci")), css)
        for name, entry, css in entries
        if (value := number((entry or {}).get("auroc"))) is not None
    ]
    if not rows:
        return ""
    rows.sort(key=lambda row: -row[1])
    names = [clipped(name) for name, *_ in rows]
    ends = [end for _, value, ci, _ in rows for end in ((value, *ci) if ci else (value,))]
    left = int(max(map(text_width, names))) + 10
    plot = Plot(
        "controls",
        "AUROC of the prober and of every control, with 95% intervals",
        "; ".join(f"{name} {num(value)}" + (f" ({span(ci)})" if ci else "") for name, value, ci, _ in rows)
        + ".",
        Axis.fit("AUROC of “the answer is wrong”", ends, least=(0.45, 0.8), steps=4),
        Axis("", 0, len(rows), ()),
        height=70 + 23 * len(rows),
        left=left,
        right=44,
    )
    _, top, right, bottom = plot.box
    chance = plot.sx(0.5)
    plot.path([(chance, top), (chance, bottom)], "line level", dash="1 4")
    plot.text(chance, top - 10, "chance", css="tick", anchor="middle")
    for index, ((_, value, ci, css), text) in enumerate(zip(rows, names, strict=True)):
        y = plot.sy(len(rows) - index - 0.5)
        plot.text(left - 10, y, text, css="label strong" if css == "m1" else "label", anchor="end")
        if ci:
            plot.path([(plot.sx(ci[0]), y), (plot.sx(ci[1]), y)], f"whisker {css}")
        plot.add(marker("circle", plot.sx(value), y, f"mark {css}"))
        plot.text(right + 40, y, num(value), css="label number", anchor="end")
    return plot.svg()


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
