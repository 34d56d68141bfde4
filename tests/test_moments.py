"""What is known before a text and after it: which detectors stand where, and what they are compared with."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from test_train_figures import card_of, evaluator_of, make_examples, make_trained

from probers.evaluation import metrics as m
from probers.evaluation.baselines import pooled_auroc
from probers.prober.figures import Cost
from probers.train.before_after import COMBINED, WITH_SIGNALS, moment_figures
from probers.train.evaluate import Evaluator, summarise
from probers.train.examples import Examples

AFTER = {"mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum"}
OF_BEFORE = {"entropy before", "probability before", "margin before"}


def with_signals(examples: Examples, *, read: bool = False) -> Examples:
    """Examples of entities of 1 to 8 tokens, the longer the likelier wrong, and signals from before them.

    Args:
        examples: without them.
        read: texts need not begin with the likeliest token.
    """
    rng = np.random.default_rng(5)
    n, wrong = len(examples.table), examples.wrong
    highest = 1 / (1 + np.exp(-rng.normal(1.0 - 0.6 * wrong, 1.0)))
    first = highest * np.where(rng.random(n) < 0.5, 0.5, 1.0) if read else highest
    return replace(examples, table=examples.table.assign(
        n_tokens=rng.integers(1, 6, n) + 3 * wrong * (rng.random(n) < 0.5),
        entropy_before=-np.log(highest) * (1 + rng.random(n)), max_prob_before=highest,
        logprob_before=np.log(first), margin_before=highest * rng.random(n),
    ))  # fmt: skip


def figures_of(examples: Examples, pool: str, position: str = "entity") -> tuple[Any, Evaluator, dict]:
    trained = make_trained(examples, position=position, curve=False)
    trained.bank.spec = replace(trained.bank.spec, pool=pool)
    evaluator = evaluator_of(examples)
    return trained, evaluator, moment_figures(trained, examples, evaluator.bootstrap).to_dict()


@pytest.fixture(scope="module")
def examples() -> Examples:
    return with_signals(make_examples())


def names(figures: dict, kind: str) -> set[str]:
    return {name for name, entry in figures["detectors"].items() if entry["kind"] == kind}


def test_a_head_stands_beside_the_signals_of_its_moment(examples: Examples) -> None:
    _, _, early = figures_of(examples, "predicting")
    assert early["before"]["head"] == early["after"]["head"] == "all layers"  # still known afterwards
    assert names(early["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert names(early["after"], "signal") == {*AFTER, "length", COMBINED}
    assert names(early["before"], "joined") == names(early["after"], "joined") == {WITH_SIGNALS}
    _, _, late = figures_of(examples, "mean")
    # A head that reads written tokens is not known before them, and nothing is joined with it.
    assert late["before"]["head"] is None and names(late["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert not names(late["before"], "head") and not names(late["before"], "joined")
    assert not late["before"]["pairs"] and late["after"]["head"] == "all layers"
    assert any("pool=predicting" in note for note in late["notes"])


def test_a_head_of_the_prompt_stands_in_the_table_before_the_answer(examples: Examples) -> None:
    _, _, early = figures_of(examples, "prompt", "generated")
    assert early["position"] == "answer" and early["before"]["head"] == early["after"]["head"] == "all layers"
    assert names(early["before"], "joined") == {WITH_SIGNALS} and early["before"]["pairs"]
    assert any("before it, still known then" in note for note in early["notes"])
    texts = replace(examples, table=examples.table.drop(columns="condition"))
    for given, told in ((examples, True), (texts, False)):  # labelled texts have no such store
        _, _, late = figures_of(given, "mean", "generated")
        assert late["before"]["head"] is None
        assert any("pool=prompt" in note for note in late["notes"]) == told


def test_figures_and_differences_are_those_of_the_scores(examples: Examples) -> None:
    """Within length, length itself is worth nothing."""
    trained, evaluator, figures = figures_of(examples, "predicting")
    rows, wrong, before = evaluator.test, evaluator.wrong, figures["before"]
    lengths = np.minimum(examples.column("n_tokens", "test"), 5)
    head, entropy = trained.saved.scores[rows], examples.column("entropy_before", "test")
    measures = {"all": partial(m.auroc, wrong), "length": lambda s, w: pooled_auroc(wrong, s, lengths, w)}
    for key, measure in measures.items():
        for name, scores in (("all layers", head), ("entropy before", entropy)):
            found = before["detectors"][name][key]
            interval = evaluator.bootstrap.interval(scores, measure)
            assert found["auroc"] == pytest.approx(interval.value)
            assert found["ci95"] == pytest.approx(interval.limits, abs=1e-6)
        found = before["pairs"]["all layers vs entropy before"][key]
        expected = evaluator.bootstrap.difference(head, entropy, measure)
        assert found["diff"] == pytest.approx(expected.value)
        assert found["ci95"] == pytest.approx(expected.limits, abs=1e-6)
    assert before["pairs"][f"{WITH_SIGNALS} vs all layers"]["all"]["ci95"][0] > 0
    assert set(figures["strata"]) == {"length", "type", "length and type"}
    strata = figures["strata"]["length"]["strata"]
    assert list(strata) == ["1", "2", "3", "4", "5+"]
    assert sum(entry["n"] for entry in strata.values()) == len(examples.rows["test"])
    length = figures["after"]["detectors"]["length"]
    assert length["all"]["auroc"] > 0.6
    assert abs(length["length"]["auroc"] - 0.5) < abs(length["all"]["auroc"] - 0.5)


def test_the_first_tokens_probability_of_a_text_that_was_read_is_known_after_it() -> None:
    _, _, figures = figures_of(with_signals(make_examples(), read=True), "mean")
    assert names(figures["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert names(figures["after"], "signal") == {*AFTER, "length", "first log-prob", COMBINED}


def test_a_store_without_signals_from_before_is_read_as_it_was() -> None:
    trained = make_trained(make_examples(), curve=False)
    moments = summarise(trained, evaluator_of(make_examples()), {}).to_dict()["moments"]
    assert not moments["before"]["detectors"]
    assert names(moments["after"], "signal") == {*AFTER, "length", COMBINED}


def test_a_detector_that_asks_the_model_says_what_that_costs(examples: Examples) -> None:
    trained = make_trained(examples, position="entity", curve=False)
    first, *others = [control for control in trained.controls if control.name in AFTER]
    trained.controls = [replace(first, cost=Cost(calls=5, tokens=40.5)), *others]
    figures = summarise(trained, evaluator_of(examples), {})
    detectors = figures.to_dict()["moments"]["after"]["detectors"]
    costs = {name: entry["cost"] for name, entry in detectors.items()}
    assert costs.pop(first.name) == {"calls": 5, "tokens": 40.5}
    assert costs and all(cost == {"calls": 0, "tokens": 0} for cost in costs.values())
    assert "| 5 calls, 40.5 tokens |" in card_of(trained, figures)
