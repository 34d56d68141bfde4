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
    """A linear map from a token's state to the logit of "wrong", with ``weight`` (d,) float32.

    It reads the output of block ``layer_idx``, from 0: layer ``layer_idx + 1`` of this package.
    """

    layer_idx: int
    weight: Tensor
    bias: float

    @property
    def width(self) -> int:
        return len(self.weight)

    def spec(self, model: ModelSpec, name: str) -> FeatureSpec:
        """Specify the states that it reads of a model (UserError: another model); ``name`` is the user's."""
        other = f"and the model is {model}: give the model that it was trained on"
        if self.width != model.width:
            raise UserError(f"the probe {name} reads states of width {self.width}, {other}", "mismatch")
        if self.layer_idx >= model.layers:
            message = f"the probe {name} reads layer_idx={self.layer_idx}, counted from 0, {other}"
            raise UserError(message, "layers")
        # Not rounded to half precision, which cannot hold the largest coordinates of some models.
        layers = (self.layer_idx + 1,)
        return FeatureSpec(model, layers, self.width, pool="tokens", position="token", dtype="float32")

    def parts(self, model: ModelSpec | None, name: str) -> dict[str, Any]:
        """Make the arguments of a prober of this head for a model (UserError: none is given)."""
        if model is None:
            fix = "make a prober of it with probers-import, or pass model=lm.spec to from_pretrained"
            raise UserError(f"the files of the probe {name} do not name its model: {fix}", "missing-value")
        return {"spec": self.spec(model, name), "head": self.head(name), "aggregate": "max"}

    def head(self, name: str) -> LinearHead:
        """Make an equal linear head without standardisation: logits [wrong, correct] are [z / 2, -z / 2].

        Weights are rounded to half precision, as in saved probers. UserError for those beyond it.
        """
        head = LinearHead([f"layer{self.layer_idx + 1}"], self.width)
        weight, bias = self.weight.half().float() / 2, torch.tensor(self.bias).half().float() / 2
        if not (weight.isfinite().all() and bias.isfinite()):
            fix = "divide weight and bias by the same number"
            raise UserError(f"the probe {name} has weights beyond 65504 (float16): {fix}", "unsupported")
        signs = torch.zeros(2)
        signs[WRONG], signs[CORRECT] = 1, -1
        with torch.no_grad():
            head.linear.weight.copy_((weight[:, None] * signs)[None])
            assert head.linear.bias is not None
            head.linear.bias.copy_((bias * signs)[None])
        return head

    def files(self) -> dict[str, bytes]:
        """Return the content of both files; equal heads give equal bytes."""
        config, blob = {"layer_idx": self.layer_idx, "hidden_size": self.width}, BytesIO()
        torch.save({"weight": self.weight[None].clone(), "bias": torch.tensor([self.bias])}, blob)
        return {WEIGHTS: blob.getvalue(), CONFIG: f"{json.dumps(config, indent=4)}\n".encode()}


def is_value_head(folder: Path) -> bool:
    """Tell whether a folder has the files of a value head, or some of them."""
    return any((folder / name).exists() for name in (CONFIG, WEIGHTS))


def read_value_head(folder: Path, name: str) -> ValueHead:
    """Read the value head in a folder, which the user called ``name``, without running code of its files.

    UserError: an absent or damaged file, an adapter beside it, or another shape than ``Linear(d, 1)``.
    """
    adapters = sorted(path.name for path in folder.glob("adapter_model.*"))
    if adapters or (folder / _ADAPTERS).exists():
        why = f"the probe {name} comes with a LoRA adapter ({next(iter(adapters), _ADAPTERS)})"
        raise UserError(f"{why}, which cannot be run: give a probe trained without one", "unsupported")
    layer_idx, width = _config(_read(read_json, folder, CONFIG, name), name)
    tensors = _read(_tensors, folder, WEIGHTS, name)
    parts = [key.rpartition(".") for key in tensors]  # any prefix is fine
    if sorted(part[2] for part in parts) != ["bias", "weight"] or parts[0][0] != parts[1][0]:
        message = f"the probe {name} has the tensors {shown(sorted(tensors))} in {WEIGHTS}"
        raise UserError(f"{message}, and only one weight and one bias can be read", "unsupported")
    bias, weight = (tensors[key] for key in sorted(tensors))
    if (shapes := (tuple(weight.shape), tuple(bias.shape))) != ((1, width), (1,)):
        message = f"the probe {name} has weight and bias of shapes {shapes[0]} and {shapes[1]} in {WEIGHTS}"
        raise UserError(f"{message}, and {CONFIG} says (1, {width}) and (1,)", "bad-file")
    if not all(value.isfinite().all() for value in tensors.values()):
        raise UserError(f"the probe {name} has weights that are not finite in {WEIGHTS}", "damaged")
    return ValueHead(layer_idx, weight[0].float(), float(bias))


def _read(how: Any, folder: Path, file: str, name: str) -> Any:
    try:
        return how(folder / file)
    except (FileNotFoundError, NotADirectoryError):
        why = f"{name} is not a probe of a linear head: it has no {file}; {CONFIG} and {WEIGHTS} are needed"
        raise UserError(why, "no-artifact") from None
    except ValueError as error:
        raise UserError(f"the probe {name} is damaged ({file} {error}): get it again", "damaged") from error


def _config(config: Any, name: str) -> tuple[int, int]:
    """Read layer and width; other fields do not matter here."""
    given = config if isinstance(config, Mapping) else {}
    for key, least in (("layer_idx", 0), ("hidden_size", 1)):
        if type(given.get(key)) is not int or not least <= given[key] <= _WIDEST:
            message = f"the probe {name} has {key}={shown(given.get(key))} in {CONFIG}"
            raise UserError(f"{message}: it must be a whole number from {least} to {_WIDEST}", "bad-file")
    return given["layer_idx"], given["hidden_size"]


def _tensors(file: Path) -> Mapping[str, Tensor]:
    """Load named tensors from a pickle that holds nothing else (ValueError)."""
    blob = BytesIO(read_bytes(file, most=_LARGEST))
    try:
        tensors = torch.load(blob, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError("holds something other than tensors, or is truncated") from error
    plain = isinstance(tensors, Mapping) and all(
        isinstance(key, str) and isinstance(value, Tensor)
        and value.layout == torch.strided and value.is_floating_point()
        for key, value in tensors.items()
    )  # fmt: skip
    if not plain:
        raise ValueError("holds no state dict of plain tensors")
    return tensors  # type: ignore[no-any-return]


def fold(spec: FeatureSpec, head: ProbeHead, ensemble: Ensemble, layer: int | None = None) -> ValueHead:
    """Make a value head of the linear head of one layer, with its standardisation folded into the weights.

    With one layer its logit is the prober's score, with several the margin of ``layer``. UserError for other
    heads, pools or sites, layer 0, or several layers without ``layer``.
    """
    for key, value, needed in (
        ("head", head_name(head), "linear"), ("pool", spec.pool, "tokens"), ("site", spec.site, "resid_post"),
    ):  # fmt: skip
        if value != needed:
            message = f"a prober of {key}={value} cannot be exported: train one with {key}={needed}"
            raise UserError(f"{message}, to make a value head of it", "unsupported")
    assert isinstance(head, LinearHead)
    if layer is None and len(spec.layers) > 1:
        listed = ", ".join(map(str, spec.layers))
        raise UserError(f"a value head has one layer: choose layer=K of {listed}", "missing-value")
    (chosen,) = spec.select(spec.layers if layer is None else [layer]).layers
    if chosen == 0:
        raise UserError("layer=0 is the embedding, and a value head reads a block", "unsupported")
    place = spec.layers.index(chosen)
    parameters = {key: value[place].detach().cpu().double() for key, value in head.state_dict().items()}
    weight = parameters["linear.weight"][:, WRONG] - parameters["linear.weight"][:, CORRECT]
    bias = parameters["linear.bias"][WRONG] - parameters["linear.bias"][CORRECT]
    weight = weight / parameters["input.scale"]
    bias = bias - weight @ parameters["input.mean"]
    if len(spec.layers) == 1 and ensemble.kind != "probabilities":  # whose order is the margin's
        (factor,) = ensemble.over(1).weights
        weight, bias = factor * weight, factor * bias + ensemble.intercept
    return ValueHead(chosen - 1, weight.float(), float(bias.float()))
