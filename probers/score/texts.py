"""Texts of a file: a prompt, or the messages of a chat, and the answer to it, one a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from probers.data.questions.values import identifier, text
from probers.data.records import BadLine, LeftOut, check_object, file_rows, what_is_wrong
from probers.options import shown
from probers.prompts import chat_text
from probers.types import UserError


@dataclass(frozen=True, slots=True)
class Text:
    """A line of the file.

    Attributes:
        where: the line, for messages.
        prompt: what the answer was written behind; None where ``messages`` stand in its place.
        messages: of a chat, the last before the answer; () for a plain prompt.
        wrong: whether the answer is known to be wrong; None where nobody says.
        record: the line as it was read.
    """

    id: str
    where: str
    prompt: str | None
    messages: tuple[Mapping[str, str], ...]
    answer: str
    wrong: bool | None
    record: Mapping[str, Any]

    def prompt_for(self, tokenizer: Any, file: str) -> str:
        """The prompt as the model reads it; UserError where the tokenizer's chat template refuses it."""
        if self.prompt is not None:
            return self.prompt
        return chat_text(tokenizer, self.messages, f"{file} {self.where} has messages")

    @property
    def asked(self) -> str:
        """The end of what was asked, for a reader."""
        return self.prompt if self.prompt is not None else self.messages[-1]["content"]


@dataclass
class _LeftOut(LeftOut):
    noun: ClassVar[str] = "line"


@dataclass
class Texts:
    """The texts of a file, and the lines that are none."""

    texts: list[Text] = field(default_factory=list)
    left_out: _LeftOut = field(default_factory=_LeftOut)

    @classmethod
    def read(cls, path: str, on_bad_line: BadLine = "error") -> Texts:
        """All lines of a JSONL file (``.gz`` too), or all objects of a JSON array.

        Args:
            path: the file; each line has ``answer``, and ``prompt`` or ``messages``; ``id``, a line's own
                name, and ``wrong``, true or false, may be there.
            on_bad_line: what a malformed line does.

        Raises:
            UserError: no such file, a malformed line, or no line at all.
        """
        if not Path(path).is_file():
            raise UserError(f"texts={path} is not a file: give one of JSON lines with prompt and answer")
        found = cls()
        places: dict[str, str] = {}
        for row in file_rows(Path(path)):
            try:
                if row.problem:
                    raise ValueError(row.problem)
                one = _text(row.record, row.where)
                if one.id in places:
                    raise ValueError(f"the id {one.id!r} is already on {places[one.id]}")
            except (ValueError, KeyError) as error:
                if on_bad_line == "error":
                    told = f"{path} {row.where}: {what_is_wrong(error)}"
                    raise UserError(f"{told}; mend it or pass on_bad_line=skip") from error
                found.left_out.add(row.where, f"malformed: {what_is_wrong(error)}")
                continue
            places[one.id] = row.where
            found.texts.append(one)
        if not found.texts:
            raise UserError(f"texts={path} holds no usable line: {found.left_out.summary() or 'it is empty'}")
        return found


def _text(record: Any, where: str) -> Text:
    """The text of a line (ValueError, KeyError)."""
    check_object(record)
    text(record, "answer")
    wrong = record.get("wrong")
    if wrong is not None and not isinstance(wrong, bool):
        raise ValueError(f"wrong must be true or false, found {shown(wrong)}")
    if ("prompt" in record) == ("messages" in record):
        raise ValueError(
            f"{'both' if 'prompt' in record else 'neither'} prompt and messages: give one of them"
        )
    prompt, messages = None, record.get("messages", ())
    if "prompt" in record:
        text(record, "prompt")
        prompt = record["prompt"]
    elif not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise ValueError(
            'messages must be a list of {"role": .., "content": ..} with texts and at least one of them, '
            f"found {shown(messages)}"
        )
    id = identifier(record, "id") if record.get("id") is not None else where
    return Text(id, where, prompt, tuple(messages), record["answer"], wrong, record)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))
