"""Peak memory of a way of generating.

On a CPU each way runs in its own process, which is this file:
``python benchmarks/memory.py MODEL WAY BATCH PROMPT_TOKENS NEW_TOKENS DEVICE [DTYPE]`` prints bytes.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import ways
from workload import build, long_prompts

from probers.types import RunError

#: glibc otherwise keeps freed memory, and how much depends on the order of requests.
STRICT_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


def growth(work: Callable[[], Any], device: torch.device) -> int:
    """Measure the bytes by which memory in use peaks above its level before ``work``.

    On an accelerator it is torch's allocation; else the process's resident memory, whose peak Linux can
    reset, so that loading the model does not hide the later peak.
    """
    gc.collect()
    if device.type != "cpu":
        return _allocated(work, device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # no Linux: the peak since the process began
        before, unit = _max_rss(), 1 if sys.platform == "darwin" else 1024
        work()
        return (_max_rss() - before) * unit
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _allocated(work: Callable[[], Any], device: torch.device) -> int:
    """Measure the same on an accelerator."""
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):  # mps tells no peak, but its allocator keeps its memory
        module.empty_cache()
        before = module.driver_allocated_memory()
        work()
        return module.driver_allocated_memory() - before
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    work()
    return module.max_memory_allocated(device) - before


def _max_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def memory_of(
    model: str, way: str, batch: int, prompt_tokens: int, new_tokens: int, device: torch.device,
    dtype: str | None = None,
) -> int:  # fmt: skip
    """Measure :func:`growth` of one way in its own process.

    Raises:
        RunError: the process failed; its last line is in the message.
    """
    command = [
        sys.executable,
        __file__,
        model,
        way,
        str(batch),
        str(prompt_tokens),
        str(new_tokens),
        str(device),
        *([dtype] if dtype else []),
    ]
    done = subprocess.run(command, env={**os.environ, **STRICT_MALLOC}, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RunError(f"measuring the memory of {way} on {model} ended with {done.returncode}: {reason}")
    return int(done.stdout.split()[-1])


def main(
    model: str, way: str, batch: str, prompt_tokens: str, new_tokens: str, device: str,
    dtype: str | None = None,
) -> None:  # fmt: skip
    lm = build(model, torch.device(device), dtype)
    work = ways(lm)[way]
    prompts = long_prompts(lm.tokenizer, int(batch), int(prompt_tokens))
    work([prompt[:40] for prompt in prompts[:2]], 3)  # loads code and tables of the first use
    print(growth(lambda: work(prompts, int(new_tokens)), lm.device))


if __name__ == "__main__":
    main(*sys.argv[1:])
