"""Generations that several methods of a comparison meet, in memory and, for a resumed run, on the disk."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from probers.engine.stopping import SentenceEnd
from probers.files import digest, regular, write_bytes
from probers.types import AttentionRows, Feature, Generation, Needs

#: Prompt, token limit, what ends the text: all that greedy generation depends on.
Key = tuple[str, int, tuple[str | SentenceEnd, ...]]
Timed = tuple[Generation, float]
_ARRAYS, _READ = ("logprobs", "entropies", "top"), ("rows", "column_max")
_TOLD = "told"  # in a file, everything but the arrays, as JSON in UTF-8


class GenerationCache:
    """Generations of one model, by all that greedy generation depends on.

    Kept is what comes first until memory is full, and nothing is thrown out for it: the methods
    of a comparison go through the questions in one order, and the oldest are due again next.

    How prompts are batched shows in the last digits of scores, and what is kept need not be
    computed: a run that goes on has to know what it knew, to give the same scores to the last bit.

    Args:
        megabytes: of generations to keep at most.
        folder: where :meth:`save` writes, and from which an earlier run's are taken; None is nowhere.
    """

    def __init__(self, *, megabytes: float = 1024, folder: Path | None = None) -> None:
        self._room = megabytes * 1e6
        self._kept: dict[Key, list[Timed]] = {}
        self._unsaved: list[tuple[Key, Timed]] = []
        self._folder, self._files = folder, 0
        if folder is not None and folder.is_dir():
            self._take(folder)

    def find(self, key: Key, needs: Needs) -> Timed | None:
        """A generation for which as much was recorded as is needed, and the seconds that it took; or None."""
        return next((kept for kept in self._kept.get(key, ()) if _covers(kept[0].needs, needs)), None)

    def keep(self, key: Key, generation: Generation, seconds: float) -> None:
        """Keep a generation, if there is room."""
        size = _bytes(generation)
        if size <= self._room:
            self._room -= size
            self._kept.setdefault(key, []).append((generation, seconds))
            self._unsaved.append((key, (generation, seconds)))

    def save(self) -> None:
        """Write what was kept since the last time, all of it or nothing.

        Raises:
            RunError: it cannot be written.
        """
        if self._folder is not None and self._unsaved:
            blob = _packed(self._unsaved)
            # The name says what it holds.
            write_bytes(self._folder / f"{self._files:05}-{digest(blob)}.safetensors", blob)
            self._files += 1
        self._unsaved = []

    def remove(self) -> None:
        """Remove what was written, once nothing is left to go on with."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _take(self, folder: Path) -> None:
        """What an earlier run wrote, in its order, as far as it is whole."""
        paths = sorted(folder.glob("[0-9]*.safetensors"))
        for path in paths:
            try:
                regular(path)
                blob = path.read_bytes()
                if path.stem != f"{self._files:05}-{digest(blob)}":
                    raise ValueError("is not as it was written")
                entries = _unpacked(blob)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError):
                print(
                    f"{path} is damaged: it and what came after it is generated again, where it is needed; "
                    "the last digits of scores can be others",
                    flush=True,
                )
                break
            for key, timed in entries:
                self.keep(key, *timed)
            self._files += 1
        for path in paths[self._files :]:
            path.unlink()
        self._unsaved = []


def _packed(entries: list[tuple[Key, Timed]]) -> bytes:
    told: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for i, ((_, limit, ends), (generation, seconds)) in enumerate(entries):
        found = {name: getattr(generation, name) for name in _ARRAYS}
        found |= {name: getattr(generation.attention, name, None) for name in _READ}
        found |= {f"states.{k}": states for k, states in enumerate(generation.states.values())}
        arrays |= {f"{i}.{n}": np.ascontiguousarray(a) for n, a in found.items() if a is not None}
        plain = {
            name: getattr(generation, name)
            for name in ("prompt", "prompt_ids", "prompt_offsets", "token_ids", "text", "offsets", "stop")
        }
        counts = [end.count if isinstance(end, SentenceEnd) else end for end in ends]
        told.append({
            "generation": plain | {"needs": asdict(generation.needs)},
            "limit": limit, "ends": counts, "seconds": seconds,
        })  # fmt: skip
    arrays[_TOLD] = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    blob: bytes = save(arrays)
    return blob


def _unpacked(blob: bytes) -> list[tuple[Key, Timed]]:
    arrays = load(blob)
    return [_entry(told, i, arrays) for i, told in enumerate(json.loads(arrays[_TOLD].tobytes()))]


def _entry(told: dict[str, Any], place: int, arrays: dict[str, np.ndarray]) -> tuple[Key, Timed]:
    found = {name: arrays.get(f"{place}.{name}") for name in _ARRAYS}
    rows, column_max = (arrays.get(f"{place}.{name}") for name in _READ)
    plain = told["generation"]
    features = tuple(
        Feature(**each | {"layers": tuple(each["layers"])}) for each in plain["needs"]["features"]
    )
    needs = Needs(**plain["needs"] | {"features": features})
    states = {feature: arrays.get(f"{place}.states.{k}") for k, feature in enumerate(features)}
    generation = Generation(
        **plain | found | {
            "needs": needs,
            "states": {feature: each for feature, each in states.items() if each is not None},
            "attention": None if rows is None or column_max is None else AttentionRows(rows, column_max),
            **{name: tuple(plain[name]) for name in ("prompt_ids", "token_ids")},
            **{name: tuple((a, b) for a, b in plain[name]) for name in ("prompt_offsets", "offsets")},
        }
    )  # fmt: skip
    ends = tuple(SentenceEnd(end) if isinstance(end, int) else end for end in told["ends"])
    return (generation.prompt, told["limit"], ends), (generation, told["seconds"])


def _covers(has: Needs, needs: Needs) -> bool:
    """Whether all that is needed was recorded."""
    try:
        return has.union(needs) == has
    except ValueError:
        return False


def _bytes(generation: Generation) -> int:
    """Memory that a generation takes, about."""
    arrays = [getattr(generation, name) for name in _ARRAYS] + [*generation.states.values()]
    arrays += [getattr(generation.attention, name, None) for name in _READ]
    tokens = len(generation.prompt_ids) + len(generation.token_ids)
    texts = sys.getsizeof(generation.prompt) + sys.getsizeof(generation.text)
    # A tuple of two numbers and its place for the offsets, a number and its place for the id.
    return texts + 150 * tokens + sum(a.nbytes for a in arrays if a is not None)
