"""Interface of a source of labelled examples: a dataclass of options, its inputs, and its labels."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, is_dataclass
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar

from probers.cli.components import Component
from probers.cli.inputs import load_passages, question_source
from probers.cli.settings import TextFile, plain
from probers.data.articles import ArticleSource, Rules, open_articles
from probers.data.questions import QuestionSet, QuestionSource, make_source, open_questions
from probers.data.questions.jsonl import Given
from probers.data.rows import FIELDS, records_of
from probers.data.topics import Topic
from probers.files import digest
from probers.model.causal_lm import CausalLM
from probers.options import Count, Name, check_keywords, check_value, field_types, shown
from probers.parts import PARTS
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import Needs, Passage, Question, Retriever, Unit, UserError
from probers.words import Language, Recogniser
from probers.words.language import detect, language_named
from probers.words.text import join_sentences

from ..audit import draw, draw_undecided, sample_html
from ..settings import Datagen, OfArticles, Options
from .rows import Examples

log = logging.getLogger(__name__)

Made = TypeVar("Made", bound="Source")

#: Number of articles that are looked at, the first of those drawn.
_LOOK = 200
#: Number of prompts that make one text; alone they are too short.
_PROMPTS = 10

#: Files of word vectors trained on the run's articles, and of their checksum.
VECTORS = ("vectors.bin", "vectors.json")
#: Journal of the judged answers of ``--source judged``, in the order in which they are made.
JOURNAL = "judged.unfinished.jsonl"
#: Reasons for leaving out a prompt that the model skipped, and a question without a passage that fits.
TOO_LONG = "too long: the prompt exceeds the model's context"
NO_ROOM = "no passage fits: the context is too short for any that was found"


def state() -> Any:
    """Make a field for what a source keeps of a run."""
    return field(init=False, repr=False, compare=False)


class Inputs(NamedTuple):
    """Files that a source has read, and further data; a resumed run must find both unchanged."""

    files: Sequence[str] = ()
    record: Mapping[str, Any] = {}


class Source(ABC):
    """Source of labelled examples; derived classes are dataclasses, whose fields are its options.

    Attributes:
        name: name that users type; the dotted path of a class outside the package.
        item_name: name of an item of the progress bar, as "article".
        wrong_name: name of the label 0.
        pools: poolings for which it has states.
        balance_by: columns; labels are balanced for each of their values, "split" first.
        parts: number of values of the other columns within a split.
        position: tokens that are read, for the FeatureSpec.
        options: options that all sources share.
        lm: model; None if the examples exist already and :meth:`examples` is not called.
        needs: features of the store.
        folder: folder of the run.
        prompt: prompt template; a chat prompt is bound to the model's own template.
        items: number of items read so far, for the progress bar.
        notices: what was left out, guessed or unusual in the inputs that :meth:`plan` read.
    """

    name: ClassVar[str] = "own"
    item_name: ClassVar[str]
    wrong_name: ClassVar[str]
    pools: ClassVar[tuple[str, ...]]
    balance_by: ClassVar[tuple[str, ...]] = ("split",)
    parts: ClassVar[int] = 1
    position: str
    options: Options
    lm: CausalLM | None
    needs: Needs
    folder: Path
    prompt: PromptTemplate
    items: int
    notices: Sequence[str] = ()

    def __new__(cls, *given: Any, **options: Any) -> Source:
        """Refuse an unknown option by name, a column with the way to give it (UserError)."""
        for name in options.keys() & FIELDS.keys():
            known = getattr(cls, "__dataclass_fields__", {})
            if "columns" in known and name not in known:
                message = f"{cls.__name__} has no option {name!r}: name the column of a field by"
                raise UserError(f"{message} columns={{{name!r}: {options[name]!r}}}", "unknown-key")
        check_keywords(cls, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            value = getattr(self, name)
            if hint is not Any and isinstance(value, (str, int, float, list, tuple, type(None))):
                check_value(name, value, hint)

    def __repr__(self) -> str:
        changed = []
        for option in fields(self):  # type: ignore[arg-type]
            default = option.default if option.default_factory is MISSING else option.default_factory()
            value = getattr(self, option.name) if option.init else default
            simple = isinstance(value, (str, int, float, type(None)))
            if value is not default and not ((simple or is_dataclass(value)) and value == default):
                changed.append(f"{option.name}={value!r}" if simple else f"{option.name}={_short(value)}")
        return f"{type(self).__name__}({', '.join(changed)})"

    @classmethod
    def read(cls: type[Made], settings: Datagen) -> Made:
        """Make the source that the settings of the command describe."""
        names = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]
        given = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        if "passages" in names:
            given["passages"] = settings.corpus
        if isinstance(texts := given.get("texts"), TextFile):
            given |= {"texts": texts.path}
            beside = ("columns", "format", "outside")
            given |= {name: getattr(texts, name) for name in beside if name in names}
        return cls(**given, **settings.own)

    def plan(self, options: Options) -> Inputs:
        """Check the options and read the inputs, before any model is loaded (UserError)."""
        self.keep(options=options, prompt=options.prompt.make(), items=0)
        if unknown := [pool for pool in options.pools if pool not in self.pools]:
            message = f"source={self.name} has no pool={unknown[0]}: choose {', '.join(self.pools)}"
            raise UserError(message, "unknown-choice")
        return self.inputs()

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        """Take the model (None for a merge, which has the examples) for the work of a run in ``folder``."""
        bound = self.prompt if lm is None else self.prompt.bind(lm.tokenizer)
        self.keep(lm=lm, needs=needs, folder=folder, prompt=bound)

    @property
    def rendered(self) -> str:
        """Fingerprint of the form of the prompts that the model reads, for the FeatureSpec."""
        return self.prompt.fingerprint

    def keep(self, **state: Any) -> None:
        """Keep attributes of a run beside the options, which stay as they are."""
        vars(self).update(state)

    def one_limit(self) -> int | None:
        """Return the limit of a source that draws before texts are split (UserError: a limit by split)."""
        if isinstance(limit := self.options.limit, Mapping):
            message = f"limit={shown(limit)} is for source=cot: give one number with source={self.name}"
            raise UserError(f"{message}, or balance_to", "conflict")
        return limit

    @abstractmethod
    def inputs(self) -> Inputs:
        """Check the source's own options and read its inputs (UserError)."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """Largest possible number of items, None if unknown."""

    def rows(self) -> int | None:
        """Estimate the rows of the store; None if only the model's texts show their number."""
        return None

    @abstractmethod
    def units(self) -> Iterator[Any]:
        """Yield the pieces of work once, in an order that depends on the options only.

        Each has ``group``, ``split``, and an ``id`` by which finished work is known.
        """

    @abstractmethod
    def examples(self, lm: CausalLM, units: Sequence[Any]) -> Iterator[Examples]:
        """Generate for the units of a shard and label the results, batch by batch as the model makes them."""

    def items_of(self, units: int) -> int:
        """Return the number of items that were read for the first so many units."""
        return units

    def place(self, span: str) -> tuple[int, str]:
        """Return the round of a shard in which a span stands, and its unit's id: the order of rows."""
        return 0, span

    def conclude(self, store: FeatureStore) -> list[str]:
        """Set labels that depend on all examples, once these are made; return notes. Repeating is safe."""
        return []

    def page(self, store: FeatureStore, about: Mapping[str, str], seed: int) -> str:
        """Make the page of cases to read before the labels are used."""
        undecided = draw_undecided(store.left_out(), seed=seed)
        return sample_html(draw(store, seed=seed), about=about, undecided=undecided)

    @abstractmethod
    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Make figures for the manifest and lines to print, from all rows and the work left out."""


def _short(value: Any) -> str:
    """Show rows, passages or an object by kind and number."""
    many = f" of {len(value):,}" if hasattr(value, "__len__") else ""
    return f"<{type(value).__name__}{many}>"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Passages that a source looks up.

    Attributes:
        passages: name of a corpus as in the option ``corpus``, or the passages or texts themselves.
        retriever: a retriever, or the name of one that is made of the passages.
    """

    passages: Any = "testbed"
    passage_words: Count | None = None
    corpus_cache: Name | None = None
    retriever: Any = "bm25"

    def open_retriever(self, options: Options) -> Callable[[], Retriever]:
        """Open the passages; return a function that makes the retriever of them."""
        if not isinstance(self.retriever, (str, Component)):
            return lambda: self.retriever  # type: ignore[no-any-return]
        component = component_of("retriever", self.retriever)
        if isinstance(self.passages, str):
            passages = load_passages(SimpleNamespace(
                retriever=component, corpus=self.passages, on_bad_line=options.on_bad_line,
                passage_words=self.passage_words, corpus_cache=self.corpus_cache,
            ))  # fmt: skip
        else:
            numbered = enumerate(self.passages, 1)
            passages = [t if isinstance(t, Passage) else Passage(str(n), "", t) for n, t in numbered]
        return lambda: component.make(passages)  # type: ignore[no-any-return]

    @property
    def corpus_files(self) -> list[str]:
        existing = isinstance(self.retriever, Component) and self.retriever.get("existing")
        return [self.passages] if isinstance(self.passages, str) and not existing else []


@dataclass(frozen=True)
class AsksQuestions(Corpus, Source):
    """Source that asks questions, with passages that it looks up.

    Attributes:
        questions: a file of questions, the name of a set, a :class:`.QuestionSource`, or rows: texts,
            ``Question`` objects, or what :func:`probers.data.rows.records_of` reads.
        k: number of passages.
    """

    questions: Any = "testbed"
    _: KW_ONLY
    k: Count = 3
    chosen: QuestionSet = state()
    open_passages: Callable[[], Retriever] = state()
    retrieve: Retriever = state()

    item_name = "question"

    def open_questions(self) -> Inputs:
        """Draw the questions (UserError); the passages are opened later, since a corpus may be large."""
        source, options = self.questions, self.options
        if isinstance(source, str):
            path = {} if source in PARTS["questions"] else {"path": source}
            source = Component.of("questions", "file" if path else source, **path)
        elif not isinstance(source, (Component, QuestionSource)):
            source = make_source(source)
        if isinstance(source, Component):
            source = question_source(SimpleNamespace(questions=source, prompt=options.prompt))
        draw = {name: getattr(options, name) for name in ("limit", "seed", "on_bad_line")}
        chosen = open_questions(source, **draw)
        for line in chosen.lines():
            log.info("%s", line)
        self.keep(chosen=chosen)
        record = {"questions_read": digest(repr(source.given))} if isinstance(source, Given) else {}
        return Inputs([*source.files, *self.corpus_files], record)

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        super().begin(lm, needs, folder)
        self.keep(retrieve=None if lm is None else self.open_passages())

    @property
    def total(self) -> int:
        return len(self.chosen.questions)

    def units(self) -> Iterator[Question]:
        return iter(self.chosen.questions)


@dataclass(frozen=True, kw_only=True)
class ReadsArticles(OfArticles):
    """Source that reads articles, which may be rows (:func:`probers.data.rows.records_of`)."""

    articles: Any = "testbed"

    @property
    def article_files(self) -> list[str]:
        return [str(self.articles)] if isinstance(self.articles, (str, Path)) else []

    @property
    def articles_read(self) -> dict[str, str]:
        """Digest of the articles if they are rows, for a run that resumes with the same ones only."""
        if not isinstance(self.articles, list):
            return {}
        return {"articles_read": digest(json.dumps(self.articles, default=str))}

    def open(self, options: Options, limit: int | None) -> ArticleSource:
        """Open the articles anew."""
        if not isinstance(self.articles, (str, Path, list)):  # a generator is read once
            object.__setattr__(self, "articles", records_of(self.articles, None, ("title", "text")))
        return open_articles(
            self.articles, limit=limit, seed=options.seed, on_bad_line=options.on_bad_line,
            rules=Rules(self.min_sentences, self.max_chars), wikipedia=plain(self.wikipedia),
        )  # fmt: skip

    def language_of_articles(self, source: ArticleSource) -> Language:
        """Find the language of articles; ``source`` must be unread (UserError: not supported, or several)."""
        if (chosen := self._chosen_language()) is not None:
            return chosen
        first = list(islice(source.articles, _LOOK))
        source.articles = chain(first, source.articles)
        return detect(join_sentences(article.sentences) for article in first)

    def language_of_topics(self, topics: Sequence[Topic]) -> Language:
        """Find the language of the topics: of the reference articles, or of the prompts without any."""
        texts = [join_sentences(topic.reference) for topic in topics[:_LOOK] if topic.reference]
        prompts = [topic.prompt for topic in topics[:_LOOK] if topic.prompt and not topic.reference]
        blocks = (" ".join(prompts[i : i + _PROMPTS]) for i in range(0, len(prompts), _PROMPTS))
        return self._chosen_language() or detect([*texts, *blocks])

    def _chosen_language(self) -> Language | None:
        """Return the language asked for, or that of the Wikipedia to read; None if it must be found."""
        wikipedia = self.wikipedia.language if self.articles == "wikipedia" else None
        read = "en" if wikipedia == "simple" else wikipedia
        if self.language == "auto":
            return None if read is None else language_named(read, "wikipedia.language")
        if read not in (None, self.language):
            message = f"language={self.language} and wikipedia.language={wikipedia} differ"
            raise UserError(f"{message}: leave language out, as it is that of the Wikipedia", "conflict")
        return language_named(self.language)

    def recogniser_in(self, language: Language) -> Recogniser:
        """Make the requested recogniser in a language (UserError: one for another language)."""
        name = self.recogniser
        code = f":{language.code}" if name in ("rules", "auto") and not language.english else ""
        recognise = Recogniser(f"{name}{code}", fine=True)
        if (other := recognise.language) is not language:
            message = f"recogniser={name} is for {other.name}, and the language is {language.name}"
            raise UserError(f"{message}: name a pipeline of that language, or recogniser=rules", "mismatch")
        return recognise


def component_of(group: str, value: str | Component) -> Component:
    """Return a component, which may be given by name."""
    return Component.of(group, value) if isinstance(value, str) else value


def unit_for(options: Options, unit: Unit | None, default: Unit) -> Unit:
    """Choose the unit of the examples, by default ``default`` (UserError: another pool, or balanced)."""
    tokens = "tokens" in options.pools
    chosen: Unit = unit or ("token" if tokens else default)
    if (chosen == "token") != tokens:
        message = f"unit={chosen} and pool={shown(options.pool)}"
        raise UserError(f"{message}: unit=token and pool=tokens go together", "conflict")
    if chosen == "token" and (options.balance or options.balance_to):
        raise UserError("unit=token has no balance: leave it out, and set span_weight", "conflict")
    return chosen
