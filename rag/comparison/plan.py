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
from probers.progress import Whole
from probers.types import SPLITS, Needs, Passage, Question, Retriever, UserError

from ..build import Contamination
from ..traces import questions_of
from ..triggers.rules import Never
from . import workload
from .curves import REPLAY, index, record_all, rerun_all
from .findings import Comparison, Findings
from .methods import Method, MethodRun, Terms, with_retrievers
from .shared_generations import GenerationCache, SharedRAG, joined
from .trajectories import Tuned, tune_once

if TYPE_CHECKING:
    from probers.cli.merge import PartRuns
    from probers.data.splits import Partition
    from probers.prober.prober import Prober

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Begun:
    """Loop, methods, closed-book method, all that one pass records, questions, workload, and the one bar."""

    rag: SharedRAG
    methods: Sequence[Method]
    closed: Method
    every: Needs
    questions: Sequence[Question]
    work: workload.Workload
    bar: Whole


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
        cls, source: QuestionSource | str, methods: Sequence[Method], contamination: Contamination, *,
        draw: Mapping[str, Any], split: str = "test", validation: QuestionSource | str | int | None = None,
    ) -> Choice:  # fmt: skip
        """Choose the questions of a split that no trained part has seen.

        Args:
            draw: ``limit``, ``seed`` and ``on_bad_line`` of :func:`open_questions`.
            split: "test", or "all" for methods without a threshold to choose.
            validation: other questions to choose thresholds on, without those asked; or the largest
                number of the source's own.
        """
        others = validation if isinstance(validation, (QuestionSource, str)) else None
        deal = others is None and (bool(contamination.silent) or any(method.tunable for method in methods))
        find = partial(open_questions, source, unfit=contamination.not_asked, **draw)
        if split == "all":
            tuned = [method.name for method in methods if method.tunable or method.calibrated]
            if tuned and others is None:
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
        draw = {**draw, "deal_splits": deal, "limit": None, "unfit": contamination.not_tuned_on}
        if others is None:
            tuning = partial(open_questions, source, split=tuned_on, **draw | {"limit": validation})
        else:
            texts = {question.question for question in chosen.questions}
            draw["unfit"] = lambda q: q.question in texts or contamination.not_tuned_on(q)
            tuned_on, tuning = "validation", partial(open_questions, others, **draw)
        return cls(chosen=chosen, split=split, tuned_on=tuned_on, validation=tuning)

    @property
    def questions(self) -> list[Question]:
        return self.chosen.questions

    def notes(self) -> list[str]:
        """Tell which questions are asked, where that is not as the set names them."""
        notes = list(self.chosen.notes)
        if self.chosen.record["dealt"]:
            splits = self.chosen.record["splits"]
            dealt = ", ".join(f"{splits[name]} {name}" for name in SPLITS if name in splits)
            why = f"thresholds are chosen on {self.tuned_on} questions"
            asks = f", for {why}: asked are {self.split} questions"
            asks = ": all are asked" if self.split == "all" else asks
            notes.append(f"The questions name no splits and were dealt ({dealt}){asks}.")
            log.info("%s", notes[-1])
        if self.split == "all":
            notes.append("These are the questions of all splits.")
        elif self.split != "test":
            notes.append(f"There are no test questions: these are of the {self.split} split.")
        return notes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Methods, questions and passages of a comparison on equal terms.

    ``retriever`` is made from the passages if it is a component; ``banks`` are the probers by name, ``read``
    the folders and hub ids of all trained parts, and ``trained`` those of the keys that name one.
    """

    terms: Terms
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
        with self._begun(lm, out, notes) as begun:
            rag, reference, runs, tuned = self._answer(begun, out, notes)
            begun.bar.stage(workload.REPLAY)
            recorded = record_all(rag, runs.values(), out / REPLAY, parts=parts)
            begun.bar.stage(workload.CURVES)
            reruns = rerun_all(rag, runs.values(), reference, recorded, out / REPLAY, points=self.terms.sweep)
        findings = Findings(runs, reference, recorded, reruns, self.passages, self.banks, notes, bool(tuned))
        return findings.compared(self.terms, config, heading)

    def run_part(self, lm: Any, out: Path, part: Partition) -> int:
        """Answer the questions of a part into ``out``; return their number."""
        with self._begun(lm, out, [], part) as begun:
            rag, _, runs, _ = self._answer(begun, out, [], part)
            begun.bar.stage(workload.REPLAY)
            index(record_all(rag, runs.values(), out / REPLAY, every=True), out / REPLAY)
        return len(begun.questions)

    @contextmanager
    def _begun(self, lm: Any, out: Path, notes: list[str], part: Partition | None = None) -> Iterator[_Begun]:
        """Make the loop, say how many texts will be written and how long that takes, and show one bar."""
        retriever, cache = self.retriever, GenerationCache(megabytes=self.terms.memory)
        retriever = retriever.make(self.passages) if isinstance(retriever, Component) else retriever
        rag = SharedRAG(lm, retriever, Never(), **self.terms.loop, cache=cache)
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
            retrievals=rag.max_retrievals, sweep=0 if part is not None else self.terms.sweep,
            traces=out / "traces",
        )  # fmt: skip
        log.info("%s", work.summary(len(methods), len(questions)))
        with Whole(work.lengths) as bar:
            yield _Begun(rag, methods, closed, every, questions, work, bar)

    def _answer(
        self, begun: _Begun, out: Path, notes: list[str], part: Partition | None = None
    ) -> tuple[SharedRAG, MethodRun, dict[str, MethodRun], Mapping[str, Tuned]]:
        """Choose thresholds, and answer with every method; return also the loop and the closed-book run."""
        started = time.monotonic()
        tuned = self._tune(begun, out / THRESHOLDS, notes)
        rag, methods = begun.rag, begun.methods
        begun.bar.stage(begun.closed.name)
        reference = self._run(replace(rag, also=begun.every), begun.closed, None, begun.questions, out)
        if left := begun.work.left(begun.closed.name, time.monotonic() - started):
            log.info("%s", left)
        # Attention is large, and read in the middle of answers, which methods hardly ever share.
        rag = replace(rag, also=replace(begun.every, attention=False, attention_layer=None))
        if part is not None and any(method.name == self.terms.match for method in methods):
            methods = [method for method in methods if not method.matched]  # run when the parts are joined
        begun = replace(begun, rag=rag, methods=methods)
        return rag, reference, self._run_all(begun, tuned, reference, out, notes), tuned

    @cached_property
    def _tuned_on(self) -> list[Question]:
        """Questions of another split, for thresholds and calibration."""
        try:
            return self.choice.validation().questions
        except EmptySplitError:  # a file that marks every question as test
            return []

    def _tune(self, begun: _Begun, file: Path, notes: list[str]) -> Mapping[str, Tuned]:
        """Choose thresholds and calibration on questions of another split, for triggers that bring none."""
        methods = begun.methods
        triggers = {m.name: m.trigger for m in methods if m.tunable or m.calibrated}
        if not triggers:
            return {}
        tunable = [m.name for m in methods if m.tunable]
        split, questions = self.choice.tuned_on, self._tuned_on
        begun.bar.stage(workload.THRESHOLDS)
        tuned = tune_once(file, begun.rag, triggers, questions, self.terms.right, self.terms.rule)
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

    def _run_all(
        self, begun: _Begun, tuned: Mapping[str, Tuned], reference: MethodRun, out: Path, notes: list[str]
    ) -> dict[str, MethodRun]:  # fmt: skip
        """Answer the questions with every method, each into its trace file; keep the order of the methods."""
        methods = begun.methods
        done, wanted = {reference.name: reference}, self.terms.match
        match = wanted if any(method.name == wanted for method in methods) else None
        # A method with a matched budget runs after the method that it is matched to.
        for method in sorted(methods, key=lambda m: m.matched and match is not None):
            if method is reference.method:
                continue
            calibration = tuned.get(method.name) if method.calibrated else None
            if method.tunable and method.name in tuned:
                method = method.with_options(threshold=tuned[method.name].threshold)
            if method.matched and match is not None:
                rate = float(done[match].cost("retrievals").mean())
                method = method.with_options(rate=rate)
                budget = f"{rate:.3f} retrievals per question"
                notes.append(f"The budget of {method.name} is matched to {match}: {budget}.")
            elif method.matched and wanted is not None:
                notes.append(f"The budget of {method.name} is its own rate: {wanted} was not run.")
            begun.bar.stage(method.name)
            done[method.name] = self._run(begun.rag, method, calibration, reference.questions, out)
        return {m.name: done[m.name] for m in methods}

    def _run(
        self, rag: SharedRAG, method: Method, tuned: Tuned | None, questions: Sequence[Question], out: Path
    ) -> MethodRun:
        file = out / "traces" / f"{method.name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        answers = method.loop(rag).run(questions, file, progress=method.name)
        calibration = tuned or method.trigger.probability
        return MethodRun(questions, answers, calibration, self.terms.matcher, method=method)
