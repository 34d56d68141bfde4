"""Stacking: finished probers weighed on held-out texts, as one prober (Wolpert 1992)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from probers.checksums import draw_key, inputs
from probers.cli.components import Component
from probers.data.splits import Seen
from probers.evaluation.metrics import auroc
from probers.heads import head_name
from probers.heads.stacked import StackedHead
from probers.options import Name
from probers.prober.calibration import Logistic, fit_logistic
from probers.prober.io import CONFIG, locate
from probers.prober.prober import Prober
from probers.store.joined import Stored
from probers.store.spec import ranges
from probers.types import SPLITS, UserError

from ..assemble import Detector, Trained, score_everything, score_texts
from ..data import Dataset, layers_to_train
from ..examples import WEIGHTS
from ..heads import Fitted, Task, build
from ..settings import Train
from . import Method


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Finished probers as one: a logistic regression on their scores, fitted on texts none was trained on.

    They are of the same model, site, pool and position, with any heads and layers. Half of the validation
    groups fit the weights, of which none is negative; the other half calibrate. Heads that pool tokens or
    mark spans are refused.
    """

    method: ClassVar[str] = "stack"
    probers: list[Name] = field(default_factory=lambda: [])
    """probers to stack, two or more: folders or hub ids, as [runs/a,runs/b]"""


class Stacking(Method):
    """The method of a stack: weights for probers in place of a training (UserError: those it cannot take)."""

    head = "stacked"
    unused = ("sizes", "layer_sets", "matrix", "part", "launch", "beside", "seeds")

    def settle(self, settings: Train) -> Train:
        """Take head, pool, site and layers from the members; UserError for options that contradict them."""
        probers: list[str] = settings.head.options["probers"]
        if len(probers) < 2:
            given = f"head.probers=[{','.join(probers)}]"
            raise UserError(f"{given}: give two or more, as [runs/a,runs/b]", "missing-value")
        banks = [Prober.from_pretrained(name) for name in probers]
        for name, bank in zip(probers, banks, strict=True):
            reasons = {
                "pools the tokens of a span itself": bank.head.tokens,
                "marks the span it scores": bank.head.marker,
                f"reads {', '.join(bank.spec.feature.beside)}": bool(bank.spec.beside),
            }
            if bank.label != settings.label:
                message = f"head.probers: {name} learned label={bank.label}, this is label={settings.label}"
                raise UserError(f"{message}: give probers of one label, and that label", "mismatch")
            if reason := next((text for text, applies in reasons.items() if applies), None):
                raise UserError(f"head.probers: the head of {name} {reason}: leave it out", "unsupported")
            banks[0].spec.check(bank.spec, what=f"head.probers: states of {probers[0]}", against=f"of {name}")
        layers = tuple(sorted({layer for bank in banks for layer in bank.layers}))
        self.probers, self.banks = probers, banks
        self.inputs = inputs(*(locate(name) / CONFIG for name in probers))  # which names the weights
        self.spec = replace(banks[0].spec, layers=layers)
        if settings.layer != "all" and layers_to_train(settings.layer, self.spec) != layers:
            reads = f"the members read layers {ranges(layers)}"
            raise UserError(f"layer={settings.layer}: {reads}: leave layer out", "layers")
        members = [{
            "head": head_name(bank.head), "options": bank.head.options, "layers": list(bank.layers),
            "ensemble": bank.ensemble.to_dict(),
        } for bank in banks]  # fmt: skip
        head = Component("head", "probers.heads.stacked.StackedHead", {"members": members})
        pool: Any = settings.pool or self.spec.pool
        return replace(
            settings, head=head, pool=pool, site=settings.site or self.spec.site, layer=list(layers),
            learning_curve=False,
        )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """Name of each folder, or its whole path where two have the same name."""
        short = [name.rstrip("/").rpartition("/")[2] for name in self.probers]
        count = Counter(short)
        return [name if count[name] == 1 else path for name, path in zip(short, self.probers, strict=True)]

    def plan(self, dataset: Dataset) -> tuple[list[Task], list[str]]:
        tasks, _ = super().plan(dataset)
        notes = ["controls that are heads left out: a stack is not trained on states"]
        if unknown := [name for name, bank in zip(self.names, self.banks, strict=True) if bank.seen is None]:
            message = "it is not known what these were trained on, which may be texts of validation or test"
            notes.append(f"{message}: {', '.join(unknown)}")
        return [task for task in tasks if task.is_probe], notes

    def prepare(self, dataset: Dataset, stores: Sequence[Stored]) -> Dataset:
        """Deal the validation groups by hash: one half is for the weights, the other remains validation.

        UserError for states of another kind, and for groups of validation or test that a member has learned
        from; for test groups also where it was tuned on them.
        """
        examples = dataset.examples
        for spec in dataset.specs.values():
            self.spec.check(spec, what="head.probers: states of the probers", against="those of data")
        for name, bank in zip(self.probers, self.banks, strict=True):
            for split, learned in (("validation", ["train"]), ("test", ["train", "validation"])):
                known = np.isin(examples.sides(bank.seen or Seen({}), split), learned)
                if groups := sorted(set(map(str, examples.column("group", split)[known]))):
                    where = f"{len(groups)} of the {split} groups of data, such as {groups[0]!r}"
                    fix = "stack it on a store whose groups, in its splits, it has not seen"
                    raise UserError(f"head.probers: {name} was trained or tuned on {where}: {fix}", "overlap")
        names = map(str, examples.groups("validation"))
        order = sorted(names, key=lambda g: draw_key("stack", self.settings.seed, g))
        first = np.isin(examples.column("group", "validation").astype(str), order[: len(order) // 2])
        train, validation, test = (examples.rows[split] for split in SPLITS)
        rows = {"train": train, WEIGHTS: validation[first], "validation": validation[~first], "test": test}
        seen = reduce(or_, (bank.seen for bank in self.banks if bank.seen is not None), Seen({}))
        return replace(dataset, examples=replace(examples, rows=rows, known=seen))

    def fit(self, tasks: Sequence[Task], dataset: Dataset, what: str = "", *, out: Path | None) -> Fitted:
        """Fit the weights on the members' scores of half of the groups, and measure on the other half."""
        start, aggregate = time.perf_counter(), self.settings.aggregate
        head = build(self.make, tasks, dataset.states.shape[-1]).eval()
        assert isinstance(head, StackedHead)
        for member, bank in zip(head.heads, self.banks, strict=True):
            member.load_state_dict(bank.head.state_dict())
        rows, wrong = dataset.examples.rows, dataset.examples.wrong
        scores = np.stack([score_texts(bank, dataset, aggregate) for bank in self.banks], axis=1)
        fitted = fit_weights(scores[rows[WEIGHTS]], wrong[rows[WEIGHTS]])
        head.weigh(fitted.mean, fitted.scale, fitted.weights, fitted.intercept)
        margins = score_everything(head, tasks, dataset, aggregate).of_head(0)[rows["validation"]]
        labels = wrong[rows["validation"]]
        accuracy = np.array([np.mean((margins > 0) == labels)])
        loss = np.array([np.logaddexp(0, np.where(labels, -margins, margins)).mean()])
        ranked, seconds = np.array([auroc(labels, margins)]), time.perf_counter() - start
        return Fitted(tuple(tasks), head, accuracy, loss, ranked, steps=0, seconds=seconds)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, out: Path | None
    ) -> tuple[Trained, Dataset]:
        """Add each member alone, with its own aggregate, calibration and threshold."""
        members = []
        for name, bank in zip(self.names, self.banks, strict=True):
            scores = score_texts(bank, dataset, bank.aggregate)
            about = f"head={head_name(bank.head)}, layers {ranges(bank.layers)}"
            members.append(Detector(name, scores, about, bank.probability, bank.threshold))
        return replace(trained, members=members), dataset


def fit_weights(scores: np.ndarray, wrong: np.ndarray) -> Logistic:
    """Fit the logistic model of scores (n, members) with no weight below zero (after Breiman 1996).

    The member with the lowest weight is left out, with weight zero, until none is negative. Few texts would
    otherwise set members that say nearly the same against each other. UserError where none is of use.
    """
    whole = fitted = fit_logistic(scores, wrong)
    used = np.arange(scores.shape[1])
    while len(used) > 1 and fitted.weights.min() < 0:
        used = np.delete(used, fitted.weights.argmin())
        fitted = fit_logistic(scores[:, used], wrong)
    if fitted.weights.max() <= 0:
        message = f"no member of the stack tells wrong from right among the {len(wrong)} texts of its weights"
        raise UserError(f"{message}: give other members, or a store with more validation texts", "labels")
    weights = np.zeros(scores.shape[1])
    weights[used] = fitted.weights
    return Logistic(weights, whole.mean, whole.scale, fitted.intercept)
