"""Value heads: linear probes of single tokens, in the files of hallucination_probes (Obeso et al. 2025).

``probe_config.json`` has ``layer_idx`` and ``hidden_size``, ``probe_head.bin`` the state dict of a
``torch.nn.Linear(hidden_size, 1)``. Its logit of the residual stream after block ``layer_idx``, counted from
0, is above 0 where a token is likely wrong. The files do not name the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files import read_bytes, read_json
from ..heads import CORRECT, WRONG, LinearHead, ProbeHead, head_name
from ..options import shown
from ..store.spec import FeatureSpec, ModelSpec
from ..types import UserError
from .decision import Ensemble

CONFIG, WEIGHTS = "probe_config.json", "probe_head.bin"
_ADAPTERS = "adapter_config.json"
#: Files to download; the configuration of an adapter reveals its presence.
FILES = (CONFIG, WEIGHTS, _ADAPTERS)
#: Limits of a file, in bytes, and of a state.
_LARGEST, _WIDEST = 64 << 20, 1 << 20


@dataclass(frozen=True, eq=False)
class ValueHead:
    """A linear map from a token's state to the logit of "wrong".

    Attributes:
        layer_idx: block whose output is read, from 0; layer ``layer_idx + 1`` of this package.
        weight: (d,) float32.
    """

    layer_idx: int
    weight: Tensor
    bias: float

    @property
    def width(self) -> int:
        return len(self.weight)

    def spec(self, model: ModelSpec, name: str) -> FeatureSpec:
        """Specify the states that it reads of a model; ``name`` is the user's name for the probe.

        Raises:
            UserError: a model of another width, or with too few layers.
        """
        fix = "give the model that it was trained on"
        if self.width != model.width:
            told = f"the probe {name} reads states of width {self.width}, and the model is {model}"
            raise UserError(f"{told}: {fix}", "mismatch")
        if self.layer_idx >= model.layers:
            told = f"the probe {name} reads layer_idx={self.layer_idx}, counted from 0"
            raise UserError(f"{told}, and the model is {model}: {fix}", "layers")
        # Not rounded to half precision, which cannot hold the largest coordinates of some models.
        layers = (self.layer_idx + 1,)
        return FeatureSpec(model, layers, self.width, pool="tokens", position="token", dtype="float32")

    def head(self, name: str) -> LinearHead:
        """Make an equal linear head without standardisation: logits [wrong, correct] are [z / 2, -z / 2].

        Weights are rounded to half precision, as in saved probers. UserError for those beyond it.
        """
        head = LinearHead([f"layer{self.layer_idx + 1}"], self.width)
        weight, bias = self.weight.half().float() / 2, torch.tensor(self.bias).half().float() / 2
        if not (weight.isfinite().all() and bias.isfinite()):
            told = f"the probe {name} has weights beyond 65504, and probers are saved in half precision"
            raise UserError(f"{told}: divide weight and bias by the same number", "unsupported")
        signs = torch.zeros(2)
        signs[WRONG], signs[CORRECT] = 1, -1
        with torch.no_grad():
            head.linear.weight.copy_((weight[:, None] * signs)[None])
            assert head.linear.bias is not None
            head.linear.bias.copy_((bias * signs)[None])
        return head

    def files(self) -> dict[str, bytes]:
        """Return the content of both files; equal heads give equal bytes."""
        config = {"layer_idx": self.layer_idx, "hidden_size": self.width}
        tensors, blob = {"weight": self.weight[None].clone(), "bias": torch.tensor([self.bias])}, BytesIO()
        torch.save(tensors, blob)
        return {WEIGHTS: blob.getvalue(), CONFIG: f"{json.dumps(config, indent=4)}\n".encode()}


def is_value_head(folder: Path) -> bool:
    """Tell whether a folder has the files of a value head, or some of them."""
    return any((folder / name).exists() for name in (CONFIG, WEIGHTS))


def read_value_head(folder: Path, name: str) -> ValueHead:
    """Read the value head in a folder, which the user called ``name``, without running code of its files.

    Raises:
        UserError: an absent or damaged file, an adapter beside it, or another shape than ``Linear(d, 1)``.
    """
    adapters = sorted(path.name for path in folder.glob("adapter_model.*"))
    if adapters or (folder / _ADAPTERS).exists():
        told = f"the probe {name} comes with a LoRA adapter ({next(iter(adapters), _ADAPTERS)})"
        told += ", which changes the states and cannot be run yet: give a probe that was trained without one"
        raise UserError(told, "unsupported")
    layer_idx, width = _config(_read(read_json, folder, CONFIG, name), name)
    found = _linear(_read(_tensors, folder, WEIGHTS, name), name)
    weight, bias = found["weight"], found["bias"]
    if (shapes := (tuple(weight.shape), tuple(bias.shape))) != ((1, width), (1,)):
        told = f"the probe {name} has weight and bias of shapes {shapes[0]} and {shapes[1]} in {WEIGHTS}"
        why = f"not (1, {width}) and (1,), as {CONFIG} says: only linear probes with one logit can be read"
        raise UserError(f"{told}, {why}", "bad-file")
    if not all(value.isfinite().all() for value in found.values()):
        raise UserError(f"the probe {name} has weights that are not finite in {WEIGHTS}", "damaged")
    return ValueHead(layer_idx, weight[0].float(), float(bias))


def _read(how: Any, folder: Path, file: str, name: str) -> Any:
    try:
        return how(folder / file)
    except (FileNotFoundError, NotADirectoryError):
        told = f"{name} is not a probe of a linear head: it has no {file}; {CONFIG} and {WEIGHTS} are needed"
        raise UserError(told, "no-artifact") from None
    except ValueError as error:
        raise UserError(f"the probe {name} is damaged ({file} {error}): get it again", "damaged") from error


def _config(config: Any, name: str) -> tuple[int, int]:
    """Read layer and width; other fields do not matter here."""
    given = config if isinstance(config, Mapping) else {}
    for key, least, most in (("layer_idx", 0, _WIDEST), ("hidden_size", 1, _WIDEST)):
        if type(given.get(key)) is not int or not least <= given[key] <= most:
            told = f"the probe {name} has {key}={shown(given.get(key))} in {CONFIG}"
            raise UserError(f"{told}: it must be a whole number from {least} to {most}", "bad-file")
    return given["layer_idx"], given["hidden_size"]


def _tensors(file: Path) -> Mapping[str, Tensor]:
    """Load named tensors from a pickle that holds nothing else (ValueError)."""
    blob = BytesIO(read_bytes(file, most=_LARGEST))
    try:
        found = torch.load(blob, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError("holds something other than tensors, or is truncated") from error
    plain = isinstance(found, Mapping) and all(isinstance(key, str) for key in found)
    if not plain or not all(_is_plain(value) for value in found.values()):
        raise ValueError("holds no state dict of plain tensors")
    return found  # type: ignore[no-any-return]


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.is_floating_point()


def _linear(found: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return weight and bias, whatever prefix their names have."""
    named = {key.rpartition(".")[2]: value for key, value in found.items()}
    prefixes = {key.rpartition(".")[0] for key in found}
    if len(found) != 2 or named.keys() != {"weight", "bias"} or len(prefixes) != 1:
        told = f"the probe {name} has the tensors {shown(sorted(found))} in {WEIGHTS}"
        why = "only a linear probe with one weight and one bias can be read"
        raise UserError(f"{told}: {why}", "unsupported")
    return named


def fold(spec: FeatureSpec, head: ProbeHead, ensemble: Ensemble, layer: int | None = None) -> ValueHead:
    """Make a value head of the linear head of one layer, with its standardisation folded into the weights.

    With one layer its logit is the prober's score, with several the margin of ``layer``.

    Raises:
        UserError: other heads, pools or sites, layer 0, or several layers without ``layer``.
    """
    for key, value, needed in (
        ("head", head_name(head), "linear"), ("pool", spec.pool, "tokens"), ("site", spec.site, "resid_post"),
    ):  # fmt: skip
        if value != needed:
            told = f"a prober of {key}={value} cannot be exported: train one with {key}={needed}"
            raise UserError(f"{told}, to make a value head of it", "unsupported")
    assert isinstance(head, LinearHead)
    if layer is None and len(spec.layers) > 1:
        listed = ", ".join(map(str, spec.layers))
        raise UserError(f"a value head has one layer: choose layer=K of {listed}", "missing-value")
    (chosen,) = spec.select(spec.layers if layer is None else [layer]).layers
    if chosen == 0:
        told = "layer=0 is the embedding, and a value head reads a block: choose another"
        raise UserError(told, "unsupported")
    place = spec.layers.index(chosen)
    kept = {key: value[place].detach().cpu().double() for key, value in head.state_dict().items()}
    weight = kept["linear.weight"][:, WRONG] - kept["linear.weight"][:, CORRECT]
    bias = kept["linear.bias"][WRONG] - kept["linear.bias"][CORRECT]
    weight = weight / kept["input.scale"]
    bias = bias - weight @ kept["input.mean"]
    if len(spec.layers) == 1 and ensemble.kind != "probabilities":  # whose order is the margin's
        (factor,) = ensemble.over(1).weights
        weight, bias = factor * weight, factor * bias + ensemble.intercept
    return ValueHead(chosen - 1, weight.float(), float(bias.float()))
