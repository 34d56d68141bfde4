"""Which heads a run trains: the prober's, and those it is controlled with."""

from __future__ import annotations

from collections.abc import Sequence

from probers.store import FeatureStore

from .controls import EMBEDDING
from .data import Examples
from .fit import Task
from .states import parse_layers


def plan_tasks(
    stores: Sequence[FeatureStore], layer: object, examples: Examples, seeds: Sequence[int]
) -> tuple[list[Task], list[str]]:
    """The heads to train: the prober's of every site and seed, the embedding layer's, and two more.

    The two are at the middle layer of the first site: shuffled labels, which must come out at
    chance, and the positive control "is the answer a person", which must not.

    Args:
        stores: one per site.
        layer: as asked for, see :func:`parse_layers`.
        examples: of the stores.
        seeds: of weights, dropout and order; the controls have the first one.

    Returns:
        The tasks, and notes on what is left out.

    Raises:
        UserError: a layer that is not there.
    """
    tasks: list[Task] = []
    for store in stores:
        wanted = parse_layers(layer, store.spec)
        tasks += [Task(k, seed=seed, site=store.spec.site) for seed in seeds for k in wanted]
    notes: list[str] = []
    first = seeds[0]
    site = tasks[0].site
    layers = [task.layer for task in tasks if (task.site, task.seed) == (site, first)]
    middle = layers[len(layers) // 2]
    with_embedding = next((s.spec for s in stores if 0 in s.spec.layers), None)
    if with_embedding is None:
        notes.append(f"control {EMBEDDING!r} left out: the store has no layer 0")
    else:
        tasks.append(Task(0, seed=first, site=with_embedding.site))
    tasks.append(Task(middle, "shuffled", first, site))
    problem = _no_person(examples)
    if problem:
        notes.append(f"positive control left out: {problem}")
    else:
        tasks.append(Task(middle, "person", first, site))
    return tasks, notes


def _no_person(examples: Examples) -> str | None:
    if "answer_kind" not in examples.table:
        return "the store has no column answer_kind"
    for split in examples.rows:
        if len(set(examples.column("answer_kind", split) == "person")) == 1:
            return f"all or none of the {split} answers are persons"
    return None
