"""A model of vLLM whose blocks' states stay readable after every step, compiled and all.

What is read are vLLM's auxiliary hidden states (``SupportsEagle3``, made for EAGLE-3, Li et al. 2025,
arXiv 2503.01840): layer 0 is the embedding output, k the residual stream after block k, before the final
norm, as everywhere in this package. They are copied into a buffer that stays where it is, so that the
inner model may be compiled and the copy captured by a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.models.interfaces import supports_eagle3

from ...types import UserError
from ..forward import token_scores
from . import KEY


def readable(stock: type[nn.Module], *, scores: bool = False) -> type[nn.Module]:
    """A subclass of a model class of vLLM that keeps the states of each step's tokens.

    Its instances have ``probers_states``, (tokens of a step at most, layers, d) in the model's number
    format, the layers those that ``additional_config`` names under :data:`KEY`, ascending; rows are the
    step's tokens in the order in which they were scheduled. The layer after the last is the final norm's
    output.

    Args:
        scores: also keep as ``probers_scores``, (4, requests of the step), what
            :func:`probers.engine.forward.token_scores` says of each request's likeliest next token.

    Raises:
        UserError: a class without the interface; names it.
    """
    if not supports_eagle3(stock):
        raise UserError(
            f"vLLM's {stock.__name__} does not hand out the states of its blocks (it lacks SupportsEagle3): "
            "take another model, or this one without vLLM",
            "model",
        )

    class Readable(stock):  # type: ignore[misc, valid-type]
        probers_states: Tensor
        probers_scores: Tensor

        def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            layers = vllm_config.additional_config[KEY]["layers"]
            text = vllm_config.model_config.hf_text_config
            self._aux = tuple(k for k in layers if k <= text.num_hidden_layers)
            self._normed = len(self._aux) < len(layers)
            self.set_aux_hidden_state_layers(self._aux)
            rows = vllm_config.scheduler_config.max_num_batched_tokens
            states = torch.zeros(rows, len(layers), text.hidden_size, dtype=vllm_config.model_config.dtype)
            self.register_buffer("probers_states", states, persistent=False)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            hidden, states = super().forward(*args, **kwargs)
            if len(states) != len(self._aux):
                raise UserError(
                    f"vLLM's {stock.__name__} handed out {len(states)} of the layers {list(self._aux)}: "
                    "use a prober of others",
                    "layers",
                )
            for place, state in enumerate([*states, hidden] if self._normed else states):
                self.probers_states[: len(state), place].copy_(state)
            return hidden

        def compute_logits(self, *args: Any, **kwargs: Any) -> Any:
            logits = super().compute_logits(*args, **kwargs)
            if scores and logits is not None:
                # Here, because vLLM may change the logits before it draws.
                self.probers_scores = token_scores(logits, logits.argmax(dim=-1), top=True)
            return logits

        def probers_read(self, hidden: Tensor, tokens: Tensor) -> Tensor:
            """(4, n) as ``probers_scores``, of given tokens (n,) by the normed states before them (n, d)."""
            return token_scores(super().compute_logits(hidden), tokens, top=True)

    Readable.__name__ = Readable.__qualname__ = stock.__name__
    return Readable
