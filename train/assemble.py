"""From trained heads to a calibrated prober, and everything it is measured against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from probers.bank.bank import ProbeBank, half_precision
from probers.bank.calibration import Calibration, EntropyModel, sigmoid
from probers.bank.ensemble import KINDS, Aggregate, Ensemble, aggregate, check_aggregate
from probers.heads import CORRECT, WRONG, ProbeHead
from probers.store.spec import FeatureSpec
from probers.types import RunError, Site, UserError
from probers.uncertainty import SIGNALS

from .calibrate import CALIBRATIONS, ThresholdRule, fit_calibration, fit_ensemble, fit_entropy_model
from .controls import EMBEDDING, SHUFFLED, WITH_ENTROPY, Detector, control_detectors
from .data import Examples
from .fit import Fitted, Task, targets_of
from .states import CHUNK, Column, Padded, States, TokenStates

if TYPE_CHECKING:
    from .curve import CurvePoint


@dataclass(frozen=True, slots=True)
class Margins:
    """Logits of "wrong" minus "correct" of several heads.

    Attributes:
        values: (n, heads), a row per text, or per token where ``spans`` says which are a text's.
        spans: (texts, 2) first row and the one after the last; None where a row is a text.
        how: from tokens to a text.
    """

    values: np.ndarray
    spans: np.ndarray | None
    how: Aggregate | None

    def of_texts(self, scores: np.ndarray) -> np.ndarray:
        """(texts,) scores from those of the rows, (n,)."""
        if self.spans is None or self.how is None:
            return scores
        return aggregate(scores, self.spans, self.how)

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """(n,) of each row what (texts,) says of its text."""
        return values if self.spans is None else np.repeat(values, np.diff(self.spans).ravel())


def score_everything(
    head: ProbeHead, columns: Sequence[int], states: States, examples: Examples, how: Aggregate | None
) -> Margins:
    """The margins of all heads on all texts, a chunk of states at a time.

    Args:
        head: trained heads.
        columns: (heads,) which column of the states each reads.
        states: (rows of the store, columns, d).
        examples: of the store.
        how: from tokens to a text, for heads of single tokens; else None.

    Raises:
        RunError: a state that is not finite; names the text.
    """
    spans = None
    texts = np.arange(len(examples.table))
    source: States | TokenStates = states
    order, of = torch.from_numpy(texts), texts
    if examples.members is not None and head.tokens:
        source = TokenStates(states, examples.members)
    elif examples.members is not None:
        sizes = np.array([len(rows) for rows in examples.members])
        ends = np.cumsum(sizes)
        spans = np.stack([ends - sizes, ends], axis=1)
        order, of = torch.from_numpy(np.concatenate(examples.members)), np.repeat(texts, sizes)
    index = list(columns)
    found = []
    with torch.inference_mode():
        for part in order.split(CHUNK):
            x = source[part]
            logits = (
                head(x.states[:, :, index].float(), x.mask)
                if isinstance(x, Padded)
                else head(x[:, index].float())
            ).double()
            found.append(logits[..., WRONG] - logits[..., CORRECT])
    values = torch.cat(found).numpy()
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        name = examples.table["id"].iloc[of[bad[0]]]
        raise RunError(f"the states of {name!r} are not finite: the store is damaged there, make it again")
    return Margins(values, spans, None if spans is None else how)


@dataclass(frozen=True, slots=True)
class Trained:
    """A prober with the scores of everything that is compared.

    Attributes:
        bank: the prober, without metrics and card.
        layers: column -> its head alone as a detector, of the first seed.
        seeds: column -> (S, texts) scores of every seed's head; empty with one seed.
        validation: column -> accuracy, loss and AUROC on validation.
        ensembles: kind -> score of all layers of the prober's site; the prober's own has its
            threshold and probability.
        with_entropy: the score weighed with the entropies, where these are there.
        controls: what they have to beat.
        person: margins of the positive control (higher is "not a person"), or None.
        best: column with the highest validation AUROC; its site is the prober's.
        calibrations: kind -> the prober's score to P(wrong).
        curve: probers of fewer training groups, the smallest first.
        notes: what was left out and why.
    """

    bank: ProbeBank
    layers: Mapping[Column, Detector]
    seeds: Mapping[Column, np.ndarray]
    validation: Mapping[Column, Mapping[str, float]]
    ensembles: Mapping[str, Detector]
    with_entropy: Detector | None
    controls: Sequence[Detector]
    person: np.ndarray | None
    best: Column
    calibrations: Mapping[str, Calibration]
    curve: Sequence[CurvePoint] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AssemblySettings:
    """How heads become one score; the fields are keys of ``configs/train.yaml``."""

    combine: str = "logits"
    best_k: int = 3
    aggregate: Aggregate = "max"
    calibration: str = "platt"
    with_entropy: bool = True

    def __post_init__(self) -> None:
        for key, value, known in (
            ("combine", self.combine, KINDS), ("calibration", self.calibration, CALIBRATIONS),
        ):  # fmt: skip
            if value not in known:
                raise UserError(f"{key}={value} is unknown: choose one of {', '.join(known)}")
        if self.best_k < 1:
            raise UserError(f"best_k={self.best_k} must be at least 1: the number of layers to average")
        check_aggregate(self.aggregate)


def assemble(
    fitted: Fitted, states: States, columns: Sequence[Column], specs: Mapping[Site, FeatureSpec],
    examples: Examples, settings: AssemblySettings, rule: ThresholdRule,
) -> Trained:  # fmt: skip
    """Round the weights, calibrate on validation, and score every text with everything.

    Args:
        fitted: trained heads.
        states: (rows of the store, len(columns), d); read chunk by chunk.
        columns: what the states are of.
        specs: of the store of each site.
        examples: texts and splits.
        settings: how the layers become a score.
        rule: chooses thresholds.
    """
    tasks = fitted.tasks
    margins = margins_of(fitted, states, columns, examples, settings)
    probes = {task: i for i, task in enumerate(tasks) if task.is_probe}
    first = min(task.seed for task in probes)
    own = {task.column: i for task, i in probes.items() if task.seed == first}
    best = max(own, key=lambda column: fitted.auroc[own[column]])
    site = [column for column in own if column.site == best.site]
    kinds = {kind: combined(kind, margins, [own[c] for c in site], examples, settings) for kind in KINDS}
    ensemble, score = kinds[settings.combine]
    rows = examples.rows["validation"]
    wrong = examples.wrong[rows]
    calibrations = {kind: fit_calibration(kind, wrong, score[rows]) for kind in CALIBRATIONS}
    bank = ProbeBank(
        specs[best.site].select([c.layer for c in site]), fitted.head.select([own[c] for c in site]),
        threshold=rule(wrong, score[rows]), calibration=calibrations[settings.calibration],
        ensemble=ensemble, aggregate=margins.how,
        entropy_model=_entropy_model(score, examples, rule) if settings.with_entropy else None,
    )  # fmt: skip
    ensembles = {k: Detector(k, s, f"{k} of {len(site)} layers") for k, (_, s) in kinds.items()}
    ensembles[settings.combine] = Detector(
        settings.combine, score, f"{settings.combine} of {len(site)} layers", bank.probability, bank.threshold
    )
    notes: list[str] = []
    if settings.with_entropy and bank.entropy_model is None:
        notes.append(f"prober with entropy left out: the store has no column {_lacking(examples)[0]}")
    controls, left_out = control_detectors(examples)
    person = next((i for i, t in enumerate(tasks) if t.target == "person"), None)
    return Trained(
        bank=bank,
        layers={c: alone(str(c), margins, i, examples) for c, i in own.items()},
        seeds=_of_seeds(margins, probes),
        validation={c: _validation(fitted, i) for c, i in own.items()},
        ensembles=ensembles,
        with_entropy=_with_entropy(bank, score, examples),
        controls=[*controls, *_head_controls(tasks, margins, examples)],
        person=None if person is None else margins.of_texts(margins.values[:, person]),
        best=best,
        calibrations=calibrations,
        notes=notes + left_out,
    )


def margins_of(
    fitted: Fitted, states: States, columns: Sequence[Column], examples: Examples, settings: AssemblySettings
) -> Margins:
    """What all heads, rounded to what is saved of them, say of every text."""
    head = half_precision(fitted.head)
    places = [list(columns).index(task.column) for task in fitted.tasks]
    return score_everything(head, places, states, examples, settings.aggregate)


def combined(
    kind: str, margins: Margins, heads: Sequence[int], examples: Examples, settings: AssemblySettings
) -> tuple[Ensemble, np.ndarray]:
    """An ensemble fitted on the validation rows, and its scores (texts,)."""
    values = margins.values[:, list(heads)]
    chosen = np.zeros(len(examples.table), dtype=bool)
    chosen[examples.rows["validation"]] = True
    rows = np.flatnonzero(margins.of_rows(chosen))
    ensemble = fit_ensemble(
        kind, values[rows], margins.of_rows(examples.wrong)[rows], k=settings.best_k
    ).over(len(heads))
    return ensemble, margins.of_texts(ensemble(values))


def alone(
    name: str, margins: Margins, head: int, examples: Examples, labels: np.ndarray | None = None,
    about: str = "its head alone",
) -> Detector:  # fmt: skip
    """One head as a detector, with a temperature of its own."""
    scores = margins.of_texts(margins.values[:, head])
    rows = examples.rows["validation"]
    wrong = examples.wrong if labels is None else labels
    probability = fit_calibration("temperature", wrong[rows], scores[rows])
    return Detector(name, scores, about, probability=probability, wrong=labels)


def _of_seeds(margins: Margins, probes: Mapping[Task, int]) -> dict[Column, np.ndarray]:
    found: dict[Column, list[np.ndarray]] = {}
    for task, i in sorted(probes.items(), key=lambda item: item[0].seed):
        found.setdefault(task.column, []).append(margins.of_texts(margins.values[:, i]))
    return {column: np.stack(scores) for column, scores in found.items() if len(scores) > 1}


def _validation(fitted: Fitted, head: int) -> dict[str, float]:
    figures = {"accuracy": fitted.accuracy, "loss": fitted.loss, "auroc": fitted.auroc}
    return {name: float(values[head]) for name, values in figures.items()}


def _head_controls(tasks: Sequence[Task], margins: Margins, examples: Examples) -> list[Detector]:
    """The embedding layer's head, and the one on permuted labels, which is measured against such."""
    found: list[Detector] = []
    for index, task in enumerate(tasks):
        about = f"the same head at {task.column}"
        if task.target == "correct" and task.layer == 0:
            found.append(alone(EMBEDDING, margins, index, examples, about=about))
        elif task.target == "shuffled":
            permuted = 1 - targets_of([task], examples)[:, 0].numpy()
            about += ", trained and tested on permuted labels"
            found.append(alone(SHUFFLED, margins, index, examples, permuted, about))
    return found


def _lacking(examples: Examples) -> list[str]:
    return [name for name in SIGNALS if name not in examples.table]


def _entropy_model(score: np.ndarray, examples: Examples, rule: ThresholdRule) -> EntropyModel | None:
    if _lacking(examples):
        return None
    rows = examples.rows["validation"]
    signals = {name: examples.column(name, "validation") for name in SIGNALS}
    return fit_entropy_model(examples.wrong[rows], score[rows], signals, rule)


def _with_entropy(bank: ProbeBank, score: np.ndarray, examples: Examples) -> Detector | None:
    model = bank.entropy_model
    if model is None:
        return None
    scores = model(score, {name: examples.table[name].to_numpy() for name in SIGNALS})
    about = "logistic model of the score and all entropy signals, fitted on validation"
    return Detector(WITH_ENTROPY, scores, about, sigmoid, model.threshold)
