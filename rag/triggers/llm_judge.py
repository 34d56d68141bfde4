"""Ask the model itself whether it can answer from what it has; its yes or no decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, UserError

from .base import State, Trigger, at_least_one, verdict

PROMPT = (
    "{passages}Question: {question}\n"
    "Can you answer this question correctly from what you know and what is given above? Say yes or no.\n"
    "Reply:"
)
_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True)
class LlmJudge(Trigger):
    """Fires on the whole answer unless the model says yes.

    The first "yes" or "no" of its reply counts. A reply with neither is taken for a no, so that
    it always fires on a model that follows no instruction. Asking is a generation of its own
    and is counted as one.

    Attributes:
        prompt: what the model is asked, without the answer prompt's exemplars. ``{question}``
            is needed; ``{passages}`` are those in the prompt, one a line, and ``{answer}`` is
            what it has just written.
        max_new_tokens: tokens of the reply.
    """

    prompt: str = PROMPT
    max_new_tokens: int = 8

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise UserError(f"trigger.prompt={self.prompt[:40]!r} has no {{question}}: put it in")
        at_least_one("trigger.max_new_tokens", self.max_new_tokens)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """The decision on every generation; the model is asked about all of them at once."""
        if not states:
            return []
        form = PromptTemplate("judge", question_form="{question}", chat=states[0].prompt.chat)
        if form.chat:
            form = form.bind(states[0].lm.tokenizer)
        asked = [form.question(self._ask(g, s)) for g, s in zip(generations, states, strict=True)]
        replies = states[0].generate(
            asked, max_new_tokens=self.max_new_tokens, names=[s.question.id for s in states]
        )
        decisions = []
        for reply, state in zip(replies, states, strict=True):
            state.spend(reply)
            found = _WORD.search(reply.text)
            decisions.append(verdict(float(found is None or found.group().lower() == "no"), 0.5))
        return decisions

    def _ask(self, generation: Generation, state: State) -> str:
        given = {
            "question": state.question.question,
            "passages": "".join(f"{p.text}\n" for p in state.passages),
            "answer": (state.partial + generation.text).strip(),
        }
        # In one go: a passage may itself hold braces.
        return re.sub(r"\{(question|passages|answer)\}", lambda match: given[match.group(1)], self.prompt)
