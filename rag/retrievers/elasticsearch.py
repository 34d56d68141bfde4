"""BM25 by Elasticsearch or OpenSearch servers, for corpora that one machine should not hold."""

from __future__ import annotations

import base64
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

from tqdm import tqdm

from probers.data.corpus import fingerprint, passages_from
from probers.files import canonical_json, digest
from probers.types import Passage, RunError, UserError

from . import answers, lexical

QUERY_WORDS = 1000  # of a query are searched, the last ones: servers refuse over 1,024
MOST_REFUSED = 10  # passages after which loading stops
#: Passages and bytes per request while loading, and further tries for what a server puts off.
BULK = {"chunk_size": 1000, "max_chunk_bytes": 8_000_000, "max_retries": 5}

_AGAIN = (408, 429, 500, 502, 503, 504)  # statuses after which the same request may succeed
_ADDRESS = r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/[\w./~-]*)?"
#: Finds the words of :func:`probers.rag.retrievers.lexical.tokenize`.
_WORD = {
    # Letters and numbers of any script, which Java's own \w is not.
    "tokenizer": {"words": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}},
    # Lucene refuses a document with a word of 32,766 bytes or more.
    "filter": {"cut": {"type": "truncate", "length": 8000}},
    "analyzer": {"word": {"type": "custom", "tokenizer": "words", "filter": ["lowercase", "cut"]}},
}
#: What the user can do, by how the reason of a failure begins.
_REMEDIES = {
    "HTTP 400": "check retriever.index, retriever.analyzer and retriever.shards, or raise max_clause_count",
    "HTTP 401": "set or mend ES_API_KEY, or ES_USERNAME and ES_PASSWORD",
    "HTTP 403": "the user needs 'monitor' on the cluster and 'manage', 'read' and 'write' on the index",
    "SSL|FileNotFound": "give its authority's PEM file as retriever.ca_file, or retriever.verify=false",
    "HTTP [23]|HTTP 404 <|an answer|JSON": "neither Elasticsearch 7 to 9 nor OpenSearch: check retriever.url",
}


@dataclass(eq=False, repr=False)
class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch, by the official clients; passages are loaded on first use.

    The index remembers corpus and settings. It is used as it is when these and the count are right, filled
    up when passages are missing, and made anew when they have changed; one not made here is left alone.
    ES_API_KEY, or ES_USERNAME and ES_PASSWORD, are sent when set; no option holds a secret.

    With ``analyzer="word"`` and ``fields="joined"`` the function is that of :mod:`.lexical`, times
    ``k1 + 1`` on Elasticsearch and on OpenSearch before 3. Lucene keeps a passage's length in one byte,
    exact up to 40 words and rounded down by less than 12% above, so that passages of close scores may
    change places against :class:`~probers.rag.retrievers.bm25.BM25`. ``analyzer="english"`` and
    ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query, which are BEIR's.

    Args:
        passages: the corpus; what is found is taken from here, by position.
        url: http(s)://HOST:PORT, or several of one cluster; None is ES_URL, where spaces separate them.
        index: name of the index; None makes one up from the corpus and the settings.
        k1, b: how soon repeated tokens stop adding, and how much long passages are held back (0 to 1).
        analyzer: how text becomes tokens: "word" as in :mod:`.lexical`, or one of the server's.
        fields: "joined" (title and text as one) or "separate" (the better, plus half the other).
        shards: parts of a new index. Their number changes no score.
        timeout: seconds for a whole exchange, to its last byte, before a try counts as failed.
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
    fields: Literal["joined", "separate"] = "joined"
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
        packages = {"elasticsearch": "elasticsearch", "opensearchpy": "opensearch-py"}
        lexical.check_extra("elasticsearch", "search", packages)
        self._recipe = {
            "corpus": fingerprint(self.passages), "k1": float(self.k1), "b": float(self.b),
            "analyzer": self.analyzer, "fields": self.fields, "format": 3,
        }  # fmt: skip
        self._name = self.index or f"probers-{digest(canonical_json(self._recipe))}"
        self._searched = ["title", "text"] if self.fields == "separate" else ["contents"]
        self._connect()
        self._prepare()

    def __repr__(self) -> str:
        return f"Elasticsearch({len(self.passages)} passages, index {self._name} ({self._server}))"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Of a query the last 1000 words are searched; passages of equal scores keep the order of the corpus.

        Raises:
            UserError: ``k`` is below 1 or above what servers return.
            RunError: the server fails, or cannot answer a query.
        """
        lexical.check_k(k)
        return [self._best(query, min(k, len(self.passages))) for query in queries]

    def drop(self) -> None:
        """Remove the index from the server; the next retriever of the corpus makes it again.

        Raises:
            RunError: the server fails.
        """
        self._told(self._client.indices.delete, index=self._name, ignore_unavailable=True)

    def _best(self, query: str, size: int) -> list[Passage]:
        """What the server finds, if its answer is whole and of this corpus."""
        words = list(re.finditer(r"\w+", query))
        if not words:
            return []
        text = query[words[-QUERY_WORDS:][0].start() :].encode("utf-8", "replace").decode()
        # None of the words is an operator. With several fields: the better, plus half the other.
        match = {"query": text, "fields": self._searched, "type": "best_fields", "tie_breaker": 0.5}
        body = {
            "query": {"multi_match": match}, "sort": [{"_score": "desc"}, {"n": "asc"}],
            "size": size, "track_total_hits": False, "_source": False,
        }  # fmt: skip
        # With the statistics of all shards, so that their number changes no score.
        options = {"index": self._name, "search_type": "dfs_query_then_fetch"}
        answer = self._told(self._client.search, body=body, **options)
        found = answers.hits(answer, size, len(self.passages))
        if found is None:
            raise RunError(
                f"{self._server} answers {text[:80]!r} in part, or with what was not loaded into index "
                f"{self._name}: make the index anew with retriever.rebuild=true"
            )
        return [replace(self.passages[n], score=score) for score, n in found]

    def _connect(self) -> None:
        """Take the client for what answers; that of OpenSearch speaks to Elasticsearch 7 too."""
        import elasticsearch.helpers
        import opensearchpy.helpers

        from .connections import ElasticsearchNode, OpenSearchConnection

        self._failures: Any = (
            elasticsearch.ApiError, elasticsearch.TransportError, opensearchpy.OpenSearchException
        )  # fmt: skip
        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # else its failures are printed
        hosts = _addresses(self.url)
        self._server = ", ".join(hosts)
        key, user, password = (os.environ.get(f"ES_{n}", "") for n in ("API_KEY", "USERNAME", "PASSWORD"))
        # Because servers read UTF-8, and OpenSearch's client writes Latin-1.
        ascii_only = re.fullmatch("[ -~]*", key + user + password)
        if bool(user) != bool(password) or (user and key) or not ascii_only:
            raise UserError("set ES_API_KEY, encoded, or both ES_USERNAME and ES_PASSWORD, in ASCII")
        login = (user, password) if user else None
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._secrets = [secret for secret in (key, password, encoded if user else "") if secret]
        if self.ca_file and not (self.verify and self._server.startswith("https:")):
            raise UserError(f"retriever.ca_file={self.ca_file} needs https and verify=true")
        options: dict[str, Any] = {
            "max_retries": self.retries, "retry_on_timeout": True, "retry_on_status": _AGAIN,
            "verify_certs": self.verify, "ca_certs": self.ca_file, "ssl_show_warn": False,
            "headers": {"authorization": f"ApiKey {key}"} if key else {},
        }  # fmt: skip
        own: dict[str, Any] = {"http_auth": login, "connection_class": OpenSearchConnection}
        self._client: Any = opensearchpy.OpenSearch(hosts, timeout=self.timeout, **own, **options)
        self._streaming_bulk: Any = opensearchpy.helpers.streaming_bulk
        if not answers.is_opensearch(self._told(self._client.info)):
            own = {"basic_auth": login, "node_class": ElasticsearchNode, "request_timeout": self.timeout}
            self._client = elasticsearch.Elasticsearch(hosts, **own, **options)
            self._streaming_bulk = elasticsearch.helpers.streaming_bulk
            self._told(self._client.info)  # which it refuses of anything but Elasticsearch

    def _prepare(self) -> None:
        """Leave the index complete: untouched if it is, filled up, or made anew."""
        indices, name, total = self._client.indices, self._name, len(self.passages)
        if self._told(indices.exists, index=name):
            # Of an alias the answer has the names behind it.
            mapping = self._told(indices.get_mapping, index=name)
            made_of = answers.part(mapping, name, "mappings", "_meta", "probers")
            if not made_of or not isinstance(made_of, dict):
                raise UserError(f"retriever.index={name} is not of probers and left alone: give another")
            changed = [setting for setting, value in self._recipe.items() if made_of.get(setting) != value]
            if changed or self.rebuild:
                print(f"index {name} is made anew for: {', '.join(changed) or 'rebuild=true'}")
                self.drop()
        if not self._told(indices.exists, index=name):
            self._create()
        if self._count() == total:
            return
        self._load()
        self._told(indices.refresh, index=name)
        if (count := self._count()) != total:
            raise RunError(
                f"the server acknowledged {total} passages but index {name} ({self._server}) holds {count}: "
                "check its disk; the same command loads what is missing, with retriever.rebuild=true all"
            )

    def _count(self) -> int:
        count = answers.count(self._told(self._client.count, index=self._name))
        if count is None:
            raise self._error(f"the answer has no count of the passages in index {self._name}")
        return count

    def _create(self) -> None:
        """Make the index, without positions of words: no phrase is ever searched."""
        text = {"type": "text", "analyzer": self.analyzer, "similarity": "probers", "index_options": "freqs"}
        settings = {
            "number_of_shards": self.shards, "number_of_replicas": 0, "refresh_interval": "-1",
            "similarity": {"probers": {"type": "BM25", "k1": float(self.k1), "b": float(self.b)}},
            "analysis": _WORD,
        }  # fmt: skip
        mappings = {
            "dynamic": "strict", "_meta": {"probers": self._recipe},
            "properties": {"n": {"type": "integer"}, **dict.fromkeys(self._searched, text)},
        }  # fmt: skip
        body = {"settings": settings, "mappings": mappings}
        try:
            self._told(self._client.indices.create, index=self._name, body=body)
        except (UserError, RunError) as error:
            # Another process, or a try whose answer was lost, may have made it.
            if "resource_already_exists_exception" not in str(error):
                raise

    def _load(self) -> None:
        """Send all passages; none is replaced, as a deleted version would still be counted by the idf."""
        options = {"index": self._name, "raise_on_error": False, **BULK}
        sent = self._streaming_bulk(self._client, self._documents(), **options)
        total, refused = len(self.passages), []
        answered = iter(lambda: self._told(next, sent, None), None)
        for taken, item in tqdm(answered, "index", total, disable=total <= 20_000):
            result = answers.part(item, "create")
            if not taken and answers.part(result, "status") != 409:  # which says that it is there
                n = answers.position(answers.part(result, "_id"), total)
                name = "a passage" if n is None else repr(self.passages[n].id)
                refused.append(f"{name} ({answers.reason(result, self._secrets)})")
            if len(refused) == MOST_REFUSED:
                break
        if refused:
            raise self._error(f"{len(refused)} passages are refused: {', '.join(refused)}")

    def _documents(self) -> Iterator[dict[str, Any]]:
        for n, p in enumerate(passages_from(self.passages, 0)):
            texts = {"title": p.title, "text": p.text, "contents": f"{p.title} {p.text}"}
            # Half surrogate pairs, which "replace" replaces, are no text for a server.
            searched = {field: texts[field].encode("utf-8", "replace").decode() for field in self._searched}
            yield {"_op_type": "create", "_id": str(n), "n": n, **searched}

    def _told(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a call returns, with every failure of a client as one sentence."""
        try:
            answer = call(*arguments, **options)
            return getattr(answer, "body", answer)
        except self._failures as error:
            if isinstance(status := getattr(error, "status_code", None), int):
                reason = f"HTTP {status} {answers.reason(error.info or error.error, self._secrets)}"
            else:
                while inner := error.__cause__ or error.__context__:  # down to the one that says why
                    error = inner
                told = f"{type(error).__name__}: {error}"
                if isinstance(error, KeyError):  # the clients look up what reads it
                    told = f"an answer of type {error} cannot be read"
                reason = answers.reason(told, self._secrets)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            # The clients read what they expect of an answer without asking whether it is there.
            reason = "the answer is not understood: a part of it is missing or of another form"
        # Out here, so that nothing the client saw, which may quote a password, hangs on what is raised.
        raise self._error(reason)

    def _error(self, reason: str) -> Exception:
        """What to raise for a reason, with what the user can do about it."""
        if "cluster_block_exception" in reason:
            remedy = 'free its disk, then PUT INDEX/_settings {"index.blocks.read_only_allow_delete": null}'
            return RunError(f"{self._server}: {reason}; {remedy} and run the same command again")
        for sign, remedy in _REMEDIES.items():
            if re.match(sign, reason):
                return UserError(f"{self._server}: {reason}; {remedy}")
        return RunError(f"{self._server}: {reason}; once this is mended, the same command goes on")


def _addresses(url: str | Sequence[str] | None) -> list[str]:
    """The addresses of the option or of ES_URL."""
    given = [url] if isinstance(url, str) else list(url or os.environ.get("ES_URL", "").split())
    if not given or not all(re.fullmatch(_ADDRESS, address) for address in given):
        shown = " ".join(given).rpartition("@")[2]  # without a password
        raise UserError(f"no server at {shown!r}: set ES_URL or retriever.url to http(s)://HOST:PORT alone")
    return [address.rstrip("/") for address in given]
