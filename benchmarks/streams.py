"""Streamed completions of a server, read as its clients read them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
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
