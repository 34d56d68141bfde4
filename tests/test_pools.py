"""``pool=[..] site=[..]``: one run and one store, each feature of which is the store it would be alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.refusals import fails

from probers import FeatureStore
from probers.cli import main as cli

COT = ["limit=16", "shard_size=16", "batch_size=16", "layers=[6,12]"]
WIKI = ["--source", "wiki", "limit=12", "shard_size=16", "batch_size=8", "layers=[6,12]"]


def made(out: Path, *arguments: str) -> FeatureStore:
    cli.run("datagen", [*arguments, f"out={out}"])
    return FeatureStore.open(out)


@pytest.fixture(scope="module")
def cot(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    out = tmp_path_factory.mktemp("cot") / "store"
    return made(out, *COT, "pool=[last,mean,prompt]", "site=[resid_post,mlp_out]")


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return made(tmp_path_factory.mktemp("single") / "store", *COT, "site=mlp_out")


def shards(path: Path, ending: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted(path.glob(f"shards/?????.{ending}"))]


def test_one_run_makes_what_several_would(cot: FeatureStore, single: FeatureStore) -> None:
    """The files are those of the run for one feature alone, whichever it is."""
    places = [(spec.pool, spec.site) for spec in cot.features]
    assert places == [(p, s) for p in ("last", "mean", "prompt") for s in ("resid_post", "mlp_out")]
    assert cot.feature(pool="mean", site="mlp_out").spec == single.spec and len(cot) == len(single) == 32
    assert shards(cot.path, "mean.mlp_out.safetensors") == shards(single.path, "safetensors")
    assert shards(cot.path, "parquet") == shards(single.path, "parquet")
    manifest = json.loads((single.path / "manifest.json").read_text())
    assert "more" not in manifest and manifest["config"]["pool"] == "mean"


@pytest.mark.parametrize("negatives", [pytest.param("generated", marks=pytest.mark.long), "untouched"])
def test_spans_of_articles_too(tmp_path: Path, negatives: str) -> None:
    arguments = [*WIKI, f"negatives={negatives}"]
    many = made(tmp_path / "m", *arguments, "pool=[predicting,mean]", "site=[resid_post,mlp_out]")
    for pool, site in (("predicting", "resid_post"), ("mean", "mlp_out")):
        one = made(tmp_path / f"{pool}-{site}", *arguments, f"pool={pool}", f"site={site}")
        read = many.feature(pool=pool, site=site)
        assert read.spec == one.spec and read.table().equals(one.table())
        np.testing.assert_array_equal(read.states(one.spec.layers), one.states(one.spec.layers))


TRAIN = ["head=linear", "batch_size=16", "resamples=100", "device=cpu", "learning_curve=false"]


def trained(data: str, out: Path, *arguments: str) -> list[bytes]:
    """What a training writes, but for what names the store and the time."""
    cli.run("train", [f"data={data}", f"out={out}", *TRAIN, *arguments])
    return [(out / name).read_bytes() for name in ("config.json", "heads.safetensors", "seen.json")]


def test_a_prober_of_one_of_several_features_is_that_of_a_store_of_it(cot, single, tmp_path, caplog):
    alone = trained(str(single.path), tmp_path / "alone")
    chosen = trained(str(cot.path), tmp_path / "chosen", "pool=mean", "site=mlp_out")
    assert chosen == alone and "others:" not in caplog.text
    for request, *named in (
        (["pool=tokens"], "pool=tokens", "pool=last site=resid_post, "),
        (["pool=mean", "site=[mlp_out,attn_out]"], "pool=mean site=attn_out"),
    ):
        with fails("missing-value", *named):
            trained(str(cot.path), tmp_path / "x", *request)
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_sites_of_one_store_are_trained_as_those_of_several(cot, single, tmp_path, caplog):
    post = made(tmp_path / "post", *COT)
    several = trained(f"[{post.path},{single.path}]", tmp_path / "several")
    assert trained(str(cot.path), tmp_path / "q", "pool=mean", "site=[resid_post,mlp_out]") == several
    assert "others:" not in caplog.text
    # Without a choice it is the first pool, which is said.
    first = trained(str(cot.path), tmp_path / "first", "site=resid_post")
    assert "pool=last is trained on, the first that" in caplog.text
    assert first == trained(str(cot.path), tmp_path / "last", "site=resid_post", "pool=last")
