"""BM25 by an Elasticsearch or OpenSearch server, for corpora that one machine should not hold."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from typing import Any, Literal, get_args

from tqdm import tqdm

from probers.data.corpus import fingerprint, passages_from
from probers.files import canonical_json, digest
from probers.types import Passage, RunError, UserError

from . import lexical
from .search_server import AGAIN, AgainError, RefusedError, Server

Fields = Literal["joined", "separate"]

#: The analyzer that finds the words of :func:`probers.rag.retrievers.lexical.tokenize`.
WORD = "word"
#: A server's ``index.max_result_window``.
MOST = 10_000

_FORMAT = 1
_NAME = re.compile(r"(?![-_+]|\.\.?$)[^A-Z\\/*?\"<>| ,#:\x00-\x1f]+")
_LISTED = 10  # refused passages in a message
_ORDER = [{"_score": "desc"}, {"n": "asc"}]  # equal scores keep the corpus order
_THERE = 409  # a document of this id is there already: an earlier try, or run, brought it


@dataclass(eq=False, repr=False)
class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch; the passages are loaded on first use.

    The index remembers corpus and settings. It is used as it is when these and the count are
    right, loaded on where an earlier run stopped, and made anew when they have changed; an index
    that was not made here is left alone.

    With ``analyzer="word"`` and ``fields="joined"`` the function is that of :mod:`.lexical`, times
    ``k1 + 1`` on Elasticsearch and on OpenSearch before 3, and ties keep the corpus order. Lucene keeps
    a passage's length in one byte, exact up to 40 words and rounded down by less than 12% above, so
    that passages of close scores may change places against :class:`~probers.rag.retrievers.bm25.BM25`.
    ``analyzer="english"`` and ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query,
    which are BEIR's: stems, no stop words, title and text as two fields.

    ES_API_KEY, or ES_USERNAME and ES_PASSWORD, are sent when set; no option holds a secret.

    Args:
        passages: the corpus; what is found is taken from here, by position.
        url: address of the server, or several of one cluster; None is ES_URL.
        index: name of the index; None makes one up from the corpus and the settings.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        analyzer: how text becomes tokens: "word" as in :mod:`.lexical`, or one of the server's.
        fields: "joined" (title and text as one) or "separate" (the better, plus half the other).
        shards: parts of a new index. Their number changes no score.
        replicas: further copies of each.
        bulk_passages: passages per request when loading, at most.
        bulk_mb: megabytes per request when loading, at most.
        search_queries: queries per request.
        max_query_words: words of a query that are searched, the last ones.
        timeout: seconds without a sign of the server.
        retries: further tries after a failure that may pass.
        backoff: seconds before the second try, doubled before each further one.
        max_wait: longest wait between tries in seconds.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None is the system's.
        rebuild: make the index anew.
        progress: show a bar while loading; None does for more than 20,000 passages.

    Raises:
        UserError: an empty corpus; an option, address or credential that does not serve.
        RunError: the server fails, or lost passages.
    """

    passages: Sequence[Passage]
    _: KW_ONLY
    url: str | Sequence[str] | None = None
    index: str | None = None
    k1: float = lexical.K1
    b: float = lexical.B
    analyzer: str = WORD
    fields: Fields = "joined"
    shards: int = 1
    replicas: int = 0
    bulk_passages: int = 1000
    bulk_mb: float = 8.0
    search_queries: int = 64
    max_query_words: int = 1000
    timeout: float = 60.0
    retries: int = 5
    backoff: float = 1.0
    max_wait: float = 300.0
    verify: bool = True
    ca_file: str | None = None
    rebuild: bool = False
    progress: bool | None = None

    def __post_init__(self) -> None:
        self._check()
        self._told = False
        waits = [min(self.backoff * 2**i, self.max_wait) for i in range(self.retries)]
        self._server = Server(self.url, self.verify, self.ca_file, self.timeout, waits)
        self._recipe = {
            "corpus": fingerprint(self.passages), "passages": len(self.passages), "k1": float(self.k1),
            "b": float(self.b), "analyzer": self.analyzer, "fields": self.fields,
        }  # fmt: skip
        # Another corpus or setting has another name.
        self._name = self.index or f"probers-{digest(canonical_json(self._recipe))}"
        self._recipe["format"] = _FORMAT
        self._place = f"index {self._name} ({self._server})"
        self._prepare()

    def __repr__(self) -> str:
        return f"Elasticsearch({len(self.passages)} passages, {self._place})"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Raises:
            UserError: ``k`` is below 1 or above what servers return.
            RunError: the server fails, or cannot answer a query.
        """
        lexical.check_k(k)
        if (size := min(k, len(self.passages))) > MOST:
            raise UserError(f"k={k}: Elasticsearch returns at most {MOST} passages (index.max_result_window)")
        found: list[list[Passage]] = [[] for _ in queries]
        texts = {i: text for i, text in enumerate(map(self._cut, queries)) if text}
        while texts:
            asked = {i: texts.pop(i) for i in list(texts)[: self.search_queries]}
            self._server.ask(self._search, asked=asked, size=size, found=found)
        return found

    def _search(self, asked: dict[int, str], size: int, found: list[list[Passage]]) -> None:
        """Take out of ``asked`` the queries that are answered, in ``found``.

        Raises:
            AgainError: some are not, and may be when they are asked again.
            RunError: one cannot be answered.
        """
        # With the statistics of all shards, so that their number changes no score.
        header = {"index": self._name, "search_type": "dfs_query_then_fetch"}
        common = {"size": size, "sort": _ORDER, "track_total_hits": False, "_source": False}
        lines = [line for text in asked.values() for line in (header, {"query": self._match(text), **common})]
        answers = self._server.client.msearch(body=lines)["responses"]
        put_off = f"{len(answers)} answers came"
        for i, answer in zip(list(asked), answers, strict=False):
            if "error" in answer:
                _, put_off = self._server.reason(answer)
                if re.search(r"maxClauseCount|too[_ ]many[_a-z ]*clauses", json.dumps(answer["error"])):
                    put_off += f"; it is too long, give a smaller max_query_words than {self.max_query_words}"
                elif answer.get("status") in AGAIN:
                    continue
                raise RunError(f"{self._server} cannot answer the query {asked[i][:80]!r}: {put_off}")
            if answer["timed_out"]:
                put_off = "the server ran out of time"
            elif answer["_shards"]["failed"]:
                put_off = f"{answer['_shards']['failed']} shards do not answer"
            else:
                found[i] = [self._passage(hit) for hit in answer["hits"]["hits"]]
                del asked[i]
        if asked:
            raise AgainError(f"{len(asked)} queries were put off: {put_off}")

    def _passage(self, hit: Mapping[str, Any]) -> Passage:
        score, n = hit["sort"]
        if not 0 <= n < len(self.passages) or hit["_id"] != str(n):
            raise RunError(
                f"{self._server} returns document {hit['_id']} of index {self._name}, which was not loaded "
                "from this corpus: make the index anew with retriever.rebuild=true"
            )
        return replace(self.passages[n], score=float(score))

    def _cut(self, query: str) -> str:
        """What of a query is searched."""
        words = list(re.finditer(r"\w+", query))
        if len(words) > self.max_query_words:
            query = query[words[-self.max_query_words].start() :]
            if not self._told:  # once: a run has thousands of queries
                self._server.notice(
                    f"a query of {len(words):,} words is cut to its last {self.max_query_words:,} "
                    "(max_query_words)"
                )
            self._told = True
        return _sendable(query.strip())

    def _match(self, text: str) -> dict[str, Any]:
        """The query for a text: its words, none of which is an operator."""
        if self.fields == "joined":
            return {"match": {"contents": {"query": text}}}
        two = {"type": "best_fields", "fields": ["title", "text"], "tie_breaker": 0.5}
        return {"multi_match": {"query": text, **two}}

    def _check(self) -> None:
        lexical.check_options(self.k1, self.b)
        lexical.check_corpus(self.passages)
        for name in ("shards", "bulk_passages", "search_queries", "max_query_words", "replicas", "retries"):
            least = 0 if name in ("replicas", "retries") else 1
            if getattr(self, name) < least:
                raise UserError(f"retriever.{name}={getattr(self, name)} must be {least} or more")
        for name in ("bulk_mb", "timeout", "backoff", "max_wait"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"retriever.{name}={getattr(self, name)} must be a number above 0")
        if self.fields not in get_args(Fields):
            raise UserError(f"retriever.fields={self.fields} is unknown: choose joined or separate")
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", self.analyzer):
            raise UserError(
                f"retriever.analyzer={self.analyzer!r} is no name: give word, or an analyzer of the server"
            )
        if self.index is not None and (not _NAME.fullmatch(self.index) or len(self.index.encode()) > 255):
            raise UserError(
                f"retriever.index={self.index!r} is no name for an index: give at most 255 bytes of "
                "lower-case letters, digits, - _ + and ., the first a letter or digit"
            )

    def _prepare(self) -> None:
        """Leave the index complete: untouched if it is, loaded from where it stopped, or made anew."""
        ask, indices, total = self._server.ask, self._server.client.indices, len(self.passages)
        name, meta = self._found()
        wanted = self._recipe.items() if name else ()
        stale = [f"{k}: {meta.get(k)} there, {v} here" for k, v in wanted if meta.get(k) != v]
        if name and not stale and self._count() > total:
            stale = ["it holds more than was loaded"]
        if stale:
            print(f"{self._place} is made anew: {'; '.join(stale[:3])}")
        if name and (stale or self.rebuild):
            ask(indices.delete, index=name, ignore_unavailable=True)
            name = ""
        start = 0
        if not name:
            self._create()
        elif meta["complete"] and self._count() == total:
            return
        else:
            ask(indices.refresh, index=self._name)
            # Passages are loaded in order, so that a few counts find the first gap also among millions.
            start = bisect_left(range(1, total + 1), True, key=lambda n: self._count(below=n) < n)
        progress = total > 20_000 if self.progress is None else self.progress
        if progress:
            print(f"loading {total:,} passages, from {start:,} on, into {self._place}")
        self._load(start, progress)
        ask(indices.refresh, index=self._name)
        if (there := self._count()) != total:
            raise RunError(
                f"the server acknowledged {total:,} passages but {self._place} holds {there:,}: check its "
                "disk and its log; the same command loads what is missing, with retriever.rebuild=true all"
            )
        done = self._recipe | {"complete": True}
        if self._found()[1] | {"complete": True} != done:
            raise RunError(f"{self._place} was replaced while it was loaded: run the same command again")
        ask(indices.put_settings, index=self._name, body={"index": {"refresh_interval": None}})
        ask(indices.put_mapping, index=self._name, body={"_meta": {"probers": done}})

    def _found(self) -> tuple[str, dict[str, Any]]:
        """The index that goes by this name, behind any alias, and its ``_meta``; "" when there is none."""
        indices = self._server.client.indices
        if not self._server.ask(indices.exists, index=self._name):
            return "", {}
        found = self._server.ask(indices.get_mapping, index=self._name)
        if len(found) != 1:
            raise UserError(
                f"retriever.index={self._name} is an alias of {len(found)} indices: give the name of one"
            )
        ((name, index),) = found.items()
        meta = index["mappings"].get("_meta", {}).get("probers")
        if not isinstance(meta, dict):
            raise UserError(
                f"retriever.index={self._name} exists at {self._server.url} and was not made by probers: it "
                "is left alone; choose another name"
            )
        return name, meta

    def _create(self) -> None:
        try:
            self._server.ask(self._server.client.indices.create, index=self._name, body=self._definition())
        except RefusedError as error:
            # Another process, or a try whose answer was lost, may have made it.
            if error.kind != "resource_already_exists_exception":
                raise UserError(
                    f"{self._place} cannot be made: {error}; check retriever.analyzer={self.analyzer}, "
                    f"retriever.shards={self.shards} and retriever.replicas={self.replicas}"
                ) from None

    def _definition(self) -> dict[str, Any]:
        """Body of the request that creates the index, ready for loading.

        Positions of words are left out (no phrase is ever searched). Searches do not see what is
        loaded until it is refreshed.
        """
        analyzer, analysis = self.analyzer, {}
        if analyzer == WORD:
            analyzer, filters = "probers_word", ["lowercase", "probers_cut"]
            analysis = {
                # Letters and numbers of any script, which Java's own \w is not.
                "tokenizer": {analyzer: {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}},
                # Lucene refuses a document with a word of 32,766 bytes or more.
                "filter": {"probers_cut": {"type": "truncate", "length": 8000}},
                "analyzer": {analyzer: {"type": "custom", "tokenizer": analyzer, "filter": filters}},
            }
        searched = {
            "type": "text", "analyzer": analyzer, "similarity": "probers_bm25", "index_options": "freqs"
        }  # fmt: skip
        texts: dict[str, Any] = {"title": searched, "text": searched}
        if self.fields == "joined":
            copied = {"type": "text", "index": False, "copy_to": "contents"}
            texts = {"title": copied, "text": copied, "contents": searched}
        similarity = {"type": "BM25", "k1": float(self.k1), "b": float(self.b)}
        settings: dict[str, Any] = {
            "number_of_shards": self.shards, "number_of_replicas": self.replicas, "refresh_interval": "-1",
            "similarity": {"probers_bm25": similarity},
        }  # fmt: skip
        n, name = {"type": "integer"}, {"type": "keyword", "index": False, "doc_values": False}
        return {
            "settings": {"index": settings | ({"analysis": analysis} if analysis else {})},
            "mappings": {
                "dynamic": "strict",
                "_meta": {"probers": self._recipe | {"complete": False}},
                "properties": {"n": n, "id": name, **texts},
            },
        }

    def _count(self, below: int | None = None) -> int:
        """Documents that are there, all or those of positions under ``below``."""
        query = {"match_all": {}} if below is None else {"range": {"n": {"lt": below}}}
        data = self._server.ask(self._server.client.count, index=self._name, body={"query": query})
        if data["_shards"]["failed"]:
            raise RunError(
                f"{data['_shards']['failed']} shards of {self._place} do not answer: look at the server's "
                "log and run the same command again"
            )
        return int(data["count"])

    def _load(self, start: int, progress: bool) -> None:
        """Send the passages from position ``start`` on.

        A passage's document has its position for an id and is only ever created, never replaced: a
        request can be sent twice, and no deleted version stays behind to be counted by the idf.

        Raises:
            RunError: the server refused some (after the others were loaded), or all of a request.
        """
        documents = enumerate(passages_from(self.passages, start), start)
        refused: dict[int, str] = {}
        with tqdm(
            total=len(self.passages), initial=start, desc=f"index {self._name}", unit="passage",
            unit_scale=True, disable=not progress,
        ) as bar:  # fmt: skip
            while batch := dict(islice(documents, self.bulk_passages)):
                size, before = len(batch), len(refused)
                self._server.ask(self._send, batch=batch, refused=refused)
                bar.update(size)
                if len(refused) - before == size > 1:
                    break
        if refused:
            shown = ", ".join(f"{self.passages[n].id!r} ({r})" for n, r in islice(refused.items(), _LISTED))
            more = f" and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
            raise RunError(
                f"the server refused {len(refused)} of {len(self.passages)} passages: {shown}{more}; mend or "
                "remove them in the corpus and run the same command again"
            )

    def _send(self, batch: dict[int, Passage], refused: dict[int, str]) -> None:
        """Take out of ``batch`` the passages that are there now, or ``refused`` with the reason.

        Raises:
            AgainError: some are neither, and may be when they are sent again.
        """
        sent = self._server.streaming_bulk(
            self._server.client, (_action(n, passage) for n, passage in batch.items()), raise_on_error=False,
            index=self._name, chunk_size=len(batch), max_chunk_bytes=int(self.bulk_mb * 1e6),
        )  # fmt: skip
        put_off = ""
        for ok, item in list(sent):
            result = item["create"]
            _, reason = self._server.reason(result)
            if not ok and result["status"] in AGAIN:
                put_off = reason
                continue
            if not ok and result["status"] != _THERE:
                refused[int(result["_id"])] = reason
            batch.pop(int(result["_id"]), None)
        if batch:
            raise AgainError(f"{len(batch)} passages were put off: {put_off or 'not acknowledged'}")


def _action(n: int, passage: Passage) -> dict[str, Any]:
    texts = {"id": passage.id, "title": passage.title, "text": passage.text}
    return {"_op_type": "create", "_id": str(n), "n": n, **{k: _sendable(v) for k, v in texts.items()}}


def _sendable(text: str) -> str:
    """``text`` without half surrogate pairs, which are no text for a server."""
    return text.encode("utf-8", "replace").decode()
