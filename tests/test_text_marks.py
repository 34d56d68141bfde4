"""What makes and ends texts belongs to a model: another template or end token is refused in words."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.refusals import fails
from helpers.tiny import BOS, EOS, PAD, tiny_path

from probers.cli.compose import request as settings
from probers.cli.inputs import load_model
from probers.cli.runs import RunFolder
from probers.heads import LinearHead
from probers.model.causal_lm import CausalLM
from probers.prober.calibration import Platt
from probers.prober.prober import Prober
from probers.rag.build import check_one_model
from probers.store.spec import FeatureSpec, ModelSpec

CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny Llama with a chat template."""
    copied = Path(shutil.copytree(tiny_path("llama"), tmp_path / "model"))
    (copied / "chat_template.jinja").write_text(CHAT)
    return copied


def spec_of(folder: Path, **options: str) -> ModelSpec:
    return CausalLM.from_pretrained(str(folder), device="cpu", dtype="float32", **options).spec


def edit(folder: Path, name: str, **values: object) -> None:
    known = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(known | values))


@pytest.mark.parametrize(("change", "named"), [
    (lambda f: (f / "chat_template.jinja").write_text(CHAT.replace("<|", "[")), "another chat template"),
    (lambda f: (f / "chat_template.jinja").unlink(), "no chat template"),
    (lambda f: edit(f, "generation_config.json", eos_token_id=[0, 7]), f"other end tokens ({EOS} "),
    (lambda f: edit(f, "tokenizer_config.json", eos_token=PAD), "other end tokens"),
    (lambda f: edit(f, "tokenizer_config.json", bos_token=EOS), "other special tokens"),
])  # fmt: skip
def test_a_change_of_a_local_folder_is_named_in_words(folder, change, named):
    """Claim: stores and probers of both do not go together; converse: each fits itself."""
    before = spec_of(folder)
    change(folder)
    after = spec_of(folder)
    assert before.same_weights(after) and not before.same_as(after) and after.same_as(spec_of(folder))
    store = FeatureSpec(before, (1,), before.width)
    store.check_model(before)
    with fails("mismatch", "which now has", named):
        store.check(replace(store, model=after))
    bank = Prober(store, LinearHead(["1"], before.width), threshold=0.0, calibration=Platt(1, 0))
    bank.check_model(before)
    with fails("mismatch", named, "allow_other=true"):
        bank.check_model(after)
    replace(bank, allow_other=True).check_model(after)
    with fails("mismatch", named):
        check_one_model({"a": bank, "b": replace(bank, spec=replace(store, model=after))})


@pytest.mark.parametrize("part", [None, "1/2"])
def test_a_run_does_not_go_on_under_another_template(folder, tmp_path, part):
    typed = [f"model.name={folder}", "model.device=cpu", "questions=testbed", f"out={tmp_path / 'run'}"]
    given = settings("rag", typed + ([f"part={part}"] if part else []))
    run = RunFolder(tmp_path / "run", "rag", given.record)
    assert run.begin()
    load_model(given, run)
    load_model(given, run)
    (folder / "chat_template.jinja").write_text(CHAT + BOS)
    with fails("mismatch", "another chat template"):
        load_model(given, run)
