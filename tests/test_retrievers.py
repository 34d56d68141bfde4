"""Both BM25 engines: the formula by hand, one ranking, no padding."""

import math
import os
import subprocess
import sys

import bm25s
import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails
from hypothesis import given, settings
from hypothesis import strategies as st

from probers.data.corpus import load_corpus
from probers.rag.retrievers import BM25, RankBM25, bm25
from probers.rag.retrievers.bm25 import Vocabulary, build_index
from probers.rag.retrievers.lexical import document_tokens, tokenize
from probers.types import Passage
from probers.words import text

ENGINES = [BM25, RankBM25]


def corpus(*texts):
    return [Passage(str(i), "", text) for i, text in enumerate(texts)]


def ids(results):
    return [passage.id for passage in results]


@pytest.mark.parametrize("engine", ENGINES)
def test_score_is_lucenes_formula_by_hand(engine):
    # N=3, lengths 2, 4, 3, mean 3. "mara" is in documents 0 and 1: idf = ln(1 + 1.5/2.5) = ln 1.6.
    # k1=1.2, b=0.75. Document 0: 1/(1 + 1.2*(0.25 + 0.75*2/3)) = 1/1.9.
    # Document 1, tf=2: 2/(2 + 1.2*1.25) = 2/3.5.
    passages = engine(corpus("mara tor", "mara mara vel sin", "lune ora vel")).search(["Mara?"], 3)[0]
    factor = math.log(1.6) * (2.2 if engine is RankBM25 else 1.0)
    assert ids(passages) == ["1", "0"]
    assert [p.score for p in passages] == pytest.approx([2 / 3.5 * factor, factor / 1.9], rel=1e-5)


def test_a_search_that_is_compiled_or_on_the_disk_finds_the_same(tmp_path, monkeypatch):
    texts, queries = skewed(300)
    texts[100:120] = ["t1 t2"] * 20  # ties
    queries += ["t1 t2", "zebra", "", "?!", "t1 zebra t1"]
    plain, on_disk = BM25(corpus(*texts)), BM25(stored(tmp_path, texts), cache=tmp_path / "bm25")
    monkeypatch.setattr(bm25, "COMPILED_FROM", 1)
    compiled = BM25(corpus(*texts))
    assert compiled._index._compute_relevance_from_scores is not plain._index._compute_relevance_from_scores
    for k in (1, 10, 1000):
        assert compiled.search(queries, k) == plain.search(queries, k) == on_disk.search(queries, k)


@pytest.mark.parametrize("engine", ENGINES)
def test_titles_are_searched_and_bad_requests_are_named(engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    retriever = engine([Passage("a", "Vamora", "a river"), Passage("b", "Telka", "a town")])
    assert ids(retriever.search(["telka"], 1)[0]) == ["b"]
    with fails("bad-value", "k=0"):
        retriever.search(["unknown"], 0)
    silent = ["...", "?!"]
    for nothing, named in (([], ""), (corpus(*silent), ""), (stored(tmp_path, silent), "2 passages")):
        with fails("empty", named):
            engine(nothing)


WORDS = [f"w{i}" for i in range(25)]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=60)
@given(
    st.lists(TEXTS, min_size=1, max_size=30), TEXTS, st.integers(1, 12), st.floats(0.3, 3), st.floats(0, 1)
)
def test_both_engines_rank_alike(texts, query, k, k1, b):
    """The same passages with the same scores; where two scores tie to rounding the order may differ."""
    fast, exact = (e(corpus(*texts), k1=k1, b=b).search([query], k)[0] for e in ENGINES)
    scores = np.array([p.score for p in exact]) / (k1 + 1)
    assert len(fast) == len(exact)
    assert np.allclose([p.score for p in fast], scores, rtol=1e-5)
    gaps = np.abs(np.diff(scores, append=0)) > 1e-5 * scores
    clear = gaps & np.concatenate([[True], gaps[:-1]])
    clear[-1:] = False  # the last place may be shared with a passage that k left out
    assert np.array(ids(fast))[clear].tolist() == np.array(ids(exact))[clear].tolist()


def skewed(n, seed=0):
    """Texts whose words are as unequally frequent as those of a language."""
    rng = np.random.default_rng(seed)
    draw = lambda size: " ".join(f"t{min(int(x), 400)}" for x in rng.zipf(1.3, size))  # noqa: E731
    return [draw(int(rng.integers(1, 60))) for _ in range(n)], [draw(6) for _ in range(50)]


def stored(folder, texts):
    """The same corpus on the disk."""
    path = write_lines(folder / "corpus.jsonl", ({"id": i, "text": t} for i, t in enumerate(texts)))
    return load_corpus(path, cache=folder / "cache", in_memory=0)


@pytest.mark.parametrize(("shard", "block"), [(10**6, 10**6), (300, 40), (1, 500)])
def test_the_streamed_index_is_that_of_bm25s_whatever_the_size_of_shards_and_blocks(tmp_path, shard, block):
    texts, _ = skewed(50)
    texts[3] = texts[49] = "..."  # no token
    build_index(stored(tmp_path, texts), tmp_path, 1.2, 0.75, shard=shard, block=block)
    streamed, vocabulary = bm25s.BM25.load(tmp_path, mmap=True, load_vocab=False), Vocabulary(tmp_path)
    assert not (tmp_path / "shards").exists()
    plain = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    plain.index(document_tokens(corpus(*texts)), show_progress=False)
    tokens = sorted(t for t in plain.vocab_dict if t)
    assert len(vocabulary) == len(tokens)
    for token in tokens:
        here, there = vocabulary.get(token), plain.vocab_dict[token]
        for name in ("indices", "data"):
            both = ((streamed.scores, here), (plain.scores, there))
            ours, theirs = (scores[name][slice(*scores["indptr"][n : n + 2])] for scores, n in both)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6 if name == "data" else 0)


def test_an_index_is_made_once_for_its_corpus_and_parameters(tmp_path, monkeypatch):
    (texts, queries), cache = skewed(60), tmp_path / "bm25"
    store = stored(tmp_path, texts)
    first = BM25(store, cache=cache).search(queries, 5)
    monkeypatch.setattr(bm25, "count_shard", None)
    assert BM25(store, cache=cache).search(queries, 5) == first
    monkeypatch.undo()
    changed = [f"{t} t1" for t in texts]
    for others, k1 in ((texts, 2.0), (changed, 1.2)):
        results = BM25(stored(tmp_path, others), cache=cache, k1=k1).search(queries, 5)
        assert results == BM25(corpus(*others), k1=k1).search(queries, 5) != first
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 3


@pytest.mark.parametrize("engine", ENGINES)
def test_fewer_matches_are_not_padded_and_ties_keep_the_corpus_order(engine):
    """Okapi's idf of a word in every passage would be negative and the passages would vanish."""
    retriever = engine(corpus("red apple", "green pear", "green apple"))
    several, none, empty, few = retriever.search(["apple", "zebra", "", "pear"], 10)
    assert ({*ids(several)}, none, empty, ids(few)) == ({"0", "2"}, [], [], ["1"])
    assert ids(retriever.search(["pear"], 2)[0]) == ["1"]  # fewer than the corpus, and not padded
    assert ids(engine(corpus("the apple", "the pear")).search(["the"], 5)[0]) == ["0", "1"]
    retriever = engine(corpus(*["same words"] * 20, "other"))
    assert ids(retriever.search(["words"], 7)[0]) == [str(i) for i in range(7)]


@pytest.mark.parametrize(("name", "damage"), [
    ("00003.terms", lambda blob: blob[:-9]), ("00001.rows.npy", lambda blob: blob[:-2] + b"00"),
    ("00001.json", lambda blob: blob[:-9]),
])  # fmt: skip
def test_an_interrupted_index_goes_on_after_its_whole_shards(tmp_path, monkeypatch, caplog, name, damage):
    """It is interrupted at its fourth shard, which may be cut off; others that are damaged are told."""
    (texts, queries), begun, counted = skewed(200), [], bm25.count_shard
    store = stored(tmp_path, texts)

    def count(folder, number, first, passages, tokens):
        begun.append((number, first))
        if len(begun) == 4:
            (folder / "00003.terms").write_text("a shard that was cut off")
            raise KeyboardInterrupt
        return counted(folder, number, first, passages, 1000)

    monkeypatch.setattr(bm25, "count_shard", count)
    with pytest.raises(KeyboardInterrupt):
        BM25(store, cache=tmp_path / "bm25")
    file = next((tmp_path / "bm25").glob("*.partial")) / "shards" / name
    file.write_bytes(damage(file.read_bytes()))
    results = BM25(store, cache=tmp_path / "bm25").search(queries, 5)
    assert results == BM25(corpus(*texts)).search(queries, 5)
    whole = int(name[4])
    assert begun[4] == begun[whole]  # nothing that is whole is counted twice
    assert ("00001.json" in caplog.text) == (whole == 1)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("L'Été 1995, O-Tarn_2!", ["l", "été", "1995", "o", "tarn_2"]), ("Dvor\u030ca\u0301k", ["dvořák"]),
        ("Straße", ["strasse"]), ("ﬁne", ["fine"]), ("İstanbul", ["istanbul"]), ("Ｃａｆé", ["café"]),
        ("co\u00adop", ["coop"]), ("كِتَاب كتـــاب", ["كتاب", "كتاب"]), ("שָׁלוֹם", ["שלום"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),  # with their vowel signs
        ("São–Tomé 東京都 x", ["são", "tomé", "東京", "京都", "x"]),
    ],
)  # fmt: skip
def test_tokens_are_words_of_any_script_without_their_case_and_form(text, tokens):
    assert tokenize(text) == tokens


def test_scripts_without_spaces_are_found_by_their_pairs():
    every = "".join(chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000)
    runs = "".join(text._UNSPACED.findall(every))
    assert len(runs) > 90_000 and len(text._MAY_BE_UNSPACED.findall(runs)) == len(runs)
    for query, expected in (
        ("李白出生于哪里?", "李白是唐代的诗人,出生于碎叶城。"),
        ("เมืองหลวงของไทย", "กรุงเทพเป็นเมืองหลวง"),
    ):
        for engine in ENGINES:
            (hits,) = engine(corpus("Something else altogether.", expected)).search([query], 2)
            assert ids(hits) == ["1"]


def test_jax_is_not_started(tmp_path):
    """It would take three quarters of a GPU's memory; converse: who asks for it still gets it."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("started = True\n")
    code = "import sys, probers.rag.retrievers.bm25; assert 'jax' not in sys.modules; import jax; jax.started"
    there = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": there})
