"""Recorders of a decoding batch: states and attention, pooled incrementally while it runs.

Every buffer is indexed by the row a prompt had when the batch began, so that
rows which finish can leave the batch without anything here being moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..types import AttentionRows, Feature, Needs
from .attention import AttentionTap
from .hidden_states import tap_of
from .pooling import BEFORE, PER_TOKEN, StreamingPool, all_finite, token_vectors

if TYPE_CHECKING:
    from typing_extensions import Self


class _Waiting:
    """Recorded steps whose tokens may still be cut from their texts.

    Whether a token is kept may be known only later (a stop string can begin before the token that
    completes it), so a step waits until it is committed; as a rule that is at once, and at most for
    as many steps as the longest stop string has characters.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Tensor, Tensor]] = deque()

    def add(self, index: int, rows: Tensor, values: Tensor) -> None:
        """Values (b, ..) of the ``index``-th token of some rows (b,)."""
        self._steps.append((index, rows, values))

    def drop(self, count: int) -> None:
        """Take back the last ``count`` steps."""
        for _ in range(count):
            self._steps.pop()

    def below(self, upto: int, kept: Mapping[int, int]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Take the steps below ``upto``, without the rows that have ended and keep no such token."""
        while self._steps and self._steps[0][0] < upto:
            index, rows, values = self._steps.popleft()
            if kept:
                listed = rows.tolist()
                keep = [i for i, row in enumerate(listed) if kept.get(row, index + 1) > index]
                if len(keep) < len(listed):
                    rows = rows[torch.tensor(keep, dtype=torch.long, device=rows.device)]
                    values = values[torch.tensor(keep, dtype=torch.long, device=values.device)]
            yield index, rows, values


class FeatureRecorder(ExitStack):
    """One feature of a batch's texts: its tap, and what was read, checked and pooled.

    Args:
        prompts, limit: as of :class:`CaptureSession`.
    """

    def __init__(self, model: Any, feature: Feature, prompts: Sequence[int], limit: int) -> None:
        super().__init__()
        rows = len(prompts)
        self._pool, self._rows, self._limit = feature.pool, rows, limit
        self._device: torch.device = model.device
        self._prompts = torch.tensor(prompts, device=self._device)
        self._tap = tap_of(model, feature)
        # Of "positions" the first is that before the first token: there is one more than tokens.
        self._more = int(feature.pool == "positions")
        self._waiting = _Waiting()
        self._pooled = StreamingPool(feature.pool, rows)
        self._tokens: list[list[Tensor]] = [[] for _ in range(rows)]
        self._finite: Tensor | None = None  # (rows, limit + 1, layers)
        self._count = 0  # positions that are read

    def __enter__(self) -> Self:
        self.enter_context(self._tap)
        if self._pool in BEFORE:
            self.read_last(1)
        return self

    def read_last(self, count: int) -> None:
        self._tap.read_last(count)
        self._count = count

    def take(self, index: int, rows: Tensor) -> None:
        # (b, q, layers, d)
        states = self._tap.take_last(self._prompts[rows], torch.full_like(rows, index + self._count))
        if states is None:
            return
        # What was read at a token is kept for the one after it where that is what it predicts.
        first = index + (self._pool in BEFORE)
        finite = all_finite(states).to(self._device)
        if self._finite is None:
            self._finite = finite.new_ones(self._rows, self._limit + 1, finite.shape[2])
        self._finite[rows, first : first + finite.shape[1]] = finite
        for place in range(states.shape[1]):
            self._waiting.add(first + place, rows, states[:, place])

    def drop(self, count: int) -> None:
        self._waiting.drop(count)

    def commit(self, upto: int, kept: Mapping[int, int]) -> None:
        """Pool the waiting tokens below ``upto``; ``kept`` is how many rows that have ended keep."""
        places = {row: count + self._more for row, count in kept.items()} if self._more else kept
        for _, rows, states in self._waiting.below(upto + self._more, places):
            vectors = token_vectors(states, self._pool)
            if self._pool in PER_TOKEN:
                for row, vector in zip(rows.tolist(), vectors.cpu(), strict=True):
                    self._tokens[row].append(vector)
            else:
                # Rows leave a batch and never come back: as many as began are all, in their order.
                some = rows if len(rows) < self._rows else slice(None)
                self._pooled.add(vectors.to(self._device), some)

    def broken(self, kept: Mapping[int, int]) -> tuple[int, int, int] | None:
        """(row, token, layer index) of the first kept state that is NaN or infinite."""
        if self._finite is None or bool(self._finite.all()):
            return None
        for row, place, layer in (~self._finite).nonzero().tolist():
            if place < kept[row] + self._more:
                return row, max(0, place - self._more), layer
        return None

    def value(self, row: int, kept: int) -> np.ndarray | None:
        """float32 states as :class:`probers.types.Generation` has them; None when nothing was pooled."""
        if not kept or self._finite is None:
            return None
        if self._pool in PER_TOKEN:
            return torch.stack(self._tokens[row]).numpy()
        return self._pooled.value(row, kept).cpu().numpy()


class AttentionRecorder(ExitStack):
    """Attention of one layer at the tokens of a batch's texts.

    Args:
        layer: block, 1-based; None is the last.
        prompts, limit: as of :class:`CaptureSession`.
    """

    def __init__(self, model: Any, layer: int | None, prompts: Sequence[int], limit: int) -> None:
        super().__init__()
        self._prompts, self._rows, self._width, self._limit = prompts, len(prompts), max(prompts), limit
        self._device: torch.device = model.device
        self._tap = AttentionTap(model, layer)
        self._waiting = _Waiting()  # weights (b, heads, g) of a token on the last g tokens
        self._attention: Tensor | None = None  # (rows, limit + 1, width + limit)
        self._column_max: Tensor | None = None  # (rows, heads, limit)

    def __enter__(self) -> Self:
        self.enter_context(self._tap)
        self._tap.read(1)
        return self

    def read_last(self, count: int) -> None:
        self._tap.read(count)

    def take(self, index: int, rows: Tensor) -> None:
        weights = self._tap.take().weights().to(self._device)  # (b, heads, q, k)
        count, keys = weights.shape[2:]
        end = self._width + index + count
        if self._attention is None:
            shape = (self._rows, self._limit + 1, self._width + self._limit)
            self._attention = torch.zeros(shape, device=self._device)
        self._attention[rows, index + 1 : index + 1 + count, end - keys : end] = weights.mean(dim=1)
        for place in range(count):
            stop = keys - count + place + 1  # later positions of the same pass are not seen
            columns = weights[:, :, place, max(0, stop - index - place - 1) : stop]
            if columns.shape[-1]:
                self._waiting.add(index + place, rows, columns)

    def drop(self, count: int) -> None:
        self._waiting.drop(count)

    def commit(self, upto: int, kept: Mapping[int, int]) -> None:
        for index, rows, columns in self._waiting.below(upto, kept):
            if self._column_max is None:
                self._column_max = columns.new_zeros(self._rows, columns.shape[1], self._limit)
            place = slice(index + 1 - columns.shape[-1], index + 1)
            best = self._column_max[rows, :, place]
            self._column_max[rows, :, place] = torch.maximum(best, columns)

    def value(self, row: int, kept: int) -> AttentionRows | None:
        """The kept part of ``row``'s attention."""
        if self._attention is None:
            return None
        first = self._width - self._prompts[row]
        rows = np.array(self._attention[row, : kept + 1, first : self._width + kept].cpu())
        if self._column_max is None or not kept:
            return AttentionRows(rows, np.zeros(kept, dtype=np.float32))
        return AttentionRows(rows, self._column_max[row, :, :kept].mean(dim=0).cpu().numpy())


class CaptureSession(ExitStack):
    """Reads the last positions of a batch's passes, and pools those of the tokens that are kept.

    Before a pass :meth:`read_last` says how many positions to read, and after it :meth:`take`
    takes them; of the prompts' pass the last is read where it is needed.

    Attributes:
        reads: whether anything is read but logits.

    Args:
        prompts: tokens of each prompt of the batch, which are padded to the longest.
        limit: most tokens that may be generated for a row.
    """

    def __init__(self, model: Any, needs: Needs, prompts: Sequence[int], limit: int) -> None:
        super().__init__()
        self._features = {each: FeatureRecorder(model, each, prompts, limit) for each in needs.features}
        self._attention = (
            AttentionRecorder(model, needs.attention_layer, prompts, limit) if needs.attention else None
        )
        attention = [] if self._attention is None else [self._attention]
        self._all: list[FeatureRecorder | AttentionRecorder] = [*self._features.values(), *attention]
        self.reads = bool(self._all)
        self._kept: dict[int, int] = {}

    def __enter__(self) -> Self:
        for recorder in self._all:
            self.enter_context(recorder)
        return self

    def read_last(self, count: int) -> None:
        """Read the last ``count`` positions of the next pass."""
        for recorder in self._all:
            recorder.read_last(count)

    def take(self, index: int, rows: Tensor) -> None:
        """Take what the last pass left.

        Args:
            index: the generated token at the first position read, from 0; -1 for the prompts' last
                position, which predicts token 0.
            rows: (b,) rows that the batch began with and that ran.
        """
        for recorder in self._all:
            recorder.take(index, rows)

    def drop(self, count: int) -> None:
        """Take back the last ``count`` positions taken, for their tokens were not written."""
        for recorder in self._all:
            recorder.drop(count)

    def finish(self, row: int, kept: int) -> None:
        """``row`` has ended and its first ``kept`` tokens are its text."""
        self._kept[row] = kept

    def commit(self, upto: int) -> None:
        """Pool the waiting tokens below ``upto``, which every row still running is known to keep."""
        for recorder in self._all:
            recorder.commit(upto, self._kept)

    def broken(self) -> tuple[Feature, int, int, int] | None:
        """(feature, row, token, layer index) of the first kept state that is NaN or infinite."""
        for feature, recorder in self._features.items():
            if (found := recorder.broken(self._kept)) is not None:
                return feature, *found
        return None

    def states(self, row: int) -> dict[Feature, np.ndarray]:
        """The float32 states as :class:`probers.types.Generation` has them."""
        found = {each: recorder.value(row, self._kept[row]) for each, recorder in self._features.items()}
        return {each: states for each, states in found.items() if states is not None}

    def attention(self, row: int) -> AttentionRows | None:
        """The kept part of ``row``'s attention."""
        return None if self._attention is None else self._attention.value(row, self._kept[row])
