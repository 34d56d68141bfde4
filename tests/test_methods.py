"""Every method of the papers in one loop: when it retrieves, what stays, the same in any batch."""

import re
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.fake_lm import linear_bank, passage
from helpers.refusals import fails
from test_loop import KNOWN, QUESTIONS, SILENT, asked, find, make, without_seconds

from probers.cli.compose import request
from probers.model.causal_lm import CausalLM
from probers.prompts import TESTBED_PROMPT
from probers.rag import triggers as rules
from probers.rag.comparison.compare import selection_of
from probers.rag.comparison.trajectories import tune
from probers.rag.loop import RAG
from probers.rag.protocol import UNANSWERED, Trigger
from probers.rag.queries import AnswerQuery, QuestionQuery
from probers.rag.retrievers import BM25
from probers.testbed.assets import load_corpus, load_questions
from probers.types import Needs, RunError

# The scripted model writes three sentences and knows what it reads; some it knows without.


def prose(prompt):
    """What is left of its text behind what is accepted."""
    town, reading = asked(prompt)
    if prompt.endswith("\nReply:"):
        return " yes" if f"Land{town}" in prompt or town in KNOWN else " no"
    partial = prompt.rpartition("Answer:")[2]
    for land in (f"Land{town}" if reading or town in KNOWN else "Atlantis", "Atlantis", f"Land{town}"):
        text = f" Town {town} is quite old. It lies in {land}. So the answer is {land}.\nQuestion: more?"
        if text.startswith(partial):
            return text[len(partial) :]
    raise AssertionError(partial)


def hesitates(word):
    return 1.2 if word == "Atlantis." else 0.05


@dataclass
class Tail:
    """Asks with the town and the last words before the place; remembers them by question."""

    needs = Needs()

    def __call__(self, question, generation, decision, state):
        text = state.partial + generation.text[: decision.position]
        return f"{question.question} {' '.join(text.split()[-3:])}"


class Strategies:
    """Town number modulo 3: no, single, multi."""

    def __init__(self):
        self.batches = []

    def probabilities(self, questions):
        self.batches.append(len(questions))
        kinds = [int(re.findall(r"\d+", q)[0]) % 3 for q in questions]
        return np.eye(3)[kinds] * 0.7 + 0.1


def heads(pool="mean"):
    """Heads whose margin is the first component of the state."""
    return linear_bank(pool=pool, position="entity" if pool == "predicting" else "generated")


def wrongness(text):
    """The state of a text, or of the prompt of a question that will be answered wrongly."""
    ignorant = text.endswith("Answer:") and not asked(text)[1] and asked(text)[0] not in KNOWN
    return [1.0 if ignorant or "Atlantis" in text else -1.0, 0, 0, 0]


def told(trigger, **options):
    """A loop over ``prose`` with passages of which every query finds other ones."""
    options = {"query": Tail(), "max_retrievals": 4} | options
    finds = lambda q: [passage(f"Town is found by {q}"), *find(q)]  # noqa: E731
    rag, lm, retriever = make(trigger, writes=prose, entropy=hesitates, finds=finds, **options)
    lm.state = wrongness
    return rag, lm, retriever


EVERY = {
    "fixed_length": lambda: rules.FixedLength(3), "fixed_sentence": rules.FixedSentence, "flare": rules.Flare,
    "flare_mean": lambda: rules.Flare(0.15, "dragin"), "entropy": lambda: rules.Entropy(0.2),
    "entropy_sentence": lambda: rules.Entropy(0.3, "max", "sentence"),
    "rind_paper": lambda: rules.Rind(0.01, "paper"), "rind_released": lambda: rules.Rind(0.8),
    "radio": lambda: rules.Radio(heads("tokens"), above_mean=False), "entity_signal": rules.EntitySignal,
    "before_entity": lambda: rules.BeforeEntity(heads("predicting"), threshold=0.7),
    "probing": lambda: rules.Probing(heads()), "probing_before": lambda: rules.ProbingBefore(heads("prompt")),
    "helps": lambda: rules.Helps(replace(heads(), label="helps")), "llm_judge": rules.LlmJudge,
    "helps_before": lambda: rules.HelpsBefore(replace(heads("prompt"), label="helps")),
    "adaptive": lambda: rules.Adaptive(Strategies()), "random": lambda: rules.Random(0.8),
    "oracle": rules.Oracle, "always": rules.Always, "never": rules.Never,
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_no_trigger_depends_on_the_batch_and_a_killed_run_goes_on(name, tmp_path):
    whole = list(map(without_seconds, told(EVERY[name]())[0].answer(QUESTIONS)))
    rag, lm, _ = told(EVERY[name]())
    assert [without_seconds(rag(q)) for q in QUESTIONS] == whole
    path = tmp_path / "traces.jsonl"
    rag.run(QUESTIONS, path)
    assert max(lm.batches) == len(QUESTIONS) or name == "adaptive"  # which groups them by look-ahead
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:30])
    resumed = told(EVERY[name]())[0].run(QUESTIONS, path)
    assert list(map(without_seconds, resumed)) == whole
    fired = {a["counters"]["retrievals"] for a in whole}
    assert fired == {0} if name == "never" else max(fired) > 0
    for decision in (r["decision"] for a in whole for r in a["rounds"] if r["decision"] is not None):
        assert decision["fire"] == (decision["score"] > decision["threshold"])


def test_fixed_rules_by_hand():
    rag, lm, retriever = told(rules.FixedLength(5), query=QuestionQuery(), max_retrievals=9)
    answer = rag(QUESTIONS[2])
    # " Town 2 is quite old. It lies in Land2. So the answer is Land2.": 14 words, so behind 5 and 10.
    stretches = ["", " Town 2 is quite old.", " It lies in Land2. So", " the answer is Land2."]
    assert [r.accepted for r in answer.rounds] == stretches
    assert retriever.queries == ["Where is town 2?"] * 3
    assert lm.prompts[1].endswith("Answer: Town 2 is quite old.")
    # Six tokens show that there are more than five; the last pass shows the end.
    assert (answer.counters.retrievals, answer.counters.generations) == (3, 3)
    assert answer.counters.tokens == 6 + 6 + 4
    # With one retrieval left out, the last stretch is written in one go.
    short = told(rules.FixedLength(5), query=QuestionQuery(), max_retrievals=2)[0](QUESTIONS[2])
    assert (short.retrievals, short.counters.generations, short.text) == (2, 2, answer.text)
    rag, lm, retriever = told(rules.FixedSentence(), max_retrievals=9)
    answer = rag(QUESTIONS[1])
    sentences = ["", " Town 1 is quite old.", " It lies in Land1.", " So the answer is Land1."]
    assert [r.accepted for r in answer.rounds] == sentences
    town = "Where is town 1?"
    assert retriever.queries == [town, f"{town} is quite old.", f"{town} lies in Land1."]
    assert answer.counters.tokens == 6 + 5 + 5  # the first word of the next sentence shows the end of one


@pytest.mark.parametrize("name", [
    "flare", "flare_mean", "entropy_sentence", "rind_released", "radio", "before_entity", "entity_signal",
])  # fmt: skip
def test_an_unsure_sentence_is_written_anew_and_what_is_before_it_stays(name):
    answer = told(EVERY[name]())[0](QUESTIONS[1])
    # All tokens of a text have one state here, so that radio fires at the first.
    expected = "" if name == "radio" else " Town 1 is quite old."
    expected += " It lies in" if name in ("before_entity", "entity_signal") else ""
    assert answer.rounds[0].accepted == expected
    assert answer.answer == "Land1" and "Atlantis" not in answer.text
    assert told(EVERY[name]())[0](QUESTIONS[2]).retrievals == 0  # it knows that one


def whole(trigger):
    """The same trigger, which looks at all that is written."""
    kind = type("Whole", (type(trigger),), {"look_ahead": Trigger.look_ahead})
    return kind(**{each.name: getattr(trigger, each.name) for each in fields(trigger) if each.init})


@pytest.mark.parametrize("name", ["fixed_length", "fixed_sentence", "adaptive"])
def test_writing_no_more_than_is_looked_at_changes_nothing_but_the_tokens(name):
    ahead, all_of_it = (told(make(EVERY[name]()))[0].answer(QUESTIONS) for make in (lambda same: same, whole))
    for one, other in zip(ahead, all_of_it, strict=True):
        assert (one.text, one.answer, one.retrievals) == (other.text, other.answer, other.retrievals)
        steps = [[(r.query, r.passage_ids, r.accepted) for r in answer.rounds] for answer in (one, other)]
        assert steps[0] == steps[1]
    assert sum(a.counters.tokens for a in ahead) < 0.9 * sum(a.counters.tokens for a in all_of_it)


def test_a_text_that_was_cut_short_goes_on_also_when_nothing_is_retrieved_there():
    class Undecided(Trigger):
        """Looks at one sentence at a time, and fires at none."""

        needs = Needs()

        def look_ahead(self, question):
            return rules.LookAhead(sentences=1) if question.id != "q0" else rules.LookAhead(tokens=4)

        def __call__(self, generation, state):
            return SILENT

    rag, _, retriever = told(Undecided())
    answers = rag.answer(QUESTIONS[:3])
    assert [a.text for a in answers] == [a.text for a in told(rules.Never())[0].answer(QUESTIONS[:3])]
    assert [a.counters.generations for a in answers] == [3, 3, 3] and not retriever.queries


def test_adaptive_retrieves_as_its_classifier_says():
    classifier = Strategies()
    rag, _, retriever = told(rules.Adaptive(classifier))
    answers = rag.answer(QUESTIONS[:6])
    # 0 and 3: never. 1 and 4: once, before. 2 and 5: before, and behind both sentences.
    assert [a.retrievals for a in answers] == [0, 1, 3, 0, 1, 3]
    assert [a.answer for a in answers] == ["Land0", "Land1", "Land2", "Atlantis", "Land4", "Land5"]
    assert classifier.batches == [6]
    assert retriever.queries[:4] == [QUESTIONS[i].question for i in (1, 2, 4, 5)]
    first = [next(r.decision for r in a.rounds if r.decision is not None) for a in answers]
    # P = (0.8, 0.1, 0.1): 0.1 - 0.8; (0.1, 0.8, 0.1): 0.8 - 0.1.
    assert [d.score for d in first] == pytest.approx([-0.7, 0.7, 0.7] * 2)
    broken = SimpleNamespace(probabilities=lambda questions: np.full((len(questions), 3), np.nan))
    with fails("model", "adaptive gave NaN", "'q3'", kind=RunError):
        told(rules.Adaptive(broken))[0](QUESTIONS[3])


@pytest.mark.parametrize(("name", "scores", "limits"), [
    ("llm_judge", [[0.0], [1.0, 1.0]], [[0.0], [0.5, 1.0]]),
    ("probing_before", [[-2.0], [2.0, 2.0]], [[0.0], [0.0, 2.0]]),
])  # fmt: skip
def test_who_decides_before_anything_is_written_is_asked_once_and_saves_the_draft(name, scores, limits):
    rag, lm, retriever = told(EVERY[name](), query=AnswerQuery())
    known, unknown = rag.answer([QUESTIONS[2], QUESTIONS[3]])
    plain = told(rules.Never())[0](QUESTIONS[2])
    # One token, the judge's " yes" or one that nobody reads, and then the answer, with passages or without.
    assert (known.retrievals, known.counters.generations, known.text) == (0, 2, plain.text)
    assert known.counters.tokens == plain.counters.tokens + 1
    assert (unknown.retrievals, unknown.counters.generations) == (1, 2)
    assert unknown.text == told(rules.Always())[0](QUESTIONS[3]).text
    assert retriever.queries == [QUESTIONS[3].question]
    assert [p.startswith("Context:") for p in lm.prompts] == [False, False, False, True]
    decisions = [[r.decision for r in a.rounds if r.decision] for a in (known, unknown)]
    assert [[d.score for d in each] for each in decisions] == scores
    assert [[d.threshold for d in each] for each in decisions] == limits


def test_the_threshold_before_an_answer_is_chosen_from_the_verdicts():
    """As that of a trigger which judges the answers, with the same scores, beside it."""
    questions = [replace(QUESTIONS[i % 8], id=f"q{i}") for i in range(24)]
    rag, lm, _ = told(rules.Never())
    town = lambda text: 0.1 * asked(text)[0]  # noqa: E731
    lm.state = lambda text: [wrongness(text)[0] + (town(text) if text.endswith("Answer:") else 0), 0, 0, 0]
    trigger = rules.ProbingBefore(heads("prompt"), threshold=99.0)
    tuned = tune(rag, {"before": trigger, "entropy": rules.Entropy(0.5)}, questions)
    scores = {q.question: 2 * lm.state(TESTBED_PROMPT.question(q.question))[0] for q in questions}
    wrong = {q.question: not told(rules.Never())[0](q).answer.startswith("Land") for q in questions}
    highest = max(score for asks, score in scores.items() if not wrong[asks])
    lowest = min(score for asks, score in scores.items() if wrong[asks])
    assert highest < lowest
    assert tuned["before"].threshold == pytest.approx((highest + lowest) / 2, abs=0.01)  # half precision
    assert tuned["before"](np.array([lowest]))[0] > 0.5 > tuned["before"](np.array([highest]))[0]


def test_published_thresholds_are_kept_and_the_others_are_tuned():
    names = "flare,flare_mean,entropy,entropy_sentence,rind_released,fixed_length,fixed_sentence,llm_judge"
    methods = selection_of(request("compare", [f"triggers=[{names}]"])).build(heads)
    tuned = {"flare_mean", "entropy", "entropy_sentence", "rind_released"}
    assert {m.name for m in methods if m.tunable} == tuned
    assert {m.name for m in methods if m.untested} == {"fixed_length", "fixed_sentence"}


@pytest.mark.parametrize("trigger", [rules.FixedLength(3), rules.FixedSentence(), rules.Flare()])
def test_a_real_model_gives_the_same_in_any_batch_and_whatever_it_looks_ahead(trigger):
    lm, retriever = CausalLM.from_pretrained("testbed", batch_size=4), BM25(load_corpus()[:400])
    questions = [q for q in load_questions() if q.split == "test"][:3]
    prompt = replace(TESTBED_PROMPT, stop=("\nQuestion: ",))
    rag = RAG(lm, retriever, trigger, Tail(), prompt, k=1, max_new_tokens=20, max_retrievals=3)
    together = rag.answer(questions)
    assert [without_seconds(rag(q))["text"] for q in questions] == [a.text for a in together]
    if trigger.look_ahead(questions[0]) is not None:
        plain = replace(rag, trigger=whole(trigger)).answer(questions)
        assert [a.text for a in plain] == [a.text for a in together]
    assert sum(a.retrievals for a in together) > 0


def test_an_answer_without_a_token_does_not_bend_the_calibration_of_the_others():
    """Its score is far beyond all others; the map from these to P(wrong) is as without it."""
    questions = [replace(QUESTIONS[i % 8], id=f"q{i}") for i in range(40)]

    def found(silent):
        rag, lm, _ = told(rules.Never(), answer_tokens=0)
        write = lm.write
        lm.write = lambda prompt: "" if silent and asked(prompt)[0] == 1 else write(prompt)
        asks = questions if silent else [q for q in questions if q.question != QUESTIONS[1].question]
        return tune(rag, {"entropy": rules.Entropy(0.5)}, asks)["entropy"]

    with_silent, without = found(True), found(False)
    scores = np.linspace(0.05, 0.5, 9)
    np.testing.assert_allclose(with_silent(scores), without(scores), atol=1e-9)
    assert np.ptp(without(scores)) > 0.5  # it does depend on the score
    assert with_silent(np.array([UNANSWERED])) > 0.99
