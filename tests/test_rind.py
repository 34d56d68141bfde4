"""What is filtered, signals, words and sentences; RIND by hand stands in test_triggers.py."""

import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.fake_lm import offsets
from helpers.refusals import fails

import probers.words.text
from probers.signals import BEFORE, SIGNALS, Part, rind_scores, signals, signals_before, words
from probers.types import AttentionRows, Generation, RunError
from probers.words.text import content_filter, is_content


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


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_what_is_filtered_and_an_empty_generation_do_not_fire(variant):
    for pieces in ([" it", " is", " the"], []):
        n = len(pieces)
        generation = made(pieces, [9.0] * n, np.ones((n + 1, n + 2)) / 2)
        result = rind_scores(generation, variant, attention_alone=alone([0.5] * n))
        assert (result.max(), result.hits(0.0), len(result.scores)) == (0.0, (), n)


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


def test_the_content_filter_and_the_tagger_where_it_is_installed(monkeypatch):
    assert content_filter() == "stop words"
    tags = {"old": "ADJ", "It": "PRON", "runs": "VERB", ".": "PUNCT"}
    doc = [SimpleNamespace(text=text, pos_=pos) for text, pos in tags.items()]
    tagger = Mock(return_value=doc, meta={"version": "3.8.0"})
    monkeypatch.setattr(probers.words.text, "_tagger", lambda: tagger)
    assert content_filter() == "pos en_core_web_sm 3.8.0"
    # It decides by substring: "golden" holds "old".
    assert is_content("It runs golden .", ["It", "runs", "golden", "."]) == [False, True, True, False]


def test_signals_by_hand():
    generation = replace(
        made(["a", "b"], [1.0, 3.0], logprobs=[math.log(0.5), math.log(0.125)]),
        top=np.array([[0.5, 0.25], [0.4, 0.1]], dtype=np.float32),
    )
    values = signals(generation)
    assert tuple(values) == SIGNALS
    assert (values["mean_entropy"], values["max_entropy"]) == (2.0, 3.0)
    assert values["min_prob"] == pytest.approx(0.125)
    assert values["mean_logprob"] == pytest.approx(math.log(0.25))  # half-way from 1/2 to 1/8
    first, second = signals_before(generation), signals_before(generation, 1)
    assert tuple(first) == BEFORE
    assert list(first.values()) == pytest.approx([1.0, math.log(0.5), 0.5, 0.1])
    assert list(second.values()) == pytest.approx([3.0, math.log(0.125), 0.25, 0.15])
    with fails("missing-value", "Needs(top=True)"):
        signals_before(replace(generation, top=None))
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
