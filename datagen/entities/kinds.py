"""Whether a name is an organisation, a place or a work, where a word in or before it says so."""

from __future__ import annotations

import re

from .base import EntityType, Span

_ORGANISATION = re.compile(
    r"\b(?:University|College|Institute|Bank|Party|Company|Corporation|Inc|Ltd|LLC|League|Association|Union|"
    r"Committee|Council|Ministry|Department|Records|Orchestra|Club|F\.?C|Agency|Society|Foundation|Museum|"
    r"Academy|Commission|Parliament|Congress|Senate|Airlines|Airways|Railway|Group|Studios|Pictures|Army|Navy)\b\.?"
)
_PLACE = re.compile(
    r"(?:^|\s)(?:River|Lake|Mountains?|Mount|Islands?|Isle|Street|Avenue|Road|County|City|Township|Bay|Sea|Ocean|"
    r"Valley|Park|Bridge|Castle|Desert|Peninsula|Province|Borough|Hills?|Cape|Fort|Port|Gulf|Strait|Harbou?r|"
    r"Kingdom|Republic|Africa|America|Asia|Europe|Australia|England|Scotland|Wales|Ireland|France|Germany|Italy|"
    r"Spain|Portugal|Russia|China|Japan|India|Canada|Mexico|Brazil|Egypt|Greece|Poland|Sweden|Norway|Denmark|"
    r"Netherlands|Belgium|Austria|Switzerland|Turkey|Iran|Iraq|Israel|London|Paris|Berlin|Rome|Madrid|Moscow|"
    r"Tokyo|Beijing|Chicago|California|Texas|Florida|Virginia|United States|United Kingdom)(?:$|\sof\b)"
)
_FIRST_PLACE = re.compile(
    r"(?:Lake|Mount|Cape|Fort|Gulf of|Isle of|River|City of|Republic of|Kingdom of)\s[A-Z]"
)
_WORK_BEFORE = re.compile(r"\b(?:album|novel|song|single|film|book|opera|poem|play|episode|series|EP),?\s$")
_OTHER_BEFORE = re.compile(
    r"\b(?:bands?|groups?|duo|trio|ensemble|metal|nicknamed?|known as|as the|called|named|dubbed|terms?|"
    r"phrase|title of|means?|meaning)\s*(?:\w+\s)?[\"“(]\s?$"
)


def kind_of_quoted(text: str, span: Span) -> EntityType:
    """Type "work", unless the words before the quote announce a band, a nickname or a term."""
    return "name" if _OTHER_BEFORE.search(text, max(0, span[0] - 30), span[0]) else "work"


def kind_of(text: str, span: Span) -> EntityType:
    """The finest type that is sure; "name" when none is."""
    name = text[slice(*span)]
    if _WORK_BEFORE.search(text, max(0, span[0] - 12), span[0]):
        return "work"
    if _ORGANISATION.search(name):
        return "organisation"
    if _PLACE.search(name) or _FIRST_PLACE.match(name):
        return "place"
    return "name"
