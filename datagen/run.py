"""The command ``probers-datagen``: from questions or articles to a feature store."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from probers.data import load_corpus, load_questions
from probers.parts import build, load_model, plain
from probers.parts import inputs as fingerprints
from probers.runs import RunFolder
from probers.types import Article, Needs, UserError

if TYPE_CHECKING:
    from probers.lm import CausalLM

    from .labels.base import LabelBuilder

SOURCES = ("cot", "wiki")


def run(cfg: DictConfig) -> Path:
    """Generate, label and store; returns the folder of the finished store.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    if cfg.source not in SOURCES:
        raise UserError(f"source={cfg.source} is unknown: choose one of {', '.join(SOURCES)}")
    pools = ("mean", "last", "mind") if cfg.source == "cot" else ("mean", "last")
    if cfg.pool not in pools:
        raise UserError(f"pool={cfg.pool} is not there for source={cfg.source}: choose {' or '.join(pools)}")
    inputs = _load_inputs(cfg)
    config = plain(cfg) | {"inputs": fingerprints(cfg.questions, cfg.articles, cfg.corpus)}
    folder = RunFolder(Path(cfg.out), "datagen", config)
    if not folder.begin(overwrite=cfg.overwrite):
        return folder.path

    from tqdm import tqdm

    from probers.capture import check_needs
    from probers.features import FeatureSpec
    from probers.store import FeatureStore

    lm = load_model(cfg)
    layers = parse_layers(cfg.layers, lm.num_layers, site=cfg.site, pool=cfg.pool)
    needs = Needs(layers, cfg.site, cfg.pool, attention=True)
    check_needs(needs, lm.model)
    width = lm.width * (2 if cfg.pool == "mind" else 1)
    builder = _builder(cfg, lm, needs, inputs)
    spec = FeatureSpec(lm.spec, layers, width, site=cfg.site, pool=cfg.pool, prompt=builder.prompt_id)
    size = int(cfg.shard_size)
    store = FeatureStore.create(folder.path, spec, config=config, shards=math.ceil(len(builder.units) / size))
    print(f"{len(builder.units)} {builder.unit_name}s -> {folder.path} (model={cfg.model.name})", flush=True)
    missing = store.missing
    done = len(builder.units) - sum(len(builder.units[i * size : (i + 1) * size]) for i in missing)
    labelled = right = 0
    with tqdm(total=len(builder.units), initial=done, unit=builder.unit_name, desc=cfg.source) as bar:
        for index in missing:
            units = builder.units[index * size : (index + 1) * size]
            examples = builder.build(units)
            store.write_shard(index, examples.rows, _stack(examples.states, len(layers), width))
            labelled += len(examples.rows)
            right += sum(row["correct"] for row in examples.rows)
            bar.set_postfix_str(f"{right / max(1, labelled):.2f} right")
            bar.update(len(units))
    figures, lines = builder.summarise(store.table())
    store.finish(figures)
    folder.finish({"model": cfg.model.name, "source": cfg.source, **figures})
    for line in lines:
        print(line)
    print(f"wrote {len(store)} examples x {len(layers)} layers to {folder.path}")
    print(f"next: probers-train layer=all data={folder.path}")
    return folder.path


def parse_layers(value: Any, depth: int, *, site: str = "resid_post", pool: str = "mean") -> tuple[int, ...]:
    """The layers asked for: "all" (0 to depth), "stride", one number or a list.

    "stride" is every second layer after the first third of the depth (Probing-RAG's
    choice), with the embedding output as the control. Sites inside a block have no layer 0.
    The one vector of pool "mind" belongs to the last layer.

    Raises:
        UserError: a layer the model does not have; says how many there are.
    """
    if pool == "mind":
        if value != "all":
            raise UserError(f"pool=mind makes one vector of all layers: leave layers=all, not {value}")
        return (depth,)
    control = (0,) if site == "resid_post" else ()
    if value == "all":
        return (*control, *range(1, depth + 1))
    if value == "stride":
        return (*control, *range(depth // 3 + 1, depth + 1, 2))
    wanted = [value] if isinstance(value, int) else value
    if not OmegaConf.is_list(wanted) and not isinstance(wanted, list):
        raise UserError(f"layers={value} is not understood: give all, stride, a number or a list like [4,8]")
    bad = [k for k in wanted if not isinstance(k, int) or not 0 <= k <= depth]
    if bad or not wanted:
        raise UserError(
            f"layers={list(wanted)} is out of range: the model has {depth} layers, numbered 1 to {depth} "
            "(0 is the embedding output)"
        )
    return tuple(sorted(set(wanted)))


def _load_inputs(cfg: DictConfig) -> dict[str, Any]:
    """Everything read from files, before the model is loaded."""
    common = {"on_bad_line": cfg.on_bad_line}
    if cfg.source == "wiki":
        from .matching import EntityMatcher

        matcher = EntityMatcher(**plain(cfg.matcher))
        return {"articles": _articles(cfg), "matcher": matcher}
    from .labels.labelling import parse_label

    parse_label(cfg.label)
    return {
        "questions": load_questions(cfg.questions, limit=cfg.limit, seed=cfg.seed, **common),
        "corpus": load_corpus(cfg.corpus, **common),
    }


def _articles(cfg: DictConfig) -> list[Article]:
    """All articles asked for, in natural text; what could not be used is listed with its reason."""
    from .detokenise import detokenise_sentences
    from .sources import open_articles

    source = open_articles(
        cfg.articles,
        limit=cfg.limit,
        seed=cfg.seed,
        on_bad_line=cfg.on_bad_line,
        min_sentences=cfg.min_sentences,
        max_chars=cfg.max_chars,
        wikipedia=plain(cfg.wikipedia),
    )
    found = [replace(a, sentences=tuple(detokenise_sentences(a.sentences))) for a in source.articles]
    for line in source.problems.lines():
        print(line)
    return found


def _builder(cfg: DictConfig, lm: CausalLM, needs: Needs, inputs: dict[str, Any]) -> LabelBuilder:
    if cfg.source == "wiki":
        from .labels.wiki import WikiBuilder, plan_cuts

        cuts = plan_cuts(inputs["articles"], per_article=cfg.per_article, seed=cfg.seed)
        return WikiBuilder(lm, cuts, needs, inputs["matcher"], max_new_tokens=cfg.max_new_tokens)
    from .labels.cot import CotBuilder

    return CotBuilder(
        lm,
        inputs["questions"],
        retriever=build(cfg.retriever, inputs["corpus"]),
        prompt=build(cfg.prompt),
        needs=needs,
        label=cfg.label,
        k=cfg.k,
        max_new_tokens=cfg.max_new_tokens,
    )


def _stack(states: list[Any], layers: int, width: int) -> Any:
    import numpy as np

    return np.stack(states) if states else np.zeros((0, layers, width), dtype=np.float32)
