"""Ways of generating to compare: plain, ours, and the peers' way to the same features; and their memory.

On a CPU the memory of each way is measured in its own process, which is this file:
``python benchmarks/peers.py MODEL WAY BATCH PROMPT_TOKENS NEW_TOKENS DEVICE [DTYPE]`` prints bytes.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from workload import build, long_prompts

from probers import CausalLM
from probers.model.forward import Decoder
from probers.model.kv_cache import new_cache
from probers.types import Generation, Needs, RunError

Tokens = list[tuple[int, ...]]


def everything(lm: CausalLM) -> Needs:
    """Need all layers mean-pooled and the last layer's attention, with the scores that are always there."""
    return Needs.of(tuple(range(lm.num_layers + 1)), attention=True)


def pad_left(lm: CausalLM, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Encode prompts to token ids and mask, each (batch, length)."""
    rows = lm.tokenizer(list(prompts), verbose=False)["input_ids"]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=lm.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=lm.device)
    return ids, mask


def plain(lm: CausalLM, prompts: Sequence[str], new_tokens: int) -> Tokens:
    """Generate greedily with transformers, from texts to texts."""
    ids, mask = pad_left(lm, prompts)
    written = lm.model.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)
    rows = written[:, ids.shape[1] :].tolist()
    lm.tokenizer.batch_decode(rows)
    return [tuple(row) for row in rows]


@dataclass(frozen=True, slots=True)
class PeerFeatures:
    """Features of the peers' way for a batch of b texts of n tokens.

    Attributes:
        states: (b, layers + 1, d) float32, mean over the tokens but the last, which ``generate``
            never forwards; the last layer's are after the final norm.
        logprobs: (b, n).
        entropies: (b, n), nats.
        rows: (b, n + 1, p + n) last-layer attention, mean over heads, padding included.
        column_max: (b, n), as in :class:`probers.types.AttentionRows`.
    """

    tokens: Tokens
    states: Tensor
    logprobs: Tensor
    entropies: Tensor
    rows: Tensor
    column_max: Tensor


@torch.inference_mode()
def peers(lm: CausalLM, prompts: Sequence[str], new_tokens: int) -> PeerFeatures:
    """Generate with every hidden state kept, pool from the tuples, then run again for the attention.

    In the peers' favour: batches, greedy decoding on the fast kernel, and the states are
    dropped before the second pass. The second pass is a plain call of the model, logits included.
    """
    output, mask, states = _with_states(lm, prompts, new_tokens, output_scores=True)
    written = output.sequences[:, mask.shape[1] :]
    scores = torch.stack(output.scores, dim=1).float().log_softmax(dim=-1)
    logprobs = scores.gather(-1, written[..., None])[..., 0]
    entropies = torch.special.entr(scores.exp()).sum(dim=-1)
    sequences = output.sequences
    del output, scores
    attention = _last_attention(lm.model, sequences, torch.cat([mask, torch.ones_like(written)], dim=1))
    rows = attention[:, :, -new_tokens - 1 :].float()
    column_max = rows[:, :, 1:, -new_tokens:].amax(dim=2).mean(dim=1)
    tokens = [tuple(row) for row in written.tolist()]
    lm.tokenizer.batch_decode(tokens)
    return PeerFeatures(
        tokens, states.cpu(), logprobs.cpu(), entropies.cpu(), rows.mean(1).cpu(), column_max.cpu()
    )


@torch.inference_mode()
def hidden_states(lm: CausalLM, prompts: Sequence[str], new_tokens: int) -> Tokens:
    """Generate greedily with transformers and all hidden states; pool them once the texts are there."""
    output, mask, states = _with_states(lm, prompts, new_tokens)
    states.cpu()
    rows = output.sequences[:, mask.shape[1] :].tolist()
    lm.tokenizer.batch_decode(rows)
    return [tuple(row) for row in rows]


def _with_states(
    lm: CausalLM, prompts: Sequence[str], new_tokens: int, **more: Any
) -> tuple[Any, Tensor, Tensor]:
    """Generate with every hidden state kept; return the result, the prompts' mask, and pooled states."""
    ids, mask = pad_left(lm, prompts)
    output = lm.model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=new_tokens,
        do_sample=False,
        output_hidden_states=True,
        return_dict_in_generate=True,
        **more,
    )
    read = [torch.stack([layer[:, -1] for layer in step], dim=1).float() for step in output.hidden_states[1:]]
    return output, mask, torch.stack(read).mean(dim=0)


def _last_attention(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return (batch, heads, length, length) of the last layer, from an eager pass of every layer."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            output_attentions=True,
            use_cache=False,
        )
    finally:
        model.set_attn_implementation(usual)
    return output.attentions[-1]


def ours(lm: CausalLM, prompts: Sequence[str], new_tokens: int, needs: Needs) -> list[Generation]:
    """Generate with the engine."""
    return lm.generate(prompts, max_new_tokens=new_tokens, needs=needs)


@torch.inference_mode()
def forwards(lm: CausalLM, prompts: Sequence[str], new_tokens: int) -> Tokens:
    """Make only the model's own calls that greedy decoding needs, over a cache made once.

    No way of recording can be faster: the time of the peers' way divided by this is the largest possible gain
    over it.
    """
    ids, mask = pad_left(lm, prompts)
    decoder, written = Decoder(lm.model), torch.empty(len(ids), 0, dtype=torch.long, device=lm.device)
    cache = new_cache(lm.model.config, ids.shape[1] + new_tokens)
    padding = mask if not mask.all() else None
    positions = (mask.cumsum(dim=1) - 1).clamp_min(0)
    for step in range(new_tokens):
        ids = decoder(ids, padding, positions, cache=cache)[:, -1:].argmax(dim=-1)
        written = torch.cat([written, ids], dim=1)
        if step + 1 < new_tokens:
            positions = positions[:, -1:] + 1
            padding = None if padding is None else torch.cat([padding, torch.ones_like(ids)], dim=1)
    return [tuple(row) for row in written.tolist()]


def token_ids(result: Any) -> Tokens:
    """Return the tokens that any of the ways wrote."""
    if isinstance(result, PeerFeatures):
        return result.tokens
    return [row.token_ids if isinstance(row, Generation) else row for row in result]


def differing(lm: CausalLM, prompts: Sequence[str], one: Tokens, other: Tokens) -> tuple[int, int]:
    """Count the texts that differ, and those among them not explained by equally likely tokens.

    Tokens are equally likely where their logits are closer than rounding: 1e-3 in float32,
    a fiftieth of the logit in half precision.
    """
    different = wrong = 0
    for prompt, mine, theirs in zip(prompts, one, other, strict=True):
        if mine == theirs:
            continue
        different += 1
        pairs = enumerate(zip(mine, theirs, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), None)
        wrong += place is None or not _tied(lm, prompt, mine[: place + 1], theirs[place])
    return different, wrong


@torch.inference_mode()
def _tied(lm: CausalLM, prompt: str, written: Sequence[int], other: int) -> bool:
    ids = lm.tokenizer(prompt, verbose=False)["input_ids"] + list(written[:-1])
    logits = lm.model(torch.tensor([ids], device=lm.device)).logits[0, -1].float()
    one, two = float(logits[written[-1]]), float(logits[other])
    close = 1e-3 if lm.model.dtype == torch.float32 else max(abs(one), abs(two)) / 50
    return abs(one - two) <= close


def parity(lm: CausalLM, prompts: Sequence[str], new_tokens: int) -> float | None:
    """Find the largest difference between our states, scores and attention and the peers', relative above 1.

    The last layer's states are left out: the peers' are after the final norm. Texts that
    differ (ties) are too; None when all do.
    """
    theirs = peers(lm, prompts, new_tokens)
    layers = tuple(range(lm.num_layers))
    mine = ours(lm, prompts, new_tokens, Needs.of(layers, pool="tokens", attention=True))
    worst: float | None = None
    for row, generation in enumerate(mine):
        if generation.token_ids != theirs.tokens[row]:
            continue
        assert generation.state is not None and generation.attention is not None
        pad = theirs.rows.shape[2] - generation.attention.rows.shape[1]
        pairs = [
            (generation.state[:-1].mean(axis=0), theirs.states[row, :-1]),
            (generation.logprobs, theirs.logprobs[row]),
            (generation.entropies, theirs.entropies[row]),
            (generation.attention.rows, theirs.rows[row, :, pad:]),
            (generation.attention.column_max, theirs.column_max[row]),
        ]
        for got, expected in pairs:
            off = (torch.from_numpy(got) - expected).abs() / expected.abs().clamp_min(1.0)
            worst = max(worst or 0.0, float(off.max()))
    return worst


def ways(lm: CausalLM) -> dict[str, Callable[[Sequence[str], int], Any]]:
    """Map names to ways; ours records everything that the peers' way gives."""
    return {
        "plain": lambda prompts, n: plain(lm, prompts, n),
        "ours": lambda prompts, n: ours(lm, prompts, n, everything(lm)),
        "peers": lambda prompts, n: peers(lm, prompts, n),
    }


#: glibc otherwise keeps freed memory, and how much depends on the order of requests.
STRICT_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}


def peak(
    model: str, way: str, lm: CausalLM, batch: int, prompt_tokens: int, new_tokens: int,
    dtype: str | None = None,
) -> int:  # fmt: skip
    """Measure the bytes by which a way exceeds the memory of the model alone, at its peak.

    Raises:
        RunError: on a CPU the way's process failed; its last line is in the message.
    """
    if lm.device.type != "cpu":
        prompts = long_prompts(lm.tokenizer, batch, prompt_tokens)
        return growth(partial(ways(lm)[way], prompts, new_tokens), lm.device)
    job = [model, way, str(batch), str(prompt_tokens), str(new_tokens), "cpu", *([dtype] if dtype else [])]
    command = [sys.executable, __file__, *job]
    done = subprocess.run(command, env={**os.environ, **STRICT_MALLOC}, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise RunError(f"measuring the memory of {way} on {model} ended with {done.returncode}: {reason}")
    return int(done.stdout.split()[-1])


def growth(work: Callable[[], Any], device: torch.device) -> int:
    """Measure the bytes by which memory in use peaks above its level before ``work``.

    On an accelerator it is torch's allocation; else the process's resident memory, whose peak Linux can
    reset, so that loading the model does not hide the later peak.
    """
    gc.collect()
    if device.type != "cpu":
        return _allocated(work, device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # no Linux: the peak since the process began
        before, unit = _max_rss(), 1 if sys.platform == "darwin" else 1024
        work()
        return (_max_rss() - before) * unit
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _allocated(work: Callable[[], Any], device: torch.device) -> int:
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):  # mps tells no peak, but its allocator keeps its memory
        module.empty_cache()
        before = module.driver_allocated_memory()
        work()
        return module.driver_allocated_memory() - before
    module.reset_peak_memory_stats(device)
    before = module.memory_allocated(device)
    work()
    return module.max_memory_allocated(device) - before


def _max_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def main(
    model: str, way: str, batch: str, prompt_tokens: str, new_tokens: str, device: str,
    dtype: str | None = None,
) -> None:  # fmt: skip
    """Print the memory of one way, in bytes."""
    lm = build(model, torch.device(device), dtype)
    work = ways(lm)[way]
    prompts = long_prompts(lm.tokenizer, int(batch), int(prompt_tokens))
    work([prompt[:40] for prompt in prompts[:2]], 3)  # loads code and tables of the first use
    print(growth(lambda: work(prompts, int(new_tokens)), lm.device))


if __name__ == "__main__":
    main(*sys.argv[1:])
