"""Sweeps: a folder for each job, none lost to another's failure, one table at the end."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import exits, fails
from omegaconf import DictConfig, OmegaConf
from pytest import MonkeyPatch
from test_train_figures import evaluator_of, make_examples, make_trained

from probers.cli import main as cli
from probers.cli.main import combinations, folder_names, varied
from probers.evaluation import bootstrap
from probers.evaluation.bootstrap import LEAST_GROUPS
from probers.train import report
from probers.train.evaluate import summarise
from probers.train.report import compare_runs
from probers.types import RunError, UserError


def test_every_combination_once_and_what_varies() -> None:
    assert combinations(["seed=1,2", "limit=3,4", "source=wiki"]) == [
        ["seed=1", "limit=3", "source=wiki"], ["seed=1", "limit=4", "source=wiki"],
        ["seed=2", "limit=3", "source=wiki"], ["seed=2", "limit=4", "source=wiki"],
    ]  # fmt: skip
    assert combinations(["seed=1,1", "layer=[1,2]"]) == [["seed=1", "layer=[1,2]"]]
    assert combinations(["wiki"]) == [["wiki"]]  # refused later, with the command's own sentence
    jobs = combinations(["head=linear,radio", "lr=0.1", "layer=[1,2],all"])
    assert varied(jobs) == [
        ["head=linear", "layer=[1,2]"], ["head=linear", "layer=all"],
        ["head=radio", "layer=[1,2]"], ["head=radio", "layer=all"],
    ]  # fmt: skip


def test_folder_names_are_safe_readable_and_different() -> None:
    assert folder_names([["head=linear", "seed=1"]]) == ["head=linear,seed=1"]
    alike = ["data=a/b", "data=a\\b", "data=a_b", "layer=[6,8]", "layer=(6,8)"]
    jobs = [[each] for each in (*alike, "x=" + "y" * 300, "x=" + "y" * 301)]
    names = folder_names(jobs)
    assert len(set(names)) == len(jobs)
    assert all(len(name) < 120 and not set(name) & set("/\\ '\"[]()*?") for name in names)
    assert folder_names(jobs[::-1]) == names[::-1]


class Command:
    """A command with a suffix key: what it was called with, and which seeds it fails at."""

    def __init__(self) -> None:
        self.called: list[DictConfig] = []
        self.fails: dict[Any, BaseException] = {}

    def run(self, cfg: DictConfig) -> Path:
        self.called.append(cfg)
        if cfg.seed in self.fails:
            raise self.fails[cfg.seed]
        return Path("runs") / (cfg.out or f"default/{cfg.suffix}")

    def compose(self, _: str, overrides: list[str]) -> Any:
        defaults = OmegaConf.create({"seed": 0, "out": None, "suffix": None, "lr": 0.1})
        return OmegaConf.merge(defaults, OmegaConf.from_dotlist([o.replace("'", "") for o in overrides]))

    def table(self, jobs: list[list[str]], folders: list[Path]) -> str:
        return f"TABLE {jobs} {[str(f) for f in folders]}"


@pytest.fixture
def command(monkeypatch: MonkeyPatch) -> Command:
    made = Command()
    monkeypatch.setitem(cli._TABLES, "train", "probers.train.report:compare_runs")
    monkeypatch.setattr(report, "compare_runs", made.table)
    monkeypatch.setattr(cli, "load", lambda _: made.run)
    monkeypatch.setattr(cli, "compose", made.compose)
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


@pytest.mark.parametrize("given", ["out=a,b", "suffix=x,y"])
def test_a_folder_that_was_given_is_left_alone(command: Command, given: str) -> None:
    sweep(given, "seed=1")
    key, _, values = given.partition("=")
    assert [getattr(c, key) for c in command.called] == values.split(",")
    assert key == "suffix" or [c.suffix for c in command.called] == [None, None]


@pytest.mark.parametrize(("errors", "code"), [
    ({1: RunError("a")}, 1), ({1: RunError("a"), 2: UserError("b")}, 2),
    ({1: UserError("a"), 2: RunError("b")}, 2), ({3: OSError(28, "No space left on device", "/x")}, 1),
])  # fmt: skip
def test_a_failing_job_loses_no_other(command: Command, capsys: Any, errors: Any, code: int) -> None:
    command.fails.update(errors)
    assert sweep("seed=1,2,3") == code and len(command.called) == 3
    captured = capsys.readouterr()
    done = [[f"seed={s}"] for s in (1, 2, 3) if s not in errors]
    assert f"TABLE {done}" in captured.out
    told = captured.err.strip().splitlines()
    assert len(told) == len(errors) and all(line.startswith("probers-train: seed=") for line in told)


def test_without_a_run_there_is_no_table(command: Command, capsys: Any, monkeypatch: MonkeyPatch) -> None:
    command.fails.update({1: RunError("a"), 2: RunError("b")})
    assert sweep("seed=1,2") == 1 and "TABLE" not in capsys.readouterr().out
    monkeypatch.delitem(cli._TABLES, "train")  # as of a command that has no table
    command.fails.clear()
    assert sweep("seed=1,2") == 0 and "TABLE" not in capsys.readouterr().out


def test_ctrl_c_stops_the_whole_sweep(command: Command, capsys: Any) -> None:
    command.fails[2] = KeyboardInterrupt()
    assert sweep("seed=1,2,3") == 130 and len(command.called) == 2
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "said"), [(["head=linear,nonsense"], "'nonsense'"), (["head=linear,radio", "wiki"], "'wiki'")]
)
def test_a_wrong_combination_stops_before_any_job_runs(typed: list[str], said: str, capsys: Any) -> None:
    assert sweep(*typed) == 2
    assert said in capsys.readouterr().err


@cache
def figures() -> dict[str, Any]:
    """All figures of a prober."""
    examples = make_examples()
    return summarise(make_trained(examples, curve=False), evaluator_of(examples), {}).to_dict()


def prober(folder: Path, auroc: float, *, sites: tuple[str, ...] = ("resid_post",)) -> Path:
    folder.mkdir(parents=True)
    layers = [
        figures()["layers"][0] | {"site": s, "layer": k, "validation": {"auroc": k / 10}}
        for s in sites for k in (6, 7)
    ]  # fmt: skip
    ensemble = {"auroc": auroc, "auroc_ci": [auroc - 0.05, auroc + 0.05], "accuracy": 0.61, "ece": 0.031}
    made = {"best_layer": 7, "best_site": sites[-1], "sites": list(sites), "layers": layers}
    made |= {"ensemble": figures()["ensemble"] | ensemble}
    (folder / "metrics.json").write_text(json.dumps(figures() | made))
    return folder


def test_the_table_has_a_row_per_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [prober(tmp_path / "cot-all" / name, value) for name, value in (("a", 0.7), ("b", 0.82))]
    lines = compare_runs([["head=linear"], ["head=probing_rag"]], folders).splitlines()
    assert lines[0].split() == ["best", "layer", "validation", "AUROC", "(test)", "acc.", "ECE", "folder"]
    assert " ".join(lines[1].split()) == "head=linear 7 0.700 0.700 [0.650, 0.750] 0.610 0.031 a"
    assert lines[2].split()[0] == "head=probing_rag" and "0.820 [0.770, 0.870]" in lines[2]
    assert lines[2].endswith(" b") and str(tmp_path / "cot-all") in lines[3]
    assert len({line.rindex("[") for line in lines[1:3]}) == 1  # columns line up
    groups = figures()["splits"]["test"]["groups"]
    assert groups >= LEAST_GROUPS and len(lines) == 4
    monkeypatch.setattr(bootstrap, "LEAST_GROUPS", groups + 1)
    told = f"\nnote: {bootstrap.few_groups(groups, 'test group')}"
    assert compare_runs([["a"], ["b"]], folders).endswith(told)


@pytest.mark.parametrize("raw", [b"{", b"\xff{}", b"[1]", b'{"layers": []}', b'{"layers": 1, "ensemble": 2}'])
def test_damaged_figures_of_a_run_are_named(tmp_path: Path, raw: bytes) -> None:
    folders = [prober(tmp_path / name, 0.7) for name in ("x", "y")]
    (tmp_path / "y/metrics.json").write_bytes(raw)
    with fails(None, "y/metrics.json", kind=RunError):
        compare_runs([["a"], ["b"]], folders)
