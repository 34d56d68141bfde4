"""The loop over a real llama-server: its texts are those of the same weights in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probers import CausalLM
from probers.cli import main as cli
from probers.model.language_model import Sampling
from probers.rag import RAG
from probers.rag.remote import RemoteLM
from probers.rag.retrievers.bm25 import BM25
from probers.rag.triggers import Always, FixedSentence, Flare, Never
from probers.types import Passage, Question, UserError

PASSAGES = [
    Passage("1", "Paris is the capital of France. It lies on the Seine.", "Paris"),
    Passage("2", "Hamlet is a tragedy written by William Shakespeare around 1600.", "Hamlet"),
    Passage("3", "The Great Barrier Reef lies off the coast of Queensland in Australia.", "Reef"),
]
QUESTIONS = [
    Question(str(i), text)
    for i, text in enumerate(
        ["What is the capital of France?", "Who wrote Hamlet?", "Where is the Great Barrier Reef?"]
    )
]
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


@pytest.mark.parametrize("trigger", [Never(), Always(), Flare(threshold=0.9), FixedSentence()], ids=repr)
def test_the_loop_decides_alike(here, there, trigger):
    options: dict[str, Any] = {"query": "question", "prompt": "testbed", "k": 1, "max_new_tokens": 10}
    options |= {"max_retrievals": 1, "answer_tokens": 0, "draft": 0}
    ours = RAG(here, BM25(PASSAGES), trigger, **options).answer(QUESTIONS[:2])
    theirs = RAG(there, BM25(PASSAGES), trigger, **options).answer(QUESTIONS[:2])
    same = sum(
        a.retrievals == b.retrievals and [r.query for r in a.rounds] == [r.query for r in b.rounds]
        for a, b in zip(ours, theirs, strict=True)
    )
    assert same == 2


def test_ends_bytes_and_draws(there, caplog):
    for made in there.generate(["The end.", "日本の首都は", "😀😀"], max_new_tokens=8):
        assert len(made.offsets) == len(made.entropies) and made.text == made.text.rstrip("\ufffd")
        assert not made.offsets or made.offsets[-1][1] == len(made.text)
    drawn = there.generate(["Once upon a time"] * 3, max_new_tokens=8, sampling=Sampling(seed=3))
    assert len({each.text for each in drawn}) > 1
    assert "equal texts" not in caplog.text


def test_a_prompt_that_is_too_long_is_named(there):
    with pytest.raises(UserError, match="q7") as caught:
        there.generate(["word " * 600], max_new_tokens=2, names=["q7"])
    assert caught.value.code == "too-long"


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
