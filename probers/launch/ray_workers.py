"""``launch=ray``: parts over the machines of a Ray cluster, one process per model.

The driver holds the queue; each worker is an actor that makes one part after another. A lost worker is
replaced, and its part resumes from its folder.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import __version__
from ..data.splits import Partition
from ..options import Count, Name, NotNegative
from ..types import RunError, UserError, first_line
from .run import BUSY, DONE, REFUSED, Parts, PartsBar, count_begun, enter, logs, make_part

_LOOK = 0.5  # seconds between two readings of the parts' progress
_AGAIN = 2.0  # seconds before retrying a part that another process writes
_PATIENCE = 10.0  # seconds for a cluster to answer
_NO_IMPORT = "failed to import on the worker"  # Ray's words for a missing class
_STORE = 100 << 20  # bytes of Ray's object store, which holds only sentences

log = logging.getLogger(__name__)


class Worker:
    """Actor that makes parts in its own process."""

    def __init__(self, folder: str, threads: int) -> None:
        self._folder, self._threads = folder, threads

    def hello(self) -> list[str]:
        """Prepare the process; return the package's version, machine and process, and a problem or ""."""
        problem = ""
        try:
            enter(self._folder, self._threads)
        except UserError as error:
            problem = str(error)
        return [__version__, f"{os.uname().nodename}, process {os.getpid()}", problem]

    def make(self, command: str, typed: Sequence[str], out: str, part: str) -> list[str]:
        """Make a part (:func:`.run.make_part`)."""
        one = Partition.parse(part)
        became, told = make_part(Parts(command, tuple(typed), out, one.count), one)
        if became == BUSY:
            time.sleep(_AGAIN)
        return [became, told]


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Run the parts over the machines of a Ray cluster, or over this one (pip install "probers[ray]")."""

    parts: Count | None = None
    """number of parts; null takes those begun in out, else one for each worker"""
    address: Name | None = None
    """auto joins the cluster of this machine, HOST:PORT another; null starts one on this machine"""
    workers: Count | None = None
    """processes that hold a model each; null is as many as there is room for"""
    cpus_per_worker: Count = 1
    """cores and threads of each worker"""
    gpus_per_worker: NotNegative | None = None
    """GPUs of each worker, .5 lets two share one; null is 1 where the cluster has GPUs, else 0"""
    tries: Count = 3
    """number of attempts at a part whose worker was lost or failed"""
    merge: bool = True
    """false leaves the joining of the parts to probers-merge"""

    def make(self, command: str, typed: tuple[str, ...], out: str) -> Parts | None:
        """Make the missing parts; return all parts (RunError: one failed ``tries`` times)."""
        count = self.parts or count_begun(out)
        if count is not None and not Parts(command, typed, out, count).left:
            return Parts(command, typed, out, count)
        with self._cluster() as ray:
            gpus, room = self._room(ray)
            parts = Parts(command, typed, out, count or room)
            left = len(parts.left)
            crew = f"{min(room, left)} workers of {self.cpus_per_worker} CPUs and {gpus:g} GPUs"
            told = f"{left} of {parts.count} parts are left, for {crew}"
            log.info("%s; their output is in %s", told, logs(out))
            each = {"num_cpus": self.cpus_per_worker, "num_gpus": gpus}
            actor = ray.remote(Worker).options(**each, scheduling_strategy="SPREAD", max_restarts=0)
            _Crew(ray, actor, parts, self).run(room)
        return parts

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # the workers are the main load
        try:
            import ray
        except ImportError as error:
            told = 'launch=ray needs Ray: pip install "probers[ray]", or type part=i/n for each part'
            raise UserError(told, "missing-extra") from error
        if self.address is not None:
            _check_address(self.address)
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus_per_worker)
            given |= {"include_dashboard": False, "object_store_memory": _STORE, "num_cpus": cores}
        try:
            ray.init(self.address or "local", **given)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = "on this machine" if self.address is None else f"at launch.address={self.address}"
            told = f"no Ray cluster {where}: {first_line(error)}"
            if self.address is not None and "RAY_AUTH_MODE" not in os.environ:
                told += "; a cluster with a token needs RAY_AUTH_MODE=token"
            raise UserError(told, "network") from error
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
        room = int(cpus // self.cpus_per_worker)
        if each:
            room = min(room, int(gpus / each + 1e-6))
        if not room:
            raise UserError(f"launch.cpus_per_worker={self.cpus_per_worker}: the cluster has {cpus:g} CPUs")
        return each, min(room, self.workers or room)


def _check_address(address: str) -> None:
    """Refuse an address where nothing listens (UserError); Ray itself needs minutes to find out."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, ValueError, OverflowError) as error:
        told = f"no Ray cluster answers at launch.address={address} ({first_line(error)})"
        raise UserError(f"{told}: give HOST:PORT, or auto on a machine of the cluster", "network") from error


class _Crew:
    """Workers of a run, made by ``actor``, and the queue of its parts."""

    def __init__(self, ray: Any, actor: Any, parts: Parts, options: Ray) -> None:
        self._ray, self._actor, self._parts, self._options = ray, actor, parts, options
        self._queue, self._tries = deque(parts.left), Counter[Partition | None]()
        self._where: dict[Any, str] = {}  # machine and process of each worker
        self._calls: dict[Any, tuple[Any, Partition | None]] = {}  # future answer -> worker and part
        self._waited: set[Partition] = set()

    def run(self, workers: int) -> None:
        with PartsBar(self._parts, self._queue) as self._bar:
            try:
                for _ in range(min(workers, len(self._queue))):
                    self._begin()
                while self._calls:
                    answered, _ = self._ray.wait(list(self._calls), timeout=_LOOK)
                    self._bar.look()
                    for call in answered:
                        self._take(call)
            finally:
                for worker in list(self._where):
                    self._end(worker)

    def _begin(self) -> None:
        worker = self._actor.remote(os.getcwd(), self._options.cpus_per_worker)
        self._where[worker] = "a worker that did not begin"
        self._calls[worker.hello.remote()] = (worker, None)

    def _end(self, worker: Any) -> str:
        self._ray.kill(worker)
        return self._where.pop(worker)

    def _take(self, call: Any) -> None:
        worker, part = self._calls.pop(call)
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            self._lost(worker, part, error)
            return
        if part is None:
            version, self._where[worker], problem = answer
            if version != __version__:
                where = self._where[worker]
                problem = f"probers is {version} on {where} and {__version__} here: install the same version"
            if problem:
                raise UserError(problem, "worker")
        else:
            self._made(worker, part, *answer)
        if worker in self._where and self._queue:
            part, parts = self._queue.popleft(), self._parts
            call = worker.make.remote(parts.command, list(parts.typed), parts.out, str(part))
            self._calls[call] = (worker, part)
        elif worker in self._where:
            self._end(worker)

    def _made(self, worker: Any, part: Partition, became: str, told: str) -> None:
        if became == DONE:
            self._bar.finished(part, self._where[worker])
        elif became == REFUSED:
            raise UserError(told)
        elif became == BUSY:
            if part not in self._waited:
                self._bar.say(f"part {part} is retried later: {told}")
            self._waited.add(part)
            self._queue.append(part)
        else:
            self._again(part, told)
            if len(self._where) > 1:  # the fault may be its machine's
                self._bar.say(f"no more parts for {self._end(worker)}")

    def _lost(self, worker: Any, part: Partition | None, error: Exception) -> None:
        where = self._end(worker)
        if _NO_IMPORT in str(error):
            told = f"the workers lack the package probers {__version__} ({str(error).splitlines()[-1]})"
            raise UserError(f"{told}: install it where Ray runs", "worker") from error
        self._again(part, f"{where} was lost ({first_line(error).rstrip('.')})")
        self._begin()

    def _again(self, part: Partition | None, told: str) -> None:
        self._tries[part] += 1
        what = "a worker" if part is None else f"part {part}"
        if self._tries[part] >= self._options.tries:
            output = "" if part is None else f"; its output is in {self._parts.log(part)}"
            raise RunError(f"{what} failed {self._tries[part]} times; the last time {told}{output}", "worker")
        self._bar.say(f"{what} is begun again: {told}")
        if part is not None:
            self._queue.append(part)
