"""Retrieve where a trained head hears a token being made up (RaDIO, Zhu et al., AAAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probers.bank.calibration import sigmoid
from probers.types import Decision, Generation, Needs, UserError
from probers.uncertainty import words

from .base import State, Trigger, load_bank, states_for, verdict

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank
    from probers.prompts import PromptTemplate
    from probers.store.spec import ModelSpec

_GIVE = "pass its folder as prober= (probers-compare: token_prober=)"


@dataclass
class Radio(Trigger):
    """Fires at the first token that is likelier made up than the text's tokens are on average.

    With s_i = P(hallucination at token i), it fires where s_i > mean(s) and s_i > 0.5. (The
    paper prints "below 0.5" of an output that must then be P(faithful).) s_i is the softmax
    of the bank's head, averaged over layers where there are several; the bank's calibration
    is of whole spans and stays out of it.

    The text before the word that fired is kept, and the model goes on from there with the
    passages it fetched. The word it writes right there is taken as it is, as otherwise the
    same place could fire for ever.

    Attributes:
        bank: trained heads of single tokens, or the path of a prober folder.
        threshold: of s_i.
        above_mean: s_i must exceed the mean over the generated tokens as well.
    """

    bank: ProbeBank | str | None = None
    threshold: float = 0.5
    above_mean: bool = True
    _bank: ProbeBank = field(init=False, repr=False)

    prober = "tokens"

    def __post_init__(self) -> None:
        if self.bank is None:
            raise UserError(
                "trigger=radio needs a prober of single tokens: make one with 'probers-datagen --source wiki "
                f"pool=tokens' and 'probers-train head=radio', and {_GIVE}"
            )
        bank = load_bank(self.bank)
        if bank.spec.pool != "tokens" or bank.head.tokens:
            read = "whole texts of tokens" if bank.spec.pool == "tokens" else f"{bank.spec.pool} states"
            named = f" {self.bank}" if isinstance(self.bank, str) else ""
            raise UserError(
                f"trigger=radio scores single tokens, and the prober{named} reads {read}: train one on a "
                f"store of 'probers-datagen --source wiki pool=tokens', and {_GIVE}"
            )
        self._bank = bank

    @property
    def needs(self) -> Needs:
        return self._bank.needs

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        """Refuse another model than the bank's features were read from; it serves any prompt."""
        self._bank.check_model(model)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """The decision on every generation; the heads run once for all of their tokens."""
        found = [states_for(self._bank, g, self) for g in generations if g.token_ids]
        chances = sigmoid(self._bank.margins(np.concatenate(found))).mean(axis=1) if found else np.zeros(0)
        ends = np.cumsum([len(g.token_ids) for g in generations])
        parts = np.split(chances, ends[:-1])
        return [self._decide(*each) for each in zip(parts, generations, states, strict=True)]

    def _decide(self, chances: np.ndarray, generation: Generation, state: State) -> Decision:
        """The decision by s (n,)."""
        found = words(generation.text, generation.offsets)
        # A token of white space only belongs to no word, and there is nothing to look up.
        home = {token: word.start for word in reversed(found) for token in word.tokens}
        taken = found[0].end if state.fresh and found else 0
        may_fire = np.array([home.get(i, -1) >= taken for i in range(len(chances))], dtype=bool)
        if self.above_mean and len(chances):
            may_fire &= chances > chances.mean()
        # What may not fire has score 0.
        score = float(np.where(may_fire, chances, 0.0).max(initial=0.0))
        shown = tuple(map(float, chances))
        hits = np.flatnonzero(may_fire & (chances > self.threshold))
        if not hits.size:
            return verdict(score, self.threshold, token_scores=shown)
        first = int(hits[0])
        return verdict(score, self.threshold, position=home[first], tokens=(first,), token_scores=shown)
