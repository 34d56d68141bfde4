"""``launch=ray``: parts as tasks on the machines of a Ray cluster, one process per model.

Ray repeats the task of a lost or failed worker; its part resumes from its folder.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ... import __version__
from ...data.splits import Partition
from ...options import Count, Name, NotNegative
from ...types import RunError, UserError, first_line
from . import Made, Parts, make_part

_PATIENCE = 10.0  # seconds for a cluster to answer
_STORE = 100 << 20  # bytes of Ray's object store, which holds only sentences

log = logging.getLogger(__name__)


def make(version: str, run: tuple[str, tuple[str, ...], str], part: str, folder: str, threads: int) -> Made:
    """Make a part in Ray's process (:func:`.make_part`), by the driver's version of the package."""
    if version != __version__:
        where = os.uname().nodename
        return False, f"probers is {__version__} on {where} and {version} here: install the same version"
    one = Partition.parse(part)
    return make_part(Parts(*run, one.count), one.number, folder, threads)


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

    def make(self, parts: Parts) -> Parts:
        """Make the missing parts; return all of them (RunError: one failed ``tries`` times)."""
        parts = replace(parts, count=self.parts or parts.begun or 0)
        if parts.count and not parts.left:
            return parts
        with self._cluster() as ray:
            gpus, room = self._room(ray)
            parts = replace(parts, count=parts.count or room)
            log.info("%d of %d parts are left, for %d workers; their output is in %s",
                     len(parts.left), parts.count, room, parts.logs)  # fmt: skip
            task = ray.remote(make).options(
                num_cpus=self.cpus_per_worker, num_gpus=gpus, scheduling_strategy="SPREAD",
                max_retries=self.tries - 1, retry_exceptions=True,
            )  # fmt: skip
            self._run(ray, task, parts, room)
        return parts

    def _run(self, ray: Any, task: Any, parts: Parts, room: int) -> None:
        waiting, running = parts.left[::-1], dict[Any, Partition]()
        run = parts.command, parts.typed, parts.out  # plain values, which any version can read
        with parts.bar() as bar:
            while waiting or running:
                while waiting and len(running) < room:
                    part = waiting.pop()
                    call = task.remote(__version__, run, str(part), os.getcwd(), self.cpus_per_worker)
                    running[call] = part
                (call, *_), _ = ray.wait(list(running))
                part = running.pop(call)
                try:
                    done, where = ray.get(call)
                except ray.exceptions.RayError as error:
                    problem = first_line(getattr(error, "cause", None) or error)
                    absent = re.search("ModuleNotFoundError|ImportError|failed to import", str(error))
                    if absent and not isinstance(error, RunError):
                        problem = f"the workers lack the package probers {__version__}"
                        raise UserError(f"{problem}: install it where Ray runs", "worker") from error
                    failed = f"part {part} failed {self.tries} times; the last time {problem}"
                    raise RunError(f"{failed}; its output is in {parts.log(part)}", "worker") from error
                if not done:
                    raise UserError(where, "worker")
                bar.update()
                bar.write(f"part {part} is done ({where})")

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # the workers are the main load
        try:
            import ray
        except ImportError as error:
            problem = 'launch=ray needs Ray: pip install "probers[ray]", or type part=i/n for each part'
            raise UserError(problem, "missing-extra") from error
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self.address is None:
            cores = max(os.cpu_count() or 1, (self.workers or 0) * self.cpus_per_worker)
            options |= {"include_dashboard": False, "object_store_memory": _STORE, "num_cpus": cores}
        try:
            if ":" in (self.address or ""):  # Ray itself needs minutes to find out that nothing listens
                host, _, port = str(self.address).removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
            ray.init(self.address or "local", **options)
        except (ConnectionError, ValueError, OverflowError, RuntimeError, OSError) as error:
            where = "on this machine" if self.address is None else f"at launch.address={self.address}"
            problem = f"no Ray cluster {where} ({first_line(error)})"
            token = "one with a token needs RAY_AUTH_MODE"
            remedy = f"give HOST:PORT, or auto on a machine of the cluster; {token}"
            raise UserError(f"{problem}: {remedy}", "network") from error
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
