"""Speed of labelling articles with a real model, by number format, shared prefixes, and states recorded.

    python benchmarks/datagen.py --articles FILE.jsonl [--model smollm2] [--count 60] [--write]

All variants label the same cuts. CPU time is reported next to wall time, since it hardly
depends on the machine's other work.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flags import positive
from report import invocation, publish
from timing import Results, by_turns, ratios, spread, verdict

from probers import CausalLM
from probers.cli.components import Component
from probers.data.articles.cuts import Cut
from probers.datagen import Articles
from probers.datagen.labels.rows import Examples
from probers.datagen.settings import Options
from probers.types import Needs

SECTION = "Labels from articles (cpu)"
#: Ways: number format, whether cuts that begin alike are read once, and tokens of context.
WAYS: dict[str, tuple[str, bool, int | None]] = {
    "float32, every cut in full": ("float32", False, None),
    "bfloat16, every cut in full": ("bfloat16", False, None),
    "+ cuts that begin each other read once": ("bfloat16", True, None),
    "+ `context=256` (default)": ("bfloat16", True, 256),
    "+ `context=128`": ("bfloat16", True, 128),
}
_BEFORE, _DEFAULT = "float32, every cut in full", "+ `context=256` (default)"


def labels_of(source: Articles, lm: CausalLM, cuts: list[Cut], *, shares: bool) -> tuple[Examples, float]:
    """Label the cuts; return the examples and the processor's seconds."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = Examples()

    def label() -> None:
        for examples in source.examples(lm, cuts):
            found.extend(examples)

    if shares:
        label()
    else:
        with patch("probers.model.causal_lm.nested", return_value=None):
            label()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return found, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--articles", required=True, help="FILE.jsonl, as articles= of probers-datagen")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=positive, default=60, help="articles")
    parser.add_argument("--per-article", type=positive, default=4)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    options = parser.parse_args(argv)

    models = {
        dtype: CausalLM.from_pretrained(options.model, dtype=dtype) for dtype in ("float32", "bfloat16")
    }

    def source(dtype: str, context: int | None) -> Articles:
        lm = models[dtype]
        layers = tuple(range(lm.num_layers // 3 + 1, lm.num_layers + 1, 2))
        made = Articles(
            options.articles, per_article=options.per_article, within=None, context=context, language="en"
        )
        matcher = Options().matcher.with_options(vectors="")
        prompt = Component.of("prompt", "testbed", name="mind")
        made.plan(Options(limit=options.count, max_new_tokens=16, matcher=matcher, prompt=prompt))
        made.begin(lm, Needs.of(layers, pool="predicting"), Path())
        return made

    planned = source("float32", None)
    cuts = list(planned.units())
    spent: dict[str, list[float]] = {name: [] for name in WAYS}

    def work(name: str, some: list[Cut]) -> Examples:
        dtype, shares, context = WAYS[name]
        found, seconds = labels_of(source(dtype, context), models[dtype], some, shares=shares)
        spent[name].append(seconds)
        return found

    calls: dict[str, Callable[[], Any]] = {name: partial(work, name, cuts) for name in WAYS}
    warm: dict[str, Callable[[], Any]] = {name: partial(work, name, cuts[:4]) for name in WAYS}
    seconds, made = by_turns(
        calls, warm=warm, least=options.repeats, exactly=options.repeats, device=models["float32"].device
    )
    results = Results(
        {"labels": "way | labels/s | of the first | by processor time | same labels | target | verdict"}
    )
    first = made[_BEFORE].labels()
    for name in WAYS:
        labels = made[name].labels()
        both = [span for span, label in labels.items() if label is not None and first.get(span) is not None]
        same = sum(labels[span] == first[span] for span in both)
        rate = [len(made[name].rows) / s for s in seconds[name]]
        per_label = [s * len(made[_BEFORE].rows) / len(made[name].rows) for s in seconds[name]]
        used = [s * len(made[_BEFORE].rows) / len(made[name].rows) for s in spent[name][1:]]
        faster, cheaper = ratios(seconds[_BEFORE], per_label), ratios(spent[_BEFORE][1:], used)
        goal = (">= 2", verdict(statistics.median(faster) >= 2)) if name == _DEFAULT else ()
        results.row(
            "labels", name, spread(rate, 1), spread(faster), spread(cheaper), f"{same} of {len(both)}", *goal
        )
    lengths = [len(cut.before.split()) for cut in cuts]
    results.note(
        "labels",
        f"{options.model}, {planned.cuts.articles} articles, {len(cuts)} cuts with "
        f"{statistics.median(lengths):.0f} words before them in the middle and {max(lengths)} at most, "
        f"{len(made[_BEFORE].rows)} labels; {options.repeats} rounds in turn. "
        f"Labels are compared where both ways give one.",
    )
    command = invocation(
        "datagen.py",
        ["--articles", "FILE.jsonl", "--count", str(options.count), "--repeats", str(options.repeats)],
    )
    publish({SECTION: results.body("labels")}, command, write=options.write)


if __name__ == "__main__":
    main()
