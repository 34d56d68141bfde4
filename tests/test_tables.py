"""The commands of docs/tables.md: each is accepted, and what it reads is made by one before it."""

import re
import shlex
from pathlib import Path

import pytest

from probers.cli.components import choices, file_of
from probers.cli.compose import normalise, request
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
    documented = {value(command, "method") for command in COMMANDS}
    assert {m for m in choices("method") if "compare" in file_of("method", m)["commands"]} <= documented
    assert {m for m in methods("datagen")} <= documented
