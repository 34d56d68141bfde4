"""The model card: what the prober is, how to use it, its figures, and what they do not show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probers.bank import ProbeBank
from probers.heads import head_name

from .prober import ENSEMBLE, WITH_ENTROPY

_COLUMNS = (
    ("AUROC", "auroc"), ("AUPRC", "auprc"), ("accuracy", "accuracy"), ("F1", "f1"), ("PRR", "prr"),
    ("recall at 10% FPR", "recall_at_fpr10"), ("ECE", "ece"), ("Brier", "brier"),
)  # fmt: skip


def write_card(bank: ProbeBank, figures: Mapping[str, Any], *, data: Path, source: str, out: Path) -> str:
    """The text of ``README.md``.

    Args:
        bank: the prober.
        figures: as in ``metrics.json``.
        data: the feature store it was trained on.
        source: what kind of examples the store holds, e.g. "cot".
        out: where the prober is written, for the commands shown.
    """
    spec = bank.spec
    hub = "/" in spec.model.id and not spec.model.id.startswith((".", "/"))
    base = f"base_model: {spec.model.id}\n" if hub else ""
    splits = figures["splits"]
    test = splits["test"]
    layers = ", ".join(map(str, bank.layers))
    parts = [
        f"---\nlibrary_name: probers\n{base}tags:\n- hallucination-detection\n- probing\n"
        "- retrieval-augmented-generation\n---",
        f"# Prober for {spec.model.id}",
        f"Reads hidden states of `{spec.model}` and says how likely its text is wrong. "
        f"{len(bank.layers)} `{head_name(bank.head)}` head{'s' * (len(bank.layers) > 1)} on layer"
        f"{'s' * (len(bank.layers) > 1)} {layers} ({spec.site}, {spec.pool} over the {spec.position} tokens; "
        f"layer k is the residual stream after block k). Class 1 is a right text, class 0 a wrong one; the "
        f"score is the sum over layers of wrong minus correct ({bank.combine}).",
        "## Use",
        f'```bash\nprobers-rag question="..." trigger=probing prober={out}\n```',
        "```python\nfrom probers import ProbeBank\n\n"
        f'bank = ProbeBank.from_pretrained("{out}")\n'
        f"score = bank.score(states)            # (n, {len(bank.layers)}, {spec.width}) -> (n,), higher is "
        "likelier wrong\n"
        "fires = score > bank.threshold\nprobability = bank.probability(score)\n```",
        "## Data",
        f"Feature store `{data}` (source {source or 'unknown'}), split by group, never by example:",
        _table(
            ["split", "texts", "groups", "wrong"],
            [[name, s["n"], s["groups"], f"{s['wrong']:.0%}"] for name, s in splits.items()],
        ),
        f"## Test figures: finding the wrong texts (base rate {test['wrong']:.2f})",
        _figures(figures),
        "Brackets are 95% bootstrap intervals over groups. Thresholds, temperature and the entropy model "
        "were fitted on validation texts; the test texts were used once, for this table. "
        f"Best single layer on validation: {figures['best_layer']}.",
        "![AUROC by layer](plots/auroc_by_layer.png)",
        "## Against the controls (difference in AUROC, paired)",
        _pairs(figures),
        *_conditions(figures),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(bank, figures)),
    ]
    return "\n\n".join(parts) + "\n"


def _figures(figures: Mapping[str, Any]) -> str:
    rows = [(f"layer {entry['layer']}", entry) for entry in figures["layers"]]
    rows.append((f"**{ENSEMBLE}**", figures["ensemble"]))
    if figures["with_entropy"]:
        rows.append((f"**{WITH_ENTROPY}**", figures["with_entropy"]))
    rows += [(f"control: {name}", entry) for name, entry in figures["controls"].items()]
    return _table(
        ["", *(title for title, _ in _COLUMNS)],
        [[name, *(_cell(entry, key) for _, key in _COLUMNS)] for name, entry in rows],
    )


def _pairs(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, pair in figures["pairs"].items():
        diff, ci = pair["auroc"]["diff"], pair["auroc"]["ci95"]
        verdict = "undecided"
        if ci and (ci[0] > 0 or ci[1] < 0):
            verdict = "better" if ci[0] > 0 else "worse"
        rows.append([name, f"{diff:+.3f} {_bounds(ci, '+.3f')}", verdict])
    return _table(["", "difference", "first is"], rows)


def _conditions(figures: Mapping[str, Any]) -> list[str]:
    conditions = figures["conditions"]
    if len(conditions) < 2:
        return []
    names = list(dict.fromkeys(name for entry in conditions.values() for name in entry["detectors"]))
    titles = [f"{c} (n={e['n']}, {e['base_rate']:.0%} wrong)" for c, e in conditions.items()]
    rows = [
        [name, *(_cell(entry["detectors"].get(name, {}), "auroc") for entry in conditions.values())]
        for name in names
    ]
    return ["## AUROC within conditions", _table(["", *titles], rows)]


def _limits(bank: ProbeBank, figures: Mapping[str, Any]) -> list[str]:
    """What the figures do not show, and what they show against the prober."""
    lines = [
        f"It reads `{bank.spec.model}` and no other model, and texts that were prompted as its training "
        "texts were; both are checked before use.",
        "A text is wrong when it does not match the gold answer: a right answer in other words counts as "
        "wrong.",
        "P(wrong) is calibrated for the share of wrong texts in its data, and only for that share.",
    ]
    if bank.spec.model.id == "testbed":
        lines.append("The testbed is a fictional world and a tiny model: no evidence about large models.")
    beaten_by = [
        name.removeprefix(f"{ENSEMBLE} vs ")
        for name, pair in figures["pairs"].items()
        if name.startswith(f"{ENSEMBLE} vs ") and not ((pair["auroc"]["ci95"] or [0])[0] > 0)
    ]
    if beaten_by:
        lines.append(f"The heads alone are not shown to be better than: {', '.join(beaten_by)}.")
    shuffled = figures["controls"].get("shuffled labels", {}).get("auroc_ci")
    if shuffled and not shuffled[0] <= 0.5 <= shuffled[1]:
        lines.append(
            f"A head on shuffled labels reached AUROC {_bounds(shuffled, '.2f')}, not 0.5: by chance (one "
            "run in twenty) or because something is wrong; train with another seed."
        )
    positive = figures["positive_control"]
    if positive and positive["auroc"] is not None:
        lines.append(
            f"Positive control: the same head tells whether the answer is a person with AUROC "
            f"{positive['auroc']:.2f}, so the states are read properly."
            if positive["auroc"] > 0.8
            else f"Positive control FAILED: telling whether the answer is a person reached AUROC "
            f"{positive['auroc']:.2f} only; distrust the features."
        )
    return [*lines, *figures["notes"]]


def _table(header: list[str], rows: list[list[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _cell(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return "" if value is None else f"{value:.2f} {_bounds(entry.get(key + '_ci'), '.2f')}".strip()


def _bounds(ci: list[float] | None, form: str) -> str:
    return "" if ci is None else f"[{ci[0]:{form}}, {ci[1]:{form}}]"
