"""A store's bytes do not depend on when parts of a shard were written; the bar moves with every batch."""

import itertools
from dataclasses import replace
from functools import partial
from typing import ClassVar
from zlib import crc32

import numpy as np
import pytest
import torch
from artefacts import contents, harm, shard_by_shard, write_lines
from fake_lm import SPEC, FakeLM, FakeRetriever, passage

from probers import FeatureStore
from probers.commands import main as cli
from probers.data.articles import open_articles
from probers.data.articles.cuts import CutPlan
from probers.data.questions import Excluded, QuestionSet
from probers.datagen import writer
from probers.datagen.labels.base import balance
from probers.datagen.labels.cot import CotBuilder
from probers.datagen.labels.wiki import WikiBuilder
from probers.datagen.writer import PART, fill, first_example
from probers.engine.batch_size import Batches
from probers.prompts import PromptTemplate
from probers.store.spec import FeatureSpec
from probers.types import Feature, Needs, Question
from probers.words import EntityMatcher, Recogniser

RULES = Recogniser("rules", fine=True, quiet=True)
TEXTS = (" Spain, a country.", " Lisbon, a city.", " Anna.", " a long time ago it was so.")
ARTICLE = "It lies in Spain today. It is near Madrid today. It was led by Anna Berg then."
NEVER, ALWAYS = 0.0, 2 * PART


class Killed(Exception):
    """Stands for a kill: nothing is tidied up."""


class Scripted(FakeLM):
    """Writes one of a few texts, drawn by the prompt, with states that tell the batch; dies at some batch."""

    batch = 3

    def __init__(self, dies_at=None):
        super().__init__(lambda prompt: TEXTS[crc32(prompt.encode()) % len(TEXTS)])
        self.dies_at = dies_at

    def generate(self, prompts, **options):
        if len(self.batches) == self.dies_at:
            raise Killed
        return super().generate(prompts, **options)

    def _states(self, text, feature, n):
        shape = (n + 1, len(feature.layers), 4)  # the position before the first token, and each token
        found = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(0.5)
        of_pool = {"positions": found, "predicting": found[:-1], "tokens": found[1:]}
        return of_pool.get(feature.pool, found[-1])


def wiki(tmp_path, lm, pool="mean", more=()):
    texts = {f"T{i}": f"{ARTICLE} It has {i} gates.".split(". ") for i in range(11)}
    articles = [{"title": title, "sentences": text} for title, text in texts.items()]
    file = write_lines(tmp_path / "articles.jsonl", articles)
    plan = CutPlan(open_articles(file), RULES, per_article=2, within=None, seed=0)
    needs = Needs((Feature((2,), pool=pool), *more), attention=True)
    prompt = PromptTemplate("radio", article="About {title}:")
    return WikiBuilder(lm, plan, needs, EntityMatcher(wordnet=""), RULES, prompt)


SITE = Feature((1, 2), "mlp_out", "mean")
tokens = partial(wiki, pool="tokens")
several = partial(wiki, pool="predicting", more=(Feature((2,), pool="mean"), SITE))


def cot(tmp_path, lm, more=()):
    asked = [Question(f"q{i}", f"Where is {i} ?", ("Spain",), split="train", group=str(i)) for i in range(11)]
    return CotBuilder(
        lm, QuestionSet(asked, Excluded(), {}), FakeRetriever(lambda query: [passage(f"All about {query}")]),
        PromptTemplate("plain"), Needs((Feature((2,)), *more), attention=True), label="acc", acc="substring",
    )  # fmt: skip


cot_several = partial(cot, more=(SITE, Feature((2,), pool="last")))


def filled(tmp_path, name, make, lm, step, *, size=7, balanced=False):
    """A store filled with a clock that goes on by ``step`` whenever it is asked."""
    builder = make(tmp_path, lm)
    specs = [FeatureSpec(SPEC, f.layers, 4, site=f.site, pool=f.pool) for f in builder.needs.features]
    store = FeatureStore.create(tmp_path / name, specs, config={})
    clock = itertools.count(0, step) if step else itertools.repeat(0.0)
    fill(store, builder, shard_size=size, clock=lambda: next(clock))
    if balanced:
        balance(store, by=("split",), seed=0)
    store.finish({})
    return store


MAKERS = pytest.mark.parametrize("make", [wiki, tokens, several, cot, cot_several])


@MAKERS
def test_the_bytes_do_not_depend_on_the_time(tmp_path, make, monkeypatch):
    parts = []
    write = FeatureStore.write_shard

    def watched(self, index, *given, **named):
        parts.append(self.path.name)
        write(self, index, *given, **named)

    monkeypatch.setattr(FeatureStore, "write_shard", watched)
    filled(tmp_path, "whole", make, Scripted(), NEVER)
    assert set(parts) == {"whole"}
    filled(tmp_path, "parted", make, Scripted(), ALWAYS)
    assert parts.count("parts") > 2 * parts.count("parted") > 2  # one for each batch
    assert contents(tmp_path / "whole") == contents(tmp_path / "parted")


@MAKERS
@pytest.mark.parametrize("step", [NEVER, ALWAYS])
def test_a_run_killed_between_two_batches_ends_in_the_same_bytes(tmp_path, make, step):
    whole = filled(tmp_path, "whole", make, Scripted(), NEVER)
    asked = []
    for dies_at in (1, 2, 1, None):
        lm = Scripted(dies_at)
        try:
            filled(tmp_path, "killed", make, lm, step)
        except Killed:
            assert dies_at is not None
        asked += lm.prompts
    assert contents(tmp_path / "killed") == contents(whole.path)
    again = len(asked) - len(set(asked))
    assert again == 0 if step == ALWAYS else again > 0  # what was kept is not made twice


def test_parts_of_another_shard_or_that_are_damaged_are_not_used(tmp_path):
    whole = contents(filled(tmp_path, "whole", wiki, Scripted(), NEVER).path)

    def killed(name):
        with pytest.raises(Killed):
            filled(tmp_path, name, wiki, Scripted(2), ALWAYS)
        return tmp_path / name / "unfinished/parts"

    files = {"manifest.json", "shards/00000.json", "shards/00000.parquet", "shards/00001.safetensors"}
    for number, file in enumerate(sorted(files)):
        harm(killed(f"damaged{number}") / file, "cut")
        filled(tmp_path, f"damaged{number}", wiki, Scripted(), NEVER)
        assert contents(tmp_path / f"damaged{number}") == whole, file
    (killed("half") / "manifest.json").unlink()  # it was being removed
    lm = Scripted()
    filled(tmp_path, "half", wiki, lm, NEVER)
    assert contents(tmp_path / "half") == whole and len(lm.prompts) == 22
    killed("other")
    (tmp_path / "articles.jsonl").unlink()
    store = filled(tmp_path, "other", wiki, Scripted(), NEVER, size=5)  # other work in the shard
    assert sorted(store.table()["id"]) == sorted(FeatureStore.open(tmp_path / "whole").table()["id"])
    assert not (store.path / "unfinished").exists()


@pytest.mark.long
@pytest.mark.parametrize("arguments", [
    ["source=cot"], ["source=cot", "dtype=float32"], ["--source", "wiki", "negatives=untouched"],
    ["--source", "wiki", "negatives=untouched", "pool=[predicting,mean]", "site=[resid_post,mlp_out]"],
])  # fmt: skip
def test_of_the_real_model_too(tmp_path, monkeypatch, arguments):
    """Interrupted after every part and every shard, in batches whose numbers depend on who is in them."""
    arguments = [*arguments, "limit=9", "shard_size=10", "batch_size=4", "layers=[6,12]"]
    cli.run("datagen", [*arguments, f"out={tmp_path}/whole"])
    monkeypatch.setattr(writer, "PART", 0.0)
    assert shard_by_shard(monkeypatch, [*arguments, f"out={tmp_path}/killed"]) > 4
    names = ("shards", "manifest.json")
    whole, killed = (contents(tmp_path / name) for name in ("whole", "killed"))
    chosen = [{k: v for k, v in found.items() if k.startswith(names)} for found in (whole, killed)]
    assert chosen[0] == chosen[1] and set(whole) == set(killed)


class Bar(writer.tqdm):
    """A bar that remembers how it moved."""

    made: ClassVar[list["Bar"]] = []

    def __init__(self, *args, **options):
        self.moves, self.told, self.wrote = [], [], []
        super().__init__(*args, **options | {"disable": False})
        Bar.made.append(self)

    def update(self, n=1):
        self.moves.append(n)
        return super().update(n)

    def set_postfix_str(self, s="", refresh=True):
        self.told.append(s)
        super().set_postfix_str(s, refresh)


@pytest.mark.parametrize("make", [several, cot_several])
def test_of_several_features_each_is_what_it_is_alone(tmp_path, make):
    whole = filled(tmp_path, "whole", make, Scripted(), ALWAYS)
    for spec in whole.features:

        def one(path, lm, spec=spec):
            builder = make(path, lm)
            return replace(builder, needs=Needs.of(spec.layers, spec.site, spec.pool, attention=True))

        alone = filled(tmp_path, f"{spec.pool}-{spec.site}", one, Scripted(), NEVER)
        read = whole.feature(pool=spec.pool, site=spec.site)
        assert read.spec == alone.spec and read.table().equals(alone.table())
        np.testing.assert_array_equal(read.states(spec.layers), alone.states(spec.layers))
    # Balancing drops the rows of every feature.
    store, after = (filled(tmp_path, f"b{b}", make, Scripted(), NEVER, balanced=b) for b in (False, True))
    kept = store.table()["id"].isin(after.table()["id"]).to_numpy()
    assert 0 < kept.sum() == len(after) < len(store)
    for spec in store.features:
        one, other = (s.feature(pool=spec.pool, site=spec.site).states(spec.layers) for s in (store, after))
        np.testing.assert_array_equal(other, one[kept])


@pytest.mark.parametrize("make", [wiki, cot])
def test_the_bar_moves_with_every_batch_and_ends_at_its_total(tmp_path, make, monkeypatch):
    monkeypatch.setattr(Bar, "made", [])
    monkeypatch.setattr(writer, "tqdm", Bar)
    with pytest.raises(Killed):
        filled(tmp_path, "s", make, Scripted(3 if make is cot else 2), ALWAYS)
    store = filled(tmp_path, "s", make, Scripted(), ALWAYS)
    first, second = Bar.made
    assert first.total == second.total == 11
    assert first.initial == 0 < sum(first.moves) == second.initial
    assert second.initial + sum(second.moves) == second.n == 11
    assert all(n >= 0 for n in [*first.moves, *second.moves]) and len(second.told) > 2
    assert "tokens/s" in second.told[-1] and f"{len(store)} labels" not in second.told[-1]  # of this run


def test_the_first_example_is_shown_once_and_steers_no_terminal(tmp_path, capsys):
    lm = FakeLM(lambda prompt: " Spain\x1b[2J\u202e, a\tcountry.")
    lm.batch = 3
    filled(tmp_path, "s", cot, lm, NEVER)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "the first example:",
        "  prompt: Where is 0 ?",
        "  model:  Spain [2J , a country.",
        "  label:  right (no final answer; expected: Spain)",
    ]


@pytest.mark.parametrize(("inside", "told"), [(1, "wrong (b)"), (0, "right (a)"), (-1, "right (a)")])
def test_the_first_example_of_labelled_tokens_is_a_marked_one(inside, told):
    first = {"correct": 0, "answer": "a", "inside": 0, "token_wrong": 0}
    second = {"correct": 0, "answer": "b", "inside": inside, "token_wrong": 1}
    assert first_example([first, second], "wrong")[-1] == f"  label:  {told}"


def test_known_work_leaves_the_other_batches_as_they_are():
    lengths = [5, 9, 7, 3, 8, 6, 4]

    def batches(known):
        each = Batches(2, torch.device("cpu")).each
        return list(map(list, each(lengths, lambda chosen: [(i, *chosen) for i in chosen], known=known)))

    whole = batches(())
    assert [len(batch) for batch in whole] == [2, 2, 2, 1] and whole[0] == [1, 4]
    assert batches({1, 4}) == whole[1:]
    assert batches({2, 5}) == [whole[0], *whole[2:]]
    assert batches(range(7)) == []
