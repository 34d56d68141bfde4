"""Replayed thresholds and budgets equal runs; what methods share is given again and nothing else."""

import time
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from helpers.fake_lm import FakeLM, FakeRetriever, passage

from probers.model.language_model import SentenceEnd
from probers.rag.comparison.outcomes import TOKENS, Outcomes
from probers.rag.comparison.shared_generations import GenerationCache, SharedRAG
from probers.rag.comparison.trajectories import RetrievalTrajectory, Step, record, record_once
from probers.rag.loop import RAG
from probers.rag.queries import AnswerQuery, QuestionQuery
from probers.rag.triggers import Always, Entropy, Never, Oracle, Random
from probers.types import Needs, Question

QUESTIONS = [Question(f"q{i}", f"Where is town {i}?", (f"Land{i}",)) for i in range(60)]


def town(prompt):
    return int(prompt.rsplit("Where is town ", 1)[1].split("?")[0])


def write(prompt):
    i = town(prompt)
    seen = prompt.count("hint")
    if i % 10 == 3 and seen:  # a right answer that retrieval spoils
        return " It is Elsewhere. So the answer is Elsewhere."
    right = seen >= (0, 1, 2, 0, 1, 9)[i % 6]  # retrievals after which it is right; 9 is never
    return f" Stage{seen} it is. So the answer is {f'Land{i}' if right else f'Nowhere{seen}'}."


def find(query):
    """One more hint with every stage that the query shows, up to two: then nothing new."""
    return [passage("hint0"), passage("hint1")][: 1 + ("Stage1" in query or "Stage2" in query)]


def entropy(word):
    known = {"Elsewhere.": 0.3, "Nowhere0.": 3.0, "Nowhere1.": 1.5, "Nowhere2.": 2.0}
    return known.get(word, 0.01 * (sum(map(ord, word)) % 90))


def loop(lm=None, kind=RAG, **options):
    made = {"query": AnswerQuery(), "max_new_tokens": 30, "max_retrievals": 3} | options
    return kind(lm or FakeLM(write, entropy), FakeRetriever(find), Never(), **made)


def sharing(lm, *, megabytes=1024, **options):
    return loop(lm, SharedRAG, cache=GenerationCache(megabytes=megabytes), **options)


def assert_runs_alike(replayed, outcomes):
    for figure in ("em", "f1", "acc"):
        assert replayed[figure].tolist() == outcomes.table[figure].tolist(), figure
    for cost in ("retrievals", "tokens", "read_tokens"):
        assert replayed[cost].tolist() == outcomes.cost(cost).tolist(), cost


def run(rag, trigger, query=None):
    mine = replace(rag, trigger=trigger, query=query or rag.query)
    return Outcomes(QUESTIONS, mine.answer(QUESTIONS))


@pytest.fixture(scope="module")
def trajectory():
    return record(loop(), {"mean": Entropy(0.5), "max": Entropy(0.5, reduction="max")}, QUESTIONS)


def test_a_replayed_threshold_is_the_run_at_that_threshold(trajectory):
    counts = set()
    for reduction, threshold in product(("mean", "max"), (-1.0, 0.05, 0.2, 0.4, 0.8, 1.6, 2.5, 99.0)):
        got = trajectory.replay(reduction, threshold)
        assert_runs_alike(got, run(loop(), Entropy(threshold, reduction=reduction)))
        counts |= set(got["retrievals"])
    assert counts == {0.0, 1.0, 2.0, 3.0}
    for granted in range(4):  # a grant for all is random retrieval at that rate
        assert_runs_alike(trajectory.granted(granted), run(loop(), Random(rate=granted)))


def test_random_retrieval_is_the_mean_of_many_draws_matched_to_the_budget(trajectory):
    draws = [run(loop(), Random(rate=1.3, seed=seed)) for seed in range(60)]
    point = trajectory.at_random(float(np.mean([d.cost("retrievals").mean() for d in draws])))
    for figure in ("em", "acc"):
        means = np.array([d.table[figure].mean() for d in draws])
        assert point[figure].mean() == pytest.approx(means.mean(), abs=4 * means.std() / 60**0.5)
    assert 0.1 < point["em"].mean() < 0.9
    most = trajectory.granted(3)
    for budget in (0.0, 0.3, 1.7, 50.0):  # up to what questions take
        point = trajectory.at_random(budget)
        assert point["retrievals"].mean() == pytest.approx(min(budget, most["retrievals"].mean()))
    assert point["em"].tolist() == most["em"].tolist()


def test_no_trigger_of_whole_answers_with_the_same_query_beats_the_oracle(trajectory):
    best = run(loop(), Oracle(again=True)).table["em"]
    for name in trajectory.triggers:
        for threshold in trajectory.sweep(name)["threshold"]:
            assert (trajectory.replay(name, threshold)["em"] <= best).all()
    assert (run(loop(), Random(rate=2)).table["em"] <= best).all()
    # With the question each question's answer is the better one of never and always.
    once = run(loop(), Oracle(), QuestionQuery()).table["em"]
    both = np.maximum(run(loop(), Never()).table["em"], run(loop(), Always()).table["em"])
    assert once.tolist() == both.tolist()
    assert once.mean() < best.mean()


def test_a_trajectory_by_hand():
    questions = [Question(f"q{i}", "?", ("yes",)) for i in range(2)]
    steps = [
        [Step("", "no", {"t": 0.9}), Step("", "yes", {"t": 0.1}), Step("", "no", {"t": 0.8})],
        # Its second search brought nothing new.
        [Step("", "yes", {"t": 0.5}), Step("", "no", {"t": 0.7}), Step("", "no", {"t": 0.7})],
    ]
    trajectory = RetrievalTrajectory(questions, steps)
    curve = trajectory.sweep("t")
    # Thresholds: below all, then .1, .5, .7, .8, .9.
    assert curve["threshold"] == pytest.approx([-0.9, 0.1, 0.5, 0.7, 0.8, 0.9])
    assert curve["retrievals"] == [2.0, 1.5, 0.5, 0.5, 0.5, 0.0]
    assert curve["em"] == [0.0, 0.5, 1.0, 1.0, 1.0, 0.5]
    assert trajectory.random_curve(steps=1)["em"] == [0.5, 0.5, 0.0]
    assert trajectory.at_random(1.5)["em"].tolist() == [0.5, 0.0]
    # Tokens are unknown in files from before they were recorded, and where a server does not tell those read.
    assert "tokens" not in curve
    for read, known in ((20, True), (0, False)):
        costed = RetrievalTrajectory(
            questions[:1], [[Step("", "no", {}, 5, read), Step("", "no", {}, 9, 3 * read)]]
        )
        assert ({*TOKENS} & costed.granted(1).keys() == {*TOKENS}) == known


@dataclass(frozen=True)
class Asking(Entropy):
    """Draws two texts after one prompt before it judges, which changes nothing."""

    def __call__(self, generation, state):
        drawn = state.generate([state.question.question] * 2, max_new_tokens=4)
        state.spend(drawn[0])
        state.spend(drawn[1], read=False)
        return super().__call__(generation, state)


class Reading(Asking):
    """Has every text completed to an answer before it judges, also those that are then discarded."""

    reads_answer = True


def test_what_a_trigger_asks_the_model_for_is_in_its_own_tokens_alone():
    short = {"answer_tokens": 3, "max_new_tokens": 6}  # final answers have to be asked for
    kinds = {"asking": Asking, "mean": Entropy, "reading": Reading}
    trajectory = record(loop(**short), {name: kind(0.5) for name, kind in kinds.items()}, QUESTIONS)
    for threshold in (-1.0, 0.4, 0.8, 99.0):
        for name, kind in kinds.items():
            real = run(loop(**short), kind(threshold))
            assert_runs_alike(trajectory.replay(name, threshold), real)
            assert any(answer.counters.forced for answer in real.answers)
    more, plain = (sum(trajectory.replay(name, 0.8)[c].mean() for c in TOKENS) for name in ("asking", "mean"))
    assert more > plain + 8
    low, high = trajectory.granted(1), trajectory.granted(2)
    budget = (low["retrievals"].mean() + high["retrievals"].mean()) / 2
    for cost in TOKENS:
        assert trajectory.at_random(budget)[cost].mean() == pytest.approx((low[cost] + high[cost]).mean() / 2)


def test_recorded_answers_are_kept_and_damaged_ones_are_named_and_made_again(tmp_path, caplog):
    file, triggers = tmp_path / "replay" / "answer.json", {"entropy": Entropy(0.5)}
    lm = FakeLM(write, entropy)
    first = record_once(file, loop(lm), triggers, QUESTIONS, progress="replay")
    whole = file.read_bytes()
    for blob, anew in ((whole, False), (whole[:-20], True), (whole.replace(b"0.", b"1.", 1), True)):
        file.write_bytes(blob)
        lm.prompts.clear()
        assert record_once(file, loop(lm), triggers, QUESTIONS, progress="replay") == first
        assert bool(lm.prompts) == anew and file.read_bytes() == whole
    assert caplog.text.count("answer.json") == 2


def test_the_same_is_generated_once_and_results_are_the_same():
    plain, shared = FakeLM(write, entropy), FakeLM(write, entropy)
    remembering = sharing(shared)
    for trigger in (Never(), Random(rate=2), Entropy(0.4), Oracle(again=True), Random(rate=2)):
        a, b = run(loop(plain), trigger), run(remembering, trigger)
        for one, other in zip(a.answers, b.answers, strict=True):
            assert (one.text, one.answer, one.rounds) == (other.text, other.answer, other.rounds)
            assert one.counters.generations == other.counters.generations
    assert sorted(shared.prompts) == sorted(set(plain.prompts))
    assert len(plain.prompts) > 2 * len(shared.prompts)
    # Seconds are those of a method alone.
    rag = sharing(FakeLM(lambda prompt: time.sleep(0.002) or write(prompt), entropy))
    assert all(run(rag, Never()).cost("seconds").mean() >= 0.002 for _ in range(2))


NOTHING = Needs()


def ask(lm, needs=NOTHING, prompts=("Where is town 1?",), limit=20, stop=()):
    return lm.generate(list(prompts), max_new_tokens=limit, needs=needs, stop=stop)


def test_another_limit_stop_or_need_is_generated_anew():
    inner = FakeLM(write, entropy, state=lambda text: [1.0, 2.0, 3.0, 4.0])
    lm, made = sharing(inner), 0
    for new, times, options in (
        (1, 2, {}), (1, 1, {"limit": 3}), (1, 1, {"stop": ["So"]}), (1, 1, {"needs": Needs.of((1,))}),
        (0, 1, {}), (1, 2, {"stop": [SentenceEnd(1)]}),
        (2, 2, {"stop": [lambda text: text.endswith(".")]}),  # functions cannot be compared: nothing is kept
    ):  # fmt: skip
        for _ in range(times):
            (generation,) = ask(lm, **options)
        made += new
        assert len(inner.prompts) == made
        assert "limit" not in options or len(generation.token_ids) == 3
        assert options.get("stop") != ["So"] or generation.text == " Stage0 it is. "
        assert (generation.state is not None) == ("needs" in options)
    # Limits may differ, and equal prompts in one call are one.
    inner = FakeLM(write, entropy)
    prompts = ["Where is town 1?", "Where is town 2?", "Where is town 1?", "Where is town 1?"]
    got = ask(sharing(inner), prompts=prompts, limit=[20, 20, 20, 3])
    assert [len(g.token_ids) for g in got] == [8, 8, 8, 3]
    assert got[2] is got[0] and len(inner.prompts) == 3
