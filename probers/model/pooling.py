"""Pooling of token states into the vectors of texts, and the only rounding before heads.

Texts are pooled while they are written (:class:`GrowingPool`), when they are read whole
(:class:`WholePool`), and from the vectors of their tokens (:func:`pool_tokens`), which gives the vector of
any part of a text. docs/engine.md defines each pool; "mind" is MIND's (Su et al. 2024), also used by
RaDIO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..types import Pool

#: Pools that keep a vector for every token; all others have one per text.
PER_TOKEN: tuple[Pool, ...] = ("tokens", "predicting", "positions", "mind_tokens")
#: Pools that begin with the state before the first token; "prompt" has only that one.
BEFORE: tuple[Pool, ...] = ("prompt", "predicting", "positions")

_HELD = 1 << 26  # bytes of single tokens' vectors that stay on the device until they are copied together


def all_finite(states: Tensor) -> Tensor:
    """Tell of each vector (.., d) whether all its numbers are finite, (..) bool.

    Only a finite number minus itself is 0; over 20 times as fast as asking ``isfinite`` of each on a CPU.
    """
    return (states - states).sum(dim=-1) == 0


def token_pool(*pools: Pool) -> Pool:
    """Return the pool to record so that :func:`pool_tokens` can compute ``pools`` for any part of a text.

    ValueError for pools that no single recording covers, and for "prompt", which is of no part of a text.
    """
    if "prompt" in pools:
        raise ValueError("pool=prompt is the state before a text, not the state of a part of it")
    recorded = {"mind_tokens" if p == "mind" else p if p in PER_TOKEN else "tokens" for p in pools}
    if len(recorded) > 1 and "mind_tokens" in recorded:
        raise ValueError(f"{pools} do not use the same states")
    return "positions" if len(recorded) > 1 else recorded.pop()


def span_of(vectors: np.ndarray, tokens: Sequence[int], recorded: Pool, pool: Pool) -> np.ndarray:
    """Copy the vectors (n, heads, width) that ``pool`` uses for the n ascending ``tokens`` of a text.

    The text's ``vectors`` were recorded with ``recorded``, a :func:`token_pool` of ``pool``.
    """
    after = recorded == "positions" and pool != "predicting"  # the first is before the first token
    return vectors[np.asarray(tokens) + after]


def token_vectors(states: Tensor, pool: Pool) -> Tensor:
    """Turn layers' states (.., layers, d) of tokens into their vectors (.., heads, width), float32.

    Heads are the layers, of width d. MIND has one of width 2 d: the mean of all layers read except
    the last, then the last one, which is the final norm's output.
    """
    states = states.float()
    if pool not in ("mind", "mind_tokens"):
        return states
    return torch.cat([states[..., :-1, :].mean(dim=-2), states[..., -1, :]], dim=-1)[..., None, :]


def _averaged_from(pool: Pool, width: int) -> int:
    """Return the index from which numbers are averaged over tokens; those before it are the last token's."""
    return {"mean": 0, "mind": width // 2}.get(pool, width)


def pool_tokens(vectors: np.ndarray, pool: Pool) -> np.ndarray:
    """Pool the vector (heads, width) of a run of tokens; pool "predicting" is the one before the first.

    ``vectors`` (n, heads, width), at least one, were recorded with :func:`token_pool`.
    """
    if pool == "predicting":
        return vectors[0].copy()
    pooled, start = vectors[-1].copy(), _averaged_from(pool, vectors.shape[-1])
    pooled[..., start:] = vectors[..., start:].mean(axis=0)
    return pooled


class StreamingPool:
    """The vectors of ``rows`` texts, pooled one token at a time; pools of single tokens keep the last one."""

    def __init__(self, pool: Pool, rows: int) -> None:
        self._pool, self._rows = pool, rows
        self._sums: Tensor | None = None  # (rows, heads, width): sums, or numbers of the last token

    def add(self, vectors: Tensor, rows: Tensor | slice) -> None:
        """Add one more token, (b, heads, width) from :func:`token_vectors`, of the texts ``rows`` (b,)."""
        if self._sums is None:
            self._sums = vectors.new_zeros(self._rows, *vectors.shape[1:])
        width = vectors.shape[-1]
        parts = [start := _averaged_from(self._pool, width), width - start]
        (last, sums), (newest, more) = self._sums.split(parts, dim=-1), vectors.split(parts, dim=-1)
        if start:
            last[rows] = newest
        if start < width and isinstance(rows, slice):
            sums[rows].add_(more)
        elif start < width:
            sums.index_add_(0, rows, more)

    def value(self, rows: int | slice, count: Tensor | int) -> Tensor:
        """Return vectors (.., heads, width) of some texts, which have had ``count`` >= 1 tokens."""
        assert self._sums is not None
        pooled = self._sums[rows].clone()
        pooled[..., _averaged_from(self._pool, pooled.shape[-1]) :] /= count
        return pooled


class Waiting:
    """Recorded steps whose tokens may still be cut from their texts.

    A stop string can begin before the token that completes it, so a step waits until it is committed: usually
    no time, and at most as many steps as the longest stop string has characters.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[int, Sequence[int], Tensor, Sequence[Tensor]]] = deque()

    def add(self, index: int, listed: Sequence[int], rows: Tensor, *values: Tensor) -> None:
        """Add values (b, ..) of the ``index``-th token of some rows (b,), ``listed`` also for the host."""
        self._steps.append((index, listed, rows, values))

    def drop(self, count: int) -> None:
        """Remove the last ``count`` steps."""
        for _ in range(count):
            self._steps.pop()

    def below(
        self, upto: int, lengths: Mapping[int, int]
    ) -> Iterator[tuple[int, Sequence[int], Tensor, Sequence[Tensor]]]:
        """Take the steps below ``upto``, without the rows that have ended and keep no such token."""
        while self._steps and self._steps[0][0] < upto:
            index, listed, rows, values = self._steps.popleft()
            keep = [i for i, row in enumerate(listed) if lengths.get(row, index + 1) > index]
            if len(keep) < len(listed):
                chosen = torch.tensor(keep, dtype=torch.long)
                rows, *values = (each[chosen.to(each.device)] for each in (rows, *values))
                listed = [listed[i] for i in keep]
            yield index, listed, rows, values


class GrowingPool:
    """One feature of ``rows`` texts that grow: tokens that may still be cut wait, the others are pooled.

    Places count from the first state that belongs to a text, which with ``positions`` is the one before its
    first token; ``prompt`` has only that place. Pooled vectors lie on ``device``, or where the states are.
    """

    def __init__(self, pool: Pool, rows: int, device: torch.device | None = None) -> None:
        self._pool, self._rows, self._device = pool, rows, device
        self._more = int(pool in ("positions", "prompt"))  # states of a text besides those of its tokens
        self._most = 1 if pool == "prompt" else None  # number of places read
        self._waiting = Waiting()
        self._pooled = StreamingPool(pool, rows)
        self._tokens: list[list[Tensor]] = [[] for _ in range(rows)]  # on the host
        self._held: list[tuple[Sequence[int], Tensor]] = []  # rows and vectors of tokens not yet on the host
        self._room = _HELD
        self._finite: list[tuple[int, Sequence[int], Tensor]] = []  # place, rows, (b, layers) bool

    def add(self, first: int, listed: Sequence[int], rows: Tensor, states: Tensor) -> None:
        """Add states (b, q, layers, d) of q places of the texts ``rows`` (b,), from ``first`` on.

        ``listed`` are the same rows on the host, which would otherwise wait for the device.
        """
        if self._most is not None:
            states = states[:, : max(0, self._most - first)]
        vectors = token_vectors(states, self._pool)
        for place, each in enumerate(zip(vectors.unbind(1), all_finite(states).unbind(1), strict=True)):
            self._waiting.add(first + place, listed, rows, *each)

    def drop(self, count: int) -> None:
        """Remove the last ``count`` places."""
        if self._most is None:
            self._waiting.drop(count)

    def commit(self, upto: int, lengths: Mapping[int, int]) -> None:
        """Pool the waiting tokens below ``upto``; ``lengths`` are the tokens that ended rows keep."""
        places = {row: count + self._more for row, count in lengths.items()} if self._more else lengths
        for place, listed, rows, (vectors, finite) in self._waiting.below(upto + self._more, places):
            self._finite.append((place, listed, finite))
            if self._pool in PER_TOKEN:
                self._held.append((listed, vectors))
                self._room -= vectors.nbytes
                if self._room < 0:
                    self._to_host()
            else:
                # Rows leave a batch and never come back: if all that began are here, they are in order.
                some = rows if len(rows) < self._rows else slice(None)
                self._pooled.add(vectors.to(device=self._device), some)

    def _to_host(self) -> None:
        """Copy the held vectors of single tokens all at once, since each copy waits for the device."""
        if not self._held:
            return
        rows = [row for listed, _ in self._held for row in listed]
        copied = torch.cat([vectors for _, vectors in self._held]).cpu()
        for row, vector in zip(rows, copied, strict=True):
            self._tokens[row].append(vector)
        self._held.clear()
        self._room = _HELD

    def broken(self) -> tuple[int, int, int] | None:
        """Find (row, token, layer's place) of the first committed state that is NaN or infinite."""
        if not self._finite or bool(torch.cat([good.flatten() for *_, good in self._finite]).all()):
            return None
        bad = ((place, listed, (~good).nonzero().tolist()) for place, listed, good in self._finite)
        row, place, layer = min((listed[i], place, k) for place, listed, cells in bad for i, k in cells)
        return row, max(0, place - self._more), layer

    def value(self, row: int, length: int) -> np.ndarray | None:
        """Return committed float32 states as in :class:`probers.types.Generation`; None where there are none.

        A text without tokens has none except that of ``prompt``.
        """
        if not self._finite or not (length or self._pool == "prompt"):
            return None
        if self._pool in PER_TOKEN:
            self._to_host()
            return torch.stack(self._tokens[row]).numpy()
        return self._pooled.value(row, length).cpu().numpy()


class WholePool:
    """The vectors of texts that one pass reads whole, layer by layer.

    ``scored`` (batch, T) bool tells which of the last T positions are tokens of the texts.
    """

    def __init__(self, pool: Pool, scored: Tensor) -> None:
        self._pool, self._texts = pool, scored
        self._scored = scored
        if pool in ("positions", "prompt"):  # the position before a text's first token belongs to it too
            self._scored = torch.nn.functional.pad(scored, (0, 1), value=True)
        if pool == "prompt":  # their mean is that state itself
            self._scored &= ~torch.nn.functional.pad(scored, (1, 0), value=False)
        self._finite: list[Tensor] = []  # (batch, T) per layer, in the order of the pass

    def layer(self, states: Tensor) -> Tensor:
        """Reduce a layer's states (batch, length, d) to its tokens, their mean, or the last."""
        longest = self._scored.shape[1]
        # The state that predicts a token is one to the left.
        place = slice(-longest - 1, -1) if self._pool == "predicting" else slice(-longest, None)
        states = states[:, place].float()
        here = self._scored.to(states.device)
        self._finite.append((all_finite(states) | ~here).to(self._scored.device))
        if self._pool in PER_TOKEN:
            return states.cpu()
        if self._pool == "last":
            return states[:, -1]
        mean = states.masked_fill(~here[..., None], 0.0).sum(dim=1) / here.sum(dim=1, keepdim=True)
        return torch.stack([states[:, -1], mean], dim=1) if self._pool == "mind" else mean

    def broken(self) -> tuple[int, int, int] | None:
        """Find (row, token, layer's place in the pass) of the first state that is NaN or infinite."""
        for place, good in enumerate(self._finite):
            for row, column in (~good).nonzero().tolist():
                return row, max(0, column - good.shape[1] + int(self._texts[row].sum())), place
        return None

    def value(self, layers: Tensor, row: int) -> np.ndarray:
        """Return the vector (heads, width) of one text, or (n, heads, width) of its tokens.

        ``layers`` (batch, .., layers, d) has the results of :meth:`layer`.
        """
        states = layers[row]
        if self._pool in PER_TOKEN:
            states = states[-int(self._scored[row].sum()) :]
        elif self._pool == "mind":
            states = torch.cat([states[0, :-1], states[1, -1:]])
        return np.array(token_vectors(states, self._pool).cpu())


def as_stored(vectors: np.ndarray | Tensor, dtype: str) -> Tensor:
    """Round float32 vectors to number format ``dtype``, as the store rounds the training data of heads."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.as_tensor(vectors).to(kind).float()
