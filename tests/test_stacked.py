"""Stacks of finished probers: what they gain, what they refuse, and that they are what their members say."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.planted import DEPTH, SPEC, WIDTH, make_rows, make_store, make_token_store
from helpers.refusals import fails
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from test_joint_heads import grown

from probers.cli.components import Component
from probers.heads import HEADS, LinearHead, ProbeHead, SequenceHead, StackedHead, is_joint
from probers.prober.decision import Ensemble
from probers.prober.prober import Prober
from probers.prober.token_scores import GrowingScores, text_scores
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.train.assemble import assemble
from probers.train.data import Dataset
from probers.train.examples import WEIGHTS
from probers.train.heads import probe_tasks
from probers.train.heads import train_heads as fit
from probers.train.methods.stacking import Stacking
from probers.train.run import method_for, run
from probers.train.settings import Train

QUICK: Any = {
    "epochs": 3, "lr": 2e-2, "batch_size": 32, "checks": 1, "device": "cpu", "resamples": 100, "domain": None,
}  # fmt: skip
SMALL: Any = {"size": 16, "blocks": 2, "window": 5}


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """Questions of their own for each group: a question in two splits is one that a member has seen."""
    return row | {"question": f"question {row['group']}"}


def halves(path: Path, n: int = 800, name: str = "") -> FeatureStore:
    """A store whose label is the sign of a sum; layers 1 and 2 hold a summand each, layer 3 none."""
    rng = np.random.default_rng(0)
    parts = rng.standard_normal((n, 2))
    wrong = (parts.sum(axis=1) + 0.3 * rng.standard_normal(n) > 0).astype(int)
    made = make_rows(n, rng, 1 - wrong, rng.integers(0, 2, n))
    rows = [asked(row | {"group": name + row["group"]}) for row in made]
    states = rng.standard_normal((n, DEPTH + 1, WIDTH))
    for layer, part in ((1, 0), (2, 1)):
        states[:, layer, 0] = 3 * parts[:, part]
    store = FeatureStore.create(path, [SPEC], config={"source": "cot"}, shards=1)
    store.write_shard(0, rows, states.astype(np.float32))
    store.finish({"model": "testbed"})
    return FeatureStore.open(path)


def train(store: FeatureStore, out: Path, head: Any = LinearHead, layer: Any = 1, **how: Any) -> Path:
    dataset, settings = Dataset.load([store], layer), Train(**QUICK, **how)
    joint = is_joint(getattr(head, "func", head))
    columns = [column for column in dataset.columns if column.layer]
    fitted = fit(head, probe_tasks(columns, [0], joint=joint), dataset, settings)
    bank = assemble(fitted, dataset, settings, controls=False).bank
    replace(bank, seen=dataset.examples.seen()).save_pretrained(out)
    return out


def stacking(members: list[str]) -> Stacking:
    stack = method_for(Train(**QUICK, head=Component.of("head", "stacked", probers=members)))
    assert isinstance(stack, Stacking)
    return stack


def weighed(store: FeatureStore, *members: Path) -> Prober:
    """A stack without figures."""
    stack = stacking(list(map(str, members)))
    dataset = stack.prepare(Dataset.load([store], stack.settings.layer), [store])
    tasks = probe_tasks([c for c in dataset.columns if c.layer], [0], joint=True)
    fitted = stack.fit(tasks, dataset, out=None)
    return assemble(fitted, dataset, stack.settings, controls=False).bank


def stack(store: FeatureStore, out: Path, *members: Path, **changes: Any) -> Prober:
    head = Component.of("head", "stacked", probers=list(map(str, members)))
    run(Train(head=head, **{**QUICK, "data": str(store.path), "out": str(out), **changes}))
    return Prober.from_pretrained(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two probers of one layer each, one of noise, and stacks of two and of all."""
    root = tmp_path_factory.mktemp("stacked")
    store = halves(root / "store")
    for layer in (1, 2, 3):
        train(store, root / f"layer{layer}", layer=layer)
    stack(store, root / "all", *(root / f"layer{k}" for k in (1, 2, 3)))
    return root


def test_two_halves_of_the_signal_are_better_together(folder: Path) -> None:
    """Converse: a member of noise gets almost no weight, and does no harm."""
    metrics = Prober.from_pretrained(folder / "all").metrics
    for name in ("layer1", "layer2"):
        assert metrics["pairs"][f"all layers vs {name}"]["auroc"]["ci95"][0] > 0.05
        assert metrics["members"][name]["auroc"] < 0.9
    assert metrics["ensemble"]["auroc"] > 0.93
    weights = {name: entry["weight"] for name, entry in metrics["members"].items()}
    assert min(weights["layer1"], weights["layer2"]) > 8 * weights["layer3"] >= 0
    store = FeatureStore.open(folder / "store")
    both = weighed(store, folder / "layer1", folder / "layer2")
    x, wrong, _ = states_of(store, "test", (1, 2))
    assert metrics["ensemble"]["auroc"] == pytest.approx(roc_auc_score(wrong, both.score_states(x)), abs=0.01)


def states_of(store: FeatureStore, split: str, layers: Any) -> tuple[torch.Tensor, np.ndarray, list[str]]:
    table = store.table()
    rows = np.flatnonzero(table["split"] == split)
    x = torch.from_numpy(store.reader(list(layers))[rows])
    return x, 1 - table["correct"].to_numpy()[rows], table["group"].iloc[rows].tolist()


def test_it_is_the_logistic_regression_of_scikit_learn_on_half_of_the_validation_groups(folder: Path) -> None:
    """By hand from the members' own scores; the other half is what validation was."""
    store, names = FeatureStore.open(folder / "store"), [folder / "layer1", folder / "layer2"]
    members = stacking(list(map(str, names)))
    held = members.prepare(Dataset.load([store], [1, 2]), [store]).examples
    halves = [set(held.groups(split)) for split in (WEIGHTS, "validation")]
    x, wrong, groups = states_of(store, "validation", (1, 2))
    assert not halves[0] & halves[1] and halves[0] | halves[1] == set(groups)
    scores = np.stack([bank.score_states(x[:, [i]]) for i, bank in enumerate(members.banks)], axis=1)
    first = np.array([group in halves[0] for group in groups])
    mean, scale = scores[first].mean(axis=0), scores[first].std(axis=0)
    reference = LogisticRegression().fit((scores[first] - mean) / scale, wrong[first])
    expected = reference.decision_function((scores - mean) / scale)
    both = weighed(store, *names)
    np.testing.assert_allclose(both.score_states(x), expected, atol=2e-3, rtol=2e-3)
    np.testing.assert_allclose(both.head.weights[0], reference.coef_[0], atol=2e-3)


def test_what_it_has_seen_is_what_its_members_have_and_the_half_of_its_weights(folder: Path) -> None:
    store, whole = FeatureStore.open(folder / "store"), Prober.from_pretrained(folder / "all")
    counts = whole.metrics["splits"]
    assert counts[WEIGHTS]["groups"] == counts["validation"]["groups"] == 50
    assert whole.seen is not None
    sides = [whole.seen.side("testbed", group, "") for group in states_of(store, "validation", [1])[2]]
    assert sides.count("train") == counts[WEIGHTS]["n"] and set(sides) == {"train", "validation"}


# Members of any head and layers, on tokens as well.


def head_of(name: str, layers: tuple[int, ...], **options: Any) -> ProbeHead:
    """A head with large random parameters, so that every input matters."""
    kind = HEADS[name]
    streams = [f"layer{k}" for k in layers]
    made = kind(streams[:1], WIDTH, len(layers), **options) if kind.joint else kind(streams, WIDTH, **options)
    torch.manual_seed(len(name))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.5)
    return made.eval()


SEQUENCE, CONCAT, RADIO = (
    ("sequence", (2, 3), Ensemble().over(1), SMALL), ("concat", (1, 3), Ensemble().over(1), {}),
    ("radio", (1, 2, 3), Ensemble("probabilities", (1.0, 0.5, 2.0), 0.25), {"hidden": 4}),
)  # fmt: skip


def of_members(*members: Any) -> tuple[Prober, list[Prober]]:
    """A stack of random heads, and a prober of each alone."""
    spec = replace(SPEC, layers=(1, 2, 3), pool="tokens", dtype="float32")
    banks = [
        Prober(spec.select(layers), head_of(name, layers, **options), ensemble=rule, aggregate="max")
        for name, layers, rule, options in members
    ]
    figures = [
        {"head": name, "options": bank.head.options, "layers": list(layers), "ensemble": rule.to_dict()}
        for (name, layers, rule, _), bank in zip(members, banks, strict=True)
    ]
    head = StackedHead(["all"], WIDTH, 3, members=figures)
    for member, bank in zip(head.heads, banks, strict=True):
        member.load_state_dict(bank.head.state_dict())
    weights = np.arange(1, len(banks) + 1) / 2
    head.weigh(weights - 1, weights + 1, weights, -0.5)
    return Prober(spec, head, aggregate="max"), banks


def by_hand(banks: list[Prober], x: torch.Tensor) -> np.ndarray:
    total = np.full(len(x), -0.5)
    for weight, bank in zip(np.arange(1, len(banks) + 1) / 2, banks, strict=True):
        scores = bank.score_states(x[:, [k - 1 for k in bank.layers]])
        total += weight * (scores - (weight - 1)) / (weight + 1)
    return total


@pytest.mark.parametrize("members", [(RADIO, CONCAT), (SEQUENCE, RADIO, CONCAT)])
def test_growing_texts_have_the_scores_of_whole_ones(members: Any) -> None:
    """Texts that begin and end at different times; whole ones are what the members give by hand."""
    bank, alone = of_members(*members)
    assert bank.head.causal == (SEQUENCE in members) and bank.head.reach == (9 if SEQUENCE in members else 1)
    texts = [torch.randn(n, 3, WIDTH) for n in (14, 9, 20)]
    grown_scores = grown(GrowingScores(bank), texts)
    for text, scores in zip(texts, grown_scores, strict=True):
        np.testing.assert_allclose(bank.score_states(text), by_hand(alone, text), atol=1e-4)
        np.testing.assert_allclose(scores, bank.score_states(text), atol=1e-4)
        np.testing.assert_allclose(text_scores(bank, text.numpy())[0], bank.score_states(text), atol=1e-5)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    """Weights in half precision, and the small numbers of the stack in single."""
    bank, _ = of_members(SEQUENCE, RADIO, CONCAT)
    for parameter in bank.head.parameters():
        parameter.copy_(parameter.half().float())
    bank.head.weights[0, 1] = 1e-9
    bank.save_pretrained(tmp_path)
    again, x = Prober.from_pretrained(tmp_path), torch.randn(12, 3, WIDTH)
    np.testing.assert_array_equal(again.score_states(x), bank.score_states(x))
    assert again.head.options == bank.head.options


def test_members_of_tokens_are_weighed_by_the_scores_of_spans(tmp_path: Path) -> None:
    """A sequence head and linear heads of other layers, with entropies on top."""
    store = make_token_store(tmp_path / "tokens", edit=asked)
    first = train(store, tmp_path / "a", layer=[1, 2])
    head = partial(SequenceHead, **{**SMALL, "window": 3})
    second = train(store, tmp_path / "b", head, [2, 3], loss="span_max", aggregate="mean")
    bank = stack(store, tmp_path / "ab", first, second)
    assert bank.layers == (1, 2, 3) and bank.head.causal and bank.aggregate == "max"
    assert bank.entropy_model is not None and bank.metrics["with_entropy"]["auroc"] > 0.5
    members = stacking([str(first), str(second)])
    examples = members.prepare(Dataset.load([store], [1, 2, 3]), [store]).examples
    assert examples.members is not None and isinstance(bank.head, StackedHead)
    x = torch.from_numpy(store.reader([1, 2, 3])[np.arange(len(examples.text_of))])
    for number, (member, layers) in enumerate(zip(members.banks, ([0, 1], [1, 2]), strict=True)):
        rows = [examples.members[text] for text in examples.rows[WEIGHTS]]
        each = np.array([member.score_states(x[row][:, layers]).max() for row in rows])
        assert float(bank.head.mean[0, number]) == pytest.approx(each.mean(), abs=1e-4)
        assert float(bank.head.scale[0, number]) == pytest.approx(each.std(), abs=1e-4)


def refused(folder: Path, out: Path, code: Any, *said: str, **changes: Any) -> None:
    """Nothing is written where a stack is refused."""
    members = changes.pop("members", [folder / "layer1", folder / "layer2"])
    store = changes.pop("store", None) or FeatureStore.open(folder / "store")
    with fails(code, *said):
        stack(store, out, *members, **changes)
    assert not out.exists()


def moved(old: str, new: str, row: dict[str, Any]) -> dict[str, Any]:
    """Half of a split's groups go to another, and what was there out of the way."""
    split, rest = row["split"], {"train", "validation", "test"} - {old, new}
    row = row if split != new else row | {"group": f"new {row['group']}", "split": min(rest)}
    return asked(row | {"split": new} if split == old and int(row["group"][1:]) // 4 % 2 else row)


def test_texts_that_a_member_was_trained_on_are_a_leak(folder: Path, tmp_path: Path) -> None:
    """Converse: a group is no leak where the members were trained on others only."""
    refused(folder, tmp_path / "out", "overlap", "layer1", "groups", split=[0.3, 0.3, 0.4])
    for old, split, count in (("train", "validation", 50), ("validation", "test", 25)):
        store = make_store(tmp_path / f"{old}-{split}", 400, edit=partial(moved, old, split))
        refused(folder, tmp_path / "out", "overlap", "layer1", f"{count} of the {split} groups", store=store)
    fresh = halves(tmp_path / "fresh", name="new ")
    assert weighed(fresh, folder / "layer1", folder / "layer2").layers == (1, 2)


@pytest.mark.parametrize(
    "change", [{"pool": "last"}, {"model": replace(SPEC.model, id="other", revision="other")}]
)
def test_another_pool_or_model_is_refused(folder, tmp_path, change):
    """Of a member, and of the store."""
    spec: FeatureSpec = replace(SPEC, layers=(1,), **change)
    Prober(spec, HEADS["linear"](["a"], WIDTH)).save_pretrained(tmp_path / "other")
    refused(folder, tmp_path / "out", "mismatch", members=[folder / "layer1", tmp_path / "other"])
    store = make_store(tmp_path / "store", 400, edit=asked, spec=replace(SPEC, **change))
    refused(folder, tmp_path / "out", None, store=store)


def test_what_a_stack_cannot_do_is_refused(folder: Path, tmp_path: Path) -> None:
    no = partial(refused, folder, tmp_path / "out")
    no("missing-value", "head.probers=[", members=[folder / "layer1"])
    no("layers", "layer=[1]", layer=[1])
    no("conflict", "seeds=2", seeds=2)
    no("layers", store=make_store(tmp_path / "less", 400, edit=asked, spec=replace(SPEC, layers=(0, 1))))
    no("no-artifact", members=[folder / "layer1", tmp_path / "none"])
    tokens = replace(SPEC, layers=(1, 2), pool="tokens")
    Prober(tokens, HEADS["attention_pool"](["a", "b"], WIDTH)).save_pretrained(tmp_path / "pools")
    no("unsupported", "pools", members=[tmp_path / "pools", folder / "layer1"])
