"""--source texts: labels of others become a store, equal to plain transformers; training on every token."""

import json
import random

import numpy as np
import pytest
import torch
from helpers.artefacts import read_lines, write_lines
from helpers.refusals import fails
from transformers import AutoModelForCausalLM, AutoTokenizer

from probers import FeatureStore
from probers.cli import main as cli
from probers.data.texts import TextSource
from probers.prompts import AS_GIVEN
from probers.testbed.assets import load_articles, model_path

BATCH = ["batch_size=8", "shard_size=8", "layers=[6,12]"]


def lines(count=24, seed=0):
    """Articles of the testbed with every second name of a sentence marked, and both kinds of claims."""
    draw = random.Random(seed)
    records = []
    for number, article in enumerate(load_articles()[:count]):
        answer = " ".join(article.sentences[:3])
        words = [(i, w) for i, w in enumerate(answer.split()) if len(w) > 3]
        spans = []
        for _, word in draw.sample(words, min(4, len(words))):
            word = word.strip(".,")
            if answer.count(word) == 1:
                spans.append({"text": word, "wrong": draw.random() < 0.5})
        ends = [answer.index(s) for s in article.sentences[:2]]
        claims = [{"ranges": [[ends[0], ends[0] + 5], [ends[1], ends[1] + 7]], "wrong": number % 2 == 0}]
        records.append(
            {"id": str(number), "prompt": f"About {article.title}:\n", "answer": answer, "spans": spans,
             "claims": claims, "group": article.id, "writer": f"w{number % 2}"}
        )  # fmt: skip
    return records


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("texts") / "texts.jsonl", lines())


def store_of(file, out, *typed):
    typed = ["--source", "texts", f"texts={file}", f"out={out}", *BATCH, *typed]
    return FeatureStore.open(cli.run("datagen", typed))


@pytest.fixture(scope="module")
def reader():
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)

    def read(prompt, answer):
        """States (n, d) of layer 6 and characters of the answer's tokens, by plain transformers."""
        first = tokenizer.bos_token_id or tokenizer.eos_token_id
        before = tokenizer(prompt)["input_ids"] if prompt else [first]
        after = tokenizer(answer, return_offsets_mapping=True, add_special_tokens=False)
        ids = torch.tensor([before + after["input_ids"]])
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states[6][0, len(before) :]
        return states.numpy(), after["offset_mapping"]

    return read


@pytest.mark.parametrize("unit", ["answer", "sentence", "span", "claim"])
def test_pooled_units_equal_plain_forward_passes(unit, file, tmp_path, reader):
    store = store_of(file, tmp_path / "s", f"unit={unit}")
    texts = {t.id: t for t in TextSource(file).labelled(unit)}
    rows = store.table()
    wanted = [(t, m) for t in texts.values() for m in t.units(unit) if m.wrong is not None]
    assert len(rows) == len(wanted) and set(rows["split"]) == {"train", "validation", "test"}
    assert rows["correct"].tolist() == [int(not mark.wrong) for _, mark in wanted]
    assert (rows["group"] == [text.group for text, _ in wanted]).all()
    for place in (0, len(rows) // 2, len(rows) - 1):
        text, mark = wanted[place]
        states, offsets = reader(text.prompt, text.answer)
        tokens = [i for i, (a, b) in enumerate(offsets) if any(a < e and b > s for s, e in mark.ranges)]
        assert rows["n_tokens"].iloc[place] == len(tokens)
        np.testing.assert_allclose(store.layer(6)[place], states[tokens].mean(axis=0), rtol=0.02, atol=0.02)


def test_every_token_is_stored_with_its_own_label(file, tmp_path, reader):
    store = store_of(file, tmp_path / "s", "pool=tokens")
    rows = store.table()
    text = next(t for t in TextSource(file).all() if any(m.wrong for m in t.spans))
    tokens = rows[rows["span"] == f"texts/{text.id}"]
    states, offsets = reader(text.prompt, text.answer)
    np.testing.assert_allclose(store.layer(6)[tokens.index], states, rtol=0.02, atol=0.02)
    for (start, end), wrong, inside in zip(offsets, tokens["token_wrong"], tokens["inside"], strict=True):
        marks = [m for m in text.spans if m.start < end and m.end > start]
        assert (inside == 1) == bool(marks) and wrong == (marks[0].wrong if marks else 0)
    with fails("conflict", "unit=sentence"):
        store_of(file, tmp_path / "t", "pool=tokens", "unit=sentence")
    with fails("conflict", "balance"):
        store_of(file, tmp_path / "t", "pool=tokens", "balance=true")


def test_long_answers_are_cut_and_those_without_a_prompt_are_read(tmp_path, reader):
    plain = [{k: v for k, v in line.items() if k not in ("prompt", "claims")} for line in lines()]
    plain = [line for line in plain if line["spans"]]
    file = write_lines(tmp_path / "plain.jsonl", plain)
    whole = store_of(file, tmp_path / "a", "unit=sentence")
    states, offsets = reader("", plain[0]["answer"])
    first = whole.table().iloc[0]
    start, end = first["cut_at"], first["cut_at"] + len(first["answer"])
    tokens = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    assert first["id"].startswith("plain/0/")
    np.testing.assert_allclose(whole.layer(6)[0], states[tokens].mean(axis=0), rtol=0.02, atol=0.02)
    cut = store_of(file, tmp_path / "b", "unit=sentence", "max_tokens=20")
    assert 0 < len(cut) < len(whole)
    assert {record["reason"] for record in cut.left_out()} == {"beyond max_tokens"}
    endless = {"answer": plain[0]["answer"] * 120, "wrong": True}
    long = write_lines(tmp_path / "long.jsonl", [*({**line, "wrong": False} for line in plain), endless])
    left = store_of(long, tmp_path / "c", "unit=answer").left_out()
    assert [record["reason"].partition(":")[0] for record in left] == ["too long"]


def test_the_store_names_the_form_of_prompts_that_was_rendered(tmp_path, caplog):
    """Two requests with the same states have the same form. Converse: passages are shown by the template."""
    given = [{"answer": f" Ann {i}.", "prompt": f"Who is {i}?", "wrong": i % 2} for i in range(12)]
    shown = [line | {"passages": ["Ann is one."]} for line in given]
    specs = {}
    for name, lines_ in (("given", given), ("shown", shown)):
        file = write_lines(tmp_path / f"{name}.jsonl", lines_)
        for prompt in ("auto", "dragin"):
            store = store_of(file, tmp_path / f"{name}.{prompt}", f"prompt={prompt}", "layers=[6]")
            specs[name, prompt] = store.spec.prompt, store.layer(6)[:].astype(float)
        assert ("prompt=dragin is not used" in caplog.text) == (name == "given")
        caplog.clear()
    assert specs["given", "auto"][0] == specs["given", "dragin"][0] == AS_GIVEN
    np.testing.assert_array_equal(specs["given", "auto"][1], specs["given", "dragin"][1])
    assert specs["shown", "auto"][0] != specs["shown", "dragin"][0]
    assert np.abs(specs["shown", "auto"][1] - specs["shown", "dragin"][1]).max() > 0.1


def test_a_source_of_ones_own_is_named_by_its_path(file, tmp_path):
    store = store_of(file, tmp_path / "s", "source=probers.datagen.labels.texts.Texts", "unit=sentence")
    assert len(store) and store.config["source"].endswith(".Texts")
    for path in ("probers.data.texts.TextSource", "nowhere.At.All"):
        with fails("own-class", path):
            store_of(file, tmp_path / "t", f"source={path}")


def trained(folder):
    """The prober of the folder's store, which is no trigger of answers."""
    how = ["head=linear", "resamples=100", "learning_curve=false", "layer=[12]", "split=[0.4,0.3,0.3]"]
    return cli.run("train", [f"data={folder / 's'}", f"out={folder / 'p'}", *how])


def test_the_command_goes_from_texts_to_scores(file, tmp_path, caplog):
    """Sentences: store, prober, and scores of the same file, in which seen texts are counted apart."""
    store = store_of(file, tmp_path / "s", "unit=sentence", "texts.outside=right")
    assert "w0" in set(store.table()["writer"]) and store.spec.position == "sentence"
    prober = trained(tmp_path)
    assert caplog.messages[-1] == f"next: probers-score FILE prober={prober}"
    card = (prober / "README.md").read_text()
    assert "probers-score FILE" in card and "probers-rag" not in card
    typed = [f"texts={file}", "texts.outside=right", f"prober={prober}", f"out={tmp_path / 'o'}"]
    results = json.loads((cli.run("score", typed) / "results.json").read_text())
    assert results["seen"]["train"] and results["pieces"]["n"]
    assert results["labelled"]["n"] == results["n"] - results["seen"]["train"] - results["seen"]["validation"]


def test_a_prober_of_labelled_tokens_judges_sentences(file, tmp_path):
    """Tokens that are no entity count too: each sentence has the score of its highest token."""
    store_of(file, tmp_path / "s", "pool=tokens")
    out = cli.run("score", [f"texts={file}", f"prober={trained(tmp_path)}", f"out={tmp_path / 'o'}"])
    scored = read_lines(out / "scores.jsonl")[0]["hallucination"]
    tokens = [*zip(scored["token_scores"], scored["token_offsets"], strict=True)]
    for span in scored["spans"]:
        inside = [score for score, (a, b) in tokens if a < span["end"] and b > span["start"]]
        assert span["score"] == pytest.approx(max(inside))
    assert len(scored["spans"]) > 1 and scored["score"] == max(span["score"] for span in scored["spans"])
