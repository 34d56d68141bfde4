"""Example questions: what each method wrote, how it scored the tokens, where it fired, what it fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probers.html import DASH, count, esc, num, number

from .series import Series, mark_glyph, stem

#: Steps of the token colours; the classes s0 .. s6 of the style sheet.
LEVELS = 7


def examples_html(examples: Sequence[Mapping[str, Any]], looks: Mapping[str, Series]) -> str:
    """All examples with the legend of the colours; empty when there are none."""
    if not examples:
        return ""
    scales = _scales(method for example in examples for method in example.get("methods") or [])
    blocks = "".join(_example(index, example, looks, scales) for index, example in enumerate(examples, 1))
    return _legend() + blocks


def _legend() -> str:
    steps = "".join(
        f'<span class="tok s{level}">{"low" if level == 0 else ""}</span>' for level in range(LEVELS - 1)
    )
    return (
        '<p class="scale" role="note"><span class="ramp">'
        f'{steps}<span class="tok s{LEVELS - 1}">high</span></span>'
        " score: more likely wrong. Each method has its own scale, printed with it; point at a token for"
        ' its score. <span class="tok s6 fired">Framed</span><span class="flag">▲ fired</span> marks what'
        " made the trigger fire. A trigger that scores a whole answer colours all of it alike.</p>"
    )


def _scales(methods: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Lowest and highest score of each method over all examples.

    A method that scores tokens is scaled by its tokens, others by their rounds.
    """
    tokens: dict[str, list[float]] = {}
    rounds: dict[str, list[float]] = {}
    for method in methods:
        name = str(method.get("method"))
        for entry in method.get("rounds") or []:
            found = [number(token.get("score")) for token in entry.get("tokens") or []]
            tokens.setdefault(name, []).extend(score for score in found if score is not None)
            whole = number(entry.get("score"))
            if whole is not None:
                rounds.setdefault(name, []).append(whole)
    return {
        name: (min(scores), max(scores))
        for name in {**tokens, **rounds}
        if (scores := tokens.get(name) or rounds.get(name))
    }


def _level(score: float | None, scale: tuple[float, float] | None) -> str:
    if score is None or scale is None:
        return ""
    low, high = scale
    share = (score - low) / (high - low) if high > low else 0.5
    return f" s{min(LEVELS - 1, int(share * LEVELS))}"


def _example(
    index: int,
    example: Mapping[str, Any],
    looks: Mapping[str, Series],
    scales: Mapping[str, tuple[float, float]],
) -> str:
    knowledge = example.get("knowledge")
    badge = f' <span class="badge">{esc(knowledge)}</span>' if knowledge else ""
    gold = " or ".join(f"<b>{esc(answer)}</b>" for answer in example.get("answers") or []) or DASH
    unfolded = _shown_at_once(example) if index == 1 else ()
    methods = "".join(
        _method(method, looks, scales, unfold=method.get("method") in unfolded)
        for method in example.get("methods") or []
    )
    return (
        f'<article class="example"><h3><span class="count">{index}</span>'
        f'<span class="made">{esc(example.get("question", ""))}</span>{badge}</h3>'
        f'<p class="gold">Gold answer: <span class="made">{gold}</span></p>{methods}</article>'
    )


def _shown_at_once(example: Mapping[str, Any]) -> tuple[str, ...]:
    """Methods to unfold, so that a reader meets the colours: a prober, and one that fired on a token."""
    methods = example.get("methods") or []
    probers = [method["method"] for method in methods if stem(str(method.get("method"))) == "probing"]
    fired = [
        method["method"]
        for method in methods
        for entry in method.get("rounds") or []
        if any(token.get("fired") for token in entry.get("tokens") or [])
    ]
    return (*probers[:1], *fired[:1])


def _method(
    method: Mapping[str, Any],
    looks: Mapping[str, Series],
    scales: Mapping[str, tuple[float, float]],
    *,
    unfold: bool,
) -> str:
    name = str(method.get("method"))
    right = bool(method.get("correct"))
    tokened = any(
        number(token.get("score")) is not None
        for entry in method.get("rounds") or []
        for token in entry.get("tokens") or []
    )
    scale = scales.get(name)
    rounds = "".join(_round(entry, scale, tokened) for entry in method.get("rounds") or [])
    range_ = ""
    if scale is not None and scale[0] < scale[1]:
        range_ = f'<p class="range">Colours from {num(scale[0])} to {num(scale[1])}.</p>'
    answer = esc(method.get("answer") or "") or f'<span class="none">{DASH}</span>'
    verdict = '<span class="right">✓ right</span>' if right else '<span class="wrong">✗ wrong</span>'
    searches = count(int(method.get("retrievals") or 0), "retrieval")
    return (
        f'<details class="method"{" open" if unfold else ""}>'
        f'<summary>{mark_glyph(looks[name])}<span class="name">{esc(name)}</span>'
        f'<span class="answer made">{answer}</span>{verdict}<span class="cost">{searches}</span></summary>'
        f'{range_}<ol class="rounds">{rounds}</ol></details>'
    )


def _round(entry: Mapping[str, Any], scale: tuple[float, float] | None, tokened: bool) -> str:
    """One round: its tokens, the decision, the query and the passages it brought."""
    whole = number(entry.get("score"))
    tokens = entry.get("tokens") or []
    shown = "".join(_token(token, whole, scale, tokened) for token in tokens)
    fired = bool(entry.get("fired"))
    # Where no single token fired, the verdict was on the whole text: the mark stands at its end.
    if fired and not any(token.get("fired") for token in tokens):
        shown += '<span class="flag">▲ fired</span>'
    decision = ""
    if whole is not None:
        threshold = entry.get("threshold")
        against = f", threshold {num(threshold)}" if number(threshold) is not None else ""
        decision = f"score {num(whole)}{against}: "
    decision += "fired" if fired else "did not fire"
    query = entry.get("query")
    asked = f'<p class="query">Query: <q class="made">{esc(query)}</q></p>' if query else ""
    passages = "".join(
        f'<li><details><summary class="made">{esc(passage.get("title", ""))}</summary>'
        f'<p class="made">{esc(passage.get("text", ""))}</p></details></li>'
        for passage in entry.get("passages") or []
    )
    fetched = f'<ul class="passages">{passages}</ul>' if passages else ""
    return (
        f'<li><p class="tokens made">{shown or DASH}</p>'
        f'<p class="decision">{decision}</p>{asked}{fetched}</li>'
    )


def _token(
    token: Mapping[str, Any], whole: float | None, scale: tuple[float, float] | None, tokened: bool
) -> str:
    score = number(token.get("score"))
    if not tokened and score is None:
        score = whole
        title = f"whole answer: {num(score, 3)}" if score is not None else ""
    else:
        title = f"score {num(score, 3)}" if score is not None else ""
    fired = bool(token.get("fired"))
    css = f"tok{_level(score, scale)}{' fired' if fired else ''}"
    titled = f' title="{title}{"; fired" if fired else ""}"' if title else ""
    text = str(token.get("text", ""))
    if not fired:
        return f'<span class="{css}"{titled}>{esc(text)}</span>'
    bare = text.lstrip() or text  # the frame goes around the word, not around the space before it
    lead = text[: len(text) - len(bare)]
    return f'{esc(lead)}<span class="{css}"{titled}>{esc(bare)}</span><span class="flag">▲ fired</span>'
