"""From a resolved configuration to the parts of the loop: prober, triggers, queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any

from omegaconf import DictConfig, OmegaConf

from probers.runs import newest
from probers.types import UserError


def find_prober(cfg: DictConfig) -> str:
    """The prober asked for, or the newest one trained for this model; says which.

    Raises:
        UserError: there is none; says which command makes one.
    """
    if cfg.prober is not None:
        print(f"prober: {cfg.prober}")
        return str(cfg.prober)
    found = newest("prober", model=cfg.model.name)
    if found is None:
        raise UserError(
            f"trigger=probing needs a prober for model={cfg.model.name} and there is none under runs/: "
            "make one with 'probers-datagen --source cot' and 'probers-train layer=all', or pass prober=PATH"
        )
    print(f"prober: {found} (the newest for model={cfg.model.name})")
    return str(found)


def with_bank(node: DictConfig, bank: Any) -> dict[str, Any]:
    """Arguments that hand ``bank()`` to a trigger that wants one and was not given one."""
    return {"bank": bank()} if "bank" in node and node.bank is None else {}


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
        folder = resources.files("probers.configs").joinpath(group)
        file = folder.joinpath(f"{name}.yaml")
        if not file.is_file():
            known = sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
            raise UserError(f"unknown {group} {name!r}: choose one of {', '.join(known)}")
        node = OmegaConf.create(file.read_text(encoding="utf-8"))
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


def options_of(part: Any) -> dict[str, Any]:
    """The plain options of a part, for records and reports."""
    if not is_dataclass(part):
        return {}
    values = {f.name: getattr(part, f.name) for f in fields(part) if f.init and not f.name.startswith("_")}
    return {k: v for k, v in values.items() if v is None or isinstance(v, (bool, int, float, str))}
