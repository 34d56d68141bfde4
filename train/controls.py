"""Baselines of a prober: detectors that see no hidden state above the embedding.

Each gives one score per example, higher is more likely wrong. Trained ones are fitted on the
training examples; thresholds come from validation, like the prober's.
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

#: Names in tables of the prober's scores and of the controls that are heads.
ENSEMBLE, WITH_ENTROPY = "all layers", "all layers + entropy"
EMBEDDING, SHUFFLED = "embedding layer", "shuffled labels"


@dataclass(frozen=True, slots=True)
class Detector:
    """Scores of one method on every example of the store.

    Attributes:
        name: as shown in tables.
        scores: (N,) higher is more likely wrong; overconfident on training examples.
        about: short description of the method.
        probability: calibrated P(wrong) of scores; None: fitted on validation.
        threshold: fires above it; None: chosen on validation.
        wrong: (N,) labels to measure against; None: the true ones.
    """

    name: str
    scores: np.ndarray
    about: str
    probability: Callable[[np.ndarray], np.ndarray] | None = None
    threshold: float | None = None
    wrong: np.ndarray | None = None


def control_detectors(examples: Examples) -> tuple[list[Detector], list[str]]:
    """Compute every control that the columns of the store allow; notes name those left out."""
    rate = float(examples.wrong[examples.rows["train"]].mean())
    found = [
        Detector(
            "majority", np.full(len(examples.table), rate), "the more frequent training label, always",
            probability=np.asarray, threshold=0.5,
        )
    ]  # fmt: skip
    notes: list[str] = []
    for name, (about, scores, *columns) in _CONTROLS.items():
        if any(c not in COLUMNS and c not in examples.table for c in columns):
            continue  # of another source
        problem = next((p for c in columns if (p := _unusable(examples, c))), None)
        if problem:
            notes.append(f"control {name!r} left out: {problem}")
        else:
            found.append(Detector(name, scores(examples, *columns), about))
    return found, notes


def _unusable(examples: Examples, column: str) -> str | None:
    """Reason against using a column, or None."""
    if column not in examples.table:
        return f"the store has no column {column}"
    if examples.table[column].isna().any():
        return f"the store has no {column}, for its model was run without attention"
    values = examples.column(column, "train")
    return f"{column} is the same in all training examples" if len(set(values)) == 1 else None


def _bag_of_words(examples: Examples, column: str) -> np.ndarray:
    return bag_of_words(examples.table[column].tolist(), examples.wrong, examples.rows["train"])


def _category(examples: Examples, column: str) -> np.ndarray:
    return categories(examples.table[[column]].to_numpy(), examples.wrong, examples.rows["train"])


def _numbers(examples: Examples, *columns: str) -> np.ndarray:
    """Scores from numeric columns and from the lengths of texts in characters."""
    table = examples.table[list(columns)]
    sizes = [c if is_numeric_dtype(c) else c.str.len() for _, c in table.items()]
    values = np.stack([np.asarray(c, dtype=float) for c in sizes], axis=1)
    return numbers(values, examples.wrong, examples.rows["train"], bins=RANGES)


def _combined(examples: Examples, *columns: str) -> np.ndarray:
    values = examples.table[list(columns)].to_numpy(dtype=float)
    return numbers(values, examples.wrong, examples.rows["train"])


def _rising(examples: Examples, column: str) -> np.ndarray:
    return examples.table[column].to_numpy(dtype=float)


def _falling(examples: Examples, column: str) -> np.ndarray:
    return -_rising(examples, column)


def _sequence(examples: Examples, mean: str, count: str) -> np.ndarray:
    """Minus log p(text): the mean over its tokens times their number."""
    return _falling(examples, mean) * _rising(examples, count)


_WORDS = ("tf-idf of its words, logistic regression", _bag_of_words)
_RANGES = ("numbers and their ranges, logistic regression", _numbers)
_ONE_HOT = ("one-hot, logistic regression", _category)
#: Name -> description, scoring function, and the columns it needs.
_CONTROLS: dict[str, tuple[Any, ...]] = {
    "bag of words, text": (*_WORDS, "text"),
    "bag of words, question": (*_WORDS, "question"),
    "bag of words, answer": (*_WORDS, "answer"),
    "length": (*_RANGES, "n_tokens", "answer"),
    "position": (*_RANGES, "cut_at", "sentence"),
    "question type": (*_ONE_HOT, "question_type"),
    "condition": (*_ONE_HOT, "condition"),
    "mean entropy": ("mean_entropy, not trained", _rising, "mean_entropy"),
    "max entropy": ("max_entropy, not trained", _rising, "max_entropy"),
    "min probability": ("minus min_prob, not trained", _falling, "min_prob"),
    "perplexity": ("minus mean_logprob, not trained", _falling, "mean_logprob"),
    "sequence log-prob": (
        "minus the sum of the tokens' log-probabilities, not trained", _sequence, "mean_logprob", "n_tokens",
    ),
    "RIND maximum": ("rind_max, not trained", _rising, "rind_max"),
    "entropies combined": ("all entropy signals, logistic regression", _combined, *SIGNALS),
}  # fmt: skip
