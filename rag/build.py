"""Trigger, query and probers of a run from its configuration, and the questions they were trained on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from probers.bank.io import CONFIG, locate
from probers.commands.artifacts import ProberKind
from probers.commands.components import choices, node_of
from probers.commands.parts import build, maker
from probers.commands.runs import RunFolder
from probers.data.overlap import Seen
from probers.types import Question, UserError

from .protocol import Trigger, as_trigger, name_of
from .remote import RemoteLM
from .triggers.probing import Probing, ServedProbing

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank

log = logging.getLogger(__name__)

#: ``engine`` of a model in this process: transformers or vLLM.
LOCAL, VLLM = "transformers", "vllm"


def prober_kind(node: DictConfig) -> ProberKind:
    """Kind of prober read by the trigger of a ``_target_`` node; whole answers if it does not say."""
    target = _class_of(node)
    return target.prober or "answers" if issubclass(target, Trigger) else "answers"


def _class_of(node: DictConfig) -> type:
    make = maker(node)
    target = make.func if isinstance(make, partial) else make
    return target if isinstance(target, type) else object


def served(engine: str) -> bool:
    """Whether ``engine`` is a server's address."""
    return engine not in (LOCAL, VLLM)


def remote(cfg: DictConfig, folder: RunFolder | None = None) -> RemoteLM | None:
    """The model behind ``cfg.engine``; None unless that is a URL.

    Args:
        folder: the run, which resumes only with a server of the same description.

    Raises:
        UserError, RunError: as of :class:`RemoteLM`.
    """
    if not served(cfg.engine):
        return None
    lm = RemoteLM(cfg.engine, cfg.model.name, at_once=8 if cfg.batch_size == "auto" else cfg.batch_size)
    log.info("engine: %s, model %s (%s)", cfg.engine, cfg.model.name, lm.told)
    if folder is not None:
        begun = folder.chosen.get("engine", lm.told)
        if begun != lm.told:
            raise UserError(
                f"{folder.path} was begun with another server ({begun}; now {lm.told}): choose another out, "
                "or overwrite=true",
                "mismatch",
            )
        folder.choose("engine", begun)
    return lm


def unserved(engine: str, trigger: DictConfig, query: DictConfig) -> str | None:
    """Reason why a trigger and a query cannot be used with an engine, as part of a sentence, or None."""
    if engine == LOCAL:
        return None
    kind = _class_of(trigger)
    told = f"trigger={name_of(kind)}"
    reads_states = getattr(kind, "prober", None) is not None
    own = [key for key in ("bank", "combine", "with_entropy") if trigger.get(key)]
    if served(engine) and reads_states and (own or not issubclass(kind, Probing)):
        return (
            f"{told}{f' with {own[0]}' if own else ''} reads hidden states, which {engine} does not hand out"
        )
    # Those that read states or nothing of the model have parts that need not be there.
    looks = {} if {"bank", "classifier"} & set(trigger) else {told: as_trigger(build(trigger))}
    asks = build(query)
    parts: dict[str, Any] = {**looks, f"query={name_of(asks)}": asks}
    for name, part in parts.items():
        beyond = {
            "hidden states": bool(part.needs.features) and served(engine),
            "attention": part.needs.attention or getattr(part, "attends_alone", False),
        }
        for what in (each for each, reads in beyond.items() if reads):
            return f"{name} reads {what}, which {engine} does not hand out"
    return None


def for_engine(engine: str, trigger: DictConfig) -> DictConfig:
    """The configuration of a trigger, or of its counterpart that reads a server's scores."""
    if not served(engine) or not issubclass(_class_of(trigger), Probing):
        return trigger
    options = {key: trigger.get(key) for key in ("threshold", "theta")}
    return OmegaConf.create({"_target_": f"{ServedProbing.__module__}.{ServedProbing.__name__}", **options})


def with_bank(
    node: DictConfig, bank: Callable[[], Any], classifier: Callable[[], Any] | None = None
) -> dict[str, Any]:
    """Arguments with a prober or classifier, made on demand, for a trigger that has none."""
    found = {}
    for key, make in (("bank", bank), ("classifier", classifier)):
        if make is not None and key in node and node[key] is None:
            found[key] = make()
    return found


def for_other(bank: Any) -> dict[str, Any]:
    """Argument with the prober of a path, loaded so that it accepts a model with other weights."""
    from probers.bank.bank import ProbeBank

    return {"bank": ProbeBank.from_pretrained(bank, allow_other=True)} if isinstance(bank, str) else {}


def loop_options(cfg: DictConfig) -> dict[str, Any]:
    """Prompt and limits of the loop, as :class:`~probers.rag.loop.RAG` takes them."""
    names = ("k", "max_new_tokens", "max_retrievals", "answer_tokens", "draft")
    return {"prompt": build(cfg.prompt), **{name: cfg[name] for name in names}}


def named_part(group: str, name: str | Mapping[str, Any], options: Mapping[str, Any]) -> DictConfig:
    """The configuration of a component by its name in a group, with some options changed.

    Args:
        group: "trigger", "query" or "retriever".
        name: name of a file in the group, or a ``_target_`` node of the user's own.
        options: values that replace those of the file.

    Raises:
        UserError: unknown name or option; lists the choices.
    """
    if isinstance(name, str):
        if name not in choices(group):
            raise UserError(
                f"unknown {group} {name!r}: choose one of {', '.join(choices(group))}", "unknown-choice"
            )
        node = OmegaConf.create(node_of(group, name))
        known = [str(k) for k in node if k != "_target_"]
        for key in options:
            if key not in known:
                listed = f"its options are {', '.join(known)}" if known else "it has none"
                raise UserError(f"{group} {name} has no option {key!r}: {listed}", "unknown-key")
    else:
        node = OmegaConf.create(dict(name))
        if "_target_" not in node:
            raise UserError(
                f"a {group} of your own needs a _target_, its class by dotted path: {dict(name)}", "own-class"
            )
    merged = OmegaConf.merge(node, dict(options))
    assert isinstance(merged, DictConfig)
    return merged


@dataclass(frozen=True)
class Contamination:
    """Questions that the probers and classifiers of a run were trained or tuned on.

    Attributes:
        seen: by all of them together.
        silent: probers and classifiers without a record of their training questions.
        allowed: ``allow_overlap``: every question is asked, and the report says so.
    """

    seen: Seen
    silent: Sequence[str]
    allowed: bool

    @classmethod
    def of(cls, parts: Sequence[str], *, allowed: bool) -> Contamination:
        """Read the record in the folders or hub repositories of probers and classifiers.

        Raises:
            UserError: one has no record of its training questions, and ``allowed`` is not set.
        """
        found = {part: Seen.read(locate(part)) for part in parts}
        silent = [part for part, seen in found.items() if seen is None]
        if silent and not allowed:
            raise UserError(
                f"{silent[0]} does not say which questions it was trained on, and the same could be asked: "
                "train it again with probers-train, or pass allow_overlap=true, which the report shows",
                "overlap",
            )
        known = (seen for seen in found.values() if seen is not None)
        return cls(reduce(or_, known, Seen({})), silent, allowed)

    def beside(self, part: str) -> Contamination:
        """Add a prober without a record of its training questions."""
        return replace(self, silent=[*self.silent, part])

    def not_asked(self, question: Question) -> bool:
        """Whether a question is left out: it was used for training or for choosing a threshold."""
        return not self.allowed and self.seen.split_of(question) in ("train", "validation")

    def not_tuned_on(self, question: Question) -> bool:
        """Whether no threshold may be chosen on a question."""
        return not self.allowed and self.seen.split_of(question) == "train"

    def notes(self, questions: Sequence[Question]) -> list[str]:
        """Notes on allowed overlap, and on probers without a record, for reports."""
        sides = [self.seen.split_of(question) for question in questions]
        told = []
        if known := sum(side in ("train", "validation") for side in sides):
            told.append(
                f"Overlap: {known} of the {len(questions)} questions are among those that a part of this run "
                "was trained or tuned on (allow_overlap=true); figures of that part are too good."
            )
        if self.silent:
            told.append(f"Overlap unknown: {', '.join(self.silent)} does not say what it was trained on.")
        return told


def named(given: Sequence[str]) -> dict[str, str]:
    """Name -> folder or hub id of each prober.

    A folder of probers stands for all of them, in the order of the numbers in their names. A prober is
    named after its folder, and after the folders above it where two names would be equal.

    Raises:
        UserError: the same prober twice.
    """
    paths = [found for path in given for found in _below(path)]
    places = [Path(path).resolve() for path in paths]
    for number, place in enumerate(places):
        if (first := places.index(place)) < number:
            raise UserError(
                f"probers names {paths[first]} and again {paths[number]}: once is enough", "conflict"
            )
    names = [place.name for place in places]
    for length in range(2, max((len(place.parts) for place in places), default=0)):
        if len(set(names)) == len(names):
            break
        names = ["-".join(place.parts[-length:]) for place in places]
    return dict(zip(names, paths, strict=True))


def _below(path: str) -> list[str]:
    folder = Path(path)
    found = [] if (folder / CONFIG).is_file() else [file.parent for file in folder.glob(f"*/{CONFIG}")]
    return sorted(map(str, found), key=_numbers) or [path]


def _numbers(path: str) -> tuple[list[int], str]:
    name = Path(path).name
    return list(map(int, re.findall(r"\d+", name))), name


def check_one_model(banks: Mapping[str, ProbeBank]) -> None:
    """Refuse probers of different models; names two of them (UserError)."""
    for path, bank in banks.items():
        first, other = next(iter(banks.items()))
        if not bank.spec.model.same_as(other.spec.model):
            raise UserError(
                f"probers: {first} reads the model {other.spec.model} and {path} reads {bank.spec.model}: a "
                "comparison has one model",
                "mismatch",
            )
