"""Names: runs of capitalised words, joined over connectors, initials and numbers.

A word whose capital may come only from the beginning of a sentence is no name.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import dropwhile, takewhile
from typing import NamedTuple

from ..text import is_stop_word, split_sentences
from .values import NUMBERED, Cover, Span

#: Lower-case particles of personal and foreign names.
PARTICLES = frozenset(
    """de del della dello delle dei di da das do dos du des la le les van von der den ter ten zu zur af av bin
    ibn al el y e il los las san op aan d' auf und et""".split()
)
#: Lower-case words that may lie inside an English name.
JOINTS = frozenset("of the and for at on in to".split())
#: Nouns that "for" and "at" may follow inside a name, and whose "of X and Y" is one name.
HEADS_FOR = frozenset(
    """Academy Agency Alliance Association Award Awards Board Bureau Campaign Center Centre Coalition College
    Commission Committee Conference Council Department Endowment Faculty Foundation Fund Hospital Institute
    Library Medal Ministry Movement Museum Office Organisation Organization Party Prize Program Programme
    School Secretary Minister Society Union University Act Bill""".split()
)
#: Nouns that announce titles of works.
WORK_NOUNS = frozenset(
    """album albums song songs single singles novel novels film films book books publications ep eps play
    plays poem poems opera operas series include includes""".split()
)
#: Lower-case heads of compounds with a name after the hyphen ("non-English").
LOWER_PREFIXES = frozenset(
    """non pre post anti pro mid ex trans inter neo sub un all pan early late then now half semi quasi self
    intra""".split()
)
#: Ends of compounds that do not belong to the name before them ("Swedish-born").
COMMON_TAILS = frozenset(
    """language born based speaking style era class led area wide winning nominated like type owned themed
    related centric controlled occupied held backed bound ruled trained built made inspired influenced level
    sponsored supported affiliated educated raised designed run only century day time free shaped funded
    selling bred dominated""".split()
)
#: Number words among the openers; within a sentence their capital belongs to a name ("Six Flags").
COUNTS = frozenset(
    """Two Three Four Five Six Seven Eight Nine Ten First Second Third Fourth Fifth Sixth Seventh Eighth Ninth
    Tenth""".split()
)
#: Words that open sentences with a capital of the sentence, besides stop words.
OPENERS = COUNTS | frozenset(
    """Born Written Released Directed Located Founded Set Based Produced Published Built Designed Known Named
    Following Originally Although Despite Upon Early Later Late Today Currently Recently Initially Eventually
    Finally Subsequently Generally Typically Usually Often Sometimes Critics Reviewers Many Several Some Most
    Both Former Historically Together Prior Given Like Unlike According Along Around Within Without
    Until Since Because Additionally Furthermore Moreover However Nevertheless Meanwhile Instead Also Other
    Another Each Every Construction Development Work Plans Production People Members Students Scholars
    Historians Scientists Children Men Women Fans Players Modern Ancient Traditional Contemporary New Large
    Small Local National Winds Heavy Rainfall Damage Commercially Musically Lyrically Developed Created
    Performed Recorded Filmed Formed Established Raised Educated Featuring Starring Having Being Using Giving
    Taking Making Considered Described Widely Administratively Geographically Politically Economically
    Dedicated Inspired Led Appointed Elected Including Formally Officially Opened Completed Adapted Composed
    Near Across Beyond Below Above Between Among Amongst Against Unless Once Whether Whenever Wherever Whereas
    Whilst Besides Except Apart Due Only Even Just Still Thus Hence Perhaps Here There Half None Neither
    Either Few Much More Less Such Same Certain Various Numerous Different Similar Further Per Via Yes Oh Let
    Please See Note Come Go Get Make Why How What""".split()
)
#: Lower-case words that follow a subject, so that a lone capitalised word before them is a name.
PREDICATES = frozenset(
    """is was were are has had have also later then became becomes began begins wrote writes won wins made
    makes took takes said says did does died dies grew left led met went came served would could will may can
    and or who which lies stands sold ran held gave found felt fought saw spent taught sang sings plays stars
    follows contains describes remains born thought himself herself itself not never first again""".split()
)
#: Words whose possessive may continue a name ("People's Republic"), and words that follow them.
OWNERS = frozenset(
    """People Women Men Children King Queen Majesty Prince Princess Veterans Workers Farmers Mother
    Father""".split()
)
OWNED = frozenset(
    """Magazine Day College Church Hospital Cathedral Palace Park Center Centre Cup Hall Weekly Monthly Court
    Bridge School Island Law Theorem Eve Bazaar Journal Guide Theatre Theater Castle Creek Bay War Raid
    Rebellion Revolt""".split()
)
#: Names that end in their own "'s".
WITH_S = frozenset(
    "McDonald Macy Sotheby Christie Wendy Levi Lloyd Sainsbury Domino Kellogg Moody Denny Hershey".split()
)
#: Capitalised words that alone are no names.
NOT_NAMES = frozenset("I A The No. EP EPs LP LPs CD CDs DVD DVDs TV R&B PhD OK Jr Jr. Sr.".split())
#: Nouns of names with an ordinal in digits ("19th Massachusetts Infantry", "20th Century Fox").
ORDERED = frozenset(
    """Brigade Division Battalion Regiment Infantry Army Corps Fleet Street Avenue Squadron Cavalry Congress
    Amendment Airborne Armored Armoured Battery Ward Parliament Foot Hussars Lancers Dragoons Artillery Rifles
    Wing Group Panzer Flotilla Highlanders Fusiliers Arrondissement Precinct District Circuit
    Century""".split()
)
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
_ORDINAL = re.compile(r"\d{1,3}(?:st|nd|rd|th)\s$")
_SPEECH = re.compile(r"[:;•*|]\s*[\"“]$|[.!?]\s?[\"”“]\s*$")
_QUANTITY = re.compile(r"[,.]\d|\s(?:million|billion|thousand|percent|km|miles|people|years)|%|[–-]\d")
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
    tokens = words.tokens
    seen = {t.text for t in tokens if t.capital and not t.opens}
    lower = {t.text for t in tokens if not t.capital}
    position = 0
    while position < len(tokens):
        if not tokens[position].capital:
            position += 1
            continue
        after = words.end_of_name(position)
        run = tokens[position:after]
        position = after
        while run and _is_opener(run, seen, lower, text):
            run = [*dropwhile(lambda token: not token.capital, run[1:])]
        if not run or (len(run) == 1 and _is_plain(run[0])) or run[-1].text.endswith("ʻ"):
            continue  # an okina does not end a name: a stray space cut "Oʻ ahu" in two
        ordinal = _ORDINAL.search(text, max(0, run[0].start - 6), run[0].start)
        ordered = any(token.text in ORDERED for token in takewhile(lambda t: t.capital, run))
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
            if hyphen and head in LOWER_PREFIXES and tail[:1].isupper():
                start += len(head) + 1
            elif hyphen and word.rsplit("-", 1)[1] in COMMON_TAILS:
                end = start + word.rfind("-")
            ending = _POSSESSIVE.search(text[start:end])
            possessive = ending is not None and text[start : start + ending.start()] not in WITH_S
            if ending and possessive:
                end = start + ending.start()
            self.tokens.append(_Token(start, end, text[start:end], opens, possessive))

    def end_of_name(self, first: int) -> int:
        """Return the index after the last token of the name that begins at ``first``."""
        last = first
        while (ahead := self._next(first, last)) is not None:
            last = ahead
        return last + 1

    def _next(self, first: int, last: int) -> int | None:
        """Return the index of the next token of the name, past connectors; None at its end."""
        tokens, ahead = self.tokens, last + 1
        if tokens[last].possessive:
            if ahead == len(tokens) or not tokens[ahead].capital:
                return None
            saint = tokens[max(first, last - 1)].text in ("St.", "St")
            joins = saint or tokens[last].text in OWNERS or tokens[ahead].text in OWNED
            return ahead if joins and self._adjacent(ahead) else None
        words: list[str] = []
        while ahead < len(tokens) and len(words) < 3 and self._adjacent(ahead):
            token = tokens[ahead]
            quantity = _QUANTITY.match(self.text, token.end)  # or a list of numbers
            numbered = tokens[ahead - 1].text in NUMBERED and _DESIGNATION.fullmatch(token.text)
            if not words and not quantity and (numbered or _NUMBER.fullmatch(token.text)):
                return ahead  # "Route 1709", "Pioneer 10"
            if token.capital:
                if token.opens and tokens[ahead - 1].text.endswith("."):
                    return None  # "World War I. His", but "Stop! Or My Mom"
                return ahead if not words or self._joins(first, last, ahead, words) else None
            article = token.text in ("a", "an") and is_stop_word(tokens[ahead - 1].text)
            if token.text not in JOINTS and token.text not in PARTICLES and not article:
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
        if words[0] in PARTICLES and all(w in PARTICLES or w == "the" for w in words):
            return True
        right = ahead
        while right + 1 < len(tokens) and tokens[right + 1].capital and self._adjacent(right + 1):
            right += 1
        headed = any(word in HEADS_FOR for word in left)
        if words[0] == "of":  # "Jordan Vale of the Northern League" is two names
            league = tokens[right].text in ("League", "Conference", "Division", "Association")
            return not (league and len(left) >= 2)
        if words[0] in ("for", "at"):
            return headed
        if words[0] == "and":
            if headed and "of" in left:
                return True
            before = text[max(0, tokens[first].start - 160) : tokens[first].start].lower()
            named = any(noun in before for noun in WORK_NOUNS)
            return named and _YEAR_AHEAD.match(text, tokens[right].end) is not None
        return False

    def _between(self, index: int) -> str:
        return self.text[self.tokens[index - 1].end : self.tokens[index].start]

    def _adjacent(self, index: int) -> bool:
        """Tell whether only a space or a spaced ampersand separates a token from the last one."""
        left, between = self.tokens[index - 1], self._between(index)
        if left.possessive and between in ("'s ", "’s ", "'S "):
            return True
        if between in ("' ", "’ "):  # "Keeps Gettin' Better", "Winners' Cup"
            owned = left.text.endswith("s") and self.tokens[index].text in OWNED
            return left.text.endswith("in") or owned
        return between in (" ", " & ", "\u00a0")

    def _is_subtitle(self, first: int, ahead: int) -> bool:
        """Tell whether a subtitle begins ("Star Trek: The Next Generation"), not a list or gloss."""
        tokens = self.tokens
        if self._between(ahead) != ": " or not tokens[ahead].capital:
            return False
        article = tokens[ahead].text in ("A", "The")
        if ahead == first + 1 and not article:
            return False
        following = tokens[ahead + 1 : ahead + 2]
        return bool(following) and (article or following[0].capital or following[0].text in JOINTS)


def _is_opener(run: list[_Token], seen: set[str], lower: set[str], text: str) -> bool:
    """Tell whether the capital of a run's first word may come from the sentence it opens."""
    first = run[0]
    if not first.opens:
        counts = first.text in COUNTS and len(run) > 1 and run[1].capital
        article = first.text.lower() in ("the", "a")
        return first.text in OPENERS and is_stop_word(first.text) and not (article or counts)
    word = first.text
    if is_stop_word(word) or word in OPENERS:
        return True
    if len(run) > 1:
        return False
    if not word.isascii() or sum(c.isupper() for c in word) > 1 or any(c.isdigit() for c in word):
        return False
    if word in seen:
        return False
    if word.lower() in lower or f"{word.lower()}s" in lower or word.lower().rstrip("s") in lower:
        return True
    if first.possessive:
        return False
    if _SUFFIX.match(word):
        return True
    following = _AFTER.match(text, first.end)
    after = following.group(1) if following else ""
    return not (after in PREDICATES or (after.endswith("ed") and len(after) > 4))


def _is_plain(token: _Token) -> bool:
    """Tell whether a single token is a pronoun, an article or a lone letter rather than a name."""
    word = token.text
    if word in NOT_NAMES or re.fullmatch(r"[A-Z]\.?", word):
        return True
    return is_stop_word(word) and not (word.isupper() and len(word) > 1)
