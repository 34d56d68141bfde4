"""Settings of ``probers-train`` and ``probers-search``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from probers.cli.components import Component, choice
from probers.cli.settings import Device, Names, Part, ReadPool, Resamples, Run, Screen, Several, TextFile
from probers.options import Count, Limits, Name, Natural, NotNegative, Positive, Seed
from probers.types import Beside, Site, UserError

if TYPE_CHECKING:
    from probers.prober.decision import ThresholdRule

Loss = Literal["ce", "double_softmax", "span_max", "span_max_all"]
#: Losses that go over from single tokens to the highest token of each span.
SPAN_LOSSES: tuple[Loss, ...] = ("span_max", "span_max_all")
Balance = Literal["none", "weights", "sampling"]
#: Layers of a prober: all or a range, one, or a list.
_Range = Annotated[str, Limits("all, a range as 1-20", pattern=r"^(all|\d{1,4}-\d{1,4})$")]
Layers = _Range | Natural | list[Natural]


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """Training of heads."""

    epochs: Count = 2
    """passes over the training examples"""
    warmup_epochs: Natural = 1
    """passes before a checkpoint may be kept (with epochs=1: none)"""
    checks: Count = 4
    """validations per epoch; of each layer the best by accuracy, then loss, is kept"""
    patience: Count | None = None
    """validations without a better one after which a layer stops training; null never stops"""
    batch_size: Count = 12
    """examples per step"""
    lr: Positive = 1e-3
    """AdamW's initial learning rate"""
    gamma: Positive = 0.995
    """factor on the learning rate after every step"""
    weight_decay: NotNegative = 0.01
    """AdamW's weight decay"""
    loss: Loss = "ce"
    """ce is cross-entropy; double_softmax puts a softmax before it (Probing-RAG's code). For stores of
    tokens, span_max goes over from ce to that of the highest token of each marked span, as the code of Obeso
    et al. (2025); span_max_all counts each unmarked stretch as a right span as well, and weighs spans too"""
    span_weight: Positive = 10.0
    """weight in the loss of a token within a marked span; one outside has 1 (stores of labelled tokens)"""
    label_smoothing: Annotated[float, Limits(ge=0, lt=1)] = 0.0
    """share of a label that is spread over both classes"""
    balance: Balance = "none"
    """weights or sampling for classes of unequal size; weights in the loss, or sampling with
    replacement"""
    seed: Seed = 0
    """seed of every random choice; initial weights, dropout, order of examples, splits and resamples"""
    seeds: Count = 1
    """heads of so many seeds (seed, seed+1, ..) trained side by side to show the spread; the first is kept"""
    device: Device = "auto"
    """where heads are trained"""
    logger: Literal["none", "csv", "wandb"] = "none"
    """training log: csv writes out/log; WANDB_MODE=offline works"""
    save_every: NotNegative = 60.0
    """seconds between checkpoints, from which a killed run resumes"""

    def check_spans(self, *, marked: bool) -> None:
        """Refuse a weight of ``marked`` spans where the texts have none (UserError)."""
        if not marked and self.span_weight != type(self).span_weight:
            why = "has no effect without marked tokens: leave it out, or give a store of unit=token"
            raise UserError(f"span_weight={self.span_weight:g} {why}", "conflict")

    def hardware(self) -> dict[str, Any]:
        """Options of Lightning's trainer for ``device``; UserError for one that this machine lacks."""
        from probers.model.loading import pick_device

        kind, _, index = self.device.partition(":")
        if kind == "xpu":
            raise UserError(f"device={self.device}: heads are trained on cpu, cuda or mps", "unsupported")
        pick_device(self.device)
        return {"accelerator": kind, "devices": [int(index)] if index else 1}


@dataclass(frozen=True, kw_only=True)
class Assembling:
    """Choice of score and decision from heads."""

    combine: Literal["logits", "probabilities", "best", "stacked"] = "logits"
    """how layers become one score; the sum of their logits (paper) or probabilities (released code), the
    mean of the best_k layers (best), or logistic regression (stacked)"""
    best_k: Count = 3
    """layers of combine=best, by validation AUROC"""
    aggregate: Literal["max", "mean", "last"] = "max"
    """how tokens become the score of a text, for stores of pool=tokens"""
    calibration: Literal["platt", "temperature", "isotonic"] = "platt"
    """calibration of P(wrong) on validation"""
    with_entropy: bool = True
    """also fit a logistic model over the score of the heads and the entropies; with label=helps, over that
    score and what is known of the question: ranks of its passages, rarity, length"""
    threshold: Name = "balanced_accuracy"
    """rule that chooses the threshold on validation; balanced_accuracy, f1, accuracy, budget=0.4 (share
    that fires), recall_at_fpr=0.1, cost=5 (of a miss, where a false alarm costs 1), or risk=0.1@0.95 (at
    most that share of what passes is wrong, with that confidence)"""
    domain: Annotated[float, Limits(gt=0, lt=1)] | None = 0.05
    """also describe the states of the training texts, to warn of texts unlike them: those beyond the
    distance that this share of validation texts exceeds; null does not"""

    def rule(self) -> ThresholdRule:
        """Read the rule that chooses thresholds; UserError for an unknown one or a wrong number."""
        from probers.prober.decision import ThresholdRule

        return ThresholdRule.parse(self.threshold)


@dataclass(frozen=True, kw_only=True)
class Stores(Run):
    """Feature stores, their splits, and figures of what is trained on them."""

    data: Names | None = None
    """feature store (a folder); null takes the newest complete one under runs/. Several, as [a,b], are
    read as one when they hold different texts; when they hold the same texts at several sites, the
    prober keeps the best site"""
    pool: ReadPool | None = None
    """pool to train on, for a store with several; null takes its first"""
    suffix: Name | None = None
    """text added to the name of the default folder; a sweep (-m) sets it"""
    label: Literal["wrong", "helps"] = "wrong"
    """label to learn: wrong, or helps, whether one retrieval turns an answer right (stores of source=cot,
    and texts with a column helps)"""
    split: Literal["store"] | tuple[Positive, Positive, Positive] = "store"
    """store keeps the splits of the store; [0.6,0.2,0.2] are shares of train, validation and test, split
    by group"""
    train_on: list[str] = field(default_factory=lambda: [])
    """data sets to train and validate on; [] is all, or all except those of test_on"""
    test_on: list[str] = field(default_factory=lambda: [])
    """data sets to test on; [] is those of train_on"""
    learning_curve: bool = True
    """also train on fewer texts, for a learning curve; on 1000, a quarter and half of them (or on
    sizes)"""
    resamples: Resamples = 1000
    """bootstrap resamples for every 95% interval"""
    checksums: bool = True
    """compare the files of the store with their checksums on first use; false compares sizes"""


@dataclass(frozen=True, kw_only=True)
class Train(Fitting, Assembling, Stores):
    """Train heads on the hidden states of a feature store, calibrate and evaluate them next to controls.

    One head per layer; together they are the prober. All layers, sites and seeds train in one pass.
    """

    screen = Screen(
        "probers-train layer=10", "about half a minute",
        "data layer out test pool site combine threshold calibration epochs lr batch_size balance "
        "resamples learning_curve device logger part seed overwrite",
    )  # fmt: skip

    layer: Layers = "all"
    """layers to train on: all, 10, 1-20 or [6,8,10]; layer k is the residual stream after block k"""
    test: Names | None = None
    """further stores that are tested on only, as [c,d]; their test texts are a column each of the matrix"""
    matrix: bool = False
    """true also trains a prober on each store of data alone and tests all of them on every store: what
    transfers, in out/matrix.json and out/plots/matrix.png"""
    site: Site | Several[Site] | None = None
    """sites to train on; for a store with several: one, or a list as [resid_post,mlp_out]; null takes
    all of the pool"""
    beside: list[Beside] = field(default_factory=lambda: [])
    """sites of the store that head=concat and head=sequence read beside the states, as
    [lookback,attention,probabilities]; such probers score finished texts only"""
    out: Name | None = None
    """prober folder; null is runs/train/<store>-<layers>, with pool, site and beside where they are given"""
    sizes: list[Count] = field(default_factory=lambda: [])
    """also train a prober on each number of training texts, as [1000,3000], in out/sizes/<number>: whole
    groups drawn by seed, each set within the next and as balanced as the whole"""
    layer_sets: list[Literal["each"] | Natural | list[Natural]] = field(default_factory=lambda: [])
    """also make a prober of each set of the trained layers, in out/layers/<set>: [each] is every layer alone,
    [[2,4],[8,10],each] two sets and these"""
    part: Part | None = None
    """i/n trains one of n parts of the layers; in out/parts/iofn; probers-merge joins
    them"""
    texts: TextFile = field(default_factory=TextFile)
    head: Component = choice("probing_rag")
    launch: Component | None = choice(None)


@dataclass(frozen=True, kw_only=True)
class Search(Fitting, Assembling, Stores):
    """Choose head, layers and site on the training groups, then train that prober and test it once.

    Every candidate is trained on some training groups and scored on others, by folds; after each round the
    better half goes on. Validation and test groups take no part in the choice, so that the test figures hold.
    """

    screen = Screen(
        "probers-search minutes=2", "about 3 minutes",
        "data heads layer_sets sites pool minutes folds out combine threshold epochs lr device seed "
        "overwrite",
    )  # fmt: skip

    heads: Names | None = None
    """heads to try; each with options as typed after it: [linear,"radio hidden=64"]; null takes those
    that fit the pool"""
    layer_sets: list[Layers] | None = None
    """sets of layers to try; each as layer= of probers-train takes it: [all,10-20,[8,12,16]]; null takes
    all layers and the upper half of them"""
    sites: Site | Several[Site] | None = None
    """sites to try, one at a time; for a store with several: [resid_post,lookback]; null takes all of
    the pool"""
    beside: list[list[Beside]] | None = None
    """sets of sites to read beside the states, each as beside= of probers-train takes it, by heads that can:
    [[],[lookback,probabilities]]; null takes none, and all that the store has"""
    minutes: Positive = 20.0
    """time for the choice; what would begin later is not tried. The winner's training comes on top"""
    folds: Annotated[int, Limits(ge=2, le=10)] = 3
    """parts of the training groups; each is held out in one round"""
    out: Name | None = None
    """prober folder; null is runs/search/<store>, with pool and sites where they are given"""
