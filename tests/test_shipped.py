"""The prober that comes with the package: found by its model's name, small, and about nobody's machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from refusals import fails

from probers.bank.bank import ProbeBank
from probers.bank.io import FILES, locate, shipped
from probers.commands.compose import compose
from probers.commands.inputs import find_prober
from probers.rag.triggers import Probing

FOLDER = Path(__file__).parents[1] / "probers" / "bank" / "shipped" / "smollm2"


def test_it_is_found_by_its_models_name_unless_a_folder_has_it(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert shipped("smollm2") == "smollm2" and locate("smollm2") == FOLDER
    assert shipped("testbed") is None and shipped("../shipped/smollm2") is None and shipped("") is None
    cfg = compose("rag", ["model.name=smollm2"])
    for kind in ("answers", "tokens"):
        assert find_prober(cfg, kind) == "smollm2"
        assert "prober: smollm2 (comes with probers" in caplog.text
        caplog.clear()
    for asked in ((cfg, "entities"), (compose("rag", []),)):
        with fails("no-artifact"):
            find_prober(*asked)
    (tmp_path / "smollm2").mkdir()
    assert locate("smollm2") == Path("smollm2")


def test_it_scores_tokens_and_is_a_trigger():
    bank = ProbeBank.from_pretrained("smollm2")
    assert bank.spec.pool == "tokens" and bank.spec.model.id == "smollm2" and bank.spec.width == 576
    assert len(bank.layers) <= 3 and bank.recogniser == "auto" and bank.seen is not None
    states = np.random.default_rng(0).normal(size=(5, len(bank.layers), 576)).astype(np.float32)
    scores = bank.score_spans(states, [(0, 2), (1, 5)])
    chances = bank.probability(scores)
    assert np.isfinite(scores).all() and chances.min() > 0 and chances.max() < 1
    assert Probing("smollm2").record["threshold"] == bank.threshold
    assert bank.metrics and "# " in bank.card


def test_it_is_small_and_says_nothing_of_a_machine():
    files = list(FOLDER.rglob("*"))
    assert {file.name for file in files} <= set(FILES)
    assert sum(file.stat().st_size for file in files) <= 3_000_000
    for text in (file.read_text() for file in files if file.suffix != ".safetensors"):
        assert not any(word in text for word in ("/tmp", "/work", "/home", "/root"))
