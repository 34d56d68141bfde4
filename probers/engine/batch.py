"""The state of a decoding batch: its rows, how their tokens are drawn, and what the next pass needs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..types import StopReason, UserError
from .forward import Decoder
from .kv_cache import GrowingLayer, Known, Recent, fill, nested_cache, new_cache
from .stopping import Stops
from .tokens import Prompt, TextStream


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample instead of taking the likeliest token.

    Recorded log-probabilities and entropies stay those of the raw logits.

    Attributes:
        temperature: logits are divided by it.
        top_k: draw among this many likeliest tokens; 0 for all.
        top_p: draw among the likeliest tokens that together have this probability.
        seed: a prompt's tokens depend on it, on the prompt, and on how many times the
            same prompt stands before it in the call; not on its neighbours.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(
                f"temperature={self.temperature} must be above 0; leave sampling out for greedy decoding"
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                f"top_k={self.top_k} must be 0 or more and top_p={self.top_p} above 0 and at most 1"
            )

    def streams(self, prompts: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
        """What the random numbers of each prompt (token ids) are derived from."""
        seen: Counter[bytes] = Counter()
        found = []
        for ids in prompts:
            digest = hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).digest()[:8]
            found.append((self.seed, int.from_bytes(digest, "little"), seen[digest]))
            seen[digest] += 1
        return found


class Sampler:
    """Draws the next tokens of a batch.

    Args:
        streams: one per row, from :meth:`Sampling.streams`.
    """

    def __init__(self, sampling: Sampling, streams: Sequence[tuple[int, int, int]]) -> None:
        self._sampling = sampling
        self._rows = [np.random.default_rng(list(stream)) for stream in streams]

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """Tokens (batch,) for logits (batch, vocabulary) of these rows."""
        wanted = self._sampling
        ordered, order = (logits.float() / wanted.temperature).sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        if wanted.top_k:
            probabilities[:, wanted.top_k :] = 0
        total = probabilities.double().cumsum(dim=-1)
        if wanted.top_p < 1:
            # The token that reaches top_p is the last one drawn from.
            probabilities[total - probabilities >= wanted.top_p * total[:, -1:]] = 0
            total = probabilities.double().cumsum(dim=-1)
        numbers = torch.tensor([self._rows[row].random() for row in rows], dtype=torch.float64)
        place = torch.searchsorted(total, numbers.to(total.device)[:, None] * total[:, -1:], right=True)
        return order.gather(-1, place.clamp_max(logits.shape[-1] - 1))[:, 0]


@dataclass(slots=True)
class Row:
    """A prompt's text as it grows, up to ``limit`` tokens."""

    prompt: Prompt
    stream: TextStream | None
    limit: int
    ids: list[int] = field(default_factory=list)
    kept: int = 0
    stop: StopReason | None = None

    def accept(self, token: int, stops: Stops) -> None:
        """Take the next token, and find out whether the text ends with it."""
        if token in stops.eos:
            self.kept, self.stop = len(self.ids), "eos"
            return
        self.ids.append(token)
        self.kept = len(self.ids)
        if self.stream is not None:
            known = len(self.stream.visible)
            self.stream.push(token)
            text = self.stream.visible
            place = stops.find(text, known)
            if place is not None:
                kept = sum(end <= place for _, end in self.stream.offsets())
                self.kept = max(kept, self.stream.settled(0))  # what was pooled stays
                self.stop = "stop"
                return
            if any(stop(text) for stop in stops.callables):
                self.stop = "stop"
                return
        if len(self.ids) == self.limit:
            self.stop = "length"

    def safe(self, stops: Stops) -> int:
        """How many tokens are kept whatever comes next."""
        if self.stream is None or not stops.look_back:
            return len(self.ids)
        return self.stream.settled(stops.safe(self.stream.visible))


class Running:
    """The rows of a batch that still run: what the next forward pass needs of them.

    Attributes:
        rows: (b,) the rows that the batch began with and that are left.
        active: the same as a list.
        width: columns of the prompts, padding included.
        logits: (b, q, vocabulary) of the last pass.

    Args:
        limit: most tokens a row may get.
        known: of each row, what its prompt may begin with; None computes all of them.
        use_cache: False computes the whole text again for every token.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Prompt],
        limit: int,
        *,
        known: Sequence[Known] | None = None,
        use_cache: bool = True,
    ) -> None:
        self._decoder = decoder
        tokens = [prompt.ids for prompt in prompts]
        ids, self._mask, self._positions = decoder.pad(tokens)
        self.rows = torch.arange(len(prompts), device=decoder.device)
        self.active = list(range(len(prompts)))
        self.width = ids.shape[1]
        self._ids = None if use_cache else ids
        capacity = self.width + limit
        self._known = known
        self._pads = [self.width - len(prompt.ids) for prompt in prompts]
        self._cache: Any = nested_cache(decoder, tokens, capacity) if use_cache and known is None else None
        if self._cache is not None:
            ids, self._positions = ids[:, -1:], self._positions[:, -1:]
        elif use_cache:
            self._cache = new_cache(decoder.model.config, capacity)
        if known is not None and use_cache:
            columns = fill(self._cache, known, tokens, self._pads)
            ids, self._positions = ids[:, columns:], self._positions[:, columns:]
        self.logits = decoder(ids, self._mask, self._positions, cache=self._cache)

    @property
    def can_drop(self) -> bool:
        """Whether tokens that were forwarded can be taken back."""
        return self._cache is not None and all(type(layer) is GrowingLayer for layer in self._cache.layers)

    def select(self, slots: list[int]) -> None:
        """Keep only some of the batch's rows, in the order that :func:`closed` gives them."""
        chosen = torch.tensor(slots, device=self._decoder.device)
        if self._cache is not None:
            self._cache.batch_select_indices(chosen)
        if self._ids is not None:
            self._ids = self._ids[chosen]
        self.rows, self._positions = self.rows[chosen], self._positions[chosen]
        if self._mask is not None:
            self._mask = self._mask[chosen]
        self.active = [self.active[slot] for slot in slots]

    def leave(self, recent: Recent | None, rows: Sequence[Row], slots: Iterable[int]) -> None:
        """Keep what the cache has of some of the batch's rows for later, where that is wanted."""
        if recent is None or self._cache is None:
            return
        for slot in slots:
            number = self.active[slot]
            prompt, known = rows[number].prompt, None if self._known is None else self._known[number]
            ids = (*prompt.ids, *rows[number].ids)
            recent.keep(prompt.name, self._cache, slot, self._pads[number], ids, known)

    def step(self, tokens: Tensor) -> None:
        """Forward the next tokens of each row, (b, q); without a cache q is 1."""
        count = tokens.shape[1]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(tokens.shape)], dim=1)
        ahead = torch.arange(1, count + 1, device=tokens.device)
        following = self._positions[:, -1:] + ahead
        if self._ids is not None:
            following = torch.cat([self._positions, following], dim=1)
            self._ids = tokens = torch.cat([self._ids, tokens], dim=1)
        self._positions = following
        self.logits = self._decoder(tokens, self._mask, following, keep=count, cache=self._cache)

    def drop(self, count: int) -> None:
        """Take back the last ``count`` tokens of every row."""
        if not count:
            return
        for layer in self._cache.layers:
            layer.drop(count)
        self._positions = self._positions[:, :-count]
        if self._mask is not None:
            self._mask = self._mask[:, :-count]


def closed(slots: Sequence[int]) -> list[int]:
    """Ascending slots that are kept, most where they are: the last ones fill the gaps."""
    count = len(slots)
    moved = [slot for slot in slots if slot >= count]
    kept = set(slots)
    return [slot if slot in kept else moved.pop() for slot in range(count)]
