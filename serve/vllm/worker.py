"""Worker and scheduler of vLLM that score the tokens it writes; states never leave the worker.

Requests with ``extra_args={"probers": KEY}`` in their sampling parameters are scored, others cost nothing.
Three kinds of texts are not scored, because another model than the prober's writes them: texts of other LoRA
adapters than the prober's, texts of the model without its adapter, and texts after pictures.
The scores of a key are fetched by ``collective_rpc("probers_scores")`` and kept until the key is released.

A step computes at most one new token of a text, identified by its position, and drafts of the next ones with
``method=ngram``; accepted drafts are new tokens too. A position computed again, as after a preemption, is
scored already, and a pooled state takes each token once, so scores do not depend on vLLM's schedule. A text
may have more scores than tokens if vLLM accepted drafts beyond its end.

A token is scored by the state that it leads to, but vLLM does not forward the last token of a text. The
scheduler therefore keeps a text that has reached ``max_tokens`` in the batch for one more step of one
position; its client gets the text on time, and the extra token is dropped. If that is impossible
(:class:`ScoringScheduler`), a request made with :func:`closing` for one further token after prompt and text
has the last token scored; the prefix cache holds the full blocks before it.

Memory: a buffer of (tokens of a step x layers x d) numbers on the device; a number per token of texts whose
keys are not released; for heads of pooled states one vector of layers x d per such text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from probers.model.vllm import KEY
from probers.model.vllm.worker import ReadingWorker
from probers.prober.token_scores import GrowingScores
from probers.types import RunError

from .prober import ServedProber, adapter_of, check_model

_CLOSES = "probers_closes"
#: News of a text: place of the first new score, the scores, distances from the prober's domain (None without
#: one), and whether the text has ended.
New: TypeAlias = tuple[int, list[float | None], list[float | None] | None, bool]


def key_of(request: NewRequestData | Request, adapter: str | None) -> str | None:
    """Read the key of a request's scores; None for a text that is not scored, as of another ``adapter``."""
    extra = (request.sampling_params and request.sampling_params.extra_args) or {}
    used = request.lora_request and request.lora_request.lora_path
    if request.prompt_token_ids is None or request.mm_features or used != adapter:
        return None
    return key if isinstance(key := extra.get(KEY), str) else None


def closing(key: str, text: str, first: int, *, whole: bool = False) -> dict[str, Any]:
    """Make ``extra_args`` that have a text's last token scored, or with ``whole`` each of its tokens.

    The text is the end of the request's prompt; ``first`` is the number of tokens before it.
    """
    return {KEY: key, _CLOSES: [text, first, whole]}


def closes(request: NewRequestData | Request) -> tuple[str, int, bool] | None:
    """Read text, first and whole of :func:`closing`; None for a request that writes a text."""
    extra = (request.sampling_params and request.sampling_params.extra_args) or {}
    return tuple(entry) if (entry := extra.get(_CLOSES)) else None


@dataclass(slots=True)
class _Text:
    """Text that is being written; ``name`` is its request's id."""

    name: str
    first: int  # position of the state of the first score
    whole: bool  # it exists already, and all of it is read
    distances: list[float | None] | None  # of each token from the prober's domain; None without one
    scores: list[float | None] = field(default_factory=list)  # None for a token that could not be read
    sent: int = 0  # number of fetched scores
    ended: bool = False  # vLLM computes no more of it
    end_fetched: bool = False  # its end was fetched

    def add(self, score: float | None, distance: float | None) -> None:
        self.scores.append(score)
        if self.distances is not None:
            self.distances.append(distance)


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens of a text that follow each other in a step, the first of them at ``place`` of the text."""

    text: _Text
    place: int
    rows: range


class ScoringWorker(ReadingWorker):
    """vLLM's worker with scores by the prober of ``additional_config`` (UserError: one of another model)."""

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        model = vllm_config.model_config
        served = ServedProber.of(vllm_config.additional_config)
        self._bank = served.load()
        dtype = str(model.dtype).removeprefix("torch.")
        options = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
        name, config = model.served_model_name, model.hf_config
        check_model(self._bank, name, model.model, config, dtype, **options)
        vllm_config.additional_config[KEY] = served.with_layers(self._bank)
        self._adapter = adapter_of(self._bank)
        self._running = GrowingScores(self._bank)
        self._requests: dict[str, _Text] = {}
        self._texts: dict[str, dict[str, _Text]] = {}
        self._drafted: dict[str, _Run] = {}  # by request, of a step with tokens not drawn yet
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, **options: Any) -> None:
        """Load the model and move the heads to the device of the rank that uses them."""
        super().load_model(**options)
        if self.rank == 0:
            self._bank.to(self.device)

    def probers_scores(
        self, release: Sequence[str] = (), keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, New]]:
        """Fetch the scores since the last call of ``keys`` or all, by key and id of the request.

        A text appears as soon as it has begun, with every new score, and when it has ended. Keys to
        ``release`` are forgotten.
        """
        gone = {text.name for key in release for text in self._texts.pop(key, {}).values()}
        for name in gone:
            self._running.forget(name)
        # A step may be under way, or an abandoned text continue; no more of their tokens are scored.
        self._requests = {name: text for name, text in self._requests.items() if text.name not in gone}
        news: dict[str, dict[str, New]] = {}
        for key in self._texts if keys is None else keys:
            for text in self._texts.get(key, {}).values():
                if text.sent < len(text.scores) or not text.scores or text.ended > text.end_fetched:
                    far = None if text.distances is None else text.distances[text.sent :]
                    new = text.sent, text.scores[text.sent :], far, text.ended
                    news.setdefault(key, {})[text.name] = new
                    text.sent, text.end_fetched = len(text.scores), text.ended
        return news

    def read(self, step: SchedulerOutput) -> None:
        """Score the newest token of each text."""
        for request in step.scheduled_new_reqs:
            if (key := key_of(request, self._adapter)) is not None:
                length = len(request.prompt_token_ids or ())
                name, prompt, whole = closes(request) or (request.req_id, length, False)
                distances: list[float | None] | None = None if self._bank.domain is None else []
                new = _Text(name, prompt - self._running.before, whole, distances)
                self._requests[request.req_id] = self._texts.setdefault(key, {}).setdefault(name, new)
        drafts = step.scheduled_spec_decode_tokens
        runs: dict[str, _Run] = {}
        for name, position, rows in self.computed(step):
            if (text := self._requests.get(name)) is not None:
                # Only the last token of a growing text in a step can be new, and the drafts after it.
                old = len(rows) - 1 - len(drafts.get(name, ()))
                if text.whole:
                    old = max(0, text.first - position)
                runs[name] = _Run(text, position + old - text.first, rows[old:])
        if drafts:  # vLLM accepts some when it draws the step's tokens
            self._drafted = runs
        else:
            self._score(runs.values())
        for name in step.finished_req_ids:
            if (text := self._requests.pop(name, None)) is not None:
                text.ended = True

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Run vLLM's method, then score a step with drafts, without those that vLLM has rejected."""
        output = super().sample_tokens(*args, **kwargs)
        if self._drafted:
            runs, self._drafted = self._drafted, {}
            # A text's drawn tokens are its accepted drafts, and a last token that has no state so far.
            drawn = {name: len(output.sampled_token_ids[i]) for name, i in output.req_id_to_index.items()}
            with torch.inference_mode():
                self._score(replace(run, rows=run.rows[: max(1, drawn[name])]) for name, run in runs.items())
        return output

    def _score(self, runs: Iterable[_Run]) -> None:
        """Score the first token of each run, then the second of each, and so on, unless it has a score."""
        each = ([(run.text, run.place + i, row) for i, row in enumerate(run.rows)] for run in runs)
        for tokens in zip_longest(*each):
            new: list[tuple[_Text, int]] = []
            for text, place, row in filter(None, tokens):
                if place >= len(text.scores):
                    for _ in range(place - len(text.scores)):  # computed by another server
                        text.add(None, None)
                    new.append((text, row))
            if not new:
                continue
            states = self.model_runner.get_model().probers_states[[row for _, row in new]]
            scores = self._running.add_each([text.name for text, _ in new], states)
            for (text, _), score in zip(new, scores, strict=True):
                if isinstance(score, RunError):  # must not end the server or the other texts
                    text.add(None, None)
                    continue
                known = self._running.distances(text.name)
                text.add(score, None if known is None else known[-1])


class ScoringScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler for heads that read the state of the token that they score.

    It does not lengthen texts that fill the context, nor texts cut at a stop string, which vLLM finds outside
    of the scheduler.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._adapter = adapter_of(ServedProber.of(self.vllm_config.additional_config).load())

    def add_request(self, request: Request) -> None:
        """Add a request, with room for one more token if the text is scored."""
        # A text that another engine continues must end here as expected there.
        scored = key_of(request, self._adapter) is not None
        if scored and not closes(request) and request.kv_transfer_params is None:
            request.max_tokens += 1
        super().add_request(request)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        if not self.scheduler_config.async_scheduling:
            # vLLM's class assumes drafts that it never sees; n-gram drafts are passed on after the step.
            for name in scheduler_output.num_scheduled_tokens:
                self.requests[name].spec_token_ids = []

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Take drafts; a lengthened text takes none beyond the end that its client knows."""
        super().update_draft_token_ids(draft_token_ids)
        for name in draft_token_ids.req_ids:
            request = self.requests.get(name)
            if request is None or (limit := _client_limit(request)) is None:
                continue
            room = max(0, limit - request.num_output_tokens - 1)  # a step draws one more than it accepts
            request.spec_token_ids = request.spec_token_ids[:room]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Update the requests; a lengthened text ends for its client one token earlier."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for output in (output for answers in outputs.values() for output in answers.outputs):
            request = self.requests.get(output.request_id)  # None once it has ended here too
            if request is not None and request.num_output_tokens == _client_limit(request):
                output.finish_reason = FinishReason.LENGTH
        return outputs


def _client_limit(request: Request) -> int | None:
    """Return the limit that the client of a lengthened text knows; None for another request."""
    limit = request.sampling_params and request.sampling_params.max_tokens
    return limit if limit and limit < request.max_tokens else None
