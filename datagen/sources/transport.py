"""HTTP with manners: one request at a time, paced, tried again when the server or network fails.

The Wikipedia library takes an ``httpx`` transport. Doing the waiting there covers what its
own retries do not: a connection that dies in the middle of a body, ``Retry-After`` on a
503 or as a date, and MediaWiki's errors that come with status 200.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx

#: Statuses after which the same request may succeed.
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
#: MediaWiki's error codes of that kind.
BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")


class FetchError(Exception):
    """A request that failed for good, with the reason in one clause.

    ``down`` is true when the server or the network is to blame rather than what was asked.
    """

    def __init__(self, reason: str, *, down: bool = False) -> None:
        super().__init__(reason)
        self.down = down


class _Again(Exception):
    """A failure that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class PoliteTransport(httpx.BaseTransport):
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
        self.api_url = httpx.URL(api_url) if api_url else None
        self.gap = 1 / rate
        self.retries = retries
        self.backoff = backoff
        self.max_wait = max_wait
        self.requests = 0
        self._inner = inner
        self._sleep = sleep
        self._notice = notice
        self._next = 0.0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, read the whole body, and try again where that makes sense.

        Raises:
            FetchError: no tries left, an answer that no repetition mends, or too long a wait.
        """
        request = self._redirected(request)
        for attempt in range(self.retries + 1):
            try:
                return self._once(request)
            except _Again as failure:
                if attempt == self.retries:
                    raise FetchError(f"{failure} (tried {attempt + 1} times)", down=True) from failure
                wait = self.backoff * 2**attempt if failure.wait is None else failure.wait
                if failure.wait is not None and wait > self.max_wait:
                    raise FetchError(
                        f"{failure}, to be asked again after {wait:.0f} s; wikipedia.max_wait is "
                        f"{self.max_wait:g}",
                        down=True,
                    ) from failure
                wait = min(wait, self.max_wait)
                self._notice(f"{failure}; again in {wait:g} s")
                self._sleep(wait)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _redirected(self, request: httpx.Request) -> httpx.Request:
        if self.api_url is None:
            return request
        headers = httpx.Headers([(k, v) for k, v in request.headers.multi_items() if k != "host"])
        url = self.api_url.copy_with(query=request.url.query)
        return httpx.Request(request.method, url, headers=headers, extensions=request.extensions)

    def _once(self, request: httpx.Request) -> httpx.Response:
        now = time.monotonic()
        if now < self._next:
            self._sleep(self._next - now)
        self._next = max(now, self._next) + self.gap
        self.requests += 1
        if self._inner is None:
            self._inner = httpx.HTTPTransport(proxy=_proxy(request.url))
        try:
            response = self._inner.handle_request(request)
            response.read()
        except httpx.TimeoutException as error:
            raise _Again("no answer in time") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _Again(f"the connection failed: {error or type(error).__name__}") from error
        status = response.status_code
        if status in AGAIN:
            raise _Again(f"HTTP {status}", _retry_after(response))
        if status != 200:
            raise FetchError(f"HTTP {status}", down=status in (401, 403))
        _check_answer(response)
        return response


def _proxy(url: httpx.URL) -> str | None:
    return None if proxy_bypass(url.host) else getproxies().get(url.scheme)


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


def _check_answer(response: httpx.Response) -> None:
    """MediaWiki reports its own failures with status 200."""
    try:
        answer: Any = json.loads(response.content)
    except ValueError as error:  # a page of a proxy or a half-written answer
        raise _Again("the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise _Again("the answer is not a JSON object")
    if "error" in answer:
        error_fields = answer["error"] if isinstance(answer["error"], dict) else {}
        code = str(error_fields.get("code", "unknown"))
        if code.startswith(BUSY):
            raise _Again(f"the API answered {code}", _retry_after(response))
        raise FetchError(f"the API answered {code}: {error_fields.get('info', 'no reason given')}")
