"""Runs that many tests read, made once in a session, and the files of folders."""

import gzip
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from filelock import FileLock

#: Name of a run -> its command and what is typed; {name} stands for the folder of another run.
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cot": ("datagen", ("source=cot", "limit=60", "shard_size=16", "layers=[0,6,12]", "batch_size=16")),
    "wiki": ("datagen", ("source=wiki", "limit=120", "shard_size=64", "layers=[6,12]")),
    "prober": ("train", ("data={cot}", "layer=[6]", "resamples=100", "learning_curve=false")),
    "classifier": ("train", ("data={cot}", "head=adaptive", "resamples=100")),
}


needs_articles = pytest.mark.skipif(
    not os.environ.get("PROBERS_WIKI_ARTICLES"), reason="PROBERS_WIKI_ARTICLES names no folder"
)


@dataclass(frozen=True)
class Artefacts:
    """The runs of :data:`RUNS` below a folder that all workers share.

    A folder that a test gets by calling is read only; one that is written to or damaged is a copy.
    """

    folder: Path

    def __call__(self, name: str) -> Path:
        """The folder of a run, which the first to ask makes."""
        from probers.cli import main as cli

        path, made = self.folder / name, self.folder / f"{name}.made"
        with FileLock(self.folder / f"{name}.lock"):
            if not made.exists():
                command, typed = RUNS[name]
                words = [re.sub(r"\{(\w+)\}", lambda other: str(self(other[1])), word) for word in typed]
                cli.run(command, [*words, f"out={path}"])
                made.touch()
        return path

    def copy(self, name: str, to: Path) -> Path:
        """A copy of a run that may be changed."""
        return Path(shutil.copytree(self(name), to))


def contents(folder: Path) -> dict[str, str]:
    """Digests of the files below a folder, by name."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def harm(file: Path, damage: str = "altered") -> None:
    """Alter a file, cut it short or remove it."""
    blob = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(blob[:-5] if damage == "cut" else blob[:-9] + bytes([blob[-9] ^ 1]) + blob[-8:])


def write_lines(file: Path, records: Iterable[Any]) -> str:
    """Write records as JSON lines, packed where the name ends in .gz, and return the file's name."""
    blob = "".join(json.dumps(record) + "\n" for record in records).encode()
    file.write_bytes(gzip.compress(blob) if file.suffix == ".gz" else blob)
    return str(file)


def read_lines(file: Path | str) -> list[Any]:
    """The records of a file of JSON lines."""
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def in_layout(rows: Sequence[Mapping[str, Any]], path: Path, kind: str) -> Path:
    """Write rows as a table, an array, Parquet, or as datasets saves them; return the file or folder."""
    path = path if kind in ("saved", "splits") else path.with_name(f"{path.name}.{kind}")
    if kind == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif kind == "json.gz":
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    elif kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif kind == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        import datasets

        data = datasets.Dataset.from_list(list(rows))
        (data if kind == "saved" else datasets.DatasetDict({"train": data})).save_to_disk(path)
    return path
