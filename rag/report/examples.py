"""How example questions are shown: the colours of their tokens, and which methods are unfolded at once."""

from __future__ import annotations

from collections.abc import Iterable

from .lookup import Json, stem

#: Steps of the token colours; the classes s0 .. s6 of the style sheet.
LEVELS = 7
Scale = tuple[float, float]


def token_scores(rounds: Iterable[Json]) -> list[float]:
    """The scores of all tokens that have one."""
    return [token["score"] for entry in rounds for token in entry.get("tokens", ()) if "score" in token]


def scales(examples: Iterable[Json]) -> dict[str, Scale]:
    """Lowest and highest score of each method over all examples.

    A method that scores tokens is scaled by its tokens, others by their rounds.
    """
    rounds: dict[str, list[Json]] = {}
    for example in examples:
        for method in example.get("methods", ()):
            rounds.setdefault(method["method"], []).extend(method.get("rounds", ()))
    return {
        name: (min(scores), max(scores))
        for name, entries in rounds.items()
        if (scores := token_scores(entries) or [entry["score"] for entry in entries if "score" in entry])
    }


def level(score: float, scale: Scale) -> int:
    """The step of a score's colour on its method's scale; the middle one where all scores are equal."""
    low, high = scale
    share = (score - low) / (high - low) if high > low else 0.5
    return min(LEVELS - 1, int(share * LEVELS))


def shown_at_once(example: Json) -> tuple[str, ...]:
    """Methods to unfold, so that a reader meets the colours: a prober, and one that fired on a token."""
    methods = example.get("methods", ())
    probers = [method["method"] for method in methods if stem(method["method"]) == "probing"]
    fired = [
        method["method"]
        for method in methods
        for entry in method.get("rounds", ())
        if any(token.get("fired") for token in entry.get("tokens", ()))
    ]
    return (*probers[:1], *fired[:1])
