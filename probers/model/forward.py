"""The forward call of any decoder-only model of transformers, and the teacher-forced pass built on it.

Batches are left-padded. :func:`score_batch` reads existing texts with the conventions and fields of greedy
decoding, so that records of decoding can be repeated, or checked, from the tokens alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..types import AttentionRows, Feature, Generation, Needs, Passages, RunError, UserError, first_line
from .attention import AttentionTap, HeadsTap
from .blocks import decoder_of
from .hidden_states import StateTap, broken_state, tap_of
from .kv_cache import Cache, CachedPrefix, fill, new_cache
from .passages import PassagesTap, shown
from .pooling import BEFORE, WholePool
from .recorder import joined, tapped
from .tokens import Prompt, shared_start

_PIECE = 1 << 24  # logits computed at a time for whole texts: 64 MiB in float32


class Decoder:
    """A causal language model as a function from tokens to the logits of the last positions.

    Families without ``position_ids`` derive positions from the mask, those without ``logits_to_keep`` compute
    all logits. ``use_cache=False`` runs without keys and values, for models whose cache is broken.

    Where ``tokens`` are set, all others have probability 0: the rows of a padded vocabulary are no tokens,
    and log-probabilities and entropies are those of the distribution over ``tokens``.
    """

    tokens: frozenset[int] | None = None

    def __init__(self, model: Any, *, use_cache: bool = True) -> None:
        accepted = inspect.signature(model.forward).parameters
        self.model = model
        self.device: torch.device = model.device
        self.use_cache = use_cache
        self._positions = "position_ids" in accepted
        self._keeps = "logits_to_keep" in accepted
        self._cache = "cache" if "cache" in accepted else "past_key_values"  # until transformers 5.23

    def __call__(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, *, keep: int = 1, cache: Any = None
    ) -> Tensor:
        """Compute logits (batch, keep, vocabulary) of the last ``keep`` positions, in the model's format.

        Args:
            ids: (batch, length).
            mask: (batch, cached + length), 1 where a token is, or None without padding.
            positions: (batch, length), of each token in its own sequence.
            cache: key/value cache that the call extends; None for a pass without one.
        """
        options: dict[str, Any] = {"use_cache": cache is not None, self._cache: cache}
        options |= {"position_ids": positions} if self._positions else {}
        options |= {"logits_to_keep": keep} if self._keeps else {}
        if isinstance(cache, Cache):
            cache.padded = mask is not None and ids.shape[1] == 1
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits
        return only(logits[:, -keep:], self.tokens)

    def pieces(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, *, keep: int, cache: Any = None
    ) -> Iterator[Tensor]:
        """Yield the logits of a call, a few positions (batch, n, vocabulary) at a time.

        The blocks run once, before the first piece. Then the model continues from their last states, piece by
        piece, so that its steps after the head (softcapping, a scale) are applied as usual.
        """
        width = max(1, _PIECE // (len(ids) * self.model.config.get_text_config().vocab_size))
        inner = decoder_of(self.model)
        if keep <= width or inner is self.model:
            yield self(ids, mask, positions, keep=keep, cache=cache)
            return
        read: list[Any] = []
        forward, hooks = vars(inner).get("forward"), inner._forward_hooks

        def restore() -> None:
            inner._forward_hooks = hooks
            vars(inner).pop("forward", None)
            if forward is not None:
                inner.forward = forward

        def first(*args: Any, **kwargs: Any) -> Any:
            restore()
            read.append(inner(*args, **kwargs))  # with its hooks, which must run only once
            inner._forward_hooks = type(hooks)()
            return _cut(read[0], -1, None)

        try:
            inner._forward_hooks, inner.forward = type(hooks)(), first
            self(ids, mask, positions, cache=cache)
            for start in range(-keep, 0, width):
                end = min(start + width, 0)
                piece = _cut(read[0], start, end or None)
                inner.forward = lambda *args, piece=piece, **kwargs: piece
                yield self(ids, mask, positions, keep=end - start)
        finally:
            restore()

    @torch.inference_mode()
    def check(self) -> None:
        """Refuse, by name and reason, a model that is not a causal decoder for batches (UserError).

        The check is numeric: logits may not depend on later tokens, padding, or the use of the cache.
        """
        family, config = type(self.model).__name__, self.model.config
        if getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{family} is an encoder-decoder; only decoder-only models can be read", "model")
        if getattr(self.model, "_is_stateful", False):
            problem = f"{family} keeps a recurrent state; only attention over keys and values can be read"
            raise UserError(problem, "model")
        if self.device.type == "meta":  # no weights here, they run elsewhere
            return
        text, longer = [0, 1, 2, 1, 0], [1, 2, 0, 2, 1, 0, 2, 1]
        ids, mask, positions = self.pad([text, [*text[:-1], 1]])
        try:
            logits, other = self(ids, mask, positions, keep=len(text)).float()
            if not bool(logits.isfinite().all()):  # broken weights are reported when they are read
                return
            read = {"beside a longer text": self(*self.pad([text, longer]))[0, -1].float()}
            if self.use_cache:
                cache = new_cache(config, len(text))
                self(ids[:1, :3], None, positions[:1, :3], cache=cache)
                read["in two pieces"] = self(ids[:1, 3:], None, positions[:1, 3:], cache=cache)[0, -1].float()
        except (TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError) as error:
            raise UserError(f"{family} cannot be read: {first_line(error)}", "model") from error
        high = float(logits.abs().quantile(0.9))  # the highest may be those of tokens that are ruled out
        close = (2e-3 if self.model.dtype == torch.float32 else 1e-1) * high
        if float((logits - other)[:-1].abs().max()) > close / 5:
            raise UserError(f"{family} lets tokens see later ones; only causal decoders can be read", "model")
        for how, last in read.items():
            if float((last - logits[-1]).abs().max()) > close:
                problem = f"{family} reads a text {how} differently, so its output would depend on the batch"
                remedy = "choose a decoder that takes position_ids or derives positions from the mask"
                raise UserError(f"{problem}: {remedy}", "model")

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return left-padded ids, mask (None without padding) and positions, each (batch, length).

        Padding is masked and may be any token. It is 0, which every vocabulary has; a tokenizer's padding
        token may not.
        """
        width = max(len(ids) for ids in sequences)
        pads = [width - len(ids) for ids in sequences]
        rows = [[0] * pad + list(ids) for pad, ids in zip(pads, sequences, strict=True)]
        ids = torch.tensor(rows, device=self.device)
        positions = torch.arange(width, device=self.device) - torch.tensor(pads, device=self.device)[:, None]
        mask = (positions >= 0).long() if any(pads) else None
        return ids, mask, positions.clamp_min(0)


def _cut(output: Any, start: int, end: int | None) -> Any:
    part = copy(output)
    part.last_hidden_state = output.last_hidden_state[:, start:end]
    return part


def only(logits: Tensor, tokens: frozenset[int] | None) -> Tensor:
    """Leave only some tokens (None: all) in logits (.., vocabulary), in place where no gradient is needed.

    Others get the lowest number, not -inf, whose products and differences are NaN.
    """
    columns = () if tokens is None else _others(tokens, logits.shape[-1])
    if not columns:
        return logits
    fill = logits.index_fill if logits.requires_grad else logits.index_fill_
    places = torch.tensor(columns, device=logits.device)
    return fill(-1, places, torch.finfo(logits.dtype).min)


@lru_cache(maxsize=4)
def _others(tokens: frozenset[int], width: int) -> tuple[int, ...]:
    return tuple(token for token in range(width) if token not in tokens)


def token_scores(logits: Tensor, tokens: Tensor, *, top: bool = False) -> Tensor:
    """Compute log-probability of ``tokens`` (...) and entropy, (2, ...), in nats and float32.

    In ``logits`` (..., vocabulary) -inf excludes a token. ``top`` adds the distribution's two highest
    probabilities, (4, ...) together.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(-1, tokens[..., None])[..., 0]
    highest = logprobs.topk(2, dim=-1).values.exp().unbind(dim=-1) if top else ()
    # One product instead of a logarithm per token of the vocabulary; 0 * -inf would be NaN.
    entropies = -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min_(torch.finfo(torch.float32).min))
    return torch.stack([chosen, entropies, *highest])


def broken_logits(where: str) -> RunError:
    """Build the error for logits from which no token can be chosen or scored."""
    return RunError(f"the logits are NaN or infinite at {where}; try dtype=float32 or bfloat16", "model")


@torch.inference_mode()
def read_prefixes(
    decoder: Decoder, sequences: Sequence[Sequence[int]], known: CachedPrefix | None = None
) -> list[CachedPrefix]:
    """Compute keys and values of token sequences, in one pass over their tokens after ``known``."""
    tokens, mask, positions = decoder.pad(sequences)
    pads = [tokens.shape[1] - len(ids) for ids in sequences]
    # Layers with a sliding window keep all positions too: how far it reaches depends on later tokens.
    cache: Any = new_cache(decoder.model.config, tokens.shape[1], whole=True)
    start = 0 if known is None else fill(cache, [known] * len(sequences), sequences, pads)
    decoder(tokens[:, start:], mask, positions[:, start:], cache=cache)
    prefixes = []
    for row, (ids, pad) in enumerate(zip(sequences, pads, strict=True)):
        shared = max(0, start - pad)  # tokens of this row that were taken from ``known``
        new = slice(pad + shared, None)
        layers = tuple((layer.keys[row, :, new], layer.values[row, :, new]) for layer in cache.layers)
        prefixes.append(CachedPrefix(tuple(ids), layers, known if shared else None, shared))
    return prefixes


@torch.inference_mode()
def score_batch(
    decoder: Decoder, tokenizer: Any, texts: Sequence[tuple[Prompt, Sequence[int], Passages | None]],
    needs: Needs,
    prefixes: Sequence[CachedPrefix | None] = (), beginnings: Sequence[Generation | None] = (),
) -> list[Generation]:  # fmt: skip
    """Record given continuations, each at least one token, as generation would have recorded them.

    ``texts`` are prompts, token ids after them, and the passages that the prompts show.
    ``prefixes`` have keys and values of the prompts' beginnings, used where every text has some.
    ``beginnings`` are records of the first tokens of each text, up to where it leaves other texts after the
    same prompt: they take the place of what this pass reads there.
    RunError where a logit or a recorded state is NaN or infinite.
    """
    prompts, continuations, passages = zip(*texts, strict=True)
    lengths = [len(ids) for ids in continuations]
    longest = max(lengths)
    ids, mask, positions = decoder.pad([(*prompt.ids, *ids) for prompt, ids, _ in texts])
    columns, start, cache = ids, 0, None
    cached = [prefix for prefix in prefixes if prefix is not None]
    if len(cached) == len(texts):
        pads = [ids.shape[1] - len(p.ids) - n for p, n in zip(prompts, lengths, strict=True)]
        cache = new_cache(decoder.model.config, ids.shape[1])
        start = fill(cache, cached, [p.ids for p in prompts], pads)
        columns, positions = ids[:, start:], positions[:, start:]
    count = torch.tensor(lengths, device=decoder.device)
    scored = torch.arange(longest, 0, -1, device=decoder.device) <= count[:, None]  # (batch, longest)
    prompted = torch.tensor([len(p.ids) for p in prompts], device=decoder.device)
    by_passage: PassagesTap | None = None
    if any(feature.site == "passages" for feature in tapped(needs)):
        at = [shown(some, tokenizer, prompt, ids) for prompt, ids, some in texts]
        by_passage = PassagesTap(decoder.model, at)
    features = dict[Feature, tuple[StateTap | HeadsTap, WholePool]]()
    for feature in tapped(needs):
        of_passages = by_passage if feature.site == "passages" else None
        features[feature] = (of_passages or tap_of(decoder.model, feature), WholePool(feature.pool, scored))
    with ExitStack() as taps:
        for tap, pool in features.values():
            taps.enter_context(tap)
            if isinstance(tap, StateTap):  # pooled layer by layer: the positions of all layers are too many
                tap.read(pool.layer)
            else:
                tap.read_last(longest + 1)
        attention = None
        if needs.attention:
            attention = taps.enter_context(AttentionTap(decoder.model, needs.attention_layer))
            attention.read(longest + 1)
        logits = decoder.pieces(columns, mask, positions, keep=longest + 1, cache=cache)
        scores = _scores(logits, ids, lengths, top=needs.highest)
        layers = {feature: _taken(*each, prompted, count) for feature, each in features.items()}
        attended = attention.take() if attention is not None else None
    for feature, (_, pool) in features.items():
        if (broken := pool.broken()) is not None:
            row, token, place = broken
            # Blocks run in ascending order.
            ascending = replace(feature, layers=tuple(sorted(set(feature.layers))))
            raise broken_state(ascending, place, f"token {token} of the continuation of {prompts[row].name}")
    generations = []
    for row, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        for (token,) in (~scores[row].isfinite().all(dim=0)).nonzero().tolist():
            raise broken_logits(f"token {token} of the continuation of {prompt.name}")
        rows = None if attended is None else _rows(attended(slice(row, row + 1))[0], len(prompt.ids), length)
        states = {feature: pool.value(layers[feature], row) for feature, (_, pool) in features.items()}
        recorded = scores[row].cpu().numpy()
        if beginnings and (beginning := beginnings[row]) is not None:
            _begin(beginning, continuations[row], recorded, states, rows)
        text = prompt.continued(
            tokenizer, continuations[row], recorded, stop="length", needs=needs,
            states=joined(needs, states, recorded), attention=rows,
        )  # fmt: skip
        if by_passage is not None and passages[row] is not None:
            text = replace(text, passages=by_passage.reading(row, length))
        generations.append(text)
    return generations


def _begin(
    beginning: Generation, ids: Sequence[int], scores: np.ndarray, states: Mapping[Feature, np.ndarray],
    rows: AttentionRows | None,
) -> None:  # fmt: skip
    """Overwrite a text's records of its first tokens with those of ``beginning``.

    A text's numbers depend in the last digits on the texts beside it in a batch, and on its padding. What is
    known before two texts after one prompt part is thus the same number in both.
    """
    read = min(len(beginning.token_ids), len(ids))  # this text may be the beginning of another
    same = shared_start(beginning.token_ids, ids)
    scores[0, :same] = beginning.logprobs[:same]
    others = [beginning.entropies, *([] if beginning.top is None else beginning.top)]
    scores[1:, :read] = [values[:read] for values in others]
    for feature, values in beginning.states.items():
        # The states of equal tokens, and those that predict them and the token after them.
        count = None if feature.pool == "prompt" else min(read, same + (feature.pool in BEFORE))
        states[feature][:count] = values[:count]
    if rows is not None and beginning.attention is not None:
        count = min(read, same + 1)
        width = min(beginning.attention.rows.shape[1], rows.rows.shape[1])
        rows.rows[:count, :width] = beginning.attention.rows[:count, :width]


@torch.inference_mode()
def attend_alone(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
    """Compute last-layer attention over non-empty ``sequences`` with nothing before them; row 0 is zero."""
    ids, mask, positions = decoder.pad(sequences)
    with AttentionTap(decoder.model) as tap:
        tap.read(ids.shape[1])
        decoder(ids, mask, positions)
        attended = tap.take()
    each = enumerate(map(len, sequences))
    return [_rows(attended(slice(row, row + 1))[0, :, -n:], 0, n) for row, n in each]


def _scores(pieces: Iterable[Tensor], ids: Tensor, lengths: Sequence[int], *, top: bool) -> list[Tensor]:
    """Compute :func:`token_scores` (.., length) of each row's last tokens, from the logits before them."""
    scores: list[list[Tensor]] = [[] for _ in lengths]
    place = ids.shape[1] - max(lengths)  # of the token that the first logits predict
    for logits in pieces:
        for row, length in enumerate(lengths):
            first = max(place, ids.shape[1] - length)
            tokens = ids[row, first : place + logits.shape[1]]
            if len(tokens):
                new = logits[row, first - place :][: len(tokens)]
                scores[row].append(token_scores(new, tokens, top=top))
        place += logits.shape[1]
    return [torch.cat(row, dim=1) for row in scores]


def _taken(tap: StateTap | HeadsTap, pool: WholePool, prompts: Tensor, written: Tensor) -> Tensor:
    if isinstance(tap, StateTap):
        read = tap.take()
    elif (read := tap.take_last(prompts, written)) is not None:
        read = pool.layer(read[:, :, 0])[..., None, :]
    assert read is not None  # every feature has a layer, and a pass reads all of it
    return read


def _rows(weights: Tensor, prompt: int, length: int) -> AttentionRows:
    """Cut a text's rows from weights (heads, q, k); with a sliding window k is shorter than the text."""
    weights = weights[:, -length - 1 :, -prompt - length :]
    rows = np.zeros((length + 1, prompt + length), dtype=np.float32)
    rows[-weights.shape[1] :, prompt + length - weights.shape[2] :] = weights.mean(dim=0).cpu()
    best = weights[:, -length:, -length:].amax(dim=1).mean(dim=0)
    return AttentionRows(rows, np.array(best.cpu()))
