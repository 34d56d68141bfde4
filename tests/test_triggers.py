"""Triggers one by one: what they score, when they fire, where, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_lm import NONE, SPEC, FakeLM
from probers.rag.parts import named_part
from probers.rag.triggers import Always, Entropy, Never, Oracle, Probing, Random, Rind, State
from probers.rag.triggers.base import UNANSWERED, check, decide

from probers.bank import ProbeBank
from probers.entropy import EntropyModel
from probers.features import FeatureSpec
from probers.heads import HEADS, WRONG
from probers.prompts import TESTBED_PROMPT
from probers.types import AttentionRows, Decision, Needs, Question, RunError, UserError

BOTH = Needs(layers=(1, 2))
QUESTION = Question("q", "Who?", answers=("Ana",))


def generation(text, entropies=None, needs=NONE, state=lambda text: [0.0] * 4):
    made = FakeLM(lambda p: text, state=state).generate(
        ["Question: Who?\nAnswer:"], max_new_tokens=99, needs=needs
    )[0]
    if entropies is not None:
        made = replace(made, entropies=np.array(entropies, dtype=np.float32))
    return made


def state(lm=None, **fields):
    return State(QUESTION, lm, TESTBED_PROMPT, (10, 14), **fields)


def test_never_and_always_do_not_fire_on_what_was_written():
    for trigger in (Never(), Always()):
        assert not trigger(generation(" a b"), state()).fire
    assert Always().before
    assert not getattr(Never(), "before", False)


def test_oracle_fires_on_a_wrong_first_answer_only():
    made = generation(" x")
    assert Oracle()(made, state(answer="Bob")) == Decision(True, 1.0, 0.5)
    assert Oracle()(made, state(answer="the Ana.")) == Decision(False, 0.0, 0.5)
    assert Oracle()(made, state(answer="")).fire
    assert not Oracle()(made, state(answer="Bob", retrievals=1)).fire


def test_random_scores_agree_with_its_firing():
    for i in range(50):
        for retrievals in (0, 1):
            asked = replace(state(retrievals=retrievals), question=Question(f"q{i}", "?"))
            decision = Random(0.4)(generation(" a"), asked)
            assert decision.fire == (decision.score > decision.threshold)
            assert not (decision.fire and retrievals)
    with pytest.raises(UserError, match="rate=-1"):
        Random(-1)


def test_entropy_by_hand():
    made = generation(" a b c", [0.1, 0.9, 0.2])
    mean = Entropy(0.39)(made, state())
    assert mean.score == pytest.approx(0.4)
    assert (mean.fire, mean.position, mean.token_scores) == (True, None, pytest.approx((0.1, 0.9, 0.2)))
    assert not Entropy(0.41)(made, state()).fire
    assert Entropy(0.8, "max")(made, state()).score == pytest.approx(0.9)
    with pytest.raises(UserError, match="reduction='min'"):
        Entropy(reduction="min")


def test_an_empty_answer_is_no_answer():
    assert Entropy()(generation(""), state()).fire
    assert Entropy()(generation(""), state()).score == UNANSWERED


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
    return replace(
        made,
        text=PAPER_TEXT,
        offsets=PAPER_OFFSETS,
        entropies=np.array([2.0, 1.0, 0.8, 2.0, 1.0, 3.0], dtype=np.float32),
        attention=AttentionRows(rows, np.zeros(6, dtype=np.float32)),
    )


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
    assert not Rind(0.61, "paper")(made, state()).fire
    assert Rind(0.35, "paper").needs == Needs(attention=True)


def test_rind_paper_takes_the_word_it_just_looked_up_as_it_is():
    made = rind_generation()
    # Written anew from " Vamora." on: its own word may not fire again, later ones may.
    shifted = replace(
        made,
        text=PAPER_TEXT[9:],
        offsets=tuple((a - 9, b - 9) for a, b in PAPER_OFFSETS[2:]),
        token_ids=made.token_ids[2:],
        entropies=made.entropies[2:],
        attention=AttentionRows(made.attention.rows[2:, 2:], made.attention.column_max[2:]),
    )
    assert Rind(0.35, "paper")(shifted, state()).fire
    fresh = Rind(0.35, "paper")(shifted, state(fresh=True))
    assert (fresh.fire, fresh.score) == (False, 0.0)
    assert fresh.token_scores == pytest.approx((0.4, 0.6, 0, 0))


class Alone(FakeLM):
    """attention_alone with given column maxima, all generations in one call."""

    def __init__(self, column_max):
        super().__init__(lambda p: "")
        self.column_max, self.calls = column_max, 0

    def attention_alone(self, generations, *, progress=None):
        self.calls += 1
        return [AttentionRows(np.zeros((1, 0)), np.array(c, dtype=np.float32)) for c in self.column_max]


def test_rind_released_fires_before_the_first_sentence_that_has_a_hit():
    text = " Rivers run. Vamora lies near Telka. Telka ends."
    made = generation(text, [0.1, 0.1, 2.0, 0.1, 0.1, 1.0, 3.0, 0.1])
    # Second sentence: shares of attention .5 .1 .1 .3 times 4 words: 2.0 .4 .4 1.2; S: 4.0 .04 0 1.2
    attention = [0.5, 0.5, 0.5, 0.1, 0.1, 0.3, 0.9, 0.1]
    lm = Alone([attention])
    decision = Rind(1.0)(made, state(lm))
    assert decision.position == text.index("Vamora")
    assert decision.tokens == (2, 5)
    # Third sentence: shares .9 .1 times 2 words: S of Telka 3 * 1.8 = 5.4 is the highest of all.
    assert decision.score == pytest.approx(5.4, rel=1e-5)
    assert decision.token_scores[2] == pytest.approx(4.0, rel=1e-5)
    assert Rind(1.5)(made, state(lm)).tokens == (2,)
    assert Rind(4.5)(made, state(lm)).position == text.index("Telka ends")
    assert not Rind(5.5)(made, state(lm)).fire
    assert Rind(1.0).needs == Needs()


def test_rind_released_takes_the_sentence_it_just_looked_up_as_it_is():
    text = " Vamora lies. Telka ends."
    made = generation(text, [2.0, 0.1, 2.0, 0.1])
    lm = Alone([[0.5, 0.5, 0.5, 0.5]])
    assert Rind(1.0)(made, state(lm)).position == text.index("Vamora")
    assert Rind(1.0)(made, state(lm, fresh=True)).position == text.index("Telka")
    only = generation(" Vamora lies.", [2.0, 0.1])
    assert not Rind(1.0)(only, state(Alone([[0.5, 0.5]]), fresh=True)).fire


def test_rind_looks_at_a_whole_batch_in_one_pass_and_an_empty_text_does_not_fire():
    lm = Alone([[0.5, 0.5], []])
    decisions = decide(Rind(1.0), [generation(" Vamora lies.", [2.0, 0.1]), generation("")], [state(lm)] * 2)
    assert lm.calls == 1
    assert [d.fire for d in decisions] == [True, False]
    assert decide(Rind(1.0), [], []) == []
    with pytest.raises(UserError, match="variant='new'"):
        Rind(variant="new")


def bank(layers=(1, 2), threshold=0.25, **fields):
    """Linear heads whose margin (wrong minus correct) is the first component of their layer's state."""
    head = HEADS["linear"]([f"layer{k}" for k in layers], 4)
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.zero_()
        head.linear.weight[:, 0, WRONG] = 1.0
    spec = FeatureSpec(SPEC, layers, 4, prompt=TESTBED_PROMPT.fingerprint)
    return ProbeBank(spec, head, threshold, **fields)


def probed(value, needs=BOTH):
    return generation(" a b", needs=needs, state=lambda text: [value, 0, 0, 0])


@pytest.mark.parametrize("fields", [{"position": "entity"}, {"pool": "tokens"}])
def test_probing_refuses_heads_that_do_not_read_whole_answers(fields):
    made = bank()
    other = replace(made, spec=replace(made.spec, **fields))
    with pytest.raises(UserError, match="scores whole answers, and the prober reads .* --source cot"):
        Probing(other)
    Probing(made)


def test_probing_sums_layers_and_fires_above_the_banks_threshold():
    trigger = Probing(bank())
    assert trigger.needs == Needs(layers=(1, 2))
    assert trigger(probed(0.125), state()) == Decision(False, 0.25, 0.25)
    assert trigger(probed(0.25), state()) == Decision(True, 0.5, 0.25)
    assert Probing(bank(), threshold=0.75)(probed(0.25), state()).fire is False
    # theta = -threshold: higher theta retrieves more.
    assert Probing(bank(), theta=-0.75)(probed(0.25), state()).fire is False
    assert Probing(bank(), theta=0.0)(probed(0.25), state()) == Decision(True, 0.5, -0.0)
    with pytest.raises(UserError, match="not both"):
        Probing(bank(), threshold=0.1, theta=0.1)


def test_probing_reads_its_own_layers_among_those_recorded():
    made = probed(0.0, Needs(layers=(0, 1, 2)))
    made = replace(made, states=np.array([[9.0, 0, 0, 0], [1.0, 0, 0, 0], [2.0, 0, 0, 0]]))
    assert Probing(bank((1, 2)))(made, state()).score == 3.0
    assert Probing(bank((2,)))(made, state()).score == 2.0


def test_probing_decides_a_batch_at_once_and_empty_answers_fire():
    trigger = Probing(bank())
    made = [probed(0.25), replace(generation(""), needs=trigger.needs), probed(0.0)]
    decisions = decide(trigger, made, [state()] * 3)
    assert [d.fire for d in decisions] == [True, True, False]
    assert [d.score for d in decisions] == [0.5, UNANSWERED, 0.0]


def test_probing_combines_as_told():
    single, other = bank(combine="logits"), Probing(bank(combine="logits"), combine="probabilities")
    assert Probing(single)(probed(1.0), state()).threshold == 0.25
    assert other(probed(1.0), state()).threshold == 0.0  # another scale: the bank's threshold does not apply
    assert Probing(bank(), combine="probabilities", threshold=0.1)(probed(1.0), state()).threshold == 0.1


def test_probing_with_entropy_uses_the_banks_logistic_model():
    model = EntropyModel(
        mean=(0.0,) * 5, scale=(1.0,) * 5, weights=(2.0, 3.0, 0.0, 0.0, 0.0), intercept=-1.0, threshold=0.4
    )
    trigger = Probing(bank(entropy_model=model), with_entropy=True)
    decision = trigger(replace(probed(0.25), entropies=np.array([0.1, 0.3], dtype=np.float32)), state())
    assert decision.score == pytest.approx(2 * 0.5 + 3 * 0.2 - 1.0)  # = 0.6
    assert (decision.fire, decision.threshold) == (True, 0.4)
    with pytest.raises(UserError, match="without signals"):
        Probing(bank(), with_entropy=True)
    with pytest.raises(UserError, match="another combine"):
        Probing(bank(entropy_model=model), combine="probabilities", with_entropy=True)


def test_probing_refuses_another_model_or_prompt_and_names_both():
    trigger = Probing(bank())
    check(trigger, SPEC, TESTBED_PROMPT)
    with pytest.raises(UserError, match=r"fake@r1.*other@r2"):
        check(trigger, replace(SPEC, id="other", revision="r2"), TESTBED_PROMPT)
    with pytest.raises(UserError, match=TESTBED_PROMPT.fingerprint):
        check(trigger, SPEC, replace(TESTBED_PROMPT, name="mine", exemplars="Question: ..\n"))
    check(Never(), replace(SPEC, id="other"), TESTBED_PROMPT)


def test_probing_needs_a_bank_and_states():
    with pytest.raises(UserError, match="probers-train"):
        Probing(None)
    with pytest.raises(UserError, match="no/such/folder"):
        Probing("no/such/folder")
    with pytest.raises(RunError, match="hidden states"):
        Probing(bank())(generation(" a"), state())


def test_a_bank_may_be_given_by_its_folder(tmp_path):
    bank(threshold=0.5).save_pretrained(tmp_path / "prober")
    assert Probing(str(tmp_path / "prober"))(probed(0.0), state()).threshold == 0.5


def test_nan_scores_are_errors_for_any_trigger():
    class Broken:
        needs = Needs()

        def __call__(self, made, where):
            return Decision(False, float("nan"), 0.5)

    with pytest.raises(RunError, match=r"broken.*'q'"):
        decide(Broken(), [generation(" a")], [state()])


def test_unknown_names_and_options_list_the_choices():
    with pytest.raises(UserError, match="always, entropy, never, oracle, probing, random, rind"):
        named_part("trigger", "sometimes", {})
    with pytest.raises(UserError, match="its options are threshold, reduction"):
        named_part("trigger", "entropy", {"treshold": 1})
    with pytest.raises(UserError, match="_target_"):
        named_part("trigger", {"threshold": 1}, {})
