"""One forward call of any decoder-only model of transformers, and the key/value cache that it extends.

Batches are left-padded. transformers' dynamic cache makes a new tensor of the whole context for every token
and layer; here room for the whole text is allocated once and filled, which gives the same numbers and makes
long prompts in large batches cheap to continue.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..types import RunError, UserError, first_line

_ROOM = 64  # positions added when a text outgrows its room


class Decoder:
    """A causal language model as a function from tokens to the logits of the last positions.

    Families differ in what their forward accepts; the ones without ``position_ids``
    derive positions from the mask, the ones without ``logits_to_keep`` compute all logits.

    Args:
        use_cache: False does without keys and values, for models whose cache is broken.
    """

    def __init__(self, model: Any, *, use_cache: bool = True) -> None:
        accepted = inspect.signature(model.forward).parameters
        self.model = model
        self.device: torch.device = model.device
        self.use_cache = use_cache
        self._positions = "position_ids" in accepted
        self._keeps = "logits_to_keep" in accepted

    def __call__(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, *, keep: int = 1, cache: Any = None
    ) -> Tensor:
        """Logits (batch, keep, vocabulary) of the last ``keep`` positions, in the model's number format.

        Args:
            ids: (batch, length).
            mask: (batch, cached + length), 1 where a token is, or None without padding.
            positions: (batch, length), of each token in its own sequence.
            keep: positions whose logits are wanted, counted from the end.
            cache: key/value cache that the call extends; None for a pass without one.
        """
        options: dict[str, Any] = {"use_cache": cache is not None, "past_key_values": cache}
        if self._positions:
            options["position_ids"] = positions
        if self._keeps:
            options["logits_to_keep"] = keep
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits
        return logits[:, -keep:]

    @torch.inference_mode()
    def check(self) -> None:
        """Refuse a model whose logits depend on padding, or whose cache cannot be extended (UserError)."""
        if self.device.type == "meta":  # without weights, which run elsewhere
            return
        family, text, longer = type(self.model).__name__, [0, 1, 2, 1, 0], [1, 2, 0, 2, 1, 0, 2, 1]
        ids, mask, positions = self.pad([text])
        try:
            alone = self(ids, mask, positions)[0, -1].float()
            if not bool(alone.isfinite().all()):  # broken weights are reported where they are read
                return
            others = {"beside a longer text": self(*self.pad([text, longer]))[0, -1].float()}
            if self.use_cache:
                cache = new_cache(self.model.config, len(text))
                self(ids[:, :3], None, positions[:, :3], cache=cache)
                others["in two pieces"] = self(ids[:, 3:], None, positions[:, 3:], cache=cache)[0, -1].float()
        except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError) as error:
            raise UserError(f"{family} cannot be read: {first_line(error)}", "model") from error
        close = (1e-3 if self.model.dtype == torch.float32 else 5e-2) * float(alone.abs().max())
        for how, logits in others.items():
            if float((logits - alone).abs().max()) > close:
                raise UserError(
                    f"{family} reads a text {how} as another one, so that what it writes would depend on the "
                    "batch: choose a decoder that takes position_ids or derives positions from the mask",
                    "model",
                )

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None, Tensor]:
        """Left-padded ids, mask (None when nothing had to be padded) and positions, each (batch, length).

        Padding is masked, so that it may be any token; 0 exists in every vocabulary, while
        a tokenizer's padding token may be missing or unknown to the model.
        """
        width = max(len(ids) for ids in sequences)
        pads = [width - len(ids) for ids in sequences]
        rows = [[0] * pad + list(ids) for pad, ids in zip(pads, sequences, strict=True)]
        ids = torch.tensor(rows, device=self.device)
        positions = torch.arange(width, device=self.device) - torch.tensor(pads, device=self.device)[:, None]
        mask = (positions >= 0).long() if any(pads) else None
        return ids, mask, positions.clamp_min(0)


def token_scores(logits: Tensor, tokens: Tensor, *, top: bool = False) -> Tensor:
    """(2, ...) log-probability of ``tokens`` and entropy of their distribution, nats, float32.

    Args:
        logits: (..., vocabulary) raw logits; -inf excludes a token.
        tokens: (...).
        top: also the distribution's two highest probabilities, (4, ...) together.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(-1, tokens[..., None])[..., 0]
    highest = logprobs.topk(2, dim=-1).values.exp().unbind(dim=-1) if top else ()
    # One product instead of a logarithm per token of the vocabulary; 0 * -inf would be NaN.
    entropies = -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min_(torch.finfo(torch.float32).min))
    return torch.stack([chosen, entropies, *highest])


def broken_logits(where: str) -> RunError:
    """The error for logits from which no token can be chosen or scored."""
    return RunError(f"the logits are NaN or infinite at {where}; try dtype=float32 or bfloat16", "model")


class GrowingLayer(DynamicLayer):
    """One layer's keys and values, as views of buffers with room for what is to come: positions, and rows.

    Args:
        capacity: positions to make room for at first.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, width) keys and values; returns all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        rows = len(key_states)
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._make_room(key_states, value_states, end + _ROOM if start else end)
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, start:end] = new
        self.keys, self.values = (buffer[:rows, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def reserve(self, rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Begin with ``length`` positions in each row, for the caller to fill.

        Args:
            keys, values: (heads, _, width) of one row, for their shape and kind.

        Returns:
            Keys and values (rows, heads, length, width) as the cache holds them.
        """
        self.lazy_initialization(keys, values)
        self._buffers = empty(rows, max(length, self._capacity), keys, values)
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)
        return self.keys, self.values

    def _make_room(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        start, before = self.get_seq_length(), (self.keys, self.values)
        self._buffers = empty(len(keys), max(capacity, self._capacity), keys[0], values[0])
        if start:
            for buffer, old in zip(self._buffers, before, strict=True):
                assert old is not None  # there are positions already
                buffer[:, :, :start] = old

    def join(self, other: GrowingLayer, rows: int) -> None:
        """Take the rows of another layer as well; the shorter ones begin with positions to be masked.

        Args:
            rows: to make room for.
        """
        if other.keys is None or other.values is None:
            return
        if self.keys is None or self.values is None:
            self.lazy_initialization(other.keys, other.values)
        assert self.keys is not None and self.values is not None
        before, length = (0, 0) if self._buffers is None else (len(self.keys), self.get_seq_length())
        after, total = before + len(other.keys), max(length, other.get_seq_length())
        old = self._buffers
        if old is None or after > len(old[0]) or total > old[0].shape[-2]:
            self._buffers = empty(max(after, rows), total + _ROOM, other.keys[0], other.values[0])
        assert self._buffers is not None
        if before and (old is not self._buffers or total > length):
            for buffer, own in zip(self._buffers, (self.keys, self.values), strict=True):
                _align(buffer[:before, :, :total], own.clone())  # it may lie in the same buffer
        for buffer, own in zip(self._buffers, (other.keys, other.values), strict=True):
            _align(buffer[before:after, :, :total], own)
        self.keys, self.values = (buffer[:after, :, :total] for buffer in self._buffers)

    def trim(self, count: int) -> None:
        """Forget the first ``count`` positions of every row."""
        if self._buffers is None or self.keys is None:
            return
        rows, length = len(self.keys), self.get_seq_length() - count
        for buffer in self._buffers:
            buffer[:rows, :, :length] = buffer[:rows, :, count : count + length].clone()
        self.keys, self.values = (buffer[:rows, :, :length] for buffer in self._buffers)

    def drop(self, count: int) -> None:
        """Take back the last ``count`` positions."""
        if self._buffers is not None and self.keys is not None:
            rows, length = len(self.keys), self.get_seq_length() - count
            self.keys, self.values = (buffer[:rows, :, :length] for buffer in self._buffers)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and the room there was.

        Where rows keep their place and the others come from behind them, as
        :func:`probers.engine.decode.closed` orders them, only those are copied.
        """
        if self._buffers is None:
            return
        length, sources = self.get_seq_length(), indices.tolist()
        moved = [(row, source) for row, source in enumerate(sources) if row != source]
        if all(source >= len(sources) for _, source in moved):
            for buffer in self._buffers:
                for row, source in moved:
                    buffer[row, :, :length] = buffer[source, :, :length]
        else:
            keys, values = (buffer.index_select(0, indices.to(buffer.device)) for buffer in self._buffers)
            self._buffers = keys, values
        self.keys, self.values = (buffer[: len(sources), :, :length] for buffer in self._buffers)


def _align(places: Tensor, values: Tensor) -> None:
    """Put values (rows, heads, n, width) at the end of ``places`` (rows, heads, length, width)."""
    start = places.shape[2] - values.shape[2]
    places[:, :, :start] = 0  # never seen, but it must be a number
    places[:, :, start:] = values


def empty(rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised (rows, heads, length, width) like keys and values (heads, _, width)."""
    made = [one.new_empty(rows, one.shape[0], length, one.shape[2]) for one in (keys, values)]
    return made[0], made[1]


def new_cache(config: Any, capacity: int, *, whole: bool = False) -> DynamicCache:
    """An empty cache for a model of ``config``; full attention has room for ``capacity`` positions.

    Args:
        whole: layers with a sliding window keep all positions too, which their masks hide: for texts
            that begin at different places, whose windows end at different places.
    """
    cache = DynamicCache(config=config)
    # Else sliding windows stay as they are, they are short; so does whatever else a family brings.
    grow = (DynamicLayer, DynamicSlidingWindowLayer) if whole else (DynamicLayer,)
    cache.layers = [GrowingLayer(capacity) if type(c) in grow else c for c in cache.layers]
    return cache


def can_drop(cache: Any) -> bool:
    """Tell whether positions can be taken back and rows handed on; sliding windows allow neither."""
    return all(type(layer) is GrowingLayer for layer in cache.layers)


def can_share(config: Any) -> bool:
    """Tell whether texts of this family can share keys and values of a prefix."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
