"""The server's HTTP by raw sockets: offers of an upgrade, requests in a row, and what is no HTTP."""

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from helpers.serving import PROMPT, Running, running

from probers import CausalLM

BODY = json.dumps({"model": "testbed", "prompt": PROMPT, "max_tokens": 3, "temperature": 0})
#: As java.net.http.HttpClient offers HTTP/2, with LangChain4j, Spring AI and others.
JAVA = (
    "Connection: Upgrade, HTTP2-Settings\r\nContent-Length: {length}\r\nHost: 127.0.0.1:8000\r\n"
    "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    "Authorization: Bearer x\r\nContent-Type: application/json\r\nUser-Agent: langchain4j-openai\r\n"
)
PLAIN = "Host: x\r\nContent-Type: application/json\r\n"
SMUGGLED = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(CausalLM.from_pretrained("testbed", dtype="float32"), None, patience=0.5) as server:
        yield server


@contextmanager
def connected(server: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as link:
        yield link


def said(link: socket.socket, seconds: float = 0.4) -> str:
    """All that comes until the server closes the connection or is silent for a while."""
    heard, link_timeout = b"", 10.0
    try:
        while True:
            link.settimeout(link_timeout)
            if not (more := link.recv(65536)):
                return heard.decode()
            heard, link_timeout = heard + more, seconds
    except TimeoutError:
        return heard.decode()


def statuses(heard: str) -> list[int]:
    return [int(status) for status in re.findall(r"HTTP/1\.1 (\d+) ", heard)]


def post(head: str, body: str = BODY, path: str = "/v1/completions") -> str:
    return f"POST {path} HTTP/1.1\r\n{head.format(length=len(body))}\r\n{body}"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("body", [BODY, SMUGGLED])
def test_an_offer_of_http_2_loses_no_body_and_makes_no_second_request(server, apart, body, caplog):
    """Claim: Java's request is answered as the same one without the offer, also if its body comes later."""
    answers = []
    for head in (JAVA, JAVA.replace("Upgrade: h2c\r\n", "")):
        request = post(head, body).encode()
        cut = request.index(b"\r\n\r\n") + 4
        with connected(server) as link:
            for part in (request[:cut], request[cut:]) if apart else (request,):
                link.sendall(part)
                time.sleep(0.1 * apart)
            heard = said(link)
        assert statuses(heard) == [200 if body is BODY else 400]
        answers.append(re.sub(r'"(id|created)":\S+?,', "", heard.partition("\r\n\r\n")[2]))
    assert answers[0] == answers[1]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_offer_of_a_web_socket_is_passed_over(server):
    offer = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    for path, status in (("/health", 200), ("/v1/realtime", 404)):
        with connected(server) as link:
            link.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{offer}\r\n".encode())
            assert statuses(said(link)) == [status]


def test_requests_in_a_row_are_answered_in_their_order(server):
    with connected(server) as link:
        both = post(PLAIN + "Content-Length: {length}\r\n") + SMUGGLED
        link.sendall(both.encode() * 2)
        heard = said(link, 1)
    assert statuses(heard) == [200] * 4
    kinds = re.findall(r'"object":"(text_completion|list)"', heard)
    assert kinds == ["text_completion", "list"] * 2


#: Requests that are no HTTP, and what the refusal says of each.
BROKEN = {
    "two lengths": (post(PLAIN + "Content-Length: 5\r\nContent-Length: 6\r\n"), "Content-Length"),
    "another protocol": ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\r\n\r\n", "request line"),
    "a space in a name": ("GET /health HTTP/1.1\r\nHost : x\r\n\r\n", "header"),
    "two hosts": ("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Host"),
    "a long line": (f"GET /{'x' * 100_000} HTTP/1.1\r\nHost: x\r\n\r\n", ""),
    "a broken chunk": (post(PLAIN + "Transfer-Encoding: chunked\r\n", "5\r\nabcde\r\nzz\r\n"), "chunk"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_http_is_refused_in_one_sentence(server, kind):
    request, named = BROKEN[kind]
    with connected(server) as link:
        link.sendall(request.encode("latin-1"))
        heard = said(link)
    (status,) = statuses(heard)
    error = json.loads(heard.partition("\r\n\r\n")[2])["error"]
    assert status in (400, 404, 431) and named.lower() in error["message"].lower(), error
    assert "\n" not in error["message"] and "x-request-id: req_" in heard
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("closes", [False, True])
def test_a_head_that_breaks_off_holds_nothing(server, closes, monkeypatch):
    monkeypatch.setattr("probers.serve.http._SECONDS", 0.3)
    with connected(server) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: b")
        if closes:
            link.shutdown(socket.SHUT_WR)
        began = time.monotonic()
        assert not said(link, 5)
        assert time.monotonic() - began < 4
    assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize(("patience", "seconds"), [(0.3, 1000), (1000, 0.3)])
def test_a_client_that_reads_nothing_is_given_up(monkeypatch, patience, seconds):
    """Claim: by this server, and by the connection, which vLLM has too; others are answered meanwhile."""
    monkeypatch.setattr("probers.serve.http._SECONDS", seconds)
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    monkeypatch.setattr(CausalLM, "_eos", frozenset())  # it writes on and on
    many = {"model": "testbed", "prompt": ["a"] * 8, "max_tokens": 1000, "n": 4, "logprobs": 20}
    with running(lm, None, rows=32, waiting=64, patience=patience) as server, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        deaf.sendall(
            post(PLAIN + "Content-Length: {length}\r\n", json.dumps({**many, "stream": True})).encode()
        )
        time.sleep(0.5)
        assert not server.idle(0)
        assert httpx.post(f"{server.url}/v1/completions", json=json.loads(BODY), timeout=60).is_success
        assert server.idle(30)
        assert 'stop="cancelled"' in httpx.get(f"{server.url}/metrics").text


@pytest.mark.parametrize("head", ["Content-Length: 5000\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_body_that_breaks_off_is_told_or_given_up(server, head, caplog):
    body = f"{len(BODY):x}\r\n{BODY}\r\n" if "chunked" in head else BODY
    for closes in (False, True):
        with connected(server) as link:
            link.sendall(post(PLAIN + head, body).encode())
            if not closes:
                heard = said(link)
                assert statuses(heard) == [408] and "did not come" in heard
    assert server.idle()
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.exc_info]
