"""What states a prober knows: distances as the whole covariance gives them, alarms as promised."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted import make_store, make_token_store
from helpers.refusals import fails
from helpers.serving import PROMPT
from test_bank import make_bank, make_states

from probers.datagen.labels.rows import recorded, recorded_needs
from probers.model.language_model import Sampling
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.domain import Domain, limit_of
from probers.prober.prober import Prober
from probers.prober.token_scores import GrowingScores
from probers.train.data import Dataset, fit_domain
from probers.types import Needs, RunError


def some_domain(layers=2, width=8, k=3, limit=1.5):
    g = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(layers, width, k, generator=g)).Q.transpose(1, 2).half()
    variances = torch.rand(layers, k, generator=g) + 2
    mean, scale = torch.randn(layers, width, generator=g), torch.rand(layers, width, generator=g) + 0.5
    residual = torch.rand(layers, generator=g) + 0.1
    return Domain(mean, scale, directions.contiguous(), variances, residual, limit, 0.05)


def test_the_distance_is_that_of_the_whole_covariance_matrix():
    domain, states = some_domain(), make_states(5).astype(np.float64)
    squared = np.zeros((5, 2))
    for layer in range(2):
        u, variances = domain.components[layer].double().numpy(), domain.variances[layer].double().numpy()
        scale = np.diag(domain.scale[layer].double().numpy())
        inner = u.T @ np.diag(variances) @ u + float(domain.residual[layer]) * (np.eye(8) - u.T @ u)
        inverse = np.linalg.inv(scale @ inner @ scale)
        away = states[:, layer] - domain.mean[layer].double().numpy()
        squared[:, layer] = np.einsum("nd,de,ne->n", away, inverse, away) / 8
    np.testing.assert_allclose(domain(states).numpy(), np.sqrt(squared.mean(axis=1)), rtol=5e-3)
    assert domain.unlike(1.6) and not domain.unlike(1.5)


def test_the_fit_finds_the_subspace_its_variances_and_the_rest(store):
    """Against scikit-learn's PCA of the scaled states."""
    from sklearn.decomposition import PCA

    dataset = Dataset.load([store], [2, 3])
    domain, distances = fit_domain(dataset, dataset.columns[1:], 0.1)
    training = dataset.examples.rows["train"]
    states = dataset.states[torch.from_numpy(training)][:, 1:].double().numpy()
    for layer in range(2):
        x = states[:, layer]
        np.testing.assert_allclose(domain.mean[layer], x.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(domain.scale[layer], x.std(axis=0), rtol=1e-4)
        k = domain.components.shape[1]
        pca = PCA(k).fit((x - x.mean(axis=0)) / x.std(axis=0))
        variances = np.sort(domain.variances[layer].numpy())[::-1]
        np.testing.assert_allclose(variances[:2], pca.explained_variance_[:2], rtol=0.03)
        total = variances.sum() + (x.shape[1] - k) * float(domain.residual[layer])
        assert total == pytest.approx(x.shape[1], rel=1e-3)
    assert distances[training].mean() == pytest.approx(1, abs=0.1)
    beyond = distances > domain.limit
    assert beyond[dataset.examples.rows["validation"]].mean() <= 0.1
    assert 0.02 < beyond[dataset.examples.rows["test"]].mean() < 0.2


def test_texts_unlike_the_training_texts_are_told_and_others_are_not(tmp_path):
    dataset = Dataset.load([make_token_store(tmp_path / "store")], [2])
    domain, distances = fit_domain(dataset, dataset.columns[1:], 0.05)
    states = dataset.states[:][:, 1:].float()
    each = domain(states).numpy()
    for text in (0, 7, 130):  # a text's distance is the mean over its tokens
        assert distances[text] == pytest.approx(each[dataset.examples.members[text]].mean())
    rng = np.random.default_rng(0)
    moved = states + 4 * torch.from_numpy(rng.standard_normal(states.shape[-1])).float()
    assert (domain(moved) > domain.limit).float().mean() > 0.9
    assert (domain(states) > domain.limit).float().mean() < 0.2


def test_the_limit_is_the_conformal_quantile_and_keeps_its_promise():
    rng = np.random.default_rng(0)
    for n, rate, place in ((100, 0.05, 96), (19, 0.05, 19), (5, 0.05, 5), (99, 0.5, 50)):
        assert limit_of(rng.permutation(n) + 1.0, rate) == place
    beyond = [(rng.normal(size=200) > limit_of(rng.normal(size=39), 0.05)).mean() for _ in range(2000)]
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.005)


def test_coordinates_that_never_vary_and_few_rows_give_finite_distances(tmp_path):
    dataset = Dataset.load([make_store(tmp_path / "few", n=24)], [1])
    states = dataset.states[:].clone()
    states[:, :, 0] = 5.0
    domain, distances = fit_domain(replace(dataset, states=states), dataset.columns[1:], 0.05)
    assert np.isfinite(distances).all() and domain.unlike(float(domain(states[:1, [1]] + 1000)))
    with fails("failed", kind=RunError):
        domain(np.full((1, 1, 12), np.nan, np.float32))


def test_it_is_saved_with_the_prober_and_a_prober_without_one_has_none(tmp_path):
    states = make_states()
    for surprise in (None, (0.0, 0.5)):
        bank = make_bank(domain=replace(some_domain(), surprise=surprise))
        bank.save_pretrained(tmp_path / "with")
        again = Prober.from_pretrained(tmp_path / "with").domain
        assert torch.equal(again(states), bank.domain(states))
        assert (again.limit, again.rate, again.surprise) == (1.5, 0.05, surprise)
    make_bank().save_pretrained(tmp_path / "without")
    assert Prober.from_pretrained(tmp_path / "without").domain is None


def test_running_scores_know_the_distances_and_an_assessment_says_them():
    bank = make_bank(domain=some_domain(limit=1e3))
    states = torch.from_numpy(make_states(4)).float()
    running = GrowingScores(bank)
    for state in states:
        scores = running.add_each(["a", "b"], torch.stack([state, -state]))
    pooled = states.half().float().cumsum(dim=0) / torch.arange(1, 5)[:, None, None]
    np.testing.assert_allclose(running.distances("a"), bank.domain(pooled.half()), rtol=2e-3)
    record = WrittenText("p", "text", [(0, 4)] * 4, [0.0] * 3 + scores[:1], running.distances("a"))
    assert Assessor(bank)(record).domain.model_dump() == {
        "distance": running.distances("a")[-1], "limit": 1e3, "unlike": False, "surprise": None,
        "surprise_range": None,
    }  # fmt: skip
    running.forget("a")
    assert running.distances("a") == [] and len(running.distances("b")) == 4
    assert Assessor(bank)(WrittenText("p", "text", [(0, 4)], [0.0])).domain is None
    assert GrowingScores(make_bank()).distances("a") is None


def test_surprise_is_nothing_of_what_the_model_writes_itself_and_is_recorded_of_the_whole_text(lm):
    """Against the distributions of a plain forward pass."""
    needs = recorded_needs(Needs.of([4], pool="tokens"))
    (generation,) = lm.generate([PROMPT], max_new_tokens=16, needs=needs)
    (other,) = lm.score([PROMPT], [" nowhere in the seven towns that Bert Quill built."], needs=needs)
    (drawn,) = lm.generate([PROMPT], max_new_tokens=16, needs=needs, sampling=Sampling(temperature=1.5))
    for text in (generation, other, drawn):
        ids = torch.tensor([[*text.prompt_ids, *text.token_ids]])
        with torch.inference_mode():
            logits = lm.model(input_ids=ids).logits[0, len(text.prompt_ids) - 1 : -1]
        log_p = logits.double().log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        own_p = log_p[torch.arange(len(log_p)), list(text.token_ids)]
        wanted = (-own_p - entropy).clamp_min(0).mean().item()
        for tokens in (None, [1, 2]):  # of a span all the same
            assert recorded(text, tokens)["surprise"] == pytest.approx(wanted, abs=1e-4)
    written, others, drawn_ = (recorded(text)["surprise"] for text in (generation, other, drawn))
    assert written < 1e-4 and others > 0.5 and drawn_ > 0.1


@pytest.mark.parametrize("of_own", [True, False], ids=["own", "of another"])
def test_both_measures_together_flag_the_rate_of_like_texts(of_own):
    """Of own greedy texts, whose surprise never varies, the states have the whole rate."""
    rng, flagged, domain = np.random.default_rng(0), [], replace(some_domain(), rate=0.1)

    def draw(n):
        return rng.normal(1, 0.1, n), np.zeros(n) if of_own else rng.gamma(4, 0.1, n)

    for _ in range(200):
        distances, surprise = draw(199)
        fitted = domain.within(distances, surprise)
        flagged.append(fitted.unlike(*draw(300)).mean())
        assert not of_own or fitted.limit == limit_of(distances, 0.1)
    assert np.mean(flagged) == pytest.approx(0.1, abs=0.012)
    assert fitted.unlike(1.0, 9.0) and fitted.unlike(9.0, 0.4 * (not of_own)) and not fitted.unlike(1.0)
    assert fitted.unlike(1.0, 0.0) is not of_own  # too expected where the training texts were others'
    assert domain.within(distances).surprise is None and not domain.within(distances).unlike(1.0, 9.0)


def test_texts_of_another_writer_are_unlike_where_the_store_knows_it(tmp_path):
    rng = np.random.default_rng(0)

    def told(row):
        return row | {"surprise": 0.2 + 0.1 * float(np.random.default_rng(int(row["span"][1:])).random())}

    dataset = Dataset.load([make_token_store(tmp_path / "store", edit=told)], [2])
    domain, distances = fit_domain(dataset, dataset.columns[1:], 0.1)
    assert domain.surprise == (pytest.approx(0.19, abs=0.02), pytest.approx(0.31, abs=0.02))
    surprise = dataset.examples.surprise
    assert domain.unlike(distances, surprise).mean() < 0.2
    assert domain.unlike(distances, surprise + rng.uniform(0.2, 1, len(surprise))).all()
    old = Dataset.load([make_token_store(tmp_path / "old")], [2])
    assert old.examples.surprise is None and fit_domain(old, old.columns[1:], 0.1)[0].surprise is None
