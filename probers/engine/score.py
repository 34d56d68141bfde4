"""One teacher-forced pass over texts that exist already: the twin of greedy decoding.

Same conventions, same fields, so that what decoding recorded can be had again, or
checked, from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..capture.attention import AttentionTap, LookbackTap
from ..capture.hidden_states import StateTap, broken_state, tap_of
from ..capture.pooling import WholePool
from ..types import AttentionRows, Feature, Generation, Needs
from .forward import Decoder, broken_logits, new_cache, token_scores
from .kv_cache import CachedPrefix, fill
from .tokens import Prompt


@torch.inference_mode()
def score_batch(
    decoder: Decoder,
    tokenizer: Any,
    texts: Sequence[tuple[Prompt, Sequence[int]]],
    needs: Needs,
    prefix: CachedPrefix | None = None,
) -> list[Generation]:
    """Record given continuations as generation would have recorded them.

    Args:
        texts: prompts and their continuations, each at least one token.
        prefix: keys and values of what all prompts begin with.

    Raises:
        RunError: a logit or a recorded state is NaN or infinite.
    """
    prompts, continuations = zip(*texts, strict=True)
    lengths = [len(ids) for ids in continuations]
    longest = max(lengths)
    ids, mask, positions = decoder.pad([(*prompt.ids, *ids) for prompt, ids in texts])
    columns, start, cache = ids, 0, None
    if prefix is not None:
        pads = [ids.shape[1] - len(p.ids) - n for p, n in zip(prompts, lengths, strict=True)]
        cache = new_cache(decoder.model.config, ids.shape[1])
        start = fill(cache, [prefix] * len(prompts), [p.ids for p in prompts], pads)
        columns, positions = ids[:, start:], positions[:, start:]
    count = torch.tensor(lengths, device=decoder.device)
    scored = torch.arange(longest, 0, -1, device=decoder.device) <= count[:, None]  # (batch, longest)
    prompted = torch.tensor([len(p.ids) for p in prompts], device=decoder.device)
    features = [
        (tap_of(decoder.model, feature), WholePool(feature.pool, scored)) for feature in needs.features
    ]
    with ExitStack() as taps:
        for tap, pool in features:
            taps.enter_context(tap)
            if isinstance(tap, StateTap):  # pooled layer by layer: all positions of all layers are too many
                tap.read(pool.layer)
            else:
                tap.read_last(longest + 1)
        attention = None
        if needs.attention:
            attention = taps.enter_context(AttentionTap(decoder.model, needs.attention_layer))
            attention.read(longest + 1)
        logits = decoder(columns, mask, positions, keep=longest + 1, cache=cache)
        layers = [_taken(tap, pool, prompted, count) for tap, pool in features]
        attended = attention.take() if attention is not None else None
    for feature, (_, pool) in zip(needs.features, features, strict=True):
        _refuse_broken(prompts, feature, pool)
    generations = []
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        found = token_scores(logits[row, -length - 1 : -1], ids[row, -length:], top=needs.top)
        broken = (~found.isfinite().all(dim=0)).nonzero()
        if len(broken):
            raise broken_logits(f"token {int(broken[0])} of the continuation of {prompt.name}")
        rows = None if attended is None else _rows(attended.weights(row)[0], len(prompt.ids), length)
        read = zip(needs.features, features, layers, strict=True)
        generations.append(
            prompt.continued(
                tokenizer, continuations[row], found.cpu().numpy(), stop="length", needs=needs,
                states={each: pool.value(kept, row) for each, (_, pool), kept in read},
                attention=rows,
            )
        )  # fmt: skip
    return generations


@torch.inference_mode()
def attend_alone(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
    """Last-layer attention over ``sequences`` (each at least one token) with nothing before them.

    Row 0 is zero, for no position predicts the first token.
    """
    ids, mask, positions = decoder.pad(sequences)
    with AttentionTap(decoder.model) as tap:
        tap.read(ids.shape[1])
        decoder(ids, mask, positions)
        attended = tap.take()
    lengths = [len(sequence) for sequence in sequences]
    return [_rows(attended.weights(row)[0, :, -n:], 0, n) for row, n in enumerate(lengths)]


def _taken(tap: StateTap | LookbackTap, pool: WholePool, prompts: Tensor, written: Tensor) -> Tensor:
    """The pool's share of each layer, (batch, .., layers, d)."""
    if isinstance(tap, StateTap):
        read = tap.take()
    elif (read := tap.take_last(prompts, written)) is not None:
        read = pool.layer(read[:, :, 0])[..., None, :]
    assert read is not None  # every feature has a layer, and a pass reads all of it
    return read


def _rows(weights: Tensor, prompt: int, length: int) -> AttentionRows:
    """A text's rows from weights (heads, q, k): of its tokens, and of the position before where it is there.

    With a sliding window k is shorter than the text.
    """
    weights = weights[:, -length - 1 :, -prompt - length :]
    rows = np.zeros((length + 1, prompt + length), dtype=np.float32)
    rows[-weights.shape[1] :, prompt + length - weights.shape[2] :] = weights.mean(dim=0).cpu()
    best = weights[:, -length:, -length:].amax(dim=1).mean(dim=0)
    return AttentionRows(rows, np.array(best.cpu()))


def _refuse_broken(prompts: Sequence[Prompt], feature: Feature, pool: WholePool) -> None:
    """RunError for the first state that is not finite."""
    if (broken := pool.broken()) is not None:
        row, token, place = broken
        # Blocks run in ascending order.
        ascending = replace(feature, layers=tuple(sorted(set(feature.layers))))
        raise broken_state(ascending, place, f"token {token} of the continuation of {prompts[row].name}")
