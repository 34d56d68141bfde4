"""A deadline for a whole exchange with a server, where clients know timeouts of single reads alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Deadline:
    """Ends the exchanges of one client that take too long, whatever the server sends meanwhile.

    An exchange runs in a thread of its own, which is waited for until the deadline. Then the client's
    connections are shut, so that the thread ends too. The client must tell :meth:`opened` of each one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited_for: set[threading.Thread] = set()
        self._connections: WeakSet[socket.socket] = WeakSet()

    def within(self, seconds: float, exchange: Callable[[], T]) -> T:
        """What ``exchange`` returns or raises.

        Raises:
            TimeoutError: it takes longer than ``seconds``.
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(exchange())
            except BaseException as error:
                answer.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)  # which the end of the program does not wait for
        with self._lock:
            self._waited_for.add(thread)
        thread.start()
        try:
            wait([answer], seconds)
        finally:  # of a user's interruption too
            with self._lock:
                self._waited_for.discard(thread)
                late = not answer.done()  # asked before the shutting, of which an answer might come
                if late:
                    self._shut()
        if late:
            raise TimeoutError(f"no whole answer within {seconds:g} s")
        return answer.result()

    def opened(self, connection: socket.socket) -> None:
        """Note a connection down; called in the exchange that opened it.

        Raises:
            TimeoutError: the exchange is not waited for any more.
        """
        with self._lock:
            self._connections.add(connection)
            if threading.current_thread() not in self._waited_for:
                self._shut()
                raise TimeoutError("a connection came after the deadline")

    def _shut(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # which are closed already
                # Not close(), as another connection might get the number of one that is still read; and
                # that of the base class, as TLS's own also forgets a state that its reader needs.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
