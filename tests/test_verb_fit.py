"""The verb ``fit`` makes what the command makes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.artefacts import contents
from helpers.planted import stop_training
from helpers.refusals import fails

from probers.cli import main as cli
from probers.heads import LinearHead
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.store.store import FeatureStore
from probers.train import fit
from probers.verbs import fit as fit_rows

QUICK: dict[str, Any] = {
    "epochs": 2, "lr": 0.01, "batch_size": 32, "resamples": 100, "learning_curve": False, "device": "cpu",
}  # fmt: skip


def command(store: FeatureStore, out: Path, *typed: str) -> Prober:
    options = [f"{name}={str(value).lower()}" for name, value in QUICK.items()]
    return Prober.from_pretrained(cli.run("train", [f"data={store.path}", f"out={out}", *typed, *options]))


def assert_same(one: Prober, other: Prober) -> None:
    """Weights, threshold, calibration and figures, to the last digit."""
    ours, theirs = one.head.state_dict(), other.head.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert one.threshold == other.threshold and one.spec == other.spec and one.seen == other.seen
    assert one.calibration.to_dict() == other.calibration.to_dict()
    assert dict(one.metrics) == dict(other.metrics)


@pytest.mark.parametrize("head", ["probing_rag hidden=24", "concat"])
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
        ("unknown-key", "did you mean epochs", {"epoch": 3}), ("layers", "layer=9", {"layers": 9}),
        ("missing-value", "sizes=[60]", {"sizes": [60]}), ("unsupported", "=adaptive", {"head": "adaptive"}),
    ):  # fmt: skip
        with fails(code, named):
            fit(store, **call)
    with fails("missing-value", "stores=[]"):
        fit([])
