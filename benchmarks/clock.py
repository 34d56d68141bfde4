"""Time of a training, by parts of a step and validations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timing import now

from probers.train import heads
from probers.train.module import ProberModule, StoreData

#: Parts of a step; the rest is the trainer's: hooks, progress bar, schedule, logging.
PARTS = ("data", "forward", "backward", "adamw")
#: Steps left out at the beginning of every stretch between two validations.
COLD = 1


class Clock:
    """Times of the parts of a training, taken in the trainer's hooks, between which the parts lie.

    Attributes:
        validating: seconds in validations.
        threads: number of processor threads that the training used.
    """

    def __init__(self) -> None:
        self.validating, self.threads = 0.0, 0
        self._steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}
        self._last = self._validation = 0.0
        self._cold = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the trainings of this block."""
        kept = heads.ProberModule, heads.StoreData
        heads.ProberModule, heads.StoreData = _timed_module(self), _timed_data(self)
        try:
            yield
        finally:
            heads.ProberModule, heads.StoreData = kept

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as a part of the present step."""
        start = now(None)
        yield
        self.spent(name, now(None) - start)

    def spent(self, name: str, seconds: float) -> None:
        self._now[name] = self._now.get(name, 0.0) + seconds

    def step_over(self) -> None:
        moment = now(None)
        if self._cold >= COLD:
            self._steps.append({"step": moment - self._last, **self._now})
        self._cold += 1
        self._last, self._now = moment, {}

    def validation(self, begins: bool) -> None:
        """Begin or end a validation; it belongs to no step, nor do the batches read for it."""
        moment = now(None)
        if begins:
            self._validation = moment
            if self._cold > COLD:
                self._steps.pop()  # the trainer reads a batch ahead: the last step of a stretch reads none
        else:
            self.validating += moment - self._validation
        self._cold, self._now = 0, {}

    def means(self) -> tuple[dict[str, float], float]:
        """Compute mean seconds of each part of a step, and of a step."""
        if not self._steps:
            raise SystemExit("no step was timed: give more --steps, or a larger store")
        names = (*PARTS, "step")
        means = {n: sum(s.get(n, 0.0) for s in self._steps) / len(self._steps) for n in names}
        step = means.pop("step")
        return {**means, "trainer": step - sum(means.values())}, step


def _timed_module(clock: Clock) -> type[ProberModule]:
    class Timed(ProberModule):
        def on_train_start(self) -> None:
            clock.threads = torch.get_num_threads()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            with clock.part("forward"):
                return super().training_step(batch, index)

        def on_before_backward(self, loss: torch.Tensor) -> None:
            self._since = now(None)

        def on_after_backward(self) -> None:
            clock.spent("backward", now(None) - self._since)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self._since = now(None)

        def optimizer_step(self, *args: Any, **options: Any) -> None:
            super().optimizer_step(*args, **options)  # forward and backward run within, before the hook above
            clock.spent("adamw", now(None) - self._since)

        def on_train_batch_end(self, *_: Any) -> None:
            clock.step_over()

        def on_validation_start(self) -> None:
            clock.validation(begins=True)

        def on_validation_end(self) -> None:
            clock.validation(begins=False)

    return Timed


def _timed_data(clock: Clock) -> type[StoreData]:
    class Timed(StoreData):
        def __getitem__(self, index: torch.Tensor) -> Any:
            with clock.part("data"):
                return super().__getitem__(index)

    return Timed
