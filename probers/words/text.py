"""Words, sentences and spans of text: borders of sentences, stop words and content words, detokenising.

Also the places of a text's parts in its original, from which a tokenizer's normaliser has made it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import regex

from ..types import Span, UserError
from .language import ENGLISH, Language

#: A character, and its place in the text that it was made of.
Letter = tuple[str, int]

#: Parts of speech that carry content in DRAGIN's released code.
CONTENT_POS = frozenset({"NOUN", "ADJ", "VERB", "PROPN", "NUM"})
TAGGER = "en_core_web_sm"
#: Marks that end a sentence of other scripts, which no space follows.
_ENDS = "。！？｡।॥؟۔։።፧။។‽⁇⁈⁉"
#: Marks that no space may follow, and marks that may close after them.
_WIDE = "。！？」』）】"
#: A letter of a script that writes no spaces after its sentences.
_WIDE_LETTER = "[\u3040-\u30ff\u3400-\u9fff]"
_END = re.compile(
    rf"""[.!?…]+["'”’)\]]*(?=\s|$)|(?<={_WIDE_LETTER})[.!?]+(?={_WIDE_LETTER})|[{_ENDS}]+["'”’)\]」』）】]*|\n+"""
)
_LAST_WORD = re.compile(r"[\w.]*\w$")


class Cover:
    """The characters of a text that spans cover."""

    def __init__(self, length: int) -> None:
        self._taken = bytearray(length)

    def free(self, span: Span) -> bool:
        return not any(self._taken[slice(*span)])

    def take(self, span: Span) -> bool:
        """Cover a span if it is free, and tell whether it was."""
        if free := self.free(span):
            self._taken[slice(*span)] = b"\1" * (span[1] - span[0])
        return free

    def take_longest(self, spans: Iterable[Span]) -> list[Span]:
        """Cover the free spans, the longest first, then from left to right, and return them."""
        return [span for span in sorted(set(spans), key=lambda s: (s[0] - s[1], s[0])) if self.take(span)]


@cache
def _border(language: Language) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compile the pattern of a sentence's end with its closing marks, and of what leads to the next word."""
    if language.english:
        return _END, re.compile(r"""\s*["'“‘(\[]*(\w*)""")
    closing = language.closing
    closers = rf"(?:\s?[{closing}])?" if closing else ""
    end = rf"""[.!?…]+["'”’)\]{closing}]*{closers}(?=\s|$)|[。！？]+["'”’)\]」』）】]*|\n+"""
    return re.compile(end), re.compile(rf"""[\s"'“‘(\[¿¡{language.opening}]*(\w*)""")


def split_sentences(text: str, language: Language = ENGLISH) -> list[tuple[int, int]]:
    """Find [start, end) of every sentence, without the white space around it.

    A sentence ends at ``.``, ``!``, ``?`` or an ellipsis before white space, at the marks of Chinese,
    Japanese, Hindi, Arabic and Urdu, and at a line break; not after titles, initials and abbreviations, and
    not before a lower-case word. Every visible character lies in exactly one sentence. The titles and
    abbreviations are those of ``language``; English is right for texts of unknown language too.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for match in _border(language)[0].finditer(text):
        if _is_border(text, match, language):
            spans.append((start, match.end()))
            start = match.end()
    spans.append((start, len(text)))
    return [_trim(text, *span) for span in spans if text[slice(*span)].strip()]


def _is_border(text: str, match: re.Match[str], language: Language) -> bool:
    mark = match.group()
    if "\n" in mark or mark[0] in _ENDS:
        return len(mark) == 1 or language.goes_on is None or not language.goes_on.match(text, match.end())
    following = _border(language)[1].match(text, match.end())
    word = following[1] if following else ""
    if "\n" in text[match.end() : following.start(1) if following else match.end()] or not word:
        return True
    if word[0].islower():
        return False
    if mark[0] != ".":
        return True
    before = _LAST_WORD.search(text, max(0, match.start() - 20), match.start())
    last = before[0] if before else ""
    if last.lower() in language.titles:
        return False
    if last.lower() == "no" and language.english:  # "No. 5" against "He said no. Then .."
        return not word[0].isdigit()
    initial = (len(last) == 1 and last.isupper()) or re.fullmatch(r"(?:[A-Z]\.)+[A-Z]", last)
    numbered = language.numbered is not None and language.numbered.fullmatch(last)
    return not (initial or numbered or last.lower() in language.abbreviations) or word in language.starters


_TOKEN = re.compile(r"\w+")
#: Marks that a word may be written without: soft hyphens, joiners, tatweel, Arabic and Hebrew vowel points.
_UNWRITTEN = re.compile(
    "[\u00ad\u200c-\u200f\u2060\ufeff\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670]"
)
#: Words of any script with their vowel signs and accents.
_ANY_WORD = regex.compile(r"[\w\p{M}]+")
#: Scripts that write no spaces between words.
_UNSPACED = regex.compile(r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー]+)")
#: Blocks with all letters of these scripts, but not Europe's and its punctuation: a quick exclusion.
_MAY_BE_UNSPACED = re.compile("[\u0e00-\u1fff\u2e80-\U0010ffff]")


def tokenize(text: str, *, characters: bool = False) -> list[str]:
    """Split into words without case and form (NFKC): runs of letters, digits, marks and underscores.

    A run of a script without spaces gives its pairs of characters, or its ``characters``. No stemming, no
    stop list.
    """
    if text.isascii():
        return _TOKEN.findall(text.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words: list[str] = _ANY_WORD.findall(_UNWRITTEN.sub("", folded).replace("i\u0307", "i"))  # from "İ"
    if not _MAY_BE_UNSPACED.search(folded):
        return words
    tokens: list[str] = []
    for word in words:
        for place, run in enumerate(_UNSPACED.split(word)):
            if place % 2 and len(run) > 1:
                tokens += run if characters else map("".join, pairwise(run))
            elif run:
                tokens.append(run)
    return tokens


def join_sentences(sentences: Iterable[str]) -> str:
    """Join sentences by spaces; none follows the full-width marks of Chinese and Japanese."""
    parts: list[str] = []
    for sentence in sentences:
        spaced = bool(parts) and parts[-1][-1:] not in tuple(_WIDE)
        parts += [" ", sentence] if spaced else [sentence]
    return "".join(parts)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), start + len(inner.rstrip())


@cache
def stop_words() -> frozenset[str]:
    """Read spaCy's English stop words, lower case, without importing spaCy, which takes seconds."""
    package = find_spec("spacy")
    if package is None or not package.submodule_search_locations:
        raise UserError("the stop words are spaCy's, which is missing: pip install spacy", "missing-extra")
    path = Path(next(iter(package.submodule_search_locations))) / "lang" / "en" / "stop_words.py"
    names: dict[str, Any] = {}
    exec(path.read_text("utf-8"), names)  # runpy would also change sys.argv, for every thread
    return frozenset(names["STOP_WORDS"])


def is_stop_word(word: str) -> bool:
    """Tell whether a word, without punctuation, is a stop word, or a contraction of two ("he's")."""
    bare = re.sub(r"^\W+|\W+$", "", word).lower().replace("’", "'")
    contraction = re.fullmatch(r"(.+?)(n't|'(?:d|ll|m|re|s|ve))", bare)
    return bare in stop_words() or (contraction is not None and stop_words().issuperset(contraction.groups()))


@cache
def _tagger() -> Any:
    """Load the small English pipeline of spaCy, or None if it is not installed."""
    if find_spec("spacy") is None or find_spec(TAGGER) is None:
        return None
    import spacy

    # The parser stays: from its result "has" and "have" are tagged as verbs or auxiliaries.
    return spacy.load(TAGGER, exclude=["ner", "lemmatizer"])


def content_filter() -> str:
    """Name the content-word rule in use: "pos" with pipeline and version, or "stop words"."""
    tagger = _tagger()
    return "stop words" if tagger is None else f"pos {TAGGER} {tagger.meta['version']}"


def is_content(text: str, words: list[str]) -> list[bool]:
    """Tell whether each white-space separated word of a text carries content.

    With spaCy's ``en_core_web_sm``: it contains a token tagged as noun, adjective, verb, proper noun or
    number (as a substring, like DRAGIN's released code). Without: it has a letter or digit and is no stop
    word.
    """
    tagger = _tagger()
    if tagger is None:
        return [any(c.isalnum() for c in word) and not is_stop_word(word) for word in words]
    real = {token.text for token in tagger(text) if token.pos_ in CONTENT_POS}
    return [any(token in word for token in real) for word in words]


_BRACKET = re.compile(r"(?<=[\w)])([(\[]) (?=\S)|^([(\[]) (?=\S)")
_QUOTED = re.compile(r"(?<=[\w)])\(\" (?=\S)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])- (?!(?:and|or|to|nor|but)\b)(?=[^\W_])")
_AMPERSAND = re.compile(r"(?<=\w)& (?=\w)")
_OPENING = re.compile(r"(?:[^\W\d_]|[,:;'])\"\s\S")  # after a digit it means inches


def is_shifted(sentence: str) -> bool:
    """Tell whether a sentence opens a bracket or its first quote with misplaced spaces."""
    place = sentence.find('"')
    quoted = sentence.count('"') % 2 == 0 and place > 0 and _OPENING.match(sentence, place - 1)
    return bool(quoted or _BRACKET.search(sentence) or _QUOTED.search(sentence))


def _unshift(sentence: str) -> str:
    """Move opening marks of a sentence before the text that they open, and join broken hyphens."""
    sentence = _QUOTED.sub(' ("', sentence)
    sentence = _BRACKET.sub(lambda m: f" {m[1]}" if m[1] else m[2], sentence)
    parts = sentence.split('"')
    # The text inside each pair of quotes; of an odd number it cannot be told which ones open.
    for index in range(1, len(parts) if len(parts) % 2 else 0, 2):
        before, inside = parts[index - 1], parts[index]
        if inside[:1] == " " and (not before or not before[-1].isspace()):
            parts[index - 1 : index + 1] = [f"{before} " if before else before, inside[1:]]
    return _AMPERSAND.sub(" & ", _HYPHEN.sub("-", '"'.join(parts)))


#: Tokens that reveal tokenised text, since natural text attaches them to a word.
#: Not ``: ; ! ?``, which French sets after a space.
_DETACHED = re.compile(r"[,.()]|['’](?:s|t|re|ve|ll|d|m)|n['’]t|@[-,.]@|``|-[LR]RB-", re.IGNORECASE)
_ATTACHED = re.compile(r"[\w\"”'’)]+[,;:!?)]|\(\w+\S*|.*\w\.[\"”)]*$|\w+(?:['’]s|n['’]t)")
_LEFT = re.compile(r"[,.;:!?%)\]}…′″]|\.{2,}|['’](?:s|t|re|ve|ll|d|m)|n['’]t", re.IGNORECASE)
_RIGHT = frozenset(["(", "[", "{", "$", "£", "€", "₱", "¡", "¿"])
_REPLACED = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]"}
_DOLLARS = frozenset(["US", "A", "C", "CA", "AU", "NZ", "HK", "S", "R"])
#: Words that begin with an apostrophe of their own.
_ELIDED = re.compile(r"['’](?:n|em|til|cause|round|bout|tis|twas|\d0s|\d\d)", re.IGNORECASE)
_PREFIX = frozenset(["D", "L", "O", "M", "N", "d", "l", "o"])


def is_tokenised(text: str) -> bool:
    """Tell whether punctuation is more often alone between spaces than attached to words."""
    detached = attached = 0
    for line in text.splitlines():
        tokens = line.split()
        for position, token in enumerate(tokens):
            if _DETACHED.fullmatch(token):
                if token[0] == "@":
                    return True  # no natural text has this
                ellipsis = token == "." and tokens[max(0, position - 1) : position + 2].count(".") > 1
                detached += not ellipsis
            elif token[-1] != "." or position == len(tokens) - 1:  # "Inc." may end any token, "end." the last
                attached += _ATTACHED.fullmatch(token) is not None
    return detached > attached


def detokenise_sentences(sentences: Sequence[str]) -> list[str]:
    """Restore natural text from pre-tokenised text ("( born 1950 ) , Cuba 's" to "(born 1950), Cuba's").

    Some question sets (2WikiMultihopQA) have Wikipedia's text in this form. The sentences of one article are
    judged together, because a short one alone may not show that it was tokenised. Natural text is unchanged,
    byte for byte: it never opens a bracket after a letter and before a space, nor a sentence's first quote.
    """
    if not is_tokenised("\n".join(sentences)):
        shifted = any(map(is_shifted, sentences))
        return [_unshift(sentence) for sentence in sentences] if shifted else list(sentences)
    return ["".join(map(_join, sentence.splitlines(keepends=True))) for sentence in sentences]


def _join(line: str) -> str:
    tokens = [_REPLACED.get(token, token) for token in line.split()]
    parts: list[str] = []
    double = single = False  # inside quotes of either kind
    glue = True  # whether the next token follows without a space
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else ""
        after = tokens[position + 1] if position + 1 < len(tokens) else ""
        left = right = False
        if infix := re.fullmatch(r"@([-,.])@", token):
            token, left, right = infix[1], True, True
        elif token == '"':
            closing = double or not after
            left, right, double = closing, not closing, not closing
        elif token in ("'", "’"):
            elides, further = _elides(before), token in tokens[position + 1 :]
            right = not single and not elides and further
            left, single = not right, right or (single and elides and further)
        elif _LEFT.fullmatch(token):
            left = True
            right = (token == ":" and _digits(before, after)) or token == after == "."
        elif token in _RIGHT:
            left, right = token == "$" and before in _DOLLARS, True
        elif token == "#":
            right = after[:1].isdigit()
        elif token == "°":
            left, right = after[:1] not in ("C", "F"), True
        elif token == "/":
            left = right = True
        elif token == "&":
            left = right = all(len(t) == 1 and t.isupper() for t in (before, after))
        elif token == "–":
            left = right = _is_range(tokens, position)
        elif token[0] in "'’" and len(token) > 1:
            left = _continues(before, token)
        if parts and not (glue or left):
            parts.append(" ")
        parts.append(token)
        glue = right
    return "".join(parts) + line[len(line.rstrip("\r\n")) :]


def _elides(word: str) -> bool:
    """Tell whether an apostrophe after the word belongs to it: a plural's possessive, "gettin'", "'n'"."""
    return word.lower().endswith(("s", "x", "z", "in", "'n", "’n")) or word == "o"


def _continues(before: str, token: str) -> bool:
    """Tell whether "'Brien", "'an" is the rest of a word ("O'Brien", "Xi'an") and no opening quote."""
    name = before.isalpha() and before[0].isupper() and token[1:].islower()
    return not _ELIDED.fullmatch(token) and (before in _PREFIX or name)


def _digits(before: str, after: str) -> bool:
    return before[-1:].isdigit() and after[:1].isdigit()


def _is_range(tokens: list[str], position: int) -> bool:
    """Tell whether an en dash joins two numbers; between two full dates it keeps its spaces."""
    first, before, _, after, last = ["", "", *tokens, "", ""][position : position + 5]
    if not _digits(before, after) or not re.fullmatch(r"\d{4}", before):
        return _digits(before, after)
    return not (first == "," or {first, last} & {*ENGLISH.months})


def letters_of(text: str) -> list[Letter]:
    """List the characters of a text but spaces, and SentencePiece's mark for one, with their places."""
    return [(sign, i) for i, sign in enumerate(text) if sign != "▁" and not sign.isspace()]


def original_spans(
    original: str, letters: Sequence[Letter], text: str, spans: Sequence[Span]
) -> tuple[str, tuple[Span, ...]]:
    """Map [start, end) parts of a normalised text, which follow each other, to its original.

    ``letters`` are the characters that the original is normalised to, with their places in it. The text has
    these characters, or the first of them, with spaces of its own. A part has all of an original character
    that it shares, with its accents; spaces and other dropped characters go with the next one.

    Returns:
        The original up to the last part, and the parts in it.
    """
    starts = [*(place for _, place in letters), len(original)]
    clusters = [match.end() for match in regex.finditer(r"\X", original) for _ in match[0]]
    ends, following = [0] * len(letters), len(original)
    for i in reversed(range(len(letters))):
        following = starts[i + 1] if starts[i + 1] > starts[i] else following
        last = following == len(original) and letters_of(text[-1:])  # then the spaces after it were dropped
        ends[i] = following if last else min(following, clusters[starts[i]])
    # Letters in each beginning of the text.
    seen = [0, *(min(len(letters), n) for n in accumulate(bool(letters_of(sign)) for sign in text))]
    place, mapped = 0, list[Span]()
    for start, end in spans:
        first, after = seen[start], seen[end]
        begun, over = place, place
        if after > first:
            begun, over = min(place, starts[first]), ends[after - 1]
        if spaces_after := end - next((k for k in range(end, start, -1) if seen[k - 1] < after), start):
            before_letter, upto = end == len(text) or seen[end + 1] > after, starts[after]
            if after < len(letters):  # a character that was dropped before a letter goes with it
                upto = next((k for k in range(upto, over, -1) if original[k - 1].isspace()), over)
            over = upto if before_letter else min(over + spaces_after, upto)
        mapped.append((begun, max(begun, over)))
        place = max(place, over)
    return original[:place], tuple(mapped)
