"""Runs of every command, interrupted or killed again and again, each time started anew: the same results."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.parts import computed
from helpers.planted import make_store
from helpers.refusals import interruptions
from helpers.tiny import tiny_path
from test_compare import place  # noqa: F401
from test_parts import ALONE, QUOTAS, RAG
from test_score_command import WRITTEN, loaded, make_bank
from test_score_command import model as tiny_model  # noqa: F401
from test_value_heads import ON, linear, written
from test_value_heads import labelled as labelled_texts

from probers.checksums import Journal
from probers.cli import main as cli
from probers.rag.traces import TraceFile
from probers.store.store import FeatureStore
from probers.train.methods.adapted import LoraModule
from probers.train.module import ProberModule

LONG = pytest.mark.long
TRAIN = [
    "data=data", "layer=[1,2]", "seeds=2", "save_every=0", "epochs=2", "batch_size=32", "lr=0.003",
    "head.hidden=24", "resamples=200", "device=cpu",
]  # fmt: skip
SCORE = ["texts.jsonl", "model=./model", "prober=prober", "batch_size=1", *ON]
COMPARE = ["triggers=[never,entropy,rind_paper,probing]", "sweep=1", "resamples=100"]
ADAPTERS = [
    "data=data", "layer=2", "head=lora", "epochs=4", "checks=1", "batch_size=16", "lr=0.01", "loss=span_max",
    "resamples=100", "device=cpu", "head.lr=0.01", "head.dropout=0.1", "head.rank=4", "head.start_epochs=4",
    "head.kl_limit=null", "head.lambda_kl=0.01", "save_every=0",
]  # fmt: skip
IMPORT = ["probe", f"model={tiny_path('llama', 0)}", *ON, "texts=marked.jsonl", "resamples=100"]

#: Name -> command, what is typed, and the function that is interrupted after so many calls.
CASES = {
    "heads": ("train", TRAIN, ProberModule, "training_step", 25),
    "answers": ("rag", [*RAG, "trigger=probing"], TraceFile, "append", 1),
    "comparison": ("compare", [*RAG, *COMPARE], TraceFile, "append", 1),
    "scores": ("score", SCORE, Journal, "append", 2),
    "imported": ("import", [*IMPORT, "batch_size=4"], Journal, "append", 2),
    "quotas": ("datagen", ["source=cot", *QUOTAS, *ALONE], FeatureStore, "write_shard", 1),
    "adapters": ("train", ADAPTERS, LoraModule, "training_step", 13),
}


def prepare(name: str, tiny: Path) -> None:
    """Write what a case reads, in this folder."""
    if name == "heads":
        make_store(Path("data"))
    elif name == "scores":
        Path("model").symlink_to(tiny)
        make_bank(loaded(tiny), recogniser="rules").save_pretrained("prober")
        texts = [t | {"id": str(i), "answer": t["answer"] + " and on" * i} for i, t in enumerate(WRITTEN)]
        write_lines(Path("texts.jsonl"), texts)
    elif name == "adapters":
        pytest.importorskip("peft")
        from test_lora import line, store_of

        store_of(Path(write_lines(Path("marked.jsonl").absolute(), map(line, range(240)))), Path("data"),
                 "pool=tokens", "limit=null")  # fmt: skip
    elif name == "imported":
        written(Path("probe"), linear().state_dict())
        labelled_texts(Path("marked.jsonl").absolute(), 24)


def damage(out: Path, count: int) -> None:
    """Leave behind what a kill may: a line that was cut off."""
    for journal in out.glob("unfinished.jsonl") if count == 1 else ():
        with journal.open("ab") as file:
            file.write(b'{"place": 1, "li')


@pytest.mark.usefixtures("pictures")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, of what peft reads
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LONG if name in ("quotas", "adapters") else ()) for name in CASES]
)
def test_interrupted_again_and_again_a_run_ends_the_same(place, name, tiny_model, monkeypatch):  # noqa: F811
    """Also where a kill left half a line behind; and what is over is not done again."""
    command, typed, owner, function, calls = CASES[name]
    monkeypatch.setattr("probers.rag.loop._CHUNK", 10)
    prepare(name, tiny_model)
    whole, out = cli.run(command, [*typed, "out=whole"]), Path("killed")
    count = 0
    for _ in interruptions(lambda: cli.run(command, [*typed, "out=killed"]), owner, function, calls):
        count += 1
        assert not (out / "metrics.json").exists() and not (out / "results.json").exists()
        damage(out, count)
    assert count > 0 and computed(out) == computed(whole)
    assert not [p.name for p in out.rglob("*") if p.name.startswith(("checkpoint", "unfinished"))]
    state = (out / "run.json").read_text()
    for _ in interruptions(lambda: cli.run(command, [*typed, "out=killed"]), owner, function, 0):
        raise AssertionError("something is done again")
    assert (out / "run.json").read_text() == state and json.loads(state)["complete"]


# A process that is killed has no time to tidy up.

SHARD = 8
PHASES = ("start-up", "generation", "writing")
PATIENCE = 300  # seconds that any one step of a run may take


class Pace(NamedTuple):
    """How long an undisturbed run took: until its store was there, and per shard, in seconds."""

    startup: float
    shard: float


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
    assert any(" -> store" in line for line in run.stdout), "the run ended before it began to generate"


def whole_run(where: Path, limit: int) -> Pace:
    """Run the command to its end."""
    start = time.monotonic()
    with launch(where, limit) as run:
        wait_until_ready(run)
        ready = time.monotonic() - start
        run.stdout.read()
    assert run.returncode == 0
    shards = len(list((where / "store/shards").glob("*.json")))
    return Pace(ready, (time.monotonic() - start - ready) / shards)


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
        assert run.poll() is None, f"a run ended before it could be killed ({phase}): raise the limit"
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


@pytest.mark.parametrize(("limit", "kills"), [
    pytest.param(40, 3, marks=LONG), pytest.param(240, 20, marks=pytest.mark.slow),
])  # fmt: skip
def test_killed_at_random_moments_a_run_ends_with_the_same_data(tmp_path, limit, kills):
    pace, rng = whole_run(tmp_path / "whole", limit), random.Random(0)
    for number in range(kills):
        kill(tmp_path / "killed", limit, PHASES[number % len(PHASES)], pace, rng)
    whole_run(tmp_path / "killed", limit)
    assert differences(tmp_path / "whole/store", tmp_path / "killed/store") == []
    FeatureStore.open(tmp_path / "killed/store").verify()
