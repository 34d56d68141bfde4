"""Answers with and without retrieved passages, labelled right or wrong (Probing-RAG, section 3).

Every question gives two examples, one per condition, which share its split. The
states are those of the rationale and answer tokens; the prompt is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from probers.answers import extract_answer
from probers.lm import CausalLM
from probers.prompts import PromptTemplate
from probers.questions import QuestionSet
from probers.store import FeatureStore
from probers.types import Generation, Needs, Question, Retriever, UserError

from .base import Examples, recorded
from .labelling import LabelRule, parse_label


@dataclass(slots=True)
class CotBuilder:
    """Generates and labels chains of thought for questions.

    Attributes:
        asked: the questions; each needs at least one gold answer.
        k: passages retrieved with the question in the second condition.
    """

    lm: CausalLM
    asked: QuestionSet
    retriever: Retriever
    prompt: PromptTemplate
    needs: Needs
    label: str = "em"
    k: int = 3
    max_new_tokens: int = 48
    item_name: str = "question"
    unit_name: str = "question"
    wrong_name: str = "wrong"
    position: str = "generated"
    balance_by: tuple[str, ...] = ("split", "condition")
    items: int = 0
    _right: LabelRule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._right = parse_label(self.label)
        if self.prompt.chat:
            self.prompt = self.prompt.bind(self.lm.tokenizer)
        for question in self.asked.questions:
            if not any(a.strip() for a in question.answers):
                raise UserError(f"question {question.id} has no gold answer, so it cannot be labelled")

    @property
    def prompt_id(self) -> str:
        return self.prompt.fingerprint

    @property
    def total(self) -> int:
        return len(self.asked.questions)

    def units(self) -> Iterator[Question]:
        for question in self.asked.questions:
            self.items += 1
            yield question

    def unit_id(self, unit: Question) -> str:
        return unit.id

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
            prefix=self.prompt.prefix, names=[q.id for q in units] * 2,
        )  # fmt: skip
        for index, generation in enumerate(generations):
            question = units[index % len(units)]
            condition = "closed_book" if index < len(units) else "with_passages"
            if not generation.token_ids:  # there is no state
                skipped = generation.stop == "skipped"
                reason = "too long: the prompt exceeds the model's context" if skipped else "empty answer"
                examples.leave_out(f"{question.id}/{condition}", reason)
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

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Correct by condition and knowledge, and whom retrieval helps, hurts or leaves."""
        right: dict[str, dict[str, list[int]]] = {}  # condition -> knowledge -> labels
        both: dict[str, dict[str, int]] = {}
        for table in store.tables(["id", "condition", "knowledge", "correct"]):
            for id, condition, knowledge, correct in table.itertuples(index=False):
                right.setdefault(condition, {}).setdefault(knowledge, []).append(correct)
                both.setdefault(id.rpartition("/")[0], {})[condition] = correct
        lines: list[str] = []
        figures: dict[str, Any] = {"questions": self.asked.record}
        for condition, kinds in sorted(right.items()):
            labels = [label for found in kinds.values() for label in found]
            rate = sum(labels) / len(labels)
            figures[f"correct_{condition}"] = round(rate, 6)
            known = [(kind, found) for kind, found in sorted(kinds.items()) if kind]
            shown = ", ".join(f"{kind} {sum(v) / len(v):.2f} (n={len(v)})" for kind, v in known)
            lines.append(f"{condition}: {rate:.3f} of {len(labels)} right" + (f" | {shown}" if shown else ""))
        change = Counter(
            found["with_passages"] - found["closed_book"] for found in both.values() if len(found) == 2
        )
        if change:
            for name, value in (("helps", 1), ("hurts", -1), ("leaves", 0)):
                figures[f"retrieval_{name}"] = round(change[value] / change.total(), 6)
            lines.append(
                "retrieval helps {retrieval_helps:.3f}, hurts {retrieval_hurts:.3f}, "
                "leaves {retrieval_leaves:.3f} of the questions".format(**figures)
            )
        return figures, lines
