"""part=i/n and probers-merge: n parts of any command are the run in one piece; what is no part is refused."""

import errno
import json
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from helpers.artefacts import harm, read_lines, write_lines
from helpers.parts import assert_whole, in_parts, merged, tree
from helpers.planted import make_store
from helpers.refusals import fails, interrupted
from test_compare import place  # noqa: F401
from test_labelled_texts import lines as labelled_lines

from probers import FeatureStore
from probers.checksums import sealed, unsealed
from probers.cli import main as cli
from probers.cli.inputs import newest_store
from probers.data.splits import Partition
from probers.prober.prober import Prober
from probers.rag.comparison import plan
from probers.train import sweeps
from probers.types import RunError

LONG = pytest.mark.long
#: One prompt at a time: the arithmetic is then the same however the work is cut.
ALONE = ["layers=[0,6]", "batch_size=1"]
COT = ["source=cot", "limit=6", "shard_size=2", *ALONE]
WIKI = ["source=wiki", "limit=12", "shard_size=5", *ALONE]
QUOTAS = ["limit={train: 16, validation: 12}", "balance_to={train: 4, validation: 4}", "shard_size=5"]
TRAIN = ["data=data", "epochs=1", "checks=2", "resamples=100", "head=linear"]
PROBING_RAG = ["head=probing_rag", "seeds=2", "combine=best", "best_k=2", "calibration=isotonic"]
MOMENTS = ["head=mean_difference", "learning_curve=false", "combine=stacked"]
RAG = ["questions=questions.jsonl", "corpus=corpus.jsonl", "prober=prober", "limit=null"]
EVERY = "[never,always,random,oracle,fixed_sentence,entropy,flare,rind_paper,rind_released,probing]"
COMPARE = [*RAG, f"triggers={EVERY}", "resamples=200", "sweep=2"]
#: vary makes methods of values, which a merge must not make again of what was made.
VARIED = ["triggers=[never,entropy]", "vary={entropy: {threshold: [0.5, 1.5]}}", "resamples=100"]
#: Name -> command, what is typed, number of parts.
WHOLE = {
    "cot": ("datagen", COT, 3), "vectors": ("datagen", [*WIKI, "matcher.vectors=own"], 2),
    "balanced": ("datagen", [*WIKI, "negatives=untouched", "balance=true", "pool=tokens"], 3),
    "quotas": ("datagen", ["source=cot", *QUOTAS, *ALONE], 2),
    "texts": ("datagen", ["source=texts", "texts=texts.jsonl", "unit=span", "shard_size=8", *ALONE], 2),
    "more parts than groups": ("datagen", ["source=cot", "limit=4", *ALONE], 9),
    "layers": ("train", TRAIN, 3), "seeds": ("train", [*TRAIN, *PROBING_RAG], 2),
    "moments": ("train", [*TRAIN, *MOMENTS], 3),
    "sizes": ("train", [*TRAIN, "sizes=[40,120]", "layer_sets=[each,[1,3]]"], 2),
    "range": ("train", [*TRAIN, "layer=2-3"], 2), "answers": ("rag", [*RAG, "trigger=probing"], 3),
    "comparison": ("compare", COMPARE, 2), "varied": ("compare", [*RAG, *VARIED], 2),
}  # fmt: skip
FAST = ("cot", "texts", "layers", "moments", "range", "answers", "comparison", "varied")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=LONG) for n in WHOLE])
def test_parts_equal_the_whole(place, name):  # noqa: F811
    """All files to the last byte, but a training's losses, whose means round with the heads beside them."""
    command, typed, count = WHOLE[name]
    if command == "train":
        make_store(Path("data"), n=400)
    write_lines(Path("texts.jsonl"), labelled_lines())
    whole, out = cli.run(command, [*typed, "out=whole"]), Path("run")
    folders = in_parts(command, typed, out, count)
    assert folders == [f"run/parts/{i}of{count}" for i in range(1, count + 1)]
    assert merged(folders[::-1], out) == out
    assert_whole(out, whole, *(["metrics.json"] if command == "train" else []))
    before = tree(out)
    assert cli.run(command, [*typed, f"out={out}"]) == out and tree(out) == before  # complete
    if command == "datagen":
        assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()
        rows = [len(FeatureStore.open(folder).table()) for folder in folders]
        cut = min(rows) > 0 and max(rows) < len(FeatureStore.open(whole).table())
        assert cut == (name not in ("quotas", "more parts than groups"))
    elif command == "train":
        assert Prober.from_pretrained(out).layers == ((2, 3) if name == "range" else (1, 2, 3))
    elif command == "rag":
        lines = [len(read_lines(f"{folder}/traces.jsonl")) for folder in folders]
        assert sum(lines) == 40 and min(lines) > 4


@pytest.mark.parametrize(("command", "typed", "owner", "function", "calls"), [
    pytest.param("datagen", COT, FeatureStore, "write_shard", 1, marks=LONG),
    ("train", [*TRAIN, "save_every=0"], sweeps, "save", 0),
    ("compare", [*RAG, "triggers=[never,entropy,probing]", "resamples=100"], plan, "record_all", 0),
])  # fmt: skip
def test_a_part_that_died_is_done_again_by_the_same_command_and_the_whole_is_the_same(
    place, command, typed, owner, function, calls  # noqa: F811
):  # fmt: skip
    make_store(Path("data"), n=400)
    whole, out = cli.run(command, [*typed, "out=whole"]), Path("run")
    with interrupted(owner, function, calls):
        cli.run(command, [*typed, "out=run", "part=1/2"])
    cli.run(command, [*typed, "out=run", "part=2/2"])
    first, second = (out / "parts" / name for name in ("1of2", "2of2"))
    before = tree(second)
    with fails("parts", "1of2", f"probers-{command}", "part=1/2"):
        merged([str(first), str(second)], out)
    assert not (out / "run.json").exists()
    cli.run(command, [*typed, "out=run", "part=1/2"])
    assert tree(second) == before and not list(first.glob("checkpoint*"))
    assert_whole(merged([str(first), str(second)], out), whole, "metrics.json")


@pytest.fixture(scope="module")
def cot(tmp_path_factory):
    """The folder of a run in one piece, and those of its parts."""
    folder = tmp_path_factory.mktemp("cot")
    cli.run("datagen", [*COT, f"out={folder}/whole"])
    return folder / "whole", in_parts("datagen", COT, folder / "parts_of_it", 2)


def copied(cot, to):
    """Copies of its parts that may be changed."""
    return [Path(shutil.copytree(folder, to / Path(folder).name)) for folder in cot[1]]


def test_a_merge_that_was_killed_goes_on_and_a_full_disk_is_said(cot, tmp_path, monkeypatch):
    whole, folders = cot
    before = [tree(Path(folder)) for folder in folders]
    write, out = FeatureStore.write_shard, tmp_path / "merged"
    with interrupted(FeatureStore, "write_shard", 1):
        merged(folders, out)
    with monkeypatch.context() as patch, fails("disk", kind=RunError):

        def fill(self, *given, **named):
            full = OSError(errno.ENOSPC, "No space left on device")
            patch.setattr("os.fsync", Mock(side_effect=full))
            write(self, *given, **named)

        patch.setattr(FeatureStore, "write_shard", fill)
        merged(folders, out)
    assert list(out.glob("shards/*.json"))
    assert_whole(merged(folders, out), whole)
    assert [tree(Path(folder)) for folder in folders] == before


def test_groups_are_cut_the_same_everywhere_and_layers_in_stretches():
    groups = [f"group {i}" for i in range(4000)]
    parts = [Partition(i, 4) for i in range(1, 5)]
    owners = [[part.number for part in parts if part.owns(group)] for group in groups]
    assert all(len(owner) == 1 for owner in owners)
    assert all(900 < count < 1100 for count in Counter(owner[0] for owner in owners).values())
    # Fixed for all time: parts that were made are merged by it later.
    assert [owner[0] for owner in owners[:12]] == [4, 4, 3, 4, 1, 4, 2, 2, 4, 3, 2, 2]
    assert all(Partition(1, 1).owns(group) for group in groups)
    layers = list(range(1, 12))
    blocks = [list(Partition(i, 3).block(layers)) for i in (1, 2, 3)]
    assert [layer for block in blocks for layer in block] == layers and {len(b) for b in blocks} <= {3, 4}


def test_what_parts_recorded_is_not_recorded_again_by_the_merge(place):  # noqa: F811
    typed = [*RAG, "triggers=[never,entropy,probing]", "resamples=200", "sweep=0"]
    folders = in_parts("compare", typed, Path("run"), 2)
    made = len(place.models)
    whole = merged(folders, Path("run"))
    assert [model.prompts for model in place.models[made:]] == [[]]
    # A part that did not ask a trigger: all of it is recorded anew, and the same comes out.
    file = Path(folders[0]) / "replay/index.json"
    entries = unsealed(file)["recorded"]
    file.write_text(sealed({"recorded": [entry | {"triggers": []} for entry in entries]}))
    assert_whole(merged(folders, Path("again")), whole)
    assert place.models[-1].prompts


def test_parts_read_the_store_that_was_the_newest_when_they_were_made(tmp_path, monkeypatch):
    """A part of a store is never the newest."""
    monkeypatch.chdir(tmp_path)
    make_store(Path("runs/datagen/a"), n=200)
    folders = in_parts("train", [*TRAIN[1:], "learning_curve=false"], Path("runs/train/p"), 2)
    make_store(Path("runs/datagen/b"), n=100)
    out = merged(folders, Path("runs/train/p"))
    assert json.loads((out / "run.json").read_text())["identity"]["data"] == ["runs/datagen/a"]
    in_parts("datagen", ["source=cot", "limit=4", *ALONE], Path("runs/datagen/c"), 2)
    assert newest_store(root=Path("runs/datagen")) == Path("runs/datagen/b")


# What is no part of a run is refused, and nothing is made.


def test_parts_that_do_not_make_a_run_are_refused_by_name(cot, tmp_path):
    whole, folders = cot
    out, twin = tmp_path / "merged", shutil.copytree(folders[0], tmp_path / "twin")
    other = cli.run("datagen", [*COT, "seed=1", "part=2/2", f"out={tmp_path}/other"])
    for given, code, named in (
        ([], "missing-value", "parts"), (folders[:1], "parts", "part=2/2"),
        ([folders[0], str(other)], "parts", "seed: 1 in "),
        ([str(whole)], "parts", f"{whole} is a whole run of probers-datagen"),
        ([str(tmp_path)], "parts", f"{tmp_path} is no run"),
        ([*folders, str(twin)], "parts", f"{folders[0]} and {twin}"),
    ):  # fmt: skip
        with fails(code, named):
            merged(given, out)
    other = copied(cot, tmp_path)[1]  # another revision of the model
    state = json.loads((other / "run.json").read_text())
    state["chosen"]["model"] = "testbed@0123456789ab (12 layers of width 128)"
    (other / "run.json").write_text(json.dumps(state))
    with fails("parts", "(model: testbed@0123456789ab ", ", testbed@"):
        merged([folders[0], str(other)], out)
    assert not out.exists()


def test_answers_that_do_not_make_a_run_are_refused_by_name(place):  # noqa: F811
    folders = in_parts("compare", [*RAG, "triggers=[never,probing]", "resamples=100"], Path("run"), 2)
    file = Path(folders[1], "thresholds.json")
    file.write_text(file.read_text().replace("0.", "1.", 1))
    answers = in_parts("rag", [*RAG, "trigger=probing"], Path("answers"), 2)
    traces = Path(answers[1], "traces.jsonl")
    lines = traces.read_text().splitlines(keepends=True)
    traces.write_text("".join(lines[:-1]) + lines[-1][:20])
    before, lost = tree(Path(answers[1])), json.loads(lines[-1])["id"]
    for given, out, named in (
        (folders, "c", "2of2"), ([answers[0], folders[1]], "c", ""),
        (answers, "answers", f"2of2/traces.jsonl lacks question '{lost}'"),
    ):  # fmt: skip
        with fails(None, named):
            merged(given, Path(out))
    assert tree(Path(answers[1])) == before and not Path("c").exists()


def test_a_damaged_part_is_named(cot, tmp_path, monkeypatch):
    first, second = copied(cot, tmp_path)
    shard = next((second / "shards").glob("*.safetensors"))
    harm(shard)
    with fails("damaged", "2of2", shard.name):
        merged([str(first), str(second)], tmp_path / "merged")
    (second / "run.json").write_text("{")
    with fails("damaged", "2of2/run.json"):
        merged([str(first), str(second)], tmp_path / "merged")
    monkeypatch.chdir(tmp_path)
    make_store(Path("data"), n=100)
    trained = in_parts("train", TRAIN, Path("heads"), 2)
    harm(Path(trained[1], "trained.safetensors"))
    with fails("damaged", "trained.safetensors", kind=RunError):
        merged(trained, tmp_path / "merged")
