"""Schema of ``metrics.json``: the figures of a prober on test texts, beside those of its controls.

Training makes these objects, the file is written from them, and report, card, pictures and the
documentation's table read them. A figure ``x`` has its 95% interval over groups as ``x_ci``; both are null
where the figure is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

#: Names of the prober's scores.
ENSEMBLE, WITH_ENTROPY = "all layers", "all layers + entropy"
#: Names of the controls that are heads, and of the head on the model without adapters, where there are some.
EMBEDDING, SHUFFLED, WITHOUT = "embedding layer", "shuffled labels", "no adapter"
#: Name of the control that reads the same texts without the passages in their prompts.
BARE = "without passages"
#: Beginning of the names of the controls that read words alone.
WORDS = "bag of words"
#: Ways to join the layers.
ENSEMBLES = {
    "logits": "sum of logits", "probabilities": "sum of probabilities", "best": "mean of the best",
    "stacked": "stacked logistic",
}  # fmt: skip


class Words(NamedTuple):
    """Words of a report for the texts to find, all others, their probability, and scores joined with more."""

    texts: str
    others: str
    probability: str
    joined: str


#: Label that a prober learned -> the words for it.
WORDING = {
    "wrong": Words("wrong", "right", "P(wrong)", WITH_ENTROPY),
    "helps": Words("helped", "not helped", "P(helps)", "all layers + what is known"),
}

Number: TypeAlias = float | None
#: Limits of a 95% interval.
Limits: TypeAlias = tuple[float, float] | None


def figure(meaning: str, default: Any = ...) -> Any:
    """Describe a figure; one without a default must be there."""
    return Field(default, description=meaning)


class Part(BaseModel):
    """Some of the figures."""

    model_config = ConfigDict(frozen=True)

    def get(self, name: str, default: Any = None) -> Any:
        """Look up a figure by its name in the file."""
        return getattr(self, name, default)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON, without what was not measured."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Split(Part):
    """Size of a split."""

    n: int = figure("texts")
    groups: int = figure("questions or articles")
    wrong: float = figure("share of wrong texts")
    datasets: dict[str, int] = figure("texts of each data set")


class Ranking(Part):
    """Order of scores, by AUROC."""

    auroc: Number = figure("area under the ROC curve of finding wrong texts", None)
    auroc_ci: Limits = None


class Quality(Part):
    """Quality of probabilities."""

    brier: Number = figure("Brier score of P(wrong)", None)
    brier_ci: Limits = None
    ece: Number = figure("expected calibration error of P(wrong)", None)
    ece_ci: Limits = None


class Decision(Ranking):
    """Order of scores and share of right decisions."""

    accuracy: Number = figure("share of texts decided right at the threshold", None)
    accuracy_ci: Limits = None
    base_rate: float = figure("share of wrong texts")


class Detection(Decision, Quality):
    """Detection of wrong texts by one score."""

    auprc: Number = figure("area under the precision-recall curve", None)
    auprc_ci: Limits = None
    prr: Number = figure("prediction rejection ratio", None)
    prr_ci: Limits = None
    recall_at_fpr10: Number = figure("recall where 10% of the right texts fire", None)
    recall_at_fpr10_ci: Limits = None
    balanced_accuracy: Number = figure("mean of the recall of wrong and of right texts", None)
    balanced_accuracy_ci: Limits = None
    f1: Number = figure("F1 of wrong texts at the threshold", None)
    f1_ci: Limits = None
    fired: float = figure("share of texts above the threshold")
    threshold: float = figure("threshold of the score, chosen on validation")
    about: str = figure("how the score is made")


class Seeds(Part):
    """Spread over seeds of a head's test AUROC."""

    auroc: list[float] = figure("of each seed")
    mean: float = figure("of all seeds")
    std: float = figure("standard deviation (n - 1)")


class Layer(Detection):
    """One head alone."""

    site: str = figure("site that it reads")
    layer: int = figure("layer, the last one of several")
    validation: dict[str, float] = figure("accuracy, loss and AUROC on validation")
    together: list[int] = figure("all layers of a head of several", [])
    beside: list[str] = figure("sites that it reads beside the states", [])
    seeds: Seeds | None = figure("spread over seeds; null with one seed")


class Member(Detection):
    """A member of a stack alone."""

    weight: float = figure("change of the stack's log-odds for one standard deviation of its score")
    validation: dict[str, float] = figure("accuracy, loss and AUROC on validation")


class Control(Detection):
    """A control."""

    at_chance: bool = figure("of shuffled labels: its interval holds 0.5", True)


class Subset(Part):
    """Detectors on the test texts of one condition or data set."""

    n: int = figure("texts")
    groups: int = figure("groups")
    base_rate: float = figure("share of wrong texts")
    detectors: dict[str, Detection] = figure("by name, at the thresholds of all texts")


class Difference(Part):
    """Paired difference."""

    diff: Number = figure("first minus second")
    ci95: Limits = figure("its 95% interval")


class Cost(Part):
    """Cost per text besides the pass that writes or reads it, in which heads and token signals are read."""

    calls: float = figure("calls of the model", 0)
    tokens: float = figure("generated tokens", 0)

    def __str__(self) -> str:
        written = f", {self.tokens:.4g} token{'' if self.tokens == 1 else 's'}" if self.tokens else ""
        return f"{self.calls:.3g} call{'' if self.calls == 1 else 's'}{written}"


class Ranked(Part):
    """AUROC over all test texts or within strata."""

    auroc: Number = figure("AUROC")
    ci95: Limits = figure("its 95% interval")


class Known(Part):
    """A detector of a moment; its AUROC by division of the test texts, which are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Ranked]

    kind: str = figure("head, signal, or joined: head and signals")
    about: str = figure("how the score is made")
    cost: Cost = figure("calls of the model and tokens per text", Cost(calls=0, tokens=0))


class Moment(Part):
    """Detectors that are available before the first token, or after the last."""

    head: str | None = figure("name of the prober's score; null where it is not known yet")
    detectors: dict[str, Known] = figure("by name")
    pairs: dict[str, dict[str, Difference]] = figure(
        "differences in AUROC by division, of the head and of the head with signals, each minus the others"
    )


class Count(Part):
    """Size of a stratum."""

    n: int = figure("texts")
    wrong: int = figure("wrong ones")


class Division(Part):
    """Test texts divided into strata."""

    compared: int = figure("texts of strata with both classes")
    strata: dict[str, Count] = figure("by name")


class Moments(Part):
    """Detectors of the same moment side by side."""

    position: str = figure("before and after what: answer, entity, span, sentence or claim")
    strata: dict[str, Division] = figure("divisions of the test texts, by length, type and the like")
    gold: bool = figure("also measured by the gold answers, where labels are not made of them", False)
    before: Moment = figure("before the first token")
    after: Moment = figure("after the last token")
    notes: list[str] = figure("what is lacking")


class Level(Ranking):
    """Scores of one level of texts with labelled tokens."""

    n: int = figure("tokens, spans, sentences or answers")
    wrong: float | None = figure("share of wrong ones")
    auprc: Number = figure("area under the precision-recall curve", None)
    auprc_ci: Limits = None
    recall_at_fpr1: Number = figure("recall where 1% of the right ones fire", None)
    recall_at_fpr1_ci: Limits = None
    recall_at_fpr10: Number = figure("recall where 10% of the right ones fire", None)
    recall_at_fpr10_ci: Limits = None
    f1: Number = figure("F1 at the threshold, of tokens and spans", None)
    f1_ci: Limits = None
    false_alarms: Number = figure("of tokens: alarms per 1,000 tokens outside of marked spans", None)
    false_alarms_ci: Limits = None


class Promised(Part):
    """Promise of the threshold, and its outcome."""

    risk: float = figure("largest share of wrong groups among those that pass")
    confidence: float = figure("probability that this holds")
    groups: int = figure("validation groups")
    passing: int = figure("validation groups that passed")
    wrong: int = figure("wrong ones of these")
    test: dict[str, int] = figure("the same of the test texts")


class Calibrated(Part):
    """P(wrong) of the prober's score."""

    method: str = figure("platt, temperature or isotonic")
    before: Quality = figure("of the score's sigmoid")
    after: Quality = figure("of the calibrated probability")
    by_chance: float | None = figure("ECE of an exact probability on so many texts", None)
    constant: bool = figure("the probability is the same for every text", False)
    other: dict[str, Quality] = figure("of the other methods")


class Limited(Part):
    """The domain of the training texts."""

    limit: float = figure("largest distance within")
    rate: float = figure("share of validation texts beyond")
    components: int = figure("directions per layer")
    surprise: list[float] | None = figure("range of surprise within; null for stores without it")
    false_alarms: Number = figure("share of test texts beyond")
    false_alarms_ci: Limits


class CurvePoint(Part):
    """Prober of some of the training groups."""

    share: float = figure("share of the training texts")
    n: int = figure("texts")
    groups: int = figure("groups")
    layer: Detection = figure("its best layer alone")
    ensemble: Detection = figure("its score")


class Origins(Part):
    """Origins of test answers, as told by the prober and its pointer."""

    accuracy: Number = figure("share told right")
    accuracy_ci: Limits = figure("its interval")
    commonest: float = figure("share of the commonest origin")


class Figures(Part):
    """All figures of a prober."""

    version: int = Field(1, alias="schema", description="version of this schema")
    label: str = figure("label that was learned: wrong, or helps, whose texts count as wrong ones", "wrong")
    splits: dict[str, Split] = figure("size of each split")
    best_layer: int = figure("layer with the highest AUROC on validation")
    best_site: str = figure("its site")
    sites: list[str] = figure("sites trained on")
    layers: list[Layer] = figure("heads alone")
    layer_weights: dict[str, float] | None = figure(
        "weight within a head of several layers of each; null where not known", None
    )
    members: dict[str, Member] = figure("members of a stack", {})
    ensembles: dict[str, Detection] = figure("ways to join the layers")
    ensemble: Detection = figure("the score that is saved")
    combine: str = figure("way that it is made")
    with_entropy: Detection | None = figure("the score with all entropy signals; null without")
    controls: dict[str, Control] = figure("detectors that see no state above the embedding")
    positive_control: Decision | None = figure(
        'the same head on "is the answer a person"; null where that cannot be asked'
    )
    conditions: dict[str, Subset] = figure("test texts by condition")
    datasets: dict[str, Subset] = figure("test texts by data set")
    moments: Moments = figure("what is known before and after a text")
    levels: dict[str, Level] | None = figure(
        "tokens, spans, sentences and answers; null without labels of tokens", None
    )
    promise: Promised | None = figure("what the threshold promises; null without", None)
    calibration: Calibrated = figure("probability of the saved score")
    domain: Limited | None = figure("texts unlike the training texts; null without", None)
    learning_curve: list[CurvePoint] = figure("probers of fewer training texts")
    pairs: dict[str, dict[str, Difference]] = figure("paired differences in AUROC, under auroc")
    training: dict[str, int] = figure("steps, heads side by side, and seeds")
    notes: list[str] = figure("what was left out, with the reason")
    origins: Origins | None = figure(
        "answers whose origin (a passage, memory or neither) is told right; null where it is not known", None
    )
    adapter: dict[str, Any] | None = figure(
        "adapters below the head: rank, parameters, divergence, perplexity", None
    )
    search: dict[str, Any] | None = figure("what probers-search tried", None)

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> Figures:
        """Read what ``metrics.json`` holds; ValueError for figures of something else."""
        return cls.model_validate(metrics)

    @property
    def words(self) -> Words:
        return WORDING[self.label]

    @property
    def joined(self) -> str:
        """Name of the score with what else is known, beside that of one layer or of all."""
        joined = self.words.joined
        return joined if len(self.layers) > 1 else joined.replace(f"{ENSEMBLE} +", "with")

    @property
    def best(self) -> Layer:
        """The best layer on validation."""
        best = (self.best_site, self.best_layer)
        return next(entry for entry in self.layers if (entry.site, entry.layer) == best)
