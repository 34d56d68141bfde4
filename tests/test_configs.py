"""Every shipped configuration composes, and says the same as the code's defaults."""

import inspect

import pytest
from omegaconf import OmegaConf

from probers.commands import main as cli
from probers.commands.config import compose
from probers.commands.presets import choices
from probers.data.questions import DATASETS, source_class
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import world_config
from probers.testbed.world import WorldConfig

GROUPS = ("trigger", "query", "retriever", "head", "prompt", "model", "questions", "launch")


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_is_a_file_with_explained_keys(group):
    from importlib import resources

    names = choices(group)
    assert names
    for name in names:
        text = resources.files("probers.configs").joinpath(group, f"{name}.yaml").read_text()
        for line in text.splitlines():
            if (
                line.strip()
                and not line.startswith(("#", "  "))  # nor the lines of a text
                and "_target_" not in line
                and line != "name: testbed"
            ):
                assert "#" in line, f"{group}/{name}: no explanation of {line}"


def test_every_target_is_a_class_that_has_the_keys():
    from importlib import resources

    from hydra.utils import get_class

    for group in ("trigger", "query", "retriever", "prompt", "questions", "launch"):
        for name in choices(group):
            node = OmegaConf.load(str(resources.files("probers.configs").joinpath(group, f"{name}.yaml")))
            if "defaults" in node:
                node = cli.compose("datagen", [f"{group}={name}"])[group]
            options = set(inspect.signature(get_class(node._target_)).parameters)
            assert set(node) - {"_target_"} <= options, f"{group}/{name}"


def test_the_question_sets_in_the_configs_are_those_of_the_code():
    from dataclasses import fields
    from importlib import resources

    assert set(choices("questions")) == set(DATASETS)
    for name in DATASETS:
        node = OmegaConf.load(str(resources.files("probers.configs").joinpath("questions", f"{name}.yaml")))
        made = source_class(name)
        assert node._target_ == f"{made.__module__}.{made.__name__}"
        defaults = {f.name: f.default for f in fields(made)}
        assert {k: v for k, v in node.items() if k != "_target_"}.items() <= defaults.items()


def test_the_shipped_checkpoint_was_trained_on_the_default_world():
    assert world_config() == WorldConfig()


def test_the_prompt_config_is_the_testbeds_prompt():
    from hydra.utils import instantiate

    assert instantiate(cli.compose("datagen", []).prompt).fingerprint == TESTBED_PROMPT.fingerprint


def test_no_number_of_a_command_has_the_name_of_a_group():
    """It could not be given: its value would be taken for the name of a file."""
    for command in cli._TARGETS:
        config = compose(command, [])
        assert [key for key in GROUPS if isinstance(config.get(key), int)] == [], command
    assert compose("rag", ["limit=7"]).limit == 7


def test_a_class_of_ones_own_has_none_of_the_options_of_the_part_in_whose_place_it_stands():
    own = ["trigger._target_=mine.Trigger", "+trigger.k=2", "query._target_=mine.Query"]
    cfg = compose("rag", [*own, "retriever._target_=mine.Retriever"])
    assert cfg.trigger == {"_target_": "mine.Trigger", "k": 2}
    assert cfg.query == {"_target_": "mine.Query"} and cfg.retriever == {"_target_": "mine.Retriever"}
    derived = compose("rag", ["trigger=rind", "trigger._target_=mine.Rind"]).trigger
    assert derived == {**compose("rag", ["trigger=rind"]).trigger, "_target_": "mine.Rind"}
