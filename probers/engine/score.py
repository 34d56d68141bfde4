"""One teacher-forced pass over texts that exist already: the twin of greedy decoding.

Same conventions, same fields, so that what decoding recorded can be had again, or
checked, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..capture.attention import AttentionTap
from ..capture.hidden_states import StateTap, named_layer
from ..types import AttentionRows, Generation, Needs, RunError
from .forward import Decoder, token_scores
from .kv_cache import Known, fill, new_cache
from .tokens import Prompt, token_offsets


@torch.inference_mode()
def score_batch(
    decoder: Decoder,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    continuations: Sequence[Sequence[int]],
    *,
    needs: Needs,
    prefix: Known | None = None,
) -> list[Generation]:
    """What generation would have recorded, had it written ``continuations`` (each at least one token).

    Args:
        prefix: keys and values of what all prompts begin with.

    Raises:
        RunError: a logit or a recorded state is NaN or infinite.
    """
    lengths = [len(ids) for ids in continuations]
    longest = max(lengths)
    ids, mask, positions = decoder.pad([(*p.ids, *c) for p, c in zip(prompts, continuations, strict=True)])
    columns, start, cache = ids, 0, None
    if prefix is not None:
        pads = [ids.shape[1] - len(p.ids) - n for p, n in zip(prompts, lengths, strict=True)]
        cache = new_cache(decoder.model.config, ids.shape[1])
        start = fill(cache, [prefix] * len(prompts), [p.ids for p in prompts], pads)
        columns, positions = ids[:, start:], positions[:, start:]
    count = torch.tensor(lengths, device=decoder.device)
    scored = torch.arange(longest, 0, -1, device=decoder.device) <= count[:, None]  # (batch, longest)
    finite: list[Tensor] = []
    with ExitStack() as taps:
        states = taps.enter_context(StateTap(decoder.model, needs))
        attention = None
        if needs.attention:
            attention = taps.enter_context(AttentionTap(decoder.model, needs.attention_layer))
            attention.queries = longest + 1
        states.reduce = _pooling(needs, scored, finite)
        logits = decoder(columns, mask, positions, keep=longest + 1, cache=cache)
        pooled = states.take()
        attended = attention.take() if attention is not None else None
    _refuse_broken(prompts, needs, scored, finite)
    generations = []
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        tokens = ids[row, -length:]
        logprobs, entropies = token_scores(logits[row, -length - 1 : -1], tokens)
        _refuse_broken_scores(prompt, torch.stack([logprobs, entropies]))
        text, offsets = token_offsets(tokenizer, continuations[row], prompt.ids)
        rows = None
        if attended is not None:
            rows = _rows(attended.weights(row)[0], len(prompt.ids), length)
        generations.append(
            Generation(
                prompt=prompt.text,
                prompt_ids=prompt.ids,
                prompt_offsets=prompt.offsets,
                token_ids=tuple(continuations[row]),
                text=text,
                offsets=offsets,
                logprobs=logprobs.cpu().numpy(),
                entropies=entropies.cpu().numpy(),
                stop="length",
                needs=needs,
                states=_states(pooled, row, length, needs),
                attention=rows,
            )
        )
    return generations


@torch.inference_mode()
def attend_alone(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
    """Last-layer attention over ``sequences`` (each at least one token) with nothing before them.

    Row 0 is zero, for no position predicts the first token.
    """
    ids, mask, positions = decoder.pad(sequences)
    with AttentionTap(decoder.model) as tap:
        tap.queries = ids.shape[1]
        decoder(ids, mask, positions)
        attended = tap.take()
    results = []
    for row, sequence in enumerate(sequences):
        length = len(sequence)
        weights = attended.weights(row)[0, :, -length:, -length:]
        rows = np.zeros((length + 1, length), dtype=np.float32)
        rows[1:] = weights.mean(dim=0).cpu()
        results.append(AttentionRows(rows, _column_max(weights, length)))
    return results


def _rows(weights: Tensor, prompt: int, length: int) -> AttentionRows:
    """The rows of a text's ``length`` tokens and the position before them, from (heads, q, k)."""
    weights = weights[:, -length - 1 :, -prompt - length :]
    rows = np.zeros((length + 1, prompt + length), dtype=np.float32)
    rows[:, prompt + length - weights.shape[-1] :] = weights.mean(dim=0).cpu()  # k: the window at most
    return AttentionRows(rows, _column_max(weights, length))


def _column_max(weights: Tensor, length: int) -> np.ndarray:
    """(n,) from (heads, q, k): the maximum over the last n queries, then the mean over heads."""
    return np.array(weights[:, -length:, -length:].amax(dim=1).mean(dim=0).cpu())


def _pooling(needs: Needs, scored: Tensor, finite: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """What the tap does with a layer's states (batch, length, d); notes which tokens are finite."""
    longest = scored.shape[1]

    def pool(states: Tensor) -> Tensor:
        # The state that predicts a token is one to the left.
        place = slice(-longest - 1, -1) if needs.pool == "predicting" else slice(-longest, None)
        states = states[:, place].float()
        here = scored.to(states.device)
        finite.append((states.isfinite().all(dim=-1) | ~here).to(scored.device))
        if needs.pool == "last":
            return states[:, -1]
        if needs.pool in ("tokens", "predicting", "mind_tokens"):
            return states.cpu()
        mean = states.masked_fill(~here[..., None], 0.0).sum(dim=1) / here.sum(dim=1, keepdim=True)
        return torch.stack([states[:, -1], mean], dim=1) if needs.pool == "mind" else mean

    return pool


def _states(pooled: Tensor | None, row: int, length: int, needs: Needs) -> np.ndarray | None:
    if pooled is None:
        return None
    if needs.pool in ("tokens", "predicting"):  # (batch, layers, longest, d)
        return np.array(pooled[row, :, -length:].transpose(0, 1))
    if needs.pool == "mind_tokens":  # (batch, layers and the final norm, longest, d)
        own = pooled[row, :, -length:]
        return np.array(torch.cat([own[:-1].mean(dim=0), own[-1]], dim=-1)[:, None])
    if needs.pool == "mind":  # (batch, layers and the final norm, last and mean, d)
        return np.array(torch.cat([pooled[row, :-1, 0].mean(dim=0), pooled[row, -1, 1]])[None].cpu())
    return np.array(pooled[row].cpu())


def _refuse_broken(prompts: Sequence[Prompt], needs: Needs, scored: Tensor, finite: Sequence[Tensor]) -> None:
    """RunError for the first state that is not finite; blocks run in ascending order."""
    ascending = replace(needs, layers=tuple(sorted(set(needs.layers))))
    for index, good in enumerate(finite):
        for row, column in (~good).nonzero().tolist():
            token = column - scored.shape[1] + int(scored[row].sum())
            raise RunError(
                f"the state of {named_layer(ascending, index)} is NaN or infinite at token {token} of the "
                f"continuation of {prompts[row].name}; try dtype=float32 or bfloat16"
            )


def _refuse_broken_scores(prompt: Prompt, scores: Tensor) -> None:
    broken = (~scores.isfinite().all(dim=0)).nonzero()
    if len(broken):
        raise RunError(
            f"the logits are NaN or infinite at token {int(broken[0])} of the continuation "
            f"of {prompt.name}; try dtype=float32 or bfloat16"
        )
