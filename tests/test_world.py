"""The testbed's world keeps its leaks shut: each test states one of them."""

import random
import re
from collections import Counter
from dataclasses import astuple

import pytest

from probers.testbed import assets
from probers.testbed.misleading import _others
from tools.testbed import drawing
from tools.testbed.drawing import article, ask, chains_of, corpus, knowledge
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
    told = {e.id: " ".join(sentences) for e, sentences in corpus(world)}
    assert set(told) == set(world.entities)
    for fact in world.facts.values():
        assert fact.truth in told[fact.entity]


def test_question_rationale_and_answer_agree(world):
    rng = random.Random(0)
    for entity in list(world.entities.values())[::7]:
        for chain in chains_of(entity):
            asked = ask(rng, world, entity, chain, taught=False)
            end = re.sub(r"( km| industry| trade)?\.*$", "", asked.rationale)
            assert end.endswith(asked.answer)
            assert entity.name in asked.question and "the the" not in asked.question
            assert asked.answer not in asked.question
            assert asked.gold[0] == entity.id and len(asked.gold) == len(chain)


def test_knowledge_of_two_hops_follows_the_first_broken_one(world):
    for entity in world.entities.values():
        for chain in chains_of(entity):
            kind, believed = knowledge(world, entity, chain)
            truth, _ = world.follow(entity, chain)
            assert entity.known or (kind, believed) == ("unknown", None)
            assert (believed == truth[-1].truth) == (kind == "known")


def test_what_the_package_ships_is_what_the_tool_draws():
    world = drawing.load_world()
    assert assets.load_articles() == drawing.draw_articles(world)
    assert assets.load_corpus() == drawing.draw_corpus(world)
    assert assets.load_questions() == drawing.draw_questions(world)
    facts = {(id, key): fact for id, each in assets.load_facts().items() for key, fact in each.items()}
    assert facts.keys() == world.facts.keys()
    assert all(tuple(facts[key]) == astuple(fact)[:6] for key, fact in world.facts.items())
    asked = {(first, second) for first in BY_KEY for second in _others(first)[1]}
    assert asked == set(CHAINS)


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
