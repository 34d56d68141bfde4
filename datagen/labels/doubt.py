"""What a model wrote in place of an article's entity and may be true all the same."""

from __future__ import annotations

from probers.data.articles.cuts import Cut
from probers.entities import Entity, Recognise, same_kind
from probers.equivalence import EntityMatcher, Match
from probers.text import split_sentences

#: Words that say nothing yet when a sentence begins with them.
_OPENING = frozenset(
    """a about after an and around as at before between both but by during early for from if in late mid of
    on over since that the then these this those through throughout to under until when where while
    with""".split()
)


def doubt(cut: Cut, written: Entity, match: Match, recognise: Recognise, matcher: EntityMatcher) -> Match:
    """The verdict on what differs from the article's: "undecided" where that does not say it is false.

    Stage "type": a name, a time or a number in place of one of the other two ("during the | 1930s"
    for "Great Depression"). Stage "opening": nothing but a preposition and the like stands before it in
    its sentence, so that the model is free to say something else ("In | 2014, he ..."). Stage "order":
    the article has it later in the same sentence ("born in | Dublin" for "Ballinteer, Dublin").

    Args:
        cut: where the article was cut.
        written: what the model wrote there.
        match: the matcher's verdict; any but "different" is returned as it is.
        recognise: finds the entities of the article's sentence.
        matcher: compares them with ``written``.
    """
    if match.verdict != "different":
        return match
    if match.stage != "date" and not same_kind(cut.entity.type, written.type):
        return Match("undecided", "type", f"{cut.entity.type} / {written.type}")
    text = " ".join(cut.article.sentences)
    start, end = split_sentences(text)[cut.sentence]
    opening = text[start : cut.entity.start].split()
    if _OPENING.issuperset(word.lower() for word in opening):
        return Match("undecided", "opening", " ".join([*opening, "|"]))
    for entity in recognise(text[start:end]):
        if start + entity.start > cut.entity.start:
            found = matcher.match(entity.text, written.text)
            if found.verdict == "equivalent":
                return Match("undecided", "order", f"{entity.text} after {cut.entity.text}")
    return match
