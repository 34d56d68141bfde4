"""Ways to make the heads of a prober, which the class of a head names as its ``method``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

from probers.cli.components import Component
from probers.cli.merge import PartRuns
from probers.store.joined import Stored

from ..assemble import Trained
from ..data import Dataset
from ..heads import Fitted, Task, joined, joins_layers, maker, plan_tasks, train_heads
from ..settings import Train

#: Name of a method -> its class below this package; "questions" are no heads on states.
METHODS = {"states": "Method", "stack": "stacking.Stacking", "adapters": "lora.Adapting"}


def method_of(head: Component) -> str:
    """Name the method of a head: its class attribute ``method``, and "states" for a class without one."""
    name = getattr(head.kind, "method", "states")
    return name if isinstance(name, str) else "states"


def class_of(head: Component) -> type[Method]:
    """Find the class of a head's method."""
    return resolve_name(f"{__name__}.{METHODS[method_of(head)]}")  # type: ignore[no-any-return]


class Method:
    """Heads trained on the states of stores, each as if alone; ``parts`` are runs that have trained them.

    Attributes:
        head: its name, and ``unused`` the options that it has no use for.
        reads_texts: it reads the texts of the stores again, which ``texts`` may name.
        refuse: a prober whose threshold cannot be chosen is a UserError.
        settings: those given, with what the method decides.
        make: constructor of the heads.
        inputs: files beside the stores that the heads depend on, by content.
    """

    head: str = ""
    unused: Sequence[str] = ()
    reads_texts = False
    refuse = True
    inputs: Mapping[str, str] = {}

    def __init__(self, settings: Train, parts: PartRuns | None = None) -> None:
        self._parts, self.settings = parts, self.settle(settings)
        self.make = maker(self.settings.head)

    def settle(self, settings: Train) -> Train:
        """Settle options that the method decides; UserError for those that contradict it."""
        return settings

    def prepare(self, dataset: Dataset, stores: Sequence[Stored]) -> Dataset:
        """Select the examples of each split; UserError before anything is written."""
        return dataset

    def plan(self, dataset: Dataset) -> tuple[list[Task], list[str]]:
        """Plan heads and controls, with notes on what is left out."""
        return plan_tasks(dataset, self.settings, joint=joins_layers(self.make))

    def fit(self, tasks: Sequence[Task], dataset: Dataset, what: str = "", *, out: Path | None) -> Fitted:
        """Train heads as :func:`..heads.train_heads`, or join those of the parts.

        ``what`` names an additional training, which the logger leaves out.
        """
        if self._parts is not None:
            return joined(self._parts, self.make, tasks, dataset.states.shape[-1], what)
        how = replace(self.settings, logger="none") if what else self.settings
        return train_heads(self.make, tasks, dataset, how, out=out, what=what)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, out: Path | None
    ) -> tuple[Trained, Dataset]:
        """Add to an assembled prober what the method has beside its heads, and return what it reads."""
        return trained, dataset
