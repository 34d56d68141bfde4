"""Scores of vLLM's worker are those of our own engine, whatever vLLM does to fit the texts into its cache."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.refusals import fails
from vllm.lora.request import LoRARequest
from written import (
    DRAFTS,
    PROMPTS,
    SCHEDULER,
    Written,
    make_bank,
    ours,
    save_tiny,
    write,
)

from probers.model.causal_lm import CausalLM
from probers.model.vllm.records import readable
from probers.prober.prober import Prober
from probers.serve.vllm.worker import key_of


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
        prober, bank = model, Prober.from_pretrained(model)
    else:
        prober, bank = str(tmp_path), make_bank(lm, tmp_path, "tokens", (6, 12))
    written, counters = write(
        model, prober, PROMPTS, num_gpu_blocks_override=28, scheduler_cls=SCHEDULER,
        enforce_eager=model != "testbed",  # one compiled engine is enough
    )  # fmt: skip
    assert counters["vllm:num_preemptions"] > 0
    assert counters["vllm:prefix_cache_hits"] > 0
    check(written, ours(lm, bank, written))


def test_texts_of_the_probers_adapter_alone_are_scored() -> None:
    """What of an answer with it is scored tests/with_vllm/test_server.py asks a server."""
    given = SimpleNamespace(extra_args={"probers": "all"})
    asked = LoRARequest("prober", 1, "folder")
    for used, adapter, scored in ((asked, "folder", "all"), (None, "folder", None), (asked, None, None),
                                  (None, None, "all")):  # fmt: skip
        request: Any = SimpleNamespace(
            sampling_params=given, prompt_token_ids=[1], mm_features=None, lora_request=used
        )
        assert key_of(request, adapter) == scored


@pytest.mark.parametrize(("pool", "scheduler", "unread"), [
    ("predicting", None, 0), ("mean", SCHEDULER, 0), ("last", SCHEDULER, 0), ("mind", None, 1),
    ("sequence", SCHEDULER, 0),
])  # fmt: skip
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


@pytest.mark.parametrize(("family", "ranks", "more"), [
    ("llama", 2, {"enforce_eager": False}), ("qwen3_moe", 1, {}), ("qwen3_moe", 2, {}),
])  # fmt: skip
def test_ranks_and_experts_change_no_score(
    family: str, ranks: int, more: dict[str, Any], tmp_path: Path
) -> None:
    model = save_tiny(family, tmp_path / "model")
    lm = CausalLM.from_pretrained(model, dtype="float32")
    bank = make_bank(lm, tmp_path / "prober", "tokens", (0, 1, 3))
    written, counters = write(
        model, str(tmp_path / "prober"), PROMPTS[::2], num_gpu_blocks_override=40, scheduler_cls=SCHEDULER,
        **{"tensor_parallel_size": ranks, "enforce_eager": True, **more},
    )  # fmt: skip
    assert counters["vllm:num_preemptions"] > 0 and counters["vllm:prefix_cache_hits"] > 0
    assert len({text.ids for text in written}) > 8  # texts of their own
    check(written, ours(lm, bank, written))


@pytest.mark.parametrize("pool", ["tokens", "mean", "predicting"])
def test_rejected_drafts_leave_no_score(pool: Any, tmp_path: Path) -> None:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    bank = make_bank(lm, tmp_path, pool, (0, 6, 12))
    written, counters = write(
        "testbed", str(tmp_path), PROMPTS[::3], num_gpu_blocks_override=28, enforce_eager=True,
        scheduler_cls=None if pool == "predicting" else SCHEDULER, speculative_config=DRAFTS,
    )  # fmt: skip
    accepted, all_drafts = (
        counters[f"vllm:spec_decode_num_{which}_tokens"] for which in ("accepted", "draft")
    )
    assert 0 < accepted < all_drafts and counters["vllm:num_preemptions"] > 0
    if pool == "predicting":  # accepted drafts beyond the end of a text have scores
        written = [replace(text, scores=text.scores[:32]) for text in written]
    check(written, ours(lm, bank, written))


def test_a_family_that_hands_out_no_states_is_refused_by_name() -> None:
    from vllm.model_executor.models.mixtral import MixtralForCausalLM
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

    assert issubclass(readable(Qwen3MoeForCausalLM), Qwen3MoeForCausalLM)
    with fails("model", "MixtralForCausalLM", "without vLLM"):
        readable(MixtralForCausalLM)
