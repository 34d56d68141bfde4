"""Triggers, queries and loops against the released procedures, written plainly."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from helpers.fake_lm import FakeRetriever

import probers.words.text
from probers.heads import HEADS
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag.loop import RAG
from probers.rag.queries import QFS, AnswerQuery, FlareQuery
from probers.rag.retrievers import BM25
from probers.rag.triggers import Entropy, Flare, Probing, Rind, State
from probers.signals import rind_scores
from probers.store.spec import FeatureSpec
from probers.testbed.assets import load_corpus, load_questions, model_path
from probers.types import Generation, Needs, Passage


@pytest.fixture(autouse=True)
def no_tagger(monkeypatch):
    """The content filter without a tagger, whether or not one is installed here."""
    monkeypatch.setattr(probers.words.text, "_tagger", lambda: None)


# The released procedure, written with transformers and numpy alone, and slowly: a pass over the generated
# tokens alone with eager attention, words by the tokenizer's space marker, sentences by their full stops.


@dataclass
class Released:
    """DRAGIN as released, but for raw logits in place of the sampler's, and silence where all is filtered."""

    model: torch.nn.Module
    tokenizer: object
    stop_words: frozenset[str]
    guesses: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of what follows a prompt

    @classmethod
    def load(cls, folder) -> "Released":
        from spacy.lang.en.stop_words import STOP_WORDS
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
        return cls(model.eval(), AutoTokenizer.from_pretrained(folder), frozenset(STOP_WORDS))

    @torch.no_grad()
    def read(self, ids: list[int]) -> tuple[torch.Tensor, np.ndarray]:
        """Attention (heads, n, n) of the last layer, and the entropy of what follows each of the tokens."""
        made = self.model(torch.tensor([ids]), output_attentions=True)
        logits = made.logits[0].double()
        p = torch.softmax(logits, dim=-1)
        return made.attentions[-1][0], (-(p * torch.log_softmax(logits, dim=-1)).sum(dim=-1)).numpy()

    def words(self, ids: list[int]) -> list[tuple[str, list[int]]]:
        """Each word with its tokens: a token with the space marker begins one."""
        sentences: list[list[int]] = []
        for i, piece in enumerate(self.tokenizer.convert_ids_to_tokens(ids)):
            if i == 0 or piece[0] in "ĠĊ":
                sentences.append([])
            sentences[-1].append(i)
        return [(self.tokenizer.decode([ids[i] for i in tokens]).strip(), tokens) for tokens in sentences]

    def carries(self, word: str) -> bool:
        bare = word.strip(".,!?;:'\"()").lower()
        return any(c.isalnum() for c in word) and bare not in self.stop_words

    def rind(self, written: list[int], entropy: np.ndarray) -> list[list[tuple[list[int], float]]]:
        """Sentences of (tokens of the word, score)."""
        alone, _ = self.read(written)
        most = alone.amax(dim=1).mean(dim=0)  # over the queries, then over the heads
        scored = []
        for sentence in self.sentences(written):
            sums = [float(most[tokens].sum()) for _, tokens in sentence]
            scored.append([
                (tokens, self.carries(word) * mine / sum(sums) * len(sums) * float(entropy[tokens].mean()))
                for (word, tokens), mine in zip(sentence, sums, strict=True)
            ])  # fmt: skip
        return scored

    def hits(self, scored, threshold: float) -> list[list[int]]:
        """Tokens of every word that fires in the first sentence that has one."""
        for sentence in scored:
            firing = [tokens for tokens, score in sentence if score > threshold]
            if firing:
                return firing
        return []

    @torch.no_grad()
    def query(
        self, question: str, text: str, before: str, sentence: list[str], hits: list[int], n: int
    ) -> str:
        """Words to ask with: a pass over question, text and the sentence with the hits (by number), alone."""
        whole = question + " " + text + " " + before + " " + " ".join(sentence)
        ids = self.tokenizer(whole)["input_ids"]
        attention = self.read(ids)[0].mean(dim=0).double().numpy()
        groups = [entry for entry in self.words(ids) if entry[0]]  # not the spaces that are one too many
        first = len(groups) - len(sentence)
        assert [word for word, _ in groups[first:]] == sentence
        weights = np.zeros(len(groups))
        for hit in hits:
            tokens = groups[first + hit][1]
            for token in tokens:
                row = attention[token - 1, : tokens[0]]  # of the position that predicted the token
                row = row / row.sum() / len(tokens) / len(hits)
                for place, (_, others) in enumerate(groups):
                    weights[place] += sum(row[i] for i in others if i < tokens[0])
        qualify = [i for i, (word, _) in enumerate(groups) if self.carries(word) and i - first not in hits]
        best = sorted(qualify, key=lambda i: (-weights[i], i))[:n]
        return " ".join(groups[i][0] for i in sorted(best)) or question

    @torch.no_grad()
    def write(self, prompt: str, length: int, *, one: bool = False):
        """Greedy continuation to the end of its line (if ``one``: sentence); tokens' entropies, and 1 - p."""
        before = self.tokenizer(prompt)["input_ids"]
        # What is thought to come is read in one go, and is taken as far as it is what comes.
        guess = list(self.guesses.get(prompt, ()))[:length]
        logits = self.model(torch.tensor([before + guess])).logits[0, len(before) - 1 :].double()
        written: list[int] = []
        entropies, doubts = [], []
        while len(written) < length and not (one and len(self.sentences(written)) > 1):
            p, token = torch.softmax(logits[0], dim=-1), int(logits[0].argmax())
            if token == self.tokenizer.eos_token_id or "\n" in self.tokenizer.decode([token]):
                break
            written.append(token)
            entropies.append(float(-(p * torch.log_softmax(logits[0], dim=-1)).sum()))
            doubts.append(1 - float(p[token]))
            logits = logits[1:]
            if guess[: len(written)] != written:
                guess = list(written)
                logits = self.model(torch.tensor([before + guess])).logits[0, -1:].double()
        return written, np.array(entropies), np.array(doubts)

    def sentences(self, written: list[int]) -> list[list[tuple[str, list[int]]]]:
        """Sentences of words with their tokens."""
        by_sentence: list[list[tuple[str, list[int]]]] = [[]]
        for word, tokens in self.words(written):
            by_sentence[-1].append((word, tokens))
            if word.endswith("."):
                by_sentence.append([])
        return [sentence for sentence in by_sentence if sentence]

    def loop(self, question: str, search, unsure, length: int, *, whole: bool) -> tuple[str, list[str]]:
        """The text, and what was asked, where texts are looked at that are written without passages.

        ``unsure`` gives the number of the sentence that fires and the query, or None; with ``whole`` all that
        is written with passages stays, else its first sentence.
        """
        text, queries = "", []
        while True:
            old = text
            written, entropies, doubts = self.write(shown(question, [], text), length)
            sentences = self.sentences(written)
            doubt = unsure(question, text, sentences, written, entropies, doubts)
            if doubt is None:
                text = joined(text, *map(plain, sentences))
            else:
                number, query = doubt
                queries.append(query)
                text = joined(text, *map(plain, sentences[:number]))
                again, _, _ = self.write(shown(question, search(query), text), length, one=not whole)
                text = joined(text, *map(plain, self.sentences(again)[: None if whole else 1]))
            if len(self.tokenizer(text)["input_ids"]) > length or len(text) <= len(old) or CUE in text:
                return text, queries

    def rind_and_qfs(self, threshold, n, question, text, sentences, written, entropies, doubts):
        for number, scored in enumerate(self.rind(written, entropies) if written else []):
            hits = [i for i, (_, score) in enumerate(scored) if score > threshold]
            if hits:
                before = " ".join(map(plain, sentences[:number]))
                current = [word for word, _ in sentences[number]]
                return number, self.query(question, text, before, current, hits, n)
        return None

    def doubtful(self, threshold, reduce, question, text, sentences, written, entropies, doubts):
        """FLARE, which asks with the sentence itself."""
        for number, sentence in enumerate(sentences):
            if reduce([doubts[i] for _, tokens in sentence for i in tokens]) > threshold:
                return number, plain(sentence)
        return None


def plain(sentence: list[tuple[str, list[int]]]) -> str:
    return " ".join(word for word, _ in sentence)


CUE = "the answer is"


def shown(question: str, passages: list[str], text: str) -> str:
    """The testbed's prompt, with passages or without, and the text so far."""
    listed = "".join(f"[{i}] {passage}\n" for i, passage in enumerate(passages, 1))
    context = f"Context:\n{listed}" if passages else ""
    return f"{context}Question: {question}\nAnswer:" + (f" {text}" if text else "")


def joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


THRESHOLDS = (0.3, 0.6, 1.0, 1.5)


@dataclass
class Both:
    """The same texts read by this package and by the released procedure, and what the latter scored."""

    lm: CausalLM
    released: Released
    made: list[Generation]
    states: list[State]
    scored: list[list]


@pytest.fixture(scope="module")
def both() -> Both:
    lm = CausalLM.from_pretrained("testbed", device="cpu", dtype="float32")
    released = Released.load(model_path())
    questions = load_questions()[:40]
    prompts = [TESTBED_PROMPT.question(q.question) for q in questions]
    made = lm.generate(prompts, max_new_tokens=48, needs=Needs(attention=True), stop=TESTBED_PROMPT.stop)
    states = [
        State(q, lm, TESTBED_PROMPT, TESTBED_PROMPT.question_span(p, q.question))
        for q, p in zip(questions, prompts, strict=True)
    ]
    scored = []
    for generation in made:
        before, written = list(generation.prompt_ids), list(generation.token_ids)
        _, entropies = released.read(before + written)
        scored.append(released.rind(written, entropies[len(before) - 1 : -1]))
    return Both(lm, released, made, states, scored)


def test_released_rind_is_the_released_procedures(both):
    sentences = 0
    alone_of = both.lm.attention_alone(both.made)
    for generation, alone, theirs in zip(both.made, alone_of, both.scored, strict=True):
        ours = rind_scores(generation, "released", attention_alone=alone)
        flat = [word for sentence in theirs for word in sentence]
        assert [list(t) for t in ours.tokens] == [tokens for tokens, _ in flat]
        np.testing.assert_allclose(ours.scores, [score for _, score in flat], rtol=0, atol=1e-4)
        sentences += len(theirs) > 1
    assert sentences > len(both.made) / 2  # where sentences end mattered


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_released_rind_and_qfs_fire_and_ask_alike(both, threshold):
    decisions = Rind(threshold, "released").decide(both.made, both.states)
    fired = 0
    texts = zip(both.made, both.states, decisions, both.scored, strict=True)
    for generation, state, decision, theirs in texts:
        written, entropies = list(generation.token_ids), generation.entropies.astype(np.float64)
        sentences = both.released.sentences(written)
        hits = both.released.hits(theirs, threshold)
        assert decision.fire == bool(hits)
        assert list(decision.tokens) == [i for tokens in hits for i in tokens]
        if not hits:
            continue
        first = next(s for s in sentences if s[-1][1][-1] >= hits[0][0])  # that of the first hit
        assert generation.text[decision.position :].startswith(plain(first)[:12])
        fired += 1
        for n in (3, 25):
            given = (state.question.question, "", sentences, written, entropies, None)
            _, queries = both.released.rind_and_qfs(threshold, n, *given)
            assert QFS("released", top_n=n)(state.question, generation, decision, state) == queries
    assert fired > 0
    assert fired < len(both.made) or threshold == min(THRESHOLDS)


@dataclass
class Recording(RAG):
    """The loop, keeping what was written after every prompt."""

    made: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def generate(self, prompts, **options):
        generations = super().generate(prompts, **options)
        self.made.update({g.prompt: g.token_ids for g in generations})
        return generations


LENGTH = 64
#: By name: ours, the plain one's rule, and whether it takes all that is written with passages.
LOOPS = {
    "dragin": ((Rind(1.0, "released"), QFS("released", top_n=5)), ("rind_and_qfs", 1.0, 5), False),
    "flare": ((Flare(0.5, "paper"), FlareQuery(beta=0)), ("doubtful", 0.5, max), False),
    "flare of dragin": ((Flare(0.08, "dragin"), FlareQuery(beta=0)), ("doubtful", 0.08, np.mean), True),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LOOPS)
def test_released_loops_write_and_ask_alike(name, both):
    ours, (rule, *given), whole = LOOPS[name]
    retriever = BM25(load_corpus())
    questions = [q for q in load_questions() if q.truth["hops"] == 2][:40]

    def search(query):
        return [p.text for p in retriever.search([query], 3)[0]]

    limits = {"max_new_tokens": LENGTH, "max_retrievals": LENGTH, "answer_tokens": 0}
    rag = Recording(both.lm, retriever, *ours, **limits)
    answers = rag.answer(questions)
    both.released.guesses = rag.made
    unsure = partial(getattr(both.released, rule), *given)
    counts = set()
    for question, answer in zip(questions, answers, strict=True):
        text, queries = both.released.loop(question.question, search, unsure, LENGTH, whole=whole)
        assert [r.query for r in answer.rounds if r.query is not None] == queries
        assert (answer.text, answer.retrievals) == (text, len(queries))
        counts.add(len(queries))
    assert len(counts) > 1


# Algorithm 1 of Probing-RAG beside the loop.

FIRST, MORE, MOST = 15, 6, 3  # tokens of an answer, tokens of its cue's answer, and retrievals
ANSWER = TESTBED_PROMPT.answer_cue
ASKED = 5  # questions
LAYERS = (6, 9)


@dataclass
class Steps:
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
) -> Steps:
    """While the prober says "wrong" and the count is below the maximum: retrieve, write anew, probe."""
    steps = Steps()

    def generate(prompt: str, limit: int) -> Generation:
        made = write(prompt, limit)
        steps.generations += 1
        steps.tokens += len(made.token_ids)
        return made

    def wrong(made: Generation) -> bool:
        steps.texts.append(made.text)
        steps.scores.append(probe(made))
        return steps.scores[-1] > threshold

    passages: list[str] = []
    made = generate(shown(question, passages, ""), FIRST)
    while wrong(made) and len(steps.queries) < MOST:
        steps.queries.append(" ".join(f"{question} {re.sub(ANSWER, ' ', made.text)}".split()))
        before, passages = passages, [passage.text for passage in search(steps.queries[-1])]
        steps.unchanged += passages == before
        made = generate(shown(question, passages, ""), FIRST)
    text = made.text
    if ANSWER not in text:
        text += f" {ANSWER}"
        text += generate(shown(question, passages, text.strip()), MORE).text
    steps.text = text.strip()
    return steps


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
def bench(both) -> Bench:
    drawn = np.random.default_rng(0).normal(size=(len(LAYERS), both.lm.width, 2)) / both.lm.width**0.5
    return Bench(both.lm, BM25(load_corpus()), drawn.astype(np.float32))


@pytest.mark.parametrize(("trigger", "kind"), [
    ("probing", "found"), pytest.param("entropy", "found", marks=pytest.mark.long),
    pytest.param("entropy", "none", marks=pytest.mark.long),
])  # fmt: skip
def test_the_loop_is_algorithm_one(bench, trigger, kind):
    """At thresholds where all, some and none are called wrong, whatever a retrieval changes."""
    ours, probe = bench.probing, bench.probe
    if trigger == "entropy":
        ours, probe = Entropy, lambda made: float(made.entropies.mean())
    search = lambda query: bench.bm25.search([query], 3)[0] if kind == "found" else []  # noqa: E731
    questions = load_questions()[::120][:ASKED]

    def plain(threshold):
        return [algorithm_one(q.question, bench.write, probe, search, threshold) for q in questions]

    always = plain(-np.inf)
    unchanged = sum(each.unchanged for each in always)
    assert 0 < unchanged < ASKED * MOST if kind == "found" else unchanged == ASKED * MOST
    assert 0 < sum(ANSWER not in each.texts[-1] for each in always) < ASKED  # some were asked for the answer
    counts = []
    for threshold in (-np.inf, *between([each.scores for each in always]), np.inf):
        rag = RAG(
            bench.lm, FakeRetriever(search), ours(threshold), AnswerQuery(), max_new_tokens=FIRST,
            max_retrievals=MOST, answer_tokens=MORE,
        )  # fmt: skip
        for answer, expected in zip(rag.answer(questions), plain(threshold), strict=True):
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
    stretches = []
    for share in (1 / 3, 2 / 3):
        near = np.argsort(np.abs(np.arange(len(gaps)) - share * len(gaps)))[:5]
        stretches.append(float(middles[near[gaps[near].argmax()]]))
    return stretches
