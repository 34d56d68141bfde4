"""An Elasticsearch or OpenSearch server through its official client; every failure is one sentence.

Keys and passwords come from the environment alone: no option holds one, so that none gets into a saved
configuration, and what a server says is shown without them.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from tqdm import tqdm

from probers.types import RunError, UserError

from .lexical import check_extra

URL, API_KEY, USERNAME, PASSWORD = "ES_URL", "ES_API_KEY", "ES_USERNAME", "ES_PASSWORD"
#: Statuses after which the same request may succeed.
AGAIN = frozenset({408, 429, 500, 502, 503, 504})

_CREDENTIALS = {
    401: f"set or mend {API_KEY}, or {USERNAME} and {PASSWORD}",
    403: "the user or key needs 'monitor' on the cluster and 'manage', 'read' and 'write' on the index",
}
_PACKAGES = {"elasticsearch": "elasticsearch", "opensearchpy": "opensearch-py"}
_OLDEST = {"Elasticsearch": 7, "OpenSearch": 1}
_SHOWN = 400  # characters of what a server says

_T = TypeVar("_T")


class AgainError(Exception):
    """A failure that may pass."""


class RefusedError(RunError):
    """A request that no repetition mends; ``kind`` is the type of the server's error, "" without one."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Server:
    """A server, or several nodes of one cluster, asked for what it is.

    ``client`` is Elasticsearch's from version 8 on, else OpenSearch's, which older servers understand too.
    Either goes on to the next node where one fails; waiting, when all do, is done here.

    Args:
        url: address, or several; None is ES_URL, where spaces separate them.
        verify: whether the server's certificate is checked.
        ca_file: PEM file of the authority that signed it; None is the system's.
        timeout: seconds without a sign of the server before a try counts as failed.
        waits: seconds before each further try after a failure that may pass.

    Raises:
        UserError: the extra is missing, an address or credential does not serve, or another kind of
            server or too old a one answers.
        RunError: none answers.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None,
        verify: bool,
        ca_file: str | None,
        timeout: float,
        waits: Sequence[float],
    ) -> None:
        check_extra("elasticsearch", "search", _PACKAGES)
        import elasticsearch.helpers
        import opensearchpy.helpers

        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # else its failures are printed
        self._waits = waits
        nodes = _addresses(url)
        authorization, self._secrets = _credentials(nodes)
        hosts = [n._replace(netloc=n.netloc.rpartition("@")[2]).geturl() for n in nodes]
        self.url = ", ".join(hosts)
        options: dict[str, Any] = {
            "max_retries": len(hosts) - 1,
            "retry_on_timeout": True,
            "retry_on_status": AGAIN,
            "headers": {"authorization": authorization} if authorization else {},
            **_tls(self.url, verify, ca_file),
        }
        self._failures = (
            AgainError,
            elasticsearch.ApiError,
            elasticsearch.TransportError,
            opensearchpy.OpenSearchException,
        )
        self.client: Any = opensearchpy.OpenSearch(hosts, timeout=timeout, **options)
        self.streaming_bulk: Any = opensearchpy.helpers.streaming_bulk
        self.product, self.version = self._identify()
        if self.product == "Elasticsearch" and not self.version.startswith("7."):
            self.client = elasticsearch.Elasticsearch(hosts, request_timeout=timeout, **options)
            self.streaming_bulk = elasticsearch.helpers.streaming_bulk

    def __repr__(self) -> str:
        return f"{self.product} {self.version} at {self.url}"

    def ask(self, call: Callable[..., _T], **arguments: Any) -> _T:
        """What a method of the client returns; after failures that may pass it is called again.

        Raises:
            UserError: the credentials are refused, or what answers is no such server.
            RefusedError: an error in the request.
            RunError: every other failure.
        """
        tries = 0
        while True:
            try:
                return call(**arguments)
            except self._failures as error:
                failure = self._explained(error)
            # Out here, so that nothing the client saw, which may quote a password, hangs on what is raised.
            if not isinstance(failure, AgainError):
                raise failure
            if tries == len(self._waits):
                often = f" (tried {tries + 1} times)" if tries else ""
                raise RunError(
                    f"{self.url} gives no usable answer: {failure}{often}; once it does, the same command "
                    "goes on"
                )
            self.notice(f"{failure}; again in {self._waits[tries]:.3g} s")
            time.sleep(self._waits[tries])
            tries += 1

    def notice(self, text: str) -> None:
        """A line on the standard error, above any progress bar."""
        tqdm.write(f"elasticsearch: {text}", file=sys.stderr)

    def reason(self, data: Any) -> tuple[str, str]:
        """Type and reason of the error in an answer or in an item of one, "" where there is none.

        Of an error that sums up others ("all shards failed") the first cause is taken.

        Raises:
            RunError: the index, or the whole cluster, takes no writes.
        """
        error = data.get("error") if isinstance(data, dict) else None
        if not isinstance(error, dict):
            return "", self._clean(str(error or ""))
        if causes := error.get("root_cause"):
            error = error | causes[0]
        kind, reason = str(error.get("type", "")), str(error.get("reason", ""))
        inner = str((error.get("caused_by") or {}).get("reason", ""))
        if inner not in reason:
            reason += f" ({inner})"
        reason = self._clean(f"{kind}: {reason}" if kind else reason)
        if kind == "cluster_block_exception":
            raise RunError(_blocked(reason))
        return kind, reason

    def _identify(self) -> tuple[str, str]:
        """Product and version."""
        data = self.ask(self.client.info)
        try:
            version, tagline = data["version"], data["tagline"]
            number, major = version["number"], int(version["number"].partition(".")[0])
            opensearch = "opensearch" in f"{tagline} {version.get('distribution')}".lower()
        except (TypeError, LookupError, ValueError):
            raise self._stranger("does not say its version") from None
        if not opensearch and tagline != "You Know, for Search":
            raise self._stranger(f"says {tagline!r}")
        product = "OpenSearch" if opensearch else "Elasticsearch"
        if major < _OLDEST[product]:
            raise UserError(
                f"{product} {number} at {self.url} is too old: Elasticsearch 7, 8, 9 or OpenSearch is needed"
            )
        return product, number

    def _explained(self, error: Exception) -> Exception:
        """What to raise for what a client raised."""
        status, body = getattr(error, "status_code", None), getattr(error, "info", None)
        if isinstance(error, AgainError):
            return error
        if not isinstance(status, int):
            return self._without_answer(error)
        try:
            kind, reason = self.reason(body)
        except RunError as blocked:
            return blocked
        reason = reason or self._clean(str(body or "no reason given"))
        if status in AGAIN:
            return AgainError(f"HTTP {status} {reason}")
        if status < 400 or (status == 404 and not isinstance(body, dict)):
            return self._stranger(f"answers HTTP {status}")
        if status in (401, 403):
            return UserError(f"{self.url} refuses (HTTP {status}): {reason}; {_CREDENTIALS[status]}")
        if status == 413:
            reason = "it is too large, give a smaller retriever.bulk_mb or retriever.search_queries"
        return RefusedError(f"{self.url} refuses a request (HTTP {status}): {reason}", kind)

    def _without_answer(self, error: BaseException) -> Exception:
        while inner := error.__cause__ or error.__context__:  # down to the one that says why
            error = inner
        if isinstance(error, ssl.SSLError):
            return UserError(
                f"{self.url}: {error}; give the PEM file of its authority as retriever.ca_file, or "
                "retriever.verify=false to check nothing"
            )
        if isinstance(error, (ValueError, LookupError)):
            return self._stranger("answers with something other than JSON")
        if isinstance(error, TimeoutError):
            return AgainError("no answer in time")
        return AgainError(self._clean(f"the connection failed: {error or type(error).__name__}"))

    def _stranger(self, why: str) -> UserError:
        return UserError(
            f"what answers at {self.url} is neither Elasticsearch nor OpenSearch (it {why}): check {URL} or "
            "retriever.url"
        )

    def _clean(self, text: str) -> str:
        """What a server said, short and without secrets."""
        text = " ".join(text.split())
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."


def _blocked(reason: str) -> str:
    """The sentence for an index or cluster that takes no writes, with the remedy.

    At its flood-stage disk watermark a server makes indices read-only and refuses whatever is
    loaded after that, item by item, in answers with status 200.
    """
    remedy = "lift that block"
    if "/12/" in reason or "watermark" in reason or "read-only" in reason:
        remedy = (
            "its disk is too full: free space there (or raise "
            "cluster.routing.allocation.disk.watermark.flood_stage), lift the block with PUT INDEX/_settings "
            '{"index.blocks.read_only_allow_delete": null},'
        )
    return (
        f"the server takes no more passages: {reason}; {remedy} and run the same command again: what is "
        "loaded stays"
    )


def _addresses(url: str | Sequence[str] | None) -> list[SplitResult]:
    """The addresses of the option or of ES_URL, the only one that may hold ``user:password@``."""
    given = [url] if isinstance(url, str) else list(url or os.environ.get(URL, "").split())
    if not given:
        raise UserError(
            f"retriever=elasticsearch has no server: set {URL}, for instance to http://localhost:9200, "
            "or pass retriever.url"
        )
    found = []
    for text in given:
        if url and "@" in text:
            raise UserError(
                "retriever.url holds a user name or password, which would be saved with the configuration: "
                f"put them into {USERNAME} and {PASSWORD}, or the whole address into {URL}"
            )
        try:
            parts = urlsplit(text)
            port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        except ValueError:
            parts, port = urlsplit(""), None
        if not port or not parts.hostname or parts.query or parts.fragment or "@" in parts.path:
            shown = URL if "@" in text else f"{'retriever.url' if url else URL}={text}"  # without a password
            raise UserError(
                f"{shown} is not the address of a server: give http://HOST:PORT or https://HOST:PORT, with "
                "the special characters of a password as %XX"
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        user = parts.netloc.rpartition("@")[0]
        found.append(parts._replace(netloc=f"{user}@{host}:{port}", path=parts.path.rstrip("/")))
    return found


def _tls(url: str, verify: bool, ca_file: str | None) -> dict[str, Any]:
    """Options of the clients for how a certificate is checked; none for an address without TLS."""
    unused = "retriever.verify=false" if not verify else "" if url.startswith("https:") else url
    if ca_file and unused:
        raise UserError(f"retriever.ca_file={ca_file} has no use with {unused}: leave it out")
    if not url.startswith("https:"):
        return {}
    if not verify:
        return {"verify_certs": False, "ssl_show_warn": False}
    try:
        return {"ssl_context": ssl.create_default_context(cafile=ca_file)}
    except OSError as error:
        raise UserError(f"retriever.ca_file={ca_file} is no file of certificates in PEM form") from error


def _credentials(nodes: Sequence[SplitResult]) -> tuple[str, list[str]]:
    """The header of that name, "" for none, and what no message may hold, the longest first."""
    key = os.environ.get(API_KEY, "").strip()
    users = {unquote(n.netloc.rpartition("@")[0]) for n in nodes} - {""}
    if os.environ.get(USERNAME) or os.environ.get(PASSWORD):
        users.add(f"{os.environ.get(USERNAME, '')}:{os.environ.get(PASSWORD, '')}")
    if len(users) + bool(key) > 1:
        raise UserError(f"{API_KEY}, {USERNAME} and a user in {URL} exclude each other: leave one of them")
    text = key or "".join(users)
    name, _, secret = text.partition(":")
    if users and not (name and secret):
        raise UserError(
            f"a user is set without a password, or the reverse: see {USERNAME}, {PASSWORD} and {URL}"
        )
    encoded = base64.b64encode(text.encode()).decode() if secret else text
    if not re.fullmatch(r"[\x21-\x7e]*", encoded):
        raise UserError(f"{API_KEY} holds characters that no API key has: give it as 'id:key' or encoded")
    header = f"{'ApiKey' if key else 'Basic'} {encoded}" if text else ""
    return header, sorted({encoded, secret} - {""}, key=len, reverse=True)
