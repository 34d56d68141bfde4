"""ProbeBank: trained heads of several layers, their decision rule and calibration, frozen.

The score of a text is the sum over layers of how much "wrong" outweighs "correct"
(Probing-RAG: retrieve when sum logit[0] + theta > sum logit[1], so theta = -threshold).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .entropy import SIGNALS, EntropyModel
from .features import FeatureSpec, ModelSpec
from .heads import CORRECT, WRONG, ProbeHead
from .types import Needs, RunError, UserError

if TYPE_CHECKING:
    import torch

    from .watch import Scores, StopOnScore

Combine = Literal["logits", "probabilities"]

__all__ = ["SIGNALS", "EntropyModel", "ProbeBank", "half_precision"]


@dataclass(frozen=True, slots=True)
class ProbeBank:
    """Frozen heads, one per layer of ``spec.layers``; call it with states to get scores.

    Attributes:
        spec: the features it reads; its layers are those of the heads, in order.
        head: the heads, in evaluation mode.
        threshold: fires when the score exceeds it; chosen on validation data.
        temperature: P(wrong) = sigmoid(score / temperature); fitted on validation data.
        combine: "logits" sums logit differences, "probabilities" sums differences
            of softmax probabilities as the released code does.
        entropy_model: the heads' score together with entropies; None when not fitted.
        metrics: figures of the training run, as in ``metrics.json``.
        card: the model card, as in ``README.md``.
    """

    spec: FeatureSpec
    head: ProbeHead
    threshold: float = 0.0
    temperature: float = 1.0
    combine: Combine = "logits"
    entropy_model: EntropyModel | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    card: str = ""

    def __post_init__(self) -> None:
        if len(self.head.streams) != len(self.spec.layers) or self.head.width != self.spec.width:
            raise ValueError(
                f"{len(self.head.streams)} heads of width {self.head.width} do not fit "
                f"{len(self.spec.layers)} layers of width {self.spec.width}"
            )
        if self.combine not in ("logits", "probabilities"):
            raise UserError(f"combine={self.combine!r} is unknown: choose logits or probabilities")
        self.head.eval().requires_grad_(False)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of the heads, 1-based."""
        return self.spec.layers

    @property
    def needs(self) -> Needs:
        """What a generation must record to be scored."""
        return self.spec.needs

    def check_model(self, model: ModelSpec) -> None:
        """Refuse a model this prober was not trained on; names both (UserError)."""
        self.spec.check_model(model, what="the prober")

    def logits(self, states: np.ndarray | torch.Tensor) -> np.ndarray:
        """Float32 logits (n, layers, 2), [wrong, correct], of states (n, layers, d).

        Raises:
            RunError: states or logits that are not finite.
            ValueError: another shape.
        """
        import torch

        device = next(self.head.parameters()).device
        with torch.inference_mode():
            x = torch.as_tensor(states)
            parts = [self.head(part.to(device, torch.float32)) for part in x.split(1024)]
            found = (
                torch.cat(parts).cpu().numpy() if parts else np.empty((0, len(self.layers), 2), np.float32)
            )
        if not np.isfinite(found).all():
            raise RunError("the prober's logits are not finite: the states hold NaN or infinite values")
        return found

    def margins(self, states: np.ndarray | torch.Tensor) -> np.ndarray:
        """(n, layers) logit of "wrong" minus logit of "correct"."""
        logits = self.logits(states).astype(np.float64)
        return logits[..., WRONG] - logits[..., CORRECT]

    def combine_margins(self, margins: np.ndarray) -> np.ndarray:
        """Scores (n,) of margins (n, layers): their sum, of logits or of probabilities."""
        # softmax[0] - softmax[1] of two logits is tanh of half their difference.
        return (np.tanh(margins / 2) if self.combine == "probabilities" else margins).sum(axis=1)

    def score(
        self, states: np.ndarray | torch.Tensor, signals: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """Score (n,), higher is more likely wrong; fires above :attr:`threshold`.

        Args:
            states: (n, layers, d).
            signals: entropy signals (n,) each; given, the result is :meth:`score_with_entropy`'s.
        """
        if signals is not None:
            return self.score_with_entropy(states, signals)
        return self.combine_margins(self.margins(states))

    __call__ = score

    def score_with_entropy(self, states: np.ndarray | torch.Tensor, signals: Mapping[str, Any]) -> np.ndarray:
        """Log-odds (n,) of "wrong" from heads and entropies; fires above ``entropy_model.threshold``.

        Raises:
            UserError: this prober was trained without signals.
            RunError: a signal is absent or no number.
        """
        if self.entropy_model is None:
            raise UserError(
                "this prober has no entropy model (its store lacked the signals): use with_entropy=false"
            )
        return self.entropy_model(self.score(states), signals)

    def probability(self, score: np.ndarray, *, with_entropy: bool = False) -> np.ndarray:
        """Calibrated P(wrong) of a score.

        Args:
            score: (n,) from :meth:`score`.
            with_entropy: the score came from :meth:`score_with_entropy`, whose log-odds
                need no temperature.
        """
        scaled = np.asarray(score, dtype=np.float64) / (1.0 if with_entropy else self.temperature)
        return 0.5 * (1 + np.tanh(scaled / 2))

    def to(self, device: Any) -> ProbeBank:
        """Move the heads in place; returns itself."""
        self.head.to(device)
        return self

    def watch(
        self, model: Any, *, per: Literal["sequence", "token"] = "sequence", tokenizer: Any = None
    ) -> Scores:
        """Scores of what a plain transformers model generates, without changing it.

        ::

            with bank.watch(model) as scores:
                sequences = model.generate(**inputs)
                scores.finish(sequences)  # the last token too
            print(scores.sequence, scores.probability, scores.tokens)

        Hooks are on the model inside the block only. What is read, and what cannot be, is
        said in :mod:`probers.watch`.

        Args:
            model: the transformers model this prober was trained on.
            per: after each token the score of the "sequence" so far, pooled as in training,
                or of the "token" alone, to see where it rises.
            tokenizer: gives its end-of-sequence and padding ids beside those of
                ``model.generation_config``.

        Raises:
            UserError: another model; names both.
        """
        from .watch import Scores

        return Scores(self, model, per=per, tokenizer=tokenizer)

    def stopping_criteria(
        self, model: Any, tokenizer: Any, threshold: float | None = None, *, min_tokens: int = 1
    ) -> StopOnScore:
        """For ``model.generate(..., stopping_criteria=[...])``: ends a row where the score is too high.

        ``generate`` asks after sampling a token and before forwarding it, so that the decision
        rests on the tokens before that one; the sampled token is part of what is returned.
        Hooks are on the model until the object is closed (``.close()``) or collected.

        Args:
            model: the transformers model this prober was trained on.
            tokenizer: gives its end-of-sequence and padding ids beside those of
                ``model.generation_config``; may be None.
            threshold: ends a row when its score exceeds it; None is :attr:`threshold`.
            min_tokens: tokens to read before the first decision. Heads that were trained on
                whole answers know little of what the first few tokens of one look like.

        Raises:
            UserError: another model; names both.
        """
        from .watch import StopOnScore

        return StopOnScore(self, model, tokenizer, threshold, min_tokens=min_tokens)

    def save_pretrained(self, path: str | Path) -> None:
        """Write ``config.json``, ``heads.safetensors``, ``metrics.json`` and ``README.md``.

        Weights are written in half precision. They should have been rounded by
        :func:`half_precision` before the bank was evaluated, so that nothing changes here.
        """
        from .bankfile import save

        save(self, Path(path))

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, revision: str | None = None, head_class: type[ProbeHead] | None = None
    ) -> ProbeBank:
        """A prober from a folder, or from the Hugging Face Hub when no such folder exists.

        Args:
            path: folder, or ``owner/name`` on the Hub.
            revision: commit, tag or branch on the Hub.
            head_class: the class of the heads, where it is not one of this package's.

        Raises:
            UserError: no prober there, or a damaged one.
        """
        from .bankfile import load

        return load(path, revision=revision, head_class=head_class)

    def push_to_hub(self, repo_id: str, *, private: bool = True, token: str | None = None) -> str:
        """Upload the prober to the Hugging Face Hub; returns the address of the commit."""
        import tempfile

        from huggingface_hub import HfApi

        api = HfApi(token=token)
        api.create_repo(repo_id, private=private, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder).commit_url)


def half_precision(head: ProbeHead) -> ProbeHead:
    """Round the learned weights to what half precision can hold, in place.

    Done before thresholds and test figures are computed, so that they hold for the
    saved prober. Standardisation statistics keep single precision.
    """
    import torch

    with torch.no_grad():
        for name, parameter in head.named_parameters():
            rounded = parameter.half().float()
            if not torch.isfinite(rounded).all():
                raise RunError(f"the trained weights {name} are not finite in half precision: lower lr")
            parameter.copy_(rounded)
    return head
