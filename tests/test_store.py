"""The feature store: what is written is read back, and a kill at any moment changes nothing."""

import errno
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import contents, harm
from helpers.refusals import fails

from probers.cli.runs import identity
from probers.store import reader
from probers.store.spec import FeatureSpec, ModelSpec
from probers.store.store import FeatureStore
from probers.types import RunError

MODEL = ModelSpec("testbed", "abc123", layers=6, width=8, dtype="float32")
SPEC = FeatureSpec(MODEL, layers=(0, 2, 5), width=8, prompt="p1")
MLP = replace(SPEC, site="mlp_out", layers=(2, 5))
MIND = replace(SPEC, pool="mind", layers=(6,), width=16)
FEATURES = (SPEC, MLP, MIND)


def make_rows(n: int, start: int = 0) -> list[dict]:
    same = {"split": "train", "text": 'naïve\n"x"', "extra": "e"}
    return [
        {"id": f"q{start + i}", "group": f"g{(start + i) // 2}", "correct": i % 2, "n_tokens": i,
         "mean_entropy": 0.5 * i, **same} for i in range(n)
    ]  # fmt: skip


def make_all(n: int, seed: int, features=(SPEC,)) -> list[np.ndarray]:
    """States of every feature; the first are the same whatever the others are."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, len(f.layers), f.width)).astype(np.float32) for f in features]


def make_states(n: int, seed: int) -> np.ndarray:
    return make_all(n, seed)[0]


def build(path: Path, start: int = 0, *, sizes=(5, 0, 3), step=100, features=(SPEC,), config=None, edit=dict):
    """A store of rows from ``start`` on, each of them changed by ``edit``."""
    store = FeatureStore.create(path, features, config=config or {"seed": 0}, shards=len(sizes))
    for index in store.missing:
        rows = [edit(row) for row in make_rows(sizes[index], start + step * index)]
        store.write_shard(index, rows, *make_all(len(rows), start + index, features), units=[f"u{index}"])
    store.finish({"made": start})
    return FeatureStore.open(path)


build_all = partial(build, features=FEATURES)


def begun(path: Path, *, shards: int = 1, written: tuple[int, ...] = (0,)) -> FeatureStore:
    """An unfinished store, some of whose shards are there."""
    store = FeatureStore.create(path, [SPEC], config={}, shards=shards)
    for index in written:
        store.write_shard(index, make_rows(2), make_states(2, 0))
    return store


def test_what_is_written_is_read_back_and_a_layer_without_the_others(tmp_path: Path) -> None:
    """Claim: damage in layer 5's bytes leaves layer 2 as it was; converse: layer 5 changes."""
    store = build(tmp_path / "s")
    everything = np.concatenate([make_states(5, 0), make_states(3, 2)]).astype(np.float16)
    assert len(store) == 8 and store.summary == {"made": 0} and store.config == {"seed": 0}
    np.testing.assert_array_equal(store.states(SPEC.layers), everything)
    np.testing.assert_array_equal(store.layer(2), everything[:, 1])
    np.testing.assert_array_equal(store.states((5, 0), rows=[7, 1, 1]), everything[[7, 1, 1]][:, [2, 0]])
    table = store.table()
    assert table["id"].tolist() == [f"q{i}" for i in (0, 1, 2, 3, 4, 200, 201, 202)]
    assert table["text"][0] == 'naïve\n"x"' and table["correct"].dtype == np.int64
    assert store.spec == SPEC
    store.verify()
    for read in (lambda: store.layer(3), lambda: store.to_datasets([3])):
        with fails("layers", "layer=3", "0, 2, 5", "testbed", "6"):
            read()
    file = tmp_path / "s/shards/00000.safetensors"
    before = {k: store.layer(k) for k in (2, 5)}
    blob, (first, last) = file.read_bytes(), span(file, 5)
    file.write_bytes(blob[:first] + bytes(last + 1 - first) + blob[last + 1 :])
    np.testing.assert_array_equal(store.layer(2), before[2])
    assert not np.array_equal(store.layer(5), before[5])
    with fails("damaged", "00000.safetensors"):
        store.verify()


def test_an_unfinished_store_says_what_is_missing_and_drops_what_a_kill_left(tmp_path: Path) -> None:
    store = begun(tmp_path / "s", shards=3, written=(1,))
    with fails("no-artifact", "1 of 3"):
        FeatureStore.open(tmp_path / "s")
    with fails("no-artifact", "[0, 2]", kind=RunError):
        store.finish()
    with fails("no-artifact", "nowhere"):
        FeatureStore.open(tmp_path / "nowhere")
    (tmp_path / "s/shards/.00002.parquet.tmp").write_bytes(b"half")
    (tmp_path / "s/shards/00002.parquet").write_bytes(b"whole, but the tensors are not there yet")
    assert FeatureStore.create(tmp_path / "s", [SPEC], config={}, shards=3).missing == [0, 2]
    assert not list((tmp_path / "s/shards").glob(".*"))


@pytest.mark.parametrize("name", ["parquet", "safetensors", "mean.mlp_out.safetensors", "json"])
@pytest.mark.parametrize("damage", ["altered", "cut", "gone"])
def test_a_damaged_shard_is_named_and_made_again(tmp_path, caplog, name, damage):
    """Converse: of a whole store nothing is said and nothing is missing."""
    whole = contents(build_all(tmp_path / "s").path)
    again = partial(FeatureStore.create, tmp_path / "s", FEATURES, config={"seed": 0}, shards=3)
    assert again().missing == [] and caplog.text == ""
    harm(tmp_path / f"s/shards/00002.{name}", damage)
    if name != "json":
        with fails("damaged", f"shards/00002.{name} "):
            FeatureStore.open(tmp_path / "s")
    assert again().missing == [2]
    assert (f"00002.{name}" in caplog.text) == (name != "json" or damage != "gone")
    assert contents(build_all(tmp_path / "s").path) == whole


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    for batch_size in (4, 8):  # the same computation
        config = identity({"seed": 0, "batch_size": batch_size})
        FeatureStore.create(tmp_path, [SPEC], config=config, shards=3)
    for features, config, shards, named in (
        ([SPEC], {"seed": 1}, 3, ("configuration, seed", "0 there, 1 now")),
        ([SPEC.select((2,))], {"seed": 0}, 3, ("features, layers", "[0, 2, 5] there, [2] now")),
        ([SPEC], {"seed": 0}, 4, ("number of shards",)),
        ([SPEC, MLP], {"seed": 0}, 3, ("['mean of mlp_out, layers [2, 5]'] now",)),
    ):
        with fails("out-taken", *named):
            FeatureStore.create(tmp_path, features, config=config, shards=shards)


def test_states_and_rows_that_do_not_fit(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, [SPEC, MLP], config={}, shards=1)
    rows, states = make_rows(2), make_all(2, 0, (SPEC, MLP))
    undefined = [rows[0], rows[1] | {"mean_entropy": float("nan")}]
    with fails("bad-value", "mean_entropy", "q1", "nan", kind=RunError):
        store.write_shard(0, undefined, *states)
    with pytest.raises(ValueError, match="expected"):
        store.write_shard(0, rows, *states[::-1])
    states[1][1, 1, 0] = 1e6  # finite in float32, not in float16
    with fails("bad-value", "q1 at layer 5", "float16", kind=RunError):
        store.write_shard(0, rows, *states)
    assert store.missing == [0] and not list((tmp_path / "shards").iterdir())
    store.write_shard(0, [rows[0], rows[0]], *make_all(2, 0, (SPEC, MLP)))
    with fails("overlap", "q0", kind=RunError):
        store.finish()


def test_rows_in_any_order_from_any_number_of_maps(tmp_path, monkeypatch):
    """Claim: what is mapped and dropped in between changes nothing that is read."""
    store = build(tmp_path / "s", sizes=(5, 0, 3, 1, 7))
    everything = np.concatenate([make_states(n, i) for i, n in enumerate((5, 0, 3, 1, 7)) if n])
    everything = everything.astype(np.float16)[:, [2, 0]]
    for mapped, resident in ((256, 1 << 20), (1, 1 << 20), (256, 0)):
        monkeypatch.setattr(reader, "_MOST_MAPPED", mapped)
        monkeypatch.setattr(reader, "_MOST_RESIDENT", resident)
        states = store.reader((5, 0))
        assert states.shape == (16, 2, SPEC.width) and states.dtype == np.float16
        rng = np.random.default_rng(0)
        for rows in (rng.integers(0, 16, 0), rng.integers(0, 16, 40), slice(3, 9), slice(14, None, -3)):
            np.testing.assert_array_equal(states[rows], everything[rows])
        assert states[[15, 0]].flags.writeable  # a copy: training may do with it what it likes
    with pytest.raises(IndexError, match="16"):
        states[[16]]


def span(file: Path, layer: int) -> tuple[int, int]:
    """First and last byte of a layer in a shard's file."""
    blob = file.read_bytes()
    base = 8 + int.from_bytes(blob[:8], "little")
    start, end = json.loads(blob[8:base])[f"layer.{layer}"]["data_offsets"]
    return base + start, base + end - 1


#: A field of a manifest, its wrong value (``...``: it is gone), and what the message names.
MANIFESTS: list[tuple[str, Any, str]] = [
    ("rows", ..., "rows"), ("rows", [5, 3], "3 shards"), ("shards", 10**9, "1000000000"),
    ("files.shards/00002.parquet", ..., "shards/00002.parquet"),
    ("files.../x", {"bytes": 1, "sha256": ""}, "../x"), ("spec.layers", [2, 0, 5], "layers"),
    ("spec.width", 10**9, "00000.safetensors is too small for 5 rows of 6000000000 b"),
    ("spec.model.id", "a\x1b[2J", r"id='a\x1b[2J'"), ("schema", 9, "9"),
    ("rows", [10**15, 0, 3], "00000.safetensors is too small for 1000000000000000 rows"),
]  # fmt: skip
MORE: list[tuple[str, Any, str]] = [
    ("more.0.pool", "../x", "spec.pool=../x"), ("more.0.width", 8000, "too small for 5 rows"),
    ("more.0.prompt", "p2", "prompt"), ("more.1", ..., ""),
]  # fmt: skip


def test_manifests_that_do_not_fit_are_named(tmp_path: Path) -> None:
    for store, cases in ((build(tmp_path / "s"), MANIFESTS), (build_all(tmp_path / "all"), MORE)):
        manifest = store.path / "manifest.json"
        whole = manifest.read_text()
        for where, value, named in cases:
            altered: Any = json.loads(whole)
            *way, last = where.split(".", 1) if where.startswith("files") else where.split(".")
            place = altered
            for key in way:
                place = place[int(key) if isinstance(place, list) else key]
            last = int(last) if isinstance(place, list) else last
            if value is ...:
                del place[last]
            else:
                place[last] = value
            manifest.write_text(json.dumps(altered))
            with fails("bad-file" if where == "schema" else "damaged", store.path, named):
                FeatureStore.open(store.path)


#: Files that one run of :func:`build` writes, in order.
WRITES = [
    "manifest.json", "shards/00000.parquet", "shards/00000.safetensors", "shards/00000.json",
    "shards/00001.json", "shards/00002.parquet", "shards/00002.safetensors", "shards/00002.json",
    "manifest.json",
]  # fmt: skip


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(("number", "cause"), [
    (errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota"), (errno.EACCES, "Permission denied"),
])  # fmt: skip
def test_a_write_that_fails_loses_nothing(tmp_path, monkeypatch, call, number, cause):
    """Claim: whichever write fails, earlier shards stay and the same calls end in the same bytes."""
    whole = contents(build(tmp_path / "whole").path)
    original, left = getattr(os, call), [-1]

    def failed(*given: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(number, os.strerror(number))
        original(*given)

    monkeypatch.setattr(os, call, failed)
    for position, name in enumerate(WRITES):
        left[0], out = position, tmp_path / f"s{position}"
        with fails("disk", out / name, cause, kind=RunError):
            build(out)
        files = contents(out)
        assert set(files) == set(WRITES[:position])  # nothing else, no temporary file either
        now = contents(build(out).path)
        assert now == whole
        assert all(now[n] == digest for n, digest in files.items() if n != "manifest.json")


def test_a_hugging_face_dataset_has_every_column_and_the_layers_asked_for(tmp_path: Path) -> None:
    datasets.disable_progress_bars()
    store = build(tmp_path / "s")
    table = store.table()
    plain = store.to_datasets()
    assert plain.column_names == list(table.columns) and plain["id"][:] == table["id"].tolist()
    data = store.to_datasets(layers=[5, 2])
    assert data.column_names == [*table.columns, "layer.2", "layer.5"]
    feature = data.features["layer.5"]
    assert feature.length == SPEC.width and feature.feature.dtype == "float16"
    for k in (2, 5):
        np.testing.assert_array_equal(data.with_format("numpy")[:][f"layer.{k}"], store.layer(k))
    right = data.filter(lambda row: row["correct"] == 1)  # in the dataset's own ways, vectors follow rows
    rows = store.layer(2)[table["correct"].to_numpy() == 1]
    np.testing.assert_array_equal(right.with_format("numpy")[:]["layer.2"], rows)


def test_a_store_of_unknown_size_is_filled_shard_by_shard(tmp_path: Path) -> None:
    """What is written counts, a gap is filled first, and only finishing says how many there are."""
    store = FeatureStore.create(tmp_path, [SPEC], config={})
    assert (store.missing, store.next_shard, store.units) == ([], 0, set())
    for index in range(3):
        left_out = [{"id": f"x{index}", "reason": "no"}]
        given = make_rows(2, 10 * index), make_states(2, index)
        store.write_shard(index, *given, units=[f"u{index}"], left_out=left_out)
    (tmp_path / "shards/00001.json").unlink()
    assert (store.missing, store.next_shard, store.units) == ([1], 1, {"u0", "u2"})
    with fails("no-artifact", "[1]", kind=RunError):
        store.finish()
    with fails("no-artifact", "2 of an unknown number"):
        FeatureStore.open(tmp_path)
    again = FeatureStore.create(tmp_path, [SPEC], config={})
    again.write_shard(1, make_rows(2, 10), make_states(2, 1), units=["u1"])
    store.finish()
    assert FeatureStore.open(tmp_path).shards == 3 and len(store) == 6
    assert [record["id"] for record in store.left_out()] == ["x0", "x2"]
    assert [len(table) for table in store.tables(["id"])] == [2, 2, 2]


def test_a_shard_is_written_anew_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the files of a shard that is replaced: the shard is missing, not half old, half new."""
    store = FeatureStore.create(tmp_path, [SPEC], config={})
    rows = make_rows(3)
    store.write_shard(0, rows, make_states(3, 0), units=["u"], left_out=[{"id": "x", "reason": "no"}])
    columns, (states,), units, left_out = store.read_shard(0)
    assert [r["id"] for r in columns] == [r["id"] for r in rows] and states.shape[0] == 3
    assert (units, left_out) == (["u"], [{"id": "x", "reason": "no"}])
    with monkeypatch.context() as patched:
        patched.setattr("probers.store.store.write_bytes", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.write_shard(0, columns[:1], states[:1], units=units)
    assert store.next_shard == 0 and store.units == set()
    store.write_shard(0, [], states[:0], units=units)  # nothing left of it: no file but its own
    assert [p.name for p in tmp_path.glob("shards/*")] == ["00000.json"]


def test_several_features_of_the_same_rows(tmp_path: Path) -> None:
    """Each is read as if it were alone."""
    store, alone = build_all(tmp_path / "s"), build(tmp_path / "alone")
    shards = zip(make_all(5, 0, FEATURES), make_all(3, 2, FEATURES), strict=True)
    expected = [np.concatenate(both).astype(np.float16) for both in shards]
    assert store.features == FEATURES and store.spec == SPEC and alone.features == (SPEC,)
    for spec, states in zip(FEATURES, expected, strict=True):
        read = store.feature(pool=spec.pool, site=spec.site)
        assert read.spec == spec and len(read) == 8 and read.feature(pool="mean").spec == SPEC
        np.testing.assert_array_equal(read.states(spec.layers), states)
        np.testing.assert_array_equal(read.reader(spec.layers)[[7, 1, 1]], states[[7, 1, 1]])
        column = read.to_datasets(layers=spec.layers[:1]).with_format("numpy")[f"layer.{spec.layers[0]}"]
        np.testing.assert_array_equal(column, states[:, 0])
        pd.testing.assert_frame_equal(read.table(), alone.table())
    with fails("missing-value", "pool=last", "pool=mean site=resid_post, pool=mean"):
        store.feature(pool="last")
    with pytest.raises(ValueError, match="pool and site"):
        FeatureStore.create(tmp_path / "t", [SPEC, SPEC], config={})
