"""The command ``probers-judge``: agreement of two sets of verdicts on the same texts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probers.data.texts import TextSource
from probers.evaluation.bootstrap import Bootstrap, Interval, bounds, few_groups, number
from probers.files import canonical_json, digest, read_json, write_text
from probers.options import shown
from probers.types import UserError, count

from ..settings import Judge
from .base import JUDGED, WRONG

log = logging.getLogger(__name__)

#: Name of the file of figures.
FILE = "agreement.json"
#: Lists of judged parts in a labelled text, and the name of one part.
KINDS = {"spans": "span", "sentences": "sentence"}
VERDICTS = tuple(WRONG)
#: Code of a verdict (its place in :data:`VERDICTS`) by the ``wrong`` of a labelled text.
_CODES = {wrong: code for code, wrong in enumerate(WRONG.values())}
#: Shares of pairs: name -> description and cells of the table, the share being that of cells marked + among
#: those marked . or +. Rows are A's verdicts, columns B's, both in the order of VERDICTS.
_SHARES = {
    "equal": ("equal verdicts", "+.. .+. ..+"),
    "coverage": ("A decided", "+++ +++ ..."),
    "supported_precision": ("A supported, B too", "+._ ___ ___"),
    "contradicted_precision": ("A contradicted, B too", "___ .+_ ___"),
    "decided_precision": ("right of what A decided", "+._ .+_ ___"),
    "recall": ("B contradicted, A too", "_._ _+_ _._"),
    "false_positive_rate": ("B supported, A contradicted", ".__ +__ .__"),
}
_KAPPAS = {"kappa": "Cohen's kappa, three verdicts", "kappa_decided": "Cohen's kappa, where both decided"}


class Part(NamedTuple):
    """Judged part of an answer: "spans" or "sentences", and its characters."""

    kind: str
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """Verdicts on one text: its place in the file, a digest of its answer, and the code of each part."""

    where: str
    answer: str
    group: str
    verdicts: Mapping[Part, int]


class Pair(NamedTuple):
    """Part that both files judge; ``a`` and ``b`` are places in :data:`VERDICTS`."""

    text: str
    part: Part
    group: str
    a: int
    b: int


def judged_file(name: str) -> str:
    """Find a file of verdicts: that of a run's folder, a file, or ``hf:ID`` (UserError: none)."""
    if name.startswith("hf:") or Path(name).is_file():
        return name
    if not (path := Path(name) / JUDGED).is_file():
        message = f"{name} is no file and no folder with {JUDGED}: give labelled texts"
        raise UserError(f"{message}, or a run of probers-datagen --source judged", "no-file")
    return str(path)


def read_judged(source: TextSource) -> dict[str, Judged]:
    """Read the verdicts of a file by the id of their text (UserError: a line that cannot be read)."""
    judged = {}
    for one in source.all():
        codes = {Part(kind, m.ranges): _CODES[m.wrong] for kind in KINDS for m in getattr(one, kind)}
        judged[one.id] = Judged(one.where, digest(one.answer), one.group, codes)
    return judged


def pairs(a: Mapping[str, Judged], b: Mapping[str, Judged], names: Sequence[str] = ("A", "B")) -> list[Pair]:
    """Pair the parts of the same text and characters; groups are A's.

    Raises:
        UserError: a text has another answer in B.
    """
    paired = []
    for id_ in (id_ for id_ in a if id_ in b):
        one, other = a[id_], b[id_]
        if one.answer != other.answer:
            message = f"{names[1]} {other.where}: {shown(id_)} has another answer in {names[0]} {one.where}"
            raise UserError(f"{message}: give verdicts on the same answers", "mismatch")
        both = {part: code for part, code in one.verdicts.items() if part in other.verdicts}
        paired += [Pair(id_, part, one.group, code, other.verdicts[part]) for part, code in both.items()]
    return paired


def cohen_kappa(table: np.ndarray) -> Any:
    """Measure agreement of two raters beyond chance, (po - pe) / (1 - pe) (Cohen 1960).

    For counts (k, k), or (k, k, r) of r resamples; NaN if both use only one class, and the same one.
    """
    total = table.sum(axis=(0, 1))
    same = sum(table[k, k] for k in range(len(table)))
    chance = (table.sum(axis=0) * table.sum(axis=1)).sum(axis=0)
    # All terms are multiplied by total**2: in whole numbers, a denominator of 0 is exact.
    return _ratio(total * same - chance, total * total - chance)


def _ratio(part: Any, whole: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, np.true_divide(part, whole), np.nan)


def _cells(name: str, signs: str) -> np.ndarray:
    """Mark the cells (3, 3) of a share by their signs."""
    return np.array([[sign in signs for sign in row] for row in _SHARES[name][1].split(" ")])


def _tables(cells: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Count pairs by verdicts: (3, 3) or (3, 3, r) for cells 3a + b (n,) and weights (n,) or (n, r)."""
    size = len(VERDICTS)
    counts = [(cells == cell).astype(weights.dtype) @ weights for cell in range(size * size)]
    return np.array(counts, np.float64).reshape(size, size, *weights.shape[1:])


def measure(pairs: Sequence[Pair], *, resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Compute kappas and shares of pairs, with 95% intervals over groups.

    NaN stands for a share of nothing, a kappa of one class, and the limits of pairs of a single group.
    """
    cells = np.array([len(VERDICTS) * pair.a + pair.b for pair in pairs], float)
    groups = [pair.group for pair in pairs]

    def figures(cells: np.ndarray, weights: np.ndarray) -> list[Any]:
        table = _tables(cells, weights)
        masks = [(table[_cells(name, "+")], table[_cells(name, "+.")]) for name in _SHARES]
        shares = [_ratio(part.sum(axis=0), whole.sum(axis=0)) for part, whole in masks]
        return [cohen_kappa(table), cohen_kappa(table[:2, :2]), *shares]

    intervals = Bootstrap(groups, resamples=resamples, seed=seed).intervals(cells, figures)
    if len(set(groups)) == 1:
        intervals = [Interval(interval.value, np.nan, np.nan) for interval in intervals]
    return dict(zip([*_KAPPAS, *_SHARES], intervals, strict=True))


def agreement(
    a: Mapping[str, Judged], b: Mapping[str, Judged], *, names: tuple[str, str], resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Compare the verdicts of two files ``names``: counts and figures as in agreement.json.

    Raises:
        UserError: no part is in both, or a text has two answers.
    """
    shared = pairs(a, b, names)
    if not shared:
        message = f"no span or sentence of {names[0]} is in {names[1]} too"
        raise UserError(f"{message}: ids, answers and characters must be the same", "empty")
    table = _tables(np.array([len(VERDICTS) * p.a + p.b for p in shared]), np.ones(len(shared))).astype(int)
    sizes = {"kappa": len(shared), "kappa_decided": table[:2, :2].sum()}
    sizes |= {name: table[_cells(name, "+.")].sum() for name in _SHARES}
    both = {(pair.text, pair.part) for pair in shared}
    return {
        "a": _side(names[0], a, both), "b": _side(names[1], b, both),
        "pairs": _by_kind(pair.part for pair in shared),
        "texts": len({pair.text for pair in shared}), "groups": len({pair.group for pair in shared}),
        "table": {
            row: dict(zip(VERDICTS, n, strict=True)) for row, n in zip(VERDICTS, table.tolist(), strict=True)
        },
        "figures": {
            name: {
                "value": None if np.isnan(interval.value) else float(interval.value),
                "ci95": interval.limits, "n": int(sizes[name]),
            }
            for name, interval in measure(shared, resamples=resamples, seed=seed).items()
        },
        "resamples": resamples, "seed": seed,
    }  # fmt: skip


def _by_kind(parts: Iterable[Part]) -> dict[str, int]:
    counts = Counter(part.kind for part in parts)
    return {kind: counts[kind] for kind in KINDS}


def _side(name: str, texts: Mapping[str, Judged], both: set[tuple[str, Part]]) -> dict[str, Any]:
    """Describe a file: verdicts of all its parts, and its parts and texts without a pair."""
    parts = {(id_, part): code for id_, one in texts.items() for part, code in one.verdicts.items()}
    verdicts = Counter(parts.values())
    alone = {"texts": len(texts.keys() - {id_ for id_, _ in both})}
    return {
        "file": name,
        "texts": len(texts),
        "verdicts": {verdict: verdicts[code] for code, verdict in enumerate(VERDICTS)},
        "alone": alone | _by_kind(part for _, part in parts.keys() - both),
    }


def lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Format the result of :func:`agreement` for the terminal."""
    yield f"A is {figures['a']['file']}, B is {figures['b']['file']}"
    texts, groups = count(figures["texts"], "text"), count(figures["groups"], "group")
    yield f"{_counted(figures['pairs'])} in both, of {texts} in {groups}"
    for side in "ab":
        yield f"in {side.upper()} alone: {_counted(figures[side]['alone'])}"
    yield f"{'A':>16}{'B ' + VERDICTS[0]:>14}{''.join(f'{name:>14}' for name in (*VERDICTS[1:], 'all'))}"
    table = np.array([[*cells.values()] for cells in figures["table"].values()])  # (A, B)
    for row, cells in zip([*VERDICTS, "all"], [*table, table.sum(axis=0)], strict=True):
        yield f"{row:>16}{''.join(f'{n:14,}' for n in (*cells, cells.sum()))}"
    yield f"{'':36}{'':6}{'95% interval':14}{'of':>8}"
    for name, label in (_KAPPAS | {name: label for name, (label, _) in _SHARES.items()}).items():
        figure = figures["figures"][name]
        yield f"  {label:34}{number(figure['value']):6}{bounds(figure['ci95']) or '-':14}{figure['n']:8,}"
    if figures["groups"] == 1:
        yield "note: no intervals, since all pairs are of one group"
    elif few := few_groups(figures["groups"]):
        yield f"note: {few}"
    if any(figures["a"]["alone"][kind] for kind in KINDS):
        yield (
            "note: A has verdicts without a pair. Where pairs were drawn by A's verdict, as on a page to "
            'read, "A supported, B too" and "A contradicted, B too" hold for all of A, the other figures for '
            "the pairs alone"
        )


def _counted(numbers: Mapping[str, int]) -> str:
    nouns = {"texts": "text"} | KINDS
    return ", ".join(count(n, nouns[kind]) for kind, n in numbers.items() if n) or "nothing"


def run(settings: Judge) -> Path | None:
    """Compare two files; return the folder that agreement.json was written to, if any."""
    if len(settings.files) != 2:
        raise UserError(f"give two files of verdicts, A and B, not {len(settings.files)}", "missing-value")
    files = [judged_file(name) for name in settings.files]
    sources = [TextSource(file, on_bad_line=settings.on_bad_line) for file in files]
    out = None if settings.out is None else Path(settings.out)
    if out is not None:
        _check_free(out, files)
    a, b = map(read_judged, sources)
    figures = agreement(a, b, names=(files[0], files[1]), resamples=settings.resamples, seed=settings.seed)
    for line in [*chain.from_iterable(source.lines() for source in sources), *lines(figures)]:
        log.info("%s", line)
    if out is not None:
        write_text(out / FILE, canonical_json(figures))
        log.info("wrote %s", out / FILE)
    return out


def _check_free(out: Path, files: Sequence[str]) -> None:
    """Refuse to replace figures of other files (UserError)."""
    path, written = out / FILE, None
    if not path.exists():
        return
    with suppress(ValueError, OSError, KeyError, TypeError):
        figures = read_json(path)
        written = [figures[side]["file"] for side in "ab"]
    if written != list(files):
        raise UserError(f"{path} holds figures of something else: choose another out", "out-taken")
