"""Natural text from pre-tokenised text; natural text untouched; nothing but spacing changed."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probers.words.text import detokenise_sentences, is_shifted, is_tokenised

_FILE = Path(__file__).parent / "data" / "detokenised.txt"
_PARTS = [part.splitlines()[1:] for part in _FILE.read_text(encoding="utf-8").split("\n# ")]
#: Texts that were tokenised, texts whose marks are shifted, and the natural text of each.
TOKENISED, SHIFTED = ([*zip(lines[::2], lines[1::2], strict=True)] for lines in _PARTS)
NATURAL = [
    "Plain words, nothing else.", 'He wrote "The Glass Orchard" (1988), which wasn\'t read.',
    "Wait . . . what? The boys' school, Norway's best -- 50% of it.",
    "Le roi est mort ; vive le roi ! Qui ? Lui : l'État, c'est moi.",
    "A lone typo , here, and there (again), is no sign of it.", "  two  spaces\tand\ttabs,\r\n\r\nlines. ",
    "The .NET runtime, e.g. 1.5 and 1,500, costs $5 - or $6.", "東京は、日本の首都です。", "",
    "Pre- and post-war prices (1950 – 1960) of f(x) fell.", 'A 5" screen "of old" sold.', "See [1] and [2].",
]  # fmt: skip


@pytest.mark.parametrize(("tokenised", "natural"), TOKENISED)
def test_tokenised_text_becomes_natural(tokenised, natural):
    assert is_tokenised(tokenised) and not is_tokenised(natural)
    assert detokenise_sentences([tokenised]) == [natural]


@pytest.mark.parametrize("text", [*NATURAL, *(natural for _, natural in TOKENISED)])
def test_natural_text_is_left_as_it_is(text):
    assert detokenise_sentences([text]) == [text]
    assert detokenise_sentences([text, text]) == [text, text]


def test_the_sentences_of_an_article_are_judged_together():
    plain, quoted = "Nobody knows why", 'It is " Hooked "'
    assert not is_tokenised(quoted)
    article = ["Born in 1950 , she sang .", plain, quoted]
    assert detokenise_sentences(article) == ["Born in 1950, she sang.", plain, 'It is "Hooked"']
    assert detokenise_sentences(["Born in 1950, she sang.", quoted]) == ["Born in 1950, she sang.", quoted]
    # Line breaks are kept.
    assert detokenise_sentences(["One , two .\nThree , four .\n"]) == ["One, two.\nThree, four.\n"]


_WORDS = st.sampled_from([
    "a", "I", "Bo", "'s", "'", '"', ",", ".", ";", ":", "(", ")", "[", "]", "?", "!", "–", "/", "&", "$",
    "12", "1988", "...", "@-@", "@,@", "n't", "``", "''", "\n",
])  # fmt: skip


@given(st.lists(_WORDS, max_size=25).map(" ".join) | st.text(max_size=60))
def test_only_spacing_changes(text):
    (once,) = detokenise_sentences([text])

    def bare(s):
        s = re.sub(r"``|''", '"', re.sub(r"@([-,.])@", r"\1", re.sub(r"\s", "", s)))
        return s.replace("'", "").replace('"', "").replace("`", "").replace("@", "")

    assert bare(once) == bare(text)
    assert once == text or is_tokenised(text) or is_shifted(text)


@pytest.mark.parametrize(("shifted", "natural"), SHIFTED)
def test_marks_that_cling_to_the_word_before_are_put_right(shifted, natural):
    assert detokenise_sentences([shifted]) == [natural]
    assert detokenise_sentences([natural]) == [natural]
    # A hyphen is joined only where the article shows it.
    shown = detokenise_sentences(["A two- way street.", "Goma( 1918) lived."])
    assert shown == ["A two-way street.", "Goma (1918) lived."]
    assert detokenise_sentences(["A two- way street.", "Goma (1918) lived."])[0] == "A two- way street."
