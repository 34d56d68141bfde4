"""The commands of docs/tables.md: each is accepted, and runs with the testbed in the papers' place.

What is run is read from the document, so that it cannot say what does not work. A command that reads what
another one makes is run after it, whichever of them is asked for.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from probers.cli import main as cli
from probers.cli.components import choices, file_of
from probers.cli.compose import compose, normalise, request
from probers.cli.main import combinations
from probers.cli.presets import methods

TEXT = (Path(__file__).parents[1] / "docs" / "tables.md").read_text()


#: Every command of the document, by word.
COMMANDS = [
    shlex.split(command.replace("\\\n", " "))
    for command in re.findall(r"^(probers-(?:.*\\\n)*.*)", TEXT, re.MULTILINE)
]


def value(command: list[str], key: str) -> str | None:
    """What a command gives for a key."""
    return next((word.partition("=")[2] for word in command if word.startswith(f"{key}=")), None)


def folder(command: list[str]) -> str:
    """Where a command writes, up to what differs from job to job."""
    return str(value(command, "out")).partition("/${")[0]


def jobs(command: list[str]) -> tuple[str, list[list[str]]]:
    """The name of a command and the overrides of each of its jobs."""
    name, *arguments = command
    name = name.removeprefix("probers-")
    overrides = normalise(name, [word for word in arguments if word != "-m"])
    return name, combinations(overrides) if "-m" in arguments else [overrides]


def label(command: list[str]) -> str:
    return f"{command[0].removeprefix('probers-')} {folder(command).removeprefix('runs/')}"


@pytest.mark.parametrize("command", COMMANDS, ids=label)
def test_a_command_is_accepted(command):
    name, several = jobs(command)
    folders = [request(name, job).out for job in several]
    assert len(set(folders)) == len(folders) and all(each.startswith("runs/") for each in folders)


def test_no_two_commands_write_to_one_folder_and_what_is_read_was_made_before():
    made: list[str] = []
    for command in COMMANDS:
        for word in command:
            if not word.startswith("out="):
                for path in re.findall(r"runs/[\w/]+", word):
                    assert any(path == m or path.startswith(f"{m}/") for m in made), (path, made)
        assert folder(command) not in made
        made.append(folder(command))


def test_every_method_of_a_comparison_stands_in_the_document():
    asked = {value(command, "method") for command in COMMANDS}
    assert {m for m in choices("method") if "compare" in file_of("method", m)["commands"]} <= asked
    assert {m for m in methods("datagen")} <= asked


#: Layers of the testbed in the place of a published model's.
LAYERS = {"probing_rag_gemma_2b": "[4,8,12]", "radio_llama2_7b": "[12]"}
#: What is left out: it belongs to what is put in another's place.
VOID = ("questions", "wikipedia", "retriever", "balance_to", "limit")
SMALL = {
    "datagen": ["batch_size=8", "max_new_tokens=24"],
    "train": ["resamples=100", "epochs=2", "learning_curve=false"],
    "compare": ["limit=4", "validation=24", "resamples=100", "examples=1", "max_new_tokens=24"],
}


def in_the_testbed(command: list[str], parts: dict[str, str]) -> tuple[str, list[list[str]]]:
    """The command's jobs with the testbed for model, questions, corpus and articles, and little to do."""
    name, several = jobs(command)
    found = []
    for job in several:
        kept = [word for word in job if word.split("=")[0].split(".")[0] not in VOID]
        # All sets are the testbed there, and no text may be given twice.
        kept = [re.sub(r"^data=\[([^,\]]+).*", r"data=[\1]", word) for word in kept]
        more = [*SMALL[name]] if value(kept, "head") != "adaptive" else ["resamples=100"]
        if name != "train":
            kept = [word for word in kept if word.split("=")[0] not in ("model", "model.name", "articles")]
            more += ["model=testbed", "questions=testbed", "corpus=testbed"]
            if value(kept, "prompt") is None:
                more.append("prompt=testbed")
        if name == "datagen":
            preset = value(kept, "experiment")
            more += [f"layers={LAYERS[preset]}"] if preset in LAYERS else []
            if value(kept, "source") == "wiki" or "radio" in str(preset):
                more += ["articles=testbed", "limit=60"]
            else:
                more += ["limit={train: 60, validation: 30, test: 30}", "balance_to=null"]
        if value(kept, "split") == "all":
            more[more.index("limit=4")] = "limit=40"
        if value(kept, "method") == "dragin_where":
            more.append(f"methods.dragin_sgpt.retriever_options.model={parts['encoder']}")
        kept = ["sizes=[20,30,60]" if word.startswith("sizes=") else word for word in kept]
        kept = [re.sub(r"/\$\{questions\.hub\}$", "/${questions._target_}", word) for word in kept]
        found.append([*kept, *normalise(name, more)])
    return name, found


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def parts(place) -> dict[str, str]:
    """A tiny encoder for texts, as a folder."""
    from helpers.tiny import byte_level
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel

    tokenizer = byte_level(every_byte=True, size=400)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), **small)).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    words = models.Transformer(str(place / "bert"), max_seq_length=64)
    SentenceTransformer(modules=[words, models.Pooling(8)], device="cpu").save(str(place / "encoder"))
    return {"encoder": str(place / "encoder")}


@pytest.fixture(scope="module")
def done() -> dict[int, list[Path]]:
    """Folders by number of the command that was run."""
    return {}


def run(number: int, parts: dict[str, str], done: dict[int, list[Path]]) -> list[Path]:
    """Run a command of the document after those that make what it reads; once."""
    if number not in done:
        name, several = in_the_testbed(COMMANDS[number], parts)
        for earlier in range(number):
            path = folder(COMMANDS[earlier])
            if any(path in word and not word.startswith("out=") for job in several for word in job):
                run(earlier, parts, done)
        # All jobs of a comparison are one in the testbed.
        done[number] = [Path(cli.run(name, job)) for job in several[: 1 if name == "compare" else None]]
    return done[number]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[label(c) for c in COMMANDS])
def test_a_command_runs_with_the_testbed(number, place, parts, done, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for out in run(number, parts, done):
        state = json.loads((out / "run.json").read_text())
        assert state["complete"]
        if state["command"] == "compare":
            made = json.loads((out / "results.json").read_text())["methods"]
            # What is not there under its own name is there once for each value, prober or set.
            for name in compose("compare", jobs(COMMANDS[number])[1][0]).triggers:
                assert name in made or any(each.startswith(f"{name}_") for each in made), (name, made)
    capsys.readouterr()
