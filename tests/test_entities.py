"""Entity spans by rules and their comparison."""

import hashlib
import os
import re
from pathlib import Path

import pytest
from helpers.artefacts import needs_articles, read_lines
from helpers.refusals import fails
from hypothesis import given
from hypothesis import strategies as st

from probers.words import Recogniser, find_entities
from probers.words.text import detokenise_sentences

LETTERS = {kind[0]: kind for kind in ("name", "date", "year", "work", "organisation", "place")}
LETTERS["#"] = "number"


def annotated(file):
    """Texts of a file with their spans by type, which stand in it as [type letter|span]."""
    lines = (Path(__file__).parent / "data" / file).read_text(encoding="utf-8").splitlines()
    for line in lines:
        text, spans = "", {}
        for part in re.split(r"(\[[a-z#]\|[^\]]+\])", line):
            if part.startswith("["):
                spans[len(text), len(text) + len(part) - 4] = LETTERS[part[1]]
                part = part[3:-1]
            text += part
        if not line.startswith("# "):
            yield text, spans


@pytest.mark.parametrize(("text", "spans"), annotated("entity_forms.txt"))
def test_forms(text, spans):
    entities = find_entities(text)
    assert {(e.start, e.end): e.type for e in entities} == spans
    assert all(text[e.start : e.end] == e.text for e in entities)


def score(cases):
    """(precision, recall, F1) of exact spans, and the share right of the types that say more than "name"."""
    hits = n_found = wanted = sure = right = 0
    for text, gold in cases:
        ours = {(e.start, e.end): e.type for e in find_entities(text, fine=True)}
        both = ours.keys() & gold.keys()
        hits, n_found, wanted = hits + len(both), n_found + len(ours), wanted + len(gold)
        sure += sum(ours[s] != "name" for s in both)
        right += sum(ours[s] == gold[s] for s in both if ours[s] != "name")
    precision, recall = hits / n_found, hits / wanted
    return precision, recall, 2 * precision * recall / (precision + recall), right / sure


def test_the_rules_on_sentences_written_for_them():
    cases = list(annotated("annotated_sentences.txt"))  # not all of them are within the rules' reach
    precision, recall, f1, types = score(cases)
    assert len(cases) >= 40 and min(precision, recall, f1) >= 0.85 and types >= 0.9
    # Converse: spans one character off are misses.
    shifted = [(text, {(a + 1, b): kind for (a, b), kind in gold.items()}) for text, gold in cases]
    assert score([*shifted, ("In 1999.", {(3, 7): "year"})])[2] < 0.1


@needs_articles
def test_the_rules_on_annotated_articles():
    """Held-out articles were first seen after the rules were done."""
    articles = {}
    for row in read_lines(Path(os.environ["PROBERS_WIKI_ARTICLES"]) / "wiki_articles.jsonl"):
        articles.setdefault(row["title"], []).append(row["sentences"])
    cases = {True: [], False: []}
    for row in read_lines(Path(__file__).parent / "data" / "annotated_entities.jsonl"):
        window = slice(*row["sentences"])
        texts = [" ".join(detokenise_sentences(s)[window]) for s in articles[row["title"]]]
        text = next((t for t in texts if hashlib.sha256(t.encode()).hexdigest() == row["sha256"]), None)
        assert text is not None, f"{row['title']}: the text is not the one that was annotated"
        cases[row["held_out"]].append((text, {(a, b): kind for a, b, kind in row["spans"]}))
    assert (len(cases[False]), len(cases[True])) == (34, 16)
    for each in (cases[False], cases[True], cases[False] + cases[True]):
        _, _, f1, types = score(each)
        assert f1 >= 0.85 and types >= 0.9


_PIECES = st.sampled_from(
    ["The", "Kim", "of", "and", "12", "km", "May", "1999", '"', "'", ".", ",", "the", "St.", "I's", ":", "-"]
)


@given(st.text(max_size=80) | st.lists(_PIECES).map(" ".join))
def test_spans_are_in_order_apart_and_inside_the_text(text):
    last = 0
    for entity in find_entities(text, fine=True):
        assert last <= entity.start < entity.end
        assert text[entity.start : entity.end] == entity.text == entity.text.strip()
        last = entity.end


def test_auto_is_the_rules_and_a_pipeline_is_one_that_is_named():
    recogniser = Recogniser()
    assert recogniser.name == "rules"
    assert recogniser("He met Ida Morrow.") == find_entities("He met Ida Morrow.")
    with fails("missing-extra", "spacy download en_core_web_sm", "recogniser=rules"):
        Recogniser("spacy")
    for kind in ("flair", "rules:en_core_web_sm", "spacy:en_core_web_none"):
        with fails("unknown-choice", "recogniser="):
            Recogniser(kind)


def test_spacy_where_a_pipeline_is_named(monkeypatch, caplog):
    """A blank English pipeline that knows a few entities, in place of an installed one."""
    spacy = pytest.importorskip("spacy")
    blank = spacy.blank("en")
    kinds = {"the Acme Bank": "ORG", "1999": "DATE", "last May": "DATE", "Norway's": "GPE", "$5": "MONEY"}
    blank.add_pipe("entity_ruler").add_patterns([{"label": k, "pattern": p} for p, k in kinds.items()])
    monkeypatch.setattr("probers.words.recogniser._load", {"en_core_web_sm": blank}.__getitem__)
    text = "In 1999 and last May the Acme Bank paid $5 for Norway's ships."
    entities = Recogniser("spacy:en_core_web_sm")(text)
    assert "by the NER of en_core_web_sm" in caplog.text
    assert [e.text for e in entities] == ["1999", "last May", "Acme Bank", "$5", "Norway"]
    assert [e.type for e in entities] == ["year", "date", "name", "number", "name"]
    fine = [e.type for e in Recogniser("spacy:en_core_web_sm", fine=True)(text)]
    assert fine == ["year", "date", "organisation", "number", "place"]
    assert all(text[e.start : e.end] == e.text for e in entities)
    assert Recogniser("auto").name == "rules"  # even so
