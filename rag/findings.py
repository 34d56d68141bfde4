"""What a comparison found, as results.json, as the data of the page, and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig

from probers.files import write_text
from probers.parts import build
from probers.runs import RunFolder, canonical_json
from probers.types import Passage, Question

from .figures import Comparison, Outcomes, table_lines
from .ladders import Climbed, at_random, replays
from .showcase import curves, examples, layer_figures


@dataclass
class Runs:
    """Everything that was run.

    Attributes:
        by_name: every method asked for, in this order.
        reference: the closed-book run.
        bank: figures of the prober, {} when no method uses one.
        fixed: methods that decide without looking, or by the truth, so that nothing is tested.
        queries: what each method asks with, by name.
        climbed: recorded answers that thresholds and random retrieval are read from.
        reruns: curves of methods that were run at other settings as well.
        notes: what a reader has to know about how it was run.
    """

    questions: Sequence[Question]
    corpus: Sequence[Passage]
    bank: Mapping[str, Any]
    fixed: frozenset[str]
    queries: Mapping[str, str]
    by_name: dict[str, Outcomes] = field(default_factory=dict)
    reference: Outcomes | None = None
    climbed: list[Climbed] = field(default_factory=list)
    reruns: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def results_of(folder: RunFolder, runs: Runs, comparison: Comparison) -> dict[str, Any]:
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
        "random_at_budget": at_random(runs.climbed, methods, comparison),
        "queries": dict(runs.queries),
        "options": {name: dict(outcomes.options) for name, outcomes in methods.items()},
    }


def page_of(
    cfg: DictConfig, results: Mapping[str, Any], runs: Runs, comparison: Comparison, *, tuned: bool
) -> dict[str, Any]:
    """What the page shows beside results.json: how it was run, curves and examples."""
    rule = "best balanced accuracy on questions of another split" if tuned else "as configured"
    return {
        "title": "Which trigger knows when to retrieve?",
        "command": _command(cfg),
        "model": cfg.model.name,
        "corpus": cfg.corpus,
        "n": len(runs.questions),
        "threshold_rule": rule,
        "flags": _flags(runs),
        "notes": _notes(runs, comparison),
        "examples": examples(runs.by_name, runs.questions, runs.corpus, cfg.examples, cfg.seed),
        "replay": replays(runs.climbed),
        "reruns": runs.reruns,
        **curves(runs.by_name, comparison.wrong, results["methods"]),
        **layer_figures(runs.bank),
    }


def _command(cfg: DictConfig) -> str:
    """What was asked of whom, as it is typed."""
    named = [("model.name", cfg.model.name), ("corpus", cfg.corpus)]
    others = [f"{key}={value}" for key, value in named if value != "testbed"]
    limit = "null" if cfg.limit is None else cfg.limit
    return " ".join(
        ["probers-compare", build(cfg.questions).typed, *others, f"limit={limit}", f"seed={cfg.seed}"]
    )


def _flags(runs: Runs) -> dict[str, str]:
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


def _notes(runs: Runs, comparison: Comparison) -> list[str]:
    notes = list(runs.notes)
    wrong = comparison.wrong
    if wrong is not None and len(set(wrong)) == 1:
        which = "wrong" if wrong[0] else "right"
        notes.append(
            f"Every closed-book answer is {which}, so that there is nothing for a trigger to tell apart: its "
            "AUPRC and ECE here say nothing of it."
        )
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


def write(folder: RunFolder, results: dict[str, Any], data: dict[str, Any]) -> None:
    """Write the files, print the table, and say what to do next."""
    from .report import write_report

    out = folder.path
    write_text(out / "results.json", canonical_json(results))
    write_text(out / "report_data.json", canonical_json(data))
    write_report(results, data, out / "report.html")
    folder.finish({"n": results["n"], "methods": list(results["methods"])})
    print(*table_lines(results["methods"], results["random_at_budget"]), sep="\n")
    for flag in dict.fromkeys(data["flags"].values()):
        names = [name for name, its in data["flags"].items() if its == flag]
        them = "it" if len(names) == 1 else "them"
        print(f"note: {', '.join(names)} {flag} on these questions, so they do not test {them}")
    for note in data["notes"]:
        print(f"note: {note}")
    print(f"wrote {out / 'results.json'}, {out / 'report.html'} and the traces in {out / 'traces'}")
    print(f"next: open {out / 'report.html'}")
