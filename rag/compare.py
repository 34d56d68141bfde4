"""The command ``probers-compare``: every method on the same questions, on equal terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from probers.files import write_text
from probers.parts import build, inputs, load_model, load_passages, plain
from probers.questions import EmptySplitError, open_questions
from probers.runs import RunFolder, canonical_json
from probers.types import Passage, Question

from .figures import Comparison, Outcomes, first_scores, table_lines
from .loop import RAG
from .methods import Method, build_methods, in_running_order
from .parts import find_prober, options_of
from .showcase import curves, examples, layer_figures
from .triggers.base import check_questions
from .triggers.never import Never
from .tuning import Tuned, stored_or_tuned

_REFERENCE = "never"


@dataclass
class _Runs:
    """Everything that was run.

    Attributes:
        by_name: every method asked for, in this order.
        reference: the closed-book run.
        bank: figures of the prober, {} when no method uses one.
        fixed: methods that decide without looking.
        notes: what a reader has to know about how it was run.
    """

    questions: Sequence[Question]
    corpus: Sequence[Passage]
    bank: Mapping[str, Any]
    fixed: frozenset[str]
    by_name: dict[str, Outcomes] = field(default_factory=dict)
    reference: Outcomes | None = None
    notes: list[str] = field(default_factory=list)


def run(cfg: DictConfig) -> Path:
    """Compare ``cfg.triggers`` on ``cfg.questions``; returns the folder of the report.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    from probers.bank import ProbeBank

    asked = build(cfg.questions)
    found = open_questions(asked, limit=cfg.limit, split="test", **_reading(cfg))
    questions = found.questions
    for line in found.lines():
        print(line)
    corpus = load_passages(cfg)
    banks: dict[str, ProbeBank] = {}

    def bank() -> ProbeBank:
        path = find_prober(cfg)
        return banks.setdefault(path, ProbeBank.from_pretrained(path))

    methods = build_methods(cfg, bank)
    for method in methods:
        check_questions(method.trigger, questions)
    config = plain(cfg) | {"inputs": inputs(*asked.files, cfg.corpus, *banks), "asked": found.record}
    folder = RunFolder(Path(cfg.out), "compare", config)
    if not folder.begin(overwrite=cfg.overwrite, what="comparison"):
        return folder.path
    print(
        f"{len(questions)} questions, {asked.spec} (split test), corpus {cfg.corpus} with {len(corpus)} "
        f"passages, model {cfg.model.name}",
        flush=True,
    )
    rag = RAG(
        load_model(cfg),
        build(cfg.retriever, corpus),
        Never(),
        prompt=build(cfg.prompt),
        k=cfg.k,
        max_new_tokens=cfg.max_new_tokens,
        max_retrievals=cfg.max_retrievals,
        answer_tokens=cfg.answer_tokens,
    )
    for method in methods:  # a trigger that refuses the model does so before anything runs
        replace(rag, trigger=method.trigger, query=method.query)
    fixed = frozenset(m.name for m in methods if m.fixed)
    figures = next((dict(b.metrics) for b in banks.values()), {})
    runs = _Runs(questions, corpus, figures, fixed)
    tuned = _tune(cfg, rag, methods, folder.path, runs.notes)
    _run_all(cfg, rag, methods, tuned, folder.path, runs)
    comparison = Comparison(questions, runs.reference, resamples=cfg.resamples, seed=cfg.seed)
    results = _results(folder, runs, comparison)
    _write(folder, results, _page(cfg, results, runs, comparison, tuned=bool(tuned)))
    return folder.path


def _reading(cfg: DictConfig) -> dict[str, Any]:
    return {"seed": cfg.seed, "on_bad_line": cfg.on_bad_line}


def _tune(
    cfg: DictConfig, rag: RAG, methods: Sequence[Method], out: Path, notes: list[str]
) -> dict[str, Tuned]:
    """Thresholds chosen on validation questions, for the triggers that bring none."""
    triggers = {m.name: m.trigger for m in methods if m.tunable}
    if not triggers:
        return {}
    try:
        questions = open_questions(
            build(cfg.questions), limit=cfg.validation, split="validation", **_reading(cfg)
        ).questions
    except EmptySplitError:  # a file that says of every question that it is of the test split
        questions = []
    tuned = stored_or_tuned(out / "thresholds.json", rag, triggers, questions)
    if tuned:
        chosen = ", ".join(f"{name} {entry.threshold:.3g}" for name, entry in tuned.items())
        print(f"thresholds chosen on {len(questions)} validation questions: {chosen}")
    else:
        notes.append(
            f"The thresholds of {', '.join(triggers)} are the configured ones: there are no validation "
            "questions with both right and wrong closed-book answers."
        )
    return tuned


def _run_all(
    cfg: DictConfig, rag: RAG, methods: Sequence[Method], tuned: Mapping[str, Tuned], out: Path, runs: _Runs
) -> None:
    """Answer the questions with every method, each into its trace file."""
    (out / "traces").mkdir(exist_ok=True)
    names = [m.name for m in methods]
    match = cfg.match if cfg.match in names else None
    done: dict[str, Outcomes] = {}
    for method in in_running_order(methods, match):
        if method.name in tuned:
            method = method.with_options(threshold=tuned[method.name].threshold)
        if method.matched and match is not None:
            rate = float(done[match].cost("retrievals").mean())
            method = method.with_options(rate=rate)
            runs.notes.append(
                f"The budget of {method.name} is matched to {match}: {rate:.3f} retrievals per question."
            )
        elif method.matched and cfg.match is not None:
            runs.notes.append(f"The budget of {method.name} is its own rate: {cfg.match} was not run.")
        done[method.name] = _run(rag, method, tuned.get(method.name), runs.questions, out)
    runs.by_name = {name: done[name] for name in names}
    runs.reference = next((done[m.name] for m in methods if isinstance(m.trigger, Never)), None)
    if runs.reference is None:
        runs.notes.append("The closed-book answers that judge the triggers come from a run not in the table.")
        runs.reference = _run(rag, Method(_REFERENCE, Never(), rag.query), None, runs.questions, out)


def _run(rag: RAG, method: Method, tuned: Tuned | None, questions: Sequence[Question], out: Path) -> Outcomes:
    mine = replace(rag, trigger=method.trigger, query=method.query)
    answers = mine.run(questions, out / "traces" / f"{method.name}.jsonl", progress=method.name)
    scores = first_scores(answers)
    probability = getattr(tuned or method.trigger, "probability", None)
    known = None if scores is None or probability is None else probability(scores)
    return Outcomes(questions, answers, scores, known, options_of(method.trigger))


def _results(folder: RunFolder, runs: _Runs, comparison: Comparison) -> dict[str, Any]:
    """The contents of results.json."""
    methods = runs.by_name
    names = list(methods)
    return {
        "schema": 1,
        "config": dict(folder.config),
        "n": len(runs.questions),
        "methods": {name: comparison.figures(outcomes) for name, outcomes in methods.items()},
        "pairs": {
            f"{later} vs {earlier}": comparison.pair(methods[later], methods[earlier])
            for i, later in enumerate(names)
            for earlier in names[:i]
        },
        "options": {name: dict(outcomes.options) for name, outcomes in methods.items()},
    }


def _page(
    cfg: DictConfig, results: Mapping[str, Any], runs: _Runs, comparison: Comparison, *, tuned: bool
) -> dict[str, Any]:
    """What the page shows beside results.json: how it was run, curves and examples."""
    rule = "best balanced accuracy on validation questions" if tuned else "as configured"
    return {
        "title": "Which trigger knows when to retrieve?",
        "command": f"probers-compare {build(cfg.questions).typed} limit={cfg.limit} seed={cfg.seed}",
        "model": cfg.model.name,
        "corpus": cfg.corpus,
        "n": len(runs.questions),
        "threshold_rule": f"{rule}; the prober brings its own" if runs.bank else rule,
        "flags": _flags(runs),
        "notes": _notes(runs),
        "examples": examples(runs.by_name, runs.questions, runs.corpus, cfg.examples, cfg.seed),
        **curves(runs.by_name, comparison.wrong, results["methods"]),
        **layer_figures(runs.bank),
    }


def _flags(runs: _Runs) -> dict[str, str]:
    """Triggers that never or always fired: these questions did not test them."""
    found = {}
    for name, outcomes in runs.by_name.items():
        retrievals = outcomes.cost("retrievals")
        if name in runs.fixed:
            continue
        if (retrievals == 0).all():
            found[name] = "never fired"
        elif (retrievals > 0).all():
            found[name] = "always fired"
    return found


def _notes(runs: _Runs) -> list[str]:
    notes = list(runs.notes)
    missing = sum(not q.answers for q in runs.questions)
    if missing:
        notes.append(f"{missing} of {len(runs.questions)} questions have no gold answer and are in no score.")
    for name, outcomes in runs.by_name.items():
        empty = sum(a.counters.empty_retrievals for a in outcomes.answers)
        if empty:
            notes.append(f"{name}: {empty} retrievals found nothing; those answers went on without passages.")
        cut = sum(a.counters.passages_cut for a in outcomes.answers)
        if cut:
            notes.append(f"{name}: {cut} passages were left out for want of room in the model's context.")
    return notes


def _write(folder: RunFolder, results: dict[str, Any], data: dict[str, Any]) -> None:
    """Write the files, print the table, and say what to do next."""
    from .report import write_report

    out = folder.path
    write_text(out / "results.json", canonical_json(results))
    write_text(out / "report_data.json", canonical_json(data))
    write_report(results, data, out / "report.html")
    folder.finish({"n": results["n"], "methods": list(results["methods"])})
    print(*table_lines(results["methods"]), sep="\n")
    for name, flag in data["flags"].items():
        print(f"note: {name} {flag} on these questions, so they do not test it")
    for note in data["notes"]:
        print(f"note: {note}")
    print(f"wrote {out / 'results.json'}, {out / 'report.html'} and the traces in {out / 'traces'}")
    print(f"next: open {out / 'report.html'}")
