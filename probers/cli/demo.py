"""The command ``probers-demo``: the other commands in turn, on the testbed or on articles."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import read_json, write_text
from ..options import Count, Name
from .command_lines import command_line, for_shell
from .main import run as run_command
from .runs import RunFolder
from .settings import BatchSize, Run, Screen

#: Title, command and overrides.
Step = tuple[str, str, list[str]]

log = logging.getLogger(__name__)

# The prober is the mean of the three best layers on validation questions: AUROC 0.79, the sum over all 0.77.
#: RaDIO's head regularised for few examples: AUROC 0.85 against 0.83 on validation articles.
_RADIO = ["head=radio", "head.standardise=true", "head.dropout=0.3", "label_smoothing=0.1"]
#: Labelled questions, labelled articles and compared questions: on the testbed, on articles, in full.
_TESTBED, _QUICK, _FULL = (1600, 600, 200), (150, 200, 40), (1000, 2000, 300)
#: Triggers of the comparison on articles: without a prober, or with one of answers or of entities.
_TRIGGERS = (
    "never,always,always_answer,random,oracle,flare,entropy,entropy_sentence,rind_released,before_entity,"
    "entity_signal,entity_probability,entity_margin,probing,probing_entropy"
)


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """The language model."""

    name: Name = "testbed"
    """testbed, smollm2, or the folder of a model trained by tools/testbed; model=NAME for short"""


@dataclass(frozen=True, kw_only=True)
class Demo(Run):
    """Run the whole job on the embedded testbed.

    Both kinds of labels with cached hidden states, heads on all layers and on single tokens, a classifier of
    questions, every trigger on the same questions, and a report of who was right. With articles=FILE
    model=smollm2 it does the same on a real model and real text.
    """

    screen = Screen(
        "probers-demo", "5 to 8 minutes",
        "out model.name articles full judged cot wiki compare batch_size seed overwrite",
    )  # fmt: skip

    out: Name = "runs/demo"
    """folder for everything; report.html and results.json are directly in it"""
    model: DemoModel = field(default_factory=DemoModel)
    articles: Name = "testbed"
    """testbed, or FILE.jsonl[.gz] of real articles (title, and text or sentences), which are labelled,
    completed and searched; give model= too"""
    cot: Count | None = None
    """questions for the cot labels, each with and without passages; null is 1600, with articles 150, with
    articles and full=true 1000. With judged=true: long answers, null is 700, with full=true 2000"""
    wiki: Count | None = None
    """articles for the wiki labels; null is 600, with articles 200 (judged=true: 300), with articles and
    full=true 2000"""
    compare: Count | None = None
    """test questions that every trigger answers; null is 200, with articles 40, with articles and
    full=true 300"""
    full: bool = False
    """true also draws the learning curves of the heads and the curves of triggers that fire within an
    answer (sweep=4 of probers-compare), which takes as long again; with articles it also takes more of
    them"""
    judged: bool = False
    """true instead has the model write long answers about the articles, judges their entities by these, and
    compares heads on them with heads on cut articles, each tested on both; the tables are in report.md"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass; auto halves when memory runs out"""


def run(settings: Demo) -> Path:
    """Make labels of both kinds, train on them and compare triggers; returns the report's path.

    Each step is a run of its own below ``out``, so that an interrupted demo resumes.
    """
    out = Path(settings.out)
    folder = RunFolder(out, "demo", settings.record)
    folder.claim()
    started = time.monotonic()
    if settings.judged:
        count, steps = 6, on_judged(settings)
    elif settings.articles == "testbed":
        count, steps = 7, on_testbed(settings)
    else:
        count, steps = 6 + 2 * settings.full, on_articles(settings)
    for number, (title, command, overrides) in enumerate(steps, 1):
        log.info("\n[%d/%d] %s\n$ %s", number, count, title, command_line(command, *overrides))
        # Batches depend on the size of shards, and the figures of the documentation on batches.
        run_command(command, [*overrides, *(["shard_size=256"] if command == "datagen" else [])])
    if settings.judged:
        files = ["report.md"]
        following = f"open {for_shell(f'{out}/judged/sample.html')} and read the verdicts"
        write_text(out / "report.md", judged_report(out))
    else:
        files = ["report.html", "results.json"]
        asking = command_line("rag", "trigger=probing", "question=..", prober=f"{out}/prober")
        following = f"open {for_shell(f'{out}/report.html')}, or {asking}"
        for name in files:
            shutil.copyfile(out / "compare" / name, out / name)
    folder.finish({"model": settings.model.name})
    written, minutes = " and ".join(f"{out}/{name}" for name in files), (time.monotonic() - started) / 60
    log.info("\nwrote %s in %.1f minutes", written, minutes)
    log.info("next: %s", following)
    return out / files[0]


#: Judged answers and cut articles: quick and in full.
_JUDGED, _JUDGED_FULL = (700, 300), (2000, 2000)
#: Folder of each form of labels, and its name.
_FORMS = {"judged": "long answers", "wiki": "cut articles"}


def on_judged(settings: Demo) -> Iterator[Step]:
    """Yield the steps on long answers that are judged by the articles, beside cuts of the same articles."""
    out, (answers, cut) = Path(settings.out), _JUDGED_FULL if settings.full else _JUDGED
    _, generating, training, _ = _shared(settings)
    prompts = ("testbed", "testbed") if settings.articles == "testbed" else ("chat", "mind")
    written = [f"articles={settings.articles}", "pool=[predicting,mean]", "layers=stride", *generating]
    yield ("labels: long answers, whose entities are judged by the article", "datagen",
           ["source=judged", f"prompt={prompts[0]}", "max_new_tokens=128", f"limit={settings.cot or answers}",
            f"out={out}/judged", *written])  # fmt: skip
    yield ("labels: articles cut before an entity", "datagen",
           ["source=wiki", f"prompt={prompts[1]}", "per_article=4", "within=null", "max_new_tokens=16",
            f"limit={settings.wiki or cut}", f"out={out}/wiki", *written])  # fmt: skip
    for form, other in zip(_FORMS, reversed(_FORMS), strict=True):
        for pool, when in (("predicting", "before"), ("mean", "after")):
            yield (f"heads {when} an entity is written, on {_FORMS[form]}", "train",
                   [f"data={out}/{form}", f"test=[{out}/{other}]", "layer=all", f"pool={pool}",
                    "combine=best", f"out={out}/{form}-{when}", *training])  # fmt: skip


def judged_report(out: Path) -> str:
    """Put the figures of :func:`on_judged` into a page of Markdown."""
    parts = ["# Long answers, judged, and cut articles\n"]
    for when in ("before", "after"):
        parts += [
            f"## Heads {when} an entity is written\n",
            "AUROC of wrong entities with 95% intervals; the number of test entities stands behind it.\n",
            f"| trained on | {' | '.join(f'tested on {name}' for name in _FORMS.values())} |",
            f"| --- |{' --- |' * len(_FORMS)}",
        ]
        for form, name in _FORMS.items():
            (cells,) = read_json(out / f"{form}-{when}" / "matrix.json").values()
            shown = (_cell(cells[str(out / column)]) for column in _FORMS)
            parts.append(f"| [{name}]({form}-{when}/README.md) | {' | '.join(shown)} |")
        parts.append("\nThe linked cards have the tables of all signals known at that moment.\n")
    return "\n".join([*parts, "Verdicts to read: [judged/sample.html](judged/sample.html)", ""])


def _cell(figures: Mapping[str, Any]) -> str:
    if figures["auroc"] is None:
        return f"– of {figures['n']:,}"
    low, high = figures["auroc_ci"]
    return f"{figures['auroc']:.2f} ({low:.2f} to {high:.2f}) of {figures['n']:,}"


def _counts(settings: Demo, cot: int, wiki: int, compare: int) -> tuple[int, int, int]:
    return settings.cot or cot, settings.wiki or wiki, settings.compare or compare


def _shared(settings: Demo) -> tuple[list[str], list[str], list[str], list[str]]:
    """Options of all steps, of those that generate, of those that train, and of the comparison."""
    common = [f"seed={settings.seed}"]
    generating = [*common, f"model.name={settings.model.name}", f"batch_size={settings.batch_size}"]
    # Curves take half of the time and change no table.
    training, curves = (common, []) if settings.full else (["learning_curve=false", *common], ["sweep=0"])
    return common, generating, training, [*curves, *generating]


def on_testbed(settings: Demo) -> Iterator[Step]:
    """Yield the steps on the testbed; a step may read the results of those before it."""
    from ..store.store import FeatureStore

    out, (cot, wiki, tested) = Path(settings.out), _counts(settings, *_TESTBED)
    common, generating, training, comparing = _shared(settings)
    yield ("labels: questions with and without passages", "datagen",
           ["source=cot", f"limit={cot}", f"out={out}/cot", *generating])  # fmt: skip
    yield ("labels: articles cut before an entity, with the states of its tokens", "datagen",
           ["source=wiki", "pool=tokens", f"limit={wiki}", f"out={out}/wiki", *generating])  # fmt: skip
    yield ("heads on the question labels", "train",
           ["layer=all", "combine=best", f"data={out}/cot", f"out={out}/prober", *training])  # fmt: skip
    yield ("heads on the article labels", "train",
           ["layer=all", f"data={out}/wiki", f"out={out}/prober-wiki", *training])  # fmt: skip
    last = FeatureStore.open(out / "wiki", checksums=False).spec.layers[-1]
    yield ("RaDIO's head of single tokens, on the last layer", "train",
           [*_RADIO, f"layer={last}", f"data={out}/wiki", f"out={out}/prober-tokens", *training])  # fmt: skip
    yield ("a classifier of questions", "train",
           ["head=adaptive", f"data={out}/cot", f"out={out}/classifier", *common])  # fmt: skip
    yield ("every trigger on the same questions", "compare",
           [f"limit={tested}", f"prober={out}/prober", f"token_prober={out}/prober-tokens",
            f"classifier={out}/classifier", f"out={out}/compare", *comparing])  # fmt: skip


def on_articles(settings: Demo) -> Iterator[Step]:
    """Yield the steps on real articles: entities before and after they are written, and completions.

    The comparison asks about articles of the test split. With ``full=true`` probers of the attention heads'
    lookback ratios are trained as well.
    """
    out, (cot, wiki, tested) = Path(settings.out), _counts(settings, *(_FULL if settings.full else _QUICK))
    _, generating, training, comparing = _shared(settings)
    completing = [
        "questions=completion", f"questions.articles={settings.articles}", f"corpus={settings.articles}",
        "prompt=completion", "k=1", "max_new_tokens=12",
    ]  # fmt: skip
    if not settings.full:  # all of them would take as long as the model's own work
        completing.append("questions.max_articles=1500")
    layers = ["layers=stride", *generating]
    sites = ["site=[resid_post,lookback]"] if settings.full else []
    yield ("labels: articles cut before an entity, with the states before it and of all of it", "datagen",
           ["source=wiki", f"articles={settings.articles}", "pool=[predicting,mean]", *sites, "prompt=mind",
            "per_article=4", "within=null", "max_new_tokens=16", f"limit={wiki}", f"out={out}/wiki",
            *layers])  # fmt: skip
    yield ("labels: completions with and without a passage", "datagen",
           ["source=cot", *completing, "label=match", f"limit={cot}", f"out={out}/cot", *layers])  # fmt: skip
    for pool, when in (("predicting", "before"), ("mean", "after")):
        trained = ["layer=all", f"pool={pool}", f"data={out}/wiki", *training]
        yield (f"heads on the states {when} an entity is written", "train",
               [*trained, "combine=best", f"out={out}/{when}"])  # fmt: skip
        if settings.full:
            yield (f"a head on where attention lies {when} it is written", "train",
                   [*trained, "site=lookback", f"out={out}/{when}-lookback"])  # fmt: skip
    yield ("heads on the completions", "train",
           ["layer=all", "combine=best", f"data={out}/cot", f"out={out}/prober", *training])  # fmt: skip
    yield ("every trigger on the same completions", "compare",
           [*completing, "wrong=match", f"limit={tested}", f"validation={tested}", f"triggers=[{_TRIGGERS}]",
            f"prober={out}/prober", f"entity_prober={out}/before", f"out={out}/compare",
            *comparing])  # fmt: skip
