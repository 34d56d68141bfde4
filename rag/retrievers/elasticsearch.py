"""BM25 by an Elasticsearch or OpenSearch server, for corpora that one machine should not hold."""

from __future__ import annotations

import base64
import logging
import math
import os
import re
import ssl
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import wraps
from typing import Any, Literal, TypeVar

from tqdm import tqdm

from probers.data.corpus import fingerprint, passages_from
from probers.files import canonical_json, digest
from probers.types import Passage, RunError, UserError

from . import lexical

Fields = Literal["joined", "separate"]

#: A server's ``index.max_result_window``.
MOST = 10_000
#: Words of a query that are searched, the last ones (servers refuse over 1,024); queries per request.
QUERY_WORDS, QUERIES = 1000, 64
#: Passages and bytes per request while loading; tries, and seconds between them, for what is put off.
BULK = {
    "chunk_size": 1000, "max_chunk_bytes": 8_000_000,
    "max_retries": 5, "initial_backoff": 1.0, "max_backoff": 60.0,
}  # fmt: skip
#: Refused passages after which loading stops.
MOST_REFUSED = 10

_ADDRESS = re.compile(r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/[\w./~-]*)?")
_ORDER = [{"_score": "desc"}, {"n": "asc"}]  # equal scores keep the corpus order
_AGAIN = (408, 429, 500, 502, 503, 504)  # statuses after which the same request may succeed
_THERE = 409  # a document of this id is there already: an earlier try, or run, brought it
#: Finds the words of :func:`probers.rag.retrievers.lexical.tokenize`.
_WORD = {
    # Letters and numbers of any script, which Java's own \w is not.
    "tokenizer": {"words": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}},
    # Lucene refuses a document with a word of 32,766 bytes or more.
    "filter": {"cut": {"type": "truncate", "length": 8000}},
    "analyzer": {"word": {"type": "custom", "tokenizer": "words", "filter": ["lowercase", "cut"]}},
}
#: What to do where the user can mend it, by the status of the answer or what else went wrong.
_MISTAKES = {
    "address": "it is neither Elasticsearch 7 to 9 nor OpenSearch: check ES_URL or retriever.url",
    "tls": "give its authority's PEM file as retriever.ca_file, or retriever.verify=false to check nothing",
    400: "check retriever.index, retriever.analyzer and retriever.shards",
    401: "set or mend ES_API_KEY, or ES_USERNAME and ES_PASSWORD",
    403: "the user or key needs 'monitor' on the cluster and 'manage', 'read' and 'write' on the index",
}
#: What to do about an error that says so.
_REMEDIES = {
    "cluster_block_exception": "free space on its disk and lift the block with PUT INDEX/_settings "
    '{"index.blocks.read_only_allow_delete": null}',
    r"maxClauseCount|too[_ ]many[_a-z ]*clauses": "the query is too long: raise the server's "
    "indices.query.bool.max_clause_count",
}

_T = TypeVar("_T")


def _readable(method: Callable[..., _T]) -> Callable[..., _T]:
    """The method, with every failure of a client as one sentence."""

    @wraps(method)
    def told(self: Elasticsearch, *args: Any, **options: Any) -> _T:
        try:
            return method(self, *args, **options)
        except self._failures as error:
            failure = self._explained(error)
        # Out here, so that nothing the client saw, which may quote a password, hangs on what is raised.
        raise failure

    return told


@dataclass(eq=False, repr=False)
class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch, by the official clients; passages are loaded on first use.

    The index remembers corpus and settings. It is used as it is when these and the count are right,
    loaded on where an earlier run stopped, and made anew when they have changed; an index that was not
    made here is left alone.

    With ``analyzer="word"`` and ``fields="joined"`` the function is that of :mod:`.lexical`, times
    ``k1 + 1`` on Elasticsearch and on OpenSearch before 3. Lucene keeps a passage's length in one byte,
    exact up to 40 words and rounded down by less than 12% above, so that passages of close scores may
    change places against :class:`~probers.rag.retrievers.bm25.BM25`. ``analyzer="english"`` and
    ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query, which are BEIR's.

    ES_API_KEY, or ES_USERNAME and ES_PASSWORD, are sent when set; no option holds a secret.

    Args:
        passages: the corpus; what is found is taken from here, by position.
        url: http(s)://HOST:PORT, or several of one cluster; None is ES_URL, where spaces separate them.
        index: name of the index; None makes one up from the corpus and the settings.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        analyzer: how text becomes tokens: "word" as in :mod:`.lexical`, or one of the server's.
        fields: "joined" (title and text as one) or "separate" (the better, plus half the other).
        shards: parts of a new index. Their number changes no score.
        timeout: seconds without a sign of the server before a try counts as failed.
        retries: further tries after a failure that may pass, at the next address if there is one.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None is the authorities the clients know.
        rebuild: make the index anew.

    Raises:
        UserError: an empty corpus; an option, address or credential that does not serve; no such server.
        RunError: the server fails, or lost passages.
    """

    passages: Sequence[Passage]
    _: KW_ONLY
    url: str | Sequence[str] | None = None
    index: str | None = None
    k1: float = lexical.K1
    b: float = lexical.B
    analyzer: str = "word"
    fields: Fields = "joined"
    shards: int = 1
    timeout: float = 60.0
    retries: int = 5
    verify: bool = True
    ca_file: str | None = None
    rebuild: bool = False

    def __post_init__(self) -> None:
        lexical.check_options(self.k1, self.b)
        lexical.check_corpus(self.passages)
        for name, least in (("shards", 1), ("timeout", 0.001), ("retries", 0)):
            if not least <= getattr(self, name) < math.inf:
                raise UserError(f"retriever.{name}={getattr(self, name)} must be {least} or more")
        if self.fields not in ("joined", "separate"):
            raise UserError(f"retriever.fields={self.fields} is unknown: choose joined or separate")
        packages = {"elasticsearch": "elasticsearch", "opensearchpy": "opensearch-py"}
        lexical.check_extra("elasticsearch", "search", packages)
        self._recipe = {
            "corpus": fingerprint(self.passages), "passages": len(self.passages), "k1": float(self.k1),
            "b": float(self.b), "analyzer": self.analyzer, "fields": self.fields, "format": 2,
        }  # fmt: skip
        self._name = self.index or f"probers-{digest(canonical_json(self._recipe))}"
        self._connect()
        self._prepare()

    def __repr__(self) -> str:
        return f"Elasticsearch({len(self.passages)} passages, index {self._name} ({self._server}))"

    @_readable
    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Of a query the last 1000 words are searched; passages of equal scores keep the order of the corpus.

        Raises:
            UserError: ``k`` is below 1 or above what servers return.
            RunError: the server fails, or cannot answer a query.
        """
        lexical.check_k(k)
        if (size := min(k, len(self.passages))) > MOST:
            raise UserError(f"k={k}: Elasticsearch returns at most {MOST} passages (index.max_result_window)")
        # With the statistics of all shards, so that their number changes no score.
        header = {"index": self._name, "search_type": "dfs_query_then_fetch"}
        common = {"size": size, "sort": _ORDER, "track_total_hits": False, "_source": False}
        found: list[list[Passage]] = [[] for _ in queries]
        texts = [(i, text) for i, text in enumerate(map(_searched, queries)) if text]
        for start in range(0, len(texts), QUERIES):
            asked = texts[start : start + QUERIES]
            lines = [line for _, text in asked for line in (header, {"query": self._match(text), **common})]
            answers = self._client.msearch(body=lines)
            for place, (i, text) in enumerate(asked):
                found[i] = self._passages(answers, place, text, size)
        return found

    def _match(self, text: str) -> dict[str, Any]:
        """The query for a text: its words, none of which is an operator."""
        if self.fields == "joined":
            return {"match": {"contents": {"query": text}}}
        two = {"type": "best_fields", "fields": ["title", "text"], "tie_breaker": 0.5}
        return {"multi_match": {"query": text, **two}}

    def _passages(self, answers: Any, place: int, query: str, size: int) -> list[Passage]:
        """What one of the answers holds, if it is whole and of this corpus."""
        try:
            answer = answers["responses"][place]
            if "error" in answer:
                raise RunError(f"{self._server} cannot answer {query[:80]!r}: {self._reason(answer)}")
            hits = answer["hits"]["hits"]
            found = {hit["_id"]: hit["sort"] for hit in hits}
            sound = len(found) == len(hits) <= size
            sound &= not answer["timed_out"] and not answer["_shards"]["failed"]
            for name, (score, n) in found.items():
                sound &= name == str(n) and 0 <= n < len(self.passages) and math.isfinite(score)
        except (LookupError, TypeError, ValueError):
            sound = False
        if not sound:
            raise RunError(
                f"{self._server} answers {query[:80]!r} in part, or with what was not loaded into index "
                f"{self._name}: look at its log, or make the index anew with retriever.rebuild=true"
            )
        return [replace(self.passages[n], score=float(score)) for score, n in found.values()]

    @_readable
    def _connect(self) -> None:
        """Take the client for what answers; that of OpenSearch speaks to Elasticsearch 7 too."""
        import elasticsearch.helpers
        import opensearchpy.helpers

        self._failures = (
            elasticsearch.ApiError, elasticsearch.TransportError, opensearchpy.OpenSearchException
        )  # fmt: skip
        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # else its failures are printed
        hosts = _addresses(self.url)
        self._server = ", ".join(hosts)
        if self.ca_file and not (self.verify and self._server.startswith("https:")):
            raise UserError(
                f"retriever.ca_file={self.ca_file} has no use with {self._server} and "
                f"retriever.verify={self.verify}: leave it out"
            )
        options: dict[str, Any] = {
            "max_retries": self.retries, "retry_on_timeout": True, "retry_on_status": _AGAIN,
            "verify_certs": self.verify, "ca_certs": self.ca_file, "ssl_show_warn": False,
        }  # fmt: skip
        by_elasticsearch, by_opensearch, self._secrets = _login()
        self._client: Any = opensearchpy.OpenSearch(hosts, timeout=self.timeout, **options, **by_opensearch)
        self._streaming_bulk: Any = opensearchpy.helpers.streaming_bulk
        info = self._client.info()
        try:
            number, tagline = str(info["version"]["number"]), str(info["tagline"])
        except (TypeError, LookupError):
            raise UserError(f"{self._server} does not say its version; {_MISTAKES['address']}") from None
        product = "OpenSearch" if "OpenSearch" in tagline else "Elasticsearch"
        if product == "Elasticsearch" and not number.startswith("7."):
            self._client = elasticsearch.Elasticsearch(
                hosts, request_timeout=self.timeout, **options, **by_elasticsearch
            )
            self._streaming_bulk = elasticsearch.helpers.streaming_bulk
            self._client.info()  # which it refuses of anything but Elasticsearch
        self._server = f"{product} {number} at {self._server}"

    @_readable
    def _prepare(self) -> None:
        """Leave the index complete: untouched if it is, loaded from where it stopped, or made anew."""
        indices, name, total = self._client.indices, self._name, len(self.passages)
        meta = self._meta()
        stale = [f"{k}: {meta.get(k)} there, {v} here" for k, v in self._recipe.items() if meta.get(k) != v]
        if meta and (stale or self.rebuild):
            print(f"index {name} ({self._server}) is made anew: {'; '.join(stale[:3]) or 'rebuild=true'}")
            indices.delete(index=name, ignore_unavailable=True)
            meta = {}
        start = 0
        if not meta:
            self._create()
        elif meta["complete"] and self._count() == total:
            return
        else:
            indices.refresh(index=name)
            # Passages are loaded in order, so that a few counts find the first gap also among millions.
            start = bisect_left(range(1, total + 1), True, key=lambda n: self._count(below=n) < n)
        self._load(start)
        indices.refresh(index=name)
        if (there := self._count()) != total:
            raise RunError(
                f"the server acknowledged {total:,} passages but index {name} ({self._server}) holds "
                f"{there:,}: check its disk and its log; the same command loads what is missing, with "
                "retriever.rebuild=true all"
            )
        indices.put_mapping(index=name, body={"_meta": {"probers": self._recipe | {"complete": True}}})

    def _meta(self) -> dict[str, Any]:
        """What the index was made from, and whether it is complete; empty where there is none."""
        if not self._client.indices.exists(index=self._name):
            return {}
        found = self._client.indices.get_mapping(index=self._name)
        # Of an alias the answer has the names behind it.
        mappings = found[self._name]["mappings"] if self._name in found else {}
        if "probers" not in mappings.get("_meta", {}):
            raise UserError(
                f"retriever.index={self._name} exists at {self._server} and was not made by probers: it is "
                "left alone; choose another name"
            )
        return dict(mappings["_meta"]["probers"])

    def _create(self) -> None:
        """Make the index, without positions of words: no phrase is ever searched."""
        searched = {
            "type": "text", "analyzer": self.analyzer, "similarity": "probers", "index_options": "freqs"
        }  # fmt: skip
        texts: dict[str, Any] = {"title": searched, "text": searched}
        if self.fields == "joined":
            copied = {"type": "text", "index": False, "copy_to": "contents"}
            texts = {"title": copied, "text": copied, "contents": searched}
        settings = {
            "number_of_shards": self.shards, "number_of_replicas": 0, "refresh_interval": "-1",
            "similarity": {"probers": {"type": "BM25", "k1": float(self.k1), "b": float(self.b)}},
            "analysis": _WORD,
        }  # fmt: skip
        name = {"type": "keyword", "index": False, "doc_values": False}
        mappings = {
            "dynamic": "strict",
            "_meta": {"probers": self._recipe | {"complete": False}},
            "properties": {"n": {"type": "integer"}, "id": name, **texts},
        }
        try:
            body = {"settings": {"index": settings}, "mappings": mappings}
            self._client.indices.create(index=self._name, body=body)
        except self._failures as error:
            # Another process, or a try whose answer was lost, may have made it.
            if "resource_already_exists_exception" not in str(error):
                raise

    def _count(self, below: int | None = None) -> int:
        """Documents that are there, all or those of positions under ``below``."""
        query = {"match_all": {}} if below is None else {"range": {"n": {"lt": below}}}
        return int(self._client.count(index=self._name, body={"query": query})["count"])

    def _load(self, start: int) -> None:
        """Send the passages from position ``start`` on.

        A passage's document has its position for an id and is only ever created, never replaced: a
        request can be sent twice, and no deleted version stays behind to be counted by the idf.
        """
        total = len(self.passages)
        documents = map(_document, range(start, total), passages_from(self.passages, start))
        sent = self._streaming_bulk(self._client, documents, index=self._name, raise_on_error=False, **BULK)
        refused = []
        for taken, item in tqdm(sent, "index", total, initial=start, disable=total <= 20_000):
            result = item["create"]
            if not taken and result["status"] != _THERE:
                passage = self.passages[int(result["_id"])]
                refused.append(f"{passage.id!r} ({self._reason(result)})")
            if len(refused) == MOST_REFUSED:
                break
        if refused:
            raise RunError(
                f"the server refused {len(refused)} passages: {', '.join(refused)}; mend them in the corpus, "
                "or the server, and run the same command again: what is loaded stays"
            )

    def _explained(self, error: Any) -> Exception:
        """What to raise for what a client raised."""
        status, body = getattr(error, "status_code", None), getattr(error, "info", None)
        mistake: int | str = ""
        if isinstance(status, int):
            reason = f"HTTP {status} {self._reason(body or error.error)}"
            if status < 400 or (status == 404 and not isinstance(body, dict)):
                mistake = "address"
            elif "cluster_block_exception" not in reason:
                mistake = status
        else:
            while inner := error.__cause__ or error.__context__:  # down to the one that says why
                error = inner
            reason = self._clean(f"{type(error).__name__}: {error}")
            if isinstance(error, (ssl.SSLError, FileNotFoundError)):
                mistake = "tls"
            elif isinstance(error, (ValueError, LookupError)):
                mistake = "address"
        if mistake in _MISTAKES:
            return UserError(f"{self._server} gives no usable answer: {reason}; {_MISTAKES[mistake]}")
        return RunError(
            f"{self._server} gives no usable answer: {reason}; once it does, the same command goes on"
        )

    def _reason(self, answer: Any) -> str:
        """What an answer, or an item of one, says of its error: of several causes the first."""
        error = answer.get("error") if isinstance(answer, dict) else answer
        if not isinstance(error, dict):
            return self._clean(str(error))
        first = error | (error.get("root_cause") or [{}])[0]
        inner = (first.get("caused_by") or {}).get("reason", "")
        reason = self._clean(f"{first.get('type')}: {first.get('reason')} {inner}")
        for sign, remedy in _REMEDIES.items():
            if re.search(sign, str(error)):
                reason += f"; {remedy}"
        return reason

    def _clean(self, text: str) -> str:
        """What a server said, short and without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text.split())[:400]


def _addresses(url: str | Sequence[str] | None) -> list[str]:
    """The addresses of the option or of ES_URL."""
    given = [url] if isinstance(url, str) else list(url or os.environ.get("ES_URL", "").split())
    if not given or not all(map(_ADDRESS.fullmatch, given)):
        shown = " ".join(given).rpartition("@")[2]  # without a password
        raise UserError(
            f"retriever=elasticsearch has no server at {shown!r}: set ES_URL or retriever.url to "
            "http://HOST:PORT or https://HOST:PORT, without a user, who is ES_USERNAME with ES_PASSWORD"
        )
    return [text.rstrip("/") for text in given]


def _login() -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Arguments of Elasticsearch's and of OpenSearch's client, and what no message may hold."""
    key, user, password = (os.environ.get(f"ES_{name}", "") for name in ("API_KEY", "USERNAME", "PASSWORD"))
    if bool(user) != bool(password) or (user and key) or not re.fullmatch(r"[\x21-\x7e]*", key):
        raise UserError("set ES_API_KEY, encoded as the server shows it, or both ES_USERNAME and ES_PASSWORD")
    if key:
        return {"api_key": key}, {"headers": {"authorization": f"ApiKey {key}"}}, [key]
    if not user:
        return {}, {}, []
    pair = f"{user}:{password}".encode()
    encoded = base64.b64encode(pair).decode()
    # Servers read UTF-8, and OpenSearch's client writes Latin-1.
    return {"basic_auth": encoded}, {"http_auth": pair.decode("latin-1")}, [encoded, password]


def _searched(query: str) -> str:
    """What of a query is searched."""
    words = list(re.finditer(r"\w+", query))
    start = words[-QUERY_WORDS].start() if len(words) > QUERY_WORDS else 0
    return _sendable(query[start:].strip())


def _document(n: int, passage: Passage) -> dict[str, Any]:
    texts = {"id": passage.id, "title": passage.title, "text": passage.text}
    return {"_op_type": "create", "_id": str(n), "n": n, **{k: _sendable(v) for k, v in texts.items()}}


def _sendable(text: str) -> str:
    """``text`` without half surrogate pairs, which are no text for a server."""
    return text.encode("utf-8", "replace").decode()
