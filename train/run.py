"""The command ``probers-train``: from a feature store to a calibrated, evaluated prober."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from probers.runs import RunFolder, newest
from probers.types import UserError


def run(cfg: DictConfig) -> Path:
    """Train, calibrate, evaluate and write a prober; returns its folder.

    Raises:
        UserError: before anything is trained, for whatever is wrong with the request.
    """
    from probers.store import FeatureStore

    path = _data(cfg.data)
    print(f"reading {path}", flush=True)
    store = FeatureStore.open(path)

    from .calibrate import ThresholdRule
    from .data import load_examples, parse_layers
    from .fit import FitSettings

    layers = parse_layers(_plain(cfg.layer), store.spec)
    settings = FitSettings(**{f.name: cfg[f.name] for f in fields(FitSettings)})
    rule = ThresholdRule(cfg.threshold, cfg.budget)
    if cfg.combine not in ("logits", "probabilities"):
        raise UserError(f"combine={cfg.combine} is unknown: choose logits or probabilities")
    if cfg.resamples < 100:
        raise UserError(f"resamples={cfg.resamples} is too few for a 95% interval: give 100 or more")
    examples = load_examples(store)
    out = Path(cfg.out or _default_out(path, cfg.layer, layers))
    folder = RunFolder(out, "train", _identity(cfg, path, layers))
    if not folder.begin(overwrite=cfg.overwrite, what="prober"):
        return out

    from hydra.utils import instantiate

    from .card import write_card
    from .data import StoreStates
    from .evaluate import Evaluator
    from .fit import fit
    from .plots import write_plots
    from .prober import assemble, plan_tasks
    from .summary import summarise, table

    tasks, notes = plan_tasks(layers, store.spec, examples)
    read = sorted({task.layer for task in tasks})
    states = StoreStates(store, read)
    make_head = instantiate(cfg.head, _partial_=True)
    fitted = fit(make_head, tasks, states, read, examples, settings, out=out)
    trained = assemble(
        fitted, states, read, store.spec, examples,
        combine=cfg.combine, rule=rule, with_entropy=cfg.with_entropy, seed=cfg.seed,
    )  # fmt: skip
    trained.notes[:0] = notes
    evaluator = Evaluator(examples, rule, resamples=cfg.resamples, seed=cfg.seed)
    figures = summarise(trained, fitted, examples, evaluator)
    source = str(store.config.get("source", ""))
    card = write_card(trained.bank, figures, data=path, source=source, out=out)
    replace(trained.bank, metrics=figures, card=card).save_pretrained(out)
    curves = [*trained.ensemble, *(c for c in trained.controls if c.name == "mean entropy")]
    write_plots(out / "plots", figures, [evaluator.calibrated(d) for d in curves], examples)
    folder.finish(_finish(store.spec.model.id, figures))
    print(table(figures))
    size = f"{len(layers)} layer{'s' * (len(layers) > 1)}"
    print(f"wrote a prober of {size} to {out} (trained in {fitted.seconds:.0f} s)")
    if store.spec.position == "generated":
        print(f'next: probers-rag question="..." trigger=probing prober={out}')
    else:
        print(f"next: ProbeBank.from_pretrained({str(out)!r}).watch(model) scores what a model writes")
    return out


def _data(given: str | None) -> Path:
    """The store to read: the one given, or the newest complete one."""
    path = Path(given) if given is not None else newest("store")
    if path is None:
        raise UserError(
            "there is no complete feature store under runs/: probers-datagen makes one, or pass data=FOLDER"
        )
    return path


def _default_out(data: Path, asked: Any, layers: tuple[int, ...]) -> Path:
    what = "all" if asked == "all" else "layer" + "-".join(map(str, layers))
    return Path("runs/train") / f"{data.name}-{what}"


def _identity(cfg: DictConfig, data: Path, layers: tuple[int, ...]) -> dict[str, Any]:
    """The configuration with the inputs named by content.

    The batch size is among the inputs because it changes what is learned, whereas the
    run folder takes ``batch_size`` for a matter of speed, as it is everywhere else.
    """
    manifest = hashlib.sha256((data / "manifest.json").read_bytes()).hexdigest()[:16]
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    inputs = {"store": manifest, "layers": list(layers), "examples_per_step": cfg.batch_size}
    return {**{str(k): v for k, v in resolved.items()}, "data": str(data), "inputs": inputs}


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _finish(model: str, figures: dict[str, Any]) -> dict[str, Any]:
    """The few figures that lists of runs show."""
    return {"model": model, "best_layer": figures["best_layer"], "auroc": figures["ensemble"]["auroc"]}
