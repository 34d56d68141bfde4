"""LoRA adapters of a model (Hu et al. 2021) in peft's format: identity, attachment, and switching off.

An adapted model counts as another model than its base: the adapter's digest is part of the model's revision,
so states and probers of one are refused for the other.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as encode
from torch import Tensor, nn

from ..files import canonical_json, impostor, read_json, write_bytes, write_text
from ..options import check_extra
from ..store.spec import ADAPTER_MARK
from ..types import UserError, count, first_line

#: Files of an adapter, as peft calls them.
CONFIG, WEIGHTS = FILES = ("adapter_config.json", "adapter_model.safetensors")
#: Prefix that peft puts before the names of tensors.
_PREFIX = "base_model.model."
#: Options that change the effect of the tensors.
_SCALING = ("r", "lora_alpha", "use_rslora")


def attach(model: nn.Module, folder: str | Path) -> nn.Module:
    """Put the adapter of a folder into a model, in place, and switch it on.

    UserError where peft or the folder is missing, or where the folder is damaged or fits another model.
    """
    check_extra(f"adapter={folder}", "lora", "peft")
    digest_of(Path(folder))  # before peft looks for the folder on the Hub
    from peft import PeftModel

    try:
        with _quiet():
            wrapped = PeftModel.from_pretrained(model, str(folder))
            # Only this call tells what peft left out, or has from nowhere.
            result = wrapped.load_adapter(str(folder), wrapped.active_adapter)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        problem = f"adapter={folder} does not fit {type(model).__name__}: it is of another model"
        raise UserError(f"{problem} ({first_line(error)[:120]})", "mismatch") from error
    if odd := sorted({*result.missing_keys, *result.unexpected_keys}):
        problem = f"{count(len(odd), 'tensor')} of only one of them, the first {odd[0]}"
        raise UserError(f"adapter={folder} does not fit {type(model).__name__}: {problem}", "mismatch")
    base: nn.Module = wrapped.get_base_model()
    return base.eval()


def add(model: nn.Module, **options: Any) -> None:
    """Put a new adapter with options of peft's ``LoraConfig`` into a model, in place, and switch it on."""
    from peft import LoraConfig, get_peft_model

    with _quiet():
        get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))  # type: ignore[arg-type]
    model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "Found missing adapter keys")
        yield


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of a folder's adapter: its named tensors and their scale (UserError: no adapter)."""
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"adapter={folder} is not an adapter: it lacks {name}", "no-file")
        if problem := impostor(folder / name):
            raise UserError(f"adapter={folder} is not an adapter: its {name} {problem}", "bad-file")
    try:
        return _digest(read_json(folder / CONFIG), load_file(folder / WEIGHTS))
    except (OSError, ValueError, SafetensorError, AttributeError) as error:
        message = f"the adapter in {folder} is damaged ({first_line(error)}): train the prober again"
        raise UserError(message, "damaged") from error


def active_digest(model: Any) -> str:
    """Compute the digest (see :func:`digest_of`) of the adapter that a model runs with; "" without one.

    Adapters other than LoRA, or several at once, give a digest that matches no folder.
    """
    configs: Any = getattr(model, "peft_config", None)
    tensors, used = dict[str, Tensor](), dict[str, None]()
    for name, layer in _layers(model):
        for adapter in [] if layer.disable_adapters else layer.active_adapters:
            if adapter in layer.lora_A:
                used[adapter] = None
                tensors |= _tensors(name, layer, adapter)
    if not tensors or not isinstance(configs, Mapping):
        return ""
    return _digest(configs[next(iter(used))].to_dict() if len(used) == 1 else {}, tensors)


def mark(digest: str) -> str:
    """Return the suffix of a model's revision that names its adapter; "" without an adapter."""
    return digest and f"{ADAPTER_MARK}{digest[:12]}"


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the model's adapter by name, not copied."""
    named = (_tensors(name, layer, layer.active_adapters[0]).items() for name, layer in _layers(model))
    return dict(sorted(chain(*named)))


def save(model: Any, folder: Path, base: str) -> None:
    """Write the model's adapter in peft's format; ``base`` names the model below it."""
    (config,) = model.peft_config.values()
    about = {**config.to_dict(), "base_model_name_or_path": base, "inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in about.items()}
    tensors = {_PREFIX + name: t.detach().cpu().contiguous() for name, t in state_of(model).items()}
    write_bytes(folder / WEIGHTS, encode(tensors, {"format": "pt"}))
    write_text(folder / CONFIG, canonical_json(plain))


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Run the model as its base within the block."""
    with ExitStack() as after:
        for _, layer in _layers(model):
            after.callback(setattr, layer, "_disable_adapters", layer.disable_adapters)
            layer._disable_adapters = True  # enable_adapters() would also change the trained parameters
        yield


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            if hasattr(module, "lora_A") and hasattr(module, "active_adapters"):
                yield name.removeprefix(_PREFIX), module


def _tensors(name: str, layer: Any, adapter: str) -> dict[str, Tensor]:
    return {f"{name}.{part}.weight": getattr(layer, part)[adapter].weight for part in ("lora_A", "lora_B")}


def _digest(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    hasher = hashlib.sha256(json.dumps([config.get(key) for key in _SCALING]).encode())
    for name, tensor in sorted((name.removeprefix(_PREFIX), tensor) for name, tensor in tensors.items()):
        hasher.update(f"{name} {list(tensor.shape)}".encode())
        hasher.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).tobytes())
    return hasher.hexdigest()
