"""The comparison as one self-contained HTML page: its head, and the parts that have data in reading order."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from probers.files import write_text
from probers.html import count, document, esc

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
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    title = str(found.data.get("title") or "Comparison of retrieval triggers")
    body = (
        f"<header><h1>{esc(title)}</h1>{summary_html(found)}{_facts(found)}</header>\n"
        f"{notes_html(found)}\n{_sections(found)}"
    )
    write_text(Path(path), document(title, style, body))


def _facts(found: Findings) -> str:
    """Model, corpus, threshold, date and command as a list of facts."""
    data = found.data
    facts = {
        "Model": esc(data.get("model", "")),
        "Corpus": esc(data.get("corpus", "")),
        "Questions": "" if found.n is None else f"{int(found.n):,}",
        "Threshold": esc(data.get("threshold_rule", "")),
        "Date": esc(data.get("date", "")),
        "Command": f"<code>{esc(data['command'])}</code>" if data.get("command") else "",
    }
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items() if value)
    return f'<dl class="facts">{items}</dl>'


def _sections(found: Findings) -> str:
    """The parts that have data, in reading order."""
    decisions = tradeoff_chart(found, "em") + tradeoff_chart(found, "acc") + roc_chart(found)
    layers = layers_chart(found) + controls_chart(found)
    parts = (
        ("methods", "Methods", methods_html(found)),
        ("decisions", "Decisions and their cost", decisions and f'<div class="figures">{decisions}</div>'),
        ("knowledge", "By what the model was taught", knowledge_table(found)),
        ("layers", "Layers and controls", layers and f'<div class="figures">{layers}</div>'),
        ("pairs", "Paired differences", pairs_table(found)),
        ("examples", count(len(found.data.get("examples", ())), "example"), examples_html(found)),
    )
    return "\n".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{esc(title)}</h2>{body}</section>'
        for key, title, body in parts
        if body
    )
