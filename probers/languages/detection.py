"""The language of texts, by their script and, in Latin script, by their most frequent words."""

from __future__ import annotations

import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import regex

from ..types import UserError
from . import ENGLISH, LANGUAGES, Language
from .base import words

log = logging.getLogger(__name__)

#: Number of characters read of a text.
_LOOK = 3000
#: Least number of words in Latin script that tell a language, and least number to call it unknown.
_FEW, _ENOUGH = 10, 40
#: Share of function words of a known language; in running text it is .3 to .5.
_LEAST = 0.18
#: Least share of the texts in one language.
_MOST = 0.9
#: Frequent words of other languages in Latin script, to tell them from supported ones.
_OTHERS = """
    Italian: il lo la gli le di del della dei delle e è che un una per con non si sono in nel nella da dal
    come più anche al alla ha fu suo sua questo;
    Portuguese: o a os as um uma de do da dos das e é que em no na nos nas por para com não se ao à foi
    são mais como seu sua pelo pela também ou;
    Dutch: de het een van en in is dat op te zijn met voor niet aan er om ook als bij door naar uit werd
    wordt deze die hij maar nog over haar;
    Swedish: och i att en ett det som är på av för med den till har de inte om var från vid hans han hon
    sin men efter kan eller under mellan;
    Danish: og i at en et det som er på af for med den til har de ikke om var fra ved hans han hun sin men
    efter kan eller blev også der;
    Norwegian: og i at en et det som er på av for med den til har de ikke om var fra ved hans han hun sin
    men etter kan eller ble også;
    Finnish: ja on oli ei se hän että joka myös kuin mutta ovat olivat sekä tai jonka sen hänen mukaan
    vuonna jälkeen kanssa;
    Polish: i w na z się do jest nie że od po o jako przez oraz za był była są to a dla które który jego
    ich także roku;
    Czech: a v na se je do z s že byl byla jako po o pro od který která ve za jeho také nebo roce i k jsou
    jej;
    Hungarian: a az és egy hogy nem is volt meg van ez el mint de csak vagy után ki számára évben amely;
    Turkish: ve bir bu da de ile için olarak olan daha çok en gibi kadar sonra ise ya tarafından yılında
    oldu;
    Romanian: și de în la a cu o un din pe este care că nu sau mai pentru au fost ca prin al ai ale lui
    între;
    Catalan: el la els les de i que en un una per amb no és del dels al va ser com més seu seva ha entre
    són d l;
    Indonesian: yang dan di dari ini itu dengan untuk pada adalah dalam tidak ke sebagai oleh atau juga ia
    akan dapat telah tahun;
    Vietnamese: của và là các có được trong một cho không với những này người để đã từ ông năm khi đến ở;
    Galician: o a os as un unha de do da dos das e é que en no na nos nas por para con non se ao á foi son
    máis como seu súa tamén ou;
    Croatian: i u je na se za su od da s a koji koja kao iz o do po bio bila te ili nije što godine
    njegov;
    Esperanto: la de kaj en estas al estis por kun oni ne ke li kiu kiuj sed ankaŭ el unu pri per lia
    post;
    Latin: et in est ad ut non cum qui quae quod ex ab de per sed etiam atque eius sunt esse a aut
"""
_WORD = regex.compile(r"[\p{Latin}]+")


@lru_cache
def _vocabularies() -> dict[str, frozenset[str]]:
    others = (group.partition(":") for group in _OTHERS.split(";"))
    latin = {code: each.function_words for code, each in LANGUAGES.items() if each.spaced}
    return latin | {name.strip(): words(listed) for name, _, listed in others}


@lru_cache(maxsize=65536)
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def language_in(text: str) -> str:
    """Name the language of a text: a code, "Portuguese", "Cyrillic script", "unknown", or "" if unsure."""
    scripts = Counter(map(_script, text[:_LOOK]))
    for kana in ("KATAKANA-HIRAGANA", "KATAKANA", "HIRAGANA"):
        scripts["KANA"] += scripts.pop(kana, 0)
    scripts["CJK"] += scripts["KANA"]
    total = sum(scripts[name] for name in scripts if name not in ("", "KANA"))
    if not total:
        return ""
    script = max((name for name in scripts if name not in ("", "KANA")), key=lambda name: scripts[name])
    if script == "CJK":
        if total < _FEW:
            return ""
        return "ja" if scripts["KANA"] >= 0.1 * scripts["CJK"] else "zh"
    if script == "HANGUL":
        return "Korean"
    return _latin(text[:_LOOK]) if script == "LATIN" else f"{script.capitalize()} script"


def _latin(text: str) -> str:
    found = [word.lower() for word in _WORD.findall(text)]
    if len(found) < _FEW:
        return ""
    shares = {
        name: sum(map(known.__contains__, found)) / len(found) for name, known in _vocabularies().items()
    }
    best = max(shares, key=lambda name: shares[name])
    if shares[best] >= _LEAST:
        return best
    return "unknown" if len(found) >= _ENOUGH else ""


def detect(texts: Iterable[str]) -> Language:
    """Find the language of most texts and log it; English if they are too short to tell.

    Raises:
        UserError: a language that is not supported, or several languages.
    """
    found = Counter(map(language_in, texts))
    total, unsure = found.total(), found.pop("", 0)
    if not found:
        log.info("language: English (en), since the %d texts are too short to tell", unsure)
        return ENGLISH
    (best, count), told = found.most_common(1)[0], total - unsure
    shown = ", ".join(f"{n} {_shown(name)}" for name, n in found.most_common(4))
    supported = sum(n for name, n in found.items() if name in LANGUAGES)
    if supported <= (1 - _MOST) * told:
        listed = ", ".join(each.name for each in LANGUAGES.values())
        told_of = f"language=auto: of {total} texts {shown}, which is not supported"
        remedy = f"labels are made of {listed}; language=CODE reads them as one of these"
        raise UserError(f"{told_of}: {remedy}", "unsupported")
    if count < _MOST * told or best not in LANGUAGES:
        remedy = "give texts of one language, or language=CODE to read all of them as that"
        raise UserError(
            f"language=auto: the texts are in several languages ({shown}): {remedy}", "unsupported"
        )
    log.info("language: %s (%s), found in %d of %d texts", LANGUAGES[best].name, best, count, total)
    return LANGUAGES[best]


def _shown(name: str) -> str:
    known = LANGUAGES[name].name if name in LANGUAGES else name
    return "in no language that is known" if name == "unknown" else f"in {known}"
