"""part=i/n and probers-merge of answers: traces in the order of the questions, one report as of one piece."""

import json
import shutil
from pathlib import Path

import pytest
from parts import apart, computed, in_parts, merged, tree
from refusals import fails
from test_compare import place  # noqa: F401

from probers.cli import main as cli

ASKED = ["questions=questions.jsonl", "corpus=corpus.jsonl", "prober=prober", "limit=null"]
EVERY = "[never,always,random,oracle,fixed_sentence,entropy,flare,rind_paper,rind_released,probing]"
COMPARED = [*ASKED, f"triggers={EVERY}", "resamples=200", "sweep=2"]


@pytest.mark.parametrize("count", [2, 3])
def test_merged_answers_are_those_of_one_piece(place, count):  # noqa: F811
    typed = [*ASKED, "trigger=probing"]
    whole = cli.run("rag", [*typed, "out=whole"])
    folders = in_parts("rag", typed, Path("run"), count)
    found = computed(merged(folders, Path("run")))
    assert found == computed(whole) and set(found) == {"results.json", "traces.jsonl"}
    ids = [json.loads(line)["id"] for line in Path("run/traces.jsonl").read_text().splitlines()]
    assert ids == [f"q{i}" for i in range(40)]
    lines = [len((Path(f) / "traces.jsonl").read_text().splitlines()) for f in folders]
    assert sum(lines) == 40 and min(lines) > 4


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_merged_comparison_is_that_of_one_piece(place, count, monkeypatch):  # noqa: F811
    place.compare(f"triggers={EVERY}", "resamples=200", "sweep=2", out="whole")
    folders = in_parts("compare", COMPARED, Path("run"), count)
    assert not (Path(folders[0]) / "results.json").exists()
    assert not (Path(folders[0]) / "traces/random.jsonl").exists()  # its budget is that of all questions
    out = merged(folders, Path("run"))
    ours, theirs = computed(out), computed(Path("whole"))
    assert list(ours) == list(theirs) and ours == theirs
    config = [json.loads((f / "results.json").read_text())["config"] for f in (out, Path("whole"))]
    assert config[0] | {"out": ""} == config[1] | {"out": ""}
    report = (out / "report.html").read_text()
    assert "matched to probing: 0.600 retrievals" in report


def test_what_parts_recorded_is_not_recorded_again_by_the_merge(place, monkeypatch):  # noqa: F811
    typed = [*ASKED, "triggers=[never,entropy,probing]", "resamples=200", "sweep=0"]
    cli.run("compare", [*typed, "out=whole"])
    folders = in_parts("compare", typed, Path("run"), 2)
    made = len(place.models)
    out = merged(folders, Path("run"))
    assert [model.prompts for model in place.models[made:]] == [[]]
    assert computed(out) == computed(Path("whole"))
    # A part that did not ask a trigger: all of it is recorded anew, and the same comes out.
    from probers.checksums import sealed, unsealed

    file = Path(folders[0]) / "replay/index.json"
    entries = unsealed(file)["recorded"]
    file.write_text(sealed({"recorded": [entry | {"triggers": []} for entry in entries]}))
    again = merged(folders, Path("again"))
    assert place.models[-1].prompts and computed(again) == computed(Path("whole"))


def test_thresholds_of_all_parts_are_the_same_or_refused(place):  # noqa: F811
    folders = in_parts("compare", COMPARED, Path("run"), 2)
    texts = [(Path(f) / "thresholds.json").read_text() for f in folders]
    assert texts[0] == texts[1]
    other = Path("other/2of2")
    shutil.copytree(folders[1], other)
    (other / "thresholds.json").write_text(texts[1].replace("0.", "1.", 1))
    with fails(None, "1of2", "2of2"):
        merged([folders[0], str(other)], Path("merged"))


def test_an_answer_that_a_part_lacks_is_named_and_parts_stay_as_they_are(place):  # noqa: F811
    typed = [*ASKED, "trigger=probing"]
    folders = in_parts("rag", typed, Path("run"), 2)
    file = Path(folders[1]) / "traces.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:20])
    before = tree(Path(folders[1]))
    lost = json.loads(lines[-1])["id"]
    with fails(None, f"2of2/traces.jsonl lacks question '{lost}'"):
        merged(folders, Path("run"))
    assert tree(Path(folders[1])) == before


def test_a_part_that_died_goes_on_and_the_whole_is_the_same(place, monkeypatch):  # noqa: F811
    whole = place.compare("resamples=100", "sweep=0", out="whole")
    names = "[never,always,random,oracle,entropy,rind_paper,rind_released,probing]"
    typed = [*ASKED, f"triggers={names}", "resamples=100", "sweep=0"]
    with monkeypatch.context() as patch:

        def stop(*given, **named):
            raise KeyboardInterrupt

        patch.setattr("probers.rag.comparison.plan.record_all", stop)
        with pytest.raises(KeyboardInterrupt):
            cli.run("compare", [*typed, "out=run", "part=1/2"])
    cli.run("compare", [*typed, "out=run", "part=2/2"])
    with fails(None, "1of2", "part=1/2"):
        merged(["run/parts/1of2", "run/parts/2of2"], Path("run"))
    cli.run("compare", [*typed, "out=run", "part=1/2"])
    out = merged(["run/parts/1of2", "run/parts/2of2"], Path("run"))
    assert computed(out) == computed(Path("whole")) and whole["n"] == 40


def test_parts_of_two_commands_or_of_one_question_are_refused(place):  # noqa: F811
    rag = cli.run("rag", [*ASKED, "trigger=never", "out=a", "part=1/2"])
    compare = cli.run("compare", [*ASKED, "triggers=[never]", "resamples=100", "out=b", "part=2/2"])
    with fails(None):
        merged([str(rag), str(compare)], Path("c"))
    with fails("conflict", "part=1/2", "question="):
        cli.run("rag", ["question=Where is town 3?", "trigger=never", "part=1/2"])
    with fails(None, "out=FOLDER"):
        cli.run("merge", [str(rag), str(cli.run("rag", [*ASKED, "trigger=never", "out=d", "part=2/2"]))])


def test_options_that_expand_are_typed_once(place):  # noqa: F811
    """vary makes methods of values, which a merge must not make again of what was made."""
    typed = [*ASKED, "triggers=[never,entropy]", "vary={entropy: {threshold: [0.5, 1.5]}}", "resamples=100"]
    cli.run("compare", [*typed, "out=whole"])
    out = merged(in_parts("compare", typed, Path("run"), 2), Path("run"))
    assert computed(out) == computed(Path("whole"))


@pytest.mark.long
def test_the_testbeds_own_model_gives_the_same_report(tmp_path):
    typed = ["limit=9", "batch_size=1", "max_new_tokens=24", "max_retrievals=2", "match=entropy",
             "triggers=[never,always,random,entropy,flare,rind_paper]", "validation=12", "resamples=100",
             "sweep=1", "examples=3"]  # fmt: skip
    whole = cli.run("compare", [*typed, f"out={tmp_path}/whole"])
    out = merged(in_parts("compare", typed, tmp_path / "run", 2), tmp_path / "run")
    ours, theirs = computed(out), computed(whole)
    # What is generated anew by the merge had other texts before it, whose cached beginnings it goes on
    # from, so that its scores are the same up to the last bits of float32; what is judged is the same.
    assert apart(ours, theirs, 1e-4) == []
    assert {n for n in theirs if ours[n] != theirs[n]} <= {n for n in theirs if n.startswith("replay/")}
