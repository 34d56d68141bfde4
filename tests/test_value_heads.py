"""probers-import and probers-export: equal to a forward hook, there and back, calibrated, refused by name."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.artefacts import write_lines
from helpers.refusals import fails
from helpers.tiny import tiny_lm, tiny_path
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from transformers import AutoModelForCausalLM, AutoTokenizer

from probers.cli import main as cli
from probers.data.texts.base import read_text
from probers.heads import LinearHead, Moments, ProbingRagHead
from probers.prober.calibration import Temperature
from probers.prober.decision import Ensemble, half_precision
from probers.prober.prober import Prober
from probers.prober.token_scores import text_needs, text_scores
from probers.prober.value_head import fold, read_value_head
from probers.score.exchange import judged
from probers.store.spec import FeatureSpec

WIDTH = 32
ON = ["model.device=cpu", "model.dtype=float32"]
WORDS = (
    "river", "Arl", "mouth", "near", "Kelby", "town", "born", "moved", "baker", "founded", "mill", "mayor",
)  # fmt: skip


def linear(seed: int = 0, scale: float = 1.0) -> torch.nn.Linear:
    torch.manual_seed(seed)
    made = torch.nn.Linear(WIDTH, 1)
    with torch.no_grad():
        for each in made.parameters():
            each.copy_((scale * each).half())
    return made


def written(folder: Path, tensors, layer_idx=1, **config) -> Path:
    """A probe as its project saves it."""
    folder.mkdir(parents=True)
    torch.save(tensors, folder / "probe_head.bin")
    about = {"target_layer_name": "LlamaDecoderLayer", "layer_idx": layer_idx, "hidden_size": WIDTH}
    (folder / "probe_config.json").write_text(json.dumps(about | config))
    return folder


def imported(probe: Path, out: Path, *typed: str) -> Prober:
    given = [str(probe), f"model={tiny_path('llama', 0)}", f"out={out}", "batch_size=8", *ON]
    cli.run("import", [*given, *typed])
    return Prober.from_pretrained(out)


class Hook:
    """Logits of a probe on the output of a block of the plain model, for all tokens of an answer."""

    def __init__(self, probe: torch.nn.Linear, layer_idx: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(tiny_path("llama", 0))
        self.model = AutoModelForCausalLM.from_pretrained(tiny_path("llama", 0), dtype=torch.float32)
        self.probe, self.found = probe, None
        self.model.model.layers[layer_idx].register_forward_hook(self._keep)

    def _keep(self, module, given, output) -> None:
        self.found = output[0] if isinstance(output, tuple) else output

    def of_ids(self, before, after) -> np.ndarray:
        with torch.no_grad():
            self.model(torch.tensor([[*before, *after]]))
            return self.probe(self.found)[0, len(before) :, 0].numpy()

    def __call__(self, prompt: str, answer: str):
        """Logits (n,) and characters of the tokens of an answer."""
        after = self.tokenizer(answer, return_offsets_mapping=True, add_special_tokens=False)
        return self.of_ids(self.tokenizer(prompt)["input_ids"], after["input_ids"]), after["offset_mapping"]


@pytest.mark.parametrize(
    ("layer_idx", "prefix", "dtype"), [(0, "", torch.float32), (2, "module.value_head.", torch.bfloat16)]
)
def test_imported_scores_equal_a_forward_hook(layer_idx, prefix, dtype, tmp_path):
    probe = linear().to(torch.bfloat16).float() if dtype == torch.bfloat16 else linear()
    tensors = {f"{prefix}{name}": value.to(dtype) for name, value in probe.state_dict().items()}
    bank = imported(written(tmp_path / "probe", tensors, layer_idx), tmp_path / "prober")
    assert (bank.layers, bank.spec.site, bank.spec.pool) == ((layer_idx + 1,), "resid_post", "tokens")
    assert (bank.threshold, bank.calibration, bank.aggregate) == (0.0, Temperature(1.0), "max")
    lm, hook = tiny_lm(dtype="float32"), Hook(probe, layer_idx)
    bank.check_model(lm.spec)
    for read in lm.score(["The river", "Who? "], ["Arl flows near Kelby", "Mira"], needs=text_needs(bank)):
        expected = hook.of_ids(read.prompt_ids, read.token_ids)
        scores = np.array(text_scores(bank, read.state)[0])
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(bank.probability(scores), torch.tensor(expected).sigmoid(), atol=1e-4)
    with fails("missing-value", tmp_path / "probe", "probers-import", "model="):
        Prober.from_pretrained(tmp_path / "probe")
    alone = Prober.from_pretrained(tmp_path, model=lm.spec, subfolder="probe")
    for name, value in bank.head.state_dict().items():
        torch.testing.assert_close(alone.head.state_dict()[name], value, rtol=0, atol=0)
    assert alone.spec == bank.spec


def test_there_and_back_is_the_same(tmp_path):
    probe = linear(3)
    written(tmp_path / "probe", probe.state_dict())
    imported(tmp_path / "probe", tmp_path / "prober")
    cli.run("export", [str(tmp_path / "prober"), f"out={tmp_path / 'again'}"])
    again = torch.load(tmp_path / "again/probe_head.bin", weights_only=True)
    for name, value in probe.state_dict().items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=0)
    assert json.loads((tmp_path / "again/probe_config.json").read_text()).items() >= {
        ("layer_idx", 1), ("hidden_size", WIDTH),
    }  # fmt: skip
    imported(tmp_path / "again", tmp_path / "prober2")
    for name in ("heads.safetensors", "config.json"):
        assert (tmp_path / "prober" / name).read_bytes() == (tmp_path / "prober2" / name).read_bytes()


@pytest.mark.parametrize("layer", [1, None])
def test_an_exported_head_has_its_standardisation_in_its_weights(layer, tmp_path):
    lm, layers = tiny_lm(dtype="float32"), (1, 3) if layer else (2,)
    head = LinearHead([f"layer{k}" for k in layers], WIDTH)
    states = torch.randn(200, len(layers), WIDTH, dtype=torch.float64) * 3 + 5
    none = torch.zeros(len(layers), 2, WIDTH).double()
    head.prepare(Moments(states.mean(dim=0), states.std(dim=0, correction=0), none))
    spec = FeatureSpec(lm.spec, layers, WIDTH, pool="tokens", dtype="float32")
    ensemble = Ensemble() if layer else Ensemble("stacked", (-0.5,), 0.75)
    bank = Prober(spec, half_precision(head), aggregate="max", ensemble=ensemble)
    bank.save_pretrained(tmp_path / "prober")
    out = cli.run("export", [str(tmp_path / "prober"), f"layer={layer or 'null'}", f"out={tmp_path / 'p'}"])
    exported = read_value_head(out, "p")
    assert exported.layer_idx == (layer or 2) - 1
    expected = bank.margins(states)[:, layers.index(layer)] if layer else bank.score_states(states)
    z = states[:, layers.index(layer or 2)].float() @ exported.weight + exported.bias
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-4)
    with fails("layers", "layer=2" if layer else "layer=1"):
        fold(bank.spec, bank.head, bank.ensemble, 2 if layer else 1)


def labelled(file: Path, count: int = 60) -> str:
    """Texts of which words are marked, right and wrong; the prober is wrong about some of them."""
    draw, hook, lines = random.Random(0), Hook(linear(), 1), []
    for number in range(count):
        words = draw.sample(WORDS, 6)
        prompt, answer = f"Text {number}:", " " + " ".join(words)
        logits, offsets = hook(prompt, answer)
        places = [(answer.index(word), answer.index(word) + len(word)) for word in words[::2]]
        highest = [score(logits, offsets, *place) for place in places]
        wrong = [bool(value + draw.gauss(0, 2.0) > 0.5) for value in highest]
        spans = [{"start": a, "end": b, "wrong": w} for (a, b), w in zip(places, wrong, strict=True)]
        split = ("train", "validation", "test")[number % 3]
        texts = {"id": str(number), "prompt": prompt, "answer": answer, "group": f"g{number}"}
        lines.append(texts | {"split": split, "spans": spans})
    return write_lines(file, lines)


def score(logits, offsets, start, end) -> float:
    return max(z for z, (a, b) in zip(logits, offsets, strict=True) if a < end and b > start)


def test_threshold_and_calibration_are_those_of_validation_spans(tmp_path):
    probe = written(tmp_path / "probe", linear().state_dict())
    file = labelled(tmp_path / "texts.jsonl")
    bank = imported(probe, tmp_path / "prober", f"texts={file}", "resamples=100")
    hook, spans = Hook(linear(), 1), {"validation": [], "test": []}
    for line in map(json.loads, Path(file).read_text().splitlines()):
        logits, offsets = hook(line["prompt"], line["answer"])
        for span in line["spans"] if line["split"] in spans else ():
            highest = score(logits, offsets, span["start"], span["end"])
            spans[line["split"]].append((span["wrong"], highest))
    (wrong, scores), (test_wrong, test_scores) = (np.array(spans[side]).T for side in spans)
    assert bank.metrics["splits"]["validation"]["n"] == len(wrong)
    assert bank.metrics["span"]["auroc"] == pytest.approx(roc_auc_score(test_wrong, test_scores), abs=1e-9)
    spread = scores.std()
    platt = LogisticRegression().fit((scores / spread)[:, None], wrong)
    expected = platt.predict_proba((test_scores / spread)[:, None])[:, 1]
    np.testing.assert_allclose(bank.probability(test_scores), expected, atol=2e-3)
    reached = balanced_accuracy_score(wrong, scores > bank.threshold)
    assert reached == max(balanced_accuracy_score(wrong, scores > edge) for edge in [-1e9, *scores])
    sides = [bank.seen.side("texts", f"g{number}", "") for number in range(6)]
    assert sides == ["", "validation", "test"] * 2
    other = imported(probe, tmp_path / "other", f"texts={file}", "threshold=budget=0.2", "resamples=100")
    assert other.threshold > np.quantile(scores, 0.7) and other.calibration == bank.calibration


def test_an_unmarked_answer_is_its_sentences_as_in_training(tmp_path):
    """Converse: a sentence that is marked as such is one span, and the rest of its answer is none."""
    offsets, scores = [(0, 4), (4, 9), (9, 13), (13, 18)], np.array([1.0, 2.0, 4.0, 3.0])
    line = {"answer": "The mill. The town.", "wrong": True}
    assert [span.score for span in judged(read_text(line, ""), offsets, scores)] == [2.0, 4.0]
    marked = line | {"sentences": [{"start": 0, "end": 9, "wrong": True}]}
    assert [span.score for span in judged(read_text(marked, ""), offsets, scores)] == [2.0]


class Code:
    """What runs where a pickle of it is read without care."""

    def __reduce__(self):
        return (Path.touch, (Path("ran"),))


STATE = linear().state_dict()
ROW = torch.zeros(1, WIDTH)
BAD = {
    "adapter": (STATE, {}, "unsupported", "adapter_model.safetensors"),
    "no config": (STATE, {}, "no-artifact", "probe_config.json"),
    "cut off": (STATE, {}, "damaged", "probe_head.bin"),
    "code": ({**STATE, "x": Code()}, {}, "damaged", "probe_head.bin"),
    "network": ({"net.0.weight": ROW, "net.0.bias": ROW[0], "net.2.weight": ROW, "net.2.bias": ROW[0]}, {},
                "unsupported", "net.0.weight"),
    "two outputs": ({"weight": ROW.repeat(2, 1), "bias": torch.zeros(2)}, {}, "bad-file", f"(2, {WIDTH})"),
    "infinite": ({**STATE, "weight": ROW / 0}, {}, "damaged", "probe_head.bin"),
    "large": ({**STATE, "weight": ROW + 1e6}, {}, "unsupported", "65504"),
    "list": ([ROW], {}, "damaged", "probe_head.bin"),
    "no bias": ({"weight": ROW}, {}, "unsupported", "weight"),
    "another size": (STATE, {"hidden_size": 8}, "bad-file", "(1, 8)"),
    "layer below": (STATE, {"layer_idx": -1}, "bad-file", "layer_idx=-1"),
    "layer as text": (STATE, {"layer_idx": "last"}, "bad-file", "layer_idx=last"),
    "layer beyond": (STATE, {"layer_idx": 3}, "layers", "layer_idx=3"),
    "another model": ({"weight": torch.zeros(1, 64), "bias": torch.zeros(1)}, {"hidden_size": 64}, "mismatch",
                      "width 64"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_probes_that_cannot_be_read_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors, config, code, named = BAD[name]
    probe = written(tmp_path / "probe", tensors, **config)
    match name:
        case "adapter":
            (probe / named).touch()
        case "no config":
            (probe / named).unlink()
        case "cut off":
            (probe / named).write_bytes((probe / named).read_bytes()[:200])
    with fails(code, named, probe):
        imported(probe, tmp_path / "prober")
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]


def test_what_is_no_linear_head_of_tokens_is_not_exported():
    spec = FeatureSpec(tiny_lm().spec, (1, 3), WIDTH, pool="tokens")
    head, other = LinearHead(["a", "b"], WIDTH), ProbingRagHead(["a", "b"], WIDTH, hidden=8)
    for given, code, named in (
        ((spec, other, Ensemble(), 1), "unsupported", "head=probing_rag"),
        ((replace(spec, pool="mean"), head, Ensemble(), 1), "unsupported", "pool=mean"),
        ((spec, head, Ensemble()), "missing-value", "1, 3"),
    ):
        with fails(code, named):
            fold(*given)
