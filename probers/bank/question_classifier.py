"""Classifiers of questions: answer without passages, with one retrieval, or step by step.

Adaptive-RAG (Jeong et al. 2024) decides from the question's text alone. Ours are trained by
``probers-train head=adaptive``; any sequence classifier of transformers may stand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ..checksums import sealed, sha256, unsealed
from ..evaluation.baselines import logistic_regression
from ..files import digest, regular, write_bytes, write_text
from ..options import check_record
from ..types import UserError, first_line

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

#: From the cheapest to the dearest; columns of probabilities have this order.
STRATEGIES = ("no", "single", "multi")
_PAPER = ("A", "B", "C")  # the labels of Adaptive-RAG's classifier, in the same order
_CONFIG, _WEIGHTS = "config.json", "adaptive.safetensors"
_FORMAT, _SCHEMA = "probers-adaptive", 1


@dataclass(frozen=True)
class _Config:
    """The fields of ``config.json`` beside its own checksum.

    Attributes:
        weights: SHA-256 of the file of weights; None in what earlier versions wrote.
    """

    format: str
    schema: int
    weights: str | None
    strategies: tuple[Literal["no", "single", "multi"], ...]
    terms: tuple[str, ...]


class Classifier(Protocol):
    """Anything that knows how probable the strategies are for a question."""

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """(n, 3) in the order of :data:`STRATEGIES`."""
        ...


@dataclass(frozen=True)
class AdaptiveClassifier:
    """Multinomial logistic regression on the TF-IDF of a question's words and pairs of words.

    Attributes:
        terms: words and pairs of words, sorted; V of them.
        idf: (V,) their inverse document frequencies.
        weights: (3, V) one row per strategy.
        intercepts: (3,); minus infinity for a strategy that no training question had.
    """

    terms: tuple[str, ...]
    idf: np.ndarray
    weights: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def fit(
        cls, questions: Sequence[str], strategies: Sequence[str], *, c: float = 1.0, min_count: int = 2
    ) -> AdaptiveClassifier:
        """Train on questions and their strategies.

        Args:
            questions: texts (n,).
            strategies: "no", "single" or "multi" of each.
            c: inverse strength of the L2 penalty.
            min_count: terms of fewer questions are left out.

        Raises:
            UserError: an option out of range, an unknown strategy, fewer than two different ones,
                or no term that is in ``min_count`` questions.
        """
        if not c > 0 or min_count < 1:
            option = f"c={c} must be above 0" if not c > 0 else f"min_count={min_count} must be 1 or more"
            raise UserError(f"head.{option}")
        odd = sorted(set(strategies) - set(STRATEGIES))
        if odd:
            raise UserError(f"unknown strategy {odd[0]!r}: choose among {', '.join(STRATEGIES)}")
        if len(set(strategies)) < 2:
            only = f"all {len(questions)} have {strategies[0]!r}" if strategies else "there are none"
            raise UserError(f"the training questions need two different strategies at least, but {only}")
        vectorizer = _vectorizer(min_df=min_count)
        try:
            features = vectorizer.fit_transform(questions)
        except ValueError as error:
            raise UserError(f"the training questions have no word in common ({error}): give more") from error
        labels = np.array([STRATEGIES.index(s) for s in strategies])
        model = logistic_regression(features, labels, c=c)
        weights = np.zeros((len(STRATEGIES), features.shape[1]))
        intercepts = np.full(len(STRATEGIES), -np.inf)
        # Of two classes there is one row: the log-odds of the second against the first.
        learned = model.classes_ if len(model.classes_) > 2 else model.classes_[1:]
        intercepts[model.classes_] = 0.0
        weights[learned], intercepts[learned] = model.coef_, model.intercept_
        return cls(tuple(vectorizer.get_feature_names_out()), vectorizer.idf_, weights, intercepts)

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """(n, 3) in the order of :data:`STRATEGIES`; rows sum to 1."""
        vectorizer = _vectorizer(vocabulary={term: i for i, term in enumerate(self.terms)})
        vectorizer.idf_ = self.idf
        logits = vectorizer.transform(questions) @ self.weights.T + self.intercepts
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        return found / found.sum(axis=1, keepdims=True)

    def predict(self, questions: Sequence[str]) -> list[str]:
        """The most probable strategy of each; of equally probable ones the cheapest."""
        return [STRATEGIES[i] for i in self.probabilities(questions).argmax(axis=1)]

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``adaptive.safetensors``."""
        from safetensors.numpy import save

        folder = Path(folder)
        present = np.isfinite(self.intercepts)
        tensors = {
            "idf": np.asarray(self.idf, dtype=np.float64),
            "weights": np.asarray(self.weights[present], dtype=np.float64),
            "intercepts": np.asarray(self.intercepts[present], dtype=np.float64),
        }
        strategies = [s for s, there in zip(STRATEGIES, present, strict=True) if there]
        blob = save({k: np.ascontiguousarray(v) for k, v in tensors.items()})
        config = {
            "format": _FORMAT, "schema": _SCHEMA, "weights": digest(blob, 64),
            "strategies": strategies, "terms": list(self.terms),
        }  # fmt: skip
        write_bytes(folder / _WEIGHTS, blob)
        write_text(folder / _CONFIG, sealed(config))  # last: without it there is no classifier

    @classmethod
    def load(cls, folder: str | Path) -> AdaptiveClassifier:
        """Inverse of :meth:`save`.

        Raises:
            UserError: no classifier there, or a damaged one.
        """
        from safetensors import SafetensorError, safe_open

        folder = Path(folder)
        file = folder / _CONFIG
        try:
            config = {"weights": None, **unsealed(file)}
            check_record(_Config, config)
            if (config["format"], config["schema"]) != (_FORMAT, _SCHEMA):
                raise ValueError(f"is no {_FORMAT} of schema {_SCHEMA}")
            rows = [STRATEGIES.index(name) for name in config["strategies"]]
            terms = tuple(config["terms"])
            if len(set(terms)) < len(terms) or len(set(rows)) < len(rows) or not rows:
                raise ValueError("repeats a term or a strategy, or has none")
            file = folder / _WEIGHTS
            regular(file)
            if config["weights"] not in (None, sha256(file)):
                raise ValueError("was altered")
            shapes = {"idf": [len(terms)], "weights": [len(rows), len(terms)], "intercepts": [len(rows)]}
            with safe_open(file, framework="numpy") as tensors:
                for name, shape in shapes.items():
                    there = tensors.get_slice(name)
                    if (there.get_dtype(), there.get_shape()) != ("F64", shape):
                        raise ValueError(f"has {name} of {there.get_shape()}, not of {shape}")
                found = {name: tensors.get_tensor(name) for name in shapes}
            if not all(np.isfinite(numbers).all() for numbers in found.values()):
                raise ValueError("holds a number that is not finite")
            weights = np.zeros((len(STRATEGIES), len(terms)))
            intercepts = np.full(len(STRATEGIES), -np.inf)
            weights[rows], intercepts[rows] = found["weights"], found["intercepts"]
            return cls(terms, found["idf"], weights, intercepts)
        except FileNotFoundError as error:
            raise UserError(
                f"{folder} is no classifier of questions (no {Path(str(error.filename)).name}): "
                "'probers-train head=adaptive' makes one"
            ) from None
        except (ValueError, UserError, SafetensorError) as error:
            reason = f"{file.name} {first_line(error)}"
            raise UserError(f"the classifier {folder} is damaged ({reason}): train it again") from error


class ModelClassifier:
    """A sequence-classification model of transformers as a classifier of questions.

    Args:
        name: path or hub id; its ``id2label`` must name no, single and multi, or A, B and C. Code
            that comes with it is not run, and pickled weights, which can hold code, are not read.

    Raises:
        UserError: there is no such model, it cannot be loaded so, or it has other labels.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            # The model first: of a folder without one the tokenizer's reason says nothing.
            self._model = AutoModelForSequenceClassification.from_pretrained(
                name, trust_remote_code=False, use_safetensors=True
            ).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:  # a foreign folder can make the libraries raise anything
            reason = first_line(error).rstrip(".")
            raise UserError(
                f"trigger.classifier={name} is no folder of 'probers-train head=adaptive', and no "
                f"sequence-classification model either ({reason})"
            ) from error
        self._columns = _columns(self._model.config.id2label, name)

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """(n, 3) in the order of :data:`STRATEGIES`."""
        import torch

        rows = []
        with torch.inference_mode():
            for question in questions:  # one at a time: padding would move the last digits
                inputs = self._tokenizer(question, return_tensors="pt", truncation=True)
                logits = self._model(**inputs).logits[0].double()
                rows.append(logits[self._columns].softmax(dim=-1).numpy())
        return np.stack(rows) if rows else np.empty((0, len(STRATEGIES)))


def _columns(labels: dict[int, str], name: str) -> list[int]:
    """Where a model's logits have the strategies, in their order."""
    place = {str(label).lower(): int(column) for column, label in labels.items()}
    for names in (STRATEGIES, _PAPER):
        wanted = [each.lower() for each in names]
        if set(wanted) == set(place) and sorted(place.values()) == list(range(len(names))):
            return [place[each] for each in wanted]
    raise UserError(
        f"trigger.classifier={name} has the labels {', '.join(map(str, labels.values()))}: "
        "its id2label must name no, single and multi (or A, B and C)"
    )


def load_classifier(name: str) -> Classifier:
    """The classifier in a folder of ours, or else a model of transformers by path or hub id.

    Raises:
        UserError: neither is there.
    """
    return AdaptiveClassifier.load(name) if (Path(name) / _WEIGHTS).exists() else ModelClassifier(name)


def _vectorizer(**options: Any) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **options)
