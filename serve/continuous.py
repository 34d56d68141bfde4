"""Continuous batching: texts join and leave a running batch between two of its steps.

This is iteration-level scheduling (Yu et al. 2022, Orca, section 3.1): a text that ends makes room at once,
and a new text waits for no other to end. Prompts are read in pieces between the steps of the texts being
written, so that a long prompt delays them by one piece only. The tokens, records and states of a text equal
those of :meth:`probers.model.causal_lm.CausalLM.generate`, to rounding, whatever runs beside it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probers.model.causal_lm import CausalLM
from probers.model.decode import Request, Row, closed
from probers.model.forward import broken_logits, token_scores
from probers.model.hidden_states import tap_of
from probers.model.kv_cache import (
    BlockCache,
    CachedPrefix,
    GrowingLayer,
    can_share,
    fill,
    new_cache,
    select_rows,
)
from probers.model.language_model import Sampling, Stops
from probers.model.pooling import BEFORE, PER_TOKEN, pool_tokens
from probers.prober.assessment import WrittenText
from probers.types import Feature, Generation, Needs, RunError, Span, UserError

_TRIM = 128  # columns of padding in every row that may gather before they are freed


class LiveText:
    """A text while it is written, with a prober's scores of its tokens.

    It is read by its maker while it grows: lists are only appended to.

    Attributes:
        logprobs, entropies: one per token, nats, of the raw distribution.
        tops: ids and log-probabilities of the ``alternatives`` likeliest tokens at each token.
        text: the text written so far, up to a stop.
        ends: number of its characters after each token.
        offsets: [start, end) of each token in ``text``, characters; of tokens that are parts of a character
            once it is whole.
        read: tokens whose states were read and handed out; all of them where no states are read.
        cancelled: set by any thread to make it leave with the next step.
        left: true once it has left its batch.
        cached: tokens of its prompt whose keys and values were in the cache.
        scores: one score per token read.
        distances: distance of each token read from the prober's domain; None without a domain.
        vectors: states (heads, width) of each token read, if ``keep``.
        shown: number of tokens read that stay in any case; for other threads, as of the last step.
        changed: called on the thread that writes when the text has grown or is finished.
    """

    def __init__(
        self, request: Request, tokenizer: Any, stops: Stops, sampling: Sampling | None = None, *,
        alternatives: int = 0, keep: bool = False, changed: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.request, self.sampling, self.alternatives = request, sampling, alternatives
        self.row = Row(request, tokenizer, stops, read=True)
        self.random = None if request.stream is None else np.random.default_rng(request.stream)
        self.logprobs: list[float] = []
        self.entropies: list[float] = []
        self.tops: list[list[tuple[int, float]]] = []
        self.text = ""
        self.ends: list[int] = []
        self.offsets: list[Span] = []
        self.read = self.cached = self.shown = 0
        self.cancelled = self.left = False
        self.error: RunError | None = None
        self.scores: list[float] = []
        self.distances: list[float] | None = None
        self.vectors: list[Tensor] | None = [] if keep else None
        self.changed = changed

    @property
    def written(self) -> bool:
        return self.row.stop is not None

    @property
    def over(self) -> bool:
        """True once the text has ended and all its states have been read, or it was given up."""
        read = self.written and self.read >= self.row.length
        return read or self.cancelled or self.error is not None

    @property
    def ready(self) -> int:
        """Number of tokens that were read and that no stop can cut off any more."""
        return min(self.row.length if self.written else self.row.safe(), self.read)

    @property
    def record(self) -> WrittenText:
        """The text so far with its scored tokens, whose lists the thread that writes goes on to extend."""
        known = slice(min(len(self.scores), len(self.offsets)))  # heads before a token are one ahead
        distances = None if self.distances is None else self.distances[known]
        lists = self.scores[known], distances, self.logprobs[known], self.entropies[known]
        return WrittenText(self.request.prompt.text, self.text, self.offsets[known], *lists)

    def generation(self, tokenizer: Any, needs: Needs) -> Generation:
        """Return the text like :meth:`.causal_lm.CausalLM.generate`, with the states kept."""
        length, states = self.row.length, dict[Feature, np.ndarray]()
        if length and self.vectors:
            stacked = torch.stack(self.vectors[:length]).cpu().numpy()
            for feature in needs.features:
                states[feature] = stacked if feature.pool in PER_TOKEN else pool_tokens(stacked, feature.pool)
        scores = np.array([self.logprobs[:length], self.entropies[:length]], dtype=np.float32)
        stop, ids = self.row.stop or "length", self.row.ids[:length]
        return self.request.prompt.continued(tokenizer, ids, scores, stop=stop, needs=needs, states=states)

    def accept(self, token: int, scores: Sequence[float], top: list[tuple[int, float]]) -> None:
        """Take the next token with its log-probability and entropy."""
        self.row.accept([token], [])
        if len(self.row.ids) > len(self.logprobs):
            self.logprobs.append(scores[0])
            self.entropies.append(scores[1])
            self.text = self.row.text
            self.ends.append(len(self.text))
            if self.alternatives:
                self.tops.append(top)
        end = len(self.text)  # a stop string may cut tokens off
        self.offsets += [(min(a, end), min(b, end)) for a, b in self.row.offsets(len(self.offsets))]


#: Callback that receives the newest states (texts, layers, d) of some texts: of their last tokens, or of the
#: position before them. It may set the ``error`` of a text.
Reader = Callable[[Sequence[LiveText], Tensor], None]


@dataclass(slots=True)
class _Reading:
    """Prompts read together, each once for all texts that want it (``places`` in ``prompts``)."""

    texts: list[LiveText]
    places: list[int]
    prompts: list[tuple[int, ...]]
    ids: Tensor
    mask: Tensor | None
    positions: Tensor
    cache: Any
    done: int


class ContinuousBatch:
    """The texts being written, and those that wait.

    All work happens in :meth:`step`, on the thread that calls it; use it as a context manager. UserError
    for a model family whose keys and values cannot be shared between texts.

    Args:
        feature: states of each token to read and pass to ``reader``; None reads none.
        rows: largest number of texts written at once.
        piece: largest number of prompt places read between two steps.
        blocks: cache for the blocks of texts that are over.
    """

    def __init__(
        self, lm: CausalLM, feature: Feature | None = None, reader: Reader | None = None, *,
        rows: int = 16, piece: int = 512, blocks: BlockCache | None = None,
    ) -> None:  # fmt: skip
        if not can_share(lm.model.config):
            family = type(lm.model).__name__
            raise UserError(f"{family} keeps more than keys and values: take another model", "model")
        self._decoder, self._config = lm.decoder, lm.model.config
        self._before = feature is not None and feature.pool in BEFORE
        self._tap = None if feature is None else tap_of(lm.model, feature)
        self._reader, self._rows, self._piece, self._blocks = reader, rows, piece, blocks
        self._waiting: deque[LiveText] = deque()
        self._reading: _Reading | None = None
        self._running: list[LiveText] = []
        self._has_read = False  # in the last step
        self._cache: Any = None
        self._length = 0  # columns of the running rows
        self._own = torch.zeros(0, dtype=torch.long)  # (rows,) own columns of each row
        self._next = torch.zeros(0, 1, dtype=torch.long, device=lm.device)  # (rows, 1) tokens to forward

    def __enter__(self) -> ContinuousBatch:
        if self._tap is not None:
            self._tap.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        if self._tap is not None:
            self._tap.__exit__(*problem)

    @property
    def texts(self) -> list[LiveText]:
        return [*self._waiting, *(self._reading.texts if self._reading else ()), *self._running]

    @property
    def running(self) -> int:
        """Number of texts that are being written or whose prompts are being read."""
        return len(self._running) + (len(self._reading.texts) if self._reading else 0)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, texts: Sequence[LiveText]) -> None:
        self._waiting.extend(texts)

    @torch.inference_mode()
    def step(self) -> list[LiveText]:
        """Read a piece of a prompt or write a token of each text, by turns; return the texts that changed."""
        changed = list[LiveText]()
        reads = self._reading is not None or (self._waiting and len(self._running) < self._rows)
        if reads and not (self._running and self._has_read):
            self._reading = self._reading or self._begin()
            changed += self._read_piece(self._reading)
            self._has_read = True
        elif self._running:
            changed += self._write()
            self._has_read = False
        return list(dict.fromkeys([*changed, *self._leave()]))

    def _begin(self) -> _Reading:
        """Take waiting texts whose prompts can be read together; known and unknown beginnings go apart."""
        room, texts = self._rows - len(self._running), list[LiveText]()
        places, prefixes = dict[tuple[int, ...], int](), list[CachedPrefix | None]()
        while self._waiting and len(texts) < room:
            prompt = self._waiting[0].request.prompt.ids
            if prompt not in places:
                width = max(map(len, [*places, prompt]))
                known = None if self._blocks is None else self._blocks.find(prompt)
                if places and (width * (len(places) + 1) > self._piece or bool(known) != bool(prefixes[0])):
                    break
                places[prompt] = len(places)
                prefixes.append(known)
            texts.append(self._waiting.popleft())
            prefix = prefixes[places[prompt]]
            texts[-1].cached = 0 if prefix is None else prefix.common(prompt)
        prompts = list(places)
        ids, mask, positions = self._decoder.pad(prompts)
        width, done = ids.shape[1], 0
        cache = new_cache(self._config, width, whole=True)
        reused = [prefix for prefix in prefixes if prefix is not None]
        if len(reused) == len(prompts):
            done = fill(cache, reused, prompts, [width - len(prompt) for prompt in prompts])
        wanted = [places[text.request.prompt.ids] for text in texts]
        return _Reading(texts, wanted, prompts, ids, mask, positions, cache, done)

    def _read_piece(self, reading: _Reading) -> list[LiveText]:
        """Read some columns; after the last of them the texts join those being written."""
        width = reading.ids.shape[1]
        piece = slice(reading.done, min(width, reading.done + max(1, self._piece // len(reading.prompts))))
        last = piece.stop == width
        if self._tap is not None:
            self._tap.read_last(int(last and self._before))
        mask = None if reading.mask is None else reading.mask[:, : piece.stop]
        logits = self._decoder(reading.ids[:, piece], mask, reading.positions[:, piece], cache=reading.cache)
        reading.done = piece.stop
        lengths = torch.tensor([len(ids) for ids in reading.prompts], device=self._decoder.device)
        states = None if self._tap is None else self._tap.take_last(lengths, torch.zeros_like(lengths))
        if not last:
            return []
        self._reading = None
        if self._blocks is not None:
            for row, ids in enumerate(reading.prompts):
                self._blocks.keep(ids, _row(reading.cache, row, width - len(ids)))
        which = torch.tensor(reading.places, device=self._decoder.device)
        if states is not None and self._reader is not None:
            self._reader(reading.texts, states[which.to(states.device), -1])
        tokens = self._draw(reading.texts, logits[which, -1])
        if len(set(reading.places)) < len(reading.places):
            select_rows(reading.cache, reading.places)
        if self._cache is None:
            self._cache = new_cache(self._config, 0, whole=True)
        for layer, other in zip(self._cache.layers, reading.cache.layers, strict=True):
            layer.join(other, self._rows)
        self._length = max(self._length, width)
        columns = torch.tensor([len(text.request.prompt.ids) for text in reading.texts])
        self._own = torch.cat([self._own, columns])
        self._next = torch.cat([self._next, tokens])
        self._running += reading.texts
        return reading.texts

    def _write(self) -> list[LiveText]:
        spare = self._length - int(self._own.max())
        if spare >= _TRIM:
            for layer in self._cache.layers:
                layer.trim(spare)
            self._length -= spare
        if self._tap is not None:
            self._tap.read_last(1)
        device = self._decoder.device
        positions = self._own.to(device)[:, None]
        pads = self._length - positions
        mask = None
        if int(self._own.min()) < self._length:
            mask = (torch.arange(self._length + 1, device=device) >= pads).long()
        logits = self._decoder(self._next, mask, positions, cache=self._cache)[:, -1]
        self._length, self._own = self._length + 1, self._own + 1
        if self._tap is not None:
            prompts = torch.tensor([len(text.request.prompt.ids) for text in self._running], device=device)
            states = self._tap.take_last(prompts, positions[:, 0] + 1 - prompts)
            if states is not None and self._reader is not None:
                # Leave out texts with one token beyond their last.
                places = [i for i, text in enumerate(self._running) if text.error is None and not text.over]
                some = states if len(places) == len(self._running) else states[torch.tensor(places).long()]
                self._reader([self._running[i] for i in places], some[:, -1])
        if not self._before:
            for text in self._running:
                text.read = min(text.read + 1, len(text.row.ids))
        self._next = self._draw(self._running, logits)
        return list(self._running)

    def _draw(self, texts: Sequence[LiveText], logits: Tensor) -> Tensor:
        """Return the next token (texts, 1) of each text; the entry of a text that is over has no meaning."""
        logits = logits.float()  # once; on a CPU the maximum of bfloat16 numbers is slow
        tokens = logits.argmax(dim=-1)
        drawn: dict[Sampling, list[int]] = {}
        for i, text in enumerate(texts):
            if text.sampling is not None and not text.written:
                drawn.setdefault(replace(text.sampling, seed=0), []).append(i)
        for sampling, places in drawn.items():
            random = [texts[i].random for i in places]
            tokens[places] = sampling.draw(logits[places], [one for one in random if one is not None])
        alternatives = max((text.alternatives for text in texts), default=0)
        likeliest = logits.log_softmax(dim=-1).topk(alternatives, dim=-1) if alternatives else None
        tops = [] if likeliest is None else [likeliest.indices.T, likeliest.values.T]
        # A single copy to the host, since each one waits; float32 tells ids up to 16 million apart.
        numbers = torch.cat([tokens[None], token_scores(logits, tokens), *tops]).T.tolist()
        for text, (token, *scores) in zip(texts, numbers, strict=True):
            if text.written or text.error is not None:
                continue
            if not all(map(math.isfinite, scores[:2])):
                place = len(text.row.ids)
                text.error = broken_logits(f"generated token {place} of {text.request.prompt.name}")
                continue
            top = zip(map(int, scores[2 : 2 + alternatives]), scores[2 + alternatives :], strict=True)
            text.accept(int(token), scores[:2], list(top)[: text.alternatives])
            if self._tap is None or self._before:  # no state of the token itself is read
                text.read = len(text.row.ids)
        return tokens[:, None]

    def _leave(self) -> list[LiveText]:
        """Remove the texts that are over, also those cancelled or given up before they ran."""
        gone = [text for text in self._waiting if text.over]
        for text in gone:
            self._waiting.remove(text)
        if self._reading is not None and all(text.over for text in self._reading.texts):
            gone += self._reading.texts
            self._reading = None
        ended = [i for i, text in enumerate(self._running) if text.over]
        for i in ended:
            text = self._running[i]
            if self._blocks is not None and text.error is None:
                ids = (*text.request.prompt.ids, *text.row.ids)
                self._blocks.keep(ids, _row(self._cache, i, self._length - int(self._own[i])))
            gone.append(text)
        for text in gone:
            text.left = True
        if not ended:
            return gone
        slots = closed([i for i in range(len(self._running)) if i not in ended])
        chosen = torch.tensor(slots, dtype=torch.long)
        if slots:
            select_rows(self._cache, slots)
        else:
            self._cache, self._length = None, 0
        self._own, self._next = self._own[chosen], self._next[chosen.to(self._next.device)]
        self._running = [self._running[i] for i in slots]
        return gone


def _row(cache: Any, row: int, pad: int) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values (heads, n, width) of one row of a cache, without its padding."""
    assert all(isinstance(layer, GrowingLayer) for layer in cache.layers)
    return [(layer.keys[row, :, pad:], layer.values[row, :, pad:]) for layer in cache.layers]
