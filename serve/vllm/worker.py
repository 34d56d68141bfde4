"""A worker of vLLM that scores the tokens it writes; their states never leave it.

Scored are requests whose sampling parameters have ``extra_args={"probers": KEY}``, others cost nothing;
what LoRA adapters and pictures make of a model is not what a prober was trained on, and is left out. The
scores of a key are handed out by ``collective_rpc("probers_scores")`` and kept until it is released.

A step computes one new token of a text at most, and its position says which. A position that is computed
again, as after a preemption, has its score already, and a text's pooled state takes each token once: the
scores do not depend on how vLLM schedules. vLLM does not forward the last token of a text. A request for
one further token behind prompt and text, its sampling parameters from :func:`closing`, has it scored; the
cache holds nearly all that is before it.

Memory: a buffer of tokens of a step at most x layers x d numbers on the device, however long the texts are;
a number for each token of the texts whose keys are not released, and for heads of pooled states one vector
of layers x d for each of these texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

from probers.bank.running import RunningScores
from probers.types import RunError, UserError

from .model import readable
from .prober import KEY, Settings, model_spec

_CLOSES = "probers_closes"


def closing(key: str, text: str, first: int) -> dict[str, Any]:
    """``extra_args`` of a request that has the last token of a text scored.

    Args:
        key: of the text.
        text: the id under which its scores are handed out.
        first: how many of the request's prompt tokens are the text's prompt.
    """
    return {KEY: key, _CLOSES: [text, first]}


@dataclass(slots=True)
class _Text:
    """A text that is being written.

    Attributes:
        name: the id of its request.
        first: the position whose state gives its first score.
        scores: of its tokens; None for one that could not be read.
        sent: how many of them were handed out.
    """

    name: str
    first: int
    scores: list[float | None] = field(default_factory=list)
    sent: int = 0


def _stock() -> Any:
    """The worker that vLLM itself would take on this machine."""
    place = "cpu_worker.CPUWorker" if current_platform.is_cpu() else "gpu_worker.Worker"
    place = "xpu_worker.XPUWorker" if current_platform.is_xpu() else place
    return resolve_obj_by_qualname(f"vllm.v1.worker.{place}")


class ScoringWorker(_stock()):  # type: ignore[misc]
    """vLLM's worker, which scores what is written by the prober of ``additional_config``.

    Raises:
        UserError: a prober of another model or of states that vLLM does not hand out; pipeline or data
            parallelism, or speculation.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        parallel, model = vllm_config.parallel_config, vllm_config.model_config
        for option, allowed in [
            ("--pipeline-parallel-size", parallel.pipeline_parallel_size == 1),
            ("--data-parallel-size", parallel.data_parallel_size == 1),
            ("--speculative-config", vllm_config.speculative_config is None),
        ]:
            if not allowed:
                raise UserError(f"{option} is not possible beside a prober: leave it out")
        settings = Settings.of(vllm_config.additional_config)
        self._bank = settings.load()
        dtype = str(model.dtype).removeprefix("torch.")
        self._bank.check_model(model_spec(model.served_model_name, model.model, model.hf_config, dtype))
        vllm_config.additional_config[KEY] = settings.reading(self._bank)
        self._running = RunningScores(self._bank)
        self._requests: dict[str, _Text] = {}
        self._texts: dict[str, dict[str, _Text]] = {}
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, **options: Any) -> None:
        """Load the subclass of the model's class whose states can be read, and move the heads beside it."""
        config = self.vllm_config.model_config
        stock, name = ModelRegistry.resolve_model_cls(config.architectures, config)
        ModelRegistry.register_model(name, readable(stock))
        super().load_model(**options)
        self._bank.to(self.device)

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's, and score what it computed."""
        made = super().execute_model(scheduler_output, *args, **kwargs)
        if self.rank == 0:
            self._score(scheduler_output)
        return made

    def probers_scores(self, release: Sequence[str] = ()) -> dict[str, dict[str, tuple[int, list[Any]]]]:
        """Scores since the last call: key -> id of the request -> place of the first of them, scores.

        A text is named as soon as it is begun, and again with every new score.

        Args:
            release: keys that nobody will ask for again.
        """
        for key in release:
            for text in self._texts.pop(key, {}).values():
                self._running.forget(text.name)
        found: dict[str, dict[str, tuple[int, list[Any]]]] = {}
        for key, texts in self._texts.items():
            for text in texts.values():
                if text.sent < len(text.scores) or not text.scores:
                    found.setdefault(key, {})[text.name] = text.sent, text.scores[text.sent :]
                    text.sent = len(text.scores)
        return found

    def _begin(self, request: NewRequestData) -> None:
        said = (request.sampling_params and request.sampling_params.extra_args) or {}
        ids, key = request.prompt_token_ids, said.get(KEY)
        if not isinstance(key, str) or ids is None or request.mm_features or request.lora_request:
            return
        name, prompt = said.get(_CLOSES) or (request.req_id, len(ids))
        texts = self._texts.setdefault(key, {})
        text = texts.setdefault(name, _Text(name, prompt - self._running.before))
        self._requests[request.req_id] = text

    def _score(self, step: SchedulerOutput) -> None:
        for request in step.scheduled_new_reqs:
            self._begin(request)
        cached = step.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed.update((request.req_id, request.num_computed_tokens) for request in step.scheduled_new_reqs)
        new: list[tuple[_Text, int]] = []
        end = 0
        for request in self._order() if step.num_scheduled_tokens else ():
            end += (count := step.num_scheduled_tokens[request])
            text = self._requests.get(request)
            # Of its tokens in this step only the last can be one that was not there before.
            place = -1 if text is None else computed[request] + count - 1 - text.first
            if text is not None and place >= len(text.scores):
                text.scores += [None] * (place - len(text.scores))  # what another server computed
                new.append((text, end - 1))
        if new:
            rows = self.model_runner.get_model().probers_states[[row for _, row in new]]
            for (text, _), score in zip(new, self._scored([text for text, _ in new], rows), strict=True):
                text.scores.append(score)
        for request in step.finished_req_ids:
            self._requests.pop(request, None)

    def _order(self) -> Sequence[str]:
        """The ids of the step's requests in the order of their tokens."""
        state = self.model_runner.execute_model_state
        batch = getattr(state, "input_batch", None) or self.model_runner.input_batch
        ids: Sequence[str] = batch.req_ids
        return ids

    def _scored(self, texts: Sequence[_Text], rows: torch.Tensor) -> list[float | None]:
        """The score of each text's newest token (texts, layers, d); None for a broken state."""
        try:
            return list(self._running.add([text.name for text in texts], rows))
        except RunError:  # it must not end the server, nor the texts beside it
            if len(texts) == 1:
                return [None]
            return [self._scored([text], row[None])[0] for text, row in zip(texts, rows, strict=True)]
