"""What a prober has to beat: detectors that never see a hidden state above the embedding.

Each gives one score per example, higher is more likely wrong. Those that learn, learn
from the training examples; thresholds come from validation like the prober's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probers.entropy import SIGNALS

from .data import Examples


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
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = examples.table[column].tolist()
    rows = examples.rows["train"]
    vectorizer = TfidfVectorizer(token_pattern=r"\w+", min_df=2, sublinear_tf=True)
    try:
        vectorizer.fit([texts[i] for i in rows])
    except ValueError:  # no word occurs twice
        vectorizer = TfidfVectorizer(token_pattern=r"\S+").fit([texts[i] or "-" for i in rows])
    return _logistic(examples, name, vectorizer.transform(texts), "tf-idf of its words, logistic regression")


def _category(examples: Examples, name: str, column: str) -> Detector:
    from sklearn.preprocessing import OneHotEncoder

    values = examples.table[[column]].to_numpy()
    encoder = OneHotEncoder(handle_unknown="ignore").fit(values[examples.rows["train"]])
    return _logistic(examples, name, encoder.transform(values), "one-hot, logistic regression")


def _combined(examples: Examples, name: str, *columns: str) -> Detector:
    inputs = examples.table[list(columns)].to_numpy(dtype=float)
    train = inputs[examples.rows["train"]]
    scale = np.where(train.std(axis=0) > 0, train.std(axis=0), 1.0)
    standardised = (inputs - train.mean(axis=0)) / scale
    return _logistic(examples, name, standardised, "all entropy signals, logistic regression")


def _logistic(examples: Examples, name: str, inputs: Any, about: str) -> Detector:
    from sklearn.linear_model import LogisticRegression

    rows = examples.rows["train"]
    model = LogisticRegression(max_iter=1000).fit(inputs[rows], examples.wrong[rows])
    return Detector(name, model.decision_function(inputs), about)


def _rising(examples: Examples, name: str, column: str) -> Detector:
    return Detector(name, examples.table[column].to_numpy(dtype=float), f"{column}, not trained")


def _falling(examples: Examples, name: str, column: str) -> Detector:
    return Detector(name, -examples.table[column].to_numpy(dtype=float), f"minus {column}, not trained")


#: Name -> how it is made, and the columns it needs.
_CONTROLS: dict[str, tuple[Any, ...]] = {
    "bag of words, text": (_bag_of_words, "text"),
    "bag of words, question": (_bag_of_words, "question"),
    "question type": (_category, "question_type"),
    "condition": (_category, "condition"),
    "mean entropy": (_rising, "mean_entropy"),
    "max entropy": (_rising, "max_entropy"),
    "min probability": (_falling, "min_prob"),
    "perplexity": (_falling, "mean_logprob"),
    "RIND maximum": (_rising, "rind_max"),
    "entropies combined": (_combined, *SIGNALS),
}
