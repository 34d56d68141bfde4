"""``launch=submitit``: parts as an array job of Slurm, a task for each.

Submitit pickles what it sends to a task and what comes back: texts, and the name of a class here.
A task that is out of time or preempted is queued again with the same part, which goes on from what
is in its folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..data.partition import Partition
from ..options import Count, Natural
from ..types import RunError, UserError, first_line
from .bar import PartsBar
from .parts import Parts, logs
from .worker import DONE, REFUSED, enter, make_part

_LOOK = 1.0  # seconds between two looks at how far the parts are


@dataclass(frozen=True)
class Task:
    """What a task of the array calls, with a part as ``i/n``."""

    command: str
    typed: tuple[str, ...]
    out: str
    folder: str
    threads: int

    def __call__(self, part: str) -> list[str]:
        """As :func:`.worker.make_part`; waits where another process writes the part."""
        enter(self.folder, self.threads)
        one = Partition.parse(part)
        return list(make_part(Parts(self.command, self.typed, self.out, one.count), one, "wait=true"))

    def checkpoint(self, part: str) -> Any:
        """What is queued in its place when its time is up: the same."""
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
    """most tasks that run at a time; null is as many as Slurm allows"""
    cpus_per_worker: Count = 1
    """cores and threads of each task"""
    gpus_per_worker: Natural = 0
    """GPUs of each task"""
    timeout_min: Count = 1440
    """minutes; a task that needs more, or is preempted, is queued again and resumes"""
    slurm: Mapping[str, Any] | None = None
    """further options of sbatch, as {partition: gpu, account: mine, mem: 32GB}"""
    tries: Count = 3
    """how often a part is begun whose task was lost or failed"""
    wait: bool = True
    """false returns once the array is queued, and leaves the joining to probers-merge"""
    merge: bool = True
    """false leaves the joining of the parts to probers-merge"""

    def make(self, command: str, typed: tuple[str, ...], out: str) -> Parts | None:
        """As :meth:`.ray_workers.Ray.make`; None where the array is queued and not waited for."""
        parts = Parts(command, typed, out, self.parts)
        told: dict[Partition, str] = {}
        for turn in range(self.tries):
            left = parts.left
            if not left:
                return parts
            if turn:
                failed = next(part for part in left if part in told)
                print(f"{len(left)} parts are begun again; of part {failed}: {told[failed]}", flush=True)
            jobs = dict(zip(left, self._submit(parts, left), strict=True))
            first, last = (jobs[part].job_id for part in (left[0], left[-1]))
            print(f"{len(left)} of {parts.count} parts are queued, jobs {first} to {last}; see {logs(out)}")
            if not self.wait:
                print(f"when every part is there: {parts.merge_command()}")
                return None
            told = self._watch(parts, jobs)
        if left := parts.left:
            part = left[0]
            raise RunError(
                f"part {part} was begun {self.tries} times, and the last time {told.get(part, 'it ended')}; "
                f"{parts.log(part)} has what it printed"
            )
        return parts

    def _submit(self, parts: Parts, left: Sequence[Partition]) -> list[Any]:
        try:
            import submitit
        except ImportError as error:
            raise UserError(
                'launch=submitit needs submitit: pip install "probers[submitit]", or type part=i/n for each '
                "part"
            ) from error
        given = dict(self.slurm or {})
        if self.workers is not None:
            given["array_parallelism"] = self.workers
        try:
            executor = submitit.AutoExecutor(logs(parts.out) / "submitit", cluster=self.cluster)
            executor.update_parameters(
                name=f"probers-{parts.command}", timeout_min=self.timeout_min, nodes=1, tasks_per_node=1,
                cpus_per_task=self.cpus_per_worker, gpus_per_node=self.gpus_per_worker,
                **{f"slurm_{key}": value for key, value in given.items()},
            )  # fmt: skip
            task = Task(parts.command, parts.typed, parts.out, os.getcwd(), self.cpus_per_worker)
            return executor.map_array(task, list(map(str, left)))
        except (RuntimeError, NameError, ValueError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f"launch.cluster={self.cluster}: {first_line(error)}") from error

    def _watch(self, parts: Parts, jobs: Mapping[Partition, Any]) -> dict[Partition, str]:
        """Wait for the tasks; returns what is told of those that were lost or failed."""
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


def _result(job: Any) -> Sequence[str]:
    """What a task answered, or how it ended without an answer."""
    error = job.exception()
    return job.result() if error is None else ("lost", f"job {job.job_id} was lost ({first_line(error)})")
