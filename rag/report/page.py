"""The page around the parts: head with its content policy, sections in reading order."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from probers.files import write_text
from probers.html import count, document, esc

from .charts import controls_chart, layers_chart, roc_chart, tradeoff_chart
from .examples import examples_html
from .prose import notes_html, summary_html
from .series import Series, assign
from .tables import knowledge_table, legend, methods_table, more_table, pairs_table


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
    write_text(Path(path), report_html(results, data))


def report_html(results: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """The page as text; see :func:`write_report`."""
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    title = str(data.get("title") or "Comparison of retrieval triggers")
    looks = assign(_names(results, data))
    body = (
        f"<header><h1>{esc(title)}</h1>{summary_html(results, data)}{_facts(results, data)}</header>\n"
        f"{notes_html(data)}\n{_sections(results, data, looks)}"
    )
    return document(title, style, body)


def _names(results: Mapping[str, Any], data: Mapping[str, Any]) -> list[str]:
    """Every method that any part of the page names."""
    names = list(results.get("methods") or {})
    for part in ("knowledge_em", "roc", "replay", "reruns", "points"):
        names += list(data.get(part) or {})
    for example in data.get("examples") or []:
        names += [str(method.get("method")) for method in example.get("methods") or []]
    return list(dict.fromkeys(names))


def _facts(results: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Model, corpus, threshold, date and command as a list of facts."""
    n = data.get("n", results.get("n"))
    facts = [
        ("Model", esc(data.get("model") or "")),
        ("Corpus", esc(data.get("corpus") or "")),
        ("Questions", f"{int(n):,}" if n is not None else ""),
        ("Threshold", esc(data.get("threshold_rule") or "")),
        ("Date", esc(data.get("date") or "")),
        ("Command", f"<code>{esc(data['command'])}</code>" if data.get("command") else ""),
    ]
    return f'<dl class="facts">{"".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts if v)}</dl>'


def _sections(results: Mapping[str, Any], data: Mapping[str, Any], looks: Mapping[str, Series]) -> str:
    """The parts that have data, in reading order."""
    methods = methods_table(results, data, looks) if results.get("methods") else ""
    if methods:
        methods += legend(results)
        methods += f"<details><summary>Further figures</summary>{more_table(results)}</details>"
    triggers = (
        _figure(
            tradeoff_chart(data, looks),
            "Exact match against retrievals per question. Large markers are the methods of the table, with"
            " 95% intervals where there is room; hollow grey ones bound the others. Lines are the same"
            " methods at other settings, thresholds if nothing else is said. For those that judge whole"
            " answers every threshold is read from recorded answers, as is what random retrieval with the"
            " same query is expected to give (grey). The others change what is written, and were run once"
            " for each dot; without retrieval the answers are the closed-book ones. By n: tokens between"
            " two retrievals. By limit: retrievals per question at most, for what has no threshold.",
            broad=True,
        )
        + _figure(
            tradeoff_chart(data, looks, "acc"), "The same in ACC: a gold answer is in the text.", broad=True
        )
    ) + _figure(
        roc_chart(data, looks),
        "ROC of every trigger for “the answer is wrong”, with its AUROC. Markers only tell the curves apart;"
        " on the dotted line a trigger is guessing.",
    )
    layers = _figure(
        layers_chart(data),
        "Held-out accuracy and AUROC of the head of each layer, with the 95% band of AUROC. Level lines:"
        " the controls, and all layers together. Which layer is best is only known afterwards.",
    ) + _figure(
        controls_chart(data),
        "AUROC of all layers together and of every control, with 95% intervals, best first.",
    )
    examples = data.get("examples") or []
    parts = (
        ("methods", "Methods", methods),
        ("decisions", "Decisions and their cost", triggers and f'<div class="figures">{triggers}</div>'),
        ("knowledge", "By what the model was taught", knowledge_table(data, looks)),
        ("layers", "Layers and controls", layers and f'<div class="figures">{layers}</div>'),
        ("pairs", "Paired differences", pairs_table(results)),
        ("examples", f"{count(len(examples), 'example')}", examples_html(examples, looks)),
    )
    return "\n".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{esc(title)}</h2>{body}</section>'
        for key, title, body in parts
        if body
    )


def _figure(chart: str, caption: str, *, broad: bool = False) -> str:
    """A chart with its caption; a broad one has the page's width and scrolls on narrow screens."""
    if not chart:
        return ""
    caption = f"<figcaption>{esc(caption)}</figcaption>"
    if not broad:
        return f"<figure>{chart}{caption}</figure>"
    region = '<div class="scroll" role="region" aria-label="chart" tabindex="0">'
    return f'<figure class="broad">{region}{chart}</div>{caption}</figure>'
