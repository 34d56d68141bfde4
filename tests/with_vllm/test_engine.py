"""``engine=vllm`` writes, reads and records what our own engine does; the commands make the same of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import fails, interrupted
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer
from written import PROMPTS, save_tiny

from probers.cli import main as cli
from probers.model.causal_lm import CausalLM
from probers.model.hidden_states import StateTap
from probers.model.language_model import Decoding, GenerationRequest, SentenceEnd
from probers.model.vllm import lm as vllm_lm
from probers.model.vllm.lm import VllmLM
from probers.store.store import FeatureStore
from probers.types import Feature, Generation, Needs, RunError

MODELS = ("testbed", "smollm2")


start = VllmLM.from_pretrained


@pytest.fixture(scope="module", autouse=True)
def started_once() -> Iterator[None]:
    """One vLLM for each model and number format: starting it takes longer than what is tested.

    None is compiled but that of the last test, which starts its own.
    """
    begin = vllm_lm._start

    def eager(name: str, device: str, given: Any) -> Any:
        return begin(name, device, {**given, "enforce_eager": True})

    running: dict[Any, VllmLM] = {}

    def once(name: str = "testbed", *, dtype: str = "auto", **options: Any) -> VllmLM:
        if (name, dtype) not in running:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(vllm_lm, "_start", eager)
                running[name, dtype] = start(name, dtype=dtype, **options)
        return running[name, dtype]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VllmLM, "from_pretrained", once)
        yield
    for lm in running.values():
        lm.close()


@pytest.fixture(scope="module", params=MODELS)
def engines(request: pytest.FixtureRequest) -> tuple[CausalLM, VllmLM]:
    """Our engine and vLLM's, in float32."""
    ours = CausalLM.from_pretrained(request.param, dtype="float32")
    return ours, VllmLM.from_pretrained(request.param, dtype="float32", batch_size=16)


def check(have: Generation, want: Generation) -> None:
    """All that was recorded of the same tokens is the same to rounding."""
    assert (have.prompt, have.prompt_ids, have.text, have.offsets) == (
        want.prompt, want.prompt_ids, want.text, want.offsets,
    )  # fmt: skip
    np.testing.assert_allclose(have.logprobs, want.logprobs, atol=2e-3)
    np.testing.assert_allclose(have.entropies, want.entropies, atol=2e-3)
    assert (have.top is None) == (want.top is None)
    if have.top is not None and want.top is not None:
        np.testing.assert_allclose(have.top, want.top, atol=1e-3)
    assert [*have.states] == [*want.states]
    for feature, other in want.states.items():
        one = have.states[feature]
        assert one.dtype == other.dtype == np.float32 and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-3 * np.abs(other).max())


def check_all(made: list[Generation], wanted: list[Generation]) -> None:
    for have, want in zip(made, wanted, strict=True):
        assert (have.token_ids, have.stop) == (want.token_ids, want.stop)
        check(have, want)


def needs_of(depth: int) -> list[Needs]:
    """Every pool, alone or beside others."""
    some = (0, depth // 2, depth)
    return [
        Needs(),
        Needs.of(some, pool="predicting", top=True),
        Needs((Feature(some, pool="positions"), Feature((depth,), pool="mind_tokens")), top=True),
        Needs((Feature(some), Feature(some[::-1], pool="last"), Feature((depth,), pool="mind"))),
        Needs((Feature(some, pool="prompt"), Feature(some, pool="predicting"))),
        Needs.of(some, pool="prompt"),
        Needs.of(tuple(range(depth + 1)), pool="tokens"),
    ]


STOPS: list[Any] = [[], [" the ", "\n"], [SentenceEnd()], [lambda text: len(text.split()) > 4]]


def test_a_model_with_experts_is_recorded_as_ours(tmp_path: Path) -> None:
    """First, since a process makes the group of experts with its first vLLM or never."""
    name = save_tiny("qwen3_moe", tmp_path)
    ours = CausalLM.from_pretrained(name, dtype="float32")
    theirs = VllmLM.from_pretrained(name, dtype="float32", batch_size=16)
    for needs in needs_of(ours.num_layers):
        made = theirs.generate(PROMPTS[::9], max_new_tokens=20, needs=needs)
        check_all(made, ours.generate(PROMPTS[::9], max_new_tokens=20, needs=needs))
        prompts, texts = [g.prompt for g in made], [g.token_ids for g in made]
        check_all(*(lm.score(prompts, texts, needs=needs) for lm in (theirs, ours)))


def test_padded_rows_are_never_written_and_prompts_end_as_ours(tmp_path: Path) -> None:
    name = save_tiny("llama", tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    size, end = len(tokenizer), (tokenizer.eos_token, tokenizer.eos_token_id)
    model.resize_token_embeddings(size + 32, mean_resizing=False)
    with torch.no_grad():  # one of the rows is always the likeliest
        model.lm_head.weight[size:] = 4 * model.lm_head.weight[:32]
        model.lm_head.weight[size::2] *= -1
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"$A {end[0]}", special_tokens=[end])
    model.save_pretrained(name)
    tokenizer.save_pretrained(name)
    ours = CausalLM.from_pretrained(name, dtype="float32")
    theirs = VllmLM.from_pretrained(name, dtype="float32")
    prompts, needs = PROMPTS[:3], Needs(top=True)
    written = theirs.generate(prompts, max_new_tokens=8, needs=needs)
    for have, want in zip(written, ours.generate(prompts, max_new_tokens=8, needs=needs), strict=True):
        check(have, want)
        assert have.prompt_ids[-1] != end[1] and max(have.token_ids) < size
    tokens = [text.token_ids for text in written]
    for have, want in zip(*(lm.score(prompts, tokens, needs=needs) for lm in (theirs, ours)), strict=True):
        check(have, want)


@pytest.mark.parametrize("stop", STOPS)
def test_what_it_writes_is_recorded_as_ours(engines: tuple[CausalLM, VllmLM], stop: list[Any]) -> None:
    ours, theirs = engines
    assert theirs.spec == replace(ours.spec, sample="")  # of weights in another process
    assert theirs.width == ours.width and theirs.num_layers == ours.num_layers
    prompts = [*PROMPTS[::9], "A", PROMPTS[0]]
    limits = [1 + 3 * i for i in range(len(prompts))]
    for needs in needs_of(ours.num_layers):
        made = theirs.generate(prompts, max_new_tokens=limits, needs=needs, stop=stop)
        check_all(made, ours.generate(prompts, max_new_tokens=limits, needs=needs, stop=stop))


def test_what_it_reads_is_recorded_as_ours_also_what_the_cache_holds(
    engines: tuple[CausalLM, VllmLM],
) -> None:
    ours, theirs = engines
    written = theirs.generate(PROMPTS[:6], max_new_tokens=40)
    prompts, texts = [g.prompt for g in written], [g.token_ids for g in written]
    for needs in needs_of(ours.num_layers):
        check_all(*(lm.score(prompts, texts, needs=needs) for lm in (theirs, ours)))


def test_texts_are_cached_preempted_left_and_known(
    engines: tuple[CausalLM, VllmLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = engines
    needs = Needs.of((0, ours.num_layers), pool="positions", top=True)
    requests = [GenerationRequest(prompt, 24) for prompt in PROMPTS]
    each = theirs.generate_each(requests, Decoding(needs))
    first = next(each)
    each.close()  # whoever asked has gone
    assert first and not theirs._running and not theirs._engine.has_unfinished_requests()
    half = {i for i in range(len(PROMPTS)) if i % 2}
    made: dict[int, Generation] = {}
    for batch in theirs.generate_each(requests, Decoding(needs), known=half):
        made |= batch
    assert set(made) == {*range(len(PROMPTS))} - half
    wanted = ours.generate(PROMPTS, max_new_tokens=24, needs=needs)
    check_all([made[i] for i in sorted(made)], [wanted[i] for i in sorted(made)])


@pytest.mark.parametrize(("options", "named"), [
    ({"needs": Needs.of((1,), site="mlp_out")}, "site=mlp_out"),
    ({"needs": Needs(attention=True)}, "attention"),
    ({"needs": Needs.of((99,))}, "layer 99"), ({"max_new_tokens": 10**6}, "max_new_tokens=1000000"),
])  # fmt: skip
def test_what_it_does_not_have_is_refused_by_name(
    engines: tuple[CausalLM, VllmLM], options: dict[str, Any], named: str
) -> None:
    with fails(None, named):
        engines[1].generate(PROMPTS[:1], **{"max_new_tokens": 2, **options})


def make(folder: Path, engine: str, *given: str) -> FeatureStore:
    """What the command makes, whole or gone on with."""
    cli.run("datagen", [f"engine={engine}", f"out={folder}", *given])
    return FeatureStore.open(folder)


def rows_of(store: FeatureStore) -> dict[str, tuple[dict[str, Any], list[np.ndarray]]]:
    """By id the columns and the states of each feature."""
    by_row = {}
    for index in range(store.next_shard):
        rows, states, _, _ = store.read_shard(index)
        by_row |= {row["id"]: (row, [each[i] for each in states]) for i, row in enumerate(rows)}
    return by_row


def held_against(one: FeatureStore, other: FeatureStore, close: float) -> None:
    """Check that two stores are the same."""
    mine, theirs = ([replace(f, model=replace(f.model, sample="")) for f in s.features] for s in (one, other))
    assert mine == theirs
    ours, others = rows_of(one), rows_of(other)
    assert {*ours} == {*others}
    for i, (row, states) in ours.items():
        wanted, wanted_states = others[i]
        for name, value in wanted.items():
            if isinstance(value, float):
                assert row[name] is None if name == "rind_max" else abs(row[name] - value) < 50 * close
            else:
                assert row[name] == value, name
        for have, want in zip(states, wanted_states, strict=True):
            difference = np.abs(have.astype(float) - want).max() / np.abs(want.astype(float)).max()
            assert difference < close


COT = ["source=cot", "limit=24", "pool=[mean,last]"]
WIKI = ["source=wiki", "limit=24", "pool=[predicting,mean,mind]", "negatives=untouched"]


@pytest.mark.parametrize("source", [COT, WIKI, ["source=wiki", "limit=24", "pool=tokens"]])
def test_the_command_makes_the_same_store(source: list[str], tmp_path: Path) -> None:
    given = [*source, "model.dtype=float32", "shard_size=16"]
    theirs, ours = (make(tmp_path / name, name, *given) for name in ("vllm", "transformers"))
    held_against(theirs, ours, 2e-3)
    with fails(None, "engine", "vllm", "transformers"):
        make(tmp_path / "vllm", "transformers", *given)


def test_a_run_that_was_cut_off_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    given = [*COT, "model.dtype=float32", "shard_size=8", "batch_size=4"]
    whole = make(tmp_path / "whole", "vllm", *given)
    for _ in range(2):
        with interrupted(FeatureStore, "write_shard", 1):
            make(tmp_path / "cut", "vllm", *given)
    held_against(make(tmp_path / "cut", "vllm", *given), whole, 1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_the_check_finds_the_states_the_same_and_names_a_wrong_layer(
    model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["engine=vllm", f"model={model}", "model.dtype=float32"]
    cli.run("check", given)
    said = caplog.text
    assert "engine=vllm gives the states that probers are trained on" in said

    def one_too_low(feature: Feature) -> tuple[int, ...]:
        layers = StateTap.layers_of(feature)
        return layers if feature.of_mind else tuple(max(0, k - 1) for k in layers)

    shifted = SimpleNamespace(layers_of=one_too_low)
    monkeypatch.setattr("probers.model.vllm.records.StateTap", shifted)
    with fails(None, "off by one", kind=RunError):
        cli.run("check", given)


def test_a_small_cache_and_small_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last test: when one vLLM of a process ends, the others do.
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    ours = CausalLM.from_pretrained("testbed", dtype="float32")
    config = ours.model.config
    heads = config.num_key_value_heads / config.num_attention_heads
    token = int(2 * 4 * ours.width * heads * ours.num_layers)  # bytes of keys and values
    monkeypatch.setattr(vllm_lm, "_CACHE", token * (ours.context + 64))
    monkeypatch.setattr(vllm_lm, "_STEP", 256)
    theirs = start("testbed", dtype="float32", batch_size=64)
    scheduler = theirs._engine.engine_core.engine_core.scheduler
    preempt, preempted = scheduler._preempt_request, []
    monkeypatch.setattr(
        scheduler, "_preempt_request", lambda *a, **k: (preempted.append(a), preempt(*a, **k))[1]
    )
    needs = Needs((Feature((0, 12), pool="positions"), Feature((6,), pool="mean")), top=True)
    prompts = [f"{i} {prompt}" for i, prompt in enumerate(PROMPTS)]
    check_all(*(lm.generate(prompts, max_new_tokens=100, needs=needs) for lm in (theirs, ours)))
    assert preempted
