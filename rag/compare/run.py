"""The command ``probers-compare``: every method on the same questions, on equal terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig

from probers.commands.parts import build, inputs, load_model, load_passages, plain
from probers.commands.runs import RunFolder
from probers.data.questions import EmptySplitError, QuestionSet, QuestionSource, open_questions
from probers.types import Needs, Question, UserError

from ..build import find_prober, loop_options
from ..loop import RAG
from ..triggers.base import name_of
from ..triggers.never import Never
from .curves import climb_all, rerun_all
from .findings import Runs, page_of, results_of, write
from .methods import TRAINED, Method, build_methods, complete, in_running_order
from .outcomes import Comparison, Outcomes, first_scores
from .shared_generations import Remembering, SharedRAG
from .thresholds import Tuned, stored_or_tuned

if TYPE_CHECKING:
    from probers.engine.model import CausalLM

_REFERENCE = "never"


def run(cfg: DictConfig) -> Path:
    """Compare ``cfg.triggers`` on ``cfg.questions``; returns the folder of the report.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    from probers.bank.bank import ProbeBank

    if type(cfg.sweep) is not int or cfg.sweep < 0:
        raise UserError(f"sweep={cfg.sweep} must be a whole number, 0 (no curves are run) or more")
    asked = build(cfg.questions)
    found, split, others = _open(cfg, asked)
    questions = found.questions
    for line in found.lines():
        print(line)
    corpus = load_passages(cfg)
    missing = complete(cfg)
    banks: dict[str, ProbeBank] = {}

    def bank() -> ProbeBank:
        path = find_prober(cfg)
        return banks.setdefault(path, ProbeBank.from_pretrained(path))

    methods = build_methods(cfg, bank)
    for method in methods:
        method.trigger.check_questions(questions)
    read = [*banks, *(str(cfg[key]) for key in TRAINED if cfg[key] is not None)]
    config = plain(cfg) | {"inputs": inputs(*asked.files, cfg.corpus, *read), "asked": found.record}
    folder = RunFolder(Path(cfg.out), "compare", config)
    if not folder.begin(overwrite=cfg.overwrite, what="comparison"):
        return folder.path
    print(
        f"{len(questions)} questions, {asked.spec} (split {split}), corpus {cfg.corpus} with {len(corpus)} "
        f"passages, model {cfg.model.name}",
        flush=True,
    )
    lm = Remembering(load_model(cfg), megabytes=cfg.memory)
    rag = SharedRAG(
        cast("CausalLM", lm),  # it has all that the model has
        build(cfg.retriever, corpus),
        Never(),
        **loop_options(cfg),
    )
    for method in methods:  # a trigger that refuses the model does so before anything runs
        replace(rag, trigger=method.trigger, query=method.query)
    fixed = frozenset(m.name for m in methods if m.fixed or m.trigger.judges_answer)
    figures = next((dict(b.metrics) for b in banks.values()), {})
    queries = {m.name: name_of(m.query) for m in methods}
    runs = Runs(questions, corpus, figures, fixed, queries, notes=missing)
    if split != "test":
        runs.notes.append(f"There are no test questions: these are of the {split} split.")
    tuned = _tune(cfg, rag, methods, folder.path, runs.notes, split=others)
    _run_all(cfg, rag, lm, methods, tuned, folder.path, runs)
    comparison = Comparison(questions, runs.reference, resamples=cfg.resamples, seed=cfg.seed)
    results = results_of(folder, runs, comparison)
    write(folder, results, page_of(cfg, results, runs, comparison, tuned=bool(tuned)))
    return folder.path


def _open(cfg: DictConfig, asked: QuestionSource) -> tuple[QuestionSet, str, str]:
    """The questions, their split, and the split that thresholds are chosen on.

    Many question sets keep their test answers to themselves: their validation questions are asked
    then, and the thresholds come from their training questions.
    """
    try:
        return open_questions(asked, limit=cfg.limit, split="test", **_reading(cfg)), "test", "validation"
    except EmptySplitError:
        try:
            found = open_questions(asked, limit=cfg.limit, split="validation", **_reading(cfg))
        except EmptySplitError:
            found = None
        if found is None:
            raise
        return found, "validation", "train"


def _reading(cfg: DictConfig) -> dict[str, Any]:
    return {"seed": cfg.seed, "on_bad_line": cfg.on_bad_line}


def _tune(
    cfg: DictConfig, rag: RAG, methods: Sequence[Method], out: Path, notes: list[str], *, split: str
) -> dict[str, Tuned]:
    """Thresholds and calibration from questions of another split, for the triggers that bring none."""
    triggers = {m.name: m.trigger for m in methods if m.tunable or m.calibrated}
    tunable = [m.name for m in methods if m.tunable]
    if not triggers:
        return {}
    try:
        questions = open_questions(
            build(cfg.questions), limit=cfg.validation, split=split, **_reading(cfg)
        ).questions
    except EmptySplitError:  # a file that says of every question that it is of the test split
        questions = []
    tuned = stored_or_tuned(out / "thresholds.json", rag, triggers, questions)
    if tuned and tunable:
        chosen = ", ".join(f"{name} {tuned[name].threshold:.3g}" for name in tunable)
        print(f"thresholds chosen on {len(questions)} {split} questions: {chosen}")
    elif tunable:
        notes.append(
            f"The thresholds of {', '.join(tunable)} are those they came with: there are no {split} "
            "questions with both right and wrong closed-book answers."
        )
    return tuned


def _run_all(
    cfg: DictConfig,
    rag: RAG,
    lm: Remembering,
    methods: Sequence[Method],
    tuned: Mapping[str, Tuned],
    out: Path,
    runs: Runs,
) -> None:
    """Answer the questions with every method, each into its trace file; the closed-book pass comes first."""
    (out / "traces").mkdir(exist_ok=True)
    names = [m.name for m in methods]
    match = cfg.match if cfg.match in names else None
    done: dict[str, Outcomes] = {}
    ran: dict[str, Method] = {}
    closed = next((m for m in methods if isinstance(m.trigger, Never)), None)
    lm.also = recorded = _recorded_once(methods)
    runs.reference = _run(rag, closed or Method(_REFERENCE, Never(), rag.query), None, runs.questions, out)
    # Attention is large and read in the middle of answers, which methods hardly ever share.
    lm.also = replace(recorded, attention=False, attention_layer=None)
    if closed is None:
        runs.notes.append("The closed-book answers that judge the triggers come from a run not in the table.")
    else:
        done[closed.name], ran[closed.name] = runs.reference, closed
    for method in (m for m in in_running_order(methods, match) if m is not closed):
        if method.tunable and method.name in tuned:
            method = method.with_options(threshold=tuned[method.name].threshold)
        if method.matched and match is not None:
            rate = float(done[match].cost("retrievals").mean())
            method = method.with_options(rate=rate)
            runs.notes.append(
                f"The budget of {method.name} is matched to {match}: {rate:.3f} retrievals per question."
            )
        elif method.matched and cfg.match is not None:
            runs.notes.append(f"The budget of {method.name} is its own rate: {cfg.match} was not run.")
        calibration = tuned.get(method.name) if method.calibrated else None
        done[method.name] = _run(rag, method, calibration, runs.questions, out)
        ran[method.name] = method
    runs.by_name = {name: done[name] for name in names}
    as_ran = [ran[name] for name in names]
    runs.climbed = climb_all(rag, as_ran, done, runs.questions, out / "replay")
    runs.reruns = rerun_all(rag, as_ran, done, runs.reference, runs.climbed, out / "replay", points=cfg.sweep)


def _recorded_once(methods: Sequence[Method]) -> Needs:
    """What the closed-book pass records for the methods that begin with it: as much as one pass can."""
    needs = Needs()
    parts = [part for m in methods for part in (m.trigger, m.query)]
    for part in sorted(parts, key=lambda part: part.needs.pool != "mean"):  # vectors of every token are large
        try:
            needs = needs.union(part.needs)
        except ValueError:
            continue
    return needs


def _run(rag: RAG, method: Method, tuned: Tuned | None, questions: Sequence[Question], out: Path) -> Outcomes:
    mine = replace(rag, trigger=method.trigger, query=method.query)
    answers = mine.run(questions, out / "traces" / f"{method.name}.jsonl", progress=method.name)
    scores = first_scores(answers)
    probability = tuned.probability if tuned else method.trigger.probability
    known = None if scores is None or probability is None else probability(scores)
    return Outcomes(questions, answers, scores, known, method.trigger.record)
