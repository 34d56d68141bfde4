"""Responses in OpenAI's form for growing texts: whole, or in chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from probers.bank.assessment import Assessor
from probers.engine.tokens import TextStream, decode, shown_bytes, token_bytes, token_offsets

from .scheduler import ScoredText


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a response as JSON; infinities and NaN, such as the log-probability of 0, become null."""
    return to_json(value, inf_nan_mode="null")


def sse(value: Mapping[str, Any] | str) -> bytes:
    """Encode one event of a stream."""
    return b"data: %b\n\n" % (value.encode() if isinstance(value, str) else as_json(value))


@dataclass(slots=True)
class Frame:
    """The fields around the choices of a response or chunk.

    Attributes:
        kind: "text_completion" or "chat.completion".
        model: name of the model in requests.
    """

    kind: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        """A response without streaming."""
        return self._begin(self.kind) | {"choices": list(choices), "usage": usage}

    def chunk(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A chunk of a stream."""
        kind = "chat.completion.chunk" if self.chat else self.kind
        return self._begin(kind) | {"choices": list(choices), **({} if usage is None else {"usage": usage})}

    def _begin(self, kind: str) -> dict[str, Any]:
        name = "chatcmpl" if self.chat else "cmpl"
        return {"id": f"{name}-{self.id}", "object": kind, "created": self.created, "model": self.model}

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """The first chunk of a chat, which names the role; none for a completion."""
        begun = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self.chunk([{"index": i, **begun} for i in range(choices)])] if self.chat else []

    def piece(self, index: int, text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
        """A choice of a chunk."""
        content = {"delta": {"content": text} if text else {}} if self.chat else {"text": text}
        return {"index": index, **content, "finish_reason": finish, "logprobs": None, **more}

    def choice(self, index: int, text: str, finish: str, **more: Any) -> dict[str, Any]:
        """A choice of a whole response."""
        message = {"role": "assistant", "content": text, "refusal": None}
        content: dict[str, Any] = {"message": message} if self.chat else {"text": text}
        return {"index": index, **content, "finish_reason": finish, "logprobs": None, **more}


def usage_of(texts: Iterable[ScoredText]) -> dict[str, Any]:
    """Count the tokens of texts; a prompt of several texts counts once."""
    every = list(texts)
    prompts = {text.request.prompt.name: text for text in every}
    asked = sum(len(text.request.prompt.ids) for text in prompts.values())
    written = sum(len(text.row.ids) for text in every)
    return {
        "prompt_tokens": asked,
        "completion_tokens": written,
        "total_tokens": asked + written,
        "prompt_tokens_details": {"cached_tokens": sum(text.cached for text in prompts.values())},
    }


class Choice:
    """One text of a response while it grows.

    Attributes:
        finished: the last piece was returned.

    Args:
        index: place among the response's choices.
        alternatives: number of likeliest tokens per place; None leaves log-probabilities out.
        assess: the prober's assessor; None without a prober.
    """

    def __init__(
        self, frame: Frame, index: int, text: ScoredText, alternatives: int | None, assess: Assessor | None
    ) -> None:
        self.text = text
        self.finished = False
        self._frame, self._index, self._alternatives, self._assess = frame, index, alternatives, assess
        self._tokens = self._characters = 0

    def news(self, tokenizer: Any) -> dict[str, Any] | None:
        """The next piece, or None where nothing is certain yet."""
        text = self.text
        if text.over:
            self.finished = True
            more = self._more(tokenizer, self._tokens, text.row.kept, whole=True)
            return self._frame.piece(self._index, text.text[self._characters :], self.finish, **more)
        start, stop = self._tokens, text.shown
        if stop <= start:
            return None
        end = max(self._characters, text.ends[stop - 1])
        piece = text.text[self._characters : end]
        self._tokens, self._characters = stop, end
        return self._frame.piece(self._index, piece, **self._more(tokenizer, start, stop))

    def whole(self, tokenizer: Any) -> dict[str, Any]:
        """The choice of a response without streaming."""
        more = self._more(tokenizer, 0, self.text.row.kept, whole=True)
        return self._frame.choice(self._index, self.text.text, self.finish, **more)

    @property
    def finish(self) -> str:
        """OpenAI's reason why the text ended."""
        return "length" if self.text.row.stop == "length" else "stop"

    def _more(self, tokenizer: Any, start: int, stop: int, whole: bool = False) -> dict[str, Any]:
        """Fields besides the text: log-probabilities and scores of new tokens, the last scores of all."""
        more: dict[str, Any] = {}
        text, part, assess = self.text, slice(start, stop), self._assess
        if self._alternatives is not None:
            more["logprobs"] = self._logprobs(tokenizer, start, stop)
        if assess is not None and whole:
            far = None if text.distances is None else text.distances[:stop]
            more["hallucination"] = assess.of_generation(text.recorded(tokenizer), text.scores[:stop], far)
        elif assess is not None:
            offsets = [self._offset(i) for i in range(start, stop)]
            more["hallucination"] = assess.token_lists(
                text.scores[part], offsets, text.logprobs[part], text.entropies[part]
            )
        return more

    def _offset(self, token: int) -> tuple[int, int]:
        ends = self.text.ends
        return (ends[token - 1] if token else 0), ends[token]

    def _logprobs(self, tokenizer: Any, start: int, stop: int) -> dict[str, Any]:
        text, content = self.text, list[dict[str, Any]]()
        for place in range(start, stop):
            token, tops = text.row.ids[place], text.tops[place] if text.tops else []
            # A text of SentencePiece begins without the space that its first token is spelled with.
            bare = not place and token_bytes(tokenizer, token)[:1] == b" " and text.text[:1] != " "
            entry = _entry(tokenizer, token, text.logprobs[place], bare=bare)
            content.append(entry | {"top_logprobs": [_entry(tokenizer, *top, bare=bare) for top in tops]})
        if self._frame.chat:
            return {"content": content, "refusal": None}
        told = [
            # One reading for two tokens stays that of the token written, or else of the likeliest.
            {each["token"]: each["logprob"] for each in (*entry["top_logprobs"][::-1], entry)}
            for entry in content
        ]
        return {
            "tokens": [entry["token"] for entry in content],
            "token_logprobs": text.logprobs[start:stop],
            "top_logprobs": told if self._alternatives else None,
            "text_offset": [self._offset(place)[0] for place in range(start, stop)],
        }


def _entry(tokenizer: Any, token: int, logprob: float, *, bare: bool) -> dict[str, Any]:
    """A token with its log-probability; ``bare`` without a space before it."""
    spelled = token_bytes(tokenizer, token)
    if bare:
        spelled = spelled.removeprefix(b" ")
    return {"token": shown_bytes(spelled), "logprob": logprob, "bytes": list(spelled)}


class ForeignChoice:
    """One text of a response while another engine writes it; scores may be missing or come later.

    Attributes:
        ids: its tokens, an end of sequence included.
        told: number of tokens in the chunks so far.
        scores: scores of its tokens so far; None for a text that is not scored.
        distances: of the same tokens from the prober's domain; None without a domain.

    Args:
        prompt: tokens of the prompt.
    """

    def __init__(self, assess: Assessor, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._assess, self._tokenizer = assess, tokenizer
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
        start, self.told = self.told, end
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
        offsets = [(start, min(stop, end)) for start, stop in self._offsets[:kept]]
        lists = self._lists(0, kept, offsets)
        return self._assess.response(decode(self._tokenizer, self.prompt), self._text, lists, self.distances)

    def _lists(self, start: int, end: int, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
        scores = [*(self.scores or ())[start:end]]
        scores += [None] * (end - start - len(scores))
        spans = [list(span) for span in offsets[start:end]]
        return self._assess.token_lists(scores, spans, self._logprobs[start:end])
