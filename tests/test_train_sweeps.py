"""Further probers of one training: each is what a training of its own would have given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import make_store, make_token_store
from refusals import fails
from safetensors.numpy import load_file

from probers.bank.bank import ProbeBank
from probers.commands import main as cli
from probers.store.store import FeatureStore
from probers.train.data import Examples
from probers.train.sweeps import sets_of

PLAIN = ["batch_size=32", "lr=0.003", "head.hidden=24", "resamples=100", "device=cpu", "learning_curve=false"]
FOLDER = [
    "README.md", "config.json", "domain.safetensors", "heads.safetensors", "metrics.json", "plots",
    "seen.json",
]  # fmt: skip


@pytest.fixture(scope="module")
def swept(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with probers of three sizes, the last of all texts, and of sets of layers."""
    out = tmp_path_factory.mktemp("swept") / "out"
    sweep = ["sizes=[60,200,600]", "layer_sets=[each,[1,3]]"]
    cli.run("train", [f"data={store.path}", f"out={out}", *sweep, *PLAIN])
    return out


def assert_same_prober(one: Path, other: Path) -> None:
    """Weights, thresholds, calibration and scores, to float tolerance."""
    tensors, others = load_file(one / "heads.safetensors"), load_file(other / "heads.safetensors")
    assert set(tensors) == set(others)
    for name, value in tensors.items():
        np.testing.assert_allclose(value, others[name], atol=2e-3)
    a, b = ProbeBank.from_pretrained(one), ProbeBank.from_pretrained(other)
    assert (a.spec, a.ensemble.kind) == (b.spec, b.ensemble.kind)
    states = np.random.default_rng(0).standard_normal((50, len(a.layers), a.spec.width)).astype(np.float32)
    np.testing.assert_allclose(a.score(states), b.score(states), atol=5e-3)
    assert a.threshold == pytest.approx(b.threshold, abs=5e-3)
    np.testing.assert_allclose(a.probability(a.score(states)), b.probability(b.score(states)), atol=5e-3)


def figures(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_every_one_is_a_prober_folder_and_no_run(swept: Path) -> None:
    names = {f"sizes/{n}" for n in (60, 200, 600)} | {f"layers/{n}" for n in ("1", "2", "3", "1-3")}
    found = {str(file.parent.relative_to(swept)) for file in swept.glob("*/*/config.json")}
    assert found == names
    for name in names:
        assert sorted(p.name for p in (swept / name).iterdir()) == FOLDER
        bank = ProbeBank.from_pretrained(swept / name)
        assert str(swept.name) in bank.card and len(bank.pictures) >= 5 and bank.threshold != 0
        assert "bag of words, text" in figures(swept / name)["controls"]
    assert [str(f.parent) for f in swept.rglob("run.json")] == [str(swept)]  # no newest prober among them
    assert not list(swept.glob("*checkpoint*"))


def test_sizes_are_nested_and_each_remembers_what_it_saw(swept: Path) -> None:
    seen = {n: ProbeBank.from_pretrained(swept / f"sizes/{n}").seen for n in (60, 200, 600)}
    whole = ProbeBank.from_pretrained(swept).seen
    assert whole is not None and all(seen.values())
    marks = {n: found.splits["train"] for n, found in seen.items() if found is not None}
    assert marks[60] < marks[200] < marks[600] == whole.splits["train"]
    for found in seen.values():
        assert found is not None
        assert all(found.splits[split] == whole.splits[split] for split in ("validation", "test"))
    sizes = {n: figures(swept / f"sizes/{n}")["splits"] for n in marks}
    assert [sizes[n]["train"]["n"] for n in marks] == [60, 200, 600]
    assert len({json.dumps([part["validation"], part["test"]]) for part in sizes.values()}) == 1
    assert [p["n"] for p in figures(swept)["learning_curve"]] == [60, 200, 600]


def test_the_prober_of_all_texts_is_the_trainings_own(swept: Path) -> None:
    for name in ("config.json", "heads.safetensors", "seen.json"):
        assert (swept / "sizes/600" / name).read_bytes() == (swept / name).read_bytes()
    assert figures(swept / "sizes/600") == figures(swept) | {"learning_curve": []}
    small, whole = (load_file(folder / "heads.safetensors") for folder in (swept / "sizes/60", swept))
    assert not np.allclose(small["layer.2.linear1.weight"], whole["layer.2.linear1.weight"], atol=1e-2)


def test_a_size_is_a_store_of_these_texts(swept: Path, examples: Examples, tmp_path: Path) -> None:
    """Trained by a command of its own on a store where the other training texts are of no split."""
    kept = set(examples.training_part(200, 0).groups("train"))

    def only(row: dict) -> dict:
        left_out = row["split"] == "train" and row["group"] not in kept
        return row | {"dataset": "other" if left_out else "testbed"}

    alone = make_store(tmp_path / "store", edit=only)
    given = [f"data={alone.path}", f"out={tmp_path / 'alone'}", "train_on=[testbed]", *PLAIN]
    cli.run("train", given)
    assert_same_prober(swept / "sizes/200", tmp_path / "alone")
    mine, its = figures(swept / "sizes/200"), figures(tmp_path / "alone")
    assert mine["ensemble"]["auroc"] == pytest.approx(its["ensemble"]["auroc"], abs=2e-3)
    assert mine["splits"]["train"]["n"] == its["splits"]["train"]["n"] == 200


@pytest.mark.parametrize("folder", ["1-3", "2"])
def test_a_set_of_layers_is_a_training(swept: Path, store: FeatureStore, tmp_path: Path, folder: str) -> None:
    layer = f"layer=[{folder.replace('-', ',')}]"
    cli.run("train", [f"data={store.path}", f"out={tmp_path / 'alone'}", layer, *PLAIN])
    assert_same_prober(swept / f"layers/{folder}", tmp_path / "alone")
    mine, its = figures(swept / f"layers/{folder}"), figures(tmp_path / "alone")
    assert mine["best_layer"] == its["best_layer"]
    assert mine["ensemble"]["auroc"] == pytest.approx(its["ensemble"]["auroc"], abs=2e-3)
    assert mine["ensemble"]["accuracy"] == pytest.approx(its["ensemble"]["accuracy"], abs=1e-2)


def test_sets_of_best_layers_choose_within_the_set(store: FeatureStore, tmp_path: Path) -> None:
    given = [f"data={store.path}", "combine=best", "best_k=1", *PLAIN]
    cli.run("train", [*given, f"out={tmp_path / 'all'}", "layer_sets=[[1,3]]"])
    bank = ProbeBank.from_pretrained(tmp_path / "all/layers/1-3")
    assert bank.layers == (1, 3) and bank.ensemble.weights == (0.0, 1.0)


def test_spans_of_tokens_and_heads_that_only_look_have_sizes_and_sets_too(tmp_path: Path) -> None:
    store = make_token_store(tmp_path / "tokens")
    given = [f"data={store.path}", "head=mean_difference", "sizes=[50]", "layer_sets=[2]"]
    cli.run("train", [*given, f"out={tmp_path / 'out'}", "resamples=100", "learning_curve=false"])
    bank = ProbeBank.from_pretrained(tmp_path / "out/layers/2")
    assert bank.layers == (2,) and bank.aggregate == "max"
    assert figures(tmp_path / "out/sizes/50")["splits"]["train"]["n"] == 50


def test_wrong_sizes_and_sets_are_told_before_anything_is_trained(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", edit=lambda row: row | {"correct": int(row["group"][1:]) % 3 > 0})
    wrong: list[tuple[str, Any, list[str]]] = [
        ("sizes=[60,601]", "bad-value", ["601", "600"]), ("sizes=[1]", "bad-value", ["sizes=1", "2 texts"]),
        ("sizes=[2]", "labels", ["sizes=2"]), ("layer_sets=[[2,4]]", "layers", ["layer 4", "1, 2, 3"]),
        ("layer_sets=[0]", "layers", ["layer 0", "1, 2, 3"]), ("sizes=[0]", None, ["sizes"]),
        ("layer_sets=[[]]", "layers", ["layer_sets", "[]"]), ("layer_sets=[early]", None, ["layer_sets"]),
    ]  # fmt: skip
    for option, code, named in wrong:
        with fails(code, *named):
            cli.run("train", [f"data={store.path}", f"out={tmp_path / 'out'}", option, *PLAIN])
        assert not (tmp_path / "out").exists()


def test_a_layer_left_out_of_the_training_is_in_no_set() -> None:
    with fails("layers", "layer_sets", "layer 2"):
        sets_of([[1, 2]], [1, 3])
    assert sets_of([[3, 1], "each", 3], [1, 3]) == [(1, 3), (1,), (3,)]
