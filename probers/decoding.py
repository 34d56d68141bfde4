"""Decoding of one batch, with everything that was asked for read on the way.

Conventions, shared with :mod:`probers.scoring`:

- Logits that produced token i come from the position before it; states and attention
  of token i are read when token i itself is forwarded. The last token is forwarded too.
- Text, offsets, log-probabilities, states and attention all describe the tokens that
  are kept (:mod:`probers.stops`).
- A row that has ended leaves the batch; nothing is computed for it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .attention import AttentionTap
from .cache import new_cache
from .capture import StateTap, named_layer
from .encoding import Prompt
from .forward import Decoder, token_scores
from .known import Known, Recent, fill
from .nesting import nested_cache
from .offsets import TextStream, token_offsets
from .recorder import Recorder
from .sampling import Sampler
from .stops import Stops
from .types import Generation, Needs, RunError, StopReason


@dataclass(slots=True)
class _Row:
    """A prompt's text as it grows, up to ``limit`` tokens."""

    prompt: Prompt
    stream: TextStream | None
    limit: int
    ids: list[int] = field(default_factory=list)
    kept: int = 0
    stop: StopReason | None = None

    def accept(self, token: int, stops: Stops) -> None:
        """Take the next token, and find out whether the text ends with it."""
        if token in stops.eos:
            self.kept, self.stop = len(self.ids), "eos"
            return
        self.ids.append(token)
        self.kept = len(self.ids)
        if self.stream is not None:
            known = len(self.stream.visible)
            self.stream.push(token)
            text = self.stream.visible
            place = stops.find(text, known)
            if place is not None:
                kept = sum(end <= place for _, end in self.stream.offsets())
                self.kept = max(kept, self.stream.settled(0))  # what was pooled stays
                self.stop = "stop"
                return
            if any(stop(text) for stop in stops.callables):
                self.stop = "stop"
                return
        if len(self.ids) == self.limit:
            self.stop = "length"

    def safe(self, stops: Stops) -> int:
        """How many tokens are kept whatever comes next."""
        if self.stream is None or not stops.look_back:
            return len(self.ids)
        return self.stream.settled(stops.safe(self.stream.visible))


class _Batch:
    """The rows that still run: what the next forward pass needs of them.

    Args:
        limit: most tokens a row may get.
        known: of each row, what its prompt may begin with; None computes all of them.
        use_cache: False computes the whole text again for every token.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Prompt],
        limit: int,
        *,
        known: Sequence[Known] | None = None,
        use_cache: bool = True,
    ) -> None:
        self._decoder = decoder
        tokens = [prompt.ids for prompt in prompts]
        ids, self._mask, self._positions = decoder.pad(tokens)
        self.rows = torch.arange(len(prompts), device=decoder.device)
        self.active = list(range(len(prompts)))
        self.width = ids.shape[1]
        self._ids = None if use_cache else ids
        capacity = self.width + limit
        self._known = known
        self._pads = [self.width - len(prompt.ids) for prompt in prompts]
        self._cache = nested_cache(decoder, tokens, capacity) if use_cache and known is None else None
        if self._cache is not None:
            ids, self._positions = ids[:, -1:], self._positions[:, -1:]
        elif use_cache:
            self._cache = new_cache(decoder.model.config, capacity)
        if known is not None and use_cache:
            columns = fill(self._cache, known, tokens, self._pads)
            ids, self._positions = ids[:, columns:], self._positions[:, columns:]
        self.logits = self._forward(ids)

    def _forward(self, ids: Tensor) -> Tensor:
        logits = self._decoder(ids, self._mask, self._positions, cache=self._cache)
        return logits[:, -1]

    def select(self, slots: list[int]) -> None:
        """Keep only some of the batch's rows."""
        chosen = torch.tensor(slots, device=self._decoder.device)
        if self._cache is not None:
            self._cache.batch_select_indices(chosen)
        if self._ids is not None:
            self._ids = self._ids[chosen]
        self.rows, self._positions = self.rows[chosen], self._positions[chosen]
        if self._mask is not None:
            self._mask = self._mask[chosen]
        self.active = [self.active[slot] for slot in slots]

    def leave(self, recent: Recent, rows: Sequence[_Row], slots: Iterable[int]) -> None:
        """Keep what the cache has of some of the batch's rows for later."""
        if self._cache is None:
            return
        for slot in slots:
            number = self.active[slot]
            prompt, known = rows[number].prompt, None if self._known is None else self._known[number]
            ids = (*prompt.ids, *rows[number].ids)
            recent.keep(prompt.name, self._cache, slot, self._pads[number], ids, known)

    def step(self, tokens: Tensor) -> None:
        """Forward one token of each row (batch,)."""
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        following = self._positions[:, -1:] + 1
        if self._ids is None:
            self._positions = following
            self.logits = self._forward(tokens[:, None])
        else:
            self._positions = torch.cat([self._positions, following], dim=1)
            self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
            self.logits = self._forward(self._ids)


@torch.inference_mode()
def generate_batch(
    decoder: Decoder,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    limits: Sequence[int],
    needs: Needs,
    stops: Stops,
    sampler: Sampler | None = None,
    known: Sequence[Known] | None = None,
    recent: Recent | None = None,
    use_cache: bool = True,
) -> list[Generation]:
    """Continue each of ``prompts`` by at most so many >= 1 tokens as ``limits`` has for it, in their order.

    Args:
        sampler: draws the tokens; None takes the likeliest.
        known: of each prompt, keys and values of what it may begin with.
        recent: is left what was computed.
        use_cache: False does without keys and values, for models whose cache is broken.

    Raises:
        RunError: a logit or a recorded state is NaN or infinite.
    """
    rows = [
        _Row(p, TextStream(tokenizer, p.ids) if stops.read_text else None, n)
        for p, n in zip(prompts, limits, strict=True)
    ]
    limit = max(limits)
    width = max(len(prompt.ids) for prompt in prompts)
    recorder = Recorder(needs, len(rows), width, limit, decoder.device)
    logprobs = torch.zeros(2, len(rows), limit, device=decoder.device)  # and entropies
    reads = bool(needs.layers or needs.attention)
    with ExitStack() as taps:
        states = taps.enter_context(StateTap(decoder.model, needs))
        attention = None
        if needs.attention:
            attention = taps.enter_context(AttentionTap(decoder.model, needs.attention_layer))
            attention.queries = 1
        if needs.pool == "predicting":
            states.reduce = _last_position
        batch = _Batch(decoder, prompts, limit, known=known, use_cache=use_cache)
        recorder.prefilled(states.take(), attention.take() if attention is not None else None)
        states.reduce = _last_position
        for index in range(limit):
            tokens = batch.logits.argmax(dim=-1) if sampler is None else sampler(batch.logits, batch.active)
            logprobs[0, batch.rows, index], logprobs[1, batch.rows, index] = token_scores(
                batch.logits, tokens
            )
            slots = []
            for slot, (number, token) in enumerate(zip(batch.active, tokens.tolist(), strict=True)):
                row = rows[number]
                if row.stop is not None:  # its last token has been forwarded
                    continue
                row.accept(token, stops)
                if row.stop is not None:
                    recorder.finish(number, row.kept)
                # A text that ends with this token runs once more, only to be read.
                if row.stop is None or (reads and row.kept > index):
                    slots.append(slot)
            if recent is not None:
                batch.leave(recent, rows, set(range(len(tokens))) - set(slots))
            if not slots:
                break
            if len(slots) < len(tokens):
                tokens = tokens[torch.tensor(slots, device=tokens.device)]
                batch.select(slots)
            batch.step(tokens)
            if reads:
                attended = attention.take() if attention is not None else None
                recorder.push(index, batch.rows, states.take(), attended)
                safe = [rows[i].safe(stops) for i in batch.active if rows[i].stop is None]
                recorder.commit(min(safe, default=limit))
            if all(rows[i].stop is not None for i in batch.active):
                if recent is not None:
                    batch.leave(recent, rows, range(len(slots)))
                break
    recorder.close()
    _refuse_broken(rows, needs, recorder, logprobs)
    return _generations(tokenizer, rows, needs, recorder, logprobs)


def _last_position(states: Tensor) -> Tensor:
    return states[:, -1]


def _refuse_broken(rows: Sequence[_Row], needs: Needs, recorder: Recorder, scores: Tensor) -> None:
    """RunError for the first kept token whose state or logits are not finite."""
    broken = recorder.broken()
    if broken is not None:
        row, token, layer = broken
        raise RunError(
            f"the state of {named_layer(needs, layer)} is NaN or infinite at generated token {token} "
            f"of {rows[row].prompt.name}; try dtype=float32 or bfloat16"
        )
    for row, token in (~scores.isfinite().all(dim=0)).nonzero().tolist():
        if token < max(rows[row].kept, 1):
            raise RunError(
                f"the logits are NaN or infinite at generated token {token} of "
                f"{rows[row].prompt.name}; try dtype=float32 or bfloat16"
            )


def _generations(
    tokenizer: Any, rows: Sequence[_Row], needs: Needs, recorder: Recorder, scores: Tensor
) -> list[Generation]:
    logprobs, entropies = scores.cpu().numpy()
    generations = []
    for number, row in enumerate(rows):
        assert row.stop is not None
        ids, prompt = tuple(row.ids[: row.kept]), row.prompt
        text, offsets = token_offsets(tokenizer, ids, prompt.ids)
        generations.append(
            Generation(
                prompt=prompt.text,
                prompt_ids=prompt.ids,
                prompt_offsets=prompt.offsets,
                token_ids=ids,
                text=text,
                offsets=offsets,
                logprobs=logprobs[number, : row.kept].copy(),
                entropies=entropies[number, : row.kept].copy(),
                stop=row.stop,
                needs=needs,
                states=recorder.states(number),
                attention=recorder.attention(number, len(prompt.ids)),
            )
        )
    return generations
