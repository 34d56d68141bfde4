"""Scores and states of texts while vLLM writes or reads them: readable models and their records.

Place 0 is the position that predicts the text's first token; place i + 1 is that of its token i. A place is
recorded once, even if vLLM computes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...types import Feature, Needs, UserError
from ..forward import only, token_scores
from ..hidden_states import StateTap
from ..pooling import BEFORE, GrowingPool
from . import KEY


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recordings of a text of n tokens.

    Attributes:
        states: as in :class:`probers.types.Generation`.
        scores: (4, n), of :func:`probers.model.forward.token_scores`.
        broken: (feature, token, layer's place) of the first state that is NaN or infinite.
    """

    states: dict[Feature, np.ndarray]
    scores: np.ndarray
    broken: tuple[Feature, int, int] | None


class TextRecord:
    """Recorder of one text: place ``start`` predicts its first token, ``count`` places are recorded.

    ``tokens`` are its own where it is only read, None while it is written; ``layers`` are those of each of
    its features.
    """

    def __init__(self, needs: Needs, start: int, tokens: Sequence[int] | None = None) -> None:
        self.start, self.tokens = start, tokens
        self.count = 0
        self._row = torch.zeros(1, dtype=torch.long)
        self._features = {each: GrowingPool(each.pool, 1) for each in needs.features}
        self.layers = {StateTap.layers_of(feature) for feature in needs.features}
        self._scores: list[Tensor] = []

    def add(self, states: Mapping[tuple[int, ...], Tensor], count: int) -> None:
        """Add the next ``count`` places: their states (count, layers, d) for each of :attr:`layers`."""
        for feature, pool in self._features.items():
            skip = int(feature.pool not in BEFORE)  # place 0 is before the first token
            new = states[StateTap.layers_of(feature)][max(0, skip - self.count) :]
            pool.add(max(0, self.count - skip), (0,), self._row, new[None])
        self.count += count

    def score(self, scores: Tensor) -> None:
        """Add scores (4, n) of the next tokens."""
        self._scores.append(scores)

    def commit(self, tokens: int) -> None:
        """Tell the text that its first ``tokens`` tokens are final."""
        for pool in self._features.values():
            pool.commit(tokens, {})

    def recorded(self, length: int) -> Recorded:
        """Return the records of a text that keeps this many tokens."""
        self.commit(length)
        values = ((feature, pool.value(0, length)) for feature, pool in self._features.items())
        states = {feature: vectors for feature, vectors in values if vectors is not None}
        broken = ((feature, *bad[1:]) for feature, pool in self._features.items() if (bad := pool.broken()))
        scores = torch.cat([torch.zeros(4, 0), *(each.cpu() for each in self._scores)], dim=1)
        return Recorded(states, scores[:, :length].numpy(), next(broken, None))


def check_options(config: Any) -> None:
    """Refuse options of a ``VllmConfig`` that prevent reading states (UserError), by name and value.

    For a model without experts vLLM tells each copy that it is alone, so such copies pass.
    """
    parallel, speculation = config.parallel_config, config.speculative_config
    stages, copies = parallel.pipeline_parallel_size, parallel.data_parallel_size
    parts, method = parallel.prefill_context_parallel_size, speculation and speculation.method
    for fine, option, remedy in [
        (stages == 1, f"--pipeline-parallel-size {stages}", f"give --tensor-parallel-size {stages} instead"),
        (copies == 1, f"--data-parallel-size {copies} for a model with experts",
         f"give --tensor-parallel-size {copies} instead"),
        (parts == 1, f"--prefill-context-parallel-size {parts}", "leave it out"),
        # Other methods draft with a second model, or are untested.
        (method in (None, "ngram"), f"--speculative-config with method={method}",
         "give method=ngram or leave it out"),
    ]:  # fmt: skip
        if not fine:
            raise UserError(f"vLLM cannot run {option} beside a prober: {remedy}", "conflict")


def readable(
    stock: type[nn.Module], *, scores: bool = False, tokens: frozenset[int] | None = None
) -> type[nn.Module]:
    """Make a subclass of a vLLM model class that keeps the states of each step's tokens.

    They are vLLM's auxiliary hidden states (``SupportsEagle3``, made for EAGLE-3, Li et al. 2025, arXiv
    2503.01840): layer 0 is the embedding output, k the residual stream after block k, before the final norm,
    as everywhere in this package. They are copied into a buffer that stays where it is, so that the inner
    model may be compiled and the copy captured by a CUDA graph.

    Its instances have ``probers_states``, (tokens of a step at most, layers, d) in the model's number format.
    The layers are those that ``additional_config`` names under :data:`KEY`, ascending; rows are the tokens
    in the order of their schedule. The layer after the last is the final norm's output. With ``scores`` they
    also keep ``probers_scores``, (4, requests of the step), the result of
    :func:`probers.model.forward.token_scores` for each request's likeliest next token. Only ``tokens`` are
    written, where they are given. A class without the interface is a UserError.
    """
    from vllm.model_executor.models.interfaces import supports_eagle3

    if not supports_eagle3(stock):
        problem = f"vLLM's {stock.__name__} lacks SupportsEagle3, which hands out states"
        raise UserError(f"{problem}: run it without vLLM", "model")

    class Readable(stock):  # type: ignore[misc, valid-type]
        probers_states: Tensor
        probers_scores: Tensor

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
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
                message = f"vLLM's {stock.__name__} lacks some of the layers {list(self._aux)}: use others"
                raise UserError(message, "layers")
            for place, state in enumerate([*states, hidden] if self._normed else states):
                self.probers_states[: len(state), place].copy_(state)
            return hidden

        def compute_logits(self, *args: Any, **kwargs: Any) -> Any:
            logits = super().compute_logits(*args, **kwargs)
            if logits is None:  # on all ranks but one
                return None
            logits = only(logits, tokens)
            if scores:
                # Here, because vLLM may change the logits before it draws.
                self.probers_scores = token_scores(logits, logits.argmax(dim=-1), top=True)
            return logits

        def probers_read(self, hidden: Tensor, given: Tensor) -> Tensor:
            """Score given tokens (n,) by the normed states before them (n, d), like ``probers_scores``."""
            return token_scores(only(super().compute_logits(hidden), tokens), given, top=True)

    Readable.__name__ = Readable.__qualname__ = stock.__name__
    return Readable
