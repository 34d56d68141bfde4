"""Question sets: official layouts, copies on the Hub, draws and splits, and files that are something else."""

import gzip
import json
import os
import tracemalloc
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import pytest
from refusals import fails

from probers.data import load_questions
from probers.data.articles import open_articles
from probers.data.corpus import load_corpus
from probers.data.questions import (
    DATASETS,
    EmptySplitError,
    Layout,
    QuestionSource,
    UnusableError,
    layout,
    open_questions,
    source_class,
)
from probers.data.questions.musique import MuSiQue
from probers.data.questions.twowikimultihopqa import TwoWikiMultihopQA
from probers.data.splits import Splits
from probers.equivalence.names import load_aliases
from probers.evaluation.answers import normalize_answer
from probers.text import load_vectors
from probers.types import Question, RunError

FILES = Path(__file__).parent / "data" / "questions"
PAINTER = "who painted the ceiling of the hall in aldenburg"

#: Dataset -> its official files here.
OFFICIAL = {
    "hotpotqa": ("hotpot_distractor.json", "hotpot_fullwiki.json"),
    "2wikimultihopqa": ("twowiki.json",),
    "nq": ("nq_open.jsonl", "dpr_nq.json"),
    "triviaqa": ("triviaqa.json",),
    "musique": ("musique_full.jsonl",),
    "strategyqa": ("strategyqa.json",),
    "iirc": ("iirc.json",),
}


def path(name):
    return str(FILES / name)


def opened(name, file, **options):
    return open_questions(name, path=path(file), **options)


def by_id(found):
    return {q.id: q for q in found.questions}


def passages(question):
    return [(p.id, p.title, p.text, p.is_gold) for p in question.passages]


def records_of(file):
    text = Path(path(file)).read_text()
    if file.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    loaded = json.loads(text)
    return loaded["Data"] if isinstance(loaded, dict) else loaded


def write_lines(target, records):
    target.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(target)


def test_hotpotqa_distractor():
    found = opened("hotpotqa", "hotpot_distractor.json")
    first, second = found.questions
    assert found.record["layout"] == "distractor" and found.record["read"] == found.record["used"] == 2
    assert (first.id, first.answers, first.dataset) == ("5f00aa01", ("Marl",), "hotpotqa")
    assert first.question == "Into which sea does the river that crosses Aldenburg flow?"
    assert first.group == first.id
    assert passages(first) == [
        ("0", "Aldenburg", "Aldenburg is a town of 4,000. The Brenne crosses it.", True),
        ("1", "Castor Hill", "Castor Hill is a hill. It is 212 metres high.", False),
        ("2", "Brenne (river)", "The Brenne is a river that ends in the Marl Sea.", True),
    ]
    assert second.answers == ("yes",) and all(p.is_gold for p in second.passages)


def test_hotpotqa_fullwiki_is_told_by_gold_paragraphs_that_are_missing():
    found = opened("hotpotqa", "hotpot_fullwiki.json")
    assert found.record["layout"] == "fullwiki"
    titles = [(p.title, p.is_gold) for p in found.questions[0].passages]
    assert titles == [("Aldenburg", True), ("Marl", False)]


def test_2wikimultihopqa_with_and_without_aliases():
    plain = by_id(opened("2wikimultihopqa", "twowiki.json"))
    assert [q.answers for q in plain.values()] == [("Sweden",), ("4 May 1920",), ("Low Tide",)]
    others = by_id(opened("2wikimultihopqa", "twowiki.json", aliases=path("twowiki_id_aliases.json")))
    assert others["c0ffee01"].answers == ("Sweden", "Kingdom of Sweden", "SE", "Swedish", "Swede")
    assert others["c0ffee02"].answers == ("4 May 1920",) and others["c0ffee03"].answers == ("Low Tide", "Ebb")
    told = "Low Tide, director, Ada Lindqvist. Ada Lindqvist, country of birth, Sweden."
    assert plain["c0ffee01"].rationale == told
    assert passages(plain["c0ffee01"]) == [  # sentences of this set bring no spaces along
        ("0", "Low Tide", "Low Tide is a film of 1961. It was directed by Ada Lindqvist.", True),
        ("1", "High Tide", "High Tide is another film.", False),
        ("2", "Ada Lindqvist", "Ada Lindqvist was born in Sweden.", True),
    ]
    first, second, third = plain.values()  # questions on the same articles are one group
    assert first.group == second.group != third.group
    assert first.split == second.split


def test_2wikimultihopqa_aliases_need_the_release_with_ids(tmp_path):
    records = [{k: v for k, v in r.items() if k != "answer_id"} for r in records_of("twowiki.json")]
    file = write_lines(tmp_path / "dev.jsonl", records)
    assert len(open_questions("2wikimultihopqa", path=file).questions) == 3
    with fails("mismatch", "questions.aliases"):
        open_questions("2wikimultihopqa", path=file, aliases=path("twowiki_id_aliases.json"))
    broken = tmp_path / "aliases"
    for line, reason in (('{"aliases": []}', "no 'Q_id'"), ("[]", "JSON object"), ('{"Q_id"', "Expecting")):
        broken.write_text(line)
        with fails("bad-line", "questions.aliases=", "line 1", reason):
            opened("2wikimultihopqa", "twowiki.json", aliases=str(broken))
    with fails("no-file", "questions.aliases=nowhere"):
        opened("2wikimultihopqa", "twowiki.json", aliases="nowhere")


def test_nq_open_and_dpr_agree_on_ids_and_splits():
    plain, dpr = opened("nq", "nq_open.jsonl"), opened("nq", "dpr_nq.json")
    assert plain.record["layout"] == "NQ-open" and dpr.record["layout"] == "DPR's biencoder file"
    painter, bridge = plain.questions
    (same,) = dpr.questions
    assert painter.question == same.question == PAINTER
    assert painter.answers == same.answers == ("Ulla Berg", "U. Berg")
    assert (painter.id, painter.split) == (same.id, same.split) and painter.id != bridge.id
    assert not painter.passages and bridge.answers == ("1904",)
    assert passages(same) == [
        ("4711", "Aldenburg", "The ceiling of the hall was painted by Ulla Berg.", True),
        ("12", "Ceiling", "A ceiling covers a hall.", False),
        ("13", "Hall", "A hall is a large room.", False),
    ]
    assert len(opened("nq", "dpr_nq.json", hard_negatives=0).questions[0].passages) == 1
    with fails("bad-value", "hard_negatives=-1"):
        opened("nq", "dpr_nq.json", hard_negatives=-1)


def test_triviaqa_keeps_every_answer_of_the_official_evaluation():
    found = opened("triviaqa", "triviaqa.json")
    first, second = found.questions
    # "The" is dropped: once normalised it would accept an answer that was never given.
    assert first.answers == ("Ulla Berg", "Berg, Ulla", "ulla berg", "berg ulla", "Berg")
    assert (first.id, first.question) == ("tc_1", "Who painted the hall of Aldenburg?")
    assert second.answers == ("42",)
    assert list(found.excluded.listed) == [("record 3", "no gold answer")]


def test_dpr_files_are_told_apart_by_the_dataset_they_name(tmp_path):
    record = {**records_of("dpr_nq.json")[0], "dataset": "trivia_train"}
    file = write_lines(tmp_path / "trivia.jsonl", [record])
    (question,) = open_questions("triviaqa", path=file).questions
    assert question.dataset == "triviaqa" and question.id.startswith("triviaqa-")
    with fails("mismatch", "questions=nq"):
        open_questions("nq", path=file)
    with fails("mismatch"):
        opened("triviaqa", "dpr_nq.json")


def test_musique_leaves_unanswerable_twins_out_or_wants_noanswer():
    found = opened("musique", "musique_full.jsonl")
    (question,) = found.questions
    assert question.answers == ("Malmo", "Malmö", "City of Malmö")
    assert question.rationale == "Low Tide >> director: Ada Lindqvist. Where was Ada Lindqvist born? Malmo."
    assert [(p.id, p.title, p.is_gold) for p in question.passages] == [
        ("0", "Low Tide", True), ("1", "Moon", False), ("2", "Ada Lindqvist", True),
    ]  # fmt: skip
    assert found.excluded.counts == {"unanswerable": 1}
    both = opened("musique", "musique_full.jsonl", unanswerable="noanswer").questions
    assert [q.answers for q in both] == [question.answers, ("noanswer",)]
    assert both[0].id != both[1].id and both[0].group == both[1].group and both[0].split == both[1].split
    assert not both[1].rationale
    with fails("unknown-choice", "unanswerable=keep"):
        opened("musique", "musique_full.jsonl", unanswerable="keep")


def test_strategyqa_answers_yes_or_no_and_takes_the_evidence_of_all_annotators():
    found = opened("strategyqa", "strategyqa.json", paragraphs=path("strategyqa_paragraphs.json"))
    yes, no = found.questions
    assert (yes.answers, no.answers) == (("yes",), ("no",))
    assert yes.rationale == "The Brenne ends in the Marl Sea. Fish swim down rivers."
    assert passages(yes) == [
        ("Brenne-1", "Brenne", "The Brenne is a river that ends in the Marl Sea.", True),
        ("Fish-2", "Fish", "Many fish swim down rivers.", True),
    ]
    assert not no.passages and yes.group == no.group == "strategyqa:Brenne"
    assert found.excluded.counts == {"no gold answer": 1}
    assert not opened("strategyqa", "strategyqa.json").questions[0].passages


def test_strategyqa_paragraphs_that_do_not_fit(tmp_path):
    other = tmp_path / "paragraphs.json"
    for text, named in (("{}", "'Brenne-1'"), ("[1]", "questions.paragraphs"), ("{", "questions.paragraphs")):
        other.write_text(text)
        with fails(None, named):
            opened("strategyqa", "strategyqa.json", paragraphs=str(other))


def test_iirc_answer_types():
    found = opened("iirc", "iirc.json")
    asked = by_id(found)
    assert {id: q.answers for id, q in asked.items()} == {
        "q_1": ("1204",), "q_2": ("746 years", "746"), "q_3": ("yes",),
        "q_5": ("the Brenne, the Orle", "the Brenne and the Orle"),
    }  # fmt: skip
    assert found.excluded.counts == {"answer type none": 2} and found.record["read"] == 6
    assert ("record 1 question 4", "answer type none: q_4") in found.excluded.listed
    assert found.lines()[0] == "2 questions were left out: 2 answer type none"
    assert {q.group for q in asked.values()} == {"iirc:p_7"} and len({q.split for q in asked.values()}) == 1
    assert by_id(opened("iirc", "iirc.json", spans="any"))["q_5"].answers == ("the Brenne", "the Orle")
    with fails("unknown-choice", "spans=one"):
        opened("iirc", "iirc.json", spans="one")
    # Passages are the one asked on and the snippets needed.
    text = "Per Holm studied in Aldenburg and joined the Navy."
    assert passages(asked["q_1"]) == [
        ("main", "Per Holm", text, True),
        ("1", "Aldenburg", "Aldenburg was founded in 1204", True),
    ]
    assert passages(asked["q_2"]) == [("main", "Per Holm", text, False)]


@pytest.mark.parametrize(("name", "file"), [(n, f) for n, files in OFFICIAL.items() for f in files])
def test_a_compressed_file_and_other_whitespace_give_the_same(tmp_path, name, file):
    plain = opened(name, file)
    packed = tmp_path / f"{file}.gz"
    text = Path(path(file)).read_text()
    if not file.endswith(".jsonl"):
        text = json.dumps(json.loads(text), ensure_ascii=False)  # on one line
    with gzip.open(packed, "wt") as handle:
        handle.write(text)
    assert open_questions(name, path=str(packed)).questions == plain.questions


def test_one_s_own_file_keeps_its_splits_or_has_them_dealt(tmp_path):
    sides = ["dev", "train", "test", "valid", ""]
    asked = [{"id": i, "question": f"Who is {i}?", "answers": [f"x{i}"]} for i in range(5)]
    records = [{**record, "split": side} for record, side in zip(asked, sides, strict=True)]
    file = write_lines(tmp_path / "q.jsonl", records)
    kept = [q.split for q in open_questions(file).questions]
    assert kept[:4] == ["validation", "train", "test", "validation"] and kept[4]
    alone = write_lines(tmp_path / "dev.jsonl", [{**r, "split": "dev"} for r in records])
    with fails("empty", "test", "5 validation", kind=EmptySplitError):
        open_questions(alone, split="test")
    dealt = open_questions("file", path=alone, splits="deal").questions
    assert {q.split for q in dealt} == {"train", "validation", "test"}
    with fails("unknown-choice", "splits=mine"):
        open_questions("file", path=alone, splits="mine")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answers": [""]}, "answers holds an empty string"),
        ({"answers": "x"}, "answers must be a list of strings, found 'x'"),
        ({"answers": [1]}, "answers must be a list of strings"),
        ({"split": "holdout"}, "split must be train, validation or test, found 'holdout'"),
        ({"passages": {"title": "x"}}, "passages must be a list of objects"),
        ({"passages": [{"title": "T"}]}, "no 'text'"),
        ({"passages": [{"title": "T", "text": "x", "is_gold": "yes"}]}, "is_gold must be true or false"),
        ({"rationale": 3}, "rationale must be a string"),
        ({"id": None}, "id must be a string or a number"),
        ({"id": {}}, "id must be a string or a number"),
        ({"question": 7}, "question must be a non-empty string, found 7"),
    ],
)
def test_wrong_types_of_one_s_own_file_are_named_or_skipped(tmp_path, change, reason):
    good = {"id": "a", "question": "Who?", "answers": ["x"]}
    file = write_lines(tmp_path / "q.jsonl", [good, {**good, "id": "b", **change}])
    with fails("bad-line", f"q.jsonl line 2: {reason}"):
        open_questions(file)
    found = open_questions(file, on_bad_line="skip")
    assert [q.id for q in found.questions] == ["a"] and found.excluded.counts == {"malformed": 1}
    ((where, why),) = found.excluded.listed
    assert where == "line 2" and reason.partition(",")[0] in why


@pytest.mark.parametrize(
    "line",
    [
        '{"id": 1, "question": "x"', '{"question": "x"}', '{"id": 1}', '{"id": 1, "question": ""}', '["x"]',
        '{"id": "a", "question": "x"}',
    ],
    ids=["cut", "no id", "no question", "empty", "no object", "repeated id"],
)  # fmt: skip
def test_a_malformed_line_is_named_or_skipped(tmp_path, caplog, line):
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"id": "a", "question": "Who?"}) + "\n\n" + line + "\n")
    with fails("bad-line", f"{file} line 3: "):
        load_questions(str(file))
    assert len(load_questions(str(file), on_bad_line="skip")) == 1 and "line 3" in caplog.text


def test_groups_are_dealt_in_exact_shares(tmp_path):
    lines = [{"id": f"q{i}", "question": f"Who is {i}?", "group": f"g{i // 2}"} for i in range(200)]
    loaded = load_questions(write_lines(tmp_path / "q.jsonl", lines))
    assert [q.id for q in loaded] == [line["id"] for line in lines]
    sides = dict((q.group, q.split) for q in loaded)
    assert Counter(sides.values()) == {"train": 60, "validation": 15, "test": 25}


@pytest.mark.parametrize("field", ["id", "dataset", "group"])
@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\x9bb", "a\u202eb", "a\u2028b"])
def test_a_name_that_steers_a_terminal_is_a_malformed_line(tmp_path, caplog, field, name):
    good = {"id": "ünï cödé|`1`", "question": "Who\x1b[2J?\nAnd why?", "dataset": "a b", "group": "g"}
    bad = {**good, "id": "2", field: name}
    target = write_lines(tmp_path / "q.jsonl", [good, bad])
    with fails("bad-line", f"line 2: {field} must be") as told:
        load_questions(str(target))
    assert str(told.value).isprintable()
    kept = load_questions(str(target), on_bad_line="skip")
    assert [(q.id, q.question) for q in kept] == [(good["id"], good["question"])]
    assert caplog.text.replace("\n", "").isprintable()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "a link to a device"])
def test_what_is_no_file_is_one_sentence_at_once(tmp_path, kind):
    target = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    elif kind == "device":
        target = Path("/dev/zero")
    else:
        target.symlink_to("/dev/zero")
    twowiki = path("twowiki.json")
    for code, read in [
        ("no-file", lambda: load_questions(str(target))),
        ("no-file", lambda: opened("nq", target)),
        ("no-file", lambda: opened("2wikimultihopqa", twowiki, aliases=str(target))),
        ("no-file", lambda: load_corpus(target)),
        ("no-file", lambda: open_articles(str(target))),
        ("bad-file", lambda: load_aliases(str(target))),
        ("bad-file", lambda: load_vectors(str(target))),
    ]:
        with fails(code, target):
            read()


def test_a_link_to_a_file_is_read_like_it(tmp_path):
    (tmp_path / "aliases.jsonl").write_text('["Bombay", "Mumbai"]\n')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "aliases.jsonl")
    assert load_aliases(str(tmp_path / "link.jsonl")).same("Bombay", "Mumbai")
    (tmp_path / "q.jsonl").symlink_to(write_lines(tmp_path / "real.jsonl", [{"id": 1, "question": "Who?"}]))
    assert [q.id for q in load_questions(str(tmp_path / "q.jsonl"))] == ["1"]


def test_an_answer_of_which_normalisation_leaves_nothing_accepts_no_silence(tmp_path):
    records = [
        {"id": "a", "question": "Which band?", "answers": ["The The", "The"]},
        {"id": "b", "question": "Which vitamin?", "answers": ["A", "vitamin A"]},
        {"id": "c", "question": "Nobody knows?", "answers": []},
    ]
    found = open_questions(write_lines(tmp_path / "q.jsonl", records))
    assert {q.id: q.answers for q in found.questions} == {"b": ("vitamin A",), "c": ()}
    assert found.excluded.listed == [("line 1", "nothing left of the gold answer once normalised: The The")]


@pytest.mark.parametrize("whole", [False, True])
def test_limits_of_single_splits_give_what_each_split_gives_alone(tmp_path, whole):
    numbers = range(200)
    file = nq_file(tmp_path / "nq.jsonl", numbers)
    name, options = "nq", {"path": file}
    if whole:
        lines = [{"id": f"q{i}", "question": f"who is number {i}", "answers": [str(i)]} for i in numbers]
        name, options = write_lines(tmp_path / "own.jsonl", lines), {}
    found = open_questions(name, limit={"validation": None, "train": 30}, **options)
    parts = (("train", 30), ("validation", None))
    alone = [open_questions(name, split=s, limit=n, **options) for s, n in parts]
    assert found.questions == [q for part in alone for q in part.questions]
    assert Counter(q.split for q in found.questions) == {"train": 30, "validation": len(alone[1].questions)}
    assert found.record["limit"] == {"validation": None, "train": 30} and found.record["dealt"] == 200
    assert found.record["available"] == sum(part.record["available"] for part in alone)
    more = open_questions(name, limit={"train": 150}, **options)
    assert "limit.train=150 is more" in more.notes[0]


def test_limits_of_single_splits_that_cannot_be_met(tmp_path):
    rows = [{"id": i, "question": f"Who is {i}?", "answers": [f"x{i}"], "split": "train"} for i in range(6)]
    file = write_lines(tmp_path / "q.jsonl", rows)
    with fails("empty", "test", "6 train", kind=EmptySplitError):
        open_questions(file, limit={"train": 2, "test": None})
    for limit, named in (
        ({"train": 0}, "limit.train=0"), ({"dev": 1}, "limit.dev"), ({}, "train, validation, test"),
    ):  # fmt: skip
        with fails("bad-value", named):
            open_questions(file, limit=limit)
    with fails("conflict", "split=train"):
        open_questions(file, limit={"train": 2}, split="train")
    write_lines(tmp_path / "q.jsonl", [*rows, {**rows[0], "id": "x", "answers": ["the"]}])
    with fails("bad-value", "limit.train=7"):
        open_questions(file, limit={"train": 7})


def test_a_set_without_splits_can_be_left_whole(tmp_path):
    rows = [{"id": i, "question": f"Who is {i}?", "answers": [f"x{i}"]} for i in range(20)]
    file = write_lines(tmp_path / "q.jsonl", rows)
    found = open_questions(file, split="test", deal_splits=False)
    assert len(found.questions) == 20 and found.record["dealt"] == 0
    assert len(open_questions(file, split="test").questions) == 5
    stream = nq_file(tmp_path / "nq.jsonl", range(20))
    found = open_questions("nq", path=stream, split="test", deal_splits=False)
    assert len(found.questions) == 20 and found.record["dealt"] == 0
    with fails("empty", "train", kind=EmptySplitError):
        open_questions(file, split="train", deal_splits=False)
    some = write_lines(tmp_path / "some.jsonl", [{**rows[0], "split": "test"}, *rows[1:]])
    dealt = open_questions(some, deal_splits=False)  # the others are dealt as ever
    assert dealt.questions == open_questions(some).questions and dealt.record["dealt"] == 19


def nq_file(target, numbers):
    return write_lines(target, [{"question": f"who is number {i}", "answer": [str(i)]} for i in numbers])


def test_a_draw_is_seeded_nested_and_the_same_in_any_order(tmp_path):
    file = nq_file(tmp_path / "a.jsonl", range(400))
    ten, forty = (open_questions("nq", path=file, limit=n, seed=3).questions for n in (10, 40))
    assert len(ten) == 10 and len(forty) == 40 and forty[:10] == ten
    assert [q.id for q in open_questions("nq", path=file, limit=10, seed=4).questions] != [q.id for q in ten]
    turned = nq_file(tmp_path / "b.jsonl", reversed(range(400)))
    assert open_questions("nq", path=turned, limit=10, seed=3).questions == ten
    everything = open_questions("nq", path=file, seed=3).questions
    assert [q.answers[0] for q in everything] == [*map(str, range(400))]  # without a limit as in the file
    other = open_questions("nq", path=turned, seed=3).questions
    assert {q.id: q.split for q in everything} == {q.id: q.split for q in other}


def test_splits_have_their_shares_and_stay_when_the_file_grows(tmp_path):
    few, many = (nq_file(tmp_path / f"{n}.jsonl", range(n)) for n in (300, 3000))
    small = {q.id: q.split for q in open_questions("nq", path=few).questions}
    found = open_questions("nq", path=many)
    large = {q.id: q.split for q in found.questions}
    assert small.items() <= large.items()
    shares = {name: n / 3000 for name, n in Counter(large.values()).items()}
    assert shares == pytest.approx({"train": 0.6, "validation": 0.15, "test": 0.25}, abs=0.03)
    assert found.record["splits"] == dict(Counter(large.values()))
    test = open_questions("nq", path=many, split="test").questions
    assert {q.id for q in test} == {id for id, split in large.items() if split == "test"}
    assert {q.id: q.split for q in open_questions("nq", path=many, seed=1).questions} != large


def test_a_group_is_never_on_two_sides_of_a_split(tmp_path):
    base = records_of("iirc.json")[0]
    asked = [[{**q, "qid": f"{i}-{q['qid']}"} for q in base["questions"]] for i in range(200)]
    paragraphs = [{**base, "pid": f"p_{i}", "questions": questions} for i, questions in enumerate(asked)]
    questions = open_questions("iirc", path=write_lines(tmp_path / "dev.jsonl", paragraphs)).questions
    sides = {}
    for question in questions:
        sides.setdefault(question.group, set()).add(question.split)
    assert len(sides) == 200 and all(len(s) == 1 for s in sides.values())
    assert {s for side in sides.values() for s in side} == {"train", "validation", "test"}
    assert all(Splits(0)(g) in side for g, side in sides.items())


@pytest.mark.long
def test_a_draw_from_a_large_file_holds_only_what_it_draws(tmp_path):
    record = records_of("hotpot_distractor.json")[0]
    record["context"] += [[f"Page {i}", ["x" * 500]] for i in range(20)]
    file = tmp_path / "train.json"
    file.write_text(json.dumps([{**record, "_id": f"q{i}"} for i in range(2000)]))  # about 11 MB

    def peak(**options):
        tracemalloc.start()
        found = open_questions("hotpotqa", path=str(file), **options)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return len(found.questions), top

    (few, drawn), (most, held) = peak(limit=5), peak(limit=1000)
    assert (few, most) == (5, 1000)
    assert drawn < 3e6 < 10e6 < held


def test_what_was_asked_for_is_recorded(tmp_path):
    file = nq_file(tmp_path / "q.jsonl", range(50))
    found = open_questions("nq", path=file, limit=5, split="train", seed=7)
    record = found.record
    assert record["source"] == f"questions=nq questions.path={file}"
    assert (record["limit"], record["split"], record["seed"], record["used"]) == (5, "train", 7, 5)
    assert record["read"] == 50 and record["available"] == record["splits"]["train"] > 5
    json.dumps(record)
    again = open_questions("nq", path=file, limit=5, split="train", seed=7).record
    other = open_questions("nq", path=file, limit=5, split="train", seed=8).record
    assert again == record and other["digest"] != record["digest"]
    assert not found.lines()


def test_fewer_questions_because_some_were_left_out_is_an_error_with_both_numbers():
    assert len(opened("iirc", "iirc.json", limit=4).questions) == 4
    with fails("bad-value", "limit=5", "iirc.json"):
        opened("iirc", "iirc.json", limit=5)
    with fails("bad-value", "limit=4"):
        opened("iirc", "iirc.json", limit=6)


def test_a_limit_beyond_the_whole_set_takes_all_and_says_so(tmp_path, caplog):
    found = opened("iirc", "iirc.json", limit=7)
    assert len(found.questions) == 4
    assert found.lines()[0].endswith("iirc.json has 4 questions: all are used, limit=7 is more")
    file = write_lines(tmp_path / "q.jsonl", [{"id": 1, "question": "Who?", "answers": ["x"]}])
    assert load_questions(file, limit=1) and not caplog.text
    assert len(load_questions(file, limit=2)) == 1
    assert caplog.messages == [f"questions={file} has 1 question: all are used, limit=2 is more"]


def test_a_wrong_request_is_named_with_its_choices():
    for options, code, *named in (
        ({"limit": 0}, "bad-value", "limit=0"),
        ({"split": "dev"}, "unknown-choice", "split=dev", "train, validation, test"),
        ({"on_bad_line": "ignore"}, "unknown-choice", "on_bad_line=ignore"),
        ({"aliases": "x"}, "unknown-key", "questions.aliases", "path, hub"),
        ({"hub_split": "train"}, "conflict", "questions.hub_split=train", "questions.path="),
        ({"revision": "main"}, "conflict", "questions.revision=main"),
    ):
        with fails(code, *named):
            opened("nq", "nq_open.jsonl", **options)
    with fails("unknown-choice", "questions=hotpot", "hotpotqa"):
        open_questions("hotpot")
    with fails("missing-value", "questions.path"):
        open_questions("file")
    with fails("no-file", "x.jsonl"):
        open_questions("x.jsonl")
    with fails("missing-value", "questions=iirc", "questions.path=FILE", "questions.hub=ID"):
        open_questions("iirc")  # which has no default copy


def test_every_published_set_is_reachable_by_name():
    asked = "testbed hotpotqa 2wikimultihopqa nq triviaqa musique strategyqa iirc completion file"
    assert set(DATASETS) == set(asked.split())
    for name in DATASETS:
        made = source_class(name)
        assert made.name == name and {"path", "hub", "hub_split"} <= {f.name for f in fields(made)}


PAIRS = [(n, f, o) for n, files in OFFICIAL.items() for f in files for o in [*OFFICIAL, "file"] if o != n]


@pytest.mark.parametrize(("name", "file", "other"), PAIRS)
def test_a_file_of_another_dataset_says_whose_it_looks_like(name, file, other):
    dpr = file == "dpr_nq.json"
    expected = "nq_dev_psgs_w100" if dpr and other == "triviaqa" else f"questions={name}"
    for on_bad_line in ("error", "skip"):  # the whole file is wrong, not a line of it
        with fails("mismatch", f"questions={other}" if other != "file" else file, expected):
            opened(other, file, on_bad_line=on_bad_line)


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_file_of_no_known_layout_names_the_fields_it_lacks(tmp_path, name):
    file = write_lines(tmp_path / "x.jsonl", [{"prompt": "x", "label": 1}])
    with fails("bad-line", "x.jsonl", "line 1"):
        open_questions(name, path=file)
    with fails("empty"):
        open_questions(name, path=file, on_bad_line="skip")


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize("content", ["", "\n", "[]"])
def test_an_empty_file(tmp_path, name, content):
    (tmp_path / "x.json").write_text(content)
    with fails("empty", "x.json"):
        open_questions(name, path=str(tmp_path / "x.json"))


@pytest.mark.parametrize("file", ["hotpot_distractor.json", "triviaqa.json", "iirc.json"])
def test_a_file_that_is_cut_short_says_where(tmp_path, file):
    (name,) = (n for n, files in OFFICIAL.items() if file in files)
    text = Path(path(file)).read_text()
    cut = tmp_path / file
    second = {"hotpotqa": "5f00aa02", "triviaqa": "tc_2", "iirc": "p_8"}[name]
    cut.write_text(text[: text.index(second)])
    with fails("bad-line", "record 2", file):
        open_questions(name, path=str(cut))
    found = open_questions(name, path=str(cut), on_bad_line="skip")
    assert found.questions and found.questions[0] == opened(name, file).questions[0]
    assert any("breaks off at record 2: nothing behind it was read" in line for line in found.lines())
    with fails("bad-value", "limit=1000"):  # nobody knows how many there were
        open_questions(name, path=str(cut), on_bad_line="skip", limit=1000)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "9" * 5000 + ".5", "1e999"])
def test_a_number_larger_than_any_is_no_crash_of_the_parser(tmp_path: Path, number: str) -> None:
    """ijson's own crashes at whole numbers of more digits than Python turns into an integer."""
    file = tmp_path / "hotpot_distractor.json"
    text = Path(path("hotpot_distractor.json")).read_text()
    file.write_text(text.replace("{", f'{{"n": {number}, ', 1))
    with fails("bad-line", "hotpot_distractor.json", "record 1"):
        open_questions("hotpotqa", path=str(file))


@pytest.mark.parametrize("bracket", ["[", "[ {"])
def test_a_file_of_brackets_is_told_before_it_fills_the_memory(tmp_path: Path, bracket: str) -> None:
    file = tmp_path / "q.json"
    file.write_text(bracket * 100_000)
    with fails("bad-line", "line 1"):
        load_questions(str(file))


def test_malformed_json_in_an_array_and_a_damaged_archive(tmp_path):
    file = tmp_path / "dev.json"
    file.write_text(Path(path("hotpot_distractor.json")).read_text().replace('"yes"', "yes"))
    with fails("bad-line", "dev.json", "record 2"):
        open_questions("hotpotqa", path=str(file))
    for half in (b"\xff", b"\xed\xa0\x80", b"\\udc00"):
        file.write_bytes(b'[{"_id": "' + half + b'"}]')
        with fails("bad-line", "record 1"):
            open_questions("hotpotqa", path=str(file))
    packed = tmp_path / "dev.json.gz"
    for damaged in (gzip.compress(Path(path("hotpot_distractor.json")).read_bytes())[:-20], b"plain"):
        packed.write_bytes(damaged)
        with fails("damaged"):
            open_questions("hotpotqa", path=str(packed))


def answered(answer):
    """IIRC's questions: one, with this answer."""
    return {"questions": [{"question": "Who?", "answer": answer}]}


WRONG = [
    ("hotpotqa", "hotpot_distractor.json", {"context": "x"}, "context must be a list"),
    ("hotpotqa", "hotpot_distractor.json", {"context": [["T", "x"]]}, "context must be a list of"),
    ("hotpotqa", "hotpot_distractor.json", {"context": [["T"]]}, "context must be a list of"),
    ("hotpotqa", "hotpot_distractor.json", {"supporting_facts": [[1, 2]]}, "supporting_facts must be a list"),
    ("hotpotqa", "hotpot_distractor.json", {"answer": ["x"]}, "answer must be a string"),
    ("hotpotqa", "hotpot_distractor.json", {"question": ""}, "question must be a non-empty string"),
    ("hotpotqa", "hotpot_distractor.json", {"_id": None}, "_id must be a string or a number"),
    ("2wikimultihopqa", "twowiki.json", {"evidences": [[1]]}, "evidences must be a list"),
    ("nq", "nq_open.jsonl", {"answer": "x"}, "answer must be a list of strings"),
    ("nq", "dpr_nq.json", {"positive_ctxs": "x"}, "positive_ctxs must be a list of objects"),
    ("nq", "dpr_nq.json", {"positive_ctxs": [{"text": 1}]}, "text must be a string"),
    ("triviaqa", "triviaqa.json", {"Answer": "x"}, "the answer must be an object"),
    ("triviaqa", "triviaqa.json", {"Answer": {"Value": "x", "Aliases": "y"}}, "Aliases must be a list"),
    ("musique", "musique_full.jsonl", {"answerable": "no"}, "answerable must be true or false"),
    ("musique", "musique_full.jsonl", {"paragraphs": [1]}, "paragraphs must be a list of objects"),
    ("musique", "musique_full.jsonl", {"paragraphs": [{"is_supporting": 1}]}, "is_supporting must be"),
    ("strategyqa", "strategyqa.json", {"answer": "yes"}, "answer must be true or false, found 'yes'"),
    ("strategyqa", "strategyqa.json", {"facts": [1]}, "facts must be a list of strings"),
    ("iirc", "iirc.json", {"text": ""}, "text must be a non-empty string"),
    ("iirc", "iirc.json", answered(3), "answer must be an object"),
    ("iirc", "iirc.json", answered({"type": "date"}), "the answer's type must be span, value"),
    ("iirc", "iirc.json", answered({"type": "value"}), "no 'answer_value'"),
    ("iirc", "iirc.json", answered({"type": "binary", "answer_value": "si"}), "answer_value must be"),
]


@pytest.mark.parametrize(("name", "file", "change", "reason"), WRONG)
def test_wrong_types_are_named_with_their_record_or_skipped(tmp_path, name, file, change, reason):
    good = records_of(file)[0]
    key = {"hotpotqa": "_id", "2wikimultihopqa": "_id", "nq": "question", "triviaqa": "QuestionId",
           "musique": "id", "strategyqa": "qid", "iirc": "pid"}[name]  # fmt: skip
    other = write_lines(tmp_path / "x.jsonl", [good, {**good, key: "another", **change}])
    with fails("bad-line", f"x.jsonl line 2: {reason}"):
        open_questions(name, path=other)
    found = open_questions(name, path=other, on_bad_line="skip")
    assert found.questions and found.excluded.counts["malformed"] == 1
    assert any(where == "line 2" for where, _ in found.excluded.listed)


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        ("hotpotqa", "hotpot_distractor.json", {"answer": " "}),
        ("2wikimultihopqa", "twowiki.json", {"answer": ""}),
        ("nq", "nq_open.jsonl", {"answer": []}),
        ("nq", "nq_open.jsonl", {"answer": ["", " "]}),
        ("nq", "dpr_nq.json", {"answers": []}),
        ("triviaqa", "triviaqa.json", {"Answer": {"Value": "", "Aliases": []}}),
        ("musique", "musique_full.jsonl", {"answer": ""}),
        ("strategyqa", "strategyqa.json", {"answer": None}),
        ("iirc", "iirc.json", answered({"type": "span", "answer_spans": []})),
    ],
)
def test_an_empty_gold_answer_is_left_out_and_counted(tmp_path, name, file, change):
    good = records_of(file)[0]
    change = change if name != "musique" else {**change, "answer_aliases": []}
    other = write_lines(tmp_path / "x.jsonl", [{**good, **change}])
    with fails("empty"):
        open_questions(name, path=other)


def test_repeated_ids_of_published_files_are_left_out_and_listed():
    found = opened("nq", "nq_open.jsonl")
    assert found.excluded.counts == {"repeated id": 1} and len(found.questions) == 2
    ((where, reason),) = found.excluded.listed
    assert where == "line 3" and reason.endswith("is already on line 1")
    assert found.questions[0].answers == ("Ulla Berg", "U. Berg")  # the first one stays


def test_the_report_counts_by_kind_and_lists_the_first(tmp_path):
    file = write_lines(tmp_path / "q.jsonl", [
        {"question": "who", "answer": ["x"]}, *({"question": f"who {i}", "answer": []} for i in range(1500)),
    ])  # fmt: skip
    excluded = open_questions("nq", path=file).excluded
    lines = excluded.lines(most=2)
    assert lines[0] == "1500 questions were left out: 1500 no gold answer"
    assert lines[1:] == ["  line 2: no gold answer", "  line 3: no gold answer", "  and 1498 more"]
    assert len(excluded.listed) == 1000


#: Rows as the copies on the Hub have them.
HUB = {
    "hotpotqa": {
        "id": "h1", "question": "Where?", "answer": "Marl", "type": "bridge", "level": "easy",
        "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 0]},
        "context": {"title": ["A", "B", "C"], "sentences": [["A is.", " It was."], ["B is."], ["C is."]]},
    },
    "2wikimultihopqa": {
        "id": "w1", "question": "Where?", "answer": "Sweden", "type": "compositional",
        "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 0]},
        "context": {"title": ["A", "B", "C"], "sentences": [["A is.", "It was."], ["B is."], ["C is."]]},
        "evidences": [["A", "country", "Sweden"]],
    },
    "nq": {"question": PAINTER, "answer": ["Ulla Berg", "U. Berg"]},
    "triviaqa": {
        "question": "Who?", "question_id": "tc_1", "question_source": "",
        "answer": {"aliases": ["Ulla Berg"], "normalized_aliases": ["ulla berg"], "value": "Berg"},
    },
    "musique": records_of("musique_full.jsonl")[0],
    "strategyqa": {"qid": "s1", "term": "Brenne", "question": "Is it?", "answer": True, "facts": "It is."},
    "iirc": records_of("iirc.json")[0],
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    import datasets

    datasets.disable_progress_bars()


def copy_of(folder, name, rows, split="validation"):
    """A dataset that ``datasets`` reads from a folder, and the options that name it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")
    return {"hub": str(folder), "config": None, "hub_split": split}


@pytest.mark.parametrize("name", HUB)
def test_a_copy_on_the_hub_is_streamed(tmp_path, name):
    found = open_questions(name, **copy_of(tmp_path / "copy", name, [HUB[name]]))
    first = found.questions[0]
    answers = {
        "hotpotqa": ("Marl",), "2wikimultihopqa": ("Sweden",), "nq": ("Ulla Berg", "U. Berg"),
        "triviaqa": ("Berg", "Ulla Berg", "ulla berg"), "musique": ("Malmo", "Malmö", "City of Malmö"),
        "strategyqa": ("yes",), "iirc": ("1204",),
    }  # fmt: skip
    assert first.answers == answers[name] and first.dataset == name and first.split
    if name in ("hotpotqa", "2wikimultihopqa"):
        assert passages(first) == [
            ("0", "A", "A is. It was.", True), ("1", "B", "B is.", True), ("2", "C", "C is.", False),
        ]  # fmt: skip
    if name == "nq":  # as in the official file
        assert first == opened("nq", "nq_open.jsonl").questions[0]
    if name == "strategyqa":
        assert first.rationale == "It is."


@pytest.mark.parametrize("name", [n for n in OFFICIAL if n != "iirc"])
def test_the_default_copies_are_named_and_can_be_replaced(monkeypatch, name):
    import datasets

    calls = []

    def load(id, **options):
        calls.append((id, options))
        return datasets.IterableDataset.from_generator(lambda: iter([HUB[name]]))

    monkeypatch.setattr(datasets, "load_dataset", load)
    open_questions(name)
    open_questions(name, hub="a/b", config="c", hub_split="d", revision="e")
    (default, options), replaced = calls[0], calls[-1]  # MuSiQue is read twice
    assert default.count("/") == 1 and options["streaming"] and options["revision"] is None
    assert options["split"] in ("validation", "test")
    expected = {"name": "c", "split": "d", "revision": "e", "streaming": True}
    assert replaced == ("a/b", expected)


def test_columns_are_checked_before_a_row_is_read(tmp_path, monkeypatch):
    import datasets

    with fails("mismatch", "'answer'", "'question'"):
        open_questions("nq", **copy_of(tmp_path / "copy", "nq", [{"prompt": "x", "completion": "y"}]))

    class Stream:
        column_names: ClassVar = ["prompt"]

        def __iter__(self):
            raise AssertionError("a row was asked for")

    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **o: Stream())
    with fails("mismatch", "'answer'", "'question'"):
        open_questions("nq")


def test_a_set_of_one_s_own_may_lie_on_the_hub(tmp_path):
    passage = {"title": "T", "text": "x", "is_gold": True}
    row = {"id": "a", "question": "Who?", "answers": ["x"], "passages": [passage]}
    found = open_questions("file", **copy_of(tmp_path / "copy", "file", [row]))
    (question,) = found.questions
    assert (question.id, question.answers) == ("a", ("x",)) and question.passages[0].is_gold
    assert "hub dataset" in found.record["source"]


def test_what_a_set_is_typed_as_opens_it_again():
    source = source_class("hotpotqa")(path="dev.json")
    assert source.typed == "questions=hotpotqa questions.path=dev.json" and source.files == ("dev.json",)
    both = source_class("2wikimultihopqa")(path="dev.json", aliases="ids.json")
    assert both.typed.endswith("questions.path=dev.json questions.aliases=ids.json")
    assert both.files == ("dev.json", "ids.json")
    assert source_class("file")(path="q.jsonl").typed == "questions=q.jsonl"
    assert source_class("nq")(revision="abc").typed == "questions=nq questions.revision=abc"
    assert source_class("testbed")().typed == "questions=testbed"
    with fails("unknown-key", "questions=testbed", "questions.path"):
        open_questions("testbed", path="x.jsonl")


def test_a_hub_that_cannot_be_reached_and_a_stream_that_breaks_off(tmp_path, monkeypatch):
    import datasets

    with fails("no-file"):
        open_questions("nq", hub=str(tmp_path / "nowhere"))
    folder = copy_of(tmp_path / "copy", "nq", [HUB["nq"]])
    with fails("bad-value"):
        open_questions("nq", **{**folder, "hub_split": "train"})

    def unreachable(*args, **options):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with fails("network", "questions.path", kind=RunError):
        open_questions("nq")

    def rows():
        yield HUB["nq"]
        raise OSError("connection lost")

    broken = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **o: broken)
    with fails("network", kind=RunError):
        open_questions("nq", limit=1)


@dataclass(frozen=True, kw_only=True)
class Riddles(QuestionSource):
    """A set that is not ours: one class, nothing registered."""

    shout: bool = False

    name: ClassVar[str] = "riddles"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("Riddles", "riddle solution"),)

    def question(self, record):
        if not record["solution"]:
            raise UnusableError("no gold answer")
        text = record["riddle"].upper() if self.shout else record["riddle"]
        return Question(str(record["n"]), text, (record["solution"],))


def test_a_class_of_one_s_own_is_read_like_ours(tmp_path):
    rows = [{"n": i, "riddle": f"what is {i}", "solution": "x" if i else ""} for i in range(9)]
    source = Riddles(path=write_lines(tmp_path / "r.jsonl", rows), shout=True)
    found = open_questions(source, limit=3)
    assert len(found.questions) == 3 and all(q.question.isupper() and q.split for q in found.questions)
    assert found.excluded.counts == {"no gold answer": 1}
    assert open_questions(source, shout=False).questions[0].question == "what is 1"
    with fails("unknown-key"):
        open_questions(source, whisper=True)


@pytest.mark.skipif(
    not os.environ.get("PROBERS_WIKI_ARTICLES"), reason="PROBERS_WIKI_ARTICLES names no folder"
)
@pytest.mark.parametrize(
    ("name", "number", "gold"),
    [("hotpotqa", 329, 2), ("2wikimultihopqa", 184, 2), ("nq", 500, 1), ("strategyqa", 500, 0),
     ("iirc", 20, 1)],
)  # fmt: skip
def test_the_real_samples_load_whole(name, number, gold):
    file = Path(os.environ["PROBERS_WIKI_ARTICLES"]) / "qa" / f"{name}.jsonl"
    if not file.is_file():
        pytest.skip(f"{file} is absent")
    found = open_questions(str(file))
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(found.questions) == number == len(records) and not found.lines()
    for question, record in zip(found.questions, records, strict=True):
        assert (question.id, question.question) == (str(record["id"]), record["question"].strip())
        assert question.answers == tuple(dict.fromkeys(a.strip() for a in record["answers"]))
        given = [(p["title"].strip(), p["text"].strip(), p["is_gold"]) for p in record["passages"]]
        assert [(p.title, p.text, p.is_gold) for p in question.passages] == given
        assert all(map(normalize_answer, question.answers)) and question.dataset == name
    having = [sum(p.is_gold for p in q.passages) for q in found.questions]
    assert sum(n >= gold for n in having) / number > 0.95


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("answers", ["Wodale", "The Wodale"]),
        ("golden_answers", ["Wodale", "The Wodale"]),
        ("possible_answers", '["Wodale", "The Wodale"]'),
    ],
)
def test_answers_are_read_under_the_names_that_others_give_them(tmp_path, field, value):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"id": "1", "question": "Where?", field: value, "prop": "born"}) + "\n")
    (question,) = load_questions(str(path))
    assert question.answers == ("Wodale", "The Wodale")


def test_a_file_whose_answers_have_another_name_stops_and_names_it(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"id": "1", "question": "Where?", "gold": "Wodale"}) + "\n")
    with fails("labels", "gold"):
        load_questions(str(path))
    path.write_text(json.dumps({"id": "1", "question": "Where?"}) + "\n")
    assert load_questions(str(path))[0].answers == ()


@pytest.mark.parametrize("array", [False, True])
def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path, array):
    records = [{"id": str(i), "question": "Where?", "answers": ["There"]} for i in range(2)]
    text = json.dumps(records) if array else "\n".join(map(json.dumps, records))
    path = tmp_path / "q.jsonl"
    path.write_text(text, encoding="utf-8-sig")
    assert [question.id for question in load_questions(str(path))] == ["0", "1"]


def test_musique_groups_questions_that_share_a_single_question(tmp_path):
    record = records_of("musique_full.jsonl")[0]
    ids = ["2hop__1_2", "3hop1__2_3_4", "2hop__5_6", "2hop__4_7", "plain"]
    path = tmp_path / "musique.jsonl"
    groups = []
    for order in (ids, ids[::-1]):
        path.write_text("".join(json.dumps(record | {"id": id}) + "\n" for id in order))
        groups.append({q.id: q.group for q in load_questions(MuSiQue(path=str(path)))})
    assert groups[0] == groups[1]
    assert groups[0]["2hop__1_2"] == groups[0]["3hop1__2_3_4"] == groups[0]["2hop__4_7"]
    assert len(set(groups[0].values())) == 3


def test_evidences_of_2wiki_are_read_in_every_layout():
    record = records_of("twowiki.json")[0]
    triples = record["evidences"]
    assert triples
    parts = dict(zip(("fact", "relation", "entity"), map(list, zip(*triples, strict=True)), strict=True))
    each = [dict(zip(("fact", "relation", "entity"), triple, strict=True)) for triple in triples]
    source = TwoWikiMultihopQA()
    told = {source.question(record | {"evidences": given}).rationale for given in (triples, parts, each)}
    assert len(told) == 1 and "" not in told
