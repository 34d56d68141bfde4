"""Self-evaluation: what a model says of its own answer.

- P(True): P(True) / (P(True) + P(False)) of the first token after a prompt with question and proposed answer,
  with or without earlier drawn answers ("brainstormed"; Kadavath et al. 2022). Each is the sum over all
  spellings: a chat begins with "True" or "true", a line that goes on with " True".
- Verbalised confidence: the number that it states when repeated how sure it is (Tian et al. 2023).

The wordings are ours; options replace them.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..model.language_model import LanguageModel, Stop
from ..store.spec import ModelSpec
from ..types import Generation
from ..words.language import ENGLISH, LANGUAGES, either
from ..words.numerals import in_figures
from .samples import Generate

log = logging.getLogger(__name__)

#: Prompt with the question, the proposed answer, and other possible answers if there are any.
P_TRUE_FORM = (
    "Question: {question}\n{samples}Proposed answer: {answer}\n"
    "Is the proposed answer true or false? Write True or False.\nReply:"
)
#: Line before the proposed answer, with drawn answers.
SAMPLES_FORM = "Possible answers: {samples}\n"
_REPLIES = ("true", "false")
#: Least mean probability of all spellings of both replies; below it the model replies something else.
LEAST_MASS = 0.05
_warned: set[ModelSpec] = set()
#: Prompt with the question and its answer.
CONFIDENCE_FORM = (
    "Question: {question}\nAnswer: {answer}\n"
    "How likely is it that this answer is right? Give a number from 0 to 100.\nPercent:"
)
#: Most tokens of a stated confidence.
TOKENS = 8
_VALUE = r"(?:\d{1,3}(?:[.,]\d+)?|[.,]\d+)(?:e-?\d{1,2})?"
_PERCENT = either(
    ["%", "percent", "per cent", "pct"]
    + [name for language in LANGUAGES.values() for name, unit in language.units.items() if unit == "%"]
)
_TO = r"\s?(?:-|–|—|~|to|bis|à|a|から|到|至)\s?"
_OUT_OF = r"(?:\s?[/⁄]\s?|\s\(?(?:out of|of|in|from|von|sur|de|über)\s(?:a\s|every\s)?)"
#: The scale that a reply repeats: "on a scale of 1 to 10", "(0-100)".
_SCALE = re.compile(
    rf"\(?(?:\b(?:on|in|scale|range|from|out of|of|the|a)\b\s*)*(?<![\w.,])[01]{_TO}"
    r"(?P<top>1|5|7|10|20|100)(?![\w.,]?\w|\s?%)\)?"
)
#: A number with its unit, the end of its range, or the whole that it is a part of; ``cut`` is one broken off.
_STATED = re.compile(
    rf"(?<![\w.,/⁄-])(?P<low>{_VALUE})(?![\d.,]*\d)(?:\s?(?P<unit>{_PERCENT}))?"
    rf"(?:{_TO}(?P<high>{_VALUE})(?:\s?(?P<last>{_PERCENT}))?(?![\d.,]*\d)"
    rf"|{_OUT_OF}(?P<whole>\d{{1,4}})(?![\d.,]*\d|\s?[/⁄])"
    r"|(?P<cut>\s(?:out of|out|on a|of)\W*$|\s?[/⁄]))?"
)


def question_of(form: str, question: str, answer: str, samples: Sequence[str] = ()) -> str:
    """Fill in a form; ``{samples}`` becomes a line with the distinct drawn answers, or nothing."""
    drawn = "; ".join(dict.fromkeys(sample.strip() for sample in samples if sample.strip()))
    filled = form.replace("{samples}", SAMPLES_FORM.replace("{samples}", drawn) if drawn else "")
    return filled.replace("{question}", question).replace("{answer}", answer or "none")


class PTrue(NamedTuple):
    """P(True) in [0, 1], the probability ``mass`` of both replies together, and the pass that read one."""

    chance: float
    mass: float
    call: Generation


def p_true(lm: LanguageModel, prompts: Sequence[str], *, names: Sequence[str] | None = None) -> list[PTrue]:
    """Compute P(True) after each prompt, summed over the spellings of :func:`spellings`.

    A warning, once for a model, tells where the two replies have hardly any probability.
    """
    tokens = spellings(lm.tokenizer)
    several = [token for each in tokens for token in each]
    repeated = [prompt for prompt in prompts for _ in several]
    named = None if names is None else [name for name in names for _ in several]
    read = lm.score(repeated, [token for _ in prompts for token in several], names=named)
    logs = np.array([each.logprobs[0] for each in read], dtype=np.float64).reshape(len(prompts), len(several))
    true, false = (np.logaddexp.reduce(part, axis=1) for part in np.split(logs, [len(tokens[0])], axis=1))
    mass = np.logaddexp(true, false)
    columns = zip(np.exp(true - mass).tolist(), np.exp(mass).tolist(), read[:: len(several)], strict=True)
    judged = [PTrue(*each) for each in columns]
    mean = float(np.mean([each.mass for each in judged])) if judged else 1.0
    if mean < LEAST_MASS and lm.spec not in _warned:
        _warned.add(lm.spec)
        log.warning(
            f"P(True) compares replies of {mean:.2g} of the probability: "
            "the model replies something else than True or False; change the form, or leave P(True) out"
        )
    return judged


@cache
def spellings(tokenizer: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Find the tokens that are "true" and those that are "false", in any case, with or without a space.

    In a vocabulary that lacks either as a whole token they are the first tokens of " True" and " False".
    """
    lower = [(token.lower(), number) for token, number in tokenizer.get_vocab().items()]
    each_spelt = [
        [i for token, i in lower if reply in token and tokenizer.decode([i]).strip().lower() == reply]
        for reply in _REPLIES
    ]
    if not all(each_spelt):
        each_spelt = [tokenizer(f" {r.title()}", add_special_tokens=False)["input_ids"][:1] for r in _REPLIES]
    true, false = (tuple((number,) for number in sorted(numbers)) for numbers in each_spelt)
    return true, false


def verbalised(
    generate: Generate, prompts: Sequence[str], ends: Sequence[Stop] = (), *,
    names: Sequence[str] | None = None,
) -> tuple[list[float | None], list[Generation]]:  # fmt: skip
    """Ask each prompt and read the confidence in [0, 1] from the reply; None if it states none.

    A reply ends with its line, or where ``ends`` say: those of the prompts' :class:`.PromptTemplate`.
    """
    replies = generate(prompts, max_new_tokens=TOKENS, stop=("\n", *ends), names=names)
    return [stated(reply.text) for reply in replies], replies


def stated(reply: str) -> float | None:
    """Read the first number of a reply as a share: "85", "85 %", "0.85", "0,85", "8.5/10", "17 out of 20".

    A bare number up to 1 with a decimal point or comma is a probability, any other a percentage, unless the
    reply names its scale ("7 on a scale of 1 to 10" is .7). A range counts as its middle ("90-95%"), two
    parts of a hundred as the first ("60/40"). Numbers in English words are read ("nine out of ten"). None for
    a reply whose number is missing, cut off or outside of its scale.
    """
    text = " ".join(unicodedata.normalize("NFKC", reply).lower().replace("−", "-").split())
    words = not any(map(str.isdigit, text))
    text = in_figures(text, ENGLISH) if words else text
    scale = next((match for match in _SCALE.finditer(text) if _STATED.search(_without(text, match))), None)
    match = _STATED.search(_without(text, scale) if scale else text)
    if match is None or match["cut"]:
        return None
    value, decimal = _number(match["low"])
    unit = match["unit"] or match["last"]
    if match["high"] and not unit and _SCALE.fullmatch(match.group().strip()):
        return None  # the scale alone
    if match["high"]:
        high, fraction = _number(match["high"])
        if high < value:
            return value / 100 if value + high == 100 else None
        value, decimal = (value + high) / 2, decimal and fraction
    if match["whole"]:
        whole = float(match["whole"])
        whole = 100.0 if value + whole == 100 and re.search("[/⁄]", match.group()) else whole
    elif scale and not unit:
        whole = float(scale["top"])
    elif unit:
        whole = 100.0
    elif re.search(r"\bscale\b", text) or (words and value < 10):
        return None  # a scale without its end; "one" of a phrase
    else:
        whole = 1.0 if decimal and value <= 1 else 100.0
    return value / whole if 0 <= value <= whole and whole else None


def _without(text: str, match: re.Match[str]) -> str:
    return f"{text[: match.start()]} {text[match.end() :]}"


def _number(written: str) -> tuple[float, bool]:
    """Read figures, and tell whether they have decimals; a comma before three figures divides thousands."""
    if re.fullmatch(r"[1-9]\d*,\d{3}", written):
        return float(written.replace(",", "")), False
    return float(written.replace(",", ".")), bool(re.search("[.,e]", written))
