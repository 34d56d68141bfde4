"""Adapters below a head: they leave the model as it is when off, learn, are limited, saved and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from artefacts import contents
from refusals import fails
from tiny import save_tiny, tiny_path

from probers.bank.bank import ProbeBank
from probers.commands import main as cli
from probers.engine import adapters
from probers.engine.model import CausalLM
from probers.store.joined import by_site
from probers.store.store import FeatureStore
from probers.train.data import Dataset
from probers.train.lora.adapted import AdaptedModel
from probers.train.lora.options import Lora
from probers.train.lora.texts import load_model, passes, read_texts, source_of
from probers.commands.settings import TextFile
from probers.train.module import ProberModule

LAYER = 2


def line(n: int) -> dict[str, Any]:
    """A text whose last word is wrong where two words of the prompt are of different kinds."""
    first, second = n // 2 % 2, n // 3 % 2
    prompt = f"Question {n}: the {('river', 'town')[first]} and the {('mill', 'mayor')[second]}?\nAnswer:"
    span = {"start": 5, "end": 11, "wrong": first != second}
    split = ("train", "train", "train", "validation", "test")[n % 5]
    return {"id": str(n), "prompt": prompt, "answer": " the mother", "spans": [span], "group": f"g{n}",
            "split": split}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lora") / "texts.jsonl"
    path.write_text("".join(json.dumps(line(n)) + "\n" for n in range(240)))
    return path


@pytest.fixture(scope="module")
def store(file: Path) -> FeatureStore:
    typed = ["source=texts", f"texts={file}", f"model={tiny_path()}", "model.dtype=float32", "pool=tokens"]
    return FeatureStore.open(cli.run("datagen", [*typed, f"out={file.parent / 'store'}", "limit=null"]))


QUICK = (
    f"layer={LAYER}", "head=lora", "epochs=8", "checks=1", "batch_size=16", "lr=0.01", "head.lr=0.01", "head.dropout=0.1",
    "head.rank=4", "head.kl_limit=null", "head.lambda_kl=0.01", "loss=span_max", "resamples=100", "device=cpu",
)  # fmt: skip


def train(store: FeatureStore, out: Path, *typed: str) -> ProbeBank:
    return ProbeBank.from_pretrained(cli.run("train", [f"data={store.path}", f"out={out}", *QUICK, *typed]))


@pytest.fixture(scope="module")
def bank(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> ProbeBank:
    return train(store, tmp_path_factory.mktemp("p") / "prober")


def test_debug(bank):
    print(json.dumps(bank.metrics["adapter"], indent=1), bank.metrics["ensemble"]["auroc"], bank.metrics["controls"]["no adapter"])
