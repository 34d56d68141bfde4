"""Entity spans by rules and their comparison."""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
from artefacts import needs_articles
from hypothesis import given
from hypothesis import strategies as st
from refusals import fails

from probers.words import EntityMatcher, Recogniser, find_entities, parse_date, parse_number
from probers.words.text import detokenise_sentences


@pytest.mark.parametrize(("text", "expected"), [
    ("Faye Baltom works for Gromfok Works.", [("Faye Baltom", "name"), ("Gromfok Works", "name")]),
    ("The Gatrar River is 580 km long.", [("Gatrar River", "name"), ("580 km", "number")]),
    ("He was born on 18 July 1995 in Berlin.", [("18 July 1995", "date"), ("Berlin", "name")]),
    ("It opened in 1884 and has 1,500,000 people.", [("1884", "year"), ("1,500,000 people", "number")]),
    ("At the University of the Arts in Ard.", [("University of the Arts", "name"), ("Ard", "name")]),
    ("In March 1912 Johann van der Berg", [("March 1912", "date"), ("Johann van der Berg", "name")]),
    ("They rose to 1.5 million in 1999.", [("1.5 million", "number"), ("1999", "year")]),
    ("Ana and Boris went home.", [("Ana", "name"), ("Boris", "name")]),
    ("Élodie Żak met Óscar.", [("Élodie Żak", "name"), ("Óscar", "name")]),
    ("nothing here at all", []), ("", []),
    ("He left. They stayed. When it rained, nobody came.", []),  # function words are no names
])  # fmt: skip
def test_spans(text, expected):
    found = find_entities(text)
    assert [(e.text, e.type) for e in found] == expected
    assert all(text[e.start : e.end] == e.text for e in found)


def test_parsers_refuse_what_they_cannot_read():
    assert parse_date("May West") is None and parse_date("the 18th of July") == (None, 7, 18)
    assert parse_number("about five") is None and parse_number("2 billion") == (2e9, "")
    with pytest.raises(ValueError, match="empty"):
        EntityMatcher().match("Berlin", " ")


LETTERS = {kind[0]: kind for kind in ("name", "date", "year", "work", "organisation", "place")}
LETTERS["#"] = "number"

#: Sentences with their spans as [type letter|span]; not all of them are within the rules' reach.
ANNOTATED = Path(__file__).with_name("data").joinpath("annotated_sentences.txt").read_text(encoding="utf-8")


def _annotated():
    for line in ANNOTATED.splitlines():
        text, spans = "", {}
        for part in re.split(r"(\[[a-z#]\|[^\]]+\])", line):
            if part.startswith("["):
                spans[len(text), len(text) + len(part) - 4] = LETTERS[part[1]]
                part = part[3:-1]
            text += part
        yield text, spans


def score(cases):
    """(precision, recall, F1) of exact spans, and the share right of the types that say more than "name"."""
    hits = found = wanted = sure = right = 0
    for text, gold in cases:
        ours = {(e.start, e.end): e.type for e in find_entities(text, fine=True)}
        both = ours.keys() & gold.keys()
        hits, found, wanted = hits + len(both), found + len(ours), wanted + len(gold)
        sure += sum(ours[s] != "name" for s in both)
        right += sum(ours[s] == gold[s] for s in both if ours[s] != "name")
    precision, recall = hits / found, hits / wanted
    return precision, recall, 2 * precision * recall / (precision + recall), right / sure


def test_the_rules_on_sentences_written_for_them():
    cases = list(_annotated())
    precision, recall, f1, types = score(cases)
    assert len(cases) >= 40 and min(precision, recall, f1) >= 0.85 and types >= 0.9
    # Converse: spans one character off are misses.
    shifted = [(text, {(a + 1, b): kind for (a, b), kind in gold.items()}) for text, gold in cases]
    assert score([*shifted, ("In 1999.", {(3, 7): "year"})])[2] < 0.1


@needs_articles
@pytest.mark.parametrize("held_out", [False, True, None])
def test_the_rules_on_annotated_articles(held_out):
    """``held_out`` articles were first seen after the rules were done."""
    articles = {}
    path = Path(os.environ["PROBERS_WIKI_ARTICLES"]) / "wiki_articles.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        articles.setdefault(row["title"], []).append(row["sentences"])
    cases = []
    annotated = Path(__file__).parent / "data" / "annotated_entities.jsonl"
    for line in annotated.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        window = slice(*row["sentences"])
        texts = [" ".join(detokenise_sentences(s)[window]) for s in articles[row["title"]]]
        text = next((t for t in texts if hashlib.sha256(t.encode()).hexdigest() == row["sha256"]), None)
        assert text is not None, f"{row['title']}: the text is not the one that was annotated"
        if held_out in (None, row["held_out"]):
            cases.append((text, {(a, b): kind for a, b, kind in row["spans"]}))
    assert len(cases) == {False: 34, True: 16, None: 50}[held_out]
    precision, recall, f1, types = score(cases)
    figures = f"precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f}, types {types:.3f}"
    print(f"{len(cases)} articles: {figures}")
    assert f1 >= 0.85 and types >= 0.9


@pytest.mark.parametrize(("text", "expected"), [
    ("It is by July 18 , 1995 at last", ["July 18 , 1995"]),
    ("on 1995-07-18, the 1990s, May 11–14, 1993", ["1995-07-18", "1990s", "May 11–14, 1993"]),
    ("from 500 BC to AD 70 and Sept. 5, 1990", ["500 BC", "AD 70", "Sept. 5, 1990"]),
    ("the 18th and early 19th century, by 1913–16", ["18th and early 19th century", "1913–16"]),
    ("she may march in august company", []),
    ("$1.5 million, 12,000, 40 km and 98.6 °F", ["$1.5 million", "12,000", "40 km", "98.6 °F"]),
    ("one of them first met twenty-two of us", ["twenty-two"]),
    ('a "very big" dog', []),
    ('in "The Big Dog (Part 2)" and', ["The Big Dog (Part 2)"]),
    ("by Kim of the Northern League and Ola", ["Kim of the Northern League", "Ola"]),
    ("by Kim Dahl of the Northern League", ["Kim Dahl", "Northern League"]),
    ("the 17th Brigade at U.S. Route 199", ["17th Brigade", "U.S. Route 199"]),
    ("the mid-1950s Swedish-born Tove", ["1950s", "Swedish", "Tove"]),
    ("an iPod in 2 boxes", ["iPod", "2"]),
    # A number word with a capital belongs to the name it stands before; without one it counts.
    ("before the First World War and Second World War", ["First World War", "Second World War"]),
    ("the second World Cup, his third Grammy Award", ["second", "World Cup", "third", "Grammy Award"]),
    ("by Third Eye Gin near Six Flags", ["Third Eye Gin", "Six Flags"]),
    ("the Second solo tour of two Irish men", ["Second", "two", "Irish"]),
    # An ordinal in digits belongs to units, streets and the like, but counts editions.
    ("the 4th Infantry Division, the 9th Ohio Infantry", ["4th Infantry Division", "9th Ohio Infantry"]),
    ("the 7th Bergen Film Festival", ["7th", "Bergen Film Festival"]),
    ("the 47th The Red Wing show", ["47th", "The Red Wing"]),
    ("by 20th Century Wolf of the 20th Century", ["20th Century Wolf", "20th Century"]),
    # Four digits belong to what numbers or dates itself, and are a year everywhere else.
    ("at Urban Road 1938 and FM 1709", ["Urban Road 1938", "FM 1709"]),
    ("the Song Contest 2004, the Fire Act 1961", ["Song Contest 2004", "Fire Act 1961"]),
    ("in Norway 1938 and the 2004 Song Contest", ["Norway", "1938", "2004", "Song Contest"]),
    ("the 1914-1918 war, a 1960-like 1984-85 show", ["1914", "1918", "1960", "1984-85"]),
    ("by Norway 3000 men", ["Norway", "3000"]),
    ("since the summer of 2001 and Fall 1969", ["summer of 2001", "Fall 1969"]),
    ("the summer heat, in fall 1,969 men", ["1,969"]),
    ("at 7:30 pm, 10 a.m. or 21:55 for 16 days", ["7:30 pm", "10 a.m.", "21:55", "16 days"]),
    ("the 10 amber ships, a ratio of 2:1", ["10", "2", "1"]),
    ("the 3D ride 20S, the Kolm 76ers", ["Kolm 76ers"]),
    ("in 3 days, about 20 ships", ["3 days", "20"]),
    ("to Washington, D.C., and Salem, Ohio", ["Washington, D.C.", "Salem", "Ohio"]),
    ("in the Nine Years' War with Norway's King", ["Nine Years' War", "Norway", "King"]),
    ("a species, P. alba, in C major by P. Albers", ["P. Albers"]),
    # Names end with their sentence.
    ("he fell in World War I. His wife left", ["World War I"]),
    ("in the U.S. They moved to Salem Co. In Bergen it ends", ["U.S.", "Salem Co.", "Bergen"]),
    ("she saw Stop! Or My Cat Will Bite twice", ["Stop! Or My Cat Will Bite"]),
    ("he met J. R. Holloway in St. Louis", ["J. R. Holloway", "St. Louis"]),
])  # fmt: skip
def test_forms(text, expected):
    assert [e.text for e in find_entities(f"Here, {text}.")] == expected


@pytest.mark.parametrize(("name", "kind"), [
    ("Isle of Norwald", "place"), ("United States of America", "place"), ("Gulf of Ostland", "place"),
    ("Duke of Norway", "name"), ("President of the United States", "name"), ("Fall of Lake Odd", "name"),
    ("Lake of the Woods", "place"), ("River Tarn", "place"), ("University of Norway", "organisation"),
])  # fmt: skip
def test_what_is_named_after_a_place_is_no_place(name, kind):
    assert [(e.text, e.type) for e in find_entities(f"Here is the {name}.", fine=True)] == [(name, kind)]
    text = 'The song "Blue Door" by Acme Records sold in Norway Bay.'
    assert {e.type for e in find_entities(text)} == {"name"}
    assert [e.type for e in find_entities(text, fine=True)] == ["work", "organisation", "place"]


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


def test_text_without_english_entities_and_a_megabyte():
    for text in ("东京举办了奥运会。", "ولد في القاهرة", "\x00\x07", '"' * 50, "(" * 50):
        assert find_entities(text) == []
    text = 'The mayor, Ida Morrow, met "The Long Road" in 1999. ' * 20_000
    assert len(text) > 1_000_000 and len(find_entities(text)) == 60_000


@pytest.fixture
def upload(tmp_path, monkeypatch):
    """An unrelated package that has the name of a pipeline; says whether it was imported."""
    ran = tmp_path / "ran"
    info = tmp_path / "site" / "en_core_web_trf-9.9.dist-info" / "METADATA"
    info.parent.mkdir(parents=True)
    info.write_text("Metadata-Version: 2.1\nName: en-core-web-trf\nVersion: 9.9\n")
    package = tmp_path / "site" / "en_core_web_trf" / "__init__.py"
    package.parent.mkdir()
    package.write_text(f"open({str(ran)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield ran.exists
    sys.modules.pop("en_core_web_trf", None)


def test_auto_is_the_rules_and_a_pipeline_is_one_that_is_named(upload, caplog):
    """Whatever package has the name of a pipeline."""
    recogniser = Recogniser()
    assert recogniser.name == "rules" and caplog.messages == ["entities: by rules"]
    assert recogniser("He met Ida Morrow.") == find_entities("He met Ida Morrow.")
    with fails("missing-extra", "spacy download en_core_web_sm", "recogniser=rules"):
        Recogniser("spacy")
    assert not upload()
    with fails("unknown-choice", "recogniser=spacy:en_core_web_trf"):
        Recogniser("spacy:en_core_web_trf")
    assert upload()
    with fails("unknown-choice", "recogniser=rules"):
        Recogniser("spacy:en_core_web_none")


@pytest.fixture
def pipeline(monkeypatch):
    """A blank English pipeline that knows a few entities, in place of an installed one; its name."""
    spacy = pytest.importorskip("spacy")
    blank = spacy.blank("en")
    kinds = {"the Acme Bank": "ORG", "1999": "DATE", "last May": "DATE", "Norway's": "GPE", "$5": "MONEY"}
    blank.add_pipe("entity_ruler").add_patterns([{"label": k, "pattern": p} for p, k in kinds.items()])
    monkeypatch.setattr("probers.words.recogniser._load", {"en_core_web_sm": blank}.__getitem__)
    return "en_core_web_sm"


def test_spacy_where_a_pipeline_is_named(pipeline, caplog):
    kind = f"spacy:{pipeline}"
    text = "In 1999 and last May the Acme Bank paid $5 for Norway's ships."
    recogniser = Recogniser(kind)
    assert "by the NER of en_core_web_sm" in caplog.text
    assert [e.text for e in recogniser(text)] == ["1999", "last May", "Acme Bank", "$5", "Norway"]
    assert [e.type for e in recogniser(text)] == ["year", "date", "name", "number", "name"]
    fine = [e.type for e in Recogniser(kind, fine=True)(text)]
    assert fine == ["year", "date", "organisation", "number", "place"]
    assert all(text[e.start : e.end] == e.text for e in recogniser(text))
    for kind in ("rules", "auto"):  # even so
        caplog.clear()
        assert Recogniser(kind).name == "rules" and caplog.messages == ["entities: by rules"]
        Recogniser(kind, quiet=True)
        assert caplog.messages == ["entities: by rules"]  # nothing more is said
    for kind in ("flair", "rules:en_core_web_sm", "auto:en_core_web_sm"):
        with fails("unknown-choice", kind):
            Recogniser(kind)
