"""Specifications of hidden-state features: model, layers, site, pooling, number format.

A specification is written into the feature store, copied into every prober trained from it, and compared
before a prober reads another model's states: features computed in another way are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from typing import Annotated, Any

import numpy as np

from ..options import Count, Limits, Line, Name, Natural, check_record
from ..prompts import form_name
from ..types import Beside, Feature, Needs, Pool, Site, UserError

#: Prefix of an adapter's digest in the revision of a model that runs with it.
ADAPTER_MARK = "+lora-"

#: Fields that are not there in files of version 0.2.
_MARKS = ("template", "ends", "tokens")
_OPTIONAL = (*_MARKS, "sample")
_LAYERS = 10_000  # more than any model has
_Layers = Annotated[tuple[Natural, ...], Limits(max_length=_LAYERS)]
_Format = Annotated[str, Limits("float16, float32 or float64", pattern="^float(16|32|64)$")]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Identity of a language model, precise enough to notice another one.

    ``id`` is the name that the user typed; ``revision`` the hub commit or a hash of the local files, "" if
    unknown, and the model's adapter; ``width`` the size d of the residual stream; ``dtype`` the number
    format the model ran in. The others name what turns a chat into tokens and ends a text, "" if unknown:
    digests of the chat template and of a sample's tokens, and the end tokens
    (:func:`probers.prompts.text_marks`). ``sample`` is a digest of weights in memory, "" if unknown
    (:func:`probers.model.loading.weight_sample`).
    """

    id: Name
    revision: Line
    layers: Natural
    width: Count
    dtype: Line
    template: Line = ""
    ends: Line = ""
    tokens: Line = ""
    sample: Line = ""

    @property
    def adapter(self) -> str:
        """First digits of the adapter's digest; "" without one."""
        return self.revision.partition(ADAPTER_MARK)[2]

    def same_as(self, other: ModelSpec) -> bool:
        """Tell whether both name the same weights, and make and end texts alike as far as both say it."""
        return self.same_weights(other) and not self.other_texts(other)

    def other_texts(self, other: ModelSpec) -> str:
        """Name what makes and ends texts otherwise in another specification, in words; "" for nothing."""
        differ = {n for n in _MARKS if (a := getattr(self, n)) and (b := getattr(other, n)) and a != b}
        words = [f"{'no' if other.template == 'none' else 'another'} chat template"] * ("template" in differ)
        words += [f"other end tokens ({other.ends} in place of {self.ends})"] * ("ends" in differ)
        words += ["other special tokens, or another tokenizer"] * ("tokens" in differ)
        return " and ".join(words)

    def against(self, other: ModelSpec) -> str:
        """Say that something came from this model, and the model now is another."""
        difference = self.other_texts(other)
        if difference and self.same_weights(other):
            return f"came from the model {self}, which now has {difference}"
        if self.revision and self.revision == other.revision:
            difference = difference or "other weights in memory"
        now = f"{other}{difference and f' with {difference}'}"
        return f"came from the model {self}, but the model now is {now}"

    def same_weights(self, other: ModelSpec) -> bool:
        """Tell whether both have the same weights: by sample, if unknown by revision, if unknown by id."""
        if (self.layers, self.width, self.adapter) != (other.layers, other.width, other.adapter):
            return False
        if self.sample and other.sample:
            return self.sample == other.sample
        mine, theirs = (spec.revision.partition(ADAPTER_MARK)[0] for spec in (self, other))
        return mine == theirs if mine and theirs else self.id == other.id

    def __str__(self) -> str:
        weights, plus, quantized = (self.revision or self.sample).partition("+")
        revision = f"@{weights[:12]}{plus}{quantized}" if weights else ""
        return f"{self.id}{revision} ({self.layers} layers of width {self.width})"


@dataclass(frozen=True, slots=True)
class BesideSpec:
    """An input of a prober besides states: its kind, and how many numbers a token has of it."""

    kind: Beside
    width: Count


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """Specification of the vectors read from a model, one per text and layer.

    Layers, site and pool are those of :class:`.Feature`. ``width`` is the length of a vector, the model's
    unless the pooling changes it; ``position`` names the pooled tokens, "generated" without the prompt,
    "answer" or "thinking" a part of these;
    ``dtype`` the number format of the stored vectors; ``prompt`` a fingerprint of the template, "" for none.
    Only a prober has inputs ``beside`` the states; a store has them as features of their own.
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
            message = f"layers={list(layers)} is out of range: {self.model.id} has {self.model.layers} layers"
            raise UserError(f"{message} (0 is the embedding output)", "layers")
        object.__setattr__(self, "layers", layers)

    @property
    def feature(self) -> Feature:
        return Feature(self.layers, self.site, self.pool, tuple(each.kind for each in self.beside))

    @property
    def places(self) -> int:
        """Number of vectors of a text or token: one for each layer, and those of inputs beside states."""
        return len(self.names)

    @property
    def names(self) -> list[str]:
        """Name of each place: the layer, or the kind of input beside the states."""
        beside = [[each.kind] * places_for(each.width, self.width) for each in self.beside]
        return [*map(str, self.layers), *chain.from_iterable(beside)]

    @property
    def needs(self) -> Needs:
        return Needs((self.feature,))

    @property
    def read_as(self) -> np.dtype:
        """Number format of vectors that are read."""
        return np.dtype(self.dtype)

    @property
    def vector_bytes(self) -> int:
        """Bytes of one stored vector."""
        return self.width * self.read_as.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of all stored vectors of a row."""
        return len(self.layers) * self.vector_bytes

    def select(self, layers: Sequence[int]) -> FeatureSpec:
        """Keep some of the layers; UserError lists the existing ones."""
        if absent := [k for k in layers if k not in self.layers]:
            message = f"layer={absent[0] if len(absent) == 1 else absent} is not in the features"
            model = f"{self.model.id}, which has {self.model.layers} layers (0 is the embedding output)"
            there = ranges(self.layers)
            raise UserError(f"{message}: they hold layers {there} of {model}; choose among these", "layers")
        return replace(self, layers=tuple(sorted(set(layers))))

    def check_model(self, model: ModelSpec, *, what: str = "the features") -> None:
        """Refuse a model other than that of these features, called ``what`` (UserError)."""
        if not self.model.same_as(model):
            message = f"{what} {self.model.against(model)}"
            remedy = "use that model, or make features and prober again with this one"
            if self.model.adapter != model.adapter:
                remedy = "read both with the same adapter (model.adapter=FOLDER), or both without"
            raise UserError(f"{message}: {remedy}", "mismatch")

    def check(self, other: FeatureSpec, *, what: str = "the features", against: str = "the others") -> None:
        """Refuse vectors that were read in another way, except for the layers (UserError)."""
        self.check_model(other.model, what=what)
        for name in ("site", "pool", "position", "width", "prompt"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                message = f"{what} have {name}={mine!r}, {against} {name}={theirs!r}"
                if name == "prompt":
                    message = f"{what} were made with {form_name(mine)}, {against} with {form_name(theirs)}"
                options = "source and unit" if name == "position" else name
                raise UserError(f"{message}: make one of them again with the same {options}", "mismatch")

    def to_dict(self) -> dict[str, Any]:
        fields = {**asdict(self), "layers": list(self.layers), "beside": list(map(asdict, self.beside))}
        fields["model"] = {k: v for k, v in fields["model"].items() if v or k not in _OPTIONAL}
        return {name: value for name, value in fields.items() if name != "beside" or value}  # none in stores

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> FeatureSpec:
        """Invert :meth:`to_dict`; UserError or ValueError for other fields."""
        value = {"beside": [], **value}
        check_record(cls, value, "spec.")
        value["model"] = dict.fromkeys(_OPTIONAL, "") | value["model"]
        check_record(ModelSpec, value["model"], "spec.model.")
        beside = tuple(BesideSpec(**record) for record in value["beside"])
        model, layers = ModelSpec(**value["model"]), tuple(value["layers"])
        return cls(**{**value, "model": model, "layers": layers, "beside": beside})


def places_for(numbers: int, width: int) -> int:
    """Count the places, each of a state's ``width``, for this many numbers beside the states."""
    return -(-numbers // width)


def ranges(layers: Sequence[int]) -> str:
    """Write ascending layers as their runs, like "2, 5-8"."""
    # In a run of consecutive numbers, number minus place is constant.
    runs = [[*run] for _, run in groupby(enumerate(layers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(r[0][1]) if len(r) == 1 else f"{r[0][1]}-{r[-1][1]}" for r in runs)


def parse_layers(value: Any, named: Mapping[str, Sequence[int]], key: str) -> tuple[int, ...]:
    """Resolve option ``key``, one of the words in ``named``, a number or a list, to ascending layers."""
    if isinstance(value, str) and value in named:
        return tuple(named[value])
    wanted = [value] if isinstance(value, int) else value
    if not isinstance(wanted, Sequence) or not all(type(k) is int for k in wanted):
        words = ", ".join(named)
        raise UserError(f"{key}={value} is not valid: give {words}, a number or a list like [4,8]")
    return tuple(sorted(set(wanted)))
