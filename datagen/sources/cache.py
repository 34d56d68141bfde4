"""A folder of small JSON files, one per thing that was fetched."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from probers.files import write_bytes, writing

SCHEMA = 1


class Cache:
    """Records by kind and name; each is written whole or not at all.

    A file that cannot be read as what was written counts as absent and is fetched again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, kind: str, name: str) -> Path:
        """The file of a record: readable as far as the name is ASCII, unique by its hash."""
        slug = re.sub(r"[^A-Za-z0-9]+", "_", name)[:40].strip("_")
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return self.folder / kind / f"{slug}-{digest}.json"

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        try:
            record = json.loads(self.path(kind, name).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or (record.get("schema"), record.get("name")) != (SCHEMA, name):
            return None
        return record

    def put(self, kind: str, name: str, record: dict[str, Any]) -> None:
        """Keep a record.

        Raises:
            RunError: the folder cannot be written to.
        """
        path = self.path(kind, name)
        with writing(path, "free some space or give another folder as wikipedia.cache"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, json.dumps({"schema": SCHEMA, "name": name, **record}).encode())
