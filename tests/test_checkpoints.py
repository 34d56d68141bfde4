"""Checkpoints with missing weights, or with other things in the place of their files, are refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import tiny_path
from safetensors.torch import load_file, save_file

from probers.model.causal_lm import CausalLM
from probers.model.loading import Loading
from probers.model.vllm import lm as vllm_lm
from probers.model.vllm.lm import VllmLM
from probers.prober.prober import Prober

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 11228032\n"
HTML = b"\n<!DOCTYPE html><html><head><title>Sign in</title></head></html>"


def load(folder: Path | str, **options: Any) -> CausalLM:
    return CausalLM.from_pretrained(str(folder), device="cpu", dtype="float32", **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny Llama, to be damaged."""
    return Path(shutil.copytree(tiny_path("llama"), tmp_path / "model"))


def change(folder: Path, rename: Callable[[str], str | None]) -> None:
    """Write the weights under other names, without those that have none."""
    old = load_file(folder / WEIGHTS)
    new = {name: tensor for key, tensor in old.items() if (name := rename(key)) is not None}
    save_file(new, folder / WEIGHTS, {"format": "pt"})


def configure(folder: Path, **options: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | options))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "net.0."])
def test_weights_under_another_prefix_are_named_with_it(folder, prefix):
    change(folder, lambda name: prefix + name)
    with fails("model", "30 of its 30 weights", "the first model.embed_tokens.weight", f"take {prefix} off"):
        load(folder)


@pytest.mark.parametrize(("rename", "options", "named"), [
    (lambda n: None if ".layers.1." in n else n, {}, ["9 of its 30", "model.layers.1."]),
    (lambda n: None if n == "lm_head.weight" else n, {}, ["1 of its 30", "the first lm_head.weight"]),
    (lambda n: n, {"num_hidden_layers": 5}, ["18 of its 48", "model.layers.3."]),
    (lambda n: n, {"intermediate_size": 64}, ["9 weights of another", "[32, 48] in place of [32, 64]"]),
    (lambda n: n, {"model_type": "gpt2", "architectures": None}, ["another model or layout"]),
    (lambda n: None, {}, ["30 of its 30", "none at all"]),
    (lambda n: n, {"hidden_size": "32"}, ["config.json", "expected int, got str"]),
    (lambda n: n, {"hidden_act": "odd"}, ["'odd'", "config.json"]),
])  # fmt: skip
def test_missing_weights_are_refused_with_their_number_and_the_first(folder, rename, options, named):
    change(folder, rename)
    configure(folder, **options)
    with fails("model", *named):
        load(folder)


@pytest.mark.parametrize("damage", ["block", "shape", "none", "quantised"])
def test_weights_are_counted_before_vllm_starts(folder, monkeypatch, damage):
    """vLLM is never started for a folder that our own engine refuses, and is for a whole one."""
    if damage == "block":
        change(folder, lambda n: None if ".layers.1." in n else n)
    if damage == "shape":
        configure(folder, intermediate_size=64)
    if damage == "quantised":  # whose weights vLLM lays out itself
        configure(folder, num_hidden_layers=5, quantization_config={"quant_method": "fp8"})
    monkeypatch.setattr("probers.options.find_spec", lambda name: name)
    started: list[Any] = []
    monkeypatch.setattr(vllm_lm, "_start", lambda *given: started.append(given))
    part = partial(VllmLM._load, str(folder), None, "auto", Loading(device="cpu", dtype="float32"))
    if damage in ("none", "quantised"):
        _, (empty, *_) = part()
        assert empty.device.type == "meta" and len(started) == 1
        return
    with fails("model") as ours:
        load(folder)
    with fails("model") as theirs:
        part()
    assert str(theirs.value) == str(ours.value) and not started


def test_a_tied_head_and_old_buffers_are_not_missing_and_extra_weights_are_told_once(folder, caplog):
    """Claim: what is not used is a note; converse: a whole checkpoint, and a tied one, say nothing."""
    whole_one = load(folder)
    configure(folder, tie_word_embeddings=True)
    change(folder, lambda name: None if name == "lm_head.weight" else name)
    tied = load(folder)
    assert "note:" not in caplog.text
    assert torch.equal(tied.model.lm_head.weight, whole_one.model.model.embed_tokens.weight)
    configure(folder, num_hidden_layers=2)
    assert load(folder).num_layers == 2
    (note,) = [r.getMessage() for r in caplog.records if r.name.startswith("probers")]
    assert "9 weights" in note and "model.layers.2." in note


def sharded(folder: Path, *, left_out: str = "") -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {}
    for i in (1, 2):
        half, name = dict(list(tensors.items())[i - 1 :: 2]), f"model-0000{i}-of-00002.safetensors"
        save_file(half, folder / name, {"format": "pt"})
        places |= dict.fromkeys(half, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    if left_out:
        (folder / left_out).unlink()


def stub(name: str, blob: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(blob)


def lora(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')


def code(folder: Path) -> None:
    configure(folder, model_type="odd", auto_map={"AutoConfig": "x.X", "AutoModelForCausalLM": "x.Y"})
    (folder / "x.py").write_text("raise SystemExit('this was run')")


def nested(folder: Path) -> None:
    inner = folder / "checkpoint-500"
    inner.mkdir()
    for file in [f for f in folder.iterdir() if f.is_file()]:
        file.rename(inner / file.name)


@pytest.mark.parametrize(("damage", "named"), [
    (stub(WEIGHTS, LFS), [WEIGHTS, "git lfs pull"]),
    (stub(WEIGHTS, b"\x80\x02}q\x00." * 9), [WEIGHTS, "no safetensors file"]),
    (lambda f: stub(WEIGHTS, (f / WEIGHTS).read_bytes()[:-100])(f), [WEIGHTS, "cut off"]),
    # transformers takes these two as they are, or leaves them out in silence
    (stub("chat_template.jinja", LFS), ["chat_template.jinja", "git lfs pull"]),
    (stub("generation_config.json", HTML), ["generation_config.json", "HTML page"]),
    (lambda f: sharded(f, left_out="model-00002-of-00002.safetensors"),
     ["lacks 1 of the 2 files", "model-00002-of-00002.safetensors"]),
    (lambda f: sharded(f, left_out=INDEX), [INDEX]),
    *((lambda f, blob=blob: (sharded(f), stub(INDEX, blob)(f)), [INDEX, named]) for blob, named in (
        (b'{"weight_map": {"x": null}}', "damaged"), (b'{"weight_map": {}}', "names no files"),
    )),
    (stub("config.json", b"null"), ["config.json", "null"]),
    (stub("special_tokens_map.json", "é".encode("latin-1")), ["special_tokens_map.json", "not JSON"]),
    (lambda f: (f / WEIGHTS).rename(f / "weights.safetensors"), [WEIGHTS, "weights.safetensors"]),
    (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), ["model.use_safetensors=false"]),
    (lambda f: (lora(f), (f / "config.json").unlink()), ["model=owner/base", "model.adapter="]),
    (lambda f: ((f / "config.json").unlink(), stub("a.gguf", b"GGUF")(f)), ["model.gguf=a.gguf"]),
    (lambda f: (f / "config.json").unlink(), ["no config.json", WEIGHTS]),
    (nested, ["checkpoint-500"]), (code, ["model.trust_remote_code=true"]),
    (lambda f: (f / "tokenizer.json").unlink(), ["no tokenizer"]),
])  # fmt: skip
def test_a_folder_that_is_no_whole_model_says_what_is_wrong_with_it(folder, damage, named):
    damage(folder)
    with fails("model", f"model={folder}", *named):
        load(folder)


def test_a_whole_folder_of_several_files_is_loaded_and_what_is_not_read_may_be_anything(folder):
    sharded(folder)
    stub("training_args.bin", LFS)(folder)
    stub("consolidated.safetensors", LFS)(folder)
    assert load(folder).num_layers == 3


@pytest.mark.parametrize(("name", "near"), [("SmolLM2", "smollm2"), ("tesbed", "testbed")])
def test_a_misspelt_model_is_answered_with_the_nearest_without_the_network(name, near, monkeypatch):
    monkeypatch.setattr("httpx.Client.send", lambda *_, **__: pytest.fail("the network was asked"))
    with fails("no-file", f"model={name}", f"did you mean {near}?"):
        load(name)


@pytest.mark.parametrize(("name", "near"), [("smollm2-cat", "did you mean smollm2-chat?"), ("x", "")])
def test_a_misspelt_prober_is_answered_with_those_that_come_with_the_package(name, near):
    with fails("no-artifact", "smollm2, smollm2-chat", near):
        Prober.from_pretrained(name)
