"""Agreement of drawn answers: their words, their meanings and their states.

- Self-consistency: share of samples that agree with the greedy one (Wang et al. 2022; SelfCheckGPT).
- Lexical similarity: likeness of texts word by word (Fomicheva et al. 2020), by ROUGE-L (Lin 2004); of
  scripts without spaces character by character, as Hu et al. (2015, LCSTS) compute ROUGE for Chinese.
- Semantic entropy: entropy of their meanings (Kuhn et al. 2023; Farquhar et al. 2024),
  H = -sum_c p(c) log p(c) over clusters c of answers with one meaning. p(c) is the share of samples in c
  ("discrete"), or the share of c in the sum of the samples' weights: the geometric mean of a sample's token
  probabilities ("weighted", as in the code of Farquhar et al.), or their product ("sequence").
- EigenScore: spread of their states (INSIDE, Chen et al. 2024; SeaKR, Yao et al. 2024),
  (1/K) log det(Z^T J Z + alpha I). The columns of Z (d x K) are states of K samples in a middle layer, and
  J = I - 11^T / d subtracts from each state the mean of its d numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Literal, get_args

import numpy as np

from ..types import RunError, UserError
from ..words.text import tokenize
from .meaning import Same

Variant = Literal["discrete", "weighted", "sequence"]
#: Formula and states of EigenScore: the papers', or those of the code of INSIDE or SeaKR.
EigenVariant = Literal["paper", "inside", "seakr"]
ALPHA = 0.001


def self_consistency(greedy: str, answers: Sequence[str], same: Same) -> float:
    """Compute the share of n ``answers`` that mean the same as the ``greedy`` one, in [0, 1].

    An undecided pair does not agree. UserError without answers.
    """
    if not answers:
        raise UserError("samples=0 leaves nothing to compare: draw one sample or more", "missing-value")
    return sum(same(greedy, answer) is True for answer in answers) / len(answers)


def lexical_similarity(texts: Sequence[str]) -> float:
    """Compute the mean ROUGE-L of all pairs of ``texts``, in [0, 1]; UserError for fewer than two.

    Words are without case, with their accents and in any script (:func:`probers.words.text.tokenize`), but an
    underscore divides them, as in Google's ``rouge_score``; Chinese, Japanese, Thai and the like are compared
    by characters.
    """
    if len(texts) < 2:
        problem = f"samples={len(texts)} gives no pair of texts to compare"
        raise UserError(f"{problem}: draw two or more", "missing-value")
    pairs = list(combinations([tokenize(text.replace("_", " "), characters=True) for text in texts], 2))
    return sum(rouge_l(a, b) for a, b in pairs) / len(pairs)


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """Compute ROUGE-L, F1 of the longest common subsequence of words; 1 for two texts without a word."""
    if not a and not b:
        return 1.0
    best = [0] * (len(b) + 1)
    for word in a:
        before = 0  # the entry above and to the left
        for j, other in enumerate(b):
            above = best[j + 1]
            best[j + 1] = before + 1 if word == other else max(above, best[j])
            before = above
    return 2 * best[-1] / (len(a) + len(b))


def semantic_entropy(
    of: Sequence[int], logprobs: Sequence[float] | np.ndarray | None = None,
    lengths: Sequence[int] | np.ndarray | None = None, *, variant: Variant = "discrete",
) -> float:  # fmt: skip
    """Compute the entropy in nats of n samples' clusters; 0 if all mean the same.

    Args:
        of: number of each sample's cluster, from 0 (:func:`.meaning.clusters`).
        logprobs: (n,) log-probability of each sample's sequence in nats, for "weighted" and "sequence"; NaN,
            for a sample without a token, counts with the mean weight of the others.
        lengths: (n,) number of tokens of each sample, by which "weighted" divides its log-probability.
        variant: "discrete", "weighted" or "sequence".

    Raises:
        UserError: no samples, an unknown variant, or no log-probabilities or lengths for one that needs them.
    """
    if not len(of):
        raise UserError("semantic entropy needs samples: draw two or more", "missing-value")
    if variant not in get_args(Variant):
        raise UserError(f"variant={variant} is unknown: choose {' or '.join(get_args(Variant))}")
    read = {"discrete": 0, "sequence": 1, "weighted": 2}[variant]
    given = {"log-probability": logprobs, "length": lengths}
    for what, values in [*given.items()][:read]:
        if values is None or len(values) != len(of):
            problem = f"variant={variant} of semantic entropy needs the {what} of each sample"
            raise UserError(problem, "missing-value")
    logs = np.asarray(logprobs if read else np.zeros(len(of)), dtype=np.float64)
    logs = logs / np.maximum(1, np.asarray(lengths)) if variant == "weighted" else logs
    weights, known = np.ones(len(of)), ~np.isnan(logs)
    if known.any():
        weights = np.exp(logs - logs[known].max())  # relative to the likeliest: they may be very small
        weights[~known] = weights[known].mean()
    shares = np.bincount(of, weights=weights) / weights.sum()
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum()) + 0.0


def best_cut(entropies: np.ndarray) -> float:
    """Find the threshold that divides values (n,) into two groups with the least variance within.

    Kossen et al. (2024) make labels of semantic entropy by this rule, "high" above it. It lies midway
    between two neighbouring values, or at the value itself if all are equal.
    """
    values = np.sort(np.asarray(entropies, dtype=np.float64))
    if not len(values):
        raise UserError("no semantic entropy to divide into high and low", "empty")
    places = np.flatnonzero(np.diff(values)) + 1  # sizes of the lower group
    if not len(places):
        return float(values[0])
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    low = squares[places - 1] - sums[places - 1] ** 2 / places
    rest = len(values) - places
    high = squares[-1] - squares[places - 1] - (sums[-1] - sums[places - 1]) ** 2 / rest
    best = places[int(np.argmin(low + high))]
    return float((values[best - 1] + values[best]) / 2)


def eigenscore(states: np.ndarray, alpha: float = ALPHA, *, variant: EigenVariant = "paper") -> float:
    """Compute the score of ``states`` (K, d), which is higher if the samples disagree.

    "inside" is INSIDE's code: Z^T J Z is divided by d - 1, which makes it a covariance, and the logarithm is
    the decimal one. "seakr" is the formula, also of a single state, which has a score in SeaKR's code.
    UserError for fewer than two states, or ``alpha`` of 0 or less; RunError for a state that is not finite.
    """
    if len(states) < (1 if variant == "seakr" else 2):
        problem = f"eigenscore compares the states of samples, and there are {len(states)}"
        raise UserError(f"{problem}: draw two or more", "missing-value")
    if not alpha > 0:
        raise UserError(f"alpha={alpha} must be above 0")
    z = np.asarray(states, dtype=np.float64)
    if not np.isfinite(z).all():
        raise RunError("eigenscore: a sample's state is not finite", "model")
    centred = z - z.mean(axis=1, keepdims=True)  # J is a projection: (JZ)^T JZ = Z^T J Z
    gram, unit = centred @ centred.T, 1.0
    if variant == "inside":
        gram, unit = gram / (z.shape[1] - 1), np.log(10)
    _, logarithm = np.linalg.slogdet(gram + alpha * np.eye(len(z)))
    return float(logarithm / len(z) / unit)
