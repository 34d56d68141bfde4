"""Scores while ``model.generate`` of transformers runs, and a stopping criterion that uses them.

:mod:`.loops` lists the supported loops. Heads of ``pool=predicting`` score the state that
writes the next token: how likely an entity beginning with it would be wrong. They tell nothing about other
tokens, nor whether an entity begins there. The start of an entity is certain once its first word is whole;
only later words tell where it ends, and whether an apparent entity begins elsewhere.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria

from ..model.tokens import TextStream, decode, token_offsets
from ..types import UserError, count
from ..words import Recognise, Recogniser, WrittenEntity, with_scores, written_entities
from .assessment import Assessor, GrowingSpans, whole_words
from .loops import GenerationWatcher, Per, WatchedBatch
from .response import ScoredSpan
from .token_scores import Scorer


class Scores(AbstractContextManager["Scores"]):
    """Scores of the tokens that a model writes inside a ``with`` block: :meth:`.Prober.watch`.

    They belong to the newest call of ``generate``, row by row of its batch, and can be read inside the block
    and after it. Higher is more likely wrong.
    """

    def __init__(self, bank: Scorer, model: Any, *, per: Per = "sequence", tokenizer: Any = None) -> None:
        if per not in ("sequence", "token"):
            raise UserError(f"per={per!r} is unknown: choose sequence or token", code="unknown-choice")
        self._watcher = GenerationWatcher(bank, model, tokenizer, per=per, keep_cache=True)
        self._attached = False

    def __repr__(self) -> str:
        if (batch := self._watcher.batch) is None:
            return "Scores(nothing generated)"
        return f"Scores({count(batch.rows, 'text')}, {count(len(batch.tokens), 'token')} read)"

    def __enter__(self) -> Scores:
        if self._attached:
            raise UserError("these scores are in use: make others with bank.watch(model)", code="busy")
        self._watcher.__enter__()
        self._attached = True
        return self

    def __exit__(self, *error: object) -> None:
        self._watcher.close()
        self._attached = False

    @property
    def tokens(self) -> list[np.ndarray]:
        """Scores of each row (n,) float64, one for each generated token that was read.

        With ``per="sequence"`` a score covers all tokens up to its own, pooled as in the prober's training,
        or joined by the prober's ``aggregate``; with ``per="token"`` its own states. Heads of
        ``pool=predicting`` give (n + 1,) scores, from before the first token to before the next one. Each
        tells how likely an entity that begins there is wrong (``bank.probability`` of it), and nothing if
        none begins: see :attr:`entities`. UserError if nothing was generated, or by an unsupported loop;
        RunError for NaN or infinite states.
        """
        return [np.array(row, dtype=np.float64) for row in self._batch().scores()]

    @property
    def sequence(self) -> np.ndarray:
        """(batch,) float64, the last score of each row; UserError also where no token of a row was read."""
        tokens = self.tokens
        if (row := next((i for i, scores in enumerate(tokens) if not len(scores)), None)) is not None:
            raise UserError(f"row {row} has no score yet: call scores.finish(sequences)", code="empty")
        return np.array([scores[-1] for scores in tokens], dtype=np.float64)

    @property
    def probability(self) -> np.ndarray:
        """(batch,) P(wrong) of :attr:`sequence`, calibrated for whole texts, not for single tokens."""
        return self._watcher.bank.probability(self.sequence)

    @property
    def entities(self) -> list[list[WrittenEntity]]:
        """Entities of each row's text so far, each with the score of the state before it.

        They are found by the recogniser that made the prober's labels, which leaves out those that begin a
        sentence. The last word, and anything a further word would change, appear once more was read.
        UserError also for heads that do not read the state before an entity, and without a tokenizer.
        """
        batch, (tokenizer, recognise) = self._batch(), _finding(self._watcher)
        rows = []
        for row, scores in enumerate(batch.scores()):
            prompt = batch.prompt[row].tolist()
            text, offsets = token_offsets(tokenizer, batch.written(row), prompt)
            entities = written_entities(text, recognise, prompt=decode(tokenizer, prompt))
            rows.append(with_scores(entities, offsets, scores))
        return rows

    @torch.no_grad()
    def finish(self, sequences: Any) -> None:
        """Forward and read each row's last token as well; call it inside the block.

        It takes the result of ``generate``: ids (batch, length), or its output object; UserError for others,
        and outside the block. ``per="sequence"`` then gives the scores of whole texts, equal to those of
        :meth:`.CausalLM.generate`'s records. It costs one pass of one token per row on a copy of the keys and
        values. A second call does nothing.
        """
        if not self._attached:
            raise UserError("call scores.finish(sequences) inside the with block", code="conflict")
        batch = self._batch()
        batch.scores()
        ids: Tensor = getattr(sequences, "sequences", sequences)
        columns = batch.prompt.shape[1]
        end = columns + len(batch.tokens)
        same = ids.dim() == 2 and len(ids) == batch.rows and 0 <= ids.shape[1] - end <= 1
        if same and batch.tokens:
            same = torch.equal(ids[:, columns:end], torch.stack(batch.tokens, dim=1).to(ids.device))
        if not same:
            raise UserError("finish needs the sequences that generate returned, unchanged", "mismatch")
        last = ids[:, end:]
        if last.shape[1] and bool(batch.counted(last[:, 0]).any()):
            batch.forward(self._watcher.model, last, self._watcher.cache)
            self._watcher.cache = None

    def _batch(self) -> WatchedBatch:
        if self._watcher.batch is None:
            raise UserError("nothing was generated inside `with bank.watch(model)`", code="empty")
        return self._watcher.batch


class StopOnScore(StoppingCriteria, AbstractContextManager["StopOnScore"]):
    """Stopping criterion that ends a row above a threshold: :meth:`.Prober.stopping`.

    With ``assess`` a row ends at the first of its units above the threshold.
    """

    def __init__(
        self, bank: Scorer, model: Any, tokenizer: Any, threshold: float | None = None, *,
        min_tokens: int = 1, assess: Assessor | None = None,
    ) -> None:  # fmt: skip
        if min_tokens < 1:
            raise UserError(f"min_tokens={min_tokens} must be at least 1")
        self.min_tokens = min_tokens
        self.threshold = float(bank.threshold if threshold is None else threshold)
        if math.isnan(self.threshold):
            raise UserError(f"threshold={threshold} is not a number")
        per: Per = "sequence" if assess is None else "token"
        self._watcher = GenerationWatcher(bank, model, tokenizer, per=per)
        self._new = self._reader(assess)
        self._texts: list[GrowingText | JudgedText] = []
        self._watcher.__enter__()
        # The hooks know only the watcher, so that this object is collected as soon as it is unused.
        self._finalizer = weakref.finalize(self, self._watcher.close)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        return f"StopOnScore(threshold={self.threshold:.3g}, min_tokens={self.min_tokens})"

    @property
    def fired(self) -> np.ndarray:
        """(batch,) bool, true for rows ended in the newest call of ``generate``."""
        batch = self._watcher.batch
        return np.zeros(0, dtype=bool) if batch is None else batch.stopped.numpy().copy()

    @property
    def entities(self) -> list[WrittenEntity | None]:
        """The entity that ended each row of the newest call, or None; with heads of ``pool=predicting``.

        Keep ``sequences[row, : prompt + entity.tokens[0]]`` of the result of ``generate``, or the text up to
        ``entity.entity.start`` if a token holds the end of one word and the beginning of the entity.
        """
        return [text.hit for text in self._texts if isinstance(text, GrowingText)]

    @property
    def spans(self) -> list[ScoredSpan | None]:
        """The span that ended each row of the newest call, or None; with ``unit``.

        Its characters belong to the row's text without the prompt: keep those before ``span.start``.
        """
        return [text.hit for text in self._texts if isinstance(text, JudgedText)]

    def _reader(self, assess: Assessor | None) -> Callable[[list[int]], GrowingText | JudgedText] | None:
        """Make the reader of a row's text from its prompt; None if rows are stopped by their score so far."""
        if assess is not None:
            if (tokenizer := self._watcher.tokenizer) is None:
                raise UserError("finding spans needs the model's tokenizer: pass tokenizer=", "missing-value")
            return lambda ids: JudgedText(tokenizer, ids, assess)
        if self._watcher.bank.spec.pool != "predicting":
            return None
        finding = _finding(self._watcher)
        return lambda ids: GrowingText(*finding, ids)

    def close(self) -> None:
        """Remove the hooks from the model; the criterion cannot be used afterwards."""
        self._finalizer()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """Decide which rows to stop, (batch,), by the tokens before the newest, which is not forwarded yet.

        UserError for an unsupported call or another model, RunError for states that are not finite.
        """
        if not self._finalizer.alive:
            raise UserError("this criterion is closed: call prober.stopping again", code="conflict")
        if (batch := self._watcher.batch) is None:
            raise UserError("this criterion watches another model than the one that runs", code="mismatch")
        if batch.problem is not None:
            raise batch.problem
        batch.ask(input_ids)
        scores = batch.scores()
        enough = len(batch.tokens) >= self.min_tokens
        if self._new is not None:
            last = input_ids[:, -1]
            if not batch.tokens or not self._texts:
                self._texts = [self._new(ids) for ids in batch.prompt.tolist()]
            ends, counts = torch.isin(last, batch.eos.to(last.device)).tolist(), batch.counted(last).tolist()
            for row, (text, token) in enumerate(zip(self._texts, last.tolist(), strict=True)):
                if counts[row]:
                    text.push(token)
                if enough and text.hit is None and (counts[row] or ends[row]):
                    text.read(self.threshold, scores[row], over=ends[row])
            batch.stopped |= torch.tensor([text.hit is not None for text in self._texts])
        elif enough:
            batch.stop_above(self.threshold)
        return batch.stopped.to(input_ids.device)  # type: ignore[return-value]


def _finding(watcher: GenerationWatcher) -> tuple[Any, Recogniser]:
    """Return tokenizer and recogniser to find entities (UserError: heads without the state before one)."""
    spec = watcher.bank.spec
    if spec.pool != "predicting":
        why = f"pool={spec.pool} of this prober gives no scores of entities before they are written"
        remedy = "train one on a store of 'probers-datagen --source wiki pool=predicting'"
        raise UserError(f"{why}: {remedy}", "unsupported")
    if watcher.tokenizer is None:
        raise UserError("finding entities needs the model's tokenizer: pass tokenizer=", "missing-value")
    return watcher.tokenizer, Recogniser(watcher.bank.recogniser or "rules", quiet=True)


class GrowingText:
    """A row's text, searched for the first entity with too high a score after every whole word."""

    def __init__(self, tokenizer: Any, recognise: Recognise, prompt: Sequence[int]) -> None:
        self._stream = TextStream(tokenizer, prompt)
        self._prompt, self._recognise = decode(tokenizer, prompt), recognise
        self._text, self.push = "", self._stream.push
        self.hit: WrittenEntity | None = None

    def read(self, threshold: float, scores: Sequence[float], *, over: bool) -> None:
        """Find the first begun entity with a score above a threshold; ``over``: the last word is whole."""
        text = self._stream.visible if over else whole_words(self._stream.visible)
        if text != self._text:
            self._text = text
            entities = written_entities(text, self._recognise, prompt=self._prompt)
            begun = with_scores(entities, self._stream.offsets(), scores)
            self.hit = next((each for each in begun if each.score > threshold), None)


class JudgedText:
    """A row's text, with each unit judged as soon as its end is certain."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], assess: Assessor) -> None:
        self._stream = TextStream(tokenizer, prompt)
        self._spans = GrowingSpans(assess, decode(tokenizer, prompt))
        self.push = self._stream.push

    @property
    def hit(self) -> ScoredSpan | None:
        return self._spans.high

    def read(self, threshold: float, scores: Sequence[float], *, over: bool) -> None:
        """Find the first unit with a score above the assessor's threshold."""
        if offsets := self._stream.offsets()[: len(scores)]:
            text = self._stream.visible[: offsets[-1][1]]
            self._spans.read(text, offsets, scores[: len(offsets)], over=over)
