"""A worker of vLLM that scores the tokens it writes; their states never leave it.

Scored are requests whose sampling parameters have ``extra_args={"probers": KEY}``, others cost nothing;
what LoRA adapters and pictures make of a model is not what a prober was trained on, and is left out. The
scores of a key are handed out by ``collective_rpc("probers_scores")`` and kept until it is released.

A step computes one new token of a text at most, and its position says which. A position that is computed
again, as after a preemption, has its score already, and a text's pooled state takes each token once: the
scores do not depend on how vLLM schedules. vLLM does not forward the last token of a text; the scheduler
beside this worker does (:mod:`.scheduler`). Where it could not, a request for one further token behind prompt
and text, its sampling parameters from :func:`closing`, has the token scored; the prefix cache holds the full
blocks before it.

Memory: a buffer of tokens of a step at most x layers x d numbers on the device, however long the texts are;
a number for each token of the texts whose keys are not released, and for heads of pooled states one vector
of layers x d for each of these texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.request import Request

from probers.engine.vllm import KEY
from probers.engine.vllm.worker import ReadingWorker
from probers.online.scores import GrowingScores
from probers.types import RunError

from .prober import Settings, model_spec

_CLOSES = "probers_closes"
#: New of a text: the place of the first score, the scores, distances from the prober's domain if it has one,
#: and whether these were the last.
New: TypeAlias = tuple[int, list[float | None], list[float | None] | None, bool]


def key_of(request: NewRequestData | Request) -> str | None:
    """Under which key a request's text is scored; None where it is not."""
    said = (request.sampling_params and request.sampling_params.extra_args) or {}
    if request.prompt_token_ids is None or request.mm_features or request.lora_request:
        return None
    return key if isinstance(key := said.get(KEY), str) else None


def closing(key: str, text: str, first: int) -> dict[str, Any]:
    """``extra_args`` of a request that has the last token of a text scored.

    Args:
        key: of the text.
        text: the id under which its scores are handed out.
        first: how many of the request's prompt tokens are the text's prompt.
    """
    return {KEY: key, _CLOSES: [text, first]}


def closes(request: NewRequestData | Request) -> tuple[str, int] | None:
    """What :func:`closing` was told; None for a request that writes a text."""
    said = (request.sampling_params and request.sampling_params.extra_args) or {}
    return tuple(found) if (found := said.get(_CLOSES)) else None


@dataclass(slots=True)
class _Text:
    """A text that is being written.

    Attributes:
        name: the id of its request.
        first: the position whose state gives its first score.
        scores: of its tokens; None for one that could not be read.
        distances: of the same from the prober's domain; None where it has none.
        sent: how many of them were handed out.
        ended: vLLM computes no more of it.
        told: that it has ended was handed out.
    """

    name: str
    first: int
    distances: list[float | None] | None
    scores: list[float | None] = field(default_factory=list)
    sent: int = 0
    ended: bool = False
    told: bool = False

    def add(self, score: float | None, distance: float | None) -> None:
        """Of its next token."""
        self.scores.append(score)
        if self.distances is not None:
            self.distances.append(distance)


class ScoringWorker(ReadingWorker):
    """vLLM's worker, which scores what is written by the prober of ``additional_config``.

    Raises:
        UserError: as of :class:`ReadingWorker`; a prober of another model or of states that vLLM does not
            hand out.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        model = vllm_config.model_config
        settings = Settings.of(vllm_config.additional_config)
        self._bank = settings.load()
        dtype = str(model.dtype).removeprefix("torch.")
        self._bank.check_model(model_spec(model.served_model_name, model.model, model.hf_config, dtype))
        vllm_config.additional_config[KEY] = settings.reading(self._bank)
        self._running = GrowingScores(self._bank)
        self._requests: dict[str, _Text] = {}
        self._texts: dict[str, dict[str, _Text]] = {}
        super().__init__(vllm_config, *args, **kwargs)

    def load_model(self, **options: Any) -> None:
        """As :class:`ReadingWorker`, and move the heads beside the model."""
        super().load_model(**options)
        self._bank.to(self.device)

    def probers_scores(
        self, release: Sequence[str] = (), keys: Sequence[str] | None = None
    ) -> dict[str, dict[str, New]]:
        """Scores since the last call, by key and id of the request.

        A text is named as soon as it is begun, again with every new score, and when it has ended.

        Args:
            release: keys that nobody will ask for again.
            keys: of the texts that are asked for; None is all. What is not asked for is kept.
        """
        gone = {text.name for key in release for text in self._texts.pop(key, {}).values()}
        for name in gone:
            self._running.forget(name)
        # Nor is more of them scored: a step may be under way, or a text go on that nobody waits for.
        self._requests = {name: text for name, text in self._requests.items() if text.name not in gone}
        found: dict[str, dict[str, New]] = {}
        for key in self._texts if keys is None else keys:
            for text in self._texts.get(key, {}).values():
                if text.sent < len(text.scores) or not text.scores or text.ended > text.told:
                    far = None if text.distances is None else text.distances[text.sent :]
                    new = text.sent, text.scores[text.sent :], far, text.ended
                    found.setdefault(key, {})[text.name] = new
                    text.sent, text.told = len(text.scores), text.ended
        return found

    def _begin(self, request: NewRequestData) -> None:
        if (key := key_of(request)) is None:
            return
        name, prompt = closes(request) or (request.req_id, len(request.prompt_token_ids or ()))
        texts = self._texts.setdefault(key, {})
        far: list[float | None] | None = None if self._bank.domain is None else []
        text = texts.setdefault(name, _Text(name, prompt - self._running.before, far))
        self._requests[request.req_id] = text

    def read(self, step: SchedulerOutput) -> None:
        """Score the newest token of each text."""
        for request in step.scheduled_new_reqs:
            self._begin(request)
        new: list[tuple[_Text, int]] = []
        for name, position, rows in self.computed(step):
            # Of its tokens in this step only the last can be one that was not there before.
            if (text := self._requests.get(name)) is None:
                continue
            place = position + len(rows) - 1 - text.first
            if place >= len(text.scores):
                for _ in range(place - len(text.scores)):  # what another server computed
                    text.add(None, None)
                new.append((text, rows[-1]))
        if new:
            states = self.model_runner.get_model().probers_states[[row for _, row in new]]
            for (text, _), score in zip(new, self._scored([text for text, _ in new], states), strict=True):
                known = None if score is None else self._running.distances(text.name)
                text.add(score, None if known is None else known[-1])
        for name in step.finished_req_ids:
            if (text := self._requests.pop(name, None)) is not None:
                text.ended = True

    def _scored(self, texts: Sequence[_Text], rows: torch.Tensor) -> list[float | None]:
        """The score of each text's newest token (texts, layers, d); None for a broken state."""
        try:
            return list(self._running.add([text.name for text in texts], rows))
        except RunError:  # it must not end the server, nor the texts beside it
            if len(texts) == 1:
                return [None]
            return [self._scored([text], row[None])[0] for text, row in zip(texts, rows, strict=True)]
