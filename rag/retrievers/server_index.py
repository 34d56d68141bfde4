"""Index of a corpus on a search server: one for every corpus and settings, searched once it is complete.

An index is named after the digest of its recipe (corpus, formula, analyzer, fields) and a number,
``NAME-DIGEST-1``. The alias ``NAME-DIGEST`` is added when all passages are in it, and searches go through
the alias. Making it anew makes the next number, to which the alias is then moved.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from probers.data.corpus import fingerprint, passages_from
from probers.files import canonical_json, digest
from probers.progress import Bar
from probers.types import Passage, ProbersError, RunError, UserError, shortlist

from .lexical import tokenize, tokens_of
from .server import PassingError, Server, is_passing

log = logging.getLogger(__name__)

#: Analyzer of tokens that are made here, and its analyzer on the server: their order is all that it keeps.
WORD, WHITESPACE = "word", "whitespace"
#: Passages and bytes per request while loading.
BULK = {"passages": 1000, "bytes": 8_000_000}
#: Seconds without progress after which the filling of another process is taken over, and between two looks.
QUIET, LOOK = 8.0, 0.5
_MOST_REFUSED = 10  # refused passages after which loading stops
_LONGEST = 255  # UTF-16 units at which the server cuts a token in two


class Document(NamedTuple):
    """A passage on its way to the server: its row in the corpus, and its lines in a bulk request."""

    row: int
    lines: bytes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Corpus and settings of an index; any other value is another index.

    Attributes:
        searched: names of the fields with text.
    """

    corpus: str
    k1: float
    b: float
    analyzer: str
    fields: str

    @classmethod
    def of(cls, passages: Sequence[Passage], **options: Any) -> Recipe:
        return cls(corpus=fingerprint(passages), **options)

    def record(self, version: int = 4) -> dict[str, Any]:
        """Return what an index of a version keeps of its recipe."""
        return {**vars(self), "format": version}

    @property
    def searched(self) -> list[str]:
        return ["title", "text"] if self.fields == "separate" else ["contents"]


@dataclass(eq=False)
class ServerIndex:
    """The index of one recipe, made on first use and shared by all processes.

    Of processes that begin together one loads and the others wait; should it die, another goes on. Indexes
    of other recipes are left alone, and so is everything that probers did not make.

    Attributes:
        plain: name that the user gave, None for one by the recipe alone.
        shards, replicas: of a new index.
        searched: name to search, known after :meth:`open`.
        earlier: True for an index of version 0.2, which has the server's tokens and no places of words.
    """

    server: Server
    passages: Sequence[Passage]
    recipe: Recipe
    plain: str | None = None
    shards: int = 1
    replicas: int | str = "auto"
    #: What a search asks of the passages found.
    body: ClassVar[dict[str, Any]] = {"_source": False, "sort": [{"_score": "desc"}, {"n": "asc"}]}

    def __post_init__(self) -> None:
        self.name = f"{self.plain or 'probers'}-{digest(canonical_json(self.recipe.record()))}"
        self._old = self.plain or f"probers-{digest(canonical_json(self.recipe.record(3)))}"
        self.searched, self.earlier, self.places = self.name, False, True
        self.tokens, self.documents = self.recipe.analyzer == WORD, len(self.passages)

    def open(self, *, rebuild: bool = False) -> None:
        """Find the complete index, wait for the process that fills it, or make it."""
        there = self._there()
        if not rebuild and self._complete(there) is None and self._is_old(there):
            log.warning(
                "index %s is of an earlier version: its tokens are the server's, and rarity counts passages "
                "with all words of a phrase; retriever.rebuild=true makes another", self._old,
            )  # fmt: skip
            self.searched, self.earlier, self.places, self.tokens = self._old, True, False, False
            return
        before = self._complete(there) if rebuild else None
        while (complete := self._complete(there)) is None or complete == before:
            self._advance(there, complete, anew=rebuild)
            there = self._there()
        self.server.ask(self.server.client.cluster.health, index=complete)  # waits for its shards
        self._fill(complete)

    def drop(self) -> None:
        """Remove the index and what was left of its making; the next retriever makes it again."""
        if self.earlier:
            self._delete([self._old])
        else:
            self._delete([name for name in self._there() if self._number(name)])

    def check(self, indexes: Sequence[str]) -> None:
        """Refuse hits of other indexes than this recipe's, or an old one that was made of another corpus."""
        if not (self._is_old(self._there()) if self.earlier else all(map(self._number, indexes))):
            problem = "has become that of another corpus or setting: start again"
            raise RunError(f"index {self.searched} ({self.server.name}) {problem}", "changed")

    def passage(self, hit: Mapping[str, Any], query: str) -> Passage:
        """Take a passage found from the corpus, with its score (RunError for one that is not there)."""
        score, row = hit["sort"]
        if str(row) != hit["_id"] or not 0 <= row < len(self.passages):
            message = f"{self.server.name} answered {query[:80]!r} with documents not in the corpus"
            raise RunError(f"{message}: rebuild index {self.searched} with retriever.rebuild=true", "server")
        return replace(self.passages[row], score=float(score))

    def _there(self) -> dict[str, Any]:
        """Return all indexes with our names as the server knows them; refuse those of others."""
        names = ",".join([self._old, self.name, f"{self.name}-*"])
        get = self.server.client.indices.get
        there: dict[str, Any] = self.server.ask(get, index=names, ignore_unavailable=True)
        for name, index in there.items():
            if not _made_of(index):
                message = f"index {name} was not made by probers and is left alone"
                remedy = "retriever.existing=true searches it as it is; or choose another retriever.index"
                raise UserError(f"{message}: {remedy}", "out-taken")
        return there

    def _number(self, index: str) -> int:
        """Read the number at the end of an index's name, from 1 on; 0 for those of other recipes."""
        match = re.fullmatch(rf"{re.escape(self.name)}-(\d+)", index)
        return int(match[1]) if match else 0

    def _complete(self, there: Mapping[str, Any]) -> str | None:
        complete = [name for name, index in there.items() if self.name in index.get("aliases", ())]
        return max(complete, key=self._number, default=None)

    def _is_old(self, there: Mapping[str, Any]) -> bool:
        """Tell whether a complete index of version 0.2 has this recipe."""
        return (
            _made_of(there.get(self._old, {})) == self.recipe.record(3)
            and self._count(self._old) == len(self.passages)
        )  # fmt: skip

    def _advance(self, there: Mapping[str, Any], complete: str | None, *, anew: bool) -> None:
        """Make and fill the next index after the complete one, or wait while another process does."""
        last = self._number(complete or "")
        begun = [name for name in there if self._number(name) > last]
        index = max(begun, key=self._number, default=f"{self.name}-{last + 1}")
        if begun or not self._create(index):
            if self._progress(index):
                return
            self.server.ask(self.server.client.cluster.health, index=index)  # waits for its shards
            self.server.ask(self.server.client.indices.refresh, index=index)
            if anew and self._count(index) > len(self.passages):
                self._delete([index])
                return
        self._fill(index)
        earlier = [name for name in self._there() if 0 < self._number(name) < self._number(index)]
        actions = [{"add": {"index": index, "alias": self.name}}]
        actions += [{"remove_index": {"index": name}} for name in earlier]
        self.server.ask(self.server.client.indices.update_aliases, body={"actions": actions})

    def _progress(self, index: str) -> bool:
        """Look for a while whether another process fills the index, or has finished or removed it."""
        log.info("index %s is being filled by another process: waiting for it", index)
        quiet = QUIET * (1 + random.random())  # so that not all of those that wait take over
        end, seen = time.monotonic() + quiet, self._indexed(index)
        while time.monotonic() < end:
            time.sleep(LOOK)
            there = self._there()
            if index not in there or self.name in there[index].get("aliases", ()):
                return True
            if (now := self._indexed(index)) != seen:
                seen, end = now, time.monotonic() + quiet
        log.info("nobody fills index %s: going on with it", index)
        return False

    def _indexed(self, index: str) -> int:
        """Count the documents that were sent to an index, taken or not."""

        def read(body: Mapping[str, Any]) -> int:
            counts = body["_all"]["primaries"].get("indexing", {})
            return int(counts.get("index_total", 0) + counts.get("index_failed", 0))

        stats = self.server.client.indices.stats
        return self.server.ask(stats, read=read, index=index, metric="indexing")  # type: ignore[no-any-return]

    def _create(self, index: str) -> bool:
        """Create an index; return False if another process was first."""
        analyzer = WHITESPACE if self.recipe.analyzer == WORD else self.recipe.analyzer
        text = {"type": "text", "analyzer": analyzer, "similarity": "probers"}
        auto = self.replicas == "auto"
        layout = {
            "number_of_shards": self.shards, "refresh_interval": "-1",
            "auto_expand_replicas" if auto else "number_of_replicas": "0-1" if auto else self.replicas,
            "similarity": {"probers": {"type": "BM25", "k1": self.recipe.k1, "b": self.recipe.b}},
        }  # fmt: skip
        mappings = {
            "dynamic": "strict", "_meta": {"probers": self.recipe.record()},
            "properties": {"n": {"type": "integer"}, **dict.fromkeys(self.recipe.searched, text)},
        }  # fmt: skip
        try:
            body = {"settings": layout, "mappings": mappings}
            self.server.ask(self.server.client.indices.create, index=index, body=body)
        except ProbersError as error:
            if "resource_already_exists_exception" not in str(error):
                raise
            return False
        return True

    def _count(self, index: str) -> int:
        count = self.server.client.count
        return self.server.ask(count, read=lambda body: int(body["count"]), index=index)  # type: ignore[no-any-return]

    def _delete(self, indexes: Sequence[str]) -> None:
        if indexes:
            delete = self.server.client.indices.delete
            self.server.ask(delete, index=",".join(indexes), ignore_unavailable=True)

    def _fill(self, index: str) -> None:
        """Send all passages unless they are there; replace none: the idf would count deleted versions."""
        total, refused = len(self.passages), list[str]()
        if (holds := self._count(index)) < total:
            with Bar(desc="index", total=total, disable=total <= 20_000) as bar:
                for documents in _chunks(self._documents()):
                    refused += self._send(index, documents)
                    bar.update(len(documents))
                    if len(refused) >= _MOST_REFUSED:
                        break
            if refused:
                reasons = shortlist(refused, _MOST_REFUSED)
                raise self.server.error(f"{len(refused)} passages are refused: {reasons}")
            self.server.ask(self.server.client.indices.refresh, index=index)
            holds = self._count(index)
        if holds != total:
            message = f"index {index} ({self.server.name}) holds {holds} passages and the corpus has {total}"
            remedy = "the same command loads what is missing, with retriever.rebuild=true all"
            raise RunError(f"{message}: check its disk; {remedy}", "server")

    def _send(self, index: str, documents: Sequence[Document]) -> list[str]:
        """Send documents, again those that the server postpones; describe those that it refuses."""
        left, refused = list(documents), list[str]()

        def created(body: Mapping[str, Any]) -> list[dict[str, Any]]:
            return [item["create"] for item in body["items"]]

        def send() -> None:
            body = b"".join(document.lines for document in left).decode()
            results = self.server.once(self.server.client.bulk, read=created, body=body, index=index)
            pairs = zip(list(left), results, strict=True)
            failed = [pair for pair in pairs if pair[1]["status"] not in (200, 201, 409)]  # 409: there
            refused.extend(self._described(*pair) for pair in failed if not is_passing(pair[1]))
            postponed = [pair for pair in failed if is_passing(pair[1])]
            left[:] = [document for document, _ in postponed]
            if left:
                reason = self._described(*postponed[0])
                raise PassingError(self.server.error(f"{len(left)} passages are postponed: {reason}"))

        try:
            self.server.patiently(send)
        except ProbersError as error:
            if ": HTTP 413" not in str(error):
                raise
            if len(left) == 1:
                name, size = self.passages[left[0].row].id, len(left[0].lines)
                message = f"{self.server.name} takes no request of {size:,} bytes (HTTP 413)"
                remedy = "pass passage_words=100 to cut passages, or raise its http.max_content_length"
                raise UserError(f"{message}, as passage {name!r} needs: {remedy}", "too-long") from None
            half = len(left) // 2
            return [*refused, *self._send(index, left[:half]), *self._send(index, left[half:])]
        return refused

    def _described(self, document: Document, result: Mapping[str, Any]) -> str:
        return f"{self.passages[document.row].id!r} ({self.server.reason(result['error'])})"

    def _documents(self) -> Iterator[Document]:
        for row, passage in enumerate(passages_from(self.passages, 0)):
            if self.recipe.analyzer != WORD:
                texts = {"title": passage.title, "text": passage.text}
                texts["contents"] = f"{passage.title} {passage.text}"
            elif self.recipe.fields == "joined":
                texts = {"contents": spaced(tokens_of(passage))}
            else:
                texts = {name: spaced(tokenize(getattr(passage, name))) for name in ("title", "text")}
            fields = {name: utf8(texts[name]) for name in self.recipe.searched}
            lines = [{"create": {"_id": str(row)}}, {"n": row, **fields}]
            dump = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
            text = "".join(f"{dump(line)}\n" for line in lines)
            yield Document(row, text.encode())


def spaced(tokens: Sequence[str]) -> str:
    """Join tokens for the analyzer of white space, each cut where that would cut it in two."""
    return " ".join(map(_cut, tokens))


def _cut(token: str) -> str:
    if len(token) <= _LONGEST // 2:
        return token
    return token.encode("utf-16-le")[: 2 * _LONGEST].decode("utf-16-le", "ignore")


def utf8(text: str) -> str:
    """Make a text that servers accept: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()


def _made_of(index: Mapping[str, Any]) -> Any:
    return index.get("mappings", {}).get("_meta", {}).get("probers")


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Gather documents into requests."""
    chunk, size = list[Document](), 0
    for document in documents:
        full = len(chunk) == BULK["passages"] or size + len(document.lines) > BULK["bytes"]
        if chunk and full:
            yield chunk
            chunk, size = [], 0
        chunk.append(document)
        size += len(document.lines)
    if chunk:
        yield chunk
