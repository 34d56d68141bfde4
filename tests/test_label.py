"""The verb `label`: each source's store equals the command's, is resumed in `out`, and goes without one."""

import gc
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import in_layout, read_lines, write_lines
from helpers.refusals import fails, interrupted

from probers import RAG, CausalLM, FeatureStore
from probers.cli import main as cli
from probers.datagen import Articles, Prompts, Questions, Texts, label
from probers.datagen.settings import Options

TOWNS = ["Hull", "e"] * 6
PASSAGES = ["Hull is a town in Spain.", "The letter e is old."]
SENTENCES = ["It lies in Spain today.", "It was led by Anna Berg then.", "It fell in 1950."]


@pytest.fixture(scope="module")
def lm():
    return CausalLM.from_pretrained("testbed", batch_size=8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files of questions, passages, articles and labelled texts."""
    folder = tmp_path_factory.mktemp("files")
    spans = [{"start": 11, "end": 16, "wrong": True}], [{"start": 11, "end": 16, "wrong": False}]
    lines = {
        "questions": [
            {"id": f"q{i}", "question": f"Where is q{i} ?", "answers": [town]} for i, town in enumerate(TOWNS)
        ],
        "corpus": [{"id": str(i), "title": "", "text": text} for i, text in enumerate(PASSAGES, 1)],
        "articles": [
            {"title": f"Town {i}", "sentences": [*SENTENCES, f"It has {i} gates."]} for i in range(12)
        ],
        "texts": [
            {"id": str(i), "group": str(i), "answer": f"It lies in Spain. It has {i}.", "spans": spans[i % 2]}
            for i in range(8)
        ],
    }
    return {name: write_lines(folder / f"{name}.jsonl", each) for name, each in lines.items()}


def made(name, files):
    """A source, the options of the verb, and the words of the command."""
    questions, corpus, articles, texts = files.values()
    both = ["predicting", "mean"]
    return {
        "cot": (
            Questions(questions, passages=PASSAGES, k=1), {},
            [f"questions={questions}", f"corpus={corpus}", "k=1"],
        ),
        "wiki": (
            Articles(articles, per_article=3, negatives="untouched"), {"pool": both, "balance": True},
            [f"articles={articles}", "per_article=3", "negatives=untouched", "pool=[predicting,mean]",
             "balance=true"],
        ),
        "texts": (Texts(texts, unit="span"), {}, [f"texts={texts}", "unit=span"]),
        "judged": (
            Prompts(judge="article"), {"limit": 10, "max_new_tokens": 40}, ["limit=10", "max_new_tokens=40"],
        ),
    }[name]  # fmt: skip


def same(ours, theirs):
    """Tell whether two stores hold the same data: columns, labels and states of every feature."""
    specs = [[(s.pool, s.layers, s.position) for s in store.features] for store in (ours, theirs)]
    assert specs[0] == specs[1]
    for pool, layers, _ in specs[0]:
        one, other = (store.feature(pool=pool).states(layers).astype(float) for store in (ours, theirs))
        np.testing.assert_allclose(one, other, rtol=0.01, atol=0.02)
    columns = ["id", "group", "split", "correct", "text", "answer", "gold", "condition"]
    return ours.table()[columns].equals(theirs.table()[columns])


@pytest.mark.parametrize("name", ["cot", "wiki", "texts", "judged"])
def test_the_store_of_the_verb_is_that_of_the_command(name, lm, files, tmp_path):
    source, options, typed = made(name, files)
    ours = label(lm, source, layers=[6, 12], shard_size=5, **options)
    command = ["layers=[6,12]", "shard_size=5", "batch_size=8", f"out={tmp_path / 'c'}", *typed]
    theirs = FeatureStore.open(cli.run("datagen", ["--source", name, *command]))
    assert len(ours) and same(ours, theirs)
    folder = ours.path
    del ours
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["cot", "wiki", "texts", "judged"])
def test_a_store_with_out_is_kept_resumed_and_refused_to_another_run(name, lm, files, tmp_path):
    source, options, _ = made(name, files)
    options |= {"layers": 6, "shard_size": 3}
    whole, out = label(lm, source, **options), tmp_path / "kept"
    with interrupted(FeatureStore, "write_shard", 1):
        label(lm, source, out=out, **options)
    (shard,) = out.glob("shards/*.json")
    first = shard.stat().st_mtime_ns
    store = label(lm, source, out=out, **options)
    assert same(store, whole) and ("balance" in options or shard.stat().st_mtime_ns == first)
    with fails("out-taken", "layers: 6 there, 12 now"):
        label(lm, source, out=out, **options | {"layers": 12})
    if name == "cot":
        with fails("out-taken", "passages"):
            label(lm, replace(source, passages=PASSAGES[:1]), out=out, **options)


ROWS = {
    "list": list, "frame": pd.DataFrame, "dataset": datasets.Dataset.from_list, "generator": iter,
    "columns": lambda rows: {name: [row[name] for row in rows] for name in rows[0]},
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_sources_take_the_same_rows_as_files(kind, files, tmp_path):
    """Questions, articles and prompts; a file is a table too. What is read is part of a run's identity."""
    questions, articles = read_lines(files["questions"]), read_lines(files["articles"])
    options = Options()
    given, file = Questions(ROWS[kind](questions)), Questions(str(files["questions"]))
    for source in (given, file):
        source.plan(options)
    chosen = [[(q.id, q.answers, q.split) for q in source.chosen.questions] for source in (given, file)]
    assert chosen[0] == chosen[1]
    topics = [{"prompt": f"Tell of {row['title']}.", "title": row["title"]} for row in articles]
    read = [
        Prompts(ROWS[kind](topics), articles=ROWS[kind](articles)),
        Prompts(str(in_layout(topics, tmp_path / "p", "csv")), articles=str(files["articles"])),
        Prompts(str(in_layout(topics, tmp_path / "p", "parquet")),
                articles=str(in_layout(articles, tmp_path / "a", "parquet"))),
    ]  # fmt: skip
    for source in read:
        source.plan(options)
    assert [source.topics for source in read[1:]] == [read[0].topics] * 2 and read[0].topics[0].reference
    records = [Articles(ROWS[kind](rows)).plan(options).record for rows in (articles, articles[1:])]
    assert records[0]["articles_read"] != records[1]["articles_read"]


def test_texts_alone_are_rows_where_that_makes_sense():
    prompts = Prompts(["Who was it?", "What is it?"], judge="hand")
    prompts.plan(Options())
    assert [topic.prompt for topic in prompts.topics] == ["Who was it?", "What is it?"]
    with fails("labels", "question 1"):
        Questions(["Who?"]).plan(Options())
    with fails("bad-value", "title"):
        Articles(["It is old. It is big."]).plan(Options())


@pytest.mark.parametrize(("make", "code", "named"), [
    (lambda: Texts([], prompt="q"), "unknown-key", "columns={'prompt': 'q'}"),  # type: ignore[call-arg]
    (lambda: Questions([], quesions=1), "unknown-key", "questions"),  # type: ignore[call-arg]
    (lambda: label(None, Texts([]), max_new_token=1), "unknown-key", "max_new_tokens"),
    (lambda: label(None, Texts([]), max_new_tokens=1), "conflict", "max_new_tokens"),
    (lambda: label(None, Articles([]), per_article=3), "unknown-key", "per_article"),
    (lambda: label(None, Articles([]), limit={"train": 3}), "conflict", "limit="),
    (lambda: RAG(None, ["a"], "never"), "bad-value", "CausalLM"),
    (lambda: RAG(None, [], "never", querry=1), "unknown-key", "query"),  # type: ignore[call-arg]
])  # fmt: skip
def test_misspelt_and_foreign_options_are_refused_by_name(make, code, named):
    with fails(code, named):
        make()
