"""An Elasticsearch or OpenSearch server: JSON in, JSON out, and every failure one sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import httpx
from tqdm import tqdm

from probers.data.http import AGAIN, AgainError, FetchError, PatientTransport, retry_after
from probers.types import RunError, UserError

from .access import API_KEY, PASSWORD, USERNAME, find_access, tls_context
from .errors import BLOCKED, blocked, reason_of

_OLDEST = {"Elasticsearch": 7, "OpenSearch": 1}
_SHOWN = 400  # characters of what a server says


class Answer(NamedTuple):
    """Status and body of an answer; the body is what its JSON held, or None."""

    status: int
    data: Any


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server is waited for.

    Attributes:
        timeout: seconds for a connection, and for each silence within a request.
        retries: further tries after a failure that may pass.
        backoff: seconds before the second try; doubled, and up to half as much added at random.
        max_wait: longest wait in seconds, also of those a server asks for.
    """

    timeout: float = 60.0
    retries: int = 5
    backoff: float = 1.0
    max_wait: float = 300.0

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise UserError(f"retriever.retries={self.retries} must be 0 or more")
        for name in ("timeout", "backoff", "max_wait"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise UserError(f"retriever.{name}={value} must be a number of seconds above 0")


class _Transport(PatientTransport):
    """Tells a full disk, which waiting does not mend, from a busy server."""

    clean: Callable[[str], str]

    def check(self, response: httpx.Response) -> None:
        status = response.status_code
        try:
            data = response.json()
        except ValueError as error:
            if status < 300 and "json" in response.headers.get("Content-Type", ""):
                raise AgainError("the answer broke off") from error
            data = None
        kind, reason = reason_of(data)
        if status in AGAIN and kind != BLOCKED:
            raise AgainError(self.clean(f"HTTP {status} {reason}".rstrip()), retry_after(response))


class Server:
    """A connection, opened and identified.

    Args:
        url: address, or None for ES_URL.
        verify: whether certificates are checked.
        ca_file: PEM file of the authority that signed the server's, or None for the system's.

    Raises:
        UserError: address, credentials or certificate do not serve, or another kind of server
            or too old a one answers.
        RunError: none answers.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        verify: bool = True,
        ca_file: str | None = None,
        patience: Patience = Patience(),
    ) -> None:
        self._access = find_access(url)
        self._transport = _Transport(
            retries=patience.retries,
            backoff=patience.backoff,
            jitter=0.5,
            max_wait=patience.max_wait,
            option="retriever.max_wait",
            verify=tls_context(self._access.url, verify=verify, ca_file=ca_file),
            notice=self.notice,
        )
        self._transport.clean = self.clean
        authorization = self._access.authorization
        self._client = httpx.Client(
            transport=self._transport,
            timeout=patience.timeout,
            headers={"Authorization": authorization} if authorization else {},
        )
        self.product, self.version = self._identify()

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return self._access.url

    def __repr__(self) -> str:
        return f"{self.product} {self.version} at {self.url}"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        lines: bytes | None = None,
        accept: Container[int] = (),
    ) -> Answer:
        """Ask, with JSON or with JSON lines; failures that may pass are tried again.

        Args:
            path: from the address on, with its parameters.
            accept: statuses of 300 and above that are an answer too.

        Raises:
            UserError: the credentials are refused.
            RunError: every other failure.
        """
        content, kind = lines, "application/x-ndjson"
        if body is not None:
            content, kind = json.dumps(body).encode(), "application/json"
        try:
            response = self._client.request(
                method, self.url + path, content=content, headers={"Content-Type": kind} if content else {}
            )
        except FetchError as error:
            self._fail(error)
        try:
            data = response.json()
        except ValueError:
            data = None
        status = response.status_code
        if status in accept or (status < 300 and isinstance(data, (dict, list))):
            return Answer(status, data)
        if status < 300 or (data is None and status == 404):
            found = response.headers.get("Content-Type") or "nothing"
            raise UserError(
                f"{self.url} answers {method} {path} with {found}, not JSON: it is neither Elasticsearch nor "
                "OpenSearch; check ES_URL or retriever.url"
            )
        self._refuse(response, data, f"{method} {path}")

    def pause(self, attempt: int, reason: str) -> None:
        """Wait before a part of a request is sent again.

        Raises:
            RunError: it was tried often enough.
        """
        try:
            self._transport.pause(attempt, AgainError(reason))
        except FetchError as error:
            self._fail(error)

    def notice(self, text: str) -> None:
        """A line on the standard error, above any progress bar, without secrets."""
        tqdm.write(f"elasticsearch: {self.clean(text)}", file=sys.stderr)

    def clean(self, text: str) -> str:
        """What a server said, short and without secrets."""
        text = self._access.redact(" ".join(text.split()))
        return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."

    def _identify(self) -> tuple[str, str]:
        data = self.request("GET", "/").data
        data = data if isinstance(data, dict) else {}
        version = data.get("version")
        number = str(version.get("number", "")) if isinstance(version, dict) else ""
        tagline = str(data.get("tagline", ""))
        product = None
        if isinstance(version, dict) and (
            version.get("distribution") == "opensearch" or "opensearch" in tagline.lower()
        ):
            product = "OpenSearch"
        elif tagline == "You Know, for Search":
            product = "Elasticsearch"
        major = number.partition(".")[0]
        if product is None or not major.isdecimal():
            raise UserError(
                f"what answers at {self.url} is neither Elasticsearch nor OpenSearch: check ES_URL or "
                "retriever.url"
            )
        if int(major) < _OLDEST[product]:
            raise UserError(
                f"{product} {number} at {self.url} is too old: Elasticsearch 7, 8, 9 or OpenSearch is needed"
            )
        return product, number

    def _fail(self, error: FetchError) -> NoReturn:
        reason = self.clean(str(error))
        if not error.down:
            raise UserError(
                f"{self.url}: {reason}; give the PEM file of its authority as retriever.ca_file, or "
                "retriever.verify=false to check nothing"
            ) from error
        hint = ""
        if self.url.startswith("http:") and ("disconnected" in reason or "reset by peer" in reason):
            hint = " (a server with TLS closes connections of http://: try https://)"
        raise RunError(
            f"{self.url} gives no usable answer: {reason}{hint}; once it does, the same command goes on"
        ) from error

    def _refuse(self, response: httpx.Response, data: Any, what: str) -> NoReturn:
        status = response.status_code
        kind, reason = reason_of(data)
        reason = self.clean(reason or response.text)
        if kind == BLOCKED:
            raise RunError(blocked(reason))
        if status == 401:
            scheme = (self._access.authorization or "").partition(" ")[0]
            refused = {
                "": f"asks who you are: set {API_KEY}, or {USERNAME} and {PASSWORD}",
                "ApiKey": f"refuses the key in {API_KEY}",
                "Basic": f"refuses the user and password of {USERNAME} and {PASSWORD}",
            }[scheme]
            raise UserError(f"{self.url} {refused} (HTTP 401)")
        if status == 403:
            raise UserError(
                f"{self.url} does not allow {what}: {reason}; the user or key needs 'monitor' on the cluster "
                "and 'manage', 'read' and 'write' on the index"
            )
        if 300 <= status < 400:
            where = response.headers.get("Location", "elsewhere")
            raise UserError(f"{self.url} sends on to {self.clean(where)}: give that address as ES_URL")
        raise RunError(f"{self.url} answered {what} with HTTP {status}: {reason or 'no reason given'}")
