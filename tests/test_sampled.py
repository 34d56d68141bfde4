"""Triggers of drawn answers and further questions: planted distributions, shared samples, replay, stores."""

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.fake_lm import SPEC, FakeLM, FakeRetriever, passage
from helpers.refusals import exits, fails

from probers import CausalLM
from probers.cli.components import Component
from probers.datagen.labels.cot import BY_ENTROPY
from probers.rag import triggers as rules
from probers.rag.build import check_readable, unsupported
from probers.rag.comparison.outcomes import Outcomes
from probers.rag.comparison.shared_generations import GenerationCache, SharedRAG
from probers.rag.comparison.trajectories import record, tune
from probers.rag.loop import RAG
from probers.rag.protocol import UNANSWERED
from probers.rag.queries import AnswerQuery
from probers.rag.triggers import Eigenscore, LexicalSimilarity, SelfConsistency, SemanticEntropy, Verbalised
from probers.store.store import FeatureStore
from probers.train.before_after import _SAMPLED, _further
from probers.types import Question

#: What is drawn for each town, five times; the greedy answer is the first.
DRAWN = [
    ("Paris", "Paris", "Paris", "Paris", "Paris"),
    ("Paris", "Paris", "Paris", "Rome", "Rome"),
    ("Oslo", "Rome", "Paris", "Bern", "Wien"),
    ("John Adams", "John Quincy Adams", "John Adams", "John Adams", "John Adams"),
]
ENTROPIES = [-sum(p * math.log(p) for p in shares) for shares in ([1.0], [0.6, 0.4], [0.2] * 5, [0.8, 0.2])]
SHARES = [1.0, 0.6, 0.2, 0.8]
QUESTIONS = [Question(f"q{i}", f"Where is town {i}?", ("Paris",)) for i in range(24)]


def town(prompt):
    return int(prompt.rsplit("Where is town ", 1)[1].split("?")[0])


def sentence(answer):
    return f" It lies in {answer}. So the answer is {answer}."


@dataclass(eq=False)
class Planted(FakeLM):
    """Writes the first answer of a town's list, and draws the others with known frequencies."""

    write: object = None
    drawn: int = 0

    def __post_init__(self):
        self.write = self.greedy

    def greedy(self, prompt):
        if "Percent:" in prompt:
            return f" {[95, 50, 5][town(prompt) % 3]}%" if town(prompt) % 4 != 3 else " quite sure"
        if prompt.count("hint"):
            return sentence("Paris")
        return sentence(DRAWN[town(prompt) % 4][0])

    def generate(self, prompts, *, sampling=None, **how):
        if sampling is None:
            return super().generate(prompts, **how)
        self.drawn += len(prompts)
        seen, texts = Counter(), []
        for prompt in prompts:
            texts.append(sentence(DRAWN[town(prompt) % 4][(seen[prompt] + sampling.seed) % 5]))
            seen[prompt] += 1
        rest = iter(texts)
        self.write = lambda prompt: next(rest)
        made = super().generate(prompts, **how)
        self.write = self.greedy
        return made


def loop(kind=RAG, trigger=None, **more):
    retriever = FakeRetriever(lambda query: [passage("hint")])
    return kind(Planted(), retriever, trigger or rules.Never(), AnswerQuery(), max_new_tokens=30, **more)


def decisions(rag, questions=QUESTIONS[:4]):
    answers = rag.answer(questions)
    return [next(r.decision for r in answer.rounds if r.decision) for answer in answers], answers


@pytest.mark.parametrize("trigger, expected", [
    (SemanticEntropy(1.0), ENTROPIES), (SelfConsistency(0.5), [1 - share for share in SHARES]),
])  # fmt: skip
def test_signals_of_planted_distributions_are_their_closed_forms(trigger, expected):
    results, answers = decisions(loop(trigger=trigger))
    assert [d.score for d in results] == pytest.approx(expected)
    assert [d.fire for d in results] == [score > trigger.threshold for score in expected]
    assert [answer.retrievals > 0 for answer in answers] == [d.fire for d in results]
    evidence = results[3].evidence
    assert evidence["undecided"] == 1 and evidence["clusters"] == [0, 1, 0, 0, 0]
    assert evidence["samples"][1] == sentence("John Quincy Adams")
    # Every sample is a cost, and the prompt once.
    plain, counters = loop().answer(QUESTIONS[:1])[0].counters, answers[0].counters
    assert counters.generations == 1 + 5 and answers[0].retrievals == 0
    assert counters.tokens == plain.tokens * 6 and counters.read_tokens == plain.read_tokens * 2


def test_similar_words_and_states_score_low():
    words = [d.score for d in decisions(loop(trigger=LexicalSimilarity()))[0]]
    assert words[0] == 0 < words[1] < words[2]
    rag = loop(trigger=Eigenscore())
    rag.lm.state = lambda text: [float(b) for b in text[-5:-1].encode()]
    spread = [d.score for d in decisions(rag)[0]]
    assert spread[0] < spread[1] < spread[2]


def test_a_stated_confidence_is_missing_and_never_zero():
    results, answers = decisions(loop(trigger=Verbalised()))
    assert [d.score for d in results] == pytest.approx([0.05, 0.5, 0.95, 0.5])
    assert results[3].evidence == {"reply": " quite sure", "stated": None}
    # One call more for each answer; the one that fired is asked again about each of three new ones.
    assert [answer.counters.generations for answer in answers] == [2, 2, 8, 2]
    # In training it counts as the mean.
    table = pd.DataFrame({"verbalised": [0.2, 0.8, None, 0.9], "verbalised_tokens": [3, 3, 4, 2]})
    examples = SimpleNamespace(table=table, rows={"train": np.array([0, 1])})
    (results,) = _further({"stated": _SAMPLED["stated confidence"]}, examples)
    assert results.scores.tolist() == pytest.approx([-0.2, -0.8, -0.5, -0.9])
    assert (results.cost.calls, results.cost.tokens) == (1, 3)


def test_triggers_with_equal_settings_share_their_samples():
    rag = loop(SharedRAG, cache=GenerationCache())
    triggers = [SemanticEntropy(9.0), SelfConsistency(9.0), LexicalSimilarity(9.0), Eigenscore(99.0)]
    runs = [replace(rag, trigger=trigger).answer(QUESTIONS) for trigger in triggers]
    assert rag.lm.drawn == 5 * len(QUESTIONS)
    # Each is charged for them as if it ran alone.
    assert len({answers[0].counters.generations for answers in runs}) == 1
    replace(rag, trigger=SemanticEntropy(9.0, seed=1)).answer(QUESTIONS)
    assert rag.lm.drawn == 10 * len(QUESTIONS)
    # Without room all samples of a prompt are drawn again.
    rag = loop(SharedRAG, cache=GenerationCache(megabytes=0.01))
    first, again = (decisions(replace(rag, trigger=SemanticEntropy(9.0)), QUESTIONS)[0] for _ in range(2))
    assert [d.score for d in first] == [d.score for d in again] and rag.lm.drawn > 5 * len(QUESTIONS)


def test_replayed_thresholds_are_runs_at_these_thresholds():
    rag = loop(SharedRAG, cache=GenerationCache())
    trigger = SemanticEntropy(0.5)
    trajectory = record(rag, {"entropy": trigger}, QUESTIONS)
    for threshold in (-1.0, 0.6, 1.0, 9.0):
        mine = replace(rag, trigger=replace(trigger, threshold=threshold))
        ran, replayed = Outcomes(QUESTIONS, mine.answer(QUESTIONS)), trajectory.replay("entropy", threshold)
        assert replayed["em"].tolist() == ran.table["em"].tolist()
        assert replayed["retrievals"].tolist() == ran.cost("retrievals").tolist()
    # And chosen on validation: entropies of right answers are 0 and .67, of wrong ones 1.6 and .5.
    tuned = tune(loop(), {"entropy": SemanticEntropy(), "stated": Verbalised()}, QUESTIONS)
    assert 0.0 < tuned["entropy"].threshold < 1.7 and set(tuned) == {"entropy", "stated"}


def test_engines_that_lack_something_are_refused_beforehand():
    query = Component.of("query", "answer")
    for name, server, vllm in (
        ("semantic_entropy", True, False), ("eigenscore", False, False), ("p_true", False, True),
        ("verbalised", True, True),
    ):  # fmt: skip
        trigger = Component.of("trigger", name)
        assert (unsupported("http://localhost:1", trigger, query) is None) == server
        assert (unsupported("vllm", trigger, query) is None) == vllm
        assert unsupported("transformers", trigger, query) is None
    with fails("layers"):
        Eigenscore(layer=9).check(SPEC, None)
    server = Planted()
    server.spec = replace(SPEC, layers=0, width=0)
    with fails("unsupported"):
        check_readable(server, Eigenscore(), AnswerQuery())
    check_readable(server, SemanticEntropy(), AnswerQuery())


def test_an_empty_answer_fires_without_samples():
    rag = loop(trigger=SemanticEntropy(9.0), max_retrievals=0)
    rag.lm.greedy = rag.lm.write = lambda prompt: ""
    (decision,), _ = decisions(rag, QUESTIONS[:1])
    assert decision.score == UNANSWERED and decision.fire and rag.lm.drawn == 0


def test_a_store_has_the_detectors_and_labels_by_the_cut(tmp_path):
    typed = ["--source", "cot", "limit=16", "layers=[4]", "samples=3", "temperature=2", f"label={BY_ENTROPY}"]
    assert not exits("datagen", [*typed, f"out={tmp_path}/store"])
    table = FeatureStore.open(tmp_path / "store").table()
    assert table["sample_calls"].eq(3).all() and table["sample_tokens"].gt(3).all()
    assert table["self_consistency"].between(0, 1).all() and table["p_true"].between(0, 1).all()
    high, low = (table[table["correct"] == label]["semantic_entropy"] for label in (0, 1))
    assert len(high) and len(low) and high.min() > low.max()
    assert set(table["gold_right"]) == {0, 1} and (table["gold_right"] == table["em"]).all()
    assert table["question_frequency"].notna().any()


def test_samples_that_cannot_be_drawn_are_refused(tmp_path):
    for more in (
        [f"label={BY_ENTROPY}"], ["samples=1"], ["samples=5", "engine=vllm"], ["samples=5", "temperature=0"],
    ):  # fmt: skip
        assert exits("datagen", ["--source", "cot", "limit=8", f"out={tmp_path}/x", *more]) == 2
    assert not (tmp_path / "x").exists()


def test_a_comparison_tells_what_could_not_be_read(tmp_path):
    typed = ["limit=4", "validation=12", "triggers=[never,semantic_entropy,verbalised]", "sweep=0"]
    typed += ["resamples=100", "max_new_tokens=24", "max_retrievals=1", "examples=1", f"out={tmp_path}"]
    assert not exits("compare", typed)
    calls = json.loads((tmp_path / "results.json").read_text())["methods"]["semantic_entropy"]["generations"]
    assert calls >= 6
    # The testbed's model follows no instructions.
    notes = json.loads((tmp_path / "report_data.json").read_text())["notes"]
    assert any(note.startswith("verbalised: ") and "state no number" in note for note in notes)
    trace = json.loads((tmp_path / "traces" / "semantic_entropy.jsonl").read_text().splitlines()[0])
    assert len(trace["rounds"][0]["decision"]["evidence"]["samples"]) == 5


def test_the_model_is_asked_about_its_own_answer():
    lm = CausalLM.from_pretrained("testbed")
    question = Question("q", "Who does Lena Zaser work for?", ("?",))
    for samples, calls in ((0, 2), (2, 4)):
        rag = RAG(lm, FakeRetriever(lambda query: []), rules.PTrue(9.0, samples=samples), AnswerQuery())
        ((decision,), (answer,)) = decisions(rag, [question])
        assert 0 <= decision.score <= 1 and not decision.fire
        assert answer.counters.generations == calls
        assert len(decision.evidence.get("samples", ())) == samples
