"""The benchmarks run, compare ways that give the same, and a part that fails is a row that says so.

Nothing here looks at the clock: what the figures are is for the machine that runs it.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import capture
import gpu
import peers
import results
import run
import sections
import workload
from helpers.pretended import pretending
from results import START, Results, Section, measured, verdict

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lm():
    return workload.build("tiny", CPU)


def of(heads: dict[str, Section]) -> Results:
    return Results({name: each.columns for name, each in heads.items()})


def test_every_way_to_record_has_its_row_and_all_agree(lm):
    made = of(capture.SECTIONS)
    capture.speed("tiny", lm, (1, 3), (24, 5, 1), made)
    rows = [row.split(" | ") for row in made.rows["capture"]]
    assert [row[1:3] for row in rows] == [[b, way] for b in "13" for way in capture.ways_of(lm)]
    assert {len(row) for row in rows} == {9} and made.same
    assert not [note for note in made.notes["capture"] if "**" in note]


def test_other_tokens_are_noticed_and_ties_are_told_apart(lm):
    prompts = workload.long_prompts(lm.tokenizer, 2, 20)
    written = peers.plain(lm, prompts, 6)
    assert peers.differing(lm, prompts, written, written) == (0, 0)
    other = [written[0], (*written[1][:3], (written[1][3] + 1) % 512, *written[1][4:])]
    assert peers.differing(lm, prompts, written, other) == (1, 1)
    assert peers.differing(lm, prompts, written, [written[0], written[1][:4]]) == (1, 1)
    made = of(capture.SECTIONS)
    capture.check(made, "capture", "here", lm, prompts, {"plain": written, "other": other})
    assert not made.same and "1 texts of 'other'" in made.notes["capture"][0]
    head = lm.model.get_output_embeddings().weight
    before = head.detach().clone()
    with torch.no_grad():  # two rows alike: the two tokens are equally likely everywhere
        head[other[1][3]] = head[written[1][3]]
    try:
        assert peers.differing(lm, prompts, written, other) == (1, 0)
    finally:
        with torch.no_grad():
            head.copy_(before)


def test_parity_sees_a_wrong_recording(lm, monkeypatch):
    prompts = workload.long_prompts(lm.tokenizer, 2, 20)
    same = peers.parity(lm, prompts, 6)
    assert same is not None and 0 < same < 1e-4
    honest = peers.ours

    def shifted(*args: object, **options: object) -> list:
        generations = honest(*args, **options)
        for generation in generations:
            generation.state[:, 1] += 0.01
        return generations

    monkeypatch.setattr(peers, "ours", shifted)
    wrong = peers.parity(lm, prompts, 6)
    assert wrong is not None and wrong > 1e-3


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


def test_a_failed_section_is_a_row_and_nothing_older_stays(tmp_path, monkeypatch, capsys):
    about = {
        name: Section(f"Title of {name}", "what | ratio", lambda *_: None, 20.0, f"note of {name}")
        for name in ("first", "fails")
    }
    module = MagicMock(SECTIONS=about)
    monkeypatch.setattr(run.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(run, "_command", lambda name, options, left, pipe: command(left, pipe))
    file, tables = tmp_path / "RESULTS.md", tmp_path / "tables"
    file.write_text("## Of an earlier commit\n")
    tables.mkdir()
    (tables / "speed_older.csv").write_text("x")
    assert run.main(["--scripts", "train", "--out", str(file), "--tables", str(tables)]) == 1
    text = file.read_text()
    assert text.startswith("# Benchmarks") and "earlier" not in text and "unfinished" not in text
    assert results.commit() in text and "python benchmarks/train.py --only first" in text
    assert "| failed: RunError: no example was kept |" in text and "- note of fails" in text
    assert {each.name for each in tables.iterdir()} == {"speed_first.csv", "speed_fails.csv"}
    assert (tables / "speed_first.csv").read_text() == "what,ratio\nfirst\n"
    assert "Title of fails: failed: RunError" in capsys.readouterr().out


@pytest.mark.slow
def test_every_script_runs_at_its_smallest_size_and_writes_its_rows(tmp_path, capsys):
    tables = tmp_path / "tables"
    code = run.main(["--quick", "--minutes", "20", "--out", str(tmp_path / "R.md"), "--tables", str(tables)])
    assert code == 0, capsys.readouterr().out
    text = (tmp_path / "R.md").read_text()
    assert "failed" not in text and text.count("\n## ") == len(list(tables.iterdir())) > 15


@pytest.fixture
def verdicts(monkeypatch, tmp_path):
    """What the sections of gpu.py find of the target of the server, in place of running them."""
    reached_targets: list[bool] = []

    def of_server(command, limits, until, made, arrived) -> dict[str, str]:
        for reached in reached_targets:
            cells = ("server with scores", "", "", "", ">= 0.97 of no scores", verdict(reached))
            made.row("serve", "some/model, float32", 16, *cells)
            arrived("serve")
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "measured", of_server)
    monkeypatch.setattr(gpu, "dtypes_of", lambda device: ["float32"])
    return reached_targets


def test_a_missed_target_fails_the_run_and_is_named(verdicts, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "pick_device", lambda name: torch.device("meta"))
    monkeypatch.setattr(gpu, "device_name", lambda device: "a card")
    verdicts += [True, True]
    assert gpu.main(["--models", "some/model"]) == 0
    out = capsys.readouterr().out
    assert "PASS: some/model on a card" in out and "missed" not in out and gpu.NOT_JUDGED not in out
    verdicts[1] = False
    assert gpu.main(["--models", "some/model"]) == 1
    out = capsys.readouterr().out
    (missed,) = [line for line in out.splitlines() if line.startswith("missed: ")]
    assert missed.startswith("missed: server: some/model, float32 | 16 | server with scores")
    assert "FAIL: some/model on a card" in out and "**not met**" in Path("runs/gpu.md").read_text("utf-8")


@pytest.mark.parametrize("model", [sections.TINY[2], pytest.param(sections.TINY[3], marks=pytest.mark.long)])
def test_sections_of_an_accelerator_run_on_a_pretended_one(model):
    """Random weights are made on the device, and all ways write the same there."""
    least = replace(
        sections.SMALL, streams=(2,), rounds=1, batches=(2,), prompt_tokens=24, new_tokens=4
    )  # fmt: skip
    with pretending():
        device = torch.device("privateuseone:0")
        job = sections.Job(model, device, "float32", "testbed", least, Results(gpu.HEADS))
        lm = sections.load(job)
        assert lm.device == job.device and all(each.device == job.device for each in lm.model.parameters())
        for name in ("capture", "attention", "heads"):
            sections.SECTIONS[name](job, lm)
    rows = {name: len(rows) for name, rows in job.results.rows.items()}
    assert rows == {"capture": 8, "attention": 3, "heads": 3} and job.results.same
    notes = [note for notes in job.results.notes.values() for note in notes]
    assert any("made on the device" in note for note in notes) and not any("**" in note for note in notes)


@pytest.mark.slow
def test_the_benchmarks_of_an_accelerator_all_run(tmp_path, capsys):
    file = tmp_path / "gpu.md"
    assert gpu.main(["--device", "cpu", "--models", "testbed", sections.TINY[2], "--out", str(file)]) == 0
    text = file.read_text("utf-8")
    assert all(f"## {title}" in text for title in gpu.TITLES.values()) and "failed" not in text
    assert "PASS: testbed" in capsys.readouterr().out
