"""Streamed completions of a server, read as its clients read them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

#: Most tokens of a text.
NEW = 64


@dataclass(frozen=True, slots=True)
class Streamed:
    """Text with its number of tokens, and the seconds from the request to the first and the last chunk."""

    tokens: int
    first: float
    last: float

    @property
    def between(self) -> float:
        """Compute mean seconds between two tokens."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


async def stream(
    client: httpx.AsyncClient, url: str, model: str, prompt: str, *,
    begun: asyncio.Event | None = None, more: Mapping[str, Any] | None = None,
) -> Streamed:  # fmt: skip
    """Stream one greedy text.

    Args:
        begun: event set at its first chunk.
        more: further fields of the request.
    """
    body = {
        "model": model, "prompt": prompt, "max_tokens": NEW, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, **(more or {}),
    }  # fmt: skip
    began, first, last, tokens = time.perf_counter(), 0.0, 0.0, 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if '"choices":[]' not in line.replace(" ", ""):
                last = time.perf_counter() - began
                first = first or last
                if begun is not None:
                    begun.set()
            if '"usage":' in line:
                tokens = (json.loads(line[6:])["usage"] or {}).get("completion_tokens", tokens)
    return Streamed(tokens, first, last)


def together(url: str, model: str, prompts: Sequence[str], **more: Any) -> list[Streamed]:
    """Run as many streams at once as there are prompts."""

    async def run() -> list[Streamed]:
        async with httpx.AsyncClient(timeout=600) as client:
            return await asyncio.gather(*(stream(client, url, model, p, more=more) for p in prompts))

    return asyncio.run(run())


def tokens_of(url: str, model: str, prompts: Sequence[str]) -> int:
    """Count the tokens of as many streams at once as there are prompts."""
    return sum(made.tokens for made in together(url, model, prompts))


@contextmanager
def apart() -> Iterator[Callable[[str, str, Sequence[str]], int]]:
    """Yield :func:`tokens_of` in a process of its own, for servers that live in this one."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        given, made = process.stdin, process.stdout
        assert given is not None and made is not None

        def ask(url: str, model: str, prompts: Sequence[str]) -> int:
            print(json.dumps([url, model, list(prompts)]), file=given, flush=True)
            return int(made.readline() or f"no answer: the client ended with {process.wait()}")

        try:
            yield ask
        finally:
            given.close()


if __name__ == "__main__":
    for line in sys.stdin:
        print(tokens_of(*json.loads(line)), flush=True)
