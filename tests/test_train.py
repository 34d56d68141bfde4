"""Training on states with a planted signal: found where it is, absent where it is not."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probers.train.calibrate import (
    ThresholdRule,
    fit_entropy_model,
    fit_probability,
    fit_temperature,
)
from probers.train.controls import control_detectors
from probers.train.data import CHUNK, Examples, StoreStates, load_examples, moments, parse_layers
from probers.train.fit import FitSettings, Fitted, Task, fit, targets_of
from probers.train.module import ProberModule, head_losses
from sklearn.metrics import roc_auc_score

from probers import cli
from probers.bank import SIGNALS, ProbeBank
from probers.features import FeatureSpec, ModelSpec
from probers.heads import LinearHead, ProbingRagHead
from probers.reader import StateReader
from probers.runs import RunFolder
from probers.store import FeatureStore
from probers.types import RunError, UserError

WIDTH, DEPTH = 12, 3
SPEC = FeatureSpec(
    ModelSpec("testbed", "synthetic", DEPTH, WIDTH, "float32"), tuple(range(DEPTH + 1)), WIDTH, prompt="p"
)
#: Signal strength by layer: none in the embedding, most in layer 2.
STRENGTH = (0.0, 0.5, 1.5, 1.0)
small_head = partial(ProbingRagHead, hidden=24)
QUICK = FitSettings(batch_size=32, checks=2, epochs=4, lr=3e-3, device="cpu")


def make_rows(n: int, rng: np.random.Generator, correct: np.ndarray, person: np.ndarray) -> list[dict]:
    rows = []
    for i in range(n):
        group = i // 2
        entropy = float(abs(rng.normal(1.2 - 0.6 * correct[i], 0.6)))
        rows.append({
            "id": f"q{i}", "group": f"g{group}", "split": ("train", "train", "validation", "test")[group % 4],
            "correct": int(correct[i]), "dataset": "testbed",
            "condition": ("closed_book", "with_passages")[i % 2],
            "text": f"w{rng.integers(9)} {'sure' if rng.random() < 0.4 + 0.2 * correct[i] else 'maybe'}",
            "question": f"what {rng.integers(30)}", "answer": "ab"[i % 2] * (1 + i % 3), "gold": "b",
            "question_type": f"t{rng.integers(3)}", "answer_kind": "person" if person[i] else "town",
            "knowledge": "", "n_tokens": 3 + i % 3, "mean_entropy": entropy, "max_entropy": 2 * entropy,
            "min_prob": float(np.exp(-2 * entropy)), "mean_logprob": -entropy,
            "rind_max": entropy * float(rng.random()),
        })  # fmt: skip
    return rows


def make_store(path: Path, n: int = 1200, *, edit: Any = None, spec: FeatureSpec = SPEC) -> FeatureStore:
    rng = np.random.default_rng(0)
    correct, person = rng.integers(0, 2, n), rng.integers(0, 2, n)
    states = rng.standard_normal((n, DEPTH + 1, WIDTH))
    directions = np.linalg.qr(rng.standard_normal((WIDTH, 2)))[0].T
    states += np.array(STRENGTH)[:, None] * (2 * correct - 1)[:, None, None] * directions[0]
    states += 2.0 * (2 * person - 1)[:, None, None] * directions[1]
    rows = make_rows(n, rng, correct, person)
    rows = [edit(row) for row in rows] if edit else rows
    folder = RunFolder(path, "datagen", {"source": "cot"})
    folder.claim()
    store = FeatureStore.create(path, spec, config={"source": "cot"}, shards=1)
    columns = [k for k in range(DEPTH + 1) if k in spec.layers]
    store.write_shard(0, rows, states[:, columns].astype(np.float32))
    store.finish({"model": "testbed"})
    folder.finish({"model": "testbed"})
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_store(tmp_path_factory.mktemp("data") / "cot")


@pytest.fixture(scope="module")
def examples(store: FeatureStore) -> Examples:
    return load_examples(store)


def train(
    store: FeatureStore, examples: Examples, tasks: list[Task], head: Any = small_head, **changes: Any
) -> Fitted:
    layers = sorted({t.layer for t in tasks})
    states = torch.from_numpy(store.states(layers))
    return fit(head, tasks, states, layers, examples, replace(QUICK, **changes))


def aurocs(store: FeatureStore, examples: Examples, fitted: Fitted) -> dict[Task, float]:
    """Test AUROC of every head at finding class 0 of its own target."""
    rows = examples.rows["test"]
    states = torch.from_numpy(store.states([t.layer for t in fitted.tasks], rows)).float()
    logits = fitted.head(states).detach().numpy()
    targets = targets_of(fitted.tasks, examples, 0).numpy()[rows]
    margins = logits[..., 0] - logits[..., 1]
    return {t: roc_auc_score(1 - targets[:, i], margins[:, i]) for i, t in enumerate(fitted.tasks)}


@pytest.mark.parametrize("head", [small_head, LinearHead])
def test_the_signal_is_found_where_it_is_and_nowhere_else(
    store: FeatureStore, examples: Examples, head: Any
) -> None:
    tasks = [Task(0), Task(1), Task(2), Task(3), Task(2, "shuffled"), Task(2, "person")]
    lr = 3e-2 if head is LinearHead else 3e-3
    found = aurocs(store, examples, train(store, examples, tasks, head, lr=lr))
    assert 0.4 < found[Task(0)] < 0.6
    assert 0.65 < found[Task(1)] < found[Task(3)] < found[Task(2)]
    assert found[Task(2)] > 0.95 and found[Task(2, "person")] > 0.95
    assert 0.4 < found[Task(2, "shuffled")] < 0.6


def test_a_layer_trained_among_others_equals_one_trained_alone(
    store: FeatureStore, examples: Examples
) -> None:
    """Weights to float tolerance, with dropout on; converse: another seed gives another head."""
    together = train(store, examples, [Task(1), Task(2), Task(3), Task(2, "shuffled")], epochs=2)
    alone = train(store, examples, [Task(2)], epochs=2)
    other = train(store, examples, [Task(2)], epochs=2, seed=1)
    for name, value in alone.head.state_dict().items():
        torch.testing.assert_close(together.head.state_dict()[name][1:2], value, atol=1e-4, rtol=1e-3)
    assert alone.accuracy[0] == together.accuracy[1]
    assert not torch.allclose(other.head.linear1.weight, alone.head.linear1.weight, atol=1e-2)


def test_the_kept_state_is_the_best_one_seen(store: FeatureStore, examples: Examples) -> None:
    """A learning rate far too high makes later states worse; the kept one has the reported figures."""
    fitted = train(store, examples, [Task(2), Task(3)], lr=0.3, gamma=1.0, epochs=4, checks=6)
    rows = examples.rows["validation"]
    states = torch.from_numpy(store.states([2, 3], rows)).float()
    targets = targets_of(fitted.tasks, examples, 0)[rows]
    with torch.no_grad():
        logits = fitted.head(states)
    accuracy = (logits.argmax(dim=-1) == targets).double().mean(dim=0).numpy()
    np.testing.assert_allclose(accuracy, fitted.accuracy)
    np.testing.assert_allclose(head_losses(logits, targets).numpy(), fitted.loss, rtol=1e-4)


def test_nothing_is_kept_before_the_warm_up_is_over(
    store: FeatureStore, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    original = ProberModule.on_validation_epoch_end

    def spy(self: ProberModule) -> None:
        original(self)
        seen.append((self.trainer.current_epoch, bool(self.accuracy[0] >= 0)))

    monkeypatch.setattr(ProberModule, "on_validation_epoch_end", spy)
    train(store, examples, [Task(2)], epochs=2, checks=2, warmup_epochs=1)
    assert [kept for epoch, kept in seen if epoch == 0] == [False, False]
    assert [kept for epoch, kept in seen if epoch == 1] == [True, True]
    seen.clear()
    train(store, examples, [Task(2)], epochs=1, checks=2, warmup_epochs=1)
    assert seen and seen[-1][1]


def test_losses_by_hand_and_the_schedule_per_step(store: FeatureStore, examples: Examples) -> None:
    logits, targets = torch.randn(5, 2, 2), torch.randint(0, 2, (5, 2))
    p = logits.softmax(-1)
    picked = torch.gather(p, 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets), -picked.log().mean(0))
    again = torch.gather(p.softmax(-1), 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets, "double_softmax"), -again.log().mean(0))

    rates: list[float] = []
    original = ProberModule.training_step

    class Spy(ProberModule):
        def training_step(self, batch: Any, index: int) -> Any:
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
            return original(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("probers.train.fit.ProberModule", Spy)
        fitted = train(store, examples, [Task(2)], epochs=1, lr=1e-3, gamma=0.9)
    assert fitted.steps == len(rates) == -(-len(examples.rows["train"]) // QUICK.batch_size)
    np.testing.assert_allclose(rates, 1e-3 * 0.9 ** np.arange(len(rates)))


def test_a_loss_that_explodes_is_an_error(store: FeatureStore, examples: Examples) -> None:
    with pytest.raises(RunError, match="lower lr"):
        train(store, examples, [Task(2)], lr=1e38, epochs=1)


def test_ctrl_c_stays_a_keyboard_interrupt(
    store: FeatureStore, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProberModule, "training_step", interrupt)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(store, examples, [Task(2)])
    assert signal.getsignal(signal.SIGINT) is before


def leak(row: dict) -> dict:
    return row | ({"split": "test"} if row["id"] == "q0" else {})


def no_test(row: dict) -> dict:
    return row | ({"split": "train"} if row["split"] == "test" else {})


def one_class(row: dict) -> dict:
    return row | ({"correct": 1} if row["split"] == "validation" else {})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (leak, r"leaks: the group 'g0' is in test and train;"),
        (no_test, "has no test examples"),
        (one_class, r"only right texts among its \d+ validation examples"),
    ],
)
def test_data_that_would_prove_nothing_is_refused(tmp_path: Path, edit: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_examples(make_store(tmp_path / "s", 80, edit=edit))


def test_layers_asked_for() -> None:
    assert parse_layers("all", SPEC) == (1, 2, 3)
    assert parse_layers(2, SPEC) == (2,)
    assert parse_layers([3, 1, 3], SPEC) == (1, 3)
    for value, message in [
        (7, r"layer=7 is not in the features: they hold layers 0-3 of testbed, which has 3 layers"),
        (0, "embedding output, which is trained as a control"),
        ("deep", "layer=deep is not understood"),
        ([1, "x"], "is not understood"),
        ([], "names no layer"),
    ]:
        with pytest.raises(UserError, match=message):
            parse_layers(value, SPEC)


@pytest.mark.parametrize("rule", ["balanced_accuracy", "f1", "accuracy", "budget"])
def test_thresholds_are_the_best_there_are(rule: str) -> None:
    from probers import metrics as m

    rng = np.random.default_rng(0)
    for _ in range(8):
        scores = np.round(rng.standard_normal(60), 1)
        wrong = (scores + rng.standard_normal(60) > 0.5).astype(int)

        def quality(threshold: float, s: np.ndarray = scores, w: np.ndarray = wrong) -> float:
            fired = (s > threshold).astype(float)
            if rule == "budget":
                return -abs(fired.mean() - 0.3)
            metric = {"f1": m.f1_detection, "accuracy": m.accuracy, "balanced_accuracy": m.balanced_accuracy}[
                rule
            ]
            return float(metric(w, fired))

        chosen = ThresholdRule(rule, 0.3)(wrong, scores)
        everywhere = [quality(t) for t in np.arange(-5, 5, 0.05) + 0.001]
        assert quality(chosen) == pytest.approx(max(everywhere))


def test_temperature_recovers_the_scale_of_log_odds() -> None:
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(20_000)
    wrong = (rng.uniform(size=log_odds.size) < 1 / (1 + np.exp(-log_odds))).astype(int)
    assert fit_temperature(wrong, 7 * log_odds) == pytest.approx(7, rel=0.05)
    assert fit_temperature(wrong, -log_odds) > 100  # the wrong way round: "I do not know"
    probability = fit_probability(wrong, 3 * log_odds + 5)(3 * log_odds + 5)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-log_odds)), atol=0.03)


def test_the_entropy_model_beats_its_parts_and_ignores_noise() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        wrong = rng.integers(0, 2, n)
        signals = {name: rng.standard_normal(n) for name in SIGNALS}
        signals["mean_entropy"] = wrong + rng.standard_normal(n)
        return wrong, wrong + rng.standard_normal(n), signals

    model = fit_entropy_model(*draw(2000), ThresholdRule())
    wrong, score, signals = draw(4000)
    combined = roc_auc_score(wrong, model(score, signals))
    assert combined > max(roc_auc_score(wrong, score), roc_auc_score(wrong, signals["mean_entropy"])) + 0.03
    assert min(model.weights[:2]) > 0.5 and np.abs(model.weights[2:]).max() < 0.15


def test_controls_are_left_out_with_a_reason(tmp_path: Path) -> None:
    def edit(row: dict) -> dict:
        return {k: v for k, v in row.items() if k != "rind_max"} | {"question": ""}

    detectors, notes = control_detectors(load_examples(make_store(tmp_path / "s", 400, edit=edit)))
    names = [d.name for d in detectors]
    assert "mean entropy" in names and "RIND maximum" not in names and "bag of words, question" not in names
    assert any("no column rind_max" in n for n in notes)
    assert any("question is the same in all training examples" in n for n in notes)


def test_controls_know_what_they_can_and_no_more(examples: Examples) -> None:
    detectors, notes = control_detectors(examples)
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    found = {d.name: d.scores[rows] for d in detectors}
    assert not notes and len(set(found["majority"])) == 1
    auroc = {name: roc_auc_score(wrong, scores) for name, scores in found.items()}
    for name in ("mean entropy", "max entropy", "min probability", "perplexity", "entropies combined"):
        assert auroc[name] > 0.65, name
    assert auroc["bag of words, text"] > 0.52
    for name in ("bag of words, question", "question type", "condition", "bag of words, answer", "length"):
        assert 0.38 < auroc[name] < 0.62, name


OVERRIDES = ["epochs=2", "batch_size=32", "lr=0.003", "head.hidden=24", "resamples=200", "device=cpu"]


@pytest.fixture(scope="module")
def prober(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of the command, in an empty working directory."""
    where = tmp_path_factory.mktemp("cwd")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        out = cli.run("train", [f"data={store.path}", "layer=all", *OVERRIDES])
        assert [p.name for p in where.iterdir()] == ["runs"]
    return where / out


def test_the_command_writes_a_prober_and_nothing_else(prober: Path) -> None:
    assert prober.parts[-3:] == ("runs", "train", "cot-all")
    files = sorted(str(f.relative_to(prober)) for f in prober.rglob("*") if f.is_file())
    assert files == [
        "README.md", "config.json", "config.yaml", "heads.safetensors", "metrics.json",
        "plots/auroc_by_layer.png", "plots/reliability.png", "plots/roc.png", "run.json",
    ]  # fmt: skip


def test_metrics_are_those_of_the_saved_prober(prober: Path, store: FeatureStore, examples: Examples) -> None:
    """Loaded anew, the prober scores the test examples as ``metrics.json`` says."""
    bank = ProbeBank.from_pretrained(prober)
    figures = json.loads((prober / "metrics.json").read_text())
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    states = store.states(bank.layers, rows)
    signals = {name: examples.column(name, "test") for name in SIGNALS}
    for key, score, threshold in (
        ("ensemble", bank.score(states), bank.threshold),
        ("with_entropy", bank.score(states, signals), bank.entropy_model.threshold),
    ):
        assert figures[key]["auroc"] == pytest.approx(roc_auc_score(wrong, score), abs=1e-9)
        assert figures[key]["accuracy"] == pytest.approx(np.mean((score > threshold) == wrong), abs=1e-9)
        low, high = figures[key]["auroc_ci"]
        assert low < figures[key]["auroc"] < high
    probability = bank.probability(bank.score(states))
    assert figures["ensemble"]["brier"] == pytest.approx(np.mean((probability - wrong) ** 2), abs=1e-9)
    assert figures["ensemble"]["ece"] < 0.1
    assert bank.layers == (1, 2, 3) and [entry["layer"] for entry in figures["layers"]] == [1, 2, 3]
    assert figures["best_layer"] == 2 and dict(bank.metrics) == figures


def test_the_report_compares_with_every_control(prober: Path) -> None:
    figures = json.loads((prober / "metrics.json").read_text())
    controls = figures["controls"]
    assert set(controls) == {
        "majority", "bag of words, text", "bag of words, question", "bag of words, answer", "length",
        "question type", "condition",
        "mean entropy", "max entropy", "min probability", "perplexity", "RIND maximum",
        "entropies combined", "embedding layer", "shuffled labels",
    }  # fmt: skip
    assert controls["majority"]["auroc"] is None and controls["majority"]["accuracy"] is not None
    assert 0.4 < controls["shuffled labels"]["auroc"] < 0.6
    assert "all layers vs shuffled labels" not in figures["pairs"]  # measured against other labels
    assert 0.35 < controls["embedding layer"]["auroc"] < 0.65
    assert figures["positive_control"]["auroc"] > 0.95
    assert figures["pairs"]["all layers vs mean entropy"]["auroc"]["ci95"][0] > 0
    assert set(figures["conditions"]) == {"closed_book", "with_passages"}
    card = (prober / "README.md").read_text()
    assert f"{figures['ensemble']['auroc']:.2f}" in card and "shuffled labels" in card
    assert "no evidence about large models" in card and "prober=runs/train/cot-all" in card


def test_the_same_run_again_is_not_repeated_and_another_is_refused(
    prober: Path, store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [f"data={store.path}", f"out={prober}", "layer=all", *OVERRIDES]
    before = (prober / "heads.safetensors").stat().st_mtime_ns
    # `out` was not given the first time; where a run is written is not what it computes.
    cli.run("train", same)
    assert "already holds this prober" in capsys.readouterr().out
    assert (prober / "heads.safetensors").stat().st_mtime_ns == before
    for change in ("seed=1", "batch_size=16", "head=linear"):
        arguments = [a for a in same if not a.startswith(change.split("=")[0])]
        arguments = [a for a in arguments if not (change == "head=linear" and a.startswith("head."))]
        with pytest.raises(UserError, match="holds a different run"):
            cli.run("train", [*arguments, change])


def test_one_layer_linear_with_a_csv_log(store: FeatureStore, tmp_path: Path) -> None:
    out = tmp_path / "p"
    cli.run(
        "train",
        [
            f"data={store.path}", f"out={out}", "layer=2", "head=linear", "lr=0.03", "logger=csv",
            "combine=probabilities", "threshold=budget", "budget=0.25", "loss=double_softmax",
            "resamples=200", "device=cpu",
        ],
    )  # fmt: skip
    bank = ProbeBank.from_pretrained(out)
    assert bank.layers == (2,) and isinstance(bank.head, LinearHead) and bank.combine == "probabilities"
    assert bank.metrics["ensemble"]["auroc"] > 0.95
    assert bank.metrics["ensemble"]["fired"] == pytest.approx(0.25, abs=0.06)
    header, *lines = (out / "log/metrics.csv").read_text().splitlines()
    assert "validation_accuracy/layer2-correct" in header and lines


def test_without_layer_0_and_signals_it_says_what_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(row: dict) -> dict:
        lost = (*SIGNALS, "rind_max", "answer_kind")
        return {k: v for k, v in row.items() if k not in lost}

    make_store(tmp_path / "s", edit=edit, spec=SPEC.select((1, 2)))
    out = cli.run("train", [f"data={tmp_path / 's'}", f"out={tmp_path / 'p'}", "layer=[1,2]", *OVERRIDES])
    text = capsys.readouterr().out
    assert "the store has no layer 0" in text and "the store has no column answer_kind" in text
    bank = ProbeBank.from_pretrained(out)
    assert bank.entropy_model is None and bank.metrics["with_entropy"] is None
    assert bank.metrics["positive_control"] is None and "embedding layer" not in bank.metrics["controls"]


def test_requests_that_are_wrong_write_nothing(
    store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FeatureStore.create(tmp_path / "half", SPEC, config={}, shards=2)
    data = f"data={store.path}"
    for arguments, message in [
        ([], "no complete feature store under runs/"),
        (["data=nowhere"], "nowhere is no feature store"),
        (["data=half"], "0 of 2 shards"),
        ([data, "layer=9"], "layers 0-3 of testbed, which has 3 layers"),
        ([data, "loss=mse"], "loss=mse is unknown: choose one of ce, double_softmax"),
        ([data, "threshold=best"], "threshold=best is unknown"),
        ([data, "combine=votes"], "combine=votes is unknown"),
        ([data, "epochs=0"], "epochs=0 must be above 0"),
        ([data, "logger=tensorboard"], "logger=tensorboard is unknown"),
        ([data, "device=tpu"], "device=tpu is unknown"),
        ([data, "device=cuda:99"], "device=cuda:99: this machine has"),
        ([data, "resamples=3"], "too few"),
        ([data, "head=mlp"], "unknown head 'mlp': choose one of linear, probing_rag"),
    ]:
        with pytest.raises(UserError, match=message):
            cli.run("train", arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["half"]


class SpyReader:
    """Notes the most rows that any reader of a store has handed out at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most = self.calls = 0
        original = StateReader.__getitem__

        def spied(reader: StateReader, rows: Any) -> np.ndarray:
            found = original(reader, rows)
            self.most, self.calls = max(self.most, len(found)), self.calls + 1
            return found

        patch.setattr(StateReader, "__getitem__", spied)


@pytest.mark.parametrize("head", ["probing_rag", "linear"])
def test_states_are_never_all_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    """Claim: standardising, training and scoring take a chunk at most; converse: a whole layer shows."""
    spy = SpyReader(monkeypatch)
    store = make_store(tmp_path / "s", 3000)
    options = [*OVERRIDES[:3], *OVERRIDES[4:], f"head={head}"]  # without head.hidden
    cli.run("train", [f"data={store.path}", f"out={tmp_path / 'p'}", "layer=all", *options])
    assert spy.calls > 100 and spy.most == CHUNK < 1500  # of 1500 to train on, 750 to validate, 3000 to score
    store.layer(1)
    assert spy.most == 3000


@pytest.mark.parametrize("head", [small_head, LinearHead])
def test_reading_from_the_store_gives_the_heads_that_a_tensor_gives(
    store: FeatureStore, examples: Examples, head: Any
) -> None:
    """Bit for bit: weights, validation figures, and what indexing gives."""
    tasks, layers = [Task(0), Task(2), Task(3), Task(2, "person")], [0, 2, 3]
    tensor = torch.from_numpy(store.states(layers))
    expected = fit(head, tasks, tensor, layers, examples, replace(QUICK, epochs=1))
    found = fit(head, tasks, StoreStates(store, layers), layers, examples, replace(QUICK, epochs=1))
    for name, value in expected.head.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], value), name
    np.testing.assert_array_equal(found.loss, expected.loss)
    states = StoreStates(store, layers)
    assert states.shape == tensor.shape and len(states) == len(tensor)
    rows = torch.tensor([7, 1, 1, 1199])
    assert torch.equal(states[rows], tensor[rows]) and torch.equal(states[5:9], tensor[5:9])
    assert torch.equal(states[rows, 1], tensor[rows, 1])


def test_moments_in_chunks_are_those_of_the_whole() -> None:
    """Also far from zero, where a sum of squares would have cancelled."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * CHUNK + 7, 2, 5)) * [1, 10, 0.1, 1, 1] + [0, 5, 1e6, -2, 0]
    x[:, 1, 4] = 3.0
    rows = torch.from_numpy(rng.permutation(len(x))[: 2 * CHUNK + 5])
    mean, deviation = moments(torch.from_numpy(x), rows)
    np.testing.assert_allclose(mean.numpy(), x[rows].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(deviation.numpy(), x[rows].std(axis=0), rtol=1e-8, atol=1e-12)
    assert deviation[1, 4] == 0


def test_a_head_of_ones_own_is_given_the_moments_of_its_training_states(
    store: FeatureStore, examples: Examples
) -> None:
    given: list[torch.Tensor] = []

    class Own(ProbingRagHead):
        def prepare(self, mean: torch.Tensor, deviation: torch.Tensor) -> None:
            given.extend([mean, deviation])

    layers = [1, 2]
    make = partial(Own, hidden=8)
    fit(make, [Task(2), Task(1)], StoreStates(store, layers), layers, examples, replace(QUICK, epochs=1))
    rows = examples.rows["train"]
    for head, layer in enumerate((2, 1)):
        states = store.layer(layer)[rows].astype(np.float64)
        np.testing.assert_allclose(given[0][head], states.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(given[1][head], states.std(axis=0), rtol=0, atol=1e-9)
