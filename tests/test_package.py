"""The wheel: one import name, everything in it, commands that run from anywhere."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_datagen_train_and_rag_import_what_is_shared_and_never_each_other():
    rooms = ("datagen", "train", "rag")
    found = [
        (str(file.relative_to(ROOT)), other)
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        for other in rooms
        if other != room and re.search(rf"(from|import) probers\.{other}\b", file.read_text())
    ]
    assert found == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(ROOT)], check=True
    )
    return next(out.glob("*.whl"))


def test_the_wheel_holds_one_top_level_name_and_every_file(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"probers"}
    folders = {
        "probers": "probers",
        "datagen": "probers/datagen",
        "train": "probers/train",
        "rag": "probers/rag",
        "serve": "probers/serve",
    }
    for folder, target in {**folders, "configs": "probers/configs"}.items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".css", ".j2", ".safetensors", ".json", ".typed"):
                assert f"{target}/{path.relative_to(ROOT / folder)}" in names
    model = sum(i.file_size for i in zipfile.ZipFile(wheel).infolist() if "testbed/model" in i.filename)
    assert 0 < model <= 12 * 2**20


def test_commands_run_from_another_directory(wheel, tmp_path):
    """A fresh environment that borrows this one's dependencies but has its own ``probers``."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", str(wheel)], check=True)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    dependencies = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(dependencies + "\n")
    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    for command in ("demo", "datagen", "train", "rag", "compare", "score", "testbed", "check"):
        done = subprocess.run(
            [tmp_path / f"venv/bin/probers-{command}", "--help"],
            cwd=elsewhere,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and f"probers-{command}" in done.stdout, done.stderr
    where = subprocess.run(
        [python, "-c", "import probers, probers.rag; print(probers.__file__, probers.rag.__file__)"],
        cwd=elsewhere, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert all(Path(p).is_relative_to(tmp_path) for p in where.split())
    assert not list(elsewhere.iterdir())
