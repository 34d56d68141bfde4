"""Ways to make the heads of a prober, which the class of a head names as its ``method``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

from probers.cli.components import Component
from probers.cli.merge import PartRuns
from probers.cli.settings import ReadPool, TextFile
from probers.store.joined import Stored
from probers.types import Site

from ..assemble import Trained
from ..data import Dataset
from ..examples import Label
from ..heads import Fitted, Task, joined, joins_layers, maker, plan_tasks, train_heads
from ..settings import Assembling, Fitting, Layers

#: Name of a method -> its class below this package; "questions" are no heads on states.
METHODS = {"states": "Method", "stack": "stacking.Stacking", "adapters": "lora.Adapting"}


def method_of(head: Component) -> str:
    """Name the method of a head: its class attribute ``method``, and "states" for a class without one."""
    name = getattr(head.kind, "method", "states")
    return name if isinstance(name, str) else "states"


def class_of(head: Component) -> type[Method]:
    """Find the class of a head's method."""
    return resolve_name(f"{__name__}.{METHODS[method_of(head)]}")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Subject:
    """Subject of a training: a head, and the states of the stores that it reads, each as its option.

    ``curve`` asks for the learning curve.
    """

    head: Component
    layer: Layers
    pool: ReadPool | None
    site: Site | list[Site] | None
    label: Label
    curve: bool


class Method:
    """Heads trained on the states of stores, each as if alone.

    Attributes:
        head: its name, and ``unused`` the options that it has no use for.
        reads_texts: it reads the texts of the stores again, which ``texts`` may name.
        refuse: a prober whose threshold cannot be chosen is a UserError.
        subject: that given, with what the method decides.
        make: constructor of the heads.

    Args:
        resamples: bootstrap resamples for what the method measures itself.
        parts: runs that have trained the heads already.
    """

    head: str = ""
    unused: Sequence[str] = ()
    reads_texts = False
    refuse = True

    def __init__(
        self, subject: Subject, fitting: Fitting, choice: Assembling, *, texts: TextFile, resamples: int,
        parts: PartRuns | None = None,
    ) -> None:  # fmt: skip
        self.fitting, self.choice, self.texts, self.resamples = fitting, choice, texts, resamples
        self._parts = parts
        self.subject = self.settle(subject)
        self.make = maker(self.subject.head)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Files beside the stores that the heads depend on, by content."""
        return {}

    @property
    def of_heads(self) -> Fitting:
        """Training of the heads on the states of the stores."""
        return self.fitting

    def settle(self, subject: Subject) -> Subject:
        """Settle options that the method decides; UserError for those that contradict it."""
        return subject

    def prepare(self, dataset: Dataset, stores: Sequence[Stored]) -> Dataset:
        """Select the examples of each split; UserError before anything is written."""
        return dataset

    def plan(self, dataset: Dataset) -> tuple[list[Task], list[str]]:
        """Plan heads and controls, with notes on what is left out."""
        return plan_tasks(dataset, self.fitting, joint=joins_layers(self.make))

    def fit(self, tasks: Sequence[Task], dataset: Dataset, what: str = "", *, out: Path | None) -> Fitted:
        """Train heads as :func:`..heads.train_heads`, or join those of the parts.

        ``what`` names an additional training, which the logger leaves out.
        """
        if self._parts is not None:
            return joined(self._parts, self.make, tasks, dataset.states.shape[-1], what)
        how = replace(self.of_heads, logger="none") if what else self.of_heads
        return train_heads(self.make, tasks, dataset, how, out=out, what=what)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, out: Path | None
    ) -> tuple[Trained, Dataset]:
        """Add to an assembled prober what the method has beside its heads, and return what it reads."""
        return trained, dataset
