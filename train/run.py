"""The verb ``fit`` and its command ``probers-train``: from feature stores to an evaluated prober."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from probers import checksums
from probers.cli.command_lines import command_line, merge_line, override
from probers.cli.components import Component
from probers.cli.inputs import newest_store
from probers.cli.merge import PartRuns
from probers.cli.runs import RunFolder
from probers.cli.settings import default_values, plain, read
from probers.files import canonical_json, write_text
from probers.options import refuse_unknown
from probers.prober.figures import Figures
from probers.prober.io import save
from probers.prober.prober import Prober
from probers.prober.report import Report
from probers.store.files import fingerprint
from probers.store.joined import Sources, Stored, of_site
from probers.store.store import FeatureStore
from probers.types import UserError, count

from . import sweeps
from .assemble import Detector, Trained, assemble
from .data import Dataset, fit_pointer
from .evaluate import Evaluator, summarise
from .examples import Examples, SplitRequest
from .heads import Task, build, head_of, joins_layers, of_tasks, part_tasks
from .methods import Method, class_of, method_of
from .plots import Pictures
from .report import compare_runs, use_command, write_card
from .settings import Stores, Train

log = logging.getLogger(__name__)

#: Keys of the command that are arguments here, or that divide a training among processes.
_ELSEWHERE = {"data", "layer", "head", "out", "part", "launch", "suffix"}
#: The other options of :func:`fit`.
OPTIONS = [f.name for f in fields(Train) if not f.name.startswith("_") and f.name not in _ELSEWHERE]
#: Keys that only write files.
_FILES = ("sizes", "layer_sets", "matrix", "test", "logger")

#: A store, or the folder of one.
Store = FeatureStore | str | Path

#: Folder, claimed, of a search whose winner is trained, and its entry ``search`` of the figures.
Chosen = tuple[RunFolder, Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """A training that can begin.

    Attributes:
        method: makes the heads, and knows how the score is made of them.
        request: choice of the examples and their splits.
        tasks: heads to train on the data set, with notes on what is left out.
        sets: layers of additional probers, and ``fewer`` examples of others by their number.
        stores: folders trained on.
        alone: every store by itself, also those that are tested on only, where each is tested on.
        passages: attention by passage of the same texts; None of other stores.
    """

    settings: Train
    method: Method
    request: SplitRequest
    sources: Sources
    dataset: Dataset
    tasks: Sequence[Task]
    notes: Sequence[str]
    sets: Sequence[Sequence[int]]
    fewer: Mapping[int, Examples]
    stores: Sequence[Path]
    alone: Mapping[str, Sources]
    passages: Stored | None

    @classmethod
    def of(cls, settings: Train, opened: Sequence[FeatureStore], parts: PartRuns | None = None) -> Plan:
        """Plan a training on opened stores; UserError for what cannot be trained."""
        method = method_for(settings, parts)
        how, paths = method.settings, [store.path for store in opened]
        how.hardware()
        rule, sites = how.rule(), listed(how.site)
        if sites and all("resid_bare" in [each.site for each in store.features] for store in opened):
            sites = [*dict.fromkeys([*sites, "resid_bare"])]  # a control
        what = (how.pool, sites or None, how.beside)
        sources = Sources.of(opened, *what)
        single = [*paths, *map(Path, listed(how.test))] if how.matrix or how.test else []
        if single and (how.part is not None or parts is not None):
            raise UserError("matrix and test are of whole trainings: leave part and launch out", "conflict")
        stores = [FeatureStore.open(path, checksums=how.checksums) for path in single]
        request = SplitRequest(how.split, how.train_on, how.test_on, how.seed, how.label)
        dataset = Dataset.load(sources.stores, how.layer, request, sources.beside)
        how.check_spans(marked=dataset.examples.inside is not None)
        dataset = method.prepare(dataset, sources.stores)
        rule.check_number(len(dataset.examples.groups("validation")))
        tasks, notes = method.plan(dataset)
        selected = [store.summary.get("questions", {}).get("selected") for store in opened]
        notes = [*dict.fromkeys(filter(None, selected)), *notes]
        if how.loss == "span_max" and (lacking := dataset.examples.lacking_spans):
            notes.append(f"loss=span_max: {lacking}, so that in the end every token is pushed one way")
            log.warning(f"{notes[-1]}: loss=span_max_all counts unmarked stretches as right spans")
        if joins_layers(method.make) and how.layer_sets:
            why = "this head reads all layers at once: run with layer=[..] for each set"
            raise UserError(f"layer_sets={how.layer_sets}: {why}", code="conflict")
        dataset.inputs(build(method.make, tasks[:1], dataset.states.shape[-1]), how.loss)
        pool = sources.stores[0].spec.pool
        shown = all((pool, "passages") in [(f.pool, f.site) for f in store.features] for store in opened)
        return cls(
            settings, method, request, sources, dataset, tasks, notes,
            sets=sweeps.sets_of(how.layer_sets, sorted({t.column.layer for t in tasks if t.is_probe})),
            fewer=sweeps.sizes_of(how.sizes, dataset.examples, curve=how.learning_curve, seed=how.seed),
            stores=paths, alone={str(store.path): Sources.of([store], *what) for store in stores},
            passages=of_site(opened, pool, "passages") if shown else None,
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        """Resolve the configuration, with all inputs named by content."""
        layers = [layer for task in self.tasks if task.is_probe for layer in task.column.layers]
        others = map(Path, listed(self.settings.test))
        identity = identified(self.settings, [*self.stores, *others], layers)
        if self.settings.texts.path is None:
            del identity["texts"]  # runs of before have no such key
        else:
            identity["inputs"]["texts"] = checksums.inputs(str(self.settings.texts.path))
        if self.method.inputs:
            identity["inputs"]["probers"] = self.method.inputs
        return identity


def method_for(settings: Train, parts: PartRuns | None = None) -> Method:
    """Make the method that the head names; UserError for options that contradict it."""
    kind = class_of(settings.head)
    for name in kind.unused:
        if (value := getattr(settings, name)) and value != default_values(Train).get(name):
            raise UserError(f"{name}={value} does not apply to head={kind.head}: leave it out", "conflict")
    if settings.texts.path is not None and not kind.reads_texts:
        raise UserError(f"texts={settings.texts.path} is for head=lora: leave it out", "conflict")
    return kind(settings, parts)


class Result(NamedTuple):
    """A prober, its figures, seconds of training, and what the prober in each additional folder is."""

    bank: Prober
    figures: Figures
    seconds: float
    further: Mapping[Path, str]


def fit(
    stores: Store | Sequence[Store], *, head: str | type | Component | Callable[..., Any] = "probing_rag",
    layers: Any = "all", out: str | Path | None = None, **options: Any,
) -> Prober:  # fmt: skip
    """Train, calibrate and evaluate a prober on the labelled states of stores, as ``probers-train``.

    ::

        prober = fit("runs/datagen/cot", head="linear", layers=[8, 10], lr=1e-2)
        print(prober.metrics["ensemble"]["auroc"])

    Args:
        stores: finished stores or their folders; several are read as one.
        head: name of a head with options as typed (``"radio hidden=64"``), a class of heads, or a partial.
        layers: "all", a number, a range as "1-20", or a list.
        out: folder of the prober, written as the command writes it; a killed training resumes, and a finished
            one is loaded. Without it nothing is written.
        options: further keys of the command, with its defaults: ``epochs``, ``lr``, ``calibration``,
            ``threshold``, ``split``, ``pool``, ``resamples``, ``learning_curve``, ..

    Returns:
        The prober, with figures of the test texts as ``metrics`` and its model card as ``card``.

    UserError for an unknown option, a value that is not allowed, and what cannot be trained on the stores.
    """
    settings = settings_of(head_of(head), layers, out, options)
    opening = partial(FeatureStore.open, checksums=settings.checksums)
    opened = [store if isinstance(store, FeatureStore) else opening(store) for store in listed(stores)]
    if not opened:
        raise UserError("stores=[] names no store: give one, or several", "missing-value")
    paths = [str(store.path) for store in opened]
    settings = replace(settings, data=paths, out=None if out is None else str(out))
    record = {key: value for key, value in plain(settings).items() if key != "launch"}  # as typed
    settings = replace(settings, _record=record)
    if out is None:
        return train(Plan.of(settings, opened), None).bank
    return Prober.from_pretrained(run_on(settings, opened))


def settings_of(head: Component, layers: Any, out: Any, options: Mapping[str, Any]) -> Train:
    """Make the settings of the command; UserError for an unknown option, and for what needs ``out``."""
    refuse_unknown("fit", options, ["layers", "head", *OPTIONS])
    texts = options.get("texts")
    if isinstance(texts, (str, Path)):
        options = {**options, "texts": default_values(Train)["texts"] | {"path": str(texts)}}
    given = {**options, "layer": layers}.items()
    values = {name: list(value) if isinstance(value, (tuple, range)) else value for name, value in given}
    settings = replace(read(Train, values), head=head)
    if method_of(head) == "questions":
        raise UserError("head=adaptive classifies questions: use probers-train", "unsupported")
    files = [name for name in _FILES if getattr(settings, name) not in ([], False, None, "none")]
    if out is None and (files or method_of(head) == "adapters"):
        what = f"{files[0]}={getattr(settings, files[0])}" if files else "head=lora"
        raise UserError(f"{what} writes files: give out=FOLDER", "missing-value")
    return settings


def run(settings: Train, parts: PartRuns | None = None, search: Chosen | None = None) -> Path:
    """Train and write a prober, of heads that ``parts`` trained or ``search`` chose; return its folder."""
    if method_of(settings.head) == "questions":
        from .methods.questions import run as train_classifier

        return train_classifier(settings)
    return run_on(settings, opened_stores(settings), parts, search)


def run_on(
    settings: Train, opened: Sequence[FeatureStore], parts: PartRuns | None = None,
    search: Chosen | None = None,
) -> Path:  # fmt: skip
    """Write the prober of opened stores, or its part, in a folder that resumes; returns the folder."""
    plan, part = Plan.of(settings, opened, parts), settings.partition
    how, dataset = plan.method.settings, plan.dataset
    # Beside the folder of a single run, not in it: either can be there first, or be removed.
    which = how.layer if isinstance(how.layer, str) else f"layer{'-'.join(map(str, listed(how.layer)))}"
    named = (*listed(how.pool), *listed(how.site), *how.beside, which)
    out = Path(settings.out or default_out("train", plan.stores, settings.suffix, *named))
    if part is not None:
        out, tasks = part.folder(out), part_tasks(plan.tasks, part)
    folder = RunFolder(out, "train", plan.identity())
    if search is not None:
        folder, _ = search
    elif not (folder.begin("prober") if parts is None else parts.begin(folder, "prober")):
        return out
    if settings.split != "store" or settings.train_on or settings.test_on:
        write_text(out / "splits.json", canonical_json(dataset.examples.split_record()))
    summary: dict[str, Any] = {"model": plan.sources.stores[0].spec.model.id}
    if part is not None:
        of_part = of_tasks(dataset, plan.sources.stores, tasks)
        sweeps.fit_part(partial(plan.method.fit, out=out), tasks, of_part, plan.fewer, out)
        summary["part"] = str(part)
    else:
        bank, figures, seconds, further = train(plan, out, {} if search is None else {"search": search[1]})
        table = _matrix(plan, bank, out) if plan.alone else ""
        summary |= {"best_layer": figures.best_layer, "auroc": figures.ensemble.auroc}
    folder.finish(summary)
    for leftover in (*out.glob("checkpoint*.safetensors"), *out.glob(".checkpoint*.tmp")):  # of a killed run
        leftover.unlink()
    if part is not None:
        which = ", ".join(map(str, sorted({t.column.layer for t in tasks if t.is_probe})))
        log.info("wrote the heads of layers %s, part %s, to %s", which, part, out)
        log.info("once all parts are there: %s", merge_line(out.parent))
        return out
    log.info("%s", Report(figures))
    if table:
        log.info("%s", table)
    duration = f"{seconds:.0f} s" if parts is None else f"{len(parts.runs)} parts"
    log.info("wrote a prober of %s to %s (trained in %s)", count(len(bank.layers), "layer"), out, duration)
    if further:
        log.info("%s", compare_runs([[about] for about in further.values()], list(further)))
    folders = sorted({path.parent for path in further})
    log.info("next: %s", _next(bank, out, folders, read=dataset.examples.read))
    return out


def train(plan: Plan, out: Path | None, more: Mapping[str, Any] | None = None) -> Result:
    """Train, assemble and measure a plan's probers, in ``out`` if given; ``more`` are further figures."""
    method, how, fitter = plan.method, plan.method.settings, partial(plan.method.fit, out=out)
    fitted = fitter(plan.tasks, plan.dataset)
    trained = assemble(fitted, plan.dataset, how, refuse=method.refuse)
    trained = replace(trained, notes=[*plan.notes, *trained.notes])
    if plan.passages is not None:
        pointer, shares, about = fit_pointer(plan.passages, plan.dataset.examples)
        bank, detector = replace(trained.bank, pointer=pointer), Detector("pointer", shares, about)
        trained = replace(trained, bank=bank, controls=[*trained.controls, detector])
    trained, dataset = method.complete(trained, fitted, plan.dataset, out)
    trained, smaller = sweeps.of_sizes(fitter, trained, dataset, plan.fewer, how)
    bank, figures = _measure(plan, trained, dataset.examples, out, more or {})
    further = {}
    for prober in (*smaller, *sweeps.of_layers(plan.sets, fitted, trained, dataset, how)):
        assert out is not None
        _measure(plan, prober.trained, prober.examples, out / prober.folder, {})
        further[out / prober.folder] = prober.about
    return Result(bank, figures, fitted.seconds, further)


def _measure(
    plan: Plan, trained: Trained, examples: Examples, out: Path | None, more: Mapping[str, Any]
) -> tuple[Prober, Figures]:
    """Measure a prober, describe it, and with ``out`` write its folder; returns it with its figures."""
    how, config = plan.settings, plan.sources.stores[0].config
    evaluator = Evaluator(examples, how.rule(), resamples=how.resamples, seed=how.seed)
    figures = summarise(trained, evaluator, {**trained.training, "seeds": how.seeds}, **more)
    texts, source = config.get("texts"), str(config.get("source", ""))
    bank = replace(
        trained.bank, metrics=figures.to_dict(), seen=examples.seen(), recogniser=_recogniser(config),
        pictures=Pictures(figures, trained, evaluator),
        card=write_card(trained.bank, figures, plan.stores, out, source=source, read=examples.read),
        columns=(texts.get("columns") or None) if isinstance(texts, Mapping) else None,
    )  # fmt: skip
    if out is not None:
        save(out, bank)
    return bank, figures


def _matrix(plan: Plan, bank: Prober, out: Path) -> str:
    """Test the prober, and with ``matrix`` one of each store, on every store; returns the table."""
    how, names = plan.method.settings, list(map(str, plan.stores))
    split, probers = replace(plan.request, train_on=(), test_on=()), {}
    if len(names) > 1 and how.matrix:
        probers = sweeps.each_alone({name: plan.alone[name] for name in names}, split, plan.method.make, how)
    probers[sweeps.ALL if len(names) > 1 else names[0]] = bank
    cells = sweeps.matrix(probers, plan.alone, split, how.resamples)
    sweeps.write_matrix(cells, out)
    return sweeps.matrix_table(cells)


def _recogniser(config: Mapping[str, Any]) -> str | None:
    """Name the recogniser of a prober's texts by the configuration of its stores."""
    name, language = config.get("recogniser"), config.get("language", "en")
    if language not in ("auto", "en") and name in ("rules", "auto"):
        return f"rules:{language}"
    return name if config.get("source") == "wiki" or language not in ("auto", "en") else None


def _next(bank: Prober, out: Path, further: Sequence[Path], *, read: bool) -> str:
    """Show what uses the prober and ``further`` ones; ``read``: it was trained on texts of others."""
    answers = not read and bank.spec.position == "generated" and bank.spec.pool not in ("tokens", "prompt")
    if command := use_command(bank, out, bank.spec.model.id, read=read):
        probers = ",".join(override("probers", path).partition("=")[2] for path in [out, *further])
        compare = command_line("compare", "triggers=[never,probing]", f"probers=[{probers}]")
        return compare if further and answers else command
    load = f"Prober.from_pretrained({str(out)!r})"
    if bank.head.tokens:
        needs = f'Needs.of({bank.layers}, site="{bank.spec.site}", pool="{bank.spec.pool}")'
        return f"{load}.score_spans takes the states of a CausalLM asked for {needs}"
    return f"{load}.watch(model) scores what a model writes"


def opened_stores(settings: Stores) -> list[FeatureStore]:
    """Open the stores in ``data``, by default the newest complete one."""
    if not (paths := list(map(Path, listed(newest_store() if settings.data is None else settings.data)))):
        if settings.data is not None:
            raise UserError("data=[] names no store: give a folder, or several", code="missing-value")
        fix = "run probers-datagen, or pass data=FOLDER"
        raise UserError(f"there is no complete feature store under runs/: {fix}", code="no-artifact")
    log.info("reading %s", ", ".join(map(str, paths)))
    return [FeatureStore.open(path, checksums=settings.checksums) for path in paths]


def listed(value: Any) -> list[Any]:
    """Turn a value, several or None into a list."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def default_out(command: str, paths: Sequence[Path], suffix: str | None, *more: Any) -> Path:
    """Name the folder of a run without ``out``, after stores and what else is given."""
    names = ["+".join(path.name for path in paths), *map(str, more)]
    return Path("runs", command, ",".join(["-".join(names), *listed(suffix)]))


def identified(settings: Stores, paths: Sequence[Path], layers: Iterable[int]) -> dict[str, Any]:
    """Resolve the configuration, with the inputs named by content."""
    inputs: dict[str, Any] = {"stores": list(map(fingerprint, paths)), "layers": sorted(set(layers))}
    # The run folder ignores batch_size, which elsewhere affects speed only; here it changes the heads.
    inputs["examples_per_step"] = settings.record["batch_size"]
    # Runs of before have no key beside.
    record = {key: value for key, value in settings.record.items() if value or key != "beside"}
    return record | {"data": list(map(str, paths)), "inputs": inputs}
