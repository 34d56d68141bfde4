"""ETC, Decide Then Retrieve, SeaKR's choice of a passage and CtrlA against numbers of their released code.

``data/released_methods.json`` has made-up inputs (random attention, entropies, scores and states) and what
the authors' own functions make of them: ``generate``, ``hallucination_check`` and ``generate_retrieve_qry``
(ETC), ``select_topk_of_query_info`` (DTR), ``rag`` (SeaKR), ``ClusterMeanRepReader`` and
``confidence_monitor`` (CtrlA).
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.fake_lm import SPEC, FakeLM, FakeRetriever, offsets, passage

import probers.signals.tokens
from probers.heads import HEADS, WRONG
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag import queries, triggers
from probers.rag.protocol import UNANSWERED, State
from probers.signals import trend_scores
from probers.store.spec import FeatureSpec
from probers.types import AttentionRows, Decision, Feature, Generation, Needs, Question

DATA = json.loads((Path(__file__).parent / "data" / "released_methods.json").read_text())


def tagged(text, words):
    """The tagger of the recorded inputs: what begins with c carries content."""
    real = {word for word in re.findall(r"\w+", text) if word[0] in "cC"}
    return [any(each in word for each in real) for word in words]


@pytest.fixture
def by_letter(monkeypatch):
    monkeypatch.setattr(probers.signals.tokens, "is_content", tagged)
    monkeypatch.setattr(queries.ETCQuery.__module__ + ".is_content", tagged)


def etc_case(case):
    prompt, text = "".join(case["prompt"]), "".join(case["written"])
    entropies = np.array(case["entropies"], dtype=np.float32)
    generation = Generation(
        prompt, tuple(range(len(case["prompt"]))), offsets(case["prompt"]),
        tuple(range(len(case["written"]))), text, offsets(case["written"]), -entropies, entropies, "eos",
        attention=AttentionRows(np.array(case["rows"], dtype=np.float32), np.zeros(len(entropies))),
        needs=Needs(attention=True),
    )  # fmt: skip
    start = prompt.index(case["question"])
    state = State(
        Question("q", case["question"]), None, TESTBED_PROMPT, (start, start + len(case["question"])),
        partial=case["partial"],
    )  # fmt: skip
    return generation, state


@pytest.mark.parametrize("case", DATA["etc"])
def test_etc_scores_fires_and_asks_as_released(case, by_letter):
    generation, state = etc_case(case)
    scores = trend_scores(generation)
    assert scores.scores == pytest.approx(case["values"], abs=1e-6)
    decision = triggers.ETC(case["threshold"], absolute=case["absolute"])(generation, state)
    assert decision.fire == bool(case["hits"])
    if not case["hits"]:
        return
    assert decision.position == scores.spans[case["hits"][0]][0]
    assert decision.tokens == tuple(t for i in case["hits"] for t in scores.tokens[i])
    query = queries.ETCQuery(top_n=case["top_n"])(state.question, generation, decision, state)
    assert query.split() == [word.strip(".") for word in case["query"]]
    # The opposite attention asks for other words, and a text of even entropy fires nowhere.
    other = replace(generation, attention=replace(generation.attention, rows=-generation.attention.rows))
    first, last = (queries.ETCQuery(top_n=1)(state.question, g, decision, state) for g in (generation, other))
    assert first in query and last != first
    even = replace(generation, entropies=np.full_like(generation.entropies, 2.0))
    assert not triggers.ETC(1e-6, absolute=True)(even, state).fire


def test_dtr_scores_and_chooses_as_released():
    data = DATA["dtr"]
    for logprobs, expected in zip(data["logprobs"], data["uncertainty"], strict=True):
        values = np.array(logprobs, dtype=np.float32)
        generation = made([" a"] * len(values), values)
        state = State(Question("q", "q"), None, None, (0, 0))
        assert triggers.DTR()(generation, state).score == pytest.approx(expected, abs=1e-6)
        # What is written after a retrieval is not judged.
        assert not triggers.DTR(0.0)(generation, replace(state, retrievals=1)).fire

    def cosines(text):
        kind, row = text.split()
        scores = data[kind][int(row)]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [replace(passage(str(i)), score=scores[i]) for i in best]

    places = range(len(data["question"]))
    states = [State(Question(str(i), f"question {i}"), None, None, (0, 0)) for i in places]
    query, search = queries.DTRQuery(n=data["n"]), FakeRetriever(cosines)
    passages = query.find([f"passage {i}" for i in places], states, search, data["k"])
    assert [[int(p.text) for p in hits] for hits in passages] == data["chosen"]
    assert [[p.score for p in hits] for hits in passages] == pytest.approx(np.array(data["scores"]), abs=1e-6)
    # Scores that are no cosines count equally.
    scores = {"question 0": {"a": 2.0, "b": 1.9}, "passage": {"c": 90.0, "b": 80.0, "a": 10.0}}
    search = FakeRetriever(lambda q: [replace(passage(n), score=s) for n, s in scores[q].items()])
    (passages,) = queries.DTRQuery().find(["passage"], states[:1], search, 3)
    assert [p.text for p in passages] == ["b", "a", "c"]
    assert passages[0].score == pytest.approx(1.9 / 2 + 80 / 90) and passages[2].score == 1.0


def made(parts, logprobs, **more):
    """A generation of these tokens."""
    values = np.array(logprobs, dtype=np.float32)
    ids = tuple(range(len(parts)))
    return Generation("", (), (), ids, "".join(parts), offsets(parts), values, -values, "eos", **more)


@pytest.mark.parametrize("number", range(len(DATA["seakr"])))
def test_seakr_reads_and_chooses_as_released(number, monkeypatch):
    done, shown = DATA["seakr"][number], DATA["seakr"][number - 1]["shown"] if number else []
    read, spent = [], []

    def places(prompt):
        return re.findall(r"\[\d\] (\w)", prompt)

    def decide(self, generations, states):
        read.extend(places(g.prompt) for g in generations)
        pairs = zip(generations, read, strict=True)
        scores = [done["scores"][names[-1]] if g.token_ids else UNANSWERED for g, names in pairs]
        return [Decision(False, score, 0.0) for score in scores]

    monkeypatch.setattr(triggers.Eigenscore, "decide", decide)
    lm = FakeLM(lambda prompt: "" if places(prompt)[-1] in done["blank"] else " text")
    state = State(
        Question("q", "q?"), lm, TESTBED_PROMPT, (0, 0), passages=tuple(map(passage, shown)),
        spend=spent.append, generate=lm.generate,
    )  # fmt: skip
    retriever = FakeRetriever(lambda query: list(map(passage, done["found"])))
    (passages,) = queries.SeakrQuery().find(["q"], [state], retriever, 3)
    assert [p.text for p in passages] == done["shown"]
    assert read == done["read"] and len(spent) == len(read)


def test_ctrla_is_radio_with_a_mean_difference_head():
    data = DATA["ctrla"]
    head = HEADS["mean_difference"](["layer1"], 4)
    states, wrong = torch.tensor(data["states"]), ~torch.tensor(data["confident"], dtype=torch.bool)
    means = torch.stack([states[wrong].mean(0), states[~wrong].mean(0)])
    order = [0, 1] if WRONG == 0 else [1, 0]
    head.prepare(SimpleNamespace(class_mean=means[order][None], deviation=states.std(0, correction=0)[None]))
    spec = FeatureSpec(SPEC, (1,), 4, pool="tokens", prompt=TESTBED_PROMPT.fingerprint)
    bank = Prober(spec, head, 0.0, aggregate="max")
    tokens = np.array(data["tokens"], dtype=np.float32)
    apart = float((means[0] - means[1]).norm())
    projected = (
        data["threshold"] - bank.margins(tokens[:, None])[:, 0] * apart / 2
    )  # theirs: to the confident
    assert projected == pytest.approx(data["projections"], abs=1e-6)
    needs = Needs((Feature((1,), pool="tokens"),))
    recorded = {"needs": needs, "states": {needs.features[0]: tokens[:, None]}}
    generation = made([f" w{i}" for i in range(len(tokens))], np.zeros(len(tokens)), **recorded)
    trigger = triggers.Radio(bank, above_mean=False)
    decision = trigger.decide([generation], [State(Question("q", "q"), None, None, (0, 0))])[0]
    assert [score > trigger.threshold for score in decision.token_scores] == data["low"]
    assert 0 < sum(data["low"]) < len(tokens)
