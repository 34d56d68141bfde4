"""Baselines without hidden states: detectors of words, categories and numbers, and strata of texts.

A baseline learns from the training rows alone and scores every row: ``events`` (n,) are 1 for rows to be
detected and 0 otherwise, ``train`` has row numbers; the result (n,) is the log-odds of the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: Number of ranges of a number, so that "neither short nor long" is found too.
RANGES = 8


def bag_of_words(texts: Sequence[str], events: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Score n texts by logistic regression on the tf-idf of words in at least two training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", min_df=2, sublinear_tf=True)
    try:
        vectorizer.fit([texts[i] for i in train])
    except ValueError:  # no word occurs twice
        vectorizer = TfidfVectorizer(token_pattern=r"\S+").fit([texts[i] or "-" for i in train])
    return _log_odds(vectorizer.transform(texts), events, train)


def categories(values: np.ndarray, events: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Score one-hot categories (n, columns) by logistic regression; one unseen in training counts as none."""
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(handle_unknown="ignore").fit(values[train])
    return _log_odds(encoder.transform(values), events, train)


def numbers(values: np.ndarray, events: np.ndarray, train: np.ndarray, *, bins: int = 0) -> np.ndarray:
    """Score standardised numbers (n, columns) by logistic regression.

    ``bins`` adds indicators of this many equally filled ranges per column, for non-monotone relations.
    """
    seen = values[train]
    deviation = seen.std(axis=0)
    inputs = [(values - seen.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)]
    for column in range(values.shape[1] if bins else 0):
        borders = np.unique(np.quantile(seen[:, column], np.linspace(0, 1, bins + 1)[1:-1]))
        place = np.searchsorted(borders, values[:, column], side="right")
        inputs.append((place[:, None] == np.arange(len(borders) + 1)).astype(float))
    return _log_odds(np.hstack(inputs), events, train)


def _ranges(table: pd.DataFrame, *of: np.ndarray) -> np.ndarray:
    """Score texts by numeric columns, and by the lengths in characters of others."""
    from pandas.api.types import is_numeric_dtype

    sizes = [c if is_numeric_dtype(c) else c.str.len() for _, c in table.items()]
    return numbers(np.stack([np.asarray(c, dtype=float) for c in sizes], axis=1), *of, bins=RANGES)


_WORDS = ("tf-idf of its words, logistic regression", lambda t, *of: bag_of_words([*t.iloc[:, 0]], *of))
_ONE_HOT = ("one-hot, logistic regression", lambda t, *of: categories(t.to_numpy(), *of))
BY_RANGES = ("numbers and their ranges, logistic regression", _ranges)
#: Baselines of what is known without a model: name -> description, scores (n,) by a table of n texts, their
#: events and training rows; its columns.
OF_TEXT: dict[str, tuple[Any, ...]] = {
    "bag of words, text": (*_WORDS, "text"),
    "bag of words, question": (*_WORDS, "question"),
    "bag of words, answer": (*_WORDS, "answer"),
    "length": (*BY_RANGES, "n_tokens", "answer"),
    "position": (*BY_RANGES, "cut_at", "sentence"),
    "overlap": (*BY_RANGES, "new_words", "new_pairs", "new_values"),
    "question type": (*_ONE_HOT, "question_type"),
    "condition": (*_ONE_HOT, "condition"),
    "writer": (*_ONE_HOT, "writer"),
    "writer and position": (*_ONE_HOT, "writer", "sentence"),
}


def _log_odds(inputs: Any, events: np.ndarray, train: np.ndarray) -> np.ndarray:
    model = logistic_regression(inputs[train], events[train])
    if not isinstance(inputs, np.ndarray):  # sparse
        return model.decision_function(inputs)
    return weighted_sums(inputs, model.coef_[0]) + model.intercept_[0]


def weighted_sums(values: np.ndarray, weights: Any) -> np.ndarray:
    """Compute ``values @ weights`` (n,) of values (n, k), with the same digits for equal rows.

    A matrix product treats the last rows of a block otherwise than the others, so that ties would break.
    """
    return (values * np.asarray(weights)).sum(axis=1)


def logistic_regression(inputs: Any, labels: np.ndarray, *, c: float = 1.0, steps: int = 1000) -> Any:
    """Fit scikit-learn's model to dense or sparse inputs (n, columns); ``c`` is 1 / the L2 penalty."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, max_iter=steps).fit(inputs, labels)


@dataclass(frozen=True, slots=True)
class Strata:
    """Division of n texts into k named strata; ``of`` (n,) has the number of each text's stratum, from 0."""

    names: tuple[str, ...]
    of: np.ndarray

    @classmethod
    def by(cls, values: Sequence[Any] | np.ndarray) -> Strata:
        """Make a stratum of each value, in their order."""
        names, of = np.unique(np.asarray(values).astype(str), return_inverse=True)
        return cls(tuple(map(str, names)), of.reshape(-1))

    @classmethod
    def by_length(cls, lengths: np.ndarray, *, short: bool) -> Strata:
        """Stratify by numbers of tokens (n,): ``short`` by 1 to 4 and more, else in five even ranges."""
        if short:
            return cls.by([f"{n}" if n < 5 else "5+" for n in lengths])
        borders = np.unique(np.quantile(lengths, np.arange(1, 5) / 5))
        of = cls.by(np.searchsorted(borders, lengths, side="left")).of
        ends = [(int(x.min()), int(x.max())) for x in (lengths[of == k] for k in range(of.max() + 1))]
        return cls(tuple(f"{low}" if low == high else f"{low}-{high}" for low, high in ends), of)

    def and_by(self, other: Strata) -> Strata:
        """Cross two divisions of the same texts."""
        pairs, of = np.unique(self.of * len(other.names) + other.of, return_inverse=True)
        rows, columns = np.divmod(pairs, len(other.names))
        names = (f"{self.names[a]} {other.names[b]}" for a, b in zip(rows, columns, strict=True))
        return Strata(tuple(names), of.reshape(-1))

    def counts(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count (k,) the texts of each stratum, and the events among them."""
        n = len(self.names)
        return np.bincount(self.of, minlength=n), np.bincount(self.of[labels == 1], minlength=n)
