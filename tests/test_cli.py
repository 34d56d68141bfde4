"""Arguments in, one sentence and the right exit code out."""

import errno
import fcntl
import io
import json
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
from probers.cli.runs import RunFolder, taking_back
from probers.data.cache import build_once
from probers.files import locked
from probers.types import RunError, UserError

COMMANDS = (
    "demo", "datagen", "train", "search", "rag", "compare", "score", "check", "import", "export", "judge",
)  # fmt: skip


def composed(command, *typed):
    return cli.compose(command, cli.normalise(command, typed))


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
    *((command, "sede=3", "unknown-key", ["'sede'", "--help"]) for command in COMMANDS),
    ("datagen", "limt=3", "unknown-key", ["limit?"]),
    ("rag", "trigger=probng", "unknown-choice", ["did you mean probing?"]),
    ("train", "head=liner", "unknown-choice", ["did you mean linear?"]),
    ("compare", "experiment=dragin_vicuna_13b_2wki", "unknown-choice", ["dragin_vicuna_13b_2wiki?"]),
    ("rag", "trigger=radar", "unknown-choice",
     ["'radar'", *["never", "always", "random", "oracle", "entropy", "rind", "probing"]]),
    ("datagen", "wiki", "bad-value", ["key=value"]),
    ("datagen", "--source", "missing-value", ["--source"]),
    ("rag", "questions=hotpot", "unknown-choice", ["'hotpot'", "2wikimultihopqa, adarague, bamboogle"]),
])  # fmt: skip
def test_what_is_typed_wrong_is_one_sentence_that_lists_what_is_right(command, typed, code, named, capsys):
    assert exits(command, [typed]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"probers-{command}: ") and error.endswith(f"[{code}]\n")
    assert error.count("\n") == 1 and [name for name in named if name not in error] == []


def test_a_source_may_be_a_flag_and_a_model_its_name():
    for typed in (["--source", "wiki"], ["--source=wiki"]):
        assert cli.normalise("datagen", typed) == ["source=wiki"]
    assert composed("datagen", "model=google/gemma-2b").model.name == "google/gemma-2b"


def test_cfg_job_prints_the_resolved_configuration(capsys):
    assert exits("datagen", ["source=wiki", "--cfg", "job"]) == 0
    assert "out: runs/datagen/wiki" in capsys.readouterr().out


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


@pytest.mark.parametrize("odd", ["question=\ud83d", "out=caf\udce9"])
def test_arguments_are_unicode(capsys, odd):
    assert exits("datagen", [odd]) == 2
    assert "[argument]" in capsys.readouterr().err


def test_a_run_folder_is_claimed_once(tmp_path):
    first = RunFolder(tmp_path / "a", "datagen", {"seed": 0, "out": "a", "batch_size": 4})
    assert first.claim() is False and not first.complete
    again = RunFolder(tmp_path / "a", "datagen", {"seed": 0, "out": "b", "batch_size": 8})
    assert again.claim() is True  # how it is run does not make it another run
    again.finish({"n": 3})
    assert first.complete
    with fails("out-taken", "seed: 0 there, 1 now"):
        RunFolder(tmp_path / "a", "datagen", {"seed": 1}).claim()
    with fails("out-taken", "probers-datagen"):
        RunFolder(tmp_path / "a", "train", {"seed": 0}).claim()


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
    with fails("out-taken", "a.b: null there, 1 now; inputs"):
        third.claim()
    RunFolder(tmp_path / "b", "train", {"resamples": 100}).claim()  # there they are part of what is trained
    with fails("out-taken", "resamples"):
        RunFolder(tmp_path / "b", "train", {"resamples": 9}).claim()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_a_file_marks_the_folder(tmp_path, monkeypatch, caplog, number):
    """NFS without its lock service, some FUSE mounts; converse: another failure is none of that."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = RunFolder(tmp_path / "a", "rag", {"seed": 0})
    with taking_back():
        folder.claim()
        mark = folder.path / ".lock.soft"
        assert mark.exists() and [m for m in caplog.messages if "has no locks" in m and str(mark) in m]
        code = "import fcntl; from pathlib import Path; from probers.cli.runs import RunFolder\n"
        code += f"def refuse(*_): raise OSError({number}, '')\nfcntl.flock = refuse\n"
        code += f"RunFolder(Path({str(folder.path)!r}), 'rag', {{'seed': 0}}).claim()"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "UserError" in other.stderr and f"process {os.getpid()}" in other.stderr
        again = RunFolder(folder.path, "rag", {"seed": 1, "overwrite": True})
        assert again.claim() is False and mark.exists()  # the folder moved, and the new one is marked
        assert not (tmp_path / "a.old-1/.lock.soft").exists()
    assert not mark.exists() and not list(tmp_path.glob("**/.lock*"))
    made = []
    build_once(tmp_path / "cache", "index", lambda path: made.append(path) or {"n": 1}, lambda: None)
    assert len(made) == 1 and not (tmp_path / "cache.lock.soft").exists()
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        locked(tmp_path / "lock", lambda: None)


@pytest.mark.parametrize("text", [
    "plain", "a b", "it's", "head=linear,seed=1", "[a]", "$HOME", "a;b", "1", "null", "true", 'say "x"',
    "{a: 1}", "\\'", "`x`", "ä", "end\\", " lead", "~/x", "#1", "\\\\'a", "a,b", "wow!",
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


def test_every_command_tells_its_version(capsys):
    for command in cli.COMMANDS:
        assert exits(command, ["--version"]) == 0
        assert capsys.readouterr().out == f"probers-{command} {__version__}\n"


def test_layer_and_layers_are_one_word():
    for command, own, other in (("train", "layer", "layers"), ("datagen", "layers", "layer")):
        for key in (own, other):
            settings = cli.request(command, cli.normalise(command, [f"{key}=[1,2]"]))
            assert getattr(settings, own) == [1, 2]
        with fails("conflict", "layer=", "layers="):
            cli.normalise(command, ["layer=1", "layers=2"])
    with fails("unknown-key", "'layers'"):
        cli.request("rag", cli.normalise("rag", ["layers=1"]))


@pytest.mark.parametrize("bad", ["pipe", "folder", "{", '{"a":' * 100_000, '{"fingerprint": 1}', "\udcff"])
def test_one_bad_run_is_noted_and_the_search_goes_on(tmp_path, caplog, bad):
    good = RunFolder(tmp_path / "runs/good", "train", {})
    good.claim()
    good.finish({"model": "a"})
    file = tmp_path / "runs/z/run.json"
    file.parent.mkdir()
    if bad == "pipe":
        os.mkfifo(file)
    elif bad == "folder":
        file.mkdir()
    else:
        file.write_text(bad, errors="surrogateescape")
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
    assert json.loads((tmp_path / "1" / "run.json").read_text())["complete"] is True


@pytest.mark.parametrize(("typed", "target", "path"), [
    ("questions=mine.jsonl", "JSONL", "mine.jsonl"), ("questions=../data/qa", "JSONL", "../data/qa"),
    ("questions=testbed", "Testbed", None), ("questions=hotpotqa", "HotpotQA", None),
])  # fmt: skip
def test_questions_take_a_file_or_a_name(typed, target, path):
    node = composed("rag", typed).questions
    assert node._target_.endswith(f".{target}") and node.get("path") == path


def test_control_characters_reach_neither_stream(capsys, monkeypatch):
    steering = "a\x1b[2J\x9b\x07\u202eb\x1b]0;title\x07"

    def target(settings):
        log = logging.getLogger("probers.tests")
        log.info("%s", steering)
        log.warning("%s", steering)
        raise UserError(steering + "\nsecond line", "conflict")

    monkeypatch.setattr(cli, "load", lambda command: target)
    assert exits("demo", []) == 2
    out, err = capsys.readouterr()
    assert out == "a[2Jb]0;title\n"
    assert err == "a[2Jb]0;title\nprobers-demo: a[2Jb]0;title second line [conflict]\n"


@pytest.mark.parametrize(("typed", "code"), [
    ("question=Wer war Müller?", "conflict"), ("question=東京?", "conflict"), ("out=mü", "argument"),
    (b"question=a\xff", "argument"),
])  # fmt: skip
def test_an_argument_is_utf8_in_a_locale_of_ascii(typed, code):
    """A text is read; the name of a file, which cannot be opened, and other bytes are refused."""
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    script = "from probers.cli.main import rag; rag()"
    done = subprocess.run(
        [sys.executable, "-c", script, typed, "limit=3"], env=environment, capture_output=True
    )
    (line,) = done.stderr.decode("ascii").splitlines()
    assert done.returncode == 2 and line.endswith(f"[{code}]")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_an_output_that_lacks_a_character_shows_its_code(encoding, monkeypatch):
    """Notes, help and refusals alike; a character that it has is shown."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    assert exits("score", ["Dvořák 🎉.jsonl"]) == 2
    with cli.console():
        logging.getLogger("probers.test").info("Dvořák 中文")
    shown = [stream.detach().getvalue().decode(encoding) for stream in (err, out)]
    assert ("Dvořák" if encoding == "utf-8" else "Dvo\\u0159") in shown[0] and len(shown[1].splitlines()) == 1
    assert ("á" in shown[1]) == (encoding != "ascii")
