"""Batched heads: each is what it would be alone, and the linear one is logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from probers.heads import HEADS, LinearHead, ProbeHead, ProbingRagHead, head_name

STREAMS = ["0/layer1", "0/layer2", "0/layer3"]


def make(name: str, streams: list[str] = STREAMS, width: int = 6) -> ProbeHead:
    options = {"hidden": 16, "dropout": 0.3} if name == "probing_rag" else {}
    return HEADS[name](streams, width, **options)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_reads_its_own_layer_only(name: str) -> None:
    """Claim: a change in layer 2's states changes head 2; converse: it changes no other."""
    head = make(name).eval()
    x = torch.randn(4, 3, 6)
    changed = x.clone()
    changed[:, 1] += torch.randn(4, 6)
    before, after = head(x), head(changed)
    assert before.shape == (4, 3, 2)
    assert not torch.allclose(before[:, 1], after[:, 1])
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]])


@pytest.mark.parametrize("name", HEADS)
def test_gradients_do_not_cross_heads(name: str) -> None:
    head = make(name)
    head(torch.randn(4, 3, 6))[:, 1].square().sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None and parameter.grad[1].abs().sum() > 0
        assert parameter.grad[[0, 2]].abs().sum() == 0


@pytest.mark.parametrize("name", HEADS)
def test_weights_and_dropout_of_a_head_do_not_depend_on_the_others(name: str) -> None:
    together, alone = make(name), make(name, STREAMS[2:])
    x = torch.randn(5, 3, 6)
    for _ in range(3):  # training mode: three draws of dropout masks
        torch.testing.assert_close(together(x)[:, 2:], alone(x[:, 2:]))
    other = make(name, ["1/layer3"])
    assert not torch.allclose(alone.eval()(x[:, 2:]), other.eval()(x[:, 2:]))


def test_probing_rag_is_the_published_stack() -> None:
    """Against plain torch modules with the same weights, for one head."""
    head = ProbingRagHead(STREAMS, 6, hidden=16).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():  # norms would hide in their initial ones and zeros
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    plain = nn.Sequential(
        nn.LayerNorm(6), nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(16), nn.Dropout(0.1),
        nn.Linear(16, 16), nn.SiLU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 2),
    ).eval()  # fmt: skip
    for i in range(3):
        ours = [head.norm0, head.linear1, head.norm1, head.linear2, head.norm2, head.linear3]
        theirs = [m for m in plain if isinstance(m, (nn.Linear, nn.LayerNorm))]
        with torch.no_grad():
            for a, b in zip(ours, theirs, strict=True):
                b.weight.copy_(a.weight[i].T if isinstance(b, nn.Linear) else a.weight[i])
                b.bias.copy_(a.bias[i])
        x = torch.randn(7, 3, 6)
        torch.testing.assert_close(head(x)[:, i], plain(x[:, i]), atol=1e-5, rtol=1e-5)


def test_initial_weights_have_the_spread_of_torch_linear() -> None:
    head = ProbingRagHead([f"s{i}" for i in range(4)], 64, hidden=128)
    weight = head.linear1.weight
    reference = float(nn.Linear(64, 128).weight.detach().std())
    assert weight.abs().max() <= 1 / 8 and float(weight.detach().std()) == pytest.approx(reference, rel=0.05)
    assert abs(float(np.corrcoef(weight[0].flatten().tolist(), weight[1].flatten().tolist())[0, 1])) < 0.05


def test_dropout_drops_its_share_and_only_while_training() -> None:
    head = ProbingRagHead(["a", "b"], 4, hidden=512, dropout=0.25)
    x = torch.ones(2, 200, 512)
    dropped = head.drop(x)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(dropped.max()) == pytest.approx(4 / 3) and float(dropped.mean()) == pytest.approx(
        1, abs=0.01
    )
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.equal(head.eval().drop(x), x)


def test_size_is_as_published() -> None:
    head = ProbingRagHead(["a"], 2048)
    half_precision_bytes = 2 * sum(p.numel() for p in head.parameters())
    assert 2.5e6 < half_precision_bytes < 5e6


def test_linear_head_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2, 5)) * [1, 10, 0.1, 3, 1] + [0, 5, 1, -2, 9]
    y = (x[:, 0, 0] + 0.1 * x[:, 0, 1] + rng.standard_normal(400) > 0.5).astype(int)
    states, target = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    head = LinearHead(["a", "b"], 5)
    head.prepare(states.double().mean(dim=0), states.double().std(dim=0, correction=0))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, tolerance_change=1e-10)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = sum(nn.functional.cross_entropy(head(states)[:, i], target) for i in range(2))
        value.backward()
        return value

    optimizer.step(loss)
    logits = head(states).detach().numpy()
    for i in range(2):
        z = StandardScaler().fit_transform(x[:, i])
        reference = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(z, y)
        np.testing.assert_allclose(
            logits[:, i, 1] - logits[:, i, 0], reference.decision_function(z), atol=0.02
        )


def test_constant_dimensions_are_harmless() -> None:
    head = LinearHead(["a"], 3)
    states = torch.randn(50, 3)
    states[:, 1] = 7.0
    head.prepare(states.double().mean(dim=0)[None], states.double().std(dim=0, correction=0)[None])
    assert torch.isfinite(head(states[:, None])).all() and head.scale[0, 1] == 1


@pytest.mark.parametrize("name", HEADS)
def test_selection_keeps_the_chosen_heads(name: str) -> None:
    head = make(name).eval()
    x = torch.randn(4, 3, 6)
    torch.testing.assert_close(head.select([2, 0])(x[:, [2, 0]]), head(x)[:, [2, 0]])


def test_wrong_shapes_and_names() -> None:
    head = make("linear")
    for shape in [(4, 2, 6), (4, 3, 5), (3, 6)]:
        with pytest.raises(ValueError, match=r"expected \(n, 3, 6\)"):
            head(torch.zeros(shape))
    assert [head_name(cls) for cls in HEADS.values()] == list(HEADS)

    class Mine(LinearHead):
        pass

    assert head_name(Mine).endswith("Mine")
