"""Label ``helps``: what one retrieval does to an answer, the heads that learn it, and their triggers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_lm import SPEC, FakeLM, FakeRetriever, begun, linear_bank, passage
from helpers.planted import make_store
from helpers.refusals import fails
from test_triggers import generation, state

from probers import CausalLM
from probers.data.texts import TextSource
from probers.datagen import Questions, Texts, label
from probers.datagen.writer import fill
from probers.prober.calibration import EntropyModel
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag.triggers import Helps, HelpsBefore, Probing, ProbingBefore
from probers.signals import SIGNALS
from probers.signals.rarity import KNOWN, known_of, retriever_ranks
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.train.examples import FEWEST, UNCHANGED, SplitRequest, load_examples
from probers.train.run import fit
from probers.types import Feature, Needs, Passage, Question

HELPS = SplitRequest(label="helps")


def world(path: Path, effect):
    """A planted store of closed-book answers, each followed by that with passages; ``effect`` of correct."""

    def edit(row):
        opens = row["condition"] == "with_passages"
        helps = None if opens else effect(int(row["id"][1:]), row["correct"])
        return row | {"helps": helps, "retriever_score": 3.0, "retriever_margin": float(row["correct"])}

    return make_store(path, 1200, edit=edit)


def both(number, correct):
    """Retrieving turns two of three wrong answers right and a third of the right ones wrong."""
    return float(-(number % 6 == 0) if correct else number % 6 != 0)


def test_heads_of_helps_learn_from_answers_without_passages_weighed_by_what_changes(tmp_path):
    examples = load_examples([world(tmp_path / "s", both)], HELPS)
    rows = np.concatenate(list(examples.rows.values()))
    table = examples.table.iloc[rows]
    assert set(table["condition"]) == {"closed_book"}
    assert (examples.wrong[rows] == (table["helps"] == 1)).all()
    weights = examples.loss_weights(10.0)[rows]
    assert (weights[:, 0] == np.where(table["helps"] == 0, UNCHANGED, 1.0)).all() and 0 < UNCHANGED <= 1
    assert load_examples([world(tmp_path / "t", both)]).loss_weights(10.0) is None


def test_where_retrieving_never_harms_the_label_is_that_of_wrong(tmp_path, monkeypatch):
    """Such a world gives the order of "wrong", so that no head of its own is trained."""
    store = world(tmp_path / "s", lambda number, correct: float(not correct))
    with fails("labels", "label=wrong"):
        load_examples([store], HELPS)
    monkeypatch.setattr("probers.train.examples.FEWEST", 0)
    examples, plain = load_examples([store], HELPS), load_examples([store])
    rows = np.concatenate(list(examples.rows.values()))
    assert (examples.wrong[rows] == plain.wrong[rows]).all()


@pytest.mark.parametrize(("effect", "named"), [
    (lambda number, correct: float(-correct), "trigger=never"),
    (lambda number, correct: 0.0, "more questions"), (lambda number, correct: None, "corpus"),
    (lambda number, correct: -1.0 if number in range(0, 2 * FEWEST - 2, 2) else 1.0, "label=wrong"),
])  # fmt: skip
def test_a_world_without_help_or_harm_trains_no_head(tmp_path, effect, named):
    with fails("labels", named):
        load_examples([world(tmp_path / "s", effect)], HELPS)
    with fails("labels", "no column helps"):
        load_examples([make_store(tmp_path / "other", 80)], HELPS)


def test_a_prober_of_helps_keeps_its_label_and_ranks_what_helps(tmp_path):
    store = world(tmp_path / "s", both)
    options = {"learning_curve": False, "resamples": 100}
    prober = fit(store, label="helps", head="linear", epochs=4, **options)
    assert prober.label == "helps" and prober.metrics["ensemble"]["auroc"] > 0.7
    assert {"retriever margin", "known of the question"} <= set(prober.metrics["controls"])
    assert prober.entropy_model.signals == (*SIGNALS, *KNOWN)
    # Here the margin says whether the answer is right, which the states say with noise.
    assert prober.metrics["with_entropy"]["auroc"] > prober.metrics["ensemble"]["auroc"]
    assert "P(helps)" in prober.card and "P(wrong)" not in prober.card
    prober.save_pretrained(tmp_path / "p")
    again = Prober.from_pretrained(tmp_path / "p")
    assert (again.label, again.entropy_model) == ("helps", prober.entropy_model)
    with fails("mismatch", "label=wrong"):
        Probing(again)
    with fails("mismatch", "label=helps"):
        Helps(linear_bank())
    fit(store, head="mean_difference", out=tmp_path / "wrong", **options)
    with fails("mismatch", "label=helps"):  # a stack is of one label
        fit(store, head=f"stacked probers=[{tmp_path}/wrong,{tmp_path}/p]")


def test_answers_without_and_with_passages_make_the_label(tmp_path):
    """The model knows Ana and reads what it is shown: the passages mislead on her, and tell of Bo."""
    shown = {"Ana": "Ana is wrong.", "Bo": "Bo is right."}

    def write(prompt):
        name = "Ana" if "Ana?" in prompt else "Bo" if "Bo?" in prompt else "Cy"
        read = next((text for text in shown.values() if text in prompt), "")
        right = "right" in read or (name == "Ana" and not read)
        return f" So the answer is {'yes' if right else 'no'}."

    questions = [Question(n, f"Who is {n}?", ("yes",), split="train") for n in ("Ana", "Bo", "Cy")]
    finds = lambda query: [passage(text) for name, text in shown.items() if name in query]  # noqa: E731
    lm, needs = FakeLM(write), Needs((Feature((2,)),))
    source = begun(
        Questions(questions, retriever=FakeRetriever(finds)), lm, needs, prompt=TESTBED_PROMPT, limit=None
    )
    store = FeatureStore.create(tmp_path / "s", [FeatureSpec(SPEC, (2,), 4)], config={})
    fill(store, source, partial(source.examples, lm))
    rows = {row["id"]: row for row in store.shard_rows(0)}
    assert {id: row["helps"] for id, row in rows.items()} == {
        "Ana/closed_book": -1, "Bo/closed_book": 1, "Cy/closed_book": None,
        "Ana/with_passages": None, "Bo/with_passages": None, "Cy/with_passages": None,
    }  # fmt: skip


def test_what_is_known_of_a_question_before_a_retrieval_is_read():
    hits = [Passage("1", "", "a", 5.0), Passage("2", "", "b", 3.5)]
    assert retriever_ranks(hits) == {"retriever_score": 5.0, "retriever_margin": 1.5}
    assert retriever_ranks(hits[:1]) == {"retriever_score": 5.0, "retriever_margin": 5.0}
    assert retriever_ranks([]) == {"retriever_score": None, "retriever_margin": None}
    known = known_of({
        "question": ["Who is Ana?", "Who?"], "retriever_score": [5.0, None],
        "retriever_margin": [1.5, None], "question_frequency": [10, None],
    })  # fmt: skip
    values = [[5.0, 0.0], [1.5, 0.0], [0.5, 0.0], [3.0, 1.0]]
    assert {name: list(each) for name, each in known.items()} == dict(zip(KNOWN, values, strict=True))


def of_helps(*signals, **options):
    """Heads of helps, and a model that adds the margin of the best passage to their score."""
    names = ("score", *signals, *KNOWN)
    n, weights = len(names), tuple(float(name in ("score", "retriever_margin")) for name in names)
    model = EntropyModel((0.0,) * n, (1.0,) * n, weights, 0.0, 4.0, (*signals, *KNOWN))
    return linear_bank(label="helps", entropy_model=model, **options)


def test_triggers_of_helps_ask_the_heads_and_where_told_the_retriever():
    finds = lambda query: [Passage("1", "", "a", 5.0), Passage("2", "", "b", 2.0)]  # noqa: E731
    lm = FakeLM(lambda prompt: " Ana.", state=lambda text: [1.0, 0, 0, 0])
    states = [replace(state(lm), retriever=FakeRetriever(finds))]
    bank = of_helps(pool="prompt")
    (plain,), (known,) = (
        HelpsBefore(bank, with_entropy=with_known).decide_before(states) for with_known in (False, True)
    )
    assert (plain.score, plain.threshold, plain.fire) == (2.0, 0.0, True)
    assert (known.score, known.threshold, known.fire) == (5.0, 4.0, True)

    draft = generation(" Ana.", needs=of_helps().needs, state=lm.state)
    assert Helps(of_helps()).decide([draft], states)[0].score == 2.0
    assert Helps(of_helps(*SIGNALS), with_entropy=True).decide([draft], states)[0].score == 5.0
    # An answer from passages is accepted: the label is of the first retrieval.
    assert not Helps(of_helps()).decide([draft], [replace(states[0], retrievals=1)])[0].fire
    with fails("mismatch", "with_entropy"):
        HelpsBefore(linear_bank(label="helps", pool="prompt"), with_entropy=True)
    with fails("mismatch", "label=wrong"):
        ProbingBefore(bank)


def test_labelled_texts_say_what_a_retrieval_did():
    """AdaRAGUE's tables are such texts: question, closed-book answer, and what one retrieval did to it."""
    file = Path(__file__).parent / "data" / "questions" / "adarague.csv"
    first, *others = TextSource(str(file)).all()
    assert [(one.wrong, one.record["helps"]) for one in others] == [(False, -1), (False, 0)]
    assert (first.prompt, first.answer) == ("Question: Who founded Arvik?\nAnswer:", " Bert Veld")
    lm = CausalLM.from_pretrained("testbed")
    rows = [{"prompt": f"Where is {i}?", "answer": f" In {i}.", "wrong": i % 2 == 0} for i in range(12)]
    rows[0] |= {"helps": 1, "retriever_score": 2.5}
    table = label(lm, Texts(rows), layers=[4]).table()
    assert table["helps"].dropna().tolist() == [1.0] and table["retriever_score"].dropna().tolist() == [2.5]
    with fails("bad-line", "row 1", "helps"):
        label(lm, Texts([rows[0] | {"helps": 2}, *rows[1:]]), layers=[4])
