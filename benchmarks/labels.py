"""Labels per second from real articles: batched and captured in one pass, against one call per token.

``python benchmarks/labels.py [--data ../shared/data] [--articles 1000] [--write]``. The baseline follows the
released code of RaDIO and MIND: one text at a time, one ``generate`` call for every token, each over the
whole text again, and then a pass with all hidden states.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from flags import add_place
from report import device_name, invocation, publish
from timing import by_turns, ratios, spread, verdict

from probers import CausalLM, FeatureStore
from probers.data.articles import open_articles
from probers.data.articles.cuts import Cut, CutPlan
from probers.datagen import Articles
from probers.datagen.settings import Options
from probers.datagen.writer import fill
from probers.store.spec import FeatureSpec
from probers.types import Needs, RunError
from probers.words import EntityMatcher, Recogniser

#: Number of tokens that MIND continues beyond the entity's.
_MORE = 16


class Timed:
    """Wrapper of a function that adds up its time."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self.function(*args)
        finally:
            self.seconds += time.perf_counter() - begun


class TimedMatcher(Timed):
    """Timed matcher, in place of the matcher."""

    def match(self, original: str, generated: str) -> Any:
        return self(original, generated)


class TimedRecogniser(Timed):
    """Timed recogniser, in place of the recogniser."""

    name = "rules"


def plan(given: str, articles: int, recognise: Any) -> CutPlan:
    """Plan the default cuts of a file of articles or of the testbed's."""
    source = open_articles(given, limit=articles, seed=0, on_bad_line="skip")
    return CutPlan(source, recognise, 2, 10, 0)


def ours(lm: CausalLM, given: str, articles: int) -> dict[str, float]:
    """Label articles into a finished store; return counts, and seconds of some parts."""
    layers = tuple(range(lm.num_layers + 1))
    recogniser = TimedRecogniser(Recogniser("rules", fine=True, quiet=True))
    matcher = TimedMatcher(EntityMatcher().match)
    source = Articles(given, language="en")
    source.plan(
        Options(limit=articles, on_bad_line="skip", matcher=Options().matcher.with_options(vectors=""))
    )
    source.begin(lm, Needs.of(layers), Path())
    source.keep(cuts=plan(given, articles, recogniser), matcher=matcher, recognise=recogniser)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        store = FeatureStore.create(Path(folder) / "s", [FeatureSpec(lm.spec, layers, lm.width)], config={})
        fill(store, source, partial(source.examples, lm))
        spans = finished(store)
    return {
        "articles": source.cuts.articles, "cuts": source.cuts.cuts, "spans": spans,
        "matching": matcher.seconds, "entities": recogniser.seconds,
    }  # fmt: skip


def finished(store: FeatureStore) -> int:
    """Finish a store; return its number of spans, which is 0 for random weights that write no entity."""
    try:
        store.finish({})
    except RunError as error:
        if error.code != "empty":
            raise
        return 0
    return len(store)


@torch.inference_mode()
def per_token(lm: CausalLM, cuts: Sequence[Cut]) -> None:
    """Label every cut by itself: one generate call per token, then all hidden states of the whole text.

    It goes on until the token that follows the entity in the article is among the likeliest
    four, or for the entity's tokens and 16 more (MIND). In its favour: it compares no meanings,
    writes nothing, and takes every cut.
    """
    for cut in cuts:
        ids = lm.tokenizer(cut.before, return_tensors="pt")["input_ids"].to(lm.device)
        rest = " ".join(cut.article.sentences)[cut.entity.end :]
        after = lm.tokenizer(rest[:40], add_special_tokens=False)["input_ids"][:1]
        start, budget = ids.shape[1], len(lm.tokenizer(cut.entity.text)["input_ids"]) + _MORE
        while ids.shape[1] < start + budget:
            output = lm.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False,
                output_scores=True, return_dict_in_generate=True,
            )  # fmt: skip
            if ids.shape[1] > start and after and after[0] in output.scores[0][0].topk(4).indices.tolist():
                break
            ids = output.sequences
        states = lm.model(ids, output_hidden_states=True).hidden_states
        torch.stack([layer[0, start:].mean(dim=0) for layer in states]).float().cpu().numpy()


def measure(lm: CausalLM, given: str, articles: int, few: int, rounds: int) -> str:
    """Format the table."""
    cuts = list(islice(iter(plan(given, articles, Recogniser("rules", fine=True, quiet=True))), few))
    work = {"ours": partial(ours, lm, given, articles), "per token": partial(per_token, lm, cuts)}
    warm = {"ours": partial(ours, lm, given, 20), "per token": partial(per_token, lm, cuts[:2])}
    seconds, results = by_turns(work, warm=warm, least=rounds, exactly=rounds, device=lm.device)
    counts = results["ours"]
    share = counts["spans"] / counts["cuts"]
    fast = [counts["cuts"] / s for s in seconds["ours"]]
    slow = [len(cuts) / s for s in seconds["per token"]]
    gain = ratios(fast, slow)
    first = seconds["ours"][0]
    lines = [
        "| way | cuts | cuts/s | labels/s | times as fast | target | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        f"| a generate call per token | {len(cuts)} | {spread(slow, 1)} | "
        f"{spread([s * share for s in slow], 1)} | 1 |  |  |",
        f"| `probers-datagen`, batches of 32 | {counts['cuts']:.0f} | {spread(fast, 1)} | "
        f"{spread([s * share for s in fast], 1)} | {spread(gain, 1)} | >= 20 | "
        f"{verdict(statistics.median(gain) >= 20)} |",
        "",
        "| part of the run | share of its time | target | verdict |",
        "| --- | --- | --- | --- |",
        f"| comparing entities | {counts['matching'] / first:.1%} | < 5% | "
        f"{verdict(counts['matching'] / first < 0.05)} |",
        f"| finding entities, in articles and in what is written | {counts['entities'] / first:.1%} |  |  |",
        "",
        f"- {counts['articles']:.0f} articles, {counts['cuts']:.0f} cuts, {counts['spans']:.0f} labelled "
        "spans; all layers' states, from reading the articles to the finished store. Both sides count a "
        "label for the same share of cuts.",
        f"- testbed model on {device_name(lm.device)}, {torch.get_num_threads()} threads; WordNet "
        f"{'used' if 'wordnet' in EntityMatcher().active else 'absent'}; {rounds} rounds in turn.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with ``--write`` replace the section of RESULTS.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--articles", type=int, default=1000)
    parser.add_argument("--few", type=int, default=48, help="cuts that the slow way is measured on")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="replace the table in benchmarks/RESULTS.md")
    add_place(parser, dtype="float32")
    args = parser.parse_args(arguments)
    if not (args.data / "wiki_articles.jsonl").is_file():
        parser.error(f"--data {args.data} holds no wiki_articles.jsonl")
    lm = CausalLM.from_pretrained("testbed", device=args.device, dtype=args.dtype, batch_size=32)
    body = measure(lm, str(args.data / "wiki_articles.jsonl"), args.articles, args.few, args.rounds)
    typed = sys.argv[1:] if arguments is None else arguments
    publish({"Labels from articles": body}, invocation("labels.py", typed), write=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
