"""Ask the model itself, before it answers, whether it can; its yes or no decides on one retrieval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, UserError

from .base import State, Trigger, at_least_one, ruled, verdict

PROMPT = (
    "Question: {question}\nCan you answer this question correctly from what you know? Say yes or no.\nReply:"
)
_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True)
class LlmJudge(Trigger):
    """Retrieves once, with the question, before anything is written, unless the model says yes.

    The first "yes" or "no" of its reply counts. A reply with neither is taken for a no, so that
    it always retrieves with a model that follows no instruction. Asking is a generation of its
    own and is counted as one.

    Attributes:
        prompt: what the model is asked, without the answer prompt's exemplars, with ``{question}``.
        max_new_tokens: tokens of the reply.
    """

    prompt: str = PROMPT
    max_new_tokens: int = 8

    before = True
    after = False
    decides_by = "question"

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise UserError(f"trigger.prompt={self.prompt[:40]!r} has no {{question}}: put it in")
        at_least_one("trigger.max_new_tokens", self.max_new_tokens)

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """The model's word on every question; it is asked about all of them at once."""
        if not states:
            return []
        form = PromptTemplate("judge", question_form="{question}", chat=states[0].prompt.chat)
        if form.chat:
            form = form.bind(states[0].lm.tokenizer)
        asked = [form.question(self.prompt.replace("{question}", s.question.question)) for s in states]
        replies = states[0].generate(
            asked, max_new_tokens=self.max_new_tokens, names=[s.question.id for s in states]
        )
        decisions = []
        for reply, state in zip(replies, states, strict=True):
            state.spend(reply)
            found = _WORD.search(reply.text)
            decisions.append(verdict(float(found is None or found.group().lower() == "no"), 0.5))
        return decisions

    def __call__(self, generation: Generation, state: State) -> Decision:
        return ruled(False, 0.0 if state.verdict is None else state.verdict.score)
