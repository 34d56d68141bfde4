"""Settings and components: every option is described, composes, and says the same as its class."""

import inspect
from dataclasses import fields

import pytest
from refusals import exits, fails

from probers.commands.components import COMPONENTS, Component, choices, node_of, target_of
from probers.commands.compose import COMMANDS, compose, groups_of, request, settings_of
from probers.commands.help import help_of
from probers.commands.settings import Settings
from probers.commands.signatures import signature
from probers.data.questions import DATASETS, source_class
from probers.options import field_types
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import world_config
from probers.testbed.world import WorldConfig

COMPONENT_NAMES = [(group, name) for group in COMPONENTS for name in choices(group) if name != "own"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_of_a_command_is_described(command, capsys):
    told = help_of(command)
    assert told.about
    keys = [key.name for key in told.keys]
    assert len(keys) == len(set(keys))
    parts = [key for named in told.groups.values() for choice in named.values() for key in choice.keys]
    assert [key.name for key in (*told.keys, *parts) if not key.about] == []
    assert not exits(command, ["--help"])
    text = capsys.readouterr().out
    assert all(f"{name}=" in text for name in keys)
    assert max(map(len, text.splitlines())) <= 130


@pytest.mark.parametrize("group, name", COMPONENT_NAMES)
def test_the_options_read_from_the_source_are_those_of_the_class(group, name):
    kind = Component.of(group, name).kind
    types, empty = field_types(kind), inspect.Parameter.empty
    given = {p.name: p.default for p in inspect.signature(kind).parameters.values()}
    # Objects, by the commands; for a judge, passages are a number.
    handed_in = {"matcher"} if group == "judge" else {"matcher", "passages"}
    optional = {option for option, default in given.items() if default is not empty}
    assert optional - handed_in == set(node_of(group, name)) - {"_target_"}
    for option in signature(target_of(group, name)).options:
        default = given[option.name]
        if repr(default) == "<factory>":
            default = next(f.default_factory() for f in fields(kind) if f.name == option.name)
        assert (list(default) if isinstance(default, tuple) else default) == option.default, option.name
        assert option.name in types


def test_the_question_sets_of_the_table_are_those_of_the_code():
    assert set(choices("questions")) == set(DATASETS)
    for name in DATASETS:
        made = source_class(name)
        assert target_of("questions", name) == f"{made.__module__}.{made.__name__}"


def test_settings_made_in_python_are_those_that_are_typed():
    for command in COMMANDS:
        typed, made = request(command, []), settings_of(command)()
        assert isinstance(made, Settings)
        for field in fields(made):
            value = getattr(made, field.name)
            if not field.name.startswith("_") and "${" not in str(value):  # a reference to another key
                assert getattr(typed, field.name) == value, (command, field.name)
    assert settings_of("datagen")(limit=5).record["limit"] == 5


def test_the_testbeds_world_and_prompt_are_the_default_ones():
    assert world_config() == WorldConfig()  # which the shipped checkpoint was trained on
    assert request("datagen", []).prompt.make().fingerprint == TESTBED_PROMPT.fingerprint


def test_no_number_of_a_command_has_the_name_of_a_group():
    """It could not be given: its value would be taken for a name."""
    for command in COMMANDS:
        config = compose(command, [])
        assert [key for key in groups_of(settings_of(command)) if isinstance(config.get(key), int)] == []


def test_a_class_of_ones_own_has_none_of_the_options_of_the_part_in_whose_place_it_stands():
    own = ["trigger._target_=mine.Trigger", "+trigger.k=2", "query._target_=mine.Query"]
    cfg = compose("rag", [*own, "retriever._target_=mine.Retriever"])
    assert cfg.trigger == {"_target_": "mine.Trigger", "k": 2}
    assert cfg.query == {"_target_": "mine.Query"} and cfg.retriever == {"_target_": "mine.Retriever"}
    derived = compose("rag", ["trigger=rind", "trigger._target_=mine.Rind"]).trigger
    assert derived == {**compose("rag", ["trigger=rind"]).trigger, "_target_": "mine.Rind"}


def test_a_component_refuses_what_its_class_does_not_take():
    with fails("bad-value", "trigger.threshold"):
        Component.of("trigger", "rind", threshold="high")
    with fails("unknown-choice", "rind"):
        Component.of("trigger", "rond")
    assert Component.of("trigger", "rind", threshold=0.6).make().threshold == 0.6
