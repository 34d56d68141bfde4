"""The command ``probers-train``: from feature stores to a calibrated, evaluated prober."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probers import checksums
from probers.commands.inputs import newest_store
from probers.commands.merge import PartRuns
from probers.commands.runs import RunFolder
from probers.files import canonical_json, write_text
from probers.store.files import fingerprint
from probers.types import UserError

if TYPE_CHECKING:
    from probers.bank.bank import Prober
    from probers.store.joined import Sources
    from probers.store.store import FeatureStore

    from .assemble import Trained
    from .data import Dataset
    from .examples import Examples
    from .fit import Task
    from .method import Method
    from .settings import Stores, Train

log = logging.getLogger(__name__)

#: Heads that are made of more than states: adapters below a head, and finished probers.
_LORA, _STACK = "probers.train.lora.adapted.Lora", "probers.train.stacking.Stack"


class Chosen(NamedTuple):
    """Search whose winner is trained: its folder, claimed, and the entry ``search`` of the figures."""

    folder: RunFolder
    entry: Mapping[str, Any]


def run(settings: Train, parts: PartRuns | None = None, search: Chosen | None = None) -> Path:
    """Train, calibrate, evaluate and write a prober; returns its folder.

    ``parts`` have trained its heads, or a ``search`` has chosen them.
    """
    from probers.adaptive.training import TARGETS
    from probers.adaptive.training import run as run_classifier

    part = settings.partition
    if settings.head.target in TARGETS:
        if part is not None:
            why = "divides layers, and a classifier of questions has none: leave part out"
            raise UserError(f"part={part} {why}", code="conflict")
        return run_classifier(settings)

    from .assemble import assemble
    from .fit import of_tasks, own_tasks
    from .report import compare_runs, table
    from .sweeps.subsets import fit_part, of_layers, of_sizes

    method = _method(settings, parts)
    settings = method.settle(settings)
    data = _read(settings)
    if data.alone and (part is not None or parts is not None):
        raise UserError("matrix and test are of whole trainings: leave part and launch out", code="conflict")
    plan = _plan(settings, method, data.sources)
    dataset, paths = plan.dataset, data.paths
    out = Path(settings.out or _default_out(paths, settings))
    if part is not None:
        out, own = part.folder(out), own_tasks(plan.tasks, part)
    folder = RunFolder(out, "train", _identity(settings, [*paths, *data.others], plan.tasks, method))
    if search is not None:
        folder = search.folder
    elif not (folder.begin("prober") if parts is None else parts.begin(folder, "prober")):
        return out
    if settings.split != "store" or settings.train_on or settings.test_on:
        write_text(out / "splits.json", canonical_json(dataset.examples.split_record()))

    fitter, stores = partial(method.fit, out), data.sources.stores
    model, made = stores[0].spec.model.id, stores[0].config
    if part is not None:
        fit_part(fitter, own, of_tasks(dataset, stores, own), plan.fewer, settings, out)
        folder.finish({"model": model, "part": str(part)})
        _remove_checkpoints(out)
        which = ", ".join(map(str, sorted({task.layer for task in own if task.is_probe})))
        log.info("wrote the heads of layers %s, part %s, to %s", which, part, out)
        log.info("once all parts are there: probers-merge %s/*", out.parent)
        return out
    fitted = fitter(plan.tasks, dataset, settings)
    trained = assemble(fitted, dataset, settings, refuse=method.refuse)
    trained = replace(trained, notes=[*plan.notes, *trained.notes])
    trained, dataset = method.complete(trained, fitted, dataset, settings, out)
    trained, sized = of_sizes(fitter, trained, dataset, plan.fewer, settings)

    entry = None if search is None else search.entry
    figures = _write(trained, dataset.examples, settings, paths, made, out, entry)
    further: dict[Path, str] = {}
    for each in (*sized, *of_layers(plan.sets, fitted, trained, dataset, settings)):
        _write(each.trained, each.examples, settings, paths, made, out / each.folder)
        further[out / each.folder] = each.about
    bank = replace(trained.bank, seen=dataset.examples.seen())
    matrix = _matrix(bank, data.alone, paths, settings, out) if data.alone else ""
    auroc = figures["ensemble"]["auroc"]
    folder.finish({"model": model, "best_layer": figures["best_layer"], "auroc": auroc})
    _remove_checkpoints(out)

    log.info("%s", table(figures))
    if matrix:
        log.info("%s", matrix)
    size = f"{len(trained.bank.layers)} layer{'s' * (len(trained.bank.layers) > 1)}"
    how = f"trained in {fitted.seconds:.0f} s" if parts is None else f"trained in {len(parts.runs)} parts"
    log.info("wrote a prober of %s to %s (%s)", size, out, how)
    if further:
        log.info("%s", compare_runs([[about] for about in further.values()], list(further)))
    folders = sorted({folder.parent for folder in further})
    log.info("next: %s", _next(trained.bank, out, folders, read=dataset.examples.read))
    return out


def _method(settings: Train, parts: PartRuns | None) -> Method:
    """Choose how the heads are made, by ``head``."""
    if settings.head.target == _STACK:
        from .stacking import Stacking

        return Stacking.load(settings.head.options["probers"])
    if settings.head.target == _LORA:
        from .lora.run import Adapting

        return Adapting(settings.head.make())
    from .method import Method

    return Method(parts)


class _Plan(NamedTuple):
    """Heads to train on a data set, sets of layers, and examples of fewer texts by their number."""

    dataset: Dataset
    tasks: Sequence[Task]
    notes: Sequence[str]
    sets: Sequence[Sequence[int]]
    fewer: Mapping[int, Examples]


def _plan(settings: Train, method: Method, sources: Sources) -> _Plan:
    """Plan a training; UserError for what cannot be trained, before anything is written."""
    from probers.heads import is_joint

    from .data import Dataset
    from .examples import SplitRequest
    from .fit import build, maker
    from .sweeps.subsets import sets_of, sizes_of

    settings.hardware()
    rule, (stores, beside) = settings.rule(), sources
    request = SplitRequest(settings.split, settings.train_on, settings.test_on, settings.seed)
    dataset = method.prepare(Dataset.load(stores, settings.layer, request, beside), stores, settings)
    rule.check_number(len(dataset.examples.groups("validation")))
    tasks, notes = method.plan(dataset, settings)
    if is_joint(settings.head.kind) and settings.layer_sets:
        why = "this head reads all layers at once: give layer=[..] and run once for each set"
        raise UserError(f"layer_sets={settings.layer_sets}: {why}", code="conflict")
    sets = sets_of(settings.layer_sets, sorted({task.layer for task in tasks if task.is_probe}))
    fewer = sizes_of(settings, dataset.examples)
    dataset.inputs(build(maker(settings.head), tasks[:1], stores[0].spec.width), settings.loss)
    return _Plan(dataset, tasks, notes, sets, fewer)


class _Data(NamedTuple):
    """Folders of stores, these read by site, folders that are tested on only, and every store by itself."""

    paths: list[Path]
    sources: Sources
    others: list[Path]
    alone: dict[str, Sources]


def _read(settings: Train) -> _Data:
    """Open the stores; each is listed by itself too where there is a matrix."""
    from probers.store.joined import Sources
    from probers.store.store import FeatureStore

    opened = opened_stores(settings)
    paths, others = [store.path for store in opened], [Path(path) for path in listed(settings.test)]
    how = (settings.pool, listed(settings.site) or None, settings.beside)
    sources = Sources.of(opened, *how)
    single = [*paths, *others] if settings.matrix or others else []
    opened = [FeatureStore.open(path, checksums=settings.checksums) for path in single]
    return _Data(paths, sources, others, {str(store.path): Sources.of([store], *how) for store in opened})


def _identity(
    settings: Train, paths: Sequence[Path], tasks: Sequence[Task], method: Method
) -> dict[str, Any]:
    """Resolve the configuration with all inputs by content."""
    layers = [layer for task in tasks if task.is_probe for layer in task.column.layers]
    identity = identified(settings, paths, layers)
    if settings.texts.path is None:
        del identity["texts"]  # runs of before have no such key
    else:
        identity["inputs"] |= {"texts": checksums.inputs(str(settings.texts.path))}
    if method.inputs:
        identity["inputs"] |= {"probers": method.inputs}
    return identity


def _matrix(
    bank: Prober, alone: Mapping[str, Sources], paths: Sequence[Path], settings: Train, out: Path
) -> str:
    """Test the prober, and with ``matrix`` one of each store, on every store; returns the table."""
    from .sweeps import transfer

    known = {name: store for name, store in alone.items() if Path(name) in paths}
    several = len(known) > 1
    probers = transfer.each_alone(known, settings) if several and settings.matrix else {}
    probers[transfer.ALL if several else str(paths[0])] = bank
    found = transfer.matrix(probers, alone, settings)
    transfer.write(found, out)
    return transfer.table(found)


def _default_out(paths: Sequence[Path], settings: Train) -> Path:
    layer = settings.layer
    # Beside the folder of a single run, not in it: either can be there first, or be removed.
    which = layer if isinstance(layer, str) else f"layer{'-'.join(map(str, listed(layer)))}"
    return default_out("train", paths, settings, *listed(settings.site), *settings.beside, which)


def _remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a finished training, and one half written by a killed run."""
    for leftover in (*out.glob("checkpoint*.safetensors"), *out.glob(".checkpoint*.tmp")):
        leftover.unlink()


def _write(
    trained: Trained, examples: Examples, settings: Train, paths: Sequence[Path], made: Mapping[str, Any],
    out: Path, search: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Evaluate a prober and write its folder; returns its figures. ``made`` is the stores' configuration."""
    from .evaluate import Evaluator, summarise
    from .figures import write_plots
    from .report import write_card

    evaluator = Evaluator(examples, settings.rule(), resamples=settings.resamples, seed=settings.seed)
    figures = summarise(trained, evaluator, {**trained.training, "seeds": settings.seeds})
    figures |= {} if search is None else {"search": search}
    source = str(made.get("source", ""))
    card = write_card(trained.bank, figures, data=paths, source=source, read=examples.read, out=out)
    recogniser = _recogniser(made)
    bank = replace(trained.bank, metrics=figures, card=card, seen=examples.seen(), recogniser=recogniser)
    bank.save_pretrained(out)
    write_plots(out / "plots", figures, trained, evaluator)
    return figures


def _recogniser(made: Mapping[str, Any]) -> str | None:
    """Name the recogniser of a prober's texts by the configuration of its stores."""
    name, language = made.get("recogniser"), made.get("language")
    if language is not None and name in ("rules", "auto"):
        return f"rules:{language}"
    return name if made.get("source") == "wiki" or language is not None else None


def _next(bank: Prober, out: Path, further: Sequence[Path], *, read: bool) -> str:
    """Show a command or call that uses the prober, and further ones in some folders.

    ``read`` says that it was trained on texts of others.
    """
    from .report import use_command

    command = use_command(bank, out, bank.spec.model.id, read=read)
    answers = not read and bank.spec.position == "generated" and bank.spec.pool not in ("tokens", "prompt")
    if command is not None and further and answers:
        probers = ",".join(map(str, [out, *further]))
        return f"probers-compare triggers=[never,probing] probers=[{probers}]"
    if command is not None:
        return command
    load = f"Prober.from_pretrained({str(out)!r})"
    if bank.head.tokens:
        needs = f'Needs.of({bank.layers}, site="{bank.spec.site}", pool="{bank.spec.pool}")'
        return f"{load}.score_spans takes the states of a CausalLM asked for {needs}"
    return f"{load}.watch(model) scores what a model writes"


def opened_stores(settings: Stores) -> list[FeatureStore]:
    """Open the stores in ``data``, by default the newest complete one."""
    from probers.store.store import FeatureStore

    paths = list(map(Path, listed(newest_store() if settings.data is None else settings.data)))
    if not paths and settings.data is None:
        what = "there is no complete feature store under runs/: run probers-datagen, or pass data=FOLDER"
        raise UserError(what, code="no-artifact")
    if not paths:
        raise UserError("data=[] names no store: give a folder, or several", code="missing-value")
    log.info("reading %s", ", ".join(map(str, paths)))
    return [FeatureStore.open(path, checksums=settings.checksums) for path in paths]


def listed(value: Any) -> list[Any]:
    """Turn a value, several or None into a list."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def default_out(command: str, paths: Sequence[Path], settings: Stores, *more: Any) -> Path:
    """Name the folder of a run without ``out``, after stores, pool and what else is given."""
    names = ["+".join(path.name for path in paths), *listed(settings.pool), *map(str, more)]
    return Path("runs", command, ",".join(["-".join(names), *listed(settings.suffix)]))


def identified(settings: Stores, paths: Sequence[Path], layers: Iterable[int]) -> dict[str, Any]:
    """Resolve the configuration, with the inputs named by content."""
    inputs = {
        "stores": [fingerprint(path) for path in paths],
        "layers": sorted(set(layers)),
        # The run folder ignores batch_size, which elsewhere affects speed only; here it changes the heads.
        "examples_per_step": settings.record["batch_size"],
    }
    # Runs of before have no key beside.
    asked = {key: value for key, value in settings.record.items() if value or key != "beside"}
    return asked | {"data": list(map(str, paths)), "inputs": inputs}
