"""What vLLM writes and scores beside a prober, and what our own engine says of the same tokens."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.tiny import byte_level
from transformers import AutoConfig, AutoModelForCausalLM

from probers.checkpoints import locate
from probers.files import cache_folder
from probers.heads import LinearHead, ProbeHead, SequenceHead
from probers.model import adapters
from probers.model.causal_lm import CausalLM
from probers.model.loading import dequantised
from probers.model.pooling import PER_TOKEN, as_stored
from probers.prober.domain import Domain
from probers.prober.prober import Prober
from probers.store.spec import FeatureSpec
from probers.testbed.assets import model_path
from probers.types import Needs

WORKER = "probers.serve.vllm.worker.ScoringWorker"
SCHEDULER = "probers.serve.vllm.worker.ScoringScheduler"
#: Speculation, for ``speculative_config``.
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
#: 64 prompts; groups of eight begin alike.
PROMPTS = [
    f"In the old days of {place}, when the {lord} was away and nobody knew when there would be another, it "
    f"was asked again and again who had been born there in the year {year}. It was"
    for place in ("Norwood", "Lihe", "Hustruwick", "Old York")
    for lord in ("king", "mayor")
    for year in range(1900, 1908)
]


#: Shapes of the tiny random models; the heads are of a width that vLLM's attention has on a CPU.
TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3_moe": {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32,
        "decoder_sparse_step": 1,
    },
}  # fmt: skip


def save_tiny(family: str, folder: Path) -> str:
    """A random model whose 4 heads, 2 of keys, and widths two ranks can share, in ``folder``."""
    tokenizer = byte_level()
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.15,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False, **TINY[family],
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def folder_of(model: str) -> str:
    """Where vLLM finds a model."""
    if model == "testbed" or Path(model).is_dir():
        return str(model_path() if model == "testbed" else model)
    file = locate(model, None, None)
    assert file is not None
    return str(dequantised(file, cache_folder("models")))


def make_bank(lm: CausalLM, folder: Path, pool: Any, layers: tuple[int, ...]) -> Prober:
    """A prober of random heads, saved in ``folder``; "sequence" is one head that reads tokens in order."""
    mind, sequence = pool == "mind", pool == "sequence"
    width = 2 * lm.width if mind else lm.width
    pool = "tokens" if sequence else pool
    spec = FeatureSpec(lm.spec, (lm.num_layers,) if mind else layers, width, pool=pool, dtype="float32")
    head: ProbeHead = LinearHead([f"3/{k}" for k in spec.layers], width)
    if sequence:
        head = SequenceHead(["3"], width, len(layers), size=16, blocks=2, window=4)
    rng = torch.Generator().manual_seed(0)
    states = torch.randn(50, len(spec.layers), width, generator=rng)
    domain = replace(Domain.fit(lambda: iter([states]), 0.05), limit=30.0)
    bank = Prober(spec, head, aggregate="max" if pool == "tokens" else None, domain=domain)
    bank.save_pretrained(folder)
    return Prober.from_pretrained(folder)


@dataclass(frozen=True)
class Written:
    prompt: str
    ids: tuple[int, ...]
    scores: list[float | None]


def write(
    model: str, prober: str, prompts: list[str], **options: Any
) -> tuple[list[Written], dict[str, int]]:
    """What vLLM makes of prompts, 32 tokens each, and its counters."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder_of(model), served_model_name=model, dtype="float32", max_model_len=256, block_size=32,
        max_num_seqs=16, max_num_batched_tokens=128, worker_cls=WORKER, disable_log_stats=False,
        additional_config={"probers": {"prober": prober}}, **options,
    )  # fmt: skip
    params = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True, extra_args={"probers": "all"})
    made = llm.generate(prompts, params, use_tqdm=False)
    scores: dict[str, list[float | None]] = {}
    going = {o.request_id for o in made}
    while going:  # vLLM's own client does not wait for the steps after a text
        result, *others = llm.collective_rpc("probers_scores")
        assert not any(others)  # rank 0 alone answers
        for named, (start, values, _, ended) in result.get("all", {}).items():
            name = named.rpartition("-")[0]
            scores.setdefault(name, [])[start:] = values
            going -= {name} if ended else set()
    assert llm.collective_rpc("probers_scores", args=(["all"],))[0] == {}  # handed out once, then forgotten
    counters = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    llm.llm_engine.engine_core.shutdown()
    return [Written(o.prompt, tuple(o.outputs[0].token_ids), scores[o.request_id]) for o in made], counters


def with_adapter(lm: CausalLM, bank: Prober, folder: Path) -> Prober:
    """The prober of a model whose first two blocks have random adapters from now on, saved in ``folder``."""
    names = [name for name, part in lm.model.named_modules() if isinstance(part, torch.nn.Linear)]
    below = [name for name in names if ".layers.0." in name or ".layers.1." in name]
    adapters.add(lm.model, r=4, lora_alpha=8, target_modules=below)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in adapters.state_of(lm.model).items():
            if "lora_B" in name:
                value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    adapters.save(lm.model, folder / "made", "base")
    mark = adapters.mark(adapters.active_digest(lm.model))
    model = replace(bank.spec.model, revision=bank.spec.model.revision + mark)
    replace(bank, spec=replace(bank.spec, model=model), adapter=folder / "made").save_pretrained(folder)
    return Prober.from_pretrained(folder)


def ours(lm: CausalLM, bank: Prober, written: list[Written]) -> list[np.ndarray]:
    """The scores of the same tokens by :meth:`CausalLM.score`; of heads of pooled states, every prefix's."""
    pool, dtype = bank.spec.pool, bank.spec.dtype
    if pool in PER_TOKEN:
        made = lm.score([w.prompt for w in written], [w.ids for w in written], needs=bank.needs)
        return [bank.score_states(as_stored(g.state, dtype)) for g in made]
    needs = Needs.of(bank.spec.layers, pool=pool)
    scores = []
    for w in written:
        prefixes = [w.ids[: n + 1] for n in range(len(w.ids))]
        made = lm.score([w.prompt] * len(prefixes), prefixes, needs=needs)
        scores.append(bank.score_states(as_stored(np.stack([g.state for g in made]), dtype)))
    return scores
