"""launch=ray and launch=submitit: parts by workers are the run in one piece, whatever is lost on the way."""

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO
from unittest.mock import Mock

import psutil
import pytest
from helpers.parts import computed, in_parts
from helpers.refusals import fails

from probers.cli import inputs as shared
from probers.cli import launch
from probers.cli import main as cli
from probers.cli.launch import Parts, Ray, Submitit
from probers.data.splits import Partition
from probers.types import RunError, UserError

#: One prompt at a time: the arithmetic is then the same however the work is cut.
ALONE = ("layers=[6]", "shard_size=4", "batch_size=1")
COT = ("source=cot", "limit=8", *ALONE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of the run in one piece."""
    return cli.run("datagen", [*COT, f"out={tmp_path_factory.mktemp('whole')}/run"])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a run whose two parts are there, not merged."""
    folder = tmp_path_factory.mktemp("parts") / "run"
    in_parts("datagen", COT, folder, 2)
    return folder


def driver(out: Path, log: IO[str], *more: str) -> subprocess.Popen:
    """The command as it is typed, in a process of its own."""
    code = "from probers.cli.main import datagen; datagen()"
    typed = [*COT, f"out={out}", "launch=ray", *more]
    return subprocess.Popen([sys.executable, "-c", code, *typed], text=True, stdout=log, stderr=log)


def wait_for(what, process: subprocess.Popen, seconds: float = 300):
    """The first true value of ``what()``."""
    end = time.monotonic() + seconds
    while not (value := what()):
        assert process.poll() is None and time.monotonic() < end, "it ended, or stands still"
        time.sleep(0.05)
    return value


def working(process: subprocess.Popen) -> list[psutil.Process]:
    """The workers of a driver that have been told what to do."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
        return [p for p in below if p.name().startswith("ray::make")]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.long
def test_a_worker_and_the_driver_are_killed_and_the_same_command_makes_the_run_of_one_piece(whole, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    with log.open("w") as file:
        first = driver(out, file, "launch.parts=3", "launch.workers=2")
        wait_for(lambda: working(first), first)[0].kill()
        wait_for(lambda: "part 1/3 is done" in log.read_text(), first)
        mine = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        first.wait()
        _, alive = psutil.wait_procs(mine, timeout=300)
        assert alive == []
        # How many parts it was cut into is found there.
        assert driver(out, file, "launch.workers=2").wait() == 0
    assert Parts("datagen", (), str(out)).begun == 3
    assert computed(out) == computed(whole)
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


class FakeRay:
    """Tasks that answer at once: ``answers`` in turn, errors raised, then that a part is done."""

    def __init__(self, folder: Path, parts: int, *answers: object) -> None:
        self.parts, self.answers = Parts("datagen", COT, str(folder), parts), list(answers)
        self.begun, self.most, self.running = [], 0, 0
        self.exceptions = SimpleNamespace(RayError=EOFError)

    def run(self, room: int, **options):
        Ray(**options)._run(self, self, self.parts, room)

    def remote(self, run, number):
        self.begun.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        return Mock()

    def wait(self, calls):
        return calls[:1], calls[1:]

    def get(self, call):
        self.running -= 1
        answer = self.answers.pop(0) if self.answers else (True, "w1")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(("answer", "kind", "named"), [
    (EOFError("it died.\nTrace"), RunError, ["part 1/2", "2 times", "it died", "1of2.log"]),
    ((False, "layers=[99] is out of range"), UserError, ["layers=[99]"]),
    (EOFError("x\nModuleNotFoundError: No module named 'probers'"), UserError, ["install it where Ray runs"]),
])  # fmt: skip
def test_a_part_that_cannot_be_made_ends_the_run_in_one_sentence(answer, kind, named, tmp_path):
    """Converse: all parts are made, no more at once than there is room for."""
    with fails("worker", *named, kind=kind):
        FakeRay(tmp_path, 2, answer).run(1, tries=2)
    ray = FakeRay(tmp_path, 5)
    ray.run(2)
    assert ray.begun == [1, 2, 3, 4, 5] and ray.most == 2


def test_the_failures_of_a_worker_are_sentences(tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "TQDM_MININTERVAL"):  # what a worker's process does to itself
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shared, "_models", None)
    parts = Parts("datagen", COT, str(tmp_path), 2)
    monkeypatch.setattr(launch.main, "run", Mock(side_effect=UserError("seed is odd")))
    assert parts.make(1) == (False, "seed is odd")
    monkeypatch.setattr(launch.main, "run", Mock(side_effect=ZeroDivisionError("by zero")))
    with fails("failed", "ZeroDivisionError: by zero", kind=RunError):
        parts.make(1)
    assert "Traceback" in parts.log(Partition(1, 2)).read_text()
    done, why = replace(parts, version="9.9").make(1)
    assert not done and "9.9 here" in why


def test_parts_that_are_there_are_merged_without_ray(made, whole, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "run"
    shutil.copytree(made, out)
    typed = [f"out={out}", "launch=ray"]
    assert cli.run("datagen", [*COT, *typed, "launch.merge=false"]) is None
    assert f"every part is there: probers-merge {out}/parts/*" in caplog.text
    assert cli.run("datagen", [*COT, *typed]) == out and computed(out) == computed(whole)
    shutil.rmtree(out / "parts")
    assert cli.run("datagen", [*COT, *typed]) == out  # complete
    with fails("out-taken"):
        cli.run("datagen", [*COT, "seed=1", *typed])
    with fails("missing-extra", 'pip install "probers[ray]"'):
        cli.run("datagen", [*COT, f"out={tmp_path}/other", "launch=ray"])


@pytest.mark.long
def test_tasks_of_submitit_make_the_run_of_one_piece(whole, tmp_path, caplog):
    out = tmp_path / "run"
    typed = [*COT, f"out={out}", "launch=submitit", "launch.cluster=local", "launch.parts=2"]
    assert cli.run("datagen", typed) == out
    assert computed(out) == computed(whole)
    assert "2 of 2 parts are queued" in caplog.text


def test_a_task_that_is_lost_is_queued_again(tmp_path, monkeypatch):
    tasks, parts = [], Parts("datagen", COT, str(tmp_path), 2)

    def submit(self, parts, left):
        tasks.append(list(map(str, left)))
        lost = SimpleNamespace(done=lambda: True, exception=lambda: RuntimeError("node fail"), job_id="7")
        return [lost] * len(left)

    monkeypatch.setattr(Submitit, "_submit", submit)
    with fails("worker", "part 1/2", "2 times", "job 7 ", "(node fail)", "1of2", kind=RunError):
        Submitit(parts=2, tries=2).make(parts)
    assert tasks == [["1/2", "2/2"]] * 2
    assert Submitit(parts=2, wait=False).make(parts) is None
