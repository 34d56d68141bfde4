"""A logistic regression on the scores of finished probers, which it contains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .base import CORRECT, WRONG, Memory, ProbeHead


class StackedHead(ProbeHead):
    """Log-odds of "wrong" by a logistic model over the scores of several probers (Wolpert 1992).

    Each member keeps its own heads, layers and rule that makes one score of their margins. The margin is the
    intercept and the sum of weight times standardised score; a weight is a change of the log-odds for one
    standard deviation of the member's score. If a member reads tokens in order, so does the stack, and the
    others score every token by itself. Nothing is trained here: ``probers-train head=stacked`` fits weights
    on texts that no member was trained on, by :meth:`weigh`.

    Args:
        members: ``head``, ``options``, ``layers`` and ``ensemble`` of each, as in ``config.json`` of probers;
            the layers of the states are all of theirs, ascending.

    Raises:
        ValueError: more than one head, or members that do not read the states' layers.
    """

    joint: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    #: Heads that members may have, by name; filled by the package.
    kinds: ClassVar[Mapping[str, type[ProbeHead]]] = {}
    weights: Tensor
    mean: Tensor
    scale: Tensor
    intercept: Tensor

    def __init__(
        self, streams: Sequence[str], width: int, layers: int, *, members: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(streams, width, layers)
        self.members = [dict(member) for member in members]
        read = sorted({layer for member in self.members for layer in member["layers"]})
        if len(streams) != 1 or len(read) != layers:
            raise ValueError(f"one stack reads {len(read)} layers, not {len(streams)} stacks {layers} layers")
        self._places = [[read.index(layer) for layer in member["layers"]] for member in self.members]
        self.heads = nn.ModuleList(map(self._make_member, self.members))
        self.causal = any(head.causal for head in self._heads)
        for name, value in (("weights", 0.0), ("mean", 0.0), ("scale", 1.0)):
            self.register_buffer(name, torch.full((1, len(self.members)), value))
        self.register_buffer("intercept", torch.zeros(1))
        self.register_state_dict_post_hook(partial(_index_members, None))
        self.register_load_state_dict_pre_hook(partial(_index_members, 0))

    def _make_member(self, member: Mapping[str, Any]) -> ProbeHead:
        kind, names = self.kinds[member["head"]], [f"layer{k}" for k in member["layers"]]
        streams, sizes = (names[:1], (self.width, len(names))) if kind.joint else (names, (self.width,))
        return kind(streams, *sizes, **member["options"])

    @property
    def _heads(self) -> list[ProbeHead]:
        return [head for head in self.heads if isinstance(head, ProbeHead)]

    @property
    def reach(self) -> int:
        return max(head.reach for head in self._heads)

    @torch.no_grad()
    def weigh(self, mean: Any, scale: Any, weights: Any, intercept: float) -> None:
        """Set the logistic model: numbers (members,) and an intercept."""
        for buffer, value in ((self.mean, mean), (self.scale, scale), (self.weights, weights)):
            buffer.copy_(torch.as_tensor(value)[None])
        self.intercept.fill_(intercept)

    def _logits(self, x: Tensor) -> Tensor:
        return self._stacked(self._score_rows(i, x[0]) for i in range(len(self.members)))[None]

    def _sequence_logits(self, x: Tensor, mask: Tensor, judged: Tensor | None) -> Tensor:
        return self._stacked(
            head.forward(x[:, :, :, self._places[number]], mask, judged)
            if head.causal
            else self._score_rows(number, x[:, :, 0].flatten(0, 1)).unflatten(0, mask.shape)
            for number, head in enumerate(self._heads)
        )[None]

    def begin(self, texts: int) -> Memory:
        """Join the empty memories of the members that read tokens in order."""
        return Memory(head.begin(texts) for head in self._heads if head.causal)

    def advance(self, states: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Advance these members, and let the others score the next tokens by themselves."""
        before, after, each_logits = iter(memory), [], []
        for number, head in enumerate(self._heads):
            if head.causal:
                logits, memory_of_head = head.advance(states[:, :, self._places[number]], next(before))
                after.append(memory_of_head)
            else:
                logits = self._score_rows(number, states[:, 0])
            each_logits.append(logits)
        return self._stacked(each_logits)[:, None], Memory(after)

    def _score_rows(self, number: int, x: Tensor) -> Tensor:
        """Compute logits (n, heads, 2) of a member from states (n, L, d)."""
        head, states = self._heads[number], x[:, self._places[number]]
        return head.forward(states[:, None] if head.joint else states)

    def _stacked(self, each_logits: Iterable[Tensor]) -> Tensor:
        """Stack the members' logits (.., heads, 2) to logits (.., 2)."""
        scores = []
        for member, logits in zip(self.members, each_logits, strict=True):
            rule, margins = member["ensemble"], logits[..., WRONG] - logits[..., CORRECT]
            # Like Ensemble of probers.prober.decision.
            margins = torch.tanh(margins / 2) if rule["kind"] == "probabilities" else margins
            scores.append((margins * margins.new_tensor(rule["weights"])).sum(dim=-1) + rule["intercept"])
        standard = (torch.stack(scores, dim=-1) - self.mean[0]) / self.scale[0]
        margin = (standard * self.weights[0]).sum(dim=-1) + self.intercept
        return torch.stack([margin / 2, -margin / 2], dim=-1)


def _index_members(index: int | None, head: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add (None) or take off (0) the axis of the single stack, before that of the members' own heads."""
    for name in state:
        if name.startswith(f"{prefix}heads."):
            state[name] = state[name][index]
