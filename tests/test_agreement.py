"""probers-judge agreement: kappa as scikit-learn has it, shares by hand, intervals, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails
from sklearn.metrics import cohen_kappa_score

from probers.cli.main import run
from probers.datagen.judges.agreement import VERDICTS, Pair, Part, cohen_kappa, measure
from probers.datagen.judges.base import WRONG

ANSWER = "She was born in 1815 in Paris. She wrote notes."
RANGES = {"year": (16, 20), "place": (24, 29)}


def text(number: int, group: str = "", answer: str = ANSWER, **spans: Any) -> dict[str, Any]:
    """A labelled text with verdicts by name of span; ``sentence`` is of the last sentence."""
    whole = spans.pop("sentence", ...)
    sentences = [] if whole is ... else [{"start": 31, "end": 47, "wrong": whole}]
    marks = [
        {"start": start, "end": end, "wrong": spans[name], "type": name, "evidence": "e"}
        for name, (start, end) in RANGES.items()
        if name in spans
    ]
    asked = [{"role": "user", "content": f"Tell me something about {number}."}]
    return {
        "id": f"t/{number}", "messages": asked, "answer": answer, "spans": marks, "sentences": sentences,
        "group": group or f"g{number}", "outside": "unknown",
    }  # fmt: skip


def write(path: Path, texts: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_lines(path, texts)


def compared(folder: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], *typed: str) -> dict[str, Any]:
    files = [write(folder / "run" / "judged.jsonl", a), write(folder / "hand.jsonl", b)]
    out = run("judge", ["agreement", *files, f"out={folder / 'out'}", *typed])
    return json.loads((Path(out) / "agreement.json").read_text())


def planted(table: list[list[int]], per_group: int = 1) -> list[Pair]:
    cells = [(a, b) for a in range(3) for b in range(3) for _ in range(table[a][b])]
    part = Part("spans", ((0, 1),))
    return [Pair(str(i), part, str(i // per_group), a, b) for i, (a, b) in enumerate(cells)]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_kappa_is_that_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    for n in (3, 40, 500):
        a = rng.integers(classes, size=n)
        b = np.where(rng.random(n) < 0.6, a, rng.integers(classes, size=n))
        table = np.zeros((classes, classes))
        np.add.at(table, (a, b), 1)
        expected = cohen_kappa_score(a, b, labels=range(classes))
        assert float(cohen_kappa(table)) == pytest.approx(expected, abs=1e-12, nan_ok=True)


TABLE = [[50, 6, 4], [10, 20, 5], [2, 3, 7]]


def test_figures_are_those_of_the_table() -> None:
    found = measure(planted(TABLE))
    values = {name: each.value for name, each in found.items()}
    decided = [(p.a, p.b) for p in planted(TABLE) if 2 not in (p.a, p.b)]
    assert values.pop("kappa_decided") == pytest.approx(cohen_kappa_score(*zip(*decided, strict=True)))
    rows = [(p.a, p.b) for p in planted(TABLE)]
    assert values.pop("kappa") == pytest.approx(cohen_kappa_score(*zip(*rows, strict=True)))
    assert values == pytest.approx({
        "equal": 77 / 107, "coverage": 95 / 107,
        "supported_precision": 50 / 56, "contradicted_precision": 20 / 30, "decided_precision": 70 / 86,
        "recall": 20 / 29, "false_positive_rate": 10 / 62,
    })  # fmt: skip
    assert all(each.low <= each.value <= each.high for each in found.values())


def test_intervals_are_those_of_a_share_and_wider_over_groups() -> None:
    table = [[240, 160, 0], [0, 0, 0], [0, 0, 0]]  # of A's supported, B finds 60% right
    alone = measure(planted(table))["supported_precision"]
    spread = 1.96 * math.sqrt(0.6 * 0.4 / 400)
    assert alone.value == pytest.approx(0.6)
    assert (alone.low, alone.high) == pytest.approx((0.6 - spread, 0.6 + spread), abs=0.012)
    grouped = measure(planted(table, per_group=10))["supported_precision"]  # all of a group are equal
    ratio = (grouped.high - grouped.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(math.sqrt(10), rel=0.15)
    assert measure(planted(table))["equal"] == alone != measure(planted(table), seed=1)["equal"]


def test_pairs_are_of_the_same_text_kind_and_characters(tmp_path: Path) -> None:
    a = [text(1, year=False, place=True, sentence=False), text(2, year=None), text(3, year=False)]
    b = [text(1, year=False, sentence=True), text(2, year=True, place=True), text(4, year=False)]
    a[1]["sentences"] = [{"start": 16, "end": 20, "wrong": True}]  # the characters of a span of B
    found = compared(tmp_path, a, b)
    assert found["pairs"] == {"spans": 2, "sentences": 1} and (found["texts"], found["groups"]) == (2, 2)
    assert found["a"]["alone"] == {"texts": 1, "spans": 2, "sentences": 1}
    assert found["b"]["alone"] == {"texts": 1, "spans": 2, "sentences": 0}
    assert found["table"]["supported"] == {"supported": 1, "contradicted": 1, "unknown": 0}
    assert found["table"]["unknown"] == {"supported": 0, "contradicted": 1, "unknown": 0}
    assert found["a"]["verdicts"] == {"supported": 3, "contradicted": 2, "unknown": 1}
    assert found["figures"]["coverage"]["value"] == pytest.approx(2 / 3)
    assert found["figures"]["contradicted_precision"] == {"value": None, "ci95": None, "n": 0}


def test_one_class_has_no_kappa_and_one_group_no_interval(tmp_path: Path, caplog: Any) -> None:
    same = [text(n, "one", year=False) for n in range(5)]
    found = compared(tmp_path, same, same)["figures"]
    assert found["kappa"] == {"value": None, "ci95": None, "n": 5}
    assert found["equal"] == {"value": 1.0, "ci95": None, "n": 5}
    assert "nan" not in caplog.text


def test_a_folder_means_its_judged_texts_and_a_file_is_compared_with_itself(tmp_path: Path) -> None:
    write(tmp_path / "run" / "judged.jsonl", [text(n, year=WRONG[VERDICTS[n % 3]]) for n in range(9)])
    assert run("judge", ["agreement", str(tmp_path / "run"), str(tmp_path / "run")]) is None
    out = run("judge", ["agreement", *[str(tmp_path / "run")] * 2, f"out={tmp_path / 'run'}"])
    figures = json.loads((out / "agreement.json").read_text())
    assert figures["figures"]["kappa"]["value"] == 1 == figures["figures"]["coverage"]["value"] * 1.5
    assert figures["a"]["file"] == figures["b"]["file"] == str(tmp_path / "run" / "judged.jsonl")


def test_what_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [text(1, year=False), text(2, year=False)])
    other = write(tmp_path / "b.jsonl", [text(9), text(2, year=False, answer=f"{ANSWER} Then she left.")])
    apart = write(tmp_path / "c.jsonl", [text(1, place=True), text(7, year=True)])
    for typed, code, *named in (
        (["agreement", a, other], "mismatch", "line 2", "a.jsonl", "b.jsonl", "t/2"),
        (["agreement", a, apart], "empty"), (["agreement", a], "missing-value"),
        (["compare", a, a], "bad-value", "action=compare"),
        (["agreement", a, str(tmp_path / "nothing.jsonl")], "no-file", "nothing.jsonl"),
        (["agreement", a, str(tmp_path)], "no-file", "judged.jsonl"),
    ):  # fmt: skip
        with fails(code, *named):
            run("judge", typed)


def test_figures_of_other_files_are_not_replaced(tmp_path: Path) -> None:
    texts = [text(n, year=False) for n in range(3)]
    first = compared(tmp_path, texts, texts)
    assert compared(tmp_path, texts, texts[:2])["a"] != first["a"]  # of the same two files
    other = write(tmp_path / "other.jsonl", texts)
    with fails("out-taken", "agreement.json"):
        run("judge", ["agreement", other, other, f"out={tmp_path / 'out'}"])
