"""Prompt templates: how a question, its passages and an answer so far become text.

One template serves datagen and the RAG loop, so that no method can differ from
another by a typo, and its hash is part of the FeatureSpec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Few-shot question prompt with optional passages.

    A prompt is ``exemplars``, then the passages (if any) under ``context``, one
    ``passage`` line each, then ``question``; the model continues with a rationale
    and ``answer_cue`` followed by the answer.

    Attributes:
        exemplars: text put before everything else, shared by all prompts of a run.
        context: header of the passages.
        passage: one passage, with ``{i}`` (from 1), ``{title}`` and ``{text}``.
        question: the question with ``{question}``, up to where the model goes on.
        answer_cue: words that announce the final answer.
    """

    name: str
    exemplars: str = ""
    context: str = "Context:\n"
    passage: str = "[{i}] {text}\n"
    question_form: str = "Question: {question}\nAnswer:"
    answer_cue: str = "So the answer is"

    def question(self, question: str, passages: Sequence[str] = (), *, partial: str = "") -> str:
        """The prompt for ``question``.

        Args:
            passages: passage texts, best first.
            partial: answer text already accepted, from which the model goes on.
        """
        parts = [self.exemplars]
        if passages:
            parts.append(self.context)
            parts += [self.passage.format(i=i, text=t) for i, t in enumerate(passages, 1)]
        parts.append(self.question_form.format(question=question))
        return "".join(parts) + partial

    def answer(self, rationale: str, answer: str) -> str:
        """The text of a full answer, without the leading space."""
        return f"{rationale} {self.answer_cue} {answer}."

    @property
    def fingerprint(self) -> str:
        """Hash of every field: two runs compare only when it is the same."""
        blob = repr(sorted(asdict(self).items())).encode()
        return hashlib.sha256(blob).hexdigest()[:12]


#: The form the testbed's model was trained on.
TESTBED_PROMPT = PromptTemplate("testbed")
