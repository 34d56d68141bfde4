"""Charts of what was trained: accuracy and AUROC by layer, and the controls beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probers.markup import interval, num, number, span

from .labels import spread
from .svg import Axis, Plot, Point, clipped, marker, text_width


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
