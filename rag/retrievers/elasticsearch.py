"""BM25 by an Elasticsearch or OpenSearch server, for corpora that one machine should not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from probers.data.corpus import fingerprint
from probers.types import Passage

from . import lexical
from .elastic.index import Index
from .elastic.loading import Loader
from .elastic.recipe import WORD, Fields, Recipe, check_name
from .elastic.searching import Searcher
from .elastic.server import Patience, Server


class Elasticsearch:
    """Elasticsearch 7 to 9 or OpenSearch over REST; the passages are loaded on first use.

    The index remembers corpus and settings. It is used as it is when these and the count are
    right, loaded on where an earlier run stopped, and made anew when they have changed; an index
    that was not made here is left alone. Before it is used, passages are searched for by their
    own words: a server whose disk is nearly full drops what is loaded and says so only within
    answers of status 200.

    With ``analyzer="word"`` and ``fields="joined"`` the function is that of :mod:`.lexical`, times
    ``k1 + 1`` on Elasticsearch and on OpenSearch before 3, and ties keep the corpus order. Lucene keeps
    a passage's length in one byte, exact up to 40 words and rounded down by less than 12% above, so
    that passages of close scores may change places against :class:`~probers.rag.retrievers.bm25.BM25`.
    ``analyzer="english"`` and ``fields="separate"`` are DRAGIN's (Su et al. 2024) index and query,
    which are BEIR's: stems, no stop words, title and text as two fields.

    ES_API_KEY, or ES_USERNAME and ES_PASSWORD, are sent when set; no option holds a secret.

    Args:
        passages: the corpus; what is found is taken from here, by position.
        url: address of the server; None is ES_URL.
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
        max_wait: longest wait between tries in seconds, also where the server asks for more.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None is the system's.
        rebuild: make the index anew.
        progress: show a bar while loading; None does for more than 20,000 passages.

    Raises:
        UserError: an empty corpus; an option, address or credential that does not serve.
        RunError: the server fails, or lost passages.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        url: str | None = None,
        index: str | None = None,
        k1: float = lexical.K1,
        b: float = lexical.B,
        analyzer: str = WORD,
        fields: Fields = "joined",
        shards: int = 1,
        replicas: int = 0,
        bulk_passages: int = 1000,
        bulk_mb: float = 8.0,
        search_queries: int = 64,
        max_query_words: int = 1000,
        timeout: float = 60.0,
        retries: int = 5,
        backoff: float = 1.0,
        max_wait: float = 300.0,
        verify: bool = True,
        ca_file: str | None = None,
        rebuild: bool = False,
        progress: bool | None = None,
    ) -> None:
        lexical.check_options(k1, b)
        lexical.check_corpus(passages)
        patience = Patience(timeout, retries, backoff, max_wait)
        name = check_name(index) if index is not None else None
        server = Server(url, verify=verify, ca_file=ca_file, patience=patience)
        recipe = Recipe(fingerprint(passages), len(passages), float(k1), float(b), analyzer, fields)
        self._passages = passages
        self._index = Index(server, name or recipe.index, recipe, shards, replicas)
        self._searcher = Searcher(server, self._index.name, recipe, search_queries, max_query_words)
        self._index.prepare(
            passages,
            Loader(server, self._index.name, bulk_passages, bulk_mb),
            rebuild=rebuild,
            progress=len(passages) > 20_000 if progress is None else progress,
        )

    def __repr__(self) -> str:
        return f"Elasticsearch({len(self._passages)} passages, {self._index})"

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Raises:
            UserError: ``k`` is below 1 or above what servers return.
            RunError: the server fails, or cannot answer a query.
        """
        lexical.check_k(k)
        found = self._searcher.search(queries, k)
        return [[replace(self._passages[n], score=score) for n, score in hits] for hits in found]
