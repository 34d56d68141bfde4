"""The state of a decoding batch: the texts as they grow, and what the next pass needs of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .cache import GrowingLayer, new_cache
from .encoding import Prompt
from .forward import Decoder
from .known import Known, Recent, fill
from .nesting import nested_cache
from .offsets import TextStream
from .stops import Stops
from .types import StopReason


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
