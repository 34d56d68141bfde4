"""Ways to make the heads of a prober: training on states, from which stacks and adapters derive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from probers.commands.merge import PartRuns
from probers.commands.settings import default_values
from probers.heads import is_joint
from probers.store.joined import Stored
from probers.types import UserError

from .assemble import Trained
from .data import Dataset
from .fit import Fitted, Task, fit, joined, maker, plan_tasks
from .settings import Train


class Method:
    """Heads trained on the states of stores, each as if alone.

    Attributes:
        head: its name, and ``unused`` the options that it has no use for.
        reads_texts: it reads the texts of the stores again, which ``texts`` may name.
        refuse: a prober whose threshold cannot be chosen is a UserError.

    Args:
        parts: runs that have trained the heads already.
    """

    head: str = ""
    unused: Sequence[str] = ()
    reads_texts = False
    refuse = True

    def __init__(self, parts: PartRuns | None = None) -> None:
        self._parts = parts

    @property
    def inputs(self) -> Mapping[str, str]:
        """Files beside the stores that the heads depend on, by content."""
        return {}

    def settle(self, settings: Train) -> Train:
        """Settle options that the method decides; UserError for those that contradict it."""
        for name in self.unused:
            if (value := getattr(settings, name)) and value != default_values(Train).get(name):
                told = f"{name}={value} does not apply to head={self.head}, which makes one prober"
                raise UserError(f"{told}: leave it out", "conflict")
        if settings.texts.path is not None and not self.reads_texts:
            told = f"texts={settings.texts.path} is for head=lora; other heads read the states of data"
            raise UserError(f"{told}: leave texts out", "conflict")
        return settings

    def prepare(self, dataset: Dataset, stores: Sequence[Stored], settings: Train) -> Dataset:
        """Select the examples of each split; UserError before anything is written."""
        return dataset

    def plan(self, dataset: Dataset, settings: Train) -> tuple[list[Task], list[str]]:
        """Plan heads and controls, with notes on what is left out."""
        return plan_tasks(dataset, settings, joint=is_joint(settings.head.kind))

    def fit(self, out: Path, tasks: Sequence[Task], dataset: Dataset, how: Train, what: str = "") -> Fitted:
        """Train heads as :func:`.fit.fit`, or join those of the parts."""
        if self._parts is not None:
            return joined(self._parts, maker(how.head), tasks, dataset.states.shape[-1], what)
        return fit(maker(how.head), tasks, dataset, how, out=out, what=what)

    def complete(
        self, trained: Trained, fitted: Fitted, dataset: Dataset, settings: Train, out: Path
    ) -> tuple[Trained, Dataset]:
        """Add to an assembled prober what the method has beside its heads, and return what it reads."""
        return trained, dataset
