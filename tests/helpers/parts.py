"""One run in one piece and in parts: what is computed of each, without times and places."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.artefacts import contents
from probers.cli import main as cli

#: Files that say where a run was and what it was typed as, and not what it computed.
PAPERS = ("run.json", "config.yaml", "README.md", "report.html")


def in_parts(command: str, typed: Sequence[str], out: Path, count: int) -> list[str]:
    """Run a command in parts; returns their folders."""
    numbered = range(1, count + 1)
    return [str(cli.run(command, [*typed, f"out={out}", f"part={number}/{count}"])) for number in numbered]


def merged(folders: Sequence[str], out: Path, *more: str) -> Path:
    """The folder that probers-merge makes of parts."""
    return Path(cli.run("merge", [*folders, f"out={out}", *more]))


def computed(folder: Path) -> dict[str, Any]:
    """Everything that a run computed, by file: JSON without times and places, else a checksum."""
    values: dict[str, Any] = {}
    for name, digest in contents(folder).items():
        path = folder / name
        if name.startswith("parts/") or path.name in PAPERS or path.name.startswith("."):
            continue
        if path.suffix == ".json":
            values[name] = untimed(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            values[name] = [untimed(json.loads(line)) for line in path.read_text().splitlines()]
        else:
            values[name] = digest
    return values


def untimed(value: Any) -> Any:
    """JSON without seconds, folders of the run, and checksums over these."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in ("seconds", "out", "sha256", "config")}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def apart(ours: Any, theirs: Any, tolerance: float, place: str = "") -> list[str]:
    """The places where two pieces of JSON differ by more than rounding."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = {*ours, *theirs}
        return [d for k in keys for d in apart(ours.get(k), theirs.get(k), tolerance, f"{place}.{k}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [d for i, (a, b) in pairs for d in apart(a, b, tolerance, f"{place}[{i}]")]
    if isinstance(theirs, float) and isinstance(ours, float):
        return [] if math.isclose(ours, theirs, rel_tol=tolerance) else [f"{place}: {ours} {theirs}"]
    return [] if ours == theirs else [f"{place}: {ours} {theirs}"]


def assert_whole(out: Path, whole: Path, *rounded: str, tolerance: float = 1e-6) -> None:
    """The same run: every file but the named ones to the last byte, these to rounding."""
    ours, theirs = computed(out), computed(whole)
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        assert apart(ours[name], expected, tolerance if name.endswith(rounded) else 0.0) == [], name


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file of a folder with its content and when it was written."""
    files = {name: (digest, (folder / name).stat().st_mtime_ns) for name, digest in contents(folder).items()}
    return {name: file for name, file in files.items() if not name.endswith(".checked.json")}
