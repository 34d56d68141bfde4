"""A sample of labelled cases as one HTML page, to be read by whoever is to trust the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from probers.pages import number, render

#: Cases without a label that are shown.
MOST_UNDECIDED = 15
#: Characters shown of the text before the cut, of a continuation, and of anything shorter.
_BEFORE, _AFTER, _SHORT = 300, 600, 240
#: Labels in words with a sign, so that colour is not all that tells them apart.
_LABELS = {1: ("faithful", "✓"), 0: ("hallucinated", "✗")}


def sample_html(
    rows: Sequence[Mapping[str, Any]],
    *,
    about: Mapping[str, str],
    undecided: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Labelled cases as one HTML page that needs nothing else, no network and no script.

    Args:
        rows: as :func:`~probers.datagen.audit.draw` gives them; what a row lacks is left out of its case.
        about: facts for the head in the order to be shown: source, model, label share ...
        undecided: cases without a label, as :func:`~probers.datagen.audit.draw_undecided` gives them: id,
            reason, gold, written, type, stage, evidence, each of them absent, empty or None where
            unknown; the first :data:`MOST_UNDECIDED` are shown.
    """
    return render(
        "probers.datagen.audit/sample.html.j2",
        rows=rows, about=about, undecided=undecided, most=MOST_UNDECIDED, labels=_LABELS,
        tables=_tables(rows), before=_before, continuation=_continuation, short=_short, number=number,
    )  # fmt: skip


def _tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[int]]]]:
    """Numbers of cases by label and in all, by entity type and by match stage."""
    found = {}
    for column, head in (("question_type", "Entity type"), ("match_stage", "Match stage")):
        if not any(column in row for row in rows):
            continue
        cells = Counter((str(row.get(column, "")), int(row["correct"])) for row in rows)
        sizes = Counter(str(row.get(column, "")) for row in rows)
        lines = [
            (value, [*(cells[value, label] for label in _LABELS), n]) for value, n in sizes.most_common()
        ]
        found[head] = [*lines, ("all", [sum(column) for column in zip(*(n for _, n in lines), strict=True)])]
    return found


def _before(prompt: str) -> str:
    """The end of the text before the cut, from the beginning of a word where words have spaces."""
    end = prompt[-_BEFORE:]
    if len(end) < len(prompt):
        _, space, rest = end.partition(" ")
        end = f"… {rest}" if space and len(rest) > _BEFORE * 0.8 else f"…{end}"
    return end


def _continuation(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Text before the entity, the entity, and text after it; without a known span, the entity alone."""
    text = str(row.get("text", ""))
    start, end = row.get("entity_start"), row.get("entity_end")
    if start is None or end is None or not 0 <= start < end <= len(text):
        return "", _short(row.get("answer")), ""
    start, end = int(start), int(end)
    return text[:start].lstrip(), text[start:end], _cut(text[end:], _AFTER)


def _short(value: Any) -> str:
    """A piece of text that should be short, cut where it is not; empty for None."""
    return "" if value is None else _cut(str(value), _SHORT)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
