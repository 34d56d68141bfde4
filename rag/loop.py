"""Loop of generating, deciding, querying and retrieving, for many questions at once.

Open questions go through each round together, in one batch of the model. Decisions use the signals of the
same pass that generated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.data.corpus import search
from probers.evaluation.answers import final_answer
from probers.model.kv_cache import PrefixCache
from probers.model.language_model import SentenceEnd, Stop, check_model
from probers.options import check_keywords
from probers.prompts import passages_that_fit
from probers.types import Generation, Needs, Question, Retriever, UserError
from probers.words.text import split_sentences

from .build import check_readable, make_prompt, make_query, make_retriever, make_trigger
from .protocol import LookAhead, State, at_least, check_counts, decide, decide_before, filter_of, name_of
from .traces import Answer, Listener, OpenQuestion, TraceFile

if TYPE_CHECKING:
    from probers.model.causal_lm import CausalLM

    from .remote import RemoteLM


_CHUNK = 64  # questions answered together and then written; a kill loses no more
_NOTHING = Needs()
#: Called after each round with the number of questions that ended in it.
Ended = Callable[[int], object]
Asked = Sequence[str | Question]  # questions, or their texts


class _Rounds:
    """Rounds of one call of :meth:`RAG.answer`; a question that goes on reuses its keys and values."""

    def __init__(self, rag: RAG, listener: Listener | None, ended: Ended | None) -> None:
        self._rag, self._listener, self._ended = rag, listener, ended
        self._cache = PrefixCache()

    def answer(self, questions: Sequence[Question]) -> list[OpenQuestion]:
        everyone = active = [OpenQuestion(question, self._listener) for question in questions]
        if self._rag.max_retrievals and self._rag.trigger.before:
            self._begin(everyone)
        while active:
            before, active = len(active), self._round(active)
            if self._ended is not None:
                self._ended(before - len(active))
        return everyone

    def _begin(self, everyone: Sequence[OpenQuestion]) -> None:
        """Retrieve with the question if the trigger wants that before anything is generated."""
        states = [self._state(each, each.prompt(self._rag.prompt, "")) for each in everyone]
        for each, verdict in zip(everyone, decide_before(self._rag.trigger, states), strict=True):
            each.verdict = verdict
        fired = [each for each in everyone if each.verdict is None or each.verdict.fire]
        self._retrieve([(each, each.question.question, None) for each in fired])
        for each in fired:
            each.begin()

    def _round(self, active: Sequence[OpenQuestion]) -> list[OpenQuestion]:
        """Run one round of every open question; return those that go on."""
        rag = self._rag
        self._write(active)
        # The model was told to leave prompts that are "skipped" out.
        skipped = [each for each in active if each.written.stop == "skipped"]
        read = [each for each in active if each.reading and each not in skipped]
        judged = [each for each in active if not each.reading and each not in skipped]
        going_on = [*self._take(read), *self._judge(judged)]
        ended = [each for each in (*read, *judged) if each not in going_on]
        if not rag.trigger.reads_answer:
            self._complete([each for each in ended if not each.abstains])
        for each in (*skipped, *ended):
            each.accept()
        return going_on

    def _take(self, read: Sequence[OpenQuestion]) -> list[OpenQuestion]:
        """Accept text that needs no judging; return the questions that go on."""
        rag, going_on = self._rag, []
        for each in read:
            sentences = split_sentences(each.written.text) if rag.trigger.takes == "sentence" else []
            each.take(sentences[0][1] if sentences else None)
            answered = rag.prompt.answer_cue.lower() in each.text.lower()
            if each.stays.strip() and not answered and each.tokens < rag.max_new_tokens:
                each.extend()
                going_on.append(each)
        return going_on

    def _judge(self, judged: Sequence[OpenQuestion]) -> list[OpenQuestion]:
        """Ask the trigger, and retrieve if it fires; return the questions that go on."""
        rag = self._rag
        completed, reads = rag.trigger.reads_answer, rag.trigger.takes != "nothing"
        if completed:
            self._complete(judged)
        states = [self._state(each, each.written.prompt, completed=completed) for each in judged]
        decisions = decide(rag.trigger, [each.written for each in judged], states)
        searches = []
        for each, state, decision in zip(judged, states, decisions, strict=True):
            each.decide(decision, alarms=rag.trigger.decides_by == "text")
            each.refused.update(decision.left_out)
            searches_left = each.counters.retrievals < rag.max_retrievals
            room = searches_left and each.before_hit.tokens < rag.max_new_tokens
            if decision.fire and room and not decision.abstain:
                searches.append((each, rag.query(each.question, each.written, decision, state), state))
        self._retrieve(searches)
        going_on = [each for each in judged if each.query is not None or (each.cut and not each.abstains)]
        for each in going_on:
            if each.query is None:
                each.extend()
                continue
            following = each.prompt(rag.prompt, each.before_hit.text)
            # After the same prompt the model would write the same text.
            again = not reads and not each.cut and following == each.written.prompt
            each.truncate(reading=reads, again=again)
        return going_on

    def _write(self, active: Sequence[OpenQuestion]) -> None:
        """Generate the continuation of every open question, up to its look-ahead and token limit."""
        trigger, most = self._rag.trigger, self._rag.max_retrievals
        # Groups of questions whose texts are ended early by the same rule.
        alike: dict[tuple[bool, int | None], list[tuple[OpenQuestion, LookAhead]]] = {}
        for each in active:
            if each.again is not None:
                each.write(each.again, cut=False)
                continue
            may_fire = not each.reading and each.counters.retrievals < most and not trigger.reads_answer
            ahead = (trigger.look_ahead(each.question) if may_fire else None) or LookAhead()
            alike.setdefault((each.reading, ahead.sentences), []).append((each, ahead))
        for (reading, _), group in alike.items():
            self._write_together(group, reading)

    def _write_together(self, group: Sequence[tuple[OpenQuestion, LookAhead]], reading: bool) -> None:
        rag, over = self._rag, group[0][1].over(self._rag.prompt.ends)
        stop: list[Stop] = [*rag.prompt.ends, *([] if over is None else [over])]
        if reading and rag.trigger.takes == "sentence":
            stop.append(SentenceEnd())
        if self._listener is not None and len(group) == 1:
            hear = partial(self._listener.text, group[0][0].question)
            stop.append(hear)  # type: ignore[arg-type]  # it returns None, which never ends a text
        budgets = [rag.max_new_tokens - each.accepted.tokens for each, _ in group]
        limits = [a.limit(budget, rag.prompt.ends) for (_, a), budget in zip(group, budgets, strict=True)]
        open_, needs = [each for each, _ in group], _NOTHING if reading else rag.needs
        texts = [each.accepted.text for each in open_]
        generations = self._generate(open_, texts, limits, stop=stop, needs=needs)
        for each, budget, limit, generation in zip(open_, budgets, limits, generations, strict=True):
            early = generation.stop == "length" and limit < budget
            early |= generation.stop == "stop" and over is not None and over(generation.text)
            each.write(generation, cut=early and len(generation.token_ids) < budget)

    def _complete(self, passes: Sequence[OpenQuestion]) -> None:
        """Append the announcing words to texts that ended without an answer, and let the model go on."""
        rag, cue = self._rag, self._rag.prompt.answer_cue
        short = [each for each in passes if cue.lower() not in each.text.lower() and rag.answer_tokens]
        if not short:
            return
        announcing = [("" if each.text[-1:].isspace() else " ") + cue for each in short]
        partials = [each.text + words for each, words in zip(short, announcing, strict=True)]
        answers = self._generate(short, partials, [rag.answer_tokens] * len(short), stop=rag.prompt.ends)
        for each, words, generation in zip(short, announcing, answers, strict=True):
            each.complete(words, generation)

    def _generate(
        self, open_: Sequence[OpenQuestion], partials: Sequence[str], limits: Sequence[int], *,
        stop: Sequence[Stop], needs: Needs = _NOTHING,
    ) -> list[Generation]:  # fmt: skip
        rag = self._rag
        prompts = [each.prompt(rag.prompt, text) for each, text in zip(open_, partials, strict=True)]
        return rag.generate(
            prompts, max_new_tokens=limits, needs=needs, stop=stop, prefix=rag.prompt.prefix,
            names=[each.question.id for each in open_], cache=self._cache, draft=rag.draft,
        )  # fmt: skip

    def _retrieve(self, searches: Sequence[tuple[OpenQuestion, str, State | None]]) -> None:
        """Search for all at once; give each question the passages found that its prompt can hold.

        Searches with a state are the query's, which may find the passages its own way.
        """
        if not searches:
            return
        rag, cue = self._rag, self._rag.prompt.answer_cue
        everyone, queries, states = zip(*searches, strict=True)
        most = max(len(each.refused) for each in everyone)
        if None not in states and hasattr(rag.query, "find"):
            hits = rag.query.find(queries, states, rag.retriever, rag.k + most)
        else:
            hits = search(rag.retriever, queries, rag.k + most)
        results = [
            [passage for passage in passages if passage.id not in each.refused][: rag.k]
            for each, passages in zip(everyone, hits, strict=True)
        ]
        shown = passages_that_fit(
            rag.lm.fits, rag.prompt,
            [
                (each.question.question, [p.text for p in passages], f"{each.before_hit.text} {cue}")
                for each, passages in zip(everyone, results, strict=True)
            ],
            # Everything that may still be written, an announcement of the answer included.
            [rag.max_new_tokens - each.before_hit.tokens + rag.answer_tokens for each in everyone],
        )  # fmt: skip
        for each, query, passages, count in zip(everyone, queries, results, shown, strict=True):
            each.retrieve(query, passages, count)

    def _state(self, each: OpenQuestion, shown: str, *, completed: bool = False) -> State:
        """Build the state of a question whose prompt is ``shown``."""
        rag, question, written = self._rag, each.question, each.accepted.text
        text = each.text + each.ending if completed else ""
        answer = final_answer(text, rag.prompt.answer_cue, question.dataset) if completed else None
        return State(
            question, rag.lm, rag.prompt, rag.prompt.question_span(shown, question.question, written),
            written, passages=each.passages, retrievals=each.counters.retrievals, fresh=each.accepted.fresh,
            verdict=each.verdict, answer=answer, final=each.final if completed else None,
            budget=rag.max_new_tokens - each.accepted.tokens, answer_tokens=rag.answer_tokens,
            spend=each.counters.add, generate=rag.generate, retriever=rag.retriever,
        )  # fmt: skip


def _as_questions(given: Asked) -> list[Question]:
    """Make questions of texts, named by their places from 1 on (UserError: one text, or something else)."""
    each = [Question(str(n), q) if isinstance(q, str) else q for n, q in enumerate(given, 1)]
    if odd := [given] if isinstance(given, str) else [q for q in each if not isinstance(q, Question)]:
        message = f"questions must be a list of texts or Question objects, found {odd[0]!r:.80}"
        raise UserError(f"{message}: correct it, or call rag(question) for one")
    return each


_NEEDED = {"passages": '["..", ".."], a file or a retriever', "trigger": '"entropy", or a prober'}
_LEAST = {"k": 1, "max_new_tokens": 1, "max_retrievals": 0, "answer_tokens": 0, "draft": 0}


@dataclass
class RAG:
    """Loop that answers questions with retrieval on demand.

    A question is answered when the trigger does not fire or a limit is reached. If a retrieval brings only
    what the prompt already shows, the greedy model would write the same text: it is judged and counted again.

    Attributes:
        lm: the language model.
        passages: a retriever; or a corpus for BM25: texts, dictionaries with ``text``, passages, or the
            name of a corpus or file.
        trigger: a trigger, its name such as "rind", or a trained prober, whose heads choose the trigger.
        query: a query formulation or its name; None is the one that the trigger usually has, such as "qfs"
            for "rind".
        prompt: a template or its name; None is the form that fits the model (prompt=auto).
        k: passages per retrieval. They replace the earlier ones in the prompt.
        max_new_tokens: tokens of the answer's text, without discarded ones.
        max_retrievals: searches per question; the answer after the last is accepted.
        answer_tokens: further tokens for a final answer if the text ended without one and the announcing
            words had to be appended; 0 leaves the text without a final answer.
        draft: tokens guessed at once from prompt and discarded text and checked in one pass, while a question
            is alone in its batch (:mod:`probers.model.decode`); 0 guesses none.
    """

    lm: CausalLM | RemoteLM
    passages: Any = None
    trigger: Any = None
    query: Any = None
    prompt: Any = None
    k: int = 3
    max_new_tokens: int = 64
    max_retrievals: int = 3
    answer_tokens: int = 16
    draft: int = 8

    def __new__(cls, *given: Any, **options: Any) -> RAG:
        """Refuse an unknown option by name (UserError)."""
        check_keywords(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, form in _NEEDED.items():
            if vars(self)[name] is None:
                problem = f"RAG(lm, passages=.., trigger=..) lacks {name}"
                raise UserError(f"{problem}: give {form}", "missing-value")
        check_model("RAG", self.lm)
        for name, least in _LEAST.items():
            at_least(name, vars(self)[name], least)
        self.passages = make_retriever(self.passages)
        self.trigger = make_trigger(self.trigger)
        self.query = make_query(self.query, self.trigger)
        self.prompt = make_prompt(self.prompt)
        try:
            self.needs = self.trigger.needs.union(self.query.needs)
        except ValueError as error:
            raise UserError(f"this trigger and query do not go together: {error}", "conflict") from error
        check_readable(self.lm, self.trigger, self.query)
        check_counts(self.trigger, self.retriever)
        self.prompt = self.prompt.bind(getattr(self.lm, "tokenizer", None))
        self.trigger.check(self.lm.spec, self.prompt)

    def __repr__(self) -> str:
        parts = (self.lm.spec.id, type(self.retriever).__name__, self.trigger.name, name_of(self.query))
        return "RAG(lm={}, passages={}, trigger={}, query={})".format(*parts)

    @property
    def retriever(self) -> Retriever:
        """The retriever of the passages."""
        return self.passages  # type: ignore[no-any-return]

    def __call__(self, question: str | Question, listener: Listener | None = None) -> Answer:
        if not isinstance(question, (str, Question)):
            message = f"one question is asked, a text or a Question, found {type(question).__name__}"
            raise UserError(f"{message}: call rag.answer for several")
        asked = Question("question", question) if isinstance(question, str) else question
        return self.answer([asked], listener)[0]

    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int | Sequence[int], **options: Any
    ) -> list[Generation]:
        """Generate every text of the loop, as :meth:`probers.model.causal_lm.CausalLM.generate`."""
        return self.lm.generate(prompts, max_new_tokens=max_new_tokens, **options)

    def answer(
        self, questions: Asked, listener: Listener | None = None, *, ended: Ended | None = None
    ) -> list[Answer]:
        """Answer questions together, in order; each gets the same answer as alone.

        The id of a question that is a text is its place, from 1 on.
        ``listener`` hears of every text and round; ``ended`` hears after each round how many questions ended.
        UserError if the trigger needs gold answers and a question has none, RunError for a score of NaN.
        """
        asked = _as_questions(questions)
        self.trigger.check_questions(asked)
        started = time.perf_counter()
        everyone = _Rounds(self, listener, ended).answer(asked)
        seconds = (time.perf_counter() - started) / max(1, len(everyone))
        words = filter_of(self.trigger, self.query)
        return [each.answer(self.prompt.answer_cue, seconds, words) for each in everyone]

    def run(self, questions: Asked, path: Path, *, progress: str | None = None) -> list[Answer]:
        """Answer questions into a trace file, in its order; resume where an earlier run of it stopped."""
        from probers.progress import Bar

        questions, file = _as_questions(questions), TraceFile(path)
        answers = file.resume(questions)
        total, options = len(questions), {"desc": progress, "unit": "question", "disable": progress is None}
        with Bar(total=total, initial=total - answers.count(None), **options) as bar:
            # Use the chunks of an uninterrupted run: the last digits of scores depend on the batch.
            for start in range(0, total, _CHUNK):
                chunk = [i for i in range(start, min(start + _CHUNK, total)) if answers[i] is None]
                if not chunk:
                    continue
                between = any(answers[chunk[0] :])
                more = self.answer([questions[i] for i in chunk], ended=bar.update)
                for i, answer in zip(chunk, more, strict=True):
                    answers[i] = answer
                if between:
                    file.rewrite(answers)
                else:
                    file.append(more)
        return [answer for answer in answers if answer is not None]
