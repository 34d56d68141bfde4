"""What a run of ``probers-datagen`` reads before the model is loaded, and the builder it then makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from probers.parts import build, load_passages, plain
from probers.questions import open_questions
from probers.types import Needs, UserError

if TYPE_CHECKING:
    from probers.lm import CausalLM

    from .labels.base import LabelBuilder
    from .sources import ArticleSource

#: Makes the builder from the model, what is to be read of it, and the run's folder.
Make = Callable[["CausalLM", Needs, Path], "LabelBuilder"]

#: The value of ``matcher.vectors`` that trains them on the run's articles.
OWN = "own"


def prepare(cfg: DictConfig) -> Make:
    """Check the request and read its files, up to the first piece of work.

    Raises:
        UserError: whatever is wrong with it.
    """
    makers = {"cot": _cot, "wiki": _wiki}
    if cfg.source not in makers:
        raise UserError(f"source={cfg.source} is unknown: choose one of {', '.join(makers)}")
    return makers[cfg.source](cfg)


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


def _check_pool(cfg: DictConfig, pools: tuple[str, ...]) -> None:
    if cfg.pool not in pools:
        raise UserError(f"pool={cfg.pool} is not there for source={cfg.source}: choose {', '.join(pools)}")


def _cot(cfg: DictConfig) -> Make:
    from .labels.labelling import parse_label

    _check_pool(cfg, ("mean", "last", "mind"))
    parse_label(cfg.label, cfg.acc)
    asked = open_questions(build(cfg.questions), limit=cfg.limit, seed=cfg.seed, on_bad_line=cfg.on_bad_line)
    for line in asked.lines():
        print(line)
    corpus = load_passages(cfg)
    prompt = build(cfg.prompt)

    def make(lm: CausalLM, needs: Needs, folder: Path) -> LabelBuilder:
        from .labels.cot import CotBuilder

        return CotBuilder(
            lm,
            asked,
            retriever=build(cfg.retriever, corpus),
            prompt=prompt,
            needs=needs,
            label=cfg.label,
            acc=cfg.acc,
            k=cfg.k,
            max_new_tokens=cfg.max_new_tokens,
        )

    return make


def _wiki(cfg: DictConfig) -> Make:
    from .cuts import CutPlan
    from .entities import Recogniser
    from .labels.wiki import NEGATIVES
    from .matching import EntityMatcher

    _check_pool(cfg, ("mean", "last", "predicting", "tokens", "mind"))
    if cfg.negatives not in NEGATIVES:
        raise UserError(f"negatives={cfg.negatives} is unknown: choose {' or '.join(NEGATIVES)}")
    options = plain(cfg.matcher)
    own = options["vectors"] == OWN
    matcher = EntityMatcher(**(options | {"vectors": ""} if own else options))
    prompt = build(cfg.prompt)
    recognise = Recogniser(cfg.recogniser, fine=True)
    plan = CutPlan(_articles(cfg), recognise, cfg.per_article, cfg.within, cfg.seed)
    plan.peek()

    def make(lm: CausalLM, needs: Needs, folder: Path) -> LabelBuilder:
        from .labels.wiki import WikiBuilder

        return WikiBuilder(
            lm,
            plan,
            needs,
            replace(matcher, vectors=_own_vectors(cfg, folder)) if own else matcher,
            recognise,
            prompt,
            negatives=cfg.negatives,
            max_new_tokens=cfg.max_new_tokens,
        )

    return make


def _articles(cfg: DictConfig) -> ArticleSource:
    from .sources import open_articles

    return open_articles(
        cfg.articles,
        limit=cfg.limit,
        seed=cfg.seed,
        on_bad_line=cfg.on_bad_line,
        min_sentences=cfg.min_sentences,
        max_chars=cfg.max_chars,
        wikipedia=plain(cfg.wikipedia),
    )


def _own_vectors(cfg: DictConfig, folder: Path) -> str:
    """The file with Word2Vec vectors of the run's articles, trained unless it is there."""
    from .cuts import natural
    from .matching.training import train_vectors

    path = folder / "vectors.bin"
    if not path.exists():
        print(f"training Word2Vec on the articles -> {path}", flush=True)
        train_vectors(map(natural, _articles(cfg)), path, seed=cfg.seed)
    return str(path)
