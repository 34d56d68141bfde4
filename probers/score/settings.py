"""Settings of ``probers-score`` and ``probers-check``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ..commands.settings import BatchSize, Model, OnBadLine, Run, Settings, TextFile
from ..options import Count, Limits, Name, Natural, Positive


@dataclass(frozen=True, kw_only=True)
class Score(Run):
    """Score texts that exist already: probers-score FILE, or texts=FILE.

    Every line has prompt (or messages of a chat) and answer, and optionally id and labels: wrong, or
    spans, sentences and claims. The answer is put right behind the prompt. out/scores.jsonl and a page to
    read, out/scores.html, are written; an interrupted run resumes with the same command.
    """

    model: Model = field(default_factory=Model)
    texts: TextFile = field(default_factory=TextFile)
    prober: Name | None = None
    """prober folder or hub id; null is the newest of this model, or the one that comes with the package"""
    threshold: float | None = None
    """score above which a text fires; null is the prober's own"""
    allow_other: bool = False
    """true also takes a prober of other weights of the same shape (another quantization of its model), with a
    warning"""
    out: Name | None = None
    """folder to write; null is runs/score/<name of the file>"""
    shown: Natural = 200
    """most texts on the page, those with the highest scores"""
    on_bad_line: OnBadLine = "error"
    """what a malformed input line does: stop before the model runs, or be left out"""
    batch_size: BatchSize = "auto"
    """texts per forward pass; auto halves when memory runs out"""


@dataclass(frozen=True, kw_only=True)
class Check(Settings):
    """Check that an engine's hidden states are those that probers are trained on.

    The right layers, before the final norm. Exits with 1 and names the mistake where they are not.
    """

    model: Model = field(default_factory=Model)
    engine: Name = "transformers"
    """engine to compare with our capture: transformers (plain output_hidden_states), vllm (states of
    every layer that engine=vllm reads), or the URL of a server with a prober (its scores)"""
    prober: Name | None = None
    """prober folder or hub id whose layers are checked; null checks all layers, and for a server takes
    the newest of this model or the one that comes with the package"""
    prompts: Annotated[list[str], Limits("a list of texts", min_length=1)] = field(
        default_factory=lambda: [
            "The capital of France is",
            "Marie Curie was born in",
            "Question: Who wrote Hamlet?\nAnswer:",
            "In the year 1969, the first",
        ]
    )
    """texts to continue"""
    max_new_tokens: Count = 24
    """tokens written after each prompt and compared"""
    tolerance: Positive | None = None
    """largest relative difference that counts as the same; null goes by the number format"""
    allow_other: bool = False
    """true also takes a prober of other weights of the same shape (another quantization of its model), with a
    warning"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass; auto halves when memory runs out"""
