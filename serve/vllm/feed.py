"""Feed of scores from vLLM's workers to the responses: one call every few milliseconds for all requests.

With data parallelism vLLM's client spreads requests over several engines, and there may be several servers.
Each server fetches the scores of its own requests from all engines.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
from vllm import SamplingParams
from vllm.engine.protocol import EngineClient
from vllm.inputs import TokensPrompt
from vllm.logger import init_logger
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from .worker import New, closing

#: Seconds between two calls.
_PERIOD = 0.02
#: Seconds until a token is sent without its score; a text may wait long for its place in the cache.
_LONGEST_WAIT = 60.0

#: A number of each token.
Numbers: TypeAlias = list[float | None]

logger = init_logger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class Scored:
    """Scores of one HTTP request, by vLLM's ids of its texts.

    Attributes:
        key: entry of ``extra_args`` in its texts' sampling parameters.
        texts: scores of each text; None for a token that could not be read.
        distances: distances of the tokens from the prober's domain; {} without a domain.
        engines: number of the engine that writes each text, from 0.
        ended: texts that vLLM has ended; they may still be closed.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    texts: dict[str, list[float | None]] = field(default_factory=dict)
    distances: dict[str, list[float | None]] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


class ScoreFeed:
    """Fetcher of new scores from the workers while requests are open."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        # Use the client's call: the engine's own collective_rpc answers for the first engine alone.
        self._call_all = engine.engine_core.call_utility_all_async
        self._open: dict[str, Scored] = {}
        self._released: list[str] = []
        self._begun = self._ended = 0  # number of the latest call
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.adapter: LoRARequest | None = None  # the prober's adapter, whose texts are scored

    def open(self) -> Scored:
        """Open the scores of a new HTTP request; they grow until :meth:`release`."""
        scored = Scored()
        self._open[scored.key] = scored
        if self._task is None:
            self._task = asyncio.create_task(self._fetch())
        return scored

    def release(self, scored: Scored) -> None:
        """Forget the scores of a request."""
        self._open.pop(scored.key, None)
        self._released.append(scored.key)

    async def until(self, ready: Callable[[], bool], *, certain: bool = False) -> None:
        """Wait until ``ready``, or with ``certain`` until one whole fetch of all computed scores is over."""
        before = self._begun
        with anyio.move_on_after(_LONGEST_WAIT):
            while not ready() and not (certain and self._ended > before):
                await self._news.wait()

    async def close(self, scored: Scored, name: str, prompt: Sequence[int], text: Sequence[int]) -> None:
        """Have the last token of an ended text scored, unless prompt and text fill the context."""
        if len(prompt) + len(text) >= self._engine.model_config.max_model_len:
            return
        extra = closing(scored.key, name, len(prompt))
        await self._forward([*prompt, *text], extra, data_parallel_rank=scored.engines[name])
        await self.until(lambda: len(scored.texts[name]) >= len(text), certain=True)

    async def read(
        self, prompt: Sequence[int], text: Sequence[int]
    ) -> tuple[Numbers, Numbers | None, Numbers]:
        """Have every token of a text that exists already scored.

        Returns:
            Scores, distances from the prober's domain (None without one), and log-probabilities in nats, each
            (n,), with None for a token that could not be read.
        """
        scored = self.open()
        extra = closing(scored.key, name := uuid.uuid4().hex, len(prompt), whole=True)
        try:
            # The prefix cache has no states; to ask for these log-probabilities keeps it from being read.
            output = await self._forward([*prompt, *text], extra, prompt_logprobs=0)
            await self.until(lambda: len(scored.texts.get(name, ())) >= len(text), certain=True)
        finally:
            self.release(scored)
        each = zip(text, output.prompt_logprobs[len(prompt) :], strict=True)
        logprobs = [None if of is None else float(of[token].logprob) for token, of in each]
        scores, distances = (
            [*known[: len(text)], *[None] * (len(text) - len(known))]
            for known in (scored.texts.get(name, []), scored.distances.get(name, []))
        )
        return scores, distances if name in scored.distances else None, logprobs

    async def _forward(
        self, ids: list[int], extra: dict[str, Any], *, data_parallel_rank: int | None = None, **more: Any
    ) -> Any:
        """Have vLLM forward some tokens, and one that nobody reads; return its last output."""
        params = SamplingParams(
            max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=extra, **more,
        )  # fmt: skip
        last: Any = None
        async for output in self._engine.generate(
            TokensPrompt(prompt_token_ids=ids), params, f"probers-{uuid.uuid4().hex}",
            data_parallel_rank=data_parallel_rank, lora_request=self.adapter,
        ):  # fmt: skip
            last = output
        return last

    async def _fetch(self) -> None:
        try:
            while self._open or self._released:
                await asyncio.sleep(_PERIOD)
                released, self._released = self._released, []
                self._begun += 1
                arguments = (released, list(self._open))
                answers = await self._call_all("collective_rpc", "probers_scores", None, arguments, None)
                for engine, (news, *_) in enumerate(answers):
                    self._take(engine, news)
                self._end()
        except Exception:  # the engine itself reports the error to clients
            logger.exception("The prober's scores cannot be fetched.")
            self._end()
        finally:
            self._task = None

    def _take(self, engine: int, news: dict[str, dict[str, New]]) -> None:
        for key, texts in news.items():
            if (scored := self._open.get(key)) is None:
                continue
            for name, (start, scores, distances, ended) in texts.items():
                scored.engines[name] = engine
                scored.texts.setdefault(name, [])[start:] = scores
                if distances is not None:
                    scored.distances.setdefault(name, [])[start:] = distances
                if ended:
                    scored.ended.add(name)

    def _end(self) -> None:
        self._ended = self._begun
        news, self._news = self._news, asyncio.Event()
        news.set()
