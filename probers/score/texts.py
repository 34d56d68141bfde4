"""Texts of a file, one a line (a prompt or the messages of a chat, and the answer), and their page.

The page is one HTML file: tokens coloured by score, spans that fire underlined and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ..data.questions.values import identifier, text
from ..data.records import BadLine, LeftOut, bad_line, check_object, file_rows, what_is_wrong
from ..engine.tokens import encode_continuation, encode_prompts
from ..options import shown
from ..pages import num, render
from ..prompts import chat_text
from ..types import UserError

#: Steps of the colours of the report's style sheet, and those of them that lie above the threshold.
LEVELS, ABOVE = 7, 3
#: Characters shown of the end of a prompt.
_PROMPT = 400


@dataclass(frozen=True, slots=True)
class Text:
    """A line of the file, as read in ``record``, and its place ``where`` for messages.

    ``prompt`` is None for a chat, ``messages`` () for a plain prompt; ``wrong`` is None without a label.
    """

    id: str
    where: str
    prompt: str | None
    messages: tuple[Mapping[str, str], ...]
    answer: str
    wrong: bool | None
    record: Mapping[str, Any]

    def prompt_for(self, tokenizer: Any, file: str) -> str:
        """Put the prompt as the model reads it; UserError where the chat template refuses the messages."""
        if self.prompt is not None:
            return self.prompt
        return chat_text(tokenizer, self.messages, f"{file} {self.where} has messages")

    @property
    def asked(self) -> str:
        """The prompt, or the last message of a chat."""
        return self.prompt if self.prompt is not None else self.messages[-1]["content"]


@dataclass
class _LeftOut(LeftOut):
    noun: ClassVar[str] = "line"


@dataclass
class Texts:
    """Texts of a file, and the lines that were left out."""

    texts: list[Text] = field(default_factory=list)
    left_out: _LeftOut = field(default_factory=_LeftOut)

    @classmethod
    def read(cls, path: str, on_bad_line: BadLine = "error") -> Texts:
        """Read a JSONL file (``.gz`` too) or a JSON array.

        Each line has ``answer``, and ``prompt`` or ``messages``; ``id`` and ``wrong`` (true or false) are
        optional. UserError for no such file, no line at all, or with ``on_bad_line="error"`` a malformed one.
        """
        if not Path(path).is_file():
            told = f"texts={path} is not a file: give a file of JSON lines with prompt and answer"
            raise UserError(told, "no-file")
        found, places = cls(), dict[str, str]()
        for row in file_rows(Path(path)):
            try:
                if row.problem:
                    raise ValueError(row.problem)
                one = _text(row.record, row.where)
                if (other := places.setdefault(one.id, one.where)) != one.where:
                    raise ValueError(f"the id {one.id!r} is already on {other}")
                found.texts.append(one)
            except (ValueError, KeyError) as error:
                found._leave_out(path, row.where, what_is_wrong(error), on_bad_line)
        return found._checked(f"texts={path}")

    def in_tokens(self, tokenizer: Any, on_bad_line: BadLine, file: str) -> Texts:
        """The texts as the model can read them: without an end marker, and without those it cannot write."""
        found = Texts(left_out=self.left_out)
        for one in self.texts:
            prompt, answer = one.prompt_for(tokenizer, file), without_end(tokenizer, one.answer)
            try:
                (encoded,) = encode_prompts(tokenizer, [prompt], [one.id])
                encode_continuation(tokenizer, encoded, answer)
                found.texts.append(replace(one, answer=answer))
            except UserError as error:
                found._leave_out(file, one.where, str(error), on_bad_line)
        return found._checked(file)

    def _leave_out(self, file: str, where: str, reason: str, on_bad_line: BadLine) -> None:
        if on_bad_line == "error":
            raise bad_line(f"{file} {where}: {reason}")
        self.left_out.add(where, f"malformed: {reason}")

    def _checked(self, file: str) -> Texts:
        if not self.texts:
            why = self.left_out.summary() or "it is empty"
            raise UserError(f"{file} holds no usable line: {why}", "empty")
        return self


def without_end(tokenizer: Any, text: str) -> str:
    """Text without the markers by which the model ended it ("<|im_end|>")."""
    markers = [marker for marker in tokenizer.all_special_tokens if marker]
    while found := next((marker for marker in markers if text.rstrip().endswith(marker)), ""):
        text = text.rstrip().removesuffix(found)
    return text


def _text(record: Any, where: str) -> Text:
    """Make the text of a line (ValueError, KeyError)."""
    check_object(record)
    text(record, "answer")
    wrong = record.get("wrong")
    if wrong is not None and not isinstance(wrong, bool):
        raise ValueError(f"wrong must be true or false, found {shown(wrong)}")
    if ("prompt" in record) == ("messages" in record):
        many = "both" if "prompt" in record else "neither"
        raise ValueError(f"{many} prompt and messages: give one of them")
    prompt, messages = record.get("prompt"), record.get("messages", ())
    if "prompt" in record:
        text(record, "prompt")
    elif not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        form = 'a list of one or more {"role": .., "content": ..}'
        raise ValueError(f"messages must be {form}, not {shown(messages)}")
    id = identifier(record, "id") if record.get("id") is not None else where
    return Text(id, where, prompt, tuple(messages), record["answer"], wrong, record)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


class Piece(NamedTuple):
    """A piece of a text within one token, its step of colour (None without a score), and its tooltip."""

    text: str
    level: int | None
    told: str


def scores_html(
    texts: Sequence[Text], records: Sequence[Mapping[str, Any]], *, about: Mapping[str, str],
    results: Mapping[str, Any], limit: float, most: int,
) -> str:  # fmt: skip
    """Make the page: one file, without script or network.

    ``records`` are the texts' lines of scores.jsonl, ``about`` facts for the head, ``results`` those of
    results.json, ``limit`` the threshold as a probability; the ``most`` highest scores are shown.
    """
    scored = [(one, r["hallucination"]) for one, r in zip(texts, records, strict=True) if r["hallucination"]]
    scored.sort(key=lambda pair: (pair[1]["score"] is None, -(pair[1]["score"] or 0.0)))
    return render(
        "probers.score/scores.html.j2",
        shown=[(one, told, list(parts(one.answer, told, limit))) for one, told in scored[:most]],
        rest=max(0, len(scored) - most), about=about, results=results, limit=limit,
        levels=LEVELS, above=ABOVE, tail=lambda text: text if len(text) <= _PROMPT else f"…{text[-_PROMPT:]}",
    )  # fmt: skip


def level(p: float, limit: float) -> int:
    """Choose a colour step; the upper :data:`ABOVE` of :data:`LEVELS` are above ``limit``."""
    below = LEVELS - ABOVE
    if p > limit:
        return below + min(ABOVE - 1, int((p - limit) / (1 - limit) * ABOVE))
    return min(below - 1, int(p / limit * below)) if limit > 0 else below - 1


def parts(
    text: str, told: Mapping[str, Any], limit: float
) -> Iterator[tuple[Mapping[str, Any] | None, list[Piece]]]:
    """Cut a text at the borders of tokens and spans, from left to right.

    Yields a span, or None between spans, and its pieces. A span over the whole text is not marked: the text's
    own score says the same. ``told`` is the text's ``hallucination``, ``limit`` the threshold as a
    probability.
    """
    offsets = told["token_offsets"]
    spans = [span for span in told["spans"] if (span["start"], span["end"]) != (0, len(text))]
    marks = [0, len(text), *(mark for each in offsets for mark in each)]
    marks += [span[side] for span in spans for side in ("start", "end")]
    borders = sorted({min(max(mark, 0), len(text)) for mark in marks})
    pieces = []
    for start, end in zip(borders, borders[1:], strict=False):
        token = next((i for i, (a, b) in enumerate(offsets) if a <= start < b), None)
        span = next((i for i, s in enumerate(spans) if s["start"] <= start < s["end"]), None)
        pieces.append((span, _piece(text[start:end], told, token, limit)))
    for place, group in groupby(pieces, key=lambda piece: piece[0]):
        yield None if place is None else spans[place], [piece for _, piece in group]


def _piece(text: str, told: Mapping[str, Any], token: int | None, limit: float) -> Piece:
    if token is None or (score := told["token_scores"][token]) is None:
        return Piece(text, None, "")
    p, logprob = told["token_p_wrong"][token], told["token_logprobs"][token]
    figures = f"P(wrong) {p:.0%}, score {num(score)}, log-probability {num(logprob)}"
    return Piece(text, level(p, limit), figures)
