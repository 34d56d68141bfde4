"""Entity spans by rules and their comparison."""

import pytest
from probers.datagen.entities import find_entities
from probers.datagen.matching import EntityMatcher, parse_date, parse_number


def spans(text):
    return [(e.text, e.type) for e in find_entities(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Faye Baltom works for Gromfok Works.", [("Faye Baltom", "name"), ("Gromfok Works", "name")]),
        ("The Gatrar River is 580 km long.", [("Gatrar River", "name"), ("580 km", "number")]),
        ("He was born on 18 July 1995 in Berlin.", [("18 July 1995", "date"), ("Berlin", "name")]),
        ("It opened in 1884 and has 1,500,000 people.", [("1884", "year"), ("1,500,000 people", "number")]),
        (
            "She studied at the University of the Arts in London.",
            [("University of the Arts", "name"), ("London", "name")],
        ),
        (
            "In March 1912 they met Johann van der Berg.",
            [("March 1912", "date"), ("Johann van der Berg", "name")],
        ),
        ("They rose to 1.5 million in 1999.", [("1.5 million", "number"), ("1999", "year")]),
        ("Ana and Boris went home.", [("Ana", "name"), ("Boris", "name")]),
        ("Élodie Żak met Óscar.", [("Élodie Żak", "name"), ("Óscar", "name")]),
        ("nothing here at all", []),
        ("", []),
    ],
)
def test_spans(text, expected):
    assert spans(text) == expected


def test_function_words_are_no_names_at_the_start_of_any_sentence():
    assert spans("He left. They stayed. When it rained, nobody came.") == []


def test_offsets_point_at_the_text():
    text = "On 3 May 1808 the painter Francisco Goya saw 44 people near Madrid."
    for entity in find_entities(text):
        assert text[entity.start : entity.end] == entity.text


@pytest.mark.parametrize(
    ("a", "b", "verdict", "stage"),
    [
        ("July 18 , 1995", "18 July 1995", "equivalent", "date"),
        ("July 18, 1995", "July 19, 1995", "different", "date"),
        ("18 July 1995", "1995", "undecided", "date"),
        ("1995", "1996", "different", "date"),
        ("1.5 million", "1,500,000", "equivalent", "number"),
        ("580 km", "580", "equivalent", "number"),
        ("580 km", "580 m", "different", "number"),
        ("18th", "19th", "different", "number"),
        ("The Beatles", "beatles", "equivalent", "string"),
        ("Café Müller’s", "Cafe Muller", "equivalent", "string"),
        ("Albert Einstein", "Einstein", "undecided", "partial"),
        ("Karel Brusgus", "Karel Tokzo", "different", "string"),
        ("1995", "Berlin", "different", "string"),
    ],
)
def test_matching(a, b, verdict, stage):
    for x, y in ((a, b), (b, a)):
        match = EntityMatcher().match(x, y)
        assert (match.verdict, match.stage) == (verdict, stage)
        assert match.evidence


def test_an_empty_mention_is_an_error():
    with pytest.raises(ValueError, match="empty"):
        EntityMatcher().match("Berlin", " ")


def test_parsers_refuse_what_they_cannot_read():
    assert parse_date("May West") is None
    assert parse_date("the 18th of July") == (None, 7, 18)
    assert parse_number("about five") is None
    assert parse_number("2 billion") == (2e9, "")
