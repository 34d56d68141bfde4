"""Recorders of a decoding batch: states and attention, pooled incrementally while it runs.

Every buffer is indexed by a prompt's row at the start of the batch, so that finished rows can leave the
batch without any move here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..store.spec import places_for
from ..types import AttentionRows, Feature, Needs
from .attention import AttentionTap
from .hidden_states import tap_of
from .pooling import BEFORE, GrowingPool, Waiting


class FeatureRecorder(GrowingPool):
    """One feature of a batch's texts: its tap and recordings; ``prompts`` are their lengths."""

    def __init__(self, model: Any, feature: Feature, prompts: Sequence[int]) -> None:
        super().__init__(feature.pool, len(prompts), model.device)
        self._prompts = torch.tensor(prompts, device=model.device)
        self.tap = tap_of(model, feature)
        # A state that predicts the next token is kept until that token arrives.
        self._ahead = int(feature.pool in BEFORE)
        self.goes_on = feature.pool != "prompt"  # whether tokens are read as well
        self._count = self._ahead  # number of positions read
        self.tap.read_last(self._count)

    def read_last(self, count: int) -> None:
        self._count = count if self.goes_on else 0
        self.tap.read_last(self._count)

    def take(self, index: int, listed: Sequence[int], rows: Tensor) -> None:
        states = self.tap.take_last(self._prompts[rows], torch.full_like(rows, index + self._count))
        if states is not None:
            self.add(index + self._ahead, listed, rows, states)


class AttentionRecorder:
    """Recorder of attention of one layer (None is the last) at the tokens of a batch's texts."""

    def __init__(self, model: Any, layer: int | None, prompts: Sequence[int], limit: int) -> None:
        self._prompts, self._rows, self._width, self._limit = prompts, len(prompts), max(prompts), limit
        self._device: torch.device = model.device
        self.tap = AttentionTap(model, layer)
        self._waiting = Waiting()  # weights (b, heads, g) of a token on the last g tokens
        self._attention = torch.zeros(self._rows, limit + 1, self._width + limit, device=self._device)
        self._column_max: Tensor | None = None  # (rows, heads, limit)
        self.read_last(1)

    def read_last(self, count: int) -> None:
        self.tap.read(count)

    def take(self, index: int, listed: Sequence[int], rows: Tensor) -> None:
        weights = self.tap.weights().to(self._device)  # (b, heads, q, k)
        count, keys = weights.shape[2:]
        end = self._width + index + count
        self._attention[rows, index + 1 : index + 1 + count, end - keys : end] = weights.mean(dim=1)
        for place in range(count):
            stop = keys - count + place + 1  # later positions of the same pass are not seen
            columns = weights[:, :, place, max(0, stop - index - place - 1) : stop]
            if columns.shape[-1]:
                self._waiting.add(index + place, listed, rows, columns)

    def drop(self, count: int) -> None:
        self._waiting.drop(count)

    def commit(self, upto: int, lengths: Mapping[int, int]) -> None:
        for index, _, rows, (columns,) in self._waiting.below(upto, lengths):
            if self._column_max is None:
                self._column_max = columns.new_zeros(self._rows, columns.shape[1], self._limit)
            place = slice(index + 1 - columns.shape[-1], index + 1)
            best = self._column_max[rows, :, place]
            self._column_max[rows, :, place] = torch.maximum(best, columns)

    def value(self, row: int, length: int) -> AttentionRows:
        first = self._width - self._prompts[row]
        rows = np.array(self._attention[row, : length + 1, first : self._width + length].cpu())
        if self._column_max is None:  # nothing was written
            return AttentionRows(rows, np.zeros(0, dtype=np.float32))
        return AttentionRows(rows, self._column_max[row, :, :length].mean(dim=0).cpu().numpy())


class CaptureSession(ExitStack):
    """Recorder of the last positions of a batch's passes, which pools the tokens that are kept.

    Before a pass :meth:`read_last` sets the number of positions to read; after it :meth:`take` takes them.
    Rows have ``prompts`` tokens and write at most ``limit``. ``reads`` tells whether anything of their tokens
    besides logits is read.
    """

    def __init__(self, model: Any, needs: Needs, prompts: Sequence[int], limit: int) -> None:
        super().__init__()
        self._needs = needs
        self._features = {each: FeatureRecorder(model, each, prompts) for each in tapped(needs)}
        self._all: list[FeatureRecorder | AttentionRecorder] = [*self._features.values()]
        self._attention: AttentionRecorder | None = None
        if needs.attention:
            self._attention = AttentionRecorder(model, needs.attention_layer, prompts, limit)
            self._all.append(self._attention)
        self.reads = needs.attention or any(each.goes_on for each in self._features.values())
        self._lengths: dict[int, int] = {}

    def __enter__(self) -> CaptureSession:
        for recorder in self._all:
            self.enter_context(recorder.tap)
        return self

    def read_last(self, count: int) -> None:
        """Read the last ``count`` positions of the next pass."""
        for recorder in self._all:
            recorder.read_last(count)

    def take(self, index: int, listed: Sequence[int], rows: Tensor) -> None:
        """Take the records of the last pass for ``rows`` (b,), the batch's that ran, ``listed`` on the host.

        ``index`` is the generated token at the first position read; -1 is the prompts' last position.
        """
        for recorder in self._all:
            recorder.take(index, listed, rows)

    def drop(self, count: int) -> None:
        """Remove the last ``count`` positions taken, whose tokens were rejected."""
        for recorder in self._all:
            recorder.drop(count)

    def finish(self, row: int, length: int) -> None:
        """End ``row``, whose text has ``length`` tokens."""
        self._lengths[row] = length

    def commit(self, upto: int) -> None:
        """Pool the waiting tokens below ``upto``, which every running row certainly keeps."""
        for recorder in self._all:
            recorder.commit(upto, self._lengths)

    def broken(self) -> tuple[Feature, int, int, int] | None:
        """Find (feature, row, token, layer index) of the first kept state that is NaN or infinite."""
        for feature, recorder in self._features.items():
            if (place := recorder.broken()) is not None:
                return feature, *place
        return None

    def states(self, row: int, scores: np.ndarray) -> dict[Feature, np.ndarray]:
        """Return the float32 states as in :class:`probers.types.Generation`.

        ``scores`` are those of the kept tokens, from :func:`probers.model.forward.token_scores`.
        """
        length = self._lengths[row]
        values = {each: recorder.value(row, length) for each, recorder in self._features.items()}
        return joined(self._needs, {each: read for each, read in values.items() if read is not None}, scores)

    def attention(self, row: int) -> AttentionRows | None:
        """Return the kept part of ``row``'s attention."""
        return None if self._attention is None else self._attention.value(row, self._lengths[row])


def tapped(needs: Needs) -> tuple[Feature, ...]:
    """List the features to read from the running model for all of ``needs``, each once."""
    parts = (part for feature in needs.features for part in _parts(feature))
    return tuple(dict.fromkeys(part for part in parts if part.site != "probabilities"))


def joined(needs: Needs, read: Mapping[Feature, np.ndarray], scores: np.ndarray) -> dict[Feature, np.ndarray]:
    """Make the states of each feature of ``needs`` from those ``read`` for :func:`tapped`.

    ``scores`` (2, n) are log-probabilities and entropies of the text's tokens, with the two highest
    probabilities (4, n) where they are asked for.
    """
    states = dict[Feature, np.ndarray]()
    for feature in needs.features:
        parts = _parts(feature)
        vectors = [
            read[part] if part in read else _probabilities(scores, part)
            for part in parts
            if part in read or (part.site == "probabilities" and scores.shape[1])
        ]
        if len(vectors) == len(parts):
            main, *beside = vectors
            places = [as_places(vector, main.shape[-1]) for vector in beside]
            states[feature] = np.concatenate([main, *places], axis=-2) if places else main
    return states


def as_places(vectors: np.ndarray, width: int) -> np.ndarray:
    """Split vectors (.., 1, m) over the places of ``width`` they need, (.., places, width), zeros last."""
    *before, _, size = vectors.shape
    padded = np.zeros((*before, places_for(size, width) * width), dtype=vectors.dtype)
    padded[..., :size] = vectors[..., 0, :]
    return padded.reshape(*before, -1, width)


def _parts(feature: Feature) -> list[Feature]:
    beside = [Feature(feature.layers[-1:], kind, feature.pool) for kind in feature.beside]
    return [replace(feature, beside=()) if beside else feature, *beside]


def _probabilities(scores: np.ndarray, part: Feature) -> np.ndarray:
    """Return numbers (n, 1, 4) of n tokens, or (1, 4) where the pool has one vector.

    They are log-probability, entropy, and the two highest probabilities of the token's distribution.
    """
    each = scores.T[:, None].astype(np.float32)
    if part.pool == "tokens":
        return each
    return each[-1] if part.pool == "last" else each.mean(axis=0)
