"""The command ``probers-datagen``: from questions or articles to a feature store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probers.checksums import inputs
from probers.commands.components import Component
from probers.commands.inputs import load_model, prompt_files
from probers.commands.merge import PartRuns
from probers.commands.runs import RunFolder, identity
from probers.files import write_text
from probers.store.files import read_manifest
from probers.store.spec import FeatureSpec, parse_layers
from probers.store.store import FeatureStore
from probers.types import BESIDE, Feature, Needs, RunError, UserError

from .settings import Datagen

if TYPE_CHECKING:
    from .labels.base import LabelBuilder, Make, Quotas

log = logging.getLogger(__name__)

#: Sources by name; a source of the user's own is a dotted path.
SOURCES = {
    "cot": "probers.datagen.labels.cot.CotBuilder",
    "wiki": "probers.datagen.labels.wiki.WikiBuilder",
    "texts": "probers.datagen.labels.texts.TextsBuilder",
    "judged": "probers.datagen.labels.judged.JudgedBuilder",
}


def source_of(settings: Datagen) -> type[LabelBuilder]:
    """Import the class of ``settings.source`` (UserError: no class, or not derived from LabelBuilder)."""
    from .labels.base import LabelBuilder

    kind = Component.read("source", {"_target_": SOURCES.get(settings.source, settings.source)}).kind
    if not (isinstance(kind, type) and issubclass(kind, LabelBuilder)):
        base = f"{LabelBuilder.__module__}.{LabelBuilder.__qualname__}"
        raise UserError(f"source={settings.source} is no class derived from {base}", "own-class")
    return kind


def features_to_read(settings: Datagen, depth: int) -> list[Feature]:
    """List the features to read: one for each pool and site, and MIND's vector, which has no site, once.

    Features that are one vector of all layers ignore ``layers`` if there are others.
    """
    pools, sites = _listed(settings.pool), _listed(settings.site)
    found = []
    for pool, site in product(pools, sites):
        layers = settings.layers
        if pool == "mind" and site != "resid_post" and "resid_post" in sites:
            continue
        if (pool == "mind" and len(pools) * len(sites) > 1) or (site in BESIDE and len(sites) > 1):
            layers = "all"
        found.append(Feature(layers_to_read(layers, depth, site=site, pool=pool), site, pool))
    return found


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else value


def _check_pools(settings: Datagen, there: Sequence[str]) -> None:
    """Refuse pools that the source does not have, and combinations that do not fit into one store."""
    pools = _listed(settings.pool)
    for pool in pools:
        if pool not in there:
            told = f"source={settings.source} has no pool={pool}: choose {', '.join(there)}"
            raise UserError(told, "unknown-choice")
    for key, names in (("pool", pools), ("site", _listed(settings.site))):
        if len(set(names)) < len(names):
            raise UserError(f"{key}=[{','.join(names)}] has a duplicate: give each once")
    if "tokens" in pools and len(pools) > 1:
        mixed = f"pool=[{','.join(pools)}] mixes rows of tokens with rows of spans"
        raise UserError(f"{mixed}: make two stores, one with pool=tokens", "conflict")


def layers_to_read(
    value: Any, depth: int, *, site: str = "resid_post", pool: str = "mean"
) -> tuple[int, ...]:
    """Resolve ``layers``: "all" (0 to depth), "stride", one number or a list.

    "stride" is every second layer after the first third of the depth (Probing-RAG's choice), and the
    embedding output as a control. Sites inside a block have no layer 0. The single vector of pool "mind", or
    of a site beside the states, belongs to the last layer.
    """
    joint = "pool=mind" if pool == "mind" else f"site={site}" if site in BESIDE else ""
    if joint:
        if value != "all":
            why = f"makes one vector of all layers, so layers={value} does not apply: leave layers out"
            raise UserError(f"{joint} {why}", "conflict")
        return (depth,)
    control = (0,) if site == "resid_post" else ()
    stride = (*control, *range(depth // 3 + 1, depth + 1, 2))
    named = {"all": (*control, *range(1, depth + 1)), "stride": stride}
    wanted = parse_layers(value, named, "layers")
    if not wanted or wanted[0] < 0 or wanted[-1] > depth:
        there = f"the model has layers 1 to {depth} (0 is the embedding output)"
        raise UserError(f"layers={list(wanted)} is out of range: {there}", "layers")
    return wanted


def run(settings: Datagen, parts: PartRuns | None = None) -> Path:
    """Generate, label, audit and store; return the folder of the finished store.

    Examples of finished ``parts`` are joined instead of being generated.
    """
    from .labels.base import JOURNAL, VECTORS, Quotas

    kind = source_of(settings)
    _check_pools(settings, kind.pools)
    if settings.language not in ("auto", "en") and not kind.speaks:
        told = f"language={settings.language} is for source=wiki and source=judged"
        raise UserError(f"{told}: source={settings.source} reads and compares as in English", "unsupported")
    part = settings.partition
    quotas = Quotas(settings.balance_to or {}, by=kind.balance_by, parts=kind.parts)
    prepared = kind.prepare(settings)
    files = (*prepared.files, *prompt_files(settings))
    config = settings.record | {"inputs": inputs(*files), **prepared.record}
    out = Path(settings.out)
    folder = RunFolder(out if part is None else part.folder(out), "datagen", config)
    made = None
    if parts is not None:
        from .writer import LabelledParts

        made = LabelledParts(parts)
    if not (folder.begin() if parts is None else parts.begin(folder)):
        return folder.path

    from .audit import audit
    from .writer import fill

    if made is None:
        builder, features = _with_model(settings, folder, prepared.make)
    else:
        made.take_vectors(VECTORS, folder.path)
        made.join(JOURNAL, folder.path)
        features = made.features
        builder = prepared.make(None, Needs(tuple(spec.feature for spec in features)), folder.path)
    store = FeatureStore.create(folder.path, features, config=identity(config))
    log.info(
        f"{settings.source} -> {folder.path} (model={settings.model.name}, prompt={settings.prompt.name})"
    )
    if builder.lm is not None and (rows := builder.rows()) is not None:
        log.info(f"{rows:,} rows, about {_size(rows, store.features)} on disk")
    # A part does not know the number of examples of the others.
    limits = quotas if part is None else None
    fill(store, builder, shard_size=settings.units_per_shard, quotas=limits, part=part, made=made)
    if part is not None:
        return _end_part(store, folder, settings)
    figures, lines = _conclude(store, builder, settings, quotas)
    found = audit(store, seed=settings.seed)
    store.finish(figures | {"audit": found.figures})
    page = folder.path / "sample.html"
    about = {"Model": str(store.spec.model), "Source": settings.source}
    about |= {"Prompt": settings.prompt.name, "Labels": lines[0]}
    write_text(page, builder.page(store, about, settings.seed))
    folder.finish({"model": settings.model.name, "source": settings.source, **figures})
    for line in [*lines, *found.lines]:
        log.info(line)
    log.info(f"examples to read: {page}")
    if len(features) > 1:
        listed = ", ".join(f"pool={s.pool} site={s.site} ({len(s.layers)} layers)" for s in store.features)
        log.info(f"wrote {len(store):,} examples to {folder.path}, each as {listed}")
    else:
        log.info(f"wrote {len(store):,} examples x {len(store.spec.layers)} layers to {folder.path}")
    if found.figures["wrong"] in (0, 1):
        log.info("all labels are the same, but a head needs both: raise limit or choose another model")
    else:
        of_tokens = " head=linear" if store.spec.position == "token" else " head=radio"
        head = of_tokens if store.spec.pool == "tokens" else ""
        pool = f" pool={store.spec.pool}" if len({s.pool for s in store.features}) > 1 else ""
        log.info(f"next: probers-train layer=all{head}{pool} data={folder.path}")
    return folder.path


def _with_model(
    settings: Datagen, folder: RunFolder, make: Make
) -> tuple[LabelBuilder, Sequence[FeatureSpec]]:
    """Load the model; return the builder of examples and the specifications of the features to store."""
    from probers.capture.hidden_states import vector_width

    lm = load_model(settings, folder, engine=settings.engine)
    features = features_to_read(settings, lm.num_layers)
    needs = Needs(tuple(features))
    lm.check(needs)
    builder = make(lm, needs, folder.path)
    specs = [
        FeatureSpec(
            lm.spec, feature.layers, vector_width(feature, lm.model), site=feature.site, pool=feature.pool,
            position=builder.position, dtype=settings.dtype, prompt=builder.prompt.fingerprint,
        )
        for feature in features
    ]  # fmt: skip
    return builder, specs


def _size(rows: int, features: Sequence[FeatureSpec]) -> str:
    """Format the size of so many rows of all features."""
    size = rows * sum(len(spec.layers) * spec.vector_bytes for spec in features)
    unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:.1f} {name}"


def _end_part(store: FeatureStore, folder: RunFolder, settings: Datagen) -> Path:
    """Finish the store of a part; balance and audit are left to the merge."""
    if not store.next_shard:  # the part has no examples
        widths = [(0, len(spec.layers), spec.width) for spec in store.features]
        store.write_shard(0, [], *(np.zeros(shape, np.float32) for shape in widths))
    store.finish({"part": settings.part}, empty=True)
    folder.finish({"model": settings.model.name, "source": settings.source, "part": settings.part})
    rows = sum(read_manifest(store.path)["rows"])
    log.info(f"wrote {rows:,} examples of part {settings.part} to {folder.path}")
    log.info(f"once all parts are finished: probers-merge {folder.path.parent}/*")
    return folder.path


def _conclude(
    store: FeatureStore, builder: LabelBuilder, settings: Datagen, quotas: Quotas
) -> tuple[dict[str, Any], list[str]]:
    """Balance the store if asked to; return figures and lines about its labels."""
    from .labels.base import balance

    try:
        len(store)
    except RunError as error:
        first = {found["reason"].partition(":")[0]: found["reason"] for found in [*store.left_out()][::-1]}
        told = f"{error}; left out for: {', '.join(sorted(first.values())) or 'no reason'}"
        raise RunError(told, error.code) from error
    notes = builder.conclude(store)
    if settings.balance or quotas:
        notes += balance(store, by=builder.balance_by, seed=settings.seed, quotas=quotas)
    figures, lines = builder.summarise(store)
    return figures, [*lines, *notes]
