"""A prober's scores while ``model.generate`` of transformers runs, and as a stopping criterion of it.

What is read, and when:

- ``generate`` forwards the prompt in one pass and then every generated token in a pass
  of its own. A token's states are read in its own pass, a prompt's never.
- The last generated token is sampled and not forwarded any more, so it is not read;
  :meth:`Scores.finish` makes up for that.
- A row of the batch that has ended goes on being fed until all have. End-of-sequence and
  padding tokens count for nothing, and neither does what follows an end of sequence.
  Which ids these are, model.generation_config says, and the tokenizer where one is given.
- A pass without earlier keys and values begins a new text: a second call starts afresh.
- Beam search, assisted decoding, chunked prefill, a cache filled beforehand, a static
  cache and ``use_cache=False`` are refused when a score is asked for. One case cannot be
  told from decoding by :class:`Scores`, only by the stopping criterion: a prompt prefilled
  in two chunks of which the second has one token, which then counts as generated.
- Heads of single tokens score each token, and the text so far as the span of its tokens.
  Heads that pool a span's tokens themselves need all of its states, which are not kept
  here: they are refused.

What is read of a text, and what cannot be, is said in :mod:`probers.bank.streaming`.
"""

from __future__ import annotations

import copy
import math
import weakref
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..engine.forward import Decoder
from ..types import RunError, UserError
from .ensemble import extend
from .watch import UNREADABLE, Follower, Text

if TYPE_CHECKING:
    from typing_extensions import Self

    from .bank import ProbeBank

#: Tokens whose vectors wait until the heads run on all of them at once. One at a time, the
#: heads' weights would be read for every token; all at the end, a long text's vectors would
#: fill the memory that reading on the fly saves.
_BLOCK = 32


class Scores(AbstractContextManager["Scores"]):
    """Scores of the tokens that a model writes inside a ``with`` block: :meth:`ProbeBank.watch`.

    They are those of the newest call of ``generate``, row by row of its batch, and can be
    read inside the block and after it. Higher is more likely wrong.
    """

    def __init__(
        self,
        bank: ProbeBank,
        model: Any,
        *,
        per: Literal["sequence", "token"] = "sequence",
        tokenizer: Any = None,
    ) -> None:
        if per not in ("sequence", "token"):
            raise UserError(f"per={per!r} is unknown: choose sequence or token")
        check_heads(bank)
        self._aggregate = bank.aggregate if per == "sequence" else None
        self._per = per
        self._follower = Follower(bank, model, tokenizer, keep_cache=True)
        self._follower.on_token = self._take
        self._attached = False
        self._of: Text | None = None
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # vectors, live and finite of a token
        self._scores: list[list[float]] = []

    def __enter__(self) -> Self:
        if self._attached:
            raise UserError("these scores are being gathered already: make others with bank.watch(model)")
        self._follower.attach()
        self._attached = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._follower.detach()
        self._attached = False

    @property
    def tokens(self) -> list[np.ndarray]:
        """For each row (n,) float64, a score for each of its generated tokens that was read.

        With ``per="sequence"`` it is the score of all tokens up to this one, pooled as the
        prober's training features were, or made of their scores as the prober's ``aggregate``
        says; with ``per="token"`` that of its own states.

        Raises:
            UserError: nothing was generated, or in a way that cannot be followed.
            RunError: NaN or infinite states; names layer and token.
        """
        self._text()
        return [np.array(row, dtype=np.float64) for row in self._scores]

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
        return self._follower.bank.probability(self.sequence)

    @torch.no_grad()
    def finish(self, sequences: Any) -> None:
        """Read each row's last token as well, by forwarding it; to be called inside the block.

        With it ``per="sequence"`` gives the scores of whole texts, those of what
        :meth:`CausalLM.generate` records. It costs one pass for one token per row, which goes
        on from a copy of the keys and values: also where the caller holds them, they stay as
        they are. A second call does nothing.

        Args:
            sequences: what ``generate`` returned: ids (batch, length), or its output object.

        Raises:
            UserError: outside the block, or other sequences than those just generated.
        """
        if not self._attached:
            raise UserError("scores.finish(sequences) forwards a token: call it inside the with block")
        text = self._text()
        ids: Tensor = getattr(sequences, "sequences", sequences)
        read = len(text.tokens)
        same = ids.dim() == 2 and len(ids) == text.rows and 0 <= ids.shape[1] - text.prompt - read <= 1
        if same and read:
            seen = torch.stack(text.tokens, dim=1).to(ids.device)
            same = torch.equal(ids[:, text.prompt : text.prompt + read], seen)
        if not same:
            raise UserError(
                "these sequences are not what the model has just generated: pass what generate returned, "
                f"unchanged ({read} generated tokens were read in each of {text.rows} rows)"
            )
        last = ids[:, text.prompt + read :]
        if last.shape[1] and bool(text.counted(last[:, 0], self._follower.eos, self._follower.pad).any()):
            self._forward(text, last)

    def _forward(self, text: Text, last: Tensor) -> None:
        """One more pass over ``last`` (rows, 1), as ``generate`` would have made it."""
        mask, positions = text.mask, text.positions
        if text.cache is None or (mask is not None and mask.dim() != 2):
            raise UserError(
                "the last token cannot be read: finish needs a loop whose passes return the cache and "
                "have an attention mask of 2 dimensions, or none"
            )
        decoder = Decoder(self._follower.model)
        last = last.to(decoder.device)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(text.rows, 1)], dim=1)
        if positions is not None:
            positions = positions[..., -1:] + 1
        elif mask is not None:
            positions = mask.sum(dim=1, keepdim=True) - 1
        else:
            positions = torch.full_like(last, text.width)
        cache = _copied(text.cache)
        text.expect(cache)
        decoder(last, mask, positions, cache=cache)
        text.cache = None

    def _text(self) -> Text:
        """The text that was watched, all its tokens scored."""
        text = self._follower.text
        if text is None:
            raise UserError("nothing was watched: call model.generate inside `with bank.watch(model)`")
        self._turn_to(text)
        self._flush(text)
        if text.problem is not None:
            raise text.problem
        return text

    def _take(self, text: Text) -> None:
        self._turn_to(text)
        vectors = text.pooled if self._per == "sequence" else text.own
        self._waiting.append((vectors, text.live, text.finite))
        if len(self._waiting) == _BLOCK:
            self._flush(text)

    def _turn_to(self, text: Text) -> None:
        """Forget what was gathered of another text."""
        if self._of is not text:
            self._of = text
            self._waiting.clear()
            self._scores = [[] for _ in range(text.rows)]

    def _flush(self, text: Text) -> None:
        """Score what waits; what is wrong with it becomes the text's problem."""
        if not self._waiting or text.problem is not None:
            return
        vectors, live, finite = (torch.stack(parts) for parts in zip(*self._waiting, strict=True))
        first = len(text.tokens) - len(self._waiting)
        self._waiting.clear()
        try:
            self._follower.refuse_broken(finite, first)
            scores = self._follower.score(vectors[live]).tolist()
        except RunError as error:
            text.problem = error
            return
        for (_, row), score in zip(live.nonzero().tolist(), scores, strict=True):
            so_far = self._scores[row]
            if self._aggregate is not None:
                score = extend(so_far[-1] if so_far else 0.0, len(so_far), score, self._aggregate)
            so_far.append(score)


def _copied(cache: Any) -> Any:
    """A cache that can be extended while ``cache`` stays as it is."""
    layers = getattr(cache, "layers", None)
    if layers and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        # These put new tensors in the place of the old ones, which can therefore be shared.
        twin = copy.copy(cache)
        twin.layers = [copy.copy(layer) for layer in layers]
        return twin
    return copy.deepcopy(cache)


class StopOnScore(StoppingCriteria):
    """Ends a row when the prober's score of it exceeds a threshold: :meth:`ProbeBank.stopping_criteria`.

    The hooks are on the model from the beginning, and go when the object is collected or
    :meth:`close` is called. In between it may serve any number of ``generate`` calls.
    """

    def __init__(
        self,
        bank: ProbeBank,
        model: Any,
        tokenizer: Any,
        threshold: float | None = None,
        *,
        min_tokens: int = 1,
    ) -> None:
        if min_tokens < 1:
            raise UserError(f"min_tokens={min_tokens} must be at least 1")
        check_heads(bank)
        self.min_tokens = min_tokens
        self.threshold = float(bank.threshold if threshold is None else threshold)
        if math.isnan(self.threshold):
            raise UserError(f"threshold={threshold} is no number")
        self._follower = Follower(bank, model, tokenizer)
        self._follower.attach()
        self._of: Text | None = None
        self._spans: list[tuple[float, int]] = []  # score and length of each row so far, of single tokens
        # The hooks know the follower only, so that this object is collected as soon as it is unused.
        self._finalizer = weakref.finalize(self, self._follower.detach)
        self._finalizer.atexit = False

    @property
    def fired(self) -> np.ndarray:
        """(batch,) bool, the rows that were ended in the newest call of ``generate``."""
        text = self._follower.text
        return np.zeros(0, dtype=bool) if text is None else text.stopped.numpy().copy()

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
        text = self._follower.text
        if text is None:
            raise UserError("this stopping criterion watches another model than the one that generates")
        if text.problem is not None:
            raise text.problem
        read = len(text.tokens)
        same = read == text.asked and tuple(input_ids.shape) == (text.rows, text.prompt + read + 1)
        if not same or (read and not torch.equal(input_ids[:, -2], text.tokens[-1].to(input_ids.device))):
            raise UserError(f"{UNREADABLE}; and use a stopping criterion with the model it was made for")
        text.asked += 1
        if read and bool(text.live.any()):
            self._follower.refuse_broken(text.finite[None], read - 1)
            if read >= self.min_tokens or self._follower.bank.aggregate is not None:
                scores = self._so_far(text, self._follower.score(text.pooled[text.live]))
                fires = (scores > self.threshold) & (read >= self.min_tokens)
                text.stopped[text.live.cpu()] = torch.from_numpy(fires)
        return text.stopped.to(input_ids.device)  # type: ignore[return-value]

    def _so_far(self, text: Text, scores: np.ndarray) -> np.ndarray:
        """Scores of the live rows' texts from those of their pools, or of their last tokens."""
        how = self._follower.bank.aggregate
        if how is None:
            return scores
        if self._of is not text:
            self._of, self._spans = text, [(0.0, 0)] * text.rows
        rows = text.live.nonzero()[:, 0].tolist()
        for row, score in zip(rows, scores.tolist(), strict=True):
            before, tokens = self._spans[row]
            self._spans[row] = extend(before, tokens, score, how), tokens + 1
        return np.array([self._spans[row][0] for row in rows])


def check_heads(bank: ProbeBank) -> None:
    """Refuse heads that cannot be followed token by token (UserError)."""
    if bank.spec.pool == "predicting":
        raise UserError(
            "this prober reads the state before a span and cannot follow a text token by token: record "
            'states with Needs(pool="predicting") and give bank.score those before the spans'
        )
    if bank.head.tokens:
        raise UserError(
            "this prober's heads pool all tokens of a span and cannot follow a text token by token: record "
            'its states with Needs(pool="tokens") and call bank.score_spans, or train heads of single tokens'
        )
