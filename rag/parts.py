"""From a resolved configuration to the parts of a run: model, prober, triggers, queries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from probers.runs import newest
from probers.types import UserError

if TYPE_CHECKING:
    from probers.lm import CausalLM

_ENDS = 1 << 20  # bytes


def load_model(cfg: DictConfig) -> CausalLM:
    """The model of ``cfg.model``."""
    from probers.lm import CausalLM

    return CausalLM.from_pretrained(
        cfg.model.name,
        revision=cfg.model.revision,
        dtype=cfg.model.dtype,
        device=cfg.model.device,
        attn=cfg.model.attn,
        trust_remote_code=cfg.model.trust_remote_code,
        batch_size=cfg.batch_size,
    )


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


def build(node: Any, *args: Any, **kwargs: Any) -> Any:
    """Instantiate a ``_target_`` node; what is wrong with it is one sentence.

    Raises:
        UserError: an option the part does not have, a target that cannot be imported,
            or what the part itself refuses.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    # Only the options go through Hydra: it would take objects that are dataclasses for configurations.
    try:
        return instantiate(node, _partial_=True)(*args, **kwargs)
    except (InstantiationException, TypeError, ValueError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(f"{node.get('_target_')} cannot be made: {reason}") from error


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


def inputs(*sources: str) -> dict[str, str]:
    """A fingerprint of every file or folder a run reads, by the name it was given.

    A run whose inputs have changed is another run, also under the same names. Of a
    large file, its size and both ends count; names that are no path have none.
    """
    found = {}
    for source in map(str, sources):
        path = Path(source)
        files = sorted(p for p in path.glob("*") if p.is_file()) if path.is_dir() else [path]
        digest = hashlib.sha256()
        for file in (f for f in files if f.is_file()):
            size = file.stat().st_size
            with open(file, "rb") as handle:
                digest.update(f"{file.name} {size} ".encode() + handle.read(_ENDS))
                handle.seek(max(0, size - _ENDS))
                digest.update(handle.read())
        found[source] = digest.hexdigest()[:16] if path.exists() else ""
    return found


def options_of(part: Any) -> dict[str, Any]:
    """The plain options of a part, for records and reports."""
    if not is_dataclass(part):
        return {}
    values = {f.name: getattr(part, f.name) for f in fields(part) if f.init and not f.name.startswith("_")}
    return {k: v for k, v in values.items() if v is None or isinstance(v, (bool, int, float, str))}


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The resolved configuration as plain containers."""
    found = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(found, dict)
    return {str(k): v for k, v in found.items()}
