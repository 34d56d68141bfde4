"""The outcome in words, computed from the numbers: who won, at what price, and what is not settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probers.html import count, esc, interval, listing, num, number, span

from .series import stem


def metric(method: Mapping[str, Any], name: str) -> float | None:
    """One figure of a method of results.json; ``trigger.x`` reaches into its trigger part."""
    node: Any = method
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return number(node)


def metric_ci(method: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95% interval of a figure; trigger figures may be filed as ``trigger.x`` or ``x``."""
    intervals = method.get("ci95") or {}
    return interval(intervals.get(name, intervals.get(name.removeprefix("trigger."))))


def pair(results: Mapping[str, Any], a: str, b: str, name: str) -> tuple[float, tuple[float, float]] | None:
    """The paired difference a - b of a figure with its 95% interval, in whichever order it is filed."""
    pairs = results.get("pairs") or {}
    for key, direction in ((f"{a} vs {b}", 1), (f"{b} vs {a}", -1)):
        found = pairs.get(key) or {}
        entry = found.get(name) or found.get(name.removeprefix("trigger.")) or {}
        diff, ci = number(entry.get("diff")), interval(entry.get("ci95"))
        if diff is not None and ci is not None:
            return (diff, ci) if direction == 1 else (-diff, (-ci[1], -ci[0]))
    return None


#: Methods that never or always fire by definition: no news.
FIXED = ("never", "always")
_NAMED = 4  # methods at most that a sentence names


def verdict(ci: tuple[float, float]) -> str:
    """What an interval of a difference allows to say."""
    return "above" if ci[0] > 0 else "below" if ci[1] < 0 else "not settled"


def summary_html(results: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """What was compared and how it came out: a paragraph, then each prober against entropy."""
    methods: Mapping[str, Any] = results.get("methods") or {}
    sentences = [_setting(results, data, methods)]
    alike = _alike(methods)
    sentences += alike or [*_winner(results, methods), *_oracle(methods)]
    duels = [
        f"<li>{' '.join(lines)}</li>"
        for prober in methods
        for rival in methods
        if not alike
        if stem(prober) == "probing" and stem(rival) == "entropy"
        if (lines := _against(results, methods, prober, rival))
    ]
    against = f'<ul class="lead">{"".join(duels)}</ul>' if duels else ""
    return f'<p class="lead">{" ".join(sentences)}</p>{against}'


def notes_html(data: Mapping[str, Any]) -> str:
    """The caveats, methods that never or always fired among them; empty when there are none."""
    lines = [esc(note) for note in data.get("notes") or []]
    flagged: dict[str, list[str]] = {}
    for name, flag in (data.get("flags") or {}).items():
        if stem(name) not in FIXED:
            flagged.setdefault(flag, []).append(_name(name))
    lines += [f"{listing(names)} {esc(flag)} on these questions." for flag, names in flagged.items()]
    if not lines:
        return ""
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<aside class="notes" aria-label="Notes"><h2>To keep in mind</h2><ul>{items}</ul></aside>'


def _name(name: str) -> str:
    return f"<b>{esc(name)}</b>"


def _several(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    if len(names) <= _NAMED:
        return listing(map(_name, names))
    return f"{', '.join(map(_name, names[:_NAMED]))} and {len(names) - _NAMED} more"


def _in_words(n: int) -> str:
    words = ("Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")
    return words[n - 2] if 2 <= n < 2 + len(words) else str(n)


def _setting(results: Mapping[str, Any], data: Mapping[str, Any], methods: Mapping[str, Any]) -> str:
    n = data.get("n", results.get("n"))
    if not methods:
        return "No method was run."
    who = (
        f"One way of deciding when to retrieve, {_name(next(iter(methods)))}, was run"
        if len(methods) == 1
        else f"{_in_words(len(methods))} ways of deciding when to retrieve were run"
    )
    questions = f" on the same {count(int(n), 'question')}" if n is not None else ""
    model = f" with the model {_name(data['model'])}" if data.get("model") else ""
    corpus = f" and the corpus {_name(data['corpus'])}" if data.get("corpus") else ""
    return f"{who}{questions}{model}{corpus}."


def _alike(methods: Mapping[str, Any]) -> list[str]:
    """That the methods, the oracle among them, are equally often right; nothing where they are not."""
    known = [em for method in methods.values() if (em := metric(method, "em")) is not None]
    if len(known) < 2 or len(set(known)) > 1:
        return []
    if known[0] == 0:
        return ["None of them has a single answer right: these questions do not tell them apart."]
    return [f"All of them reach {num(known[0], 3)} in exact match, and are not told apart by it."]


def _winner(results: Mapping[str, Any], methods: Mapping[str, Any]) -> list[str]:
    """The best exact match outside the oracle, next to always and never retrieving."""
    scores = {name: metric(method, "em") for name, method in methods.items() if stem(name) != "oracle"}
    known = {name: em for name, em in scores.items() if em is not None}
    if not known:
        return ["Exact match does not apply: the questions have no gold answers."]
    top = max(known.values())
    best = [name for name, em in known.items() if em == top]
    if len(known) == 1:
        return [f"{_name(best[0])} {_reached(methods[best[0]])}."]
    lead = (
        f"The highest exact match is that of {_name(best[0])}: it {_reached(methods[best[0]])}."
        if len(best) == 1
        else f"{_several(best)} share the highest exact match, {num(top, 3)}, at "
        + listing(num(metric(methods[name], "retrievals")) for name in best[:_NAMED])
        + (" and more" if len(best) > _NAMED else "")
        + " retrievals per question."
    )
    rest = [
        f"{words} {_reached(methods[name], short=True)}"
        for name, words in (("always", "always retrieving"), ("never", "never retrieving"))
        if name in known and name not in best
    ]
    sentences = [lead]
    others = sorted((name for name in known if name not in best), key=lambda name: -known[name])
    if len(best) == 1 and others:
        sentences += _lead_over(results, best[0], others)
    if rest:
        text = "; ".join(rest)
        sentences.append(text[0].upper() + text[1:] + ".")
    return sentences


def _reached(method: Mapping[str, Any], *, short: bool = False) -> str:
    ci = span(metric_ci(method, "em"))
    interval = f" (95% interval {ci})" if ci and not short else ""
    retrievals = metric(method, "retrievals")
    cost = f" with {num(retrievals)} retrievals per question" if retrievals else ""
    return f"reaches {num(metric(method, 'em'), 3)}{interval}{cost}"


def _lead_over(results: Mapping[str, Any], best: str, others: list[str]) -> list[str]:
    """Which of the other methods the winner's paired intervals do not separate from it."""
    found = {name: pair(results, best, name, "em") for name in others}
    tested = [name for name in others if found[name] is not None]
    if not tested:
        return []
    close = [name for name, entry in found.items() if entry is not None and entry[1][0] <= 0]
    if not close:
        every = " every other method" if len(tested) == len(others) else f" {listing(map(_name, tested))}"
        return [f"Its paired 95% intervals against{every} lie above zero."]
    named = _several(close)
    whose = "the paired 95% interval contains" if len(close) == 1 else "the paired 95% intervals contain"
    return [f"Its lead over {named} is not settled: {whose} zero."]


def _against(results: Mapping[str, Any], methods: Mapping[str, Any], prober: str, rival: str) -> list[str]:
    """The prober against entropy, as a detector of wrong answers and in exact match, whoever wins."""
    lines = []
    for key, what in (("trigger.auroc", "AUROC for “the answer is wrong”"), ("em", "Exact match")):
        own, other = metric(methods[prober], key), metric(methods[rival], key)
        if own is None or other is None:
            continue
        text = f"{what}: {num(own, 3)} against {num(other, 3)}"
        entry = pair(results, prober, rival, key)
        if entry is None:
            lines.append(f"{text}; no paired interval was computed.")
            continue
        diff, ci = entry
        ending = {
            "above": f"{_name(prober)} is above",
            "below": f"{_name(rival)} is above",
            "not settled": "not settled, the interval contains zero",
        }[verdict(ci)]
        difference = f"difference {num(diff, 3, sign=True)}, paired 95% interval {span(ci, 3, sign=True)}"
        lines.append(f"{text} ({difference}): {ending}.")
    return [f"{_name(prober)} against {_name(rival)}.", *lines] if lines else []


def _oracle(methods: Mapping[str, Any]) -> list[str]:
    name = next((name for name in methods if stem(name) == "oracle"), None)
    if name is None or len(methods) == 1 or metric(methods[name], "em") is None:
        return []
    return [f"The oracle, which is told the truth, {_reached(methods[name], short=True)}."]
