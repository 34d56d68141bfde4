"""The matcher of entity mentions, which decides stage by stage and keeps the evidence."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ..types import UserError
from .dates import compare_times
from .language import ENGLISH, Language
from .numbers import Number, compare_numbers, may_convert
from .numerals import roman_year
from .persons import PartRelation, compare_parts
from .spelling import (
    acronym_of,
    common_aliases,
    compare_spelled,
    load_aliases,
    normalise,
    same_string,
    spelled,
)
from .values import counts, read_number_in, read_time_in
from .vectors import cosine, load_vectors
from .wordnet import HOW_TO_GET, find_wordnet, has_wordnet, same_in_wordnet, say_absent

Verdict = Literal["equivalent", "different", "undecided"]

#: Verdicts that must not be "equivalent", and why.
_NEVER_SAME = dict.fromkeys(("related", "whole"), "a city is not its country")
_NEVER_SAME["unknown"] = "what nothing is known of is not the same"
STAGES = ("date", "number", "string", "alias", "acronym", "name", "wordnet", "vectors")


@dataclass(frozen=True, slots=True)
class Match:
    """A verdict with the stage that reached it and the evidence of that stage."""

    verdict: Verdict
    stage: str
    evidence: str


@dataclass(frozen=True, slots=True)
class EntityMatcher:
    """The comparison of an original entity with a generated one, stage by stage.

    The first stage with an answer decides. If none has one, the strings differ and so does the
    verdict (stage "string").

    Attributes:
        partial: verdict when one mention is a part of the other ("Albert" and "Albert Einstein", "1995" and
            "18 July 1995"): which is meant cannot be told from the two strings alone. Names say it with
            stage "partial".
        family: verdict for a family name alone against a full name that ends with it ("Einstein" and
            "Albert Einstein").
        related: verdict when WordNet has one name as a kind, an instance, a part or a member of the other;
            "equivalent" is not allowed.
        whole: verdict when WordNet has the generated name as a whole that the original is a part of
            ("Canada" for "Alberta"), which is mostly true where the original is; "equivalent" is not allowed.
        stages: the stages in the order they are asked; leave one out to switch it off.
        aliases: JSONL file of the user's aliases, a list of names per line, or "".
        wordnet: folder of WordNet's files (or their .zip), "auto" to look for it where nltk does, or "" for
            none; the stage is then absent, and with "auto" says so once.
        vectors: file in the word2vec format (text, or ``.bin``), or "" for none.
        same_cosine: at least this cosine is equivalent.
        different_cosine: at most this cosine is different; between the two it is undecided.
        unknown: verdict where a word has no vector, which the stages before have told from no other;
            "equivalent" is not allowed.
        unit_tolerance: relative difference allowed when two units are converted.
    """

    partial: Verdict = "undecided"
    family: Verdict = "equivalent"
    related: Verdict = "different"
    whole: Verdict = "undecided"
    stages: tuple[str, ...] = STAGES
    aliases: str = ""
    wordnet: str = "auto"
    vectors: str = ""
    same_cosine: float = 0.9
    different_cosine: float = 0.4
    unknown: Verdict = "different"
    unit_tolerance: float = 0.01
    _folder: str | None = field(init=False, repr=False, compare=False, default=None)
    _language: Language = field(init=False, repr=False, default=ENGLISH)

    def __post_init__(self) -> None:
        """Refuse stages, verdicts, thresholds and files that cannot be used (UserError)."""
        object.__setattr__(self, "stages", tuple(self.stages))
        wrong = [s for s in self.stages if s not in STAGES]
        if wrong or len(set(self.stages)) < len(self.stages):
            raise UserError(f"stages={list(self.stages)}: name each of {', '.join(STAGES)} at most once")
        for name in ("partial", "family", "related", "whole", "unknown"):
            if (verdict := getattr(self, name)) not in get_args(Verdict):
                raise UserError(f"{name}={verdict!r}: one of {', '.join(get_args(Verdict))}")
            if verdict == "equivalent" and name in _NEVER_SAME:
                raise UserError(f"{name}=equivalent: {_NEVER_SAME[name]}; use different or undecided")
        if not -1 <= self.different_cosine <= self.same_cosine <= 1:
            reason = f"different_cosine={self.different_cosine} and same_cosine={self.same_cosine}"
            raise UserError(f"{reason}: both in [-1, 1], the first not above the second")
        if not 0 <= self.unit_tolerance < 1:
            raise UserError(f"unit_tolerance={self.unit_tolerance}: at least 0 and below 1")
        if "wordnet" in self.stages:
            folder = find_wordnet() if self.wordnet == "auto" else self.wordnet or None
            if folder and not has_wordnet(folder):
                reason = f"wordnet={folder}: the folder has not both data.noun and index.noun"
                raise UserError(reason, "bad-file")
            object.__setattr__(self, "_folder", folder)
        if self.aliases:
            load_aliases(self.aliases)
        if self.vectors:
            load_vectors(self.vectors)

    def in_language(self, language: Language) -> EntityMatcher:
        """Return the same matcher for mentions of another language.

        It reads numbers and dates as written there and compares names by spelling, by the user's
        aliases and by vectors. Knowledge of English is left out: WordNet, well-known aliases,
        given names. Pairs that would need it are "undecided".
        """
        made = replace(self)
        object.__setattr__(made, "_language", language)
        return made

    @property
    def active(self) -> tuple[str, ...]:
        """The stages that can decide: all whose data is present."""
        there = {"wordnet": self._folder is not None, "vectors": bool(self.vectors)}
        if not self._language.english:
            there |= {"wordnet": False, "acronym": False, "alias": bool(self.aliases)}
        return tuple(stage for stage in self.stages if there.get(stage, True))

    def described(self) -> str:
        """List the active stages, and the inactive ones with the reason, in one line."""
        missing = [stage for stage in self.stages if stage not in self.active]
        why = {"wordnet": f"wordnet ({HOW_TO_GET})"} if self.wordnet else {}
        if not self._language.english:
            why = {"wordnet": "wordnet (it is English)", "acronym": "acronym (undecided)"}
        without = f"; without {' and '.join(why.get(stage, stage) for stage in missing)}" if missing else ""
        of = "" if self._language.english else f" of {self._language.name}"
        return f"entities{of} are compared by {', '.join(self.active)}{without}"

    def match(self, original: str, generated: str) -> Match:
        """Return the verdict of the first stage that applies; ValueError for an empty mention."""
        if not original.strip() or not generated.strip():
            raise ValueError(f"cannot compare {original!r} with {generated!r}: one of them is empty")
        original, generated = roman_year(original), roman_year(generated)
        for stage in self.stages if self._language.english else self.active:
            match: Match | None = getattr(self, f"_by_{stage}")(original, generated)
            if match is not None:
                return match
        return Match("different", "string", f"{_shown(original)} / {_shown(generated)}")

    def _verdict(self, relation: PartRelation | None) -> Verdict:
        if relation == "partial" or relation == "family":
            return self.partial if relation == "partial" else self.family
        return relation or "undecided"

    def _by_date(self, a: str, b: str) -> Match | None:
        x, y = (read_time_in(mention, self._language) for mention in (a, b))
        return Match(self._verdict(compare_times(x, y)), "date", f"{x} / {y}") if x and y else None

    def _by_number(self, a: str, b: str) -> Match | None:
        """Compare as numbers of the language; beside a number, one that is not read stays undecided."""
        language = self._language
        x, y = (read_number_in(mention, language) for mention in (a, b))
        if x and y:
            relation = compare_numbers(x, y, tolerance=self.unit_tolerance)
            if relation == "different" and not language.english and may_convert(x, y):
                return Match("undecided", "number", f"{x} / {y}: nouns that may mean one thing")
            return Match(self._verdict(relation), "number", f"{x} / {y}")
        if not (x or y or language.english):
            named, other = (re.sub(r"\d+", "#", " ".join(spelled(m, language))) for m in (a, b))
            if named == other:
                return None  # "Apollo 11" and "Apollo 13", "Ve République" and "IVe République"
        if a.strip() != b.strip() and self._may_count(a, x) and self._may_count(b, y):
            return Match("undecided", "number", f"{a} / {b}: not read as numbers of {language.name}")
        return None

    def _may_count(self, mention: str, number: Number | None) -> bool:
        """Tell whether a mention is a number or time, or may be one that is not read."""
        return bool(number or counts(mention, self._language) or read_time_in(mention, self._language))

    def _by_string(self, a: str, b: str) -> Match | None:
        if not self._language.english:
            relation, evidence = compare_spelled(a, b, self._language)
            return Match("equivalent", "string", evidence) if relation == "equivalent" else None
        how = same_string(a, b)
        return Match("equivalent", "string", f"{_shown(a)} / {_shown(b)}: {how}") if how else None

    def _by_alias(self, a: str, b: str) -> Match | None:
        if self.aliases and load_aliases(self.aliases).same(a, b):
            return Match("equivalent", "alias", f"{a} / {b} in {self.aliases}")
        known = self._language.english and common_aliases().same(a, b)
        return Match("equivalent", "alias", f"{a} / {b}") if known else None

    def _by_acronym(self, a: str, b: str) -> Match | None:
        letters = acronym_of(a, b) or acronym_of(b, a)
        return Match("equivalent", "acronym", f"{letters} of {a} / {b}") if letters else None

    def _by_name(self, a: str, b: str) -> Match | None:
        english = self._language.english
        parts = compare_parts(a, b) if english else compare_spelled(a, b, self._language)
        if parts is None or (parts[0] == "different" and not english):  # vectors may know more
            return None
        relation, evidence = parts
        return Match(self._verdict(relation), "partial" if relation == "partial" else "name", evidence)

    def _by_wordnet(self, a: str, b: str) -> Match | None:
        if self._folder is None:
            if self.wordnet:
                say_absent()
            return None
        if (related := same_in_wordnet(a, b, self._folder)) is None:
            return None
        relation, evidence = related
        verdicts: dict[str, Verdict] = {"equivalent": "equivalent", "whole": self.whole}
        return Match(verdicts.get(relation, self.related), "wordnet", evidence)

    def _by_vectors(self, a: str, b: str) -> Match | None:
        if not self.vectors:
            return None
        similarity = cosine(a, b, load_vectors(self.vectors), spaced=self._language.spaced)
        if similarity.unknown:
            return Match(self.unknown, "vectors", f"no vector for {', '.join(similarity.unknown)}")
        if similarity.value is None:
            return Match("undecided", "vectors", f"no words of {a} / {b} to compare")
        same, different = similarity.value >= self.same_cosine, similarity.value <= self.different_cosine
        verdict: Verdict = "equivalent" if same else "different" if different else "undecided"
        return Match(verdict, "vectors", f"cosine {similarity.value:.3f} of {a} / {b}")


def _shown(mention: str) -> str:
    """Show the normalised mention, or the raw one when nothing of it is left."""
    return normalise(mention) or mention
