"""Assembly of a calibrated prober from trained heads, with all detectors it is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from probers.bank.bank import ProbeBank
from probers.bank.calibration import Calibration, EntropyModel, sigmoid
from probers.bank.domain import Domain, limit_of
from probers.bank.ensemble import KINDS, Ensemble, half_precision
from probers.bank.fitting import (
    CALIBRATIONS,
    fit_calibration,
    fit_ensemble,
    fit_entropy_model,
)
from probers.heads import CORRECT, WRONG, ProbeHead
from probers.online.scores import Aggregate, aggregate
from probers.types import RunError
from probers.uncertainty import SIGNALS

from .controls import EMBEDDING, SHUFFLED, WITH_ENTROPY, Detector, control_detectors
from .data import CHUNK, Column, Dataset, Examples, Padded
from .fit import Fitted, Task, targets_of
from .settings import Assembling


@dataclass(frozen=True, slots=True)
class Margins:
    """Logits of "wrong" minus "correct" of several heads.

    Attributes:
        values: (n, heads), a row per text, or per token where ``spans`` is given.
        spans: (texts, 2) first row and the one after the last; None where a row is a text.
        how: aggregation from tokens to a text.
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
        """(n,) values of texts, repeated for each row of a text."""
        return values if self.spans is None else np.repeat(values, np.diff(self.spans).ravel())

    def of_head(self, head: int) -> np.ndarray:
        """(texts,) scores of one head."""
        return self.of_texts(self.values[:, head])


def score_everything(
    head: ProbeHead, tasks: Sequence[Task], dataset: Dataset, how: Aggregate | None
) -> Margins:
    """Compute the margins of all heads on all texts, chunk by chunk.

    Args:
        head: trained heads.
        tasks: one per head.
        dataset: all texts.
        how: aggregation from tokens to a text, for heads of single tokens.

    Raises:
        RunError: a state that is not finite; names the text.
    """
    inputs = dataset.inputs(head)
    # Text by text, where the rows are tokens.
    members = None if head.tokens else dataset.examples.members
    order = np.arange(len(inputs.text_of)) if members is None else np.concatenate(members)
    index = [dataset.columns.index(task.column) for task in tasks]
    found = []
    with torch.inference_mode():
        for part in torch.from_numpy(order).split(CHUNK):
            x = inputs.states[part]
            logits = (
                head(x.states[:, :, index].float(), x.mask)
                if isinstance(x, Padded)
                else head(x[:, index].float())
            ).double()
            found.append(logits[..., WRONG] - logits[..., CORRECT])
    values = torch.cat(found).numpy()
    bad = order[~np.isfinite(values).all(axis=1)]
    if len(bad):
        name = dataset.examples.table["id"].iloc[inputs.text_of[bad[0]]]
        raise RunError(
            f"the states of {name!r} are not finite: the store is damaged there, make it again",
            code="damaged",
        )
    if members is None:
        return Margins(values, None, None)
    ends = np.cumsum([0, *map(len, members)])
    return Margins(values, np.stack([ends[:-1], ends[1:]], axis=1), how)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Prober trained on part of the training groups.

    Attributes:
        share: share of the groups.
        n, groups: texts and groups trained on.
        layer: head of the layer that is best on validation.
        ensemble: all layers.
    """

    share: float
    n: int
    groups: int
    layer: Detector
    ensemble: Detector


@dataclass(frozen=True, slots=True)
class Trained:
    """Prober with the scores of all compared detectors.

    Attributes:
        bank: the prober, without metrics and card.
        layers: column -> its head alone as a detector, of the first seed.
        seeds: column -> (S, texts) scores of every seed's head; empty with one seed.
        validation: column -> accuracy, loss and AUROC on validation.
        ensembles: kind -> score of all layers of the prober's site; the prober's own has its
            threshold and probability.
        with_entropy: score combined with the entropies, or None.
        controls: baselines.
        person: margins of the positive control (higher is "not a person"), or None.
        best: column with the highest validation AUROC; its site is the prober's.
        calibrations: kind -> map from the prober's score to P(wrong).
        training: optimiser ``steps`` it took, and ``heads`` side by side.
        curve: probers of fewer training groups, the smallest first.
        distances: (texts,) from the prober's domain; None where it has none.
        notes: parts left out, with the reason.
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
    training: Mapping[str, int] = field(default_factory=dict)
    curve: Sequence[CurvePoint] = ()
    distances: np.ndarray | None = None
    notes: Sequence[str] = ()

    @property
    def saved(self) -> Detector:
        """The prober's own score."""
        return self.ensembles[self.bank.combine]


def assemble(fitted: Fitted, dataset: Dataset, settings: Assembling, *, controls: bool = True) -> Trained:
    """Round the weights, calibrate on validation, and score every text with everything.

    Args:
        fitted: heads of one site or several.
        dataset: data they were trained on.
        settings: options of the assembly.
        controls: also compute the controls that are not heads.
    """
    tasks, examples = fitted.tasks, dataset.examples
    margins = score_everything(half_precision(fitted.head), tasks, dataset, settings.aggregate)
    probes = {task: i for i, task in enumerate(tasks) if task.is_probe}
    first = min(task.seed for task in probes)
    own = {task.column: i for task, i in probes.items() if task.seed == first}
    best = max(own, key=lambda column: fitted.auroc[own[column]])
    site = [column for column in own if column.site == best.site]
    kinds = {kind: _combined(kind, margins, [own[c] for c in site], examples, settings) for kind in KINDS}
    ensemble, score = kinds[settings.combine]
    rows = examples.rows["validation"]
    wrong = examples.wrong[rows]
    calibrations = {kind: fit_calibration(kind, wrong, score[rows]) for kind in CALIBRATIONS}
    lacking = [name for name in SIGNALS if name not in examples.table]
    entropy_model = None
    if settings.with_entropy and not lacking:
        signals = {name: examples.column(name, "validation") for name in SIGNALS}
        entropy_model = fit_entropy_model(wrong, score[rows], signals, settings.rule())
    domain, distances = None, None
    if settings.domain is not None:
        domain, distances = fit_domain(dataset, site, settings.domain)
    bank = ProbeBank(
        dataset.specs[best.site].select([c.layer for c in site]),
        fitted.head.select([own[c] for c in site]),
        threshold=settings.rule()(wrong, score[rows]), calibration=calibrations[settings.calibration],
        ensemble=ensemble, aggregate=margins.how, entropy_model=entropy_model,
        domain=domain,
    )  # fmt: skip
    ensembles = {k: Detector(k, s, f"{k} of {len(site)} layers") for k, (_, s) in kinds.items()}
    ensembles[settings.combine] = replace(
        ensembles[settings.combine], probability=bank.probability, threshold=bank.threshold
    )
    notes: list[str] = []
    if settings.with_entropy and lacking:
        notes.append(f"prober with entropy left out: the store has no column {lacking[0]}")
    made, left_out = control_detectors(examples) if controls else ([], [])
    on_validation = {"accuracy": fitted.accuracy, "loss": fitted.loss, "auroc": fitted.auroc}
    seeds = {c: np.stack([margins.of_head(i) for t, i in probes.items() if t.column == c]) for c in own}
    person = next((i for i, t in enumerate(tasks) if t.target == "person"), None)
    return Trained(
        bank=bank,
        layers={c: _alone(str(c), margins, i, examples) for c, i in own.items()},
        seeds=seeds if len(probes) > len(own) else {},
        validation={c: {k: float(v[i]) for k, v in on_validation.items()} for c, i in own.items()},
        ensembles=ensembles,
        with_entropy=None if entropy_model is None else _with_entropy(entropy_model, score, examples),
        controls=[*made, *_head_controls(tasks, margins, examples)],
        person=None if person is None else margins.of_head(person),
        best=best,
        calibrations=calibrations,
        training={"steps": fitted.steps, "heads": len(tasks)},
        distances=distances,
        notes=notes + left_out,
    )


#: Largest number of training rows used to fit a domain, evenly spaced.
_MOST_ROWS = 8192


def fit_domain(dataset: Dataset, columns: Sequence[Column], rate: float) -> tuple[Domain, np.ndarray]:
    """Fit the domain of the training states, with a limit from the validation texts.

    Args:
        columns: the prober's.
        rate: share of the validation texts that may lie beyond the limit.

    Returns:
        The domain, and the distance (texts,) of every text: the mean over its rows, which are tokens or one.
    """
    index = [dataset.columns.index(column) for column in columns]
    text_of, splits = dataset.examples.text_of, dataset.examples.rows
    training = np.flatnonzero(np.isin(text_of, splits["train"]))
    training = training[np.linspace(0, len(training) - 1, min(len(training), _MOST_ROWS)).astype(int)]

    def states(rows: np.ndarray) -> Iterator[torch.Tensor]:
        for part in torch.from_numpy(rows).split(CHUNK):
            yield dataset.states[part][:, index].float()

    domain = Domain.fit(lambda: states(training), rate)
    each = np.concatenate([domain(part).numpy() for part in states(np.arange(len(text_of)))])
    distances = np.bincount(text_of, each) / np.bincount(text_of)
    return replace(domain, limit=limit_of(distances[splits["validation"]], rate)), distances


def _combined(
    kind: str, margins: Margins, heads: Sequence[int], examples: Examples, settings: Assembling
) -> tuple[Ensemble, np.ndarray]:
    """An ensemble fitted on the validation rows, and its scores (texts,)."""
    values = margins.values[:, list(heads)]
    rows = margins.of_rows(np.isin(np.arange(len(examples.table)), examples.rows["validation"]))
    ensemble = fit_ensemble(
        kind, values[rows], margins.of_rows(examples.wrong)[rows], k=settings.best_k
    ).over(len(heads))
    return ensemble, margins.of_texts(ensemble(values))


def _alone(
    name: str, margins: Margins, head: int, examples: Examples, labels: np.ndarray | None = None,
    about: str = "its head alone",
) -> Detector:  # fmt: skip
    """One head as a detector, with a temperature of its own."""
    scores = margins.of_head(head)
    rows = examples.rows["validation"]
    wrong = examples.wrong if labels is None else labels
    probability = fit_calibration("temperature", wrong[rows], scores[rows])
    return Detector(name, scores, about, probability=probability, wrong=labels)


def _head_controls(tasks: Sequence[Task], margins: Margins, examples: Examples) -> list[Detector]:
    """The embedding layer's head, and the one on permuted labels, which is measured against such."""
    found: list[Detector] = []
    for index, task in enumerate(tasks):
        about = f"the same head at {task.column}"
        if task.target == "correct" and task.layer == 0:
            found.append(_alone(EMBEDDING, margins, index, examples, about=about))
        elif task.target == "shuffled":
            permuted = 1 - targets_of([task], examples)[:, 0].numpy()
            about += ", trained and tested on permuted labels"
            found.append(_alone(SHUFFLED, margins, index, examples, permuted, about))
    return found


def _with_entropy(model: EntropyModel, score: np.ndarray, examples: Examples) -> Detector:
    scores = model(score, {name: examples.table[name].to_numpy() for name in SIGNALS})
    about = "logistic model of the score and all entropy signals, fitted on validation"
    return Detector(WITH_ENTROPY, scores, about, sigmoid, model.threshold)
