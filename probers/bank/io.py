"""Probers on disk: readable JSON, and weights as safetensors in half precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as encode
from torch import nn

from ..files import canonical_json, write_bytes, write_text, writing
from ..heads import HEADS, ProbeHead, factory, head_name
from ..store.spec import FeatureSpec
from ..types import UserError
from .calibration import EntropyModel, calibration_from_dict
from .ensemble import Ensemble

_CONFIG, _HEADS, _METRICS, _CARD = "config.json", "heads.safetensors", "metrics.json", "README.md"
#: What a prober consists of; nothing else is downloaded.
FILES = (_CONFIG, _HEADS, _METRICS, _CARD)
#: Folder of the pictures that the card shows.
PICTURES = "plots"
_FORMAT, _SCHEMA = "probers-bank", 2

Bank = TypeVar("Bank")


def save(bank: Mapping[str, Any], folder: Path) -> None:
    """Write the fields of a bank by name; one tensor ``layer.<k>.<name>`` per layer and parameter."""
    folder.mkdir(parents=True, exist_ok=True)
    head, entropy = bank["head"], bank["entropy_model"]
    learned = dict(head.named_parameters())
    tensors = {
        f"layer.{k}.{name}": (value[i].half() if name in learned else value[i]).cpu().contiguous()
        for name, value in head.state_dict().items()
        for i, k in enumerate(bank["spec"].layers)
    }
    config = {
        "format": _FORMAT, "schema": _SCHEMA, "spec": bank["spec"].to_dict(),
        "head": {"name": head_name(head), "options": head.options},
        "ensemble": bank["ensemble"].to_dict(), "aggregate": bank["aggregate"],
        "threshold": bank["threshold"], "calibration": bank["calibration"].to_dict(),
        "entropy_model": entropy.to_dict() if entropy else None,
    }  # fmt: skip
    with writing(folder / _HEADS):
        write_bytes(folder / _HEADS, encode(tensors))
    write_text(folder / _METRICS, canonical_json(dict(bank["metrics"])))
    write_text(folder / _CARD, bank["card"])
    for name, picture in bank["pictures"].items():
        place = folder / PICTURES / name
        with writing(place):
            place.parent.mkdir(exist_ok=True)
            write_bytes(place, picture)
    write_text(folder / _CONFIG, canonical_json(config))  # last: without it there is no prober


def load(
    make: Callable[..., Bank], folder: Path, *, head_class: type[nn.Module] | None = None, name: str = ""
) -> Bank:
    """Read a bank from a folder.

    Args:
        make: makes it of its fields.
        folder: where it is.
        head_class: as in :meth:`ProbeBank.from_pretrained`.
        name: what the user called it, for messages.

    Raises:
        UserError: no prober there, a damaged one, or one of another version of this package.
    """
    name = name or str(folder)
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        metrics = json.loads((folder / _METRICS).read_text(encoding="utf-8"))
        card = (folder / _CARD).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        file = Path(str(error.filename)).name
        raise UserError(f"{name} is no prober (no {file}): probers-train makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the prober {name} is damaged ({error}): train it again") from error
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise UserError(f"{name} is no prober: its {_CONFIG} is of something else")
    if config.get("schema") != _SCHEMA:
        raise UserError(
            f"the prober {name} is of schema {config.get('schema')} and this version of probers reads "
            f"schema {_SCHEMA}: train it again with probers-train"
        )
    try:
        spec = FeatureSpec.from_dict(config["spec"])
        entropy = config["entropy_model"]
        return make(
            spec=spec,
            head=_load_head(folder / _HEADS, spec, config["head"], head_class),
            threshold=float(config["threshold"]),
            calibration=calibration_from_dict(config["calibration"]),
            ensemble=Ensemble.from_dict(config["ensemble"]),
            aggregate=config["aggregate"],
            entropy_model=EntropyModel.from_dict(entropy) if entropy else None,
            metrics=metrics,
            card=card,
            pictures={file.name: file.read_bytes() for file in sorted((folder / PICTURES).glob("*.png"))},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _CONFIG} is damaged ({error!r}): train the prober again") from error


def locate(path: str | Path, **hub: Any) -> Path:
    """The folder ``path``, or where its download from the Hub lies when there is no such folder.

    Args:
        path: folder, or ``owner/name`` on the Hub.
        **hub: options of ``huggingface_hub.snapshot_download``.

    Raises:
        UserError: neither a folder nor on the Hub.
    """
    folder = Path(path)
    owner, _, name = str(path).partition("/")
    if folder.exists() or not owner.strip(".~") or not name or "/" in name or owner == "runs":
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(path), allow_patterns=[*FILES, f"{PICTURES}/*.png"], **hub))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"prober={path} is no folder, and not on the Hub either ({reason})") from error


def _load_head(
    file: Path, spec: FeatureSpec, config: Mapping[str, Any], head_class: type[nn.Module] | None
) -> ProbeHead:
    name = config["name"]
    cls = HEADS.get(name, head_class)
    if cls is None:
        known = ", ".join(HEADS)
        raise UserError(
            f"the prober's head {name!r} is not one of {known}: pass head_class to from_pretrained"
        )
    make = factory(partial(cls, **config["options"]))
    head = make([f"layer{k}" for k in spec.layers], spec.width)
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
