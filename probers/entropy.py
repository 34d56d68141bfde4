"""A prober's score and the entropy of the text's tokens, weighed against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .types import RunError, UserError

#: Entropy signals that join the heads' score, in the order of the weights.
SIGNALS = ("mean_entropy", "max_entropy", "min_prob", "mean_logprob")


@dataclass(frozen=True, slots=True)
class EntropyModel:
    """A logistic model over the heads' score and the entropy signals.

    Attributes:
        mean, scale: per input, in the order [score, *SIGNALS].
        weights: of the standardised inputs; the result is the log-odds of "wrong".
        intercept: of the same.
        threshold: fires when the log-odds exceed it.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON, with the inputs named."""
        return {"inputs": ["score", *SIGNALS], **asdict(self)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> EntropyModel:
        """Inverse of :meth:`to_dict`.

        Raises:
            UserError: other inputs than this version's, or a missing field.
        """
        if value.get("inputs") != ["score", *SIGNALS] or set(value) != {"inputs", *cls.__dataclass_fields__}:
            raise UserError(f"the prober's entropy model is not over {', '.join(SIGNALS)}: train it again")
        vectors = {name: tuple(map(float, value[name])) for name in ("mean", "scale", "weights")}
        return cls(**vectors, intercept=float(value["intercept"]), threshold=float(value["threshold"]))

    def __call__(self, score: np.ndarray, signals: Mapping[str, Any]) -> np.ndarray:
        """Log-odds (n,) that the text is wrong.

        Raises:
            RunError: a signal is absent, of another length or not a number.
        """
        columns = [np.asarray(score, dtype=np.float64)]
        for name in SIGNALS:
            if name not in signals:
                raise RunError(
                    f"the signal {name} is absent: the prober with entropy needs {', '.join(SIGNALS)}"
                )
            columns.append(np.atleast_1d(np.asarray(signals[name], dtype=np.float64)))
            if columns[-1].shape != columns[0].shape or not np.isfinite(columns[-1]).all():
                raise RunError(f"the signal {name} has a wrong length or a value that is no number")
        z = (np.stack(columns, axis=1) - self.mean) / self.scale
        return z @ np.asarray(self.weights) + self.intercept
