"""Classifiers of questions (Adaptive-RAG, Jeong et al. 2024): no retrieval, one, or step by step.

``probers-train head=adaptive`` trains one of words on which strategy answered each question right; any
sequence classifier of transformers can be used as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from .checksums import read_tensors, sealed, unsealed
from .evaluation.baselines import logistic_regression
from .files import digest, write_bytes, write_text
from .types import UserError, first_line

#: From the cheapest to the most expensive, the order of columns of probabilities.
STRATEGIES = ("no", "single", "multi")
_CONFIG, _WEIGHTS = "config.json", "adaptive.safetensors"


class Classifier(Protocol):
    """A classifier of questions: (n, 3) probabilities in the order of :data:`STRATEGIES`."""

    def probabilities(self, questions: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class AdaptiveClassifier:
    """Multinomial logistic regression on the TF-IDF of a question's words and pairs of words.

    It holds V sorted ``terms`` with their ``idf`` (V,), and ``weights`` (k, V) and ``intercepts`` (k,) of the
    strategies that had training questions, which are at ``columns`` of :data:`STRATEGIES`.
    """

    terms: tuple[str, ...]
    idf: np.ndarray
    weights: np.ndarray
    intercepts: np.ndarray
    columns: tuple[int, ...]

    @classmethod
    def fit(
        cls, questions: Sequence[str], strategies: Sequence[str], *, c: float = 1.0, min_count: int = 2
    ) -> AdaptiveClassifier:
        """Train on questions (n,) and the strategy of each; UserError if nothing can be learned from them.

        ``c`` is 1 / the strength of the L2 penalty; terms of fewer than ``min_count`` questions are left out.
        """
        if len(given := sorted(set(strategies))) < 2:
            message = f"the {len(questions)} training questions have the strategies {given}: two are needed"
            raise UserError(message, "labels")
        vectorizer = _vectorizer(min_df=min_count)
        try:
            features = vectorizer.fit_transform(questions)
        except ValueError as error:
            message = f"the training questions have no word in common ({error}): give more"
            raise UserError(message, "labels") from error
        model = logistic_regression(features, np.array([STRATEGIES.index(s) for s in strategies]), c=c)
        # Two classes have one row: the log-odds of the second against the first.
        first = len(model.classes_) - len(model.coef_)
        weights, intercepts = np.pad(model.coef_, ((first, 0), (0, 0))), np.pad(model.intercept_, (first, 0))
        terms, columns = vectorizer.get_feature_names_out().tolist(), model.classes_.tolist()
        return cls(tuple(terms), vectorizer.idf_, weights, intercepts, tuple(columns))

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """Compute (n, 3) probabilities in the order of :data:`STRATEGIES`; rows sum to 1."""
        vectorizer = _vectorizer(vocabulary={term: i for i, term in enumerate(self.terms)})
        vectorizer.idf_ = self.idf
        logits = vectorizer.transform(questions) @ self.weights.T + self.intercepts
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        of_all = np.zeros((len(questions), len(STRATEGIES)))
        of_all[:, self.columns] = chances / chances.sum(axis=1, keepdims=True)
        return of_all

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``adaptive.safetensors``."""
        from safetensors.numpy import save

        folder = Path(folder)
        tensors = {"idf": self.idf, "weights": self.weights, "intercepts": self.intercepts}
        blob = save({name: np.ascontiguousarray(v, dtype=np.float64) for name, v in tensors.items()})
        config = {
            "format": "probers-adaptive", "schema": 1, "weights": digest(blob, 64), "terms": list(self.terms),
            "strategies": [STRATEGIES[column] for column in self.columns],
        }  # fmt: skip
        write_bytes(folder / _WEIGHTS, blob)
        write_text(folder / _CONFIG, sealed(config))  # last: without it there is no classifier

    @classmethod
    def load(cls, folder: str | Path) -> AdaptiveClassifier:
        """Invert :meth:`save`; UserError if there is no classifier, or a damaged one."""
        try:
            config = unsealed(Path(folder, _CONFIG))
            read = read_tensors(Path(folder, _WEIGHTS), config["weights"], "train the classifier again")
            terms, columns = tuple(config["terms"]), tuple(map(STRATEGIES.index, config["strategies"]))
            weights = read["weights"].numpy().reshape(len(columns), len(terms))
            intercepts = read["intercepts"].numpy().reshape(len(columns))
            return cls(terms, read["idf"].numpy(), weights, intercepts, columns)
        except FileNotFoundError:
            message = f"{folder} is not a classifier of questions (no {_CONFIG})"
            raise UserError(f"{message}: 'probers-train head=adaptive' makes one", "no-artifact") from None
        except (ValueError, LookupError, TypeError) as error:
            message = f"the classifier {folder} is damaged ({_CONFIG} {first_line(error)}): train it again"
            raise UserError(message, "damaged") from error


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **options)


class ModelClassifier:
    """A sequence-classification model of transformers as a classifier of questions.

    The ``id2label`` of the model, a path or hub id, must name no, single and multi, or A, B and C. UserError
    for other labels, or a model that needs its own code or a pickle.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from .model.loading import whole

        try:
            # The model first: if it is missing, the tokenizer's error would mislead.
            kind, what = AutoModelForSequenceClassification, f"trigger.classifier={name}"
            self._model = whole(kind, name, what, trust_remote_code=False, use_safetensors=True).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except UserError:
            raise
        except Exception as error:  # a foreign folder can make the libraries raise anything
            cause = first_line(error).rstrip(".")
            message = f"{what} is neither a folder of 'probers-train head=adaptive' nor a"
            raise UserError(f"{message} sequence-classification model ({cause})", "model") from error
        place = {str(label).lower(): int(column) for column, label in self._model.config.id2label.items()}
        names = next((names for names in (STRATEGIES, tuple("abc")) if set(names) == set(place)), None)
        if names is None or sorted(place.values()) != [0, 1, 2]:
            message = f"{what} has the labels {', '.join(map(str, self._model.config.id2label.values()))}"
            raise UserError(
                f"{message}: its id2label must name no, single and multi (or A, B and C)", "model"
            )
        self._columns = [place[name] for name in names]

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """Compute probabilities (n, 3) in the order of :data:`STRATEGIES`."""
        import torch

        rows = []
        with torch.inference_mode():
            for question in questions:  # one at a time: padding would change the last digits
                tokens = self._tokenizer([question], return_tensors="pt", truncation=True)
                logits = self._model(**tokens).logits[0, self._columns]
                rows.append(logits.double().softmax(dim=-1).cpu().numpy())
        return np.array(rows).reshape(-1, len(STRATEGIES))


def load_classifier(name: str) -> Classifier:
    """Load the classifier in a folder of ours, or a model of transformers by path or hub id (UserError)."""
    return AdaptiveClassifier.load(name) if Path(name, _WEIGHTS).exists() else ModelClassifier(name)
