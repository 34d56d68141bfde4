"""The loop over a server is the loop in this process, as far as a server tells what it reads."""

import json
import math
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.refusals import fails
from helpers.serving import PROMPT, Running, bank_for, running
from scipy.stats import entropy

from probers import CausalLM
from probers.cli import main as cli
from probers.data import load_corpus
from probers.data.texts.base import Mark
from probers.datagen.judges.base import Answer, Grounds
from probers.datagen.judges.openai import NO_JSON, OpenAIJudge
from probers.model.language_model import SentenceEnd
from probers.rag import RAG, triggers
from probers.rag.remote import RemoteLM
from probers.rag.retrievers.bm25 import BM25
from probers.rag.triggers import EntitySignal, Entropy, Flare, Probing, ServedProbing
from probers.signals import entropy_of_top
from probers.testbed.assets import load_questions
from probers.types import Needs

EXAMPLES = Path(__file__).parents[1] / "examples"
PROMPTS = [PROMPT, "Question: Where was Lena Zaser born?\nAnswer:", "Lena Zaser was born in", "The"]


@pytest.fixture(scope="module")
def server(lm: CausalLM) -> Iterator[Running]:
    with running(lm, bank_for(lm)) as server:
        yield server


@pytest.fixture(scope="module")
def bare(lm: CausalLM) -> Iterator[Running]:
    """A server that tells no more than OpenAI's."""
    with running(lm, None) as server:
        yield server


@pytest.fixture(scope="module")
def corpus() -> BM25:
    return BM25(load_corpus("testbed"))


def remote(server: Running, **options: Any) -> RemoteLM:
    return RemoteLM(f"{server.url}/v1", "testbed", **options)


@pytest.mark.parametrize("stop", [[], ["works", "\n"], [SentenceEnd()], [lambda text: "works" in text, "\n"]])
def test_a_generation_is_the_one_of_this_process(lm, server, bare, stop):
    limits = [40, 3, 24, 24]
    alone = lm.generate(PROMPTS, max_new_tokens=limits, stop=stop, needs=Needs(top=True))
    for served in (server, bare):
        made = remote(served).generate(PROMPTS, max_new_tokens=limits, stop=stop, needs=Needs(top=True))
        for mine, other in zip(alone, made, strict=True):
            assert (mine.text, mine.offsets) == (other.text, other.offsets)
            np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=1e-4)
            np.testing.assert_allclose(mine.top, other.top, atol=1e-5)
            if served is server:
                np.testing.assert_allclose(mine.entropies, other.entropies, atol=1e-4)
            else:
                assert (other.entropies <= mine.entropies + 1e-4).all()
    assert remote(server).exact and not remote(bare).exact


def test_the_entropy_of_the_likeliest_is_a_lower_bound() -> None:
    rng = np.random.default_rng(0)
    for spread in (0.1, 1.0, 5.0):
        whole = np.sort(rng.dirichlet(np.full(200, 1 / spread)))[::-1]
        bound = entropy_of_top(whole[:20].tolist())
        left = whole[20:].sum()
        assert bound == pytest.approx(entropy([*whole[:20], left]))
        assert bound <= entropy(whole) <= bound + left * math.log(180) + 1e-9
    assert entropy_of_top([1.0]) == 0 and entropy_of_top([0.5, 0.5]) == pytest.approx(math.log(2))


@pytest.mark.parametrize("trigger", [
    Flare(threshold=0.05), Entropy(threshold=0.05), EntitySignal(threshold=0.1), ServedProbing(),
    ServedProbing(threshold=50.0),
], ids=lambda trigger: trigger.name)  # fmt: skip
def test_the_loop_goes_the_same_way(lm: CausalLM, server: Running, corpus: BM25, trigger: Any) -> None:
    trigger_here = Probing(bank_for(lm), threshold=trigger.threshold) if trigger.served else trigger
    questions = load_questions()[:3]
    options: dict[str, Any] = {"k": 2, "max_new_tokens": 48, "max_retrievals": 2, "draft": 0}
    options["query"] = "answer"  # the usual one of entities reads attention, which a server does not give
    here = RAG(lm, corpus, trigger_here, **options).answer(questions)
    there = RAG(remote(server), corpus, trigger, **options).answer(questions)
    assert sum(answer.retrievals for answer in here) > 0
    for a, b in zip(here, there, strict=True):
        assert replace(a.counters, seconds=0) == replace(b.counters, seconds=0)
        for mine, other in zip(a.rounds, b.rounds, strict=True):
            assert replace(mine, decision=None) == replace(other, decision=None)
            one, two = mine.decision, other.decision
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                assert one.score == pytest.approx(two.score, abs=1e-3)
                assert (one.fire, one.position, one.threshold) == (two.fire, two.position, two.threshold)
        assert (a.text, a.answer, a.retrievals) == (b.text, b.answer, b.retrievals)


def test_what_a_server_does_not_hand_out_is_refused_by_name(lm, server, bare, corpus):
    for model, trigger, named in (
        (remote(server), triggers.Rind(), "trigger=rind"),
        (remote(server), Probing(bank_for(lm)), "trigger=probing"),
        (remote(bare), ServedProbing(), "trigger=probing"), (lm, ServedProbing(), "trigger=probing"),
    ):  # fmt: skip
        with fails("unsupported", named):
            RAG(model, corpus, trigger)


def command(server: Running | None, out: Path, *given: str) -> Any:
    engine = [f"engine={server.url}/v1"] if server else []
    cli.run("rag", [*engine, "limit=4", "draft=0", f"out={out}", *given])
    return json.loads((out / "results.json").read_text())


@pytest.mark.long
def test_the_command_answers_the_same_and_resumes(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    flare = ("trigger=flare", "query=flare")
    by_server, by_model = command(server, tmp_path / "out", *flare), command(None, tmp_path / "own", *flare)
    assert by_server["config"]["engine"] == f"{server.url}/v1"
    for figure in ("em", "f1", "acc", "retrievals", "generations", "tokens", "read_tokens"):
        assert by_server["methods"]["flare"][figure] == by_model["methods"]["flare"][figure]
    assert not any(b"sk-secret" in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    state, traces = tmp_path / "out" / "run.json", tmp_path / "out" / "traces.jsonl"
    run = json.loads(state.read_text())
    assert run["chosen"]["engine"] == "prober: random; entropies: exact"

    # Cut off after two answers, it goes on; with a server that tells something else it does not.
    whole = traces.read_bytes().splitlines(keepends=True)
    state.write_text(json.dumps(run | {"complete": False}))
    traces.write_bytes(b"".join(whole[:2]))
    command(server, tmp_path / "out", *flare)
    again = traces.read_bytes().splitlines(keepends=True)
    assert again[:2] == whole[:2] and len(again) == 4
    other = {"chosen": {"engine": "prober: other; entropies: exact"}}
    state.write_text(json.dumps(run | {"complete": False} | other))
    with fails("mismatch", "prober: other"):
        command(server, tmp_path / "out", *flare)


@pytest.mark.parametrize(("given", "code", "named"), [
    (["trigger=radio"], "unsupported", ["trigger=radio", "hidden states"]),
    (["trigger=flare", "query=qfs"], "unsupported", ["query=qfs", "attention"]),
    (["trigger.with_entropy=true"], "unsupported", ["trigger=probing", "with_entropy"]),
    (["trigger=never", "prompt=chat"], "unsupported", ["tokenizer"]),
    (["trigger=never", "model=other"], "model", ["'other'", "model=NAME", "testbed"]),
])  # fmt: skip
def test_the_command_refuses_before_it_asks(server, tmp_path, given, code, named):
    with fails(code, *named):
        command(server, tmp_path / "out", *given)


def test_a_comparison_leaves_out_what_cannot_be_had(server, tmp_path, caplog):
    given = [
        f"engine={server.url}/v1", "limit=4", "validation=8", "sweep=0", "resamples=100",
        f"out={tmp_path / 'out'}", "triggers=[never,entropy,probing,probing_entropy,rind_paper,radio]",
    ]  # fmt: skip
    cli.run("compare", given)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(results["methods"]) == {"never", "entropy", "probing"}
    notes = caplog.text
    for name in ("probing_entropy", "rind_paper", "radio"):
        assert f"note: {name} is left out: trigger=" in notes
    assert "Overlap unknown: the prober of http" in notes


def test_our_own_server_takes_a_judges_requests_and_its_model_is_no_judge(lm, tmp_path, monkeypatch):
    text = "She was born in London."
    place = text.index("London")
    judged = Answer("a", "Who was she?", text, (Mark(((place, place + 6),), None),))
    grounds: Any = Grounds(None, None, None, tmp_path)  # type: ignore[arg-type]
    with running(lm, None, max_tokens=8) as server:
        options: dict[str, Any] = {"url": f"{server.url}/v1", "model": "testbed", "passages": 0}
        with fails("server", "chat template"):
            OpenAIJudge(grounds, **options).judge([judged])
        template = "Question: {{ messages[-1].content[:40] }}\nAnswer:"
        monkeypatch.setattr(lm.tokenizer, "chat_template", template)
        made = OpenAIJudge(grounds, **options)
        assert [ruling.verdict for ruling in made.judge([judged])[0]] == ["unknown"]
    assert made.problems == {NO_JSON: 1}
    assert made.calls.sent == 1 and made.calls.budget.tokens > 0 and not made.calls.estimated


@pytest.mark.parametrize(("name", "needs"), [
    ("langchain", ("langchain_core", "langchain_openai")), ("llama_index", ("llama_index.core",)),
    ("haystack", ("haystack",)),
])  # fmt: skip
def test_the_examples_retrieve_only_where_an_answer_is_probably_wrong(lm, name, needs, capsys, monkeypatch):
    for package in needs:
        pytest.importorskip(package, reason='pip install "probers[examples]"')
    monkeypatch.setenv("OPENAI_API_KEY", "-")
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    results = {}
    for threshold in (-1e9, 1e9):
        with running(lm, replace(bank_for(lm), threshold=threshold)) as server:
            path = EXAMPLES / f"{name}_gate.py"
            monkeypatch.setattr(sys, "argv", [str(path), f"{server.url}/v1", "testbed"])
            runpy.run_path(str(path), run_name="__main__")
        results[threshold] = capsys.readouterr().out.splitlines()
    always, never = results[-1e9], results[1e9]
    assert sum(", retrieving: " in line for line in always) == 4
    assert len(never) == 8 and not any("retrieving" in line for line in never)
    assert [line for line in always if "?" in line] != [line for line in never if "?" in line]  # it was read
