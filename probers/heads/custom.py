"""Heads of the user's own: any module of one layer's states, repeated H times."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from ..checksums import draw_key
from ..types import UserError, first_line
from .base import ProbeHead


class ForeignHead(ProbeHead):
    """H copies of a module, each trained as if it were alone.

    Their parameters and buffers are kept in one module of that class, stacked along a leading head axis.
    They are put into it head by head when it runs, more slowly than heads of this package. A copy is built,
    and its dropout drawn, with torch's generators seeded by its stream and restored afterwards.

    Args:
        module_class: built as ``module_class(width, **options)``; maps float32 states (n, d) to logits
            (n, 2), [wrong, correct], or to one logit (n,) or (n, 1) of "correct".
        module_options: its other arguments; plain values, for they are saved as JSON.

    Raises:
        UserError: it cannot be built this way, or does not map to logits.
    """

    def __init__(
        self, streams: Sequence[str], width: int, module_class: type[nn.Module],
        module_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(streams, width)
        self.module_class = module_class
        self._options = dict(module_options or {})
        self.module = _stacked([self._build(stream) for stream in streams])
        names: dict[int, str] = {}
        firsts = {name: names.setdefault(id(v), name) for name, v in self.state_dict(keep_vars=True).items()}
        self._tied = {name: first for name, first in firsts.items() if first != name}
        self.register_state_dict_post_hook(_drop_tied)
        self.register_load_state_dict_pre_hook(_restore_tied)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self._options)

    def _untrained(self, streams: Sequence[str]) -> ProbeHead:
        return ForeignHead(streams, self.width, self.module_class, self._options)

    def _build(self, stream: str) -> nn.Module:
        name, width = _dotted(self.module_class), self.width
        call = ", ".join([str(width), *(f"{k}={v!r}" for k, v in self._options.items())])
        with _seeded(draw_key("weights", 0, stream)):
            try:
                module = self.module_class(width, **self._options)
                # Also gives lazy modules their shapes.
                with torch.no_grad():
                    logits = module.eval()(torch.zeros(3, width))
            except Exception as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                tried = f"{name.rpartition('.')[2]}({call}) on states of shape (3, {width})"
                fix = "it must take the width first and map (n, width) to logits"
                problem = f"head._target_={name} fails as {tried} ({reason})"
                raise UserError(f"{problem}: {fix}", "own-class") from error
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if shape not in ((3, 2), (3, 1), (3,)):
            fix = 'return logits (n, 2), wrong and correct, or one logit (n,) of "correct"'
            raise UserError(f"head._target_={name} maps 3 states to {shape}: {fix}", code="own-class")
        if not any(p.requires_grad for p in module.parameters()):
            raise UserError(f"head._target_={name} has no parameters to train", code="own-class")
        return module.train()

    def _logits(self, x: Tensor) -> Tensor:
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        # One unbind per tensor: its gradient is one stack, where indexing pads each head's with zeros.
        slices = {name: value.unbind() for name, value in (parameters | buffers).items()}
        logits = []
        for i, stream in enumerate(self.streams):
            tensors = {name: parts[i] for name, parts in slices.items()}
            with _seeded(draw_key(f"dropout{self.step}", 0, stream), x.device, wanted=self.training):
                outputs = cast(Tensor, functional_call(self.module, tensors, (x[i],)))
            for name, buffer in buffers.items():
                if tensors[name] is not slices[name][i]:  # assigned by the module, not written into
                    buffer[i].copy_(tensors[name])
            logits.append(outputs.reshape(len(x[i]), -1))
        joined = torch.stack(logits)
        return joined if joined.shape[-1] == 2 else torch.cat([torch.zeros_like(joined), joined], dim=-1)


def factory(make: Callable[..., nn.Module]) -> Callable[[Sequence[str], int], ProbeHead]:
    """Make a constructor of heads from stream names and width.

    ``make`` is a class with its options, as from Hydra's ``instantiate(..., _partial_=True)``: a
    :class:`ProbeHead`, or any other module, which :class:`ForeignHead` then holds.
    UserError where it is not a module class, or does not take its options.
    """
    from omegaconf import OmegaConf

    partial = make if isinstance(make, functools.partial) else functools.partial(make)
    cls, options = partial.func, dict[str, Any]()
    named = f"head._target_={_dotted(cls)}"
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)) or partial.args:
        raise UserError(f"{named} is not a class derived from torch.nn.Module", code="own-class")
    for key, given in partial.keywords.items():
        value = OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else given
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            why = "cannot be saved with the prober: give a number, a string or a list"
            raise UserError(f"head.{key}={value!r} {why}", code="own-class") from None
        options[key] = value
    arguments: tuple[Any, ...] = ((), *[1] * (1 + cls.joint)) if issubclass(cls, ProbeHead) else (1,)
    try:
        inspect.signature(cls).bind(*arguments, **options)
    except TypeError as error:
        raise UserError(f"{named} does not take these options: {error}", code="own-class") from None
    if issubclass(cls, ProbeHead):
        return functools.partial(cls, **options)
    return functools.partial(ForeignHead, module_class=cls, module_options=options)


def _dotted(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}" if hasattr(cls, "__qualname__") else repr(cls)


def _stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """Return the first module with the parameters and buffers of all stacked in place of its own."""
    first = modules[0]
    parameters, buffers = stack_module_state(list(modules))
    stacks: dict[int, Any] = {id(first.get_buffer(name)): stack for name, stack in buffers.items()}
    for name, stack in parameters.items():
        stacks[id(first.get_parameter(name))] = nn.Parameter(stack.detach(), stack.requires_grad)
    for module in first.modules():  # tied tensors stay tied
        for tensors in (module._parameters, module._buffers):
            tensors.update({name: stacks[id(x)] for name, x in tensors.items() if x is not None})
    return first


def _drop_tied(head: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Keep one name of tied tensors, since safetensors writes none that share memory."""
    for name in cast(ForeignHead, head)._tied:
        del state[prefix + name]


def _restore_tied(head: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in cast(ForeignHead, head)._tied.items():
        if prefix + first in state:
            state[prefix + name] = state[prefix + first]


@contextmanager
def _seeded(seed: int, device: torch.device | None = None, *, wanted: bool = True) -> Iterator[None]:
    """Seed torch's generator, and that of a CUDA device; restore them afterwards."""
    cuda = [device.index or 0] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(cuda, enabled=wanted):
        if wanted:
            for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in cuda)):
                generator.manual_seed(seed)
        yield
