"""Plan of a comparison, settled before the model runs, and its way from thresholds to findings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.cli.components import Component
from probers.data.questions import EmptySplitError, QuestionSet, QuestionSource, open_questions
from probers.data.questions.jsonl import Given
from probers.progress import Whole
from probers.types import SPLITS, Needs, Passage, Question, Retriever, UserError

from ..build import Contamination
from ..traces import questions_of
from ..triggers.rules import Never
from . import workload
from .curves import REPLAY, index, record_all, rerun_all
from .findings import Comparison, Findings
from .methods import Method, MethodRun, with_retrievers
from .shared_generations import GenerationCache, SharedRAG, joined
from .trajectories import Tuned, tune_once

if TYPE_CHECKING:
    from probers.cli.merge import PartRuns
    from probers.data.splits import Partition
    from probers.evaluation.answers import Rule
    from probers.prober.decision import ThresholdRule
    from probers.prober.prober import Prober
    from probers.words import EntityMatcher

    from ..settings import Compare

log = logging.getLogger(__name__)


#: File of chosen thresholds in a comparison.
THRESHOLDS = "thresholds.json"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Choice of the questions of a comparison.

    Attributes:
        chosen: the questions to ask, with the record of their choice.
        split: their split, or "all".
        tuned_on: split of the questions that thresholds are chosen on.
        validation: function that reads those questions; EmptySplitError if there are none.
    """

    chosen: QuestionSet
    split: str
    tuned_on: str
    validation: Callable[[], QuestionSet]

    @classmethod
    def of(
        cls, source: QuestionSource, methods: Sequence[Method], contamination: Contamination,
        settings: Compare, validation: QuestionSource | int | None,
    ) -> Choice:  # fmt: skip
        """Choose the questions of a split that no trained part has seen.

        ``settings`` have their number, seed and split: "test", or "all" for methods without a threshold to
        choose. ``validation`` are other questions to choose thresholds on, without those asked; or the
        largest number of the source's own.
        """
        split = str(settings.split)
        draw: dict[str, Any] = {"seed": settings.seed, "on_bad_line": settings.on_bad_line}
        own = not isinstance(validation, QuestionSource)
        deal = own and (bool(contamination.silent) or any(method.tunable for method in methods))
        find = partial(open_questions, source, limit=settings.limit, unfit=contamination.not_asked, **draw)
        if split == "all":
            tuned = [method.name for method in methods if method.tunable or method.calibrated]
            if tuned and own:
                names = ", ".join(tuned)
                message = f"split=all also asks questions on which thresholds of {names} are chosen"
                raise UserError(f"{message}: leave them out of triggers, or give split=test", "conflict")
            chosen, split, tuned_on = find(deal_splits=True), "all", "validation"
        else:
            # Many question sets do not publish their test answers. Their validation questions are then
            # asked, and thresholds come from their training questions.
            try:
                chosen, tuned_on = find(split="test", deal_splits=deal), "validation"
            except EmptySplitError as problem:
                split, tuned_on = "validation", "train"
                try:
                    chosen = find(split=split, deal_splits=deal)
                except EmptySplitError:
                    raise problem from None
        draw |= {"deal_splits": deal, "unfit": contamination.not_tuned_on}
        if not isinstance(validation, QuestionSource):
            tuning = partial(open_questions, source, split=tuned_on, limit=validation, **draw)
        else:
            texts = {question.question for question in chosen.questions}
            draw["unfit"] = lambda q: q.question in texts or contamination.not_tuned_on(q)
            tuned_on, tuning = "validation", partial(open_questions, validation, limit=None, **draw)
        return cls(chosen=chosen, split=split, tuned_on=tuned_on, validation=tuning)

    @property
    def questions(self) -> list[Question]:
        return self.chosen.questions

    def notes(self) -> list[str]:
        """Tell which questions are asked, where that is not as the set names them."""
        notes, record = list(self.chosen.notes), self.chosen.record
        splits = ", ".join(f"{record['splits'][name]} {name}" for name in SPLITS if name in record["splits"])
        if record["dealt"]:
            why = f"thresholds are chosen on {self.tuned_on} questions: asked are {self.split} questions"
            asks = ": all are asked" if self.split == "all" else f", for {why}"
            notes.append(f"The questions name no splits and were dealt ({splits}){asks}.")
            log.info("%s", notes[-1])
        elif self.split != "all" and "," in splits and record["source"] == Given().spec:
            notes.append(f"The questions name their splits ({splits}): asked are {self.split} questions.")
            log.info("%s", notes[-1])
        if self.split == "all":
            notes.append("These are the questions of all splits.")
        elif self.split != "test":
            notes.append(f"There are no test questions: these are of the {self.split} split.")
        return notes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Methods, questions and passages of a comparison on equal terms.

    ``settings`` have the terms that are equal for all methods, ``loop`` are the arguments of
    :class:`~probers.rag.loop.RAG` for prompt and limits. ``matcher`` judges answers by meaning, if given, and
    ``right`` whether they are right; ``rule`` chooses thresholds.
    ``retriever`` is made from the passages if it is a component; ``banks`` are the probers by name, ``read``
    the folders and hub ids of all trained parts, and ``trained`` those of the keys that name one.
    """

    settings: Compare
    loop: Mapping[str, Any]
    matcher: EntityMatcher | None
    right: Rule
    rule: ThresholdRule
    methods: Sequence[Method]
    choice: Choice
    passages: Sequence[Passage]
    retriever: Component | Retriever
    banks: Mapping[str, Prober]
    notes: Sequence[str] = ()
    read: Sequence[str] = ()
    trained: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, lm: Any, out: Path, config: Mapping[str, Any], *, heading: Mapping[str, Any],
        parts: PartRuns | None = None,
    ) -> Comparison:  # fmt: skip
        """Answer all questions with every method, and measure; resume from the traces in ``out``.

        ``config`` and ``heading`` (command, model, corpus) are those of the records. The answers of the
        finished ``parts`` of a run are taken from them.
        """
        notes = list(self.notes)
        with self._answered(lm, out, notes) as (rag, reference, runs, tuned, bar):
            bar.stage(workload.REPLAY)
            recorded = record_all(rag, runs.values(), out / REPLAY, parts=parts)
            bar.stage(workload.CURVES)
            reruns = rerun_all(
                rag, runs.values(), reference, recorded, out / REPLAY, points=self.settings.sweep
            )
        findings = Findings(
            self.settings, runs, reference, recorded, reruns, self.passages, self.banks, notes, bool(tuned)
        )
        return findings.compared(config, heading)

    def run_part(self, lm: Any, out: Path, part: Partition) -> int:
        """Answer the questions of a part into ``out``; return their number."""
        with self._answered(lm, out, [], part) as (rag, reference, runs, _, bar):
            bar.stage(workload.REPLAY)
            index(record_all(rag, runs.values(), out / REPLAY, every=True), out / REPLAY)
        return len(reference.questions)

    @contextmanager
    def _answered(
        self, lm: Any, out: Path, notes: list[str], part: Partition | None = None
    ) -> Iterator[tuple[SharedRAG, MethodRun, dict[str, MethodRun], Mapping[str, Tuned], Whole]]:
        """Answer with every method; give loop, closed-book run, all runs, chosen thresholds, and the bar."""
        retriever, cache = self.retriever, GenerationCache(megabytes=self.settings.memory)
        retriever = retriever.make(self.passages) if isinstance(retriever, Component) else retriever
        rag = SharedRAG(lm, retriever, Never(), **self.loop, cache=cache)
        methods = with_retrievers(self.methods, self.passages)
        for method in methods:  # a model is refused before anything runs
            method.loop(rag)
        # The closed-book pass records as much as one pass can of what all methods need; states of tokens are
        # large and come last.
        needs = [part.needs for method in methods for part in (method.trigger, method.query)]
        needs.sort(key=lambda each: any(feature.pool != "mean" for feature in each.features))
        every = reduce(joined, needs, Needs())
        closed = next((m for m in methods if isinstance(m.trigger, Never)), None)
        if closed is None:
            notes.append("The closed-book answers that judge the triggers come from a run not in the table.")
            closed = Method("never", Never(), rag.query)
        questions = questions_of(self.choice.questions, part)
        tunes = any(m.tunable or m.calibrated for m in methods) and not (out / THRESHOLDS).exists()
        work = workload.Workload.of(
            methods, len(questions), tuned_on=len(self._tuned_on) if tunes else 0, reference=closed.name,
            retrievals=rag.max_retrievals, sweep=0 if part is not None else self.settings.sweep,
            traces=out / "traces",
        )  # fmt: skip
        log.info("%s", work.summary(len(methods), len(questions)))
        with Whole(work.lengths) as bar:
            started = time.monotonic()
            bar.stage(workload.THRESHOLDS)
            tuned = self._tune(rag, methods, out / THRESHOLDS, notes)
            bar.stage(closed.name)
            reference = self._run(replace(rag, also=every), closed, None, questions, out)
            if left := work.left(closed.name, time.monotonic() - started):
                log.info("%s", left)
            # Attention is large, and read in the middle of answers, which methods hardly ever share.
            rag = replace(rag, also=replace(every, attention=False, attention_layer=None))
            matches = any(method.name == self.settings.match for method in methods)
            if part is not None and matches:
                methods = [method for method in methods if not method.matched]  # run when parts are joined
            runs = {closed.name: reference}
            # A method with a matched budget runs after the method that it is matched to.
            for method in sorted(methods, key=lambda m: m.matched and matches):
                if method is not closed:
                    bar.stage(method.name)
                    calibration = tuned.get(method.name) if method.calibrated else None
                    set_up = self._set_up(method, tuned, runs if matches else {}, notes)
                    runs[method.name] = self._run(rag, set_up, calibration, questions, out)
            yield rag, reference, {m.name: runs[m.name] for m in methods}, tuned, bar

    @cached_property
    def _tuned_on(self) -> list[Question]:
        try:
            return self.choice.validation().questions
        except EmptySplitError:  # a file that marks every question as test
            return []

    def _tune(
        self, rag: SharedRAG, methods: Sequence[Method], file: Path, notes: list[str]
    ) -> Mapping[str, Tuned]:
        """Choose thresholds and calibration on questions of another split, for triggers that bring none."""
        triggers = {m.name: m.trigger for m in methods if m.tunable or m.calibrated}
        if not triggers:
            return {}
        tunable = [m.name for m in methods if m.tunable]
        split, questions = self.choice.tuned_on, self._tuned_on
        tuned = tune_once(file, rag, triggers, questions, self.right, self.rule)
        if tuned and tunable:
            chosen = ", ".join(f"{name} {tuned[name].threshold:.3g}" for name in tunable)
            log.info("thresholds chosen on %d %s questions: %s", len(questions), split, chosen)
            notes += [f"{name}, closed-book: {tuned[name].told}." for name in tunable if tuned[name].told]
        elif tunable:
            why = f"there are no {split} questions with both right and wrong closed-book answers"
            notes.append(f"The thresholds of {', '.join(tunable)} are those they came with: {why}.")
        elif not tuned and not questions:
            notes.append(f"No score is calibrated: there are no {split} questions.")
        return tuned

    def _set_up(
        self, method: Method, tuned: Mapping[str, Tuned], runs: Mapping[str, MethodRun], notes: list[str]
    ) -> Method:
        """Give a method its chosen threshold, and the budget of the run that it is matched to."""
        if method.tunable and method.name in tuned:
            method = method.with_options(threshold=tuned[method.name].threshold)
        match = self.settings.match
        if method.matched and match is not None and match in runs:
            rate = float(runs[match].cost("retrievals").mean())
            method = method.with_options(rate=rate)
            budget = f"{rate:.3f} retrievals per question"
            notes.append(f"The budget of {method.name} is matched to {match}: {budget}.")
        elif method.matched and match is not None:
            notes.append(f"The budget of {method.name} is its own rate: {match} was not run.")
        return method

    def _run(
        self, rag: SharedRAG, method: Method, tuned: Tuned | None, questions: Sequence[Question], out: Path
    ) -> MethodRun:
        file = out / "traces" / f"{method.name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        answers = method.loop(rag).run(questions, file, progress=method.name)
        calibration = tuned or method.trigger.probability
        return MethodRun(questions, answers, calibration, self.matcher, method=method)
