"""Curves of methods that decide within an answer: their points are runs, and lie apart."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.fake_lm import FakeLM, FakeRetriever, passage
from test_methods import Strategies

from probers.rag.comparison.curves import record_all, rerun_all
from probers.rag.comparison.methods import Method, MethodRun
from probers.rag.comparison.outcomes import TOKENS
from probers.rag.comparison.shared_generations import SharedRAG
from probers.rag.loop import RAG
from probers.rag.queries import AnswerQuery, LastSentenceQuery, LastTokensQuery
from probers.rag.triggers import (
    Adaptive,
    Always,
    Entropy,
    FixedLength,
    FixedSentence,
    Flare,
    LlmJudge,
    Never,
    Oracle,
    Random,
    Rind,
)
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
    found = re.fullmatch(r"(Atlantis|Land|old)(\d+)\.", word)
    if found is None:
        return 0.001
    start = {"Atlantis": 0.5, "Land": 0.1, "old": 0.01}[found[1]]
    return start * (1 + int(found[2]) / 50)


def loop(lm=None, kind=RAG, **options):
    retriever = FakeRetriever(lambda query: [passage(f"Found by {query}")])
    made = {"query": LastSentenceQuery(), "max_new_tokens": 30, "max_retrievals": 3} | options
    return kind(lm or FakeLM(write, entropy), retriever, Never(), **made)


def ran(rag, method, questions=QUESTIONS):
    return MethodRun(questions, method.loop(rag).answer(questions), method=method)


def curves_of(*arguments, **options):
    return {name: rerun.curve for name, rerun in rerun_all(*arguments, **options).items()}


def curves(tmp_path, *methods, points=4, rag=None, questions=QUESTIONS):
    rag = rag or loop()
    runs = [ran(rag, m, questions) for m in methods]
    reference = ran(rag, Method("never", Never(), LastSentenceQuery()), questions)
    recorded = record_all(rag, runs, tmp_path / "recorded")
    return curves_of(rag, runs, reference, recorded, tmp_path / "replay", points=points)


SENTENCE = Method("sentence", Entropy(0.55, "max", "sentence"), LastSentenceQuery())
TRIGGERS = {
    "flare": Flare(0.4), "flare_mean": Flare(0.05, "dragin"), "rind_paper": Rind(0.05, "paper"),
    "rind_released": Rind(0.12),
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


def test_the_first_point_is_the_closed_book_and_costs_nothing(tmp_path):
    reference = ran(loop(), Method("never", Never(), LastSentenceQuery()))
    lm, one = FakeLM(write, entropy), FakeLM(write, entropy)
    found = curves_of(loop(lm), [ran(loop(), SENTENCE)], reference, [], tmp_path, points=1)
    curve = found["sentence"]
    assert (curve["retrievals"][0], curve["em"][0]) == (0.0, pytest.approx(14 / 40))
    assert curve["value"][1:] == [0.55, 0.0]
    ran(loop(one), SENTENCE.with_options(threshold=0.0))
    assert lm.prompts == one.prompts  # of the three points one was run


def test_points_go_where_the_curve_has_the_widest_gap(tmp_path):
    several = [curves(tmp_path / str(n), SENTENCE, points=n)["sentence"] for n in (1, 2, 4, 8)]
    widths = [max(b - a for a, b in pairwise(curve["retrievals"])) for curve in several]
    assert widths == sorted(widths, reverse=True) and widths[-1] < widths[0] / 2
    curve = several[-1]
    assert curve["retrievals"] == sorted(curve["retrievals"])
    assert curve["value"] == sorted(curve["value"], reverse=True)
    # When nothing is left between, no more is run.
    curve = curves(tmp_path / "two", SENTENCE, points=50, questions=QUESTIONS[1:3])["sentence"]
    assert 3 < len(curve["value"]) < 12


def test_fixed_length_is_run_at_other_lengths_and_its_query_goes_with_it(tmp_path):
    method = Method("fl", FixedLength(6), LastTokensQuery(n=6))
    curve = curves(tmp_path, method)["fl"]
    assert (curve["option"], curve["own"]) == ("n", 6)
    assert {3.0, 6.0, 30.0} < set(curve["value"])
    always = ran(loop(), Method("always", Always(), LastTokensQuery()))
    assert (curve["value"][0], curve["retrievals"][0]) == (30.0, 1.0)
    assert curve["em"][0] == always.table["em"].mean()
    for i, n in enumerate(map(int, curve["value"])):
        real = ran(loop(), Method("fl", FixedLength(n), LastTokensQuery(n=n)))
        assert curve["retrievals"][i] == real.cost("retrievals").mean()
        assert curve["em"][i] == real.table["em"].mean()
    fixed = replace(method, query=LastTokensQuery(n=2))  # of its own length: stays
    curves(tmp_path / "own", fixed, rag=(rag := loop()))
    assert {len(q.split()) for q in rag.retriever.queries if "?" not in q} == {2}


@pytest.mark.parametrize("trigger", [FixedSentence(), Adaptive(Strategies())])
def test_rules_are_run_at_smaller_limits(trigger, tmp_path):
    method = Method("rule", trigger, LastSentenceQuery())
    curve = curves(tmp_path, method)["rule"]
    assert (curve["option"], curve["own"], curve["value"]) == ("max_retrievals", 3, [0, 1, 2, 3])
    for limit in (0, 1, 2, 3):
        real = ran(loop(max_retrievals=limit), method)
        assert curve["retrievals"][limit] == real.cost("retrievals").mean()
        assert curve["em"][limit] == real.table["em"].mean()
        assert [curve[cost][limit] for cost in TOKENS] == [real.cost(cost).mean() for cost in TOKENS]
    assert curve["priced"] == [True] * 4
    if trigger == FixedSentence():  # a limit that no question reaches is not halved first
        curve = curves(tmp_path / "far", method, rag=loop(max_retrievals=30))["rule"]
        assert (curve["own"], curve["value"]) == (3, [0, 1, 2, 3])
        assert curve["retrievals"][-1] == ran(loop(max_retrievals=30), method).cost("retrievals").mean()


def test_what_has_a_curve_from_recorded_answers_is_not_run_again(tmp_path):
    whole = Method("entropy", Entropy(0.1), AnswerQuery())
    triggers = [Never(), Always(), Random(0.5), Oracle(), LlmJudge()]  # the judge never fires here
    others = [Method(trigger.name, trigger, AnswerQuery()) for trigger in triggers]
    assert set(curves(tmp_path, whole, SENTENCE, *others)) == {"sentence"}
    # One that never fired was not asked on recorded answers, so that it is run.
    silent = whole.with_options(threshold=99.0)
    found = curves(tmp_path / "silent", silent)["entropy"]
    assert found["retrievals"][0] == 0.0 and found["own"] == 99.0
    assert found["retrievals"][-1] > 0.9


def test_no_points_no_retrievals_or_no_gold_answers_give_no_curves(tmp_path):
    lm = FakeLM(write, entropy)
    assert curves(tmp_path, SENTENCE, points=0, rag=loop(lm)) == {}
    assert curves(tmp_path, SENTENCE, rag=loop(lm, max_retrievals=0)) == {}
    blank = [replace(q, answers=()) for q in QUESTIONS[:4]]
    assert curves(tmp_path, SENTENCE, rag=loop(lm), questions=blank) == {}
    assert not (tmp_path / "replay").exists()
    # Of questions some of which have answers, those are run.
    mixed = blank + QUESTIONS[4:]
    some = curves(tmp_path / "some", SENTENCE, questions=mixed)
    assert some == curves(tmp_path / "those", SENTENCE, questions=mixed[4:])


class Asked(FakeLM):
    """Remembers what each text was to be written from, and what was to end it."""

    asked = ()

    def generate(self, prompts, *, stop=(), **options):
        self.asked = [*self.asked, *((prompt, *map(str, stop)) for prompt in prompts)]
        return super().generate(prompts, stop=stop, **options)


def test_what_runs_share_is_generated_once(tmp_path):
    lm, alone = Asked(write, entropy), Asked(write, entropy)
    methods = [WITHIN["sentence"], WITHIN["flare"], WITHIN["flare_mean"]]
    shared = curves(tmp_path / "a", *methods, rag=loop(lm, SharedRAG))
    assert shared == curves(tmp_path / "b", *methods, rag=loop(alone))
    assert set(lm.asked) == set(alone.asked)
    assert len(lm.asked) == len(set(lm.asked)) < len(alone.asked) / 4
