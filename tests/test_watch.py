"""Scores in the user's own loop: right, of the tokens they say, and without a trace in what is generated."""

from __future__ import annotations

import gc
import runpy
import sys
import weakref
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import fails
from tiny import CACHE, FAMILIES, PROMPTS, tiny_lm, tiny_path, without_specials
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from probers.bank.bank import ProbeBank
from probers.bank.calibration import Temperature
from probers.capture.hidden_states import decoder_layers
from probers.engine.model import CausalLM
from probers.heads import AttentionPoolHead, LinearHead, ProbingRagHead
from probers.online.watch import Scores, StopOnScore
from probers.store.spec import FeatureSpec, ModelSpec
from probers.types import Feature, Needs, RunError

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
EXAMPLE = Path(__file__).parents[1] / "examples" / "own_loop.py"


def plain(family: str = "llama", seed: int = 0) -> tuple[Any, Any]:
    """A tiny model and its tokenizer as users have them; it never writes a special token."""
    path = tiny_path(family, seed)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    without_specials(model, tokenizer)
    return model, tokenizer


def make_bank(family: str = "llama", feature: Feature | None = None, **fields: Any) -> ProbeBank:
    feature = feature or Feature((1, 3))
    spec = tiny_lm(family).spec
    width = 2 * spec.width if feature.pool == "mind" else spec.width
    head = ProbingRagHead([f"7/{k}" for k in feature.layers], width, hidden=16)
    features = FeatureSpec(spec, feature.layers, width, feature.site, feature.pool, dtype="float32")
    if feature.pool == "tokens":
        fields.setdefault("aggregate", "last")
    return ProbeBank(features, head, **{"threshold": 0.1, "calibration": Temperature(1.3), **fields})


def batch(tokenizer: Any, prompts: Any = PROMPTS) -> dict[str, torch.Tensor]:
    found = tokenizer(list(prompts), return_tensors="pt", padding=True)
    return {"input_ids": found["input_ids"], "attention_mask": found["attention_mask"]}


def hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def states_of(lm: CausalLM, prompts: Any, generated: Any, needs: Needs) -> list[np.ndarray]:
    """(n, layers, d) of every generated token, by a teacher-forced pass."""
    (feature,) = needs.features
    each = Needs.of(feature.layers, feature.site, "tokens")
    return [g.state for g in lm.score(prompts, generated, needs=each)]


def sample(model: Any, tokenizer: Any, **options: Any) -> torch.Tensor:
    """14 random tokens per row, the same at each call."""
    torch.manual_seed(3)
    free = {"do_sample": True, "temperature": 3.0, "top_k": 0, "use_cache": True}
    found = model.generate(**batch(tokenizer), max_new_tokens=14, **free, **options)
    return found[:, batch(tokenizer)["input_ids"].shape[1] :]


def ends_early(model: Any, tokenizer: Any) -> list[list[int]]:
    """Make a token that some rows of :func:`sample` write early, and some never, end a text; the texts."""
    written = sample(model, tokenizer).tolist()
    firsts = {t: [row.index(t) for row in written if t in row] for row in written for t in row}
    end = next(t for t, at in firsts.items() if 2 <= min(at) < 12 and len(at) < len(written))
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, end]
    return [row[: row.index(end)] if end in row else row for row in written]


@pytest.mark.parametrize(
    ("family", "feature"), [*((name, None) for name in FAMILIES), ("llama", Feature((3,), pool="mind"))]
)
def test_finished_scores_are_those_of_our_own_generation(family: str, feature: Feature | None) -> None:
    (model, tokenizer), lm, bank = plain(family), tiny_lm(family), make_bank(family, feature)
    ours = lm.generate(PROMPTS, max_new_tokens=14, needs=bank.needs)
    with bank.watch(model) as scores:
        sequences = model.generate(**batch(tokenizer), max_new_tokens=14, do_sample=False, use_cache=True)
        assert [len(s) for s in scores.tokens] == [13] * 5  # the last token is not forwarded
        scores.finish(sequences)
        assert [len(s) for s in scores.tokens] == [14] * 5
        np.testing.assert_allclose(scores.sequence, bank.score(np.stack([g.state for g in ours])), **CLOSE)
        scores.finish(sequences)  # once is enough
    assert [len(s) for s in scores.tokens] == [14] * 5
    np.testing.assert_allclose(scores.probability, bank.probability(scores.sequence))
    assert [tuple(row) for row in sequences[:, -14:].tolist()] == [g.token_ids for g in ours]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_end_earlier_are_scored_up_to_their_end(family: str) -> None:
    (model, tokenizer), lm, bank = plain(family), tiny_lm(family), make_bank(family)
    texts = ends_early(model, tokenizer)
    lengths = [len(text) for text in texts]
    assert min(lengths) < max(lengths) == 14
    expected = bank.score(np.stack([g.state for g in lm.score(PROMPTS, texts, needs=bank.needs)]))
    with bank.watch(model) as scores:
        sequences = sample(model, tokenizer)
        assert [row[:n] for row, n in zip(sequences.tolist(), lengths, strict=True)] == texts
        assert [len(s) for s in scores.tokens] == [n - (n == 14) for n in lengths]
        scores.finish(torch.cat([batch(tokenizer)["input_ids"], sequences], dim=1))
    assert [len(s) for s in scores.tokens] == lengths
    np.testing.assert_allclose(scores.sequence, expected, **CLOSE)


SITES = [((0, 2), "resid_post"), ((1, 3), "resid_mid"), ((2,), "attn_out"), ((3,), "mlp_out")]


@pytest.mark.parametrize(("layers", "site"), SITES)
@pytest.mark.parametrize("pool", ["mean", "last", "tokens"])
def test_each_score_is_of_the_tokens_up_to_it_or_of_its_own(layers: Any, site: Any, pool: Any) -> None:
    (model, tokenizer), lm = plain(), tiny_lm()
    bank = make_bank(feature=Feature(layers, site, pool))
    with bank.watch(model) as along, bank.watch(model, per="token") as alone:
        sequences = model.generate(**batch(tokenizer), max_new_tokens=9, do_sample=False)
        for scores in (along, alone):
            scores.finish(sequences)
    states = states_of(lm, PROMPTS, sequences[:, -9:].tolist(), bank.needs)
    for row, own in enumerate(states):
        so_far = np.cumsum(own, axis=0) / np.arange(1, 10)[:, None, None] if pool == "mean" else own
        np.testing.assert_allclose(along.tokens[row], bank.score(so_far), **CLOSE)
        np.testing.assert_allclose(alone.tokens[row], bank.score(own), **CLOSE)
    same = np.allclose(along.sequence, alone.sequence, atol=1e-3)
    assert same == (pool != "mean")


ALONG = {
    "max": np.maximum.accumulate,
    "mean": lambda x: np.cumsum(x) / np.arange(1, len(x) + 1),
    "last": lambda x: x,
}


@pytest.mark.parametrize("how", ALONG)
def test_heads_of_single_tokens_score_the_text_so_far_as_a_span(how: Any) -> None:
    (model, tokenizer), lm = plain(), tiny_lm()
    bank = make_bank(feature=Feature((1, 3), pool="tokens"), aggregate=how)
    given, options = batch(tokenizer), {"max_new_tokens": 40, "do_sample": False}
    with bank.watch(model) as along, bank.watch(model, per="token") as alone:
        sequences = model.generate(**given, **options)
        for scores in (along, alone):
            scores.finish(sequences)
    free = sequences[:, -40:]
    own = states_of(lm, PROMPTS, free.tolist(), bank.needs)
    for row, states in enumerate(own):
        np.testing.assert_allclose(alone.tokens[row], bank.score(states), **CLOSE)
        np.testing.assert_allclose(along.tokens[row], ALONG[how](bank.score(states)), **CLOSE)
        np.testing.assert_allclose(along.sequence[row], bank.score_spans(states, [(0, 40)])[0], **CLOSE)
    highest = np.array([scores[4:-1].max() for scores in along.tokens])
    threshold = float(np.sort(highest)[1:3].mean())  # some rows reach it, some never do
    stop = bank.stopping_criteria(model, tokenizer, threshold, min_tokens=5)
    length = given["input_ids"].shape[1]
    for _ in range(2):  # the second call starts afresh
        stopped = model.generate(**given, **options, stopping_criteria=[stop])[:, length:]
        np.testing.assert_array_equal(stop.fired, highest > threshold)
        for row, scores in enumerate(along.tokens):
            over = np.flatnonzero(scores[4:-1] > threshold)
            kept = int(over[0]) + 6 if len(over) else 40
            assert torch.equal(stopped[row, :kept], free[row, :kept])
            assert (stopped[row, kept:] == tokenizer.pad_token_id).all()


def test_heads_that_pool_tokens_themselves_are_refused() -> None:
    model, _ = plain()
    spec = tiny_lm().spec
    head = AttentionPoolHead(["a"], spec.width)
    bank = ProbeBank(FeatureSpec(spec, (2,), spec.width, pool="tokens"), head)
    before = hooks(model)
    for ask in (
        bank.watch,
        partial(bank.watch, per="token"),
        partial(bank.stopping_criteria, tokenizer=None),
    ):
        with fails("unsupported", "score_spans"):
            ask(model)
    assert hooks(model) == before


def test_scores_do_not_depend_on_the_block_they_are_computed_in() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    with bank.watch(model) as scores:
        sequences = model.generate(**batch(tokenizer), max_new_tokens=70, do_sample=False)
        scores.finish(sequences)
    own = states_of(tiny_lm(), PROMPTS, sequences[:, -70:].tolist(), bank.needs)
    for row, states in enumerate(own):
        so_far = np.cumsum(states, axis=0) / np.arange(1, 71)[:, None, None]
        np.testing.assert_allclose(scores.tokens[row], bank.score(so_far), **CLOSE)


def test_states_are_rounded_as_the_features_were() -> None:
    (model, tokenizer), exact = plain(), make_bank()
    spec = FeatureSpec(exact.spec.model, exact.layers, exact.spec.width, dtype="bfloat16")
    coarse = ProbeBank(spec, exact.head)
    with exact.watch(model) as one, coarse.watch(model) as other:
        model.generate(**batch(tokenizer), max_new_tokens=3, do_sample=False)
    difference = np.abs(one.sequence - other.sequence)
    assert 1e-4 < difference.max() < 0.2


@pytest.mark.parametrize("sampling", [{"do_sample": False}, {"do_sample": True, "temperature": 1.5}])
def test_watching_changes_nothing_and_leaves_nothing(sampling: dict[str, Any]) -> None:
    (model, tokenizer), bank = plain(), make_bank()
    before, given = hooks(model), batch(tokenizer)

    def generate() -> torch.Tensor:
        torch.manual_seed(5)
        return model.generate(**given, max_new_tokens=12, **sampling)

    plainly = generate()
    with bank.watch(model) as scores:
        assert hooks(model) > before
        watched = generate()
        drawn = torch.get_rng_state()
        scores.finish(watched)
        assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(watched, plainly)
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    torch.manual_seed(5)
    never = model.generate(**given, max_new_tokens=12, stopping_criteria=[stop], **sampling)
    assert torch.equal(never, plainly)
    stop.close()
    assert hooks(model) == before
    kept = scores.tokens
    assert torch.equal(generate(), plainly)  # outside the block nothing is read
    assert all(np.array_equal(a, b) for a, b in zip(scores.tokens, kept, strict=True))


def test_hooks_go_when_generation_fails() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    before = hooks(model)
    handle = decoder_layers(model)[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), bank.watch(model) as scores:
        model.generate(**batch(tokenizer), max_new_tokens=3)
    handle.remove()
    assert hooks(model) == before
    calls = 0

    def fail_later(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError

    handle = decoder_layers(model)[1].register_forward_hook(fail_later)
    with scores:
        with pytest.raises(ZeroDivisionError):
            model.generate(**batch(tokenizer), max_new_tokens=9)
        handle.remove()
        assert [len(s) for s in scores.tokens] == [1] * 5  # what was read before it failed
        sequences = model.generate(**batch(tokenizer), max_new_tokens=4)  # afresh
        scores.finish(sequences)
    assert [len(s) for s in scores.tokens] == [4] * 5
    assert hooks(model) == before


def test_a_second_call_starts_afresh_and_one_token_prompts_work() -> None:
    (model, tokenizer), bank, lm = plain("gpt2"), make_bank("gpt2"), tiny_lm("gpt2")
    one = torch.tensor([[40], [50], [60]])
    with bank.watch(model) as scores:
        model.generate(**batch(tokenizer), max_new_tokens=6, do_sample=False)
        sequences = model.generate(one, max_new_tokens=5, do_sample=False)
        scores.finish(sequences)
    assert [len(s) for s in scores.tokens] == [5, 5, 5]
    with torch.no_grad():
        out = lm.model(sequences, output_hidden_states=True)
    pooled = torch.stack([out.hidden_states[1][:, 1:].mean(dim=1)], dim=1)
    only = make_bank("gpt2", Feature((1,)))
    with only.watch(model) as scores:
        scores.finish(model.generate(one, max_new_tokens=5, do_sample=False))
    np.testing.assert_allclose(scores.sequence, only.score(pooled), **CLOSE)


def test_prompts_given_as_embeddings() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    given = batch(tokenizer)
    with bank.watch(model) as scores:
        scores.finish(model.generate(**given, max_new_tokens=5, do_sample=False))
        expected = scores.sequence
        embedded = model.get_input_embeddings()(given["input_ids"]).detach()
        options = {"attention_mask": given["attention_mask"], "max_new_tokens": 5, "do_sample": False}
        sequences = model.generate(inputs_embeds=embedded, **options)
        assert sequences.shape[1] == 5
        scores.finish(sequences)
        np.testing.assert_allclose(scores.sequence, expected, **CLOSE)
        stop = bank.stopping_criteria(model, tokenizer, threshold=-np.inf)
        assert model.generate(inputs_embeds=embedded, **options, stopping_criteria=[stop]).shape[1] == 2


def test_a_loop_written_by_hand() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    with bank.watch(model) as scores:
        scores.finish(model.generate(ids, max_new_tokens=6, do_sample=False))
        expected = scores.tokens[0]
        cache = DynamicCache(config=model.config)
        sequence, following = ids, ids
        for _ in range(6):
            following = model(following, **{CACHE: cache}).logits[:, -1:].argmax(dim=-1)
            sequence = torch.cat([sequence, following], dim=1)
        scores.finish(sequence)
        np.testing.assert_allclose(scores.tokens[0], expected, **CLOSE)
        cache = None
        for step in range(6):
            part = sequence[:, : ids.shape[1]] if not step else sequence[:, ids.shape[1] + step - 1][:, None]
            cache = getattr(model(part, **{CACHE: cache}), CACHE)
        np.testing.assert_allclose(scores.tokens[0], expected[:-1], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_finish_leaves_the_callers_cache_as_it_is(family: str) -> None:
    (model, tokenizer), bank = plain(family), make_bank(family)
    with bank.watch(model) as scores:
        output = model.generate(
            **batch(tokenizer), max_new_tokens=10, do_sample=False, return_dict_in_generate=True
        )
        cache = getattr(output, CACHE)
        before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        length = cache.get_seq_length()
        scores.finish(output)
        assert [len(s) for s in scores.tokens] == [10] * 5
        assert cache.get_seq_length() == length
        for layer, (keys, values) in zip(cache.layers, before, strict=True):
            assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def test_padding_and_what_follows_an_end_count_for_nothing() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    ids = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    written = torch.tensor([[40, 41, eos, 42, 43], [40, pad, 41, pad, 42], [40, 41, 42, 43, 44]])

    def read(tokens: torch.Tensor) -> list[np.ndarray]:
        with bank.watch(model) as scores:
            cache = getattr(model(ids.expand(len(tokens), -1)), CACHE)
            for column in tokens.T:
                model(column[:, None], **{CACHE: cache})
            return scores.tokens

    found = read(written)
    assert [len(s) for s in found] == [2, 3, 5]
    np.testing.assert_allclose(found[0], found[2][:2], **CLOSE)
    np.testing.assert_allclose(found[1][0], found[2][0], **CLOSE)
    model.generation_config.pad_token_id = model.generation_config.eos_token_id = None
    assert [len(s) for s in read(written)] == [5, 5, 5]  # nothing says what these ids mean,
    with bank.watch(model, tokenizer=tokenizer) as scores:  # unless the tokenizer does
        cache = getattr(model(ids), CACHE)
        model(torch.tensor([[eos]]), **{CACHE: cache})
        assert len(scores.tokens[0]) == 0


def test_a_criterion_stops_where_the_score_exceeds_the_threshold() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    given, options = batch(tokenizer), {"max_new_tokens": 20, "do_sample": False}
    length = given["input_ids"].shape[1]
    with bank.watch(model) as scores:
        free = model.generate(**given, **options)[:, length:]
    along = np.array(scores.tokens)  # (rows, 19), of the tokens before the last
    threshold = float(np.sort(along.max(axis=1))[1:3].mean())  # some rows reach it, some never do
    reached = along > threshold
    first = np.where(reached.any(axis=1), reached.argmax(axis=1), 99)
    assert 0 < reached.any(axis=1).sum() < 5 and (first[first < 99] > 0).any()
    stop = bank.stopping_criteria(model, tokenizer, threshold)
    for _ in range(2):  # the second call starts afresh
        stopped = model.generate(**given, **options, stopping_criteria=[stop])[:, length:]
        np.testing.assert_array_equal(stop.fired, first < 99)
        for row, token in enumerate(first):
            # The decision on tokens 0..i is asked for after token i + 1 was sampled.
            kept = min(token + 2, 20)
            assert torch.equal(stopped[row, :kept], free[row, :kept])
            assert (stopped[row, kept:] == tokenizer.pad_token_id).all()


def test_thresholds_without_end() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    given = batch(tokenizer)
    length = given["input_ids"].shape[1]

    def written(**options: Any) -> int:
        stop = bank.stopping_criteria(model, tokenizer, **options)
        found = model.generate(**given, max_new_tokens=8, do_sample=False, stopping_criteria=[stop])
        return found.shape[1] - length

    assert written(threshold=np.inf) == 8
    assert written(threshold=-np.inf) == 2  # one was read, one sampled
    assert written(threshold=-np.inf, min_tokens=4) == 5
    with fails("bad-value", "min_tokens=0"):
        written(min_tokens=0)
    with fails("bad-value", "threshold=nan"):
        written(threshold=np.nan)
    stop = make_bank(threshold=-1e9).stopping_criteria(model, tokenizer)
    assert stop.threshold == -1e9
    assert model.generate(**given, max_new_tokens=8, stopping_criteria=[stop]).shape[1] == length + 2


def test_a_row_that_has_ended_fires_no_more() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    ends_early(model, tokenizer)
    with bank.watch(model) as scores:
        sample(model, tokenizer)
    highest = np.array([s.max() for s in scores.tokens])
    stop = bank.stopping_criteria(model, tokenizer, threshold=float(np.sort(highest)[2:4].mean()))
    sample(model, tokenizer, stopping_criteria=[stop])
    np.testing.assert_array_equal(stop.fired, np.argsort(np.argsort(highest)) >= 3)


def test_a_criterion_takes_its_hooks_along() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    before = hooks(model)
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    assert isinstance(stop, StopOnScore) and hooks(model) > before
    model.generate(**batch(tokenizer), max_new_tokens=3, stopping_criteria=[stop])
    assert hooks(model) > before
    del stop
    gc.collect()
    assert hooks(model) == before
    stop = bank.stopping_criteria(model, tokenizer)
    stop.close()
    stop.close()
    assert hooks(model) == before
    with fails("conflict"):
        model.generate(**batch(tokenizer), max_new_tokens=3, stopping_criteria=[stop])


def filled(model: Any, given: Any, **options: Any) -> Any:
    ids, cache = given["input_ids"][2:3], DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, :6], **{CACHE: cache})
    return model.generate(ids, **options, **{CACHE: cache})


def assisted(model: Any, given: Any, **options: Any) -> Any:
    one = {name: value[2:3] for name, value in given.items()}
    return model.generate(**one, **options, prompt_lookup_num_tokens=3)


#: Options of generate, or a function in its place, that cannot be followed, and what the error names.
REFUSED: list[tuple[Any, str]] = [
    ({"prefill_chunk_size": 5}, "chunked prefill"), ({"num_beams": 3}, "num_beams=1"),
    ({"use_cache": False}, "use_cache=True"), ({"cache_implementation": "static"}, "static cache"),
    (assisted, "assisted"), (filled, "cache"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "named"), REFUSED)
def test_what_cannot_be_followed_is_refused_and_not_broken_off(way: Any, named: str) -> None:
    (model, tokenizer), bank = plain(), make_bank()
    options = {"max_new_tokens": 6, "do_sample": False}
    if isinstance(way, dict):
        generate = partial(model.generate, **batch(tokenizer), **options, **way)
    else:
        generate = partial(way, model, batch(tokenizer), **options)
    expected = generate()
    with bank.watch(model) as scores:
        assert torch.equal(generate(), expected)
        for ask in (lambda: scores.tokens, lambda: scores.sequence, lambda: scores.finish(expected)):
            with fails("unsupported", named):
                ask()
        scores.finish(model.generate(**batch(tokenizer), max_new_tokens=4))  # none the worse
        assert [len(s) for s in scores.tokens] == [4] * 5
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    with fails("unsupported", named):
        generate(stopping_criteria=[stop])


def test_a_criterion_notices_a_last_chunk_of_one_token() -> None:
    """It passes for a generated token until somebody counts."""
    (model, tokenizer), bank = plain(), make_bank()
    given = batch(tokenizer)
    options = {"max_new_tokens": 4, "prefill_chunk_size": given["input_ids"].shape[1] - 1}
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    with fails("unsupported"):
        model.generate(**given, **options, stopping_criteria=[stop])


def test_another_model_is_refused() -> None:
    model, tokenizer = plain()
    bank = make_bank()
    trained = bank.spec.model
    for other in (plain(seed=1)[0], plain("qwen2")[0]):  # other weights of the same shape
        for make in (bank.watch, partial(bank.stopping_criteria, tokenizer=tokenizer)):
            before = hooks(other)
            with fails("mismatch"):
                make(other)
            assert hooks(other) == before
    anonymous = AutoModelForCausalLM.from_config(model.config)  # only its shape is known
    anonymous.name_or_path = ""
    with bank.watch(anonymous):
        pass
    for shape in ({"layers": 4}, {"width": 16}):
        spec = ModelSpec(**{**asdict(trained), "revision": "", **shape})
        other = ProbeBank(FeatureSpec(spec, (1, 3), 32, dtype="float32"), bank.head)
        with fails("mismatch"):
            other.watch(anonymous)
    stop = bank.stopping_criteria(model, tokenizer)
    with fails("mismatch"):
        plain()[0].generate(**batch(tokenizer), max_new_tokens=3, stopping_criteria=[stop])
    stop = bank.stopping_criteria(model, tokenizer)
    model.generate(**batch(tokenizer), max_new_tokens=3)
    with fails("unsupported"):
        plain()[0].generate(**batch(tokenizer, PROMPTS[:2]), max_new_tokens=3, stopping_criteria=[stop])


def test_scores_that_are_not_there() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    with fails("unknown-choice", "per='word'"):
        bank.watch(model, per="word")  # type: ignore[arg-type]
    scores = bank.watch(model)
    assert isinstance(scores, Scores)
    sequences = model.generate(**batch(tokenizer), max_new_tokens=1)
    with fails("empty"):  # no hooks, no scores
        scores.sequence  # noqa: B018
    with scores:
        with fails("busy"), scores:
            pass
        sequences = model.generate(**batch(tokenizer), max_new_tokens=1)
        assert [len(s) for s in scores.tokens] == [0] * 5
        with fails("empty", "row 0"):
            scores.sequence  # noqa: B018
        for other in (sequences[:2], sequences[:, :-2], sequences[0]):
            with fails("mismatch"):
                scores.finish(other)
        scores.finish(sequences)
        assert scores.sequence.shape == (5,)
        sequences = model.generate(**batch(tokenizer), max_new_tokens=4)
        changed = sequences.clone()
        changed[1, -2] += 1
        with fails("mismatch"):
            scores.finish(changed)
    with fails("conflict"):
        scores.finish(sequences)
    assert [len(s) for s in scores.tokens] == [3] * 5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_states_are_an_error_that_names_layer_and_token(value: float) -> None:
    (model, tokenizer), bank = plain(), make_bank()
    given, passes = batch(tokenizer), 0

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes == 4:  # the prompt, tokens 0, 1, and 2
            output = output.clone()
            output[1] = value
        return output

    handle = decoder_layers(model)[2].register_forward_hook(spoil)
    broken = partial(fails, "model", "layer 3", "generated token 2 of row 1", kind=RunError)
    with bank.watch(model) as scores:
        sequences = model.generate(**given, max_new_tokens=6)
        with broken():
            scores.sequence  # noqa: B018
        with broken():
            scores.finish(sequences)
    passes = 0
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    with broken():
        model.generate(**given, max_new_tokens=6, stopping_criteria=[stop])
    handle.remove()
    model.generate(**given, max_new_tokens=6, stopping_criteria=[stop])


def test_keys_and_values_are_not_held_longer_than_needed() -> None:
    (model, tokenizer), bank = plain(), make_bank()
    stop = bank.stopping_criteria(model, tokenizer, threshold=np.inf)
    given = batch(tokenizer)

    def generate() -> Any:
        output = model.generate(
            **given, max_new_tokens=3, return_dict_in_generate=True, stopping_criteria=[stop]
        )
        return weakref.ref(getattr(output, CACHE))

    cache = generate()
    gc.collect()
    assert cache() is None
    with bank.watch(model) as scores:
        cache = generate()
        gc.collect()
        assert cache() is not None  # for finish
    gc.collect()
    assert cache() is None and len(scores.tokens) == 5


def test_the_example_runs(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CausalLM.from_pretrained("testbed", device="cpu").spec
    head = LinearHead(["a", "b"], spec.width)
    ProbeBank(FeatureSpec(spec, (6, 12), spec.width), head, threshold=0.0).save_pretrained(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("P(wrong) 0.") for line in printed) == 4
    assert sum(line.startswith(("retrieve after: '", "answered: '")) for line in printed) == 4
