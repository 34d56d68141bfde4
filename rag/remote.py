"""Language models behind an OpenAI-compatible URL, as the loop uses them.

Requests go to ``POST /v1/completions`` with ``logprobs``, through OpenAI's own client, which waits as long as
Retry-After says and retries. No server hands out hidden states or attention; the scores of probers-serve
can decide instead (:class:`probers.rag.triggers.ServedProbing`).
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from probers.engine.language_model import Decoding, GenerationRequest, LanguageModel, ScoreRequest, Scoring
from probers.engine.tokens import Stops
from probers.store.spec import ModelSpec
from probers.types import Generation, RunError, UserError, first_line

from .served import Choice, Completion, Models, generation

if TYPE_CHECKING:
    from probers.engine.language_model import Sampling

#: Likeliest tokens to ask for at each place, tried in this order: most servers tell 20, OpenAI 5.
_TOPS = (20, 5)
_RETRIES = 6
_STOPS = 4  # stop strings that every server takes; the others are looked for here
_LONGEST = 200  # characters of what a server says
_Body = TypeVar("_Body", bound=BaseModel)


class _Missing(UserError):
    """Status 404."""


class RemoteLM(LanguageModel):
    """A language model behind a URL, as the loop uses it.

    A server cannot end a text after a sentence or by a function: it writes on, and the text beyond the end
    is cut off here. Prompts are tokenised on the server, so that a prompt's length is unknown until it is
    sent.

    Attributes:
        url, name: as given.
        prober: the server's description of the prober whose scores come with each text; None without one.
        top: number of likeliest tokens that it returns for each place.
        exact: whether entropies are those of the whole distributions; otherwise they are estimated
            (:func:`probers.rag.served.entropy_of_top`).

    Args:
        url: up to and with ``/v1``. The key comes from the environment's OPENAI_API_KEY.
        name: what the server calls the model.
        at_once: most requests at a time.

    Raises:
        UserError: no such model, a rejected key, or no log-probabilities.
        RunError: no such server.
    """

    def __init__(self, url: str, name: str, *, at_once: int = 8) -> None:
        try:
            import openai
        except ImportError as error:
            raise UserError(
                f'engine={url} needs openai: pip install "probers[remote]"', "missing-extra"
            ) from error
        self.url, self.name, self._at_once = url, name, at_once
        self._client = openai.OpenAI(
            base_url=url, api_key=os.environ.get("OPENAI_API_KEY") or "-", max_retries=_RETRIES
        )
        self.prober = self._listed()
        self.top, first = self._first()
        self.exact = first.hallucination is not None and first.hallucination.exact is not None

    @property
    def spec(self) -> ModelSpec:
        """Identity of the model; it has no readable layers."""
        return ModelSpec(self.name, "", 0, 1, "")

    @property
    def told(self) -> str:
        """Properties of the server that figures depend on, for records."""
        scores = "none" if self.prober is None else self.prober.get("name", "unnamed")
        entropies = "exact" if self.exact else f"estimated from the {self.top} likeliest tokens"
        return f"prober: {scores}; entropies: {entropies}"

    @property
    def tokenizer(self) -> NoReturn:
        raise UserError(
            f"a chat prompt needs the tokenizer, but {self._lacks('it')}: choose another prompt",
            "unsupported",
        )

    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        """True for all: the server refuses what is too long."""
        return [True] * len(prompts)

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """As :meth:`LanguageModel.generate_each`, several requests at a time, all in one batch.

        Names, prefix, cache and draft are ignored: saving work is the server's affair.

        Raises:
            UserError: states or attention are needed, or the server refuses the request.
            RunError: it cannot be reached, fails or stays busy, or its answer makes no sense.
        """
        if how.needs.features or how.needs.attention:
            raise UserError(self._lacks("hidden states or attention"), "unsupported")
        stops = Stops.of(frozenset(), how.stop)
        options = _drawing(how.sampling) | ({"stop": list(stops.strings[:_STOPS])} if stops.strings else {})
        asked = {place: request for place, request in enumerate(requests) if place not in known}
        pool = ThreadPoolExecutor(self._at_once)
        try:
            waiting = [
                pool.submit(self._ask, each.prompt, each.max_new_tokens, self.top, options)
                for each in asked.values()
            ]
            choices = [each.result() for each in waiting]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        made: dict[int, Generation] = {}
        for (place, request), choice in zip(asked.items(), choices, strict=True):
            try:
                made[place] = generation(request.prompt, choice, how.needs, stops)
            except ValueError as error:
                raise RunError(
                    f"engine={self.url} returned tokens that do not match its text: {error}", "server"
                ) from None
        yield made

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> NoReturn:
        """Refused: servers do not score given texts."""
        raise UserError(self._lacks("scores of given texts"), "unsupported")

    def attention_alone(self, generations: Sequence[Generation], *, progress: str | None = None) -> NoReturn:
        """Refused: servers do not hand out attention."""
        raise UserError(self._lacks("attention"), "unsupported")

    def attention_of(self, texts: Sequence[str]) -> NoReturn:
        """Refused: servers do not hand out attention."""
        raise UserError(self._lacks("attention"), "unsupported")

    def _lacks(self, what: str) -> str:
        return f"engine={self.url} does not hand out {what}"

    def _listed(self) -> dict[str, Any] | None:
        """The server's description of the model's prober."""
        client = self._client.with_options(max_retries=0)  # report a missing server at once
        try:
            with self._telling():
                found = self._read(Models, client.models.list()).data
        except _Missing:  # a server without a list
            return None
        one = next((each for each in found if each.id == self.name), None)
        if one is None:
            names = ", ".join(each.id for each in found[:5]) or "none"
            raise UserError(
                f"engine={self.url} has no model {self.name!r}: pass model=NAME, one of {names}", "model"
            )
        return one.prober

    def _first(self) -> tuple[int, Choice]:
        """Number of likeliest tokens the server returns, and a text of one token."""
        for top in _TOPS:
            try:
                choice = self._ask("The", 1, top, {"temperature": 0})
            except UserError as error:
                if "logprobs" not in str(error) or top == _TOPS[-1]:
                    raise
                continue
            if choice.tells:
                return top, choice
        raise UserError(
            f"engine={self.url} returns no log-probabilities of {self.name}, which the loop reads: have the "
            "server answer logprobs of /v1/completions",
            "unsupported",
        )

    def _ask(self, prompt: str, limit: int, top: int, how: dict[str, Any]) -> Choice:
        with self._telling():
            answer = self._client.completions.create(
                model=self.name, prompt=prompt, max_tokens=limit, logprobs=top, **how
            )
        return self._read(Completion, answer).choices[0]

    def _read(self, kind: type[_Body], answer: Any) -> _Body:
        try:
            return kind.model_validate(answer.model_dump(warnings=False))
        except ValidationError as error:
            problem = error.errors()[0]
            why = f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
        except (AttributeError, TypeError):  # the client gives other types as they came
            why = "no JSON"
        raise RunError(
            f"engine={self.url} does not answer as OpenAI's API does ({why}): correct the address", "server"
        )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn a server's refusal or failure into one sentence."""
        import openai

        at = f"engine={self.url}"
        try:
            yield
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            another = "another" if os.environ.get("OPENAI_API_KEY") else "a"
            raise UserError(
                f"{at} asks for {another} key: set OPENAI_API_KEY ({_said(error)})", "server"
            ) from None
        except openai.NotFoundError as error:
            raise _Missing(
                f"{at} has no such model or address, which ends in /v1 ({_said(error)})", "server"
            ) from None
        except openai.RateLimitError as error:
            raise RunError(
                f"{at} is still too busy after {_RETRIES} retries: run the same command later, or with a "
                f"smaller batch_size ({_said(error)})",
                "server",
            ) from None
        except openai.APIConnectionError as error:
            why = first_line(error.__cause__ or error)
            raise RunError(
                f"{at} cannot be reached: start the server or correct the address ({why})", "network"
            ) from None
        except openai.APIStatusError as error:
            kind = RunError if error.status_code >= 500 else UserError
            raise kind(f"{at} answers with status {error.status_code}: {_said(error)}", "server") from None
        except openai.APIError as error:
            raise RunError(
                f"{at} does not answer as OpenAI's API does: {first_line(error)}", "server"
            ) from None


def _said(error: Any) -> str:
    """The server's own words."""
    body = error.body
    told = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(told or body or error.message).split())[:_LONGEST]


def _drawing(sampling: Sampling | None) -> dict[str, Any]:
    if sampling is None:
        return {"temperature": 0}
    if sampling.top_k:
        raise UserError(
            f"top_k={sampling.top_k} is not in OpenAI's API: leave it at 0 for an engine behind a URL",
            "unsupported",
        )
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
