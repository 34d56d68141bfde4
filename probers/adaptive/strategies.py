"""Labels of a classifier of questions: the cheapest strategy that answered each question right.

The labels are those of Adaptive-RAG (Jeong et al. 2024). A run of ``probers-compare split=all`` tried all
three strategies; a store of ``probers-datagen --source cot`` has only answers without and with passages, and
every question that neither answers counts as "multi".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ..checksums import sha256, unsealed_lines
from ..commands.runs import read_state
from ..data.splits import Seen
from ..store.files import fingerprint
from ..store.store import FeatureStore
from ..types import SPLITS, UserError, first_line
from .classifiers import STRATEGIES

#: Label of the questions of a data set that no strategy answers right; "leave_out" gives them none.
Label = Literal["single", "multi", "leave_out"]
Bias = Annotated[
    Mapping[str, Label],
    Field(description="single, multi or leave_out for each data set, as {nq: single}"),
]
#: Labels for the known question sets; those of several hops need several retrievals (Adaptive-RAG, 3.2).
BIAS: dict[str, Label] = {
    "nq": "single", "triviaqa": "single", "hotpotqa": "multi", "2wikimultihopqa": "multi", "musique": "multi",
    "strategyqa": "multi", "iirc": "multi", "testbed": "multi",
}  # fmt: skip
#: The trigger of a comparison that stands for each strategy.
TRIGGERS = {"no": "never", "single": "always", "multi": "fixed_sentence"}
#: The command that tries them.
HOW = "probers-compare triggers=[never,always,fixed_sentence] split=all"
_CONDITIONS = {"closed_book": "no", "with_passages": "single"}
_OUTCOMES = "outcomes.jsonl"


class Tried(NamedTuple):
    """A question, and for every strategy tried on it, true where the answer is right."""

    id: str
    dataset: str
    group: str
    split: str
    question: str
    right: Mapping[str, bool]


@dataclass(frozen=True)
class Answers:
    """Questions that one model answered with several strategies.

    Attributes:
        path: the run or store.
        model: name of the model that answered.
        rule: the figure that decides whether an answer is right.
        strategies: those that were tried.
        rows: all questions, also those on which a strategy was not tried.
        fingerprint: of the content.
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
    """Read the answers of a comparison's folder, or of a feature store.

    Raises:
        UserError: neither is there, or it is unfinished or damaged or lacks a strategy.
    """
    state = read_state(path)
    if state is None or state["command"] != "compare":
        return of_store(FeatureStore.open(path, checksums=checksums))
    if not state["complete"]:
        raise UserError(
            f"data={path} is not finished: run its command again to continue it", code="no-artifact"
        )
    asked = state["identity"]
    methods = {s: _method(asked, trigger) for s, trigger in TRIGGERS.items()}
    if missing := [TRIGGERS[s] for s, name in methods.items() if name is None]:
        raise UserError(
            f"data={path} compared no method of trigger {' or '.join(missing)}: head=adaptive learns "
            f"from all three strategies, '{HOW}'",
            code="labels",
        )
    file = path / _OUTCOMES
    try:
        rows = [
            Tried(
                str(line["id"]), str(line["dataset"]), str(line["group"]), str(line["split"]),
                str(line["question"]),
                {s: bool(line["right"][name]) for s, name in methods.items() if name in line["right"]},
            )
            for line in unsealed_lines(file)
        ]  # fmt: skip
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{file} is missing or damaged ({first_line(error)}): compare again with overwrite=true",
            code="damaged",
        ) from error
    return Answers(path, asked["model"]["name"], asked["wrong"], STRATEGIES, rows, sha256(file)[:16])


def _method(asked: Mapping[str, Any], trigger: str) -> str | None:
    """The first of a comparison's methods that has this trigger."""
    return next((name for name in asked["triggers"] if asked["methods"][name]["trigger"] == trigger), None)


def of_store(store: FeatureStore) -> Answers:
    """Read the answers without and with passages from a store of ``probers-datagen --source cot``."""
    found: dict[tuple[str, str], Tried] = {}
    right: dict[tuple[str, str], dict[str, bool]] = {}
    for table in store.tables() if store.spec.position == "generated" else ():
        absent = [""] * len(table)
        columns = [table.get(name, absent) for name in ("id", "dataset", "group", "split", "question")]
        for id, dataset, group, split, question, condition, correct in zip(
            *columns, table["condition"], table["correct"], strict=True
        ):
            key = id.rpartition("/")[0], split
            verdicts = right.setdefault(key, {})
            found.setdefault(key, Tried(key[0], str(dataset), str(group), split, str(question), verdicts))
            if condition in _CONDITIONS:
                verdicts[_CONDITIONS[condition]] = bool(correct)
    rule = str(store.config.get("label", ""))
    tried = tuple(_CONDITIONS.values())
    return Answers(
        store.path, store.spec.model.id, rule, tried, list(found.values()), fingerprint(store.path)
    )


def joined(parts: Sequence[Answers]) -> Answers:
    """Join the answers of several runs.

    Raises:
        UserError: other models, rules or strategies; a question in two of them, a group in two splits.
    """
    first, sides, where = parts[0], dict[tuple[str, str], str](), dict[tuple[str, str], Path]()
    for part in parts:
        for name in ("model", "rule", "strategies"):
            mine, theirs = getattr(first, name), getattr(part, name)
            if mine != theirs:
                raise UserError(
                    f"data={first.path} and data={part.path} cannot be joined: {name} is {_told(mine)} "
                    f"in one and {_told(theirs)} in the other",
                    code="mismatch",
                )
        for row in part.rows:
            if where.setdefault((row.dataset, row.id), part.path) != part.path:
                raise UserError(
                    f"question {row.id!r} is in data={where[row.dataset, row.id]} and data={part.path}: give "
                    "every question once",
                    code="overlap",
                )
            if sides.setdefault((row.dataset, row.group), row.split) != row.split:
                raise UserError(
                    f"the group {row.group!r} has questions of the {sides[row.dataset, row.group]} and of "
                    f"the {row.split} split (data={part.path}): split them with one seed",
                    code="overlap",
                )
    rows = [row for part in parts for row in part.rows]
    return Answers(first.path, first.model, first.rule, first.strategies, rows, first.fingerprint)


def _told(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def label(answers: Answers, bias: Bias) -> tuple[dict[str, Labelled], dict[str, Any]]:
    """Label questions by split; also returns a record of the labels' sources.

    Args:
        answers: of one model; questions on which a strategy was not tried get no label.
        bias: label of the questions that no strategy answers, by data set; "multi" where that was not tried.

    Raises:
        UserError: no question is left, or ``bias`` lacks a data set that needs it.
    """
    found: dict[str, Labelled] = {}
    unanswered: Counter[str] = Counter()
    tried_all = "multi" in answers.strategies
    for row in answers.rows:
        if set(row.right) < set(answers.strategies):
            continue
        strategy = next((s for s in STRATEGIES if row.right.get(s)), None)
        if strategy is None:
            strategy = _of_unanswered(row.dataset, bias) if tried_all else "multi"
            unanswered[row.dataset] += 1
        if strategy != "leave_out":
            labelled = found.setdefault(row.split, Labelled([], [], []))
            for column, value in zip(labelled, (row.question, strategy, row.group), strict=True):
                column.append(value)
    if not found:
        raise UserError(
            f"{answers.path} has no question that was answered both without and with passages: make some "
            f"with '{HOW}' or 'probers-datagen --source cot'",
            code="labels",
        )
    record = {
        "tried": list(answers.strategies), "rule": answers.rule,
        "unanswered": {
            name: {"n": n, "label": bias[name] if tried_all else "multi"}
            for name, n in sorted(unanswered.items())
        },
    }  # fmt: skip
    return found, record


def _of_unanswered(dataset: str, bias: Bias) -> str:
    if dataset not in bias:
        raise UserError(
            f"no strategy answers some questions of the data set {dataset!r}, and head.bias does not "
            f"label them: pass +head.bias.{dataset or 'NAME'}=single, multi or leave_out",
            code="missing-value",
        )
    return bias[dataset]


def seen(rows: Iterable[Tried]) -> Seen:
    """The groups and questions of each split."""
    found: dict[str, list[tuple[str, str, str]]] = {split: [] for split in SPLITS}
    for row in rows:
        found[row.split].append((row.dataset, row.group, row.question))
    return Seen.of(found)
