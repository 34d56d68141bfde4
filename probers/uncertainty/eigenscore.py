"""EigenScore: the spread of the states of drawn answers (INSIDE, Chen et al. 2024; SeaKR, Yao et al. 2024).

It is (1/K) log det(Z^T J Z + alpha I). The columns of Z (d x K) are the states of the last tokens of K
samples in a middle layer, and J = I - 11^T / d subtracts from each state the mean of its d numbers.
"""

from __future__ import annotations

import numpy as np

from ..types import RunError, UserError

ALPHA = 0.001


def eigenscore(states: np.ndarray, alpha: float = ALPHA) -> float:
    """Compute the score of ``states`` (K, d), which is higher if the samples disagree.

    Raises:
        UserError: fewer than two states, or ``alpha`` is not above 0.
        RunError: a state is not finite.
    """
    if len(states) < 2:
        told = f"eigenscore compares the states of samples, and there are {len(states)}: draw two or more"
        raise UserError(told, "missing-value")
    if not alpha > 0:
        raise UserError(f"alpha={alpha} must be above 0")
    z = np.asarray(states, dtype=np.float64)
    if not np.isfinite(z).all():
        raise RunError("eigenscore: a sample's state is not finite", "model")
    centred = z - z.mean(axis=1, keepdims=True)  # J is a projection: (JZ)^T JZ = Z^T J Z
    _, logarithm = np.linalg.slogdet(centred @ centred.T + alpha * np.eye(len(z)))
    return float(logarithm / len(z))
