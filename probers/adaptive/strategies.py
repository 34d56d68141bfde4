"""Labels of a classifier of questions: the cheapest strategy that answered each question right.

The labels are those of Adaptive-RAG (Jeong et al. 2024). A run of ``probers-compare split=all`` tried all
three strategies; a store of ``probers-datagen --source cot`` has only answers without and with passages, and
every question that neither answers counts as "multi".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from ..checksums import sha256, unsealed_lines
from ..cli.runs import read_state
from ..data.splits import Seen
from ..options import Limits
from ..store.files import fingerprint
from ..store.store import FeatureStore
from ..types import SPLITS, UserError, first_line
from .classifiers import STRATEGIES

#: Label of a data set's questions that no strategy answers right; "leave_out" gives them none.
Label = Literal["single", "multi", "leave_out"]
Bias = Annotated[Mapping[str, Label], Limits("single, multi or leave_out for each data set, as {nq: single}")]
#: Labels for known question sets; those of several hops need several retrievals (Adaptive-RAG, 3.2).
BIAS: dict[str, Label] = {
    "nq": "single", "triviaqa": "single", "hotpotqa": "multi", "2wikimultihopqa": "multi", "musique": "multi",
    "strategyqa": "multi", "iirc": "multi", "bamboogle": "multi", "testbed": "multi",
    "squad": "single", "popqa": "single", "webquestions": "single", "simpleqa": "single", "msmarco": "single",
}  # fmt: skip
#: Trigger of a comparison for each strategy.
TRIGGERS = {"no": "never", "single": "always", "multi": "fixed_sentence"}
#: Command that tries all strategies.
HOW = "probers-compare triggers=[never,always,fixed_sentence] split=all"
_CONDITIONS = {"closed_book": "no", "with_passages": "single"}
_OUTCOMES = "outcomes.jsonl"
_COLUMNS = ("id", "dataset", "group", "split", "question")


class Tried(NamedTuple):
    """A question, and for every tried strategy whether its answer is right."""

    id: str
    dataset: str
    group: str
    split: str
    question: str
    right: dict[str, bool]


@dataclass(frozen=True)
class Answers:
    """Questions that one model answered with several strategies, perhaps not all of them each.

    ``rule`` is the figure that decides whether an answer is right.
    """

    path: Path
    model: str
    rule: str
    strategies: tuple[str, ...]
    rows: Sequence[Tried]
    fingerprint: str


class Labelled(NamedTuple):
    """Questions (n), the cheapest strategy that answers each right, and their groups."""

    questions: list[str]
    strategies: list[str]
    groups: list[str]


def read(path: Path, *, checksums: bool = True) -> Answers:
    """Read the answers of a comparison's folder, or of a feature store (UserError: unfinished or unfit)."""
    state = read_state(path)
    if state is None or state["command"] != "compare":
        return of_store(FeatureStore.open(path, checksums=checksums))
    if not state["complete"]:
        raise UserError(f"data={path} is not finished: run its command again to continue it", "no-artifact")
    identity, file = state["identity"], path / _OUTCOMES
    names = reversed(identity["triggers"])  # of methods with one trigger the first wins
    method_of = {identity["methods"][name]["trigger"]: name for name in names}
    if missing := [trigger for trigger in TRIGGERS.values() if trigger not in method_of]:
        message = f"data={path} compared no method of trigger {' or '.join(missing)}"
        raise UserError(f"{message}: head=adaptive learns from all three strategies, '{HOW}'", "labels")
    methods = {strategy: method_of[trigger] for strategy, trigger in TRIGGERS.items()}
    rows = []
    try:
        for line in unsealed_lines(file):
            id, dataset, group, split, question = (str(line[name]) for name in _COLUMNS)
            right = {s: bool(line["right"][name]) for s, name in methods.items() if name in line["right"]}
            rows.append(Tried(id, dataset, group, split, question, right))
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = f"{file} is missing or damaged ({first_line(error)}): compare again with overwrite=true"
        raise UserError(message, "damaged") from error
    return Answers(path, identity["model"]["name"], identity["wrong"], STRATEGIES, rows, sha256(file)[:16])


def of_store(store: FeatureStore) -> Answers:
    """Read the answers without and with passages from a store of ``probers-datagen --source cot``."""
    questions: dict[tuple[str, str], Tried] = {}
    for table in store.tables() if store.spec.position == "generated" else ():
        absent = [""] * len(table)
        columns = [table.get(name, absent) for name in (*_COLUMNS, "condition", "correct")]
        for id, dataset, group, split, question, condition, correct in zip(*columns, strict=True):
            id = id.rpartition("/")[0]
            row = Tried(id, str(dataset), str(group), split, str(question), {})
            row = questions.setdefault((id, split), row)
            if condition in _CONDITIONS:
                row.right[_CONDITIONS[condition]] = bool(correct)
    rule, tried = str(store.config.get("label", "")), tuple(_CONDITIONS.values())
    rows, content = list(questions.values()), fingerprint(store.path)
    return Answers(store.path, store.spec.model.id, rule, tried, rows, content)


def joined(parts: Sequence[Answers]) -> Answers:
    """Join the answers of several runs (UserError: other models or rules, or overlapping questions)."""
    first, sides, where = parts[0], dict[tuple[str, str], str](), dict[tuple[str, str], Path]()
    for part in parts:
        for name in ("model", "rule", "strategies"):
            mine, theirs = getattr(first, name), getattr(part, name)
            if mine != theirs:
                mine, theirs = (each if isinstance(each, str) else ", ".join(each) for each in (mine, theirs))
                both = f"data={first.path} and data={part.path} cannot be joined"
                raise UserError(f"{both}: {name} is {mine} in one and {theirs} in the other", "mismatch")
        for row in part.rows:
            if (other := where.setdefault((row.dataset, row.id), part.path)) != part.path:
                message = f"question {row.id!r} is in data={other} and data={part.path}"
                raise UserError(f"{message}: give every question once", "overlap")
            if (side := sides.setdefault((row.dataset, row.group), row.split)) != row.split:
                message = f"the group {row.group!r} has questions of the {side} and of the {row.split} split"
                raise UserError(f"{message} (data={part.path}): split them with one seed", "overlap")
    return replace(first, rows=[row for part in parts for row in part.rows])


def label(answers: Answers, bias: Bias) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Label questions by split; also return a record of the labels' sources.

    Questions with an untried strategy get no label. ``bias`` labels those that no strategy answers,
    by data set; they are "multi" if that was not tried. UserError if no question is left, or ``bias``
    lacks a data set that needs it.
    """
    splits: dict[str, Labelled] = {}
    unanswered: Counter[str] = Counter()
    if "multi" not in answers.strategies:
        bias = dict.fromkeys((row.dataset for row in answers.rows), "multi")
    for row in answers.rows:
        if set(row.right) < set(answers.strategies):
            continue
        strategy: str | None = next((s for s in STRATEGIES if row.right.get(s)), None)
        if strategy is None:
            unanswered[row.dataset] += 1
            strategy = bias.get(row.dataset)
        if strategy is None:
            message = f"no strategy answers some questions of the data set {row.dataset!r}"
            fix = f"label them with +head.bias.{row.dataset or 'NAME'}=single, multi or leave_out"
            raise UserError(f"{message}: {fix}", "missing-value")
        if strategy != "leave_out":
            labelled = splits.setdefault(row.split, Labelled([], [], []))
            for column, value in zip(labelled, (row.question, strategy, row.group), strict=True):
                column.append(value)
    if not splits:
        lacks = f"{answers.path} has no question that was answered both without and with passages"
        raise UserError(f"{lacks}: make some with '{HOW}' or 'probers-datagen --source cot'", "labels")
    sources = {name: {"n": n, "label": bias[name]} for name, n in sorted(unanswered.items())}
    return splits, {"tried": list(answers.strategies), "rule": answers.rule, "unanswered": sources}


def seen(rows: Sequence[Tried]) -> Seen:
    """Collect the groups and questions of each split."""
    questions = {s: [(r.dataset, r.group, r.question) for r in rows if r.split == s] for s in SPLITS}
    return Seen.of(questions)
