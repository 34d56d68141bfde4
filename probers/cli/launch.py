"""A command with ``launch=``: its parts, made by workers of Ray or tasks of Slurm, and the merged run.

A launcher is a dataclass of options with ``make(parts)``. Driver and workers exchange only the options of
the run and sentences. A part that is repeated resumes from its folder.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from .. import __version__
from ..data.splits import PARTS, Partition
from ..options import Count, Name, Natural, NotNegative, check_extra, shown
from ..types import RunError, UserError, first_line
from . import main
from .command_lines import merge_line, retyped
from .compose import key_value, quote, request
from .inputs import keep_model
from .merge import PartRun, gather
from .runs import read_state

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds for a cluster to answer
_STORE = 100 << 20  # bytes of Ray's object store, which holds only sentences


@dataclass(frozen=True)
class Parts:
    """A run of a command split into parts: its options without folder and launcher, and its folder.

    Workers get it as it is: ``directory`` and ``version`` are the driver's, ``threads`` those of each worker.
    """

    command: str
    typed: tuple[str, ...]
    out: str
    count: int = 0
    threads: int = 1
    directory: str = field(default_factory=os.getcwd)
    version: str = __version__

    @property
    def folders(self) -> dict[Partition, Path]:
        """Folder of every part."""
        parts = (Partition(number, self.count) for number in range(1, self.count + 1))
        return {part: part.folder(Path(self.out)) for part in parts}

    @property
    def left(self) -> list[Partition]:
        """The parts that are not complete with the same options; the command judges one with others."""
        left = []
        for part, folder in self.folders.items():
            with suppress(UserError):
                run = PartRun.read(folder)
                if run.state["complete"] and retyped(run.typed) == self.typed:
                    continue
            left.append(part)
        return left

    @property
    def logs(self) -> Path:
        """Folder of the workers' files beside the parts; hidden from ``parts/*`` in shells."""
        return Path(self.out) / PARTS / ".launch"

    def log(self, part: Partition) -> Path:
        return self.logs / f"{part.number}of{part.count}.log"

    @property
    def begun(self) -> int | None:
        """Number of parts of the split run in the folder; None unless there is exactly one split."""
        names = [path.name for path in (Path(self.out) / PARTS).glob("*of*")]
        counts = {int(name.partition("of")[2]) for name in names if re.fullmatch(r"\d{1,6}of\d{1,6}", name)}
        return counts.pop() if len(counts) == 1 else None

    def bar(self) -> tqdm[Any]:
        done, command = self.count - len(self.left), f"probers-{self.command}"
        return tqdm(total=self.count, initial=done, desc=command, unit="part", dynamic_ncols=True)

    def make(self, number: int) -> tuple[bool, str]:
        """Make one part in a worker's process, its output in its log; wait while another process writes it.

        Returns:
            True, and the machine and process; or False, and why the command, or another version of the
            package than the driver's, refuses the part.

        Raises:
            RunError: the part failed and may be tried again.
            OSError: this machine lacks the driver's directory.
        """
        where, here = os.uname().nodename, self.version
        if here != __version__:
            return False, f"probers is {__version__} on {where} and {here} here: install the same version"
        os.environ["OMP_NUM_THREADS"] = str(self.threads)  # torch is loaded only now
        os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds between two lines of a bar in a log
        os.chdir(self.directory)
        keep_model()
        part = Partition(number, self.count)
        self.logs.mkdir(parents=True, exist_ok=True)
        typed = [*self.typed, f"out={quote(self.out)}", f"part={part}", "wait=true"]
        output = self.log(part).open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        with output, redirect_stdout(output), redirect_stderr(output), main.console():
            log.info("== %s %s", self.command, " ".join(typed))
            try:
                main.run(self.command, typed)
            except UserError as error:
                log.warning("%s", error)
                return False, str(error)
            except Exception as error:
                traceback.print_exc()
                kind = "" if isinstance(error, (RunError, OSError)) else f"{type(error).__name__}: "
                raise RunError(f"{kind}{main.described(error)[0]}") from None
        return True, f"{where}, process {os.getpid()}"

    __call__ = make

    def checkpoint(self, number: int) -> Any:
        """Have submitit queue a part again when its time is up or it is preempted."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, number)

    def ended(self, bar: tqdm[Any], part: Partition, done: bool, sentence: str) -> None:
        """Count a part that is done; a worker's refusal is a UserError."""
        if not done:
            raise UserError(sentence, "worker")
        bar.update()
        bar.write(f"part {part} is done ({sentence})")

    def failed(self, part: Partition, tries: int, why: object) -> RunError:
        sentence = f"part {part} failed {tries} times; the last time {why}; its output is in {self.log(part)}"
        return RunError(sentence, "worker")


def run(command: str, settings: Any) -> Any:
    """Make the parts of a run and merge them; return the command's result, None without waiting."""
    typed, out = retyped(settings.record["typed"]), str(settings.out)
    name = dict(map(key_value, settings.record["typed"]))["launch"]
    for key in ("part", "question", "overwrite"):
        if value := getattr(settings, key, None):
            problem = f"launch={name} makes all parts of many questions, and resumes those that are begun"
            raise UserError(f"{problem}: leave {key}={shown(value)} out", "conflict")
    if settings.out is None:
        problem = f"launch={name} needs a folder on a disk that all workers see"
        raise UserError(f"{problem}: add out=FOLDER", "missing-value")
    state, placed = read_state(Path(out)), [*typed, f"out={quote(out)}"]
    if state is not None and state["complete"]:  # the command refuses another run
        return main.load(command)(request(command, placed))
    launcher = settings.launch.make()
    parts = Parts(command, typed, out, threads=launcher.cpus_per_worker)
    parts = replace(parts, count=launcher.parts or parts.begun or 0)
    if not parts.count or parts.left:
        check_extra(f"launch={name}", name, name, instead=", or type part=i/n for each part")
        parts = launcher.make(parts)
    if parts is not None and launcher.merge:  # also while another driver merges
        return gather([*parts.folders.values()]).merge([*placed, "wait=true"])
    when = "when every part is there" if parts is None else "every part is there"
    log.info("%s: %s", when, merge_line(Path(out) / PARTS))
    return None


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Options of workers that make the parts of a run."""

    workers: Count | None = None
    """largest number of parts made at once, each by a process with a model; null is as many as there is room
    for"""
    cpus_per_worker: Count = 1
    """cores and threads of each worker"""
    tries: Count = 3
    """number of attempts at a part whose worker was lost or failed"""
    merge: bool = True
    """false leaves the joining of the parts to probers-merge"""


@dataclass(frozen=True, kw_only=True)
class Ray(Launcher):
    """Run the parts over the machines of a Ray cluster, or over this one (pip install "probers[ray]")."""

    parts: Count | None = None
    """number of parts; null takes those begun in out, else one for each worker"""
    address: Name | None = None
    """auto joins the cluster of this machine, HOST:PORT another; null starts one on this machine"""
    gpus_per_worker: NotNegative | None = None
    """GPUs of each worker, .5 lets two share one; null is 1 where the cluster has GPUs, else 0"""

    def make(self, parts: Parts) -> Parts:
        """Make the missing parts; return all of them (RunError: one failed ``tries`` times)."""
        with self._cluster() as ray:
            gpus, room = self._room(ray)
            parts = replace(parts, count=parts.count or room)
            log.info("%d of %d parts are left, for %d workers; their output is in %s",
                     len(parts.left), parts.count, room, parts.logs)  # fmt: skip
            task = ray.remote(Parts.make).options(
                num_cpus=self.cpus_per_worker, num_gpus=gpus, scheduling_strategy="SPREAD",
                max_retries=self.tries - 1, retry_exceptions=True,
            )  # fmt: skip
            self._run(ray, task, parts, room)
        return parts

    def _run(self, ray: Any, task: Any, parts: Parts, room: int) -> None:
        begun = ((task.remote(parts, part.number), part) for part in parts.left)
        running = dict(islice(begun, room))
        with parts.bar() as bar:
            while running:
                (call, *_), _ = ray.wait(list(running))
                part = running.pop(call)
                try:
                    parts.ended(bar, part, *ray.get(call))
                except ray.exceptions.RayError as error:
                    problem = first_line(getattr(error, "cause", None) or error)
                    absent = re.search("ModuleNotFoundError|ImportError|failed to import", str(error))
                    if absent and not isinstance(error, RunError):
                        problem = f"the workers lack the package probers {__version__}"
                        raise UserError(f"{problem}: install it where Ray runs", "worker") from error
                    raise parts.failed(part, self.tries, problem) from error
                running |= islice(begun, 1)

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # the workers are the main load
        import ray

        options = dict[str, Any](log_to_driver=False, logging_level="error")
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus_per_worker)
            options |= {"include_dashboard": False, "object_store_memory": _STORE, "num_cpus": cores}
        try:
            if ":" in (self.address or ""):  # Ray itself needs minutes to find out that nothing listens
                host, _, port = str(self.address).removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            ray.init(self.address or "local", **options)
        except (ValueError, OverflowError, RuntimeError, OSError) as error:
            where = "on this machine" if self.address is None else f"at launch.address={self.address}"
            problem = f"no Ray cluster {where} ({first_line(error)}): give HOST:PORT, or auto on a machine"
            fix = "of the cluster; one with a token needs RAY_AUTH_MODE"
            raise UserError(f"{problem} {fix}", "network") from error
        try:
            yield ray
        finally:
            ray.shutdown()

    def _room(self, ray: Any) -> tuple[float, int]:
        """Return the GPUs of each worker, and the number of workers that fit."""
        cpus, gpus = (float(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
        each = min(1.0, gpus) if self.gpus_per_worker is None else self.gpus_per_worker
        if each > gpus:
            raise UserError(f"launch.gpus_per_worker={each:g}: the cluster has {gpus:g} GPUs")
        room = int(min(cpus // self.cpus_per_worker, gpus / each + 1e-6 if each else cpus))
        if not room:
            raise UserError(f"launch.cpus_per_worker={self.cpus_per_worker}: the cluster has {cpus:g} CPUs")
        return each, min(room, self.workers or room)


@dataclass(frozen=True, kw_only=True)
class Submitit(Launcher):
    """Run the parts as an array job of Slurm (pip install "probers[submitit]")."""

    parts: Count = 8
    """number of parts, each a task of the array"""
    cluster: Literal["slurm", "local"] = "slurm"
    """slurm, or local: processes of this machine, all parts at once"""
    gpus_per_worker: Natural = 0
    """GPUs of each task; 0 is none, also on a cluster of GPUs"""
    timeout_min: Count = 1440
    """minutes; a task that needs more, or is preempted, is queued again and resumes"""
    slurm: Mapping[str, Any] | None = None
    """further options of sbatch, as {partition: gpu, account: mine, mem: 32GB}"""
    wait: bool = True
    """false returns once the array is queued, and leaves the joining to probers-merge"""

    def make(self, parts: Parts) -> Parts | None:
        """Make the missing parts; return all of them, or None with ``wait=false``."""
        problems = dict[Partition, str]()
        for _ in range(self.tries):
            if not (left := parts.left):
                return parts
            jobs = self._submit(parts, left)
            log.info("%d of %d parts are queued, jobs %s to %s; their output is in %s",
                     len(left), parts.count, jobs[0].job_id, jobs[-1].job_id, parts.logs)  # fmt: skip
            if not self.wait:
                return None
            problems = _wait(parts, dict(zip(left, jobs, strict=True)))
        if left := parts.left:
            raise parts.failed(left[0], self.tries, problems.get(left[0]))
        return parts

    def _submit(self, parts: Parts, left: Sequence[Partition]) -> list[Any]:
        import submitit

        options = dict(self.slurm or {})
        if self.workers is not None:
            options["array_parallelism"] = self.workers
        alone = self.cluster == "slurm" and not self.gpus_per_worker
        if alone and "gpu" not in str({**options, "partition": ""}):
            log.warning("launch.gpus_per_worker=0: tasks run without a GPU; give 1 on a cluster of GPUs")
        try:
            executor = submitit.AutoExecutor(parts.logs / "submitit", cluster=self.cluster)
            executor.update_parameters(
                name=f"probers-{parts.command}", timeout_min=self.timeout_min, nodes=1, tasks_per_node=1,
                cpus_per_task=self.cpus_per_worker, gpus_per_node=self.gpus_per_worker,
                **{f"slurm_{key}": value for key, value in options.items()},
            )  # fmt: skip
            return executor.map_array(parts, [part.number for part in left])
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
                else:
                    parts.ended(bar, part, *job.result())
    finally:
        for job in jobs.values():
            if not job.done():
                job.cancel()
    return problems
