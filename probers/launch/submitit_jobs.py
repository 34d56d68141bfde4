"""``launch=submitit``: parts as an array job of Slurm, one task per part.

Submitit pickles what it sends to tasks and receives from them: texts, and the name of a class here. A task
out of time or preempted is queued again with the same part, which resumes from its folder.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..data.splits import Partition
from ..options import Count, Natural
from ..types import RunError, UserError, first_line
from .run import DONE, REFUSED, Parts, PartsBar, enter, logs, make_part

_LOOK = 1.0  # seconds between two readings of the parts' progress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """Function of the array's tasks; its argument is a part as ``i/n``."""

    command: str
    typed: tuple[str, ...]
    out: str
    folder: str
    threads: int

    def __call__(self, part: str) -> list[str]:
        """Make a part (:func:`.run.make_part`); waits while another process writes it."""
        enter(self.folder, self.threads)
        one = Partition.parse(part)
        return list(make_part(Parts(self.command, self.typed, self.out, one.count), one, "wait=true"))

    def checkpoint(self, part: str) -> Any:
        """Queue the same task again when its time is up."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, part)


@dataclass(frozen=True, kw_only=True)
class Submitit:
    """Run the parts as an array job of Slurm (pip install "probers[submitit]")."""

    parts: Count = 8
    """number of parts, each a task of the array"""
    cluster: Literal["slurm", "local"] = "slurm"
    """slurm, or local: processes of this machine, all parts at once"""
    workers: Count | None = None
    """largest number of concurrent tasks; null is as many as Slurm allows"""
    cpus_per_worker: Count = 1
    """cores and threads of each task"""
    gpus_per_worker: Natural = 0
    """GPUs of each task; 0 is none, also on a cluster of GPUs"""
    timeout_min: Count = 1440
    """minutes; a task that needs more, or is preempted, is queued again and resumes"""
    slurm: Mapping[str, Any] | None = None
    """further options of sbatch, as {partition: gpu, account: mine, mem: 32GB}"""
    tries: Count = 3
    """number of attempts at a part whose task was lost or failed"""
    wait: bool = True
    """false returns once the array is queued, and leaves the joining to probers-merge"""
    merge: bool = True
    """false leaves the joining of the parts to probers-merge"""

    def make(self, command: str, typed: tuple[str, ...], out: str) -> Parts | None:
        """Make the missing parts; return all parts, or None with ``wait=false``."""
        parts = Parts(command, typed, out, self.parts)
        told: dict[Partition, str] = {}
        for turn in range(self.tries):
            if not (left := parts.left):
                return parts
            if turn:
                part = next(part for part in left if part in told)
                log.info("%d parts are begun again; part %s: %s", len(left), part, told[part])
            jobs = dict(zip(left, self._submit(parts, left), strict=True))
            queued = f"{len(left)} of {parts.count} parts are queued"
            where = f"jobs {jobs[left[0]].job_id} to {jobs[left[-1]].job_id}"
            log.info("%s, %s; their output is in %s", queued, where, logs(out))
            if not self.wait:
                log.info("when every part is there: %s", parts.merge_command())
                return None
            told = self._watch(parts, jobs)
        if left := parts.left:
            part, how = left[0], told.get(left[0], "it ended")
            failed = f"part {part} failed {self.tries} times; the last time {how}"
            raise RunError(f"{failed}; see {parts.log(part)}", "worker")
        return parts

    def _submit(self, parts: Parts, left: Sequence[Partition]) -> list[Any]:
        try:
            import submitit
        except ImportError as error:
            told = 'launch=submitit needs submitit: pip install "probers[submitit]", or type part=i/n'
            raise UserError(told, "missing-extra") from error
        given = dict(self.slurm or {})
        if self.workers is not None:
            given["array_parallelism"] = self.workers
        try:
            if self.cluster == "slurm" and not self.gpus_per_worker and not _asks_for_gpus(given):
                log.warning("launch.gpus_per_worker=0: tasks run without a GPU; give 1 on a cluster of GPUs")
            executor = submitit.AutoExecutor(logs(parts.out) / "submitit", cluster=self.cluster)
            executor.update_parameters(
                name=f"probers-{parts.command}", timeout_min=self.timeout_min, nodes=1, tasks_per_node=1,
                cpus_per_task=self.cpus_per_worker, gpus_per_node=self.gpus_per_worker,
                **{f"slurm_{key}": value for key, value in given.items()},
            )  # fmt: skip
            task = Task(parts.command, parts.typed, parts.out, os.getcwd(), self.cpus_per_worker)
            return executor.map_array(task, list(map(str, left)))
        except (RuntimeError, NameError, ValueError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f"launch.cluster={self.cluster}: {first_line(error)}", "worker") from error

    def _watch(self, parts: Parts, jobs: Mapping[Partition, Any]) -> dict[Partition, str]:
        """Wait for the tasks; return a sentence about each that was lost or failed."""
        running, told = dict(jobs), {}
        with PartsBar(parts, jobs) as bar:
            try:
                while running:
                    time.sleep(_LOOK)
                    bar.look()
                    for part in [part for part, job in running.items() if job.done()]:
                        job = running.pop(part)
                        became, sentence = _result(job)
                        if became == REFUSED:
                            raise UserError(sentence)
                        if became == DONE:
                            bar.finished(part, f"job {job.job_id}")
                        else:
                            told[part] = sentence
                            bar.say(f"part {part} failed: {sentence}")
            finally:
                for job in running.values():
                    job.cancel()
        return told


def _asks_for_gpus(slurm: Mapping[str, Any]) -> bool:
    named = ("gres", "additional_parameters")  # options whose values name GPUs
    return any("gpu" in key or (key in named and "gpu" in str(value)) for key, value in slurm.items())


def _result(job: Any) -> Sequence[str]:
    error = job.exception()
    return job.result() if error is None else ("lost", f"job {job.job_id} was lost ({first_line(error)})")
