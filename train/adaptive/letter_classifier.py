"""``head=adaptive_t5``: a T5 fine-tuned to write A, B or C behind a question, as the paper's classifier.

Settings are those of Adaptive-RAG's released code (Jeong et al. 2024), which trains T5-large by AdamW
with a linearly falling rate and no warm-up. The epoch that is best on validation questions is kept,
as the paper says; the code trains anew for each of several numbers of epochs and compares these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from probers.bank.question_classifier import STRATEGIES, LetterClassifier
from probers.options import Count, Name, NotNegative, Positive
from probers.types import RunError

from ..module import FitSettings
from ..trainer import LARGE, one_thread, quiet
from .strategies import BIAS, Bias, Labelled

_IGNORED = -100  # what the loss of transformers leaves out


@dataclass(frozen=True, kw_only=True)
class Letters:
    """How a T5 is fine-tuned.

    Attributes:
        bias: as of :func:`.strategies.label`.
        model: the model to begin with, a folder or hub id.
        epochs: over the training questions, of which the best on validation is kept.
        batch_size: questions a step.
        lr: AdamW's learning rate at the start; it falls to 0 along a line.
        weight_decay: AdamW's, of matrices.
        max_tokens: a longer question is cut.
    """

    bias: Bias = field(default_factory=BIAS.copy)
    model: Name = "google-t5/t5-large"
    epochs: Count = 35
    batch_size: Count = 32
    lr: Positive = 3e-5
    weight_decay: NotNegative = 0.0
    max_tokens: Count = 384

    def fit(self, labelled: Mapping[str, Labelled], *, seed: int, device: str) -> LetterClassifier:
        """Fine-tune on the training questions; chosen on the validation questions, where there are any.

        Raises:
            UserError: there is no such model, or no such device.
            RunError: the loss is no number.
        """
        hardware = FitSettings(device=device).hardware()
        classifier = LetterClassifier(self.model, max_tokens=self.max_tokens, option="head.model")
        train, validation = labelled["train"], labelled.get("validation")
        small = sum(p.numel() for p in classifier.model.parameters()) < LARGE
        with torch.random.fork_rng(), quiet(), one_thread() if small else nullcontext():
            torch.manual_seed(seed)
            order = torch.Generator().manual_seed(seed)
            rows: Any = _rows(train)
            data: DataLoader[Any] = DataLoader(
                rows, self.batch_size, shuffle=True, generator=order,
                collate_fn=lambda rows: _batch(classifier, rows),
            )  # fmt: skip
            held_out: DataLoader[Any] | None = None
            if validation is not None:
                others: Any = _rows(validation)
                held_out = DataLoader(others, self.batch_size, collate_fn=list)
            steps = self.epochs * len(data)
            module = _Letters(classifier, self, steps)
            trainer = Trainer(
                **hardware, max_epochs=self.epochs, num_sanity_val_steps=0, logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            with tqdm(total=steps, unit="step", mininterval=0.3, desc="T5") as module.bar:
                trainer.fit(module, data, held_out)
        return module.chosen()


def _rows(labelled: Labelled) -> list[tuple[str, int]]:
    """Questions, each with the place of its strategy."""
    places = map(STRATEGIES.index, labelled.strategies)
    return list(zip(labelled.questions, places, strict=True))


def _batch(classifier: LetterClassifier, rows: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """Token ids and attention mask (n, longest) of questions, and labels: the letter and the text's end."""
    end = classifier.tokenizer.eos_token_id
    labels = [[classifier.letters[place], _IGNORED if end is None else end] for _, place in rows]
    return {**classifier.inputs([question for question, _ in rows]), "labels": torch.tensor(labels)}


class _Letters(LightningModule):
    """Trains a classifier's model; keeps its weights of the epoch that is best on validation.

    Attributes:
        bar: shows the steps.
    """

    def __init__(self, classifier: LetterClassifier, how: Letters, steps: int) -> None:
        super().__init__()
        self.model, self._classifier, self._how, self._steps = classifier.model, classifier, how, steps
        self._right: list[Tensor] = []
        self._best, self._kept = -1.0, dict[str, Tensor]()
        self.bar: Any = None

    def on_train_epoch_start(self) -> None:
        self.model.train()

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        if not torch.isfinite(loss):
            raise RunError(f"the loss of step {self.global_step + 1} is {float(loss)}: try a smaller head.lr")
        self.bar.update()
        return loss

    def validation_step(self, batch: list[tuple[str, int]], index: int) -> None:
        gold = torch.tensor([place for _, place in batch], device=self.device)
        said = self._classifier.logits([question for question, _ in batch]).argmax(dim=1)
        self._right.append(said == gold)

    def on_validation_epoch_end(self) -> None:
        accuracy = float(torch.cat(self._right).double().mean())
        self._right.clear()
        if accuracy > self._best:
            self._best = accuracy
            self._kept = {
                name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()
            }
        self.bar.set_postfix_str(f"best on validation {self._best:.3f}")

    def configure_optimizers(self) -> Any:
        groups = [{"params": list(g), "weight_decay": d} for g, d in self._decayed()]
        optimizer = torch.optim.AdamW(groups, lr=self._how.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / self._steps))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _decayed(self) -> Iterator[tuple[Iterator[torch.nn.Parameter], float]]:
        """Matrices, which weight decay is for, and vectors: biases and norms."""
        yield (p for p in self.model.parameters() if p.dim() > 1), self._how.weight_decay
        yield (p for p in self.model.parameters() if p.dim() <= 1), 0.0

    def chosen(self) -> LetterClassifier:
        """The classifier with the weights that are kept; the last ones without validation questions."""
        if self._kept:
            self.model.load_state_dict(self._kept)
        self.model.cpu().eval()
        return self._classifier
