"""Quality of labels from articles: the matcher, the entity rules, and the testbed's known truth.

``python benchmarks/quality.py [--data ../shared/data] [--nltk FOLDER] [--write]``. The pair set and the
annotated spans are those of the tests; the articles, and a model's substitutions in them, are in ``--data``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import publish

from probers import FeatureStore
from probers.commands import main as cli
from probers.data.articles import open_articles
from probers.data.articles.cuts import natural
from probers.words import STAGES, EntityMatcher, find_entities
from probers.words.text import detokenise_sentences
from probers.words.vectors import train_vectors

TESTS = Path(__file__).parents[1] / "tests" / "data"


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file."""
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def f1(hits: int, said: int, true: int) -> tuple[float, float, float]:
    """Compute precision, recall and F1."""
    precision, recall = hits / max(1, said), hits / max(1, true)
    return precision, recall, 2 * hits / max(1, said + true)


def matchers(vectors: str) -> dict[str, EntityMatcher]:
    """Make the matcher with more and more of its knowledge."""
    plain = tuple(stage for stage in STAGES if stage not in ("wordnet", "vectors"))
    found = {"strings only": EntityMatcher(stages=("string",)), "rules": EntityMatcher(stages=plain)}
    full = EntityMatcher()
    if "wordnet" in full.active:
        found["rules, WordNet"] = full
        found["rules, WordNet, vectors"] = replace(full, vectors=vectors)
    found["rules, vectors"] = EntityMatcher(stages=(*plain, "vectors"), vectors=vectors)
    return found


def matching(data: Path, vectors: str) -> str:
    """Measure the matcher on the pair set and on substitutions."""
    pairs = list(rows(TESTS / "entity_pairs.jsonl"))
    substitutions = list(rows(data / "labels" / "entity_substitutions.jsonl"))
    lines = [
        "| matcher | precision | recall | F1 | F1, held out | undecided | substitutions called equivalent |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, matcher in matchers(vectors).items():
        verdicts = [matcher.match(p["a"], p["b"]).verdict for p in pairs]
        cells = []
        for chosen in ([True] * len(pairs), [p["held_out"] for p in pairs]):
            said = [v == "equivalent" for v, c in zip(verdicts, chosen, strict=True) if c]
            true = [p["equivalent"] for p, c in zip(pairs, chosen, strict=True) if c]
            hits = sum(s and t for s, t in zip(said, true, strict=True))
            cells.append(f1(hits, sum(said), sum(true)))
        found = [matcher.match(s["original"], s["generated"]).verdict for s in substitutions]
        same = found.count("equivalent")
        numbers = [f"{x:.3f}" for x in (*cells[0], cells[1][2], verdicts.count("undecided") / len(pairs))]
        lines.append(
            f"| {name} | {' | '.join(numbers)} | {same} of {len(substitutions)} "
            f"({same / len(substitutions):.2%}) |"
        )
    n = sum(p["equivalent"] for p in pairs)
    lines += [
        "",
        f"- {n} equivalent and {len(pairs) - n} different pairs of tests/data/entity_pairs.jsonl; undecided "
        "counts as not equivalent. Held out: written after the rules were finished.",
        "- Vectors: Word2Vec trained on the articles of --data (matcher.vectors=own). "
        "Targets: F1 0.95 with WordNet and vectors, 0.92 without; substitutions 3% at most.",
    ]
    return "\n".join(lines)


def entities(data: Path) -> str:
    """Measure the rules on articles annotated by hand."""
    articles: dict[str, list[list[str]]] = {}
    for row in rows(data / "wiki_articles.jsonl"):
        articles.setdefault(row["title"], []).append(row["sentences"])
    counts = {False: [0, 0, 0, 0], True: [0, 0, 0, 0]}
    for row in rows(TESTS / "annotated_entities.jsonl"):
        gold = {(a, b) for a, b, _ in row["spans"]}
        texts = [" ".join(detokenise_sentences(s)[slice(*row["sentences"])]) for s in articles[row["title"]]]
        # Several articles may share a title; the annotated one has all its spans.
        found = max(
            ({(e.start, e.end) for e in find_entities(t)} for t in texts), key=lambda s: len(s & gold)
        )
        new = (len(found & gold), len(found), len(gold), 1)
        counts[row["held_out"]] = [a + b for a, b in zip(counts[row["held_out"]], new, strict=True)]
    both = [a + b for a, b in zip(*counts.values(), strict=True)]
    lines = ["| articles | n | precision | recall | F1 | target |", "| --- | --- | --- | --- | --- | --- |"]
    for name, (hits, said, true, n) in (
        ("seen while the rules were written", counts[False]), ("held out", counts[True]), ("all", both),
    ):  # fmt: skip
        cells = " | ".join(f"{x:.3f}" for x in f1(hits, said, true))
        lines.append(f"| {name} | {n} | {cells} | {'>= 0.85' if name == 'all' else ''} |")
    return "\n".join([*lines, "", "- Exact spans; precision and recall over all spans of the articles."])


def testbed(folder: Path, limit: int) -> str:
    """Compare labels of the testbed's articles with the names of its world."""
    cli.run("datagen", ["--source", "wiki", f"out={folder}", f"limit={limit}", "layers=[12]"])
    store = FeatureStore.open(folder)
    table = store.table()
    same = table["answer"].str.casefold() == table["gold"].str.casefold()
    right = float((same == (table["correct"] == 1)).mean())
    left = [found["reason"] for found in store.left_out()]
    compared = len(table) + left.count("undecided")
    return "\n".join(
        [
            "| articles | cuts | decided | agree with the world | undecided | no entity at the head |",
            "| --- | --- | --- | --- | --- | --- |",
            f"| {limit} | {len(store.units)} | {len(table)} | {right:.3%} | "
            f"{left.count('undecided') / compared:.2%} | {left.count('no entity at the head')} |",
            "",
            "- Truth: in the testbed's world every entity has one name, so another name is another "
            "entity. Targets: 98% agree, less than 5% undecided.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with ``--write`` replace the sections of RESULTS.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--nltk", help="folder with nltk's data (corpora/wordnet) besides the usual ones")
    parser.add_argument("--limit", type=int, default=1000, help="articles of the testbed")
    parser.add_argument("--write", action="store_true", help="replace the tables in benchmarks/RESULTS.md")
    args = parser.parse_args(arguments)
    if not (args.data / "wiki_articles.jsonl").is_file():
        parser.error(f"--data {args.data} holds no wiki_articles.jsonl")
    if args.nltk:
        import nltk

        nltk.data.path.insert(0, os.path.abspath(args.nltk))
    with tempfile.TemporaryDirectory() as folder:
        vectors = Path(folder) / "vectors.bin"
        source = open_articles(str(args.data / "wiki_articles.jsonl"), on_bad_line="skip")
        train_vectors(map(natural, source), vectors, seed=0)
        sections = {
            "Matching entities": matching(args.data, str(vectors)),
            "Finding entities": entities(args.data),
            "Labels of the testbed's articles": testbed(Path(folder) / "wiki", args.limit),
        }
    publish(sections, "python benchmarks/quality.py --write", write=args.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
