"""Entities as they begin in the rows of a batch that is being written, with the score before each.

Heads of ``pool=predicting`` score the state from which a token is about to be written. What is
known when:

- before a token is written, what the heads say of an entity that would begin with it; they
  say nothing of any other token, and not whether an entity will begin there;
- once its first word is whole, that an entity has begun. Its score was known before that word;
- once the text is over, where each entity ends, and which spans were none: of "New" the end shows
  only with "York", and a later word may show that what seemed one begins elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..engine.tokens import TextStream, decode, token_offsets
from ..entities import Recognise, WrittenEntity, with_scores, written_entities

#: A text up to the end of its last whole word.
_WHOLE_WORDS = re.compile(r".*[\s,;:!?)\]”\"]", re.DOTALL)


def read_entities(
    tokenizer: Any, prompt: Sequence[int], ids: Sequence[int], scores: Sequence[float], recognise: Recognise
) -> list[WrittenEntity]:
    """The entities of a text, each with the score of the state before it.

    Args:
        prompt: ids before the first of the text's.
        ids: (n,) of the text's tokens.
        scores: (n,) or more, of the state before each of them.
        recognise: finds entities.
    """
    text, offsets = token_offsets(tokenizer, ids, prompt)
    entities = written_entities(text, recognise, prompt=decode(tokenizer, prompt))
    return with_scores(entities, offsets, scores)


class GrowingText:
    """A row's text, read one token at a time for the first entity with too high a score.

    Args:
        prompt: ids before its first token.
        recognise: finds entities; asked whenever another word is whole.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int], recognise: Recognise) -> None:
        self._stream = TextStream(tokenizer, prompt)
        self._prompt, self._recognise = decode(tokenizer, prompt), recognise
        self._read = ""

    def push(self, token: int) -> None:
        """Take one more token."""
        self._stream.push(token)

    def first_above(self, threshold: float, scores: Sequence[float], *, over: bool) -> WrittenEntity | None:
        """The first entity that has begun and whose score is above a threshold.

        Args:
            scores: of the state before each token pushed so far.
            over: the text ends here, so that its last word is whole.
        """
        text = self._stream.visible
        if not over:
            whole = _WHOLE_WORDS.match(text)
            text = whole.group() if whole else ""
        if text == self._read:
            return None
        self._read = text
        entities = written_entities(text, self._recognise, prompt=self._prompt)
        begun = with_scores(entities, self._stream.offsets(), scores)
        return next((each for each in begun if each.score > threshold), None)


class FirstEntities:
    """The first entity above a threshold in each row of a batch.

    Attributes:
        found: of each row, once there is one.

    Args:
        prompts: ids of each row's prompt.
        eos: ids that end a row.
    """

    def __init__(
        self, tokenizer: Any, prompts: Sequence[Sequence[int]], eos: Tensor, recognise: Recognise
    ) -> None:
        self.found: list[WrittenEntity | None] = [None] * len(prompts)
        self._texts = [GrowingText(tokenizer, prompt, recognise) for prompt in prompts]
        self._eos = set(eos.tolist())

    def push(
        self,
        tokens: Tensor,
        counted: Tensor,
        scores: Sequence[Sequence[float]],
        threshold: float,
        *,
        ask: bool,
    ) -> list[bool]:
        """Take one sampled token of each row; which rows have an entity above the threshold now.

        Args:
            tokens: (rows,).
            counted: (rows,) whether it is part of the row's text.
            scores: of each row, of the state before each token of its text.
            ask: look for entities; without, the tokens are only read.
        """
        for row, (token, part) in enumerate(zip(tokens.tolist(), counted.tolist(), strict=True)):
            if part:
                self._texts[row].push(token)
            over = token in self._eos
            if ask and self.found[row] is None and (part or over):
                self.found[row] = self._texts[row].first_above(threshold, scores[row], over=over)
        return [entity is not None for entity in self.found]
