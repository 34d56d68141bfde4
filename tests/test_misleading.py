"""The testbed's misleading corpus: so many questions, in halves, and every right action is known."""

import re
from collections import Counter

import numpy as np
import pytest
from helpers.fake_lm import FakeLM

from probers.data.corpus import load_corpus
from probers.rag.comparison.curves import QueryTrajectory
from probers.rag.comparison.gains import SHARE, Gains
from probers.rag.comparison.methods import Method, MethodRun
from probers.rag.comparison.outcomes import Evaluation
from probers.rag.comparison.trajectories import record
from probers.rag.loop import RAG
from probers.rag.queries import QuestionQuery
from probers.rag.triggers import Entropy, Never, Oracle
from probers.testbed.assets import load_questions
from probers.testbed.misleading import misleading
from probers.words.text import split_sentences
from tools.testbed.drawing import load_world

QUESTIONS = load_questions()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_so_many_questions_of_each_split_are_misled_in_equal_halves(share):
    corpus = misleading(share)
    for split in ("train", "validation", "test"):
        asked = [q for q in QUESTIONS if q.split == split]
        found = Counter(corpus.of(q) for q in asked)
        assert (found["changed"] + found["missing"]) / len(asked) == pytest.approx(share, abs=0.002)
        assert found["changed"] == pytest.approx(found["missing"], rel=0.15)


def test_true_passages_stay_and_false_ones_hold_no_value_that_is_true_or_taught():
    corpus, world = misleading(0.3), load_world()
    now = {p.id: p for p in corpus.passages}
    for passage in load_corpus("testbed"):
        condition = corpus.conditions.get(passage.id)
        if condition is None:
            assert now[passage.id] == passage
        elif condition == "missing":
            assert passage.id not in now
        else:
            entity, text = world.entities[passage.id], now[passage.id].text
            assert entity.name in text and text != passage.text
            assert len(split_sentences(text)) == len(split_sentences(passage.text))
            for fact in world.facts_of(entity):
                assert not re.search(rf"\b{re.escape(fact.truth)}\b", text.replace(entity.name, ""))
                assert fact.taught is None or not re.search(rf"\b{re.escape(fact.taught)}\b", text)


def told(world, passages, entity, relation):
    """The value that the entity's passage tells for a relation; None without the passage or the value."""
    values = {f.truth for f in world.facts.values() if f.relation == relation}
    text = passages.get(entity)
    text = text and text.replace(world.entities[entity].name, "")
    said = [
        value for value in values if text and value in text and re.search(rf"\b{re.escape(value)}\b", text)
    ]
    return said[0] if len(said) == 1 else None


def test_no_chain_of_facts_reaches_the_answer_of_a_misled_question_and_a_larger_share_misleads_more():
    corpus, world = misleading(0.3), load_world()
    passages = {p.id: p.text for p in corpus.passages}
    by_name = {entity.name: entity.id for entity in world.entities.values()}
    misled = [q for q in QUESTIONS if corpus.of(q)]
    for question in [q for q in misled if q.truth["hops"] == 2][:60]:
        at, value = question.truth["gold"][0], None
        for relation in question.truth["type"].split(" > "):
            value = None if at is None else told(world, passages, at, relation)
            at = by_name.get(value)
        assert value not in question.answers
    assert {q.id for q in misled} <= {q.id for q in QUESTIONS if misleading(0.7).of(q)}
    assert misleading(0.3, seed=1).conditions != corpus.conditions


class Gold:
    """Finds the passage of the entity that a question of one hop is about, if the corpus has one."""

    def __init__(self, passages):
        self.passages = {p.id: p for p in passages}
        self.gold = {q.question: q.truth["gold"][0] for q in QUESTIONS}

    def search(self, queries, k):
        found = [self.passages.get(self.gold[query]) for query in queries]
        return [[passage] if passage else [self.passages["river-0001"]] for passage in found]


def test_helps_is_exact_where_a_reader_believes_what_it_reads():
    """It says what it was taught, or else nothing; with a passage about the subject what that tells."""
    corpus, world = misleading(0.3), load_world()
    asked = [q for q in QUESTIONS if q.split == "test" and q.truth["hops"] == 1][:120]
    by_text, passages = {q.question: q for q in asked}, {p.id: p.text for p in corpus.passages}

    def write(prompt):
        question = by_text[re.findall(r"Question: (.+)\n", prompt)[-1]]
        entity, value = question.truth["gold"][0], question.truth["believed"] or "nothing"
        if passages.get(entity, "\0") in prompt:
            value = told(world, passages, entity, question.truth["type"]) or value
        return f" It is so. So the answer is {value}."

    rag = RAG(
        FakeLM(write), Gold(corpus.passages), Never(), QuestionQuery(), max_new_tokens=40, max_retrievals=1
    )
    trajectory = record(rag, {"any": Entropy(0.5)}, asked)
    before, after = (trajectory.granted(j)["em"] for j in (0, 1))
    expected = []
    for question in asked:
        known, condition = question.truth["kind"] == "known", corpus.of(question)
        expected.append(-1 if known and condition == "changed" else int(not known and condition is None))
    told_of = [(q.truth["gold"][0], q.truth["type"]) for q in asked]
    ambiguous = [entity in passages and told(world, passages, entity, of) is None for entity, of in told_of]
    clear = ~np.array(ambiguous)
    assert clear.mean() > 0.9
    np.testing.assert_array_equal((after - before)[clear], np.array(expected)[clear])
    assert {-1, 0, 1} == set(expected)
    # The oracle of wrong answers also asks where nothing helps, and has less than all of the gain.
    runs = {
        name: MethodRun(asked, method.loop(rag).answer(asked), method=method)
        for name, method in {"oracle": Method("oracle", Oracle(again=True), QuestionQuery())}.items()
    }
    closed = MethodRun(asked, rag.answer(asked), method=Method("never", Never(), QuestionQuery()))
    entry = QueryTrajectory("question", ("oracle",), trajectory)
    gains = Gains.of([entry], runs, {}, Evaluation(asked, closed, resamples=50))
    assert 0.3 < gains.figures("oracle")[SHARE] < 0.95


def test_of_a_share_of_nothing_the_passages_are_those_of_the_testbed():
    assert list(load_corpus("testbed:misleading=0.0")) == list(load_corpus("testbed"))
