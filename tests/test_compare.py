"""probers-compare with a scripted model: figures that are known beforehand, equal terms, resuming."""

import copy
import json
import logging
import re
import uuid
from dataclasses import replace

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.fake_lm import FakeLM, linear_bank
from helpers.refusals import fails
from sklearn.metrics import roc_auc_score

from probers.checksums import unsealed_lines
from probers.cli import main as cli
from probers.cli.components import choices
from probers.cli.compose import request
from probers.cli.main import Console
from probers.data.splits import Seen
from probers.prober.decision import ALWAYS
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT
from probers.rag.comparison import findings as showcase
from probers.rag.comparison.compare import selection_of
from probers.rag.comparison.outcomes import Evaluation, Outcomes, table_lines
from probers.rag.queries import QFS
from probers.rag.traces import Answer, Counters
from probers.rag.triggers import Rind
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


def of_other_weights(prober):
    """Let a prober be of other weights, which no other test has; says of which."""
    bank, revision = Prober.from_pretrained(prober), uuid.uuid4().hex[:12]
    spec = replace(bank.spec, model=replace(bank.spec.model, revision=revision))
    replace(bank, spec=spec).save_pretrained(prober)
    return revision


def test_every_method_gets_the_figures_it_must_have(place, capsys):
    results = place.compare()
    methods = results["methods"]
    assert (results["schema"], results["n"]) == (1, 40)
    em, retrievals = ({n: entry[figure] for n, entry in methods.items()} for figure in ("em", "retrievals"))
    assert em["never"] == 0.4
    assert em["always"] == em["oracle"] == em["probing"] == em["entropy"] == 1.0
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
    assert "probing" in shown
    assert "The budget of random is matched to probing: 0.600 retrievals per question." in shown
    assert "report.html" in shown.splitlines()[-1]
    # The form of the contract.
    keys = {
        "em", "f1", "precision", "recall", "precision_max", "recall_max", "acc", "acc_substring",
        "retrievals", "retrieval_share", "generations", "alarms", "tokens", "kept_tokens", "sentences",
        "read_tokens", "seconds", "consistency", "agreement", "trigger", "ci95", "gain_share",
        "retrievals_saved", "accuracy_gained",
    }  # fmt: skip
    assert methods["never"]["gain_share"] is methods["random"]["gain_share"] is None
    assert methods["oracle"]["gain_share"] == methods["probing"]["gain_share"] == pytest.approx(1)
    assert methods["probing"]["retrievals_saved"] == pytest.approx(0.4)  # always needs 1, it 0.6
    assert methods["probing"]["ci95"]["gain_share"] == pytest.approx([1, 1])
    assert shown.index("share of gain") < shown.index("EM 95%") < shown.index("retrievals  ")
    for name, entry in methods.items():
        assert set(entry) == keys, name
        assert {"auroc", "auprc", "base_rate", "ece", "prr", "recall_at_fpr"} == set(entry["trigger"])
        assert entry["ci95"]["em"][0] <= entry["em"] <= entry["ci95"]["em"][1]
    pair = results["pairs"]["probing vs never"]["em"]
    assert pair["diff"] == pytest.approx(0.6)
    assert 0 < pair["ci95"][0] <= 0.6 <= pair["ci95"][1]
    assert {f"probing vs {other}" for other in methods} - results["pairs"].keys() == {"probing vs probing"}
    assert results["pairs"]["entropy vs always"]["em"]["diff"] == 0.0
    share = results["pairs"]["entropy vs always"]["gain_share"]
    assert share["diff"] == pytest.approx(1) and 0 < share["p"] <= share["p_holm"] < 0.05
    assert results["config"]["limit"] is None
    # The same questions with the same prompts.
    for method in methods:
        assert sorted(line["id"] for line in place.trace(method)) == sorted(f"q{i}" for i in TEST), method
    closed = {p for p in place.models[0].prompts if not p.startswith("Context:") and p.endswith("Answer:")}
    assert closed == {TESTBED_PROMPT.question(f"Where is town {i}?") for i in (*TEST, *VALIDATION)}


def test_the_page_and_its_data_are_written(place):
    place.compare("examples=3", "resamples=100")
    data, page = place.data(), place.page()
    assert any("resamples=100 are too few to settle any of 28 pairs" in note for note in data["notes"])
    assert "Which trigger knows when to retrieve?" in page
    assert [entry["layer"] for entry in data["layers"]] == [1, 2]
    assert set(data["controls"]) == {"mean entropy"} and "never" not in data["roc"]
    assert (data["roc"]["probing"]["auroc"], data["roc"]["probing"]["fpr"][0]) == (1.0, 0.0)
    # rind fires within an answer.
    assert set(data["replay"]) == {"random", "entropy", "probing", "oracle of helps"}
    rows = page.split('aria-labelledby="methods-caption"')[-1].split("</table>")[0].split("<tr>")[2:]
    ranked = [row.split("</svg>")[1].split("<")[0].strip() for row in rows]
    assert set(ranked[:3]) == {"oracle", "entropy", "probing"} and ranked[3] == "always"
    assert data["replay"]["probing"]["retrievals"][-1] == 0.0
    line = [min(1.0, 0.4 + 0.6 * r) for r in data["replay"]["random"]["retrievals"]]
    assert data["replay"]["random"]["em"] == pytest.approx(line)
    assert "EM vs random" in page and "asks with: qfs" in page
    assert data["points"]["always"]["em"] == 1.0
    assert len(data["examples"]) == 3
    methods = data["examples"][0]["methods"]
    assert [m["method"] for m in methods][:2] == ["never", "always"]
    rind = next(m for e in data["examples"] for m in e["methods"] if m["method"] == "rind_paper")
    assert "".join(t["text"] for t in rind["rounds"][0]["tokens"]).startswith(" It must be")
    assert rind["rounds"][0]["tokens"][0]["score"] is not None
    fetched = [r for e in data["examples"] for m in e["methods"] for r in m["rounds"] if r["query"]]
    assert fetched[0]["passages"][0]["text"].startswith("Town ")


def test_what_methods_share_is_generated_once_and_changes_nothing(place):
    shared = place.compare("sweep=0", out="shared")
    lm = place.models[-1]
    assert len(lm.prompts) == len(set(lm.prompts))
    alone = place.compare("sweep=0", "memory=0", out="alone")
    assert len(place.models[-1].prompts) > 3 * len(lm.prompts)
    for results in (shared, alone):
        del results["config"]["out"], results["config"]["memory"]
    assert stable(shared) == stable(alone)


def test_methods_that_fire_within_an_answer_are_run_at_other_thresholds(place):
    results = place.compare("sweep=3")
    found = place.data()["reruns"]
    assert set(found) == {"rind_paper", "rind_released"}  # the others have theirs from recorded answers
    for name, curve in found.items():
        own = curve["value"].index(results["options"][name]["threshold"])
        assert curve["retrievals"][own] == results["methods"][name]["retrievals"]
        assert curve["em"][own] == results["methods"][name]["em"]
        assert curve["retrievals"][0] == 0.0 and curve["retrievals"][-1] > 0.9
        assert 2 <= len(curve["value"]) <= 5
        assert len(curve["acc"]) == len(curve["f1"]) == len(curve["value"])
    files = {file.name.split("-")[0] for file in (place.path / "out" / "replay").glob("*.jsonl")}
    assert files == set(found)
    assert "run at each dot" in place.page().split('aria-labelledby="tradeoff-title')[1].split("</svg>")[0]
    lm = place.models[-1]
    closed = [p for p in lm.prompts if p == TESTBED_PROMPT.question("Where is town 3?")]
    assert len(closed) == 1  # however many runs began with it
    assert stable(place.compare("sweep=0", out="none"))["methods"] == stable(results)["methods"]
    assert place.data("none")["reruns"] == {}


def test_methods_whose_part_is_not_there_are_left_out_and_named(place, capsys):
    results = place.compare("triggers=[never,radio,adaptive,entropy]")
    assert list(results["methods"]) == ["entropy", "never"]
    shown = capsys.readouterr().out
    assert re.search(r"note: radio is left out: .*pool=tokens.*token_prober=PATH", shown)
    assert re.search(r"note: adaptive is left out: .*head=adaptive.*classifier=PATH", shown)


def test_queries_take_the_place_of_the_methods_own(place):
    results = place.compare("triggers=[never,always,random,entropy,rind_paper,probing]", "queries=[question]")
    own = {"never": "question", "always": "question"}
    assert results["queries"] == dict.fromkeys(results["methods"], "question") | own
    # With the question each method that judges answers is between never and always on its budget's line.
    random = results["methods"]["random"]
    assert random["em"] == pytest.approx(0.4 + 0.6 * random["retrievals"], abs=0.2)
    results = place.compare("triggers=[never,probing]", "queries=[question,answer]", out="what")
    assert list(results["methods"]) == ["never", "probing_answer", "probing_question"]
    assert results["queries"]["probing_answer"] == "answer"


def test_a_method_is_compared_at_several_values_of_an_option(place):
    asked = "vary={entropy: {threshold: [-1, 0.2, 3]}, probing: {query.question_first: [true]}}"
    results = place.compare("triggers=[never,entropy,probing]", asked)
    names = ["entropy_threshold=-1", "entropy_threshold=0.2", "entropy_threshold=3"]
    assert sorted(results["methods"]) == [*names, "never", "probing_query.question_first=True"]
    retrieved = [results["methods"][name]["retrievals"] for name in names]
    assert retrieved[0] > retrieved[1] == 0.6 > retrieved[2] == 0
    assert [results["options"][name]["threshold"] for name in names] == [-1, 0.2, 3]
    assert results["config"]["methods"][names[0]]["trigger_options"] == {"threshold": -1}
    # One setting alone gives the same, and its own name stays where nothing is varied.
    given = "+methods.entropy.trigger_options={threshold: 0.2}"
    alone = place.compare("triggers=[never,entropy]", given, out="alone")
    for figure in ("em", "retrievals", "generations", "tokens", "read_tokens"):
        assert alone["methods"]["entropy"][figure] == results["methods"][names[1]][figure]
    asked = "vary={flare_mean: {threshold: [0.1, 0.2], variant: [paper, dragin]}}"
    two = place.compare("triggers=[never,flare_mean]", asked, out="two")
    assert sorted(two["methods"])[:-1] == [
        f"flare_mean_threshold={t},variant={v}" for t in (0.1, 0.2) for v in ("dragin", "paper")
    ]


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
    assert results["random_at_budget"]["probing"]["em"]["value"] == pytest.approx(0.4 + 0.6 * 0.6)
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
    assert place.compare("triggers=[never,always]")["n"] == len(rows)
    assert "name no splits" not in capsys.readouterr().out
    given = "+methods.entropy.trigger_options.threshold=0.5"
    assert place.compare("triggers=[never,entropy]", given, out="given")["n"] == len(rows)
    assert any("No score is calibrated" in note for note in place.data(out="given")["notes"])
    for trigger in ("entropy", "probing"):
        results = place.compare(f"triggers=[never,{trigger}]", out=f"tuned {trigger}")
        assert results["n"] == round(len(rows) / 4)
        shown = capsys.readouterr().out
        assert "name no splits and were dealt (" in shown and "asked are test questions" in shown
    results = place.compare("triggers=[never,probing]", "methods.probing.tune=false", out="trained")
    assert results["n"] == len(rows)  # it is known what the prober was trained on


def test_thresholds_that_promise_and_triggers_that_cannot_always_fire(place):
    names = "triggers=[never,entropy,rind_paper]"
    results = place.compare(names, "threshold=risk=0.3@0.9", "sweep=2")
    stored, notes = place.read("thresholds"), " ".join(place.data()["notes"])
    assert place.data()["threshold_rule"].startswith("threshold=risk=0.3@0.9")
    assert "entropy, closed-book: of what passes at most 30% is wrong" in notes
    assert results["options"]["entropy"]["threshold"] == stored["entropy"]["threshold"]
    assert 0 < results["methods"]["entropy"]["retrievals"] < 3
    # Twelve questions cannot promise one in a hundred, whatever the trigger.
    results = place.compare(names, "threshold=risk=0.01@0.99", "sweep=0", out="none")
    notes = " ".join(place.data("none")["notes"])
    for name in ("entropy", "rind_paper"):
        assert results["options"][name]["threshold"] == ALWAYS
        assert f"{name}, closed-book: it always fires, for threshold=risk=0.01@0.99 needs" in notes
        assert place.data("none")["flags"][name] == "always fired"
    assert "promise" not in " ".join(place.compare(names, "sweep=0", out="plain"))
    with fails("bad-value", "threshold=risk=2@0.9"):
        place.compare(names, "threshold=risk=2@0.9", out="wrong")


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
    results = place.compare("triggers=[never,probing]", "methods.probing.tune=false", out="own")
    assert results["options"]["probing"]["threshold"] == 0.0  # the prober's
    assert not (place.path / "own" / "thresholds.json").exists()
    theta = "+methods.probing.trigger_options={theta: -1.5}"
    given = "+methods.entropy.trigger_options={threshold: 99}"
    results = place.compare("triggers=[never,entropy,probing]", "sweep=4", theta, given, out="given")
    assert place.trace("probing", "given")[0]["rounds"][0]["decision"]["threshold"] == 1.5
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


def test_other_figures_take_the_answers_that_are_there(place, capsys):
    first = place.compare("sweep=1", "examples=3", "triggers=[never,always,rind]", "prompt.task=Answer.")
    asked = len(place.models)
    assert "prompt.task=Answer." in place.page() and "sweep=1" in place.page()
    calls = []
    fewer = ["sweep=0", "examples=1", "resamples=200", "triggers=[never,always,rind]", "prompt.task=Answer."]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeLM, "generate_each", lambda *a, **k: calls.append(a) or iter(()))
        again = place.compare(*fewer)
    assert len(place.models) == asked + 1 and not calls
    assert [again["methods"][name]["em"] for name in again["methods"]] == [
        first["methods"][name]["em"] for name in first["methods"]
    ]
    assert again["config"]["sweep"] == 0 and "sweep=0" in place.page() and "sweep=1" not in place.page()
    assert " in " in capsys.readouterr().out.splitlines()[-2]


def test_damaged_thresholds_and_recorded_answers_are_named_and_made_again(place, capsys):
    """Cut, altered, without a checksum; converse: whole ones are taken, and nothing is said."""
    asked = "triggers=[never,entropy,probing]"
    whole = stable(place.compare(asked))
    out = place.path / "out"
    page, replay = place.data(), next((out / "replay").glob("*.json"))
    figures, thresholds = (out / "results.json").read_bytes(), out / "thresholds.json"
    kept = {file: file.read_bytes() for file in (thresholds, replay)}
    seal = re.compile(rb'"sha256": "\w+"')

    def unfinished(damages):
        state = json.loads((out / "run.json").read_text()) | {"complete": False}
        (out / "run.json").write_text(json.dumps(state))
        for file, blob in damages.items():
            file.write_bytes(blob)
        capsys.readouterr()
        assert stable(place.compare(asked)) == whole
        assert place.data() == page and {file: file.read_bytes() for file in kept} == kept
        return [line for line in capsys.readouterr().out.splitlines() if "making it again" in line]

    count = len(place.models)
    assert unfinished({}) == [] and (out / "results.json").read_bytes() == figures
    assert place.models[count].prompts == []
    altered = {file: re.sub(rb"0\.\d", b"0.7", blob) for file, blob in kept.items()}
    named = [str(file.relative_to(place.path)) for file in kept]
    assert [line.split(" ", 1)[0] for line in unfinished(altered)] == named
    damages = (
        lambda blob: blob[:-20], lambda blob: seal.sub(b'"other": 1', blob), lambda blob: b"[]",
        lambda blob: b"", lambda blob: b"\xff" + blob,
    )  # fmt: skip
    for damage in damages:
        assert len(unfinished({file: damage(blob) for file, blob in kept.items()})) == 2


def test_a_triggers_own_name_is_a_method_with_its_default_variant(place):
    with fails("unknown-choice", "'rinds'", *choices("trigger")):
        place.compare("triggers=[rinds]")
    results = place.compare("triggers=[never,rind,rind_released,rind_paper]")
    own = results["options"]["rind"]
    assert own == results["options"]["rind_released"] != results["options"]["rind_paper"]
    assert results["queries"]["rind"] == "qfs"
    figures = stable(results)["methods"]
    assert figures["rind"] == figures["rind_released"]
    (trigger,) = selection_of(request("compare", ["triggers=[rind]"])).build(None)
    assert (trigger.trigger, trigger.query) == (Rind(), QFS())


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
    rows, given = place.rows(), "triggers=[never,oracle,entropy,probing]"
    place.write("questions", (row | {"answers": ["Utopia"]} for row in rows))
    results = place.compare(given)
    assert {entry["em"] for entry in results["methods"].values()} == {0.0}
    assert "note: Every closed-book answer is wrong" in capsys.readouterr().out
    assert "oracle" not in place.data()["flags"]  # it is right to fire
    page = place.page()
    assert "None of them has a single answer right" in page and "highest exact match" not in page
    place.write("questions", rows)
    place.compare(given, out="told")
    assert "Every closed-book answer" not in capsys.readouterr().out
    assert "highest exact match" in place.page("told")


def test_without_never_the_closed_book_run_is_made_and_named(place):
    results = place.compare("triggers=[always,probing]")
    typed = "questions=questions.jsonl corpus=corpus.jsonl limit=null resamples=1000 prober=prober"
    assert place.data()["command"] == f"probers-compare {typed} 'triggers=[always,probing]' seed=0"
    assert list(results["methods"]) == ["always", "probing"]
    assert results["methods"]["probing"]["trigger"]["auroc"] == 1.0
    assert any("not in the table" in note for note in place.data()["notes"])


# The parts, by hand.


def answers(ems, retrievals, scores=None):
    made = []
    for i, (em, r) in enumerate(zip(ems, retrievals, strict=True)):
        rounds = () if scores is None else (Round("", Decision(False, scores[i], 0.0), None, (), ""),)
        made.append(Answer(f"q{i}", "?", "", "yes" if em else "other", rounds, Counters(retrievals=r)))
    return made


def test_figures_by_hand_and_groups_widen_intervals():
    ems = [i // 10 % 2 for i in range(40)]
    widths = []
    for size, unit in ((1, "question"), (10, "group")):
        questions = [Question(f"q{i}", "?", ("yes",), group=f"g{i // size}") for i in range(40)]
        comparison = Evaluation(questions, Outcomes(questions, answers([1] * 20 + [0] * 20, [0] * 40)))
        assert comparison.unit == {"unit": unit, "units": 40 // size, "resamples": 1000}
        entry = comparison.figures(Outcomes(questions, answers(ems, [2] * 40)))
        assert (entry["em"], entry["retrievals"], entry["consistency"]) == (0.5, 2.0, 0.5)
        assert entry["retrieval_share"] == {"none": 0.0, "single": 0.0, "multi": 1.0}
        widths.append(entry["ci95"]["em"][1] - entry["ci95"]["em"][0])
    assert widths[1] > 1.5 * widths[0]


def test_consistency_and_agreement_by_hand():
    questions = [Question(f"q{i}", "?", ("yes",)) for i in range(8)]
    closed, method = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0, 0]
    reference = Outcomes(questions, answers(closed, [0] * 8))
    entry = Evaluation(questions, reference).figures(Outcomes(questions, answers(method, [1] * 8)))
    assert entry["consistency"] == 3 / 4  # of the four right ones
    assert entry["agreement"] == 6 / 8  # three right on both sides, three wrong on both
    assert entry["ci95"]["agreement"][0] < 6 / 8 < entry["ci95"]["agreement"][1]


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
    for told in (capsys.readouterr().out, place.page("all")):
        assert "Overlap: 3 of the 40 questions" in told
    (place.path / "prober/seen.json").unlink()
    with fails("overlap"):
        place.compare("triggers=[never,probing]", "sweep=0", out="older")


def test_every_pair_has_its_p_value_and_each_method_is_set_against_random_retrieval(place):
    results = place.compare("resamples=600")
    assert results["bootstrap"] == {"unit": "question", "units": 40, "resamples": 600}
    names = list(results["methods"])
    assert len(results["pairs"]) == len(names) * (len(names) - 1) // 2
    for figure in ("em", "f1", "acc", "acc_substring", "retrievals", "trigger.auroc"):
        family = [entry[figure] for entry in results["pairs"].values() if figure in entry]
        largest = 0.0
        for rank, entry in enumerate(sorted(family, key=lambda entry: entry["p"])):
            largest = max(largest, entry["p"] * (len(family) - rank))
            assert entry["p_holm"] == pytest.approx(min(1.0, largest))
    entry = results["pairs"]["probing vs never"]["em"]
    assert entry["p"] == 1 / 601 and entry["p_holm"] == pytest.approx(28 / 601)
    assert results["pairs"]["entropy vs always"]["em"]["p"] == 1.0
    assert not any("too few" in note for note in place.data()["notes"])
    found = results["random_at_budget"]
    for entry in found.values():
        told = entry.get("common", entry)["em"]
        assert told["p"] <= told["p_holm"] <= 1
    assert set(found) == {"oracle", "entropy", "probing"}  # rind never fired: no budget to compare at
    entry = found["probing"]
    # 60% of the questions retrieve at random: right are the known 40%, and of the others 60%.
    assert (entry["query"], entry["retrievals"]) == ("answer", pytest.approx(0.6))
    assert entry["em"]["value"] == pytest.approx(0.4 + 0.6 * 0.6)
    assert entry["em"]["diff"] == pytest.approx(1 - 0.76)
    assert 0 < entry["em"]["ci95"][0] < 0.24 < entry["em"]["ci95"][1]
    kept = place.read("replay/answer")["questions"]
    assert len(kept) == 40 and len(kept[0]["steps"]) == 4
    assert set(kept[0]["steps"][0]["scores"]) == {"entropy", "probing"}


def test_methods_with_other_tokens_than_random_retrieval_are_named(place, capsys):
    results = place.compare("triggers=[never,entropy,probing]", "sweep=0")
    for name, entry in results["methods"].items():
        read = [line["counters"]["read_tokens"] for line in place.trace(name)]
        assert 0 < entry["read_tokens"] == pytest.approx(sum(read) / 40)
    assert results["random_at_budget"].keys() == {"entropy", "probing"}
    # Where 60% of all retrieve, random retrieval reads as much, up to the lengths of towns' names.
    entry = results["random_at_budget"]["probing"]
    own = sum(results["methods"]["probing"][key] for key in ("tokens", "read_tokens"))
    assert entry["times_tokens"] == pytest.approx(own / (entry["tokens"] + entry["read_tokens"]))
    assert entry["times_tokens"] == pytest.approx(1, abs=0.1)
    assert "not by tokens" not in capsys.readouterr().out
    other = {"times_tokens": 0.85, "tokens": 10.0, "read_tokens": 190.0}
    at_random = {"probing": entry, "rind": entry | {"common": other}, "flare": other | {"times_tokens": 1.5}}
    (note,) = showcase.unlike_random({"random_at_budget": at_random})
    assert "rind uses 0.85 times its tokens (170 against 200), flare 1.50 times (300 against 200)." in note
    assert "probing" not in note
    plain = {key: value for key, value in entry.items() if "tokens" not in key}  # of older recordings
    assert not showcase.unlike_random({"random_at_budget": {"probing": plain}})


def test_tokens_read_are_null_where_they_were_not_counted():
    questions = [Question(f"q{i}", "?", ("yes",)) for i in range(3)]
    counted = answers([1, 1, 0], [0, 1, 2])
    for a, read in zip(counted, (10, 20, 30), strict=True):
        a.counters.tokens, a.counters.read_tokens = 5, read
    comparison = Evaluation(questions, Outcomes(questions, counted), resamples=100)
    assert comparison.figures(Outcomes(questions, counted))["read_tokens"] == 20
    trace = counted[0].trace
    del trace["counters"]["read_tokens"]  # as older versions wrote it
    older = Answer.from_trace(trace)
    assert older.counters == replace(counted[0].counters, read_tokens=0)
    entry = comparison.figures(Outcomes(questions, [older, *counted[1:]]))
    assert entry["read_tokens"] is None and entry["tokens"] == 5 and "read_tokens" not in entry["ci95"]
    assert "      - " in "\n".join(table_lines({"never": entry}))


def test_what_is_wrong_may_be_judged_by_another_figure():
    questions = [Question(f"q{i}", "?", ("no",)) for i in range(6)]
    said = ["no", "I know", "now", "yes", "yes", "no"]  # in characters the first three and the last hold it

    def run(texts, scores):
        made = answers([0] * 6, [0] * 6, scores)
        both = zip(made, texts, strict=True)
        return Outcomes(questions, [replace(a, text=text, answer=text) for a, text in both])

    scores = [0.1, 0.2, 0.3, 0.9, 0.8, 0.0]
    reference, method = run(said, scores), run(["no", "no", "yes", "yes", "no", "yes"], scores)
    wrong = {"em": [0, 1, 1, 1, 1, 0], "acc": [0, 1, 1, 1, 1, 0], "acc_substring": [0, 0, 0, 1, 1, 0]}
    right_then = [1, 1, 0, 0, 1, 0]
    for rule, expected in wrong.items():
        comparison = Evaluation(questions, reference, wrong=rule, resamples=100)
        assert comparison.wrong.tolist() == expected
        entry = comparison.figures(method)
        kept = [then for then, w in zip(right_then, expected, strict=True) if not w]
        assert entry["consistency"] == pytest.approx(sum(kept) / len(kept)), rule
        assert entry["trigger"]["auroc"] == pytest.approx(roc_auc_score(expected, scores)), rule
    entry = Evaluation(questions, reference, resamples=100).figures(reference)
    assert (entry["acc"], entry["acc_substring"]) == (pytest.approx(2 / 6), pytest.approx(4 / 6))


def test_wrong_is_an_option_of_the_command(place, capsys):
    results = place.compare("wrong=f1>=0.5")
    assert results["wrong"] == "f1>=0.5" and results["options"]["oracle"]["wrong"] == "f1>=0.5"
    assert results["methods"]["oracle"]["em"] == 1.0
    assert "note: Answers are wrong by f1>=0.5 here" in capsys.readouterr().out
    assert "call an answer wrong by f1&gt;=0.5" in place.page()


def test_the_exemplars_file_is_an_input_of_the_run(place):
    def shots(town):
        text = f"Question: Where is town {town}?\nAnswer: So the answer is Land{town}.\n"
        (place.path / "shots.txt").write_text(text)

    shots(7)
    given = ("triggers=[never]", "prompt.exemplars_file=shots.txt")
    first = place.compare(*given)["config"]["inputs"]["shots.txt"]
    assert first and place.models[-1].prompts[0].startswith("Question: Where is town 7?")
    shots(8)
    with fails("out-taken"):  # another run than the one in the folder
        place.compare(*given)
    assert place.compare(*given, out="other")["config"]["inputs"]["shots.txt"] != first


def test_split_all_asks_every_split_and_says_who_answered_each_question(place, capsys):
    results = place.compare("triggers=[never,always,fixed_sentence]", "split=all", "limit=null")
    assert results["n"] == len(TEST) + len(VALIDATION)
    assert "These are the questions of all splits." in place.data()["notes"]
    lines = unsealed_lines(place.path / "out" / "outcomes.jsonl")
    assert [set(line) for line in lines] == [{"id", "dataset", "group", "split", "question", "right"}] * 70
    for line in lines:
        town = int(line["id"][1:])
        assert line["split"] == ("test" if town in TEST else "validation") and line["group"] == line["id"]
        assert line["right"] == {"never": knows(town), "always": True, "fixed_sentence": True}
    assert results["methods"]["never"]["em"] == np.mean([line["right"]["never"] for line in lines])
