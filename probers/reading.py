"""What is read while a batch is decoded: the taps, and the recorder that they fill."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .attention import AttentionTap, Returned
from .capture import StateTap
from .recorder import Recorder
from .types import Needs

if TYPE_CHECKING:
    from typing_extensions import Self


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
