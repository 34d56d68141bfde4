"""The methods against what their authors published: the released RIND and QFS, and a published example."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fake_lm import FakeLM
from probers.rag.queries import QFS
from probers.rag.triggers import Rind, State

import probers.text
from probers.engine.model import CausalLM
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import load_questions, model_path
from probers.types import AttentionRows, Decision, Generation, Needs, Question
from probers.uncertainty import rind_scores


@pytest.fixture(autouse=True)
def no_tagger(monkeypatch):
    """The content filter without a tagger, whether or not one is installed here."""
    monkeypatch.setattr(probers.text, "_tagger", lambda: None)


# The released procedure, written with transformers and numpy alone, and slowly: a pass over the generated
# tokens alone with eager attention, words by the tokenizer's space marker, sentences by their full stops.


@dataclass
class Released:
    """DRAGIN as released, but for raw logits in place of the sampler's, and silence where all is filtered."""

    model: torch.nn.Module
    tokenizer: object
    stop_words: frozenset[str]

    @classmethod
    def load(cls, folder) -> Released:
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
        sentences: list[list] = [[]]
        for word, tokens in self.words(written):
            sentences[-1].append((word, tokens))
            if word.endswith("."):
                sentences.append([])
        scored = []
        for sentence in filter(None, sentences):
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

    def query(
        self, prompt: str, question: str, written: list[int], rows: np.ndarray, hits: list[list[int]], n: int
    ) -> str:
        encoded = self.tokenizer(prompt, return_offsets_mapping=True)
        before, offsets = encoded["input_ids"], encoded["offset_mapping"]
        start = prompt.index(question)
        asked = [i for i, (a, b) in enumerate(offsets) if b > start and a < start + len(question)]
        # Question and answer in words, each with its place in the whole sequence.
        found = [(w, [asked[i] for i in ts]) for w, ts in self.words([before[i] for i in asked])]
        found += [(w, [len(before) + i for i in ts]) for w, ts in self.words(written)]
        seen = sorted(i for _, ts in found for i in ts)
        weights = np.zeros(len(rows))
        for tokens in hits:
            row = rows[len(before) + tokens[0] - 1]  # the position that predicted the word
            mine = [i for i in seen if i < len(before) + tokens[0]]
            weights[mine] += row[mine] / row[mine].sum() / len(hits)
        fired = [[len(before) + i for i in tokens] for tokens in hits]
        last = fired[-1][0]
        candidates = [
            (weights[ts].sum(), place, w.strip(".,!?;:'\"()"))
            for place, (w, ts) in enumerate(found)
            if ts[-1] < last and ts not in fired and self.carries(w)
        ]
        best = sorted(candidates, key=lambda c: (-c[0], c[1]))[:n]
        return " ".join(w for _, _, w in sorted(best, key=lambda c: c[1])) or question


THRESHOLDS = (0.3, 0.6, 1.0, 1.5)


@dataclass
class Both:
    """The same texts read by this package and by the released procedure.

    Attributes:
        rows: of each text, the attention (positions, positions) of prompt and text, mean over heads.
        scored: of each text, the released procedure's sentences, words and scores.
    """

    lm: CausalLM
    released: Released
    made: list[Generation]
    states: list[State]
    rows: list[np.ndarray]
    scored: list[list]


@pytest.fixture(scope="module", params=[40, pytest.param(200, marks=pytest.mark.slow)])
def both(request) -> Both:
    lm, released = (
        CausalLM.from_pretrained("testbed", device="cpu", dtype="float32"),
        Released.load(model_path()),
    )
    asked = load_questions()[: request.param]
    prompts = [TESTBED_PROMPT.question(q.question) for q in asked]
    made = lm.generate(prompts, max_new_tokens=48, needs=Needs(attention=True), stop=TESTBED_PROMPT.stop)
    states = [
        State(q, lm, TESTBED_PROMPT, TESTBED_PROMPT.question_span(p, q.question))
        for q, p in zip(asked, prompts, strict=True)
    ]
    rows, scored = [], []
    for generation in made:
        before, written = list(generation.prompt_ids), list(generation.token_ids)
        attention, entropies = released.read(before + written)
        rows.append(attention.mean(dim=0).double().numpy())
        scored.append(released.rind(written, entropies[len(before) - 1 : -1]))
    assert len(made) == request.param
    return Both(lm, released, made, states, rows, scored)


def test_released_rind_is_the_released_procedures(both):
    sentences = 0
    for generation, alone, theirs in zip(
        both.made, both.lm.attention_alone(both.made), both.scored, strict=True
    ):
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
    for generation, state, decision, rows, theirs in zip(
        both.made, both.states, decisions, both.rows, both.scored, strict=True
    ):
        hits = both.released.hits(theirs, threshold)
        assert decision.fire == bool(hits)
        assert list(decision.tokens) == [i for tokens in hits for i in tokens]
        if not hits:
            continue
        fired += 1
        for n in (3, 25):
            asked = both.released.query(
                generation.prompt, state.question.question, list(generation.token_ids), rows, hits, n
            )
            assert QFS("released", top_n=n)(state.question, generation, decision, state) == asked
    assert fired > 0
    assert fired < len(both.made) or threshold == min(THRESHOLDS)


# DRAGIN's case study (appendix C): the arena of the Lewiston Maineiacs. The model hesitates at the number of
# seats; what it attends to there are the words that say what is asked and of what. The attention values are
# ours, in the order of the paper's finding: those words above all others.

CASE = "The arena where the Lewiston Maineiacs played their home games can seat how many people?"
WRITTEN = (
    " The Lewiston Maineiacs played their home games at the Androscoggin Bank Colisée,"
    " which has a seating capacity of 3,677 people."
)
ATTENDED = {
    "seat": 0.09, "Androscoggin": 0.08, "Bank": 0.07, "Colisée,": 0.10, "seating": 0.12, "capacity": 0.14,
}  # fmt: skip
AFTERWARDS = {"people.": 0.5}  # written after the number: it cannot be asked about


def case(hit_word: str, row: int) -> tuple[Generation, Decision, State]:
    """The example, with the attention in one row: that of the hit token (1) or of the one before (0)."""
    question = Question("case", CASE)
    prompt = TESTBED_PROMPT.question(CASE)
    made = FakeLM(lambda p: WRITTEN).generate([prompt], max_new_tokens=99, needs=Needs(attention=True))[0]
    pieces = [prompt[a:b].strip() for a, b in made.prompt_offsets]
    pieces += [WRITTEN[a:b].strip() for a, b in made.offsets]
    hit = pieces.index(hit_word) - len(made.prompt_ids)
    rows = np.zeros_like(made.attention.rows)
    # Function words and the rest get less, the prompt's own words most.
    rows[hit + row] = [
        0.9 if word in ("Question:", "Answer:") else (ATTENDED | AFTERWARDS).get(word, 0.001 * (i % 5))
        for i, word in enumerate(pieces)
    ]
    rows[hit + 1 - row] = rows[hit + row][::-1]  # the other row would ask for something else
    made = replace(made, attention=AttentionRows(rows.astype(np.float32), made.attention.column_max))
    state = State(question, None, TESTBED_PROMPT, TESTBED_PROMPT.question_span(prompt, CASE))
    return made, Decision(True, 1.5, 1.0, position=0, tokens=(hit,)), state


@pytest.mark.parametrize(("variant", "row"), [("released", 0), ("paper", 1)])
def test_the_case_study_asks_for_the_seating_capacity(variant, row):
    made, decision, state = case("3,677", row)
    query = QFS(variant, top_n=6)(state.question, made, decision, state)
    assert query == "seat Androscoggin Bank Colisée seating capacity"
    # The words are those of the attention, not of the text: with another row it is another query.
    made, decision, state = case("3,677", 1 - row)
    assert QFS(variant, top_n=6)(state.question, made, decision, state) != query
