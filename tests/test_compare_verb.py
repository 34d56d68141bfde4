"""The function compare equals the command, takes objects, keeps nothing without out, and refuses by name."""

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from helpers.artefacts import write_lines
from helpers.fake_lm import FakeLM, FakeRetriever, linear_bank, passage
from helpers.refusals import fails, interrupted
from test_compare import TEST, VALIDATION, model, place, stable  # noqa: F401
from test_loop import without_seconds

from probers.data.splits import Seen
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag import RAG, Comparison, compare
from probers.rag.queries import QFS, QuestionQuery
from probers.rag.retrievers import BM25
from probers.rag.triggers import Entropy, Probing, Rind

NAMES = ["never", "always", "random", "oracle", "entropy", "rind_paper", "rind_released"]
#: Few resamples and no further runs.
QUICK = {"resamples": 100, "sweep": 0}


def asked(split):
    return [
        {"question": f"Where is town {i}?", "answers": [f"Land{i}"], "id": f"q{i}"}
        for i in (TEST if split == "test" else VALIDATION)
    ]


def texts():
    return [f"Town {i} is in Land{i}." for i in (*TEST, *VALIDATION)]


def parts(results):
    return {key: value for key, value in stable(results).items() if key not in ("config", "probers")}


def test_the_function_equals_the_command(place):  # noqa: F811
    shown = place.compare("sweep=2", "limit=12")
    bank = Prober.from_pretrained(place.path / "prober")
    options = {"limit": 12, "sweep": 2, "resamples": 1000}
    made = compare(model(), "questions.jsonl", "corpus.jsonl", triggers=[*NAMES, bank], **options)
    assert parts(made.results) == parts(shown)
    assert made.results["probers"]["probing"] | {"prober": ""} == shown["probers"]["probing"] | {"prober": ""}
    for name, answers in made.answers.items():
        record = place.trace(name)
        for line in record:
            del line["counters"]["seconds"], line["sha256"]
        assert [*map(without_seconds, answers)] == record
    rest = place.data() | {"command": "", "model": "", "notes": ""}
    assert rest == json.loads(json.dumps(dict(made.page))) | {"command": "", "model": "", "notes": ""}


def test_lists_of_questions_and_texts_are_enough_and_nothing_stays_on_disk(place):  # noqa: F811
    before = sorted(place.path.rglob("*"))
    given = {"validation": asked("validation"), "triggers": ["never", linear_bank(seen=Seen({}))]}
    made = compare(model(), asked("test"), texts(), **given, **QUICK)
    assert isinstance(made, Comparison) and made.results["n"] == len(TEST)
    frame = made.frame
    assert frame.columns[0] == "gain_share" and {"gain_share_low", "gain_share_high"} <= {*frame.columns}
    assert list(frame.index) == ["never", "probing"] and frame.loc["probing", "em"] == 1.0
    assert frame.loc["never", "em_low"] < 0.4 < frame.loc["never", "em_high"]
    assert frame.loc["probing", "auroc"] == 1.0 and np.isnan(frame.loc["never", "auroc"])
    assert repr(made) == "Comparison(40 questions; em: never 0.400, probing 1.000)"
    assert "<table" in made._repr_html_() and sorted(place.path.rglob("*")) == before
    made.report(place.path / "page.html")
    assert "Which trigger knows when to retrieve?" in (place.path / "page.html").read_text()


def test_objects_are_methods_under_names_of_their_own():
    entropy = Entropy(0.5)
    made = compare(
        model(), asked("test")[:4], texts(), validation=asked("validation")[:10],
        triggers=[
            "never", entropy, (entropy, "question"), ("rind", QuestionQuery()), linear_bank(seen=Seen({})),
            linear_bank((2,), seen=Seen({})), (linear_bank(seen=Seen({})), "last_sentence"),
        ], **QUICK,
    )  # fmt: skip
    assert made.results["queries"] == {
        "never": "question", "entropy": "answer", "entropy_question": "question", "rind_question": "question",
        "probing": "answer", "probing_2": "answer", "probing_last_sentence": "last_sentence",
    }  # fmt: skip
    assert made.results["options"]["entropy"]["threshold"] == 0.5  # an object is left as it is
    assert made.results["probers"]["probing_2"]["layers"] == [2]


def test_a_folder_keeps_the_comparison_and_resumes_it(tmp_path):
    def run(lm, *triggers, out=tmp_path / "out"):
        given = {"validation": asked("validation"), "triggers": ["never", *triggers], "out": out}
        return compare(lm, asked("test"), texts(), **given, **QUICK)

    with interrupted(FakeLM, "generate", 2):
        run(model(), "entropy")
    assert not (tmp_path / "out/results.json").exists()
    first = run(model(), "entropy")
    assert parts(first.results) == parts(run(model(), "entropy", out=None).results)
    kept = ["results.json", "report.html", "outcomes.jsonl", "report_data.json", "thresholds.json"]
    assert all((tmp_path / "out" / name).exists() for name in kept)
    silent = model()
    again = run(silent, "entropy")
    assert not silent.prompts and again.results == first.results
    with fails("out-taken", "different run"):
        run(model(), "rind")


@pytest.mark.parametrize(("code", "named", "given"), [
    ("unknown-key", ["resample", "resamples"], {"resample": 3}), ("bad-value", ["k='1'"], {"k": "1"}),
    ("unknown-key", ["engine"], {"engine": "vllm"}), ("overlap", ["probing"], {"triggers": [linear_bank()]}),
    ("bad-value", ["validation=0"], {"validation": 0}), ("conflict", ["never"], {"triggers": ["never"] * 2}),
    ("unknown-key", ["mean validation"], {"valdation": 4}), ("bad-value", ["=BM25"], {"passages": BM25}),
    ("unknown-choice", ["rinds"], {"triggers": [("rinds", "qfs")]}), ("bad-value", ["k=0"], {"k": 0}),
    ("bad-value", ["trigger=3"], {"triggers": [3]}), ("bad-value", ["query=3"], {"triggers": [("rind", 3)]}),
    ("conflict", ["retriever="], {"passages": FakeRetriever(list), "retriever": "bm25"}),
])  # fmt: skip
def test_a_wrong_request_is_refused_before_the_model_runs(code, named, given):
    lm = model()
    with fails(code, *named) as refused:
        compare(lm, asked("test"), **{"passages": texts(), **given})
    assert not lm.prompts and "_typed" not in str(refused.value)


def test_thresholds_are_not_chosen_on_questions_that_are_asked():
    rows = asked("test")
    given = {"triggers": ["never", "entropy"]} | QUICK
    same = compare(model(), rows, texts(), validation=rows, **given)
    assert any("thresholds of entropy are those they came with" in note for note in same.page["notes"])
    more = compare(model(), rows, texts(), validation=[*rows, *asked("validation")], **given)
    alone = compare(model(), rows, texts(), validation=asked("validation"), **given)
    assert more.results["options"] == alone.results["options"] != same.results["options"]


def test_the_loop_takes_texts_names_and_probers():
    rag = RAG(model(), texts(), linear_bank())
    assert isinstance(rag.trigger, Probing) and rag("Where is town 2?").answer == "Land2"
    rag = RAG(model(), Dataset.from_dict({"text": texts()}), "rind", prompt="testbed")
    first, second = rag.answer(["Where is town 2?", "Where is town 3?"])
    assert (first.id, first.answer, second.id) == ("1", rag("Where is town 2?").answer, "2")
    with fails("bad-value", "'Where?'"):
        rag.answer("Where?")
    assert rag.trigger == Rind() and type(rag.query) is QFS and rag.prompt == TESTBED_PROMPT
    kinds = {
        pool: type(RAG(model(), texts(), linear_bank(pool=pool, position=position)).trigger).__name__
        for pool, position in (("tokens", "entity"), ("predicting", "entity"), ("prompt", "generated"))
    }
    assert kinds == {"tokens": "Radio", "predicting": "BeforeEntity", "prompt": "ProbingBefore"}
    assert type(RAG(model(), texts(), "rind", query="question").query) is QuestionQuery
    for wrong in ({"query": "qsf"}, {"prompt": "no"}):
        with fails("unknown-choice"):
            RAG(model(), texts(), "rind", **wrong)


@pytest.mark.parametrize(("code", "named", "passages"), [
    ("empty", ["passages=[]"], []), ("bad-value", ["one passage"], "Town 1 is in Land1."),
    ("missing-value", ["passage 2", "'test'"], [{"text": "a"}, {"test": "b"}]),
    ("bad-value", ["passage 1", "3"], [3]),
    ("conflict", ["1 and 2", "'a'"], [{"text": "x", "id": "a"}, {"text": "y", "id": "a"}]),
])  # fmt: skip
def test_passages_without_ids_are_numbered_and_those_that_cannot_be_read_are_named(code, named, passages):
    hits = BM25(["a cat", {"text": "a dog", "title": "Dog", "id": 7}]).search(["cat", "dog"], 1)
    assert [(p.id, p.title, p.text) for (p,) in hits] == [("1", "", "a cat"), ("7", "Dog", "a dog")]
    with fails(code, *named):
        BM25(passages)


def test_questions_may_be_texts_files_or_tables_and_a_retriever_is_taken_as_it_is(tmp_path):
    write_lines(tmp_path / "q.jsonl", asked("test")[:3])
    table = pd.DataFrame(asked("test")[:3])
    for questions in ([row["question"] for row in asked("test")[:3]], tmp_path / "q.jsonl", table):
        made = compare(model(), questions, pd.DataFrame({"text": texts()}), triggers="never", **QUICK)
        assert made.results["n"] == 3
    rows = [{**asked("test")[i], "split": split} for i, split in enumerate(["train", "test", "test"])]
    notes = compare(model(), rows, texts(), triggers="never", **QUICK).page["notes"]
    assert "(1 train, 2 test)" in str(notes)
    with fails(None, "question 1"):
        compare(model(), [3], texts(), triggers=["never"])
    retriever = FakeRetriever(lambda query: [passage("Town 2 is in Land2.")])
    made = compare(model(), asked("test")[2:3], retriever, triggers=["always"], **QUICK)
    assert made.frame.loc["always", "em"] == 1.0 and retriever.queries
