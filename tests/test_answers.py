"""Answer scores against an independent implementation of SQuAD's, and the rules that SQuAD does not have."""

import random
import string
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.text import squad

from probers.evaluation import answers as a
from probers.evaluation.answers import exact_match, f1_score, final_answer, normalize_answer

VERDICTS = {"yes", "no", "noanswer"}
PIECES = [
    "the", "The", "THE", "a", "A", "an", "An", "then", "theatre", "another", "Ana", "a.", "the,", "(an)",
    "U.S.", "US", "O'Neil", "o’neil", "“quoted”", "don't", "1,000", "1000", "1.5", "3/4", "Röntgen",
    "Ro\u0308ntgen", "İstanbul", "istanbul", "ŒUVRE", "straße", "STRASSE", "ǅ", "北京", "東京。", "שלום",
    "café", "cafe\u0301", "🌌", "—", "…", "!!!", "", " ", "\t", "\n", "\u00a0", "\u2003", "\u200b", "\ufeff",
    "_", "a_b", "a-b", "#1", "$5", "x", "y", "z", "New", "York", "new", "york", "and", "of",
]  # fmt: skip


def theirs(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """EM and F1 of torchmetrics, which follows SQuAD's evaluation script, in [0, 1]."""
    target = {"answers": {"answer_start": [0] * len(answers), "text": list(answers)}, "id": "1"}
    score = squad([{"prediction_text": prediction, "id": "1"}], [target])
    return float(score["exact_match"]) / 100, float(score["f1"]) / 100


def agree(prediction: str, answers: Sequence[str]) -> None:
    em, f1 = theirs(prediction, answers)
    assert exact_match(prediction, answers) == em, (prediction, answers)
    if not VERDICTS & {normalize_answer(t) for t in (prediction, *answers)}:
        assert f1_score(prediction, answers).f1 == pytest.approx(f1, abs=1e-6), (prediction, answers)


def phrase(rng: random.Random) -> str:
    glue = rng.choice([" ", " ", " ", "  ", "-", ", ", "", "\u00a0"])
    return glue.join(rng.choice(PIECES) for _ in range(rng.choice([0, 1, 1, 2, 3, 5])))


def near(rng: random.Random, text: str) -> str:
    """A variation that often normalises to the same, so that both verdicts are frequent."""
    words = rng.sample(text.split(), len(text.split()))
    plain = "".join(c for c in text if c not in string.punctuation)
    made = (text.upper(), f"the {text}.", plain, " ".join(words), f"{text} {phrase(rng)}", phrase(rng))
    return rng.choice(made)


def test_em_and_f1_agree_with_torchmetrics_on_thousands_of_pairs() -> None:
    for prediction, answer in (("", "the"), ("", "x"), ("x", ""), ("i\u0307", "İ"), ("a\u00a0b", "b")):
        agree(prediction, [answer])
    rng = random.Random(5)
    right = partial = 0
    for _ in range(3000):
        answers = [phrase(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
        prediction = near(rng, rng.choice(answers))
        agree(prediction, answers)
        right += bool(exact_match(prediction, answers))
        partial += 0 < f1_score(prediction, answers).f1 < 1
    assert 500 < right < 2500 and partial > 250  # the pairs tell the implementations apart


def test_the_verdict_rule_is_where_we_leave_squad() -> None:
    for verdict in VERDICTS:
        for prediction, answer in ((f"{verdict} it is", verdict), (verdict, f"{verdict} it is")):
            assert f1_score(prediction, [answer]) == (0, 0, 0) and exact_match(prediction, [answer]) == 0
            assert theirs(prediction, [answer])[1] > 0  # converse: SQuAD gives a part of the point
        assert f1_score(f"The {verdict.upper()}!", [verdict]).f1 == 1
        # Only that alias is barred, not the question.
        assert f1_score(f"{verdict} indeed", [verdict, "indeed so"]).f1 == pytest.approx(0.5)
    assert f1_score("yes", ["no"]) == f1_score("no", ["noanswer"]) == (0, 0, 0)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.sampled_from(PIECES), max_size=3))
def test_acc_is_containment_of_the_normalised_words(text: list[str], answer: list[str]) -> None:
    written, gold = " ".join(text), " ".join(answer)
    words, wanted = normalize_answer(written).split(), normalize_answer(gold).split()
    starts = range(len(words) - len(wanted) + 1)
    expected = bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in starts)
    assert a.accuracy_contains(written, [gold]) == expected
    # Whole words are also characters, and an exact match is contained.
    assert a.accuracy_contains(written, [gold], mode="substring") >= expected
    if wanted and exact_match(written, [gold]):
        assert expected


def plain_maxima(prediction: str, answers: Sequence[str]) -> tuple[float, float]:
    """Precision and recall as DRAGIN's released evaluation takes them: a running maximum of each."""
    best = [0.0, 0.0]
    ours = normalize_answer(prediction).split()
    for answer in answers:
        theirs = normalize_answer(answer).split()
        barred = VERDICTS & {" ".join(ours), " ".join(theirs)} and ours != theirs
        same = (Counter(ours) & Counter(theirs)).total()
        if same and not barred:
            best = [max(best[0], same / len(ours)), max(best[1], same / len(theirs))]
    return best[0], best[1]


def test_precision_and_recall_as_released_are_each_the_highest_of_any_answer() -> None:
    rng = random.Random(8)
    apart = 0
    for _ in range(2000):
        answers = [phrase(rng) for _ in range(rng.choice([1, 2, 4]))]
        answers += [f"{answer} {phrase(rng)}" for answer in answers]  # a longer name of the same
        answers = [answer for answer in answers if normalize_answer(answer)]  # as questions are read
        words = " ".join([*answers, "x"]).split()
        prediction = " ".join(rng.choices(words, k=rng.choice([1, 2, 4])))
        figures = a.precision_recall_max(prediction, answers)
        assert figures == pytest.approx(plain_maxima(prediction, answers)), (prediction, answers)
        mine = f1_score(prediction, answers)
        assert figures[0] >= mine.precision and figures[1] >= mine.recall
        apart += figures != (mine.precision, mine.recall)
    assert apart > 50  # the two ways differ on some
    assert a.precision_recall_max("x", []) == (0.0, 0.0)


@pytest.mark.parametrize(("said", "read"), [
    ("yes", "yes"), ("Yes, she could.", "yes"), ("No.", "no"), ("that yes", "no"), ("true", "no"),
])  # fmt: skip
def test_strategyqa_is_read_from_the_first_word(said: str, read: str) -> None:
    text = f"It floats. So the answer is {said}"
    after = text[text.find("the answer is") + len("the answer is") + 1 :]
    assert read == ("yes" if after[0:3].lower() == "yes" else "no")  # the released rule
    assert final_answer(text, "So the answer is", "strategyqa") == read
    # Elsewhere the answer stays as it stands.
    assert final_answer(text, "So the answer is", "hotpotqa") == said.removesuffix(".")
    for nothing in ("It floats.", "So the answer is"):  # an answer that was not given is no verdict
        assert final_answer(nothing, "So the answer is", "strategyqa") == ""


def test_the_rules_by_which_an_answer_is_right() -> None:
    text, answer, gold = "I know that it is in New York. So the answer is York.", "York", ("New York",)
    right = {rule: a.right_by(rule)(text, answer, gold) for rule in ("em", "acc", "f1>=0.6", "f1>=0.7")}
    assert right == {"em": False, "acc": True, "f1>=0.6": True, "f1>=0.7": False}
    assert not a.right_by("acc")(text, answer, ("no",)) and a.right_by("acc_substring")(text, answer, ("no",))
    for rule in ("", "f1", "f1>=2", "f1>=0.5x", "acc_tokens", "EM"):
        assert a.right_by(rule) is None, rule


@pytest.mark.parametrize("written", [
    "**Yes**", "`yes`", "(yes)", "__Yes__", "***Yes***", r"$\boxed{Yes}$", "- Yes", "• Yes",
    r"\(\boxed{Yes}\)", "**Yes.**", "[yes]", "# Yes", "<yes>", '<span style="x">Yes</span>', "1. Yes",
    "a) Yes", "**Yes", "Yes**", "[Yes](http://x)", "&nbsp;Yes", r"\boxed{\textbf{Yes}.}", "Yes</s>",
])  # fmt: skip
def test_markup_around_an_answer_goes_before_it_is_read(written):
    text = f"So the answer is {written}"
    assert a.extract_answer(text, "the answer is").lower().strip(".") == "yes"
    assert final_answer(text, "the answer is", "strategyqa") == "yes"
    scores = exact_match(written, ["yes"]), f1_score(written, ["yes"]).f1, a.accuracy_contains(text, ["yes"])
    assert scores == (1, 1, 1)
    assert final_answer(text.replace("Yes", "No").replace("yes", "no"), "the answer is", "strategyqa") == "no"


@pytest.mark.parametrize(("text", "cue", "answer"), [
    ("Born in 1990. So the answer is 1990.", "So the answer is", "1990"),
    ("the answer is X. No. So The Answer Is: St. Louis.\nQuestion", "the answer is", "St. Louis"),
    ("no conclusion", "the answer is", ""), ("Rationale\nAnswer:\n'Paris'", "Answer:", "Paris"),
    ("So the answer is", "So the answer is", ""), ("**Answer:** Paris", "Answer:", "Paris"),
    ("The **answer** is Paris", "the answer is", "Paris"), ("The answer is “Yes”.", "the answer is", "Yes"),
    ("Answer:\n```text\nParis\n```", "Answer:", "Paris"), ("Sum\n#### 42", "####", "42"),
    (r"Answer: $\boxed{1{,}000}$", "Answer:", "$1,000$"), ("Answer: AT&amp;T", "Answer:", "AT&T"),
    ("İİİ so the answer is Paris.", "The Answer Is", "Paris"),  # longer in lower case
])  # fmt: skip
def test_answer_extraction(text: str, cue: str, answer: str) -> None:
    assert a.extract_answer(text, cue) == answer


def test_what_is_no_markup_stays():
    for text in ("5 * 3 * 2 = 30", "a_b_c", "$5 to $10", "Paris (France)", "f(x)", "-40 °C"):
        assert a.unmarked(text) == text
