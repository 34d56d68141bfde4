"""One text of a response that vLLM writes, with the scores of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probers.engine.tokens import Span, TextStream, decode, token_offsets
from probers.online.growing_spans import ScoredSpan
from probers.words.thinking import place_in, tokens_in

from ..on_high import OnHigh

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
    """

    def __init__(self, acting: OnHigh, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._acting, self._tokenizer, self.prompt = acting, tokenizer, list(prompt)
        self.ids: list[int] = []
        self.entries: dict[str, list[Any]] = {}
        self.scores: list[float | None] | None = None
        self.distances: list[float | None] | None = None
        self._answer = self._reasoning = ""
        self._told = self._sent = 0  # tokens in the chunks so far, characters of the answer sent
        self._logprobs: list[float | None] = []
        self._stream = TextStream(tokenizer, self.prompt)
        self._before = decode(tokenizer, self.prompt)
        self._growing = acting.growing(self._before)
        self._raw, self._ends = "", list[int]()  # raw text and ends of tokens once the text is finished

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

    @property
    def high(self) -> ScoredSpan | None:
        """Span that has ended the text."""
        return None if self._growing is None else self._growing.high

    @property
    def told(self) -> int:
        """Number of tokens in the chunks so far."""
        return self._told

    def settled(self) -> int:
        """Count the tokens whose text was sent completely, or the told ones if a parser changed the text."""
        if (parts := self._parts(self._stream.full)) is None:
            return self._told
        return max(self._told, self._stream.settled(max(end for _, end in parts)))

    def look(self, end: int, *, over: bool = False) -> int:
        """Judge the answer up to a number of tokens; return how many of them may be sent."""
        if self._growing is None:
            return end
        ends = self._ends if over else [stop for _, stop in self._stream.offsets()]
        parts = self._parts(self._raw if over else self._stream.full)
        if parts is not None:
            span = parts[1] if over else (parts[1][0], min(parts[1][1], ends[end - 1] if end else 0))
            own = [i for i in tokens_in(ends, span, range(end)) if self._score(i) is not None]
            places = [place_in(ends, span, token) for token in own]
            scores = [self._score(token) or 0.0 for token in own]
            self._growing.read(self._answer[: max(0, span[1] - span[0])], places, scores, over=over)
        if parts is None or not self._answer:
            return end
        return sum(stop <= parts[1][0] + self._growing.sure for stop in ends[:end])

    def release(self, *, everything: bool = False) -> str:
        """Return the new part of the answer that may be sent; ``everything`` if it cannot be judged."""
        sure = len(self._answer) if self._growing is None or everything else self._growing.sure
        start, self._sent = self._sent, max(self._sent, sure)
        return self._answer[start : self._sent]

    def chunk(self, end: int) -> dict[str, Any]:
        """Make the lists of the new tokens up to ``end``."""
        tokens, self._told = range(self._told, max(self._told, end)), max(self._told, end)
        ends = [stop for _, stop in self._stream.offsets()]
        thought, said = self._parts(self._stream.full) or ((0, 0), (0, 0))
        told = self._lists(ends, said, tokens_in(ends, said, tokens))
        if self._reasoning:
            told["reasoning"] = self._lists(ends, thought, tokens_in(ends, thought, tokens))
        return told

    def kept(self) -> int | None:
        """Count the tokens of the finished text; None if a parser has changed the text."""
        self._raw, offsets = token_offsets(self._tokenizer, self.ids, self.prompt)
        self._ends = [stop for _, stop in offsets]
        if (parts := self._parts(self._raw)) is None:
            return None
        end = max(stop for _, stop in parts)
        return sum(start < end for start, _ in offsets)

    def whole(self, kept: int) -> dict[str, Any]:
        """Make the field of the finished text, whose tokens :meth:`kept` has counted."""
        parts = self._parts(self._raw)
        assert parts is not None
        (thought, said), high = parts, self.high
        if high is not None:
            said = said[0], said[0] + high.start
            kept = self.billed()
        told = self._assessed(said, kept)
        if self._reasoning:
            told["reasoning"] = self._assessed(thought, kept)
        acted = None if high is None else self._acting.acted(high, discarded=len(self.ids) - kept)
        return told | {"acted": acted}

    def billed(self) -> int:
        """Count the tokens of the returned text."""
        if self.high is None or (parts := self._parts(self._raw)) is None:
            return len(self.ids)
        return sum(end <= parts[1][0] + self.high.start for end in self._ends)

    def not_scored(self, why: str) -> dict[str, Any]:
        """Make the field of a text that has no score, with the reason."""
        assess = self._acting.assess
        empty = assess.response("", "", assess.token_lists([], [], []))
        return empty | {"acted": None, "not_scored": why}

    def _parts(self, raw: str) -> tuple[Span, Span] | None:
        """Find the characters of reasoning and answer in the text of all tokens; None if one is not in it."""
        thought = raw.find(self._reasoning)
        after = thought + len(self._reasoning)
        said = raw.find(self._answer, after)
        if thought < 0 or said < 0 or (not self._reasoning and said > 0):
            return None
        return (thought, after), (said, said + len(self._answer)) if self._answer else (after, after)

    def _assessed(self, span: Span, kept: int) -> dict[str, Any]:
        own, before = tokens_in(self._ends, span, range(kept)), self._before + self._raw[: span[0]]
        known = self.distances
        far = None if known is None else [known[i] if i < len(known) else None for i in own]
        lists = self._lists(self._ends, span, own)
        return self._acting.assess.response(before, self._raw[slice(*span)], lists, far)

    def _score(self, token: int) -> float | None:
        return self.scores[token] if self.scores is not None and token < len(self.scores) else None

    def _lists(self, ends: Sequence[int], span: Span, tokens: Sequence[int]) -> dict[str, Any]:
        places = [list(place_in(ends, span, token)) for token in tokens]
        logprobs = [self._logprobs[token] for token in tokens]
        return self._acting.assess.token_lists([self._score(token) for token in tokens], places, logprobs)
