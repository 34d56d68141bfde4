"""The model card: what the prober is, how to use it, its figures, and what they do not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probers.bank.bank import ProbeBank
from probers.evaluation.bootstrap import bounded, bounds, number
from probers.heads import head_name
from probers.pages import hub_id, public_model, public_path, render

from .controls import ENSEMBLE, WITH_ENTROPY
from .moments import MOMENTS
from .tables import ENSEMBLES, best_name, layer_name, moment_columns, warnings

Json = Mapping[str, Any]


def write_card(bank: ProbeBank, figures: Json, *, data: Sequence[Path], source: str, out: Path) -> str:
    """The text of ``README.md``.

    Args:
        bank: the prober.
        figures: as in ``metrics.json``.
        data: the feature stores it was trained on.
        source: what kind of examples the store holds, e.g. "cot".
        out: where the prober is written, for the commands shown.
    """
    spec = bank.spec
    over = f"{spec.pool} over the {spec.position} tokens"
    if bank.aggregate is not None:
        over = f"each of the {spec.position} tokens, joined by their {bank.aggregate}"
    beaten_by = [
        name.removeprefix(f"{ENSEMBLE} vs ")
        for name, pair in figures["pairs"].items()
        if name.startswith(f"{ENSEMBLE} vs ") and not ((pair["auroc"]["ci95"] or [0])[0] > 0)
    ]
    shown = public_path(out, "PROBER")
    stores = ",".join(public_path(path, "STORE") for path in data)
    stores = stores if len(data) == 1 else f"[{stores}]"
    shared = (best_name, bounded, bounds, layer_name, moment_columns, number, warnings)
    return render(
        "probers.train/card.md.j2",
        bank=bank, figures=figures, data=stores, source=source, out=shown,
        model=replace(spec.model, id=public_model(spec.model.id)), base_model=hub_id(spec.model.id),
        head=head_name(bank.head), over=over, command=rag_command(bank, shown), scored=_scored(figures),
        calibrated=_calibrated(bank, figures),
        by_value=_by_value, beaten_by=beaten_by, MOMENTS=MOMENTS, ENSEMBLE=ENSEMBLE, ENSEMBLES=ENSEMBLES,
        **{function.__name__: function for function in shared},
    )  # fmt: skip


def rag_command(bank: ProbeBank, out: str | Path) -> str | None:
    """The command that answers questions with the prober as its trigger; None where no trigger takes it."""
    if bank.head.tokens:
        return None
    if bank.spec.pool == "predicting":
        return f'probers-rag question="..." trigger=before_entity query=cioqf prober={out}'
    if bank.spec.pool == "tokens":
        return f'probers-rag question="..." trigger=radio query=cioqf prober={out}'
    if bank.spec.position == "generated":
        return f'probers-rag question="..." trigger=probing prober={out}'
    return None


def _scored(figures: Json) -> list[tuple[str, Json]]:
    """Name and figures of whatever was scored on the test texts."""
    rows = [(layer_name(figures, entry), entry) for entry in figures["layers"]]
    if len(rows) > 1:
        for kind, entry in figures["ensembles"].items():
            name = f"{ENSEMBLE}: {ENSEMBLES.get(kind, kind)}"
            rows.append((f"**{name}** (saved)" if kind == figures["combine"] else name, entry))
    if figures["with_entropy"]:
        rows.append((f"**{WITH_ENTROPY}**", figures["with_entropy"]))
    return rows + [(f"control: {name}", entry) for name, entry in figures["controls"].items()]


def _calibrated(bank: ProbeBank, figures: Json) -> dict[str, Json]:
    """The figures of each calibration, by name."""
    entry, saved = figures["calibration"], bank.calibration.to_dict()
    value = f" {saved['value']:.3g}" if "value" in saved else ""
    after = f"**{entry['method']}**{value} (saved)"
    return {"before, sigmoid of the score": entry["before"], after: entry["after"], **entry["other"]}


def _by_value(values: Json) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """AUROC of everything on the test texts of each value: titles of the columns, and the rows."""
    names = dict.fromkeys(name for entry in values.values() for name in entry["detectors"])
    titles = [f"{c or '(none)'} (n={e['n']}, {e['base_rate']:.0%} wrong)" for c, e in values.items()]
    rows = [(n, [bounded(e["detectors"].get(n, {}), "auroc") for e in values.values()]) for n in names]
    return titles, [row for row in rows if any(row[1])]  # not what is a constant within each
