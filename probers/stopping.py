"""A prober's score as a stopping criterion of transformers' ``generate``.

What is read of a text, and what cannot be, is said in :mod:`probers.watch`.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import StoppingCriteria

from .ensemble import extend
from .following import UNREADABLE, Follower, Text
from .types import UserError

if TYPE_CHECKING:
    from .bank import ProbeBank


class StopOnScore(StoppingCriteria):
    """Ends a row when the prober's score of it exceeds a threshold: :meth:`ProbeBank.stopping_criteria`.

    The hooks are on the model from the beginning, and go when the object is collected or
    :meth:`close` is called. In between it may serve any number of ``generate`` calls.
    """

    def __init__(
        self,
        bank: ProbeBank,
        model: Any,
        tokenizer: Any,
        threshold: float | None = None,
        *,
        min_tokens: int = 1,
    ) -> None:
        if min_tokens < 1:
            raise UserError(f"min_tokens={min_tokens} must be at least 1")
        check_heads(bank)
        self.min_tokens = min_tokens
        self.threshold = float(bank.threshold if threshold is None else threshold)
        if math.isnan(self.threshold):
            raise UserError(f"threshold={threshold} is no number")
        self._follower = Follower(bank, model, tokenizer)
        self._follower.attach()
        self._of: Text | None = None
        self._spans: list[tuple[float, int]] = []  # score and length of each row so far, of single tokens
        # The hooks know the follower only, so that this object is collected as soon as it is unused.
        self._finalizer = weakref.finalize(self, self._follower.detach)
        self._finalizer.atexit = False

    @property
    def fired(self) -> np.ndarray:
        """(batch,) bool, the rows that were ended in the newest call of ``generate``."""
        text = self._follower.text
        return np.zeros(0, dtype=bool) if text is None else text.stopped.numpy().copy()

    def close(self) -> None:
        """Take the hooks off the model; the criterion is of no use any more."""
        self._finalizer()

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """(batch,) True where to stop; ``generate`` asks after each token it has sampled.

        That token was not forwarded yet: the decision rests on the ones before it.

        Raises:
            UserError: a call that cannot be followed, or of another model than the one watched.
            RunError: NaN or infinite states; names layer and token.
        """
        if not self._finalizer.alive:
            raise UserError("this stopping criterion was closed: make another with bank.stopping_criteria")
        text = self._follower.text
        if text is None:
            raise UserError("this stopping criterion watches another model than the one that generates")
        if text.problem is not None:
            raise text.problem
        read = len(text.tokens)
        same = read == text.asked and tuple(input_ids.shape) == (text.rows, text.prompt + read + 1)
        if not same or (read and not torch.equal(input_ids[:, -2], text.tokens[-1].to(input_ids.device))):
            raise UserError(f"{UNREADABLE}; and use a stopping criterion with the model it was made for")
        text.asked += 1
        if read and bool(text.live.any()):
            self._follower.refuse_broken(text.finite[None], read - 1)
            if read >= self.min_tokens or self._follower.bank.aggregate is not None:
                scores = self._so_far(text, self._follower.score(text.pooled[text.live]))
                fires = (scores > self.threshold) & (read >= self.min_tokens)
                text.stopped[text.live.cpu()] = torch.from_numpy(fires)
        return text.stopped.to(input_ids.device)  # type: ignore[return-value]

    def _so_far(self, text: Text, scores: np.ndarray) -> np.ndarray:
        """Scores of the live rows' texts from those of their pools, or of their last tokens."""
        how = self._follower.bank.aggregate
        if how is None:
            return scores
        if self._of is not text:
            self._of, self._spans = text, [(0.0, 0)] * text.rows
        rows = text.live.nonzero()[:, 0].tolist()
        for row, score in zip(rows, scores.tolist(), strict=True):
            before, tokens = self._spans[row]
            self._spans[row] = extend(before, tokens, score, how), tokens + 1
        return np.array([self._spans[row][0] for row in rows])


def check_heads(bank: ProbeBank) -> None:
    """Refuse heads that cannot be followed token by token (UserError)."""
    if bank.spec.pool == "predicting":
        raise UserError(
            "this prober reads the state before a span and cannot follow a text token by token: record "
            'states with Needs(pool="predicting") and give bank.score those before the spans'
        )
    if bank.head.tokens:
        raise UserError(
            "this prober's heads pool all tokens of a span and cannot follow a text token by token: record "
            'its states with Needs(pool="tokens") and call bank.score_spans, or train heads of single tokens'
        )
