"""The figures of training runs as text for the terminal: at most 100 columns wide."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from probers.types import RunError

from .controls import ENSEMBLE, SHUFFLED, WITH_ENTROPY

_NAME = 26
#: Title, key and width of the columns after AUROC and its interval.
_COLUMNS = (
    ("AUPRC", "auprc"), ("PRR", "prr"), ("R@10%", "recall_at_fpr10"), ("acc.", "accuracy"), ("F1", "f1"),
    ("ECE", "ece"), ("Brier", "brier"),
)  # fmt: skip
#: What each way to join the layers is called.
ENSEMBLES = {
    "logits": "sum of logits", "probabilities": "sum of probabilities", "best": "mean of the best",
    "stacked": "stacked logistic",
}  # fmt: skip


def table(figures: Mapping[str, Any]) -> str:
    """Layers, ensembles, controls, datasets and conditions; calibration, learning curve and notes."""
    test = figures["splits"]["test"]
    single = len(figures["layers"]) == 1
    parts = [
        f"test: {test['n']} examples, {test['groups']} groups, {test['wrong']:.0%} wrong; "
        "finding wrong ones, 95% intervals",
        f"{'':{_NAME}}{'AUROC':>6}  {'':13}" + "".join(f"{title:>7}" for title, _ in _COLUMNS),
        *(
            _line(layer_name(figures, entry), entry, mark=_is_best(figures, entry))
            for entry in figures["layers"]
        ),
    ]
    if not single:  # one layer is its own sum
        parts.append("all layers")
        for kind, entry in figures["ensembles"].items():
            parts.append(_line(ENSEMBLES.get(kind, kind), entry, mark=kind == figures["combine"]))
    if figures["with_entropy"]:
        name = "with entropy" if single else WITH_ENTROPY
        parts.append(_line(name, figures["with_entropy"]))
    parts.append("controls")
    for name, entry in figures["controls"].items():
        parts.append(_line(name, entry, mark=not entry.get("at_chance", True), sign="!"))
    for what in ("condition", "dataset"):
        parts += _by(what, figures[f"{what}s"], single=single)
    parts += [*_positive(figures), _calibration(figures["calibration"]), *_curve(figures), *_seeds(figures)]
    if not single:
        parts.append("* the best layer on validation, and the score that is saved")
    return "\n".join([*parts, *_wrapped(warnings(figures) + list(figures["notes"]))])


def layer_name(figures: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """``layer 6``, with its site where there are several."""
    several = len(figures["sites"]) > 1
    return f"{entry['site']} layer {entry['layer']}" if several else f"layer {entry['layer']}"


def warnings(figures: Mapping[str, Any]) -> list[str]:
    """What in the figures speaks against trusting them, one sentence each; empty when nothing does."""
    found = []
    shuffled = figures["controls"].get(SHUFFLED, {})
    if not shuffled.get("at_chance", True):
        found.append(
            f"a head on shuffled labels reached AUROC {_bounds(shuffled['auroc_ci'])}, not 0.5: by chance "
            "(one run in twenty) or because something is wrong; train with another seed"
        )
    train, test = (set(figures["splits"][split]["datasets"]) for split in ("train", "test"))
    if train and test and not train & test:
        found.append(
            f"out of domain: trained on {', '.join(sorted(train))}, tested on {', '.join(sorted(test))}"
        )
    return found


def _is_best(figures: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return len(figures["layers"]) > 1 and (entry["site"], entry["layer"]) == _best(figures)


def _line(name: str, entry: Mapping[str, Any], *, mark: bool = False, sign: str = "*") -> str:
    name = f"{name} {sign}" if mark else name
    return (
        f"  {cut(name, _NAME - 2):{_NAME - 2}}{_figure(entry['auroc']):>6}  {_bounds(entry['auroc_ci']):13}"
        + ("".join(f"{_figure(entry[key]):>7}" for _, key in _COLUMNS))
    )


def _by(what: str, values: Mapping[str, Any], *, single: bool) -> list[str]:
    """AUROC of the prober and of the two controls most often reported, value by value."""
    if len(values) < 2:
        return []
    shown = [ENSEMBLE, WITH_ENTROPY, "mean entropy"]
    titles = ["prober", "with entropy", "mean entropy"] if single else shown
    head = f"AUROC by {what}"
    lines = [f"{head:{_NAME}}{'n':>5}{'wrong':>7}  " + "".join(f"{name:21}" for name in titles).rstrip()]
    for value, entry in values.items():
        found = (entry["detectors"].get(name, {}) for name in shown)
        cells = (f"{_figure(f.get('auroc')):>4} {_bounds(f.get('auroc_ci'))}" for f in found)
        lines.append(
            f"  {cut(value, _NAME - 2):{_NAME - 2}}{entry['n']:>5}{entry['base_rate']:>7.0%}  "
            + "".join(f"{cell:21}" for cell in cells).rstrip()
        )
    return lines


def _positive(figures: Mapping[str, Any]) -> list[str]:
    entry = figures["positive_control"]
    if not entry:
        return []
    return [
        f"positive control, is the answer a person: AUROC {_figure(entry['auroc'])}, "
        f"accuracy {_figure(entry['accuracy'])}"
    ]


def _calibration(entry: Mapping[str, Any]) -> str:
    before, after = entry["before"], entry["after"]
    others = "".join(
        f"; {kind}: ECE {_figure(f['ece'])}, Brier {_figure(f['brier'])}"
        for kind, f in entry["other"].items()
    )
    line = (
        f"calibration ({entry['method']}): ECE {_figure(before['ece'])} -> {_figure(after['ece'])}, "
        f"Brier {_figure(before['brier'])} -> {_figure(after['brier'])}{others}"
    )
    return fill(line, 98, subsequent_indent="  ")


def _curve(figures: Mapping[str, Any]) -> list[str]:
    points = figures["learning_curve"]
    if not points:
        return []
    shown = [f"{point['groups']}: {_figure(point['ensemble']['auroc'])}" for point in points]
    return ["AUROC by training groups: " + ", ".join(shown)]


def _seeds(figures: Mapping[str, Any]) -> list[str]:
    """Spread over seeds of the best layer."""
    best = next((e for e in figures["layers"] if (e["site"], e["layer"]) == _best(figures)), None)
    if best is None or not best["seeds"]:
        return []
    seeds, name = best["seeds"], layer_name(figures, best)
    spread = f"AUROC {seeds['mean']:.3f}, standard deviation {seeds['std']:.3f}"
    return [f"{len(seeds['auroc'])} seeds, {name}: {spread}"]


def _best(figures: Mapping[str, Any]) -> tuple[str, int]:
    return figures["best_site"], figures["best_layer"]


def _wrapped(notes: Sequence[str]) -> list[str]:
    return [fill(note, 98, initial_indent="note: ", subsequent_indent="  ") for note in notes]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bounds(ci: Sequence[float] | None) -> str:
    return "" if ci is None else f"[{ci[0]:.2f}, {ci[1]:.2f}]"


def cut(text: str, width: int) -> str:
    """A text in at most ``width`` columns; two dots stand for what is cut off."""
    return text if len(text) <= width else text[: width - 2] + ".."


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


_HEADER = ("", "best layer", "validation", "AUROC (test)", "acc.", "ECE", "folder")
_WIDTH = 100  # columns of the terminal; the folders alone may go beyond


def compare_runs(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> str:
    """A row for each run: what was varied, the best layer, and figures of the score that is saved.

    The runs come in the order given. The column "validation", the AUROC of the best layer on
    validation texts, is what to choose by: the test figures of the row chosen by them would
    be too good.

    Args:
        jobs: what each run varied, as ``key=value``.
        folders: of the runs, in the same order; classifiers of questions (head=adaptive) have
            figures of another kind and are left out.

    Returns:
        The table, "" without a prober.

    Raises:
        RunError: a folder without readable figures.
    """
    found = [(job, folder, _figures(folder)) for job, folder in zip(jobs, folders, strict=True)]
    found = [each for each in found if "layers" in each[2]]
    if not found:
        return ""
    rows, folders = [_row(job, figures) for job, _, figures in found], [folder for _, folder, _ in found]
    shared = Path(os.path.commonpath([folder.parent for folder in folders]))
    cells = [_HEADER] + [
        (*row, str(folder.relative_to(shared))) for row, folder in zip(rows, folders, strict=True)
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADER) - 1)]
    widths[0] = max(12, min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths)))
    lines = []
    for name, *figures, folder in cells:
        fitted = [f"{cut(name, widths[0]):{widths[0]}}"]
        fitted += [f"{cell:>{width}}" for cell, width in zip(figures, widths[1:], strict=True)]
        lines.append("  ".join([*fitted, folder]).rstrip())
    return "\n".join([*lines, f"folders are below {shared}; choose by validation, report the test figures"])


def _row(job: Sequence[str], figures: Mapping[str, Any]) -> tuple[str, ...]:
    site = f"{figures['best_site']} " if len(figures["sites"]) > 1 else ""
    best = (figures["best_site"], figures["best_layer"])
    layer = next(entry for entry in figures["layers"] if (entry["site"], entry["layer"]) == best)
    saved = figures["ensemble"]
    low, high = saved["auroc_ci"] or (None, None)
    bounds = "" if low is None else f" [{low:.3f}, {high:.3f}]"
    return (
        " ".join(job), f"{site}{figures['best_layer']}", _number(layer["validation"]["auroc"]),
        f"{_number(saved['auroc'])}{bounds}", _number(saved["accuracy"]), _number(saved["ece"]),
    )  # fmt: skip


def _figures(folder: Path) -> dict[str, Any]:
    path = folder / "metrics.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"the figures of a run cannot be read: {path}: {error}") from error
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
