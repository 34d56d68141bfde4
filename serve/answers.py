"""Responses in OpenAI's form for growing texts: whole, or in chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from probers.bank.assessment import Assessor
from probers.engine.tokens import TextStream, decode, shown_bytes, token_bytes, token_offsets
from probers.types import StopReason

from .scheduler import ScoredText


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a response as JSON; infinities and NaN, such as the log-probability of 0, become null."""
    return to_json(value, inf_nan_mode="null")


def sse(value: Mapping[str, Any] | str) -> bytes:
    """Encode one event of a stream."""
    return b"data: %b\n\n" % (value.encode() if isinstance(value, str) else as_json(value))


def finish_reason(stop: StopReason | None) -> str:
    """OpenAI's reason why a text ended."""
    return "length" if stop == "length" else "stop"


@dataclass(slots=True)
class Frame:
    """The fields around the choices of a response or chunk of a ``kind``, and the form of a choice."""

    kind: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        return self._around(self.kind, choices) | {"usage": usage}

    def chunk(self, *choices: Mapping[str, Any], usage: Mapping[str, Any] | None = None) -> bytes:
        """Make a chunk of a stream."""
        kind = "chat.completion.chunk" if self.chat else self.kind
        return sse(self._around(kind, choices) | ({} if usage is None else {"usage": usage}))

    def _around(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        begun = {"id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}", "object": kind}
        return begun | {"created": self.created, "model": self.model, "choices": list(choices)}

    def opening(self, choices: int) -> list[bytes]:
        """The first chunk of a chat, which names the role; none for a completion."""
        begun = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self.chunk(*({"index": i, **begun} for i in range(choices)))] if self.chat else []

    def choice(
        self, index: int, text: str, finish: str | None = None, *, whole: bool = False, **more: Any
    ) -> dict[str, Any]:
        """Make a choice of a chunk, or of a ``whole`` response."""
        content: dict[str, Any] = {"text": text}
        if self.chat and whole:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        elif self.chat:
            content = {"delta": {"content": text} if text else {}}
        return {"index": index, **content, "finish_reason": finish, "logprobs": None, **more}


def usage(prompt: int, written: int) -> dict[str, Any]:
    """Make ``usage`` of numbers of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def usage_of(texts: Sequence[ScoredText]) -> dict[str, Any]:
    """Count the tokens of texts; a prompt of several texts counts once."""
    prompts = {text.request.prompt.name: text for text in texts}
    asked = sum(len(text.request.prompt.ids) for text in prompts.values())
    cached = sum(text.cached for text in prompts.values())
    written = sum(len(text.row.ids) for text in texts)
    return usage(asked, written) | {"prompt_tokens_details": {"cached_tokens": cached}}


class Choice:
    """One text of a response while it grows; ``finished`` once the last piece was returned.

    ``alternatives`` is the number of likeliest tokens per place; None leaves log-probabilities out.
    """

    def __init__(
        self, frame: Frame, index: int, text: ScoredText, tokenizer: Any, alternatives: int | None,
        assess: Assessor | None,
    ) -> None:  # fmt: skip
        self.text, self.finished = text, False
        self._frame, self._index, self._tokenizer = frame, index, tokenizer
        self._alternatives, self._assess = alternatives, assess
        self._tokens = self._characters = 0

    def news(self) -> dict[str, Any] | None:
        """The next piece, or None where nothing is certain yet."""
        text, start = self.text, self._tokens
        if text.over:
            self.finished = True
            return self._end(start, text.text[self._characters :])
        if (stop := text.shown) <= start:
            return None
        end = max(self._characters, text.ends[stop - 1])
        piece, more = text.text[self._characters : end], self._logprobs(start, stop)
        self._tokens, self._characters = stop, end
        if self._assess is not None:
            offsets = [self._offset(place) for place in range(start, stop)]
            lists = (text.scores[start:stop], offsets, text.logprobs[start:stop], text.entropies[start:stop])
            more["hallucination"] = self._assess.token_lists(*lists)
        return self._frame.choice(self._index, piece, **more)

    def whole(self) -> dict[str, Any]:
        return self._end(0, self.text.text, whole=True)

    def _end(self, start: int, piece: str, *, whole: bool = False) -> dict[str, Any]:
        text, kept = self.text, self.text.row.kept
        more = self._logprobs(start, kept)
        if self._assess is not None:
            far = None if text.distances is None else text.distances[:kept]
            written = text.recorded(self._tokenizer)
            more["hallucination"] = self._assess.of_generation(written, text.scores[:kept], far)
        return self._frame.choice(self._index, piece, finish_reason(text.row.stop), whole=whole, **more)

    def _offset(self, token: int) -> tuple[int, int]:
        ends = self.text.ends
        return (ends[token - 1] if token else 0), ends[token]

    def _logprobs(self, start: int, stop: int) -> dict[str, Any]:
        if self._alternatives is None:
            return {}
        text, content = self.text, list[dict[str, Any]]()
        for place in range(start, stop):
            token, tops = text.row.ids[place], text.tops[place] if text.tops else []
            # A text of SentencePiece begins without the space that its first token is spelled with.
            bare = not place and token_bytes(self._tokenizer, token)[:1] == b" " and text.text[:1] != " "
            entry = self._entry(token, text.logprobs[place], bare)
            content.append(entry | {"top_logprobs": [self._entry(*top, bare) for top in tops]})
        if self._frame.chat:
            return {"logprobs": {"content": content, "refusal": None}}
        told = [
            # One reading for two tokens stays that of the token written, or else of the likeliest.
            {each["token"]: each["logprob"] for each in (*entry["top_logprobs"][::-1], entry)}
            for entry in content
        ]
        offsets = [self._offset(place)[0] for place in range(start, stop)]
        return {"logprobs": {
            "tokens": [entry["token"] for entry in content], "token_logprobs": text.logprobs[start:stop],
            "top_logprobs": told if self._alternatives else None, "text_offset": offsets,
        }}  # fmt: skip

    def _entry(self, token: int, logprob: float, bare: bool) -> dict[str, Any]:
        """A token with its log-probability; ``bare`` without a space before it."""
        spelled = token_bytes(self._tokenizer, token)
        if bare:
            spelled = spelled.removeprefix(b" ")
        return {"token": shown_bytes(spelled), "logprob": logprob, "bytes": list(spelled)}


class ForeignChoice:
    """One text of a response while another engine writes it behind ``prompt``.

    Attributes:
        ids: tokens of the text so far, an end of sequence included.
        scores: of its tokens so far, which may come later; None for a text that is not scored.
        distances: of the same tokens from the prober's domain; None without a domain.
    """

    def __init__(self, assess: Assessor, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._assess, self._tokenizer, self.prompt = assess, tokenizer, list(prompt)
        self.ids: list[int] = []
        self.scores: list[float | None] | None = None
        self.distances: list[float | None] | None = None
        self._text, self._told = "", 0  # tokens in the chunks so far
        self._logprobs: list[float | None] = []
        self._stream = TextStream(tokenizer, self.prompt)
        self._offsets: Sequence[tuple[int, int]] = ()  # of the finished text's tokens

    def add(self, text: str, ids: Sequence[int], logprobs: Sequence[float | None]) -> None:
        """Take the text and tokens of a chunk or of the whole response."""
        self._text += text
        self.ids += ids
        self._logprobs += logprobs
        for token in ids:
            self._stream.push(token)

    def settled(self) -> int:
        """Number of tokens whose text was sent completely."""
        return self._stream.settled(len(self._text))

    def chunk(self, end: int) -> dict[str, Any]:
        """The lists of the new tokens up to ``end``."""
        start, self._told = self._told, end
        return self._lists(start, end, self._stream.offsets())

    def kept(self) -> int | None:
        """Number of tokens of the finished text; None where a parser has changed the text."""
        text, self._offsets = token_offsets(self._tokenizer, self.ids, self.prompt)
        if not text.startswith(self._text):
            return None
        return sum(start < len(self._text) for start, _ in self._offsets)

    def whole(self, kept: int) -> dict[str, Any]:
        """The field of the finished text, whose tokens :meth:`kept` has counted."""
        end = len(self._text)
        lists = self._lists(0, kept, [(start, min(stop, end)) for start, stop in self._offsets[:kept]])
        return self._assess.response(decode(self._tokenizer, self.prompt), self._text, lists, self.distances)

    def _lists(self, start: int, end: int, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
        scores = [*(self.scores or ())[start:end]]
        scores += [None] * (end - start - len(scores))
        spans = [list(span) for span in offsets[start:end]]
        return self._assess.token_lists(scores, spans, self._logprobs[start:end])
