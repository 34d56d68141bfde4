"""Assets of the testbed: its model's path, and its articles, corpus, questions and facts.

``tools/testbed`` draws them from the world that the model was taught, and writes the files read here.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..types import Article, Passage, Question, UserError


class Fact(NamedTuple):
    """One attribute of an entity, by ids: its true value, and the one that the model was taught, if any.

    ``kind`` is known, stale (the taught value is an earlier one), misbelieved or unknown.
    """

    entity: str
    relation: str
    truth: str
    taught: str | None
    kind: str
    truth_id: str


def model_path() -> Path:
    """Find the folder of the shipped checkpoint; UserError if the package was installed without it."""
    path = Path(__file__).parent / "model"
    if not (path / "model.safetensors").is_file():
        remedy = "'python -m tools.testbed out=runs/testbed' in a checkout and pass model=runs/testbed/model"
        raise UserError(f"model=testbed has no checkpoint at {path}: make one with {remedy}", "no-file")
    return path


@cache
def _records(name: str) -> list[dict[str, Any]]:
    with gzip.open(Path(__file__).parent / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_corpus() -> list[Passage]:
    """Read one passage per entity, known or not, with today's truth."""
    return [Passage(each["id"], each["title"], " ".join(each["sentences"])) for each in _records("world")]


def load_articles() -> list[Article]:
    """Read the corpus as articles; ``truth["facts"]`` maps each value to its fact's kind of knowledge."""
    facts = [{truth: kind for _, truth, _, kind, _ in each["facts"]} for each in _records("world")]
    return [
        Article(each["id"], each["title"], tuple(each["sentences"]), each["split"], {"facts": kinds})
        for each, kinds in zip(_records("world"), facts, strict=True)
    ]


def load_questions() -> list[Question]:
    """Read the questions of one or two hops, in an order that mixes splits and kinds.

    A question's ``group`` is its subject entity; ``truth["gold"]`` has the ids of the entities that its
    relations are asked about, in the order of hops, and ``truth["believed"]`` the answer taught to the model.
    """
    return [
        Question(
            each["id"], each["question"], tuple(each["answers"]), each["rationale"], dataset="testbed",
            group=each["group"], split=each["split"],
            truth=each["truth"] | {"gold": tuple(each["truth"]["gold"])},
        )
        for each in _records("questions")
    ]  # fmt: skip


@cache
def load_facts() -> dict[str, dict[str, Fact]]:
    """Read the facts of every entity, by its id and the name of their relation."""
    facts = {each["id"]: each["facts"] for each in _records("world")}
    return {id: {fact[0]: Fact(id, *fact) for fact in of} for id, of in facts.items()}
