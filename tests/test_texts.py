"""Labelled texts: the line, the rules of its labels, published layouts, splits by group."""

import gzip
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.artefacts import in_layout, write_lines
from helpers.refusals import fails
from helpers.tiny import byte_level, sentence_piece, word_piece
from hypothesis import given, settings
from hypothesis import strategies as st

from probers.data.texts import TextSource, token_labels
from probers.data.texts.base import read_text, truth
from probers.model.tokens import token_offsets
from probers.prompts import chat_text

ADA = {
    "id": "7",
    "messages": [{"role": "user", "content": "Tell me about Ada Lovelace."}],
    "answer": "She was born in 1815 in Paris. She wrote on engines.",
    "spans": [{"start": 16, "end": 20, "wrong": False}, {"start": 24, "end": 29, "wrong": True}],
    "group": "Ada Lovelace",
    "writer": "gpt-x",
}


def source(path, **options):
    return TextSource(str(path), **options)


def labels(text, unit):
    return [(text.answer[mark.start : mark.end], mark.wrong) for mark in text.units(unit)]


def test_a_line_has_spans_and_what_follows_from_them():
    text, right = read_text(ADA, "line 1"), read_text(ADA | {"outside": "right"}, "line 1")
    assert labels(text, "span") == [("1815", False), ("Paris", True)]
    expected = [("She was born in 1815 in Paris.", True), ("She wrote on engines.", None)]
    assert labels(text, "sentence") == expected
    assert text.wrong is True and (text.writer, text.group) == ("gpt-x", "Ada Lovelace")
    assert [wrong for _, wrong in labels(right, "sentence")] == [True, False]


@pytest.mark.parametrize(("spans", "outside", "wrong"), [
    ([], "right", False), ([], "unknown", None), ([False], "unknown", False), ([None], "right", None),
    ([None, True], "right", True), (None, "right", None),
])  # fmt: skip
def test_the_answer_is_wrong_with_any_wrong_span(spans, outside, wrong):
    marks = spans and [{"start": 4 * i, "end": 4 * i + 3, "wrong": each} for i, each in enumerate(spans)]
    assert read_text({"answer": "one two six", "spans": marks, "outside": outside}, "").wrong is wrong
    said = {"answer": "one two six", "spans": marks, "outside": outside, "wrong": 1}
    assert read_text(said, "").wrong is True


@pytest.mark.parametrize("more", [{"wrong": True}, {"wrong": True, "spans": []}, {"wrong": None}, {}])
def test_the_rest_is_right_only_beside_marks_or_in_right_answers(more):
    """Of a wrong answer without marks, or one that nobody judged, no sentence is known to be right."""
    text = {"answer": "Ann saw. Bob left.", "outside": "right"}
    assert {wrong for _, wrong in labels(read_text(text | more, ""), "sentence")} == {None}
    for judged in ({"wrong": False}, {"spans": []}):
        assert {wrong for _, wrong in labels(read_text(text | judged, ""), "sentence")} == {False}


def test_labels_are_read_as_people_write_them():
    assert all(truth(yes, "wrong") is True for yes in (True, 1, 1.0, "1", "1.0", "true", "Yes", " yes "))
    assert all(truth(no, "wrong") is False for no in (False, 0, 0.0, "0", "0.0", "False", "no"))
    assert truth(None, "wrong") is None
    for odd in (2, 0.5, "maybe", "", []):
        with pytest.raises(ValueError, match="wrong"):
            truth(odd, "wrong")


BAD = {
    "reversed": {"spans": [{"start": 5, "end": 3, "wrong": True}]},
    "outside": {"spans": [{"start": 0, "end": 99, "wrong": True}]},
    "overlap": {"spans": [{"start": 0, "end": 5, "wrong": True}, {"start": 3, "end": 9, "wrong": False}]},
    "missing": {"spans": [{"text": "Rome", "wrong": True}]},
    "twice, overlapping": {"answer": "aha-aha-aha", "spans": [{"text": "aha-aha", "wrong": True}]},
    "elsewhere": {"spans": [{"text": "She", "index": 5, "wrong": True}]},
    "no label": {"spans": [{"start": 0, "end": 3}]},
    "both": {"prompt": "p", "messages": [{"role": "user", "content": "q"}]},
    "split": {"split": "holdout"}, "odd label": {"wrong": "perhaps"}, "no text": {"answer": "  "},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_refused_by_file_and_line_or_left_out(name, tmp_path):
    good = {"answer": "She saw it. She left.", "wrong": False}
    file = write_lines(tmp_path / "texts.jsonl", [good, {**good, "wrong": True, **BAD[name]}])
    with fails("bad-line", "texts.jsonl", "line 2"):
        list(source(file).all())
    skipping = source(file, on_bad_line="skip")
    assert len(list(skipping.all())) == 1 and len(skipping.left_out) == 1


PARTY = "🎉🎉 Great news! The bridge opened in 1932, it says."


@pytest.mark.parametrize(("answer", "start"), [
    (PARTY, len(PARTY[:36].encode("utf-16-le")) // 2), ("  The bridge\r\nopened in 1932.", 22),
    ("It opened in 1932.", -1), ("A &amp; B, 1932.", 7),
])  # fmt: skip
@pytest.mark.parametrize("form", ["start", "ranges", "index"])
def test_a_label_that_contradicts_its_text_is_moved_to_its_only_place(answer, start, form):
    """Converse: one that agrees stays; with no place or several the line is refused."""
    at = {"start": {"start": start, "end": start + 4}, "ranges": {"ranges": [[start, start + 4]]}}
    part = {"text": "1932", "wrong": True, **at.get(form, {"index": start})}
    text = read_text({"answer": answer, "spans": [part]}, "")
    assert labels(text, "span") == [("1932", True)] and text.moved == 1
    agreeing = {"text": "1932", "start": text.spans[0].start, "end": text.spans[0].end, "wrong": True}
    assert read_text({"answer": answer, "spans": [agreeing]}, "").moved == 0
    for odd in ("1933", "e", 1933):
        with pytest.raises(ValueError, match=r"spans\[0\]"):
            read_text({"answer": answer, "spans": [part | {"text": odd}]}, "")


def test_too_few_groups_are_made_by_another_rule_which_is_told(tmp_path):
    """A prompt that all texts share. Converse: groups that the file names are kept."""
    lines = [{"prompt": "True?\n", "answer": f"Fact {i}.", "wrong": i % 2} for i in range(20)]
    alone = source(write_lines(tmp_path / "a.jsonl", lines))
    assert {t.split for t in alone.labelled("answer")} == {"train", "validation", "test"}
    assert "1 group" in alone.survey("answer").notes[0]
    assert [t.group for t in alone.all()] == [t.group for t in alone.labelled("answer")]
    named = write_lines(tmp_path / "b.jsonl", [line | {"group": "g"} for line in lines])
    with fails("labels", "1 group"):
        source(named).survey("answer")


def test_duplicate_ids_and_lines_without_any_label(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", [{"id": 1, "answer": "a", "wrong": 0}] * 2)
    with fails("bad-line", "line 2", "line 1"):
        list(source(file).all())
    with fails("bad-line", "line 1"):
        list(source(write_lines(tmp_path / "b.jsonl", [{"answer": "a"}])).labelled("answer"))
    with fails("labels", "right"):
        list(source(write_lines(tmp_path / "c.jsonl", [{"answer": "a", "wrong": 0}])).labelled("answer"))
    marks = [
        {"answer": f"She {i} saw it.", "spans": [{"text": "saw", "wrong": 1}] * (i % 2)} for i in range(8)
    ]
    file = write_lines(tmp_path / "s.jsonl", marks)
    with fails(
        "labels", "outside=right", "unit=sentence"
    ):  # where all marks are wrong; what it advises helps
        source(file, on_bad_line="skip").survey("span")
    assert source(file, outside="right").survey("sentence").texts == 8
    some = source(write_lines(tmp_path / "u.jsonl", [*of_groups(3), {"answer": "a", "wrong": None}]))
    assert len(list(some.labelled("answer"))) == 6 and len(some.left_out) == 1
    with fails("bad-file", "texts="):
        list(source(write_lines(tmp_path / "d.jsonl", [{"words": "a"}])).all())


@pytest.mark.parametrize("tokenizer", [byte_level(every_byte=True), sentence_piece(), word_piece()])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_belong_to_the_span_with_most_of_their_characters(tokenizer, data):
    """Every token that touches a span has its label; without one it is outside."""
    words = data.draw(st.lists(st.sampled_from(["river", "Arl", "1912", "mill,", "é", "the"]), min_size=1))
    shown, offsets = token_offsets(tokenizer, tokenizer(" ".join(words))["input_ids"])
    if not shown.strip():
        return
    place = st.integers(0, len(shown))
    bounds = sorted(data.draw(st.lists(place, min_size=2, max_size=6, unique=True)))
    marks = [
        {"start": a, "end": b, "wrong": data.draw(st.sampled_from([True, False, None]))}
        for a, b in zip(bounds[::2], bounds[1::2], strict=False)
    ]
    labels = token_labels(read_text({"answer": shown, "spans": marks}, ""), offsets)
    for token, (start, end) in enumerate(offsets):
        overlaps = [max(0, min(end, m["end"]) - max(start, m["start"])) for m in marks]
        assert labels.inside[token] == (1 if max(overlaps, default=0) > 0 else -1)
        if labels.inside[token] == 1:
            chosen = labels.mark[token]
            assert overlaps[chosen] == max(overlaps)
            assert labels.wrong[token] == {True: 1, False: 0, None: -1}[marks[chosen]["wrong"]]
        else:
            assert labels.wrong[token] == 0 and labels.mark[token] >= len(marks)


OFFSETS = [(0, 3), (3, 7), (7, 8), (8, 12), (12, 17), (17, 22), (22, 23)]


@pytest.mark.parametrize("wrong", [True, False])
def test_the_label_of_a_whole_answer_is_that_of_each_sentence(wrong):
    """Of both kinds alike: else the length of a span would tell them apart."""
    labels = token_labels(read_text({"answer": "Ann saw. Bob left home.", "wrong": wrong}, ""), OFFSETS)
    assert labels.mark.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert labels.wrong.tolist() == [int(wrong)] * 7 and labels.inside.tolist() == [1] * 7


def test_a_wrong_answer_without_marks_is_wrong_whatever_the_outside_counts_as():
    """Converse: a right one is all outside, which counts as right anyway."""
    offsets = [(0, 4), (4, 8)]
    for wrong, inside in ((True, 1), (False, 0)):
        text = read_text({"answer": "Ann saw.", "wrong": wrong, "outside": "right"}, "")
        labels = token_labels(text, offsets)
        assert labels.wrong.tolist() == [int(wrong)] * 2 and labels.inside.tolist() == [inside] * 2


def test_text_outside_that_is_right_is_cut_into_runs_by_sentence():
    text = {"answer": "Ann saw. Bob left home.", "outside": "right"}
    right = token_labels(read_text(text | {"spans": []}, ""), OFFSETS)
    assert right.mark.tolist() == [0, 0, 0, 1, 1, 1, 1] and not right.inside.any()
    marked = text | {"spans": [{"start": 13, "end": 17, "wrong": True}]}
    labels = token_labels(read_text(marked, ""), OFFSETS)
    assert labels.mark.tolist() == [1, 1, 1, 2, 0, 3, 3] and labels.wrong.tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert labels.inside.tolist() == [0, 0, 0, 0, 1, 0, 0]
    unknown = token_labels(read_text(marked | {"outside": "unknown"}, ""), OFFSETS)
    assert unknown.mark.tolist() == labels.mark.tolist()
    assert unknown.inside.tolist() == [-1, -1, -1, -1, 1, -1, -1]


DATA = Path(__file__).parent / "data"
#: Some records of our own in each layout, the labels of the unit that they are read by, and the passages.
LAYOUTS = json.loads((DATA / "layouts.json").read_text())


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_are_told_apart_and_read(name, tmp_path):
    layout, file = LAYOUTS[name], tmp_path / "data.json"
    file.write_text(json.dumps(layout["records"], indent=1 if name == "helm" else None))
    texts = list(source(file).all())
    if name != "helm":  # an array, or lines
        lines = write_lines(tmp_path / "lines.jsonl", layout["records"])
        assert [t.answer for t in source(lines).all()] == [t.answer for t in texts]
    assert [mark.wrong for text in texts for mark in text.units(layout["unit"])] == layout["wrong"]
    assert "passages" not in layout or list(texts[0].passages) == layout["passages"]
    assert [t.answer for t in source(file, format=name).all()] == [t.answer for t in texts]
    if name in ("halueval", "statements", "truthfulqa"):  # pairs of one group
        assert texts[0].group == texts[1].group != ""


def test_ragtruth_finds_its_prompts_beside(tmp_path):
    file = write_lines(tmp_path / "response.jsonl", LAYOUTS["ragtruth"]["records"])
    assert {text.prompt for text in source(file).all()} == {None}
    lines = [{"source_id": "0", "task_type": "QA", "prompt": "Answer!"}, {"source_id": "1", "prompt": "Now!"}]
    write_lines(tmp_path / "source_info.jsonl", lines)
    assert [text.prompt for text in source(file).all()] == ["Answer!\n"] * 2 + ["Now!\n"] * 2
    write_lines(tmp_path / "source_info.jsonl", lines[:1])
    with fails("bad-line", "line 3", "source_id 1"):
        list(source(file).all())


def test_what_layouts_have_beside_labels_is_kept(tmp_path):
    """Splits of a layout, what HaluEval's dialogues are about, and TruthfulQA as it is on the Hub."""
    rows = [record | {"split": "val"} for record in LAYOUTS["statements"]["records"]]
    assert {text.split for text in source(write_lines(tmp_path / "a.jsonl", rows)).all()} == {"validation"}
    pairs = source(write_lines(tmp_path / "pairs.jsonl", LAYOUTS["halueval"]["records"][1:3])).all()
    assert [(t.passages, t.prompt) for t in pairs][::2] == [(("k",), "[Human]: hi"), ((), "d\nSummary:")]
    hub = {"question": "q?", "correct_answers": ["a", "b"], "incorrect_answers": ["c"]}
    assert [text.wrong for text in TextSource([hub]).all()] == [False, False, True]


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "saved", "splits"])
def test_texts_of_every_layout_are_read_alike(kind, tmp_path):
    """Lists and structures too, where the layout has them; splits of a saved dataset are kept."""
    rows = [line | {"day": "2026-01-01"} for line in of_groups(4)]
    if kind != "csv":
        marks = [[{"text": "text", "start": 0, "end": 4, "wrong": row["wrong"]}] for row in rows]
        rows = [row | {"spans": spans} for row, spans in zip(rows, marks, strict=True)]
    read = source(in_layout(rows, tmp_path / "t", kind))
    texts = list(read.all())
    expected = [(r["id"], r["answer"], bool(r["wrong"])) for r in rows]
    assert [(t.id, t.answer, t.wrong) for t in texts] == expected
    assert {t.split for t in texts} == {"train" if kind == "splits" else ""}
    assert kind == "csv" or labels(texts[1], "span") == [("text", True)]
    more = source(in_layout(rows[:-1], tmp_path / "u", kind)).inputs
    assert read.inputs == source(read.path).inputs != more and [*read.inputs.values()] != [*more.values()]
    json.dumps(texts[0].record)


def test_conversations_have_text_parts_and_calls_of_tools():
    """As in requests to the server; other parts and malformed messages are refused."""
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"who": "Ann"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": " is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Ann", "name": None},
    ]  # fmt: skip
    text = read_text({"messages": messages, "answer": "Ann.", "prompt": None}, "")
    first, second, third = text.messages
    assert first["content"] == "Who is it?" and text.question == "Ann" and "name" not in third
    assert second["tool_calls"][0]["function"]["arguments"] == {"who": "Ann"} and second["content"] == ""
    for odd in ({"role": "user", "content": [{"type": "image_url"}]}, {"role": "user"}, "a"):
        with pytest.raises(ValueError, match=r"messages\[0\]"):
            read_text({"messages": [odd], "answer": "Ann."}, "")
    with fails("model", "knows no tools"):
        chat_text(SimpleNamespace(chat_template="{{ messages }}"), messages, "a")


def test_statements_of_a_table(tmp_path):
    rows = ['"Lodz is in Poland, Europe.",1,Lodz', '"Lodz, Peru.",0,Lodz', '"Lodz, Chile.",,']
    (tmp_path / "cities.csv").write_text("\n".join(["statement,label,city", *rows]))
    texts = list(source(tmp_path / "cities.csv").all())
    assert [(t.wrong, t.group, t.dataset) for t in texts] == [
        (False, "Lodz", "cities"), (True, "Lodz", "cities"), (None, "lodz, chile", "cities"),
    ]  # fmt: skip


def of_groups(groups, **more):
    return [
        {"id": f"{g}.{i}", "group": f"g{g}", "answer": f"text {g} {i}", "wrong": i, **more}
        for g in range(groups)
        for i in range(2)
    ]


def test_groups_stand_on_one_side_and_both_readings_agree(tmp_path):
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in of_groups(40))
    whole = source(tmp_path / "texts.jsonl.gz")
    texts = list(whole.labelled("answer"))
    sides = {text.group: text.split for text in texts}
    assert all(sides[text.group] == text.split for text in texts) and len(texts) == 80
    assert Counter(sides.values()) == {"train": 24, "validation": 6, "test": 10}
    drawn = list(source(tmp_path / "texts.jsonl.gz", limit=20).labelled("answer"))
    assert len(drawn) == 20 and {(t.id, t.split) for t in drawn} <= {(t.id, t.split) for t in texts}
    assert list(source(tmp_path / "texts.jsonl.gz", seed=1).labelled("answer")) != texts


def test_the_splits_of_a_file_are_kept_where_they_are_enough(tmp_path):
    lines = [line | {"split": "test" if i % 4 < 2 else "train"} for i, line in enumerate(of_groups(40))]
    given = source(write_lines(tmp_path / "a.jsonl", lines))
    counts = Counter(text.split for text in given.labelled("answer"))
    assert counts["test"] == 40 and counts["train"] + counts["validation"] == 40 and counts["validation"] > 0
    only = source(write_lines(tmp_path / "b.jsonl", of_groups(40, split="test")))
    assert len({text.split for text in only.labelled("answer")}) == 3 and only.survey("answer").notes
    lines[1] |= {"split": "train"}  # one group on two sides
    with fails("overlap", "a.jsonl"):
        list(source(write_lines(tmp_path / "a.jsonl", lines)).labelled("answer"))
    first = of_groups(1)[0]  # one text on two sides
    same = [first | {"split": "train"}, first | {"id": "x", "group": "h", "split": "test"}]
    with fails("overlap", "line 2", "line 1"):
        list(source(write_lines(tmp_path / "c.jsonl", same)).labelled("answer"))


def test_a_text_of_two_groups_is_read_once(tmp_path):
    lines = [*of_groups(20), of_groups(1)[0] | {"id": "again", "group": "other"}]
    again = source(write_lines(tmp_path / "a.jsonl", lines))
    assert "again" not in {text.id for text in again.labelled("answer")}
    assert again.survey("answer").texts == 40
    lines[-1]["passages"] = ["Shown before it."]  # with other passages it is another text
    assert source(write_lines(tmp_path / "b.jsonl", lines)).survey("answer").texts == 41


@pytest.mark.parametrize("unit", ["answer", "span"])
def test_of_one_text_the_first_label_counts_and_contradictions_are_told(unit, tmp_path):
    """Converse: lines that mark other parts of a text are further texts."""
    lines = [
        {"group": f"g{i}", "answer": f"It is {i}.", "wrong": i % 2,
         "spans": [{"text": str(i), "wrong": i % 2}]}
        for i in range(20)
    ]  # fmt: skip
    again = lines[3] | {"wrong": 0, "spans": [{"text": "3", "wrong": 0}]}
    read = source(write_lines(tmp_path / "a.jsonl", [*lines, lines[2], again]))
    texts = list(read.labelled(unit))
    assert [t.units(unit)[0].wrong for t in texts] == [bool(i % 2) for i in range(20)]
    assert any("2 texts" in note and "1 of them" in note for note in read.survey(unit).notes)
    other = lines[2] | {"spans": [{"text": "It", "wrong": 1}]}
    first = source(write_lines(tmp_path / "b.jsonl", [*lines, other])).survey(unit).texts
    assert first == (21 if unit == "span" else 20)
