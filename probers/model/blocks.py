"""Parts of a decoder: its blocks, and in each of them attention, MLP and the stream between them.

They are found by structure and checked by numbers, not listed per family: a block must add the outputs of two
of its modules to the residual stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..types import UserError

_PROBE = 4  # tokens of the pass that tells modules apart
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


def decoder_of(model: Any) -> nn.Module:
    """Find the text decoder inside a model; its first output is the state after the final norm."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """Find the decoder's blocks: the longest module list outside other ones (UserError: it has none)."""
    if not (lists := list(_outermost(decoder_of(model)))):
        raise UserError(f"{type(model).__name__} has no list of decoder blocks to read", "model")
    return max(lists, key=len)


def _outermost(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child):
            yield child  # and not the lists in it, such as one of experts
        else:
            yield from _outermost(child)


def first_tensor(values: Any) -> Tensor | None:
    """Return the tensor that a module was given or returned, where it comes first among other things."""
    while isinstance(values, (tuple, list)) and values:
        values = values[0]
    return values if isinstance(values, Tensor) else None


def given_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the states a module was called with, by place or by name."""
    if args:
        return first_tensor(args)
    return first_tensor(kwargs.get("hidden_states", list(kwargs.values())))


@dataclass(frozen=True, slots=True)
class BlockParts:
    """The modules of one block that write to, or read from, the residual stream.

    The input of ``middle`` is the stream after attention and before the MLP; it is None where both read the
    same stream, side by side.
    """

    attention: nn.Module
    mlp: nn.Module
    middle: nn.Module | None


_PARTS: WeakKeyDictionary[nn.Module, list[BlockParts]] = WeakKeyDictionary()


def block_parts(model: Any) -> list[BlockParts]:
    """Return the parts of every block; the first time a short forward pass finds them.

    UserError where a block does not add the outputs of two of its modules to its input.
    """
    if model not in _PARTS:
        _PARTS[model] = _find_parts(model)
    return _PARTS[model]


@dataclass(frozen=True, slots=True)
class _Call:
    """A module's call in the probing pass; tensors (tokens, d) float32, None for another shape."""

    name: str
    module: nn.Module
    given: Tensor | None
    output: Tensor | None


@torch.inference_mode()
def _find_parts(model: Any) -> list[BlockParts]:
    blocks = decoder_layers(model)
    calls: list[list[_Call]] = [[] for _ in blocks]
    width = int(model.config.get_text_config().hidden_size)
    waiting: list[Tensor | None] = []  # inputs of the modules that run, the outermost first

    def stream(value: Tensor | None) -> Tensor | None:
        # Copied, since some families add to these tensors in place; to the host, since blocks may lie on
        # several devices.
        if value is None or value.numel() != _PROBE * width or value.shape[-1] != width:
            return None
        return value.detach().to("cpu", torch.float32, copy=True).reshape(_PROBE, width)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        waiting.append(stream(given_tensor(args, kwargs)))

    def after(index: int, name: str, module: nn.Module, args: Any, output: Any) -> None:
        calls[index].append(_Call(name, module, waiting.pop(), stream(first_tensor(output))))

    with ExitStack() as hooks:
        for index, block in enumerate(blocks):
            for name, module in block.named_modules():
                hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(partial(after, index, name)).remove)
        ids = torch.arange(_PROBE, device=model.device)[None]
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    family, precision = type(model).__name__, torch.finfo(model.dtype).eps
    return [_block_parts(family, k, seen, precision) for k, seen in enumerate(calls, 1)]


def _block_parts(family: str, layer: int, calls: Sequence[_Call], precision: float) -> BlockParts:
    """Tell one block's modules apart by the outputs they add; the block itself is the last call.

    A few places of the stream may be thousands of times larger than all others, and in 16 bits are rounded
    by more than a module adds to them: an error within the ``precision`` of a place is none.
    """
    before, after = calls[-1].given, calls[-1].output
    inner = [(c, c.output) for c in calls[:-1] if c.output is not None]
    if before is not None and after is not None:
        added = after - before
        rounding = precision * torch.maximum(before.abs(), after.abs())
        scale = float((added.abs() - rounding).max())
        pairs = [
            (float(((one + other - added).abs() - rounding).clamp(0).max()), i, j)
            for (i, (_, one)), (j, (_, other)) in combinations(enumerate(inner), 2)
        ]
        # The first of equally good pairs: a dropout after a module repeats its output.
        best = min(pairs, default=(scale, 0, 0))[0]
        if scale > 0 and best < 0.05 * scale:
            _, i, j = next(p for p in pairs if p[0] <= max(2 * best, 1e-5 * scale))
            if not any(_ATTENTION.search(c.name) for c in calls[: calls.index(inner[i][0]) + 1]):
                i, j = j, i  # the MLP ran first
            (attention, output), (mlp, _) = inner[i], inner[j]
            between, later = before + output, calls[calls.index(attention) + 1 : -1]
            close = 1e-3 * float(between.abs().max())
            reads = (
                call.module
                for call in later
                if call.given is not None and torch.allclose(call.given, between, rtol=1e-2, atol=close)
            )
            return BlockParts(attention.module, mlp.module, next(reads, None))
    problem = f"block {layer} of {family} has no attn_out, mlp_out or resid_mid"
    why = "it does not add two modules' outputs to its input"
    raise UserError(f"{problem}: {why}; use site=resid_post", "model")


def context_length(config: Any) -> int | None:
    """Return the largest number of tokens a model can read, where its configuration has it."""
    names = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length")
    lengths = (getattr(config.get_text_config(), name, None) for name in names)
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation, without dropout, and the modules that were in training back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
