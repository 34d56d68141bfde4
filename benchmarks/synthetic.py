"""Feature stores of any size with a signal to train on, made once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probers import FeatureStore
from probers.store.spec import FeatureSpec, ModelSpec

#: Number of rows of a shard.
SHARD = 512


def synthetic(folder: Path, examples: int, layers: int, width: int) -> Path:
    """Make a store with a signal that grows towards the middle layer, unless it exists."""
    path = folder / f"{examples}x{layers}x{width}"
    model = ModelSpec("benchmark", "0", layers, width, "float32")
    spec = FeatureSpec(model, tuple(range(1, layers + 1)), width)
    made = FeatureStore.create(path, [spec], config={}, shards=-(-examples // SHARD))
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((layers, width), dtype=np.float32) / np.float32(width**0.5)
    middle = (layers + 1) / 2
    strength = 2 - 2 * np.abs(np.arange(1, layers + 1, dtype=np.float32) - np.float32(middle)) / layers
    for index in made.missing:
        rng = np.random.default_rng((1, index))
        numbers = range(index * SHARD, min(examples, (index + 1) * SHARD))
        correct = rng.integers(0, 2, len(numbers))
        states = rng.standard_normal((len(numbers), layers, width), dtype=np.float32)
        sign = (2 * correct - 1).astype(np.float32)[:, None, None]
        states += sign * (strength[:, None] * directions)
        made.write_shard(index, [example(n, int(c)) for n, c in zip(numbers, correct, strict=True)], states)
    made.finish()
    return path


def example(number: int, correct: int) -> dict[str, Any]:
    """Make a row; two rows make a group, and eight of ten groups are for training."""
    split = (*["train"] * 8, "validation", "test")[number // 2 % 10]
    return {"id": f"q{number}", "group": f"g{number // 2}", "split": split, "correct": correct}


def warm(store: Path) -> None:
    """Bring a store into the page cache."""
    for file in sorted(store.glob("shards/*")):
        with file.open("rb") as handle:
            while handle.read(1 << 22):
                pass
