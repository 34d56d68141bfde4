"""The benchmark of the engine compares ways that give the same, and its tables are complete.

Nothing here looks at the clock: what the figures are is for the machine that runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import capture
import cost
import memory
import peers
import report
import workload
from reuse import PaddingCount
from timing import Results, by_turns
from workload import Options

from probers import CausalLM
from probers.types import Needs, RunError

CPU = torch.device("cpu")
SMALL = Options(
    batches=(1, 3),
    repeats=1,
    prompt_tokens=24,
    new_tokens=5,
    questions=3,
    exemplar_tokens=40,
    answer_tokens=4,
    mixed=6,
    mixed_lengths=(8, 40),
)


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    return workload.build("tiny", CPU)


def cells(results: Results, section: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in row.split(" | ")] for row in results.rows[section]]
    assert {len(row) for row in rows} == {len(capture.HEADS[section].split(" | "))}
    return rows


def test_every_row_is_there_and_all_ways_agree(lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"plain": 1_000_000, "ours": 1_500_000, "peers": 21_000_000}
    monkeypatch.setattr(cost, "memory_of", lambda model, way, *rest: peaks[way])
    results = Results(capture.HEADS)
    capture.measure("tiny", lm, SMALL, results)
    assert results.same
    assert not [note for notes in results.notes.values() for note in notes if "**" in note]
    names = (
        "plain `generate`",
        "entropies, log-probs",
        "+ mean of all layers",
        "+ last layer's attention rows",
    )
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


def test_prompts_have_the_tokens_asked_for(lm: CausalLM) -> None:
    long = [len(lm.tokenizer(text)["input_ids"]) for text in workload.long_prompts(lm.tokenizer, 9, 64)]
    assert long[0] == 64 and min(long) >= 60 and len(set(long)) > 1
    mixed = [
        len(lm.tokenizer(text)["input_ids"]) for text in workload.mixed_prompts(lm.tokenizer, 40, 20, 90)
    ]
    assert min(mixed) >= 20 and max(mixed) <= 90 and len(set(mixed)) > 10
    shared, prompts = workload.few_shot(lm.tokenizer, 4, 6, 60)
    assert len(lm.tokenizer(shared)["input_ids"]) == 360
    assert len(set(prompts)) == 4 and all(text.startswith(shared) for text in prompts)


def test_no_way_ends_early(lm: CausalLM) -> None:
    prompts = workload.long_prompts(lm.tokenizer, 4, 20)
    assert {len(row) for row in peers.plain(lm, prompts, 40)} == {40}
    assert {len(g.token_ids) for g in lm.generate(prompts, max_new_tokens=40)} == {40}


def test_other_tokens_are_noticed_and_ties_are_told_apart(lm: CausalLM) -> None:
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


def test_parity_sees_a_wrong_capture(lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = workload.long_prompts(lm.tokenizer, 2, 20)
    same = peers.parity(lm, prompts, 6)
    assert same is not None and 0 < same < 1e-4
    honest = peers.ours

    def shifted(*args: object, **options: object) -> list:
        generations = honest(*args, **options)
        for generation in generations:
            generation.states[:, 1] += 0.01
        return generations

    monkeypatch.setattr(peers, "ours", shifted)
    wrong = peers.parity(lm, prompts, 6)
    assert wrong is not None and wrong > 1e-3


def test_padding_is_counted_and_the_model_left_as_it_was(lm: CausalLM) -> None:
    texts = workload.texts(lm.tokenizer, [10, 30])
    alone = CausalLM(lm.model, lm.tokenizer, batch_size=1)
    with PaddingCount(lm.model) as count:
        alone.generate(texts, max_new_tokens=3)
    assert (count.positions, count.padded) == (10 + 30, 0)
    with PaddingCount(lm.model) as count:
        peers.plain(lm, texts, 3)
    assert (count.positions, count.padded) == (2 * 30, 20)
    assert "forward" not in vars(lm.model)


def test_ways_take_turns() -> None:
    order: list[str] = []
    work = {name: (lambda name=name: order.append(name) or name) for name in "abc"}
    seconds, results = by_turns(work, warm={}, least=2, exactly=3, device=CPU)
    assert "".join(order) == "abcbcacab"
    assert results == {"a": "a", "b": "b", "c": "c"} and {len(s) for s in seconds.values()} == {3}


def test_the_peers_way_holds_every_layers_attention(capsys: pytest.CaptureFixture[str]) -> None:
    memory.main("tiny", "peers", "4", "800", "4", "cpu")
    theirs = int(capsys.readouterr().out)
    memory.main("tiny", "ours", "4", "800", "4", "cpu")
    mine = int(capsys.readouterr().out)
    # 3 layers of 4 heads, 804 x 804 float32 weights, for each of 4 texts: all are there at once.
    assert theirs > 3 * 4 * 804 * 804 * 4 * 4 > 4 * mine


def test_memory_is_measured_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "memory.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['MALLOC_ARENA_MAX'], 123)")
    monkeypatch.setattr(memory, "__file__", str(script))
    assert memory.memory_of("tiny", "ours", 1, 20, 4, CPU) == 123
    script.write_text("import sys; sys.exit(' '.join(sys.argv[1:]) + ' is too much')")
    with pytest.raises(
        RunError, match="memory of ours on tiny ended with 1: tiny ours 1 20 4 cpu is too much"
    ):
        memory.memory_of("tiny", "ours", 1, 20, 4, CPU)


def test_growth_sees_what_was_freed_again() -> None:
    large = 50_000_000
    assert memory.growth(lambda: bytearray(b"x") * large and None, CPU) >= 0.9 * large
    assert memory.growth(lambda: None, CPU) < 0.2 * large


def test_a_model_that_needs_cuda_has_its_row_and_tables_are_written_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(
        report, "write_section", lambda name, command, body: sections.update({name: (command, body)})
    )
    assert capture.main(["--models", "7b", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count(capture.NOT_HERE) == len(capture.TITLES)
    assert not sections
    assert capture.main(["--models", "7b", "--device", "cpu", "--write"]) == 0
    assert list(sections) == [f"{title} (cpu)" for title in capture.TITLES.values()]
    for command, body in sections.values():
        assert command == "python benchmarks/capture.py --models 7b --device cpu --write"
        assert capture.NOT_HERE in body


def test_a_failure_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--models",
        "tiny",
        "--device",
        "cpu",
        "--repeats",
        "1",
        "--only",
        "prefix,peers",
        "--batches",
        "2",
    ]

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
    ("flags", "said"),
    [
        (["--models", "huge"], "'huge' is unknown; choose among testbed"),
        (["--only", "speed"], "'speed' is unknown"),
        (["--batches", "1,0"], "'0' is not a whole number above 0"),
        (["--new-tokens", "1"], "at least 2"),
        (["--quick", "--batches", "32"], "up to 8"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        capture.main(flags)
    assert said in capsys.readouterr().err


def test_needs_of_the_comparison_cover_both(lm: CausalLM) -> None:
    assert peers.everything(lm) == Needs(layers=(0, 1, 2, 3), attention=True)
