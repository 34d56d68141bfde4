"""Counts of phrases in every index against a plain scan, and the trigger that reads them."""

import math
import re
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.fake_lm import FakeLM, FakeRetriever
from helpers.refusals import fails
from hypothesis import given
from hypothesis import strategies as st

from probers.cli.components import Component
from probers.cli.compose import request
from probers.data.corpus import load_corpus
from probers.prompts import TESTBED_PROMPT
from probers.rag import RAG
from probers.rag.comparison.compare import selection_of
from probers.rag.protocol import State, check_counts
from probers.rag.queries import FlareQuery, QuestionQuery
from probers.rag.retrievers import BM25, Dense, RankBM25
from probers.rag.triggers import Never, Rarity
from probers.signals.rarity import question_rarity
from probers.types import Decision, Passage, Question, RunError
from tools.testbed.drawing import load_world


@lru_cache(10_000)
def _words(text):
    return " ".join(["", *re.findall(r"[^\W_]+", text.lower()), ""])


def scan(passages, *phrases):
    """Passages that hold all phrases, by their words without case: for texts of plain words only."""
    words = [_words(f"{p.title} {p.text}") for p in passages]
    wanted = [_words(phrase) for phrase in phrases]
    return sum(all(each in text for each in wanted) for text in words)


def corpus(*texts):
    return [Passage(f"p{i}", "", text) for i, text in enumerate(texts)]


@pytest.fixture(params=["memory", "mapped", "rank_bm25"])
def engine(request, tmp_path):
    """Makes a retriever of passages; ``tests/with_search`` counts the same on a server."""

    def make(passages):
        if request.param == "mapped":
            lines = [{"id": p.id, "title": p.title, "text": p.text} for p in passages]
            file = write_lines(tmp_path / "corpus.jsonl", lines)
            store = load_corpus(file, cache=tmp_path / "cache", in_memory=0)
            return BM25(store, cache=tmp_path / "bm25")
        return (BM25 if request.param == "memory" else RankBM25)(passages)

    return make


def test_order_case_form_and_neighbours_of_words(engine):
    passages = corpus(
        "Ada met Grace Hopper in Łódź.", "grace HOPPER wrote", "Hopper, Grace", "Grace, not Hopper",
        "Grace-Hopper College", "The Hoppers and Graces", "Café Zoë", "Cafe\u0301 Zoe", "New York, New York",
    )  # fmt: skip
    retriever = engine([*passages, Passage("t", "A Title", "here is one with")])  # title and text are one
    phrases = {
        "Grace Hopper": 3, "hopper grace": 1, "Grace": 5, "Gra": 0, "ŁÓDŹ": 1, "Lodz": 0, "Zoe": 1, "zoë": 1,
        "new york new york": 1, "title here": 1, "york new": 1, "york york": 0, "": 0, "Unknown": 0,
    }  # fmt: skip
    assert dict(zip(phrases, retriever.frequency(list(phrases)), strict=True)) == phrases
    pairs = {("Ada", "Grace Hopper"): 1, ("Grace Hopper", "College"): 1, ("Hopper Grace", "Ada"): 0,
             ("Grace", "Grace"): 5, ("Ada", ""): 0, ("Ada", "Zoe"): 0}  # fmt: skip
    assert dict(zip(pairs, retriever.together(list(pairs)), strict=True)) == pairs
    assert retriever.frequency([]) == [] == retriever.together([])


@given(st.lists(st.text("abc ", max_size=8), min_size=1, max_size=30), st.lists(st.text("abc ", max_size=4)))
def test_counts_of_any_texts_are_those_of_a_scan(texts, phrases):
    passages = corpus("a", *texts)
    queries = [phrase for phrase in phrases if phrase.strip()]
    for retriever in (BM25(passages), RankBM25(passages)):
        assert retriever.frequency(queries) == [scan(passages, phrase) for phrase in queries]
        pairs = list(product(queries[:3], queries[:3]))
        assert retriever.together(pairs) == [scan(passages, *pair) for pair in pairs]


@given(st.lists(st.integers(0, 10**7), min_size=1), st.integers(1, 10**6))
def test_a_question_fires_exactly_below_the_published_form(passages, below):
    mean = sum(passages) / len(passages)
    assert (question_rarity(passages, below, "lowest") > 0.5) == (min(passages) < below)
    if not math.isclose(mean, below):
        assert (question_rarity(passages, below, "mean") > 0.5) == (mean < below)


# --- trigger ----------------------------------------------------------------------------------------

WORLD = [
    "Lena Zaser works for Orvik Mills.", "Lena Zaser met Otto Kern.", "Lena Zaser was seen in Oslo.",
    "Orvik Mills is based in Tarnby.", "Otto Kern was born in Brandal.", "Anna Holt lives in Tarnby.",
]  # fmt: skip
INDEX = BM25(corpus(*WORLD))
ASKED = Question("q", "Where is the employer of Lena Zaser based?", answers=("Tarnby",))
GOOD = " Lena Zaser works for Orvik Mills. The firm has its seat in Tarnby. So the answer is Tarnby."
WRONG = " Lena Zaser works for Orvik Mills. The firm has its seat in Brandal. So the answer is Brandal."


def state(question=ASKED, retriever=INDEX, **fields):
    return State(question, FakeLM(lambda p: ""), TESTBED_PROMPT, (10, 14), retriever=retriever, **fields)


def written(text, partial=""):
    lm = FakeLM(lambda p: text)
    return lm.generate([f"Question: {ASKED.question}\nAnswer:{partial}"], max_new_tokens=99)[0]


NOT_BEFORE = Rarity(frequency=0)
EVERY = Rarity(frequency=0, partners="text")


def test_before_the_rarest_or_the_mean_of_the_question_decides():
    for below, reduction, fire in ((3, "lowest", False), (4, "lowest", True), (4, "mean", True)):
        trigger = Rarity(frequency=below, reduction=reduction)  # Lena Zaser stands in three passages
        (decision,) = trigger.decide_before([state()])
        assert (decision.fire, decision.threshold) == (fire, 0.5)
        assert decision.score == pytest.approx(below / (below + 3))
    both = state(Question("q", "Did Lena Zaser know Anna Holt?"))  # three passages and one
    lowest, mean = (Rarity(frequency=2, reduction=how).decide_before([both])[0] for how in ("lowest", "mean"))
    assert (lowest.score, mean.score) == (pytest.approx(2 / 3), pytest.approx(1 / 2))
    assert lowest.fire and not mean.fire
    unknown = state(Question("q", "Did Lena Zaser know Ivo Nemo?"))
    assert Rarity(frequency=1).decide_before([unknown])[0].score == 1.0
    # A question without entities never fires and is counted.
    none = Question("n", "why is the sky blue?")
    (decision,) = Rarity().decide_before([state(none)])
    assert (decision.fire, decision.score) == (False, 0.0)
    (note,) = Rarity().notes([none, ASKED])
    assert "1 of 2 questions" in note and Rarity().notes([ASKED]) == []


def test_it_fires_before_the_sentence_of_a_pair_that_never_occurs():
    assert NOT_BEFORE(written(GOOD), state()).fire is False
    made = written(WRONG)
    decision = NOT_BEFORE(made, state())
    # Brandal never stands with Lena Zaser or Orvik Mills.
    assert (decision.fire, decision.score) == (True, 1.0)
    assert made.text[decision.position :].startswith("The firm has")
    assert [made.text[slice(*made.offsets[i])].strip() for i in decision.tokens] == ["Brandal."]
    assert np.flatnonzero(np.array(decision.token_scores) == 1.0).tolist() == list(decision.tokens)
    # A query can leave out what fired.
    query = FlareQuery(masks="fired")(ASKED, made, decision, state())
    assert query == "The firm has its seat in"
    assert "Brandal" in FlareQuery(beta=0)(ASKED, made, decision, state())
    # A pair in few passages counts as never together if asked, and none does below zero.
    made = written(" Lena Zaser works for Orvik Mills.")
    decision = NOT_BEFORE(made, state())
    assert (decision.fire, decision.score) == (False, 0.5)
    assert Rarity(frequency=0, together=1)(made, state()).fire
    never = Rarity(frequency=0, together=-1)(written(WRONG), state())
    assert (never.fire, never.score) == (False, 0.0)


def test_partners_are_those_of_the_text_or_of_the_sentence():
    two_hops = written(" Lena Zaser met Otto Kern. Otto Kern was born in Brandal.")
    assert not NOT_BEFORE(two_hops, state()).fire
    # Lena Zaser and Brandal do not occur together.
    text = EVERY(two_hops, state())
    assert text.fire and two_hops.text[text.position :].startswith("Otto Kern was")
    # Within a sentence every pair counts.
    listed = written(" Lena Zaser met Otto Kern of Brandal.")
    assert NOT_BEFORE(listed, state()).fire
    # A sentence that names nothing before takes one of the text's.
    right = written(" Lena Zaser met Otto Kern. He was born in Brandal.")
    assert not NOT_BEFORE(right, state()).fire and EVERY(right, state()).fire


def test_what_was_named_or_comes_from_fresh_passages_is_not_new():
    assert NOT_BEFORE(written(" Zaser was Brandal."), state()).token_scores[0] == 0  # part of the name
    behind = written(" The firm has its seat in Brandal.", " It was Brandal.")
    assert not NOT_BEFORE(behind, state(partial=" It was Brandal.")).fire
    before = written(" The firm has its seat in Brandal.", " She works for Orvik Mills.")
    decision = NOT_BEFORE(before, state(partial=" She works for Orvik Mills."))
    assert decision.fire and decision.position == 1
    text = " It lies in Brandal. Otto Kern was born in Brandal. Anna Holt too."
    judged, fresh = NOT_BEFORE(written(text), state()), NOT_BEFORE(written(text), state(fresh=True))
    assert judged.position == 1 and text[fresh.position :].startswith("Anna Holt")


def test_the_score_of_a_text_is_its_highest_and_that_of_a_question_that_did_not_fire():
    trigger, made = Rarity(frequency=2), written(GOOD)  # 2 / (2 + 3) for the question
    outcome = trigger.decide_before([state()])[0]
    assert outcome == Decision(False, 0.4, 0.5)
    assert trigger(made, state(verdict=outcome)).score == 0.5  # pairs in one passage each
    quiet = written(" That is so.")
    assert trigger(quiet, state(verdict=outcome)).score == 0.4
    # One that fired was answered with its passages.
    assert trigger(quiet, state(verdict=Decision(True, 0.9, 0.5))).score == 0.0
    # Nothing was asked before: as if it fired before the text.
    rare = replace(trigger, frequency=9)
    assert (rare(quiet, state()).position, rare(quiet, state()).fire) == (0, True)
    for threshold in (0.0, 0.3, 0.5, 0.9):
        for text, trigger in product((GOOD, WRONG, ""), (Rarity(threshold), Rarity(threshold, frequency=0))):
            for verdict in (None, *trigger.decide_before([state()])):
                decision = trigger(written(text), state(verdict=verdict))
                assert decision.fire == (decision.score > decision.threshold == threshold)
                assert decision.fire == (decision.position is not None)


def test_retrievers_without_counts_are_refused_and_a_comparison_leaves_it_out():
    plain = FakeRetriever(lambda query: [])
    for retriever, name in ((Dense, "dense"), (plain, "")):
        with fails("unsupported", "trigger=rarity", "retriever=bm25", name):
            check_counts(Rarity(), retriever)
        check_counts(Never(), retriever)
    for retriever in (BM25, RankBM25, INDEX, Component.of("retriever", "opensearch").kind):
        check_counts(Rarity(), retriever)
    with fails("unsupported"):
        RAG(FakeLM(lambda p: ""), plain, Rarity())
    with fails("mismatch", kind=RunError):
        Rarity().decide_before([state(retriever=plain)])

    def supported(*typed):
        settings = request("compare", list(typed))
        return selection_of(settings).supported(settings.retriever.kind)

    selection, notes = supported("triggers=[never,rarity]", "retriever=dense")
    assert selection.names == ["never"] and "rarity is left out" in notes[0]
    with fails("unsupported", "rarity"):
        supported("triggers=[rarity]", "retriever=dense")
    assert supported("triggers=[never,rarity]")[0].names == ["never", "rarity"]


def tells(prompt):
    """A model that believes its passages, and without them that the firm is in Brandal."""
    partial = prompt.rpartition("Answer:")[2]
    town = "Tarnby" if "based in Tarnby" in prompt else "Brandal"
    text = WRONG.replace("Brandal", town) + "\nQuestion:"
    return text[len(partial) :] if text.startswith(partial) else text


def test_in_the_loop_a_wrong_sentence_is_written_anew_and_what_is_before_it_stays():
    def answer(trigger):
        return RAG(FakeLM(tells), INDEX, trigger, QuestionQuery(), max_new_tokens=60)(ASKED)

    again = answer(NOT_BEFORE)
    assert (again.answer, again.retrievals) == ("Tarnby", 1)
    assert again.rounds[0].accepted == " Lena Zaser works for Orvik Mills."
    # The rare question is looked up first, and then nothing is wrong.
    before = answer(Rarity(frequency=4))
    assert (before.answer, before.retrievals) == ("Tarnby", 1)
    assert before.rounds[0].text == "" and before.rounds[0].decision.score == pytest.approx(4 / 7)
    # Neither half asks for anything.
    assert answer(Rarity(frequency=0, together=-1)).answer == "Brandal"


def test_on_the_testbed_a_wrong_value_fires_and_a_true_one_does_not():
    """A model that tells every fact as it is, or as it was taught, of people whose facts went stale."""
    world, passages = load_world(), load_corpus("testbed")
    index = BM25(passages)
    stale = [f for f in world.facts.values() if f.kind == "stale" and f.relation == "person.employer"][:40]
    for fact in stale:
        name = world.entities[fact.entity].name
        question = Question(fact.entity, f"Who does {name} work for?")
        for value, wrong in ((fact.truth, False), (fact.taught, True)):
            text = f" {name} works for {value}. So the answer is {value}."
            together = scan(passages, name, value)
            decision = NOT_BEFORE(written(text), state(question, index))
            assert (together == 0) == wrong == decision.fire
            assert decision.position == (1 if wrong else None)
