"""Reading a decoder's inside while it runs: states of its blocks, attention of its last one.

Nothing outside this module touches a model's modules. Both taps are context
managers that always detach, also when the forward pass raises, and they read
only while they are armed, so that prompt states are dropped where they arise.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .types import Needs, RunError, UserError

if TYPE_CHECKING:
    from typing_extensions import Self

SITES = ("resid_post",)
_TAP = "probers_tap"


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The decoder's blocks: the longest module list that is not inside another one.

    Found by structure, so that no table of families is needed; lists of experts lie
    inside a block and are therefore never taken for the blocks.

    Raises:
        UserError: the model has no list of blocks.
    """
    outer: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(prefix + ".") for prefix, _ in outer)
        if isinstance(module, nn.ModuleList) and len(module) and not inside:
            outer.append((name, module))
    if not outer:
        raise UserError(f"{type(model).__name__} has no list of decoder blocks whose states could be read")
    return max(outer, key=lambda item: len(item[1]))[1]


def check_needs(needs: Needs, layers: int) -> None:
    """Refuse what cannot be read from a model with ``layers`` blocks (UserError)."""
    wrong = [k for k in needs.layers if not 0 <= k <= layers]
    if wrong:
        raise UserError(
            f"layer {wrong[0]} does not exist: the model has {layers} layers "
            f"(1 to {layers}; 0 is the embedding output)"
        )
    if needs.layers and needs.site not in SITES:
        raise UserError(f"site={needs.site} cannot be read; supported: {', '.join(SITES)}")
    if needs.pool not in ("mean", "last", "tokens"):
        raise UserError(f"pool={needs.pool} is unknown; choose mean, last or tokens")


class StateTap(AbstractContextManager["StateTap"]):
    """Reads the residual stream at chosen layers, reduced inside the hook.

    Attributes:
        reduce: applied to every layer's (batch, length, d) output while it is set, so
            that only its result is kept; None reads nothing.

    Args:
        layers: 0 for what enters the first block, k for what leaves the k-th one,
            before any final norm.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        self._blocks = decoder_layers(model) if layers else nn.ModuleList()
        self._layers = tuple(layers)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self._read: dict[int, Tensor] = {}
        self.reduce: Callable[[Tensor], Tensor] | None = None

    def __enter__(self) -> Self:
        for layer in set(self._layers):
            if layer == 0:
                handle = self._blocks[0].register_forward_pre_hook(self._on_input, with_kwargs=True)
            else:
                handle = self._blocks[layer - 1].register_forward_hook(self._on_output(layer))
            self._handles.append(handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._read.clear()
        self.reduce = None

    def _on_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.reduce is not None:
            self._read[0] = self.reduce(args[0] if args else kwargs["hidden_states"])

    def _on_output(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if self.reduce is not None:
                self._read[layer] = self.reduce(output[0] if isinstance(output, tuple) else output)

        return hook

    def take(self) -> Tensor | None:
        """What the last pass left, layers stacked in the order asked for on axis 1; then forgotten."""
        if not self._layers or not self._read:
            return None
        device = self._read[self._layers[0]].device
        stacked = torch.stack([self._read[layer].to(device) for layer in self._layers], dim=1)
        self._read.clear()
        return stacked


@dataclass(frozen=True, slots=True)
class Attended:
    """Queries, keys and mask of one attention call, from which weights are computed on demand.

    Attributes:
        query: (batch, heads, q, head_dim), the last q positions of the pass.
        key: (batch, kv_heads, k, head_dim); the last column is the last position. With
            a sliding window k may be shorter than the sequence.
        mask: (batch or 1, 1, q, k) additive float32, or None when nothing is hidden.
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    softcap: float | None

    def weights(self, row: int | None = None) -> Tensor:
        """Attention weights (batch, heads, q, k) in float32; of one batch row when given."""
        rows = slice(None) if row is None else slice(row, row + 1)
        query, key = self.query[rows].float(), self.key[rows].float()
        batch, heads, q, width = query.shape
        shared = heads // key.shape[1]  # query heads per key/value head
        query = query.reshape(batch, key.shape[1], shared * q, width)
        scores = (query @ key.transpose(-1, -2) * self.scaling).view(batch, heads, q, -1)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.mask is not None:
            scores = scores + (self.mask if self.mask.shape[0] == 1 else self.mask[rows])
        return scores.softmax(dim=-1)


class AttentionTap(AbstractContextManager["AttentionTap"]):
    """Reads queries and keys of the last block's attention; every other block is untouched.

    transformers looks the attention function up by name in the module's config at each
    call. The last block's modules get a copy of that config with the tap's name, which
    delegates to the function the model uses anyway (sdpa, flash, eager).

    Attributes:
        queries: how many of the pass's last positions to read; 0 reads nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._family = type(model).__name__
        self._modules = [m for m in decoder_layers(model)[-1].modules() if hasattr(m, "config")]
        self._configs: list[Any] = []
        self._read: Attended | None = None
        self.implementation = ""
        self.queries = 0

    def __enter__(self) -> Self:
        for module in self._modules:
            config: Any = module.config
            self.implementation = getattr(config, "_attn_implementation", None) or "eager"
            self._configs.append(config)
            tapped = copy.copy(config)
            tapped._attn_implementation = _TAP
            module.config = tapped
            _ARMED[module] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, config in zip(self._modules, self._configs, strict=False):
            module.config = config
            _ARMED.pop(module, None)
        self._configs.clear()
        self._read, self.queries = None, 0

    def record(
        self, query: Tensor, key: Tensor, mask: Tensor | None, scaling: float | None, options: dict[str, Any]
    ) -> None:
        """Keep what the weights of the last ``queries`` positions need."""
        for option in ("position_bias", "s_aux"):
            if options.get(option) is not None:
                raise UserError(f"attention of {self._family} cannot be read: it uses {option}")
        length = query.shape[2]
        self._read = Attended(
            query=query[:, :, -self.queries :],
            key=key,
            mask=_additive(mask, length, key.shape[2], self.queries, query.device),
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=options.get("softcap"),
        )

    def take(self) -> Attended:
        """What the last pass left; then forgotten.

        Raises:
            RunError: the model did not ask transformers for its attention function.
        """
        if self._read is None:
            raise RunError(
                f"attention of {self._family} cannot be read: it does not use transformers' attention "
                "interface; choose a trigger and a query that need no attention"
            )
        read, self._read = self._read, None
        return read


_ARMED: WeakKeyDictionary[nn.Module, AttentionTap] = WeakKeyDictionary()


def _additive(
    mask: Tensor | None, length: int, keys: int, queries: int, device: torch.device
) -> Tensor | None:
    """Any mask transformers hands to an attention function, as additive rows of the last queries."""
    hidden = torch.finfo(torch.float32).min
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :, -queries:, :keys]
        if mask.dtype != torch.bool:
            return mask.float()
        return torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, hidden)
    # No mask, or one of the padding only (flash): causality is implied.
    visible = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)[-queries:]
    visible = visible[None, None]
    if mask is not None:
        visible = visible & mask[:, None, None, -keys:].bool()
    elif queries == 1:
        return None
    return torch.zeros_like(visible, dtype=torch.float32).masked_fill(~visible, hidden)


def _tapped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function registered under the tap's name."""
    tap = _ARMED[module]
    if tap.queries:
        tap.record(query, key, attention_mask, scaling, options)
    # Families define their own eager function; it is in the file of the attention class.
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(tap.implementation, eager)
    return attend(module, query, key, value, attention_mask, scaling=scaling, **options)


AttentionInterface.register(_TAP, _tapped_attention)
