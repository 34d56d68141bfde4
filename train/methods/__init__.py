"""Ways to make the heads of a prober, which the class of a head names as its ``method``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name

from probers.cli.components import Component
from probers.cli.merge import PartRuns
from probers.cli.settings import default_values
from probers.store.joined import Stored
from probers.types import UserError

from ..assemble import Trained
from ..data import Dataset
from ..heads import Fitted, Task, joined, joins_layers, maker, plan_tasks, train_heads
from ..settings import Fitting, Train

#: Name of a method -> its class below this package; "questions" are no heads on states.
METHODS = {"states": "Method", "stack": "stacking.Stacking", "adapters": "lora.Adapting"}


def method_of(head: Component) -> str:
    """Name the method of a head: its class attribute ``method``, and "states" for a class without one."""
    name = getattr(head.kind, "method", "states")
    return name if isinstance(name, str) else "states"


def make_method(settings: Train, parts: PartRuns | None = None) -> Method:
    """Make the method that the head of the settings names; UserError for options that contradict it."""
    return resolve_name(f"{__name__}.{METHODS[method_of(settings.head)]}")(settings, parts)  # type: ignore[no-any-return]


class Method:
    """Heads trained on the states of stores, each as if alone.

    Attributes:
        head: its name, and ``unused`` the options that it has no use for.
        reads_texts: it reads the texts of the stores again, which ``texts`` may name.
        refuse: a prober whose threshold cannot be chosen is a UserError.
        settings: those given, with what the method decides.
        make: constructor of the heads.

    Args:
        parts: runs that have trained the heads already.
    """

    head: str = ""
    unused: Sequence[str] = ()
    reads_texts = False
    refuse = True

    def __init__(self, settings: Train, parts: PartRuns | None = None) -> None:
        for name in self.unused:
            if (value := getattr(settings, name)) and value != default_values(Train).get(name):
                message = f"{name}={value} does not apply to head={self.head}, which makes one prober"
                raise UserError(f"{message}: leave it out", "conflict")
        if settings.texts.path is not None and not self.reads_texts:
            message = f"texts={settings.texts.path} is for head=lora; other heads read the states of data"
            raise UserError(f"{message}: leave texts out", "conflict")
        self._parts, self.settings = parts, self.settle(settings)
        self.make = maker(self.settings.head)

    @property
    def inputs(self) -> Mapping[str, str]:
        """Files beside the stores that the heads depend on, by content."""
        return {}

    def settle(self, settings: Train) -> Train:
        """Settle options that the method decides; UserError for those that contradict it."""
        return settings

    def prepare(self, dataset: Dataset, stores: Sequence[Stored]) -> Dataset:
        """Select the examples of each split; UserError before anything is written."""
        return dataset

    def plan(self, dataset: Dataset) -> tuple[list[Task], list[str]]:
        """Plan heads and controls, with notes on what is left out."""
        return plan_tasks(dataset, self.settings, joint=joins_layers(self.make))

    def fit(
        self, tasks: Sequence[Task], dataset: Dataset, how: Fitting, *, out: Path | None, what: str = ""
    ) -> Fitted:
        """Train heads as :func:`..heads.train_heads`, or join those of the parts."""
        if self._parts is not None:
            return joined(self._parts, self.make, tasks, dataset.states.shape[-1], what)
        return train_heads(self.make, tasks, dataset, how, out=out, what=what)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, out: Path | None
    ) -> tuple[Trained, Dataset]:
        """Add to an assembled prober what the method has beside its heads, and return what it reads."""
        return trained, dataset
