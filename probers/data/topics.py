"""Subjects of long answers: the prompts of a file, or articles by their titles."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..checksums import draw_key
from ..types import Article, UserError
from .articles import ArticleSource
from .articles.cuts import natural
from .questions.base import hashed
from .questions.values import identifier, optional, text
from .records import BadLine, LeftOut, check_object, file_rows, given_records, what_is_wrong
from .rows import records_of
from .splits import Splits, limited
from .tables import Row


@dataclass(frozen=True, slots=True)
class Topic:
    """A prompt for a long answer.

    Attributes:
        id: name in the run.
        prompt: the user's message; "" where the question is the title alone.
        title: title of the article with the facts; "" if unknown.
        reference: that article's sentences, in natural text; () if there is none.
        group: topics of one group stay in one split.
        split: "train", "validation" or "test".
    """

    id: str
    prompt: str
    title: str
    reference: tuple[str, ...] = ()
    group: str = ""
    split: str = ""


@dataclass
class PromptFile:
    """Prompts of a file or of rows: ``prompt``; optionally ``id``, ``title`` and ``group``.

    LongFact's lines need no change. Splits are dealt by group: a prompt's own, else its title, else
    its text.

    Attributes:
        path: the file (``.gz`` too), or rows (:func:`probers.data.rows.records_of`), which may be texts.
        limit: largest number of prompts, drawn by ``seed``; None takes all.
        left_out: repeated prompts, and with ``on_bad_line="skip"`` malformed lines.

    Raises:
        UserError: missing file, malformed line with ``on_bad_line="error"``, or no prompt.
    """

    path: Any
    limit: int | None = None
    seed: int = 0
    on_bad_line: BadLine = "error"
    left_out: LeftOut = field(init=False)

    def __post_init__(self) -> None:
        self.left_out = LeftOut("prompt", f"prompts={self.file}", self.on_bad_line)

    @property
    def file(self) -> str:
        """The file's name, for messages."""
        return str(self.path) if isinstance(self.path, (str, Path)) else "rows"

    def _rows(self) -> Iterator[Row]:
        if not isinstance(self.path, (str, Path)):
            records = records_of(self.path, "prompt", ("title", "prompt"))
            return (Row(f"row {number}", record) for number, record in enumerate(records, 1))
        give = "JSON lines with prompt (and title, id, group)"
        return file_rows(given_records("prompts", self.path, give))

    def topics(self) -> list[Topic]:
        topics: dict[str, Topic] = {}
        for row in self._rows():
            try:
                if row.problem:
                    raise ValueError(row.problem)
                topic = _topic(row.record)
                if (other := topics.setdefault(topic.id, topic)) != topic:
                    raise ValueError(f"the id {topic.id!r} already belongs to another prompt")
                if other is not topic:
                    self.left_out.add(row.where, "repeated prompt")
            except (ValueError, KeyError) as error:
                self.left_out.refuse(row.where, what_is_wrong(error))
        if not topics:
            raise UserError(f"prompts={self.file} holds no prompt: give JSON lines with prompt", "empty")
        keys = array("Q", (draw_key("split", self.seed, topic.group) for topic in topics.values()))
        split = Splits(self.seed, keys)
        dealt = [replace(topic, split=split(topic.group)) for topic in topics.values()]
        return limited(dealt, self.limit, self.seed)


def _topic(record: Any) -> Topic:
    check_object(record)
    prompt, title = text(record, "prompt"), optional(record, "title")
    id = identifier(record, "id") if record.get("id") is not None else hashed("prompt", prompt)
    group = identifier(record, "group") if record.get("group") is not None else title or id
    return Topic(id, prompt, title, group=group)


def with_references(topics: Iterable[Topic], articles: Iterable[Article]) -> list[Topic]:
    """Give each topic the article of its title, if there is one."""
    listed = list(topics)
    titles = {topic.title for topic in listed if topic.title}
    texts = {article.title: natural(article).sentences for article in articles if article.title in titles}
    return [replace(topic, reference=texts.get(topic.title, ())) for topic in listed]


def topics_of(source: ArticleSource) -> Iterator[Topic]:
    """Make the topic of each article: its title is the question, and it is the reference itself."""
    for article in source:
        known = natural(article)
        yield Topic(article.id, "", known.title, known.sentences, article.id, article.split)
