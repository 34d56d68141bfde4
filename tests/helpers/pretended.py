"""A pretended accelerator: tensors that lie on the CPU and obey the rules of devices of their own.

Inside :func:`pretending` there are devices ``privateuseone:0``, ``privateuseone:1``, .. Their tensors are
ordinary CPU tensors whose storage bears a mark, so that views, in-place operations and gradients need no care
and every number is the CPU's own. Two modes of torch keep the devices apart: one sees what Python calls and
answers for ``device``, the other sees the operations that come of it. As with CUDA

- an operation on tensors of two devices raises :class:`Mixed`, unless one is a CPU tensor without dimensions,
  or a CPU index;
- whatever the host has to wait for (``item``, ``tolist``, ``cpu``, ``nonzero``, an index by a mask, ..) is a
  copy, kept with the line that asked for it; ``numpy`` raises.

Memory that nobody has written yet is filled with NaN. No function of torch is replaced: the context of
``torch.device("meta")`` knows torch's constructors by identity, and a model that is loaded beside another
``torch.tensor`` keeps memory that nobody has written as its rotary frequencies.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "privateuseone"  # the kind of device that torch knows without a backend; given another name it has one
DEVICE, IS_CPU = Tensor.device.__get__, Tensor.is_cpu.__get__  # what Python calls for these attributes

HOST = torch.device("cpu")
ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / room}/" for room in ("probers", "datagen", "train", "rag", "serve"))

#: What makes tensors of lists and arrays.
COPYING = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
#: Operations whose result the host must know before it can go on.
WAITED = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "nonzero_numpy", "argwhere",
    "masked_select", "unique_consecutive", "unique_dim", "_unique", "_unique2", "bincount",
}  # fmt: skip
#: Operations that look only at the shape of another tensor, or copy from wherever it lies.
APART = {"copy_", "view_as", "expand_as", "reshape_as"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class Mixed(RuntimeError):
    """An operation on tensors of two devices."""


class Copies:
    """What the host waited for: how often each line asked for it ("probers/model/decode.py:222")."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self) -> None:
        self.counts[_asking()] += 1

    def __len__(self) -> int:
        return self.counts.total()

    def lines(self) -> dict[str, int]:
        """Copies that each line asked for."""
        return dict(self.counts)


def _asking() -> str:
    """The innermost line of our package that is running, or else that of the test."""
    frame, outside = sys._getframe(2), "elsewhere"
    while frame is not None:
        file = frame.f_code.co_filename
        line = f"{file.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
        if file.startswith(OURS):
            return line
        if outside == "elsewhere" and file.startswith(f"{ROOT}/tests/") and file != __file__:
            outside = line
        frame = frame.f_back
    return outside


def device_of(tensor: Tensor) -> torch.device:
    """Where a tensor pretends to be."""
    return getattr(tensor.untyped_storage(), NAME, None) or tensor.device


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _mark(tensor: Tensor, device: torch.device) -> None:
    setattr(tensor.untyped_storage(), NAME, device if device.type == NAME else None)


def _named(device: Any) -> torch.device | None:
    """A device as an argument names it; None for none."""
    target = None if device is None else torch.device(device)
    return torch.device(NAME, 0) if target is not None and target == torch.device(NAME) else target


def _is_pretended(device: torch.device | None) -> bool:
    return device is not None and device.type == NAME


class _Calls(TorchFunctionMode):
    """What Python asks of torch: answers for devices, and takes them from arguments on the way."""

    def __init__(self, operations: _Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == DEVICE:
            return device_of(args[0])
        if func == IS_CPU:
            return device_of(args[0]) == HOST
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.cpu:
            return self._moved(args[0], HOST)
        if func is Tensor.__deepcopy__ and type(args[0]) is Tensor:
            return self._moved(args[0].detach(), device_of(args[0]), copy=True)
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__) and _is_pretended(device_of(args[0])):
            if func is not Tensor.tolist:
                raise TypeError(f"can't convert a tensor of {device_of(args[0])} to numpy: use .cpu() first")
            self._operations.copies.note()
        if func in COPYING[:3] and isinstance(args[0], Tensor):
            target = _named(kwargs.pop("device", None)) or device_of(args[0])
            made = func(*args, **kwargs)
            return self._moved(made, target, copy=func is torch.tensor, here=device_of(args[0]))
        return self._run(func, args, kwargs)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call torch with the devices it knows, and mark what it makes."""
        given = _named(kwargs.get("device"))
        if _is_pretended(given):
            kwargs = {**kwargs, "device": HOST}
        if given is None:
            places = map(device_of, _tensors((*args, *kwargs.values())))
            given = next((place for place in places if place.type == NAME), None)
        before, self._operations.ambient = self._operations.ambient, given
        try:
            made = func(*args, **kwargs)
        finally:
            self._operations.ambient = before
        if func in COPYING and _is_pretended(given):  # no operation, and an array's memory stays the host's
            made = made.clone()
            _mark(made, given)
        return made

    def _to(self, tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            device, dtype = device_of(args[0]), args[0].dtype
        else:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        if device is not None and device.type not in (HOST.type, NAME):
            return tensor.to(*args, copy=copy, **kwargs)
        return self._moved(tensor, _named(device) or device_of(tensor), dtype=dtype, copy=copy)

    def _moved(
        self, tensor: Tensor, target: torch.device, *, dtype: Any = None, copy: bool = False, here: Any = None
    ) -> Tensor:
        here, dtype = here or device_of(tensor), dtype or tensor.dtype
        if target == here:
            made = tensor.to(dtype, copy=copy)
        else:
            made = tensor.to(dtype, copy=True)
            if target == HOST:
                self._operations.copies.note()
        if made is not tensor:
            _mark(made, target)
        return made


class _Operations(TorchDispatchMode):
    """The operations of torch: devices are compared, waits counted, results marked.

    ``ambient`` is the device of the call from Python that they are part of: for what they make of nothing.
    """

    def __init__(self, copies: Copies) -> None:
        super().__init__()
        self.copies = copies
        self.ambient: torch.device | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the check costs time at every operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = list(_tensors((*args, *kwargs.values())))
        places = [device_of(each) for each in tensors]
        there = next((place for place in places if place.type == NAME), None)
        if there is not None:
            self._compare(name, tensors, places)
            if self._waits(name, tensors, places):
                self.copies.note()
        made = func(*args, **kwargs)
        at = there if there is not None and kwargs.get("device") is None else self.ambient
        if _is_pretended(at):
            known = {each.untyped_storage()._cdata for each in tensors}
            for each in _tensors((made,)):
                if each.untyped_storage()._cdata not in known:
                    _mark(each, at)
        return made

    def _compare(self, name: str, tensors: list[Tensor], places: list[torch.device]) -> None:
        if name in APART:
            return
        first = places[0]
        if name in INDEXING:  # an index may also lie on the host, whatever is indexed
            compared = [place for place in places[1:] if place != HOST]
            values = len(tensors) > 1 and name.startswith(("index_put", "_index_put")) and tensors[-1].dim()
            compared += [places[-1]] if values else []
            odd = [place for place in compared if place != first]
        else:
            compared = [at for each, at in zip(tensors, places, strict=True) if at != HOST or each.dim()]
            odd = [place for place in compared if place != compared[0]]
        if odd:
            both = " and ".join(sorted({str(first), *map(str, compared)}))
            raise Mixed(f"expected all tensors to be on the same device, but found {both} in {name}")

    def _waits(self, name: str, tensors: list[Tensor], places: list[torch.device]) -> bool:
        if name == "copy_":
            return places[0] == HOST
        if name in INDEXING:
            # A mask with one value for all its places is a fill, which nobody waits for.
            fills = "put" in name and tensors[-1].numel() == 1
            pairs = zip(tensors[1:], places[1:], strict=True)
            return not fills and any(one.dtype == torch.bool and at != HOST for one, at in pairs)
        if name == "where":
            return len(tensors) == 1
        if name == "repeat_interleave":
            return len(tensors) > 1
        return name in WAITED


@contextmanager
def _on_this_thread(copies: Copies) -> Iterator[None]:
    with ExitStack() as modes:
        operations = modes.enter_context(_Operations(copies))
        modes.enter_context(_Calls(operations))
        yield


@contextmanager
def fresh_memory_is_nan() -> Iterator[None]:
    """Fill all memory that torch hands out with NaN, or the largest integer."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    was = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)
        torch.utils.deterministic.fill_uninitialized_memory = filled


@contextmanager
def pretending() -> Iterator[Copies]:
    """Have pretended devices on this thread, and on those begun inside; gives the copies to the host."""
    copies, run = Copies(), threading.Thread.run

    def pretended_run(thread: threading.Thread) -> None:
        with _on_this_thread(copies):
            run(thread)

    with patch.object(threading.Thread, "run", pretended_run), fresh_memory_is_nan(), _on_this_thread(copies):
        yield copies
