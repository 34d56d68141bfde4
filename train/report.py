"""Reports of training runs: tables for the terminal, at most 100 columns wide, and the model card."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from probers.bank.bank import Prober
from probers.bank.risk_control import Promise
from probers.evaluation.bootstrap import bounded, bounds, number
from probers.files import read_json
from probers.heads import head_name
from probers.pages import hub_id, public_model, public_path, render
from probers.store.spec import ranges
from probers.types import RunError

from .assemble import ENSEMBLE, WITH_ENTROPY, WITHOUT, Cost
from .before_after import MOMENTS
from .fit import SHUFFLED

Json = Mapping[str, Any]

_NAME, _WIDTH = 26, 100  # columns of the names, and of the terminal
_WEIGHTS = 6  # of a head of several layers, that many are shown
#: Title and key of the columns after AUROC and its interval.
_COLUMNS = (
    ("AUPRC", "auprc"), ("PRR", "prr"), ("R@10%", "recall_at_fpr10"), ("acc.", "accuracy"), ("F1", "f1"),
    ("ECE", "ece"), ("Brier", "brier"),
)  # fmt: skip
#: Names of the ways to join the layers.
ENSEMBLES = {
    "logits": "sum of logits", "probabilities": "sum of probabilities", "best": "mean of the best",
    "stacked": "stacked logistic",
}  # fmt: skip


def cut(text: str, width: int) -> str:
    """Shorten a text to ``width`` columns, ending in two dots."""
    return text if len(text) <= width else text[: width - 2] + ".."


def layer_name(figures: Json, entry: Json) -> str:
    """Name a layer, or those of one head, with the site where there are several."""
    site = f"{entry['site']} " if len(figures["sites"]) > 1 else ""
    named = f"{site}layer{'s' * ('together' in entry)} {_layers(entry)}"
    return " + ".join([named, *entry.get("beside", [])])


def best_name(figures: Json) -> str:
    """Number of the layer that is best on validation, with its site where there are several."""
    site = f"{figures['best_site']} " if len(figures["sites"]) > 1 else ""
    return f"{site}{_layers(_best(figures))}"


def _layers(entry: Json) -> str:
    return ranges(entry["together"]) if "together" in entry else str(entry["layer"])


def warnings(figures: Json) -> list[str]:
    """List reasons to distrust the figures, one sentence each."""
    found = []
    shuffled = figures["controls"].get(SHUFFLED, {})
    if not shuffled.get("at_chance", True):
        why = "by chance (one run in twenty) or because something is wrong; train with another seed"
        reached = bounds(shuffled["auroc_ci"])
        found.append(f"a head on shuffled labels reached AUROC {reached}, not 0.5: {why}")
    if figures["calibration"].get("constant"):
        why = "on validation, higher scores are not more often wrong"
        found.append(f"P(wrong) is the same for every text: {why}")
    train, test = (set(figures["splits"][split]["datasets"]) for split in ("train", "test"))
    if train and test and not train & test:
        sets = f"trained on {', '.join(sorted(train))}, tested on {', '.join(sorted(test))}"
        found.append(f"out of domain: {sets}")
    return found


def table(figures: Json) -> str:
    """Tabulate layers, ensembles, controls, datasets, conditions, calibration, learning curve and notes."""
    test, best = figures["splits"]["test"], _best(figures)
    single = len(figures["layers"]) == 1
    parts = [
        f"test: {test['n']:,} examples, {test['groups']:,} groups, {test['wrong']:.0%} wrong; "
        "finding wrong ones, 95% intervals",
        f"{'':{_NAME}}{'AUROC':>6}  {'':13}" + "".join(f"{title:>7}" for title, _ in _COLUMNS),
    ]
    for entry in figures["layers"]:
        parts.append(_line(layer_name(figures, entry), entry, "*" if entry is best and not single else ""))
    if not single:  # one layer is its own sum
        parts.append("all layers")
        for kind, entry in figures["ensembles"].items():
            parts.append(_line(ENSEMBLES.get(kind, kind), entry, "*" if kind == figures["combine"] else ""))
    for name, entry in figures.get("members", {}).items():
        parts.append(_line(f"member {name}", entry))
    prober, with_entropy = ("prober", "with entropy") if single else (ENSEMBLE, WITH_ENTROPY)
    if figures["with_entropy"]:
        parts.append(_line(with_entropy, figures["with_entropy"]))
    parts.append("controls")
    for name, entry in figures["controls"].items():
        parts.append(_line(name, entry, "" if entry.get("at_chance", True) else "!"))
    # Of the controls, the one most often reported.
    shown = {ENSEMBLE: prober, WITH_ENTROPY: with_entropy, "mean entropy": "mean entropy"}
    for what in ("condition", "dataset"):
        parts += _by(what, figures[f"{what}s"], shown)
    if positive := figures["positive_control"]:
        reached = f"AUROC {number(positive['auroc'])}, accuracy {number(positive['accuracy'])}"
        parts.append(f"positive control, is the answer a person: {reached}")
    if weights := figures.get("layer_weights"):
        largest = sorted(weights, key=lambda layer: -weights[layer])[:_WEIGHTS]
        listed = ", ".join(f"{layer}: {number(weights[layer])}" for layer in largest)
        kept = sum(weight > 0 for weight in weights.values())
        parts.append(f"largest weights of {kept} of {len(weights)}: {listed}")
    parts += _adapter_lines(figures)
    parts += _stacked(figures)
    parts += _levels(figures.get("levels"))
    parts += _moments(figures["moments"])
    parts.append(_calibration(figures["calibration"]))
    if promise := promised(figures):
        parts.append(fill(promise, 98, subsequent_indent="  "))
    points = [f"{p['groups']}: {number(p['ensemble']['auroc'])}" for p in figures["learning_curve"]]
    if points:
        parts.append(f"AUROC by training groups: {', '.join(points)}")
    if seeds := best["seeds"]:
        spread = f"AUROC {seeds['mean']:.3f}, standard deviation {seeds['std']:.3f}"
        parts.append(f"{len(seeds['auroc'])} seeds, {layer_name(figures, best)}: {spread}")
    if not single:
        parts.append("* the best layer on validation, and the score that is saved")
    for note in [*warnings(figures), *figures["notes"], *figures["moments"]["notes"]]:
        parts.append(fill(note, 98, initial_indent="note: ", subsequent_indent="  "))
    return "\n".join(parts)


def adapter_rows(figures: Json) -> list[tuple[str, str, str]]:
    """List what adapters below the head do: name, without them, with them; [] where none were kept."""
    about = figures.get("adapter")
    if not about or not about["kept"]:
        return []
    limit = "" if about["kl_limit"] is None else f" (limit {about['kl_limit']:.3g})"
    own = about["perplexity"]
    return [
        ("AUROC", bounded(figures["controls"][WITHOUT], "auroc"), bounded(figures["ensemble"], "auroc")),
        (f"KL to the model, nats a token{limit}", "0", bounded(about, "kl", ".4f")),
        (f"perplexity of its own {own['texts']} texts", f"{own['without']:.3f}", f"{own['with']:.3f}"),
        ("trained parameters of the model", "0", f"{about['parameters']:,}"),
    ]


def _adapter_lines(figures: Json) -> list[str]:
    if not (rows := adapter_rows(figures)):
        return []
    table = [("the model", "without adapters", "with adapters"), *rows]
    pair = figures["pairs"][f"{ENSEMBLE} vs {WITHOUT}"]["auroc"]
    gain = f"{number(pair['diff'], '+.3f')} {bounds(pair['ci95'], '+.3f')}"
    lines = [f"{name:46}{without:>24}{with_them:>26}" for name, without, with_them in table]
    return [*lines, f"difference in AUROC, paired: {gain}"]


def best_member(figures: Json) -> str:
    """Name the member of a stack that is best on validation."""
    members = figures["members"]
    return max(members, key=lambda name: members[name]["validation"]["auroc"])


def _stacked(figures: Json) -> list[str]:
    """Weights of a stack's members, and its lead over the best of them."""
    if not (members := figures.get("members")):
        return []
    listed = ", ".join(f"{name} {entry['weight']:.2f}" for name, entry in members.items())
    split = figures["splits"]["weights"]
    fitted = f"{split['n']} texts ({split['wrong']:.0%} wrong) of {split['groups']} groups"
    lines = [f"weights of scores in standard deviations, fitted on {fitted}: {listed}"]
    best = best_member(figures)
    pair = figures["pairs"][f"{ENSEMBLE} vs {best}"]["auroc"]
    lead = f"{number(pair['diff'], '+.3f')} {bounds(pair['ci95'], '+.3f')}"
    lines.append(f"stack minus {best}, the best member on validation: AUROC {lead}")
    return [fill(line, 98, subsequent_indent="  ") for line in lines]


#: Columns of the table of levels.
_OF_LEVELS = (("AUPRC", "auprc"), ("R@1%", "recall_at_fpr1"), ("R@10%", "recall_at_fpr10"), ("F1", "f1"))


def _levels(levels: Json | None) -> list[str]:
    """AUROC and more of tokens, spans, sentences and answers."""
    if not levels:
        return []
    titles = "".join(f"{title:>7}" for title, _ in _OF_LEVELS)
    lines = [f"{'by level':{_NAME}}{'n':>7}{'wrong':>7}  {'AUROC':21}{titles}"]
    for name, entry in levels.items():
        cells = "".join(f"{number(entry.get(key)):>7}" for _, key in _OF_LEVELS)
        auroc = bounded(entry, "auroc")
        lines.append(f"  {name:{_NAME - 2}}{entry['n']:>7}{number(entry['wrong']):>7}  {auroc:21}{cells}")
    if (alarms := levels["token"].get("false_alarms")) is not None:
        around = bounds(levels["token"]["false_alarms_ci"], ".0f")
        lines.append(f"  false alarms per 1,000 tokens outside of marked spans: {alarms:.0f} {around}")
    return lines


def _best(figures: Json) -> Mapping[str, Any]:
    best = (figures["best_site"], figures["best_layer"])
    return next(entry for entry in figures["layers"] if (entry["site"], entry["layer"]) == best)


def _line(name: str, entry: Json, mark: str = "") -> str:
    return (
        f"  {cut(f'{name} {mark}'.rstrip(), _NAME - 2):{_NAME - 2}}{number(entry['auroc']):>6}  "
        f"{bounds(entry['auroc_ci']):13}" + "".join(f"{number(entry[key]):>7}" for _, key in _COLUMNS)
    )


def _by(what: str, values: Json, shown: Mapping[str, str]) -> list[str]:
    """AUROC of some detectors, under the names shown, value by value where there are several."""
    if len(values) < 2:
        return []
    titles = "".join(f"{title:21}" for title in shown.values()).rstrip()
    lines = [f"{f'AUROC by {what}':{_NAME}}{'n':>5}{'wrong':>7}  {titles}"]
    for value, entry in values.items():
        found = (entry["detectors"].get(name, {}) for name in shown)
        cells = (f"{number(f.get('auroc')):>4} {bounds(f.get('auroc_ci'))}" for f in found)
        lines.append(
            f"  {cut(value, _NAME - 2):{_NAME - 2}}{entry['n']:>5}{entry['base_rate']:>7.0%}  "
            + "".join(f"{cell:21}" for cell in cells).rstrip()
        )
    return lines


def _against(found: Json, name: str, key: str) -> str:
    """Place a detector against the prober's score by the paired difference: "-" below, "+" above."""
    for pair, below in ((f"{found['head']} vs {name}", "-"), (f"{name} vs {found['head']}", "+")):
        low, high = found["pairs"].get(pair, {}).get(key, {}).get("ci95") or (0, 0)
        if low > 0 or high < 0:
            return below if low > 0 else "+-".replace(below, "")
    return ""


def moment_columns(figures: Json) -> dict[str, str]:
    """Map the keys of a moment's figures to titles."""
    strata = {n: f"within {n if ' ' not in n else 'both'}" for n in figures["strata"]}
    return {"all": "AUROC", **strata, **({"gold": "by gold answers"} if figures.get("gold") else {})}


def cost_of(entry: Json) -> Cost:
    """Read what a detector costs per text."""
    return Cost(**entry["cost"])


def _moments(figures: Json) -> list[str]:
    """AUROC of detectors before and after a text, over all test texts and within strata; cheap ones first."""
    divisions = moment_columns(figures)
    lines = []
    for moment in MOMENTS:
        found = figures[moment]
        if not found["detectors"]:
            continue
        title = f"{moment} the {figures['position']}"
        lines.append((f"{title:23}" + "".join(f"{t:19}" for t in divisions.values())).rstrip())
        by_cost = sorted(found["detectors"].items(), key=lambda item: cost_of(item[1]))
        for i, (name, entry) in enumerate(by_cost):
            if i == 0 or cost_of(entry) != cost_of(by_cost[i - 1][1]):
                lines.append(f" {cost_of(entry)} of the model beside the text's own")
            cells = (
                f"{number(entry[k]['auroc'])} {bounds(entry[k]['ci95'])}{_against(found, name, k)}"
                for k in divisions
            )
            lines.append((f"  {cut(name, 20):21}" + "".join(f"{cell:19}" for cell in cells)).rstrip())
    if any(figures[moment]["head"] for moment in MOMENTS):
        lines.append("- below, + above the prober's score there (paired interval)")
    for name, division in figures["strata"].items():
        strata = division["strata"]
        shown = ", ".join(f"{k or '(none)'}: {v['wrong']}/{v['n']}" for k, v in strata.items())
        shown = shown if len(strata) <= 12 else f"{len(strata)} strata"
        line = f"within {name}: {division['compared']} texts in strata of both classes (wrong/all: {shown})"
        lines.append(fill(line, 98, subsequent_indent="  "))
    return lines


def _calibration(entry: Json) -> str:
    before, after = entry["before"], entry["after"]
    others = "".join(
        f"; {kind}: ECE {number(f['ece'])}, Brier {number(f['brier'])}" for kind, f in entry["other"].items()
    )
    chance = f" ({number(entry['by_chance'])} if it were exact, by chance)" if "by_chance" in entry else ""
    ece = f"ECE {number(before['ece'])} -> {number(after['ece'])}{chance}"
    brier = f"Brier {number(before['brier'])} -> {number(after['brier'])}"
    line = f"calibration ({entry['method']}): {ece}, {brier}{others}"
    return fill(line, 98, subsequent_indent="  ")


def promised(figures: Json) -> str:
    """Say what the threshold promises and what came of it on the test texts; "" without a promise."""
    if not (entry := figures.get("promise")):
        return ""
    promise, test = Promise(**{key: entry[key] for key in Promise.__annotations__}), entry["test"]
    share = f" ({test['wrong'] / test['passing']:.0%})" if test["passing"] else ""
    return f"promise: {promise}; of {test['passing']} test groups that pass {test['wrong']} are wrong{share}"


_METRICS = "metrics.json"
_HEADER = ("", "best layer", "validation", "AUROC (test)", "acc.", "ECE", "folder")


def compare_runs(jobs: Sequence[Sequence[str]], folders: Sequence[Path]) -> str:
    """Tabulate what each run varied (``key=value``), its best layer, and figures of the score that is saved.

    Choose by the column "validation", the best layer's AUROC: test figures of a row chosen by them would be
    too good. Classifiers of questions (head=adaptive) are left out; "" without a prober. RunError for a
    folder without readable figures.
    """
    found = [(job, folder, _figures(folder)) for job, folder in zip(jobs, folders, strict=True)]
    found = [each for each in found if "layers" in each[2]]
    if not found:
        return ""
    shared = Path(os.path.commonpath([folder.parent for _, folder, _ in found]))
    cells: list[tuple[str, ...]] = [_HEADER]
    for job, folder, figures in found:
        try:
            cells.append((" ".join(job), *_row(figures), str(folder.relative_to(shared))))
        except (LookupError, TypeError, ValueError, StopIteration) as error:
            why = f"{folder / _METRICS} lacks some or was altered"
            raise RunError(f"the figures of a run cannot be read: {why}", code="damaged") from error
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEADER) - 1)]
    widths[0] = max(12, min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths)))
    lines = []
    for name, *middle, last in cells:
        fitted = [f"{cell:>{width}}" for cell, width in zip(middle, widths[1:], strict=True)]
        lines.append("  ".join([f"{cut(name, widths[0]):{widths[0]}}", *fitted, last]).rstrip())
    return "\n".join([*lines, f"folders are below {shared}; choose by validation, report the test figures"])


def _row(figures: Json) -> tuple[str, ...]:
    saved = figures["ensemble"]
    return (
        best_name(figures), number(_best(figures)["validation"]["auroc"], ".3f"),
        bounded(saved, "auroc", ".3f", absent="-"), number(saved["accuracy"], ".3f"),
        number(saved["ece"], ".3f"),
    )  # fmt: skip


def _figures(folder: Path) -> dict[str, Any]:
    path = folder / _METRICS
    try:
        if isinstance(found := read_json(path), dict):
            return found
        raise ValueError("holds no JSON object")
    except (OSError, ValueError) as error:
        raise RunError(f"the figures of a run cannot be read: {path}: {error}", code="damaged") from error


def write_card(
    bank: Prober, figures: Json, *, data: Sequence[Path], source: str, out: Path, read: bool = False
) -> str:
    """Render ``README.md``; ``source`` is the kind of examples in the stores ``data``, e.g. "cot".

    ``read`` says that they are texts of others.
    """
    spec = bank.spec
    over = f"{spec.pool} over the {spec.position} tokens"
    if spec.pool == "prompt":
        over = "the prompt's last token, before anything is written"
    if bank.aggregate is not None:
        which = "each token" if spec.position == "token" else f"each of the {spec.position} tokens"
        over = f"{which}, joined by their {bank.aggregate}"
    beaten_by = [
        name.removeprefix(f"{ENSEMBLE} vs ")
        for name, pair in figures["pairs"].items()
        if name.startswith(f"{ENSEMBLE} vs ") and not ((pair["auroc"]["ci95"] or [0])[0] > 0)
    ]
    shown = public_path(out, "PROBER")
    stores = ",".join(public_path(path, "STORE") for path in data)
    stores = stores if len(data) == 1 else f"[{stores}]"
    shared = (
        adapter_rows, best_member, best_name, bounded, bounds, cost_of, layer_name, moment_columns, number,
        promised, ranges, warnings,
    )  # fmt: skip
    return render(
        "probers.train/card.md.j2",
        bank=bank, figures=figures, data=stores, source=source, read=read, out=shown,
        model=replace(spec.model, id=public_model(spec.model.id)), base_model=hub_id(spec.model.id),
        head=head_name(bank.head), over=over, command=use_command(bank, shown, read=read),
        scored=_scored(figures), calibrated=_calibrated(bank, figures),
        by_value=_by_value, beaten_by=beaten_by, MOMENTS=MOMENTS, ENSEMBLE=ENSEMBLE, ENSEMBLES=ENSEMBLES,
        **{function.__name__: function for function in shared},
    )  # fmt: skip


def use_command(bank: Prober, out: str | Path, model: str = "testbed", *, read: bool) -> str | None:
    """Show how to use the prober: as trigger, or on texts if those it was trained on were ``read``.

    None where neither takes it. A ``model`` other than the commands' own is named; a card, which is
    published, tells its name elsewhere.
    """
    triggers = {
        "predicting": "before_entity query=cioqf", "tokens": "radio query=cioqf", "prompt": "probing_before",
    }  # fmt: skip
    trigger = triggers.get(bank.spec.pool, "probing" if bank.spec.position == "generated" else "")
    scores = read and bank.spec.pool != "prompt"
    if bank.head.tokens or not (trigger or scores):
        return None
    model = "" if model == "testbed" else f" model={model}"
    if scores:
        return f"probers-score FILE{model} prober={out}"
    return f'probers-rag question="..."{model} trigger={trigger} prober={out}'


def _scored(figures: Json) -> list[tuple[str, Json]]:
    rows = [(layer_name(figures, entry), entry) for entry in figures["layers"]]
    if len(rows) > 1:
        for kind, entry in figures["ensembles"].items():
            name = f"{ENSEMBLE}: {ENSEMBLES.get(kind, kind)}"
            rows.append((f"**{name}** (saved)" if kind == figures["combine"] else name, entry))
    if figures["with_entropy"]:
        rows.append((f"**{WITH_ENTROPY}**", figures["with_entropy"]))
    return rows + [(f"control: {name}", entry) for name, entry in figures["controls"].items()]


def _calibrated(bank: Prober, figures: Json) -> dict[str, Json]:
    entry, saved = figures["calibration"], bank.calibration.to_dict()
    value = f" {saved['value']:.3g}" if "value" in saved else ""
    after = f"**{entry['method']}**{value} (saved)"
    return {"before, sigmoid of the score": entry["before"], after: entry["after"], **entry["other"]}


def _by_value(values: Json) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """AUROC of every detector on the test texts of each value: titles of the columns, and the rows."""
    names = dict.fromkeys(name for entry in values.values() for name in entry["detectors"])
    titles = [f"{c or '(none)'} (n={e['n']}, {e['base_rate']:.0%} wrong)" for c, e in values.items()]
    rows = [(n, [bounded(e["detectors"].get(n, {}), "auroc") for e in values.values()]) for n in names]
    return titles, [row for row in rows if any(row[1])]  # without detectors constant within each
