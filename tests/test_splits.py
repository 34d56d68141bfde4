"""Which texts are trained, validated and tested on: never one group on two sides, and nothing seen again."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.planted import SPEC, make_store, make_token_store
from helpers.refusals import fails

from probers.data.questions import open_questions
from probers.data.splits import Seen
from probers.rag.build import Contamination
from probers.store.store import FeatureStore
from probers.train.examples import Examples, SplitRequest, as_texts, load_examples
from probers.types import SPLITS, Question


def groups(examples: Examples, split: str) -> set[str]:
    return set(examples.groups(split))


def leak(row: dict) -> dict:
    return row | ({"split": "test"} if row["id"] == "q0" else {})


@pytest.mark.parametrize(("edit", "code", "named"), [
    (leak, "overlap", "'g0'"),
    (lambda row: row | ({"split": "train"} if row["split"] == "test" else {}), "labels", "test"),
    (lambda row: row | ({"correct": 1} if row["split"] == "validation" else {}), "labels", "validation"),
])  # fmt: skip
def test_data_that_would_prove_nothing_is_refused(tmp_path: Path, edit: Any, code: Any, named: str) -> None:
    with fails(code, named):
        load_examples([make_store(tmp_path / "s", 80, edit=edit)])


def test_groups_are_dealt_anew_by_their_seed(tmp_path: Path) -> None:
    """Also what leaked in the store; the groups are whole, and the shares those asked for."""
    store = make_store(tmp_path / "s", 400, edit=leak)
    dealt, again, other = (load_examples([store], SplitRequest([0.5, 0.2, 0.3], seed=s)) for s in (3, 3, 4))
    sides = [groups(dealt, split) for split in SPLITS]
    assert [len(side) for side in sides] == [100, 40, 60] and len(set().union(*sides)) == 200
    assert groups(again, "test") == groups(dealt, "test") != groups(other, "test")
    record = dealt.split_record()
    assert set(record["train"]) == sides[0] and sum(map(len, record.values())) == 200
    for split in ("mine", [0.5, 0.4, 0.4], [1.0, 0.0, 0.0]):
        with fails(None, f"split={split}"):
            load_examples([store], SplitRequest(split))
    with fails(None, "200 groups"):
        load_examples([store], SplitRequest([0.998, 0.001, 0.001]))


def test_some_data_sets_are_trained_on_and_others_tested(tmp_path: Path) -> None:
    names = ("nq", "hotpotqa", "iirc")
    dataset = lambda row: row | {"dataset": names[int(row["group"][1:]) % 3]}  # noqa: E731
    store = make_store(tmp_path / "s", 600, edit=dataset)

    def sets(**request: list[str]) -> list[set[str]]:
        examples = load_examples([store], SplitRequest(**request))
        return [set(examples.column("dataset", split)) for split in SPLITS]

    assert sets() == [{"nq", "hotpotqa", "iirc"}] * 3
    assert sets(train_on=["nq"]) == [{"nq"}] * 3
    assert sets(train_on=["nq"], test_on=["iirc"]) == [{"nq"}, {"nq"}, {"iirc"}]
    assert sets(test_on=["iirc"]) == [{"nq", "hotpotqa"}, {"nq", "hotpotqa"}, {"iirc"}]
    with fails("bad-value", "'squad'", "'hotpotqa'", "'iirc'", "'nq'"):
        sets(train_on=["squad"])


def test_a_part_of_the_training_texts_has_whole_groups_and_the_balance_of_the_whole(tmp_path: Path) -> None:
    """Parts are nested, groups whole, no text too many, and every kind has its share, to one group."""

    def unlike(row: dict) -> dict:
        """Training groups of two texts and, where two are joined, of four; of two data sets."""
        group = int(row["group"][1:])
        joined = group - 1 if group % 12 == 1 else group
        return row | {"group": f"g{joined}", "dataset": ("nq", "iirc")[group // 4 % 5 == 0]}

    examples = load_examples([make_store(tmp_path / "s", 1200, edit=unlike)])
    whole, rows, smaller = kinds_of(examples), set(examples.rows["train"]), set[int]()
    assert len(whole) > 4
    for size in (7, 150, 421):
        part = examples.training_part(size, 3)
        chosen = set(part.rows["train"])
        assert size - 4 < len(chosen) <= size and smaller < chosen < rows  # nested; groups are of up to four
        assert len(chosen) == np.isin(examples.column("group", "train"), list(groups(part, "train"))).sum()
        np.testing.assert_array_equal(part.rows["test"], examples.rows["test"])
        smaller, kinds = chosen, kinds_of(part)
        for kind, count in whole.items():
            assert abs(kinds[kind] - count * len(chosen) / len(rows)) <= 1.5, kind


def kinds_of(examples: Examples) -> Counter[tuple]:
    """How many training groups there are of a data set and of so many right and wrong texts."""
    table = examples.table.iloc[examples.rows["train"]]
    parts = [part for _, part in table.groupby("group")]
    return Counter((p["dataset"].iloc[0], sum(p["correct"]), sum(1 - p["correct"])) for p in parts)


def test_stores_of_several_sites_must_be_of_the_same_texts(tmp_path: Path) -> None:
    one = make_store(tmp_path / "a", 80)
    site = replace(SPEC.select((1, 2, 3)), site="mlp_out")
    assert len(load_examples([one, make_store(tmp_path / "b", 80, spec=site)]).table) == 80
    changed = make_store(tmp_path / "c", 80, spec=site, edit=lambda row: row | {"text": "other"})
    with fails("mismatch", changed.path):
        load_examples([one, changed])


def test_the_tokens_of_a_text_are_one_example_with_its_signals(tmp_path: Path) -> None:
    store: FeatureStore = make_token_store(tmp_path / "t", 40)
    table, (texts, members) = store.table(), as_texts(store)
    assert members is not None and len(texts) == 40 and len(table) == sum(map(len, members))
    assert texts["id"].tolist() == [f"q{i}" for i in range(40)]
    for i, rows in enumerate(members):
        part = table.iloc[rows]
        assert part["token"].tolist() == list(range(1 + i % 4)) and set(part["span"]) == {f"q{i}"}
        assert texts["max_entropy"][i] == part["max_entropy"].max()
        assert texts["mean_entropy"][i] == pytest.approx(part["mean_entropy"].mean())
        assert texts["min_prob"][i] == part["min_prob"].min()
    examples = load_examples([store])
    sizes = [len(rows) for rows in members]
    np.testing.assert_array_equal(examples.text_of[np.concatenate(members)], np.repeat(range(40), sizes))


ROME = Question("q1", "Where is Rome?", dataset="towns", group="rome")
SEEN = Seen.of({"train": [("towns", "rome", "")], "validation": [("towns", "oslo", "Where is Oslo?")]})


def test_a_question_is_known_by_its_group_or_by_its_text_under_any_id():
    assert SEEN.split_of(ROME) == "train"
    assert SEEN.split_of(replace(ROME, question="What river is there?")) == "train"
    assert SEEN.split_of(Question("other", "where is oslo", dataset="elsewhere")) == "validation"
    assert SEEN.split_of(replace(ROME, dataset="rivers")) == ""  # groups of other sets have the same names
    assert SEEN.split_of(Question("q2", "Where is Bonn?", dataset="towns")) == ""
    both = SEEN | Seen.of({"train": [("", "", "Where is Oslo?")]})  # the strictest split counts
    assert both.split_of(Question("x", "Where is Oslo?")) == both.split_of(ROME) == "train"


def test_it_is_written_and_read_back_and_damage_is_named(tmp_path):
    assert Seen.read(tmp_path) is None
    SEEN.save(tmp_path)
    again, file = Seen.read(tmp_path), tmp_path / "seen.json"
    assert again is not None and {s: again.splits[s] for s in SEEN.splits} == SEEN.splits
    assert "rome" not in file.read_text()  # hashes: a published prober does not publish its questions
    for text in ("{}", "{"):
        file.write_text(text)
        with fails("damaged", "seen.json"):
            Seen.read(tmp_path)


@pytest.mark.parametrize("limit", [None, 4])
def test_what_was_seen_is_left_out_before_the_draw(tmp_path, limit):
    """The limit is still met, splits are dealt as without it, and the number is said."""
    lines = [{"id": f"q{i}", "question": f"Is {i} odd?", "answers": ["x"]} for i in range(40)]
    file = write_lines(tmp_path / "q.jsonl", lines)
    plain = open_questions(file, split="test")
    gone = {q.id for q in plain.questions[:5]}
    loaded = open_questions(file, split="test", limit=limit, unfit=lambda q: q.id in gone)
    left = {q.id for q in plain.questions} - gone
    ids = {q.id for q in loaded.questions}
    assert ids == left if limit is None else len(ids) == limit and ids < left
    assert any("5 questions left out" in note for note in loaded.notes)
    assert loaded.record["trained_on"] == 5 and "trained_on" not in plain.record
    with fails("overlap"):
        open_questions(file, split="test", unfit=lambda q: True)


def test_a_part_that_does_not_say_is_refused_unless_that_is_allowed(tmp_path):
    SEEN.save(tmp_path)
    parts = [str(tmp_path), str(tmp_path / "older")]
    (tmp_path / "older").mkdir()
    with fails("overlap", "allow_overlap=true"):
        Contamination.of(parts, allowed=False)
    allowed = Contamination.of(parts, allowed=True)
    assert not allowed.not_asked(ROME)
    first, second = allowed.notes([ROME, Question("q2", "Where is Bonn?")])
    assert first.startswith("Overlap: 1 of the 2 questions") and "older does not say" in second


def test_asked_is_neither_trained_nor_tuned_on_and_tuned_is_not_trained_on(tmp_path):
    SEEN.save(tmp_path)
    guard = Contamination.of([str(tmp_path)], allowed=False)
    oslo, bonn = Question("o", "Where is Oslo?"), Question("b", "Where is Bonn?")
    assert [guard.not_asked(q) for q in (ROME, oslo, bonn)] == [True, True, False]
    assert [guard.not_tuned_on(q) for q in (ROME, oslo, bonn)] == [True, False, False]
    assert guard.notes([bonn]) == []
