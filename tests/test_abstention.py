"""What is left undecided though it differs or agrees, and what is not."""

from pathlib import Path

import pytest

from probers.data.articles.cuts import cut_article
from probers.datagen.labels.wiki import abstain
from probers.types import Article
from probers.words import EntityMatcher, Match, find_entities, head_entity

MATCHER = EntityMatcher(wordnet="")
LINES = (Path(__file__).parent / "data/abstention.txt").read_text(encoding="utf-8").splitlines()
ROWS = [line.split(" | ") for line in LINES if not line.startswith("#")]


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


@pytest.mark.parametrize(("sentence", "gold", "continuation", "expected", "stage"), ROWS)
def test_abstention(sentence, gold, continuation, expected, stage):
    assert verdict(sentence, gold, f" {continuation}") == (expected, stage)


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
