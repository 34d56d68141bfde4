"""RIND by hand in both variants, signals, words, sentences."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.fake_lm import offsets
from helpers.refusals import fails
from helpers.tiny import PROMPTS, tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st

import probers.words.text
from probers.signals import BEFORE, SIGNALS, Part, rind_scores, signals, signals_before, words
from probers.types import AttentionRows, Generation, Needs, RunError
from probers.words.text import content_filter, is_content, is_stop_word, split_sentences, stop_words


@pytest.fixture(autouse=True)
def no_tagger(monkeypatch):
    """The content filter without a tagger, whether or not one is installed here."""
    monkeypatch.setattr(probers.words.text, "_tagger", lambda: None)


def made(pieces: list[str], entropies: list[float], rows=None, logprobs=None, prompt: int = 2) -> Generation:
    """A generation whose tokens are ``pieces`` after a prompt of ``prompt`` tokens."""
    n = len(pieces)
    return Generation(
        prompt="ab", prompt_ids=tuple(range(prompt)), prompt_offsets=tuple((i, i + 1) for i in range(prompt)),
        token_ids=tuple(range(n)), text="".join(pieces), offsets=offsets(pieces),
        logprobs=np.array(logprobs or [-1.0] * n, dtype=np.float32),
        entropies=np.array(entropies, dtype=np.float32), stop="eos",
        attention=rows if rows is None else AttentionRows(np.array(rows, np.float32), np.zeros(n, "f4")),
    )  # fmt: skip


def alone(column_max) -> AttentionRows:
    """Attention within a text, of which the released variant reads the column maxima."""
    n = len(column_max)
    return AttentionRows(np.zeros((n + 1, n), np.float32), np.array(column_max, np.float32))


def test_paper_by_hand():
    # The tokens are " The", " Kel", "by", " mill". Prompt of 2 tokens, so that token i is column 2 + i and
    # its own row is row i + 1.
    rows = [
        [0.5, 0.5, 0.0, 0.0, 0.0, 0.0],  # the prompt's last position
        [0.2, 0.2, 0.6, 0.0, 0.0, 0.0],  # " The"
        [0.1, 0.2, 0.3, 0.4, 0.0, 0.0],  # " Kel"
        [0.1, 0.1, 0.1, 0.5, 0.2, 0.0],  # "by"
        [0.0, 0.1, 0.2, 0.3, 0.3, 0.1],  # " mill"
    ]
    result = rind_scores(made([" The", " Kel", "by", " mill"], [3.0, 2.0, 0.5, 4.0], rows), "paper")
    # a_max(" The") = max(.3, .1, .2) = .3 but it is a stop word: 0
    # a_max(" Kel") = max(.5, .3) = .5, its own .4 does not count: 2 * .5 = 1
    # a_max("by")   = .3 from " mill": .5 * .3 = .15
    # a_max(" mill"): nothing follows: 4 * 0 = 0
    np.testing.assert_allclose(result.attention, [0.3, 0.5, 0.3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(result.scores, [0.0, 1.0, 0.15, 0.0], rtol=1e-6)
    assert result.content.tolist() == [False, True, True, True]
    assert result.max() == pytest.approx(1.0)
    assert result.hits(0.1) == (1, 2)
    assert result.hits(1.0) == ()  # above, not at, the threshold
    assert (result.max(2), result.hits(0.1, 2)) == (pytest.approx(0.15), (2,))  # without the first two
    np.testing.assert_allclose(result.per_token(4), result.scores)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_what_is_filtered_and_an_empty_generation_do_not_fire(variant):
    for pieces in ([" it", " is", " the"], []):
        n = len(pieces)
        generation = made(pieces, [9.0] * n, np.ones((n + 1, n + 2)) / 2)
        result = rind_scores(generation, variant, attention_alone=alone([0.5] * n))
        assert (result.max(), result.hits(0.0), len(result.scores)) == (0.0, (), n)


WORDS = st.sampled_from(["the", "is", "don't", "of,", "Jomholm", "mill.", "1912", "river", "and", "--"])


@pytest.mark.parametrize("variant", ["paper", "released"])
@given(chosen=st.lists(WORDS, min_size=1, max_size=12), seed=st.integers(0, 999))
@settings(max_examples=30)
def test_stop_words_score_nothing_and_the_rest_stays_in_bounds(variant, chosen, seed):
    random = np.random.default_rng(seed)
    n = len(chosen)
    rows = np.tril(random.random((n + 1, n + 2)), k=1)
    rows /= rows.sum(axis=1, keepdims=True)
    generation = made([" " + word for word in chosen], random.random(n).tolist(), rows)
    result = rind_scores(generation, variant, attention_alone=alone(random.random(n) + 0.01))
    for word, score in zip(chosen, result.scores, strict=True):
        assert score == 0 if is_stop_word(word) else score >= 0
    if variant == "released":  # attention is a share of its sentence's, times the sentence's words
        assert result.attention.sum() == pytest.approx(n)


@given(chosen=st.lists(WORDS, min_size=1, max_size=12), seed=st.integers(0, 999), power=st.integers(-6, 6))
@settings(max_examples=60)
def test_scores_follow_the_entropys_scale_and_the_released_ones_not_that_of_attention(chosen, seed, power):
    random = np.random.default_rng(seed)
    n, factor = len(chosen), 2.0**power
    rows = np.tril(random.random((n + 1, n + 2)), k=1).astype(np.float32)
    column_max = random.random(n).astype(np.float32) + 0.01
    pieces, entropies = [" " + word for word in chosen], random.random(n).astype(np.float32)

    def scores(variant, *, attention=1.0, entropy=1.0):
        generation = made(pieces, (entropies * entropy).tolist(), rows * attention)
        return rind_scores(generation, variant, attention_alone=alone(column_max * attention)).scores

    for variant in ("paper", "released"):
        expected = factor * scores(variant)
        np.testing.assert_allclose(scores(variant, entropy=factor), expected, rtol=1e-6, atol=1e-12)
    # S = H * a_max * s is linear in attention; a share of the sentence's is not moved by it.
    np.testing.assert_allclose(scores("paper", attention=factor), factor * scores("paper"), rtol=1e-6)
    np.testing.assert_allclose(scores("released", attention=factor), scores("released"), rtol=1e-6)


def test_the_filter_is_named_with_its_version(monkeypatch):
    assert content_filter() == "stop words"
    monkeypatch.setattr(probers.words.text, "_tagger", lambda: SimpleNamespace(meta={"version": "3.8.0"}))
    assert content_filter() == "pos en_core_web_sm 3.8.0"


def test_the_parser_stays_for_what_is_tagged_by_it(monkeypatch):
    left_out = []
    monkeypatch.undo()
    monkeypatch.setattr(probers.words.text, "find_spec", lambda name: name)
    monkeypatch.setattr("spacy.load", lambda name, exclude: left_out.extend([name, *exclude]))
    probers.words.text._tagger.cache_clear()
    probers.words.text._tagger()
    probers.words.text._tagger.cache_clear()
    assert left_out[0] == "en_core_web_sm" and not {"parser", "tagger", "attribute_ruler"} & set(left_out)


def test_the_tagger_decides_by_substring_where_it_is_installed(monkeypatch):
    tags = {"old": "ADJ", "It": "PRON", "runs": "VERB", ".": "PUNCT"}
    doc = [SimpleNamespace(text=text, pos_=pos) for text, pos in tags.items()]
    monkeypatch.setattr(probers.words.text, "_tagger", lambda: lambda sentence: doc)
    assert is_content("It runs golden .", ["It", "runs", "golden", "."]) == [False, True, True, False]


def test_what_was_not_recorded_or_is_broken_is_named():
    for variant, code, named in (
        ("paper", None, "attention=True"), ("released", None, "attention_alone"),
        ("papre", "unknown-choice", "papre"),
    ):  # fmt: skip
        with fails(code, named):
            rind_scores(made(["a"], [1.0]), variant)
    with fails(None, "2 tokens", kind=RunError):
        rind_scores(made(["a"], [1.0]), "released", attention_alone=alone([1, 1]))
    with fails("failed", "'Kelby'", "nan", kind=RunError):
        rind_scores(made(["Kelby"], [math.nan]), "released", attention_alone=alone([1]))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_on_a_model(variant):
    lm = tiny_lm("llama")
    generations = lm.generate(PROMPTS, max_new_tokens=12, needs=Needs(attention=True))
    for generation, alone in zip(generations, lm.attention_alone(generations), strict=True):
        result = rind_scores(generation, variant, attention_alone=alone)
        assert len(result.spans) == len(result.scores) == len(result.tokens)
        assert result.max() > 0
        assert result.per_token(12).max() == pytest.approx(result.max())


def test_signals_by_hand():
    values = signals(made(["a", "b"], [1.0, 3.0], logprobs=[math.log(0.5), math.log(0.125)]))
    assert tuple(values) == SIGNALS
    assert (values["mean_entropy"], values["max_entropy"]) == (2.0, 3.0)
    assert values["min_prob"] == pytest.approx(0.125)
    assert values["mean_logprob"] == pytest.approx(math.log(0.25))  # half-way from 1/2 to 1/8


def test_signals_before_a_token_by_hand():
    generation = replace(
        made(["a", "b"], [1.0, 3.0], logprobs=[math.log(0.5), math.log(0.125)]),
        top=np.array([[0.5, 0.25], [0.4, 0.1]], dtype=np.float32),
    )
    first, second = signals_before(generation), signals_before(generation, 1)
    assert tuple(first) == BEFORE
    assert list(first.values()) == pytest.approx([1.0, math.log(0.5), 0.5, 0.1])
    assert list(second.values()) == pytest.approx([3.0, math.log(0.125), 0.25, 0.15])
    with fails("missing-value", "Needs(top=True)"):
        signals_before(replace(generation, top=None))
    with fails(None, "signals", kind=RunError):
        signals(made([], []))
    with fails("failed", "mean_entropy", "nan", kind=RunError):
        signals(made(["a"], [math.nan]))


def test_words_by_hand():
    #       0    1      2    3    4      5 (two words in one token)
    text = " Par" + "is" + ", " + "\n" + "old" + " of the"
    offsets = [(0, 4), (4, 6), (6, 8), (8, 9), (9, 12), (12, 19)]
    spans = [(1, 7, (0, 1, 2)), (9, 12, (4,)), (13, 15, (5,)), (16, 19, (5,))]
    assert words(text, offsets) == [Part(*span) for span in spans]
    with fails(None, "'old'", kind=RunError):
        words("old", [(0, 0)])


@pytest.mark.parametrize(("text", "sentences"), [
    ("Dr. J. K. Rowling paid 3.5 dollars. He left.", ["Dr. J. K. Rowling paid 3.5 dollars.", "He left."]),
    ("It is U.S. based! Yes. So it is.", ["It is U.S. based!", "Yes.", "So it is."]),
    ("He works at Apple Inc. The firm is old", ["He works at Apple Inc.", "The firm is old"]),
    ("Born at No. 5 St. Mary. 1912 was cold.", ["Born at No. 5 St. Mary.", "1912 was cold."]),
    ('"Stop!" she said. (He did.) Then', ['"Stop!" she said.', "(He did.)", "Then"]),
    ("One line\nAnother line\n\n", ["One line", "Another line"]),
    ("Wait... what? e.g. this, i.e. that.", ["Wait... what? e.g. this, i.e. that."]), ("  \n ", []), ("", []),
])  # fmt: skip
def test_sentences(text, sentences):
    assert [text[start:end] for start, end in split_sentences(text)] == sentences


@given(st.text(alphabet="aB .!?\n\"'(é1", max_size=60))
@settings(max_examples=200)
def test_every_visible_character_is_in_one_sentence(text):
    spans = split_sentences(text)
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    inside = {i for start, end in spans for i in range(start, end)}
    assert all(i in inside for i, character in enumerate(text) if not character.isspace())


def test_stop_words():
    assert len(stop_words()) > 300
    assert all(is_stop_word(word) for word in ["The", "is,", "don't", "he’s", '"of"', "THE"])
    assert not any(is_stop_word(word) for word in ["Kelby", "1912", "", "...", "mill's"])
