"""``probers-train head=adaptive``: a classifier of questions, trained on which strategy answered right."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from probers.files import write_text
from probers.manifest import fingerprint
from probers.parts import build, plain
from probers.runs import RunFolder, canonical_json
from probers.types import UserError

from .adaptive_card import CLASSIFIER, MAJORITY, SHUFFLED, table, write_card
from .evaluate import as_figures

if TYPE_CHECKING:
    from probers.bootstrap import Bootstrap, Interval

    from .strategies import Labelled

#: ``_target_`` of the head by which ``probers-train`` knows that it is meant.
TARGET = "probers.adaptive.AdaptiveClassifier.fit"
_USED = ("data", "out", "suffix", "head", "resamples", "seed", "overwrite")


def run(cfg: DictConfig) -> Path:
    """Train the classifier on a store's questions, measure it on its test questions; returns its folder.

    Raises:
        UserError: before anything is written, for whatever is wrong with the request.
    """
    from probers.store import FeatureStore

    from .strategies import strategies_of

    _refuse_unused(cfg)
    if cfg.resamples < 100:
        raise UserError(f"resamples={cfg.resamples} is too few for a 95% interval: give 100 or more")
    path = _store(cfg.data)
    print(f"reading {path}", flush=True)
    store = FeatureStore.open(path)
    labelled = strategies_of(store)
    for split in ("train", "test"):
        if split not in labelled:
            raise UserError(f"the store {path} has no {split} question answered without and with passages")
    train, test = labelled["train"], labelled["test"]
    classifier = build(cfg.head, train.questions, train.strategies)
    name = ",".join([f"{path.name}-adaptive", *filter(None, [cfg.suffix])])
    out = Path(cfg.out or Path("runs/train", name))
    config = {key: plain(cfg)[key] for key in _USED}
    config |= {"data": str(path), "inputs": {"store": fingerprint(path)}}
    folder = RunFolder(out, "train", config)
    if not folder.begin(overwrite=cfg.overwrite, what="classifier"):
        return out
    drawn = np.random.default_rng(cfg.seed).permutation(train.strategies).tolist()
    shuffled = build(cfg.head, train.questions, drawn)
    majority = Counter(train.strategies).most_common(1)[0][0]
    figures = measure(
        test,
        classifier.probabilities(test.questions),
        shuffled.probabilities(test.questions),
        majority,
        resamples=cfg.resamples,
        seed=cfg.seed,
    )
    figures["splits"] = {name: _split(part) for name, part in sorted(labelled.items())}
    classifier.save(out)
    write_text(out / "metrics.json", canonical_json(figures))
    write_text(out / "README.md", write_card(figures, model=store.spec.model.id, data=path, out=out))
    folder.finish({"model": store.spec.model.id, "accuracy": figures["detectors"][CLASSIFIER]["accuracy"]})
    print(table(figures))
    print(f"wrote a classifier of questions with {len(classifier.terms)} terms to {out}")
    print(f'next: probers-rag question="..." trigger=adaptive query=last_sentence trigger.classifier={out}')
    return out


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
    from probers.adaptive import STRATEGIES
    from probers.bootstrap import Bootstrap

    gold = np.array([STRATEGIES.index(s) for s in test.strategies])
    predicted = chances.argmax(axis=1)
    bootstrap = Bootstrap(test.groups, resamples=resamples, seed=seed)
    right = {
        CLASSIFIER: predicted == gold,
        MAJORITY: gold == STRATEGIES.index(majority),
        SHUFFLED: shuffled.argmax(axis=1) == gold,
    }
    scores = {CLASSIFIER: _score(chances), SHUFFLED: _score(shuffled)}
    confusion = np.zeros((len(STRATEGIES), len(STRATEGIES)), dtype=int)
    np.add.at(confusion, (gold, predicted), 1)
    return {
        "schema": 1, "strategies": list(STRATEGIES), "majority": majority,
        "detectors": {
            name: as_figures("accuracy", bootstrap.interval(hits)) | _auroc(bootstrap, gold, scores.get(name))
            for name, hits in right.items()
        },
        "pairs": {
            f"{CLASSIFIER} vs {name}": _difference(bootstrap.difference(right[CLASSIFIER], right[name]))
            for name in (MAJORITY, SHUFFLED)
        },
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


def _refuse_unused(cfg: DictConfig) -> None:
    from probers.composing import compose

    defaults = compose("train", [])
    for key in map(str, defaults):
        if key not in (*_USED, "device", "logger", "save_every") and cfg[key] != defaults[key]:
            raise UserError(
                f"head=adaptive is fitted in one go to the words of the store's own training questions, and "
                f"{key}={cfg[key]} means nothing there: leave it out"
            )


def _store(given: Any) -> Path:
    """The store to read: the one given, or the newest complete one with answered questions."""
    from probers.finding import newest_store

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


def _score(chances: np.ndarray) -> np.ndarray:
    """How much more probable retrieving is than not, as the trigger has it; (n,) of (n, 3)."""
    return np.max(chances[:, 1:], axis=1) - chances[:, 0]


def _auroc(bootstrap: Bootstrap, gold: np.ndarray, scores: np.ndarray | None) -> dict[str, Any]:
    """Of finding the questions whose closed-book answer is wrong; null where all or none are."""
    from probers.metrics import auroc

    wrong = (gold > 0).astype(int)
    if scores is None or len(set(wrong)) < 2:
        return {"auroc": None, "auroc_ci": None}
    return as_figures("auroc", bootstrap.interval(scores, partial(auroc, wrong)))


def _difference(found: Interval) -> dict[str, Any]:
    return {"accuracy": {"diff": found.value, "ci95": [found.low, found.high]}}


def _ratio(part: int, whole: int) -> float | None:
    return float(part / whole) if whole else None


def _split(part: Labelled) -> dict[str, Any]:
    """Numbers of questions and groups, and the strategies' shares."""
    n, counts = len(part.questions), Counter(part.strategies)
    shares = {name: count / n for name, count in sorted(counts.items())}
    return {"n": n, "groups": len(set(part.groups)), "strategies": shares}
