"""probers-compare with a scripted model: figures that are known beforehand, equal terms, resuming."""

import copy
import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.fake_lm import FakeLM, linear_bank
from helpers.refusals import fails
from sklearn.metrics import roc_auc_score

from probers.checksums import Journal
from probers.cli import main as cli
from probers.cli.components import choices
from probers.cli.main import Console
from probers.data.splits import Seen
from probers.prober.decision import ALWAYS
from probers.prompts import TESTBED_PROMPT
from probers.rag.comparison.methods import Method
from probers.rag.comparison.outcomes import Evaluation, Outcomes, table_lines
from probers.rag.comparison.workload import CURVES, REPLAY, THRESHOLDS, Workload
from probers.rag.queries import AnswerQuery, FlareQuery
from probers.rag.traces import Answer, Counters
from probers.rag.triggers import Entropy, Flare, Never
from probers.types import Decision, Question, Round

TEST = range(40)
VALIDATION = range(100, 130)


def knows(town):
    return town % 5 < 2  # 40%


def write(prompt):
    town = int(re.findall(r"Where is town (\d+)\?", prompt)[-1])
    right = f"Town {town} is in Land{town}." in prompt or knows(town)
    land = f"Land{town}" if right else "Nowhere"
    return f" It must be {land}. So the answer is {land}."


def entropy(word):
    return 2.0 if word == "Nowhere." else 0.1


def model():
    return FakeLM(write, entropy, lambda text: [1.0 if "Nowhere" in text else -1.0, 0, 0, 0])


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with questions, corpus and prober, and the scripted model in the commands' place of one."""
    monkeypatch.chdir(tmp_path)
    rows = [("test", i) for i in TEST] + [("validation", i) for i in VALIDATION]
    made = []
    place = Place(tmp_path, made)
    place.write("questions", (
        {"id": f"q{i}", "question": f"Where is town {i}?", "answers": [f"Land{i}"], "split": split}
        for split, i in rows
    ))  # fmt: skip
    passages = ({"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} is in Land{i}."} for _, i in rows)
    place.write("corpus", passages)
    layers = [{"layer": k, "accuracy": 0.9, "auroc": 0.95, "auroc_ci": [0.9, 1.0], "f1": 1} for k in (1, 2)]
    metrics = {"layers": layers, "ensemble": layers[0], "controls": {"mean entropy": layers[1]}}
    linear_bank(metrics=metrics, seen=Seen({})).save_pretrained(tmp_path / "prober")

    def load(cfg, folder, engine, adapter=None):
        made.append(model())
        return made[-1]

    monkeypatch.setattr("probers.rag.comparison.command.load_model", load)
    monkeypatch.setattr("probers.rag.command.load_model", load)
    logger = logging.getLogger("probers")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Console()])
    monkeypatch.setattr(logger, "level", logging.INFO)
    return place


class Place:
    def __init__(self, path, models):
        self.path, self.models = path, models

    def compare(self, *more, out="out"):
        names = "[never,always,random,oracle,entropy,rind_paper,rind_released,probing]"
        base = {"questions": "questions.jsonl", "corpus": "corpus.jsonl", "triggers": names, "limit": "null"}
        base["resamples"] = "1000"
        if not any(word.startswith("prober") for word in more):
            base["prober"] = "prober"
        known = {word.partition("=")[0] for word in more}
        typed = [f"{key}={value}" for key, value in (base | {"out": out}).items() if key not in known]
        cli.run("compare", [*typed, *more])
        return self.read("results", out)

    def read(self, name, out="out"):
        return json.loads((self.path / out / f"{name}.json").read_text())

    def data(self, out="out"):
        return self.read("report_data", out)

    def page(self, out="out"):
        return (self.path / out / "report.html").read_text()

    def trace(self, method, out="out"):
        return self.rows(f"{out}/traces/{method}")

    def rows(self, name="questions"):
        return [json.loads(line) for line in (self.path / f"{name}.jsonl").read_text().splitlines()]

    def write(self, name, rows):
        write_lines(self.path / f"{name}.jsonl", rows)

    def first_asked(self):
        """The towns of the first questions, as many as there are for validation."""
        return {int(re.findall(r"\d+", p)[0]) for p in self.models[0].prompts[: len(VALIDATION)]}


def test_every_method_gets_the_figures_it_must_have(place, capsys):
    results = place.compare()
    methods = results["methods"]
    assert (results["schema"], results["n"]) == (1, 40)
    em, retrievals = ({n: entry[figure] for n, entry in methods.items()} for figure in ("em", "retrievals"))
    assert max(map(len, table_lines(methods, results["random_at_budget"], wide=False))) <= 80
    assert em["never"] == 0.4 and em["always"] == em["oracle"] == em["probing"] == em["entropy"] == 1.0
    assert (retrievals["never"], retrievals["always"]) == (0.0, 1.0)
    assert retrievals["oracle"] == retrievals["probing"] == retrievals["entropy"] == 0.6
    assert retrievals["random"] == pytest.approx(0.6, abs=0.25)
    assert 0.4 < em["random"] < 1.0
    assert methods["oracle"]["retrieval_share"] == {"none": 0.4, "single": 0.6, "multi": 0.0}
    trigger = methods["probing"]["trigger"]
    assert (trigger["auroc"], trigger["base_rate"]) == (1.0, pytest.approx(0.6))
    assert trigger["ece"] is not None and methods["random"]["trigger"]["ece"] is None
    assert methods["never"]["trigger"]["auroc"] is None
    assert all(methods[n]["consistency"] == 1.0 for n in ("never", "always", "probing"))
    shown = capsys.readouterr().out
    assert "The budget of random is matched to probing: 0.600 retrievals per question." in shown
    # The form of the contract.
    keys = {
        "em", "f1", "precision", "recall", "precision_max", "recall_max", "acc", "acc_substring",
        "retrievals", "retrieval_share", "generations", "alarms", "tokens", "kept_tokens", "sentences",
        "read_tokens", "seconds", "consistency", "agreement", "trigger", "ci95", "gain_share",
        "retrievals_saved", "accuracy_gained",
    }  # fmt: skip
    for name, entry in methods.items():
        assert set(entry) == keys, name
        assert {"auroc", "auprc", "base_rate", "ece", "prr", "recall_at_fpr"} == set(entry["trigger"])
        assert entry["ci95"]["em"][0] <= entry["em"] <= entry["ci95"]["em"][1]
    assert methods["never"]["gain_share"] is methods["random"]["gain_share"] is None
    assert methods["oracle"]["gain_share"] == methods["probing"]["gain_share"] == pytest.approx(1)
    assert methods["probing"]["retrievals_saved"] == pytest.approx(0.4)  # always needs 1, it 0.6
    pair = results["pairs"]["probing vs never"]["em"]
    assert pair["diff"] == pytest.approx(0.6) and 0 < pair["ci95"][0] <= 0.6 <= pair["ci95"][1]
    assert {f"probing vs {other}" for other in methods} - results["pairs"].keys() == {"probing vs probing"}
    share = results["pairs"]["entropy vs always"]["gain_share"]
    assert share["diff"] == pytest.approx(1) and 0 < share["p"] <= share["p_holm"] < 0.05
    # The same questions with the same prompts.
    for method in methods:
        assert sorted(line["id"] for line in place.trace(method)) == sorted(f"q{i}" for i in TEST), method
    closed = {p for p in place.models[0].prompts if not p.startswith("Context:") and p.endswith("Answer:")}
    assert closed == {TESTBED_PROMPT.question(f"Where is town {i}?") for i in (*TEST, *VALIDATION)}


def test_the_page_and_its_data_are_written(place):
    results = place.compare("examples=3", "resamples=100", "sweep=3")
    data, page = place.data(), place.page()
    assert any("resamples=100 are too few to settle any of 28 pairs" in note for note in data["notes"])
    assert "Which trigger knows when to retrieve?" in page
    assert "never" not in data["roc"]
    assert (data["roc"]["probing"]["auroc"], data["roc"]["probing"]["fpr"][0]) == (1.0, 0.0)
    assert data["points"]["always"]["em"] == 1.0
    line = [min(1.0, 0.4 + 0.6 * r) for r in data["replay"]["random"]["retrievals"]]
    assert data["replay"]["random"]["em"] == pytest.approx(line)
    # Methods that fire within an answer are run at other thresholds; the others have recorded answers.
    assert set(data["replay"]) == {"random", "entropy", "probing", "oracle of helps"}
    assert set(data["reruns"]) == {"rind_paper", "rind_released"}
    for name, curve in data["reruns"].items():
        index = curve["value"].index(results["options"][name]["threshold"])
        assert curve["retrievals"][index] == results["methods"][name]["retrievals"]
        assert curve["em"][index] == results["methods"][name]["em"]
        assert curve["retrievals"][0] == 0.0 and curve["retrievals"][-1] > 0.9
    closed = [p for p in place.models[-1].prompts if p == TESTBED_PROMPT.question("Where is town 3?")]
    assert len(closed) == 1  # however many runs began with it
    assert len(data["examples"]) == 3
    methods = [m for example in data["examples"] for m in example["methods"]]
    rind = next(m for m in methods if m["method"] == "rind_paper")
    assert "".join(t["text"] for t in rind["rounds"][0]["tokens"]).startswith(" It must be")
    assert rind["rounds"][0]["tokens"][0]["score"] is not None
    fetched = [r for m in methods for r in m["rounds"] if r["query"]]
    assert fetched[0]["passages"][0]["text"].startswith("Town ")


def test_methods_whose_part_is_not_there_are_left_out_and_never_is_made_where_it_is_not_asked(place, capsys):
    results = place.compare("triggers=[radio,adaptive,entropy]", "sweep=0")
    assert list(results["methods"]) == ["entropy"]
    assert results["methods"]["entropy"]["trigger"]["auroc"] == 1.0
    shown = capsys.readouterr().out
    assert re.search(r"note: radio is left out: .*pool=tokens.*token_prober=PATH", shown)
    assert re.search(r"note: adaptive is left out: .*head=adaptive.*classifier=PATH", shown)
    assert any("not in the table" in note for note in place.data()["notes"])


def test_queries_take_the_place_of_the_methods_own(place):
    results = place.compare("triggers=[never,random,entropy,rind]", "queries=[question]", "sweep=0")
    assert results["queries"] == dict.fromkeys(results["methods"], "question")
    # With the question each method that judges answers is between never and always on its budget's line.
    random = results["methods"]["random"]
    assert random["em"] == pytest.approx(0.4 + 0.6 * random["retrievals"], abs=0.2)
    results = place.compare("triggers=[never,probing]", "queries=[question,answer]", out="what")
    assert list(results["methods"]) == ["never", "probing_answer", "probing_question"]
    assert results["queries"]["probing_answer"] == "answer"
    # A trigger's own name is a method with its default variant and query.
    with fails("unknown-choice", "'rinds'", *choices("trigger")):
        place.compare("triggers=[rinds]")
    results = place.compare("triggers=[never,rind,rind_released]", "sweep=0", out="own")
    assert results["queries"]["rind"] == "qfs"
    figures = stable(results)["methods"]
    assert figures["rind"] == figures["rind_released"]


def test_a_method_is_compared_at_several_values_of_an_option(place):
    vary = "vary={entropy: {threshold: [-1, 0.2, 3]}, probing: {query.question_first: [true]}}"
    results = place.compare("triggers=[never,entropy,probing]", vary)
    names = ["entropy_threshold=-1", "entropy_threshold=0.2", "entropy_threshold=3"]
    assert sorted(results["methods"]) == [*names, "never", "probing_query.question_first=True"]
    retrieved = [results["methods"][name]["retrievals"] for name in names]
    assert retrieved[0] > retrieved[1] == 0.6 > retrieved[2] == 0
    assert [results["options"][name]["threshold"] for name in names] == [-1, 0.2, 3]
    # One setting alone gives the same, and its own name stays where nothing is varied.
    given = "+methods.entropy.trigger_options={threshold: 0.2}"
    alone = place.compare("triggers=[never,entropy]", given, out="alone")
    for figure in ("em", "retrievals", "generations", "tokens", "read_tokens"):
        assert alone["methods"]["entropy"][figure] == results["methods"][names[1]][figure]


def test_a_method_may_have_a_retriever_of_its_own(place):
    """One that finds the passages of other towns: what is retrieved helps no longer; a trigger likewise."""
    other = "{_target_: test_compare.Elsewhere}"
    mine = f"+methods.elsewhere={{trigger: probing, query: question, tune: true, retriever: {other}}}"
    results = place.compare("triggers=[never,probing,elsewhere]", mine, "queries=[question]")
    methods = results["methods"]
    assert methods["probing"]["em"] == 1.0 and methods["elsewhere"]["em"] == methods["never"]["em"] == 0.4
    assert methods["elsewhere"]["trigger"] == methods["probing"]["trigger"]  # it looks at the same answers
    # Random retrieval at its budget is that of its own retriever.
    assert results["random_at_budget"]["elsewhere"]["em"]["value"] == 0.4
    mine = "+methods.mine={trigger: {_target_: probers.rag.triggers.Always}, query: question}"
    results = place.compare("triggers=[never,mine]", mine, "prober=null", out="mine")  # none is needed
    assert results["methods"]["mine"]["em"] == 1.0


class Elsewhere:
    """Finds a passage that is of no use to any question."""

    def __init__(self, corpus):
        self.passages = [corpus[-1]]

    def search(self, queries, k):
        return [self.passages for _ in queries]


def test_without_test_questions_the_validation_questions_are_asked(place):
    rows, later = place.rows(), {"validation": "train", "test": "validation"}
    place.write("questions", (row | {"split": later[row["split"]]} for row in rows))
    results = place.compare("triggers=[never,entropy]")
    assert (results["n"], results["methods"]["never"]["em"]) == (40, 0.4)
    assert any("validation split" in note for note in place.data()["notes"])
    assert place.first_asked() == set(VALIDATION)  # thresholds from the others
    place.write("questions", (row | {"split": "train"} for row in rows))
    with fails(None):
        place.compare("triggers=[never]", out="none")


def test_questions_without_splits_are_all_asked_unless_something_is_tuned_on_them(place, capsys):
    rows = place.rows()
    place.write("questions", ({k: v for k, v in row.items() if k != "split"} for row in rows))
    given = "+methods.entropy.trigger_options.threshold=0.5"
    assert place.compare("triggers=[never,entropy]", given, out="given")["n"] == len(rows)
    assert any("No score is calibrated" in note for note in place.data(out="given")["notes"])
    assert "name no splits" not in capsys.readouterr().out
    results = place.compare("triggers=[never,probing]", out="tuned")
    assert results["n"] == round(len(rows) / 4)
    shown = capsys.readouterr().out
    assert "name no splits and were dealt (" in shown and "asked are test questions" in shown
    results = place.compare("triggers=[never,probing]", "methods.probing.tune=false", out="trained")
    assert results["n"] == len(rows)  # it is known what the prober was trained on


def test_thresholds_that_promise_and_triggers_that_cannot_always_fire(place):
    names = "triggers=[never,entropy,rind_paper]"
    results = place.compare(names, "threshold=risk=0.3@0.9", "sweep=2")
    notes = " ".join(place.data()["notes"])
    assert place.data()["threshold_rule"].startswith("threshold=risk=0.3@0.9")
    assert "entropy, closed-book: of what passes at most 30% is wrong" in notes
    assert results["options"]["entropy"]["threshold"] == place.read("thresholds")["entropy"]["threshold"]
    assert 0 < results["methods"]["entropy"]["retrievals"] < 3
    # Twelve questions cannot promise one in a hundred, whatever the trigger.
    results = place.compare(names, "threshold=risk=0.01@0.99", "sweep=0", out="none")
    notes = " ".join(place.data("none")["notes"])
    for name in ("entropy", "rind_paper"):
        assert results["options"][name]["threshold"] == ALWAYS
        assert f"{name}, closed-book: it always fires, for threshold=risk=0.01@0.99 needs" in notes
        assert place.data("none")["flags"][name] == "always fired"


def test_thresholds_come_from_validation_questions_unless_they_are_given(place):
    """The prober's as well, unless its own is asked for."""
    results = place.compare("triggers=[never,entropy,rind_paper,probing]")
    assert place.first_asked() == set(VALIDATION)
    stored = place.read("thresholds")
    assert set(stored) == {"entropy", "rind_paper", "probing", "sha256"}
    # Mean entropy of a wrong answer is (6 * .1 + 2 * 2) / 8 or so, of a right one .1: halfway between.
    assert 0.1 < stored["entropy"]["threshold"] < 0.6
    for name in ("entropy", "probing"):
        assert results["options"][name]["threshold"] == stored[name]["threshold"]
    given = "+methods.entropy.trigger_options={threshold: 99}"
    more = (given, "methods.probing.tune=false", "sweep=4")
    results = place.compare("triggers=[never,entropy,probing]", *more, out="given")
    assert results["options"]["probing"]["threshold"] == 0.0  # the prober's
    assert results["options"]["entropy"]["threshold"] == 99
    assert results["methods"]["entropy"]["retrievals"] == 0
    assert place.data("given")["flags"]["entropy"] == "never fired"
    # Other thresholds are for its curve only, which is drawn although it never fired at its own.
    assert place.data("given")["reruns"]["entropy"]["retrievals"][-1] > 0


def stable(results):
    """Everything but wall time."""
    rest = copy.deepcopy(results)
    for entry in rest["methods"].values():
        del entry["seconds"], entry["ci95"]["seconds"]
    return rest


def test_other_figures_take_the_answers_that_are_there(place, monkeypatch):
    given = ["triggers=[never,always,rind]", "prompt.task=Answer."]
    first = place.compare("sweep=1", "examples=3", *given)
    assert "prompt.task=Answer." in place.page() and "sweep=1" in place.page()
    monkeypatch.setattr(FakeLM, "generate_each", lambda *a, **k: pytest.fail("generated again"))
    again = place.compare("sweep=0", "examples=1", "resamples=200", *given)
    assert {n: m["em"] for n, m in again["methods"].items()} == {
        n: m["em"] for n, m in first["methods"].items()
    }
    assert again["config"]["sweep"] == 0 and "sweep=0" in place.page() and "sweep=1" not in place.page()


def test_questions_without_answers_are_answered_and_their_figures_are_null(place):
    place.write("questions", [row | {"answers": []} for row in place.rows()])
    with fails("labels", "oracle", "40 of 40"):
        place.compare()
    results = place.compare("triggers=[never,entropy,probing]")
    entry = results["methods"]["probing"]
    assert (entry["em"], entry["consistency"], entry["trigger"]["auroc"]) == (None, None, None)
    assert entry["retrievals"] == 0.6
    notes = " ".join(place.data()["notes"])
    assert "40 of 40 questions have no gold answer" in notes
    assert "thresholds of entropy, probing are those they came with" in notes


def test_answers_that_are_all_wrong_are_said_to_tell_nothing(place, capsys):
    place.compare("triggers=[never,oracle,entropy]", out="right")
    assert "Every closed-book answer" not in capsys.readouterr().out
    assert "all methods are right on" not in place.page("right")
    place.write("questions", [row | {"answers": ["Utopia"]} for row in place.rows()])
    place.compare("triggers=[never,oracle,entropy,probing]")
    assert "note: Every closed-book answer is wrong" in capsys.readouterr().out
    assert "oracle" not in place.data()["flags"]  # it is right to fire
    assert "all methods are right on 0%" in place.page()


# The parts, by hand.


def answers(ems, retrievals, scores=None):
    made = []
    for i, (em, r) in enumerate(zip(ems, retrievals, strict=True)):
        rounds = () if scores is None else (Round("", Decision(False, scores[i], 0.0), None, (), ""),)
        made.append(Answer(f"q{i}", "?", "", "yes" if em else "other", rounds, Counters(retrievals=r)))
    return made


def test_figures_by_hand_and_groups_widen_intervals():
    ems = [int(10 <= i < 20) for i in range(40)]
    widths = []
    for size, unit in ((1, "question"), (10, "group")):
        questions = [Question(f"q{i}", "?", ("yes",), group=f"g{i // size}") for i in range(40)]
        comparison = Evaluation(questions, Outcomes(questions, answers([1] * 20 + [0] * 20, [0] * 40)))
        assert comparison.unit == {"unit": unit, "units": 40 // size, "resamples": 1000}
        entry = comparison.figures(Outcomes(questions, answers(ems, [2] * 40)))
        # 10 of the 20 right ones stay right; those and the 20 that stay wrong agree.
        assert (entry["em"], entry["retrievals"]) == (0.25, 2.0)
        assert (entry["consistency"], entry["agreement"]) == (0.5, 0.75)
        assert entry["retrieval_share"] == {"none": 0.0, "single": 0.0, "multi": 1.0}
        widths.append(entry["ci95"]["em"][1] - entry["ci95"]["em"][0])
    assert widths[1] > 1.5 * widths[0]


def test_questions_that_a_part_was_trained_on_are_not_asked(place, capsys):
    """Also where the prober was trained on them under another id; unless it is asked for, and then said."""
    trained, tuned = TEST[:3], VALIDATION[:4]
    texts = [("", "", f"Where is town {i}?") for i in (*trained, *tuned)]
    Seen.of({"train": texts}).save(place.path / "prober")
    results = place.compare("triggers=[never,probing]", "sweep=0")
    assert results["n"] == 37
    shown = capsys.readouterr().out
    assert "3 questions left out" in shown
    assert not {line["id"] for line in place.trace("never")} & {f"q{i}" for i in trained}
    assert f"chosen on {len(VALIDATION) - 4} validation questions" in shown
    allowed = place.compare("triggers=[never,probing]", "sweep=0", "allow_overlap=true", out="all")
    assert allowed["n"] == 40
    for text in (capsys.readouterr().out, place.page("all")):
        assert "Overlap: 3 of the 40 questions" in text
    (place.path / "prober/seen.json").unlink()
    with fails("overlap"):
        place.compare("triggers=[never,probing]", "sweep=0", out="older")


def test_every_pair_has_its_p_value_and_each_method_is_set_against_random_retrieval(place):
    results = place.compare("resamples=600", "sweep=0")
    assert results["bootstrap"] == {"unit": "question", "units": 40, "resamples": 600}
    names = list(results["methods"])
    assert len(results["pairs"]) == len(names) * (len(names) - 1) // 2
    for figure in ("em", "retrievals", "trigger.auroc"):
        family = [entry[figure] for entry in results["pairs"].values() if figure in entry]
        largest = 0.0
        for rank, entry in enumerate(sorted(family, key=lambda entry: entry["p"])):
            largest = max(largest, entry["p"] * (len(family) - rank))
            assert entry["p_holm"] == pytest.approx(min(1.0, largest))
    entry = results["pairs"]["probing vs never"]["em"]
    assert entry["p"] == 1 / 601 and entry["p_holm"] == pytest.approx(28 / 601)
    assert results["pairs"]["entropy vs always"]["em"]["p"] == 1.0
    assert not any("too few" in note for note in place.data()["notes"])
    at_budget = results["random_at_budget"]
    assert set(at_budget) == {"oracle", "entropy", "probing"}  # rind never fired: no budget to compare at
    entry = at_budget["probing"]
    # 60% of the questions retrieve at random: right are the known 40%, and of the others 60%.
    assert (entry["query"], entry["retrievals"]) == ("answer", pytest.approx(0.6))
    assert entry["em"]["value"] == pytest.approx(0.4 + 0.6 * 0.6)
    assert entry["em"]["diff"] == pytest.approx(1 - 0.76)
    # It reads as many tokens, up to the lengths of towns' names.
    assert entry["times_tokens"] == pytest.approx(1, abs=0.1)
    assert 0 < entry["em"]["ci95"][0] < 0.24 < entry["em"]["ci95"][1] and entry["em"]["p_holm"] <= 1


def test_what_is_wrong_may_be_judged_by_another_figure(place, capsys):
    questions = [Question(f"q{i}", "?", ("no",)) for i in range(6)]
    said = ["no", "I know", "now", "yes", "yes", "no"]  # in characters the first three and the last hold it
    scores = [0.1, 0.2, 0.3, 0.9, 0.8, 0.0]
    made = [
        replace(a, text=t, answer=t) for a, t in zip(answers([0] * 6, [0] * 6, scores), said, strict=True)
    ]
    reference = Outcomes(questions, made)
    for rule, wrong in {"em": [0, 1, 1, 1, 1, 0], "acc_substring": [0, 0, 0, 1, 1, 0]}.items():
        comparison = Evaluation(questions, reference, wrong=rule, resamples=100)
        assert comparison.wrong.tolist() == wrong
        auroc = comparison.figures(reference)["trigger"]["auroc"]
        assert auroc == pytest.approx(roc_auc_score(wrong, scores)), rule
    results = place.compare("wrong=f1>=0.5", "sweep=0")
    assert results["wrong"] == "f1>=0.5" and results["options"]["oracle"]["wrong"] == "f1>=0.5"
    assert results["methods"]["oracle"]["em"] == 1.0
    assert "note: Answers are wrong by f1>=0.5 here" in capsys.readouterr().out


def test_split_all_asks_every_split_and_says_who_answered_each_question(place, capsys):
    results = place.compare("triggers=[never,always,fixed_sentence]", "split=all", "limit=null")
    assert results["n"] == len(TEST) + len(VALIDATION)
    assert "These are the questions of all splits." in place.data()["notes"]
    lines = [*Journal(place.path / "out" / "outcomes.jsonl").read().records.values()]
    assert [set(line) for line in lines] == [{"id", "dataset", "group", "split", "question", "right"}] * 70
    for line in lines:
        town = int(line["id"][1:])
        assert line["split"] == ("test" if town in TEST else "validation") and line["group"] == line["id"]
        assert line["right"] == {"never": knows(town), "always": True, "fixed_sentence": True}
    assert results["methods"]["never"]["em"] == np.mean([line["right"]["never"] for line in lines])


def test_the_workload_counts_shared_texts_once_and_leaves_out_those_that_exist(tmp_path):
    methods = [
        Method("never", Never(), AnswerQuery()), Method("entropy", Entropy(), AnswerQuery()),
        Method("again", Entropy(), AnswerQuery()), Method("flare", Flare(), FlareQuery()),
    ]  # fmt: skip
    given = {"tuned_on": 30, "reference": "never", "retrievals": 3, "sweep": 0, "traces": tmp_path}
    work = Workload.of(methods, 10, **given)
    stages = {THRESHOLDS: 30, "never": 10, "entropy": 30, "again": 0, "flare": 40}
    assert work.stages == stages | {REPLAY: 30} and work.texts == sum(work.stages.values())
    assert "4 methods on 10 questions, thresholds on 30: at most 140 generations" in work.summary(4, 10)
    assert work.left("never", 40.0).startswith("about 2 min more")  # 100 texts after 40 in 40 seconds
    assert Workload({"never": 0, "flare": 3}).left("never", 1.0) == ""  # a resumed run has timed nothing
    (tmp_path / "flare.jsonl").write_text("{}\n" * 4)
    assert Workload.of(methods, 10, **given).stages["flare"] == 24
    assert CURVES not in work.stages and Workload.of(methods, 10, **given | {"sweep": 2}).stages[CURVES] > 0
