"""What a trigger is: looks at what the model just wrote, says whether to retrieve, and how sure.

A trigger is any object with ``needs`` and ``__call__``. Two attributes are optional:
``before`` (retrieve with the question before anything is generated) and
``judges_answer`` (decide only once the answer is complete, see :class:`Oracle`).
Two methods as well: ``decide`` gets a whole batch at once, ``check`` may refuse a model or prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, Needs, Passage, Question, RunError, UserError

if TYPE_CHECKING:
    from probers.features import ModelSpec
    from probers.lm import CausalLM


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
    for decision, state in zip(decisions, states, strict=True):
        if math.isnan(decision.score) or any(map(math.isnan, decision.token_scores)):
            raise RunError(
                f"trigger {name_of(trigger)} gave no number (NaN) on question {state.question.id!r}: "
                "the model's states or logits are broken there"
            )
    return decisions


def check(trigger: Trigger, model: ModelSpec, prompt: PromptTemplate) -> None:
    """Let a trigger refuse a model or prompt it was not made for, before anything runs."""
    own = getattr(trigger, "check", None)
    if own is not None:
        own(model, prompt)


def check_questions(trigger: Trigger, questions: Sequence[Question]) -> None:
    """Refuse questions that a trigger cannot be used on, before anything runs.

    Raises:
        UserError: it judges answers, and a question has no gold answer to judge by.
    """
    without = [q.id for q in questions if not q.answers]
    if without and getattr(trigger, "judges_answer", False):
        raise UserError(
            f"trigger {name_of(trigger)} needs gold answers and {len(without)} of {len(questions)} questions "
            f'have none, {without[0]!r} among them: give them "answers" or choose another trigger'
        )


def name_of(part: object) -> str:
    """How messages call a trigger, query or retriever: its class in lower case."""
    return type(part).__name__.lower()


#: Score of an empty answer: finite, and above any threshold a method would use.
UNANSWERED = 1e4


def unanswered(threshold: float) -> Decision:
    """The decision on an answer without a single token: it has no score, and it is no answer."""
    return verdict(UNANSWERED, threshold)


def verdict(score: float, threshold: float, **where: Any) -> Decision:
    """The decision that follows from a score: fires above the threshold."""
    return Decision(fire=score > threshold, score=score, threshold=threshold, **where)
