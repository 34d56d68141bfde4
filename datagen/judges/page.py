"""Page to read verdicts and correct them by keyboard: one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from probers.checksums import draw_key
from probers.data.texts import Mark, Text
from probers.files import digest
from probers.pages import render
from probers.words.text import split_sentences

from .agreement import KINDS
from .base import VERDICT_OF, WRONG, Verdict

#: Most unknown parts beside the decided ones.
_UNKNOWN = 15
#: Characters shown of the end of a prompt, and of a sentence before and after the mark.
_PROMPT, _BEFORE, _AFTER = 300, 600, 400
#: Sign and key of each verdict, so that colour is not the only difference.
_SIGNS: dict[Verdict, tuple[str, str]] = {
    "supported": ("✓", "s"), "contradicted": ("✗", "c"), "unknown": ("?", "u"),
}  # fmt: skip


class Drawn(NamedTuple):
    """Judged part of a text; ``kind`` is the name of its list."""

    text: Text
    kind: str
    mark: Mark

    @property
    def verdict(self) -> Verdict:
        return VERDICT_OF[self.mark.wrong]

    @property
    def entry(self) -> dict[str, Any]:
        """Make the part's entry in a labelled text."""
        mark = self.mark
        whole = {"start": mark.start, "end": mark.end}
        place: dict[str, Any] = whole if len(mark.ranges) == 1 else {"ranges": list(map(list, mark.ranges))}
        rest = {"type": mark.type, "rule": mark.rule, "evidence": mark.evidence}
        return place | {"wrong": mark.wrong} | {name: value for name, value in rest.items() if value}


def draw_verdicts(texts: Sequence[Text], count: int = 100, seed: int = 0) -> list[Drawn]:
    """Draw decided parts by seed, half of each verdict as far as there are any, and some unknown ones.

    The same are drawn from the texts in any order. Parts of one text follow each other in reading order. Of
    parts that overlap only the first may be drawn, since they could not be given different verdicts.
    """
    parts: dict[Verdict, list[Drawn]] = {verdict: [] for verdict in WRONG}
    for text in texts:
        for kind in KINDS:
            for mark in _apart(getattr(text, kind)):
                parts[VERDICT_OF[mark.wrong]].append(Drawn(text, kind, mark))
    right, wrong = len(parts["supported"]), len(parts["contradicted"])
    supported = min(right, max(count - wrong, (count + 1) // 2))
    sizes: dict[Verdict, int] = {
        "supported": supported, "contradicted": count - supported, "unknown": _UNKNOWN,
    }  # fmt: skip

    def draw(part: Drawn) -> int:
        return draw_key("reading", seed, f"{part.text.id}\x1f{part.kind}\x1f{part.mark.ranges}")

    def place(part: Drawn) -> tuple[Any, ...]:
        return draw_key("order", seed, part.text.id), part.text.id, part.mark.ranges, part.kind

    chosen = [part for verdict, size in sizes.items() for part in sorted(parts[verdict], key=draw)[:size]]
    return sorted(chosen, key=place)


def _apart(marks: Sequence[Mark]) -> list[Mark]:
    apart: list[Mark] = []
    for mark in marks:
        if not apart or mark.start >= apart[-1].end:
            apart.append(mark)
    return apart


def reading_page(texts: Sequence[Text], *, about: Mapping[str, str], count: int = 100, seed: int = 0) -> str:
    """Make a page on which a reader agrees with verdicts of a judge, or corrects them.

    Args:
        texts: judged texts, as :class:`~probers.data.texts.TextSource` reads them.
        about: facts for the head.
        count, seed: decided parts to draw, and seed of the draw (:func:`draw_verdicts`).

    The page saves the verdicts read as ``hand.jsonl``, labelled texts with the drawn parts alone, for
    ``probers-judge agreement``. Choices are kept in the browser under a name made from the page's content.
    """
    drawn = draw_verdicts(texts, count, seed)
    data = _data(drawn)
    return render(
        "probers.datagen.judges/reading.html.j2",
        cases=list(map(_shown, drawn)), about=about, signs=_SIGNS, data=Markup(data), key=digest(data),
        sizes={verdict: sum(part.verdict == verdict for part in drawn) for verdict in WRONG},
    )  # fmt: skip


def _data(drawn: Sequence[Drawn]) -> str:
    """Encode the lines of hand.jsonl without parts, and the parts, as JSON that ends no element of HTML."""
    lines = {part.text.id: _line(part.text) for part in drawn}
    places = {id_: place for place, id_ in enumerate(lines)}
    parts = [{"text": places[d.text.id], "kind": d.kind, "part": d.entry} for d in drawn]
    text = json.dumps({"texts": list(lines.values()), "parts": parts})
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _line(text: Text) -> dict[str, Any]:
    """Convert a text to our layout, without its parts and without empty fields."""
    prompt = {"messages": list(text.messages)} if text.messages else {"prompt": text.prompt}
    rest = {
        "passages": list(text.passages), "group": text.group, "split": text.split, "writer": text.writer,
        "dataset": text.dataset,
    }  # fmt: skip
    line = {"id": text.id, **prompt, "answer": text.answer, "outside": "unknown"}
    return line | {name: value for name, value in rest.items() if value}


def _shown(drawn: Drawn) -> dict[str, Any]:
    """Convert a part for the template: the sentence with the part marked, and the one before it."""
    text, mark = drawn.text.answer, drawn.mark
    sentences = split_sentences(text)
    first = next((place for place, (_, stop) in enumerate(sentences) if stop > mark.start), 0)
    around = [span for span in sentences[max(0, first - 1) :] if span[0] < mark.end]
    starts, ends = zip((mark.start, mark.end), *around, strict=True)
    start, end = max(min(starts), mark.start - _BEFORE), min(max(ends), mark.end + _AFTER)
    prompt = drawn.text.question.strip()
    short = start == 0 and end == len(text) and len(prompt) <= _PROMPT
    return {
        "id": drawn.text.id, "verdict": drawn.verdict,
        "type": mark.type or KINDS[drawn.kind], "rule": mark.rule, "evidence": mark.evidence,
        "prompt": prompt if len(prompt) <= _PROMPT else f"…{prompt[-_PROMPT:]}",
        "said": _pieces(text, start, end, mark), "cut": (start > 0, end < len(text)),
        "whole": None if short else (prompt, _pieces(text, 0, len(text), mark)),
        "length": len(text),
    }  # fmt: skip


def _pieces(text: str, start: int, end: int, mark: Mark) -> list[tuple[str, bool]]:
    pieces = []
    for low, high in mark.ranges:
        pieces += [(text[start:low], False), (text[low:high], True)]
        start = high
    return [piece for piece in [*pieces, (text[start:end], False)] if piece[0]]
