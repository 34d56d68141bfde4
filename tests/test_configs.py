"""Settings and components: every option is described, composes, and says the same as its class."""

import shlex
from dataclasses import fields

import pytest
from helpers.refusals import exits
from transformers import AutoTokenizer

from probers.cli.compose import COMMANDS, compose, normalise, request, settings_of
from probers.cli.help import help_of, help_text
from probers.cli.settings import Settings
from probers.parts import PARTS, load_part
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import model_path
from tools.testbed.drawing import world_config
from tools.testbed.world import WorldConfig


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_of_a_command_is_described(command):
    told = help_of(command)
    parts = [key for named in told.groups.values() for choice in named.values() for key in choice.keys]
    assert told.about and [key.name for key in (*told.keys, *parts) if not key.about] == []
    text = help_text(command, "all")
    assert all(f"{key.name}=" in text for key in told.keys)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_help_is_one_screen_with_an_example_that_the_command_takes(command, capsys):
    assert not exits(command, ["--help"])
    lines = capsys.readouterr().out.splitlines()
    screen = settings_of(command).screen
    assert len(lines) <= 45 and f"  {screen.example}" in lines
    program, *typed = shlex.split(screen.example)
    assert program == f"probers-{command}"
    request(command, normalise(command, typed))
    assert set(screen.keys.split()) <= {key.name for key in help_of(command).keys}


def test_every_line_of_the_table_leads_to_a_part():
    for group, names in PARTS.items():
        for name, path in names.items():
            assert not path or load_part(group, name).__name__ == path.rpartition(".")[2]


def test_settings_made_in_python_are_those_that_are_typed():
    for command in COMMANDS:
        typed, made = request(command, []), settings_of(command)()
        assert isinstance(made, Settings)
        for each in fields(made):
            value = getattr(made, each.name)
            if not each.name.startswith("_") and "${" not in str(value):  # a reference to another key
                assert getattr(typed, each.name) == value, (command, each.name)
    assert settings_of("datagen")(limit=5).record["limit"] == 5  # type: ignore[call-arg]


def test_the_testbeds_world_and_prompt_are_the_default_ones():
    assert world_config() == WorldConfig()  # which the shipped checkpoint was trained on
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    assert request("datagen", []).prompt.make().bind(tokenizer).fingerprint == TESTBED_PROMPT.fingerprint


def test_a_class_of_ones_own_has_none_of_the_options_of_the_part_in_whose_place_it_stands():
    own = ["trigger._target_=mine.Trigger", "+trigger.k=2", "query._target_=mine.Query"]
    cfg = compose("rag", [*own, "retriever._target_=mine.Retriever"])
    assert cfg.trigger == {"_target_": "mine.Trigger", "k": 2}
    assert cfg.query == {"_target_": "mine.Query"} and cfg.retriever == {"_target_": "mine.Retriever"}
    derived = compose("rag", ["trigger=rind", "trigger._target_=mine.Rind"]).trigger
    assert derived == {**compose("rag", ["trigger=rind"]).trigger, "_target_": "mine.Rind"}
