"""The loop with a scripted model: who retrieves when, what the prompts say, limits, resuming."""

import io
import itertools
import json
import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from helpers.fake_lm import FakeLM, FakeRetriever, passage, tokens
from helpers.refusals import fails

from probers.prompts import TESTBED_PROMPT
from probers.rag.command import Terminal
from probers.rag.loop import RAG
from probers.rag.protocol import LookAhead
from probers.rag.queries import AnswerQuery, QuestionQuery
from probers.rag.traces import Answer, Counters, TraceFile
from probers.rag.triggers import Always, Entropy, Never, Oracle, Random, Trigger
from probers.types import Decision, Needs, Question, RunError

QUESTIONS = [Question(f"q{i}", f"Where is town {i}?", answers=(f"Land{i}",)) for i in range(8)]
KNOWN = {0, 2, 5}


def asked(prompt):
    """(number of the town asked about, whether the prompt shows passages)."""
    return int(re.findall(r"Where is town (\d+)\?", prompt)[-1]), prompt.startswith("Context:")


def write(prompt):
    town, reading = asked(prompt)
    land = f"Land{town}" if reading or town in KNOWN else "Nowhere"
    return f" Town {town} is in {land}. So the answer is {land}.\nQuestion: more?"


def find(query):
    town = re.findall(r"[Tt]own (\d+)", query)[0]
    return [passage(f"Town {town} is in Land{town}."), passage("Something else.")]


def make(trigger, *, writes=write, finds=find, entropy=lambda word: 0.1, context=1_000_000, **options):
    lm, retriever = FakeLM(writes, entropy, context=context), FakeRetriever(finds)
    return RAG(lm, retriever, trigger, **{"query": QuestionQuery(), **options}), lm, retriever


def one(trigger, **options):
    """The answer to a question that the model does not know, and the model."""
    rag, lm, _ = make(trigger, **options)
    return rag(QUESTIONS[1]), lm


@dataclass
class Scripted:
    """Fires as told: one decision per call and question, the last one repeated; notes what it is shown."""

    decisions: list
    needs = Needs()
    seen: list = field(default_factory=list)

    def __call__(self, generation, state):
        self.seen.append((generation, state))
        return self.decisions[min(state.retrievals, len(self.decisions) - 1)]


def fires(position=None, tokens=()):
    return Decision(True, 1.0, 0.5, position=position, tokens=tokens)


SILENT, START = Decision(False, 0.0, 0.5), fires(position=0, tokens=(0,))


def test_never_writes_once_and_always_retrieves_once_with_the_question_before_that():
    rag, lm, retriever = make(Never())
    answers = rag.answer(QUESTIONS)
    assert retriever.queries == []
    assert [a.answer for a in answers] == [f"Land{i}" if i in KNOWN else "Nowhere" for i in range(8)]
    assert not any("Context:" in p for p in lm.prompts)
    assert answers[0].text == "Town 0 is in Land0. So the answer is Land0."
    assert all((a.retrievals, a.counters.generations) == (0, 1) for a in answers)
    rag, lm, retriever = make(Always(), query=AnswerQuery())
    answers = rag.answer(QUESTIONS)
    assert retriever.queries == [q.question for q in QUESTIONS]
    assert [a.answer for a in answers] == [f"Land{i}" for i in range(8)]
    assert all(p.startswith("Context:\n[1] Town") for p in lm.prompts)
    assert all((a.retrievals, a.counters.generations) == (1, 1) for a in answers)
    first = answers[3].rounds[0]
    assert (first.text, first.query) == ("", "Where is town 3?")
    assert first.passage_ids[0] == "p-Town 3 is in Land3."


def test_oracle_retrieves_exactly_for_wrong_closed_book_answers_and_once():
    rag, lm, _ = make(Oracle())
    answers = rag.answer(QUESTIONS)
    assert [a.retrievals for a in answers] == [0 if i in KNOWN else 1 for i in range(8)]
    assert lm.batches == [8, 8 - len(KNOWN)]  # finished questions leave the batch
    # Still wrong after reading: it does not ask again.
    rag, _, _ = make(Oracle(), writes=lambda p: " So the answer is Nowhere.")
    assert [a.retrievals for a in rag.answer(QUESTIONS)] == [1] * 8
    with fails("labels", "'question'"):
        rag("Where is town 0?")
    # It judges the answer that would be given, also where the cue forces it.
    cut = lambda p: " Land0." if p.endswith("So the answer is") else " Town 0 is " + "very " * 50  # noqa: E731
    answer = make(Oracle(), writes=cut, max_new_tokens=5)[0](QUESTIONS[0])
    assert (answer.answer, answer.retrievals, answer.counters.forced) == ("Land0", 0, True)


def test_random_grants_its_rate_whatever_the_batch():
    many = [Question(f"r{i}", f"Where is town {i}?") for i in range(400)]
    for rate, allowed in ((0.0, {0}), (0.3, {0, 1}), (1.0, {1}), (1.6, {1, 2}), (2.5, {2, 3})):
        rag, _, _ = make(Random(rate))
        counts = [a.retrievals for a in rag.answer(many)]
        assert set(counts) == allowed and sum(counts) / 400 == pytest.approx(rate, abs=0.08)
        assert [rag(q).retrievals for q in many[:20]] == counts[:20]
    other = make(Random(0.3, seed=1))[0].answer(many)
    assert [a.retrievals for a in other] != [a.retrievals for a in make(Random(0.3))[0].answer(many)]


def numbered():
    """A search that finds another passage every time."""
    texts = itertools.count()
    return lambda query: [passage(f"number {next(texts)}")]


def test_state_and_prompts_tell_where_the_question_the_accepted_text_and_the_exemplars_stand():
    trigger = Scripted([fires(position=8), SILENT])
    template = replace(TESTBED_PROMPT, exemplars="Question: Who?\nAnswer: Nobody.\n")
    writes = lambda prompt: write(prompt.removeprefix(template.exemplars))  # noqa: E731
    _, lm = one(trigger, prompt=template, writes=writes)
    assert lm.prefixes == {template.exemplars}
    for generation, state in trigger.seen:
        start, end = state.question_span
        assert generation.prompt[start:end] == state.question.question
        assert generation.prompt.endswith(state.partial)
    states = [(s.partial, s.fresh, len(s.passages), s.retrievals) for _, s in trigger.seen]
    assert states == [("", False, 0, 0), (" Town 1", True, 2, 1)]


def test_the_limit_of_retrievals_is_exact_and_the_last_answer_stands():
    for limit in (0, 1, 3):
        answer, _ = one(Scripted([fires()]), finds=numbered(), max_retrievals=limit)
        assert (answer.retrievals, answer.counters.generations) == (limit, limit + 1)
        assert answer.rounds[-1].decision.fire and answer.rounds[-1].query is None and answer.text
    assert one(Always(), max_retrievals=0)[0].retrievals == 0
    # New passages stand in place of the old ones.
    answer, lm = one(Scripted([fires(), fires(), SILENT]), finds=numbered())
    assert [re.findall(r"number \d", p) for p in lm.prompts] == [[], ["number 0"], ["number 1"]]
    assert [r.passage_ids for r in answer.rounds] == [("p-number 0",), ("p-number 1",), ()]


def test_a_retrieval_that_changes_nothing_is_counted_and_the_same_is_judged_again():
    rag, lm, _ = make(Scripted([fires()]), max_retrievals=9)
    answer = rag(QUESTIONS[1])
    # Closed book, then with passages; every other search brings the same passages.
    assert (answer.retrievals, answer.counters.generations, answer.counters.alarms) == (9, 10, 10)
    assert len(lm.prompts) == 2 and [r.query for r in answer.rounds] == ["Where is town 1?"] * 9 + [None]
    closed, read = (rag.lm.generate([p], max_new_tokens=64, stop=["\n"])[0] for p in lm.prompts[:2])
    assert [r.text for r in answer.rounds] == [closed.text] + 9 * [read.text]
    assert [r.accepted for r in answer.rounds] == [""] * 9 + [read.text]
    assert answer.counters.tokens == len(closed.token_ids) + 9 * len(read.token_ids)
    assert answer.counters.sentences == 10 * 2
    assert (answer.counters.kept_tokens, answer.answer) == (len(read.token_ids), "Land1")
    # A trigger may decide otherwise on what it judges again; the other questions stay as they are.
    rag, lm, _ = make(Scripted([fires(), fires(), fires(), SILENT]), max_retrievals=9)
    answer = rag(QUESTIONS[1])
    assert (answer.retrievals, answer.counters.generations, len(lm.prompts)) == (3, 4, 2)
    assert without_seconds(rag.answer(QUESTIONS)[1]) == without_seconds(answer)


def capitals(prompt):
    """Three sentences, of which a prompt gets those that are not there."""
    return " ONE IS SO. TWO IS SO. SO THE ANSWER IS THREE."[len(prompt.rpartition("Answer:")[2]) :]


def test_a_hit_at_the_beginning_with_the_same_passages_is_judged_as_fresh():
    trigger = Scripted([fires(position=1, tokens=(0,)), SILENT])
    answer, lm = one(trigger, finds=lambda q: [])
    text = answer.rounds[0].text
    assert [(g.text, s.fresh, s.retrievals) for g, s in trigger.seen] == [(text, False, 0), (text, True, 1)]
    assert (answer.retrievals, answer.counters.generations, len(lm.prompts)) == (1, 2, 1)
    # What is behind what is taken as it is can fire yet: the second sentence here.
    doubts = lambda word: 1.0 if word == "SO." else 0.1  # noqa: E731
    answer, lm = one(Entropy(0.5, "max", "sentence"), writes=capitals, finds=lambda q: [], entropy=doubts)
    accepted = ["", " ONE IS SO.", " TWO IS SO. SO THE ANSWER IS THREE."]
    assert [r.accepted for r in answer.rounds] == accepted
    assert (answer.retrievals, answer.counters.generations, len(lm.prompts)) == (2, 3, 2)


def test_only_what_would_be_written_alike_is_taken_again():
    """Not a text that was ended early, with no look ahead left; not where one sentence is to be read."""

    class Early(Scripted, Trigger):
        def look_ahead(self, question):
            return LookAhead(tokens=1)

    answer, lm = one(Early([fires()]), finds=lambda q: [], max_retrievals=1)
    assert len(lm.prompts) == 2 and lm.prompts[0] == lm.prompts[1]
    assert len(answer.rounds[0].tokens) < len(answer.rounds[1].tokens)
    answer, lm = one(Reader([START, SILENT]), writes=capitals, finds=lambda q: [])
    assert lm.prompts[0] == lm.prompts[1]
    assert [r.accepted for r in answer.rounds] == ["", " ONE IS SO.", " TWO IS SO. SO THE ANSWER IS THREE."]
    # A text that its limit ended would end there again.
    answer, lm = one(Scripted([fires()]), finds=lambda q: [], max_new_tokens=4, answer_tokens=0)
    assert (answer.text, answer.retrievals, len(lm.prompts)) == ("Town 1 is in", 3, 1)


def test_a_hit_in_the_middle_keeps_the_text_before_it_and_goes_on_from_there():
    text = " Town 1 is in Nowhere. So the answer is Nowhere."
    writes = lambda prompt: " Land1. So the answer is Land1." if asked(prompt)[1] else text  # noqa: E731
    hit = fires(position=text.index("Nowhere"), tokens=(4,))
    answer, lm = one(Scripted([hit, SILENT]), writes=writes)
    assert lm.prompts[1].endswith("Question: Where is town 1?\nAnswer: Town 1 is in")  # no space at the end
    assert answer.text == "Town 1 is in Land1. So the answer is Land1."
    assert [r.accepted for r in answer.rounds] == [" Town 1 is in", " Land1. So the answer is Land1."]
    # At the very beginning nothing is kept.
    assert one(Scripted([fires(position=1), SILENT]), writes=writes)[1].prompts[1].endswith("\nAnswer:")


@dataclass
class Reader(Scripted, Trigger):
    """Fires as told, and takes unjudged what it is told to of what is written from passages."""

    takes: str = "sentence"


def sentences(prompt):
    """Three sentences, of which a prompt gets those that are not there; read from passages in capitals."""
    text = " One is so. Two is so. So the answer is Three."
    left = text.lower()[len(prompt.rpartition("Answer:")[2]) :]
    return left.upper() if prompt.startswith("Context:") else left


def reading(text):
    """Writes :func:`sentences`, and this text where a prompt shows passages."""
    return lambda prompt: text if prompt.startswith("Context:") else sentences(prompt)


def test_the_token_limit_counts_what_was_kept_before():
    """Also of questions that are written together: what was kept before differs by town."""

    class Cutting(Scripted):
        def __call__(self, generation, state):
            town, reading = asked(generation.prompt)
            return SILENT if reading else fires(position=5 * (town + 1))

    limits = {"writes": lambda p: " word" * 50, "max_new_tokens": 10, "answer_tokens": 0}
    rag, lm, _ = make(Cutting([]), **limits)
    answers = rag.answer(QUESTIONS[:4])
    assert lm.batches == [4, 4] and [len(a.rounds[0].accepted.split()) for a in answers] == [1, 2, 3, 4]
    # 1 word kept, 10 allowed: the second pass may write 9 more.
    assert [a.counters.tokens for a in answers] == [19, 18, 17, 16]
    assert [len(a.text.split()) for a in answers] == [10] * 4
    assert (answers[0].answer, answers[0].counters.forced) == ("", False)
    # A hit behind the last allowed token leaves nothing to write: the text stands.
    assert one(Scripted([fires(position=50)]), **limits)[0].retrievals == 0


def test_a_trace_is_json_and_comes_back_equal_and_those_of_other_questions_are_refused(tmp_path):
    answer = make(Entropy(0.05))[0](QUESTIONS[1])
    assert Answer.from_trace(json.loads(json.dumps(answer.trace))) == answer
    assert set(answer.trace) == {"id", "question", "text", "answer", "rounds", "counters", "filter"}
    path = tmp_path / "traces.jsonl"
    make(Never())[0].run(QUESTIONS[:3], path)
    for others, named in ((QUESTIONS[1:], ("line 1", "'q0'")), (QUESTIONS[:2], ("line 3",))):
        with fails("mismatch", *named):
            TraceFile(path).resume(others)


def test_of_what_is_read_as_much_is_taken_as_is_told_and_what_follows_is_judged_without_passages():
    answer, lm = one(Reader([START, START, SILENT]), writes=sentences)
    assert answer.text == "ONE IS SO. TWO IS SO. so the answer is three."
    reads = [prompt.startswith("Context:") for prompt in lm.prompts]
    assert reads == [False, True, False, True, False] == [r.decision is None for r in answer.rounds]
    assert (answer.retrievals, answer.counters.generations) == (2, 5)
    # With the answer in what is taken, nothing more is written.
    last, lm = one(Reader([START]), writes=sentences)
    assert (last.text, last.retrievals) == ("ONE IS SO. TWO IS SO. SO THE ANSWER IS THREE.", 3)
    assert len(lm.prompts) == 6
    # A limit of retrievals leaves what follows as it is written without passages; one of tokens ends it.
    limited, _ = one(Reader([START]), writes=sentences, max_retrievals=1)
    assert limited.text == "ONE IS SO. two is so. so the answer is three."
    limited, _ = one(Reader([START]), writes=sentences, max_new_tokens=6, answer_tokens=0)
    assert (limited.text, limited.retrievals) == ("ONE IS SO. TWO IS SO.", 2)
    # All that is read: what follows is judged only if no answer is there.
    answer, lm = one(Reader([START], takes="all"), writes=sentences)
    assert (answer.text, len(lm.prompts)) == ("ONE IS SO. TWO IS SO. SO THE ANSWER IS THREE.", 2)
    answer, lm = one(Reader([START, SILENT], takes="all"), writes=reading(" ONE IS SO."))
    assert answer.text == "ONE IS SO. two is so. so the answer is three."
    assert [prompt.startswith("Context:") for prompt in lm.prompts] == [False, True, False]
    # What is read and says nothing ends the question.
    silent, _ = one(Reader([START]), writes=reading(""))
    assert (silent.retrievals, silent.counters.forced) == (1, True)


def test_a_text_without_an_answer_gets_the_cue_once():
    def writes(prompt):
        return " Land1. And then" if prompt.endswith("So the answer is") else " Town 1 is far" + " away" * 60

    answer, lm = one(Never(), writes=writes, max_new_tokens=6, answer_tokens=2)
    assert lm.prompts[1].endswith("Answer: Town 1 is far away away So the answer is")
    assert answer.text == "Town 1 is far away away So the answer is Land1. And"
    assert (answer.counters.generations, answer.counters.tokens, answer.counters.forced) == (2, 8, True)
    assert [r.decision is None for r in answer.rounds] == [False, True]
    # With the cue there nothing is added.
    assert not one(Never())[0].counters.forced


def test_a_retriever_that_finds_nothing_is_counted_and_the_answer_goes_on_without_passages():
    results = iter([[passage("old fact")], []])
    answer, lm = one(Scripted([fires(), fires(), SILENT]), finds=lambda q: next(results))
    assert (answer.retrievals, answer.counters.empty_retrievals) == (2, 1)
    assert "old fact" in lm.prompts[1] and "Context:" not in lm.prompts[2] and answer.text
    # Also where nothing was found before, and the first prompt stays.
    answer, lm = one(Scripted([fires()]), finds=lambda q: [])
    assert (answer.retrievals, answer.counters.empty_retrievals, answer.counters.generations) == (3, 3, 4)
    assert (len(lm.prompts), answer.answer) == (1, "Nowhere")


def cramped(texts, less):
    """Options of a loop over a model with room for these passages and so many tokens less."""
    whole = TESTBED_PROMPT.question(QUESTIONS[1].question, texts, partial=" So the answer is")
    return {"context": len(tokens(whole)) + 20 + 5 - less, "max_new_tokens": 20, "answer_tokens": 5}


def test_passages_without_room_go_from_the_last_and_are_counted():
    """Claim: whole passages go until the prompt has room; converse: with room all are shown."""
    words = ("alpha", "beta", "gamma")
    passages = [passage(f"{word} " * 10) for word in words]
    for less, shown in ((0, 3), (1, 2), (11, 2), (12, 1), (33, 0)):  # 11 words for a passage and its number
        answer, lm = one(Always(), finds=lambda q: passages, **cramped([p.text for p in passages], less))
        assert [word in lm.prompts[0] for word in words] == [i < shown for i in range(3)]
        assert (answer.counters.passages_cut, len(answer.rounds[0].passage_ids)) == (3 - shown, shown)
        assert answer.counters.empty_retrievals == 0  # something was found


def without_seconds(answer):
    trace = json.loads(json.dumps(answer.trace))
    assert trace["counters"].pop("seconds") >= 0
    return trace


def test_nan_is_an_error_that_names_the_question_and_bad_options_and_parts_are_named():
    rag, _, _ = make(Entropy(0.5), entropy=lambda word: float("nan"))
    with fails("model", "NaN", "'q4'", kind=RunError):
        rag(QUESTIONS[4])
    own = [{"trigger": Trigger()}, {"trigger": Scripted([True])}, {"finds": lambda query: ["Town"]}]
    values = [{"k": 0}, {"k": "1"}, {"k": 1.5}, {"max_retrievals": -1}, {"trigger": Always}, {"query": find}]
    for options in (*values, *own):
        with fails("own-class" if options in own else "bad-value", *options.keys() - {"finds"}):
            one(**{"trigger": Always(), **options})


@pytest.mark.parametrize("damage", [
    lambda line: line.replace('"retrievals": ', '"retrievals": 1'), lambda line: line[:40],
], ids=["altered", "cut"])  # fmt: skip
def test_a_damaged_line_is_named_and_its_question_is_answered_again(tmp_path, caplog, damage):
    """Of these questions and of no other, in a run that was over or cut short; then nothing is said."""
    path, places = tmp_path / "traces.jsonl", (2, 5)

    def run():
        """What is answered with these traces, and the towns that the model was asked about."""
        rag, lm, _ = make(Oracle())
        return list(map(without_seconds, rag.run(QUESTIONS, path))), {asked(p)[0] for p in lm.prompts}

    whole, _ = run()
    lines = path.read_text().splitlines()
    for cut in (8, 4):
        damaged = [damage(line) if i in places else line for i, line in enumerate(lines[:cut])]
        path.write_text("".join(f"{line}\n" for line in damaged))
        caplog.clear()
        assert run() == (whole, {i for i in range(8) if i in places or i >= cut})
        (said,) = caplog.messages
        assert said.startswith(f"{path} is damaged in line 3")
        assert run() == (whole, set()) and len(caplog.messages) == 1


def test_a_run_that_goes_on_has_the_batches_of_one_that_was_not_interrupted(tmp_path, monkeypatch):
    """Of a model whose scores depend on the batch in their last digits; but for the chunk that was cut."""
    monkeypatch.setattr("probers.rag.loop._CHUNK", 3)
    path = tmp_path / "traces.jsonl"

    class Rounding(FakeLM):
        def generate(self, prompts, **options):
            made = super().generate(prompts, **options)
            return [replace(g, entropies=g.entropies + np.float32(1e-6 * len(prompts))) for g in made]

    def answer(text):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:text]) if path.exists() else "")
        rag = replace(make(Entropy(0.05))[0], lm=Rounding(write))
        return list(map(without_seconds, rag.run(QUESTIONS, path)))

    whole = answer(0)
    assert answer(3) == answer(6) == whole
    again = answer(1)
    assert again != whole and again[:1] + again[3:] == whole[:1] + whole[3:]


def test_what_a_retrieval_costs_when_tokens_stay_or_alarm_is_counted():
    hit = fires(position=17, tokens=(3,))
    answer, lm = one(Scripted([hit, SILENT]))
    discarded = sum(len(r.text.split()) - len(r.accepted.split()) for r in answer.rounds)
    counters = answer.counters
    assert counters.kept_tokens == len(answer.text.split()) == counters.tokens - discarded < counters.tokens
    assert counters.alarms == 1 and counters.generations == len(lm.prompts) == 2
    assert counters.read_tokens == sum(len(tokens(prompt)) for prompt in lm.prompts)
    # A whole answer is discarded with what was kept of it before.
    answer, _ = one(Scripted([hit, fires(), SILENT]))
    assert answer.counters.kept_tokens == len(answer.text.split()) and answer.counters.alarms == 2
    # An alarm without a retrieval left is one too; whoever reads nothing raises none.
    answer, _ = one(Scripted([fires()]), max_retrievals=1)
    assert (answer.retrievals, answer.counters.alarms) == (1, 2)
    for trigger in (Never(), Always(), Random(rate=2)):
        assert all(a.counters.alarms == 0 for a in make(trigger)[0].answer(QUESTIONS))
    # A final answer is asked for with the whole text; it stays, but not the words that announce it.
    answer, lm = one(Never(), writes=lambda p: " Land1." if p.endswith("is") else " one two", answer_tokens=4)
    assert answer.counters.read_tokens == sum(len(tokens(prompt)) for prompt in lm.prompts)
    assert answer.counters.kept_tokens == answer.counters.tokens == 3 and answer.answer == "Land1"
    # Of several texts drawn after one prompt, the first alone counts it; a prompt left out was not read.
    (made,) = lm.generate(["one two three"], max_new_tokens=2)
    counters = Counters()
    for drawn, read in ((made, True), (made, False), (replace(made, stop="skipped"), True)):
        counters.add(drawn, read=read)
    assert (counters.tokens, counters.read_tokens, counters.read_known) == (6, 3, True)
    assert not Counters(tokens=1).read_known


def test_the_terminal_is_not_steered_by_text():
    class Screen(io.StringIO):
        def isatty(self):
            return True

    steering = " a\x1b[2Jb So the answer is c\x07."
    for screen in (io.StringIO(), Screen()):
        rag, _, _ = make(Scripted([fires()]), writes=lambda p: steering, finds=lambda q: [passage("\x1b[2J")])
        terminal = Terminal("never", screen)
        terminal.final(rag(Question("x", "Where\x1b[2J is town 1?"), terminal))
        shown = screen.getvalue()
        assert "\x1b[2J" not in shown and "\x07" not in shown
        assert ("\x1b[31m" in shown) == isinstance(screen, Screen)


def test_a_question_whose_prompt_was_left_out_is_answered_with_nothing():
    rag, lm, _ = make(Scripted([fires(), SILENT]))
    whole = lm.generate

    def skips(prompts, **options):
        nothing = {"token_ids": (), "text": "", "offsets": (), "stop": "skipped"}
        return [replace(g, **nothing) if "town 1" in g.prompt else g for g in whole(prompts, **options)]

    lm.generate = skips
    answers = rag.answer(QUESTIONS[:3])
    assert [a.answer for a in answers] == ["Land0", "", "Land2"]
    assert [a.retrievals for a in answers] == [1, 0, 1]  # and the trigger was not asked about it
    assert answers[1].rounds[0].decision is None


def test_strategyqa_is_answered_with_yes_or_no():
    question = replace(QUESTIONS[0], dataset="strategyqa", answers=("yes",))
    rag, _, _ = make(Oracle(), writes=lambda p: " It floats. So the answer is Yes, it could.")
    answer = rag(question)
    assert (answer.answer, answer.retrievals) == ("yes", 0) and "Yes, it could" in answer.text
    assert rag(replace(question, dataset="")).answer == "Yes, it could"
