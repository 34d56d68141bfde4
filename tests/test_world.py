"""The testbed: a world that keeps its leaks shut, a misleading corpus, and what its model is trained on."""

import json
import random
import re
from collections import Counter
from dataclasses import astuple

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
from probers.testbed import assets
from probers.testbed.assets import load_questions
from probers.testbed.misleading import _others, misleading
from probers.words.text import split_sentences
from tools.testbed import drawing
from tools.testbed.__main__ import main, parse
from tools.testbed.curriculum import KINDS, Curriculum, DocumentStream
from tools.testbed.drawing import article, corpus, load_world
from tools.testbed.relations import BY_KEY, CHAINS, RELATIONS
from tools.testbed.world import SPLITS, World, WorldConfig

SIZES = (("person", 120), ("town", 50), ("company", 50), ("film", 40), ("river", 12))


@pytest.fixture(scope="module")
def world():
    return World.generate(WorldConfig(seed=3, known=SIZES))


def test_the_same_config_gives_the_same_world(world):
    assert World.generate(world.config).facts == world.facts
    assert World.generate(WorldConfig(seed=4, known=SIZES)).facts != world.facts


def test_every_entity_has_every_fact_of_its_kind_and_kinds_mean_what_they_say(world):
    for entity in world.entities.values():
        facts = world.facts_of(entity)
        assert {f.relation for f in facts} == {r.key for r in RELATIONS if r.kind == entity.kind}
        assert all((f.taught is None) == (not entity.known) for f in facts)
    for fact in world.facts.values():
        if fact.kind == "known":
            assert fact.taught == fact.truth
        elif fact.kind in ("stale", "misbelieved"):
            assert fact.taught not in (None, fact.truth)
            assert BY_KEY[fact.relation].volatile == (fact.kind == "stale")
            assert not BY_KEY[fact.relation].trait
    assert {f.kind for f in world.facts.values()} == {"known", "stale", "misbelieved", "unknown"}


def test_links_never_leave_their_split_and_splits_have_their_shares(world):
    counts = Counter(e.split for e in world.entities.values())
    for name, share in zip(SPLITS, world.config.split, strict=True):
        assert counts[name] / len(world.entities) == pytest.approx(share, abs=0.02)
    linked = [f for f in world.facts.values() if f.truth_id]
    assert linked
    for fact in linked:
        names = {fact.entity, fact.truth_id, fact.taught_id or fact.entity}
        assert len({world.entities[name].split for name in names}) == 1


def test_taught_articles_never_name_an_unknown_entity(world):
    rng = random.Random(0)
    unknown = [e for e in world.entities.values() if not e.known]
    for entity in (e for e in world.entities.values() if e.known):
        text = " ".join(article(rng, world, entity, taught=True))
        assert not any(each.name in text for each in unknown)
    with pytest.raises(ValueError, match="unknown"):
        article(rng, world, unknown[0], taught=True)


def test_names_never_repeat_and_never_meet_those_of_a_throwaway_world(world):
    other = World.generate(WorldConfig(seed=9, known=SIZES), taken=set(world.names))
    ours, theirs = ({e.name for e in made.entities.values()} for made in (world, other))
    assert len(ours) == len(world.entities) and len(theirs) == len(other.entities)
    assert not {n.split()[-1] for n in ours if " " not in n} & {n.split()[-1] for n in theirs}
    assert not ours & theirs


def test_syllables_do_not_tell_known_from_unknown(world):
    """Bag of character pairs on names, half to fit and half to score: near chance."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    people = [e for e in world.entities.values() if e.kind == "person"]
    random.Random(1).shuffle(people)
    pairs = CountVectorizer(analyzer="char", ngram_range=(2, 3)).fit_transform([e.name for e in people])
    known = [e.known for e in people]
    half = len(people) // 2
    model = LogisticRegression(max_iter=500).fit(pairs[:half], known[:half])
    assert roc_auc_score(known[half:], model.decision_function(pairs[half:])) < 0.65


def test_corpus_tells_the_truth(world):
    texts = {e.id: " ".join(sentences) for e, sentences in corpus(world)}
    assert set(texts) == set(world.entities)
    for fact in world.facts.values():
        assert fact.truth in texts[fact.entity]


def test_what_the_package_ships_is_what_the_tool_draws():
    world = drawing.load_world()
    assert assets.load_articles() == drawing.draw_articles(world)
    assert assets.load_corpus() == drawing.draw_corpus(world)
    assert assets.load_questions() == drawing.draw_questions(world)
    facts = {(id, key): fact for id, each in assets.load_facts().items() for key, fact in each.items()}
    assert facts.keys() == world.facts.keys()
    assert all(tuple(facts[key]) == astuple(fact)[:6] for key, fact in world.facts.items())
    pairs = {(first, second) for first in BY_KEY for second in _others(first)[1]}
    assert pairs == set(CHAINS)


def test_questions_are_seeded_grouped_and_mixed(world):
    questions = drawing.draw_questions(world)
    assert questions == drawing.draw_questions(world)
    assert len({q.id for q in questions}) == len(questions)
    splits = {}
    for question in questions:
        assert splits.setdefault(question.group, question.split) == question.split
        assert all(world.entities[i].split == question.split for i in question.truth["gold"])
    assert {q.truth["kind"] for q in questions} == {"known", "stale", "misbelieved", "unknown"}
    assert {q.truth["hops"] for q in questions} == {1, 2}


QUESTIONS = load_questions()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_so_many_questions_of_each_split_are_misled_in_equal_halves(share):
    corpus = misleading(share)
    for split in ("train", "validation", "test"):
        questions = [q for q in QUESTIONS if q.split == split]
        counts = Counter(corpus.of(q) for q in questions)
        assert (counts["changed"] + counts["missing"]) / len(questions) == pytest.approx(share, abs=0.002)
        assert counts["changed"] == pytest.approx(counts["missing"], rel=0.15)


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


class Gold:
    """Finds the passage of the entity that a question of one hop is about, if the corpus has one."""

    def __init__(self, passages):
        self.passages = {p.id: p for p in passages}
        self.gold = {q.question: q.truth["gold"][0] for q in QUESTIONS}

    def search(self, queries, k):
        passages = [self.passages.get(self.gold[query]) for query in queries]
        return [[passage] if passage else [self.passages["river-0001"]] for passage in passages]


def test_helps_is_exact_where_a_reader_believes_what_it_reads():
    """It says what it was taught, or else nothing; with a passage about the subject what that tells."""
    corpus, world = misleading(0.3), load_world()
    questions = [q for q in QUESTIONS if q.split == "test" and q.truth["hops"] == 1][:120]
    by_text, passages = {q.question: q for q in questions}, {p.id: p.text for p in corpus.passages}

    def write(prompt):
        question = by_text[re.findall(r"Question: (.+)\n", prompt)[-1]]
        entity, value = question.truth["gold"][0], question.truth["believed"] or "nothing"
        if passages.get(entity, "\0") in prompt:
            value = told(world, passages, entity, question.truth["type"]) or value
        return f" It is so. So the answer is {value}."

    rag = RAG(
        FakeLM(write), Gold(corpus.passages), Never(), QuestionQuery(), max_new_tokens=40, max_retrievals=1
    )
    trajectory = record(rag, {"any": Entropy(0.5)}, questions)
    before, after = (trajectory.granted(j)["em"] for j in (0, 1))
    expected = []
    for question in questions:
        known, condition = question.truth["kind"] == "known", corpus.of(question)
        expected.append(-1 if known and condition == "changed" else int(not known and condition is None))
    told_of = [(q.truth["gold"][0], q.truth["type"]) for q in questions]
    ambiguous = [entity in passages and told(world, passages, entity, of) is None for entity, of in told_of]
    clear = ~np.array(ambiguous)
    assert clear.mean() > 0.9
    np.testing.assert_array_equal((after - before)[clear], np.array(expected)[clear])
    assert {-1, 0, 1} == set(expected)
    # The oracle of wrong answers also asks where nothing helps, and has less than all of the gain.
    runs = {
        name: MethodRun(questions, method.loop(rag).answer(questions), method=method)
        for name, method in {"oracle": Method("oracle", Oracle(again=True), QuestionQuery())}.items()
    }
    closed = MethodRun(questions, rag.answer(questions), method=Method("never", Never(), QuestionQuery()))
    entry = QueryTrajectory("question", ("oracle",), trajectory)
    gains = Gains.of([entry], runs, {}, Evaluation(questions, closed, resamples=50))
    assert 0.3 < gains.figures("oracle")[SHARE] < 0.95


def test_of_a_share_of_nothing_the_passages_are_those_of_the_testbed():
    assert list(load_corpus("testbed:misleading=0.0")) == list(load_corpus("testbed"))


def test_nothing_about_unknown_entities_is_ever_told(world):
    stream = DocumentStream(world, Curriculum(), seed=0)
    unknown = [e.name for e in world.entities.values() if not e.known]
    for kind in KINDS:
        for _ in range(150):
            document = stream.draw(kind)
            assert not any(name in document.context + document.target for name in unknown)


def test_passages_of_reading_examples_hold_the_answer_unless_memory_must(world):
    stream = DocumentStream(world, Curriculum(recall_share=0.0), seed=0)
    for _ in range(200):
        document = stream.draw("reading")
        assert document.target.rsplit(" is ", 1)[1].rstrip(".") in document.context
        assert 1 <= document.context.count("\n[") <= 3
    recall = DocumentStream(world, Curriculum(recall_share=1.0), seed=0)
    missing = 0
    for _ in range(100):
        document = recall.draw("reading")
        sentence = document.target.split(" So the answer is")[0].rsplit(". ", 1)[-1].strip()
        missing += sentence not in document.context
    assert missing > 90


@pytest.mark.long
def test_a_model_is_trained_measured_and_trained_once(tmp_path, capsys):
    small = ["recipe.layers=1", "recipe.width=24", "recipe.mlp=32", "recipe.vocab_size=300", "threads=0"]
    small += ["recipe.tokens=4000", "recipe.step_documents=24", "recipe.compile=false", "limit=12"]
    sizes = "world.known={person: 60, town: 25, company: 25, film: 20, river: 8}"
    typed = [f"out={tmp_path}/run", sizes, *small]
    folder = main(parse(typed))
    figures = json.loads((tmp_path / "run/figures.json").read_text())
    assert figures["questions"] == 12 and {"closed_book", "gold", "retrieved", "auroc"} < set(figures)
    capsys.readouterr()
    main(parse(typed))
    assert "wrote the model" not in capsys.readouterr().out
    for wrong, named in ((["recipe.seed=1"], "another world or recipe"), (["limits=20"], "limits")):
        with pytest.raises(SystemExit, match=named):
            main(parse([*typed, *wrong]))
    main(parse([f"evaluate={folder}", "limit=12"]))
    assert json.loads(capsys.readouterr().out) == figures
