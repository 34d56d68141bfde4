"""Evidence of grounding: what tells unsupported sentences, set by set, and what carries over.

    python tools/grounding_sets.py read FOLDER   # 2,400 answers, of which a core reads one or two a second
    python tools/grounding_sets.py table         # docs/results/grounding_sets.csv, a minute and a half
    python tools/grounding_sets.py curve         # docs/results/grounding_curve.csv: SummEdits; as long

States are kept in runs/grounding, and an interrupted reading goes on. Heads are logistic regressions; on
their own set they are tested by five folds over sources (documents, questions). "within" compares sentences
of one writer only (SummEdits: domain, substitutions: language), and "within_overlap" of one fifth by share
of new words, too. Intervals are over sources.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import GroupKFold, LeaveOneGroupOut

import probers
from probers.data.records import file_rows
from probers.data.texts import TextSource
from probers.evaluation.baselines import RANGES, Strata, logistic_regression, numbers
from probers.evaluation.metrics import Bootstrap, auroc, pooled_auroc
from probers.store.store import FeatureStore
from probers.words.text import split_sentences

OUT, RESULTS = Path("runs/grounding"), Path("docs/results")
LAYERS = (4, 8, 12, 16, 20, 24, 28)
Row = dict[str, Any]
#: What a head reads: sites with a layer, or columns of the table.
Blocks = Sequence[tuple[Any, ...]]


def published(*files: Path, most: int) -> Iterator[Row]:
    """Yield rows of files in the set's own layout, of whole sources up to ``most`` answers of each file.

    Answers of several sentences with one label are left out, since nobody knows which sentence it is about.
    """
    for file in files:
        for one in TextSource(file, on_bad_line="skip", limit=most).labelled("sentence"):
            if one.outside == "right" or len(split_sentences(one.answer)) == 1:
                marks = [each for each in one.units("sentence") if each.wrong is not None]
                yield {
                    "prompt": one.prompt, "passages": list(one.passages), "answer": one.answer,
                    "group": one.group, "writer": one.writer,
                    "sentences": [{"start": m.start, "end": m.end, "wrong": m.wrong} for m in marks],
                }  # fmt: skip


def summedits(*files: Path, most: int) -> Iterator[Row]:
    """Yield SummEdits' summaries with exactly one edited sentence, which gets the summary's label.

    Unedited sentences say nothing of edits, and of two edited ones the label names neither. Documents are
    drawn until there are ``most`` summaries.
    """
    by_document = defaultdict(list)
    for file in files:
        domain = file.name.partition(".")[0].removeprefix("summedits_")
        for record in (row.record for row in file_rows(file)):
            summary, seed = record["summary"], record["original_summary"]
            edited = [place for place in split_sentences(summary) if summary[slice(*place)] not in seed]
            if len(edited) == 1:
                sentence = {"text": summary[slice(*edited[0])], "wrong": not record["label"]}
                by_document[record["doc"]].append({
                    "prompt": "Summarize the passage.", "passages": [record["doc"]], "answer": f" {summary}",
                    "group": record["doc"], "writer": domain, "sentences": [sentence],
                })  # fmt: skip
    documents = sorted(by_document)
    random.Random(0).shuffle(documents)
    number = 0
    for document in documents:
        if number < most:
            yield from by_document[document]
            number += len(by_document[document])


def substitutions(*files: Path, most: int) -> Iterator[Row]:
    """Yield answers that tools/substitutions.py makes of XQuAD's questions in the language of each file."""
    for file in files:
        made = OUT / f"{file.stem}.jsonl"
        command = [sys.executable, str(Path(__file__).with_name("substitutions.py")), str(made)]
        if not made.exists():
            subprocess.run([*command, f"squad={file}", "--texts", str(most)], check=True)
        yield from (row.record | {"writer": file.name.split(".")[1]} for row in file_rows(made))


def read(folder: str) -> None:
    """Read every set with SmolLM2 and store its states."""

    def files(pattern: str) -> list[Path]:
        return sorted(Path(folder).glob(pattern))

    lm = probers.CausalLM.from_pretrained("smollm2")
    OUT.mkdir(parents=True, exist_ok=True)
    for name, rows in {
        "summedits": summedits(*files("summedits/*.json.gz"), most=710),
        "ragtruth": published(*files("ragtruth_qa/*.jsonl.gz"), most=360),
        "faithdial": published(*files("faithdial/*/*.csv"), most=60),
        "dolly": published(*files("dolly/*.jsonl.gz"), most=99),
        "halueval": published(*files("halueval_qa/*.json"), most=300),
        "substitutions": substitutions(*files("xquad/xquad.[des][ens].json"), most=100),
    }.items():
        numbered = [{**row, "id": str(n), "dataset": name} for n, row in enumerate(rows)]
        site = ["resid_diff", "passages", *(["lookback"] if name == "summedits" else [])]
        source = probers.Texts(numbered, unit="sentence")
        probers.label(lm, source, layers=list(LAYERS), site=site, limit=None, out=OUT / name)


@cache
def table_of(name: str) -> pd.DataFrame:
    """Read the columns of a set's sentences; ``wrong`` is 1 where they are unsupported."""
    table = FeatureStore.open(OUT / name).table()
    return table.assign(wrong=1 - table["correct"], writer=table["writer"].fillna(""))


@cache
def block(name: str, place: str, layer: int = 0) -> np.ndarray:
    """Read (n, d) of a set: states of a layer, attention, or a column of the table.

    "resid" are the states with passages, "attention" the weight of each attention head on all passages.
    """
    if place in table_of(name):
        return table_of(name)[[place]].to_numpy(dtype=float)
    if place == "resid":
        return block(name, "resid_diff", layer) + block(name, "resid_bare", layer)
    if place == "attention":
        return np.split(block(name, "passages"), 4, axis=1)[3]
    store = FeatureStore.open(OUT / name).feature(site=place, pool="mean")
    return store.layer(layer or store.spec.layers[0]).astype(np.float32)


def head(blocks: Blocks, train: Mapping[str, np.ndarray], name: str, test: np.ndarray) -> np.ndarray:
    """Score rows of a set by logistic regression of blocks, trained on rows of sets.

    Columns are standardised, and each block is divided by the root of its width, so that all weigh alike.
    """
    seen, sentences = [], []
    for each in blocks:
        values = np.concatenate([block(other, *each)[rows] for other, rows in train.items()])
        mean, scale = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-6) * values.shape[1] ** 0.5
        seen.append((values - mean) / scale)
        sentences.append((block(name, *each)[test] - mean) / scale)
    wrong = np.concatenate([table_of(other)["wrong"].to_numpy()[rows] for other, rows in train.items()])
    return logistic_regression(np.hstack(seen), wrong).decision_function(np.hstack(sentences))


def by_folds(name: str, score: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Score a set's rows, each by what ``score`` learns from other sources of the set."""
    table, scores = table_of(name), np.empty(len(table_of(name)))
    for train, test in GroupKFold(5).split(table, groups=table["group"]):
        scores[test] = score(train, test)
    return scores


def pointer(name: str, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Score by attention on the subject's passages over all, of the eight heads that rank training rows best.

    Where every text has one passage, it is the weight on that.
    """
    subject, pointed, _, total = np.split(block(name, "passages"), 4, axis=1)
    shares = next(each for each in (subject, pointed, total) if np.ptp(each) > 1e-3)
    wrong = table_of(name)["wrong"].to_numpy()[train]
    ranks = [auroc(wrong, -column) for column in shares[train].T]
    return -shares[test][:, np.argsort(ranks)[-8:]].mean(axis=1)


JOINED = {site: [(site, k) for k in (12, 16, 20, 24)] for site in ("resid_bare", "resid", "resid_diff")}
#: What the shipped prober reads.
HEAD: Blocks = [*JOINED["resid_diff"], ("passages",)]
HEADS: dict[str, Blocks] = {
    "attention on passages": [("attention",)], "head without passages": JOINED["resid_bare"],
    "head with passages": JOINED["resid"], "head on changes": JOINED["resid_diff"], "head": HEAD,
    "head and gain": [*HEAD, ("context_gain",)],
}  # fmt: skip
#: Scores that are a column of the table, or minus one.
PLAIN = {"new words": "new_words", "new values": "new_values"}
FALLING = {"log-probability": "mean_logprob", "least probability": "min_prob", "context gain": "context_gain"}


def scores_of(name: str) -> dict[str, np.ndarray]:
    """Score a set's sentences by everything; what is trained learns from other sources of the set."""
    table = table_of(name)

    def trained(*columns: str) -> np.ndarray:
        values, wrong = table[[*columns]].to_numpy(dtype=float), table["wrong"].to_numpy()
        return by_folds(name, lambda train, test: numbers(values, wrong, train, bins=RANGES)[test])

    scores = {score: table[column].to_numpy(dtype=float) for score, column in PLAIN.items()}
    scores |= {score: -table[column].to_numpy(dtype=float) for score, column in FALLING.items()}
    scores["overlap"], scores["length"] = trained("new_words", "new_pairs", "new_values"), trained("n_tokens")
    scores["pointer"] = by_folds(name, lambda train, test: pointer(name, train, test))
    for score, blocks in (HEADS | ({"lookback": [("lookback",)]} if name == "summedits" else {})).items():
        scores[score] = by_folds(name, lambda train, test, b=blocks: head(b, {name: train}, name, test))
    return scores


def evidence(name: str, scores: Mapping[str, np.ndarray]) -> Iterator[Row]:
    """Yield figures of each score of a set, with 95% intervals and paired differences."""
    table = table_of(name)
    wrong, writers = table["wrong"].to_numpy(), Strata.by(table["writer"])
    fifths = Strata.by(pd.qcut(table["new_words"], 5, labels=False, duplicates="drop"))
    bootstrap = Bootstrap(table["group"])

    def figures(values: np.ndarray, weights: np.ndarray) -> list[Any]:
        within = [pooled_auroc(wrong, values, of.of, weights) for of in (writers, writers.and_by(fifths))]
        return [auroc(wrong, values, weights), *within]

    samples = {score: bootstrap.samples(values, figures) for score, values in scores.items()}
    for score, drawn in samples.items():
        row = {"set": name, "sentences": len(table), "unsupported": int(wrong.sum())}
        row |= {"sources": table["group"].nunique(), "score": score}
        named = dict(zip(("auroc", "within", "within_overlap"), drawn, strict=True))
        named |= {f"minus_{other}": drawn[1].minus(samples[other][1]) for other in ("new words", "overlap")}
        for column, sample in named.items():
            limits = np.round(sample.interval, 3)
            row |= dict(zip((column, f"{column}_low", f"{column}_high"), limits, strict=True))
        yield row


def table() -> None:
    """Write the figures of every score on every set, and of heads trained on other sets."""
    names = sorted(path.parent.name for path in OUT.glob("*/manifest.json"))
    rows: list[Row] = []
    for name in names:
        scores = scores_of(name)
        trained = {f"head of {other}": [other] for other in names if other != name}
        trained["head of all others"] = [other for other in names if other not in (name, "halueval")]
        for score, others in trained.items():
            whole = {each: np.arange(len(table_of(each))) for each in (*others, name)}
            scores[score] = head(HEAD, {each: whole[each] for each in others}, name, whole[name])
        rows += evidence(name, scores)
    pd.DataFrame(rows).to_csv(RESULTS / "grounding_sets.csv", index=False)


def curve() -> None:
    """Write AUROC within domain on SummEdits, by training sentences, layers and sites.

    Heads learn from other documents of all domains or of the same, or from the other three domains.
    """
    table = table_of("summedits")
    wrong, groups, domains = (table[column].to_numpy() for column in ("wrong", "group", "writer"))
    every, strata, bootstrap = np.arange(len(table)), Strata.by(domains), Bootstrap(groups)

    def divided(rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        folds = GroupKFold(min(5, len(set(groups[rows])))).split(rows, groups=groups[rows])
        return [(rows[train], rows[test]) for train, test in folds]

    same = list(chain.from_iterable(divided(np.flatnonzero(domains == each)) for each in np.unique(domains)))
    others = list(LeaveOneGroupOut().split(every, groups=domains))
    blocks: dict[str, Blocks] = {
        f"{site} {k}": [(site, k)] for site in ("resid", "resid_diff") for k in LAYERS
    }
    blocks |= {f"{site} 12-24": read for site, read in JOINED.items()} | {"passages": [("passages",)]}
    blocks["all"] = [*JOINED["resid"], *HEAD, ("lookback",), ("context_gain",)]
    kinds = [("all domains", divided(every), size) for size in (90, 180, 360, None)]
    rows = []
    for trained, folds, size in [*kinds, ("same domain", same, None), ("other domains", others, None)]:
        for what, read in blocks.items():
            scores, used = np.empty(len(table)), []
            for train, test in folds:
                documents = np.random.default_rng(0).permutation(np.unique(groups[train]))
                chosen = np.concatenate([train[groups[train] == each] for each in documents])[:size]
                scores[test] = head(read, {"summedits": chosen}, "summedits", test)
                used.append(len(chosen))
            within = bootstrap.interval(scores, lambda s, weights: pooled_auroc(wrong, s, strata.of, weights))
            figures = dict(zip(("within", "low", "high"), np.round(within, 3), strict=True))
            rows.append({"trained": trained, "sentences": int(np.mean(used)), "read": what, **figures})
    pd.DataFrame(rows).to_csv(RESULTS / "grounding_curve.csv", index=False)


if __name__ == "__main__":
    {"read": read, "table": table, "curve": curve}[sys.argv[1]](*sys.argv[2:])
