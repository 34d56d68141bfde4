"""The command ``probers-compare``: every method on the same questions, on equal terms."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from probers.checksums import inputs
from probers.commands.inputs import (
    find_prober,
    load_matcher,
    load_model,
    load_passages,
    prompt_files,
    question_source,
)
from probers.commands.merge import PartRun, PartRuns
from probers.commands.runs import RunFolder
from probers.data.questions import EmptySplitError, QuestionSet, QuestionSource, open_questions
from probers.equivalence import EntityMatcher
from probers.evaluation.answers import RULES, right_by
from probers.files import write_bytes
from probers.types import SPLITS, Needs, Question, UserError

from ..build import Contamination, check_one_model, loop_options, named, remote
from ..protocol import check_counts
from ..traces import join_traces, own
from ..triggers.rules import Never
from .curves import REPLAY, index, record_all, rerun_all
from .findings import Findings, write
from .methods import Method, MethodRun, build_methods, complete, parts_of, vary, with_retrievers
from .shared_generations import GenerationCache, SharedRAG, joined
from .trajectories import Tuned, tune_once

if TYPE_CHECKING:
    from ..settings import Compare

log = logging.getLogger(__name__)

_THRESHOLDS = "thresholds.json"


def run(settings: Compare, parts: PartRuns | None = None) -> Path:
    """Compare the methods, or join the finished ``parts`` of a run; returns the report's folder."""
    from probers.bank.bank import Prober
    from probers.bank.decision import ThresholdRule

    banks: dict[str, Prober] = {}
    part = settings.partition
    asked = question_source(settings)
    matcher = load_matcher(settings) if asked.mentions or settings.wrong == "match" else None
    right = right_by(settings.wrong, matcher)
    if right is None:
        raise UserError(f"wrong={settings.wrong} is unknown: choose {RULES}", "unknown-choice")
    rule = ThresholdRule.parse(settings.threshold)
    given, left_out = complete(settings)
    notes = left_out + ([] if matcher is None else [f"Of match: {matcher.told()}."])
    settings = vary(given)
    probers = named(settings.probers)
    if probers and settings.prober is not None:
        told = f"prober={settings.prober} and probers are both given: name every prober in probers"
        raise UserError(told, "conflict")

    @cache
    def bank(path: str | None = None) -> Prober:
        path = path or find_prober(settings)
        banks[path] = Prober.from_pretrained(path, allow_other=settings.allow_other)
        return banks[path]

    built = build_methods(settings, bank, {name: partial(bank, path) for name, path in probers.items()})
    methods = [method.judged_by(matcher) for method in built]
    check_one_model(banks)
    read = list(dict.fromkeys([*banks, *parts_of(settings)]))
    server = settings.engine if any(method.trigger.served for method in methods) else None
    contamination = Contamination.of(read, allowed=settings.allow_overlap, server=server)
    deal_splits = bool(contamination.silent) or any(method.tunable for method in methods)
    found, split, others = _open(settings, asked, contamination, methods, deal_splits)
    questions = found.questions
    for line in found.lines():
        log.info("%s", line)
    notes = [*contamination.notes(questions), *found.notes, *notes]
    if found.record["dealt"]:
        splits = found.record["splits"]
        dealt = ", ".join(f"{splits[name]} {name}" for name in SPLITS if name in splits)
        why = f", for thresholds are chosen on {others} questions: asked are {split} questions"
        asks = ": all are asked" if split == "all" else why
        notes.append(f"The questions name no splits and were dealt ({dealt}){asks}.")
        log.info("%s", notes[-1])
    for method in methods:
        method.trigger.check_questions(questions)
        check_counts(method.trigger, (method.searches or settings.retriever).kind)
    notes += dict.fromkeys(note for method in methods for note in method.trigger.notes(questions))
    corpus = load_passages(settings)
    files = inputs(*asked.files, settings.corpus, *prompt_files(settings), *read)
    config = settings.record | {"inputs": files, "asked": found.record}
    out = Path(settings.out)
    folder = RunFolder(out if part is None else part.folder(out), "compare", config)
    if not (folder.begin("comparison") if parts is None else parts.begin(folder, "comparison")):
        return folder.path
    if parts is not None:
        _take_answers(parts, questions, folder.path)
    log.info(
        "%d questions, %s (split %s), corpus %s with %d passages, model %s",
        len(questions), asked.spec, split, settings.corpus, len(corpus), settings.model.name,
    )  # fmt: skip
    adapter = next((bank.adapter for bank in banks.values()), None)  # all read one model
    lm = remote(settings, folder) or load_model(settings, folder, engine=settings.engine, adapter=adapter)
    retriever, memory = settings.retriever.make(corpus), GenerationCache(megabytes=settings.memory)
    rag = SharedRAG(lm, retriever, Never(), **loop_options(settings), cache=memory)
    methods = with_retrievers(methods, corpus)
    model = None if parts is None else parts.runs[0].state.get("chosen", {}).get("model")
    if model is not None and model != str(rag.lm.spec):
        told = f"the parts were run with the model {model}, but it is {rag.lm.spec} here"
        raise UserError(f"{told}: give the same one", "mismatch")
    for method in methods:  # a model is refused before anything runs
        method.loop(rag)
    if split == "all":
        notes.append("These are the questions of all splits.")
    elif split != "test":
        notes.append(f"There are no test questions: these are of the {split} split.")

    tuning = partial(
        open_questions, asked, limit=settings.validation, split=others, deal_splits=deal_splits,
        unfit=contamination.not_tuned_on, seed=settings.seed, on_bad_line=settings.on_bad_line,
    )  # fmt: skip
    tune = partial(tune_once, folder.path / _THRESHOLDS, right=right, rule=rule)
    tuned = _tune(tuning, tune, rag, methods, notes, split=others)
    # The closed-book pass records as much as one pass can of what all methods need; states of tokens are
    # large and come last.
    needs = [part.needs for method in methods for part in (method.trigger, method.query)]
    needs.sort(key=lambda each: any(feature.pool != "mean" for feature in each.features))
    recorded = reduce(joined, needs, Needs())
    mine = own(questions, part)
    reference = _closed_book(replace(rag, also=recorded), methods, mine, folder.path, notes, matcher)
    # Attention is large, and read in the middle of answers, which methods hardly ever share.
    rag = replace(rag, also=replace(recorded, attention=False, attention_layer=None))
    if part is not None and any(method.name == settings.match for method in methods):
        methods = [method for method in methods if not method.matched]  # run when the parts are joined
    runs = _run_all(settings, rag, methods, tuned, reference, folder.path, notes)
    replay = folder.path / REPLAY
    if part is not None:  # figures are computed when the parts are joined
        index(record_all(rag, runs.values(), replay, every=True), replay)
        folder.finish({"n": len(mine), "part": settings.part})
        told = f"{len(mine)} questions, part {settings.part}, to {folder.path}/traces"
        log.info("wrote the traces of %s", told)
        log.info("when every part is there: probers-merge %s/*", folder.path.parent)
        return folder.path
    trajectories = record_all(rag, runs.values(), replay, parts=parts)
    reruns = rerun_all(rag, runs.values(), reference, trajectories, replay, points=settings.sweep)
    found_all = Findings(runs, reference, trajectories, reruns, corpus, banks, notes, bool(tuned))
    write(folder, settings, found_all)
    return folder.path


def _take_answers(parts: PartRuns, questions: Sequence[Question], out: Path) -> None:
    """Write the parts' answers with every method, and their thresholds, as an undivided run does."""

    def thresholds(run: PartRun) -> bytes | None:
        path = run.path / _THRESHOLDS
        return path.read_bytes() if path.exists() else None

    if (found := parts.of_one("thresholds", thresholds)) is not None:
        write_bytes(out / _THRESHOLDS, found)
    for name in sorted({file.name for run in parts.runs for file in run.path.glob("traces/*.jsonl")}):
        join_traces(parts, questions, f"traces/{name}", out)


def _open(
    settings: Compare, asked: QuestionSource, contamination: Contamination, methods: Sequence[Method],
    deal_splits: bool,
) -> tuple[QuestionSet, str, str]:  # fmt: skip
    """Open the questions; return them, their split, and the split that thresholds are chosen on."""
    # Many question sets do not publish their test answers. Their validation questions are then asked, and
    # thresholds come from their training questions.
    find = partial(
        open_questions, asked, limit=settings.limit, unfit=contamination.not_asked, seed=settings.seed,
        on_bad_line=settings.on_bad_line,
    )  # fmt: skip
    if settings.split == "all":
        if chosen := [method.name for method in methods if method.tunable or method.calibrated]:
            told = f"split=all also asks questions on which thresholds of {', '.join(chosen)} are chosen"
            raise UserError(f"{told}: leave them out of triggers, or give split=test", "conflict")
        return find(deal_splits=True), "all", "validation"
    try:
        return find(split="test", deal_splits=deal_splits), "test", "validation"
    except EmptySplitError as problem:
        try:
            return find(split="validation", deal_splits=deal_splits), "validation", "train"
        except EmptySplitError:
            raise problem from None


def _tune(
    asked: Callable[[], QuestionSet], tune: Callable[..., dict[str, Tuned]], rag: SharedRAG,
    methods: Sequence[Method], notes: list[str], *, split: str,
) -> dict[str, Tuned]:  # fmt: skip
    """Choose thresholds and calibration on questions of another split, for the triggers that bring none."""
    triggers = {m.name: m.trigger for m in methods if m.tunable or m.calibrated}
    tunable = [m.name for m in methods if m.tunable]
    if not triggers:
        return {}
    try:
        questions = asked().questions
    except EmptySplitError:  # a file that marks every question as test
        questions = []
    tuned = tune(rag=rag, triggers=triggers, questions=questions)
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


def _closed_book(
    rag: SharedRAG, methods: Sequence[Method], questions: Sequence[Question], out: Path, notes: list[str],
    matcher: EntityMatcher | None,
) -> MethodRun:  # fmt: skip
    """Run without retrieval: the start of every method, and the standard for judging triggers."""
    closed = next((m for m in methods if isinstance(m.trigger, Never)), None)
    if closed is None:
        notes.append("The closed-book answers that judge the triggers come from a run not in the table.")
        closed = Method("never", Never(), rag.query)
    return _run(rag, closed, None, questions, out, matcher)


def _run_all(
    settings: Compare, rag: SharedRAG, methods: Sequence[Method], tuned: Mapping[str, Tuned],
    reference: MethodRun, out: Path, notes: list[str],
) -> dict[str, MethodRun]:  # fmt: skip
    """Answer the questions with every method, each into its trace file; keep the order of the methods."""
    done = {reference.name: reference}
    match = settings.match if any(method.name == settings.match for method in methods) else None
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
            told = f"The budget of {method.name} is matched to {match}"
            notes.append(f"{told}: {rate:.3f} retrievals per question.")
        elif method.matched and settings.match is not None:
            notes.append(f"The budget of {method.name} is its own rate: {settings.match} was not run.")
        done[method.name] = _run(rag, method, calibration, reference.questions, out, reference.matcher)
    return {m.name: done[m.name] for m in methods}


def _run(
    rag: SharedRAG, method: Method, tuned: Tuned | None, questions: Sequence[Question], out: Path,
    matcher: EntityMatcher | None,
) -> MethodRun:  # fmt: skip
    file = out / "traces" / f"{method.name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    answers = method.loop(rag).run(questions, file, progress=method.name)
    return MethodRun(questions, answers, tuned or method.trigger.probability, matcher, method=method)
