"""Prompt lookup decoding: several tokens at a time, guessed from what stands there, then checked.

An answer repeats its prompt: names from the question, sentences from a passage, words it has
used before. What followed the last place where the text went as it does now is guessed to
follow again, and one forward pass over the guess says how far it is what the model would have
written (Leviathan et al. 2023 for the check, which is exact for greedy decoding). A pass over
a few tokens costs little more than over one, so that every right guess is nearly free. What is
recorded is what one token at a time would have recorded.

Only texts that are alone in their batch are guessed: in a batch the tokens of many rows keep
the processor busy already, and rows that advance by different lengths tear holes in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Tokens that must be repeated before the guess, most first.
_CONTEXT = (3, 2, 1)
#: Tokens guessed after a single repeated one, which says little.
_SHORT = 4


class PromptLookup:
    """Guesses how one text goes on.

    Args:
        before: tokens that it may repeat; its prompt's are the last.
        most: tokens guessed at once.
    """

    def __init__(self, before: Sequence[int], most: int) -> None:
        self._text, self._most, self._written = np.array(before), most, 0

    def guess(self, written: Sequence[int], limit: int) -> list[int]:
        """The next tokens of the text ``written`` so far, which may have ``limit``."""
        self._text = np.append(self._text, written[self._written :])
        self._written = len(written)
        return guess(self._text, min(self._most, limit - len(written)))


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
