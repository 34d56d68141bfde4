"""The command ``probers-search``: the best candidate wins, and test figures know nothing of the choice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.planted import SPEC, make_store
from helpers.refusals import fails, interrupted

from probers.checksums import Journal, draw_key
from probers.cli import main as cli
from probers.cli.inputs import newest_prober
from probers.data.splits import Partition
from probers.prober.prober import Prober
from probers.train import search
from probers.train.data import Dataset
from probers.train.examples import Examples, load_examples
from probers.train.settings import Train

FAST = ["epochs=2", "batch_size=32", "lr=0.03", "resamples=100", "device=cpu", "learning_curve=false"]
LAYERS = ["heads=linear", "layer_sets=[[1],[2],[3]]"]


def run(data: object, out: Path, *typed: str) -> Path:
    return cli.run("search", [f"data={data}", f"out={out}", *FAST, *typed])


def entry(out: Path) -> dict[str, Any]:
    return json.loads((out / "search.json").read_text())


def timeless(out: Path) -> dict[str, Any]:
    result = entry(out)
    return result | {"tried": [{**row, "seconds": 0} for row in result["tried"]]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store") / "s", 480)


@pytest.fixture
def only_chosen(monkeypatch):
    """Have the command end with the choice; the settings of the training that would follow."""
    runs: list[Train] = []

    def train(settings: Train, **_: Any) -> Path:
        runs.append(settings)
        return Path(str(settings.out))

    monkeypatch.setattr(search, "train", train)
    return runs


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """A whole run, and the data that its folds were trained on."""
    seen: list[Dataset] = []

    def fit(make: Any, tasks: Any, dataset: Dataset, settings: Any) -> Any:
        seen.append(dataset)
        return original(make, tasks, dataset, settings)

    original = search.train_heads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "train_heads", fit)
        return run(store.path, tmp_path_factory.mktemp("whole") / "runs" / "s", *LAYERS), seen


def test_the_planted_layer_wins_and_becomes_the_prober(whole, store, tmp_path):
    """It is the prober of a training of its own."""
    out, result = whole[0], entry(whole[0])
    assert Prober.from_pretrained(out).layers == (2,) and result["winner"] == "linear, [2]"
    assert [row["folds"] for row in result["tried"]] == [3, 3, 1]
    assert all(row["difference_ci"][1] < 0 for row in result["tried"][1:])
    assert newest_prober("answers", model="testbed", root=out.parent) == out
    typed = [f"data={store.path}", f"out={tmp_path / 'own'}", *FAST, "head=linear", "layer=2"]
    trained = cli.run("train", typed)
    for name in ("heads.safetensors", "seen.json"):
        assert (trained / name).read_bytes() == (out / name).read_bytes()
    its, figures = (json.loads((folder / "metrics.json").read_text()) for folder in (trained, out))
    assert its | {"search": result} == figures


def test_only_training_groups_enter_a_fold(whole, store):
    """Each is held out once, and never in a fold that learns from it."""
    examples, seen = load_examples([store]), [data.examples for data in whole[1]]
    training = set(examples.groups("train"))
    assert len(seen) == 3 + 2 + 2
    held = {tuple(of.rows["test"]): set(of.groups("test")) for of in seen}
    assert len(held) == 3 and set.union(*held.values()) == training
    assert sum(map(len, held.values())) == len(training)
    for of in seen:
        sides = [set(of.groups(split)) for split in of.rows]
        assert set.union(*sides) == training and sum(map(len, sides)) == len(training)
        assert set(np.concatenate([*of.rows.values()])) == set(examples.rows["train"])


def test_labels_of_validation_and_test_texts_do_not_matter_to_the_choice(store, tmp_path, only_chosen, whole):
    def flipped(row: dict[str, Any]) -> dict[str, Any]:
        return row if row["split"] == "train" else row | {"correct": 1 - row["correct"]}

    other = make_store(tmp_path / "s", 480, edit=flipped)
    assert timeless(run(other.path, tmp_path / "out", *LAYERS)) == timeless(whole[0])


def test_without_a_signal_the_winner_is_at_chance_on_test_texts(tmp_path):
    """Although it was the best of seven, and looks better than chance on what it was chosen by."""
    tossed = lambda row: row | {"correct": draw_key("coin", 0, row["id"]) % 2}  # noqa: E731
    store = make_store(tmp_path / "s", 480, edit=tossed)
    sets = "layer_sets=[[1],[2],[3],[1,2],[1,3],[2,3],all]"
    out = run(store.path, tmp_path / "out", "heads=linear", sets, "folds=2")
    figures = json.loads((out / "metrics.json").read_text())["ensemble"]
    assert figures["auroc_ci"][0] < 0.5 < figures["auroc_ci"][1]
    first = [r["auroc"] for r in Journal(out / "search.jsonl").read().records.values() if r["fold"] == 1]
    assert max(first) > 0.55


def test_when_the_time_is_over_the_rest_is_listed(store, tmp_path, only_chosen):
    result = entry(run(store.path, tmp_path / "out", *LAYERS, "minutes=0.000001"))
    assert result["winner"] == "linear, [1]" and [row["folds"] for row in result["tried"]] == [1]
    assert result["not_tried"] == ["linear, [2]", "linear, [3]"]


def test_a_killed_search_goes_on_and_ends_the_same(store, tmp_path, only_chosen, whole):
    out = tmp_path / "out"
    with interrupted(search, "train_heads", 4):
        run(store.path, out, *LAYERS)
    journal = out / "search.jsonl"
    assert len(Journal(journal).read().records) == 4
    first, *lines = journal.read_text().splitlines()
    journal.write_text("\n".join([first.replace("0.", "0.1", 1), *lines, '{"na']))  # altered, and cut off
    with interrupted(search, "train_heads", 4):  # one again, and three that were not there
        run(store.path, out, *LAYERS)
        raise KeyboardInterrupt
    assert timeless(out) == timeless(whole[0])
    with fails("out-taken", "folds: 3 there, 2 now"):
        run(store.path, out, *LAYERS, "folds=2")


def test_sites_are_tried_one_by_one(tmp_path, only_chosen):
    without = make_store(tmp_path / "mlp", 480, spec=replace(SPEC, site="mlp_out"), strength=0.0)
    store = make_store(tmp_path / "post", 480)
    out = run(f"[{without.path},{store.path}]", tmp_path / "out", "heads=linear", "layer_sets=[[2]]")
    assert [row["name"] for row in entry(out)["tried"]] == ["linear, [2]", "linear, [2], mlp_out"]
    (settings,) = only_chosen
    assert settings.site == "resid_post" and settings.data == [str(store.path)] and settings.layer == [2]


def texts(groups: int, **columns: Any) -> Examples:
    names = np.repeat([f"g{i}" for i in range(groups)], 4)
    table = pd.DataFrame({"group": names, "correct": [0, 1] * 2 * groups, **columns})
    return Examples(table, {"train": np.arange(4 * groups)})


def test_what_nobody_judged_is_only_trained_on():
    whole = texts(12, inside=[1, 0, -1, -1] * 12)
    parts = [search.fold(whole, Partition(n, 3), 0) for n in (1, 2, 3)]
    for part in parts:
        assert [(part.column("inside", s) < 0).any() for s in part.rows] == [True, False, False]
    assert sorted(np.concatenate([part.groups("test") for part in parts])) == sorted(whole.groups("train"))


def test_too_few_groups_for_the_folds_are_refused():
    search.fold(texts(4), Partition(1, 3), 0)
    with fails("labels", "folds=3"):
        search.fold(texts(2), Partition(1, 3), 0)
