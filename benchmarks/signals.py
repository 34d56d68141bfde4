"""Cost of triggers' signals besides generating.

``python benchmarks/signals.py`` writes a table for each part (``--only``):

- samples: five drawn answers of 64 tokens to questions behind six exemplars, against five calls of
  ``generate`` of transformers for each, and against one that returns five sequences.

- rarity: milliseconds per sentence of real articles that ``trigger=rarity`` takes, by its two halves:
  recognising entities, and counting them in the memory-mapped index of a corpus that is made as
  ``benchmarks/retrieval.py`` makes it; next to a plain scan of the passages.

With ``--folder``, the corpus and its index are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from engines import stored
from retrieval import milliseconds, recombine

from probers.prompts import TESTBED_PROMPT
from probers.rag.protocol import State
from probers.rag.retrievers import BM25
from probers.rag.retrievers.lexical import tokenize, tokens_of
from probers.rag.triggers import Rarity
from probers.types import Generation, Question

#: Clock of processor time, in which other work on the machine does not count.
clock = time.process_time
TARGET = 2.0  # milliseconds per sentence
SCANNED = 20_000  # passages that the plain scan reads; the rest is extrapolated
_NONE = np.zeros(0, dtype=np.float32)


def main(argv: list[str]) -> None:
    args = parse(argv)
    if not (args.data / "passages.jsonl.gz").is_file():
        raise SystemExit(
            f"{args.data} holds no passages.jsonl.gz: give the folder of the real text as --data"
        )
    with tempfile.TemporaryDirectory(prefix="probers-signals-") as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {
            "samples": lambda: samples(args.model, args.data, args.questions, args.rounds),
            "rarity": lambda: rarity(args.data, folder, args.passages, args.articles),
        }
        sections = {f"signals: {n}": make() for n, make in parts.items() if args.only in (None, n)}
    for name, body in sections.items():
        print(f"## {name}\n\n{body}\n")
        if args.write:
            from report import invocation, write_section

            write_section(name, invocation("signals.py", argv), body)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="passages.jsonl.gz, wiki_articles.jsonl")
    add("--passages", type=int, default=1_000_000)
    add("--only", choices=["samples", "rarity"], help="this part alone")
    add("--model", default="smollm2", help="samples: the model")
    add("--questions", type=int, default=4, help="samples: questions, drawn for together")
    add("--rounds", type=int, default=3, help="samples: rounds in turn")
    add("--articles", type=int, default=200, help="articles whose sentences are judged")
    add("--folder", help="keep corpus and index here, and use those that are there")
    add("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    return parser.parse_args(argv)


#: Number of samples, their tokens, exemplars before the question, and the ratio to reach.
SAMPLES, TOKENS, EXEMPLARS, FASTER = 5, 64, 6, 4.0


def samples(model: str, data: Path, count: int, rounds: int) -> str:
    """Make the table of ways to draw, by wall time per written token."""
    import torch

    from probers import CausalLM
    from probers.model.language_model import Sampling

    lm = CausalLM.from_pretrained(model)
    lines = (data / "qa" / "nq.jsonl").read_text().splitlines()[: EXEMPLARS + count]
    asked = [(record["question"], record["answers"][0]) for record in map(json.loads, lines)]
    shown = "".join(f"Question: {q}\nAnswer: The answer is {a}.\n\n" for q, a in asked[:EXEMPLARS])
    prompts = [f"{shown}Question: {q}\nAnswer:" for q, _ in asked[EXEMPLARS:]]
    encoded = [lm.tokenizer(prompt, return_tensors="pt").to(lm.device) for prompt in prompts]

    def ours() -> int:
        lm.forget()  # so that the exemplars are read in every round
        repeated = [prompt for prompt in prompts for _ in range(SAMPLES)]
        made = lm.generate(repeated, max_new_tokens=TOKENS, sampling=Sampling(), prefix=shown)
        return sum(len(generation.token_ids) for generation in made)

    def plain(sequences: int) -> int:
        how = {"do_sample": True, "top_k": 0, "num_return_sequences": sequences, "max_new_tokens": TOKENS}
        written = 0
        for one in encoded:
            for _ in range(SAMPLES // sequences):
                with torch.inference_mode():
                    ids = lm.model.generate(**one, **how, min_new_tokens=TOKENS, pad_token_id=0)
                written += ids[:, one["input_ids"].shape[1] :].numel()
        return written

    ways: dict[str, Callable[[], int]] = {
        "transformers, five calls": lambda: plain(1),
        "transformers, one call of five sequences": lambda: plain(SAMPLES),
        "probers, all in one call": ours,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, draw in ways.items():
            seconds[name].append(_per_token(draw))
    first = seconds["transformers, five calls"]
    table = []
    for name, each in seconds.items():
        ratios = [a / b for a, b in zip(first, each, strict=True)]
        table.append(
            f"| {name} | {np.median(each) * 1000:.2f} | {np.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}) |"
        )
    reached = np.median([a / b for a, b in zip(first, seconds["probers, all in one call"], strict=True)])
    return "\n".join([
        "| way | ms per token | times as fast |", "| --- | --- | --- |", *table, "",
        f"- {model}, {count} questions behind {EXEMPLARS} exemplars, a prompt of "
        f"{len(encoded[0]['input_ids'][0])} tokens the first, {SAMPLES} samples of up to {TOKENS} tokens at "
        f"temperature 1; {rounds} rounds in turn, wall time per written token.",
        f"- Target: {FASTER:g} times as fast as five calls: {'met' if reached >= FASTER else '**not met**'}.",
    ])  # fmt: skip


def _per_token(draw: Callable[[], int]) -> float:
    """Compute seconds of wall time per written token."""
    start = time.perf_counter()
    written = draw()
    return (time.perf_counter() - start) / written


def rarity(data: Path, folder: Path, passages: int, articles: int) -> str:
    """Make the table of a sentence's costs."""
    corpus = folder / f"recombined-{passages}.jsonl"
    if not corpus.exists():
        recombine(list(stored(data / "passages.jsonl.gz", folder)), passages, corpus)
    start = clock()
    retriever = BM25(stored(corpus, folder), cache=folder / "bm25")
    retriever.frequency(["of the"])  # makes or opens the places of words
    opened = clock() - start
    asked = drafts(data / "wiki_articles.jsonl", articles, retriever)
    whole, counting = [], []
    for generation, state, sentences in asked:
        index = Watched(state.retriever)
        trigger, watched = Rarity(), replace(state, retriever=index)
        start = clock()
        trigger.decide_before([watched])
        trigger.decide([generation], [watched])
        whole.append((clock() - start) / sentences * 1000)
        counting.append(index.seconds / sentences * 1000)
    pairs = sum(len(retriever_pairs(*each)) for each in asked) / sum(n for *_, n in asked)
    scan = scanned(retriever, asked)
    rows = [
        ("all of it", whole), ("entities and sentences", np.subtract(whole, counting)), ("counts", counting)
    ]  # fmt: skip
    table = [
        f"| {name} | {milliseconds(np.median(each))} | {milliseconds(np.quantile(each, 0.95))} | "
        f"{milliseconds(np.mean(each))} |"
        for name, each in rows
    ]
    met = "met" if np.median(whole) <= TARGET and np.quantile(whole, 0.95) <= TARGET else "**not met**"
    return "\n".join([
        "| ms per sentence | median | 95th percentile | mean |", "| --- | --- | --- | --- |", *table, "",
        f"- {len(asked)} articles of {sum(n for *_, n in asked)} sentences, each article judged at once as "
        f"an answer to a question that names its title; {pairs:.1f} pairs of entities per sentence. An "
        "article's time is divided by its sentences. Times are CPU time.",
        f"- {passages:,} passages, memory-mapped; opened in {opened:.1f} s of CPU time if made before.",
        f"- A plain scan of {SCANNED:,} tokenized passages for the pairs of one article takes "
        f"{scan:.3g} ms per sentence, for {passages:,} passages {scan * passages / SCANNED / 1000:.3g} s: "
        f"{scan * passages / SCANNED / np.mean(counting):,.0f} times the counts here.",
        f"- Target: at most {TARGET:g} ms per sentence, median and 95th percentile: {met}.",
    ])  # fmt: skip


class Watched:
    """Retriever whose counts are timed."""

    def __init__(self, retriever: Any) -> None:
        self._retriever, self.seconds = retriever, 0.0

    def search(self, queries: Sequence[str], k: int) -> Any:
        return self._retriever.search(queries, k)

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        return self._timed(lambda: self._retriever.frequency(phrases))

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        return self._timed(lambda: self._retriever.together(pairs))

    def _timed(self, work: Callable[[], list[int]]) -> list[int]:
        start = clock()
        found = work()
        self.seconds += clock() - start
        return found


Draft = tuple[Generation, State, int]


def drafts(path: Path, count: int, retriever: Any) -> list[Draft]:
    """Read articles as answers, with their number of sentences."""
    found: list[Draft] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["tokenized"] or len(record["sentences"]) < 3:
                continue
            text = " " + " ".join(record["sentences"])
            offsets = tuple(m.span() for m in re.finditer(r"\s*\S+", text))
            ids, nothing = tuple(range(len(offsets))), np.zeros(len(offsets), dtype=np.float32)
            made = Generation("Answer:", (), (), ids, text, offsets, nothing, nothing, "stop")
            asked = Question(record["title"], f"What is {record['title']} known for?")
            state = State(asked, None, TESTBED_PROMPT, (0, 0), retriever=retriever)  # type: ignore[arg-type]
            found.append((made, state, len(record["sentences"])))
            if len(found) == count:
                break
    return found


def retriever_pairs(generation: Generation, state: State, _: int) -> list[tuple[str, str]]:
    """List the pairs that the trigger asks about."""
    asked: list[tuple[str, str]] = []

    class Asked(Watched):
        def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
            asked.extend(pairs)
            return [1] * len(pairs)

    Rarity().decide([generation], [replace(state, retriever=Asked(state.retriever))])
    return asked


def scanned(retriever: BM25, asked: Sequence[Draft]) -> float:
    """Time a scan of tokenized passages in milliseconds per sentence of the median article."""
    some = [f" {' '.join(tokens_of(p))} " for p in retriever._passages[:SCANNED]]
    seconds = []
    for draft in asked[:10]:
        pairs = [[f" {' '.join(tokenize(name))} " for name in pair] for pair in retriever_pairs(*draft)]
        start = clock()
        for one, other in pairs:
            sum(one in text and other in text for text in some)
        seconds.append((clock() - start) / draft[-1])
    return float(np.median(seconds)) * 1000


if __name__ == "__main__":
    main(sys.argv[1:])
