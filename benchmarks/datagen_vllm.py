"""Speed of labelling articles with ``engine=vllm`` and ``engine=transformers``, taking turns.

    python benchmarks/datagen_vllm.py --articles FILE.jsonl [--model smollm2] [--count 60] [--write]

Run it in the environment of ``make test-vllm``. Both engines are in this process and label the same cuts with
the defaults of ``probers-datagen --source wiki``. vLLM clears its prefix cache before each round.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path
from typing import Any

from flags import positive
from report import invocation, publish
from timing import Results, ratios, spread, verdict

from probers import CausalLM
from probers.data.articles.cuts import Cut
from probers.datagen import Articles
from probers.datagen.labels.rows import Examples
from probers.datagen.settings import Options
from probers.engine.vllm.lm import VllmLM
from probers.types import Needs, Pool

SECTION = "Labels from articles with vLLM (cpu)"
OURS, VLLM = "transformers", "vllm"
POOLS: tuple[Pool, ...] = ("mean", "predicting")


def used() -> float:
    """Return the seconds of processor time of this process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def labelled(source: Articles, lm: CausalLM, cuts: list[Cut]) -> tuple[Examples, float, float]:
    """Label the cuts; return the examples, and seconds by the clock and by the processor."""
    begun, before, found = time.perf_counter(), used(), Examples()
    for examples in source.examples(lm, cuts):
        found.extend(examples)
    return found, time.perf_counter() - begun, used() - before


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--articles", required=True, help="FILE.jsonl, as articles= of probers-datagen")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--count", type=positive, default=60, help="articles")
    parser.add_argument("--per-article", type=positive, default=4)
    parser.add_argument("--new-tokens", type=positive, default=48)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    options = parser.parse_args(argv)

    source = Articles(options.articles, per_article=options.per_article, within=None, language="en")
    matcher = Options().matcher.with_options(vectors="")
    source.plan(Options(limit=options.count, max_new_tokens=options.new_tokens, matcher=matcher))
    cuts = list(source.units())
    begun = time.perf_counter()
    vllm = VllmLM.from_pretrained(options.model, dtype=options.dtype)
    started = time.perf_counter() - begun
    models: dict[str, CausalLM] = {
        OURS: CausalLM.from_pretrained(options.model, dtype=options.dtype), VLLM: vllm,
    }  # fmt: skip
    results = Results(
        {"vllm": "pool | engine | labels/s | of the first | by processor time | tokens/s | target | verdict"}
    )
    for pool in POOLS:
        made, times = _by_turns(models, source, cuts, pool, options)
        labels = {name: found.labels() for name, found in made.items()}
        ours = times[OURS]
        for name in models:
            rate = [len(made[name].rows) / clock for clock, _ in times[name]]
            # Compare labels, not texts: an engine that makes fewer of the same cuts is not faster.
            share = len(made[OURS].rows) / len(made[name].rows)
            faster, cheaper = (
                ratios([each[k] for each in ours], [each[k] * share for each in times[name]]) for k in (0, 1)
            )
            goal = (">= 1.8", verdict(statistics.median(faster) >= 1.8)) if name == VLLM else ()
            tokens = [made[name].tokens / clock for clock, _ in times[name]]
            row = (spread(rate, 1), spread(faster), spread(cheaper), spread(tokens, 0))
            results.row("vllm", pool, name, *row, *goal)
        texts = {name: {row["span"]: row["text"] for row in found.rows} for name, found in made.items()}
        both = [span for span in texts[OURS] if span in texts[VLLM]]
        alike = sum(texts[OURS][span] == texts[VLLM][span] for span in both)
        same = sum(labels[OURS][span] == labels[VLLM][span] for span in both)
        one = len(set(texts[OURS]) ^ set(texts[VLLM]))
        results.note(
            "vllm",
            f"{pool}: of {len(both)} spans that both label {alike} have the same text and {same} the same "
            f"label; {one} have a label from one engine alone.",
        )
    results.note(
        "vllm",
        f"{options.model} in {options.dtype}, {source.cuts.articles} articles, {len(cuts)} cuts, at most "
        f"{options.new_tokens} new tokens, all {vllm.num_layers + 1} layers, {options.rounds} rounds. "
        f"Starting vLLM took {started:.0f} s, not included in the rates.",
    )
    given = ["--articles", "FILE.jsonl", "--count", str(options.count), "--rounds", str(options.rounds)]
    publish({SECTION: results.body("vllm")}, invocation("datagen_vllm.py", given), write=options.write)


def _by_turns(
    models: dict[str, CausalLM], source: Articles, cuts: list[Cut], pool: Pool, options: Any
) -> tuple[dict[str, Examples], dict[str, list[tuple[float, float]]]]:
    """Return each engine's first examples, and its seconds by clock and processor in every round."""
    made: dict[str, Examples] = {}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for turn in range(options.rounds + 1):
        for name, lm in models.items():
            if isinstance(lm, VllmLM):
                lm.forget()
            needs = Needs.of(tuple(range(lm.num_layers + 1)), pool=pool)
            source.begin(lm, needs, Path())
            found, clock, processor = labelled(source, lm, cuts if turn else cuts[:4])
            if turn:  # the first is a warm-up
                times[name].append((clock, processor))
                made.setdefault(name, found)
                print(turn, pool, name, f"{clock:.2f} s, {processor:.2f} s of processor", flush=True)
    return made, times


if __name__ == "__main__":
    main()
