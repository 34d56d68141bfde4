"""Speed of the feature store, compared with its disk and the page cache.

``python benchmarks/store.py`` measures, in one run on one disk:

- writing: shards (conversion, checks, checksums, fsync) against the same bytes written and synced directly,
  shard by shard in turn;
- opening;
- reading one layer from the page cache against reading as many bytes of one file, in turn;
- the bytes read for one layer of a store that is not in memory. Shards are opened without read-ahead and
  with exact ranges, so the rest is the page with each shard's header and the ends of pages;
- the memory of training's access pattern: standardising, random batches, scoring. Anonymous memory is
  the process's own; file-backed memory is the page cache's, which the kernel can reclaim at any moment.

Needs Linux, and twice the store's size on disk (1.8 GB with the defaults); all of it is removed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flags import positive

from probers import FeatureStore
from probers.store.spec import FeatureSpec, ModelSpec

BATCH = 12


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a store."""

    examples: int
    layers: int
    width: int
    shard: int
    dtype: str = "float16"

    @property
    def spec(self) -> FeatureSpec:
        model = ModelSpec("benchmark", "0", self.layers, self.width, "float32")
        return FeatureSpec(model, tuple(range(1, self.layers + 1)), self.width, dtype=self.dtype)

    @property
    def layer_bytes(self) -> int:
        return self.examples * self.spec.vector_bytes

    @property
    def bytes(self) -> int:
        return self.layer_bytes * self.layers

    @property
    def counts(self) -> list[int]:
        """Numbers of rows per shard."""
        return [min(self.shard, self.examples - i) for i in range(0, self.examples, self.shard)]


def main(argv: list[str]) -> None:
    args = parse(argv)
    size = Size(args.examples, args.layers, args.width, args.shard_size, args.dtype)
    with tempfile.TemporaryDirectory(prefix="probers-store-", dir=args.folder) as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < 2 * size.bytes:
            raise SystemExit(
                f"{folder} has less than {2 * size.bytes / 1e9:.1f} GB free: give another --folder"
            )
        rows = measure(folder, size, repeats=args.repeats, steps=args.steps)
    about = (
        f"{size.examples:,} examples, {size.layers} layers, width {size.width}, {size.dtype} "
        f"({size.bytes / 1e9:.2f} GB) in shards of {size.shard} rows; batches of {BATCH}."
    )
    header = "| what | store | compared with | ratio |\n| --- | --- | --- | --- |"
    body = "\n".join([about, "", header, *(f"| {' | '.join(row)} |" for row in rows)])
    print(body)
    if args.write:
        from report import write_section

        options = [a for a in argv if a != "--write"]
        name = "store" if size.dtype == "float16" else f"store, {size.dtype}"
        write_section(name, shlex.join(["python", "benchmarks/store.py", *options, "--write"]), body)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--examples", type=positive, default=100_000)
    add("--layers", type=positive, default=12)
    add("--width", type=positive, default=768)
    add("--dtype", choices=["float16", "float32", "fp8"], default="float16")
    add("--shard-size", type=positive, default=256, help="rows per shard")
    add("--repeats", type=positive, default=5, help="of opening and reading; the median is shown")
    add("--steps", type=positive, default=500, help="training batches")
    add("--folder", help="measure the disk of this folder; default: the one for temporary files")
    add("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    return parser.parse_args(argv)


def measure(folder: Path, size: Size, *, repeats: int, steps: int) -> list[list[str]]:
    """Make the rows of the table."""
    path = folder / "store"
    ours, raw, written = write(path, size, folder / "raw")
    rows = [
        row(
            "write",
            f"{written / ours / 1e6:.0f} MB/s",
            f"{written / raw / 1e6:.0f} MB/s, the same bytes as they are",
            raw / ours,
        )
    ]
    opened = median(lambda: FeatureStore.open(path), repeats)
    rows.append(row("open", f"{opened * 1e3:.0f} ms"))
    store = FeatureStore.open(path)
    layer, whole = read_one_layer(store, folder / "raw", size, repeats)
    rows.append(
        row(
            "read one layer, in the page cache",
            f"{size.layer_bytes / layer / 1e9:.2f} GB/s",
            f"{size.layer_bytes / whole / 1e9:.2f} GB/s, one file of as many bytes",
            whole / layer,
        )
    )
    touched, requested = bytes_touched(store)
    rows.append(
        row(
            "read one layer, not in memory",
            f"{touched / 1e6:.2f} MB brought into memory, {requested / 1e6:.2f} MB asked of the disk",
            f"{size.layer_bytes / 1e6:.2f} MB, the layer",
            touched / size.layer_bytes,
        )
    )
    small = Size(max(size.shard, size.examples // 4), size.layers, size.width, size.shard, size.dtype)
    write(folder / "small", small, folder / "raw")
    for one, where in ((small, folder / "small"), (size, path)):
        anonymous, mapped = training_memory(where, steps)
        rows.append(
            row(
                f"memory to read {one.examples:,} examples for training",
                f"{anonymous / 1e6:.0f} MB anonymous, {mapped / 1e6:.0f} MB file-backed",
                f"{one.bytes / 1e6:.0f} MB, all states",
                (anonymous + mapped) / one.bytes,
            )
        )
    return rows


def row(what: str, ours: str, other: str = "", ratio: float | None = None) -> list[str]:
    return [what, ours, other, "" if ratio is None else f"{ratio:.3f}"]


def write(path: Path, size: Size, raw: Path) -> tuple[float, float, int]:
    """Make a store; return seconds for its shards and for the same plain bytes, and the number of bytes."""
    store = FeatureStore.create(path, [size.spec], config={}, shards=len(size.counts))
    rng = np.random.default_rng(0)
    # Load the libraries before the clock runs.
    store.write_shard(0, [example(0)], np.zeros((1, size.layers, size.width), np.float32))
    base = rng.standard_normal((size.shard, size.layers, size.width), dtype=np.float32)
    ours = plain = 0.0
    written = 0
    for index, count in enumerate(size.counts):
        rows = [example(index * size.shard + i) for i in range(count)]
        states = base[:count] + np.float32(index / 1000)
        ours += seconds(lambda i=index, r=rows, s=states: store.write_shard(i, r, s))
        blob = b"".join(f.read_bytes() for f in sorted(path.glob(f"shards/{index:05d}.*")))
        plain += seconds(lambda b=blob: write_raw(raw, b))
        written += len(blob)
        raw.unlink()
    store.finish()
    return ours, plain, written


def example(number: int) -> dict[str, Any]:
    """Make a row with as much text as an answer of 48 tokens has."""
    split = ("train", "train", "train", "validation", "test")[number // 2 % 5]
    return {
        "id": f"q{number}", "group": f"g{number // 2}", "split": split, "correct": number // 3 % 2,
        "question": f"Who founded the mill number {number} in the town?",
        "text": f"It was person {number}. " * 12,
        "n_tokens": 48, "mean_entropy": number % 97 / 31, "min_prob": number % 89 / 97,
    }  # fmt: skip


def write_raw(path: Path, blob: bytes) -> None:
    with path.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())


def read_one_layer(store: FeatureStore, raw: Path, size: Size, repeats: int) -> tuple[float, float]:
    """Time one layer of the store and a file of as many bytes by turns, in median seconds."""
    k = store.spec.layers[len(store.spec.layers) // 2]
    raw.write_bytes(bytes(size.layer_bytes))
    layer, whole = [], []
    for _ in range(repeats):
        layer.append(seconds(lambda: store.layer(k)))
        whole.append(seconds(lambda: np.fromfile(raw, np.uint8)))
    raw.unlink()
    return statistics.median(layer), statistics.median(whole)


def bytes_touched(store: FeatureStore) -> tuple[int, int]:
    """Count the bytes that one layer of a store outside memory brings there, and reads from the disk."""
    files = sorted(store.path.glob("shards/*.safetensors"))
    for file in files:
        with file.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if sum(map(resident, files)):
        return 0, 0  # a file system that keeps its pages shows nothing
    before = read_from_disk()
    store.layer(store.spec.layers[len(store.spec.layers) // 2])
    requested = read_from_disk() - before
    return sum(map(resident, files)), requested


def resident(path: Path) -> int:
    """Count the bytes of a file that are in the page cache."""
    with path.open("rb") as handle:
        memory = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    pages = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    failed = ctypes.CDLL(None).mincore(
        ctypes.c_void_p(address), ctypes.c_size_t(len(memory)), ctypes.c_void_p(pages.ctypes.data)
    )
    if failed:
        raise OSError(f"mincore failed on {path}")
    return int((pages & 1).sum()) * mmap.PAGESIZE


def read_from_disk() -> int:
    """Count the bytes that this process has read from disks so far."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


def training_memory(path: Path, steps: int) -> tuple[int, int]:
    """Measure peaks of anonymous and file-backed memory while training reads, in bytes above the start."""
    command = [sys.executable, __file__, "--as-trainer", str(path), str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    return figures["anonymous"], figures["mapped"]


def as_trainer(path: str, steps: str) -> None:
    """Read a store like ``probers-train``, and print how the memory grew; runs in its own process."""
    import torch

    from probers.train.data import CHUNK, Column, StoreStates
    from probers.train.heads import moments
    from probers.train.module import Batches, Schedule, StoreData, loader

    store = FeatureStore.open(path)
    splits = store.table()["split"].to_numpy()
    rows = {s: np.flatnonzero(splits == s) for s in ("train", "validation", "test")}
    targets = torch.zeros(len(splits), 1, dtype=torch.int64)

    def train(steps: int, most: int) -> None:
        columns = [Column(store.spec.site, layer) for layer in store.spec.layers]
        states, training = StoreStates([store], columns), torch.from_numpy(rows["train"])
        schedule = Schedule(-(-len(training) // BATCH), 1, 1)
        data = loader(StoreData(states, targets, None), Batches(training, BATCH, [0], schedule))
        every = torch.arange(len(columns))
        moments(states, training[:most], every, targets.expand(-1, len(columns)))
        for _, batch in zip(range(steps), data, strict=False):
            batch[0].float().sum()
        for start in range(0, min(most, len(states)), CHUNK):
            states[start : start + CHUNK].float().sum()

    train(1, BATCH)  # memory that libraries take once is not the store's
    with peaks() as grown:
        train(int(steps), len(splits))
    print(json.dumps(grown))


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


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def median(call: Callable[[], Any], repeats: int) -> float:
    return statistics.median(seconds(call) for _ in range(repeats))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-trainer"]:
        as_trainer(*sys.argv[2:])
    else:
        main(sys.argv[1:])
