"""What a trigger is: looks at what the model just wrote, says whether to retrieve, and how sure.

A trigger is any object with ``needs`` and ``__call__``. Optional attributes:

- ``before``: retrieve with the question before anything is generated.
- ``judges_answer``: decide only once the answer is complete, see :class:`Oracle`.
- ``attends_alone``: it asks for ``state.lm.attention_alone``, see :class:`Rind`.

Optional methods:

- ``decide(generations, states)`` gets a whole batch at once.
- ``decide_before(questions)``: a verdict for each question before anything is generated;
  those that fire retrieve with the question, see :class:`Adaptive`.
- ``look_ahead(question)``: how much of a text it looks at before it fires, where that is
  known beforehand; the loop then has no more of it written than that.
- ``check(model, prompt)`` may refuse a model or prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

import numpy as np

from probers.engine.stopping import SentenceEnd
from probers.prompts import PromptTemplate
from probers.text import split_sentences
from probers.types import Decision, Generation, Needs, Passage, Question, RunError, UserError

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank
    from probers.engine.model import CausalLM
    from probers.store.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class State:
    """Where a question stands when a trigger or a query formulation is asked about it.

    Attributes:
        lm: the model that generates, for methods that need another pass of it.
        prompt: the template behind ``generation.prompt``.
        question_span: [start, end) of the question's own text in ``generation.prompt``.
        partial: accepted answer text, with which ``generation.prompt`` ends.
        passages: what the prompt shows, best first.
        retrievals: searches made for this question so far.
        fresh: the passages were fetched for the very place where this generation
            begins, by a trigger that fired there.
        answer: the final answer if the generation is accepted; only for triggers
            with ``judges_answer``.
        spend: adds a generation that the trigger asked the model for to the question's counters.
    """

    question: Question
    lm: CausalLM
    prompt: PromptTemplate
    question_span: tuple[int, int]
    partial: str = ""
    passages: tuple[Passage, ...] = ()
    retrievals: int = 0
    fresh: bool = False
    answer: str | None = None
    spend: Callable[[Generation], None] = lambda generation: None


@dataclass(frozen=True, slots=True)
class LookAhead:
    """How much of a text a trigger looks at before it fires.

    Attributes:
        tokens: it fires as soon as there are more tokens than this; None for no such rule.
        sentences: it fires as soon as there are more sentences than this.
    """

    tokens: int | None = None
    sentences: int | None = None

    def limit(self, budget: int, stop: Sequence[str]) -> int:
        """Tokens to write at most, of ``budget`` that may be.

        One more than are looked at shows that the text goes on. A stop string that begins
        right there takes its tokens back, so its length comes on top: a text that is cut
        short must not have been about to end.
        """
        return budget if self.tokens is None else min(budget, self.tokens + 1 + _reach(stop))

    def over(self, stop: Sequence[str]) -> Callable[[str], bool] | None:
        """Whether a growing text holds more sentences than are looked at; None without such a rule."""
        if self.sentences is None:
            return None
        end, reach = SentenceEnd(self.sentences), _reach(stop)
        return lambda text: end.find(text[: max(0, len(text) - reach)]) is not None


def _reach(stop: Sequence[str]) -> int:
    """Characters at the end of a text that may yet prove to belong to a stop string."""
    return max((len(each) for each in stop), default=1) - 1


class Trigger(Protocol):
    """Decides on one generation; ``needs`` is all that is recorded for it."""

    @property
    def needs(self) -> Needs: ...

    def __call__(self, generation: Generation, state: State) -> Decision: ...


def decide(trigger: Trigger, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
    """The decision on every generation, in one call where the trigger can.

    Raises:
        RunError: a score is NaN: a broken score is never taken for "certain".
    """
    batched = getattr(trigger, "decide", None)
    if batched is not None:
        decisions = list(batched(generations, states))
    else:
        decisions = [trigger(g, s) for g, s in zip(generations, states, strict=True)]
    _refuse_nan(trigger, decisions, [state.question for state in states])
    return decisions


def _refuse_nan(trigger: Trigger, decisions: Sequence[Decision], questions: Sequence[Question]) -> None:
    for decision, question in zip(decisions, questions, strict=True):
        if math.isnan(decision.score) or any(map(math.isnan, decision.token_scores)):
            raise RunError(
                f"trigger={name_of(trigger)} gave no number (NaN) on question {question.id!r}: "
                "the states or logits of the model are broken there"
            )


def check(trigger: Trigger, model: ModelSpec, prompt: PromptTemplate) -> None:
    """Let a trigger refuse a model or prompt it was not made for, before anything runs."""
    own = getattr(trigger, "check", None)
    if own is not None:
        own(model, prompt)


def decide_before(trigger: Trigger, questions: Sequence[Question]) -> list[tuple[bool, Decision | None]]:
    """For each question whether to retrieve before anything is generated, and the verdict if any.

    Raises:
        RunError: a score is NaN.
    """
    own = getattr(trigger, "decide_before", None)
    if own is None:
        return [(bool(getattr(trigger, "before", False)), None)] * len(questions)
    decisions = list(own(questions))
    _refuse_nan(trigger, decisions, questions)
    return [(decision.fire, decision) for decision in decisions]


def look_ahead(trigger: Trigger, question: Question) -> LookAhead | None:
    """How much of a text the trigger looks at for this question; None is all of it."""
    own = getattr(trigger, "look_ahead", None)
    return None if own is None else own(question)


#: Models that have shown that their attention can be read.
_READABLE: WeakSet[CausalLM] = WeakSet()
_NOTHING = np.zeros(0, dtype=np.float32)
_ONE_TOKEN = Generation("", (), (), (0,), "", ((0, 0),), _NOTHING, _NOTHING, "length")


def check_attention(lm: CausalLM, trigger: Trigger, query: Any) -> None:
    """Read the attention of one token, if trigger or query will want any, before anything runs.

    Raises:
        UserError: it cannot be read from this model; names who wants it.
    """
    wanting = [
        f"{group}={name_of(part)}"
        for group, part in (("trigger", trigger), ("query", query))
        if part.needs.attention or getattr(part, "attends_alone", False)
    ]
    if not wanting or lm in _READABLE:
        return
    try:
        lm.attention_alone([_ONE_TOKEN])
    except (RunError, UserError) as error:
        raise UserError(f"{' and '.join(wanting)} cannot be used with this model: {error}") from error
    _READABLE.add(lm)


def check_questions(trigger: Trigger, questions: Sequence[Question]) -> None:
    """Refuse questions that a trigger cannot be used on, before anything runs.

    Raises:
        UserError: it judges answers, and a question has no gold answer to judge by.
    """
    without = [q.id for q in questions if not q.answers]
    if without and getattr(trigger, "judges_answer", False):
        raise UserError(
            f"trigger={name_of(trigger)} needs gold answers and {len(without)} of {len(questions)} questions "
            f'have none, {without[0]!r} among them: give them "answers" or choose another trigger'
        )


def name_of(part: object) -> str:
    """How messages call a trigger or query: as the configuration does."""
    name = type(part).__name__
    return snake_case(name.removesuffix("Query") or name)


def snake_case(name: str) -> str:
    """``fixed_length`` of ``FixedLength``; capitals in a row are one word."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def states_for(bank: ProbeBank, generation: Generation, trigger: object) -> np.ndarray:
    """What a bank reads of a generation, rounded as its training features were.

    Returns:
        (layers of the bank, d) float32, or (n, layers, d) where every token's states are kept.

    Raises:
        RunError: no states were recorded; names the trigger.
    """
    from probers.capture.pooling import as_stored  # loads torch

    if generation.states is None:
        raise RunError(f"trigger={name_of(trigger)} needs hidden states and the generation has none recorded")
    place = {layer: i for i, layer in enumerate(generation.needs.layers)}
    chosen = generation.states[..., [place[layer] for layer in bank.layers], :]
    return as_stored(chosen, bank.spec.dtype).numpy()


#: Score of an empty answer: finite, and above any threshold a method would use.
UNANSWERED = 1e4


def unanswered(threshold: float) -> Decision:
    """The decision on an answer without a single token: it has no score, and it is no answer."""
    return verdict(UNANSWERED, threshold)


def verdict(score: float, threshold: float, **where: Any) -> Decision:
    """The decision that follows from a score: fires above the threshold."""
    return Decision(fire=score > threshold, score=score, threshold=threshold, **where)


def ruled(fire: bool, score: float = 1.0, **where: Any) -> Decision:
    """The decision of a rule that does not look at the text, in the form of a score above a threshold.

    The score says nothing of this text and stays the same; the threshold moves.
    """
    return Decision(fire=fire, score=score, threshold=0.0 if fire else max(score, 0.0), **where)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a generation.

    Attributes:
        start: its first character in the text.
        end: one after its last character.
        tokens: indices of the tokens that wrote any of it, ascending; neighbours may share one.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def sentences(generation: Generation) -> list[Sentence]:
    """The sentences of a generation's text, those of no whole token left out."""
    found = []
    for start, end in split_sentences(generation.text):
        tokens = tuple(i for i, (a, b) in enumerate(generation.offsets) if a < end and b > max(a, start))
        if tokens:
            found.append(Sentence(start, end, tokens))
    return found


def first_above(
    generation: Generation,
    state: State,
    values: np.ndarray,
    reduce: Callable[[np.ndarray], float],
    threshold: float,
) -> Decision:
    """Fires before the first sentence whose score is above the threshold.

    A sentence that was written right there from fresh passages is taken as it is:
    otherwise the same place could fire for ever.

    Args:
        values: (n,) one per token, higher is less sure.
        reduce: the score of a sentence of its tokens' values.

    Returns:
        Its score is that of the highest sentence that may fire, 0 where there is none; its
        tokens are those of the sentence that fired whose own value is above the threshold.
    """
    shown = tuple(map(float, values))
    found = sentences(generation)[1 if state.fresh else 0 :]
    scores = [float(reduce(values[list(each.tokens)])) for each in found]
    # max() would pass over a NaN.
    top = float(np.max(scores)) if scores else 0.0
    for sentence, score in zip(found, scores, strict=True):
        if score > threshold:
            tokens = tuple(i for i in sentence.tokens if values[i] > threshold)
            return verdict(top, threshold, position=sentence.start, tokens=tokens, token_scores=shown)
    return verdict(top, threshold, token_scores=shown)
