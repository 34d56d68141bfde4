"""The command ``probers-train``: from a store with a planted signal to a prober one can trust."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.planted import SPEC, make_store, make_token_store
from helpers.refusals import fails
from pytest import MonkeyPatch
from safetensors.numpy import load_file
from sklearn.metrics import roc_auc_score
from test_heads import Own

from probers.cli import main as cli
from probers.heads import LinearHead
from probers.prober.prober import Prober
from probers.signals import SIGNALS
from probers.store.joined import by_site
from probers.store.reader import StateReader
from probers.store.store import FeatureStore
from probers.train.assemble import control_detectors
from probers.train.data import CHUNK
from probers.train.examples import SplitRequest, load_examples


def without(row: dict, *columns: str) -> dict:
    return {key: value for key, value in row.items() if key not in columns}


def test_controls_know_what_they_can_and_no_more(examples):
    detectors, notes = control_detectors(examples)
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    by_name = {d.name: d.scores[rows] for d in detectors}
    assert not notes and len(set(by_name["majority"])) == 1
    auroc = {name: roc_auc_score(wrong, scores) for name, scores in by_name.items()}
    for name in ("mean entropy", "max entropy", "min probability", "perplexity", "entropies combined"):
        assert auroc[name] > 0.65, name
    assert auroc["bag of words, text"] > 0.52
    for name in ("bag of words, question", "question type", "condition", "bag of words, answer", "length"):
        assert 0.38 < auroc[name] < 0.62, name


OVERRIDES = ["epochs=2", "batch_size=32", "lr=0.003", "head.hidden=24", "resamples=200", "device=cpu"]
#: Without what takes time and is looked at elsewhere.
PLAIN = ["batch_size=32", "lr=0.003", "resamples=100", "device=cpu", "learning_curve=false"]
SMALL = ["head.hidden=24", *PLAIN]
LINEAR = ["head=linear", *PLAIN, "lr=0.03"]


def train(data: object, out: Path, *options: str) -> Prober:
    """The prober that the command makes of a store."""
    return Prober.from_pretrained(cli.run("train", [f"data={data}", f"out={out}", *options]))


def figures(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def prober(store, tmp_path_factory):
    """A whole run of the command, in an empty working directory."""
    with MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        out = cli.run("train", [f"data={store.path}", "layer=all", *OVERRIDES])
        assert [p.name for p in Path().iterdir()] == ["runs"] and str(out) == "runs/train/cot-all"
        return out.absolute()


def test_metrics_are_those_of_the_saved_prober(prober, store, examples):
    """Loaded anew, the prober scores the test examples as ``metrics.json`` says."""
    bank = Prober.from_pretrained(prober)
    values = figures(prober)
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    states = store.states(bank.layers, rows)
    signals = {name: examples.column(name, "test") for name in SIGNALS}
    for key, score, threshold in (
        ("ensemble", bank.score_states(states), bank.threshold),
        ("with_entropy", bank.score_states(states, signals), bank.entropy_model.threshold),
    ):
        assert values[key]["auroc"] == pytest.approx(roc_auc_score(wrong, score), abs=1e-9)
        assert values[key]["accuracy"] == pytest.approx(np.mean((score > threshold) == wrong), abs=1e-9)
        low, high = values[key]["auroc_ci"]
        assert low < values[key]["auroc"] < high
    probability = bank.probability(bank.score_states(states))
    assert values["ensemble"]["brier"] == pytest.approx(np.mean((probability - wrong) ** 2), abs=1e-9)
    assert values["ensemble"]["ece"] < 0.1
    assert bank.layers == (1, 2, 3) and [entry["layer"] for entry in values["layers"]] == [1, 2, 3]
    assert values["best_layer"] == 2 and dict(bank.metrics) == values
    domain = values["domain"]
    assert bank.domain is not None and (domain["limit"], domain["rate"]) == (bank.domain.limit, 0.05)
    assert 0 <= domain["false_alarms_ci"][0] <= domain["false_alarms"] <= domain["false_alarms_ci"][1] < 0.2


def test_the_report_compares_with_every_control(prober):
    values = figures(prober)
    controls = values["controls"]
    assert set(controls) == {
        "majority", "bag of words, text", "bag of words, question", "bag of words, answer", "length",
        "question type", "condition",
        "mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum",
        "entropies combined", "embedding layer", "shuffled labels",
    }  # fmt: skip
    assert controls["majority"]["auroc"] is None and controls["majority"]["accuracy"] is not None
    assert 0.4 < controls["shuffled labels"]["auroc"] < 0.6
    assert "all layers vs shuffled labels" not in values["pairs"]  # measured against other labels
    assert 0.35 < controls["embedding layer"]["auroc"] < 0.65
    assert values["positive_control"]["auroc"] > 0.95
    assert values["pairs"]["all layers vs mean entropy"]["auroc"]["ci95"][0] > 0
    assert set(values["conditions"]) == {"closed_book", "with_passages"}
    assert "no evidence about large models" in (prober / "README.md").read_text()


def test_one_layer_linear_with_a_csv_log(store, tmp_path):
    options = ["layer=2", "head=linear", "lr=0.03", "logger=csv", "combine=probabilities"]
    options += ["threshold=budget=0.25", "loss=double_softmax", "domain=null", *OVERRIDES[4:]]
    bank = train(store.path, tmp_path / "p", *options)
    assert bank.layers == (2,) and isinstance(bank.head, LinearHead) and bank.combine == "probabilities"
    assert bank.metrics["ensemble"]["auroc"] > 0.95
    assert bank.metrics["ensemble"]["fired"] == pytest.approx(0.25, abs=0.06)
    assert bank.domain is None and bank.metrics["domain"] is None and "unlike" not in bank.card
    header, *lines = (tmp_path / "p/log/metrics.csv").read_text().splitlines()
    assert "validation_accuracy/0/layer2-correct" in header and len(lines) == 8


def test_a_threshold_that_promises_is_kept_with_its_promise(store, examples, tmp_path):
    options = ["layer=[1,2]", "threshold=risk=0.2@0.9", "layer_sets=[each]"]
    bank = train(store.path, tmp_path / "p", *options, *LINEAR)
    promise, groups = bank.promise, examples.groups("validation")  # of two texts each
    assert promise is not None and (promise.risk, promise.confidence) == (0.2, 0.9)
    assert promise.groups == len(groups) and 11 <= promise.passing < len(groups)
    entry = bank.metrics["promise"]
    assert entry | promise.to_dict() == entry and 0 < entry["test"]["passing"] < len(examples.groups("test"))
    assert bank.metrics["ensemble"]["threshold"] == bank.threshold
    assert "at most 20% is wrong" in bank.card
    # Of "bag of words, question", which knows nothing, no such share can be promised: it always fires.
    assert bank.metrics["controls"]["bag of words, question"]["fired"] == 1
    assert any("bag of words, question" in note and "always fire" in note for note in bank.metrics["notes"])
    assert Prober.from_pretrained(tmp_path / "p/layers/2").promise is not None
    plain = train(store.path, tmp_path / "plain", "layer=2", *LINEAR)
    assert plain.promise is None and plain.metrics["promise"] is None


def test_what_cannot_be_promised_is_refused(store, tmp_path):
    """With too few groups before anything is trained, of a head of no use when it is."""
    with fails("labels", "risk=0.001@0.99", "4603 groups"):
        train(store.path, tmp_path / "few", "layer=2", "threshold=risk=0.001@0.99", *LINEAR)
    assert not (tmp_path / "few").exists()
    make_store(tmp_path / "noise", 400, edit=lambda row: row | {"correct": int(row["id"][1:]) % 3 == 0})
    with fails("labels", "risk=0.1@0.9", "validation groups"):
        train(tmp_path / "noise", tmp_path / "p", "layer=2", "threshold=risk=0.1@0.9", *LINEAR)


def test_what_a_store_lacks_is_left_out_with_a_reason(tmp_path, caplog):
    empty = {"question": "", "rind_max": None}  # as without attention
    lost = lambda row: without(row, *SIGNALS, "answer_kind") | empty  # noqa: E731
    make_store(tmp_path / "s", edit=lost, spec=SPEC.select((1, 2)))
    bank = train(tmp_path / "s", tmp_path / "p", "layer=[1,2]", *OVERRIDES)
    notes = " ".join(bank.metrics["notes"])
    for lacks in ("no layer 0", "no column answer_kind", "no column mean_entropy", "no rind_max"):
        assert f"the store has {lacks}" in notes
    assert "question is the same in all training examples" in notes
    assert "left out (README.md of the saved prober says why): " in caplog.text.replace("\n  ", " ")
    assert bank.entropy_model is None and bank.metrics["with_entropy"] is None
    assert bank.metrics["positive_control"] is None
    absent = {"embedding layer", "RIND maximum", "bag of words, question"}
    assert not absent & set(bank.metrics["controls"])


@pytest.mark.long
def test_states_are_never_all_in_memory(tmp_path, monkeypatch):
    """Claim: standardising, training and scoring take a chunk at most; converse: a whole layer shows."""
    read, original = [], StateReader.__getitem__

    def spied(reader: StateReader, rows: Any) -> np.ndarray:
        states = original(reader, rows)
        read.append(len(states))
        return states

    monkeypatch.setattr(StateReader, "__getitem__", spied)
    store = make_store(tmp_path / "s", 3000)
    train(store.path, tmp_path / "p", "layer=all", *OVERRIDES)
    # Of 1500 to train on, 750 to validate, 3000 to score.
    assert len(read) > 100 and max(read) == CHUNK < 1500
    store.layer(1)
    assert max(read) == 3000


def test_seeds_give_the_spread_and_the_first_is_kept(store, tmp_path):
    options = ["layer=[1,2]", *SMALL]
    one = train(store.path, tmp_path / "one", *options)
    four = train(store.path, tmp_path / "four", "seeds=4", *options)
    np.testing.assert_allclose(four.metrics["ensemble"]["auroc"], one.metrics["ensemble"]["auroc"], atol=1e-3)
    for entry, alone in zip(four.metrics["layers"], one.metrics["layers"], strict=True):
        spread = entry["seeds"]
        assert len(set(spread["auroc"])) > 1 and spread["auroc"][0] == pytest.approx(entry["auroc"])
        assert spread["mean"] == pytest.approx(np.mean(spread["auroc"])) and alone["seeds"] is None


def test_out_of_domain_in_one_command(tmp_path):
    """Tested on a data set whose signal points the other way, a prober is worse than chance there."""

    def edit(row: dict) -> dict:
        other = int(row["group"][1:]) % 3 == 0
        flipped = 1 - row["correct"] if other else row["correct"]
        return row | {"dataset": "iirc" if other else "nq", "correct": flipped}

    store = make_store(tmp_path / "s", edit=edit)
    options = ["layer=2", "train_on=[nq]", *LINEAR]
    inside = train(store.path, tmp_path / "in", *options)
    outside = train(store.path, tmp_path / "out", "test_on=[iirc]", *options)
    assert inside.metrics["ensemble"]["auroc"] > 0.95 and outside.metrics["ensemble"]["auroc"] < 0.05
    splits = json.loads((tmp_path / "out/splits.json").read_text())
    numbers = {split: {int(g[1:]) % 3 == 0 for g in groups} for split, groups in splits.items()}
    assert numbers == {"train": {False}, "validation": {False}, "test": {True}}


def renamed(to: str) -> Callable[[dict], dict]:
    """Edits rows so that ids, groups and the data set are those of another set."""
    return lambda row: row | {"id": f"{to}{row['id']}", "group": f"{to}{row['group']}", "dataset": to}


def test_stores_of_several_data_sets_are_read_as_one(tmp_path):
    """Bit for bit what one store of all their rows gives, in the same order."""
    a = make_store(tmp_path / "a", 400, edit=renamed("nq"))
    b = make_store(tmp_path / "b", 600, edit=renamed("hotpotqa"))
    whole = FeatureStore.create(tmp_path / "whole", a.features, config={})
    shards = [(store, index) for store in (a, b) for index in range(store.next_shard)]
    for number, (store, index) in enumerate(shards):
        rows, states, units, _ = store.read_shard(index)
        whole.write_shard(number, rows, *states, units=units)
    whole.finish()
    joined = train(f"[{a.path},{b.path}]", tmp_path / "joined", "layer=[1,2]", *LINEAR)
    single = train(tmp_path / "whole", tmp_path / "one", "layer=[1,2]", *LINEAR)
    heads, same = ((tmp_path / out / "heads.safetensors").read_bytes() for out in ("joined", "one"))
    assert heads == same and set(joined.metrics["datasets"]) == {"nq", "hotpotqa"}
    assert all(joined.metrics[key] == single.metrics[key] for key in ("datasets", "ensemble"))
    fewer = make_store(tmp_path / "fewer", 40, edit=renamed("fewer"), spec=SPEC.select((0, 1)))
    with fails("mismatch", "layers=(0, 1, 2, 3)", "layers=(0, 1)"):
        by_site([a, fewer])


def test_a_group_is_never_on_two_sides_of_stores_read_together(tmp_path):
    a = make_store(tmp_path / "a", 400)

    def edit(row: dict) -> dict:
        split = "test" if row["group"] == "g4" else row["split"]
        return row | {"id": f"b{row['id']}", "split": split}

    b = make_store(tmp_path / "b", 400, edit=edit)
    with fails("overlap", "'g4'"):
        load_examples(by_site([a, b]))
    dealt = load_examples(by_site([a, b]), SplitRequest(split=[0.6, 0.2, 0.2]))
    assert (dealt.table.groupby("group")["split"].nunique() == 1).all()


def test_sites_are_trained_together_and_the_best_is_the_probers(tmp_path):
    """Each site of two data sets."""
    site = replace(SPEC.select((1, 2, 3)), site="mlp_out")
    post, mlp = (
        [make_store(tmp_path / f"{name}-{spec.site}", 300, edit=renamed(name), spec=spec, strength=strength)
         for name in ("nq", "hotpotqa")]
        for spec, strength in ((SPEC, 0.4), (site, 1.0))
    )  # fmt: skip

    def made(out: str, *stores: FeatureStore) -> Prober:
        listed = ",".join(str(store.path) for store in stores)
        return train(f"[{listed}]", tmp_path / out, "layer=[1,2]", *LINEAR)

    bank = made("both", *post, *mlp)
    assert (bank.spec.site, bank.layers) == ("mlp_out", (1, 2)) and bank.metrics["best_site"] == "mlp_out"
    assert bank.metrics["sites"] == ["resid_post", "mlp_out"] and len(bank.metrics["layers"]) == 4
    aurocs = [e["auroc"] for e in bank.metrics["layers"] if e["site"] == "mlp_out"]
    alone = [e["auroc"] for e in made("alone", *mlp).metrics["layers"]]
    np.testing.assert_allclose(aurocs, alone, atol=1e-3)
    with fails("mismatch", mlp[0].path):
        made("fewer", *post, mlp[0])


@pytest.mark.parametrize(("head", "aggregate"), [("attention_pool", None), ("radio", "mean")])
def test_token_states_make_probers_of_spans(tmp_path, head, aggregate):
    """What the saved prober says of spans is what ``metrics.json`` was computed from."""
    store, out = make_token_store(tmp_path / "t", 600), tmp_path / "p"
    options = [f"aggregate={aggregate}"] if aggregate else []
    bank = train(store.path, out, *options, *PLAIN, "lr=0.01", "layer=[2,3]", f"head={head}", "epochs=8")
    # Heads of single tokens are what a trigger takes; nothing of this machine is published.
    assert ("trigger=radio" in bank.card) == bool(aggregate) and str(tmp_path) not in bank.card
    examples = load_examples([store])
    assert bank.aggregate == aggregate and bank.metrics["splits"]["test"]["n"] == len(examples.rows["test"])
    rows = examples.rows["test"]
    spans = [examples.members[i] for i in rows]
    scores = np.concatenate([bank.score_spans(store.states(bank.layers, m), [(0, len(m))]) for m in spans])
    auroc = roc_auc_score(examples.wrong[rows], scores)
    assert bank.metrics["ensemble"]["auroc"] == pytest.approx(auroc, abs=1e-6) and auroc > 0.85


def test_a_head_of_ones_own(store, tmp_path, monkeypatch):
    """Trained, saved and, with its class given, loaded; what is no such module is one sentence."""
    arguments = [f"data={store.path}", "layer=[1,2]", f"out={tmp_path / 'p'}", *PLAIN, "lr=0.01"]
    for target, named in [("torch.nn.Linear", "'out_features'"), ("json.dumps", "dumps")]:
        with fails(None, named):
            cli.run("train", [*arguments, "head=own", f"head._target_={target}"])
        assert not (tmp_path / "p").exists()
    out = cli.run("train", [*arguments, "head=own", "head._target_=test_heads.Own", "+head.hidden=12"])
    with fails(None, "test_heads.Own", "head_class"):
        Prober.from_pretrained(out)
    assert Prober.from_pretrained(out, head_class=Own).metrics["ensemble"]["auroc"] > 0.95


# Further probers of one training: each is what a training of its own would have given.


@pytest.fixture(scope="module")
def swept(store, tmp_path_factory):
    """A training with probers of three sizes, the last of all texts, and of sets of layers."""
    out = tmp_path_factory.mktemp("swept") / "out"
    sweep = ["sizes=[60,200,600]", "layer_sets=[each,[1,3]]"]
    train(store.path, out, *sweep, *SMALL)
    return out


def assert_same_prober(one: Path, other: Path) -> None:
    """Weights, scores, probabilities and threshold, to float tolerance."""
    tensors, others = load_file(one / "heads.safetensors"), load_file(other / "heads.safetensors")
    assert set(tensors) == set(others)
    for name, value in tensors.items():
        np.testing.assert_allclose(value, others[name], atol=2e-3)
    a, b = Prober.from_pretrained(one), Prober.from_pretrained(other)
    assert a.spec == b.spec and a.threshold == pytest.approx(b.threshold, abs=5e-3)
    states = np.random.default_rng(0).standard_normal((50, len(a.layers), a.spec.width)).astype(np.float32)
    scores, same = a.score_states(states), b.score_states(states)
    np.testing.assert_allclose(scores, same, atol=5e-3)
    np.testing.assert_allclose(a.probability(scores), b.probability(same), atol=5e-3)
    one_auroc, other_auroc = (figures(folder)["ensemble"]["auroc"] for folder in (one, other))
    assert one_auroc == pytest.approx(other_auroc, abs=2e-3)


def test_sizes_are_nested_and_each_remembers_what_it_saw(swept):
    folders, whole = [swept / f"sizes/{n}" for n in (60, 200, 600)], Prober.from_pretrained(swept).seen
    seen = [Prober.from_pretrained(folder).seen.splits for folder in folders]
    first, second, last = (splits["train"] for splits in seen)
    assert first < second < last == whole.splits["train"]
    for split in ("validation", "test"):
        assert [splits[split] for splits in seen] == [whole.splits[split]] * 3
    sizes = [figures(folder)["splits"] for folder in folders]
    assert [part["train"]["n"] for part in sizes] == [60, 200, 600]
    assert len({json.dumps([part["validation"], part["test"]]) for part in sizes}) == 1
    assert [p["n"] for p in figures(swept)["learning_curve"]] == [60, 200, 600]
    assert [str(f.parent) for f in swept.rglob("run.json")] == [str(swept)]  # no newest prober among them


def test_the_prober_of_all_texts_is_the_trainings_own(swept):
    for name in ("config.json", "heads.safetensors", "seen.json"):
        assert (swept / "sizes/600" / name).read_bytes() == (swept / name).read_bytes()
    assert figures(swept / "sizes/600") == figures(swept) | {"learning_curve": []}


def test_a_set_of_layers_is_a_training(swept, store, tmp_path):
    its = train(store.path, tmp_path / "alone", "layer=[1,3]", *SMALL).metrics
    assert_same_prober(swept / "layers/1-3", tmp_path / "alone")
    assert {folder.name for folder in (swept / "layers").iterdir()} == {"1", "2", "3", "1-3"}
    assert figures(swept / "layers/1-3")["best_layer"] == its["best_layer"]
