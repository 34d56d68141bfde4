"""Training in one pass: what each head becomes does not depend on what is trained beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted import damage, make_store, make_token_store, stop_training
from refusals import fails
from safetensors.torch import save as encode
from sklearn.metrics import roc_auc_score

from probers.heads import (
    AttentionPoolHead,
    LinearHead,
    MeanDifferenceHead,
    MindHead,
    Moments,
    ProbingRagHead,
    RadioHead,
)
from probers.store.store import FeatureStore
from probers.train.assemble import score_everything
from probers.train.data import (
    CHUNK,
    Column,
    Dataset,
    Examples,
    States,
    StoreStates,
    TokenStates,
    layers_to_train,
    load_examples,
)
from probers.train.fit import Fitted, Task, fit, moments, targets_of
from probers.train.module import Batches, ProberModule, Schedule, balancing, head_losses
from probers.train.settings import Fitting
from probers.train.trainer import Checkpoint, write_tensors
from probers.train.trainer import read_tensors as read_checkpoint
from probers.types import RunError

small_head = partial(ProbingRagHead, hidden=24)
QUICK = Fitting(batch_size=32, checks=2, epochs=4, lr=3e-3, device="cpu", save_every=0)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return make_token_store(tmp_path_factory.mktemp("data") / "tokens")


def columns_of(tasks: Sequence[Task]) -> list[Column]:
    return sorted({task.column for task in tasks})


def dataset_of(
    store: FeatureStore, examples: Examples, tasks: Sequence[Task], states: States | None = None
) -> Dataset:
    columns = columns_of(tasks)
    found = StoreStates([store], columns) if states is None else states
    return Dataset(examples, found, columns, {store.spec.site: store.spec})


def train(
    store: FeatureStore, examples: Examples, tasks: list[Task], head: Any = small_head,
    out: Path | None = None, **changes: Any,
) -> Fitted:  # fmt: skip
    return fit(head, tasks, dataset_of(store, examples, tasks), replace(QUICK, **changes), out=out)


def aurocs(store: FeatureStore, examples: Examples, fitted: Fitted, how: Any = None) -> dict[Task, float]:
    """Test AUROC of every head at finding class 0 of its own target."""
    dataset = dataset_of(store, examples, fitted.tasks)
    margins = score_everything(fitted.head, fitted.tasks, dataset, how)
    rows = examples.rows["test"]
    targets = targets_of(fitted.tasks, examples).numpy()[rows]
    return {
        t: roc_auc_score(1 - targets[:, i], margins.of_texts(margins.values[:, i])[rows])
        for i, t in enumerate(fitted.tasks)
    }


def assert_same_head(found: Fitted, i: int, alone: Fitted) -> None:
    for name, value in alone.head.state_dict().items():
        torch.testing.assert_close(found.head.state_dict()[name][i : i + 1], value, atol=1e-4, rtol=1e-3)
    assert found.accuracy[i] == alone.accuracy[0]


@pytest.mark.parametrize("head", [small_head, LinearHead, RadioHead, MindHead, MeanDifferenceHead])
def test_the_signal_is_found_only_where_it_is(store: FeatureStore, examples: Examples, head: Any) -> None:
    tasks = [Task(0), Task(1), Task(2), Task(3), Task(2, "shuffled"), Task(2, "person")]
    lr = {LinearHead: 3e-2, MindHead: 1e-2}.get(head, 3e-3)
    epochs = 8 if head is MindHead else 4
    found = aurocs(store, examples, train(store, examples, tasks, head, lr=lr, epochs=epochs))
    assert 0.4 < found[Task(0)] < 0.6
    assert 0.65 < found[Task(1)] < found[Task(3)] < found[Task(2)]
    assert found[Task(2)] > 0.95 and found[Task(2, "person")] > 0.95
    assert 0.4 < found[Task(2, "shuffled")] < 0.6


def test_a_layer_among_others_equals_one_trained_alone(store: FeatureStore, examples: Examples) -> None:
    """Weights to float tolerance, with dropout on; converse: another seed gives another head."""
    together = train(store, examples, [Task(1), Task(2), Task(3), Task(2, "shuffled")], epochs=2)
    alone = train(store, examples, [Task(2)], epochs=2)
    assert_same_head(together, 1, alone)
    other = train(store, examples, [Task(2, seed=1)], epochs=2)
    assert not torch.allclose(other.head.linear1.weight, alone.head.linear1.weight, atol=1e-2)


@pytest.mark.parametrize("balance", ["none", "weights", "sampling"])
def test_seeds_side_by_side_equal_single_ones(store: FeatureStore, examples: Examples, balance: str) -> None:
    """Each seed has weights, dropout masks and an order of its own."""
    tasks = [Task(k, seed=s) for s in (0, 3, 7) for k in (1, 2)]
    together = train(store, examples, tasks, epochs=2, balance=balance)
    for i, task in enumerate(tasks):
        if task.layer == 2:
            assert_same_head(together, i, train(store, examples, [task], epochs=2, balance=balance))


def test_heads_that_pool_tokens_read_whole_texts(tokens: FeatureStore) -> None:
    """Claim: attention finds the token that tells; converse: of single tokens the mean is diluted.

    And every seed sees its own texts, padded with others or not.
    """
    examples = load_examples([tokens])
    assert len(examples.table) == 300 and examples.members is not None
    assert [len(m) for m in examples.members[:5]] == [1, 2, 3, 4, 1]
    tasks = [Task(2), Task(2, seed=1), Task(0)]
    pooled = train(tokens, examples, tasks, AttentionPoolHead, lr=3e-2, epochs=8, batch_size=12)
    found = aurocs(tokens, examples, pooled)
    assert found[Task(2)] > 0.9 and 0.35 < found[Task(0)] < 0.65
    alone = train(tokens, examples, [Task(2, seed=1)], AttentionPoolHead, lr=3e-2, epochs=8, batch_size=12)
    assert_same_head(pooled, 1, alone)
    single = train(tokens, examples, [Task(2)], LinearHead, lr=3e-2, epochs=8)
    assert aurocs(tokens, examples, single, "mean")[Task(2)] > 0.8
    with fails("mismatch", "attention_pool", "pool=tokens"):
        pooled_store = make_store(tokens.path.parent / "pooled", 80)
        train(pooled_store, load_examples([pooled_store]), [Task(2)], AttentionPoolHead)


def test_a_training_that_was_killed_ends_in_the_same_bits(
    store: FeatureStore, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the second and in the sixth of eight stretches; what was done is not done again."""
    tasks = [Task(1), Task(2, seed=4), Task(2)]
    expected = train(store, examples, tasks, balance="sampling", patience=5)
    steps = stop_training(monkeypatch, 15, 60, error=RuntimeError)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            train(store, examples, tasks, balance="sampling", patience=5, out=tmp_path)
        assert (tmp_path / "checkpoint.safetensors").exists()
    found = train(store, examples, tasks, balance="sampling", patience=5, out=tmp_path)
    same_as(found, expected)
    assert expected.steps == 76 and 76 < steps[0] < 76 + 2 * 10 + 2
    # Of a training that was over nothing is done again.
    before = steps[0]
    again = train(store, examples, tasks, balance="sampling", patience=5, out=tmp_path)
    assert steps[0] == before and torch.equal(again.head.linear1.weight, found.head.linear1.weight)


def same_as(found: Fitted, expected: Fitted) -> None:
    """Weights, figures and steps, to the last bit."""
    for name, value in expected.head.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], value), name
    np.testing.assert_array_equal(found.loss, expected.loss)
    np.testing.assert_array_equal(found.auroc, expected.auroc)
    assert found.steps == expected.steps


@pytest.mark.parametrize("changes", [{}, {"patience": 1, "warmup_epochs": 0}])
def test_a_training_killed_at_its_last_validation_counts_as_finished(
    store: FeatureStore, examples: Examples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, int],
) -> None:  # fmt: skip
    """Behind the last stretch, or where patience ran out: not a step more is taken."""
    tasks = [Task(1), Task(2)]
    expected = train(store, examples, tasks, lr=0.1, **changes)
    assert bool(changes) == (expected.steps < 76)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Checkpoint, "on_train_end", killed)
        train(store, examples, tasks, lr=0.1, out=tmp_path, **changes)
    stop_training(monkeypatch, 1)
    same_as(train(store, examples, tasks, lr=0.1, out=tmp_path, **changes), expected)


@pytest.fixture(scope="module")
def interrupted(store: FeatureStore, examples: Examples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a training that was interrupted in its third stretch."""
    out = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        stop_training(patched, 25)
        train(store, examples, [Task(2)], out=out)
    return out / "checkpoint.safetensors"


@pytest.fixture(scope="module")
def undisturbed(store: FeatureStore, examples: Examples) -> Fitted:
    return train(store, examples, [Task(2)])


def resealed(path: Path, tensors: dict[str, torch.Tensor] | None = None, **about: Any) -> None:
    """Change a checkpoint and give it the checksum of what it holds then."""
    held, told = read_checkpoint(path)
    held |= tensors or {}
    write_tensors(path, held, told | about)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def as_older_versions(path: Path) -> None:
    held, told = read_checkpoint(path)
    path.write_bytes(encode(held, {"about": json.dumps(told)}))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def wider(path: Path) -> None:
    held, _ = read_checkpoint(path)
    name = next(name for name in held if name.startswith("best."))
    resealed(path, {name: torch.zeros(3, *held[name].shape)})


DAMAGES = {
    "is damaged": cut_short,
    "carries no checksum": as_older_versions,
    "is of other heads (best.": wider,
    "does not record the progress": lambda path: resealed(path, stretches="2"),
    "is of validation 9, and there are 8": lambda path: resealed(path, stretches=9),
    "is a folder": a_folder,
    "is a folder, pipe": a_pipe,
}


@pytest.mark.parametrize("told", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_training_begins_anew(
    interrupted: Path, undisturbed: Fitted, store: FeatureStore, examples: Examples, tmp_path: Path,
    told: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = tmp_path / interrupted.name
    shutil.copy(interrupted, path)
    DAMAGES[told](path)
    same_as(train(store, examples, [Task(2)], out=tmp_path), undisturbed)
    (line,) = [x for x in caplog.messages if "checkpoint" in x]
    assert line.startswith(f"{path} {told}") and line.endswith(": the training starts over")
    assert read_checkpoint(path)[1]["finished"]
    assert (tmp_path / f"{path.name}.old/notes.txt").exists() == (told == "is a folder")


def test_no_flipped_bit_of_a_checkpoint_is_used_silently(interrupted: Path, tmp_path: Path) -> None:
    """Anywhere in header and tensors; converse: one that is whole is read."""
    blob = interrupted.read_bytes()
    assert read_checkpoint(interrupted)[1]["stretches"] == 2
    path = tmp_path / interrupted.name
    header = 8 + int.from_bytes(blob[:8], "little")
    rng = np.random.default_rng(0)
    for at in [*range(0, header, 5), *rng.integers(header, len(blob), 60).tolist()]:
        damaged = bytearray(blob)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|altered|checksum"):
            read_checkpoint(path)


def test_the_kept_state_is_the_best_one_seen(store: FeatureStore, examples: Examples) -> None:
    """A learning rate far too high makes later states worse; the kept one has the reported figures."""
    fitted = train(store, examples, [Task(2), Task(3)], lr=0.3, gamma=1.0, epochs=4, checks=6)
    rows = examples.rows["validation"]
    states = torch.from_numpy(store.states([2, 3], rows)).float()
    targets = targets_of(fitted.tasks, examples)[rows]
    with torch.no_grad():
        logits = fitted.head(states)
    accuracy = (logits.argmax(dim=-1) == targets).double().mean(dim=0).numpy()
    np.testing.assert_allclose(accuracy, fitted.accuracy)
    np.testing.assert_allclose(head_losses(logits, targets).numpy(), fitted.loss, rtol=1e-4)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Steps taken, kept accuracies and patience after every validation of the trainings that follow."""
    seen: list[tuple[int, np.ndarray, np.ndarray]] = []
    original = ProberModule.on_validation_epoch_end

    def spy(self: ProberModule) -> None:
        original(self)
        seen.append((self.steps_taken, self.accuracy.copy(), self.over.copy()))

    monkeypatch.setattr(ProberModule, "on_validation_epoch_end", spy)
    return seen


def test_validations_are_evenly_spread_and_nothing_is_kept_before_the_warm_up_is_over(
    store: FeatureStore, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spied(monkeypatch)
    train(store, examples, [Task(2)], epochs=2, checks=2, warmup_epochs=1)
    per_epoch = -(-len(examples.rows["train"]) // 32)
    assert [steps for steps, *_ in seen] == [10, per_epoch, 29, 2 * per_epoch] and per_epoch == 19
    assert [kept[0] >= 0 for _, kept, _ in seen] == [False, False, True, True]
    seen.clear()
    train(store, examples, [Task(2)], epochs=1, checks=2, warmup_epochs=1)
    assert [kept[0] >= 0 for _, kept, _ in seen] == [True, True]


def test_a_head_stops_when_its_patience_is_over_whatever_the_others_do(
    store: FeatureStore, examples: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claim: it then keeps nothing better; converse: with more patience it would have."""
    how: Any = {"lr": 0.05, "gamma": 1.0, "epochs": 6, "checks": 6, "warmup_epochs": 0}
    seen = spied(monkeypatch)
    impatient = train(store, examples, [Task(1), Task(2), Task(3)], patience=3, **how)
    over = np.array([o for *_, o in seen])
    kept = np.array([a for _, a, _ in seen])
    assert over.any() and (np.diff(over.astype(int), axis=0) >= 0).all()
    for head in range(3):
        if over[:, head].any():
            assert len(set(kept[over[:, head], head])) == 1
    alone = train(store, examples, [Task(1)], patience=3, **how)
    assert_same_head(impatient, 0, alone)
    seen.clear()
    patient = train(store, examples, [Task(1), Task(2), Task(3)], **how)
    assert (
        patient.accuracy >= impatient.accuracy
    ).all() and patient.accuracy.sum() > impatient.accuracy.sum()
    assert len(seen) == 36 and alone.steps < patient.steps


def test_losses_by_hand_and_the_schedule_per_step(store: FeatureStore, examples: Examples) -> None:
    logits, targets = torch.randn(5, 2, 2), torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    p = logits.softmax(-1)
    picked = torch.gather(p, 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets), -picked.log().mean(0))
    again = torch.gather(p.softmax(-1), 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets, "double_softmax"), -again.log().mean(0))
    weights = torch.tensor([[2.0, 0.5], [1.0, 3.0]])
    smooth = torch.nn.functional.cross_entropy
    for head in range(2):
        plain = smooth(logits[:, head], targets[:, head], weights[head])
        torch.testing.assert_close(head_losses(logits, targets, weights=weights)[head], plain)
        softened = smooth(logits[:, head], targets[:, head], label_smoothing=0.2)
        torch.testing.assert_close(head_losses(logits, targets, smoothing=0.2)[head], softened)

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


def test_classes_of_unlike_size_are_made_to_weigh_the_same() -> None:
    labels = np.array([0] * 10 + [1] * 90)
    assert balancing("none", labels) == (None, (1.0, 1.0))
    chances, weights = balancing("weights", labels)
    assert chances is None and weights[0] * 10 == pytest.approx(weights[1] * 90) == pytest.approx(50)
    chances, weights = balancing("sampling", labels)
    assert weights == (1.0, 1.0) and chances is not None
    rows = torch.arange(100) + 1000
    batches = Batches(rows, 100, [0, 1], Schedule(1, 60, 1), weights=chances)
    drawn = torch.stack([next(iter(batches)) for _ in range(60)]) - 1000  # (60, 2, 1 batch of 100)
    assert abs(float((drawn < 10).double().mean()) - 0.5) < 0.03
    plain = next(iter(Batches(rows, 100, [0, 1], Schedule(1, 1, 1))))
    assert all(sorted(order.tolist()) == rows.tolist() for order in plain) and not torch.equal(*plain)


def test_weights_move_the_decision_towards_the_rare_class(tmp_path: Path) -> None:
    """Claim: with weights or sampling as many wrong as right texts are found; converse: without, fewer."""

    def rare(row: dict) -> dict:  # two thirds of the wrong texts are called right
        return row | {"correct": 1 if int(row["id"][1:]) % 3 else row["correct"]}

    store = make_store(tmp_path / "s", 1200, edit=rare, strength=0.6)
    examples = load_examples([store])
    rows = examples.rows["test"]
    fired = {}
    for balance in ("none", "weights", "sampling"):
        fitted = train(store, examples, [Task(1)], LinearHead, lr=1e-2, balance=balance)
        margins = score_everything(fitted.head, fitted.tasks, dataset_of(store, examples, fitted.tasks), None)
        fired[balance] = float((margins.values[rows, 0] > 0).mean())
    assert fired["none"] < 0.1 < 0.3 < min(fired["weights"], fired["sampling"])


def test_a_loss_that_explodes_is_an_error(store: FeatureStore, examples: Examples) -> None:
    with fails("failed", "lr", kind=RunError):
        train(store, examples, [Task(2)], lr=1e38, epochs=1)


@pytest.mark.parametrize(("row", "split"), [(0, "train"), (4, "validation"), (6, "test")])
def test_a_state_that_is_no_number_is_named(tmp_path: Path, row: int, split: str) -> None:
    store = make_store(tmp_path / "s", 80)
    damage(store, row, 2)
    examples = load_examples([store])
    tasks = [Task(1), Task(2)]
    with fails("damaged", f"'q{row}'", kind=RunError):
        fitted = train(store, examples, tasks, epochs=1)
        assert split == "test"  # nothing else was looked at so far
        score_everything(fitted.head, tasks, dataset_of(store, examples, tasks), None)


def test_ctrl_c_interrupts(store: FeatureStore, examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_training(monkeypatch, 1)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(store, examples, [Task(2)])
    assert signal.getsignal(signal.SIGINT) is before


def test_layers_asked_for(store: FeatureStore) -> None:
    assert layers_to_train("all", store.spec) == (1, 2, 3)
    assert layers_to_train(2, store.spec) == (2,)
    assert layers_to_train([3, 1, 3], store.spec) == (1, 3)
    for value, *named in [
        (7, "layer=7", "layers 0-3 of testbed"), (0, "layer=0"), ("deep", "layer=deep"),
        ([1, "x"], "layer="), ([], "layer=[]"),
    ]:  # fmt: skip
        with fails(None, *named):
            layers_to_train(value, store.spec)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("epochs", 0, "a whole number of 1 or more"),
        ("loss", "mse", "ce or double_softmax"),
        ("seeds", 0, "a whole number of 1 or more"),
        ("weight_decay", -1, "a number of 0 or more"),
        ("patience", 0, "a whole number of 1 or more, or null"),
        ("label_smoothing", 1, "a number from 0 to below 1"),
        ("balance", "even", "none, weights or sampling"),
        ("device", "tpu", "auto, cpu, cuda or"),
        ("logger", "tensorboard", "none, csv or wandb"),
    ],
)
def test_settings_that_cannot_be_are_named(key: str, value: Any, allowed: str) -> None:
    with fails(None, f"{key}={value} must be {allowed}"):
        Fitting(**{key: value})


@pytest.mark.parametrize("head", [small_head, LinearHead])
def test_a_store_gives_the_heads_of_a_tensor(store: FeatureStore, examples: Examples, head: Any) -> None:
    """Bit for bit: weights, validation figures, and what indexing gives."""
    tasks = [Task(0), Task(2), Task(3), Task(2, "person")]
    columns = columns_of(tasks)
    tensor, states = torch.from_numpy(store.states([0, 2, 3])), StoreStates([store], columns)
    expected, found = (
        fit(head, tasks, dataset_of(store, examples, tasks, given), replace(QUICK, epochs=1))
        for given in (tensor, states)
    )
    same_as(found, expected)
    assert states.shape == tensor.shape and len(states) == len(tensor)
    rows = torch.tensor([7, 1, 1, 1199])
    assert torch.equal(states[rows], tensor[rows]) and torch.equal(states[5:9], tensor[5:9])


def test_tokens_of_texts_are_padded_and_masked(tokens: FeatureStore) -> None:
    members = load_examples([tokens]).members
    assert members is not None
    flat = StoreStates([tokens], [Column("resid_post", 1), Column("resid_post", 3)])
    states = TokenStates(flat, members)
    found = states[torch.tensor([2, 0, 3])]
    assert found.mask.tolist() == [[True] * 3 + [False], [True] + [False] * 3, [True] * 4]
    assert torch.equal(found.states[found.mask], flat[np.concatenate([members[i] for i in (2, 0, 3)])])
    assert not found.states[~found.mask].any()
    assert torch.equal(states[2:4].mask, states[torch.tensor([2, 3])].mask)


def test_moments_in_chunks_are_those_of_the_whole() -> None:
    """Also far from zero, where a sum of squares would have cancelled."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * CHUNK + 7, 2, 5)) * [1, 10, 0.1, 1, 1] + [0, 5, 1e6, -2, 0]
    x[:, 1, 4] = 3.0
    rows = torch.from_numpy(rng.permutation(len(x))[: 2 * CHUNK + 5])
    targets = torch.from_numpy(rng.integers(0, 2, (len(x), 3)))
    columns = [1, 0, 1]
    found = moments(torch.from_numpy(x), rows, columns, targets)
    np.testing.assert_allclose(found.mean.numpy(), x[rows][:, columns].mean(axis=0), rtol=1e-12)
    deviation = x[rows][:, columns].std(axis=0)
    np.testing.assert_allclose(found.deviation.numpy(), deviation, rtol=1e-8, atol=1e-12)
    assert found.deviation[0, 4] == 0
    for head, column in enumerate(columns):
        for label in (0, 1):
            chosen = rows[targets[rows, head] == label]
            expected = x[chosen][:, column].mean(axis=0)
            np.testing.assert_allclose(found.class_mean[head, label].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_ones_own_head_is_given_the_moments_of_its_states(store: FeatureStore, examples: Examples) -> None:
    given: list[Moments] = []

    class Own(ProbingRagHead):
        def prepare(self, moments: Moments) -> None:
            given.append(moments)

    train(store, examples, [Task(2), Task(1)], partial(Own, hidden=8), epochs=1)
    rows = examples.rows["train"]
    for head, layer in enumerate((2, 1)):
        states = store.layer(layer)[rows].astype(np.float64)
        np.testing.assert_allclose(given[0].mean[head], states.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(given[0].deviation[head], states.std(axis=0), rtol=0, atol=1e-9)
        wrong = states[examples.wrong[rows] == 1]
        np.testing.assert_allclose(given[0].class_mean[head, 0], wrong.mean(axis=0), rtol=0, atol=1e-9)
