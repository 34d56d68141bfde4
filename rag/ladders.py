"""What a comparison reads from recorded answers: random retrieval at each budget, threshold curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probers.types import Question

from .figures import Comparison, Outcomes
from .loop import RAG
from .methods import Method
from .queries.base import QueryFormulator
from .replay import Ladder, stored_or_climbed
from .triggers.base import name_of
from .triggers.oracle import Oracle
from .tuning import together


@dataclass(frozen=True)
class Climbed:
    """The ladder of one query.

    Attributes:
        name: of the query; numbered where two differ in their options only.
        query: the formulation.
        methods: names of the methods that ask with it.
        ladder: its recorded answers, to the questions with gold answers.
    """

    name: str
    query: QueryFormulator
    methods: tuple[str, ...]
    ladder: Ladder


def climb_all(
    rag: RAG,
    methods: Sequence[Method],
    runs: Mapping[str, Outcomes],
    questions: Sequence[Question],
    out: Path,
) -> list[Climbed]:
    """A ladder for every query that an adaptive method asked with; triggers of whole answers are asked on it.

    Args:
        rag: a loop whose model, retriever, prompt and limits are used.
        methods: as they ran.
        runs: of these methods, by name.
        questions: the common questions; those without gold answers are left out.
        out: folder for the recorded answers.
    """
    answered = [q for q in questions if q.answers]
    found: list[Climbed] = []
    if not answered or not rag.max_retrievals:
        return found
    fired = [m for m in methods if m.adaptive and runs[m.name].cost("retrievals").any()]
    queries: list[QueryFormulator] = []
    for method in fired:
        if method.query not in queries:
            queries.append(method.query)
    for query in queries:
        asking = [m for m in fired if m.query == query]
        whole = {m.name: m.trigger for m in asking if judges_whole_answers(m, runs[m.name])}
        # One pass records what all of these need; the rare one that needs another pass has no curve.
        asked = next(iter(together(whole, query.needs)), {})
        alike = sum(type(each.query) is type(query) for each in found)
        name = name_of(query) + (f"_{alike + 1}" if alike else "")
        ladder = stored_or_climbed(
            out / f"{name}.json", rag, query, asked, answered, progress=f"replay {name}"
        )
        found.append(Climbed(name, query, tuple(m.name for m in asking), ladder))
    return found


def judges_whole_answers(method: Method, run: Outcomes) -> bool:
    """Whether a method fires on whole answers only, which are then written anew."""
    trigger = method.trigger
    if method.fixed or isinstance(trigger, Oracle):
        return False
    if any(hasattr(trigger, name) for name in ("decide_before", "look_ahead")):
        return False
    fired = [r.decision for a in run.answers for r in a.rounds if r.decision is not None and r.decision.fire]
    return bool(fired) and all(decision.position is None for decision in fired)


def at_random(
    climbed: Sequence[Climbed], runs: Mapping[str, Outcomes], comparison: Comparison
) -> dict[str, dict[str, Any]]:
    """Every adaptive method against random retrieval with its query at its mean number of retrievals.

    Random retrieval judges whole answers, and a query that was made for the middle of one, such
    as the last sentence, is poor there. So methods that fire within an answer, or before it, are
    under ``common`` also set against random retrieval with the query of those that judge whole ones.
    """
    common = next((entry for entry in climbed if entry.ladder.triggers), None)
    found: dict[str, dict[str, Any]] = {}
    for entry in climbed:
        for name in entry.methods:
            run = runs[name]
            budget = float(run.cost("retrievals")[run.scored].mean())
            found[name] = _against(entry, run, budget, comparison)
            if common is not None and not entry.ladder.triggers:
                found[name]["common"] = _against(common, run, budget, comparison)
    return found


def _against(entry: Climbed, run: Outcomes, budget: float, comparison: Comparison) -> dict[str, Any]:
    return {"query": entry.name} | comparison.against_random(run, entry.ladder.at_random(budget))


def replays(climbed: Sequence[Climbed]) -> dict[str, dict[str, list[float]]]:
    """Curves over the thresholds by method, and of random retrieval for each query that has any."""
    found: dict[str, dict[str, list[float]]] = {}
    with_curves = [entry for entry in climbed if entry.ladder.triggers]
    for entry in with_curves:
        name = "random" if len(with_curves) == 1 else f"random {entry.name}"
        found[name] = entry.ladder.random_curve()
        curves = {trigger: entry.ladder.sweep(trigger) for trigger in entry.ladder.triggers}
        # A trigger that always says the same has no threshold to move.
        found |= {trigger: curve for trigger, curve in curves.items() if len(curve["threshold"]) > 2}
    return found
