"""A calibrated prober made of trained heads, and the controls it is compared with.

Controls see no hidden state above the embedding; trained ones are fitted on the training examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from probers.evaluation.baselines import BY_RANGES, OF_TEXT, RANGES, numbers
from probers.heads import CORRECT, WRONG, ProbeHead
from probers.prober.calibration import CALIBRATIONS, Calibration, fit_calibration, fit_entropy_model, sigmoid
from probers.prober.decision import KINDS, Ensemble, fit_ensemble, half_precision
from probers.prober.figures import BARE, EMBEDDING, SHUFFLED, WITH_ENTROPY, Cost
from probers.prober.prober import Prober
from probers.prober.token_scores import Aggregate, aggregate
from probers.signals import SIGNALS
from probers.signals.rarity import KNOWN, known_of
from probers.store.files import COLUMNS
from probers.types import RunError

from .data import CHUNK, Column, Dataset, Padded, TokenStates, at_once, fit_domain
from .examples import Examples
from .heads import Fitted, Task, probe_tasks, targets_of
from .settings import Assembling

#: Cost of what is read in the text's own pass.
FREE = Cost(calls=0, tokens=0)


@dataclass(frozen=True, slots=True)
class Detector:
    """Scores (N,) of one method on every example of the store, higher is more likely wrong.

    It fires above ``threshold``. A probability and threshold of None are fitted on validation; ``wrong`` (N,)
    are labels to measure against, where they are not the true ones. ``cost`` is per text.
    """

    name: str
    scores: np.ndarray
    about: str
    probability: Callable[[np.ndarray], np.ndarray] | None = None
    threshold: float | None = None
    wrong: np.ndarray | None = None
    cost: Cost = FREE


def control_detectors(examples: Examples) -> tuple[list[Detector], list[str]]:
    """Compute every control that the columns of the store allow; notes name those left out."""
    wrong, train, notes = examples.wrong, examples.rows["train"], list[str]()
    constant, about = np.full(len(wrong), wrong[train].mean()), "the more frequent training label, always"
    detectors = [Detector("majority", constant, about, probability=np.asarray, threshold=0.5)]
    for name, (about, scores, *columns) in _CONTROLS.items():
        if any(c not in COLUMNS and c not in examples.table for c in columns):
            continue  # of another source
        if problem := next((p for c in columns if (p := _unusable(examples, c))), None):
            notes.append(f"control {name!r} left out: {problem}")
        else:
            detectors.append(Detector(name, scores(examples.table[columns], wrong, train), about))
    if examples.label == "helps":  # by what is known before a retrieval is read, one by one and together
        known = _known(examples)
        values = np.stack(list(known.values()), axis=1)
        parts = {name: values[:, [i]] for i, name in enumerate(known)} | {"known of the question": values}
        detectors += [
            Detector(name.replace("_", " "), numbers(part, wrong, train, bins=RANGES), BY_RANGES[0])
            for name, part in parts.items() if np.ptp(part[train], axis=0).any()
        ]  # fmt: skip
    return detectors, notes


def _known(examples: Examples) -> dict[str, np.ndarray]:
    """Compute :data:`KNOWN` (N,) of the texts' questions."""
    names = ("question", "retriever_score", "retriever_margin", "question_frequency")
    return known_of({name: examples.table[name].tolist() for name in names if name in examples.table})


def _unusable(examples: Examples, column: str) -> str | None:
    if column not in examples.table:
        return f"the store has no column {column}"
    if examples.table[column].isna().any():
        return f"the store has no {column}, for its model was run without attention"
    same = len(set(examples.column(column, "train"))) == 1
    return f"{column} is the same in all training examples" if same else None


def _product(table: pd.DataFrame, *of: np.ndarray) -> np.ndarray:
    return table.to_numpy(dtype=float).prod(axis=1)


def _falling(table: pd.DataFrame, *of: np.ndarray) -> np.ndarray:
    return -_product(table)


#: Controls, as :data:`probers.evaluation.baselines.OF_TEXT`.
_CONTROLS = OF_TEXT | {
    "mean entropy": ("mean_entropy, not trained", _product, "mean_entropy"),
    "max entropy": ("max_entropy, not trained", _product, "max_entropy"),
    "min probability": ("minus min_prob, not trained", _falling, "min_prob"),
    "perplexity": ("minus mean_logprob, not trained", _falling, "mean_logprob"),
    "sequence log-prob": (
        "minus the sum of the tokens' log-probabilities, not trained", _falling, "mean_logprob", "n_tokens",
    ),
    "context gain": ("minus context_gain, not trained", _falling, "context_gain"),
    "RIND maximum": ("rind_max, not trained", _product, "rind_max"),
    "entropies combined": (
        "all entropy signals, logistic regression", lambda t, *of: numbers(t.to_numpy(dtype=float), *of),
        *SIGNALS,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Margins:
    """Logits (n, heads) of "wrong" minus "correct", a row per text, or per token.

    For tokens ``spans`` (texts, 2) has each text's first row and the one after its last.
    """

    values: np.ndarray
    spans: np.ndarray | None = None
    how: Aggregate | None = None

    def of_texts(self, scores: np.ndarray) -> np.ndarray:
        """Aggregate scores of the rows (n,) to scores (texts,)."""
        return scores if self.spans is None or self.how is None else aggregate(scores, self.spans, self.how)

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Repeat values of the texts for each row (n,) of a text."""
        return values if self.spans is None else np.repeat(values, np.diff(self.spans).ravel())

    def of_head(self, head: int) -> np.ndarray:
        """Score texts (texts,) by one head."""
        return self.of_texts(self.values[:, head])


def score_everything(
    head: ProbeHead, tasks: Sequence[Task], dataset: Dataset, how: Aggregate | None
) -> Margins:
    """Compute the margins of all heads on all texts; RunError names a text with a state that is not finite.

    ``how`` aggregates from tokens to a text, for heads of single tokens.
    """
    states, text_of = dataset.inputs(head)
    # Text by text, where the rows are tokens.
    members = None if head.tokens else dataset.examples.members
    items = np.arange(len(text_of)) if members is None or head.causal else np.concatenate(members)
    index = dataset.places([task.column for task in tasks], joint=head.joint)
    margins = []
    with torch.inference_mode():
        size = at_once(states) if isinstance(states, TokenStates) else CHUNK
        for part in torch.from_numpy(items).split(size):
            x = states[part]
            if not isinstance(x, Padded):
                logits = head(x[:, index].float())
            elif head.causal:
                logits = head(x.states[:, :, index].float(), x.mask, x.judged)[x.judged]
            else:
                logits = head(x.states[:, :, index].float(), x.mask)
            margins.append((logits[..., WRONG].double() - logits[..., CORRECT].double()).numpy())
    values, text_of = np.concatenate(margins), text_of[items]
    if head.causal and members is not None:
        text_of = np.repeat(text_of, list(map(len, members)))
    if len(bad := text_of[~np.isfinite(values).all(axis=1)]):
        what = f"the states of {dataset.examples.table['id'].iloc[bad[0]]!r} are not finite"
        raise RunError(f"{what}: the store is damaged there, make it again", code="damaged")
    if members is None:
        return Margins(values)
    ends = np.cumsum([0, *map(len, members)])
    return Margins(values, np.stack([ends[:-1], ends[1:]], axis=1), how)


def score_texts(bank: Prober, dataset: Dataset, how: Aggregate | None) -> np.ndarray:
    """Score texts (texts,) by a finished prober; ``how`` aggregates from tokens."""
    columns = [Column(bank.spec.site, layer) for layer in bank.layers]
    tasks = probe_tasks(columns, [0], joint=bank.head.joint, beside=dataset.beside_places)
    margins = score_everything(bank.head, tasks, dataset, how)
    return margins.of_texts(bank.ensemble(margins.values))


class CurvePoint(NamedTuple):
    """Prober of a ``share`` of the training groups: its best single layer and all its layers."""

    share: float
    n: int
    groups: int
    layer: Detector
    ensemble: Detector


@dataclass(frozen=True, slots=True)
class Trained:
    """Prober, without metrics and card, with the scores of all compared detectors.

    Attributes:
        layers: each column's head alone, of the first seed.
        seeds: (S, texts) scores of every seed's head; empty with one seed.
        validation: accuracy, loss and AUROC on validation.
        ensembles: by kind, over the layers of the prober's site.
        person: margins (texts,) of the positive control, higher is "not a person".
        best: column with the highest validation AUROC; its site is the prober's.
        calibrations: by kind, from the prober's score to P(wrong).
        training: optimiser ``steps`` it took, and ``heads`` side by side.
        curve: probers of fewer training groups, the smallest first.
        members: those of a stack, in its order.
        distances: (texts,) from the prober's domain.
        token_scores: (rows,) the prober's of every token, in the order of the texts' members.
        notes: parts left out, with the reason.
        adapter: figures of adapters below the head, as ``metrics.json`` holds them; None without.
    """

    bank: Prober
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
    members: Sequence[Detector] = ()
    distances: np.ndarray | None = None
    token_scores: np.ndarray | None = None
    notes: Sequence[str] = ()
    adapter: Mapping[str, Any] | None = None

    @property
    def saved(self) -> Detector:
        """The prober's own score."""
        return self.ensembles[self.bank.combine]


def assemble(
    fitted: Fitted, dataset: Dataset, choice: Assembling, *, controls: bool = True, refuse: bool = True
) -> Trained:
    """Round the weights, calibrate on validation, and score every text with everything.

    Without ``controls``, those that are not heads are left out. Where ``threshold=risk=..`` cannot be
    promised, that is a UserError; without ``refuse`` the prober always fires instead, and its notes say so.
    """
    tasks, examples = fitted.tasks, dataset.examples
    rows, wrong = examples.rows["validation"], examples.wrong[examples.rows["validation"]]
    choose = partial(choice.rule().choose, groups=examples.column("group", "validation"))
    margins = score_everything(half_precision(fitted.head), tasks, dataset, choice.aggregate)
    probes = {task: i for i, task in enumerate(tasks) if task.is_probe}
    first = min(task.seed for task in probes)
    head_of = {task.column: i for task, i in probes.items() if task.seed == first}
    best = max(head_of, key=lambda column: fitted.auroc[head_of[column]])
    site = [column for column in head_of if column.site == best.site]
    heads = [head_of[column] for column in site]
    kinds = {kind: _joined(kind, margins, heads, examples, choice.best_k) for kind in KINDS}
    ensemble, score = kinds[choice.combine]
    calibrations = {kind: fit_calibration(kind, wrong, score[rows]) for kind in CALIBRATIONS}
    beside, names = examples.table, tuple[str, ...](SIGNALS)
    if examples.label == "helps":  # before anything is written, its entropies are not known
        beside = beside.assign(**_known(examples))
        names = KNOWN if dataset.specs[best.site].pool == "prompt" else (*SIGNALS, *KNOWN)
    entropy_model = with_entropy = None
    notes: list[str] = []
    if choice.with_entropy and (lacking := [name for name in names if name not in beside]):
        notes.append(f"prober with entropy left out: the store has no column {lacking[0]}")
    elif choice.with_entropy:
        signals = {name: np.asarray(beside[name]) for name in names}
        of_validation = {name: values[rows] for name, values in signals.items()}
        entropy_model = fit_entropy_model(
            wrong, score[rows], of_validation, lambda *of: choose(*of, refuse=False).value
        )
        what = "all entropy signals" if names == SIGNALS else ", ".join(names)
        about = f"logistic model of the score and {what}, fitted on validation"
        scores = entropy_model(score, signals)
        with_entropy = Detector(WITH_ENTROPY, scores, about, sigmoid, entropy_model.threshold)
    chosen = choose(wrong, score[rows], refuse=refuse)
    if chosen.refused:
        notes.append(f"this prober always fires: {chosen.refused}")
    domain, distances = (None, None) if choice.domain is None else fit_domain(dataset, site, choice.domain)
    layers = [layer for column in site for layer in column.layers]
    spec = replace(dataset.specs[best.site].select(layers), beside=dataset.beside)
    bank = Prober(
        spec, fitted.head.select(heads),
        threshold=chosen.value, promise=chosen.promise, calibration=calibrations[choice.calibration],
        ensemble=ensemble, aggregate=margins.how, entropy_model=entropy_model, domain=domain,
        label=examples.label,
    )  # fmt: skip
    ensembles = {k: Detector(k, s, f"{k} of {len(site)} layers") for k, (_, s) in kinds.items()}
    saved = ensembles[choice.combine]
    ensembles[choice.combine] = replace(saved, probability=bank.probability, threshold=bank.threshold)
    detectors, left_out = control_detectors(examples) if controls else ([], [])
    seeds = {c: np.stack([margins.of_head(i) for t, i in probes.items() if t.column == c]) for c in head_of}
    # Tokens before an entity are there to be read, not to be judged.
    judged = examples.inside is not None and bank.spec.position != "entity" and margins.spans is not None
    return Trained(
        bank=bank, ensembles=ensembles, with_entropy=with_entropy, best=best, calibrations=calibrations,
        distances=distances, training={"steps": fitted.steps, "heads": len(tasks)}, notes=notes + left_out,
        layers={c: _alone(str(c), margins, i, examples) for c, i in head_of.items()},
        seeds=seeds if len(probes) > len(head_of) else {},
        validation={c: {k: float(v[i]) for k, v in fitted.figures.items()} for c, i in head_of.items()},
        controls=[*detectors, *_head_controls(tasks, margins, examples)],
        person=next((margins.of_head(i) for i, t in enumerate(tasks) if t.target == "person"), None),
        token_scores=ensemble(margins.values[:, heads]) if judged else None,
    )  # fmt: skip


def _joined(
    kind: str, margins: Margins, heads: Sequence[int], examples: Examples, k: int
) -> tuple[Ensemble, np.ndarray]:
    """Fit an ensemble on the validation rows; returns it and its scores (texts,)."""
    values = margins.values[:, heads]
    rows = margins.of_rows(np.isin(np.arange(len(examples.table)), examples.rows["validation"]))
    ensemble = fit_ensemble(kind, values[rows], margins.of_rows(examples.wrong)[rows], k=k).over(len(heads))
    return ensemble, margins.of_texts(ensemble(values))


def _alone(
    name: str, margins: Margins, head: int, examples: Examples, about: str = "its head alone",
    labels: np.ndarray | None = None,
) -> Detector:  # fmt: skip
    """Make a detector of one head, with a temperature of its own."""
    scores, rows = margins.of_head(head), examples.rows["validation"]
    wrong = examples.wrong if labels is None else labels
    probability = fit_calibration("temperature", wrong[rows], scores[rows])
    return Detector(name, scores, about, probability=probability, wrong=labels)


def _head_controls(tasks: Sequence[Task], margins: Margins, examples: Examples) -> list[Detector]:
    controls: list[Detector] = []
    for index, task in enumerate(tasks):
        about = f"the same head at {task.column}"
        if task.target == "correct" and task.column.layer == 0:
            controls.append(_alone(EMBEDDING, margins, index, examples, about))
        elif task.column.site == "resid_bare":
            controls.append(_alone(BARE, margins, index, examples, f"{about}, read without passages"))
        elif task.target == "shuffled":
            permuted = 1 - targets_of([task], examples)[:, 0].numpy()
            about += ", trained and tested on permuted labels"
            controls.append(_alone(SHUFFLED, margins, index, examples, about, permuted))
    return controls
