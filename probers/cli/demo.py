"""The command ``probers-demo``: the other commands in turn, on the testbed or on articles."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import read_json, write_text
from ..options import Count, Name
from .command_lines import command_line, for_shell
from .main import run as run_command
from .runs import RunFolder
from .settings import BatchSize, Run, Screen

#: Title, command, overrides, and about how many seconds it takes on two cores.
Step = tuple[str, str, list[str], float]

log = logging.getLogger(__name__)

_LOG = "log.txt"  # file with everything that the steps say
# The prober is the mean of the three best layers on validation questions: AUROC 0.79, the sum over all 0.77.
#: RaDIO's head regularised for few examples: AUROC 0.85 against 0.83 on validation articles.
_RADIO = "head=radio head.standardise=true head.dropout=0.3 label_smoothing=0.1"
#: Labelled questions, labelled articles and compared questions: on the testbed and in full, on articles and
#: in full. Thresholds are chosen on three times as many questions as are compared on the testbed.
_TESTBED, _TESTBED_FULL, _QUICK, _FULL = (1200, 600, 150), (1600, 600, 200), (150, 200, 40), (1000, 2000, 300)
#: Judged answers and cut articles, quick and in full; nothing is compared.
_JUDGED, _JUDGED_FULL = (700, 300, 0), (2000, 2000, 0)
#: Methods of the short comparison on the testbed, of which the full one has all.
_SHORT = "never,always,random,oracle,flare,rind_released,entropy,probing,probing_entropy"
#: Seconds for an article's labels and for a training, about, on two cores.
_OF_ARTICLE, _OF_TRAINING = 0.2, 15.0
#: Triggers of the comparison on articles: without a prober, or with one of answers or of entities.
_TRIGGERS = (
    "never,always,always_answer,random,oracle,flare,entropy,entropy_sentence,rind_released,before_entity,"
    "entity_signal,entity_probability,entity_margin,probing,probing_entropy"
)


@dataclass(frozen=True, kw_only=True)
class DemoModel:
    """The language model."""

    name: Name = "testbed"
    """testbed, smollm2, or a folder, model=NAME for short; a folder holds a model trained by
    tools/testbed"""


@dataclass(frozen=True, kw_only=True)
class Demo(Run):
    """Run the whole job on the embedded testbed.

    Labels with cached hidden states, heads on all layers, nine ways of deciding when to retrieve on the same
    questions, and a report of who was right. full=true adds labels on articles, heads on single tokens, a
    classifier of questions and every other trigger. With articles=FILE model=smollm2 it does the job on a
    real model and real text.
    """

    screen = Screen(
        "probers-demo", "about 3 minutes",
        "out model.name articles full judged cot wiki compare batch_size seed overwrite",
    )  # fmt: skip

    out: Name = "runs/demo"
    """folder for everything; report.html and results.json are directly in it"""
    model: DemoModel = field(default_factory=DemoModel)
    articles: Name = "testbed"
    """testbed, or FILE.jsonl[.gz] of real articles; each (title, and text or sentences), which are
    labelled, completed and searched; give model= too"""
    cot: Count | None = None
    """questions for the cot labels; each with and without passages; null is 1200, with full=true 1600,
    with articles 150, with both 1000. With judged=true: long answers, null is 700, with full=true
    2000"""
    wiki: Count | None = None
    """articles for the wiki labels; null is 600 (with full=true only), with articles 200 (judged=true: 300),
    with articles and full=true 2000"""
    compare: Count | None = None
    """test questions that every trigger answers; null is 150, with full=true 200, with articles 40, with
    both 300"""
    full: bool = False
    """true runs every trigger, on more questions; with everything they need, and also draws the learning
    curves of the heads and the curves of triggers that fire within an answer (sweep=4 of
    probers-compare); with articles it also takes more of them"""
    judged: bool = False
    """true judges long answers about the articles instead; the model writes them, the articles judge
    their entities, and heads on them are compared with heads on cut articles, each tested on both; the
    tables are in report.md"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass; auto halves when memory runs out"""


def run(settings: Demo) -> Path:
    """Make labels of both kinds, train on them and compare triggers; returns the report's path.

    Each step is a run of its own below ``out``, so that an interrupted demo resumes.
    """
    from ..progress import Whole

    out = Path(settings.out)
    folder = RunFolder(out, "demo", settings.record)
    folder.claim()
    plan = on_testbed if settings.articles == "testbed" else on_articles
    started, steps = time.monotonic(), (on_judged if settings.judged else plan)(settings)
    minutes = max(1, round(sum(length for *_, length in steps) / 60))
    took = f"about {minutes} minute{'s' * (minutes > 1)} on 2 quiet cores"
    log.info("%d steps into %s, %s; details go to %s", len(steps), out, took, out / _LOG)
    with Whole({title: length for title, *_, length in steps}) as bar:
        for number, (title, command, overrides, _) in enumerate(steps, 1):
            bar.stage(title)
            log.info("[%d/%d] %s\n$ %s", number, len(steps), title, command_line(command, *overrides))
            # Batches depend on the size of shards, and the figures of the documentation on batches.
            sized = ["shard_size=256"] if command == "datagen" else []
            with _details(out / _LOG):
                run_command(command, [*_filled(overrides, out), *sized])
    if settings.judged:
        files, finding = ["report.md"], "The tables say how heads tell on answers of the other kind."
        following = f"open {for_shell(f'{out}/judged/sample.html')} and read the verdicts"
        write_text(out / "report.md", judged_report(out))
    else:
        files = ["report.html", "results.json"]
        following = command_line("rag", "trigger=probing", "question=..", prober=f"{out}/prober")
        finding = str(read_json(out / "compare" / "report_data.json")["verdict"])
        for name in files:
            shutil.copyfile(out / "compare" / name, out / name)
    folder.finish({"model": settings.model.name})
    written = " and ".join(f"{out}/{name}" for name in files)
    log.info("\n%s\n", finding)
    log.info("wrote %s in %.1f minutes", written, (time.monotonic() - started) / 60)
    log.info("open %s", (out / files[0]).resolve().as_uri())
    log.info("next: %s", following)
    return out / files[0]


@contextmanager
def _details(file: Path) -> Iterator[None]:
    """Append what the package logs to a file; only warnings are shown as well."""
    logger = logging.getLogger("probers")
    writer = logging.FileHandler(file, encoding="utf-8")
    shown = {handler: handler.level for handler in logger.handlers}
    for handler in shown:
        handler.setLevel(max(handler.level, logging.WARNING))
    logger.addHandler(writer)
    try:
        yield
    finally:
        logger.removeHandler(writer)
        writer.close()
        for handler, level in shown.items():
            handler.setLevel(level)


#: In place of the last layer of the stored token states, which is known once they are stored.
_LAST = "LAST"


def _filled(overrides: Sequence[str], out: Path) -> list[str]:
    """Put in the last layer of the stored token states where a step asks for it."""
    if f"layer={_LAST}" not in overrides:
        return list(overrides)
    from ..store.store import FeatureStore

    last = FeatureStore.open(out / "wiki", checksums=False).spec.layers[-1]
    return [f"layer={last}" if each == f"layer={_LAST}" else each for each in overrides]


#: Folder of each form of labels, and its name; pool of a head, and when it scores an entity.
_FORMS = {"judged": "long answers", "wiki": "cut articles"}
_POOLS = {"predicting": "before", "mean": "after"}


def on_judged(settings: Demo) -> list[Step]:
    """List the steps on long answers that are judged by the articles, beside cuts of the same articles."""
    step, answers, cut, _ = _begun(settings, _JUDGED_FULL if settings.full else _JUDGED)
    _, generating, training, _ = _shared(settings)
    asked, continued = ("testbed", "testbed") if settings.articles == "testbed" else ("chat", "mind")
    written = [f"articles={settings.articles}", "pool=[predicting,mean]", "layers=stride", *generating]
    steps = [
        step("labels: long answers, whose entities are judged by the article", 0.5 * answers,
             f"datagen source=judged prompt={asked} max_new_tokens=128 limit={answers} out=OUT/judged",
             *written),
        step("labels: articles cut before an entity", _OF_ARTICLE * cut,
             f"datagen source=wiki prompt={continued} per_article=4 within=null max_new_tokens=16 "
             f"limit={cut} out=OUT/wiki", *written),
    ]  # fmt: skip
    for form, other in zip(_FORMS, reversed(_FORMS), strict=True):
        for pool, when in _POOLS.items():
            line = f"train data=OUT/{form} test=[OUT/{other}] layer=all pool={pool} combine=best"
            title = f"heads {when} an entity is written, on {_FORMS[form]}"
            steps.append(step(title, _OF_TRAINING, f"{line} out=OUT/{form}-{when}", *training))
    return steps


def judged_report(out: Path) -> str:
    """Put the figures of :func:`on_judged` into a page of Markdown."""
    parts = ["# Long answers, judged, and cut articles\n"]
    for when in _POOLS.values():
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


def _begun(settings: Demo, counts: Sequence[int]) -> tuple[Callable[..., Step], int, int, int]:
    """Return the maker of steps in the demo's folder, and the numbers of texts, ``counts`` if not given."""
    wanted = settings.cot, settings.wiki, settings.compare
    cot, wiki, compared = (given or usual for given, usual in zip(wanted, counts, strict=True))

    def step(title: str, seconds: float, line: str, *options: str) -> Step:
        command, *words = line.split()
        return title, command, [*(word.replace("OUT", settings.out) for word in words), *options], seconds

    return step, cot, wiki, compared


def _shared(settings: Demo) -> tuple[list[str], list[str], list[str], list[str]]:
    """Options of all steps, of those that generate, of those that train, and of the comparison."""
    common = [f"seed={settings.seed}"]
    generating = [*common, f"model.name={settings.model.name}", f"batch_size={settings.batch_size}"]
    # Curves take half of the time and change no table.
    training = common if settings.full else ["learning_curve=false", *common]
    curves = ["sweep=4"] if settings.full else []
    return common, generating, training, [*curves, *generating]


def on_testbed(settings: Demo) -> list[Step]:
    """List the steps on the testbed; the rows of the short comparison are rows of the full one."""
    step, cot, wiki, tested = _begun(settings, _TESTBED_FULL if settings.full else _TESTBED)
    common, generating, training, comparing = _shared(settings)
    compared = f"compare limit={tested} validation={3 * tested} prober=OUT/prober"
    # A step may read the results of those before it.
    steps = [
        step("labels: questions with and without passages", 0.06 * cot,
             f"datagen source=cot limit={cot} out=OUT/cot", *generating),
        step("labels: articles cut before an entity, with the states of its tokens", _OF_ARTICLE * wiki,
             f"datagen source=wiki pool=tokens limit={wiki} out=OUT/wiki", *generating),
        step("heads on the question labels", _OF_TRAINING,
             "train layer=all combine=best data=OUT/cot out=OUT/prober", *training),
        step("heads on the article labels", _OF_TRAINING,
             "train layer=all data=OUT/wiki out=OUT/prober-wiki", *training),
        step("RaDIO's head of single tokens, on the last layer", _OF_TRAINING,
             f"train {_RADIO} layer={_LAST} data=OUT/wiki out=OUT/prober-tokens", *training),
        step("a classifier of questions", 5.0,
             "train head=adaptive data=OUT/cot out=OUT/classifier", *common),
        step("every trigger on the same questions", 2.5 * tested,
             f"{compared} token_prober=OUT/prober-tokens classifier=OUT/classifier out=OUT/compare",
             *comparing),
    ]  # fmt: skip
    if settings.full:
        return steps
    line = f"{compared} triggers=[{_SHORT}] out=OUT/compare"
    return [steps[0], steps[2], step("nine triggers on the same questions", 0.5 * tested, line, *comparing)]


def on_articles(settings: Demo) -> list[Step]:
    """List the steps on real articles: entities before and after they are written, and completions.

    The comparison asks about articles of the test split. With ``full=true`` probers of the attention heads'
    lookback ratios are trained as well.
    """
    step, cot, wiki, tested = _begun(settings, _FULL if settings.full else _QUICK)
    _, generating, training, comparing = _shared(settings)
    completing = [
        "questions=completion", f"questions.articles={settings.articles}", f"corpus={settings.articles}",
        "prompt=completion", "k=1", "max_new_tokens=12",
    ]  # fmt: skip
    if not settings.full:  # all of them would take as long as the model's own work
        completing.append("questions.max_articles=1500")
    sites = "site=[resid_post,lookback] " if settings.full else ""
    steps = [
        step("labels: articles cut before an entity, with the states before it and of all of it",
             _OF_ARTICLE * wiki,
             f"datagen source=wiki pool=[predicting,mean] {sites}prompt=mind per_article=4 within=null "
             f"max_new_tokens=16 limit={wiki} out=OUT/wiki layers=stride",
             f"articles={settings.articles}", *generating),
        step("labels: completions with and without a passage", 0.2 * cot,
             f"datagen source=cot label=match limit={cot} out=OUT/cot layers=stride",
             *completing, *generating),
    ]  # fmt: skip
    for pool, when in _POOLS.items():
        line = f"train layer=all pool={pool} data=OUT/wiki"
        title, best = f"heads on the states {when} an entity is written", f"combine=best out=OUT/{when}"
        steps.append(step(title, _OF_TRAINING, f"{line} {best}", *training))
        if settings.full:
            title, lookback = f"a head on where attention lies {when} it is written", "site=lookback"
            steps.append(step(title, _OF_TRAINING, f"{line} {lookback} out=OUT/{when}-lookback", *training))
    return [
        *steps,
        step("heads on the completions", _OF_TRAINING,
             "train layer=all combine=best data=OUT/cot out=OUT/prober", *training),
        step("every trigger on the same completions", 2.5 * tested,
             f"compare wrong=match limit={tested} validation={tested} triggers=[{_TRIGGERS}] "
             "prober=OUT/prober entity_prober=OUT/before out=OUT/compare", *completing, *comparing),
    ]  # fmt: skip
