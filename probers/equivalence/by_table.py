"""Equivalence of mentions in languages other than English: times and numbers by value, names by spelling.

Lists of given names, nicknames and well-known aliases exist for English only. Pairs that would need them stay
undecided.
"""

from __future__ import annotations

import math
import re
import unicodedata
from difflib import SequenceMatcher

from ..languages import Language
from ..languages.values import find_moments, find_values
from .dates import Time
from .names import normalise
from .numbers import Number, Relation, roman

#: Names at least this similar may be two spellings of one.
_ALIKE = 0.8
#: Two ways of writing the same sound in katakana: ヴァ and バ, a long vowel at the end.
_KANA = [
    (re.compile(a), b)
    for a, b in (("ヴァ", "バ"), ("ヴィ", "ビ"), ("ヴェ", "ベ"), ("ヴォ", "ボ"), ("ヴ", "ブ"))
]
_LONG = re.compile(r"(?<=[ァ-ヴー]{2})ー(?![ァ-ヴ])")
#: Common traditional Chinese characters, each followed by its simplified form; Japan uses both kinds.
_PAIRS = (
    "國国臺台灣湾學学會会東东長长門门馬马車车龍龙華华萬万陳陈張张劉刘楊杨趙赵黃黄吳吴孫孙鄭郑馮冯許许鄧邓蕭萧葉叶蔣蒋蘇苏盧卢賈贾鍾钟譚谭"
    "陸陆韓韩鄒邹賴赖龔龚廣广漢汉寧宁濟济爾尔亞亚歐欧羅罗蘭兰維维納纳烏乌愛爱瑪玛麗丽傑杰倫伦約约紐纽澤泽齊齐魯鲁遼辽陝陕雲云貴贵慶庆閩闽"
    "贛赣滬沪個个條条經经濟济語语書书報报電电視视戰战爭争義义黨党軍军聯联島岛縣县區区鄉乡鎮镇銀银鐵铁機机場场歷历曆历紀纪運运動动體体協协聖圣"
    "醫医藥药農农業业產产鳳凤鷹鹰雙双單单關关開开陽阳陰阴雞鸡鴨鸭魚鱼鳥鸟獅狮點点線线緬缅韋韦諾诺賽赛賓宾達达遠远還还邊边"
)
_SIMPLE = str.maketrans(dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True)))


def read_time_in(mention: str, language: Language) -> Time | None:
    """Read the time that a whole mention names, or None."""
    text = mention.strip(" ,;:()")
    for month, names in enumerate(language.months, 1):
        if re.fullmatch(names, text, re.IGNORECASE):
            return Time("day", (None, month, None))
    found = [m for m in find_moments(text, language) if m.end - m.start == len(text)]
    return Time(found[0].kind, found[0].parts) if found else None


def read_number_in(mention: str, language: Language) -> Number | None:
    """Read the number, with its unit, of a whole mention; None also for one with two readings."""
    # "3." is an ordinal only where a word follows.
    text = mention.strip(" ,;:()")
    padded = f"{next(iter(sorted(language.articles)), '')} {text} X" if text.endswith(".") else text
    shift = len(padded) - len(text) - 2 if text.endswith(".") else 0
    for value in find_values(padded, language):
        if value.start == shift and value.end - value.start == len(text) and not math.isnan(value.value):
            return Number(value.value, value.unit, value.ordinal)
    return None


def counts(mention: str, language: Language) -> bool:
    """Tell whether a mention holds a digit or number word, so that its spelling decides nothing."""
    return any(c.isnumeric() for c in mention) or next(find_values(mention, language), None) is not None


def spelled(mention: str, language: Language) -> tuple[str, ...]:
    """Spell the words of a name in one way: without case, accents, punctuation and a leading article."""
    text = unicodedata.normalize("NFKC", mention)
    if not language.spaced:
        for pattern, kana in _KANA:
            text = pattern.sub(kana, text)
        text = _LONG.sub("", text).translate(_SIMPLE)
    if language.code == "de":
        text = re.sub("[äöüÄÖÜ]", lambda m: {"ä": "ae", "ö": "oe", "ü": "ue"}[m[0].lower()], text)
    found = normalise(text.replace("’", "'").replace("'", " ")).split()
    while len(found) > 1 and found[0] in language.articles:
        found = found[1:]
    numbered = (str(roman(word) or word) if place else word for place, word in enumerate(found))
    return tuple(numbered)


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
    whole, part = ("".join(sorted((x, y), key=lambda z: len("".join(z)))[i]) for i in (1, 0))
    if _lies_in(x, y, language) or _lies_in(y, x, language):
        return "partial", shown
    han = not language.spaced and not _is_latin(a)
    if han and (part in whole or (language.code == "zh" and _one_place(part, whole))):
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
    return len(a) == len(b) > 2 and sum(p != q for p, q in zip(a, b, strict=True)) == 1


def _may_shorten(short: str, words: tuple[str, ...]) -> bool:
    """Tell whether capitals alone may abbreviate a name of several words ("USA", "Vereinigte Staaten")."""
    letters = short.replace(".", "")
    return letters.isalpha() and letters.isupper() and 2 <= len(letters) <= 6 and len(words) > 1
