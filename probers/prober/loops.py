"""Tokens and states read from someone else's generation loop.

Hooks listen to a plain transformers model. They never change, delay or break off a generation. An
unsupported loop leaves its problem on the batch, which is raised when a score is requested.

- A token's states are read in its own pass. Those of a prompt are not read, nor those of the last generated
  token, which is not forwarded (:meth:`.watch.Scores.finish` does it). A pass without earlier
  keys and values begins a new text.
- A row that has ended is still fed until all rows have. End-of-sequence and padding tokens do not count,
  nor does anything after an end of sequence. Their ids come from model.generation_config, and from the
  tokenizer where one is given.
- Beam search, assisted decoding, chunked prefill, a cache filled beforehand, a static cache and
  ``use_cache=False`` are refused when a score is requested. A prompt prefilled in two chunks, the second
  of one token, looks like decoding: only the stopping criterion notices it.
- Heads that pool a span's tokens themselves are refused: they need all its states, which are not kept.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..model.attention import kernel_for
from ..model.blocks import decoder_layers
from ..model.forward import Decoder
from ..model.hidden_states import broken_state, check_needs, tap_of
from ..model.loading import fingerprint, weight_sample
from ..model.pooling import all_finite, token_vectors
from ..model.tokens import appended, end_tokens, marker_of, tell_once
from ..prompts import text_marks
from ..store.spec import ModelSpec
from ..types import RunError, UserError
from .token_scores import GrowingHeads, Scorer, check_growing

Per = Literal["sequence", "token"]

_UNREADABLE = (
    "these passes cannot be followed (beam search, assisted decoding, chunked prefill or a cache filled "
    "beforehand): call generate with num_beams=1 and the whole prompt, and let it make the cache"
)
_STATIC = "a static cache, whose passes are compiled, cannot be followed: let generate make its default cache"
_NO_CACHE = "passes without keys and values cannot be followed: call generate with use_cache=True"

#: Number of tokens whose vectors wait for a common run of the heads. With single tokens the heads' weights
#: would be read for every token; all at the end, a long text's vectors would fill the memory.
_BLOCK = 32


class WatchedBatch:
    """Forwarded tokens of one batch's rows, and their scores.

    ``per`` scores the "sequence" so far after each token, or the "token" alone. ``special`` has ids that end
    a row, and ids that are not part of it; ``length`` counts positions before the first generated token.

    Attributes:
        prompt: ids (rows, columns) of the prompt in the result of ``generate``; no columns for embeddings.
        tokens: (rows,) ids of each pass after the first.
        predicting: the heads read the state before a token, beginning with the prompt's last.
        stopped: (rows,) rows that a caller has stopped; none of their further tokens count.
        problem: why the loop could not be followed or scored.
    """

    def __init__(self, bank: Scorer, per: Per, special: tuple[Tensor, ...], length: int, prompt: Tensor):
        self.rows, self.prompt = len(prompt), prompt
        self.predicting = bank.spec.pool == "predicting"
        self.tokens: list[Tensor] = []
        self.problem: UserError | RunError | None = None
        self._bank, self._per, self._length = bank, per, length
        self.eos, self._special = special[0], torch.cat(special)
        self.stopped, self._ended = (torch.zeros(self.rows, dtype=torch.bool) for _ in range(2))
        self._lives: list[Tensor] = []  # (rows,) of every token: whether it counts
        self._newest: list[int] = []  # rows whose last token counts
        self._added = self._asked = 0
        self._heads = GrowingHeads(bank)
        self._waiting: list[tuple[list[int], Tensor, Tensor]] = []  # per token: live rows, vectors, finite
        self._scores: list[list[float]] = [[] for _ in range(self.rows)]
        self._mask: Tensor | None = None
        self._positions: Tensor | None = None
        self._keys: weakref.ref[Tensor] | None = None

    def refuse(self, why: str) -> None:
        self.problem = self.problem or UserError(why, code="unsupported")

    def expects(self, rows: int, length: int, past: int, cache: Any) -> bool:
        """Tell whether a pass over (rows, length) after ``past`` positions is one more token of each row."""
        same = self._keys is None or self._keys() is _first_keys(cache)
        return same and (rows, length, past) == (self.rows, 1, self._length + len(self.tokens))

    def passed(self, cache: Any, given: dict[str, Any]) -> None:
        """Record a pass: its inputs, and the keys and values that the next pass must have."""
        keys = _first_keys(cache)
        self._keys = None if keys is None else weakref.ref(keys)
        self._mask, self._positions = given.get("attention_mask"), given.get("position_ids")

    def lengths(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return (rows,) tokens of the prompts without padding, and tokens forwarded after them."""
        written = len(self.tokens) + bool(self._added) if self.predicting else len(self.tokens) + 1
        prompts = torch.full((self.rows,), self._length)
        if mask is not None and mask.dim() == 2:
            prompts = mask[:, : self._length].sum(dim=1)
        return prompts, torch.full_like(prompts, written)

    def counted(self, tokens: Tensor) -> Tensor:
        """Tell (rows,) where ``tokens`` (rows,) would be part of the rows' texts."""
        over = self._ended.to(tokens.device) | self.stopped.to(tokens.device)
        return ~(torch.isin(tokens, self._special.to(tokens.device)) | over)

    def add(self, given: dict[str, Any], states: Tensor) -> None:
        """Take the states (rows, layers, d) of a pass's token of each row, or of the prompt's last."""
        if self.predicting and not self._added:
            live = torch.ones(self.rows, dtype=torch.bool, device=states.device)
        else:
            tokens = given["input_ids"][:, 0]
            live = self.counted(tokens).to(states.device)
            self._ended = self._ended.to(tokens.device) | torch.isin(tokens, self.eos.to(tokens.device))
            self._lives.append(live)
            self.tokens.append(tokens)
        # One copy to the host for each token: selecting rows by a mask would take three.
        rows = [row for row, counts in enumerate(live.tolist()) if counts]
        if len(rows) < self.rows:
            states = states[torch.tensor(rows, dtype=torch.long, device=states.device)]
        self._newest = rows if self._lives else []
        vectors = token_vectors(states, self._bank.spec.pool)
        if self._per == "sequence":
            vectors = self._heads.pooled(rows, vectors)
        self._waiting.append((rows, vectors, all_finite(states)))
        self._added += 1
        if len(self._waiting) == _BLOCK:
            self._score_waiting()

    def _score_waiting(self) -> None:
        """Score the waiting tokens; an error of one becomes the batch's problem."""
        if not self._waiting or self.problem is not None:
            return
        rows, vectors, finite = zip(*self._waiting, strict=True)
        first = self._added - len(self._waiting) - self.predicting
        self._waiting.clear()
        for token, good in [] if bool(torch.cat(finite).all()) else enumerate(finite, first):
            for place, layer in (~good).nonzero().tolist():
                name = f"generated token {token}" if token >= 0 else "the prompt's last token"
                where = f"{name} of row {rows[token - first][place]}"
                self.problem = broken_state(self._bank.spec.feature, layer, where)
                return
        keys = list(chain.from_iterable(rows))
        try:
            if self._bank.head.causal:  # token after token
                scores = [*chain.from_iterable(map(self._heads.scores, rows, vectors))]
            else:
                scores = self._heads.scores(keys, torch.cat(vectors))
        except RunError as error:
            self.problem = error
            return
        how = self._bank.aggregate if self._per == "sequence" else None
        for row, score in zip(keys, scores, strict=True):
            before = self._scores[row]
            if before and how == "max":
                score = max(before[-1], score)
            elif before and how == "mean":
                score = before[-1] + (score - before[-1]) / (len(before) + 1)
            before.append(score)

    def scores(self) -> list[list[float]]:
        """Return the scores of each row after each token that counts (and its prompt if ``predicting``)."""
        self._score_waiting()
        if self.problem is not None:
            raise self.problem
        return self._scores

    def ask(self, ids: Tensor) -> None:
        """Compare ids (rows, columns) with all tokens read and one sampled since (UserError: others)."""
        read = len(self.tokens)
        same = read == self._asked and tuple(ids.shape) == (self.rows, self.prompt.shape[1] + read + 1)
        if not same or (read and not torch.equal(ids[:, -2], self.tokens[-1].to(ids.device))):
            message = f"{_UNREADABLE}; and use a stopping criterion with the model it was made for"
            raise UserError(message, "unsupported")
        self._asked += 1

    def stop_above(self, threshold: float) -> None:
        """Stop the rows whose last token counts and raised the score above ``threshold``."""
        for row in self._newest:
            self.stopped[row] = self._scores[row][-1] > threshold

    def written(self, row: int) -> list[int]:
        """Return ids of a row's tokens that count."""
        each = zip(self.tokens, self._lives, strict=True)
        return [int(tokens[row]) for tokens, lives in each if lives[row]]

    def forward(self, model: Any, last: Tensor, cache: Any) -> None:
        """Forward ``last`` (rows, 1) as ``generate`` would, on a copy of ``cache``."""
        mask, positions = self._mask, self._positions
        if cache is None or (mask is not None and mask.dim() != 2):
            message = "finish needs passes that return the cache, and a mask of 2 dimensions or none"
            raise UserError(message, "unsupported")
        decoder = Decoder(model)
        last = last.to(decoder.device)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(self.rows, 1)], dim=1)
        if positions is not None:
            positions = positions[..., -1:] + 1
        elif mask is not None:
            positions = mask.sum(dim=1, keepdim=True) - 1
        else:
            positions = torch.full_like(last, self._length + len(self.tokens))
        cache = _copied(cache)
        self.passed(cache, {"attention_mask": self._mask, "position_ids": self._positions})
        decoder(last, mask, positions, cache=cache)


class GenerationWatcher(ExitStack):
    """Listener on a model's passes, with the newest :class:`WatchedBatch`; None before the first pass.

    The model has hooks while it is entered. With ``keep_cache`` keys and values of the last pass are kept,
    to forward one more token. UserError for heads that cannot follow a text, or another model than theirs.
    """

    def __init__(
        self, bank: Scorer, model: Any, tokenizer: Any, *, per: Per = "sequence", keep_cache: bool = False
    ) -> None:
        super().__init__()
        check_growing(bank)
        if not hasattr(model, "config"):
            what = f"a model of transformers is watched, found {type(model).__name__}"
            raise UserError(f"{what}: give lm.model of a CausalLM", "model")
        name = str(getattr(model, "name_or_path", "") or "")
        width, dtype = int(model.config.get_text_config().hidden_size), str(model.dtype)
        config = getattr(model, "generation_config", None) or model.config
        ends = end_tokens(config, tokenizer)
        pads = {getattr(owner, "pad_token_id", None) for owner in (config, tokenizer)} - {None}
        marks = {"sample": weight_sample(model)} | ({} if tokenizer is None else text_marks(tokenizer, ends))
        bank.check_model(ModelSpec(
            name or bank.spec.model.id, fingerprint(name, model),
            len(decoder_layers(model)), width, dtype.removeprefix("torch."), **marks,
        ))  # fmt: skip
        check_needs(bank.spec.needs, model)
        kernel_for(model.config, getattr(model.config, "_attn_implementation", None))
        self.bank, self.model, self.tokenizer = bank, model, tokenizer
        self.batch: WatchedBatch | None = None
        self.cache: Any = None
        self._per, self._keep_cache = per, keep_cache
        self._special = tuple(torch.tensor(sorted(ids), dtype=torch.long) for ids in (ends, pads))
        self._marker = () if tokenizer is None else appended(tokenizer)
        self._names = list(inspect.signature(model.forward).parameters)
        self._tap = tap_of(model, bank.spec.feature)

    def __enter__(self) -> GenerationWatcher:
        self.enter_context(self._tap)
        self.callback(self.model.register_forward_pre_hook(self._before, with_kwargs=True).remove)
        self.callback(self.model.register_forward_hook(self._after, with_kwargs=True).remove)
        self.callback(setattr, self, "cache", None)
        return self

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell a prompt's pass from one generated token of each row, and from anything else."""
        self._tap.read_last(0)
        self.cache = None
        given = dict(zip(self._names, args, strict=False)) | kwargs
        ids, cache = given.get("input_ids"), _find_cache(given)
        inputs = given.get("inputs_embeds") if ids is None else ids
        if inputs is None:  # the model raises its own error
            return
        rows, length = inputs.shape[:2]
        past = 0 if cache is None else int(cache.get_seq_length())
        if past == 0 or self.batch is None:
            prompt = inputs.new_zeros((rows, 0), dtype=torch.long) if ids is None else ids.detach()
            self.batch = WatchedBatch(self.bank, self._per, self._special, length, prompt)
            self._note_marker(prompt)
            if past:
                self.batch.refuse(_UNREADABLE)
            elif getattr(cache, "layers", None) and getattr(cache, "is_compileable", False):
                self.batch.refuse(_STATIC)
            elif self.batch.predicting:
                self._tap.read_last(1)
        elif self.batch.problem is None:
            if ids is not None and self.batch.expects(rows, length, past, cache):
                self._tap.read_last(1)
            else:
                self.batch.refuse(_UNREADABLE)

    def _note_marker(self, prompt: Tensor) -> None:
        """Say that prompts (rows, columns) end with what their tokenizer puts after a text."""
        marker = torch.tensor(self._marker, device=prompt.device)
        ends = prompt[:, prompt.shape[1] - len(marker) :]
        if len(marker) and ends.shape[1] == len(marker) and bool((ends == marker).all(dim=1).any()):
            what = f"the tokenizer puts {marker_of(self.tokenizer)} after a prompt"
            remedy = f"generate from its ids without the last {len(marker)}, or the model begins another text"
            tell_once(self.tokenizer, f"{what}: {remedy}")

    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        batch, given = self.batch, dict(zip(self._names, args, strict=False)) | kwargs
        if batch is None:
            return
        try:
            states = self._tap.take_last(*batch.lengths(given.get("attention_mask")))
        except RunError as error:  # a loop of others is not broken off
            batch.refuse(str(error))
            return
        cache = _find_cache(given if isinstance(output, tuple) else output)
        if cache is None and not isinstance(output, tuple):
            batch.refuse(_NO_CACHE)
        if batch.problem is not None:
            return
        batch.passed(cache, given)
        self.cache = cache if self._keep_cache else None
        if states is not None:
            batch.add(given, states[:, -1])


def _find_cache(values: Mapping[str, Any]) -> Any:
    """Find the cache among a pass's arguments or outputs; its name changed with transformers 5.24."""
    return values.get("cache", values.get("past_key_values"))


def _first_keys(cache: Any) -> Tensor | None:
    """Return the first layer's keys, if they stay the same tensor; beam search and the like replace it."""
    if cache is None or getattr(cache, "offloading", False):
        return None
    layers = (layer for layer in getattr(cache, "layers", ()) if not getattr(layer, "record_past", False))
    each = (getattr(layer, "keys", None) for layer in layers)
    return next((keys for keys in each if isinstance(keys, Tensor)), None)


def _copied(cache: Any) -> Any:
    """Copy a cache so that the copy can be extended while ``cache`` stays unchanged."""
    layers = getattr(cache, "layers", None)
    if layers and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        # These replace the old tensors by new ones, so the old ones can be shared.
        twin = copy.copy(cache)
        twin.layers = [copy.copy(layer) for layer in layers]
        return twin
    return copy.deepcopy(cache)
