"""Reading the states of a decoder's blocks while it runs.

The tap is a context manager that always detaches, also when the forward pass raises,
and it reads only while it is armed, so that prompt states are dropped where they arise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from ..types import Needs, Pool, RunError, Site, UserError
from .blocks import block_parts, decoder_layers, decoder_of, first_tensor, given_tensor

if TYPE_CHECKING:
    from typing_extensions import Self

SITES: tuple[str, ...] = get_args(Site)
POOLS: tuple[str, ...] = get_args(Pool)


def check_needs(needs: Needs, model: nn.Module) -> None:
    """Refuse what cannot be read from ``model`` (UserError)."""
    layers = len(decoder_layers(model))
    asked = [*needs.layers, *([needs.attention_layer] if needs.attention_layer is not None else [])]
    for layer in asked:
        if not 0 <= layer <= layers:
            raise UserError(
                f"layer {layer} does not exist: the model has {layers} layers "
                f"(1 to {layers}; 0 is the embedding output)"
            )
    if needs.attention_layer == 0:
        raise UserError("attention_layer=0 is the embedding output, which attends to nothing: use 1 or more")
    if needs.site not in SITES:
        raise UserError(f"site={needs.site} is unknown; choose one of {', '.join(SITES)}")
    if needs.pool not in POOLS:
        raise UserError(f"pool={needs.pool} is unknown; choose one of {', '.join(POOLS)}")
    if not needs.layers:
        return
    if needs.of_mind and (needs.layers != (layers,) or needs.site != "resid_post"):
        raise UserError(
            f"pool={needs.pool} reads all layers at site=resid_post and belongs to the last one: ask for "
            f"layers=({layers},), not {needs.layers} at {needs.site}"
        )
    if needs.site == "resid_post":
        return
    if 0 in needs.layers:
        raise UserError(f"site={needs.site} has no layer 0: the embedding output belongs to no block")
    parts = block_parts(model)
    if needs.site == "resid_mid" and any(parts[k - 1].middle is None for k in needs.layers):
        raise UserError(
            f"site=resid_mid does not exist in {type(model).__name__}: attention and MLP run side by side; "
            "use attn_out, mlp_out or resid_post"
        )


def broken_state(needs: Needs, index: int, where: str) -> RunError:
    """That the state of the ``index``-th of the layers a :class:`StateTap` stacks is not finite."""
    layer = f"layer {needs.layers[index]}"
    if needs.of_mind:
        layer = f"layer {index + 1}" if index < needs.layers[0] else "the final norm"
    return RunError(f"the state of {layer} is NaN or infinite at {where}; try dtype=float32 or bfloat16")


class StateTap(ExitStack):
    """Reads one site at chosen layers, reduced inside the hook.

    For MIND's pools the layers are 1 to L, and after them the output of the final norm.

    Args:
        needs: layers and site; checked with :func:`check_needs` before.
    """

    def __init__(self, model: nn.Module, needs: Needs) -> None:
        super().__init__()
        self._model = model
        self._needs = needs
        self._read: dict[int, Tensor] = {}
        self._reduce: Callable[[Tensor], Tensor] | None = None
        self._shape: torch.Size | None = None
        self._layers = needs.layers
        if needs.layers and needs.of_mind:
            self._layers = tuple(range(1, needs.layers[0] + 2))  # the final norm counts as one more

    def __enter__(self) -> Self:
        blocks = decoder_layers(self._model) if self._layers else nn.ModuleList()
        for layer in set(self._layers):
            module, incoming = self._place(layer, blocks)
            if incoming:
                handle = module.register_forward_pre_hook(self._on_input(layer), with_kwargs=True)
            else:
                handle = module.register_forward_hook(self._on_output(layer))
            self.callback(handle.remove)
            if self._needs.site != "resid_post":
                shape = blocks[layer - 1].register_forward_pre_hook(self._note_shape, with_kwargs=True)
                self.callback(shape.remove)
        return self

    def read(self, reduce: Callable[[Tensor], Tensor] | None) -> None:
        """Read every pass until :meth:`take`, the last of which counts.

        Args:
            reduce: makes what is kept of a layer's states (batch, length, d); None reads nothing.
        """
        self._read.clear()
        self._reduce = reduce

    def take(self) -> Tensor | None:
        """What was read, layers stacked in the order asked for on axis 1; None where nothing was."""
        self._reduce = None
        if not self._read:
            return None
        device = self._read[self._layers[0]].device
        stacked = torch.stack([self._read[layer].to(device) for layer in self._layers], dim=1)
        self._read.clear()
        return stacked

    def _place(self, layer: int, blocks: nn.ModuleList) -> tuple[nn.Module, bool]:
        """The module whose output, or input when True, is the site at ``layer``."""
        if self._needs.site == "resid_post":
            if layer > len(blocks):
                return decoder_of(self._model), False
            return (blocks[0], True) if layer == 0 else (blocks[layer - 1], False)
        parts = block_parts(self._model)[layer - 1]
        if self._needs.site == "resid_mid":
            assert parts.middle is not None  # check_needs
            return parts.middle, True
        return (parts.attention if self._needs.site == "attn_out" else parts.mlp), False

    def _note_shape(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = given_tensor(args, kwargs)
        self._shape = None if states is None else states.shape

    def _on_input(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._take(layer, given_tensor(args, kwargs))

        return hook

    def _on_output(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._take(layer, output if isinstance(output, Tensor) else first_tensor(_values(output)))

        return hook

    def _take(self, layer: int, states: Tensor | None) -> None:
        if self._reduce is None or states is None:
            return
        if states.dim() == 2 and self._shape is not None:  # OPT's MLP sees all tokens in one row
            states = states.view(self._shape)
        # Copied: a view would keep the prompt's states alive, and some families go on to
        # add to these tensors in place.
        self._read[layer] = self._reduce(states).clone()


def _values(output: Any) -> Any:
    """A model output's values; other results as they are."""
    return list(output.values()) if isinstance(output, dict) else output
