"""File formats of a corpus: JSON lines, the TSV of DPR and of MS MARCO, and articles cut into passages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..checksums import draw_key
from ..options import shown
from ..types import Passage, UserError, count
from ..words.text import detokenise_sentences
from .questions.values import identifier, unchanged
from .records import (
    LeftOut,
    check_object,
    check_strings,
    ending_of,
    file_rows,
    is_lines,
    line_rows,
    open_text,
    what_is_wrong,
)
from .tables import Row, table_rows

log = logging.getLogger(__name__)

#: Longer texts (in characters) are kept with a warning: they are rarely intended.
LONG = 1_000_000
#: Fields of MS MARCO's collection.
_COLLECTION = ("id", "text")
#: Largest number of words in a passage of whole sentences.
WORDS = 100


@dataclass
class BadLines(LeftOut):
    """Lines of one file without a passage.

    ``long`` counts passages beyond :data:`LONG`, which are kept; ``repeated`` counts articles left out for a
    title seen before, ``alike`` passages with the title and text of another, which are kept.
    """

    noun: str = "malformed line"
    long: int = 0
    repeated: int = 0
    alike: int = 0

    def first(self) -> str:
        """Name the first line and its mistake, "" without one."""
        return next(iter(self._named()), "")

    def _named(self) -> list[str]:
        return [f"{self.file} {where}: {why.removeprefix('malformed: ')}" for where, why in self.listed[:10]]

    def report(self) -> None:
        if self:
            log.warning("\n  ".join([f"skipped {count(len(self), self.noun)}:", *self._named()]))
        if self.repeated:
            reason = "since an earlier article without an id has the same title"
            log.warning("%s: %d left out, %s", self.file, self.repeated, reason)
        if self.alike:
            same = f"{count(self.alike, 'passage')} with title and text of an earlier one"
            log.warning("%s: %s: they share one place of a search", self.file, same)
        if self.long:
            advice = "passage_words=100 cuts all texts into passages of 100 words"
            texts = f"{count(self.long, 'text')} of over {LONG:,} characters"
            log.warning("%s: %s kept as one passage each; %s", self.file, texts, advice)


def read_passages(
    path: Path,
    bad: BadLines,
    *,
    words: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[str, Passage]]:
    """Yield the passages of a file with the place of the first line of each; ids may repeat.

    ``.tsv`` is DPR's psgs_w100 layout: tab-separated with the header ``id text title`` in any order, fields
    quoted like in Python's csv module, so that a field may hold line breaks; or MS MARCO's collection,
    lines of ``pid`` and passage without header and quotes. CSV, Parquet, JSON arrays and folders of
    ``save_to_disk`` are read like JSONL, which is everything else, with ``id`` (BEIR: ``_id``), ``text`` and
    optionally ``title``. FlashRAG's and Pyserini's ``contents`` can replace ``text``: the first line of
    several is the title, quoted or not. Articles have ``sentences`` in place of ``text``, and their title
    replaces a missing id; they are put into natural text and, without ``words``, cut between sentences into
    passages of :data:`WORDS` words at most. If articles without ids share a title, the first is taken, as in
    :mod:`.articles`. ``.gz`` is unpacked.

    With ``words`` every text is cut into pieces of that many words (the last may be shorter), called
    ``<id>#<number>``, as DPR cuts Wikipedia. ``progress`` is called now and then with the bytes of the file
    read so far. UserError where ``bad`` refuses a line, for a TSV without its header, or a file that is not
    UTF-8 text.
    """
    if words is not None and words < 1:
        raise UserError(f"passage_words={words} leaves nothing: give 1 or more, or null for whole texts")
    titles: set[int] = set()
    for where, record in _records(path, bad, progress):
        if isinstance(record, dict) and "sentences" in record and "id" not in record:
            key = draw_key("id", 0, str(record.get("title")))
            if key in titles:
                bad.repeated += 1
                continue
            titles.add(key)
        try:
            passages = list(_pieces(record, words))
        except (ValueError, KeyError) as error:
            fields = f" among its fields {shown(', '.join(record))}" if isinstance(error, KeyError) else ""
            bad.refuse(where, what_is_wrong(error) + fields)
            continue
        bad.long += sum(len(passage.text) > LONG for passage in passages)
        yield from ((where, passage) for passage in passages)


def _records(path: Path, bad: BadLines, progress: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
    if ending_of(path) == ".tsv":
        rows = _tsv(path, progress)
    else:
        rows = line_rows(path, progress=progress) if is_lines(path) else file_rows(path)
    for row in rows:
        if row.problem:
            bad.refuse(row.where, row.problem)
        else:
            yield row.where, row.record


def _tsv(path: Path, progress: Callable[[int], None]) -> Iterator[Row]:
    """Yield the rows of DPR's table, or of MS MARCO's collection, which has no header and no quotes."""

    def check(names: list[str]) -> None:
        if not {"id", "text"} <= set(names):
            expected = "the header id<TAB>text<TAB>title, or lines pid<TAB>passage"
            raise UserError(f"{path} line 1: expected {expected}, found {names!r:.100}", "bad-line")

    with open_text(path, "") as (lines, position):
        first = next(lines, "")
        bare = _COLLECTION if re.fullmatch(r"\d+\t[^\t]*", first.rstrip("\r\n")) else ()
        for number, record, problem in table_rows(chain([first], lines), "\t", check, bare):
            if number % 1000 == 1:
                progress(position())
            yield Row(f"line {number}", record, problem)


def _pieces(record: Any, words: int | None) -> Iterator[Passage]:
    """Yield the passages of one record; ValueError or KeyError if it is malformed."""
    check_object(record)
    title = "" if record.get("title") is None else record["title"]
    if not isinstance(title, str):
        raise ValueError(f"title must be a string, found {title!r:.100}")
    key = "_id" if "_id" in record and "id" not in record else "id"
    sentences: list[str] = []
    if "sentences" in record:
        check_strings("sentences", record["sentences"])
        sentences = detokenise_sentences(record["sentences"])
        text = unchanged({"sentences": " ".join(sentences)}, "sentences")
    else:
        title, text = _title_and_text(record, title)
        if words is None:
            yield Passage(identifier(record, key), title, text)
            return
    name = identifier(record, key) if key in record else title
    if not name:
        raise KeyError("id")
    pieces: Iterable[str] = whole_sentences(sentences)
    if words is not None:
        pieces = re.findall(rf"\S+(?:\s+\S+){{0,{words - 1}}}", text)
    for number, piece in enumerate(pieces):
        yield Passage(f"{name}#{number}", title, piece)


def _title_and_text(record: Mapping[str, Any], title: str) -> tuple[str, str]:
    """Return the title and text of a record; in place of ``text``, ``contents`` may hold both."""
    if "text" in record or "contents" not in record:
        return title, unchanged(record, "text")
    contents = unchanged(record, "contents")
    first, line_break, rest = contents.partition("\n")
    first = first.strip()
    if len(first) > 1 and first[0] == first[-1] == '"':
        first = first[1:-1].replace('""', '"')  # quoted like in the csv module
    if not line_break or not rest.strip() or title not in ("", first):
        return title, contents
    return first, rest


def whole_sentences(sentences: Iterable[str], words: int = WORDS) -> Iterator[str]:
    """Group whole sentences, up to ``words`` words; a longer sentence is alone."""
    held: list[str] = []
    size = 0
    for sentence in filter(str.strip, sentences):
        length = len(sentence.split())
        if held and size + length > words:
            yield " ".join(held)
            held, size = [], 0
        held.append(sentence)
        size += length
    if held:
        yield " ".join(held)
