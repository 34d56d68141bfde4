"""Natural text back from pre-tokenised text ("( born 1950 ) , Cuba 's" to "(born 1950), Cuba's").

This is what some question sets (2WikiMultihopQA) have for Wikipedia's text. Natural text never opens a
bracket after a letter and before a space, nor a sentence's first quote. It is returned as it is, byte for
byte: nothing is changed unless most of the text's punctuation stands alone between spaces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...entities import MONTHS

_BRACKET = re.compile(r"(?<=[\w)])([(\[]) (?=\S)|^([(\[]) (?=\S)")
_QUOTED = re.compile(r"(?<=[\w)])\(\" (?=\S)")
_HYPHEN = re.compile(r"(?<=[^\W\d_])- (?!(?:and|or|to|nor|but)\b)(?=[^\W_])")
_AMPERSAND = re.compile(r"(?<=\w)& (?=\w)")
_OPENING = re.compile(r"(?:[^\W\d_]|[,:;'])\"\s\S")  # after a digit it is inches


def is_shifted(sentence: str) -> bool:
    """Tell whether a sentence opens a bracket or its first quote the shifted way."""
    if _BRACKET.search(sentence) or _QUOTED.search(sentence):
        return True
    place = sentence.find('"')
    return sentence.count('"') % 2 == 0 and place > 0 and bool(_OPENING.match(sentence, place - 1))


def _unshift(sentence: str) -> str:
    """The sentence with its opening marks before what they open, and broken hyphens joined."""
    sentence = _QUOTED.sub(' ("', sentence)
    sentence = _BRACKET.sub(lambda m: f" {m[1]}" if m[1] else m[2], sentence)
    return _AMPERSAND.sub(" & ", _HYPHEN.sub("-", _unshift_quotes(sentence)))


def _unshift_quotes(sentence: str) -> str:
    if sentence.count('"') % 2:
        return sentence  # which ones open cannot be told
    parts = sentence.split('"')
    for index in range(1, len(parts), 2):  # the text inside each pair of quotes
        before, inside = parts[index - 1], parts[index]
        if inside[:1] == " " and (not before or not before[-1].isspace()):
            parts[index - 1] = f"{before} " if before else before
            parts[index] = inside[1:]
    return '"'.join(parts)


#: Tokens that show tokenised text, because natural text attaches them to a word.
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
    """Tell whether punctuation stands alone between spaces more often than it is attached to words."""
    detached = attached = 0
    for line in text.splitlines():
        tokens = line.split()
        for position, token in enumerate(tokens):
            around = [*tokens[max(0, position - 1) : position], *tokens[position + 1 : position + 2]]
            spaced_ellipsis = token == "." and "." in around
            if _DETACHED.fullmatch(token):
                if token[0] == "@":
                    return True  # no other text writes this
                detached += not spaced_ellipsis
            elif token[-1] != "." or position == len(tokens) - 1:  # "Inc." may end any token, "end." the last
                attached += _ATTACHED.fullmatch(token) is not None
    return detached > attached


def detokenise_sentences(sentences: Sequence[str]) -> list[str]:
    """The sentences of one article in natural text, judged together so that all or none are mended.

    A short sentence alone may not show that it was tokenised. Line breaks are kept.
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
        infix = re.fullmatch(r"@([-,.])@", token)
        left = right = False
        if infix:
            token, left, right = infix.group(1), True, True
        elif token == '"':
            closing = double or not after
            left, right, double = closing, not closing, not closing
        elif token in ("'", "’"):
            opens = not single and not _elides(before) and token in tokens[position + 1 :]
            left, right = not opens, opens
            single = opens or (single and _elides(before) and token in tokens[position + 1 :])
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
    """Tell whether an apostrophe after the word is its own: a plural's possessive, "gettin'", "'n'"."""
    return word.lower().endswith(("s", "x", "z", "in", "'n", "’n")) or word == "o"


def _continues(before: str, token: str) -> bool:
    """Tell whether "'Brien", "'an" is the rest of a word ("O'Brien", "Xi'an") and no opening quote."""
    if _ELIDED.fullmatch(token):
        return False
    return before in _PREFIX or (before.isalpha() and before[0].isupper() and token[1:].islower())


def _digits(before: str, after: str) -> bool:
    return before[-1:].isdigit() and after[:1].isdigit()


def _is_range(tokens: list[str], position: int) -> bool:
    """Tell whether an en dash joins two numbers; between two full dates it keeps its spaces."""
    before, after = tokens[position - 1 : position], tokens[position + 1 : position + 2]
    if not before or not after or not _digits(before[0], after[0]):
        return False
    if not re.fullmatch(r"\d{4}", before[0]):
        return True
    dated = position >= 2 and (tokens[position - 2] in MONTHS or tokens[position - 2] == ",")
    return not dated and (position + 2 >= len(tokens) or tokens[position + 2] not in MONTHS)
