"""Specifications of hidden-state features: model, layers, site, pooling, number format.

A specification is written into the feature store, copied into every prober trained from it, and compared
before a prober reads another model's states: a feature computed in another way is refused.

Number format "fp8" is float8 e4m3 (Micikevicius et al. 2022): 3 bits behind the leading one, from 448 down to
2^-6, below it steps of 2^-9. A vector is divided by the power of two that brings its largest number to
between 232 and 464, which is rounded to 448 at most. So each number is off by at most a 16th of itself, or
the largest of its vector over 237,568. A power of two changes no digit: writing again what was read gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ..options import Count, Limits, Line, Name, Natural, check_record
from ..types import Beside, Feature, Needs, Pool, Site, UserError

if TYPE_CHECKING:
    from torch import Tensor

FP8 = "fp8"
#: Before the digest of an adapter in the revision of a model that runs with it.
ADAPTER_MARK = "+lora-"
#: Numbers as large are not stored: they could be rounded up to what float32 does not have.
TOO_LARGE = 2.0**127

_SMALLEST = -126  # exponent of a scale: of the smallest normal number of float32
_TURN = 464 / 512  # from half of a power of two to the power: what lies above would be rounded to over 448
_LAYERS = 10_000  # more than any model has
_Layers = Annotated[tuple[Natural, ...], Limits(max_length=_LAYERS)]
_Format = Annotated[str, Limits("float16, float32, float64 or fp8", pattern="^(float(16|32|64)|fp8)$")]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Identity of a language model, precise enough to notice another one.

    ``id`` is what the user typed; ``revision`` the hub commit or a hash of the local files, "" when unknown,
    and the adapter that the model ran with; ``width`` the size d of the residual stream; ``dtype`` the number
    format the model ran in.
    """

    id: Name
    revision: Line
    layers: Natural
    width: Count
    dtype: Line

    @property
    def adapter(self) -> str:
        """Beginning of the digest of the adapter; "" without one."""
        return self.revision.partition(ADAPTER_MARK)[2]

    def same_as(self, other: ModelSpec) -> bool:
        """Tell whether both name the same weights: by revision (whatever the path), if unknown by id."""
        if (self.layers, self.width, self.adapter) != (other.layers, other.width, other.adapter):
            return False
        mine, theirs = (spec.revision.partition(ADAPTER_MARK)[0] for spec in (self, other))
        return mine == theirs if mine and theirs else self.id == other.id

    def __str__(self) -> str:
        weights, plus, quantized = self.revision.partition("+")
        revision = f"@{weights[:12]}{plus}{quantized}" if self.revision else ""
        return f"{self.id}{revision} ({self.layers} layers of width {self.width})"


@dataclass(frozen=True, slots=True)
class BesideSpec:
    """What a prober reads beside states: its kind, and how many numbers a token has of it."""

    kind: Beside
    width: Count


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """Specification of the vectors read from a model, one per text and layer.

    Layers, site and pool are those of :class:`.Feature`. ``width`` is the length of a vector, the model's
    unless the pooling changes it; ``position`` the tokens that are pooled, "generated" without the prompt,
    "answer" or "thinking" a part of these;
    ``dtype`` the number format of the stored vectors; ``prompt`` a fingerprint of the template, "" for none.
    What is read ``beside`` the states is a prober's; a store has it as a feature of its own.
    """

    model: ModelSpec
    layers: _Layers
    width: Count
    site: Site = "resid_post"
    pool: Pool = "mean"
    position: Line = "generated"
    dtype: _Format = "float16"
    prompt: Line = ""
    beside: tuple[BesideSpec, ...] = ()

    def __post_init__(self) -> None:
        layers = tuple(int(k) for k in self.layers)
        if not layers or list(layers) != sorted(set(layers)):
            raise ValueError(f"layers must be ascending without repeats and not empty, got {self.layers}")
        if layers[0] < 0 or layers[-1] > self.model.layers:
            told = f"layers={list(layers)} is out of range: {self.model.id} has {self.model.layers} layers"
            raise UserError(f"{told} (0 is the embedding output)", "layers")
        object.__setattr__(self, "layers", layers)

    @property
    def feature(self) -> Feature:
        return Feature(self.layers, self.site, self.pool, tuple(each.kind for each in self.beside))

    @property
    def places(self) -> int:
        """Vectors of a text or token: one for each layer, and those that hold what is beside the states."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Name of each place: the layer, or the kind of what is beside the states."""
        beside = [[each.kind] * places_for(each.width, self.width) for each in self.beside]
        return [*map(str, self.layers), *chain.from_iterable(beside)]

    @property
    def needs(self) -> Needs:
        return Needs((self.feature,))

    @property
    def read_as(self) -> np.dtype:
        """Number format in which stored vectors are given out."""
        return np.dtype("float32" if self.dtype == FP8 else self.dtype)

    @property
    def vector_bytes(self) -> int:
        """Bytes of one stored vector without its scale."""
        return self.width * (1 if self.dtype == FP8 else self.read_as.itemsize)

    @property
    def row_bytes(self) -> int:
        """Bytes of all stored vectors of a row, with their scales."""
        return len(self.layers) * (self.vector_bytes + 4 * (self.dtype == FP8))

    def select(self, layers: Sequence[int]) -> FeatureSpec:
        """Keep some of the layers; UserError lists those there are."""
        if absent := [k for k in layers if k not in self.layers]:
            told = f"layer={absent[0] if len(absent) == 1 else absent} is not in the features"
            model = f"{self.model.id}, which has {self.model.layers} layers (0 is the embedding output)"
            there = ranges(self.layers)
            raise UserError(f"{told}: they hold layers {there} of {model}; choose among these", "layers")
        return replace(self, layers=tuple(sorted(set(layers))))

    def check_model(self, model: ModelSpec, *, what: str = "the features") -> None:
        """Refuse another model than the one these features, called ``what``, were read from (UserError)."""
        if not self.model.same_as(model):
            told = f"{what} came from the model {self.model}, but the model now is {model}"
            remedy = "use that model, or make features and prober again with this one"
            if self.model.adapter != model.adapter:
                remedy = "read both with the same adapter (model.adapter=FOLDER), or both without"
            raise UserError(f"{told}: {remedy}", "mismatch")

    def check(self, other: FeatureSpec, *, what: str = "the features", against: str = "the others") -> None:
        """Refuse vectors that were read in another way, layers aside (UserError)."""
        self.check_model(other.model, what=what)
        for name in ("site", "pool", "position", "width", "prompt"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                told = f"{what} have {name}={mine!r}, {against} {name}={theirs!r}"
                raise UserError(f"{told}: make one of them again with the same {name}", "mismatch")

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self), "layers": list(self.layers), "beside": list(map(asdict, self.beside))}
        if not self.beside:  # files of before have no such key
            del found["beside"]
        return found

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> FeatureSpec:
        """Inverse of :meth:`to_dict`; UserError or ValueError where fields are not as it writes them."""
        value = {"beside": [], **value}
        check_record(cls, value, "spec.")
        check_record(ModelSpec, value["model"], "spec.model.")
        beside = tuple(BesideSpec(**each) for each in value["beside"])
        made = {"model": ModelSpec(**value["model"]), "layers": tuple(value["layers"]), "beside": beside}
        return cls(**{**value, **made})


def places_for(numbers: int, width: int) -> int:
    """Count the places, each of a state's ``width``, that so many numbers beside the states fill."""
    return -(-numbers // width)


def ranges(layers: Sequence[int]) -> str:
    """Write ascending layers as their runs, like "2, 5-8"."""
    # Along a run of consecutive numbers the distance between number and place stays.
    runs = [[*run] for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(r[0][1]) if len(r) == 1 else f"{r[0][1]}-{r[-1][1]}" for r in runs)


def parse_layers(value: Any, named: Mapping[str, Sequence[int]], key: str) -> tuple[int, ...]:
    """Resolve option ``key``, one of the words in ``named``, a number or a list, to ascending layers."""
    if isinstance(value, str) and value in named:
        return tuple(named[value])
    wanted = [value] if isinstance(value, int) else value
    if not isinstance(wanted, Sequence) or not all(type(k) is int for k in wanted):
        words = ", ".join(named)
        raise UserError(f"{key}={value} is not understood: give {words}, a number or a list like [4,8]")
    return tuple(sorted(set(wanted)))


def fp8_encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Encode float32 vectors (.., d) below :data:`TOO_LARGE` as codes in e4m3 and float32 scales (..,)."""
    import torch

    half, exponent = torch.frexp(vectors.abs().amax(dim=-1))
    exponent = (exponent - 9 + (half > _TURN)).clamp(min=_SMALLEST)
    scales = torch.ldexp(torch.ones_like(half), exponent)
    return (vectors / scales[..., None]).to(torch.float8_e4m3fn), scales


def fp8_decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode codes (.., d), as bytes, and scales (..,) to float32."""
    import torch

    vectors = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    return vectors.mul_(torch.from_numpy(scales)[..., None]).numpy()


def fp8_rounded(vectors: Tensor) -> Tensor:
    """Round vectors as they would be read again."""
    codes, scales = fp8_encode(vectors)
    return codes.float().mul_(scales[..., None])
