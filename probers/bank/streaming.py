"""A prober's scores while ``model.generate`` of transformers runs, and as a stopping criterion of it.

What is read of a text, and what cannot be, is said in :mod:`probers.bank.watch`.
"""

from __future__ import annotations

import math
import weakref
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria

from ..entities import Recogniser, WrittenEntity
from ..types import UserError
from .entity_watch import FirstEntities, read_entities
from .watch import GenerationWatcher, Per, Prober, WatchedBatch

if TYPE_CHECKING:
    from typing_extensions import Self


class Scores(AbstractContextManager["Scores"]):
    """Scores of the tokens that a model writes inside a ``with`` block: :meth:`.ProbeBank.watch`.

    They are those of the newest call of ``generate``, row by row of its batch, and can be
    read inside the block and after it. Higher is more likely wrong.
    """

    def __init__(self, bank: Prober, model: Any, *, per: Per = "sequence", tokenizer: Any = None) -> None:
        if per not in ("sequence", "token"):
            raise UserError(f"per={per!r} is unknown: choose sequence or token")
        self._watcher = GenerationWatcher(bank, model, tokenizer, per=per, keep_cache=True)
        self._attached = False

    def __enter__(self) -> Self:
        if self._attached:
            raise UserError("these scores are being gathered already: make others with bank.watch(model)")
        self._watcher.__enter__()
        self._attached = True
        return self

    def __exit__(self, *error: object) -> None:
        self._watcher.close()
        self._attached = False

    @property
    def tokens(self) -> list[np.ndarray]:
        """For each row (n,) float64, a score for each of its generated tokens that was read.

        With ``per="sequence"`` it is the score of all tokens up to this one, pooled as the
        prober's training features were, or made of their scores as the prober's ``aggregate``
        says; with ``per="token"`` that of its own states. Heads of ``pool=predicting`` score the state
        before a token: (n + 1,) then, the first before anything is written and the last before the
        token to come. Each says how likely an entity that begins there is wrong
        (``bank.probability`` of it), and nothing where none does: :attr:`entities`.

        Raises:
            UserError: nothing was generated, or in a way that cannot be followed.
            RunError: NaN or infinite states; names layer and token.
        """
        return [np.array(row, dtype=np.float64) for row in self._batch().scores()]

    @property
    def sequence(self) -> np.ndarray:
        """(batch,) float64, the last score of each row.

        Raises:
            UserError: as :attr:`tokens`, or no token of a row was read.
        """
        tokens = self.tokens
        empty = [row for row, scores in enumerate(tokens) if not len(scores)]
        if empty:
            raise UserError(
                f"row {empty[0]} has no score because none of its tokens was read: "
                "the last one of a text is read by scores.finish(sequences) only"
            )
        return np.array([scores[-1] for scores in tokens], dtype=np.float64)

    @property
    def probability(self) -> np.ndarray:
        """(batch,) P(wrong) of :attr:`sequence`, calibrated for whole texts, not for single tokens."""
        return self._watcher.bank.probability(self.sequence)

    @property
    def entities(self) -> list[list[WrittenEntity]]:
        """Of each row the entities of what was read, each with the score of the state before it.

        They are found by the recogniser that the prober's labels were made with, in the text so far: its
        last word, and what a further word would change, show when more was read. Entities that
        begin a sentence are left out, as they are of the labels.

        Raises:
            UserError: as :attr:`tokens`; heads that do not read the state before an entity; no tokenizer.
        """
        batch, tokenizer = self._batch(), _tokenizer(self._watcher)
        recognise = Recogniser(self._watcher.bank.recogniser or "rules", quiet=True)
        return [
            read_entities(tokenizer, batch.prompt[row].tolist(), batch.written(row), scores, recognise)
            for row, scores in enumerate(batch.scores())
        ]

    @torch.no_grad()
    def finish(self, sequences: Any) -> None:
        """Read each row's last token as well, by forwarding it; to be called inside the block.

        With it ``per="sequence"`` gives the scores of whole texts, those of what
        :meth:`.CausalLM.generate` records. It costs one pass for one token per row, which goes
        on from a copy of the keys and values: also where the caller holds them, they stay as
        they are. A second call does nothing.

        Args:
            sequences: what ``generate`` returned: ids (batch, length), or its output object.

        Raises:
            UserError: outside the block, or other sequences than those just generated.
        """
        if not self._attached:
            raise UserError("scores.finish(sequences) forwards a token: call it inside the with block")
        batch = self._batch()
        batch.scores()
        ids: Tensor = getattr(sequences, "sequences", sequences)
        read = len(batch.tokens)
        columns = batch.prompt.shape[1]
        same = ids.dim() == 2 and len(ids) == batch.rows and 0 <= ids.shape[1] - columns - read <= 1
        if same and read:
            seen = torch.stack(batch.tokens, dim=1).to(ids.device)
            same = torch.equal(ids[:, columns : columns + read], seen)
        if not same:
            raise UserError(
                "these sequences are not what the model has just generated: pass what generate returned, "
                f"unchanged ({read} generated tokens were read in each of {batch.rows} rows)"
            )
        last = ids[:, columns + read :]
        if last.shape[1] and bool(batch.counted(last[:, 0]).any()):
            batch.forward(self._watcher.model, last, self._watcher.cache)
            self._watcher.cache = None

    def _batch(self) -> WatchedBatch:
        if self._watcher.batch is None:
            raise UserError("nothing was watched: call model.generate inside `with bank.watch(model)`")
        return self._watcher.batch


class StopOnScore(StoppingCriteria):
    """Ends a row when the prober's score of it exceeds a threshold: :meth:`.ProbeBank.stopping_criteria`.

    The hooks are on the model from the beginning, and go when the object is collected or
    :meth:`close` is called. In between it may serve any number of ``generate`` calls.

    With heads of ``pool=predicting`` a row ends as soon as an entity has begun whose score was above
    the threshold: the score was there before the entity, but that one begins shows with its first word.
    What is to be kept ends before it, see :attr:`entities`.
    """

    def __init__(
        self,
        bank: Prober,
        model: Any,
        tokenizer: Any,
        threshold: float | None = None,
        *,
        min_tokens: int = 1,
    ) -> None:
        if min_tokens < 1:
            raise UserError(f"min_tokens={min_tokens} must be at least 1")
        self.min_tokens = min_tokens
        self.threshold = float(bank.threshold if threshold is None else threshold)
        if math.isnan(self.threshold):
            raise UserError(f"threshold={threshold} is no number")
        self._watcher = GenerationWatcher(bank, model, tokenizer)
        self._recognise: Recogniser | None = None
        if bank.spec.pool == "predicting":
            _tokenizer(self._watcher)
            self._recognise = Recogniser(bank.recogniser or "rules", quiet=True)
        self._first: FirstEntities | None = None
        self._watcher.__enter__()
        # The hooks know the watcher only, so that this object is collected as soon as it is unused.
        self._finalizer = weakref.finalize(self, self._watcher.close)
        self._finalizer.atexit = False

    @property
    def fired(self) -> np.ndarray:
        """(batch,) bool, the rows that were ended in the newest call of ``generate``."""
        batch = self._watcher.batch
        return np.zeros(0, dtype=bool) if batch is None else batch.stopped.numpy().copy()

    @property
    def entities(self) -> list[WrittenEntity | None]:
        """Of each row of the newest call the entity that ended it, None where none did; with heads of
        ``pool=predicting``.

        Keep ``sequences[row, : prompt + entity.tokens[0]]`` of what ``generate`` returned, or the text up to
        ``entity.entity.start`` where a token holds the end of one word and the beginning of the entity.
        """
        return [] if self._first is None else list(self._first.found)

    def close(self) -> None:
        """Take the hooks off the model; the criterion is of no use any more."""
        self._finalizer()

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """(batch,) True where to stop; ``generate`` asks after each token it has sampled.

        That token was not forwarded yet: the decision rests on the ones before it.

        Raises:
            UserError: a call that cannot be followed, or of another model than the one watched.
            RunError: NaN or infinite states; names layer and token.
        """
        if not self._finalizer.alive:
            raise UserError("this stopping criterion was closed: make another with bank.stopping_criteria")
        batch = self._watcher.batch
        if batch is None:
            raise UserError("this stopping criterion watches another model than the one that generates")
        if batch.problem is not None:
            raise batch.problem
        batch.ask(input_ids)
        scores = batch.scores()
        enough = len(batch.tokens) >= self.min_tokens
        if self._recognise is not None:
            if not batch.tokens or self._first is None:
                prompts = batch.prompt.tolist()
                self._first = FirstEntities(self._watcher.tokenizer, prompts, batch.eos, self._recognise)
            last = input_ids[:, -1]
            fired = self._first.push(last, batch.counted(last), scores, self.threshold, ask=enough)
            batch.stopped |= torch.tensor(fired)
        elif enough:
            batch.stop_above(self.threshold)
        return batch.stopped.to(input_ids.device)  # type: ignore[return-value]


def _tokenizer(watcher: GenerationWatcher) -> Any:
    """The tokenizer to find entities by (UserError: none, or heads that read no state before an entity)."""
    if watcher.bank.spec.pool != "predicting":
        raise UserError(
            f"this prober reads {watcher.bank.spec.pool} states and says nothing of entities before they are "
            "written: train one on a store of 'probers-datagen --source wiki pool=predicting'"
        )
    if watcher.tokenizer is None:
        raise UserError("entities are found in the text: pass the model's tokenizer, tokenizer=..")
    return watcher.tokenizer
