"""What is read from the inside is what transformers itself reports, and reading leaves no trace."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers.modeling_flash_attention_utils as flash
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, byte_level, reference, tiny_lm, tiny_path
from test_lm import CLOSE, alone, assert_all_same, rescored
from torch import nn
from transformers import AutoModelForCausalLM, GraniteConfig, OPTConfig

from probers.model.blocks import _find_parts, decoder_layers
from probers.model.causal_lm import CausalLM
from probers.model.hidden_states import StateTap
from probers.types import Feature, Needs, RunError

LAYERS = (0, 1, 2, 3)
NO_SDPA = {("gemma2", "sdpa"), ("mpt", "sdpa"), ("falcon_alibi", "sdpa")}
NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")
#: Attention and MLP read the same stream in these.
PARALLEL = {"phi", "gpt_neox", "falcon"}
STREAM = Feature(LAYERS, pool="tokens")
#: What attention and MLP add: at every token, on average, and at the last.
ADDED = [[Feature((1, 2, 3), s, p) for p in ("tokens", "mean", "last")] for s in ("attn_out", "mlp_out")]
MIDDLE = Feature((1, 2, 3), "resid_mid", "tokens")
MANY = Needs(
    (
        Feature(LAYERS, pool="predicting"), Feature(LAYERS, pool="mean"), Feature(LAYERS, pool="last"),
        Feature((2, 1), pool="tokens"), Feature(LAYERS, pool="positions"), Feature((3,), pool="mind"),
        Feature((1, 3), "mlp_out", "mean"), Feature((1, 3), "attn_out", "predicting"),
        Feature(LAYERS, pool="prompt"), Feature((3, 1), "attn_out", "prompt"),
    ),
    attention=True, top=True,
)  # fmt: skip


@cache
def plain(family: str, attn: str = "eager"):
    return AutoModelForCausalLM.from_pretrained(tiny_path(family), attn_implementation=attn).eval()


def hidden_of(family: str, generation) -> list[np.ndarray]:
    """hidden_states of an untouched model over one text without padding: (T, d) per layer."""
    # With ALiBi, transformers' eager Falcon computes something else than its fused one.
    model = plain(family, "sdpa" if family == "falcon_alibi" else "eager")
    return [states[0].numpy() for states in reference(model, generation).hidden_states]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_is_what_transformers_says(family):
    lm = tiny_lm(family, batch_size=3)
    more = [STREAM, *ADDED[0], *ADDED[1], *([] if family in PARALLEL else [MIDDLE])]
    needs = replace(MANY, features=(*MANY.features, *more))
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    assert [one.prompt for one in made] == [*PROMPTS]
    assert_all_same(made, rescored(lm, made))
    assert_all_same(made, alone(lm, PROMPTS, max_new_tokens=9, needs=needs))
    decoder = plain(family).get_decoder()
    norm = next(getattr(decoder, name) for name in NORMS if hasattr(decoder, name))
    for one in made:
        assert [*one.states] == [*needs.features]
        assert all(states.dtype == np.float32 for states in one.states.values())
        predicting, mean, last, tokens, positions, mind = list(one.states.values())[:6]
        hidden, p = hidden_of(family, one), len(one.prompt_ids)
        stream = np.stack(hidden[:3], axis=1)  # (T, layers, d)
        np.testing.assert_allclose(positions[:, :3], stream[p - 1 :], **CLOSE)
        # transformers reports the last layer after the final norm, we before it.
        assert not np.allclose(positions[:, 3], hidden[3][p - 1 :], atol=1e-2)
        normed = norm(torch.from_numpy(positions[:, 3])).detach()
        np.testing.assert_allclose(normed, hidden[3][p - 1 :], **CLOSE)
        np.testing.assert_array_equal(predicting, positions[:-1])
        np.testing.assert_array_equal(one.states[Feature(LAYERS, pool="prompt")], positions[0])
        added = one.states[Feature((1, 3), "attn_out", "predicting")][0, ::-1]
        np.testing.assert_array_equal(one.states[Feature((3, 1), "attn_out", "prompt")], added)
        np.testing.assert_allclose(mean, positions[1:].mean(axis=0), **CLOSE)
        np.testing.assert_allclose(last, positions[-1], **CLOSE)
        np.testing.assert_allclose(tokens, stream[p:, [2, 1]], **CLOSE)  # layers in the order asked for
        vector = np.concatenate([last[1:].mean(axis=0), hidden[3][p:].mean(axis=0)])
        np.testing.assert_allclose(mind, vector[None], **CLOSE)
        assert_adds_up(one.states)
    if family in PARALLEL:
        with fails("model", "site=resid_mid"):
            lm.generate(PROMPTS, max_new_tokens=8, needs=Needs((MIDDLE,)))


def assert_adds_up(states: Mapping[Feature, np.ndarray]) -> None:
    """What attention and MLP add is what the stream gains, and means and last states are of the tokens."""
    stream, attention, mlp = states[STREAM], *(states[each[0]] for each in ADDED)
    np.testing.assert_allclose(stream[:, :-1] + attention + mlp, stream[:, 1:], **CLOSE)
    assert np.abs(attention).max() > 1e-2 and np.abs(mlp).max() > 1e-2
    for tokens, mean, last in ADDED:
        np.testing.assert_allclose(states[mean], states[tokens].mean(axis=0), **CLOSE)
        np.testing.assert_allclose(states[last], states[tokens][-1], **CLOSE)
    if MIDDLE in states:
        np.testing.assert_allclose(stream[:, :-1] + attention, states[MIDDLE], **CLOSE)


@pytest.mark.parametrize("family", ["llama", "mpt"])
@pytest.mark.parametrize("way", [{}, {"prefix": PROMPTS[0]}, {"draft": 4}])
def test_the_prompts_last_state_is_there_before_anything_is_written(family, way):
    """It is what transformers says of the prompt alone, also where the model then writes nothing."""
    prompts = [PROMPTS[0], PROMPTS[0] + " The"] if way else PROMPTS
    needs = Needs((Feature(LAYERS, pool="prompt"), Feature((2,), pool="positions"), Feature((2,))))
    first, *others = needs.features
    (ended,) = tiny_lm(family).generate(prompts[:1], max_new_tokens=1)[0].token_ids
    lm = tiny_lm(family)
    lm.model.generation_config.eos_token_id = [ended, 0]
    for count in (1, 6):
        made = lm.generate(prompts, max_new_tokens=count, needs=needs, **way)
        assert not made[0].token_ids and [*made[0].states] == [first]
        for one in made:
            assert [*one.states] == ([first, *others] if one.token_ids else [first])
            ids = torch.tensor([one.prompt_ids])
            with torch.inference_mode():
                hidden = plain(family)(input_ids=ids, output_hidden_states=True).hidden_states
            expected = np.stack([states[0, -1].numpy() for states in hidden[:3]])
            np.testing.assert_allclose(one.states[first][:3], expected, **CLOSE)


def expected_rows(family: str, generation, *, layer: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and column maxima by their definitions, from eager attention; by default of the last layer."""
    weights = reference(plain(family), generation, output_attentions=True).attentions
    heads, p = weights[layer - 1][0].numpy(), len(generation.prompt_ids)  # (heads, T, T)
    among = heads[:, p:, p:]
    maxima = np.array([among[:, i:, i].max(axis=1).mean() for i in range(len(generation.token_ids))])
    return heads.mean(axis=0)[p - 1 :], maxima


#: Gemma 2 and MPT have no fused attention; on Falcon see above.
WAYS = [(f, a, 0) for f in FAMILIES for a in ("sdpa", "eager") if (f, a) not in NO_SDPA]
INNER = [(f, None, layer) for f in ("llama", "gemma3", "falcon", "mpt") for layer in (1, 2)]


@pytest.mark.parametrize(("family", "attn", "layer"), [*WAYS, *INNER])
def test_attention_is_that_of_eager_attention(family, attn, layer):
    lm = tiny_lm(family, attn=attn)
    needs = Needs(attention=True, attention_layer=layer or None)
    made = lm.generate(PROMPTS, max_new_tokens=15, needs=needs)
    for one in [*made, *rescored(lm, made)]:
        rows, maxima = expected_rows(family, one, layer=layer)
        np.testing.assert_allclose(one.attention.rows, rows, **CLOSE)
        np.testing.assert_allclose(one.attention.column_max, maxima, **CLOSE)
        np.testing.assert_allclose(one.attention.rows.sum(axis=1), 1.0, rtol=1e-5)
    if layer:
        assert not np.allclose(expected_rows(family, made[0])[0], made[0].attention.rows, atol=1e-2)


def test_a_cap_on_attention_scores_is_never_left_out():
    for family, attn, used in (
        ("gemma2", None, "eager"), ("gemma2", "eager", "eager"), ("gemma3", None, "sdpa"),
    ):  # fmt: skip
        assert tiny_lm(family, attn=attn).model.config._attn_implementation == used
    with fails("unsupported", "attn=sdpa"):
        tiny_lm("gemma2", attn="sdpa")


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_alone_forwards_the_generated_tokens_only(family):
    lm = tiny_lm(family, attn="eager")
    generations = lm.generate(PROMPTS, max_new_tokens=7)
    generations += lm.generate(PROMPTS[:2], max_new_tokens=12)  # padding among them
    for one, generation in zip(generations, lm.attention_alone(generations), strict=True):
        weights = reference(plain(family), replace(one, prompt_ids=()), output_attentions=True).attentions
        heads = weights[-1][0].numpy()
        np.testing.assert_allclose(generation.rows[1:], heads.mean(axis=0), **CLOSE)
        assert not generation.rows[0].any()
        np.testing.assert_allclose(generation.column_max, heads.max(axis=1).mean(axis=0), **CLOSE)


def traces(lm: CausalLM) -> tuple[int, list[int], set[str]]:
    """Hooks, the identity of every config, and the attention functions in use."""
    modules = list(lm.model.modules())
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    configs = [m.config for m in modules if hasattr(m, "config")]
    return hooks, [id(c) for c in configs], {c._attn_implementation for c in configs}


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_changes_nothing_and_leaves_nothing_behind_even_after_an_error(family):
    """Also where the tapped block has to leave its fused kernel."""
    lm = tiny_lm(family)
    before, needs = traces(lm), Needs.of(LAYERS, attention=True)
    bare, plainly, tapped = (
        lm.generate(PROMPTS, max_new_tokens=10, needs=each) for each in (Needs(), Needs.of(LAYERS), needs)
    )
    for none, one, other in zip(bare, plainly, tapped, strict=True):
        assert none.token_ids == one.token_ids == other.token_ids
        np.testing.assert_allclose(one.state, other.state, **CLOSE)
    assert traces(lm) == before

    def stop(text: str) -> bool:
        assert traces(lm) != before
        raise KeyError("a user's own mistake")

    with pytest.raises(KeyError, match="own mistake"):
        lm.generate(PROMPTS, max_new_tokens=6, needs=needs, stop=[stop])
    assert traces(lm) == before
    handle = decoder_layers(lm.model)[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lm.score(PROMPTS[:1], [[5, 6]], needs=needs)
    handle.remove()
    assert traces(lm) == before


class Blocks(nn.Module):
    """The least that has blocks to read."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            states = block(states)
        return states


@pytest.mark.parametrize("guarded", [False, True])
def test_a_compiled_model_is_read_exactly_or_not_at_all(guarded):
    """A graph runs no hook that came after it, unless hooks are among its guards."""
    torch.compiler.reset()
    model, given = Blocks(), torch.ones(1, 2, 4)
    step = torch.compile(model, backend="eager", fullgraph=True)

    def states(run):
        with StateTap(model, Feature((0, 2))) as tap:
            tap.read_last(1)
            run(given)
            return tap.take()

    hooks = torch._dynamo.config.patch(skip_nnmodule_hook_guards=not guarded)
    with hooks, torch.no_grad():
        step(given)
        if guarded:
            assert torch.equal(states(step), states(model))
        else:
            with fails("model", "skip_nnmodule_hook_guards", kind=RunError):
                states(step)


def of_config(config) -> CausalLM:
    torch.manual_seed(0)
    return CausalLM(AutoModelForCausalLM.from_config(config).eval(), byte_level())


SMALL = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_a_block_that_does_more_than_adding_has_no_sites_inside():
    scaled = GraniteConfig(**SMALL, intermediate_size=48, num_key_value_heads=4, residual_multiplier=0.5)
    normed = OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=False, init_std=0.3)
    for config, family in ((scaled, "Granite"), (normed, "OPT")):
        lm = of_config(config)
        with fails("model", f"{family}ForCausalLM", "attn_out", "site=resid_post"):
            lm.generate(["The"], max_new_tokens=2, needs=Needs.of((1,), site="attn_out"))
        made = lm.generate(["The"], max_new_tokens=2, needs=Needs.of((1, 2)))
        assert made[0].state is not None or not made[0].token_ids


def test_parts_of_a_block_are_found_beside_places_far_larger_than_what_it_adds():
    """In 16 bits such a place swallows what a module adds to it, as in real models at the first token."""
    model = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.bfloat16)
    names = [(parts.attention, parts.mlp) for parts in _find_parts(model)]
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] += 20_000
    assert [(parts.attention, parts.mlp) for parts in _find_parts(model)] == names
    with torch.no_grad():  # the converse: places that swallow everything tell nothing
        model.get_input_embeddings().weight += 1e30
    with fails("model", "site=resid_post"):
        _find_parts(model)


def kernel(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    """Flash attention by its definition; (batch, length, heads, width)."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) * softmax_scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    rows, columns = scores.shape[-2:]
    places = torch.arange(rows)[:, None] + columns - rows
    back = places - torch.arange(columns)
    hidden = (back < 0) if causal else torch.zeros_like(back, dtype=torch.bool)
    if window_size[0] >= 0:
        hidden = hidden | (back > window_size[0])
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def by_texts(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
):  # fmt: skip
    pieces = [pairwise(ends.tolist()) for ends in (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k)]
    made = []
    for places in zip(*pieces, strict=True):
        text = (x[None, a:b] for x, (a, b) in zip((q, k, v), places, strict=True))
        made.append(kernel(*text, softmax_scale, causal, window_size, softcap))  # type: ignore[call-arg]
    return torch.cat(made, dim=1)[0]


@pytest.fixture
def played(monkeypatch):
    """transformers has loaded flash_attention_2, a kernel of ours; other names are looked for in the Hub."""
    given = {
        "_loaded_implementation": "flash_attention_2", "_flash_fn": kernel, "_flash_varlen_fn": by_texts,
        "_flash_with_kvcache_fn": None, "_pad_fn": flash._pad_input, "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(by_texts),
        "_process_with_kvcache_kwargs_fn": dict,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setattr(flash, name, value)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma2", "gemma3"])
def test_attention_of_a_flash_kernel_is_that_of_eager_attention(family, played):
    """Mistral's and Gemma's windows of 8 hide most of every prompt."""
    lm = tiny_lm(family)
    lm.model.config._attn_implementation_internal = "flash_attention_2"
    for layer in (1, 2, 3):
        needs = Needs(attention=True, attention_layer=layer)
        generations = lm.generate(PROMPTS, max_new_tokens=12, needs=needs)
        scored = lm.score(PROMPTS, [g.token_ids for g in generations], needs=needs)
        for generation in [*generations, *scored]:
            rows, maxima = expected_rows(family, generation, layer=layer)
            np.testing.assert_allclose(generation.attention.rows, rows, **CLOSE)
            np.testing.assert_allclose(generation.attention.column_max, maxima, **CLOSE)
