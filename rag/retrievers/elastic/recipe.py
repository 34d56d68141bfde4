"""How an index is made, and what an existing one must have been made with to be used again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from probers.files import canonical_json, digest
from probers.types import UserError

Fields = Literal["joined", "separate"]

#: The analyzer that finds the words of :func:`probers.rag.retrievers.lexical.tokenize`.
WORD = "word"
_FORMAT = 1
#: Characters of a word that count: Lucene refuses a document with a word of 32,766 bytes or more.
_LONGEST_WORD = 8000
_NAME = re.compile(r"[^A-Z\\/*?\"<>| ,#:\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A corpus and the settings of its index.

    Attributes:
        corpus: fingerprint of the passages, in their order.
        passages: how many they are.
        k1: as of BM25.
        b: as of BM25.
        analyzer: ``word``, or the name of one that the server has ("english", "standard", ..).
        fields: ``joined`` scores title and text as one text; ``separate`` scores each, and takes
            the better score plus half the other.
    """

    corpus: str
    passages: int
    k1: float
    b: float
    analyzer: str
    fields: Fields

    def __post_init__(self) -> None:
        if self.fields not in get_args(Fields):
            raise UserError(f"retriever.fields={self.fields} is unknown: choose joined or separate")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.analyzer):
            raise UserError(
                f"retriever.analyzer={self.analyzer!r} is no name: give word, or an analyzer of the server"
            )

    @property
    def index(self) -> str:
        """Name of the index when none is given: another corpus or setting has another one."""
        return "probers-" + digest(canonical_json(asdict(self)))

    def meta(self, *, complete: bool) -> dict[str, Any]:
        """What is kept in the mapping's ``_meta``."""
        return {"probers": {"format": _FORMAT, "complete": complete, **asdict(self)}}

    def differences(self, meta: Mapping[str, Any]) -> list[str]:
        """In what an index with this ``_meta["probers"]`` was made otherwise; empty where it was not."""
        wanted = {"format": _FORMAT, **asdict(self)}
        return [f"{k}: {meta.get(k)} there, {v} here" for k, v in wanted.items() if meta.get(k) != v]

    def definition(self, *, shards: int, replicas: int) -> dict[str, Any]:
        """Body of the request that creates the index, ready for loading.

        Positions of words are left out (no phrase is ever searched). Searches do not see what is
        loaded until it is refreshed.
        """
        analysis: dict[str, Any] = {}
        analyzer = self.analyzer
        if analyzer == WORD:
            analyzer = "probers_word"
            analysis = {
                # Letters and numbers of any script, which Java's own \w is not.
                "tokenizer": {"probers_word": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}},
                "filter": {"probers_cut": {"type": "truncate", "length": _LONGEST_WORD}},
                "analyzer": {
                    "probers_word": {
                        "type": "custom",
                        "tokenizer": "probers_word",
                        "filter": ["lowercase", "probers_cut"],
                    }
                },
            }
        searched = {
            "type": "text", "analyzer": analyzer, "similarity": "probers_bm25", "index_options": "freqs"
        }  # fmt: skip
        if self.fields == "joined":
            copied = {"type": "text", "index": False, "copy_to": "contents"}
            texts = {"title": copied, "text": copied, "contents": searched}
        else:
            texts = {"title": searched, "text": searched}
        return {
            "settings": {
                "index": {
                    "number_of_shards": shards,
                    "number_of_replicas": replicas,
                    "refresh_interval": "-1",
                    "similarity": {"probers_bm25": {"type": "BM25", "k1": self.k1, "b": self.b}},
                    **({"analysis": analysis} if analysis else {}),
                }
            },
            "mappings": {
                "dynamic": "strict",
                "_meta": self.meta(complete=False),
                "properties": {
                    "n": {"type": "integer"},
                    "id": {"type": "keyword", "index": False, "doc_values": False},
                    **texts,
                },
            },
        }

    def match(self, text: str) -> dict[str, Any]:
        """The query for a text: its words, none of which is an operator."""
        if self.fields == "joined":
            return {"match": {"contents": {"query": text}}}
        return {
            "multi_match": {
                "query": text, "type": "best_fields", "fields": ["title", "text"], "tie_breaker": 0.5
            }
        }  # fmt: skip


def check_name(name: str) -> str:
    """The name of an index if a server takes it.

    Raises:
        UserError: it would not.
    """
    if not _NAME.fullmatch(name) or name[0] in "-_+" or name in (".", "..") or len(name.encode()) > 255:
        raise UserError(
            f"retriever.index={name!r} is no name for an index: give at most 255 bytes of lower-case "
            "letters, digits, - _ + and ., the first a letter or digit"
        )
    return name
