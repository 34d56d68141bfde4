"""The command ``probers-datagen``: from questions or articles to a feature store."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from probers.parts import build, load_model, plain
from probers.parts import inputs as fingerprints
from probers.runs import RunFolder
from probers.types import Needs, RunError, UserError

from .request import parse_layers, prepare

if TYPE_CHECKING:
    from probers.store import FeatureStore

    from .labels.base import LabelBuilder


def run(cfg: DictConfig) -> Path:
    """Generate, label, audit and store; returns the folder of the finished store.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    if cfg.shard_size < 1:
        raise UserError(f"shard_size={cfg.shard_size} must be 1 or more")
    make = prepare(cfg)
    files = (*build(cfg.questions).files, cfg.articles, cfg.corpus, cfg.matcher.aliases, cfg.matcher.vectors)
    config = plain(cfg) | {"inputs": fingerprints(*filter(None, files))}
    folder = RunFolder(Path(cfg.out), "datagen", config)
    if not folder.begin(overwrite=cfg.overwrite):
        return folder.path

    from probers.capture import check_needs
    from probers.features import FeatureSpec
    from probers.store import FeatureStore

    from .audit import audit, draw, draw_undecided, write_sample

    lm = load_model(cfg)
    layers = parse_layers(cfg.layers, lm.num_layers, site=cfg.site, pool=cfg.pool)
    needs = Needs(layers, cfg.site, cfg.pool, attention=True)
    check_needs(needs, lm.model)
    builder = make(lm, needs, folder.path)
    spec = FeatureSpec(
        lm.spec,
        layers,
        lm.width * (2 if needs.of_mind else 1),
        site=cfg.site,
        pool=cfg.pool,
        position=builder.position,
        prompt=builder.prompt_id,
    )
    store = FeatureStore.create(folder.path, spec, config=config)
    print(f"{cfg.source} -> {folder.path} (model={cfg.model.name}, prompt={cfg.prompt.name})", flush=True)
    fill(store, builder, shard_size=cfg.shard_size)
    figures, lines = _conclude(store, builder, cfg)
    found = audit(store, seed=cfg.seed)
    store.finish(figures | {"audit": found.figures})
    page = folder.path / "sample.html"
    write_sample(
        draw(store, seed=cfg.seed),
        page,
        about={"Model": str(lm.spec), "Source": cfg.source, "Prompt": cfg.prompt.name, "Labels": lines[0]},
        undecided=draw_undecided(store.left_out(), seed=cfg.seed),
    )
    folder.finish({"model": cfg.model.name, "source": cfg.source, **figures})
    for line in [*lines, *found.lines]:
        print(line)
    print(f"cases to look at: {page}")
    print(f"wrote {len(store)} examples x {len(layers)} layers to {folder.path}")
    if found.figures["wrong"] in (0, 1):
        print("all labels are the same, and a head needs both: try a higher limit or another model")
    else:
        head = " head=radio" if cfg.pool == "tokens" else ""
        print(f"next: probers-train layer=all{head} data={folder.path}")
    return folder.path


def fill(store: FeatureStore, builder: LabelBuilder, *, shard_size: int) -> None:
    """Do the work that no shard covers yet, ``shard_size`` pieces at a time; one of them is held at once."""
    import numpy as np

    from .progress import LabelBar

    done = store.units
    empty = np.zeros((0, len(store.spec.layers), store.spec.width), dtype=np.float32)
    waiting = (unit for unit in builder.units() if builder.unit_id(unit) not in done)
    with LabelBar(builder) as bar:
        while units := list(islice(waiting, shard_size)):
            examples = builder.build(units)
            store.write_shard(
                store.next_shard,
                examples.rows,
                np.stack(examples.states) if examples.states else empty,
                units=[builder.unit_id(unit) for unit in units],
                left_out=examples.left_out,
            )
            bar.done(len(units), examples)


def _conclude(
    store: FeatureStore, builder: LabelBuilder, cfg: DictConfig
) -> tuple[dict[str, Any], list[str]]:
    """Balance if asked for, and what there is to say about the labels."""
    from .balance import balance

    try:
        len(store)
    except RunError as error:
        reasons = sorted({found["reason"] for found in store.left_out()})
        raise RunError(f"{error}; left out for: {', '.join(reasons) or 'no reason'}") from error
    notes = balance(store, by=builder.balance_by, seed=cfg.seed) if cfg.balance else []
    figures, lines = builder.summarise(store)
    return figures, [*lines, *notes]
