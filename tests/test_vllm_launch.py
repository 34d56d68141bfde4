"""What of the vLLM backend needs no vLLM: the command, and what is said of a text as it grows."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.refusals import fails
from helpers.serving import bank_for

from probers.cli.main import main, run
from probers.cli.settings import Model
from probers.model.causal_lm import CausalLM
from probers.model.vllm.records import check_options
from probers.serve.on_high import OnHigh
from probers.serve.settings import Serve
from probers.serve.vllm.choice import ForeignChoice
from probers.serve.vllm.prober import ServedProber, command
from probers.testbed.assets import model_path
from probers.types import Generation


def test_the_command_names_model_prober_and_worker_and_hides_the_key(lm, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    bank_for(lm).save_pretrained(tmp_path)
    argv, environment = command(Serve(api_key="secret", port=8001), str(tmp_path))
    options = dict(zip(argv, argv[1:], strict=False))
    assert str(model_path()) in argv and options["--served-model-name"] == "testbed"
    assert (options["--port"], options["--dtype"]) == ("8001", "float32")
    said = json.loads(options["--additional-config"])
    settings = {"allow_other": False, "layers": [6, 12], "abstention": Serve.abstention}
    assert said["probers"] == {"prober": str(tmp_path), **settings}
    assert ServedProber.of(said) == ServedProber(str(tmp_path), False, (6, 12))
    assert "secret" not in argv
    assert environment == {"VLLM_PLUGINS": "theirs,probers", "VLLM_API_KEY": "secret"}
    # A scheduler of our own only where the last token must be read.
    bank_for(lm, "predicting").save_pretrained(tmp_path / "before")
    assert "--scheduler-cls" in argv
    assert "--scheduler-cls" not in command(Serve(), str(tmp_path / "before"))[0]


@pytest.mark.parametrize(("pool", "site", "model", "code", "named"), [
    ("tokens", "mlp_out", {}, "unsupported", "site=mlp_out"),
    ("tokens", "passages", {}, "unsupported", "site=passages"),
    ("prompt", "resid_post", {}, "unsupported", "trigger=probing_before"),
    ("tokens", "resid_post", {"attn": "eager"}, "unsupported", "model.attn"),
    ("tokens", "resid_post", {"name": "no/folder/here"}, "no-file", "model=no/folder/here"),
])  # fmt: skip
def test_what_vllm_cannot_do_is_refused_before_it_starts(lm, tmp_path, pool, site, model, code, named):
    bank = bank_for(lm, pool)
    bank = replace(bank, spec=replace(bank.spec, site=site))
    bank.save_pretrained(tmp_path)
    with fails(code, named):
        command(Serve(model=Model(**model)), str(tmp_path))
    other = replace(bank, spec=replace(bank.spec, model=replace(lm.spec, id="other", revision="abc")))
    other.save_pretrained(tmp_path / "other")
    with fails(None, "other"):
        command(Serve(), str(tmp_path / "other"))


def configured(speculation: str | None = None, **sizes: int) -> Any:
    """The part of vLLM's configuration that our worker looks at before it loads the model."""
    alone = {"pipeline_parallel_size": 1, "data_parallel_size": 1, "prefill_context_parallel_size": 1}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**alone, "tensor_parallel_size": 1, **sizes}),
        speculative_config=None if speculation is None else SimpleNamespace(method=speculation),
    )


@pytest.mark.parametrize(("config", "named"), [
    (configured(pipeline_parallel_size=2), ("--pipeline-parallel-size 2", "--tensor-parallel-size 2")),
    (configured(data_parallel_size=4), ("--data-parallel-size 4", "experts", "--tensor-parallel-size 4")),
    (configured(prefill_context_parallel_size=2), ("--prefill-context-parallel-size 2", "leave it out")),
    (configured("draft_model"), ("--speculative-config", "method=draft_model", "method=ngram")),
    (configured("suffix"), ("--speculative-config", "method=suffix", "method=ngram")),
])  # fmt: skip
def test_options_with_which_no_state_can_be_read_are_refused_with_what_to_do(config, named):
    with fails("conflict", *named):
        check_options(config)
    check_options(configured("ngram", tensor_parallel_size=2))


@pytest.mark.parametrize("said", [None, {"probers": {}}, {"probers": {"prober": "x", "layer": 3}}])
def test_settings_that_name_no_prober_or_an_unknown_field(said):
    with fails(None):
        ServedProber.of(said)


@pytest.fixture(scope="module")
def made(lm):
    return lm.generate(["Who does Lena Zaser work for?\nAnswer:"], max_new_tokens=12)[0]


def choice_of(lm: CausalLM, made: Generation) -> ForeignChoice:
    return ForeignChoice(OnHigh.of(None, bank_for(lm), "", greedy=True), lm.tokenizer, made.prompt_ids)


def test_a_choice_tells_its_tokens_once_and_the_whole_at_the_end(lm, made):
    scores = [None if i == 2 else float(i) for i in range(len(made.token_ids))]
    choice, at_once = choice_of(lm, made), choice_of(lm, made)
    choice.scores, at_once.scores = [*scores], [*scores]
    parts = []
    for token, (start, end), logprob in zip(made.token_ids, made.offsets, made.logprobs, strict=True):
        choice.add(made.text[start:end], [token], [float(logprob)])
        parts += choice.chunk(choice.settled())["token_offsets"]
    assert choice.count_tokens() == len(made.token_ids)
    last = choice.whole(choice.count_tokens())
    assert (*parts, *last["token_offsets"]) == made.offsets and len(parts) > 5 and "revised" not in last
    at_once.add(made.text, made.token_ids, made.logprobs.tolist())
    whole = at_once.whole(at_once.count_tokens())
    assert whole["token_offsets"] == made.offsets
    assert list(whole["token_scores"]) == scores and whole["token_p_wrong"][2] is None
    assert whole["token_logprobs"] == pytest.approx(made.logprobs.tolist())


def test_a_choice_cut_at_a_stop_string_keeps_the_tokens_of_its_text_and_a_changed_one_none(lm, made):
    cut, changed = choice_of(lm, made), choice_of(lm, made)
    cut.add(made.text[: made.offsets[5][1]], made.token_ids, made.logprobs.tolist())
    assert cut.count_tokens() == 6
    changed.add("thoughts were taken out", made.token_ids, made.logprobs.tolist())
    assert changed.count_tokens() is None


def test_probers_serve_prints_the_command_or_says_what_vllm_does_not_offer(lm, tmp_path, capsys):
    bank_for(lm).save_pretrained(tmp_path)
    given = ["backend=vllm", "print_command=true", f"prober={tmp_path}", "api_key=secret"]
    with pytest.raises(SystemExit) as ended:
        main("serve", given)
    printed = capsys.readouterr().out
    assert not ended.value.code and "secret" not in printed
    assert "--worker-cls probers.serve.vllm.worker" in printed
    for more, code, named in (
        ("corpus=testbed", "unsupported", ""), ("prober=none", "conflict", ""), ("rows=8", None, "rows=8"),
        ("backend=transformers", None, "backend=vllm"),
    ):  # fmt: skip
        with fails(code, named):
            run("serve", [*given, more])
