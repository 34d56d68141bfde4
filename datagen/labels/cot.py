"""Answers with and without retrieved passages, labelled right or wrong (Probing-RAG, section 3).

Every question gives two examples, one per condition, which share its split. The
states are those of the rationale and answer tokens; the prompt is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probers.answers import extract_answer
from probers.lm import CausalLM
from probers.prompts import PromptTemplate
from probers.types import Generation, Needs, Question, Retriever, UserError

from .base import Examples, recorded
from .labelling import LabelRule, parse_label


@dataclass(slots=True)
class CotBuilder:
    """Generates and labels chains of thought for questions.

    Attributes:
        units: the questions; each needs at least one gold answer.
        k: passages retrieved with the question in the second condition.
    """

    lm: CausalLM
    units: list[Question]
    retriever: Retriever
    prompt: PromptTemplate
    needs: Needs
    label: str = "em"
    k: int = 3
    max_new_tokens: int = 48
    unit_name: str = "question"
    _right: LabelRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._right = parse_label(self.label)
        for question in self.units:
            if not any(a.strip() for a in question.answers):
                raise UserError(f"question {question.id} has no gold answer, so it cannot be labelled")

    @property
    def prompt_id(self) -> str:
        return self.prompt.fingerprint

    def build(self, units: Sequence[Question]) -> Examples:
        closed = [self.prompt.question(q.question) for q in units]
        found = self.retriever.search([q.question for q in units], self.k)
        opened = [
            self.prompt.question(q.question, [p.text for p in passages])
            for q, passages in zip(units, found, strict=True)
        ]
        examples = Examples()
        generations = self.lm.generate(
            [*closed, *opened], max_new_tokens=self.max_new_tokens, needs=self.needs,
            prefix=self.prompt.exemplars, names=[q.id for q in units] * 2,
        )  # fmt: skip
        for index, generation in enumerate(generations):
            question = units[index % len(units)]
            condition = "closed_book" if index < len(units) else "with_passages"
            if not generation.token_ids:  # the model ended at once, or the prompt was left out: no state
                continue
            assert generation.states is not None  # the needs name layers
            examples.add(self._row(question, condition, generation), generation.states)
        return examples

    def _row(self, question: Question, condition: str, generation: Generation) -> dict[str, Any]:
        answer = extract_answer(generation.text, self.prompt.answer_cue)
        return {
            "id": f"{question.id}/{condition}",
            "group": question.group,
            "split": question.split,
            "correct": int(self._right(generation.text, answer, question.answers)),
            "dataset": question.dataset,
            "condition": condition,
            "question": question.question,
            "answer": answer,
            "gold": question.answers[0],
            "question_type": str(question.truth.get("type", "")),
            "answer_kind": str(question.truth.get("answer_kind", "")),
            "knowledge": str(question.truth.get("kind", "")),
            **recorded(generation),
        }

    def summarise(self, rows: Any) -> tuple[dict[str, Any], list[str]]:
        """Correct by condition and knowledge, and whom retrieval helps, hurts or leaves."""
        lines, figures = [], {}
        for condition, part in rows.groupby("condition", sort=True):
            rate = float(part["correct"].mean())
            figures[f"correct_{condition}"] = round(rate, 6)
            kinds = part[part["knowledge"] != ""].groupby("knowledge")["correct"].agg(["mean", "size"])
            shown = ", ".join(
                f"{kind} {row['mean']:.2f} (n={row['size']:.0f})" for kind, row in kinds.iterrows()
            )
            lines.append(f"{condition}: {rate:.3f} of {len(part)} right" + (f" | {shown}" if shown else ""))
        both = rows.assign(question_id=rows["id"].str.rsplit("/", n=1).str[0]).pivot(
            index="question_id", columns="condition", values="correct"
        )
        if {"closed_book", "with_passages"} <= set(both.columns):
            both = both.dropna()
            change = both["with_passages"] - both["closed_book"]
            for name, value in (("helps", 1), ("hurts", -1), ("leaves", 0)):
                figures[f"retrieval_{name}"] = round(float((change == value).mean()), 6)
            lines.append(
                "retrieval helps {retrieval_helps:.3f}, hurts {retrieval_hurts:.3f}, "
                "leaves {retrieval_leaves:.3f} of the questions".format(**figures)
            )
        return figures, lines
