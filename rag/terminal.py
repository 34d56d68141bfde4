"""One question on the terminal: what the model writes, where the trigger fires, what is fetched."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

from probers.types import Decision, Passage, Question, Round

from .traces import Answer

_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Terminal:
    """Prints a question's rounds as they happen.

    Args:
        trigger: what to call the trigger.
        out: where to print; colours only if it is a terminal and NO_COLOR is not set.
    """

    def __init__(self, trigger: str, out: TextIO | None = None) -> None:
        self._trigger = trigger
        self._out = out or sys.stdout
        self._colours = self._out.isatty() and "NO_COLOR" not in os.environ
        self._shown = ""  # of the running generation
        self._begun = False  # whether its first line has been started
        self._rounds = 0

    def text(self, question: Question, text: str) -> None:
        """Print what the running generation has gained; ends of lines wait until more follows."""
        ready = text.rstrip()
        if ready.startswith(self._shown) and len(ready) > len(self._shown):
            self._start()
            self._write(_safe(ready[len(self._shown) :]))
            self._shown = ready

    def round(self, question: Question, done: Round, passages: Sequence[Passage]) -> None:
        """Finish the round's text and print what was decided, asked and fetched."""
        if done.text.strip() or done.decision is not None:
            self.text(question, done.text)
            self._start()
            self._write("\n")
        self._shown, self._begun = "", False
        if done.decision is not None:
            self._line(self._verdict(done, done.decision))
            if done.decision.position is not None and done.query is not None:
                kept = done.accepted.strip()
                self._line(self._paint("dim", f"kept: {kept}" if kept else "kept: nothing of it"))
        if done.query is not None:
            self._line(self._paint("cyan", f"query: {done.query}"))
            titles = "; ".join(f"{p.title or p.id} ({p.score:.2f})" for p in passages if p.score is not None)
            self._line(self._paint("green", f"fetched: {titles}") if passages else "fetched: nothing")
            if done.accepted == done.text:
                self._line("the prompt stays the same, and so does the answer")

    def final(self, answer: Answer, gold: Sequence[str] = (), right: bool | None = None) -> None:
        """Print the final answer and the counters."""
        self._write(f"{self._paint('bold', 'Answer:')} {_safe(answer.answer) or '(none)'}")
        if right is not None:
            mark = self._paint("green", "right") if right else self._paint("red", "wrong")
            self._write(f"  ({mark}; gold: {_safe(' or '.join(gold))})")
        c = answer.counters
        counts = f"{_count(c.retrievals, 'retrieval')}, {_count(c.generations, 'generation')}, "
        self._write(
            "\n" + self._paint("dim", f"{counts}{_count(c.tokens, 'token')}, {c.seconds:.2f} s") + "\n"
        )

    def _verdict(self, done: Round, decision: Decision) -> str:
        compared = f"score {decision.score:.3g}, threshold {decision.threshold:.3g}"
        if not decision.fire:
            return self._paint("dim", f"{self._trigger} did not fire: {compared}")
        if decision.position is None:
            where = "on the whole answer"
        else:
            where = f"at “{_hits(done, decision)}”, character {decision.position}"
        end = "" if done.query is not None else "; no retrieval is left"
        return self._paint("red", f"▲ {self._trigger} fired {where}: {compared}{end}")

    def _start(self) -> None:
        if not self._begun:
            self._rounds += 1
            self._write(self._paint("dim", f"[{self._rounds}]"))
            self._begun = True

    def _line(self, text: str) -> None:
        self._write(f"    {text}\n")

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{_CODES[colour]}m{_safe(text)}\x1b[0m" if self._colours else _safe(text)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _safe(text: str) -> str:
    """Text without control characters: what a model or corpus wrote must not steer the terminal."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _hits(done: Round, decision: Decision) -> str:
    """The text of the tokens that fired; neighbours are joined as they stand."""
    parts: list[str] = []
    for token in decision.tokens:
        piece = done.text[slice(*done.tokens[token])]
        parts.append(piece if token - 1 in decision.tokens or not parts else f" … {piece.lstrip()}")
    return "".join(parts).strip()
