"""Texts whose keys and values are at hand: a run's exemplars, and what was just written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from torch import Tensor
from transformers import DynamicCache

from .cache import GrowingLayer, empty
from .forward import Decoder

_Kind = Literal["keys", "values"]
_KINDS: tuple[_Kind, _Kind] = ("keys", "values")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Tokens that prompts may begin with, and their keys and values.

    Attributes:
        ids: the tokens.
        keys, values: per layer (heads, len(ids) - start, width), of the tokens from ``start`` on.
        before: has those of the first ``start`` tokens; None where start is 0.
    """

    ids: tuple[int, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    before: Known | None = None
    start: int = 0

    @classmethod
    def compute(cls, decoder: Decoder, ids: Sequence[int]) -> Known:
        """Run the model over ``ids`` once."""
        tokens, mask, positions = decoder.pad([ids])
        # Without the config, so that layers with a sliding window keep all positions too:
        # how far the window reaches depends on what follows.
        cache = DynamicCache()
        decoder(tokens, mask, positions, cache=cache)
        layers: list[Any] = cache.layers
        found = [(layer.keys[0], layer.values[0]) for layer in layers]
        return cls(tuple(ids), tuple(k for k, _ in found), tuple(v for _, v in found))

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens ``ids`` begins with that are known, its last one not counted.

        The last token is left to be computed, since its logits are wanted.
        """
        least = min(len(ids) - 1, len(self.ids))
        pairs = enumerate(zip(self.ids[:least], ids, strict=False))
        return next((i for i, (mine, its) in pairs if mine != its), least)

    def write(self, places: Tensor, which: _Kind, layer: int) -> None:
        """Put a layer's keys or values of the first n tokens into ``places`` (rows, heads, n, width)."""
        if self.before is not None:
            self.before.write(places[:, :, : self.start], which, layer)
        if places.shape[2] > self.start:
            own: Tensor = getattr(self, which)[layer]
            places[:, :, self.start :] = own[:, : places.shape[2] - self.start]


def fill(cache: Any, known: Sequence[Known], prompts: Sequence[Sequence[int]], pads: Sequence[int]) -> int:
    """Begin the empty cache of a left-padded batch with as many columns as are known in every row.

    Row i begins with its padding, and then has as much of ``known[i]`` as its prompt begins
    with. What a row still lacks lies in the columns after these, and is computed with the rest
    of its prompt: every row stands where it would without this, with the same positions and mask.

    Args:
        prompts: token ids of the rows.
        pads: columns of padding before each.

    Returns:
        The number of columns.
    """
    length = min(pad + one.common(ids) for pad, one, ids in zip(pads, known, prompts, strict=True))
    if not length:
        return 0
    like = known[0]
    runs = [(pad, one, len(list(rows))) for (pad, one), rows in groupby(zip(pads, known, strict=True))]
    for number, layer in enumerate(cache.layers):
        grows = isinstance(layer, GrowingLayer)
        make = layer.reserve if grows else empty
        keys, values = make(len(prompts), length, like.keys[number], like.values[number])
        start = 0
        for pad, one, count in runs:
            rows = slice(start, start + count)
            for places, which in zip((keys, values), _KINDS, strict=True):
                places[rows, :, :pad] = 0  # never seen, but it must be a number
                if length > pad:
                    one.write(places[rows, :, pad:], which, number)
            start += count
        if not grows:
            layer.update(keys, values)
    return length


class Recent:
    """The texts of late generations by name, for prompts that go on from them.

    Given to one call of :meth:`probers.lm.CausalLM.generate` after another: each takes from it
    what its prompts begin with, and leaves in it what it computed. Results do not depend on it.
    Nothing is left by families whose keys and values cannot be handed on (sliding windows), nor
    beyond ``megabytes``.
    """

    def __init__(self, *, megabytes: float = 1024) -> None:
        self._room = megabytes * 1e6
        self._texts: dict[str, Known] = {}
        self._taken: dict[str, int] = {}  # bytes

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, name: str) -> Known | None:
        """The last text of this name."""
        return self._texts.get(name)

    def keep(
        self, name: str, cache: Any, row: int, pad: int, ids: tuple[int, ...], known: Known | None
    ) -> None:
        """Copy what a batch's cache has of ``row``, in the place of the last text of that name.

        Args:
            pad: columns of padding that the row begins with.
            ids: the tokens after them, as many as the cache has or more.
            known: what the row began with, which is not copied again.
        """
        if known is None or known is not self._texts.get(name):
            self.forget(name)
        if not all(type(layer) is GrowingLayer for layer in cache.layers):
            return
        ids = ids[: cache.layers[0].get_seq_length() - pad]
        start = 0 if known is None else known.common(ids)
        keys = [layer.keys[row, :, pad + start :] for layer in cache.layers]
        values = [layer.values[row, :, pad + start :] for layer in cache.layers]
        size = sum(each.nbytes for each in keys + values)
        if size > self._room:
            self.forget(name)
            return
        self._room -= size
        self._taken[name] = self._taken.get(name, 0) + size  # what it goes on from stays in memory
        own = [tuple(each.clone() for each in kind) for kind in (keys, values)]
        self._texts[name] = Known(ids, own[0], own[1], known if start else None, start)

    def forget(self, name: str) -> None:
        """Leave out a text."""
        self._texts.pop(name, None)
        self._room += self._taken.pop(name, 0)
