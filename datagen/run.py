"""The command ``probers-datagen``: from questions or articles to a feature store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probers.commands.merge import PartRuns, part_of
from probers.commands.parts import inputs as fingerprints
from probers.commands.parts import (
    load_matcher,
    load_model,
    load_passages,
    plain,
    prompt_files,
    question_source,
)
from probers.commands.runs import RunFolder, identity
from probers.data.questions import open_questions
from probers.files import write_text
from probers.options import shown
from probers.store.files import read_manifest
from probers.store.spec import parse_layers
from probers.types import Feature, Needs, RunError, UserError

if TYPE_CHECKING:
    from probers.data.articles import ArticleSource
    from probers.engine.model import CausalLM
    from probers.store.spec import FeatureSpec
    from probers.store.store import FeatureStore

    from .labels.base import LabelBuilder, Quotas
    from .settings import Datagen


#: Makes the builder from the model (None: the examples are there), what is to be read of it, and the run's
#: folder.
Make = Callable[["CausalLM | None", Needs, Path], "LabelBuilder"]

#: The ways to pool that each source has.
POOLS = {
    "cot": ("mean", "last", "mind"),
    "wiki": ("mean", "last", "predicting", "tokens", "mind"),
}
#: The values of ``matcher.vectors`` that train them on the run's articles: always, or where it is worth it.
OWN, AUTO = "own", "auto"


#: Vectors trained on the run's articles, and their checksum.
VECTORS = ("vectors.bin", "vectors.json")


def features_to_read(settings: Datagen, depth: int) -> list[Feature]:
    """A feature for each pool and site asked for; MIND's vector, which has no site, once.

    What is one vector of all layers leaves ``layers`` to the others.

    Raises:
        UserError: as :func:`layers_to_read`.
    """
    pools, sites = _listed(settings.pool), _listed(settings.site)
    found = []
    for pool, site in product(pools, sites):
        layers = settings.layers
        if pool == "mind" and len(pools) * len(sites) > 1:
            if site != "resid_post" and "resid_post" in sites:
                continue
            layers = "all"
        if site == "lookback" and len(sites) > 1:
            layers = "all"
        read = layers_to_read(layers, depth, site=site, pool=pool)
        found.append(Feature(read, site, pool))
    return found


def _listed(value: Any) -> list[Any]:
    """One name, or a list of names."""
    plainly = value
    return [plainly] if isinstance(plainly, str) else plainly


def _check_pools(settings: Datagen) -> None:
    """Refuse pools that a source lacks, and what cannot be in one store."""
    pools = _listed(settings.pool)
    for pool in pools:
        if pool not in POOLS[settings.source]:
            there = ", ".join(POOLS[settings.source])
            raise UserError(f"pool={pool} is not there for source={settings.source}: choose {there}")
    for key, names in (("pool", pools), ("site", _listed(settings.site))):
        if len(set(names)) < len(names):
            raise UserError(f"{key}=[{','.join(names)}] names one twice: give each once")
    if "tokens" in pools and len(pools) > 1:
        raise UserError(
            f"pool=[{','.join(pools)}]: tokens makes a row of each token, the others one of each span, and "
            "a store has rows of one kind: make two stores"
        )


def layers_to_read(
    value: Any, depth: int, *, site: str = "resid_post", pool: str = "mean"
) -> tuple[int, ...]:
    """The layers asked for: "all" (0 to depth), "stride", one number or a list.

    "stride" is every second layer after the first third of the depth (Probing-RAG's
    choice), with the embedding output as the control. Sites inside a block have no layer 0.
    The one vector of pool "mind" or site "lookback" belongs to the last layer.

    Raises:
        UserError: a layer the model does not have; says how many there are.
    """
    joint = "pool=mind" if pool == "mind" else "site=lookback" if site == "lookback" else ""
    if joint:
        if value != "all":
            raise UserError(f"{joint} makes one vector of all layers: leave layers=all, not {value}")
        return (depth,)
    control = (0,) if site == "resid_post" else ()
    stride = (*control, *range(depth // 3 + 1, depth + 1, 2))
    named = {"all": (*control, *range(1, depth + 1)), "stride": stride}
    wanted = parse_layers(value, named, "layers")
    if not wanted or wanted[0] < 0 or wanted[-1] > depth:
        raise UserError(
            f"layers={list(wanted)} is out of range: the model has {depth} layers, numbered 1 to {depth} "
            "(0 is the embedding output)"
        )
    return wanted


def _cot(settings: Datagen) -> Make:
    """Check the request and read its files, up to the first piece of work."""
    from .labels.cot import CotBuilder, parse_label

    matcher = load_matcher(settings) if settings.label == "match" else None
    parse_label(settings.label, settings.acc, matcher)
    if matcher is not None:
        print(matcher.told())
    limit = settings.limit
    asked = open_questions(
        question_source(settings), limit=limit, seed=settings.seed, on_bad_line=settings.on_bad_line
    )
    for line in asked.lines():
        print(line)
    corpus = load_passages(settings)
    prompt = settings.prompt.make()

    def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
        return CotBuilder(
            lm,
            asked,
            retriever=None if lm is None else settings.retriever.make(corpus),
            prompt=prompt,
            needs=needs,
            label=settings.label,
            acc=settings.acc,
            matcher=matcher,
            k=settings.k,
            max_new_tokens=settings.max_new_tokens,
            shuffle=settings.seed if settings.balance_to else None,
        )

    return make


def _wiki(settings: Datagen) -> Make:
    """As :func:`_cot`; the first cut is made."""
    from probers.data.articles import open_articles
    from probers.data.articles.cuts import CutPlan, natural
    from probers.entities import Recogniser
    from probers.equivalence import EntityMatcher
    from probers.equivalence.vectors import FEW, TooFewError, train_vectors, trained

    from .labels.wiki import WikiBuilder

    if isinstance(settings.limit, Mapping):
        raise UserError(
            f"limit={shown(settings.limit)}: articles are drawn before their split is known, so give "
            "one number with source=wiki; balance_to says how many examples a split is to have"
        )

    def articles() -> ArticleSource:
        return open_articles(
            settings.articles,
            limit=settings.limit,
            seed=settings.seed,
            on_bad_line=settings.on_bad_line,
            min_sentences=settings.min_sentences,
            max_chars=settings.max_chars,
            wikipedia=plain(settings.wikipedia),
        )

    options = dict(settings.matcher.options)
    auto = options["vectors"] == AUTO
    own = options["vectors"] == OWN or (auto and settings.articles != "testbed")
    if auto:
        options["vectors"] = ""
    matcher = EntityMatcher(**(options | {"vectors": ""} if own else options))
    prompt = settings.prompt.make()
    recognise = Recogniser(settings.recogniser, fine=True)
    plan = CutPlan(articles(), recognise, settings.per_article, settings.within, settings.seed)
    plan.peek()

    def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
        compare, vectors = matcher, folder / VECTORS[0]
        if own:
            if not trained(vectors):
                print(f"reading the articles for Word2Vec -> {vectors}", flush=True)
            try:
                train_vectors(map(natural, articles()), vectors, seed=settings.seed, least=FEW if auto else 0)
                compare = replace(matcher, vectors=str(vectors))
            except TooFewError as error:
                if not auto:
                    raise
                print(f"names are compared without vectors: {error}", flush=True)
        print(compare.told(), flush=True)
        return WikiBuilder(
            lm,
            plan,
            needs,
            compare,
            recognise,
            prompt,
            negatives=settings.negatives,
            doubtful=settings.doubtful,
            max_new_tokens=settings.max_new_tokens,
            context=settings.context,
        )

    return make


def run(settings: Datagen, parts: PartRuns | None = None) -> Path:
    """Generate, label, audit and store; returns the folder of the finished store.

    Args:
        settings: the request.
        parts: the whole run is made of these, which have generated and labelled everything.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    _check_pools(settings)
    part = part_of(settings)
    quotas = _quotas(settings)
    make = {"cot": _cot, "wiki": _wiki}[settings.source](settings)
    named = (
        settings.articles,
        settings.corpus,
        settings.matcher.options["aliases"],
        settings.matcher.options["vectors"],
    )
    files = (*settings.questions.make().files, *prompt_files(settings), *filter(None, named))
    config = settings.record | {"inputs": fingerprints(*files)}
    if (settings.source == "wiki" or settings.label == "match") and settings.matcher.options[
        "wordnet"
    ] == "auto":
        from probers.equivalence import wordnet_available

        # Labels made with and without it are not to be mixed in one store.
        config["wordnet_found"] = wordnet_available()
    out = Path(settings.out)
    folder = RunFolder(out if part is None else part.folder(out), "datagen", config)
    made = None
    if parts is not None:
        from .labelled_parts import LabelledParts

        made = LabelledParts(parts)
    if not (folder.begin() if parts is None else parts.begin(folder)):
        return folder.path

    from probers.store.store import FeatureStore

    from .audit import audit, draw, draw_undecided, sample_html
    from .filling import fill

    if made is None:
        builder, features = _with_model(settings, folder, make)
    else:
        made.take_vectors(VECTORS, folder.path)
        features = made.features
        builder = make(None, Needs(tuple(spec.feature for spec in features)), folder.path)
    store = FeatureStore.create(folder.path, features, config=identity(config))
    print(
        f"{settings.source} -> {folder.path} (model={settings.model.name}, prompt={settings.prompt.name})",
        flush=True,
    )
    # Only the whole knows what is enough.
    fill(
        store,
        builder,
        shard_size=settings.shard_size,
        quotas=quotas if part is None else None,
        part=part,
        made=made,
    )
    if part is not None:
        return _end_part(store, folder, settings)
    figures, lines = _conclude(store, builder, settings, quotas)
    found = audit(store, seed=settings.seed)
    store.finish(figures | {"audit": found.figures})
    page = folder.path / "sample.html"
    about = {
        "Model": str(store.spec.model),
        "Source": settings.source,
        "Prompt": settings.prompt.name,
        "Labels": lines[0],
    }
    undecided = draw_undecided(store.left_out(), seed=settings.seed)
    write_text(page, sample_html(draw(store, seed=settings.seed), about=about, undecided=undecided))
    folder.finish({"model": settings.model.name, "source": settings.source, **figures})
    for line in [*lines, *found.lines]:
        print(line)
    print(f"cases to look at: {page}")
    if len(features) > 1:
        listed = ", ".join(f"pool={s.pool} site={s.site} ({len(s.layers)} layers)" for s in store.features)
        print(f"wrote {len(store)} examples to {folder.path}, each as {listed}")
    else:
        print(f"wrote {len(store)} examples x {len(store.spec.layers)} layers to {folder.path}")
    if found.figures["wrong"] in (0, 1):
        print("all labels are the same, and a head needs both: try a higher limit or another model")
    else:
        head = " head=radio" if store.spec.pool == "tokens" else ""
        pool = f" pool={store.spec.pool}" if len({s.pool for s in store.features}) > 1 else ""
        print(f"next: probers-train layer=all{head}{pool} data={folder.path}")
    return folder.path


def _with_model(
    settings: Datagen, folder: RunFolder, make: Make
) -> tuple[LabelBuilder, Sequence[FeatureSpec]]:
    """The builder that makes the examples, and what is read of the model for them."""
    from probers.capture.hidden_states import vector_width
    from probers.store.spec import FeatureSpec

    lm = load_model(settings, folder, engine=settings.engine)
    features = features_to_read(settings, lm.num_layers)
    needs = Needs(tuple(features))
    lm.check(needs)
    builder = make(lm, needs, folder.path)
    specs = [
        FeatureSpec(
            lm.spec,
            feature.layers,
            vector_width(feature, lm.model),
            site=feature.site,
            pool=feature.pool,
            position=builder.position,
            dtype=settings.dtype,
            prompt=builder.prompt.fingerprint,
        )
        for feature in features
    ]
    return builder, specs


def _end_part(store: FeatureStore, folder: RunFolder, settings: Datagen) -> Path:
    """Finish the store of a part, which is balanced, audited and told of as a whole."""
    if not store.next_shard:  # nothing is in it
        widths = [(0, len(spec.layers), spec.width) for spec in store.features]
        store.write_shard(0, [], *(np.zeros(shape, np.float32) for shape in widths))
    store.finish({"part": settings.part}, empty=True)
    folder.finish({"model": settings.model.name, "source": settings.source, "part": settings.part})
    rows = sum(read_manifest(store.path)["rows"])
    print(f"wrote {rows} examples of part {settings.part} to {folder.path}")
    print(f"when every part is there: probers-merge {folder.path.parent}/*")
    return folder.path


def _quotas(settings: Datagen) -> Quotas:
    """How many examples each split is to have."""
    from .labels.base import Quotas

    kind: type[LabelBuilder]
    if settings.source == "cot":
        from .labels.cot import CotBuilder as kind
    else:
        from .labels.wiki import WikiBuilder as kind
    return Quotas(settings.balance_to or {}, by=kind.balance_by, parts=kind.parts)


def _conclude(
    store: FeatureStore, builder: LabelBuilder, settings: Datagen, quotas: Quotas
) -> tuple[dict[str, Any], list[str]]:
    """Balance if asked for, and what there is to say about the labels."""
    from .labels.base import balance

    try:
        len(store)
    except RunError as error:
        reasons = sorted({found["reason"] for found in store.left_out()})
        raise RunError(f"{error}; left out for: {', '.join(reasons) or 'no reason'}") from error
    notes = []
    if settings.balance or quotas:
        notes = balance(store, by=builder.balance_by, seed=settings.seed, quotas=quotas)
    figures, lines = builder.summarise(store)
    return figures, [*lines, *notes]
