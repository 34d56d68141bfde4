"""The command ``probers-datagen``: from questions, articles or texts to a feature store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probers.checksums import inputs
from probers.commands.inputs import load_model, prompt_files
from probers.commands.merge import PartRuns
from probers.commands.runs import RunFolder, identity
from probers.files import write_text
from probers.store.files import read_manifest
from probers.store.store import FeatureStore
from probers.types import Needs

from .settings import Datagen, Options, source_class

if TYPE_CHECKING:
    from .labels.base import Source
    from .writer import LabelledParts, Quotas

log = logging.getLogger(__name__)


def run(settings: Datagen, parts: PartRuns | None = None) -> Path:
    """Generate, label, audit and store; return the folder of the finished store.

    Examples of finished ``parts`` are joined instead of being generated.
    """
    source: Source = source_class(settings.source).read(settings)
    read = source.plan(Options.of(settings))
    record = {key: value for key, value in settings.record.items() if key != "language"}
    record |= {"inputs": inputs(*read.files, *prompt_files(settings)), **read.record}
    out, part = Path(settings.out), settings.partition

    from .audit import audit
    from .labelling import conclude, make, quotas_of
    from .writer import LabelledParts

    quotas = quotas_of(source, source.options)
    folder = RunFolder(out if part is None else part.folder(out), "datagen", record)
    labelled = None if parts is None else LabelledParts(parts, source)
    if not (folder.begin() if parts is None else parts.begin(folder)):
        return folder.path
    if labelled is not None:
        store = _merged(labelled, source, folder, quotas)
    else:
        lm = load_model(settings, folder, engine=settings.engine)
        limits = quotas if part is None else None
        store = make(lm, source, folder.path, identity(record), limits, part)
    if part is not None:
        return _end_part(store, folder, settings)
    figures, lines = conclude(store, source, quotas)
    audited = audit(store, seed=settings.seed)
    store.finish(figures | {"audit": audited.figures})
    page = folder.path / "sample.html"
    about = {"Model": str(store.spec.model), "Source": settings.source}
    about |= {"Prompt": settings.prompt.name, "Labels": lines[0]}
    write_text(page, source.page(store, about, settings.seed))
    folder.finish({"model": settings.model.name, "source": settings.source, **figures})
    for line in [*lines, *audited.lines]:
        log.info(line)
    log.info("examples to read: %s", page)
    if len(store.features) > 1:
        listed = ", ".join(f"pool={s.pool} site={s.site} ({len(s.layers)} layers)" for s in store.features)
        log.info("wrote %s examples to %s, each as %s", f"{len(store):,}", folder.path, listed)
    else:
        layers = len(store.spec.layers)
        log.info("wrote %s examples x %d layers to %s", f"{len(store):,}", layers, folder.path)
    if audited.figures["wrong"] in (0, 1):
        log.info("all labels are the same, but a head needs both: raise limit or choose another model")
    else:
        of_tokens = " head=linear" if store.spec.position == "token" else " head=radio"
        head = of_tokens if store.spec.pool == "tokens" else ""
        pool = f" pool={store.spec.pool}" if len({s.pool for s in store.features}) > 1 else ""
        log.info("next: probers-train layer=all%s%s data=%s", head, pool, folder.path)
    return folder.path


def _merged(labelled: LabelledParts, source: Source, folder: RunFolder, quotas: Quotas) -> FeatureStore:
    """Join the examples of finished parts."""
    from .labels.base import JOURNAL, VECTORS
    from .writer import fill

    labelled.take_vectors(VECTORS, folder.path)
    labelled.join(JOURNAL, folder.path)
    features = labelled.features
    source.begin(None, Needs(tuple(spec.feature for spec in features)), folder.path)
    store = FeatureStore.create(folder.path, features, config=identity(folder.config))
    fill(store, source, labelled, quotas=quotas)
    return store


def _end_part(store: FeatureStore, folder: RunFolder, settings: Datagen) -> Path:
    """Finish the store of a part; balance and audit are left to the merge."""
    if not store.next_shard:  # the part has no examples
        widths = [(0, len(spec.layers), spec.width) for spec in store.features]
        store.write_shard(0, [], *(np.zeros(shape, np.float32) for shape in widths))
    store.finish({"part": settings.part}, empty=True)
    folder.finish({"model": settings.model.name, "source": settings.source, "part": settings.part})
    rows = sum(read_manifest(store.path)["rows"])
    log.info("wrote %s examples of part %s to %s", f"{rows:,}", settings.part, folder.path)
    log.info("once all parts are finished: probers-merge %s/*", folder.path.parent)
    return folder.path
