"""What a decoding batch leaves behind, read by its taps and pooled while it runs.

Every buffer is indexed by the row a prompt had when the batch began, so that
rows which finish can leave the batch without anything here being moved.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..types import AttentionRows, Needs
from .attention import AttentionTap
from .hidden_states import StateTap
from .pooling import PER_TOKEN, StreamingPool, token_vectors

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class _Step:
    """States or attention of one generated token of each active row, not yet committed."""

    index: int
    rows: Tensor  # (b,) original rows
    states: Tensor | None  # (b, layers, d)
    columns: Tensor | None  # (b, heads, g) weights on the last g generated tokens


class CaptureSession(ExitStack):
    """Reads the last positions of a batch's passes, and pools those of the tokens that are kept.

    Before a pass :meth:`read_last` says how many positions to read, and after it :meth:`take`
    takes them; of the prompts' pass the last is read where it is needed. Whether a token is
    kept may be known only later (a stop string can begin before the token that completes it),
    so a step waits until it is committed; as a rule that is at once, and at most for as many
    steps as the longest stop string has characters.

    Attributes:
        reads: whether anything is read but logits.

    Args:
        rows: prompts in the batch.
        width: prompt tokens per row, padding included.
        limit: most tokens that may be generated for a row.
    """

    def __init__(self, model: Any, needs: Needs, rows: int, width: int, limit: int) -> None:
        super().__init__()
        self.reads = bool(needs.layers or needs.attention)
        self._needs, self._rows, self._width, self._limit = needs, rows, width, limit
        self._device: torch.device = model.device
        self._state_tap = StateTap(model, needs)
        self._attention_tap = AttentionTap(model, needs.attention_layer) if needs.attention else None
        self._waiting: deque[_Step] = deque()
        self._kept: dict[int, int] = {}
        self._pooled = StreamingPool(needs.pool, rows)
        self._tokens: list[list[Tensor]] = [[] for _ in range(rows)]
        self._finite: Tensor | None = None  # (rows, limit + 1, layers)
        self._attention: Tensor | None = None  # (rows, limit + 1, width + limit)
        self._column_max: Tensor | None = None  # (rows, heads, limit)

    def __enter__(self) -> Self:
        self.enter_context(self._state_tap)
        if self._attention_tap is not None:
            self.enter_context(self._attention_tap)
            self._attention_tap.read(1)
        if self._needs.pool == "predicting":
            self._state_tap.read(lambda states: states[:, -1:])
        return self

    def read_last(self, count: int) -> None:
        """Read the last ``count`` positions of the next pass."""
        self._state_tap.read(lambda states: states[:, -count:])
        if self._attention_tap is not None:
            self._attention_tap.read(count)

    def take(self, index: int, rows: Tensor) -> None:
        """Take what the last pass left.

        Args:
            index: the generated token at the first position read, from 0; -1 for the prompts' last
                position, which predicts token 0.
            rows: (b,) rows that the batch began with and that ran.
        """
        states = self._state_tap.take()  # (b, layers, q, d)
        columns: list[Tensor] = []
        if self._attention_tap is not None:
            columns = self._take_attention(index, rows, self._attention_tap.take().weights())
        # What was read at a token is kept for the one after it where that is what it predicts.
        first = index + (self._needs.pool == "predicting")
        if states is not None:
            finite = states.isfinite().all(dim=-1).transpose(1, 2).to(self._device)  # (b, q, layers)
            if self._finite is None:
                self._finite = finite.new_ones(self._rows, self._limit + 1, finite.shape[2])
            self._finite[rows, first : first + finite.shape[1]] = finite
        for place in range(len(columns) if states is None else states.shape[2]):
            if columns and columns[place].shape[-1]:
                self._waiting.append(_Step(index + place, rows, None, columns[place]))
            if states is not None:
                self._waiting.append(_Step(first + place, rows, states[:, :, place], None))

    def _take_attention(self, index: int, rows: Tensor, weights: Tensor) -> list[Tensor]:
        """Keep the rows of weights (b, heads, q, k); of each position those on generated tokens."""
        weights = weights.to(self._device)
        count, keys = weights.shape[2:]
        end = self._width + index + count
        if self._attention is None:
            shape = (self._rows, self._limit + 1, self._width + self._limit)
            self._attention = torch.zeros(shape, device=self._device)
        self._attention[rows, index + 1 : index + 1 + count, end - keys : end] = weights.mean(dim=1)
        found = []
        for place in range(count):
            stop = keys - count + place + 1  # later positions of the same pass are not seen
            found.append(weights[:, :, place, max(0, stop - index - place - 1) : stop])
        return found

    def drop(self, count: int) -> None:
        """Take back the last ``count`` positions taken, for their tokens were not written."""
        for _ in range(count * (bool(self._needs.layers) + self._needs.attention)):
            self._waiting.pop()

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
            keep = [i for i, row in enumerate(listed) if self._kept.get(row, self._limit) > step.index]
            if len(keep) < len(listed):
                chosen = torch.tensor(keep, dtype=torch.long, device=rows.device)
                rows = rows[chosen]
                states = None if states is None else states[chosen.to(states.device)]
                columns = None if columns is None else columns[chosen]
        if states is not None:
            vectors = token_vectors(states, self._needs.pool)
            if self._needs.pool in PER_TOKEN:
                for row, vector in zip(rows.tolist(), vectors.cpu(), strict=True):
                    self._tokens[row].append(vector)
            else:
                self._pooled.add(vectors.to(self._device), rows)
        if columns is not None:
            if self._column_max is None:
                self._column_max = columns.new_zeros(self._rows, columns.shape[1], self._limit)
            place = slice(step.index + 1 - columns.shape[-1], step.index + 1)
            best = self._column_max[rows, :, place]
            self._column_max[rows, :, place] = torch.maximum(best, columns)

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
        if self._needs.pool in PER_TOKEN:
            return torch.stack(self._tokens[row]).numpy()
        return self._pooled.value(row, kept).cpu().numpy()

    def attention(self, row: int, prompt: int) -> AttentionRows | None:
        """The kept part of ``row``'s attention, whose prompt has ``prompt`` tokens."""
        if self._attention is None:
            return None
        kept, pad = self._kept[row], self._width - prompt
        rows = np.array(self._attention[row, : kept + 1, pad : self._width + kept].cpu())
        if self._column_max is None or not kept:
            return AttentionRows(rows, np.zeros(kept, dtype=np.float32))
        return AttentionRows(rows, self._column_max[row, :, :kept].mean(dim=0).cpu().numpy())
