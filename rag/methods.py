"""The methods of a comparison: a name, a trigger and a query, built from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from probers.parts import build
from probers.types import UserError

from .parts import named_part, with_bank
from .queries.base import QueryFormulator
from .triggers.base import Trigger
from .triggers.never import Never
from .triggers.random import Random

_KEYS = ("trigger", "query", "trigger_options", "query_options")


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        name: what tables and files call it.
        tunable: its threshold is to be chosen on validation questions: the trigger
            has one, brings none of its own, and none was given.
        matched: its budget is to be matched to another method's.
    """

    name: str
    trigger: Trigger
    query: QueryFormulator
    tunable: bool = False
    matched: bool = False

    @property
    def fixed(self) -> bool:
        """Whether it decides without looking, so that there is nothing to test."""
        return isinstance(self.trigger, (Never, Random)) or bool(getattr(self.trigger, "before", False))

    def with_options(self, **options: Any) -> Method:
        """The same method with some options of its trigger changed."""
        return replace(self, trigger=replace(self.trigger, **options))  # type: ignore[type-var]


def build_methods(cfg: DictConfig, bank: Callable[[], Any]) -> list[Method]:
    """The methods named by ``cfg.triggers``, in this order.

    Args:
        cfg: configuration of ``probers-compare``.
        bank: makes the prober, asked at most once and only if a method needs it.

    Raises:
        UserError: an unknown method, trigger, query or option; lists the choices.
    """
    names = [str(n) for n in cfg.triggers]
    if not names:
        raise UserError("triggers=[] compares nothing: name at least one of " + ", ".join(cfg.methods))
    for name in names:
        if name not in cfg.methods:
            raise UserError(f"unknown method {name!r} in triggers: choose from {', '.join(cfg.methods)}")
        if names.count(name) > 1:
            raise UserError(f"triggers names {name} twice: once is enough")
    made: list[Any] = []

    def once() -> Any:
        if not made:
            made.append(bank())
        return made[0]

    return [_build(name, cfg.methods[name], once) for name in names]


def _build(name: str, node: DictConfig, bank: Callable[[], Any]) -> Method:
    entry = OmegaConf.to_container(node, resolve=True)
    if not isinstance(entry, Mapping) or not {"trigger", "query"} <= set(entry) <= set(_KEYS):
        raise UserError(
            f"methods.{name} must have trigger and query, and may have trigger_options, query_options"
        )
    options = entry.get("trigger_options") or {}
    asked = named_part("trigger", entry["trigger"], options)
    trigger = build(asked, **with_bank(asked, bank))
    query = build(named_part("query", entry["query"], entry.get("query_options") or {}))
    own = {f.name: getattr(trigger, f.name) for f in fields(trigger)} if is_dataclass(trigger) else {}
    return Method(
        name,
        trigger,
        query,
        tunable=own.get("threshold") is not None and "threshold" not in options,
        matched=isinstance(trigger, Random) and "rate" not in options,
    )


def in_running_order(methods: Sequence[Method], match: str | None) -> list[Method]:
    """Methods whose budget is matched come after the one they are matched to."""
    return sorted(methods, key=lambda m: m.matched and match is not None)
