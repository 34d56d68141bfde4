"""``launch=submitit``: parts as an array job of Slurm, one task per part.

Submitit pickles what it sends to tasks and receives from them: texts, and the name of a class here. A task
out of time or preempted is queued again with the same part, which resumes from its folder.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...data.splits import Partition
from ...options import Count, Natural
from ...types import RunError, UserError, first_line
from . import Made, Parts, make_part

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """Function of the array's tasks; its argument is the number of a part."""

    parts: Parts
    folder: str
    threads: int

    def __call__(self, number: int) -> Made:
        """Make a part (:func:`.make_part`)."""
        return make_part(self.parts, number, self.folder, self.threads)

    def checkpoint(self, number: int) -> Any:
        """Queue the same task again when its time is up."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)


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

    def make(self, parts: Parts) -> Parts | None:
        """Make the missing parts; return all of them, or None with ``wait=false``."""
        parts, problems = replace(parts, count=self.parts), dict[Partition, str]()
        for _ in range(self.tries):
            if not (left := parts.left):
                return parts
            jobs = self._submit(parts, left)
            log.info("%d of %d parts are queued, jobs %s to %s; their output is in %s",
                     len(left), parts.count, jobs[0].job_id, jobs[-1].job_id, parts.logs)  # fmt: skip
            if not self.wait:
                log.info("when every part is there: %s", parts.merge_command)
                return None
            problems = _wait(parts, dict(zip(left, jobs, strict=True)))
        if left := parts.left:
            failed = f"part {left[0]} failed {self.tries} times; the last time {problems.get(left[0])}"
            raise RunError(f"{failed}; see {parts.log(left[0])}", "worker")
        return parts

    def _submit(self, parts: Parts, left: Sequence[Partition]) -> list[Any]:
        try:
            import submitit
        except ImportError as error:
            problem = 'launch=submitit needs submitit: pip install "probers[submitit]", or type part=i/n'
            raise UserError(problem, "missing-extra") from error
        workers = {} if self.workers is None else {"array_parallelism": self.workers}
        options = dict(self.slurm or {}) | workers
        requests = {key: value for key, value in options.items() if key != "partition"}
        if self.cluster == "slurm" and not self.gpus_per_worker and "gpu" not in str(requests):
            log.warning("launch.gpus_per_worker=0: tasks run without a GPU; give 1 on a cluster of GPUs")
        try:
            executor = submitit.AutoExecutor(parts.logs / "submitit", cluster=self.cluster)
            executor.update_parameters(
                name=f"probers-{parts.command}", timeout_min=self.timeout_min, nodes=1, tasks_per_node=1,
                cpus_per_task=self.cpus_per_worker, gpus_per_node=self.gpus_per_worker,
                **{f"slurm_{key}": value for key, value in options.items()},
            )  # fmt: skip
            task = Task(parts, os.getcwd(), self.cpus_per_worker)
            return executor.map_array(task, [part.number for part in left])
        except (RuntimeError, NameError, ValueError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f"launch.cluster={self.cluster}: {first_line(error)}", "worker") from error


def _wait(parts: Parts, jobs: Mapping[Partition, Any]) -> dict[Partition, str]:
    """Wait for the tasks; return a sentence about each that was lost or failed."""
    problems = {}
    try:
        with parts.bar() as bar:
            for part, job in jobs.items():
                if (error := job.exception()) is not None:
                    problems[part] = f"job {job.job_id} was lost or failed ({first_line(error)})"
                    bar.write(f"part {part}: {problems[part]}")
                    continue
                done, sentence = job.result()
                if not done:
                    raise UserError(sentence, "worker")
                bar.update()
                bar.write(f"part {part} is done (job {job.job_id})")
    finally:
        for job in jobs.values():
            if not job.done():
                job.cancel()
    return problems
