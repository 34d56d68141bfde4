"""Many queries in one request, and what becomes of those that fail in it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probers.data.http import AGAIN
from probers.types import RunError, UserError

from .errors import reason_of
from .recipe import Recipe
from .server import Server

_WORD = re.compile(r"\w+")
_TOO_LARGE = 413
_SHOWN = 80  # characters of a query in a message
#: A server's ``index.max_result_window``.
MOST = 10_000


class Hit(NamedTuple):
    """The position of a passage in the corpus and the server's score for it."""

    position: int
    score: float


@dataclass(slots=True)
class Searcher:
    """Sends queries to one index.

    Args:
        queries: how many go with one request.
        max_words: words of a query that are searched, the last ones. Servers refuse queries of
            more than (mostly) 1,024 clauses; where one still does, the first half of the query is
            left out until it does not.
    """

    server: Server
    index: str
    recipe: Recipe
    queries: int = 64
    max_words: int = 1000
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for option, value in (("search_queries", self.queries), ("max_query_words", self.max_words)):
            if value < 1:
                raise UserError(f"retriever.{option}={value} must be 1 or more")

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Up to ``k`` hits per query, best first; equal scores keep the corpus order.

        Raises:
            UserError: ``k`` is more than servers return.
            RunError: a query failed for good, or the server is gone.
        """
        size = min(k, self.recipe.passages)
        if size > MOST:
            raise UserError(f"k={k}: Elasticsearch returns at most {MOST} passages (index.max_result_window)")
        found: list[list[Hit]] = [[] for _ in queries]
        texts = [self._cut(q) for q in queries]
        asked = [i for i, text in enumerate(texts) if text]
        for start in range(0, len(asked), self.queries):
            self._search(asked[start : start + self.queries], texts, size, found)
        return found

    def _search(self, asked: list[int], texts: list[str], size: int, found: list[list[Hit]]) -> None:
        attempt = 0
        while asked:
            status, data = self.server.request(
                "POST", "/_msearch", lines=self._lines([texts[i] for i in asked], size), accept=(_TOO_LARGE,)
            )
            if status == _TOO_LARGE and len(asked) > 1:
                middle = len(asked) // 2
                self._search(asked[:middle], texts, size, found)
                self._search(asked[middle:], texts, size, found)
                return
            answers = data.get("responses", []) if isinstance(data, dict) else []
            if status == _TOO_LARGE:
                answers = [{"error": {"type": "too_many_clauses", "reason": "the request is too large"}}]
            if len(answers) != len(asked):
                raise RunError(f"{self.server} answered {len(answers)} of {len(asked)} queries")
            put_off, shortened, reason = [], [], ""
            for i, answer in zip(asked, answers, strict=True):
                if not (failure := _failure(answer)):
                    found[i] = [self._hit(hit) for hit in answer["hits"]["hits"]]
                elif _too_long(answer) and len(texts[i]) > 1:
                    shortened.append(i)
                    texts[i] = self._half(texts[i])
                elif int(answer.get("status", 0)) in AGAIN or "error" not in answer:
                    put_off.append(i)
                    reason = self.server.clean(failure)
                else:
                    raise RunError(
                        f"{self.server} cannot answer the query {texts[i][:_SHOWN]!r}: "
                        f"{self.server.clean(failure)}"
                    )
            if put_off:
                self.server.pause(attempt, f"{len(put_off)} of {len(asked)} queries were put off: {reason}")
                attempt += 1
            asked = put_off + shortened

    def _lines(self, texts: list[str], size: int) -> bytes:
        """The request: every query with the statistics of all shards, so that they do not matter."""
        lines: list[dict[str, Any]] = []
        for text in texts:
            lines.append({"index": self.index, "search_type": "dfs_query_then_fetch"})
            lines.append(
                {
                    "query": self.recipe.match(text),
                    "size": size,
                    "sort": [{"_score": "desc"}, {"n": "asc"}],
                    "track_total_hits": False,  # lets the server pass over what cannot reach the first k
                    "_source": False,
                }
            )
        joined = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return joined.encode("utf-8", "replace")

    def _hit(self, hit: dict[str, Any]) -> Hit:
        score, position = hit["sort"]
        if not 0 <= int(position) < self.recipe.passages or hit["_id"] != str(position):
            raise RunError(
                f"{self.server} returns document {hit['_id']} of index {self.index}, which was not loaded "
                "from this corpus: make the index anew with retriever.rebuild=true"
            )
        return Hit(int(position), float(score))

    def _cut(self, query: str) -> str:
        words = list(_WORD.finditer(query))
        if len(words) <= self.max_words:
            return query.strip()
        self._tell(f"a query of {len(words):,} words is cut to its last {self.max_words:,} (max_query_words)")
        return query[words[-self.max_words].start() :]

    def _half(self, text: str) -> str:
        """The second half of its words, of its characters where it is one word."""
        self._tell(f"a query of {len(text):,} characters has too many words for the server: its end is used")
        words = [match.start() for match in _WORD.finditer(text)]
        return text[words[len(words) // 2] if len(words) > 1 else len(text) // 2 :]

    def _tell(self, text: str) -> None:
        """Say it once: a run has thousands of queries."""
        if not self._told:
            self.server.notice(text)
            self._told = True


def _failure(answer: dict[str, Any]) -> str:
    """Why one query of several failed or was answered in part only; "" when it was not."""
    if "error" in answer:
        return reason_of(answer)[1] or "no reason given"
    if answer.get("timed_out"):
        return "the server ran out of time"
    failed = answer.get("_shards", {}).get("failed", 0)
    return f"{failed} shards do not answer" if failed else ""


def _too_long(answer: dict[str, Any]) -> bool:
    """Whether the query has too many words; servers say so in causes of causes, with 400 or 500."""
    said = json.dumps(answer.get("error", ""))
    return "maxClauseCount" in said or bool(re.search(r"too[_ ]many[_a-z ]*clauses", said))
