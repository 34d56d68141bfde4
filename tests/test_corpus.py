"""Corpora: formats, bad lines, and the store that keeps large ones on the disk."""

import csv
import gzip
import json
import random
import shutil
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from helpers.refusals import fails, interrupted

from probers.data import corpus, load_corpus
from probers.data.cache import Estimate, build_once
from probers.data.corpus import PassageStore, fingerprint
from probers.types import Passage, RunError

#: Texts that break a store or a reader which takes lines for more than they are.
HARD = ["a\tb", "\U0001f642 lone", 'say "x"', "one\ntwo", "\u2028 \x85 \x0b", "\\n", "日本語", '"', "x\ry"]


def jsonl(path, records):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.writelines((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)
    return path


def tsv(path, rows, header=("id", "text", "title")):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([header, *rows])
    return path


def records(n):
    return [{"id": i, "title": f"T{i % 7}", "text": f"text {i} " + HARD[i % len(HARD)]} for i in range(n)]


@pytest.fixture(params=["memory", "disk"])
def load(request, tmp_path):

    def call(path, **options):
        limit = 10**9 if request.param == "memory" else 0
        loaded = load_corpus(path, cache=tmp_path / "cache", in_memory=limit, **options)
        assert isinstance(loaded, PassageStore if request.param == "disk" else list)
        return loaded

    return call


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_jsonl_comes_back_as_it_was(load, tmp_path, suffix):
    beirs = {"_id": "b", "title": "T", "text": "one", "metadata": {}}
    loaded = load(jsonl(tmp_path / f"c.{suffix}", [*records(30), "", {"id": "x", "text": "no title"}, beirs]))
    expected = [Passage(str(r["id"]), r["title"], r["text"]) for r in records(30)]
    assert list(loaded) == [*expected, Passage("x", "", "no title"), Passage("b", "T", "one")]
    assert len(loaded) == 32


@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_dprs_tsv_with_quotes_tabs_and_line_breaks(load, tmp_path, suffix):
    rows = [(str(i), f"{text} end", f'T "{i}"') for i, text in enumerate(HARD)]
    loaded = load(tsv(tmp_path / f"psgs_w100.{suffix}", rows))
    assert list(loaded) == [Passage(name, title, text) for name, text, title in rows]


def test_the_tsv_header_names_the_columns_and_must_be_there(load, tmp_path):
    other = tsv(tmp_path / "other.tsv", [("t", "1", "body")], header=("title", "id", "text"))
    assert list(load(other)) == [Passage("1", "t", "body")]
    for text, *named in (
        ("1\tbody\tt\n", "line 1"), ("query-id\tcorpus-id\tscore\nq1\tb1\t1\n", "line 1", "query-id"),
        ('id\ttext\ttitle\n1\tfine\tt\n2\t"open\tt\n3\tlost\tt\n', "line 3", "line 4"),
    ):  # fmt: skip
        other.write_text(text)
        with fails("bad-line", "other.tsv", *named):
            load(other)


def test_contents_stand_in_the_place_of_a_text_and_a_title_is_not_said_twice(load, tmp_path):
    lines = [
        {"id": 0, "contents": "A\nb", "title": "A"}, {"id": 1, "contents": "b\nc", "title": "A"},
        {"id": 2, "contents": "A\nb", "title": "A", "text": "b c"},
    ]  # fmt: skip
    pairs = [(p.title, p.text) for p in load(jsonl(tmp_path / "c.jsonl", lines))]
    assert pairs == [("A", "b"), ("A", "b\nc"), ("A", "b c")]
    cut = load(jsonl(tmp_path / "w.jsonl", [{"id": 3, "contents": "A\nb c d"}]), passage_words=2)
    assert [(p.id, p.title, p.text) for p in cut] == [("3#0", "A", "b c"), ("3#1", "A", "d")]


@pytest.mark.parametrize(("name", "blob", "named"), [
    ("c.zip", b"PK\x03\x04", "zip archive"), ("c.jsonl", b"PAR1", ".parquet"),
    ("c.jsonl", b"\x1f\x8b\x08", ".gz"), ("c.jsonl.bz2", b"BZh9", "unpack"),
    ("c.jsonl.gz", gzip.compress(b"c.jsonl".ljust(257, b"\0") + b"ustar".ljust(255), mtime=0), "unpack"),
    ("c.csv", "id,text\n1,x\n".encode("utf-16"), "UTF-16"), ("c.jsonl", b"<!DOCTYPE html>", "HTML page"),
    ("c.jsonl", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ("c.csv", b"id;title;text\n1;A;x\n", "no 'text' among its fields id;title;text"),
    ("c.csv", b"id,text,text\n1,x,y\n", "two columns are called text"),
    ("c.txt", b"Words.\n", "neither one JSON array"),
])  # fmt: skip
def test_what_is_no_corpus_is_named_for_what_it_is(tmp_path, name, blob, named):
    path = tmp_path / name
    path.write_bytes(blob)
    with fails(None, name, named):
        load_corpus(path)
    with fails("no-file", "save_to_disk"):  # a folder
        load_corpus(tmp_path)


@pytest.mark.parametrize(("name", "text"), [
    ("C.CSV", "\ufeffID,id,text\r\n,1,x\r\n"), ("c.TSV", "\ufeffid\ttext\n1\tx\n"),
    ("c.tsv", "\ufeff1\tx\r\n"), ("c.JSONL", '\ufeff{"id": 1, "text": "x"}\r\n'),
])  # fmt: skip
def test_marks_line_ends_and_capitals_in_the_ending_do_not_matter(load, tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    assert [(p.id, p.text) for p in load(tmp_path / name)] == [("1", "x")]


def test_a_search_gives_a_passage_one_place_whatever_its_ids():
    """Of a retriever that knows nothing of it: it is asked for more until the places are filled."""
    same = [Passage(str(i), "T", "the same") for i in range(20)]
    passages, requests = [*same, Passage("x", "T", "one"), Passage("y", "", "two")], []

    class Retriever:
        def search(self, queries, k):
            requests.append(k)
            return [[] if query == "none" else passages[:k] for query in queries]

    results = corpus.search(Retriever(), ["a", "none"], 3)
    assert [[passage.id for passage in hits] for hits in results] == [["0", "x", "y"], []]
    assert requests == [3, 12, 48]


def test_ms_marcos_collection_has_no_header_and_quotes_nothing(load, tmp_path):
    path = tmp_path / "collection.tsv"
    path.write_text('0\tIt said "so.\n1\t"So it was\n2\tan id, and no more: 3\n')
    expected = [("0", 'It said "so.'), ("1", '"So it was'), ("2", "an id, and no more: 3")]
    assert [(p.id, p.text) for p in load(path)] == expected
    path.write_text("0\tone\n1\ta\tb\n2\ttwo\n")
    with fails("bad-line", "collection.tsv line 2", "3 tab-separated fields instead of 2"):
        load(path)
    assert [p.id for p in load(path, on_bad_line="skip")] == ["0", "2"]


@pytest.mark.parametrize(("line", "reason"), [
    ("2\tonly two", "2 tab-separated fields instead of 3"), ('2\t"quoted" and more\tt', "expected after"),
    ("1\tagain\tt", "the id '1' is already on line 2"),
])  # fmt: skip
def test_a_bad_row_of_a_tsv_is_named_or_skipped(load, tmp_path, caplog, line, reason):
    path = tmp_path / "c.tsv"
    path.write_text(f'id\ttext\ttitle\n1\t"two\nlines"\tt\n{line}\n3\tlast\tt\n')
    with fails("bad-line", "c.tsv line 4: ", reason):
        load(path)
    assert [p.id for p in load(path, on_bad_line="skip")] == ["1", "3"]
    assert "skipped 1 malformed line" in caplog.text


@pytest.mark.parametrize(("line", "reason"), [
    ('{"id": 1, "text": "x"', "Expecting"), ('{"text": "x"}', "no 'id'"), ('["x"]', "expected a JSON object"),
    ('{"id": 1, "text": " "}', "text must be a non-empty string"),
    ('{"id": 1, "text": "x", "title": 3}', "title must be a string"),
    ('{"id": 1, "contents": 3}', "contents"),
    ('{"id": 0, "text": "x"}', "the id '0' is already on line 1"),
    ('{"id": 1, "sentences": "x"}', "sentences must be a list of strings"),
    (r'{"id": 1, "text": "half \ud83d"}', "text holds half of a pair of surrogates"),
])  # fmt: skip
def test_a_bad_line_of_a_jsonl_is_named_or_skipped(load, tmp_path, caplog, line, reason):
    path = jsonl(tmp_path / "c.jsonl", [{"id": 0, "text": "a"}, "", line, {"id": 9, "text": "b"}])
    with fails("bad-line", "c.jsonl line 3: ", reason):
        load(path)
    assert [p.id for p in load(path, on_bad_line="skip")] == ["0", "9"]
    assert "line 3" in caplog.text
    with fails("bad-line", "c.jsonl line 3: ", reason):  # also after a run that skipped it
        load(path)


def test_of_repeated_ids_the_first_stays_wherever_the_others_are(load, tmp_path):
    rng = random.Random(0)
    rows = [{"id": rng.randrange(60), "text": f"text {i}"} for i in range(200)]
    first = {str(r["id"]): r["text"] for r in reversed(rows)}
    loaded = load(jsonl(tmp_path / "c.jsonl", rows), on_bad_line="skip")
    assert {p.id: p.text for p in loaded} == first and len(loaded) == len(first)
    # An article whose name repeats is left out whole.
    dump = [
        {"title": t, "text": x} for t, x in (("A", "one"), ("A", "two three"), ("B", "four"), ("A", "a b"))
    ]
    loaded = load(jsonl(tmp_path / "a.jsonl", dump), passage_words=1, on_bad_line="skip")
    assert [(p.id, p.text) for p in loaded] == [("A#0", "one"), ("B#0", "four")]


def test_empty_damaged_and_missing_files(load, tmp_path):
    with fails("empty"):
        load(jsonl(tmp_path / "empty.jsonl", ["", " "]))
    path = jsonl(tmp_path / "c.jsonl.gz", records(2000))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"plain text"):
        path.write_bytes(damaged)
        with fails("bad-file", "c.jsonl"):
            load(path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": 1, "text": "caf\xe9"}\n')
    with fails("bad-file"):
        load(tmp_path / "latin.jsonl")
    with fails("no-file"):
        load("nowhere")
    with fails("unknown-choice", "on_bad_line=perhaps"):
        load(path, on_bad_line="perhaps")


def test_articles_are_cut_into_passages_of_so_many_words(load, tmp_path):
    words = [f"w{i}" for i in range(250)]
    dump = [
        {"title": "Long", "sentences": [" ".join(words[:120]), " ".join(words[120:])]},
        {"id": "s", "title": "Short", "text": "a  b\nc"},
    ]
    *passages, short = load(jsonl(tmp_path / "a.jsonl", dump), passage_words=100)
    assert [(p.id, p.title, len(p.text.split())) for p in passages] == [
        ("Long#0", "Long", 100), ("Long#1", "Long", 100), ("Long#2", "Long", 50),
    ]  # fmt: skip
    assert " ".join(p.text for p in passages).split() == words and short == Passage("s#0", "Short", "a  b\nc")
    with fails("bad-value", "passage_words=0"):
        load(tmp_path / "a.jsonl", passage_words=0)


def test_a_store_is_a_sequence(tmp_path):
    path = jsonl(tmp_path / "c.jsonl", records(50))
    store = load_corpus(path, cache=tmp_path / "cache", in_memory=0)
    listed = load_corpus(path)
    assert store[-1] == listed[-1] and store[3:20:4] == listed[3:20:4]
    assert list(store.since(48)) == listed[48:]
    assert listed[7] in store and list(reversed(store)) == listed[::-1]
    for wrong in (50, -51):
        with pytest.raises(IndexError):
            store[wrong]
    assert fingerprint(listed) == fingerprint(list(store)) != fingerprint(listed[::-1])


def test_a_store_is_made_once_and_again_when_the_file_changes(tmp_path, monkeypatch):
    load = partial(load_corpus, cache=tmp_path / "cache", in_memory=0)
    path = jsonl(tmp_path / "c.jsonl", records(20))
    first = load(path)
    monkeypatch.setattr(corpus, "read_passages", None)
    path = path.rename(tmp_path / "moved.jsonl")  # the bytes count, not the name
    assert load(path).fingerprint == first.fingerprint
    monkeypatch.undo()
    path.write_text(path.read_text().replace("text 3 ", "text 4 "))  # as many bytes
    changed = load(path)
    assert changed.fingerprint != first.fingerprint and changed[3].text.startswith("text 4 ")
    assert load(path, passage_words=1)[0].id == "0#0"


def test_a_store_whose_making_was_interrupted_or_damaged_is_made_again(tmp_path, caplog):
    load = partial(load_corpus, cache=tmp_path / "cache", in_memory=0)
    path = jsonl(tmp_path / "c.jsonl", records(40))
    with interrupted(corpus, "encode", 25):
        load(path)
    whole = load(path)
    assert list(whole) == load_corpus(path)
    file = whole.path / "passages.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    assert list(load(path)) == load_corpus(path)
    assert "damaged: making it again" in caplog.text


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = jsonl(tmp_path / "c.jsonl", records(40))

    def growing(*args, **kwargs):
        yield from read(*args, **kwargs)
        with path.open("a") as file:
            file.write("\n")

    read = corpus.read_passages
    monkeypatch.setattr(corpus, "read_passages", growing)
    with fails("changed", kind=RunError):
        load_corpus(path, cache=tmp_path / "cache", in_memory=0)


def test_memory_does_not_grow_with_the_texts(tmp_path):
    path = jsonl(tmp_path / "c.jsonl", ({"id": i, "text": "word " * 400} for i in range(8000)))
    tracemalloc.start()
    store = load_corpus(path, cache=tmp_path / "cache")
    assert sum(len(p.text) for p in store) == 8000 * 2000
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


def test_of_two_that_build_the_same_folder_one_waits_and_reads(tmp_path, caplog):
    made = []

    def make(folder):
        made.append(folder)
        time.sleep(0.3)
        (folder / "file").write_text("whole")
        return {"n": 1}

    with ThreadPoolExecutor(2) as pool:
        building = [pool.submit(build_once, tmp_path / "x", "thing", make, lambda: None) for _ in range(2)]
    assert [each.result() for each in building] == [{"n": 1}] * 2 and len(made) == 1
    assert "another process" in caplog.text
    assert (tmp_path / "x" / "file").read_text() == "whole" and not (tmp_path / "x.partial").exists()


def test_an_estimate_comes_first_and_a_full_disk_is_seen_before_the_work(tmp_path, caplog, monkeypatch):
    def build(name):
        return build_once(tmp_path / name, "thing", lambda folder: {}, lambda: Estimate(120, 5e6, 2e9))

    build("a")
    assert "about 2 min, 5 MB of disk, 2.0 GB of memory" in caplog.text
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with fails("disk", "5 MB", kind=RunError):
        build("b")
    assert not (tmp_path / "b").exists()
