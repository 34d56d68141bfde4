"""Labelled texts: an answer, the prompt before it, and judgements of its characters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...checksums import draw_key
from ...options import shown
from ...prompts import AUTO_PROMPT, PromptTemplate, chat_text, turns_of
from ...types import Outside, Unit
from ...words.text import split_sentences
from ..questions.values import Record, identifier, optional, records, strings, unwritten
from ..records import check_object
from ..splits import SPLIT_NAMES

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Mark:
    """Judged characters of an answer: half-open ranges, ascending; ``wrong`` is None where undecided.

    ``rule`` and ``evidence`` say why, where a judge told it.
    """

    ranges: tuple[tuple[int, int], ...]
    wrong: bool | None
    type: str = ""
    rule: str = ""
    evidence: str = ""

    @property
    def start(self) -> int:
        return self.ranges[0][0]

    @property
    def end(self) -> int:
        return self.ranges[-1][1]


@dataclass(frozen=True, slots=True)
class Text:
    """An answer, what it answers, and its labels; ``where`` is its place in the file, for messages.

    ``prompt`` is None for a chat, ``messages`` () for a plain prompt; without both the answer is read alone.
    ``wrong`` is None without a label for the whole answer. ``moved`` counts labels whose place contradicted
    their own text, which is where they now stand. ``record`` is the line as read.
    ``passages_at`` are [start, end) of the passages of a prompt that shows them already.
    """

    id: str
    where: str
    prompt: str | None
    messages: tuple[Mapping[str, Any], ...]
    answer: str
    wrong: bool | None
    record: Mapping[str, Any]
    passages: tuple[str, ...] = ()
    passages_at: tuple[tuple[int, int], ...] = ()
    spans: tuple[Mark, ...] = ()
    sentences: tuple[Mark, ...] = ()
    claims: tuple[Mark, ...] = ()
    outside: Outside = "unknown"
    group: str = ""
    split: str = ""
    writer: str = ""
    dataset: str = ""
    moved: int = 0

    def prompt_for(
        self, tokenizer: Any, file: str, template: PromptTemplate = AUTO_PROMPT, *, most: int | None = None
    ) -> str:
        """Put the prompt as the model reads it, passages by the template; "" where there is none.

        ``most`` is the number of passages to show, the first ones; None shows all.

        Raises:
            UserError: the chat template refuses the messages.
        """
        if self.messages:
            return chat_text(tokenizer, self.messages, f"{file} {self.where} has messages")
        if self.passages:
            return template.bind(tokenizer).question(self.prompt or "", self.passages[:most])
        return self.prompt or ""

    @property
    def question(self) -> str:
        """The prompt, or the last message of a chat."""
        return str(self.messages[-1]["content"]) if self.messages else self.prompt or ""

    def mark(self, unit: Unit) -> int:
        """Make a key of the text; one of another line that marks other parts of it is another text."""
        before = json.dumps(self.messages) if self.messages else self.prompt or ""
        parts = unit in ("span", "claim") or (unit == "token" and self.marked and self.outside != "right")
        ranges = str([mark.ranges for mark in self.units(unit)]) if parts else ""
        return draw_key("text", 0, "\n".join((*self.passages, before, self.answer, ranges)))

    @property
    def marked(self) -> bool:
        """True if some part of the answer has a mark."""
        return bool(self.spans or self.sentences or self.claims)

    def units(self, unit: Unit) -> list[Mark]:
        """Cut the answer into units with their labels, from left to right.

        Sentences without labels of their own get those of the spans: wrong with a wrong span in it, else
        undecided with an undecided one, else right where the rest of the text counts as right or a right
        span is in it. Without any marks, all sentences of a right answer are right, and the only sentence of
        a wrong one is wrong. For tokens, the marks are the spans, or else the sentences or claims.
        """
        if unit == "answer":
            return [Mark(((0, len(self.answer)),), self.wrong)]
        if unit == "sentence" and not self.sentences:
            places = split_sentences(self.answer)
            if not self.marked and (self.wrong is False or len(places) == 1):
                return [Mark((place,), self.wrong) for place in places]
            return [Mark((place,), self.label_of(*place)) for place in places]
        first = self.spans or self.sentences or self.claims
        marks = {"claim": self.claims, "span": self.spans, "token": first, "sentence": self.sentences}
        return list(marks[unit])

    def label_of(self, start: int, end: int) -> bool | None:
        """Label of a stretch by all marks that it overlaps: wrong, undecided or right with one of these."""
        marks = [*self.spans, *self.sentences, *self.claims]
        labels = {m.wrong for m in marks if any(a < end and b > start for a, b in m.ranges)}
        return _joint(labels, right=self.outside == "right")


#: Columns of what one retrieval does to an answer, and of what was known before, that texts may have.
OF_RETRIEVAL = ("helps", "retriever_score", "retriever_margin", "question_frequency")


def truth(value: Any, key: str) -> bool | None:
    """Read a label: true, false, 1, 0, "yes", "no" and the like; None for null (ValueError otherwise)."""
    if value is None or isinstance(value, bool):
        return value
    written = str(value).strip().lower().removesuffix(".0")  # tables with gaps write numbers as 1.0
    label = _TRUTH.get(written) if isinstance(value, (int, float, str)) else None
    if label is None:
        raise ValueError(f"{key} must be true or false (or 1, 0, yes, no, null), found {shown(value)}")
    return label


def read_text(record: Any, where: str) -> Text:
    """Make the text of a line (ValueError, KeyError)."""
    check_object(record)
    answer = record["answer"]
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"answer must be a non-empty string, found {shown(answer)}")
    prompt, messages = record.get("prompt"), record.get("messages")
    if prompt is not None and messages is not None:
        raise ValueError("both prompt and messages: give one of them")
    if prompt is not None and not isinstance(prompt, str):
        raise ValueError(f"prompt must be text, found {shown(prompt)}")
    if messages is not None and not (isinstance(messages, list) and messages):
        raise ValueError(f'messages must be [{{"role": .., "content": ..}}, ..], found {shown(messages)}')
    turns = turns_of(messages or ())
    if (split := optional(record, "split")) and split not in SPLIT_NAMES:
        raise ValueError(f"split must be train, validation or test, found {shown(split)}")
    rest: Any = record.get("outside") or "unknown"
    if rest not in ("right", "unknown"):
        raise ValueError(f"outside must be right or unknown, found {shown(rest)}")
    read = {name: _marks(record, name, answer) for name in ("spans", "sentences", "claims")}
    marks = {name: mark for name, (mark, _) in read.items()}
    for name in ("spans", "sentences"):
        _check_overlap(marks[name], name)
    if record.get("helps") not in (None, -1, 0, 1):
        raise ValueError(f"helps must be 1, -1, 0 or null, found {shown(record['helps'])}")
    labels = {mark.wrong for list_ in marks.values() for mark in list_}
    # Without a list of spans nobody has looked for wrong ones.
    joint = _joint(labels, right=rest == "right" and record.get("spans") is not None)
    whole = truth(record["wrong"], "wrong") if "wrong" in record else joint
    if rest == "right" and whole is not False and not labels - {False}:
        rest = "unknown"  # no mark says what is wrong, so the rest need not be right
    return Text(
        identifier(record, "id") if record.get("id") is not None else where, where,
        prompt, tuple(turns), answer,
        whole, record, passages_of(record), _passages_at(record, prompt), **marks, outside=rest,
        group=identifier(record, "group") if record.get("group") is not None else "",
        split=SPLIT_NAMES.get(split, ""), writer=optional(record, "writer"),
        dataset=optional(record, "dataset"), moved=sum(moved for _, moved in read.values()),
    )  # fmt: skip


def passages_of(record: Record) -> tuple[str, ...]:
    """Read passages: strings, or objects with a text and perhaps a title (ValueError)."""
    listed = unwritten(record, "passages")
    if not isinstance(listed, list) or not any(isinstance(each, Mapping) for each in listed):
        return strings(record, "passages")
    passages = []
    for number, each in enumerate(records(record, "passages")):
        if not isinstance(text := each.get("text"), str) or not text.strip():
            raise ValueError(f"passages[{number}].text must be a non-empty string, found {shown(text)}")
        title = optional(each, "title")
        passages.append(f"{title}: {text}" if title else text)
    return tuple(passages)


def _passages_at(record: Record, prompt: str | None) -> tuple[tuple[int, int], ...]:
    """Read where the passages stand in a prompt that shows them (ValueError)."""
    if (pairs := record.get("passages_at")) is None:
        return ()
    if prompt is None or record.get("passages"):
        raise ValueError("passages_at are places in a prompt: give the prompt, and no passages beside it")
    if not isinstance(pairs, (list, tuple)):
        raise ValueError(f"passages_at must be a list of [start, end], found {shown(pairs)}")
    return tuple(sorted(_range(pair, prompt, "passages_at", "prompt") for pair in pairs))


def _marks(record: Record, name: str, answer: str) -> tuple[tuple[Mark, ...], int]:
    """Read the marks of a list, and count those that were moved to the place of their text (ValueError)."""
    marks, moved = [], 0
    for number, part in enumerate(records(record, name)):
        what = f"{name}[{number}]"
        # A claim may be worded otherwise than in the answer.
        ranges, elsewhere = _place(part, answer, what, verbatim=name != "claims")
        moved += elsewhere
        if not ranges or "wrong" not in part:
            raise ValueError(f"{what} {'lacks wrong' if ranges else 'has no range'}")
        notes = (optional(part, key) for key in ("type", "rule", "evidence"))
        marks.append(Mark(tuple(ranges), truth(part["wrong"], f"{what}.wrong"), *notes))
    return tuple(sorted(marks, key=lambda mark: mark.ranges)), moved


def _place(part: Record, answer: str, what: str, *, verbatim: bool) -> tuple[list[tuple[int, int]], bool]:
    """Read the ranges of a part, and tell whether its text stands elsewhere, where it is then taken.

    Offsets of bytes or of UTF-16, or of an answer that was stripped or had other line ends, do not hold for
    the characters of the answer.
    """
    pairs, text, index = part.get("ranges"), part.get("text"), part.get("index")
    text = str(text) if type(text) in (int, float) else text  # tables make numbers of years
    if pairs is None and (part.get("start") is not None or part.get("end") is not None):
        pairs = [[part.get("start"), part.get("end")]]
    if pairs is None:
        pair = find_text(answer, text, index, what)
        return [pair], type(index) is int and pair[0] != index
    if not isinstance(pairs, (list, tuple)):
        raise ValueError(f"{what}.ranges must be a list of [start, end], found {shown(pairs)}")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{what}.text must be text, found {shown(text)}")
    if text and text.strip() and all(map(_is_pair, pairs)):
        there = " ".join(answer[max(0, start) : max(0, end)] for start, end in pairs)
        if "".join(there.split()) != "".join(text.split()):
            try:
                return [find_text(answer, text, index, what)], True
            except ValueError as error:
                if verbatim:
                    place = f"start and end give {shown(there)}, and the text"
                    raise ValueError(str(error).replace(what, f"{what}: {place}", 1)) from error
    return sorted(_range(pair, answer, what) for pair in pairs), False


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(n) is int for n in pair)


def _range(pair: Any, text: str, what: str, of: str = "answer") -> tuple[int, int]:
    if not _is_pair(pair) or not 0 <= pair[0] < pair[1] <= len(text):
        within = f"whole numbers start < end within the {of}'s {len(text)} characters"
        raise ValueError(f"{what} must be {within}, found {shown(pair)}")
    return pair[0], pair[1]


def find_text(answer: str, text: Any, index: Any, what: str) -> tuple[int, int]:
    """Find the characters of a verbatim ``text``: at ``index`` if given, else its only place (ValueError)."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"{what} must have start and end, ranges, or text, found {shown(text)}")
    if type(index) is int and index >= 0 and answer.startswith(text, index):
        return index, index + len(text)
    places = [(start, start + len(text)) for start in {answer.find(text), answer.rfind(text)} if start >= 0]
    if not places and text.split():  # line ends may differ
        pattern = r"\s+".join(map(re.escape, text.split()))
        places = [match.span() for match in re.finditer(pattern, answer)]
    if not places:
        raise ValueError(f"{what} {shown(text)} is not in the answer")
    if len(places) > 1:
        remedy = "give its index" if index is None else f"index {shown(index)} is none of its places"
        raise ValueError(f"{what} {shown(text)} is in the answer more than once: {remedy}")
    return places[0]


def _check_overlap(marks: Sequence[Mark], name: str) -> None:
    """Refuse ranges of different label that overlap (ValueError)."""
    reach: dict[bool | None, int] = {}
    for start, end, wrong in sorted((start, end, mark.wrong) for mark in marks for start, end in mark.ranges):
        if (other := max((e for w, e in reach.items() if w is not wrong), default=0)) > start:
            raise ValueError(f"{name} of different label overlap at characters {start} to {min(end, other)}")
        reach[wrong] = max(end, reach.get(wrong, 0))


def glued(one: Text) -> bool:
    """Tell whether a prompt and the first word of the answer run into each other, as in "output:The"."""
    edge = (one.prompt or "")[-1:] + one.answer[:1]
    ends = edge[:1].isalnum() or edge[:1] in _ENDS
    return not one.passages and len(edge) == 2 and ends and edge[1].isalnum() and edge[1] < _SPACELESS


#: Marks that a space or line break follows, and the first character of scripts without spaces.
_ENDS, _SPACELESS = ".,:;?!)]", "\u2e80"


def _joint(labels: Set[bool | None], *, right: bool) -> bool | None:
    """Join labels: wrong with a wrong one, else undecided with an undecided one; ``right`` without any."""
    if True in labels or None in labels:
        return True if True in labels else None
    return False if labels or right else None


class TokenLabels(NamedTuple):
    """Labels of the n tokens of an answer.

    Attributes:
        wrong: (n,) int8; -1 where undecided, 0 outside of all marks.
        mark: (n,) place among the marks; then come the runs of other tokens, each within a sentence.
        inside: (n,) int8: 1 in a mark, 0 outside where that counts as right, -1 outside and not judged.
        sentence: (n,) number of the sentence.
        shared: how many tokens belong to two marks of different label.
    """

    wrong: np.ndarray
    mark: np.ndarray
    inside: np.ndarray
    sentence: np.ndarray
    shared: int


def token_labels(text: Text, offsets: Sequence[tuple[int, int]]) -> TokenLabels:
    """Label the tokens of an answer, given the [start, end) characters of each.

    A token belongs to a mark if their characters overlap, and of several to that with most of its
    characters. Without marks each sentence has the label of the answer; where text outside of marks counts
    as right, only that of a wrong one.
    """
    n, marks = len(offsets), text.units("token")
    if not marks and (text.wrong or (text.wrong is False and text.outside != "right")):
        marks = [Mark((span,), text.wrong) for span in split_sentences(text.answer)]
    wrong, place, best = np.zeros(n, np.int8), np.full(n, -1), np.zeros(n, int)
    shared = np.zeros(n, bool)
    for number, mark in enumerate(marks):
        label = -1 if mark.wrong is None else int(mark.wrong)
        for token, (start, end) in enumerate(offsets):
            overlap = sum(max(0, min(end, b) - max(start, a)) for a, b in mark.ranges)
            shared[token] |= overlap > 0 and place[token] >= 0 and wrong[token] != label
            if overlap > best[token]:
                wrong[token], place[token], best[token] = label, number, overlap
    starts = [start for start, _ in split_sentences(text.answer)][1:]
    sentence = np.searchsorted(starts, [end - 1 for _, end in offsets], side="right")
    inside = np.where(place >= 0, 1, 0 if text.outside == "right" else -1).astype(np.int8)
    following = len(marks) - 1
    for token in np.flatnonzero(inside < 1).tolist():
        goes_on = token > 0 and inside[token - 1] < 1 and sentence[token - 1] == sentence[token]
        following += int(not goes_on)
        place[token] = following
    return TokenLabels(wrong, place, inside, sentence, int(shared.sum()))
