"""Scores of vLLM's worker are those of our own engine, whatever vLLM does to fit the texts into its cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import PROMPTS, SCHEDULER, Written, make_bank, ours, write

from probers.bank.bank import ProbeBank
from probers.engine.model import CausalLM


def check(written: list[Written], want: list[np.ndarray], unread: int = 0) -> None:
    """Every score is there but those of the last ``unread`` tokens, and right."""
    for text, scores in zip(written, want, strict=True):
        assert len(text.ids) == 32 and len(text.scores) == 32 - unread
        have = np.array(text.scores, dtype=float)
        np.testing.assert_allclose(have, scores[: len(have)], rtol=1e-3, atol=2e-3 * np.abs(scores).max())


@pytest.mark.parametrize("model", ["testbed", "smollm2"])
def test_scores_of_64_texts_with_preemption_cache_hits_and_chunks(model: str, tmp_path: Path) -> None:
    lm = CausalLM.from_pretrained(model, dtype="float32")
    if model == "smollm2":
        prober, bank = model, ProbeBank.from_pretrained(model)
    else:
        prober, bank = str(tmp_path), make_bank(lm, tmp_path, "tokens", (6, 12))
    written, counters = write(
        model, prober, PROMPTS, num_gpu_blocks_override=28, scheduler_cls=SCHEDULER,
        enforce_eager=model != "testbed",  # one compiled engine is enough
    )  # fmt: skip
    assert counters["vllm:num_preemptions"] > 0
    assert counters["vllm:prefix_cache_hits"] > 0
    check(written, ours(lm, bank, written))


@pytest.mark.parametrize(
    ("pool", "scheduler", "unread"),
    [("predicting", None, 0), ("mean", SCHEDULER, 0), ("last", SCHEDULER, 0), ("mind", None, 1)],
)
def test_every_pool_also_when_texts_are_computed_again(
    pool: Any, scheduler: str | None, unread: int, tmp_path: Path
) -> None:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    bank = make_bank(lm, tmp_path, pool, (0, 6, 12))
    written, counters = write(
        "testbed", str(tmp_path), PROMPTS[::3], num_gpu_blocks_override=28, enforce_eager=True,
        scheduler_cls=scheduler,
    )  # fmt: skip
    assert counters["vllm:num_preemptions"] > 0
    check(written[::4], ours(lm, bank, written[::4]), unread)
