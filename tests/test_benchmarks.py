"""The benchmarks run, compare ways that give the same, and a part that fails is a row that says so.

Nothing here looks at the clock: what the figures are is for the machine that runs it.
"""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import capture
import peers
import run
import workload
from results import START, Results, Section, measured

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lm():
    return workload.build("tiny", CPU)


def of(heads: dict[str, Section]) -> Results:
    return Results({name: each.columns for name, each in heads.items()})


def test_every_way_to_record_has_its_row_and_all_agree(lm, monkeypatch):
    """Converse: a recording that differs is seen."""
    made = of(capture.SECTIONS)
    capture.speed("tiny", lm, (1, 3), (24, 5, 1), made)
    rows = [row.split(" | ") for row in made.rows["capture"]]
    assert [row[1:3] for row in rows] == [[b, way] for b in "13" for way in capture.ways_of(lm)]
    assert made.same and not [note for note in made.notes["capture"] if "**" in note]
    prompts, honest = workload.long_prompts(lm.tokenizer, 2, 20), peers.ours
    written = peers.plain(lm, prompts, 6)
    other = [written[0], (*written[1][:3], (written[1][3] + 1) % 512, *written[1][4:])]
    assert peers.differing(lm, prompts, written, written) == (0, 0)
    assert peers.differing(lm, prompts, written, other) == (1, 1)
    assert 0 < peers.parity(lm, prompts, 6) < 1e-4

    def shifted(*args: object, **options: object) -> list:
        generations = honest(*args, **options)
        for generation in generations:
            generation.state[:, 1] += 0.01
        return generations

    monkeypatch.setattr(peers, "ours", shifted)
    assert peers.parity(lm, prompts, 6) > 1e-3


#: A script whose sections send a row and then fail, hang, die or finish.
WORKER = """
import json, os, sys, time
pipe, *names = sys.argv[1:]
def send(**event):
    os.write(int(pipe), (json.dumps({**event, "same": True}) + chr(10)).encode())
for name in names:
    send(begun=name)
    send(row=[name, name])
    if name == "fails":
        send(failed="RunError: no example was kept")
    if name == "hangs":
        time.sleep(60)
    if name == "dies":
        os._exit(3)
    send(done=name)
"""


def command(left, pipe) -> list[str]:
    return [sys.executable, "-c", WORKER, str(pipe), *left]


def test_a_section_that_fails_hangs_or_dies_is_named_and_the_others_run():
    names = ["first", "fails", "hangs", "dies", "last"]
    made, arrived = Results(dict.fromkeys(names, "name")), list[str]()
    limits = {**dict.fromkeys([START, *names], 20.0), "hangs": 0.2}
    problems = measured(command, limits, time.monotonic() + 60, made, arrived.append)
    assert list(problems) == ["fails", "hangs", "dies"]
    for name, reason in (("fails", "no example was kept"), ("hangs", "more than"), ("dies", "with 3")):
        assert reason in problems[name]
    assert arrived == names and made.rows == {name: [name] for name in names}
    problems = measured(command, limits, time.monotonic(), made, arrived.append)
    assert set(problems) == set(names) and arrived == names

    def broken(left, pipe) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit(1)"]

    problems = measured(broken, limits, time.monotonic() + 60, made, print)
    assert list(problems) == [START, *names] and "with 1" in problems["last"]


@pytest.mark.slow
def test_every_script_runs_at_its_smallest_size_and_writes_its_rows(tmp_path, capsys):
    tables = tmp_path / "tables"
    code = run.main(["--quick", "--minutes", "20", "--out", str(tmp_path / "R.md"), "--tables", str(tables)])
    assert code == 0, capsys.readouterr().out
    text = (tmp_path / "R.md").read_text()
    assert "failed" not in text and text.count("\n## ") == len(list(tables.iterdir())) > 15
