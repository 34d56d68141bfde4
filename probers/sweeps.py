"""Sweeps: every combination of the values given, a folder of its own for each, one table at the end."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence

_LONGEST = 100  # characters of a folder's name; file systems allow 255 bytes


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the comma-separated values among Hydra overrides, none of them twice.

    What is no override at all stays as it is, for the command to refuse it in its own words.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:
        return [list(overrides)]
    axes: list[list[str]] = []
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override():
            axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            axes.append([str(override.input_line)])
    return [list(job) for job in dict.fromkeys(itertools.product(*axes))]


def varied(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of each job the overrides that are not the same in all of them."""
    places = [i for i in range(len(jobs[0])) if len({job[i] for job in jobs}) > 1]
    return [[job[i] for i in places] for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """A folder name for each job, of what it varies: ``head=linear,seed=1``.

    Readable as far as file systems allow, different for different jobs, and the same in
    another sweep over the same keys.
    """
    return [_folder_name(job) for job in jobs]


def _folder_name(parts: Sequence[str]) -> str:
    text = ",".join(parts)
    name = re.sub(r"[^\w.=,+-]+", "_", text)
    if name == text and len(name) <= _LONGEST:
        return name
    # What was replaced or cut may have been all that told two jobs apart.
    return f"{name[:_LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
