"""Feature stores with a planted signal: none in the embedding, most in layer 2."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probers.cli.runs import RunFolder
from probers.store.spec import FeatureSpec, ModelSpec
from probers.store.store import FeatureStore
from probers.train.module import ProberModule

WIDTH, DEPTH = 12, 3
SPEC = FeatureSpec(
    ModelSpec("testbed", "synthetic", DEPTH, WIDTH, "float32"), tuple(range(DEPTH + 1)), WIDTH, prompt="p"
)
#: Signal strength by layer: none in the embedding, most in layer 2.
STRENGTH = (0.0, 0.5, 1.5, 1.0)

Edit = Callable[[dict[str, Any]], dict[str, Any]]


def make_rows(n: int, rng: np.random.Generator, correct: np.ndarray, person: np.ndarray) -> list[dict]:
    rows = []
    for i in range(n):
        group = i // 2
        entropy = float(abs(rng.normal(1.2 - 0.6 * correct[i], 0.6)))
        rows.append({
            "id": f"q{i}", "group": f"g{group}", "split": ("train", "train", "validation", "test")[group % 4],
            "correct": int(correct[i]), "dataset": "testbed",
            "condition": ("closed_book", "with_passages")[i % 2],
            "text": f"w{rng.integers(9)} {'sure' if rng.random() < 0.4 + 0.2 * correct[i] else 'maybe'}",
            "question": f"what {rng.integers(30)}", "answer": "ab"[i % 2] * (1 + i % 3), "gold": "b",
            "question_type": f"t{rng.integers(3)}", "answer_kind": "person" if person[i] else "town",
            "knowledge": "", "n_tokens": 3 + i % 3, "mean_entropy": entropy, "max_entropy": 2 * entropy,
            "min_prob": float(np.exp(-2 * entropy)), "mean_logprob": -entropy,
            "rind_max": entropy * float(rng.random()),
        })  # fmt: skip
    return rows


def make_store(
    path: Path, n: int = 1200, *, edit: Edit | None = None, spec: FeatureSpec = SPEC, strength: float = 1.0
) -> FeatureStore:
    """A store of pooled states, two texts to a group; ``strength`` scales the planted signal."""
    rng = np.random.default_rng(0)
    correct, person = rng.integers(0, 2, n), rng.integers(0, 2, n)
    states = rng.standard_normal((n, DEPTH + 1, WIDTH))
    states += _signal(rng, correct, person, strength)
    rows = make_rows(n, rng, correct, person)
    return _written(path, spec, [edit(row) for row in rows] if edit else rows, states)


def make_token_store(path: Path, n: int = 300, *, edit: Edit | None = None) -> FeatureStore:
    """A store of token states: spans of one to four tokens, the signal in one token of each."""
    rng = np.random.default_rng(1)
    correct, person = rng.integers(0, 2, n), rng.integers(0, 2, n)
    signal = _signal(rng, correct, person, 2.0)
    rows, states = [], []
    for i, row in enumerate(make_rows(n, rng, correct, person)):
        size = 1 + i % 4
        stated = rng.integers(size)
        for token in range(size):
            rows.append(row | {"id": f"q{i}#{token}", "span": f"q{i}", "token": token, "n_tokens": size})
            states.append(rng.standard_normal((DEPTH + 1, WIDTH)) + (signal[i] if token == stated else 0))
    edited = [edit(row) for row in rows] if edit else rows
    return _written(path, replace(SPEC, pool="tokens"), edited, np.stack(states))


def damage(store: FeatureStore, row: int, layer: int) -> None:
    """Make a stored state of a half-precision store NaN, behind the store's back."""
    (file,) = (store.path / "shards").glob("*.safetensors")
    blob = bytearray(file.read_bytes())
    base = 8 + int.from_bytes(blob[:8], "little")
    start = base + json.loads(blob[8:base])[f"layer.{layer}"]["data_offsets"][0]
    place = start + row * store.spec.width * 2
    blob[place : place + 2] = np.float16("nan").tobytes()
    file.write_bytes(blob)


def _signal(rng: np.random.Generator, correct: np.ndarray, person: np.ndarray, strength: float) -> np.ndarray:
    """(n, layers, d): the label along one direction, and whether it is a person along another."""
    directions = np.linalg.qr(rng.standard_normal((WIDTH, 2)))[0].T
    of_label = np.array(STRENGTH)[:, None] * (2 * correct - 1)[:, None, None] * directions[0]
    return strength * of_label + 2.0 * (2 * person - 1)[:, None, None] * directions[1]


def _written(path: Path, spec: FeatureSpec, rows: list[dict], states: np.ndarray) -> FeatureStore:
    folder = RunFolder(path, "datagen", {"source": "cot"})
    folder.claim()
    store = FeatureStore.create(path, [spec], config={"source": "cot"}, shards=1)
    columns = [k for k in range(DEPTH + 1) if k in spec.layers]
    store.write_shard(0, rows, states[:, columns].astype(np.float32))
    store.finish({"model": "testbed"})
    folder.finish({"model": "testbed"})
    return FeatureStore.open(path)


def stop_training(
    patch: pytest.MonkeyPatch,
    *at: int,
    error: type[BaseException] = KeyboardInterrupt,
    module: type[ProberModule] = ProberModule,
) -> list[int]:
    """Count the training steps from now on, in a list of one number, and fail at some of them."""
    original, steps = module.training_step, [0]

    def step(self: ProberModule, batch: Any, index: int) -> Any:
        steps[0] += 1
        if steps[0] in at:
            raise error
        return original(self, batch, index)

    patch.setattr(module, "training_step", step)
    return steps
