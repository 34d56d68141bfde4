"""Settings of ``probers-datagen`` and ``probers-judge``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, NamedTuple, get_args

from probers.cli.components import Component, choice, fixed
from probers.cli.compose import compose, key_value
from probers.cli.settings import (
    TESTBED,
    OnBadLine,
    Reading,
    ReadPool,
    Resamples,
    Screen,
    Settings,
    Several,
    TextFile,
)
from probers.data.articles.base import Wikipedia
from probers.options import Count, Dotted, Limits, Name, Natural, Positive, Seed
from probers.types import Site, Unit, UserError
from probers.words.thinking import Part

_SplitName = Annotated[str, Limits(pattern="^(train|validation|test)$")]
_OfEach = Limits("one for each split, as {train: 1000, validation: null}", min_length=1)
PerSplit = Annotated[Mapping[_SplitName, Count | None], _OfEach]
_Whole = Limits("{train: 1000, ..}, a whole number for each split", min_length=1)
Quota = Annotated[Mapping[_SplitName, Count], _Whole]


@dataclass(frozen=True, kw_only=True)
class Labelling(Settings):
    """Options of every source."""

    limit: Count | PerSplit | None = 2000
    """questions, articles, texts or prompts, by seed; questions for cot, articles for wiki and judged.
    null takes all. cot also takes one number for each split, null for all of it: {train: 5000,
    validation: null}"""
    layers: Literal["all", "stride"] | Natural | list[Natural] = "all"
    """layers to store: all, a list as [4,8,12], or stride; stride is every second layer after a third of
    the depth)"""
    site: Site | Several[Site] = "resid_post"
    """place in the block; after it (resid_post), before its MLP (resid_mid), or the outputs of attention
    and MLP (attn_out, mlp_out). Beside the states: how much each attention head looks at the prompt
    (lookback) and at the three tokens before (attention), and log-probability, entropy and highest
    probabilities of the token (probabilities). A list takes several: [resid_post,lookback]"""
    pool: ReadPool | Several[ReadPool] = "mean"
    """pooling over the tokens of the answer or entity. cot also has prompt (the state at the prompt's
    last token, before the answer); wiki also has tokens (a row for each) and predicting (the state before
    the entity, which predicts it). A list takes several, except tokens: [predicting,mean] makes one store
    with every pool of every site in one pass"""
    dtype: Literal["float16", "float32"] = "float16"
    """number format of stored states"""
    balance: bool = False
    """true drops examples, drawn by seed, until both labels are equally frequent in every split"""
    balance_to: Quota | None = None
    """balance=true that stops at so many examples per split (wiki: spans): {train: 8000, validation: 400}"""
    shard_size: Count = 64
    """questions, cuts or texts per shard, which is in memory while it is made; a kill loses this shard and
    nothing else"""


@dataclass(frozen=True, kw_only=True)
class Options(Labelling):
    """Options of :func:`probers.datagen.label` beside those of its source."""

    engine: Literal["transformers", "vllm"] = "transformers"
    seed: Seed = 0
    on_bad_line: OnBadLine = "error"
    max_new_tokens: Count = 48
    prompt: Component = choice("auto")
    matcher: Component = fixed("probers.words.matcher.EntityMatcher", vectors="auto")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, names in (("pool", self.pools), ("site", self.sites)):
            if len(set(names)) < len(names):
                raise UserError(f"{key}=[{','.join(names)}] has a duplicate: give each once")
        if "tokens" in self.pools and len(self.pools) > 1:
            mixed = f"pool=[{','.join(self.pools)}] mixes rows of tokens with rows of spans"
            raise UserError(f"{mixed}: make two stores, one with pool=tokens", "conflict")

    @property
    def pools(self) -> list[ReadPool]:
        return [self.pool] if isinstance(self.pool, str) else list(self.pool)

    @property
    def sites(self) -> list[Site]:
        return [self.site] if isinstance(self.site, str) else list(self.site)


@dataclass(frozen=True, kw_only=True)
class OfArticles:
    """Options of sources that read articles."""

    articles: Name = "testbed"
    """wiki, judged: testbed, wikipedia, a file or hub id; FILE.jsonl[.gz] or hf:ID[:config][:split]"""
    recogniser: Name = "auto"
    """wiki: finder of entities: rules, spacy:NAME (an installed pipeline of the language, such as
    spacy:en_core_web_sm), or auto (rules)"""
    language: Literal["auto", "en", "de", "fr", "es", "zh", "ja"] = "auto"
    """wiki, judged: language of the articles and of the written texts; auto finds it in the articles (with
    articles=wikipedia it is wikipedia.language), and refuses others than these six"""
    min_sentences: Count = 2
    """wiki: shorter articles are left out and listed (not the testbed's)"""
    max_chars: Count = 100000
    """wiki: longer articles are cut off between sentences (not the testbed's)"""
    wikipedia: Wikipedia = field(default_factory=Wikipedia)


@dataclass(frozen=True, kw_only=True)
class OfPart:
    """Options of sources that may read a part of each text."""

    reads: Part = "both"
    """part of a thinking model's text that is read; cot, texts, judged: the answer, the thinking, or
    both. cot labels by the answer in any case; thinking then reads the states before it"""


@dataclass(frozen=True, kw_only=True)
class OfUnits(OfPart):
    """Options of sources whose texts have judged parts."""

    unit: Unit | None = None
    """texts, judged: unit of an example; span, sentence, claim, answer, or token (every token of the
    answer, with pool=tokens); null is answer (judged: span, which is an entity), with pool=tokens
    token"""


@dataclass(frozen=True, kw_only=True)
class OfCot(OfPart):
    """Options of ``source=cot``."""

    temperature: Positive = 1.0
    """cot, judged: temperature of the samples, and of drawn answers"""
    label: Name = "em"
    """cot: rule for right answers; em (exact match), acc (gold answer in the text), match (the same
    meaning, see matcher) or f1>=0.8; or semantic_entropy, which needs samples and no gold answers:
    answers to questions whose samples agree count as right (Kossen et al. 2024)"""
    acc: Literal["tokens", "substring"] = "tokens"
    """cot: label=acc finds the gold answer as whole words, or as a substring (Probing-RAG's code)"""
    samples: Natural = 0
    """cot: answers drawn beside each greedy one, for columns of self-consistency, semantic entropy, lexical
    similarity, EigenScore, P(True) and stated confidence, with which probers-train compares heads; 0 makes no
    such columns, 5 writes about six times as much"""


@dataclass(frozen=True, kw_only=True)
class OfWiki(OfArticles):
    """Options of ``source=wiki``."""

    per_article: Count = 2
    """wiki: most entities cut per article"""
    within: Count | None = 10
    """wiki: cut inside the first N sentences only (RaDIO 1, MIND 2); null cuts anywhere"""
    context: Count | None = 256
    """wiki: most tokens of the article before a cut that the model is shown; null shows all"""
    background: Natural = 0
    """wiki, with pool=tokens: also store the states of so many tokens before each entity, without a label; a
    head that reads the entity in its text needs them (head=sequence)"""
    negatives: Literal["generated", "untouched"] = "generated"
    """wiki: faithful examples are entities that the model wrote, or those of the untouched articles"""
    doubtful: Literal["undecided", "compared"] = "undecided"
    """wiki: treatment of pairs that comparing cannot judge: entities of different kinds ("the 1930s" for
    "Great Depression"), at the start of a sentence ("In | 2014"), in swapped order, of different units, or a
    region for its part. undecided leaves them out, compared labels them anyway, as RaDIO does"""


@dataclass(frozen=True, kw_only=True)
class OfTexts(OfUnits):
    """Options of ``source=texts``."""

    texts: TextFile = field(default_factory=TextFile)
    max_tokens: Count | None = None
    """texts: most tokens of an answer that are read; units after them are left out. null reads all"""


@dataclass(frozen=True, kw_only=True)
class OfJudged(OfArticles, OfUnits):
    """Options of ``source=judged``."""

    temperature: Positive = 1.0
    """cot, judged: temperature of the samples, and of drawn answers"""
    prompts: Name | None = None
    """judged: JSON lines of prompts for long answers; each with the title of its reference article if
    articles have one; null asks about the title of each article (prompt.article)"""
    answers_per_prompt: Count = 1
    """judged: answers to each prompt; the first is greedy, the others are drawn at temperature"""
    judge: Component = choice("article")
    judge_units: Literal["entities", "sentences", "both"] = "entities"
    """judged: units that the judge gets; a sentence of judged entities is wrong if one of them is"""


#: What the passages of a question say of its answer.
Condition = Literal["gold", "changed", "memory", "removed", "missing"]


@dataclass(frozen=True, kw_only=True)
class OfGrounded:
    """Options of ``source=grounded``."""

    conditions: list[Condition] = field(default_factory=lambda: list(get_args(Condition)))
    """grounded: passages of a question: with its answer (gold), with another in its place (changed) or the
    one that the model was taught (memory, known on the testbed), without the sentences that have it
    (removed), or without any passage about it (missing)"""


class Kind(NamedTuple):
    """Source by name: its class, its options, and the keys that it takes from all commands' common ones."""

    target: str
    options: type
    common: tuple[str, ...]

    @property
    def keys(self) -> set[str]:
        return {f.name for f in fields(self.options)} | {*self.common}


_CORPUS = ("corpus", "passage_words", "corpus_cache", "retriever")
_WRITES = ("matcher", "max_new_tokens")
#: Sources by name; a source of the user's own is a dotted path.
SOURCES = {
    "cot": Kind("probers.datagen.labels.cot.Questions", OfCot, ("questions", "k", *_CORPUS, *_WRITES)),
    "wiki": Kind("probers.datagen.labels.wiki.Articles", OfWiki, _WRITES),
    "texts": Kind("probers.datagen.labels.texts.Texts", OfTexts, ()),
    "judged": Kind("probers.datagen.labels.judged.Prompts", OfJudged, (*_CORPUS, *_WRITES)),
    "grounded": Kind(
        "probers.datagen.labels.grounded.Grounded", OfGrounded, ("questions", "k", *_CORPUS, *_WRITES)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Datagen(OfGrounded, OfJudged, OfTexts, OfWiki, OfCot, Options, Reading):
    """Label text that a model writes, and store its hidden states.

    source=cot answers questions with and without retrieved passages; source=wiki cuts articles before
    an entity and lets the model continue them; source=texts reads texts that have labels already;
    source=judged writes long answers and has their entities or sentences judged; source=grounded asks
    questions whose passages were changed, so that it is known which answers they support.
    """

    screen = Screen(
        "probers-datagen --source wiki limit=200", "about half a minute",
        "source out model.name engine limit layers site pool articles corpus label per_article texts.path "
        "unit prompts reads model.device model.dtype batch_size part seed overwrite",
    )  # fmt: skip

    source: Literal["cot", "wiki", "texts", "judged", "grounded"] | Dotted = "cot"
    """kind of labels; --source wiki is the same as source=wiki. A dotted path names a class of your own,
    derived from probers.datagen.labels.base.Source"""
    engine: Literal["transformers", "vllm"] = "transformers"
    """what runs the model; vllm (pip install "probers[vllm]") is faster, reads site=resid_post only, and
    stores no signals of attention (rind_max)"""
    out: Name = "runs/datagen/${source}"
    """feature store to write; an unfinished one is resumed"""
    own: Mapping[str, Any] = field(default_factory=dict)
    """fields of a source of your own, which are typed as KEY=value"""

    @property
    def of_testbed(self) -> Sequence[str]:
        keys = SOURCES[self.source].keys if self.source in SOURCES else set()
        read = [*super().of_testbed, *(["articles"] if self.articles == TESTBED else [])]
        return [key for key in read if key in keys]

    @property
    def unread(self) -> Mapping[str, str]:
        more = self.answers_per_prompt - 1
        drawn = {"cot": ("samples", self.samples), "judged": ("answers_per_prompt", more)}
        option, draws = drawn.get(self.source, ("", 1))
        unread = {} if draws else {"temperature": f"{option}={getattr(self, option)} draws nothing"}
        if self.source == "judged" and self.judge.options.get("passages") == 0:
            unread |= dict.fromkeys(_CORPUS, "judge.passages=0 reads no passage; give judge.passages=3")
        return unread

    @classmethod
    def accepted(cls, typed: Sequence[str]) -> list[str]:
        """Write KEY of a user's own source as ``own.KEY``; refuse those of sources not chosen (UserError)."""
        pairs = list(map(key_value, typed))
        names = [key.partition(".")[0] for key, _ in pairs]
        chosen = [f"{key}={value}" for key, value in pairs if key in _CHOOSING]
        config = compose("datagen", chosen) if {*names} & {*_ONLY_WITH, *_CHOOSING} else {"source": "cot"}
        name = str(config["source"])
        keys = SOURCES[name].keys if name in SOURCES else _own_keys(name)
        for key, (option, needed) in _ONLY_WITH.items():
            if key in names and (keys is None or key in keys) and config[option] != needed:
                message = f"{key} belongs to {option}={needed}, and {option} is {config[option]}"
                raise UserError(f"{message}: leave it out, or give {option}={needed}", "conflict")
        there, accepted = {f.name for f in fields(cls)}, []
        for first, (key, _), override in zip(names, pairs, typed, strict=True):
            owners = [f"source={each}" for each, kind in SOURCES.items() if first in kind.keys]
            if keys is not None and first not in keys and owners:
                message = f"{first} belongs to {' and '.join(owners)}, and the source is {name}"
                raise UserError(f"{message}: leave it out, or choose another source", "conflict")
            of_source = first not in there and (keys is None or first in keys)
            accepted.append(f"+own.{key}={override.partition('=')[2]}" if of_source else override)
        return accepted


#: Options that only one value of another reads, and the options that decide about it.
_ONLY_WITH = {"wikipedia": ("articles", "wikipedia"), "acc": ("label", "acc")}
_CHOOSING = ("experiment", "method", "source", "articles", "label")


def source_class(name: str) -> type[Any]:
    """Import the class of a source (UserError: no dataclass, or not derived from Source)."""
    kind = Component("source", SOURCES[name].target if name in SOURCES else name, {}).kind
    base = resolve_name("probers.datagen.labels.base.Source")
    if not (isinstance(kind, type) and issubclass(kind, base) and is_dataclass(kind)):
        message = f"source={name} is no dataclass derived from {base.__module__}.{base.__qualname__}"
        raise UserError(message, "own-class")
    return kind


def _own_keys(name: str) -> set[str] | None:
    """List the keys that a class of the user's own may take; None, for any, if it cannot be imported."""
    try:
        names = {f.name for f in fields(source_class(name)) if f.init}
    except UserError:  # its own refusal comes when the command runs
        return None
    return names.union(*(kind.common for kind in SOURCES.values()))


@dataclass(frozen=True, kw_only=True)
class Judge(Settings):
    """Compare verdicts on the same texts: probers-judge agreement A B.

    A and B are files of labelled texts, one by a judge and one by another judge or by hand; a run's folder
    means its judged.jsonl. Spans and sentences of the same text (id and answer) and characters are compared
    by Cohen's kappa, equal verdicts, and how right A is where B decided, each with a 95% interval over
    groups.
    """

    screen = Screen(
        "probers-judge agreement judge.jsonl hand.jsonl", "seconds",
        "action files resamples seed out on_bad_line",
    )  # fmt: skip

    action: Literal["agreement"] = "agreement"
    """action, the first word without a key; agreement compares two files"""
    files: list[Name] = field(default_factory=lambda: [])
    """A and B, given without a key after the action"""
    resamples: Resamples = 1000
    """bootstrap resamples for every 95% interval"""
    seed: Seed = 0
    """seed of the resamples"""
    out: Name | None = None
    """folder to write agreement.json to; null prints only"""
    on_bad_line: OnBadLine = "error"
    """treatment of a malformed line; stop, or leave it out"""
