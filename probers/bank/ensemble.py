"""Trained heads run on any number of states, and their margins made into one score.

A margin is a head's logit of "wrong" minus its logit of "correct"; every score is higher
the likelier a text is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from ..heads import ProbeHead
from ..options import check_record
from ..types import RunError, UserError

#: States the heads take at once; more would need memory and gain nothing.
CHUNK = 1024


def run_heads(head: ProbeHead, states: Any, mask: Any = None) -> np.ndarray:
    """Float32 logits (n, H, 2), [wrong, correct].

    Args:
        head: H heads.
        states: (n, H, d); (n, T, H, d) for heads that pool tokens themselves.
        mask: (n, T) bool, which tokens there are, for those heads; None is all.

    Raises:
        RunError: states or logits that are not finite.
        ValueError: another shape.
    """
    inputs = [torch.as_tensor(states)]
    if mask is not None:
        inputs.append(torch.as_tensor(mask, dtype=torch.bool))
    elif head.tokens:
        inputs.append(torch.ones(inputs[0].shape[:2], dtype=torch.bool))
    rows = max(1, CHUNK // max(1, inputs[0].shape[1])) if head.tokens else CHUNK
    parts = []
    with torch.inference_mode():
        for x, *masks in zip(*(tensor.split(rows) for tensor in inputs), strict=True):
            if len(x):
                masks = [part.to(head.device) for part in masks]
                parts.append(head(x.to(head.device, torch.float32), *masks).cpu())
    found = torch.cat(parts).numpy() if parts else np.empty((0, len(head.streams), 2), np.float32)
    if not np.isfinite(found).all():
        raise RunError("the prober's logits are not finite: the states hold NaN or infinite values")
    return found


def run_heads_on_spans(head: ProbeHead, states: Any, spans: np.ndarray) -> np.ndarray:
    """Float32 logits (n, H, 2) of spans, by heads that pool tokens themselves.

    Args:
        head: H heads.
        states: (t, H, d) of a text's tokens.
        spans: (n, 2) first token and the one after the last.

    Raises:
        RunError, ValueError: as :func:`run_heads`.
    """
    x = torch.as_tensor(states)
    parts = [np.empty((0, len(head.streams), 2), np.float32)]
    step = max(1, CHUNK // int((spans[:, 1] - spans[:, 0]).max(initial=1)))  # never all spans' states at once
    for start in range(0, len(spans), step):
        first, end = spans[start : start + step].T[:, :, None]
        place = first + np.arange((end - first).max())
        mask = place < end
        # Where a span is shorter than the longest, its first token stands in, unread.
        parts.append(run_heads(head, x[torch.from_numpy(np.where(mask, place, first))], mask))
    return np.concatenate(parts)


def half_precision(head: ProbeHead) -> ProbeHead:
    """Round the learned weights to what half precision can hold, in place.

    Done before thresholds and test figures are computed, so that they hold for the
    saved prober. Standardisation statistics keep single precision.

    Raises:
        RunError: weights beyond half precision.
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
    """How the heads' margins become one score.

    Attributes:
        kind: "logits" sums margins (Probing-RAG, the decision rule of algorithm 1),
            "probabilities" sums softmax[wrong] - softmax[correct] (its released code), "best"
            is the mean margin of a few layers, "stacked" the log-odds of a logistic model
            over all margins (Wolpert 1992).
        weights: one per layer; empty is 1 for every layer.
        intercept: added to the weighted sum; of "stacked".

    Raises:
        UserError: an unknown kind.
        ValueError: weights or an intercept that are no numbers, or none for a kind that needs them.
    """

    kind: Kind = "logits"
    weights: tuple[float, ...] = ()
    intercept: float = 0.0

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        if not self.weights and self.kind in ("best", "stacked"):
            raise ValueError(f"an ensemble of kind {self.kind!r} needs one weight per layer")
        if not np.isfinite([*self.weights, self.intercept]).all():
            raise ValueError("an ensemble's weights and intercept must be finite")

    def over(self, layers: int) -> Ensemble:
        """The same with one weight for each of so many layers.

        Raises:
            ValueError: its weights are for another number of layers.
        """
        weights = self.weights or (1.0,) * layers
        if len(weights) != layers:
            raise ValueError(f"an ensemble of {len(weights)} layers does not fit a prober of {layers}")
        return Ensemble(self.kind, weights, self.intercept)

    def __call__(self, margins: np.ndarray) -> np.ndarray:
        """Scores (n,) of margins (n, layers).

        Raises:
            ValueError: another number of layers.
        """
        margins = np.asarray(margins, dtype=np.float64)
        weights = np.asarray(self.over(margins.shape[1]).weights)
        # softmax[wrong] - softmax[correct] of two logits is tanh of half their difference.
        each = np.tanh(margins / 2) if self.kind == "probabilities" else margins
        # Not a matrix product: a row's score must not depend on how many are computed at once.
        return (each * weights).sum(axis=1) + self.intercept

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return {**asdict(self), "weights": list(self.weights)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Ensemble:
        """Inverse of :meth:`to_dict`.

        Raises:
            ValueError, UserError: damaged.
        """
        if isinstance(kind := value.get("kind"), str):
            _check_kind(kind)
        check_record(cls, value, "ensemble.")
        return cls(value["kind"], tuple(value["weights"]), value["intercept"])


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UserError(f"combine={kind} is unknown: choose one of {', '.join(KINDS)}", code="unknown-choice")
