"""What a question's way through the loop leaves behind, in memory and as one JSON line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probers.text import split_sentences
from probers.types import Decision, Generation, Question, Round, UserError


@dataclass(slots=True)
class Counters:
    """What answering one question took.

    Attributes:
        retrievals: searches, also those that found nothing.
        empty_retrievals: searches that found nothing; the answer went on without passages.
        passages_cut: passages that were found and not shown, for want of room in the context.
        generations: calls of the model, a forced final answer and what a trigger asked it included.
        tokens: tokens generated, also those that were discarded.
        sentences: sentences generated, also those that were discarded.
        forced: whether the words that announce the answer had to be put in.
        seconds: wall time, shared evenly by the questions answered together.
    """

    retrievals: int = 0
    empty_retrievals: int = 0
    passages_cut: int = 0
    generations: int = 0
    tokens: int = 0
    sentences: int = 0
    forced: bool = False
    seconds: float = 0.0

    def add(self, generation: Generation) -> None:
        """Count one call of the model."""
        self.generations += 1
        self.tokens += len(generation.token_ids)
        self.sentences += len(split_sentences(generation.text))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answered question.

    Attributes:
        text: the whole accepted text, rationale and all.
        answer: the final answer in it; "" when the model gave none.
        rounds: every pass of the loop, in order.
    """

    id: str
    question: str
    text: str
    answer: str
    rounds: tuple[Round, ...]
    counters: Counters

    @property
    def retrievals(self) -> int:
        """Number of searches made."""
        return self.counters.retrievals

    @property
    def trace(self) -> dict[str, Any]:
        """Everything as plain containers: one line of traces.jsonl."""
        return asdict(self)

    @classmethod
    def from_trace(cls, trace: dict[str, Any]) -> Answer:
        """Inverse of :attr:`trace`, from parsed JSON."""
        return cls(
            id=trace["id"],
            question=trace["question"],
            text=trace["text"],
            answer=trace["answer"],
            rounds=tuple(_round(r) for r in trace["rounds"]),
            counters=Counters(**trace["counters"]),
        )


def _round(record: dict[str, Any]) -> Round:
    decision = record["decision"]
    if decision is not None:
        lists = {k: tuple(decision[k]) for k in ("tokens", "token_scores")}
        decision = Decision(**{**decision, **lists})
    return Round(
        text=record["text"],
        decision=decision,
        query=record["query"],
        passage_ids=tuple(record["passage_ids"]),
        accepted=record["accepted"],
        tokens=tuple((a, b) for a, b in record["tokens"]),
    )


class TraceFile:
    """Answers as JSON lines in the order of the questions, so that a run can go on where it stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resume(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers that are there already; a last line that was cut off is removed.

        Raises:
            UserError: a line is no trace, or the file holds other questions.
        """
        if not self.path.exists():
            return []
        self._drop_half_line()
        answers = []
        with open(self.path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                where = f"{self.path} line {number}"
                try:
                    answer = Answer.from_trace(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise UserError(f"{where} is no trace ({error}): remove the file") from error
                expected = questions[number - 1] if number <= len(questions) else None
                if expected is None or (answer.id, answer.question) != (expected.id, expected.question):
                    raise UserError(
                        f"{where} answers question {answer.id!r}, which this run does not have there: "
                        "choose another out or remove the file"
                    )
                answers.append(answer)
        return answers

    def append(self, answers: Iterable[Answer]) -> None:
        """Add answers and have them on disk before returning."""
        with open(self.path, "a", encoding="utf-8") as file:
            for answer in answers:
                file.write(json.dumps(answer.trace, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _drop_half_line(self) -> None:
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            with open(self.path, "r+b") as file:
                file.truncate(end)
