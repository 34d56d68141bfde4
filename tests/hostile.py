"""Answers of a server that means harm: functions that a request handler of http.server is given to."""

import json
import time
import zlib
from contextlib import suppress

PATIENCE = 20.0  # seconds after which a server gives up, when nobody hangs up


def _drip(handler, head, piece):
    """Send the head, and then a piece every 0.2 s, for ever."""
    handler.close_connection = True
    end = time.monotonic() + PATIENCE
    with suppress(OSError):
        handler.wfile.write(head)
        while time.monotonic() < end:
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(0.2)


def drip_head(handler):
    _drip(handler, b"HTTP/1.1 200 OK\r\nX-Name: ", b"a")


def drip_body(handler):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    _drip(handler, head, b" ")


def drip_chunk_size(handler):
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1;a="
    _drip(handler, head, b"a")


DRIPS = [drip_head, drip_body, drip_chunk_size]


def endless(handler):
    """A body without a length that never ends."""
    handler.close_connection = True
    piece = b" " * 1_000_000
    end = time.monotonic() + PATIENCE
    with suppress(OSError):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while time.monotonic() < end:
            handler.wfile.write(piece)


def bomb(handler):
    """100 kB of gzip that stand for 100 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    blob = b"".join(packer.compress(b" " * 1_000_000) for _ in range(100)) + packer.flush()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    handler.wfile.write(f"{head}Content-Length: {len(blob)}\r\n\r\n".encode() + blob)


#: What may stand anywhere in a JSON answer, instead of what belongs there.
ODD = [
    None, True, False, -1, 0, 3.5, 10**400, float("nan"), float("inf"), "", "x\x1b[31m\ud800", "7" * 5000,
    [], [None], [[["a"]]], {}, {"a": None}, {"": {"": []}}, "DEEP", "LONG",
]  # fmt: skip


def altered(answer, odd):
    """Every answer that comes of putting ``odd`` in the place of a part, or of taking that part away."""
    yield odd
    if isinstance(answer, dict):
        for key in answer:
            yield {k: v for k, v in answer.items() if k != key}
            for inner in altered(answer[key], odd):
                yield {**answer, key: inner}
    elif isinstance(answer, list):
        for at in range(len(answer)):
            yield answer[:at] + answer[at + 1 :]
            for inner in altered(answer[at], odd):
                yield [*answer[:at], inner, *answer[at + 1 :]]
        yield answer * 2


def written(answer):
    """``answer`` as JSON, with what Python does not write as it does not read it."""
    blob = json.dumps(answer).replace('"DEEP"', "[" * 100_000 + "]" * 100_000)
    return blob.replace('"LONG"', "9" * 5000).encode()
