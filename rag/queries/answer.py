"""Ask with the question and what the model answered: rationale and answer (Probing-RAG)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from probers.types import Decision, Generation, Needs, Question, UserError

from ..triggers.base import State
from .base import text_so_far


@dataclass(frozen=True)
class AnswerQuery:
    """Question, rationale and answer, without the words that announce the answer.

    A wrong answer still tends to name what the question is about, and in a
    two-hop question the first hop.

    Attributes:
        question_first: ask with the question alone the first time, as the released code does.
        with_passages: from the second retrieval on, put the passages seen so far
            between question and rationale, as algorithm 1 of Probing-RAG is written.
        whole_output: from the second retrieval on, ask with the prompt and all that was
            written after it, exemplars included, as the released code of Probing-RAG does.
    """

    question_first: bool = False
    with_passages: bool = False
    whole_output: bool = False

    needs = Needs()

    def __post_init__(self) -> None:
        if self.with_passages and self.whole_output:
            raise UserError(
                "query.with_passages=true and query.whole_output=true exclude each other: the whole output "
                "holds the passages already"
            )

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if self.question_first and not state.retrievals:
            return question.question
        if self.whole_output and state.retrievals:
            return " ".join((generation.prompt + generation.text[: decision.position]).split())
        cue = re.escape(state.prompt.answer_cue.strip())
        parts = [question.question]
        if self.with_passages:
            parts += [p.text for p in state.passages]
        parts += re.split(cue, text_so_far(generation, decision, state), flags=re.IGNORECASE)
        return " ".join(" ".join(parts).split())
