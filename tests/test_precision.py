"""model.dtype=auto takes the faster format and a run keeps it; in bfloat16 all that is recorded is near."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import FAMILIES, PROMPTS, tiny_lm, tiny_path
from transformers import AutoModelForCausalLM

from probers.commands.compose import request
from probers.commands.parts import load_model
from probers.commands.runs import RunFolder
from probers.engine import precision
from probers.types import Needs, UserError

CPU = torch.device("cpu")


def config(width: int) -> SimpleNamespace:
    text = SimpleNamespace(hidden_size=width, intermediate_size=3 * width)
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.fixture
def native(monkeypatch):
    """A processor with bfloat16, on which it is faster or slower as the test says."""

    def say(gain: float, least: int = 512) -> list[tuple[int, int]]:
        asked: list[tuple[int, int]] = []
        monkeypatch.setattr(precision, "native_bfloat16", lambda: True)
        monkeypatch.setattr(precision, "_LEAST_WIDTH", least)
        monkeypatch.setattr(precision, "gain", lambda *shape: asked.append(shape) or gain)
        return asked

    return say


def test_auto_takes_what_is_measured_faster_and_says_so(native, capsys):
    assert native(2.5) == []
    assert precision.pick_dtype("auto", CPU, lambda: config(576)) is torch.bfloat16
    assert "model.dtype=auto is bfloat16: bfloat16 was measured 2.50 times as fast" in capsys.readouterr().err
    for gain in (0.6, 1.1):  # a little is not worth half the digits
        asked = native(gain)
        assert precision.pick_dtype("auto", CPU, lambda: config(576)) is torch.float32
        assert asked == [(576, 1728)]
        assert f"is float32: bfloat16 was measured {gain:.2f}" in capsys.readouterr().err


def test_what_is_named_narrow_or_on_another_processor_is_not_measured(native, monkeypatch, capsys):
    asked = native(9.0)
    assert precision.pick_dtype("auto", CPU, lambda: config(511)) is torch.float32
    for named in ("float32", "bfloat16", "float16"):
        assert precision.pick_dtype(named, CPU, lambda: config(576)) is getattr(torch, named)
    assert precision.pick_dtype("auto", torch.device("cuda"), lambda: config(576)) == "auto"
    assert tiny_lm().spec.dtype == "float32"
    monkeypatch.setattr(precision, "native_bfloat16", lambda: False)
    assert precision.pick_dtype("auto", CPU, lambda: config(576)) is torch.float32
    assert (asked, capsys.readouterr().err.count("model.dtype")) == ([], 0)
    with pytest.raises(UserError, match="dtype=int8 is not a number format"):
        precision.pick_dtype("int8", CPU, lambda: config(576))


def test_the_testbed_is_too_narrow_to_be_measured(native):
    asked = native(9.0)
    assert load_model(request("rag", ["model.device=cpu"])).spec.dtype == "float32"
    assert asked == []


def test_it_is_measured_once_and_leaves_the_threads(monkeypatch):
    precision.gain.cache_clear()
    calls, threads = [], torch.get_num_threads()
    monkeypatch.setattr(precision, "_seconds", lambda w, i, kind: calls.append(kind) or float(len(calls)))
    assert (precision.gain(64, 96), precision.gain(64, 96)) == (0.5, 0.5)
    assert calls == [torch.float32, torch.bfloat16]
    assert torch.get_num_threads() == threads
    precision.gain.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(precision, "_WEIGHTS", 1 << 16)
    assert 0 < precision.gain(64, 96) < 1000
    precision.gain.cache_clear()


def test_a_run_keeps_the_format_it_began_with(native, tmp_path, capsys):
    cfg = request("datagen", [f"model.name={tiny_path()}", "model.device=cpu"])

    def run(name: str) -> RunFolder:
        folder = RunFolder(tmp_path / name, "datagen", {"model": {"name": "tiny"}})
        folder.claim()
        return folder

    native(2.0, least=8)
    assert load_model(cfg, run("a")).spec.dtype == "bfloat16"
    native(0.5, least=8)
    assert load_model(cfg, run("b")).spec.dtype == "float32"
    capsys.readouterr()
    assert load_model(cfg, run("a")).spec.dtype == "bfloat16"
    assert "model.dtype=bfloat16, in which this run began" in capsys.readouterr().err
    native(2.0, least=8)
    assert load_model(cfg, run("b")).spec.dtype == "float32"
    run("a").finish({"n": 1})
    assert run("a").chosen == {"model.dtype": "bfloat16"}
    assert load_model(cfg).spec.dtype == "bfloat16"  # no run, nothing kept
    cfg.model.dtype = "float32"
    assert load_model(cfg, run("c")).spec.dtype == "float32"
    assert run("c").chosen == {}


def test_a_run_whose_choice_is_damaged_says_so(tmp_path):
    folder = RunFolder(tmp_path / "a", "datagen", {})
    folder.claim()
    file = folder.path / "run.json"
    file.write_text(file.read_text().replace('"complete"', '"chosen": {"model.dtype": 3},\n "complete"'))
    with pytest.raises(UserError, match=r"run\.json is damaged \('chosen'"):
        assert folder.chosen


#: Of the largest state; of log-probabilities. The first against the same passes in bfloat16, where sums are
#: taken in another order, the second against float32: 8 bits are 1/256 for each of three blocks' sums.
NEAR = {torch.bfloat16: (0.025, 0.1), torch.float32: (0.05, 0.25)}


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_all_that_is_recorded_is_near_plain_transformers(family: str) -> None:
    half = tiny_lm(family, dtype="bfloat16", batch_size=len(PROMPTS))
    needs = Needs(layers=(0, 1, 2), pool="tokens")
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
            for found in (one, other):
                room = of_states * np.abs(states).max()
                np.testing.assert_allclose(found.states, states, rtol=0, atol=room)
                np.testing.assert_allclose(found.logprobs, expected, rtol=0, atol=of_logprobs)
                np.testing.assert_allclose(found.entropies, entropies, rtol=0, atol=of_logprobs)
