"""Curves of methods that decide within an answer: their points are runs, and lie apart."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.fake_lm import FakeLM, FakeRetriever, passage

from probers.rag import triggers as rules
from probers.rag.comparison.curves import record_all, rerun_all
from probers.rag.comparison.methods import Method, MethodRun
from probers.rag.comparison.outcomes import TOKENS
from probers.rag.loop import RAG
from probers.rag.queries import LastSentenceQuery, LastTokensQuery
from probers.types import Question

QUESTIONS = [Question(f"q{i}", f"Where is town {i}?", (f"Land{i}",)) for i in range(40)]


def town(prompt):
    return int(re.findall(r"Where is town (\d+)\?", prompt)[-1])


def write(prompt):
    """Three sentences; what is left of them behind what is accepted. A third of the towns are known."""
    i = town(prompt)
    if prompt.endswith("\nReply:"):
        return " yes"
    partial = prompt.rpartition("Answer:")[2]
    right, wrong = f"Land{i}", f"Atlantis{i}"
    for land in (right if prompt.startswith("Context:") or i % 3 == 0 else wrong, wrong, right):
        text = f" Town {i} is quite old{i}. It lies in {land}. So the answer is {land}."
        if text.startswith(partial):
            return text[len(partial) :]
    raise AssertionError(partial)


def entropy(word):
    """Each town has its own: wrong ones from 0.5, right ones from 0.1, the first sentence below."""
    match = re.fullmatch(r"(Atlantis|Land|old)(\d+)\.", word)
    if match is None:
        return 0.001
    start = {"Atlantis": 0.5, "Land": 0.1, "old": 0.01}[match[1]]
    return start * (1 + int(match[2]) / 50)


def loop(lm=None, kind=RAG, **options):
    retriever = FakeRetriever(lambda query: [passage(f"Found by {query}")])
    made = {"query": LastSentenceQuery(), "max_new_tokens": 30, "max_retrievals": 3} | options
    return kind(lm or FakeLM(write, entropy), retriever, rules.Never(), **made)


def ran(rag, method, questions=QUESTIONS):
    return MethodRun(questions, method.loop(rag).answer(questions), method=method)


def curves_of(*arguments, **options):
    return {name: rerun.curve for name, rerun in rerun_all(*arguments, **options).items()}


def curves(tmp_path, *methods, points=4, rag=None, questions=QUESTIONS):
    rag = rag or loop()
    runs = [ran(rag, m, questions) for m in methods]
    reference = ran(rag, Method("never", rules.Never(), LastSentenceQuery()), questions)
    recorded = record_all(rag, runs, tmp_path / "recorded")
    return curves_of(rag, runs, reference, recorded, tmp_path / "replay", points=points)


SENTENCE = Method("sentence", rules.Entropy(0.55, "max", "sentence"), LastSentenceQuery())
TRIGGERS = {
    "flare": rules.Flare(0.4), "flare_mean": rules.Flare(0.05, "dragin"),
    "rind_paper": rules.Rind(0.05, "paper"), "rind_released": rules.Rind(0.12),
}  # fmt: skip
WITHIN = {"sentence": SENTENCE} | {n: Method(n, t, LastSentenceQuery()) for n, t in TRIGGERS.items()}


@pytest.mark.parametrize("name", WITHIN)
def test_every_point_is_the_run_at_that_threshold(name, tmp_path):
    method = WITHIN[name]
    curve = curves(tmp_path, method)[name]
    assert (curve["option"], curve["own"]) == ("threshold", method.trigger.threshold)
    assert len(curve["value"]) == len(set(curve["value"])) == 6  # its own, four more, and no retrieval
    for i, threshold in enumerate(curve["value"]):
        real = ran(loop(), method.with_options(threshold=threshold))
        assert curve["retrievals"][i] == pytest.approx(real.cost("retrievals").mean())
        for figure in ("em", "f1", "acc"):
            assert curve[figure][i] == pytest.approx(real.table[figure].mean())
        for cost in TOKENS if curve["priced"][i] else ():
            assert curve[cost][i] == pytest.approx(real.cost(cost).mean())
    assert curve["priced"] == [i > 0 for i in range(6)]  # the first has the closed-book answers
    assert len(set(curve["retrievals"])) > 3 and len(set(curve["em"])) > 1


def test_fixed_length_is_run_at_other_lengths_and_its_query_goes_with_it(tmp_path):
    method = Method("fl", rules.FixedLength(6), LastTokensQuery(n=6))
    curve = curves(tmp_path, method)["fl"]
    assert (curve["option"], curve["own"]) == ("n", 6)
    assert {3.0, 6.0, 30.0} < set(curve["value"])
    assert (curve["value"][0], curve["retrievals"][0]) == (30.0, 1.0)
    for i, n in enumerate(map(int, curve["value"])):
        real = ran(loop(), Method("fl", rules.FixedLength(n), LastTokensQuery(n=n)))
        assert curve["retrievals"][i] == real.cost("retrievals").mean()
        assert curve["em"][i] == real.table["em"].mean()
    fixed = replace(method, query=LastTokensQuery(n=2))  # of its own length: stays
    curves(tmp_path / "own", fixed, rag=(rag := loop()))
    assert {len(q.split()) for q in rag.retriever.queries if "?" not in q} == {2}


def test_points_are_runs_that_go_where_the_curve_has_the_widest_gap_but_for_the_closed_book(tmp_path):
    lm, one = FakeLM(write, entropy), FakeLM(write, entropy)
    reference = ran(loop(), Method("never", rules.Never(), LastSentenceQuery()))
    curve = curves_of(loop(lm), [ran(loop(), SENTENCE)], reference, [], tmp_path, points=1)["sentence"]
    assert (curve["retrievals"][0], curve["em"][0]) == (0.0, pytest.approx(14 / 40))
    assert curve["value"][1:] == [0.55, 0.0]
    ran(loop(one), SENTENCE.with_options(threshold=0.0))
    assert lm.prompts == one.prompts  # of the three points one was run
    several = [curves(tmp_path / str(n), SENTENCE, points=n)["sentence"] for n in (1, 2, 8)]
    widths = [max(b - a for a, b in pairwise(curve["retrievals"])) for curve in several]
    assert widths == sorted(widths, reverse=True) and widths[-1] < widths[0] / 2
    assert several[-1]["retrievals"] == sorted(several[-1]["retrievals"])
    # When nothing is left between, no more is run.
    curve = curves(tmp_path / "two", SENTENCE, points=50, questions=QUESTIONS[1:3])["sentence"]
    assert 3 < len(curve["value"]) < 12


def test_no_points_no_retrievals_or_no_gold_answers_give_no_curves(tmp_path):
    assert curves(tmp_path, SENTENCE, points=0) == {}
    assert curves(tmp_path, SENTENCE, rag=loop(max_retrievals=0)) == {}
    blank = [replace(q, answers=()) for q in QUESTIONS[:4]]
    assert curves(tmp_path, SENTENCE, questions=blank) == {}
    # Of questions some of which have answers, those are run.
    mixed = blank + QUESTIONS[4:]
    some = curves(tmp_path / "some", SENTENCE, questions=mixed)
    assert some == curves(tmp_path / "those", SENTENCE, questions=mixed[4:])
