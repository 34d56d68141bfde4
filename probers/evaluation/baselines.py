"""Detectors that read words, categories or numbers and never a hidden state.

Each learns from the training rows alone and scores every row. ``events`` (n,) are 1
for what is to be detected and 0 otherwise, ``train`` are row numbers; the result (n,)
is the log-odds of the event, above 0 where it is thought likelier than not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Ranges a number is usefully cut into, so that "neither short nor long" is found too.
RANGES = 8


def bag_of_words(texts: Sequence[str], events: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Logistic regression on the tf-idf of n texts' words, of those that two training texts have."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", min_df=2, sublinear_tf=True)
    try:
        vectorizer.fit([texts[i] for i in train])
    except ValueError:  # no word occurs twice
        vectorizer = TfidfVectorizer(token_pattern=r"\S+").fit([texts[i] or "-" for i in train])
    return _log_odds(vectorizer.transform(texts), events, train)


def categories(values: np.ndarray, events: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Logistic regression on one-hot categories (n, columns); a category unseen in training is none."""
    from sklearn.preprocessing import OneHotEncoder

    encoder = OneHotEncoder(handle_unknown="ignore").fit(values[train])
    return _log_odds(encoder.transform(values), events, train)


def numbers(values: np.ndarray, events: np.ndarray, train: np.ndarray, *, bins: int = 0) -> np.ndarray:
    """Logistic regression on standardised numbers (n, columns).

    Args:
        values: of every row.
        events: as above.
        train: as above.
        bins: how many indicators of equally filled ranges to add per column, so that a relation
            need not be monotone; 0 has none.
    """
    seen = values[train]
    scale = np.where(seen.std(axis=0) > 0, seen.std(axis=0), 1.0)
    inputs = [(values - seen.mean(axis=0)) / scale]
    for column in range(values.shape[1] if bins else 0):
        borders = np.unique(np.quantile(seen[:, column], np.linspace(0, 1, bins + 1)[1:-1]))
        place = np.searchsorted(borders, values[:, column], side="right")
        inputs.append((place[:, None] == np.arange(len(borders) + 1)).astype(float))
    return _log_odds(np.hstack(inputs), events, train)


def _log_odds(inputs: Any, events: np.ndarray, train: np.ndarray) -> np.ndarray:
    return logistic_regression(inputs[train], events[train]).decision_function(inputs)


def logistic_regression(inputs: Any, labels: np.ndarray, *, c: float = 1.0, steps: int = 1000) -> Any:
    """scikit-learn's fitted model, with an L2 penalty: the one place where logistic regression is fitted.

    Args:
        inputs: (n, columns), dense or sparse.
        labels: (n,) classes.
        c: inverse strength of the penalty.
        steps: iterations at most.
    """
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, max_iter=steps).fit(inputs, labels)
