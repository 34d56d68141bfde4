"""dtype=fp8: how far each number may be off, the same bytes however often written, half of float16's disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import fails
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from test_store import SPEC, make_rows, with_header

from probers.bank.bank import Prober
from probers.capture.pooling import as_stored
from probers.commands import main as cli
from probers.store.spec import FeatureSpec, fp8_decode, fp8_encode
from probers.store.store import FeatureStore
from probers.types import RunError

EIGHT = replace(SPEC, dtype="fp8")
#: Every number of e4m3 from 0 up, by its definition: 4 bits of exponent, 3 of mantissa, no infinity.
NUMBERS = np.array([(m / 8 + (e > 0)) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1])


def read_again(vectors: np.ndarray) -> np.ndarray:
    codes, scales = fp8_encode(torch.from_numpy(vectors))
    return fp8_decode(codes.view(torch.uint8).numpy(), scales.numpy())


def nearest(numbers: np.ndarray) -> np.ndarray:
    """The nearest number of e4m3 that is not negative; of two as near, the one whose last bit is 0."""
    above = np.searchsorted(NUMBERS, numbers).clip(1, len(NUMBERS) - 1)
    down, up = numbers - NUMBERS[above - 1], NUMBERS[above] - numbers
    return NUMBERS[np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)]


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    """A few rows of any size, of numbers that differ as widely as those of a residual stream, and more."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 40))
    found = rng.standard_normal(shape) * 10 ** rng.uniform(0, draw(st.floats(0, 8)), shape)
    found *= 10.0 ** draw(st.integers(-38, 30))
    found[rng.random(shape) < draw(st.sampled_from([0, 0.3, 1]))] = 0
    return found.astype(np.float32)


@settings(max_examples=300)
@given(vectors())
def test_each_number_is_as_near_as_said_and_the_nearest_there_is(given: np.ndarray) -> None:
    found = read_again(given).astype(np.float64)
    exact = given.astype(np.float64)
    largest = np.abs(exact).max(axis=1, keepdims=True)
    bound = np.maximum(np.maximum(np.abs(exact) / 16, largest / 237_568), 2.0**-136)
    assert (np.abs(found - exact) <= bound).all()
    assert (np.sign(found) * np.sign(exact) >= 0).all() and (found[exact == 0] == 0).all()
    # Against the format as it is defined, by the scale that is the least of those with room for the row.
    scale = 2.0 ** np.maximum(np.ceil(np.log2(np.maximum(largest, 1e-300) / 464)), -126)
    expected = np.sign(exact) * nearest(np.abs(exact) / scale) * scale
    np.testing.assert_array_equal(found[largest[:, 0] > 0], expected[largest[:, 0] > 0])


@settings(max_examples=100)
@given(vectors())
def test_what_is_read_is_written_in_the_same_bytes(given: np.ndarray) -> None:
    once = fp8_encode(torch.from_numpy(given))
    again = fp8_encode(torch.from_numpy(read_again(given)))
    for before, after in zip(once, again, strict=True):
        assert before.view(torch.uint8).equal(after.view(torch.uint8))


def test_a_few_numbers_of_thousands_cost_the_others_little() -> None:
    """The shape of a residual stream: of SmolLM2 a few coordinates are thousands, the others around one."""
    rng = np.random.default_rng(0)
    given = rng.standard_normal((200, 576)).astype(np.float32)
    given[:, [5, 300]] *= 9000
    error = np.delete(read_again(given) - given, [5, 300], axis=1)
    assert error.std() < 0.05 and np.abs(error.mean()) < 1e-3
    # Converse: eight bits in equal steps over the row would lose them altogether.
    step = np.abs(given).max(axis=1, keepdims=True) / 127
    equal = np.delete(np.round(given / step) * step - given, [5, 300], axis=1)
    assert equal.std() > 0.9


@pytest.mark.parametrize("edge", [0, 448, 448.0001, 463.99, 464, 464.0001, 3.3e4, 7e4, 1.7e38, 2.0**-149])
def test_the_ends_of_the_range(edge: float) -> None:
    given = np.float32([[edge, -edge, edge / 2, 0.0]])
    found = read_again(given)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, given, rtol=1 / 16, atol=2.0**-136)


def fill(path: Path, spec: FeatureSpec, states: np.ndarray, sizes=(5, 0, 3)) -> FeatureStore:
    store = FeatureStore.create(path, [spec], config={}, shards=len(sizes))
    starts = np.cumsum([0, *sizes])
    for index, size in enumerate(sizes):
        store.write_shard(index, make_rows(size, 100 * index), states[starts[index] : starts[index + 1]])
    store.finish()
    return FeatureStore.open(path)


def draw_states(n: int, spec: FeatureSpec = EIGHT) -> np.ndarray:
    states = np.random.default_rng(1).standard_normal((n, len(spec.layers), spec.width)).astype(np.float32)
    states[:, :, 0] *= 5000
    return states


def test_a_store_reads_as_the_rounding_says_in_any_order(tmp_path: Path) -> None:
    states = draw_states(8)
    store = fill(tmp_path / "s", EIGHT, states)
    expected = as_stored(states, "fp8").numpy()
    assert not np.array_equal(expected, states)
    reader = store.reader((5, 0))
    assert reader.dtype == np.float32 and reader[[0]].dtype == np.float32 and reader[[0]].flags.writeable
    np.testing.assert_array_equal(store.states(EIGHT.layers), expected)
    for rows in ([7, 1, 1, 4], slice(None, None, -1), slice(2, 7), [], [6]):
        np.testing.assert_array_equal(reader[rows], expected[rows][:, [2, 0]])
    np.testing.assert_array_equal(store.layer(2), expected[:, 1])
    assert store.to_datasets([2]).with_format("numpy")["layer.2"][3] == pytest.approx(expected[3, 1])
    assert store.read_shard(1)[1][0].shape == (0, 3, 8)


def test_it_is_half_of_float16_on_the_disk_and_any_library_reads_it(tmp_path: Path) -> None:
    wide = replace(EIGHT, model=replace(EIGHT.model, width=512), width=512)
    states = draw_states(40, wide)
    sizes = {}
    for dtype in ("fp8", "float16"):
        fill(tmp_path / dtype, replace(wide, dtype=dtype), states, (40,))
        sizes[dtype] = (tmp_path / dtype / "shards/00000.safetensors").stat().st_size
    scales, header = 40 * 3 * 4, 400
    assert sizes["float16"] / 2 < sizes["fp8"] < sizes["float16"] / 2 + scales + header
    half = load_file(tmp_path / "float16/shards/00000.safetensors")  # as older versions wrote it
    assert set(half) == {f"layer.{k}" for k in wide.layers}
    np.testing.assert_array_equal(FeatureStore.open(tmp_path / "float16").layer(2), half["layer.2"].numpy())
    tensors = load_file(tmp_path / "fp8/shards/00000.safetensors")
    assert tensors["layer.2"].dtype == torch.float8_e4m3fn and tensors["scale"].shape == (40, 3)
    for column, layer in enumerate(wide.layers):
        by_hand = tensors[f"layer.{layer}"].float() * tensors["scale"][:, column, None]
        np.testing.assert_array_equal(by_hand.numpy(), FeatureStore.open(tmp_path / "fp8").layer(layer))


def test_a_shard_that_is_read_and_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    """As the parts of an unfinished shard are, and a shard that is thinned out."""
    store = fill(tmp_path / "s", EIGHT, draw_states(8))
    other = FeatureStore.create(tmp_path / "t", [EIGHT], config={}, shards=3)
    for index in range(3):
        rows, states, units, left_out = store.read_shard(index)
        other.write_shard(index, rows, *states, units=units, left_out=left_out)
    other.finish()
    for name in ("shards/00000.safetensors", "shards/00002.safetensors", "manifest.json"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "t" / name).read_bytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**127])
def test_what_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    states = draw_states(8)
    fill(tmp_path / "a", EIGHT, np.minimum(states * 1e30, 1e38))  # beyond float16, and no harm
    states[1, 2, 3] = value
    with fails("bad-value", "q1 at layer 5", "fp8", kind=RunError):
        fill(tmp_path / "s", EIGHT, states)


def test_merged_stores_of_it_are_one_store(tmp_path: Path) -> None:
    states = draw_states(8)
    fill(tmp_path / "a", EIGHT, states[:5], (5,))
    fill(tmp_path / "b", EIGHT, states[5:], (0, 0, 3))
    merged = FeatureStore.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    np.testing.assert_array_equal(merged.states(EIGHT.layers), as_stored(states, "fp8").numpy())


@pytest.mark.parametrize(("change", "reason"), [
    (lambda h: h["scale"].update(shape=[3, 2]), "'shape': [3, 2]"),
    (lambda h: h["scale"].update(dtype="I32"), "'dtype': 'I32'"),
    (lambda h: h["layer.2"].update(dtype="F8_E5M2"), "F8_E5M2"),
    (lambda h: h.update(scalf=h.pop("scale")), "scale is None"),
])  # fmt: skip
def test_damaged_scales_are_named(tmp_path: Path, change: Any, reason: str) -> None:
    fill(tmp_path / "s", EIGHT, draw_states(8))
    file = tmp_path / "s/shards/00002.safetensors"
    file.write_bytes(with_header(file.read_bytes(), change))
    store = FeatureStore.open(tmp_path / "s", checksums=False)
    with fails("damaged", "shards/00002.safetensors", reason):
        store.layer(2)


def test_heads_are_trained_on_it_and_know_how_their_states_are_rounded(tmp_path: Path) -> None:
    aurocs = {}
    for dtype in ("float16", "fp8"):
        store = planted.make_store(tmp_path / dtype, spec=replace(planted.SPEC, dtype=dtype))
        out = tmp_path / f"prober-{dtype}"
        options = ["epochs=2", "resamples=200", "learning_curve=false", "head.hidden=24", "lr=0.003"]
        cli.run("train", [f"data={store.path}", "layer=2", f"out={out}", *options])
        bank = Prober.from_pretrained(out)
        assert bank.spec.dtype == dtype
        test = np.flatnonzero(store.table()["split"] == "test")
        wrong = 1 - store.table()["correct"].to_numpy()[test]
        aurocs[dtype] = roc_auc_score(wrong, bank.score_states(store.states(bank.layers, test)))
        figures = json.loads((out / "metrics.json").read_text())
        assert figures["ensemble"]["auroc"] == pytest.approx(aurocs[dtype], abs=1e-9)
    assert aurocs["fp8"] > 0.7 and abs(aurocs["fp8"] - aurocs["float16"]) < 0.02
