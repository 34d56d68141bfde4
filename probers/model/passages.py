"""Attention by passage, and what passages change: numbers of a text that is read after retrieved passages.

At position t of a text whose prompt shows P passages, head h of layer l spreads its weights over the
passages, the rest of the prompt and the text so far (whose first token is the prompt's last, as for
"lookback" in :mod:`.attention`). The site "passages" keeps four numbers of each head, all between 0 and 1 and
as many for any number of passages; with w_i the weight on passage i and W their sum:

    subject  = the sum of w_i over the passages about the stretch's subject, over W,
    pointed  = the largest w_i, over W,
    spread   = the entropy of w_i / W, over log P (0 with one passage),
    total    = W.

A vector has them in this order, each for all heads of all layers. A value that is copied from a passage about
another subject shows in the first of them alone: it stands in the prompt, so that overlap of words and
attention on the prompt as a whole do not tell it from a right one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data.texts import Text
from ..data.texts.shown import place_passages, subjects
from ..prompts import PromptTemplate
from ..types import TWICE, Feature, Generation, Needs, PassageReading, Passages, UserError
from .attention import HeadsTap
from .language_model import ScoreRequest
from .tokens import Prompt, encode_answer, read_offsets

log = logging.getLogger(__name__)


class Shown(NamedTuple):
    """Passages that a text of n tokens has in its prompt of p tokens.

    ``marks`` (P, p) bool are their tokens, ``subject`` (n, P) bool those about the subject of each token.
    """

    marks: np.ndarray
    subject: np.ndarray


def shown(passages: Passages | None, tokenizer: Any, prompt: Prompt, ids: Sequence[int]) -> Shown:
    """Locate the passages of a text, of which there may be none, among the tokens of its prompt.

    A token belongs to every passage or stretch with which it shares a character.
    """
    known = passages or Passages(())
    starts, ends = np.array(prompt.offsets, dtype=np.int64).reshape(-1, 2).T
    marks = [(starts < end) & (ends > start) for start, end in known.at]
    subject = np.ones((len(ids), len(known.at)), dtype=bool)
    offsets = read_offsets(tokenizer, ids, prompt.ids, prompt.source)[1] if known.subjects else ()
    for start, end, numbers in known.subjects:
        inside = [token for token, (first, last) in enumerate(offsets) if first < end and last > start]
        subject[inside] = np.isin(np.arange(len(known.at)), numbers)
    return Shown(np.array(marks, dtype=bool).reshape(len(known.at), len(starts)), subject)


class PassagesTap(HeadsTap):
    """Reader of every head's weights on the passages of a batch's texts; ``weights`` has them after a pass.

    Fewer passages than the most in the batch are filled up with some that have no tokens.
    """

    def __init__(self, model: Any, texts: Sequence[Shown]) -> None:
        super().__init__(model, "passages")
        sizes = [(*text.marks.shape, len(text.subject)) for text in texts]
        self._counts = torch.tensor([size[0] for size in sizes])
        most, width = max(1, *self._counts.tolist()), max(size[1] + size[2] for size in sizes)
        self._columns = torch.zeros(len(texts), width, most)
        self._subject = torch.zeros(len(texts), 1 + max(size[2] for size in sizes), most)
        for row, (text, (count, prompt, length)) in enumerate(zip(texts, sizes, strict=True)):
            # The prompt's last token counts as text.
            first = width - length - prompt
            marks = torch.from_numpy(text.marks[:, : prompt - 1].T)
            self._columns[row, first : width - length - 1, :count] = marks.float()
            # The position before the first token predicts it, and has its subject.
            places = np.concatenate([text.subject[:1], text.subject])
            self._subject[row, -len(places) :, :count] = torch.from_numpy(places).float()
        self.weights = torch.empty(0)

    def take_last(self, prompts: Tensor, written: Tensor) -> Tensor | None:
        self._queries = 0
        layers = []
        for tap in self._taps:
            weights = tap.weights()  # (batch, heads, q, k)
            batch, heads, q, k = weights.shape
            columns = self._columns[:, -k:].to(weights.device)
            read = weights.reshape(batch, heads * q, k) @ columns
            layers.append(read.view(batch, heads, q, -1).transpose(1, 2).to(self._columns.device))
        self.weights = torch.cat(layers, dim=2)
        subject = self._subject[:, -self.weights.shape[1] :]
        return numbers_of(self.weights, subject, self._counts)[:, :, None]

    def reading(self, row: int, length: int) -> PassageReading:
        """Return the weights of a row's last ``length`` tokens on its passages."""
        weights = self.weights[row, -length:, :, : self._counts[row]]
        return PassageReading(weights.numpy().copy())


def numbers_of(weights: Tensor, subject: Tensor, counts: Tensor) -> Tensor:
    """Compute the site's numbers (batch, n, 4 heads) from weights (batch, n, heads, P).

    ``subject`` (batch, n, P) is 1 at passages about the subject; ``counts`` (batch,) tells how many of the P
    are passages. All numbers are 0 without passages.
    """
    total = weights.sum(dim=-1)
    shares = weights / total.clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    about = (shares * subject[..., None, :]).sum(dim=-1)
    spread = torch.special.entr(shares).sum(dim=-1) / counts.clamp_min(2).log()[:, None, None]
    return torch.cat([about, shares.amax(dim=-1), spread, total], dim=-1)


def read_once(needs: Needs) -> Needs:
    """Return what one pass has to record for ``needs``: the states themselves in place of :data:`TWICE`."""
    features = (_of_one_pass(feature) for feature in needs.features)
    return replace(needs, features=tuple(dict.fromkeys(features)))


def compared(text: Generation, bare: Generation | None, needs: Needs) -> Generation:
    """Compare a text with the same without passages (None: it has none), as ``needs`` ask.

    Both were recorded with :func:`read_once`, ``bare`` after the prompt that shows no passages.
    """
    if bare is None and needs == text.needs:
        return text
    other = text if bare is None else bare
    states = {}
    for feature in needs.features:
        if (read := _of_one_pass(feature)) not in text.states:
            continue
        states[feature] = values = text.states[read].copy()
        layers = slice(len(feature.layers))  # what is beside the states stays
        if feature.site == "resid_diff":
            values[..., layers, :] -= other.states[read][..., layers, :]
        elif feature.site == "resid_bare":
            values[..., layers, :] = other.states[read][..., layers, :]
    gains = None if bare is None else text.logprobs - bare.logprobs
    use = replace(text.passages or PassageReading(), gains=gains)
    return replace(text, needs=needs, states=states, passages=use)


def _of_one_pass(feature: Feature) -> Feature:
    return replace(feature, site="resid_post") if feature.site in TWICE else feature


class Reader(Protocol):
    """A model that texts are read by, as :class:`.CausalLM` is."""

    tokenizer: Any
    context: int | None


def request(
    lm: Reader, one: Text, template: PromptTemplate, file: str, needs: Needs, limit: int | None = None
) -> ScoreRequest:
    """Make the request to read a text, its first ``limit`` tokens, after its prompt.

    Passages that do not fit into the context are left out, the last first, and a note names them. ``file``
    is the text's file, for messages.
    UserError where the chat template refuses the messages, no tokens of the model read as the answer, or
    passages beside messages are not in them as they stand.
    """
    name = f"of {file} {one.where}"
    shown = len(one.passages)
    while True:
        prompt = one.prompt_for(lm.tokenizer, file, template, most=shown)
        tokens = encode_answer(lm.tokenizer, prompt, one.answer, name)[:limit]
        if lm.context is None or not shown or one.messages:
            break
        length = len(lm.tokenizer(prompt, verbose=False)["input_ids"])
        if length + len(tokens) <= lm.context:
            break
        shown -= 1
    left_out = tuple(range(shown + 1, len(one.passages) + 1))
    if left_out:
        listed = ", ".join(map(str, left_out))
        log.warning("%s %s: passages %s left out, beyond the model's context", file, one.where, listed)
    ready = ScoreRequest(prompt, tokens, name, one.answer, left_out=left_out)
    if not needs.of_passages or not (one.passages_at or shown):
        return ready
    return replace(ready, passages=_passages(lm, one, template, file, prompt, shown))


def _passages(
    lm: Reader, one: Text, template: PromptTemplate, file: str, prompt: str, shown: int
) -> Passages:
    if one.passages_at:
        at, texts = one.passages_at, [prompt[start:end] for start, end in one.passages_at]
    else:
        texts = list(one.passages[:shown])
        try:
            at = place_passages(prompt, texts)
        except ValueError as error:
            raise UserError(f"{file} {one.where}: {error}: put it into the messages", "bad-line") from error
    if one.messages or one.passages_at:
        without = prompt
        for start, end in sorted(at, reverse=True):
            without = without[:start] + without[end:]
    else:
        without = one.prompt_for(lm.tokenizer, file, template, most=0)
    return Passages(at, subjects(one.question, one.answer, texts), without)
