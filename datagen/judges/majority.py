"""Verdict of the majority of several judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probers.commands.components import Component
from probers.options import shown
from probers.types import UserError

from .base import Answer, Grounds, Judge, Ruling, Verdict


class MajorityJudge(Judge):
    """Judge with the verdict that more than half of several judges give, else "unknown".

    Args:
        grounds: sources that all of them may use.
        judges: two or more names of judges, dotted paths of your own, or mappings of a name and options, as
            {name: openai, url: .., model: ..}.

    Raises:
        UserError: fewer than two judges, or one that cannot be made.
    """

    def __init__(self, grounds: Grounds, *, judges: tuple[str | dict[str, Any], ...] = ()) -> None:
        if len(judges) < 2:
            told = f"judge.judges={shown(list(judges))} must name two judges or more"
            raise UserError(f"{told}, as judge.judges=[article,hand]", "missing-value")
        parts = [_component(given) for given in judges]
        names = [name for name, _ in parts]
        self._names = [
            name if names.count(name) == 1 else f"{name} {names[: place + 1].count(name)}"
            for place, name in enumerate(names)
        ]
        self._judges: list[Judge] = [component.make(grounds) for _, component in parts]

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        members = [judge.judge(answers) for judge in self._judges]
        return [
            [self._together(rulings) for rulings in zip(*each, strict=True)]
            for each in zip(*members, strict=True)
        ]

    def lines(self) -> list[str]:
        named = zip(self._names, self._judges, strict=True)
        return [f"{name}: {line}" for name, judge in named for line in judge.lines()]

    def _together(self, rulings: Sequence[Ruling]) -> Ruling:
        (most, times), *_ = Counter(ruling.verdict for ruling in rulings).most_common()
        verdict: Verdict = most if 2 * times > len(rulings) else "unknown"
        each = zip(self._names, rulings, strict=True)
        return Ruling(verdict, "; ".join(f"{name}: {ruling.verdict}" for name, ruling in each))


def _component(given: str | Mapping[str, Any]) -> tuple[str, Component]:
    """Find the name and the class of a judge (UserError)."""
    options = {} if isinstance(given, str) else dict(given)
    name = given if isinstance(given, str) else options.pop("name", None)
    if not isinstance(name, str):
        told = f"judge.judges holds {shown(given)} without a name: add one, as {{name: openai, url: ..}}"
        raise UserError(told, "missing-value")
    if "." in name:
        return name, Component.read("judge", {"_target_": name, **options})
    return name, Component.of("judge", name, **options)
