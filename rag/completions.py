"""Responses of ``/v1/completions``, in the forms of several servers, and the generations that they hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from probers.cli.openai_client import Body
from probers.model.language_model import Stops
from probers.prober.response import Response
from probers.signals import entropy_of_top
from probers.types import Generation, Needs

#: A log-probability may be this much above 0, nats: servers round.
_ROUNDED = 1e-3
#: Difference of log-probabilities, nats, up to which two tokens are equally likely.
_TIED = 0.01
_BROKEN = "�"  # printed for bytes that are no character (yet)


@dataclass(frozen=True, slots=True)
class ServedGeneration(Generation):
    """Text written by a server: token ids are -1, and the prompt's offsets and all states are missing.

    Entropies of places of which the server tells less than elsewhere are NaN.

    Attributes:
        score: score of the whole text by the server's prober, which fires above ``threshold``; None without a
            prober, or if the text was cut after it was scored.
        token_scores: (n,); () without a prober.
        lost: characters that the server wrote after the last token that it tells of, cut off here.
        unlikely: number of tokens that are not the likeliest of their place.
    """

    score: float | None = None
    threshold: float = math.nan
    token_scores: tuple[float, ...] = ()
    lost: int = 0
    unlikely: int = 0


class ChatToken(Body):
    """Token in the form of chat responses, which llama.cpp also uses for completions."""

    token: str = ""
    logprob: float | None = None
    top_logprobs: list[ChatToken] = Field(default=[])


class Logprobs(Body):
    """``logprobs`` of a choice, in nats; a null in a list stands for minus infinity.

    The likeliest tokens of a place are a list without their texts: parts of characters share one text. A form
    of chat responses (``content``) becomes that of completions.
    """

    tokens: list[str] = Field(default=[])
    token_logprobs: list[float | None] = Field(default=[])
    top_logprobs: list[dict[str, float | None] | list[float | None] | None] = Field(default=[])
    text_offset: list[int] | None = None
    content: list[ChatToken] | None = None

    @model_validator(mode="after")
    def _in_one_form(self) -> Logprobs:
        if self.content is not None:
            self.tokens = [each.token for each in self.content]
            self.token_logprobs = [each.logprob for each in self.content]
            self.top_logprobs = [[top.logprob for top in each.top_logprobs] for each in self.content]
            self.content = None
        tops = [list(top.values()) if isinstance(top, dict) else top for top in self.top_logprobs]
        self.token_logprobs = _checked(self.token_logprobs)
        self.top_logprobs = [None if top is None else _checked(top) for top in tops]
        return self


def _checked(logprobs: Sequence[float | None]) -> list[float | None]:
    """Return log-probabilities with None for minus infinity; ValueError for NaN, and above 0."""
    for each in logprobs:
        if each is not None and not each <= _ROUNDED:
            raise ValueError(f"{each:g} is no log-probability")
    return [None if each is None or each == -math.inf else each for each in logprobs]


class Choice(Body):
    """One text of a response."""

    text: str
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    hallucination: Response | None = None


class Usage(Body):
    """Numbers of tokens of a response, by the server's count."""

    prompt_tokens: int = 0


class Completion(Body):
    """A response of ``/v1/completions``."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None

    @property
    def read(self) -> int:
        """The number of tokens of the prompt; 0 if the server tells none, or less than none."""
        return 0 if self.usage is None else max(self.usage.prompt_tokens, 0)


class Listed(Body):
    """A model of ``/v1/models``; ``prober`` describes the prober of a probers-serve."""

    id: str
    prober: dict[str, str | int | float | list[int] | None] | None = None


class Models(Body):
    """A response of ``/v1/models``."""

    data: list[Listed] = Field(default=[])


def exact_entropies(response: Response | None) -> list[float] | None:
    """Return the entropies of a text's tokens, nats; None unless the server gives all of them."""
    known = [each for each in response.token_entropies or () if each is not None] if response else []
    return known if response is not None and len(known) == len(response.token_offsets) else None


def generation(
    prompt: str, choice: Choice, needs: Needs, stops: Stops, read: int = 0, top: int | None = None
) -> ServedGeneration:
    """Convert a choice to a generation that ends where ``stops`` say (ValueError: tokens of another text).

    ``read`` is the number of the prompt's tokens; their texts and ids are unknown. A place with fewer than
    ``top`` likeliest tokens has no entropy. With ``top=0`` the server tells nothing of tokens: they are the
    words of the text, without log-probabilities.
    """
    text, response = choice.text, choice.hallucination
    logprobs = _by_words(text) if top == 0 else choice.logprobs or Logprobs()
    tokens, chances = logprobs.tokens, logprobs.token_logprobs
    spans = _spans(text, logprobs) if response is None else list(response.token_offsets)
    if not len(tokens) == len(chances) >= len(spans):
        raise ValueError(f"{len(chances)} log-probabilities of {max(len(tokens), len(spans))} tokens")
    spans = list(takewhile(lambda span: span[1] <= len(text), spans))
    if choice.finish_reason == "stop" and tokens[-1:] == [""] and (len(text),) * 2 in spans[-1:]:
        tokens, spans = tokens[:-1], spans[:-1]  # the end token
    known, following = spans[-1][1] if spans else 0, [*tokens[len(spans) :], ""][0]
    lost = 0 if following.startswith(text[known:]) else len(text) - known
    if lost and not spans:
        raise ValueError(f"no tokens that read as {text[:40]!r}")
    count, stopped = _end(text, spans, stops)
    whole = count == len(spans)
    stopped |= whole and not lost and len(tokens) > count
    logs = np.array([-math.inf if p is None else p for p in chances[:count]], dtype=np.float32)
    # Those of each place, the highest first; None is minus infinity, or no place.
    given: list[Any] = [*(logprobs.top_logprobs or [None] * len(chances))][:count]
    tops = [sorted((-math.inf if p is None else p for p in each or ()), reverse=True) for each in given]
    if len(tops) < count:
        raise ValueError(f"the likeliest tokens of {len(tops)} of {count} places")
    shares = [[math.exp(p) for p in each] for each in tops]
    estimates = (entropy_of_top(each) if len(each) >= (top or 0) else math.nan for each in shares)
    entropies = exact_entropies(response) or [*estimates]
    highest = [[*each[:2], 0.0, 0.0][:2] for each in shares]
    scores = () if response is None else response.token_scores[:count]
    return ServedGeneration(
        prompt, (-1,) * read, (), (-1,) * count, text[: spans[count - 1][1]] if count else "",
        tuple(spans[:count]), np.full_like(logs, np.nan) if top == 0 else logs,
        np.array(entropies[:count], dtype=np.float32) * (np.nan if top == 0 else 1),
        "stop" if stopped else "length" if choice.finish_reason == "length" else "eos", needs,
        top=np.array(highest, dtype=np.float32).reshape(count, 2).T.copy() if needs.top else None,
        score=response.score if response is not None and whole else None,
        threshold=math.nan if response is None else response.threshold,
        token_scores=() if None in scores else scores,  # type: ignore[arg-type]
        lost=lost if whole else 0,
        unlikely=sum(bool(each) and each[0] - p > _TIED for each, p in zip(tops, logs, strict=True)),
    )  # fmt: skip


def nothing_written(prompt: str, needs: Needs) -> ServedGeneration:
    """Make the generation of a prompt that was left out."""
    none = np.zeros(0, dtype=np.float32)
    top = np.zeros((2, 0), dtype=np.float32) if needs.top else None
    return ServedGeneration(prompt, (), (), (), "", (), none, none, "skipped", needs, top=top)


def _by_words(text: str) -> Logprobs:
    words = re.findall(r"\s*\S+|\s+$", text)
    return Logprobs(tokens=words, token_logprobs=[None] * len(words))


def _spans(text: str, logprobs: Logprobs) -> list[tuple[int, int]]:
    """Find [start, end) of each token in the text, up to the last one that reads as the text there.

    OpenAI counts ``text_offset`` from the prompt's beginning and vLLM from the text's; some servers count
    bytes, leave the first token's space out of the text, or have no offsets. Where the tokens do not read as
    the text at these offsets, they are laid one after the other.
    """
    tokens, starts = logprobs.tokens, logprobs.text_offset
    joined = list(accumulate(map(len, tokens), initial=0))[:-1]
    ways = [joined]
    if starts is not None and len(starts) == len(tokens):
        ways.insert(0, [start - starts[0] for start in starts])
    if tokens and not text[:1].isspace():
        space = len(tokens[0]) - len(tokens[0].lstrip())
        ways.append([max(0, start - space) for start in joined])
    return max((list(_read(text, tokens, way)) for way in ways), key=len)


def _read(text: str, tokens: Sequence[str], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of tokens while they read as the text; parts of characters read as any."""
    for token, (start, following) in zip(tokens, pairwise([*starts, -1]), strict=True):
        part = not token or _BROKEN in token or token.startswith("bytes:")
        spelled = token if start or text.startswith(token) else token.lstrip()
        end = start + (0 if part else len(spelled))
        if following >= 0:
            end = max(end, following) if part else end
        elif part and start < len(text):
            # The last token completes at most one character, unless it is written as its bytes.
            end = len(text) if token.startswith("bytes:") else start + 1
        if end > len(text) or not (part or text.startswith(spelled, start)) or following in range(end):
            return
        yield start, end


def _end(text: str, spans: Sequence[tuple[int, int]], stops: Stops) -> tuple[int, bool]:
    """Count the tokens that stay (:mod:`probers.model.tokens`), and tell whether a stop ended the text."""
    known = 0
    for count, (_, end) in enumerate(spans, 1):
        if (place := stops.find(text[:end], known)) is not None:
            return sum(end <= place for _, end in spans[:count]), True
        if any(stop(text[:end]) for stop in stops.callables):
            return count, True
        known = end
    return len(spans), False
