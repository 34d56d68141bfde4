"""Settings of ``probers-score``, ``probers-check``, ``probers-import`` and ``probers-export``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from ..cli.settings import BatchSize, Model, OnBadLine, Resamples, Run, Screen, Settings, TextFile
from ..options import Count, Limits, Name, Natural, Positive


@dataclass(frozen=True, kw_only=True)
class Score(Run):
    """Score texts that exist already: probers-score FILE, or texts=FILE.

    Every line has prompt (or messages of a chat) and answer, and optionally id and labels: wrong, or
    spans, sentences and claims. The answer directly follows the prompt. out/scores.jsonl and a page to
    read, out/scores.html, are written; an interrupted run resumes with the same command.
    """

    screen = Screen(
        "probers-score answers.jsonl", "about 10 seconds",
        "texts.path texts.format out model.name prober threshold shown model.device batch_size seed "
        "overwrite",
    )  # fmt: skip

    model: Model = field(default_factory=Model)
    texts: TextFile = field(default_factory=TextFile)
    prober: Name | None = None
    """prober folder or hub id; null is the newest of this model, or the one that comes with the package"""
    threshold: float | None = None
    """score above which a text fires; null is the prober's own"""
    allow_other: bool = False
    """true takes a prober of other weights, with a warning; of the same shape, as another quantization
    of its model"""
    out: Name | None = None
    """folder to write; null is runs/score/<name of the file>"""
    shown: Natural = 200
    """largest number of texts on the page; those with the highest scores"""
    on_bad_line: OnBadLine = "error"
    """treatment of a malformed input line: stop before the model runs, or leave it out"""
    batch_size: BatchSize = "auto"
    """texts per forward pass; auto halves when memory runs out"""


@dataclass(frozen=True, kw_only=True)
class Check(Settings):
    """Check that an engine's hidden states are those that probers are trained on.

    The right layers, before the final norm. Exits with 1 and names the mistake where they are not.
    """

    screen = Screen(
        "probers-check engine=transformers", "about 10 seconds",
        "engine model.name prober prompts max_new_tokens tolerance model.device model.dtype",
    )  # fmt: skip

    model: Model = field(default_factory=Model)
    engine: Name = "transformers"
    """engine to compare with our capture; transformers (plain output_hidden_states), vllm (states of
    every layer that engine=vllm reads), or the URL of a server with a prober (its scores)"""
    prober: Name | None = None
    """prober folder or hub id whose layers are checked; null checks all layers, and for a server takes
    the newest of this model or the one that comes with the package"""
    prompts: Annotated[list[str], Limits("a list of texts", min_length=1)] = field(
        default_factory=lambda: [
            "The capital of France is", "Marie Curie was born in", "Question: Who wrote Hamlet?\nAnswer:",
            "In the year 1969, the first",
        ]
    )  # fmt: skip
    """texts to continue"""
    max_new_tokens: Count = 24
    """tokens written after each prompt and compared"""
    tolerance: Positive | None = None
    """largest relative difference that counts as the same; null goes by the number format"""
    allow_other: bool = False
    """true takes a prober of other weights, with a warning; of the same shape, as another quantization
    of its model"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass; auto halves when memory runs out"""


@dataclass(frozen=True, kw_only=True)
class Import(Run):
    """Make a prober of a linear probe of hallucination_probes: probers-import FOLDER model=NAME texts=FILE.

    Its files are probe_config.json (layer_idx, hidden_size) and probe_head.bin (weight and bias of one logit
    per token, above 0 where it is likely wrong); a LoRA adapter beside them is refused. Labelled texts, as in
    probers-datagen --source texts, calibrate P(wrong) and choose the threshold by the highest token of each
    marked span, or of an answer with one label (validation split), and test both (test split). Without texts
    the threshold is 0, and P(wrong) is not calibrated.
    """

    screen = Screen(
        "probers-import my/probe model=my/model texts=texts.jsonl", "about a minute",
        "probe model.name texts.path texts.format limit threshold out model.device batch_size overwrite",
    )  # fmt: skip

    probe: Name | None = None
    """folder with both files, or hub id; given without a key too"""
    subfolder: Name | None = None
    """folder of the probe within that folder or hub repository"""
    revision: Name | None = None
    """revision of the probe on the hub"""
    model: Model = field(default_factory=Model)
    texts: TextFile = field(default_factory=TextFile)
    limit: Count | None = None
    """texts, whole groups drawn by seed; null takes all"""
    threshold: Name = "balanced_accuracy"
    """rule that chooses the threshold on validation; as in probers-train: balanced_accuracy, f1,
    accuracy, budget=0.4, recall_at_fpr=0.1, cost=5, or risk=0.1@0.95"""
    resamples: Resamples = 1000
    """bootstrap resamples for every 95% interval"""
    out: Name | None = None
    """prober folder; null is runs/import/<name of the probe>"""
    on_bad_line: OnBadLine = "error"
    """treatment of a malformed input line: stop before the model runs, or leave it out"""
    batch_size: BatchSize = "auto"
    """texts per forward pass; auto halves when memory runs out"""

    @property
    def unread(self) -> Mapping[str, str]:
        names = ("limit", "threshold", "resamples", "on_bad_line", "texts")
        return dict.fromkeys(names, "there are no texts; give texts=FILE") if self.texts.path is None else {}


@dataclass(frozen=True, kw_only=True)
class Export(Settings):
    """Write a linear head of a prober as a probe of hallucination_probes: probers-export PROBER out=FOLDER.

    For head=linear trained on pool=tokens and site=resid_post. Standardisation goes into weight and bias;
    threshold and calibration have no place in probe_config.json and probe_head.bin, and are shown.
    """

    screen = Screen(
        "probers-export runs/prober layer=10 out=runs/export", "seconds",
        "prober layer out",
    )  # fmt: skip

    prober: Name | None = None
    """prober folder or hub id; given without a key too"""
    layer: Natural | None = None
    """layer to export, for a prober with several"""
    out: Name | None = None
    """folder to write; null is runs/export/<name of the prober>"""
