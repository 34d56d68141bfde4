"""One choice of a response as it grows: its tokens, their place in the text, and what the prober says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probers.bank.assessment import Assessor, token_lists
from probers.bank.bank import ProbeBank
from probers.engine.tokens import TextStream, decode, token_offsets


class Choice:
    """A text that vLLM writes.

    Attributes:
        ids: of its tokens, an end of sequence included.
        told: how many tokens the chunks so far have told of.
        scores: of its tokens; more come while it is written. None where nobody scores it.
        distances: of the same tokens from the prober's domain; None where it has none.

    Args:
        prompt: ids of the prompt's tokens.
    """

    def __init__(self, bank: ProbeBank, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._bank, self._tokenizer = bank, tokenizer
        self.prompt = list(prompt)
        self.ids: list[int] = []
        self.scores: list[float | None] | None = None
        self.distances: list[float | None] | None = None
        self.told = 0
        self._text = ""
        self._logprobs: list[float | None] = []
        self._stream = TextStream(tokenizer, self.prompt)
        self._offsets: Sequence[tuple[int, int]] = ()  # of the finished text's tokens

    def add(self, text: str, ids: Sequence[int], logprobs: Sequence[float | None]) -> None:
        """What a chunk, or the whole response, has of it."""
        self._text += text
        self.ids += ids
        self._logprobs += logprobs
        for token in ids:
            self._stream.push(token)

    def settled(self) -> int:
        """Tokens whose text lies wholly within what was sent."""
        return self._stream.settled(len(self._text))

    def chunk(self, end: int) -> dict[str, Any]:
        """The lists of the tokens up to ``end`` that were not told yet."""
        start, self.told = self.told, end
        return self._lists(start, end, self._stream.offsets())

    def kept(self) -> int | None:
        """Tokens of the finished text; None where a parser has changed it, so that they do not lie in it."""
        text, self._offsets = token_offsets(self._tokenizer, self.ids, self.prompt)
        if not text.startswith(self._text):
            return None
        return sum(start < len(self._text) for start, _ in self._offsets)

    def whole(self, kept: int, assess: Assessor) -> dict[str, Any]:
        """All that is said of the finished text, whose tokens :meth:`kept` has counted."""
        end = len(self._text)
        offsets = [(start, min(stop, end)) for start, stop in self._offsets[:kept]]
        lists = self._lists(0, kept, offsets)
        read = [i for i, score in enumerate(lists["token_scores"]) if score is not None]
        far = None if self.distances is None else [self.distances[i] or 0.0 for i in read]
        said = assess(
            decode(self._tokenizer, self.prompt),
            self._text,
            [offsets[i] for i in read],
            [lists["token_scores"][i] for i in read],
            distances=far,
        )
        return {**said.to_dict(), **lists}

    def _lists(self, start: int, end: int, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
        scores = [*(self.scores or ())[start:end]]
        scores += [None] * (end - start - len(scores))
        read = self._bank.probability(np.array([score or 0.0 for score in scores])).tolist()
        p_wrong = [None if score is None else p for score, p in zip(scores, read, strict=True)]
        spans = [list(span) for span in offsets[start:end]]
        return token_lists(scores, p_wrong, spans, self._logprobs[start:end], None)
