"""Labels per second from real articles: batched and captured in one pass, against one call per token.

    python benchmarks/labels.py [--models testbed smollm2] [--articles 60]

The baseline follows the released code of RaDIO and MIND: one text at a time, one ``generate`` call for every
token, each over the whole text again, and then a pass with all hidden states.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from results import Results, Section, by_turns, goal, options, positive, ratios, script, spread

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


def plan(given: str, articles: int, recognise: Any) -> CutPlan:
    """Plan the default cuts of a file of articles or of the testbed's."""
    source = open_articles(given, limit=articles, seed=0, on_bad_line="skip")
    return CutPlan(source, recognise, 2, 10, 0)


def ours(lm: CausalLM, given: str, articles: int) -> dict[str, int]:
    """Label articles into a finished store with the states of all layers; return counts."""
    layers = tuple(range(lm.num_layers + 1))
    recognise = Recogniser("rules", fine=True, quiet=True)
    source = Articles(given, language="en")
    matcher = Options().matcher.with_options(vectors="")
    source.plan(Options(limit=articles, on_bad_line="skip", matcher=matcher))
    source.begin(lm, Needs.of(layers), Path())
    source.keep(cuts=plan(given, articles, recognise), matcher=EntityMatcher(), recognise=recognise)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        store = FeatureStore.create(Path(folder) / "s", [FeatureSpec(lm.spec, layers, lm.width)], config={})
        fill(store, source, partial(source.examples, lm))
        spans = finished(store)
    return {"articles": source.cuts.articles, "cuts": source.cuts.cuts, "spans": spans}


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


def measure_labels(results: Results, args: argparse.Namespace) -> None:
    """Compare both ways, by cuts per second."""
    given = str(args.data / "wiki_articles.jsonl")
    if not Path(given).is_file():
        given = "testbed"
    for name in args.models:
        usual = "float32" if name == "testbed" else "bfloat16"
        lm = CausalLM.from_pretrained(name, device=args.device, dtype=args.dtype or usual)
        articles = args.articles * (4 if name == "testbed" else 1)
        recognise = Recogniser("rules", fine=True, quiet=True)
        cuts = list(islice(iter(plan(given, articles, recognise)), args.few))
        seconds, made = by_turns(
            {"ours": partial(ours, lm, given, articles), "per token": partial(per_token, lm, cuts)},
            warm={"ours": partial(ours, lm, given, 5), "per token": partial(per_token, lm, cuts[:1])},
            rounds=args.rounds, device=lm.device,
        )  # fmt: skip
        counts = made["ours"]
        assert counts is not None
        share = counts["spans"] / max(1, counts["cuts"])
        rates = {
            "a `generate` call per token": [len(cuts) / s for s in seconds["per token"]],
            "`probers-datagen source=wiki`": [counts["cuts"] / s for s in seconds["ours"]],
        }
        slow, fast = rates.values()
        for way, rate in rates.items():
            cells = [spread(rate, 1), spread([r * share for r in rate], 1), spread(ratios(rate, slow), 1)]
            results.row("labels", name, way, *cells, *(goal(ratios(fast, slow), 20) if rate is fast else ()))
        results.note(
            "labels",
            f"{name}: {counts['articles']} articles, {counts['cuts']} cuts, {counts['spans']} labels, "
            f"states of "
            f"all layers, from reading the articles to the finished store; {len(cuts)} cuts with a call per "
            f"token.",
        )
    results.note(
        "labels", f"Both sides count a label for the same share of cuts. {args.rounds} rounds in turn."
    )


SECTIONS = {
    "labels": Section(
        "Labels from articles", "model | way | cuts/s | labels/s | times as fast | target | verdict",
        measure_labels, 240,
    )
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__, rounds=2)
    parser.add_argument("--models", nargs="+", default=["testbed", "smollm2"], help="names or folders")
    parser.add_argument("--articles", type=positive, default=40, help="four times as many for the testbed")
    parser.add_argument("--few", type=positive, default=6, help="cuts that the slow way is measured on")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
