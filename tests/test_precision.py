"""The choice of model.dtype=auto, kept by a run; and recorded numbers of models in bfloat16."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, tiny_lm, tiny_path
from transformers import AutoModelForCausalLM

from probers.cli.compose import request
from probers.cli.inputs import load_model
from probers.cli.runs import RunFolder
from probers.model import loading
from probers.types import Needs

CPU = torch.device("cpu")


def config(width: int) -> SimpleNamespace:
    text = SimpleNamespace(hidden_size=width, intermediate_size=3 * width)
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.fixture
def native(monkeypatch):
    """A processor with or without bfloat16 of its own, as the test says."""

    def say(native: bool, least: int = 512) -> None:
        monkeypatch.setattr(loading, "native_bfloat16", lambda: native)
        monkeypatch.setattr(loading, "_LEAST_WIDTH", least)

    return say


def test_auto_is_bfloat16_where_the_processor_has_it_and_says_so(native, caplog):
    native(True)
    assert loading.pick_dtype("auto", CPU, config(512)) is torch.bfloat16
    assert "model.dtype=auto is bfloat16" in caplog.text
    caplog.clear()
    assert loading.pick_dtype("auto", CPU, config(511)) is torch.float32
    assert load_model(request("rag", ["model.device=cpu"])).spec.dtype == "float32"  # the testbed is narrow
    for named in ("float32", "bfloat16", "float16"):
        assert loading.pick_dtype(named, CPU, config(576)) is getattr(torch, named)
    assert loading.pick_dtype("auto", torch.device("cuda"), config(576)) == "auto"
    native(False)
    assert loading.pick_dtype("auto", CPU, config(576)) is torch.float32
    assert "model.dtype" not in caplog.text
    with fails("bad-value", "dtype=int8"):
        loading.pick_dtype("int8", CPU, config(576))


def test_a_run_keeps_the_format_it_began_with(native, tmp_path):
    def run(name: str) -> RunFolder:
        folder = RunFolder(tmp_path / name, "datagen", {"model": {"name": "tiny"}})
        folder.claim()
        return folder

    cfg = request("datagen", [f"model.name={tiny_path()}", "model.device=cpu"])
    for native_here, name, dtype in (
        (True, "a", "bfloat16"), (False, "b", "float32"), (False, "a", "bfloat16"), (True, "b", "float32"),
    ):  # fmt: skip
        native(native_here, least=8)
        assert load_model(cfg, run(name)).spec.dtype == dtype
    cfg = request("datagen", [f"model.name={tiny_path()}", "model.device=cpu", "model.dtype=float32"])
    assert load_model(cfg, run("c")).spec.dtype == "float32"
    assert "model.dtype" not in run("c").chosen


#: Of the largest state; of log-probabilities. The first against the same passes in bfloat16, where sums are
#: taken in another order, the second against float32: 8 bits are 1/256 for each of three blocks' sums.
NEAR = {torch.bfloat16: (0.025, 0.1), torch.float32: (0.05, 0.25)}


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_all_that_is_recorded_is_near_plain_transformers(family: str) -> None:
    half = tiny_lm(family, dtype="bfloat16", batch_size=len(PROMPTS))
    needs = Needs.of((0, 1, 2), pool="tokens")
    written = half.generate(PROMPTS, max_new_tokens=10, needs=needs)
    scored = half.score(PROMPTS, [g.token_ids for g in written], needs=needs)
    assert half.spec.dtype == "bfloat16"
    for kind, (of_states, of_logprobs) in NEAR.items():
        model = AutoModelForCausalLM.from_pretrained(Path(tiny_path(family)), dtype=kind).eval()
        for one, other in zip(written, scored, strict=True):
            ids, start = [*one.prompt_ids, *one.token_ids], len(one.prompt_ids)
            with torch.inference_mode():
                out = model(torch.tensor([ids]), output_hidden_states=True)
            states = torch.stack(out.hidden_states)[:3, 0, start:].float().transpose(0, 1).numpy()
            logits = out.logits[0, start - 1 : -1].float()
            never = torch.tensor([i for i in half.tokenizer.all_special_ids if i < logits.shape[-1]])
            all_of = logits.index_fill(-1, never, -1e4).log_softmax(-1)
            expected = all_of[range(len(one.token_ids)), list(one.token_ids)]
            entropies = torch.distributions.Categorical(logits=all_of).entropy()
            for actual in (one, other):
                room = of_states * np.abs(states).max()
                np.testing.assert_allclose(actual.state, states, rtol=0, atol=room)
                np.testing.assert_allclose(actual.logprobs, expected, rtol=0, atol=of_logprobs)
                np.testing.assert_allclose(actual.entropies, entropies, rtol=0, atol=of_logprobs)
