"""Page of scored texts: one HTML file, tokens coloured by score, firing spans underlined and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from ..data.texts import Text
from ..pages import num, render
from ..prober.online.growing_spans import ScoredSpan
from ..prober.response import DomainDistance, Response

#: Steps of the colours of the report's style sheet, and number of them above the threshold.
LEVELS, ABOVE = 7, 3
#: Number of characters shown of the end of a prompt.
_PROMPT = 400
#: A text with its response.
Scored: TypeAlias = tuple[Text, Response]


class Piece(NamedTuple):
    """A piece of a text within one token, its step of colour (None without a score), and its tooltip."""

    text: str
    level: int | None
    told: str


def scores_html(
    scored: Sequence[Scored], *, about: Mapping[str, str], results: Mapping[str, Any], limit: float, most: int
) -> str:
    """Make the page: one file, without script or network.

    ``about`` are facts for the head, ``results`` those of results.json, ``limit`` the threshold as a
    probability; the ``most`` highest scores are shown.
    """
    highest = sorted(scored, key=lambda pair: (pair[1].score is None, -(pair[1].score or 0.0)))
    return render(
        "probers.score/scores.html.j2",
        shown=[(one, response, list(parts(one.answer, response, limit))) for one, response in highest[:most]],
        rest=max(0, len(scored) - most), about=about, results=results, limit=limit, unlike=unlike,
        levels=LEVELS, above=ABOVE, tail=lambda text: text if len(text) <= _PROMPT else f"…{text[-_PROMPT:]}",
    )  # fmt: skip


def unlike(domain: DomainDistance) -> str:
    """Tell how far a text is from the training texts, and the limits."""
    message = f"distance of its states {num(domain.distance)}, limit {num(domain.limit)}"
    if domain.surprise is None or domain.surprise_range is None:
        return message
    low, high = domain.surprise_range
    message += f"; surprise {num(domain.surprise)} nats per token"
    return f"{message}, {num(max(low, 0))} to {num(high)} of the training texts"


def level(p: float, limit: float) -> int:
    """Choose a colour step; the upper :data:`ABOVE` of :data:`LEVELS` are above ``limit``."""
    below = LEVELS - ABOVE
    if p > limit:
        return below + min(ABOVE - 1, int((p - limit) / (1 - limit) * ABOVE))
    return min(below - 1, int(p / limit * below)) if limit > 0 else below - 1


def parts(text: str, response: Response, limit: float) -> Iterator[tuple[ScoredSpan | None, list[Piece]]]:
    """Cut a text at the borders of tokens and spans, from left to right.

    It yields a span, or None between spans, and its pieces. A span over the whole text is not marked: the
    text's own score says the same. ``limit`` is the threshold as a probability.
    """
    offsets = response.token_offsets
    spans = [span for span in response.spans if (span.start, span.end) != (0, len(text))]
    marks = [0, len(text), *(mark for each in offsets for mark in each)]
    marks += [mark for span in spans for mark in (span.start, span.end)]
    borders = sorted({min(max(mark, 0), len(text)) for mark in marks})
    pieces = []
    for start, end in zip(borders, borders[1:], strict=False):
        token = next((i for i, (a, b) in enumerate(offsets) if a <= start < b), None)
        place = next((i for i, span in enumerate(spans) if span.start <= start < span.end), None)
        pieces.append((place, _piece(text[start:end], response, token, limit)))
    for place, group in groupby(pieces, key=lambda piece: piece[0]):
        yield None if place is None else spans[place], [piece for _, piece in group]


def _piece(text: str, response: Response, token: int | None, limit: float) -> Piece:
    if token is None or (score := response.token_scores[token]) is None:
        return Piece(text, None, "")
    p, logprobs = response.token_p_wrong[token] or 0.0, response.token_logprobs or ()
    figures = f"P(wrong) {p:.0%}, score {num(score)}, log-probability {num(logprobs[token])}"
    return Piece(text, level(p, limit), figures)
