"""The wheel: one import name, everything in it, commands that run from anywhere."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from helpers.documents import page

import probers
from probers.cli.compose import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the repository, for what a build leaves behind."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("source") / "probers", ignore=left_out))


@pytest.fixture(scope="module")
def wheel(source) -> Path:
    """The wheel, by the build backend itself, which needs no network."""
    build = "from setuptools.build_meta import build_wheel; build_wheel('wheel')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    return next((source / "wheel").glob("*.whl"))


def environment(wheel: Path, folder: Path) -> Path:
    """The programs of a fresh environment with its own ``probers`` and this one's dependencies."""
    python = [sys.executable, "-m"]
    subprocess.run([*python, "venv", "--without-pip", folder], check=True)
    install = [*python, "pip", "--python", folder / "bin/python", "install", "-q", "--no-deps", wheel]
    subprocess.run(install, check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    # In a folder that is named so no further .pth is read: what is installed editable there is not seen.
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in borrowed))
    return folder / "bin"


def test_the_wheel_holds_one_top_level_name_and_every_file(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"probers"}
    kinds = (".py", ".yaml", ".css", ".js", ".html", ".j2", ".safetensors", ".json", ".typed", ".txt")
    for folder in ("probers", "datagen", "train", "rag", "serve", "configs"):
        target = "probers" if folder == "probers" else f"probers/{folder}"
        for path in (ROOT / folder).rglob("*"):
            assert path.suffix not in kinds or f"{target}/{path.relative_to(ROOT / folder)}" in names
    model = sum(i.file_size for i in zipfile.ZipFile(wheel).infolist() if "testbed/model" in i.filename)
    assert 0 < model <= 12 * 2**20


def test_the_version_is_one():
    assert f'\nversion = "{probers.__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\n## {probers.__version__} (" in (ROOT / "CHANGELOG.md").read_text()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == probers.__version__


@pytest.mark.slow
def test_what_is_published_passes_and_runs_the_commands_of_the_readme(source, tmp_path):
    """The wheel that is built from the sdist, far from the repository."""
    out = tmp_path / "dist"
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    made = sorted(map(str, out.iterdir()))
    assert [Path(name).suffix for name in made] == [".whl", ".gz"]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=True)
    programs = environment(Path(made[0]), tmp_path / "venv")
    assert {path.name for path in programs.glob("probers-*")} == {f"probers-{name}" for name in COMMANDS}
    elsewhere = tmp_path / "empty"
    shutil.copytree(ROOT / "tests" / "data" / "docs", elsewhere)
    blocks = [each for each in page("README.md").blocks if (each.how, each.language) == ("slow", "bash")]
    assert len(blocks) >= 3
    for block in blocks:
        if "probers-serve" not in block.text:
            subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.shortened()],
                cwd=elsewhere, check=True, env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            )  # fmt: skip
    assert list(elsewhere.rglob("scores.html")) and list(elsewhere.rglob("report.html"))
