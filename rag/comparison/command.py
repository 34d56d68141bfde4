"""The command ``probers-compare``: its components from settings, the comparison, its files and lines."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probers.checksums import inputs
from probers.cli.command_lines import command_line, for_reading, for_shell, merge_line
from probers.cli.compose import key_value
from probers.cli.inputs import load_model, load_passages, prompt_files, question_source
from probers.cli.merge import PartRun, PartRuns
from probers.cli.runs import RunFolder
from probers.data.cache import duration
from probers.files import write_bytes
from probers.types import Question, UserError

from ..build import remote, resumed
from ..traces import join_traces
from .compare import plan_of
from .findings import Comparison
from .methods import Selection, grouped
from .plan import THRESHOLDS, Plan

if TYPE_CHECKING:
    from ..settings import Compare

log = logging.getLogger(__name__)


def run(settings: Compare, parts: PartRuns | None = None) -> Path:
    """Compare the methods, or join the finished ``parts`` of a run; returns the report's folder."""
    started, source, server = time.monotonic(), question_source(settings), remote(settings)
    plan = plan_of(
        settings, source, load_passages(settings), retriever=settings.retriever,
        triggers=settings.triggers, validation=settings.validation, given={"server": server},
    )  # fmt: skip
    part, out, choice = settings.partition, Path(settings.out), plan.choice
    for line in choice.chosen.lines():
        log.info("%s", line)
    record = settings.record
    record["methods"] = Selection(settings.triggers, record["methods"]).varied(settings.vary).table
    files = inputs(*source.files, settings.searched, *prompt_files(settings), *plan.read)
    config = record | {"inputs": files, "asked": choice.chosen.record}
    folder = RunFolder(out if part is None else part.folder(out), "compare", config)
    if not (folder.begin("comparison") if parts is None else parts.begin(folder, "comparison")):
        if part is None:
            log.info("its report: %s", for_shell(f"{folder.path}/report.html"))
        return folder.path
    if parts is not None:
        _take_answers(parts, choice.questions, folder.path)
    log.info(
        "%d questions, %s (split %s), corpus %s with %d passages, model %s", len(choice.questions),
        source.spec, choice.split, settings.searched, len(plan.passages), settings.model.name,
    )  # fmt: skip
    adapter = next((bank.adapter for bank in plan.banks.values()), None)  # all read one model
    lm = resumed(server, folder) or load_model(settings, folder, engine=settings.engine, adapter=adapter)
    model = None if parts is None else parts.runs[0].state.get("chosen", {}).get("model")
    if model is not None and model != str(lm.spec):
        message = f"the parts were run with the model {model}, but it is {lm.spec} here"
        raise UserError(f"{message}: give the same one", "mismatch")
    if part is not None:  # figures are computed when the parts are joined
        count = plan.run_part(lm, folder.path, part)
        folder.finish({"n": count, "part": settings.part})
        log.info("wrote the traces of %d questions, part %s, to %s/traces", count, part, folder.path)
        log.info("when every part is there: %s", merge_line(folder.path.parent))
        return folder.path
    heading = {"command": _typed(settings, plan), "model": settings.model.name, "corpus": settings.searched}
    comparison = plan.run(lm, folder.path, config, heading=heading, parts=parts)
    comparison.save(folder.path)
    folder.finish(comparison.summary)
    _report(comparison, folder.path, duration(time.monotonic() - started))
    return folder.path


def _typed(settings: Compare, plan: Plan) -> str:
    """Format the command as typed, with the trained parts that it found by itself, and limit and seed."""
    typed = for_reading(settings._typed)
    more = {**plan.trained, "limit": settings.limit, "seed": settings.seed}
    for option in typed:
        more.pop(key_value(option)[0], None)
    return command_line("compare", *typed, **more)


def _report(comparison: Comparison, out: Path, took: str) -> None:
    lines, rest = comparison.lines, "what the columns mean"
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < len(lines[0]):
        lines, rest = comparison.table(wide=False), "all columns, and what they mean"
    log.info("%s\n\n%s", comparison.verdict, "\n".join([*lines, f"{rest}: {out}/report.html"]))
    for flag, names in grouped(comparison.page["flags"]).items():
        them = "it" if len(names) == 1 else "them"
        log.info("note: %s %s on these questions, so they do not test %s", ", ".join(names), flag, them)
    for note in comparison.notes:
        log.info("note: %s", note)
    log.info("wrote %s/results.json, %s/report.html and the traces in %s/traces in %s", out, out, out, took)
    log.info("next: open %s", for_shell(f"{out}/report.html"))


def _take_answers(parts: PartRuns, questions: Sequence[Question], out: Path) -> None:
    """Write the parts' answers with every method, and their thresholds, as an undivided run does."""

    def thresholds(run: PartRun) -> bytes | None:
        path = run.path / THRESHOLDS
        return path.read_bytes() if path.exists() else None

    if (chosen := parts.of_one("thresholds", thresholds)) is not None:
        write_bytes(out / THRESHOLDS, chosen)
    for name in sorted({file.name for run in parts.runs for file in run.path.glob("traces/*.jsonl")}):
        join_traces(parts, questions, f"traces/{name}", out)
