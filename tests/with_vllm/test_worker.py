"""Scores of vLLM's worker are those of our own engine, whatever vLLM does to fit the texts into its cache."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.refusals import fails
from vllm.lora.request import LoRARequest
from written import DRAFTS, PROMPTS, SCHEDULER, make_bank, ours, save_tiny, write

from probers.model.causal_lm import CausalLM
from probers.model.vllm.records import readable
from probers.prober.prober import Prober
from probers.serve.vllm.worker import key_of

COMPILED, RANKS = {"enforce_eager": False}, {"tensor_parallel_size": 2}
DRAFTED = {"speculative_config": DRAFTS}


@pytest.mark.parametrize(("model", "pool", "options"), [
    ("testbed", "tokens", COMPILED), ("smollm2", "shipped", {}), ("testbed", "predicting", {}),
    ("testbed", "mean", {}), ("testbed", "last", {}), ("testbed", "mind", {}), ("testbed", "sequence", {}),
    ("testbed", "tokens", DRAFTED), ("testbed", "mean", DRAFTED), ("testbed", "predicting", DRAFTED),
    ("llama", "tokens", RANKS | COMPILED), ("qwen3_moe", "tokens", {}), ("qwen3_moe", "tokens", RANKS),
])  # fmt: skip
def test_scores_of_texts_that_are_preempted_cached_drafted_and_shared_by_ranks(
    model: str, pool: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """Every score is there, and right, but that of the last token, which heads of MIND never read."""
    if model in ("llama", "qwen3_moe"):
        model = save_tiny(model, tmp_path / "model")
    lm = CausalLM.from_pretrained(model, dtype="float32")
    prober = "smollm2" if pool == "shipped" else str(tmp_path / "prober")
    layers = (0, lm.num_layers // 2, lm.num_layers)
    bank = Prober.from_pretrained(prober) if pool == "shipped" else make_bank(lm, Path(prober), pool, layers)
    whole = pool not in ("predicting", "mind")  # the last token's state is read too
    written, counters = write(
        model, prober, PROMPTS[::2], num_gpu_blocks_override=28, scheduler_cls=SCHEDULER if whole else None,
        **{"enforce_eager": True, **options},
    )  # fmt: skip
    assert counters["vllm:num_preemptions"] > 0 and counters["vllm:prefix_cache_hits"] > 0
    if "speculative_config" in options:
        accepted, drafts = (counters[f"vllm:spec_decode_num_{n}_tokens"] for n in ("accepted", "draft"))
        assert 0 < accepted < drafts
        # Before the tokens, accepted drafts beyond the end of a text have scores.
        written = [replace(text, scores=text.scores[:32]) for text in written]
    assert len({text.ids for text in written}) > 8  # texts of their own
    checked = written if pool in ("tokens", "shipped") else written[::4]
    for text, scores in zip(checked, ours(lm, bank, checked), strict=True):
        assert len(text.ids) == 32 and len(text.scores) == 32 - (pool == "mind")
        have = np.array(text.scores, dtype=float)
        np.testing.assert_allclose(have, scores[: len(have)], rtol=1e-3, atol=2e-3 * np.abs(scores).max())


def test_texts_of_the_probers_adapter_alone_are_scored() -> None:
    """What of an answer with it is scored tests/with_vllm/test_server.py asks a server."""
    given = SimpleNamespace(extra_args={"probers": "all"})
    lora = LoRARequest("prober", 1, "folder")
    for used, adapter, scored in ((lora, "folder", "all"), (None, "folder", None), (lora, None, None),
                                  (None, None, "all")):  # fmt: skip
        request: Any = SimpleNamespace(
            sampling_params=given, prompt_token_ids=[1], mm_features=None, lora_request=used
        )
        assert key_of(request, adapter) == scored


def test_a_family_that_hands_out_no_states_is_refused_by_name() -> None:
    from vllm.model_executor.models.mixtral import MixtralForCausalLM
    from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

    assert issubclass(readable(Qwen3MoeForCausalLM), Qwen3MoeForCausalLM)
    with fails("model", "MixtralForCausalLM", "without vLLM"):
        readable(MixtralForCausalLM)
