"""``probers-train head=adaptive``: training of a classifier of questions on which strategy was right."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..cli.command_lines import command_line, override
from ..cli.inputs import newest_store
from ..cli.runs import RunFolder
from ..evaluation.bootstrap import UNDEFINED, Bootstrap, bounded, few_groups, number
from ..evaluation.metrics import auroc
from ..files import canonical_json, write_text
from ..options import Count, Positive
from ..pages import public_model, public_path, render
from ..types import UserError
from .classifiers import STRATEGIES, AdaptiveClassifier
from .strategies import BIAS, HOW, Answers, Bias, Labelled, joined, label, read, seen

log = logging.getLogger(__name__)

_USED = ("data", "out", "suffix", "head", "resamples", "seed", "overwrite", "wait", "checksums")

#: Names of the measured predictors: the classifier and its controls.
CLASSIFIER, MAJORITY, SHUFFLED = "classifier", "majority", "shuffled labels"


@dataclass(frozen=True, kw_only=True)
class Words:
    """Settings for fitting the classifier of words.

    Attributes:
        bias: as in :func:`.strategies.label`.
        c: inverse strength of the L2 penalty.
        min_count: words and pairs of words in fewer questions are left out.
    """

    method: ClassVar[str] = "questions"
    bias: Bias = field(default_factory=lambda: BIAS)
    c: Positive = 1.0
    min_count: Count = 2

    def fit(self, train: Labelled) -> AdaptiveClassifier:
        """Fit it to the training questions; UserError if nothing can be learned from them."""
        return AdaptiveClassifier.fit(train.questions, train.strategies, c=self.c, min_count=self.min_count)


def run(request: Any) -> Path:
    """Train and measure the classifier that the settings of ``probers-train`` ask for; return its folder.

    UserErrors come before anything is written.
    """
    _refuse_unused(request)
    settings, seed = request.head.make(), request.seed
    paths = _data(request.data)
    given = ", ".join(map(str, paths))
    log.info("reading %s", given)
    parts = [read(path, checksums=request.checksums) for path in paths]
    answers = joined(parts)
    labelled, record = label(answers, settings.bias)
    for split in ("train", "test"):
        if split not in labelled:
            raise UserError(f"{given} has no {split} question that every strategy was tried on", "labels")
    train, test = labelled["train"], labelled["test"]
    classifier = settings.fit(train)  # refuses questions without anything to learn
    suffix = f",{request.suffix}" if request.suffix else ""
    out = Path(request.out or f"runs/train/{'+'.join(path.name for path in paths)}-adaptive{suffix}")
    folder = RunFolder(out, "train", _identity(request, parts))
    if not folder.begin(what="classifier"):
        return out
    drawn = np.random.default_rng(seed).permutation(train.strategies).tolist()
    control = settings.fit(train._replace(strategies=drawn))
    questions, majority = test.questions, Counter(train.strategies).most_common(1)[0][0]
    chances = {CLASSIFIER: classifier.probabilities(questions), SHUFFLED: control.probabilities(questions)}
    figures = measure(test, chances, majority, resamples=request.resamples, seed=seed)
    figures["splits"] = {name: _split(part) for name, part in sorted(labelled.items())}
    figures["labels"] = record
    seen(answers.rows).save(out)
    classifier.save(out)
    write_text(out / "metrics.json", canonical_json(figures))
    write_text(out / "README.md", write_card(figures, model=answers.model, data=paths, out=out))
    folder.finish({"model": answers.model, "accuracy": figures["detectors"][CLASSIFIER]["accuracy"]})
    log.info("%s", table(figures))
    log.info("wrote a classifier of questions with %d terms to %s", len(classifier.terms), out)
    words = ("question=..", "trigger=adaptive", "query=last_sentence", override("trigger.classifier", out))
    log.info("next: %s", command_line("rag", *words))
    return out


def _identity(request: Any, parts: list[Answers]) -> dict[str, Any]:
    """Return the configuration with the inputs named by content."""
    stores, paths = [part.fingerprint for part in parts], [str(part.path) for part in parts]
    one = len(parts) == 1
    config = {key: request.record[key] for key in _USED}
    return config | {"data": paths[0] if one else paths, "inputs": {"store": stores[0] if one else stores}}


def _refuse_unused(request: Any) -> None:
    for option in fields(request):
        default = option.default if option.default_factory is MISSING else option.default_factory()
        used = option.name in (*_USED, "device", "logger", "save_every") or option.name.startswith("_")
        if not used and (value := getattr(request, option.name)) != default:
            message = f"a classifier of questions takes options as head.NAME, not {option.name}={value}"
            raise UserError(f"{message}: leave it out", "conflict")


def _data(given: str | list[str] | None) -> list[Path]:
    """Open the given runs and stores, or the newest complete store with answered questions."""
    if given == []:
        raise UserError("data=[] names no run or store: give a folder, or several", "missing-value")
    if given is not None:
        return [Path(path) for path in ([given] if isinstance(given, str) else given)]
    if (newest := newest_store("cot")) is None:
        remedy = f"'probers-datagen --source cot' makes one, or pass data=FOLDER, also of '{HOW}'"
        raise UserError(f"no store of answered questions exists under runs/: {remedy}", "no-artifact")
    return [newest]


def _split(part: Labelled) -> dict[str, Any]:
    """Count questions and groups, and the strategies' shares."""
    n, counts = len(part.questions), sorted(Counter(part.strategies).items())
    return {"n": n, "groups": len(set(part.groups)), "strategies": {name: k / n for name, k in counts}}


def measure(
    test: Labelled, chances: Mapping[str, np.ndarray], majority: str, *, resamples: int, seed: int
) -> dict[str, Any]:
    """Compute ``metrics.json``, from (n, 3) ``chances`` of classifier and controls on test questions."""
    gold = np.array([STRATEGIES.index(s) for s in test.strategies])
    predicted = {name: rows.argmax(axis=1) for name, rows in chances.items()}
    bootstrap = Bootstrap(test.groups, resamples=resamples, seed=seed)
    right = {CLASSIFIER: predicted[CLASSIFIER] == gold, MAJORITY: gold == STRATEGIES.index(majority)}
    right |= {name: strategies == gold for name, strategies in predicted.items()}
    wrong = (gold > 0).astype(int)
    aurocs, pairs = {}, {}
    if 0 < wrong.sum() < len(wrong):
        # P(some retrieval) minus P(none) as the trigger scores it
        scores = {name: rows[:, 1:].max(axis=1) - rows[:, 0] for name, rows in chances.items()}
        aurocs = {name: bootstrap.interval(s, partial(auroc, wrong)) for name, s in scores.items()}
    for name in list(right)[1:]:
        value, *limits = bootstrap.difference(right[CLASSIFIER], right[name])
        pairs[f"{CLASSIFIER} vs {name}"] = {"accuracy": {"diff": value, "ci95": limits}}
    confusion = np.zeros((len(STRATEGIES), len(STRATEGIES)), dtype=int)
    np.add.at(confusion, (gold, predicted[CLASSIFIER]), 1)
    counts, predictions = confusion.sum(axis=1), confusion.sum(axis=0)
    return {
        "schema": 1, "strategies": list(STRATEGIES), "majority": majority,
        "detectors": {
            name: bootstrap.interval(hits).figures("accuracy") | aurocs.get(name, UNDEFINED).figures("auroc")
            for name, hits in right.items()
        },
        "pairs": pairs,
        "confusion": confusion.tolist(),
        "by_strategy": {
            name: {
                "n": int(counts[i]), "share": float(counts[i] / len(gold)),
                "predicted_share": float(predictions[i] / len(gold)),
                "recall": float(confusion[i, i] / counts[i]) if counts[i] else None,
                "precision": float(confusion[i, i] / predictions[i]) if predictions[i] else None,
            }
            for i, name in enumerate(STRATEGIES)
        },
    }  # fmt: skip


def table(figures: Mapping[str, Any]) -> str:
    """Format the figures as text for the terminal."""
    test, names = figures["splits"]["test"], figures["strategies"]
    task = "cheapest strategy that answers right, told from the question alone"
    lines = [
        f"test: {test['n']} questions, {test['groups']} groups; {task}",
        f"labels: {_sources(figures['labels'])}",
        f"  {'':20}{'accuracy':22}AUROC, no or some retrieval",
    ]
    for name, entry in figures["detectors"].items():
        shown = f"{name} ({figures['majority']})" if name == MAJORITY else name
        lines.append(f"  {shown:20}{bounded(entry, 'accuracy'):22}{bounded(entry, 'auroc')}".rstrip())
    titles = [*(f"said {name}" for name in names), "share", "recall"]
    percent = partial(number, form=".0%", absent="")
    rows = [("cheapest", titles)]
    for name, row in zip(names, figures["confusion"], strict=True):
        entry = figures["by_strategy"][name]
        rows.append((name, [*map(str, row), percent(entry["share"]), percent(entry["recall"])]))
    rows.append(("share", [percent(figures["by_strategy"][name]["predicted_share"]) for name in names]))
    lines += [f"  {head:10}{''.join(f'{cell:>13}' for cell in cells)}".rstrip() for head, cells in rows]
    return "\n".join([*lines, *(f"note: {note}" for note in _notes(figures))])


def _sources(labels: Mapping[str, Any]) -> str:
    """Describe the source of the labels."""
    counted = (f"{e['n']} of {d or 'no data set'} ({e['label']})" for d, e in labels["unanswered"].items())
    none = ", ".join(counted) or "no question"
    if "multi" in labels["tried"]:
        return f"all three strategies were tried (right by {labels['rule']}); none answers {none}"
    return f"several retrievals were not tried; neither strategy answers {none}"


def write_card(figures: Mapping[str, Any], *, model: str, data: Sequence[Path], out: Path) -> str:
    """Write the text of ``README.md``."""
    return render(
        "probers.adaptive/card.md.j2",
        figures=figures, model=public_model(model), data=[public_path(path, "DATA") for path in data],
        out=public_path(out, "CLASSIFIER"), notes=_notes(figures), bounded=bounded,
        tried="multi" in figures["labels"]["tried"],
    )  # fmt: skip


def _notes(figures: Mapping[str, Any]) -> list[str]:
    """List figures that speak against the classifier, one sentence each."""
    notes = list(filter(None, [few_groups(figures["splits"].get("test", {}).get("groups", 0), "test group")]))
    if not figures["pairs"][f"{CLASSIFIER} vs {MAJORITY}"]["accuracy"]["ci95"][0] > 0:
        notes.append(f"it is not shown to be better than saying {figures['majority']!r} of every question")
    if silent := [n for n, e in figures["by_strategy"].items() if e["n"] and not e["predicted_share"]]:
        notes.append(f"it never says {' or '.join(map(repr, silent))}")
    return notes
