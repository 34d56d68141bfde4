"""`kill -9` at 20 random moments of a generation run, each followed by the same command: the same bytes.

Slow (`pytest -m slow tests/test_kill.py`). The moments are seeded and spread over what a run does:
starting up, generating, and writing a shard.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from artefacts import contents

from probers.store.store import FeatureStore

SHARD = 8
PHASES = ("start-up", "generation", "writing")
PATIENCE = 300  # seconds that any one step of a run may take


def launch(where: Path, limit: int) -> subprocess.Popen[str]:
    """The command, in a folder of its own, so that its ``out`` has the same name everywhere."""
    where.mkdir(exist_ok=True)
    arguments = ["source=cot", f"limit={limit}", f"shard_size={SHARD}", "out=store"]
    code = "from probers.commands.main import datagen; datagen()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def wait_until_ready(run: subprocess.Popen[str]) -> None:
    """Until the model is loaded and the store there: the run says so with one line."""
    assert run.stdout is not None
    if not any(" -> store" in line for line in run.stdout):
        raise AssertionError(f"the run ended with code {run.wait()} before it began to generate")


def whole_run(where: Path, limit: int) -> tuple[float, float]:
    """Run the command to its end; returns the seconds until its store was there, and of each shard."""
    start = time.monotonic()
    with launch(where, limit) as run:
        wait_until_ready(run)
        ready = time.monotonic()
        run.communicate()
    assert run.returncode == 0
    return ready - start, (time.monotonic() - ready) / len(list(where.glob("store/shards/*.json")))


def listing(where: Path) -> set[str]:
    return {file.name for file in where.glob("store/shards/*")}


def kill(where: Path, limit: int, phase: str, startup: float, shard: float, rng: random.Random) -> int:
    """Kill the command at a random moment of a phase; returns how many finished shards it left."""
    before, start = listing(where), time.monotonic()
    with launch(where, limit) as run:
        if phase == "start-up":
            time.sleep(rng.uniform(0, startup))
        else:
            wait_until_ready(run)
        if phase == "generation":
            time.sleep(rng.uniform(0, 1.5 * shard))
        elif phase == "writing":  # a shard is three files in some ten milliseconds
            while listing(where) <= before and run.poll() is None and time.monotonic() < start + PATIENCE:
                time.sleep(0.0002)
            time.sleep(rng.uniform(0, 0.01))
        assert run.poll() is None, f"a run ended before it could be killed ({phase}): raise the limit"
        run.send_signal(signal.SIGKILL)
    assert run.returncode == -signal.SIGKILL
    return len(list(where.glob("store/shards/[0-9]*.json")))


def check(folder: Path, *, limit: int, kills: int) -> str:
    """Compare an undisturbed run and a killed one byte by byte; returns what happened."""
    pace = whole_run(folder / "whole", limit)
    rng = random.Random(0)
    phases = [PHASES[i % len(PHASES)] for i in range(kills)]
    rng.shuffle(phases)
    left = [kill(folder / "killed", limit, phase, *pace, rng) for phase in phases]
    whole_run(folder / "killed", limit)
    assert contents(folder / "killed/store") == contents(folder / "whole/store")
    FeatureStore.open(folder / "killed/store").verify()
    return f"{dict(Counter(phases))} kills, shards after each: {left}: byte-identical"


@pytest.mark.slow
def test_twenty_kills_end_in_the_same_bytes(tmp_path: Path, capsys: Any) -> None:
    said = check(tmp_path, limit=240, kills=20)
    with capsys.disabled():
        print(f"\n{said}")


def test_a_difference_would_be_seen(tmp_path: Path) -> None:
    """The converse: a changed byte and a leftover file."""
    for file in ("a", "b/.0.tmp"):
        before = contents(tmp_path)
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"12345")
        there = contents(tmp_path)
        assert there != before
        (tmp_path / file).write_bytes(b"12-45")
        assert contents(tmp_path) != there
