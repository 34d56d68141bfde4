"""Training on every token of labelled texts: weights, the highest token of a span, figures by level."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers.planted import DEPTH, SPEC, WIDTH, make_store
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from probers.cli import main as cli
from probers.evaluation.bootstrap import few_groups
from probers.heads import LinearHead
from probers.store.store import FeatureStore
from probers.train import sweeps
from probers.train.assemble import score_everything
from probers.train.data import Column, Dataset
from probers.train.evaluate import level_figures
from probers.train.heads import Task
from probers.train.heads import train_heads as fit
from probers.train.module import ProberModule, head_losses
from probers.train.settings import Fitting

SIZE, TASK = 6, Task(Column("resid_post", 2))


def token_rows(n, rng, wrong, *, outside=2):
    """Rows of n answers of two spans and some tokens outside; the labels of the spans are ``wrong``."""
    rows = []
    for i in range(n):
        split = ("train", "train", "validation", "test")[i % 4]
        bad = int(wrong[2 * i] or wrong[2 * i + 1])
        for token in range(2 * SIZE + outside):
            mark = min(token // SIZE, 2)
            inside = int(mark < 2)
            label = int(inside and wrong[2 * i + mark])
            rows.append({
                "id": f"t{i}#{token}", "span": f"t{i}", "token": token, "group": f"g{i}", "split": split,
                "correct": 1 - bad, "token_wrong": label, "mark": mark, "inside": inside, "sentence": mark,
                "dataset": "d", "condition": "read", "text": "x", "question": f"q{i}", "answer": f"a{mark}",
                "gold": "", "question_type": "", "answer_kind": "", "knowledge": "", "writer": "",
                "cut_at": token, "n_tokens": SIZE if inside else outside, "mean_entropy": float(rng.random()),
                "max_entropy": 1.0, "min_prob": 0.5, "mean_logprob": -float(rng.random()), "rind_max": None,
            })  # fmt: skip
    return rows


def planted(path, kind, n=320):
    """A store of tokens: "plain" has its signal in every token of a wrong span, "one" in one of them.

    In the latter the others are lower, so that no token tells the kinds apart on average.
    """
    rng = np.random.default_rng(0)
    wrong = rng.integers(0, 2, 2 * n)
    rows = token_rows(n, rng, wrong)
    states = 0.3 * rng.standard_normal((len(rows), DEPTH + 1, WIDTH))
    for place, row in enumerate(rows):
        if not row["token_wrong"]:
            continue
        first = (2 * int(row["span"][1:]) + row["mark"]) % SIZE
        if kind == "plain":
            states[place, 2, 0] += 1.0
        else:
            states[place, 2, 0] += 3.0 if row["token"] % SIZE == first else -3.0 / (SIZE - 1)

    store = FeatureStore.create(path, [replace(SPEC, pool="tokens", position="token")], config={})
    store.write_shard(0, rows, states.astype(np.float32), units=[f"t{i}" for i in range(n)])
    store.finish({})
    return FeatureStore.open(path)


HOW = Fitting(batch_size=32, checks=1, epochs=12, lr=2e-2, device="cpu", save_every=0, warmup_epochs=6)


def span_auroc(data, **how):
    fitted = fit(LinearHead, [TASK], data, replace(HOW, **how))
    margins = score_everything(fitted.head, fitted.tasks, data, "max")
    table, rows = data.examples.table, data.examples.rows["test"]
    marked = rows[table["inside"].to_numpy()[rows] == 1]
    return roc_auc_score(1 - table["correct"].to_numpy()[marked], margins.of_head(0)[marked])


def test_span_max_finds_a_span_by_its_one_token_and_cross_entropy_does_not(tmp_path):
    data = Dataset.load([planted(tmp_path / "s", "one")])
    assert span_auroc(data, loss="span_max") > 0.95 and span_auroc(data, loss="span_max_all") > 0.95
    assert span_auroc(data, loss="ce") < 0.75


def test_tokens_are_weighted_as_scikit_learn_does(tmp_path):
    """Cross-entropy with span_weight is a weighted logistic regression: same direction, same ranking."""
    data = Dataset.load([planted(tmp_path / "s", "plain")])
    assert span_auroc(data, loss="ce") > 0.95
    examples = data.examples
    of = examples.text_of
    train = np.isin(of, examples.rows["train"])
    x = data.states[torch.arange(len(of))][:, data.columns.index(TASK.column)].numpy()
    wrong = 1 - examples.table["correct"].to_numpy()[of]
    weights = np.where(examples.inside[of], 10.0, 1.0)
    plain = LogisticRegression(C=1e3).fit(x[train], wrong[train], sample_weight=weights[train])
    fitted = fit(LinearHead, [TASK], data, HOW)
    ours = score_everything(fitted.head, fitted.tasks, data, "max").values[:, 0]
    order = np.concatenate(examples.members)
    assert np.corrcoef(ours, plain.decision_function(x)[order])[0, 1] > 0.98


def released_loss(logits, targets, weights, within, marked, omega):
    """The loss of one head written anew from the code of hallucination_probes, token by token."""
    token, span = [], []
    for i in range(len(logits)):
        margins = [float(a - b) for (a, b), there in zip(logits[i], within[i], strict=True) if there]
        wrong = float(targets[i] == 0)

        def bce(z, wrong=wrong):
            return max(z, 0) - z * wrong + math.log1p(math.exp(-abs(z)))

        token += [float(weights[i]) * bce(z) for z in margins]
        span += [bce(max(margins))] if marked[i] else []
    return (1 - omega) * sum(token) / len(token) + omega * (sum(span) / len(span) if span else 0.0)


@pytest.mark.parametrize("marked", [[1, 0, 1, 0, 1], [0] * 5])
@pytest.mark.parametrize("taken", [0, 3, 9])
def test_span_max_is_the_released_loss_and_its_variant_counts_all_stretches(marked, taken):
    """Unmarked stretches have a token loss of weight 1 and no span; the mean is over tokens, not weights."""
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 4, 1, 2), torch.randint(0, 2, (5, 1))
    within = torch.rand(5, 4) > 0.3
    within[:, 0] = True
    weights = torch.where(torch.tensor(marked) > 0, 10.0, 1.0)
    by_variant = {}
    for loss, spans in (("span_max", torch.tensor(marked).float()), ("span_max_all", weights)):
        module = ProberModule(LinearHead(["a"], 4), torch.tensor([0]), [0], replace(HOW, loss=loss), steps=10)
        module.steps_before = taken
        shares = torch.stack([weights, spans], dim=1)[:, None]
        losses = partial(head_losses, loss="ce")
        by_variant[loss] = float(module._span_losses(logits, targets, shares, within, losses))
    wanted = released_loss(logits[:, :, 0], targets[:, 0], weights, within, marked, taken / 10)
    assert by_variant["span_max"] == pytest.approx(wanted, rel=1e-5)
    assert by_variant["span_max_all"] != pytest.approx(wanted, rel=1e-2) or not any(marked)


def test_levels_are_those_of_scikit_learn(tmp_path):
    data = Dataset.load([planted(tmp_path / "s", "plain")])
    examples = data.examples
    rng = np.random.default_rng(1)
    rows = np.concatenate(examples.members)
    tokens = FeatureStore.open(tmp_path / "s").table().iloc[rows].reset_index(drop=True)
    scores = rng.standard_normal(len(rows)) + tokens["token_wrong"].to_numpy()
    levels = level_figures(examples, scores, 1.0, resamples=100, seed=0)
    values = {name: level.to_dict() for name, level in levels.items()}
    test = tokens.assign(score=scores)[tokens["split"] == "test"]
    spans = test.groupby(["span", "mark"]).agg(wrong=("token_wrong", "max"), score=("score", "max"))
    answers = test.groupby("span")
    bad = answers["token_wrong"].max()
    for level, wrong, score in (
        ("token", test["token_wrong"], test["score"]), ("span", spans["wrong"], spans["score"]),
        ("answer by max", bad, answers["score"].max()), ("answer by mean", bad, answers["score"].mean()),
    ):  # fmt: skip
        assert values[level]["n"] == len(wrong)
        assert values[level]["auroc"] == pytest.approx(roc_auc_score(wrong, score))
        assert values[level]["auprc"] == pytest.approx(average_precision_score(wrong, score))
        assert values[level]["recall_at_fpr1"] <= values[level]["recall_at_fpr10"]
    outside = test[test["inside"] == 0]
    assert values["token"]["false_alarms"] == pytest.approx(1000 * (outside["score"] > 1.0).mean())


def test_undecided_tokens_and_those_that_nobody_judged_are_in_no_figure(tmp_path):
    store = planted(tmp_path / "s", "plain")
    table, whole = store.table(), Dataset.load([store]).examples
    assert len(whole.table) == table.groupby(["span", "mark"]).ngroups
    table.loc[table["mark"] == 0, "token_wrong"] = -1
    table.loc[table["mark"] == 2, "inside"] = -1

    class Edited:
        path, spec = store.path, store.spec

        def table(self, columns=None):
            return table

        def __getattr__(self, name):
            return getattr(store, name)

    examples = Dataset.load([Edited()]).examples
    marks = {split: set(examples.table["mark"].iloc[rows]) for split, rows in examples.rows.items()}
    assert marks == {"train": {1, 2}, "validation": {1}, "test": {1}}
    assert sum(map(len, examples.rows.values())) < sum(map(len, whole.rows.values()))


def named(name, row):
    return row | {key: name + row[key] for key in ("id", "group")} | {"question": name + row["id"]}


def test_a_head_that_pools_spans_is_measured_by_them_alone(tmp_path):
    how = [f"data={planted(tmp_path / 's', 'plain').path}", "head=attention_pool", "layer=[2]", "lr=0.02"]
    out = cli.run("train", [*how, "resamples=100", "learning_curve=false", f"out={tmp_path / 'p'}"])
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["ensemble"]["auroc"] > 0.8 and figures["levels"] is None


def test_the_matrix_tests_each_prober_on_every_store(tmp_path):
    """Own stores transfer, one without a signal does not; the diagonal is the prober's own figure."""
    for name, strength in (("a", 1.0), ("b", 1.0), ("none", 0.0)):
        make_store(tmp_path / name, 600, strength=strength, edit=partial(named, name))
    how = ["head=linear", "layer=[2]", "resamples=100", "learning_curve=false", "epochs=4", "lr=0.02"]
    a, b, none = (f"{tmp_path}/{name}" for name in ("a", "b", "none"))
    out = cli.run("train", [f"data=[{a},{b}]", f"test={none}", "matrix=true", f"out={tmp_path / 'p'}", *how])
    matrix = json.loads((out / "matrix.json").read_text())
    assert list(matrix) == [a, b, "all of these"] and list(matrix[a]) == [a, b, none]
    assert matrix[a][b]["auroc"] > 0.8 and matrix[b][a]["auroc"] > 0.8
    assert 0.3 < matrix["all of these"][none]["auroc"] < 0.7
    alone = cli.run("train", [f"data={a}", f"out={tmp_path / 'q'}", *how])
    figures = json.loads((alone / "metrics.json").read_text())
    assert matrix[a][a]["auroc"] == pytest.approx(figures["ensemble"]["auroc"], abs=1e-6)
    matrix[a][b]["groups"] = 7  # the fewest are told
    assert sweeps.matrix_table(matrix).endswith(f"note: a cell of {few_groups(7)}")
