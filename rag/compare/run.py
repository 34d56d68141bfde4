"""The command ``probers-compare``: every method on the same questions, on equal terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from probers.checksums import inputs
from probers.commands.artifacts import find_prober
from probers.commands.merge import PartRuns, part_of
from probers.commands.parts import (
    build,
    load_matcher,
    load_model,
    load_passages,
    prompt_files,
    question_source,
    record_of,
)
from probers.commands.runs import RunFolder
from probers.data.questions import EmptySplitError, QuestionSet, QuestionSource, open_questions
from probers.equivalence import EntityMatcher
from probers.evaluation.answers import RULES, Rule, right_by
from probers.types import SPLITS, Needs, Question, UserError

from ..answered_parts import own
from ..build import loop_options, remote, served
from ..contamination import Contamination
from ..triggers.rules import Never
from .curves import record_all, rerun_all
from .findings import Findings, write
from .generation_cache import GenerationCache
from .merged import REPLAY, RecordedParts, check_weights, index, take_answers
from .methods import Method, MethodRun, build_methods, complete, parts_of, vary, with_retrievers
from .probers import check_one_model, named
from .shared_generations import SharedRAG, joined
from .thresholds import Tuned, tune_once


def run(cfg: DictConfig, parts: PartRuns | None = None) -> Path:
    """Compare ``cfg.triggers`` on ``cfg.questions``; returns the folder of the report.

    Args:
        cfg: the request.
        parts: what these have answered is taken from them; what depends on all questions is done here.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    from probers.bank.bank import ProbeBank

    banks: dict[str, ProbeBank] = {}
    part = part_of(cfg)
    asked = question_source(cfg)
    matcher = load_matcher(cfg) if asked.mentions or cfg.wrong == "match" else None
    right = right_by(cfg.wrong, matcher)
    if right is None:
        raise UserError(f"wrong={cfg.wrong} is no figure to judge answers by: choose {RULES}")
    notes = complete(cfg) + ([] if matcher is None else [f"Of match: {matcher.told()}."])
    vary(cfg)
    probers = named(cfg.probers)
    if probers and cfg.prober is not None:
        raise UserError(f"prober={cfg.prober} and probers are given: name every prober in probers")

    @cache
    def bank(path: str | None = None) -> ProbeBank:
        path = path or find_prober(cfg)
        banks[path] = ProbeBank.from_pretrained(path, allow_other=cfg.allow_other)
        return banks[path]

    built = build_methods(cfg, bank, {name: partial(bank, path) for name, path in probers.items()})
    methods = [method.judged_by(matcher) for method in built]
    check_one_model(banks)
    read = list(dict.fromkeys([*banks, *parts_of(cfg)]))
    contamination = Contamination.of(read, allowed=cfg.allow_overlap)
    if any(method.trigger.served for method in methods):
        contamination = contamination.beside(f"the prober of {cfg.engine}")
    deal_splits = bool(contamination.silent) or any(method.tunable for method in methods)
    if cfg.split == "all":
        _refuse_thresholds(methods)
    found, split, others = _open(cfg, asked, contamination, deal_splits)
    questions = found.questions
    for line in found.lines():
        print(line)
    notes = [*contamination.notes(questions), *found.notes, *notes]
    if found.record["dealt"]:
        dealt = found.record["splits"]
        told = ", ".join(f"{dealt[name]} {name}" for name in SPLITS if name in dealt)
        asks = "all are asked" if split == "all" else f"asked are {split} questions"
        why = "" if split == "all" else f", for thresholds are chosen on {others} questions"
        notes.append(f"The questions name no splits and were dealt ({told}){why}: {asks}.")
        print(notes[-1])
    for method in methods:
        method.trigger.check_questions(questions)
    corpus = load_passages(cfg)
    files = inputs(*asked.files, cfg.corpus, *prompt_files(cfg), *read)
    config = record_of(cfg) | {"inputs": files, "asked": found.record}
    out = Path(cfg.out)
    folder = RunFolder(out if part is None else part.folder(out), "compare", config)
    begun = folder.begin("comparison") if parts is None else parts.begin(folder, "comparison")
    if not begun:
        return folder.path
    if parts is not None:
        take_answers(parts, questions, folder.path)
    print(
        f"{len(questions)} questions, {asked.spec} (split {split}), corpus {cfg.corpus} with {len(corpus)} "
        f"passages, model {cfg.model.name}",
        flush=True,
    )
    # The disk keeps no scores of servers.
    kept = None if served(cfg.engine) else folder.path / "generations"
    rag = SharedRAG(
        remote(cfg, folder) or load_model(cfg, folder, engine=cfg.engine),
        build(cfg.retriever, corpus),
        Never(),
        **loop_options(cfg),
        cache=GenerationCache(megabytes=cfg.memory, folder=kept),
    )
    methods = with_retrievers(methods, corpus)
    check_weights(parts, rag.lm)
    for method in methods:  # a trigger that refuses the model does so before anything runs
        method.loop(rag)
    if split == "all":
        notes.append("These are the questions of all splits.")
    elif split != "test":
        notes.append(f"There are no test questions: these are of the {split} split.")

    def others_asked() -> list[Question]:
        return open_questions(
            asked, limit=cfg.validation, split=others, deal_splits=deal_splits,
            unfit=contamination.not_tuned_on, **_reading(cfg),
        ).questions  # fmt: skip

    tuned = _tune(others_asked, rag, methods, folder.path, notes, split=others, right=right)
    recorded = _recorded_once(methods)
    mine = own(questions, part)
    reference = _closed_book(replace(rag, also=recorded), methods, mine, folder.path, notes, matcher)
    # Attention is large and read in the middle of answers, which methods hardly ever share.
    rag = replace(rag, also=replace(recorded, attention=False, attention_layer=None))
    replay = folder.path / REPLAY
    if part is not None:
        methods = [method for method in methods if not method.matched or cfg.match not in _names(methods)]
        runs = _run_all(cfg, rag, methods, tuned, reference, folder.path, notes)
        index(record_all(rag, runs.values(), replay, every=True), replay)
        rag.cache.remove()
        return _end_part(folder, cfg, reference)
    runs = _run_all(cfg, rag, methods, tuned, reference, folder.path, notes)
    made = None if parts is None else RecordedParts(parts)
    trajectories = record_all(rag, runs.values(), replay, made=made)
    reruns = rerun_all(rag, runs.values(), reference, trajectories, replay, points=cfg.sweep)
    findings = Findings(runs, reference, trajectories, reruns, corpus, banks, notes)
    rag.cache.remove()
    write(folder, cfg, findings, tuned=bool(tuned))
    return folder.path


def _names(methods: Sequence[Method]) -> list[str]:
    return [method.name for method in methods]


def _end_part(folder: RunFolder, cfg: DictConfig, reference: MethodRun) -> Path:
    """What a part ends with: its figures are those of the whole alone."""
    answered = len(reference.questions)
    folder.finish({"n": answered, "part": cfg.part})
    print(f"wrote the traces of {answered} questions, part {cfg.part}, to {folder.path / 'traces'}")
    print(f"when every part is there: probers-merge {folder.path.parent}/*")
    return folder.path


def _open(
    cfg: DictConfig, asked: QuestionSource, contamination: Contamination, deal_splits: bool
) -> tuple[QuestionSet, str, str]:
    """The questions, their split, and the split that thresholds are chosen on.

    Many question sets keep their test answers to themselves: their validation questions are asked
    then, and the thresholds come from their training questions. A set that names no splits is all
    test questions, but for ``deal_splits``. With ``split=all`` all are asked, and each has a split.
    """
    if cfg.split == "all":
        found = open_questions(
            asked, limit=cfg.limit, deal_splits=True, unfit=contamination.not_asked, **_reading(cfg)
        )
        return found, "all", "validation"
    problems = []
    for split, others in (("test", "validation"), ("validation", "train")):
        try:
            found = open_questions(
                asked,
                limit=cfg.limit,
                split=split,
                deal_splits=deal_splits,
                unfit=contamination.not_asked,
                **_reading(cfg),
            )
            return found, split, others
        except EmptySplitError as problem:
            problems.append(problem)
    raise problems[0]


def _refuse_thresholds(methods: Sequence[Method]) -> None:
    """Refuse methods whose thresholds would be chosen on questions that are asked (UserError)."""
    chosen = [method.name for method in methods if method.tunable or method.calibrated]
    if chosen:
        raise UserError(
            f"split=all also asks the questions on which a threshold of {', '.join(chosen)} would be chosen: "
            f"leave {'it' if len(chosen) == 1 else 'them'} out of triggers, or give split=test"
        )


def _reading(cfg: DictConfig) -> dict[str, Any]:
    return {"seed": cfg.seed, "on_bad_line": cfg.on_bad_line}


def _tune(
    asked: Callable[[], list[Question]], rag: SharedRAG, methods: Sequence[Method], out: Path,
    notes: list[str], *, split: str, right: Rule,
) -> dict[str, Tuned]:  # fmt: skip
    """Thresholds and calibration from questions of another split, for the triggers that bring none."""
    triggers = {m.name: m.trigger for m in methods if m.tunable or m.calibrated}
    tunable = [m.name for m in methods if m.tunable]
    if not triggers:
        return {}
    try:
        questions = asked()
    except EmptySplitError:  # a file that says of every question that it is of the test split
        questions = []
    tuned = tune_once(out / "thresholds.json", rag, triggers, questions, right)
    if tuned and tunable:
        chosen = ", ".join(f"{name} {tuned[name].threshold:.3g}" for name in tunable)
        print(f"thresholds chosen on {len(questions)} {split} questions: {chosen}")
    elif tunable:
        notes.append(
            f"The thresholds of {', '.join(tunable)} are those they came with: there are no {split} "
            "questions with both right and wrong closed-book answers."
        )
    elif not tuned and not questions:
        notes.append(f"No score is calibrated: there are no {split} questions.")
    return tuned


def _recorded_once(methods: Sequence[Method]) -> Needs:
    """What the closed-book pass records for the methods that begin with it: as much as one pass can."""
    needs = Needs()
    parts = [part for m in methods for part in (m.trigger, m.query)]
    for part in sorted(
        parts, key=lambda part: any(f.pool != "mean" for f in part.needs.features)
    ):  # vectors of every token are large
        needs = joined(needs, part.needs)
    return needs


def _closed_book(
    rag: SharedRAG, methods: Sequence[Method], questions: Sequence[Question], out: Path, notes: list[str],
    matcher: EntityMatcher | None,
) -> MethodRun:  # fmt: skip
    """The run without retrieval, with which the others begin and by which the triggers are judged."""
    closed = next((m for m in methods if isinstance(m.trigger, Never)), None)
    if closed is None:
        notes.append("The closed-book answers that judge the triggers come from a run not in the table.")
        closed = Method("never", Never(), rag.query)
    return _run(rag, closed, None, questions, out, matcher)


def _run_all(
    cfg: DictConfig,
    rag: SharedRAG,
    methods: Sequence[Method],
    tuned: Mapping[str, Tuned],
    reference: MethodRun,
    out: Path,
    notes: list[str],
) -> dict[str, MethodRun]:
    """Answer the questions with every method, each into its trace file; in the order of the methods."""
    done = {reference.name: reference}
    match = cfg.match if cfg.match in _names(methods) else None
    # A method whose budget is matched comes after the one that it is matched to.
    for method in sorted(methods, key=lambda m: m.matched and match is not None):
        if method is reference.method:
            continue
        calibration = tuned.get(method.name) if method.calibrated else None
        if method.tunable and method.name in tuned:
            method = method.with_options(threshold=tuned[method.name].threshold)
        if method.matched and match is not None:
            rate = float(done[match].cost("retrievals").mean())
            method = method.with_options(rate=rate)
            notes.append(
                f"The budget of {method.name} is matched to {match}: {rate:.3f} retrievals per question."
            )
        elif method.matched and cfg.match is not None:
            notes.append(f"The budget of {method.name} is its own rate: {cfg.match} was not run.")
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
