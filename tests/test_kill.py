"""`kill -9` at 20 random moments of a generation run, each followed by the same command: the same data.

Slow (`pytest -m slow tests/test_kill.py`). The moments are seeded and spread over what a run does:
starting up, generating, and writing a shard.
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from probers.store.store import FeatureStore

KILLS, LIMIT = 20, 240
SHARD = 8
PHASES = ("start-up", "generation", "writing")
PATIENCE = 300  # seconds that any one step of a run may take


class Pace(NamedTuple):
    """How long an undisturbed run took: until its store was there, per shard, and in all, in seconds."""

    startup: float
    shard: float
    total: float


def launch(where: Path, limit: int) -> subprocess.Popen[str]:
    """The command, in a folder of its own, so that its ``out`` has the same name everywhere."""
    where.mkdir(exist_ok=True)
    arguments = ["source=cot", f"limit={limit}", f"shard_size={SHARD}", "out=store"]
    code = "from probers.cli.main import datagen; datagen()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=where, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def wait_until_ready(run: subprocess.Popen[str]) -> None:
    """Until the model is loaded and the store there: the run says so with one line."""
    for line in run.stdout:
        if " -> store" in line:
            return
    raise AssertionError(f"the run ended with code {run.wait()} before it began to generate")


def whole_run(where: Path, limit: int) -> Pace:
    """Run the command to its end."""
    start = time.monotonic()
    with launch(where, limit) as run:
        wait_until_ready(run)
        ready = time.monotonic() - start
        run.stdout.read()
    assert run.returncode == 0
    total = time.monotonic() - start
    return Pace(ready, (total - ready) / len(list((where / "store/shards").glob("*.json"))), total)


def listing(where: Path) -> set[str]:
    folder = where / "store/shards"
    return {f.name for f in folder.iterdir()} if folder.is_dir() else set()


def kill(where: Path, limit: int, phase: str, pace: Pace, rng: random.Random) -> None:
    """Start the command and kill it at a random moment of a phase."""
    before, start = listing(where), time.monotonic()
    with launch(where, limit) as run:
        if phase == "start-up":
            time.sleep(rng.uniform(0, pace.startup))
        else:
            wait_until_ready(run)
        if phase == "generation":
            time.sleep(rng.uniform(0, 1.5 * pace.shard))
        elif phase == "writing":  # a shard is three files in some ten milliseconds
            while listing(where) <= before and run.poll() is None and time.monotonic() < start + PATIENCE:
                time.sleep(0.0002)
            time.sleep(rng.uniform(0, 0.01))
        assert run.poll() is None, f"a run ended before it could be killed ({phase}): raise LIMIT"
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL


def differences(one: Path, other: Path) -> list[str]:
    """Names of the files that only one of two stores has, and of the columns and layers that differ."""
    names = {str(f.relative_to(folder)) for folder in (one, other) for f in folder.rglob("*")}
    missing = [name for name in sorted(names) if not ((one / name).exists() and (other / name).exists())]
    ours, theirs = FeatureStore.open(one), FeatureStore.open(other)
    rows, others = ours.table(), theirs.table()
    texts = [name for name in rows if rows[name].dtype.kind not in "f"]
    columns = [name for name in texts if not rows[name].equals(others[name])]
    columns += [n for n in rows if n not in texts and not np.allclose(rows[n], others[n], 1e-3, 1e-5, True)]
    layers = ours.spec.layers
    apart = [str(k) for k in layers if not np.allclose(ours.layer(k), theirs.layer(k), 0.01, 0.02)]
    return [*missing, *columns, *apart]


def check(folder: Path, *, limit: int = LIMIT, kills: int = KILLS) -> None:
    """An undisturbed run and a killed one, compared as data."""
    pace = whole_run(folder / "whole", limit)
    rng = random.Random(0)
    for number in range(kills):
        kill(folder / "killed", limit, PHASES[number % len(PHASES)], pace, rng)
    whole_run(folder / "killed", limit)
    assert differences(folder / "whole/store", folder / "killed/store") == []
    FeatureStore.open(folder / "killed/store").verify()


@pytest.mark.slow
def test_twenty_kills_end_in_the_same_data(tmp_path: Path) -> None:
    check(tmp_path)
