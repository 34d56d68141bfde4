"""Papers of a training: its model card, the table of several runs, and a command that uses the prober."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from probers.cli.command_lines import command_line
from probers.evaluation.bootstrap import LEAST_GROUPS, bounded, bounds, few_groups, number
from probers.files import read_json
from probers.heads import head_name
from probers.pages import hub_id, public_model, public_path, render
from probers.prober import report as shared
from probers.prober.figures import ENSEMBLE, ENSEMBLES, Figures, Moments, Quality, Subset
from probers.prober.prober import Prober
from probers.prober.report import COLUMNS, Report, best_name, cut
from probers.store.spec import ranges
from probers.types import RunError

from .before_after import MOMENTS

_WIDTH = 100  # columns of the terminal
_HEADER = ("", "best layer", "validation", "AUROC (test)", "acc.", "ECE", "folder")


def compare_runs(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> str:
    """Tabulate what each run varied (``key=value``), its best layer, and figures of the score that is saved.

    Choose by the column "validation", the best layer's AUROC: test figures of a row chosen by them would be
    too good. Classifiers of questions (head=adaptive) are left out; "" without a prober. RunError for a
    folder without readable figures.
    """
    runs = [(job, folder, _figures(folder)) for job, folder in zip(jobs, folders, strict=True)]
    probers = [(job, folder, figures) for job, folder, figures in runs if figures is not None]
    if not probers:
        return ""
    shared = Path(os.path.commonpath([folder.parent for _, folder, _ in probers]))
    cells = [_HEADER]
    for job, folder, figures in probers:
        validation, test = number(figures.best.validation["auroc"], ".3f"), figures.ensemble
        auroc = bounded(test, "auroc", ".3f", absent="-")
        measured = (validation, auroc, number(test.accuracy, ".3f"), number(test.ece, ".3f"))
        cells.append((" ".join(job), best_name(figures), *measured, str(folder.relative_to(shared))))
    first, *widths = (max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1])
    first = max(12, min(first, _WIDTH - sum(widths) - 2 * len(_HEADER) + 2))
    lines = []
    for name, *middle, last in cells:
        fitted = [f"{cell:>{width}}" for cell, width in zip(middle, widths, strict=True)]
        lines.append("  ".join([f"{cut(name, first):{first}}", *fitted, last]).rstrip())
    lines.append(f"folders are below {shared}; choose by validation, report the test figures")
    if few := few_groups(min(figures.splits["test"].groups for *_, figures in probers), "test group"):
        lines.append(f"note: {few}")
    return "\n".join(lines)


def _figures(folder: Path) -> Figures | None:
    """Read the figures of a prober; None for those of a classifier."""
    path = folder / "metrics.json"
    try:
        if not isinstance(metrics := read_json(path), dict):
            raise ValueError("holds no JSON object")
        return Figures.read(metrics) if "layers" in metrics else None
    except (OSError, ValueError) as error:
        why = "lacks some or was altered" if isinstance(error, ValidationError) else error
        raise RunError(f"the figures of a run cannot be read: {path}: {why}", code="damaged") from error


def write_card(
    bank: Prober, figures: Figures, data: Sequence[Path], out: Path | None, *, source: str, read: bool = False
) -> str:
    """Render ``README.md`` of a prober in a folder, or of one that is not written yet.

    ``data`` are its stores, of a ``source`` such as "cot"; ``read``: its texts are those of others.
    """
    spec, prefix = bank.spec, f"{ENSEMBLE} vs "
    over = f"{spec.pool} over the {spec.position} tokens"
    if spec.pool == "prompt":
        over = "the prompt's last token, before anything is written"
    if bank.aggregate is not None:
        which = "each token" if spec.position == "token" else f"each of the {spec.position} tokens"
        over = f"{which}, joined by their {bank.aggregate}"
    pairs = {name: (pair["auroc"].ci95 or [0])[0] for name, pair in figures.pairs.items()}
    beaten_by = [n.removeprefix(prefix) for n, low in pairs.items() if n.startswith(prefix) and not low > 0]
    shown = "PROBER" if out is None else public_path(out, "PROBER")
    stores = ",".join(public_path(path, "STORE") for path in data)
    stores = stores if len(data) == 1 else f"[{stores}]"
    functions = (
        bounded, bounds, moment_columns, number, ranges, shared.adapter_rows, shared.best_member, best_name,
        shared.layer_name, shared.promised, shared.summed, shared.warnings,
    )  # fmt: skip
    return shared.of_words(render(
        "probers.train/card.md.j2",
        bank=bank, figures=figures, data=stores, source=source, read=read, out=shown,
        model=replace(spec.model, id=public_model(spec.model.id)), base_model=hub_id(spec.model.id),
        head=head_name(bank.head), over=over, command=use_command(bank, shown, read=read),
        rows=Report(figures).rows, columns=COLUMNS, calibrated=_calibrated(bank, figures),
        by_value=partial(_by_value, figures.words.texts), words=figures.words,
        beaten_by=beaten_by, MOMENTS=MOMENTS, ENSEMBLE=ENSEMBLE, ENSEMBLES=ENSEMBLES,
        few=figures.splits["test"].groups < LEAST_GROUPS,
        **{function.__name__: function for function in functions},
    ))  # fmt: skip


def use_command(bank: Prober, out: str | Path, model: str = "testbed", *, read: bool) -> str | None:
    """Show how to use the prober: as trigger, or on texts if those it was trained on were ``read``.

    None where neither takes it. A ``model`` other than the commands' own is named; a card, which is
    published, tells its name elsewhere.
    """
    triggers = {
        "predicting": "before_entity query=cioqf", "tokens": "radio query=cioqf", "prompt": "probing_before",
    }  # fmt: skip
    trigger = triggers.get(bank.spec.pool, "probing" if bank.spec.position == "generated" else "")
    if bank.label == "helps":
        trigger = {"probing": "helps query=question", "probing_before": "helps_before"}.get(trigger, "")
    scores = read and bank.spec.pool != "prompt"
    if bank.head.tokens or not (trigger or scores):
        return None
    named = {} if model == "testbed" else {"model": model}
    if scores:
        return command_line("score", "FILE", **named, prober=out)
    return command_line("rag", "question=..", *f"trigger={trigger}".split(), **named, prober=out)


def moment_columns(moments: Moments) -> dict[str, str]:
    """Map the keys of a moment's figures to titles."""
    strata = {n: f"within {n if ' ' not in n else 'both'}" for n in moments.strata}
    return {"all": "AUROC", **strata, **({"gold": "by gold answers"} if moments.gold else {})}


def _calibrated(bank: Prober, figures: Figures) -> dict[str, Quality]:
    entry, saved = figures.calibration, bank.calibration.to_dict()
    value = f" {saved['value']:.3g}" if "value" in saved else ""
    after = f"**{entry.method}**{value} (saved)"
    return {"before, sigmoid of the score": entry.before, after: entry.after, **entry.other}


def _by_value(texts: str, values: Mapping[str, Subset]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """AUROC of every detector on the test texts of each value: titles of the columns, and the rows."""
    names = dict.fromkeys(name for entry in values.values() for name in entry.detectors)
    titles = [f"{c or '(none)'} (n={e.n}, {e.base_rate:.0%} {texts})" for c, e in values.items()]
    rows = [(n, [bounded(e.detectors.get(n, {}), "auroc") for e in values.values()]) for n in names]
    return titles, [row for row in rows if any(row[1])]  # without detectors constant within each
