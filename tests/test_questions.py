"""Question sets: official layouts, copies on the Hub, draws and splits, and files that are something else."""

import csv
import gzip
import io
import json
from collections import Counter
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock, Mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from helpers.artefacts import write_lines
from helpers.refusals import fails

from probers.data import load_questions
from probers.data.questions import EmptySplitError, open_questions
from probers.data.splits import Splits
from probers.types import RunError

FILES = Path(__file__).parent / "data" / "questions"
PAINTER = "who painted the ceiling of the hall in aldenburg"

#: Dataset -> the field of a record's id, and its official files here.
OFFICIAL = {
    "hotpotqa": ("_id", "hotpot_distractor.json", "hotpot_fullwiki.json"),
    "2wikimultihopqa": ("_id", "twowiki.json"), "nq": ("question", "nq_open.jsonl", "dpr_nq.json"),
    "triviaqa": ("QuestionId", "triviaqa.json"), "musique": ("id", "musique_full.jsonl"),
    "strategyqa": ("qid", "strategyqa.json"), "iirc": ("pid", "iirc.json"),
    "squad": ("title", "squad_v1.json", "squad_v2.json"), "popqa": ("id", "popqa.tsv"),
    "webquestions": ("utterance", "webquestions.json"), "bamboogle": ("Question", "bamboogle.csv"),
    "simpleqa": ("problem", "simpleqa.csv"), "msmarco": ("query_id", "msmarco.json"),
    "beir": ("_id", "beir_queries.jsonl"), "ramdocs": ("question", "ramdocs.jsonl"),
    "adarague": ("qid", "adarague.csv"),
}  # fmt: skip
NAMES = {file: name for name, (_, *files) in OFFICIAL.items() for file in files}


def path(file):
    return str(FILES / file)


def opened(file, **options):
    return open_questions(NAMES[file], path=path(file), **options)


def by_id(loaded):
    return {q.id: q for q in loaded.questions}


def passages(question):
    return [(p.id, p.title, p.text, p.is_gold) for p in question.passages]


def records_of(file):
    text = (FILES / file).read_text()
    if file.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    if not file.endswith(".json"):
        return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if file[-3] == "t" else ","))
    loaded = json.loads(text)
    if isinstance(loaded, list):
        return loaded
    if file == "msmarco.json":
        return [{name: cells[key] for name, cells in loaded.items()} for key in loaded["query"]]
    return loaded["Data"] if "Data" in loaded else loaded["data"]


def asked(n, **fields):
    """Records of one's own file."""
    return [{"id": f"q{i}", "question": f"Who is {i}?", "answers": [f"x{i}"], **fields} for i in range(n)]


def nq_file(target, numbers):
    return write_lines(target, [{"question": f"who is number {i}", "answer": [str(i)]} for i in numbers])


def test_hotpotqa_is_told_as_fullwiki_by_gold_paragraphs_that_are_missing():
    loaded = opened("hotpot_distractor.json")
    first, second = loaded.questions
    assert loaded.record["layout"] == "distractor" and loaded.record["read"] == loaded.record["used"] == 2
    assert (first.id, first.group, first.answers) == ("5f00aa01", first.id, ("Marl",))
    assert first.question == "Into which sea does the river that crosses Aldenburg flow?"
    assert passages(first) == [
        ("0", "Aldenburg", "Aldenburg is a town of 4,000. The Brenne crosses it.", True),
        ("1", "Castor Hill", "Castor Hill is a hill. It is 212 metres high.", False),
        ("2", "Brenne (river)", "The Brenne is a river that ends in the Marl Sea.", True),
    ]
    assert second.answers == ("yes",) and all(p.is_gold for p in second.passages)
    loaded = opened("hotpot_fullwiki.json")
    titles = [(p.title, p.is_gold) for p in loaded.questions[0].passages]
    assert loaded.record["layout"] == "fullwiki" and titles == [("Aldenburg", True), ("Marl", False)]


def test_ramdocs_says_of_each_document_whether_it_is_right():
    first, second = opened("ramdocs.jsonl").questions
    assert first.answers == ("3,559", "3,600") and first.id.startswith("ramdocs-")
    assert [p.is_gold for p in first.passages] == [True, False, False]
    assert first.truth == {"documents": ["correct", "misinfo", "noise"], "wrong_answers": ["10,000"]}
    assert passages(second) == [("0", "", "Belmar lies on the Lisk.", True)]


def test_adarague_says_what_one_retrieval_did_to_the_answer(tmp_path):
    loaded = by_id(opened("adarague.csv"))
    assert {id: (q.truth["wrong"], q.truth["helps"]) for id, q in loaded.items()} == {
        "a1": (True, 1), "a2": (False, -1), "a3": (False, 0),
    }  # fmt: skip
    assert (loaded["a1"].truth["without"], loaded["a1"].truth["with"]) == ("Bert Veld", "It was Anna Veld.")
    assert loaded["a3"].answers == ("the hills", "hills")
    assert passages(loaded["a1"])[1] == ("1", "Osk", 'The Osk\'s source is "high" in the hills.', False)
    file, text = tmp_path / "adarague.csv", (FILES / "adarague.csv").read_text()
    file.write_text(text.replace("['the hills', 'hills']", "__import__('os').getcwd()"))
    with fails("bad-line", "line 6", "reference"):
        open_questions("adarague", path=str(file))


def test_2wikimultihopqa_with_and_without_aliases(tmp_path):
    plain = by_id(opened("twowiki.json"))
    assert [q.answers for q in plain.values()] == [("Sweden",), ("4 May 1920",), ("Low Tide",)]
    aliases = path("twowiki_id_aliases.json")
    others = by_id(opened("twowiki.json", aliases=aliases))
    assert others["c0ffee01"].answers == ("Sweden", "Kingdom of Sweden", "SE", "Swedish", "Swede")
    assert others["c0ffee02"].answers == ("4 May 1920",) and others["c0ffee03"].answers == ("Low Tide", "Ebb")
    first, second, third = plain.values()  # questions on the same articles are one group
    assert first.group == second.group != third.group and first.split == second.split
    assert passages(first) == [  # sentences of this set bring no spaces along
        ("0", "Low Tide", "Low Tide is a film of 1961. It was directed by Ada Lindqvist.", True),
        ("1", "High Tide", "High Tide is another film.", False),
        ("2", "Ada Lindqvist", "Ada Lindqvist was born in Sweden.", True),
    ]
    older = [{k: v for k, v in r.items() if k != "answer_id"} for r in records_of("twowiki.json")]
    with fails("mismatch", "questions.aliases"):  # they need the release with ids
        open_questions("2wikimultihopqa", path=write_lines(tmp_path / "dev.jsonl", older), aliases=aliases)


def test_nq_open_and_dpr_agree_on_ids_and_splits(tmp_path):
    plain, dpr = opened("nq_open.jsonl"), opened("dpr_nq.json")
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
    assert len(opened("dpr_nq.json", hard_negatives=0).questions[0].passages) == 1
    record = {**records_of("dpr_nq.json")[0], "dataset": "trivia_train"}
    file = write_lines(tmp_path / "trivia.jsonl", [record])
    (question,) = open_questions("triviaqa", path=file).questions
    assert question.dataset == "triviaqa" and question.id.startswith("triviaqa-")
    with fails("mismatch", "questions=nq"):
        open_questions("nq", path=file)


def test_triviaqa_keeps_every_answer_of_the_official_evaluation():
    loaded = opened("triviaqa.json")
    first, second = loaded.questions
    # "The" is dropped: once normalised it would accept an answer that was never given.
    assert first.answers == ("Ulla Berg", "Berg, Ulla", "ulla berg", "berg ulla", "Berg")
    assert (first.id, first.question) == ("tc_1", "Who painted the hall of Aldenburg?")
    assert second.answers == ("42",)
    assert list(loaded.excluded.listed) == [("record 3", "no gold answer")]


def test_musique_leaves_unanswerable_twins_out_or_wants_noanswer():
    loaded = opened("musique_full.jsonl")
    (question,) = loaded.questions
    assert question.answers == ("Malmo", "Malmö", "City of Malmö")
    gold = [(p.id, p.title, p.is_gold) for p in question.passages]
    assert gold == [("0", "Low Tide", True), ("1", "Moon", False), ("2", "Ada Lindqvist", True)]
    assert loaded.excluded.counts == {"unanswerable": 1}
    both = opened("musique_full.jsonl", unanswerable="noanswer").questions
    assert [q.answers for q in both] == [question.answers, ("noanswer",)]
    assert both[0].id != both[1].id and both[0].group == both[1].group and both[0].split == both[1].split


def test_musique_groups_questions_that_share_a_single_question(tmp_path):
    record = records_of("musique_full.jsonl")[0]
    ids = ["2hop__1_2", "3hop1__2_3_4", "2hop__5_6", "2hop__4_7", "plain"]
    file = write_lines(tmp_path / "musique.jsonl", [record | {"id": id} for id in ids])
    groups = {q.id: q.group for q in open_questions("musique", path=file).questions}
    assert len(set(groups.values())) == 3
    assert groups["2hop__1_2"] == groups["3hop1__2_3_4"] == groups["2hop__4_7"]


def test_strategyqa_answers_yes_or_no_and_takes_the_evidence_of_all_annotators(tmp_path):
    loaded = opened("strategyqa.json", paragraphs=path("strategyqa_paragraphs.json"))
    yes, no = loaded.questions
    assert (yes.answers, no.answers) == (("yes",), ("no",))
    assert passages(yes) == [
        ("Brenne-1", "Brenne", "The Brenne is a river that ends in the Marl Sea.", True),
        ("Fish-2", "Fish", "Many fish swim down rivers.", True),
    ]
    assert not no.passages and yes.group == no.group == "strategyqa:Brenne"
    assert loaded.excluded.counts == {"no gold answer": 1}
    assert not opened("strategyqa.json").questions[0].passages


def test_iirc_answer_types():
    loaded = opened("iirc.json")
    questions = by_id(loaded)
    assert {id: q.answers for id, q in questions.items()} == {
        "q_1": ("1204",), "q_2": ("746 years", "746"), "q_3": ("yes",),
        "q_5": ("the Brenne, the Orle", "the Brenne and the Orle"),
    }  # fmt: skip
    assert loaded.excluded.counts == {"answer type none": 2} and loaded.record["read"] == 6
    assert ("record 1 question 4", "answer type none: q_4") in loaded.excluded.listed
    assert {q.group for q in questions.values()} == {"iirc:p_7"}
    assert len({q.split for q in questions.values()}) == 1
    assert by_id(opened("iirc.json", spans="any"))["q_5"].answers == ("the Brenne", "the Orle")
    # Passages are the one asked on and the snippets needed.
    text = "Per Holm studied in Aldenburg and joined the Navy."
    needed = ("1", "Aldenburg", "Aldenburg was founded in 1204", True)
    assert passages(questions["q_1"]) == [("main", "Per Holm", text, True), needed]
    assert passages(questions["q_2"]) == [("main", "Per Holm", text, False)]


def test_squad_is_told_by_version_and_leaves_unanswerable_questions_out_or_wants_noanswer():
    loaded = opened("squad_v1.json")
    first, second, third = loaded.questions
    assert loaded.record["layout"] == "SQuAD 1.1" and first.answers == ("the Marl Sea", "Marl Sea")
    context = "The Brenne is a river that ends in the Marl Sea. It crosses Aldenburg."
    assert passages(first) == passages(second) == [("0", "Brenne (river)", context, True)]
    assert first.group == second.group == "squad:Brenne_(river)" != third.group
    loaded = opened("squad_v2.json")
    (answerable,) = loaded.questions
    assert loaded.record["layout"] == "SQuAD 2.0" and loaded.excluded.counts == {"unanswerable": 1}
    assert answerable.passages[0].title == "Malmö" and answerable.answers == ("Ada Lindqvist",)
    both = opened("squad_v2.json", unanswerable="noanswer").questions
    assert [q.answers for q in both] == [("Ada Lindqvist",), ("noanswer",)]
    assert [q.passages[0].is_gold for q in both] == [True, False] and both[0].group == both[1].group


def test_factoid_sets_accept_every_answer_and_group_what_is_on_one_subject():
    popqa = opened("popqa.tsv").questions
    assert popqa[0].answers == ("sailor", "seaman", 'so-called "tar"') and popqa[0].id == "101"
    assert [q.group for q in popqa] == ["popqa:7", "popqa:7", "popqa:8"]
    web = opened("webquestions.json").questions
    assert [q.answers for q in web] == [("Marl Sea", "Orle"), ('Ulla "Ull" Berg (painter)',), ("3/4/1961",)]
    assert web[0].group == web[1].group != web[2].group and len({q.id for q in web}) == 3
    bamboogle = opened("bamboogle.csv").questions
    assert [q.answers for q in bamboogle] == [("Greta Berg", "Greta Falk"), ("Marl\nSea",)]
    assert [q.answers for q in opened("simpleqa.csv").questions] == [("Ulla Berg",), ("212",)]


def test_msmarco_is_read_by_columns_and_by_lines(tmp_path):
    loaded = opened("msmarco.json")
    first, second = loaded.questions
    assert first.answers == ("It ends in the Marl Sea.", "In the Marl Sea") and second.id == "1104"
    assert [p.is_gold for p in first.passages] == [False, True] and first.question.startswith(". where")
    assert loaded.excluded.counts == {"unanswerable": 1} and loaded.record["read"] == 3
    lines = write_lines(tmp_path / "dev_v1.1.json", records_of("msmarco.json"))
    assert open_questions("msmarco", path=lines).questions == loaded.questions
    both = opened("msmarco.json", unanswerable="noanswer").questions
    assert both[1].answers == ("noanswer",) and len(both) == 3


def test_beir_asks_the_queries_that_are_judged_and_knows_no_answers():
    queries = opened("beir_queries.jsonl").questions
    assert [(q.id, q.answers) for q in queries] == [("q1", ()), ("2", ()), ("q3", ())]
    judged = opened("beir_queries.jsonl", qrels=path("beir_qrels.tsv"))
    assert [q.id for q in judged.questions] == ["q1", "2"] and not judged.excluded


def test_flashrags_lines_are_read_as_any_set_in_the_groups_of_its_own_files(tmp_path):
    def read(name, **fields):
        line = {"id": "test_0", "question": PAINTER, "golden_answers": ["Ulla Berg"], **fields}
        loaded = open_questions(name, path=write_lines(tmp_path / "test.jsonl", [line]))
        assert loaded.record["layout"] == "FlashRAG's"
        return loaded.questions[0]

    for name in OFFICIAL:
        assert (read(name).dataset, read(name).answers) == (name, ("Ulla Berg",))
    titles = [title for title, _ in records_of("twowiki.json")[0]["supporting_facts"]]
    of_subject = {"subj": records_of("popqa.tsv")[0]["subj"], "subj_id": 7, "s_pop": 120}
    of_articles = {"supporting_facts": {"title": titles, "sent_id": [0, 0]}}
    for file, meta in (("popqa.tsv", of_subject), ("twowiki.json", of_articles)):
        official = opened(file).questions[0]
        question = read(NAMES[file], question=official.question, metadata=meta)
        assert (question.group, question.split) == (official.group, official.split)
    question = read("nq", golden_answers=["Ulla Berg", "U. Berg"])
    assert question == opened("nq_open.jsonl").questions[0]  # without ids of its own the text decides


@pytest.mark.parametrize(("line", "reason"), [
    ("Who?,,,,Ada", "5 comma-separated fields instead of 6"), ('"Who?" x,,,,Ada,', "expected after"),
    (",,,,Ada,", "Question"),
])  # fmt: skip
def test_a_bad_row_of_a_table_is_named_or_skipped(tmp_path, line, reason):
    file = tmp_path / "sheet.csv"
    file.write_text(f'Question,,,,Answer,Answer 2\n"Where,\nthen?",,,,Malmö,\n{line}\nWhen?,,,,1904,\n\n')
    with fails("bad-line", "sheet.csv line 4", reason):
        open_questions("bamboogle", path=str(file))
    loaded = open_questions("bamboogle", path=str(file), on_bad_line="skip")
    assert [q.answers for q in loaded.questions] == [("Malmö",), ("1904",)]
    assert loaded.excluded.counts == {"malformed": 1}


def test_a_line_that_begins_like_a_whole_file_is_a_line(tmp_path):
    for key, value in (("version", 2), ("data", {"a": 1}), ("query", "x"), ("answers", ["Malmö"])):
        lines = [{key: value, "id": i, "question": "Where?", "answers": ["Malmö"]} for i in range(2)]
        assert len(load_questions(write_lines(tmp_path / "own.jsonl", lines))) == 2


def test_one_s_own_file_keeps_its_splits_or_has_them_dealt(tmp_path):
    sides = ["dev", "train", "test", "valid", ""]
    records = [record | {"split": side} for record, side in zip(asked(5), sides, strict=True)]
    splits = [q.split for q in load_questions(write_lines(tmp_path / "q.jsonl", records))]
    assert splits[:4] == ["validation", "train", "test", "validation"] and splits[4]
    alone = write_lines(tmp_path / "dev.jsonl", asked(5, split="dev"))
    with fails("empty", "test", "5 validation", "split=validation", kind=EmptySplitError):
        open_questions(alone, split="test")
    dealt = open_questions("file", path=alone, splits="deal").questions
    assert {q.split for q in dealt} == {"train", "validation", "test"}
    with fails("unknown-choice", "splits=mine"):
        open_questions("file", path=alone, splits="mine")


@pytest.mark.parametrize(("change", "named"), [
    ({"answers": [""]}, "answers"), ({"answers": "x"}, "answers"), ({"split": "holdout"}, "split"),
    ({"passages": [{"title": "T", "text": "x", "is_gold": "yes"}]}, "is_gold"), ({"id": "a"}, "'a'"),
    ({"question": ""}, "question"), ('{"question": "x"}', "'id'"), ('{"id": 1, "question": "x"', ""),
    ('["x"]', ""), (r'{"id": 1, "question": "\ud83d"}', "surrogates"),
])  # fmt: skip
def test_a_malformed_line_of_one_s_own_file_is_named_or_skipped(tmp_path, change, named):
    good, file = asked(1)[0] | {"id": "a"}, tmp_path / "q.jsonl"
    bad = change if isinstance(change, str) else json.dumps(good | {"id": "b"} | change)
    file.write_text(f"{json.dumps(good)}\n\n{bad}\n")
    with fails("bad-line", f"{file} line 3: ", named):
        load_questions(str(file))
    loaded = open_questions(str(file), on_bad_line="skip")
    assert [q.id for q in loaded.questions] == ["a"] and loaded.excluded.counts == {"malformed": 1}
    ((where, why),) = loaded.excluded.listed
    assert where == "line 3" and named in why


def test_an_answer_of_which_normalisation_leaves_nothing_accepts_no_silence(tmp_path):
    answers = {"a": ["The The", "The"], "b": ["A", "vitamin A"], "c": []}
    records = [{"id": id, "question": "Which?", "answers": golds} for id, golds in answers.items()]
    loaded = open_questions(write_lines(tmp_path / "q.jsonl", records))
    assert {q.id: q.answers for q in loaded.questions} == {"b": ("vitamin A",), "c": ()}
    ((where, why),) = loaded.excluded.listed
    assert where == "line 1" and why.endswith(": The The")


def test_limits_of_single_splits_give_what_each_split_gives_alone(tmp_path):
    draw = partial(open_questions, "nq", path=nq_file(tmp_path / "nq.jsonl", range(200)))
    drawn_ = draw(limit={"validation": None, "train": 30})
    alone = [draw(split="train", limit=30), draw(split="validation")]
    assert drawn_.questions == [q for part in alone for q in part.questions]
    assert Counter(q.split for q in drawn_.questions) == {"train": 30, "validation": len(alone[1].questions)}
    assert drawn_.record["limit"] == {"validation": None, "train": 30} and drawn_.record["dealt"] == 200
    assert drawn_.record["available"] == sum(part.record["available"] for part in alone)
    assert "limit.train=150" in draw(limit={"train": 150}).notes[0]


def test_a_set_without_splits_can_be_left_whole(tmp_path):
    rows = asked(20)
    file = write_lines(tmp_path / "q.jsonl", rows)
    loaded = open_questions(file, split="test", deal_splits=False)
    assert len(loaded.questions) == 20 and loaded.record["dealt"] == 0
    assert len(open_questions(file, split="test").questions) == 5
    with fails("empty", "train", kind=EmptySplitError):
        open_questions(file, split="train", deal_splits=False)
    some = write_lines(tmp_path / "some.jsonl", [{**rows[0], "split": "test"}, *rows[1:]])
    dealt = open_questions(some, deal_splits=False)  # the others are dealt as ever
    assert dealt.questions == open_questions(some).questions and dealt.record["dealt"] == 19


def test_a_draw_is_seeded_nested_recorded_and_the_same_in_any_order(tmp_path):
    orders = {"a": range(400), "b": range(399, -1, -1)}
    file, turned = (nq_file(tmp_path / name, numbers) for name, numbers in orders.items())

    def drawn(file=file, seed=3, **options):
        return open_questions("nq", path=file, seed=seed, **options)

    ten, forty = drawn(limit=10), drawn(limit=40)
    assert len(ten.questions) == 10 and len(forty.questions) == 40
    assert forty.questions[:10] == ten.questions == drawn(turned, limit=10).questions
    other = drawn(limit=10, seed=4)
    assert [q.id for q in other.questions] != [q.id for q in ten.questions]
    record = drawn(limit=10, split="train").record
    assert json.loads(json.dumps(record)) == record and record["digest"] != other.record["digest"]
    assert record["source"] == f"questions=nq questions.path={file}" and record["read"] == 400
    assert (record["limit"], record["split"], record["seed"], record["used"]) == (10, "train", 3, 10)
    everything = drawn().questions
    assert [q.answers[0] for q in everything] == [*map(str, range(400))]  # without a limit as in the file
    assert {q.id: q.split for q in everything} == {q.id: q.split for q in drawn(turned).questions}


def test_splits_have_their_shares_and_stay_when_the_file_grows(tmp_path):
    few, many = (nq_file(tmp_path / f"{n}.jsonl", range(n)) for n in (300, 3000))
    small = {q.id: q.split for q in open_questions("nq", path=few).questions}
    loaded = open_questions("nq", path=many)
    large = {q.id: q.split for q in loaded.questions}
    assert small.items() <= large.items()
    shares = {name: n / 3000 for name, n in Counter(large.values()).items()}
    assert shares == pytest.approx({"train": 0.6, "validation": 0.15, "test": 0.25}, abs=0.03)
    assert loaded.record["splits"] == dict(Counter(large.values()))
    test = open_questions("nq", path=many, split="test").questions
    assert {q.id for q in test} == {id for id, split in large.items() if split == "test"}
    assert {q.id: q.split for q in open_questions("nq", path=many, seed=1).questions} != large


def test_a_group_is_never_on_two_sides_and_groups_of_a_file_have_exact_shares(tmp_path):
    base = records_of("iirc.json")[0]
    numbered = [[{**q, "qid": f"{i}-{q['qid']}"} for q in base["questions"]] for i in range(200)]
    paragraphs = [{**base, "pid": f"p_{i}", "questions": each} for i, each in enumerate(numbered)]
    sides = {}
    for q in open_questions("iirc", path=write_lines(tmp_path / "dev.jsonl", paragraphs)).questions:
        sides.setdefault(q.group, set()).add(q.split)
    assert len(sides) == 200 and all(side == {Splits(0)(group)} for group, side in sides.items())
    assert set.union(*sides.values()) == {"train", "validation", "test"}
    lines = [record | {"group": f"g{i // 2}"} for i, record in enumerate(asked(200))]
    loaded = load_questions(write_lines(tmp_path / "q.jsonl", lines))
    assert [q.id for q in loaded] == [line["id"] for line in lines]
    dealt = Counter({q.group: q.split for q in loaded}.values())
    assert dealt == {"train": 60, "validation": 15, "test": 25}


def test_a_limit_beyond_the_whole_set_takes_all_and_says_so():
    loaded = opened("iirc.json", limit=7)
    assert len(loaded.questions) == 4 and not opened("iirc.json", limit=4).notes
    assert "limit=7" in loaded.lines()[0] and "iirc.json has 4 questions" in loaded.lines()[0]


@pytest.mark.parametrize(("name", "options", "code", "named"), [
    ("nq_open.jsonl", {"limit": 0}, "bad-value", "limit=0"),
    ("nq_open.jsonl", {"limit": {"train": 0}}, "bad-value", "limit.train=0"),

    ("nq_open.jsonl", {"limit": {"train": 2}, "split": "train"}, "conflict", "split=train"),
    ("nq_open.jsonl", {"split": "dev"}, "unknown-choice", "train, validation, test"),

    ("nq_open.jsonl", {"aliases": "x"}, "unknown-key", "aliases"),
    ("nq_open.jsonl", {"revision": "main"}, "conflict", "questions.revision=main"),
    ("dpr_nq.json", {"hard_negatives": -1}, "bad-value", "hard_negatives=-1"),

    ("iirc.json", {"spans": "one"}, "unknown-choice", "spans=one"),
    ("beir_queries.jsonl", {"qrels": "nowhere"}, "no-file", "questions.qrels=nowhere"),
    ("iirc.json", {"limit": 5}, "bad-value", "limit=5"),  # of six two cannot be used
    ("testbed", {"path": "x.jsonl"}, "unknown-key", "questions.path"),
    ("hotpot", {}, "unknown-choice", "hotpotqa"), ("file", {}, "missing-value", "questions.path"),
    ("iirc", {}, "missing-value", "questions.hub=ID"),
])  # fmt: skip
def test_a_wrong_request_is_named_with_its_choices(name, options, code, named):
    with fails(code, named):
        (opened if name in NAMES else open_questions)(name, **options)


@pytest.mark.parametrize("file", NAMES)
def test_a_file_of_another_dataset_says_whose_it_looks_like(file):
    for other in {*OFFICIAL, "file"} - {NAMES[file]}:
        dpr = file == "dpr_nq.json" and other == "triviaqa"
        expected = "nq_dev_psgs_w100" if dpr else f"questions={NAMES[file]}"
        for on_bad_line in ("error", "skip"):  # the whole file, not a line of it
            with fails("mismatch", f"questions={other}" if other != "file" else file, expected):
                open_questions(other, path=path(file), on_bad_line=on_bad_line)


def test_a_file_of_no_known_layout_and_an_empty_one(tmp_path):
    file = write_lines(tmp_path / "x.jsonl", [{"prompt": "x", "label": 1}])
    with fails("bad-line", "x.jsonl", "line 1"):
        open_questions("nq", path=file)
    with fails("empty"):
        open_questions("nq", path=file, on_bad_line="skip")
    for content in ("", "[]"):
        (tmp_path / "x.json").write_text(content)
        with fails("empty", "x.json"):
            open_questions("hotpotqa", path=str(tmp_path / "x.json"))


@pytest.mark.parametrize(
    ("file", "second"), [("hotpot_distractor.json", "5f00aa02"), ("triviaqa.json", "tc_2")]
)
def test_a_file_that_is_cut_short_says_where(tmp_path, file, second):
    name, cut, text = NAMES[file], tmp_path / file, (FILES / file).read_text()
    cut.write_text(text[: text.index(second)])
    with fails("bad-line", "record 2", file):
        open_questions(name, path=str(cut))
    loaded = open_questions(name, path=str(cut), on_bad_line="skip")
    assert loaded.questions and loaded.questions[0] == opened(file).questions[0]
    assert any("record 2" in line for line in loaded.lines())
    with fails("bad-value", "limit=1000"):  # nobody knows how many there were
        open_questions(name, path=str(cut), on_bad_line="skip", limit=1000)


def test_malformed_json_in_an_array_and_a_damaged_archive(tmp_path):
    """ijson's own crashes at whole numbers of more digits than Python turns into an integer."""
    text, file = (FILES / "hotpot_distractor.json").read_text(), tmp_path / "dev.json"
    for changed, record in [
        (text.replace('"yes"', "yes").encode(), "record 2"), (b'[{"_id": "\xff"}]', "record 1"),
        (text.replace("{", f'{{"n": {"9" * 5000}, ', 1).encode(), "record 1"),
    ]:  # fmt: skip
        file.write_bytes(changed)
        with fails("bad-line", "dev.json", record):
            open_questions("hotpotqa", path=str(file))
    file.write_text("[" * 100_000)  # told before it fills the memory
    with fails("bad-line", "line 1"):
        load_questions(str(file))
    packed, whole = tmp_path / "dev.json.gz", opened("hotpot_distractor.json").questions
    packed.write_bytes(gzip.compress(text.encode()))
    assert open_questions("hotpotqa", path=str(packed)).questions == whole
    packed.write_bytes(packed.read_bytes()[:-20])
    with fails("damaged"):
        open_questions("hotpotqa", path=str(packed))


MISTAKES = yaml.safe_load((FILES.parent / "wrong_questions.yaml").read_text(encoding="utf-8"))
WRONG, UNANSWERED = MISTAKES["wrong"], MISTAKES["unanswered"]


@pytest.mark.parametrize("file", WRONG)
def test_wrong_types_are_named_with_their_record_or_skipped_and_empty_answers_left_out(tmp_path, file):
    good, name, target = records_of(file)[0], NAMES[file], tmp_path / "x.jsonl"
    for field, value, *other in WRONG[file]:
        write_lines(target, [good, {**good, OFFICIAL[name][0]: "another", field: value}])
        with fails("bad-line", "x.jsonl line 2: ", *(other or [field])):
            open_questions(name, path=str(target))
        loaded = open_questions(name, path=str(target), on_bad_line="skip")
        assert loaded.questions and loaded.excluded.counts["malformed"] == 1
        assert any(where == "line 2" for where, _ in loaded.excluded.listed)
    for change in UNANSWERED[file]:
        with fails("empty"):
            open_questions(name, path=write_lines(target, [{**good, **change}]))


def test_what_is_left_out_is_counted_by_kind_and_the_first_stays():
    loaded = opened("nq_open.jsonl")
    assert loaded.excluded.counts == {"repeated id": 1} and len(loaded.questions) == 2
    ((where, reason),) = loaded.excluded.listed
    assert where == "line 3" and "line 1" in reason
    assert loaded.questions[0].answers == ("Ulla Berg", "U. Berg")


ABC = {
    "id": "h1", "question": "Where?", "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 0]},
    "context": {"title": ["A", "B", "C"], "sentences": [["A is.", " It was."], ["B is."], ["C is."]]},
}  # fmt: skip
BERG = {"aliases": ["Ulla Berg"], "normalized_aliases": ["ulla berg"], "value": "Berg"}
MARL = {"text": ["the Marl Sea", "Marl Sea"], "answer_start": [11, 15]}
#: Rows as the copies on the Hub have them where these are unlike the official records, and their answers.
HUB = {
    "hotpotqa": (ABC | {"answer": "Marl"}, ("Marl",)),
    "2wikimultihopqa": (
        ABC | {"answer": "Sweden", "evidences": {"fact": ["A"], "relation": ["land"], "entity": ["Sweden"]}},
        ("Sweden",),
    ),
    "triviaqa": (
        {"question": "Who?", "question_id": "tc_1", "question_source": "", "answer": BERG},
        ("Berg", "Ulla Berg", "ulla berg"),
    ),

    "squad": (
        {"id": "5a01", "title": "Brenne_(river)", "context": "It ends in the Marl Sea.", "question": "Where?",
         "answers": MARL},
        ("the Marl Sea", "Marl Sea"),
    ),
    "webquestions": (
        {"url": "http://www.freebase.com/view/en/brenne", "question": "where does the brenne end?",
         "answers": ["Marl Sea", "Orle"]},
        ("Marl Sea", "Orle"),
    ),
    "msmarco": (
        records_of("msmarco.json")[2] | {"passages": {
            "is_selected": [1, 0], "passage_text": ["A.", "B."], "url": ["u", "v"]}, "wellFormedAnswers": []},
        ("212 metres",),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def copy_of(folder, *rows):
    """A dataset that ``datasets`` reads from a folder, and the options that name it."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "validation.parquet")
    return {"hub": str(folder), "config": None, "hub_split": "validation"}


def broken():
    """A stream that breaks off."""
    yield {"question": PAINTER, "answer": ["Ulla Berg", "U. Berg"]}
    raise OSError("connection lost")


@pytest.mark.parametrize("name", HUB)
def test_a_copy_on_the_hub_is_streamed(tmp_path, name):
    row, answers = HUB[name]
    first = open_questions(name, **copy_of(tmp_path / "copy", row)).questions[0]
    assert first.answers == answers and first.dataset == name and first.split
    if name == "hotpotqa":
        texts = [("0", "A", "A is. It was.", True), ("1", "B", "B is.", True), ("2", "C", "C is.", False)]
        assert passages(first) == texts
    elif name == "webquestions":
        assert first in opened("webquestions.json").questions
    elif name == "squad":
        assert passages(first) == [("0", "Brenne (river)", "It ends in the Marl Sea.", True)]
        assert first.group == "squad:Brenne_(river)"
    elif name == "msmarco":
        assert passages(first) == [("0", "", "A.", True), ("1", "", "B.", False)]


def test_one_s_own_set_may_lie_on_the_hub_and_columns_are_checked_before_a_row_is_read(tmp_path, monkeypatch):
    (row,) = asked(1, passages=[{"title": "T", "text": "x", "is_gold": True}])
    copy = copy_of(tmp_path / "own", row)
    (question,) = open_questions("file", **copy).questions
    assert (question.id, question.answers) == ("q0", ("x0",)) and question.passages[0].is_gold
    with fails("bad-value"):
        open_questions("file", **copy | {"hub_split": "train"})
    load = Mock(return_value=MagicMock(column_names=["prompt"]))
    monkeypatch.setattr(datasets, "load_dataset", load)
    with fails("mismatch", "'answer'", "'question'"):
        open_questions("nq")
    load.return_value.__iter__.assert_not_called()
    load.side_effect = ConnectionError("Couldn't reach 'a/b' on the Hub")
    with fails("network", "questions.path", kind=RunError):
        open_questions("nq")
    load.return_value, load.side_effect = datasets.IterableDataset.from_generator(broken), None
    with fails("network", kind=RunError):
        open_questions("nq", limit=1)


def test_answers_are_read_under_the_names_that_others_give_them_and_under_no_other(tmp_path):
    both, record, file = ["Wodale", "The Wodale"], {"id": "1", "question": "Where?"}, tmp_path / "q.jsonl"
    for field in ("answers", "golden_answers", "possible_answers"):
        for value in (both, json.dumps(both), str(both)):  # as text in tables
            (question,) = load_questions(write_lines(file, [record | {field: value, "prop": "born"}]))
            assert question.answers == tuple(both)
    assert load_questions(write_lines(file, [record | {"possible_answers": "1990"}]))[0].answers == ("1990",)
    with fails("bad-line", "list of strings"):
        load_questions(write_lines(file, [record | {"answers": "[Wodale"}]))
    with fails("labels", "gold"):
        load_questions(write_lines(file, [record | {"gold": "Wodale"}]))
    assert load_questions(write_lines(file, [record]))[0].answers == ()
    for text in (json.dumps(asked(2)), "\n\ufeff".join(map(json.dumps, asked(2)))):
        file.write_text(text, encoding="utf-8-sig")  # a byte order mark is no part of a file
        assert [question.id for question in load_questions(str(file))] == ["q0", "q1"]
