"""Labelled texts of a file or the Hub: read as a stream, checked once, drawn and split by group."""

from __future__ import annotations

import json
import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ...checksums import draw_key
from ...checksums import inputs as content_of
from ...files import digest
from ...options import shown
from ...prompts import AS_GIVEN, MESSAGES
from ...types import SPLITS, Outside, Unit, UserError, count
from ..records import BadLine, LeftOut, UnusableError, check_unicode, given_records, what_is_wrong
from ..rows import lacking, records_of, renamed, unread_fields, unread_labels
from ..splits import SPLIT_NAMES, Splits
from ..tables import HUB_FOLDER, Row, hub_splits, is_saved, saved_splits, stream_rows
from .base import OF_RETRIEVAL, Text, glued, read_text
from .formats import Place, format_of, lines_of, opening, rows_of, sources_beside

log = logging.getLogger(__name__)

#: Share of the training groups that are validated on where a file has a test split and no validation split.
_VALIDATION = 0.2


@dataclass
class TextSource:
    """Texts with their labels, read anew by every iteration; memory grows by some bytes a text.

    Attributes:
        path: file, ``hf:ID[:config][:split]``, or rows (:func:`probers.data.rows.records_of`).
        columns: name of the column of each field that has another, as ``{"answer": "output"}``.
        format: layout; auto tells it by the fields.
        outside: what text outside of the spans is; auto is what the format or line says.
        usual: the same of columns that a line may have, for fields that it lacks.
        limit: most texts, whole groups drawn by ``seed``; None takes all.
        seed: also deals groups to splits where the file has none.
        left_out: lines and texts that could not be used, after the first iteration.
        mended: counts of labels that were moved or dropped, and of ids that were told apart.

    Raises:
        UserError: no such file, a malformed line with ``on_bad_line="error"``, or no usable text.
    """

    path: Any
    columns: Mapping[str, str] | None = None
    format: str = "auto"
    outside: Literal["auto"] | Outside = "auto"
    on_bad_line: BadLine = "error"
    limit: int | None = None
    seed: int = 0
    usual: Mapping[str, str] | None = None
    left_out: LeftOut = field(default_factory=partial(LeftOut, "text"), init=False)
    mended: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    _no_prompts: bool = field(default=False, init=False)
    _layout: str = field(default="", init=False)
    #: Each answer is a group of its own, since prompts or beginnings make too few groups.
    _alone: bool = field(default=False, init=False)
    _surveys: dict[Unit, Survey] = field(default_factory=dict, init=False)
    _records: list[dict[str, Any]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None and not isinstance(self.path, (str, Path)):
            self._records, self.path = records_of(self.path), None
            return
        if self.path is None:
            raise UserError("no texts are given: texts=FILE with answer and wrong, or hf:ID", "missing-value")
        if not self._spec.startswith("hf:"):
            give = "JSON lines with answer and wrong, or hf:ID (in Python, one text alone is [text])"
            given_records("texts", self._spec, give)

    @property
    def _spec(self) -> str:
        return "rows" if self._records is not None else str(self.path)

    @property
    def inputs(self) -> dict[str, str]:
        """Content of the texts, by name, for a run that resumes with the same texts only."""
        if self._records is None:
            return content_of(self._spec)
        return {"rows": digest(json.dumps(self._records, default=str, ensure_ascii=False))}

    @property
    def _name(self) -> str:
        """Name of the data set of texts that do not say theirs."""
        return Path(self._spec.removeprefix("hf:")).name.partition(".")[0]

    @property
    def file(self) -> str:
        """The file's name, for messages."""
        return self._spec if self._spec.startswith("hf:") else Path(self._spec).name

    def _rows(self) -> Iterator[Row]:
        for row in self._read_rows():
            if isinstance(row.record, Mapping) and (self.columns or self.usual):
                usual = {
                    field: column for field, column in (self.usual or {}).items()
                    if field not in row.record and column in row.record
                }  # fmt: skip
                row = row._replace(record=renamed(row.record, {**usual, **(self.columns or {})}))
            yield row

    def _read_rows(self) -> Iterator[Row]:
        if self._records is not None:
            yield from (Row(f"row {number}", record) for number, record in enumerate(self._records, 1))
            return
        splits: Iterator[tuple[str, Iterator[Row]]]
        if self._spec.startswith("hf:"):
            spec = f"texts={self._spec}"
            opened = hub_splits("texts", self._spec).items()
            splits = ((k, stream_rows(spec, v, instead=HUB_FOLDER, at=f"{k} row")) for k, v in opened)
        elif is_saved(Path(self._spec)):
            splits = saved_splits(Path(self._spec))
        else:
            yield from rows_of(Path(self._spec))
            return
        for split, rows in splits:
            side = {"split": split} if split in SPLIT_NAMES else {}
            for row in rows:
                yield row._replace(record=row.record if row.problem else side | row.record)

    def read(self) -> Iterator[tuple[str, Text | str]]:
        """Read every text with its place, or the reason why a line holds none."""
        # Rows have no files beside them.
        place = Place(Path(self._spec) if self._records is None else Path("rows", "rows"))
        self.mended = mended = Counter[tuple[str, str]]()
        self._layout = self.format
        seen: dict[int, str] = {}
        for row in self._rows():
            try:
                if row.problem:
                    raise ValueError(row.problem)
                if self._records is not None:  # files are checked by their readers
                    check_unicode(row.record)
                if self._layout == "auto":
                    self._layout = format_of(row.record, self._spec)
                if self._layout == "ragtruth" and not place.sources:
                    place = replace(place, sources=sources_beside(place.path))
                    self._no_prompts = not place.sources
                for number, line in enumerate(lines_of(self._layout, row.record, place), 1):
                    where = row.where if number == 1 else f"{row.where}.{number}"
                    if (split := row.record.get("split")) is not None:
                        line.setdefault("split", split)
                    if self.outside != "auto":
                        line["outside"] = self.outside
                    one = read_text(line, where)
                    key = draw_key("id", 0, one.id)
                    if (other := seen.setdefault(key, where)) != where:
                        if self._layout == "jsonl":
                            raise ValueError(f"the id {one.id!r} is already on {other}")
                        one = replace(one, id=f"{one.id} ({where})")  # nobody else can mend their ids
                        mended[_REPEATED_ID] += 1
                    mended[_MOVED] += one.moved
                    mended[_GLUED] += glued(one)
                    mended[_ALONE] += not (one.prompt or one.messages or one.passages)
                    yield where, one
            except UnusableError as error:
                self.left_out.add(row.where, str(error))
            except (ValueError, KeyError) as error:
                yield row.where, what_is_wrong(error)
        mended.update({("annotation", f"dropped: {why}"): n for why, n in place.dropped.items()})
        mended[_ALONE] *= mended[_ALONE] < len(seen)

    def all(self) -> Iterator[Text]:
        """Read every text, with or without labels; unreadable lines are an error or left out."""
        self.left_out = LeftOut("text", f"texts={self._spec}", self.on_bad_line)
        number = 0
        for where, one in self.read():
            if isinstance(one, Text):
                number += 1
                yield replace(one, group=one.group or self._group_of(one), dataset=one.dataset or self._name)
            else:
                self.left_out.refuse(where, one)
        self.check_found(number)

    def _group_of(self, one: Text) -> str:
        if self._layout == "statements" and not self._alone:
            return opening(one.answer)
        return digest(one.answer if self._alone else one.question or one.answer)

    def lines(self) -> list[str]:
        """Return lines about what was left out, moved, dropped or noticed in the last reading."""
        mended = [f"{count(number, noun)} {what}" for (noun, what), number in self.mended.items() if number]
        return [*mended, *self.left_out.lines()]

    def check_found(self, texts: object) -> None:
        """Refuse a file of which nothing is left (UserError)."""
        if not texts:
            why = self.left_out.summary() or "it is empty"
            raise UserError(f"texts={self._spec} holds no usable line: {why}", "empty")

    def labelled(self, unit: Unit) -> Iterator[Text]:
        """Read the drawn texts with a label for some ``unit``, each with group, split and data set."""
        survey = self.survey(unit)
        for place, one in enumerate(self._usable(unit)):
            if (split := survey.split_of(place)) is not None:
                yield replace(one, split=split)

    def _usable(self, unit: Unit) -> Iterator[Text]:
        for one in self.all():
            judged = any(mark.wrong is not None for mark in one.units(unit))
            if judged or (unit == "token" and one.wrong is not None):
                yield one
            elif one.wrong is None and "wrong" not in one.record and not one.marked:
                spans = one.record.get("spans") is not None
                fix = f"no span, give {_OUTSIDE}" if spans else lacking("wrong", list(one.record))
                self.left_out.refuse(one.where, f"no label: {fix}")
            elif unit == "sentence" and one.wrong:
                stay = "right answers of several sentences stay, so length tells labels apart in part"
                self.left_out.add(one.where, f"wrong, in an unknown one of several sentences: {stay}")
            else:
                self.left_out.add(one.where, f"no label for unit={unit}")

    def survey(self, unit: Unit) -> Survey:
        """Read all texts once: which are drawn, and on which side each group stands."""
        if unit not in self._surveys:
            self._surveys[unit] = self._read_through(unit)
        return self._surveys[unit]

    def _read_through(self, unit: Unit) -> Survey:
        groups, sides, units, characters = array("Q"), array("b"), array("L"), array("L")
        texts, columns = dict[int, tuple[int, int, str]](), dict[str, None]()
        labels, forms = Counter[bool](), Counter[str]()
        named, contradicted = False, 0
        for one in self._usable(unit):
            columns |= dict.fromkeys(one.record)
            named |= one.record.get("group") is not None
            verdicts = tuple(mark.wrong for mark in one.units(unit))
            mine = (SPLITS.index(one.split) if one.split else -1, hash(verdicts), one.where)
            side, verdict, where = texts.setdefault(one.mark(unit), mine)
            if side != mine[0]:
                message = f"texts={self._spec} {one.where} has the text of {where} in another split"
                raise UserError(f"{message} ({one.split or 'none'}): give it one", "overlap")
            judged = [wrong for wrong in verdicts if wrong is not None]
            if where == one.where:
                labels.update(judged)
                forms["passages" if one.passages else MESSAGES if one.messages else AS_GIVEN] += 1
            else:
                side = _REPEATED
                contradicted += verdict != mine[1]
            groups.append(draw_key("split", self.seed, one.group))
            sides.append(side)
            units.append(len(judged))
            characters.append(len(one.answer))
        if not groups:
            raise UserError(f"texts={self._spec} has no text with a label for unit={unit}", "labels")
        if unit != "token" and len(labels) < 2:
            raise self._one_kind(unit, labels)
        if not (self._alone or forms[MESSAGES]) and (hint := unread_fields(["prompt"], columns)):
            log.warning("texts=%s: %s", self._spec, hint)
        if (different := len(set(groups))) < len(SPLITS):
            if not (named or self._alone):
                self._alone = True
                survey = self._read_through(unit)
                what = "beginnings" if self._layout == "statements" else "prompts"
                note = f"the {what} make {count(different, 'group')}, so each answer is a group of its own"
                return replace(survey, notes=(note, *survey.notes))
            message = f"texts={self._spec} has {count(different, 'group')}, too few for three splits"
            raise UserError(f"{message}: give group, by default one for each prompt", "labels")
        where_of, notes = self._dealt(groups, sides, unit)
        drawn = self._limited(groups)
        if self._layout == "statements" and not self._alone:
            notes.append("statements are grouped by subject, or by their words up to a name or a quotation")
        if repeated := sides.count(_REPEATED):
            message = f"{count(repeated, 'text')} left out, which stand in the file before"
            if contradicted:
                message += f"; {contradicted:,} of them with another label (the first is taken)"
            notes.append(message)
        if self._no_prompts:
            notes.append("no source_info.jsonl beside the file: answers are read without their prompts")
        unread = "column {0} is not read: name the column of labels by wrong={0!r}"
        notes += map(unread.format, unread_labels(columns))
        pairs = zip(groups, sides, strict=True)
        dealt = array("b", (where_of[g] if s != _REPEATED and g in drawn else -1 for g, s in pairs))
        places = [place for place, side in enumerate(dealt) if side >= 0]
        total, long = (sum(each[place] for place in places) for each in (units, characters))
        return Survey(
            dealt, len(places), total, long, tuple(notes),
            form="passages" if forms["passages"] else AS_GIVEN if forms[AS_GIVEN] else MESSAGES,
            columns=tuple(name for name in OF_RETRIEVAL if name in columns),
        )  # fmt: skip

    def _one_kind(self, unit: Unit, labels: Counter[bool]) -> UserError:
        kind, fix = "right", "texts with wrong ones, or another unit"
        if True in labels:
            kind, fix = "wrong", "texts with right ones"
            if any(one.marked for one in self._usable(unit)):
                also = "" if unit in ("sentence", "answer") else " with unit=sentence or unit=answer"
                fix = f"{_OUTSIDE}{also}, or {fix}"
        message = f"texts={self._spec}: every label of unit={unit} is {kind} (of {labels.total():,})"
        return UserError(f"{message}, and a detector needs both: give {fix}", "labels")

    def _dealt(self, groups: array[int], sides: array[int], unit: Unit) -> tuple[dict[int, int], list[str]]:
        """Assign each group its split, if possible the file's, with notes (UserError: a group in two)."""
        given = {side for side in sides if side != _REPEATED}
        if not {0, 2} <= given or -1 in given:
            splits, there = Splits(self.seed, groups), sorted(given - {-1})
            named = ", ".join(SPLITS[side] for side in there)
            message = "some texts have no split" if -1 in given else f"all texts are of split {named}"
            notes = [f"{message}: groups are dealt to splits anew"] if there else []
            return {group: SPLITS.index(splits.of_key(group)) for group in groups}, notes
        where = dict[int, int]()
        for place, (group, side) in enumerate(zip(groups, sides, strict=True)):
            if side != _REPEATED and where.setdefault(group, side) != side:
                two = " and ".join(SPLITS[s] for s in sorted((where[group], side)))
                one = next(islice(self._usable(unit), place, None))
                name = shown(one.record.get("group") or one.question or one.answer)
                message = f"texts={self._spec} {one.where}: its group ({name}) is in {two}"
                raise UserError(f"{message}: give it one split", "overlap")
        if 1 in given:
            return where, []
        upto = int(_VALIDATION * 2**64)
        where = {g: 1 if side == 0 and self._key(g, "valid") < upto else side for g, side in where.items()}
        return where, [f"no validation split: it is {_VALIDATION:.0%} of the training groups, drawn by seed"]

    def _limited(self, groups: array[int]) -> set[int]:
        """Draw the groups that a limit leaves, one at least."""
        if self.limit is None or self.limit >= len(groups):
            return set(groups)
        sizes, total, drawn = Counter(groups), 0, set[int]()
        for group in sorted(sizes, key=lambda group: self._key(group, "limit")):
            total += sizes[group]
            if drawn and total > self.limit:
                break
            drawn.add(group)
        return drawn

    def _key(self, group: int, what: str) -> int:
        return draw_key(what, self.seed, str(group))


#: The option by which an answer is right outside of its wrong spans.
_OUTSIDE = 'outside="right" (texts.outside=right in a command) if all that is wrong is marked'
#: What a reading mended or noticed: a noun that is counted, and what happened to it.
_MOVED = (
    "label",
    "moved to the only place of its text, as start and end contradict it (do they count bytes or UTF-16?)",
)
_REPEATED_ID = ("id", "given twice in the file: the line was added to it")
_GLUED = ("answer", "glued to the last word of the prompt: begin a new word with a space")
_ALONE = ("text", "without a prompt, which others have: the answer is read alone")
#: In place of the split of a text that stands in the file before.
_REPEATED = -2


@dataclass(frozen=True)
class Survey:
    """Result of the first reading: the split of each usable text, -1 for one that is not drawn.

    ``texts``, ``units`` with a label and ``characters`` count what is drawn; ``notes`` say how splits were
    made. ``form`` is "passages" if the prompt template shows some, else the form in which prompts stand.
    ``columns`` are those of :data:`.base.OF_RETRIEVAL` that some of the texts have.
    """

    sides: array[int]
    texts: int
    units: int
    characters: int
    notes: tuple[str, ...]
    form: str = AS_GIVEN
    columns: tuple[str, ...] = ()

    def split_of(self, place: int) -> str | None:
        """Look up the split of the ``place``-th usable text; None if it was not drawn."""
        return SPLITS[side] if (side := self.sides[place]) >= 0 else None
