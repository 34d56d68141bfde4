"""Base class and building blocks of prober heads, from states to "wrong" against "correct".

A head reads one layer, or several at once. All heads are one module whose parameters carry a leading head
axis, so that they train and run as batched matrix products. Each head's initial weights and dropout masks
come from a random stream of its own, so that a head trained among others equals one trained alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checksums import draw_key
from ..types import UserError

#: Index of the class in the logits' last axis; Probing-RAG's label 1 means "answer correct".
WRONG, CORRECT = 0, 1


@dataclass(frozen=True, slots=True)
class Moments:
    """Float64 statistics of each head's training states: (H, d), class means (H, 2, d) by class number.

    For heads of several layers d stands for (L, d). The deviation is the population's standard deviation.
    """

    mean: Tensor
    deviation: Tensor
    class_mean: Tensor


class Memory(tuple[Any, ...]):
    """The state that causal heads keep of n growing texts: tensors with n first, or several memories."""

    __slots__ = ()

    @classmethod
    def joined(cls, memories: Sequence[Memory]) -> Memory:
        """Put the memories of several texts side by side."""
        parts = zip(*memories, strict=True)
        return cls(torch.cat(part) if isinstance(part[0], Tensor) else cls.joined(part) for part in parts)

    def each(self) -> list[Memory]:
        """Split into memories of one text each."""
        parts = (part.split(1) if isinstance(part, Tensor) else part.each() for part in self)
        return [Memory(parts_of_text) for parts_of_text in zip(*parts, strict=True)]


class ProbeHead(nn.Module):
    """H independent heads on states of width d; subclasses define :meth:`_logits`.

    ``streams`` names each head's random stream, e.g. by seed and layer. Every entry of the state dict has
    the head axis first. Parameters are saved in half precision, buffers (filled by :meth:`prepare`)
    unchanged.

    Attributes:
        method: name of the way it is trained, as in :mod:`probers.train.methods`.
        joint: each head reads the states (L, d) of several layers at once; the constructor takes their
            number L after the width.
        beside: joins its inputs, so that some of the L places may hold other numbers than states
            (:attr:`probers.types.Feature.beside`).
        tokens: reads all tokens' states and pools them itself, by :meth:`_token_logits` instead.
        causal: scores every token by its own states and those of tokens before it, by
            :meth:`_sequence_logits` instead.
        marker: marks the tokens of the scored span, so that spans must be known.
        learns: is trained by gradient; otherwise :meth:`prepare` alone fits it.
        step: number of training passes. With the stream's name it decides every random draw of the next
            one, so that a resumed training needs nothing else.
    """

    method: ClassVar[str] = "states"
    joint: ClassVar[bool] = False
    beside: ClassVar[bool] = False
    tokens: ClassVar[bool] = False
    causal: bool = False
    learns: ClassVar[bool] = True
    marker: bool = False

    def __init__(self, streams: Sequence[str], width: int, layers: int = 1) -> None:
        super().__init__()
        self.streams = tuple(streams)
        self.width, self.layers = width, layers
        self._sizes = (width, layers) if self.joint else (width,)
        self.step = 0

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides the sizes of the states, each kept under its name."""
        names = [*inspect.signature(type(self)).parameters][2 + self.joint :]
        return {name: getattr(self, name) for name in names}

    @property
    def reads(self) -> tuple[int, int]:
        """Number of layers read by all heads together, and the width of each."""
        return self.layers if self.joint else len(self.streams), self.width

    @property
    def needs_moments(self) -> bool:
        """True if :meth:`prepare` uses the moments."""
        return type(self).prepare is not ProbeHead.prepare

    @property
    def device(self) -> torch.device:
        """Device of the heads."""
        return next(chain(self.parameters(), self.buffers())).device

    @property
    def reach(self) -> int:
        """Number of tokens, itself included, that a token's score depends on."""
        return 1

    def prepare(self, moments: Moments) -> None:
        """Fit the parts that are not learned by gradient; nothing by default."""

    def shrink(self, rates: Mapping[str, Tensor]) -> None:
        """Adjust the parameters after a step; nothing by default.

        ``rates`` are the factors of each parameter's gradient in the step, number by number.
        """

    def layer_weights(self) -> Tensor | None:
        """Return the share (H, L) that each head gives to each of its layers; None if unknown."""
        return None

    def forward(self, states: Tensor, mask: Tensor | None = None, judged: Tensor | None = None) -> Tensor:
        """Compute logits (n, H, 2), [wrong, correct], every head on its own slice.

        ``states`` are (n, H, d), for joint heads (n, H, L, d). Classes that read tokens take (n, T, H, d) or
        (n, T, H, L, d), with a ``mask`` (n, T), true for existing tokens. Causal ones return the logits
        (n, T, H, 2) of every token, accept a mask ``judged`` (n, T) of the tokens of the scored
        span, and take both as (n, T, H) too, if each head has other texts. ValueError for other shapes.
        """
        sequences = self.tokens or self.causal
        expected = (len(self.streams), *self._sizes[::-1])
        if states.ndim != 1 + sequences + len(expected) or states.shape[-len(expected) :] != expected:
            wanted = ", ".join(["n", *(["T"] if sequences else []), *map(str, expected)])
            raise ValueError(f"states have shape {tuple(states.shape)}, expected ({wanted})")
        if mask is None and not sequences:
            # Heads first: the layout of batched matrix products.
            logits = self._logits(states.transpose(0, 1))
        elif mask is None or not sequences or mask.shape[:2] != states.shape[:2]:
            shape = None if mask is None else tuple(mask.shape)
            states_of_head = f"{type(self).__name__}'s states {tuple(states.shape)}"
            raise ValueError(f"mask {shape} does not fit {states_of_head}")
        elif self.causal:
            logits = self._sequence_logits(states, mask, judged)
        else:
            logits = self._token_logits(states, mask)
        if self.training:
            self.step += 1
        return logits.movedim(0, -2)

    def _logits(self, x: Tensor) -> Tensor:
        """Map (H, n, d) or (H, n, L, d) to (H, n, 2)."""
        raise NotImplementedError

    def _token_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (n, T, H, d) or (n, T, H, L, d), and (n, T), to (H, n, 2)."""
        raise NotImplementedError

    def _sequence_logits(self, x: Tensor, mask: Tensor, judged: Tensor | None) -> Tensor:
        """Map (n, T, H, d) or (n, T, H, L, d), (n, T), and scored tokens (n, T), to (H, n, T, 2).

        The latter two may also be (n, T, H).
        """
        raise NotImplementedError

    def begin(self, texts: int) -> Memory:
        """Make the memory of this many empty texts, for causal heads."""
        raise NotImplementedError

    def advance(self, states: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Compute logits (n, H, 2) of the next token of n texts by causal heads, and their new memory.

        ``states`` are (n, H, L, d). The result equals that of :meth:`forward` for the texts so far.
        """
        raise NotImplementedError

    def select(self, heads: Sequence[int]) -> ProbeHead:
        """Copy some of the heads, by position, to the CPU."""
        index = torch.as_tensor(list(heads), dtype=torch.long)
        chosen = self._untrained([self.streams[i] for i in heads])
        with torch.no_grad():
            chosen.load_state_dict({k: v.detach().cpu()[index] for k, v in self.state_dict().items()})
        chosen.step = self.step
        return chosen.train(self.training)

    def _untrained(self, streams: Sequence[str]) -> ProbeHead:
        """Make new heads of the same kind."""
        return type(self)(streams, *self._sizes, **self.options)


def weight_generators(streams: Sequence[str]) -> list[torch.Generator]:
    """Seed a generator of initial weights per head."""
    return [torch.Generator().manual_seed(draw_key("weights", 0, stream)) for stream in streams]


class Linear(nn.Module):
    """H linear maps; initial values uniform in +-1/sqrt(inputs), each from its own generator."""

    def __init__(
        self, generators: Sequence[torch.Generator], inputs: int, outputs: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        if outputs < 1:
            raise UserError(f"head.hidden={outputs} must be 1 or more")

        def uniform(*shape: int) -> nn.Parameter:
            values = torch.stack([torch.rand(*shape, generator=g) for g in generators])
            return nn.Parameter((2 * values - 1) * (1 / math.sqrt(inputs)))

        self.weight = uniform(inputs, outputs)
        self.bias = uniform(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(x, self.weight)
        return torch.baddbmm(self.bias[:, None], x, self.weight)


class Norm(nn.Module):
    """H layer norms of (H, .., width)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias[:, None], F.layer_norm(x, x.shape[-1:]), self.weight[:, None])


class Standardise(nn.Module):
    """Zero mean and unit deviation per head and dimension; the identity before :meth:`fit`.

    ``shape`` is the shape of a head's states, (d,) or (L, d).
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, heads: int, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(heads, *shape))
        self.register_buffer("scale", torch.ones(heads, *shape))

    @torch.no_grad()
    def fit(self, moments: Moments) -> None:
        """Take mean and deviation; a constant dimension is left unscaled."""
        deviation = moments.deviation
        self.mean.copy_(moments.mean)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean[:, None]) / self.scale[:, None]


class StandardisedHead(ProbeHead):
    """Base of heads whose ``input`` standardises the states, unless ``standardise`` is false."""

    def __init__(
        self, streams: Sequence[str], width: int, layers: int = 1, *, standardise: bool = True
    ) -> None:
        super().__init__(streams, width, layers)
        shape = (len(streams), *self._sizes[::-1])
        self.input = Standardise(*shape) if standardise else nn.Identity()

    @property
    def needs_moments(self) -> bool:
        return isinstance(self.input, Standardise)

    def prepare(self, moments: Moments) -> None:
        """Take mean and deviation per head, dimension and, for joint heads, layer."""
        if isinstance(self.input, Standardise):
            self.input.fit(moments)


class Dropout(nn.Module):
    """Dropout whose masks depend only on stream, place and step.

    They depend neither on the other heads nor on the device, and there is no state to save. Each number
    is a hash of its position: the output function of SplitMix64 (Steele, Lea and Flood 2014) on a counter,
    four 16-bit draws per value. Drawn for all heads at once, this takes less time than a generator per
    head, and on a GPU nothing waits for the CPU. ``p`` is rounded to a multiple of 2**-16; ``place`` tells
    the dropouts of one head apart.
    """

    _keys: Tensor

    def __init__(self, streams: Sequence[str], p: float, place: int = 0) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"head.dropout={p} must be at least 0 and below 1")
        self.p = p
        keys = [_signed(draw_key(f"dropout{place}", 0, stream)) for stream in streams]
        self.register_buffer("_keys", torch.tensor(keys)[:, None], persistent=False)

    def forward(self, x: Tensor, step: int) -> Tensor:
        """Drop some of the activations (H, n, d) while training; other ones at another ``step``."""
        if not self.training or self.p == 0:
            return x
        size = x[0].numel()
        counter = torch.arange(-(-size // 4), device=x.device) * _GOLDEN
        first = _mix(self._keys + _signed(step * _GOLDEN % 2**64))
        draws = _mix(first + counter).view(torch.int16)[:, :size].reshape(x.shape)
        keep = draws >= round(self.p * 2**16) - 2**15
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))


def _signed(number: int) -> int:
    """Reinterpret 64 bits as a signed integer; torch has no unsigned arithmetic."""
    return number - 2**64 if number >= 2**63 else number


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to int64, in place."""
    for shift, factor in _ROUNDS:
        # torch shifts in the sign, hence the mask.
        z.bitwise_xor_((z >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return z.bitwise_xor_((z >> 31).bitwise_and_(2**33 - 1))
