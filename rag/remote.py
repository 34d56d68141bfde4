"""Language models behind an OpenAI-compatible URL, as the loop uses them, and their responses as generations.

Requests go to ``POST /v1/completions`` with ``logprobs``, through OpenAI's own client, which waits as long as
Retry-After says and retries. Servers return the likeliest tokens at each place, but no hidden states or
attention; probers-serve (docs/serving.md) also returns the entropy of each token and its prober's scores of
the text, which can decide instead (:class:`probers.rag.triggers.ServedProbing`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import numpy as np
from pydantic import BaseModel, Field

from probers.cli.openai_client import NotThere, Server
from probers.model.language_model import (
    Decoding,
    GenerationRequest,
    LanguageModel,
    Sampling,
    ScoreRequest,
    Scoring,
)
from probers.model.tokens import Stops
from probers.prober.response import Response
from probers.signals import entropy_of_top
from probers.store.spec import ModelSpec
from probers.types import Generation, Needs, RunError, UserError

#: Numbers of likeliest tokens to ask for, tried in this order: most servers return 20, OpenAI 5.
_TOPS = (20, 5)
_RETRIES = 6
_STOPS = 4  # stop strings that every server takes; others are found here


@dataclass(frozen=True, slots=True)
class ServedGeneration(Generation):
    """Text written by a server: token ids are -1, and the prompt's offsets and all states are missing.

    Attributes:
        score: score of the whole text by the server's prober, which fires above ``threshold``; None without a
            prober, or if the text was cut after it was scored.
        token_scores: (n,); () without a prober.
    """

    score: float | None = None
    threshold: float = math.nan
    token_scores: tuple[float, ...] = ()


class ChatToken(BaseModel):
    """Token in the form of chat responses, which llama.cpp also uses for completions."""

    token: str
    logprob: float | None
    top_logprobs: list[ChatToken] = []


class Logprobs(BaseModel):
    """``logprobs`` of a choice, in nats; null stands for minus infinity."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    text_offset: list[int] | None = None
    content: list[ChatToken] | None = None

    def flat(self) -> Logprobs:
        """Convert them to the form of completions."""
        if (content := self.content) is None:
            return self
        return Logprobs(
            tokens=[each.token for each in content],
            token_logprobs=[each.logprob for each in content],
            top_logprobs=[{top.token: top.logprob for top in each.top_logprobs} for each in content],
        )


def exact_entropies(response: Response | None) -> list[float] | None:
    """Return the entropies of a text's tokens, nats; None unless the server gives all of them."""
    known = [each for each in response.token_entropies or () if each is not None] if response else []
    return known if response is not None and len(known) == len(response.token_offsets) else None


class Choice(BaseModel):
    """One text of a response."""

    text: str
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    hallucination: Response | None = None


class Usage(BaseModel):
    """Numbers of tokens of a response, by the server's count."""

    prompt_tokens: int = Field(0, ge=0)


class Completion(BaseModel):
    """A response of ``/v1/completions``."""

    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None


class Listed(BaseModel):
    """A model of ``/v1/models``; ``prober`` describes the prober of a probers-serve."""

    id: str
    prober: dict[str, str | int | float | list[int] | None] | None = None


class Models(BaseModel):
    """A response of ``/v1/models``."""

    data: list[Listed]


def generation(prompt: str, choice: Choice, needs: Needs, stops: Stops, read: int = 0) -> ServedGeneration:
    """Convert a choice to a generation that ends where ``stops`` say (ValueError: tokens of another text).

    ``read`` is the number of the prompt's tokens; their texts and ids are unknown.
    """
    logprobs = (choice.logprobs or Logprobs()).flat()
    response = choice.hallucination
    spans = _spans(choice.text, logprobs) if response is None else response.token_offsets
    tops = logprobs.top_logprobs or [None] * len(spans)
    if not len(spans) == len(logprobs.token_logprobs) == len(tops):
        raise ValueError(f"{len(logprobs.token_logprobs)} log-probabilities of {len(spans)} tokens")
    count, stopped = _end(choice.text, spans, stops)
    chances = [[math.exp(p) for p in (top or {}).values() if p is not None] for top in tops[:count]]
    entropies = exact_entropies(response)
    if entropies is None:
        entropies = [entropy_of_top(each) for each in chances]
    highest = [sorted(each, reverse=True)[:2] + [0.0] * (2 - len(each)) for each in chances]
    scores = () if response is None else response.token_scores[:count]
    return ServedGeneration(
        prompt, (-1,) * read, (), (-1,) * count,
        choice.text[: spans[count - 1][1]] if count else "", tuple(spans[:count]),
        np.array([-math.inf if p is None else p for p in logprobs.token_logprobs[:count]], dtype=np.float32),
        np.array(entropies[:count], dtype=np.float32),
        "stop" if stopped else "length" if choice.finish_reason == "length" else "eos", needs,
        top=np.array(highest, dtype=np.float32).reshape(count, 2).T.copy() if needs.top else None,
        score=response.score if response is not None and count == len(spans) else None,
        threshold=math.nan if response is None else response.threshold,
        token_scores=() if None in scores else scores,  # type: ignore[arg-type]
    )  # fmt: skip


def _spans(text: str, logprobs: Logprobs) -> list[tuple[int, int]]:
    """Find [start, end) of each token in the text; it may reach beyond the text where a stop was cut off."""
    tokens, starts = logprobs.tokens, logprobs.text_offset
    if starts is None:
        if not "".join(tokens).startswith(text):
            raise ValueError(f"logprobs have no text_offset, and their tokens do not read as {text[:40]!r}")
        starts = list(accumulate(map(len, tokens), initial=0))[:-1]
    if len(starts) != len(tokens):
        raise ValueError(f"{len(starts)} entries of text_offset of {len(tokens)} tokens")
    if text and not tokens:
        raise ValueError(f"no tokens of {text[:40]!r}")
    if not tokens:
        return []
    # OpenAI counts from the prompt's beginning, vLLM from the text's.
    begun = [start - starts[0] for start in starts]
    if any(a > b for a, b in pairwise(begun)):
        raise ValueError("text_offset runs backwards")
    # A part of a character is written as its bytes.
    end = len(text) if tokens[-1].startswith("bytes:") else begun[-1] + len(tokens[-1])
    return list(pairwise([*begun, max(end, begun[-1])]))


def _end(text: str, spans: Sequence[tuple[int, int]], stops: Stops) -> tuple[int, bool]:
    """Count the tokens that stay (:mod:`probers.model.tokens`), and tell whether a stop ended the text."""
    inside, known = sum(end <= len(text) for _, end in spans), 0
    for count, (_, end) in enumerate(spans[:inside], 1):
        if (place := stops.find(text[:end], known)) is not None:
            return sum(end <= place for _, end in spans[:count]), True
        if any(stop(text[:end]) for stop in stops.callables):
            return count, True
        known = end
    return inside, inside < len(spans)


class RemoteLM(LanguageModel):
    """Language model behind a URL, as the loop uses it.

    A server cannot end a text after a sentence or by a function: it writes on, and the text beyond the end is
    cut off here. The length of a prompt is unknown until it is sent. ``url`` ends with ``/v1``; the key comes
    from the environment's OPENAI_API_KEY. UserError for an unknown model, a rejected key or missing
    log-probabilities, RunError for an unreachable server.

    Attributes:
        prober: the server's description of the prober whose scores come with each text; None without one.
        top: number of likeliest tokens that it returns for each place.
        exact: entropies are those of whole distributions, not :func:`~probers.signals.entropy_of_top`.
    """

    #: Out of reach.
    tokenizer: Any = None

    def __init__(self, url: str, name: str, *, at_once: int = 8) -> None:
        self.url, self.name, self._at_once = url, name, at_once
        self._server = Server("engine", url, "batch_size")
        self._client = self._server.client(max_retries=_RETRIES)
        self.prober = self._listed()
        self.top, first = self._first()
        self.exact = exact_entropies(first.hallucination) is not None

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(self.name, "", 0, 1, "")

    @property
    def told(self) -> str:
        """Properties of the server that figures depend on, for records."""
        scores = "none" if self.prober is None else self.prober.get("name", "unnamed")
        entropies = "exact" if self.exact else f"estimated from the {self.top} likeliest tokens"
        return f"prober: {scores}; entropies: {entropies}"

    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        return [True] * len(prompts)  # the server refuses prompts that are too long

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Generate like :meth:`LanguageModel.generate_each`, several requests at a time, all in one batch.

        Names, prefix, cache and draft are ignored: the server saves work by itself. UserError also if the
        server refuses the request, RunError if it cannot be reached, fails, or sends an invalid response.
        """
        if how.needs.features or how.needs.attention:
            raise UserError(self._lacks("hidden states or attention"), "unsupported")
        stops = Stops.of(frozenset(), how.stop)
        options = _drawing(how.sampling) | ({"stop": list(stops.strings[:_STOPS])} if stops.strings else {})
        sent = {place: request for place, request in enumerate(requests) if place not in known}
        pool = ThreadPoolExecutor(self._at_once)

        def ask(one: GenerationRequest) -> Completion:
            return self._ask(one.prompt, one.max_new_tokens, self.top, options)

        try:
            answers = list(pool.map(ask, sent.values()))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        generations: dict[int, Generation] = {}
        try:
            for (place, one), answer in zip(sent.items(), answers, strict=True):
                read = 0 if answer.usage is None else answer.usage.prompt_tokens
                generations[place] = generation(one.prompt, answer.choices[0], how.needs, stops, read)
        except ValueError as error:
            message = f"engine={self.url} returned tokens that do not match its text: {error}"
            raise RunError(message, "server") from None
        yield generations

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> NoReturn:
        raise UserError(self._lacks("scores of given texts"), "unsupported")

    def attention_alone(self, generations: Sequence[Generation], *, progress: str | None = None) -> NoReturn:
        raise UserError(self._lacks("attention"), "unsupported")

    def attention_of(self, texts: Sequence[str]) -> NoReturn:
        raise UserError(self._lacks("attention"), "unsupported")

    def _lacks(self, what: str) -> str:
        return f"engine={self.url} does not hand out {what}"

    def _listed(self) -> dict[str, Any] | None:
        """Return the server's description of the model's prober."""
        client = self._client.with_options(max_retries=0)  # report a missing server at once
        try:
            with self._server.telling():
                models = {each.id: each for each in self._server.read(Models, client.models.list()).data}
        except NotThere:  # a server without a list
            return None
        if self.name not in models:
            names = ", ".join(list(models)[:5]) or "none"
            message = f"engine={self.url} has no model {self.name!r}: pass model=NAME, one of {names}"
            raise UserError(message, "model")
        return models[self.name].prober

    def _first(self) -> tuple[int, Choice]:
        """Return the number of likeliest tokens that the server returns, and a text of one token."""
        for top in _TOPS:
            try:
                choice = self._ask("The", 1, top, {"temperature": 0}).choices[0]
            except UserError as error:
                if "logprobs" not in str(error) or top == _TOPS[-1]:
                    raise
                continue
            if choice.logprobs is not None and choice.logprobs.flat().top_logprobs is not None:
                return top, choice
        message = f"engine={self.url} returns no log-probabilities of {self.name}: have it return logprobs"
        raise UserError(message, "unsupported")

    def _ask(self, prompt: str, limit: int, top: int, how: dict[str, Any]) -> Completion:
        with self._server.telling():
            answer = self._client.completions.create(
                model=self.name, prompt=prompt, max_tokens=limit, logprobs=top, **how
            )
        return self._server.read(Completion, answer)


def _drawing(sampling: Sampling | None) -> dict[str, Any]:
    if sampling is None:
        return {"temperature": 0}
    if sampling.top_k:
        message = f"top_k={sampling.top_k} is not in OpenAI's API: leave it at 0 for an engine behind a URL"
        raise UserError(message, "unsupported")
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
