"""Languages by rules: a table for each, detection of the language, and numbers and dates by value."""

from __future__ import annotations

from ..types import UserError
from .base import Language, words
from .chinese import CHINESE
from .french import FRENCH
from .german import GERMAN
from .japanese import JAPANESE
from .spanish import SPANISH

ENGLISH = Language(
    code="en", name="English",
    function_words=words(
        """
        the of and in to a an is was were are be been for on as with by he she they it his her their its
        at from that which this these had has have not but or also who when after before during into than
        more other one there where first while such would could can will may about over between under most
        all some no only both up out if so through until against you your we our i my me him them what how
        very then because being do did does
        """
    ),
)  # fmt: skip
#: Supported languages by their code.
LANGUAGES = {each.code: each for each in (ENGLISH, GERMAN, FRENCH, SPANISH, CHINESE, JAPANESE)}


def language_named(code: str, option: str = "language") -> Language:
    """Return the language of a code (UserError: unsupported code)."""
    if code not in LANGUAGES:
        listed = ", ".join(f"{each.code} ({each.name})" for each in LANGUAGES.values())
        raise UserError(f"{option}={code} is not supported: choose {listed}", "unsupported")
    return LANGUAGES[code]


__all__ = ["ENGLISH", "LANGUAGES", "Language", "language_named"]
