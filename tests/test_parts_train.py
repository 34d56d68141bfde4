"""part=i/n and probers-merge of probers: stretches of layers, made one before anything is calibrated."""

import json
import shutil
from pathlib import Path

import pytest
from parts import apart, computed, in_parts, merged
from planted import make_store
from refusals import fails

from probers.bank.bank import ProbeBank
from probers.commands import main as cli
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


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ([], 3),
        (["head=probing_rag", "seeds=2", "combine=best", "best_k=2", "calibration=isotonic"], 2),
        (["head=mean_difference", "learning_curve=false", "combine=stacked"], 3),
        (["sizes=[40,120]", "layer_sets=[each,[1,3]]"], 2),
    ],
    ids=["linear", "seeds", "moments", "sizes"],
)
def test_a_merged_prober_is_that_of_one_piece(data, tmp_path, more, count):
    typed = [f"data={data}", *FAST, *more]
    whole = cli.run("train", [*typed, f"out={tmp_path}/whole"])
    folders = in_parts("train", typed, tmp_path / "run", count)
    out = merged(folders, tmp_path / "run")
    assert_same(out, whole)
    assert (out / "heads.safetensors").read_bytes() == (whole / "heads.safetensors").read_bytes()
    assert ProbeBank.from_pretrained(out).layers == (1, 2, 3)


def test_layers_are_named_as_a_range(data, tmp_path, capsys):
    out = cli.run("train", [f"data={data}", *FAST, "layer=2-3", f"out={tmp_path}/x"])
    assert ProbeBank.from_pretrained(out).layers == (2, 3)
    for given, code, named in (
        ("layer=3-2", "layers", "layer=3-2"), ("layer=2-9", "layers", "layers 0-3"),
        ("layer=2-x", "bad-value", "layer=2-x"),
    ):  # fmt: skip
        with fails(code, named):
            cli.run("train", [f"data={data}", *FAST, given, f"out={tmp_path}/y"])


def test_a_range_in_parts_is_that_range(data, tmp_path):
    typed = [f"data={data}", *FAST, "layer=2-3"]
    whole = cli.run("train", [*typed, f"out={tmp_path}/whole"])
    out = merged(in_parts("train", typed, tmp_path / "run", 2), tmp_path / "run")
    assert_same(out, whole)


def test_a_part_that_was_killed_goes_on(data, tmp_path, monkeypatch):
    typed = [f"data={data}", *FAST, "save_every=0"]
    whole = cli.run("train", [*typed, f"out={tmp_path}/whole"])
    with monkeypatch.context() as patch:
        patch.setattr("probers.train.sweeps.save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            cli.run("train", [*typed, f"out={tmp_path}/run", "part=1/2"])
    cli.run("train", [*typed, f"out={tmp_path}/run", "part=2/2"])
    folders = [f"{tmp_path}/run/parts/{i}of2" for i in (1, 2)]
    with fails(None, "1of2", "probers-train", "part=1/2"):
        merged(folders, tmp_path / "run")
    cli.run("train", [*typed, f"out={tmp_path}/run", "part=1/2"])
    assert not list(Path(folders[0]).glob("checkpoint*"))
    assert_same(merged(folders, tmp_path / "run"), whole)


def test_parts_that_cannot_be_are_refused_by_name(data, tmp_path):
    with fails("parts", "part=4/4", "3 layers"):
        cli.run("train", [f"data={data}", *FAST, f"out={tmp_path}/x", "part=4/4"])
    with fails("conflict", "part=1/2"):
        cli.run("train", [f"data={data}", "head=adaptive", f"out={tmp_path}/x", "part=1/2"])
    assert not (tmp_path / "x").exists()
    folders = in_parts("train", [f"data={data}", *FAST], tmp_path / "run", 2)
    other = cli.run("train", [f"data={data}", *FAST, "seed=1", f"out={tmp_path}/seed", "part=2/2"])
    with fails(None, "seed"):
        merged([folders[0], str(other)], tmp_path / "merged")
    broken = tmp_path / "broken"
    shutil.copytree(folders[1], broken)
    blob = bytearray((broken / "trained.safetensors").read_bytes())
    blob[-1] ^= 1
    (broken / "trained.safetensors").write_bytes(bytes(blob))
    with fails("damaged", "trained.safetensors", kind=RunError):
        merged([folders[0], str(broken)], tmp_path / "merged")


def test_parts_read_the_store_that_was_the_newest_when_they_were_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_store(Path("runs/datagen/a"), n=400)
    folders = in_parts("train", FAST, Path("runs/train/p"), 2)
    make_store(Path("runs/datagen/b"), n=300)
    out = merged(folders, Path("runs/train/p"))
    assert json.loads((out / "run.json").read_text())["identity"]["data"] == ["runs/datagen/a"]
