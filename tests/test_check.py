"""probers-check: states that are ours pass, and every planted mistake is named."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
import torch
from helpers.refusals import exits, fails
from helpers.serving import bank_for, running
from helpers.tiny import PROMPTS, tiny_lm

from probers.cli import main as cli
from probers.score import check
from probers.score.check import compare_states, our_states
from probers.types import RunError, UserError

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def states():
    """Ours of every layer of a tiny model, and after its final norm."""
    lm = tiny_lm(dtype="float32")
    return our_states(lm, lm.generate(PROMPTS, max_new_tokens=12))


def told(states, theirs, **options):
    ours, normed = states
    return compare_states(ours, theirs, tolerance=TOLERANCE, normed=normed, **options)


def test_the_same_states_are_the_same_and_slightly_moved_ones_too(states):
    ours, _ = states
    moved = {k: array * (1 + 1e-6) for k, array in ours.items()}
    assert [each.verdict for each in told(states, moved)] == ["same"] * len(ours)
    changed = ours[2].copy()
    changed[0, 7] += 50
    (one,) = told(states, {2: changed})
    assert one.absolute == pytest.approx(50, rel=1e-3) and not one.same


@pytest.mark.parametrize("by", [1, -1])
def test_shifted_layers_and_the_last_after_the_norm_are_named(states, by):
    ours, normed = states
    for each in told(states, {k: ours[k + by] for k in ours if k + by in ours}):
        assert not each.same and each.is_layer == each.layer + by and each.verdict.startswith("off by one")
    (far,) = told(states, {0: ours[3]})
    assert far.is_layer == 3 and not far.verdict.startswith("off by one")
    (each,) = told(states, {3: normed})
    assert each.normed and each.is_layer is None
    (each,) = compare_states(ours, {3: normed}, tolerance=TOLERANCE)
    assert not each.same and not each.normed


def test_another_number_format_is_no_other_layer(states):
    ours, _ = states
    coarse = {k: torch.from_numpy(array).bfloat16().float().numpy() for k, array in ours.items()}
    for each in told(states, coarse):
        assert not each.same and each.is_layer is None
    assert all(each.same for each in compare_states(ours, coarse, tolerance=0.1))
    shifted = compare_states(ours, {1: coarse[2]}, tolerance=0.1)
    assert shifted[0].is_layer == 2  # the shift shows through the rounding


def test_something_else_is_different_and_nothing_to_compare_with_is_an_error(states):
    ours, _ = states
    noise = np.random.default_rng(0).normal(size=ours[1].shape) * ours[1].std(axis=0)
    for other in (noise, np.full_like(noise, np.nan)):
        (each,) = told(states, {1: other})
        assert not each.same and each.verdict.startswith("different")
    for theirs in ({9: ours[1]}, {1: ours[1][:-1]}):
        with pytest.raises(ValueError):
            told(states, theirs)


QUICK = ("model.dtype=float32", "model.device=cpu", "max_new_tokens=8")


def code(*arguments):
    return exits("check", [*arguments, *QUICK])


def test_transformers_gives_our_states_but_for_the_norm_after_the_last_layer(lm, tmp_path, capsys):
    assert code("engine=transformers") == 0
    assert "12 layers are the same" in capsys.readouterr().out
    bank_for(lm).save_pretrained(tmp_path / "prober")  # of layers 6 and 12, the last
    assert code(f"prober={tmp_path / 'prober'}") == 1
    assert "its layer 12: the last layer after the final norm" in capsys.readouterr().err


def test_a_server_is_held_against_our_scores(lm, tmp_path, capsys):
    middle = bank_for(lm)
    middle = replace(middle, spec=replace(middle.spec, layers=(5, 9)))
    middle.save_pretrained(tmp_path / "prober")
    higher = replace(middle, spec=replace(middle.spec, layers=(6, 10)))
    other = replace(middle, head=bank_for(lm).head.select([1, 0]))
    for bank, expected, said in (
        (middle, 0, ""), (higher, 1, "layers one too high [mismatch]"),
        (other, 1, "another prober"), (None, 1, "[server]"),
    ):  # fmt: skip
        with running(lm, bank) as server:
            assert code(f"engine={server.url}/v1", f"prober={tmp_path / 'prober'}") == expected
        assert said in capsys.readouterr().err


def test_a_wrong_request_has_a_code_and_names_the_option(lm, tmp_path, monkeypatch):
    pooled = bank_for(lm)
    replace(pooled, spec=replace(pooled.spec, site="mlp_out")).save_pretrained(tmp_path / "prober")
    pooled.save_pretrained(tmp_path / "fine")

    def check_fails(code, named, option, prober="fine", kind=RunError):
        with fails(code, named, kind=kind):
            cli.run("check", [option, f"prober={tmp_path / prober}", *QUICK])

    check_fails("unknown-choice", "engine=sglang", "engine=sglang", kind=UserError)
    check_fails("unsupported", "mlp_out/tokens", "engine=transformers", "prober", kind=UserError)
    check_fails("network", "engine=http://127.0.0.1:9", "engine=http://127.0.0.1:9")
    client = httpx.Client
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": 3}))
    monkeypatch.setattr(check.httpx, "Client", lambda **options: client(transport=transport))
    check_fails("server", "engine=http://a", "engine=http://a")
