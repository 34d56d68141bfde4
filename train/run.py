"""The command ``probers-train``: from feature stores to a calibrated, evaluated prober."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omegaconf import DictConfig

from probers.commands.artifacts import newest_store
from probers.commands.merge import PartRuns, part_of
from probers.commands.parts import maker, plain_value, record_of
from probers.commands.runs import RunFolder
from probers.files import canonical_json, write_text
from probers.store.files import fingerprint
from probers.types import UserError

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank

    from .assemble import Trained
    from .data import Examples
    from .fit import Task

log = logging.getLogger(__name__)
Settings = TypeVar("Settings")


def run(cfg: DictConfig, parts: PartRuns | None = None) -> Path:
    """Train, calibrate, evaluate and write a prober; returns its folder.

    Args:
        cfg: the request.
        parts: runs that have trained the heads.

    Raises:
        UserError: the request cannot be met; raised before anything is trained.
    """
    from probers.adaptive.training import TARGETS
    from probers.adaptive.training import run as run_classifier

    part = part_of(cfg)
    if cfg.head.get("_target_") in TARGETS:
        if part is not None:
            raise UserError(
                f"part={part} divides layers, and a classifier of questions has none: leave part out",
                code="conflict",
            )
        return run_classifier(cfg)
    from probers.heads import factory
    from probers.store.joined import by_site, chosen
    from probers.store.store import FeatureStore

    paths = _data(cfg.data)
    log.info("reading %s", ", ".join(map(str, paths)))
    opened = [FeatureStore.open(path, checksums=cfg.checksums) for path in paths]
    stores = by_site(chosen(opened, cfg.pool, _sites(cfg)))

    from .assemble import AssemblySettings, assemble
    from .data import Dataset, SplitRequest
    from .fit import Fitted, fit, joined, of_tasks, own_tasks, plan_tasks
    from .module import FitSettings
    from .report import compare_runs, table
    from .sweeps import SweepRequest, fit_part, of_layers, of_sizes

    settings, assembly = _read(FitSettings, cfg), _read(AssemblySettings, cfg)
    request = _read(SplitRequest, cfg)
    dataset = Dataset.load(stores, plain_value(cfg.layer), request)
    tasks, notes = plan_tasks(dataset, settings)
    sweep = _read(SweepRequest, cfg)
    sets = sweep.sets(sorted({task.layer for task in tasks if task.is_probe}))
    sweep.parts(dataset.examples)
    make_head = factory(maker(cfg.head))
    make_head(["tried before anything is written"], stores[0].spec.width)
    out = Path(cfg.out or _default_out(paths, cfg))
    if part is not None:
        out, own = part.folder(out), own_tasks(tasks, part)
    folder = RunFolder(out, "train", _identity(cfg, paths, tasks))
    if not (folder.begin("prober") if parts is None else parts.begin(folder, "prober")):
        return out
    if request.split != "store" or request.train_on or request.test_on:
        write_text(out / "splits.json", canonical_json(dataset.examples.split_record()))

    def fitter(of: Sequence[Task], on: Dataset, how: FitSettings, what: str = "") -> Fitted:
        if parts is not None:
            return joined(parts, make_head, of, on.states.shape[-1], what)
        return fit(make_head, of, on, how, out=out, what=what)

    if part is not None:
        fit_part(fitter, own, of_tasks(dataset, stores, own), sweep, settings, out)
        return _end_part(folder, cfg, stores[0].spec.model.id, own)
    fitted = fitter(tasks, dataset, settings)
    trained = assemble(fitted, dataset, assembly)
    trained = replace(trained, notes=[*notes, *trained.notes])
    trained, sized = of_sizes(fitter, trained, dataset, sweep, settings, assembly)

    made = stores[0].config
    figures = _write(trained, dataset.examples, cfg, paths, made, out)
    further: dict[Path, str] = {}
    for each in (*sized, *of_layers(sets, fitted, trained, dataset, assembly)):
        _write(each.trained, each.examples, cfg, paths, made, out / each.folder)
        further[out / each.folder] = each.about
    summary = {"best_layer": figures["best_layer"], "auroc": figures["ensemble"]["auroc"]}
    folder.finish({"model": stores[0].spec.model.id, **summary})
    _remove_checkpoints(out)

    log.info("%s", table(figures))
    size = f"{len(trained.bank.layers)} layer{'s' * (len(trained.bank.layers) > 1)}"
    how = f"trained in {fitted.seconds:.0f} s" if parts is None else f"trained in {len(parts.runs)} parts"
    log.info("wrote a prober of %s to %s (%s)", size, out, how)
    if further:
        log.info("%s", compare_runs([[about] for about in further.values()], list(further)))
    log.info("next: %s", _next(trained.bank, out, sorted({folder.parent for folder in further})))
    return out


def _end_part(folder: RunFolder, cfg: DictConfig, model: str, own: Sequence[Task]) -> Path:
    """Finish a part; the prober is calibrated and measured as a whole."""
    folder.finish({"model": model, "part": cfg.part})
    _remove_checkpoints(folder.path)
    layers = sorted({task.layer for task in own if task.is_probe})
    listed = ", ".join(map(str, layers))
    log.info("wrote the heads of layers %s, part %s, to %s", listed, cfg.part, folder.path)
    log.info("once all parts are there: probers-merge %s/*", folder.path.parent)
    return folder.path


def _remove_checkpoints(out: Path) -> None:
    """Remove the checkpoints of a finished training, and one that a killed run was writing."""
    for leftover in (*out.glob("checkpoint*.safetensors"), *out.glob(".checkpoint*.tmp")):
        leftover.unlink()


def _write(
    trained: Trained,
    examples: Examples,
    cfg: DictConfig,
    paths: Sequence[Path],
    made: Mapping[str, Any],
    out: Path,
) -> dict[str, Any]:
    """Evaluate a prober and write its folder; returns its figures. ``made`` is the stores' configuration."""
    from .assemble import AssemblySettings
    from .evaluate import Evaluator, summarise
    from .figures import write_plots
    from .report import write_card

    rule = _read(AssemblySettings, cfg).rule()
    evaluator = Evaluator(examples, rule, resamples=cfg.resamples, seed=cfg.seed)
    figures = summarise(trained, evaluator, {**trained.training, "seeds": cfg.seeds})
    source = str(made.get("source", ""))
    card = write_card(trained.bank, figures, data=paths, source=source, out=out)
    recogniser = made.get("recogniser") if source == "wiki" else None
    bank = replace(trained.bank, metrics=figures, card=card, seen=examples.seen(), recogniser=recogniser)
    bank.save_pretrained(out)
    write_plots(out / "plots", figures, trained, evaluator)
    return figures


def _read(kind: type[Settings], cfg: DictConfig) -> Settings:
    """Settings whose fields are keys of the configuration."""
    return kind(**{field.name: plain_value(cfg[field.name]) for field in fields(kind)})  # type: ignore[arg-type]


def _next(bank: ProbeBank, out: Path, further: Sequence[Path]) -> str:
    """A command or call that uses the prober, and the further ones in some folders."""
    from .report import rag_command

    command = rag_command(bank, out)
    if command is not None and further and bank.spec.pool != "tokens":
        listed = ",".join(map(str, [out, *further]))
        return f"probers-compare triggers=[never,probing] probers=[{listed}]"
    if command is not None:
        return command
    load = f"ProbeBank.from_pretrained({str(out)!r})"
    if bank.head.tokens:
        needs = f'Needs.of({bank.layers}, site="{bank.spec.site}", pool="{bank.spec.pool}")'
        return f"{load}.score_spans takes the states of a CausalLM asked for {needs}"
    return f"{load}.watch(model) scores what a model writes"


def _data(given: Any) -> list[Path]:
    """The stores to read: those given, or the newest complete one."""
    if given is None:
        found = newest_store()
        if found is None:
            raise UserError(
                "there is no complete feature store under runs/: probers-datagen makes one, or pass "
                "data=FOLDER",
                code="no-artifact",
            )
        return [found]
    paths = [Path(str(path)) for path in ([given] if isinstance(given, str) else given)]
    if not paths:
        raise UserError("data=[] names no store: give a folder, or several", code="missing-value")
    return paths


def _sites(cfg: DictConfig) -> list[str] | None:
    """The sites asked for; None if left open."""
    given = plain_value(cfg.site)
    return [given] if isinstance(given, str) else given


def _default_out(paths: Sequence[Path], cfg: DictConfig) -> Path:
    layer = plain_value(cfg.layer)
    listed = [layer] if isinstance(layer, int) else layer
    what = layer if isinstance(layer, str) else "layer" + "-".join(map(str, listed))
    name = "-".join(["+".join(path.name for path in paths), *filter(None, [cfg.pool]), *(_sites(cfg) or ())])
    # Beside the folder of a single run, not in it: either can be there first, or be removed.
    return Path("runs/train", ",".join([f"{name}-{what}", *filter(None, [cfg.suffix])]))


def _identity(cfg: DictConfig, paths: Sequence[Path], tasks: Sequence[Task]) -> dict[str, Any]:
    """The configuration with the inputs named by content.

    The batch size is among the inputs because it changes the heads; the run folder ignores ``batch_size``,
    which elsewhere affects speed only.
    """
    inputs = {
        "stores": [fingerprint(path) for path in paths],
        "layers": sorted({task.layer for task in tasks if task.is_probe}),
        "examples_per_step": cfg.batch_size,
    }
    return record_of(cfg) | {"data": list(map(str, paths)), "inputs": inputs}
