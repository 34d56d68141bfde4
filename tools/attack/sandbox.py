"""Commands in forked children: a time limit, captured output, and the faults of an ending.

Heavy modules are imported once in the parent, so that a case costs only the command itself.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pkgutil
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 30.0  # seconds after which a command counts as hanging
MEMORY = 6 << 30  # most bytes of data of a child
_CRASHED = 99  # exit code of a child whose command let an exception through
_STACK = 6000  # most characters of a stack that are kept
#: Modules that commands import when they run; in a child that would cost more than most cases do.
_LIBRARIES = (
    "lightning", "spacy", "sklearn.linear_model", "sklearn.feature_extraction.text", "sklearn.metrics",
    "pandas", "pyarrow.parquet", "datasets", "numba", "ijson", "nltk.corpus", "gensim.models", "httpcore",
    "bm25s", "faiss", "sentence_transformers", "matplotlib.backends.backend_agg", "PIL.PngImagePlugin",
    "safetensors.numpy", "transformers.models.llama.modeling_llama",
    "transformers.models.bert.modeling_bert",
)  # fmt: skip

#: Pattern of Python's messages about its own objects, which are no sentence for a user.
INTERNALS = re.compile(
    r"object is not (subscriptable|iterable|callable)|NoneType|has no attribute|object cannot be interpreted"
    r"|list indices must be|unhashable type|unexpected keyword|positional argument|could not convert"
    r"|not supported between|unsupported operand|invalid literal for|cannot unpack|not enough values"
    r"|too many values to unpack|must be str, not|expected str instance|bytes-like object|index out of range"
    r"|object of type '|<class '|\bat 0x[0-9a-f]{6,}|surrogates not allowed|embedded null byte"
    r"|maximum recursion depth|\bKeyError\b|\bTypeError\b|\bAttributeError\b|\bIndexError\b"
)


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a child.

    Attributes:
        code: exit code; negative is the signal that killed it.
        out, err: output on stdout and stderr.
        seconds: duration.
        hung: True if it was still running at its limit; ``err`` then ends with its stack.
    """

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False

    @property
    def told(self) -> str:
        """Return the last line on stderr that is not blank."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def warm() -> None:
    """Import the modules of the commands, and no more: a process cannot fork once torch used threads."""
    os.environ.update(
        OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1",
        WANDB_MODE="disabled", MPLBACKEND="Agg",
    )  # fmt: skip
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.monitor_interval = 0
    for name in _LIBRARIES:
        importlib.import_module(name)
    for name in ("probers", "probers.datagen", "probers.train", "probers.rag"):
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    from probers.commands.compose import request
    from probers.engine.model import CausalLM

    # Parsers and transformers fill their tables on first use.
    for command in ("datagen", "train", "rag", "compare"):
        request(command, [])
    CausalLM.from_pretrained("testbed")
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy every page of the imports
    left = len(os.listdir("/proc/self/task"))
    if left > 1:
        print(f"note: {left} threads before the first fork", file=sys.stderr)


@dataclass
class Running:
    """Command in a child with its own process group."""

    pid: int
    output: Path
    began: float

    def wait(self, limit: float = LIMIT) -> Ended:
        """Wait until it ends; at the limit kill its whole group.

        Time in which the machine had no processor for it does not count.
        """
        left = limit
        while not self.ended_within(left):
            left = self.began + limit + self._waited() - time.monotonic()
            if left <= 0:
                self.send(signal.SIGUSR1)
                time.sleep(0.3)  # the stack is being written
                return self._collect(hung=True)
        return self._collect()

    def _waited(self) -> float:
        """Count the seconds that it was ready to run and did not; 0 if the system does not count them."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def ended_within(self, seconds: float) -> bool:
        descriptor = os.pidfd_open(self.pid)
        try:
            return bool(select.select([descriptor], [], [], seconds)[0])
        finally:
            os.close(descriptor)

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def _collect(self, hung: bool = False) -> Ended:
        seconds = time.monotonic() - self.began
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # with the processes that it left behind
        _, status = os.waitpid(self.pid, 0)
        out, err = (
            self.output.with_suffix(suffix).read_text(encoding="utf-8", errors="replace")
            for suffix in (".out", ".err")
        )
        return Ended(os.waitstatus_to_exitcode(status), out, err, seconds, hung)


def start(
    command: str, arguments: Sequence[str], folder: Path, before: Callable[[], Any] | None = None
) -> Running:
    """Fork a child that runs a command in ``folder``; its output goes to files beside it.

    Args:
        before: function called in the child first.
    """
    output = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
    for suffix in (".out", ".err"):
        output.with_suffix(suffix).touch()  # a child may be killed before it creates them
    sys.stdout.flush()
    sys.stderr.flush()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(command, list(arguments), folder, output, before)
    return Running(pid, output, began)


def run(
    command: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    limit: float = LIMIT,
    before: Callable[[], Any] | None = None,
) -> Ended:
    """Run a command in a child to its end."""
    running = start(command, arguments, folder, before)
    ended = running.wait(limit)
    for suffix in (".out", ".err"):
        running.output.with_suffix(suffix).unlink()
    return ended


def _child(
    command: str, arguments: list[str], folder: Path, output: Path, before: Callable[[], Any] | None
) -> None:
    code = _CRASHED
    try:
        os.setsid()
        os.chdir(folder)
        _redirect(output)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if before is not None:
            before()
        from probers.commands.main import main

        main(command, arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and len(traceback.extract_tb(error.__traceback__)) == 1:
            code = 130
            print(f"probers-{command}: interrupted before it began", file=sys.stderr)
        else:
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _redirect(output: Path) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
    for target, path in ((0, "/dev/null"), (1, output.with_suffix(".out")), (2, output.with_suffix(".err"))):
        descriptor = os.open(path, os.O_RDONLY if target == 0 else flags, 0o600)
        os.dup2(descriptor, target)
        os.close(descriptor)
    # As for a pipe of a separate process.
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def fault(ended: Ended, command: str) -> str:
    """Describe the fault in the end of a command; empty if it worked or gave one clear sentence."""
    told = ended.told
    if ended.hung:
        return f"hang: {_stack(ended.err[-_STACK:])}"
    if ended.code < 0:
        return f"traceback: killed by {signal.Signals(-ended.code).name}: {told}"
    if "Traceback (most recent call last)" in ended.err:
        return f"traceback: {_stack(ended.err)}"
    if ended.code == 0:
        return ""
    if ended.code not in (1, 2, 130):
        return f"traceback: exit code {ended.code}: {told}"
    if not told.startswith(f"probers-{command}: "):
        return f"traceback: no sentence of probers-{command}, but: {told or 'nothing'}"
    if found := INTERNALS.search(told):
        return f"traceback: Python's own words ({found[0]}): {told}"
    return ""


def _stack(err: str) -> str:
    """Find where an exception was raised, and its message."""
    places = re.findall(
        r'File "[^"]*?((?:probers|datagen|train|rag)/[^"/]*[^"]*)", line (\d+),? in (\S+)', err
    )
    places = places[:3] if "most recent call first" in err else places[:-4:-1]
    where = " < ".join(f"{path}:{line} {name}" for path, line, name in places)
    told = err[err.rfind("Traceback (most recent call last)") :]
    last = [line for line in told.splitlines()[1:] if line and not line.startswith((" ", "\t"))]
    return f"{last[0][:300] if last else ''} [{where}]"


#: Columns of outcomes, in the order of the table.
COLUMNS = ("refused", "failed", "fine", "traceback", "hang", "loss", "difference")
#: Columns that must stay empty.
BAD = COLUMNS[3:]


@dataclass(frozen=True, slots=True)
class Finding:
    """Outcome of one case.

    Attributes:
        kind: kind of attack, as in the table.
        index: number of the case; with the seed it determines everything that was done.
        what: short description of what was done.
        column: column of the table.
        note: description of the fault.
    """

    kind: str
    index: int
    what: str
    column: str
    note: str = ""


def finding(
    kind: str,
    index: int,
    what: str,
    ended: Ended,
    command: str,
    *,
    losses: Sequence[str] = (),
    differs: str = "",
) -> Finding:
    """Judge an ended command by the worst of its faults."""
    if wrong := fault(ended, command):
        column, _, note = wrong.partition(": ")
        return Finding(kind, index, what, column, note)
    if losses:
        return Finding(kind, index, what, "loss", f"{', '.join(losses)}: {ended.told}")
    if differs:
        return Finding(kind, index, what, "difference", differs)
    return Finding(kind, index, what, {0: "fine", 2: "refused"}.get(ended.code, "failed"), ended.told)
