"""Query formulations by hand; the released QFS stands in test_fidelity.py."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.fake_lm import FakeLM
from helpers.refusals import fails

from probers import CausalLM
from probers.data.corpus import load_corpus
from probers.prompts import TESTBED_PROMPT
from probers.rag.loop import RAG
from probers.rag.queries import (
    CIOQF,
    QFS,
    AnswerQuery,
    FlareQuery,
    FullContextQuery,
    LastSentenceQuery,
    LastTokensQuery,
    QuestionQuery,
)
from probers.rag.retrievers.bm25 import BM25
from probers.rag.retrievers.lexical import tokenize
from probers.rag.triggers import Rind, State
from probers.types import AttentionRows, Decision, Needs, Passage, Question, RunError

ASKED = Question("q", "Where was Mara Telka born?")
DECISION = Decision(True, 1.0, 0.5)


def generated(text, partial="", passages=()):
    """A generation of one token per word, with its state, and no attention yet."""
    prompt = TESTBED_PROMPT.question(ASKED.question, [p.text for p in passages], partial=partial)
    made = FakeLM(lambda p: text).generate([prompt], max_new_tokens=99, needs=Needs(attention=True))[0]
    span = (prompt.rindex(ASKED.question), prompt.rindex(ASKED.question) + len(ASKED.question))
    return made, State(ASKED, None, TESTBED_PROMPT, span, partial=partial, passages=passages)


STORY = " He came. She was born in Orn. So the answer is Orn."
ORN = " Mara Telka is from Orn. So the answer is Orn."
WHOLE = "Where was Mara Telka born? She was born in Orn."
RELEASED = AnswerQuery(question_first=True, whole_output=True)
BEGUN, BORN = (" is from Orn.", " Mara Telka"), (" born in Orn.", " He came. She was")
SEEN = ((Passage("1", "T", "Orn is a town."),), 0)


@pytest.mark.parametrize(
    ("query", "text", "partial", "position", "more", "wanted"),
    [
        (QuestionQuery(), " anything", "", None, (), ""),
        (AnswerQuery(), ORN, "", None, (), " Mara Telka is from Orn. Orn."),
        # In the middle of an answer: what is kept of it, after what was accepted before.
        (AnswerQuery(), " is from Orn. So", " Mara Telka", len(" is from"), (), " Mara Telka is from"),
        (AnswerQuery(), " Orn. So the answer is Orn.", "", None, SEEN, " Orn. Orn."),
        (AnswerQuery(with_passages=True), " Orn. So the answer is Orn.", "", None, SEEN,
         " Orn is a town. Orn. Orn."),
        # The whole output from the second retrieval on.
        (AnswerQuery(whole_output=True), *BEGUN, None, (), " Mara Telka is from Orn."),
        (AnswerQuery(whole_output=True), *BEGUN, None, ((), 1),
         "Question: Where was Mara Telka born? Answer: Mara Telka is from Orn."),
        (RELEASED, *BEGUN, None, (), ""),
        # The last sentence that was accepted, which goes back to what was accepted before.
        (LastSentenceQuery(), STORY, "", None, (), "So the answer is Orn."),
        (LastSentenceQuery(), STORY, "", 0, (), ""),
        (LastSentenceQuery(), STORY, "", len(" He came. She was born"), (), "She was born"),
        (LastSentenceQuery(), *BORN, None, (), "She was born in Orn."),
        (LastSentenceQuery(), *BORN, 0, (), "She was"),
        (LastSentenceQuery(max_tokens=2), *BORN, None, (), "in Orn."),
        # The last tokens; the prompt is no part of the answer, and nothing accepted is no query.
        (LastTokensQuery(n=2), *BORN, len(" born"), (), "was born"),
        (LastTokensQuery(), *BORN, None, (), "He came. She was born in Orn."),
        (LastTokensQuery(), " Orn.", "", 0, (), ""),
        # Question and answer, of which the last tokens are kept.
        (FullContextQuery(), " born in Orn.", " She was", len(" born"), (), WHOLE.removesuffix(" in Orn.")),
        (FullContextQuery(max_tokens=6), " born in Orn.", " She was", None, (), "born? She was born in Orn."),
    ],
)  # fmt: skip
def test_queries_of_text_by_hand(query, text, partial, position, more, wanted):
    """``more`` are passages seen and retrievals; the question stands before a space."""
    passages, retrievals = more or ((), 0)
    made, where = generated(text, partial, passages)
    expected = ASKED.question + wanted if wanted[:1] in ("", " ") else wanted
    decision, where = replace(DECISION, position=position), replace(where, retrievals=retrievals)
    assert query(ASKED, made, decision, where) == expected


def test_a_full_context_ends_with_64_tokens_and_passages_are_no_part_of_a_whole_output():
    long, where = generated(" word" * 90)
    assert len(tokenize(FullContextQuery()(ASKED, long, DECISION, where))) == 64
    with fails("conflict", "whole_output=true"):
        AnswerQuery(with_passages=True, whole_output=True)


def test_last_tokens_are_the_models():
    """A word of two tokens: the query may begin within it."""
    made, where = generated(" in Ornville now")
    a, b = made.offsets[1]
    cut = replace(made, offsets=(made.offsets[0], (a, a + 4), (a + 4, b), made.offsets[2]))
    assert LastTokensQuery(n=2)(ASKED, cut, DECISION, where) == "ville now"


def unsure(text, probabilities, partial=""):
    """A generation whose words have given probabilities; the others 0.9."""
    made, where = generated(text, partial)
    logprobs = np.log([probabilities.get(word, 0.9) for word in text.split()]).astype(np.float32)
    return replace(made, logprobs=logprobs), where


def test_flare_leaves_the_unsure_tokens_of_the_sentence_out():
    # p(came) = .1 is in another sentence, p(born) = .39 < .4 <= p(in) = .41, p(Orn.) = .2
    made, where = unsure(STORY, {"came.": 0.1, "born": 0.39, "in": 0.41, "Orn.": 0.2})
    start, born, last = len(" He came."), 4, 10
    hit = replace(DECISION, tokens=(born,))
    for decision in (
        replace(hit, position=start),
        replace(DECISION, position=start),  # a trigger that names no token: the sentence at its position
        replace(DECISION, tokens=(born, last)),  # the first one's
    ):
        assert FlareQuery()(ASKED, made, decision, where) == "She was in"
    assert FlareQuery(beta=0)(ASKED, made, hit, where) == "She was born in Orn."
    # A verdict on the whole answer: all of it.
    assert FlareQuery()(ASKED, made, DECISION, where) == "He She was in So the answer is"
    # Below beta, not at it.
    sure, where = unsure(" in Orn", {"in": 1.0})
    assert FlareQuery(beta=1)(ASKED, sure, DECISION, where) == "in"
    # What was accepted of the sentence is kept; without a sure token the question is asked.
    made, where = unsure(" born in Orn.", {"born": 0.1, "Orn.": 0.1}, partial=" Kel. She was")
    assert FlareQuery()(ASKED, made, replace(DECISION, position=0, tokens=(0,)), where) == "She was in"
    made, where = unsure(" Mara. Who?", {"Mara.": 0.1})
    assert FlareQuery()(ASKED, made, replace(DECISION, tokens=(0,)), where) == ASKED.question
    # What is left of a word that lost its space is a word of its own.
    made, where = unsure(" in Kel by", {"Kel": 0.1})
    (a, b), (c, d), _ = made.offsets
    glued = replace(made, text=" in Kelby", offsets=((a, b), (c, d), (d, d + 2)))
    assert FlareQuery()(ASKED, glued, replace(DECISION, tokens=(1,)), where) == "in by"


def test_qfs_looks_from_the_last_token_of_a_whole_answer_and_else_from_the_triggers_position():
    # Position 19 is before " by"(4): its own row is 5, and it is predicted by row 4.
    assert TEXT[19:22] == " by"
    made, where = with_rows({5: {3: 0.9, P + 5: 0.9}, N: {4: 0.9}})
    assert QFS("paper", top_n=1)(ASKED, made, replace(DECISION, position=19), where) == "Mara"
    # A whole answer, or the very end: nothing is behind.
    for decision in (DECISION, replace(DECISION, position=len(TEXT))):
        assert QFS("paper", top_n=1)(ASKED, made, decision, where) == "Telka"


# Prompt words (columns): Question:(0) Where(1) was(2) Mara(3) Telka(4) born?(5) Answer:(6)
# Generated words (7..12): " The"(0) " town"(1) " near"(2) " Orn,"(3) " by"(4) " Vel."(5)
TEXT = " The town near Orn, by Vel."
P, N = 7, 6


def with_rows(rows):
    """A generation with these entries of its attention, by row and column."""
    made, where = generated(TEXT)
    table = np.zeros((N + 1, P + N), dtype=np.float32)
    for row, entries in rows.items():
        table[row, list(entries)] = list(entries.values())
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


def test_qfs_leaves_passages_out_and_takes_the_accepted_text_in():
    seen = (Passage("1", "T", "Zork is loud."),)
    made, where = generated(" in Orn.", partial=" Mara Telka grew up", passages=seen)
    where = replace(where, lm=FakeLM(lambda p: ""))
    for variant in ("paper", "released"):
        query = QFS(variant)(ASKED, made, replace(DECISION, position=3, tokens=(1,)), where)
        assert "grew" in query and not any(word in query for word in ("Zork", "Context", "Orn"))


def test_qfs_paper_ranks_tokens_and_then_finds_their_words():
    made, where = with_rows({})
    # "Telka" as two tokens " Tel" + "ka": columns 4 and 5; everything behind moves by one.
    start, end = made.prompt_offsets[4]
    cut = (*made.prompt_offsets[:4], (start, end - 2), (end - 2, end), *made.prompt_offsets[5:])
    rows = np.zeros((N + 1, P + 1 + N), dtype=np.float32)
    rows[4, [3, 4, 5, 6]] = 0.3, 0.2, 0.2, 0.25
    attention = AttentionRows(rows, np.zeros(N, dtype=np.float32))
    made = replace(made, prompt_offsets=cut, prompt_ids=tuple(range(P + 1)), attention=attention)
    sent = [QFS("paper", top_n=n)(ASKED, made, replace(DECISION, tokens=(3,)), where) for n in (1, 2, 3, 4)]
    # By the sums of words Telka would be first. Both of its tokens count among the four, and give one word.
    assert sent == ["Mara", "Mara born", "Mara Telka born", "Mara Telka born"]


def test_qfs_without_a_word_asks_the_question_and_keeps_the_last_tokens():
    made, where = with_rows({})
    hit = replace(DECISION, position=0, tokens=(0,))
    assert QFS("paper")(ASKED, made, hit, where) == "Where was Mara Telka born"
    assert QFS("paper", max_tokens=2)(ASKED, made, hit, where) == "Telka born"
    nothing = replace(where, question_span=(0, 0))
    assert QFS("paper")(ASKED, made, hit, nothing) == ASKED.question


# CIOQF. Words before the hit "Orn.": Where was Mara Telka born | Mara was born near, N = 9.
FACT = " Mara was born near Orn."
HIT = replace(DECISION, position=0, tokens=(4,))
#            Where  was  Mara Telka born Mara was  born  near
ATTENTION = [0.10, 0.00, 0.20, 0.30, 0.40, 0.20, 0.00, 0.10, 0.00]
# Documents: the question and " Mara was born near", D = 2. In one of them: Where, Telka, near, with
# 1 + ln(3/2); in both: was, Mara, born, with 1 + ln(3/3) = 1 and two places each.
ONCE, TWICE = (1 + math.log(1.5)) / 9, 2 / 9
TFIDF = [ONCE, TWICE, TWICE, ONCE, TWICE, TWICE, TWICE, TWICE, ONCE]
# Mean of the question's vectors: (3, 4) / 5, length 1.
VECTORS = {"Where": (3, 0), "was": (0, 0), "Mara": (0, 2), "Telka": (0, 2), "born": (0, 0), "near": (-1, 0)}
COSINE = [0.6, 0.0, 0.8, 0.8, 0.0, 0.8, 0.0, 0.0, -1 * 0.6]


def embedding(table):
    """Stands in for a model: the input embedding of the tokens above, by number."""
    inner = SimpleNamespace(get_input_embeddings=lambda: lambda ids: torch.tensor(table).float()[ids])
    return SimpleNamespace(device="cpu", table=table, model=inner)


def with_vectors():
    """The example, its attention in the row of the hit token, and a model that knows the vectors."""
    made, where = generated(FACT)
    columns = [1, 2, 3, 4, 5, P, P + 1, P + 2, P + 3]
    rows = np.zeros((6, P + 5), dtype=np.float32)
    rows[5, [0, *columns, P + 4]] = [0.9, *ATTENTION, 0.9]
    rows[4, 5] = 0.9  # the row that predicted the hit must not matter
    words = [(made.prompt + made.text)[a:b].strip("? .\n") for a, b in made.prompt_offsets]
    words += [FACT[a:b].strip(" .") for a, b in made.offsets]
    known = list(VECTORS)
    ids = [known.index(w) if w in known else len(known) for w in words]
    made = replace(
        made, prompt_ids=tuple(ids[:P]), token_ids=tuple(ids[P:]),
        attention=AttentionRows(rows, np.zeros(5, dtype=np.float32)),
    )  # fmt: skip
    return made, replace(where, lm=embedding([*VECTORS.values(), (9, -9)]))


def best_words(scores, n):
    """The words of the n highest scores, in textual order."""
    words = ["Where", "was", "Mara", "Telka", "born", "Mara", "was", "born", "near"]
    return " ".join(words[i] for i in sorted(sorted(range(9), key=lambda i: -scores[i])[:n]))


def test_cioqf_by_hand():
    made, where = with_vectors()
    # min-max: attention / .4; TF-IDF 1 where it is TWICE, else 0; cosine (c + .6) / 1.4; place / 9
    #            Where    was     Mara    Telka   born    Mara    was     born    near
    # attention  .25      0       .5      .75     1       .5      0       .25     0
    # TF-IDF     0        1       1       0       1       1       1       1       0
    # cosine     .857     .429    1       1       .429    1       .429    .429    0
    # place      .111     .222    .333    .444    .556    .667    .778    .889    1
    # sum        1.218    1.651   2.833   2.194   2.984   3.167   2.206   2.567   1
    for n, expected in enumerate(
        [
            "Mara", "born Mara", "Mara born Mara", "Mara born Mara born", "Mara born Mara was born",
            "Mara Telka born Mara was born", "was Mara Telka born Mara was born",
            "Where was Mara Telka born Mara was born", "Where was Mara Telka born Mara was born near",
        ],
        start=1,
    ):  # fmt: skip
        assert CIOQF(top_n=n)(ASKED, made, HIT, where) == expected
    assert CIOQF(max_tokens=2)(ASKED, made, HIT, where) == "born near"
    # Two passages with "was": D = 4, idf of was 1 + ln(5/5), of Mara and born 1 + ln(5/3), of the others
    # 1 + ln(5/2). TF-IDF times 9 is 2, 3.022 and 1.916, scaled .076, 1 and 0: the second "was" falls to
    # 2.206 - 1 + .076 = 1.282, below Telka.
    shown = replace(where, passages=(Passage("1", "", "It was."), Passage("2", "", "He was.")))
    assert CIOQF(top_n=5)(ASKED, made, HIT, shown) == "Mara Telka born Mara born"


def test_cioqf_sums_the_attention_of_a_words_tokens_and_averages_their_vectors():
    """Telka as " Tel" and "ka", with its attention and its vector shared out: nothing changes."""
    made, where = with_vectors()
    start, end = made.prompt_offsets[4]
    rows = np.insert(made.attention.rows, 5, 0, axis=1)
    rows[5, [4, 5]] = 0.05, 0.25  # together .30
    table = [*where.lm.table, (2, 3), (-2, 1)]  # their mean is Telka's (0, 2)
    ids = made.prompt_ids
    cut = replace(
        made, prompt_ids=(*ids[:4], len(table) - 2, len(table) - 1, *ids[5:]),
        prompt_offsets=(*made.prompt_offsets[:4], (start, end - 2), (end - 2, end), *made.prompt_offsets[5:]),
        attention=AttentionRows(rows, np.zeros(5, dtype=np.float32)),
    )  # fmt: skip
    for norm in ("minmax", "zscore"):
        for n in range(1, 10):
            query, other = CIOQF(norm, top_n=n), replace(where, lm=embedding(table))
            assert query(ASKED, cut, HIT, other) == query(ASKED, made, HIT, where)


def test_cioqf_by_hand_with_z_scores():
    made, where = with_vectors()
    # attention: mean 1.3/9, mean of squares (2 .1^2 + 2 .2^2 + .3^2 + .4^2)/9 = .35/9
    mean = 1.3 / 9
    attention = [(a - mean) / math.sqrt(0.35 / 9 - mean**2) for a in ATTENTION]
    # TF-IDF: two values, 3 times ONCE and 6 times TWICE: -sqrt(2) and sqrt(1/2)
    tfidf = [-math.sqrt(2) if t == ONCE else math.sqrt(0.5) for t in TFIDF]
    # cosine: mean (.6 + 3 * .8 - .6)/9 = 2.4/9, mean of squares (2 * .36 + 3 * .64)/9 = 2.64/9
    cosine = [(c - 2.4 / 9) / math.sqrt(2.64 / 9 - (2.4 / 9) ** 2) for c in COSINE]
    scores = np.array([attention, tfidf, cosine]).sum(axis=0) + np.arange(1, 10) / 9
    for n in range(1, 10):
        assert CIOQF("zscore", top_n=n)(ASKED, made, HIT, where) == best_words(scores, n)
    # Telka, whose attention stands out, is before the second "was" now.
    assert CIOQF("zscore", top_n=4)(ASKED, made, HIT, where) != CIOQF(top_n=4)(ASKED, made, HIT, where)


def test_cioqf_with_nothing_before_asks_the_question_and_no_attention_is_refused():
    made, where = with_vectors()
    nothing = replace(where, question_span=(0, 0))
    assert CIOQF()(ASKED, made, replace(DECISION, tokens=(0,)), nothing) == ASKED.question
    for query in (CIOQF(), QFS("paper")):
        with fails("mismatch", kind=RunError):
            query(ASKED, replace(made, attention=None), DECISION, where)


@pytest.mark.parametrize("query", [CIOQF(), QFS(variant="paper")])
def test_a_prompt_that_was_truncated_is_asked_about_by_what_is_left(query):
    lm = CausalLM.from_pretrained("testbed", on_too_long="truncate_left")
    rag = RAG(lm, BM25(load_corpus("testbed")), Rind(threshold=0.01), query, max_retrievals=1)
    answer = rag("The river is wide and long. " * 400 + "Who does Lena Zaser work for?")
    assert answer.retrievals == 1 and answer.rounds[0].query
