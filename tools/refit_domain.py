"""Refitting of a trained prober's domain; its heads and other figures stay as they are.

    python tools/refit_domain.py PROBER STORE            # of its training and validation texts
    python tools/refit_domain.py PROBER FILE --articles articles.jsonl    # write those that it has seen

The store has the prober's model, layers and pool. SmolLM2's prober has one that is made of its articles by
``probers-datagen source=wiki articles=FILE limit=null model=smollm2 model.dtype=bfloat16 pool=tokens
prompt=mind layers=[17,19,21] per_article=4 within=null max_new_tokens=24 seed=1 out=STORE``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probers.bank.bank import Prober
from probers.data.articles import Rules, open_articles
from probers.evaluation.bootstrap import Bootstrap
from probers.store.store import FeatureStore
from probers.train.assemble import fit_domain, surprise_of
from probers.train.data import Dataset
from probers.types import SPLITS

#: Fewest texts of each split.
_LEAST = 20


def side_of(bank: Prober, dataset: str, group: str) -> str:
    """Find the split in which the prober has seen a group, "" for none."""
    return "" if bank.seen is None else bank.seen.side(dataset, group, "")


def write_seen(articles: str, bank: Prober, out: Path) -> int:
    """Write the lines of articles that the prober has seen; return their number."""
    rules = Rules(2, 100_000)
    found = open_articles(articles, limit=None, seed=0, on_bad_line="error", rules=rules, wikipedia={})
    sides = {one.id: side_of(bank, "wiki", one.id) for one in found}
    with open(articles, encoding="utf-8") as lines, open(out, "w", encoding="utf-8") as kept:
        return sum(bool(sides.get(json.loads(line)["title"])) and kept.write(line) > 0 for line in lines)


def refitted(bank: Prober, store: FeatureStore, rate: float) -> tuple[Prober, Mapping[str, Any]]:
    """Refit the prober's domain to the store's training texts; return the share of test texts outside, too.

    Texts keep the splits that the prober had them in; ValueError for a store that has hardly any of them.
    """
    bank.check_model(store.spec.model)
    dataset = Dataset.load([store], list(bank.layers))
    table = dataset.examples.table
    names = zip(table["dataset"], table["group"], strict=True)
    sides = np.array([side_of(bank, str(name), str(group)) for name, group in names])
    rows = {split: np.flatnonzero(sides == split) for split in SPLITS}
    if few := [split for split, kept in rows.items() if len(kept) < _LEAST]:
        raise ValueError(f"fewer than {_LEAST} of the store's {few[0]} texts are the prober's")
    dataset = replace(dataset, examples=replace(dataset.examples, rows=rows))
    columns = [column for column in dataset.columns if column.layer > 0]
    domain, distances = fit_domain(dataset, columns, rate)
    test, surprise = dataset.examples.rows["test"], surprise_of(dataset.examples)
    beyond = domain.unlike(distances[test], None if surprise is None else surprise[test]).astype(float)
    figures = {
        "limit": domain.limit, "rate": domain.rate, "components": domain.components.shape[1],
        "surprise": None if domain.surprise is None else list(domain.surprise),
        **Bootstrap(dataset.examples.column("group", "test")).interval(beyond).figures("false_alarms"),
    }  # fmt: skip
    return replace(bank, domain=domain, metrics={**bank.metrics, "domain": figures}), figures


def main() -> None:
    """Refit, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prober")
    parser.add_argument("given", metavar="STORE", help="the store, or with --articles the file to write")
    parser.add_argument("out", nargs="?", help="folder of the refitted prober; default PROBER")
    parser.add_argument("--articles")
    parser.add_argument("--rate", type=float, default=0.05)
    options = parser.parse_args()
    bank = Prober.from_pretrained(options.prober)
    if options.articles:
        print(write_seen(options.articles, bank, Path(options.given)), "articles")
        return
    again, figures = refitted(bank, FeatureStore.open(Path(options.given)), options.rate)
    again.save_pretrained(options.out or options.prober)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
