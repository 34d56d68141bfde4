"""The command ``probers-demo``: the other commands, one after the other, on the testbed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from .cli import run as run_command
from .parts import plain
from .runs import RunFolder

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> Path:
    """Labels of both kinds, two probers, one comparison; returns the report's path.

    Each step is a run of its own below ``out``: finished ones are not repeated, so an
    interrupted demo goes on where it stopped.
    """
    out = Path(cfg.out)
    folder = RunFolder(out, "demo", plain(cfg))
    if cfg.overwrite:
        folder.clear()
    folder.claim()
    model = f"model.name={cfg.model.name}"
    common = [f"seed={cfg.seed}"]
    generating = [*common, model, f"batch_size={cfg.batch_size}"]
    steps: list[tuple[str, str, list[str]]] = [
        ("labels: questions with and without passages", "datagen",
         ["source=cot", f"limit={cfg.questions}", f"out={out}/cot", *generating]),
        ("labels: articles cut before an entity", "datagen",
         ["source=wiki", f"limit={cfg.articles}", f"out={out}/wiki", *generating]),
        ("heads on the question labels", "train",
         ["layer=all", f"data={out}/cot", f"out={out}/prober", *common]),
        ("heads on the article labels", "train",
         ["layer=all", f"data={out}/wiki", f"out={out}/prober-wiki", *common]),
        ("every trigger on the same questions", "compare",
         [f"limit={cfg.compare}", f"prober={out}/prober", f"out={out}/compare", *generating]),
    ]  # fmt: skip
    started = time.monotonic()
    for number, (title, command, overrides) in enumerate(steps, 1):
        print(f"\n[{number}/{len(steps)}] {title}\n$ probers-{command} {' '.join(overrides)}", flush=True)
        run_command(command, overrides)
    for name in ("report.html", "results.json"):
        shutil.copyfile(out / "compare" / name, out / name)
    folder.finish({"model": cfg.model.name})
    minutes = (time.monotonic() - started) / 60
    print(f"\nwrote {out}/report.html and {out}/results.json in {minutes:.1f} minutes")
    print(f'next: open {out}/report.html, or probers-rag prober={out}/prober trigger=probing question=".."')
    return out / "report.html"
