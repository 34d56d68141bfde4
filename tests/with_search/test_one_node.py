"""``retriever=opensearch`` on one real node: ranks, counts, names, processes, indexes of others, failures."""

import gzip
import json
import logging
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.artefacts import read_lines, write_lines
from helpers.refusals import exits, fails
from search_nodes import alone

from probers.data.corpus import load_corpus
from probers.rag.retrievers import BM25, Elasticsearch, server_index
from probers.rag.retrievers.lexical import tokens_of
from probers.types import Passage, RunError

DATA = Path(__file__).parents[3] / "shared" / "data"
ROOT = Path(__file__).parents[2]

CHINESE = [
    "北京是中华人民共和国的首都，也是全国的政治中心。", "上海是中国最大的城市之一，位于长江入海口。",
    "黄河是中国第二长的河流。", "東京は日本の首都であり、人口が最も多い都市である。",
    "故宫位于北京市中心，是明清两代的皇宫。", "李白是唐代著名诗人，被称为诗仙。",
]  # fmt: skip
SCRIPTS = [
    "The room has 40 km² of H₂O in an oﬃce", "हिन्दी भारत की राजभाषा है", "שָׁלוֹם עֲלֵיכֶם",
    "Москва́ — столи́ца Росси́и",
    "ประเทศไทยมีกรุงเทพเป็นเมืองหลวง", "Café Zoë in Łódź", "İstanbul STRASSE straße", "x_2 y-3 don't 3.14",
]  # fmt: skip


def corpus(*texts):
    return [Passage(f"p{i}", "", text) for i, text in enumerate(texts)]


def connect(node, passages=None, **options):
    return Elasticsearch(passages, **{"url": node.url, "timeout": 20, **options})


def ids(rows):
    return [[p.id for p in row] for row in rows]


TEXT = {"type": "text"}


def put(node, index, properties, *documents, analysis=None, **mappings):
    """Make an index of others, with documents "0", "1", .."""
    body = {"settings": {"analysis": analysis or {}}, "mappings": {"properties": properties, **mappings}}
    node.send("PUT", f"/{index}", body)
    for i, document in enumerate(documents):
        node.send("PUT", f"/{index}/_doc/{i}?refresh=true", document)


def loaded(node, index):
    """How many documents were sent to an index."""
    counts = node.get(f"/{index}/_stats/indexing")["_all"]["primaries"].get("indexing", {})
    return counts.get("index_total", 0) + counts.get("index_failed", 0)


def skewed(count, seed=0):
    """Passages of up to 38 words with the frequencies of a text, and titles of two."""
    rng = np.random.default_rng(seed)
    draw = lambda n: " ".join(f"t{min(int(x), 300)}" for x in rng.zipf(1.4, n))  # noqa: E731
    return [Passage(f"id {i}", draw(2), draw(int(rng.integers(3, 37)))) for i in range(count)]


@pytest.fixture
def quick(monkeypatch):
    """Take over soon what nobody fills, and wait for little."""
    monkeypatch.setattr(server_index, "QUIET", 0.3)
    monkeypatch.setattr(server_index, "LOOK", 0.1)


@pytest.fixture(scope="module")
def real():
    """Real passages of at most 40 words, and 200 real questions."""
    if not (DATA / "passages.jsonl.gz").is_file():
        pytest.skip("../shared/data is not here")
    with gzip.open(DATA / "passages.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for _, line in zip(range(4000), file, strict=False)]
    passages = [Passage(str(i), r["title"], " ".join(r["text"].split()[:28])) for i, r in enumerate(records)]
    lines = (DATA / "qa" / "nq.jsonl").read_text().splitlines()[:200]
    short = [passage for passage in passages if len(tokens_of(passage)) <= 40]
    return short, [json.loads(line)["question"] for line in lines]


def same_passages(ours, theirs):
    """Whether two rankings have the same passages, but for equal scores."""
    for mine, other in zip(ours, theirs, strict=True):
        scores = {p.id: p.score for p in mine}
        assert len(mine) == len(other)
        for a, b in zip(mine, other, strict=True):
            assert abs(scores.get(b.id, mine[-1].score) - a.score) <= 1e-5 * a.score, (a, b)


@pytest.mark.parametrize("shards", [1, 3])
def test_real_questions_and_chinese_ones_rank_as_in_the_embedded_index(one, real, shards):
    passages, questions = real
    passages = [*passages, *corpus(*CHINESE, *SCRIPTS)]
    chinese = [text[i : i + n] for text in CHINESE for i in (0, 3) for n in (4, 7)]
    queries = [*questions, *chinese, *SCRIPTS, "km2 H2O office", "Москва столица", "שלום", "first 北京"]
    theirs = connect(one, passages, shards=shards, index="ranks")
    results = theirs.search(queries, 10)
    same_passages(BM25(passages).search(queries, 10), results)
    assert all(results[len(questions) : len(questions) + len(chinese)])
    # Several at once give what each gives alone.
    alone = [theirs.search([query], 10)[0] for query in queries[:20]]
    assert [[(p.id, p.score) for p in row] for row in alone] == [
        [(p.id, p.score) for p in row] for row in results[:20]
    ]
    theirs.drop()


def test_all_counts_are_those_of_the_embedded_index(one, real):
    odd = [*CHINESE, *SCRIPTS, *["b a"] * 40, *["a b a b"] * 20, "Grace, not Hopper", "grace HOPPER"]
    passages = [
        *real[0],
        *(Passage(f"c{i}", "", t) for i, t in enumerate(odd)),
        Passage("g", "Grace", "Hopper"),
    ]
    ours, theirs = BM25(passages), connect(one, passages, index="counts")
    phrases = ["of the", "北京", "H2O", "", "?!", "unknown wordsalad", "New York City", "a b", "b a b a"]
    phrases += ["Grace Hopper", "hopper", "ŁÓDŹ", "Lodz"]
    rng = np.random.default_rng(0)
    for _ in range(150):
        words = tokens_of(passages[rng.integers(len(passages))])
        start = int(rng.integers(max(1, len(words) - 3)))
        phrases.append(" ".join(words[start : start + int(rng.integers(1, 5))]))
    pairs = list(zip(phrases, phrases[3:], strict=False))
    assert theirs.frequency(phrases) == ours.frequency(phrases)
    assert theirs.together(pairs) == ours.together(pairs)
    assert max(ours.frequency(phrases)) > 500
    theirs.drop()


@pytest.mark.parametrize("formula", [{}, {"k1": 0.9, "b": 0.4}])
def test_odd_texts_are_words_and_nothing_else(one, formula):
    odd = ["日本 É y_2 " + "z" * 40_000, "w " * 2_000_000, "a\x00b\ufffdc\u2028d", "title basil\r\n{}"]
    passages = [*skewed(400), *corpus(*odd)]
    queries = [
        '"t1" AND (t2', "É", "日本", "y_2", "the", "", " ", "t9 " * 5000, "t1* ~2 +t3 -t4", "title:basil*",
        '{"match_all": {}}', "\\ / { } [ ] ^", "t1\nbasil\x00\ud800", "z" * 40_000, "b c", "t7-t8", "w",
    ]  # fmt: skip
    queries += [p.text for p in skewed(40, seed=1)]
    retriever = connect(one, passages, index="odd", **formula)
    ours, results = BM25(passages, **formula).search(queries, 10), retriever.search(queries, 10)
    assert ids(results) == ids(ours)
    factor = 1 + formula.get("k1", 1.2)
    scores = [factor * p.score for row in ours[-40:] for p in row]  # of whole questions
    assert [p.score for row in results[-40:] for p in row] == pytest.approx(scores, rel=1e-4)
    retriever.drop()


def test_ties_keep_the_corpus_order_and_few_matches_are_not_padded(one):
    retriever = connect(one, corpus(*["same words"] * 20, "other"), index="ties")
    results = ids(retriever.search(["words", "other", "zebra", "same other"], 10**9))
    assert results[:3] == [[f"p{i}" for i in range(20)], ["p20"], []] and len(results[3]) == 21
    assert ids(retriever.search(["words"], 7)) == [[f"p{i}" for i in range(7)]]
    assert retriever.search([], 3) == []
    with fails("bad-value", "k=0"):
        retriever.search(["words"], 0)
    # An index of others returns so many and no more.
    put(one, "few", {"text": TEXT}, {"text": "amber"})
    existing = connect(one, index="few", existing=True)
    with fails("server", "HTTP 400", "max_result_window", "k"):
        existing.search(["amber"], 10_001)
    assert ids(existing.search(["amber"], 10_000)) == [["0"]]


def test_long_queries_and_phrases_are_cut_and_said(one, caplog):
    passages = corpus("amber basil", "cedar dune", "early heron", "城市" * 2000)
    retriever = connect(one, passages, fields="separate", index="long")
    assert ids(retriever.search(["early " * 200 + "cedar " * 999], 5)) == [["p1"]]
    assert "only the last 500 words" in caplog.text
    assert retriever.frequency(["amber " * 1200, "cedar dune"]) == [0, 1]
    assert "counted by its first" in caplog.text
    # Of a script without spaces each character counts; the server's analyzer makes a token of it.
    standard = connect(one, passages, analyzer="standard", index="long")
    results = standard.search(["城市" * 2000 + " heron", "amber", "城市" * 3000], 5)
    assert ids(results) == [["p3", "p2"], ["p0"], ["p3"]] and "only the last 1000 words" in caplog.text
    # An analyzer that makes many tokens of a word: the server refuses, and gets less.
    pieces = {"tokenizer": {"pieces": {"type": "ngram", "min_gram": 2, "max_gram": 3}},
              "analyzer": {"pieces": {"tokenizer": "pieces"}}}  # fmt: skip
    put(one, "pieces", {"text": TEXT | {"analyzer": "pieces"}}, {"text": "amber"}, analysis=pieces)
    query = " ".join(f"word{i}" for i in range(900)) + " amber"
    assert ids(connect(one, index="pieces", existing=True).search([query], 5)) == [["0"]]
    assert "takes fewer clauses" in caplog.text


def test_another_corpus_under_the_same_name_is_another_index(one, quick):
    first = connect(one, corpus("amber", "basil"), index="wiki")
    second = connect(one, corpus("cedar", "basil", "dune"), index="wiki")
    assert ids(first.search(["amber", "basil"], 2)) == [["p0"], ["p1"]]
    assert ids(second.search(["amber", "cedar"], 2)) == [[], ["p0"]]
    names = {name for name in one.indexes() if name.startswith("wiki-")}
    assert names == {f"{first._name}-1", f"{second._name}-1"}
    # The same is used again as it is, and other settings are another index.
    assert connect(one, corpus("amber", "basil"), index="wiki")._name == first._name
    assert loaded(one, f"{first._name}-1") == 2
    assert connect(one, corpus("amber", "basil"), index="wiki", b=0.1)._name != first._name
    # Made anew, it is another index behind the same alias; who searches goes on.
    connect(one, corpus("amber", "basil"), index="wiki", rebuild=True)
    assert f"{first._name}-2" in one.indexes() and f"{first._name}-1" not in one.indexes()
    assert ids(first.search(["amber", "basil"], 2)) == [["p0"], ["p1"]]
    # An alias that leads elsewhere stops the search, and so does an index that is gone.
    swap = [{"remove": {"index": f"{first._name}-2", "alias": first._name}},
            {"add": {"index": f"{second._name}-1", "alias": first._name}}]  # fmt: skip
    one.send("POST", "/_aliases", {"actions": swap})
    with fails("changed", first._name, kind=RunError):
        first.search(["basil"], 1)
    second.drop()
    with fails("server", "no such index", second._name):
        second.search(["cedar"], 1)


def test_an_index_that_lost_passages_is_filled_up_and_strange_ones_are_never_returned(one, quick):
    passages = corpus(*(f"word{i} amber" for i in range(50)))
    retriever = connect(one, passages, index="stray")
    index = f"{retriever._name}-1"
    one.send("DELETE", f"/{index}/_doc/42?refresh=true")
    assert retriever.search(["word42"], 1) == [[]]
    assert ids(connect(one, passages, index="stray").search(["word42"], 1)) == [["p42"]]
    for name, n, text in (("mine", 1, "cedar"), ("70", 70, "ember")):
        one.send("PUT", f"/{index}/_doc/{name}?refresh=true", {"n": n, "contents": text})
        with fails("server", repr(text), "index stray", kind=RunError):
            retriever.search([text], 2)
        with fails("server", "retriever.rebuild=true", kind=RunError):
            connect(one, passages, index="stray")
    again = connect(one, passages, index="stray", rebuild=True)
    assert ids(again.search(["word42", "ember"], 1)) == [["p42"], []]


def test_an_index_of_others_is_never_touched(one):
    put(one, "theirs", {"text": TEXT}, {"text": "amber"})
    before = one.get("/theirs")
    for rebuild in (False, True):
        with fails("out-taken", "theirs", "retriever.existing=true"):
            connect(one, corpus("amber"), index="theirs", rebuild=rebuild)
    retriever = connect(one, index="theirs", existing=True)
    retriever.search(["amber"], 1), retriever.frequency(["amber"])
    with fails("conflict", "theirs"):
        retriever.drop()
    assert one.get("/theirs") == before and not any(name.startswith("theirs-") for name in one.indexes())


OLD = {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}


def test_an_index_of_an_earlier_version_is_read_and_its_change_stops_the_search(one, caplog):
    passages = corpus("amber basil", "basil, amber", "cedar")
    recipe = server_index.Recipe.of(passages, k1=1.2, b=0.75, analyzer="word", fields="joined").record(3)
    text = {"type": "text", "analyzer": "word", "similarity": "probers", "index_options": "freqs"}
    analysis = {"tokenizer": {"words": OLD}, "analyzer": {
        "word": {"type": "custom", "tokenizer": "words", "filter": ["lowercase"]}}}  # fmt: skip
    body = {
        "settings": {"analysis": analysis, "similarity": {"probers": {"type": "BM25", "k1": 1.2, "b": 0.75}}},
        "mappings": {"dynamic": "strict", "_meta": {"probers": recipe},
                     "properties": {"n": {"type": "integer"}, "contents": text}},
    }  # fmt: skip
    one.send("PUT", "/old", body)
    for i, passage in enumerate(passages):
        one.send("PUT", f"/old/_doc/{i}?refresh=true", {"n": i, "contents": passage.text})
    retriever = connect(one, passages, index="old")
    assert retriever._name == "old" and "earlier version" in caplog.text
    assert ids(retriever.search(["CEDAR", "basil"], 3)) == [["p2"], ["p0", "p1"]]
    assert retriever.frequency(["amber basil"]) == [2] and "no places" in caplog.text
    one.send("PUT", "/old/_mapping", {"_meta": {"probers": recipe | {"corpus": "another"}}})
    with fails("changed", "old", kind=RunError):
        retriever.search(["cedar"], 1)
    # That of another corpus stays as it is, beside the new one.
    new = connect(one, passages, index="old")
    assert new._name != "old" and new.frequency(["amber basil"]) == [1] and "old" in one.indexes()


LOAD = """
import logging, sys
from probers.rag.retrievers import Elasticsearch, server_index
from probers.types import Passage
logging.basicConfig(level="INFO", format="%(message)s")
server_index.BULK["passages"] = int(sys.argv[3])
passages = [Passage(f"p{i}", "", f"word{i} amber " + "basil " * 20) for i in range(int(sys.argv[2]))]
retriever = Elasticsearch(passages, url=sys.argv[1], index=sys.argv[4], timeout=20)
print("found", retriever.search([f"word{len(passages) - 1}"], 1)[0][0].id, flush=True)
"""


def load(node, count, chunk, index):
    command = [sys.executable, "-c", LOAD, node.url, str(count), str(chunk), index]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_of_four_processes_at_once_one_loads_and_all_search(one):
    running = [load(one, 6000, 200, "four") for _ in range(4)]
    ended = [each.communicate(timeout=120) for each in running]
    assert [each.returncode for each in running] == [0] * 4, ended
    assert [out.strip() for out, _ in ended] == ["found p5999"] * 4
    (index,) = (name for name in one.indexes() if name.startswith("four-"))
    assert loaded(one, index) == 6000
    assert sum("being filled by another process" in err for _, err in ended) >= 3


def test_a_loader_that_is_killed_is_gone_on_with(one, quick, caplog):
    running = load(one, 6000, 20, "killed")
    index, end = "", time.monotonic() + 60
    while time.monotonic() < end:
        index = next((name for name in one.indexes() if name.startswith("killed-")), "")
        if index and loaded(one, index) > 400:
            break
        time.sleep(0.02)
    running.kill()
    running.communicate()
    assert 400 < loaded(one, index) < 6000
    passages = [Passage(f"p{i}", "", f"word{i} amber " + "basil " * 20) for i in range(6000)]
    retriever = connect(one, passages, index="killed")
    assert f"{retriever._name}-1" == index and "going on with it" in caplog.text
    results = retriever.search(["word0", "word5999"], 1)
    assert ids(results) == [["p0"], ["p5999"]] and retriever.frequency(["amber basil"]) == [6000]


@pytest.fixture(scope="module")
def dragin(one):
    """DRAGIN's and BEIR's index, by their recipe."""
    documents = {"0": ("The Heron", "It is a bird of the inlet."), "1": ("Inlet", "Not the herons"),
                 "2": ("Moss", "Of the moss and the kelp.")}  # fmt: skip
    text = {"type": "text", "analyzer": "english"}
    put(one, "dragin", {"title": text, "txt": text},
        *({"title": title, "txt": txt} for title, txt in documents.values()))  # fmt: skip
    return documents


def test_an_existing_index_is_searched_without_a_corpus(one, dragin):
    before = one.get("/dragin")
    retriever = connect(one, index="dragin", existing=True, text="txt")
    assert len(retriever) == 3
    (heron, kelp, stop) = retriever.search(["heron inlet", "kelp", "of the and"], 5)
    assert {p.id for p in heron} == {"0", "1"} and stop == []
    assert [(p.id, p.title, p.text) for p in kelp] == [("2", *dragin["2"])]
    # DRAGIN's own request gives the same.
    match = {"query": "heron inlet", "fields": ["title", "txt"], "type": "best_fields", "tie_breaker": 0.5}
    hits = one.send("POST", "/dragin/_search", {"query": {"multi_match": match}})["hits"]["hits"]
    assert [(hit["_id"], hit["_score"]) for hit in hits] == [(p.id, p.score) for p in heron]
    assert retriever.frequency(["the heron", "moss kelp", "moss and the kelp", "of"]) == [2, 0, 1, 0]
    assert retriever.together([("heron", "inlet"), ("heron", "kelp")]) == [2, 0]
    assert one.get("/dragin") == before


def test_layouts_of_others_are_read(one, caplog):
    inner = {"properties": {"body": TEXT, "head": TEXT}}
    put(one, "inner", {"doc": inner}, {"doc": {"body": "amber", "head": "one"}}, {"doc.body": "amber dune"},
        {"doc": [{"body": ["amber", "fjord"]}, {"body": "grove"}]})  # fmt: skip
    retriever = connect(one, index="inner", existing=True, text="doc.body", title="doc.head")
    assert {p.id: (p.title, p.text) for p in retriever.search(["amber"], 9)[0]} == {
        "0": ("one", "amber"), "1": ("", "amber dune"), "2": ("", "amber fjord grove")
    }  # fmt: skip
    # No title at all; a field within a field; an alias of a field; an alias of indexes.
    english = {"fields": {"en": {"type": "text", "analyzer": "english"}}}
    put(one, "plain", {"text": TEXT | english, "other": {"type": "alias", "path": "text"}},
        {"text": "the herons"})  # fmt: skip
    for field, query in (("text", "herons"), ("text.en", "heron"), ("other", "herons")):
        results = connect(one, index="plain", existing=True, text=field).search([query], 1)
        assert [(p.id, p.title, p.text) for p in results[0]] == [("0", "", "the herons")]
    assert "no field title" in caplog.text
    one.send("POST", "/_aliases", {"actions": [{"add": {"index": "plain", "alias": "named"}}]})
    assert ids(connect(one, index="named", existing=True).search(["herons"], 1)) == [["0"]]
    # A data stream.
    stream = {"index_patterns": ["stream*"], "data_stream": {}}
    one.send("PUT", "/_index_template/stream",
             stream | {"template": {"mappings": {"properties": {"text": TEXT}}}})  # fmt: skip
    one.send("POST", "/stream/_doc?refresh=true", {"@timestamp": "2026-01-01", "text": "amber"})
    assert connect(one, index="stream", existing=True).search(["amber"], 1)[0][0].text == "amber"
    # One without places of words, whose counts say so.
    put(one, "freqs", {"text": TEXT | {"index_options": "freqs"}}, {"text": "amber basil"},
        {"text": "basil amber"})  # fmt: skip
    assert connect(one, index="freqs", existing=True).frequency(["amber basil"]) == [2]
    assert "no places" in caplog.text


def test_indexes_that_cannot_be_searched_are_refused_in_one_sentence(one):
    nested = {"type": "nested", "properties": {"body": TEXT}}
    put(one, "odd-1", {"text": TEXT, "tag": {"type": "keyword"}, "doc": nested, "all": TEXT,
                       "copied": TEXT | {"copy_to": "all"}},
        {"text": "amber", "tag": "x", "doc": {"body": "amber"}, "copied": "dune"})  # fmt: skip
    for field, said in {"tag": "keyword", "doc.body": "nested", "txt": "it has", "all": "_source"}.items():
        with fails(None, field, said):
            connect(one, index="odd-1", existing=True, text=field)
    put(one, "odd-2", {"text": TEXT}, {"text": "amber"}, _source={"enabled": False})
    put(one, "odd-3", {"text": TEXT})
    for index, code, said in (("odd-2", "unsupported", "_source"), ("odd-3", "empty", "odd-3"),
                              ("odd-4", "server", "no such index")):  # fmt: skip
        with fails(code, said):
            connect(one, index=index, existing=True)
    for option, value, said in (("index", "Wiki", "[Wiki-"), ("index", "a,b", "[a,b"),
                                ("analyzer", "klingon", "klingon"), ("shards", 5000, "shards")):  # fmt: skip
        with fails(None, said):
            connect(one, corpus("amber"), **{option: value})
    assert not [name for name in one.indexes() if name.startswith("a,b")]


def test_a_read_only_block_is_told_and_lifted(one, quick):
    passages = corpus(*(f"word{i}" for i in range(10)))
    retriever = connect(one, passages, index="blocked")
    one.send("DELETE", f"/{retriever._name}-1/_doc/3?refresh=true")
    for block, code in (("read_only_allow_delete", "disk"), ("write", "server")):
        one.send("PUT", f"/{retriever._name}/_settings", {f"index.blocks.{block}": True})
        with fails(code, "cluster_block_exception", kind=RunError):
            connect(one, passages, index="blocked")
        one.send("PUT", f"/{retriever._name}/_settings", {f"index.blocks.{block}": None})
    assert ids(connect(one, passages, index="blocked").search(["word3"], 1)) == [["p3"]]


def test_a_node_that_is_started_again_is_waited_for(startable, tmp_path, caplog, monkeypatch):
    """Killed between searches and while passages are loaded; the run goes on where it was."""
    node = alone(tmp_path)
    try:
        node.start()
        node.wait()
        passages = corpus(*(f"word{i} amber" for i in range(900)))
        retriever = connect(node, passages)
        node.kill()
        node.start()  # it answers in some seconds
        assert ids(retriever.search(["word17", "word899"], 1)) == [["p17"], ["p899"]]
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and "waiting" in r.msg]
        monkeypatch.setitem(server_index.BULK, "passages", 100)
        sent = server_index.ServerIndex._send

        def send(self, index, documents):
            if documents[0].row == 500:
                node.kill()
                node.start()
            return sent(self, index, documents)

        monkeypatch.setattr(server_index.ServerIndex, "_send", send)
        again = connect(node, corpus(*(f"word{i} basil" for i in range(900))))
        assert again.frequency(["basil", "word500 basil"]) == [900, 1]
        monkeypatch.undo()
        node.pause(on=True)
        with fails("network", "timed out", kind=RunError):
            connect(node, passages, timeout=0.5, retries=0)
        node.pause(on=False)
        assert ids(retriever.search(["word3"], 1)) == [["p3"]]
    finally:
        node.kill()


def test_a_stored_corpus_is_loaded_and_read_by_position(one, tmp_path):
    write_lines(tmp_path / "corpus.jsonl", [{"id": f"d{i}", "text": f"word{i} amber"} for i in range(50)])
    store = load_corpus(tmp_path / "corpus.jsonl", cache=tmp_path / "cache", in_memory=0)
    assert ids(connect(one, store, index="stored").search(["word41"], 1)) == [["d41"]]


def retrieved(folder):
    """The ids of the passages of every round of every question."""
    traces = read_lines(folder / "traces.jsonl")
    return {trace["id"]: [each["passage_ids"] for each in trace["rounds"]] for trace in traces}


def test_a_run_takes_the_same_passages_as_the_embedded_index(one, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_URL", one.url)
    common = ["limit=8", "trigger=always", "max_new_tokens=4", "max_retrievals=1", "answer_tokens=2"]
    for retriever in ("bm25", "opensearch"):
        assert exits("rag", [*common, f"retriever={retriever}", f"out={retriever}"]) == 0
    results = retrieved(tmp_path / "opensearch")
    assert results == retrieved(tmp_path / "bm25") and any(rows[0] for rows in results.values())


def test_a_run_over_an_existing_index_needs_no_corpus(one, dragin, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ES_URL", one.url)
    questions = {"q1": "What is a heron?", "q2": "Where does kelp grow?"}
    write_lines(
        tmp_path / "asked.jsonl",
        [{"id": name, "question": text, "answers": ["x"]} for name, text in questions.items()],
    )
    typed = [
        "questions=asked.jsonl", "split=test", "trigger=always", "max_new_tokens=4", "answer_tokens=2",
        "retriever=opensearch", "retriever.existing=true", "retriever.index=dragin", "retriever.text=txt",
    ]  # fmt: skip
    assert exits("rag", [*typed, "out=run"]) == 0
    results = retrieved(tmp_path / "run")
    assert set(results["q1"][0]) == {"0", "1"} and results["q2"][0] == ["2"]
    write_lines(tmp_path / "more.jsonl", [{"text": "amber"}])
    assert exits("rag", [*typed, "corpus=more.jsonl", "out=other"]) == 2
    assert "retriever.existing=true" in capsys.readouterr().err
