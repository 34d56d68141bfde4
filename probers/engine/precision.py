"""The number format a model runs in: the one named, or of float32 and bfloat16 the faster one here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..types import UserError

#: Narrower models keep float32 unmeasured. On AVX512_BF16, one thread, products of width 192 take 2 to 4
#: times as long in bfloat16, of 384 1.5 to 2 times; and what runs everywhere is the same everywhere.
_LEAST_WIDTH = 512
#: Half the digits are worth it from here on; below, the next measurement might say otherwise.
_WORTH = 1.2
#: The text that is timed: its prompt is one pass, and it is one of a batch while it writes.
_PROMPT, _BATCH, _NEW = 256, 8, 48
#: Bytes of weights, in float32, that are passed through: more than a core's own cache keeps.
_WEIGHTS = 32 << 20


def pick_dtype(dtype: str, device: torch.device, config: Callable[[], Any]) -> str | torch.dtype:
    """The number format named; "auto" is the checkpoint's own, but on a CPU the faster one.

    On a processor that computes in bfloat16 natively, that is measured; what comes out is said on
    standard error. On others half precision is slower than single, and less exact.

    Args:
        config: gives the model's configuration.

    Raises:
        UserError: no number format.
    """
    if dtype == "auto":
        return "auto" if device.type != "cpu" else _faster(config)
    chosen = getattr(torch, dtype, None)
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
        raise UserError(f"dtype={dtype} is not a number format: use auto, float32, bfloat16 or float16")
    return chosen


def _faster(config: Callable[[], Any]) -> torch.dtype:
    if not native_bfloat16():
        return torch.float32
    text = config().get_text_config()
    width = getattr(text, "hidden_size", 0)
    if width < _LEAST_WIDTH:
        return torch.float32
    inner = getattr(text, "intermediate_size", None) or 4 * width
    found = gain(width, inner)
    chosen = torch.bfloat16 if found >= _WORTH else torch.float32
    name = str(chosen).removeprefix("torch.")
    print(
        f"model.dtype=auto is {name}: bfloat16 was measured {found:.2f} times as fast as float32",
        file=sys.stderr,
    )
    return chosen


def native_bfloat16() -> bool:
    """Whether this processor multiplies matrices in bfloat16 itself."""
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public names for them
    return any(getattr(torch.cpu, name, lambda: False)() for name in asked)


@cache
def gain(width: int, inner: int) -> float:
    """How many times as fast the matrix products of one text are in bfloat16 as in float32.

    One thread is timed by its own clock, which what else runs on the machine hardly touches.

    Args:
        width: d of the model.
        inner: width of its MLPs, which are most of its products.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            single, half = (_seconds(width, inner, kind) for kind in (torch.float32, torch.bfloat16))
    finally:
        torch.set_num_threads(threads)
    return single / half


def _seconds(width: int, inner: int, kind: torch.dtype) -> float:
    """Processor time of one text's products with some weights: its prompt, and its share of the steps."""
    count = max(1, _WEIGHTS // (4 * width * inner))
    weights = [torch.full((inner, width), 0.01, dtype=kind) for _ in range(count)]
    least = []
    for rows, of in ((_PROMPT, weights[:1]), (_BATCH, weights)):
        states = torch.full((rows, width), 0.01, dtype=kind)
        times = []
        for _ in range(4):  # the first warms up
            started = time.thread_time()
            for weight in of:
                torch.nn.functional.linear(states, weight)
            times.append((time.thread_time() - started) / len(of))
        least.append(min(times[1:]))
    return least[0] + least[1] * _NEW / _BATCH
