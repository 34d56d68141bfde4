"""Names as strings: normalisation, spelling variants, plural, word order, acronyms, aliases."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache, lru_cache
from itertools import groupby, pairwise, product
from pathlib import Path

from ..files import check_file
from ..types import UserError
from .language import Language, english, pairs, table
from .numbers import Relation
from .numerals import CARDINALS, ORDINALS, in_figures, roman

#: Common given names: a name that begins with one is a person's, and it has no plural.
GIVEN = english("given")
LANDFORMS = frozenset(["river", "mount"])
#: "University of X" and "X University" are two institutions.
_TWO_UNIVERSITIES = frozenset(["miami", "washington", "york"])
#: Spelling or abbreviation -> the form used in comparisons.
_SPELLINGS = pairs(table("en")["spellings"])
_LETTERS = str.maketrans(
    {"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ð": "d", "þ": "th", "æ": "ae", "Æ": "AE"}
    | dict.fromkeys("ʻʼʹ", "")  # the okina and its like, which are often left out
    | {"œ": "oe", "Œ": "OE", "ı": "i", "İ": "I"}
)
_GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})
#: Upper-case abbreviations spelled out before a word ("US Army").
_BEFORE_A_NAME = (
    (re.compile(r"\bU\.?\s?S\.?(?=\s+[A-Z])"), "United States"),
    (re.compile(r"\bU\.?\s?K\.?(?=\s+[A-Z])"), "United Kingdom"),
    (re.compile(r"\bL\.?\s?A\.?(?=\s+[A-Z])"), "Los Angeles"),
)
_SMALL_WORDS = english("small")
#: Signs after a letter that change the name: C++ and C#, Google+, AB+ and AB−, B♭; trade marks do not.
_MARKS = (
    (re.compile(r"(?<=[\w+])\+"), " plus"),
    (re.compile(r"(?<=\w)[#♯]"), " sharp"),
    (re.compile(r"(?<=\w)♭"), " flat"),
    (re.compile(r"(?<=\b[A-Z])\*(?!\w)"), " star"),
    (re.compile(r"[™℠]"), ""),
    (re.compile(r"\b([A-Z]{1,2})[-−–](?!\w)"), r"\1 minus"),
)
#: The words written for them.
SIGN_WORDS = frozenset(["plus", "sharp", "flat", "star", "minus"])
#: Scripts in which a mark above or below a letter may be left out.
_UNMARKED = ("LATIN", "GREEK", "HEBREW", "ARABIC")


def normalise(mention: str) -> str:
    """Normalise to lower case without diacritics, punctuation, articles or a possessive ending.

    Marks of scripts that spell with them stay: vowel signs, dakuten, the breve of "й".
    """
    for pattern, word in _MARKS:
        mention = pattern.sub(word, mention)
    characters: list[str] = []
    for c in unicodedata.normalize("NFKD", mention.translate(_LETTERS)):
        mark = unicodedata.category(c).startswith("M")
        letter = characters[-1] if mark and characters else ""
        unmarked = unicodedata.name(letter, "").startswith(_UNMARKED) if letter else False
        if not (unmarked or (letter in ("е", "Е") and c == "\u0308")):
            characters.append(c if mark or c.isalnum() or c in "’'_" else " ")
    text = " ".join(unicodedata.normalize("NFC", "".join(characters)).casefold().split())
    text = re.sub(r"\s?[’']s\b", "", text).replace("’", " ").replace("'", " ")
    words = text.split()
    last = words[1:][-1:]  # "Vitamin A" ends with no article
    return " ".join([*(w for w in words[: len(words) - len(last)] if w not in ("the", "a", "an")), *last])


@lru_cache(maxsize=8192)
def name_words(mention: str) -> tuple[str, ...]:
    """Split into normalised words of one spelling: numbers as digits, "&" as "and", "St." as "saint"."""
    for pattern, full in _BEFORE_A_NAME:
        mention = pattern.sub(full, mention)
    written = normalise(mention.replace("&", " and ")).split()
    return tuple(
        _word(word, first=position == 0, last=not following)
        for position, (word, following) in enumerate(pairwise([*written, ""]))
        if not (word == "no" and position and (following.isdigit() or following in CARDINALS))
    )


def _word(word: str, *, first: bool, last: bool) -> str:
    if word == "st" and not (last and not first):
        return "saint"
    if word == "ft" and first:
        return "fort"
    if re.fullmatch(r"\d+(?:st|nd|rd|th)", word):
        return word[:-2]
    if word in CARDINALS or word in ORDINALS:
        return str(CARDINALS.get(word, ORDINALS.get(word)))
    number = None if first else roman(word)
    if number is not None and (word != "v" or last):
        return str(number)
    word = _SPELLINGS.get(word, word)
    return re.sub(r"isation(s?)$", r"ization\1", word)


def forms(mention: str) -> list[tuple[str, ...]]:
    """List the word tuples a mention may be compared by, each once, in the order of trial.

    They are plain, with German umlauts as "ue", and with a possessive "s" kept, for missing apostrophes.
    """
    possessive = re.sub(r"[’'](?=s\b)", "", mention)
    return list(dict.fromkeys(map(name_words, (mention, mention.translate(_GERMAN), possessive))))


def same_string(a: str, b: str) -> str:
    """Name the spelling difference between two equal names, "" if they are not equal."""
    small = all("".join(m.split()[-1:])[:1].islower() for m in (a, b))  # "Wood" and "Woods" are two names
    for x, y in product(filter(None, forms(a)), filter(None, forms(b))):
        if x == y:
            return "the same words"
        if "".join(x) == "".join(y) and not any(map(str.isdigit, "".join(x))):
            return "the same letters"
        if small and same_plural(x, y):
            return "singular and plural"
        if same_reordered(a, b, x, y):
            return "the same words in another order"
    return "the same signs" if a.strip().casefold() == b.strip().casefold() else ""


def same_plural(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Tell whether two names differ by the plural of their last word alone ("William", "Williams" do not)."""
    one, many = sorted((a[-1], b[-1]), key=len)
    if len(a) != len(b) or a[:-1] != b[:-1] or len(one) < 3 or one in GIVEN:
        return False
    if one.endswith(("s", "x", "z", "ch", "sh")):
        return many == one + "es"
    return many == (one[:-1] + "ies" if one.endswith("y") and one[-2] not in "aeiou" else one + "s")


def same_reordered(a: str, b: str, x: tuple[str, ...], y: tuple[str, ...]) -> bool:
    """Tell whether the words of ``x`` and ``y`` are one name in two orders.

    "Einstein, Albert", "University of Oxford", "Symphony No. 5"; any other order is another name.
    """
    x, y = merge_letters(x), merge_letters(y)
    for p, q, written in ((x, y, a), (y, x, b)):
        head, comma, tail = written.partition(",")
        if comma and "," not in tail and len(q) > 1 and name_words(tail) + name_words(head) == q:
            return True
        if "of" in p and "of" not in q and not _TWO_UNIVERSITIES & set(p):
            cut = p.index("of")
            if p[cut + 1 :] + p[:cut] == q:
                return True
    if sorted(x) != sorted(y) or len(x) < 2:
        return False
    if sum(map(str.isdigit, x)) == 1:
        return [w for w in x if not w.isdigit()] == [w for w in y if not w.isdigit()]
    return len(x) == 2 and bool((LANDFORMS | {"fc"}) & set(x))


def merge_letters(words: tuple[str, ...]) -> tuple[str, ...]:
    """Merge runs of single letters into one word: "f", "c" becomes "fc"."""
    runs = groupby(words, key=lambda word: len(word) == 1 and word.isalpha())
    return tuple(word for single, run in runs for word in (["".join(run)] if single else run))


def acronym_of(short: str, long: str) -> str:
    """Return the capitals that make ``short`` the acronym of ``long``, or ""; "of" and "and" are optional."""
    letters = re.sub(r"[\s.&]", "", short)
    spaced = len(short.split()) > 1 and not re.fullmatch(r"(?:\w\.?\s*)+", short.strip())
    cased = letters.isupper() or (letters.islower() and len(letters) > 2)
    if spaced or not cased or not 2 <= len(letters) <= 8 or not letters.isalpha():
        return ""
    parts = [w for w in re.split(r"[\s\-–]+", re.sub(r"[’']s?\b|[.,:()\"]", "", long)) if w not in ("&", "")]
    full = [w for part in parts if (w := unicodedata.normalize("NFKD", part).casefold()) != "the"]
    if sum(w not in _SMALL_WORDS for w in full) < 2:
        return ""
    endings = [(full, "")] + ([(full[:-1], full[-1])] if roman(full[-1]) is not None else [])
    for initials, numeral in endings:
        for chosen in (initials, [w for w in initials if w not in _SMALL_WORDS]):
            if "".join(w[0] for w in chosen) + numeral == letters.casefold():
                return letters.upper()
    return ""


class AliasTable:
    """Groups of names with the same meaning, looked up without regard to case and punctuation."""

    def __init__(self, groups: Iterable[Iterable[str]]):
        self._groups: dict[tuple[str, ...], set[int]] = {}
        for number, group in enumerate(groups):
            for name in group:
                self._groups.setdefault(name_words(name), set()).add(number)

    def same(self, a: str, b: str) -> bool:
        return bool(self._groups.get(name_words(a), set()) & self._groups.get(name_words(b), set()))


@cache
def common_aliases() -> AliasTable:
    """Return the table of well-known names, built once."""
    return AliasTable(group.split(" = ") for group in table("en")["aliases"])


@lru_cache(maxsize=16)
def load_aliases(path: str) -> AliasTable:
    """Load a table from a JSONL file, each line a list of two or more names; UserError for other content."""
    groups = []
    try:
        check_file(path)
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"the alias table {path} cannot be read: {e}", "bad-file") from e
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            group = json.loads(line)
        except (ValueError, RecursionError):  # also too many digits or brackets for Python
            group = None
        listed = isinstance(group, list) and len(group) > 1
        if not listed or not all(isinstance(name, str) and name_words(name) for name in group):
            reason = 'expected a JSON list of two or more names, as in ["Bombay", "Mumbai"]'
            raise UserError(f"{path}, line {number}: {reason}", "bad-line")
        groups.append(group)
    return AliasTable(groups)


#: "Ve République", "I República"; not an initial.
_ROMAN_NUMBER = re.compile(r"(?<![\w.])([IVX]+)(?:(?<=[IVX]{2})\.|er|ère|re|ème|e)?(?![\w.'’-])")
#: Names at least this similar may be two spellings of one.
_ALIKE = 0.8
#: Two ways of writing the same sound in katakana: ヴァ and バ, a long vowel at the end.
_KANA = [(re.compile(a), b) for a, b in zip("ヴァ ヴィ ヴェ ヴォ ヴ".split(), "バビベボブ", strict=True)]
_LONG = re.compile(r"(?<=[ァ-ヴー]{2})ー(?![ァ-ヴ])")


@cache
def _simple() -> dict[int, str]:
    """Map traditional Chinese characters to their simplified forms."""
    characters = table("common")["simplified"]
    return str.maketrans(dict(zip(characters[::2], characters[1::2], strict=True)))


@lru_cache(maxsize=8192)
def spelled(mention: str, language: Language) -> tuple[str, ...]:
    """Spell the words of a name in one way: without case, accents, punctuation and a leading article."""
    text = unicodedata.normalize("NFKC", mention)
    if not language.spaced:
        for pattern, kana in _KANA:
            text = pattern.sub(kana, text)
        text = _LONG.sub("", text).translate(_simple())
    if language.code == "de":
        text = text.translate(_GERMAN)
    text = _ROMAN_NUMBER.sub(lambda match: str(roman(match[1].lower()) or match[0]), text)
    figures = re.sub(rf"(?<=\d){re.escape(language.ordinal_sign)}(?!\w)", "", in_figures(text, language))
    words = normalise(figures.replace("’", "'").replace("'", " ")).split()
    for least, leads in ((1, language.articles), (2, language.honorifics)):
        while len(words) > least and words[0] in leads:
            words = words[1:]
    numbered = [str(roman(word) or word) if place else word for place, word in enumerate(words)]
    pairs = pairwise([*numbered, ""])  # "Karl der Fünfte"
    return tuple(word for word, after in pairs if not (after.isdigit() and word in language.articles))


def compare_spelled(a: str, b: str, language: Language) -> tuple[Relation | None, str]:
    """Compare two names by spelling and say what was compared; None where it is uncertain."""
    x, y = spelled(a, language), spelled(b, language)
    shown = f"{' '.join(x)} / {' '.join(y)}"
    if not x or not y:
        return ("equivalent" if a.strip() == b.strip() else None), shown
    same_letters = "".join(x) == "".join(y) and not any(map(str.isdigit, "".join(x)))
    head, comma, tail = a.partition(",") if "," in a else b.partition(",")
    turned = comma and {spelled(f"{tail} {head}", language), (*x,), (*y,)} == {x, y}
    if x == y or same_letters or turned:
        return "equivalent", shown
    if len(x) == len(y) and all(_inflected(p, q, language) for p, q in zip(x, y, strict=True)):
        return ("equivalent" if len(x) > 1 else None), shown
    if len({_is_latin(name) for name in (a, b)} - {None}) > 1:
        return None, f"{shown}: two scripts"
    if not language.spaced and not set("".join(x)) & set("".join(y)):
        return "different", shown
    part, whole = sorted(("".join(x), "".join(y)), key=len)
    han = not language.spaced and not _is_latin(a)
    lies = han and (part in whole or (language.code == "zh" and _one_place(part, whole)))
    if lies or _lies_in(x, y, language) or _lies_in(y, x, language):
        return "partial", shown
    if SequenceMatcher(None, part, whole).ratio() >= _ALIKE and not any(c.isdigit() for c in part + whole):
        return None, f"{shown}: spelled alike"
    if _may_shorten(a, y) or _may_shorten(b, x):
        return None, f"{shown}: an abbreviation"
    return "different", shown


def _lies_in(part: tuple[str, ...], whole: tuple[str, ...], language: Language) -> bool:
    """Tell whether a name has every word of another, possibly as an initial."""
    return all(any(_inflected(p, q, language) or (len(p) == 1 and q[0] == p) for q in whole) for p in part)


def _inflected(a: str, b: str, language: Language) -> bool:
    """Tell whether two words differ at most by inflectional endings: "deutsche", "deutschen"."""
    if a == b:
        return True
    stem = next((i for i, (p, q) in enumerate(zip(a, b, strict=False)) if p != q), min(len(a), len(b)))
    ends = language.endings | {""}
    # Their shared letters may be part of both endings: "deutsche(n)".
    return any(k >= 4 and a[k:] in ends and b[k:] in ends for k in range(stem, max(stem - 2, 0), -1))


def _is_latin(mention: str) -> bool | None:
    """Tell whether the letters of a mention are Latin; None where it has none."""
    letters = [c for c in unicodedata.normalize("NFKC", mention) if c.isalpha()]
    return any(unicodedata.name(c, "").startswith("LATIN") for c in letters) if letters else None


def _one_place(a: str, b: str) -> bool:
    """Tell whether two names differ in one character of several, possibly two forms of one."""
    unlike = [(p, q) for p, q in zip(a, b, strict=False) if p != q]
    return len(a) == len(b) > 2 and len(unlike) == 1 and not "".join(unlike[0]).isdigit()


def _may_shorten(short: str, words: tuple[str, ...]) -> bool:
    """Tell whether capitals alone may abbreviate a name of several words ("USA", "Vereinigte Staaten")."""
    letters = re.sub(r"\.\s?", "", short)
    return letters.isalpha() and letters.isupper() and 2 <= len(letters) <= 6 and len(words) > 1
