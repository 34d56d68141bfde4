"""A model with LoRA adapters in its first blocks: one pass for states and divergence, adapters on or off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from probers.capture.blocks import decoder_layers, first_tensor
from probers.checksums import draw_key
from probers.engine import adapters
from probers.engine.model import CausalLM
from probers.options import Count, Limits, NotNegative, Positive
from probers.types import UserError

from .texts import StoredText, passes

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
        lambda_kl: weight of the divergence from the model without adapters, in the loss.
        kl_limit: most divergence, in nats a token of validation answers, of adapters that are kept; null is
            no limit.
        tokens: most tokens of one forward pass; a step of more is read in several.
        start_epochs: passes of head=linear over the store's states, which is compared with and begun from.
    """

    rank: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Limits(ge=0, lt=1)] = 0.05
    lr: Positive = 2e-4
    lambda_kl: NotNegative = 0.5
    kl_limit: NotNegative | None = 0.05
    tokens: Count = 1024
    start_epochs: Count = 20


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
        adapters.check_installed("head=lora")
        self.lm, self.layer = lm, layer
        blocks, names = decoder_layers(lm.model), {m: name for name, m in lm.model.named_modules()}
        maps = [m for block in blocks[:layer] for m in block.modules() if _is_linear(m)]
        if not maps:
            told = f"head=lora adapts linear maps, and the blocks of {type(lm.model).__name__} have none"
            raise UserError(told, "model")
        with torch.random.fork_rng(devices=_devices(lm)):
            torch.manual_seed(draw_key("adapter", seed, "") >> 1)
            adapters.add(
                lm.model, r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout,
                target_modules=[names[each] for each in maps],
            )  # fmt: skip
        self._dropouts = [m.lora_dropout for m in lm.model.modules() if hasattr(m, "lora_dropout")]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The adapters' weights by name, themselves."""
        return adapters.state_of(self.lm.model)

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
            try:
                for each in self._dropouts:
                    each.train()
                yield
            finally:
                for each in self._dropouts:
                    each.eval()

    def read(self, texts: Sequence[StoredText], *, divergence: bool) -> Pass:
        """Read prompts and answers of some texts in one pass, and with ``divergence`` in a second one."""
        decoder = self.lm.decoder
        ids, mask, positions = decoder.pad([(*text.prompt.ids, *text.ids) for text in texts])
        sizes = torch.tensor([len(text.ids) for text in texts], device=ids.device)
        longest = int(sizes.max())
        there = torch.arange(longest, 0, -1, device=ids.device) <= sizes[:, None]
        kept: list[Tensor] = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            state = first_tensor(output)
            assert state is not None
            kept.append(state[:, -longest:].float())

        hook = decoder_layers(self.lm.model)[self.layer - 1].register_forward_hook(keep)
        try:
            with sdpa_kernel(_KERNELS):
                logits = decoder(ids, mask, positions, keep=longest + 1)[:, :-1]
        finally:
            hook.remove()
        if not divergence:
            return Pass(kept[0], None, there)
        with torch.no_grad(), adapters.switched_off(self.lm.model):
            base = decoder(ids, mask, positions, keep=longest + 1)[:, :-1].float().log_softmax(dim=-1)
        apart = (base.exp() * (base - logits.float().log_softmax(dim=-1))).sum(dim=-1)
        return Pass(kept[0], apart, there)

    @torch.inference_mode()
    def read_all(self, texts: Sequence[StoredText], most: int) -> Iterator[tuple[StoredText, np.ndarray]]:
        """Yield each text with the divergence (n,) of its tokens, reading at most so many tokens at once."""
        for batch in passes(texts, most):
            read = self.read(batch, divergence=True)
            assert read.divergence is not None
            for text, apart, mask in zip(batch, read.divergence, read.mask, strict=True):
                yield text, apart[mask].cpu().numpy()


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _devices(lm: CausalLM) -> list[torch.device]:
    """Devices other than the CPU whose random numbers are drawn."""
    return [lm.device] if lm.device.type == "cuda" else []
