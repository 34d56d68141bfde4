"""Heads of several layers and of sequences: what they find that one linear head cannot, and how they grow."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.planted import SPEC, make_token_store
from helpers.refusals import fails
from sklearn.linear_model import LogisticRegression
from test_fit import aurocs, train
from torch.nn import functional as F

from probers.cli import main as cli
from probers.heads import ConcatHead, LinearHead, MixHead, SequenceHead
from probers.model.recorder import as_places
from probers.prober.prober import Prober
from probers.prober.token_scores import GrowingScores
from probers.store.joined import Sources
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.train.data import Column, Dataset
from probers.train.heads import Task

WIDTH, LAYERS = 6, (1, 2)
JOINT = Task(Column.of("resid_post", LAYERS))
ALONE = [Task(Column("resid_post", layer)) for layer in (1, 2)]
#: Small enough for tests, with a reach of nine tokens.
SMALL: Any = {"size": 16, "blocks": 2, "window": 5}
TOKENS = FeatureSpec(replace(SPEC.model, width=WIDTH), LAYERS, WIDTH, pool="tokens", dtype="float32")


def token_rows(text: int, spans: list[int | None]) -> list[dict[str, Any]]:
    """Rows of a text's tokens by the label of each, 1 wrong, 0 right, None unjudged; a mark for each run."""
    split = ("train", "train", "validation", "test")[text % 4]
    rows, mark = [], 0
    for token, label in enumerate(spans):
        mark += token > 0 and label != spans[token - 1]
        rows.append({
            "id": f"t{text}#{token}", "span": f"t{text}", "token": token, "group": f"g{text}", "split": split,
            "correct": int(1 not in spans), "token_wrong": -1 if label is None else label, "mark": mark,
            "inside": -1 if label is None else 1, "sentence": 0, "dataset": "d", "condition": "read",
            "text": "x", "question": f"q{text}", "answer": "a", "gold": "", "question_type": "",
            "answer_kind": "", "knowledge": "", "cut_at": token, "n_tokens": 2, "mean_entropy": 0.1 * token,
            "max_entropy": 1.0, "min_prob": 0.5, "mean_logprob": -0.1, "rind_max": None,
        })  # fmt: skip
    return rows


def planted(path: Path, kind: str, texts: int = 400) -> FeatureStore:
    """A store of tokens whose signal lies in two layers together ("layers") or before the span ("before").

    That of "attention" is in 8 lookback ratios alone, which need two places beside states of 6 numbers.

    "layers": both layers hold the same large noise along one direction, with the label's sign only in one of
    them, so that it shows in their difference. "before": the second token before a wrong span is marked.
    """
    rng = np.random.default_rng(0)
    rows, states, ratios = [], [], list[np.ndarray]()
    for text in range(texts):
        wrong = int(rng.integers(2))
        labels: list[int | None] = [*[None] * int(rng.integers(3, 6)), wrong, wrong]
        each = rng.standard_normal((len(labels), 3, WIDTH))
        if kind == "layers":
            shared = 9 * rng.standard_normal(len(labels))
            each[:, 1, 0], each[:, 2, 0] = shared, -shared
            each[-2:, 2, 0] += 2.5 * (2 * wrong - 1)
        elif kind == "before" and wrong:
            each[-4, :, 0] += 6
        rows += token_rows(text, labels)
        states.append(each)
        ratios.append(rng.random((len(labels), 1, 8)))
        ratios[-1][-2:, 0, 7] = 0.5 + (wrong - 0.5) * rng.random(2)
    model = replace(SPEC.model, layers=2, width=WIDTH)
    spec = FeatureSpec(model, (0, *LAYERS), WIDTH, pool="tokens", position="token", prompt="p")
    specs, parts = [spec], [states]
    if kind == "attention":
        specs, parts = [spec, replace(spec, layers=(2,), width=8, site="lookback")], [states, ratios]
    store = FeatureStore.create(path, specs, config={})
    units = [f"t{i}" for i in range(texts)]
    store.write_shard(0, rows, *(np.concatenate(part).astype(np.float32) for part in parts), units=units)
    store.finish({})
    return FeatureStore.open(path)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.load([planted(tmp_path_factory.mktemp("planted") / "layers", "layers")])


HOW: Any = {"lr": 2e-2, "epochs": 12, "batch_size": 16}


@pytest.mark.parametrize("head", [ConcatHead, MixHead, partial(SequenceHead, **SMALL)])
def test_two_layers_together_tell_what_neither_does_alone(layers: Dataset, head: Any) -> None:
    """Claim: a head of both layers finds the signal; converse: no linear head of one layer does."""
    (auroc,) = aurocs(layers, train(layers, [JOINT], head, **HOW), "mean")
    assert auroc > 0.9
    assert max(aurocs(layers, train(layers, ALONE, LinearHead, **HOW), "mean")) < 0.75


def test_only_a_sequence_head_reads_what_stands_before_a_span(tmp_path: Path) -> None:
    """Converse: not the same head where its window ends before it, nor a linear head of both layers."""
    before, one = Dataset.load([planted(tmp_path / "before", "before")]), {**SMALL, "blocks": 1}
    far, near = (partial(SequenceHead, **{**one, "window": window}) for window in (5, 2))
    made = [aurocs(before, train(before, [JOINT], head, **HOW), "max")[0] for head in (far, near, ConcatHead)]
    assert made[0] > 0.9 and max(made[1:]) < 0.65


@pytest.fixture(scope="module")
def ratios(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return planted(tmp_path_factory.mktemp("planted") / "ratios", "attention")


@pytest.mark.parametrize("head", [ConcatHead, partial(SequenceHead, **SMALL)])
def test_a_signal_of_attention_alone_is_read_beside_the_states(ratios: FeatureStore, head: Any) -> None:
    """Claim: heads that read it find it; converse: not the same heads of states, nor a linear one."""
    sources = Sources.of([ratios], None, None, ["lookback"])
    beside, plain = Dataset.load(sources.stores, beside=sources.beside), Dataset.load(sources.stores)
    task = Task(Column.of("resid_post", LAYERS, beside.beside_places))
    assert aurocs(beside, train(beside, [task], head, **HOW), "max")[0] > 0.95
    others = [
        *aurocs(plain, train(plain, [JOINT], head, **HOW), "max"),
        *aurocs(plain, train(plain, ALONE, LinearHead, **HOW), "max"),
    ]
    assert max(others) < 0.65


FAST = ["pool=tokens", "epochs=2", "resamples=100", "device=cpu", "learning_curve=false", "domain=0.1"]


def test_a_prober_that_reads_beside_the_states_is_saved_and_scores_the_store(ratios, tmp_path):
    typed = [f"data={ratios.path}", f"out={tmp_path / 'p'}", *FAST, "head=concat", "beside=[lookback]"]
    out = cli.run("train", typed)
    bank, figures = Prober.from_pretrained(out), json.loads((out / "metrics.json").read_text())
    assert bank.needs.features[0].beside == ("lookback",) and bank.head.reads == (4, WIDTH)
    assert list(figures["layer_weights"]) == ["1", "2", "lookback"]
    states = ratios.feature(site="resid_post").states(LAYERS)[-2:]
    heads = as_places(ratios.feature(site="lookback").states((2,)), WIDTH)[-2:]
    first = bank.score_states(np.concatenate([states, heads], axis=1))
    heads[..., 0] += 1
    assert np.abs(bank.score_states(np.concatenate([states, heads], axis=1)) - first).min() > 0
    with fails("unsupported", "lookback", "beside=[]"):
        GrowingScores(bank)
    assert bank.domain is not None and bank.domain.shape == (4, WIDTH)


def test_the_search_tries_what_the_store_has_beside_its_states(ratios: FeatureStore, tmp_path: Path) -> None:
    typed = [f"data={ratios.path}", f"out={tmp_path / 'p'}", *FAST, "heads=[linear,concat]", "folds=2"]
    out = cli.run("search", [*typed, "layer_sets=[all]", "lr=0.02", "epochs=6", "batch_size=16"])
    results = json.loads((out / "search.json").read_text())
    assert results["winner"] == "concat, all + lookback"
    assert {row["name"] for row in results["tried"]} == {"linear, all", "concat, all", results["winner"]}
    assert Prober.from_pretrained(out).needs.features[0].beside == ("lookback",)


def test_joined_layers_are_one_logistic_regression(layers: Dataset) -> None:
    """Against scikit-learn on the joined states, without a penalty, by the margins of the test tokens."""
    how = {
        "lr": 2e-2, "epochs": 150, "batch_size": 64, "weight_decay": 0.0, "warmup_epochs": 149, "checks": 1,
    }  # fmt: skip
    fitted = train(layers, [JOINT], ConcatHead, gamma=1.0, **how)
    examples, members = layers.examples, layers.examples.members
    rows = {split: np.concatenate([members[i] for i in indices]) for split, indices in examples.rows.items()}
    x = {split: layers.states[indices][:, 1:].float() for split, indices in rows.items()}
    wrong = examples.wrong[examples.text_of]
    reference = LogisticRegression(C=np.inf, max_iter=5000)
    reference.fit(x["train"].flatten(1).numpy(), wrong[rows["train"]])
    with torch.inference_mode():
        logits = fitted.head(x["test"][:, None])[:, 0]
    ours = (logits[:, 0] - logits[:, 1]).numpy()
    theirs = reference.decision_function(x["test"].flatten(1).numpy())
    assert np.corrcoef(ours, theirs)[0, 1] > 0.99


def test_group_lasso_drops_a_layer_that_adds_nothing(tmp_path: Path) -> None:
    """The embedding layer has no signal; converse: without the penalty it keeps its weight."""
    data = Dataset.load([make_token_store(tmp_path / "tokens")])
    task = Task(Column.of("resid_post", (0, 2)))
    how = {"lr": 1e-2, "epochs": 20, "batch_size": 32, "gamma": 1.0}
    heads = [partial(ConcatHead, group_lasso=strength) for strength in (0.0, 0.1)]
    free, bound = (train(data, [task], head, **how).head.layer_weights() for head in heads)
    assert free is not None and free[0, 0] > 0.1
    assert bound is not None and bound[0].tolist() == [0, 1]
    with fails("bad-value", "group_lasso"):
        ConcatHead(["a"], 4, 2, group_lasso=-1.0)


def test_the_proximal_step_is_that_of_the_penalty() -> None:
    """Against the closed form: the minimum of |W - V|^2 / 2 + rate lambda sqrt(d) |W|."""
    head = ConcatHead(["a"], 4, 2, group_lasso=0.5)
    with torch.no_grad():
        head.linear.weight[0, 4:] *= 0.01
    first = head.linear.weight.detach().clone()[0].view(2, 8)
    head.shrink({"linear.weight": torch.full_like(head.linear.weight, 0.1)})
    after = head.linear.weight.detach()[0].view(2, 8)
    step = 0.1 * 0.5 * 2
    torch.testing.assert_close(after[0], first[0] * (1 - step / first[0].norm()))
    assert (after[1] == 0).all() and first[1].norm() < step


def sequence(**options: Any) -> SequenceHead:
    """A head with large random parameters, so that every input matters."""
    torch.manual_seed(0)
    head = SequenceHead(["a"], WIDTH, 2, **{**SMALL, "size": 64, **options}).eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.5)
    return head


def attention_by_hand(head: SequenceHead, x: torch.Tensor) -> torch.Tensor:
    """The same transformer for one text (T, L, d), token by token with plain torch; one head in the stack."""
    inner = (x - head.input.mean[0]) / head.input.scale[0]
    h = F.linear(inner.flatten(1), head.embed.weight[0].T, head.embed.bias[0])
    for block in head.stack:
        normed = F.layer_norm(h, h.shape[-1:], block.norm1.weight[0], block.norm1.bias[0])
        q, k, v = (normed @ block.qkv.weight[0]).chunk(3, dim=-1)
        rows = []
        for t in range(len(h)):
            seen = range(max(0, t - head.window + 1), t + 1)
            parts = []
            for a, part in enumerate(torch.arange(head.size).split(32)):
                scores = torch.stack(
                    [q[t, part] @ k[s, part] / len(part) ** 0.5 + block.bias[0, a, t - s] for s in seen]
                )
                parts.append(sum(w * v[s, part] for w, s in zip(scores.softmax(0), seen, strict=True)))
            rows.append(torch.cat(parts))
        h = h + F.linear(torch.stack(rows), block.out.weight[0].T, block.out.bias[0])
        normed = F.layer_norm(h, h.shape[-1:], block.norm2.weight[0], block.norm2.bias[0])
        up = F.gelu(F.linear(normed, block.up.weight[0].T, block.up.bias[0]))
        h = h + F.linear(up, block.down.weight[0].T, block.down.bias[0])
    h = F.layer_norm(h, h.shape[-1:], head.norm.weight[0], head.norm.bias[0])
    return F.linear(h, head.linear.weight[0].T, head.linear.bias[0])


def test_it_is_a_plain_transformer() -> None:
    head, x = sequence(), torch.randn(12, 2, WIDTH)
    with torch.inference_mode():
        logit = head(x[None, :, None], torch.ones(1, 12, dtype=torch.bool))[0, :, 0]
        torch.testing.assert_close(logit, attention_by_hand(head, x), atol=1e-5, rtol=1e-4)


def test_what_lies_outside_the_causal_window_changes_nothing() -> None:
    """Nor do padding and later tokens; converse: the first token within the reach does."""
    head = sequence()
    assert head.reach == 9
    x, mask = torch.randn(1, 30, 1, 2, WIDTH), torch.ones(1, 30, dtype=torch.bool)
    with torch.inference_mode():
        whole = head(x, mask)[0, 20]
        mixed = x.clone()
        mixed[:, :12] = x[:, torch.randperm(12)] * 3
        mixed[:, 21:] = float("nan")
        torch.testing.assert_close(head(mixed, mask & (torch.arange(30) <= 20))[0, 20], whole)
        mixed = x.clone()
        mixed[:, 12] += 1
        assert (head(mixed, mask)[0, 20] - whole).abs().max() > 1e-4


def grown(growing: GrowingScores, texts: list[torch.Tensor]) -> list[list[float]]:
    """Scores of texts (n, layers, d) that begin two steps after each other and end at different times."""
    scores = [list[float]() for _ in texts]
    for step in range(24):
        live = [i for i, text in enumerate(texts) if 0 <= step - 2 * i < len(text)]
        if live:
            states = torch.stack([texts[i][step - 2 * i] for i in live])
            for i, score in zip(live, growing.add_each(live, states), strict=True):
                scores[i].append(score)
    return scores


@pytest.mark.parametrize("window", [1, 5])
def test_growing_texts_have_the_scores_of_whole_ones(window: int) -> None:
    """Three texts that begin and end at different times, beside each other and alone."""
    bank = Prober(TOKENS, sequence(window=window), aggregate="max")
    texts = [torch.randn(n, 2, WIDTH) for n in (14, 9, 20)]
    growing = GrowingScores(bank)
    grown_scores = grown(growing, texts)
    for text, scores in zip(texts, grown_scores, strict=True):
        np.testing.assert_allclose(scores, bank.score_states(text), atol=1e-4)
    growing.forget(0)  # what begins under a name of before begins anew
    (again,) = growing.add_each([0], texts[0][:1])
    assert again == pytest.approx(grown_scores[0][0], abs=1e-4)


def test_a_marked_span_is_scored_alone_and_not_while_it_grows() -> None:
    bank = Prober(TOKENS, sequence(marker=True), aggregate="max")
    with fails("unsupported", "score_spans"):
        GrowingScores(bank)
    x, mask = torch.randn(15, 2, WIDTH), torch.ones(1, 15, dtype=torch.bool)
    with torch.inference_mode():
        inside = torch.zeros(1, 15, dtype=torch.bool)
        inside[:, 10:12] = True
        logits, unmarked = (bank.head(x[None, :, None], mask, *more)[0, 10:12, 0] for more in ([inside], []))
    assert (logits - unmarked).abs().max() > 1e-3
    best = float((logits[:, 0] - logits[:, 1]).max())
    assert bank.score_spans(x, [[10, 12], [0, 3]])[0] == pytest.approx(best, abs=1e-4)
