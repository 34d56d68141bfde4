"""Labels of long answers that the model writes: a judge gives verdicts on their parts.

The states are those of the pass that wrote the answer. Entities named before in the prompt or the answer are
not judged, because the model copies them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from probers.checksums import Journal
from probers.commands.inputs import load_matcher, load_passages, wordnet_found
from probers.commands.settings import plain
from probers.data.articles import Rules, open_articles
from probers.data.texts import Mark, TextSource
from probers.data.texts.base import read_text
from probers.data.topics import PromptFile, Topic, topics_of, with_references
from probers.engine.language_model import Decoding, GenerationRequest, Sampling
from probers.engine.model import CausalLM
from probers.files import write_text
from probers.options import shown
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Unit, UserError
from probers.words import Recognise, language_of, normalise
from probers.words.spelling import normalise
from probers.words.text import split_sentences
from probers.words.thinking import Part, part_of, position_of

from ..judges.base import JUDGED, WRONG, Answer, Grounds, Judge, Ruling
from ..judges.page import reading_page
from ..settings import Datagen
from .base import JOURNAL, TOO_LONG, Examples, LabelBuilder, Prepared
from .language import language_of_topics, recogniser_in
from .marks import MarkedRows, unit_for

log = logging.getLogger(__name__)

JudgedUnits = Literal["entities", "sentences", "both"]
#: Reasons for not judging a unit.
_UNJUDGED = _PROMPTED, _BEFORE, _REPEATED, _CUT = (
    "named in the prompt", "named before in the answer", "in a repeated sentence",
    "cut off by max_new_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """Answer to a topic: the greedy one is number 0, the others are drawn."""

    topic: Topic
    number: int

    @property
    def id(self) -> str:
        return f"{self.topic.id}/{self.number}"

    @property
    def group(self) -> str:
        return self.topic.group

    @property
    def split(self) -> str:
        return self.topic.split


@dataclass
class JudgedBuilder(LabelBuilder):
    """Builder that writes answers, has entities or sentences judged, and pools features over these parts.

    Attributes:
        topics: topics of the prompts.
        judge: judge of the parts; its unknown verdicts give no label.
        unit: unit of an example; "token" stores every token of an answer.
        units_judged: units that the judge is asked about.
        answers: answers to each prompt, the first greedy, the others drawn at ``temperature`` by ``seed``.
        folder: folder of the run, for the journal of judged answers.
        part: part that is judged of answers with thinking.
    """

    lm: CausalLM | None
    topics: Sequence[Topic]
    judge: Judge
    recognise: Recognise
    prompt: PromptTemplate
    needs: Needs
    folder: Path
    unit: Unit = "span"
    units_judged: JudgedUnits = "entities"
    max_new_tokens: int = 256
    answers: int = 1
    temperature: float = 1.0
    seed: int = 0
    part: Part = "both"

    item_name = unit_name = "answer"
    wrong_name = "contradicted"
    pools = ("mean", "last", "mind", "tokens", "predicting")
    speaks = True
    balance_by = ("split",)
    parts = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        of_unit = {"span": "entity", "answer": position_of(self.part)}
        self.position = of_unit.get(self.unit, self.unit)
        self._rows = MarkedRows(self.unit, self.needs, self.part)
        self._bare = self.prompt if self.lm is None else self.prompt.bare(self.lm)

    @classmethod
    def prepare(cls, settings: Datagen) -> Prepared:
        unit = _unit(settings)
        topics, files = _topics(settings)
        options = settings.judge.options
        if options.get("passages"):
            files.append(settings.corpus)
        elif not any(topic.reference for topic in topics) and settings.judge.target.endswith("ArticleJudge"):
            told = "judge=article compares with articles, and no prompt has one"
            fix = "give articles=FILE with their titles, or judge.passages=3"
            raise UserError(f"{told}: {fix}", "missing-value")
        language = language_of_topics(settings, topics)
        if not language.english and "probers.datagen.judges.article." in json.dumps(plain(settings.judge)):
            told = f"judge=article reads facts of English, the language is {language.name}"
            raise UserError(f"{told}: choose judge=openai or hand", "unsupported")
        recognise = recogniser_in(settings.recogniser, language)
        matcher = load_matcher(settings)
        matcher = matcher if language.english else matcher.in_language(language)
        log.info("%s", matcher.told())

        def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
            grounds = Grounds(
                matcher, recognise, lambda: settings.retriever.make(load_passages(settings)), folder
            )
            if lm is not None:
                lm.skip_too_long()
            return cls(
                lm, topics, settings.judge.make(grounds), recognise, settings.prompt.make(), needs, folder,
                unit=unit, units_judged=settings.judge_units, max_new_tokens=settings.max_new_tokens,
                answers=settings.answers_per_prompt, temperature=settings.temperature, seed=settings.seed,
                part=settings.reads,
            )  # fmt: skip

        named = list(_files(options))
        named += filter(None, (settings.matcher.options["aliases"], settings.matcher.options["vectors"]))
        return Prepared(make, [*files, *named], wordnet_found(settings) | {"language": language.code})

    @property
    def total(self) -> int:
        return len(self.topics) * self.answers

    def units(self) -> Iterator[_Asked]:
        for topic in self.topics:
            for number in range(self.answers):
                self._read += 1
                yield _Asked(topic, number)

    def names(self, units: Sequence[_Asked]) -> list[str]:
        """List each answer's own name, and one for every part that it may have, which is at least a token."""
        return [
            name for asked in units
            for name in (asked.id, *(f"{asked.id}/{self.unit}{n}" for n in range(1, self.max_new_tokens + 1)))
        ]  # fmt: skip

    def unit_of(self, name: str) -> str:
        return self._rows.text_of(name)

    def build(self, units: Sequence[_Asked], known: Mapping[str, int | None]) -> Iterator[Examples]:
        lm = self.lm
        assert lm is not None
        journal = Journal(self.folder / JOURNAL)
        if (read := journal.read()).damaged or read.cut:  # after a kill; those answers are made again
            journal.rewrite(read.records.values())
        done = set(map(self.unit_of, known))
        for number in range(self.answers):
            asked = [one for one in units if one.number == number]
            requests = [
                GenerationRequest(self._bare.question(self._message(one.topic)), self.max_new_tokens, one.id)
                for one in asked
            ]
            drawing = Sampling(self.temperature, seed=self.seed + number) if number else None
            how = Decoding(self._rows.recording, self._bare.prefix, self.prompt.stop, drawing)
            made = {place for place, one in enumerate(asked) if one.id in done}
            for batch in lm.generate_each(requests, how, known=made):
                written = {asked[place]: generation for place, generation in batch.items()}
                examples, lines = self._judged(written)
                journal.append(lines)
                yield examples

    def _message(self, topic: Topic) -> str:
        """Write the prompt as the user does; without an instruction the title begins the text."""
        return topic.prompt or self.prompt.article.format(title=topic.title) or topic.title

    def _judged(self, written: Mapping[_Asked, Generation]) -> tuple[Examples, list[dict[str, Any]]]:
        """Make the rows of a batch once its parts are judged, and its answers as lines of labelled texts."""
        lines = []
        examples = Examples(tokens=sum(len(generation.token_ids) for generation in written.values()))
        marks, answers = dict[_Asked, list[Mark]](), dict[_Asked, Answer]()
        for asked, generation in written.items():
            if not generation.text.strip():
                reason = TOO_LONG if generation.stop == "skipped" else "empty answer"
                examples.leave_out(asked.id, reason)
                continue
            message = self._message(asked.topic)
            part = part_of(generation.text, self.part) or (0, 0)
            found = self._marks(generation, message, asked.topic)
            marks[asked] = [mark for mark in found if part[0] <= mark.start and mark.end <= part[1]]
            units = tuple(mark for mark in marks[asked] if mark.rule not in _UNJUDGED)
            answers[asked] = Answer(
                asked.id, message, generation.text, units, asked.topic.title, asked.topic.reference
            )
        rulings = dict(zip(answers, self.judge.judge(list(answers.values())), strict=True))
        for asked, answer in answers.items():
            judged = dict(zip(answer.units, rulings[asked], strict=True))
            ruled = [_ruled(mark, judged.get(mark)) for mark in marks[asked]]
            lines.append(self._line(asked, answer, [m for m in ruled if m.rule not in _UNJUDGED]))
            self._add(asked, written[asked], lines[-1], ruled, examples)
        return examples, lines

    def _marks(self, generation: Generation, message: str, topic: Topic) -> list[Mark]:
        """Mark the parts of an answer that may be judged; ``rule`` gives the reason against the others."""
        text = generation.text
        sentences, entities = list[Mark](), list[Mark]()
        told, named = set[str](), set[str]()
        told_before = normalise(f"{message} {topic.title}")
        given = set(told_before.split())
        cut = len(text.rstrip()) if generation.stop == "length" else len(text) + 1
        language = language_of(self.recognise)
        for start, end in split_sentences(text, language):
            same = normalise(text[start:end])
            why = _REPEATED if same in told else _CUT if end >= cut else ""
            told.add(same)
            sentences.append(Mark(((start, end),), None, "sentence", why))
            for entity in self.recognise(text[start:end]):
                span = (start + entity.start, start + entity.end)
                name = normalise(entity.text)
                reasons = {
                    _REPEATED: sentences[-1].rule == _REPEATED, _CUT: span[1] >= cut,
                    _PROMPTED: set(name.split()) <= given or (not language.spaced and name in told_before),
                    _BEFORE: name in named,
                }  # fmt: skip
                named.add(name)
                why = next((reason for reason, holds in reasons.items() if holds), "")
                entities.append(Mark((span,), None, entity.type, why))
        chosen = {"entities": entities, "sentences": sentences, "both": [*sentences, *entities]}
        return sorted(chosen[self.units_judged], key=lambda mark: mark.ranges)

    def _line(self, asked: _Asked, answer: Answer, marks: Sequence[Mark]) -> dict[str, Any]:
        """Make the line of labelled texts for an answer."""
        message = [{"role": "user", "content": answer.prompt}]
        spans, sentences = (
            [
                {"start": m.start, "end": m.end, "wrong": m.wrong, "type": m.type, "rule": m.rule,
                 "evidence": m.evidence}
                for m in marks if (m.type == "sentence") is whole
            ]
            for whole in (False, True)
        )  # fmt: skip
        writer = "" if self.lm is None else self.lm.spec.id
        return {
            "id": asked.id, **({"messages": message} if self.prompt.chat else {"prompt": answer.prompt}),
            "answer": answer.text, "spans": spans, "sentences": sentences, "outside": "unknown",
            "group": asked.group, "split": asked.split, "writer": writer, "title": asked.topic.title,
        }  # fmt: skip

    def _add(
        self, asked: _Asked, generation: Generation, line: Mapping[str, Any], marks: Sequence[Mark],
        examples: Examples,
    ) -> None:  # fmt: skip
        spans, sentences = (tuple(m for m in marks if (m.type == "sentence") is w) for w in (False, True))
        text = replace(
            read_text(line, asked.id), spans=spans, sentences=sentences, dataset="judged", group=asked.group
        )
        found = text.units(self.unit)
        for number, mark in enumerate(found, 1):
            if mark.wrong is None and self.unit not in ("token", "answer"):
                name = f"{asked.id}/{self.unit}{number}"
                part = " ".join(text.answer[start:end] for start, end in mark.ranges)
                reason = mark.rule if mark.rule in _UNJUDGED else "unknown"
                examples.leave_out(name, reason, written=part, type=mark.type, evidence=mark.evidence)
        if not any(mark.wrong is not None for mark in found):
            examples.leave_out(asked.id, "nothing decided in the answer")
            return
        about = {"condition": "generated", "title": asked.topic.title}
        self._rows.add(text, asked.id, generation, about, examples)

    def conclude(self, store: FeatureStore) -> list[str]:
        """Write the judged answers in the order of the run, each once, as a kill may have left two."""
        journal = self.folder / JOURNAL
        if not journal.exists():  # concluded before
            return []
        found = {line["id"]: line for line in Journal(journal).read().records.values()}
        ids = (_Asked(topic, number).id for topic in self.topics for number in range(self.answers))
        lines = (json.dumps(found[id], ensure_ascii=False) for id in ids if id in found)
        write_text(self.folder / JUDGED, "".join(f"{line}\n" for line in lines))
        journal.unlink()
        return []

    def page(self, store: FeatureStore, about: Mapping[str, str], seed: int) -> str:
        """Make the page on which the verdicts are read and corrected by keyboard."""
        return reading_page(list(TextSource(str(self.folder / JUDGED)).all()), about=about, seed=seed)

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Report figures of the labels, the judge's cost, and the replies that it could not use."""
        figures, line = self._rows.summarise(store, len(store.units))
        without = sum(not topic.reference for topic in self.topics)
        figures |= {"without_reference": without, "judge": self.judge.lines()}
        told = [f"{without:,} of {len(self.topics):,} prompts have no reference article"] if without else []
        return figures, [line, *told, *self.judge.lines()]


def _ruled(mark: Mark, ruling: Ruling | None) -> Mark:
    """Add the verdict to a mark; a mark that was not judged stays as it is."""
    if ruling is None:
        return mark
    return replace(mark, wrong=WRONG[ruling.verdict], rule=ruling.rule or "judge", evidence=ruling.evidence)


def _unit(settings: Datagen) -> Unit:
    """Choose the unit of the examples (UserError: one that no judge supports, or another pool)."""
    unit = unit_for(settings, "span")
    if unit == "claim":
        told = "source=judged has no claims: choose unit=span, sentence, answer or token"
        raise UserError(told, "conflict")
    if unit in ("answer", "token") and "predicting" in settings.pool:
        raise UserError(f"unit={unit} has no pool=predicting: give unit=span or sentence", "conflict")
    if settings.answers_per_prompt > 1 and settings.engine != "transformers":
        told = f"answers_per_prompt={settings.answers_per_prompt}: engine={settings.engine} cannot draw"
        raise UserError(f"{told}: give engine=transformers, or answers_per_prompt=1", "unsupported")
    if unit == "span" and settings.judge_units == "sentences":
        told = "judge_units=sentences judges no entities: give unit=sentence, or judge_units=both"
        raise UserError(told, "conflict")
    return unit


def _files(value: Any) -> Iterator[str]:
    """List files among the options of judges; a resumed run must find them unchanged."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _files(each)
    elif isinstance(value, str) and Path(value).is_file():
        yield value


def _topics(settings: Datagen) -> tuple[list[Topic], list[str]]:
    """Read the topics, and list their files."""
    if isinstance(settings.limit, Mapping):
        told = f"limit={shown(settings.limit)} is for source=cot: give one number with source=judged"
        raise UserError(told, "conflict")
    source = open_articles(
        settings.articles, limit=None if settings.prompts else settings.limit, seed=settings.seed,
        on_bad_line=settings.on_bad_line, rules=Rules(settings.min_sentences, settings.max_chars),
        wikipedia=plain(settings.wikipedia),
    )  # fmt: skip
    if settings.prompts is None:
        return list(topics_of(source)), [settings.articles]
    file = PromptFile(settings.prompts, settings.limit, settings.seed, settings.on_bad_line)
    topics = file.topics()
    for line in file.left_out.lines():
        log.info("%s", line)
    return with_references(topics, source), [settings.prompts, settings.articles]
