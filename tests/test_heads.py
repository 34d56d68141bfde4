"""Batched heads: each is what it would be alone, and each kind is what its source says."""

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from hydra.utils import instantiate
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from probers import heads as h
from probers.cli.compose import compose
from probers.heads import HEADS, LinearHead, Moments, ProbeHead, factory, head_name, is_joint
from probers.heads.base import Dropout

STREAMS = ["0/layer1", "0/layer2", "0/layer3"]
OPTIONS: dict[str, dict[str, Any]] = {
    "probing_rag": {"hidden": 16, "dropout": 0.3},
    "radio": {"hidden": 16, "dropout": 0.3, "standardise": True},
    "mind": {"dropout": 0.3, "standardise": True}, "mean_difference": {"standardise": True},
    "concat": {"group_lasso": 0.1}, "sequence": {"size": 8, "blocks": 2, "window": 2},
    "foreign": {"hidden": 8},
}  # fmt: skip
#: Heads that are trained; a stack has those of its members.
TRAINED = [name for name in HEADS if name != "stacked"]
KINDS = [*TRAINED, "foreign"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Own(nn.Module):
    """A module of a user's: dropout, running statistics written in place and assigned."""

    mean_seen: Tensor

    def __init__(self, width: int, hidden: int = 4, outputs: int = 2) -> None:
        super().__init__()
        self.register_buffer("mean_seen", torch.zeros(()))
        self.net = nn.Sequential(
            nn.Linear(width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Dropout(0.3),
            nn.Linear(hidden, outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean_seen = 0.9 * self.mean_seen + 0.1 * x.mean()
        return self.net(x)


def moments(streams: Sequence[str], width: int) -> Moments:
    """Made up, and the same for a stream wherever it stands."""
    made = [torch.Generator().manual_seed(zlib.crc32(s[1:].encode())) for s in streams]
    drawn = torch.stack([torch.randn(4, width, generator=g, dtype=torch.float64) for g in made])
    return Moments(drawn[:, 0], drawn[:, 1].exp(), drawn[:, 2:])


def moments_of(states: Tensor, wrong: Tensor) -> Moments:
    x = states.double()
    means = torch.stack([x[wrong == 1].mean(dim=0), x[wrong == 0].mean(dim=0)], dim=1)
    return Moments(x.mean(dim=0), x.std(dim=0, correction=0), means)


def sizes(name: str, width: int, layers: int = 2) -> list[int]:
    """Sizes of a head's states, with the number of layers for heads that read several."""
    return [width, layers] if is_joint(HEADS.get(name)) else [width]


def make(name: str, streams: Sequence[str] = STREAMS, width: int = 6) -> ProbeHead:
    kind = Own if name == "foreign" else HEADS[name]
    head = factory(partial(kind, **OPTIONS.get(name, {})))(streams, *sizes(name, width))
    result = moments(streams, width)
    if head.joint:
        both = (result.mean, result.deviation, result.class_mean)
        result = Moments(*(torch.stack([each, each / 2], dim=-2) for each in both))
    head.prepare(result)
    return head


def run(head: ProbeHead, x: Tensor) -> Tensor:
    """Logits for (n, H, d).

    Where a head reads several layers, the second is made of the first. Where one reads tokens, each row is
    three, of which one is padding; of a logit for each token the last one's is given.
    """
    if head.joint:
        x = torch.stack([x, x.roll(2, dims=-1) / 2], dim=-2)
    if not (head.tokens or head.causal):
        return head(x)
    states = torch.stack([x, x.roll(1, dims=-1) * 2, torch.full_like(x, 1e3)], dim=1)
    logits = head(states, torch.tensor([True, True, False], device=x.device).expand(len(x), 3))
    return logits[:, 1] if head.causal else logits


@pytest.mark.parametrize("name", KINDS)
def test_a_head_reads_its_own_layer_only_and_gradients_do_not_cross(name: str) -> None:
    """Claim: a change in layer 2's states changes head 2; converse: it changes no other."""
    head, x = make(name), torch.randn(4, 3, 6)
    changed = x.clone()
    changed[:, 1] += torch.randn(4, 6)
    before, after = run(head.eval(), x), run(head, changed)
    assert before.shape == (4, 3, 2)
    assert not torch.allclose(before[:, 1], after[:, 1])
    torch.testing.assert_close(before[:, [0, 2]], after[:, [0, 2]])
    if head.learns:
        run(head.train(), x)[:, 1].square().sum().backward()
    for parameter in head.parameters():
        assert parameter.grad is not None and parameter.grad[1].abs().sum() > 0
        assert parameter.grad[[0, 2]].abs().sum() == 0


@pytest.mark.parametrize("name", [name for name in KINDS if name != "mean_difference"])
def test_a_head_trained_among_others_is_the_head_trained_alone(name: str) -> None:
    """Twelve steps of AdamW with dropout on, to float tolerance; and the steps did change it."""
    x = torch.randn(12, 8, 3, 6, generator=torch.Generator().manual_seed(0))
    targets = (x.mean(dim=-1) > 0).long()
    trained = []
    for chosen in ([0, 1, 2], [1]):
        head = make(name, [STREAMS[i] for i in chosen])
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
        for states, target in zip(x[:, :, chosen], targets[:, :, chosen], strict=True):
            optimizer.zero_grad()
            logits = run(head, states).flatten(0, 1)
            nn.functional.cross_entropy(logits, target.flatten(), reduction="sum").backward()
            optimizer.step()
        trained.append(head.state_dict())
    start, (together, alone) = make(name).state_dict(), trained
    for key, value in alone.items():
        torch.testing.assert_close(together[key][1:2], value, atol=1e-4, rtol=1e-3)
    assert any(not torch.allclose(together[key][1], start[key][1], atol=1e-2) for key in start)


@pytest.mark.parametrize("name", KINDS)
def test_the_same_streams_and_step_give_the_same_draws(name: str) -> None:
    """Two heads agree pass by pass; one that is set back to a step repeats it; evaluation draws nothing."""
    x, global_state = torch.randn(64, 3, 6), torch.get_rng_state()
    head, twin = make(name), make(name)
    first, second = run(head, x), run(head, x)
    assert torch.equal(run(twin, x), first) and torch.equal(run(twin, x), second)
    drops = name in ("probing_rag", "radio", "mind", "sequence", "foreign")
    assert torch.equal(first, second) == (not drops)
    head.step = 1
    assert torch.equal(run(head, x), second)
    head.eval()
    assert torch.equal(run(head, x), run(head, x)) and head.step == 2
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("name", KINDS)
def test_selection_keeps_the_chosen_heads(name: str) -> None:
    head = make(name)
    x = torch.randn(4, 3, 6)
    run(head, x)
    chosen = head.select([2, 0])
    assert chosen.streams == (STREAMS[2], STREAMS[0]) and type(chosen) is type(head)
    torch.testing.assert_close(run(chosen, x[:, [2, 0]]), run(head, x)[:, [2, 0]])  # the same masks too


@pytest.mark.parametrize("name", TRAINED)
def test_the_configuration_makes_the_head_of_its_name(name: str) -> None:
    config = compose("train", [f"head={name}"]).head
    head = factory(instantiate(config, _partial_=True))(["a"], *sizes(name, 8))
    assert type(head) is HEADS[name] and head_name(head) == name
    default = HEADS[name](["a"], *sizes(name, 8))
    assert head.options == default.options == {k: v for k, v in config.items() if k != "_target_"}


@pytest.mark.parametrize(("head", "plain"), [
    (h.ProbingRagHead(STREAMS, 6, hidden=16), [
        nn.LayerNorm(6), nn.Linear(6, 16), nn.SiLU(), nn.LayerNorm(16), nn.Dropout(0.1),
        nn.Linear(16, 16), nn.SiLU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 2),
    ]),
    (h.RadioHead(STREAMS, 6), [nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 2)]),
    (h.MindHead(STREAMS, 6), [
        nn.Dropout(0.2), nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64),
        nn.ReLU(), nn.Linear(64, 2),
    ]),
], ids=["probing_rag", "radio", "mind"])  # fmt: skip
def test_networks_are_the_published_stacks(head: ProbeHead, plain: list[nn.Module]) -> None:
    """Against plain torch modules with the same weights, for every head."""
    with torch.no_grad():
        for parameter in head.parameters():  # norms would hide in their initial ones and zeros
            parameter.add_(0.1 * torch.randn(parameter.shape))
    reference = nn.Sequential(*plain).eval()
    ours = [m for m in head.modules() if isinstance(getattr(m, "weight", None), nn.Parameter)]
    theirs = [m for m in plain if isinstance(m, (nn.Linear, nn.LayerNorm))]
    x = torch.randn(7, 3, 6)
    for i in range(3):
        with torch.no_grad():
            for a, b in zip(ours, theirs, strict=True):
                b.weight.copy_(a.weight[i].T if isinstance(b, nn.Linear) else a.weight[i])
                b.bias.copy_(a.bias[i])
        torch.testing.assert_close(head.eval()(x)[:, i], reference(x[:, i]), atol=1e-5, rtol=1e-5)


def test_initial_weights_have_the_spread_of_torch_linear() -> None:
    weight = h.ProbingRagHead(["a", "b"], 64, hidden=128).linear1.weight
    reference = float(nn.Linear(64, 128).weight.detach().std())
    assert weight.abs().max() <= 1 / 8 and float(weight.detach().std()) == pytest.approx(reference, rel=0.05)


def test_dropout_drops_its_share_and_only_while_training() -> None:
    drop, x = Dropout(["a", "b"], 0.25), torch.ones(2, 200, 511)
    dropped = drop(x, 0)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.005)
    assert float(dropped.max()) == pytest.approx(4 / 3)
    assert torch.equal(drop.eval()(x, 0), x)
    for dropout in (-0.1, 1.0):
        with fails("bad-value", f"dropout={dropout}"):
            h.ProbingRagHead(["a"], 4, dropout=dropout)


def test_dropout_masks_are_unrelated_along_every_axis() -> None:
    """Between heads, steps, places, rows and neighbouring units; 1/sqrt(n) is 0.003."""
    x = torch.ones(2, 200, 512)

    def mask(step: int, place: int = 1) -> np.ndarray:
        return (Dropout(["a", "b"], 0.5, place)(x, step) > 0).numpy().astype(float)

    now = mask(3)
    pairs = {
        "heads": (now[0], now[1]), "steps": (now, mask(4)), "places": (now, mask(3, 2)),
        "rows": (now[:, 1:], now[:, :-1]), "units": (now[..., 1:], now[..., :-1]),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015, name


def labelled(seed: int = 0) -> tuple[Tensor, Tensor]:
    """States (400, 2, 5) of very different scales, and classes that the first layer's tell."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, 2, 5)) * [1, 10, 0.1, 3, 1] + [0, 5, 1, -2, 9]
    y = (x[:, 0, 0] + 0.1 * x[:, 0, 1] + rng.standard_normal(400) > 0.5).astype(int)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def test_linear_head_agrees_with_scikit_learn() -> None:
    """Trained to the optimum."""
    states, target = labelled()
    head = LinearHead(["a", "b"], 5)
    head.prepare(moments_of(states, 1 - target))
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, tolerance_change=1e-10)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(head(states).flatten(0, 1), target.repeat_interleave(2))
        value.backward()
        return value

    optimizer.step(loss)
    logits = head(states).detach()
    for i in range(2):
        z = StandardScaler().fit_transform(states[:, i].double())
        reference = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(z, target)
        margins = logits[:, i, h.CORRECT] - logits[:, i, h.WRONG]
        np.testing.assert_allclose(margins, reference.decision_function(z), atol=0.02)


def test_mean_difference_is_one_at_the_wrong_mean_and_minus_one_at_the_other() -> None:
    """And has the decision boundary of scikit-learn's nearest centroid."""
    states, target = labelled()
    result = moments_of(states, 1 - target)
    for standardise in (True, False):
        head = h.MeanDifferenceHead(["a", "b"], 5, standardise=standardise)
        assert not head.learns and head.needs_moments and not list(head.parameters())
        head.prepare(result)
        # Rows: mean of the wrong states, mean of the correct ones, midway between the two.
        rows = torch.stack([*result.class_mean.unbind(dim=1), result.class_mean.mean(dim=1)]).float()
        logits = head(rows)
        margin = logits[..., h.WRONG] - logits[..., h.CORRECT]
        torch.testing.assert_close(margin, torch.tensor([[1.0], [-1], [0]]).expand(3, 2), atol=1e-5, rtol=0)
    margin = (head(states)[..., h.WRONG] - head(states)[..., h.CORRECT]).numpy()
    for i in range(2):
        reference = NearestCentroid().fit(states[:, i].numpy(), target).predict(states[:, i].numpy())
        np.testing.assert_array_equal(margin[:, i] < 0, reference == 1)


@pytest.fixture
def attention() -> h.AttentionPoolHead:
    """One that has learned; it begins as the mean of the tokens."""
    head, states = h.AttentionPoolHead(["a", "b"], 6), torch.randn(3, 4, 2, 6)
    weights = head.weights(states, torch.ones(3, 4, dtype=torch.bool))
    torch.testing.assert_close(weights, torch.full((3, 4, 2), 0.25))
    nn.init.normal_(head.query)
    return head


def test_attention_pool_is_torch_attention_over_the_tokens(attention: Any) -> None:
    """Against torch's own, with the query as the one query; of one token it is the linear map alone."""
    head, x = attention, torch.randn(4, 5, 2, 6)
    mask = torch.arange(5) < torch.tensor([[5], [1], [3], [4]])
    for i in range(2):
        normed = nn.LayerNorm(6, elementwise_affine=False)(x[:, :, i])
        query = head.query[i].expand(4, 1, 6)
        pooled = nn.functional.scaled_dot_product_attention(query, normed, normed, mask[:, None])[:, 0]
        expected = pooled @ head.linear.weight[i] + head.linear.bias[i]
        torch.testing.assert_close(head(x, mask)[:, i], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding", [1e4, float("nan")])
def test_attention_pool_does_not_read_padding(padding: float, attention: Any) -> None:
    """Neither forwards nor backwards, on either side; converse: what is not masked is read."""
    head, x = attention, torch.randn(3, 4, 2, 6)
    pad, true = torch.full_like(x, padding), torch.ones(3, 4, dtype=torch.bool)
    expected = head(x, true)
    for states, mask in (([x, pad], [true, ~true]), ([pad, x], [~true, true])):
        result = head(torch.cat(states, dim=1), torch.cat(mask, dim=1))
        torch.testing.assert_close(result, expected)
        head.zero_grad()
        result.sum().backward()
        assert head.query.grad is not None and torch.isfinite(head.query.grad).all()
    result = head(torch.cat([x, x * 2 + 1], dim=1), torch.cat([true, true], dim=1))
    assert not torch.allclose(result, expected)


def test_a_module_of_ones_own_is_built_under_its_stream_and_runs_as_itself() -> None:
    """Against the module alone: weights, logits, and the running statistics after training passes."""
    head = factory(partial(Own, hidden=8))(STREAMS, 6)
    assert isinstance(head, h.ForeignHead) and head_name(head).endswith("test_heads.Own")
    x = torch.randn(3, 20, 3, 6)
    plain = Own(6, hidden=8)
    plain.load_state_dict({k.removeprefix("module."): v[1] for k, v in head.state_dict().items()})
    for part in x:
        head(part)
        plain(part[:, 1])
    values = {k.removeprefix("module."): v[1] for k, v in head.state_dict().items()}
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(values[key], value)
    assert values["net.1.num_batches_tracked"] == 3 and values["mean_seen"] != 0
    torch.testing.assert_close(head.eval()(x[0])[:, 1], plain.eval()(x[0, :, 1]))


@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)"])
def test_one_logit_is_that_of_correct(shape: str) -> None:
    class Single(nn.Linear):
        def __init__(self, width: int) -> None:
            super().__init__(width, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze(0 if shape == "(n, 1)" else -1)

    head, x = factory(Single)(["a", "b"], 4), torch.randn(2, 2, 4)
    logits = head(x)
    expected = torch.einsum("nhd,hkd->nh", x, head.module.weight) + head.module.bias[:, 0]
    torch.testing.assert_close(logits[..., h.CORRECT] - logits[..., h.WRONG], expected)


class Three(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width, 3)


def test_what_cannot_be_a_head_is_refused_in_one_sentence() -> None:
    for kind, options, *named in [
        (Three, {}, "test_heads.Three", "(3, 3)"), (Own, {"hidden": -1}, "Own(6, hidden=-1)", "RuntimeError"),
        (Own, {"units": 3}, "test_heads.Own", "'units'"), (make, {}, "test_heads.make"),
        (LinearHead, {"hidden": 3}, "LinearHead", "'hidden'"),
    ]:  # fmt: skip
        with fails("own-class", *named):
            factory(partial(kind, **options))(["a"], 6)
