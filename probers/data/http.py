"""HTTP with patience: a request is tried again when the server or the network fails.

The waiting is done in an ``httpx`` transport, below whatever client library is on top, and
covers what those seldom do: a connection that dies in the middle of a body, and
``Retry-After`` in seconds or as a date, on any status.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from urllib.request import getproxies, proxy_bypass

import httpx

#: Statuses after which the same request may succeed.
AGAIN = frozenset({408, 429, 500, 502, 503, 504})


class FetchError(Exception):
    """A request that failed for good, with the reason in one clause.

    ``down`` is true when the server or the network is to blame rather than what was asked.
    """

    def __init__(self, reason: str, *, down: bool = False) -> None:
        super().__init__(reason)
        self.down = down


class AgainError(Exception):
    """A failure that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class PatientTransport(httpx.BaseTransport):
    """Repeats the requests of another transport; bodies arrive whole or not at all.

    Args:
        retries: further tries after the first.
        backoff: seconds before the second try, doubled before each further one.
        jitter: share of such a wait that is added at random, so that clients which failed
            together do not come back together. What a server asks for is kept to the second.
        max_wait: longest single wait in seconds; a server that asks for more is given up.
        option: name of the ``max_wait`` setting, for that message.
        verify: as for ``httpx``: whether, or by which context, certificates are checked.
        inner: what sends; the network, through the proxy of the environment, by default.
        sleep: called with seconds.
        notice: called with one clause when a try failed and another will follow.
    """

    def __init__(
        self,
        *,
        retries: int = 5,
        backoff: float = 1.0,
        jitter: float = 0.0,
        max_wait: float = 300.0,
        option: str = "max_wait",
        verify: bool | ssl.SSLContext = True,
        inner: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.retries = retries
        self.backoff = backoff
        self.jitter = jitter
        self.max_wait = max_wait
        self.requests = 0
        self._option = option
        self._verify = verify
        self._inner = inner
        self._sleep = sleep
        self._notice = notice

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, read the whole body, and try again where that makes sense.

        Raises:
            FetchError: no tries left, an answer that no repetition mends, or too long a wait.
        """
        for attempt in range(self.retries + 1):
            try:
                return self._once(request)
            except AgainError as failure:
                self.pause(attempt, failure)
        raise AssertionError("the last try returns or raises")

    def pause(self, attempt: int, failure: AgainError) -> None:
        """Wait after try ``attempt`` (from 0) has failed.

        Raises:
            FetchError: that was the last try, or the server asks for too long a wait.
        """
        if attempt >= self.retries:
            tries = f" (tried {attempt + 1} times)" if attempt else ""
            raise FetchError(f"{failure}{tries}", down=True) from failure
        if failure.wait is None:
            wait = self.backoff * 2**attempt * (1 + self.jitter * random.random())
        elif failure.wait > self.max_wait:
            raise FetchError(
                f"{failure}, to be asked again after {failure.wait:.0f} s; {self._option} is "
                f"{self.max_wait:g}",
                down=True,
            ) from failure
        else:
            wait = failure.wait
        wait = min(wait, self.max_wait)
        self._notice(f"{failure}; again in {wait:.3g} s")
        self._sleep(wait)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def before(self, request: httpx.Request) -> None:
        """Called before every try; for pacing."""

    def check(self, response: httpx.Response) -> None:
        """Judge an answer whose body has been read.

        Raises:
            AgainError: the request should be tried again.
            FetchError: it need not be.
        """
        if response.status_code in AGAIN:
            raise AgainError(f"HTTP {response.status_code}", retry_after(response))

    def _once(self, request: httpx.Request) -> httpx.Response:
        self.before(request)
        self.requests += 1
        if self._inner is None:
            self._inner = httpx.HTTPTransport(proxy=_proxy(request.url), verify=self._verify)
        try:
            response = self._inner.handle_request(request)
            response.read()
        except httpx.TimeoutException as error:
            raise AgainError("no answer in time") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            if certificate := _certificate_error(error):
                raise FetchError(f"its certificate is not trusted: {certificate}") from error
            raise AgainError(f"the connection failed: {error or type(error).__name__}") from error
        self.check(response)
        return response


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of the ``Retry-After`` header, given as a number or a date; None without one."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


def _proxy(url: httpx.URL) -> str | None:
    return None if proxy_bypass(url.host) else getproxies().get(url.scheme)


def _certificate_error(error: BaseException | None) -> str | None:
    """Why a certificate was refused, where that is what lies beneath."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message
        error = error.__cause__ or error.__context__
    return None
