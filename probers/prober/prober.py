"""Prober: trained heads of several layers, their decision rule and calibration, frozen.

The score of a text adds up how much "wrong" outweighs "correct" in each layer, by
default as a sum (Probing-RAG: retrieve when sum logit[0] + theta > sum logit[1], so
theta = -threshold). Heads of single tokens score each token, and a span by its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from huggingface_hub import ModelHubMixin

from ..data.records import BadLine
from ..data.rows import FIELDS
from ..data.splits import Seen
from ..data.texts import TextSource
from ..heads import Memory, ProbeHead, head_name
from ..model.language_model import check_model
from ..options import refuse_unknown
from ..progress import warn_once
from ..signals.grounding import Pointer
from ..store.spec import FeatureSpec, ModelSpec, ranges
from ..types import Needs, UserError
from .calibration import Calibration, EntropyModel, Temperature, sigmoid
from .decision import Ensemble, checked_logits, margins, run_heads, run_heads_on_marked, run_heads_on_spans
from .domain import Domain
from .figures import Figures
from .io import HubOptions, locate, read_parts, save
from .report import Report
from .response import ScoredTexts
from .risk_control import Promise
from .scoring import Action, JudgedWriter, OnHigh, score_rows
from .token_scores import AGGREGATES, Aggregate, aggregate, check_spans
from .value_head import is_value_head, read_value_head

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..model.causal_lm import CausalLM
    from .assessment import Unit
    from .loops import Per
    from .watch import Scores, StopOnScore


@dataclass(frozen=True, repr=False, eq=False)
class Prober(ModelHubMixin):
    """Frozen heads, one per layer of ``spec.layers`` or one of all; call it with states to get scores.

    ``save_pretrained(path, push_to_hub=False, repo_id=None)`` and ``push_to_hub(repo_id, private=None, ..)``
    come from :class:`huggingface_hub.ModelHubMixin`, whose uploads are public unless told to be private.
    Probers are compared by identity. ValueError for parts that do not fit each other.

    Attributes:
        threshold: fires when the score exceeds it; chosen on validation data, like the calibration.
        promise: bound on the share of wrong texts that do not fire, if the threshold was chosen by it.
        aggregate: rule that makes a span's score from its tokens' scores, for heads of single tokens
            (``spec.pool`` is "tokens"), whose threshold and calibration hold for spans; else None.
        entropy_model: combines the heads' score with entropies, or with what is known of the question if the
            label is "helps"; None when not fitted.
        recogniser: found the entities whose labels it learned (``recogniser`` of probers-datagen), if any.
        columns: columns of its training texts by field, as ``{"answer": "output"}``, where the names differ;
            :meth:`score` finds them again.
        domain, seen: states and questions of its training; None if unknown.
        metrics, card, pictures: ``metrics.json``, ``README.md``, and the card's PNG files by name.
        pointer: attention heads that point to the passage that a text rests on, if heads read passages.
        adapter: folder of the LoRA adapter that the model must run with; None for an unchanged model.
        label: what its probability is of: the text is "wrong", or one retrieval "helps" and turns it right.
        allow_other: also read other weights of the same shape, such as another quantization of the
            model, with a warning; not saved.
    """

    spec: FeatureSpec
    head: ProbeHead
    threshold: float = 0.0
    calibration: Calibration = Temperature()  # noqa: RUF009 (frozen)
    ensemble: Ensemble = Ensemble()  # noqa: RUF009 (frozen)
    aggregate: Aggregate | None = None
    entropy_model: EntropyModel | None = None
    recogniser: str | None = None
    columns: Mapping[str, str] | None = None
    domain: Domain | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    seen: Seen | None = None
    promise: Promise | None = None
    pointer: Pointer | None = None
    adapter: Path | None = None
    label: Literal["wrong", "helps"] = "wrong"
    allow_other: bool = False

    # If this is empty, the mixin collects constructor arguments and sets it on the instance,
    # which a frozen class forbids. It is never written: :mod:`.io` writes config.json.
    _hub_mixin_config = {"format": "probers-bank"}  # noqa: RUF012

    def __post_init__(self) -> None:
        shape, pool = (self.spec.places, self.spec.width), self.spec.pool
        if self.head.reads != shape:
            raise ValueError(f"heads of (places, width) {self.head.reads} do not fit features of {shape}")
        if self.domain is not None and self.domain.shape != shape:
            raise ValueError(f"a domain of (places, width) {self.domain.shape} does not fit the heads")
        if pool != "tokens" and (self.head.tokens or self.head.causal):
            raise UserError(f"these heads read every token and cannot read pool={pool}", "mismatch")
        if (pool == "tokens" and not self.head.tokens) != (self.aggregate is not None):
            message = f"aggregate={self.aggregate or 'null'}: heads of single tokens need max, mean or last"
            raise UserError(f"{message}, and all others null", "conflict")
        if self.aggregate not in (None, *AGGREGATES):
            message = f"aggregate={self.aggregate} is not one of {', '.join(AGGREGATES)}"
            raise UserError(message, "unknown-choice")
        object.__setattr__(self, "ensemble", self.ensemble.over(len(self.head.streams)))
        self.head.eval().requires_grad_(False)

    def __repr__(self) -> str:
        layers = ", ".join([ranges(self.layers), *dict.fromkeys(self.spec.names[len(self.layers) :])])
        of = f"{head_name(self.head)} on {layers} of {self.spec.model}"
        return f"Prober({of}, pool={self.spec.pool}, position={self.spec.position})"

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the heads, 1-based."""
        return self.spec.layers

    @property
    def combine(self) -> str:
        """Kind of the ensemble: "logits", "probabilities", "best" or "stacked"."""
        return self.ensemble.kind

    @property
    def needs(self) -> Needs:
        """Features that a generation must record to be scored."""
        return self.spec.needs

    def check_model(self, model: ModelSpec) -> None:
        """Refuse a model other than the training model; :attr:`allow_other` only warns of the same shape."""
        trained = self.spec.model
        other = (trained.layers, trained.width, trained.adapter) != (model.layers, model.width, model.adapter)
        if trained.same_as(model) or other:
            return self.spec.check_model(model, what="the prober")
        message, remedy = f"the prober {trained.against(model)}", "another quantization of the same model"
        if self.allow_other:
            of = "threshold and calibration are of the former"
            return warn_once(f"warning: {message} (allow_other=true): {of}")
        if trained.same_weights(model):
            remedy = "it, though its scores and threshold may be off"
        fix = f"use that model or train a prober for this one; allow_other=true takes {remedy}"
        raise UserError(f"{message}: {fix}", "mismatch")

    def logits(self, states: np.ndarray | torch.Tensor, mask: Any = None) -> np.ndarray:
        """Compute float32 logits (n, heads, 2), [wrong, correct]; arguments as in :meth:`score_states`."""
        return run_heads(self.head, states, mask)

    def margins(self, states: np.ndarray | torch.Tensor, mask: Any = None) -> np.ndarray:
        """Compute (n, heads) margins, "wrong" minus "correct"; arguments as in :meth:`score_states`."""
        return margins(self.logits(states, mask))

    def score_states(
        self, states: np.ndarray | torch.Tensor, signals: Mapping[str, Any] | None = None, *, mask: Any = None
    ) -> np.ndarray:
        """Compute the score (n,), higher for likelier wrong texts; it fires above :attr:`threshold`.

        Args:
            states: (n, layers, d), one row per text, or per token for heads of single tokens, whose threshold
                is for :meth:`score_spans`; for causal heads the tokens of one text in order; (n, T, layers,
                d) for heads that pool tokens themselves.
            signals: entropy signals (n,) each; with them the result is the log-odds of "wrong" from heads and
                entropies, which fires above ``entropy_model.threshold``.
            mask: (n, T) bool, marks existing tokens, for heads that pool them; None means all.

        RunError for states that are not finite, or a signal that is absent or not finite.
        """
        score = self.ensemble(self.margins(states, mask))
        return score if signals is None else self._with_entropy(score, signals)

    __call__ = score_states

    def score_next(self, states: torch.Tensor, memory: Memory | None) -> tuple[np.ndarray, Memory]:
        """Compute scores (n,) of the next token of n texts by causal heads, and the texts' new memory.

        ``states`` are (n, layers, d); the memory None means new texts. Token by token this equals
        :meth:`score_states` of the whole text.
        """
        with torch.inference_mode():
            x = states.to(self.head.device, torch.float32).unsqueeze(-3)
            logits, memory = self.head.advance(x, memory or self.head.begin(len(x)))
        return self.ensemble(margins(checked_logits(logits.cpu()))), memory

    def score_spans(
        self, states: np.ndarray | torch.Tensor, spans: Any, signals: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """Compute scores (n,) of spans of tokens; they fire above :attr:`threshold`.

        ``states`` (t, layers, d) belong to a text's tokens, ``spans`` (n, 2) are first token and one after
        last; ``signals`` belong to the spans, as in :meth:`score_states`. UserError for pooled heads.
        """
        bounds = check_spans(spans, len(states))
        if self.head.marker and self.aggregate is not None:
            each = (self.ensemble(margins(run_heads_on_marked(self.head, states, span))) for span in bounds)
            score = np.array([aggregate(scores, [(0, len(scores))], self.aggregate)[0] for scores in each])
        elif self.aggregate is not None:
            score = aggregate(self.score_states(states), bounds, self.aggregate)
        elif self.head.tokens:
            score = self.ensemble(margins(run_heads_on_spans(self.head, states, bounds)))
        else:
            message = f"pool={self.spec.pool} gives no scores of spans: train a prober on pool=tokens"
            raise UserError(message, "unsupported")
        return score if signals is None else self._with_entropy(score, signals)

    def _with_entropy(self, score: np.ndarray, signals: Mapping[str, Any]) -> np.ndarray:
        if self.entropy_model is None:
            raise UserError("this prober has no entropy model: use with_entropy=false", "unsupported")
        return self.entropy_model(score, signals)

    def probability(self, score: np.ndarray, *, with_entropy: bool = False) -> np.ndarray:
        """Compute P(wrong) from scores (n,) of texts or spans; made ``with_entropy`` they are log-odds."""
        return sigmoid(score) if with_entropy else self.calibration(np.asarray(score, dtype=np.float64))

    def to(self, device: Any) -> Prober:
        """Move heads and domain in place; return the prober itself."""
        self.head.to(device)
        if self.domain is not None:
            object.__setattr__(self, "domain", self.domain.to(device))
        return self

    @classmethod
    def fit(cls, *given: Any, **options: Any) -> Prober:
        """Train a prober: :func:`probers.fit`, whose arguments it takes."""
        return resolve_name("probers:fit")(*given, **options)  # type: ignore[no-any-return]

    def score(
        self, lm: CausalLM, rows: Any, *, threshold: float | None = None, unit: Unit | None = None,
        on_bad_line: BadLine = "error", **columns: str,
    ) -> ScoredTexts:  # fmt: skip
        """Judge texts that exist already, each in one pass of the model, after its prompt.

        Args:
            rows: a DataFrame, a list of dictionaries or of answers, a ``datasets.Dataset``, or a file; fields
                are those of files of texts: ``answer``, and ``prompt`` or ``messages`` before it.
            threshold: score above which a text fires, in place of the prober's own.
            unit: parts that are judged by themselves (:func:`.assessment.units_of`).
            on_bad_line: "skip" leaves out rows that cannot be read.
            columns: names of columns under other names than their fields, as ``answer="output"``; those that
                the prober was trained with need not be given again.

        Raises:
            UserError: no rows, a row that cannot be read, another model, or a unit that it cannot judge.
        """
        check_model("score", lm)
        refuse_unknown("score", columns, ["threshold", "unit", "on_bad_line", *FIELDS])
        source = TextSource(rows, columns=columns or None, on_bad_line=on_bad_line, usual=self.columns)
        return score_rows(lm, self, source, threshold=threshold, unit=unit)

    def p_wrong(self, lm: CausalLM, rows: Any, **options: Any) -> np.ndarray:
        """Compute P(wrong) of texts (n,), NaN where nothing is judged; arguments as in :meth:`score`."""
        if options.get("on_bad_line") == "skip":
            raise UserError('on_bad_line="skip" gives fewer numbers than rows: use score(..)', "conflict")
        each = (text.p_wrong for text in self.score(lm, rows, **options))
        return np.array([np.nan if p is None else p for p in each])

    def generate(
        self, lm: CausalLM, prompts: Any, *, max_new_tokens: int = 64, on_high: OnHigh = "warn",
        threshold: float | None = None, unit: Unit | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Let the model write, judge its texts, and act on a score above the threshold.

        Args:
            prompts: a text to continue, or several; a chat is a list of messages with role and content.
            on_high: "warn", "stop", "abstain" or "retry" (:class:`.scoring.Action`).
            threshold, unit: as in :meth:`score`.
            options: ``draws``, ``temperature``, ``seed`` and ``abstention`` of the action, and fields of
                :class:`probers.model.language_model.Decoding` such as ``stop``.

        Returns:
            A :class:`.response.Scored` text for one prompt, :class:`.response.ScoredTexts` for several.
        """
        acting = {name: options.pop(name) for name in [f.name for f in fields(Action)] if name in options}
        action = Action(on_high, **acting)
        for name in acting:
            if on_high != ("abstain" if name == "abstention" else "retry"):
                fix = "leave it out, and to draw texts give sampling=probers.Sampling(1.0, seed=0)"
                raise UserError(f"{name} has no effect with on_high={on_high}: {fix}", "conflict")
        return JudgedWriter(lm, self, action, threshold, unit)(prompts, max_new_tokens, **options)

    @property
    def report(self) -> Report:
        """Figures on held-out texts beside controls: text, or tables and plots in a notebook."""
        if not self.metrics:
            raise UserError("this prober has no figures: it was not trained by probers", "unsupported")
        return Report(Figures.read(self.metrics), self.pictures)

    def watch(self, model: Any, *, per: Per = "sequence", tokenizer: Any = None) -> Scores:
        """Score the output of a plain transformers model while it generates, without changing it.

        ::

            with bank.watch(model) as scores:
                sequences = model.generate(**inputs)
                scores.finish(sequences)  # the last token too
            print(scores.sequence, scores.probability, scores.tokens)

        The model has hooks only inside the block; :mod:`.loops` lists the supported loops.
        Heads of ``pool=predicting`` score before every token; ``scores.entities`` lists entities that began.

        Args:
            per: after each token the score of the "sequence" so far, pooled as in training, or of the
                "token" alone, to see where it rises.
            tokenizer: gives end-of-sequence and padding ids beside those of ``model.generation_config``, and
                the text that entities are found in.
        """
        from .watch import Scores

        return Scores(self, model, per=per, tokenizer=tokenizer)

    def stopping(
        self, model: Any, tokenizer: Any, threshold: float | None = None, *, min_tokens: int = 1,
        unit: Unit | None = None,
    ) -> StopOnScore:  # fmt: skip
        """Make ``model.generate(..., stopping_criteria=[...])`` end a row whose score is too high.

        ::

            with prober.stopping(model, tokenizer) as stop:
                sequences = model.generate(**inputs, stopping_criteria=[stop])
            print(stop.fired)

        ``generate`` asks after sampling a token and before forwarding it: the decision uses the tokens
        before that one, and the result contains the sampled token. Heads of ``pool=predicting`` end a
        row after the start of an entity whose score before it was too high; ``stop.entities`` tells the cut.
        The model has hooks until the block ends, or the object is closed or collected. ``min_tokens`` are
        read before the first decision: heads of whole answers know little about the first few tokens.

        ``unit`` "span", "sentence" or "token" ends a row at the first of these whose score is too high, like
        the server's ``on_high=stop``; ``stop.spans`` says where to cut. UserError for a unit that the
        prober cannot judge (:func:`.assessment.units_of`), and for "answer".
        """
        from .assessment import Assessor
        from .watch import StopOnScore

        if unit == "answer":
            message = "unit=answer has nothing to stop before: leave unit out to stop by the score so far"
            raise UserError(message, "unsupported")
        assess = None if unit is None else Assessor(self, threshold, unit)
        return StopOnScore(self, model, tokenizer, threshold, min_tokens=min_tokens, assess=assess)

    #: Name of :meth:`stopping` up to version 0.2.
    stopping_criteria = stopping

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None:
        """Write the prober to a folder, as the mixin does; UserError for one that holds a command's run."""
        if (Path(save_directory) / "run.json").exists():
            raise UserError(f"{save_directory} holds a command's run: choose another folder", "out-taken")
        return super().save_pretrained(save_directory, **options)

    def _save_pretrained(self, save_directory: Path) -> None:
        save(save_directory, self)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | Path, *, head_class: type[torch.nn.Module] | None = None,
        allow_other: bool = False, model: ModelSpec | None = None, subfolder: str | None = None,
        **hub: Unpack[HubOptions],
    ) -> Prober:  # fmt: skip
        """Load a prober from a folder, or from ``owner/name`` on the Hugging Face Hub.

        The mixin's own version would ask the Hub for any mistyped path, and hand the fields of
        ``config.json`` on before anything has checked them.

        Args:
            head_class: class of heads from outside this package.
            model: specification (``lm.spec``) of the model of a value head (:mod:`.value_head`), whose files
                lack it; the P(wrong) of such a head is not calibrated.
            subfolder: folder of the prober within that folder or repository.
            hub: options of the download (:class:`.io.HubOptions`).
        """
        name = str(pretrained_model_name_or_path)
        folder = locate(pretrained_model_name_or_path, subfolder, **hub)
        value_head = read_value_head(folder, name) if is_value_head(folder) else None
        parts = value_head.parts(model, name) if value_head else read_parts(folder, name, head_class)
        return cls(**parts, allow_other=allow_other)


#: Name of the class up to version 0.2.
ProbeBank = Prober
