"""The protocol of language models: frozen requests in, recorded generations out.

Models of transformers, in vLLM and behind a URL, and the shared model of a server implement
:meth:`LanguageModel.generate_each` and :meth:`LanguageModel.score_each`, the base of all other methods.

A stop string or a sentence end is a place in the text, found as soon as it cannot move any more. The tokens
wholly before it are kept. Callables see the text after each token, and that token is kept.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from tqdm import tqdm

from ..types import AttentionRows, EndToken, Generation, Needs, Passages, Site, UserError
from ..words.text import split_sentences

if TYPE_CHECKING:
    from torch import Tensor

    from ..store.spec import ModelSpec
    from .kv_cache import PrefixCache

#: Record tokens, log-probabilities and entropies only.
NOTHING = Needs()

T = TypeVar("T")

StopCallable = Callable[[str], bool]

_OPEN = re.compile(r"\s*\S*$")


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """A stop at the end of the ``count``-th sentence (:func:`probers.words.text.split_sentences`).

    A sentence end is certain when the next one begins, a token or two later; these are decoded and left
    out.
    """

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UserError(f"SentenceEnd({self.count}): count must be at least 1")

    def find(self, text: str) -> int | None:
        """Find the end of the sentence, once that is certain; None before."""
        # "U.S. The" ends a sentence and "U.S. Theodore" does not: whether a word that is
        # still growing begins a sentence is left open until a longer word shows it.
        spans = split_sentences(text if not text or text[-1].isspace() else text + "x")
        return spans[self.count - 1][1] if len(spans) > self.count else None


Stop = str | EndToken | SentenceEnd | StopCallable


@dataclass(frozen=True, slots=True)
class Stops:
    """Conditions that end a text."""

    eos: frozenset[int]
    strings: tuple[str, ...] = ()
    sentences: tuple[SentenceEnd, ...] = ()
    callables: tuple[StopCallable, ...] = ()

    @classmethod
    def of(cls, eos: frozenset[int], stop: Sequence[Any]) -> Stops:
        """Sort the stops that a user gave (UserError: neither a text, a SentenceEnd nor callable)."""
        if isinstance(stop, str):
            raise UserError(f"stop={stop!r} must be a list, not one text: use stop=[{stop!r}]")
        for each in stop:
            if each == "":
                raise UserError("a stop string is empty; leave it out or give its text")
            if not isinstance(each, (str, EndToken, SentenceEnd)) and not callable(each):
                kinds = "neither a text, an EndToken, a SentenceEnd nor a function of the text"
                raise UserError(f"stop={each!r} is {kinds}")
        eos = eos.union(each.id for each in stop if isinstance(each, EndToken))
        strings = tuple(each for each in stop if isinstance(each, str))
        sentences = tuple(each for each in stop if isinstance(each, SentenceEnd))
        return cls(eos, strings, sentences, tuple(filter(callable, stop)))

    @property
    def look_back(self) -> bool:
        """True if a later token may cut off earlier ones."""
        return bool(self.strings or self.sentences)

    def find(self, text: str, known: int) -> int | None:
        """Find the end of the text, None while it runs; its first ``known`` characters hold none."""
        places = [text.find(stop, max(0, known - len(stop) + 1)) for stop in self.strings]
        ends = [*places, *(sentence.find(text) for sentence in self.sentences)]
        return min((end for end in ends if end is not None and end >= 0), default=None)

    def safe(self, text: str) -> int:
        """Count the characters that stay whatever comes next: no stop can begin before them."""
        sure = len(text) - max((len(stop) for stop in self.strings), default=1) + 1
        if self.sentences:  # the boundary before the last word may still become one
            sure = min(sure, next(_OPEN.finditer(text)).start())
        return sure


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings for drawing tokens instead of taking the likeliest; records still come from the raw logits.

    Attributes:
        temperature: logits are divided by it.
        top_k: draw among this many likeliest tokens; 0 for all.
        top_p: draw among the likeliest tokens that together have this probability.
        seed: a prompt's tokens depend on it, on the prompt, and on how many times the
            same prompt stands before it in the call; not on its neighbours.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"temperature={self.temperature} must be above 0; for greedy leave sampling out")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(f"top_k={self.top_k} must be at least 0, top_p={self.top_p} in (0, 1]")

    def streams(self, prompts: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
        seen: Counter[bytes] = Counter()
        streams = []
        for ids in prompts:
            digest = hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).digest()[:8]
            streams.append((self.seed, int.from_bytes(digest, "little"), seen[digest]))
            seen[digest] += 1
        return streams

    def draw(self, logits: Tensor, random: Sequence[np.random.Generator]) -> Tensor:
        """Draw tokens (batch,) for logits (batch, vocabulary), each row with its own random numbers."""
        import torch

        ordered, order = (logits.float() / self.temperature).sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        if self.top_k:
            probabilities[:, self.top_k :] = 0
        total = probabilities.double().cumsum(dim=-1)
        if self.top_p < 1:
            # The token that reaches top_p is the last candidate.
            probabilities[total - probabilities >= self.top_p * total[:, -1:]] = 0
            total = probabilities.double().cumsum(dim=-1)
        numbers = torch.tensor([row.random() for row in random], dtype=torch.float64)
        place = torch.searchsorted(total, numbers.to(total.device)[:, None] * total[:, -1:], right=True)
        return order.gather(-1, place.clamp_max(logits.shape[-1] - 1))[:, 0]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt to continue by at most ``max_new_tokens`` >= 1 tokens; "" as name is its place in the list."""

    prompt: str
    max_new_tokens: int
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.max_new_tokens, Integral) or self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens={self.max_new_tokens!r} must be a whole number of 1 or more")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A text to read after a prompt, which may show ``passages``; token ids are taken unchanged.

    ``source`` is the text that these were made of, where it is known; offsets are then characters of it.
    ``left_out`` are the numbers, from 1, of passages that did not fit into the prompt.
    """

    prompt: str
    continuation: str | Sequence[int]
    name: str = ""
    source: str = ""
    passages: Passages | None = None
    left_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scoring:
    """Settings for recording texts.

    ``needs`` are recorded besides log-probabilities and entropies. ``prefix`` is the common beginning of all
    prompts (a run's exemplars); its keys and values are computed once and kept for later calls. Results do
    not depend on it.
    """

    needs: Needs = NOTHING
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Decoding(Scoring):
    """Settings for writing texts and recording them.

    Attributes:
        stop: strings before which the text is cut, :class:`probers.types.EndToken`, :class:`SentenceEnd`, and
            callables that are given the text after each token and end it by returning True.
        sampling: draw tokens instead of taking the likeliest.
        cache: results of earlier calls for prompts of these names, so that a prompt that
            extends one need not compute it again; this call's texts are added.
        draft: number of tokens to guess at once from the prompt, where a text is alone in its
            batch or the last that runs, and check them in one pass (:func:`.decode.guess`);
            0 decodes token by token. Results differ by rounding only. Drawn tokens are not guessed.
    """

    stop: Sequence[Stop] = ()
    sampling: Sampling | None = None
    cache: PrefixCache | None = None
    draft: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling | None):
            example = "probers.Sampling(1.0, seed=0), or leave it out for the likeliest tokens"
            raise UserError(f"sampling={self.sampling!r} is no Sampling: give {example}")


def check_model(verb: str, lm: Any) -> None:
    """Refuse what is no language model of this package, such as a model of transformers (UserError)."""
    if not hasattr(lm, "generate_each"):
        make = "make it by CausalLM.from_pretrained(name), or CausalLM(model, tokenizer)"
        raise UserError(f"{verb} takes a model first, found {type(lm).__name__}: {make}")


class LanguageModel(ABC):
    """A model that writes and reads texts and records its internals; ``attends`` if it has attention.

    ``tokenizer`` is None where it is out of reach.
    """

    attends = True
    tokenizer: Any

    @property
    @abstractmethod
    def spec(self) -> ModelSpec:
        """Specification of the model, for the features read from it."""

    @abstractmethod
    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        """Tell for each prompt whether the model's context has room for this many further tokens."""

    @abstractmethod
    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Continue every prompt; yield generations by their places in ``requests``, batch by batch.

        Requests at the places ``known`` are left out. Batches are cut as if they were present, so that the
        others are written exactly as beside them. UserError for an empty prompt, one that with
        ``max_new_tokens`` exceeds the model's context or lacks ``how.prefix``, a layer or site the model
        lacks; RunError for NaN or infinite states or logits, or out of memory for a single prompt.
        """

    @abstractmethod
    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Record given continuations, each in one forward pass, like :meth:`generate_each`.

        A continuation given as token ids repeats the records of their generation. A text is tokenized so that
        it reads as itself after the prompt, or as the tokenizer's normaliser changes it, with offsets in the
        original; UserError where no tokens do. A model may have written it in other tokens, so pass ids where
        that matters.
        """

    def attention_alone(self, generations: Sequence[Generation]) -> list[AttentionRows]:
        """Compute last-layer attention when only the generated tokens are forwarded: no prompt, no BOS.

        ``rows`` is (n + 1, n) with a zero row 0; ``column_max`` includes the diagonal.
        UserError for a model that hands out none.
        """
        raise self.lacks("attention")

    def attention_of(self, texts: Sequence[str]) -> list[tuple[tuple[tuple[int, int], ...], AttentionRows]]:
        """Compute :meth:`attention_alone` of texts with a BOS; each token's [start, end) comes first."""
        raise self.lacks("attention")

    def lacks(self, what: str) -> UserError:
        """Make the error of what this model does not hand out."""
        return UserError(f"{self.spec.id} does not hand out {what}", "unsupported")

    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int | Sequence[int],
        names: Sequence[str] | None = None, progress: str | None = None, **how: Any,
    ) -> list[Generation]:  # fmt: skip
        """Continue every prompt, in batches of like length; order out is order in.

        ``max_new_tokens`` is one number for all, or a list. Messages call the prompts by ``names``, by
        default their places. ``progress`` is the label of a bar, and ``how`` are ``needs``, ``stop``,
        ``sampling``, .. of :class:`Decoding`. Errors are those of :meth:`generate_each`.
        """
        several = isinstance(max_new_tokens, Sequence) and not isinstance(max_new_tokens, str)
        limits: Any = max_new_tokens if several else [max_new_tokens] * len(prompts)
        rows = aligned(prompts, names, **{"limits in max_new_tokens": limits})
        requests = [GenerationRequest(prompt, limit, name) for prompt, name, limit in rows]
        return collected(self.generate_each(requests, Decoding(**how)), len(requests), progress)

    def score(
        self, prompts: Sequence[str], continuations: Sequence[str | Sequence[int]], *,
        names: Sequence[str] | None = None, progress: str | None = None, **how: Any,
    ) -> list[Generation]:  # fmt: skip
        """Record the same as :meth:`generate` for given continuations, in one forward pass.

        ``score([g.prompt], [g.token_ids])`` repeats the records of ``generate``. ``how`` are the fields of
        :class:`Scoring`; all else is as in :meth:`generate` and :meth:`score_each`.
        """
        rows = aligned(prompts, names, continuations=continuations)
        requests = [ScoreRequest(prompt, text, name) for prompt, name, text in rows]
        return collected(self.score_each(requests, Scoring(**how)), len(requests), progress)

    def states(
        self, texts: Sequence[str], *, layers: Literal["all"] | int | Sequence[int] = "all",
        pool: Literal["mean", "last", "tokens"] = "mean", site: Site = "resid_post",
        prompts: Sequence[str] | None = None,
    ) -> np.ndarray | list[np.ndarray]:  # fmt: skip
        """Read texts in one pass each and return their hidden states.

        Args:
            layers: blocks after which the state is read, from 1; 0 is the embedding output. "all" leaves it
                out.
            pool: "mean" or "last" over the tokens of a text, or all "tokens".
            prompts: what stands before each text, and is not pooled; None is nothing.

        Returns:
            Array (n, layers, d) in single precision; with "tokens" a list of arrays (tokens, layers, d).

        Raises:
            UserError: a layer or site that the model lacks, or a text longer than its context.
        """
        several = [layers] if isinstance(layers, int) else layers
        wanted = tuple(range(1, self.spec.layers + 1) if several == "all" else several)
        if not wanted:
            raise UserError("layers=[] names no layer: give numbers from 1, or all", "layers")
        needs = Needs.of(wanted, site=site, pool=pool)
        read = self.score([""] * len(texts) if prompts is None else prompts, texts, needs=needs)
        states = [one.state for one in read if one.state is not None]
        if pool == "tokens" or any(state.ndim > 2 for state in states):
            return states
        return np.stack(states) if states else np.empty((0, len(wanted), self.spec.width), np.float32)


def aligned(
    prompts: Sequence[str], names: Sequence[str] | None, **others: Sequence[Any]
) -> Iterable[tuple[Any, ...]]:
    """Return each prompt with its name and its own entries (UserError: unequal lengths, or no lists)."""
    columns = {"names": [""] * len(prompts) if names is None else names, **others}
    for what, column in {"prompts": prompts, **columns}.items():
        if isinstance(column, str | Mapping) or hasattr(column, "columns"):
            kind = type(column).__name__
            raise UserError(
                f"{what} must be a list of texts, found {kind}: give [text], or list(table[column])"
            )
        if len(column) != len(prompts):
            raise UserError(f"{len(prompts)} prompts but {len(column)} {what} were given", "mismatch")
    return zip(prompts, *columns.values(), strict=True)


def collected(batches: Iterable[Mapping[int, T]], count: int, progress: str | None) -> list[T]:
    """Return the batches' results for ``count`` texts, in order, with a bar called ``progress`` or none."""
    results: dict[int, T] = {}
    with tqdm(total=count, desc=progress, unit="text", disable=progress is None) as bar:
        for batch in batches:
            results.update(batch)
            bar.update(len(batch))
    return [results[i] for i in range(count)]
