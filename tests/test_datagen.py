"""Both kinds of labels on the testbed's own model: right, seeded, resumable, never leaking."""

import numpy as np
import pytest
import torch
from helpers.artefacts import write_lines
from transformers import AutoModelForCausalLM, AutoTokenizer

from probers import FeatureStore
from probers.cli import main as cli
from probers.evaluation.answers import accuracy_contains, exact_match, f1_score
from probers.testbed.assets import model_path


def made(out, *typed):
    return FeatureStore.open(cli.run("datagen", [f"out={out}", *typed]))


@pytest.fixture(scope="module")
def cot(artefacts, tmp_path_factory):
    return FeatureStore.open(artefacts.copy("cot", tmp_path_factory.mktemp("cot") / "store"))


def test_every_question_has_both_conditions_in_one_split(cot):
    rows = cot.table()
    assert len(rows) == 120 and set(rows["condition"]) == {"closed_book", "with_passages"}
    question = rows["id"].str.rsplit("/", n=1).str[0]
    assert (rows.groupby(question)["split"].nunique() == 1).all()
    assert (rows.groupby("group")["split"].nunique() == 1).all()
    # Labels agree with what the model was taught.
    right = rows[rows["condition"] == "closed_book"].groupby("knowledge")["correct"].mean()
    assert right["known"] > 0.8 and right["unknown"] < 0.2 and right["stale"] < 0.2
    assert ((rows["answer"].str.lower() == rows["gold"].str.lower()) == (rows["correct"] == 1)).mean() > 0.97


def test_states_are_those_of_a_fresh_forward_over_the_answer(cot):
    """Parity with plain transformers on one stored example."""
    rows = cot.table()
    row = rows[rows["condition"] == "closed_book"].iloc[3]
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    prompt = tokenizer(f"Question: {row['question']}\nAnswer:", return_tensors="pt")["input_ids"]
    answer = tokenizer(row["text"], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        states = model(torch.cat([prompt, answer], 1), output_hidden_states=True).hidden_states[6]
    ours = cot.layer(6)[row.name]
    assert answer.shape[1] == row["n_tokens"]
    np.testing.assert_allclose(ours, states[0, prompt.shape[1] :].mean(0), rtol=0.02, atol=0.02)


def test_quotas_end_with_so_many_examples_and_make_hardly_more(tmp_path):
    quotas = ["limit={train: null, validation: 200}", "balance_to={train: 16, validation: 8}", "layers=[12]"]
    store = made(tmp_path / "x", *quotas, "shard_size=24", "batch_size=16")
    counts = store.table().groupby(["split", "condition", "correct"]).size()
    assert set(counts["train"]) == {4} and set(counts["validation"]) == {2} and len(counts) == 8
    assert len(store.units) <= 5 * 24 < store.summary["questions"]["available"]
    assert store.summary["questions"]["limit"] == {"train": None, "validation": 200}
    other = made(tmp_path / "y", *quotas, "shard_size=7", "batch_size=3")  # the same in other batches
    columns = ["id", "split", "correct", "text"]
    ours, theirs = (each.table()[columns].sort_values("id").values.tolist() for each in (store, other))
    assert ours == theirs


def test_the_order_of_a_file_says_nothing_about_which_examples_meet_a_quota(tmp_path):
    golds = ["e", "Hull"] * 20
    rows = [{"question": f"Where is q{i} ?", "answers": [gold]} for i, gold in enumerate(golds)]
    rows = [row | {"id": f"q{i}", "split": "train"} for i, row in enumerate(rows)]
    typed = ["limit=null", "balance_to={train: 8}", "label=acc", "acc=substring", "layers=[12]"]
    stores = []
    for name, order in (("a", rows), ("b", rows[::-1])):
        file = write_lines(tmp_path / f"{name}.jsonl", order)
        stores.append(made(tmp_path / name, *typed, f"questions={file}", "shard_size=4"))
    first, second = (set(store.table()["id"]) for store in stores)
    assert first == second and len(first) == 8
    assert len(stores[0].units) < 40


def test_quotas_of_spans(tmp_path):
    quotas = "balance_to={train: 20, validation: 4, test: 6}"
    typed = ["source=wiki", "limit=100", quotas, "layers=[12]", "pool=tokens", "shard_size=8"]
    store = made(tmp_path / "x", *typed)
    spans = store.table().drop_duplicates("span").groupby(["split", "correct"]).size()
    wanted = {"train": 10, "validation": 2, "test": 3}
    assert spans.to_dict() == {(split, label): n for split, n in wanted.items() for label in (0, 1)}
    assert store.summary["articles"] < 100


def test_every_answer_has_its_scores_and_the_run_their_cells(cot):
    """Figures against the rows themselves, and the rows against the rules they are named after."""
    rows, figures = cot.table(), cot.summary
    for _, row in rows.iterrows():
        assert row["em"] == exact_match(row["answer"], [row["gold"]]) == row["correct"]
        assert row["acc"] == accuracy_contains(row["text"], [row["gold"]])
        assert row["f1"] == pytest.approx(f1_score(row["answer"], [row["gold"]]).f1)
    for condition, part in rows.groupby("condition"):
        (scores,) = [by[condition] for by in figures["scores"].values()]
        assert scores["n"] == len(part) == 60
        for name in ("correct", "em", "acc", "f1"):
            assert scores[name] == pytest.approx(part[name].mean(), abs=1e-6)
    both = rows.assign(q=rows["id"].str.rsplit("/", n=1).str[0]).pivot(index="q", columns="condition")[
        "correct"
    ]
    shares = figures["retrieval"]
    helped = (both["closed_book"] == 0) & (both["with_passages"] == 1)
    assert shares["helps"] == shares["only_with"] == pytest.approx(helped.mean(), abs=1e-6)
    assert shares["both"] == pytest.approx((both.sum(axis=1) == 2).mean(), abs=1e-6)
    cells = shares["both"] + shares["only_with"] + shares["only_without"] + shares["neither"]
    assert cells == pytest.approx(1, abs=1e-5) and shares["hurts"] == shares["only_without"]
    assert figures["audit"]["rows"] == 120 and (cot.path / "sample.html").is_file()


def test_answers_without_a_final_one_are_counted(cot, tmp_path, caplog):
    """Claim: the cue and the number are named; converse: the model's own form has no note."""
    store = made(tmp_path / "a", "limit=4", "layers=[6]", "prompt.answer_cue=Therefore it is")
    assert store.summary["no_final_answer"] == len(store) == 8
    assert "8 of 8 answers have no final answer" in caplog.text and "no_final_answer" not in cot.summary


def test_passages_without_room_are_left_out_whole_and_counted(tmp_path):
    """Claim: what does not fit goes from the last, and is counted; converse: what fits stays."""
    towns, hull = ("abba", "odil"), ["Hull"]
    questions = [{"id": name, "question": f"Where is {name} ?", "answers": hull} for name in towns]
    texts = {"a": "abba " * 1500, "o1": "odil odil odil in Hull", "o2": "odil " + "and so on " * 700}
    file = write_lines(tmp_path / "q.jsonl", questions)
    corpus = write_lines(tmp_path / "c.jsonl", [{"id": k, "title": k, "text": t} for k, t in texts.items()])
    given = [f"questions={file}", f"corpus={corpus}", f"corpus_cache={tmp_path}/cache"]
    store = made(tmp_path / "store", *given, "layers=[6]", "k=2")
    shown = dict(zip(store.table()["id"], store.table()["passages"], strict=True))
    assert shown == {"abba/closed_book": 0, "odil/closed_book": 0, "odil/with_passages": 1}
    ((name, reason),) = ((left["id"], left["reason"]) for left in store.left_out())
    assert (name, reason.split(":")[0]) == ("abba/with_passages", "no passage fits")
    assert store.summary["fewer_passages"] == 1


@pytest.mark.parametrize(("overrides", "layers", "width"), [
    (["pool=mind"], (12,), 384), (["site=mlp_out", "layers=[2,9]"], (2, 9), 192),
    (["site=mlp_out", "layers=all"], tuple(range(1, 13)), 192),  # no layer 0 inside a block
    (["layers=stride"], (0, 5, 7, 9, 11), 192),
])  # fmt: skip
def test_other_layers_poolings_and_sites_reach_the_store(tmp_path, overrides, layers, width):
    store = made(tmp_path / "x", "limit=6", *overrides)
    assert (store.spec.layers, store.spec.width) == (layers, width)
    assert store.states(layers).shape == (len(store), len(layers), width)
    assert np.abs(store.states(layers)).max() > 0
