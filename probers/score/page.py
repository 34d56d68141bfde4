"""Scored texts as one HTML page: tokens coloured by score, spans that fire underlined and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..pages import num, render

if TYPE_CHECKING:
    from ..bank.bank import ProbeBank
    from .texts import Text

#: Steps of the colours of the report's style sheet, and those of them that lie above the threshold.
LEVELS, ABOVE = 7, 3
#: Characters shown of the end of a prompt.
_PROMPT = 400


class Piece(NamedTuple):
    """A piece of a text within one token and one span or none.

    Attributes:
        level: step of its colour; None without a score.
        told: tooltip with its figures.
    """

    text: str
    level: int | None
    told: str


def scores_html(
    texts: Sequence[Text],
    records: Sequence[Mapping[str, Any]],
    *,
    about: Mapping[str, str],
    results: Mapping[str, Any],
    bank: ProbeBank,
    most: int,
) -> str:
    """Make the page: one file, without script or network.

    Args:
        records: the texts' lines of scores.jsonl.
        about: facts for the head, in order.
        results: contents of results.json.
        bank: calibration, for the threshold as a probability.
        most: number of texts shown, highest scores first.
    """
    limit = float(bank.probability(np.array([results["threshold"]]))[0])
    scored = [(one, r["hallucination"]) for one, r in zip(texts, records, strict=True) if r["hallucination"]]
    scored.sort(key=lambda pair: (pair[1]["score"] is None, -(pair[1]["score"] or 0.0)))
    return render(
        "probers.score/scores.html.j2",
        shown=[(one, told, list(parts(one.answer, told, limit))) for one, told in scored[:most]],
        rest=len(scored) - min(most, len(scored)), about=about, results=results, limit=limit,
        levels=LEVELS, above=ABOVE, tail=_tail,
    )  # fmt: skip


def level(p: float, limit: float) -> int:
    """Choose a colour step; the upper :data:`ABOVE` of :data:`LEVELS` are above ``limit``."""
    below = LEVELS - ABOVE
    if p > limit:
        return below + min(ABOVE - 1, int((p - limit) / (1 - limit) * ABOVE))
    return min(below - 1, int(p / limit * below)) if limit > 0 else below - 1


def parts(
    text: str, told: Mapping[str, Any], limit: float
) -> Iterator[tuple[Mapping[str, Any] | None, list[Piece]]]:
    """Cut a text at the borders of tokens and spans, from left to right.

    A span over the whole text is not marked: the text's own score says the same.

    Args:
        told: the text's ``hallucination``.
        limit: probability at the threshold.

    Yields:
        A span, or None between spans, and its pieces.
    """
    offsets = told["token_offsets"]
    spans = [span for span in told["spans"] if (span["start"], span["end"]) != (0, len(text))]
    marks = [0, len(text), *(m for each in offsets for m in each)]
    marks += [mark for span in spans for mark in (span["start"], span["end"])]
    borders = sorted({min(max(mark, 0), len(text)) for mark in marks})
    pieces = []
    for start, end in zip(borders, borders[1:], strict=False):
        token = next((i for i, (a, b) in enumerate(offsets) if a <= start < b), None)
        span = next((i for i, s in enumerate(spans) if s["start"] <= start < s["end"]), None)
        pieces.append((span, _piece(text[start:end], told, token, limit)))
    for place, group in groupby(pieces, key=lambda piece: piece[0]):
        yield None if place is None else spans[place], [piece for _, piece in group]


def _piece(text: str, told: Mapping[str, Any], token: int | None, limit: float) -> Piece:
    if token is None or told["token_scores"][token] is None:
        return Piece(text, None, "")
    p = told["token_p_wrong"][token]
    figures = f"P(wrong) {p:.0%}, score {num(told['token_scores'][token])}"
    return Piece(text, level(p, limit), f"{figures}, log-probability {num(told['token_logprobs'][token])}")


def _tail(text: str) -> str:
    return text if len(text) <= _PROMPT else f"…{text[-_PROMPT:]}"
