"""A language model that says what went on inside while it wrote."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from .capture import check_needs, decoder_layers
from .decoding import Prompt, StopCallable, Stops, generate_batch
from .features import ModelSpec
from .forward import Decoder
from .loading import fingerprint, load, pick_device, pick_dtype
from .offsets import decode, token_offsets
from .scoring import attend_alone, score_batch
from .types import AttentionRows, Generation, Needs, RunError, UserError

if TYPE_CHECKING:
    from typing_extensions import Self

_AUTO_BATCH = 32
_T = TypeVar("_T")


class CausalLM:
    """A decoder-only model of transformers with its tokenizer.

    Attributes:
        model: the transformers model, in evaluation mode and otherwise untouched.
        tokenizer: its tokenizer; no padding token is needed.
        device: where it runs.

    Args:
        name: what the user calls it; part of every feature's specification.
        batch_size: texts per forward pass; "auto" begins with 32 and halves when memory
            runs out.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        revision: str = "",
        batch_size: int | str = "auto",
    ) -> None:
        if batch_size != "auto" and not (isinstance(batch_size, int) and batch_size > 0):
            raise UserError(f"batch_size={batch_size} must be auto or a whole number above 0")
        self.model = model
        self.tokenizer = tokenizer
        self.device: torch.device = model.device
        self.num_layers = len(decoder_layers(model))
        self._auto = batch_size == "auto"
        self._batch_size = _AUTO_BATCH if self._auto else int(batch_size)
        self._name, self._revision = name or type(model).__name__, revision
        self._decoder = Decoder(model, pad_id=_first(tokenizer.pad_token_id, tokenizer.eos_token_id, 0))
        config = model.config.get_text_config()
        self.width = int(config.hidden_size)
        self._context: int | None = getattr(config, "max_position_embeddings", None)

    @classmethod
    def from_pretrained(
        cls,
        name: str = "testbed",
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        attn: str | None = None,
        trust_remote_code: bool = False,
        batch_size: int | str = "auto",
    ) -> Self:
        """Load a model.

        Args:
            name: "testbed" for the embedded one, a hub id or a folder.
            revision: hub branch, tag or commit.
            dtype: "auto" (float32 on a CPU, else the checkpoint's), "float32", "bfloat16", "float16".
            device: "auto", "cpu", "cuda", "cuda:1", ..
            attn: attention implementation of transformers; None for the model's default.

        Raises:
            UserError: there is no such model, device or number format.
        """
        if name == "testbed":
            from .testbed.assets import model_path

            source = str(model_path())
        else:
            source = name
        place = pick_device(device)
        model, tokenizer = load(
            source,
            revision=revision,
            dtype=pick_dtype(dtype, place),
            device=place,
            attn=attn,
            trust_remote_code=trust_remote_code,
        )
        return cls(model, tokenizer, name=name, revision=fingerprint(source, model), batch_size=batch_size)

    @cached_property
    def spec(self) -> ModelSpec:
        """Which model this is, for the features read from it."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return ModelSpec(self._name, self._revision, self.num_layers, self.width, dtype)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        needs: Needs = Needs(),
        stop: Sequence[str | StopCallable] = (),
        progress: str | None = None,
    ) -> list[Generation]:
        """Continue every prompt greedily, in batches of like length; order out is order in.

        Args:
            stop: strings before which the text is cut (see :mod:`probers.decoding` for
                what that means for tokens), and callables that are given the text after
                each token and end it by returning True.
            progress: label of a progress bar; None shows none.

        Raises:
            UserError: an empty prompt, one that with ``max_new_tokens`` exceeds the model's
                context, a layer or site the model lacks.
            RunError: NaN or infinite states or logits, out of memory for a single prompt.
        """
        check_needs(needs, self.num_layers)
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if "" in stop:
            raise UserError("a stop string is empty; leave it out or give its text")
        stops = Stops(
            eos=self._eos,
            strings=tuple(s for s in stop if isinstance(s, str)),
            callables=tuple(s for s in stop if not isinstance(s, str)),
        )
        encoded = self._encode(prompts)
        for prompt in encoded:
            self._check_length(prompt, max_new_tokens, f"max_new_tokens={max_new_tokens}")

        def work(chosen: list[int]) -> list[Generation]:
            batch = [encoded[i] for i in chosen]
            return generate_batch(
                self._decoder, self.tokenizer, batch, limit=max_new_tokens, needs=needs, stops=stops
            )

        return self._in_batches([len(p.ids) for p in encoded], work, progress)

    def score(
        self,
        prompts: Sequence[str],
        continuations: Sequence[str | Sequence[int]],
        *,
        needs: Needs = Needs(),
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
        check_needs(needs, self.num_layers)
        if len(prompts) != len(continuations):
            raise UserError(f"{len(prompts)} prompts but {len(continuations)} continuations were given")
        encoded = self._encode(prompts)
        ids = [self._continuation(p, c) for p, c in zip(encoded, continuations, strict=True)]
        for prompt, tokens in zip(encoded, ids, strict=True):
            self._check_length(prompt, len(tokens), f"its continuation of {len(tokens)}")

        def work(chosen: list[int]) -> list[Generation]:
            results = {i: _empty(encoded[i], needs) for i in chosen if not ids[i]}
            full = [i for i in chosen if ids[i]]
            if full:
                batch = [encoded[i] for i in full]
                tokens = [ids[i] for i in full]
                scored = score_batch(self._decoder, self.tokenizer, batch, tokens, needs=needs)
                results.update(zip(full, scored, strict=True))
            return [results[i] for i in chosen]

        lengths = [len(p.ids) + len(tokens) for p, tokens in zip(encoded, ids, strict=True)]
        return self._in_batches(lengths, work, progress)

    def attention_alone(
        self, generations: Sequence[Generation], *, progress: str | None = None
    ) -> list[AttentionRows]:
        """Last-layer attention when only the generated tokens are forwarded: no prompt, no BOS.

        ``rows`` is (n + 1, n) with a zero row 0; ``column_max`` includes the diagonal.
        """

        def work(chosen: list[int]) -> list[AttentionRows]:
            results = {
                i: AttentionRows(np.zeros((1, 0), np.float32), np.zeros(0, np.float32))
                for i in chosen
                if not generations[i].token_ids
            }
            full = [i for i in chosen if generations[i].token_ids]
            if full:
                rows = attend_alone(self._decoder, [generations[i].token_ids for i in full])
                results.update(zip(full, rows, strict=True))
            return [results[i] for i in chosen]

        return self._in_batches([len(g.token_ids) for g in generations], work, progress)

    @cached_property
    def _eos(self) -> frozenset[int]:
        declared = getattr(self.model.generation_config, "eos_token_id", None)
        listed = declared if isinstance(declared, list) else [declared]
        return frozenset(i for i in [*listed, self.tokenizer.eos_token_id] if i is not None)

    def _encode(self, prompts: Sequence[str]) -> list[Prompt]:
        if isinstance(prompts, str):
            raise UserError("prompts must be a list of texts, not one text")
        for index, text in enumerate(prompts):
            if not text:
                raise UserError(f"prompt {index} is empty; there is nothing to continue")
        if not prompts:
            return []
        fast = bool(getattr(self.tokenizer, "is_fast", False))
        found = self.tokenizer(list(prompts), return_offsets_mapping=fast, verbose=False)
        encoded = []
        for index, text in enumerate(prompts):
            ids = tuple(found["input_ids"][index])
            if not ids:
                raise UserError(f"prompt {index} has no tokens: {text!r}")
            spans = found["offset_mapping"][index] if fast else token_offsets(self.tokenizer, ids)[1]
            encoded.append(Prompt(index, text, ids, tuple((int(a), int(b)) for a, b in spans)))
        return encoded

    def _check_length(self, prompt: Prompt, more: int, what: str) -> None:
        if self._context is not None and len(prompt.ids) + more > self._context:
            raise UserError(
                f"prompt {prompt.index} has {len(prompt.ids)} tokens, which with {what} exceeds "
                f"the model's context of {self._context}; shorten it or ask for fewer tokens"
            )

    def _continuation(self, prompt: Prompt, continuation: str | Sequence[int]) -> tuple[int, ...]:
        if not isinstance(continuation, str):
            return tuple(int(i) for i in continuation)
        if not continuation:
            return ()
        before = decode(self.tokenizer, prompt.ids)

        def tokens(text: str, special: bool = False) -> tuple[int, ...]:
            return tuple(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

        # SentencePiece puts a space before any text by itself: try without the text's own.
        candidates = [tokens(continuation), tokens(continuation.removeprefix(" "))]
        together = tokens(prompt.text + continuation, special=True)
        if together[: len(prompt.ids)] == prompt.ids:
            candidates.append(together[len(prompt.ids) :])
        for ids in candidates:
            if ids and decode(self.tokenizer, [*prompt.ids, *ids]) == before + continuation:
                return ids
        raise UserError(
            f"the continuation of prompt {prompt.index} cannot be written in the model's tokens after it: "
            f"{continuation!r}; pass token ids instead"
        )

    def _in_batches(
        self, lengths: Sequence[int], work: Callable[[list[int]], list[_T]], progress: str | None
    ) -> list[_T]:
        """Run ``work`` on batches of indices, longest texts first, so that memory runs out at once if at all."""
        waiting = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        results: dict[int, _T] = {}
        with tqdm(total=len(lengths), desc=progress, unit="text", disable=progress is None) as bar:
            while waiting:
                chosen = waiting[: self._batch_size]
                try:
                    results.update(zip(chosen, work(chosen), strict=True))
                except (RuntimeError, MemoryError) as error:
                    if not _out_of_memory(error):
                        raise
                    self._shrink(len(chosen))
                    continue
                finally:
                    bar.update(len(results) - bar.n)
                waiting = waiting[len(chosen) :]
        return [results[i] for i in range(len(lengths))]

    def _shrink(self, failed: int) -> None:
        """Halve the batch after ``failed`` texts did not fit in memory."""
        if not self._auto:
            raise RunError(
                f"memory ran out with batch_size={self._batch_size}; choose a smaller one or batch_size=auto"
            )
        if failed == 1:
            raise RunError("memory ran out for a single text; use a shorter one, a smaller dtype or model")
        self._batch_size = max(1, failed // 2)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"out of memory: going on with batch_size={self._batch_size}", file=sys.stderr)


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)


def _empty(prompt: Prompt, needs: Needs) -> Generation:
    """The record of a continuation without tokens."""
    none = np.zeros(0, np.float32)
    attention = None
    if needs.attention:
        raise UserError(f"the continuation of prompt {prompt.index} is empty; it has no attention to record")
    return Generation(
        prompt=prompt.text,
        prompt_ids=prompt.ids,
        prompt_offsets=prompt.offsets,
        token_ids=(),
        text="",
        offsets=(),
        logprobs=none,
        entropies=none,
        stop="length",
        needs=needs,
        states=None,
        attention=attention,
    )
