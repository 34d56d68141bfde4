"""Trigger that reads an answer with its passages, and retrieves again where they do not support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from probers.data.texts.shown import place_passages, subjects
from probers.model.language_model import ScoreRequest
from probers.types import Decision, Generation, Passages

from ..protocol import UNANSWERED, State, verdict
from ..remote import RemoteLM
from .probing import ReadsApart

#: What follows an unsupported answer.
Then = Literal["drop", "query", "abstain"]


@dataclass
class Ungrounded(ReadsApart):
    """Trigger that fires where a sentence of the answer is probably not supported by the passages.

    The loop retrieves with the question first. Each answer is read twice more, with and without its passages.
    An answer that shows no passage is not judged.

    Attributes:
        bank: heads that read passages, or folder or hub id of a prober; null in commands is the prober of
            prober=.
        threshold: fires when the score of the worst sentence is above it; None takes the one that the bank
            chose on its validation texts.
        then: what follows if it fires: the next search leaves out the passage that the worst sentence leaned
            on ("drop"), may find the same passages ("query": choose a query= that differs), or there is none
            and the question stays unanswered ("abstain").
    """

    then: Then = "drop"

    reads_texts = reads_states = True
    prober = "grounding"

    def __post_init__(self) -> None:
        super().__post_init__()
        bank = self.load()
        if not bank.needs.of_passages:
            raise self.unfit("what an answer takes from its passages", f"{bank.spec.site} states alone")
        self.take(bank)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        from probers.prober.assessment import Assessor  # loads torch
        from probers.prober.scoring import assessed_each

        extremes = (-UNANSWERED if one.token_ids else UNANSWERED for one in generations)
        decisions = [verdict(score, self._threshold) for score in extremes]
        judged = [i for i, one in enumerate(generations) if one.token_ids and states[i].passages]
        if not judged:
            return decisions
        requests = [self._request(generations[i], states[i]) for i in judged]
        assess, lm = Assessor(self._bank, self._threshold), states[0].lm
        assert not isinstance(lm, RemoteLM)  # refused by check_readable: no server hands out attention
        for batch in assessed_each(lm, assess, requests):
            for number, response in batch.items():
                place = judged[number]
                if response is None or response.score is None:
                    continue
                worst = max(response.spans, key=lambda span: span.score)
                grounds = {(each.start, each.end): each for each in response.grounds or ()}
                ground = grounds.get((worst.start, worst.end))
                leaned = () if ground is None else (states[place].passages[ground.passage - 1].id,)
                decisions[place] = verdict(
                    response.score, self._threshold, left_out=leaned if self.then == "drop" else (),
                    abstain=self.then == "abstain" and response.score > self._threshold,
                    evidence={} if ground is None else {"source": ground.source, "passage": ground.passage},
                )  # fmt: skip
        for i in 2 * judged:
            states[i].spend(generations[i])
        return decisions

    def _request(self, one: Generation, state: State) -> ScoreRequest:
        question = state.question.question
        texts = [passage.text for passage in state.passages]
        bare = state.prompt.question(question, partial=state.partial)
        shown = Passages(place_passages(one.prompt, texts), subjects(question, one.text, texts), bare)
        return ScoreRequest(one.prompt, one.token_ids, state.question.id, passages=shown)
