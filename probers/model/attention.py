"""Attention weights of one layer, and numbers of all heads, while every layer keeps its fast kernel.

transformers looks the attention function up by name in the module's config at each call. In the tapped block
that name is the tap's, which keeps queries and keys and then delegates to the model's usual function
(sdpa, flash, eager); weights are computed from them for the wanted rows. Families that do not look up
their attention function (Falcon, MPT, GPT-J) are made to return the weights themselves, in the tapped
block only.

Two sites hold numbers of all heads of all layers side by side in one vector per token. "lookback" has the
lookback ratios (Chuang et al. 2024, Lookback Lens, eq. 1 and 2): at position t of a text after a prompt of p
tokens, head h of layer l has

    A_context = the mean of its weights on the prompt's tokens,
    A_new     = the mean of its weights on the tokens after them, up to t itself,
    ratio     = A_context / (A_context + A_new).

The prompt's last token counts as new, like the end of the prompt's template in the released code, so the
position that predicts the first token has a ratio too. "attention" has the weights on each of the
:data:`NEAR` tokens before the token, the nearest first, with zeros before the prompt (as in the small
transformers of Shelmanov et al. 2025). Tokens that a sliding window hides count with weight 0.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..types import Beside, RunError, UserError
from .blocks import decoder_layers

#: Number of tokens before a token whose weights "attention" has, and of a head's numbers in "passages".
NEAR, PASSAGE = 3, 4
#: Options of attention functions that name the tokens to attend to, and functions that get a mask of them.
_SELECTED, _MASKED = ("indices", "block_indices"), ("eager", "sdpa")
_TAP = "probers_tap"


class _TapName(str):
    """Name of the tap that also equals the name of the block's ``replaced`` attention function.

    Families compare that name to decide what they hand over (DeepSeek V3.2: the mask of its selected tokens).
    """

    replaced: str
    config: Any  # of the block without a tap
    __hash__ = str.__hash__  # by which the tap is looked up

    def __new__(cls, replaced: str, config: Any = None) -> _TapName:
        name = super().__new__(cls, _TAP)
        name.replaced, name.config = replaced, config
        return name

    def __eq__(self, other: object) -> bool:
        return other == self.replaced or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def weights_of(
    query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, softcap: float | None,
    sinks: Tensor | None, rows: slice = slice(None),
) -> Tensor:  # fmt: skip
    """Compute attention weights (batch, heads, q, k) in float32 of the last q positions of some ``rows``.

    The last column is the last position; with a sliding window k may be shorter than the sequence.

    Args:
        query: (batch, heads, q, head_dim); ``key`` (batch, kv_heads, k, head_dim).
        mask: (batch or 1, 1, q, k) additive float32, or None when nothing is hidden.
        sinks: (heads,) logits of a place that takes attention but is not a token (GPT-OSS); rows
            then sum to less than 1. None where there is none.
    """
    query, key = query[rows].float(), key[rows].float()
    batch, heads, q, width = query.shape
    # The query heads of a key/value head side by side.
    query = query.reshape(batch, key.shape[1], heads // key.shape[1] * q, width)
    scores = (query @ key.transpose(-1, -2) * scaling).view(batch, heads, q, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + (mask if mask.shape[0] == 1 else mask[rows])
    if sinks is None:
        return scores.softmax(dim=-1)
    sinks = sinks.float().view(1, -1, 1, 1).expand(batch, -1, q, 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


class AttentionTap(ExitStack):
    """Reader of the attention of one block, 1-based (None is the last); all other blocks are untouched."""

    def __init__(self, model: nn.Module, layer: int | None = None) -> None:
        super().__init__()
        block = decoder_layers(model)[-1 if layer is None else layer - 1]
        self._family = type(model).__name__
        named = ((type(module).__name__, module) for module in block.modules())
        attends = (m for name, m in named if re.search("Attention|Attn$", name) and "Norm" not in name)
        self._attention = next(attends, None)
        self._modules = [m for m in block.modules() if hasattr(m, "config")]
        self._read: Callable[..., Tensor] | None = None
        self._queries = 0

    def __enter__(self) -> AttentionTap:
        attention = self._attention
        family = None if attention is None else sys.modules[type(attention).__module__]
        if attention is not None and not hasattr(family, "ALL_ATTENTION_FUNCTIONS"):
            # The tap's own eager computation must not be bypassed by a fused kernel.
            ask = attention.register_forward_pre_hook(self._ask_for_weights, with_kwargs=True)
            self.callback(ask.remove)
            self.callback(attention.register_forward_hook(self._take_weights).remove)
            return self
        for module in self._modules:
            taps = _ARMED.setdefault(module, [])
            if not taps:  # no other tap reads the same block
                config: Any = module.config
                self.callback(setattr, module, "config", config)
                tapped = copy.copy(config)
                tapped._attn_implementation = _TapName(_implementation(module), config)
                module.config = tapped
            taps.append(self)
            self.callback(taps.remove, self)
        return self

    def read(self, queries: int) -> None:
        """Read the last ``queries`` >= 1 positions of every pass until :meth:`take`."""
        self._queries = queries

    def record(
        self, kernel: str, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """Keep the tensors that the weights of the positions to be read need, as a ``kernel`` gets them."""
        if not self._queries:
            return
        problem = f"attention of {self._family} cannot be read"
        if options.get("position_bias") is not None:
            raise UserError(f"{problem}: it uses position_bias", "model")
        if kernel not in _MASKED and any(options.get(name) is not None for name in _SELECTED):
            raise UserError(f"{problem}: its kernel selects tokens: load it with attn=sdpa", "model")
        lengths, window = (query.shape[2], key.shape[2], self._queries), options.get("sliding_window")
        self._read = partial(
            weights_of, query[:, :, -self._queries :], key,
            _additive(mask, *lengths, query.device, window),
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            options.get("softcap"), options.get("s_aux"),
        )  # fmt: skip

    def _ask_for_weights(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._queries:
            return None
        accepted = inspect.signature(module.forward)
        if "output_attentions" not in accepted.parameters:  # it returns its weights anyway
            return None
        options = {**kwargs, "output_attentions": True}
        if "attention_mask" in kwargs:
            given = accepted.bind_partial(*args, **kwargs).arguments
            options["attention_mask"] = _for_eager(module, given)
            if isinstance(kwargs.get("alibi"), Tensor) and _implementation(module) == "sdpa":
                # The fused kernel's mask holds ALiBi already; the eager path would add it once more.
                options["alibi"] = torch.zeros_like(kwargs["alibi"])
        return args, options

    def _take_weights(self, module: nn.Module, args: Any, output: Any) -> None:
        weights = output[1] if self._queries and isinstance(output, tuple) and len(output) > 1 else None
        if isinstance(weights, Tensor) and weights.dim() == 4:
            last = weights[:, :, -self._queries :]
            self._read = lambda rows=slice(None): last[rows].float()

    def take(self) -> Callable[..., Tensor]:
        """Stop reading and return the last pass's :func:`weights_of` as a function of its ``rows``.
        RunError where the attention neither asks transformers for its function nor returns its weights.
        """
        if self._read is None:
            message = f"attention of {self._family} cannot be read: choose trigger and query without it"
            raise RunError(message, "model")
        read, self._read, self._queries = self._read, None, 0
        return read

    def weights(self) -> Tensor:
        """Stop reading and compute the last pass's weights (batch, heads, q, k) in float32."""
        return self.take()()


#: The taps of a block's modules; the first one was there first and leaves last.
_ARMED: WeakKeyDictionary[nn.Module, list[AttentionTap]] = WeakKeyDictionary()


def _implementation(module: nn.Module) -> str:
    return str(getattr(getattr(module, "config", None), "_attn_implementation", None) or "eager")


def _for_eager(module: nn.Module, given: dict[str, Any]) -> Tensor:
    """Turn the mask of a fused kernel (None if plainly causal, or boolean) into an additive one."""
    mask, states = given["attention_mask"], given["hidden_states"]
    if mask is not None and mask.dtype != torch.bool:
        return mask
    if mask is None:
        past, length = given.get("layer_past"), states.shape[1]
        cached = past.get_seq_length(module.layer_idx) if past is not None else 0
        visible = torch.ones(length, cached + length, dtype=torch.bool, device=states.device)
        mask = visible.tril(cached)[None, None]
    return _hiding(mask, states.dtype)


def _hiding(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def _additive(
    mask: Tensor | None, length: int, keys: int, queries: int, device: torch.device, window: int | None
) -> Tensor | None:
    """Turn any mask that transformers hands to an attention function into additive rows of the last queries.

    A sliding ``window`` is added only to masks that hide padding alone, or nothing: others include it.
    """
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :, -queries:, :keys]
        return _hiding(mask, torch.float32) if mask.dtype == torch.bool else mask.float()
    # No mask, or one of the padding only (flash): causality is implied.
    visible = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)[-queries:]
    if window is not None and keys > window:
        visible = visible.triu(keys - queries + 1 - window)
    elif mask is None and queries == 1:
        return None
    visible = visible[None, None]
    return _hiding(visible if mask is None else visible & mask[:, None, None, -keys:].bool(), torch.float32)


def _tapped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run the model's attention for the tap; registered under the tap's name."""
    armed: Any = module.config
    name = armed._attn_implementation
    for tap in _ARMED[module]:
        tap.record(name.replaced, query, key, attention_mask, scaling, options)
    # Families define their own eager function, in the file of the attention class.
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get(name.replaced, eager)
    # Kernels are loaded by the name in the module's config, so the call restores the model's own name.
    module.config = name.config
    try:
        return attend(module, query, key, value, attention_mask, scaling=scaling, **options)
    finally:
        module.config = armed


AttentionInterface.register(_TAP, _tapped_attention)


def beside_width(kind: Beside, model: Any) -> int:
    """Count a token's numbers of a kind; UserError for a model that does not tell its attention heads."""
    if kind == "probabilities":
        return 4
    heads = getattr(model.config.get_text_config(), "num_attention_heads", None)
    if not isinstance(heads, int):
        problem = f"{type(model).__name__} does not tell its number of heads"
        raise UserError(f"{problem}: read {kind} from another model", "model")
    return heads * len(decoder_layers(model)) * {"attention": NEAR, "passages": PASSAGE}.get(kind, 1)


def lookback_ratios(weights: Tensor, prompts: Tensor, written: Tensor) -> Tensor:
    """Compute ratios (batch, q, heads), float32, of the last q positions.

    The last column of ``weights`` (batch, heads, q, k) is the last position. ``prompts`` (batch,) counts the
    tokens of each prompt, ``written`` (batch,) those after it, including the last position.
    """
    (queries, keys), device = weights.shape[2:], weights.device
    prompts, written = prompts.to(device), written.to(device)
    back = torch.arange(keys - 1, -1, -1, device=device)  # distance of each column from the last
    new = back <= written[:, None]  # (batch, k)
    context = ~new & (back < (prompts + written)[:, None])
    read = torch.einsum("bhqk,bck->cbqh", weights, torch.stack([context, new], dim=1).to(weights.dtype))
    steps = torch.arange(queries - 1, -1, -1, device=device)
    counts = torch.stack([(prompts - 1)[:, None].expand(-1, queries), written[:, None] - steps + 1])
    on_context, on_new = read / counts.clamp_min(1)[..., None]
    return on_context / (on_context + on_new).clamp_min(torch.finfo(torch.float32).tiny)


def near_weights(weights: Tensor) -> Tensor:
    """Collect weights (batch, q, heads * NEAR) of the last q positions on the tokens before them.

    The last column of ``weights`` (batch, heads, q, k) is the last position.
    """
    queries, keys = weights.shape[2:]
    positions = torch.arange(keys - queries, keys, device=weights.device)  # column of each position
    columns = positions[:, None] - torch.arange(1, NEAR + 1, device=weights.device)
    near = weights.gather(-1, columns.clamp_min(0).expand(*weights.shape[:3], -1))
    return near.masked_fill(columns < 0, 0.0).transpose(1, 2).flatten(2)


class HeadsTap(ExitStack):
    """Reader of "lookback" or "attention" from the heads of all layers."""

    def __init__(self, model: Any, kind: Beside) -> None:
        super().__init__()
        self._kind = kind
        self._taps = [AttentionTap(model, layer) for layer in range(1, len(decoder_layers(model)) + 1)]
        self._queries = 0

    def __enter__(self) -> HeadsTap:
        for tap in self._taps:
            self.enter_context(tap)
        return self

    def read_last(self, count: int) -> None:
        self._queries = count
        for tap in self._taps:
            tap.read(count)

    def take_last(self, prompts: Tensor, written: Tensor) -> Tensor | None:
        """Return the numbers read, (batch, count, 1, width) float32, as one layer; None if there are none."""
        if not self._queries:
            return None
        self._queries = 0
        reduce = near_weights
        if self._kind == "lookback":
            reduce = partial(lookback_ratios, prompts=prompts, written=written)
        numbers = [reduce(tap.weights()) for tap in self._taps]
        return torch.cat([of_layer.to(numbers[0].device) for of_layer in numbers], dim=-1)[:, :, None]


def kernel_for(config: Any, attn: str | None) -> str | None:
    """Return ``attn``, or "eager" in place of None for a model that caps its attention scores (Gemma 2).

    UserError for sdpa, up to transformers 5.20 the default of such models: it leaves scores uncapped.
    """
    if getattr(config.get_text_config(), "attn_logit_softcapping", None) is None:
        return attn
    if attn == "sdpa":
        raise UserError("attn=sdpa leaves out this model's cap on attention scores: use eager", "unsupported")
    return attn or "eager"
