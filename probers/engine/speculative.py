"""Decoding of one text alone, several tokens at a time: guessed from what stands there, then checked.

An answer repeats its prompt: names from the question, sentences from a passage, words it has
used before. What followed the last place where the text went as it does now is guessed to
follow again, and one forward pass over the guess says how far it is what the model would have
written (prompt lookup decoding; Leviathan et al. 2023 for the check, which is exact for
greedy decoding). A pass over a few tokens costs little more than over one, so that every
right guess is nearly free. What is recorded is what one token at a time would have recorded.

Only texts that are alone in their batch are drafted: in a batch the tokens of many rows keep
the processor busy already, and rows that advance by different lengths tear holes in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..capture.recorder import Reading
from .batch import Row, Running
from .forward import token_scores
from .stopping import Stops

#: Tokens that must be repeated before the guess, most first.
_CONTEXT = (3, 2, 1)
#: Tokens guessed after a single repeated one, which says little.
_SHORT = 4


def guess(ids: np.ndarray, most: int) -> list[int]:
    """What followed the last place where ``ids`` (n,) went as at their end; at most ``most`` tokens."""
    for count in _CONTEXT:
        if len(ids) <= count:
            continue
        here = np.ones(len(ids) - count, dtype=bool)  # [i]: the count tokens from i on are repeated
        for back in range(count):
            here &= ids[count - 1 - back : -1 - back] == ids[-1 - back]
        places = np.flatnonzero(here)
        if len(places):
            start = int(places[-1]) + count
            return list(map(int, ids[start : start + (most if count > 1 else min(most, _SHORT))]))
    return []


def finish_alone(
    batch: Running,
    row: Row,
    scores: Tensor,
    reading: Reading,
    *,
    stops: Stops,
    most: int,
    earlier: Sequence[int] = (),
) -> None:
    """Write the only text that still runs to its end, as one token at a time would.

    Args:
        batch: whose last pass was over the row's last token, which was read.
        row: its text.
        scores: (2, limit) its log-probabilities and entropies, filled in.
        reading: what every pass leaves.
        most: tokens guessed at once.
        earlier: tokens of an earlier text that this one may repeat.
    """
    number = batch.active[0]
    text = np.array([*earlier, *row.prompt.ids, *row.ids])
    guessed: list[int] = []
    while True:
        start = len(row.ids)
        logits = batch.logits[0]
        likeliest = logits.argmax(dim=-1)
        found = torch.stack(token_scores(logits, likeliest))
        right, accepted = _accept(row, likeliest.tolist(), guessed, stops)
        scores[:, start : start + accepted] = found[:, :accepted]
        if row.stop is not None:
            reading.recorder.finish(number, row.kept)
        if reading.waits:
            reading.push(start - 1, batch.rows, right + 1)
            reading.recorder.commit(row.safe(stops))
        batch.drop(len(guessed) - right)
        unread = row.ids[start + right :]  # at most one: the token after the last right guess
        if row.stop is not None and not (reading.reads and unread and row.kept == len(row.ids)):
            return
        guessed = []
        if row.stop is None:
            text = np.append(text, row.ids[start:])
            guessed = guess(text, min(most, row.limit - len(row.ids)))
        reading.expect(1 + len(guessed))
        batch.step(torch.tensor([[*unread, *guessed]], device=scores.device))
        if row.stop is not None:  # the last token ran once more, only to be read
            reading.push(len(row.ids) - 1, batch.rows, 1)
            return


def _accept(row: Row, likeliest: Sequence[int], guessed: Sequence[int], stops: Stops) -> tuple[int, int]:
    """Take tokens as long as the guesses were right; how many were, and how many were looked at."""
    for count, token in enumerate(likeliest):
        known = len(row.ids)
        row.accept(token, stops)
        right = count < len(guessed) and token == guessed[count] and len(row.ids) > known
        if row.stop is not None or not right:
            return count + right, count + 1
    raise AssertionError("the token after the last guess is no guess")
