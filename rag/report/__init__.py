"""The report of a comparison as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probers.files import write_text
from probers.pages import render

from .charts import roc_chart, tradeoff_charts
from .conclusions import advice, conclusion
from .lookup import LEVEL, LEVELS, Findings, level, scales, shown_at_once, stem, token_scores, verdict
from .svg import interval_glyph, level_glyph, mark_glyph, shares_glyph

__all__ = ["LEVEL", "conclusion", "write_report"]


def write_report(results: Mapping[str, Any], data: Mapping[str, Any], path: Path) -> None:
    """Write the comparison as one HTML file without scripts or network access.

    Parts without data are left out; figures that are null are dashes. ``results`` are results.json, schema 1;
    ``data`` any of ``title``, ``command``, ``model``, ``corpus``, ``n``, ``threshold_rule``, ``date``,
    ``flags``, ``knowledge_em``, ``roc``, ``replay``, ``reruns``,
    ``points``, ``notes`` and ``examples``.
    """
    findings = Findings(results, data)
    glyphs = (mark_glyph, interval_glyph, level_glyph, shares_glyph)
    functions = (*glyphs, stem, verdict, level, token_scores, shown_at_once)
    first, further = tradeoff_charts(findings)
    page = render(
        "probers.rag.report/page.html.j2",
        findings=findings,
        verdict_sentence=conclusion(results, data),
        advice=advice(findings),
        first=first,
        decisions=further + roc_chart(findings),
        scales=scales(findings.data.get("examples", ())),
        levels=LEVELS,
        **{function.__name__: function for function in functions},
    )
    write_text(path, page)
