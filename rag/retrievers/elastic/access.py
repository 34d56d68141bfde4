"""Where the server is and who asks it.

Keys and passwords come from the environment alone and stay in this module's object: no option
holds one, so that none gets into a saved configuration, and every message that quotes the server
passes :meth:`Access.redact`.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from probers.types import UserError

URL, API_KEY, USERNAME, PASSWORD = "ES_URL", "ES_API_KEY", "ES_USERNAME", "ES_PASSWORD"


@dataclass(frozen=True, slots=True)
class Access:
    """An address and, hidden, the credentials for it.

    Attributes:
        url: scheme, host, port and path, with neither a user nor a slash at the end.
        authorization: value of the header of that name, or None.
        secrets: what no message may hold.
    """

    url: str
    authorization: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """``text`` with every secret replaced by asterisks."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def find_access(url: str | None, environ: Mapping[str, str] = os.environ) -> Access:
    """The address of the option or of ES_URL, with the credentials of the environment.

    Args:
        url: ``retriever.url``; None takes ES_URL, the only one that may hold ``user:password@``.

    Raises:
        UserError: no address or none that can be used, a password in the option, or credentials
            that are incomplete or contradict each other.
    """
    option = "retriever.url" if url else URL
    address = url or environ.get(URL, "").strip()
    if not address:
        raise UserError(
            f"retriever=elasticsearch has no server: set {URL}, for instance to http://localhost:9200, "
            "or pass retriever.url"
        )
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        readable = "@" not in parts.path + parts.query + parts.fragment
    except ValueError:
        readable = False
    if not readable:  # it may hold a password with an unescaped / ? # and is not shown, nor its error
        raise UserError(
            f"{option} is not an address: give http://HOST:PORT or https://HOST:PORT, a password in {URL} "
            "with its special characters as %XX"
        )
    clean = _without_user(parts)
    if url and "@" in parts.netloc:
        raise UserError(
            f"retriever.url={clean} was given with a user name or password, which would be saved with the "
            f"configuration: put them into {USERNAME} and {PASSWORD}, or the whole address into {URL}"
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UserError(
            f"{option}={clean} is not the address of a server: give http://HOST:PORT or https://HOST:PORT"
        )
    if port is None and ":" in parts.netloc.rpartition("@")[2].rpartition("]")[2]:
        raise UserError(f"{option}={clean} has no port after the colon")
    authorization, secrets = _credentials(parts, environ)
    return Access(clean.rstrip("/"), authorization, secrets)


def tls_context(url: str, *, verify: bool, ca_file: str | None) -> ssl.SSLContext | bool:
    """What checks the server's certificate; False for an address without TLS, where nothing does.

    Raises:
        UserError: the file is missing or holds no certificate, or is given but not to be used.
    """
    unused = "retriever.verify=false" if not verify else "" if url.startswith("https:") else url
    if ca_file and unused:
        raise UserError(f"retriever.ca_file={ca_file} has no use with {unused}: leave it out")
    if ca_file and not Path(ca_file).is_file():
        raise UserError(f"retriever.ca_file={ca_file} is not a file: give the PEM file of the authority")
    if unused:
        return False
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, OSError) as error:
        raise UserError(f"retriever.ca_file={ca_file} holds no certificate in PEM form") from error


def _without_user(parts: SplitResult) -> str:
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _credentials(parts: SplitResult, environ: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    key = environ.get(API_KEY, "").strip()
    user, password = environ.get(USERNAME, ""), environ.get(PASSWORD, "")
    in_url = "@" in parts.netloc
    given = [
        name for name, there in ((API_KEY, key), (USERNAME, user), (f"a user in {URL}", in_url)) if there
    ]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} are both set: leave one of them out")
    if in_url:
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password):
        there, missing = (USERNAME, PASSWORD) if user else (PASSWORD, USERNAME)
        raise UserError(
            f"{URL} holds a user without a password" if in_url else f"{there} is set without {missing}"
        )
    if key:
        encoded = _base64(key) if ":" in key else key
        if not re.fullmatch(r"[\x21-\x7e]+", encoded):
            raise UserError(f"{API_KEY} holds characters that no API key has: give it as 'id:key' or encoded")
        return f"ApiKey {encoded}", _longest_first(key, encoded, key.partition(":")[2])
    if user:
        encoded = _base64(f"{user}:{password}")
        return f"Basic {encoded}", _longest_first(encoded, password, parts.password or "")
    return None, ()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _longest_first(*secrets: str) -> tuple[str, ...]:
    """So that a secret which holds another is replaced before its part is."""
    return tuple(sorted({s for s in secrets if s}, key=len, reverse=True))
