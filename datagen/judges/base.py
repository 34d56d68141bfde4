"""Interface of a judge, with judges that only pass on verdicts: those of people, and of a majority."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probers.cli.components import Component
from probers.data.corpus import search
from probers.data.texts.base import Mark, Text
from probers.data.texts.source import TextSource
from probers.files import given_file
from probers.options import shown
from probers.types import Passage, Retriever, UserError, count
from probers.words import EntityMatcher, Recognise

Verdict = Literal["supported", "contradicted", "unknown"]
#: File of the judged answers of a run, one labelled text per line.
JUDGED = "judged.jsonl"
#: Value of ``wrong`` in a labelled text for each verdict.
WRONG: dict[Verdict, bool | None] = {"supported": False, "contradicted": True, "unknown": None}
VERDICT_OF: dict[bool | None, Verdict] = {wrong: verdict for verdict, wrong in WRONG.items()}


class Ruling(NamedTuple):
    """Verdict, the passage or reason behind it, and the name of the rule or judge that gave it."""

    verdict: Verdict
    evidence: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to judge.

    Attributes:
        id: name of the answer in the run.
        prompt: prompt that the model got.
        text: text that it wrote.
        units: entities or sentences to judge, characters of ``text``, ascending; their ``wrong`` is None and
            their ``type`` that of an entity, or "sentence".
        subject: title of the article that the prompt asks about; "" without one.
        reference: sentences of that article, in natural text; () without one.
    """

    id: str
    prompt: str
    text: str
    units: tuple[Mark, ...]
    subject: str = ""
    reference: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grounds:
    """Sources and functions that a judge may use.

    Attributes:
        matcher: compares entities, as for all other labels.
        recognise: finds entities.
        open_retriever: opens the corpus, which is read only if a judge asks for passages.
        folder: folder of the run, for files that a judge must not lose.
        lm: the model that wrote the answers; None where there is none at hand.
    """

    matcher: EntityMatcher
    recognise: Recognise
    open_retriever: Callable[[], Retriever]
    folder: Path
    lm: Any = None

    @cached_property
    def _retriever(self) -> Retriever:
        return self.open_retriever()

    def passages(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find the ``k`` best passages of the corpus for each query; none if ``k`` is 0."""
        return search(self._retriever, list(queries), k) if k else [[] for _ in queries]


class Judge(ABC):
    """Judge of the units of answers, made from :class:`Grounds` and its options.

    A judge of your own is ``judge._target_=my_package.MyJudge``.
    """

    @abstractmethod
    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        """Give a ruling for each unit of each answer, in their order.

        Verdicts depend on the answer alone, so that an interrupted run gives the same.
        """

    def lines(self) -> list[str]:
        """Report its cost and the replies that it could not use, for the end of the run."""
        return []


class HandJudge(Judge):
    """Judge that reads verdicts of people from a file of labelled texts.

    A unit gets the verdict of the span with its characters in the text of the same id; a sentence gets that
    of the sentence. All others are "unknown".

    Args:
        grounds: not used.
        file: labelled texts (docs/formats.md): id, answer, and spans or sentences with start, end and wrong.

    Raises:
        UserError: no such file, a malformed line, or another answer under the same id.
    """

    def __init__(self, grounds: Grounds, *, file: str | None = None) -> None:
        if file is None:
            raise UserError("judge=hand needs verdicts: give judge.file=FILE.jsonl", "missing-value")
        given_file("judge.file", file, "JSON lines with id, answer and spans")
        self._file = file
        self._units = self._judged = 0

    @cached_property
    def _texts(self) -> dict[str, Text]:
        texts: dict[str, Text] = {}
        for where, one in TextSource(self._file).read():
            if isinstance(one, str):
                raise UserError(f"judge.file={self._file} {where}: {one}; mend the line", "bad-line")
            texts[one.id] = one
        if not texts:
            raise UserError(f"judge.file={self._file} holds no text: give one for each answer", "empty")
        return texts

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        return [[self._ruling(unit, self._text_of(one)) for unit in one.units] for one in answers]

    def lines(self) -> list[str]:
        return [f"judged by hand: {self._judged:,} of {count(self._units, 'unit')}, in {self._file}"]

    def _text_of(self, answer: Answer) -> Text | None:
        text = self._texts.get(answer.id)
        if text is not None and text.answer != answer.text:
            message = f"judge.file={self._file} {text.where} has another answer for {answer.id!r}"
            raise UserError(f"{message} than this run: remove the line", "mismatch")
        return text

    def _ruling(self, unit: Mark, text: Text | None) -> Ruling:
        self._units += 1
        marks = () if text is None else text.sentences if unit.type == "sentence" else text.spans
        wrong = next((mark.wrong for mark in marks if mark.ranges == unit.ranges), None)
        if text is None or wrong is None:
            return Ruling("unknown", "not judged by hand")
        self._judged += 1
        return Ruling(VERDICT_OF[wrong], f"{Path(self._file).name} {text.where}")


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
            message = f"judge.judges={shown(list(judges))} must name two judges or more"
            raise UserError(f"{message}, as judge.judges=[article,hand]", "missing-value")
        names, components = zip(*map(_component, judges), strict=True)
        numbered = [f"{name} {names[: place + 1].count(name)}" for place, name in enumerate(names)]
        self._names = [n if names.count(n) == 1 else m for n, m in zip(names, numbered, strict=True)]
        self._judges: list[Judge] = [component.make(grounds) for component in components]

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        members = zip(*(judge.judge(answers) for judge in self._judges), strict=True)
        return [[self._together(unit) for unit in zip(*answer, strict=True)] for answer in members]

    def lines(self) -> list[str]:
        named = zip(self._names, self._judges, strict=True)
        return [f"{name}: {line}" for name, judge in named for line in judge.lines()]

    def _together(self, rulings: Sequence[Ruling]) -> Ruling:
        (most, times), *_ = Counter(ruling.verdict for ruling in rulings).most_common()
        verdict: Verdict = most if 2 * times > len(rulings) else "unknown"
        named = zip(self._names, rulings, strict=True)
        return Ruling(verdict, "; ".join(f"{name}: {ruling.verdict}" for name, ruling in named))


def _component(given: str | Mapping[str, Any]) -> tuple[str, Component]:
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"judge.judges holds {shown(given)}: name it, as {{name: openai}}", "missing-value")
    if "." in name:
        return name, Component.read("judge", {"_target_": name, **options})
    return name, Component.of("judge", name, **options)
