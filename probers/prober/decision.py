"""A prober's decision: margins of its heads, their ensemble as one score, and the rule for its threshold.

A margin is a head's logit of "wrong" minus its logit of "correct"; every score is higher the likelier a text
is wrong. Ensembles and thresholds are fitted on validation texts, like calibrations (:mod:`.calibration`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from ..evaluation.metrics import auroc
from ..heads import CORRECT, WRONG, ProbeHead
from ..types import RunError, UserError
from .calibration import checked, fit_logistic
from .risk_control import Promise, certify, check_number

#: Number of states the heads take at once; more would need memory without gain.
CHUNK = 1024


def run_heads(head: ProbeHead, states: Any, mask: Any = None) -> np.ndarray:
    """Compute float32 logits (n, H, 2), [wrong, correct], of H heads.

    ``states`` are (n, layers, d), or (n, T, layers, d) for heads that pool tokens; their ``mask`` (n, T) is
    true for existing tokens, None for all. For causal heads the n rows are tokens of one text. RunError for
    states that are not finite, ValueError for another shape.
    """
    given = torch.as_tensor(states)
    if head.causal:
        if head.marker:
            raise UserError("these heads score marked spans, not texts: call score_spans", "unsupported")
        x = given.unsqueeze(-3)
        pieces = [_piece_logits(head, x, start, start + CHUNK) for start in range(0, len(x), CHUNK)]
        return checked_logits(torch.cat([torch.empty(0, len(head.streams), 2), *pieces]))
    inputs = [given.unsqueeze(-3) if head.joint else given]  # a joint head has all layers
    if mask is not None:
        inputs.append(torch.as_tensor(mask, dtype=torch.bool))
    elif head.tokens:
        inputs.append(torch.ones(inputs[0].shape[:2], dtype=torch.bool))
    rows = max(1, CHUNK // max(1, inputs[0].shape[1])) if head.tokens else CHUNK
    parts = [torch.empty(0, len(head.streams), 2)]
    with torch.inference_mode():
        for x, *masks in zip(*(tensor.split(rows) for tensor in inputs), strict=True):
            if len(x):
                masks = [part.to(head.device) for part in masks]
                parts.append(head(x.to(head.device, torch.float32), *masks).cpu())
    return checked_logits(torch.cat(parts))


def checked_logits(logits: Tensor) -> np.ndarray:
    """Return logits as an array; RunError where they are not finite."""
    if not torch.isfinite(logits).all():
        raise RunError("the prober's logits are not finite: the states hold NaN or infinite values")
    return logits.numpy()


def _piece_logits(head: ProbeHead, x: Tensor, start: int, end: int) -> Tensor:
    """Compute logits (tokens of the piece, H, 2) of a piece of a text (n, H, L, d) and its context."""
    first = max(0, start - head.reach + 1)
    seen = x[first:end].to(head.device, torch.float32)[None]
    in_piece = (torch.arange(first, first + seen.shape[1], device=seen.device) >= start)[None]
    with torch.inference_mode():
        return head(seen, torch.ones_like(in_piece), in_piece)[0, start - first :].cpu()  # type: ignore[no-any-return]


def run_heads_on_spans(head: ProbeHead, states: Any, spans: np.ndarray) -> np.ndarray:
    """Compute logits (n, H, 2) as in :func:`run_heads`, of spans, by heads that pool tokens themselves.

    ``states`` (t, layers, d) belong to a text's tokens, ``spans`` (n, 2) are first token and one after last.
    """
    x = torch.as_tensor(states)
    parts = [np.empty((0, len(head.streams), 2), np.float32)]
    step = max(1, CHUNK // int((spans[:, 1] - spans[:, 0]).max(initial=1)))  # never all spans' states at once
    for start in range(0, len(spans), step):
        first, end = spans[start : start + step].T[:, :, None]
        place = first + np.arange((end - first).max())
        mask = place < end
        # A span shorter than the longest is padded with its first token, which is masked.
        parts.append(run_heads(head, x[torch.from_numpy(np.where(mask, place, first))], mask))
    return np.concatenate(parts)


def run_heads_on_marked(head: ProbeHead, states: Any, span: np.ndarray) -> np.ndarray:
    """Compute logits (span's tokens, H, 2) of heads that mark it; ``states`` (t, layers, d)."""
    return checked_logits(_piece_logits(head, torch.as_tensor(states).unsqueeze(-3), *map(int, span)))


def margins(logits: np.ndarray) -> np.ndarray:
    """Compute (n, heads) float64 margins of logits (n, heads, 2): "wrong" minus "correct"."""
    wide = logits.astype(np.float64)
    return wide[..., WRONG] - wide[..., CORRECT]


def half_precision(head: ProbeHead) -> ProbeHead:
    """Round the learned weights in place to half precision; RunError where they are beyond its range.

    Thresholds and test figures use the rounded weights. Standardisation statistics keep single precision.
    """
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            rounded = parameter.half().float()
            if not torch.isfinite(rounded).all():
                raise RunError(f"the trained weights {name} are not finite in half precision: lower lr")
            parameter.copy_(rounded)
    return head


Kind = Literal["logits", "probabilities", "best", "stacked"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Rule that makes one score of the heads' margins: their weighted sum, plus an intercept.

    "logits" sums margins (Probing-RAG, the decision rule of algorithm 1), "probabilities" sums
    softmax[wrong] - softmax[correct] (its released code), "best" is the mean margin of a few layers,
    "stacked" the log-odds of a logistic model over all margins (Wolpert 1992). There is one weight per
    head, which reads one layer or all; empty means 1 for every head.
    """

    kind: Kind = "logits"
    weights: tuple[float, ...] = ()
    intercept: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"combine={self.kind} is unknown: choose {', '.join(KINDS)}", "unknown-choice")

    def over(self, layers: int) -> Ensemble:
        """Return it with one weight for each of this many layers; ValueError if it has another number."""
        weights = self.weights or (1.0,) * layers
        if len(weights) != layers:
            raise ValueError(f"an ensemble of {len(weights)} layers does not fit a prober of {layers}")
        return Ensemble(self.kind, weights, self.intercept)

    def __call__(self, margins: np.ndarray) -> np.ndarray:
        """Compute scores (n,) of margins (n, layers)."""
        margins = np.asarray(margins, dtype=np.float64)
        weights = np.asarray(self.over(margins.shape[1]).weights)
        # softmax[wrong] - softmax[correct] of two logits is tanh of half their difference.
        each = np.tanh(margins / 2) if self.kind == "probabilities" else margins
        # Not a matrix product: a row's score must not depend on how many are computed at once.
        return (each * weights).sum(axis=1) + self.intercept

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON."""
        return {**asdict(self), "weights": list(self.weights)}


def fit_ensemble(kind: str, margins: np.ndarray, wrong: np.ndarray, *, k: int = 3) -> Ensemble:
    """Fit the ensemble of a kind to margins (n, layers) and labels (n,), 1 where a text is wrong.

    "best" takes the ``k`` layers with the highest AUROC, the lower of equal ones, and all where there are
    fewer. "stacked" is a logistic model over the standardised margins with scikit-learn's L2 penalty (C = 1),
    so that layers with the same information share the weight. UserError for another kind.
    """
    layers = margins.shape[1]
    if kind == "best":
        wrong, margins = checked(wrong, margins)
        quality = np.array([auroc(wrong, column) for column in margins.T])
        chosen = np.argsort(-quality, kind="stable")[:k]
        weights = np.zeros(layers)
        weights[chosen] = 1 / len(chosen)
        return Ensemble("best", tuple(weights.tolist()))
    if kind == "stacked":
        weights, intercept = fit_logistic(margins, wrong).unscaled()
        return Ensemble("stacked", tuple(weights.tolist()), intercept)
    return Ensemble(kind).over(layers)  # type: ignore[arg-type]


#: Threshold rules, and the meaning of the number after the name if there is one.
RULES: dict[str, str | None] = {
    **dict.fromkeys(("balanced_accuracy", "f1", "accuracy")),
    "budget": "the share of texts that fire, from 0 to 1, as in budget=0.4",
    "recall_at_fpr": "the highest share of right texts that may fire, from 0 to 1, as in recall_at_fpr=0.1",
    "cost": "the price of a missed wrong text where a false alarm costs 1, above 0, as in cost=5",
    "risk": "the highest share of wrong ones among what passes, and the confidence, both between 0 and 1, as "
    "in risk=0.1@0.95",
}

#: Threshold that never passes: every score is above it.
ALWAYS = -1e9


class Threshold(NamedTuple):
    """A threshold chosen by a rule; ``refused`` says why it is :data:`ALWAYS` if no other is possible."""

    value: float
    promise: Promise | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Rule of :data:`RULES` that chooses a threshold; UserError for an unknown name or a wrong value.

    "f1" is of wrong texts, "recall_at_fpr" has the highest recall within its false positive rate, "cost" the
    lowest price of misses and false alarms together, and "risk" is the laxest threshold that can promise with
    ``confidence`` that no larger share of passing texts is wrong (:mod:`.risk_control`).
    """

    name: str = "balanced_accuracy"
    value: float | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.name not in RULES:
            listed = ", ".join(name if meaning is None else f"{name}=.." for name, meaning in RULES.items())
            raise UserError(f"threshold={self} is unknown: choose one of {listed}", "unknown-choice")
        value, confidence = (np.nan if x is None else x for x in (self.value, self.confidence))
        if (needed := RULES[self.name]) is None:
            allowed, needed = self.value is None, f"no number: write threshold={self.name}"
        elif self.name == "cost":
            allowed = 0 < value < np.inf
        elif self.name == "risk":
            allowed = 0 < value < 1 and 0 < confidence < 1
        else:
            allowed = 0 <= value <= 1
        if not allowed or (self.confidence is not None and self.name != "risk"):
            raise UserError(f"threshold={self}: {self.name} needs {needed}")

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value:g}"
        return self.name + value + ("" if self.confidence is None else f"@{self.confidence:g}")

    @classmethod
    def parse(cls, text: str) -> ThresholdRule:
        """Parse a rule as typed, ``f1``, ``budget=0.4``, ``risk=0.1@0.95``; a UserError lists the choices."""
        name, equals, numbers = text.partition("=")
        number, at, confidence = numbers.partition("@")
        try:
            return cls(name.strip(), float(number) if equals else None, float(confidence) if at else None)
        except ValueError:
            raise UserError(f"threshold={text}: {numbers.strip()!r} is not a number") from None

    def check_number(self, groups: int) -> None:
        """Refuse a number of validation groups too small to promise any "risk" (UserError)."""
        if self.name == "risk":
            check_number(*self._risk, groups)

    @property
    def _risk(self) -> tuple[float, float]:
        assert self.value is not None and self.confidence is not None
        return self.value, self.confidence

    def choose(
        self, wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray | None = None, *, refuse: bool = True
    ) -> Threshold:
        """Choose like :meth:`__call__`; unless ``refuse``, :data:`ALWAYS` replaces a risk without promise."""
        if self.name != "risk":
            return Threshold(self._best(*checked(wrong, scores)))
        try:
            return Threshold(*certify(*self._risk, wrong, scores, groups))
        except UserError as error:
            if refuse:
                raise
            return Threshold(ALWAYS, refused=str(error))

    def __call__(self, wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray | None = None) -> float:
        """Choose the best threshold (fires above it) on labels (n,) and scores (n,).

        Candidates lie midway between neighbouring distinct scores, and beyond both ends; of equally good ones
        the middle one is taken. Only "risk" reads the ``groups`` (n,), and has candidates of its own.
        """
        return self.choose(wrong, scores, groups).value

    def _best(self, wrong: np.ndarray, scores: np.ndarray) -> float:
        levels, place = np.unique(scores, return_inverse=True)
        positive = np.bincount(place, weights=wrong, minlength=len(levels))
        negative = np.bincount(place, weights=1 - wrong, minlength=len(levels))
        # Candidate i keeps the levels below i from firing.
        misses, silent = (np.concatenate([[0.0], np.cumsum(x)]) for x in (positive, negative))
        quality = self._quality(misses, silent)
        best = np.flatnonzero(quality >= quality.max() - 1e-12)
        edges = np.concatenate([[levels[0] - 1.0], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1.0]])
        # Neighbouring floats have no middle; the lower one is then right.
        edges[:-1] = np.minimum(edges[:-1], np.nextafter(levels, -np.inf))
        return float(edges[best[len(best) // 2]])

    def _quality(self, misses: np.ndarray, silent: np.ndarray) -> np.ndarray:
        """Compute the figure to maximise, per candidate, from the wrong and right texts that do not fire."""
        wrong, right = misses[-1], silent[-1]
        hits, alarms = wrong - misses, right - silent
        value = 0.0 if self.value is None else self.value
        match self.name:
            case "f1":
                return 2 * hits / (hits + alarms + wrong)
            case "accuracy":
                return hits + silent
            case "budget":
                return -np.abs((hits + alarms) / (wrong + right) - value)
            case "cost":
                return -(value * misses + alarms) / (value * wrong + right)
            case "recall_at_fpr":
                # Among equal recalls the one with the fewest false alarms, which weigh less than a hit.
                return np.where(alarms <= value * right + 1e-9, hits - alarms / (right + 1), -np.inf)
            case _:
                return hits / wrong + silent / right
