"""Triggers, queries and loops against the released procedures, written plainly."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch

import probers.words.text
from probers.model.causal_lm import CausalLM
from probers.prompts import TESTBED_PROMPT
from probers.rag.loop import RAG
from probers.rag.queries import QFS, FlareQuery
from probers.rag.retrievers import BM25
from probers.rag.triggers import Flare, Rind, State
from probers.signals import rind_scores
from probers.testbed.assets import load_corpus, load_questions, model_path
from probers.types import Generation, Needs


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
        found: list[list[int]] = []
        for i, piece in enumerate(self.tokenizer.convert_ids_to_tokens(ids)):
            if i == 0 or piece[0] in "ĠĊ":
                found.append([])
            found[-1].append(i)
        return [(self.tokenizer.decode([ids[i] for i in tokens]).strip(), tokens) for tokens in found]

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
            found = [tokens for tokens, score in sentence if score > threshold]
            if found:
                return found
        return []

    @torch.no_grad()
    def query(
        self, question: str, text: str, before: str, sentence: list[str], hits: list[int], n: int
    ) -> str:
        """Words to ask with: a pass over question, text and the sentence with the hits (by number), alone."""
        whole = question + " " + text + " " + before + " " + " ".join(sentence)
        ids = self.tokenizer(whole)["input_ids"]
        attention = self.read(ids)[0].mean(dim=0).double().numpy()
        found = [entry for entry in self.words(ids) if entry[0]]  # not the spaces that are one too many
        first = len(found) - len(sentence)
        assert [word for word, _ in found[first:]] == sentence
        weights = np.zeros(len(found))
        for hit in hits:
            tokens = found[first + hit][1]
            for token in tokens:
                row = attention[token - 1, : tokens[0]]  # of the position that predicted the token
                row = row / row.sum() / len(tokens) / len(hits)
                for place, (_, others) in enumerate(found):
                    weights[place] += sum(row[i] for i in others if i < tokens[0])
        qualify = [i for i, (word, _) in enumerate(found) if self.carries(word) and i - first not in hits]
        best = sorted(qualify, key=lambda i: (-weights[i], i))[:n]
        return " ".join(found[i][0] for i in sorted(best)) or question

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
        found: list[list[tuple[str, list[int]]]] = [[]]
        for word, tokens in self.words(written):
            found[-1].append((word, tokens))
            if word.endswith("."):
                found.append([])
        return [sentence for sentence in found if sentence]

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
            found = unsure(question, text, sentences, written, entropies, doubts)
            if found is None:
                text = joined(text, *map(plain, sentences))
            else:
                number, query = found
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


@pytest.fixture(scope="module", params=[40, pytest.param(200, marks=pytest.mark.slow)])
def both(request) -> Both:
    lm = CausalLM.from_pretrained("testbed", device="cpu", dtype="float32")
    released = Released.load(model_path())
    asked = load_questions()[: request.param]
    prompts = [TESTBED_PROMPT.question(q.question) for q in asked]
    made = lm.generate(prompts, max_new_tokens=48, needs=Needs(attention=True), stop=TESTBED_PROMPT.stop)
    states = [
        State(q, lm, TESTBED_PROMPT, TESTBED_PROMPT.question_span(p, q.question))
        for q, p in zip(asked, prompts, strict=True)
    ]
    scored = []
    for generation in made:
        before, written = list(generation.prompt_ids), list(generation.token_ids)
        _, entropies = released.read(before + written)
        scored.append(released.rind(written, entropies[len(before) - 1 : -1]))
    assert len(made) == request.param
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
        fired += 1
        for n in (3, 25):
            given = (state.question.question, "", sentences, written, entropies, None)
            _, asked = both.released.rind_and_qfs(threshold, n, *given)
            assert QFS("released", top_n=n)(state.question, generation, decision, state) == asked
    assert fired > 0
    assert fired < len(both.made) or threshold == min(THRESHOLDS)


@dataclass
class Recording(RAG):
    """The loop, keeping what was written after every prompt."""

    made: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def generate(self, prompts, **options):
        found = super().generate(prompts, **options)
        self.made.update({g.prompt: g.token_ids for g in found})
        return found


LENGTH = 64
#: By name: ours, and the plain one's rule and whether it takes all that is written with passages.
LOOPS = {
    "dragin": (
        lambda t: (Rind(t, "released"), QFS("released", top_n=5)),
        lambda plain, t: partial(plain.rind_and_qfs, t, 5), False, (1.0, 0.6, 1.4),
    ),
    "flare": (
        lambda t: (Flare(t, "paper"), FlareQuery(beta=0)),
        lambda plain, t: partial(plain.doubtful, t, max), False, (0.5, 0.2, 0.05),
    ),
    "flare of dragin": (
        lambda t: (Flare(t, "dragin"), FlareQuery(beta=0)),
        lambda plain, t: partial(plain.doubtful, t, np.mean), True, (0.08, 0.03, 0.15),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", LOOPS)
def test_released_loops_write_and_ask_alike(name, both, request):
    ours, theirs, whole, thresholds = LOOPS[name]
    retriever = BM25(load_corpus())
    many = len(both.made) > 40
    asked = [q for q in load_questions() if q.truth["hops"] == 2][: 200 if many else 40]

    def search(query):
        return [p.text for p in retriever.search([query], 3)[0]]

    for threshold in thresholds if many else thresholds[:1]:
        limits = {"max_new_tokens": LENGTH, "max_retrievals": LENGTH, "answer_tokens": 0}
        rag = Recording(both.lm, retriever, *ours(threshold), **limits)
        answers = rag.answer(asked)
        both.released.guesses = rag.made
        unsure = theirs(both.released, threshold)
        counts = set()
        for question, answer in zip(asked, answers, strict=True):
            text, queries = both.released.loop(question.question, search, unsure, LENGTH, whole=whole)
            assert [r.query for r in answer.rounds if r.query is not None] == queries
            assert (answer.text, answer.retrievals) == (text, len(queries))
            counts.add(len(queries))
        assert len(counts) > 1
