"""Decoding of one batch, which reads all requested features on the way.

Conventions, shared with :func:`probers.model.forward.score_batch`:

- Logits that produced token i come from the position before it; states and attention
  of token i are read when token i itself is forwarded. The last token is forwarded too.
- Text, offsets, log-probabilities, states and attention all describe the tokens that
  are kept (:class:`probers.model.language_model.Stops`).
- A row that has ended leaves the batch; nothing is computed for it any more.

Prompt lookup (:func:`guess`) drafts several tokens at a time and checks them in one pass over all of
them (Leviathan et al. 2023; exact for greedy decoding). A pass over a few tokens costs little more than over
one. Only a text that runs alone is drafted: in a batch the tokens of many rows keep the processor busy
already, and rows that advance by different lengths tear holes in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..types import Generation, Span, StopReason
from .forward import Decoder, broken_logits, token_scores
from .hidden_states import broken_state
from .kv_cache import CachedPrefix, PrefixCache, can_drop, fill, new_cache, select_rows
from .language_model import Decoding, Stops
from .recorder import CaptureSession
from .tokens import Prompt, TextStream


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt of a batch, to be continued by at most ``limit`` >= 1 tokens.

    ``prefix`` has keys and values of its possible beginning, used where every request has some.
    """

    prompt: Prompt
    limit: int
    prefix: CachedPrefix | None = None
    stream: tuple[int, int, int] | None = None


class Row:
    """A prompt's growing text, decoded as it grows where a stop or ``read`` asks for it.

    Attributes:
        ids: tokens written, without special ones that end a text.
        length: number of them that belong to its text.
        stop: the reason why it ended; None while it runs.
    """

    def __init__(self, request: Request, tokenizer: Any, stops: Stops, *, read: bool = False) -> None:
        self.prompt, self.limit, self._stops = request.prompt, request.limit, stops
        self.ids: list[int] = []
        self.length = 0
        self.stop: StopReason | None = None
        decoded = read or stops.look_back or stops.callables
        self._text = TextStream(tokenizer, request.prompt.ids) if decoded else None
        self._end: int | None = None  # end of the text, where a stop string cuts it

    def accept(self, tokens: Sequence[int], guessed: Sequence[int]) -> tuple[int, int]:
        """Take the next token, and those after it as long as the guesses before them were right.

        ``tokens`` is one longer than ``guessed``. Returns the numbers of right guesses and of tokens seen.
        """
        for count, token in enumerate(tokens):
            written = len(self.ids)
            self._take(token)
            right = count < len(guessed) and token == guessed[count] and len(self.ids) > written
            if self.stop is not None or not right:
                return count + right, count + 1
        raise AssertionError("the token after the last guess is not a guess")

    def _take(self, token: int) -> None:
        if token in self._stops.eos:
            self.stop = "eos"
            return
        self.ids.append(token)
        self.length = len(self.ids)
        if self._text is not None:
            known = len(self._text.visible)
            self._text.push(token)
            text = self._text.visible
            if (place := self._stops.find(text, known)) is not None:
                self._end, self.stop = place, "stop"
                within = sum(end <= place for _, end in self._text.offsets())
                self.length = max(within, self._text.settled(0))  # pooled tokens stay
            elif any(stop(text) for stop in self._stops.callables):
                self.stop = "stop"
        if self.stop is None and len(self.ids) == self.limit:
            self.stop = "length"

    @property
    def text(self) -> str:
        """The text so far, up to a stop; "" unless it is decoded as it grows."""
        return "" if self._text is None else self._text.visible[: self._end]

    def offsets(self, first: int) -> tuple[Span, ...]:
        """List [start, end) of the tokens from ``first``; () while a running text's character lacks bytes."""
        text = self._text
        return text.offsets(first) if text is not None and (text.whole or self.stop is not None) else ()

    def safe(self) -> int:
        if self._text is None or not self._stops.look_back:
            return len(self.ids)
        return self._text.settled(self._stops.safe(self._text.visible))


class Batch:
    """The rows of a batch that still run, and ``logits`` (b, q, vocabulary) of their last pass.

    ``rows`` (b,) are the original numbers of the rows that are left, ``active`` the same as a list;
    ``width`` counts columns of the prompts, padding included. ``cache`` may be None.
    """

    def __init__(self, decoder: Decoder, requests: Sequence[Request]) -> None:
        self._decoder = decoder
        tokens = [request.prompt.ids for request in requests]
        ids, self._mask, self._positions = decoder.pad(tokens)
        self.rows = torch.arange(len(tokens), device=decoder.device)
        self.active = list(range(len(tokens)))
        self.width, self._lengths = ids.shape[1], list(map(len, tokens))
        self.cache: Any = None
        known = [request.prefix for request in requests if request.prefix is not None]
        reuses = decoder.use_cache and len(known) == len(requests)
        self._prefixes: Sequence[CachedPrefix | None] = known if reuses else [None] * len(requests)
        self._ids = None if decoder.use_cache else ids
        if decoder.use_cache:
            capacity = self.width + max(request.limit for request in requests)
            self.cache = new_cache(decoder.model.config, capacity)
            if reuses:
                columns = fill(self.cache, known, tokens, [self.width - n for n in self._lengths])
                ids, self._positions = ids[:, columns:], self._positions[:, columns:]
        # Cast to float32 once: on a CPU the maximum of bfloat16 numbers is slow.
        self.logits = decoder(ids, self._mask, self._positions, cache=self.cache).float()

    def select(self, slots: list[int]) -> None:
        """Keep only some of the batch's rows, in the order that :func:`closed` gives them."""
        chosen = torch.tensor(slots, device=self._decoder.device)
        if self.cache is not None:
            select_rows(self.cache, slots)
        self._ids = None if self._ids is None else self._ids[chosen]
        self.rows, self._positions = self.rows[chosen], self._positions[chosen]
        self.active = [self.active[slot] for slot in slots]
        padded = any(self._lengths[number] < self.width for number in self.active)
        self._mask = self._mask[chosen] if self._mask is not None and padded else None

    def leave(self, cache: PrefixCache | None, rows: Sequence[Row], slots: Iterable[int]) -> None:
        """Store the cache and records of some of its rows, where that is wanted."""
        if cache is None or self.cache is None:
            return
        for slot in slots:
            number = self.active[slot]
            prompt = rows[number].prompt
            pad, ids = self.width - len(prompt.ids), (*prompt.ids, *rows[number].ids)
            cache.keep(prompt.name, self.cache, slot, pad, ids, self._prefixes[number])

    def step(self, tokens: Tensor) -> None:
        """Forward the next tokens of each row, (b, q); without a cache q is 1."""
        count = tokens.shape[1]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(tokens.shape)], dim=1)
        ahead = torch.arange(1, count + 1, device=tokens.device)
        following = self._positions[:, -1:] + ahead
        if self._ids is not None:
            following = torch.cat([self._positions, following], dim=1)
            self._ids = tokens = torch.cat([self._ids, tokens], dim=1)
        self._positions = following
        self.logits = self._decoder(tokens, self._mask, following, keep=count, cache=self.cache).float()

    def drop(self, count: int) -> None:
        if not count:
            return
        for layer in self.cache.layers:
            layer.drop(count)
        self._positions = self._positions[:, :-count]
        if self._mask is not None:
            self._mask = self._mask[:, :-count]


def closed(slots: Sequence[int]) -> list[int]:
    """Return the ascending slots that are kept, most in place: the last ones fill the gaps."""
    count = len(slots)
    moved = [slot for slot in slots if slot >= count]
    staying = set(slots)
    return [slot if slot in staying else moved.pop() for slot in range(count)]


@torch.inference_mode()
def generate_batch(
    decoder: Decoder, tokenizer: Any, requests: Sequence[Request], how: Decoding, stops: Stops
) -> list[Generation]:
    """Continue a batch's prompts, in their order (RunError: a logit or state is NaN or infinite)."""
    rows = [Row(request, tokenizer, stops) for request in requests]
    limit = max(request.limit for request in requests)
    random = [np.random.default_rng(r.stream) for r in requests if r.stream is not None]
    scores = torch.zeros(4 if how.needs.highest else 2, len(rows), limit, device=decoder.device)
    lengths = [len(request.prompt.ids) for request in requests]
    with CaptureSession(decoder.model, how.needs, lengths, limit) as capture:
        batch = Batch(decoder, requests)
        capture.take(-1, batch.active, batch.rows)
        can_guess = how.draft > 0 and how.sampling is None and can_drop(batch.cache)
        before: np.ndarray | None = None  # what drafts may repeat, the prompt last
        index, guessed = 0, list[int]()  # tokens decided so far, and forwarded guesses that may be wrong
        while any(rows[i].stop is None for i in batch.active):
            if can_guess and before is None and len(batch.active) == 1:
                prompt = rows[batch.active[0]].prompt
                last = None if how.cache is None else how.cache.get(prompt.name)
                before = np.array([*(() if last is None else last.ids[last.start :]), *prompt.ids])
            if how.sampling is None:
                tokens = batch.logits.argmax(dim=-1)  # (b, q)
            else:
                tokens = how.sampling.draw(batch.logits[:, -1], [random[i] for i in batch.active])[:, None]
            new_scores = token_scores(batch.logits, tokens, top=how.needs.highest)
            right, looked_at, slots = 0, 1, []
            for slot, (number, choices) in enumerate(zip(batch.active, tokens.tolist(), strict=True)):
                row = rows[number]
                if row.stop is not None:  # its last token has been forwarded
                    continue
                right, looked_at = row.accept(choices, guessed)
                if row.stop is not None:
                    capture.finish(number, row.length)
                # A text that ends with this token runs once more, so that the token is read.
                if row.stop is None or (capture.reads and row.length > index + right):
                    slots.append(slot)
            scores[:, batch.rows, index : index + looked_at] = new_scores[:, :, :looked_at]
            batch.drop(len(guessed) - right)
            capture.drop(len(guessed) - right)
            index += right
            batch.leave(how.cache, rows, set(range(len(tokens))) - set(slots))
            if not slots:
                break
            if len(slots) < len(tokens):
                slots = closed(slots)
                tokens = tokens[torch.tensor(slots, device=tokens.device)]
                batch.select(slots)
            tokens = tokens[:, right : right + 1]
            row = rows[batch.active[0]]
            guessed = []
            if before is not None and row.stop is None:
                guessed = guess(np.append(before, row.ids), min(how.draft, row.limit - len(row.ids)))
            if guessed:
                tokens = torch.cat([tokens, tokens.new_tensor([guessed])], dim=1)
            capture.read_last(1 + len(guessed))
            batch.step(tokens)
            capture.take(index, batch.active, batch.rows)
            capture.commit(min((rows[i].safe() for i in batch.active if rows[i].stop is None), default=limit))
            index += 1
        else:
            batch.leave(how.cache, rows, range(len(batch.active)))
    capture.commit(limit + 1)
    if (broken := capture.broken()) is not None:
        feature, number, place, layer = broken
        raise broken_state(feature, layer, f"generated token {place} of {rows[number].prompt.name}")
    for number, place in (~scores.isfinite().all(dim=0)).nonzero().tolist():
        if place < max(rows[number].length, 1):
            raise broken_logits(f"generated token {place} of {rows[number].prompt.name}")
    recorded = scores.cpu().numpy()
    return [
        row.prompt.continued(
            tokenizer, row.ids[: row.length], scored, stop=row.stop or "length", needs=how.needs,
            states=capture.states(number, scored), attention=capture.attention(number),
        )
        for number, row in enumerate(rows)
        for scored in (recorded[:, number, : row.length],)
    ]  # fmt: skip


_CONTEXT = (3, 2, 1)  # tokens that must be repeated before a guess, the longest first
_SHORT = 4  # tokens guessed after a single repeated one, which is weak evidence


def guess(ids: np.ndarray, most: int) -> list[int]:
    """Return the tokens after the last earlier place that the end of ``ids`` (n,) repeats, up to ``most``.

    An answer repeats its prompt: names from the question, sentences from a passage, its own words.
    """
    for count in _CONTEXT:
        if len(ids) <= count:
            continue
        here = np.ones(len(ids) - count, dtype=bool)  # [i]: the count tokens from i on match
        for back in range(count):
            here &= ids[count - 1 - back : -1 - back] == ids[-1 - back]
        places = np.flatnonzero(here)
        if len(places):
            start = int(places[-1]) + count
            return list(map(int, ids[start : start + (most if count > 1 else min(most, _SHORT))]))
    return []
