"""Asked before the entity: as by plain means, nothing of what fired kept, and alike while a text grows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.fake_lm import SPEC, FakeLM, FakeRetriever, passage
from helpers.refusals import fails
from helpers.tiny import tiny_lm
from hypothesis import given
from hypothesis import strategies as st
from test_watch import PROMPTS, batch, plain

from probers.heads import CORRECT, WRONG, LinearHead
from probers.model.tokens import decode, token_offsets
from probers.prober.calibration import Isotonic, Platt, Temperature, sigmoid
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag.loop import RAG
from probers.rag.queries import CIOQF, QFS
from probers.rag.triggers import BeforeEntity, EntitySignal, State
from probers.store.spec import FeatureSpec
from probers.types import Needs, Question, RunError
from probers.words import find_entities, tokens_of, with_scores, written_entities

CLOSE = {"rtol": 0, "atol": 1e-4}
QUESTION = Question("q", "Who founded the mill?")
DRAFT = " The mill was founded by Mira Tolven in 1912. Jomholm has 40 mills."
TEXTS = [DRAFT, " Arl is in Jomholm, near Kelby.", " no name at all", "Mira Tolven in 1912"]


def state(**fields) -> State:
    return State(QUESTION, fields.pop("lm", None), TESTBED_PROMPT, (10, 31), **fields)


def drafted(text=DRAFT, prompt="Question: Who founded the mill?\nAnswer:", entropies=None):
    (made,) = FakeLM(lambda p: text).generate([prompt], max_new_tokens=99)
    return made if entropies is None else replace(made, entropies=np.array(entropies, dtype=np.float32))


def tiny_bank(**fields) -> Prober:
    spec = tiny_lm().spec
    head = LinearHead(["7/1", "7/2"], spec.width)
    features = FeatureSpec(spec, (1, 2), spec.width, pool="predicting", position="entity", dtype="float32")
    return Prober(features, head, **{"threshold": 0.1, "calibration": Temperature(1.3), **fields})


def by_hand(bank: Prober, model, tokenizer, prompt: str, ids) -> np.ndarray:
    """(n,) the bank's score of the state before each token, by transformers alone."""
    before = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        out = model(torch.cat([before, torch.tensor([list(ids)])], dim=1), output_hidden_states=True)
    weight, bias = (p.detach().float() for p in (bank.head.linear.weight, bank.head.linear.bias))
    score = np.zeros(())
    for i, layer in enumerate(bank.layers):
        states = out.hidden_states[layer][0, before.shape[1] - 1 : -1].float()
        logits = states @ weight[i] + bias[i]
        score = score + (logits[:, WRONG] - logits[:, CORRECT]).numpy()
    return score


def test_the_trigger_is_what_transformers_the_recogniser_and_the_head_say() -> None:
    """Also for an entity that is the first thing written, by the state of the prompt's last token."""
    (model, tokenizer), lm, bank = plain(), tiny_lm(), tiny_bank()
    prompts = [*PROMPTS[:3], "The mill was founded by "]
    made = lm.score(prompts, TEXTS, needs=bank.needs)
    for prompt, generation in zip(prompts, made, strict=True):
        scores = by_hand(bank, model, tokenizer, prompt, generation.token_ids)
        chances = 1 / (1 + np.exp(-scores / 1.3))
        # A word of the sentence that the prompt left open.
        shift = 0 if prompt.endswith("Answer:") else 2 if prompt.endswith(" ") else 1
        text = "x "[:shift] + generation.text
        begins = {i for i in range(len(text)) if text[:i].endswith(". ") or (i == 1 and not shift)}
        starts = [e.start - shift for e in find_entities(text) if e.start not in begins]
        places = [next(i for i, (_, b) in enumerate(generation.offsets) if b > start) for start in starts]
        for threshold in (0.0, float(np.median(chances)), float("inf")):
            decision = BeforeEntity(bank, threshold=threshold, asked=True)(generation, state())
            np.testing.assert_allclose(decision.token_scores, chances, **CLOSE)
            assert decision.score == pytest.approx(max(chances[places], default=0.0), abs=1e-4)
            first = next((k for k, i in enumerate(places) if chances[i] > threshold), None)
            assert decision.fire == (first is not None)
            if first is not None:
                assert (decision.position, decision.tokens[0]) == (starts[first], places[first])
    assert places[0] == 0 and [g.text for g in made] == TEXTS


def test_a_row_ends_once_an_entity_with_too_high_a_score_has_begun() -> None:
    """Against every beginning of the free text read anew; nothing of the entity stands before the cut."""
    (model, tokenizer), bank = plain(), tiny_bank()
    given, options = batch(tokenizer), {"max_new_tokens": 40, "do_sample": False}
    length = given["input_ids"].shape[1]
    with bank.watch(model, tokenizer=tokenizer) as scores:
        free = model.generate(**given, **options)[:, length:]
    highest = [max((e.score for e in row), default=-9.0) for row in scores.entities]
    threshold = float(np.mean(np.sort(highest)[1:3]))  # some rows reach it, some never do
    stop = bank.stopping_criteria(model, tokenizer, threshold)
    for row, ids in enumerate(free.tolist()):  # the scores while it generates, by hand
        expected = by_hand(bank, model, tokenizer, PROMPTS[row], ids)
        np.testing.assert_allclose(scores.tokens[row], expected, **CLOSE)
    for _ in range(2):  # the second call starts afresh
        stopped = model.generate(**given, **options, stopping_criteria=[stop])[:, length:]
        for row in range(5):
            prompt = given["input_ids"][row].tolist()
            ended = None
            for n in range(2, 41):
                text, offsets = token_offsets(tokenizer, free[row, :n].tolist(), prompt)
                whole = text[: max((i + 1 for i, c in enumerate(text) if c in ' \n,;:!?)]”"\t'), default=0)]
                begun = written_entities(whole, find_entities, prompt=decode(tokenizer, prompt))
                above = [e for e in with_scores(begun, offsets, scores.tokens[row]) if e.score > threshold]
                if above:
                    ended = n, above[0]
                    break
            assert stop.fired[row] == (ended is not None)
            entity = stop.entities[row]
            if ended is None:
                assert entity is None and torch.equal(stopped[row], free[row, : stopped.shape[1]])
                continue
            n, expected = ended
            assert entity is not None and (entity.entity, entity.tokens) == (expected.entity, expected.tokens)
            assert torch.equal(stopped[row, :n], free[row, :n])
            assert (stopped[row, n:] == tokenizer.pad_token_id).all()
            written = decode(tokenizer, free[row, : entity.tokens[0]].tolist())
            assert entity.entity.text not in written[max(0, entity.entity.start - 1) :]
    assert stop.fired.any() and not stop.fired.all()
    never = bank.stopping_criteria(model, tokenizer, float("inf"))
    assert torch.equal(model.generate(**given, **options, stopping_criteria=[never])[:, length:], free)


def test_what_cannot_be_asked_is_said() -> None:
    (model, tokenizer), bank = plain(), tiny_bank()

    def watched(bank, **options):
        with bank.watch(model, **options) as scores:
            model.generate(**batch(tokenizer), max_new_tokens=3, do_sample=False)
        return scores

    other = Prober(replace(bank.spec, pool="mean", position="generated"), bank.head)
    for code, ask in (
        ("missing-value", lambda: bank.stopping_criteria(model, None)),
        ("missing-value", lambda: watched(bank).entities),
        ("unsupported", lambda: watched(other, tokenizer=tokenizer).entities),
        ("no-artifact", lambda: BeforeEntity(None)),
        ("mismatch", lambda: BeforeEntity(other)),
        ("mismatch", lambda: BeforeEntity(bank).check(SPEC, TESTBED_PROMPT)),
        ("unknown-choice", lambda: EntitySignal("mood")),
    ):
        with fails(code):
            ask()
    with fails("mismatch", "hidden states", kind=RunError):
        BeforeEntity(bank)(drafted(), state())


def test_the_signals_are_those_of_the_same_position() -> None:
    # The words of DRAFT: The mill was founded by | Mira Tolven in | 1912. Jomholm has | 40 mills.
    made = drafted(entropies=[9, 0, 0, 0, 0, 0.4, 3, 0, 1.5, 9, 0, 2.5, 0])
    decision = EntitySignal(threshold=1)(made, state())
    assert (decision.threshold, decision.score, decision.tokens) == (1, 2.5, (8,))
    assert decision.position == DRAFT.index("1912")
    assert EntitySignal(threshold=0.3)(made, state()).tokens == (5, 6)
    assert EntitySignal(threshold=2)(made, state()).position == DRAFT.index("40")
    assert not EntitySignal(threshold=2.5)(made, state()).fire
    with fails("missing-value", "top=True"):
        EntitySignal("margin")(made, state())
    top = np.full((2, len(made.token_ids)), 0.4, dtype=np.float32)
    top[1], top[1, 11] = 0.1, 0.39
    unsure = EntitySignal("margin", threshold=0.9)(replace(made, top=top), state())
    assert unsure.position == EntitySignal(threshold=1.5)(made, state()).position
    assert EntitySignal(threshold=2.5, openings=True)(made, state()).position == DRAFT.index("Jomholm")
    likely = EntitySignal("probability", threshold=0.5)(made, state())  # the script's log-probs are -0.1
    assert (likely.fire, likely.score) == (False, pytest.approx(1 - np.exp(-0.1)))
    # What the question names is not made up.
    named = replace(QUESTION, question="Did Mira Tolven found it?")
    assert EntitySignal(threshold=0.3)(made, replace(state(), question=named)).tokens == (8,)
    assert EntitySignal(threshold=0.3, asked=True)(made, replace(state(), question=named)).tokens == (5, 6)


def test_an_entity_at_the_very_beginning() -> None:
    made = drafted(" Mira Tolven in 1912.", entropies=[2, 2, 0, 0.5])
    assert EntitySignal()(made, state()).score == 0.5  # it begins a sentence
    assert EntitySignal(openings=True)(made, state()).position == 1
    # Behind accepted text as well, but for passages that were fetched for this very place.
    behind = state(partial=" The mill was founded by")
    assert EntitySignal()(made, behind).tokens == (0, 1)
    fresh = EntitySignal()(made, replace(behind, fresh=True))
    assert (fresh.fire, fresh.score) == (False, 0.5)
    # Only what begins at the place is taken.
    later = drafted(" a man named Ida Morrow.", entropies=[0, 0, 0, 2, 2])
    assert EntitySignal()(later, replace(behind, fresh=True)).tokens == (3, 4)
    decision = EntitySignal(threshold=0)(drafted(" nothing is said of anyone."), state())  # no entity
    assert (decision.fire, decision.score) == (False, 0.0)


@pytest.mark.parametrize(
    "how", [Temperature(2.0), Platt(0.5, 1.0), Platt(-0.5, 1.0), Isotonic((0.0, 1.0), (0.4, 0.4))]
)
def test_the_probers_own_threshold_and_recogniser_decide(how, tmp_path) -> None:
    bank = tiny_bank(calibration=how)
    trigger = BeforeEntity(bank)
    scores = np.linspace(-3, 3, 31) + 0.05
    chances = trigger._chances(scores)
    threshold = trigger.record["threshold"]
    assert ((chances > threshold) == (scores > bank.threshold)).all()
    rises = not isinstance(how, Isotonic) and getattr(how, "slope", 1) > 0
    np.testing.assert_allclose(chances, how(scores) if rises else sigmoid(scores))
    assert replace(trigger, threshold=0.9).record["threshold"] == 0.9
    replace(bank, recogniser="spacy:en_no_such").save_pretrained(tmp_path / "p")
    with fails(None, "recogniser=spacy:en_no_such"):
        BeforeEntity(str(tmp_path / "p"))
    assert BeforeEntity(str(tmp_path / "p"), recogniser="rules").needs == Needs.of((1, 2), pool="predicting")


WORDS = [*"Mira Tolven in 1912 the mill. Jomholm, was 40 It founded".split(), '"The', 'Mill"']  # noqa: SIM905


@given(st.lists(st.sampled_from(WORDS), max_size=14), st.data())
def test_nothing_of_the_first_entity_above_the_threshold_is_kept(words, data) -> None:
    text = "".join(f" {word}" for word in words)
    values = data.draw(st.lists(st.floats(0, 4), min_size=len(words), max_size=len(words)))
    threshold = data.draw(st.floats(0, 4))
    made = drafted(text, entropies=values)
    decision = EntitySignal(threshold=threshold, asked=True)(made, state())
    judged = written_entities(text, find_entities, prompt=made.prompt)
    first = [tokens_of(made.offsets, e.start, e.end)[0] for e in judged]
    above = [e for e, i in zip(judged, first, strict=True) if float(made.entropies[i]) > threshold]
    assert decision.fire == bool(above) == (decision.score > decision.threshold)
    if above:
        text_before = text[: decision.position]
        assert text_before == text[: above[0].start]
        assert all(e.end <= len(text_before) or e.start >= len(text_before) for e in judged)
    assert not EntitySignal(threshold=float("inf"), asked=True)(made, state()).fire


@pytest.mark.parametrize("query", [CIOQF(top_n=30), QFS("paper", 30), QFS("released", 30)], ids=str)
def test_queries_look_back_from_the_entity_and_do_not_ask_with_it(query) -> None:
    def write(prompt):
        reading = "true" in prompt
        text = f" The mill was founded by {'Ida Morrow' if reading else 'Mira Tolven'}. So the answer is it."
        partial = prompt.rpartition("Answer:")[2]
        return text[len(partial) :] if text.startswith(partial) else ""

    lm = FakeLM(write, entropy=lambda word: 2.0 if word == "Mira" else 0.1)
    lm.tokenizer = SimpleNamespace()
    table = torch.nn.Embedding(999, 4)
    lm.model, lm.device = SimpleNamespace(get_input_embeddings=lambda: table), "cpu"
    retriever = FakeRetriever(lambda q: [passage("true: Ida Morrow founded it")])
    answer = RAG(lm, retriever, EntitySignal(), query, max_new_tokens=40)(QUESTION)
    assert answer.rounds[0].accepted == " The mill was founded by"
    (searched,) = retriever.queries
    assert "Mira" not in searched and "Tolven" not in searched and "founded" in searched
    assert answer.text == "The mill was founded by Ida Morrow. So the answer is it."
