"""The command ``probers-train``: from feature stores to a calibrated, evaluated prober."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from probers import checksums
from probers.cli.command_lines import command_line, merge_line, override
from probers.cli.inputs import newest_store
from probers.cli.merge import PartRuns
from probers.cli.runs import RunFolder
from probers.cli.settings import default_values
from probers.files import canonical_json, write_text
from probers.prober.figures import Figures
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
from .heads import Task, build, joins_layers, of_tasks, part_tasks
from .methods import Method, Subject, class_of, method_of
from .plots import write_plots
from .report import Origin, compare_runs, use_command, write_card
from .settings import Assembling, Fitting, Stores, Train, taken

log = logging.getLogger(__name__)


#: Folder, claimed, of a search whose winner is trained, and its entry ``search`` of the figures.
Chosen = tuple[RunFolder, Mapping[str, Any]]


@dataclass(frozen=True)
class Plan:
    """A training that can begin.

    Attributes:
        method: makes the heads, and knows how the score is made of them.
        request: choice of the examples and their splits.
        resamples: bootstrap resamples for every interval.
        tasks: heads to train on the data set, with notes on what is left out.
        sets: layers of additional probers, and ``fewer`` examples of others by their number.
        sized: the probers of fewer examples are written, with their controls.
        stores: folders trained on, and ``others`` that are tested on only.
        alone: every store by itself, where each is tested on; ``matrix`` also trains on each.
        passages: attention by passage of the same texts; None of other stores.
    """

    method: Method
    request: SplitRequest
    resamples: int
    sources: Sources
    dataset: Dataset
    tasks: Sequence[Task]
    notes: Sequence[str]
    sets: Sequence[Sequence[int]]
    fewer: Mapping[int, Examples]
    sized: bool
    stores: Sequence[Path]
    others: Sequence[Path]
    alone: Mapping[str, Sources]
    matrix: bool
    passages: Stored | None = None

    @classmethod
    def of(cls, settings: Train, opened: Sequence[FeatureStore], parts: PartRuns | None = None) -> Plan:
        """Plan a training on opened stores; UserError for what cannot be trained."""
        method = method_for(settings, parts)
        subject, fitting = method.subject, method.fitting
        fitting.hardware()
        rule, paths = method.choice.rule(), [store.path for store in opened]
        sites = listed(subject.site)
        if sites and all("resid_bare" in [each.site for each in store.features] for store in opened):
            sites = [*dict.fromkeys([*sites, "resid_bare"])]  # a control
        how = (subject.pool, sites or None, settings.beside)
        sources = Sources.of(opened, *how)
        others = [Path(path) for path in listed(settings.test)]
        single = [*paths, *others] if settings.matrix or others else []
        if single and (settings.part is not None or parts is not None):
            raise UserError("matrix and test are of whole trainings: leave part and launch out", "conflict")
        stores = [FeatureStore.open(path, checksums=settings.checksums) for path in single]
        alone = {str(store.path): Sources.of([store], *how) for store in stores}
        sides = (settings.split, settings.train_on, settings.test_on)
        request = SplitRequest(*sides, settings.seed, subject.label)
        dataset = Dataset.load(sources.stores, subject.layer, request, sources.beside)
        fitting.check_spans(marked=dataset.examples.inside is not None)
        dataset = method.prepare(dataset, sources.stores)
        rule.check_number(len(dataset.examples.groups("validation")))
        tasks, notes = method.plan(dataset)
        chosen = [store.summary.get("questions", {}).get("selected") for store in opened]
        notes = [*dict.fromkeys(filter(None, chosen)), *notes]
        if fitting.loss == "span_max" and (lacking := dataset.examples.lacking_spans):
            notes = [*notes, f"loss=span_max: {lacking}, so that in the end every token is pushed one way"]
            log.warning(f"{notes[-1]}: loss=span_max_all counts unmarked stretches as right spans")
        if joins_layers(method.make) and settings.layer_sets:
            why = "this head reads all layers at once: give layer=[..] and run once for each set"
            raise UserError(f"layer_sets={settings.layer_sets}: {why}", code="conflict")
        sets = sweeps.sets_of(settings.layer_sets, sorted({task.layer for task in tasks if task.is_probe}))
        fewer = sweeps.sizes_of(settings.sizes, dataset.examples, curve=subject.curve, seed=fitting.seed)
        dataset.inputs(build(method.make, tasks[:1], dataset.states.shape[-1]), fitting.loss)
        pool = sources.stores[0].spec.pool
        shown = all((pool, "passages") in [(f.pool, f.site) for f in store.features] for store in opened)
        passages = of_site(opened, pool, "passages") if shown else None
        return cls(
            method, request, settings.resamples, sources, dataset, tasks, notes, sets, fewer,
            bool(settings.sizes), paths, others, alone, settings.matrix, passages,
        )  # fmt: skip

    def identity(self, settings: Train) -> dict[str, Any]:
        """Resolve the configuration, with all inputs named by content."""
        layers = [layer for task in self.tasks if task.is_probe for layer in task.column.layers]
        identity = identified(settings, [*self.stores, *self.others], layers)
        if settings.texts.path is None:
            del identity["texts"]  # runs of before have no such key
        else:
            identity["inputs"]["texts"] = checksums.inputs(str(settings.texts.path))
        if self.method.inputs:
            identity["inputs"]["probers"] = self.method.inputs
        return identity


def method_for(settings: Train, parts: PartRuns | None = None) -> Method:
    """Make the method that the head names; UserError for options that contradict it."""
    kind = class_of(settings.head)
    for name in kind.unused:
        if (value := getattr(settings, name)) and value != default_values(Train).get(name):
            message = f"{name}={value} does not apply to head={kind.head}, which makes one prober"
            raise UserError(f"{message}: leave it out", "conflict")
    if settings.texts.path is not None and not kind.reads_texts:
        message = f"texts={settings.texts.path} is for head=lora; other heads read the states of data"
        raise UserError(f"{message}: leave texts out", "conflict")
    read = (settings.head, settings.layer, settings.pool, settings.site, settings.label)
    return kind(
        Subject(*read, settings.learning_curve), taken(Fitting, settings), taken(Assembling, settings),
        texts=settings.texts, resamples=settings.resamples, parts=parts,
    )  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A prober, its report, seconds of training, and what the prober in each additional folder is.

    ``read`` says that it was trained on texts of others.
    """

    bank: Prober
    report: Report
    seconds: float
    further: Mapping[Path, str]
    read: bool


def run(settings: Train, parts: PartRuns | None = None, search: Chosen | None = None) -> Path:
    """Train, calibrate, evaluate and write a prober; returns its folder.

    ``parts`` have trained its heads, or a ``search`` has chosen them.
    """
    if method_of(settings.head) == "questions":
        from .methods.questions import run as train_classifier

        if settings.part is not None:
            why = "divides layers, and a classifier of questions has none: leave part out"
            raise UserError(f"part={settings.part} {why}", code="conflict")
        return train_classifier(settings)
    return run_on(settings, opened_stores(settings), parts, search)


def run_on(
    settings: Train, opened: Sequence[FeatureStore], parts: PartRuns | None = None,
    search: Chosen | None = None,
) -> Path:  # fmt: skip
    """Write the prober of opened stores, or its part, in a folder that resumes; returns the folder."""
    plan, part = Plan.of(settings, opened, parts), settings.partition
    dataset, subject = plan.dataset, plan.method.subject
    layers = subject.layer
    # Beside the folder of a single run, not in it: either can be there first, or be removed.
    which = layers if isinstance(layers, str) else f"layer{'-'.join(map(str, listed(layers)))}"
    named = (*listed(subject.pool), *listed(subject.site), *settings.beside, which)
    out = Path(settings.out or default_out("train", plan.stores, settings.suffix, *named))
    if part is not None:
        out, tasks = part.folder(out), part_tasks(plan.tasks, part)
    folder = RunFolder(out, "train", plan.identity(settings))
    if search is not None:
        folder, _ = search
    elif not (folder.begin("prober") if parts is None else parts.begin(folder, "prober")):
        return out
    if settings.split != "store" or settings.train_on or settings.test_on:
        write_text(out / "splits.json", canonical_json(dataset.examples.split_record()))
    model = plan.sources.stores[0].spec.model.id
    if part is not None:
        read = of_tasks(dataset, plan.sources.stores, tasks)
        sweeps.fit_part(partial(plan.method.fit, out=out), tasks, read, plan.fewer, out)
        folder.finish({"model": model, "part": str(part)})
        _remove_checkpoints(out)
        which = ", ".join(map(str, sorted({task.layer for task in tasks if task.is_probe})))
        log.info("wrote the heads of layers %s, part %s, to %s", which, part, out)
        log.info("once all parts are there: %s", merge_line(out.parent))
        return out
    result = train(plan, out, {} if search is None else {"search": search[1]})
    table = _matrix(plan, result.bank, out) if plan.alone else ""
    figures = result.report.figures
    folder.finish({"model": model, "best_layer": figures.best_layer, "auroc": figures.ensemble.auroc})
    _remove_checkpoints(out)

    log.info("%s", result.report)
    if table:
        log.info("%s", table)
    how = f"{result.seconds:.0f} s" if parts is None else f"{len(parts.runs)} parts"
    log.info("wrote a prober of %s to %s (trained in %s)", count(len(result.bank.layers), "layer"), out, how)
    if result.further:
        log.info("%s", compare_runs([[about] for about in result.further.values()], list(result.further)))
    folders = sorted({path.parent for path in result.further})
    log.info("next: %s", _next(result.bank, out, folders, read=result.read))
    return out


def train(plan: Plan, out: Path | None, more: Mapping[str, Any] | None = None) -> Result:
    """Train the heads of a plan, and assemble and measure its probers; with ``out`` they are written there.

    ``more`` are further figures.
    """
    method, choice, fitter = plan.method, plan.method.choice, partial(plan.method.fit, out=out)
    fitted = fitter(plan.tasks, plan.dataset)
    trained = assemble(fitted, plan.dataset, choice, refuse=method.refuse)
    trained = replace(trained, notes=[*plan.notes, *trained.notes])
    if plan.passages is not None:
        pointer, shares, about = fit_pointer(plan.passages, plan.dataset.examples)
        bank, detector = replace(trained.bank, pointer=pointer), Detector("pointer", shares, about)
        trained = replace(trained, bank=bank, controls=[*trained.controls, detector])
    trained, dataset = method.complete(trained, fitted, plan.dataset, out)
    of_sizes = partial(sweeps.of_sizes, seed=method.fitting.seed, controls=plan.sized)
    trained, smaller = of_sizes(fitter, trained, dataset, plan.fewer, choice)
    bank, figures = _measure(plan, trained, dataset.examples, out, more or {})
    of_layers = sweeps.of_layers(plan.sets, fitted, trained, dataset, choice)
    further = {}
    for prober in (*(smaller if plan.sized else ()), *of_layers):
        assert out is not None
        _measure(plan, prober.trained, prober.examples, out / prober.folder, {})
        further[out / prober.folder] = prober.about
    return Result(bank, Report(figures), fitted.seconds, further, dataset.examples.read)


def _measure(
    plan: Plan, trained: Trained, examples: Examples, out: Path | None, more: Mapping[str, Any]
) -> tuple[Prober, Figures]:
    """Measure a prober, describe it, and with ``out`` write its folder; returns it with its figures."""
    how, config = plan.method.fitting, plan.sources.stores[0].config
    evaluator = Evaluator(examples, plan.method.choice.rule(), resamples=plan.resamples, seed=how.seed)
    figures = summarise(trained, evaluator, {**trained.training, "seeds": how.seeds}, **more)
    origin = Origin(plan.stores, str(config.get("source", "")), examples.read)
    bank = replace(
        trained.bank, metrics=figures.to_dict(), card=write_card(trained.bank, figures, origin, out),
        seen=examples.seen(), recogniser=_recogniser(config), columns=_columns(config),
    )  # fmt: skip
    if out is not None:
        bank.save_pretrained(out)
        write_plots(out / "plots", figures, trained, evaluator)
    return bank, figures


def _matrix(plan: Plan, bank: Prober, out: Path) -> str:
    """Test the prober, and with ``matrix`` one of each store, on every store; returns the table."""
    method, names = plan.method, list(map(str, plan.stores))
    split, probers = replace(plan.request, train_on=(), test_on=()), {}
    if len(names) > 1 and plan.matrix:
        stores = {name: plan.alone[name] for name in names}
        of = (method.make, method.fitting, method.choice)
        probers = sweeps.each_alone(stores, method.subject.layer, split, *of)
    probers[sweeps.ALL if len(names) > 1 else names[0]] = bank
    cells = sweeps.matrix(probers, plan.alone, split, plan.resamples)
    sweeps.write_matrix(cells, out)
    return sweeps.matrix_table(cells)


def _columns(config: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Name the columns of the texts that were read, by the configuration of their store."""
    texts = config.get("texts")
    return (texts.get("columns") or None) if isinstance(texts, Mapping) else None


def _recogniser(config: Mapping[str, Any]) -> str | None:
    """Name the recogniser of a prober's texts by the configuration of its stores."""
    name, language = config.get("recogniser"), config.get("language", "en")
    if language not in ("auto", "en") and name in ("rules", "auto"):
        return f"rules:{language}"
    return name if config.get("source") == "wiki" or language not in ("auto", "en") else None


def _next(bank: Prober, out: Path, further: Sequence[Path], *, read: bool) -> str:
    """Show a command or call that uses the prober, and further ones in some folders.

    ``read`` says that it was trained on texts of others.
    """
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


def _remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a finished training, and one half written by a killed run."""
    for leftover in (*out.glob("checkpoint*.safetensors"), *out.glob(".checkpoint*.tmp")):
        leftover.unlink()


def opened_stores(settings: Stores) -> list[FeatureStore]:
    """Open the stores in ``data``, by default the newest complete one."""
    paths = list(map(Path, listed(newest_store() if settings.data is None else settings.data)))
    if not paths and settings.data is None:
        message = "there is no complete feature store under runs/"
        raise UserError(f"{message}: run probers-datagen, or pass data=FOLDER", code="no-artifact")
    if not paths:
        raise UserError("data=[] names no store: give a folder, or several", code="missing-value")
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
