"""Way of a question through the loop: while it is open, as an answer with its rounds, and as a JSON line."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from probers.checksums import Journal
from probers.evaluation.answers import final_answer
from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, Passage, Question, Round, UserError, shortlist
from probers.words.text import split_sentences

if TYPE_CHECKING:
    from probers.cli.merge import PartRuns
    from probers.data.splits import Partition

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Costs of answering one question.

    Attributes:
        empty_retrievals: searches that found nothing; the answer went on without passages.
        passages_cut: passages found but not shown, because the context had no room for them.
        generations: calls of the model, including a forced final answer and what a trigger asked for.
        alarms: number of times the trigger fired for something it read in a text, also when no retrieval was
            left; rules and chance read nothing and raise none (RaDIO's Hc).
        tokens, sentences: everything that was generated, including discarded text.
        read_tokens: tokens of the prompts of all calls, however many of them were cached. 0 if a server does
            not tell them.
        kept_tokens: tokens of the final text.
        forced: True if the words that announce the answer had to be inserted.
        seconds: wall time, divided evenly among the questions answered together; a text that is taken again
            (:attr:`OpenQuestion.again`) is a generation without time of its own.
    """

    retrievals: int = 0
    empty_retrievals: int = 0
    passages_cut: int = 0
    generations: int = 0
    alarms: int = 0
    tokens: int = 0
    read_tokens: int = 0
    kept_tokens: int = 0
    sentences: int = 0
    forced: bool = False
    seconds: float = 0.0

    @property
    def read_known(self) -> bool:
        """Tell whether the tokens of prompts were counted: nothing is written after an empty prompt."""
        return self.read_tokens > 0 or not self.tokens

    def add(self, generation: Generation, *, forced: bool = False, read: bool = True) -> None:
        """Count one call of the model, ``forced`` for the final answer or not.

        Without ``read`` the prompt was counted before: of several texts drawn after one prompt, only the
        first counts it.
        """
        self.generations += 1
        self.forced |= forced
        self.tokens += len(generation.token_ids)
        if read and generation.stop != "skipped":
            self.read_tokens += len(generation.prompt_ids)
        self.sentences += len(split_sentences(generation.text))


@dataclass(frozen=True, slots=True)
class Answer:
    """An answered question.

    Attributes:
        text: the whole accepted text, including the rationale.
        answer: the final answer in it; "" if the model gave none.
        rounds: every pass of the loop, in order.
        filter: the filter of content words, see :func:`probers.words.text.content_filter`; None if neither
            trigger nor query used one.
    """

    id: str
    question: str
    text: str
    answer: str
    rounds: tuple[Round, ...]
    counters: Counters
    filter: str | None = None

    def __repr__(self) -> str:
        return f"Answer({self.answer!r}, retrievals={self.retrievals}, text={self.text!r:.80})"

    @property
    def retrievals(self) -> int:
        return self.counters.retrievals

    @property
    def abstained(self) -> bool:
        """Tell whether the trigger withdrew the answer; ``text`` and ``answer`` are then empty."""
        return any(each.decision is not None and each.decision.abstain for each in self.rounds)

    @property
    def trace(self) -> dict[str, Any]:
        """Plain containers of all fields, as in one line of traces.jsonl."""
        return asdict(self)

    @classmethod
    def from_trace(cls, trace: dict[str, Any]) -> Answer:
        """Rebuild an answer from the parsed JSON of :attr:`trace`."""
        rounds = tuple(_round(r) for r in trace["rounds"])
        return cls(**trace | {"rounds": rounds, "counters": Counters(**trace["counters"])})


def _round(record: dict[str, Any]) -> Round:
    if (decision := record["decision"]) is not None:
        lists = [key for key in ("tokens", "token_scores", "left_out") if key in decision]
        decision = Decision(**decision | {key: tuple(decision[key]) for key in lists})
    ids, tokens = tuple(record["passage_ids"]), tuple((a, b) for a, b in record["tokens"])
    return Round(**record | {"decision": decision, "passage_ids": ids, "tokens": tokens})


class Listener(Protocol):
    """Listener to what happens while questions are answered; the terminal's view of the loop."""

    def text(self, question: Question, text: str) -> None:
        """Take note that the text of the running generation has grown to ``text``."""

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """Take note of a finished round; ``passages`` are shown from now on, ``left_out`` more are not."""


class Accepted(NamedTuple):
    """Answer text that stays; ``fresh`` if the passages were fetched for the place where it ends."""

    text: str = ""
    tokens: int = 0
    fresh: bool = False


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """Question that is being answered, with the results so far of the running round.

    Attributes:
        written: this round's generation, from :meth:`write` to the round's end.
        cut: True if it was ended where the trigger had seen enough, and would have gone on.
        ending: announcing words and final answer that had to be appended, or "".
        final: that final answer as the model gave it; None if it was not asked for.
        before_hit: the answer if the trigger fires; empty if the whole answer is discarded.
        verdict: the trigger's verdict from before anything was written.
        again: text that the next round writes if its prompt is the one just answered.
        reading: True if the next round writes from fetched passages and is taken unjudged.
        end: place in this round's text where it is cut; None keeps all.
        left_out: number of passages found for the query that the prompt has no room for.
        refused: ids of passages that the trigger has left out of later searches.
    """

    question: Question
    listener: Listener | None
    accepted: Accepted = field(default_factory=Accepted)
    passages: tuple[Passage, ...] = ()
    written: Generation = field(init=False)
    cut: bool = False
    ending: str = ""
    final: Generation | None = None
    decision: Decision | None = None
    before_hit: Accepted = field(default_factory=Accepted)
    verdict: Decision | None = None
    again: Generation | None = None
    reading: bool = False
    end: int | None = None
    query: str | None = None
    left_out: int = 0
    refused: set[str] = field(default_factory=set)
    rounds: list[Round] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)

    @property
    def abstains(self) -> bool:
        """True if the trigger has withdrawn the answer."""
        return self.decision is not None and self.decision.abstain

    @property
    def text(self) -> str:
        """Answer text if this round's kept text is accepted, without ``ending``."""
        return self.accepted.text + self.stays

    @property
    def tokens(self) -> int:
        """Number of generated tokens in :attr:`text`."""
        written = len(self.written.token_ids) if self.end is None else self._tokens(self.end)
        return self.accepted.tokens + written

    @property
    def stays(self) -> str:
        """Text of this round, up to where it is cut."""
        return self.written.text[: self.end]

    def prompt(self, template: PromptTemplate, partial: str) -> str:
        """Fill the prompt with the present passages; it ends with ``partial`` of the answer."""
        return template.question(self.question.question, [p.text for p in self.passages], partial=partial)

    def write(self, generation: Generation, *, cut: bool) -> None:
        """Begin a round with the text that the model wrote."""
        self.written, self.cut, self.before_hit, self.ending = generation, cut, Accepted(), ""
        self.query = self.again = self.final = self.decision = self.end = None
        self.counters.add(generation)

    def complete(self, announcing: str, generation: Generation) -> None:
        """Append the words that announce the answer, and the answer that the model then gave."""
        self.ending, self.final = announcing + generation.text, generation
        self.counters.add(generation, forced=True)

    def decide(self, decision: Decision, *, alarms: bool) -> None:
        """Take the trigger's decision; ``alarms`` tells whether it was made from the text."""
        self.decision = decision
        self.counters.alarms += alarms and decision.fire
        if decision.position is not None:
            # With a trailing space, the next word could not be tokenised together with its own space.
            before = self.written.text[: decision.position].rstrip()
            tokens = self.accepted.tokens + self._tokens(len(before))
            self.before_hit = Accepted(self.accepted.text + before, tokens, fresh=True)

    def take(self, end: int | None) -> None:
        """Accept the text up to ``end`` unjudged, and have the text after it written without passages."""
        self.end, self.passages, self.reading = end, (), False

    def retrieve(self, query: str, hits: Sequence[Passage], shown: int) -> None:
        """Replace earlier passages by the first ``shown`` of those found, even if these are none."""
        self.query, self.passages, self.left_out = query, tuple(hits[:shown]), len(hits) - shown
        self.counters.retrievals += 1
        self.counters.empty_retrievals += not hits
        self.counters.passages_cut += self.left_out

    def begin(self) -> None:
        """End a round in which passages were fetched and nothing was written."""
        self._record("", "", self.verdict)

    def accept(self) -> None:
        """End the round: the text stays as it is and the question is answered, or nothing of it stays."""
        if self.abstains:
            return self._go_on("", Accepted())
        more = 0 if self.final is None else len(self.final.token_ids)
        self._go_on(self.stays, Accepted(self.text + self.ending, self.tokens + more))
        if self.ending:
            self._record(self.ending, self.ending)

    def extend(self) -> None:
        """End the round: the text stays as it is, and the question goes on from its end."""
        stays = self.stays.rstrip()
        self._go_on(stays, Accepted(self.accepted.text + stays, self.tokens))

    def truncate(self, *, reading: bool = False, again: bool = False) -> None:
        """End the round: the text before the hit stays, and the question goes on from there.

        With ``reading`` the next text is taken unjudged; with ``again`` it is the text of this round.
        """
        self.reading, self.again = reading, self.written if again else None
        self._go_on(self.before_hit.text[len(self.accepted.text) :], self.before_hit)

    def answer(self, answer_cue: str, seconds: float, filter: str | None) -> Answer:
        """Make the record of the question's way through the loop."""
        text, question = self.accepted.text.strip(), self.question
        counters = replace(self.counters, kept_tokens=self.accepted.tokens, seconds=seconds)
        final = final_answer(text, answer_cue, question.dataset)
        return Answer(question.id, question.question, text, final, tuple(self.rounds), counters, filter)

    def _tokens(self, characters: int) -> int:
        """Count the tokens that begin within so many characters of this round's text."""
        return sum(start < characters for start, _ in self.written.offsets)

    def _go_on(self, stays: str, accepted: Accepted) -> None:
        self._record(self.written.text, stays, self.decision, self.written.offsets)
        self.accepted = accepted
        del self.written  # its states and attention are no longer needed

    def _record(
        self, text: str, stays: str, decision: Decision | None = None, tokens: Sequence[tuple[int, int]] = ()
    ) -> None:
        passages, left_out = ((), 0) if self.query is None else (self.passages, self.left_out)
        done = Round(text, decision, self.query, tuple(p.id for p in passages), stays, tuple(tokens))
        self.rounds.append(done)
        if self.listener is not None:
            self.listener.round(self.question, done, passages, left_out)


class TraceFile:
    """File of answers as checksummed JSON lines in the order of the questions, from which a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path, self._journal = path, Journal(path)

    def resume(self, questions: Sequence[Question]) -> list[Answer | None]:
        """Read the answers that exist already, None for each question without one.

        Damaged lines are named and removed; a truncated last line is removed. UserError for a file that
        answers other questions or is no trace file.
        """
        answers, damaged, cut = self._read(questions)
        if damaged:
            message = "%s is damaged in line %s: answering those questions again"
            log.info(message, self.path, shortlist(damaged))
        if damaged or cut:
            self.rewrite(answers)
        return answers

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Read the answers to all questions; UserError if one is missing or damaged, as in :meth:`resume`."""
        answers, *_ = self._read(questions)
        if None in answers:
            message = f"{self.path} lacks question {questions[answers.index(None)].id!r}, or is damaged there"
            raise UserError(f"{message}: run it again", "damaged")
        return answers  # type: ignore[return-value]

    def _read(self, questions: Sequence[Question]) -> tuple[list[Answer | None], list[int], bool]:
        """Read the answers, the numbers of damaged lines, and whether a last line was truncated."""
        answers: list[Answer | None] = [None] * len(questions)
        lines, after = self._journal.read(), 0
        damaged, keys = list(lines.damaged), [(question.id, question.question) for question in questions]
        for number, record in lines.records.items():
            try:
                answer = Answer.from_trace(record)
            except (ValueError, KeyError, TypeError):
                damaged.append(number)
                continue
            try:  # questions of damaged lines are skipped
                place = keys.index((answer.id, answer.question), after)
            except ValueError:
                message = f"line {number} answers question {answer.id!r}, which this run does not have there"
                remedy = "choose another out or remove the file"
                raise UserError(f"{self.path} {message}: {remedy}", "mismatch") from None
            answers[place], after = answer, place + 1
        return answers, sorted(damaged), lines.cut

    def append(self, answers: Iterable[Answer]) -> None:
        """Append answers and have them on disk before returning (RunError: they cannot be written)."""
        self._journal.append(answer.trace for answer in answers)

    def rewrite(self, answers: Iterable[Answer | None]) -> None:
        """Replace the file by the existing answers."""
        self._journal.rewrite(answer.trace for answer in answers if answer is not None)


def questions_of(questions: Sequence[Question], part: Partition | None) -> list[Question]:
    """Select the questions of one part, which has all questions of a group or none; None is the whole."""
    return [q for q in questions if part is None or part.owns(q.group or q.id)]


def join_traces(parts: PartRuns, questions: Sequence[Question], file: str, out: Path) -> list[Answer]:
    """Write the answers of all parts, in ``file`` of their folders, into that file in ``out``."""
    by_part = (TraceFile(run.path / file).answers(questions_of(questions, run.part)) for run in parts.runs)
    by_id = {answer.id: answer for answers in by_part for answer in answers}
    answers = [by_id[question.id] for question in questions]
    TraceFile(out / file).rewrite(answers)
    return answers
