"""A prober's files: readable JSON, and weights as safetensors in half precision.

They are ``config.json``, ``heads.safetensors``, ``metrics.json``, ``README.md`` and ``plots/``; if known also
``seen.json`` and ``domain.safetensors``; with a LoRA adapter also ``adapter/``, in peft's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as encode
from torch import nn

from ..checksums import sealed, sha256, unseal
from ..data.splits import SEEN, Seen
from ..files import (
    canonical_json,
    digest,
    impostor,
    read_bytes,
    read_json,
    read_text,
    regular,
    write_bytes,
    write_text,
)
from ..heads import HEADS, ProbeHead, factory, head_name, is_joint
from ..model import adapters
from ..options import Name, Natural, check_options, check_record, nearest, shown
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
#: Limits of the number of pictures and of the bytes of each.
_MOST_PICTURES, _LARGEST_PICTURE = 100, 8 << 20
_LARGEST_ADAPTER = 16 << 30


class HubOptions(TypedDict, total=False):
    """Options of a download from the Hugging Face Hub, as in :func:`huggingface_hub.snapshot_download`."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    force_download: bool
    local_files_only: bool


@dataclass(frozen=True)
class _Head:
    name: Name
    options: dict[str, Any]


@dataclass(frozen=True)
class _Domain:
    limit: float
    rate: float
    sha256: Name
    surprise: tuple[float, float] | None


@dataclass(frozen=True)
class _Adapter:
    sha256: Name
    rank: int


@dataclass(frozen=True)
class _Pointer:
    heads: tuple[Natural, ...]
    remembered: float


@dataclass(frozen=True)
class _Config:
    """The fields of ``config.json`` besides its format, schema and own checksum.

    ``weights`` is the SHA-256 of their file. ``domain``, ``promise``, ``pointer`` and ``adapter`` are there
    only if the prober has one, ``label`` only if it is another than "wrong".
    """

    spec: dict[str, Any]
    head: _Head
    weights: str
    ensemble: dict[str, Any]
    aggregate: str | None
    threshold: float
    calibration: dict[str, Any]
    entropy_model: dict[str, Any] | None
    recogniser: Name | None
    columns: Mapping[str, Name] | None
    domain: _Domain | None
    promise: Promise | None
    pointer: _Pointer | None
    adapter: _Adapter | None
    label: Literal["helps"] | None


def save(folder: Path, prober: Any) -> None:
    """Write a prober, with one tensor per head and parameter: ``layer.<k>.<name>``, or ``layers.<name>``."""
    head, learned = prober.head, dict(prober.head.named_parameters())
    tensors = {
        f"{of}.{name}": (value[i].half() if name in learned else value[i]).cpu().contiguous()
        for name, value in head.state_dict().items()
        for i, of in enumerate(_places(type(head), prober.layers))
    }
    blob = encode(tensors)
    write_bytes(folder / _HEADS, blob)
    write_text(folder / _METRICS, canonical_json(dict(prober.metrics)))
    write_text(folder / _CARD, prober.card)
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
        "format": _FORMAT, "schema": _SCHEMA, "weights": digest(blob, 64),
        "head": {"name": head_name(head), "options": head.options},
        "spec": prober.spec.to_dict(), "ensemble": prober.ensemble.to_dict(), "aggregate": prober.aggregate,
        "threshold": prober.threshold, "calibration": prober.calibration.to_dict(),
        "entropy_model": prober.entropy_model.to_dict() if prober.entropy_model else None,
        "recogniser": prober.recogniser, **{name: part for name, part in parts.items() if part},
    }))  # fmt: skip


def _places(kind: object, layers: Sequence[int]) -> list[str]:
    """Return the prefix of the names of each head's tensors."""
    return ["layers"] if is_joint(kind) else [f"layer.{k}" for k in layers]


def heads_of(config: Mapping[str, Any], head_class: type[nn.Module] | None) -> int:
    """Count the heads; arguments as in :func:`load_head`."""
    return len(_places(HEADS.get(config["head"]["name"], head_class), config["spec"]["layers"]))


def read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read configuration and papers of the prober in a folder; ``name`` is the user's name for it.

    UserError if there is none, or a damaged one, or one of another version of this package.
    """
    config = _read(read_json, folder / CONFIG, name)
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise UserError(f"{name} is not a prober: its {CONFIG} has another format", "bad-file")
    if config.get("schema") != _SCHEMA:
        schema = shown(config.get("schema"))
        message = f"the prober {name} has schema {schema}, but schema {_SCHEMA} is needed: train it again"
        raise UserError(message, "bad-file")
    try:
        about = {key: value for key, value in unseal(config).items() if key not in ("format", "schema")}
        about = dict.fromkeys(("domain", "promise", "pointer", "adapter", "columns", "label")) | about
        check_record(_Config, about)
        check_record(_Head, about["head"], "head.")
    except (UserError, ValueError) as error:
        message = f"{folder / CONFIG} is damaged ({error}): train the prober again"
        raise UserError(message, "damaged") from error
    files = sorted((folder / PICTURES).glob("*.png"))
    if len(files) > _MOST_PICTURES:
        message = f"{folder / PICTURES} holds over {_MOST_PICTURES} pictures: remove it"
        raise UserError(message, "damaged")
    picture = partial(read_bytes, most=_LARGEST_PICTURE)
    adapter = about["adapter"] and folder / ADAPTER
    if adapter and about["adapter"]["sha256"] != adapters.digest_of(adapter):
        raise UserError(f"the adapter in {adapter} was altered: train the prober again", "damaged")
    return about, {
        "adapter": adapter,
        "metrics": _read(read_json, folder / _METRICS, name),
        "card": _read(read_text, folder / _CARD, name),
        "seen": Seen.read(folder),
        "pictures": {file.name: _read(picture, file, name) for file in files},
    }


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
        _check_itself(file)
        message = f"the prober {name} is damaged ({file.name} {error}): train it again"
        raise UserError(message, "damaged") from error


def _check_itself(file: Path) -> None:
    """Refuse a pointer, or a page, in place of a prober's file (UserError)."""
    if file.is_file() and (problem := impostor(file)):
        raise UserError(f"{file} {problem}", "damaged")


def shipped(model: str) -> str | None:
    """Return the name of the prober that comes with this package for a model by name; None without one."""
    return model if Path(model).name == model and (_SHIPPED / model / CONFIG).is_file() else None


def locate(path: str | Path, subfolder: str | None = None, **hub: Unpack[HubOptions]) -> Path:
    """Find a prober: a folder, ``smollm2`` that comes with this package, or ``owner/name`` on the Hub.

    ``subfolder`` is the prober's within it. TypeError for an unknown keyword, UserError if it is neither a
    folder nor on the Hub.
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


def load_head(
    folder: Path, config: Mapping[str, Any], spec: FeatureSpec, head_class: type[nn.Module] | None
) -> ProbeHead:
    """Load the heads of a feature; ``config`` as in :func:`read`.

    ``head_class`` is their class if it is not from this package. Nothing is allocated beyond the size of the
    weights.
    """
    file, name, options = folder / _HEADS, config["head"]["name"], config["head"]["options"]
    cls = HEADS.get(name, head_class)
    if cls is None:
        message = f"the prober's head {name!r} is not one of {', '.join(HEADS)}"
        raise UserError(f"{message}: pass head_class to from_pretrained", "own-class")
    make = factory(partial(cls, **options))
    if name in HEADS:
        check_options(cls, options, "head.")
    _check_itself(file)
    try:
        regular(file)
        if config["weights"] != sha256(file):
            raise ValueError("was altered")
        with safe_open(file, framework="pt") as tensors:
            sizes = (spec.width, spec.places) if is_joint(cls) else (spec.width,)
            places = _places(cls, spec.layers)
            _check_sizes(tensors, partial(make, ["a head"], *sizes), places, users=name not in HEADS)
            head = make(places, *sizes)
            stacked = {
                key: torch.stack([tensors.get_tensor(f"{of}.{key}").float() for of in places])
                for key in head.state_dict()
            }
        head.load_state_dict(stacked)
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        message = f"{file} is missing or damaged ({first_line(error)}): train the prober again"
        raise UserError(message, "damaged") from error
    if not all(torch.isfinite(value).all() for value in stacked.values()):
        raise UserError(f"{file} holds weights that are not finite: train the prober again", "damaged")
    return head


def _check_sizes(tensors: Any, make: Callable[[], ProbeHead], places: Sequence[str], *, users: bool) -> None:
    """Refuse tensors that do not fit such heads (ValueError); only their shapes are made and read.

    A class of the ``users`` is built normally if it needs numbers.
    """
    try:
        with torch.device("meta"):
            head = make()
    except UserError:
        if not users:
            raise
        head = make()
    learned, there = dict(head.named_parameters()), set(tensors.keys())
    for name, value in head.state_dict().items():
        for key in (f"{of}.{name}" for of in places):
            if key not in there:
                raise ValueError(f"it lacks {key}")
            tensor, shape = tensors.get_slice(key), list(value.shape[1:])
            if tensor.get_shape() != shape or (name in learned and tensor.get_dtype() != "F16"):
                raise ValueError(f"{key} is {tensor.get_dtype()} of {tensor.get_shape()}, not of {shape}")


def read_parts(folder: Path, name: str, head_class: type[nn.Module] | None) -> dict[str, Any]:
    """Read a prober's folder as the arguments of its class; UserError as in :func:`read`.

    ``head_class`` is the class of heads from outside this package.
    """
    config, papers = read(folder, name)
    entropy, domain, promise = config["entropy_model"], config["domain"], config["promise"]
    pointer = config["pointer"]
    try:
        spec = FeatureSpec.from_dict(config["spec"])
        calibration = calibration_from_dict(config["calibration"])
        ensemble = Ensemble.from_dict(config["ensemble"]).over(heads_of(config, head_class))
        entropy_model = None if entropy is None else EntropyModel.from_dict(entropy)
    except (UserError, ValueError) as error:
        message = f"{folder / CONFIG} is damaged ({error}): train the prober again"
        raise UserError(message, "damaged") from error
    return {
        "spec": spec, "head": load_head(folder, config, spec, head_class), "calibration": calibration,
        "ensemble": ensemble, "entropy_model": entropy_model,
        "domain": None if domain is None else Domain.read(folder, domain),
        "promise": None if promise is None else Promise(**promise),
        "pointer": pointer and Pointer(tuple(pointer["heads"]), pointer["remembered"]),
        "label": config["label"] or "wrong",
        **{key: config[key] for key in ("threshold", "aggregate", "recogniser", "columns")}, **papers,
    }  # fmt: skip
