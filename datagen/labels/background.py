"""Spans with the tokens before them, for heads that read a span in its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from probers.engine.language_model import LanguageModel
from probers.types import Generation, Needs

from .base import recorded, span_needs, token_states


class WrittenSpan(NamedTuple):
    """Labelled span: its columns, the generation that wrote it, and its ascending tokens there."""

    columns: Mapping[str, Any]
    generation: Generation
    tokens: Sequence[int]


def read_again(
    lm: LanguageModel, spans: Sequence[WrittenSpan], needs: Needs, before: int
) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
    """Yield a row and its states (layers, d) for each token of spans and of up to ``before`` tokens ahead.

    All spans are read in one call of the model, each from the beginning of its row to the span's last token.
    The rows are those of labelled tokens: in the span ``mark`` and ``inside`` are 1 and ``token_wrong`` is
    the span's label; tokens before it are undecided (-1). States of written tokens are those of the
    generation, whose prompt ends where the article was cut. Tokens of the prompt attend to the prompt only.
    """
    requests = [_request(span, before) for span in spans]
    prompts, texts, added = zip(*requests, strict=True)
    attention = spans[0].generation.needs.attention
    read = lm.score(prompts, texts, needs=span_needs(needs, attention=attention))
    for span, generation, ahead in zip(spans, read, added, strict=True):
        own = {token + ahead for token in span.tokens}
        both = zip(token_states(generation, needs), token_states(span.generation, needs), strict=True)
        states = [
            np.concatenate([np.ones_like(again[:ahead]) if of.site == "lookback" else again[:ahead], written])
            for of, (again, written) in zip(needs.features, both, strict=True)
        ]
        for token in range(max(own) + 1):
            inside = token in own
            label = {"token_wrong": 1 - span.columns["correct"] if inside else -1, "mark": int(inside)}
            signals = recorded(generation, [token], first=min(own)) | {"n_tokens": len(own)}
            id = f"{span.columns['span']}#{token}"
            row = {**span.columns, "id": id, "token": token, **label, "inside": 1 if inside else -1}
            yield row | signals, [each[token] for each in states]


def _request(span: WrittenSpan, before: int) -> tuple[str, list[int], int]:
    """Return prompt, token ids to read after it, and the number of these before the generation's own."""
    made = span.generation
    # An empty prompt cannot be read from.
    first = next((i for i, (start, _) in enumerate(made.prompt_offsets) if start > 0), len(made.prompt_ids))
    start = max(first, len(made.prompt_ids) - max(0, before - span.tokens[0]))
    prompt = made.prompt if start == len(made.prompt_ids) else made.prompt[: made.prompt_offsets[start][0]]
    ahead = made.prompt_ids[start:]
    return prompt, [*ahead, *made.token_ids[: span.tokens[-1] + 1]], len(ahead)
