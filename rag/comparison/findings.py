"""Findings of a comparison: its figures as a table, results.json, and the report with its data."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probers.checksums import sealed_lines
from probers.evaluation.answers import MATCH
from probers.evaluation.metrics import auroc
from probers.files import canonical_json, write_text
from probers.types import Passage, Round, count

from ..protocol import name_of
from ..report import LEVEL, conclusion, write_report
from ..traces import Answer
from .curves import QueryTrajectory, Rerun, at_random, replays
from .gains import GAINS, SHARE, Gains
from .methods import MethodRun, grouped
from .outcomes import ABSTAINING, COSTS, OUTCOMES, TOKENS, Evaluation, Outcomes, table_lines
from .trajectories import thinned

if TYPE_CHECKING:
    import pandas as pd

    from probers.prober.prober import Prober

    from ..settings import Compare


#: Figures of a row of :attr:`Comparison.frame`, and those with the limits of their 95% interval.
_COLUMNS = (*GAINS, *OUTCOMES, MATCH, *ABSTAINING, *COSTS, "consistency")
_LIMITS = (*GAINS, "em", "f1", "acc", MATCH, "retrievals", "auroc")
#: Figures of a prober alone.
_MEASURED = ("accuracy", "accuracy_ci", "auroc", "auroc_ci")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of a comparison: the figures of every method on the same questions, with their answers.

    Attributes:
        results: the dictionary of results.json, described in docs/formats.md.
        answers: traces of each method by its name, in the order of the questions.
        page: what the report shows beside ``results``.
        outcomes: for each question, which methods were right.
    """

    results: Mapping[str, Any]
    answers: Mapping[str, Sequence[Answer]]
    page: Mapping[str, Any]
    outcomes: Sequence[Mapping[str, Any]]

    @property
    def frame(self) -> pd.DataFrame:
        """Table with a row for each method; ``em_low`` and ``em_high`` are the limits of em, and so on."""
        import pandas as pd

        rows = {}
        for name, entry in self.results["methods"].items():
            row = {key: entry[key] for key in _COLUMNS if key in entry} | entry["trigger"]
            for key in [key for key in _LIMITS if key in row]:
                limits = entry["ci95"].get(f"trigger.{key}" if key in entry["trigger"] else key)
                row |= dict(zip((f"{key}_low", f"{key}_high"), limits or (None, None), strict=True))
            rows[name] = row
        return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").astype(float)

    @property
    def notes(self) -> Sequence[str]:
        """Notes on what was left out, and on thresholds and budgets."""
        return self.page["notes"]  # type: ignore[no-any-return]

    @property
    def verdict(self) -> str:
        """The outcome in one sentence; of few questions it begins by saying that they settle nothing."""
        return str(self.page["verdict"])

    @property
    def lines(self) -> list[str]:
        """Lines of the table on the terminal."""
        return self.table()

    def table(self, *, wide: bool = True) -> list[str]:
        """Format the figures as lines of text; if not ``wide``, those that fit into 80 characters."""
        parts = (self.results[key] for key in ("methods", "random_at_budget", "headline"))
        return table_lines(*parts, wide=wide)

    @property
    def summary(self) -> dict[str, Any]:
        """Number of questions, and names of the methods."""
        return {"n": self.results["n"], "methods": list(self.results["methods"])}

    def report(self, path: str | Path) -> None:
        """Write the report as one self-contained HTML page."""
        write_report(self.results, self.page, Path(path))

    def save(self, folder: Path) -> None:
        """Write results.json, outcomes.jsonl, report_data.json and report.html."""
        write_text(folder / "results.json", canonical_json(self.results))
        write_text(folder / "outcomes.jsonl", sealed_lines(self.outcomes))
        write_text(folder / "report_data.json", canonical_json(self.page))
        self.report(folder / "report.html")

    def __repr__(self) -> str:
        key = self.results["headline"]
        values = {name: entry[key] for name, entry in self.results["methods"].items()}
        methods = ", ".join(name if v is None else f"{name} {v:.3f}" for name, v in values.items())
        return f"Comparison({count(self.results['n'], 'question')}; {key}: {methods})"

    def __str__(self) -> str:
        return "\n".join([self.verdict, *self.lines, *self.notes])

    def _repr_html_(self) -> str:
        columns = [self.results["headline"], "f1", "acc", "retrievals", "tokens", "consistency", "auroc"]
        table = self.frame[list(dict.fromkeys(columns))]
        return str(table.to_html(float_format="{:.3f}".format, na_rep="-", escape=True))


@dataclass(frozen=True)
class Findings:
    """Runs of a comparison by name of the method, and everything else that the report needs.

    ``settings`` have the terms that are equal for all methods, ``reference`` is the closed-book run,
    ``banks`` are the probers by name. Thresholds and random retrieval are replayed from ``recorded``
    answers; ``reruns`` are curves of methods that were run again.
    """

    settings: Compare
    runs: Mapping[str, MethodRun]
    reference: Outcomes
    recorded: Sequence[QueryTrajectory]
    reruns: Mapping[str, Rerun]
    corpus: Sequence[Passage]
    banks: Mapping[str, Prober]
    notes: Sequence[str]
    tuned: bool

    def compared(self, config: Mapping[str, Any], heading: Mapping[str, Any]) -> Comparison:
        """Compute the figures, with ``config`` as their record and ``heading`` on the report."""
        how = {name: getattr(self.settings, name) for name in ("wrong", "resamples", "seed")}
        evaluation = Evaluation(self.reference.questions, self.reference, **how)
        gains = Gains.of(self.recorded, self.runs, self.reruns, evaluation)
        results = _results(config, self, evaluation, gains)
        page = dict(heading) | _page(results, self, evaluation, gains)
        page["verdict"] = conclusion(results, page)
        answers = {name: run.answers for name, run in self.runs.items()}
        return Comparison(results, answers, page, outcomes(self.runs, self.settings.wrong))


def _results(
    config: Mapping[str, Any], findings: Findings, evaluation: Evaluation, gains: Gains
) -> dict[str, Any]:
    runs, matcher = findings.runs, findings.reference.matcher
    figures = {name: evaluation.figures(run) for name, run in runs.items()}
    shares = {name: {SHARE: samples[SHARE]} for name, samples in gains.by_method.items()}
    return {
        "schema": 1,
        "config": dict(config),
        "filter": next((run.method.filter for run in runs.values() if run.method.filter), None),
        "n": len(findings.reference.questions),
        "wrong": evaluation.rule,
        "headline": evaluation.headline,
        **({} if matcher is None else {"match_stages": list(matcher.active)}),
        "bootstrap": evaluation.unit,
        "methods": {
            name: {**gains.figures(name), **entry, "ci95": {**gains.intervals(name), **entry["ci95"]}}
            for name, entry in figures.items()
        },
        "oracle_gain": gains.record,
        "pairs": evaluation.pairs(runs, shares),
        "random_at_budget": at_random(findings.recorded, runs, evaluation),
        "queries": {name: name_of(run.method.query) for name, run in runs.items()},
        "probers": _prober_figures(findings),
        "options": {name: run.method.trigger.record for name, run in runs.items()},
    }


def _prober_figures(findings: Findings) -> dict[str, dict[str, Any]]:
    """Collect prober, training data, layers and test figures of each method that has a prober."""
    figures = {}
    for name, run in findings.runs.items():
        options = run.method.trigger.options
        for path, bank in findings.banks.items():
            if bank is options.get("bank"):
                training = bank.metrics.get("splits", {}).get("train", {})
                measured = bank.metrics.get("with_entropy" if options.get("with_entropy") else "ensemble")
                figures[name] = {
                    "prober": path, "site": bank.spec.site, "layers": list(bank.layers),
                    "texts": training.get("n"), "groups": training.get("groups"),
                    **{key: (measured or {}).get(key) for key in _MEASURED},
                }  # fmt: skip
    return figures


def outcomes(runs: Mapping[str, Outcomes], rule: str) -> list[dict[str, Any]]:
    """List the lines of outcomes.jsonl: a question, and which methods were right, if it has gold answers."""
    verdicts = {name: dict(zip(run.scored, run.right(rule), strict=True)) for name, run in runs.items()}
    return [
        {
            "id": q.id, "dataset": q.dataset, "group": q.group or q.id, "split": q.split,
            "question": q.question,
            "right": {name: bool(right[i]) for name, right in verdicts.items() if i in right},
        }
        for i, q in enumerate(next(iter(runs.values())).questions)
    ]  # fmt: skip


def _page(
    results: Mapping[str, Any], findings: Findings, evaluation: Evaluation, gains: Gains
) -> dict[str, Any]:
    """Collect the report's data beside results.json: how it was run, curves and examples."""
    runs, settings, wrong, headline = findings.runs, findings.settings, evaluation.wrong, evaluation.headline
    shown = dict.fromkeys((headline, "acc"))
    several = len(gains.curves) > 1
    oracles = {f"oracle of helps{f', {n}' if several else ''}": curve for n, curve in gains.curves.items()}
    balanced = settings.threshold == "balanced_accuracy"
    rule = "best balanced accuracy" if balanced else f"threshold={settings.threshold}"
    data = {
        "title": "Which trigger knows when to retrieve?",
        "n": results["n"],
        "threshold_rule": f"{rule} on questions of another split" if findings.tuned else "as configured",
        "flags": _flags(runs),
        "notes": [
            *([f"{evaluation.few}."] if evaluation.few else []),
            *_notes(findings, wrong),
            *unlike_random(results),
            *gains.notes(),
        ],
        "examples": _examples(
            runs, findings.corpus, count=settings.examples, seed=settings.seed, by=headline
        ),
        "replay": replays(findings.recorded) | oracles,
        "reruns": {name: rerun.curve for name, rerun in findings.reruns.items()},
        "knowledge_em": {name: kinds for name, run in runs.items() if (kinds := by_knowledge(run, headline))},
        "points": {
            name: {key: entry[key] for key in ("retrievals", *TOKENS, *shown)}
            | {f"{key}_ci": entry["ci95"].get(key) for key in shown}
            for name, entry in results["methods"].items()
            if entry["em"] is not None
        },
    }
    if wrong is not None and 0 < wrong.sum() < len(wrong):
        scores = {name: run.scores[run.scored] for name, run in runs.items() if run.scores is not None}
        data["roc"] = {name: roc(wrong, values) for name, values in scores.items()}
    return data


def _flags(runs: Mapping[str, MethodRun]) -> dict[str, str]:
    """Find triggers that never or always fired, so that these questions do not test them."""
    retrieved = {name: run.cost("retrievals") > 0 for name, run in runs.items() if not run.method.untested}
    alike = {name: bool(fired.all()) for name, fired in retrieved.items() if fired.all() == fired.any()}
    return {name: "always fired" if fired else "never fired" for name, fired in alike.items()}


def _notes(findings: Findings, wrong: np.ndarray | None) -> list[str]:
    settings, notes, questions = findings.settings, list(findings.notes), findings.reference.questions
    filters = {name: run.method.filter for name, run in findings.runs.items() if run.method.filter}
    for kind, names in grouped(filters).items():
        notes.append(f"Content words of {', '.join(names)} are those of this filter: {kind}.")
    if wrong is not None and len(set(wrong)) == 1:
        notes.append(
            f"Every closed-book answer is {'wrong' if wrong[0] else 'right'}, so that there is nothing for a "
            "trigger to tell apart: its AUPRC and ECE here say nothing of it."
        )
    if settings.wrong != "em":
        notes.append(f"Answers are wrong by {settings.wrong} here: for thresholds, AUROC and consistency.")
    pairs = len(findings.runs) * (len(findings.runs) - 1) // 2
    if pairs > LEVEL * (1 + settings.resamples):
        few = f"resamples={settings.resamples} are too few to settle any of {pairs} pairs"
        notes.append(f"{few} when all are considered: give {math.ceil(pairs / LEVEL)} or more.")
    if missing := sum(not q.answers for q in questions):
        notes.append(f"{missing} of {len(questions)} questions have no gold answer and are in no score.")
    for name, run in findings.runs.items():
        read = [decision.evidence for decisions in run.decisions for decision in decisions]
        if silent := sum("stated" in evidence and evidence["stated"] is None for evidence in read):
            notes.append(f"{name}: {silent} of {len(read)} replies state no number; their score is 0.5.")
        if pairs := sum(evidence.get("undecided", 0) for evidence in read):
            notes.append(f"{name}: {pairs} pairs of samples could not be compared, and count as different.")
        if empty := sum(a.counters.empty_retrievals for a in run.answers):
            notes.append(f"{name}: {empty} retrievals found nothing; those answers went on without passages.")
        if cut := sum(a.counters.passages_cut for a in run.answers):
            notes.append(f"{name}: {cut} passages were left out for want of room in the model's context.")
    return notes


def unlike_random(results: Mapping[str, Any]) -> list[str]:
    """Write a note on methods whose tokens differ by more than 10% from those of random retrieval."""
    unlike: list[str] = []
    for name, both in results["random_at_budget"].items():
        entry = both.get("common", both)
        times = entry.get("times_tokens", 1.0)
        if abs(times - 1) > 0.1:
            tokens = sum(entry[key] for key in TOKENS)
            uses = f"{times:.2f} times" if unlike else f"uses {times:.2f} times its tokens"
            unlike.append(f"{name} {uses} ({times * tokens:,.0f} against {tokens:,.0f})")
    matched = "Random retrieval is matched to each method by retrievals, not by tokens"
    return [f"{matched} (written and read, per question): {', '.join(unlike)}."] if unlike else []


def roc(wrong: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Compute the ROC curve of scores for "wrong" as ``{"fpr", "tpr", "auroc"}``, thinned for display."""
    levels = np.unique(scores)[::-1]
    fpr = [0.0, *(float((scores[wrong == 0] >= t).mean()) for t in levels)]
    tpr = [0.0, *(float((scores[wrong == 1] >= t).mean()) for t in levels)]
    keep, area = thinned(len(fpr)), float(auroc(wrong, scores))
    return {"fpr": [fpr[i] for i in keep], "tpr": [tpr[i] for i in keep], "auroc": area}


def by_knowledge(run: Outcomes, figure: str) -> dict[str, dict[str, Any]]:
    """Compute a figure by kind of knowledge, ``{kind: {figure, "n"}}``; empty if kinds are unknown."""
    kinds = [str(run.questions[i].truth.get("kind", "")) for i in run.scored]
    order = ("known", "stale", "misbelieved", "unknown")
    table = {kind: run.table[figure][[k == kind for k in kinds]] for kind in (*order, *sorted(set(kinds)))}
    known = {kind: values for kind, values in table.items() if kind and len(values)}
    return {k: {figure: float(values.mean()), "n": len(values)} for k, values in known.items()}


def _examples(
    runs: Mapping[str, Outcomes], corpus: Sequence[Passage], *, count: int, seed: int, by: str
) -> list[dict[str, Any]]:
    """Choose example questions by seed, with all that every method did on them; ``by`` judges them right."""
    questions = next(iter(runs.values())).questions
    right = {name: dict(zip(run.scored, run.table[by], strict=True)) for name, run in runs.items()}
    draw = random.Random(f"examples:{seed}").sample
    drawn = sorted(draw(range(len(questions)), min(count, len(questions))))
    needed = {p for run in runs.values() for i in drawn for r in run.answers[i].rounds for p in r.passage_ids}
    passages = {p.id: p for p in corpus if p.id in needed}
    return [
        {
            "id": questions[i].id,
            "question": questions[i].question,
            "answers": list(questions[i].answers),
            "knowledge": questions[i].truth.get("kind"),
            "methods": [
                {
                    "method": name,
                    "answer": run.answers[i].answer,
                    "correct": bool(right[name].get(i)),
                    "retrievals": run.answers[i].retrievals,
                    "rounds": [_shown_round(r, passages) for r in run.answers[i].rounds],
                }
                for name, run in runs.items()
            ],
        }
        for i in drawn
    ]


def _shown_round(done: Round, passages: Mapping[str, Passage]) -> dict[str, Any]:
    decision = done.decision
    # Offsets leave out characters shared with the neighbouring token, so pieces run up to the next start.
    edges = [*(a for a, _ in done.tokens), len(done.text)]
    pieces = [done.text[a:b] for a, b in pairwise(edges)] or [done.text] * bool(done.text)
    scores = decision.token_scores if decision is not None else ()
    fired = decision is not None and decision.fire
    hits = decision.tokens if decision is not None and fired else ()
    shown = [passages[each] for each in done.passage_ids if each in passages]
    return {
        "tokens": [
            {"text": piece, "score": scores[i] if scores else None, "fired": i in hits}
            for i, piece in enumerate(pieces)
        ],
        "score": None if decision is None else decision.score,
        "threshold": None if decision is None else decision.threshold,
        "fired": fired,
        "query": done.query,
        "passages": [{"title": passage.title, "text": passage.text} for passage in shown],
    }
