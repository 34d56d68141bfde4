"""Labelled hidden states of a source as a feature store: the verb ``label``, and ``probers-datagen``."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from probers.checksums import inputs
from probers.cli.command_lines import command_line, merge_line
from probers.cli.components import Component
from probers.cli.inputs import load_model, prompt_files
from probers.cli.merge import PartRuns
from probers.cli.runs import RunFolder, identity, taking_back
from probers.cli.settings import plain
from probers.data.articles.base import Wikipedia
from probers.data.splits import Partition
from probers.files import digest, write_text
from probers.model.causal_lm import CausalLM
from probers.model.hidden_states import vector_width
from probers.model.language_model import check_model
from probers.options import check_options, refuse_unknown
from probers.prompts import AUTO, PromptTemplate, form_name
from probers.store.files import read_manifest
from probers.store.spec import FeatureSpec, parse_layers
from probers.store.store import FeatureStore
from probers.types import BESIDE, OF_PASSAGES, Feature, Needs, RunError, UserError, count

from .audit import audit
from .labels.base import JOURNAL, VECTORS, Source
from .settings import SOURCES, Datagen, Options, source_class
from .writer import LabelledParts, balance, fill, quotas_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class TemporaryStore(FeatureStore):
    """Feature store in a temporary folder, which is removed with it."""

    folder: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    @property
    def called(self) -> str:
        return "what was labelled"


def label(
    lm: CausalLM, source: Source, *, layers: Any = "all", site: str | Sequence[str] = "resid_post",
    pool: str | Sequence[str] = "mean", out: str | Path | None = None, **options: Any,
) -> FeatureStore:  # fmt: skip
    """Label what a model writes or reads, and store its hidden states.

    Args:
        lm: model.
        source: ``Questions``, ``Articles``, ``Texts`` or ``Prompts``, or one of your own.
        layers: "all", "stride" (every second layer after a third of the depth), a number or a list.
        site: place in the block, or a list of several.
        pool: pooling over the tokens of an example, or a list of several.
        out: folder that keeps the store, which a further call resumes; None stores in a temporary folder,
            which is removed with the result.
        options: dtype, limit, balance, balance_to, shard_size, seed, on_bad_line, max_new_tokens, prompt and
            matcher, as the command has them.

    Raises:
        UserError: an unknown option or a wrong value; inputs that cannot be read; an ``out`` that holds
            another run.
        RunError: a failure while the model runs, or no example.
    """
    given: dict[str, Any] = {"layers": layers, "site": site, "pool": pool, **options}
    known = [f.name for f in fields(Options) if f.name != "engine" and f.name[0] != "_"]
    refuse_unknown("label", given, known, "; those of a source are given to the source")
    components: dict[str, Any] = {n: _component(n, given[n]) for n in ("prompt", "matcher") if n in given}
    check_options(Options, {name: value for name, value in given.items() if name not in components})
    chosen = Options(**given | components)
    if not isinstance(source, Source):
        raise UserError(f"label takes a source such as Texts(rows), found {type(source).__name__}")
    kind = SOURCES.get(source.name)
    for name in ("matcher", "max_new_tokens"):
        if name in options and kind is not None and name not in kind.common:
            raise UserError(f"{name} does nothing with {type(source).__name__}: leave it out", "conflict")
    read = source.plan(chosen)
    quotas_of(source)
    check_model("label", lm)
    for notice in source.notices:
        log.warning(notice)
    record = _record(lm, source, chosen) | {"inputs": inputs(*read.files), **read.record}

    def finish(store: FeatureStore) -> dict[str, Any]:
        figures, lines = conclude(store, source)
        store.finish(figures)
        for line in lines:
            if line not in source.notices:
                log.info(line)
        return figures

    if out is None:
        folder = TemporaryDirectory(prefix="probers-")
        finish(store := make(lm, source, Path(folder.name), record))
        return TemporaryStore(store.path, store.features, store.config, store.next_shard, folder=folder)
    run = RunFolder(Path(out), "datagen", record)
    with taking_back():
        if run.begin():
            figures = finish(make(lm, source, run.path, identity(record)))
            run.finish({"model": lm.spec.id, "source": source.name, **figures})
    return FeatureStore.open(run.path)


def _component(group: str, value: Any) -> Component:
    """Return an option as a component: a prompt by its name or as a template, a matcher by its options."""
    if isinstance(value, Component):
        return value
    if isinstance(value, PromptTemplate):
        values = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return Component(group, "probers.prompts.PromptTemplate", values)
    if group == "prompt":
        return Component.of(group, value)
    default = Options().matcher
    return Component.read(group, {**default.options, **value}, default.target)


def _record(lm: CausalLM, source: Source, options: Options) -> dict[str, Any]:
    model = {"name": lm.spec.id, "weights": str(lm.spec), "sample": lm.spec.sample}
    record: dict[str, Any] = {"source": source.name, "model": model}
    for part in (source, options):
        names = [f.name for f in fields(part) if f.init and not f.name.startswith("_")]  # type: ignore[arg-type]
        record |= {name: _plain(getattr(part, name)) for name in names}
    if "texts" in record:  # as the command records them
        rest = {name: record.pop(name) for name in ("format", "columns", "outside") if name in record}
        record["texts"] = {"path": record["texts"], **rest}
    return record


def _plain(value: Any) -> Any:
    """Return a plain value as it is, of rows and passages a digest, and of other objects the class."""
    if isinstance(value, (Component, Wikipedia)):
        return plain(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):  # perhaps of columns
        return json.loads(json.dumps(value, default=lambda column: digest(repr([*column]))))
    if hasattr(value, "itertuples"):  # a DataFrame, whose iteration gives columns
        value = value.to_dict("records")
    if not isinstance(value, Iterable):
        return f"{type(value).__module__}.{type(value).__qualname__}"
    text = json.dumps(list(value), default=repr)
    return json.loads(text) if len(text) < 100 else digest(text)


def make(
    lm: CausalLM, source: Source, folder: Path, config: Mapping[str, Any], part: Partition | None = None
) -> FeatureStore:
    """Make or continue the store of a planned source in a folder; it is not finished yet."""
    options = source.options
    features = features_to_read(options, lm.num_layers)
    needs = Needs(tuple(features))
    lm.check(needs)
    source.begin(lm, needs, folder)
    specs = [
        FeatureSpec(
            lm.spec, feature.layers, vector_width(feature, lm.model), site=feature.site, pool=feature.pool,
            position=source.position, dtype=options.dtype, prompt=source.rendered,
        )
        for feature in features
    ]  # fmt: skip
    store = FeatureStore.create(folder, specs, config=config)
    form = source.prompt.name if source.rendered == source.prompt.fingerprint else form_name(source.rendered)
    log.info("%s -> %s (model=%s, prompt=%s)", source.name, folder, lm.spec.id, form)
    if (rows := source.rows()) is not None:
        size = rows * sum(len(spec.layers) * spec.vector_bytes for spec in specs)
        unit, name = (1e9, "GB") if size >= 1e9 else (1e6, "MB")
        log.info("%s rows, about %.1f %s on disk", f"{rows:,}", size / unit, name)
    fill(store, source, lambda units: source.examples(lm, units), part)
    return store


def conclude(store: FeatureStore, source: Source) -> tuple[dict[str, Any], list[str]]:
    """Balance the store if asked to; return figures and lines about its labels."""
    try:
        len(store)
    except RunError as error:
        first = {record["reason"].partition(":")[0]: record["reason"] for record in [*store.left_out()][::-1]}
        reasons = ", ".join(sorted(first.values())) or "no reason"
        raise RunError(f"{error}; left out for: {reasons}", error.code) from error
    notes = source.conclude(store)
    quotas = quotas_of(source)
    if source.options.balance or quotas:
        notes += balance(store, by=source.balance_by, seed=source.options.seed, quotas=quotas)
    figures, lines = source.summarise(store)
    return figures, [*lines, *notes]


def features_to_read(options: Options, depth: int) -> list[Feature]:
    """List the features to read: one for each pool and site, and MIND's vector, which has no site, once.

    Features that are one vector of all layers ignore ``layers`` if there are others. Beside what is read of
    passages stand the states of the same texts without them, as a control.
    """
    pools, sites = options.pools, options.sites
    if {*sites} & {*OF_PASSAGES}:
        sites = list(dict.fromkeys([*sites, "resid_bare"]))
    features = []
    for pool, site in product(pools, sites):
        if pool != "mind" or site == "resid_post" or "resid_post" not in sites:
            joint = (pool == "mind" and len(pools) * len(sites) > 1) or (site in BESIDE and len(sites) > 1)
            layers = layers_to_read("all" if joint else options.layers, depth, site=site, pool=pool)
            features.append(Feature(layers, site, pool))
    return features


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
            raise UserError(f"{joint} makes one vector of all layers: leave out layers={value}", "conflict")
        return (depth,)
    control = (0,) if site == "resid_post" else ()
    stride = (*control, *range(depth // 3 + 1, depth + 1, 2))
    wanted = parse_layers(value, {"all": (*control, *range(1, depth + 1)), "stride": stride}, "layers")
    if not wanted or wanted[0] < 0 or wanted[-1] > depth:
        there = f"the model has layers 1 to {depth} (0 is the embedding output)"
        raise UserError(f"layers={list(wanted)} is out of range: {there}", "layers")
    return wanted


def run(settings: Datagen, parts: PartRuns | None = None) -> Path:
    """Generate, label, audit and store; return the folder of the finished store.

    Examples of finished ``parts`` are joined instead of being generated.
    """
    source = source_class(settings.source).read(settings)
    read = source.plan(settings)
    record = {key: value for key, value in settings.record.items() if key not in ("language", "own")}
    record |= {"own": settings.own} if settings.own else {}
    record |= {"inputs": inputs(*read.files, *prompt_files(settings)), **read.record}
    out, part = Path(settings.out), settings.partition
    quotas_of(source)
    folder = RunFolder(out if part is None else part.folder(out), "datagen", record)
    labelled = None if parts is None else LabelledParts(parts, source)
    if not (folder.begin() if parts is None else parts.begin(folder)):
        return folder.path
    if labelled is not None:  # the examples of finished parts are joined
        labelled.take_vectors(VECTORS, folder.path)
        labelled.join(JOURNAL, folder.path)
        source.begin(None, Needs(tuple(spec.feature for spec in labelled.features)), folder.path)
        store = FeatureStore.create(folder.path, labelled.features, config=identity(folder.config))
        fill(store, source, labelled)
    else:
        lm = load_model(settings, folder, engine=settings.engine)
        store = make(lm, source, folder.path, identity(record), part)
    if part is not None:
        return _end_part(store, folder, settings)
    figures, lines = conclude(store, source)
    audited = audit(store, seed=settings.seed)
    store.finish(figures | {"audit": audited.figures})
    page = folder.path / "sample.html"
    prompt = form_name(store.spec.prompt).removeprefix("prompt=")
    if source.rendered == source.prompt.fingerprint and settings.prompt.name != AUTO:
        prompt = settings.prompt.name
    about = {
        "Model": str(store.spec.model), "Source": settings.source, "Prompt": prompt, "Labels": lines[0],
    }  # fmt: skip
    write_text(page, source.page(store, about, settings.seed))
    folder.finish({"model": settings.model.name, "source": settings.source, **figures})
    for line in [*lines, *audited.lines]:
        log.info(line)
    log.info("examples to read: %s", page)
    each = (f"pool={s.pool} site={s.site} ({count(len(s.layers), 'layer')})" for s in store.features)
    log.info("wrote %s examples to %s, each as %s", f"{len(store):,}", folder.path, ", ".join(each))
    if figures.get("no_final_answer") == len(store):
        fix = "prompt.answer_cue='' or another prompt" if source.prompt.answer_cue else "another prompt"
        log.warning("no text has a final answer, so all labels are wrong and nothing can train: give %s", fix)
    elif audited.figures["wrong"] in (0, 1):
        log.info("all labels are the same, but a head needs both: raise limit or choose another model")
    else:
        words = ["layer=all"]
        if store.spec.pool == "tokens":
            words.append("head=linear" if store.spec.position == "token" else "head=radio")
        if len({s.pool for s in store.features}) > 1:
            words.append(f"pool={store.spec.pool}")
        log.info("next: %s", command_line("train", *words, data=folder.path))
    return folder.path


def _end_part(store: FeatureStore, folder: RunFolder, settings: Datagen) -> Path:
    """Finish the store of a part; balance and audit are left to the merge."""
    if not store.next_shard:  # the part has no examples
        widths = [(0, len(spec.layers), spec.width) for spec in store.features]
        store.write_shard(0, [], *(np.zeros(shape, np.float32) for shape in widths))
    store.finish({"part": settings.part}, empty=True)
    folder.finish({"model": settings.model.name, "source": settings.source, "part": settings.part})
    rows = sum(read_manifest(store.path)["rows"])
    log.info("wrote %s examples of part %s to %s", f"{rows:,}", settings.part, folder.path)
    log.info("once all parts are finished: %s", merge_line(folder.path.parent))
    return folder.path
