"""Labels of long answers that the model writes: a judge gives verdicts on their parts.

The states are those of the pass that wrote the answer. Entities named before in the prompt or the answer are
not judged, because the model copies them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from probers.checksums import Journal
from probers.cli.components import Component
from probers.cli.inputs import load_matcher, wordnet_found
from probers.cli.settings import plain
from probers.data.texts import Mark, TextSource
from probers.data.texts.base import read_text
from probers.data.topics import PromptFile, Topic, topics_of, with_references
from probers.files import digest, write_text
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Decoding, GenerationRequest, Sampling
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Unit, UserError
from probers.words import EntityMatcher, Recogniser, language_of, normalise
from probers.words.text import split_sentences
from probers.words.thinking import part_of, position_of

from ..judges.base import JUDGED, WRONG, Answer, Grounds, Judge, Ruling
from ..judges.page import reading_page
from ..settings import OfJudged
from .base import JOURNAL, TOO_LONG, Corpus, Inputs, ReadsArticles, Source, component_of, state, unit_for
from .rows import Examples, MarkedRows

log = logging.getLogger(__name__)

#: Reasons for not judging a unit.
_UNJUDGED = _PROMPTED, _BEFORE, _REPEATED, _CUT = (
    "named in the prompt", "named before in the answer", "in a repeated sentence",
    "cut off by max_new_tokens",
)  # fmt: skip


#: Fields of a part in a line of labelled texts.
_ENTRY = ("start", "end", "wrong", "type", "rule", "evidence")


@dataclass(frozen=True, slots=True)
class _Request:
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


@dataclass(frozen=True)
class Prompts(ReadsArticles, Corpus, OfJudged, Source):
    """Prompts, to which the model writes long answers; a judge gives verdicts on their parts.

    Attributes:
        prompts: JSON lines of prompts, or rows of them, which may be texts; None asks about the title of each
            article.
        articles: as of ``Articles``.
        judge: name of a judge, or the judge itself; its unknown verdicts give no label.
    """

    prompts: Any = None
    _: KW_ONLY
    judge: Any = "article"
    topics: Sequence[Topic] = state()
    recognise: Recogniser = state()
    matcher: EntityMatcher = state()
    judges: Judge = state()
    example_unit: Unit = state()
    marked: MarkedRows = state()
    bare: PromptTemplate = state()

    __repr__ = Source.__repr__
    name = "judged"
    item_name = "answer"
    wrong_name = "contradicted"
    pools = ("mean", "last", "mind", "tokens", "predicting")

    def inputs(self) -> Inputs:
        options = self.options
        unit = self._unit()
        topics, files = self._topics()
        judge = component_of("judge", self.judge) if isinstance(self.judge, (str, Component)) else None
        given = {} if judge is None else judge.options
        if given.get("passages"):
            files += self.corpus_files
        elif judge and judge.target.endswith("ArticleJudge") and not any(t.reference for t in topics):
            message = "judge=article compares with articles, and no prompt has one"
            raise UserError(f"{message}: give articles=FILE, or judge.passages=3", "missing-value")
        language = self.language_of_topics(topics)
        if not language.english and "probers.datagen.judges.article." in json.dumps(plain(judge)):
            message = f"judge=article reads facts of English, the language is {language.name}"
            raise UserError(f"{message}: choose judge=openai or hand", "unsupported")
        recognise = self.recogniser_in(language)
        matcher = load_matcher(options)
        matcher = matcher if language.english else matcher.in_language(language)
        log.info("%s", matcher.described())
        position = {"span": "entity", "answer": position_of(self.reads)}.get(unit, unit)
        self.keep(topics=topics, recognise=recognise, matcher=matcher, example_unit=unit, position=position)
        named = (options.matcher.options["aliases"], options.matcher.options["vectors"])
        record = wordnet_found(options) | {"language": language.code} | self.articles_read
        if not isinstance(self.prompts, (str, Path, type(None))):
            record["prompts_read"] = digest(repr([(topic.id, topic.prompt, topic.title) for topic in topics]))
        return Inputs([*files, *_files(given), *filter(None, named)], record)

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        super().begin(lm, needs, folder)
        judge = self.judge
        if isinstance(judge, (str, Component)):
            retriever = lambda: self.open_retriever(self.options)()  # noqa: E731
            grounds = Grounds(self.matcher, self.recognise, retriever, folder, lm)
            judge = component_of("judge", judge).make(grounds)
        if lm is not None:
            lm.skip_too_long()
        bare = self.prompt if lm is None else self.prompt.bare(lm)
        self.keep(judges=judge, marked=MarkedRows(self.example_unit, needs, self.reads), bare=bare)

    def _unit(self) -> Unit:
        """Choose the unit of the examples (UserError: one that no judge supports, or another pool)."""
        options, unit = self.options, unit_for(self.options, self.unit, "span")
        if unit == "claim":
            raise UserError("source=judged has no claims: give span, sentence, answer or token", "conflict")
        if unit in ("answer", "token") and "predicting" in options.pools:
            raise UserError(f"unit={unit} has no pool=predicting: give unit=span or sentence", "conflict")
        if self.answers_per_prompt > 1 and options.engine != "transformers":
            message = f"answers_per_prompt={self.answers_per_prompt}: engine={options.engine} cannot draw"
            raise UserError(f"{message}: give engine=transformers, or answers_per_prompt=1", "unsupported")
        if unit == "span" and self.judge_units == "sentences":
            message = "judge_units=sentences judges no entities: give unit=sentence, or judge_units=both"
            raise UserError(message, "conflict")
        return unit

    def _topics(self) -> tuple[list[Topic], list[str]]:
        options, limit = self.options, self.one_limit()
        prompts = self.prompts
        source = self.open(options, limit if prompts is None else None)
        if prompts is None:
            return list(topics_of(source)), self.article_files
        file = PromptFile(prompts, limit, options.seed, options.on_bad_line)
        topics = file.topics()
        for line in file.left_out.lines():
            log.info("%s", line)
        files = [str(prompts)] if isinstance(prompts, (str, Path)) else []
        return with_references(topics, source), [*files, *self.article_files]

    @property
    def total(self) -> int:
        return len(self.topics) * self.answers_per_prompt

    def units(self) -> Iterator[_Request]:
        return (_Request(topic, n) for topic in self.topics for n in range(self.answers_per_prompt))

    def place(self, span: str) -> tuple[int, str]:
        return 0, self.marked.text_of(span)

    def examples(self, lm: CausalLM, units: Sequence[_Request]) -> Iterator[Examples]:
        journal = Journal(self.folder / JOURNAL)
        journal.resume()  # after a kill; answers that it lacks are made again
        for number in range(self.answers_per_prompt):
            answers = [one for one in units if one.number == number]
            limit = self.options.max_new_tokens
            prompts = ((self.bare.question(self._message(one.topic)), one.id) for one in answers)
            requests = [GenerationRequest(text, limit, id) for text, id in prompts]
            drawing = Sampling(self.temperature, seed=self.options.seed + number) if number else None
            how = Decoding(self.marked.recording, self.bare.prefix, self.prompt.ends, drawing)
            for batch in lm.generate_each(requests, how):
                examples, lines = self._judged({answers[place]: written for place, written in batch.items()})
                journal.append(lines)
                yield examples

    def _message(self, topic: Topic) -> str:
        """Write the prompt as the user does; without an instruction the title begins the text."""
        return topic.prompt or self.prompt.article.format(title=topic.title) or topic.title

    def _judged(self, written: Mapping[_Request, Generation]) -> tuple[Examples, list[dict[str, Any]]]:
        """Make the rows of a batch once its parts are judged, and its answers as lines of labelled texts."""
        lines = []
        examples = Examples(tokens=sum(len(generation.token_ids) for generation in written.values()))
        answers: list[tuple[_Request, Answer, list[Mark]]] = []
        for request, generation in written.items():
            if not generation.text.strip():
                examples.leave_out(request.id, TOO_LONG if generation.stop == "skipped" else "empty answer")
                continue
            message = self._message(request.topic)
            start, end = part_of(generation.text, self.reads) or (0, 0)
            everywhere = self._marks(generation, message, request.topic)
            marks = [mark for mark in everywhere if start <= mark.start and mark.end <= end]
            units = tuple(mark for mark in marks if mark.rule not in _UNJUDGED)
            about = request.topic.title, request.topic.reference
            answers.append((request, Answer(request.id, message, generation.text, units, *about), marks))
        rulings = self.judges.judge([answer for _, answer, _ in answers])
        for (request, answer, marks), given in zip(answers, rulings, strict=True):
            judged = dict(zip(answer.units, given, strict=True))
            ruled = [_ruled(mark, judged.get(mark)) for mark in marks]
            lines.append(self._line(request, answer, [m for m in ruled if m.rule not in _UNJUDGED]))
            self._add(request, written[request], lines[-1], ruled, examples)
        return examples, lines

    def _marks(self, generation: Generation, message: str, topic: Topic) -> list[Mark]:
        """Mark the parts of an answer that may be judged; ``rule`` gives the reason against the others."""
        text = generation.text
        sentences, entities = list[Mark](), list[Mark]()
        earlier, named = set[str](), set[str]()
        prompt = normalise(f"{message} {topic.title}")
        given = set(prompt.split())
        cut = len(text.rstrip()) if generation.stop == "length" else len(text) + 1
        language = language_of(self.recognise)
        for start, end in split_sentences(text, language):
            same = normalise(text[start:end])
            why = _REPEATED if same in earlier else _CUT if end >= cut else ""
            earlier.add(same)
            sentences.append(Mark(((start, end),), None, "sentence", why))
            for entity in self.recognise(text[start:end]):
                span = (start + entity.start, start + entity.end)
                name = normalise(entity.text)
                reasons = {
                    _REPEATED: sentences[-1].rule == _REPEATED, _CUT: span[1] >= cut,
                    _PROMPTED: set(name.split()) <= given or (not language.spaced and name in prompt),
                    _BEFORE: name in named,
                }  # fmt: skip
                named.add(name)
                why = next((reason for reason, holds in reasons.items() if holds), "")
                entities.append(Mark((span,), None, entity.type, why))
        chosen = {"entities": entities, "sentences": sentences, "both": [*sentences, *entities]}
        return sorted(chosen[self.judge_units], key=lambda mark: mark.ranges)

    def _line(self, request: _Request, answer: Answer, marks: Sequence[Mark]) -> dict[str, Any]:
        message = [{"role": "user", "content": answer.prompt}]
        spans, sentences = list[dict[str, Any]](), list[dict[str, Any]]()
        for mark in marks:
            entry = {name: getattr(mark, name) for name in _ENTRY}
            (sentences if mark.type == "sentence" else spans).append(entry)
        writer = "" if self.lm is None else self.lm.spec.id
        return {
            "id": request.id, **({"messages": message} if self.prompt.chat else {"prompt": answer.prompt}),
            "answer": answer.text, "spans": spans, "sentences": sentences, "outside": "unknown",
            "group": request.group, "split": request.split, "writer": writer, "title": request.topic.title,
        }  # fmt: skip

    def _add(
        self, request: _Request, generation: Generation, line: Mapping[str, Any], marks: Sequence[Mark],
        examples: Examples,
    ) -> None:  # fmt: skip
        spans, sentences = (tuple(m for m in marks if (m.type == "sentence") is w) for w in (False, True))
        text = read_text(line, request.id)
        text = replace(text, spans=spans, sentences=sentences, dataset="judged", group=request.group)
        units = text.units(self.example_unit)
        for number, mark in enumerate(units, 1):
            if mark.wrong is None and self.example_unit not in ("token", "answer"):
                name = f"{request.id}/{self.example_unit}{number}"
                part = " ".join(text.answer[start:end] for start, end in mark.ranges)
                reason = mark.rule if mark.rule in _UNJUDGED else "unknown"
                examples.leave_out(name, reason, written=part, type=mark.type, evidence=mark.evidence)
        if all(mark.wrong is None for mark in units):
            examples.leave_out(request.id, "nothing decided in the answer")
            return
        about = {"condition": "generated", "title": request.topic.title}
        self.marked.add(text, request.id, generation, about, examples)

    def conclude(self, store: FeatureStore) -> list[str]:
        """Write the judged answers in the order of the run, each once, as a kill may have left two."""
        journal = self.folder / JOURNAL
        if not journal.exists():  # concluded before
            return []
        lines = {line["id"]: line for line in Journal(journal).read().records.values()}
        ordered = (lines[unit.id] for unit in self.units() if unit.id in lines)
        texts = (f"{json.dumps(line, ensure_ascii=False)}\n" for line in ordered)
        write_text(self.folder / JUDGED, "".join(texts))
        journal.unlink()
        return []

    def page(self, store: FeatureStore, about: Mapping[str, str], seed: int) -> str:
        """Make the page on which the verdicts are read and corrected by keyboard."""
        return reading_page(list(TextSource(str(self.folder / JUDGED)).all()), about=about, seed=seed)

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Report figures of the labels, the judge's cost, and the replies that it could not use."""
        figures, line = self.marked.summarise(store, len(store.units))
        without = sum(not topic.reference for topic in self.topics)
        figures |= {"without_reference": without, "judge": self.judges.lines()}
        notes = [f"{without:,} of {len(self.topics):,} prompts have no reference article"] if without else []
        return figures, [line, *notes, *self.judges.lines()]


def _ruled(mark: Mark, ruling: Ruling | None) -> Mark:
    """Add the verdict to a mark; a mark that was not judged stays as it is."""
    if ruling is None:
        return mark
    return replace(mark, wrong=WRONG[ruling.verdict], rule=ruling.rule or "judge", evidence=ruling.evidence)


def _files(value: Any) -> Iterator[str]:
    """List files among the options of judges; a resumed run must find them unchanged."""
    value = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(value, (list, tuple)):
        yield from chain.from_iterable(map(_files, value))
    elif isinstance(value, str) and Path(value).is_file():
        yield value
