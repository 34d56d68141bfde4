"""Names as strings: normalisation, spelling variants, plural, word order, acronyms, aliases."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from ..files import check_file
from ..types import UserError
from .numbers import CARDINALS, ORDINALS, roman

#: Common given names: a name that begins with one is a person's, and it has no plural.
GIVEN = frozenset(
    """
    james john robert michael william david richard joseph thomas charles christopher daniel matthew anthony
    mark donald steven paul andrew joshua kenneth kevin brian george edward ronald timothy jason jeffrey
    ryan jacob gary nicholas eric jonathan stephen larry justin scott brandon benjamin samuel gregory
    frank alexander raymond patrick jack dennis jerry tyler aaron jose henry adam douglas nathan peter
    zachary kyle walter harold carl arthur roger keith jeremy terry lawrence sean christian albert joe
    ethan austin jesse willie billy bruce ralph roy eugene louis philip johnny bobby franklin theodore
    frederick ernest martin leonard edgar herbert hugh oscar oliver victor simon alan allen allan francis
    clive gerald ludwig karl johann wolfgang friedrich wilhelm heinrich hans otto pierre jean jacques
    marie francois claude henri charlotte emily anne anna mary patricia jennifer linda elizabeth barbara
    susan jessica sarah karen lisa nancy betty margaret sandra ashley kimberly donna michelle carol amanda
    melissa deborah stephanie rebecca laura sharon cynthia kathleen amy angela shirley brenda emma pamela
    nicole helen samantha katherine christine debra rachel carolyn janet maria catherine heather diane
    ruth julie olivia joyce virginia victoria kelly lauren christina joan evelyn judith agatha jane alice
    eleanor hillary juan carlos luis antonio pedro diego pablo miguel giuseppe giovanni marco luigi ivan
    vladimir sergei nikolai boris leon percy edmund horatio winston neville ulysses abraham isaac noah
    elijah josef erik lars sven olaf adolf adrian agnes aidan akira albrecht aldous alessandro alfred ali
    alicia alison amadeo ana anatoly anders andre andrea andreas andrei angelina angelo anita ann annie
    anton antoine aretha ariana arnold arturo astrid audrey august auguste augustus barack barbra barry
    bart beatrice ben bernard bertrand beth bette beyonce bjorn bob brad bram britney bryan caroline cary
    cate cecil cesar chad charlie che chester chloe chris clara clark clarence claire claudia clint clyde
    cole colin connie cristina curtis cyril dale damon dan dave dean demi denis denzel desmond dick
    dimitri dmitri dolly don dora doris dorothy doug drew duncan dustin dwight dylan earl ed eddie edith
    eduardo edvard edwin eileen elaine elena eli elisabeth elise ella ellen elton elvis emanuel emil emile
    emilia enrico enrique enzo erich erin ernst erwin esther ethel eva evan eve ezra fatima felix
    ferdinand fernando fidel fiona florence floyd fred frida fritz fyodor gabriel gareth gavin gene
    geoffrey georg georges georgia gerard gertrude gilbert gina gloria glenn gordon grace graham greg
    greta guillaume gunther gustav gustave guy hank hannah harriet harry harvey heidi helena helmut henrik
    herman hermann hilary hiroshi holly howard hubert ian ida ignacio igor ingmar ingrid irene iris irving
    isabel isabella jackie jake jan jared jasper javier jay jeanne jeff jen jenny jerome jill jim jimmy jo
    joanna joaquin jodie joel joey johan johannes jon jordan jorge josephine josh juliet julia julian
    julio julius jurgen justine kareem kate kathryn katie katharine kathy katy keira ken kirk klaus
    kristen kurt lance leo leonardo leopold leslie lew lewis liam lily lionel liz lloyd lois lorenzo lou
    louisa louise lucas lucy luther lydia lynn mackenzie madeleine mae malcolm manuel marcel marcus margot
    marianne mariah marilyn marina mario marion marlon marta martha marvin mathilde matt matthias maurice
    max maximilian maya megan melvin meryl mia mick mikhail mike miles milos milton miranda mohandas molly
    mona monica morgan muhammad murray naomi natalia natalie natasha neil nelson nick nicolas niels niklas
    nina nora norma norman octavia oleg oleksandr olga orson orlando osama otis owen pascal paula pauline
    peggy penelope pete phil philippe phyllis placido quentin rafael ramon raphael raul ray reginald
    rembrandt rene ricardo rick rita rob roberto rocky rodney roderick rodrigo roland roman ron rosa
    rosalind rose ross rudolf rudolph rupert russell sally salvador salvatore sam sandro sara saul
    sebastian selma serena serge sergio seth shane sheila sherlock sidney sigmund silvio simone sofia
    sophia sophie spencer stan stanley stefan stella steve stuart sue susanna suzanne sydney sylvia ted
    teresa terence teri thelma theo theresa therese thor tim tina toby todd tom tommy toni tony tracy
    trevor truman umberto ursula valentina valerie vera vernon vic vincent vivian vivien vladislav wallace
    walt wanda warren wayne wendy wilbur wilfred will willem wim winona woody xavier yasser yoko yuri yves
    zoe""".split()
)
LANDFORMS = frozenset(["river", "mount"])
#: "University of X" and "X University" are two institutions.
TWO_UNIVERSITIES = frozenset(["miami", "washington", "york"])
#: Spelling or abbreviation -> the form used in comparisons.
SPELLINGS = dict(
    pair.split(":")
    for pair in (
        "centre:center theatre:theater harbour:harbor labour:labor defence:defense colour:color honour:honor "
        "favourite:favorite grey:gray mohammed:muhammad mohamed:muhammad encyclopaedia:encyclopedia "
        "vol:volume pt:part dr:doctor prof:professor mt:mount ave:avenue bros:brothers corp:corporation "
        "vs:versus v:versus &:and"
    ).split()
)
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
_SMALL_WORDS = frozenset("of the and for in on at to de la del des du und et y a an".split())


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
    kept: list[str] = []
    for c in unicodedata.normalize("NFKD", mention.translate(_LETTERS)):
        marks = unicodedata.category(c).startswith("M")
        if (
            marks
            and kept
            and (unicodedata.name(kept[-1], "").startswith(_UNMARKED) or (kept[-1] in "еЕ" and c == "\u0308"))
        ):
            continue
        kept.append(c if marks or c.isalnum() or c in "’'_" else " ")
    text = " ".join(unicodedata.normalize("NFC", "".join(kept)).casefold().split())
    text = re.sub(r"\s?[’']s\b", "", text).replace("’", " ").replace("'", " ")
    found = text.split()
    last = found[1:][-1:]  # "Vitamin A" ends with no article
    return " ".join([*(w for w in found[: len(found) - len(last)] if w not in ("the", "a", "an")), *last])


@lru_cache(maxsize=8192)
def words(mention: str) -> tuple[str, ...]:
    """Split into normalised words of one spelling: numbers as digits, "&" as "and", "St." as "saint"."""
    for pattern, full in _BEFORE_A_NAME:
        mention = pattern.sub(full, mention)
    found = normalise(mention.replace("&", " and ")).split()
    out = []
    for position, word in enumerate(found):
        following = found[position + 1] if position + 1 < len(found) else ""
        if word == "no" and position and (following.isdigit() or following in CARDINALS):
            continue
        out.append(_word(word, first=position == 0, last=not following))
    return tuple(out)


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
    word = SPELLINGS.get(word, word)
    return re.sub(r"isation(s?)$", r"ization\1", word)


def forms(mention: str) -> list[tuple[str, ...]]:
    """List the word tuples a mention may be compared by, each once, in the order of trial.

    They are plain, with German umlauts as "ue", and with a possessive "s" kept, for missing apostrophes.
    """
    kept = re.sub(r"[’'](?=s\b)", "", mention)
    return list(dict.fromkeys(map(words, (mention, mention.translate(_GERMAN), kept))))


def same_string(a: str, b: str) -> str:
    """Name the spelling difference between two equal names, "" if they are not equal."""
    for x in forms(a):
        for y in forms(b):
            if not x or not y:
                continue
            if x == y:
                return "the same words"
            digits = any(c.isdigit() for c in "".join(x + y))
            if not digits and "".join(x) == "".join(y):
                return "the same letters"
            written_small = all(
                m.split()[-1][:1].islower() for m in (a, b)
            )  # "Wood" and "Woods" are two names
            if written_small and same_plural(x, y):
                return "singular and plural"
            if same_reordered(a, b, x, y):
                return "the same words in another order"
    bare = a.strip().casefold() == b.strip().casefold()
    return "the same signs" if bare else ""


def same_plural(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Tell whether two names differ by the plural of their last word alone ("William", "Williams" do not)."""
    if len(a) != len(b) or a[:-1] != b[:-1] or min(len(a[-1]), len(b[-1])) < 3:
        return False
    one, many = sorted((a[-1], b[-1]), key=len)
    if one in GIVEN:
        return False
    plurals = [one + "s"]
    if one.endswith(("s", "x", "z", "ch", "sh")):
        plurals = [one + "es"]
    elif one.endswith("y") and one[-2] not in "aeiou":
        plurals = [one[:-1] + "ies"]
    return many in plurals


def same_reordered(a: str, b: str, x: tuple[str, ...], y: tuple[str, ...]) -> bool:
    """Tell whether the words of ``x`` and ``y`` are one name in two orders.

    "Einstein, Albert", "University of Oxford", "Symphony No. 5"; any other order is another name.
    """
    x, y = merge_letters(x), merge_letters(y)
    for p, q, written in ((x, y, a), (y, x, b)):
        head, comma, tail = written.partition(",")
        if comma and "," not in tail and len(q) > 1 and words(tail) + words(head) == q:
            return True
        if "of" in p and "of" not in q and not TWO_UNIVERSITIES & set(p):
            cut = p.index("of")
            if p[cut + 1 :] + p[:cut] == q:
                return True
    if sorted(x) != sorted(y) or len(x) < 2:
        return False
    numbers = [w for w in x if w.isdigit()]
    if len(numbers) == 1:
        rest = [tuple(w for w in z if not w.isdigit()) for z in (x, y)]
        return rest[0] == rest[1]
    return len(x) == 2 and bool((LANDFORMS | {"fc"}) & set(x))


def merge_letters(found: tuple[str, ...]) -> tuple[str, ...]:
    """Merge runs of single letters into one word: "f", "c" becomes "fc"."""
    runs = groupby(found, key=lambda word: len(word) == 1 and word.isalpha())
    return tuple(word for single, run in runs for word in (["".join(run)] if single else run))


def acronym_of(short: str, long: str) -> str:
    """Return the capitals that make ``short`` the acronym of ``long``, or ""; "of" and "and" are optional."""
    letters = re.sub(r"[\s.&]", "", short)
    spaced = len(short.split()) > 1 and not re.fullmatch(r"(?:\w\.?\s*)+", short.strip())
    if spaced or not 2 <= len(letters) <= 8 or not letters.isalpha():
        return ""
    if not (letters.isupper() or (letters.islower() and len(letters) > 2)):
        return ""
    parts = [w for w in re.split(r"[\s\-–]+", re.sub(r"[’']s?\b|[.,:()\"]", "", long)) if w not in ("&", "")]
    parts = [unicodedata.normalize("NFKD", w).casefold() for w in parts]
    full = [w for w in parts if w != "the"]
    if len([w for w in full if w not in _SMALL_WORDS]) < 2:
        return ""
    kept_ends = [(full, "")] + ([(full[:-1], full[-1])] if roman(full[-1]) is not None else [])
    for kept, numeral in kept_ends:
        for chosen in (kept, [w for w in kept if w not in _SMALL_WORDS]):
            if "".join(w[0] for w in chosen) + numeral == letters.casefold():
                return letters.upper()
    return ""


#: Names of one thing that no spelling rule can join.
_ALIASES = """
    United States = United States of America = US = U.S. = USA = U.S.A.;
    United Kingdom = UK = U.K. = Great Britain = Britain;
    Soviet Union = USSR = Union of Soviet Socialist Republics; Netherlands = Holland; Myanmar = Burma;
    Sri Lanka = Ceylon; Thailand = Siam; Iran = Persia; Czech Republic = Czechia;
    Ivory Coast = Côte d'Ivoire; Turkey = Türkiye; Eswatini = Swaziland; Cape Verde = Cabo Verde;
    East Timor = Timor-Leste; North Macedonia = Republic of Macedonia;
    China = People's Republic of China = PRC; Taiwan = Republic of China; South Korea = Republic of Korea;
    North Korea = Democratic People's Republic of Korea = DPRK;
    East Germany = German Democratic Republic = GDR; West Germany = Federal Republic of Germany;
    France = French Republic; Mumbai = Bombay; Kolkata = Calcutta; Chennai = Madras; Beijing = Peking;
    Guangzhou = Canton; Istanbul = Constantinople; Kyiv = Kiev; Ho Chi Minh City = Saigon;
    Saint Petersburg = Leningrad = Petrograd; Volgograd = Stalingrad; Oslo = Christiania; Tokyo = Edo;
    Florence = Firenze; Venice = Venezia; Naples = Napoli; Turin = Torino; Milan = Milano; Rome = Roma;
    Munich = München; Cologne = Köln; Nuremberg = Nürnberg; Vienna = Wien; Prague = Praha; Warsaw = Warszawa;
    Lisbon = Lisboa; Copenhagen = København; Gothenburg = Göteborg; The Hague = Den Haag;
    Antwerp = Antwerpen; Moscow = Moskva; Los Angeles = L.A.; New York City = NYC;
    Washington, D.C. = Washington DC; World War I = First World War = Great War = WWI;
    World War II = Second World War = WWII; Manchester United = Man United = Man Utd;
    Manchester City = Man City; Mao Zedong = Mao Tse-tung;
    Mark Twain = Samuel Clemens = Samuel Langhorne Clemens; George Orwell = Eric Blair = Eric Arthur Blair;
    Lewis Carroll = Charles Lutwidge Dodgson = Charles Dodgson; Muhammad Ali = Cassius Clay;
    Pelé = Edson Arantes do Nascimento; Ottoman Empire = Turkish Empire; European Union = EU;
    Byzantine Empire = Eastern Roman Empire
"""


class AliasTable:
    """Groups of names with the same meaning, looked up without regard to case and punctuation."""

    def __init__(self, groups: Iterable[Iterable[str]]):
        self._groups: dict[tuple[str, ...], set[int]] = {}
        for number, group in enumerate(groups):
            for name in group:
                self._groups.setdefault(words(name), set()).add(number)

    def same(self, a: str, b: str) -> bool:
        return bool(self._groups.get(words(a), set()) & self._groups.get(words(b), set()))


@lru_cache(maxsize=1)
def common_aliases() -> AliasTable:
    """Return the table of well-known names, built once."""
    return AliasTable(group.strip().split(" = ") for group in _ALIASES.split(";"))


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
        if not listed or not all(isinstance(name, str) and words(name) for name in group):
            told = 'expected a JSON list of two or more names, as in ["Bombay", "Mumbai"]'
            raise UserError(f"{path}, line {number}: {told}", "bad-line")
        groups.append(group)
    return AliasTable(groups)
