"""A prober's files: readable JSON, and weights as safetensors in half precision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as encode
from torch import nn

from ..data.overlap import FILE as SEEN
from ..files import canonical_json, write_bytes, write_text
from ..heads import HEADS, ProbeHead, factory, head_name
from ..types import UserError, first_line

CONFIG = "config.json"
_HEADS, _METRICS, _CARD = "heads.safetensors", "metrics.json", "README.md"
#: What a prober consists of; nothing else is downloaded.
FILES = (CONFIG, _HEADS, _METRICS, _CARD, SEEN)
#: Folder of the pictures that the card shows.
PICTURES = "plots"
_FORMAT, _SCHEMA = "probers-bank", 2


def save(folder: Path, head: ProbeHead, config: Mapping[str, Any], papers: Mapping[str, Any]) -> None:
    """Write a prober; one tensor ``layer.<k>.<name>`` per layer and parameter.

    Args:
        folder: is made where it is not there.
        head: of the layers of ``config["spec"]``.
        config: what beside the heads is needed to score.
        papers: ``metrics``, ``card`` and ``pictures``, as :func:`read` gives them.
    """
    learned = dict(head.named_parameters())
    tensors = {
        f"layer.{k}.{name}": (value[i].half() if name in learned else value[i]).cpu().contiguous()
        for name, value in head.state_dict().items()
        for i, k in enumerate(config["spec"]["layers"])
    }
    about = {"name": head_name(head), "options": head.options}
    write_bytes(folder / _HEADS, encode(tensors))
    write_text(folder / _METRICS, canonical_json(dict(papers["metrics"])))
    write_text(folder / _CARD, papers["card"])
    for name, picture in papers["pictures"].items():
        write_bytes(folder / PICTURES / name, picture)
    # Last: without it there is no prober.
    write_text(
        folder / CONFIG, canonical_json({"format": _FORMAT, "schema": _SCHEMA, "head": about, **config})
    )


def read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Configuration and papers of the prober in a folder; ``name`` is what the user called it.

    Raises:
        UserError: no prober there, a damaged one, or one of another version of this package.
    """
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        metrics = json.loads((folder / _METRICS).read_text(encoding="utf-8"))
        card = (folder / _CARD).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        file = Path(str(error.filename)).name
        raise UserError(f"{name} is no prober (no {file}): probers-train makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the prober {name} is damaged ({error}): train it again") from error
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise UserError(f"{name} is no prober: its {CONFIG} is of something else")
    if config.get("schema") != _SCHEMA:
        raise UserError(
            f"the prober {name} is of schema {config.get('schema')} and this version of probers reads "
            f"schema {_SCHEMA}: train it again with probers-train"
        )
    pictures = {file.name: file.read_bytes() for file in sorted((folder / PICTURES).glob("*.png"))}
    return config, {"metrics": metrics, "card": card, "pictures": pictures}


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
        reason = first_line(error)
        raise UserError(f"prober={path} is no folder, and not on the Hub either ({reason})") from error


def load_head(
    folder: Path, config: Mapping[str, Any], layers: Sequence[int], width: int,
    head_class: type[nn.Module] | None,
) -> ProbeHead:  # fmt: skip
    """The heads of some layers, of this width.

    Args:
        folder: of the prober.
        config: the heads' name and options, as :func:`save` writes them.
        layers: of the heads.
        width: of the states they read.
        head_class: their class, where it is none of this package's.

    Raises:
        UserError: an unknown class, or weights that are missing or damaged.
    """
    file = folder / _HEADS
    name = config["name"]
    cls = HEADS.get(name, head_class)
    if cls is None:
        known = ", ".join(HEADS)
        raise UserError(
            f"the prober's head {name!r} is not one of {known}: pass head_class to from_pretrained"
        )
    make = factory(partial(cls, **config["options"]))
    head = make([f"layer{k}" for k in layers], width)
    try:
        tensors = load_file(file)
        stacked = {
            key: torch.stack([tensors[f"layer.{k}.{key}"].float() for k in layers])
            for key in head.state_dict()
        }
        head.load_state_dict(stacked)
    except (FileNotFoundError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(f"{file} is missing or damaged ({error}): train the prober again") from error
    return head
