"""Retrieval servers and an encyclopedia that are slow, break off or lie."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from . import sandbox
from .damage import wrong_value

if TYPE_CHECKING:
    from .grounds import Grounds

PAGES = ("Aldenburg", "Brenne", "Marl", "Kelby")
_SLOW = 0.7  # seconds between two bytes of a slow answer
_HUGE = 40 << 20  # bytes of a huge answer

#: Ways in which a server alters its right answer.
LIES = (
    "slow", "cut", "close", "huge", "html", "empty", "not json", "500", "404", "redirect", "wrong value",
    "two wrong values", "missing key", "nested", "not finite", "repeated", "more", "null",
)  # fmt: skip


@contextmanager
def serving(make: Callable[[], ThreadingHTTPServer]) -> Iterator[str]:
    """Run a server in its own process; yield its address."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)  # errors of clients that went away
            server = make()
            os.write(write, str(server.server_port).encode())
            os.close(write)
            server.serve_forever(poll_interval=0.05)
        finally:
            os._exit(0)
    os.close(write)
    port = os.read(read, 16).decode()
    os.close(read)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def encyclopedia(lie: str = "", rng: random.Random | None = None) -> Iterator[str]:
    """Run a MediaWiki with a few pages, whose text is the testbed's; yield the address of its API."""
    from probers.testbed.assets import load_articles

    texts = dict(zip(PAGES, (" ".join(a.sentences) for a in load_articles()), strict=False))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            title = asked.get("titles", PAGES[0])
            page = {"pageid": 1, "ns": 0, "title": title, "lastrevid": 7, "extract": texts.get(title, "")}
            if asked.get("list") == "categorymembers":
                members = [{"pageid": 1, "ns": 0, "title": t} for t in PAGES]
                send(self, {"query": {"categorymembers": members}}, lie, rng or random.Random(0))
            elif asked.get("list") == "random":
                send(self, {"query": {"random": [{"id": 1, "ns": 0, "title": t} for t in PAGES]}}, lie, rng)
            else:
                send(self, {"query": {"pages": {"1": page}}}, lie, rng)

        def log_message(self, *args: Any) -> None:
            pass

    with serving(lambda: ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield f"{url}/w/api.php"


@contextmanager
def search_server(lie: str, endpoint: str, rng: random.Random) -> Iterator[str]:
    """Run the tests' Elasticsearch, which lies at one endpoint."""
    from fake_elasticsearch import FakeElasticsearch

    def make() -> ThreadingHTTPServer:
        fake = FakeElasticsearch()
        right = fake._server.RequestHandlerClass

        class Handler(right):  # type: ignore[misc, valid-type]
            def judged(self, at: str, act: Callable[[], Any], size: int) -> tuple[int, dict[str, str], Any]:
                status, headers, answer = super().judged(at, act, size)
                self.lie = lie if at == endpoint else ""
                return status, headers, answer

            def handle_one(self) -> None:
                self.lie = ""
                real, self.wfile = self.wfile, _Held()
                super().handle_one()
                head, self.wfile = self.wfile.blob, real
                head, _, body = head.partition(b"\r\n\r\n")
                if not self.lie or (self.command == "HEAD" and self.lie not in ("close", "500", "404")):
                    self.wfile.write(head + b"\r\n\r\n" + body)
                    return
                send(self, json.loads(body) if body else {}, self.lie, rng)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one

        fake._server.RequestHandlerClass = Handler
        return fake._server

    with serving(make) as url:
        yield url


class _Held:
    """Buffer of a handler's output, to be sent in another form."""

    def __init__(self) -> None:
        self.blob = b""

    def write(self, blob: bytes) -> int:
        self.blob += blob
        return len(blob)

    def flush(self) -> None:
        pass


def send(handler: Any, answer: Any, lie: str, rng: random.Random | None) -> None:
    """Send an answer, altered by a lie."""
    rng = rng or random.Random(0)
    status, headers = 200, {"Content-Type": handler.headers.get("Accept") or "application/json"}
    headers["X-Elastic-Product"] = "Elasticsearch"
    blob = json.dumps(_lied(answer, lie, rng)).encode()
    if lie == "close":
        handler.close_connection = True
        with suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)
        return
    if lie == "html":
        headers["Content-Type"], blob = "text/html", b"<html><body>Please log in</body></html>"
    elif lie == "empty":
        blob = b""
    elif lie == "not json":
        blob = blob[: len(blob) // 2] + b"}]"
    elif lie == "huge":
        blob = b"[" + b"0," * (_HUGE // 2) + b"0]"
    elif lie in ("500", "404"):
        status = int(lie)
    elif lie == "redirect":
        status, headers["Location"] = 302, handler.path
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(blob)))
    handler.end_headers()
    with suppress(OSError):
        if lie == "slow":
            handler.wfile.flush()
            for i in range(len(blob)):
                handler.wfile.write(blob[i : i + 1])
                handler.wfile.flush()
                time.sleep(_SLOW)
        else:
            handler.wfile.write(blob[: len(blob) // 2] if lie == "cut" else blob)
    if lie == "cut":
        handler.close_connection = True
        with suppress(OSError):
            handler.connection.shutdown(socket.SHUT_RDWR)


def _lied(answer: Any, lie: str, rng: random.Random) -> Any:
    """Alter the answer as a lie demands."""
    if lie == "null":
        return None
    if lie == "nested":
        for _ in range(200):
            answer = [answer]
        return answer
    if lie in ("wrong value", "two wrong values", "missing key", "not finite", "repeated", "more"):
        answer = json.loads(json.dumps(answer))
        for _ in range(2 if lie == "two wrong values" else 1):
            _spoil(answer, lie, rng)
    return answer


def _spoil(answer: Any, lie: str, rng: random.Random) -> None:
    places = list(_places(answer))
    lists = [(holder, key) for holder, key in places if isinstance(holder[key], list) and holder[key]]
    numbers = [(h, k) for h, k in places if isinstance(h[k], (int, float)) and not isinstance(h[k], bool)]
    if lie in ("repeated", "more") and lists:
        holder, key = rng.choice(lists)
        holder[key] = holder[key] * (2 if lie == "repeated" else 60)
    elif lie == "not finite" and numbers:
        holder, key = rng.choice(numbers)
        holder[key] = rng.choice([float("nan"), float("inf"), -float("inf")])
    elif places:
        holder, key = rng.choice(places)
        if lie == "missing key":
            del holder[key]
        else:
            holder[key] = wrong_value(rng)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every holder and key within a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


_ENDPOINTS = ("root", "create", "mapping", "put_mapping", "bulk", "refresh", "count", "msearch", "exists")


def attack(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Run one command against one lying server."""
    lie = LIES[index % len(LIES)]
    if index % 3 == 2:
        job, what = grounds.jobs["wikipedia"], f"wikipedia: {lie}"
        server = encyclopedia(lie, rng)
        more = ["wikipedia.cache=fresh"]
    else:
        job, endpoint = grounds.jobs["rag"], _ENDPOINTS[(index // len(LIES) + index) % len(_ENDPOINTS)]
        what = f"elasticsearch {endpoint}: {lie}"
        server = search_server(lie, endpoint, rng)
        more = ["retriever=elasticsearch", "retriever.timeout=2", "retriever.retries=1"]
    with server as url, grounds.field(("in",)) as field:
        address = f"wikipedia.api_url={url}" if index % 3 == 2 else f"retriever.url={url}"
        kept = [
            a for a in job.arguments if a.partition("=")[0] not in ("wikipedia.cache", "wikipedia.api_url")
        ]
        trigger = [] if index % 3 == 2 else ["trigger=always", "query=question"]
        arguments = [
            *[a for a in kept if not (trigger and a.startswith("trigger="))],
            *trigger,
            *more,
            address,
            "out=new",
        ]
        ended = sandbox.run(job.command, arguments, field)
        return sandbox.finding("servers", index, what, ended, job.command)
