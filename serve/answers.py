"""Responses in OpenAI's form for growing texts: whole, or in chunks of a stream."""

from __future__ import annotations

import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from pydantic_core import to_json

from probers.model.tokens import shown_bytes, token_bytes
from probers.prober.assessment import WrittenText
from probers.types import Needs, Span
from probers.words.thinking import Thinking, tokens_in

from .continuous import LiveText
from .on_high import FINISH, Judgement, OnHigh

#: Log-probability of a token that is impossible, as OpenAI gives it.
_LEAST = -9999.0
#: Most tokens of one chunk, and with their alternatives: readers of lines have limits, of 64 kB some.
_AT_ONCE, _WITH_LOGPROBS = 32, 16
#: Fields with an entry for each token, of ``hallucination``, ``logprobs`` and vLLM's choices.
_PER_TOKEN = {
    "token_scores", "token_p_wrong", "token_offsets", "token_logprobs", "token_entropies", "token_ids",
    "tokens", "top_logprobs", "text_offset", "content",
}  # fmt: skip


def as_json(value: Mapping[str, Any]) -> bytes:
    """Encode a response as JSON, in :func:`rounded` numbers; infinities and NaN become null."""
    return to_json(rounded(value), inf_nan_mode="null")


def rounded(value: Any) -> Any:
    """Round the numbers of a response to six significant digits, of which float32 has seven."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def pieces(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Cut a choice of a chunk with long lists into several; the first has the text, the last all else."""
    name = "text" if "text" in choice else "delta"
    nothing: Any = "" if name == "text" else {}
    begun = {"index": choice["index"], "finish_reason": None, "logprobs": None}
    longest, size, start = _longest(choice), _WITH_LOGPROBS if choice.get("logprobs") else _AT_ONCE, 0
    while longest > start + size:
        now = _cut(choice, slice(start, start + size), alone=True)
        yield {**begun, name: nothing if start else choice[name], **now}
        start += size
    yield {**_cut(choice, slice(start, None), alone=False), name: nothing} if start else dict(choice)


def _longest(value: Mapping[str, Any]) -> int:
    inside = [_longest(each) for each in value.values() if isinstance(each, Mapping)]
    lists = (each for name, each in value.items() if name in _PER_TOKEN)
    return max((*inside, *(len(each) for each in lists if isinstance(each, list | tuple))), default=0)


def _cut(value: Mapping[str, Any], part: slice, *, alone: bool) -> dict[str, Any]:
    """Take a part of each list of tokens, with all other fields unless they are wanted ``alone``."""
    cut = dict[str, Any]()
    for name, each in value.items():
        if name in _PER_TOKEN and isinstance(each, list | tuple):
            cut[name] = each[part]
        elif isinstance(each, Mapping):
            if (inside := _cut(each, part, alone=alone)) or not alone:
                cut[name] = inside
        elif not alone or name == "refusal":  # of logprobs, where strict clients want it
            cut[name] = each
    return cut


def sse(value: Mapping[str, Any] | str) -> bytes:
    """Encode one event of a stream."""
    return b"data: %b\n\n" % (value.encode() if isinstance(value, str) else as_json(value))


@dataclass(slots=True)
class Frame:
    """Fields around the choices of a response or chunk of a ``kind``, and the form of a choice."""

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

    def chunks(self, choice: Mapping[str, Any]) -> bytes:
        """Make the chunks of a choice, several if it has many tokens."""
        return b"".join(map(self.chunk, pieces(choice)))

    def _around(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        begun = {"id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}", "object": kind}
        return begun | {"created": self.created, "model": self.model, "choices": list(choices)}

    def opening(self, choices: int) -> list[bytes]:
        """Make the first chunk of a chat, which names the role; none for a completion."""
        begun = {"delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}
        return [self.chunk(*({"index": i, **begun} for i in range(choices)))] if self.chat else []

    def choice(
        self, index: int, content: str, finish: str | None = None, *, whole: bool = False,
        reasoning_content: str = "", **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Make a choice of a chunk, or of a ``whole`` response."""
        body: dict[str, Any] = {"text": content}
        if self.chat:
            parts = {"reasoning_content": reasoning_content, "content": content}
            written = {name: text for name, text in parts.items() if text}
            message = {"role": "assistant", "content": content, "refusal": None, **written}
            body = {"message": message} if whole else {"delta": written}
        return {"index": index, **body, "finish_reason": finish, "logprobs": None, **more}


def usage(prompt: int, written: int) -> dict[str, Any]:
    """Make ``usage`` of numbers of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def usage_of(choices: Sequence[Choice]) -> dict[str, Any]:
    """Count the tokens of texts; a prompt of several texts counts once, and discarded tokens do not count."""
    prompts = {choice.text.request.prompt.name: choice.text for choice in choices}
    prompt_tokens = sum(len(text.request.prompt.ids) for text in prompts.values())
    cached = sum(text.cached for text in prompts.values())
    written, thought = (sum(each) for each in zip(*(choice.billed() for choice in choices), strict=True))
    counts = usage(prompt_tokens, written) | {"prompt_tokens_details": {"cached_tokens": cached}}
    return counts | ({"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {})


def as_events(whole: Mapping[str, Any], *, with_usage: bool) -> Iterator[bytes]:
    """Yield the events of a stream for a whole response, if nothing could be sent before."""
    kind = str(whole["object"])
    begun = {name: value for name, value in whole.items() if name not in ("choices", "usage")}
    begun["object"] = f"{kind}.chunk" if kind.startswith("chat") else kind
    for rest in map(dict, whole["choices"]):
        if (message := rest.pop("message", None)) is not None:
            delta = {name: value for name, value in message.items() if value}
            if calls := delta.get("tool_calls"):
                delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
            yield sse(begun | {"choices": [{"index": rest["index"], "delta": delta, "finish_reason": None}]})
            rest["delta"] = {}
        for piece in pieces(rest):
            yield sse(begun | {"choices": [piece]})
    if with_usage and whole.get("usage") is not None:
        yield sse(begun | {"choices": [], "usage": whole["usage"]})
    yield sse("[DONE]")


class Choice:
    """One text of a response while it grows; ``finished`` once its last piece was made.

    ``returned`` is false if another text was put in its place. ``alternatives`` is the number of likeliest
    tokens per place; None leaves log-probabilities out. ``acting`` decides on its score; None means it is not
    scored. ``thinking`` has the marks of its reasoning.
    """

    def __init__(
        self, frame: Frame, index: int, text: LiveText, tokenizer: Any, alternatives: int | None,
        acting: OnHigh | None, thinking: Thinking | None = None,
    ) -> None:  # fmt: skip
        self.text, self.finished, self.returned = text, False, True
        self._frame, self._index, self._tokenizer = frame, index, tokenizer
        self._alternatives, self._thinking = alternatives, thinking
        prompt = text.request.prompt.text
        self._begun = thinking is not None and thinking.begun(prompt)
        self._acting, self.judgement = acting, Judgement(acting, prompt)
        self._tokens = 0  # number of tokens sent
        self._sent = {"reasoning_content": 0, "content": 0}  # characters of the raw text

    def look(self) -> None:
        """Judge the text read so far; give up a text with too high a score."""
        if self.judgement.sure is None or self.judgement.high is not None:
            return
        over, record = self.text.over, self.text.record
        count = min(self.text.row.length if over else self.text.shown, len(record.offsets))
        answer = self._split(self._raw(count, over), over)[1]
        self.judgement.read(record, answer, count, over=over)
        if self.judgement.high is not None:
            self.text.cancelled = True  # no effect on a finished text

    @property
    def written(self) -> int:
        """Number of tokens written, returned or not."""
        return len(self.text.row.ids)

    def billed(self) -> tuple[int, int]:
        """Count the tokens returned, and those of them that are reasoning."""
        if not self.returned:
            return 0, 0
        thought, answer = self._split(self.text.text, True)
        count = self.judgement.returned(self.text.record, answer, self.written)
        return count, len(self._among(thought, range(count)))

    def news(self) -> dict[str, Any] | None:
        """Make the next piece, or None if nothing is certain yet."""
        self.look()
        text, start, sure = self.text, self._tokens, self.judgement.sure
        if text.over or self.judgement.high is not None:
            self.finished = True
            return self._end(start)
        if (stop := text.shown) <= start:
            return None
        thought, answer = self._split(self._raw(stop, False), False)
        if answer is not None and sure is not None:
            answer = answer[0], answer[0] + sure
        sent = answer or thought or (0, 0)
        stop = bisect_right(text.offsets, sent[1], start, stop, key=itemgetter(1))
        pieces: dict[str, Any] = self._pieces(thought, answer)
        if stop == start and not any(pieces.values()):
            return None
        self._tokens, new = stop, range(start, stop)
        more = self._logprobs(self._among(answer, new))
        if self._acting is not None:
            more["hallucination"] = self.judgement.chunk(text.record, thought, answer, new)
        return self._frame.choice(self._index, **pieces | more)

    def whole(self) -> dict[str, Any]:
        """Make the whole choice of a finished text, or of the sentence in its place."""
        self.look()
        choice, high, acting = self._end(0, whole=True), self.judgement.high, self._acting
        abstained = None if acting is None else acting.abstained(choice, high, self.written)
        self.returned = abstained is None
        return abstained or choice

    def _end(self, start: int, *, whole: bool = False) -> dict[str, Any]:
        text, judgement, record = self.text, self.judgement, self.text.record
        thought, answer = self._split(text.text, True)
        returned = judgement.returned(record, answer, text.row.length)
        cut = judgement.cut(answer)
        reason = "length" if text.row.stop == "length" else "stop"
        reason = reason if self.judgement.high is None else FINISH
        more: dict[str, Any] = {**self._pieces(thought, cut)}
        more |= self._logprobs(self._among(cut, range(start, returned)))
        if self._acting is not None:
            if self.judgement.high is None:  # the tokenizer knows better which tokens share a character
                distances = None if text.distances is None else text.distances[:returned]
                written = text.generation(self._tokenizer, Needs())
                record = WrittenText.of(written, text.scores[:returned], distances)
            more["hallucination"] = judgement.whole(record, thought, answer, returned, written=self.written)
        return self._frame.choice(self._index, finish=reason, whole=whole, **more)

    def _split(self, raw: str, over: bool) -> tuple[Span | None, Span | None]:
        if self._thinking is None:
            return None, (0, len(raw))
        return self._thinking.split(raw, begun=self._begun, over=over)

    def _raw(self, tokens: int, over: bool) -> str:
        return self.text.text if over else self.text.text[: self.text.offsets[tokens - 1][1] if tokens else 0]

    def _pieces(self, thought: Span | None, answer: Span | None) -> dict[str, str]:
        """Collect the new characters of the reasoning and of the answer."""
        pieces = dict[str, str]()
        for name, span in (("reasoning_content", thought), ("content", answer)):
            start, end = span or (0, 0)
            start = max(start, self._sent[name])
            pieces[name] = self.text.text[start:end]
            self._sent[name] = max(start, end)
        return pieces

    def _among(self, span: Span | None, tokens: Sequence[int]) -> list[int]:
        return [] if span is None else tokens_in(self.text.offsets, span, tokens)

    def _logprobs(self, tokens: Sequence[int]) -> dict[str, Any]:
        if self._alternatives is None:
            return {}
        text, content = self.text, list[dict[str, Any]]()
        for place in tokens:
            token, tops = text.row.ids[place], text.tops[place] if text.tops else []
            # SentencePiece drops the space that the first token of a text is spelled with.
            bare = not place and token_bytes(self._tokenizer, token)[:1] == b" " and text.text[:1] != " "
            entry = self._entry(token, text.logprobs[place], bare)
            content.append(entry | {"top_logprobs": [self._entry(*top, bare) for top in tops]})
        if self._frame.chat:
            return {"logprobs": {"content": content, "refusal": None}}
        likeliest = [
            # One reading for two tokens is that of the token written, or else of the likeliest.
            {token["token"]: token["logprob"] for token in (*entry["top_logprobs"][::-1], entry)}
            for entry in content
        ]
        return {"logprobs": {
            "tokens": [entry["token"] for entry in content],
            "token_logprobs": [entry["logprob"] for entry in content],
            "top_logprobs": likeliest,
            "text_offset": [text.offsets[place][0] for place in tokens],
        }}  # fmt: skip

    def _entry(self, token: int, logprob: float, bare: bool) -> dict[str, Any]:
        """Describe a token with its log-probability; ``bare`` leaves out a space before it."""
        spelled = token_bytes(self._tokenizer, token)
        if bare:
            spelled = spelled.removeprefix(b" ")
        return {"token": shown_bytes(spelled), "logprob": max(logprob, _LEAST), "bytes": list(spelled)}
