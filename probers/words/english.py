"""Names, dates and numbers of English text by rules.

A name is a run of capitalised words, joined over connectors, initials and numbers. A word whose capital may
come only from the beginning of a sentence is no name.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile
from typing import Literal, NamedTuple

from ..types import Span
from .language import ENGLISH, either, english
from .numerals import ORDINAL_WORDS, SMALL_WORDS, TENS_WORDS
from .text import Cover, is_stop_word, split_sentences


def is_title(words: list[str], is_small: Callable[[str], bool], *, longest: int, capitals: float) -> bool:
    """Tell whether words are written like a title: a share ``capitals`` of those that carry content."""
    begin = [word[0].isupper() or word[0].isdigit() for word in words]
    if not words or len(words) > longest or not begin[0]:
        return False
    content = [capital for word, capital in zip(words, begin, strict=True) if not is_small(word)] or begin
    return sum(content) >= capitals * len(content)


# data/en.yaml says what each list is for.
_PARTICLES, _JOINTS, _HEADED, _WORK_NOUNS = map(english, ("particles", "joints", "headed", "work_nouns"))
_LOWER_PREFIXES, _COMMON_TAILS = english("lower_prefixes"), english("common_tails")
_COUNTS, _PREDICATES, _NUMBERED = map(english, ("counts", "predicates", "numbered"))
_OPENERS = _COUNTS | english("openers")
_OWNERS, _OWNED, _WITH_S = map(english, ("owners", "owned", "with_s"))
_NO_NAMES, _ORDERED = english("no_names"), english("ordered")
_TOKEN = re.compile(
    r"(?:[^\W\d_]\.){2,}"  # U.S., J.R.R.
    r"|(?:St|Dr|Mr|Mrs|Ms|Jr|Sr|Lt|Gen|Col|Sgt|Capt|Rev|Prof|Mt|Ft|No|vs|Bros|Inc|Ltd|Co)\.(?=\s|$|[,)])"
    r"|[A-Z]\.(?=\s[^\W\d_])"  # an initial
    r"|[^\W_](?:[\w’'&+-]*\w)?(?:\.\w+)*[!]?(?=\W|$)"
    r"|[^\W_]"
)
_POSSESSIVE = re.compile(r"['’](?:s|S)?$")
_INNER_CAPITAL = re.compile(r"[a-z]{1,2}[A-Z]")  # iPod, eBay
_NUMBER = re.compile(r"\d{1,3}(?:[A-Za-z]|ers)?")
_DESIGNATION = re.compile(r"\d{4}[A-Za-z]?")
_YEAR_AHEAD = re.compile(r"\s?\((?:1[0-9]|20)\d{2}\)")
_PREPOSITIONS = frozenset(["In", "On", "For", "Of", "To", "With", "At", "From", "By", "Under", "Over"])
_ANNOUNCED = re.compile(r"\b(?:album|novel|song|single|film|book|mixtape|EP|musical|poem|opera|memoir)\s$")
_ORDINAL_BEFORE = re.compile(r"\d{1,3}(?:st|nd|rd|th)\s$")
_SPEECH = re.compile(r"[:;•*|]\s*[\"“]$|[.!?]\s?[\"”“]\s*$")
_COUNTED = re.compile(r"[,.]\d|\s(?:million|billion|thousand|percent|km|miles|people|years)|%|[–-]\d")
_AFTER = re.compile(r",?\s*\(?(\w+)")
_SUFFIX = re.compile(r".*(?:ly|ing|ed|tion|tions|ment|ments|ness|ings|ers|ists|als|ies|isms?)$")


class _Token(NamedTuple):
    start: int
    end: int
    text: str
    opens: bool  # at the beginning of a sentence
    possessive: bool

    @property
    def capital(self) -> bool:
        return self.text[0].isupper() or _INNER_CAPITAL.match(self.text) is not None


def find_names(text: str, cover: Cover) -> Iterator[Span]:
    """Find spans of names outside the characters already taken."""
    words = _Words(text, cover)
    seen = {t.text for t in words.tokens if t.capital and not t.opens}
    lower = {t.text for t in words.tokens if not t.capital}
    for run in words.runs():
        while run and _is_opener(run, seen, lower, text):
            run = [*dropwhile(lambda token: not token.capital, run[1:])]
        if not run or (len(run) == 1 and _is_plain(run[0])) or run[-1].text.endswith("ʻ"):
            continue  # an okina does not end a name: a stray space cut "Oʻ ahu" in two
        ordinal = _ORDINAL_BEFORE.search(text, max(0, run[0].start - 6), run[0].start)
        ordered = any(token.text in _ORDERED for token in takewhile(lambda t: t.capital, run))
        joins = ordinal and ordered and run[0].text not in ("A", "The") and cover.free(ordinal.span())
        initials = [re.fullmatch(r"[A-Z]\.", token.text) is not None for token in run[-2:]]
        full_stop = initials == [False, True]  # "Henry V.", but "U. S."
        yield ordinal.start() if ordinal and joins else run[0].start, run[-1].end - full_stop


class _Words:
    """Words of a text outside the taken spans, reduced to their names."""

    def __init__(self, text: str, cover: Cover) -> None:
        self.text = text
        self.tokens: list[_Token] = []
        sentences = [start for start, _ in split_sentences(text)]
        previous = 0
        for match in _TOKEN.finditer(text):
            start, end = match.span()
            gap = text[previous:start]
            border = bisect_left(sentences, previous)
            opens = border < len(sentences) and sentences[border] <= start
            previous = end
            if not cover.free((start, end)) or gap.endswith("°"):  # "°F" is a unit
                continue
            opens = opens or _SPEECH.search(gap) is not None
            word = match.group()
            head, hyphen, tail = word.partition("-")
            if hyphen and head in _LOWER_PREFIXES and tail[:1].isupper():
                start += len(head) + 1
            elif hyphen and word.rsplit("-", 1)[1] in _COMMON_TAILS:
                end = start + word.rfind("-")
            owner = _POSSESSIVE.sub("", text[start:end])
            possessive = owner != text[start:end] and owner not in _WITH_S
            end = start + len(owner) if possessive else end
            self.tokens.append(_Token(start, end, text[start:end], opens, possessive))

    def runs(self) -> Iterator[list[_Token]]:
        """Divide the tokens into names, without those between them."""
        behind = 0
        for first, token in enumerate(self.tokens):
            if token.capital and first >= behind:
                last = first
                while (ahead := self._next(first, last)) is not None:
                    last = ahead
                behind = last + 1
                yield self.tokens[first:behind]

    def _next(self, first: int, last: int) -> int | None:
        """Return the index of the next token of the name, past connectors; None at its end."""
        tokens, ahead = self.tokens, last + 1
        if tokens[last].possessive:
            if ahead == len(tokens) or not tokens[ahead].capital:
                return None
            saint = tokens[max(first, last - 1)].text in ("St.", "St")
            joins = saint or tokens[last].text in _OWNERS or tokens[ahead].text in _OWNED
            return ahead if joins and self._adjacent(ahead) else None
        words: list[str] = []
        while ahead < len(tokens) and len(words) < 3 and self._adjacent(ahead):
            token = tokens[ahead]
            quantity = _COUNTED.match(self.text, token.end)  # or a list of numbers
            numbered = tokens[ahead - 1].text in _NUMBERED and _DESIGNATION.fullmatch(token.text)
            if not words and not quantity and (numbered or _NUMBER.fullmatch(token.text)):
                return ahead  # "Route 1709", "Pioneer 10"
            if token.capital:
                if token.opens and tokens[ahead - 1].text.endswith("."):
                    return None  # "World War I. His", but "Stop! Or My Mom"
                return ahead if not words or self._joins(first, last, ahead, words) else None
            article = token.text in ("a", "an") and is_stop_word(tokens[ahead - 1].text)
            if token.text not in _JOINTS and token.text not in _PARTICLES and not article:
                return None
            words.append(token.text)
            ahead += 1
        if words or ahead == len(tokens):
            return None
        if self._is_subtitle(first, ahead):
            return ahead
        junior = re.fullmatch(r"Jr\.?|Sr\.?|D\.C\.?", tokens[ahead].text) and self._between(ahead) == ", "
        return ahead if junior else None

    def _joins(self, first: int, last: int, ahead: int, words: list[str]) -> bool:
        """Tell whether the connectors between two capitalised runs make them one name."""
        text, tokens = self.text, self.tokens
        left = [t.text for t in tokens[first : last + 1]]
        if left[-1] in _PREPOSITIONS and words[-1] in ("a", "an", "the"):  # a title: "In a Silent Way"
            return not tokens[last].opens
        if _ANNOUNCED.search(text, max(0, tokens[first].start - 12), tokens[first].start):
            return True  # 'the song Waiting for Summer'
        if words[0] in _PARTICLES and _PARTICLES.union(["the"]).issuperset(words):
            return True
        right = ahead
        while right + 1 < len(tokens) and tokens[right + 1].capital and self._adjacent(right + 1):
            right += 1
        headed = not _HEADED.isdisjoint(left)
        if words[0] == "of":  # "Jordan Vale of the Northern League" is two names
            league = tokens[right].text in ("League", "Conference", "Division", "Association")
            return not (league and len(left) >= 2)
        if words[0] in ("for", "at") or (words[0] == "and" and "of" in left and headed):
            return headed
        if words[0] != "and":
            return False
        before = text[max(0, tokens[first].start - 160) : tokens[first].start].lower()
        named = any(noun in before for noun in _WORK_NOUNS)
        return named and _YEAR_AHEAD.match(text, tokens[right].end) is not None

    def _between(self, index: int) -> str:
        return self.text[self.tokens[index - 1].end : self.tokens[index].start]

    def _adjacent(self, index: int) -> bool:
        """Tell whether only a space or a spaced ampersand separates a token from the last one."""
        left, between = self.tokens[index - 1], self._between(index)
        if left.possessive and between in ("'s ", "’s ", "'S "):
            return True
        if between in ("' ", "’ "):  # "Keeps Gettin' Better", "Winners' Cup"
            owned = left.text.endswith("s") and self.tokens[index].text in _OWNED
            return left.text.endswith("in") or owned
        return between in (" ", " & ", "\u00a0")

    def _is_subtitle(self, first: int, ahead: int) -> bool:
        """Tell whether a subtitle begins ("Star Trek: The Next Generation"), not a list or gloss."""
        head, following = self.tokens[ahead], self.tokens[ahead + 1 : ahead + 2]
        if self._between(ahead) != ": " or not head.capital or not following:
            return False
        long = ahead > first + 1 and (following[0].capital or following[0].text in _JOINTS)
        return long or head.text in ("A", "The")


def _is_opener(run: list[_Token], seen: set[str], lower: set[str], text: str) -> bool:
    """Tell whether the capital of a run's first word may come from the sentence it opens."""
    first = run[0]
    if not first.opens:
        counts = first.text in _COUNTS and len(run) > 1 and run[1].capital
        article = first.text.lower() in ("the", "a")
        return first.text in _OPENERS and is_stop_word(first.text) and not (article or counts)
    word = first.text
    if is_stop_word(word) or word in _OPENERS:
        return True
    odd = not word.isascii() or sum(map(str.isupper, word)) > 1 or any(map(str.isdigit, word))
    if len(run) > 1 or odd or word in seen:
        return False
    if not lower.isdisjoint((word.lower(), f"{word.lower()}s", word.lower().rstrip("s"))):
        return True
    if first.possessive:
        return False
    if _SUFFIX.match(word):
        return True
    following = _AFTER.match(text, first.end)
    after = following[1] if following else ""
    return not (after in _PREDICATES or (after.endswith("ed") and len(after) > 4))


def _is_plain(token: _Token) -> bool:
    """Tell whether a single token is a pronoun, an article or a lone letter rather than a name."""
    word = token.text
    acronym = word.isupper() and len(word) > 1
    return bool(word in _NO_NAMES or re.fullmatch(r"[A-Z]\.?", word) or (is_stop_word(word) and not acronym))


# The patterns of data/en.yaml, with the words of numbers in them.
_PARTS = {name: "|".join(words) for name, words in {
    "months": ENGLISH.months, "ones": SMALL_WORDS[1:10], "teens": SMALL_WORDS[10:], "tens": TENS_WORDS,
    "ninth": ORDINAL_WORDS[1:10], "twentieth": [*ORDINAL_WORDS[10:], "twentieth"],
    "shares": ["quarter", *ORDINAL_WORDS[3:11]],
    "units": [either(english("units")).replace(r"\ ", r"\s")],
}.items()}  # fmt: skip
*_DATES, _LONE_MONTH, _YEAR = map(re.compile, ENGLISH.patterns("times", **_PARTS))
_CLOCK, _FRACTIONS, _DIGITS, _WORDS, _ORDINALS = map(re.compile, ENGLISH.patterns("numbers", **_PARTS))
_WORD_BEFORE = re.compile(r"(\w+)\s$")


def find_dates(text: str) -> Iterator[tuple[Span, Literal["date", "year"]]]:
    """Find dates and bare years from 1000 to 2099; of overlapping ones take the fuller."""
    cover = Cover(len(text))
    for pattern in (*_DATES, _LONE_MONTH, _YEAR):
        for match in pattern.finditer(text):
            span = match.span(1 if pattern is _LONE_MONTH else 0)  # without the words before a lone month
            before = _WORD_BEFORE.search(text, max(0, span[0] - 20), span[0]) if pattern is _YEAR else None
            if not (before and before[1] in _NUMBERED) and cover.take(span):
                yield span, "year" if pattern is _YEAR else "date"


#: "first" and "second" count things only after one of these ("her first album"), not in "who first met".
_COUNTING = re.compile(
    r"(?:\b(?:the|a|an|his|her|their|its|our|my|this|that|and|or|very)|['’]s?)\s+$", re.IGNORECASE
)
_NO_NOUN = re.compile(r"\s+(?:to|was|is|were|of\s+(?:which|these|whom)|time)\b|\s*[,.;]")


def find_numbers(text: str) -> Iterator[Span]:
    """Find numbers with their units ("$1.5 million", "40 km", "twelve years") and ordinals.

    "one" alone is left out: it is a pronoun as often as a number.
    """
    for pattern in (_CLOCK, _FRACTIONS, _DIGITS, _WORDS, _ORDINALS):
        for match in pattern.finditer(text):
            start, end = match.span()
            word = match.group().lower()
            glued = pattern is _DIGITS and text[end : end + 1].isalpha()  # "3D", "20S" and "1UP"
            uncounted = word in ("first", "second") and (
                not _COUNTING.search(text, max(0, start - 12), start) or _NO_NOUN.match(text, end)
            )
            if not (glued or uncounted or word == "one"):
                yield start, end
