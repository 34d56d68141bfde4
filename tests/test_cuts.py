"""Where articles are cut, the entity at the head of a continuation, and what is left undecided."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails

from probers.data.articles import open_articles
from probers.data.articles.cuts import CutPlan, cut_article, shortened
from probers.datagen.labels.wiki import Settled, abstain, one_sentence, stop_rule
from probers.testbed.assets import load_articles
from probers.types import Article
from probers.words import EntityMatcher, Match, find_entities, head_entity

ZURICH = Article("a", "Zurich", ("Zurich lies in Switzerland.", "Berlin twinned with Zurich in 1990."))


def fine(text):
    return find_entities(text, fine=True)


def cut(article, per_article=5, within=None, seed=0):
    return cut_article(article, fine, per_article=per_article, within=within, seed=seed)


def plan(path, **options):
    usual = {"per_article": 2, "within": None, "seed": 0}
    return CutPlan(open_articles(str(path)), fine, **(usual | options))


def write(path, *articles):
    return write_lines(path, [{"title": title, "sentences": sentences} for title, sentences in articles])


def test_cuts_are_inside_sentences_and_outside_the_title():
    cuts = cut(ZURICH)
    triples = [(c.entity.text, c.entity.type, c.sentence) for c in cuts]
    assert triples == [("Switzerland", "place", 0), ("1990", "year", 1)]
    assert (cuts[0].before, cuts[0].between, cuts[0].id) == ("Zurich lies in", " ", "a/15")
    assert cut(Article("a", "Zurich", ("Nothing here.",))) == []
    sentence = "She left (in May) for good (1990)."  # after a bracket there is no space to restore
    (triples,) = cut(Article("a", "Anna", (sentence,)), per_article=1, seed=1)
    assert sentence.startswith(triples.before + triples.between + triples.entity.text)


def test_a_plan_counts_articles_and_lists_those_without_an_entity(tmp_path):
    dull = ("Dull", ["nothing is here.", "and nothing follows."])
    arabic = ("مدينة", ["هذه مدينة كبيرة وجميلة.", "يسكنها كثير من الناس."])
    planned = plan(write(tmp_path / "a.jsonl", ("Zurich", ZURICH.sentences), dull, arabic))
    assert [c.entity.text for c in planned] == ["Switzerland", "1990"]
    assert (planned.articles, planned.cuts) == (3, 2)
    assert planned.source.problems.counts == {"no entity": 2}
    assert {title for title, _ in planned.source.problems} == {"Dull", "مدينة"}
    with fails("empty"):  # before any model runs
        plan(write(tmp_path / "dull.jsonl", dull)).peek()
    peeked = plan(tmp_path / "a.jsonl")
    peeked.peek()
    assert [c.id for c in peeked] == [c.id for c in plan(tmp_path / "a.jsonl")]


def test_the_head_of_a_continuation_and_when_it_is_settled():
    for text, head in (
        (" Karsted. It lies in Spain.", "Karsted"), (" the Amber Sea.", "Amber Sea"), (" 1990. More", "1990"),
        (" a small town near Karsted", None), ("", None),
    ):  # fmt: skip
        assert getattr(head_entity(text, fine), "text", None) == head
    assert one_sentence("Karsted. It") and not one_sentence("Karsted.")
    for text, settled in (
        (" Spain", False), (" Spain and then it", False),
        (" Spain and then it went", True),  # three whole words and the beginning of a fourth
        (" a small town", False), (" a small town near", True),  # no entity will come to stand at the head
        (" Duke of the Province of", False),  # may still grow
    ):  # fmt: skip
        assert Settled(fine)(text) == settled, text


def test_settling_changes_no_entity():
    """The head found where the rule stops is the one of the whole text, on every cut of 300 articles."""
    rule, checked = stop_rule(fine, cheap=True), 0
    for article in load_articles()[:300]:
        for settled in cut(article):
            rest = " ".join(article.sentences)[len(settled.before) :]
            ends = [i for i in range(1, len(rest) + 1) if rest[i : i + 1] in (" ", "")]
            text = next((rest[:end] for end in ends if rule(rest[:end])), rest)
            assert head_entity(text, fine) == head_entity(rest, fine)
            checked += len(text) < len(rest)
    assert checked > 300


def words(text):
    return [match.start() for match in re.finditer(r"\S+", text)]


MET = tuple(f"In the spring of {year} they met old Anna Berg again there." for year in range(1500, 1600))
LONG = Article("a", "Years", MET)


@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_a_shortened_cut_is_the_end_of_the_whole_one(tokens):
    """With at most so many tokens, a quarter of them at least, and nothing else of it changed."""
    whole = cut(LONG, 1000)
    for short, before in zip(shortened(whole, tokens, words), whole, strict=True):
        assert before.before.endswith(short.before) and replace(before, before=short.before) == short
        shown = len(words(short.before))
        assert shown <= tokens
        if len(words(before.before)) <= tokens:
            assert short == before
        else:
            assert shown >= max(1, tokens // 4) and not short.before[0].isspace()


def test_near_cuts_begin_alike_and_none_depends_on_the_others():
    """What a shard holds is decided by its cuts, whichever other ones of the article are in it."""
    whole = cut(LONG, 1000)
    together = list(shortened(whole, 64, words))
    assert together == [each for one in whole for each in shortened([one], 64, words)]
    begins = [len(a.before) - len(b.before) for a, b in zip(whole, together, strict=True)]
    assert begins == sorted(begins) and len(set(begins)) < len(whole) / 4
    assert {each.before[:6] for each in together} == {"In the"}  # with a sentence where one is near


MATCHER = EntityMatcher(wordnet="")
LINES = (Path(__file__).parent / "data/abstention.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.split(" | ") for line in LINES if not line.startswith("#")]


def verdict(sentence, gold, continuation):
    """Of what goes on behind the sentence up to ``gold``: the verdict and its stage."""
    article = Article("a", "Nothing", ("It begins here.", sentence))
    here = next(c for c in cut(article, per_article=99) if c.entity.text == gold and c.sentence == 1)
    written = head_entity(continuation, fine)
    match = MATCHER.match(gold, written.text)
    reasons = abstain(here, written, continuation, match, fine, MATCHER)
    if reasons != match:
        assert reasons.verdict == "undecided" and reasons.evidence
    return reasons.verdict, reasons.stage


@pytest.mark.parametrize(("sentence", "gold", "continuation", "expected", "stage"), ROWS)
def test_abstention(sentence, gold, continuation, expected, stage):
    assert verdict(sentence, gold, f" {continuation}") == (expected, stage)


@pytest.mark.parametrize(("sentence", "gold", "continuation", "matched", "doubted"), [
    # Of names only what differs is doubted.
    ("He was born in Bergen today.", "Bergen", " 1930s.", ("equivalent", "string"), False),
    ("He was born in Bergen today.", "Bergen", " 1930s.", ("undecided", "string"), False),
    # WordNet does not join two names that the article tells apart.
    ("Ships sail from China to Taiwan and back.", "China", " Taiwan and", ("equivalent", "wordnet"), True),
    ("Ships sail from China to Taiwan and back.", "China", " Formosa and", ("equivalent", "wordnet"), False),
])  # fmt: skip
def test_what_stands_as_it_was_matched_and_what_is_doubted(sentence, gold, continuation, matched, doubted):
    article = Article("a", "Nothing", ("It begins here.", sentence))
    here = next(c for c in cut(article, per_article=99) if c.entity.text == gold)
    match = Match(*matched, "as told")  # type: ignore[call-arg]
    reasons = abstain(here, head_entity(continuation, fine), continuation, match, fine, MATCHER)
    assert reasons.verdict == "undecided" if doubted else reasons is match
