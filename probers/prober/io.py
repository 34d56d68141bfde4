"""A prober's files: readable JSON, and weights as safetensors in half precision.

They are ``config.json``, ``heads.safetensors``, ``metrics.json``, ``README.md`` and ``plots/``; if known also
``seen.json`` and ``domain.safetensors``; with a LoRA adapter also ``adapter/``, in peft's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from safetensors.torch import save as encode
from torch import nn

from ..checksums import read_tensors, sealed, sha256, unseal
from ..data.splits import SEEN, Seen
from ..files import canonical_json, impostor, read_bytes, read_json, read_text, write_bytes, write_text
from ..heads import HEADS, ProbeHead, factory, head_name, is_joint
from ..model import adapters
from ..options import nearest, shown
from ..signals.grounding import Pointer
from ..store.spec import FeatureSpec
from ..types import UserError, first_line
from . import value_head
from .calibration import EntropyModel, calibration_from_dict
from .decision import Ensemble
from .domain import FILE as DOMAIN
from .domain import Domain
from .risk_control import Promise

if TYPE_CHECKING:
    from typing_extensions import Unpack

CONFIG = "config.json"
_HEADS, _METRICS, _CARD = "heads.safetensors", "metrics.json", "README.md"
#: Folder of the adapter that the model runs with.
ADAPTER = "adapter"
#: Files of a prober; nothing else is downloaded.
FILES = (CONFIG, _HEADS, _METRICS, _CARD, SEEN, DOMAIN, *(f"{ADAPTER}/{name}" for name in adapters.FILES))
#: Folder of the card's pictures.
PICTURES = "plots"
#: Probers that come with this package, each in a folder named after its model.
_SHIPPED = Path(__file__).parent / "shipped"
_FORMAT, _SCHEMA = "probers-bank", 2
_LARGEST_ADAPTER = 16 << 30


class HubOptions(TypedDict, total=False):
    """Options of a download from the Hugging Face Hub, as in :func:`huggingface_hub.snapshot_download`."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    force_download: bool
    local_files_only: bool


def save(folder: Path, prober: Any) -> None:
    """Write a prober, with one tensor per head and parameter: ``layer.<k>.<name>``, or ``layers.<name>``."""
    head, learned = prober.head, dict(prober.head.named_parameters())
    tensors = {
        f"{of}.{name}": (value[i].half() if name in learned else value[i]).cpu().contiguous()
        for name, value in head.state_dict().items()
        for i, of in enumerate(_places(type(head), prober.layers))
    }
    write_bytes(folder / _HEADS, encode(tensors))
    write_text(folder / _METRICS, canonical_json(dict(prober.metrics)))
    write_text(folder / _CARD, prober.card)
    for file in (folder / SEEN, *(folder / PICTURES).glob("*.png")):  # of another prober
        file.unlink(missing_ok=True)
    if prober.seen is not None:
        prober.seen.save(folder)
    for name, picture in prober.pictures.items():
        write_bytes(folder / PICTURES / name, picture)
    parts: dict[str, Any] = {
        "label": prober.label if prober.label != "wrong" else None,
        "columns": dict(prober.columns or {}), "domain": prober.domain and prober.domain.save(folder),
        "promise": prober.promise and prober.promise.to_dict(),
        "pointer": prober.pointer and asdict(prober.pointer),
    }  # fmt: skip
    if (adapter := prober.adapter) is not None:
        rank = read_json(adapter / adapters.CONFIG)["r"]
        parts["adapter"] = {"sha256": adapters.digest_of(adapter), "rank": rank}
        for name in adapters.FILES:
            write_bytes(folder / ADAPTER / name, read_bytes(adapter / name, most=_LARGEST_ADAPTER))
    # Last: without it there is no prober.
    write_text(folder / CONFIG, sealed({
        "format": _FORMAT, "schema": _SCHEMA, "weights": sha256(folder / _HEADS),
        "head": {"name": head_name(head), "options": head.options},
        "spec": prober.spec.to_dict(), "ensemble": prober.ensemble.to_dict(), "aggregate": prober.aggregate,
        "threshold": prober.threshold, "calibration": prober.calibration.to_dict(),
        "entropy_model": prober.entropy_model.to_dict() if prober.entropy_model else None,
        "recogniser": prober.recogniser, **{name: part for name, part in parts.items() if part},
    }))  # fmt: skip


def _places(kind: object, layers: Sequence[int]) -> list[str]:
    """Return the prefix of the names of each head's tensors."""
    return ["layers"] if is_joint(kind) else [f"layer.{k}" for k in layers]


def _read(how: Callable[[Path], Any], file: Path, name: str) -> Any:
    """Read a file of the prober ``name`` with ``how``."""
    try:
        return how(file)
    except (FileNotFoundError, NotADirectoryError):
        message = f"{name} is not a prober (no {file.name}): probers.fit and probers-train make one"
        if not file.parent.exists():
            names = sorted(folder.name for folder in _SHIPPED.iterdir())
            message += f", and {', '.join(names)} come with this package{nearest(name.lower(), names)}"
        raise UserError(message, "no-artifact") from None
    except ValueError as error:
        problem = (file.is_file() and impostor(file)) or error
        message = f"the prober {name} is damaged ({file.name} {problem}): train it again"
        raise UserError(message, "damaged") from error


def shipped(model: str) -> str | None:
    """Return the name of the prober that comes with this package for a model by name; None without one."""
    return model if Path(model).name == model and (_SHIPPED / model / CONFIG).is_file() else None


def locate(path: str | Path, subfolder: str | None = None, **hub: Unpack[HubOptions]) -> Path:
    """Find a prober: a folder, ``smollm2`` that comes with this package, or ``owner/name`` on the Hub.

    ``subfolder`` is the prober's within it. TypeError for an unknown keyword, UserError if nothing is there.
    """
    if unknown := sorted(hub.keys() - HubOptions.__annotations__.keys()):
        raise TypeError(f"from_pretrained has no keyword {unknown[0]!r}")
    folder, below = Path(path), subfolder or ""
    if not folder.exists() and (model := shipped(str(path))) is not None:
        return _SHIPPED / model
    owner, _, name = str(path).partition("/")
    if folder.exists() or not owner.strip(".~") or not name or "/" in name or owner == "runs":
        return folder / below
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = [*FILES, *value_head.FILES, f"{PICTURES}/*.png"]
    patterns = [f"{below.strip('/')}/{name}".lstrip("/") for name in wanted]
    try:
        return Path(snapshot_download(str(path), allow_patterns=patterns, **hub)) / below
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        message = f"prober={path} is neither a folder nor on the Hub ({first_line(error)})"
        raise UserError(message, "no-artifact") from error


def read_parts(folder: Path, name: str, head_class: type[nn.Module] | None) -> dict[str, Any]:
    """Read a prober's folder as the arguments of its class; ``name`` is the user's name for it.

    ``head_class`` is of heads from outside this package. UserError: none, a damaged or an older prober.
    """
    config = _read(read_json, folder / CONFIG, name)
    form, schema = (config.get(key) if isinstance(config, dict) else None for key in ("format", "schema"))
    if (form, schema) != (_FORMAT, _SCHEMA):
        message = f"{name} is no prober of this version: its {CONFIG} has format {shown(form)} and schema "
        raise UserError(f"{message}{shown(schema)}, not {_FORMAT} and {_SCHEMA}: train it again", "bad-file")
    try:
        optional = ("domain", "promise", "pointer", "adapter", "columns", "label")
        config = dict.fromkeys(optional) | unseal(config)
        spec = FeatureSpec.from_dict(config["spec"])
        head = _load_head(folder, config, spec, head_class)
        entropy, domain, pointer = config["entropy_model"], config["domain"], config["pointer"]
        ensemble = config["ensemble"]
        parts = {
            "spec": spec, "head": head, "label": config["label"] or "wrong",
            "calibration": calibration_from_dict(config["calibration"]),
            "ensemble": Ensemble(ensemble["kind"], tuple(ensemble["weights"]), ensemble["intercept"]),
            "entropy_model": entropy and EntropyModel.from_dict(entropy),
            "domain": domain and Domain.read(folder, domain),
            "promise": config["promise"] and Promise(**config["promise"]),
            "pointer": pointer and Pointer(tuple(pointer["heads"]), pointer["remembered"]),
            **{key: config[key] for key in ("threshold", "aggregate", "recogniser", "columns")},
        }  # fmt: skip
    except (LookupError, TypeError, ValueError, RuntimeError) as error:  # the last: tensors of other shapes
        message = f"{folder / CONFIG} is damaged ({first_line(error)}): train the prober again"
        raise UserError(message, "damaged") from error
    adapter = config["adapter"] and folder / ADAPTER
    if adapter and config["adapter"]["sha256"] != adapters.digest_of(adapter):
        raise UserError(f"the adapter in {adapter} was altered: train the prober again", "damaged")
    pictures = sorted((folder / PICTURES).glob("*.png"))
    return parts | {
        "adapter": adapter, "seen": Seen.read(folder),
        "metrics": _read(read_json, folder / _METRICS, name), "card": _read(read_text, folder / _CARD, name),
        "pictures": {file.name: _read(read_bytes, file, name) for file in pictures},
    }  # fmt: skip


def _load_head(folder: Path, config: Mapping[str, Any], spec: FeatureSpec, head_class: Any) -> ProbeHead:
    name = config["head"]["name"]
    cls = HEADS.get(name, head_class)
    if cls is None:
        message = f"the prober's head {name!r} is not one of {', '.join(HEADS)}"
        raise UserError(f"{message}: pass head_class to from_pretrained", "own-class")
    make = factory(partial(cls, **config["head"]["options"]))
    places, sizes = _places(cls, spec.layers), (spec.width, *([spec.places] if is_joint(cls) else []))
    head = make(places, *sizes)
    tensors = read_tensors(folder / _HEADS, config["weights"], "train the prober again")
    head.load_state_dict({
        key: torch.stack([tensors[f"{of}.{key}"].float() for of in places]) for key in head.state_dict()
    })  # fmt: skip
    return head
