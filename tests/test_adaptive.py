"""The question classifier of Adaptive-RAG: its labels, training, files, and models of transformers."""

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.fake_lm import SPEC
from helpers.refusals import fails
from helpers.tiny import byte_level
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from transformers import LlamaConfig, LlamaForSequenceClassification

from probers.adaptive import STRATEGIES, AdaptiveClassifier, load_classifier
from probers.checksums import sealed_lines
from probers.cli import main as cli
from probers.cli.inputs import newest_classifier
from probers.cli.runs import RunFolder
from probers.data.splits import Seen
from probers.evaluation.bootstrap import Bootstrap, few_groups
from probers.prompts import TESTBED_PROMPT
from probers.rag.triggers import Adaptive, State
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.train.methods.questions import Answers, measure
from probers.types import Question

KINDS = {
    "no": "What is the capital of town",
    "single": "Who is the mayor of town",
    "multi": "Where was the mayor of town born",
}
QUESTIONS = [f"{text} {i}?" for i in range(20) for text in KINDS.values()]
LABELS = [kind for _ in range(20) for kind in KINDS]
FRESH = [f"{text} 99?" for text in KINDS.values()]


@pytest.mark.parametrize("strategies", [STRATEGIES, ("no", "multi")])
def test_it_agrees_with_scikit_learn_and_comes_back_from_its_files_without_a_pickle(tmp_path, strategies):
    examples = [(q, s) for q, s in zip(QUESTIONS, LABELS, strict=True) if s in strategies]
    questions, labels = map(list, zip(*examples, strict=True))
    trained, unseen = AdaptiveClassifier.fit(questions, labels), [*FRESH, "Unknown"]
    features = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    plain = LogisticRegression(max_iter=1000).fit(features.fit_transform(questions), labels)
    expected, actual = plain.predict_proba(features.transform(unseen)), trained.probabilities(unseen)
    for strategy, column in zip(STRATEGIES, actual.T, strict=True):
        there = [*plain.classes_, strategy].index(strategy)
        np.testing.assert_allclose(column, np.c_[expected, np.zeros(4)][:, there], atol=1e-6)
    trained.save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adaptive.safetensors", "config.json"]
    np.testing.assert_array_equal(load_classifier(str(tmp_path)).probabilities(unseen), actual)


def test_what_cannot_be_learnt_or_read_is_said(tmp_path):
    for questions, labels, named in (
        (["a b", "a c"], ["no", "no"], "'no'"), (["one", "two"], ["no", "multi"], "in common"),
    ):  # fmt: skip
        with fails("labels", named):
            AdaptiveClassifier.fit(questions, labels)
    with fails("no-artifact", "no config.json"):
        AdaptiveClassifier.load(tmp_path)
    with fails("model", "nowhere", "sequence-classification"):
        load_classifier(str(tmp_path / "nowhere"))


def answered(path, cases):
    """A finished store of (group, split, question, right without and with passages)."""
    store = FeatureStore.create(path, [FeatureSpec(SPEC, (1,), 4)], config={}, shards=1)
    rows = [
        {"id": f"q{i}/{condition}", "group": group, "split": split, "correct": right,
         "condition": condition, "question": text}
        for i, (group, split, text, *both) in enumerate(cases)
        for condition, right in zip(("closed_book", "with_passages"), both, strict=True)
    ]  # fmt: skip
    store.write_shard(0, rows, np.zeros((len(rows), 1, 4), dtype=np.float32))
    store.finish({})
    RunFolder(path, "datagen", {})._write(complete=True, summary={"model": "testbed", "source": "cot"})
    return FeatureStore.open(path)


def classifier_model(folder, labels):
    """A tiny sequence classifier with these labels, whose first logit is the highest for everything."""
    tokenizer = byte_level()
    model = LlamaForSequenceClassification(LlamaConfig(  # type: ignore[call-arg]
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, pad_token_id=tokenizer.pad_token_id, id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)}, num_labels=len(labels),
    ))  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.mark.parametrize(("labels", "order"), [(("multi", "NO", "single"), (1, 2, 0)), ("ABC", (0, 1, 2))])
def test_a_model_of_transformers_may_classify_by_its_labels(tmp_path, labels, order):
    model, tokenizer = classifier_model(tmp_path, labels)
    made = load_classifier(str(tmp_path))
    with torch.no_grad():
        expected = model.eval()(**tokenizer(FRESH[0], return_tensors="pt")).logits[0].softmax(0)
    np.testing.assert_allclose(made.probabilities(FRESH)[0], expected[list(order)], atol=1e-6)
    np.testing.assert_array_equal(made.probabilities(FRESH[1:]), made.probabilities(FRESH)[1:])
    assert made.probabilities([]).shape == (0, 3)


def test_no_code_and_no_pickle_of_a_model_is_read_and_nobody_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    model, _ = classifier_model(tmp_path, ("no", "single", "multi"))
    config, whole = tmp_path / "config.json", (tmp_path / "config.json").read_text()
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    remote = {"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model"}
    none = "sequence-classification"
    for change, named in (
        ({"id2label": {"0": "yes", "1": "no", "2": "maybe"}}, "has the labels yes, no, maybe"),
        ({"model_type": "unheard_of", "auto_map": remote}, none),
    ):
        config.write_text(json.dumps(json.loads(whole) | change))
        with fails(None, named):
            load_classifier(str(tmp_path))
    config.write_text(whole)
    load_classifier(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with fails("model", none, "model.safetensors"):
        load_classifier(str(tmp_path))


def decided(trigger):
    return trigger.decide_before([State(Question(q, q), None, TESTBED_PROMPT, (0, 0)) for q in FRESH])


def fired(trigger):
    return [d.fire for d in decided(trigger)]


def test_the_trigger_takes_the_cheapest_of_equals_and_a_folder(tmp_path):
    chances = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.3, 0.3, 0.4]])
    trigger = Adaptive(Mock(probabilities=lambda questions: chances[: len(questions)]))
    assert fired(trigger) == [False, True, True]
    assert [d.score for d in decided(trigger)] == pytest.approx([0.0, 0.2, 0.1])
    assert [trigger.look_ahead(Question(q, q)) is not None for q in FRESH] == [False, False, True]
    AdaptiveClassifier.fit(QUESTIONS, LABELS).save(tmp_path)
    assert fired(Adaptive(str(tmp_path))) == [False, True, True]


#: Right without and with passages.
RIGHT = {"no": (1, 1), "single": (0, 1), "multi": (0, 0)}


def cot_store(path, *, splits=("train", "train", "validation", "test"), label=lambda i, kind: kind):
    """A finished store of answers, two questions to a group; by default their words tell the label."""
    return answered(path, [
        (f"g{i // 2}", splits[i // 2 % len(splits)], f"{KINDS[kind]} {i}?", *RIGHT[label(i, kind)])
        for i, kind in enumerate(["no", "single", "multi"] * 40)
    ])  # fmt: skip


def test_the_command_trains_measures_and_writes_what_the_trigger_takes(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    store = cot_store(tmp_path / "runs" / "datagen" / "cot")
    out = cli.run("train", ["head=adaptive", "resamples=200"])
    assert str(out) == "runs/train/cot-adaptive"
    figures = json.loads((out / "metrics.json").read_text())
    table, _ = Answers.read(store.path).labelled({})
    test = table[table["split"] == "test"]
    assert figures["splits"]["test"]["n"] == len(test) == 30
    assert figures["splits"]["train"]["groups"] == 30
    trained, majority, shuffled = map(figures["detectors"].get, ("classifier", "majority", "shuffled labels"))
    assert (trained["accuracy"], trained["auroc"]) == (1.0, 1.0)
    assert majority["accuracy"] == pytest.approx(1 / 3, abs=0.1) and shuffled["accuracy"] < 0.8
    assert figures["pairs"]["classifier vs majority"]["accuracy"]["ci95"][0] > 0
    assert f"note: {few_groups(15, 'test group')}" in caplog.text
    card = (out / "README.md").read_text()
    assert "trigger=adaptive" in card and str(tmp_path) not in card
    assert fired(Adaptive(str(out))) == [False, True, True]
    assert cli.run("train", ["head=adaptive", "resamples=200"]) == out  # complete


def test_where_the_words_say_nothing_the_command_says_so(tmp_path, caplog):
    drawn = np.random.default_rng(0).choice(["no", "no", "single", "multi"], size=120)
    store = cot_store(tmp_path / "cot", label=lambda i, kind: drawn[i])
    cli.run("train", ["head=adaptive", f"data={store.path}", f"out={tmp_path / 'made'}", "resamples=200"])
    assert "it is not shown to be better than saying 'no' of every question" in caplog.text
    figures = json.loads((tmp_path / "made" / "metrics.json").read_text())
    assert 0.2 < figures["detectors"]["classifier"]["auroc"] < 0.8


def test_figures_are_counted_by_hand():
    strategies, bootstrap = ["no", "no", "single", "multi"], Bootstrap(["g", "g", "h", "i"], resamples=100)
    chances = np.array([[0.6, 0.3, 0.1], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.5, 0.1, 0.4]])
    scores = {"classifier": chances, "shuffled labels": chances}
    figures = measure(strategies, scores, "no", bootstrap)
    assert figures["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]
    classifier, majority = (figures["detectors"][name] for name in ("classifier", "majority"))
    # Scores -0.3, 0.3 where "no" is right; 0.5, -0.1 where it is not: 3 of 4 pairs in order.
    assert (classifier["accuracy"], classifier["auroc"]) == (0.5, 0.75)
    assert (majority["accuracy"], majority["auroc"]) == (0.5, None)
    assert figures["pairs"]["classifier vs majority"]["accuracy"]["diff"] == 0


@pytest.mark.parametrize(("typed", "named"), [([], "--source cot"), (["data=untested"], "no test question")])
def test_a_training_that_cannot_be_leaves_nothing(tmp_path, monkeypatch, typed, named):
    monkeypatch.chdir(tmp_path)
    cot_store(tmp_path / "untested", splits=("train", "validation"))
    with fails(None, named):
        cli.run("train", ["head=adaptive", *typed])
    assert [p.name for p in tmp_path.iterdir()] == ["untested"]


#: Right by never, always and fixed_sentence; the cheapest that is right; None is nobody.
VERDICTS = {
    (1, 1, 1): "no", (1, 0, 0): "no", (0, 1, 1): "single", (0, 1, 0): "single", (0, 0, 1): "multi",
    (0, 0, 0): None,
}  # fmt: skip


def compared(path, rows, *, triggers=("wo", "sr", "fs"), complete=True, wrong="em"):
    """A comparison's folder with these (id, dataset, group, split, question, right by each method)."""
    methods = {
        "wo": {"trigger": "never", "query": "question"}, "sr": {"trigger": "always", "query": "question"},
        "fs": {"trigger": "fixed_sentence", "query": "last_sentence"},
    }  # fmt: skip
    config = {"triggers": list(triggers), "methods": methods, "wrong": wrong, "model": {"name": "testbed"}}
    keys = ("id", "dataset", "group", "split", "question")
    right = [dict(zip(triggers, map(bool, row[5]), strict=False)) for row in rows]
    made = [dict(zip(keys, row, strict=False)) | {"right": hit} for row, hit in zip(rows, right, strict=True)]
    path.mkdir(parents=True, exist_ok=True)
    (path / "outcomes.jsonl").write_text(sealed_lines(made))
    RunFolder(path, "compare", config)._write(complete=complete, summary={})
    return path


def cases(dataset):
    names = [f"{dataset}{i}" for i in range(len(VERDICTS))]
    return [(n, dataset, n, "train", f"{n}?", right) for n, right in zip(names, VERDICTS, strict=True)]


def test_labels_by_trying_are_the_cheapest_and_then_the_bias_of_the_data_set(tmp_path):
    unknown = ("open", "nq", "open", "train", "?", ())
    answers = Answers.read(compared(tmp_path, [*cases("nq"), *cases("hotpotqa"), *cases("mine"), unknown]))
    assert (answers.model, answers.rule, answers.tried) == ("testbed", "em", STRATEGIES)
    with fails("missing-value", "'mine'", "+head.bias.mine=single"):
        answers.labelled({"nq": "single", "hotpotqa": "multi"})
    table, record = answers.labelled({"nq": "single", "hotpotqa": "multi", "mine": "leave_out"})
    strategies = dict(zip(table["question"], table["strategy"], strict=True))
    for dataset, bias in (("nq", "single"), ("hotpotqa", "multi"), ("mine", None)):
        for i, cheapest in enumerate(VERDICTS.values()):
            assert strategies.get(f"{dataset}{i}?") == (cheapest or bias)
    assert len(strategies) == 17  # without the one that is left out, and the one without a gold answer
    assert record["tried"] == ["no", "single", "multi"] and record["unanswered"] == {
        "hotpotqa": {"n": 1, "label": "multi"}, "mine": {"n": 1, "label": "leave_out"},
        "nq": {"n": 1, "label": "single"},
    }  # fmt: skip
    # A store says nothing of several retrievals, and its labels say so.
    _, record = Answers.read(cot_store(tmp_path / "store").path).labelled({"testbed": "single"})
    assert record["tried"] == ["no", "single"]
    assert record["unanswered"] == {"": {"n": 40, "label": "multi"}}


def test_several_runs_are_one_where_they_fit(tmp_path):
    read = Answers.read
    one, other = read(compared(tmp_path / "a", cases("nq"))), read(compared(tmp_path / "b", cases("iirc")))
    both = Answers.joined([one, other])
    assert both.table["id"].tolist() == [*one.table["id"], *other.table["id"]]
    moved = read(compared(tmp_path / "c", [(f"x{r[0]}", *r[1:3], "test", *r[4:]) for r in cases("nq")]))
    for wrong, code, *named in (
        (moved, "overlap", "'nq0'", "one seed"),
        (read(compared(tmp_path / "d", cases("iirc"), wrong="acc")), "mismatch", "rule", "em", "acc"),
        (read(cot_store(tmp_path / "e").path), "mismatch", "data="),
    ):
        with fails(code, *named):
            Answers.joined([one, wrong])


def test_a_comparison_that_cannot_be_learned_from_is_told(tmp_path):
    with fails("no-artifact", "unfinished"):
        Answers.read(compared(tmp_path / "unfinished", cases("nq"), complete=False))
    with fails("labels", "fixed_sentence", "split=all"):
        Answers.read(compared(tmp_path / "few", cases("nq"), triggers=("wo", "sr")))
    file = compared(tmp_path / "damaged", cases("nq")) / "outcomes.jsonl"
    file.write_text(file.read_text().replace('"wo": true', '"wo": false', 1))
    with fails("damaged", "line 1", "was altered", "overwrite=true"):
        Answers.read(tmp_path / "damaged")


def test_the_command_learns_from_what_was_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = {"no": (1, 1, 1), "single": (0, 1, 0), "multi": (0, 0, 1)}
    splits = ("train", "train", "validation", "test")
    rows = [
        (f"q{i}", "testbed", f"g{i // 2}", splits[i // 2 % 4], f"{KINDS[kind]} {i}?", right[kind])
        for i, kind in enumerate(list(KINDS) * 40)
    ]
    compared(tmp_path / "tried", rows)
    out = cli.run("train", ["head=adaptive", "data=tried", "resamples=100"])
    figures = json.loads((out / "metrics.json").read_text())
    assert figures["labels"] == {"tried": list(STRATEGIES), "rule": "em", "unanswered": {}}
    assert figures["detectors"]["classifier"]["accuracy"] > 0.9
    assert Seen.read(out).split_of(Question("new", rows[0][4])) == "train"
    assert newest_classifier(model="testbed") == out
