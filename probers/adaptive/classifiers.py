"""Classifiers of questions: answer without passages, with one retrieval, or step by step.

Adaptive-RAG (Jeong et al. 2024) decides by the question's text alone. ``probers-train head=adaptive``
trains a classifier of words, ``head=adaptive_t5`` a T5 that writes A, B or C, like the paper's. Any such
model of transformers and any sequence classifier can be used as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from ..checksums import check, sealed, sha256, take, unsealed
from ..evaluation.baselines import logistic_regression
from ..files import digest, regular, write_bytes, write_text, writing
from ..options import check_record
from ..types import UserError, first_line

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from torch import Tensor

#: From the cheapest to the most expensive, the order of columns of probabilities.
STRATEGIES = ("no", "single", "multi")
LETTERS = ("A", "B", "C")  # the labels of Adaptive-RAG's classifier, in the same order
#: Sizes and checksums of a fine-tuned model's files, beside them.
MODEL_FILE = "adaptive.json"
_CONFIG, _WEIGHTS = "config.json", "adaptive.safetensors"
_FORMAT, _SCHEMA = "probers-adaptive", 1
_MODEL_FORMAT = "probers-adaptive-model"


@dataclass(frozen=True)
class _Config:
    """The fields of ``config.json`` besides its checksum; earlier versions wrote no SHA-256 of weights."""

    format: str
    schema: int
    weights: str | None
    strategies: tuple[Literal["no", "single", "multi"], ...]
    terms: tuple[str, ...]


class Classifier(Protocol):
    """A classifier of questions: (n, 3) probabilities in the order of :data:`STRATEGIES`."""

    def probabilities(self, questions: Sequence[str]) -> np.ndarray: ...


@dataclass(frozen=True)
class AdaptiveClassifier:
    """Multinomial logistic regression on the TF-IDF of a question's words and pairs of words.

    Attributes:
        terms: words and pairs of words, sorted; V of them.
        idf: (V,) their inverse document frequencies.
        weights, intercepts: (3, V) and (3,), a row per strategy; an intercept is minus infinity for a
            strategy without training questions.
    """

    terms: tuple[str, ...]
    idf: np.ndarray
    weights: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def fit(
        cls, questions: Sequence[str], strategies: Sequence[str], *, c: float = 1.0, min_count: int = 2
    ) -> AdaptiveClassifier:
        """Train on questions (n,) and the strategy of each; UserError if nothing can be learned from them.

        ``c`` is 1 / the strength of the L2 penalty; terms of fewer than ``min_count`` questions are left out.
        """
        if not c > 0 or min_count < 1:
            option = f"c={c} must be above 0" if not c > 0 else f"min_count={min_count} must be 1 or more"
            raise UserError(f"head.{option}")
        if odd := sorted(set(strategies) - set(STRATEGIES)):
            told = f"unknown strategy {odd[0]!r}: choose among {', '.join(STRATEGIES)}"
            raise UserError(told, "unknown-choice")
        if len(set(strategies)) < 2:
            only = f"all {len(questions)} have {strategies[0]!r}" if strategies else "there are none"
            told = f"the training questions need at least two different strategies, but {only}"
            raise UserError(told, "labels")
        vectorizer = _vectorizer(min_df=min_count)
        try:
            features = vectorizer.fit_transform(questions)
        except ValueError as error:
            told = f"the training questions have no word in common ({error}): give more"
            raise UserError(told, "labels") from error
        labels = np.array([STRATEGIES.index(s) for s in strategies])
        model = logistic_regression(features, labels, c=c)
        weights = np.zeros((len(STRATEGIES), features.shape[1]))
        intercepts = np.full(len(STRATEGIES), -np.inf)
        # Two classes have one row: the log-odds of the second against the first.
        learned = model.classes_ if len(model.classes_) > 2 else model.classes_[1:]
        intercepts[model.classes_] = 0.0
        weights[learned], intercepts[learned] = model.coef_, model.intercept_
        return cls(tuple(vectorizer.get_feature_names_out()), vectorizer.idf_, weights, intercepts)

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """Compute (n, 3) probabilities in the order of :data:`STRATEGIES`; rows sum to 1."""
        vectorizer = _vectorizer(vocabulary={term: i for i, term in enumerate(self.terms)})
        vectorizer.idf_ = self.idf
        logits = vectorizer.transform(questions) @ self.weights.T + self.intercepts
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        return found / found.sum(axis=1, keepdims=True)

    def predict(self, questions: Sequence[str]) -> list[str]:
        """Name each question's most probable strategy; the cheapest among equals."""
        return [STRATEGIES[i] for i in self.probabilities(questions).argmax(axis=1)]

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``adaptive.safetensors``."""
        from safetensors.numpy import save

        folder, present = Path(folder), np.isfinite(self.intercepts)
        tensors = {"idf": self.idf, "weights": self.weights[present], "intercepts": self.intercepts[present]}
        blob = save({name: np.ascontiguousarray(v, dtype=np.float64) for name, v in tensors.items()})
        config = {
            "format": _FORMAT, "schema": _SCHEMA, "weights": digest(blob, 64), "terms": list(self.terms),
            "strategies": [STRATEGIES[i] for i in np.flatnonzero(present)],
        }  # fmt: skip
        write_bytes(folder / _WEIGHTS, blob)
        write_text(folder / _CONFIG, sealed(config))  # last: without it there is no classifier

    @classmethod
    def load(cls, folder: str | Path) -> AdaptiveClassifier:
        """Invert :meth:`save`; UserError if there is no classifier, or a damaged one."""
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
            lacks = f"{folder} is not a classifier of questions (no {Path(str(error.filename)).name})"
            raise UserError(f"{lacks}: 'probers-train head=adaptive' makes one", "no-artifact") from None
        except (ValueError, UserError, SafetensorError) as error:
            told = f"the classifier {folder} is damaged ({file.name} {first_line(error)}): train it again"
            raise UserError(told, "damaged") from error


class _Transformer:
    """A model of transformers with a logit for each strategy; its own code and pickles are not read."""

    def logits(self, questions: Sequence[str]) -> Tensor:
        """Compute logits (n, 3) in the order of :data:`STRATEGIES`, as one batch."""
        raise NotImplementedError

    def probabilities(self, questions: Sequence[str]) -> np.ndarray:
        """Compute probabilities (n, 3) in the order of :data:`STRATEGIES`."""
        import torch

        with torch.inference_mode():  # one at a time: padding would change the last digits
            rows = [self.logits([q])[0].double().softmax(dim=-1).cpu().numpy() for q in questions]
        return np.stack(rows) if rows else np.empty((0, len(STRATEGIES)))


class ModelClassifier(_Transformer):
    """A sequence-classification model of transformers as a classifier of questions.

    The ``id2label`` of the model, a path or hub id, must name no, single and multi, or A, B and C. UserError
    for other labels, or a model that needs its own code or a pickle.
    """

    def __init__(self, name: str) -> None:
        kind, what = "AutoModelForSequenceClassification", "sequence-classification"
        self._model, self._tokenizer = _pretrained(kind, what, "trigger.classifier", name)
        self._columns = _columns(self._model.config.id2label, name)

    def logits(self, questions: Sequence[str]) -> Tensor:
        how = {"return_tensors": "pt", "padding": len(questions) > 1, "truncation": True}
        return self._model(**self._tokenizer(list(questions), **how)).logits[:, self._columns]


class LetterClassifier(_Transformer):
    """A sequence-to-sequence model of transformers (T5) that writes A, B or C, like the paper's classifier.

    A strategy's probability is the softmax over the logits of the three letters at the first written place,
    like in the released code; ``max_tokens`` cuts a longer question. UserError for a model that needs its
    own code or a pickle, letters with equal tokens, or an altered folder of ours.
    """

    def __init__(self, name: str, *, max_tokens: int = 384, option: str = "trigger.classifier") -> None:
        _check_files(Path(name))
        kind = "AutoModelForSeq2SeqLM"
        self.model, self.tokenizer = _pretrained(kind, "sequence-to-sequence", option, name)
        start = getattr(self.model.config, "decoder_start_token_id", None)
        self._start = self.model.generation_config.decoder_start_token_id if start is None else start
        spelled = self.tokenizer(list(LETTERS), add_special_tokens=False).input_ids
        #: First token of each letter.
        self.letters = [next(iter(ids), None) for ids in spelled]
        if self._start is None or None in self.letters or len(set(self.letters)) < len(LETTERS):
            lacks = "no token to begin with" if self._start is None else "no token each for A, B and C"
            told = f"{option}={name} cannot classify questions: it has {lacks}; take a T5"
            raise UserError(told, "model")
        self._max_tokens = max_tokens

    def inputs(self, questions: Sequence[str]) -> dict[str, Any]:
        """Return token ids and attention mask of questions (n, longest), on the model's device."""
        found = self.tokenizer(
            [question.strip() for question in questions], return_tensors="pt", padding=len(questions) > 1,
            truncation=True, max_length=self._max_tokens,
        )  # fmt: skip
        return {name: found[name].to(self.model.device) for name in ("input_ids", "attention_mask")}

    def logits(self, questions: Sequence[str]) -> Tensor:
        inputs = self.inputs(questions)
        start = inputs["input_ids"].new_full((len(questions), 1), self._start)
        return self.model(**inputs, decoder_input_ids=start).logits[:, 0, self.letters]

    def save(self, folder: str | Path) -> None:
        """Write the model's and tokenizer's files with transformers, then ``adaptive.json``."""
        folder = Path(folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix=".model-", dir=folder) as whole:
                self.model.save_pretrained(whole)
                self.tokenizer.save_pretrained(whole)
                written = sorted(file.name for file in Path(whole).iterdir())
                for name in written:
                    os.replace(Path(whole) / name, folder / name)
        write_text(folder / MODEL_FILE, sealed({"format": _MODEL_FORMAT, "files": take(folder, written)}))


def _pretrained(kind: str, what: str, option: str, name: str) -> tuple[Any, Any]:
    """Load model and tokenizer from a folder or the Hub; ``option`` named it."""
    import transformers

    try:
        # The model first: if it is missing, the tokenizer's error would mislead.
        load = getattr(transformers, kind).from_pretrained
        model = load(name, trust_remote_code=False, use_safetensors=True).eval()
        return model, transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # a foreign folder can make the libraries raise anything
        told = f"{option}={name} is neither a folder of 'probers-train head=adaptive' nor a {what} model"
        raise UserError(f"{told} ({first_line(error).rstrip('.')})", "model") from error


def _check_files(folder: Path) -> None:
    """Refuse a fine-tuned model whose files have changed (UserError)."""
    try:
        wrong = check(folder, unsealed(folder / MODEL_FILE)["files"])
    except (FileNotFoundError, NotADirectoryError):
        return  # not one of ours
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        wrong = MODEL_FILE, first_line(error)
    if wrong is not None:
        told = f"the classifier {folder} is damaged ({' '.join(wrong)}): train it again"
        raise UserError(told, "damaged")


def _columns(labels: dict[int, str], name: str) -> list[int]:
    """Find the columns of the strategies in a model's logits, in their order."""
    place = {str(label).lower(): int(column) for column, label in labels.items()}
    for names in (STRATEGIES, LETTERS):
        wanted = [each.lower() for each in names]
        if set(wanted) == set(place) and sorted(place.values()) == list(range(len(names))):
            return [place[each] for each in wanted]
    found = f"trigger.classifier={name} has the labels {', '.join(map(str, labels.values()))}"
    raise UserError(f"{found}: its id2label must name no, single and multi (or A, B and C)", "model")


def load_classifier(name: str) -> Classifier:
    """Load the classifier in a folder of ours, or a model of transformers by path or hub id (UserError)."""
    if (Path(name) / _WEIGHTS).exists():
        return AdaptiveClassifier.load(name)
    from transformers import AutoConfig

    if (Path(name) / MODEL_FILE).exists():
        return LetterClassifier(name)
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except Exception:  # loading it raises the full error
        return ModelClassifier(name)
    classifies = any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ())
    return LetterClassifier(name) if config.is_encoder_decoder and not classifies else ModelClassifier(name)


def _vectorizer(**options: Any) -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **options)
