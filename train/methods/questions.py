"""Training of a classifier of questions (Adaptive-RAG): its label is the cheapest right strategy.

A run of ``probers-compare split=all`` tried all strategies; a store of ``probers-datagen --source cot`` has
only answers without and with passages, and questions that neither answers count as "multi".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from probers.adaptive import STRATEGIES, AdaptiveClassifier
from probers.checksums import Journal, sha256
from probers.cli.command_lines import command_line, override
from probers.cli.inputs import newest_store
from probers.cli.runs import RunFolder, read_state
from probers.data.splits import Seen
from probers.evaluation.bootstrap import UNDEFINED, Bootstrap, bounded, few_groups
from probers.evaluation.metrics import auroc
from probers.files import canonical_json, write_text
from probers.options import Count, Limits, Positive
from probers.pages import markdown, public_model, public_path
from probers.store.files import fingerprint
from probers.store.store import FeatureStore
from probers.types import UserError, first_line

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

#: Trigger of a comparison for each strategy, and the command that tries all.
TRIGGERS = {"no": "never", "single": "always", "multi": "fixed_sentence"}
HOW = "probers-compare triggers=[never,always,fixed_sentence] split=all"
#: Label of a data set's questions that no strategy answers right; "leave_out" gives them none.
Label = Literal["single", "multi", "leave_out"]
Bias = Annotated[Mapping[str, Label], Limits("single, multi or leave_out for each data set, as {nq: single}")]
#: Labels for known question sets; those of several hops need several retrievals (Adaptive-RAG, 3.2).
BIAS: dict[str, Label] = {
    "nq": "single", "triviaqa": "single", "hotpotqa": "multi", "2wikimultihopqa": "multi", "musique": "multi",
    "strategyqa": "multi", "iirc": "multi", "bamboogle": "multi", "testbed": "multi",
    "squad": "single", "popqa": "single", "webquestions": "single", "simpleqa": "single", "msmarco": "single",
}  # fmt: skip
_CONDITIONS = {"closed_book": "no", "with_passages": "single"}
_COLUMNS = ["id", "dataset", "group", "split", "question"]
_USED = ("data", "out", "suffix", "head", "resamples", "seed", "overwrite", "wait", "checksums")


@dataclass(frozen=True)
class Answers:
    """Questions that one model answered with several strategies.

    Attributes:
        tried: strategies; each is a column of ``table``, true where its answer is right, missing where there
            is none, beside id, dataset, group, split and question.
        rule: figure that decides whether an answer is right.
    """

    path: Path
    model: str
    rule: str
    tried: tuple[str, ...]
    table: pd.DataFrame
    fingerprint: str

    @classmethod
    def read(cls, path: Path, *, checksums: bool = True) -> Answers:
        """Read a folder of ``probers-compare``, or a store of ``--source cot`` (UserError)."""
        import pandas as pd

        state = read_state(path)
        if state is None or state["command"] != "compare":
            store, tried = FeatureStore.open(path, checksums=checksums), tuple(_CONDITIONS.values())
            tables = [pd.DataFrame(columns=[*_COLUMNS, "condition", "correct"])]
            tables += store.tables() if store.spec.position == "generated" else ()
            rows = pd.concat(tables).fillna({"dataset": "", "group": "", "question": ""})
            rows["id"] = rows["id"].str.rpartition("/")[0]
            right = {s: rows[rows["condition"] == c] for c, s in _CONDITIONS.items()}
            table = pd.DataFrame({s: part.set_index(_COLUMNS)["correct"] for s, part in right.items()})
            model, rule = store.spec.model.id, str(store.config.get("label", ""))
            return cls(path, model, rule, tried, table.reset_index(), fingerprint(path))
        if not state["complete"]:
            raise UserError(f"data={path} is not finished: run its command again", "no-artifact")
        identity, file = state["identity"], path / "outcomes.jsonl"
        names = reversed(identity["triggers"])  # of methods with one trigger the first wins
        methods = {identity["methods"][name]["trigger"]: name for name in names}
        if missing := [trigger for trigger in TRIGGERS.values() if trigger not in methods]:
            lacks = f"compared no method of trigger {' or '.join(missing)}"
            raise UserError(f"head=adaptive: data={path} {lacks}: run '{HOW}'", "labels")
        try:
            read = Journal(file).read()
            if read.cut or read.damaged or not read.records:
                number = min(read.damaged, default=len(read.records) + 1)
                raise ValueError(f"was altered or cut off in line {number}")
            lines = read.records.values()
            right = {s: [line["right"].get(methods[t]) for line in lines] for s, t in TRIGGERS.items()}
            table = pd.DataFrame({c: [str(line[c]) for line in lines] for c in _COLUMNS} | right)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            message = f"{file} is missing or damaged ({first_line(error)}): compare again with overwrite=true"
            raise UserError(message, "damaged") from error
        return cls(path, identity["model"]["name"], identity["wrong"], STRATEGIES, table, sha256(file)[:16])

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Join the answers of several runs (UserError: other models or rules, or overlapping questions)."""
        import pandas as pd

        first, where = parts[0], " and ".join(f"data={part.path}" for part in parts)
        for name in ("model", "rule", "tried"):
            if len(values := dict.fromkeys(str(getattr(part, name)) for part in parts)) > 1:
                raise UserError(f"{where} cannot be joined: {name} is {' and '.join(values)}", "mismatch")
        table = pd.concat([part.table.assign(part=i) for i, part in enumerate(parts)], ignore_index=True)
        for keys, differs, problem in (
            (["dataset", "id"], "part", "the question {!r} is in several of {}: give every question once"),
            (["dataset", "group"], "split", "{!r} has two splits in {}: split its questions with one seed"),
        ):
            if (several := table.groupby(keys)[differs].nunique() > 1).any():
                raise UserError(problem.format(several.idxmax()[1], where), "overlap")  # type: ignore[index]
        return replace(first, table=table)

    def labelled(self, bias: Mapping[str, Label]) -> tuple[pd.DataFrame, dict[str, Any]]:
        """Label every question with its cheapest right strategy, as the column ``strategy``, and say by what.

        Questions with an untried strategy get no label. ``bias`` labels those that no strategy answers,
        by data set; they are "multi" if that was not tried. UserError if no question is left, or ``bias``
        lacks a data set that needs it.
        """
        table = self.table.dropna(subset=list(self.tried))
        right = table[list(self.tried)].astype(bool)
        nobody = table.loc[~right.any(axis=1), "dataset"]
        if "multi" not in self.tried:
            bias = dict.fromkeys(nobody, "multi")
        if unknown := sorted(set(nobody) - set(bias)):
            fix = f"label them with +head.bias.{unknown[0] or 'NAME'}=single, multi or leave_out"
            raise UserError(f"no strategy answers some questions of {unknown[0]!r}: {fix}", "missing-value")
        strategy = right.idxmax(axis=1).astype(object)
        strategy[nobody.index] = nobody.map(dict(bias))
        table = table.assign(strategy=strategy)[strategy != "leave_out"]
        if table.empty:
            lacks = "has no question that was answered both without and with passages"
            raise UserError(f"data={self.path} {lacks}: run '{HOW}'", "labels")
        counts = nobody.value_counts().sort_index().items()
        sources = {str(name): {"n": int(n), "label": bias[str(name)]} for name, n in counts}
        return table, {"tried": list(self.tried), "rule": self.rule, "unanswered": sources}


@dataclass(frozen=True, kw_only=True)
class Words:
    """Settings for fitting the classifier of words."""

    method: ClassVar[str] = "questions"
    bias: Bias = field(default_factory=lambda: BIAS)
    """label, by data set, of questions that no strategy answers"""
    c: Positive = 1.0
    """inverse strength of the L2 penalty"""
    min_count: Count = 2
    """words and pairs of words in fewer questions are left out"""


def run(request: Any) -> Path:
    """Train and measure a classifier of questions; return its folder. UserErrors come before any file."""
    defaults, used = type(request)(), (*_USED, "device", "logger", "save_every", "_record", "_typed")
    for option in (each.name for each in fields(request) if each.name not in used):
        if (value := getattr(request, option)) != getattr(defaults, option):
            raise UserError(f"{option}={value} does not apply to head=adaptive: leave it out", "conflict")
    options, given = asdict(request.head.make()), request.data or newest_store("cot") or []
    if not (paths := [Path(path) for path in (given if isinstance(given, list) else [given])]):
        remedy = f"'probers-datagen --source cot' makes one, or pass data=FOLDER, also of '{HOW}'"
        raise UserError(f"no store of answered questions: {remedy}", "no-artifact")
    named = ", ".join(map(str, paths))
    log.info("reading %s", named)
    parts = [Answers.read(path, checksums=request.checksums) for path in paths]
    answers = Answers.joined(parts)
    table, labels = answers.labelled(options.pop("bias"))
    splits = {str(split): part for split, part in table.groupby("split")}
    if lacking := [split for split in ("train", "test") if split not in splits]:
        raise UserError(f"{named} has no {lacking[0]} question that every strategy was tried on", "labels")
    train, test = splits["train"], splits["test"]
    questions, right = train["question"].tolist(), train["strategy"].tolist()
    classifier = AdaptiveClassifier.fit(questions, right, **options)  # refuses those with nothing to learn
    suffix = f",{request.suffix}" if request.suffix else ""
    out = Path(request.out or f"runs/train/{'+'.join(path.name for path in paths)}-adaptive{suffix}")
    stores = [part.fingerprint for part in parts]
    read = {"data": list(map(str, paths)), "inputs": {"store": stores}}
    if len(parts) == 1:
        read = {"data": named, "inputs": {"store": stores[0]}}
    folder = RunFolder(out, "train", {key: request.record[key] for key in _USED} | read)
    if not folder.begin(what="classifier"):
        return out
    drawn = np.random.default_rng(request.seed).permutation(right).tolist()
    shuffled = AdaptiveClassifier.fit(questions, drawn, **options)
    models = {"classifier": classifier, "shuffled labels": shuffled}
    chances = {name: model.probabilities(test["question"].tolist()) for name, model in models.items()}
    bootstrap = Bootstrap(test["group"].to_numpy(), resamples=request.resamples, seed=request.seed)
    figures = measure(test["strategy"].tolist(), chances, train["strategy"].mode()[0], bootstrap) | {
        "labels": labels,
        "splits": {
            split: {"n": len(part), "groups": part["group"].nunique(),
                    "strategies": part["strategy"].value_counts(normalize=True).sort_index().to_dict()}
            for split, part in splits.items()
        },
    }  # fmt: skip
    marks = {str(s): part[["dataset", "group", "question"]] for s, part in answers.table.groupby("split")}
    Seen.of({s: part.itertuples(index=False, name=None) for s, part in marks.items()}).save(out)
    classifier.save(out)
    write_text(out / "metrics.json", canonical_json(figures))
    write_text(out / "README.md", card(figures, model=answers.model, data=paths, out=out))
    folder.finish({"model": answers.model, "accuracy": figures["detectors"]["classifier"]["accuracy"]})
    log.info("%s", described(figures))
    log.info("wrote a classifier of questions with %d terms to %s", len(classifier.terms), out)
    log.info("next: %s", _use(out))
    return out


def _use(out: str | Path) -> str:
    words = ("question=..", "trigger=adaptive", "query=last_sentence", override("trigger.classifier", out))
    return command_line("rag", *words)


def measure(
    strategies: Sequence[str], chances: Mapping[str, np.ndarray], majority: str, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Compute figures of the test questions' strategies (n,) from (n, 3) ``chances`` of each predictor.

    AUROC is of some retrieval or none, by P(some) - P(none) as the trigger scores it. Rows of ``confusion``
    are the cheapest strategies that answer right, columns what the first predictor says.
    """
    labels, (name, *_) = np.array([STRATEGIES.index(s) for s in strategies]), chances
    right = {n: rows.argmax(axis=1) == labels for n, rows in chances.items()}
    right["majority"] = labels == STRATEGIES.index(majority)
    curves = dict.fromkeys(right, UNDEFINED)
    if 0 < (wrong := (labels > 0).astype(int)).sum() < len(wrong):
        scores = {n: rows[:, 1:].max(axis=1) - rows[:, 0] for n, rows in chances.items()}
        curves |= {n: bootstrap.interval(s, partial(auroc, wrong)) for n, s in scores.items()}
    confusion = np.zeros((len(STRATEGIES), len(STRATEGIES)), dtype=int)
    np.add.at(confusion, (labels, chances[name].argmax(axis=1)), 1)
    detectors = {n: bootstrap.interval(hits).figures("accuracy") for n, hits in right.items()}
    pairs = {n: bootstrap.difference(right[name], hits) for n, hits in right.items() if n != name}
    return {
        "schema": 2, "strategies": list(STRATEGIES), "majority": majority, "confusion": confusion.tolist(),
        "detectors": {n: entry | curves[n].figures("auroc") for n, entry in detectors.items()},
        "pairs": {f"{name} vs {n}": {"accuracy": {"diff": pair.value, "ci95": pair.limits}}
                  for n, pair in pairs.items()},
    }  # fmt: skip


def described(figures: Mapping[str, Any]) -> str:
    """Format the figures as text for the terminal and the card, with what speaks against the classifier."""
    import pandas as pd

    labels, test, titles = figures["labels"], figures["splits"]["test"], [f"said {s}" for s in STRATEGIES]
    counted = (f"{e['n']} of {d or 'no data set'} ({e['label']})" for d, e in labels["unanswered"].items())
    tried = f"all three strategies were tried (right by {labels['rule']}); none"
    if "multi" not in labels["tried"]:
        tried = "several retrievals were not tried; neither strategy"
    shown = {n: (bounded(e, "accuracy"), bounded(e, "auroc")) for n, e in figures["detectors"].items()}
    notes = [few_groups(test["groups"], "test group")]
    if not figures["pairs"]["classifier vs majority"]["accuracy"]["ci95"][0] > 0:
        notes.append(f"it is not shown to be better than saying {figures['majority']!r} of every question")
    return "\n".join([
        f"test: {test['n']} questions, {test['groups']} groups; the cheapest strategy that answers right",
        f"labels: {tried} answers {', '.join(counted) or 'no question'}",
        pd.DataFrame(shown, ["accuracy", "AUROC, no or some retrieval"]).T.to_string(),
        pd.DataFrame(figures["confusion"], STRATEGIES, titles).rename_axis(columns="cheapest").to_string(),
        *(f"note: {note}" for note in notes if note),
    ])  # fmt: skip


def card(figures: Mapping[str, Any], *, model: str, data: Sequence[Path], out: Path) -> str:
    """Write the text of ``README.md``."""
    return f"""---
library_name: probers
tags: [retrieval-augmented-generation, adaptive-retrieval]
---

# How often to retrieve for a question, for {markdown(public_model(model))}

Logistic regression on the TF-IDF of a question's words, in the manner of Adaptive-RAG (Jeong et al. 2024).
A label is the cheapest strategy that answered right: without passages (no), with one retrieval (single), or
several (multi). The answers are this model's to {", ".join(public_path(path, "DATA") for path in data)}, and
say nothing of another. Brackets are 95% bootstrap intervals over groups; nothing was chosen on the test
questions.

    {_use(public_path(out, "CLASSIFIER"))}

```text
{described(figures).replace("`", "'")}
```
"""
