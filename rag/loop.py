"""The loop: generate, decide, formulate, retrieve, generate again, for many questions at once.

Any trigger meets any query formulation and any retriever here. All questions that
are still open go through a round together, in one batch of the model; a question
that is answered leaves. Decisions use the signals of the very pass that generated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from probers.answers import extract_answer
from probers.fitting import fitting_passages
from probers.prompts import TESTBED_PROMPT, PromptTemplate
from probers.types import Question, Retriever, Round, UserError

from .queries.answer import AnswerQuery
from .queries.base import QueryFormulator
from .rounds import Listener, Open, Pass
from .traces import Answer, TraceFile
from .triggers.base import (
    State,
    Trigger,
    check,
    check_attention,
    check_questions,
    decide,
    decide_before,
)
from .writing import Writer

if TYPE_CHECKING:
    from probers.lm import CausalLM

_LEAST = {"k": 1, "max_new_tokens": 1, "max_retrievals": 0, "answer_tokens": 0, "draft": 0}
_CHUNK = 64  # questions answered together and then written: what a kill can lose


@dataclass
class RAG:
    """Answers questions with retrieval on demand.

    A question is answered when the trigger does not fire, when a limit is reached,
    or when a retrieval brings what the prompt shows already, since the model would
    write the same again.

    Attributes:
        lm: the model.
        retriever: where passages come from.
        trigger: decides when to retrieve.
        query: formulates what to ask; question, rationale and answer by default.
        prompt: the template of every prompt.
        k: passages per retrieval. They replace the earlier ones in the prompt.
        max_new_tokens: tokens of the answer's text; what was accepted before a
            retrieval in the middle counts, what was discarded does not.
        max_retrievals: searches per question; the answer after the last is accepted.
        answer_tokens: further tokens for a final answer, where the text ended
            without one and the announcing words had to be appended; 0 leaves it without.
        draft: tokens guessed at once from prompt and discarded text, while a question is alone
            in its batch, and checked in one pass (:mod:`probers.drafting`); 0 guesses none.
    """

    lm: CausalLM
    retriever: Retriever
    trigger: Trigger
    query: QueryFormulator = field(default_factory=AnswerQuery)
    prompt: PromptTemplate = TESTBED_PROMPT
    k: int = 3
    max_new_tokens: int = 64
    max_retrievals: int = 3
    answer_tokens: int = 16
    draft: int = 8

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be {least} or more")
        try:
            self.needs = self.trigger.needs.union(self.query.needs)
        except ValueError as error:
            raise UserError(f"this trigger and query do not go together: {error}") from error
        check(self.trigger, self.lm.spec, self.prompt)
        check_attention(self.lm, self.trigger, self.query)
        if self.prompt.chat:
            self.prompt = self.prompt.bind(self.lm.tokenizer)

    def __call__(self, question: str | Question, listener: Listener | None = None) -> Answer:
        """Answer one question."""
        asked = Question("question", question) if isinstance(question, str) else question
        return self.answer([asked], listener)[0]

    def answer(self, questions: Sequence[Question], listener: Listener | None = None) -> list[Answer]:
        """Answer questions together, in order; each as it would be alone.

        Raises:
            UserError: the trigger needs gold answers and a question has none.
            RunError: a trigger's score is not a number.
        """
        check_questions(self.trigger, questions)
        started = time.perf_counter()
        everyone = [Open(q) for q in questions]
        if self.max_retrievals:
            self._begin(everyone, listener)
        active, writer = everyone, Writer(self)
        while active:
            active = self._round(active, writer, listener)
        seconds = (time.perf_counter() - started) / max(1, len(everyone))
        for run in everyone:
            run.counters.seconds = seconds
        return [self._answer(run) for run in everyone]

    def run(self, questions: Sequence[Question], path: Path, *, progress: str | None = None) -> list[Answer]:
        """Answer questions into a trace file, going on where an earlier run of it stopped.

        Args:
            questions: in the order of the file.
            path: JSON lines, one per question in order.
            progress: name of a progress bar, None for none.
        """
        from tqdm import tqdm

        file = TraceFile(path)
        answers = file.resume(questions)
        total, found = len(questions), len(answers)
        with tqdm(
            total=total, initial=found, desc=progress, unit="question", disable=progress is None
        ) as bar:
            while len(answers) < total:
                more = self.answer(questions[len(answers) : len(answers) + _CHUNK])
                file.append(more)
                answers += more
                bar.update(len(more))
        return answers

    def _begin(self, everyone: Sequence[Open], listener: Listener | None) -> None:
        """Retrieve with the question where the trigger wants that before anything is generated."""
        verdicts = decide_before(self.trigger, [run.question for run in everyone])
        fired = [(run, verdict) for run, (fire, verdict) in zip(everyone, verdicts, strict=True) if fire]
        asked = [run.question.question for run, _ in fired]
        self._retrieve([run for run, _ in fired], asked, partials=[("", 0)] * len(fired))
        for (run, verdict), query in zip(fired, asked, strict=True):
            run.record(Round("", verdict, query, run.passage_ids, ""), listener)

    def _round(self, active: Sequence[Open], writer: Writer, listener: Listener | None) -> list[Open]:
        """One pass for every open question; returns those that go on."""
        passes = []
        for each in writer.generate(active, listener):
            if each.generation.stop == "skipped":  # the model was told to leave such prompts out
                each.accept(listener)
            else:
                passes.append(each)
        judges = getattr(self.trigger, "judges_answer", False)
        if judges:
            writer.complete(passes)
        states = [self._state(p, judged=judges) for p in passes]
        decisions = decide(self.trigger, [p.generation for p in passes], states)
        fired = []
        for each, state, decision in zip(passes, states, decisions, strict=True):
            each.decision = decision
            searches_left = each.run.counters.retrievals < self.max_retrievals
            if decision.fire and searches_left and each.next_tokens < self.max_new_tokens:
                each.query = self.query(each.run.question, each.generation, decision, state)
                fired.append(each)
        self._retrieve(
            [p.run for p in fired], [p.query or "" for p in fired],
            partials=[(p.next_partial, p.next_tokens) for p in fired],
        )  # fmt: skip

        ended: list[Pass] = []
        for each in passes:
            if each.query is not None and self._changed(each):
                each.truncate(listener)
            elif each.cut:
                each.extend(listener)
            else:
                ended.append(each)
        if not judges:
            writer.complete(ended)
        for each in ended:
            each.accept(listener)
        over = {id(each) for each in ended}
        return [each.run for each in passes if id(each) not in over]

    def _retrieve(
        self, runs: Sequence[Open], queries: Sequence[str], *, partials: Sequence[tuple[str, int]]
    ) -> None:
        """Search for all at once; what is found takes the place of earlier passages, also when nothing is.

        Args:
            runs: the questions.
            queries: what is asked for each.
            partials: the accepted text that each goes on from, and its tokens.
        """
        if not runs:
            return
        found = self.retriever.search(queries, self.k)
        shown = fitting_passages(
            self.lm, self.prompt,
            [
                (run.question.question, [p.text for p in passages], f"{partial} {self.prompt.answer_cue}")
                for run, passages, (partial, _) in zip(runs, found, partials, strict=True)
            ],
            # All that may still be written, an announcement of the answer included.
            [self.max_new_tokens - tokens + self.answer_tokens for _, tokens in partials],
        )  # fmt: skip
        for run, passages, count in zip(runs, found, shown, strict=True):
            run.passages = tuple(passages[:count])
            run.counters.retrievals += 1
            run.counters.empty_retrievals += not passages
            run.counters.passages_cut += len(passages) - count

    def _changed(self, done: Pass) -> bool:
        """Whether the next prompt differs from the one that was just answered."""
        return done.run.prompt(self.prompt, done.next_partial) != done.generation.prompt

    def _state(self, done: Pass, *, judged: bool) -> State:
        run = done.run
        return State(
            question=run.question,
            lm=self.lm,
            prompt=self.prompt,
            question_span=self.prompt.question_span(
                done.generation.prompt, run.question.question, run.partial
            ),
            partial=run.partial,
            passages=run.passages,
            retrievals=run.counters.retrievals,
            fresh=run.fresh,
            answer=self._extract(done.text + done.ending) if judged else None,
            spend=run.counters.add,
        )

    def _extract(self, text: str) -> str:
        return extract_answer(text, self.prompt.answer_cue)

    def _answer(self, run: Open) -> Answer:
        text, asked = run.partial.strip(), run.question
        return Answer(asked.id, asked.question, text, self._extract(text), tuple(run.rounds), run.counters)
