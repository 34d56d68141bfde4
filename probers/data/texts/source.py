"""Labelled texts of a file or the Hub: read as a stream, checked once, drawn and split by group."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from ...checksums import draw_key
from ...options import Name
from ...text import count
from ...types import SPLITS, UserError
from ..records import BadLine, LeftOut, Row, bad_line, hub_splits, what_is_wrong
from ..splits import Splits
from .base import Outside, Text, Unit, read_text
from .formats import FORMATS, Format, Place, format_of, lines_of, rows_of, sources_beside

#: Share of the training groups that are validated on where a file has a test split and no validation split.
_VALIDATION = 0.2


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Texts that exist: where they are, and how their labels are to be read."""

    path: Name | None = None
    """file with labelled texts (.gz too), or hf:ID[:config][:split]; texts=FILE for short"""
    format: Literal["auto"] | Format = "auto"
    """layout of the file; auto tells it by its fields. jsonl has answer, prompt or messages, and wrong,
    spans, sentences or claims"""
    outside: Literal["auto"] | Outside = "auto"
    """text outside of the spans: right where annotators marked all that is wrong, unknown where they judged
    some of the text. auto is what the format says; jsonl: unknown, unless a line says it"""


@dataclass
class _LeftOut(LeftOut):
    noun: ClassVar[str] = "text"


@dataclass
class TextSource:
    """Texts with their labels, read anew by every iteration; memory grows by some bytes a text.

    Attributes:
        limit: most texts, whole groups drawn by ``seed``; None takes all.
        seed: also deals groups to splits where the file has none.
        left_out: lines and texts that could not be used, after the first iteration.

    Raises:
        UserError: no such file, a malformed line with ``on_bad_line="error"``, or no usable text.
    """

    given: TextFile
    on_bad_line: BadLine = "error"
    limit: int | None = None
    seed: int = 0
    left_out: _LeftOut = field(default_factory=_LeftOut, init=False)

    def __post_init__(self) -> None:
        if self.given.path is None:
            told = "no texts are given: texts=FILE with lines of answer and wrong, or texts=hf:ID"
            raise UserError(told, "missing-value")
        if not self._spec.startswith("hf:") and not Path(self._spec).is_file():
            told = f"texts={self._spec} is not a file: give JSON lines with answer and wrong, or hf:ID"
            raise UserError(told, "no-file")

    @property
    def _spec(self) -> str:
        return str(self.given.path)

    @property
    def file(self) -> str:
        """The file's name, for messages."""
        return self._spec if self._spec.startswith("hf:") else Path(self._spec).name

    def _rows(self) -> Iterator[Row]:
        if not self._spec.startswith("hf:"):
            yield from rows_of(Path(self._spec))
            return
        for split, rows in hub_splits(self._spec, "texts"):
            for row in rows:
                own = row.record if row.problem or "split" in row.record else {**row.record, "split": split}
                yield row._replace(where=f"{split} {row.where}", record=own)

    def read(self) -> Iterator[tuple[str, Text | str]]:
        """Every text with its place, or in its stead the reason why a line holds none."""
        place = Place(Path(self._spec))
        format_: Format | None = None if self.given.format == "auto" else self.given.format
        outside = None if self.given.outside == "auto" else self.given.outside
        seen: dict[int, str] = {}
        for row in self._rows():
            try:
                if row.problem:
                    raise ValueError(row.problem)
                if format_ is None:
                    format_ = format_of(row.record, self._spec)
                if format_ == "ragtruth" and not place.sources:
                    place = replace(place, sources=sources_beside(place.path))
                for number, line in enumerate(lines_of(format_, row.record, place), 1):
                    where = row.where if number == 1 else f"{row.where}.{number}"
                    if outside is not None:
                        line["outside"] = outside
                    one = read_text(line, where)
                    key = draw_key("id", 0, one.id)
                    if (other := seen.setdefault(key, where)) != where:
                        raise ValueError(f"the id {one.id!r} is already on {other}")
                    yield where, one
            except (ValueError, KeyError) as error:
                yield row.where, what_is_wrong(error)

    def all(self) -> Iterator[Text]:
        """Every readable text, with or without labels; other lines are an error or left out."""
        self.left_out = _LeftOut()
        found = 0
        for where, one in self.read():
            if isinstance(one, Text):
                found += 1
                yield one
            elif self.on_bad_line == "error":
                raise bad_line(f"texts={self._spec} {where}: {one}")
            else:
                self.left_out.add(where, f"malformed: {one}")
        if not found:
            why = self.left_out.summary() or "it is empty"
            raise UserError(f"texts={self._spec} holds no usable line: {why}", "empty")

    def labelled(self, unit: Unit) -> Iterator[Text]:
        """The drawn texts with a label for some ``unit``, each with group, split and data set."""
        survey = self.survey(unit)
        for place, one in enumerate(self._usable(unit)):
            if (split := survey.split_of(place)) is not None:
                yield replace(one, split=split)

    def _usable(self, unit: Unit) -> Iterator[Text]:
        for one in self.all():
            if any(mark.wrong is not None for mark in one.units(unit)) or (unit == "token" and one.wrong is False):
                name = one.dataset or Path(self._spec).name.partition(".")[0].removeprefix("hf:")
                yield replace(one, group=one.group or one.id, dataset=name)
            elif not any((one.spans, one.sentences, one.claims)) and one.wrong is None:
                told = f"{one.where}: no label: give wrong, spans, sentences or claims"
                if self.on_bad_line == "error":
                    raise bad_line(f"texts={self._spec} {told}")
                self.left_out.add(one.where, f"malformed: {told}")
            else:
                self.left_out.add(one.where, f"no label for unit={unit}")

    @cached_property
    def _surveys(self) -> dict[Unit, Survey]:
        return {}

    def survey(self, unit: Unit) -> Survey:
        """Read all texts once: which are drawn, and on which side each group stands."""
        if unit not in self._surveys:
            self._surveys[unit] = self._read_through(unit)
        return self._surveys[unit]

    def _read_through(self, unit: Unit) -> Survey:
        groups, sides, texts = array("Q"), array("b"), dict[int, tuple[int, int, str]]()
        kept = array("b")
        units: Counter[bool] = Counter()
        for one in self._usable(unit):
            key, side = draw_key("split", self.seed, one.group), _side(one.split)
            mark = draw_key("text", 0, f"{one.asked}\n{one.answer}")
            _, other, where = texts.setdefault(mark, (key, side, one.where))
            if other != side:
                raise UserError(
                    f"texts={self._spec} {one.where} has the text of {where} in another split "
                    f"({one.split or 'none'}): a text may be in one split only",
                    "overlap",
                )
            kept.append(where == one.where or texts[mark][0] == key)
            groups.append(key)
            sides.append(side)
            units.update(m.wrong for m in one.units(unit) if m.wrong is not None)
        if not groups:
            raise UserError(f"texts={self._spec} has no text with a label for unit={unit}", "labels")
        if unit != "token" and len(units) < 2:
            kind = "wrong" if True in units else "right"
            fix = "texts.outside=right, if all that is wrong is marked, or another unit" * (kind == "wrong")
            told = f"texts={self._spec}: all {units.total()} labels of unit={unit} are {kind}"
            raise UserError(f"{told}; a detector needs both: give {fix or 'texts of both kinds'}", "labels")
        return Survey.of(self, groups, sides, kept, sum(units.values()))


def _side(split: str) -> int:
    return SPLITS.index(split) if split else -1


@dataclass(frozen=True)
class Survey:
    """Result of the first reading: the split of each usable text, -1 for one that is not drawn.

    ``units`` counts the labels of all usable texts; ``notes`` say how splits were made.
    """

    sides: array[int]
    units: int
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, source: TextSource, groups: array[int], sides: array[int], kept: array[int], units: int
    ) -> Survey:
        """Decide which texts are drawn and where they stand (UserError: a group in two splits)."""
        notes = []
        given = {side for side in sides if side >= 0}
        where = dict[int, int]()
        if len(given) > 1 and {0, 2} <= given and -1 not in set(sides):
            for group, side in zip(groups, sides, strict=True):
                if where.setdefault(group, side) != side:
                    a, b = (SPLITS[s] for s in sorted((where[group], side)))
                    told = f"texts={source._spec}: a group is in {a} and {b}: give its texts one split"
                    raise UserError(told, "overlap")
            if 1 not in given:
                upto = int(_VALIDATION * 2**64)
                where = {g: 1 if s == 0 and _again(g, source.seed) < upto else s for g, s in where.items()}
                notes.append(f"no validation split: {_VALIDATION:.0%} of the training groups, drawn by seed")
        else:
            if given:
                named = ", ".join(SPLITS[s] for s in sorted(given))
                notes.append(f"the splits of the file ({named}) are not enough: all groups are dealt anew")
            dealt = Splits(source.seed, groups)
            where = {group: SPLITS.index(dealt.of_key(group)) for group in groups}
        drawn = cls._drawn(source, groups)
        if repeated := len(kept) - sum(kept):
            notes.append(f"{count(repeated, 'text')} with the text of another group left out")
        final = array("b", (
            where[g] if keep and (drawn is None or g in drawn) else -1
            for g, keep in zip(groups, kept, strict=True)
        ))  # fmt: skip
        return cls(final, units, tuple(notes))

    @staticmethod
    def _drawn(source: TextSource, groups: array[int]) -> set[int] | None:
        """The groups that a limit leaves, one at least; None without a limit."""
        if source.limit is None or source.limit >= len(groups):
            return None
        sizes, total, drawn = Counter(groups), 0, set[int]()
        for group in sorted(sizes, key=lambda g: _again(g, source.seed + 1)):
            total += sizes[group]
            if drawn and total > source.limit:
                break
            drawn.add(group)
        return drawn

    def split_of(self, place: int) -> str | None:
        """The split of the ``place``-th usable text; None if it was not drawn."""
        return SPLITS[side] if (side := self.sides[place]) >= 0 else None

    @property
    def texts(self) -> int:
        """How many texts are drawn."""
        return sum(side >= 0 for side in self.sides)


def _again(group: int, seed: int) -> int:
    return draw_key("again", seed, str(group))


#: Names of all formats, for documentation and tests.
NAMES: tuple[Format, ...] = tuple(FORMATS)
