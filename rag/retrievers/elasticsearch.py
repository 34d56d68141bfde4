"""BM25 on Elasticsearch or OpenSearch servers, for corpora too large for one machine."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from probers.data.corpus import as_passages, fingerprint, passages_from
from probers.files import canonical_json, digest
from probers.types import Code, Passage, ProbersError, RunError, UserError

from ..protocol import at_least
from . import lexical
from .lexical import READ, PhraseReader

log = logging.getLogger(__name__)

_QUERY_WORDS = 1000  # last words of a query that are searched: servers refuse over 1,024
_SEARCHES = 200  # counts per request
_MOST_REFUSED = 10  # refused passages after which loading stops
#: Passages and bytes per request while loading, and retries for passages that the server postpones.
BULK = {"chunk_size": 1000, "max_chunk_bytes": 8_000_000, "max_retries": 5}

_AGAIN = (408, 429, 500, 502, 503, 504)  # statuses after which the same request may succeed
_ADDRESS = r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/[\w./~-]*)?"
#: Pattern of the words of :func:`probers.rag.retrievers.lexical.tokenize`.
_WORD = {
    # Letters and numbers of any script; Java's own \w has only ASCII.
    "tokenizer": {"words": {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}},
    # Lucene refuses a document with a word of 32,766 bytes or more.
    "filter": {"cut": {"type": "truncate", "length": 8000}},
    "analyzer": {"word": {"type": "custom", "tokenizer": "words", "filter": ["lowercase", "cut"]}},
}
_OTHER = "this is neither Elasticsearch 7 to 9 nor OpenSearch: check retriever.url"
#: Remedies by the beginning of a failure's reason.
_REMEDIES = {
    "HTTP 400": "check retriever.index, retriever.analyzer and retriever.shards, or raise max_clause_count",
    "HTTP 401": "set or correct ES_API_KEY, or ES_USERNAME and ES_PASSWORD",
    "HTTP 403": "the user needs 'monitor' on the cluster and 'manage', 'read' and 'write' on the index",
    "SSL": "give its authority's PEM file as retriever.ca_file, or retriever.verify=false",
    "HTTP [23]|HTTP 404 <|JSON|KeyError|Serialization": _OTHER,
}


@dataclass(eq=False, repr=False)
class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch, through the official clients (extra "search").

    Passages are loaded on first use. The index remembers corpus and settings. It is used unchanged if these
    and the count match, filled up if passages are missing, and rebuilt if corpus or settings have changed. An
    index made by others is left alone. ES_API_KEY, or ES_USERNAME and ES_PASSWORD, are sent if set; no option
    holds a secret.

    With ``analyzer="word"`` and ``fields="joined"`` the scoring function is that of :mod:`.lexical`, times
    ``k1 + 1`` on Elasticsearch and on OpenSearch before 3. Lucene keeps a passage's length in one byte,
    exact up to 40 words and rounded down by less than 12% above, so that passages of close scores may
    change places compared with :class:`~probers.rag.retrievers.bm25.BM25`. ``analyzer="english"`` and
    ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query, which are BEIR's.

    Args:
        passages: the corpus; results are taken from it, by position.
        url: http(s)://HOST:PORT, or several of one cluster; None is ES_URL, where spaces separate them.
        index: name of the index; None derives one from the corpus and the settings.
        k1: how soon repeated words stop adding to a passage's score; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        analyzer: how text becomes tokens: "word" as BM25 here, "english" (stems, no stop words; DRAGIN's),
            or any other of the server's.
        fields: "joined" (title and text as one) or "separate" (the better score, plus half the other).
        shards: shards of a new index. Their number changes no score.
        timeout: seconds without an answer before a request counts as failed.
        retries: further attempts after a temporary failure, at the next address if there is one.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None uses the authorities the clients know.
        rebuild: make the index anew.

    Raises:
        UserError: an empty corpus; an unusable option, address or credential; no such server; a ``k`` below 1
            or above what servers return.
        RunError: the server fails, lost passages, or cannot answer a query.
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
        self.passages = as_passages(self.passages)
        for name, least in (("shards", 1), ("timeout", 0.001), ("retries", 0)):
            at_least(f"retriever.{name}", getattr(self, name), least)
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
        """Find up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Only the last 1000 words of a query are searched; passages of equal scores keep the corpus order.
        """
        at_least("k", k)
        return [self._best(query, min(k, len(self.passages))) for query in queries]

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        """Count the passages that hold each phrase, as :class:`~probers.signals.rarity.Counts`.

        The index keeps no places of words. Up to :data:`~.counts.READ` passages with all words of a phrase,
        by its analyzer, are therefore read here for those words in a row; a larger number counts as it is.
        """
        return self._count([(phrase,) for phrase in phrases])

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Count the passages that hold both phrases of each pair."""
        return self._count(pairs)

    def drop(self) -> None:
        """Remove the index from the server; the next retriever of the corpus makes it again."""
        self._ask(self._client.indices.delete, index=self._name, ignore_unavailable=True)

    def _best(self, query: str, size: int) -> list[Passage]:
        words = list(re.finditer(r"\w+", query))
        if not words:
            return []
        text = _utf8(query[words[-_QUERY_WORDS:][0].start() :])
        # None of the words is an operator. With several fields: the better, plus half the other.
        match = {"query": text, "fields": self._searched, "type": "best_fields", "tie_breaker": 0.5}
        body = {
            "query": {"multi_match": match}, "sort": [{"_score": "desc"}, {"n": "asc"}],
            "size": size, "track_total_hits": False, "_source": False,
        }  # fmt: skip
        # Use the statistics of all shards, so that their number changes no score.
        options = {"index": self._name, "search_type": "dfs_query_then_fetch"}
        answer = self._ask(self._client.search, body=body, **options)
        hits = [(*hit["sort"], hit["_id"]) for hit in answer["hits"]["hits"]]
        strange = any(str(n) != name or not 0 <= n < len(self.passages) for _, n, name in hits)
        if strange or answer["timed_out"] or answer["_shards"]["failed"]:
            message = (
                f"{self._server} answered {text[:80]!r} incompletely, or with documents not in the corpus"
            )
            raise RunError(f"{message}: rebuild index {self._name} with retriever.rebuild=true", "server")
        return [replace(self.passages[n], score=float(score)) for score, n, _ in hits]

    def _count(self, groups: Sequence[Sequence[str]]) -> list[int]:
        """Count the passages that hold all phrases of each group, with one request for many groups."""
        tokens = [[tuple(lexical.tokenize(phrase)) for phrase in group] for group in groups]
        counts, searched = [0] * len(groups), [i for i, group in enumerate(tokens) if all(group)]
        for start in range(0, len(searched), _SEARCHES):
            some = searched[start : start + _SEARCHES]
            body = [line for i in some for line in ({}, self._holding(groups[i]))]
            answers = self._ask(self._client.msearch, body=body, index=self._name)["responses"]
            for i, answer in zip(some, answers, strict=True):
                if "error" in answer or answer["timed_out"] or answer["_shards"]["failed"]:
                    reason = self._reason(answer.get("error", "an incomplete answer"))
                    raise self._error(f"counting {groups[i]!r}: {reason}", "server")
                counts[i] = answer["hits"]["total"]["value"]
                phrases = [phrase for phrase in tokens[i] if len(phrase) > 1]
                if phrases and counts[i] <= READ:
                    rows = [int(hit["_id"]) for hit in answer["hits"]["hits"]]
                    counts[i] = len(self._reader.holding(rows, phrases))
        return counts

    def _holding(self, phrases: Sequence[str]) -> dict[str, Any]:
        """Build the search for passages that hold all words of some phrases."""
        fields = {"fields": self._searched, "type": "cross_fields", "operator": "and"}
        each = [{"multi_match": {"query": _utf8(phrase)} | fields} for phrase in phrases]
        query = {"bool": {"filter": each}}
        return {"query": query, "size": READ, "track_total_hits": True, "_source": False}

    @cached_property
    def _reader(self) -> PhraseReader:
        return PhraseReader(lambda row: lexical.tokens_of(self.passages[row]))

    def _connect(self) -> None:
        """Choose the client by the server's answer; OpenSearch's client also works with Elasticsearch 7."""
        import elasticsearch.helpers
        import opensearchpy.helpers

        self._failures: Any = (
            elasticsearch.ApiError, elasticsearch.TransportError, opensearchpy.OpenSearchException
        )  # fmt: skip
        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # else its failures are printed
        given = self.url or os.environ.get("ES_URL", "").split()
        hosts = [self.url] if isinstance(self.url, str) else list(given)
        if not hosts or not all(re.fullmatch(_ADDRESS, host) for host in hosts):
            shown = " ".join(hosts).rpartition("@")[2]  # without a password
            raise UserError(f"no server at {shown!r}: set ES_URL or retriever.url to http(s)://HOST:PORT")
        hosts = [host.rstrip("/") for host in hosts]
        self._server = ", ".join(hosts)
        key, user, password = (os.environ.get(f"ES_{n}", "") for n in ("API_KEY", "USERNAME", "PASSWORD"))
        # Servers read UTF-8, and OpenSearch's client writes Latin-1.
        ascii_only = re.fullmatch("[ -~]*", key + user + password)
        if bool(user) != bool(password) or (user and key) or not ascii_only:
            message = "set ES_API_KEY, encoded, or both ES_USERNAME and ES_PASSWORD, in ASCII"
            raise UserError(message, "conflict")
        self._secrets = [secret for secret in (key, password) if secret]
        if self.ca_file and not (self.verify and self._server.startswith("https:")):
            raise UserError(f"retriever.ca_file={self.ca_file} needs https and verify=true", "conflict")
        if self.ca_file and not Path(self.ca_file).is_file():
            raise UserError(f"retriever.ca_file={self.ca_file} is no file: give a PEM file", "no-file")
        login = (user, password) if user else None
        options: dict[str, Any] = {
            "max_retries": self.retries, "retry_on_timeout": True, "retry_on_status": _AGAIN,
            "verify_certs": self.verify, "ca_certs": self.ca_file, "ssl_show_warn": False,
            "headers": {"authorization": f"ApiKey {key}"} if key else {},
        }  # fmt: skip
        self._client: Any = opensearchpy.OpenSearch(hosts, timeout=self.timeout, http_auth=login, **options)
        self._streaming_bulk: Any = opensearchpy.helpers.streaming_bulk
        if not self._ask(self._speaks_opensearch):
            options |= {"request_timeout": self.timeout, "basic_auth": login}
            self._client = elasticsearch.Elasticsearch(hosts, **options)
            self._streaming_bulk = elasticsearch.helpers.streaming_bulk
            self._ask(self._client.info)  # the client refuses anything but Elasticsearch

    def _speaks_opensearch(self) -> bool:
        greeting = self._client.info()
        version = greeting["version"]
        names = f"{version.get('distribution', '')} {greeting.get('tagline', '')}".lower()
        return "opensearch" in names or str(version["number"]).startswith("7.")

    def _prepare(self) -> None:
        """Complete the index: leave it if it is complete, fill it up, or make it anew."""
        indices, name, total = self._client.indices, self._name, len(self.passages)
        if self._ask(indices.exists, index=name):
            # The answer about an alias has the names behind it.
            mapping = self._ask(indices.get_mapping, index=name).get(name, {}).get("mappings", {})
            made_of = mapping.get("_meta", {}).get("probers")
            if not made_of:
                message = f"retriever.index={name} was not made by probers and is left alone"
                raise UserError(f"{message}: choose another name", "out-taken")
            changed = [setting for setting, value in self._recipe.items() if made_of.get(setting) != value]
            if changed or self.rebuild:
                log.info("index %s is made anew for: %s", name, ", ".join(changed) or "rebuild=true")
                self.drop()
        if not self._ask(indices.exists, index=name):
            self._create()
        if self._ask(self._client.count, index=name)["count"] == total:
            return
        self._load()
        self._ask(indices.refresh, index=name)
        if (count := self._ask(self._client.count, index=name)["count"]) != total:
            message = (
                f"the server acknowledged {total} passages but index {name} ({self._server}) holds {count}"
            )
            remedy = "the same command loads what is missing, with retriever.rebuild=true all"
            raise RunError(f"{message}: check its disk; {remedy}", "server")

    def _create(self) -> None:
        """Create the index, without positions of words: phrases are looked for in the passages."""
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
        try:
            body = {"settings": settings, "mappings": mappings}
            self._ask(self._client.indices.create, index=self._name, body=body)
        except ProbersError as error:
            # Another process, or a request whose answer was lost, may have made it.
            if "resource_already_exists_exception" not in str(error):
                raise

    def _load(self) -> None:
        """Send all passages; replace none, as the idf would still count a deleted version."""
        options = {"index": self._name, "raise_on_error": False, **BULK}
        sent = self._streaming_bulk(self._client, self._documents(), **options)
        total, refused = len(self.passages), list[str]()
        answered = iter(lambda: self._ask(next, sent, None), None)
        for taken, item in tqdm(answered, "index", total, disable=total <= 20_000):
            result = item["create"]
            if not taken and result["status"] != 409:  # 409: already there
                refused.append(f"{self.passages[int(result['_id'])].id!r} ({self._reason(result['error'])})")
            if len(refused) == _MOST_REFUSED:
                break
        if refused:
            raise self._error(f"{len(refused)} passages are refused: {', '.join(refused)}", "server")

    def _documents(self) -> Iterator[dict[str, Any]]:
        for n, p in enumerate(passages_from(self.passages, 0)):
            texts = {"title": p.title, "text": p.text, "contents": f"{p.title} {p.text}"}
            searched = {field: _utf8(texts[field]) for field in self._searched}
            yield {"_op_type": "create", "_id": str(n), "n": n, **searched}

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a client and return the answer's body; turn failures into one sentence."""
        try:
            answer = call(*arguments, **options)
            return getattr(answer, "body", answer)
        except self._failures as error:
            status = getattr(error, "status_code", None)
            if isinstance(status, int):
                reason = self._reason(error.info or error.error)
                raise self._error(f"HTTP {status} {reason}", "server") from None
            inner: BaseException = error
            while cause := inner.__cause__ or inner.__context__:  # the innermost tells the reason
                inner = cause
            raise self._error(self._reason(f"{type(inner).__name__}: {inner}"), "network") from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # The clients do not check the form of an answer before they read it.
            reason = self._reason(f"{type(error).__name__}: {error}")
            raise UserError(f"{self._server}: {reason}; {_OTHER}", "server") from None

    def _error(self, reason: str, code: Code) -> ProbersError:
        """Make the error for a failure, with what the user can do about it."""
        failure = f"{self._server}: {reason}"
        if "cluster_block_exception" in reason:
            remedy = 'free its disk, then PUT INDEX/_settings {"index.blocks.read_only_allow_delete": null}'
            return RunError(f"{failure}; {remedy} and run the same command again", "disk")
        for sign, remedy in _REMEDIES.items():
            if re.match(sign, reason):
                return UserError(f"{failure}; {remedy}", "server" if remedy is _OTHER else code)
        return RunError(f"{failure}; once this is fixed, the same command goes on", code)

    def _reason(self, error: Any) -> str:
        """Find the first cause in an error of a server, as one short line without secrets."""
        if isinstance(error, dict):
            error = error.get("error", error)
        if isinstance(error, dict):
            first = error | next(iter(error.get("root_cause", [])), {})
            inner = first.get("caused_by", {}).get("reason", "")
            error = f"{first.get('type')}: {first.get('reason')} {inner}"
        text = re.sub(r"Basic \S+", "Basic ***", str(error))  # a header holds the password encoded
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return "".join(c for c in " ".join(text.split())[:400] if c.isprintable())


def _utf8(text: str) -> str:
    """Make a text that servers accept: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode()
