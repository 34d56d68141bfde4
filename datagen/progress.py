"""The progress bar of ``probers-datagen``."""

from __future__ import annotations

import time
from typing import Any

from tqdm import tqdm

from .labels.base import Examples, LabelBuilder, span_of


class LabelBar:
    """Shows items read, units done, labels per second and their balance; counts what this run makes.

    Args:
        builder: whose items are counted.
    """

    def __init__(self, builder: LabelBuilder) -> None:
        self._builder = builder
        self._units = self._labels = self._wrong = 0
        self._begun = time.monotonic()
        self._bar = tqdm(total=builder.total, unit=f" {builder.item_name}s", dynamic_ncols=True)

    def __enter__(self) -> LabelBar:
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.close()

    def done(self, units: int, examples: Examples) -> None:
        """Count a shard that was written."""
        spans = {span_of(row): row["correct"] for row in examples.rows}
        self._units += units
        self._labels += len(spans)
        self._wrong += sum(1 - correct for correct in spans.values())
        rate = self._labels / max(1e-9, time.monotonic() - self._begun)
        share = f"{self._wrong / self._labels:.2f} {self._builder.wrong_name}" if self._labels else "no label"
        self._bar.set_postfix_str(
            f"{self._units} {self._builder.unit_name}s, {self._labels} labels, {rate:.1f} labels/s, {share}"
        )
        self._bar.update(self._builder.items - self._bar.n)
