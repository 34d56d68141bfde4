"""Settings and components: every option is described and composes, and a part is one file and one line."""

import importlib.util
import json
import shlex
import sys
from dataclasses import fields

import pytest
import torch
from helpers.refusals import exits, fails
from transformers import AutoTokenizer

from probers.cli.components import Component
from probers.cli.compose import COMMANDS, compose, normalise, request, settings_of
from probers.cli.help import help_of, help_text
from probers.cli.settings import Settings
from probers.data.texts.source import TextSource
from probers.heads import HEADS, head_name
from probers.parts import PARTS, load_part
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import model_path
from tools.testbed.drawing import world_config
from tools.testbed.world import WorldConfig


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_of_a_command_is_described(command):
    documented = help_of(command)
    parts = [key for named in documented.groups.values() for choice in named.values() for key in choice.keys]
    assert documented.about and [key.name for key in (*documented.keys, *parts) if not key.about] == []
    text = help_text(command, "all")
    assert all(f"{key.name}=" in text for key in documented.keys)


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
    keys = ["trigger._target_=mine.Trigger", "+trigger.k=2", "query._target_=mine.Query"]
    cfg = compose("rag", [*keys, "retriever._target_=mine.Retriever"])
    assert cfg.trigger == {"_target_": "mine.Trigger", "k": 2}
    assert cfg.query == {"_target_": "mine.Query"} and cfg.retriever == {"_target_": "mine.Retriever"}
    derived = compose("rag", ["trigger=rind", "trigger._target_=mine.Rind"]).trigger
    assert derived == {**compose("rag", ["trigger=rind"]).trigger, "_target_": "mine.Rind"}


HEAD = '''
from probers.heads.single import LinearHead

class TwiceHead(LinearHead):
    """A linear head on twice the state.

    Args:
        times: factor on the state.
    """

    def __init__(self, streams, width, *, times: float = 2.0):
        super().__init__(streams, width)
'''
TRIGGER = '''
from dataclasses import dataclass

from probers.rag.protocol import Trigger

@dataclass(frozen=True)
class Shout(Trigger):
    """Fires on capitals."""

    share: float = 0.5
    """share of capitals above which it fires"""
'''


FORMAT = '''
from probers.data.texts.formats import recognised

@recognised({"said", "lie"})
def minutes(record, place):
    """Minutes of meetings."""
    yield {"prompt": "", "answer": record["said"], "wrong": record["lie"]}
'''


@pytest.fixture
def add(tmp_path, monkeypatch):
    def add_part(group: str, name: str, path: str, code: str) -> None:
        """Write the file and the line."""
        file = tmp_path / f"{name}.py"
        file.write_text(code)
        spec = importlib.util.spec_from_file_location(f"probers.{path.rpartition('.')[0]}", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        monkeypatch.setitem(PARTS[group], name, path)

    return add_part


def test_a_head_is_a_file_and_a_line(add):
    add("head", "twice", "heads.twice.TwiceHead", HEAD)
    assert request("train", ["head=twice", "head.times=3"]).head.options == {"times": 3}
    with fails("unknown-key", "did you mean head.times?"):
        request("train", ["head=twice", "head.tims=3"])
    assert help_of("train").groups["head"]["twice"].about == "A linear head on twice the state."
    from probers.heads import TwiceHead

    assert HEADS["twice"] is TwiceHead and head_name(TwiceHead) == "twice" and "twice" in list(HEADS)
    head = Component.of("head", "twice").make(["a"], 4)
    assert head(torch.ones(3, 1, 4)).shape == (3, 1, 2)


def test_a_trigger_is_a_file_and_a_line(add):
    add("trigger", "shout", "rag.triggers.shout.Shout", TRIGGER)
    made = request("rag", ["trigger=shout", "trigger.share=0.7"]).trigger
    assert made.target == "probers.rag.triggers.Shout" and made.options == {"share": 0.7}
    assert "trigger.share=0.5" in help_text("rag", "trigger") and "shout" in help_of("rag").groups["trigger"]
    from probers.rag.triggers import Shout

    assert made.kind is Shout


def test_a_format_is_a_file_and_a_line(add, tmp_path):
    add("format", "minutes", "data.texts.minutes.minutes", FORMAT)
    assert request("datagen", ["source=texts", "texts.format=minutes"]).texts.format == "minutes"
    assert "minutes" in help_text("datagen", "texts.format")
    file = tmp_path / "minutes.jsonl"
    file.write_text(json.dumps({"said": "Sales doubled.", "lie": True}))
    ((_, text),) = TextSource(str(file)).read()
    assert text.answer == "Sales doubled."
