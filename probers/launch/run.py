"""A command with ``launch=``: its parts by workers, then the run that they make."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ..commands.compose import quote, request
from ..commands.main import load
from ..commands.merge import key_of
from ..commands.parts import build
from ..commands.runs import read_state
from ..types import UserError
from .parts import plain_options

log = logging.getLogger(__name__)


def run(command: str, cfg: DictConfig) -> Any:
    """Have the parts of a run made, and merge them; returns what the command returns, or None if it waits.

    Args:
        command: as in probers-NAME.
        cfg: the request.

    Raises:
        UserError: a request that cannot be cut into parts, what a worker refuses, or parts that do not
            make the run.
        RunError: a part failed again and again.
    """
    name = next(option.partition("=")[2] for option in cfg.typed if key_of(option) == "launch")
    if cfg.part is not None:
        raise UserError(f"part={cfg.part} is one part, and launch={name} makes all of them: leave one out")
    if cfg.get("question") is not None:
        raise UserError(f"launch={name} cuts many questions in parts, and question= gives one: leave it out")
    if cfg.overwrite:
        raise UserError(
            f"overwrite=true would make parts again that are there, and launch={name} goes on with them: "
            "choose another out, or remove the folder"
        )
    if cfg.out is None:
        raise UserError(
            f"launch={name} needs the folder to write, on a disk that all workers see: out=FOLDER"
        )
    typed, out = plain_options(cfg.typed), str(cfg.out)
    state = read_state(Path(out))
    if state is not None and state["complete"]:  # or another run is there: the command says which
        return load(command)(request(command, [*typed, f"out={quote(out)}"]))
    launcher = build(cfg.launch)
    parts = launcher.make(command, typed, out)
    if parts is None or not launcher.merge:
        if parts is not None:
            log.info("every part is there: %s", parts.merge_command())
        return None
    return parts.merge()
