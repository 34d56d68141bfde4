"""Texts of a file, one a line: a prompt or the messages of a chat, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ..data.questions.values import identifier, text
from ..data.records import BadLine, LeftOut, bad_line, check_object, file_rows, what_is_wrong
from ..engine.tokens import encode_continuation, encode_prompts
from ..options import shown
from ..prompts import chat_text
from ..types import UserError


@dataclass(frozen=True, slots=True)
class Text:
    """A line of the file.

    Attributes:
        where: place of the line in the file, for messages.
        prompt: text before the answer; None for a chat.
        messages: messages of a chat up to the answer; () for a plain prompt.
        wrong: label of the answer; None where the file has none.
        record: the line as read.
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

        Args:
            path: the file; each line has ``answer``, and ``prompt`` or ``messages``; ``id`` and ``wrong``
                (true or false) are optional.
            on_bad_line: "error" refuses a malformed line, "skip" leaves it out.

        Raises:
            UserError: no such file, a malformed line, or no line at all.
        """
        if not Path(path).is_file():
            raise UserError(
                f"texts={path} is not a file: give a file of JSON lines with prompt and answer", "no-file"
            )
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
                found._leave_out(path, row.where, what_is_wrong(error), on_bad_line)
                continue
            places[one.id] = row.where
            found.texts.append(one)
        return found._checked(f"texts={path}")

    def in_tokens(self, tokenizer: Any, on_bad_line: BadLine, file: str) -> Texts:
        """The texts as the model can read them: without an end marker, and without those it cannot write.

        Args:
            file: its name in messages.

        Raises:
            UserError: a text that no tokens read as, with on_bad_line=error; or there is no other.
        """
        found = Texts(left_out=self.left_out)
        for one in self.texts:
            prompt, answer = one.prompt_for(tokenizer, file), without_end(tokenizer, one.answer)
            try:
                (encoded,) = encode_prompts(tokenizer, [prompt], [one.id])
                encode_continuation(tokenizer, encoded, answer)
            except UserError as error:
                found._leave_out(file, one.where, str(error), on_bad_line)
                continue
            found.texts.append(replace(one, answer=answer))
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
