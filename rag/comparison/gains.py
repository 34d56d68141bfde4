"""Share of the oracle's gain over random retrieval that a method reaches, over the whole curve of budgets.

Right answers against retrievals per question are a curve from the closed-book answers to those after all
retrievals. The area between a method's curve and that of random retrieval, divided by the same area of an
oracle, is the Qini coefficient of uplift modelling (Radcliffe 2007, "Using control groups to target on
predicted lift"), 1 for the oracle and 0 for chance. The oracle knows of every retrieval whether it makes an
answer right or wrong, and spends each budget on those that help most and harm least.

A method's curve leads through the closed-book answers, its thresholds or other settings, and the answers
after all retrievals. Points in between are reached by drawing one of two settings for each question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from probers.evaluation.bootstrap import Sample

from ..triggers.rules import Always
from .curves import QueryTrajectory, Rerun
from .methods import MethodRun
from .outcomes import Evaluation, Outcomes
from .trajectories import thinned

#: Share of the oracle's gain, retrievals per question saved at the accuracy of ``always``, and accuracy
#: gained at its number of retrievals.
SHARE, SAVED, GAINED = GAINS = ("gain_share", "retrievals_saved", "accuracy_gained")
#: Figures of the oracle: its gain over random retrieval, averaged over the budgets, the highest figure on its
#: curve, and the fewest retrievals with that.
_OF_ORACLE = ("gain", "highest", "retrievals")
#: Oracle's gain below which nothing can be a share of it.
_NONE = 1e-9

#: Mean retrievals and figure (points, r) along a curve, in r resamples.
Points: TypeAlias = tuple[np.ndarray, np.ndarray]


class Curve(NamedTuple):
    """Retrievals and a figure of every question (points, n) at each point of a curve."""

    retrievals: np.ndarray
    figure: np.ndarray

    @classmethod
    def of(cls, points: Sequence[Mapping[str, np.ndarray]], figure: str) -> Curve:
        return cls(*(np.stack([point[name] for point in points]) for name in ("retrievals", figure)))

    def means(self, weights: np.ndarray) -> Points:
        """Compute means for weights (n, r), each resample's by ascending retrievals."""
        x, y = (table @ weights / weights.sum(axis=0) for table in self)
        order = np.argsort(x, axis=0, kind="stable")
        return np.take_along_axis(x, order, axis=0), np.take_along_axis(y, order, axis=0)


class OracleOfHelps:
    """Oracle that knows of each retrieval whether it makes an answer right, wrong or neither.

    For each budget it is the best that any trigger of whole answers can do with the query. Each question's
    further retrievals are bought in the order of what one of them gains, the most harmful last; retrievals
    that gain together only, one after the other, are bought together.
    """

    def __init__(self, steps: Curve) -> None:
        bought = [_hull(*each) for each in zip(steps.retrievals.T, steps.figure.T, strict=True)]
        parts = [(i, *part) for i, parts in enumerate(bought) for part in parts]
        parts.sort(key=lambda part: -part[2] / part[1])
        self._start = steps.figure[0]
        self._of = np.array([part[0] for part in parts], dtype=int)
        self._retrievals, self._gains = (np.array([part[k] for part in parts]) for k in (1, 2))

    def means(self, weights: np.ndarray) -> Points:
        """Compute means as :meth:`Curve.means`, a point for each retrieval."""
        shares = weights.astype(np.float64) / weights.sum(axis=0)
        bought = (np.cumsum((shares[self._of].T * v).T, axis=0) for v in (self._retrievals, self._gains))
        x, y = (np.concatenate([np.zeros((1, shares.shape[1])), values]) for values in bought)
        return x, self._start @ shares + y


def _hull(retrievals: np.ndarray, figure: np.ndarray) -> list[tuple[float, float]]:
    """List the pieces (retrievals, gain) of the upper concave hull of a question's steps."""
    corners: list[tuple[float, float]] = []
    for point in dict(zip(retrievals.tolist(), figure.tolist(), strict=True)).items():
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(corners)]


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _area(points: Points) -> np.ndarray:
    x, y = points
    return (np.diff(x, axis=0) * (y[1:] + y[:-1]) / 2).sum(axis=0)


def _between(points: Points, place: np.ndarray) -> tuple[np.ndarray, ...]:
    """Take the ends (r,) of the piece before a place (r,): x, y of the first, x, y of the second."""
    ends = (np.maximum(place - 1, 0)[None], place[None])
    return tuple(np.take_along_axis(values, end, axis=0)[0] for end in ends for values in points)


def _share(part: np.ndarray, whole: np.ndarray, without: float) -> np.ndarray:
    """Divide (r,), with ``without`` where there is nothing to divide by."""
    return np.where(whole > _NONE, part / np.where(whole > _NONE, whole, 1), without)


def _at(points: Points, budget: np.ndarray) -> np.ndarray:
    """Read a curve at a budget (r,)."""
    place = np.minimum((points[0] <= budget).sum(axis=0), len(points[0]) - 1)
    x0, y0, x1, y1 = _between(points, place)
    return y0 + np.clip(_share(budget - x0, x1 - x0, 0.0), 0, 1) * (y1 - y0)


def _reached(points: Points, level: np.ndarray) -> np.ndarray:
    """Find the fewest retrievals (r,) with which a curve reaches a level (r,); NaN where it does not."""
    there = points[1] >= level - _NONE
    x0, y0, x1, y1 = _between(points, there.argmax(axis=0))
    crossing = x0 + np.clip(_share(level - y0, y1 - y0, 1.0), 0, 1) * (x1 - x0)
    return np.where(there.any(axis=0), crossing, np.nan)


@dataclass(frozen=True)
class Reference:
    """Random retrieval and the oracle with one query: the steps of its recorded answers."""

    query: str
    steps: Curve
    oracle: OracleOfHelps

    @classmethod
    def of(cls, entry: QueryTrajectory, figure: str) -> Reference:
        steps = Curve.of(entry.trajectory.all_steps(), figure)
        return cls(entry.name, steps, OracleOfHelps(steps))

    def gained(self, points: Points, weights: np.ndarray) -> np.ndarray:
        """Compute the area (r,) between a curve and random retrieval, divided by the largest budget."""
        random = self.steps.means(weights)
        return _share(_area(points) - _area(random), random[0][-1], np.nan)

    def of_oracle(self, weights: np.ndarray) -> list[np.ndarray]:
        """Compute the figures (r,) of :data:`_OF_ORACLE`."""
        points = self.oracle.means(weights)
        highest = points[1].max(axis=0)
        return [self.gained(points, weights), highest, _reached(points, highest)]


@dataclass(frozen=True)
class Gains:
    """Gains over random retrieval.

    Attributes:
        by_method: samples of :data:`GAINS` of each method that retrieves and does not go by chance; the last
            two only beside a run of ``always``.
        by_query: samples of the oracle's figures (:data:`_OF_ORACLE`) for each query that methods are
            measured with.
        curves: the oracle's curve for each of these.
    """

    by_method: Mapping[str, Mapping[str, Sample]]
    by_query: Mapping[str, Mapping[str, Sample]]
    curves: Mapping[str, Mapping[str, list[float]]]

    @classmethod
    def of(
        cls, recorded: Sequence[QueryTrajectory], runs: Mapping[str, MethodRun], reruns: Mapping[str, Rerun],
        evaluation: Evaluation,
    ) -> Gains:  # fmt: skip
        """Measure every method with the query of the triggers of whole answers, as random retrieval is."""
        figure, references = evaluation.headline, dict[str, Reference]()
        always = next((run for run in runs.values() if isinstance(run.method.trigger, Always)), None)
        by_method: dict[str, Mapping[str, Sample]] = {}
        by_query: dict[str, Mapping[str, Sample]] = {}
        for name, run in runs.items():
            entry = _measured_with(recorded, run)
            chance = run.method.trigger.decides_by == "chance"
            if chance or entry is None or not run.cost("retrievals").any():
                continue
            if entry.name not in references:
                references[entry.name] = Reference.of(entry, figure)
                measured = evaluation.samples(references[entry.name].of_oracle)
                by_query[entry.name] = dict(zip(_OF_ORACLE, measured, strict=True))
            reference = references[entry.name]
            curve = _curve(run, entry, reruns.get(name), reference, figure)
            other = None if always is None or run is always else _point(always, figure)
            samples = evaluation.samples(partial(_measured, curve, reference, other))
            by_method[name] = dict(zip(GAINS, samples, strict=False))
        curves = {}
        for name, reference in references.items():
            x, y = (v[:, 0] for v in reference.oracle.means(np.ones((reference.steps.figure.shape[1], 1))))
            places = thinned(len(x))
            curves[name] = {"retrievals": x[places].tolist(), figure: y[places].tolist()}
        return cls(by_method, by_query, curves)

    def figures(self, method: str) -> dict[str, float | None]:
        """Return the values of :data:`GAINS`; null where one is undefined."""
        samples = self.by_method.get(method, {})
        return {name: _known(samples[name].value) if name in samples else None for name in GAINS}

    def intervals(self, method: str) -> dict[str, list[float]]:
        """Return the 95% limits of each gain that has them."""
        limits = {name: one.interval.limits for name, one in self.by_method.get(method, {}).items()}
        return {name: ends for name, ends in limits.items() if ends is not None}

    def notes(self) -> list[str]:
        """Tell what the oracle reaches, and with which queries nothing can be gained."""
        notes = []
        for name, samples in self.by_query.items():
            gain, highest, retrievals = (samples[key].value for key in _OF_ORACLE)
            reached = (
                f"the oracle of helps reaches {highest:.3f} with {retrievals:.2f} retrievals per question, "
                f"and gains {gain:.3f} over random retrieval on average"
            )
            nothing = (
                "retrieving for the right questions gains nothing over retrieving at random: no method has a "
                "share of the oracle's gain"
            )
            notes.append(f"With the query {name}, {reached if gain > _NONE else nothing}.")
        return notes

    @property
    def record(self) -> dict[str, Any]:
        """The oracle's figures by query, for results.json."""
        return {
            name: {key: _known(sample.value) for key, sample in samples.items()}
            | {"ci95": {key: sample.interval.limits for key, sample in samples.items()}}
            for name, samples in self.by_query.items()
        }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _measured(
    curve: Curve, reference: Reference, always: Curve | None, weights: np.ndarray
) -> list[np.ndarray]:
    """Compute :data:`GAINS` of a curve for weights of the questions; ``always`` is the point of that run."""
    points = curve.means(weights)
    oracle, gained = reference.of_oracle(weights)[0], reference.gained(points, weights)
    share = _share(gained, oracle, np.nan)
    if always is None:
        return [share]
    (budget,), (level,) = always.means(weights)
    return [share, budget - _reached(points, level), _at(points, budget) - level]


def _measured_with(recorded: Sequence[QueryTrajectory], run: MethodRun) -> QueryTrajectory | None:
    """Choose the recorded answers that a method is measured with: its own, or those of whole answers."""
    alike = [entry for entry in recorded if entry.retriever is run.method.retriever]
    order = [(bool(entry.trajectory.triggers), run.name in entry.methods) for entry in alike]
    return alike[order.index(max(order))] if alike else None


def _curve(
    run: MethodRun, entry: QueryTrajectory, rerun: Rerun | None, reference: Reference, figure: str
) -> Curve:
    trajectory = entry.trajectory
    if run.name in trajectory.triggers:
        thresholds = trajectory.thresholds(run.name)
        points = [Curve.of([trajectory.replay(run.name, t) for t in thresholds], figure)]
    else:
        points = [_point(each, figure) for each in ([run] if rerun is None else rerun.outcomes.values())]
    steps = reference.steps
    first, last = Curve(*(v[:1] for v in steps)), Curve(*(v[-1:] for v in steps))
    joined = [np.concatenate(parts) for parts in zip(first, *points, last, strict=True)]
    # A method cannot be measured beyond the largest budget of the others.
    return Curve(np.minimum(joined[0], steps.retrievals[-1]), joined[1])


def _point(run: Outcomes, figure: str) -> Curve:
    return Curve(run.cost("retrievals")[run.scored][None], run.table[figure][None])
