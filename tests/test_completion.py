"""Completions: articles cut before an entity as questions, their passages as corpus, answers by meaning."""

import json
from functools import partial

import pytest
from helpers.artefacts import read_lines, write_lines
from helpers.fake_lm import FakeLM
from helpers.refusals import fails

from probers.cli import known
from probers.cli import main as cli
from probers.data import load_corpus
from probers.data.articles import open_articles
from probers.data.questions import open_questions
from probers.data.questions.completion import Completion
from probers.data.splits import Seen
from probers.evaluation.answers import final_answer, right_by, same_meaning
from probers.types import SPLITS
from probers.words import EntityMatcher, find_entities, normalise

TOWNS = ("Arvik", "Belmar", "Corvan", "Dunholt", "Elstow", "Farnby", "Gorlan", "Hexley", "Istran", "Jorvel")
PLAIN = ("date", "number", "string", "alias", "acronym", "name")


@pytest.fixture
def articles(tmp_path):
    """Ten articles, some in pre-tokenised text; each names a founder, a year and a river."""
    text = (
        "{0} is a small market town that lies in the hills not far from the river Osk{1} .",
        "It was founded by a merchant called Anna Veld{1} , who came there with him in {2} .",
        "In winter it is cold there .",
    )
    lines = [
        {"title": town, "sentences": [sentence.format(town, n, 1500 + n) for sentence in text]}
        for n, town in enumerate(TOWNS)
    ]
    return write_lines(tmp_path / "articles.jsonl", lines)


def asked(file, **options):
    return open_questions("completion", articles=str(file), **options).questions


def test_a_question_is_the_text_before_an_entity_and_the_entity_its_answer(articles):
    texts = {a.title: a for a in open_articles(str(articles))}
    passages = {p.title: p.text for p in load_corpus(articles)}
    questions = asked(articles, per_article=9)
    assert {q.group for q in questions} == set(TOWNS)
    for q in questions:
        assert q.dataset == "completion" and q.split == texts[q.group].split
        # The passage of the same article holds the question and, right behind it, the answer.
        assert passages[q.group].split(q.question)[1].lstrip(' ("').startswith(q.answers[0])
        assert f" {normalise(q.answers[0])} " not in f" {normalise(q.question)} "
        assert len(q.question.split()) >= 8
        assert not q.question.endswith((",", " and", " or", "In"))
    assert {q.truth["type"] for q in asked(articles, per_article=9, kinds=["year"])} == {"year"}
    short = asked(articles, per_article=9, words=8, min_words=12)
    assert short and all(len(q.question.split()) == 8 for q in short)


def test_articles_are_dealt_as_the_labels_of_wiki_deal_them(articles):
    for seed in (0, 1):
        sides = {a.id: a.split for a in open_articles(str(articles), seed=seed)}
        questions = asked(articles, seed=seed)
        assert {q.group: q.split for q in questions} == {q.group: sides[q.group] for q in questions}
        assert set(sides.values()) == set(SPLITS)
        fewer = asked(articles, seed=seed, max_articles=5)
        assert len(fewer) == 5 and all(q in questions for q in fewer)
    assert asked(articles) == asked(articles)
    with open(articles, "a") as file:
        file.write("{broken\n")
    with fails("bad-line", "line 11", "on_bad_line=skip"):
        asked(articles)
    assert len(asked(articles, on_bad_line="skip")) == 10


def test_without_a_cue_the_answer_is_the_entity_at_the_head():
    assert final_answer(" Paris, the capital of France", "") == "Paris"
    assert final_answer(" the river Rhine", "") == ""
    assert final_answer(" 18 July 1995 in Rome", "") == "18 July 1995"
    assert final_answer(" Paris. So the answer is Rome.", "So the answer is") == "Rome"
    # The recogniser of answers is that of the labels.
    for text in (" Paris in May", " 3 July 1990", ' "Dune" by Frank Herbert', " seven books"):
        assert final_answer(text, "") == find_entities("x" + text, fine=True)[0].text


def test_match_is_the_verdict_of_the_matcher():
    matcher = EntityMatcher(stages=PLAIN)
    right = right_by("match", matcher)
    pairs = (("18 July 1995", "July 18, 1995"), ("three", "4"), ("Albert Einstein", "Einstein"))
    for gold, written in (*pairs, ("1995", "18 July 1995")):
        by_hand = matcher.match(gold, written).verdict == "equivalent"
        assert right("", written, (gold,)) == right("", written, ("Zzyzx", gold)) == by_hand
        assert same_meaning(written, (gold,), matcher) == by_hand
    assert right("", "July 18, 1995", ("18 July 1995",)) and not right("", "1995", ("18 July 1995",))
    assert right_by("match", EntityMatcher(stages=PLAIN, partial="equivalent"))("", "1995", ("18 July 1995",))
    assert not right("Paris", "", ("Paris",)) and not right("", "Paris", ())


def test_a_prober_of_an_article_knows_its_completions_and_no_others(articles):
    questions = asked(articles)
    ours, *others = questions
    seen = Seen.of({"train": [("wiki", ours.group, "another cut of it")]})
    assert seen.split_of(ours) == "train"
    assert not any(seen.split_of(q) for q in others)
    # An article's title is no group of another set.
    assert Seen.of({"train": [("nq", ours.group, "")]}).split_of(ours) == ""


@pytest.mark.long
def test_commands_answer_completions_and_judge_them(tmp_path):
    out = tmp_path / "cmp"
    cli.run("compare", [
        f"out={out}", "questions=completion", "questions.articles=testbed", "prompt=completion", "k=1",
        "max_new_tokens=12", "limit=12", "triggers=[never,always,entropy,oracle]", "wrong=match",
        "resamples=100", "matcher.wordnet=''",
    ])  # fmt: skip
    results = json.loads((out / "results.json").read_text())
    assert results["match_stages"] == ["date", "number", "string", "alias", "acronym", "name"]
    by_hand = EntityMatcher(stages=PLAIN)
    gold = {q.id: q.answers for q in open_questions("completion", articles="testbed").questions}
    for name, entry in results["methods"].items():
        traces = read_lines(out / f"traces/{name}.jsonl")
        right = [same_meaning(t["answer"], gold[t["id"]], by_hand) for t in traces]
        assert entry["match"] == pytest.approx(sum(right) / len(right)) and entry["match"] >= entry["em"]
        heads = [final_answer(t["text"], "") for t in traces]
        assert [t["answer"] for t in traces] == heads and not any(t["counters"]["forced"] for t in traces)
    assert results["methods"]["oracle"]["match"] >= results["methods"]["never"]["match"]
    # Methods are ranked by it, also against random retrieval at a budget.
    assert results["headline"] == "match"
    spent = results["random_at_budget"]["entropy"]["match"]
    assert spent["diff"] == pytest.approx(results["methods"]["entropy"]["match"] - spent["value"])


def test_of_completions_the_known_ones_and_so_many_others_are_asked(articles, tmp_path, monkeypatch):
    loads: list[str] = []

    def load(name):
        """A model that writes the years."""
        loads.append(name)
        return FakeLM(lambda prompt: f" {1500 + next(n for n, t in enumerate(TOWNS) if t in prompt)} it was.")

    monkeypatch.setattr(known.CausalLM, "from_pretrained", load)
    monkeypatch.setenv("PROBERS_CACHE", str(tmp_path / "cache"))
    make, file = partial(Completion, articles=articles, per_article=9, known=0.5), tmp_path / "passages.jsonl"
    source = known.known_share(make(corpus_to=str(file), own_passages=0.5))
    opened = open_questions(source)
    questions = opened.questions
    assert opened.notes == (opened.record["selected"],) and "smollm2" in opened.notes[0]
    years = {q.id for q in questions if q.answers[0].isdigit()}
    every = {q.id for q in asked(source.articles, per_article=9) if q.answers[0].isdigit()}
    assert years == every and len(years) == len(TOWNS)
    for split in SPLITS:  # half in every split
        of_split = [q.id in years for q in questions if q.split == split]
        assert sum(of_split) * 2 == len(of_split)
    again = open_questions(known.known_share(make(corpus_to=str(file), own_passages=0.5)))
    assert again.questions == questions and loads == ["smollm2"]
    passages = {p.id: p.text for p in load_corpus(str(file))}
    answers = {q.id: q.answers[0] for q in questions}
    assert passages.keys() < answers.keys() and passages
    assert all(answers[id] in text for id, text in passages.items())
    # Another share of the same set needs no further pass.
    more = open_questions(known.known_share(make(known=0.8))).questions
    assert years < {q.id for q in more} and len(more) < len(questions) and len(loads) == 1
    with fails("labels", "known=0.05"):
        known.known_share(make(known=0.05))
    monkeypatch.setattr(known.CausalLM, "from_pretrained", lambda name: FakeLM(lambda prompt: " nothing."))
    with fails("labels", "none of"):
        known.known_share(make(known_to="other"))
    with fails("unsupported", "known=0.5"):
        open_questions(make())
