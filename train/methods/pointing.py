"""Choice of the attention heads that point to the passage a text rests on, and their score as a detector."""

from __future__ import annotations

import numpy as np

from probers.evaluation.metrics import auroc
from probers.signals.grounding import REMEMBERED, Pointer
from probers.store.joined import Stored

from ..assemble import Detector
from ..examples import Examples

#: One head of so many points; a model of few heads has :data:`_LEAST`.
_ONE_OF, _LEAST = 32, 4


def fit_pointer(store: Stored, examples: Examples) -> tuple[Pointer, Detector]:
    """Choose heads on the training texts; return them, and minus their mean share as a detector.

    The share is that on the passages about the text's subject, and where no text has a known subject that on
    the passage with the most. ``store`` has the site "passages" (:mod:`probers.model.passages`), its four
    numbers of each head in a row.
    """
    values = np.asarray(store.reader(store.spec.layers)[np.arange(len(examples.table))], dtype=np.float64)
    if examples.members is not None:  # tokens of a text
        values = np.stack([values[rows].mean(axis=0) for rows in examples.members])
    subject, pointed, _, _ = np.split(values[:, 0], 4, axis=-1)
    shares = subject if np.ptp(subject) > 0 else pointed
    chosen = np.concatenate([examples.rows["train"], examples.rows["validation"]])
    wrong = examples.wrong
    ranks = np.array([auroc(wrong[chosen], -column) for column in shares[chosen].T])
    count = max(_LEAST, shares.shape[1] // _ONE_OF)
    heads = tuple(sorted(np.argsort(-ranks, kind="stable")[:count].tolist()))
    scores = -shares[:, heads].mean(axis=1)
    what = "subject's passages" if shares is subject else "most attended passage"
    about = f"minus the share of attention on the {what}, mean of {len(heads)} heads chosen on training texts"
    return Pointer(heads, _remembered(examples, chosen)), Detector("pointer", scores, about)


def _remembered(examples: Examples, rows: np.ndarray) -> float:
    """Choose the log-probability without passages from which on unsupported texts are remembered ones.

    It divides best those that are known to be; the default where none are.
    """
    table = examples.table.iloc[rows]
    if "source" not in table or "context_gain" not in table:
        return REMEMBERED
    unsupported = table[table["correct"] == 0]
    known = (unsupported["source"] == "memory").to_numpy()
    alone = (unsupported["mean_logprob"] - unsupported["context_gain"]).to_numpy(dtype=float)
    if not known.any() or known.all():
        return REMEMBERED
    order = np.unique(alone)
    right = [float(((alone >= cut) == known).mean()) for cut in order]
    return float(order[int(np.argmax(right))])
