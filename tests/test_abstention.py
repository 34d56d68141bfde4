"""What is left undecided though it differs or agrees, and what is not."""

import pytest

from probers.data.articles.cuts import cut_article
from probers.datagen.labels.wiki import abstain
from probers.types import Article
from probers.words import EntityMatcher, Match, find_entities, head_entity, same_kind

MATCHER = EntityMatcher(wordnet="")


def fine(text):
    return find_entities(text, fine=True)


def verdict(sentence, gold, continuation):
    """Of what goes on behind the sentence up to ``gold``: the verdict and its stage."""
    article = Article("a", "Nothing", ("It begins here.", sentence))
    cuts = cut_article(article, fine, per_article=99, within=None, seed=0)
    cut = next(c for c in cuts if c.entity.text == gold and c.sentence == 1)
    written = head_entity(continuation, fine)
    match = MATCHER.match(gold, written.text)
    found = abstain(cut, written, continuation, match, fine, MATCHER)
    if found != match:
        assert found.verdict == "undecided" and found.evidence
    return found.verdict, found.stage


@pytest.mark.parametrize(("sentence", "gold", "continuation", "expected"), [
    # Another kind says nothing about the article's entity; types of one kind contradict each other.
    ("Many fled during the Great Hunger.", "Great Hunger", " 1930s and", ("undecided", "type")),
    ("She was the fifth of them.", "fifth", " 2014 winner", ("undecided", "type")),
    ("Many fled to Norway by ship.", "Norway", " three ports", ("undecided", "type")),
    ("It fell on 12 May 1930 at last.", "12 May 1930", " 1931 or", ("different", "date")),
    ("It fell on 12 May 1930 at last.", "12 May 1930", " Christmas Day 1931", ("different", "date")),
    ("The band met in Oslo Records.", "Oslo Records", " Paris, and", ("different", "string")),
    ("It has 20 rooms and more.", "20", " 30 rooms", ("different", "number")),
    ("It closed in 1930 for good.", "1930", " 1930 for", ("equivalent", "date")),
    # The same number of something else is not the same; of the same, or of what nobody named, it is.
    ("It is their third album of all.", "third", " third wife", ("undecided", "counted")),
    ("It ran for 200 long nights.", "200", " 200 ships", ("undecided", "counted")),
    ("It ran for 200 years.", "200 years", " 200 ships", ("undecided", "counted")),
    ("It is 34 km away from it.", "34 km", " 34 kilometres to", ("equivalent", "number")),
    ("It is their third album of all.", "third", " third albums", ("equivalent", "number")),
    ("It is their third album of all.", "third", " third of", ("equivalent", "number")),
    ("It is 34 km away from it.", "34 km", " 34 km to", ("equivalent", "number")),
    ("More than 30,000 were made.", "30,000", " 100 years ago", ("undecided", "counted")),
    ("It has 50 rooms today.", "50", " 70 doors and", ("undecided", "counted")),
    ("It has 50 rooms today.", "50", " 70 rooms and", ("different", "number")),
    ("It has 50 rooms today.", "50", " 70, and", ("different", "number")),
    ("It is 34 km away from it.", "34 km", " 34,000 feet to", ("different", "number")),
    # One word before a noun says of what kind a thing is, and only against such a word anything false.
    ("It was published by Lindmo in 1985.", "Lindmo", " the Finnish company", ("undecided", "modifier")),
    ("It was published by Lindmo in 1985.", "Lindmo", " Ostrem in", ("different", "string")),
    ("It was published by Lindmo in 1985.", "Lindmo", " Acme Games company", ("different", "string")),
    ("She is a Swedish writer now.", "Swedish", " Finnish writer", ("different", "string")),
    ("He left her in 1930 for good.", "1930", " 1930 because", ("equivalent", "date")),
    # A part of it lies in the region; another part, and what only sounds like it, does not.
    ("It lies in North Somerset today.", "North Somerset", " Somerset, England", ("undecided", "region")),
    ("It lies in Somerset today.", "Somerset", " North Somerset, England", ("different", "name")),
    ("It lies in North Somerset today.", "North Somerset", " South Somerset,", ("different", "name")),
    ("It lies in New York today.", "New York", " York, England", ("different", "name")),
    # After "In" a sentence is open; after a word with content it is not.
    ("In 2014, he won it.", "2014", " 2012, he", ("undecided", "opening")),
    ("On the 4 July he won it.", "4 July", " 5 July", ("undecided", "opening")),
    ("In 2014, he won it.", "2014", " 2014, he", ("equivalent", "date")),
    ("As of early 2014, he has it.", "2014", " 2012, he", ("undecided", "opening")),
    ("It sold well and as of 2014 has gone.", "2014", " 2012 has", ("undecided", "opening")),
    ("It was in 2014 that he won.", "2014", " 2012 that", ("different", "date")),
    ("Founded in 2014, it grew.", "2014", " 2012, it", ("different", "date")),
    # What the article says later in its sentence is no invention, in whatever order; what it said is.
    ("He was born in Ballin, Dublin.", "Ballin", " Dublin, Ireland", ("undecided", "order")),
    ("They are Anna Berg, Ida Dahl and Ola Moe.", "Ida Dahl", " Ola Moe, and", ("undecided", "order")),
    ("They are Anna Berg, Ida Dahl and Ola Moe.", "Ola Moe", " Ida Dahl.", ("different", "string")),
    ("They are Anna Berg, Ida Dahl and Ola Moe.", "Ida Dahl", " Per Lie.", ("different", "string")),
])  # fmt: skip
def test_abstention(sentence, gold, continuation, expected):
    assert verdict(sentence, gold, continuation) == expected


@pytest.mark.parametrize(("sentences", "match", "expected"), [
    # What comes in another sentence is no excuse.
    (("He was born in Bergen today.", "He lives in Dublin."), ("Bergen", " Dublin."), None),
    # Of names only what differs is doubted.
    (("He was born in Bergen today.",), ("Bergen", " 1930s.", "equivalent", "string"), None),
    (("He was born in Bergen today.",), ("Bergen", " 1930s.", "undecided", "string"), None),
    # WordNet does not join two names that the article tells apart.
    (("Ships sail from China to Taiwan and back.",), ("China", " Taiwan and", "equivalent", "wordnet"),
     "undecided"),
    (("Ships sail from China to Taiwan and back.",), ("China", " Formosa and", "equivalent", "wordnet"),
     None),
])  # fmt: skip
def test_what_stands_as_it_was_matched_and_what_is_doubted(sentences, match, expected):
    gold, continuation, *settled = match
    article = Article("a", "Nothing", ("It begins here.", *sentences))
    cuts = cut_article(article, fine, per_article=99, within=None, seed=0)
    cut, written = next(c for c in cuts if c.entity.text == gold), head_entity(continuation, fine)
    matched = Match(*settled, "as told") if settled else MATCHER.match(gold, written.text)  # type: ignore[call-arg]
    found = abstain(cut, written, continuation, matched, fine, MATCHER)
    assert found is matched if expected is None else found.verdict == expected


def test_kinds():
    names, times = ("name", "work", "organisation", "place"), ("date", "year")
    for kind in (names, times, ("number",)):
        assert all(same_kind(a, b) for a in kind for b in kind)
    assert not any(same_kind(a, b) or same_kind(b, a) for a in names for b in (*times, "number"))
    assert not any(same_kind(a, "number") for a in times)
