"""A model with LoRA adapters in its first blocks, and their training together with a head above them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import ExponentialLR

from probers.checksums import draw_key
from probers.heads import ProbeHead
from probers.model import adapters
from probers.model.blocks import decoder_layers, first_tensor
from probers.model.causal_lm import CausalLM
from probers.model.language_model import ScoreRequest
from probers.model.tokens import Prompt
from probers.options import Count, Limits, NotNegative, Positive, check_extra
from probers.types import UserError

from ..data import Padded
from ..module import NotFiniteError, ProberModule, Validated, below, named
from ..settings import SPAN_LOSSES, Fitting

#: Kernels of attention in training: not cuDNN's, whose gradients of masked texts are NaN where their length
#: leaves 64 when it is divided by 128 (pytorch/pytorch#196678, torch 2.11 on an H200).
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A linear head on one layer, and LoRA adapters in the blocks below it (Obeso et al. 2025).

    The model reads the store's texts again and is trained with the head. The prober comes with the adapters,
    and reads the model with them alone. The head starts as that of head=linear; batch_size counts texts.

    Attributes:
        rank: rank of every adapter.
        alpha: scale of the adapters, divided by the rank.
        dropout: share of an adapter's inputs that is dropped in training.
        lr: initial learning rate of the adapters; lr is the head's.
        lambda_kl: weight in the loss of the divergence from the model without adapters; the head's own loss
            weighs 1 - lambda_kl.
        kl_limit: most divergence, in nats a token of validation answers, of adapters that are kept; null is
            no limit.
        tokens: most tokens of one forward pass; a step of more is read in several.
        start_epochs: passes of head=linear over the store's states, which is compared with and begun from.
    """

    method: ClassVar[str] = "adapters"
    rank: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Limits(ge=0, lt=1)] = 0.05
    lr: Positive = 2e-4
    lambda_kl: Annotated[float, Limits(ge=0, lt=1)] = 0.5
    kl_limit: NotNegative | None = 0.05
    tokens: Count = 1024
    start_epochs: Count = 20


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text of a store.

    Attributes:
        prompt: its prompt, encoded.
        ids: tokens of the answer that were stored.
        request: to read both in one pass.
        rows: (n,) number in the store of each token's row; -1 where a token has none.
        spans: by number among the examples, the tokens of each span.
        group: as of the store.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    request: ScoreRequest
    rows: np.ndarray
    spans: Mapping[int, np.ndarray]
    group: str

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + len(self.ids)


def passes(texts: Sequence[StoredText], most: int) -> Iterator[list[StoredText]]:
    """Cut texts, longest first, into passes of at most so many tokens with padding; one text at least."""
    left = sorted(texts, key=lambda text: -text.length)
    while left:
        size = max(1, most // left[0].length)
        yield left[:size]
        left = left[size:]


class Pass(NamedTuple):
    """Result of one pass over b texts, whose answers end at the last of n places.

    Attributes:
        states: (b, n, d) of the adapted model, float32, after the block that the head reads.
        divergence: (b, n) KL(model without adapters || with them) of the distribution that predicts each
            token, nats; None where it was not asked for.
        mask: (b, n) true at tokens.
    """

    states: Tensor
    divergence: Tensor | None
    mask: Tensor


class AdaptedModel:
    """Adapters of a seed on the linear maps of blocks 1 to ``layer``, in place; nothing else is trained.

    They begin as the identity. UserError without peft, or for a model whose blocks have no linear maps.
    """

    def __init__(self, lm: CausalLM, layer: int, options: Lora, seed: int) -> None:
        check_extra("head=lora", "lora", "peft")
        self.lm, self.layer = lm, layer
        names = {module: name for name, module in lm.model.named_modules()}
        modules = [module for block in decoder_layers(lm.model)[:layer] for module in block.modules()]
        maps = [m for m in modules if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
        if not maps:
            raise UserError(f"head=lora: {type(lm.model).__name__} has no linear maps to adapt", "model")
        with torch.random.fork_rng(devices=_devices(lm)):
            torch.manual_seed(draw_key("adapter", seed, "") >> 1)
            adapters.add(
                lm.model, r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout,
                target_modules=[names[module] for module in maps],
            )  # fmt: skip
        adapted = (module for module in lm.model.modules() if hasattr(module, "lora_dropout"))
        self._dropouts = nn.ModuleList(module.lora_dropout for module in adapted)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The adapters' weights by name, themselves."""
        return adapters.state_of(self.lm.model)

    def copied(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.tensors.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy weights into the adapters."""
        for name, value in self.tensors.items():
            value.copy_(tensors[name])

    @contextmanager
    def dropping(self, seed: int, step: int) -> Iterator[None]:
        """Drop inputs of the adapters within the block; which ones depends on seed and step alone."""
        with torch.random.fork_rng(devices=_devices(self.lm)):
            torch.manual_seed(draw_key("lora dropout", seed, str(step)) >> 1)
            self._dropouts.train()
            try:
                yield
            finally:
                self._dropouts.eval()

    def read(self, texts: Sequence[StoredText], *, divergence: bool) -> Pass:
        """Read prompts and answers of some texts in one pass, and with ``divergence`` in a second one."""
        decoder = self.lm.decoder
        ids, mask, positions = decoder.pad([(*text.prompt.ids, *text.ids) for text in texts])
        sizes = torch.tensor([len(text.ids) for text in texts], device=ids.device)
        longest = int(sizes.max())
        there = torch.arange(longest, 0, -1, device=ids.device) <= sizes[:, None]
        states: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            state = first_tensor(output)
            assert state is not None
            states.append(state[:, -longest:].float())

        hook = decoder_layers(self.lm.model)[self.layer - 1].register_forward_hook(keep)
        try:
            with sdpa_kernel(_KERNELS):
                logits = decoder(ids, mask, positions, keep=longest + 1)[:, :-1]
        finally:
            hook.remove()
        if not divergence:
            return Pass(states[0], None, there)
        with torch.no_grad(), adapters.switched_off(self.lm.model):
            base = decoder(ids, mask, positions, keep=longest + 1)[:, :-1].float().log_softmax(dim=-1)
        apart = (base.exp() * (base - logits.float().log_softmax(dim=-1))).sum(dim=-1)
        return Pass(states[0], apart, there)

    @torch.inference_mode()
    def read_all(self, texts: Sequence[StoredText], most: int) -> Iterator[tuple[StoredText, np.ndarray]]:
        """Yield each text with the divergence (n,) of its tokens, reading at most so many tokens at once."""
        for batch in passes(texts, most):
            read = self.read(batch, divergence=True)
            assert read.divergence is not None
            for text, apart, mask in zip(batch, read.divergence, read.mask, strict=True):
                yield text, apart[mask].cpu().numpy()


def _devices(lm: CausalLM) -> list[torch.device]:
    """Devices other than the CPU whose random numbers are drawn."""
    return [lm.device] if lm.device.type == "cuda" else []


class Texts:
    """Texts, and of each span its class (spans,), its weights ``shares`` (spans, 2), and its split."""

    def __init__(
        self, texts: Sequence[StoredText], targets: Tensor, shares: Tensor | None, split_of: Sequence[str]
    ) -> None:
        self.texts, self.targets, self.shares, self._split_of = texts, targets, shares, split_of

    def of(self, split: str) -> Tensor:
        """Numbers of the texts with spans of a split."""
        return torch.tensor([i for i, text in enumerate(self.texts) if self.spans(text, split)])

    def spans(self, text: StoredText, split: str) -> dict[int, np.ndarray]:
        """Map the numbers of a text's spans of a split to their tokens."""
        return {number: at for number, at in text.spans.items() if self._split_of[number] == split}

    def batch(
        self, texts: Sequence[StoredText], read: Pass, split: str
    ) -> tuple[Padded, Tensor, Tensor | None]:
        """Pad the states of the texts' spans in a pass, with classes and weights, as those of a store."""
        chosen, numbers = [], []
        longest, device = read.states.shape[1], read.states.device
        for of_text, text in zip(read.states, texts, strict=True):
            for number, tokens in self.spans(text, split).items():
                chosen.append(of_text[torch.from_numpy(tokens + longest - len(text.ids)).to(device)])
                numbers.append(number)
        sizes = torch.tensor(list(map(len, chosen)))
        mask = (torch.arange(int(sizes.max())) < sizes[:, None]).to(device)
        shares = None if self.shares is None else self.shares[numbers][None].to(device)
        states = pad_sequence(chosen, batch_first=True)[:, :, None]
        return Padded(states, mask, mask), self.targets[numbers][None, :, None].to(device), shares


class LoraModule(ProberModule):
    """Trainer of one head and the adapters below it.

    The loss is ``1 - lambda_kl`` times that of a head on tokens, plus ``lambda_kl`` times the mean divergence
    over answers' tokens (the code of Obeso et al. 2025).
    Validations measure the AUROC of spans by their highest token, and keep the best state within ``kl_limit``
    that is better than ``start``, the head without adapters.

    Attributes:
        chosen: the adapters' tensors that go with the best head.
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
        self.chosen = adapted.copied()
        self._divergences: list[Tensor] = []
        self._last = np.zeros(())

    @property
    def learned(self) -> list[torch.nn.Parameter]:
        return [*super().learned, *self._adapted.tensors.values()]  # type: ignore[list-item]

    def tensors(self) -> dict[str, Tensor]:
        figures = {"divergence": torch.from_numpy(self.divergence)}
        return super().tensors() | named(adapter=self._adapted.tensors, kept=self.chosen, figures=figures)

    def resume(self, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        super().resume(tensors, about)
        self._adapted.load(below(tensors, "adapter"))
        self.chosen = below(tensors, "kept")

    def configure_optimizers(self) -> Any:
        options, rate = super().configure_optimizers(), self.lr * self._options.lr / self.how.lr
        optimizer, weights = options["optimizer"], list(self._adapted.tensors.values())
        optimizer.add_param_group({"params": weights, "lr": rate, "initial_lr": rate})
        options["lr_scheduler"]["scheduler"] = ExponentialLR(optimizer, self.how.gamma)
        return options

    def training_step(self, batch: Any, index: int) -> Any:
        """Read a batch of texts in passes, whose gradients add up by their numbers of tokens."""
        optimizer, schedule = cast(Any, self.optimizers()), cast(Any, self.lr_schedulers())
        optimizer.zero_grad()
        chosen = [self._texts.texts[i] for i in batch.flatten().tolist()]
        total = sum(len(text.ids) for text in chosen)
        with self._adapted.dropping(self.how.seed, self.steps_taken):
            for texts in passes(chosen, self._options.tokens):
                share, weight = sum(len(text.ids) for text in texts) / total, self._options.lambda_kl
                read = self._adapted.read(texts, divergence=weight > 0)
                loss = super().training_step(self._spans(texts, read, "train"), index)
                if read.divergence is not None:
                    loss = (1 - weight) * loss + weight * read.divergence[read.mask].mean()
                if not bool(torch.isfinite(loss)):
                    raise NotFiniteError("the loss is not finite")
                self.manual_backward(share * loss)
        optimizer.step()
        schedule.step()

    def _spans(self, texts: Sequence[StoredText], read: Pass, split: str) -> Any:
        """Turn a pass into a batch of :class:`ProberModule`: spans, or without SPAN_LOSSES their tokens."""
        padded, targets, shares = self._texts.batch(texts, read, split)
        if self.how.loss in SPAN_LOSSES or split != "train":
            return padded, targets, shares
        span_of = padded.mask.nonzero()[:, 0]
        return padded.states[padded.mask], targets[:, span_of], None if shares is None else shares[:, span_of]

    def validation_step(self, batch: Any, index: int) -> None:
        chosen = [self._texts.texts[i] for i in batch.flatten().tolist()]
        for texts in passes(chosen, self._options.tokens):
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

    def _better(self, validated: Validated) -> np.ndarray:
        limit = self._options.kl_limit
        return np.array([validated.auroc(0) > self.auroc[0] and (limit is None or self._last <= limit)])

    def _keep(self, validated: Validated, better: np.ndarray) -> None:
        super()._keep(validated, better)
        if better.any():
            self.divergence = self._last[None]
            self.chosen = self._adapted.copied()

    def _figures(self, validated: Validated) -> dict[str, float]:
        figures = {"validation_auroc": validated.auroc(0), "validation_kl": float(self._last)}
        return super()._figures(validated) | figures

    def restore_best(self) -> ProbeHead:
        self._adapted.load(self.chosen)
        return super().restore_best()

    @property
    def improved(self) -> bool:
        """Tell whether a state with adapters was kept."""
        return bool(self.loss_value[0] < np.inf)
