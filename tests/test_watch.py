"""Scores in the user's own loop: right, of the tokens they say, and without a trace in what is generated."""

import runpy
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import CACHE, FAMILIES, PROMPTS, tiny_lm, tiny_path, without_specials
from test_lm import CLOSE
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from probers.heads import AttentionPoolHead, LinearHead, ProbingRagHead
from probers.model.causal_lm import CausalLM
from probers.model.hidden_states import decoder_layers
from probers.prober.calibration import Temperature
from probers.prober.prober import Prober
from probers.prober.watch import Scores, StopOnScore
from probers.store.spec import FeatureSpec
from probers.types import Feature, Needs, RunError

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_loop.py"


def make_bank(family: str = "llama", feature: Feature | None = None, **fields: Any) -> Prober:
    feature = feature or Feature((1, 3))
    spec = tiny_lm(family).spec
    width = 2 * spec.width if feature.pool == "mind" else spec.width
    head = ProbingRagHead([f"7/{k}" for k in feature.layers], width, hidden=16)
    features = FeatureSpec(spec, feature.layers, width, feature.site, feature.pool, dtype="float32")
    if feature.pool == "tokens":
        fields.setdefault("aggregate", "last")
    return Prober(features, head, **{"threshold": 0.1, "calibration": Temperature(1.3), **fields})


def plain(family: str = "llama", seed: int = 0) -> tuple[Any, Any]:
    """A tiny model and its tokenizer as users have them; it never writes a special token."""
    path = tiny_path(family, seed)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    # The default of Gemma 2 up to transformers 5.20 is sdpa, which is refused.
    attn = "eager" if family == "gemma2" else None
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=attn).eval()
    without_specials(model, tokenizer)
    return model, tokenizer


def batch(tokenizer: Any) -> dict[str, torch.Tensor]:
    encoding = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    return {"input_ids": encoding["input_ids"], "attention_mask": encoding["attention_mask"]}


def hooks(model: Any) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Loop:
    """A user's own model, tokenizer and prompts, and a prober."""

    def __init__(
        self, family: str = "llama", feature: Feature | None = None, *, seed: int = 0, **fields: Any
    ) -> None:
        self.model, self.tokenizer = plain(family, seed)
        self.bank = make_bank(family, feature, **fields)
        self.given = batch(self.tokenizer)
        self.length = self.given["input_ids"].shape[1]
        self.one = self.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]

    def watch(self, **options: Any) -> Scores:
        return self.bank.watch(self.model, **options)

    def stop(self, *given: Any, **options: Any) -> StopOnScore:
        return self.bank.stopping_criteria(self.model, self.tokenizer, *given, **options)

    def write(self, count: int, **options: Any) -> Any:
        """What the model makes of the prompts, without them; greedy unless said otherwise."""
        return self.whole(count, **options)[:, self.length :]

    def whole(self, count: int, **options: Any) -> Any:
        return self.model.generate(**self.given, max_new_tokens=count, **{"use_cache": True, **options})

    def sample(self, **options: Any) -> torch.Tensor:
        """14 random tokens per row, the same at each call."""
        torch.manual_seed(3)
        return self.write(14, do_sample=True, temperature=3.0, top_k=0, **options)

    def ends_early(self) -> list[list[int]]:
        """Make a token that some rows of :meth:`sample` write early, and some never, an end; the texts."""
        written = self.sample().tolist()
        firsts = {t: [row.index(t) for row in written if t in row] for row in written for t in row}
        end = next(t for t, at in firsts.items() if 2 <= min(at) < 12 and len(at) < len(written))
        self.model.generation_config.eos_token_id = [self.tokenizer.eos_token_id, end]
        self.bank = replace(self.bank, allow_other=True)  # which was made for the model's own end
        return [row[: row.index(end)] if end in row else row for row in written]


def lengths(scores: Scores) -> list[int]:
    return [len(each) for each in scores.tokens]


def states_of(generated: Any, needs: Needs) -> list[np.ndarray]:
    """(n, layers, d) of every generated token of the tiny Llama, by a teacher-forced pass."""
    (feature,) = needs.features
    each = Needs.of(feature.layers, feature.site, "tokens")
    return [g.state for g in tiny_lm().score(PROMPTS, generated.tolist(), needs=each)]


def means(states: np.ndarray) -> np.ndarray:
    """The mean of the first, of the first two, .. states."""
    return np.cumsum(states, axis=0) / np.arange(1, len(states) + 1).reshape(-1, *[1] * (states.ndim - 1))


@pytest.mark.parametrize(
    ("family", "feature"), [*((name, None) for name in FAMILIES), ("llama", Feature((3,), pool="mind"))]
)
def test_finished_scores_are_those_of_our_own_generation(family: str, feature: Feature | None) -> None:
    loop, bank = Loop(family, feature), make_bank(family, feature)
    ours = tiny_lm(family).generate(PROMPTS, max_new_tokens=14, needs=bank.needs)
    with bank.watch(loop.model) as scores:
        sequences = loop.whole(14)
        assert lengths(scores) == [13] * 5  # the last token is not forwarded
        for _ in range(2):  # once is enough
            scores.finish(sequences)
            assert lengths(scores) == [14] * 5
    np.testing.assert_allclose(scores.sequence, bank.score_states(np.stack([g.state for g in ours])), **CLOSE)
    np.testing.assert_allclose(scores.probability, bank.probability(scores.sequence))
    assert [tuple(row) for row in sequences[:, -14:].tolist()] == [g.token_ids for g in ours]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_end_earlier_are_scored_up_to_their_end(family: str) -> None:
    loop = Loop(family)
    texts = loop.ends_early()
    counts = [len(text) for text in texts]
    assert min(counts) < max(counts) == 14
    scored = tiny_lm(family).score(PROMPTS, texts, needs=loop.bank.needs)
    with loop.watch() as scores:
        sequences = loop.sample()
        assert [row[:n] for row, n in zip(sequences.tolist(), counts, strict=True)] == texts
        assert lengths(scores) == [n - (n == 14) for n in counts]
        scores.finish(torch.cat([loop.given["input_ids"], sequences], dim=1))
    assert lengths(scores) == counts
    np.testing.assert_allclose(
        scores.sequence, loop.bank.score_states(np.stack([g.state for g in scored])), **CLOSE
    )


#: Layers, site, and tokens to write: of the first more than the block in which scores are computed.
SITES = [((0, 2), "resid_post", 70), ((1, 3), "resid_mid", 9), ((2,), "attn_out", 9), ((3,), "mlp_out", 9)]


@pytest.mark.parametrize(("layers", "site", "count"), SITES)
@pytest.mark.parametrize("pool", ["mean", "last", "tokens"])
def test_each_score_is_of_the_tokens_up_to_it_or_of_its_own(
    layers: Any, site: Any, count: int, pool: Any
) -> None:
    loop = Loop(feature=Feature(layers, site, pool))
    with loop.watch() as along, loop.watch(per="token") as alone:
        sequences = loop.whole(count)
        for scores in (along, alone):
            scores.finish(sequences)
    for row, states in enumerate(states_of(sequences[:, loop.length :], loop.bank.needs)):
        so_far = means(states) if pool == "mean" else states
        np.testing.assert_allclose(along.tokens[row], loop.bank.score_states(so_far), **CLOSE)
        np.testing.assert_allclose(alone.tokens[row], loop.bank.score_states(states), **CLOSE)
    assert np.allclose(along.sequence, alone.sequence, atol=1e-3) == (pool != "mean")


ALONG = {"max": np.maximum.accumulate, "mean": means, "last": lambda x: x}


@pytest.mark.parametrize("how", ALONG)
def test_heads_of_single_tokens_score_the_text_so_far_as_a_span(how: Any) -> None:
    loop = Loop(feature=Feature((1, 3), pool="tokens"), aggregate=how)
    with loop.watch() as along, loop.watch(per="token") as alone:
        sequences = loop.whole(40)
        for scores in (along, alone):
            scores.finish(sequences)
    free = sequences[:, loop.length :]
    for row, states in enumerate(states_of(free, loop.bank.needs)):
        np.testing.assert_allclose(alone.tokens[row], loop.bank.score_states(states), **CLOSE)
        np.testing.assert_allclose(along.tokens[row], ALONG[how](loop.bank.score_states(states)), **CLOSE)
        np.testing.assert_allclose(along.sequence[row], loop.bank.score_spans(states, [(0, 40)])[0], **CLOSE)
    stops_where_exceeded(loop, np.array(along.tokens)[:, :-1], free, min_tokens=5)


def test_a_criterion_stops_where_the_score_exceeds_the_threshold() -> None:
    loop = Loop()
    with loop.watch() as scores:
        free = loop.write(20)
    first = stops_where_exceeded(loop, np.array(scores.tokens), free)
    assert (first[first < 99] > 0).any()


def stops_where_exceeded(loop: Loop, along: np.ndarray, free: Any, min_tokens: int = 1) -> np.ndarray:
    """The first token whose score so far, (rows, n), exceeds a threshold that some rows reach; 99 where none.

    A criterion with it must stop the texts ``free`` right after these tokens.
    """
    counted = along[:, min_tokens - 1 :]
    threshold = float(np.sort(counted.max(axis=1))[1:3].mean())
    reached = counted > threshold
    first = np.where(reached.any(axis=1), reached.argmax(axis=1) + min_tokens - 1, 99)
    assert 0 < reached.any(axis=1).sum() < 5
    stop = loop.stop(threshold, min_tokens=min_tokens)
    for _ in range(2):  # the second call starts afresh
        stopped = loop.write(free.shape[1], stopping_criteria=[stop])
        np.testing.assert_array_equal(stop.fired, first < 99)
        for row, token in enumerate(first):
            # The decision on tokens 0..i is asked for after token i + 1 was sampled.
            n_tokens = min(token + 2, free.shape[1])
            assert torch.equal(stopped[row, :n_tokens], free[row, :n_tokens])
            assert (stopped[row, n_tokens:] == loop.tokenizer.pad_token_id).all()
    return first


def test_the_threshold_and_the_least_number_of_tokens_are_those_given() -> None:
    loop = Loop(threshold=-1e9)

    def written(**options: Any) -> int:
        return loop.write(8, stopping_criteria=[loop.stop(**options)]).shape[1]

    assert written(threshold=np.inf) == 8
    assert written() == written(threshold=-np.inf) == 2  # one was read, one sampled
    assert written(threshold=-np.inf, min_tokens=4) == 5
    for options, named in (({"min_tokens": 0}, "min_tokens=0"), ({"threshold": np.nan}, "threshold=nan")):
        with fails("bad-value", named):
            written(**options)


def test_a_row_that_has_ended_fires_no_more() -> None:
    loop = Loop()
    loop.ends_early()
    with loop.watch() as scores:
        loop.sample()
    highest = np.array([s.max() for s in scores.tokens])
    stop = loop.stop(threshold=float(np.sort(highest)[2:4].mean()))
    loop.sample(stopping_criteria=[stop])
    np.testing.assert_array_equal(stop.fired, np.argsort(np.argsort(highest)) >= 3)


def test_heads_that_pool_tokens_themselves_and_heads_of_prompts_are_refused() -> None:
    loop, spec = Loop(), tiny_lm().spec
    for pool, head, named in (
        ("tokens", AttentionPoolHead, "score_spans"), ("prompt", ProbingRagHead, "pool=prompt"),
    ):  # fmt: skip
        loop.bank = Prober(FeatureSpec(spec, (2,), spec.width, pool=pool), head(["a"], spec.width))
        for ask in (loop.watch, loop.stop):
            with fails("unsupported", named):
                ask()


def test_states_are_rounded_as_the_features_were() -> None:
    loop = Loop()
    spec = FeatureSpec(loop.bank.spec.model, loop.bank.layers, loop.bank.spec.width, dtype="bfloat16")
    with loop.watch() as one, Prober(spec, loop.bank.head).watch(loop.model) as other:
        loop.write(3)
    difference = np.abs(one.sequence - other.sequence)
    assert 1e-4 < difference.max() < 0.2


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "temperature": 1.5}])
def test_watching_changes_nothing_and_leaves_nothing(sampling: dict[str, Any]) -> None:
    loop = Loop()
    before = hooks(loop.model)

    def generate(**options: Any) -> torch.Tensor:
        torch.manual_seed(5)
        return loop.whole(12, **sampling, **options)

    plainly = generate()
    with loop.watch() as scores:
        watched = generate()
        drawn = torch.get_rng_state()
        scores.finish(watched)
        assert torch.equal(torch.get_rng_state(), drawn)
    stop = loop.stop(threshold=np.inf)
    never = generate(stopping_criteria=[stop])
    stop.close()
    assert hooks(loop.model) == before
    assert torch.equal(watched, plainly) and torch.equal(never, plainly)


def test_hooks_go_when_generation_fails() -> None:
    loop = Loop()
    before = hooks(loop.model)
    passes = iter((1, 1, 0))
    layer = decoder_layers(loop.model)[1]
    handle = layer.register_forward_hook(lambda *_: 1 / next(passes) and None)
    with pytest.raises(ZeroDivisionError), loop.watch() as scores:
        loop.write(9)
    handle.remove()
    assert hooks(loop.model) == before
    assert lengths(scores) == [1] * 5  # what was read before it failed
    with scores:
        scores.finish(loop.whole(4))  # afresh
    assert lengths(scores) == [4] * 5


def test_a_loop_written_by_hand() -> None:
    loop = Loop()
    with loop.watch() as scores:
        scores.finish(loop.model.generate(loop.one, max_new_tokens=6))
        expected = scores.tokens[0]
        cache = DynamicCache(config=loop.model.config)
        parts = [loop.one]
        for _ in range(6):
            parts.append(loop.model(parts[-1], **{CACHE: cache}).logits[:, -1:].argmax(dim=-1))
        scores.finish(torch.cat(parts, dim=1))
        np.testing.assert_allclose(scores.tokens[0], expected, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_finish_leaves_the_callers_cache_as_it_is(family: str) -> None:
    loop = Loop(family)
    with loop.watch() as scores:
        output = loop.whole(10, return_dict_in_generate=True)
        cache = getattr(output, CACHE)
        before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        length = cache.get_seq_length()
        scores.finish(output)
        assert lengths(scores) == [10] * 5
        assert cache.get_seq_length() == length
        for layer, (keys, values) in zip(cache.layers, before, strict=True):
            assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def test_padding_and_what_follows_an_end_count_for_nothing() -> None:
    loop = Loop()
    eos, pad = loop.tokenizer.eos_token_id, loop.tokenizer.pad_token_id
    written = torch.tensor([[40, 41, eos, 42, 43], [40, pad, 41, pad, 42], [40, 41, 42, 43, 44]])

    def read() -> list[np.ndarray]:
        with loop.watch() as scores:
            cache = getattr(loop.model(loop.one.expand(3, -1)), CACHE)
            for column in written.T:
                loop.model(column[:, None], **{CACHE: cache})
            return scores.tokens

    result = read()
    assert list(map(len, result)) == [2, 3, 5]
    np.testing.assert_allclose(result[0], result[2][:2], **CLOSE)
    np.testing.assert_allclose(result[1][0], result[2][0], **CLOSE)
    loop.model.generation_config.pad_token_id = loop.model.generation_config.eos_token_id = None
    assert list(map(len, read())) == [5, 5, 5]  # nothing says what these ids mean


def assisted(loop: Loop, count: int, **options: Any) -> Any:
    one = {name: value[2:3] for name, value in loop.given.items()}
    return loop.model.generate(**one, max_new_tokens=count, prompt_lookup_num_tokens=3, **options)


#: Functions in place of ``Loop.whole`` that cannot be followed, and what the error names.
REFUSED: list[tuple[Any, str]] = [
    (partial(Loop.whole, prefill_chunk_size=5), "chunked prefill"),
    (partial(Loop.whole, num_beams=3), "num_beams=1"),
    (partial(Loop.whole, use_cache=False), "use_cache=True"),
    (partial(Loop.whole, cache_implementation="static"), "static cache"),
    (assisted, "assisted"),
]  # fmt: skip


@pytest.mark.parametrize(("way", "named"), REFUSED)
def test_what_cannot_be_followed_is_refused_and_not_broken_off(way: Any, named: str) -> None:
    loop = Loop()
    expected = way(loop, 6)
    with loop.watch() as scores:
        assert torch.equal(way(loop, 6), expected)
        with fails("unsupported", named):
            scores.finish(expected)
    with fails("unsupported", named):
        way(loop, 6, stopping_criteria=[loop.stop(threshold=np.inf)])


def test_another_model_is_refused() -> None:
    loop = Loop()
    for other in (Loop(seed=1), Loop("qwen2")):  # other weights of the same shape
        other.bank, before = loop.bank, hooks(other.model)
        for make in (other.watch, other.stop):
            with fails("mismatch"):
                make()
        assert hooks(other.model) == before
    anonymous = AutoModelForCausalLM.from_config(loop.model.config)
    anonymous.name_or_path = ""
    with fails("mismatch"):
        loop.bank.watch(anonymous)
    anonymous.load_state_dict(loop.model.state_dict())  # the same weights, wherever they are from
    loop.bank.watch(anonymous)
    with fails("mismatch"):  # a criterion of one model in another's loop
        Loop().write(3, stopping_criteria=[loop.stop()])


def test_scores_that_are_not_there() -> None:
    loop = Loop()
    with fails("unknown-choice", "per='word'"):
        loop.watch(per="word")
    scores = loop.watch()
    loop.write(1)
    with fails("empty"):  # no hooks, no scores
        scores.sequence  # noqa: B018
    with scores:
        with fails("busy"), scores:
            pass
        sequences = loop.whole(4)
        changed = sequences.clone()
        changed[1, -2] += 1
        for other in (sequences[:2], sequences[:, :-2], changed):
            with fails("mismatch"):
                scores.finish(other)
    with fails("conflict"):
        scores.finish(sequences)
    assert lengths(scores) == [3] * 5


def test_broken_states_are_an_error_that_names_layer_and_token() -> None:
    loop, passes = Loop(), 0

    def spoil(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes == 4:  # the prompt, tokens 0, 1, and 2
            output = output.clone()
            output[1] = np.nan
        return output

    decoder_layers(loop.model)[2].register_forward_hook(spoil)
    broken = partial(fails, "model", "layer 3", "generated token 2 of row 1", kind=RunError)
    with loop.watch() as scores:
        sequences = loop.whole(6)
        with broken():
            scores.finish(sequences)
    passes = 0
    with broken():
        loop.write(6, stopping_criteria=[loop.stop(threshold=np.inf)])


def test_the_example_runs(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = CausalLM.from_pretrained("testbed", device="cpu").spec
    head = LinearHead(["a", "b"], spec.width)
    Prober(FeatureSpec(spec, (6, 12), spec.width), head, threshold=0.0).save_pretrained(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("P(wrong) 0.") for line in printed) == 4
    assert sum(line.startswith(("retrieve after: '", "answered: '")) for line in printed) == 4
