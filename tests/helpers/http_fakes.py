"""HTTP servers of the tests' own, each on a thread."""

import json
import socket
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_HEADERS: Mapping[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    """Requests with a body in, JSON out, and nothing on the terminal."""

    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(
        self, status: int, content: Any, headers: Mapping[str, str] = NO_HEADERS, *, half: bool = False
    ) -> None:
        """Send bytes as they are and anything else as JSON, or half of it."""
        blob = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(blob)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(blob[: len(blob) // 2] if half else blob)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: Any) -> None: ...


class Server:
    """Listens from when it is made until it is closed or its block ends; ``tls`` is (certificate, key)."""

    def __init__(self, handler: type[Handler], tls: tuple[str, str] | None = None, *, port: int = 0) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        serve = self._server.serve_forever
        threading.Thread(target=serve, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
