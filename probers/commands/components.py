"""Components of a command by name: triggers, queries, heads, retrievers, question sets, prompts, launchers.

A component is a class whose fields or constructor parameters are its options. A class of your own need not be
listed here: ``trigger._target_=my_package.MyTrigger``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pkgutil import resolve_name
from typing import Any

from ..options import check_component, shown
from ..types import DATASETS, HEADS, UserError, first_line
from .signatures import Signature, signature

#: Group -> name -> class, relative to the package.
COMPONENTS: dict[str, dict[str, str]] = {
    "trigger": {
        "adaptive": "rag.triggers.Adaptive",
        "always": "rag.triggers.Always",
        "before_entity": "rag.triggers.BeforeEntity",
        "entity_signal": "rag.triggers.EntitySignal",
        "eigenscore": "rag.triggers.Eigenscore",
        "entropy": "rag.triggers.Entropy",
        "fixed_length": "rag.triggers.FixedLength",
        "fixed_sentence": "rag.triggers.FixedSentence",
        "flare": "rag.triggers.Flare",
        "lexical_similarity": "rag.triggers.LexicalSimilarity",
        "llm_judge": "rag.triggers.LlmJudge",
        "never": "rag.triggers.Never",
        "oracle": "rag.triggers.Oracle",
        "p_true": "rag.triggers.PTrue",
        "probing": "rag.triggers.Probing",
        "probing_before": "rag.triggers.ProbingBefore",
        "radio": "rag.triggers.Radio",
        "random": "rag.triggers.Random",
        "rarity": "rag.triggers.Rarity",
        "rind": "rag.triggers.Rind",
        "self_consistency": "rag.triggers.SelfConsistency",
        "semantic_entropy": "rag.triggers.SemanticEntropy",
        "verbalised": "rag.triggers.Verbalised",
    },
    "query": {
        "answer": "rag.queries.AnswerQuery",
        "cioqf": "rag.queries.CIOQF",
        "flare": "rag.queries.FlareQuery",
        "full_context": "rag.queries.FullContextQuery",
        "last_sentence": "rag.queries.LastSentenceQuery",
        "last_tokens": "rag.queries.LastTokensQuery",
        "qfs": "rag.queries.QFS",
        "question": "rag.queries.QuestionQuery",
    },
    "head": {name: f"heads.{place}" for name, place in HEADS.items()} | {
        "adaptive": "adaptive.training.Words",
        "lora": "train.methods.adapted.Lora",
        "own": "",
        "stacked": "train.methods.stacking.Stack",
    },
    "retriever": {
        "bm25": "rag.retrievers.BM25",
        "dense": "rag.retrievers.Dense",
        "elasticsearch": "rag.retrievers.Elasticsearch",
        "opensearch": "rag.retrievers.Elasticsearch",
        "rank_bm25": "rag.retrievers.RankBM25",
    },
    "questions": {name: f"data.questions.{place}" for name, place in DATASETS.items()},
    "judge": {
        "article": "datagen.judges.article.ArticleJudge",
        "hand": "datagen.judges.base.HandJudge",
        "majority": "datagen.judges.base.MajorityJudge",
        "openai": "datagen.judges.openai.OpenAIJudge",
    },
    "prompt": {"testbed": "prompts.PromptTemplate"},
    "launch": {
        "ray": "launch.ray_workers.Ray",
        "submitit": "launch.submitit_jobs.Submitit",
    },
}  # fmt: skip
#: Placeholder of a dotted path that the user must give.
MISSING = "???"


def choices(group: str) -> list[str]:
    """List the names of a group: components, and files such as prompts and presets."""
    folder = resources.files("probers.configs") / group
    files = folder.iterdir() if folder.is_dir() else ()
    named = {f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")}
    return sorted(named | set(COMPONENTS.get(group, ())))


def target_of(group: str, name: str) -> str:
    """Look up the dotted path of the class behind a name; ``???`` if the user must give it."""
    path = COMPONENTS[group].get(name, "prompts.PromptTemplate")  # files of values are prompts
    return f"probers.{path}" if path else MISSING


def told_of(group: str, name: str) -> Signature:
    """Read the description and options of a component."""
    target = target_of(group, name)
    return Signature(_OWN, ()) if target == MISSING else signature(target)


_OWN = """\
A class of your own derived from torch.nn.Module, as +head._target_=my_package.MyHead. It takes the width
first and maps states (n, width) to logits (n, 2), wrong and correct, or to one logit of "correct". Its
options are +head.OPTION=value."""


def node_of(group: str, name: str) -> dict[str, Any]:
    """Make the node of a component in a configuration: its class and the values of its options."""
    own = {} if name in COMPONENTS[group] else values_of(group, name)
    return {"_target_": target_of(group, name), **told_of(group, name).defaults, **own}


@cache
def file_of(group: str, name: str) -> Mapping[str, Any]:
    """Read a YAML file of a group; with "" as group one beside the groups."""
    import yaml

    file = resources.files("probers.configs") / group / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return yaml.load(file.read_text(encoding="utf-8"), loader)  # type: ignore[no-any-return]


def values_of(group: str, name: str) -> dict[str, Any]:
    """Read the values of a file, over those of the files that its ``defaults`` name."""
    own, found = dict(file_of(group, name)), dict[str, Any]()
    for base in own.pop("defaults", ()):
        found |= {} if base in COMPONENTS.get(group, ()) else values_of(group, base)
    return found | own


def choice(name: str | None) -> Any:
    """Make a field of settings that holds a component of the group with the field's name, or None."""
    return field(default=None, metadata={"choice": name})


def fixed(target: str, **defaults: Any) -> Any:
    """Make a field of settings that holds a component of one class; ``defaults`` differ from the class's."""
    return field(default=None, metadata={"fixed": target, "defaults": defaults})


@dataclass(frozen=True, slots=True)
class Component:
    """A class with plain options, not yet instantiated; ``named`` if the configuration names the class."""

    group: str
    target: str
    options: Mapping[str, Any]
    named: bool = True

    @classmethod
    def read(cls, group: str, node: Mapping[str, Any], target: str | None = None) -> Component:
        """Read a configuration's node; ``target`` is the class, else its ``_target_``."""
        path = target or node.get("_target_")
        options = {str(key): value for key, value in node.items() if key != "_target_"}
        if not isinstance(path, str) or not re.fullmatch(r"\?\?\?|[A-Za-z_]\w*(\.\w+)+", path):
            raise UserError(f"{group}._target_={shown(path)} must be the dotted path of a class or function")
        made = cls(group, path, options, named=target is None)
        if path.startswith("probers."):  # the class of a user checks its own options
            check_component(made.kind, options, f"{group}.")
        return made

    @classmethod
    def of(cls, group: str, name: str, /, **options: Any) -> Component:
        """Choose a component by its name, with some options changed; UserError as in :meth:`read`."""
        if name not in choices(group):
            told = f"unknown {group} {name!r}: choose one of {', '.join(choices(group))}"
            raise UserError(told, "unknown-choice")
        node = node_of(group, name)
        for option in options.keys() - node.keys():
            known = ", ".join(key for key in node if key != "_target_") or "none"
            raise UserError(f"{group}={name} has no option {option!r}: it has {known}", "unknown-key")
        return cls.read(group, node | options)

    @property
    def name(self) -> str:
        """The option ``name`` of a component that has one, such as a prompt."""
        return str(self.options["name"])

    @property
    def node(self) -> dict[str, Any]:
        """Return the component's node in a configuration."""
        return {**({"_target_": self.target} if self.named else {}), **self.options}

    def get(self, option: str, default: Any = None) -> Any:
        return self.options.get(option, default)

    def with_options(self, **options: Any) -> Component:
        """Return the component with some options changed."""
        return Component(self.group, self.target, {**self.options, **options}, self.named)

    @property
    def kind(self) -> Callable[..., Any]:
        """The class; UserError where it cannot be imported."""
        key = f"{self.group}._target_"
        if self.target == MISSING:
            raise UserError(f"{self.group}=own needs the class: {key}=my_package.MyClass", "missing-value")
        try:
            return resolve_name(self.target)  # type: ignore[no-any-return]
        except (ImportError, AttributeError, ValueError) as error:
            told = f"{key}={self.target} cannot be imported: {first_line(error)}"
            raise UserError(told, "own-class") from error

    def make(self, *args: Any, **kwargs: Any) -> Any:
        """Make the component; ``kwargs`` replace its options, and errors of its class become a UserError."""
        kind = self.kind
        try:
            return kind(*args, **{key: _made(value) for key, value in self.options.items()} | kwargs)
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.target} cannot be made: {first_line(error)}", "own-class") from error


def _made(value: Any) -> Any:
    """Return an option's value; an object if the user gave a class for it."""
    if isinstance(value, Mapping) and "_target_" in value:
        from hydra.utils import instantiate

        return instantiate(value)
    return value
