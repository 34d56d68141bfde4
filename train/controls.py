"""What a prober has to beat: detectors that never see a hidden state above the embedding.

Each gives one score per example, higher is more likely wrong. Those that learn, learn
from the training examples; thresholds come from validation like the prober's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from pandas.api.types import is_numeric_dtype

from probers.evaluation.baselines import RANGES, bag_of_words, categories, numbers
from probers.store.files import COLUMNS
from probers.uncertainty import SIGNALS

from .data import Examples

#: Names of the prober's scores and of the controls that are heads themselves, as tables show them.
ENSEMBLE, WITH_ENTROPY = "all layers", "all layers + entropy"
EMBEDDING, SHUFFLED = "embedding layer", "shuffled labels"


@dataclass(frozen=True, slots=True)
class Detector:
    """Scores of one method on every example of the store.

    Attributes:
        name: as shown in tables.
        scores: (N,) higher is more likely wrong; those of training examples may be too sure.
        about: how they are made, in a few words.
        probability: calibrated P(wrong) of scores; None has it fitted on validation.
        threshold: fires above it; None has it chosen on validation.
        wrong: (N,) labels to measure it against; None is the true ones.
    """

    name: str
    scores: np.ndarray
    about: str
    probability: Callable[[np.ndarray], np.ndarray] | None = None
    threshold: float | None = None
    wrong: np.ndarray | None = None


def control_detectors(examples: Examples) -> tuple[list[Detector], list[str]]:
    """Every control that the store's columns allow, and notes on those they do not."""
    found: list[Detector] = [_majority(examples)]
    notes: list[str] = []
    for name, (make, *columns) in _CONTROLS.items():
        if any(c not in COLUMNS and c not in examples.table for c in columns):
            continue  # of another source
        problem = next((p for c in columns if (p := _unusable(examples, c))), None)
        if problem:
            notes.append(f"control {name!r} left out: {problem}")
        else:
            found.append(make(examples, name, *columns))
    return found, notes


def _unusable(examples: Examples, column: str) -> str | None:
    """Why a column cannot serve, or None."""
    if column not in examples.table:
        return f"the store has no column {column}"
    values = examples.column(column, "train")
    return f"{column} is the same in all training examples" if len(set(values)) == 1 else None


def _majority(examples: Examples) -> Detector:
    train = examples.wrong[examples.rows["train"]]
    rate = float(train.mean())
    return Detector(
        "majority", np.full(len(examples.table), rate), "the more frequent training label, always",
        probability=lambda s: np.asarray(s), threshold=0.5,
    )  # fmt: skip


def _bag_of_words(examples: Examples, name: str, column: str) -> Detector:
    scores = bag_of_words(examples.table[column].tolist(), examples.wrong, examples.rows["train"])
    return Detector(name, scores, "tf-idf of its words, logistic regression")


def _category(examples: Examples, name: str, column: str) -> Detector:
    scores = categories(examples.table[[column]].to_numpy(), examples.wrong, examples.rows["train"])
    return Detector(name, scores, "one-hot, logistic regression")


def _numbers(examples: Examples, name: str, *columns: str) -> Detector:
    """From numeric columns, and from the lengths of texts in characters."""
    table = examples.table[list(columns)]
    sizes = [c if is_numeric_dtype(c) else c.str.len() for _, c in table.items()]
    values = np.stack([np.asarray(c, dtype=float) for c in sizes], axis=1)
    scores = numbers(values, examples.wrong, examples.rows["train"], bins=RANGES)
    return Detector(name, scores, "numbers and their ranges, logistic regression")


def _combined(examples: Examples, name: str, *columns: str) -> Detector:
    values = examples.table[list(columns)].to_numpy(dtype=float)
    scores = numbers(values, examples.wrong, examples.rows["train"])
    return Detector(name, scores, "all entropy signals, logistic regression")


def _rising(examples: Examples, name: str, column: str) -> Detector:
    return Detector(name, examples.table[column].to_numpy(dtype=float), f"{column}, not trained")


def _falling(examples: Examples, name: str, column: str) -> Detector:
    return Detector(name, -examples.table[column].to_numpy(dtype=float), f"minus {column}, not trained")


def _sequence(examples: Examples, name: str, *columns: str) -> Detector:
    """Minus log p(text): the mean over its tokens times their number."""
    mean, count = (examples.table[column].to_numpy(dtype=float) for column in columns)
    return Detector(name, -mean * count, "minus the sum of the tokens' log-probabilities, not trained")


#: Name -> how it is made, and the columns it needs.
_CONTROLS: dict[str, tuple[Any, ...]] = {
    "bag of words, text": (_bag_of_words, "text"),
    "bag of words, question": (_bag_of_words, "question"),
    "bag of words, answer": (_bag_of_words, "answer"),
    "length": (_numbers, "n_tokens", "answer"),
    "position": (_numbers, "cut_at", "sentence"),
    "question type": (_category, "question_type"),
    "condition": (_category, "condition"),
    "mean entropy": (_rising, "mean_entropy"),
    "max entropy": (_rising, "max_entropy"),
    "min probability": (_falling, "min_prob"),
    "perplexity": (_falling, "mean_logprob"),
    "sequence log-prob": (_sequence, "mean_logprob", "n_tokens"),
    "RIND maximum": (_rising, "rind_max"),
    "entropies combined": (_combined, *SIGNALS),
}
