"""The comparison as one self-contained HTML page: its head, and the parts that have data in reading order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from probers.files import write_text
from probers.pages import count, render

from .charts import controls_chart, layers_chart, roc_chart, tradeoff_chart
from .examples import examples_html
from .lookup import Findings
from .prose import notes_html, summary_html
from .tables import knowledge_table, methods_html, pairs_table

__all__ = ["write_report"]


def write_report(results: Mapping[str, Any], data: Mapping[str, Any], path: Path) -> None:
    """Write the comparison as one HTML file that needs nothing else, no network and no script.

    Parts without data are left out; figures that are null are dashes. The file is
    replaced atomically.

    Args:
        results: results.json, schema 1. Intervals of trigger figures may be filed in
            ``ci95`` as "trigger.auroc" or "auroc", paired differences likewise.
        data: what the page needs beyond it: ``title``, ``command``, ``model``, ``corpus``,
            ``n``, ``threshold_rule``, ``date``, ``flags``, ``knowledge_em``, ``layers``,
            ``controls``, ``ensemble``, ``roc``, ``replay``, ``reruns``, ``points``, ``notes`` and
            ``examples``; every one may be absent.
        path: the file to write.
    """
    found = Findings(results, data)
    data = found.data
    page = render(
        "probers.rag.report/page.html.j2",
        title=data.get("title") or "Comparison of retrieval triggers",
        summary=Markup(summary_html(found)),
        facts={
            "Model": data.get("model"),
            "Corpus": data.get("corpus"),
            "Questions": None if found.n is None else f"{int(found.n):,}",
            "Threshold": data.get("threshold_rule"),
            "Date": data.get("date"),
        },
        command=data.get("command"),
        notes=Markup(notes_html(found)),
        sections=[(key, title, Markup(body)) for key, title, body in _sections(found) if body],
    )
    write_text(Path(path), page)


def _sections(found: Findings) -> Sequence[tuple[str, str, str]]:
    """The page's parts in reading order: key, title and markup, which is empty where there is no data."""
    decisions = tradeoff_chart(found, "em") + tradeoff_chart(found, "acc") + roc_chart(found)
    layers = layers_chart(found) + controls_chart(found)
    return (
        ("methods", "Methods", methods_html(found)),
        ("decisions", "Decisions and their cost", decisions and f'<div class="figures">{decisions}</div>'),
        ("knowledge", "By what the model was taught", knowledge_table(found)),
        ("layers", "Layers and controls", layers and f'<div class="figures">{layers}</div>'),
        ("pairs", "Paired differences", pairs_table(found)),
        ("examples", count(len(found.data.get("examples", ())), "example"), examples_html(found)),
    )
