"""Sweeps: a folder for each job, none lost to another's failure, one table at the end."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import exits, fails
from pytest import MonkeyPatch
from test_train_figures import evaluator_of, make_examples, make_trained

from probers.cli import main as cli
from probers.cli.main import combinations, folder_names, varied
from probers.evaluation import bootstrap
from probers.train import report
from probers.train.evaluate import summarise
from probers.train.report import compare_runs
from probers.types import RunError, UserError


def test_every_combination_once_and_what_varies() -> None:
    assert combinations(["seed=1,1", "layer=[1,2]"]) == [["seed=1", "layer=[1,2]"]]
    jobs = combinations(["head=linear,radio", "lr=0.1", "layer=[1,2],all"])
    assert jobs[0] == ["head=linear", "lr=0.1", "layer=[1,2]"] and len(jobs) == 4
    assert varied(jobs) == [
        ["head=linear", "layer=[1,2]"], ["head=linear", "layer=all"],
        ["head=radio", "layer=[1,2]"], ["head=radio", "layer=all"],
    ]  # fmt: skip


def test_folder_names_are_safe_readable_and_different() -> None:
    assert folder_names([["head=linear", "seed=1"]]) == ["head=linear,seed=1"]
    alike = ["data=a/b", "data=a\\b", "data=a_b", "layer=[6,8]", "x=" + "y" * 300, "x=" + "y" * 301]
    names = folder_names([[each] for each in alike])
    assert len(set(names)) == len(alike)
    assert all(len(name) < 120 and not set(name) & set("/\\ '\"[]()*?") for name in names)


class Command:
    """A command in place of the real one: the jobs it was called with, and the seeds at which it fails."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.fails: dict[Any, BaseException] = {}

    def run(self, settings: Any) -> Path:
        self.called.append(settings)
        if settings.seed in self.fails:
            raise self.fails[settings.seed]
        return Path("runs") / (settings.out or f"default/{settings.suffix}")

    def table(self, jobs: list[list[str]], folders: list[Path]) -> str:
        return f"TABLE {jobs} {[str(f) for f in folders]}"


@pytest.fixture
def command(monkeypatch: MonkeyPatch) -> Command:
    made = Command()
    monkeypatch.setitem(cli._TABLES, "train", "probers.train.report:compare_runs")
    monkeypatch.setattr(report, "compare_runs", made.table)
    monkeypatch.setattr(cli, "load", lambda _: made.run)
    return made


def sweep(*arguments: str) -> int:
    return exits("train", ["-m", *arguments])


def test_each_job_has_a_folder_and_the_table_comes_last(command: Command, capsys: Any) -> None:
    assert sweep("seed=1") == 0  # one value is no sweep
    assert command.called.pop().suffix is None and capsys.readouterr().out == ""
    assert sweep("seed=1,2", "lr=0.3") == 0
    assert [(c.seed, c.lr, c.suffix) for c in command.called] == [(1, 0.3, "seed=1"), (2, 0.3, "seed=2")]
    table = "TABLE [['seed=1'], ['seed=2']] ['runs/default/seed=1', 'runs/default/seed=2']"
    assert capsys.readouterr().out.splitlines()[:3] == ["== seed=1", "== seed=2", table]
    assert sweep("out=a,b", "seed=1") == sweep("out=c", "seed=1,2") == 0  # one folder is for all
    assert [c.out for c in command.called[2:]] == ["a", "b", "c/seed=1", "c/seed=2"]


@pytest.mark.parametrize(("errors", "code"), [
    ({1: RunError("a")}, 1), ({1: UserError("a"), 2: RunError("b")}, 2),
    ({3: OSError(28, "No space left on device", "/x")}, 1),
])  # fmt: skip
def test_a_failing_job_loses_no_other(command: Command, capsys: Any, errors: Any, code: int) -> None:
    command.fails.update(errors)
    assert sweep("seed=1,2,3") == code and len(command.called) == 3
    captured = capsys.readouterr()
    done = [[f"seed={s}"] for s in (1, 2, 3) if s not in errors]
    assert f"TABLE {done}" in captured.out
    lines = captured.err.strip().splitlines()
    assert len(lines) == len(errors) and all(line.startswith("probers-train: seed=") for line in lines)


def test_without_a_run_there_is_no_table(command: Command, capsys: Any) -> None:
    command.fails.update({1: RunError("a"), 2: RunError("b")})
    assert sweep("seed=1,2") == 1 and "TABLE" not in capsys.readouterr().out
    assert sweep("seed=1,2", "wiki") == 2 and len(command.called) == 2  # refused before any job


def test_ctrl_c_stops_the_whole_sweep(command: Command, capsys: Any) -> None:
    command.fails[2] = KeyboardInterrupt()
    assert sweep("seed=1,2,3") == 130 and len(command.called) == 2
    assert "interrupted" in capsys.readouterr().err


@cache
def figures() -> dict[str, Any]:
    examples = make_examples()
    return summarise(make_trained(examples, curve=False), evaluator_of(examples), {}).to_dict()


def prober(folder: Path, auroc: float) -> Path:
    folder.mkdir(parents=True)
    ensemble = {"auroc": auroc, "auroc_ci": [auroc - 0.05, auroc + 0.05], "accuracy": 0.61, "ece": 0.031}
    made = figures() | {"best_layer": 2, "ensemble": figures()["ensemble"] | ensemble}
    (folder / "metrics.json").write_text(json.dumps(made))
    return folder


def test_the_table_has_a_row_per_run(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    folders = [prober(tmp_path / name, value) for name, value in (("a", 0.7), ("b", 0.82))]
    jobs = [["head=linear"], ["head=probing_rag"]]
    _, first, second, *_ = compare_runs(jobs, folders).splitlines()
    assert first.split()[:2] == ["head=linear", "2"]
    assert " ".join(first.split()).endswith("0.700 [0.650, 0.750] 0.610 0.031 a")
    assert second.split()[0] == "head=probing_rag" and "0.820 [0.770, 0.870]" in second
    groups = figures()["splits"]["test"]["groups"]
    monkeypatch.setattr(bootstrap, "LEAST_GROUPS", groups + 1)
    note = f"\nnote: {bootstrap.few_groups(groups, 'test group')}"
    assert compare_runs(jobs, folders).endswith(note)
    (folders[1] / "metrics.json").write_text('{"layers": []}')
    with fails(None, "b/metrics.json", kind=RunError):
        compare_runs(jobs, folders)
