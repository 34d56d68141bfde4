"""From a resolved configuration to the parts of the loop: prober, triggers, queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from probers.commands.artifacts import ProberKind
from probers.commands.components import choices, node_of
from probers.commands.parts import build, maker
from probers.commands.runs import RunFolder
from probers.types import UserError

from .protocol import Trigger, as_trigger, name_of
from .remote import RemoteLM
from .triggers.probing import Probing, ServedProbing

#: ``engine`` of a model in this process; what runs it.
LOCAL, VLLM = "transformers", "vllm"


def prober_kind(node: DictConfig) -> ProberKind:
    """What kind of prober the trigger of a ``_target_`` node reads; of whole answers if it does not say."""
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
    """The model behind ``cfg.engine``; None where it is no URL.

    Args:
        folder: the run, which goes on only with a server that tells the same of itself.

    Raises:
        UserError, RunError: as of :class:`RemoteLM`.
    """
    if not served(cfg.engine):
        return None
    lm = RemoteLM(cfg.engine, cfg.model.name, at_once=8 if cfg.batch_size == "auto" else cfg.batch_size)
    print(f"engine: {cfg.engine}, model {cfg.model.name} ({lm.told})", flush=True)
    if folder is not None:
        begun = folder.chosen.get("engine", lm.told)
        if begun != lm.told:
            raise UserError(
                f"{folder.path} was begun with another server ({begun}; now {lm.told}): choose another out, "
                "or overwrite=true"
            )
        folder.choose("engine", begun)
    return lm


def unserved(engine: str, trigger: DictConfig, query: DictConfig) -> str | None:
    """Why a trigger and a query cannot be used with an engine, as a sentence begins; None where they can."""
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
    """The configuration of a trigger as it is, or, where a server writes, that which reads its scores."""
    if not served(engine) or not issubclass(_class_of(trigger), Probing):
        return trigger
    options = {key: trigger.get(key) for key in ("threshold", "theta")}
    return OmegaConf.create({"_target_": f"{ServedProbing.__module__}.{ServedProbing.__name__}", **options})


def with_bank(
    node: DictConfig, bank: Callable[[], Any], classifier: Callable[[], Any] | None = None
) -> dict[str, Any]:
    """Arguments that hand what ``bank`` and ``classifier`` make to a trigger that wants it and has none."""
    found = {}
    for key, make in (("bank", bank), ("classifier", classifier)):
        if make is not None and key in node and node[key] is None:
            found[key] = make()
    return found


def for_other(bank: Any) -> dict[str, Any]:
    """The argument that gives a trigger its prober by path as one that reads other weights as well."""
    from probers.bank.bank import ProbeBank

    return {"bank": ProbeBank.from_pretrained(bank, allow_other=True)} if isinstance(bank, str) else {}


def loop_options(cfg: DictConfig) -> dict[str, Any]:
    """Prompt and limits of the loop, as :class:`~probers.rag.loop.RAG` takes them."""
    names = ("k", "max_new_tokens", "max_retrievals", "answer_tokens", "draft")
    return {"prompt": build(cfg.prompt), **{name: cfg[name] for name in names}}


def named_part(group: str, name: str | Mapping[str, Any], options: Mapping[str, Any]) -> DictConfig:
    """The configuration of a part by its name in a group, with some options changed.

    Args:
        group: "trigger", "query" or "retriever".
        name: name of a file in the group, or a ``_target_`` node of the user's own.
        options: values that replace those of the file.

    Raises:
        UserError: unknown name or option; lists the choices.
    """
    if isinstance(name, str):
        if name not in choices(group):
            raise UserError(f"unknown {group} {name!r}: choose one of {', '.join(choices(group))}")
        node = OmegaConf.create(node_of(group, name))
        known = [str(k) for k in node if k != "_target_"]
        for key in options:
            if key not in known:
                listed = f"its options are {', '.join(known)}" if known else "it has none"
                raise UserError(f"{group} {name} has no option {key!r}: {listed}")
    else:
        node = OmegaConf.create(dict(name))
        if "_target_" not in node:
            raise UserError(f"a {group} of your own needs a _target_, its class by dotted path: {dict(name)}")
    merged = OmegaConf.merge(node, dict(options))
    assert isinstance(merged, DictConfig)
    return merged
