"""A part is one file and one line in the table of parts; command line, help, exports and docs know it."""

import importlib.util
import json
import sys

import pytest
import torch
from helpers.refusals import fails

from probers.cli.components import Component
from probers.cli.compose import request
from probers.cli.help import help_of, help_text
from probers.data.texts.source import TextSource
from probers.heads import HEADS, head_name
from probers.parts import PARTS

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
    assert "head.times=2.0\n        factor on the state. [a number]" in help_text("train", "head=twice")
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
