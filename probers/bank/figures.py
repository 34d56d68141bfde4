"""Schema of ``metrics.json``: the figures of a prober on test texts, beside those of its controls.

Training makes these objects, the file is written from them, and report, card, pictures and the table in
``docs/formats.md`` read them. A figure ``x`` has its 95% interval over groups as ``x_ci``; both are null
where the figure is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

#: Names of the prober's scores.
ENSEMBLE, WITH_ENTROPY = "all layers", "all layers + entropy"
#: Names of the controls that are heads, and of the head on the model without adapters, where there are some.
EMBEDDING, SHUFFLED, WITHOUT = "embedding layer", "shuffled labels", "no adapter"
#: Beginning of the names of the controls that read words alone.
WORDS = "bag of words"
#: Ways to join the layers.
ENSEMBLES = {
    "logits": "sum of logits", "probabilities": "sum of probabilities", "best": "mean of the best",
    "stacked": "stacked logistic",
}  # fmt: skip

Number: TypeAlias = float | None
#: Limits of a 95% interval.
Limits: TypeAlias = tuple[float, float] | None


class Part(BaseModel):
    """Some of the figures."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    def get(self, name: str, default: Any = None) -> Any:
        """Look up a figure by its name in the file."""
        return getattr(self, name, default)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON, without what was not measured."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Split(Part):
    """Size of a split."""

    n: int
    """texts"""
    groups: int
    """questions or articles"""
    wrong: float
    """share of wrong texts"""
    datasets: dict[str, int]
    """texts of each data set"""


class Ranking(Part):
    """Order of scores, by AUROC."""

    auroc: Number = None
    """area under the ROC curve of finding wrong texts"""
    auroc_ci: Limits = None


class Quality(Part):
    """Quality of probabilities."""

    brier: Number = None
    """Brier score of P(wrong)"""
    brier_ci: Limits = None
    ece: Number = None
    """expected calibration error of P(wrong)"""
    ece_ci: Limits = None


class Decision(Ranking):
    """Order of scores and share of right decisions."""

    accuracy: Number = None
    """share of texts decided right at the threshold"""
    accuracy_ci: Limits = None
    base_rate: float
    """share of wrong texts"""


class Detection(Decision, Quality):
    """Detection of wrong texts by one score."""

    auprc: Number = None
    """area under the precision-recall curve"""
    auprc_ci: Limits = None
    prr: Number = None
    """prediction rejection ratio"""
    prr_ci: Limits = None
    recall_at_fpr10: Number = None
    """recall where 10% of the right texts fire"""
    recall_at_fpr10_ci: Limits = None
    balanced_accuracy: Number = None
    """mean of the recall of wrong and of right texts"""
    balanced_accuracy_ci: Limits = None
    f1: Number = None
    """F1 of wrong texts at the threshold"""
    f1_ci: Limits = None
    fired: float
    """share of texts above the threshold"""
    threshold: float
    """threshold of the score, chosen on validation"""
    about: str
    """how the score is made"""


class Validation(Part):
    """Figures on validation texts, by which checkpoints and layers are chosen."""

    accuracy: float | None = None
    """share of texts decided right"""
    loss: float | None = None
    """loss of training"""
    auroc: float
    """AUROC"""


class Seeds(Part):
    """Spread over seeds of a head's test AUROC."""

    auroc: list[float]
    """of each seed"""
    mean: float
    """of all seeds"""
    std: float
    """standard deviation (n - 1)"""


class Layer(Detection):
    """One head alone."""

    site: str
    """site that it reads"""
    layer: int
    """layer, the last one of several"""
    validation: Validation
    """figures on validation"""
    together: list[int] = []
    """all layers of a head of several"""
    beside: list[str] = []
    """sites that it reads beside the states"""
    seeds: Seeds | None
    """spread over seeds; null with one seed"""


class Member(Detection):
    """A member of a stack alone."""

    weight: float
    """change of the stack's log-odds for one standard deviation of its score"""
    validation: Validation
    """figures on validation"""


class Control(Detection):
    """A control."""

    at_chance: bool = True
    """of shuffled labels: its interval holds 0.5"""


class Subset(Part):
    """Detectors on the test texts of one condition or data set."""

    n: int
    """texts"""
    groups: int
    """groups"""
    base_rate: float
    """share of wrong texts"""
    detectors: dict[str, Detection]
    """by name, at the thresholds of all texts"""


class Difference(Part):
    """Paired difference."""

    diff: Number
    """first minus second"""
    ci95: Limits
    """its 95% interval"""


class Pair(Part):
    """Paired differences of two detectors on all test texts."""

    auroc: Difference
    """in AUROC"""


class Cost(Part):
    """Cost per text, besides the pass that writes or reads the text.

    Heads and token signals are read in that pass and cost nothing.
    """

    calls: float = 0
    """calls of the model"""
    tokens: float = 0
    """generated tokens"""

    def __str__(self) -> str:
        written = f", {self.tokens:.4g} token{'' if self.tokens == 1 else 's'}" if self.tokens else ""
        return f"{self.calls:.3g} call{'' if self.calls == 1 else 's'}{written}"


class Ranked(Part):
    """AUROC over all test texts or within strata."""

    auroc: Number
    """AUROC"""
    ci95: Limits
    """its 95% interval"""


class Known(Part):
    """A detector of a moment; its AUROC by division of the test texts, which are further keys."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Ranked]

    kind: str
    """head, signal, or joined: head and signals"""
    about: str
    """how the score is made"""
    cost: Cost
    """calls of the model and tokens per text"""


class Moment(Part):
    """Detectors that are available before the first token, or after the last."""

    head: str | None
    """name of the prober's score; null where it is not known yet"""
    detectors: dict[str, Known]
    """by name"""
    pairs: dict[str, dict[str, Difference]]
    """differences in AUROC by division, of the head and of the head with signals, each minus the others"""


class Count(Part):
    """Size of a stratum."""

    n: int
    """texts"""
    wrong: int
    """wrong ones"""


class Division(Part):
    """Test texts divided into strata."""

    compared: int
    """texts of strata with both classes"""
    strata: dict[str, Count]
    """by name"""


class Moments(Part):
    """Detectors of the same moment side by side."""

    position: str
    """before and after what: answer, entity, span, sentence or claim"""
    strata: dict[str, Division]
    """divisions of the test texts, by length, type and the like"""
    gold: bool
    """also measured by the gold answers, where labels are not made of them"""
    before: Moment
    """before the first token"""
    after: Moment
    """after the last token"""
    notes: list[str]
    """what is lacking"""


class Level(Ranking):
    """Scores of one level of texts with labelled tokens."""

    n: int
    """tokens, spans, sentences or answers"""
    wrong: float | None
    """share of wrong ones"""
    auprc: Number = None
    """area under the precision-recall curve"""
    auprc_ci: Limits = None
    recall_at_fpr1: Number = None
    """recall where 1% of the right ones fire"""
    recall_at_fpr1_ci: Limits = None
    recall_at_fpr10: Number = None
    """recall where 10% of the right ones fire"""
    recall_at_fpr10_ci: Limits = None
    f1: Number = None
    """F1 at the threshold, of tokens and spans"""
    f1_ci: Limits = None
    false_alarms: Number = None
    """of tokens: alarms per 1,000 tokens outside of marked spans"""
    false_alarms_ci: Limits = None


class Passing(Part):
    """Test groups below the threshold."""

    passing: int
    """groups"""
    wrong: int
    """wrong ones"""


class Promised(Part):
    """What the threshold promises, and what came of it."""

    risk: float
    """largest share of wrong groups among those that pass"""
    confidence: float
    """probability that this holds"""
    groups: int
    """validation groups"""
    passing: int
    """validation groups that passed"""
    wrong: int
    """wrong ones of these"""
    test: Passing
    """the same of the test texts"""


class Calibrated(Part):
    """P(wrong) of the prober's score."""

    method: str
    """platt, temperature or isotonic"""
    before: Quality
    """of the score's sigmoid"""
    after: Quality
    """of the calibrated probability"""
    by_chance: float | None = None
    """ECE of an exact probability on so many texts"""
    constant: bool = False
    """the probability is the same for every text"""
    other: dict[str, Quality]
    """of the other methods"""


class Limited(Part):
    """The domain of the training texts."""

    limit: float
    """largest distance within"""
    rate: float
    """share of validation texts beyond"""
    components: int
    """directions per layer"""
    surprise: list[float] | None
    """range of surprise within; null for stores without it"""
    false_alarms: Number
    """share of test texts beyond"""
    false_alarms_ci: Limits


class CurvePoint(Part):
    """Prober of some of the training groups."""

    share: float
    """share of the training texts"""
    n: int
    """texts"""
    groups: int
    """groups"""
    layer: Detection
    """its best layer alone"""
    ensemble: Detection
    """its score"""


class Figures(Part):
    """All figures of a prober."""

    version: int = Field(default=1, alias="schema")
    """version of this schema"""
    splits: dict[str, Split]
    """size of each split"""
    best_layer: int
    """layer with the highest AUROC on validation"""
    best_site: str
    """its site"""
    sites: list[str]
    """sites trained on"""
    layers: list[Layer]
    """heads alone"""
    layer_weights: dict[str, float] | None = None
    """weight within a head of several layers of each; null where not known"""
    members: dict[str, Member] = {}
    """members of a stack"""
    ensembles: dict[str, Detection]
    """ways to join the layers"""
    ensemble: Detection
    """the score that is saved"""
    combine: str
    """way that it is made"""
    with_entropy: Detection | None
    """the score with all entropy signals; null without"""
    controls: dict[str, Control]
    """detectors that see no state above the embedding"""
    positive_control: Decision | None
    """the same head on "is the answer a person"; null where that cannot be asked"""
    conditions: dict[str, Subset]
    """test texts by condition"""
    datasets: dict[str, Subset]
    """test texts by data set"""
    moments: Moments
    """what is known before and after a text"""
    levels: dict[str, Level] | None = None
    """tokens, spans, sentences and answers; null without labels of tokens"""
    promise: Promised | None = None
    """what the threshold promises; null without"""
    calibration: Calibrated
    """probability of the saved score"""
    domain: Limited | None = None
    """texts unlike the training texts; null without"""
    learning_curve: list[CurvePoint]
    """probers of fewer training texts"""
    pairs: dict[str, Pair]
    """paired differences, first minus second"""
    training: dict[str, int]
    """steps, heads side by side, and seeds"""
    notes: list[str]
    """what was left out, with the reason"""
    adapter: dict[str, Any] | None = None
    """adapters below the head: rank, parameters, divergence, perplexity"""
    search: dict[str, Any] | None = None
    """what probers-search tried"""

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> Figures:
        """Read what ``metrics.json`` holds; ValueError for figures of something else."""
        return cls.model_validate(metrics)

    @property
    def best(self) -> Layer:
        """The best layer on validation."""
        best = (self.best_site, self.best_layer)
        return next(entry for entry in self.layers if (entry.site, entry.layer) == best)
