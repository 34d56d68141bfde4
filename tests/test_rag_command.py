"""probers-rag with a scripted model: one question on the terminal, many into files, bad requests."""

import json
import os
from dataclasses import replace
from functools import partial

import pytest
from helpers.artefacts import write_lines
from helpers.fake_elasticsearch import FakeElasticsearch
from helpers.fake_lm import FakeLM, linear_bank
from helpers.refusals import exits, fails
from test_compare import model, place  # noqa: F401

from probers.adaptive import AdaptiveClassifier
from probers.cli import main as cli
from probers.cli.compose import request
from probers.cli.inputs import find_classifier, find_prober
from probers.cli.runs import RunFolder
from probers.data.splits import Seen
from probers.prober.io import save as write_prober
from probers.prober.prober import Prober
from probers.rag.comparison.compare import selection_of
from probers.rag.comparison.methods import available
from probers.types import RunError

COMMON = ["questions=questions.jsonl", "corpus=corpus.jsonl", "limit=null"]


@pytest.fixture
def rag(place):  # noqa: F811
    def run(*overrides):
        return cli.run("rag", [*COMMON, *overrides])

    run.path, run.models = place.path, place.models
    return run


def traces(out):
    return [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]


def figures(out):
    return json.loads((out / "results.json").read_text())


def test_one_question_streams_where_it_fired_what_it_asked_and_fetched(rag, capsys, caplog):
    assert rag("question=Where is town 3?", "trigger=probing", "prober=prober") is None
    shown = capsys.readouterr().out
    assert "prober: prober" in caplog.text
    for part in (
        "Question: Where is town 3?", "[1] It must be Nowhere. So the answer is Nowhere.",
        "▲ probing fired on the whole answer: score 2, threshold 0",
        "query: Where is town 3? It must be Nowhere.", "fetched: Town 3 (", "[2] It must be Land3.",
        "Answer: Land3  (right; gold: Land3)", "1 retrieval, 2 generations",
    ):  # fmt: skip
        assert part in shown, part
    assert sorted(p.name for p in rag.path.iterdir()) == ["corpus.jsonl", "prober", "questions.jsonl"]
    # With out its trace is written.
    rag("question=Where is town 3?", "trigger=always", "out=one")
    assert traces(rag.path / "one")[0]["answer"] == "Land3" and figures(rag.path / "one")["n"] == 1


def test_the_terminal_shows_where_it_fired_and_what_is_kept(rag, capsys):
    rag("question=Where is town 3?", "trigger=fixed_length", "trigger.n=2")
    shown = capsys.readouterr().out
    assert "▲ fixed_length fired before the text" in shown and "kept: It must | discarded: be" in shown
    assert "▲ fixed_length fired after “must”, character 8" in shown
    rag("question=Where is town 3?", "trigger=flare", "query=question")
    assert "flare fired at “Nowhere.”, character 12: score 0.865, threshold 0.2" in capsys.readouterr().out


def test_passages_without_room_and_searches_without_result_are_told(rag, capsys, monkeypatch):
    small = lambda cfg, folder, engine, adapter=None: replace(model(), context=75)  # noqa: E731
    monkeypatch.setattr("probers.rag.command.load_model", small)
    texts = [f"town 3 {'and so on ' * 9}{i}" for i in range(3)]
    write_lines(rag.path / "long.jsonl", [{"id": text, "title": "", "text": text} for text in texts])
    rag("question=Where is town 3?", "trigger=always", "corpus=long.jsonl")
    assert "3 passages left out for want of room" in capsys.readouterr().out
    write_lines(rag.path / "other.jsonl", [{"id": "p", "title": "", "text": "zebra"}])
    rag("trigger=always", "corpus=other.jsonl", "split=test", "out=empty")
    assert "40 retrievals found nothing; those answers went on without passages" in capsys.readouterr().out


def test_many_questions_are_written_and_a_second_run_is_done_already(rag, capsys, caplog):
    out = rag("trigger=entropy", "split=test")
    assert str(out) == "runs/rag/entropy"
    lines = traces(out)
    assert len(lines) == 40 and lines[0]["filter"] is None
    assert set(lines[0]) == {"id", "question", "text", "answer", "rounds", "counters", "filter", "sha256"}
    results = figures(out)
    assert list(results["methods"]) == ["entropy"] and results["filter"] is None
    assert (results["schema"], results["n"], results["methods"]["entropy"]["em"]) == (1, 40, 1.0)
    assert "wrote 40 traces to runs/rag/entropy/traces.jsonl" in capsys.readouterr().out
    rag("trigger=entropy", "split=test")
    assert "complete" in caplog.text and len(rag.models) == 1
    # A prober that the trigger does not take is named.
    for trigger, used in (("entropy", False), ("probing", True)):
        rag("question=Where is town 3?", f"trigger={trigger}", "prober=prober")
        assert (f"note: prober=prober is not used: trigger={trigger}" in capsys.readouterr().out) == (
            not used
        )


@pytest.mark.parametrize(("variant", "filter"), [("released", "stop words"), ("paper", None)])
def test_results_and_traces_say_which_filter_found_content_words(rag, monkeypatch, variant, filter):
    monkeypatch.setattr("probers.words.text._tagger", lambda: None)
    out = rag("trigger=rind", f"trigger.variant={variant}", "query=question", "split=test", "limit=2")
    assert [figures(out)["filter"], *(trace["filter"] for trace in traces(out))] == [filter] * 3


def test_questions_without_splits_are_all_asked_unless_the_trigger_was_trained(rag, capsys):
    rows = [{"id": f"q{i}", "question": f"Where is town {i}?", "answers": ["x"]} for i in range(20)]
    given = [f"questions={write_lines(rag.path / 'plain.jsonl', rows)}", "corpus=corpus.jsonl"]

    def asked(*overrides):
        out = cli.run("rag", [*given, *overrides])
        return len(traces(out)), "names no splits: the" in capsys.readouterr().out

    assert asked("trigger=entropy", "out=a") == (20, False)
    assert asked("trigger=entropy", "split=validation", "out=b") == (3, True)
    assert asked("trigger=probing", "prober=prober", "out=c") == (20, False)  # it was trained on none of them
    Seen.of({"train": [("", f"q{i}", "") for i in range(15)]}).save(rag.path / "prober")
    assert asked("trigger=probing", "prober=prober", "out=d") == (5, False)
    (rag.path / "prober/seen.json").unlink()
    assert asked("trigger=probing", "prober=prober", "allow_overlap=true", "out=f") == (5, True)


@pytest.mark.parametrize("way", ["prober=prober", "trigger.bank=prober"])
def test_a_prober_of_another_quantization_is_refused_or_warned_of(rag, caplog, way):
    bank, other = Prober.from_pretrained(rag.path / "prober"), f"r-{way[:6]}"
    spec = replace(bank.spec, model=replace(bank.spec.model, revision=other))
    replace(bank, spec=spec).save_pretrained(rag.path / "prober")
    given = ["trigger=probing", way, "limit=2", "out=o"]
    with fails(None, f"fake@{other}", "now is fake@r1", "allow_other=true"):
        rag(*given)
    assert len(traces(rag(*given, "allow_other=true"))) == 2
    assert f"warning: the prober came from the model fake@{other}" in caplog.text


#: Trigger -> its kind of prober and what tells it apart.
BANKS = {
    "probing": ("answers", {}), "radio": ("tokens", {"pool": "tokens", "position": "entity"}),
    "before_entity": ("entities", {"pool": "predicting", "position": "entity"}),
    "probing_before": ("prompts", {"pool": "prompt"}), "helps": ("helps", {"label": "helps"}),
    "helps_before": ("helps_before", {"pool": "prompt", "label": "helps"}),
}  # fmt: skip


def test_the_newest_of_the_kind_that_is_wanted_is_taken(rag, caplog):
    questions = [f"{word} {i}?" for word in ("where", "who") for i in range(3)]
    classifier = AdaptiveClassifier.fit(questions, ["no"] * 3 + ["multi"] * 3).save
    made = {name: partial(write_prober, prober=linear_bank(**options)) for name, options in BANKS.values()}
    made |= {"adaptive": classifier, "answers of another": partial(write_prober, prober=linear_bank())}
    for time, (name, save) in enumerate((made | {"adaptive of another": classifier}).items(), 1000):
        folder = rag.path / "runs/train" / name
        run = RunFolder(folder, "train", {})
        run.claim()
        save(folder)
        Seen({}).save(folder)
        run.finish({"model": "x" if "another" in name else "testbed"})
        os.utime(folder / "run.json", (time, time))
    banks = {trigger: name for trigger, (name, _) in BANKS.items()}
    cfg = request("rag", [])
    assert [find_prober(cfg, kind) for kind in banks.values()] == [f"runs/train/{k}" for k in banks.values()]
    assert find_prober(cfg) == "runs/train/answers"
    assert find_classifier(cfg) == "runs/train/adaptive"
    # A comparison gives each method its own.
    selection = selection_of(request("compare", [f"triggers=[{','.join([*banks][1:])},adaptive]"]))
    selection, notes = selection.completed(partial(available, model="testbed", prober=None))
    assert not notes
    for method in selection.build(None):
        part = "classifier" if method.name == "adaptive" else "bank"
        assert method.trigger.options[part] == f"runs/train/{banks.get(method.name, 'adaptive')}"
    # What was trained counts as the run's input, whether it was found or named.
    given = ("trigger=adaptive", "split=test", "limit=2")
    path, named = (
        figures(rag(*given, *more))["config"]["inputs"]
        for more in (["out=a"], ["out=b", "trigger.classifier=runs/train/adaptive"])
    )
    assert path == named and path["runs/train/adaptive"]
    assert "classifier: runs/train/adaptive (the newest" in caplog.text


def test_a_model_whose_attention_cannot_be_read_is_refused_before_anything_is_written(rag, monkeypatch):
    def refuse(lm, generations, *, progress=None):
        raise RunError("its attention is not to be had")

    monkeypatch.setattr(FakeLM, "attention_alone", refuse)
    for overrides in (["trigger=rind"], ["trigger=never", "query=qfs"]):
        with fails("unsupported", overrides[-1], "its attention"):
            rag(*overrides, "split=test", "out=here")
        assert not (rag.path / "here").exists()
    rag("trigger=entropy", "split=test", "out=here")


def test_a_server_that_goes_away_ends_the_run_and_the_same_command_goes_on(rag, monkeypatch, capsys):
    monkeypatch.setattr("probers.rag.loop._CHUNK", 10)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with FakeElasticsearch() as server:
        options = ["trigger=always", "split=test", "retriever=elasticsearch", f"retriever.url={server.url}"]
        whole = traces(rag(*options, "retriever.retries=1", "out=whole"))
        server.faults["search"] = [None] * 2 + ["reset"] * 9
        assert exits("rag", [*COMMON, *options, "retriever.retries=1", "out=parts"]) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("probers-rag: ") and server.url in error
        parts = traces(rag.path / "parts")
        server.faults.clear()
        resumed = traces(rag(*options, "retriever.retries=1", "out=parts"))
    assert 0 < len(parts) < 40 and resumed[: len(parts)] == parts
    assert [(line["id"], line["text"], line["rounds"]) for line in resumed] == [
        (line["id"], line["text"], line["rounds"]) for line in whole
    ]
