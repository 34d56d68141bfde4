"""AUROC of token probers on texts of another form, model or kind, by store.

    python benchmarks/transfer.py --probers runs/train/mind runs/train/chat --stores runs/wiki runs/chat

Only spans of the test split count, from groups that none of the probers was trained or tuned on.
Each prober is compared with the log-probability of the span, from the same rows.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from report import invocation, publish
from timing import Results

from probers.bank.bank import Prober
from probers.evaluation.bootstrap import Bootstrap
from probers.evaluation.metrics import auroc, ece
from probers.store.store import FeatureStore
from probers.types import Question

SECTION = "Probers on other texts"


def spans_of(store: FeatureStore, bank: Prober) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read labels, scores, negated log-probabilities and groups of the test split's spans, (n,) each.

    Raises:
        ValueError: a store without pool=tokens.
    """
    if store.spec.pool != "tokens":
        raise ValueError(f"{store.path} is of pool={store.spec.pool}: make one with pool=tokens")
    table = store.table()
    table["row"] = np.arange(len(table))
    test = table[table["split"] == "test"]
    reader = store.reader(bank.layers)
    labels, scores, surprise, groups = [], [], [], []
    for name, span in test.sort_values("token").groupby("span", sort=True):
        group = str(span["group"].iloc[0])
        if bank.seen is not None and bank.seen.split_of(
            Question(str(name), span["question"].iloc[0], dataset=span["dataset"].iloc[0], group=group)
        ) in ("train", "validation"):
            continue
        states = reader[span["row"].to_numpy()]
        labels.append(1 - int(span["correct"].iloc[0]))
        scores.append(float(bank.score_spans(states, [(0, len(states))])[0]))
        surprise.append(-float(span["mean_logprob"].sum()))  # a row has the signals of its token
        groups.append(group)
    return np.array(labels), np.array(scores), np.array(surprise), np.array(groups)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--probers", nargs="+", required=True, help="folders of probers of pool=tokens")
    parser.add_argument("--stores", nargs="+", required=True, help="stores of pool=tokens")
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    options = parser.parse_args(argv)

    results = Results(
        {"transfer": "prober | spans of | test spans | wrong | AUROC (95%) | log-probability | ECE"}
    )
    for name in options.probers:
        bank = Prober.from_pretrained(name)
        for path in options.stores:
            labels, scores, surprise, groups = spans_of(FeatureStore.open(path), bank)
            drawn = Bootstrap(groups)
            own, plain = (
                "{:.3f} ({:.3f} to {:.3f})".format(*drawn.interval(found, partial(auroc, labels)))
                for found in (scores, surprise)
            )
            off = ece(labels, bank.probability(scores))
            results.row(
                "transfer", Path(name).name, Path(path).name, len(labels), f"{labels.mean():.2f}",
                own, plain, f"{off:.3f}",
            )  # fmt: skip
    argv = ["--probers", *options.probers, "--stores", *options.stores]
    publish({SECTION: results.body("transfer")}, invocation("transfer.py", argv), write=options.write)


if __name__ == "__main__":
    main()
