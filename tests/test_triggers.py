"""Triggers one by one: what they score, when they fire, where, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.fake_lm import NONE, SPEC, FakeLM, linear_bank, passage
from helpers.refusals import fails

from probers.prober.calibration import EntropyModel, Temperature
from probers.prober.decision import Ensemble
from probers.prompts import AS_GIVEN, CHAT_PROMPT, TESTBED_PROMPT
from probers.rag.protocol import UNANSWERED, decide
from probers.rag.triggers import (
    Adaptive,
    Entropy,
    Flare,
    LlmJudge,
    Never,
    Probing,
    ProbingBefore,
    Radio,
    Rind,
    State,
)
from probers.types import AttentionRows, Decision, Feature, Needs, Question, RunError

BOTH = Needs.of((1, 2))
QUESTION = Question("q", "Who?", answers=("Ana",))


def generation(text, entropies=None, needs=NONE, state=lambda text: [0.0] * 4):
    lm = FakeLM(lambda p: text, state=state)
    (made,) = lm.generate(["Question: Who?\nAnswer:"], max_new_tokens=99, needs=needs)
    if entropies is not None:
        made = replace(made, entropies=np.array(entropies, dtype=np.float32))
    return made


def state(lm=None, **fields):
    given = {"generate": lm.generate} if isinstance(lm, FakeLM) else {}
    return State(QUESTION, lm, TESTBED_PROMPT, (10, 14), **given, **fields)


def test_another_form_of_prompts_is_refused_by_name_and_those_of_texts_are_told(caplog):
    """Both forms and the remedy are named. A prober of texts with prompts of their own works in any loop."""
    bank = linear_bank()
    spec = replace(bank.spec, prompt=CHAT_PROMPT.fingerprint)
    with fails("mismatch", "prompt=chat", "prompt=testbed"):
        Probing(replace(bank, spec=spec)).check(SPEC, TESTBED_PROMPT)
    Probing(replace(bank, spec=spec)).check(SPEC, CHAT_PROMPT)
    with fails("mismatch", "none of the package's", "prompt=testbed"):
        Probing(replace(bank, spec=replace(spec, prompt="0" * 12))).check(SPEC, TESTBED_PROMPT)
    assert not caplog.messages
    Probing(replace(bank, spec=replace(spec, prompt=AS_GIVEN))).check(SPEC, CHAT_PROMPT)
    assert "as they stand" in caplog.messages[-1] and "prompt=chat" in caplog.messages[-1]


def test_entropy_by_hand():
    made = generation(" a b c", [0.1, 0.9, 0.2])
    mean = Entropy(0.39)(made, state())
    assert mean.score == pytest.approx(0.4)
    assert (mean.fire, mean.position, mean.token_scores) == (True, None, pytest.approx((0.1, 0.9, 0.2)))
    assert not Entropy(0.41)(made, state()).fire
    assert Entropy(0.8, "max")(made, state()).score == pytest.approx(0.9)
    empty = Entropy()(generation(""), state())  # is no answer
    assert empty.fire and empty.score == UNANSWERED
    # Of sentences: means 0.25 and 0.5; maxima 0.4 and 1.4.
    made = generation(TWO, [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 1.4])
    mean = Entropy(0.45, scope="sentence")(made, state())
    assert (mean.fire, mean.position, mean.tokens) == (True, TWO.index("She"), (7,))
    assert mean.score == pytest.approx(0.5)
    assert Entropy(0.2, scope="sentence")(made, state()).position == 1
    assert Entropy(1.0, "max", "sentence")(made, state()).score == pytest.approx(1.4)
    assert not Entropy(0.6, scope="sentence")(made, state()).fire
    assert not Entropy(0.45, scope="sentence")(generation(TWO, [2.0] * 4 + [0.1] * 4), state(fresh=True)).fire


# RIND, paper: tokens " The"(0) " town"(1) " Vamo"(2) "ra."(3) " It"(4) " ends."(5); H and attention below.
PAPER_TEXT = " The town Vamora. It ends."
PAPER_OFFSETS = ((0, 4), (4, 9), (9, 14), (14, 17), (17, 20), (20, 26))


def rind_generation():
    made = generation(" a b c d e f")
    rows = np.zeros((7, len(made.prompt_ids) + 6), dtype=np.float32)
    p = len(made.prompt_ids)
    rows[4 + 1, p + 2] = 0.5  # " It" looks back at " Vamo"
    rows[3 + 1, p + 2] = 0.4  # "ra." at " Vamo"
    rows[5 + 1, p + 3] = 0.3  # " ends." at "ra."
    rows[2 + 1, p + 0] = 0.9  # " Vamo" at the stop word " The"
    rows[2 + 1, p + 2] = 0.8  # " Vamo" at itself, which does not count
    return replace(
        made, text=PAPER_TEXT, offsets=PAPER_OFFSETS,
        entropies=np.array([2.0, 1.0, 0.8, 2.0, 1.0, 3.0], dtype=np.float32),
        attention=AttentionRows(rows, np.zeros(6, dtype=np.float32)),
    )  # fmt: skip


def test_rind_paper_fires_before_the_word_of_the_first_hit():
    # S = H * max of later rows * content: Vamo 0.8*0.5 = 0.4, ra. 2*0.3 = 0.6, The is a stop word, others 0.
    made = rind_generation()
    decision = Rind(0.35, "paper")(made, state())
    assert decision.token_scores == pytest.approx((0, 0, 0.4, 0.6, 0, 0))
    assert (decision.fire, decision.position, decision.tokens) == (True, 9 + 1, (2,))
    assert decision.score == pytest.approx(0.6)
    # Hit in the second token of the word: the text still ends before the word.
    later = Rind(0.5, "paper")(made, state())
    assert (later.position, later.tokens) == (10, (3,))
    # Above the threshold, not at it.
    assert Rind(decision.token_scores[2], "paper")(made, state()).tokens == (3,)
    assert not Rind(decision.score, "paper")(made, state()).fire
    # Written anew from " Vamora." on: its own word may not fire again, later ones may.
    shifted = replace(
        made, text=PAPER_TEXT[9:], offsets=tuple((a - 9, b - 9) for a, b in PAPER_OFFSETS[2:]),
        token_ids=made.token_ids[2:], entropies=made.entropies[2:],
        attention=AttentionRows(made.attention.rows[2:, 2:], made.attention.column_max[2:]),
    )  # fmt: skip
    assert Rind(0.35, "paper")(shifted, state()).fire
    fresh = Rind(0.35, "paper")(shifted, state(fresh=True))
    assert (fresh.fire, fresh.score) == (False, 0.0)
    assert fresh.token_scores == pytest.approx((0.4, 0.6, 0, 0))


def test_probing_sums_its_own_layers_and_fires_above_the_banks_threshold(tmp_path):
    assert Probing(bank()).needs == Needs.of((1, 2))
    for options, value, decision in (
        ({}, 0.125, Decision(False, 0.25, 0.25)),
        ({}, 0.25, Decision(True, 0.5, 0.25)),
        ({"threshold": 0.75}, 0.25, Decision(False, 0.5, 0.75)),
        # theta = -threshold: higher theta retrieves more.
        ({"theta": -0.75}, 0.25, Decision(False, 0.5, 0.75)),
        ({"theta": 0.0}, 0.25, Decision(True, 0.5, -0.0)),
    ):
        assert Probing(bank(), **options)(probed(value), state()) == decision
    bank(threshold=0.5).save_pretrained(tmp_path / "prober")  # it may be given by its folder
    assert Probing(str(tmp_path / "prober"))(probed(0.0), state()).threshold == 0.5
    # Others may have been recorded.
    states = np.array([[9.0, 0, 0, 0], [1.0, 0, 0, 0], [2.0, 0, 0, 0]])
    made = replace(probed(0.0, Needs.of((0, 1, 2))), states={Feature((0, 1, 2)): states})
    assert Probing(bank((1, 2)))(made, state()).score == 3.0
    assert Probing(bank((2,)))(made, state()).score == 2.0


def test_a_batch_is_decided_at_once_an_empty_answer_fires_probing_and_not_radio():
    needs = Probing(bank()).needs
    made = [probed(0.25), replace(generation(""), needs=needs), probed(0.0)]
    decisions = decide(Probing(bank()), made, [state()] * 3)
    assert [(d.fire, d.score) for d in decisions] == [(True, 0.5), (True, UNANSWERED), (False, 0.0)]
    empty = replace(generation(""), needs=Needs.of((2,), pool="tokens"))
    made = [told(*[0.1] * 7, 0.9), empty, told(*[0.1] * 8)]
    decisions = decide(Radio(token_bank()), made, [state()] * 3)
    assert [d.fire for d in decisions] == [True, False, False]
    assert decisions[0] == Radio(token_bank())(made[0], state())
    with fails("model", "'q'", kind=RunError):
        decide(Broken(), [generation(" a")], [state()])


def bank(layers=(1, 2), threshold=0.25, **options):
    return linear_bank(layers, threshold, **options)


def probed(value, needs=BOTH):
    return generation(" a b", needs=needs, state=lambda text: [value, 0, 0, 0])


@pytest.mark.parametrize(("combine", "theta", "retrieves"), [
    ("logits", 0.9, False), ("logits", 1.1, True), ("probabilities", -0.02, False),
    ("probabilities", -0.01, True),
])  # fmt: skip
def test_the_decision_of_probing_rag_by_hand(combine, theta, retrieves):
    """Retrieve when the sum over layers of "wrong" plus theta exceeds that of "correct".

    Three layers, logits [wrong, correct] = [1, 0], [1, 0], [-3, 0].
    Logits (paper): 1 + 1 - 3 + theta > 0, so theta > 1.
    Probabilities (released code): softmax[wrong] = 0.7311, 0.7311, 0.0474, sum 1.5096; softmax[correct]
    = 0.2689, 0.2689, 0.9526, sum 1.4904: 1.5096 + theta > 1.4904, so theta > -0.0192.
    """
    layers, states = (0, 1, 2), np.array([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [-3.0, 0, 0, 0]])
    made = replace(probed(0.0, Needs.of(layers)), states={Feature(layers): states})
    decision = Probing(bank(layers), theta=theta, combine=combine)(made, state())
    assert decision.fire == retrieves
    assert decision.score == pytest.approx(-1 if combine == "logits" else 1.5096 - 1.4904, abs=2e-4)


def test_probing_combines_as_told():
    stacked = bank(ensemble=Ensemble("stacked", (3.0, 1.0), 0.5))
    for made, options, decision in (
        (bank(), {}, Decision(True, 2.0, 0.25)),
        (stacked, {}, Decision(True, 4.5, 0.25)),
        (stacked, {"combine": "logits"}, Decision(True, 2.0, 0.0)),
    ):
        assert Probing(made, **options)(probed(1.0), state()) == decision
    other = Probing(bank(), combine="probabilities")
    decision = other(probed(1.0), state())
    assert decision.score == pytest.approx(2 * np.tanh(0.5))
    assert decision.threshold == 0.0  # another scale: the bank's threshold does not apply
    assert other.probability is None  # and neither does its calibration
    np.testing.assert_allclose(Probing(bank()).probability(np.zeros(2)), 0.5)
    # The bank's logistic model of margin and entropy.
    model = EntropyModel((0.0,) * 5, (1.0,) * 5, (2.0, 3.0, 0.0, 0.0, 0.0), intercept=-1.0, threshold=0.4)
    trigger = Probing(bank(entropy_model=model), with_entropy=True)
    decision = trigger(replace(probed(0.25), entropies=np.array([0.1, 0.3], dtype=np.float32)), state())
    assert decision.score == pytest.approx(2 * 0.5 + 3 * 0.2 - 1.0)  # = 0.6
    assert (decision.fire, decision.threshold) == (True, 0.4)
    with fails("mismatch"):
        Probing(bank(entropy_model=model), combine="probabilities", with_entropy=True)


class Broken(Never):
    def __call__(self, made, where):
        return Decision(False, float("nan"), 0.5)


# Sentences: two of four tokens each, with the probabilities of the tokens by hand.
TWO = " Ana was born here. She lives in Rome."
SURE = (0.9, 0.95, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)


def with_probabilities(*chances, text=TWO):
    made = generation(text)
    return replace(made, logprobs=np.log(np.array(chances, dtype=np.float64)).astype(np.float32))


def test_flare_fires_at_the_first_sentence_with_a_token_below_theta():
    # theta 0.8: 0.7 < 0.8 in the second sentence, so its 1 - p = 0.3 > 1 - 0.8 = 0.2.
    made = with_probabilities(*SURE[:6], 0.85, 0.7)
    decision = Flare()(made, state())
    assert (decision.fire, decision.position, decision.tokens) == (True, TWO.index("She"), (7,))
    assert (decision.score, decision.threshold) == pytest.approx((0.3, 0.2))
    # Both sentences: the first one counts, though the second is less sure.
    first = Flare(theta=0.92)(made, state())
    assert (first.position, first.tokens) == (1, (0, 2, 3))
    # Not one below 0.6: 1 - p = 0.3 is not above 0.4.
    silent = replace(decision, fire=False, threshold=0.4, position=None, tokens=())
    assert Flare(theta=0.6)(made, state()) == silent
    # Above the threshold, not at it: the first sentence's highest 1 - p, and that of all.
    assert Flare(max(decision.token_scores[:4]))(made, state()).position == TWO.index("She")
    assert not Flare(decision.score)(made, state()).fire
    # DRAGIN's variant takes the mean of a sentence; of the second 0.1 0.1 0.2 0.6, of the first 0.0875.
    made = with_probabilities(*SURE[:6], 0.8, 0.4)
    decision = Flare(0.2, "dragin")(made, state())
    assert (decision.fire, decision.position, decision.tokens) == (True, TWO.index("She"), (7,))
    assert decision.score == pytest.approx(0.25)
    assert not Flare(0.26, "dragin")(made, state()).fire
    assert Flare(0.26, "paper")(made, state()).fire
    assert Flare(0.08, "dragin")(made, state()).position == 1
    # The threshold in either form.
    assert Flare().threshold == Flare(theta=0.8).threshold == 0.2
    assert replace(Flare(theta=0.3), threshold=0.1).threshold == 0.1  # as tuning does


def token_bank(layers=(2,), **fields):
    """Like :func:`bank`, for single tokens: s = sigmoid(first component)."""
    return bank(layers, pool="tokens", position="entity", **fields)


def told(*chances, text=TWO, layers=(2,)):
    """A generation whose tokens are made up with these chances, in every layer."""
    made = generation(text)
    logits = np.log(np.array(chances) / (1 - np.array(chances)))
    states = np.zeros((len(made.token_ids), len(layers), 4), dtype=np.float32)
    states[:, :, 0] = logits[:, None]
    needs = Needs.of(layers, pool="tokens")
    return replace(made, states={needs.features[0]: states}, needs=needs)


def test_probing_by_tokens_scores_the_worst_entity_or_all_of_a_text_without():
    """Also behind a prompt of another form than the prober was trained with."""
    made = told(*([0.9] * 4), 0.2, 0.3, 0.9, 0.6, text=" so he was born in Vienna in 1756")
    scores = [np.log(p / (1 - p)) for p in (0.2, 0.3, 0.6)]
    trigger = Probing(token_bank(threshold=0.0))
    assert trigger.needs == Needs.of((2,), pool="tokens")
    spans = [made.text[a:b] for a, b in made.offsets]
    assert [spans[5].strip(), spans[7].strip()] == ["Vienna", "1756"]
    decision = trigger(made, state())
    assert (decision.fire, decision.position) == (True, None)
    assert decision.score == pytest.approx(scores[2], abs=1e-3)  # 1756, and not the 0.9 around it
    plain_text = told(0.1, 0.7, 0.2, text=" nobody knows it")
    assert trigger(plain_text, state()).score == pytest.approx(np.log(7 / 3), abs=1e-3)
    trigger.check(SPEC, replace(TESTBED_PROMPT, context="Other:"))


def test_radio_fires_at_the_first_token_above_the_mean_and_a_half():
    # mean(s) = (0.1 + 0.2 + 0.6 + 0.1 + 0.1 + 0.9 + 0.8 + 0.4) / 8 = 3.2 / 8 = 0.4.
    made = told(0.1, 0.2, 0.6, 0.1, 0.1, 0.9, 0.8, 0.4)
    decision = Radio(token_bank())(made, state())
    assert (decision.fire, decision.position, decision.tokens) == (True, TWO.index("born"), (2,))
    assert (decision.score, decision.threshold) == (pytest.approx(0.9, abs=1e-3), 0.5)
    assert decision.token_scores == pytest.approx((0.1, 0.2, 0.6, 0.1, 0.1, 0.9, 0.8, 0.4), abs=1e-3)
    assert Radio(token_bank()).needs == Needs.of((2,), pool="tokens")
    timid, bold = (0.1, 0.1, 0.4, 0.1, 0.1, 0.1, 0.1, 0.2), (0.7, 0.7, 0.8, 0.7, 0.8, 0.7, 0.8, 0.7)
    for chances, options, tokens in (
        (timid, {}, ()),  # above the mean, but not above a half: 0.4 > 0.15 and not > 0.5
        (timid, {"threshold": 0.3}, (2,)),
        (bold, {}, (2,)),  # above a half, but not above the mean 5.9 / 8 = 0.7375: token 0 is passed over
        (bold, {"above_mean": False}, (0,)),
        ((0.1, 0.2, *[0.1] * 6), {"threshold": -0.5}, (1,)),  # below all: the first word above the mean
    ):
        decision = Radio(token_bank(), **options)(told(*chances), state())
        assert (decision.tokens, decision.fire) == (tokens, bool(tokens))
    blank = replace(told(0.9, 0.1, text=" a b"), text="  \n", offsets=((0, 1), (1, 3)))
    assert not Radio(token_bank(), threshold=-0.5)(blank, state()).tokens  # and at no space


def test_radio_averages_layers_and_takes_the_word_it_just_looked_up_as_it_is():
    made = told(0.9, *[0.1] * 7, layers=(1, 2))
    made.state[:, 0, 0] = 0.0  # 0.5 in layer 1: (0.5 + 0.9) / 2 = 0.7
    assert Radio(token_bank((1, 2)))(made, state()).score == pytest.approx(0.7, abs=1e-3)
    assert Radio(token_bank((2,)))(made, state()).score == pytest.approx(0.9, abs=1e-3)
    fresh = Radio(token_bank((2,)))(made, state(fresh=True))
    assert (fresh.fire, fresh.score) == (False, 0.0)
    # "Rome" in two tokens: a hit in the second keeps the text before the word.
    parts = told(*[0.1] * 8, 0.9, text=TWO + " x")
    parts = replace(parts, text=TWO, offsets=(*parts.offsets[:7], (32, 35), (35, 38)))
    assert Radio(token_bank())(parts, state()).position == TWO.index("Rome")
    # Any prompt, no other model, and no text without states.
    trigger = Radio(token_bank())
    trigger.check(SPEC, replace(TESTBED_PROMPT, name="mine", exemplars="Q"))
    with fails("mismatch", "fake@r1", "other@r2"):
        trigger.check(replace(SPEC, id="other", revision="r2"), TESTBED_PROMPT)
    with fails("mismatch", kind=RunError):
        trigger(generation(" a"), state())


def test_the_judges_first_yes_or_no_decides_of_all_questions_at_once():
    replies = {" Yes, I can.": False, " No. Yes": True, " I know not": True, "": True}
    for reply, fires in replies.items():
        spent = []
        lm = FakeLM(lambda prompt, reply=reply: reply)
        (decision,) = LlmJudge().decide_before([state(lm, spend=spent.append)])
        assert (decision.fire, decision.position) == (fires, None)
        assert [g.text for g in spent] == [reply]
        # Of what is written it says no more than it said of the question.
        after = LlmJudge()(generation(" Ana."), state(lm, verdict=decision))
        assert (after.fire, after.score) == (False, decision.score)
    lm = FakeLM(lambda prompt: " yes" if "Ana" in prompt else " no")
    other = replace(state(lm), question=Question("p", "Who is Ana {question}?"))
    assert [d.fire for d in LlmJudge().decide_before([state(lm), other])] == [True, False]
    assert lm.batches == [2]
    assert lm.prompts[1].startswith("Question: Who is Ana {question}?\nCan you")
    LlmJudge("{question} OK?").decide_before([state(lm)])
    assert lm.prompts[-1] == "Who? OK?"


def before(**options):
    """Heads of the prompt's last state, whose score is the sum of its first components over two layers."""
    return ProbingBefore(bank(pool="prompt"), **options)


def test_probing_before_reads_the_prompt_and_not_what_is_written():
    spent = []
    quix = lambda text: [1.0 if "Quix" in text else -0.5, 0, 0, 0]  # noqa: E731
    lm = FakeLM(lambda prompt: " Ana. Or Quix.", state=quix)
    states = [state(lm, spend=spent.append), state(lm, spend=spent.append, passages=(passage("Quix"),))]
    states[1] = replace(states[1], question=Question("p", "Where is Quix?"))
    silent, fired = before().decide_before(states)
    assert (silent.score, silent.fire, fired.score, fired.fire) == (-1.0, False, 2.0, True)
    # One call for all, of a token each and of the questions alone.
    assert lm.batches == [2]
    assert lm.prompts == [TESTBED_PROMPT.question(q) for q in ("Who?", "Where is Quix?")]
    assert [g.text for g in spent] == [" Ana."] * 2
    # Nothing that is written changes it, and after the verdict it never fires.
    for verdict in (silent, fired, None):
        after = before()(generation(" Quix."), state(lm, verdict=verdict))
        assert not after.fire and after.score == (0.25 if verdict is None else verdict.score)


def test_probing_before_takes_the_banks_threshold_and_calibration_and_the_prompt_of_its_training():
    prober = bank(pool="prompt", threshold=0.7, calibration=Temperature(2.0))
    trigger = ProbingBefore(prober)
    lm = FakeLM(lambda prompt: "", state=lambda text: [0.3, 0, 0, 0])  # it ends without a token
    (decision,) = trigger.decide_before([state(lm)])
    assert (decision.threshold, trigger.record["threshold"], decision.fire) == (0.7, 0.7, False)
    assert trigger.probability(np.array([1.0])) == prober.probability(np.array([1.0]))
    trigger.check(SPEC, TESTBED_PROMPT)
    with fails("mismatch", "prompt"):
        trigger.check(SPEC, replace(TESTBED_PROMPT, answer_cue="Hence"))


@pytest.mark.parametrize(("make", "code", "named"), [
    (lambda: Radio(bank()), "mismatch", "pool=tokens"), (lambda: Probing(bank(), np.nan), "bad-value", "NaN"),
    (lambda: Probing(bank(pool="predicting", position="entity")), "mismatch", "--source cot"),
    (lambda: Probing(bank(pool="prompt")), "mismatch", "trigger=probing_before"),
    (lambda: ProbingBefore(bank()), "mismatch", "pool=prompt"), (lambda: Rind("1"), "bad-value", "='1'"),
    (lambda: ProbingBefore(token_bank()), "mismatch", "reads tokens states"),
    (lambda: Probing(bank(), with_entropy=True), "mismatch", "with_entropy=true"),
    (lambda: Probing(bank(), combine="stacked"), "unknown-choice", "trigger.combine=stacked"),
    (lambda: Probing(bank(), threshold=0.1, theta=0.1), "conflict", "trigger.theta=0.1"),
    (lambda: Probing("no/such/folder"), "no-artifact", "no/such/folder"),
    (lambda: Probing(None), "no-artifact", "probers-datagen --source cot"),
    (lambda: Radio(None), "no-artifact", "probers-datagen --source wiki"),
    (lambda: Adaptive(None), "no-artifact", "probers-train head=adaptive"),
])  # fmt: skip
def test_probers_that_a_trigger_cannot_read_are_refused(make, code, named):
    with fails(code, named):
        make()
