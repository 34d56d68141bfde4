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
from .decoding import StopCallable, Stops, generate_batch
from .encoding import Prompt, encode_continuation, encode_prompts
from .features import ModelSpec
from .forward import Decoder
from .loading import fingerprint, load, pick_device, pick_dtype
from .scoring import attend_alone, score_batch
from .types import AttentionRows, Generation, Needs, RunError, UserError

if TYPE_CHECKING:
    from typing_extensions import Self

#: Record tokens, log-probabilities and entropies only.
NOTHING = Needs()

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
        self._decoder = Decoder(model)
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
            trust_remote_code: run Python code that comes with the model.
            batch_size: texts per forward pass, or "auto".

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
        needs: Needs = NOTHING,
        stop: Sequence[str | StopCallable] = (),
        progress: str | None = None,
    ) -> list[Generation]:
        """Continue every prompt greedily, in batches of like length; order out is order in.

        Args:
            prompts: texts; tokenized as the tokenizer does by default, its BOS included.
            max_new_tokens: most tokens per text.
            needs: what to record besides log-probabilities and entropies.
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
        encoded = encode_prompts(self.tokenizer, prompts)
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
        needs: Needs = NOTHING,
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
        encoded = encode_prompts(self.tokenizer, prompts)
        ids = [encode_continuation(self.tokenizer, p, c) for p, c in zip(encoded, continuations, strict=True)]
        for prompt, tokens in zip(encoded, ids, strict=True):
            self._check_length(prompt, len(tokens), f"its continuation of {len(tokens)}")

        def work(chosen: list[int]) -> list[Generation]:
            batch, tokens = [encoded[i] for i in chosen], [ids[i] for i in chosen]
            return score_batch(self._decoder, self.tokenizer, batch, tokens, needs=needs)

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

    def _check_length(self, prompt: Prompt, more: int, what: str) -> None:
        if self._context is not None and len(prompt.ids) + more > self._context:
            raise UserError(
                f"prompt {prompt.index} has {len(prompt.ids)} tokens, which with {what} exceeds "
                f"the model's context of {self._context}; shorten it or ask for fewer tokens"
            )

    def _in_batches(
        self, lengths: Sequence[int], work: Callable[[list[int]], list[_T]], progress: str | None
    ) -> list[_T]:
        """Run ``work`` on batches of indices, longest texts first: if memory runs out, it does so at once."""
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


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "out of memory" in str(error) or "can't allocate memory" in str(error)
