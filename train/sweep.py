"""The table that a sweep of ``probers-train`` ends in: a row per run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probers.types import RunError

from .tables import cut

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
