"""The command ``probers-search``: head, layers and site chosen by folds of the training groups.

The choice is nested: validation and test groups take no part in it, so that the winner's test figures hold as
those of a prober chosen beforehand.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from probers.checksums import Journal, draw_key
from probers.cli.components import Component
from probers.cli.runs import RunFolder
from probers.data.splits import Partition
from probers.evaluation import metrics
from probers.evaluation.bootstrap import Bootstrap, Sample, bounded, few_groups, number
from probers.files import canonical_json, write_text
from probers.heads import is_joint
from probers.prober.report import cut
from probers.store.joined import JoinedStores, Stored, of_site
from probers.store.store import FeatureStore
from probers.types import BESIDE, SPLITS, Beside, RunError, Site, UserError

from .assemble import assemble
from .data import Dataset
from .examples import Examples, SplitRequest, load_examples
from .heads import Task, build, head_of, maker, probe_tasks, train_heads
from .methods import method_of
from .run import default_out, identified, listed, opened_stores
from .run import run as train
from .settings import Search, Train

log = logging.getLogger(__name__)

#: Heads that are tried by default, the cheap ones first.
_HEADS = {
    "tokens": ("linear", "radio", "concat", "mix", "sequence", "layer_attention"),
    "pooled": ("linear", "radio", "probing_rag", "concat", "mix"),
}
#: The default set of layers beside all.
_UPPER = "upper half"
#: Share of a fold's other groups that decides checkpoints and weights of layers.
_CHECKS = 0.15
_JOURNAL, _FILE = "search.jsonl", "search.json"

#: One fold of one candidate, as a line of the journal.
Record = Mapping[str, Any]


def run(settings: Search) -> Path:
    """Choose a prober on the training groups, train it, and test it once; returns its folder."""
    heads = {" ".join(text.split()): head_of(text) for text in listed(settings.heads)}
    for name, head in heads.items():
        if method_of(head) == "questions":
            raise UserError(f"heads: {name} classifies questions and reads no states", code="unsupported")
    settings.hardware()
    opened = opened_stores(settings)
    paths = [store.path for store in opened]
    pool, sites = settings.pool or opened[0].spec.pool, listed(settings.sites)
    stores, beside = stores_of(opened, pool, sites, settings.beside)
    request = SplitRequest(settings.split, settings.train_on, settings.test_on, settings.seed, settings.label)
    examples = load_examples([*stores.values(), *chain.from_iterable(beside.values())], request)
    settings.check_spans(marked=examples.inside is not None)
    settings.rule().check_number(len(examples.groups("validation")))
    parts = [Partition(n, settings.folds) for n in range(1, settings.folds + 1)]
    folds = [fold(examples, part, settings.seed) for part in parts]
    # Of one seed, without a log, and with a threshold that no figure of a fold reads.
    how = replace(
        settings, seeds=1, logger="none", with_entropy=False, domain=None, threshold="balanced_accuracy"
    )
    planned, left_out = plan(how, heads, stores, beside, examples)

    out = Path(settings.out or default_out("search", paths, settings.suffix, *listed(settings.pool), *sites))
    layers = [layer for candidate in planned for layer in candidate.layers]
    folder = RunFolder(out, "search", identified(settings, paths, layers))
    if not folder.begin("search"):
        return out
    log.info("%d candidates, %g minutes, %d folds", len(planned), settings.minutes, settings.folds)
    for reason in dict.fromkeys(left_out.values()):
        names = [name for name, why in left_out.items() if why == reason]
        log.info("%s", fill(f"left out: {'; '.join(names)}: {reason}", 98, subsequent_indent="  "))
    results = rounds(out, planned, folds, how)
    winner, entry = summary(planned, results, folds, settings.minutes)
    entry["left_out"] |= left_out
    write_text(out / _FILE, canonical_json(entry))
    log.info("%s", table(entry))
    place = winner.place
    read = (stores[place.site], *beside[place.beside])
    single = chain.from_iterable(s.stores if isinstance(s, JoinedStores) else (s,) for s in read)
    shared = {f.name for f in fields(Search)} & {f.name for f in fields(Train)} - {"_record", "layer_sets"}
    options: dict[str, Any] = {name: getattr(settings, name) for name in shared} | {
        "data": list(dict.fromkeys(str(store.path) for store in single)), "pool": pool, "out": str(out),
        "site": place.site, "beside": list(place.beside), "layer": list(winner.layers), "head": winner.head,
    }  # fmt: skip
    return train(Train(**options), search=(folder, entry))


#: What is read beside the states, by kind, and the stores that have it.
Besides = Mapping[tuple[Beside, ...], Sequence[Stored]]


def stores_of(
    opened: Sequence[FeatureStore], pool: str, sites: Sequence[Site], sets: list[list[Beside]] | None
) -> tuple[dict[Site, Stored], Besides]:
    """Map each site, and each set beside them, to its stores read as one (UserError: no store has it)."""
    stored = dict.fromkeys(spec.site for store in opened for spec in store.features if spec.pool == pool)
    sites = sites or [site for site in stored if site not in BESIDE or len(stored) == 1]
    if sets is None:
        sets = [[], [kind for kind in BESIDE if kind in stored and stored.keys() > {kind}]]
    beside = {tuple(kinds): [of_site(opened, pool, kind) for kind in kinds] for kinds in sets}
    return {site: of_site(opened, pool, site) for site in sites}, beside


def fold(examples: Examples, part: Partition, seed: int) -> Examples:
    """Deal one fold's training groups to three splits, test held out (UserError: one without a label)."""
    names = sorted(map(str, examples.groups("train")), key=lambda g: draw_key("fold", seed, g))
    held = dict.fromkeys(part.block(names), "test")
    rest = sorted((g for g in names if g not in held), key=lambda g: draw_key("checks", seed, g))
    checks = max(1, round(_CHECKS * len(rest)))
    side = held | dict.fromkeys(rest[:checks], "validation") | dict.fromkeys(rest[checks:], "train")
    sides = np.array([side[g] for g in examples.column("group", "train").astype(str)], dtype=object)
    if "inside" in examples.table:  # what nobody judged is only trained on
        sides[(examples.column("inside", "train") < 0) & (sides != "train")] = ""
    rows = {split: examples.rows["train"][sides == split] for split in SPLITS}
    if any(len(set(examples.wrong[numbers])) < 2 for numbers in rows.values()):
        few = f"{len(names)} training groups are too few to have both labels in each part of each fold"
        raise UserError(f"folds={part.count}: {few}; give fewer folds, or more texts", code="labels")
    return replace(examples, rows=rows)


class Place(NamedTuple):
    """Head and layers of a candidate as typed, the site, and what is read beside the states."""

    head: str
    layers: str
    site: Site
    beside: tuple[Beside, ...] = ()

    def __str__(self) -> str:
        """Name it, without the site where it is the residual stream."""
        named = ", ".join([self.head, self.layers, *([self.site] if self.site != "resid_post" else [])])
        return " + ".join([named, *self.beside])


@dataclass(frozen=True)
class Candidate:
    """A head on some layers of a site, and perhaps on what is beside the states."""

    place: Place
    head: Component
    dataset: Dataset
    tasks: tuple[Task, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(layer for task in self.tasks for layer in task.column.layers)


def plan(
    settings: Search, heads: Mapping[str, Component], stores: Mapping[Site, Stored], besides: Besides,
    examples: Examples,
) -> tuple[list[Candidate], dict[str, str]]:  # fmt: skip
    """List the candidates, every head first with its first layers, and why others are left out.

    UserError for a head, set of layers, site or set beside it that the user named and no candidate can have.
    """
    pool = "pooled" if examples.members is None else "tokens"
    tried = heads or {name: Component.of("head", name) for name in _HEADS[pool]}
    sets = {str(layers).replace(" ", ""): layers for layers in settings.layer_sets or ["all"]}
    candidates: dict[tuple[Any, ...], Candidate] = {}
    refused: dict[Place, UserError] = {}
    for layers in sets if settings.layer_sets else ["all", _UPPER]:
        for (site, store), beside, (head, component) in product(stores.items(), besides, tried.items()):
            if beside and settings.beside is None and not getattr(component.kind, "beside", False):
                continue
            every = [k for k in store.spec.layers if k > 0]
            place, numbers = Place(head, layers, site, beside), sets.get(layers, every[len(every) // 2 :])
            try:
                dataset = Dataset.load([store], numbers, examples, besides[beside])
                read: Any = {"joint": is_joint(component.kind), "beside": dataset.beside_places}
                tasks = tuple(probe_tasks(dataset.columns, [settings.seed], **read))
                dataset.inputs(build(maker(component), tasks[:1], dataset.states.shape[-1]), settings.loss)
                candidate = Candidate(place, component, dataset, tasks)
                candidates.setdefault((head, site, beside, candidate.layers), candidate)
            except UserError as error:
                refused[place] = error
    used = {value for candidate in candidates.values() for value in candidate.place}
    named = [*heads, *(sets if settings.layer_sets else ()), *listed(settings.sites), *besides]
    for place, why in refused.items():
        if not candidates or any(value not in used for value in place if value in named):
            raise why
    return list(candidates.values()), {str(place): str(why) for place, why in refused.items()}


def rounds(
    out: Path, candidates: Sequence[Candidate], folds: Sequence[Examples], how: Search
) -> dict[str, list[Record]]:
    """Measure candidates, one fold a round, until the time is over; returns the folds of each by its name.

    Round r has the better half of round r - 1, the best first, and two at least. A journal keeps every
    finished fold of a candidate.
    """
    journal, records = Journal(out / _JOURNAL), dict[str, list[Record]]()
    known: dict[tuple[str, int], Record] = {(r["name"], r["fold"]): r for r in journal.resume()}
    alive = list(candidates)
    for fold, examples in enumerate(folds, 1):
        measured = []
        for place, candidate in enumerate(alive, 1):
            key = (name := str(candidate.place), fold)
            if key not in known:
                if known and sum(r["seconds"] for r in known.values()) >= 60 * how.minutes:
                    return records
                log.info("round %d, %d of %d: %s", fold, place, len(alive), name)
                known[key] = _measure(candidate, fold, examples, how)
                journal.append([known[key]])
                result = number(known[key]["auroc"], ".3f", absent=str(known[key]["failed"]))
                log.info("AUROC %s (%.0f s)", result, known[key]["seconds"])
            records.setdefault(name, []).append(known[key])
            if known[key]["failed"] is None:
                measured.append(candidate)
        measured.sort(key=lambda candidate: -_mean(records[str(candidate.place)]).value)
        alive = measured[: max(2, -(-len(measured) // 2))]
    return records


def _measure(candidate: Candidate, fold: int, part: Examples, how: Search) -> Record:
    """Train a candidate on a fold and score it on the texts held out."""
    begun, dataset = time.perf_counter(), replace(candidate.dataset, examples=part)
    record: dict[str, Any] = {"name": str(candidate.place), "fold": fold, "failed": None, "auroc": None}
    try:
        fitted = train_heads(maker(candidate.head), candidate.tasks, dataset, how)
        trained = assemble(fitted, dataset, how, controls=False, refuse=False)
    except RunError as error:
        if error.code == "damaged":
            raise
        return record | {"failed": str(error), "seconds": time.perf_counter() - begun}
    test, head = part.rows["test"], trained.bank.head
    bootstrap = Bootstrap(part.column("group", "test"), resamples=how.resamples, seed=how.seed + fold)
    sample = bootstrap.sample(trained.saved.scores[test], partial(metrics.auroc, part.wrong[test]))
    size = sum(value.nbytes for value in head.state_dict().values())
    size -= sum(2 * parameter.numel() for parameter in head.parameters())  # saved in half precision
    return record | {
        "auroc": sample.value, "drawn": [None if np.isnan(v) else float(v) for v in sample.drawn],
        "kilobytes": size / 1000, "seconds": time.perf_counter() - begun,
    }  # fmt: skip


def _mean(records: Sequence[Record]) -> Sample:
    """Mean over folds, in every resample too."""
    drawn = np.array([record["drawn"] for record in records], dtype=np.float64)
    return Sample(float(np.mean([record["auroc"] for record in records])), drawn.mean(axis=0))


def summary(
    candidates: Sequence[Candidate], records: Mapping[str, Sequence[Record]], folds: Sequence[Examples],
    minutes: float,
) -> tuple[Candidate, dict[str, Any]]:  # fmt: skip
    """Choose the winner of the last round, and put down what was tried (RunError: every candidate failed)."""
    failed = {name: last["failed"] for name, (*_, last) in records.items() if last["failed"] is not None}
    whole = {name: [r for r in of if r["failed"] is None] for name, of in records.items()}
    if not (done := {name: measured for name, measured in whole.items() if measured}):
        raise RunError(f"no candidate could be trained: {next(iter(failed.values()))}")
    ranked = sorted(done, key=lambda name: (-len(done[name]), -_mean(done[name]).value))
    by_name = {str(candidate.place): candidate for candidate in candidates}
    best, tried = done[ranked[0]], []
    for name in ranked:
        measured, place, mean = done[name], by_name[name].place, _mean(done[name])
        # The winner has every fold that another has.
        against = mean.minus(_mean(best[: len(measured)])).interval.figures("difference")
        tried.append({
            "name": name, "head": place.head, "layers": list(by_name[name].layers),
            "site": place.site, "beside": list(place.beside), "folds": len(measured),
            **mean.interval.figures("auroc"), **({} if name == ranked[0] else against),
            "seconds": sum(r["seconds"] for r in measured), "kilobytes": measured[0]["kilobytes"],
        })  # fmt: skip
    return by_name[ranked[0]], {
        "winner": ranked[0], "tried": tried, "left_out": failed,
        "not_tried": [name for name in by_name if name not in records],
        "folds": [{"texts": len(f.rows["test"]), "groups": len(f.groups("test"))} for f in folds],
        "minutes": minutes,
    }  # fmt: skip


def table(entry: Mapping[str, Any]) -> str:
    """Tabulate what was tried, best first, at most 100 columns wide."""
    head = f"{'':36}{'folds':>6}  {'AUROC (held out)':18}{'to the winner':21}{'s':>6}{'kB':>9}"
    by = f"{entry['tried'][0]['folds']} of {len(entry['folds'])} folds"
    lines = [f"choice by {by} of the training groups, 95% intervals", head.rstrip()]
    for row in entry["tried"]:
        to = bounded(row, "difference", "+.2f", absent="-") if "difference" in row else "winner"
        lines.append(
            f"  {cut(row['name'], 33):34}{row['folds']:>6}  {bounded(row, 'auroc', absent='-'):18}{to:21}"
            f"{row['seconds']:>6.0f}{row['kilobytes']:>9,.1f}"
        )
    if left := entry["not_tried"]:
        lines.append(fill(f"not tried, as the time was over: {'; '.join(left)}", 98, subsequent_indent="  "))
    if few := few_groups(min(each["groups"] for each in entry["folds"])):
        lines.append(f"note: folds of {few}")
    return "\n".join(lines)
