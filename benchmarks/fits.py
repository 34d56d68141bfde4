"""Trainings of ``benchmarks/train.py``, each in its own process, with the time of its parts.

``python benchmarks/fits.py '{"way": "fit", ...}'`` is the command of such a process; it prints a JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clock import COLD, PARTS, Clock

from probers import FeatureStore
from probers.heads import ProbingRagHead
from probers.heads.base import Linear
from probers.train import heads
from probers.train.data import Column, Dataset, StoreStates
from probers.train.examples import Examples, load_examples
from probers.train.module import head_losses
from probers.train.settings import Fitting

#: Number of times that a step reads or writes all parameters, or as many numbers, see :func:`as_plain`.
_MATRIX_PASSES, _ADAMW_PASSES = 3, 7


def measure(way: str, **job: Any) -> dict[str, Any]:
    """Run a worker in its own process and return its figures."""
    command = [sys.executable, __file__, json.dumps({"way": way, **job})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def as_fit(store: str, layers: Sequence[int], steps: int, device: str = "auto") -> dict[str, Any]:
    """Train the default heads of some layers, and time the parts of a step.

    Args:
        store: folder of a finished store.
        layers: layers with a head.
        steps: optimiser steps to take of those of a training; 0 takes them all.
        device: device for training the heads.

    Returns:
        ``seconds`` of the training, with the steps left out added at the mean of the steps taken;
        ``taken`` and ``of`` steps; ``step`` seconds, its ``parts``, and ``validation`` seconds
        altogether; ``threads``; ``parameters`` of all heads.
    """
    opened, settings = FeatureStore.open(store), Fitting(device=device)
    examples = load_examples([opened])
    full = -(-len(examples.rows["train"]) // settings.batch_size) * settings.epochs
    clock = Clock()
    with clock.running():
        fitted = _fit(opened, layers, shortened(examples, steps, settings), settings)
    parts, step = clock.means()
    return {
        "seconds": fitted.seconds + (full - fitted.steps) * step, "taken": fitted.steps, "of": full,
        "step": step, "parts": parts, "validation": clock.validating, "threads": clock.threads,
        "parameters": sum(p.numel() for p in fitted.head.parameters()),
        "accuracy": float(fitted.accuracy.mean()),
    }  # fmt: skip


def as_memory(store: str, layers: Sequence[int], steps: int) -> dict[str, Any]:
    """Measure a training's peak of anonymous and file-backed memory, in bytes above that after imports."""
    opened, settings = FeatureStore.open(store), Fitting()
    with peaks() as grown:
        _fit(opened, layers, shortened(load_examples([opened]), steps, settings), settings)
    return dict(grown)


def as_plain(heads: int, width: int, steps: int, threads: int) -> dict[str, Any]:
    """Train the same heads in a bare loop over a batch in memory: no store, no trainer, no validation.

    Returns:
        ``step`` seconds and its ``parts``; ``arithmetic`` and ``traffic``: least seconds of the matrix
        products, and of moving the parameters to and from memory, at the speeds measured here,
        ``flops`` and ``bandwidth`` (with this number of threads).
    """
    torch.set_num_threads(threads)
    settings = Fitting()
    head = ProbingRagHead([f"0/layer{k}" for k in range(heads)], width)
    adamw = torch.optim.AdamW(head.parameters(), settings.lr, weight_decay=settings.weight_decay, fused=True)
    size = settings.batch_size
    states, targets = torch.randn(size, heads, width).half(), torch.randint(0, 2, (size, heads))
    spent = dict.fromkeys(PARTS[1:], 0.0)
    for step in range(COLD + steps):
        times = [time.perf_counter()]
        loss = head_losses(head(states.float()), targets).sum()
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        adamw.step()
        adamw.zero_grad()
        times.append(time.perf_counter())
        if step >= COLD:
            for part, seconds in zip(spent, np.diff(times).tolist(), strict=True):
                spent[part] += seconds / steps
    flops, bandwidth = speed_of_products(), speed_of_memory()
    matrices = sum(m.weight.numel() for m in head.modules() if isinstance(m, Linear))
    parameters = sum(p.numel() for p in head.parameters())
    return {
        "step": sum(spent.values()), "parts": spent, "flops": flops, "bandwidth": bandwidth,
        # A multiplication and an addition per weight and text: forward, and twice backward.
        "arithmetic": 6 * size * matrices / flops,
        # Weights are read forward and backward and gradients written; AdamW reads weight, gradient and two
        # moments and writes all but the gradient.
        "traffic": 4 * parameters * (_MATRIX_PASSES + _ADAMW_PASSES) / bandwidth,
    }  # fmt: skip


def shortened(examples: Examples, steps: int, settings: Fitting) -> Examples:
    """Take as few training texts, evenly spread, as give so many steps; 0 takes all."""
    train = examples.rows["train"]
    wanted = steps // settings.epochs * settings.batch_size
    if not steps or wanted >= len(train):
        return examples
    kept = train[np.linspace(0, len(train) - 1, wanted).astype(int)]
    return replace(examples, rows={**examples.rows, "train": kept})


def _fit(store: FeatureStore, layers: Sequence[int], examples: Examples, settings: Fitting) -> heads.Fitted:
    tasks = [heads.Task(k, site=store.spec.site) for k in layers]
    columns: list[Column] = [task.column for task in tasks]
    dataset = Dataset(examples, StoreStates([store], columns), columns, {store.spec.site: store.spec})
    return heads.train_heads(ProbingRagHead, tasks, dataset, settings)


def speed_of_products(size: int = 1536) -> float:
    """Measure the best rate of a large float32 matrix product, in floating-point operations a second."""
    a = torch.randn(size, size)
    return 2 * size**3 / _fastest(lambda: a @ a)


def speed_of_memory(numbers: int = 1 << 26) -> float:
    """Measure the best rate of summing arrays far larger than the caches, in bytes a second."""
    a, b, c = (torch.ones(numbers) for _ in range(3))
    return 12 * numbers / _fastest(lambda: torch.add(a, b, out=c))


def _fastest(call: Callable[[], Any], repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


WAYS: dict[str, Callable[..., dict[str, Any]]] = {"fit": as_fit, "memory": as_memory, "plain": as_plain}


@contextmanager
def peaks() -> Iterator[dict[str, int]]:
    """Record the peak of memory above the start, sampled every two milliseconds."""
    start, grown, over = memory(), {"anonymous": 0, "mapped": 0}, threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            for name, value in memory().items():
                grown[name] = max(grown[name], value - start[name])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        over.set()
        watcher.join()


def memory() -> dict[str, int]:
    """Measure this process's memory in bytes: its own, and of files that it has mapped."""
    status = Path("/proc/self/status").read_text()
    kilobytes = {name: int(status.split(f"{name}:")[1].split()[0]) for name in ("RssAnon", "RssFile")}
    return {"anonymous": kilobytes["RssAnon"] * 1024, "mapped": kilobytes["RssFile"] * 1024}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(WAYS[asked.pop("way")](**asked)))
