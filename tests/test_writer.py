"""A killed run makes one shard again and ends with the same data; several features are each as if alone."""

from functools import partial
from zlib import crc32

import numpy as np
import pytest
from helpers.artefacts import contents, write_lines
from helpers.fake_lm import SPEC, FakeLM, FakeRetriever, begun, passage

from probers import FeatureStore
from probers.datagen import Articles, Questions
from probers.datagen.writer import balance, fill
from probers.prompts import PromptTemplate
from probers.store.spec import FeatureSpec
from probers.types import Feature, Needs

TEXTS = (" Spain, a country.", " Lisbon, a city.", " Anna.", " a long time ago it was so.")
ARTICLE = "It lies in Spain today. It is near Madrid today. It was led by Anna Berg then."


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
        states = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(0.5)
        of_pool = {"positions": states, "predicting": states[:-1], "tokens": states[1:]}
        return of_pool.get(feature.pool, states[-1])


def wiki(tmp_path, lm, pool="mean", more=(), size=7):
    texts = {f"T{i}": f"{ARTICLE} It has {i} gates.".split(". ") for i in range(11)}
    articles = [{"title": title, "sentences": text} for title, text in texts.items()]
    source = Articles(write_lines(tmp_path / "articles.jsonl", articles), within=None, context=None)
    needs = Needs((Feature((2,), pool=pool), *more), attention=True)
    prompt = PromptTemplate("radio", article="About {title}:")
    return begun(source, lm, needs, prompt=prompt, max_new_tokens=24, shard_size=size)


SITE = Feature((1, 2), "mlp_out", "mean")
several = partial(wiki, pool="predicting", more=(Feature((2,), pool="mean"), SITE))


def cot(tmp_path, lm, more=(), size=7):
    questions = [{"id": f"q{i}", "question": f"Where is {i} ?", "answers": ["Spain"]} for i in range(11)]
    file = write_lines(tmp_path / "questions.jsonl", questions)
    retriever = FakeRetriever(lambda query: [passage(f"All about {query}")])
    source = Questions(file, retriever=retriever, label="acc", acc="substring")
    return begun(source, lm, Needs((Feature((2,)), *more), attention=True), shard_size=size, limit=None)


cot_several = partial(cot, more=(SITE, Feature((2,), pool="last")))


def filled(tmp_path, name, make, lm, *, balanced=False):
    source = make(tmp_path, lm)
    specs = [FeatureSpec(SPEC, f.layers, 4, site=f.site, pool=f.pool) for f in source.needs.features]
    store = FeatureStore.create(tmp_path / name, specs, config={})
    fill(store, source, partial(source.examples, lm))
    if balanced:
        balance(store, by=("split",), seed=0)
    store.finish({})
    return store


@pytest.mark.parametrize("make", [wiki, several, cot_several])
def test_a_run_killed_between_two_batches_makes_its_shard_again_and_nothing_else(tmp_path, make):
    undisturbed = Scripted()
    whole = filled(tmp_path, "whole", make, undisturbed)
    requests = []
    for dies_at in (1, 5, None):
        lm = Scripted(dies_at)
        try:
            filled(tmp_path, "killed", make, lm)
        except Killed:
            assert dies_at is not None
        requests += lm.prompts
    assert contents(tmp_path / "killed") == contents(whole.path)
    shard = 14 if make is cot_several else 7
    assert set(requests) == set(undisturbed.prompts)
    assert 0 < len(requests) - len(undisturbed.prompts) <= 2 * shard


@pytest.mark.parametrize("make", [several, cot_several])
def test_of_several_features_each_is_what_it_is_alone(tmp_path, make):
    whole = filled(tmp_path, "whole", make, Scripted())
    for spec in whole.features:

        def one(path, lm, spec=spec):
            source = make(path, lm)
            source.keep(needs=Needs.of(spec.layers, spec.site, spec.pool, attention=True))
            return source

        alone = filled(tmp_path, f"{spec.pool}-{spec.site}", one, Scripted())
        read = whole.feature(pool=spec.pool, site=spec.site)
        assert read.spec == alone.spec and read.table().equals(alone.table())
        np.testing.assert_array_equal(read.states(spec.layers), alone.states(spec.layers))
    # Balancing drops the rows of every feature.
    store, after = (filled(tmp_path, f"b{b}", make, Scripted(), balanced=b) for b in (False, True))
    rows = store.table()["id"].isin(after.table()["id"]).to_numpy()
    assert 0 < rows.sum() == len(after) < len(store)
    for spec in store.features:
        one, other = (s.feature(pool=spec.pool, site=spec.site).states(spec.layers) for s in (store, after))
        np.testing.assert_array_equal(other, one[rows])  # type: ignore[valid-type]
