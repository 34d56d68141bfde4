"""Twenty cases chosen from the campaign of attacks (tools/attack): one sentence and an exit code, or fine."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from artefacts import harm
from attack.sandbox import INTERNALS
from refusals import exits


def refused(command: str, typed: list[str], capsys) -> str:
    """The one sentence with which a command ends; any other exception than its exit passes through."""
    capsys.readouterr()
    assert exits(command, typed) in (1, 2)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"probers-{command}: ") and said.isprintable() and not INTERNALS.search(said)
    return said


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with what a wrong path may point at."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


#: Typed wrong, each with the name that the message must hold.
@pytest.mark.parametrize(("command", "typed", "named"), [
    ("datagen", ["limit=nan"], "limit"), ("datagen", ["layers=[6,a]"], "layers"),
    ("datagen", [f"seed={'9' * 5000}"], "seed"), ("train", ["data=fifo"], "fifo"),
    ("datagen", ["out=/dev/null/x", "limit=1"], "/dev/null/x"), ("train", ["data=\udcff"], "data"),
    ("datagen", [f"layers={'[' * 5000}{']' * 5000}"], "layers"),
    ("rag", ["trigger={_target_: os.system}", "question=x"], "trigger"),
    ("rag", ["k=${oc.env:NOPE}", "question=x"], "NOPE"), ("rag", ["corpus=loop", "question=x"], "loop"),
    ("rag", ["question=x", "trigger.theta=\x1b[31m", "trigger=rind"], "theta"),
    ("compare", ["triggers=[never", "limit=1"], "triggers"),
], ids=lambda part: ascii(part)[:40])  # fmt: skip
def test_a_wrong_option_is_one_sentence(command, typed, named, place, capsys):
    before = sorted(path.name for path in place.iterdir())
    assert named in refused(command, typed, capsys)
    assert sorted(path.name for path in place.iterdir()) == before


TRAINING = ["layer=[6]", "resamples=100", "learning_curve=false", "out=new"]
ANSWERING = ["limit=2", "max_new_tokens=8", "out=new", "prober=prober"]
PROBING = ["trigger=probing", *ANSWERING]
ADAPTIVE = ["trigger=adaptive", "trigger.classifier=classifier", *ANSWERING]
cut = partial(harm, damage="cut")


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def other(path: Path) -> None:
    path.write_text(json.dumps([json.loads(path.read_text())]))


@pytest.mark.parametrize(("name", "file", "damage", "command", "typed"), [
    ("cot", "manifest.json", other, "train", ["data=cot", *TRAINING]),
    ("cot", "manifest.json", link, "train", ["data=cot", *TRAINING]),
    ("cot", "shards/00001.parquet", harm, "train", ["data=cot", *TRAINING]),
    ("cot", "shards/00000.safetensors", harm, "train", ["data=cot", *TRAINING]),
    ("cot", "shards/00003.safetensors", cut, "train", ["data=cot", *TRAINING]),
    ("prober", "config.json", other, "rag", PROBING),
    ("prober", "heads.safetensors", cut, "rag", PROBING),
    ("classifier", "config.json", cut, "rag", ADAPTIVE),
])  # fmt: skip
def test_a_damaged_file_is_one_sentence(name, file, damage, command, typed, artefacts, place, capsys):
    damage(artefacts.copy(name, place / name) / file)
    if name != "prober" and command == "rag":
        artefacts.copy("prober", place / "prober")
    said = refused(command, typed, capsys)
    assert Path(file).name in said or name in said
    assert not list(place.glob("new/*.safetensors")) and not list(place.glob("new/traces.jsonl"))
