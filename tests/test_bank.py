"""The prober as an object: its score, its decision rule, and itself again after a save."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from probers.bank import SIGNALS, EntropyModel, ProbeBank, half_precision
from probers.features import FeatureSpec, ModelSpec
from probers.heads import LinearHead, ProbingRagHead
from probers.types import Needs, RunError, UserError

SPEC = FeatureSpec(ModelSpec("testbed", "abc", 6, 8, "float32"), layers=(2, 5), width=8, prompt="p1")
ENTROPY = EntropyModel((0.0,) * 5, (1.0,) * 5, (1.0, 2.0, 0.5, -1.0, -1.0), 0.25, threshold=0.1)


def make_bank(**fields: object) -> ProbeBank:
    head = half_precision(ProbingRagHead(["0/layer2", "0/layer5"], 8, hidden=16))
    return replace(
        ProbeBank(SPEC, head, threshold=0.3, temperature=1.7, metrics={"a": 1}, card="# hi\n"), **fields
    )


def make_states(n: int = 9) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, 2, 8)).astype(np.float16)


def make_signals(n: int = 9) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.uniform(size=n) for name in SIGNALS}


def test_score_is_the_papers_decision_rule() -> None:
    """Fires when sum logit[wrong] + theta > sum logit[correct], that is when score > -theta."""
    bank, states = make_bank(), make_states()
    logits = bank.logits(states)
    assert logits.shape == (9, 2, 2) and logits.dtype == np.float32
    score = bank.score(states)
    np.testing.assert_allclose(score, (logits[..., 0] - logits[..., 1]).sum(axis=1), rtol=1e-5)
    for theta in (-0.2, 0.0, 0.2):
        fires = logits[..., 0].sum(axis=1) + theta > logits[..., 1].sum(axis=1)
        np.testing.assert_array_equal(score > -theta, fires)
    np.testing.assert_allclose(bank(states), score)


def test_probabilities_variant_sums_softmaxes() -> None:
    bank, states = make_bank(combine="probabilities"), make_states()
    p = torch.from_numpy(bank.logits(states)).softmax(dim=-1).numpy()
    np.testing.assert_allclose(bank.score(states), (p[..., 0] - p[..., 1]).sum(axis=1), atol=1e-6)
    assert not np.allclose(bank.score(states), make_bank().score(states))


def test_batches_and_number_formats_do_not_matter() -> None:
    bank, states = make_bank(), make_states(2500)
    parts = np.concatenate([bank.score(states[:7]), bank.score(torch.from_numpy(states[7:]))])
    np.testing.assert_allclose(bank.score(states.astype(np.float32)), parts, atol=1e-5)


def test_probability_is_calibrated_by_the_temperature() -> None:
    bank, score = make_bank(), np.array([-1000.0, 0.0, 1.7])
    np.testing.assert_allclose(bank.probability(score), [0, 0.5, 1 / (1 + np.exp(-1))], atol=1e-9)
    np.testing.assert_allclose(bank.probability(score, with_entropy=True)[2], 1 / (1 + np.exp(-1.7)))


def test_entropies_join_the_score() -> None:
    bank, states, signals = make_bank(entropy_model=ENTROPY), make_states(), make_signals()
    expected = bank.score(states) + 2 * signals["mean_entropy"] + 0.5 * signals["max_entropy"]
    expected = expected - signals["min_prob"] - signals["mean_logprob"] + 0.25
    np.testing.assert_allclose(bank.score_with_entropy(states, signals), expected)
    np.testing.assert_allclose(bank.score(states, signals), expected)
    with pytest.raises(UserError, match="with_entropy=false"):
        make_bank().score_with_entropy(states, signals)
    with pytest.raises(RunError, match="min_prob is absent"):
        bank.score(states, {k: v for k, v in signals.items() if k != "min_prob"})
    signals["max_entropy"][3] = np.nan
    with pytest.raises(RunError, match="max_entropy has"):
        bank.score(states, signals)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    bank, states = make_bank(entropy_model=ENTROPY), make_states()
    bank.save_pretrained(tmp_path / "a")
    again = ProbeBank.from_pretrained(tmp_path / "a")
    np.testing.assert_array_equal(again.logits(states), bank.logits(states))
    for name in ("spec", "threshold", "temperature", "combine", "entropy_model", "metrics", "card", "needs"):
        assert getattr(again, name) == getattr(bank, name), name
    assert again.needs == Needs(layers=(2, 5), site="resid_post", pool="mean")
    again.save_pretrained(tmp_path / "b")
    files = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert files == ["README.md", "config.json", "heads.safetensors", "metrics.json"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_linear_heads_keep_their_standardisation(tmp_path: Path) -> None:
    head = LinearHead(["a", "b"], 8)
    states = torch.randn(50, 2, 8) * 1e-4 + 300.123  # half precision would lose all of it
    head.prepare(states.double().mean(dim=0), states.double().std(dim=0, correction=0))
    bank = ProbeBank(SPEC, half_precision(head))
    bank.save_pretrained(tmp_path)
    np.testing.assert_array_equal(ProbeBank.from_pretrained(tmp_path).logits(states), bank.logits(states))


def test_a_bank_cannot_be_trained_by_accident() -> None:
    bank = make_bank()
    assert not bank.head.training and not any(p.requires_grad for p in bank.head.parameters())
    with pytest.raises(AttributeError):
        bank.threshold = 0.0  # type: ignore[misc]


def test_broken_states_are_errors_and_never_certain() -> None:
    bank, states = make_bank(), make_states()
    states[4, 1, 3] = np.nan
    with pytest.raises(RunError, match="not finite"):
        bank.score(states)
    with pytest.raises(ValueError, match=r"expected \(n, 2, 8\)"):
        bank.score(make_states()[:, :1])


def test_another_model_is_refused_and_both_are_named() -> None:
    bank = make_bank()
    bank.check_model(SPEC.model)
    with pytest.raises(UserError, match=r"the prober came from the model testbed@abc .* now is gemma@def"):
        bank.check_model(ModelSpec("gemma", "def", 6, 8, "float32"))


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prober \(no config.json\)"):
        ProbeBank.from_pretrained(tmp_path)
    make_bank().save_pretrained(tmp_path / "p")
    weights = tmp_path / "p/heads.safetensors"
    blob = weights.read_bytes()
    weights.write_bytes(blob[:-10])
    with pytest.raises(UserError, match=r"heads\.safetensors is missing or damaged"):
        ProbeBank.from_pretrained(tmp_path / "p")
    weights.write_bytes(blob)
    config = json.loads((tmp_path / "p/config.json").read_text())
    for change, message in [
        ({"schema": 9}, "schema 1"),
        ({"head": {"name": "mine.Head", "options": {}}}, "pass .*head_class"),
        ({"temperature": None}, "damaged"),
        ({"entropy_model": {"inputs": ["score"]}}, "entropy model"),
    ]:
        (tmp_path / "p/config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            ProbeBank.from_pretrained(tmp_path / "p")
    (tmp_path / "p/config.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        ProbeBank.from_pretrained(tmp_path / "p")


class OwnHead(LinearHead):
    """A head that this package does not know."""


def test_a_users_own_head_class_loads_when_it_is_passed(tmp_path: Path) -> None:
    bank = ProbeBank(SPEC, half_precision(OwnHead(["a", "b"], 8)))
    bank.save_pretrained(tmp_path)
    again = ProbeBank.from_pretrained(tmp_path, head_class=OwnHead)
    np.testing.assert_array_equal(again.logits(make_states()), bank.logits(make_states()))


def test_the_hub_is_asked_only_where_no_folder_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    make_bank().save_pretrained(tmp_path / "cached")
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, revision: str | None = None) -> str:
        asked.append((repo, revision))
        if repo != "owner/prober":
            raise OSError("404 Client Error\nmore")
        return str(tmp_path / "cached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert ProbeBank.from_pretrained("owner/prober", revision="v1").layers == (2, 5)
    with pytest.raises(UserError, match=r"not on the Hub either \(404 Client Error\)"):
        ProbeBank.from_pretrained("owner/nothing")
    for path in ("runs/nothing", str(tmp_path / "nothing"), "./owner/x", "nothing"):
        with pytest.raises(UserError, match="is no prober"):
            ProbeBank.from_pretrained(path)
    assert asked == [("owner/prober", "v1"), ("owner/nothing", None)]


def test_push_uploads_what_save_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    uploaded: dict[str, list[str]] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None: ...

        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
            assert private and exist_ok

        def upload_folder(self, *, repo_id: str, folder_path: str) -> object:
            uploaded[repo_id] = sorted(f.name for f in Path(folder_path).iterdir())
            return type("Commit", (), {"commit_url": "https://hub/commit"})()

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert make_bank().push_to_hub("owner/prober") == "https://hub/commit"
    assert uploaded == {"owner/prober": ["README.md", "config.json", "heads.safetensors", "metrics.json"]}


def test_weights_beyond_half_precision_are_refused() -> None:
    head = LinearHead(["a", "b"], 8)
    with torch.no_grad():
        head.linear.weight[0, 0, 0] = 1e6
    with pytest.raises(RunError, match=r"linear\.weight are not finite in half precision"):
        half_precision(head)
