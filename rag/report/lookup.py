"""Figures looked up in results.json, where they may be absent or filed under either of two names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probers.markup import interval, number


def metric(method: Mapping[str, Any], name: str) -> float | None:
    """One figure of a method of results.json; ``trigger.x`` reaches into its trigger part."""
    node: Any = method
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return number(node)


def metric_ci(method: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95% interval of a figure; trigger figures may be filed as ``trigger.x`` or ``x``."""
    intervals = method.get("ci95") or {}
    return interval(intervals.get(name, intervals.get(name.removeprefix("trigger."))))


def pair(results: Mapping[str, Any], a: str, b: str, name: str) -> tuple[float, tuple[float, float]] | None:
    """The paired difference a - b of a figure with its 95% interval, in whichever order it is filed."""
    pairs = results.get("pairs") or {}
    for key, direction in ((f"{a} vs {b}", 1), (f"{b} vs {a}", -1)):
        found = pairs.get(key) or {}
        entry = found.get(name) or found.get(name.removeprefix("trigger.")) or {}
        diff, ci = number(entry.get("diff")), interval(entry.get("ci95"))
        if diff is not None and ci is not None:
            return (diff, ci) if direction == 1 else (-diff, (-ci[1], -ci[0]))
    return None
