"""Entity hallucination labels from articles (RaDIO; MIND for the plain continuation).

An article is cut right before an entity and the model continues it. The entity at the head of its text is
compared with the article's. The states are those of the entity's tokens, from the pass that wrote them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from probers.cli.inputs import wordnet_found
from probers.data.articles.cuts import Cut, CutPlan, natural, shortened
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Decoding, GenerationRequest
from probers.model.tokens import encode_continuation, encode_prompts
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, UserError
from probers.words import Entity, EntityMatcher, Match, Recognise, Recogniser, same_kind, tokens_of
from probers.words.language import ENGLISH, Language
from probers.words.numbers import read_number, same_unit
from probers.words.persons import DIRECTIONS
from probers.words.recogniser import head_entity, language_of
from probers.words.spelling import name_words
from probers.words.text import is_stop_word, join_sentences, split_sentences
from probers.words.vectors import FEW, TooFewError, train_vectors

from ..settings import OfWiki
from .base import TOO_LONG, VECTORS, Inputs, ReadsArticles, Source, state
from .rows import Examples, WrittenSpan, counted, read_again, span_needs, span_rows

log = logging.getLogger(__name__)

#: Values of ``matcher.vectors`` that train vectors on the run's articles: always, or if there are enough.
_OWN, _AUTO = "own", "auto"
#: Number of whole words after an entity beyond which none was seen to extend it ("Duke of the ..").
_TAIL = 3
#: Words that tell nothing yet at the beginning of a sentence.
_OPENING = frozenset(
    """a about after an and around as at before between both but by during early for from if in late mid of
    on over since that the then these this those through throughout to under until when where while
    with""".split()
)
_AS_OF = re.compile(r"\b[Aa]s of$")
_NOUN = re.compile(r"[\s-]([a-z]+)")
#: Next word, by whether words are written with spaces; else the next character that is no kana.
_ANY_NOUN = {True: re.compile(r"[\s-]([^\W\d_]+)"), False: re.compile(r"([\u4e00-\u9fff])")}


def one_sentence(text: str, language: Language = ENGLISH) -> bool:
    """Tell whether to stop: a second sentence has begun."""
    return len(split_sentences(text, language)) > 1


@dataclass(frozen=True, slots=True)
class Settled:
    """Stop rule for when a second sentence has begun, or more text cannot change the entity at the head."""

    recognise: Recognise

    def __call__(self, text: str) -> bool:
        language = language_of(self.recognise)
        if len(language.tail(text)) <= _TAIL:
            return False
        if one_sentence(text, language):
            return True
        entity = head_entity(text, self.recognise)
        # The last word may be incomplete.
        return entity is None or len(language.tail(text[entity.end :])) > _TAIL


def stop_rule(recognise: Recognise, *, cheap: bool) -> Callable[[str], bool]:
    """Choose the stop rule; a recogniser that is not ``cheap`` is not called at every word."""
    return Settled(recognise) if cheap else partial(one_sentence, language=language_of(recognise))


def may_go_on(generation: Generation, entity: Entity, recognise: Recognise) -> bool:
    """Tell whether ``max_new_tokens`` may have cut off the entity at the head of a continuation."""
    if generation.stop != "length":
        return False
    after = generation.text[entity.end :].strip()
    longer = head_entity(f"{generation.text.rstrip()} Xanten", recognise) if after else None
    return longer is None or longer.end != entity.end


def abstain(
    cut: Cut, written: Entity, text: str, match: Match, recognise: Recognise, matcher: EntityMatcher
) -> Match:
    """Return the verdict, or "undecided" if a difference may be true or an equality false.

    Stage "type": a name, a time or a number in place of one of the other two ("during the | 1930s" for "Great
    Depression"). Stage "opening": only a preposition or the like stands before it in its sentence, so that
    the model is free to say something else ("In | 2014, he ..."). Stage "order": the article has it later in
    the same sentence ("born in | Dublin" for "Ballinteer, Dublin"). Stage "modifier": one word before a noun
    in place of a name that stands for itself ("by a | Finnish company" for "Acme"). Stage "region": the whole
    of a part that the article names by a direction ("in | Somerset" for "North Somerset"). Stage "counted": a
    number of something else, either the same ("third | album" for "third wife") or another ("over | 100
    years" for "30,000"). Stage "both": WordNet equates the two, and the article names both.
    """
    language = language_of(recognise)
    article = join_sentences(cut.article.sentences)
    if match.stage == "number" and cut.entity.type == written.type == "number":
        numbers = map(read_number, (cut.entity.text, written.text))
        units = [number.unit if number else "" for number in numbers]
        nouns = _noun(article, cut.entity.end, language), _noun(text, written.end, language)
        counted = [unit or noun for unit, noun in zip(units, nouns, strict=True)]
        known = all(counted) or (match.verdict == "different" and any(units))
        if match.verdict != "undecided" and known and not same_unit(*counted):
            return Match("undecided", "counted", " / ".join(counted))
    if match.stage == "wordnet" and match.verdict == "equivalent":
        names = (cut.entity.text, written.text)
        if all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", article) for name in names):
            return Match("undecided", "both", " / ".join(names))
    if match.verdict != "different":
        return match
    if match.stage != "date" and not same_kind(cut.entity.type, written.type):
        return Match("undecided", "type", f"{cut.entity.type} / {written.type}")
    if language.english:
        modifies = "" if " " in written.text else _noun(text, written.end, language)
        if same_kind(written.type, "name") and modifies and not _noun(article, cut.entity.end, language):
            return Match("undecided", "modifier", f"{written.text} {modifies}")
        part, whole = name_words(cut.entity.text), name_words(written.text)
        if whole == part[1:] and part[0] in DIRECTIONS - {"new"}:
            return Match("undecided", "region", f"{written.text} / {cut.entity.text}")
    start, end = split_sentences(article, language)[cut.sentence]
    opening = article[start : cut.entity.start].split()
    says_nothing = _OPENING if language.english else language.function_words
    if says_nothing.issuperset(word.lower() for word in opening) or _AS_OF.search(cut.before):
        return Match("undecided", "opening", " ".join([*opening[-3:], "|"]))
    for entity in recognise(article[start:end]):
        behind = start + entity.start > cut.entity.start
        if behind and matcher.match(entity.text, written.text).verdict == "equivalent":
            return Match("undecided", "order", f"{entity.text} after {cut.entity.text}")
    return match


def _noun(text: str, end: int, language: Language) -> str:
    """Find the lower-case content word right after ``end``, or "" if another word follows."""
    match = (_NOUN if language.english else _ANY_NOUN[language.spaced]).match(text, end)
    says_nothing = is_stop_word if language.english else language.is_function_word
    return "" if match is None or says_nothing(match[1]) else match[1].lower()


#: End of the name of the article's own span after a cut.
_UNTOUCHED = "/untouched"


@dataclass(frozen=True)
class Articles(ReadsArticles, OfWiki, Source):
    """Articles, cut right before an entity and continued by the model; the entity that it writes is labelled.

    Attributes:
        articles: testbed, FILE.jsonl[.gz], wikipedia, or hf:ID[:config][:split], or rows
            with title and text or sentences (:func:`probers.data.rows.records_of`).
    """

    articles: Any = "testbed"
    _: KW_ONLY
    cuts: CutPlan = state()
    matcher: EntityMatcher = state()
    recognise: Recogniser = state()
    trains: bool = state()
    written: list[WrittenSpan] = state()

    __repr__ = Source.__repr__
    name = "wiki"
    item_name = "article"
    wrong_name = "hallucinated"
    pools = ("mean", "last", "predicting", "tokens", "mind")
    position = "entity"

    def inputs(self) -> Inputs:
        """Check the options, read the articles and make the first cut."""
        options = self.options
        if self.background and options.pools != ["tokens"]:
            message = f"background={self.background} stores tokens before an entity one by one"
            raise UserError(f"{message}: give pool=tokens, or leave it out", "conflict")
        matching = options.matcher.options
        trains = matching["vectors"] == _OWN or self._tries_vectors
        vectors = "" if matching["vectors"] in (_OWN, _AUTO) else matching["vectors"]
        source = self.open(options, self.one_limit())
        language = self.language_of_articles(source)
        recognise = self.recogniser_in(language)
        cuts = CutPlan(source, recognise, self.per_article, self.within, options.seed)
        cuts.peek()
        matcher = EntityMatcher(**{**matching, "vectors": vectors})
        self.keep(cuts=cuts, matcher=matcher, recognise=recognise, trains=trains, written=[])
        files = (*self.article_files, matching["aliases"], matching["vectors"])
        record = wordnet_found(options) | {"language": language.code} | self.articles_read
        return Inputs([*filter(None, files)], record)

    @property
    def _tries_vectors(self) -> bool:
        testbed = isinstance(self.articles, str) and self.articles == "testbed"
        return self.options.matcher.options["vectors"] == _AUTO and not testbed

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        """Train word vectors on the articles, unless those of an earlier run are in the folder."""
        super().begin(lm, needs, folder)
        matcher, vectors, language = self.matcher, folder / VECTORS[0], self.recognise.language
        if self.trains:
            try:
                least, seed = FEW if self._tries_vectors else 0, self.options.seed
                texts = map(natural, self.open(self.options, self.one_limit()))
                train_vectors(texts, vectors, seed=seed, least=least, language=language)
                matcher = replace(matcher, vectors=str(vectors))
            except TooFewError as error:
                if not self._tries_vectors:
                    raise
                log.info("names are compared without word vectors: %s", str(error))
        matcher = matcher if language.english else matcher.in_language(language)
        log.info("%s", matcher.described())
        self.keep(matcher=matcher)

    @property
    def total(self) -> int | None:
        return self.cuts.source.total

    def units(self) -> Iterator[Cut]:
        return iter(self.cuts)

    def items_of(self, units: int) -> int:
        return self.cuts.articles

    def place(self, span: str) -> tuple[int, str]:
        return int(span.endswith(_UNTOUCHED)), span.removesuffix(_UNTOUCHED)

    def examples(self, lm: CausalLM, units: Sequence[Cut]) -> Iterator[Examples]:
        if self.context is not None:

            def starts(text: str) -> list[int]:
                (encoded,) = encode_prompts(lm.tokenizer, [text])
                return [start for start, end in encoded.offsets if end > start]

            units = list(shortened(units, self.context, starts))
        needs = span_needs(self.needs, attention=lm.attends)
        limit = self.options.max_new_tokens
        requests = [GenerationRequest(self._prompt(cut), limit, cut.id) for cut in units]
        stop = stop_rule(self.recognise, cheap=self.recognise.name == "rules")
        labels: dict[str, int] = {}
        for batch in lm.generate_each(requests, Decoding(needs, stop=[*self.prompt.turn_ends, stop])):
            examples = Examples(tokens=sum(len(generation.token_ids) for generation in batch.values()))
            for place, generation in batch.items():
                self._label(units[place], generation, examples)
            self._read_again(lm, examples)
            labels |= examples.labels()
            yield examples
        if self.negatives == "untouched":
            yield self._read_articles(lm, [cut for cut in units if labels.get(cut.id) == 0], needs)

    def _prompt(self, cut: Cut) -> str:
        return self.prompt.continuation(cut.article.title, cut.before)

    def _label(self, cut: Cut, generation: Generation, examples: Examples) -> None:
        leave_out = partial(examples.leave_out, cut.id, gold=cut.entity.text)
        if generation.stop == "skipped":
            return leave_out(TOO_LONG)
        written = head_entity(generation.text, self.recognise)
        if written is None:
            return leave_out("no entity at the head", written=generation.text[:100])
        if may_go_on(generation, written, self.recognise):
            return leave_out("cut off by max_new_tokens", written=written.text)
        match = self.matcher.match(cut.entity.text, written.text)
        if self.doubtful == "undecided":
            match = abstain(cut, written, generation.text, match, self.recognise, self.matcher)
        compared = {"type": cut.entity.type, "stage": match.stage, "evidence": match.evidence}
        if match.verdict == "undecided":
            return leave_out("undecided", written=written.text, **compared)
        if match.verdict == "equivalent" and self.negatives == "untouched":
            reason = "faithful: with negatives=untouched articles stand for these"
            return leave_out(reason, written=written.text, **compared)
        self._add(cut, generation, written, match, "generated", examples)

    def _read_articles(self, lm: CausalLM, cuts: Sequence[Cut], needs: Needs) -> Examples:
        examples = Examples()
        readable, prompts, texts = [], [], []
        for cut in cuts:
            prompt, text = self._prompt(cut), cut.between + cut.entity.text
            try:
                (encoded,) = encode_prompts(lm.tokenizer, [prompt], [cut.id])
                encode_continuation(lm.tokenizer, encoded, text)
            except UserError as error:
                examples.leave_out(cut.id + _UNTOUCHED, f"unreadable: {error}", gold=cut.entity.text)
                continue
            readable.append(cut)
            prompts.append(prompt)
            texts.append(text)
        read = lm.score(prompts, texts, needs=needs, names=[cut.id for cut in readable]) if readable else []
        for cut, generation in zip(readable, read, strict=True):
            if generation.stop == "skipped":  # the entity exceeds the tokens asked for
                examples.leave_out(cut.id + _UNTOUCHED, TOO_LONG, gold=cut.entity.text)
                continue
            start = len(cut.between)
            entity = Entity(start, start + len(cut.entity.text), cut.entity.text, cut.entity.type)
            match = Match("equivalent", "untouched", "the article's own entity")
            self._add(cut, generation, entity, match, "untouched", examples)
        self._read_again(lm, examples)
        return examples

    def _read_again(self, lm: CausalLM, examples: Examples) -> None:
        """Read the waiting spans with the tokens before them, and add their rows."""
        if self.written:
            for row, states in read_again(lm, self.written, self.needs, self.background):
                examples.add(row, states)
            self.written.clear()

    def _add(
        self, cut: Cut, generation: Generation, entity: Entity, match: Match, how: str, examples: Examples
    ) -> None:
        tokens = tokens_of(generation.offsets, entity.start, entity.end)
        assert tokens  # the span lies in the decoded text

        id = cut.id if how == "generated" else cut.id + _UNTOUCHED
        row = {
            "group": cut.article.id, "split": cut.article.split,
            "correct": int(match.verdict == "equivalent"),
            "dataset": "wiki", "condition": how, "span": id,
            "question": cut.before, "answer": entity.text, "gold": cut.entity.text,
            "question_type": cut.entity.type, "answer_kind": entity.type,
            "knowledge": cut.article.truth.get("facts", {}).get(cut.entity.text, ""),
            "title": cut.article.title, "cut_at": cut.entity.start, "sentence": cut.sentence,
            "entity_start": entity.start, "entity_end": entity.end,
            "match_stage": match.stage, "match_evidence": match.evidence,
        }  # fmt: skip
        if self.background:
            self.written.append(WrittenSpan(row, generation, tokens))
            return
        for index, columns, states in span_rows(generation, tokens, self.needs):
            name = id if index < 0 else f"{id}#{index}"
            examples.add({"id": name, "token": index, **row, **columns}, states)

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Report label balance, and the cuts without a label."""
        labels, reasons = counted(store)
        spans, cuts = labels.total(), len(store.units)
        figures = {
            "recogniser": self.recognise.name, "matcher_stages": list(self.matcher.active),
            "articles": self.cuts.articles, "cuts": cuts, "spans": spans,
            "hallucinated": round(labels[0] / spans, 6), "left_out": dict(sorted(reasons.items())),
            "articles_left_out": dict(sorted(self.cuts.source.problems.counts.items())),
        }  # fmt: skip
        shown = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common())
        line = (
            f"{self.cuts.articles} articles, {cuts} cuts, {spans} labelled spans, {labels[0] / spans:.3f} of "
            f"them hallucinated; no label for {reasons.total()}{shown and f' ({shown})'}"
        )
        return figures, [line, *self.cuts.source.problems.lines()]
