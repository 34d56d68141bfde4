"""Questions, articles and passages from files: good lines, bad lines, splits."""

import gzip
import json

import pytest

from probers.data import load_corpus, load_questions
from probers.testbed.assets import load_articles
from probers.types import UserError


def write(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


def questions(n):
    return [{"id": f"q{i}", "question": f"Who is {i}?", "answers": [str(i)]} for i in range(n)]


def test_questions_get_seeded_splits_by_group(tmp_path):
    records = [{**q, "group": f"g{i // 2}"} for i, q in enumerate(questions(200))]
    path = write(tmp_path / "q.jsonl", records)
    loaded = load_questions(path)
    assert [q.id for q in loaded] == [r["id"] for r in records]
    by_group = {}
    for question in loaded:
        assert by_group.setdefault(question.group, question.split) == question.split
    counts = [sum(s == name for s in by_group.values()) for name in ("train", "validation", "test")]
    assert counts == [60, 15, 25]
    assert load_questions(path, seed=1) != loaded


def test_a_limit_draws_that_many_and_smaller_ones_are_part_of_larger(tmp_path):
    path = write(tmp_path / "q.jsonl", questions(50))
    ten, twenty = (load_questions(path, limit=n) for n in (10, 20))
    assert len(ten) == 10 and ten == twenty[:10]
    with pytest.raises(UserError, match="limit=0"):
        load_questions(path, limit=0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"id": 1, "question": "x"', "Expecting"),
        ('{"question": "x"}', "no 'id'"),
        ('{"id": 1}', "no 'question'"),
        ('{"id": 1, "question": ""}', "non-empty string"),
        ('{"id": 1, "question": "x", "answers": "y"}', "list of strings"),
        ('["x"]', "JSON object"),
        ('{"id": "q0", "question": "x"}', "already on line 1"),
    ],
)
def test_a_malformed_line_is_named_or_skipped(tmp_path, capsys, line, reason):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(questions(1)[0]) + "\n\n" + line + "\n")
    with pytest.raises(UserError, match=rf"q.jsonl line 3: .*{reason}.*on_bad_line=skip"):
        load_questions(str(path))
    assert len(load_questions(str(path), on_bad_line="skip")) == 1
    assert "line 3" in capsys.readouterr().err


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(UserError, match="questions=nowhere.jsonl is not a file"):
        load_questions("nowhere.jsonl")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="no usable line"):
        load_corpus(str(tmp_path / "empty"))


def test_a_compressed_corpus(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({"id": 3, "title": "T", "text": "body"}) + "\n")
    assert load_corpus(str(path))[0].id == "3"
    path.write_bytes(b"not gzip")
    with pytest.raises(UserError, match="cannot be read"):
        load_corpus(str(path))


def test_testbed_splits_are_those_of_the_world():
    test = load_questions("testbed", split="test", limit=30)
    assert len(test) == 30 and {q.split for q in test} == {"test"}
    assert len(load_corpus("testbed")) == len(load_articles())
