"""From texts that grow to OpenAI's responses: whole, or as chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from probers.bank.assessment import token_lists

from .scheduler import ScoredText

if TYPE_CHECKING:
    from probers.bank.assessment import Assessor


def as_json(value: Mapping[str, Any]) -> bytes:
    """A response as JSON, which has no NaN and no infinities: the log-probability of 0 becomes null."""
    return to_json(value, inf_nan_mode="null")


def sse(value: Mapping[str, Any] | str) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % (value.encode() if isinstance(value, str) else as_json(value))


@dataclass(slots=True)
class Frame:
    """What all chunks of a response begin with.

    Attributes:
        kind: "text_completion" or "chat.completion".
        model: what the server calls its model.
    """

    kind: str
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def chat(self) -> bool:
        return self.kind == "chat.completion"

    def whole(self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        """A response that is not streamed."""
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
        """What a stream begins with: in a chat, whose turn it is."""
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
    """Tokens that texts took; a prompt that several have counts once."""
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
    """One text of a response, told as it grows.

    Attributes:
        finished: the whole was told.

    Args:
        index: its place among the response's choices.
        alternatives: likeliest tokens to tell at each place; None tells no log-probabilities.
        assess: what the prober says of the text; None where there is no prober.
    """

    def __init__(
        self, frame: Frame, index: int, text: ScoredText, alternatives: int | None, assess: Assessor | None
    ) -> None:
        self.text = text
        self.finished = False
        self._frame, self._index, self._alternatives, self._assess = frame, index, alternatives, assess
        self._tokens = self._characters = 0

    def news(self, tokenizer: Any) -> dict[str, Any] | None:
        """The next piece, or None where nothing can be told yet."""
        text = self.text
        if text.over:
            return self._last(tokenizer)
        start, stop = self._tokens, text.ready
        if stop <= start:
            return None
        end = max(self._characters, text.ends[stop - 1])
        piece = text.text[self._characters : end]
        self._tokens, self._characters = stop, end
        return self._frame.piece(self._index, piece, **self._more(tokenizer, start, stop, piece))

    def _more(self, tokenizer: Any, start: int, stop: int, piece: str) -> dict[str, Any]:
        """What a piece carries besides its text."""
        more: dict[str, Any] = {}
        if self._alternatives is not None:
            more["logprobs"] = self._logprobs(tokenizer, start, stop)
        if self._assess is not None:
            offsets = [self._offset(i) for i in range(start, stop)]
            more["hallucination"] = self._lists(start, stop, offsets)
        return more

    def _offset(self, token: int) -> tuple[int, int]:
        ends = self.text.ends
        return (ends[token - 1] if token else 0), ends[token]

    def _lists(self, start: int, stop: int, offsets: Sequence[tuple[int, int]]) -> dict[str, Any]:
        text, part = self.text, slice(start, stop)
        own = (text.logprobs[part], text.entropies[part])
        return token_lists(text.scores[part], text.p_wrong[part], offsets, *own)

    def _last(self, tokenizer: Any) -> dict[str, Any]:
        start, stop = self._tokens, self.text.row.kept
        piece = self.text.text[self._characters :]
        more = self._more(tokenizer, start, stop, piece)
        if self._assess is not None:
            more["hallucination"] = self.hallucination(tokenizer)
        self.finished = True
        return self._frame.piece(self._index, piece, self.finish, **more)

    def whole(self, tokenizer: Any) -> dict[str, Any]:
        """The choice of a response that is not streamed."""
        more: dict[str, Any] = {}
        if self._alternatives is not None:
            more["logprobs"] = self._logprobs(tokenizer, 0, self.text.row.kept)
        if self._assess is not None:
            more["hallucination"] = self.hallucination(tokenizer)
        return self._frame.choice(self._index, self.text.text, self.finish, **more)

    @property
    def finish(self) -> str:
        """Why it ended, in OpenAI's words."""
        return "length" if self.text.row.stop == "length" else "stop"

    def hallucination(self, tokenizer: Any) -> dict[str, Any]:
        """What the prober says of the whole text."""
        text = self.text
        made = text.recorded(tokenizer)
        assert self._assess is not None
        kept = text.row.kept
        distances = None if text.distances is None else text.distances[:kept]
        return self._assess.response(made, text.scores[:kept], distances)

    def _logprobs(self, tokenizer: Any, start: int, stop: int) -> dict[str, Any]:
        text, told = self.text, range(start, stop)
        pieces = [text.text[slice(*self._offset(i))] for i in told]
        tops = [[(tokenizer.decode([t]), p) for t, p in text.tops[i]] if text.tops else [] for i in told]
        if not self._frame.chat:
            return {
                "tokens": pieces,
                "token_logprobs": text.logprobs[start:stop],
                "top_logprobs": [dict(top) for top in tops] if self._alternatives else None,
                "text_offset": [self._offset(i)[0] for i in told],
            }
        content = [
            _entry(piece, text.logprobs[i]) | {"top_logprobs": [_entry(*each) for each in top]}
            for i, piece, top in zip(told, pieces, tops, strict=True)
        ]
        return {"content": content, "refusal": None}


def _entry(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}
