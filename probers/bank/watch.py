"""Following a loop that is not ours: which token a forward pass holds, and its states, pooled so far.

A plain transformers model is only listened to. Hooks never change, delay or break off
a generation; what cannot be followed is kept as the text's problem, for whoever asks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..capture.blocks import decoder_layers
from ..capture.hidden_states import StateTap, check_needs, named_layer
from ..engine.loading import fingerprint
from ..store.spec import ModelSpec
from ..types import Needs, RunError, UserError

if TYPE_CHECKING:
    from .bank import ProbeBank

UNREADABLE = (
    "these passes cannot be followed (beam search, assisted decoding, chunked prefill or a cache filled "
    "beforehand): call generate with num_beams=1 and the whole prompt, and let it make the cache"
)
_STATIC = (
    "a static cache, whose passes are compiled, cannot be followed: call generate with its default cache"
)
_NO_CACHE = "passes without keys and values cannot be followed: call generate with use_cache=True"


def check_model(bank: ProbeBank, model: Any) -> None:
    """Refuse a transformers model that ``bank`` was not trained on, or whose states it cannot read.

    Depth and width are always compared, and the weights where the model knows the hub id
    or folder it came from. What was changed after loading cannot be noticed.

    Raises:
        UserError: names both models, or what the model lacks.
    """
    name = str(getattr(model, "name_or_path", "") or "")
    spec = ModelSpec(
        id=name or bank.spec.model.id,
        revision=fingerprint(name, model) if name else "",
        layers=len(decoder_layers(model)),
        width=int(model.config.get_text_config().hidden_size),
        dtype=str(model.dtype).removeprefix("torch."),
    )
    bank.check_model(spec)
    check_needs(bank.needs, model)


class Text:
    """What is written in the rows of one batch, as far as it was forwarded.

    Attributes:
        rows: how many.
        length: positions before the first generated token, padding included.
        prompt: columns of the prompt in what ``generate`` returns; 0 where it was embeddings.
        tokens: (rows,) ids of each pass after the first.
        live: (rows,) whether the last token counts.
        own: (rows, heads, width) float32, the last token's vector as the prober reads it.
        pooled: the same, pooled over all tokens that count, as the prober was trained.
        finite: (rows, layers read) whether the last token's states are, if it counts.
        stopped: (rows,) where nothing counts any more because a caller said so.
        problem: why the text could not be followed.
        mask, positions, cache: those of the last pass.
        keys: the first layer's keys after it, where they can be told from others.
        asked: how often a caller asked whether to stop.
    """

    live: Tensor
    own: Tensor
    pooled: Tensor
    finite: Tensor

    def __init__(self, rows: int, length: int, prompt: int) -> None:
        self.rows, self.length, self.prompt = rows, length, prompt
        self.tokens: list[Tensor] = []
        self.stopped = torch.zeros(rows, dtype=torch.bool)
        self.problem: UserError | RunError | None = None
        self.mask: Tensor | None = None
        self.positions: Tensor | None = None
        self.cache: Any = None
        self.keys: weakref.ref[Tensor] | None = None
        self.asked = 0
        self._ended = torch.zeros(rows, dtype=torch.bool)
        self._count = torch.zeros(rows)

    @property
    def width(self) -> int:
        """Positions forwarded so far."""
        return self.length + len(self.tokens)

    def expect(self, cache: Any) -> None:
        """Take note of the keys and values that the next pass must come with."""
        keys = first_keys(cache)
        self.keys = None if keys is None else weakref.ref(keys)

    def counted(self, tokens: Tensor, eos: Tensor, pad: Tensor) -> Tensor:
        """(rows,) whether ``tokens`` (rows,) would be part of the rows' texts."""
        special = torch.cat([eos, pad]).to(tokens.device)
        over = self._ended.to(tokens.device) | self.stopped.to(tokens.device)
        return ~(torch.isin(tokens, special) | over)

    def add(self, tokens: Tensor, states: Tensor, needs: Needs, eos: Tensor, pad: Tensor) -> None:
        """Take one forwarded token of each row.

        Args:
            tokens: (rows,).
            states: (rows, layers read, d), as :class:`StateTap` stacks them.
            eos: ids that end a row.
            pad: ids that are no part of it.
        """
        self.live = self.counted(tokens, eos, pad).to(states.device)
        self._ended = self._ended.to(tokens.device) | torch.isin(tokens, eos.to(tokens.device))
        self._count = self._count.to(states.device) + self.live
        self.finite = states.isfinite().all(dim=-1) | ~self.live[:, None]
        own = states.float()
        # How far the pool moves towards this token: all the way, or by its share of the mean.
        share = (1 / self._count.clamp_min(1))[:, None, None].expand_as(own)
        if needs.pool == "mind":
            own = torch.cat([own[:, :-1].mean(dim=1), own[:, -1]], dim=-1)[:, None]
            share = torch.cat([torch.ones_like(share[:, :1]), share[:, :1]], dim=-1)
        elif needs.pool != "mean":
            share = torch.ones_like(own)
        before = self.pooled if self.tokens else torch.zeros_like(own)
        self.own = torch.where(self.live[:, None, None], own, before)
        self.pooled = torch.lerp(before, self.own, share)
        self.tokens.append(tokens)


class Follower:
    """Listens to a model's passes and keeps a :class:`Text` of the batch that is being written.

    Between :meth:`attach` and :meth:`detach` the model's hooks hold on to it.

    Attributes:
        text: of the newest batch; None before the first pass.
        on_token: called with the text after each token that was read.

    Args:
        keep_cache: hold on to keys and values, so that one more token can be forwarded.

    Raises:
        UserError: as :func:`check_model`.
    """

    def __init__(self, bank: ProbeBank, model: Any, tokenizer: Any, *, keep_cache: bool = False) -> None:
        check_model(bank, model)
        self.bank, self.model, self.needs = bank, model, bank.needs
        self.text: Text | None = None
        self.on_token: Callable[[Text], None] | None = None
        self.eos, self.pad = (_ids(model, tokenizer, name) for name in ("eos_token_id", "pad_token_id"))
        self._names = list(inspect.signature(model.forward).parameters)
        self._keep_cache = keep_cache
        self._tap = StateTap(model, self.needs)
        self._hooks = ExitStack()

    def attach(self) -> None:
        """Put the hooks on the model."""
        self._hooks.enter_context(self._tap)
        for handle in (
            self.model.register_forward_pre_hook(self._before, with_kwargs=True),
            self.model.register_forward_hook(self._after, with_kwargs=True),
        ):
            self._hooks.callback(handle.remove)

    def detach(self) -> None:
        """Take them off, and let keys and values go."""
        self._hooks.close()
        if self.text is not None:
            self.text.cache = None

    def score(self, vectors: Tensor) -> np.ndarray:
        """(n,) scores of vectors (n, heads, width), rounded as the training features were."""
        return self.bank.score(vectors.to(getattr(torch, self.bank.spec.dtype)).float())

    def refuse_broken(self, finite: Tensor, first: int) -> None:
        """RunError for the first state that is not finite.

        Args:
            finite: (tokens, rows, layers read).
            first: number of the first of these tokens, from 0.
        """
        for token, row, layer in (~finite).nonzero().tolist():
            raise RunError(
                f"the state of {named_layer(self.needs, layer)} is NaN or infinite at generated token "
                f"{first + token} of row {row}; try dtype=float32 or bfloat16"
            )

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self._names, args, strict=False)), **kwargs}

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decide whether this pass holds a prompt, a generated token of each row, or something else."""
        self._tap.reduce = None
        given = self._given(args, kwargs)
        ids, cache = given.get("input_ids"), given.get("past_key_values")
        inputs = given.get("inputs_embeds") if ids is None else ids
        if inputs is None:  # the model will say so itself
            return
        rows, length = inputs.shape[:2]
        past = 0 if cache is None else int(cache.get_seq_length())
        if past == 0:
            self.text = Text(rows, length, 0 if ids is None else length)
            if getattr(cache, "layers", None) and getattr(cache, "is_compileable", False):
                self.text.problem = UserError(_STATIC)
        elif self.text is None:
            self.text = Text(rows, 0, 0)
            self.text.problem = UserError(UNREADABLE)
        elif self.text.problem is None:
            keys = self.text.keys
            same = keys is None or keys() is first_keys(cache)
            if ids is not None and same and (rows, length, past) == (self.text.rows, 1, self.text.width):
                self._tap.reduce = _last_position
            else:
                self.text.problem = UserError(UNREADABLE)

    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        reads, self._tap.reduce = self._tap.reduce is not None, None
        text, given = self.text, self._given(args, kwargs)
        if text is None or text.problem is not None:
            return
        cache = getattr(output, "past_key_values", given.get("past_key_values"))
        if cache is None and not isinstance(output, tuple):
            text.problem = UserError(_NO_CACHE)
            return
        text.expect(cache)
        text.mask, text.positions = given.get("attention_mask"), given.get("position_ids")
        text.cache = cache if self._keep_cache else None
        if reads:
            states = self._tap.take()
            assert states is not None
            text.add(given["input_ids"][:, 0], states, self.needs, self.eos, self.pad)
            if self.on_token is not None:
                self.on_token(text)


def first_keys(cache: Any) -> Tensor | None:
    """The first layer's keys, where they stay the same tensor from one pass to the next.

    Beam search, cropping and the like put another one in its place, which is how they are noticed.
    """
    if cache is None or getattr(cache, "offloading", False):
        return None
    for layer in getattr(cache, "layers", ()):
        keys = getattr(layer, "keys", None)
        if isinstance(keys, Tensor) and not getattr(layer, "record_past", False):
            return keys
    return None


def _last_position(states: Tensor) -> Tensor:
    return states[:, -1].detach()


def _ids(model: Any, tokenizer: Any, name: str) -> Tensor:
    """The ids that model and tokenizer (may be None) have under ``name``."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None) or model.config, tokenizer):
        ids = getattr(owner, name, None)
        found.update(i for i in (ids if isinstance(ids, list) else [ids]) if i is not None)
    return torch.tensor(sorted(found), dtype=torch.long)
