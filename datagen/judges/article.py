"""Verdicts by the reference article of a question: no model is needed, and most stay unknown.

Four rules, in this order; an entity that none of them decides is unknown:

1. *same fact*: the answer and the article state one relation of the subject (born, released, directed by, of
   a country ..) and the entity means the same as the article's value: supported.
2. *other fact*: every value that the article has for the relation is another: contradicted.
3. *same sentence*: a sentence of the article, or of a passage, has the entity and two of the content words
   that stand around it in the answer (one is enough if there is only one): supported.
4. *another subject*: the answer calls the subject a kind of thing that the article does not know
   ("a mathematician" of a judge), and the entity is nowhere in the article: contradicted. Nothing in such an
   answer is supported: its right parts are right by chance.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain

from nltk.stem.porter import PorterStemmer

from probers.data.texts.base import Mark
from probers.words import Entity, same_kind
from probers.words.text import is_stop_word, split_sentences

from .base import Answer, Grounds, Judge, Ruling
from .relations import IN_COUNTRY, IN_PLACE, Fact, another_kind, country_of, facts

#: Number of words on each side of an entity that show what is told of it.
_AROUND = 8
#: Number of these content words that a sentence of the article must share.
_SHARED = 2
_YEAR = re.compile(r"\d{3,4}")
#: A number of three digits, or one with a unit.
_TELLING = re.compile(r"\d{3}|\d\D*[A-Za-z%°]")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
#: United Kingdom and its parts: a text may name one for the other.
_KINGDOM = frozenset(("United Kingdom", "England", "Scotland", "Wales", "Northern Ireland"))


class ArticleJudge(Judge):
    """Judge that compares an answer with the article about its subject, and with passages if asked to.

    Attributes:
        passages: number of passages of the corpus to read beside the article, for each sentence.
    """

    def __init__(self, grounds: Grounds, *, passages: int = 0) -> None:
        self._grounds, self._passages = grounds, passages

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        return [self._rulings(answer) for answer in answers]

    def _rulings(self, answer: Answer) -> list[Ruling]:
        compared = _Compared(self._grounds, answer)
        starts = [start for start, _ in compared.borders]
        texts = [answer.text[start:end] for start, end in compared.borders]
        further = self._grounds.passages(texts, self._passages)
        rulings = []
        for unit in answer.units:
            passages = [passage.text for passage in further[max(0, bisect_right(starts, unit.start) - 1)]]
            judge = compared.sentence if unit.type == "sentence" else compared.entity
            rulings.append(judge(unit, passages))
        return rulings


class _Compared:
    """Answer beside its reference.

    Attributes:
        borders: places of the answer's sentences.
        another: two kinds of thing that cannot be one, that of the article and that of the answer, or "".
    """

    def __init__(self, grounds: Grounds, answer: Answer) -> None:
        self.answer, self._matcher = answer, grounds.matcher
        self._article = " ".join(answer.reference)
        self._entities = grounds.recognise(answer.text)
        self._facts = list(facts(answer.text, self._entities, answer.subject))
        self._known = list(facts(self._article, grounds.recognise(self._article), answer.subject))
        self._recognise = cache(grounds.recognise)  # several units read a sentence of the article
        self.borders = split_sentences(answer.text)
        self.another = another_kind(answer.text, self._article, answer.subject)

    def sentence(self, unit: Mark, passages: Sequence[str]) -> Ruling:
        """Judge a sentence by its entities: contradicted if one is contradicted, supported if all are."""
        inside = [e for e in self._entities if unit.start <= e.start and e.end <= unit.end]
        rulings = [self.entity(Mark(((e.start, e.end),), None, e.type), passages) for e in inside]
        if contradicted := [ruling for ruling in rulings if ruling.verdict == "contradicted"]:
            return contradicted[0]
        if rulings and all(ruling.verdict == "supported" for ruling in rulings):
            return rulings[0]
        return Ruling("unknown", "not all of its entities are in the article")

    def entity(self, unit: Mark, passages: Sequence[str]) -> Ruling:
        if not self.answer.reference and not passages:
            return Ruling("unknown", "no reference article")
        mention = self.answer.text[unit.start : unit.end]
        ruling = self._by_facts(unit) or self._by_sentence(unit, mention, passages)
        if ruling and not (ruling.verdict == "supported" and self.another):
            return ruling
        return self._by_kind(unit, mention) or Ruling("unknown", "the article does not tell")

    def _by_facts(self, unit: Mark) -> Ruling | None:
        for fact in (fact for fact in self._facts if fact.entity.start == unit.start):
            known = [f for f in self._known if f.relation == fact.relation]
            verdicts = [self._same(fact, other) for other in known]
            evidence = f"{fact.relation}: {', '.join(dict.fromkeys(f.entity.text for f in known))}"
            if True in verdicts:
                return Ruling("supported", evidence, "same fact")
            if known and None not in verdicts:
                return Ruling("contradicted", evidence, "other fact")
        return None

    def _same(self, fact: Fact, other: Fact) -> bool | None:
        """Tell whether two values of one relation mean the same; None if that is not sure."""
        if fact.relation == "country" or fact.relation.endswith(IN_COUNTRY):
            both = {fact.value, other.value}
            parts = len(both) == 2 and "United Kingdom" in both and both <= _KINGDOM
            return None if parts else len(both) == 1
        timed = fact.entity.type in ("date", "year")
        if not timed and not same_kind(fact.entity.type, other.entity.type):
            return None
        if fact.relation.endswith(IN_PLACE) and self._named(fact.value):
            return None  # one place may lie in the other
        if timed and not (_YEAR.search(fact.value) and _YEAR.search(other.value)):
            return None  # a day without its year
        verdict = self._matcher.match(other.value, fact.value).verdict
        return {"equivalent": True, "different": False}.get(verdict)

    def _by_sentence(self, unit: Mark, mention: str, passages: Iterable[str]) -> Ruling | None:
        if unit.type == "number" and not _TELLING.search(mention):
            return None  # "first", "3": nearly every article has them
        around = self._around(unit)
        further = (text[start:end] for text in passages for start, end in split_sentences(text))
        for sentence in chain(self.answer.reference, further):
            enough = len(around & _stems(sentence)) >= min(_SHARED, max(1, len(around)))
            if enough and self._stands_in(mention, self._recognise(sentence)):
                return Ruling("supported", sentence, "same sentence")
        return None

    def _sentence_of(self, unit: Mark) -> tuple[int, int]:
        return next((a, b) for a, b in self.borders if a <= unit.start < b)

    def _around(self, unit: Mark) -> frozenset[str]:
        """Collect stems of the content words around a unit in its sentence, not its own or the subject's."""
        text, (start, end) = self.answer.text, self._sentence_of(unit)
        before = [m.group() for m in _WORD.finditer(text, start, unit.start)][-_AROUND:]
        after = [m.group() for m in _WORD.finditer(text, unit.end, end)][:_AROUND]
        known = _stems(text[unit.start : unit.end]) | _stems(self.answer.subject)
        return _stems(" ".join(before + after)) - known

    def _stands_in(self, mention: str, entities: Iterable[Entity]) -> bool:
        country = country_of(mention)
        return any(
            (country and country == country_of(entity.text))
            or self._matcher.match(entity.text, mention).verdict == "equivalent"
            for entity in entities
        )

    def _by_kind(self, unit: Mark, mention: str) -> Ruling | None:
        # A unit at the beginning of its sentence is its subject: the sentence is not about the answer's.
        opens = self.answer.text[self._sentence_of(unit)[0] : unit.start].strip(' "“(') in ("", "The")
        if not self.another or unit.type == "number" or opens:
            return None
        everywhere = chain.from_iterable(map(self._recognise, self.answer.reference))
        if self._stands_in(mention, everywhere) or self._named(mention):
            return None
        return Ruling("contradicted", f"{self.another}: {self.answer.reference[0]}", "another subject")

    def _named(self, mention: str) -> bool:
        known = _stems(self._article) | _stems(self.answer.subject)
        return bool(_stems(mention.replace("-", " ")) & known)  # "German-Jewish"


_stem = lru_cache(maxsize=65536)(PorterStemmer().stem)


@lru_cache(maxsize=4096)
def _stems(text: str) -> frozenset[str]:
    return frozenset(_stem(word) for word in map(str.lower, _WORD.findall(text)) if not is_stop_word(word))
