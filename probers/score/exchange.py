"""The commands ``probers-import`` and ``probers-export``: linear probes in the files of another project.

Imported probes are calibrated on labelled texts like trained ones, by the highest token of each span.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..checksums import Journal, inputs
from ..cli.command_lines import command_line
from ..cli.inputs import load_model
from ..cli.runs import RunFolder
from ..cli.settings import plain
from ..data.splits import Seen
from ..data.texts import Text, TextSource, token_labels
from ..evaluation.bootstrap import Bootstrap, bounded, few_groups
from ..evaluation.metrics import auprc, auroc, ece_interval, recall_at_fpr
from ..files import write_bytes
from ..prober.calibration import fit_calibration
from ..prober.decision import ThresholdRule
from ..prober.io import locate, save
from ..prober.prober import Prober
from ..prober.scoring import readable, score_texts
from ..prober.value_head import CONFIG, WEIGHTS, ValueHead, fold, read_value_head
from ..types import UserError, count
from .run import UNFINISHED

if TYPE_CHECKING:
    from ..model.causal_lm import CausalLM
    from .settings import Export, Import

log = logging.getLogger(__name__)


class Span(NamedTuple):
    """A judged stretch of a text, with the score of its highest token."""

    split: str
    group: str
    wrong: bool
    score: float


def run_import(settings: Import) -> Path:
    """Make a prober of a value head; return the folder written. UserErrors come before texts are read."""
    if settings.probe is None:
        message = f"no probe is given: probers-import FOLDER, with {CONFIG} and {WEIGHTS} in it"
        raise UserError(message, "missing-value")
    rule, name = ThresholdRule.parse(settings.threshold), settings.probe
    place = locate(name, settings.subfolder, revision=settings.revision)
    probe = read_value_head(place, name)
    source = None
    if settings.texts.path is not None:
        source = TextSource(
            **plain(settings.texts), on_bad_line=settings.on_bad_line,
            limit=settings.limit, seed=settings.seed,
        )  # fmt: skip
        check_labels(source)
    out = Path(settings.out or f"runs/import/{Path(settings.subfolder or name).name}")
    read = {"probe": inputs(place)[str(place)]} | ({} if source is None else inputs(str(settings.texts.path)))
    folder = RunFolder(out, "import", settings.record | {"inputs": read})
    if not folder.begin("prober"):
        return out
    lm = load_model(settings, folder)
    journal = Journal(out / UNFINISHED)
    bank = Prober(probe.spec(lm.spec, name), probe.head(name), aggregate="max")
    figures: dict[str, Any] = {"imported": {"format": "hallucination_probes", "layer_idx": probe.layer_idx}}
    if source is not None:
        bank = calibrated(bank, lm, source, rule, journal, settings.resamples)
        figures |= dict(bank.metrics)
    lines = [*_findings(bank, probe, figures)]
    save(out, replace(bank, metrics=figures, card=_card(bank, name, lines)))
    journal.path.unlink(missing_ok=True)
    folder.finish({"model": settings.model.name, "auroc": figures.get("span", {}).get("auroc")})
    for line in lines:
        log.info("%s", line)
    log.info("wrote a prober of layer %d to %s", probe.layer_idx + 1, out)
    log.info("next: %s", command_line("score", "FILE", model=settings.model.name, prober=out))
    return out


def check_labels(source: TextSource) -> None:
    """Refuse texts whose validation split lacks right or wrong spans (UserError)."""
    kinds: set[bool | None] = set()
    for one in source.labelled("token"):
        if one.split == "validation":
            marks = {mark.wrong for mark in one.units("token")} or {one.wrong}
            kinds |= marks | ({False} if one.outside == "right" else set())
    if not {True, False} <= kinds:
        kind = "only wrong" if True in kinds else "only right" if False in kinds else "no"
        fix = "give texts.outside=right if all that is wrong is marked, or more texts"
        raise UserError(f"texts={source.path}: {kind} labels in the validation texts: {fix}", "labels")


def calibrated(
    bank: Prober, lm: CausalLM, source: TextSource, rule: ThresholdRule, journal: Journal,
    resamples: int = 1000,
) -> Prober:  # fmt: skip
    """Calibrate a prober of single tokens, choose its threshold by ``rule``, and measure it.

    Calibration and threshold are fitted on spans of the validation texts, figures use the test texts, and
    training texts are not read. Finished texts are kept in ``journal``, for a resumed run. UserError for
    validation texts with labels of only one kind (:func:`check_labels`, without the model).
    """
    given = [one for one in source.labelled("token") if one.split != "train"]
    texts = readable(source, given, bank, lm.tokenizer)
    responses = score_texts(lm, bank, texts, unit="token", journal=journal)
    by_text = [
        judged(one, response.token_offsets, np.array(response.token_scores, dtype=float))
        for one, response in zip(texts, responses, strict=True)
        if response is not None  # else it is too long
    ]
    if silent := by_text.count([]):
        log.info("%s left out, without a token that is judged", count(silent, "text"))
    for line in [*source.survey("token").notes, *source.lines()]:
        log.info("%s", line)
    spans = list(itertools.chain.from_iterable(by_text))
    sides = {side: [span for span in spans if span.split == side] for side in ("validation", "test")}
    wrong, scores = _columns(sides["validation"])
    chosen = rule.choose(wrong, scores, np.array([span.group for span in sides["validation"]]))
    members = {side: [one for one in texts if one.split == side] for side in sides}
    marks = {one.id: (one.dataset, one.group, one.question or one.answer) for one in texts}
    seen = {side: [marks[one.id] for one in of_side] for side, of_side in members.items()}
    bank = replace(
        bank, calibration=fit_calibration("platt", wrong, scores), threshold=chosen.value,
        promise=chosen.promise, seen=Seen.of(seen),
    )  # fmt: skip
    splits = {
        side: {
            "n": len(spans), "texts": len(members[side]), "groups": len({span.group for span in spans}),
            "wrong": float(np.mean([span.wrong for span in spans])) if spans else None,
        }
        for side, spans in sides.items()
    }  # fmt: skip
    figures = {"splits": splits, "span": measured(bank, sides["test"], resamples, source.seed)}
    return replace(bank, metrics=figures)


def judged(one: Text, offsets: Sequence[tuple[int, int]], scores: np.ndarray) -> list[Span]:
    """Return judged spans of a text, from characters and scores (n,) of its tokens, as in training.

    Text outside of marks counts if it is right, cut at sentences, like an answer without marks.
    """
    labels = token_labels(one, offsets)
    marks = np.unique(labels.mark[(labels.inside >= 0) & (labels.wrong >= 0)])
    span = partial(Span, one.split, one.group)
    masks = labels.mark == marks[:, None]
    return [span(bool(labels.wrong[marked][0]), float(scores[marked].max())) for marked in masks]


def measured(bank: Prober, spans: Sequence[Span], resamples: int, seed: int) -> dict[str, Any]:
    """Measure scores and P(wrong) of spans, with 95% intervals over groups; null without both labels."""
    wrong, scores = _columns(spans)
    figures: dict[str, Any] = {"n": len(spans), "auroc": None}
    if len(set(wrong.tolist())) < 2:
        return figures
    bootstrap = Bootstrap([span.group for span in spans], resamples=resamples, seed=seed)
    p_wrong = bank.probability(scores)
    for name, values, metric in (
        ("auroc", scores, auroc), ("auprc", scores, auprc), ("recall_at_fpr10", scores, recall_at_fpr),
    ):  # fmt: skip
        figures |= bootstrap.interval(values, partial(metric, wrong)).figures(name)
    return figures | ece_interval(bootstrap, wrong, p_wrong).figures("ece")


def _columns(spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([span.wrong for span in spans], float), np.array([span.score for span in spans], float)


def _findings(bank: Prober, probe: ValueHead, figures: Mapping[str, Any]) -> Iterator[str]:
    """Describe the calibration and the effect of rounding, as lines for the terminal and the card."""
    size = float(probe.weight.abs().max()) or 1.0
    rounded = fold(bank.spec, bank.head, bank.ensemble)
    change = float((rounded.weight - probe.weight).abs().max()) / size
    yield f"weights are kept in half precision: at most {change:.1g} of the largest one is lost"
    if "span" not in figures:
        yield "P(wrong) is not calibrated and the threshold is 0: give texts=FILE with labels to fit both"
        return
    span, validation = figures["span"], figures["splits"]["validation"]
    yield (
        f"calibrated on {count(validation['n'], 'span')} of {count(validation['texts'], 'validation text')}, "
        f"{validation['wrong']:.0%} wrong; fires above {bank.threshold:.3g}, "
        f"P(wrong) above {float(bank.probability(np.array([bank.threshold]))[0]):.0%}"
    )
    if bank.promise is not None:
        yield f"promised: {bank.promise}"
    if span["auroc"] is None:
        yield f"no AUROC: the {count(span['n'], 'test span')} are not of both kinds"
    else:
        yield f"AUROC of {count(span['n'], 'test span')} by their highest token: {bounded(span, 'auroc')}"
        if few := few_groups(figures["splits"]["test"]["groups"], "test group"):
            yield few


def _card(bank: Prober, name: str, lines: Sequence[str]) -> str:
    model, message = bank.spec.model.id, "\n".join(f"- {line}." for line in lines)
    return (
        "---\nlibrary_name: probers\ntags:\n- hallucination-detection\n- probing\n---\n\n"
        f"# Prober for {model}, imported\n\n"
        f"Scores each token by a linear map of its state at layer {bank.layers[0]} (resid_post): the probe "
        f"`{name}`, from files of hallucination_probes (Obeso et al. 2025). The files do not name their "
        f"model; `{model}` was given with model=.\n\n{message}\n"
    )


def run_export(settings: Export) -> Path:
    """Write a linear head as a value head; return the folder written."""
    if settings.prober is None:
        raise UserError("no prober is given: probers-export PROBER out=FOLDER", "missing-value")
    bank = Prober.from_pretrained(settings.prober)
    probe = fold(bank.spec, bank.head, bank.ensemble, settings.layer)
    out, files = Path(settings.out or f"runs/export/{Path(settings.prober).name}"), probe.files()
    there = [*out.iterdir()] if out.is_dir() else [out] if out.exists() else []
    # A large file of another name is not read.
    if any(path.name not in files or path.read_bytes() != files[path.name] for path in there):
        message = f"out={out} holds something other than this probe: choose another out or remove it"
        raise UserError(message, "out-taken")
    for name, blob in files.items():
        write_bytes(out / name, blob)
    single, several = f"threshold {bank.threshold:.4g} of its logit", "no threshold of its own"
    message = several if len(bank.layers) > 1 else single
    place = f"layer {probe.layer_idx + 1} of {settings.prober} as layer_idx={probe.layer_idx}"
    log.info("wrote %s to %s", place, out)
    log.info("the files hold neither threshold nor calibration: %s; model %s", message, bank.spec.model)
    return out
