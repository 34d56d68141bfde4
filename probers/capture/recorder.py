"""What a decoding batch leaves behind, read by its taps and pooled while it runs.

Every buffer is indexed by the row a prompt had when the batch began, so that
rows which finish can leave the batch without anything here being moved.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..types import AttentionRows, Needs
from .attention import Attended, AttentionTap, Returned
from .hidden_states import StateTap

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class _Step:
    """States or attention of one generated token of each active row, not yet committed."""

    index: int
    rows: Tensor  # (b,) original rows
    states: Tensor | None  # (b, layers, d)
    columns: Tensor | None  # (b, heads, g) weights on the last g generated tokens


def mind_vector(tokens: np.ndarray) -> np.ndarray:
    """MIND's vector (1, 2 d) of a run of tokens, from their states (n, 1, 2 d) of pool "mind_tokens"."""
    width = tokens.shape[-1] // 2
    return np.concatenate([tokens[-1, :, :width], tokens[:, :, width:].mean(axis=0)], axis=-1)


class Recorder:
    """Pools the states and attention of the tokens that are kept.

    Whether a token is kept may be known only later (a stop string can begin before
    the token that completes it), so a step waits until it is committed; as a rule
    that is at once, and at most for as many steps as the longest stop string has
    characters.

    Args:
        rows: prompts in the batch.
        width: prompt tokens per row, padding included.
        steps: most tokens that may be generated.
    """

    def __init__(self, needs: Needs, rows: int, width: int, steps: int, device: torch.device) -> None:
        self._needs = needs
        self._width = width
        self._waiting: deque[_Step] = deque()
        self._kept: dict[int, int] = {}
        self._pooled: Tensor | None = None  # (rows, layers, d) float32
        self._tokens: list[list[Tensor]] = [[] for _ in range(rows)]
        self._finite: Tensor | None = None  # (rows, steps, layers)
        self._rows, self._steps, self._device = rows, steps, device
        self._column_max: Tensor | None = None  # (rows, heads, steps)
        if needs.attention:
            self._attention = torch.zeros(rows, steps + 1, width + steps, device=device)

    def prefilled(self, states: Tensor | None, attended: Attended | None) -> None:
        """The prompt's last position, which predicts token 0: its state, and row 0 of the attention.

        Args:
            states: (rows, layers, d) for pool "predicting", None for all others.
            attended: the last block's attention, or None when it is not read.
        """
        if states is not None:
            self._push_states(0, torch.arange(self._rows, device=self._device), states)
        if attended is not None:
            weights = attended.weights()[:, :, -1]
            keys = weights.shape[-1]
            self._attention[:, 0, self._width - keys : self._width] = weights.mean(dim=1).to(self._device)

    def push(self, index: int, rows: Tensor, states: Tensor | None, attended: Attended | None) -> None:
        """Take what was read while token ``index`` of ``rows`` was forwarded.

        Args:
            index: which generated token, from 0.
            rows: (b,) original rows of the batch that ran.
            states: (b, layers, d), or None when no layer is read.
            attended: the last block's attention, or None when it is not read.
        """
        if attended is not None:
            weights = attended.weights()[:, :, -1].to(self._device)  # (b, heads, k)
            end = self._width + index + 1
            self._attention[rows, index + 1, end - weights.shape[-1] : end] = weights.mean(dim=1)
            self._waiting.append(_Step(index, rows, None, weights[:, :, -(index + 1) :]))
        if states is not None:
            # What was read at a token is kept for the one after it where that is what it predicts.
            self._push_states(index + (self._needs.pool == "predicting"), rows, states)

    def _push_states(self, index: int, rows: Tensor, states: Tensor) -> None:
        if self._finite is None:
            shape = (self._rows, self._steps + 1, states.shape[1])
            self._finite = torch.ones(shape, dtype=torch.bool, device=self._device)
        self._finite[rows, index] = states.isfinite().all(dim=-1).to(self._device)
        self._waiting.append(_Step(index, rows, states, None))

    def finish(self, row: int, kept: int) -> None:
        """``row`` has ended and its first ``kept`` tokens are its text."""
        self._kept[row] = kept

    def commit(self, upto: int) -> None:
        """Pool the waiting steps below ``upto``, which every row still running is known to keep."""
        while self._waiting and self._waiting[0].index < upto:
            self._pool(self._waiting.popleft())

    def _pool(self, step: _Step) -> None:
        rows, states, columns = step.rows, step.states, step.columns
        if self._kept:
            listed = rows.tolist()
            keep = [i for i, row in enumerate(listed) if self._kept.get(row, self._steps) > step.index]
            if len(keep) < len(listed):
                chosen = torch.tensor(keep, dtype=torch.long, device=rows.device)
                rows = rows[chosen]
                states = None if states is None else states[chosen.to(states.device)]
                columns = None if columns is None else columns[chosen]
        if states is not None:
            self._pool_states(rows, states)
        if columns is not None:
            if self._column_max is None:
                shape = (self._rows, columns.shape[1], self._steps)
                self._column_max = torch.zeros(shape, device=columns.device)
            first = step.index + 1 - columns.shape[-1]
            best = self._column_max[rows, :, first : step.index + 1]
            self._column_max[rows, :, first : step.index + 1] = torch.maximum(best, columns)

    def _pool_states(self, rows: Tensor, states: Tensor) -> None:
        if self._needs.of_mind:  # of each token the average over layers, and the final norm's
            states = torch.stack([states[:, :-1].float().mean(dim=1), states[:, -1].float()], dim=1)
        if self._needs.pool in ("tokens", "predicting", "mind_tokens"):
            if self._needs.of_mind:
                states = states.flatten(1)[:, None]
            for row, state in zip(rows.tolist(), states.float().cpu(), strict=True):
                self._tokens[row].append(state)
            return
        states = states.to(self._device, torch.float32)
        if self._pooled is None:
            self._pooled = torch.zeros(self._rows, *states.shape[1:], device=self._device)
        if self._needs.pool == "mean":
            self._pooled.index_add_(0, rows, states)
            return
        if self._needs.pool == "mind":
            states[:, 1] += self._pooled[rows, 1]
        self._pooled[rows] = states

    def close(self) -> None:
        """Pool what still waits; every row has finished."""
        self.commit(self._steps + 1)

    def broken(self) -> tuple[int, int, int] | None:
        """(row, token, layer index) of the first kept state that is NaN or infinite."""
        if self._finite is None or bool(self._finite.all()):
            return None
        for row, token, layer in (~self._finite).nonzero().tolist():
            if token < self._kept[row]:
                return row, token, layer
        return None

    def states(self, row: int) -> np.ndarray | None:
        """float32 states as :class:`probers.types.Generation` has them; None when nothing was pooled."""
        kept = self._kept[row]
        if not self._needs.layers or not kept:
            return None
        if self._needs.pool in ("tokens", "predicting", "mind_tokens"):
            return torch.stack(self._tokens[row]).numpy()
        assert self._pooled is not None
        pooled = self._pooled[row]
        if self._needs.pool == "mean":
            pooled = pooled / kept
        elif self._needs.pool == "mind":
            pooled = torch.cat([pooled[0], pooled[1] / kept])[None]
        return np.array(pooled.cpu())

    def attention(self, row: int, prompt: int) -> AttentionRows | None:
        """The kept part of ``row``'s attention, whose prompt has ``prompt`` tokens."""
        if not self._needs.attention:
            return None
        kept = self._kept[row]
        pad = self._width - prompt
        rows = np.array(self._attention[row, : kept + 1, pad : self._width + kept].cpu())
        if self._column_max is None or not kept:
            return AttentionRows(rows, np.zeros(kept, dtype=np.float32))
        return AttentionRows(rows, self._column_max[row, :, :kept].mean(dim=0).cpu().numpy())


class Reading:
    """Reads the last positions of every pass, while it is entered.

    Attributes:
        recorder: pools what was read.
        reads: whether anything is read but logits.
        waits: the last pass was read, and not yet pushed.

    Args:
        rows, width, limit: prompts, their columns, and most tokens written for one.
    """

    def __init__(
        self, model: Any, needs: Needs, rows: int, width: int, limit: int, device: torch.device
    ) -> None:
        self.recorder = Recorder(needs, rows, width, limit, device)
        self.reads = bool(needs.layers or needs.attention)
        self.waits = False
        self._states = StateTap(model, needs)
        self._attention = AttentionTap(model, needs.attention_layer) if needs.attention else None
        self._predicting = needs.pool == "predicting"
        self._taps = ExitStack()

    def __enter__(self) -> Self:
        self._taps.enter_context(self._states)
        if self._attention is not None:
            self._taps.enter_context(self._attention)
            self._attention.queries = 1
        if self._predicting:
            self._states.reduce = _last(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taps.close()

    def prefilled(self) -> None:
        """Take what the prompts' last position left."""
        states = self._states.take()
        attended = self._attention.take() if self._attention is not None else None
        self.recorder.prefilled(None if states is None else states[:, :, -1], attended)

    def expect(self, count: int) -> None:
        """Read the last ``count`` positions of the next pass."""
        self._states.reduce = _last(count)
        if self._attention is not None:
            self._attention.queries = count
        self.waits = self.reads

    def push(self, index: int, rows: Tensor, count: int) -> None:
        """Take what the first ``count`` of the positions read left: tokens ``index`` and on of ``rows``.

        Args:
            rows: (b,) rows that the batch began with.
        """
        states = self._states.take()
        weights = self._attention.take().weights() if self._attention is not None else None
        for place in range(count):
            attended = None
            if weights is not None:
                later = weights.shape[2] - 1 - place  # positions of the same pass that it does not see
                attended = Returned(weights[:, :, place : place + 1, : weights.shape[3] - later])
            self.recorder.push(index + place, rows, None if states is None else states[:, :, place], attended)
        self.waits = False


def _last(count: int) -> Any:
    return lambda states: states[:, -count:]
