"""Wrong requests of every command, and wrong options of classes: a code, the option named, nothing made."""

import re
from pathlib import Path
from pydoc import locate

import pytest
import yaml
from helpers.artefacts import write_lines
from helpers.planted import SPEC, make_store
from helpers.refusals import fails
from test_compare import place  # noqa: F401
from test_parts import RAG

from probers.cli import main as cli
from probers.cli.components import Component
from probers.store.store import FeatureStore
from probers.types import Code

TRAIN = ["data=data", "device=cpu", "resamples=100"]
#: What is always typed.
USUAL = {
    "datagen": ["limit=4"], "train": TRAIN, "search": TRAIN, "rag": RAG[:3],
    "compare": [*RAG, "triggers=[never,always,random,oracle,entropy,rind_paper,probing]"],
    "score": ["texts=texts.jsonl", "model=testbed"],
    "serve": [], "import": [],
}  # fmt: skip
REFUSALS = yaml.safe_load((Path(__file__).parent / "data/refusals.yaml").read_text(encoding="utf-8"))


def rows(listed: dict[str, dict[Code, list[str]]]) -> list[tuple[str, Code, str]]:
    """What is called, the code, and what is wrong."""
    codes = [(name, code, each) for name, cases in listed.items() for code, each in cases.items()]
    return [(name, code, row) for name, code, each in codes for row in each]


def words(typed: str) -> list[str]:
    """The words of a request; brackets hold theirs together."""
    texts, depth = [""], 0
    for char in typed:
        depth += (char in "{[") - (char in "]}")
        texts = [*texts, ""] if char == " " and not depth else [*texts[:-1], texts[-1] + char]
    return texts


@pytest.mark.parametrize(("command", "code", "typed"), rows(REFUSALS["commands"]), ids=lambda part: part[:60])
def test_a_wrong_request_is_refused_by_its_option_before_anything_is_made(place, command, code, typed):  # noqa: F811
    make_store(Path("data"), n=400)
    FeatureStore.create(Path("half"), [SPEC], config={}, shards=2)
    write_lines(Path("texts.jsonl"), [{"prompt": "a", "answer": " b"}])
    before = set(Path().rglob("*"))
    given = words(typed)
    with fails(code) as refused:
        cli.run(command, [*USUAL[command], *(() if command == "serve" else ("out=out",)), *given])
    named = [*re.findall(r"[a-z][\w/@-]+|k=0", given[-1]), given[-1].partition("_")[0]]  # layer_sets: layer
    assert any(part in str(refused.value) for part in named)
    assert not place.models and set(Path().rglob("*")) == before


@pytest.mark.parametrize(("name", "code", "option"), rows(REFUSALS["classes"]), ids=lambda part: part[:60])
def test_a_wrong_option_of_a_class_is_refused_by_its_name(name, code, option):
    group, _, part = name.partition(" ")
    kind = Component.of(group, part).kind if part else locate(name)
    key, _, value = option.partition("=")
    with fails(code) as refused:
        kind(**{key: yaml.safe_load(value)})
    assert key in str(refused.value) or value in str(refused.value)
