"""An index on the server: made, loaded, checked, and used again when it is the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from probers.types import Passage, RunError, UserError

from .errors import reason_of
from .loading import Loader
from .recipe import Recipe
from .server import Server

#: Words of a canary, and the passages one is chosen from. Long words of the passage with most of
#: them: none that a stop list takes away, none that the server would cut.
_WORDS, _CHOICE = 20, 50
_WORD = re.compile(r"\b\w{2,50}\b")
_LOOKED_AT = 2000  # characters


class _Found(NamedTuple):
    """An index of these commands: its own name, behind any alias, and its ``_meta``."""

    name: str
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one recipe.

    Attributes:
        name: of the index, or of an alias for it.
    """

    server: Server
    name: str
    recipe: Recipe
    shards: int = 1
    replicas: int = 0

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise UserError(f"retriever.shards={self.shards} must be 1 or more")
        if self.replicas < 0:
            raise UserError(f"retriever.replicas={self.replicas} must be 0 or more")

    @property
    def path(self) -> str:
        return "/" + quote(self.name, safe="")

    def prepare(self, passages: Sequence[Passage], loader: Loader, *, rebuild: bool, progress: bool) -> None:
        """Leave the index complete: untouched if it is, loaded from where it stopped, or made anew.

        Raises:
            UserError: an index of that name is there that these commands did not make.
            RunError: passages were refused, or are not there or not found after loading.
        """
        total = len(passages)
        found = self._found()
        if found is not None and (rebuild or self._is_stale(found)):
            self.server.request("DELETE", "/" + quote(found.name, safe=""), accept=(404,))
            found = None
        if found is None:
            self._create()
            start = 0
        elif found.meta.get("complete") and self.count() == total:
            self._check_canaries(passages)
            return
        else:
            start = self._loaded(total)
        if progress:
            self._announce(passages, start)
        loader.load(passages, start, progress=progress)
        self._refresh()
        there = self.count()
        if there != total:
            raise RunError(
                f"the server acknowledged {total:,} passages but {self} holds {there:,}: check its disk and "
                "its log; the same command loads what is missing, with retriever.rebuild=true all"
            )
        self._check_canaries(passages)
        self._finish()

    def count(self, below: int | None = None) -> int:
        """Documents that a search can see, all or those of positions under ``below``."""
        query = {"match_all": {}} if below is None else {"range": {"n": {"lt": below}}}
        data = self.server.request("POST", f"{self.path}/_count", {"query": query}).data
        if data["_shards"]["failed"]:
            raise RunError(
                f"{data['_shards']['failed']} shards of {self} do not answer: look at the server's log and "
                "run the same command again"
            )
        return int(data["count"])

    def __str__(self) -> str:
        return f"index {self.name} ({self.server})"

    def _found(self) -> _Found | None:
        """The index that goes by this name, None when there is none."""
        status, data = self.server.request("GET", f"{self.path}/_mapping", accept=(404,))
        if status == 404:
            return None
        if len(data) != 1:
            raise UserError(
                f"retriever.index={self.name} is an alias of {len(data)} indices: give the name of one"
            )
        ((name, found),) = data.items()
        meta = found.get("mappings", {}).get("_meta", {}).get("probers")
        if not isinstance(meta, dict):
            raise UserError(
                f"retriever.index={self.name} exists at {self.server.url} and was not made by probers: it is "
                "left alone; choose another name"
            )
        return _Found(name, meta)

    def _is_stale(self, found: _Found) -> bool:
        differences = self.recipe.differences(found.meta)
        if not differences and self.count() > self.recipe.passages:
            differences = ["it holds more than was loaded"]
        if differences:
            print(f"{self} is made anew: {'; '.join(differences[:3])}")
        return bool(differences)

    def _create(self) -> None:
        body = self.recipe.definition(shards=self.shards, replicas=self.replicas)
        status, data = self.server.request("PUT", self.path, body, accept=(400,))
        kind, reason = reason_of(data)
        if status == 200:
            return
        if kind == "resource_already_exists_exception":  # a try whose answer was lost, or another process
            found = self._found()
            if found is not None and not self.recipe.differences(found.meta):
                return
        raise UserError(
            f"{self} cannot be made: {self.server.clean(reason)}; check retriever.analyzer="
            f"{self.recipe.analyzer}, retriever.shards={self.shards} and retriever.replicas={self.replicas}"
        )

    def _announce(self, passages: Sequence[Passage], start: int) -> None:
        """Say what is to be loaded, and warn where the server's disks cannot hold it."""
        total = len(passages)
        sample = [passages[i] for i in range(0, total, max(1, total // 200))]
        size = sum(len(f"{p.title}{p.text}".encode("utf-8", "replace")) for p in sample) * total / len(sample)
        goes_on = f", going on from {start:,}," if start else ""
        print(f"loading {total:,} passages{goes_on} (about {size / 1e6:,.0f} MB of text) into {self}")
        asked = "/_cat/allocation?format=json&bytes=b&h=disk.avail"
        status, nodes = self.server.request("GET", asked, accept=range(400, 500))
        free = [int(node["disk.avail"]) for node in nodes if node.get("disk.avail")] if status == 200 else []
        if free and sum(free) < size * (1 + self.replicas) * (1 - start / total):
            self.server.notice(
                f"the server has {sum(free) / 1e6:,.0f} MB of disk left, less than the text alone: it will "
                "make the index read-only before all is loaded"
            )

    def _loaded(self, total: int) -> int:
        """How many passages from the first on are there without a gap.

        Passages are loaded in order, so that this is found with a few counts also among millions.
        """
        self._refresh()
        low, high = 0, total
        while low < high:
            middle = (low + high + 1) // 2
            if self.count(below=middle) == middle:
                low = middle
            else:
                high = middle - 1
        return low

    def _refresh(self) -> None:
        data = self.server.request("POST", f"{self.path}/_refresh").data
        if data["_shards"]["failed"]:
            raise RunError(
                f"{data['_shards']['failed']} shards of {self} could not be refreshed: see its log"
            )

    def _check_canaries(self, passages: Sequence[Passage]) -> None:
        """Find a passage from the beginning, the middle and the end by its own words."""
        last = len(passages) - 1
        for about in sorted({0, last // 2, last}):
            first = max(0, min(about, last + 1 - _CHOICE))
            near = range(first, min(first + _CHOICE, last + 1))
            n = max(near, key=lambda i: sum(map(len, _long_words(passages[i]))))
            words = _long_words(passages[n])
            if not words:  # nothing here that any analyzer is sure to keep
                continue
            query = {
                "bool": {
                    "must": [self.recipe.match(" ".join(words))],
                    "filter": [{"ids": {"values": [str(n)]}}],
                }
            }
            body = {"query": query, "size": 1, "_source": False}
            if not self.server.request("POST", f"{self.path}/_search", body).data["hits"]["hits"]:
                raise RunError(
                    f"{self} does not find passage {passages[n].id!r} by its own words, though its count is "
                    "right: look at the server's log, and make the index anew with retriever.rebuild=true"
                )

    def _finish(self) -> None:
        """Mark the index as complete, unless it was replaced meanwhile."""
        found = self._found()
        if found is None or self.recipe.differences(found.meta):
            raise RunError(f"{self} was replaced while it was loaded: run the same command again")
        self.server.request("PUT", f"{self.path}/_settings", {"index": {"refresh_interval": None}})
        self.server.request("PUT", f"{self.path}/_mapping", {"_meta": self.recipe.meta(complete=True)})


def _long_words(passage: Passage) -> list[str]:
    """The longest words near the passage's beginning, longest first."""
    words = set(_WORD.findall(f"{passage.title} {passage.text[:_LOOKED_AT]}"))
    return sorted(words, key=lambda w: (-len(w), w))[:_WORDS]
