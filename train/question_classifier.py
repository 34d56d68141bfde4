"""``probers-train head=adaptive``: a classifier of questions, trained on which strategy answered right.

As a store of ``probers-datagen --source cot`` says (Adaptive-RAG, Jeong et al. 2024): "no" where
the closed-book answer is right, else "single" where the answer with passages is, else "multi".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig

from probers.bank.question_classifier import STRATEGIES
from probers.commands.config import compose
from probers.commands.parts import build, record_of
from probers.commands.runs import RunFolder, newest_store
from probers.data.overlap import Seen
from probers.evaluation.bootstrap import Bootstrap
from probers.evaluation.metrics import auroc
from probers.files import canonical_json, write_text
from probers.pages import public_model, public_path, render
from probers.store.files import fingerprint
from probers.store.store import FeatureStore
from probers.types import SPLITS, UserError

from .controls import SHUFFLED
from .evaluate import as_figures
from .tables import bounded, number

#: ``_target_`` of the head by which ``probers-train`` knows that it is meant.
TARGET = "probers.bank.question_classifier.AdaptiveClassifier.fit"
_USED = ("data", "out", "suffix", "head", "resamples", "seed", "overwrite", "wait", "checksums")

#: What the figures are of.
CLASSIFIER, MAJORITY = "classifier", "majority"


def run(cfg: DictConfig) -> Path:
    """Train the classifier on a store's questions, measure it on its test questions; returns its folder.

    Raises:
        UserError: before anything is written, for whatever is wrong with the request.
    """
    _refuse_unused(cfg)
    path = _store(cfg.data)
    print(f"reading {path}", flush=True)
    store = FeatureStore.open(path, checksums=cfg.checksums)
    labelled = strategies_of(store)
    for split in ("train", "test"):
        if split not in labelled:
            raise UserError(f"the store {path} has no {split} question answered without and with passages")
    train, test = labelled["train"], labelled["test"]
    classifier = build(cfg.head, train.questions, train.strategies)
    name = ",".join([f"{path.name}-adaptive", *filter(None, [cfg.suffix])])
    out = Path(cfg.out or Path("runs/train", name))
    config = {key: record_of(cfg)[key] for key in _USED}
    config |= {"data": str(path), "inputs": {"store": fingerprint(path)}}
    folder = RunFolder(out, "train", config)
    if not folder.begin(what="classifier"):
        return out
    drawn = np.random.default_rng(cfg.seed).permutation(train.strategies).tolist()
    shuffled = build(cfg.head, train.questions, drawn)
    majority = Counter(train.strategies).most_common(1)[0][0]
    figures = measure(
        test, classifier.probabilities(test.questions), shuffled.probabilities(test.questions), majority,
        resamples=cfg.resamples, seed=cfg.seed,
    )  # fmt: skip
    figures["splits"] = {name: _split(part) for name, part in sorted(labelled.items())}
    _seen(store).save(out)
    classifier.save(out)
    write_text(out / "metrics.json", canonical_json(figures))
    write_text(out / "README.md", write_card(figures, model=store.spec.model.id, data=path, out=out))
    folder.finish({"model": store.spec.model.id, "accuracy": figures["detectors"][CLASSIFIER]["accuracy"]})
    print(table(figures))
    print(f"wrote a classifier of questions with {len(classifier.terms)} terms to {out}")
    print(f'next: probers-rag question="..." trigger=adaptive query=last_sentence trigger.classifier={out}')
    return out


def _refuse_unused(cfg: DictConfig) -> None:
    defaults = compose("train", [])
    for key in map(str, defaults):
        if key not in (*_USED, "device", "logger", "save_every") and cfg[key] != defaults[key]:
            raise UserError(
                f"head=adaptive is fitted in one go to the words of the store's own training questions, and "
                f"{key}={cfg[key]} means nothing there: leave it out"
            )


def _store(given: Any) -> Path:
    """The store to read: the one given, or the newest complete one with answered questions."""
    if given is not None:
        if not isinstance(given, str):
            raise UserError(
                f"data={list(given)}: head=adaptive reads one store; FeatureStore.merge joins several"
            )
        return Path(given)
    found = newest_store("cot")
    if found is None:
        raise UserError(
            "head=adaptive needs a store of answered questions and there is none under runs/: "
            "'probers-datagen --source cot' makes one, or pass data=FOLDER"
        )
    return found


class Labelled(NamedTuple):
    """Questions (n) with the cheapest strategy that answers each right, and the groups they are of."""

    questions: list[str]
    strategies: list[str]
    groups: list[str]


def strategies_of(store: FeatureStore) -> dict[str, Labelled]:
    """Questions and the cheapest strategy that answers each right, by split.

    Args:
        store: of ``probers-datagen --source cot``, with both conditions.

    Returns:
        The questions of each split; those without both conditions are left out.

    Raises:
        UserError: no question has both conditions.
    """
    right: dict[tuple[str, str], dict[str, Any]] = {}
    columns = ["id", "group", "split", "question", "condition", "correct"]
    for table in store.tables(columns) if store.spec.position == "generated" else ():
        for id, group, split, question, condition, correct in table.itertuples(index=False):
            entry = right.setdefault((id.rpartition("/")[0], split), {"text": question, "group": group})
            entry[condition] = bool(correct)
    found: dict[str, Labelled] = {}
    for (_, split), entry in right.items():
        if not {"closed_book", "with_passages"} <= set(entry):
            continue
        strategy = "no" if entry["closed_book"] else "single" if entry["with_passages"] else "multi"
        labelled = found.setdefault(split, Labelled([], [], []))
        for column, value in zip(labelled, (entry["text"], strategy, entry["group"]), strict=True):
            column.append(str(value))
    if not found:
        raise UserError(
            f"the store {store.path} has no question that was answered both without and with passages: "
            "make one with 'probers-datagen --source cot'"
        )
    return found


def _seen(store: FeatureStore) -> Seen:
    """The groups and questions of each split."""
    found: dict[str, list[tuple[str, str, str]]] = {split: [] for split in SPLITS}
    for table in store.tables():
        columns = [table.get(name, [""] * len(table)) for name in ("dataset", "group", "question")]
        for split, *text in zip(table["split"], *columns, strict=True):
            found[split].append(tuple(text))
    return Seen.of(found)


def _split(part: Labelled) -> dict[str, Any]:
    """Numbers of questions and groups, and the strategies' shares."""
    n, counts = len(part.questions), Counter(part.strategies)
    shares = {name: count / n for name, count in sorted(counts.items())}
    return {"n": n, "groups": len(set(part.groups)), "strategies": shares}


def measure(
    test: Labelled, chances: np.ndarray, shuffled: np.ndarray, majority: str, *, resamples: int, seed: int
) -> dict[str, Any]:
    """The figures of ``metrics.json`` on test questions.

    Args:
        test: the questions with their strategies.
        chances: (n, 3) probabilities of the classifier.
        shuffled: (n, 3) those of one trained on shuffled labels.
        majority: the most frequent strategy of the training questions.
        resamples: of the bootstrap over groups.
        seed: of its draws.
    """
    gold = np.array([STRATEGIES.index(s) for s in test.strategies])
    predicted = chances.argmax(axis=1)
    bootstrap = Bootstrap(test.groups, resamples=resamples, seed=seed)
    right = {
        CLASSIFIER: predicted == gold,
        MAJORITY: gold == STRATEGIES.index(majority),
        SHUFFLED: shuffled.argmax(axis=1) == gold,
    }
    wrong = (gold > 0).astype(int)
    scores = {CLASSIFIER: _score(chances), SHUFFLED: _score(shuffled)} if 0 < wrong.sum() < len(wrong) else {}
    aurocs = {name: bootstrap.interval(each, partial(auroc, wrong)) for name, each in scores.items()}
    pairs = {}
    for name in (MAJORITY, SHUFFLED):
        found = bootstrap.difference(right[CLASSIFIER], right[name])
        pair = {"diff": found.value, "ci95": [found.low, found.high]}
        pairs[f"{CLASSIFIER} vs {name}"] = {"accuracy": pair}
    confusion = np.zeros((len(STRATEGIES), len(STRATEGIES)), dtype=int)
    np.add.at(confusion, (gold, predicted), 1)
    return {
        "schema": 1, "strategies": list(STRATEGIES), "majority": majority,
        "detectors": {
            name: as_figures("accuracy", bootstrap.interval(hits)) | as_figures("auroc", aurocs.get(name))
            for name, hits in right.items()
        },
        "pairs": pairs,
        "confusion": confusion.tolist(),
        "by_strategy": {
            name: {
                "n": int(confusion[i].sum()), "share": float(confusion[i].sum() / len(gold)),
                "predicted_share": float(confusion[:, i].sum() / len(gold)),
                "recall": _ratio(confusion[i, i], confusion[i].sum()),
                "precision": _ratio(confusion[i, i], confusion[:, i].sum()),
            }
            for i, name in enumerate(STRATEGIES)
        },
    }  # fmt: skip


def _score(chances: np.ndarray) -> np.ndarray:
    """How much more probable retrieving is than not, as the trigger has it; (n,) of (n, 3)."""
    return np.max(chances[:, 1:], axis=1) - chances[:, 0]


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def table(figures: Mapping[str, Any]) -> str:
    """The figures as text for the terminal."""
    test, names = figures["splits"]["test"], figures["strategies"]
    lines = [
        f"test: {test['n']} questions, {test['groups']} groups; cheapest strategy that answers right, told "
        "from the question alone",
        f"  {'':20}{'accuracy':22}AUROC, no or some retrieval",
    ]
    for name, entry in figures["detectors"].items():
        shown = f"{name} ({figures['majority']})" if name == MAJORITY else name
        lines.append(f"  {shown:20}{bounded(entry, 'accuracy'):22}{bounded(entry, 'auroc')}".rstrip())
    titles = [*(f"said {name}" for name in names), "share", "recall"]
    lines.append(f"  {'cheapest':10}" + "".join(f"{title:>13}" for title in titles))
    for name, row in zip(names, figures["confusion"], strict=True):
        entry = figures["by_strategy"][name]
        cells = [*map(str, row), _percent(entry["share"]), _percent(entry["recall"])]
        lines.append(f"  {name:10}" + "".join(f"{cell:>13}" for cell in cells).rstrip())
    said = [_percent(figures["by_strategy"][name]["predicted_share"]) for name in names]
    lines.append(f"  {'share':10}" + "".join(f"{share:>13}" for share in said))
    return "\n".join([*lines, *(f"note: {note}" for note in _notes(figures))])


def write_card(figures: Mapping[str, Any], *, model: str, data: Path, out: Path) -> str:
    """The text of ``README.md``."""
    return render(
        "probers.train/question_classifier.md.j2",
        figures=figures, model=public_model(model), data=public_path(data, "STORE"),
        out=public_path(out, "CLASSIFIER"), notes=_notes(figures), bounded=bounded,
    )  # fmt: skip


def _percent(value: float | None) -> str:
    return number(value, ".0%", absent="")


def _notes(figures: Mapping[str, Any]) -> list[str]:
    """What in the figures speaks against the classifier."""
    found: list[str] = []
    low = figures["pairs"][f"{CLASSIFIER} vs {MAJORITY}"]["accuracy"]["ci95"][0]
    if not low > 0:
        found.append(f"it is not shown to be better than saying {figures['majority']!r} of every question")
    silent = [n for n, e in figures["by_strategy"].items() if e["n"] and not e["predicted_share"]]
    if silent:
        found.append(f"it never says {' or '.join(map(repr, silent))}")
    return found
