"""The loop: generate, decide, formulate, retrieve, generate again, for many questions at once.

Any trigger meets any query formulation and any retriever here. All questions that
are still open go through a round together, in one batch of the model; a question
that is answered leaves. Decisions use the signals of the very pass that generated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from probers.engine.kv_cache import PrefixCache
from probers.evaluation.answers import extract_answer
from probers.prompts import TESTBED_PROMPT, PromptTemplate, fitting_passages
from probers.types import Decision, Generation, Passage, Question, Retriever, Round, UserError

from .queries.answer import AnswerQuery
from .queries.base import QueryFormulator
from .traces import Answer, Counters, TraceFile
from .triggers.base import (
    LookAhead,
    State,
    Trigger,
    check,
    check_attention,
    check_questions,
    decide,
    decide_before,
    look_ahead,
)

if TYPE_CHECKING:
    from probers.engine.model import CausalLM


class Listener(Protocol):
    """Told what happens while questions are answered; the terminal's view of the loop."""

    def text(self, question: Question, text: str) -> None:
        """The text of the running generation has grown to ``text``."""

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """A round is over.

        Args:
            question: whose round it was.
            done: what was written, decided and asked.
            passages: those that were fetched and are shown from now on.
            left_out: how many more were found, for which the context has no room.
        """


@dataclass(slots=True)
class Open:
    """A question that is being answered.

    Attributes:
        partial: answer text accepted so far; the next prompt ends with it.
        partial_tokens: how many generated tokens that is.
        passages: what the next prompt shows.
        fresh: they were fetched for the place where ``partial`` ends.
    """

    question: Question
    partial: str = ""
    partial_tokens: int = 0
    passages: tuple[Passage, ...] = ()
    fresh: bool = False
    rounds: list[Round] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    _told: int = field(default=0, init=False, repr=False)  # of counters.passages_cut

    @property
    def passage_ids(self) -> tuple[str, ...]:
        return tuple(p.id for p in self.passages)

    def prompt(self, template: PromptTemplate, partial: str) -> str:
        """The prompt with the passages at hand, ending with ``partial`` of the answer."""
        return template.question(self.question.question, [p.text for p in self.passages], partial=partial)

    def record(self, done: Round, listener: Listener | None) -> None:
        """Add a round to the trace and tell the listener."""
        self.rounds.append(done)
        left_out = self.counters.passages_cut - self._told
        self._told = self.counters.passages_cut
        if listener is not None:
            passages = self.passages if done.query is not None else ()
            listener.round(self.question, done, passages, left_out)


@dataclass(slots=True)
class Pass:
    """What came of one question in one round.

    Attributes:
        ending: announcing words and final answer that had to be appended, or "".
        query: what was asked; None when nothing was retrieved.
        cut: the text was ended where the trigger had seen enough, and would have gone on.
    """

    run: Open
    generation: Generation
    decision: Decision | None = None
    ending: str = ""
    query: str | None = None
    cut: bool = False

    @property
    def text(self) -> str:
        """The answer if this pass is accepted, without ``ending``."""
        return self.run.partial + self.generation.text

    @property
    def kept(self) -> str:
        """The part of the generation that stays when the trigger fires: what is before the hit."""
        if self.decision is None or self.decision.position is None:
            return ""
        # A trailing space would keep the next word from being tokenised together with its own.
        return self.generation.text[: self.decision.position].rstrip()

    @property
    def next_partial(self) -> str:
        """The accepted text when the trigger fires; nothing when the whole answer is discarded."""
        whole = self.decision is None or self.decision.position is None
        return "" if whole else self.run.partial + self.kept

    @property
    def next_tokens(self) -> int:
        """Generated tokens in :attr:`next_partial`."""
        if self.decision is None or self.decision.position is None:
            return 0
        return self.run.partial_tokens + sum(a < len(self.kept) for a, _ in self.generation.offsets)

    def accept(self, listener: Listener | None) -> None:
        """The text stays as it is and the question is answered."""
        self._record(self.generation.text, listener)
        if self.ending:
            self.run.record(Round(self.ending, None, None, (), self.ending), listener)
        self.run.partial = self.text + self.ending

    def extend(self, listener: Listener | None) -> None:
        """The text stays as it is, and the question goes on from its end."""
        accepted = self.generation.text.rstrip()
        self._record(accepted, listener)
        self.run.partial += accepted
        self.run.partial_tokens += len(self.generation.token_ids)
        self.run.fresh = False

    def truncate(self, listener: Listener | None) -> None:
        """The text before the hit stays, and the question goes on from there."""
        assert self.decision is not None
        self._record(self.kept, listener)
        self.run.partial, self.run.partial_tokens = self.next_partial, self.next_tokens
        self.run.fresh = self.decision.position is not None

    def _record(self, accepted: str, listener: Listener | None) -> None:
        generation = self.generation
        ids = () if self.query is None else self.run.passage_ids
        done = Round(generation.text, self.decision, self.query, ids, accepted, generation.offsets)
        self.run.record(done, listener)


class Writer:
    """Writes for the questions of one call of :meth:`probers.rag.loop.RAG.answer`.

    What it has computed of a question it need not compute again where the question goes on
    from there (:class:`probers.engine.kv_cache.PrefixCache`).
    """

    def __init__(self, rag: RAG) -> None:
        self._rag = rag
        self._cache = PrefixCache()

    def generate(self, active: Sequence[Open], listener: Listener | None) -> list[Pass]:
        """The continuation of every open question, each within what is left of its token limit."""
        rag = self._rag
        alike: dict[int | None, list[int]] = {}  # by what can end a text early
        aheads = [self._ahead(run) for run in active]
        for index, ahead in enumerate(aheads):
            alike.setdefault(None if ahead is None else ahead.sentences, []).append(index)
        passes: dict[int, Pass] = {}
        for indices in alike.values():
            first = aheads[indices[0]]
            over = None if first is None else first.over(rag.prompt.stop)
            stop: list[str | Callable[[str], bool]] = list(rag.prompt.stop)
            if over is not None:
                stop.append(over)
            if listener is not None and len(indices) == 1:
                stop.append(_tell(listener, active[indices[0]].question))
            budgets = [rag.max_new_tokens - active[i].partial_tokens for i in indices]
            limits = [
                budget if ahead is None else ahead.limit(budget, rag.prompt.stop)
                for budget, ahead in zip(budgets, (aheads[i] for i in indices), strict=True)
            ]
            made = rag.lm.generate(
                [active[i].prompt(rag.prompt, active[i].partial) for i in indices], max_new_tokens=limits,
                needs=rag.needs, stop=stop, prefix=rag.prompt.prefix,
                names=[active[i].question.id for i in indices], cache=self._cache, draft=rag.draft,
            )  # fmt: skip
            for i, budget, limit, generation in zip(indices, budgets, limits, made, strict=True):
                early = generation.stop == "length" and limit < budget
                early |= generation.stop == "stop" and over is not None and over(generation.text)
                passes[i] = Pass(active[i], generation, cut=early and len(generation.token_ids) < budget)
                active[i].counters.add(generation)
        return [passes[i] for i in range(len(active))]

    def _ahead(self, run: Open) -> LookAhead | None:
        """How much of the next text the trigger looks at; None where it cannot fire any more."""
        rag = self._rag
        if run.counters.retrievals >= rag.max_retrievals or getattr(rag.trigger, "judges_answer", False):
            return None
        return look_ahead(rag.trigger, run.question)

    def complete(self, passes: Sequence[Pass]) -> None:
        """Append the announcing words to texts that ended without an answer, and let the model go on."""
        rag = self._rag
        cue = rag.prompt.answer_cue
        short = [p for p in passes if cue.lower() not in p.text.lower() and rag.answer_tokens]
        if not short:
            return
        heads = [("" if p.text[-1:].isspace() else " ") + cue for p in short]
        prompts = [p.run.prompt(rag.prompt, p.text + head) for p, head in zip(short, heads, strict=True)]
        made = rag.lm.generate(
            prompts, max_new_tokens=rag.answer_tokens, stop=rag.prompt.stop, prefix=rag.prompt.prefix,
            names=[p.run.question.id for p in short], cache=self._cache, draft=rag.draft,
        )  # fmt: skip
        for each, head, generation in zip(short, heads, made, strict=True):
            each.run.counters.add(generation)
            each.run.counters.forced = True
            each.ending = head + generation.text


def _tell(listener: Listener, question: Question) -> Callable[[str], bool]:
    def watch(text: str) -> bool:
        listener.text(question, text)
        return False

    return watch


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
            in its batch, and checked in one pass (:mod:`probers.engine.speculative`); 0 guesses none.
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
