"""BM25 on Elasticsearch or OpenSearch servers, for corpora too large for one machine."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import regex

from probers.data.corpus import as_passages
from probers.options import Natural
from probers.types import Passage, ProbersError, RunError, UserError

from ..protocol import at_least
from . import lexical
from .existing_index import ExistingIndex
from .server import Server
from .server_index import WORD, Recipe, ServerIndex, spaced, utf8

log = logging.getLogger(__name__)

#: Words of a query, times the fields searched: servers refuse more than 1,024 clauses unless set otherwise.
CLAUSES = 1000
#: Searches, and counts, per request.
SEARCHES, COUNTS = 64, 200
#: Words of texts that the server cuts into tokens: any character of a script without spaces may be one.
_WORDS = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
    r"|(?:(?![\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])\w)+"
)
#: Fields that have no meaning for an index that is there already.
_OF_CORPUS = ("k1", "b", "analyzer", "fields", "shards", "replicas", "rebuild")


@dataclass(eq=False, repr=False)
class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch, through the official clients (extra "search").

    Passages are loaded on first use, into an index of their own for every corpus and settings: it is used
    unchanged by later runs, filled up if passages are missing, and never dropped for another corpus. Of
    processes that start together one loads, and the others wait. With ``existing=true`` an index that is
    there already is searched without a corpus, and nothing is written. ES_API_KEY, or ES_USERNAME and
    ES_PASSWORD, are sent if set; no option holds a secret.

    With ``analyzer="word"`` the tokens are those of :mod:`.lexical`, made here, and with ``fields="joined"``
    the scoring function is too, times ``k1 + 1`` on Elasticsearch and on OpenSearch before 3. Lucene keeps a
    passage's length in one byte, exact up to 40 words and rounded down by less than 12% above, so that
    passages of close scores may change places compared with :class:`~probers.rag.retrievers.bm25.BM25`.
    ``analyzer="english"`` and ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query, which are
    BEIR's.

    Args:
        passages: the corpus; results are taken from it, by position. None with ``existing``.
        url: http(s)://HOST:PORT, or several of one cluster; None is ES_URL, where spaces separate them.
        index: beginning of the index's name, to which the digest of corpus and settings is added; with
            ``existing`` the name of an index, an alias or a data stream.
        existing: search an index that others made: fields ``title`` and ``text`` with their own analyzer,
            the better score plus half the other.
        title: with ``existing`` the field of titles; an index without a field "title" has none.
        text: with ``existing`` the field of texts, such as "txt" (DRAGIN, BEIR) or "doc.body".
        k1: how soon repeated words stop adding to a passage's score; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        analyzer: how text becomes tokens: "word" as BM25 here, "english" (stems, no stop words; DRAGIN's),
            or any other of the server's.
        fields: "joined" (title and text as one) or "separate" (the better score, plus half the other).
        shards: shards of a new index. Their number changes no score.
        replicas: copies of every shard of a new index on other nodes; "auto" is one where there are two nodes
            or more, so that the loss of a node loses nothing.
        timeout: seconds without an answer before a request counts as failed.
        retries: further attempts after a temporary failure, after pauses that double from a quarter of a
            second: 8 wait a minute in all. The next address, if there is one, is tried at once.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None uses the authorities the clients know.
        rebuild: make the index anew, and remove the one of the same corpus and settings once it is complete.

    Raises:
        UserError: an empty corpus; an unusable option, address or credential; no such server, or no such
            index or field in it; a ``k`` below 1 or above what servers return.
        RunError: the server fails, lost passages or a shard, or cannot answer a query.
    """

    passages: Sequence[Passage] | None = None
    _: KW_ONLY
    url: str | Sequence[str] | None = None
    index: str | None = None
    existing: bool = False
    title: str = "title"
    text: str = "text"
    k1: float = lexical.K1
    b: float = lexical.B
    analyzer: str = WORD
    fields: Literal["joined", "separate"] = "joined"
    shards: int = 1
    replicas: Natural | Literal["auto"] = "auto"
    timeout: float = 60.0
    retries: int = 8
    verify: bool = True
    ca_file: str | None = None
    rebuild: bool = False

    def __post_init__(self) -> None:
        lexical.check_options(self.k1, self.b)
        for name, least in (("shards", 1), ("timeout", 0.001), ("retries", 0)):
            at_least(f"retriever.{name}", getattr(self, name), least)
        if self.replicas != "auto":
            at_least("retriever.replicas", self.replicas, 0)
        self._check_source()
        passages = [] if self.existing else as_passages([] if self.passages is None else self.passages)
        connection = ("timeout", "retries", "verify", "ca_file")
        self._server = Server(self.url, **{name: getattr(self, name) for name in connection})
        self._warned, self._clauses = set[str](), CLAUSES
        self._index: ServerIndex | ExistingIndex
        if self.existing:
            self._index = ExistingIndex(self._server, str(self.index), self.title, self.text)
            self._fields = self._index.fields
        else:
            options = {"analyzer": self.analyzer, "fields": self.fields}
            recipe = Recipe.of(passages, k1=float(self.k1), b=float(self.b), **options)
            self._index = ServerIndex(
                self._server, passages, recipe, self.index, shards=self.shards, replicas=self.replicas
            )
            self._index.open(rebuild=self.rebuild)
            self._fields = recipe.searched
        self._name = self._index.searched

    def __repr__(self) -> str:
        return f"Elasticsearch({len(self):,} passages, index {self._name} ({self._server.name}))"

    def __len__(self) -> int:
        return self._index.documents

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Queries are sent 64 at a time. Only the last words of a long query are searched, 1000 of them over
        all fields, which a warning tells; passages of equal scores keep the corpus order, where there is one.
        """
        at_least("k", k)
        size = k if self.existing else min(k, len(self))
        texts = {i: query for i, query in enumerate(queries) if self._words(query)}
        answers = self._multi(list(texts.values()), lambda query: self._ranking(query, size), SEARCHES)
        hits = [answer["hits"]["hits"] for answer in answers]
        if isinstance(self._index, ServerIndex):
            self._index.check([hit["_index"] for each in hits for hit in each])
        results: list[list[Passage]] = [[] for _ in queries]
        for (i, query), each in zip(texts.items(), hits, strict=True):
            results[i] = [self._index.passage(hit, query) for hit in each]
        return results

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        """Count the passages that hold each phrase, as :class:`~probers.signals.rarity.Counts`.

        A phrase is its words in a row, by the index's analyzer, and with ``fields="separate"`` within one
        field. Of an index without places of words, the passages with all of them count; and of a phrase of
        more than 1000 words its first. A warning tells both.
        """
        return self._count([(phrase,) for phrase in phrases])

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Count the passages that hold both phrases of each pair."""
        return self._count(pairs)

    def drop(self) -> None:
        """Remove the index from the server; the next retriever of the corpus makes it again."""
        self._index.drop()

    def _check_source(self) -> None:
        """Refuse options that do not go with ``existing``, or not without."""
        default = {name: each.default for name, each in type(self).__dataclass_fields__.items()}
        unfit = _OF_CORPUS if self.existing else ("title", "text")
        given = [name for name in unfit if getattr(self, name) != default[name]]
        if self.existing and self.fields == "separate":  # which they are
            given.remove("fields")
        only = "takes an index as it is, without" if self.existing else "is missing for"
        given = [f"retriever.{name}={getattr(self, name)}" for name in given]
        if self.existing and self.passages is not None and len(self.passages):
            given.append("passages")
        if given:
            remedy = "leave one out" if self.existing else f"add it, or leave {given[0]} out"
            raise UserError(f"retriever.existing=true {only} {given[0]}: {remedy}", "conflict")
        if self.existing and not self.index:
            problem = "retriever.existing=true needs the index's name as retriever.index"
            raise UserError(problem, "missing-value")

    @property
    def _most(self) -> int:
        """Most words of a query."""
        return max(1, self._clauses // len(self._fields))

    def _words(self, text: str) -> list[Any]:
        """Cut a text into words as the index takes them: tokens, or matches where the server makes these."""
        return lexical.tokenize(text) if self._index.tokens else list(_WORDS.finditer(text))

    def _ranking(self, query: str, size: int) -> dict[str, Any]:
        """Build the search for the passages of a query, by its last words."""
        words = self._words(query)
        if len(words) > self._most:
            self._warn_once("only the last %d words of a longer query are searched", self._most)
        last = words[-self._most :]
        text = spaced(last) if self._index.tokens else utf8(query[last[0].start() :])
        # None of the words is an operator. With several fields: the better, plus half the other.
        how = {"type": "best_fields", "tie_breaker": 0.5}
        match = {"query": text, "fields": self._fields} | how
        return {"query": {"multi_match": match}, "size": size, "track_total_hits": False} | self._index.body

    def _holding(self, group: Sequence[str]) -> dict[str, Any]:
        """Build the count of the passages that hold all phrases of a group, by their first words."""
        how = {"type": "phrase"} if self._index.places else {"type": "cross_fields", "operator": "and"}
        most, each = max(1, self._most // len(group)), []
        for phrase in group:
            words = self._words(phrase)
            if len(words) > most:
                self._warn_once("a phrase of more than %d words is counted by its first", most)
            first = words[:most]
            text = spaced(first) if self._index.tokens else utf8(phrase[: first[-1].end()])
            each.append({"multi_match": {"query": text, "fields": self._fields} | how})
        return {"query": {"bool": {"filter": each}}, "size": 0, "track_total_hits": True, "_source": False}

    def _count(self, groups: Sequence[Sequence[str]]) -> list[int]:
        if groups and not self._index.places:
            message = "index %s keeps no places of words: rarity counts passages with all words of a phrase"
            self._warn_once(message, self._name)
        searched = [i for i, group in enumerate(groups) if all(map(self._words, group))]
        answers = self._multi([groups[i] for i in searched], self._holding, COUNTS)
        counts = [0] * len(groups)
        for i, answer in zip(searched, answers, strict=True):
            counts[i] = answer["hits"]["total"]["value"]
        return counts

    def _multi(self, searches: Sequence[Any], build: Any, most: int) -> list[dict[str, Any]]:
        """Send many searches, at most ``most`` per request; return their answers, each with its hits."""
        answers: list[dict[str, Any]] = []
        # Statistics of all shards, so that their number changes no score, and always the same copies of them.
        head = json.dumps({"search_type": "dfs_query_then_fetch", "preference": "probers"})
        while len(answers) < len(searches):
            some = searches[len(answers) : len(answers) + most]
            body = "".join(f"{head}\n{json.dumps(build(each))}\n" for each in some)
            try:
                search = self._server.client.msearch
                results = self._server.ask(search, read=_responses, body=body, index=self._name)
            except ProbersError as error:
                if ": HTTP 413" not in str(error) or most == 1:
                    raise
                most = (most + 1) // 2
                continue
            if self._taken(results, some):
                answers += results
        return answers

    def _taken(self, results: Sequence[Mapping[str, Any]], searches: Sequence[Any]) -> bool:
        """Tell whether the server took all searches; if they had too many words, later ones get fewer."""
        if len(results) != len(searches):
            message = f"{self._server.name} answered {len(results)} of {len(searches)} searches"
            raise RunError(f"{message}: check retriever.url", "server")
        failed = next((i for i, answer in enumerate(results) if "error" in answer), None)
        if failed is None:
            return True
        if re.search("too_many_(nested_)?clauses", str(results[failed])) and self._clauses > 1:
            self._clauses //= 2
            message = "index %s takes fewer clauses: of longer queries the last %d words are searched"
            log.warning(message, self._name, self._most)
            return False
        reason = self._server.reason(results[failed]["error"])
        status = results[failed].get("status", 500)
        raise self._server.error(f"HTTP {status} {reason} (asked for {str(searches[failed])[:80]!r})")

    def _warn_once(self, message: str, value: Any) -> None:
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, value)


def _responses(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Take the answers of a multi-search; LookupError or TypeError for one without hits and error."""
    answers: list[dict[str, Any]] = body["responses"]
    for answer in answers:
        iter(answer["error"] if "error" in answer else answer["hits"]["hits"])
    return answers
