"""One thread, blank pictures, runs that tests share, and a store with a planted signal."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helpers.artefacts import Artefacts

    from probers import CausalLM
    from probers.store.store import FeatureStore
    from probers.train.examples import Examples

# The models here are so small that threads cost more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Caches of tests stay out of the user's folder.
if "PROBERS_CACHE" not in os.environ:
    os.environ["PROBERS_CACHE"] = tempfile.mkdtemp(prefix="probers-cache-")
    atexit.register(shutil.rmtree, os.environ["PROBERS_CACHE"], ignore_errors=True)
# Where there is no network, a model that does not exist is asked for again and again.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

with suppress(ImportError):  # the environment of vLLM's tests has none
    from hypothesis import settings

    settings.register_profile("probers", deadline=None)  # a loaded machine is no failure
    settings.load_profile("probers")


#: Files that take longest: begun first, so that at the end no process waits for another.
LONGEST = (
    "compare", "docs", "train", "presets", "wiki_labels", "parts", "judged", "labelled_texts",
    "launch", "benchmarks",
)  # fmt: skip

#: Files of tests of the engine, where memory that nobody has written is NaN.
FILLED = (
    "lm", "capture", "continuous", "features", "prefix", "pools", "serve", "lookback", "watch",
    "drafting", "stops",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # of pytest-xdist, which begins with the files of most tests


def pytest_collection_finish() -> None:
    gc.freeze()  # modules stay; without this they are looked through again and again
    gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)


@pytest.fixture(autouse=True)
def info_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Have ``caplog`` hold what commands show."""
    caplog.set_level(logging.INFO, "probers")


@pytest.fixture(scope="module", autouse=True)
def filled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have what reads memory before it was written fail, in the files named above."""
    if request.path.stem.removeprefix("test_") not in FILLED:
        yield
        return
    from helpers.pretended import fresh_memory_is_nan

    with fresh_memory_is_nan():
        yield


#: A PNG of one pixel.
BLANK = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a4944415478da63f80f00010101001cb08c990000000049454e44ae426082"
)


@pytest.fixture(scope="session", autouse=True)
def drawn() -> Iterator[dict[str, Callable[..., None]]]:
    """What lays a picture out and draws it; a blank one in its place saves most of the time of a training."""
    from matplotlib.figure import Figure

    drawn = {name: getattr(Figure, name) for name in ("draw_without_rendering", "savefig")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "draw_without_rendering", lambda figure: None)
        patch.setattr(Figure, "savefig", lambda figure, file, **options: Path(file).write_bytes(BLANK))
        yield drawn


@pytest.fixture(scope="session", autouse=True)
def unhurried() -> Iterator[None]:
    """Have no test wait for the disk, or for Hydra to copy every component's defaults for every command."""
    from hydra.core.config_store import ConfigStore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # a killed process loses nothing by it
        patch.setattr(ConfigStore, "__deepcopy__", lambda store, memo: store, raising=False)
        yield


@pytest.fixture
def pictures(drawn: dict[str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, draws in drawn.items():
        monkeypatch.setattr(f"matplotlib.figure.Figure.{name}", draws)


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    """Runs that the workers of a session share."""
    from helpers.artefacts import Artefacts

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "artefacts"
    folder.mkdir(exist_ok=True)
    return Artefacts(folder)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """A store with a planted signal, to be read only."""
    from helpers.planted import make_store

    return make_store(tmp_path_factory.mktemp("data") / "cot")


@pytest.fixture(scope="module")
def lm() -> CausalLM:
    """The testbed's model in single precision."""
    from probers import CausalLM

    return CausalLM.from_pretrained("testbed", dtype="float32")


@pytest.fixture(scope="session")
def examples(store: FeatureStore) -> Examples:
    from probers.train.examples import load_examples

    return load_examples([store])
