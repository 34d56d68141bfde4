"""Labels from articles: right, streamed, resumable, balanced, with negatives of both kinds."""

import random
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.artefacts import contents, write_lines
from helpers.fake_lm import SPEC, FakeLM, begun
from helpers.refusals import interrupted

from probers import CausalLM, FeatureStore
from probers.cli import main as cli
from probers.datagen import Articles
from probers.datagen.labels.wiki import may_go_on
from probers.datagen.writer import balance, fill
from probers.prompts import PromptTemplate
from probers.store.spec import FeatureSpec
from probers.testbed.assets import load_articles
from probers.types import Needs
from probers.words import Recogniser, head_entity
from probers.words.vectors import train_vectors

RULES = Recogniser("rules", fine=True, quiet=True)


def articles(path, lm, *, needs=None, prompt=None, extra=None, **options):
    """A planned source; ``own`` are options of the source itself."""
    source = Articles(str(path), **{"within": None, "context": None, "recogniser": "rules"} | (extra or {}))
    options = {"max_new_tokens": 24, "limit": None} | options
    return begun(source, lm, needs or Needs.of((2,), attention=True), prompt=prompt, **options)


def generated(out, *typed):
    """The store of the command, with the testbed's model."""
    return FeatureStore.open(cli.run("datagen", ["--source", "wiki", f"out={out}", *typed]))


def empty(path):
    return FeatureStore.create(path, [FeatureSpec(SPEC, (2,), 4)], config={})


def make(tmp_path, listed, lm, *, name="s", **options):
    """A store, not finished, of (title, sentences) articles."""
    lines = [{"title": title, "sentences": sentences} for title, sentences in listed]
    made = articles(write_lines(tmp_path / f"{name}.jsonl", lines), lm, shard_size=4, **options)
    store = empty(tmp_path / name)
    fill(store, made, partial(made.examples, lm))
    return store, made


def written(answers):
    """A model that writes what ``answers`` says for the last word of the article so far."""
    return FakeLM(lambda prompt: answers[prompt.split()[-1]])


ANSWERS = {
    "in": " Spain, a country.",  # right
    "near": " Lisbon, a city.",  # wrong
    "by": " Anna.",  # a part of Anna Berg: undecided
    "since": " a long time ago it was so.",  # no entity
}
ARTICLE = ("It lies in Spain today.", "It is near Madrid today.", "It was led by Anna Berg then.")


@pytest.fixture(scope="module")
def testbed(artefacts):
    return FeatureStore.open(artefacts("wiki"))


def test_every_cut_is_a_row_or_left_out_with_its_reason(tmp_path):
    listed = [(f"T{i}", (*ARTICLE, "It stands since May 1990 here.")) for i in range(8)]
    store, made = make(tmp_path, listed, written(ANSWERS))
    rows = store.table()
    ids = [*rows["id"], *(record["id"] for record in store.left_out())]
    assert sorted(ids) == sorted(store.units) and len(ids) == len(set(ids)) == 16
    assert set(rows[rows["correct"] == 1]["gold"]) == {"Spain"}
    assert set(rows[rows["correct"] == 0]["gold"]) == {"Madrid"}
    reasons = Counter((record["reason"], record["gold"]) for record in store.left_out())
    assert set(reasons) == {("undecided", "Anna Berg"), ("no entity at the head", "May 1990")}
    undecided = next(record for record in store.left_out() if record["reason"] == "undecided")
    assert (undecided["written"], undecided["stage"]) == ("Anna", "partial") and undecided["evidence"]
    figures, _ = made.summarise(store)
    assert figures["spans"] == len(rows)
    assert figures["left_out"] == {reason: n for (reason, _), n in reasons.items()}


@pytest.mark.parametrize(("text", "stop", "cut_off"), [
    (" New", "length", True), (" Bank of", "length", True), (" New York,", "length", False),
    (" New York", "eos", False),
])  # fmt: skip
def test_an_entity_that_the_length_limit_may_have_cut_off_has_no_label(text, stop, cut_off):
    generation = SimpleNamespace(text=text, stop=stop)
    assert may_go_on(generation, head_entity(text, RULES), RULES) == cut_off


def test_rows_record_the_entity_and_where_it_came_from(tmp_path):
    lm, prompt = written(ANSWERS), PromptTemplate("radio", article="About {title}:")
    store, _ = make(tmp_path, [("T", ARTICLE[:2])], lm, prompt=prompt)
    assert lm.prompts == ["About T: It lies in", "About T: It lies in Spain today. It is near"]
    for _, row in store.table().iterrows():
        assert row["text"][row["entity_start"] : row["entity_end"]] == row["answer"]
        assert " ".join(ARTICLE)[row["cut_at"] :].startswith(row["gold"])
        assert row["question"] == " ".join(ARTICLE)[: row["cut_at"]].rstrip()
        assert row["match_stage"] and row["match_evidence"] and row["title"] == row["group"] == "T"
        assert row["n_tokens"] == 1 and row["question_type"] in ("name", "place")


@pytest.mark.parametrize("pool", ["mean", "tokens", "predicting", "mind"])
def test_states_are_those_of_the_entitys_tokens(tmp_path, pool):
    """Against a fresh pass over prompt and entity of the testbed's model, for every pooling."""
    layers = "all" if pool == "mind" else "[3,12]"
    store = generated(tmp_path / "store", f"pool={pool}", f"layers={layers}", "limit=12")
    lm = CausalLM.from_pretrained("testbed")
    of = {"mind": "mind_tokens", "predicting": "predicting"}
    needs = Needs.of(store.spec.layers, pool=of.get(pool, "tokens"))
    rows, states = store.table(), store.states(store.spec.layers).astype(np.float32)
    parts = list(rows.groupby("span"))
    questions = [part.iloc[0]["question"] for _, part in parts]
    written = lm.generate(questions, max_new_tokens=48, needs=needs)
    for (span, part), made in zip(parts, written, strict=True):
        first = part.iloc[0]
        assert made.text.startswith(first["text"])
        start, end = first["entity_start"], first["entity_end"]
        tokens = [i for i, (a, b) in enumerate(made.offsets) if a < end and b > start]
        taken = made.state[tokens]
        assert len(part) == (len(tokens) if pool == "tokens" else 1)
        assert set(part["n_tokens"]) == {len(tokens)}
        if pool == "tokens":
            assert part["id"].tolist() == [f"{span}#{i}" for i in range(len(tokens))]
            np.testing.assert_allclose(part["max_entropy"], made.entropies[tokens], rtol=1e-3, atol=1e-3)
            expected = taken
        elif pool == "mind":
            width = taken.shape[-1] // 2
            expected = np.concatenate([taken[-1, 0, :width], taken[:, 0, width:].mean(axis=0)])[None, None]
        else:
            expected = taken[:1] if pool == "predicting" else taken.mean(axis=0)[None]
        np.testing.assert_allclose(states[part.index], expected, rtol=0.02, atol=0.02)
        # What was known before its first token, from the model's own logits there.
        before = [*made.prompt_ids, *made.token_ids[: tokens[0]]]
        logits = lm.model(torch.tensor([before])).logits[0, -1].double()
        p = logits.softmax(-1).sort(descending=True).values.detach().numpy()
        entropy = torch.distributions.Categorical(logits=logits).entropy().item()
        names = ("entropy_before", "max_prob_before", "margin_before", "logprob_before")
        for name, value in zip(names, (entropy, p[0], p[0] - p[1], np.log(p[0])), strict=True):
            np.testing.assert_allclose(part[name], value, rtol=1e-3, atol=1e-3, err_msg=name)


def test_a_cut_is_shown_so_many_tokens_and_the_row_says_what_the_model_saw(tmp_path):
    """``question`` is the text that was shown; where it begins follows from where the article was cut."""
    text = "It lies near Madrid since {} and it is still there today."
    sentences = [text.format(year) for year in range(1900, 1940)]
    lm = CausalLM.from_pretrained("testbed", batch_size=4)
    prompt = PromptTemplate("radio", article="About {title}:")
    made = articles(
        write_lines(tmp_path / "a.jsonl", [{"title": "T", "sentences": sentences}]), lm,
        needs=Needs.of((12,), pool="predicting"), prompt=prompt,
        extra={"per_article": 30, "context": 48, "doubtful": "compared"},
    )  # fmt: skip
    units = list(made.units())
    seen: list[str] = []
    honest = lm.generate_each
    made.lm.generate_each = lambda prompts, how, **options: (
        seen.extend(each.prompt for each in prompts) or honest(prompts, how, **options)
    )
    rows = [row for examples in made.examples(lm, units) for row in examples.rows]
    text, whole = " ".join(sentences), {unit.id: unit.before for unit in units}
    assert rows and all(prompt.startswith("About T: ") for prompt in seen)
    for row in rows:
        assert f"About T: {row['question']}" in seen and whole[row["span"]].endswith(row["question"])
        assert len(lm.tokenizer(row["question"])["input_ids"]) <= 49  # its first word has no space before it
        assert text[: row["cut_at"]].rstrip().endswith(row["question"])
    assert any(len(row["question"]) < len(whole[row["span"]]) for row in rows)


def test_labels_follow_knowledge_and_the_worlds_truth(testbed):
    rows = testbed.table()
    faithful = rows[rows["knowledge"] != ""].groupby("knowledge")["correct"].mean()
    assert faithful["known"] > 0.7 and faithful["unknown"] < 0.3
    same = rows["answer"].str.casefold() == rows["gold"].str.casefold()
    assert (same == (rows["correct"] == 1)).mean() >= 0.98
    decided = len(rows) + sum(record["reason"] == "undecided" for record in testbed.left_out())
    assert len(rows) / decided > 0.95
    assert (rows.groupby("group")["split"].nunique() == 1).all()
    assert testbed.summary["hallucinated"] == pytest.approx(1 - rows["correct"].mean(), abs=1e-6)


def test_untouched_articles_stand_beside_every_hallucination(tmp_path):
    typed = ["limit=40", "negatives=untouched", "layers=[12]", "shard_size=32"]
    store, lm = generated(tmp_path / "store", *typed), CausalLM.from_pretrained("testbed")
    rows = store.table()
    assert (rows["correct"] == (rows["condition"] == "untouched")).all()
    read = rows[rows["condition"] == "untouched"]
    assert sorted(read["id"]) == sorted(f"{i}/untouched" for i in rows[rows["correct"] == 0]["id"])
    assert (read["answer"] == read["gold"]).all() and set(read["match_stage"]) == {"untouched"}
    assert {record["reason"].partition(":")[0] for record in store.left_out()} >= {"faithful"}
    for number, row in list(read.iterrows())[:5]:
        (seen,) = lm.score([row["question"]], [row["text"]], needs=Needs.of((12,), pool="tokens"))
        start, end = row["entity_start"], row["entity_end"]
        tokens = [i for i, (a, b) in enumerate(seen.offsets) if a < end and b > start]
        ours = store.layer(12)[number].astype(np.float32)
        np.testing.assert_allclose(ours, seen.state[tokens, 0].mean(axis=0), rtol=0.02, atol=0.02)


def test_a_page_that_was_withheld_is_read_in_the_next_run_and_nothing_is_made_twice(tmp_path):
    articles = [(f"T{i}", ARTICLE) for i in range(6)]
    make(tmp_path, articles[:2] + articles[3:], written(ANSWERS), name="late")
    store, _ = make(tmp_path, articles, again := written(ANSWERS), name="late")
    ids = [*store.table()["id"], *(record["id"] for record in store.left_out())]
    assert len(ids) == len(set(ids)) == 12 and len(again.prompts) == 2


def labelled(tmp_path, counts, *, tokens=1, name="b"):
    """A store with so many (split, condition, correct) spans of ``tokens`` rows, in random order."""
    spans = [kind for kind, n in counts.items() for _ in range(n)]
    random.Random(0).shuffle(spans)
    rows = [
        {"id": f"{i}#{t}" if tokens > 1 else str(i), "group": str(i), "span": str(i), "split": split,
         "condition": condition, "correct": correct}
        for i, (split, condition, correct) in enumerate(spans)
        for t in range(tokens)
    ]  # fmt: skip
    store = empty(tmp_path / name)
    for start in range(0, len(rows), 8):
        part = rows[start : start + 8]
        states = np.array([[[float(row["id"].partition("#")[0])] * 4] for row in part], dtype=np.float32)
        store.write_shard(start // 8, part, states, units=sorted({r["group"] for r in part}))
    return store


def shares(store):
    rows = store.table()
    return {k: int(v) for k, v in rows.groupby(["split", "condition", "correct"]).size().items()}


@pytest.mark.parametrize("tokens", [1, 2])
def test_balancing_draws_the_more_frequent_label_down(tmp_path, tokens):
    counts = {("train", "a", 0): 21, ("train", "a", 1): 9, ("test", "a", 0): 4, ("test", "a", 1): 7}
    store = labelled(tmp_path, counts, tokens=tokens)
    assert balance(store, by=("split",), seed=0) == []
    assert shares(store) == {
        ("train", "a", 0): 9 * tokens, ("train", "a", 1): 9 * tokens,
        ("test", "a", 0): 4 * tokens, ("test", "a", 1): 4 * tokens,
    }  # fmt: skip
    rows = store.table()
    np.testing.assert_array_equal(store.layer(2)[:, 0], rows["group"].astype(float))
    assert len(list(store.left_out())) == 15 and len(store.units) == 41
    before = contents(store.path)
    balance(store, by=("split",), seed=0)
    assert contents(store.path) == before
    other = labelled(tmp_path, counts, tokens=tokens, name="c")
    balance(other, by=("split",), seed=1)
    assert set(other.table()["id"]) != set(rows["id"])


def test_a_number_sign_in_an_id_is_no_token(tmp_path):
    """Articles are called "C#" too: their spans are balanced one by one."""
    about = {"group": "C#", "split": "train", "condition": "a"}
    store = empty(tmp_path / "s")
    rows = [about | {"id": f"C#/{i}", "correct": int(i < 3)} for i in range(10)]
    store.write_shard(0, rows, np.zeros((10, 1, 4), dtype=np.float32))
    balance(store, by=("split",), seed=0)
    assert shares(store) == {("train", "a", 0): 3, ("train", "a", 1): 3}


def test_a_balanced_run_killed_in_between_ends_the_same(tmp_path):
    counts = {("train", "a", 0): 21, ("train", "a", 1): 9}
    whole = labelled(tmp_path, counts, name="whole")
    balance(whole, by=("split",), seed=0)
    for n_killed in range(3):
        store = labelled(tmp_path, counts, name=f"k{n_killed}")
        with interrupted(FeatureStore, "write_shard", n_killed):
            balance(store, by=("split",), seed=0)
        balance(store, by=("split",), seed=0)
        assert contents(store.path) == contents(whole.path)


@pytest.mark.parametrize("has", [False, True])
def test_vectors_are_trained_once_on_articles_of_ones_own(tmp_path, has):
    """In the run's folder, by default from 200 articles on, where they decide what no other stage did."""
    articles = load_articles()[: 150 if has else 30]
    rows = [{"title": a.title, "text": " ".join(a.sentences)} for a in articles]
    file, vectors = write_lines(tmp_path / "articles.jsonl", rows), tmp_path / "s/vectors.bin"
    typed = ["layers=[12]", "per_article=1", f"articles={file}", "limit=null", "matcher.wordnet=''"]
    store = generated(tmp_path / "s", *typed, *["matcher.vectors=own"] * has)
    assert ("vectors" in store.summary["matcher_stages"]) == has == vectors.is_file()
    stages = {record["stage"] for record in store.left_out() if record["reason"] == "undecided"}
    assert ("vectors" in stages | set(store.table()["match_stage"])) == has
    if has:
        made = vectors.read_bytes()
        train_vectors(iter(()), vectors, seed=0)  # a resumed run keeps them
        assert vectors.read_bytes() == made
