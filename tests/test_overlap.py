"""What a trained part has seen: remembered beside it, and not asked again."""

from dataclasses import replace

import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails

from probers.data.questions import open_questions
from probers.data.splits import Seen
from probers.rag.build import Contamination
from probers.types import Question

ASKED = Question("q1", "Where is Rome?", dataset="towns", group="rome")
SEEN = Seen.of({"train": [("towns", "rome", "")], "validation": [("towns", "oslo", "Where is Oslo?")]})


def test_a_question_is_known_by_its_group_or_by_its_text_under_any_id():
    assert SEEN.split_of(ASKED) == "train"
    assert SEEN.split_of(replace(ASKED, question="What river is there?")) == "train"
    assert SEEN.split_of(Question("other", "where is oslo", dataset="elsewhere")) == "validation"
    assert SEEN.split_of(replace(ASKED, dataset="rivers")) == ""  # groups of other sets have the same names
    assert SEEN.split_of(Question("q2", "Where is Bonn?", dataset="towns")) == ""
    both = SEEN | Seen.of({"train": [("", "", "Where is Oslo?")]})  # the strictest split counts
    assert both.split_of(Question("x", "Where is Oslo?")) == both.split_of(ASKED) == "train"


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
    found = open_questions(file, split="test", limit=limit, unfit=lambda q: q.id in gone)
    left = {q.id for q in plain.questions} - gone
    asked = {q.id for q in found.questions}
    assert asked == left if limit is None else len(asked) == limit and asked < left
    assert any("5 questions left out" in note for note in found.notes)
    assert found.record["trained_on"] == 5 and "trained_on" not in plain.record
    with fails("overlap"):
        open_questions(file, split="test", unfit=lambda q: True)


def test_a_part_that_does_not_say_is_refused_unless_that_is_allowed(tmp_path):
    SEEN.save(tmp_path)
    parts = [str(tmp_path), str(tmp_path / "older")]
    (tmp_path / "older").mkdir()
    with fails("overlap", "allow_overlap=true"):
        Contamination.of(parts, allowed=False)
    allowed = Contamination.of(parts, allowed=True)
    assert not allowed.not_asked(ASKED)
    first, second = allowed.notes([ASKED, Question("q2", "Where is Bonn?")])
    assert first.startswith("Overlap: 1 of the 2 questions") and "older does not say" in second


def test_asked_is_neither_trained_nor_tuned_on_and_tuned_is_not_trained_on(tmp_path):
    SEEN.save(tmp_path)
    guard = Contamination.of([str(tmp_path)], allowed=False)
    oslo, bonn = Question("o", "Where is Oslo?"), Question("b", "Where is Bonn?")
    assert [guard.not_asked(q) for q in (ASKED, oslo, bonn)] == [True, True, False]
    assert [guard.not_tuned_on(q) for q in (ASKED, oslo, bonn)] == [True, False, False]
    assert guard.notes([bonn]) == []
