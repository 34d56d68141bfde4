"""``head=adaptive_t5``: a T5 fine-tuned to write A, B or C after a question, like the paper's classifier.

Settings are those of Adaptive-RAG's released code (Jeong et al. 2024), which trains T5-large by AdamW
with a linearly falling rate and no warm-up. The epoch that is best on validation questions is kept,
as in the paper; the code trains anew for each of several numbers of epochs and compares these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from ..engine.loading import pick_device
from ..options import Count, Name, NotNegative, Positive
from ..types import RunError
from .classifiers import STRATEGIES, LetterClassifier
from .strategies import BIAS, Bias, Labelled

_IGNORED = -100  # label that the loss of transformers ignores


@dataclass(frozen=True, kw_only=True)
class Letters:
    """Settings for fine-tuning a T5.

    Attributes:
        bias: as in :func:`.strategies.label`.
        model: the model to begin with, a folder or hub id.
        epochs: passes over the training questions; the best on validation is kept.
        batch_size: questions a step.
        lr: AdamW's learning rate at the start; it falls linearly to 0.
        weight_decay: AdamW's, of matrices.
        max_tokens: a longer question is cut.
    """

    method: ClassVar[str] = "questions"
    bias: Bias = field(default_factory=lambda: BIAS)
    model: Name = "google-t5/t5-large"
    epochs: Count = 35
    batch_size: Count = 32
    lr: Positive = 3e-5
    weight_decay: NotNegative = 0.0
    max_tokens: Count = 384

    def fit(self, labelled: Mapping[str, Labelled], *, seed: int, device: str) -> LetterClassifier:
        """Fine-tune on the training questions; keep the best epoch on the validation questions, if any."""
        where = pick_device(device)
        classifier = LetterClassifier(self.model, max_tokens=self.max_tokens, option="head.model")
        model, rows = classifier.model.to(where), _rows(labelled["train"])
        held_out = _rows(labelled["validation"]) if "validation" in labelled else []
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]  # biases and norms do not decay
        groups: Any = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": others}]
        optimizer = torch.optim.AdamW(groups, lr=self.lr, weight_decay=0.0)
        order: Any = {"shuffle": True, "generator": torch.Generator().manual_seed(seed)}
        data = DataLoader[Any](rows, self.batch_size, collate_fn=list, **order)  # type: ignore[arg-type]
        steps = self.epochs * len(data)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
        best, kept = -1.0, dict[str, Tensor]()
        with torch.random.fork_rng(), tqdm(total=steps, unit="step", mininterval=0.3, desc="T5") as bar:
            torch.manual_seed(seed)
            for _ in range(self.epochs):
                model.train()
                for batch in data:
                    loss: Tensor = model(**_batch(classifier, batch)).loss
                    if not torch.isfinite(loss):
                        raise RunError(f"the loss of step {bar.n + 1} is {float(loss)}: lower head.lr")
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    schedule.step()
                    bar.update()
                if held_out and (accuracy := self._accuracy(classifier, held_out)) > best:
                    best = accuracy
                    kept = {name: value.cpu().clone() for name, value in model.state_dict().items()}
                    bar.set_postfix_str(f"best on validation {best:.3f}")
        if kept:
            model.load_state_dict(kept)
        model.cpu().eval()
        return classifier

    @torch.inference_mode()
    def _accuracy(self, classifier: LetterClassifier, rows: Sequence[tuple[str, int]]) -> float:
        classifier.model.eval()
        right = 0
        for start in range(0, len(rows), self.batch_size):
            questions, gold = zip(*rows[start : start + self.batch_size], strict=True)
            right += int((classifier.logits(questions).argmax(dim=1).cpu() == torch.tensor(gold)).sum())
        return right / len(rows)


def _rows(labelled: Labelled) -> list[tuple[str, int]]:
    """Return questions, each with the index of its strategy."""
    return list(zip(labelled.questions, map(STRATEGIES.index, labelled.strategies), strict=True))


def _batch(classifier: LetterClassifier, rows: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """Return token ids and attention mask (n, longest) of questions, and labels: letter and end of text."""
    end = classifier.tokenizer.eos_token_id
    labels = [[classifier.letters[place], _IGNORED if end is None else end] for _, place in rows]
    inputs = classifier.inputs([question for question, _ in rows])
    return {**inputs, "labels": torch.tensor(labels, device=inputs["input_ids"].device)}
