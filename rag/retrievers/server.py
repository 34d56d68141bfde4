"""Connection to an Elasticsearch or OpenSearch server: client, pauses, and failures in one sentence."""

from __future__ import annotations

import html
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from probers.options import check_extra
from probers.types import Code, ProbersError, RunError, UserError

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds before the first further attempt; every other pause is twice the one before.
FIRST_PAUSE = 0.25
#: Longest pause in seconds that a server can ask for by Retry-After.
_LONGEST_PAUSE = 300.0
#: Statuses after which the same request may succeed, and reasons that no further attempt changes.
_AGAIN, _LASTING = (408, 429, 500, 502, 503, 504), "cluster_block_exception|too_many_"
#: Statuses of proxies whose server is gone: the next address is tried at once.
_ELSEWHERE = (502, 503, 504)
_ADDRESS = r"https?://(\[[\da-fA-F:.]+\]|[\w.-]+):\d+(/[\w./~-]*)?"
_OTHER = "this is neither Elasticsearch 7 to 9 nor OpenSearch: check retriever.url"
_GOES_ON = "once this is fixed, the same command goes on"
#: Remedies by a pattern of the failure's reason; with each the code, None keeps the failure's own.
_REMEDIES: dict[str, tuple[str, Code | None]] = {
    ".*HTTPS port": ("give retriever.url as https://", "network"),
    "SSL.*WRONG_VERSION|SSL.*record layer failure": (
        "the port speaks plain http or an old TLS: give retriever.url as http://", "network",
    ),
    "SSL": ("give its authority's PEM file as retriever.ca_file, or retriever.verify=false", None),
    "HTTP 401": ("set or correct ES_API_KEY, or ES_USERNAME and ES_PASSWORD", None),
    "HTTP 403": (
        "the user needs 'monitor' on the cluster and 'manage', 'read' and 'write' on the index ('read' and "
        "'view_index_metadata' for retriever.existing=true)", None,
    ),
    "HTTP 400.*window is too large": (
        "k is above what the index returns: give a smaller k, or raise its index.max_result_window", None,
    ),
    "HTTP 404 index_not_found": ("check retriever.index; only a new retriever of a corpus makes one", None),
    "HTTP 400": ("check retriever.index, retriever.analyzer, retriever.shards and retriever.replicas", None),
    "HTTP [23]|HTTP 404 a page|JSON|KeyError|Serialization": (_OTHER, "server"),
}  # fmt: skip
#: Remedies of failures that end once somebody mends the server, as above.
_MENDED: dict[str, tuple[str, Code | None]] = {
    ".*cluster_block_exception.*/12/": (
        'free its disk, then PUT INDEX/_settings {"index.blocks.read_only_allow_delete": null}', "disk",
    ),
    ".*cluster_block_exception.*/13/": (
        "free its disk, then PUT _cluster/settings "
        '{"persistent": {"cluster.blocks.read_only_allow_delete": null}}', "disk",
    ),
    ".*cluster_block_exception": ("lift the block of the index", "server"),
    ".*(unavailable_shards|not assigned|shards answered|all shards failed)": (
        "start the node that holds the shard; retriever.replicas keeps copies on other nodes", "server",
    ),
}  # fmt: skip


class PassingError(Exception):
    """A failure that may pass by itself: what to raise if it does not, and seconds to wait at least."""

    def __init__(self, error: ProbersError, after: float = 0.0) -> None:
        super().__init__(str(error))
        self.error, self.after = error, after


@dataclass(eq=False)
class Server:
    """The official client of the server that answers, with pauses between further attempts.

    Options and errors are those of :class:`~probers.rag.retrievers.Elasticsearch`. An attempt at another
    address begins at once, the others after pauses that double from :data:`FIRST_PAUSE`. No message holds
    ES_API_KEY or ES_PASSWORD.
    """

    url: str | Sequence[str] | None = None
    _: KW_ONLY
    timeout: float = 60.0
    retries: int = 8
    verify: bool = True
    ca_file: str | None = None

    def __post_init__(self) -> None:
        check_extra("retriever=elasticsearch", "search", "elasticsearch", "opensearchpy")
        given = self.url or os.environ.get("ES_URL", "").split()
        hosts = [self.url] if isinstance(self.url, str) else list(given)
        if not hosts or not all(re.fullmatch(_ADDRESS, host) for host in hosts):
            shown = " ".join(hosts).rpartition("@")[2]  # without a password
            raise UserError(f"no server at {shown!r}: set ES_URL or retriever.url to http(s)://HOST:PORT")
        self.hosts = [host.rstrip("/") for host in hosts]
        self.name = ", ".join(self.hosts)
        key, user, password = (os.environ.get(f"ES_{n}", "") for n in ("API_KEY", "USERNAME", "PASSWORD"))
        # Servers read UTF-8, and OpenSearch's client writes Latin-1.
        ascii_only = re.fullmatch("[ -~]*", key + user + password)
        if bool(user) != bool(password) or (user and key) or not ascii_only:
            message = "set ES_API_KEY, encoded, or both ES_USERNAME and ES_PASSWORD, in ASCII"
            raise UserError(message, "conflict")
        self._secrets = [secret for secret in (key, password) if secret]
        if self.ca_file and not (self.verify and self.name.startswith("https:")):
            raise UserError(f"retriever.ca_file={self.ca_file} needs https and verify=true", "conflict")
        if self.ca_file and not Path(self.ca_file).is_file():
            raise UserError(f"retriever.ca_file={self.ca_file} is no file: give a PEM file", "no-file")
        self._waited = self._answered = False
        self._connect((user, password) if user else None, key)

    def ask(
        self, call: Callable[..., Any], *, read: Callable[[Any], Any] = lambda body: body, **options: Any
    ) -> Any:
        """Call a method of the client as in :meth:`once`; repeat what may pass by itself."""
        return self.patiently(lambda: self.once(call, read=read, **options))

    def patiently(self, act: Callable[[], T]) -> T:
        """Act, and after each :class:`PassingError` wait and act again."""
        for attempt in range(self.retries + 1):
            try:
                result = act()
                self._waited = False
                return result
            except PassingError as failure:
                if attempt == self.retries:
                    raise failure.error from None
                pause = max(FIRST_PAUSE * 2**attempt, min(failure.after, _LONGEST_PAUSE))
                if not self._waited and pause >= 2 * FIRST_PAUSE:  # not for a moment
                    most = FIRST_PAUSE * (2**self.retries - 1)
                    log.warning("waiting up to %.0f s for %s", max(pause, most), failure)
                    self._waited = True
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def once(
        self, call: Callable[..., Any], *, read: Callable[[Any], Any] = lambda body: body, **options: Any
    ) -> Any:
        """Call a method of the client and return what ``read`` takes of the answer's body.

        Failures become one sentence, and so do answers of another form than ``read`` expects.
        """
        try:
            answer = call(**options)
            body = getattr(answer, "body", answer)
            lack = _lack(body)
            result = None if lack else read(body)
            self._answered = True
        except self._failures as error:
            raise self._failed(error) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # The clients do not check the form of an answer before they read it.
            reason = self.reason(f"{type(error).__name__}: {error}")
            raise UserError(f"{self.name}: {reason}; {_OTHER}", "server") from None
        if lack is not None:
            raise PassingError(self.error(self.reason(lack), "server"))
        return result

    def error(self, reason: str, code: Code = "server") -> ProbersError:
        """Make the error for a failure, with what the user can do about it."""
        failure = f"{self.name}: {reason}"
        for remedies, kind in ((_MENDED, RunError), (_REMEDIES, UserError)):
            for sign, (remedy, other) in remedies.items():
                if re.match(sign, reason, re.DOTALL):
                    end = f"{remedy}; {_GOES_ON}" if kind is RunError else remedy
                    return kind(f"{failure}; {end}", other or code)
        return RunError(f"{failure}; {_GOES_ON}", code)

    def reason(self, error: Any) -> str:
        """Find the first cause in an error of a server, as one short line without secrets."""
        if isinstance(error, dict):
            error = error.get("error", error)
        if isinstance(error, dict):
            first = error | next(iter(error.get("root_cause", [])), {})
            # Of some failures the reason is empty, and that of the cause is not.
            causes = [each.get("caused_by") or {} for each in (error, first)]
            inner = next((cause["reason"] for cause in causes if cause.get("reason")), "")
            reasons = dict.fromkeys([first.get("reason") or "", inner])
            error = f"{first.get('type')}: {' '.join(reasons)}"
        text = str(error)
        if re.search(r"<(html|!doctype|head|title)\b", text, re.IGNORECASE):  # the page of a proxy
            title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
            page = html.unescape(title[1] if title else re.sub("<[^>]*>", " ", text))
            text = f"a page: {page.strip()}"
        text = re.sub(r"Basic \S+", "Basic ***", text)  # a header holds the password encoded
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return "".join(c for c in " ".join(text.split())[:400] if c.isprintable()) or "without a reason"

    def _failed(self, error: Any) -> ProbersError | PassingError:
        """Make the error for one of the client's."""
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            reason = f"HTTP {status} {self.reason(error.info or error.error)}"
            failure = self.error(reason)
            if status not in _AGAIN or re.search(_LASTING, reason):
                return failure
            headers = getattr(getattr(error, "meta", None), "headers", self._noted)
            after = str(headers.get("retry-after") or "")
            return PassingError(failure, float(after) if after.isdecimal() else 0.0)
        inner: BaseException = error
        while cause := inner.__cause__ or inner.__context__:  # the innermost tells the reason
            inner = cause
        reason = self.reason(f"{type(inner).__name__}: {inner}")
        if not (self._answered or re.search("refused|SSL", reason)) and any(map(_speaks_tls, self.hosts)):
            reason = f"the address begins with http://, and it is an HTTPS port ({reason})"
        failure = self.error(reason, "network")
        return failure if isinstance(failure, UserError) else PassingError(failure)

    def _connect(self, login: tuple[str, str] | None, key: str) -> None:
        """Choose the client by the server's answer; OpenSearch's client also works with Elasticsearch 7."""
        import elasticsearch
        import opensearchpy

        noted: dict[str, str] = {}

        class Noting(opensearchpy.Urllib3HttpConnection):
            """Connection that notes an answer's headers, which the client's errors leave out."""

            def get_response_headers(self, response: Any) -> Mapping[str, str]:
                noted.clear()
                noted.update(super().get_response_headers(response))
                return noted

        self._noted: Mapping[str, str] = noted
        self._failures: Any = (
            elasticsearch.ApiError, elasticsearch.TransportError, opensearchpy.OpenSearchException
        )  # fmt: skip
        logging.getLogger("opensearch").addHandler(logging.NullHandler())  # else its failures are printed
        options: dict[str, Any] = {
            "max_retries": len(self.hosts) - 1, "retry_on_timeout": True, "retry_on_status": _ELSEWHERE,
            "verify_certs": self.verify, "ca_certs": self.ca_file, "ssl_show_warn": False,
            "headers": {"authorization": f"ApiKey {key}"} if key else {},
        }  # fmt: skip
        self.client: Any = opensearchpy.OpenSearch(
            self.hosts, timeout=self.timeout, http_auth=login, connection_class=Noting, **options
        )
        if not self.ask(self._speaks_opensearch):
            options |= {"request_timeout": self.timeout, "basic_auth": login}
            self.client = elasticsearch.Elasticsearch(self.hosts, **options)
            self.ask(self.client.info)  # the client refuses anything but Elasticsearch

    def _speaks_opensearch(self) -> bool:
        greeting = self.client.info()
        version = greeting["version"]
        names = f"{version.get('distribution', '')} {greeting.get('tagline', '')}".lower()
        return "opensearch" in names or str(version["number"]).startswith("7.")


def is_passing(answer: Mapping[str, Any]) -> bool:
    """Tell whether the failure of one part of a request may pass by itself."""
    return answer.get("status") in _AGAIN and not re.search(_LASTING, str(answer.get("error")))


def _lack(body: Any) -> str | None:
    """Say what an answer about an index's health, a search, a count or several searches lacks."""
    if not isinstance(body, dict):
        return None
    if body.get("status") == "red":
        return f"{body['unassigned_shards']} shards of the index are not assigned to a node"
    for answer in body.get("responses", [body]):
        if "error" in answer and is_passing(answer):
            cause = answer["error"].get("caused_by") or {}
            return f"{answer['error'].get('type')}: {answer['error'].get('reason') or cause.get('reason')}"
        if "hits" in answer or "count" in answer:
            shards = answer["_shards"]
            # A shard that no node holds counts among the total only, not among the failed.
            if shards["failed"] or shards["successful"] < shards["total"]:
                return f"only {shards['successful']} of the index's {shards['total']} shards answered"
            if answer.get("timed_out"):
                return "the search timed out on the server"
    return None


def _speaks_tls(address: str) -> bool:
    """Tell whether a port addressed by http:// answers to TLS."""
    parts = urlsplit(address)
    if parts.scheme != "http":
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((str(parts.hostname), parts.port or 80), timeout=2) as plain:
            context.wrap_socket(plain, server_hostname=parts.hostname).close()
    except OSError:
        return False
    return True
