"""One text of a response that vLLM writes, with the scores of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probers.model.tokens import TextStream, decode, token_offsets
from probers.prober.assessment import WrittenText
from probers.types import Span

from ..on_high import Judgement, OnHigh

#: Reason why a forced tool call has no score: a grammar chose its text, not the model.
FORCED = "a tool call that the request forces is not scored"


class ForeignChoice:
    """One text of a response that another engine writes after ``prompt``.

    The engine's parsers may have taken the text apart. Reasoning and answer are therefore looked up in the
    text of all tokens, in this order.

    Attributes:
        entries: log-probabilities of its tokens as the client gets them, by their fields.
        ids: tokens of the text so far, including an end of sequence.
        scores: scores of its tokens so far, which may come later; None for a text that is not scored.
        distances: of the same tokens from the prober's domain; None without a domain.
        chunked: number of tokens in the chunks so far.
        judgement: that of the text, with the span that has ended it.
    """

    def __init__(self, acting: OnHigh, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._acting, self._tokenizer, self.prompt = acting, tokenizer, list(prompt)
        self.ids: list[int] = []
        self.entries: dict[str, list[Any]] = {}
        self.scores: list[float | None] | None = None
        self.distances: list[float | None] | None = None
        self.chunked = self._sent = 0  # tokens in the chunks so far, characters of the answer sent
        self._answer = self._reasoning = ""
        self._logprobs: list[float | None] = []
        self._stream = TextStream(tokenizer, self.prompt)
        self._before = decode(tokenizer, self.prompt)
        self.judgement = Judgement(acting, self._before)
        self._finished: tuple[str, Sequence[Span]] | None = None  # text and places of all tokens

    def add(
        self, text: str, ids: Sequence[int], logprobs: Sequence[float | None], reasoning: str = ""
    ) -> None:
        """Take the text, reasoning and tokens of a chunk or of the whole response."""
        self._answer += text
        self._reasoning += reasoning
        self.ids += ids
        self._logprobs += logprobs
        for token in ids:
            self._stream.push(token)

    def settled(self) -> int:
        """Count the tokens whose text was sent completely, or were sent if a parser changed the text."""
        if (parts := self._parts(self._stream.full)) is None:
            return self.chunked
        return max(self.chunked, self._stream.settled(max(end for _, end in parts)))

    def look(self, end: int, *, over: bool = False) -> int:
        """Judge the answer up to a number of tokens; return how many of them may be sent."""
        if self.judgement.sure is None:
            return end
        record = self._record()
        if (parts := self._parts(record.text)) is None:
            return end
        (start, last), ends = parts[1], [stop for _, stop in record.offsets[:end]]
        read = last if over else min(last, ends[-1] if ends else 0)
        self.judgement.read(record, (start, max(start, read)), end, over=over)
        return sum(stop <= start + self.judgement.sure for stop in ends) if self._answer else end

    def release(self, *, everything: bool = False) -> str:
        """Return the new part of the answer that may be sent; ``everything`` if it cannot be judged."""
        sure = self.judgement.sure
        sure = len(self._answer) if sure is None or everything else sure
        start, self._sent = self._sent, max(self._sent, sure)
        return self._answer[start : self._sent]

    def chunk(self, end: int) -> dict[str, Any]:
        """Make the lists of the new tokens up to ``end``."""
        tokens, self.chunked = range(self.chunked, max(self.chunked, end)), max(self.chunked, end)
        thought, answer = self._parts(self._stream.full) or ((0, 0), (0, 0))
        return self.judgement.chunk(self._record(), thought if self._reasoning else None, answer, tokens)

    def count_tokens(self) -> int | None:
        """Count the tokens of the finished text; None if a parser has changed the text."""
        raw, offsets = self._finished = token_offsets(self._tokenizer, self.ids, self.prompt)
        if (parts := self._parts(raw)) is None:
            return None
        end = max(stop for _, stop in parts)
        return sum(start < end for start, _ in offsets)

    def whole(self, count: int) -> dict[str, Any]:
        """Make the field of the finished text, whose tokens :meth:`kept` has counted."""
        record = self._record()
        parts = self._parts(record.text)
        assert parts is not None
        thought, answer = parts
        count = self.judgement.returned(record, answer, count)
        thoughts = thought if self._reasoning else None
        return self.judgement.whole(record, thoughts, answer, count, written=len(self.ids))

    def billed(self) -> int:
        """Count the tokens of the returned text."""
        record = self._record()
        parts = self._parts(record.text)
        return self.judgement.returned(record, None if parts is None else parts[1], len(self.ids))

    def not_scored(self, why: str) -> dict[str, Any]:
        """Make the field of a text that has no score, with the reason."""
        return self._acting.nothing(acted=None, not_scored=why)

    def _parts(self, raw: str) -> tuple[Span, Span] | None:
        """Find the characters of reasoning and answer in the text of all tokens; None if one is not in it."""
        thought = raw.find(self._reasoning)
        after = thought + len(self._reasoning)
        answer = raw.find(self._answer, after)
        if thought < 0 or answer < 0 or (not self._reasoning and answer > 0):
            return None
        return (thought, after), (answer, answer + len(self._answer)) if self._answer else (after, after)

    def _record(self) -> WrittenText:
        """Return the tokens so far; a score that did not come yet is None."""
        raw, offsets = self._finished or (self._stream.full, self._stream.offsets())
        n = len(offsets)
        scores, distances, logprobs = (
            None if values is None else [*values[:n], *[None] * (n - len(values))]
            for values in (self.scores or [], self.distances, self._logprobs)
        )
        return WrittenText(self._before, raw, offsets, scores or (), distances, logprobs)
