"""Prompts that other prompts begin with, as the cuts of one article: computed once, inside the longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cache import GrowingLayer, new_cache
from .forward import Decoder

#: Tokens that must be saved: about what the further pass over one token of each row costs.
_LEAST = 128


def longest(sequences: Sequence[Sequence[int]]) -> list[int]:
    """For each sequence the index of one that begins with it and that no other begins with."""
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    found = list(range(len(sequences)))
    # Whatever begins some sequence begins its neighbour in alphabetical order.
    for this, following in zip(order[-2::-1], order[:0:-1], strict=True):
        if tuple(sequences[following][: len(sequences[this])]) == tuple(sequences[this]):
            found[this] = found[following]
    return found


def nested_cache(decoder: Decoder, prompts: Sequence[Sequence[int]], capacity: int) -> Any:
    """Keys and values of all but the last token of left-padded prompts, of nested ones computed once.

    Args:
        prompts: token ids.
        capacity: positions to make room for.

    Returns:
        A cache with as many columns as the longest prompt has tokens, less one; None where
        too little is nested, or the family's cache cannot be cut (sliding windows).
    """
    leaf = longest(prompts)
    saved = sum(len(prompts[i]) for i, own in enumerate(leaf) if i != own)
    if saved < _LEAST or min(map(len, prompts)) < 2:
        return None
    cache: Any = new_cache(decoder.model.config, capacity)
    if not all(type(layer) is GrowingLayer for layer in cache.layers):
        return None
    kept = sorted(set(leaf))
    heads = [prompts[i][:-1] for i in kept]
    ids, mask, positions = decoder.pad(heads)
    computed: Any = new_cache(decoder.model.config, ids.shape[1])
    decoder(ids, mask, positions, cache=computed)
    width = max(map(len, prompts)) - 1
    sources = []
    for prompt, own in zip(prompts, leaf, strict=True):
        row, count = kept.index(own), len(prompt) - 1
        start = ids.shape[1] - len(heads[row])
        sources.append((row, start, count))
    for old, layer in zip(computed.layers, cache.layers, strict=True):
        places = layer.reserve(len(prompts), width, old.keys[0], old.values[0])
        for place, full in zip(places, (old.keys, old.values), strict=True):
            for row, (source, start, count) in enumerate(sources):
                place[row, :, : width - count] = 0  # never seen, but it must be a number
                place[row, :, width - count :] = full[source, :, start : start + count]
        old.keys = old.values = None  # free before the next layer's are made
    return cache
