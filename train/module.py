"""Training of many independent heads in one optimiser: their batches, and the Lightning module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler

from probers.checksums import draw_key
from probers.evaluation.metrics import auroc
from probers.heads import CORRECT, WRONG, ProbeHead

from .data import Padded, States, TokenStates
from .settings import SPAN_LOSSES, Balance, Fitting, Loss


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of a training: ``checks`` validations per pass, evenly spread, the last at its end."""

    per_epoch: int
    epochs: int
    checks: int

    @property
    def steps(self) -> int:
        return self.per_epoch * self.epochs

    @property
    def ends(self) -> list[int]:
        """Step after which each validation takes place."""
        share = np.arange(1, self.epochs * self.checks + 1) / self.checks
        return sorted({int(end) for end in np.ceil(share * self.per_epoch)})


class Batches(Sampler[Tensor]):
    """Row numbers (S, b), batch by batch; every iteration goes through one stretch of the schedule.

    Each of S seeds has an order of its own, which depends on the seed and the pass alone: not on the heads
    trained beside it, nor on interruptions. ``weights`` (rows,) are chances to be drawn, with replacement;
    None shuffles. ``start`` stretches are finished already.
    """

    def __init__(
        self, rows: Tensor, batch_size: int, seeds: Sequence[int], schedule: Schedule, *,
        weights: Tensor | None = None, start: int = 0,
    ) -> None:  # fmt: skip
        self._rows, self._size, self._seeds = rows, batch_size, seeds
        self._schedule, self._weights, self._stretch = schedule, weights, start
        self._epoch, self._order = -1, rows

    def __iter__(self) -> Iterator[Tensor]:
        ends = [0, *self._schedule.ends]
        first, end = ends[self._stretch], ends[self._stretch + 1]
        self._stretch += 1
        for step in range(first, end):
            epoch, place = divmod(step, self._schedule.per_epoch)
            if epoch != self._epoch:
                self._epoch, self._order = epoch, torch.stack([self._draw(s, epoch) for s in self._seeds])
            yield self._order[:, place * self._size : (place + 1) * self._size]

    def _draw(self, seed: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(draw_key("order", seed, str(epoch)) >> 1)
        if self._weights is None:
            return self._rows[torch.randperm(len(self._rows), generator=generator)]
        chosen = torch.multinomial(self._weights, len(self._rows), replacement=True, generator=generator)
        return self._rows[chosen]


#: States of S * b rows as stored, targets (S, b, heads), and weights (S, b, 2) in the loss or None.
Batch: TypeAlias = tuple[Any, Tensor, Tensor | None]


class StoreData(Dataset[Batch]):
    """Whole batches by row numbers (S, b)."""

    def __init__(self, states: States | TokenStates, targets: Tensor, shares: Tensor | None) -> None:
        self._states, self._targets, self._shares = states, targets, shares

    def __getitem__(self, index: Tensor) -> Batch:
        shares = None if self._shares is None else self._shares[index]
        return self._states[index.flatten()], self._targets[index], shares


def loader(data: Any, batches: Any) -> DataLoader:
    """Load whole ``batches``, each cut out of the data by one index."""
    return DataLoader(data, batch_size=None, sampler=batches)


def balancing(balance: Balance, labels: np.ndarray) -> tuple[Tensor | None, tuple[float, float]]:
    """Chances of training rows with labels (n,) to be drawn, or None, and each class's weight in the loss."""
    weight = len(labels) / (2 * np.bincount(labels, minlength=2))
    chances = torch.from_numpy(weight[labels]) if balance == "sampling" else None
    return chances, (float(weight[0]), float(weight[1])) if balance == "weights" else (1.0, 1.0)


#: Attributes of the module about the kept states.
_FIGURES = ("accuracy", "loss_value", "auroc", "waited")


def head_losses(
    logits: Tensor, targets: Tensor, loss: Loss = "ce", *, weights: Tensor | None = None,
    shares: Tensor | None = None, smoothing: float = 0.0, total: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Mean cross-entropy (heads,) of logits (n, heads, 2) against classes (n, heads).

    "double_softmax" applies a softmax before the cross-entropy's own, as the released Probing-RAG code does,
    which bounds the loss between 0.31 and 1.31. ``weights`` (heads, 2) are of the classes, ``shares``
    (n, heads or 1) of the rows; ``smoothing`` is the share of every target that is spread over both classes.
    The mean is by weights, or over ``total`` (heads,) rows, whatever they weigh.
    """
    if loss == "double_softmax":
        logits = logits.softmax(dim=-1)
    rows = (logits.flatten(0, 1), targets.flatten())
    losses = F.cross_entropy(*rows, reduction="none", label_smoothing=smoothing).view(targets.shape)
    if weights is None and shares is None and total is None:
        return losses.mean(dim=0)
    factors = torch.ones_like(losses) if weights is None else weights.gather(1, targets.T).T
    factors = factors if shares is None else factors * shares
    return (losses * factors).sum(dim=0) / (factors.sum(dim=0) if total is None else total)


def highest(logits: Tensor, mask: Tensor) -> Tensor:
    """Select the logits (n, heads, 2) of each span's likeliest wrong token of all (n, T, heads, 2).

    ``mask`` (n, T, heads or 1) is true at tokens.
    """
    margins = (logits[..., WRONG] - logits[..., CORRECT]).masked_fill(~mask, -torch.inf).amax(dim=1)
    return torch.stack([margins / 2, -margins / 2], dim=-1)


def below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with a name and a dot, without these."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}


def named(**parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put the name of each part and a dot before the names of its tensors."""
    return {f"{part}.{name}": value for part, of in parts.items() for name, value in of.items()}


class Validated(NamedTuple):
    """Outcome of a validation of H heads on n texts.

    ``losses`` and ``accuracy`` (H,) are weighted as in training; ``margins`` (n, H) are the logits of "wrong"
    less those of "correct", and ``wrong`` (n, H) the labels.
    """

    losses: np.ndarray
    accuracy: np.ndarray
    margins: np.ndarray
    wrong: np.ndarray

    def auroc(self, head: int) -> float:
        return auroc(self.wrong[:, head], self.margins[:, head])


class NotFiniteError(Exception):
    """A loss became infinite or no number."""


class ProberModule(LightningModule):
    """Trainer of H heads jointly, yet each exactly as if alone.

    The loss is the sum of the heads' losses and AdamW works element by element, so no head's gradient or
    step depends on another's. After the warm-up every validation compares each head with its own best
    (accuracy, ties by loss) and copies the parameters of those that improved, until patience runs out.

    Args:
        columns: (H,) or (H, L), position of each head's layers among the batch's columns.
        orders: (H,) which of a batch's S row sets each head learns from.
        class_weights: (H, 2) of wrong and correct in the loss.
        warmup: steps during which validations keep nothing.
        steps: those of the whole training, over which span losses go from tokens to spans.

    Attributes:
        accuracy, loss_value, auroc: (H,) of the kept states on validation.
        waited: (H,) validations since.
        recent: (H,) losses of the last step.
        steps_before, lr: steps before an interruption, and the learning rate when training begins.
        reads_model: a step reads texts with the language model, and takes all threads.
    """

    reads_model: ClassVar[bool] = False

    def __init__(
        self, head: ProbeHead, columns: Tensor, orders: Sequence[int], how: Fitting,
        class_weights: Sequence[tuple[float, float]] = (), warmup: int = 0, steps: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head, self.how = head, how
        self._columns, self._orders = columns, torch.tensor(orders)
        self._weights = torch.tensor(class_weights) if set(class_weights) - {(1.0, 1.0)} else None
        self._warmup, self._steps, count = warmup, steps, len(columns)
        self._heads, self.recent = torch.arange(count), torch.zeros(count)
        self.accuracy, self.loss_value = np.full(count, -1.0), np.full(count, np.inf)
        self.auroc, self.waited = np.full(count, np.nan), np.zeros(count, dtype=np.int64)
        self.steps_before, self.lr = 0, how.lr
        self.best = {name: value.clone() for name, value in head.state_dict().items()}
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def learned(self) -> list[torch.nn.Parameter]:
        """Trained parameters, in the optimizer's order."""
        return list(self.head.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, the best ones, and their figures, by name."""
        figures = {name: torch.from_numpy(getattr(self, name)) for name in _FIGURES}
        return named(head=self.head.state_dict(), best=self.best, figures=figures)

    def resume(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Continue from :meth:`tensors` and the record of a checkpoint."""
        self.head.load_state_dict(below(tensors, "head"))
        self.best = below(tensors, "best")
        for name, value in below(tensors, "figures").items():
            setattr(self, name, value.numpy().copy())
        self.steps_before, self.lr = about["steps"], about["lr"]
        self.head.step = about["head_step"]

    @property
    def steps_taken(self) -> int:
        return self.steps_before + (self.trainer.global_step if self._trainer is not None else 0)

    @property
    def over(self) -> np.ndarray:
        """(H,) true where a head has run out of patience."""
        return self.waited >= (self.how.patience or np.inf)

    def forward(self, states: Tensor | Padded, sets: int = 1) -> Tensor:
        """Compute logits (n, H, 2) of states (sets * n, columns, d), or of tokens (sets * n, T, columns, d).

        Heads that score every token give (n, T, H, 2).
        """
        orders = self._orders if sets > 1 else torch.zeros_like(self._orders)
        of = orders.view(-1, *[1] * (self._columns.ndim - 1)).expand_as(self._columns)
        if not isinstance(states, Padded):
            chosen = states.unflatten(0, (sets, -1))[of, :, self._columns]  # (H, n, d) or (H, L, n, d)
            return self.head(chosen.float().movedim(-2, 0))
        if self.head.tokens:
            # A mask is for all heads, so each reads every set's texts; its own are selected.
            logits = self.head(states.states[:, :, self._columns].float(), states.mask)
            return logits.unflatten(0, (sets, -1))[orders, :, self._heads].transpose(0, 1)
        chosen = states.states.unflatten(0, (sets, -1))[of, :, :, self._columns]
        tokens = chosen.float().movedim((-3, -2), (0, 1))  # (n, T, H, d) or (n, T, H, L, d)
        if not self.head.causal:
            return self.head(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
        masks = (m.unflatten(0, (sets, -1))[orders].movedim(0, -1) for m in (states.mask, states.judged))
        return self.head(tokens, *masks)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        states, targets, shares = batch
        sets = len(targets)
        logits = self(states, sets=sets)
        targets = targets[self._orders, :, self._heads].T if sets > 1 else targets[0]
        if shares is not None:
            shares = shares[self._orders if sets > 1 else [0]].transpose(0, 1)  # (b, heads or 1, 2)
        weights = None if self._weights is None else self._weights.to(logits)
        loss: Loss = "ce" if self.how.loss in SPAN_LOSSES else self.how.loss
        losses = partial(head_losses, loss=loss, weights=weights, smoothing=self.how.label_smoothing)
        if logits.ndim == 4:
            of_heads = self._span_losses(logits, targets, shares, states.judged, losses)
        else:
            of_heads = losses(logits, targets, shares=None if shares is None else shares[..., 0])
        self.recent = of_heads.detach()
        return of_heads.sum()

    def _span_losses(
        self, logits: Tensor, targets: Tensor, shares: Tensor | None, judged: Tensor,
        losses: Callable[..., Tensor],
    ) -> Tensor:  # fmt: skip
        """Weigh token loss 1 - w, span loss w, from 0 to 1 over the training (Obeso et al. 2025, eq. 3 to 5).

        The span loss is that of each span's highest token. With loss=ce there is the token loss alone. As in
        the released code, span_max averages the weighted losses over the number of tokens, and those of the
        marked spans over the number of these; a batch without any has the span loss 0.
        """
        orders = self._orders if len(judged) > len(logits) else torch.zeros_like(self._orders)
        of_heads = judged.unflatten(0, (-1, len(logits)))[orders].movedim(0, 2)  # (n, T, H)
        if shares is None:
            shares = torch.ones(*targets.shape, 2, dtype=logits.dtype, device=logits.device)
        of_tokens, of_spans = shares.expand(*targets.shape, 2).unbind(-1)
        released = self.how.loss == "span_max"
        tokens = losses(
            logits.flatten(0, 1), targets[:, None].expand(of_heads.shape).flatten(0, 1),
            shares=(of_tokens[:, None] * of_heads).flatten(0, 1),
            total=of_heads.sum(dim=(0, 1)) if released else None,
        )  # fmt: skip
        if self.how.loss not in SPAN_LOSSES:
            return tokens
        last = self._steps if released else max(1, self._steps - 1)
        share = min(1.0, self.steps_taken / last)
        number = of_spans.sum(dim=0).clamp_min(1) if released else None
        spans = losses(highest(logits, of_heads), targets, shares=of_spans, total=number)
        return (1 - share) * tokens + share * spans

    def validation_step(self, batch: Batch, index: int) -> None:
        states, targets, shares = batch
        logits = self(states)
        if logits.ndim == 4:
            logits = highest(logits, states.judged[..., None])
        weights = torch.ones(len(targets[0])) if shares is None else shares[0, :, 0]
        self._seen.append((logits, targets[0], weights))

    def on_validation_epoch_end(self) -> None:
        validated = self._validate()
        if self.logger is not None:
            self.log_dict(self._figures(validated))
        if self._warmup and self.steps_taken <= self._warmup:
            return
        better = self._better(validated) & ~self.over
        self.waited = np.where(better, 0, self.waited + 1)
        self._keep(validated, better)
        if self.over.all():
            self.trainer.should_stop = True

    def _validate(self) -> Validated:
        logits, targets, weights = (torch.cat(part).cpu() for part in zip(*self._seen, strict=True))
        self._seen.clear()
        shares = weights[:, None] if (weights != 1).any() else None
        losses = head_losses(logits, targets, shares=shares).double().numpy()
        if not np.isfinite(losses).all():
            raise NotFiniteError("the loss is not finite")
        right = (logits.argmax(dim=-1) == targets).double()
        if shares is not None:
            right = right * shares * (len(shares) / shares.sum())
        margins = (logits[..., WRONG] - logits[..., CORRECT]).double().numpy()
        return Validated(losses, right.mean(dim=0).numpy(), margins, (targets == WRONG).numpy())

    def _better(self, validated: Validated) -> np.ndarray:
        equal = validated.accuracy == self.accuracy
        return (validated.accuracy > self.accuracy) | (equal & (validated.losses < self.loss_value))

    def _keep(self, validated: Validated, better: np.ndarray) -> None:
        self.accuracy[better] = validated.accuracy[better]
        self.loss_value[better] = validated.losses[better]
        self.auroc[better] = [validated.auroc(int(i)) for i in np.flatnonzero(better)]
        chosen = torch.from_numpy(np.flatnonzero(better))
        for name, value in self.head.state_dict().items():
            self.best[name][chosen] = value[chosen.to(value.device)].to(self.best[name].device)

    def on_train_batch_end(self, *_: Any) -> None:
        if type(self.head).shrink is not ProbeHead.shrink:
            optimizer, rates = self.trainer.optimizers[0], {}
            how = optimizer.param_groups[0]
            for name, parameter in self.head.named_parameters():  # Kingma and Ba 2015, algorithm 1
                state = optimizer.state[parameter]
                second = state["exp_avg_sq"] / (1 - how["betas"][1] ** state["step"])
                rates[name] = how["lr"] / (second.sqrt() + how["eps"])
            self.head.shrink(rates)

    def restore_best(self) -> ProbeHead:
        """Return the heads with each one's best parameters, on the CPU and in evaluation mode."""
        head = self.head.cpu()
        head.load_state_dict({name: value.cpu() for name, value in self.best.items()})
        return head.eval()

    def configure_optimizers(self) -> Any:
        parameters = self.head.parameters()
        optimizer = torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.how.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.how.gamma)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _figures(self, validated: Validated) -> dict[str, float]:
        names = ("train_loss", "validation_loss", "validation_accuracy")
        rows = zip(self.head.streams, self.recent, validated.losses, validated.accuracy, strict=True)
        return {f"{name}/{s}": float(v) for s, *of in rows for name, v in zip(names, of, strict=True)}
