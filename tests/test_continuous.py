"""Texts that join and leave a running batch are those that each would be alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, tiny_lm
from torch import Tensor

from probers.model.causal_lm import CausalLM
from probers.model.decode import Request
from probers.model.kv_cache import BlockCache
from probers.model.language_model import Sampling
from probers.model.tokens import encode_prompts
from probers.serve.continuous import ContinuousBatch, LiveText
from probers.types import Feature, Needs

LIMITS = (9, 14, 6, 11, 12)


class Recorded:
    """Keeps the states of each text, as a server's scorer is told of them."""

    def __init__(self) -> None:
        self.states: dict[int, list[Tensor]] = {}

    def __call__(self, texts: Sequence[LiveText], states: Tensor) -> None:
        for text, row in zip(texts, states, strict=True):
            self.states.setdefault(id(text), []).append(row)

    def of(self, text: LiveText) -> np.ndarray:
        return torch.stack(self.states[id(text)]).numpy()


def asked(lm: CausalLM, prompts: Sequence[str], limits: Sequence[int], **options: object) -> list[LiveText]:
    stops = lm.stops(options.pop("stop", ()))  # type: ignore[arg-type]
    return [
        LiveText(Request(prompt, limit), lm.tokenizer, stops, **options)  # type: ignore[arg-type]
        for prompt, limit in zip(encode_prompts(lm.tokenizer, prompts), limits, strict=True)
    ]


def as_alone(lm: CausalLM, texts: Sequence[LiveText], **options: Any) -> bool:
    """Whether the texts are those of :meth:`CausalLM.generate`."""
    prompts, limits = [t.request.prompt.text for t in texts], [t.request.limit for t in texts]
    alone = lm.generate(prompts, max_new_tokens=limits, **options)
    return [tuple(text.row.ids) for text in texts] == [made.token_ids for made in alone]


def drain(batch: ContinuousBatch) -> None:
    while batch.running or batch.waiting:
        batch.step()


def run(batch: ContinuousBatch, texts: Sequence[LiveText]) -> None:
    """Add a text every second step until all are over."""
    left, steps = list(texts), 0
    with batch:
        while left or batch.running or batch.waiting:
            if left and steps % 2 == 0:
                batch.add([left.pop(0)])
            batch.step()
            steps += 1
            assert steps < 1000


@pytest.mark.parametrize(("family", "pool"), [*((f, "tokens") for f in FAMILIES), ("llama", "predicting")])
def test_texts_that_join_are_those_of_a_batch(family: str, pool: Any) -> None:
    """States before tokens begin with the prompt's last."""
    lm = tiny_lm(family)
    needs = Needs.of((1, 2), pool=pool)
    alone = lm.generate(PROMPTS, max_new_tokens=LIMITS, needs=needs)
    recorded = Recorded()
    texts = asked(lm, PROMPTS, LIMITS)
    blocks = BlockCache(megabytes=1, size=4)
    batch = ContinuousBatch(lm, Feature((1, 2), pool=pool), recorded, rows=3, piece=8, blocks=blocks)
    run(batch, texts)
    for text, row in zip(texts, alone, strict=True):
        assert text.over and text.error is None
        generation = text.generation(lm.tokenizer, needs)
        assert (generation.token_ids, generation.text, generation.stop) == (row.token_ids, row.text, row.stop)
        np.testing.assert_allclose(generation.logprobs, row.logprobs, atol=2e-5)
        np.testing.assert_allclose(generation.entropies, row.entropies, atol=2e-5)
        if row.token_ids:
            states = recorded.of(text)
            assert len(states) == len(row.token_ids) or pool == "predicting"
            np.testing.assert_allclose(states[: len(row.token_ids)], row.state, atol=2e-4, rtol=1e-4)


def test_what_begins_like_an_earlier_text_is_not_read_again() -> None:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    blocks = BlockCache(size=4)
    first, again = asked(lm, ["Question: Who does Lena Zaser work for?\nAnswer:"] * 2, (12, 12))
    batch = ContinuousBatch(lm, rows=2, blocks=blocks)
    run(batch, [first])
    run(batch, [again])
    assert first.cached == 0
    assert again.cached == (len(first.request.prompt.ids) - 1) // 4 * 4 > 0
    assert again.row.ids == first.row.ids
    assert blocks.find((5, 6, 7, 8, 9)) is None


def test_blocks_stay_below_their_size_and_go_by_age() -> None:
    blocks = BlockCache(megabytes=4 * 4 * 2 * 4 * 2 / 1e6, size=4)  # two blocks of (1, 4, 4), twice, float32

    def layers(n: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.rand(1, n, 4), torch.rand(1, n, 4))]

    blocks.keep(range(8), layers(8))
    assert len(blocks) == 2
    blocks_found = blocks.find(range(9))
    assert blocks_found is not None and blocks_found.ids == tuple(range(8))
    blocks.keep(range(50, 54), layers(4))
    assert len(blocks) == 2
    # The second block was used before the first, without which it would be of no use.
    assert (known := blocks.find(range(9))) is not None and known.ids == (0, 1, 2, 3)
    assert blocks.find((9, *range(1, 9))) is None


def test_choices_of_one_prompt_read_it_once_and_draw_apart() -> None:
    lm = tiny_lm("gpt2")
    sampling = Sampling(temperature=1.5, seed=3)
    prompt = encode_prompts(lm.tokenizer, PROMPTS[:1])[0]
    streams = sampling.streams([prompt.ids] * 3)
    stops = lm.stops(())
    texts = [LiveText(Request(prompt, 8, None, s), lm.tokenizer, stops, sampling) for s in streams]
    passes: list[object] = []
    handle = lm.model.register_forward_pre_hook(lambda *_: passes.append(1))
    with ContinuousBatch(lm, rows=4) as batch:
        batch.add(texts)
        drain(batch)
    handle.remove()
    assert as_alone(lm, texts, sampling=sampling)
    assert len({tuple(t.row.ids) for t in texts}) > 1
    assert len(passes) <= 8


def test_prompts_are_read_by_turns_with_what_is_written() -> None:
    lm = tiny_lm("llama")
    first, second = asked(lm, (PROMPTS[0], PROMPTS[2]), (30, 4))
    pieces = -(-len(second.request.prompt.ids) // 8)
    assert pieces > 2
    with ContinuousBatch(lm, rows=2, piece=8) as batch:
        batch.add([first])
        while not first.row.ids:
            assert batch.step() == ([first] if first.row.ids else [])
        assert first.ready == 1  # told before anything else is done
        batch.add([second])
        written = len(first.row.ids)
        while not second.row.ids:
            batch.step()
        # The turn was the first text's own, and it had one after each piece but the last.
        assert len(first.row.ids) - written == pieces
        drain(batch)
    assert as_alone(lm, (first, second))


def test_stops_cut_the_text_and_cancelled_ones_leave() -> None:
    lm = tiny_lm("llama")
    (whole,) = lm.generate(PROMPTS[:1], max_new_tokens=20)
    stop = whole.text[4:6]
    (cut,) = asked(lm, PROMPTS[:1], (20,), stop=(stop,))
    (endless,) = asked(lm, PROMPTS[2:3], (60,))
    (waits,) = asked(lm, PROMPTS[1:2], (5,))
    with ContinuousBatch(lm, rows=1) as batch:
        batch.add([cut])
        while not cut.over:
            batch.step()
        assert cut.text == whole.text[: whole.text.index(stop)] and cut.row.stop == "stop"
        batch.add([endless, waits])
        for _ in range(4):
            batch.step()
        assert not endless.over and (batch.running, batch.waiting) == (1, 1)
        endless.cancelled = waits.cancelled = True
        batch.step()
        assert (batch.running, batch.waiting) == (0, 0)


def test_a_broken_row_goes_and_the_others_stay() -> None:
    lm = tiny_lm("llama")
    good, bad = asked(lm, PROMPTS[:2], (8, 8))

    def spoil(module: object, args: object, output: Tensor) -> Tensor:
        if len(output) == 2:
            output = output.clone()
            output[1] = float("nan")
        return output

    handle = lm.model.get_output_embeddings().register_forward_hook(spoil)
    with ContinuousBatch(lm, rows=2) as batch:
        batch.add([good])
        batch.step()
        batch.add([bad])
        drain(batch)
    handle.remove()
    assert bad.error is not None and "NaN" in str(bad.error)
    assert good.error is None and as_alone(lm, [good])


def test_a_family_with_another_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probers.serve.continuous.can_share", lambda config: False)
    with fails("model", "LlamaForCausalLM"):
        ContinuousBatch(tiny_lm("llama"))
