"""Adapters below a head: they leave the model as it is when off, learn, are limited, saved and refused."""

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.artefacts import harm, write_lines
from helpers.refusals import fails
from helpers.tiny import tiny_path
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from probers.cli import main as cli
from probers.cli.settings import TextFile
from probers.model import adapters
from probers.model.blocks import decoder_layers
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.rag.triggers import Radio
from probers.store.store import FeatureStore
from probers.train import fit
from probers.train.data import Dataset
from probers.train.methods.adapted import AdaptedModel, Lora, StoredText
from probers.train.methods.lora import load_model, read_texts, source_of

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers, of what peft reads

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
def file(tmp_path_factory):
    return Path(write_lines(tmp_path_factory.mktemp("lora") / "texts.jsonl", map(line, range(240))))


def store_of(file: Path, out: Path, *typed: str) -> FeatureStore:
    """What the tiny model's states of texts are stored as."""
    model = [f"model={tiny_path()}", "model.dtype=float32"]
    return FeatureStore.open(
        cli.run("datagen", ["source=texts", f"texts={file}", f"out={out}", *model, *typed])
    )


@pytest.fixture(scope="module")
def store(file):
    return store_of(file, file.parent / "store", "pool=tokens", "limit=null")


QUICK = (
    f"layer={LAYER}", "epochs=4", "checks=1", "batch_size=16", "lr=0.01", "loss=span_max", "resamples=100",
    "device=cpu", "domain=0.1",
)  # fmt: skip
LORA = (
    "head=lora", "head.lr=0.01", "head.dropout=0.1", "head.rank=4", "head.start_epochs=4",
    "head.kl_limit=null", "head.lambda_kl=0.01",
)  # fmt: skip


def train(store: FeatureStore, out: Path, *typed: str) -> Prober:
    arguments = [f"data={store.path}", f"out={out}", *QUICK, *(typed or LORA)]
    return Prober.from_pretrained(cli.run("train", arguments))


@pytest.fixture(scope="module")
def bank(store, tmp_path_factory):
    return train(store, tmp_path_factory.mktemp("prober") / "lora")


def adapted_model(store: FeatureStore, **options: Any) -> tuple[AdaptedModel, list[StoredText]]:
    lm, examples = load_model(store, "cpu"), Dataset.load([store], LAYER).examples
    texts = read_texts(store, examples, source_of(store, TextFile()), lm.tokenizer)
    return AdaptedModel(lm, LAYER, Lora(**options), 0), texts


def noisy(adapted: AdaptedModel) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in adapted.tensors.items():
            if "lora_B" in name:
                value.copy_(0.3 * torch.randn(value.shape, generator=generator))


def test_adapters_learn_what_the_states_do_not_carry(bank):
    """Claim: with adapters the head learns it; converse: the same head on the frozen states does not."""
    figures = bank.metrics
    assert figures["ensemble"]["auroc"] > 0.95 and figures["controls"]["no adapter"]["auroc"] < 0.75
    assert figures["pairs"]["all layers vs no adapter"]["auroc"]["ci95"][0] > 0.1
    adapter = figures["adapter"]
    assert adapter["kept"] and adapter["kl"] > 0 and adapter["kl_ci"][0] < adapter["kl"] < adapter["kl_ci"][1]
    assert adapter["perplexity"]["with"] > adapter["perplexity"]["without"] > 1
    assert "/tmp" not in (bank.adapter / "adapter_config.json").read_text()


def test_new_and_switched_off_adapters_leave_the_model_as_it_is(store):
    """The divergence is 0 exactly, not nearly; converse: with other weights, switched on, it is not."""
    plain = load_model(store, "cpu")
    adapted, texts = adapted_model(store)
    some = texts[:5]
    read = adapted.read(some, divergence=True)
    assert (read.divergence == 0).all() and adapted.lm.spec.same_as(plain.spec)
    noisy(adapted)
    changed = adapted.read(some, divergence=True)
    assert (changed.divergence[changed.mask] > 1e-4).all() and not torch.equal(changed.states, read.states)
    ids = torch.tensor([some[0].prompt.ids + some[0].ids])
    with adapters.switched_off(adapted.lm.model), torch.no_grad():
        assert torch.equal(adapted.lm.model(ids).logits, plain.model(ids).logits)
        assert adapters.active_digest(adapted.lm.model) == ""
    assert adapters.active_digest(adapted.lm.model)
    # KL(base || adapted) from its definition.
    with torch.no_grad():
        p, q = (m(ids).logits[0, -1 - len(some[0].ids) : -1].double().softmax(-1) for m in
                (plain.model, adapted.lm.model))  # fmt: skip
    expected = (p * (p.log() - q.log())).sum(-1)
    np.testing.assert_allclose(changed.divergence[0][changed.mask[0]].detach(), expected, rtol=1e-3)


def test_only_adapters_below_the_head_are_trained(store):
    adapted, texts = adapted_model(store)
    noisy(adapted)
    layers = {int(re.search(r"layers\.(\d+)\.", name)[1]) for name in adapted.tensors}
    parts = {name.split(".")[-3] for name in adapted.tensors}
    assert layers == {0, 1}
    assert parts == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    read = adapted.read(texts[:3], divergence=True)
    (read.states.sum() + read.divergence.sum()).backward()
    ids = {id(value) for value in adapted.tensors.values()}
    with_gradient = {id(p) for p in adapted.lm.model.parameters() if p.grad is not None}
    assert with_gradient == ids


def test_scores_equal_those_of_plain_peft(bank, store):
    """Head and adapters in this package, and in transformers with peft and a forward hook."""
    from peft import PeftModel

    text = line(4)
    lm = CausalLM.from_pretrained(str(tiny_path()), dtype="float32", device="cpu", adapter=bank.adapter)
    bank.check_model(lm.spec)
    (read,) = lm.score([text["prompt"]], [text["answer"]], needs=bank.needs)
    ours = bank.score_states(read.state)
    base = AutoModelForCausalLM.from_pretrained(tiny_path(), dtype=torch.float32)
    model = PeftModel.from_pretrained(base, bank.adapter).eval()
    hidden: list[torch.Tensor] = []
    hook = decoder_layers(base)[LAYER - 1].register_forward_hook(lambda m, a, out: hidden.append(
        out[0] if isinstance(out, tuple) else out))  # fmt: skip
    with torch.no_grad():
        model(torch.tensor([read.prompt_ids + read.token_ids]))
    hook.remove()
    states = hidden[0].reshape(-1, hidden[0].shape[-1])[-len(read.token_ids) :, None]
    np.testing.assert_allclose(bank.score_states(states), ours, atol=1e-4)
    with bank.watch(model):
        pass
    plain = AutoModelForCausalLM.from_pretrained(tiny_path(), dtype=torch.float32)
    with fails("mismatch", "adapter"):
        bank.watch(plain)
    with adapters.switched_off(model), fails("mismatch", "adapter"):
        bank.watch(model)


def test_states_with_and_without_adapters_are_told_apart(bank, store, file, tmp_path):
    with fails("mismatch", "model.adapter"):
        bank.spec.check(store.spec)
    again = store_of(file, tmp_path / "s", "pool=tokens", f"model.adapter={bank.adapter}", "limit=60")
    bank.spec.check(again.spec)
    with fails("mismatch", "model.adapter"):
        bank.check_model(load_model(store, "cpu").spec)


@pytest.mark.long
def test_adapters_above_the_limit_are_not_kept(store, tmp_path):
    """Within a limit what is kept obeys it; where nothing does, the prober is that of head=linear."""
    limit = 0.1
    within = train(
        store, tmp_path / "a", *LORA[:5], f"head.kl_limit={limit}", "head.lambda_kl=0.5", "epochs=6"
    )
    adapter = within.metrics["adapter"]
    assert adapter["kept"] and adapter["validation"]["kl"] <= limit
    none = train(store, tmp_path / "b", *LORA[:5], "head.kl_limit=0", "head.lambda_kl=0")
    linear = train(store, tmp_path / "c", "head=linear")
    assert none.adapter is None and not none.metrics["adapter"]["kept"] and none.spec == linear.spec
    assert any("kl_limit=0" in note for note in none.metrics["notes"])
    heads = [(tmp_path / name / "heads.safetensors").read_bytes() for name in "bc"]
    assert heads[0] == heads[1] and not (tmp_path / "b/adapter").exists()


def test_a_prober_is_saved_with_its_adapter(bank, tmp_path):
    bank.save_pretrained(tmp_path / "copy")
    again = Prober.from_pretrained(tmp_path / "copy")
    assert again.adapter == tmp_path / "copy/adapter" and again.spec == bank.spec
    assert adapters.digest_of(again.adapter)[:12] == again.spec.model.adapter
    assert Radio(again).adapter == again.adapter  # a trigger puts it in
    harm(again.adapter / "adapter_model.safetensors")
    with fails("damaged", "adapter"):
        Prober.from_pretrained(tmp_path / "copy")


def test_what_cannot_be_trained_is_refused(store, file, bank, tmp_path, monkeypatch):
    def refuse(code: Any, named: str, *typed: str, data: FeatureStore = store) -> None:
        with fails(code, named):
            train(data, tmp_path / "p", "head=lora", *typed)
        assert not (tmp_path / "p").exists()

    table = store.table()
    with monkeypatch.context() as otherwise:  # every token of the store begins elsewhere
        otherwise.setattr(FeatureStore, "table", lambda self: table.assign(cut_at=table["cut_at"] + 1))
        refuse("mismatch", str(store.path))
    # Other answers, and a store whose texts are gone.
    lines = (line(n) | {"answer": " of a mother"} for n in range(240))
    refuse("mismatch", "lacks the text", f"texts={write_lines(tmp_path / 'others.jsonl', lines)}")
    gone = Path(shutil.copy(file, tmp_path / "texts.jsonl"))
    moved = store_of(gone, tmp_path / "s", "pool=tokens", "limit=60")
    gone.unlink()
    refuse("missing-value", "texts=FILE", data=moved)
    refuse("mismatch", "pool=tokens", data=store_of(file, tmp_path / "m", "limit=60"))
    with fails("missing-value", "head=lora", "out="):
        fit(store, head="lora", layers=LAYER)
    # A model that is another one now, adapters of another model, and no peft.
    load = partial(CausalLM.from_pretrained, device="cpu", adapter=bank.adapter)
    with fails("mismatch", "the prober came from"):
        bank.check_model(load(str(tiny_path(seed=1)), dtype="float32").spec)
    with fails("mismatch", "adapter="):
        load(str(tiny_path("gpt2")))
    monkeypatch.setattr("probers.options.find_spec", lambda name: None)
    refuse("missing-extra", "probers[lora]")


@pytest.mark.parametrize(("layers", "named"), [((0, 1), "layers.2."), ((0, 1, 2), "")])
def test_an_adapter_is_put_in_whole_or_refused(tmp_path, layers, named):
    """Claim: places without a tensor are refused; converse: a whole set fits."""
    lm = CausalLM.from_pretrained(str(tiny_path()), dtype="float32")
    adapters.add(lm.model, r=2, lora_alpha=4, target_modules=["q_proj"])
    adapters.save(lm.model, tmp_path, "tiny")
    tensors = load_file(tmp_path / adapters.WEIGHTS)
    changed = {n: t + 0.5 for n, t in tensors.items() if any(f".{k}.self_attn." in n for k in layers)}
    save_file(changed, tmp_path / adapters.WEIGHTS)
    if named:
        with fails("mismatch", f"adapter={tmp_path}", "2 tensors", named):
            CausalLM.from_pretrained(str(tiny_path()), dtype="float32", adapter=tmp_path)
    else:
        adapted = CausalLM.from_pretrained(str(tiny_path()), dtype="float32", adapter=tmp_path)
        assert adapters.active_digest(adapted.model) == adapters.digest_of(tmp_path)
