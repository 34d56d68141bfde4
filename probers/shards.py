"""Rows and states of one shard as bytes, checked before anything is written."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .features import FeatureSpec
from .types import RunError

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns that every source writes and their types. ``correct`` is 1 for a right
#: or faithful text and 0 for a wrong or hallucinated one; ``group`` is what must not
#: be on two sides of a split. Further columns are kept with the type of their values.
COLUMNS: dict[str, type] = {
    "id": str, "group": str, "split": str, "correct": int,
    "dataset": str, "condition": str, "text": str, "question": str, "answer": str, "gold": str,
    "question_type": str, "answer_kind": str, "knowledge": str,
    "n_tokens": int, "mean_entropy": float, "max_entropy": float, "min_prob": float,
    "mean_logprob": float, "rind_max": float,
}  # fmt: skip
_REQUIRED = ("id", "group", "split", "correct")
_SPLITS = ("train", "validation", "test")


def encode_states(rows: Sequence[Mapping[str, Any]], states: np.ndarray, spec: FeatureSpec) -> bytes:
    """The states (n, layers, d) as safetensors, one tensor ``layer.<k>`` (n, d) per layer.

    Raises:
        RunError: a value that is not finite in the store's number format; names example and layer.
    """
    from safetensors.numpy import save

    # Layers first, in one pass: each layer's block is then contiguous, as the file has it.
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(np.asarray(states).transpose(1, 0, 2), dtype=spec.dtype)
    if not np.isfinite(stored).all():
        row, layer = (int(i[0]) for i in np.nonzero(~np.isfinite(stored).all(axis=2).T))
        raise RunError(
            f"the states of {rows[row]['id']} at layer {spec.layers[layer]} are not finite in {spec.dtype}"
        )
    return save({f"layer.{k}": stored[i] for i, k in enumerate(spec.layers)})


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as Parquet; columns in the order of :data:`COLUMNS`, then by name.

    Raises:
        RunError: a score that is no number.
        ValueError: columns, splits or labels that do not fit.
    """
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(_arrow_table(rows), buffer, compression="zstd")
    return buffer.getvalue()


def _arrow_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    names = list(rows[0])
    for row in rows:
        if set(row) != set(names):
            raise ValueError(f"row {row.get('id')} has other columns than {rows[0].get('id')}")
        if row.get("split") not in _SPLITS or row.get("correct") not in (0, 1):
            raise ValueError(
                f"row {row.get('id')}: split={row.get('split')!r} or correct={row.get('correct')!r}"
            )
    lacking = [c for c in _REQUIRED if c not in names]
    if lacking:
        raise ValueError(f"rows lack the columns {lacking}")
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    order = [c for c in COLUMNS if c in names] + sorted(c for c in names if c not in COLUMNS)
    arrays = []
    for name in order:
        kind = COLUMNS.get(name, type(rows[0][name]))
        if kind not in kinds:
            raise ValueError(f"column {name} holds {kind.__name__}; str, int, float and bool can be stored")
        values = [kind(row[name]) for row in rows]
        if kind is float and not np.isfinite(values).all():
            bad = rows[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise RunError(f"{name} of {bad['id']} is {bad[name]}: a score that is no number is an error")
        arrays.append(pa.array(values, type=kinds[kind]))
    return pa.table(dict(zip(order, arrays, strict=True)))
