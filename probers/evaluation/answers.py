"""Judgement of generated answers against gold answers, by the rules of question answering.

Normalisation, EM and F1 are those of SQuAD's evaluation script (Rajpurkar et al., EMNLP 2016); the rule for
yes, no and noanswer is HotpotQA's (Yang et al., EMNLP 2018). Every score is the maximum over the accepted
answers.
"""

from __future__ import annotations

import html
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Literal, NamedTuple

from ..words import EntityMatcher, find_entities, head_entity
from ..words.thinking import answer_in

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Answers without partial credit: "no" shares no meaning with "no evidence".
_VERDICTS = frozenset({"yes", "no", "noanswer"})
#: Question sets with only yes and no as answers.
_YES_OR_NO = frozenset({"strategyqa"})

_TAGS = (
    "a|b|big|blockquote|br|center|code|div|em|font|h[1-6]|i|li|mark|ol|p|pre|q|s|small|span|strong|sub|sup|tt|u|ul|"
    "answer|final|final_answer|output|response|result"
)
#: Markup around an answer, and its replacement: boxes of LaTeX, tags, links, emphasis, code.
_MARKUP = tuple((re.compile(pattern, re.IGNORECASE | re.DOTALL), inner) for pattern, inner in (
    (r"\\(?:f?box(?:ed)?|text(?:bf|it|rm)?|emph|underline|math(?:rm|bf|it))"
     r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1"),
    (rf"</?(?:{_TAGS})(?:\s+[\w-]+=[^<>]*)?\s*/?>", ""),
    (r"```\w*\n(.*?)\n?```", r"\1"),
    (r"\[([^\[\]]+)\]\([^()\s]+\)", r"\1"),
    (r"(?<![\w*])(\*{1,3}|`{1,3}|~~|==)(?=[^\s*])(.{1,1000}?)(?<=\S)\1(?![\w*])", r"\2"),
    (r"(?<!\w)(_{1,3})(?=\S)(.{1,1000}?)(?<=\S)\1(?!\w)", r"\2"),
    (r"\$\$?(?=\s*[^\W\d])([^$]*)\$\$?|\\[(\[]([^()\[\]]*)\\[)\]]", r"\1\2"),
))  # fmt: skip
#: A mark of a list or heading before an answer, or emphasis whose other half was cut off.
_BULLET = re.compile(
    r"\s*(?:(?:[-*•+>]|#{1,6})\s+|\*\*+|(?:[-*]|\w{1,2}[.)]\s+)(?=(?:yes|no)\b))", re.IGNORECASE
)
#: Most markup within markup that is read.
_NESTED = 8
_CUT_OFF = re.compile(r"\*\*+\s*$")
#: Brackets around all of an answer.
_BRACKETED = re.compile(r"\(([^()]*)\)|\[(\[?[^\[\]]*\]?)\]|<(<?[^<>]*>?)>|\{([^{}]*)\}")
#: Quotation marks, dashes and marks without width around a final answer.
_AROUND = "\"'“”‘’„«»「」『』–—· \u200b\ufeff"
#: Signs that LaTeX and Markdown write with a backslash, and LaTeX's comma in numbers.
_ESCAPED = re.compile(r"\\([%$&_#*`])|\{(,)\}")

#: Tells whether an answer is right: ``(whole text, final answer, gold answers) -> bool``.
Rule = Callable[[str, str, Sequence[str]], bool]
#: Name of the figure that is 1 if an answer means the same as a gold one (:func:`same_meaning`).
MATCH = "match"
#: Rules of :func:`right_by`, in words.
RULES = "em, acc, acc_substring, match or f1>=0.8 (any bound from 0 to 1)"


class F1(NamedTuple):
    """Token overlap of a prediction with the best-matching answer, each in [0, 1]."""

    f1: float
    precision: float
    recall: float


def unmarked(text: str) -> str:
    """Strip Markdown, tags and LaTeX around words: "yes" from ``**Yes**``, ``(yes)`` or a box."""
    text = html.unescape(text)
    for _ in range(_NESTED):  # a box may hold a text, and bold may be italic
        before = text
        for pattern, inner in _MARKUP:
            text = pattern.sub(inner, text)
        text = text[match.end() :] if (match := _BULLET.match(text)) else _CUT_OFF.sub("", text)
        whole = _BRACKETED.fullmatch(text.strip().removesuffix("."))
        text = whole[whole.lastindex or 0] if whole else text
        if text == before:
            break
    return _ESCAPED.sub(r"\1\2", text)


def _readings(prediction: str) -> list[str]:
    """Normalise a prediction without its markup, and as it is, where signs may belong to a name."""
    return list(dict.fromkeys(normalize_answer(text) for text in (unmarked(prediction), prediction)))


def normalize_answer(text: str) -> str:
    """Lower the case; drop ASCII punctuation, English articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the normalised prediction is one of the answers, as in SQuAD even for an empty one."""
    return float(not {normalize_answer(a) for a in answers}.isdisjoint(_readings(prediction)))


def f1_score(prediction: str, answers: Sequence[str]) -> F1:
    """Compute token F1, precision and recall against the answer with the highest F1.

    "yes", "no" and "noanswer" match only themselves. Without answers all are 0.
    """
    return max(_overlaps(prediction, answers))


def precision_recall_max(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Compute token precision and recall, each its own maximum, as in DRAGIN's code (Su et al., ACL 2024)."""
    scores = _overlaps(prediction, answers)
    return max(score.precision for score in scores), max(score.recall for score in scores)


def _overlaps(prediction: str, answers: Sequence[str]) -> list[F1]:
    """Compare every reading with every answer; one overlap of 0 without answers."""
    pairs = product(_readings(prediction), map(normalize_answer, answers))
    return [_f1(reading, answer) for reading, answer in pairs] or [F1(0.0, 0.0, 0.0)]


def _f1(prediction: str, answer: str) -> F1:
    if prediction == answer:
        return F1(1.0, 1.0, 1.0)
    ours, theirs = prediction.split(), answer.split()
    common = (Counter(ours) & Counter(theirs)).total()
    if not common or _VERDICTS & {prediction, answer}:
        return F1(0.0, 0.0, 0.0)
    precision, recall = common / len(ours), common / len(theirs)
    return F1(2 * precision * recall / (precision + recall), precision, recall)


def accuracy_contains(
    text: str, answers: Sequence[str], *, mode: Literal["tokens", "substring"] = "tokens"
) -> float:
    """Return 1.0 if the whole normalised text contains an answer (ACC of Probing-RAG).

    "tokens" requires whole words; "substring" is the rule of Probing-RAG's released code (Baek et al.,
    Findings of NAACL 2025), by which "know" contains "no". An answer that normalises to nothing is never
    contained.
    """
    if mode not in ("tokens", "substring"):
        raise ValueError(f"mode={mode!r} is unknown: choose tokens or substring")
    pad = " " if mode == "tokens" else ""
    haystacks = [pad + reading + pad for reading in _readings(text)]
    needles = (normalize_answer(a) for a in answers)
    return float(any(n and pad + n + pad in haystack for n in needles for haystack in haystacks))


def right_by_em(text: str, answer: str, gold: Sequence[str]) -> bool:
    """Tell whether the final answer is right by exact match; the default rule."""
    return exact_match(answer, gold) == 1.0


def same_meaning(prediction: str, answers: Sequence[str], matcher: EntityMatcher) -> float:
    """Return 1.0 if the prediction surely names the same entity as one of the answers."""
    texts = dict.fromkeys(text for text in (unmarked(prediction), prediction) if text.strip())
    verdicts = (matcher.match(answer, text).verdict for answer in answers if answer.strip() for text in texts)
    return float("equivalent" in verdicts)


def right_by(rule: str, matcher: EntityMatcher | None = None) -> Rule | None:
    """Find the rule of this name; None for an unknown name.

    "em"; "acc" or "acc_substring": the text contains a gold answer at token boundaries or anywhere;
    "match": the final answer and a gold one mean the same by ``matcher`` (None: its defaults); "f1>=x"
    with x from 0 to 1.
    """
    if rule == MATCH:
        means = matcher or EntityMatcher()
        return lambda text, answer, gold: same_meaning(answer, gold, means) == 1.0
    if bound := re.fullmatch(r"f1\s*>=\s*(0?\.\d+|1(?:\.0+)?|0)", rule):
        return lambda text, answer, gold: f1_score(answer, gold).f1 >= float(bound[1])
    rules: dict[str, Rule] = {
        "em": right_by_em,
        "acc": lambda text, answer, gold: accuracy_contains(text, gold) == 1.0,
        "acc_substring": lambda text, answer, gold: accuracy_contains(text, gold, mode="substring") == 1.0,
    }
    return rules.get(rule)


def final_answer(text: str, cue: str, dataset: str = "") -> str:
    """Find the final answer to a question of a set: :func:`extract_answer`, and for StrategyQA yes or no.

    The thinking of a model that thinks does not belong to its answer.
    If no words announce the answer (``cue`` is ""), it is the entity at the head of the text. As in
    DRAGIN's released code (Su et al., ACL 2024), any answer to StrategyQA that does not begin with "yes" is
    no.
    """
    text = answer_in(text)
    if cue:
        answer = extract_answer(text, cue)
    else:
        entity = head_entity(unmarked(text), partial(find_entities, fine=True))
        answer = "" if entity is None else entity.text
    if dataset not in _YES_OR_NO or not answer:
        return answer
    return "yes" if answer.lower().startswith("yes") else "no"


def extract_answer(text: str, cue: str) -> str:
    """Extract the rest of the line after the last ``cue`` ("the answer is"), without quotes and full stop.

    Return "" if it is absent, so that a missing answer is never right.
    """
    for shown in (unmarked(text), text) if cue else ():  # the cue itself may have signs
        if matches := [*re.finditer(re.escape(cue), shown, re.IGNORECASE)]:
            rest = shown[matches[-1].end() :].lstrip(": \n")
            line = unmarked(rest.splitlines()[0] if rest else "")
            return line.strip().removesuffix(".").strip(_AROUND).removesuffix("。")
    return ""
