"""What trained heads say of every text, and of its tokens where they read one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probers.ensemble import Aggregate, aggregate
from probers.heads import CORRECT, WRONG, ProbeHead
from probers.types import RunError

from .data import Examples
from .states import CHUNK, Padded, States, TokenStates


@dataclass(frozen=True, slots=True)
class Margins:
    """Logits of "wrong" minus "correct" of several heads.

    Attributes:
        values: (n, heads), a row per text, or per token where ``spans`` says which are a text's.
        spans: (texts, 2) first row and the one after the last; None where a row is a text.
        how: from tokens to a text.
    """

    values: np.ndarray
    spans: np.ndarray | None
    how: Aggregate | None

    def of_texts(self, scores: np.ndarray) -> np.ndarray:
        """(texts,) scores from those of the rows, (n,)."""
        if self.spans is None or self.how is None:
            return scores
        return aggregate(scores, self.spans, self.how)

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """(n,) of each row what (texts,) says of its text."""
        return values if self.spans is None else np.repeat(values, np.diff(self.spans).ravel())


def score_everything(
    head: ProbeHead, columns: Sequence[int], states: States, examples: Examples, how: Aggregate | None
) -> Margins:
    """The margins of all heads on all texts, a chunk of states at a time.

    Args:
        head: trained heads.
        columns: (heads,) which column of the states each reads.
        states: (rows of the store, columns, d).
        examples: of the store.
        how: from tokens to a text, for heads of single tokens; else None.

    Raises:
        RunError: a state that is not finite; names the text.
    """
    spans = None
    texts = np.arange(len(examples.table))
    source: States | TokenStates = states
    order, of = torch.from_numpy(texts), texts
    if examples.members is not None and head.tokens:
        source = TokenStates(states, examples.members)
    elif examples.members is not None:
        sizes = np.array([len(rows) for rows in examples.members])
        ends = np.cumsum(sizes)
        spans = np.stack([ends - sizes, ends], axis=1)
        order, of = torch.from_numpy(np.concatenate(examples.members)), np.repeat(texts, sizes)
    index = list(columns)
    found = []
    with torch.inference_mode():
        for part in order.split(CHUNK):
            x = source[part]
            logits = (
                head(x.states[:, :, index].float(), x.mask)
                if isinstance(x, Padded)
                else head(x[:, index].float())
            ).double()
            found.append(logits[..., WRONG] - logits[..., CORRECT])
    values = torch.cat(found).numpy()
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = examples.table["id"].iloc[of[bad[0]]]
        raise RunError(f"the states of {name!r} are not finite: the store is damaged there, make it again")
    return Margins(values, spans, None if spans is None else how)
