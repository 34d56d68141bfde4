"""The verb ``fit`` makes what the command makes, and a new head is its file and a line of the table."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.artefacts import contents, write_lines
from helpers.planted import stop_training
from helpers.refusals import fails
from test_lora import LAYER, line, store_of
from test_stacked import halves

from probers.cli import main as cli
from probers.cli.components import Component
from probers.heads import LinearHead
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.store.store import FeatureStore
from probers.train import fit
from probers.verbs import fit as fit_rows

QUICK: dict[str, Any] = {
    "epochs": 2, "lr": 0.01, "batch_size": 32, "resamples": 100, "learning_curve": False, "device": "cpu",
}  # fmt: skip


def command(store: FeatureStore, out: Path, *typed: str, **how: Any) -> Prober:
    """The prober that the command makes."""
    options = [f"{name}={str(value).lower()}" for name, value in (QUICK | how).items()]
    return Prober.from_pretrained(cli.run("train", [f"data={store.path}", f"out={out}", *typed, *options]))


def assert_same(one: Prober, other: Prober) -> None:
    """Weights, threshold, calibration and figures, to the last digit."""
    ours, theirs = one.head.state_dict(), other.head.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert one.threshold == other.threshold and one.spec == other.spec and one.seen == other.seen
    assert one.calibration.to_dict() == other.calibration.to_dict()
    assert dict(one.metrics) == dict(other.metrics)


@pytest.mark.parametrize("head", ["probing_rag hidden=24", "linear", "concat"])
def test_the_commands_prober_is_the_verbs(
    store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    made = fit(store, head=head, layers=[1, 2], **QUICK)
    assert not list((tmp_path / "empty").iterdir())  # nothing is written
    name, *options = head.split()
    typed = [f"head={name}", "layer=[1,2]", *(f"head.{option}" for option in options)]
    theirs = command(store, tmp_path / "typed", *typed)
    assert_same(made, theirs)
    assert made.card.replace("PROBER", "typed") == theirs.card


def test_a_stack_of_the_verb_is_the_commands(tmp_path: Path) -> None:
    first, second = halves(tmp_path / "a"), halves(tmp_path / "b", name="other")
    members = [str(tmp_path / f"m{layer}") for layer in (1, 2)]
    for layer, out in enumerate(members, 1):
        fit(first, head="linear", layers=layer, out=out, **QUICK)
    made = fit(second, head=Component.of("head", "stacked", probers=members), **QUICK)
    typed = ["head=stacked", f"head.probers=[{','.join(members)}]"]
    assert_same(made, command(second, tmp_path / "p", *typed))
    assert set(made.metrics["members"]) == {"m1", "m2"}


def test_adapters_of_the_verb_are_the_commands(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    store = store_of(
        Path(write_lines(tmp_path / "t.jsonl", map(line, range(120)))), tmp_path / "s", "pool=tokens"
    )
    how = QUICK | {"loss": "span_max", "checks": 1, "batch_size": 16}
    options = {"start_epochs": 2, "kl_limit": 10.0}
    head = Component.of("head", "lora", **options)
    made = fit(store, head=head, layers=LAYER, out=tmp_path / "a", **how)
    typed = [f"head.{name}={value}" for name, value in options.items()]
    assert_same(made, command(store, tmp_path / "b", "head=lora", f"layer={LAYER}", *typed, **how))
    with fails("missing-value", "head=lora", "out="):
        fit(store, head="lora", layers=LAYER, **how)


def test_a_killed_training_resumes_and_a_finished_one_is_loaded(
    store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = partial(fit, str(store.path), head="linear", layers="1-2", save_every=0, **QUICK)
    whole = again(out=tmp_path / "whole")
    stop_training(monkeypatch, 10)
    with pytest.raises(KeyboardInterrupt):
        again(out=tmp_path / "killed")
    assert_same(again(out=tmp_path / "killed"), whole)
    files = contents(tmp_path / "killed")
    assert_same(again(out=tmp_path / "killed"), whole)
    command(store, tmp_path / "killed", "head=linear", "layer=1-2", "save_every=0")  # the same run
    assert contents(tmp_path / "killed") == files


def test_a_class_a_partial_and_a_name_are_the_same_head(store: FeatureStore) -> None:
    by_name, by_class, by_partial = (
        fit([store], head=head, layers=2, **QUICK) for head in ("linear", LinearHead, partial(LinearHead))
    )
    assert_same(by_name, by_class)
    assert_same(by_name, by_partial)
    states = np.zeros((3, 1, by_name.spec.width), dtype=np.float32)
    assert by_name.score_states(states).shape == (3,) and by_name.layers == (2,)


def test_shares_deal_the_groups_of_rows_and_a_name_is_a_column(lm: CausalLM) -> None:
    rows = [
        {"prompt": f"{n}:", "answer": f" {n % 7}", "wrong": n % 3 == 0, "group": n // 2} for n in range(120)
    ]
    quick = partial(fit_rows, lm, head="linear", layers=[4], **QUICK)
    dealt = quick(rows, split=[0.5, 0.25, 0.25])
    assert dealt.seen is not None
    assert quick(rows, split=[0.5, 0.25, 0.25]).seen == dealt.seen != quick(rows, split=[0.8, 0.1, 0.1]).seen
    counted = {name: (side["n"], side["groups"]) for name, side in dealt.metrics["splits"].items()}
    assert counted == {"train": (60, 30), "validation": (30, 15), "test": (30, 15)}
    named = [{**row, "part": ("train", "validation", "test")[row["group"] // 2 % 3]} for row in rows]
    assert [side["n"] for side in quick(named, split="part").metrics["splits"].values()] == [40, 40, 40]


def test_wrong_calls_are_named(store: FeatureStore) -> None:
    for code, named, call in (
        ("unknown-key", "did you mean epochs", {"epoch": 3}), ("unknown-key", "did you mean lr", {"lrr": 1}),
        ("missing-value", "sizes=[60]", {"sizes": [60]}), ("missing-value", "matrix=True", {"matrix": True}),
        ("unsupported", "head=adaptive", {"head": "adaptive"}), (None, "lr=-1", {"lr": -1}),
        ("unknown-choice", "'nonsense'", {"head": "nonsense"}), ("layers", "layer=9", {"layers": 9}),
    ):  # fmt: skip
        with fails(code, named):
            fit(store, **call)
    with fails("missing-value", "stores=[]"):
        fit([])


HEAD = '''"""A head of this test."""

from .single import LinearHead


class EchoHead(LinearHead):
    """Standardised states and one linear map, once more."""
'''
TRAIN = """
import sys
from probers import Prober
from probers.cli import main
from probers.train import fit
from probers.verbs import fit as fit_rows

assert main.request("train", ["head=echo"]).head.target.endswith("EchoHead")
made = fit(sys.argv[1], head="echo", layers=2, epochs=1, resamples=100, learning_curve=False)
made.save_pretrained(sys.argv[2])
assert type(Prober.from_pretrained(sys.argv[2]).head).__name__ == "EchoHead"
"""


def test_a_new_head_is_its_file_and_one_line(store: FeatureStore, tmp_path: Path) -> None:
    package = Path(cli.__file__).parents[1]
    (tmp_path / "probers").mkdir()
    for path in package.iterdir():
        if path.name in ("heads", "cli"):
            shutil.copytree(path, tmp_path / "probers" / path.name)
        elif path.name != "parts.py":
            (tmp_path / "probers" / path.name).symlink_to(path.resolve())
    (tmp_path / "probers/heads/echo.py").write_text(HEAD)
    table = (package / "parts.py").read_text()
    table = table.replace('"head": {\n', '"head": {\n        "echo": "heads.echo.EchoHead",\n', 1)
    (tmp_path / "probers/parts.py").write_text(table)
    call = [sys.executable, "-c", TRAIN, str(store.path), str(tmp_path / "made")]
    ran = subprocess.run(
        call, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
