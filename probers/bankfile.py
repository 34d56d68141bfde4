"""Probers on disk: readable JSON, and weights as safetensors in half precision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as encode

from .bank import ProbeBank
from .entropy import EntropyModel
from .features import FeatureSpec
from .files import write_bytes, write_text, writing
from .heads import HEADS, ProbeHead, head_name
from .runs import canonical_json
from .types import UserError

_CONFIG, _HEADS, _METRICS, _CARD = "config.json", "heads.safetensors", "metrics.json", "README.md"
_FORMAT, _SCHEMA = "probers-bank", 1


def save(bank: ProbeBank, folder: Path) -> None:
    """Write a bank; one tensor ``layer.<k>.<name>`` per layer and parameter."""
    folder.mkdir(parents=True, exist_ok=True)
    learned = dict(bank.head.named_parameters())
    tensors = {
        f"layer.{k}.{name}": (value[i].half() if name in learned else value[i]).cpu().contiguous()
        for name, value in bank.head.state_dict().items()
        for i, k in enumerate(bank.layers)
    }
    config = {
        "format": _FORMAT, "schema": _SCHEMA, "spec": bank.spec.to_dict(),
        "head": {"name": head_name(bank.head), "options": bank.head.options},
        "combine": bank.combine, "threshold": bank.threshold, "temperature": bank.temperature,
        "entropy_model": bank.entropy_model.to_dict() if bank.entropy_model else None,
    }  # fmt: skip
    with writing(folder / _HEADS):
        write_bytes(folder / _HEADS, encode(tensors))
    write_text(folder / _METRICS, canonical_json(dict(bank.metrics)))
    write_text(folder / _CARD, bank.card)
    write_text(folder / _CONFIG, canonical_json(config))  # last: without it there is no prober


def load(path: str | Path, *, revision: str | None, head_class: type[ProbeHead] | None) -> ProbeBank:
    """Read a bank; see :meth:`ProbeBank.from_pretrained`."""
    folder = _folder(path, revision)
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        metrics = json.loads((folder / _METRICS).read_text(encoding="utf-8"))
        card = (folder / _CARD).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        name = Path(str(error.filename)).name
        raise UserError(f"{path} is no prober (no {name}): probers-train makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the prober {path} is damaged ({error}): train it again") from error
    if not isinstance(config, dict) or (config.get("format"), config.get("schema")) != (_FORMAT, _SCHEMA):
        raise UserError(f"{path} is no prober of schema {_SCHEMA}: its {_CONFIG} says otherwise")
    try:
        spec = FeatureSpec.from_dict(config["spec"])
        entropy = config["entropy_model"]
        return ProbeBank(
            spec=spec,
            head=_load_head(folder / _HEADS, spec, config["head"], head_class),
            threshold=float(config["threshold"]),
            temperature=float(config["temperature"]),
            combine=config["combine"],
            entropy_model=EntropyModel.from_dict(entropy) if entropy else None,
            metrics=metrics,
            card=card,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _CONFIG} is damaged ({error!r}): train the prober again") from error


def _folder(path: str | Path, revision: str | None) -> Path:
    folder = Path(path)
    owner, _, name = str(path).partition("/")
    if folder.exists() or not owner.strip(".~") or not name or "/" in name or owner == "runs":
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(path), revision=revision))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"prober={path} is no folder, and not on the Hub either ({reason})") from error


def _load_head(
    file: Path, spec: FeatureSpec, config: Mapping[str, Any], head_class: type[ProbeHead] | None
) -> ProbeHead:
    name = config["name"]
    cls = HEADS.get(name, head_class)
    if cls is None:
        known = ", ".join(HEADS)
        raise UserError(
            f"the prober's head {name!r} is not one of {known}: pass head_class to from_pretrained"
        )
    head = cls([f"layer{k}" for k in spec.layers], spec.width, **config["options"])
    try:
        tensors = load_file(file)
        stacked = {
            key: torch.stack([tensors[f"layer.{k}.{key}"].float() for k in spec.layers])
            for key in head.state_dict()
        }
        head.load_state_dict(stacked)
    except (FileNotFoundError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(f"{file} is missing or damaged ({error}): train the prober again") from error
    return head
