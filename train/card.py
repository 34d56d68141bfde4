"""The model card: what the prober is, how to use it, its figures, and what they do not show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probers.bank.bank import ProbeBank
from probers.heads import head_name

from .controls import ENSEMBLE, WITH_ENTROPY
from .tables import ENSEMBLES, best_name, bounded, bounds, layer_name, markdown, warnings

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
    parts = [
        f"---\nlibrary_name: probers\n{base}tags:\n- hallucination-detection\n- probing\n"
        "- retrieval-augmented-generation\n---",
        f"# Prober for {spec.model.id}",
        _what(bank),
        "## Use",
        *_use(bank, out),
        "## Data",
        f"Feature store `{data}` (source {source or 'unknown'}), split by group, never by example:",
        markdown(
            ["split", "texts", "groups", "wrong", "data sets"],
            (
                [name, s["n"], s["groups"], f"{s['wrong']:.0%}", _counts(s["datasets"])]
                for name, s in splits.items()
            ),
        ),
        f"## Test figures: finding the wrong texts (base rate {splits['test']['wrong']:.2f})",
        _figures(figures),
        "Brackets are 95% bootstrap intervals over groups. Checkpoints, thresholds, calibration, the choice "
        "of layers and the entropy model come from validation texts; the test texts were used once, for this "
        f"card. Best single layer on validation: {best_name(figures)}.",
        "![AUROC and accuracy by layer](plots/auroc_by_layer.png)",
        *_seeds(figures),
        "## Calibration",
        _calibration(bank, figures["calibration"]),
        "![reliability](plots/reliability.png)",
        *_curve(figures),
        "## Against the controls (difference in AUROC, paired)",
        _pairs(figures),
        *_within("conditions", figures["conditions"]),
        *_within("data sets", figures["datasets"]),
        "## Limits",
        "\n".join(f"- {line}" for line in _limits(bank, figures)),
    ]
    return "\n\n".join(parts) + "\n"


def rag_command(bank: ProbeBank, out: Path) -> str | None:
    """The command that answers questions with the prober as its trigger; None where no trigger takes it."""
    if bank.spec.pool == "predicting" or bank.head.tokens:
        return None
    if bank.spec.pool == "tokens":
        return f'probers-rag question="..." trigger=radio query=cioqf prober={out}'
    if bank.spec.position == "generated":
        return f'probers-rag question="..." trigger=probing prober={out}'
    return None


def _what(bank: ProbeBank) -> str:
    """What it reads and how it scores, in a paragraph."""
    spec = bank.spec
    several = "s" * (len(bank.layers) > 1)
    over = f"{spec.pool} over the {spec.position} tokens"
    if bank.aggregate is not None:
        over = f"each of the {spec.position} tokens, joined by their {bank.aggregate}"
    layers = ", ".join(map(str, bank.layers))
    place = "the residual stream after" if spec.site == "resid_post" else "of"
    joined = ENSEMBLES.get(bank.combine, bank.combine)
    return (
        f"Reads hidden states of `{spec.model}` and says how likely its text is wrong. "
        f"{len(bank.layers)} `{head_name(bank.head)}` head{several} on layer{several} {layers} "
        f"({spec.site}, {over}; layer k is {place} block k). Class 1 is a right text, class 0 a wrong one; "
        f"a layer's margin is wrong minus correct, and the score joins the margins: {joined}."
    )


def _use(bank: ProbeBank, out: Path) -> list[str]:
    spec = bank.spec
    lines = [
        "from probers import ProbeBank",
        "",
        f'bank = ProbeBank.from_pretrained("{out}")',
        f"score = bank.score(states)  # of (n, {len(bank.layers)}, {spec.width}), higher is likelier wrong",
        f"fires = score > bank.threshold  # {bank.threshold:.3g}, chosen on validation",
        "probability = bank.probability(score)  # calibrated P(wrong)",
    ]
    if bank.entropy_model is not None:
        lines.append("odds = bank.score(states, signals)  # with the entropies of the text's tokens")
        lines.append("fires = odds > bank.entropy_model.threshold")
    found = ["```python\n" + "\n".join(lines) + "\n```"]
    command = rag_command(bank, out)
    if command is not None:
        found.insert(0, f"```bash\n{command}\n```")
    return found


def _counts(datasets: Mapping[str, int]) -> str:
    return ", ".join(f"{name or '(none)'} {count}" for name, count in datasets.items())


def _figures(figures: Mapping[str, Any]) -> str:
    rows = [(layer_name(figures, entry), entry) for entry in figures["layers"]]
    if len(rows) > 1:
        for kind, entry in figures["ensembles"].items():
            name = f"{ENSEMBLE}: {ENSEMBLES.get(kind, kind)}"
            rows.append((f"**{name}** (saved)" if kind == figures["combine"] else name, entry))
    if figures["with_entropy"]:
        rows.append((f"**{WITH_ENTROPY}**", figures["with_entropy"]))
    rows += [(f"control: {name}", entry) for name, entry in figures["controls"].items()]
    return markdown(
        ["", *(title for title, _ in _COLUMNS)],
        [[name, *(bounded(entry, key) for _, key in _COLUMNS)] for name, entry in rows],
    )


def _seeds(figures: Mapping[str, Any]) -> list[str]:
    rows = [
        [layer_name(figures, entry), len(seeds["auroc"]), f"{seeds['mean']:.3f}", f"{seeds['std']:.3f}"]
        for entry in figures["layers"]
        if (seeds := entry["seeds"])
    ]
    header = ["", "seeds", "mean AUROC", "standard deviation"]
    return ["## Spread over seeds", markdown(header, rows)] if rows else []


def _calibration(bank: ProbeBank, entry: Mapping[str, Any]) -> str:
    method, saved = entry["method"], bank.calibration.to_dict()
    value = f" {saved['value']:.3g}" if "value" in saved else ""
    after = f"**{method}**{value} (saved)"
    entries = {"before, sigmoid of the score": entry["before"], after: entry["after"], **entry["other"]}
    rows = [[name, bounded(f, "ece"), bounded(f, "brier")] for name, f in entries.items()]
    shown = markdown(["", "ECE", "Brier"], rows)
    return f"{shown}\n\nThe interval of a small ECE lies a little high: resampling adds noise to its bins."


def _curve(figures: Mapping[str, Any]) -> list[str]:
    points = figures["learning_curve"]
    if not points:
        return []
    best = f"layer {figures['best_layer']}"
    rows = [
        [f"{p['share']:.0%}", p["groups"], p["n"]]
        + [bounded(p[which], key) for which in ("ensemble", "layer") for key in ("auroc", "accuracy")]
        for p in points
    ]
    header = ["share", "groups", "texts", f"{ENSEMBLE}, AUROC", "accuracy", f"{best}, AUROC", "accuracy"]
    return [
        "## Learning curve",
        "The same training on some of its groups, with the test texts of the table above.",
        markdown(header, rows),
        "![learning curve](plots/learning_curve.png)",
    ]


def _pairs(figures: Mapping[str, Any]) -> str:
    rows = []
    for name, pair in figures["pairs"].items():
        diff, ci = pair["auroc"]["diff"], pair["auroc"]["ci95"]
        verdict = "undecided"
        if ci and (ci[0] > 0 or ci[1] < 0):
            verdict = "better" if ci[0] > 0 else "worse"
        rows.append([name, f"{diff:+.3f} {bounds(ci, '+.3f')}", verdict])
    return markdown(["", "difference", "first is"], rows)


def _within(what: str, values: Mapping[str, Any]) -> list[str]:
    """AUROC of everything on the test texts of each value, where there are several."""
    if len(values) < 2:
        return []
    names = list(dict.fromkeys(name for entry in values.values() for name in entry["detectors"]))
    titles = [f"{c or '(none)'} (n={e['n']}, {e['base_rate']:.0%} wrong)" for c, e in values.items()]
    rows = []
    for name in names:
        cells = [bounded(entry["detectors"].get(name, {}), "auroc") for entry in values.values()]
        if any(cells):  # not what is a constant within each
            rows.append([name, *cells])
    return [f"## AUROC within {what}", markdown(["", *titles], rows)]


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
    lines += [f"{line[0].upper()}{line[1:]}." for line in warnings(figures)]
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
