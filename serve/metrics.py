"""Counts for Prometheus at ``/metrics``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from probers.engine.continuous import LiveText

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counts of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, told: str, *labels: str) -> Counter:
            return Counter(f"probers_{name}", told, labels, registry=self.registry)

        def gauge(name: str, told: str) -> Gauge:
            return Gauge(f"probers_{name}", told, registry=self.registry)

        def histogram(name: str, told: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"probers_{name}", told, labels, buckets=buckets, registry=self.registry)

        self.requests = counter("requests_total", "Requests by path and status", "path", "status")
        self.prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts")
        self.cached_tokens = counter("cached_tokens_total", "Tokens of prompts that were not read again")
        self.tokens = counter("generated_tokens_total", "Tokens written")
        self.texts = counter("texts_total", "Texts by how they ended", "stop")
        self.rows = gauge("running_texts", "Texts that are being written")
        self.queue = gauge("waiting_texts", "Texts whose prompts wait to be read")
        self.batch = histogram("batch_rows", "Texts running at a pass of the model", (1, 2, 4, 8, 16, 32, 64))
        shares = tuple(i / 10 for i in range(1, 11))
        self.scores = histogram("p_wrong", "P(wrong) of answers", shares)
        self.first = histogram("first_token_seconds", "From request to its first token", _SECONDS)
        self.latency = histogram("request_seconds", "From request to its end", _SECONDS, "path")

    def step(self, running: int, waiting: int) -> None:
        """Count a step."""
        self.rows.set(running)
        self.queue.set(waiting)
        if running:
            self.batch.observe(running)

    def ended(self, text: LiveText) -> None:
        """Count a text that is over."""
        how = "error" if text.error else "cancelled" if text.cancelled else text.row.stop
        self.texts.labels(how).inc()
        self.tokens.inc(len(text.row.ids))
        self.prompt_tokens.inc(len(text.request.prompt.ids))
        self.cached_tokens.inc(text.cached)

    def page(self) -> bytes:
        """Make the page in Prometheus's format."""
        return generate_latest(self.registry)


class Clock:
    """Times one request."""

    def __init__(self, metrics: Metrics, path: str) -> None:
        self._metrics, self._path = metrics, path
        self._started, self._first = time.perf_counter(), False

    def token(self) -> None:
        """Record the time of the first token."""
        if not self._first:
            self._metrics.first.observe(time.perf_counter() - self._started)
            self._first = True

    def end(self) -> None:
        """Record the time of the whole request."""
        self._metrics.latency.labels(self._path).observe(time.perf_counter() - self._started)
