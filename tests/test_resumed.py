"""Runs of every command, interrupted or killed again and again, each time started anew: the same results."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

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
        if count == 1 and (journal := out / "unfinished.jsonl").exists():
            with journal.open("ab") as file:  # as a kill may leave it behind
                file.write(b'{"place": 1, "li')
    assert count > 0 and computed(out) == computed(whole)
    assert not [p.name for p in out.rglob("*") if p.name.startswith(("checkpoint", "unfinished"))]
    state = (out / "run.json").read_text()
    for _ in interruptions(lambda: cli.run(command, [*typed, "out=killed"]), owner, function, 0):
        raise AssertionError("something is done again")
    assert (out / "run.json").read_text() == state and json.loads(state)["complete"]


def started(folder: Path, limit: int) -> subprocess.Popen[bytes]:
    """The command in a process and a folder of its own, so that ``out`` has the same name everywhere."""
    folder.mkdir(exist_ok=True)
    code = "from probers.cli.main import datagen; datagen()"
    typed = ["source=cot", f"limit={limit}", "shard_size=8", *ALONE, "out=store"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", code, *typed], cwd=folder, **quiet)


@pytest.mark.parametrize(("limit", "kills"), [
    pytest.param(40, 3, marks=LONG), pytest.param(240, 20, marks=pytest.mark.slow),
])  # fmt: skip
def test_killed_at_random_moments_a_run_ends_with_the_same_data(tmp_path, limit, kills):
    """While it starts, generates and writes a shard."""
    whole, killed, draw = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    begun = time.monotonic()
    assert started(whole, limit).wait() == 0
    seconds = time.monotonic() - begun
    for number in range(kills):
        before, run = set(killed.glob("store/shards/*")), started(killed, limit)
        if number % 3 == 0:
            time.sleep(draw.uniform(0, seconds / 3))
        else:
            while set(killed.glob("store/shards/*")) <= before and run.poll() is None:
                time.sleep(0.0002)
            # A shard is three files in some ten milliseconds.
            time.sleep(draw.uniform(0, 8 * seconds / limit if number % 3 == 1 else 0.01))
        run.kill()
        assert run.wait() == -signal.SIGKILL, "it ended before it could be killed: raise the limit"
    assert started(killed, limit).wait() == 0
    assert computed(killed / "store") == computed(whole / "store")
