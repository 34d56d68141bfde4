"""Arguments in, one sentence and the right exit code out."""

import io
import logging
import os
import subprocess
import sys

import pytest
from helpers.refusals import exits, fails

from probers import __version__
from probers.cli import main as cli
from probers.cli.command_lines import command_line
from probers.cli.inputs import newest_run
from probers.cli.runs import RunFolder
from probers.types import RunError, UserError


def test_help_imports_nothing_heavy():
    heavy = {"torch", "transformers", "lightning", "sklearn", "pandas", "numpy", "nltk", "jinja2", "hydra"}
    heavy.add("probers.words.language")  # reads the word lists
    code = (
        "import sys\nsys.argv = ['x', '--help']\nfrom probers.cli import main as cli\n"
        "for command in cli.COMMANDS:\n"
        "    try:\n        cli.main(command)\n    except SystemExit:\n        pass\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("command", "typed", "code", "named"), [
    *((command, "sede=3", "unknown-key", ["'sede'", "--help"]) for command in cli.COMMANDS),
    ("datagen", "limt=3", "unknown-key", ["limit?"]),
    ("rag", "trigger=probng", "unknown-choice", ["did you mean probing?", "never", "entropy"]),
    ("compare", "experiment=dragin_vicuna_13b_2wki", "unknown-choice", ["dragin_vicuna_13b_2wiki?"]),
    ("datagen", "wiki", "bad-value", ["key=value"]),
    ("datagen", "--source", "missing-value", ["--source"]),
    ("datagen", "out=caf\udce9", "argument", []),
    ("rag", "questions=hotpot", "unknown-choice", ["'hotpot'", "2wikimultihopqa, adarague, bamboogle"]),
])  # fmt: skip
def test_what_is_typed_wrong_is_one_sentence_that_lists_what_is_right(command, typed, code, named, capsys):
    assert exits(command, [typed]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"probers-{command}: ") and error.endswith(f"[{code}]\n")
    assert error.count("\n") == 1 and [name for name in named if name not in error] == []


def test_a_source_may_be_a_flag_and_a_model_its_name():
    assert cli.normalise("datagen", ["--source", "wiki"]) == ["source=wiki"]
    settings = cli.request("datagen", cli.normalise("datagen", ["model=google/gemma-2b"]))
    assert settings.model.name == "google/gemma-2b"


def test_a_command_tells_its_version_and_its_configuration(capsys):
    assert exits("datagen", ["--version"]) == 0 and exits("datagen", ["source=wiki", "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"probers-datagen {__version__}\n") and "out: runs/datagen/wiki" in shown


@pytest.mark.parametrize(("error", "code"), [
    (UserError("bad request"), 2), (RunError("went wrong"), 1), (KeyboardInterrupt(), 130),
    (OSError(28, "No space left on device", "/x"), 1),
])  # fmt: skip
def test_exit_codes(monkeypatch, capsys, error, code):
    def fail(_config):
        raise error

    monkeypatch.setattr(cli, "load", lambda command: fail)
    assert exits("datagen", []) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("probers-datagen: ")


def test_a_run_folder_is_claimed_once(tmp_path):
    first = RunFolder(tmp_path / "a", "datagen", {"seed": 0, "out": "a", "batch_size": 4})
    assert first.claim() is False and not first.complete
    again = RunFolder(tmp_path / "a", "datagen", {"seed": 0, "out": "b", "batch_size": 8})
    assert again.claim() is True  # how it is run does not make it another run
    again.finish({"n": 3})
    assert first.complete
    with fails("out-taken", "seed: 0 there, 1 now"):
        RunFolder(tmp_path / "a", "datagen", {"seed": 1}).claim()
    with fails("out-taken", "overwrite=true", "probers-datagen"):  # of another command
        RunFolder(tmp_path / "a", "train", {"seed": 0, "overwrite": True}).claim()
    assert again.complete and [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_figures_are_made_again_from_the_same_answers(tmp_path):
    """What changes no answer starts no other run, and a finished run with other figures is not complete."""
    first = RunFolder(tmp_path / "a", "compare", {"seed": 0, "sweep": 4, "resamples": 100, "examples": 2})
    assert first.claim() is False
    first.choose("model.dtype", "float32")
    first.finish({"n": 3})
    other = RunFolder(tmp_path / "a", "compare", {"seed": 0, "sweep": 0, "resamples": 9, "examples": 1})
    assert first.begin() is False and not other.complete and not other.changed
    assert other.begin() is True and not first.complete and other.chosen == {"model.dtype": "float32"}
    other.finish()
    assert other.complete and not first.complete
    third = RunFolder(tmp_path / "a", "compare", {"seed": 1, "a": {"b": 1}, "inputs": {"c": 1}})
    assert third.changed == {"seed": 1, "a.b": 1}
    with fails("out-taken", "a.b: null there, 1 now; c is read only now"):
        third.claim()


@pytest.mark.parametrize("text", [
    "plain", "a b", "it's", "head=linear,seed=1", "[a]", "$HOME", "1", "null", 'say "x"', "{a: 1}", "\\'",
    "`x`", "ä", "end\\", "~/x", "#1", "a,b",
])  # fmt: skip
def test_printed_commands_mean_the_same_in_the_shell(text):
    line = command_line("train", "layer=all", data=text, out=text, resamples=300)
    script = f"printf '%s\\0' {line}"
    words = (
        subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode().split("\0")[:-1]
    )
    assert words[:2] == ["probers-train", "layer=all"]
    settings = cli.request("train", cli.normalise("train", words[1:]))
    assert (settings.data, settings.out, settings.resamples) == (text, text, 300)


def test_layer_and_layers_are_one_word():
    assert cli.request("train", cli.normalise("train", ["layers=[1,2]"])).layer == [1, 2]
    assert cli.request("datagen", cli.normalise("datagen", ["layer=[1,2]"])).layers == [1, 2]
    with fails("conflict", "layer=", "layers="):
        cli.normalise("train", ["layer=1", "layers=2"])
    with fails("unknown-key", "'layers'"):
        cli.request("rag", cli.normalise("rag", ["layers=1"]))


@pytest.mark.parametrize("bad", ["folder", "{", '{"a":' * 100_000])
def test_one_bad_run_is_noted_and_the_search_goes_on(tmp_path, caplog, bad):
    good = RunFolder(tmp_path / "runs/good", "train", {})
    good.claim()
    good.finish({"model": "a"})
    file = tmp_path / "runs/z/run.json"
    file.parent.mkdir()
    file.mkdir() if bad == "folder" else file.write_text(bad)
    assert newest_run(["train"], root=tmp_path / "runs") == good.path
    (note,) = caplog.messages
    assert note.startswith("note: ") and "z/run.json" in note


def test_newest_takes_complete_runs_of_the_model(tmp_path):
    for index, (model, done) in enumerate([("a", True), ("b", True), ("b", False)]):
        folder = RunFolder(tmp_path / str(index), "train", {"i": index})
        folder.claim()
        if done:
            folder.finish({"model": model})
        os.utime(tmp_path / str(index) / "run.json", (index, index))
    assert newest_run(["train"], root=tmp_path) == tmp_path / "1"
    assert newest_run(["train"], root=tmp_path, model="a") == tmp_path / "0"
    assert newest_run(["datagen"], root=tmp_path) is None


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_an_output_shows_what_it_has_and_no_control_character(encoding, monkeypatch):
    """A character that the output lacks is its code, in notes and refusals alike."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert exits("score", ["Dvořák 🎉.jsonl"]) == 2
    with cli.console():
        logging.getLogger("probers.test").info("Dvořák 中文\x1b]0;title\x07\x9b\u202e")
    refusal, note = (stream.detach().getvalue().decode(encoding) for stream in (err, out))
    name = "Dvořák" if encoding == "utf-8" else "Dvo\\u0159ák"
    assert name in refusal and name in note and len(note.splitlines()) == 1
    assert not set(note) & set("\x1b\x07\x9b\u202e")
