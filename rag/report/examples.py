"""Example questions: what each method wrote, how it scored the tokens, where it fired, what it fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probers.pages import DASH, count, esc, num

from .lookup import Findings, Json, stem
from .svg import mark_glyph

#: Steps of the token colours; the classes s0 .. s6 of the style sheet.
LEVELS = 7
Scale = tuple[float, float]


def examples_html(found: Findings) -> str:
    """All examples with the legend of the colours; empty when there are none."""
    examples: Sequence[Json] = found.data.get("examples", ())
    if not examples:
        return ""
    scales = _scales(method for example in examples for method in example.get("methods", ()))
    blocks = (_example(index, example, found, scales) for index, example in enumerate(examples, 1))
    return _LEGEND + "".join(blocks)


_LEGEND = (
    '<p class="scale" role="note"><span class="ramp">'
    + "".join(
        f'<span class="tok s{level}">{({0: "low", LEVELS - 1: "high"}).get(level, "")}</span>'
        for level in range(LEVELS)
    )
    + "</span> score: more likely wrong. Each method has its own scale, printed with it; point at a token for"
    ' its score. <span class="tok s6 fired">Framed</span><span class="flag">▲ fired</span> marks what'
    " made the trigger fire. A trigger that scores a whole answer colours all of it alike.</p>"
)


def _tokens(rounds: Iterable[Json]) -> list[Json]:
    return [token for entry in rounds for token in entry.get("tokens", ())]


def _scores(entries: Iterable[Json]) -> list[float]:
    return [entry["score"] for entry in entries if "score" in entry]


def _scales(methods: Iterable[Json]) -> dict[str, Scale]:
    """Lowest and highest score of each method over all examples.

    A method that scores tokens is scaled by its tokens, others by their rounds.
    """
    rounds: dict[str, list[Json]] = {}
    for method in methods:
        rounds.setdefault(method["method"], []).extend(method.get("rounds", ()))
    return {
        name: (min(scores), max(scores))
        for name, entries in rounds.items()
        if (scores := _scores(_tokens(entries)) or _scores(entries))
    }


def _example(index: int, example: Json, found: Findings, scales: dict[str, Scale]) -> str:
    knowledge = example.get("knowledge")
    badge = f' <span class="badge">{esc(knowledge)}</span>' if knowledge else ""
    gold = " or ".join(f"<b>{esc(answer)}</b>" for answer in example.get("answers", ())) or DASH
    unfolded = _shown_at_once(example) if index == 1 else ()
    methods = "".join(
        _method(method, mark_glyph(found.looks[name]), scales.get(name), unfold=name in unfolded)
        for method in example.get("methods", ())
        for name in [method["method"]]
    )
    return (
        f'<article class="example"><h3><span class="count">{index}</span>'
        f'<span class="made">{esc(example.get("question", ""))}</span>{badge}</h3>'
        f'<p class="gold">Gold answer: <span class="made">{gold}</span></p>{methods}</article>'
    )


def _shown_at_once(example: Json) -> tuple[str, ...]:
    """Methods to unfold, so that a reader meets the colours: a prober, and one that fired on a token."""
    methods = example.get("methods", ())
    probers = [method["method"] for method in methods if stem(method["method"]) == "probing"]
    fired = [
        method["method"]
        for method in methods
        if any(token.get("fired") for token in _tokens(method.get("rounds", ())))
    ]
    return (*probers[:1], *fired[:1])


def _method(method: Json, glyph: str, scale: Scale | None, *, unfold: bool) -> str:
    rounds = method.get("rounds", ())
    tokened = bool(_scores(_tokens(rounds)))
    told = "".join(_round(entry, scale, tokened) for entry in rounds)
    ends = ""
    if scale is not None and scale[0] < scale[1]:
        ends = f'<p class="range">Colours from {num(scale[0])} to {num(scale[1])}.</p>'
    answer = esc(method.get("answer", "")) or f'<span class="none">{DASH}</span>'
    right = method.get("correct")
    verdict = '<span class="right">✓ right</span>' if right else '<span class="wrong">✗ wrong</span>'
    searches = count(int(method.get("retrievals", 0)), "retrieval")
    return (
        f'<details class="method"{" open" if unfold else ""}>'
        f'<summary>{glyph}<span class="name">{esc(method["method"])}</span>'
        f'<span class="answer made">{answer}</span>{verdict}<span class="cost">{searches}</span></summary>'
        f'{ends}<ol class="rounds">{told}</ol></details>'
    )


_FIRED = '<span class="flag">▲ fired</span>'


def _round(entry: Json, scale: Scale | None, tokened: bool) -> str:
    """One round: its tokens, the decision, the query and the passages it brought."""
    tokens, fired, whole = entry.get("tokens", ()), entry.get("fired"), entry.get("score")
    shown = "".join(_token(token, None if tokened else whole, scale) for token in tokens)
    # Where no single token fired, the verdict was on the whole text: the mark stands at its end.
    if fired and not any(token.get("fired") for token in tokens):
        shown += _FIRED
    decision = "fired" if fired else "did not fire"
    if whole is not None:
        against = f", threshold {num(entry['threshold'])}" if "threshold" in entry else ""
        decision = f"score {num(whole)}{against}: {decision}"
    query = entry.get("query")
    asked = f'<p class="query">Query: <q class="made">{esc(query)}</q></p>' if query else ""
    passages = "".join(
        f'<li><details><summary class="made">{esc(passage.get("title", ""))}</summary>'
        f'<p class="made">{esc(passage.get("text", ""))}</p></details></li>'
        for passage in entry.get("passages", ())
    )
    fetched = f'<ul class="passages">{passages}</ul>' if passages else ""
    return (
        f'<li><p class="tokens made">{shown or DASH}</p>'
        f'<p class="decision">{decision}</p>{asked}{fetched}</li>'
    )


def _token(token: Json, whole: float | None, scale: Scale | None) -> str:
    """A token coloured by its score, or by the ``whole`` text's where none of its tokens has one."""
    score, of = token.get("score", whole), "score" if whole is None else "whole answer:"
    level = titled = ""
    if score is not None:
        titled = f' title="{of} {num(score, 3)}{"; fired" if token.get("fired") else ""}"'
        low, high = scale or (score, score)
        share = (score - low) / (high - low) if high > low else 0.5
        level = f" s{min(LEVELS - 1, int(share * LEVELS))}"
    text = token.get("text", "")
    if not token.get("fired"):
        return f'<span class="tok{level}"{titled}>{esc(text)}</span>'
    bare = text.lstrip() or text  # the frame goes around the word, not around the space before it
    lead = text[: len(text) - len(bare)]
    return f'{esc(lead)}<span class="tok{level} fired"{titled}>{esc(bare)}</span>{_FIRED}'
