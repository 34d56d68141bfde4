"""From trained heads to a calibrated prober, and everything it is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from probers.bank import Combine, ProbeBank, half_precision
from probers.entropy import SIGNALS
from probers.features import FeatureSpec
from probers.heads import CORRECT, WRONG

from .calibrate import ThresholdRule, fit_entropy_model, fit_temperature
from .controls import Detector, control_detectors
from .data import CHUNK, Examples, States
from .fit import Fitted, Task, targets_of

ENSEMBLE, WITH_ENTROPY = "all layers", "all layers + entropy"
EMBEDDING, SHUFFLED = "embedding layer", "shuffled labels"


@dataclass(frozen=True, slots=True)
class Trained:
    """A prober with the scores of everything that is compared.

    Attributes:
        bank: the prober, without metrics and card.
        layers: layer -> its head alone as a detector.
        ensemble: the sum over layers, and with the entropies where they were fitted.
        controls: what they have to beat.
        person: margins of the positive control (higher is "not a person"), or None.
        best_layer: by validation AUROC.
        notes: what was left out and why.
    """

    bank: ProbeBank
    layers: dict[int, Detector]
    ensemble: list[Detector]
    controls: list[Detector]
    person: np.ndarray | None
    best_layer: int
    notes: list[str]


def plan_tasks(layers: Sequence[int], spec: FeatureSpec, examples: Examples) -> tuple[list[Task], list[str]]:
    """The heads to train: the prober's, the embedding layer's, and two at the middle layer.

    The two are shuffled labels, which must come out at chance, and the positive control
    "is the answer a person", which must not.
    """
    middle = layers[len(layers) // 2]
    tasks = [Task(k) for k in layers]
    notes: list[str] = []
    if 0 in spec.layers:
        tasks.append(Task(0))
    else:
        notes.append(f"control {EMBEDDING!r} left out: the store has no layer 0")
    tasks.append(Task(middle, "shuffled"))
    problem = _no_person(examples)
    if problem:
        notes.append(f"positive control left out: {problem}")
    else:
        tasks.append(Task(middle, "person"))
    return tasks, notes


def assemble(
    fitted: Fitted, states: States, state_layers: Sequence[int], spec: FeatureSpec, examples: Examples, *,
    combine: Combine, rule: ThresholdRule, with_entropy: bool, seed: int,
) -> Trained:  # fmt: skip
    """Round the weights, calibrate on validation, and score every example with everything.

    Args:
        fitted: trained heads.
        states: (N, len(state_layers), d); read chunk by chunk.
        state_layers: which layers the states are of.
        spec: of the store.
        examples: rows and splits.
        combine: how layers are summed.
        rule: chooses thresholds.
        with_entropy: also weigh the prober against the entropies.
        seed: that the training had, for its permuted labels.
    """
    head = half_precision(fitted.head)
    probing = [i for i, t in enumerate(fitted.tasks) if t.target == "correct" and t.layer > 0]
    layers = [fitted.tasks[i].layer for i in probing]
    margins = _margins(fitted, states, state_layers)
    bank = ProbeBank(spec.select(layers), head.select(probing), combine=combine)
    score = bank.combine_margins(margins[:, probing])
    bank, notes = _calibrated(bank, score, examples, rule, with_entropy=with_entropy)
    ensemble = [Detector(ENSEMBLE, score, f"sum over {len(layers)} layers", bank.probability, bank.threshold)]
    if bank.entropy_model is not None:
        ensemble.append(_with_entropy(bank, score, examples))
    alone = {
        k: _alone(f"layer {k}", margins[:, i], "its head alone", examples)
        for i, k in zip(probing, layers, strict=True)
    }
    controls, left_out = control_detectors(examples)
    person = next((i for i, t in enumerate(fitted.tasks) if t.target == "person"), None)
    return Trained(
        bank=bank,
        layers=alone,
        ensemble=ensemble,
        controls=controls + _head_controls(fitted.tasks, margins, examples, seed),
        person=None if person is None else margins[:, person],
        best_layer=layers[int(np.argmax(fitted.auroc[probing]))],
        notes=notes + left_out,
    )


def _calibrated(
    bank: ProbeBank, score: np.ndarray, examples: Examples, rule: ThresholdRule, *, with_entropy: bool
) -> tuple[ProbeBank, list[str]]:
    """The bank with threshold, temperature and entropy model from validation, and notes."""
    rows = examples.rows["validation"]
    wrong, score = examples.wrong[rows], score[rows]
    bank = replace(bank, threshold=rule(wrong, score), temperature=fit_temperature(wrong, score))
    if not with_entropy:
        return bank, []
    lacking = [name for name in SIGNALS if name not in examples.table]
    if lacking:
        return bank, [f"prober with entropy left out: the store has no column {lacking[0]}"]
    signals = {name: examples.column(name, "validation") for name in SIGNALS}
    return replace(bank, entropy_model=fit_entropy_model(wrong, score, signals, rule)), []


def _head_controls(
    tasks: Sequence[Task], margins: np.ndarray, examples: Examples, seed: int
) -> list[Detector]:
    """The embedding layer's head, and the one on permuted labels, which is measured against such."""
    found: list[Detector] = []
    for index, task in enumerate(tasks):
        about = f"the same head at layer {task.layer}"
        if task == Task(0):
            found.append(_alone(EMBEDDING, margins[:, index], about, examples))
        elif task.target == "shuffled":
            permuted = 1 - targets_of([task], examples, seed)[:, 0].numpy()
            about += ", trained and tested on permuted labels"
            found.append(_alone(SHUFFLED, margins[:, index], about, examples, permuted))
    return found


def _no_person(examples: Examples) -> str | None:
    if "answer_kind" not in examples.table:
        return "the store has no column answer_kind"
    for split in examples.rows:
        if len(set(examples.column("answer_kind", split) == "person")) == 1:
            return f"all or none of the {split} answers are persons"
    return None


def _margins(fitted: Fitted, states: States, state_layers: Sequence[int]) -> np.ndarray:
    """(N, tasks) logit of "wrong" minus logit of "correct"."""
    columns = [list(state_layers).index(task.layer) for task in fitted.tasks]
    parts = (states[start : start + CHUNK] for start in range(0, len(states), CHUNK))
    with torch.inference_mode():
        logits = torch.cat([fitted.head(part[:, columns].float()) for part in parts]).double()
    return (logits[..., WRONG] - logits[..., CORRECT]).numpy()


def _alone(
    name: str, margins: np.ndarray, about: str, examples: Examples, labels: np.ndarray | None = None
) -> Detector:
    """One head as a detector, with a temperature of its own."""
    rows = examples.rows["validation"]
    wrong = examples.wrong if labels is None else labels
    temperature = fit_temperature(wrong[rows], margins[rows])
    return Detector(
        name, margins, about, probability=lambda s: 0.5 * (1 + np.tanh(s / temperature / 2)), wrong=labels
    )


def _with_entropy(bank: ProbeBank, score: np.ndarray, examples: Examples) -> Detector:
    model = bank.entropy_model
    assert model is not None
    scores = model(score, {name: examples.table[name].to_numpy() for name in SIGNALS})
    about = "logistic model of the sum and all entropy signals, fitted on validation"
    return Detector(
        WITH_ENTROPY, scores, about, lambda s: bank.probability(s, with_entropy=True), model.threshold
    )
