"""Workers of vLLM that read the states of its computed tokens.

A step computes a run of positions of each of its requests, as its scheduler says. A position that is computed
again, for instance after a preemption, was already read. Tokens from the prefix cache are not computed, but
the prompt's last position always is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform
from vllm.tokenizers import cached_get_tokenizer
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.sched.output import SchedulerOutput

from ...types import RunError
from . import KEY
from .records import Recorded, TextRecord, check_options, readable


def _stock() -> Any:
    place = "cpu_worker.CPUWorker" if current_platform.is_cpu() else "gpu_worker.Worker"
    place = "xpu_worker.XPUWorker" if current_platform.is_xpu() else place
    return resolve_obj_by_qualname(f"vllm.v1.worker.{place}")


class ReadingWorker(_stock()):  # type: ignore[misc]
    """vLLM's worker with a model whose states, and with ``scores`` these, are readable (:func:`.readable`).

    With tensor parallelism every rank has the whole states, and only rank 0 reads them. UserError for
    options of :func:`.records.check_options`.
    """

    scores = False

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        check_options(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, **options: Any) -> None:
        """Load the subclass of the model's class whose states can be read."""
        config = self.vllm_config.model_config
        stock, name = ModelRegistry.resolve_model_cls(config.architectures, config)
        ModelRegistry.register_model(name, readable(stock, scores=self.scores, tokens=self._tokens()))
        try:
            super().load_model(**options)
        finally:  # the next model of this class in this process needs the original class
            ModelRegistry.register_model(name, stock)

    def _tokens(self) -> frozenset[int]:
        """Ids that may be written: those of the tokenizer, and those that end a text."""
        config = self.vllm_config.model_config
        how = {"revision": config.tokenizer_revision, "trust_remote_code": config.trust_remote_code}
        ends = config.try_get_generation_config().get("eos_token_id") or []
        listed = ends if isinstance(ends, list) else [ends]
        return frozenset([*cached_get_tokenizer(config.tokenizer, **how).get_vocab().values(), *listed])

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """Run vLLM's method, then read the computed states."""
        output = super().execute_model(scheduler_output, *args, **kwargs)
        if self.rank == 0:
            with torch.inference_mode():
                self.read(scheduler_output)
        return output

    @abstractmethod
    def read(self, step: SchedulerOutput) -> None:
        """Take the wanted part of a step's states, which are in the model's ``probers_states``."""

    def computed(self, step: SchedulerOutput) -> Iterator[tuple[str, int, range]]:
        """Return the first computed position of each request of a step, and the rows of its tokens."""
        cached = step.scheduled_cached_reqs
        positions = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        positions.update((new.req_id, new.num_computed_tokens) for new in step.scheduled_new_reqs)
        if not step.num_scheduled_tokens:
            return
        batch = getattr(self.model_runner.execute_model_state, "input_batch", None)
        end = 0
        for request in (batch or self.model_runner.input_batch).req_ids:
            start, end = end, end + step.num_scheduled_tokens[request]
            yield request, positions[request], range(start, end)


class RecordingWorker(ReadingWorker):
    """A worker that records texts, for :class:`.lm.VllmLM` to fetch at their end.

    Memory: a buffer of (tokens of a step at most) x (all layers) x d numbers, and for each running text the
    vectors of its pool.
    """

    scores = True

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        depth = vllm_config.model_config.hf_text_config.num_hidden_layers
        vllm_config.additional_config[KEY] = {"layers": list(range(depth + 2))}
        super().__init__(vllm_config, *args, **kwargs)
        self._records: dict[str, TextRecord] = {}
        self._next: list[tuple[TextRecord, int]] = []  # texts and row whose next token the step chooses

    def probers_begin(self, records: Mapping[str, TextRecord]) -> None:
        """Begin to record some requests, by their ids."""
        self._records.update(records)

    @torch.inference_mode()
    def probers_commit(self, safe: Mapping[str, int]) -> None:
        """Tell continuing texts how many of their tokens are final."""
        for request, tokens in safe.items():
            self._records[request].commit(tokens)

    @torch.inference_mode()
    def probers_take(self, ended: Mapping[str, int | None]) -> dict[str, Recorded]:
        """Return the records of texts that end, with the number of kept tokens; with None forget them."""
        taken = {request: self._records.pop(request, None) for request in ended}
        return {
            request: record.recorded(length)
            for request, record in taken.items()
            if record is not None and (length := ended[request]) is not None
        }

    def read(self, step: SchedulerOutput) -> None:
        """Record the places that the step has computed for the first time."""
        new: list[tuple[TextRecord, range]] = []
        self._next = []
        for number, (request, position, rows) in enumerate(self.computed(step)):
            if (record := self._records.get(request)) is None:
                continue
            first = position - record.start
            if first > record.count:
                raise RunError(f"vLLM did not compute position {record.start + record.count} of a text")
            fresh = rows[max(0, record.count - first) :]
            if fresh:
                new.append((record, fresh))
                if record.tokens is None:
                    self._next.append((record, number))
        if new:
            self._record(new)

    def _record(self, new: Sequence[tuple[TextRecord, range]]) -> None:
        model = self.model_runner.get_model()
        states = model.probers_states[[row for _, rows in new for row in rows]]
        chosen: dict[tuple[int, ...], Tensor] = {}
        end = 0
        for record, rows in new:
            start, end = end, end + len(rows)
            for layers in record.layers:
                if layers and layers not in chosen:
                    chosen[layers] = states[:, list(layers)]
            if record.tokens is not None:  # its last position predicts no token of its own
                tokens = record.tokens[record.count : record.count + len(rows)]
                ids = torch.tensor(tokens, dtype=torch.long, device=states.device)
                record.score(model.probers_read(states[start : start + len(tokens), -1], ids))
            record.add({layers: chosen[layers][start:end] for layers in record.layers if layers}, len(rows))

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Run vLLM's method, then record the scores of the chosen tokens."""
        output = super().sample_tokens(*args, **kwargs)
        if self._next:
            scores = self.model_runner.get_model().probers_scores
            for record, number in self._next:
                record.score(scores[:, number : number + 1])
            self._next = []
        return output
