"""Index of others on a search server, searched as it is; nothing is ever written to it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from probers.types import Passage, UserError

from .server import Server

log = logging.getLogger(__name__)

#: Types of fields that are searched by words.
_TEXTS = ("text", "match_only_text", "search_as_you_type", "annotated_text")


class Field(NamedTuple):
    """A field of an index's documents.

    Attributes:
        name: name to search by.
        path: where ``_source`` has its text, which is elsewhere for aliases and for fields within a field.
        kind: type in the mapping.
        nested: True if it is in an object of its own, which ordinary searches do not see.
        places: True if the index keeps the places of words.
    """

    name: str
    path: tuple[str, ...]
    kind: str
    nested: bool
    places: bool


@dataclass(eq=False)
class ExistingIndex:
    """Titles and texts of an index, alias, data stream or pattern of indexes that is there already.

    Attributes:
        searched: its name.
        title, text: their fields; an index without a field "title" has no titles, and ``doc.body`` is the
            field "body" of an object "doc".
        fields: names of the fields to search.
        places: True if the index keeps the places of words in all of them.
        tokens: False, as the index makes its tokens itself.
        documents: number of documents with a text.
        body: what a search asks of the documents found.
    """

    server: Server
    searched: str
    title: str = "title"
    text: str = "text"
    fields: list[str] = field(init=False)
    places: bool = field(init=False)
    documents: int = field(init=False)
    tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        mappings = self.server.ask(self.server.client.indices.get_mapping, index=self.searched)
        if not mappings:
            message = f"{self.server.name} has no index {self.searched}: check retriever.index"
            raise UserError(message, "no-file")
        if any(each["mappings"].get("_source", {}).get("enabled") is False for each in mappings.values()):
            raise self._no_source()
        text = self._field("text", self.text, mappings)
        title = self._field("title", self.title, mappings)
        assert text is not None
        searched = [text] if title is None else [title, text]
        self.fields = [each.name for each in searched]
        self.places = all(each.places for each in searched)
        self._title, self._text = None if title is None else title.path, text.path
        self.body = {"_source": [".".join(each.path) for each in searched]}
        self._warned = False
        # One document shows whether texts can be read; all with a text are counted.
        body = {"query": {"exists": {"field": text.name}}, "size": 1, "track_total_hits": True} | self.body

        def read(answer: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
            return list(answer["hits"]["hits"]), answer["hits"]["total"]["value"]

        search = self.server.client.search
        hits, self.documents = self.server.ask(search, read=read, index=self.searched, body=body)
        if not hits:
            message = f"index {self.searched} ({self.server.name}) holds no document with {self.text}"
            raise UserError(f"{message}: check retriever.index and retriever.text", "empty")
        if not self._read(hits[0], self._text):
            message = f"documents of index {self.searched} do not keep {self.text} in their _source"
            raise UserError(f"{message}: name another field as retriever.text", "unsupported")

    def passage(self, hit: Mapping[str, Any], query: str) -> Passage:
        """Make a passage of a document found."""
        if "_source" not in hit:
            raise self._no_source()
        title, text = self._read(hit, self._title), self._read(hit, self._text)
        if not text and not self._warned:
            self._warned = True
            log.warning("document %r of index %s has no %s", hit["_id"], self.searched, self.text)
        return Passage(hit["_id"], title, text, score=hit.get("_score"))

    def drop(self) -> None:
        """Refuse to remove it (UserError)."""
        raise UserError(f"index {self.searched} was not made by probers and is left alone", "conflict")

    def _no_source(self) -> UserError:
        message = f"index {self.searched} ({self.server.name}) keeps no _source, so its texts cannot be read"
        return UserError(f"{message}: name an index that does as retriever.index", "unsupported")

    def _field(self, option: str, name: str, mappings: Mapping[str, Any]) -> Field | None:
        """Find a field in the mappings of all indexes; UserError if it cannot be searched by words."""
        key = f"retriever.{option}={name}"
        each = {index: _located(entry["mappings"], name) for index, entry in mappings.items()}
        lacking = [index for index, place in each.items() if place is None]
        if lacking and option == name == "title":
            log.info("index %s has no field title: passages have none", self.searched)
            return None
        if lacking:
            known = sorted(_names(mappings[lacking[0]]["mappings"]))
            near = difflib.get_close_matches(name, known, n=8, cutoff=0) or ["none"]
            message = f"{key}: index {lacking[0]} ({self.server.name}) has no such field of words"
            raise UserError(f"{message}; it has {', '.join(near)}", "bad-value")
        places = [place for place in each.values() if place is not None]
        first = places[0]
        if first.nested or first.kind not in _TEXTS:
            where = "lies in a nested object" if first.nested else f"is of type {first.kind}"
            message = f"{key} {where} in index {self.searched}, which is not searched by words"
            raise UserError(f"{message}: name a field of type text outside of such objects", "unsupported")
        if any(place.path != first.path or place.kind not in _TEXTS for place in places):
            message = f"{key} is not the same in all indexes of {self.searched}"
            raise UserError(f"{message}: name one index as retriever.index", "conflict")
        return first._replace(places=all(place.places for place in places))

    def _read(self, hit: Mapping[str, Any], path: tuple[str, ...] | None) -> str:
        return "" if path is None else " ".join(_texts(hit.get("_source", {}), path))


def _located(mapping: Mapping[str, Any], name: str) -> Field | None:
    """Find a field by its dotted name in one mapping."""
    node, path, nested, rest = mapping, list[str](), False, name.split(".")
    while rest:
        inner = {**node.get("fields", {}), **node.get("properties", {})}
        # A name with dots may stand as a whole.
        taken = next((n for n in range(len(rest), 0, -1) if ".".join(rest[:n]) in inner), None)
        if taken is None:
            return None
        step, rest = ".".join(rest[:taken]), rest[taken:]
        if step in node.get("properties", {}):  # those of "fields" have the text of the field itself
            path.append(step)
        node = inner[step]
        nested |= node.get("type") == "nested"
    if node.get("type") == "alias":
        target = _located(mapping, node["path"])
        return None if target is None else target._replace(name=name)
    places = node.get("index_options", "positions") in ("positions", "offsets")
    return Field(name, tuple(path), node.get("type", "object"), nested, places)


def _names(node: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of all fields that are searched by words."""
    for name, inner in node.get("properties", {}).items():
        if inner.get("type") in _TEXTS:
            yield above + name
        yield from _names(inner, f"{above}{name}.")


def _texts(node: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts at a path of a document, whose objects may be lists and whose names may hold dots."""
    if isinstance(node, list):
        for each in node:
            yield from _texts(each, path)
    elif not path:
        if node is not None:
            yield str(node)
    elif isinstance(node, Mapping):
        parts = ".".join(path).split(".")
        for n in range(len(parts), 0, -1):
            if (key := ".".join(parts[:n])) in node:
                yield from _texts(node[key], tuple(parts[n:]))
                break
