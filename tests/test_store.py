"""The feature store: what is written is read back, and a kill at any moment changes nothing."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from probers.features import FeatureSpec, ModelSpec
from probers.store import FeatureStore
from probers.types import Needs, RunError, UserError

MODEL = ModelSpec("testbed", "abc123", layers=6, width=8, dtype="float32")
SPEC = FeatureSpec(MODEL, layers=(0, 2, 5), width=8, prompt="p1")


def make_rows(n: int, start: int = 0) -> list[dict]:
    return [
        {
            "id": f"q{start + i}", "group": f"g{(start + i) // 2}", "split": "train", "correct": i % 2,
            "text": "naïve\n\"x\"", "n_tokens": i, "mean_entropy": 0.5 * i, "extra": "e",
        }
        for i in range(n)
    ]  # fmt: skip


def make_states(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, len(SPEC.layers), SPEC.width)).astype(np.float32)


def build(path: Path, *, sizes: tuple[int, ...] = (5, 0, 3), config: dict | None = None) -> FeatureStore:
    store = FeatureStore.create(path, SPEC, config=config or {"seed": 0}, shards=len(sizes))
    for index in store.missing:
        store.write_shard(index, make_rows(sizes[index], 100 * index), make_states(sizes[index], index))
    store.finish({"model": "testbed"})
    return FeatureStore.open(path)


def tree(path: Path) -> dict[str, str]:
    files = sorted(f for f in path.rglob("*") if f.is_file())
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    everything = np.concatenate([make_states(5, 0), make_states(3, 2)]).astype(np.float16)
    assert len(store) == 8 and store.summary == {"model": "testbed"} and store.config == {"seed": 0}
    np.testing.assert_array_equal(store.states(SPEC.layers), everything)
    np.testing.assert_array_equal(store.layer(2), everything[:, 1])
    np.testing.assert_array_equal(store.states((5, 0), rows=[7, 1, 1]), everything[[7, 1, 1]][:, [2, 0]])
    table = store.table()
    assert table["id"].tolist() == [f"q{i}" for i in (0, 1, 2, 3, 4, 200, 201, 202)]
    assert table["text"][0] == 'naïve\n"x"' and table["correct"].dtype == np.int64
    assert store.spec == SPEC
    store.verify()


def test_a_layer_is_read_without_the_others(tmp_path: Path) -> None:
    """Claim: damage in layer 5's bytes leaves layer 2 as it was; converse: layer 5 changes."""
    store = build(tmp_path / "s")
    file = tmp_path / "s/shards/00000.safetensors"
    before = {k: store.layer(k) for k in (2, 5)}
    blob = bytearray(file.read_bytes())
    header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
    start, end = header["layer.5"]["data_offsets"]
    base = 8 + int.from_bytes(blob[:8], "little")
    blob[base + start : base + end] = bytes(end - start)
    file.write_bytes(blob)
    np.testing.assert_array_equal(store.layer(2), before[2])
    assert not np.array_equal(store.layer(5), before[5])
    with pytest.raises(UserError, match=r"00000\.safetensors was altered"):
        store.verify()


def test_parquet_is_readable_by_datasets(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    build(tmp_path / "s")
    data = datasets.load_dataset(
        "parquet",
        data_files=str(tmp_path / "s/shards/*.parquet"),
        split="train",
        cache_dir=str(tmp_path / "c"),
    )
    assert data.num_rows == 8 and data[5]["id"] == "q200"


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import probers.store as s, time
from test_store import SPEC, make_rows, make_states
store = s.FeatureStore.create(Path(sys.argv[1]), SPEC, config={{"seed": 0}}, shards=12)
print("ready", flush=True)
for i in store.missing:
    store.write_shard(i, make_rows(40, 100 * i), make_states(40, i))
    time.sleep(0.005)
store.finish({{"model": "testbed"}})
"""


def test_killed_at_random_moments_the_store_is_byte_identical(tmp_path: Path) -> None:
    script = WRITER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=60)
    rng = random.Random(0)
    progress = []
    for _ in range(6):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline()  # it has begun to write
        time.sleep(rng.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        progress.append(len(list((tmp_path / "killed/shards").glob("*.json"))))
    assert progress[0] < 12, "the first kill came too late to test anything"
    subprocess.run([*command, str(tmp_path / "killed")], check=True, timeout=60)
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")


def test_leftovers_of_a_kill_are_removed_and_only_missing_shards_remain(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, SPEC, config={}, shards=3)
    store.write_shard(1, make_rows(2), make_states(2, 0))
    (tmp_path / "shards/.00002.parquet.tmp").write_bytes(b"half")
    (tmp_path / "shards/00002.parquet").write_bytes(b"whole, but the tensors are not there yet")
    again = FeatureStore.create(tmp_path, SPEC, config={}, shards=3)
    assert again.missing == [0, 2]
    assert not list((tmp_path / "shards").glob(".*"))


def test_unfinished_and_foreign_folders(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path / "s", SPEC, config={}, shards=3)
    store.write_shard(0, make_rows(2), make_states(2, 0))
    with pytest.raises(UserError, match=r"incomplete \(1 of 3 shards\)"):
        FeatureStore.open(tmp_path / "s")
    with pytest.raises(RunError, match=r"lacks shards \[1, 2\]"):
        store.finish()
    with pytest.raises(UserError, match="no feature store"):
        FeatureStore.open(tmp_path / "nowhere")


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    FeatureStore.create(tmp_path, SPEC, config={"seed": 0, "batch_size": 4}, shards=3)
    FeatureStore.create(tmp_path, SPEC, config={"seed": 0, "batch_size": 8}, shards=3)  # same computation
    with pytest.raises(UserError, match=r"configuration, seed \(0 there, 1 now\)"):
        FeatureStore.create(tmp_path, SPEC, config={"seed": 1}, shards=3)
    with pytest.raises(UserError, match=r"features, layers \(\[0, 2, 5\] there, \[2\] now\)"):
        FeatureStore.create(tmp_path, SPEC.select((2,)), config={"seed": 0}, shards=3)
    with pytest.raises(UserError, match="number of shards"):
        FeatureStore.create(tmp_path, SPEC, config={"seed": 0}, shards=4)


def test_damage_is_named(tmp_path: Path) -> None:
    build(tmp_path / "s")
    file = tmp_path / "s/shards/00002.parquet"
    blob = file.read_bytes()
    file.write_bytes(blob[:-1])
    with pytest.raises(UserError, match=r"00002.parquet has \d+ bytes instead of"):
        FeatureStore.open(tmp_path / "s")
    file.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    with pytest.raises(UserError, match=r"00002\.parquet was altered"):
        FeatureStore.open(tmp_path / "s").verify()
    file.unlink()
    with pytest.raises(UserError, match=r"00002\.parquet is missing"):
        FeatureStore.open(tmp_path / "s")
    (tmp_path / "s/manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        FeatureStore.open(tmp_path / "s")


def test_missing_layer_lists_those_there(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    with pytest.raises(UserError, match=r"layer=3 is not in the features: .* 0, 2, 5 of testbed.*has 6"):
        store.layer(3)


def test_states_and_rows_that_do_not_fit(tmp_path: Path) -> None:
    store = FeatureStore.create(tmp_path, SPEC, config={}, shards=1)
    with pytest.raises(ValueError, match="expected"):
        store.write_shard(0, make_rows(3), make_states(2, 0))
    states = make_states(2, 0)
    states[1, 2, 0] = 1e6  # finite in float32, not in float16
    with pytest.raises(RunError, match="q1 at layer 5 are not finite in float16"):
        store.write_shard(0, make_rows(2), states)
    rows = make_rows(2)
    rows[1]["mean_entropy"] = float("nan")
    with pytest.raises(RunError, match="mean_entropy of q1 is nan"):
        store.write_shard(0, rows, make_states(2, 0))
    with pytest.raises(ValueError, match="split='dev'"):
        store.write_shard(0, [row | {"split": "dev"} for row in make_rows(2)], make_states(2, 0))
    assert store.missing == [0] and not list((tmp_path / "shards").iterdir())
    store.write_shard(0, [make_rows(1)[0], make_rows(1)[0]], make_states(2, 0))
    with pytest.raises(RunError, match="q0 twice"):
        store.finish()


def test_specs_name_both_sides() -> None:
    assert FeatureSpec.from_dict(json.loads(json.dumps(SPEC.to_dict()))) == SPEC
    assert SPEC.needs == Needs(layers=(0, 2, 5), site="resid_post", pool="mean")
    moved = ModelSpec("/elsewhere", "abc123", 6, 8, "float16")
    SPEC.check_model(moved)  # the same weights under another path and number format
    for revision, layers in (("zzz", 6), ("abc123", 7)):
        with pytest.raises(UserError, match=r"testbed@abc123 \(6 layers.*now is testbed"):
            SPEC.check_model(ModelSpec("testbed", revision, layers, 8, "float32"))
    with pytest.raises(UserError, match="pool='mean', the prober pool='last'"):
        SPEC.check(
            FeatureSpec(MODEL, (2,), 8, pool="last", prompt="p1"), what="the store", against="the prober"
        )
    with pytest.raises(UserError, match="testbed has 6 layers"):
        FeatureSpec(MODEL, layers=(7,), width=8)
    with pytest.raises(UserError, match="width"):
        FeatureSpec.from_dict({k: v for k, v in SPEC.to_dict().items() if k != "width"})
