"""What vLLM's worker keeps of a text is what our own engine records, in whatever pieces it is computed."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import PROMPTS, tiny_lm

from probers.cli import main as cli
from probers.model.vllm.records import TextRecord
from probers.types import Feature, Needs

DEPTH = 3


@pytest.fixture(scope="module")
def text() -> tuple[Any, Any, torch.Tensor]:
    """A model, a text it wrote, and the states (places, layers, d) that vLLM would have of it."""
    lm = tiny_lm(dtype="float32")
    made = lm.generate(PROMPTS[:1], max_new_tokens=9)[0]
    last = Feature((DEPTH,), pool="mind_tokens")
    every = Feature(tuple(range(DEPTH + 1)), pool="positions")
    needs = Needs((every, last))
    read = lm.score([made.prompt], [made.token_ids], needs=needs)[0]
    normed = read.states[last][:, 0, lm.width :]  # of the tokens alone; nothing reads it before them
    states = np.concatenate([read.states[every], np.concatenate([normed[:1], normed])[:, None]], axis=1)
    return lm, made, torch.from_numpy(states)


@pytest.mark.parametrize(("pool", "layers"), [
    ("predicting", (0, 2)), ("tokens", (1, 3)), ("positions", (0, 1, 2, 3)), ("mean", (2,)), ("last", (3, 1)),
    ("prompt", (0, 2)), ("mind", (DEPTH,)), ("mind_tokens", (DEPTH,)),
])  # fmt: skip
@pytest.mark.parametrize("indices", [1, 6, 9])
def test_states_of_every_pool_as_places_come(text, pool, layers, indices):
    lm, made, states = text
    needs = Needs((Feature(layers, pool=pool), Feature((1,), pool="last" if pool != "last" else "mean")))
    rng, record = random.Random(indices), TextRecord(needs, 5)
    while record.count < indices + 1:
        count = min(rng.randint(1, 3), len(states) - record.count)
        new = states[record.count : record.count + count]
        record.add({layers: new[:, list(layers)] for layers in record.layers}, count)
        record.commit(min(indices, record.count - 2))
    want = lm.score([made.prompt], [made.token_ids[:indices]], needs=needs)[0]
    recorded = record.recorded(indices)
    assert recorded.broken is None and recorded.scores.shape == (4, 0)
    assert [*recorded.states] == [*want.states] == [*needs.features]
    for feature, have in recorded.states.items():
        np.testing.assert_allclose(have, want.states[feature], rtol=1e-5, atol=1e-5)


def test_a_text_without_a_token_has_the_state_before_it_alone() -> None:
    needs = Needs((Feature((1, 2), pool="prompt"), Feature((1, 2), pool="positions"), Feature((1, 2))))
    record = TextRecord(needs, 0)
    record.add({(1, 2): torch.arange(32.0).view(2, 2, 8)}, 2)
    states = record.recorded(0).states
    assert [*states] == [needs.features[0]]
    np.testing.assert_array_equal(states[needs.features[0]], np.arange(16.0).reshape(2, 8))


def test_the_first_broken_state_is_named_by_token_and_layer() -> None:
    needs = Needs.of((1, 2), pool="positions")
    states = torch.ones(4, 2, 8)
    states[3, 1, 4] = float("nan")
    record = TextRecord(needs, 0)
    record.add({(1, 2): states}, 4)
    assert record.recorded(3).broken == (*needs.features, 2, 1)
    record = TextRecord(needs, 0)
    record.add({(1, 2): states}, 4)
    assert record.recorded(2).broken is None  # it is no part of the text


def test_without_vllm_the_extra_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("probers.options.find_spec", lambda name: None)
    with fails("missing-extra", "engine=vllm", 'pip install "probers[vllm]"'):
        cli.run("datagen", ["engine=vllm", f"out={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()
