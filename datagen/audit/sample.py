"""A sample of labelled cases as one HTML page, to be read by whoever is to trust the labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from probers.files import write_text
from probers.html import DASH, count, document, esc, num, number

from .drawn import draw, draw_undecided

__all__ = ["draw", "draw_undecided", "sample_html", "write_sample"]

#: Cases without a label that are shown.
MOST_UNDECIDED = 15
#: Characters shown of the text before the cut, of a continuation, and of anything shorter.
_BEFORE, _AFTER, _SHORT = 300, 600, 240
#: Labels in words with a sign, so that colour is not all that tells them apart.
_LABELS = {1: ("faithful", "✓"), 0: ("hallucinated", "✗")}


def write_sample(
    rows: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    about: Mapping[str, str],
    undecided: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write labelled cases as one HTML file that needs nothing else, no network and no script.

    Args:
        rows: as :func:`draw` gives them; what a row lacks is left out of its case.
        path: the file, replaced atomically.
        about: facts for the head in the order to be shown: source, model, label share ...
        undecided: cases without a label, as :func:`draw_undecided` gives them: id, reason, gold,
            written, type, stage, evidence, each of them absent, empty or None where unknown; the
            first :data:`MOST_UNDECIDED` are shown.

    Raises:
        RunError: the file cannot be written.
    """
    write_text(Path(path), sample_html(rows, about=about, undecided=undecided))


def sample_html(
    rows: Sequence[Mapping[str, Any]],
    *,
    about: Mapping[str, str],
    undecided: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The page as text; see :func:`write_sample`."""
    style = files(__package__).joinpath("sample.css").read_text(encoding="utf-8")
    title = "A sample of the labels"
    facts = "".join(_fact(name, esc(value)) for name, value in about.items())
    cases = "\n".join(_case(place, row) for place, row in enumerate(rows, 1))
    body = (
        f'<header><h1>{title}</h1><p class="lead">{_LEAD}</p>'
        + (f'<dl class="facts">{facts}</dl>' if facts else "")
        + f'</header>\n<section aria-labelledby="counts"><h2 id="counts">On this page</h2>{_tables(rows)}'
        + f'</section>\n<section aria-labelledby="cases"><h2 id="cases">{count(len(rows), "case")}</h2>'
        + f'{_filter(rows)}<div class="cases">\n{cases}\n</div></section>\n{_undecided(undecided)}'
    )
    return document(title, style, body)


_LEAD = (
    "Each article was cut right before an entity, a language model went on, and the entity at the head of "
    "what it wrote was compared with the article’s: <b>faithful</b> where they mean the same, "
    "<b>hallucinated</b> where they do not. The cases were drawn by seed so that both labels and every stage "
    "of the comparison appear; their shares are not those of the data."
)


def _tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """The labels of the cases by entity type and by match stage."""
    parts = []
    for column, head in (("question_type", "Entity type"), ("match_stage", "Match stage")):
        if not any(column in row for row in rows):
            continue
        cells = Counter((str(row.get(column, "")), int(row["correct"])) for row in rows)
        sizes = Counter(str(row.get(column, "")) for row in rows)
        lines = [(value, [cells[value, label] for label in _LABELS]) for value, _ in sizes.most_common()]
        lines.append(("all", [sum(found[i] for _, found in lines) for i in range(len(_LABELS))]))
        body = "".join(
            f'<tr><th scope="row" dir="auto">{esc(value) or DASH}</th>'
            + "".join(f"<td>{n or DASH}</td>" for n in (*found, sum(found)))
            + "</tr>"
            for value, found in lines
        )
        heads = "".join(
            f'<th scope="col" class="{word}">{sign} {word}</th>' for word, sign in _LABELS.values()
        )
        parts.append(
            f'<table><thead><tr><th scope="col">{head}</th>{heads}<th scope="col">all</th></tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )
    return f'<div class="tables">{"".join(parts)}</div>' if parts else ""


def _filter(rows: Sequence[Mapping[str, Any]]) -> str:
    """Buttons that show one label only; the style sheet does the work."""
    sizes = Counter(int(row["correct"]) for row in rows)
    choices = [("all", f"all {len(rows)}")]
    choices += [(word, f"{sign} {sizes[label]} {word}") for label, (word, sign) in _LABELS.items()]
    return "".join(
        f'<input type="radio" name="show" id="show-{word}"{" checked" if word == "all" else ""}>'
        f'<label for="show-{word}">{text}</label>'
        for word, text in choices
    )


def _case(place: int, row: Mapping[str, Any]) -> str:
    word, sign = _LABELS[int(row["correct"])]
    untouched = row.get("condition") == "untouched"
    pooled = row.get("token", -1) < 0
    compared = _compared(row.get("match_stage"), row.get("match_evidence"))
    details = [
        _detail("Not generated", _short(row.get("match_evidence"))) if untouched
        else _detail("Compared by", compared),
        _detail("Mean entropy" if pooled else "Entropy of its last token", _entropy(row.get("mean_entropy"))),
    ]  # fmt: skip
    return (
        f'<article class="case {word}">'
        f"{_head(place, row.get('title') or row.get('group') or row.get('id'), row.get('question_type'))}"
        f'<p class="label">{sign} {word}</p>'
        f"{_before(str(row.get('question', '')))}"
        '<dl class="versions">'
        f'<dt>Article</dt><dd dir="auto"><b>{_short(row.get("gold"))}</b></dd>'
        f'<dt>{"Text" if untouched else "Model"}</dt><dd dir="auto">{_written(row, word)}</dd></dl>'
        f'<dl class="details">{"".join(details)}</dl></article>'
    )


def _undecided(cases: Sequence[Mapping[str, Any]]) -> str:
    if not cases:
        return ""
    shown = "\n".join(
        f'<article class="case undecided">{_head(place, case.get("id"), case.get("type"))}'
        f'<p class="label">? {_short(case.get("reason")) or "undecided"}</p><dl class="versions">'
        f'<dt>Article</dt><dd dir="auto"><b>{_short(case.get("gold")) or DASH}</b></dd>'
        f'<dt>Model</dt><dd dir="auto">{_short(case.get("written")) or DASH}</dd></dl>'
        f'<dl class="details">{_detail("Compared by", _compared(case.get("stage"), case.get("evidence")))}'
        "</dl></article>"
        for place, case in enumerate(cases[:MOST_UNDECIDED], 1)
    )
    more = f" ({MOST_UNDECIDED} of {len(cases):,})" if len(cases) > MOST_UNDECIDED else ""
    return (
        f'<section aria-labelledby="undecided"><h2 id="undecided">Left out{more}</h2>'
        '<p class="lead">No label was made of these; each says why.</p>'
        f'<div class="cases">\n{shown}\n</div></section>'
    )


def _head(place: int, name: Any, kind: Any) -> str:
    badge = f'<span class="badge" dir="auto">{esc(kind)}</span>' if kind else ""
    return f'<h3><span class="count">{place}</span><bdi>{_short(name)}</bdi>{badge}</h3>'


def _before(prompt: str) -> str:
    """The end of the text before the cut, from the beginning of a word where words have spaces."""
    end = prompt[-_BEFORE:]
    if len(end) < len(prompt):
        _, space, rest = end.partition(" ")
        end = f"… {rest}" if space and len(rest) > _BEFORE * 0.8 else f"…{end}"
    return f'<p class="before" dir="auto">{esc(end)}</p>' if end.strip() else ""


def _written(row: Mapping[str, Any], word: str) -> str:
    """The continuation with its entity marked; where the span is not known, the entity alone."""
    text = str(row.get("text", ""))
    start, end = row.get("entity_start"), row.get("entity_end")
    if start is None or end is None or not 0 <= start < end <= len(text):
        return f'<mark class="{word}">{_short(row.get("answer"))}</mark>'
    start, end = int(start), int(end)
    rest = text[end:]
    after = f"{esc(rest[:_AFTER])}…" if len(rest) > _AFTER else esc(rest)
    return f'{esc(text[:start].lstrip())}<mark class="{word}">{esc(text[start:end])}</mark>{after}'


def _compared(stage: Any, evidence: Any) -> str:
    if not stage:
        return ""
    said = f': <span class="evidence" dir="auto">{_short(evidence)}</span>' if evidence else ""
    return f"{esc(stage)}{said}"


def _entropy(value: Any) -> str:
    return "" if number(value) is None else f"{num(value)} nats"


def _detail(name: str, markup: str) -> str:
    return f"<div><dt>{name}</dt><dd>{markup}</dd></div>" if markup else ""


def _fact(name: str, markup: str) -> str:
    return f'<div><dt>{esc(name)}</dt><dd dir="auto">{markup}</dd></div>'


def _short(value: Any) -> str:
    """A piece of text that should be short, escaped and cut where it is not; empty for None."""
    text = "" if value is None else str(value)
    return esc(text if len(text) <= _SHORT else f"{text[:_SHORT]}…")
