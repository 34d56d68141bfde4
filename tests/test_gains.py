"""Shares of the oracle's gain: against sums over all choices, on worlds whose best order is known."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.fake_lm import FakeRetriever

from probers.rag.comparison.curves import QueryTrajectory, Rerun, Setting
from probers.rag.comparison.gains import GAINED, SAVED, SHARE, Gains
from probers.rag.comparison.methods import Method, MethodRun
from probers.rag.comparison.outcomes import Evaluation, Outcomes
from probers.rag.comparison.trajectories import RetrievalTrajectory, Step
from probers.rag.queries import AnswerQuery
from probers.rag.triggers import Always, Entropy, Oracle, Rind
from probers.types import Question

RIGHT = {  # after 0, 1, .. retrievals
    "never": (0, 0, 0), "helped": (0, 1, 1), "late": (0, 0, 1), "harmed": (1, 0, 0), "known": (1, 1, 1),
    "shaken": (1, 0, 1),
}  # fmt: skip


def world(kinds, scores=None, steps=3):
    """A trajectory of questions of some kinds, with the scores (n, steps) of triggers."""
    questions = [Question(f"q{i:02}", f"Question {i}?", ("yes",)) for i in range(len(kinds))]
    tables = {name: np.broadcast_to(np.array(v, dtype=float).T, (steps, len(kinds))) for name, v in
              (scores or {"any": np.zeros(len(kinds))}).items()}  # fmt: skip
    every = [
        [
            Step("", "yes" if right else "no", {name: float(t[j, i]) for name, t in tables.items()})
            for j, right in enumerate(RIGHT[kind][:steps])
        ]
        for i, kind in enumerate(kinds)
    ]
    return RetrievalTrajectory(questions, every)


def outcomes(questions, right, retrievals, trigger=None, name="m"):
    answers = []
    for q, r, n in zip(questions, right, retrievals, strict=True):
        text = "yes" if r else "no"
        counters = SimpleNamespace(retrievals=n, read_known=False)
        answers.append(SimpleNamespace(text=text, answer=text, counters=counters, rounds=(), question=q))
    if trigger is None:
        return Outcomes(questions, answers)
    return MethodRun(questions, answers, method=Method(name, trigger, AnswerQuery()))


def gains(trajectory, runs, reruns=None, resamples=200):
    questions = trajectory.questions
    closed = outcomes(questions, [s[0].answer == "yes" for s in trajectory.steps], [0] * len(questions))
    evaluation = Evaluation(questions, closed, resamples=resamples)
    entry = QueryTrajectory("answer", tuple(runs), trajectory)
    return Gains.of([entry], runs, reruns or {}, evaluation)


def replayed(trajectory, name, trigger=None):
    """The run of a recorded trigger: only what it costs and its presence are read."""
    n = len(trajectory.questions)
    return outcomes(trajectory.questions, [0] * n, [1] * n, trigger or Entropy(0.5), name)


def area(points):
    x, y = np.array(sorted(points)).T
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


KINDS = ["helped", "late", "harmed", "known", "shaken", "never", "helped"]


def test_the_oracle_is_the_best_of_all_choices_at_every_budget():
    """Every way to retrieve 0, 1 or 2 times for each question; the best mixtures are their upper hull."""
    trajectory = world(KINDS)
    right = np.array([RIGHT[kind] for kind in KINDS])
    best = {}
    for choice in product(range(3), repeat=len(KINDS)):
        budget = sum(choice)
        best[budget] = max(best.get(budget, 0), right[range(len(KINDS)), choice].sum())
    corners = []
    for point in sorted(best.items()):
        while len(corners) > 1 and np.cross(
            np.subtract(corners[-1], corners[-2]), np.subtract(point, corners[-2])
        ) >= 0:  # fmt: skip
            corners.pop()
        corners.append(point)
    mine = gains(trajectory, {"any": replayed(trajectory, "any")}).curves["answer"]
    x, y = (np.array(mine[key]) * len(KINDS) for key in ("retrievals", "em"))
    for budget in np.linspace(0, 14, 57):
        expected = np.interp(budget, *np.transpose(corners))
        assert np.interp(budget, x, y) == pytest.approx(expected)
    at_random = [(j * len(KINDS), right[:, j].sum()) for j in range(3)]
    expected = (area(corners) - area(at_random)) / (len(KINDS) * 2 * len(KINDS))
    result = gains(trajectory, {"any": replayed(trajectory, "any")})
    assert result.record["answer"]["gain"] == pytest.approx(expected)
    highest = max(best.values())
    fewest = min(budget for budget, right in best.items() if right == highest)
    assert (result.record["answer"]["highest"], result.record["answer"]["retrievals"]) == pytest.approx(
        (highest / len(KINDS), fewest / len(KINDS))
    )


ONCE = ["helped"] * 6 + ["harmed"] * 4 + ["known"] * 5 + ["never"] * 5
ORDER = {"helped": 3.0, "known": 2.0, "never": 2.0, "harmed": 1.0}


@pytest.mark.parametrize(("sign", "share"), [(1, 1.0), (-1, -1.0), (0, 0.0)])
def test_the_order_of_the_oracle_has_all_of_its_gain_and_the_reverse_loses_as_much(sign, share):
    scores = np.array([sign * ORDER[kind] for kind in ONCE])
    trajectory = world(ONCE, {"mine": scores}, steps=2)
    result = gains(trajectory, {"mine": replayed(trajectory, "mine")})
    assert result.figures("mine")[SHARE] == pytest.approx(share, abs=1e-12)
    assert result.intervals("mine")[SHARE] == pytest.approx([share, share], abs=1e-9)


def test_a_judge_of_wrong_answers_falls_short_where_retrieving_harms_and_nowhere_else():
    def share(kinds):
        wrong = np.array([1.0 - RIGHT[kind][0] for kind in kinds])
        trajectory = world(kinds, {"wrong": wrong}, steps=2)
        return gains(trajectory, {"wrong": replayed(trajectory, "wrong")}).figures("wrong")[SHARE]

    assert share(["helped"] * 6 + ["known"] * 6) == pytest.approx(1)
    assert 0 < share(["helped"] * 6 + ["known"] * 6 + ["never"] * 6) < 0.9


def test_methods_without_recorded_scores_are_mixed_with_never_and_all_retrievals():
    """An oracle of wrong answers has one point; a method run again has one for each setting."""
    trajectory = world(ONCE, {"any": np.zeros(len(ONCE))}, steps=2)
    q = trajectory.questions
    wrong = np.array([RIGHT[kind][0] == 0 for kind in ONCE])
    after = np.array([RIGHT[kind][1] for kind in ONCE])
    oracle = outcomes(q, after, wrong.astype(int), Oracle(again=True), "oracle")
    helped = np.array([kind == "helped" for kind in ONCE])
    within = outcomes(
        q, np.where(helped, 1, [RIGHT[k][0] for k in ONCE]), helped.astype(int), Rind(1.0), "rind"
    )
    closed = outcomes(q, [RIGHT[kind][0] for kind in ONCE], [0] * len(q))
    reruns = {"rind": Rerun(Setting("threshold", 1.0, 2.0), {1.0: within, 2.0: closed}, closed)}
    result = gains(trajectory, {"oracle": oracle, "rind": within}, reruns)
    start, end = sum(RIGHT[k][0] for k in ONCE), int(after.sum())
    whole = area([(0, start), (6, start + 6), (16, start + 6), (20, end)]) - area([(0, start), (20, end)])
    for name, point in {"oracle": (11, int(after.sum())), "rind": (6, start + 6)}.items():
        mine = area([(0, start), point, (20, end)]) - area([(0, start), (20, end)])
        assert result.figures(name)[SHARE] == pytest.approx(mine / whole)
    alone = gains(trajectory, {"rind": within})  # with no curve of its own its one point is on the same lines
    assert alone.figures("rind")[SHARE] == result.figures("rind")[SHARE]


def test_retrievals_saved_at_the_accuracy_of_always_and_accuracy_gained_at_its_budget():
    scores = np.array([ORDER[kind] for kind in ONCE])
    trajectory = world(ONCE, {"mine": scores, "flat": np.zeros(len(ONCE))}, steps=2)
    after = [RIGHT[kind][1] for kind in ONCE]
    runs = {name: replayed(trajectory, name) for name in ("mine", "flat")}

    def figures(name, right, retrievals):
        always = outcomes(trajectory.questions, right, retrievals, Always(), "always")
        return gains(trajectory, {"always": always, **runs}).figures(name)

    # Closed-book 9 of 20, always 11: two of the six that are helped are as good, and all six give 15 at 6.
    assert figures("mine", after, [1] * 20)[SAVED] == pytest.approx((20 - 2) / 20)
    assert figures("mine", after, [1] * 20)[GAINED] == pytest.approx(0.0)  # at its budget all is retrieved
    assert figures("flat", after, [1] * 20)[SAVED] == pytest.approx(0.0)
    assert figures("always", after, [1] * 20) == {SHARE: pytest.approx(0.0), SAVED: None, GAINED: None}
    assert figures("mine", after, [0, 1] * 10)[GAINED] == pytest.approx(4 / 20)
    assert figures("mine", [1] * 20, [1] * 20)[SAVED] is None  # never reached
    assert gains(trajectory, runs).figures("mine")[GAINED] is None


def test_a_world_where_choosing_gains_nothing_or_with_another_retriever_has_no_shares():
    trajectory = world(["helped"] * 5, {"mine": np.arange(5.0)}, steps=2)
    result = gains(trajectory, {"mine": replayed(trajectory, "mine")})
    assert result.figures("mine")[SHARE] is None and "gains nothing" in result.notes()[0]
    trajectory = world(ONCE, {"mine": np.zeros(len(ONCE))}, steps=2)
    run = replayed(trajectory, "mine")
    assert "reaches 0.750 with 0.30 retrievals" in gains(trajectory, {"mine": run}).notes()[0]
    method = Method("mine", Entropy(0.5), AnswerQuery(), retriever=FakeRetriever(lambda query: []))
    other = MethodRun(run.questions, run.answers, method=method)
    assert gains(trajectory, {"mine": other}).figures("mine")[SHARE] is None


def test_the_interval_is_of_paired_resamples_of_questions():
    """Against resamples computed one by one."""
    kinds, rng = ONCE * 2, np.random.default_rng(3)
    scores = np.array([ORDER[kind] for kind in kinds]) + rng.normal(0, 1, len(kinds))
    trajectory = world(kinds, {"mine": scores}, steps=2)
    whole = gains(trajectory, {"mine": replayed(trajectory, "mine")}, resamples=300)
    before, after = (np.array([RIGHT[kind][j] for kind in kinds]) for j in (0, 1))
    draws = np.random.default_rng(0)
    values = []
    for _ in range(300):
        drawn = draws.integers(len(kinds), size=len(kinds))
        a, b, s = before[drawn], after[drawn], scores[drawn]
        chance = area([(0, a.sum()), (len(a), b.sum())])

        def gain(order, a=a, b=b, chance=chance):
            points = np.concatenate([[0], np.cumsum((b - a)[order])]) + a.sum()
            return area(zip(range(len(points)), points, strict=True)) - chance

        mine = [(0, a.sum())]
        for level in np.unique(s)[::-1]:
            mine.append(((s >= level).sum(), np.where(s >= level, b, a).sum()))
        values.append((area(mine) - chance) / gain(np.argsort(a - b, kind="stable")))
    np.testing.assert_allclose(whole.intervals("mine")[SHARE], np.quantile(values, [0.025, 0.975]), atol=1e-9)
