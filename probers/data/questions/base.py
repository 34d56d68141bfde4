"""Base class of question sets: the place of their records, and their layouts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from ...files import given_file
from ...options import Name, field_types
from ...types import Question, UserError, shortlist
from ..records import file_rows, given_records
from ..tables import Row, open_stream, stream_rows
from .values import Record, accepted, identifier, optional, strings, text


def hashed(prefix: str, question: str) -> str:
    """Make an id for a question of a dataset without ids, the same in every copy of it."""
    blob = " ".join(question.split()).encode("utf-8", "surrogatepass")
    return f"{prefix}-{hashlib.blake2b(blob, digest_size=8).hexdigest()}"


class Layout(NamedTuple):
    """A way of writing the records of a dataset, recognised by their fields."""

    name: str
    has: frozenset[str]
    lacks: frozenset[str] = frozenset()

    def fits(self, keys: Collection[str]) -> bool:
        return self.has <= set(keys) and not self.lacks & set(keys)


def layout(name: str, has: str, lacks: str = "") -> Layout:
    """Make a layout from space-separated names of fields."""
    return Layout(name, frozenset(has.split()), frozenset(lacks.split()))


#: FlashRAG's layout of every dataset; ``metadata`` holds fields of the original.
FLASHRAG = layout("FlashRAG's", "id question golden_answers")


@dataclass(frozen=True, kw_only=True)
class QuestionSource:
    """A dataset of questions; its fields are the options of ``questions=<name>``.

    A subclass says which layouts it reads and makes a question from a record. FlashRAG's layout is read by
    every set that has layouts.

    Attributes:
        path: the official file on this machine (``.gz`` too); None reads the copy on the Hub.
        hub: dataset id on the Hugging Face Hub, or a folder that ``datasets`` reads.
        config: name of its configuration.
        hub_split: name of its split.
        revision: its revision; None for the newest.
    """

    path: str | None = None
    hub: Name | None = None
    config: str | None = None
    hub_split: str = "validation"
    revision: str | None = None

    #: Name that users type.
    name: ClassVar[str] = ""
    #: Layouts it reads; the first that fits a record is taken.
    layouts: ClassVar[tuple[Layout, ...]] = ()
    #: Options that name further files.
    extra_files: ClassVar[tuple[str, ...]] = ()
    #: Small enough for memory: splits have exact shares, and a repeated id is an error.
    whole: ClassVar[bool] = False
    #: Its answers are mentions of entities, which are also judged by equivalence of meaning.
    mentions: ClassVar[bool] = False
    #: Its records have ids; otherwise the id of a question is made from its text.
    has_ids: ClassVar[bool] = True
    #: Field that questions of one group share; "" where each question is one.
    group_field: ClassVar[str] = ""
    #: The prompt they need; None where any will do.
    prompt: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        remote = {f.name for f in fields(QuestionSource)} - {"path"}
        used = ", ".join(f"questions.{n}={v}" for n, v in self._given().items() if n in remote)
        if self.path is not None and used:
            raise UserError(f"{used} is for the Hub, and questions.path={self.path} is a file", "conflict")
        kind_of_set: Any = type(self)
        for option, kind in field_types(kind_of_set).items():
            if get_origin(kind) is Literal and (value := getattr(self, option)) not in get_args(kind):
                message = f"questions.{option}={value} is unknown: choose {' or '.join(get_args(kind))}"
                raise UserError(message, "unknown-choice")

    def _given(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    @property
    def spec(self) -> str:
        if self.path is not None:
            return f"questions={self.name} questions.path={self.path}"
        return f"questions={self.name} (hub dataset {self.hub}, split {self.hub_split})"

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(str(v) for n in ("path", *self.extra_files) if (v := getattr(self, n)) is not None)

    @property
    def selected(self) -> str:
        """One sentence on how its questions were selected by what a model knows; "" where they were not."""
        return ""

    def seeded(self, seed: int) -> QuestionSource:
        """Return the source as a run of this seed reads it: itself if reading draws nothing."""
        return self

    def rows(self) -> Iterator[Row]:
        """Yield its records in order, or its questions where they are made, not read.

        UserError for a missing file or dataset, or another layout; RunError for an unreachable Hub.
        """
        for option in self.extra_files:
            if (extra := getattr(self, option)) is not None:
                given_file(f"questions.{option}", extra, f"an official one of {self.name}")
        if self.path is None:
            if self.hub is None:
                message = f"questions={self.name} has no default copy on the Hub"
                raise UserError(f"{message}: give questions.path=FILE or questions.hub=ID", "missing-value")
            instead = "give a local file as questions.path"
            where = {"name": self.config, "split": self.hub_split, "revision": self.revision}
            data = open_stream(self.spec, self.hub, instead=instead, **where)
            yield from stream_rows(self.spec, data, self._check_columns, instead=instead)
            return
        for row in file_rows(given_records("questions.path", self.path, f"an official one of {self.name}")):
            problem = self.mismatch(row.record) if isinstance(row.record, dict) else None
            yield row._replace(problem=problem) if problem else row

    def mismatch(self, keys: Collection[str]) -> str | None:
        """Describe the mismatch of a record with these fields; None when a layout fits."""
        if any(known.fits(keys) for known in (*self.layouts, FLASHRAG)):
            return None
        names = shortlist(sorted(map(str, keys)), 12) or "none"
        near = [sorted(known.has.difference(keys)) for known in self.layouts if known.lacks.isdisjoint(keys)]
        if not near:
            odd = set().union(*(known.lacks for known in self.layouts)).intersection(keys)
            return f"fields of another dataset: {', '.join(sorted(odd))} (all are {names})"
        missing = min(near, key=len)
        return f"no {', '.join(map(repr, missing))} (its fields are {names})"

    def _check_columns(self, keys: Collection[str]) -> None:
        if problem := self.mismatch(keys):
            remedy = "give another questions.hub or a file as questions.path"
            raise UserError(f"{self.spec}: {problem}; {remedy}", "mismatch")

    def unfold(self, record: Record) -> Sequence[Record]:
        """Split a record of the file into records of single questions."""
        return (record,)

    def question(self, record: Record) -> Question:
        """Make the question of a record; UnusableError if it cannot be asked, others if malformed."""
        raise NotImplementedError

    def group_of(self, record: Record) -> str:
        """Return the group by fields of a record, or of FlashRAG's metadata; "" if each question is one."""
        value = optional(record, self.group_field) if self.group_field else ""
        return f"{self.name}:{value}" if value else ""

    def read(self, record: Record) -> tuple[Question, str]:
        """Read the question of a record and the name of its layout; errors are those of :meth:`question`."""
        if not FLASHRAG.fits(record) or any(known.fits(record) for known in self.layouts):
            return self.question(record), self.layout_of(record)
        question, metadata = text(record, "question"), record.get("metadata") or {}
        if not isinstance(metadata, Mapping):
            raise ValueError(f"metadata must be an object, found {metadata!r:.80}")
        id = identifier(record, "id") if self.has_ids else None
        answers = accepted(strings(record, "golden_answers"))
        return self.made(id, question, answers, group=self.group_of(metadata)), FLASHRAG.name

    def made(self, id: str | None, question: str, answers: tuple[str, ...], **more: Any) -> Question:
        """Make a question of this set with ``more`` fields; None as id makes one from the text."""
        return Question(id or hashed(self.name, question), question, answers, dataset=self.name, **more)

    def layout_of(self, record: Record) -> str:
        return next((known.name for known in self.layouts if known.fits(record)), "")

    def layout_name(self, seen: Counter[str]) -> str:
        """Name the layout of the whole, by the number of records in each."""
        return ", ".join(sorted(name for name in seen if name))
