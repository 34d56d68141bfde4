"""Sections of RESULTS.md, one per benchmark, with the machine they ran on."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """\
# Benchmarks

Each section was written by the command it names, on the machine it names; running the command again with
`--write` replaces it. Compare the ratios within a section: both sides of a ratio were measured in one run.
"""
_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "pyarrow")


def machine() -> str:
    """Describe processor, cores, memory, accelerator and versions in a line."""
    parts = [_processor(), f"{os.cpu_count()} cores", f"{_memory() / 2**30:.0f} GiB RAM", *_accelerators()]
    parts += [
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(parts + [f"{name} {version(name)}" for name in _PACKAGES])


def invocation(script: str, argv: Sequence[str]) -> str:
    """Format the command that repeats a measurement, without the folder where this run kept its files."""
    kept = [a for a, before in zip(argv, ["", *argv], strict=False) if "--folder" not in (a, before)]
    return shlex.join(["python", f"benchmarks/{script}", *kept])


def write_section(name: str, command: str, body: str, *, file: Path = RESULTS) -> None:
    """Write the section ``## name``, in place of one of that name or at the end.

    Args:
        name: heading.
        command: command that repeats the measurement.
        body: Markdown without headings of the first two levels.
        file: file to write to.
    """
    text = file.read_text(encoding="utf-8") if file.exists() else _HEAD
    about = f"`{command}`, {datetime.date.today().isoformat()}, on {machine()}."
    section = f"## {name}\n\n{about}\n\n{body.strip()}\n"
    old = re.search(rf"^## {re.escape(name)}\n.*?(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    before, after = (text[: old.start()], text[old.end() :]) if old else (f"{text.rstrip()}\n\n", "")
    text = f"{before}{section}\n{after}"
    file.write_text(f"{text.rstrip()}\n", encoding="utf-8")


def publish(sections: Mapping[str, str], command: str, *, write: bool) -> None:
    """Print sections by their headings, and put them into RESULTS.md if asked to.

    Args:
        sections: heading -> Markdown.
        command: command that repeats the measurement.
        write: True to put them there.
    """
    for name, body in sections.items():
        print(f"\n## {name}\n\n{body}")
        if write:
            write_section(name, command, body)


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _accelerators() -> list[str]:
    import torch

    if (kind := torch.accelerator.current_accelerator()) is None:
        return []
    return [device_name(torch.device(kind.type, i)) for i in range(torch.accelerator.device_count())]


def device_name(device: torch.device) -> str:
    """Return the name of a device."""
    import torch

    if device.type == "cpu":
        return "CPU"
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return named(device) if named else device.type
