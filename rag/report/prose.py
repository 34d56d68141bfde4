"""The outcome in words, computed from the numbers: who won, at what price, and what is not settled."""

from __future__ import annotations

from collections.abc import Sequence

from probers.pages import count, esc, listing, num, span

from .lookup import FIXED, Findings, stem, verdict

_NAMED = 4  # methods at most that a sentence names
_NUMBERS = ("Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten", "Eleven", "Twelve")


def summary_html(found: Findings) -> str:
    """What was compared and how it came out: a paragraph, then each prober against entropy."""
    sentences, duels = [_setting(found)], ""
    alike = _alike(found)
    if alike:
        sentences.append(alike)
    else:
        sentences += [*_winner(found), *_oracle(found)]
        duels = "".join(
            f"<li>{' '.join(lines)}</li>"
            for prober in found.methods
            for rival in found.methods
            if stem(prober) == "probing" and stem(rival) == "entropy"
            if (lines := _against(found, prober, rival))
        )
    against = f'<ul class="lead">{duels}</ul>' if duels else ""
    return f'<p class="lead">{" ".join(sentences)}</p>{against}'


def notes_html(found: Findings) -> str:
    """The caveats, methods that never or always fired among them; empty when there are none."""
    lines = [esc(note) for note in found.data.get("notes", ())]
    flags = {n: flag for n, flag in found.data.get("flags", {}).items() if stem(n) not in FIXED}
    for flag in dict.fromkeys(flags.values()):
        names = listing(_name(name) for name, its in flags.items() if its == flag)
        lines.append(f"{names} {esc(flag)} on these questions.")
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


def _setting(found: Findings) -> str:
    names, data = list(found.methods), found.data
    if not names:
        return "No method was run."
    number = _NUMBERS[len(names) - 2] if 2 <= len(names) < 2 + len(_NUMBERS) else str(len(names))
    who = (
        f"One way of deciding when to retrieve, {_name(names[0])}, was run"
        if len(names) == 1
        else f"{number} ways of deciding when to retrieve were run"
    )
    questions = f" on the same {count(int(found.n), 'question')}" if found.n is not None else ""
    model = f" with the model {_name(data['model'])}" if data.get("model") else ""
    corpus = f" and the corpus {_name(data['corpus'])}" if data.get("corpus") else ""
    return f"{who}{questions}{model}{corpus}."


def _alike(found: Findings) -> str:
    """That the methods, the oracle among them, are equally often right; nothing where they are not."""
    known = [figures["em"] for figures in found.methods.values() if "em" in figures]
    if len(known) < 2 or len(set(known)) > 1:
        return ""
    if known[0] == 0:
        return "None of them has a single answer right: these questions do not tell them apart."
    return f"All of them reach {num(known[0], 3)} in exact match, and are not told apart by it."


def _winner(found: Findings) -> list[str]:
    """The best exact match outside the oracle, next to always and never retrieving."""
    known = {
        n: figures["em"] for n, figures in found.methods.items() if stem(n) != "oracle" and "em" in figures
    }
    if not known:
        return ["Exact match does not apply: the questions have no gold answers."]
    best = [name for name, em in known.items() if em == max(known.values())]
    if len(known) == 1:
        return [f"{_name(best[0])} {_reached(found, best[0])}."]
    if len(best) == 1:
        sentences = [f"The highest exact match is that of {_name(best[0])}: it {_reached(found, best[0])}."]
        others = [name for name in known if name not in best]
        sentences += _lead(found, best[0], sorted(others, key=lambda name: -known[name]))
    else:
        costs = listing(num(found.figure(name, "retrievals")) for name in best[:_NAMED])
        more = " and more" if len(best) > _NAMED else ""
        sentences = [
            f"{_several(best)} share the highest exact match, {num(known[best[0]], 3)}, at {costs}{more}"
            " retrievals per question."
        ]
    rest = [
        f"{name} retrieving {_reached(found, name, short=True)}"
        for name in ("always", "never")
        if name in known and name not in best
    ]
    return [*sentences, f"{'; '.join(rest).capitalize()}."] if rest else sentences


def _reached(found: Findings, name: str, *, short: bool = False) -> str:
    ci, retrievals = found.interval(name, "em"), found.figure(name, "retrievals")
    interval = f" (95% interval {span(ci)})" if ci and not short else ""
    cost = f" with {num(retrievals)} retrievals per question" if retrievals else ""
    return f"reaches {num(found.figure(name, 'em'), 3)}{interval}{cost}"


def _lead(found: Findings, best: str, others: Sequence[str]) -> list[str]:
    """Which of the other methods the winner's paired intervals do not separate from it."""
    entries = {name: found.difference(best, name, "em") for name in others}
    tested = {name: entry.ci for name, entry in entries.items() if entry and entry.ci}
    close = [name for name, ci in tested.items() if ci[0] <= 0]
    if not tested:
        return []
    if not close:
        every = "every other method" if len(tested) == len(others) else listing(map(_name, tested))
        return [f"Its paired 95% intervals against {every} lie above zero."]
    whose = "the paired 95% interval contains" if len(close) == 1 else "the paired 95% intervals contain"
    return [f"Its lead over {_several(close)} is not settled: {whose} zero."]


def _against(found: Findings, prober: str, rival: str) -> list[str]:
    """The prober against entropy, as a detector of wrong answers and in exact match, whoever wins."""
    endings = {
        "above": f"{_name(prober)} is above",
        "below": f"{_name(rival)} is above",
        "not settled": "not settled, the interval contains zero",
    }
    lines = []
    for key, what in (("trigger.auroc", "AUROC for “the answer is wrong”"), ("em", "Exact match")):
        own, other = found.figure(prober, key), found.figure(rival, key)
        if own is None or other is None:
            continue
        text = f"{what}: {num(own, 3)} against {num(other, 3)}"
        entry = found.difference(prober, rival, key)
        if entry is None or entry.ci is None:
            lines.append(f"{text}; no paired interval was computed.")
            continue
        size, ci = num(entry.value, 3, sign=True), span(entry.ci, 3, sign=True)
        ending = endings[verdict(entry.ci)]
        lines.append(f"{text} (difference {size}, paired 95% interval {ci}): {ending}.")
    return [f"{_name(prober)} against {_name(rival)}.", *lines] if lines else []


def _oracle(found: Findings) -> list[str]:
    name = next((name for name in found.methods if stem(name) == "oracle"), None)
    if name is None or len(found.methods) == 1 or found.figure(name, "em") is None:
        return []
    return [f"The oracle, which is told the truth, {_reached(found, name, short=True)}."]
