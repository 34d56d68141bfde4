"""Passages on their way into an index: in bulk, each acknowledged or listed with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tqdm import tqdm

from probers.data.corpus import passages_from
from probers.data.http import AGAIN
from probers.types import Passage, RunError, UserError

from .errors import BLOCKED, blocked, reason_of
from .server import Server

_TOO_LARGE = 413
#: A document of this id is there already: an earlier try of the same request, or run, brought it.
_THERE = 409
_LISTED = 10


@dataclass(slots=True)
class Loader:
    """Streams passages into one index.

    A passage's document has its position for an id and is only ever created, never replaced: a
    request can be sent twice, and no deleted version stays behind to be counted by the idf.

    Args:
        bulk_passages: passages per request at most.
        bulk_mb: megabytes per request at most; a passage larger than that goes alone.
    """

    server: Server
    index: str
    bulk_passages: int = 1000
    bulk_mb: float = 8.0
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.bulk_passages < 1:
            raise UserError(f"retriever.bulk_passages={self.bulk_passages} must be 1 or more")
        if not self.bulk_mb > 0:
            raise UserError(f"retriever.bulk_mb={self.bulk_mb} must be above 0")

    def load(self, passages: Sequence[Passage], start: int, *, progress: bool) -> None:
        """Send the passages from position ``start`` on.

        Raises:
            RunError: the server refused some (after the others were loaded), or all of a request,
                or takes no writes, or is gone.
        """
        self.refused = []
        with tqdm(
            total=len(passages), initial=start, desc=f"index {self.index}", unit="passage", unit_scale=True,
            disable=not progress,
        ) as bar:  # fmt: skip
            for batch in self._batches(passages, start):
                before = len(self.refused)
                self._send(batch)
                bar.update(len(batch))
                if len(self.refused) - before == len(batch) > 1:
                    break
        if self.refused:
            shown = [f"{passages[n].id!r} ({reason})" for n, reason in self.refused[:_LISTED]]
            more = f" and {len(self.refused) - _LISTED} more" if len(self.refused) > _LISTED else ""
            raise RunError(
                f"the server refused {len(self.refused)} of {len(passages)} passages: {', '.join(shown)}"
                f"{more}; mend or remove them in the corpus and run the same command again"
            )

    def _batches(self, passages: Sequence[Passage], start: int) -> Iterator[dict[int, bytes]]:
        """Documents by position, as lines of a request."""
        batch: dict[int, bytes] = {}
        size, most = 0, self.bulk_mb * 1e6
        for n, passage in enumerate(passages_from(passages, start), start):
            document = _document(n, passage)
            if batch and (len(batch) >= self.bulk_passages or size + len(document) > most):
                yield batch
                batch, size = {}, 0
            batch[n] = document
            size += len(document)
        if batch:
            yield batch

    def _send(self, batch: dict[int, bytes]) -> None:
        waiting = dict(batch)
        path = f"/{quote(self.index, safe='')}/_bulk"
        attempt = 0
        while True:
            status, data = self.server.request(
                "POST", path, lines=b"".join(waiting.values()), accept=(_TOO_LARGE,)
            )
            if status == _TOO_LARGE:
                self._send_halves(waiting)
                return
            before = len(waiting)
            reason = self._settle(waiting, data)
            if not waiting:
                return
            if len(waiting) < before:
                attempt = 0
            self.server.pause(attempt, f"{len(waiting)} passages were put off: {reason}")
            attempt += 1

    def _send_halves(self, batch: dict[int, bytes]) -> None:
        items = list(batch.items())
        if len(items) == 1:
            self.refused.append((items[0][0], f"too large: {len(items[0][1])} bytes"))
            return
        middle = len(items) // 2
        self._send(dict(items[:middle]))
        self._send(dict(items[middle:]))

    def _settle(self, waiting: dict[int, bytes], data: Any) -> str:
        """Take out of ``waiting`` what is loaded or refused; why the rest is to be sent again."""
        reason = "not acknowledged"
        for item in data.get("items", []):
            result = next(iter(item.values()))
            n, status = int(result["_id"]), int(result["status"])
            if status < 300 or status == _THERE:
                waiting.pop(n, None)
                continue
            kind, said = reason_of(result)
            said = self.server.clean(said)
            if kind == BLOCKED:
                raise RunError(blocked(said))
            if status in AGAIN:
                reason = said
            elif waiting.pop(n, None) is not None:
                self.refused.append((n, said))
        return reason


def _document(n: int, passage: Passage) -> bytes:
    source = {"n": n, "id": passage.id, "title": passage.title, "text": passage.text}
    lines = f'{{"create":{{"_id":"{n}"}}}}\n{json.dumps(source, ensure_ascii=False)}\n'
    return lines.encode("utf-8", "replace")  # half a surrogate pair is no text for a server
