"""Judge behind an OpenAI-compatible URL, asked about one sentence at a time."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from probers.cli.openai_client import Server
from probers.files import check_file, read_text
from probers.options import Count, Natural, Positive
from probers.types import Passage, UserError, count, first_line, shortlist
from probers.words.text import split_sentences

from .base import Answer, Grounds, Judge, Ruling, Verdict
from .calls import Budget, Calls

log = logging.getLogger(__name__)

#: File in the run's folder that keeps every reply.
REPLIES = "judge.jsonl"
#: Most words of the reference article in a request, in whole sentences.
_REFERENCE = 600
#: Pattern of instructions to a judge, which hardly ever occur in statements about the world.
_INSTRUCTION = re.compile(
    r"\b(ignore|disregard|forget)\b.{0,40}\b(above|previous|prior|earlier|preceding|instructions?|prompts?)\b"
    r"|\b(answer|reply|respond|output|return|label|mark|rate)\b(\W+\w+){0,4}?\W+(supported|contradicted)\b"
    r"|\byou are (now )?(a|an|the)\b.{0,20}\b(judge|grader|evaluator|annotator|fact.?checker)\b"
    r"|\b(verdicts?|spans?)\"?\s*:\s*[\[\"]",
    re.IGNORECASE | re.DOTALL,
)
_PLACEHOLDER = re.compile(r"\{\s*(question|passages|sentence|spans|answer)\s*\}")


class _Request(NamedTuple):
    """Sentence of an answer with its units: the text of each different one, and their places among all."""

    answer: Answer
    sentence: str
    spans: Mapping[str, Sequence[int]]


@dataclass(repr=False, eq=False)
class OpenAIJudge(Judge):
    """Judge behind any OpenAI-compatible URL (extra "remote"), asked once for each sentence with units.

    A request holds the question, passages, the sentence and its units as one JSON object, so that the text to
    judge cannot change the format. The passages are the first 600 words of the reference article, if there is
    one, and those that the corpus has for the sentence. A reply that is not exactly in the requested form is
    counted and becomes "unknown". Every reply is kept in ``judge.jsonl`` in the run's folder, so that it is
    paid for once. The key is the environment's OPENAI_API_KEY.

    Attributes:
        url: address of the server, which ends with /v1.
        model: the server's name of the model.
        passages: passages of the corpus for each sentence; 0 reads no corpus.
        prompt: file of instructions in place of our own; it becomes the system message as it stands.
        max_calls: most calls, including those of earlier runs in the folder; null is no limit.
        max_tokens: most tokens of requests and replies, likewise, by the server's count, or else estimated as
            one for 4 characters.
        parallel: requests at a time.
        timeout: seconds without an answer before an attempt counts as failed.
        retries: further attempts after a timeout or a failure that may pass.
        problems: number of replies without a verdict, for each reason.
        instructing: number of sentences of each answer that read like an instruction to a judge, by id.

    Raises:
        UserError: no ``url`` or ``model``, an unusable ``prompt``, no openai; the server refuses the key, the
            model or the request.
        RunError: a limit is reached (code "limit"); the server fails or cannot be reached.
    """

    grounds: Grounds
    _: KW_ONLY
    url: str | None = None
    model: str | None = None
    passages: Natural = 3
    prompt: str | None = None
    max_calls: Count | None = None
    max_tokens: Count | None = None
    parallel: Count = 4
    timeout: Positive = 60.0
    retries: Natural = 4
    problems: Counter[str] = field(default_factory=Counter, init=False)
    instructing: Counter[str] = field(default_factory=Counter, init=False)
    _begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.url is None or self.model is None:
            option, what = ("url", "http://HOST:PORT/v1") if self.url is None else ("model", "NAME")
            raise UserError(f"judge=openai needs its {option}: give judge.{option}={what}", "missing-value")
        self.calls = Calls(
            Server("judge.url", self.url, "judge.parallel"), self.model, self._instructions(),
            self.grounds.folder / REPLIES,
            Budget(self.max_calls, self.max_tokens, str(self.grounds.folder / REPLIES)),
            self.parallel, self.timeout, self.retries,
        )  # fmt: skip

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        """Judge like :meth:`Judge.judge`; the first call logs the number of requests and the limits."""
        requests = [(place, one) for place, answer in enumerate(answers) for one in _requests(answer)]
        self.instructing.update(one.answer.id for _, one in requests if _INSTRUCTION.search(one.sentence))
        sentences = [one.sentence for _, one in requests]
        passages = self.grounds.passages(sentences, self.passages) if sentences else []
        contents = [_content(one, hits) for (_, one), hits in zip(requests, passages, strict=True)]
        self._announce(contents)
        rulings: list[list[Ruling]] = [[Ruling("unknown")] * len(answer.units) for answer in answers]
        for (place, one), reply in zip(requests, self.calls.all(contents), strict=True):
            if reply is None or reply.refused:
                read, problems = unread(one.spans, REFUSED if reply else TIMEOUT)
            else:
                read, problems = read_reply(reply.text, one.spans)
            self.problems += problems
            for span, units in one.spans.items():
                verdict, problem = read[span]
                evidence = f"{self.model}: {problem}" if problem else f"by {self.model}"
                for unit in units:
                    rulings[place][unit] = Ruling(verdict, evidence)
        return rulings

    def lines(self) -> list[str]:
        """Report calls and tokens, replies that could not be used, and sentences that speak to a judge."""
        calls = self.calls
        by = f", {count(calls.estimated, 'call')} by an estimate" if calls.estimated else ""
        sent = f"{count(calls.sent, 'call')}, {calls.replayed:,} more from {REPLIES}"
        lines = [f"judge {self.model}: {sent}; {calls.budget.tokens:,} tokens in all{by}"]
        if self.problems:
            listed = ", ".join(f"{n} {problem}" for problem, n in self.problems.most_common())
            lines.append(f"  without a verdict: {listed}")
        if self.instructing:
            names, sentences = shortlist([*self.instructing]), count(self.instructing.total(), "sentence")
            lines.append(f"  {sentences} that read like an instruction to the judge, in {names}")
        return lines

    def _instructions(self) -> str:
        if self.prompt is None:
            return (resources.files("probers.datagen.judges") / "openai.txt").read_text("utf-8")
        try:
            check_file(self.prompt)
            text = read_text(Path(self.prompt))
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise UserError(f"judge.prompt={self.prompt} cannot be read: {reason}", "no-file") from error
        except ValueError as error:
            raise UserError(f"judge.prompt={self.prompt} {error}: give text in UTF-8", "bad-file") from error
        if not text.strip():
            raise UserError(f"judge.prompt={self.prompt} is empty: give instructions", "empty")
        if place := _PLACEHOLDER.search(text):
            raise UserError(f"judge.prompt={self.prompt}: nothing fills in {place[0]}; remove it", "bad-file")
        return text

    def _announce(self, contents: Sequence[str]) -> None:
        if self._begun or not contents:
            return
        self._begun = True
        new, budget = count(len(self.calls.new(contents)), "request"), self.calls.budget
        limits = {"max_calls": self.max_calls, "max_tokens": self.max_tokens}
        listed = ", ".join(f"judge.{name}={'none' if n is None else f'{n:,}'}" for name, n in limits.items())
        log.info(
            "judge %s: %s at most for the first %s; %s and %s tokens spent before; limits: %s",
            self.model, new, count(len(contents), "sentence"), count(budget.calls, "call"),
            f"{budget.tokens:,}", listed,
        )  # fmt: skip


def _requests(answer: Answer) -> Iterator[_Request]:
    """Yield the sentences that hold units; one that reaches further takes the sentences up to its end."""
    borders = split_sentences(answer.text)
    spans: dict[tuple[int, int], dict[str, list[int]]] = {}
    for place, unit in enumerate(answer.units):
        inside = [border for border in borders if border[0] < unit.end and border[1] > unit.start]
        starts, ends = zip((unit.start, unit.end), *inside, strict=True)
        of_sentence = spans.setdefault((min(starts), max(ends)), {})
        of_sentence.setdefault(answer.text[unit.start : unit.end], []).append(place)
    for (start, end), units in spans.items():
        yield _Request(answer, answer.text[start:end], units)


def _content(request: _Request, passages: Sequence[Passage]) -> str:
    """Make the user's message: one JSON object, whatever the texts in it say."""
    answer = request.answer
    sizes = accumulate(len(sentence.split()) for sentence in answer.reference)
    reference = " ".join(s for s, n in zip(answer.reference, sizes, strict=True) if n <= _REFERENCE)
    sources = [(passage.title, passage.text) for passage in passages]
    sources = [(answer.subject, reference), *sources] if reference else sources
    texts = [f"{title}: {text}" if title else text for title, text in sources]
    content = {"question": answer.prompt, "passages": texts, "sentence": request.sentence}
    return json.dumps(content | {"spans": list(request.spans)}, ensure_ascii=False)


#: Problems of a reply, or of its entry for a span.
TIMEOUT, REFUSED = "no answer in time", "refused"
NO_JSON, SHAPE = "reply without JSON", "reply of another shape"
NOT_ASKED, WORD = "span that was not asked for", "word that is no verdict"
TWICE, MISSING = "span judged twice", "span left out"

_FENCE = re.compile(r"```(?:json|JSON)?\s*\n(.*?)```", re.DOTALL)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class _Entry(BaseModel, extra="forbid", strict=True):
    span: str
    verdict: str


class _Verdicts(BaseModel, extra="forbid", strict=True):
    verdicts: list[_Entry]


#: Verdict on each span, with the problem that leaves it "unknown", or ""; and the number of each problem.
Reading = tuple[dict[str, tuple[Verdict, str]], Counter[str]]


def unread(spans: Iterable[str], problem: str) -> Reading:
    """Make the reading of a reply without anything usable, whose problem counts once."""
    return dict.fromkeys(spans, ("unknown", problem)), Counter([problem])


def read_reply(text: str, spans: Iterable[str]) -> Reading:
    """Read the entries of a reply on the requested spans; it must name each span once."""
    try:
        entries = _Verdicts.model_validate(_object(text)).verdicts
    except (ValidationError, _RepeatedKeyError):
        return unread(spans, SHAPE)
    except (ValueError, RecursionError):
        return unread(spans, NO_JSON)
    times = Counter(entry.span for entry in entries)
    words = {entry.span: entry.verdict for entry in entries}
    read: dict[str, tuple[Verdict, str]] = {}
    for span in spans:
        verdict = next((word for word in _VERDICTS if word == words.get(span)), None)
        problem = MISSING if not times[span] else TWICE if times[span] > 1 else "" if verdict else WORD
        read[span] = (verdict, "") if verdict and not problem else ("unknown", problem)
    problems = Counter(problem for _, problem in read.values() if problem)
    return read, +(problems + Counter({NOT_ASKED: len(words.keys() - read.keys())}))


class _RepeatedKeyError(ValueError):
    """Error for an object that names a key twice, as only one of its values would be read."""


def _object(text: str) -> Any:
    """Parse the JSON of a reply: all of it, its only fenced block, or its outermost braces (ValueError)."""
    text = text.rpartition("</think>")[2].strip()
    fenced = _FENCE.findall(text)
    for part in (text, *(fenced if len(fenced) == 1 else ()), text[text.find("{") : text.rfind("}") + 1]):
        try:
            return json.loads(part, object_pairs_hook=_once)
        except json.JSONDecodeError:
            continue
    raise ValueError("no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise _RepeatedKeyError
    return record
