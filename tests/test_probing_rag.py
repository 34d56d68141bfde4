"""Algorithm 1 of Probing-RAG, written plainly, beside the loop: the same texts, queries and counts."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from probers.heads import HEADS
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag.loop import RAG
from probers.rag.queries import AnswerQuery
from probers.rag.retrievers import BM25
from probers.rag.triggers import Entropy, Probing
from probers.store.spec import FeatureSpec
from probers.testbed.assets import load_corpus, load_questions
from probers.types import Generation, Needs, Passage

LENGTH, MORE, MOST, CUE = 15, 6, 3, "So the answer is"
ASKED = 5  # questions
LAYERS = (6, 9)


@dataclass
class Plain:
    """What comes of one question when the steps of the algorithm are taken one after the other."""

    text: str = ""
    texts: list[str] = field(default_factory=list)  # that were probed
    scores: list[float] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    unchanged: int = 0  # retrievals that brought what the prompt showed
    generations: int = 0
    tokens: int = 0


def algorithm_one(
    question: str,
    write: Callable[[str, int], Generation],
    probe: Callable[[Generation], float],
    search: Callable[[str], list[Passage]],
    threshold: float,
) -> Plain:
    """While the prober says "wrong" and the count is below the maximum: retrieve, write anew, probe."""
    found = Plain()

    def generate(prompt: str, limit: int) -> Generation:
        made = write(prompt, limit)
        found.generations += 1
        found.tokens += len(made.token_ids)
        return made

    def wrong(made: Generation) -> bool:
        found.texts.append(made.text)
        found.scores.append(probe(made))
        return found.scores[-1] > threshold

    passages: list[str] = []
    made = generate(shown(question, passages), LENGTH)
    while wrong(made) and len(found.queries) < MOST:
        found.queries.append(" ".join(f"{question} {re.sub(CUE, ' ', made.text)}".split()))
        before, passages = passages, [passage.text for passage in search(found.queries[-1])]
        found.unchanged += passages == before
        made = generate(shown(question, passages), LENGTH)
    text = made.text
    if CUE not in text:
        text += f" {CUE}"
        text += generate(shown(question, passages) + text, MORE).text
    found.text = text.strip()
    return found


def shown(question: str, passages: list[str]) -> str:
    """The testbed's prompt."""
    listed = "".join(f"[{i}] {passage}\n" for i, passage in enumerate(passages, 1))
    return (f"Context:\n{listed}" if passages else "") + f"Question: {question}\nAnswer:"


@dataclass
class Passages:
    """Three passages for a query, of a question that it begins with.

    Attributes:
        kind: "found" by the query; "first", by the question; "other" ones with every search; "none".
    """

    bm25: BM25
    kind: str
    asked: Counter[str] = field(default_factory=Counter)

    def search(self, queries: list[str], k: int) -> list[list[Passage]]:
        return [self.one(query, k) for query in queries]

    def one(self, query: str, k: int = 3) -> list[Passage]:
        question = query.partition("?")[0] + "?"
        self.asked[question] += 1
        if self.kind == "none":
            return []
        found = self.bm25.search([query if self.kind == "found" else question], k)[0]
        if self.kind == "other":
            return [replace(p, text=f"{p.text} (Read {self.asked[question]} times.)") for p in found]
        return found


@dataclass
class Bench:
    """One model, one retriever, a prober that reads a direction drawn at random."""

    lm: CausalLM
    bm25: BM25
    directions: np.ndarray  # (layers, d, 2): towards wrong, and towards correct
    made: dict[tuple[str, int], Generation] = field(default_factory=dict)

    def probing(self, threshold: float) -> Probing:
        head = HEADS["linear"]([str(layer) for layer in LAYERS], self.lm.width)
        with torch.no_grad():
            head.linear.weight.copy_(torch.from_numpy(self.directions))
            head.linear.bias.zero_()
        prompt = TESTBED_PROMPT.fingerprint
        spec = FeatureSpec(self.lm.spec, LAYERS, self.lm.width, dtype="float32", prompt=prompt)
        return Probing(Prober(spec, head, 0.0), threshold=threshold)

    def probe(self, made: Generation) -> float:
        """Sum over the layers of logit[wrong] - logit[correct]."""
        logits = np.einsum("ld,ldc->lc", made.state, self.directions)
        return float((logits[:, 0] - logits[:, 1]).sum())

    def write(self, prompt: str, limit: int) -> Generation:
        if (prompt, limit) not in self.made:  # greedy, so that a prompt has one continuation
            made = self.lm.generate([prompt], max_new_tokens=limit, stop=["\n"], needs=Needs.of(LAYERS))
            self.made[prompt, limit] = made[0]
        return self.made[prompt, limit]


@pytest.fixture(scope="module")
def bench() -> Bench:
    lm = CausalLM.from_pretrained("testbed", device="cpu", dtype="float32")
    drawn = np.random.default_rng(0).normal(size=(len(LAYERS), lm.width, 2)) / lm.width**0.5
    return Bench(lm, BM25(load_corpus()), drawn.astype(np.float32))


TRIGGERS = {
    "probing": (lambda bench: bench.probing, lambda bench: bench.probe),
    "entropy": (lambda bench: Entropy, lambda bench: lambda made: float(made.entropies.mean())),
}


@pytest.mark.parametrize(("trigger", "kind", "unchanged"), [
    ("probing", "found", range(1, ASKED * MOST)),
    pytest.param("entropy", "found", range(1, ASKED * MOST), marks=pytest.mark.long),
    pytest.param("entropy", "first", [ASKED * (MOST - 1)], marks=pytest.mark.long),
    pytest.param("entropy", "other", [0], marks=pytest.mark.long),
    pytest.param("entropy", "none", [ASKED * MOST], marks=pytest.mark.long),
])  # fmt: skip
def test_the_loop_is_algorithm_one(bench, trigger, kind, unchanged):
    """At thresholds where all, some and none are called wrong, whatever a retrieval changes."""
    ours, probe = (make(bench) for make in TRIGGERS[trigger])
    asked = load_questions()[::120][:ASKED]

    def plain(threshold):
        search = Passages(bench.bm25, kind).one
        return [algorithm_one(q.question, bench.write, probe, search, threshold) for q in asked]

    always = plain(-np.inf)
    assert sum(each.unchanged for each in always) in unchanged
    assert 0 < sum(CUE not in each.texts[-1] for each in always) < ASKED  # some were asked for the answer
    counts = []
    for threshold in (-np.inf, *between([each.scores for each in always]), np.inf):
        rag = RAG(
            bench.lm, Passages(bench.bm25, kind), ours(threshold), AnswerQuery(), max_new_tokens=LENGTH,
            max_retrievals=MOST, answer_tokens=MORE,
        )  # fmt: skip
        for answer, expected in zip(rag.answer(asked), plain(threshold), strict=True):
            c, judged = answer.counters, [r for r in answer.rounds if r.decision is not None]
            assert answer.text == expected.text
            assert [r.text for r in judged] == expected.texts
            assert [r.query for r in answer.rounds if r.query is not None] == expected.queries
            assert [r.decision.score for r in judged] == pytest.approx(expected.scores, abs=1e-3)
            assert (c.retrievals, c.generations) == (len(expected.queries), expected.generations)
            alarms = sum(score > threshold for score in expected.scores)
            assert (c.alarms, c.tokens) == (alarms, expected.tokens)
            counts.append(c.retrievals)
    assert {0, MOST} <= set(counts)
    # A direction drawn at random tells questions apart, and hardly the answers to one.
    assert {0, MOST} < set(counts) or kind == "none" or trigger == "probing"


def between(scores: list[list[float]]) -> list[float]:
    """Thresholds at a third and two thirds of all scores, as far from any as there is room."""
    levels = np.unique(np.round(np.concatenate(scores), 3))
    gaps, middles = np.diff(levels), (levels[1:] + levels[:-1]) / 2
    found = []
    for share in (1 / 3, 2 / 3):
        near = np.argsort(np.abs(np.arange(len(gaps)) - share * len(gaps)))[:5]
        found.append(float(middles[near[gaps[near].argmax()]]))
    return found
