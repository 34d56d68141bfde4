"""Batches of texts of similar length, as large as memory allows, and prefixes that prompts share."""

from __future__ import annotations

import gc
import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import torch

from ..types import RunError, UserError
from .forward import Decoder, read_prefixes
from .kv_cache import CachedPrefix, can_share

log = logging.getLogger(__name__)

#: First and largest batch size of "auto".
FIRST, MOST = 32, 256
PADDING = 0.15  # largest share of all places that may be padding
CHEAP = 1024  # places: approximate cost of one more batch whose tokens are written one after another
#: The same cost where the prompts are already read, so that padding costs only their attention.
IDLE = 16_384
BESIDE = 4  # factor by which "auto" then raises the number of texts
_EXHAUSTED = "out of memory|can't allocate memory"  # in errors without a class of their own
_ROOMY = 0.4  # a batch that took a smaller share of the device's memory may be doubled

T = TypeVar("T")


class Batches:
    """Batches of indices, cut to a size and run one after another.

    ``size``, texts per batch, is a number or "auto", which begins with 32, doubles up to 256 while a batch
    takes less than two fifths of the memory that was free before, and halves when memory runs out.
    """

    def __init__(self, size: int | str, device: torch.device) -> None:
        if size != "auto" and not (isinstance(size, int) and size > 0):
            raise UserError(f"batch_size={size} must be auto or a whole number above 0")
        self._auto, self._device, self._most = size == "auto", device, MOST
        self._before = memory_share(device)  # already taken: the weights, other processes
        self.size, self._beside = (FIRST, BESIDE) if self._auto else (int(size), 1)

    def each(
        self, lengths: Sequence[int] | Mapping[int, int], work: Callable[[list[int]], list[T]], *,
        known: Container[int] = (), price: int | None = None, read: bool = False,
    ) -> Iterator[dict[int, T]]:  # fmt: skip
        """Yield the results of ``work`` for the indices or keys of ``lengths``, batch by batch.

        Batches hold texts of similar length, the longest first, so that memory runs out at once if it does.
        ``known`` indices are left out of their batches, and the other indices stay in the same batches.
        With the ``price`` of a batch in places, :func:`cheapest` cuts the batches, without one :func:`cut`.
        With texts already ``read``, "auto" takes four times as many as memory holds, up to 256.
        RunError where memory runs out for a single text, or for a batch of a size given as a number.
        """
        places: Iterable[int] = lengths if isinstance(lengths, Mapping) else range(len(lengths))
        waiting = sorted(places, key=lambda i: -lengths[i])
        plan: list[int] = []
        while waiting:
            most = min(MOST, self.size * self._beside) if read else self.size
            if not plan:
                ordered = [lengths[i] for i in waiting]
                plan = cut(ordered, most) if price is None else cheapest(ordered, most, price)
            chosen = waiting[: plan.pop(0)]
            results, before = dict[int, T](), (self.size, self._beside)
            try:
                if not all(i in known for i in chosen):
                    pairs = zip(chosen, work(chosen), strict=True)
                    results = {i: result for i, result in pairs if i not in known}
            except (RuntimeError, MemoryError) as error:
                kinds = (MemoryError, torch.OutOfMemoryError)
                if not isinstance(error, kinds) and not re.search(_EXHAUSTED, str(error)):
                    raise
                self._shrink(len(chosen))
            else:
                waiting = waiting[len(chosen) :]
                if self._auto and len(chosen) == most and 2 * self.size <= self._most:
                    taken, free = memory_share(self._device) - self._before, 1 - self._before
                    if taken < _ROOMY * free:
                        self.size *= 2
            if (self.size, self._beside) != before:
                plan = []
            if results:
                yield results

    def _shrink(self, failed: int) -> None:
        if not self._auto:
            problem = f"memory ran out with batch_size={self.size}"
            raise RunError(f"{problem}: lower it, or batch_size=auto", "memory")
        if failed == 1:
            raise RunError("memory ran out for a single text: shorten it or take a smaller model", "memory")
        if failed > self.size:
            self._beside = 1
        else:
            self.size = self._most = max(1, failed // 2)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        log.warning(f"out of memory: continuing with batch_size={self.size}")


def cut(lengths: Sequence[int], size: int) -> list[int]:
    """Return sizes of batches of at most ``size`` texts, for descending ``lengths``.

    At most 15% of all places are padding, or so few that another batch would cost more. Batches become
    no smaller than this requires.
    """
    for limit in (1.0, 0.6, 0.4, 0.3, 0.25, 0.2, PADDING):
        sizes, total, start = [], 0, 0
        while start < len(lengths):
            longest, filled, count = lengths[start], 0, 0
            for length in lengths[start : start + size]:
                if filled + length < (1 - limit) * longest * (count + 1):
                    break
                filled, count = filled + length, count + 1
            sizes.append(count)
            total += longest * count
            start += count
        if total - sum(lengths) <= max(PADDING * total, CHEAP):
            break
    return sizes


def cheapest(lengths: Sequence[int], size: int, price: int) -> list[int]:
    """Return sizes of the cheapest batches of at most ``size`` texts; each costs ``price`` extra places."""
    costs, begins = [0], [0]  # cost of the batches of the first n texts, and start of the last batch
    for end in range(1, len(lengths) + 1):
        starts = range(max(0, end - size), end)
        cost, later = min((costs[i] + (end - i) * lengths[i] + price, -i) for i in starts)
        costs.append(cost)
        begins.append(-later)
    sizes, end = [], len(lengths)
    while end:
        sizes.append(end - begins[end])
        end = begins[end]
    return sizes[::-1]


def memory_share(device: torch.device) -> float:
    """Return the share of an accelerator's memory in use by any process; 1.0 for a CPU.

    torch's allocator keeps the memory of a batch, so after a batch this is its peak.
    """
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return 1 - free / total


#: Tokens that must be saved: about the cost of a further pass over one token of each row.
_LEAST = 128


def longest(sequences: Sequence[Sequence[int]]) -> list[int]:
    """Return for each sequence the index of one that begins with it and that no other begins with."""
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    containing = list(range(len(sequences)))
    # A sequence that begins some other also begins its neighbour in alphabetical order.
    for this, following in zip(order[-2::-1], order[:0:-1], strict=True):
        if tuple(sequences[following][: len(sequences[this])]) == tuple(sequences[this]):
            containing[this] = containing[following]
    return containing


def nested(prompts: Sequence[Sequence[int]], config: Any) -> list[int] | None:
    """Return for each prompt the index of the longest one that begins with all its tokens but the last.

    The last token may differ: it is computed anyway, for its logits. None where too little is nested, or
    where the model family's keys and values cannot be shared.
    """
    if any(len(ids) == 1 for ids in prompts) or not can_share(config):
        return None
    covering = longest([ids[:-1] for ids in prompts])
    saved = sum(len(prompts[i]) for i, other in enumerate(covering) if i != other)
    return covering if saved >= _LEAST else None


def read_nested(
    decoder: Decoder, batches: Batches, prompts: Sequence[Sequence[int]], whole: Sequence[int],
    known: Container[int], begin: CachedPrefix | None = None,
) -> Iterator[dict[int, CachedPrefix]]:  # fmt: skip
    """Yield keys and values of all but the last token of each prompt, by index; nested ones share one pass.

    Prompts come in groups that take as much memory as a batch of the longest of them. A group whose prompts
    are all ``known`` is left out. ``whole`` is the result of :func:`nested`. ``begin`` holds keys and values
    of tokens that prompts may begin with.
    """
    parts: dict[int, list[int]] = {}
    for index, covering in enumerate(whole):
        parts.setdefault(covering, []).append(index)
    waiting = sorted(parts, key=lambda i: -len(prompts[i]))

    def compute(chosen: list[int]) -> list[CachedPrefix]:
        return read_prefixes(decoder, [prompts[i][:-1] for i in chosen], begin)

    while waiting:
        lengths = list(accumulate(len(prompts[i]) for i in waiting))
        count = bisect_right(lengths, batches.size * lengths[0])
        group, waiting = waiting[:count], waiting[count:]
        if all(index in known for covering in group for index in parts[covering]):
            continue
        read = batches.each({i: len(prompts[i]) - 1 for i in group}, compute, price=_LEAST)
        computed = {i: prefix for batch in read for i, prefix in batch.items()}
        prefixes = {index: computed[covering] for covering in group for index in parts[covering]}
        del computed  # the caller alone holds them
        yield prefixes
