"""The files of a feature store: manifest, shards (Parquet and safetensors), and the JSON record of each."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checksums import draw_key, unsealed
from ..files import digest, read_json
from ..options import shown
from ..types import SPLITS, RunError, UserError, first_line
from .spec import FeatureSpec

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "manifest.json"
FORMAT, SCHEMA = "probers-features", 1
#: More shards than any store has.
MOST_SHARDS = 1_000_000
_FIELDS: dict[str, Any] = {
    "complete": bool, "shards": (int, type(None)), "spec": dict, "config": dict,
    "rows": (list, type(None)), "files": dict, "summary": dict,
}  # fmt: skip


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a store's manifest; UserError for no store, another schema, or a damaged one."""
    file = path / MANIFEST
    try:
        manifest = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is no feature store: probers-datagen makes one", "no-artifact") from None
    except ValueError as error:
        raise damaged(path, MANIFEST, str(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{file} does not describe a feature store", "bad-file")
    if (schema := manifest.get("schema")) != SCHEMA:
        raise UserError(f"the feature store {path} has schema {shown(schema)}, not {SCHEMA}", "bad-file")
    if problem := _problem(manifest):
        raise damaged(path, MANIFEST, problem)
    return manifest


def read_specs(path: Path, manifest: Mapping[str, Any]) -> tuple[FeatureSpec, ...]:
    """Read the specifications of a store's features from its manifest; UserError if damaged."""
    described = [manifest["spec"], *manifest.get("more", ())]
    if any(each.get("dtype") == "fp8" for each in described):
        raise UserError(f"the feature store {path} has dtype=fp8: make it with dtype=float16", "unsupported")
    try:
        specs = tuple(map(FeatureSpec.from_dict, described))
        check_features(specs)
    except (UserError, ValueError) as error:
        raise damaged(path, MANIFEST, f"describes no valid features: {error}") from error
    rows, files, ends = manifest["rows"] or (), manifest["files"], state_suffixes(specs)
    wanted = {shard_file(i, end) for i, n in enumerate(rows) if n for end in ("parquet", *ends)}
    if odd := set(files) ^ wanted:
        raise damaged(path, MANIFEST, f"gives {min(odd)} a size or rows, but not both")
    for (spec, end), (i, n) in product(zip(specs, ends, strict=True), enumerate(rows)):
        if n and files[name := shard_file(i, end)]["bytes"] <= n * spec.row_bytes:
            raise damaged(path, name, f"is too small for {n} rows of {spec.row_bytes} bytes")
    return specs


def check_features(specs: Sequence[FeatureSpec]) -> None:
    """Refuse features that cannot share rows (ValueError); "tokens" has one row for each token."""
    first = specs[0]
    for name in ("model", "position", "prompt", "dtype"):
        if any(getattr(spec, name) != getattr(first, name) for spec in specs):
            raise ValueError(f"the features of one store have the same {name}")
    places = [(spec.pool, spec.site) for spec in specs]
    if len(set(places)) < len(places):
        raise ValueError(f"a store has one feature for each pool and site, not {places}")
    if len({spec.pool == "tokens" for spec in specs}) > 1:
        raise ValueError("the rows of a store are either tokens or texts")


def state_suffixes(specs: Sequence[FeatureSpec]) -> list[str]:
    """List the file name endings of each feature's states."""
    return ["safetensors", *(f"{spec.pool}.{spec.site}.safetensors" for spec in specs[1:])]


def fingerprint(path: Path) -> str:
    """Name the store in ``path`` by content: its manifest holds the checksums of all its files."""
    return digest((path / MANIFEST).read_bytes())


def shard_file(index: int, suffix: str) -> str:
    """Return the name of a shard's file, relative to the store's folder."""
    return f"shards/{index:05d}.{suffix}"


def damaged(store: Path, file: str, problem: str) -> UserError:
    """Make the error for a file that has changed since it was written."""
    return UserError(f"the feature store {store} is damaged: {file} {problem}; make it again", "damaged")


def check_same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to continue the store in ``path`` if its manifest describes another computation (UserError)."""
    parts = {"spec": "features", "more": "further features", "config": "configuration"}
    for part, name in (parts | {"shards": "number of shards"}).items():
        if (old := there.get(part, [])) == (new := here.get(part, [])):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            key = next(k for k in sorted({*old, *new}) if old.get(k) != new.get(k))
            old, new, name = old.get(key), new.get(key), f"{name}, {key}"
        if part == "more":
            old, new = ([f"{f['pool']} of {f['site']}, layers {f['layers']}" for f in s] for s in (old, new))
        message = f"{path} holds a feature store of another {name} ({old} there, {new} now)"
        raise UserError(f"{message}: choose another out or remove the folder", "out-taken")


def _problem(manifest: Mapping[str, Any]) -> str | None:
    for name, kind in _FIELDS.items():
        if name not in manifest:
            return f"lacks {name}"
        if not isinstance(manifest[name], kind):
            return f"has {name}={shown(manifest[name])!r}"
    more = manifest.get("more", [])
    if not isinstance(more, list) or not all(isinstance(each, dict) for each in more):
        return f"has more={shown(more)!r}"
    shards = manifest["shards"]
    if shards is not None and not 0 < shards <= MOST_SHARDS:
        return f"has shards={shards}"
    if not manifest["complete"]:
        return None
    rows = manifest["rows"]
    if rows is None or len(rows) != shards or not all(type(n) is int and n >= 0 for n in rows):
        return f"lacks a number of rows for each of its {shards} shards"
    unlisted = (name for name, file in manifest["files"].items() if not _is_listed(file))
    return next((f"lists {name} without its size and checksum" for name in unlisted), None)


def _is_listed(file: Any) -> bool:
    return isinstance(file, dict) and {k: type(file[k]) for k in file} == {"bytes": int, "sha256": str}


def read_sidecar(store: Path, index: int, specs: Sequence[FeatureSpec]) -> dict[str, Any]:
    """Read the JSON record of one shard, with files as paths in the store; RunError if it is damaged."""
    path = store / shard_file(index, "json")
    try:
        record = unsealed(path)
        ends = ("parquet", *state_suffixes(specs)) if record["rows"] else ()
        if record["files"].keys() != {f"{index:05d}.{end}" for end in ends}:
            raise ValueError("lists files of another shard")
        return record | {"files": {f"shards/{name}": file for name, file in record["files"].items()}}
    except (ValueError, LookupError) as error:
        raise RunError(f"{path} is damaged (it {error}): run its command again", "damaged") from error


def written_shards(store: Path) -> list[int]:
    """List the indices of the whole shards, ascending."""
    names = (p.stem for p in store.glob("shards/*.json") if p.stem.isdecimal() and p.stem.isascii())
    return sorted(index for name in names if (index := int(name)) < MOST_SHARDS)


#: Columns that every source writes, and their types. ``correct`` is 1 for a right or faithful text and 0
#: for a wrong or hallucinated one; rows of one ``group`` stay in one split. Further columns are
#: kept with the type of their values, which may be missing (None).
COLUMNS: dict[str, type] = {
    "id": str, "group": str, "split": str, "correct": int,
    "dataset": str, "condition": str, "text": str, "question": str, "answer": str, "gold": str,
    "question_type": str, "answer_kind": str, "knowledge": str,
    "n_tokens": int, "mean_entropy": float, "max_entropy": float, "min_prob": float,
    "mean_logprob": float, "rind_max": float,
    "entropy_before": float, "logprob_before": float, "max_prob_before": float, "margin_before": float,
    "surprise": float,
    "em": float, "acc": float, "f1": float,
    "eigenscore": float, "verbalised": float, "question_frequency": float,
    "helps": float, "retriever_score": float, "retriever_margin": float,
}  # fmt: skip
_REQUIRED = ("id", "group", "split", "correct")
#: Types of values, and their names in Parquet.
_TYPES: dict[type, str] = {str: "string", int: "int64", float: "double", bool: "bool"}
#: Columns that are null where something is missing: the engine's attention, a gold answer, two samples
#: with a token, a number in the model's reply, an entity in the question, an answer with passages, a passage.
_NULLABLE = (
    "rind_max", "em", "acc", "f1", "eigenscore", "verbalised", "question_frequency", "helps",
    "retriever_score", "retriever_margin",
)  # fmt: skip


def encode_states(rows: Sequence[Mapping[str, Any]], states: np.ndarray, spec: FeatureSpec) -> bytes:
    """Encode states (n, layers, d) as safetensors, one tensor ``layer.<k>`` (n, d) per layer.

    RunError names a value that is not finite in the store's number format.
    """
    # Layers first, in one pass: each layer's block is then contiguous, as in the file.
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(np.asarray(states).transpose(1, 0, 2), dtype=spec.read_as)
    finite = np.isfinite(stored)
    if not finite.all():
        row, layer = (int(i[0]) for i in np.nonzero(~finite.all(axis=2).T))
        where = f"{rows[row]['id']} at layer {spec.layers[layer]}"
        raise RunError(f"the states of {where} are not finite in {spec.dtype}", "bad-value")
    from safetensors.numpy import save

    return save({f"layer.{k}": stored[i] for i, k in enumerate(spec.layers)})


def encode_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Encode rows as Parquet, with columns in the order of :data:`COLUMNS`, then by name.

    RunError for a score that is NaN, ValueError for columns, splits or labels that do not fit.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Values of numpy are written as Python's.
    rows = [{name: v.item() if isinstance(v, np.generic) else v for name, v in row.items()} for row in rows]
    names = list(rows[0])
    for row in rows:
        if set(row) != set(names):
            raise ValueError(f"row {row.get('id')} has other columns than {rows[0].get('id')}")
        split, correct = row.get("split"), row.get("correct")
        if split not in SPLITS or correct not in (0, 1):
            raise ValueError(f"row {row.get('id')}: {split=}, {correct=}")
    if lacking := [c for c in _REQUIRED if c not in names]:
        raise ValueError(f"rows lack the columns {lacking}")
    columns = {}
    for name in [c for c in COLUMNS if c in names] + sorted(c for c in names if c not in COLUMNS):
        required = name in COLUMNS and name not in _NULLABLE
        there = [row for row in rows if required or row[name] is not None]
        kind = COLUMNS.get(name) or _kind_of(name, {type(row[name]) for row in there})
        values = [kind(row[name]) for row in there]
        if kind is float and not np.isfinite(values).all():
            bad = there[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise RunError(f"{name} of {bad['id']} is {bad[name]}, not a number", "bad-value")
        if len(there) < len(rows):
            values = [row[name] for row in rows]
        columns[name] = pa.array(values, type=_TYPES[kind])
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def read_rows(
    store: Path, index: int, columns: Sequence[str] | None = None, *, rows: int | None = None
) -> pa.Table:
    """Read the rows of one non-empty shard, with all columns by default.

    UserError for an unreadable file, and another number of ``rows``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = shard_file(index, "parquet")
    try:
        table = pq.read_table(store / name, columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise damaged(store, name, f"cannot be read ({first_line(error)})") from error
    if rows not in (None, table.num_rows):
        raise damaged(store, name, f"has {table.num_rows} rows instead of {rows}")
    return table


def _kind_of(column: str, types: set[type]) -> type:
    """Find the type of a further column, float for mixed numbers."""
    kinds: set[type] = {float} if types == {int, float} else types
    if len(kinds) != 1 or not kinds <= set(_TYPES):
        held = " and ".join(sorted(kind.__name__ for kind in types)) or "None alone"
        raise ValueError(f"column {column} holds {held}; str, int, float or bool can be stored")
    return next(iter(kinds))


def all_rows(store: Path, counts: Sequence[int]) -> pa.Table:
    """Read the rows of all shards; ``counts`` are the rows of each."""
    import pyarrow as pa

    return pa.concat_tables([read_rows(store, i, rows=n) for i, n in enumerate(counts) if n])


def check_rows(store: Path, shards: Iterable[int]) -> None:
    """Refuse shards that do not make one table: other columns, or an id that occurs twice (RunError)."""
    schema: pa.Schema | None = None
    seen: set[int] = set()  # hashes: the ids of millions of rows would be large
    for index in shards:
        table = read_rows(store, index)
        schema = schema or table.schema
        if not table.schema.equals(schema):
            raise RunError(f"shard {index} of {store} has other columns than the first", "mismatch")
        for name in table["id"].to_pylist():
            key = draw_key("id", 0, name)
            if key in seen:
                raise RunError(f"the feature store {store} has the id {name} twice", "overlap")
            seen.add(key)
