"""generate() and score() agree with each other, with transformers, and with themselves in any batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import CONTEXT, FAMILIES, PROMPTS, forwarded, tiny_lm, tiny_path

import probers.model.causal_lm
import probers.model.forward as forward
from probers.model.causal_lm import CausalLM
from probers.model.loading import fingerprint
from probers.types import Feature, Generation, Needs, RunError

ALL = Needs.of((0, 1, 2, 3), attention=True)
POOLS = Needs(tuple(Feature((0, 1, 2, 3), pool=p) for p in ("mean", "last", "tokens")), attention=True)
CLOSE = {"rtol": 0, "atol": 1e-4}


def recorded(made: Generation) -> list[np.ndarray]:
    attention = [made.attention.rows, made.attention.column_max] if made.attention else []
    return [made.logprobs, made.entropies, *made.states.values(), *attention]


def assert_same(one: Generation, other: Generation) -> None:
    """Everything that was recorded is the same to float tolerance."""
    for name in ("token_ids", "text", "offsets", "prompt_ids"):
        assert getattr(one, name) == getattr(other, name)
    assert [*one.states] == [*other.states] and (one.attention is None) == (other.attention is None)
    for actual, expected in zip(recorded(one), recorded(other), strict=True):
        np.testing.assert_allclose(actual, expected, **CLOSE)


def assert_all_same(ones: Iterable[Generation], others: Iterable[Generation]) -> None:
    for one, other in zip(ones, others, strict=True):
        assert_same(one, other)


def rescored(lm: CausalLM, made: list[Generation]) -> list[Generation]:
    return lm.score([g.prompt for g in made], [g.token_ids for g in made], needs=made[0].needs)


def alone(lm, prompts, **options) -> list[Generation]:
    return [lm.generate([prompt], **options)[0] for prompt in prompts]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_scores_are_those_of_transformers(family):
    lm = tiny_lm(family)
    assert lm.generate(PROMPTS[:1], max_new_tokens=1)[0].top is None  # nobody asked
    for made in lm.generate(PROMPTS, max_new_tokens=12, needs=Needs(top=True)):
        ids = torch.tensor([made.prompt_ids])
        out = lm.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        n, new = len(made.token_ids), out.sequences[0, ids.shape[1] :]
        assert tuple(new[:n].tolist()) == made.token_ids
        logits = torch.stack(out.logits)[:n, 0].double()
        distribution = torch.distributions.Categorical(logits=logits)
        np.testing.assert_allclose(made.entropies, distribution.entropy(), **CLOSE)
        np.testing.assert_allclose(made.logprobs, distribution.log_prob(new[:n]), **CLOSE)
        highest = logits.softmax(-1).sort(dim=-1, descending=True).values[:, :2].T
        np.testing.assert_allclose(made.top, highest, **CLOSE)
        np.testing.assert_allclose(rescored(lm, [made])[0].top, highest, **CLOSE)
        np.testing.assert_allclose(np.exp(made.logprobs), made.top[0], rtol=1e-6)  # it is greedy


def test_a_text_that_ends_early_gets_nothing_from_later_steps(monkeypatch):
    free = tiny_lm().generate(PROMPTS, max_new_tokens=20, needs=ALL)
    eos = free[0].token_ids[5]
    lm = tiny_lm()
    lm.model.generation_config.eos_token_id = [eos, 0]
    made = lm.generate(PROMPTS, max_new_tokens=20, needs=ALL)
    lengths = [g.token_ids.index(eos) if eos in g.token_ids else 20 for g in free]
    assert len(set(lengths)) > 1  # some go on while others have ended
    assert [g.stop for g in made] == ["eos" if n < 20 else "length" for n in lengths]
    for full, cut, n in zip(free, made, lengths, strict=True):
        assert cut.token_ids == full.token_ids[:n]
        assert cut.attention.rows.shape == (n + 1, len(cut.prompt_ids) + n)
    ended = [g for g in made if g.token_ids]
    assert_all_same(ended, rescored(lm, ended))
    passes = forwarded(lm, monkeypatch)
    again = lm.generate(PROMPTS, max_new_tokens=20)
    # Without needs the last token need not be forwarded either.
    expected = sum(len(g.token_ids) - (g.stop == "length") for g in again)
    assert sum(rows for rows, _ in passes[1:]) == expected
    assert all(columns == 1 for _, columns in passes[1:])


@pytest.mark.parametrize("reach", [1, 4, 9])
def test_stop_strings_cut_everything_before_them(reach):
    """Within a token and over several."""
    lm = tiny_lm()
    free = lm.generate(PROMPTS, max_new_tokens=24, needs=POOLS)
    for number, (begin, end) in enumerate(g.offsets[9] for g in free):
        begin += end - begin > 1
        stop = free[number].text[begin : begin + reach]
        made = lm.generate(PROMPTS, max_new_tokens=24, needs=POOLS, stop=["never that", stop])
        for whole, cut in zip(free, made, strict=True):
            place = whole.text.find(stop)
            expected = 24 if place < 0 else sum(end <= place for _, end in whole.offsets)
            assert cut.token_ids == whole.token_ids[:expected]
            assert cut.text == whole.text[: len(cut.text)] and stop not in cut.text
            assert cut.stop == ("length" if place < 0 else "stop")
        written = [g for g in made if g.token_ids]
        assert_all_same(written, rescored(lm, written))


def test_a_callable_sees_the_text_after_each_token_and_keeps_it():
    lm = tiny_lm("qwen2")
    free = lm.generate(PROMPTS[:2], max_new_tokens=16, needs=ALL)
    seen = []

    def stop(text: str) -> bool:
        seen.append(text)
        return text == free[1].text[: free[1].offsets[6][1]]

    cut = lm.generate(PROMPTS[:2], max_new_tokens=16, needs=ALL, stop=[stop])
    assert (cut[0].stop, cut[1].stop) == ("length", "stop")
    assert cut[1].token_ids == free[1].token_ids[:7]
    assert all(g.text[:end] in seen for g in cut for _, end in g.offsets)
    assert_all_same(cut, rescored(lm, cut))


BAD: list[tuple[object, dict[str, object], object, str]] = [
    (["a", ""], {}, "bad-value", "prompt 1"), ("a text", {}, "bad-value", "list"),
    (["a"], {"stop": [""]}, "bad-value", "stop string"), (["a"], {"stop": "x"}, "bad-value", "stop='x'"),
    (["a"], {"needs": Needs.of((4,))}, "layers", "layer 4 does not exist: the model has 3 layers"),
    (["a"], {"needs": Needs.of((1,), site="inside")}, "unknown-choice", "site=inside"),
    (["a"], {"needs": Needs.of((0,), site="mlp_out")}, "layers", "site=mlp_out has no layer 0"),
    (["a"], {"needs": Needs.of((1,), pool="max")}, "unknown-choice", "pool=max"),
    (["a"], {"needs": Needs.of((1,), pool="mind")}, "layers", "layers=(3,)"),
    (["a"], {"needs": Needs(attention=True, attention_layer=4)}, "layers", "layer 4"),
    (["", "a"], {"names": ["q-17", "r"]}, "bad-value", "prompt q-17"),
    (["a", "b"], {"prefix": "a"}, "mismatch", "prompt 1"),
    (["a", "b"], {"max_new_tokens": [3]}, "mismatch", "2 prompts but 1 limits in max_new_tokens"),
    (["a", "b"], {"max_new_tokens": [3, 0]}, "bad-value", "max_new_tokens=0"),
]  # fmt: skip


@pytest.mark.parametrize(("prompts", "options", "code", "named"), BAD)
def test_bad_requests_are_named(prompts, options, code, named):
    with fails(code, named):
        tiny_lm().generate(prompts, **{"max_new_tokens": 4, **options})


def test_bad_continuations_are_named():
    for texts, code, named in (
        (["d"], "mismatch", "2 prompts but 1 continuations"),
        (["d", ""], "bad-value", "continuation of prompt 1"),
        (["d", "日本"], "bad-value", "token ids"),  # the tokenizer has no such characters
    ):
        with fails(code, named):
            tiny_lm().score(["a", "b"], texts)


@pytest.mark.parametrize(("options", "code", "named"), [
    ({"batch_size": 0}, "bad-value", "batch_size=0"), ({"dtype": "int8"}, "bad-value", "dtype=int8"),
    ({"on_too_long": "shrug"}, "unknown-choice", "on_too_long=shrug"),
    ({"quantization": {"quant_method": "nonsense"}}, "unknown-choice", "nonsense"),
    ({"device_map": "sideways"}, "model", "sideways"),
])  # fmt: skip
def test_bad_ways_of_loading_are_named(options, code, named):
    with fails(code, named):
        tiny_lm(**options)


def test_batches_halve_when_memory_runs_out(monkeypatch, caplog):
    lm = tiny_lm()
    expected = [g.token_ids for g in lm.generate(PROMPTS, max_new_tokens=6)]
    work = probers.model.causal_lm.generate_batch

    def scarce(decoder, tokenizer, requests, *how):
        if len(requests) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return work(decoder, tokenizer, requests, *how)

    monkeypatch.setattr(probers.model.causal_lm, "generate_batch", scarce)
    assert [g.token_ids for g in lm.generate(PROMPTS, max_new_tokens=6)] == expected
    assert "batch_size=1" in caplog.text
    with fails("memory", "batch_size=4", kind=RunError):
        tiny_lm(batch_size=4).generate(PROMPTS, max_new_tokens=6)


LONG = "The river Arl flows through the town. " * 40


def test_a_prompt_that_is_too_long_is_named_left_out_or_cut(caplog):
    prompts, names = [PROMPTS[0], LONG, PROMPTS[1]], ["a", "b", "c"]
    lm = tiny_lm()
    with fails("too-long", "prompt b has", f"context of {CONTEXT}", "on_too_long"):
        lm.generate(prompts, max_new_tokens=4, names=names)
    expected = lm.generate([PROMPTS[0], PROMPTS[1]], max_new_tokens=4, needs=ALL)

    lm = tiny_lm(on_too_long="skip")
    generated = lm.generate(prompts, max_new_tokens=4, needs=ALL, names=names)
    assert "tokens: prompt b" in caplog.text
    scored = lm.score(prompts, [g.token_ids for g in (expected[0], *expected)], needs=ALL, names=names)
    for made in (generated, scored):
        assert (made[1].stop, made[1].token_ids, made[1].state, made[1].text) == ("skipped", (), None, "")
        assert_all_same(expected, (made[0], made[2]))

    lm = tiny_lm(on_too_long="truncate_left")
    cut = lm.generate(prompts, max_new_tokens=4, needs=ALL)[1]
    ids = lm.tokenizer(LONG)["input_ids"]
    assert cut.prompt == LONG and len(cut.prompt_ids) == CONTEXT - 4
    assert cut.prompt_ids == (ids[0], *ids[-(CONTEXT - 5) :])  # BOS, and the end of the text
    assert_same(cut, lm.score([LONG], [cut.token_ids], needs=ALL)[0])
    with fails("too-long", f"max_new_tokens={CONTEXT - 1}"):
        lm.generate([LONG], max_new_tokens=CONTEXT - 1)


def test_no_padding_token_is_needed():
    without = tiny_lm()
    without.tokenizer.pad_token = None
    assert_all_same(*(lm.generate(PROMPTS, max_new_tokens=8, needs=ALL) for lm in (tiny_lm(), without)))


NESTED = (PROMPTS[0] + " and so on" * 20, PROMPTS[0] + " and so on" * 10, PROMPTS[0] + " and so", PROMPTS[1])


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gemma2", "opt", "mpt"])
@pytest.mark.parametrize("prompts", [PROMPTS, NESTED], ids=["unlike", "nested"])
def test_without_a_cache_and_in_any_batch_the_same_comes_out(family, prompts):
    needs = Needs((*POOLS.features, Feature((0, 2, 3), pool="predicting")), attention=True)
    lm, bare = tiny_lm(family, batch_size=8), tiny_lm(family, use_cache=False, batch_size=8)
    made = lm.generate(prompts, max_new_tokens=9, needs=needs)
    assert_all_same(made, bare.generate(prompts, max_new_tokens=9, needs=needs))
    assert_all_same(made, rescored(lm, made))
    assert_all_same(made, rescored(bare, made))
    assert_all_same(made, alone(lm, prompts, max_new_tokens=9, needs=needs))


def test_the_fingerprint_tells_models_of_one_shape_and_quantized_ones_apart():
    one, again, other = (tiny_lm(seed=seed) for seed in (0, 0, 1))
    assert one.spec == again.spec and one.spec.revision != other.spec.revision
    revisions = [one.spec.revision]
    for bits in ("load_in_4bit", "load_in_8bit"):
        one.model.config.quantization_config = {"quant_method": "bitsandbytes", bits: True}
        revisions.append(fingerprint(str(tiny_path()), one.model))
    assert len(set(revisions)) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_pieces_give_the_scores_of_whole_ones(family, monkeypatch):
    """Claim: no more positions at once than there is room for."""
    lm = tiny_lm(family, batch_size=8)
    made = lm.generate(PROMPTS, max_new_tokens=12, needs=ALL)
    texts = [g.prompt for g in made], [g.token_ids[: 12 - row] for row, g in enumerate(made)]
    held, scored = [], []
    lm.model.get_output_embeddings().register_forward_hook(lambda *given: held[-1].append(given[2].shape[1]))
    for positions in (1000, 5, 1):
        monkeypatch.setattr(forward, "_PIECE", positions * len(PROMPTS) * int(lm.model.config.vocab_size))
        held.append([])
        scored.append(lm.score(*texts, needs=ALL))
        assert_all_same(scored[0], scored[-1])
    assert list(map(max, held)) == [13, 5, 1]
