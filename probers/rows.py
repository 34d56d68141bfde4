"""The rows of a feature store: its Parquet files read and checked, and as a Hugging Face dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .drawing import draw_key
from .manifest import MANIFEST, damaged, shard_file
from .types import RunError

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

    from .store import FeatureStore


def read_rows(store: Path, index: int, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one shard that has any; all columns by default.

    Raises:
        UserError: a file that cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(store / shard_file(index, "parquet"), columns=columns)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise damaged(store, shard_file(index, "parquet"), f"cannot be read ({reason})") from error


def all_rows(store: Path, counts: Sequence[int]) -> pa.Table:
    """The rows of all shards, one after the other; ``counts`` are the rows of each."""
    import pyarrow as pa

    return pa.concat_tables([read_rows(store, i) for i, n in enumerate(counts) if n])


def check_rows(store: Path, shards: Iterable[int]) -> None:
    """Refuse shards that do not make one table.

    Raises:
        RunError: other columns than the shards before it, or an id that occurs twice.
    """
    schema: pa.Schema | None = None
    seen: set[int] = set()  # hashes: the ids of millions of rows would be large
    for index in shards:
        table = read_rows(store, index)
        if schema is not None and not table.schema.equals(schema):
            raise RunError(f"shard {index} of {store} has other columns than the shards before it")
        schema = table.schema
        for name in table["id"].to_pylist():
            key = draw_key("id", 0, name)
            if key in seen:
                raise RunError(f"the feature store {store} has the id {name} twice")
            seen.add(key)


def to_datasets(store: FeatureStore, rows: pa.Table, layers: Sequence[int]) -> datasets.Dataset:
    """The rows as a ``Dataset``, with a column ``layer.<k>`` of fixed-size vectors per layer."""
    import datasets
    import pyarrow as pa

    for k in sorted(set(layers)):
        # Without Python objects in between: the array becomes Arrow's own memory.
        numbers = pa.array(store.layer(k).reshape(-1))
        rows = rows.append_column(f"layer.{k}", pa.FixedSizeListArray.from_arrays(numbers, store.spec.width))
    # What caches know the content by; the library would find it by hashing every vector.
    content = f"{(store.path / MANIFEST).read_text('utf-8')}{sorted(set(layers))}"
    return datasets.Dataset(rows, fingerprint=hashlib.sha256(content.encode()).hexdigest()[:16])
