"""States of a decoder's blocks, read while it runs.

The tap is a context manager that always detaches, even when the forward pass raises. It reads
only while it is armed, so that prompt states are dropped where they arise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..types import BESIDE, POOLS, SITES, TWICE, Feature, Needs, RunError, UserError
from .attention import HeadsTap, beside_width
from .blocks import block_parts, decoder_layers, decoder_of, first_tensor, given_tensor


def check_needs(needs: Needs, model: nn.Module) -> None:
    """Refuse needs that cannot be read from ``model`` (UserError)."""
    layers = len(decoder_layers(model))
    for layer in (needs.attention_layer or 0, *(k for feature in needs.features for k in feature.layers)):
        if not 0 <= layer <= layers:
            problem = f"layer {layer} does not exist"
            raise UserError(f"{problem}: the model has {layers} layers (0 is the embedding output)", "layers")
    if needs.attention_layer == 0:
        raise UserError("attention_layer=0, the embedding output, has no attention: use 1 or more", "layers")
    for feature in needs.features:
        _check_feature(feature, model, layers)


def vector_width(feature: Feature, model: Any) -> int:
    """Count the numbers in a vector of ``feature``, read from ``model``."""
    if feature.site in BESIDE:
        return beside_width(feature.site, model)
    width = int(model.config.get_text_config().hidden_size)
    return 2 * width if feature.of_mind else width


def _check_feature(feature: Feature, model: nn.Module, layers: int) -> None:
    site, pool = feature.site, feature.pool
    for name, value, known in (("site", site, SITES), ("pool", pool, POOLS)):
        if value not in known:
            raise UserError(f"{name}={value} is unknown; choose one of {', '.join(known)}", "unknown-choice")
    if feature.of_mind and (feature.layers != (layers,) or site != "resid_post"):
        message = f"pool={pool} needs site=resid_post and layers=({layers},), not {site} and {feature.layers}"
        raise UserError(message, "layers")
    if feature.beside and (site in BESIDE or feature.of_mind):
        raise UserError(f"no further feature can be read beside site={site} and pool={pool}", "unsupported")
    for kind in (site, *feature.beside):
        if kind not in BESIDE:
            continue
        beside_width(kind, model)
        if kind == site and feature.layers != (layers,):
            raise UserError(f"site={site} needs layers=({layers},), not {feature.layers}", "layers")
        if kind == "probabilities" and pool not in ("mean", "last", "tokens"):
            raise UserError(f"{kind} need tokens of the text: pool={pool} has none", "unsupported")
    if site in ("resid_post", *TWICE, *BESIDE):
        return
    if 0 in feature.layers:
        message = f"site={site} has no layer 0: the embedding output belongs to no block"
        raise UserError(f"{message}, leave it out of layers", "layers")
    parts = block_parts(model)
    if site == "resid_mid" and any(parts[k - 1].middle is None for k in feature.layers):
        message = f"{type(model).__name__} has no site=resid_mid: use attn_out, mlp_out or resid_post"
        raise UserError(message, "model")


def broken_state(feature: Feature, index: int, where: str) -> RunError:
    """Build the error for a NaN or infinite state of the ``index``-th layer read by a :class:`StateTap`."""
    layers = StateTap.layers_of(feature)
    layer = "the final norm" if feature.of_mind and index == len(layers) - 1 else f"layer {layers[index]}"
    layer = f"all layers ({feature.site})" if feature.site in BESIDE else layer
    message = f"the state of {layer} is NaN or infinite at {where}; try dtype=float32 or bfloat16"
    return RunError(message, "model")


#: Remedy for a compiled model: its graph runs no hooks but those that were there when it was made.
COMPILED = (
    "set torch._dynamo.config.skip_nnmodule_hook_guards=False before its first pass; a CUDA graph that was "
    "captured by hand cannot be read"
)


class StateTap(ExitStack):
    """Reader of one site at chosen layers, reduced inside the hook; call :func:`check_needs` before."""

    def __init__(self, model: nn.Module, feature: Feature) -> None:
        super().__init__()
        self._model = model
        self._site = feature.site
        self._layers = self.layers_of(feature)
        self._read: Tensor | None = None
        self._of_layer: tuple[Tensor, ...] = ()  # views of it
        self._lacking: set[int] = set()  # layers that the pass has not reached
        self._reduce: Callable[[Tensor], Tensor] | None = None
        self._shape: torch.Size | None = None

    @staticmethod
    def layers_of(feature: Feature) -> tuple[int, ...]:
        """Return the layers read for a feature; for MIND's pools these are 1 to L, then the final norm."""
        if feature.of_mind:
            return tuple(range(1, feature.layers[0] + 2))
        return feature.layers

    def __enter__(self) -> StateTap:
        blocks = decoder_layers(self._model)
        for layer in set(self._layers):
            module, incoming = self._place(layer, blocks)
            places = [place for place, each in enumerate(self._layers) if each == layer]
            if incoming:
                before = partial(self._on_input, layer, places)
                handle = module.register_forward_pre_hook(before, with_kwargs=True)
            else:
                handle = module.register_forward_hook(partial(self._on_output, layer, places))
            self.callback(handle.remove)
            if self._site != "resid_post":
                shape = blocks[layer - 1].register_forward_pre_hook(self._note_shape, with_kwargs=True)
                self.callback(shape.remove)
        return self

    def read(self, reduce: Callable[[Tensor], Tensor] | None) -> None:
        """Read every pass until :meth:`take`; only the last one counts. None reads nothing.

        ``reduce`` turns a layer's states (batch, length, d) into the kept tensor, (batch, .., width).
        """
        self._read, self._of_layer = None, ()
        self._reduce = reduce

    def take(self) -> Tensor | None:
        """Return the states read, (batch, .., layers, width) float32 in the feature's order, or None.
        RunError where the pass did not reach a layer, or ran a graph that was compiled without this tap.
        """
        armed, self._reduce = self._reduce is not None, None
        read, self._read, self._of_layer = self._read, None, ()
        family = type(self._model).__name__
        if armed and read is None:
            message = f"no block of {family} was seen to run: no state; if it is compiled, {COMPILED}"
            raise RunError(message, "model")
        if read is not None and self._lacking:
            raise RunError(f"layer {min(self._lacking)} of {family} was not run: no state", "model")
        return read

    def read_last(self, count: int) -> None:
        """Read the last ``count`` positions of every pass until :meth:`take_last`; none where it is 0."""
        self.read((lambda states: states[:, -count:].detach()) if count else None)

    def take_last(self, prompts: Tensor, written: Tensor) -> Tensor | None:
        """Return the states read, (batch, count, layers, width); the lengths are ignored."""
        return self.take()

    def _place(self, layer: int, blocks: nn.ModuleList) -> tuple[nn.Module, bool]:
        """Return the module whose output (input when True) is the site at ``layer``."""
        if self._site == "resid_post":
            if layer == 0:
                return blocks[0], True
            return (decoder_of(self._model) if layer > len(blocks) else blocks[layer - 1]), False
        parts = block_parts(self._model)[layer - 1]
        if self._site == "resid_mid":
            assert parts.middle is not None  # by check_needs
            return parts.middle, True
        return (parts.attention if self._site == "attn_out" else parts.mlp), False

    def _note_shape(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = given_tensor(args, kwargs)
        self._shape = None if states is None else states.shape

    def _on_input(self, layer: int, places: list[int], module: nn.Module, args: Any, kwargs: Any) -> None:
        self._take(layer, places, given_tensor(args, kwargs))

    def _on_output(self, layer: int, places: list[int], module: nn.Module, args: Any, output: Any) -> None:
        self._take(layer, places, first_tensor(list(output.values()) if isinstance(output, dict) else output))

    def _take(self, layer: int, places: list[int], states: Tensor | None) -> None:
        if states is None or self._reduce is None:
            return
        if states.dim() == 2 and self._shape is not None:  # OPT's MLP sees all tokens in one row
            states = states.view(self._shape)
        if states.dim() != 3:  # Gemma 3n has several streams side by side
            family, shape = type(self._model).__name__, tuple(states.shape)
            message = f"{family} has states of shape {shape} at layer {layer}, not (batch, length, width)"
            raise UserError(message, "model")
        values = self._reduce(states)
        if self._read is None or self._of_layer[0].shape != values.shape:
            *before, width = values.shape
            self._read = values.new_empty(*before, len(self._layers), width, dtype=torch.float32)
            self._of_layer = self._read.unbind(-2)
            self._lacking = set(self._layers)
        # Copied: a view would keep the prompt's states alive, and some families go on to
        # add to these tensors in place. All layers go into one tensor: the next step is one operation.
        for place in places:
            self._of_layer[place].copy_(values)
        self._lacking.discard(layer)


def tap_of(model: nn.Module, feature: Feature) -> StateTap | HeadsTap:
    """Make the tap of a feature's site; call ``read_last`` before a pass and ``take_last`` after it."""
    return HeadsTap(model, feature.site) if feature.site in BESIDE else StateTap(model, feature)
