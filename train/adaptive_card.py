"""What a classifier of questions is shown by: a table on the terminal and a card in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tables import markdown

#: What the figures are of.
CLASSIFIER, MAJORITY, SHUFFLED = "classifier", "majority", "shuffled labels"

_ABOUT = """\
---
library_name: probers
tags:
- retrieval-augmented-generation
- adaptive-retrieval
---

# How often to retrieve for a question, for {model}

TF-IDF of words and pairs of words, and multinomial logistic regression, in the manner of Adaptive-RAG
(Jeong et al. 2024). A question's label is the cheapest strategy that answered it right: without passages
(no), with one retrieval (single), or neither of them (multi).

```bash
probers-rag question="..." trigger=adaptive query=last_sentence trigger.classifier={out}
```

## Data

Feature store `{data}`, split by group.

{splits}

## Test figures

{detectors}

Brackets are 95% bootstrap intervals over groups. Nothing was chosen on the test questions.

The cheapest strategy that answers right (rows) against what the classifier says (columns):

{confusion}

## Limits

{limits}
"""


def table(figures: Mapping[str, Any]) -> str:
    """The figures as text for the terminal."""
    test, names = figures["splits"]["test"], figures["strategies"]
    lines = [
        f"test: {test['n']} questions, {test['groups']} groups; cheapest strategy that answers right, told "
        "from the question alone",
        f"  {'':20}{'accuracy':22}AUROC, no or some retrieval",
    ]
    for name, entry in figures["detectors"].items():
        shown = f"{name} ({figures['majority']})" if name == MAJORITY else name
        lines.append(f"  {shown:20}{_bounded(entry, 'accuracy'):22}{_bounded(entry, 'auroc')}".rstrip())
    titles = [*(f"said {name}" for name in names), "share", "recall"]
    lines.append(f"  {'cheapest':10}" + "".join(f"{title:>13}" for title in titles))
    for name, row in zip(names, figures["confusion"], strict=True):
        entry = figures["by_strategy"][name]
        cells = [*map(str, row), _percent(entry["share"]), _percent(entry["recall"])]
        lines.append(f"  {name:10}" + "".join(f"{cell:>13}" for cell in cells).rstrip())
    said = [_percent(figures["by_strategy"][name]["predicted_share"]) for name in names]
    lines.append(f"  {'share':10}" + "".join(f"{share:>13}" for share in said))
    return "\n".join([*lines, *(f"note: {note}" for note in _notes(figures))])


def write_card(figures: Mapping[str, Any], *, model: str, data: Path, out: Path) -> str:
    """The text of ``README.md``."""
    names = figures["strategies"]
    splits = [
        [name, s["n"], s["groups"], *(f"{s['strategies'].get(each, 0):.0%}" for each in names)]
        for name, s in figures["splits"].items()
    ]
    detectors = [[n, _bounded(e, "accuracy"), _bounded(e, "auroc")] for n, e in figures["detectors"].items()]
    limits = [
        "It sees the question's words and nothing of the model's answer.",
        f"Its labels are of answers by `{model}`: they say nothing of another model.",
        "'multi' stands for every question that neither strategy answered right; that several retrievals "
        "would have helped was not tried.",
        *(f"{note[0].upper()}{note[1:]}." for note in _notes(figures)),
    ]
    return _ABOUT.format(
        model=model,
        out=out,
        data=data,
        splits=markdown(["split", "questions", "groups", *names], splits),
        detectors=markdown(["", "accuracy", "AUROC, no or some retrieval"], detectors),
        confusion=markdown(
            ["", *names], [[n, *row] for n, row in zip(names, figures["confusion"], strict=True)]
        ),
        limits="\n".join(f"- {line}" for line in limits),
    )


def _bounded(entry: Mapping[str, Any], key: str) -> str:
    value, bounds = entry[key], entry[f"{key}_ci"]
    if value is None:
        return ""
    return f"{value:.2f}" + ("" if bounds is None else f" [{bounds[0]:.2f}, {bounds[1]:.2f}]")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _notes(figures: Mapping[str, Any]) -> list[str]:
    """What in the figures speaks against the classifier."""
    found: list[str] = []
    low = figures["pairs"][f"{CLASSIFIER} vs {MAJORITY}"]["accuracy"]["ci95"][0]
    if not low > 0:
        found.append(f"it is not shown to be better than saying {figures['majority']!r} of every question")
    silent = [n for n, e in figures["by_strategy"].items() if e["n"] and not e["predicted_share"]]
    if silent:
        found.append(f"it never says {' or '.join(map(repr, silent))}")
    return found
