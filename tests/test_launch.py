"""launch=ray and launch=submitit: parts by workers are the run in one piece, whatever is lost on the way."""

import errno
import json
import pickle
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from helpers.parts import computed, in_parts
from helpers.refusals import fails

from probers.cli import inputs as shared
from probers.cli import launch
from probers.cli import main as cli
from probers.cli.launch import Parts, Ray, Submitit, Task
from probers.cli.runs import read_state
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


def driver(out: Path, *more: str, limit: int = 8, before: str = "", **given) -> subprocess.Popen:
    """The command as it is typed, in a process of its own."""
    code = f"from probers.cli.main import datagen\n{before}\ndatagen()"
    typed = ["source=cot", f"limit={limit}", *ALONE, f"out={out}", "launch=ray", *more]

    # Also where who runs the tests does not hear Ctrl-C.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-c", code, *typed], text=True, preexec_fn=heard, **given)


def wait_for(what, process: subprocess.Popen, seconds: float = 300):
    """The first true value of ``what()``."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None and time.monotonic() < end, "it ended, or stands still"
        time.sleep(0.05)
    return found


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
        given = {"stdout": file, "stderr": file}
        first = driver(out, "launch.parts=3", "launch.workers=2", **given)
        wait_for(lambda: working(first), first)[0].kill()
        wait_for(lambda: "part 1/3 is done" in log.read_text(), first)
        mine = psutil.Process(first.pid).children(recursive=True)
        heard = {c.laddr.port for p in mine for c in p.net_connections("tcp") if c.status == "LISTEN"}
        assert 8265 not in heard  # Ray's dashboard
        assert not [p for p in mine if p.name().startswith("probers")]
        first.kill()
        first.wait()
        _, alive = psutil.wait_procs(mine, timeout=300)
        assert alive == []
        # How many parts it was cut into is found there.
        assert driver(out, "launch.workers=2", **given).wait() == 0
    assert Parts("datagen", (), str(out)).begun == 3
    assert computed(out) == computed(whole)
    assert (out / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()
    said = log.read_text()
    assert "part 3/3 is done" in said and "merging 3 parts of probers-datagen" in said
    printed = (out / "parts/.launch/3of3.log").read_text()
    assert "examples of part 3/3" in printed and "examples of part 3/3" not in said


@pytest.mark.long
def test_a_cluster_without_the_package_is_one_sentence(tmp_path):
    (tmp_path / "other/probers").mkdir(parents=True)
    (tmp_path / "other/probers/__init__.py").touch()  # workers find it before the one that is installed
    before = f"import os; os.environ['PYTHONPATH'] = '{tmp_path}/other'"
    ran = driver(tmp_path / "run", "launch.workers=1", before=before, cwd=tmp_path, stderr=subprocess.PIPE)
    said = ran.communicate()[1].splitlines()[-1]
    assert said.startswith("probers-datagen: ") and said.endswith("[worker]")
    assert ran.returncode == 2 and not (tmp_path / "run/parts").exists()


class FakeRay:
    """Tasks that answer at once: ``answers`` in turn, errors raised, then that a part is done."""

    def __init__(self, folder: Path, parts: int, answers: list) -> None:
        self.parts, self.answers = Parts("datagen", COT, str(folder), parts), answers
        self.begun, self.most, self.running = [], 0, 0
        self.exceptions = SimpleNamespace(RayError=EOFError)

    def run(self, room: int, **options):
        Ray(**options)._run(self, self, self.parts, room)

    def remote(self, run, number, folder, threads, version):
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


def test_no_more_parts_run_at_once_than_there_is_room_for(tmp_path, capsys):
    ray = FakeRay(tmp_path, 5, [])
    ray.run(2)
    assert ray.begun == [1, 2, 3, 4, 5] and ray.most == 2
    assert "part 5/5 is done (w1)" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "kind", "named"), [
    (EOFError("it died.\nTrace"), RunError, ["part 1/2", "2 times", "it died", "1of2.log"]),
    ((False, "layers=[99] is out of range"), UserError, ["layers=[99]"]),
    (EOFError("x\nModuleNotFoundError: No module named 'probers'"), UserError, ["install it where Ray runs"]),
])  # fmt: skip
def test_a_part_that_cannot_be_made_ends_the_run_in_one_sentence(answer, kind, named, tmp_path):
    with fails("worker", *named, kind=kind):
        FakeRay(tmp_path, 2, [answer]).run(1, tries=2)


def test_a_worker_of_another_version_is_refused(tmp_path):
    done, why = launch.make(("datagen", COT, str(tmp_path), 2), 1, "/", 1, "9.9")
    assert not done and "9.9 here" in why


def make(parts: Parts, number: int = 1, folder: str | None = None):
    """What a worker does, in this process."""
    return launch.make_part(parts, number, folder or str(Path.cwd()), 1)


@pytest.fixture
def as_worker(monkeypatch, tmp_path):
    """Undo what a worker's process does to itself."""
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "TQDM_MININTERVAL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(shared, "_models", None)


def test_a_finished_part_is_left_alone(made, tmp_path, as_worker):
    out = tmp_path / "run"
    parts = Parts("datagen", COT, str(out), 2)
    shutil.copytree(made, out)
    state = read_state(out / "parts/1of2")
    (out / "parts/1of2/run.json").write_text(json.dumps(state | {"complete": False}))
    assert parts.left == [Partition(1, 2)]
    assert make(parts)[0] and "already holds" not in parts.log(Partition(1, 2)).read_text()
    assert make(parts)[0]  # a second worker, by mistake
    assert "already holds this run, complete" in parts.log(Partition(1, 2)).read_text()


def test_the_failures_of_a_worker_are_sentences(tmp_path, monkeypatch, as_worker):
    parts = Parts("datagen", COT, str(tmp_path), 2)
    monkeypatch.setattr(launch.main, "run", Mock(side_effect=UserError("seed is odd")))
    assert make(parts) == (False, "seed is odd")
    full = OSError(errno.ENOSPC, "No space left on device", "x")
    failures = {
        full: "No space left on device (x)",
        ZeroDivisionError("by zero"): "ZeroDivisionError: by zero",
    }
    for error, sentence in failures.items():
        monkeypatch.setattr(launch.main, "run", Mock(side_effect=error))
        with fails("failed", sentence, kind=RunError):
            make(parts)
    assert "Traceback" in parts.log(Partition(1, 2)).read_text()


def test_a_folder_that_a_machine_lacks_is_named(tmp_path, as_worker):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        make(Parts("datagen", COT, str(tmp_path), 2), folder=str(tmp_path / "nowhere"))


def test_the_model_is_kept_between_parts_as_if_loaded_anew(monkeypatch):
    monkeypatch.setattr(shared, "_models", None)
    cfg = cli.request("datagen", [])
    assert shared.load_model(cfg) is not shared.load_model(cfg)
    shared.keep_model()
    first = shared.load_model(cfg)
    first._batches._shrink(8)
    first._prefix = ("x", None)
    shared.keep_model()  # for the next part
    assert shared.load_model(cfg) is first and first._prefix is None and first._batches.size == 32
    assert shared.load_model(cli.request("datagen", ["model.on_too_long=skip"])) is not first


def test_parts_that_are_there_are_merged_without_ray(made, whole, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "run"
    shutil.copytree(made, out)
    assert cli.run("datagen", [*COT, f"out={out}", "launch=ray", "launch.merge=false"]) is None
    assert f"every part is there: probers-merge {out}/parts/*" in caplog.text
    assert cli.run("datagen", [*COT, f"out={out}", "launch=ray"]) == out
    assert computed(out) == computed(whole)
    shutil.rmtree(out / "parts")
    assert cli.run("datagen", [*COT, f"out={out}", "launch=ray"]) == out
    assert "already holds this run, complete" in caplog.text
    with fails("out-taken"):
        cli.run("datagen", [*COT, "seed=1", f"out={out}", "launch=ray"])


def test_parts_of_another_request_or_model_are_not_taken_for_done(made, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "run"
    shutil.copytree(made, out)
    assert Parts("datagen", COT, str(out), 2).left == []
    assert Parts("datagen", (*COT, "seed=1"), str(out), 2).left == [Partition(1, 2), Partition(2, 2)]
    assert Parts("datagen", (), str(out)).begun == 2
    state = read_state(out / "parts/2of2")
    state["chosen"]["model"] = "testbed@0123456789ab (12 layers of width 128)"
    (out / "parts/2of2/run.json").write_text(json.dumps(state))
    with fails("parts", "(model: testbed@0123456789ab "):
        cli.run("datagen", [*COT, f"out={out}", "launch=ray"])


@pytest.mark.parametrize(("command", "typed", "code", "named"), [
    ("rag", ["launch=submitit"], "missing-value", "out=FOLDER"),
    ("datagen", ["launch=submitit", "launch.slurm={fast: 9}", "launch.cluster=local"], "worker", "fast"),
])  # fmt: skip
def test_what_cannot_be_launched_is_one_sentence(command, typed, code, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with fails(code, named):
        cli.run(command, typed)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize("name", ["ray", "submitit"])
def test_a_launcher_that_is_not_installed_says_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with fails("missing-extra", f'pip install "probers[{name}]"'):
        cli.run("datagen", [*COT, f"out={tmp_path}/x", f"launch={name}"])


def test_what_a_driver_needs_is_not_torch():
    code = "import sys, probers.cli.launch;"
    code += "from probers.cli.main import request; request('datagen', ['launch=ray']);"
    code += "print({'torch', 'ray', 'submitit'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "set()\n"


def test_what_is_launched_is_no_part_of_the_run():
    plain, launched = cli.request("datagen", []), cli.request("datagen", ["launch=null"])
    assert plain == launched and plain.record == launched.record and plain.launch is None


def test_submitit_sends_texts_and_the_name_of_a_class():
    task = Task(Parts("datagen", COT, "out", 2), "/", 1)
    assert pickle.loads(pickle.dumps(task)) == task
    assert {type(v) for v in vars(task.parts).values()} == {str, tuple, int} and set(map(type, COT)) == {str}
    again = task.checkpoint(1)
    assert again.function is task and again.args == (1,)


@pytest.mark.long
def test_tasks_of_submitit_make_the_run_of_one_piece(whole, tmp_path, caplog):
    out = tmp_path / "run"
    typed = [*COT, f"out={out}", "launch=submitit", "launch.cluster=local", "launch.parts=2"]
    assert cli.run("datagen", typed) == out
    assert computed(out) == computed(whole)
    assert "2 of 2 parts are queued" in caplog.text


def test_a_task_that_is_lost_is_queued_again(tmp_path, monkeypatch):
    asked, parts = [], Parts("datagen", COT, str(tmp_path))

    def submit(self, parts, left):
        asked.append(list(map(str, left)))
        lost = SimpleNamespace(done=lambda: True, exception=lambda: RuntimeError("node fail"), job_id="7")
        return [lost] * len(left)

    monkeypatch.setattr(Submitit, "_submit", submit)
    with fails("worker", "part 1/2", "2 times", "job 7 ", "(node fail)", "1of2", kind=RunError):
        Submitit(parts=2, tries=2).make(parts)
    assert asked == [["1/2", "2/2"]] * 2
    assert Submitit(parts=2, wait=False).make(parts) is None


@pytest.mark.slow
def test_a_task_that_is_preempted_goes_on_with_its_part(tmp_path, monkeypatch):
    typed = ["source=cot", "limit=120", *ALONE]
    one = cli.run("datagen", [*typed, f"out={tmp_path}/whole"])
    out, watch = tmp_path / "run", launch._wait

    def preempted(parts, jobs):
        job, folder = jobs[Partition(1, 2)], Partition(1, 2).folder(out)
        wait_for(lambda: list(folder.glob("shards/*.json")), job._process)
        # As Slurm does; the executor's own way ends what watches over the task, and not the task.
        (task,) = psutil.Process(job._process.pid).children()
        assert "submitit.core._submit" in task.cmdline()
        task.send_signal(signal.SIGUSR2)
        return watch(parts, jobs)

    monkeypatch.setattr(launch, "_wait", preempted)
    cli.run("datagen", [*typed, f"out={out}", "launch=submitit", "launch.cluster=local", "launch.parts=2"])
    assert (out / "parts/.launch/1of2.log").read_text().count("== datagen") == 2
    assert computed(out) == computed(one)
