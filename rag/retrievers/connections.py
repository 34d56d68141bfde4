"""Connections of the clients of Elasticsearch and OpenSearch with a deadline and a largest answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import elastic_transport
import opensearchpy
import urllib3

from probers.deadline import Deadline

#: Bytes of the largest answer; 10,000 hits, the most that servers give, have about 2 million.
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Answer:
    """What the clients read of a response of urllib3."""

    status: int
    headers: urllib3.HTTPHeaderDict
    data: bytes


class BoundedPool:
    """A pool of urllib3 whose answers come whole, in time, of at most :data:`MOST_BYTES`, or not at all.

    Args:
        pool: the pool; its timeout is that of a whole exchange, unless a request has one.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        self._pool = cast(Any, pool)
        self._deadline = Deadline()
        kind = self._pool.ConnectionCls

        def connection(**options: Any) -> Any:
            made = kind(**options)
            connect = made.connect

            def noted() -> None:
                connect()
                self._deadline.opened(made.sock)

            made.connect = noted
            return made

        self._pool.ConnectionCls = connection

    def urlopen(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        timeout: float | None = None,
        **options: Any,
    ) -> Answer:
        """The answer to a request of the pool.

        Raises:
            ReadTimeoutError: it was not whole in time.
            ProtocolError: it is too large, or compressed.
            HTTPError: what the pool raises.
        """
        seconds = timeout or self._pool.timeout.read_timeout
        # Later than the deadline, so that all that is late is told in the same words.
        options |= {"body": body, "timeout": seconds + 1, "redirect": False}
        try:
            return self._deadline.within(seconds, lambda: self._whole(method, url, options))
        except TimeoutError:
            late = TimeoutError(f"timed out: no whole answer within retriever.timeout={seconds:g} s")
        raise urllib3.exceptions.ReadTimeoutError(self._pool, url, "timed out") from late

    def close(self) -> None:
        self._pool.close()

    def _whole(self, method: str, url: str, options: dict[str, Any]) -> Answer:
        with self._pool.urlopen(method, url, preload_content=False, **options) as response:
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding != "identity":
                # Which neither client asks for; a few bytes may stand for gigabytes.
                raise urllib3.exceptions.ProtocolError(f"an answer is compressed, as {encoding[:40]!r}")
            data = bytearray()
            while piece := response.read(1 << 16, decode_content=False):
                data += piece
                if len(data) > MOST_BYTES:
                    raise urllib3.exceptions.ProtocolError(f"an answer exceeds {MOST_BYTES >> 20} MiB")
        headers = response.headers.copy()
        headers.discard("Warning")  # which the clients would print as it is
        return Answer(response.status, headers, bytes(data))


class ElasticsearchNode(elastic_transport.Urllib3HttpNode):
    """A node of Elasticsearch's client."""

    def __init__(self, config: elastic_transport.NodeConfig) -> None:
        super().__init__(config)
        self.pool: Any = BoundedPool(self.pool)


class OpenSearchConnection(opensearchpy.Urllib3HttpConnection):
    """A connection of OpenSearch's client."""

    def _create_urllib3_pool(self) -> None:
        super()._create_urllib3_pool()  # type: ignore[no-untyped-call]
        self.pool: Any = BoundedPool(self.pool)
