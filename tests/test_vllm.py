"""What of vLLM needs no vLLM: the command, what is said of a text as it grows, what is kept of its states."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import fails
from tiny import PROMPTS, tiny_lm

from probers.bank.assessment import Assessor
from probers.bank.bank import ProbeBank
from probers.commands.main import main
from probers.commands.settings import Model
from probers.engine.model import CausalLM
from probers.engine.vllm.records import TextRecord
from probers.heads import LinearHead
from probers.serve.answers import ForeignChoice
from probers.serve.settings import Serve
from probers.serve.vllm.prober import ServedProber, command
from probers.store.spec import FeatureSpec
from probers.testbed.assets import model_path
from probers.types import Feature, Needs


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return CausalLM.from_pretrained("testbed", dtype="float32")


def make_bank(lm: CausalLM, site: Any = "resid_post", pool: Any = "tokens") -> ProbeBank:
    head = LinearHead(["0/6", "0/12"], lm.width)
    aggregate = "max" if pool == "tokens" else None
    return ProbeBank(FeatureSpec(lm.spec, (6, 12), lm.width, site, pool), head, aggregate=aggregate)


def test_the_command_names_model_prober_and_worker_and_hides_the_key(
    lm: CausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    make_bank(lm).save_pretrained(tmp_path)
    argv, environment = command(Serve(api_key="secret", port=8001), str(tmp_path))
    options = dict(zip(argv, argv[1:], strict=False))
    assert str(model_path()) in argv and options["--served-model-name"] == "testbed"
    assert (options["--port"], options["--dtype"]) == ("8001", "float32")
    said = json.loads(options["--additional-config"])
    assert said["probers"] == {"prober": str(tmp_path), "allow_other": False, "layers": [6, 12]}
    assert ServedProber.of(said) == ServedProber(str(tmp_path), False, (6, 12))
    assert "secret" not in argv
    assert environment == {"VLLM_PLUGINS": "theirs,probers", "VLLM_API_KEY": "secret"}


@pytest.mark.parametrize(("pool", "lengthened"), [("tokens", True), ("mean", True), ("predicting", False)])
def test_a_scheduler_of_our_own_only_where_the_last_token_must_be_read(
    lm: CausalLM, tmp_path: Path, pool: str, lengthened: bool
) -> None:
    make_bank(lm, pool=pool).save_pretrained(tmp_path)
    argv, _ = command(Serve(), str(tmp_path))
    assert ("--scheduler-cls" in argv) == lengthened


@pytest.mark.parametrize(
    ("site", "model", "code", "named"),
    [
        ("mlp_out", {}, "unsupported", "site=mlp_out"),
        ("resid_post", {"attn": "eager"}, "unsupported", "model.attn"),
        ("resid_post", {"name": "no/folder/here"}, "model", "model=no/folder/here"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_it_starts(
    lm: CausalLM, tmp_path: Path, site: str, model: dict[str, Any], code: Any, named: str
) -> None:
    make_bank(lm, site).save_pretrained(tmp_path)
    with fails(code, named):
        command(Serve(model=Model(**model)), str(tmp_path))


def test_a_prober_of_another_model_is_refused(lm: CausalLM, tmp_path: Path) -> None:
    model = replace(lm.spec, id="other", revision="abc")
    other = FeatureSpec(model, (6,), lm.width, pool="last")
    ProbeBank(other, LinearHead(["0/6"], lm.width)).save_pretrained(tmp_path)
    with fails(None, "other"):
        command(Serve(), str(tmp_path))


@pytest.mark.parametrize("said", [None, {}, {"probers": {}}, {"probers": {"prober": "x", "layer": 3}}])
def test_settings_that_name_no_prober_or_an_unknown_field(said: Any) -> None:
    with fails(None):
        ServedProber.of(said)


@pytest.fixture
def written(lm: CausalLM) -> tuple[Any, ForeignChoice]:
    """A text and an answer of it that begins."""
    made = lm.generate(["Who does Lena Zaser work for?\nAnswer:"], max_new_tokens=12)[0]
    return made, ForeignChoice(Assessor(make_bank(lm)), lm.tokenizer, made.prompt_ids)


def test_a_choice_tells_its_tokens_once_and_the_whole_at_the_end(written: tuple[Any, ForeignChoice]) -> None:
    made, choice = written
    choice.scores = [float(i) for i in range(len(made.token_ids))]
    choice.scores[2] = None
    parts = []
    for token, (start, end), logprob in zip(made.token_ids, made.offsets, made.logprobs, strict=True):
        choice.add(made.text[start:end], [token], [float(logprob)])
        parts += choice.chunk(choice.settled())["token_offsets"]
    assert choice.kept() == len(made.token_ids)
    whole = choice.whole(len(made.token_ids))
    assert whole["token_offsets"] == [list(span) for span in made.offsets]
    assert parts == whole["token_offsets"][: len(parts)]
    assert whole["token_scores"] == choice.scores and whole["token_p_wrong"][2] is None
    assert whole["token_logprobs"] == pytest.approx(made.logprobs.tolist())


@pytest.mark.parametrize("cut", [True, False])
def test_a_choice_cut_at_a_stop_keeps_its_texts_tokens_and_a_changed_one_none(
    written: tuple[Any, ForeignChoice], cut: bool
) -> None:
    made, choice = written
    text = made.text[: made.offsets[5][1]] if cut else "thoughts were taken out"
    choice.add(text, made.token_ids, made.logprobs.tolist())
    assert choice.kept() == (6 if cut else None)


def test_probers_serve_prints_the_command_or_says_what_vllm_does_not_offer(
    lm: CausalLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_bank(lm).save_pretrained(tmp_path)
    given = ["backend=vllm", "print_command=true", f"prober={tmp_path}", "api_key=secret"]
    with pytest.raises(SystemExit) as ended:
        main("serve", given)
    printed = capsys.readouterr().out
    assert not ended.value.code and "secret" not in printed
    assert "--worker-cls probers.serve.vllm.worker" in printed
    for more, message in [
        ("corpus=testbed", "[unsupported]"),
        ("prober=none", "[conflict]"),
        ("rows=8", "rows=8"),
        ("threads=1", "threads=1"),
        ("backend=transformers", "backend=vllm"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main("serve", [*given, more])
        assert ended.value.code == 2 and message in capsys.readouterr().err


# Records of texts.

DEPTH = 3
POOLS: list[tuple[Any, tuple[int, ...]]] = [
    ("predicting", (0, 2)), ("tokens", (1, 3)), ("positions", (0, 1, 2, 3)), ("mean", (2,)), ("last", (3, 1)),
    ("mind", (DEPTH,)), ("mind_tokens", (DEPTH,)),
]  # fmt: skip


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


@pytest.mark.parametrize(("pool", "layers"), POOLS)
@pytest.mark.parametrize("kept", [1, 6, 9])
def test_states_of_every_pool_as_places_come(
    text: tuple[Any, Any, torch.Tensor], pool: Any, layers: tuple[int, ...], kept: int
) -> None:
    lm, made, states = text
    needs = Needs((Feature(layers, pool=pool), Feature((1,), pool="last" if pool != "last" else "mean")))
    rng, record = random.Random(kept), TextRecord(needs, 5)
    while record.count < kept + 1:
        count = min(rng.randint(1, 3), len(states) - record.count)
        new = states[record.count : record.count + count]
        record.add({layers: new[:, list(layers)] for layers in record.layers}, count)
        record.commit(min(kept, record.count - 2))
    want = lm.score([made.prompt], [made.token_ids[:kept]], needs=needs)[0]
    found = record.recorded(kept)
    assert found.broken is None and found.scores.shape == (4, 0)
    assert [*found.states] == [*want.states] == [*needs.features]
    for feature, have in found.states.items():
        np.testing.assert_allclose(have, want.states[feature], rtol=1e-5, atol=1e-5)


def test_the_first_broken_state_is_named_by_token_and_layer() -> None:
    needs = Needs.of((1, 2), pool="positions")
    states = torch.ones(4, 2, 8)
    states[3, 1, 4] = float("nan")
    for kept, broken in ((3, (*needs.features, 2, 1)), (2, None)):  # or it is no part of the text
        record = TextRecord(needs, 0)
        record.add({(1, 2): states}, 4)
        assert record.recorded(kept).broken == broken


@pytest.mark.parametrize("command", ["datagen", "compare", "rag", "check"])
def test_without_vllm_the_extra_is_named(
    command: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("probers.engine.vllm.lm.find_spec", lambda name: None)
    more = {
        "datagen": [f"out={tmp_path / 'out'}", "limit=4"],
        "compare": [f"out={tmp_path / 'out'}", "limit=4", "triggers=[never]"],
        "rag": ["trigger=never", "question=Who?"],
        "check": [],
    }[command]
    with pytest.raises(SystemExit) as ended:
        main(command, ["engine=vllm", *more])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and 'engine=vllm needs vLLM: pip install "probers[vllm]"' in said
    assert not (tmp_path / "out").exists()
