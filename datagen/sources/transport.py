"""A patient transport with the manners of MediaWiki: paced, and told of its errors with status 200."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from probers.transport import AgainError, FetchError, PatientTransport, retry_after

__all__ = ["BUSY", "FetchError", "PoliteTransport"]

#: MediaWiki's error codes after which the same request may succeed.
BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")


class PoliteTransport(PatientTransport):
    """Paces and repeats the requests of another transport.

    Args:
        api_url: where requests go instead of the library's own address; None keeps it.
        rate: requests per second at most.
        retries: further tries after the first.
        backoff: seconds before the second try, doubled before each further one.
        max_wait: longest single wait in seconds; a server that asks for more is given up.
        inner: what sends; the network, through the proxy of the environment, by default.
        sleep: called with seconds.
        notice: called with one clause when a try failed and another will follow.
    """

    def __init__(
        self,
        *,
        api_url: str | None = None,
        rate: float = 2.0,
        retries: int = 5,
        backoff: float = 1.0,
        max_wait: float = 300.0,
        inner: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(
            retries=retries,
            backoff=backoff,
            max_wait=max_wait,
            option="wikipedia.max_wait",
            inner=inner,
            sleep=sleep,
            notice=notice,
        )
        self.api_url = httpx.URL(api_url) if api_url else None
        self.gap = 1 / rate
        self._next = 0.0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return super().handle_request(self._redirected(request))

    def before(self, request: httpx.Request) -> None:
        now = time.monotonic()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self.gap

    def check(self, response: httpx.Response) -> None:
        super().check(response)
        status = response.status_code
        if status != 200:
            raise FetchError(f"HTTP {status}", down=status in (401, 403))
        _check_answer(response)

    def _redirected(self, request: httpx.Request) -> httpx.Request:
        if self.api_url is None:
            return request
        headers = httpx.Headers([(k, v) for k, v in request.headers.multi_items() if k != "host"])
        url = self.api_url.copy_with(query=request.url.query)
        return httpx.Request(request.method, url, headers=headers, extensions=request.extensions)


def _check_answer(response: httpx.Response) -> None:
    """MediaWiki reports its own failures with status 200."""
    try:
        answer: Any = json.loads(response.content)
    except ValueError as error:  # a page of a proxy or a half-written answer
        raise AgainError("the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise AgainError("the answer is not a JSON object")
    if "error" in answer:
        error_fields = answer["error"] if isinstance(answer["error"], dict) else {}
        code = str(error_fields.get("code", "unknown"))
        if code.startswith(BUSY):
            raise AgainError(f"the API answered {code}", retry_after(response))
        raise FetchError(f"the API answered {code}: {error_fields.get('info', 'no reason given')}")
