"""Query formulations, QFS worked out by hand in both variants."""

from dataclasses import replace

import numpy as np
import pytest
from fake_lm import FakeLM
from hypothesis import given, settings
from hypothesis import strategies as st
from probers.rag.queries import QFS, AnswerQuery, QuestionQuery
from probers.rag.retrievers.lexical import tokenize
from probers.rag.triggers import State

from probers.prompts import TESTBED_PROMPT
from probers.types import AttentionRows, Decision, Needs, Passage, Question, RunError, UserError

ASKED = Question("q", "Where was Mara Telka born?")
DECISION = Decision(True, 1.0, 0.5)


def state(prompt, partial="", passages=()):
    start = prompt.rindex(ASKED.question)
    return State(
        ASKED, None, TESTBED_PROMPT, (start, start + len(ASKED.question)), partial=partial, passages=passages
    )


def generated(text, partial="", passages=()):
    """A generation of one token per word, with its state, and no attention yet."""
    prompt = TESTBED_PROMPT.question(ASKED.question, [p.text for p in passages], partial=partial)
    made = FakeLM(lambda p: text).generate([prompt], max_new_tokens=99, needs=Needs(attention=True))[0]
    return made, state(prompt, partial, passages)


def test_question_asks_the_question():
    made, where = generated(" anything")
    assert QuestionQuery()(ASKED, made, DECISION, where) == ASKED.question


def test_answer_asks_question_rationale_and_answer():
    made, where = generated(" Mara Telka is from Orn. So the answer is Orn.")
    query = AnswerQuery()(ASKED, made, DECISION, where)
    assert query == "Where was Mara Telka born? Mara Telka is from Orn. Orn."
    # In the middle of an answer: what is kept of it, after what was accepted before.
    made, where = generated(" is from Orn. So", partial=" Mara Telka")
    cut = replace(DECISION, position=len(" is from"))
    assert AnswerQuery()(ASKED, made, cut, where) == "Where was Mara Telka born? Mara Telka is from"


def test_answer_can_ask_with_the_passages_seen_so_far():
    seen = (Passage("1", "T", "Orn is a town."),)
    made, where = generated(" Orn. So the answer is Orn.", passages=seen)
    assert AnswerQuery()(ASKED, made, DECISION, where) == "Where was Mara Telka born? Orn. Orn."
    query = AnswerQuery(with_passages=True)(ASKED, made, DECISION, where)
    assert query == "Where was Mara Telka born? Orn is a town. Orn. Orn."


# Prompt words (columns): Question:(0) Where(1) was(2) Mara(3) Telka(4) born?(5) Answer:(6)
# Generated words (7..12): " The"(0) " town"(1) " near"(2) " Orn,"(3) " by"(4) " Vel."(5)
TEXT = " The town near Orn, by Vel."
P, N = 7, 6


def with_rows(rows):
    made, where = generated(TEXT)
    table = np.zeros((N + 1, P + N), dtype=np.float32)
    for i, entries in rows.items():
        for column, value in entries.items():
            table[i, column] = value
    return replace(made, attention=AttentionRows(table, np.zeros(N, dtype=np.float32))), where


def test_qfs_paper_takes_the_hit_tokens_own_row():
    # Hit: token 3 ("Orn,"); its own row is 4, and row 3, which predicted it, must not matter.
    made, where = with_rows({
        4: {0: 0.9, 6: 0.9, 3: 0.30, 4: 0.10, 1: 0.20, P + 1: 0.25, P + 2: 0.05, P + 3: 0.9},
        3: {5: 0.9},
    })  # fmt: skip
    hit = replace(DECISION, position=15, tokens=(3,))
    # "Question:" and "Answer:" are no part of question or answer; the hit itself does not precede itself.
    assert QFS("paper", top_n=3)(ASKED, made, hit, where) == "Where Mara town"
    assert QFS("paper", top_n=4)(ASKED, made, hit, where) == "Where Mara Telka town"
    assert QFS("paper", top_n=1)(ASKED, made, hit, where) == "Mara"


def test_qfs_released_takes_the_predicting_rows_renormalised_and_averaged():
    # Hits: tokens 3 ("Orn,") and 5 ("Vel."), predicted by rows 3 and 5; their own, 4 and 6, must not matter.
    # Row 3 over question and answer: Mara .2, Telka .1, town .1, The .1, sum .5 -> .4 .2 .2 .2
    # Row 5: Telka .06, born .02, near 0, by .02, sum .1 -> .6 .2 0 .2; "Question:" .9 does not count.
    # Mean: Mara .2, Telka .4, town .1, born .1; The and by are no content words.
    made, where = with_rows({
        3: {3: 0.2, 4: 0.1, P + 1: 0.1, P + 0: 0.1},
        5: {0: 0.9, 4: 0.06, 5: 0.02, P + 4: 0.02},
        4: {1: 0.9}, 6: {1: 0.9},
    })  # fmt: skip
    hits = replace(DECISION, position=1, tokens=(3, 5))
    assert QFS(top_n=2)(ASKED, made, hits, where) == "Mara Telka"
    assert QFS(top_n=1)(ASKED, made, hits, where) == "Telka"
    assert QFS(top_n=4)(ASKED, made, hits, where) == "Mara Telka born town"
    # Without the renormalisation Mara (.2 + 0) would come before Telka (.1 + .06).
    # The hit words themselves never qualify, stop words neither, however much attention they get.
    made, where = with_rows({3: {P + 0: 0.5, 3: 0.1}, 5: {P + 3: 0.9, P + 4: 0.1, 3: 0.01}})
    assert QFS(top_n=1)(ASKED, made, hits, where) == "Mara"


def test_qfs_leaves_passages_out_and_takes_the_accepted_text_in():
    seen = (Passage("1", "T", "Zork is loud."),)
    made, where = generated(" in Orn.", partial=" Mara Telka grew up", passages=seen)
    # Even attention: every word qualifies alike.
    for variant in ("paper", "released"):
        query = QFS(variant)(ASKED, made, replace(DECISION, position=3, tokens=(1,)), where)
        assert "Zork" not in query
        assert "Context" not in query
        assert "grew" in query
        assert "Orn" not in query


def test_a_word_of_several_tokens_counts_with_their_sum():
    made, where = with_rows({})
    # "Telka" as two tokens " Tel" + "ka": columns 4 and 5; everything behind moves by one.
    start, end = made.prompt_offsets[4]
    cut = (*made.prompt_offsets[:4], (start, end - 2), (end - 2, end), *made.prompt_offsets[5:])
    rows = np.zeros((N + 1, P + 1 + N), dtype=np.float32)
    rows[4, [3, 4, 5]] = 0.3, 0.2, 0.2
    made = replace(
        made,
        prompt_offsets=cut,
        prompt_ids=tuple(range(P + 1)),
        attention=AttentionRows(rows, np.zeros(N, dtype=np.float32)),
    )
    assert QFS("paper", top_n=1)(ASKED, made, replace(DECISION, tokens=(3,)), where) == "Telka"


def test_qfs_without_a_word_asks_the_question_and_keeps_the_last_tokens():
    made, where = with_rows({})
    hit = replace(DECISION, position=0, tokens=(0,))
    everything = QFS("paper")(ASKED, made, hit, where)
    assert everything == "Where was Mara Telka born"
    assert QFS("paper", max_tokens=2)(ASKED, made, hit, where) == "Telka born"
    nothing = replace(where, question_span=(0, 0))
    assert QFS("paper")(ASKED, made, hit, nothing) == ASKED.question


def test_qfs_on_a_whole_answer_looks_from_its_last_token():
    made, where = with_rows({N: {4: 0.9}})
    assert QFS("paper", top_n=1)(ASKED, made, DECISION, where) == "Telka"
    assert QFS("paper", top_n=9)(ASKED, *_empty(), where)


def _empty():
    made, _ = generated("")
    return made, DECISION


def test_qfs_refuses_what_it_cannot_do():
    made, where = generated(TEXT)
    with pytest.raises(RunError, match="attention"):
        QFS()(ASKED, replace(made, attention=None), DECISION, where)
    with pytest.raises(UserError, match="variant='x'"):
        QFS("x")
    with pytest.raises(UserError, match="top_n=0"):
        QFS(top_n=0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    variant=st.sampled_from(["paper", "released"]),
    top_n=st.integers(1, 8),
    max_tokens=st.integers(1, 6),
)
def test_query_words_are_unique_places_of_the_text_in_its_order(seed, variant, top_n, max_tokens):
    rng = np.random.default_rng(seed)
    made, where = generated(TEXT, partial=" Well, Mara Telka was")
    rows = np.tril(rng.random(made.attention.rows.shape), k=len(made.prompt_ids) - 1).astype(np.float32)
    made = replace(made, attention=AttentionRows(rows, made.attention.column_max))
    hits = tuple(sorted(rng.choice(N, size=rng.integers(1, 4), replace=False).tolist()))
    query = QFS(variant, top_n, max_tokens)(ASKED, made, replace(DECISION, tokens=hits), where)
    text = tokenize(f"{ASKED.question} Well, Mara Telka was {TEXT}")
    words = tokenize(query)
    assert 1 <= len(words) <= min(top_n, max_tokens)
    place = 0
    for word in words:  # a subsequence of the text: every place is used at most once, in order
        place = text.index(word, place) + 1
