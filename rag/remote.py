"""Language models behind an OpenAI-compatible URL, as the loop uses them.

Requests go to ``POST /v1/completions`` with ``logprobs``, through OpenAI's own client. Servers return the
likeliest tokens at each place, but no hidden states or attention; probers-serve (docs/serving.md) returns the
entropy of each token and its prober's scores of the text too, which can decide instead
(:class:`probers.rag.triggers.ServedProbing`). :mod:`.completions` reads the responses.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NoReturn

import numpy as np

from probers.checksums import Journal
from probers.cli.openai_client import NotThere, Server, TooLong, Unreadable
from probers.files import canonical_json, digest
from probers.model.language_model import (
    Decoding,
    GenerationRequest,
    LanguageModel,
    Sampling,
    ScoreRequest,
    Scoring,
    Stops,
)
from probers.store.spec import ModelSpec
from probers.types import Generation, UserError, count, shortlist

from .completions import (
    Choice,
    Completion,
    Models,
    ServedGeneration,
    exact_entropies,
    generation,
    nothing_written,
)

log = logging.getLogger(__name__)

#: Numbers of likeliest tokens to ask for, tried in this order: most servers return 20, OpenAI 5, some none.
_TOPS = (20, 5, 0)
_STOPS = 4  # stop strings that every server takes; others are found here
#: Prompts of the first request: another one where nothing is written after the first. It has one token, at
#: most three with what a tokenizer puts before it; a chat template adds more.
_FIRST, _MOST = ("A", "The", "1, 2,"), 3
#: Fields of a request that the loop sets itself.
_SET = {
    "model", "prompt", "max_tokens", "logprobs", "temperature", "top_p", "seed", "stop", "stream", "n",
    "echo", "best_of", "suffix",
}  # fmt: skip
#: Servers, as messages about missing log-probabilities name them.
WITH_LOGPROBS = (
    "llama-server, llama-cpp-python, vLLM and probers-serve return them; Ollama and transformers serve do not"
)


class RemoteLM(LanguageModel):
    """Language model behind a URL, as the loop uses it.

    A server cannot end a text after a sentence or by a function: it writes on, and the text beyond the end is
    cut off here. The length of a prompt is unknown until it is sent. A bare ``url`` gets ``/v1``. The
    key is the environment's OPENAI_API_KEY. ``timeout`` are the seconds that a request may take, including
    those in which the server is busy, loading or away; ``options`` are further fields of every request.
    UserError for an unknown model, a rejected key, or a server that puts prompts into a chat template,
    RunError for an unreachable server.

    Attributes:
        prober: the server's description of the prober whose scores come with each text; None without one.
        top: number of likeliest tokens that it returns for each place; 0 if it tells nothing of tokens.
        exact: entropies are those of whole distributions, not :func:`~probers.signals.entropy_of_top`.
    """

    #: Out of reach.
    tokenizer: Any = None

    def __init__(
        self, url: str, name: str, *, at_once: int = 8, timeout: float = 600.0,
        options: Mapping[str, Any] | None = None, on_too_long: Literal["error", "skip"] = "error",
    ) -> None:  # fmt: skip
        if fixed := sorted(_SET & {*(options or {})}):
            message = f"engine_options.{fixed[0]} is set by the loop itself: leave it out"
            raise UserError(message, "conflict")
        self.url, self.name, self._at_once, self._timeout = url, name, at_once, timeout
        self._options, self._on_too_long = dict(options or {}), on_too_long
        self._server = Server("engine", url, "batch_size")
        self._client = self._server.client(max_retries=0)
        self._answered, self._told, self._lock = False, set[str](), Lock()
        self._journal: Journal | None = None
        self._known: dict[str, Completion] = {}
        self.prober, others = self._listed()
        self._asked, first = self._first(others)
        self.exact = exact_entropies(first.hallucination) is not None
        tops = [] if first.logprobs is None else first.logprobs.top_logprobs
        self.top = min(self._asked, max((len(top or ()) for top in tops), default=0))
        if not self.top:
            self._asked = 0
            message = "%s: the words of a text count as its tokens, and triggers that read tokens are refused"
            log.warning(message, self.without)
        if others:
            message = "%s does not list model=%s but answers to this name; it lists %s: see that they are one"
            log.warning(message, self._server.name, name, shortlist(others))

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(self.name, "", 0, 1, "")

    @property
    def description(self) -> str:
        """Properties of the server that figures depend on, for records."""
        scores = "none" if self.prober is None else self.prober.get("name", "unnamed")
        entropies = "exact" if self.exact else f"estimated from the {self.top} likeliest tokens"
        return f"prober: {scores}; entropies: {entropies if self.top else 'none'}"

    @property
    def without(self) -> str:
        """Sentence about a server that tells nothing of tokens."""
        return f"engine={self.url} returns no log-probabilities of {self.name} ({WITH_LOGPROBS})"

    def keep(self, path: Path) -> None:
        """Keep every answer in a file, so that a run that ends early has none of them written again."""
        self._journal = Journal(path)
        for record in self._journal.resume():
            self._known[record["request"]] = Completion.model_validate(record["answer"])

    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        return [True] * len(prompts)  # the server refuses prompts that are too long

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Generate like :meth:`LanguageModel.generate_each`, several requests at a time, all in one batch.

        Names, prefix, cache and draft are ignored: the server saves work by itself. An answer that cannot be
        read is left out, and a prompt that is too long if ``on_too_long`` says so. UserError also if the
        server refuses a request, RunError if it cannot be reached, fails, or sends nothing that can be read.
        """
        if how.needs.features or how.needs.attention:
            raise self.lacks("hidden states or attention")
        stops = Stops.of(frozenset(), how.stop)
        common = {"stop": list(stops.strings[:_STOPS])} if stops.strings else {}
        drawing = _drawing(how.sampling, requests)
        places = [place for place in range(len(requests)) if place not in known]

        def ask(place: int) -> ServedGeneration | TooLong | Unreadable:
            one = requests[place]
            try:
                answer = self._answer(one.prompt, one.max_new_tokens, drawing[place] | common)
                return generation(one.prompt, answer.choices[0], how.needs, stops, answer.read, self.top)
            except (TooLong, Unreadable) as error:
                return error
            except ValueError as error:
                message = f"{self._server.name} returned tokens that do not match its text: {error}"
                return Unreadable(message, "server")

        answers = dict(zip(places, self._server.all(ask, places, self._at_once, self._timeout), strict=True))
        written = {place: each for place, each in answers.items() if isinstance(each, ServedGeneration)}
        failed = {place: each for place, each in answers.items() if place not in written}
        self._leave_out({requests[place].name or str(place): each for place, each in failed.items()}, written)
        self._notice(requests, written, how.sampling)
        empty = {place: nothing_written(requests[place].prompt, how.needs) for place in failed}
        yield {**written, **empty}

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> NoReturn:
        raise self.lacks("scores of given texts")

    def lacks(self, what: str) -> UserError:
        return UserError(f"engine={self.url} does not hand out {what}", "unsupported")

    def _leave_out(self, failed: Mapping[str, Any], written: Mapping[int, Any]) -> None:
        """Say which texts are left out and why; stop where the options or the server leave no choice."""
        long = [name for name, error in failed.items() if isinstance(error, TooLong)]
        if long:
            why = failed[long[0]]
            if self._on_too_long == "error":
                remedy = "give a smaller k, or model.on_too_long=skip; what is written is kept"
                raise UserError(f"the prompt of {shortlist(long)} is too long: {why}; {remedy}", "too-long")
            log.warning("left out prompts longer than the server's context: %s (%s)", shortlist(long), why)
        if odd := [name for name in failed if name not in long]:
            error = failed[odd[0]]
            if len(odd) > 1 and not written:
                raise error
            log.warning("the text of %s is left out: %s", shortlist(odd), error)

    def _notice(
        self, requests: Sequence[GenerationRequest], written: Mapping[int, ServedGeneration],
        sampling: Sampling | None,
    ) -> None:  # fmt: skip
        """Say once each what the server does otherwise than a model in this process."""
        texts = list(written.values())
        places = sum(len(text.token_ids) for text in texts)
        unknown = sum(int(np.isnan(text.entropies).sum()) for text in texts) if self.top else 0
        unlikely = sum(text.unlikely for text in texts) if sampling is None else 0
        if lost := [text for text in texts if text.lost]:
            message = f"leaves out the last tokens of {len(lost)} of {count(len(texts), 'text')}"
            self._tell(f"{message}: these end at the last token that it tells of")
        if unknown:
            message = f"tells of fewer than {self.top} likeliest tokens at {unknown} of {places} places"
            self._tell(f"{message}: their entropy is unknown and not judged")
        if unlikely:
            share = f"{unlikely} of {places} ({unlikely / places:.1%})"
            remedy = "a penalty by engine_options={repeat_penalty: 1.0}, or a generation_config"
            message = f"does not take the likeliest tokens: {share} are not"
            self._tell(f"{message}. Switch off what changes its greedy texts, such as {remedy}")
        drawn = defaultdict[str, list[str]](list)
        for place, text in written.items():
            drawn[requests[place].prompt].append(text.text)
        several = [{*each} for each in drawn.values() if len(each) > 1]
        if sampling is not None and several and all(len(each) == 1 for each in several):
            self._tell("drew equal texts for every prompt: it may ignore seed or temperature")

    def _tell(self, message: str) -> None:
        """Warn of something once, whatever the numbers in it."""
        words = message.partition(":")[0].strip("0123456789 ")[:20]
        if words not in self._told:
            self._told.add(words)
            log.warning("%s %s", self._server.name, message)

    def _listed(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the server's description of the model's prober, and the listed names if this is none."""
        try:
            raw = self._patiently(lambda left: self._client.models.with_raw_response.list(timeout=left))
        except NotThere:  # a server without a list
            return None, []
        probers = {each.id: each.prober for each in self._server.read(Models, raw).data}
        return probers.get(self.name), [] if self.name in probers else list(probers)

    def _first(self, others: Sequence[str]) -> tuple[int, Choice]:
        """Return the number of likeliest tokens to ask for, and a text of one token.

        UserError if the name is neither listed (``others`` are) nor taken, or if the server takes the prompt
        for a message of a chat.
        """
        for top in _TOPS:
            how = {"temperature": 0} | ({"logprobs": top} if top else {})
            try:
                answers = [first := self._ask(_FIRST[0], 1, how)]
                while not answers[-1].choices[0].text and len(answers) < len(_FIRST):
                    answers.append(self._ask(_FIRST[len(answers)], 1, how))
                break
            except UserError as error:
                if "logprobs" in str(error) and top:
                    continue
                if not others or not (isinstance(error, NotThere) or "model" in str(error)):
                    raise
                message = f"engine={self.url} has no model {self.name!r}: pass model=NAME, one of "
                raise UserError(message + shortlist(others), "model") from error
        if first.read > _MOST:
            message = f"engine={self.url} reads {first.read} tokens of a prompt of one letter"
            remedy = "its /v1/completions puts it into a chat template. Choose a server that continues texts"
            raise UserError(f"{message}: {remedy}", "unsupported")
        return top, answers[-1].choices[0]

    def _answer(self, prompt: str, limit: int, how: dict[str, Any]) -> Completion:
        """Send a request, unless its answer is kept."""
        if self._asked:
            how = {"logprobs": self._asked, **how}
        key = digest(canonical_json([self.name, prompt, limit, how, self._options]), 32)
        if (known := self._known.get(key)) is not None:
            return known
        answer = self._ask(prompt, limit, how)
        if self._journal is not None:
            with self._lock:
                self._journal.append([{"request": key, "answer": answer.model_dump(mode="json")}])
        return answer

    def _ask(self, prompt: str, limit: int, how: dict[str, Any]) -> Completion:
        create: Any = self._client.completions.with_raw_response.create
        body = {"model": self.name, "prompt": prompt, "max_tokens": limit, **how}
        raw = self._patiently(lambda left: create(**body, extra_body=self._options or None, timeout=left))
        return self._server.read(Completion, raw)

    def _patiently(self, send: Any) -> Any:
        answer = self._server.patiently(send, seconds=self._timeout, known=self._answered)
        self._answered = True
        return answer


def _drawing(sampling: Sampling | None, requests: Sequence[GenerationRequest]) -> list[dict[str, Any]]:
    """Make each request's fields for the choice of tokens; each copy of a prompt has a seed of its own."""
    if sampling is None:
        return [{"temperature": 0}] * len(requests)
    if sampling.top_k:
        message = f"top_k={sampling.top_k} is not in OpenAI's API: leave it at 0 for an engine behind a URL"
        raise UserError(message, "unsupported")
    common = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    streams = sampling.streams([list(each.prompt.encode("utf-8", "replace")) for each in requests])
    # Below 2**31: servers keep seeds in 32 bits, and some take the highest for a random one.
    return [common | {"seed": int(digest(str(stream), 8), 16) >> 1} for stream in streams]
