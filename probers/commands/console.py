"""What commands print: log records of the package on the terminal, without control characters."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..types import STEERING

#: Control and direction characters, except line ends, tabs and colours.
_STEERING = re.compile(f"(?!\x1b\\[[0-9]{{1,2}}m|[\\n\\t])[{STEERING}]")


def printable(text: str) -> str:
    """Text without the characters that steer a terminal: names and texts come from models and files."""
    return _STEERING.sub("", text)


class Console(logging.Handler):
    """Writes records below WARNING to standard output, others to standard error, as plain lines."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        try:
            stream.write(f"{printable(self.format(record))}\n")
            stream.flush()
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)


@contextmanager
def console() -> Iterator[None]:
    """Show the package's log records (INFO and above) on the terminal while a command runs."""
    logger, handler = logging.getLogger("probers"), Console()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
