"""Training in one pass: what each head becomes does not depend on what is trained beside it."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.planted import damage, make_store, make_token_store, stop_training
from helpers.refusals import fails, interrupted
from pytest import MonkeyPatch
from sklearn.metrics import roc_auc_score

from probers.heads import HEADS, AttentionPoolHead, LinearHead, Moments, ProbingRagHead
from probers.store.store import FeatureStore
from probers.train.assemble import score_everything
from probers.train.data import Column, Dataset
from probers.train.heads import Fitted, Task, targets_of
from probers.train.heads import train_heads as fit
from probers.train.module import Batches, ProberModule, Schedule, balancing, head_losses
from probers.train.settings import Fitting
from probers.train.trainer import Checkpoint, write_tensors
from probers.train.trainer import read_tensors as read_checkpoint
from probers.types import RunError

at = partial(Column, "resid_post")
small_head = partial(ProbingRagHead, hidden=24)
QUICK = Fitting(batch_size=32, checks=2, epochs=4, lr=3e-3, device="cpu", save_every=0)


@pytest.fixture(scope="module")
def data(store: FeatureStore) -> Dataset:
    return Dataset.load([store])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load([make_token_store(tmp_path_factory.mktemp("data") / "tokens")])


def train(
    data: Dataset, tasks: list[Task], head: Any = small_head, out: Path | None = None, **changes: Any
) -> Fitted:
    return fit(head, tasks, data, replace(QUICK, **changes), out=out)


def aurocs(data: Dataset, fitted: Fitted, how: Any = None) -> list[float]:
    """Test AUROC of every head at finding class 0 of its own target."""
    margins = score_everything(fitted.head, fitted.tasks, data, how)
    rows = data.examples.rows["test"]
    targets = targets_of(fitted.tasks, data.examples).numpy()[rows]
    scores = margins.of_texts(margins.values)[rows]
    return [roc_auc_score(1 - target, score) for target, score in zip(targets.T, scores.T, strict=True)]


def assert_same_head(fitted: Fitted, i: int, alone: Fitted) -> None:
    for name, value in alone.head.state_dict().items():
        torch.testing.assert_close(fitted.head.state_dict()[name][i : i + 1], value, atol=1e-4, rtol=1e-3)
    assert fitted.accuracy[i] == alone.accuracy[0]


@pytest.mark.parametrize(("head", "how"), [
    ("probing_rag", {}), ("linear", {"lr": 3e-2}), ("radio", {}), ("mind", {"lr": 1e-2, "epochs": 8}),
    ("mean_difference", {}),
])  # fmt: skip
def test_the_signal_is_found_only_where_it_is(data: Dataset, head: str, how: dict[str, Any]) -> None:
    tasks = [*(Task(at(layer)) for layer in range(4)), Task(at(2), "shuffled"), Task(at(2), "person")]
    none, weak, best, middle, shuffled, person = aurocs(data, train(data, tasks, HEADS[head], **how))
    assert 0.4 < none < 0.6 and 0.4 < shuffled < 0.6
    assert 0.65 < weak < middle < best and min(best, person) > 0.95


@pytest.mark.parametrize("balance", ["none", "weights", "sampling"])
def test_heads_side_by_side_equal_single_ones(data: Dataset, balance: str) -> None:
    """Each seed has weights, dropout masks and an order of its own; converse: another gives another head."""
    tasks = [Task(at(k), seed=s) for s in (0, 3, 7) for k in (1, 2)]
    together = train(data, [*tasks, Task(at(3)), Task(at(2), "shuffled")], epochs=2, balance=balance)
    alone = [train(data, [task], epochs=2, balance=balance) for task in tasks[1::2]]
    for i, fitted in enumerate(alone):
        assert_same_head(together, 2 * i + 1, fitted)
    weight, other = (fitted.head.linear1.weight for fitted in alone[:2])
    assert not torch.allclose(weight, other, atol=1e-2)


def test_heads_that_pool_tokens_read_whole_texts(data: Dataset, tokens: Dataset) -> None:
    """Claim: attention finds the token that tells, and each seed sees its own texts, padded or not."""
    assert len(tokens.examples.table) == 300
    assert [len(m) for m in tokens.examples.members[:5]] == [1, 2, 3, 4, 1]
    how: Any = {"head": AttentionPoolHead, "lr": 3e-2, "epochs": 8, "batch_size": 12}
    pooled = train(tokens, [Task(at(2)), Task(at(2), seed=1), Task(at(0))], **how)
    best, _, none = aurocs(tokens, pooled)
    assert best > 0.9 and 0.35 < none < 0.65
    assert_same_head(pooled, 1, train(tokens, [Task(at(2), seed=1)], **how))
    single = train(tokens, [Task(at(2))], LinearHead, lr=3e-2, epochs=8)
    assert aurocs(tokens, single, "mean")[0] > 0.8
    with fails("mismatch", "attention_pool", "pool=tokens"):
        train(data, [Task(at(2))], AttentionPoolHead)


def test_a_killed_training_ends_the_same(data: Dataset, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Killed in the second and in the sixth of eight stretches; what was done is not done again."""
    tasks = [Task(at(1)), Task(at(2), seed=4), Task(at(2))]
    training = partial(train, data, tasks, balance="sampling", patience=5)
    expected = training()
    steps = stop_training(monkeypatch, 15, 60, error=RuntimeError)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            training(out=tmp_path)
        assert (tmp_path / "checkpoint.safetensors").exists()
    same_as(training(out=tmp_path), expected)
    assert expected.steps == 76 and 76 < steps[0] < 76 + 2 * 10 + 2
    before = steps[0]  # of a training that was over nothing is done again
    same_as(training(out=tmp_path), expected)
    assert steps[0] == before


def same_as(fitted: Fitted, expected: Fitted) -> None:
    """Weights, figures and steps, to the last bit."""
    for name, value in expected.head.state_dict().items():
        assert torch.equal(fitted.head.state_dict()[name], value), name
    np.testing.assert_array_equal(fitted.loss, expected.loss)
    np.testing.assert_array_equal(fitted.auroc, expected.auroc)
    assert fitted.steps == expected.steps


@pytest.mark.parametrize("changes", [{}, {"patience": 1, "warmup_epochs": 0}])
def test_killed_at_its_last_validation_it_is_finished(
    data: Dataset, tmp_path: Path, changes: Any, monkeypatch: Any
) -> None:
    """Behind the last stretch, or where patience ran out: not a step more is taken."""
    training = partial(train, data, [Task(at(1)), Task(at(2))], lr=0.1, **changes)
    expected = training()
    assert bool(changes) == (expected.steps < 76)
    with interrupted(Checkpoint, "on_train_end", after=0):
        training(out=tmp_path)
    stop_training(monkeypatch, 1)
    same_as(training(out=tmp_path), expected)


@pytest.fixture(scope="module")
def checkpoint(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of a training which was interrupted in its third stretch."""
    out = tmp_path_factory.mktemp("interrupted")
    with interrupted(ProberModule, "training_step", after=24):
        train(data, [Task(at(2))], out=out)
    return out / "checkpoint.safetensors"


@pytest.mark.parametrize(("how", "named"), [
    ("cut short", "damaged"), ("wider", "(best."), ("further", "validation 9"), ("folder", "is a folder"),
])  # fmt: skip
def test_a_damaged_checkpoint_is_named_and_the_training_begins_anew(
    checkpoint: Path, data: Dataset, tmp_path: Path, how: str, named: str, caplog: Any
) -> None:
    path = Path(shutil.copy(checkpoint, tmp_path))
    held, about = read_checkpoint(path)
    name = next(name for name in held if name.startswith("best."))
    if how == "cut short":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "folder":
        path.unlink()
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    else:  # with the checksum of what it holds then
        wider = {name: torch.zeros(3, *held[name].shape)} if how == "wider" else {}
        write_tensors(path, held | wider, about | ({"stretches": 9} if how == "further" else {}))
    same_as(train(data, [Task(at(2))], out=tmp_path), train(data, [Task(at(2))]))
    (line,) = [x for x in caplog.messages if "checkpoint" in x]
    assert line.startswith(f"{path} ") and named in line and line.endswith(": the training starts over")
    assert read_checkpoint(path)[1]["finished"]
    assert (tmp_path / f"{path.name}.old/notes.txt").exists() == (how == "folder")


def test_the_kept_state_is_the_best_one_seen(data: Dataset) -> None:
    """A learning rate far too high makes later states worse; the kept one has the reported figures."""
    fitted = train(data, [Task(at(2)), Task(at(3))], lr=0.3, gamma=1.0, epochs=4, checks=6)
    rows = torch.from_numpy(data.examples.rows["validation"])
    states, targets = data.states[rows][:, 2:].float(), targets_of(fitted.tasks, data.examples)[rows]
    with torch.no_grad():
        logits = fitted.head(states)
    accuracy = (logits.argmax(dim=-1) == targets).double().mean(dim=0).numpy()
    np.testing.assert_allclose(accuracy, fitted.accuracy)
    np.testing.assert_allclose(head_losses(logits, targets).numpy(), fitted.loss, rtol=1e-4)


def spied(monkeypatch: MonkeyPatch) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Steps taken, kept accuracies and patience after every validation of the trainings that follow."""
    seen: list[tuple[int, np.ndarray, np.ndarray]] = []
    original = ProberModule.on_validation_epoch_end

    def spy(self: ProberModule) -> None:
        original(self)
        seen.append((self.steps_taken, self.accuracy.copy(), self.over.copy()))

    monkeypatch.setattr(ProberModule, "on_validation_epoch_end", spy)
    return seen


def test_a_head_stops_when_its_patience_is_over(data: Dataset, monkeypatch: MonkeyPatch) -> None:
    """Claim: it then keeps nothing better; converse: with more patience it would have."""
    how: Any = {"lr": 0.05, "gamma": 1.0, "epochs": 6, "checks": 6, "warmup_epochs": 0}
    seen, tasks = spied(monkeypatch), [Task(at(1)), Task(at(2)), Task(at(3))]
    impatient = train(data, tasks, patience=3, **how)
    _, best, over = (np.array(values) for values in zip(*seen, strict=True))
    assert over.any() and (np.diff(over.astype(int), axis=0) >= 0).all()
    assert all(len(set(best[over[:, head], head])) <= 1 for head in range(3))
    alone = train(data, [Task(at(1))], patience=3, **how)
    assert_same_head(impatient, 0, alone)
    patient = train(data, tasks, **how)
    gain = patient.accuracy - impatient.accuracy
    assert (gain >= 0).all() and gain.sum() > 0 and alone.steps < patient.steps


def test_losses_by_hand_and_the_schedule_per_step(data: Dataset, monkeypatch: MonkeyPatch) -> None:
    logits, targets = torch.randn(5, 2, 2), torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    p = logits.softmax(-1)
    picked = torch.gather(p, 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets), -picked.log().mean(0))
    again = torch.gather(p.softmax(-1), 2, targets[..., None])[..., 0]
    torch.testing.assert_close(head_losses(logits, targets, "double_softmax"), -again.log().mean(0))
    weights, entropy = torch.tensor([[2.0, 0.5], [1.0, 3.0]]), torch.nn.functional.cross_entropy
    weighed = head_losses(logits, targets, weights=weights)
    softened = head_losses(logits, targets, smoothing=0.2)
    for head in range(2):
        of_head = logits[:, head], targets[:, head]
        torch.testing.assert_close(weighed[head], entropy(*of_head, weights[head]))
        torch.testing.assert_close(softened[head], entropy(*of_head, label_smoothing=0.2))

    rates: list[float] = []
    original = ProberModule.training_step

    def step(self: ProberModule, batch: Any, index: int) -> Any:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return original(self, batch, index)

    monkeypatch.setattr(ProberModule, "training_step", step)
    assert train(data, [Task(at(2))], epochs=1, lr=1e-3, gamma=0.9).steps == len(rates) == 19
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

    data = Dataset.load([make_store(tmp_path / "s", 1200, edit=rare, strength=0.6)], 1)
    fired = {}
    for balance in ("none", "weights", "sampling"):
        fitted = train(data, [Task(at(1))], LinearHead, lr=1e-2, balance=balance)
        margins = score_everything(fitted.head, fitted.tasks, data, None)
        fired[balance] = float((margins.values[data.examples.rows["test"], 0] > 0).mean())
    assert fired["none"] < 0.1 < 0.3 < min(fired["weights"], fired["sampling"])


def test_a_loss_that_explodes_is_an_error(data: Dataset) -> None:
    with fails("failed", "lr", kind=RunError):
        train(data, [Task(at(2))], lr=1e38, epochs=1)


@pytest.mark.parametrize(("row", "split"), [(0, "train"), (4, "validation"), (6, "test")])
def test_a_state_that_is_no_number_is_named(tmp_path: Path, row: int, split: str) -> None:
    store = make_store(tmp_path / "s", 80)
    damage(store, row, 2)
    data, tasks = Dataset.load([store]), [Task(at(1)), Task(at(2))]
    with fails("damaged", f"'q{row}'", kind=RunError):
        fitted = train(data, tasks, epochs=1)
        assert split == "test"  # nothing else was looked at so far
        score_everything(fitted.head, tasks, data, None)


def test_ones_own_head_is_given_the_moments_of_its_training_states_alone(store: Any, data: Dataset) -> None:
    given: list[Moments] = []

    class Own(ProbingRagHead):
        def prepare(self, moments: Moments) -> None:
            given.append(moments)

    train(data, [Task(at(2)), Task(at(1))], partial(Own, hidden=8), epochs=1)
    rows = data.examples.rows["train"]
    for head, layer in enumerate((2, 1)):
        states = store.layer(layer)[rows].astype(np.float64)
        np.testing.assert_allclose(given[0].mean[head], states.mean(axis=0), rtol=0, atol=1e-9)
        wrong = states[data.examples.wrong[rows] == 1]
        np.testing.assert_allclose(given[0].class_mean[head, 0], wrong.mean(axis=0), rtol=0, atol=1e-9)
