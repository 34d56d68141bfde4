"""Loading and identity of a model and its tokenizer, from a hub id, a folder or a GGUF file.

GGUF files are de-quantised once by transformers and kept as safetensors in a cache. Each content of a file
has its own folder; the fingerprint in its ``built.json`` is the file's and thus the model's.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import checkpoints
from ..checksums import file_digest, sampled, unsealed
from ..data.cache import MANIFEST, Estimate, build_once
from ..files import cache_folder, digest, impostor
from ..options import check_extra, nearest
from ..progress import running
from ..prompts import fix_date
from ..types import ProbersError, UserError, count, first_line
from .adapters import active_digest, attach, mark
from .attention import kernel_for

log = logging.getLogger(__name__)

#: Folders of schema 1 may hold random numbers for weights that a file did not have.
_SCHEMA = 2
#: Cost per byte of a file with 4 bits a weight: seconds, bytes of disk, bytes of memory.
_SECONDS, _DISK, _MEMORY = 3e-7, 6.5, 13.0
#: Narrower models keep float32 on a CPU: their products are slower in bfloat16 even where it is native.
_LEAST_WIDTH = 512


def pick_device(device: str) -> torch.device:
    """Return the named device, or the best available one for "auto"."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device={device} is not a device: use auto, cpu, cuda or cuda:<n>") from error
    if (kind := chosen.type) in ("cuda", "xpu", "mps"):
        count = torch.get_device_module(kind).device_count()
        if (chosen.index or 0) >= count:
            raise UserError(f"device={device}: this machine has {count} {kind} devices", "unsupported")
    return chosen


def pick_dtype(dtype: str | torch.dtype, device: torch.device, config: Any) -> str | torch.dtype:
    """Return the named number format; "auto" is the checkpoint's own, but on a CPU float32 or bfloat16.

    A CPU gets bfloat16, which is logged, where it multiplies matrices in it natively and the model is at
    least 512 wide. On other processors half precision is slower than single, and less exact.
    """
    dtype = str(dtype).removeprefix("torch.")
    if dtype == "auto":
        if device.type != "cpu":
            return "auto"
        if not native_bfloat16() or getattr(config.get_text_config(), "hidden_size", 0) < _LEAST_WIDTH:
            return torch.float32
        log.warning("model.dtype=auto is bfloat16, which this processor multiplies natively")
        return torch.bfloat16
    chosen = getattr(torch, dtype, None)
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
        raise UserError(f"dtype={dtype} is not a number format: use auto, float32, bfloat16 or float16")
    return chosen


def native_bfloat16() -> bool:
    """Tell whether this processor multiplies matrices in bfloat16 natively."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # torch has no public names for these
    return any(getattr(torch.cpu, name, lambda: False)() for name in names)


@dataclass(frozen=True, slots=True)
class Loading:
    """Options of loading a model.

    Attributes:
        dtype: "auto" (on a CPU float32, or bfloat16 where the processor has it; else the
            checkpoint's), "float32", "bfloat16", "float16".
        device: "auto", "cpu", "cuda", "cuda:1", "xpu", "mps", ..
        device_map: spread the model over devices, as transformers does ("auto", or a
            mapping of modules); needs accelerate. In place of ``device``.
        quantization: what transformers takes as a quantization config, e.g.
            ``{"quant_method": "bitsandbytes", "load_in_4bit": True}``. Checkpoints that are
            quantized already need nothing.
        attn: attention implementation of transformers; None for the model's default.
        trust_remote_code: run Python code that comes with the model.
        use_safetensors: refuse pickled weights (``pytorch_model.bin``), which can run code.
        gguf: the GGUF file to take in a folder or hub repository.
        cache: the folder where weights of GGUF files are kept, de-quantised; None is the user's.
        chat_template: name of the chat template to use, where the model has several.
        chat_date: day (YYYY-MM-DD) that a chat template says in place of today; None leaves it today.
        adapter: folder of a LoRA adapter in peft's format, which the model runs with.
    """

    dtype: str = "auto"
    device: str = "auto"
    device_map: str | Mapping[str, Any] | None = None
    quantization: Mapping[str, Any] | None = None
    attn: str | None = None
    trust_remote_code: bool = False
    use_safetensors: bool = True
    gguf: str | None = None
    cache: str | Path | None = None
    chat_template: str | None = None
    chat_date: str | None = None
    adapter: str | Path | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.trust_remote_code, bool):
            raise UserError(f"trust_remote_code={self.trust_remote_code!r} must be true or false")
        if self.chat_date is not None:
            try:
                date.fromisoformat(self.chat_date)
            except ValueError as error:
                raise UserError(f"model.chat_date={self.chat_date} is no day: write YYYY-MM-DD") from error

    def tokenizer(self, source: str, **options: Any) -> Any:
        """Load the tokenizer of a model; ``chat_date`` is the day that its template now says, or None.

        UserError for a chat template that it does not have.
        """
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(source, **options)
        if (name := self.chat_template) is not None:
            given = loaded.chat_template or {}
            templates = given if isinstance(given, Mapping) else {"default": given}
            if name not in templates:
                problem = f"model.chat_template={name} is none of the model's chat templates"
                raise UserError(f"{problem}: {', '.join(sorted(templates)) or '(none)'}", "unknown-choice")
            loaded.chat_template = templates[name]
        fixed = self.chat_date is not None and fix_date(loaded, date.fromisoformat(self.chat_date))
        loaded.chat_date = self.chat_date if fixed else None
        return loaded


def model_source(name: str, revision: str | None, how: Any) -> tuple[str, str | None]:
    """Find the folder or hub id of a model, and its revision there; a GGUF file is de-quantised.

    ``how`` has ``gguf``, ``cache`` and ``use_safetensors`` as :class:`Loading`. UserError for a folder that
    holds no whole model, and for a misspelt name of a model that needs no download.
    """
    if name.startswith("~"):
        name = str(Path(name).expanduser())
    if name == "testbed":
        from ..testbed.assets import model_path

        return str(model_path()), revision
    if (file := checkpoints.locate(name, how.gguf, revision)) is not None:
        return str(dequantised(file, Path(how.cache or cache_folder("models"))).absolute()), None
    if (folder := Path(name)).is_dir():
        if problem := checkpoints.problem_of(folder, pickles=not how.use_safetensors):
            raise UserError(f"model={name} is not a whole model: {problem}", "model")
    elif folder.is_file():
        raise UserError(f"model={name} is a file: give its folder, or a GGUF file", "no-file")
    elif name.startswith((".", "/")) or name.count("/") > 1:
        raise UserError(f"model={name} is no folder here: give a model's folder or a hub id", "no-file")
    known, word = ("testbed", *checkpoints.PACKAGED), name.strip("/")
    if "/" not in word and not folder.is_dir() and (hint := nearest(word.lower(), known)):
        raise UserError(f"model={name} is neither a folder nor a known model{hint}", "no-file")
    return name, revision


def load(source: str, revision: str | None, how: Loading) -> tuple[Any, Any]:
    """Load a model in evaluation mode on its device or devices, and its tokenizer.

    UserError where the device or number format does not exist, transformers finds or builds no causal LM
    there, its weights are pickled, or a package that it needs is missing.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"revision": revision, "trust_remote_code": how.trust_remote_code}
    device = pick_device(how.device)
    quantized = how.quantization
    placed: dict[str, Any] = {} if quantized is None else {"quantization_config": _quantization(quantized)}
    if how.device_map is not None or placed:
        # Quantized weights cannot be moved afterwards: they are made on their device.
        given = how.device_map
        if isinstance(given, Mapping) and not all(isinstance(name, str) for name in given):
            raise UserError(f"device_map={dict(given)} must name modules, as in {{'model.layers.0': 0}}")
        placed["device_map"] = {"": device} if given is None else given
    with telling(source, revision, how.use_safetensors):
        # Quantized weights have their own number formats; the rest of the model stays in float32.
        named = "float32" if placed and how.dtype == "auto" and device.type == "cpu" else how.dtype
        config = AutoConfig.from_pretrained(source, **options)
        dtype = pick_dtype(named, device, config)
        kernel = kernel_for(config, how.attn)
        tokenizer = how.tokenizer(source, **options)
        model = whole(
            AutoModelForCausalLM, source, f"model={source}", dtype=dtype, attn_implementation=kernel,
            **options, **placed, use_safetensors=how.use_safetensors or None,
        )  # fmt: skip
    model = (model if placed else model.to(device)).eval()
    return model if how.adapter is None else attach(model, how.adapter), tokenizer


def whole(kind: Any, source: str | Path, what: str, **options: Any) -> Any:
    """Load a model of one of transformers' classes, all of whose weights are in its files.

    transformers fills weights that are not there, or have another shape, with random numbers. That is a
    UserError here, which calls the model ``what``; weights that the model does not use are a note.
    """
    with load_reports():
        model, result = kind.from_pretrained(
            source, **options, output_loading_info=True, ignore_mismatched_sizes=True
        )
    missing, extra, shapes = (result[f"{k}_keys"] for k in ("missing", "unexpected", "mismatched"))
    if missing or shapes:
        problem = checkpoints.mismatch(model.state_dict().keys(), missing, extra, shapes)
        raise UserError(f"{what} lacks weights: {problem}", "model")
    if extra:
        log.warning(
            "note: %s does not use %s of its files, as %s", what, count(len(extra), "weight"), min(extra)
        )
    return model


@contextmanager
def load_reports() -> Iterator[list[str]]:
    """Keep transformers' tables of missing weights off the terminal, and collect them.

    Its own bar of loaded weights is not drawn beside the one bar of a whole.
    """
    from transformers.utils import logging as theirs

    reports: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if is_report := "LOAD REPORT" in (text := record.getMessage()):
            reports.append(text)
        return not is_report

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(collect)
    with ExitStack() as after:
        after.callback(logger.removeFilter, collect)
        if running() and theirs.is_progress_bar_enabled():
            theirs.disable_progress_bar()
            after.callback(theirs.enable_progress_bar)
        yield reports


def load_empty(source: str, revision: str | None, how: Loading) -> tuple[Any, Any]:
    """Load a model without weights (on torch's meta device), in the format of :func:`load`, and tokenizer.

    The names and shapes in its files are compared as in :func:`whole`, but for quantised weights, which are
    laid out as whatever runs them wants.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    options: dict[str, Any] = {"revision": revision, "trust_remote_code": how.trust_remote_code}
    with telling(source, revision, how.use_safetensors):
        config = AutoConfig.from_pretrained(source, **options)
        kind = pick_dtype(how.dtype, pick_device(how.device), config)
        if kind == "auto":
            kind = config.get_text_config().dtype or torch.float32
        tokenizer = how.tokenizer(source, **options)
        if getattr(config, "quantization_config", None) is None:
            model = whole(
                AutoModelForCausalLM, source, f"model={source}", dtype=kind, device_map="meta", **options,
                use_safetensors=how.use_safetensors or None,
            )  # fmt: skip
        else:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=kind)
    with suppress(OSError):  # a model need not have a generation config
        model.generation_config = GenerationConfig.from_pretrained(source, **options)
    return model.eval(), tokenizer


@contextmanager
def telling(source: str, revision: str | None = None, use_safetensors: bool = True) -> Iterator[None]:
    """Turn errors while a model is loaded into one sentence (UserError)."""
    try:
        yield
    except ProbersError:
        raise
    except Exception as error:  # transformers raises many kinds of errors for a wrong setting of a file
        problem = checkpoints.reason(error, source, revision, pickles=not use_safetensors)
        raise UserError(f"model={source} cannot be loaded as a causal LM: {problem}", "model") from error


def _quantization(config: Mapping[str, Any]) -> Any:
    from transformers.quantizers.auto import AutoQuantizationConfig

    try:
        return AutoQuantizationConfig.from_dict(dict(config))
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        problem = f"quantization={dict(config)} is invalid: {first_line(error)}"
        raise UserError(problem, "unknown-choice") from error


def fingerprint(source: str, model: Any) -> str:
    """Fingerprint a model's weights and its active adapter: the hub's commit, or a hash of a folder's files.

    The hash covers the size, the header and samples throughout each weight file, so that another training
    run of the same shape has another fingerprint and a large model need not be read twice. Quantization
    changes the weights and is added. Weights of a GGUF file have that file's fingerprint; others none, "".
    """
    weights = _fingerprint(source, model) if source else ""
    return weights if getattr(model, "peft_config", None) is None else weights + mark(active_digest(model))


def _fingerprint(source: str, model: Any) -> str:
    quantized: Any = getattr(model.config, "quantization_config", None)
    described = quantized.to_dict() if hasattr(quantized, "to_dict") else quantized or {}
    folder, commit = Path(source), getattr(model.config, "_commit_hash", None)
    if described.get("quant_method") == "gguf":  # loaded by transformers itself
        gguf = folder / str(described.get("gguf_file"))
        if not gguf.is_file() and not folder.is_dir():
            from huggingface_hub import try_to_load_from_cache

            gguf = Path(str(try_to_load_from_cache(source, gguf.name, revision=commit)))
        return sampled([gguf], named=False) if gguf.is_file() else ""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(unsealed(folder / MANIFEST)["summary"]["fingerprint"])
    name = str(commit or "")
    if folder.is_dir():
        file = folder / "config.json"
        config = json.dumps(json.loads(file.read_text("utf-8")), sort_keys=True) if file.is_file() else ""
        files = [*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("tokenizer.json")]
        name = sampled(sorted(files), about=config.encode())
    if quantized is not None:
        name += f"+{digest(json.dumps(described, sort_keys=True, default=str), 6)}"
    return name


def weight_sample(model: Any) -> str:
    """Digest some weights as they are in memory; it is the same in single precision and in bfloat16.

    A model that was trained further differs. "" for half precision and quantized weights, which are rounded
    otherwise, and for weights that lie elsewhere. An adapter's own weights are left out.
    """
    weights = [weight for name, weight in model.named_parameters() if "lora_" not in name]
    known = all(weight.dtype in (torch.float32, torch.bfloat16) and not weight.is_meta for weight in weights)
    if not known or getattr(model.config, "quantization_config", None) is not None:
        return ""
    flat = (weight.detach().flatten() for weight in weights)
    few = [each[:: 1 + len(each) // 64].to("cpu", torch.bfloat16) for each in flat]
    return digest(torch.cat(few).view(torch.int16).numpy().tobytes(), 12)


def dequantised(file: Path, cache: Path) -> Path:
    """Return the folder with the model of a GGUF file, as transformers writes one, in single precision."""
    folder = cache / digest(f"{_SCHEMA} {file_digest(file, cache)}", 20)
    size = file.stat().st_size
    needed = Estimate(size * _SECONDS, size * _DISK, size * _MEMORY)
    build_once(folder, f"de-quantised weights of {file.name}", partial(_write, file), lambda: needed)
    return folder


def _write(file: Path, folder: Path) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_extra(f"model={file}", "gguf", "gguf", "accelerate")
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            problem = impostor(file) or "is no GGUF file: its header is missing"
            raise UserError(f"model={file} {problem}", "bad-file")
    from gguf import GGUFReader

    try:
        field = GGUFReader(file).fields.get("split.count")  # transformers reads a part alone
        if field is not None and (parts := int(field.contents())) > 1:
            problem = f"model={file} is one of {parts} files of a model, and only whole ones are read"
            raise UserError(f"{problem}: join them with 'llama-gguf-split --merge FIRST WHOLE'", "bad-file")
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = whole(
            AutoModelForCausalLM, file.parent, f"model={file}", gguf_file=file.name, dtype="float32",
            use_safetensors=True,
        )  # fmt: skip
    except (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError,
            ValueError, struct.error) as error:  # fmt: skip
        reason = first_line(error)
        if "architecture" not in reason:
            reason = f"it is truncated, damaged, or unknown to transformers ({reason})"
        raise UserError(f"model={file} cannot be loaded: {reason}", "bad-file") from error
    # The GGUF settings that transformers remembers would forbid saving the plain weights made from the file.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return {"file": file.name, "fingerprint": sampled([file], named=False)}
