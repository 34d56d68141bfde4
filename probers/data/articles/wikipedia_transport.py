"""Requests to a MediaWiki: paced, repeated where that helps, within a deadline and a size."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from ...deadline import Deadline

#: Statuses, and MediaWiki's error codes, after which the same request may succeed.
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
BUSY = ("maxlag", "ratelimited", "readonly", "internal_api_error")
#: Bytes of the largest answer, of all answers to one question (a list comes in parts), and their number.
MOST_BYTES = 32 << 20
MOST_IN_ALL = 8 * MOST_BYTES
MOST_PARTS = 10_000


def _short(text: str) -> str:
    """What a message shows of a text that a server may have written."""
    return "".join(c if c.isprintable() else " " for c in text[:300])


class FetchError(Exception):
    """A request that failed for good, with the reason in one clause.

    ``down`` is true when the server or the network is to blame rather than what was asked.
    """

    def __init__(self, reason: str, *, down: bool = False) -> None:
        super().__init__(_short(reason))
        self.down = down


class AgainError(Exception):
    """A failure that may pass; ``wait`` is what the server asked for, in seconds."""

    def __init__(self, reason: str, response: httpx.Response | None = None) -> None:
        super().__init__(_short(reason))
        value = "" if response is None else response.headers.get("Retry-After", "").strip()
        self.wait = float(value) if value.isdecimal() else None
        with suppress(TypeError, ValueError, OverflowError):
            when = parsedate_to_datetime(value)
            when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
            self.wait = max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


class PoliteTransport(httpx.BaseTransport):
    """Paces the library's requests and repeats those that fail; bodies arrive whole or not at all.

    The library's own repetition knows neither a connection that dies in the middle of a body, nor
    ``Retry-After`` as a date or with other statuses than 429, nor MediaWiki's errors of status 200.

    Args:
        notice: called with one clause when a try failed and another will follow.
        rate: requests per second at most.
        retries: further tries of a failed request, ``backoff`` seconds after the first failure and
            twice as long after each further one, or as long as the server says.
        max_wait: a server that asks to wait longer, in seconds, is not asked again.
        timeout: seconds for a whole exchange.
        api_url: where requests go instead of the library's own address.
    """

    def __init__(
        self,
        notice: Callable[[str], None],
        *,
        rate: float,
        retries: int,
        backoff: float,
        max_wait: float,
        timeout: float,
        api_url: str | None,
    ) -> None:
        self._notice, self._rate, self._timeout, self._api_url = notice, rate, timeout, api_url
        self._retries, self._backoff, self._max_wait = retries, backoff, max_wait
        self._network = httpx.Client()  # takes the proxies that the environment names
        self._deadline = Deadline()
        self._next = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a question, whose answers are counted together."""
        self._asked: set[httpx.URL] = set()
        self._bytes = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send, read the whole body, and try again where that makes sense.

        Raises:
            FetchError: no tries left, an answer that no repetition mends, or too long a wait.
        """
        if self._api_url:
            request.url = httpx.URL(self._api_url).copy_with(query=request.url.query)
            request.headers["Host"] = request.url.netloc.decode()
        if request.url in self._asked or len(self._asked) == MOST_PARTS:
            raise FetchError(f"the answer has no end: {len(self._asked)} parts, and goes on")
        self._asked.add(request.url)
        tries = 0
        while True:
            try:
                return self._once(request)
            except AgainError as failure:
                wait = self._wait(failure, tries)
                self._notice(f"{failure}; again in {wait:.3g} s")
            time.sleep(wait)
            tries += 1

    def close(self) -> None:
        self._network.close()

    def _once(self, request: httpx.Request) -> httpx.Response:
        if (now := time.monotonic()) < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self._rate
        seconds = self._timeout
        try:
            response = self._deadline.within(seconds, lambda: self._whole(request))
        except (httpx.TimeoutException, TimeoutError) as error:
            raise AgainError(f"no whole answer within wikipedia.timeout={seconds:g} s") from error
        except (httpx.TransportError, zlib.error) as error:
            raise AgainError(f"the connection failed: {error or type(error).__name__}") from error
        _check(response)
        return response

    def _whole(self, request: httpx.Request) -> httpx.Response:
        """The answer with its whole body.

        Raises:
            FetchError: it is too large.
            AgainError: it is not compressed as it was asked for.
            httpx.TransportError, zlib.error: it is not what it says.
        """
        request.extensions["trace"] = self._opened
        request.headers["Accept-Encoding"] = "gzip"
        with closing(self._network.send(request, stream=True)) as answer:
            sent = bytearray()
            for piece in answer.iter_raw():
                sent += piece
                self._measure(len(sent))
        # As bytes, since httpx reads headers that it would not write.
        kept = [(name, value) for name, value in answer.headers.raw if name.lower() == b"retry-after"]
        body = self._unpacked(bytes(sent), answer.headers.get("Content-Encoding", "identity").lower())
        self._bytes += len(body)
        return httpx.Response(answer.status_code, headers=kept, content=body, request=request)

    def _unpacked(self, sent: bytes, encoding: str) -> bytes:
        if encoding == "identity":
            return sent
        if encoding != "gzip":
            raise AgainError(f"the answer is compressed as {encoding}, which was not asked for")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # which is gzip
        body = unpacker.decompress(sent, MOST_BYTES + 1)
        self._measure(len(body))
        if not unpacker.eof:
            raise zlib.error("the answer ends early")
        return body

    def _measure(self, size: int) -> None:
        if size > MOST_BYTES or self._bytes + size > MOST_IN_ALL:
            raise FetchError(f"the answer exceeds {(self._bytes + size) >> 20} MiB")

    def _opened(self, event: str, about: Mapping[str, Any]) -> None:
        """Called by httpx with every step of an exchange."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._deadline.opened(about["return_value"].get_extra_info("socket"))

    def _wait(self, failure: AgainError, tries: int) -> float:
        """Seconds before the next try, after ``tries`` further ones.

        Raises:
            FetchError: that was the last, or the server asks for too long a wait.
        """
        if tries >= self._retries:
            often = f" (tried {tries + 1} times)" if tries else ""
            raise FetchError(f"{failure}{often}", down=True) from failure
        if failure.wait is None:
            return min(self._backoff * 2**tries, self._max_wait)
        if failure.wait > self._max_wait:
            raise FetchError(
                f"{failure}, to be asked again after {failure.wait:.0f} s; wikipedia.max_wait is "
                f"{self._max_wait:g}",
                down=True,
            ) from failure
        return failure.wait


def _check(response: httpx.Response) -> None:
    """Refuse an answer without what was asked for; MediaWiki reports its own failures with status 200.

    Raises:
        AgainError: the request should be tried again.
        FetchError: it need not be.
    """
    status = response.status_code
    if status in AGAIN:
        raise AgainError(f"HTTP {status}", response)
    if status != 200:
        raise FetchError(f"HTTP {status}", down=status in (401, 403))
    try:
        answer: Any = json.loads(response.content)
    except (ValueError, RecursionError):  # a page of a proxy or a half-written answer
        answer = None
    if not isinstance(answer, dict):
        raise AgainError("the answer is not a JSON object")
    if "error" in answer:
        about = answer["error"] if isinstance(answer["error"], dict) else {}
        code = str(about.get("code", "unknown"))
        if code.startswith(BUSY):
            raise AgainError(f"the API answered {code}", response)
        raise FetchError(f"the API answered {code}: {about.get('info', 'no reason given')}")
    query = answer.get("query")
    for kind in ("pages", "categorymembers", "random"):
        group = query.get(kind, []) if isinstance(query, dict) else []
        pages = list(group.values()) if isinstance(group, dict) else group
        # The library would make words of other titles, such as "None".
        if not isinstance(pages, list) or not all(_has_title(page) for page in pages):
            raise FetchError(f"the answer is not understood ({kind} without titles)")


def _has_title(page: Any) -> bool:
    return isinstance(page, dict) and isinstance(page.get("title"), str)
