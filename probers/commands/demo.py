"""The command ``probers-demo``: the other commands, one after the other, on the testbed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..store.store import FeatureStore
from .main import run as run_command
from .parts import record_of
from .runs import RunFolder

if TYPE_CHECKING:
    from omegaconf import DictConfig

# The prober is the mean of the three layers that are best on validation questions, and not the paper's sum
# over all, which is worse there (AUROC 0.79 against 0.77).
#: RaDIO's head for so few examples: better on validation articles than as it is (AUROC 0.85 against 0.83).
_RADIO = ["head=radio", "head.standardise=true", "head.dropout=0.3", "label_smoothing=0.1"]
_STEPS = 7


def run(cfg: DictConfig) -> Path:
    """Labels of both kinds, what is trained on them, one comparison; returns the report's path.

    Each step is a run of its own below ``out``: finished ones are not repeated, so an
    interrupted demo goes on where it stopped.
    """
    out = Path(cfg.out)
    folder = RunFolder(out, "demo", record_of(cfg))
    folder.claim()
    started = time.monotonic()
    for number, (title, command, overrides) in enumerate(steps(cfg), 1):
        print(f"\n[{number}/{_STEPS}] {title}\n$ probers-{command} {' '.join(overrides)}", flush=True)
        run_command(command, overrides)
    for name in ("report.html", "results.json"):
        shutil.copyfile(out / "compare" / name, out / name)
    folder.finish({"model": cfg.model.name})
    minutes = (time.monotonic() - started) / 60
    print(f"\nwrote {out}/report.html and {out}/results.json in {minutes:.1f} minutes")
    print(f'next: open {out}/report.html, or probers-rag prober={out}/prober trigger=probing question=".."')
    return out / "report.html"


def steps(cfg: DictConfig) -> Iterator[tuple[str, str, list[str]]]:
    """Title, command and overrides of each step; those before it are done when it is asked for."""
    out = Path(cfg.out)
    common = [f"seed={cfg.seed}"]
    generating = [*common, f"model.name={cfg.model.name}", f"batch_size={cfg.batch_size}"]
    # Curves cost half of all time and change no table.
    training, comparing = (common, []) if cfg.full else (["learning_curve=false", *common], ["sweep=0"])
    yield (
        "labels: questions with and without passages", "datagen",
        ["source=cot", f"limit={cfg.cot}", f"out={out}/cot", *generating],
    )  # fmt: skip
    yield (
        "labels: articles cut before an entity, with the states of its tokens", "datagen",
        ["source=wiki", "pool=tokens", f"limit={cfg.wiki}", f"out={out}/wiki", *generating],
    )  # fmt: skip
    yield (
        "heads on the question labels", "train",
        ["layer=all", "combine=best", f"data={out}/cot", f"out={out}/prober", *training],
    )  # fmt: skip
    yield (
        "heads on the article labels", "train",
        ["layer=all", f"data={out}/wiki", f"out={out}/prober-wiki", *training],
    )  # fmt: skip
    last = FeatureStore.open(out / "wiki", checksums=False).spec.layers[-1]
    yield (
        "RaDIO's head of single tokens, on the last layer", "train",
        [*_RADIO, f"layer={last}", f"data={out}/wiki", f"out={out}/prober-tokens", *training],
    )  # fmt: skip
    yield (
        "a classifier of questions", "train",
        ["head=adaptive", f"data={out}/cot", f"out={out}/classifier", *common],
    )  # fmt: skip
    yield (
        "every trigger on the same questions", "compare",
        [
            f"limit={cfg.compare}", f"prober={out}/prober", f"token_prober={out}/prober-tokens",
            f"classifier={out}/classifier", f"out={out}/compare", *comparing, *generating,
        ],
    )  # fmt: skip
