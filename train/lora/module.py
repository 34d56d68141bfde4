"""Training of a head with adapters below it: the loss of heads, and the divergence from the model without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from probers.heads import ProbeHead

from ..data import Padded
from ..module import NotFiniteError, ProberModule, Validated, below
from ..settings import Fitting
from .adapted import AdaptedModel, Lora, Pass
from .texts import StoredText, passes


class Texts:
    """Texts with the spans of each split, in batches of their numbers.

    ``targets`` (spans,) are the classes of spans, ``shares`` their weights in the loss; ``split_of`` (spans,)
    names the split of each.
    """

    def __init__(
        self, texts: Sequence[StoredText], targets: Tensor, shares: Tensor | None, split_of: Sequence[str]
    ) -> None:
        self.texts, self.targets, self.shares, self._split_of = texts, targets, shares, split_of

    def of(self, split: str) -> Tensor:
        """Numbers of the texts with spans of a split."""
        with_spans = [i for i, text in enumerate(self.texts) if self.spans(text, split)]
        return torch.tensor(with_spans)

    def spans(self, text: StoredText, split: str) -> dict[int, np.ndarray]:
        """Map the numbers of a text's spans of a split to their tokens."""
        return {number: at for number, at in text.spans.items() if self._split_of[number] == split}

    def batch(
        self, texts: Sequence[StoredText], read: Pass, split: str
    ) -> tuple[Padded, Tensor, Tensor | None]:
        """Pad the states of the texts' spans in a pass, with classes and weights, as those of a store."""
        chosen, numbers = [], []
        longest = read.states.shape[1]
        for place, text in enumerate(texts):
            for number, tokens in self.spans(text, split).items():
                at = torch.from_numpy(tokens + longest - len(text.ids)).to(read.states.device)
                chosen.append(read.states[place, at])
                numbers.append(number)
        sizes = torch.tensor([len(each) for each in chosen])
        mask = (torch.arange(int(sizes.max())) < sizes[:, None]).to(read.states.device)
        states = pad_sequence(chosen, batch_first=True)[:, :, None]
        shares = None if self.shares is None else self.shares[numbers][None].to(states.device)
        return Padded(states, mask, mask), self.targets[numbers][None, :, None].to(states.device), shares


class Numbers(Dataset[Tensor]):
    """The numbers of texts (b,) of a batch (1, b)."""

    def __getitem__(self, index: Tensor) -> Tensor:
        return index[0]


class LoraModule(ProberModule):
    """Trainer of one head and the adapters below it.

    The loss is that of a head on tokens plus ``lambda_kl`` times the mean divergence over answers' tokens.
    Validations measure the AUROC of spans by their highest token, and keep the best state within ``kl_limit``
    that is better than ``start``, the head without adapters.

    Attributes:
        kept: the adapters' tensors that go with the best head.
        divergence: (1,) that of the kept state on validation, nats a token.
    """

    reads_model: ClassVar[bool] = True

    def __init__(
        self, head: ProbeHead, adapted: AdaptedModel, texts: Texts, how: Fitting, options: Lora, *,
        start: float, steps: int,
    ) -> None:  # fmt: skip
        super().__init__(head, torch.tensor([0]), [0], how, steps=steps)
        self.automatic_optimization = False
        self._adapted, self._texts, self._options = adapted, texts, options
        self.auroc = np.array([start])
        self.divergence = np.zeros(1)
        self.kept = {name: value.detach().clone() for name, value in adapted.tensors.items()}
        self._divergences: list[Tensor] = []
        self._last = np.zeros(())

    @property
    def learned(self) -> list[torch.nn.Parameter]:
        weights: Any = list(self._adapted.tensors.values())
        return [*super().learned, *weights]

    def tensors(self) -> dict[str, Tensor]:
        own = {"adapter": self._adapted.tensors, "kept": self.kept}
        found = {f"{part}.{name}": value for part, each in own.items() for name, value in each.items()}
        return super().tensors() | found | {"figures.divergence": torch.from_numpy(self.divergence)}

    def resume(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        super().resume(tensors, about)
        self._adapted.load(below(tensors, "adapter"))
        self.kept = below(tensors, "kept")

    def configure_optimizers(self) -> Any:
        found = super().configure_optimizers()
        rate = self.lr * self._options.lr / self.how.lr
        weights = list(self._adapted.tensors.values())
        found["optimizer"].add_param_group({"params": weights, "lr": rate, "initial_lr": rate})
        falling = torch.optim.lr_scheduler.ExponentialLR(found["optimizer"], self.how.gamma)
        found["lr_scheduler"]["scheduler"] = falling
        return found

    def training_step(self, batch: Any, index: int) -> Any:
        """Read a batch of texts in passes, whose gradients add up by their numbers of tokens."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        chosen = [self._texts.texts[i] for i in batch.tolist()]
        total = sum(len(text.ids) for text in chosen)
        with self._adapted.dropping(self.how.seed, self.steps_taken):
            for texts in passes(chosen, self._options.tokens):
                share = sum(len(text.ids) for text in texts) / total
                read = self._adapted.read(texts, divergence=self._options.lambda_kl > 0)
                loss = super().training_step(self._spans(texts, read, "train"), index)
                if read.divergence is not None:
                    loss = loss + self._options.lambda_kl * read.divergence[read.mask].mean()
                if not bool(torch.isfinite(loss)):
                    raise NotFiniteError("the loss is not finite")
                self.manual_backward(share * loss)
        optimizer.step()
        schedule: Any = self.lr_schedulers()
        schedule.step()

    def _spans(self, texts: Sequence[StoredText], read: Pass, split: str) -> Any:
        """Turn a pass into a batch of :class:`ProberModule`: spans, or without loss=span_max their tokens."""
        padded, targets, shares = self._texts.batch(texts, read, split)
        if self.how.loss == "span_max" or split != "train":
            return padded, targets, shares
        of_span = torch.arange(targets.shape[1], device=padded.mask.device)
        of = of_span[:, None].expand_as(padded.mask)[padded.mask]
        return padded.states[padded.mask], targets[:, of], None if shares is None else shares[:, of]

    def validation_step(self, batch: Any, index: int) -> None:
        for texts in passes([self._texts.texts[i] for i in batch.tolist()], self._options.tokens):
            read = self._adapted.read(texts, divergence=True)
            super().validation_step(self._spans(texts, read, "validation"), index)
            assert read.divergence is not None
            self._divergences.append(read.divergence[read.mask].cpu())

    def on_validation_epoch_end(self) -> None:
        self._last = torch.cat(self._divergences).double().mean().numpy()
        self._divergences.clear()
        if not np.isfinite(self._last):
            raise NotFiniteError("the loss is not finite")
        super().on_validation_epoch_end()

    def _better(self, found: Validated) -> np.ndarray:
        limit = self._options.kl_limit
        return np.array([found.auroc(0) > self.auroc[0] and (limit is None or self._last <= limit)])

    def _keep(self, found: Validated, better: np.ndarray) -> None:
        super()._keep(found, better)
        if better.any():
            self.divergence = self._last[None]
            self.kept = {name: value.detach().clone() for name, value in self._adapted.tensors.items()}

    def _figures(self, found: Validated) -> dict[str, float]:
        validated = {"validation_auroc": found.auroc(0), "validation_kl": float(self._last)}
        return super()._figures(found) | validated

    def restore_best(self) -> ProbeHead:
        self._adapted.load(self.kept)
        return super().restore_best()

    @property
    def improved(self) -> bool:
        """Tell whether a state with adapters was kept."""
        return bool(self.loss_value[0] < np.inf)
