"""part=i/n and probers-merge of probers: stretches of layers, made one before anything is calibrated."""

import json
import shutil
from pathlib import Path

import pytest
from artefacts import harm
from parts import apart, computed, in_parts, merged
from planted import make_store
from refusals import fails, interrupted

from probers.cli import main as cli
from probers.prober.prober import Prober
from probers.train import sweeps
from probers.types import RunError

FAST = ["epochs=1", "checks=2", "resamples=100", "head=linear"]


def assert_same(out, whole):
    """The same prober: all files to the last byte, but a loss, whose mean rounds with the heads beside it."""
    ours, theirs = computed(out), computed(whole)
    assert list(ours) == list(theirs)
    for name, found in theirs.items():
        assert apart(ours[name], found, 1e-6 if name.endswith("metrics.json") else 0.0) == [], name


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store") / "cot", n=400).path


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The folder of a training in one piece."""
    return cli.run("train", [f"data={data}", *FAST, f"out={tmp_path_factory.mktemp('whole')}/run"])


@pytest.fixture(scope="module")
def thirds(data, tmp_path_factory):
    """The folders of its three parts."""
    return in_parts("train", [f"data={data}", *FAST], tmp_path_factory.mktemp("thirds") / "run", 3)


def assert_merged(folders, out, whole, layers=(1, 2, 3)):
    """Parts become the prober of one piece, its weights to the last byte."""
    assert_same(merged(folders, out), whole)
    assert Prober.from_pretrained(out).layers == layers


def test_a_merged_prober_is_that_of_one_piece(whole, thirds, tmp_path):
    assert_merged(thirds, tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("more", "count"),
    [
        pytest.param(
            ["head=probing_rag", "seeds=2", "combine=best", "best_k=2", "calibration=isotonic"], 2,
            marks=pytest.mark.long,
        ),
        (["head=mean_difference", "learning_curve=false", "combine=stacked"], 3),
        pytest.param(["sizes=[40,120]", "layer_sets=[each,[1,3]]"], 2, marks=pytest.mark.long),
        (["layer=2-3"], 2),
    ],
    ids=["seeds", "moments", "sizes", "range"],
)  # fmt: skip
def test_so_it_is_with_other_options(data, tmp_path, more, count):
    typed = [f"data={data}", *FAST, *more]
    whole = cli.run("train", [*typed, f"out={tmp_path}/whole"])
    layers = (2, 3) if "layer=2-3" in more else (1, 2, 3)
    assert_merged(in_parts("train", typed, tmp_path / "run", count), tmp_path / "run", whole, layers)


@pytest.mark.parametrize(
    ("given", "code", "named"),
    [("layer=3-2", "layers", "layer=3-2"), ("layer=2-9", "layers", "layers 0-3"),
     ("layer=2-x", "bad-value", "layer=2-x")],
)  # fmt: skip
def test_a_range_that_names_no_layers_is_refused(data, tmp_path, given, code, named):
    with fails(code, named):
        cli.run("train", [f"data={data}", *FAST, given, f"out={tmp_path}/y"])


def test_a_part_that_was_killed_goes_on(data, whole, tmp_path):
    typed = [f"data={data}", *FAST, "save_every=0"]
    with interrupted(sweeps, "save", 0):
        cli.run("train", [*typed, f"out={tmp_path}/run", "part=1/2"])
    cli.run("train", [*typed, f"out={tmp_path}/run", "part=2/2"])
    folders = [f"{tmp_path}/run/parts/{i}of2" for i in (1, 2)]
    with fails(None, "1of2", "probers-train", "part=1/2"):
        merged(folders, tmp_path / "run")
    cli.run("train", [*typed, f"out={tmp_path}/run", "part=1/2"])
    assert not list(Path(folders[0]).glob("checkpoint*"))
    assert_same(merged(folders, tmp_path / "run"), whole)


def test_parts_that_cannot_be_are_refused_by_name(data, thirds, tmp_path):
    with fails("parts", "part=4/4", "3 layers"):
        cli.run("train", [f"data={data}", *FAST, f"out={tmp_path}/x", "part=4/4"])
    with fails("conflict", "part=1/2"):
        cli.run("train", [f"data={data}", "head=adaptive", f"out={tmp_path}/x", "part=1/2"])
    assert not (tmp_path / "x").exists()
    first, second, third = thirds
    other = cli.run("train", [f"data={data}", *FAST, "seed=1", f"out={tmp_path}/seed", "part=2/3"])
    with fails(None, "seed"):
        merged([first, str(other), third], tmp_path / "merged")
    broken = shutil.copytree(second, tmp_path / "broken")
    harm(broken / "trained.safetensors")
    with fails("damaged", "trained.safetensors", kind=RunError):
        merged([first, str(broken), third], tmp_path / "merged")


def test_parts_read_the_store_that_was_the_newest_when_they_were_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_store(Path("runs/datagen/a"), n=200)
    folders = in_parts("train", [*FAST, "learning_curve=false"], Path("runs/train/p"), 2)
    make_store(Path("runs/datagen/b"), n=100)
    out = merged(folders, Path("runs/train/p"))
    assert json.loads((out / "run.json").read_text())["identity"]["data"] == ["runs/datagen/a"]
