"""The benchmark of the engine compares ways that give the same, and its tables are complete.

Nothing here looks at the clock: what the figures are is for the machine that runs it.
"""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import capture
import clock
import cost
import fits
import gpu
import memory
import peers
import report
import sections
import serve_vllm
import supervised
import texts
import workload
from artefacts import write_lines
from pretended import pretending
from released import Plain, Released
from synthetic import synthetic
from timing import Results, verdict
from workload import Options

import rag as rag_benchmark
import train as training
from probers import FeatureStore
from probers.data.texts import TextSource
from probers.heads import HEADS
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.store.spec import FeatureSpec
from probers.types import RunError

CPU = torch.device("cpu")
SMALL = Options(
    batches=(1, 3), repeats=1, prompt_tokens=24, new_tokens=5, questions=3, exemplar_tokens=40,
    answer_tokens=4, mixed=6, mixed_lengths=(8, 40),
)  # fmt: skip


@pytest.fixture(scope="module")
def lm():
    return workload.build("tiny", CPU)


@pytest.fixture
def written(monkeypatch):
    """What is to be written to RESULTS.md: command and body of a section, by its title."""
    found: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(report, "write_section", lambda name, *rest: found.update({name: rest}))
    return found


def table(body: str) -> list[str]:
    """Lines of a section's table, its head the first, all of as many cells."""
    lines = [line for line in body.splitlines() if line.startswith("| ")]
    assert len({line.count(" | ") for line in lines}) == 1
    return lines


def cells(results: Results, section: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in row.split(" | ")] for row in results.rows[section]]
    assert {len(row) for row in rows} == {len(capture.HEADS[section].split(" | "))}
    return rows


@pytest.mark.long
def test_every_row_is_there_and_all_ways_agree(lm, monkeypatch):
    peaks = {"plain": 1_000_000, "ours": 1_500_000, "peers": 21_000_000}
    monkeypatch.setattr(cost, "memory_of", lambda model, way, *rest: peaks[way])
    results = Results(capture.HEADS)
    capture.measure("tiny", lm, SMALL, results)
    assert results.same
    assert not [note for notes in results.notes.values() for note in notes if "**" in note]
    names = ["plain `generate`", cost.STATES, "entropies, log-probs", "+ mean of all layers"]
    names += ["+ last layer's attention rows"]
    assert [row[1:3] for row in cells(results, "capture")] == [[b, w] for b in "13" for w in names]
    figures = ("seconds", "seconds, forward calls alone", "extra memory, MB")
    assert [row[1:3] for row in cells(results, "peers")] == [[b, what] for b in "13" for what in figures]
    assert [row[1] for row in cells(results, "prefix")] == ["every prompt in full", "`prefix=`"]
    ways = ["one at a time", "batch_size=32", "batch_size=auto"]
    assert [row[1] for row in cells(results, "batching")] == ways
    memory = cells(results, "peers")[2]
    assert memory[3:] == ["20.0", "0.5 (noise 0.0)", "<= 0.0250", "<= 0.05", "met"]
    assert cells(results, "batching")[0][4] == "0.0%"  # one at a time pads nothing
    for section in capture.TITLES:
        assert results.body(section).startswith("| model | ")


def test_no_way_ends_early(lm):
    prompts = workload.long_prompts(lm.tokenizer, 4, 20)
    assert {len(row) for row in peers.plain(lm, prompts, 40)} == {40}
    assert {len(g.token_ids) for g in lm.generate(prompts, max_new_tokens=40)} == {40}


def test_other_tokens_are_noticed_and_ties_are_told_apart(lm):
    prompts = workload.long_prompts(lm.tokenizer, 2, 20)
    written = peers.plain(lm, prompts, 6)
    assert peers.differing(lm, prompts, written, written) == (0, 0)
    other = [written[0], (*written[1][:3], (written[1][3] + 1) % 512, *written[1][4:])]
    assert peers.differing(lm, prompts, written, other) == (1, 1)
    shorter = [written[0], written[1][:4]]
    assert peers.differing(lm, prompts, written, shorter) == (1, 1)
    results = Results(capture.HEADS)
    cost.check(results, "capture", "here", lm, prompts, {"plain": written, "other": other})
    assert not results.same and "1 texts of 'other'" in results.notes["capture"][0]
    head = lm.model.get_output_embeddings().weight
    kept = head.detach().clone()
    with torch.no_grad():  # two rows alike: the two tokens are equally likely everywhere
        head[other[1][3]] = head[written[1][3]]
    try:
        assert peers.differing(lm, prompts, written, other) == (1, 0)
    finally:
        with torch.no_grad():
            head.copy_(kept)


def test_parity_sees_a_wrong_capture(lm, monkeypatch):
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


@pytest.mark.slow
def test_the_peers_way_holds_every_layers_attention():
    theirs, mine = (memory.memory_of("tiny", way, 4, 800, 4, CPU) for way in ("peers", "ours"))
    # 3 layers of 4 heads, 804 x 804 float32 weights, for each of 4 texts: all are there at once.
    assert theirs > 3 * 4 * 804 * 804 * 4 * 4 > 4 * mine


def test_a_model_that_needs_cuda_has_its_row_and_tables_are_written_on_request(written, capsys):
    assert capture.main(["--models", "7b", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count(capture.NOT_HERE) == len(capture.TITLES)
    assert not written
    assert capture.main(["--models", "7b", "--device", "cpu", "--write"]) == 0
    assert list(written) == [f"{title} (cpu)" for title in capture.TITLES.values()]
    for command, body in written.values():
        assert command == "python benchmarks/capture.py --models 7b --device cpu --write"
        assert capture.NOT_HERE in body


def test_a_failure_keeps_what_was_measured(monkeypatch, capsys):
    flags = ["--models=tiny", "--device=cpu", "--repeats=1", "--only=prefix,peers", "--batches=2"]

    def fail(*_: object) -> int:
        raise RunError("memory cannot be measured")

    monkeypatch.setattr(cost, "memory_of", fail)
    assert capture.main([*flags, "--prompt-tokens", "16", "--new-tokens", "4"]) == 1
    out, err = capsys.readouterr()
    assert "error: memory cannot be measured" in err
    assert "2 | seconds" in out and "Reuse" not in out
    assert capture.main([*flags, "--prompt-tokens", "3000"]) == 2
    assert "context of 2048" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "flags", "said"),
    [
        (capture.main, "--models huge", "'huge' .* smollm2, testbed"),
        (capture.main, "--only speed", "'speed'"),
        (capture.main, "--batches 1,0", "'0'"),
        (capture.main, "--new-tokens 1", "at least 2"),
        (capture.main, "--quick --batches 32", "up to 8"),
        (training.parse, "--rounds 0", "0 is not a number above 0"),
        (training.parse, "--steps -1", "expected one argument|not a whole number"),
        (training.parse, "--data nowhere", "nowhere"),
        (rag_benchmark.main, "--only speed", "'speed'"),
        (rag_benchmark.main, "--lengths 0", "at least 1"),
        (rag_benchmark.main, "--questions x", "whole numbers"),
        (gpu.main, "--device tpu", "tpu is not a device"),
        (gpu.main, "--device mps:99", "this machine has . mps"),
        (gpu.main, "--device cpu --models llama-3.1-8b", "tiny-llama-3.1-8b"),
        (gpu.main, "--device cpu --dtypes float32,float8", "float8: cpu has float32"),
        (gpu.main, "--device cpu --only speed", "'speed'"),
    ],
)
def test_wrong_flags_are_named(main, flags, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(flags.split())
    assert re.search(said, capsys.readouterr().err)


def test_the_training_benchmark_shortens_trainings_and_scales_their_time(tmp_path):
    store = synthetic(tmp_path, 240, 2, 8)
    short, whole = (fits.as_fit(str(store), [1, 2], steps) for steps in (24, 0))
    assert (short["taken"], short["of"]) == (24, 32)  # 192 train, in batches of 12, two epochs
    assert (whole["taken"], whole["of"]) == (32, 32)
    assert short["parameters"] == whole["parameters"] > 2 * 512 * 512
    assert short["seconds"] >= 32 * short["step"] > 0
    for run in (short, whole):
        assert set(run["parts"]) == {*clock.PARTS, "trainer"}
        assert all(seconds > 0 for seconds in run["parts"].values())
        assert sum(run["parts"].values()) == pytest.approx(run["step"])
        assert run["validation"] > 0 and run["threads"] == 1


def test_a_timed_training_is_the_same_training(tmp_path):
    opened = FeatureStore.open(synthetic(tmp_path, 240, 2, 8))
    settings = fits.Fitting()
    examples = fits.shortened(fits.load_examples([opened]), 16, settings)
    assert len(examples.rows["train"]) == 96 and len(examples.rows["validation"]) == 24
    plain = fits._fit(opened, [1, 2], examples, settings)
    with clock.Clock().running():
        timed = fits._fit(opened, [1, 2], examples, settings)
    assert plain.loss.tolist() == timed.loss.tolist()
    assert fits.heads.ProberModule.__name__ == "ProberModule"


def test_the_synthetic_store_is_made_once_and_its_middle_layers_tell_most(tmp_path):
    path = synthetic(tmp_path, 1030, 3, 16)
    files = {file: file.stat().st_mtime_ns for file in path.glob("shards/*")}
    assert synthetic(tmp_path, 1030, 3, 16) == path
    assert files == {file: file.stat().st_mtime_ns for file in path.glob("shards/*")}
    store = FeatureStore.open(path)
    table = store.table()
    assert len(table) == 1030 and len(files) == 9  # three shards
    assert table.groupby("group").size().max() == 2 and table.groupby("group")["split"].nunique().max() == 1
    gaps = []
    for layer in store.spec.layers:
        states = store.layer(layer).astype(float)
        means = [states[table["correct"].to_numpy() == label].mean(axis=0) for label in (0, 1)]
        gaps.append(float(abs(means[1] - means[0]).sum()))
    assert gaps[1] > gaps[0] and gaps[1] > gaps[2]


def test_verdicts_of_the_training_benchmark_follow_the_aims():
    faster, slower = training.ratios("s", 10, 5.0, 1.0, 30.0, "sum")
    assert faster[-3:] == ["6.00", ">= 4", "met"] and slower[-3:] == ["5.00", "<= 4", "**not met**"]
    runs = [{"step": 0.01, "seconds": 2.0, "validation": 0.5, "parts": {p: 0.002 for p in clock.PARTS}}]
    runs[0]["parts"]["trainer"] = 0.002
    step, waiting, validation = training.parts("s", "1 layer", runs)
    assert waiting[-3:] == ["0.20", "<= 0.1", "**not met**"]
    assert "adamw 20%" in step[2] and validation[4] == "0.25"
    assert {len(row) for row in (faster, step, waiting, validation)} == {len(training.COLUMNS)}


@pytest.fixture(scope="module")
def small():
    return rag_benchmark.engine(1)


def test_the_released_procedure_and_the_loop_do_the_same(small):
    """In rounds, with texts cut in the middle, and whether or not the model may end its answer."""
    eager = rag_benchmark.eager_twin()
    retriever, prompt = rag_benchmark.BM25(rag_benchmark.load_corpus()), rag_benchmark.exemplars(0)
    asked = [q for q in rag_benchmark.load_questions() if q.split == "test"][1:4]
    loop = rag_benchmark.released_loop(small, retriever, 0.4, prompt, 28)
    ours = loop.answer(asked)
    plain = Released(small.model, eager, small.tokenizer, retriever, prompt, 0.4, 25, 28)
    theirs = [plain(q) for q in asked]
    assert [rag_benchmark.outcome(a) for a in ours] == [rag_benchmark.outcome(p) for p in theirs]
    assert sum(len(p.queries) for p in theirs) > 0 and any(not p.queries for p in theirs)
    plain.ends = True
    assert plain(asked[0]) == theirs[0]
    plain.threshold = 99.0
    assert plain(asked[0]).queries == ()


def test_unlike_answers_are_counted_and_need_a_reason():
    one, other = Plain("A b. So", "x", ("q",)), Plain("A b. So", "x", ())
    results = Results(rag_benchmark.HEADS)
    rag_benchmark.agree("here", [one, one], {"same": [one, one]}, results)
    assert results.same and "2 of 2 questions" in results.notes["dragin"][0]
    odd = Plain("A b. and c.", "x", ())
    rag_benchmark.agree("here", [one, odd], {"odd": [one, replace(odd, queries=("q",))]}, results)
    assert results.same and "before a small letter" in results.notes["dragin"][1]
    rag_benchmark.agree("here", [one, one], {"other": [one, other]}, results)
    assert not results.same and "1 differ without a reason" in results.notes["dragin"][2]


@pytest.mark.long
def test_the_tables_of_the_loop_are_complete(small, written, tmp_path, monkeypatch, capsys):
    spec = FeatureSpec(small.spec, (11, 12), small.width, prompt=TESTBED_PROMPT.fingerprint)
    Prober(spec, HEADS["linear"](["layer11", "layer12"], small.width), 0.0).save_pretrained(tmp_path)
    monkeypatch.setattr(rag_benchmark, "_command", lambda *command: None)
    flags = ["--questions", "1", "--lengths", "16", "--exemplars", "1", "--repeats", "1", "--compare"]
    assert rag_benchmark.main([*flags, "--prober", str(tmp_path), "--write"]) == 0
    assert list(written) == list(rag_benchmark.TITLES.values())
    for head, (_, body) in zip(rag_benchmark.HEADS.values(), written.values(), strict=True):
        assert table(body)[0] == f"| {head} |"
    assert written["The loop against DRAGIN as released"][1].count("\n| 1 | 16 | ") == 6
    assert "## Probing against plain generation" in capsys.readouterr().out


@pytest.fixture
def labelled(tmp_path):
    """A few answers, and one half of each marked as wrong."""
    lines = [
        {"prompt": f"Number {n}?\nAnswer:", "answer": f" It is {n}. It was {n + 1}.", "outside": "right",
         "spans": [{"start": 8 + len(str(n)), "end": 14 + len(str(n)), "wrong": True}]}
        for n in range(12)
    ]  # fmt: skip
    return write_lines(tmp_path / "labelled.jsonl", lines)


def test_reading_labelled_texts_gives_the_states_of_plain_passes(labelled, small, tmp_path):
    plain = texts.plain(small, TextSource(labelled, limit=5), 2, tmp_path)
    ours = texts.ours(small, TextSource(labelled, limit=5), 2, tmp_path / "store")
    assert plain.shape[0] == texts.LAYERS and texts.alike(plain, ours) > texts._SAME
    assert texts.alike(plain[:, 1:], ours[:, :-1]) < texts._SAME
    assert texts.alike(plain[:, 1:], ours) == -1


@pytest.mark.slow
def test_the_table_of_labelled_texts_is_complete(labelled, written):
    given = ["--texts", labelled, "--model", "testbed", "--count", "5", "--batch", "2"]
    assert texts.main([*given, "--rounds", "1", "--write"]) == 0
    ((command, body),) = written.values()
    assert "--texts labelled.jsonl" in command and re.search(r"5 texts of \d\d", body)
    assert [row.split(" | ")[0] for row in table(body)[2:]] == [f"| {name}" for name in texts.WAYS.values()]


def test_a_section_of_the_results_is_replaced_and_the_others_stay(tmp_path):
    file = tmp_path / "R.md"
    for name, body in (("a", "one"), ("b", "two\n\n### part"), ("a", "three \\1"), ("a b", "four")):
        report.write_section(name, "python x", body, file=file)
    text = file.read_text()
    assert text.startswith("# Benchmarks") and report.machine() in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## a", "## b", "## a b"]
    assert "one" not in text.split("## a")[1] and "three \\1\n\n## b" in text and "### part\n\n## a b" in text
    report.write_section("a b", "python x", "four", file=file)
    assert file.read_text() == text


@pytest.fixture
def verdicts(monkeypatch, tmp_path):
    """What the sections of gpu.py find of the target of the server, in place of running them."""
    found: list[bool] = []

    def measured(command, names, limits, until, results, arrived) -> list[str]:
        for reached in found:
            cells = ("server with scores", "", "", "", ">= 0.97 of no scores", verdict(reached))
            results.row("serve", "some/model, float32", 16, *cells)
            arrived("serve")
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "measured", measured)
    monkeypatch.setattr(gpu, "dtypes_of", lambda device: ["float32"])
    return found


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
    assert "FAIL: some/model on a card" in out and "| met |" in out
    assert "**not met**" in Path("runs/gpu.md").read_text("utf-8")
    verdicts.clear()
    assert gpu.main([]) == 0
    assert f"PASS: {', '.join(sections.MODELS)} on a card" in capsys.readouterr().out


def test_no_target_is_judged_on_a_cpu(verdicts, capsys):
    verdicts += [True, False]
    assert gpu.main(["--device", "cpu", "--models", "testbed"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"| {gpu.NOT_JUDGED} |") == 2 and "met" not in out and "PASS: testbed on CPU" in out


def test_other_texts_fail_the_run_on_a_cpu_too():
    results = Results(gpu.HEADS)
    assert gpu.judge(results, CPU) == []
    results.same = False
    assert "did not write the same" in gpu.judge(results, CPU)[0]


#: A process whose sections send a row and then fail, hang, die or finish.
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


def test_a_section_that_fails_hangs_or_dies_is_named_and_the_others_run():
    names = ["first", "fails", "hangs", "dies", "last"]
    results, arrived = Results(dict.fromkeys(names, "name")), list[str]()
    limits = {**dict.fromkeys([supervised.START, *names], 20.0), "hangs": 0.2}

    def command(left, pipe) -> list[str]:
        return [sys.executable, "-c", WORKER, str(pipe), *left]

    until = time.monotonic() + 60
    problems = supervised.measured(command, names, limits, until, results, arrived.append)
    assert [problem.split()[0] for problem in problems] == ["fails", "hangs", "dies"]
    assert "no example was kept" in problems[0] and "took more than" in problems[1] and "3" in problems[2]
    assert arrived == names and results.rows == {name: [name] for name in names}
    problems = supervised.measured(command, names, limits, time.monotonic(), results, arrived.append)
    assert problems == [f"{name} was not run" for name in names] and arrived == names
    problems = supervised.measured(
        lambda left, pipe: [sys.executable, "-c", "raise SystemExit(1)"], names, limits, until, results, print
    )
    assert problems[1:] == [f"{name} was not run" for name in names] and "start" in problems[0]


def test_a_section_that_raises_is_sent_and_the_next_runs(monkeypatch):
    def fail(*_: object) -> None:
        raise RunError("no example was kept")

    sent: list[dict[str, object]] = []
    pipe = supervised.Sending(gpu.HEADS)
    monkeypatch.setattr(supervised.Sending, "send", lambda self, **event: sent.append(event))
    monkeypatch.setattr(sections, "load", lambda job: None)
    monkeypatch.setitem(sections.SECTIONS, "labels", fail)
    monkeypatch.setattr(serve_vllm, "find_spec", lambda name: None)
    gpu.work(
        sections.Job("testbed", CPU, "float32", "testbed", sections.SMALL, pipe), ["labels", "vllm"], pipe
    )
    assert [next(iter(event)) for event in sent] == ["begun", "failed", "done", "begun", "row", "done"]
    assert sent[1] == {"failed": "RunError: no example was kept"}
    assert "skipped: vLLM is not installed in this environment" in sent[4]["row"][1]


#: Sizes of the sections in tests.
LEAST = replace(
    sections.SMALL, articles=3, examples=240, streams=(2,), rounds=1,
    options=replace(sections.SMALL.options, repeats=1, batches=(2,), prompt_tokens=24, new_tokens=4),
)  # fmt: skip


@pytest.mark.parametrize("model", [sections.TINY[1], pytest.param(sections.TINY[2], marks=pytest.mark.long)])
def test_sections_of_an_accelerator_run_on_a_pretended_one(model):
    """Random weights are made on the device, and all ways write the same there."""
    with pretending():
        job = sections.Job(
            model, torch.device("privateuseone:0"), "float32", "testbed", LEAST, Results(gpu.HEADS)
        )
        lm = sections.load(job)
        assert lm.device == job.device and all(each.device == job.device for each in lm.model.parameters())
        for name in ("capture", "attention", "heads"):
            sections.SECTIONS[name](job, lm)
    rows = {name: len(rows) for name, rows in job.results.rows.items()}
    assert rows == {"capture": 4, "attention": 3, "heads": 3} and job.results.same
    notes = [note for notes in job.results.notes.values() for note in notes]
    assert any("made on the device" in note for note in notes) and not any("**" in note for note in notes)


def test_ways_of_others_that_do_not_fit_are_left_out_and_named(lm, monkeypatch):
    def large(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    ways = {cost.PASSES: large, "plain": large}
    assert cost.too_large(ways, lm, [], 1) == []  # on a CPU nothing is tried
    device = type("Device", (), {"type": "cuda"})()
    monkeypatch.setattr(torch, "get_device_module", lambda device: MagicMock())
    assert cost.too_large(ways, type("Model", (), {"device": device}), [], 1) == [cost.PASSES]


@pytest.mark.slow
def test_the_benchmarks_of_an_accelerator_all_run(written, tmp_path, capsys):
    file = tmp_path / "gpu.md"
    models = ["--models", *sections.TINY[:2]]
    assert gpu.main(["--device", "cpu", *models, "--write", "--out", str(file)]) == 0
    titles = [f"make gpu: {title} ({', '.join(models[1:])}, cpu)" for title in gpu.TITLES.values()]
    assert list(written) == titles and all(f"## {title}" in file.read_text("utf-8") for title in titles)
    tables = {name: table(body) for name, (_, body) in zip(gpu.TITLES, written.values(), strict=True)}
    assert [lines[0] for lines in tables.values()] == [f"| {gpu.HEADS[name]} |" for name in tables]
    rows = {name: len(lines) - 2 for name, lines in tables.items()}
    assert rows == {
        "capture": 16, "memory": 6, "serve": 8, "attention": 6, "heads": 6, "labels": 2, "train": 2,
        "vllm": 2,
    }  # fmt: skip
    assert "PASS: testbed" in capsys.readouterr().out
