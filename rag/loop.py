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

from probers.answers import extract_answer
from probers.prompts import TESTBED_PROMPT, PromptTemplate
from probers.text import split_sentences
from probers.types import Decision, Generation, Needs, Passage, Question, Retriever, Round, UserError

from .queries.answer import AnswerQuery
from .queries.base import QueryFormulator
from .traces import Answer, Counters, TraceFile
from .triggers.base import State, Trigger, check, decide

if TYPE_CHECKING:
    from probers.lm import CausalLM

_CHUNK = 64  # questions answered together and then written: what a kill can lose


class Listener(Protocol):
    """Told what happens while questions are answered; the terminal's view of the loop."""

    def text(self, question: Question, text: str) -> None:
        """The text of the running generation has grown to ``text``."""

    def round(self, question: Question, done: Round, passages: Sequence[Passage]) -> None:
        """A round is over; ``passages`` are those it fetched."""


@dataclass(slots=True)
class _Open:
    """A question on its way through the loop."""

    question: Question
    partial: str = ""  # accepted so far; the next prompt ends with it
    partial_tokens: int = 0
    passages: tuple[Passage, ...] = ()
    fresh: bool = False
    rounds: list[Round] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)


@dataclass
class RAG:
    """Answers questions with retrieval on demand.

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
        stop: strings before which a generation ends.
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
    stop: tuple[str, ...] = ("\n",)

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("max_new_tokens", 1), ("max_retrievals", 0), ("answer_tokens", 0)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be {least} or more")
        try:
            self._needs = self.trigger.needs.union(self.query.needs)
        except ValueError as error:
            raise UserError(f"this trigger and query do not go together: {error}") from error
        check(self.trigger, self.lm.spec, self.prompt)

    def __call__(self, question: str | Question, listener: Listener | None = None) -> Answer:
        """Answer one question."""
        asked = Question("question", question) if isinstance(question, str) else question
        return self.answer([asked], listener)[0]

    def answer(self, questions: Sequence[Question], listener: Listener | None = None) -> list[Answer]:
        """Answer questions together, in order; each as it would be alone.

        Raises:
            RunError: a trigger's score is not a number.
        """
        started = time.perf_counter()
        everyone = [_Open(q) for q in questions]
        if getattr(self.trigger, "before", False) and self.max_retrievals:
            self._retrieve(everyone, [q.question for q in questions])
            for run in everyone:
                self._record(run, Round("", None, run.question.question, _ids(run), ""), listener)
        active = everyone
        while active:
            active = self._round(active, listener)
        seconds = (time.perf_counter() - started) / max(1, len(everyone))
        for run in everyone:
            run.counters.seconds = seconds
        return [self._finished(run) for run in everyone]

    def run(
        self, questions: Sequence[Question], path: Path, *, progress: str | None = None
    ) -> list[Answer]:
        """Answer questions into a trace file, going on where an earlier run of it stopped.

        Args:
            path: JSON lines, one per question in order.
            progress: name of a progress bar, None for none.
        """
        from tqdm import tqdm

        file = TraceFile(path)
        answers = file.resume(questions)
        bar = tqdm(
            total=len(questions), initial=len(answers), desc=progress, unit="question", disable=progress is None
        )
        with bar:
            while len(answers) < len(questions):
                done = self.answer(questions[len(answers) : len(answers) + _CHUNK])
                file.append(done)
                answers += done
                bar.update(len(done))
        return answers

    def _round(self, active: list[_Open], listener: Listener | None) -> list[_Open]:
        """One pass for every open question; returns those that go on."""
        generations = self._generate(active, listener)
        judges = getattr(self.trigger, "judges_answer", False)
        texts = [run.partial + g.text for run, g in zip(active, generations, strict=True)]
        endings = self._endings(active, texts) if judges else [""] * len(active)
        finals = [self._extract(t + e) if judges else None for t, e in zip(texts, endings, strict=True)]
        states = [self._state(*each) for each in zip(active, generations, finals, strict=True)]
        decisions = decide(self.trigger, generations, states)

        fired: list[int] = []
        accepted: list[int] = []
        for index, (run, decision) in enumerate(zip(active, decisions, strict=True)):
            searches_left = run.counters.retrievals < self.max_retrievals
            tokens_left = self.max_new_tokens - run.partial_tokens - _kept(generations[index], decision)[1]
            (fired if decision.fire and searches_left and tokens_left else accepted).append(index)
        if not judges:
            for index, ending in zip(
                accepted, self._endings([active[i] for i in accepted], [texts[i] for i in accepted]), strict=True
            ):
                endings[index] = ending
        for index in accepted:
            self._accept(active[index], generations[index], decisions[index], endings[index], listener)

        queries = [
            self.query(active[i].question, generations[i], decisions[i], states[i]) for i in fired
        ]
        going = [active[i] for i in fired]
        self._retrieve(going, queries)
        for index, query in zip(fired, queries, strict=True):
            self._truncate(active[index], generations[index], decisions[index], query, listener)
        return going

    def _generate(self, active: Sequence[_Open], listener: Listener | None) -> list[Generation]:
        """The continuation of every open question, each within what is left of its token limit."""
        by_budget: dict[int, list[int]] = {}
        for index, run in enumerate(active):
            by_budget.setdefault(self.max_new_tokens - run.partial_tokens, []).append(index)
        generations: dict[int, Generation] = {}
        for budget, indices in sorted(by_budget.items()):
            stop: list[str | Callable[[str], bool]] = list(self.stop)
            if listener is not None and len(indices) == 1:
                stop.append(_tell(listener, active[indices[0]].question))
            made = self.lm.generate(
                [self._prompt(active[i]) for i in indices], max_new_tokens=budget, needs=self._needs, stop=stop
            )
            generations.update(zip(indices, made, strict=True))
        for index, run in enumerate(active):
            self._count(run, generations[index])
        return [generations[i] for i in range(len(active))]

    def _endings(self, active: Sequence[_Open], texts: Sequence[str]) -> list[str]:
        """What has to be appended to each text so that it ends in an answer; mostly nothing."""
        cue = self.prompt.answer_cue
        short = [i for i, text in enumerate(texts) if cue.lower() not in text.lower() and self.answer_tokens]
        endings = [""] * len(active)
        if not short:
            return endings
        heads = {i: ("" if texts[i][-1:].isspace() else " ") + cue for i in short}
        prompts = [self._prompt(active[i], texts[i] + heads[i]) for i in short]
        made = self.lm.generate(prompts, max_new_tokens=self.answer_tokens, needs=Needs(), stop=list(self.stop))
        for index, generation in zip(short, made, strict=True):
            self._count(active[index], generation)
            active[index].counters.forced = True
            endings[index] = heads[index] + generation.text
        return endings

    def _retrieve(self, runs: Sequence[_Open], queries: Sequence[str]) -> None:
        """Search for all at once; what is found takes the place of earlier passages, also when nothing is."""
        if not runs:
            return
        for run, passages in zip(runs, self.retriever.search(queries, self.k), strict=True):
            run.passages = tuple(passages)
            run.counters.retrievals += 1
            run.counters.empty_retrievals += not passages

    def _accept(
        self, run: _Open, generation: Generation, decision: Decision, ending: str, listener: Listener | None
    ) -> None:
        run.partial += generation.text + ending
        text = generation.text
        self._record(run, Round(text, decision, None, (), text, generation.offsets), listener)
        if ending:
            self._record(run, Round(ending, None, None, (), ending), listener)

    def _truncate(
        self, run: _Open, generation: Generation, decision: Decision, query: str, listener: Listener | None
    ) -> None:
        """Keep the text before the place where the trigger fired, or nothing of the answer."""
        kept, tokens = _kept(generation, decision)
        whole = decision.position is None
        run.partial = "" if whole else run.partial + kept
        run.partial_tokens = 0 if whole else run.partial_tokens + tokens
        run.fresh = not whole
        done = Round(generation.text, decision, query, _ids(run), kept, generation.offsets)
        self._record(run, done, listener)

    def _prompt(self, run: _Open, partial: str | None = None) -> str:
        texts = [p.text for p in run.passages]
        shown = run.partial if partial is None else partial
        return self.prompt.question(run.question.question, texts, partial=shown)

    def _state(self, run: _Open, generation: Generation, final: str | None) -> State:
        after = self.prompt.question_form.partition("{question}")[2].format()
        end = len(generation.prompt) - len(run.partial) - len(after)
        return State(
            question=run.question,
            lm=self.lm,
            prompt=self.prompt,
            question_span=(end - len(run.question.question), end),
            partial=run.partial,
            passages=run.passages,
            retrievals=run.counters.retrievals,
            fresh=run.fresh,
            answer=final,
        )

    def _extract(self, text: str) -> str:
        return extract_answer(text, self.prompt.answer_cue)

    def _count(self, run: _Open, generation: Generation) -> None:
        run.counters.generations += 1
        run.counters.tokens += len(generation.token_ids)
        run.counters.sentences += len(split_sentences(generation.text))

    def _record(self, run: _Open, done: Round, listener: Listener | None) -> None:
        run.rounds.append(done)
        if listener is not None:
            listener.round(run.question, done, run.passages if done.query is not None else ())

    def _finished(self, run: _Open) -> Answer:
        text = run.partial.strip()
        return Answer(
            run.question.id, run.question.question, text, self._extract(text), tuple(run.rounds), run.counters
        )


def _kept(generation: Generation, decision: Decision) -> tuple[str, int]:
    """The text that stays when the decision fires, and its number of tokens."""
    if decision.position is None:
        return "", 0
    # A trailing space would keep the next word from being tokenised together with its own.
    kept = generation.text[: decision.position].rstrip()
    return kept, sum(start < len(kept) for start, _ in generation.offsets)


def _ids(run: _Open) -> tuple[str, ...]:
    return tuple(p.id for p in run.passages)


def _tell(listener: Listener, question: Question) -> Callable[[str], bool]:
    def watch(text: str) -> bool:
        listener.text(question, text)
        return False

    return watch
