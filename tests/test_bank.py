"""The prober as an object: its score, its decision rule, and itself again after a save."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.artefacts import contents
from helpers.refusals import fails
from pytest import MonkeyPatch
from test_heads import Own

from probers.cli.compose import compose
from probers.cli.inputs import find_prober
from probers.heads import HEADS, LinearHead, Moments, ProbingRagHead, factory, is_joint
from probers.prober import io
from probers.prober.calibration import EntropyModel, Isotonic, Platt, Temperature
from probers.prober.decision import Ensemble, half_precision
from probers.prober.prober import Prober
from probers.prober.risk_control import Promise
from probers.prober.value_head import FILES as VALUE_HEAD
from probers.rag.triggers import Probing
from probers.signals import SIGNALS
from probers.store.spec import FeatureSpec, ModelSpec
from probers.types import Needs, Pool, RunError

SPEC = FeatureSpec(ModelSpec("testbed", "abc", 6, 8, "float32"), layers=(2, 5), width=8, prompt="p1")
ENTROPY = EntropyModel((0.0,) * 5, (1.0,) * 5, (1.0, 2.0, 0.5, -1.0, -1.0), 0.25, threshold=0.1)
FILES = ["README.md", "config.json", "heads.safetensors", "metrics.json"]
TOKENS = replace(SPEC, pool="tokens")


def make_bank(**fields: Any) -> Prober:
    head = half_precision(ProbingRagHead(["0/layer2", "0/layer5"], 8, hidden=16))
    made = {"threshold": 0.3, "calibration": Temperature(1.7), "metrics": {"a": 1}, "card": "# hi\n"}
    return Prober(**{"spec": SPEC, "head": head, **made, **fields})


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
    score = bank.score_states(states)
    np.testing.assert_allclose(score, (logits[..., 0] - logits[..., 1]).sum(axis=1), rtol=1e-5)
    for theta in (-0.2, 0.0, 0.2):
        fires = logits[..., 0].sum(axis=1) + theta > logits[..., 1].sum(axis=1)
        np.testing.assert_array_equal(score > -theta, fires)
    np.testing.assert_allclose(bank(states), score)
    states = make_states(2500)  # batches and number formats do not matter
    parts = np.concatenate([bank.score_states(states[:7]), bank.score_states(torch.from_numpy(states[7:]))])
    np.testing.assert_allclose(bank.score_states(states.astype(np.float32)), parts, atol=1e-5)


def test_probability_is_calibrated() -> None:
    bank, score = make_bank(), np.array([-1000.0, 0.0, 1.7])
    np.testing.assert_allclose(bank.probability(score), [0, 0.5, 1 / (1 + np.exp(-1))], atol=1e-9)
    np.testing.assert_allclose(bank.probability(score, with_entropy=True)[2], 1 / (1 + np.exp(-1.7)))
    steps = make_bank(calibration=Isotonic((0.0, 2.0), (0.25, 0.75)))
    np.testing.assert_allclose(steps.probability(np.array([-9.0, 0.0, 1.0, 9.0])), [0.25, 0.25, 0.5, 0.75])
    np.testing.assert_allclose(steps.probability(score, with_entropy=True)[1], 0.5)


def test_entropies_join_the_score() -> None:
    bank, states, signals = make_bank(entropy_model=ENTROPY), make_states(), make_signals()
    expected = bank.score_states(states) + 2 * signals["mean_entropy"] + 0.5 * signals["max_entropy"]
    expected = expected - signals["min_prob"] - signals["mean_logprob"] + 0.25
    np.testing.assert_allclose(bank.score_states(states, signals), expected)
    with fails("unsupported", "with_entropy=false"):
        make_bank().score_states(states, signals)
    with fails("failed", "min_prob", kind=RunError):
        bank.score_states(states, {k: v for k, v in signals.items() if k != "min_prob"})
    signals["max_entropy"][3] = np.nan
    with fails("failed", "max_entropy", kind=RunError):
        bank.score_states(states, signals)


PROMISE = Promise(0.1, 0.95, 312, 120, 4)


def back(bank: Prober, folder: Path, states: Any, **how: Any) -> Prober:
    """The prober after a save, with the same logits."""
    bank.save_pretrained(folder)
    again = Prober.from_pretrained(folder, **how)
    np.testing.assert_array_equal(again.logits(states), bank.logits(states))
    return again


@pytest.mark.parametrize("fields", [
    {"entropy_model": ENTROPY},
    {"ensemble": Ensemble("stacked", (0.5, -2.0), 0.25), "calibration": Platt(0.3, -1 / 3)},
    {"ensemble": Ensemble("best", (0, 1.0)), "calibration": Isotonic((-1 / 3, 0.1), (0.3, 2 / 3))},
    {"spec": TOKENS, "aggregate": "max"}, {"promise": PROMISE, "threshold": -0.25},
])  # fmt: skip
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, fields: dict[str, Any]) -> None:
    bank = make_bank(**fields)
    again = back(bank, tmp_path / "a", make_states())
    for name in bank.__dataclass_fields__:
        assert name == "head" or getattr(again, name) == getattr(bank, name), name
    assert again.needs == Needs.of((2, 5), site="resid_post", pool=bank.spec.pool)
    again.save_pretrained(tmp_path / "b")
    assert sorted(contents(tmp_path / "a")) == FILES
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_linear_heads_keep_their_standardisation_and_weights_beyond_half_precision_are_refused(tmp_path):
    head = LinearHead(["a", "b"], 8)
    states = torch.randn(50, 2, 8) * 1e-4 + 300.123  # half precision would lose all of it
    x = states.double()
    moments = Moments(x.mean(dim=0), x.std(dim=0, correction=0), torch.zeros(2, 2, 8).double())
    head.prepare(moments)
    back(Prober(SPEC, half_precision(head)), tmp_path, states)
    with torch.no_grad():
        head.linear.weight[0, 0, 0] = 1e6
    with fails("failed", "linear.weight", kind=RunError):
        half_precision(head)


def test_broken_states_are_errors_and_never_certain() -> None:
    bank, states = make_bank(), make_states()
    states[4, 1, 3] = np.nan
    with fails("failed", "not finite", kind=RunError):
        bank.score_states(states)
    with pytest.raises(ValueError):
        bank.score_states(make_states()[:, :1])


def test_another_quantization_is_taken_where_that_is_allowed_and_said(tmp_path: Path, caplog: Any) -> None:
    make_bank().save_pretrained(tmp_path)
    other = ModelSpec("testbed", "abc+4bit", 6, 8, "float32")
    with fails("mismatch", "testbed@abc", "testbed@abc+4bit", "allow_other=true"):
        Prober.from_pretrained(tmp_path).check_model(other)
    bank = Prober.from_pretrained(tmp_path, allow_other=True)
    for model in (SPEC.model, other, other):
        bank.check_model(model)
    assert caplog.text.count("warning: the prober came from the model testbed@abc (") == 1
    with fails("mismatch", "testbed@abc") as caught:  # another shape never is
        bank.check_model(replace(other, width=16))
    assert "allow_other" not in str(caught.value)
    bank.save_pretrained(tmp_path / "again")
    assert not Prober.from_pretrained(tmp_path / "again").allow_other


class OwnHead(LinearHead):
    """A head that this package does not know."""


@pytest.mark.parametrize(("kind", "options"), [(OwnHead, {}), (Own, {"hidden": 5})])
def test_a_users_own_head_loads_when_its_class_is_passed(tmp_path: Path, kind: Any, options: Any) -> None:
    head = factory(partial(kind, **options))(["a", "b"], 8)
    back(Prober(SPEC, half_precision(head)), tmp_path, make_states(), head_class=kind)
    with fails("own-class", "probing_rag", "head_class"):
        Prober.from_pretrained(tmp_path)
    with fails("own-class" if kind is Own else "damaged"):
        Prober.from_pretrained(tmp_path, head_class=Own if kind is OwnHead else OwnHead)


@pytest.mark.parametrize("name", [name for name in HEADS if name != "stacked"])
def test_every_kind_of_head_comes_back(tmp_path: Path, name: str) -> None:
    """A layer takes at most 5 MB at the width of Gemma 2B."""
    joint = is_joint(HEADS[name])
    heads = HEADS[name](["a"], 2048, 2) if joint else HEADS[name](["a", "b"], 2048)
    pool: Pool = "tokens" if heads.tokens or heads.causal else "mean"
    spec = FeatureSpec(replace(SPEC.model, width=2048), (2, 5), 2048, pool=pool)
    states = np.tile(make_states(), 256)
    bank = Prober(spec, half_precision(heads), aggregate="max" if heads.causal else None)
    again = back(bank, tmp_path, states[None] if heads.tokens else states)
    assert type(again.head) is HEADS[name] and again.head.options == heads.options
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 2 * 5e6


def test_the_hub_is_asked_only_where_no_folder_is_meant(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    make_bank().save_pretrained(tmp_path / "cached")
    requests: list[tuple[str, dict[str, Any]]] = []

    def download(repo: str, **options: Any) -> str:
        requests.append((repo, options))
        if repo != "owner/prober":
            raise OSError("404 Client Error\nmore")
        return str(tmp_path / "cached")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    given: dict[str, Any] = {"revision": "v1", "token": "t", "cache_dir": tmp_path}
    given |= {"local_files_only": True, "force_download": True}
    assert Prober.from_pretrained("owner/prober", **given).layers == (2, 5)
    with fails("no-artifact", "prober=owner/nothing", "404"):
        Prober.from_pretrained("owner/nothing")
    for path in ("runs/nothing", str(tmp_path / "nothing"), "./owner/x", "nothing"):
        with fails("no-artifact", path):
            Prober.from_pretrained(path)
    assert [repo for repo, _ in requests] == ["owner/prober", "owner/nothing"]
    patterns = requests[1][1]["allow_patterns"]
    assert requests[0][1] == given | {"allow_patterns": patterns}
    assert {*FILES, *VALUE_HEAD, "seen.json", "domain.safetensors", "plots/*.png"} <= {*patterns}
    (tmp_path / "cached/config.json").unlink()
    with fails("no-artifact", "config.json"):
        Prober.from_pretrained("owner/prober")


@pytest.fixture
def pushed(monkeypatch: MonkeyPatch) -> list[dict[str, Any]]:
    """What was sent to a Hub that is not there."""
    sent: list[dict[str, Any]] = []

    class Api:
        def __init__(self, token: str | None = None) -> None:
            self.token = token

        def create_repo(self, *, repo_id: str, private: bool | None, exist_ok: bool) -> Any:
            sent.append({"private": private, "token": self.token})
            return SimpleNamespace(repo_id=f"me/{repo_id.rpartition('/')[2]}")

        def upload_folder(self, *, folder_path: Path, **options: Any) -> str:
            files = {f.relative_to(folder_path).as_posix(): f.read_bytes() for f in folder_path.rglob("*.*")}
            sent[-1] |= {"files": files, **options}
            return "https://hub/commit"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    return sent


def test_push_uploads_what_save_writes(tmp_path: Path, pushed: list[dict[str, Any]]) -> None:
    bank, folder = make_bank(pictures={"roc.png": b"png"}, card=""), tmp_path / "p"
    options = {"private": True, "token": "t", "branch": "b", "create_pr": True, "commit_message": "m"}
    assert bank.push_to_hub("me/prober", **options) == "https://hub/commit"
    (sent,) = pushed
    arguments = {"private": True, "token": "t", "repo_id": "me/prober", "revision": "b", "create_pr": True}
    assert sent | arguments == sent
    assert bank.save_pretrained(folder) is None and len(pushed) == 1
    assert sent["files"] == {name: (folder / name).read_bytes() for name in [*FILES, "plots/roc.png"]}
    assert sent["files"]["README.md"] == b""  # no card is not the mixin's card
    url = bank.save_pretrained(tmp_path / "other", push_to_hub=True, private=True)
    assert url == "https://hub/commit" and pushed[1]["repo_id"] == "me/other"
    (other := make_bank()).save_pretrained(folder)
    (folder / "run.json").touch()
    with fails("out-taken", "run"):
        bank.save_pretrained(folder)
    assert Prober.from_pretrained(folder).pictures == {} and len({bank, other, bank}) == 2


SPANS = [(0, 9), (3, 4), (2, 6)]


@pytest.mark.parametrize("how", ["max", "mean", "last"])
def test_a_span_is_scored_by_its_tokens(how: str) -> None:
    bank, states = make_bank(spec=TOKENS, aggregate=how), make_states()
    alone = bank.score_states(states)
    np.testing.assert_allclose(alone, make_bank().score_states(states))
    of = {"max": np.max, "mean": np.mean, "last": lambda x: x[-1]}[how]
    expected = [of(alone[start:end]) for start, end in SPANS]
    np.testing.assert_allclose(bank.score_spans(states, SPANS), expected)
    np.testing.assert_allclose(bank.score_spans(torch.from_numpy(states), np.array(SPANS)), expected)
    assert bank.score_spans(states, []).shape == (0,)
    signals = make_signals(3)
    joined = replace(bank, entropy_model=ENTROPY).score_spans(states, SPANS, signals)
    np.testing.assert_allclose(joined, ENTROPY(np.array(expected), signals))
    for spans in ([(0, 10)], [(0, 2), (3, 3)], [(-1, 2)]):
        with pytest.raises(ValueError):
            bank.score_spans(states, spans)


class PoolHead(LinearHead):
    """Logits of the mean over a span's tokens."""

    tokens = True

    def _token_logits(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        assert mask.numel() <= 1024 or len(mask) == 1
        share = mask / mask.sum(dim=1, keepdim=True)
        return self._logits(torch.einsum("nt,nthd->hnd", share, x))


def test_heads_that_pool_tokens_read_spans_of_any_length() -> None:
    bank = Prober(TOKENS, PoolHead(["a", "b"], 8))
    pooled = Prober(SPEC, LinearHead(["a", "b"], 8))
    states = make_states(700)
    rng = np.random.default_rng(3)
    spans = [(s, s + n) for s, n in zip(rng.integers(0, 600, 90), rng.integers(1, 99, 90), strict=True)]
    spans[7] = (699, 700)  # nothing follows it to fill up with
    expected = pooled.score_states(np.stack([states[s:e].astype(np.float64).mean(axis=0) for s, e in spans]))
    np.testing.assert_allclose(bank.score_spans(states, spans), expected, atol=1e-6)
    mask = np.array([[1, 1, 1], [1, 0, 0]], dtype=bool)
    text = np.stack([states[:3], states[5:8]])
    expected = bank.score_spans(states, [(0, 3), (5, 6)])
    np.testing.assert_allclose(bank.score_states(text, mask=mask), expected, 1e-5)
    with fails("mismatch", "pool=mean"):
        Prober(SPEC, PoolHead(["a", "b"], 8))


@pytest.mark.parametrize(("changes", "code"), [
    ({"schema": 1}, "bad-file"), ({"format": "other"}, "bad-file"), ({"threshold": 0.1}, "damaged"),
    ({"sha256": None}, "damaged"),
])  # fmt: skip
def test_a_config_of_another_version_or_altered_is_refused(tmp_path: Path, changes: Any, code: Any) -> None:
    make_bank().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with fails(code, "schema 1" if "schema" in changes else "config.json"):
        Prober.from_pretrained(tmp_path)


SHIPPED = Path(__file__).parents[1] / "probers" / "prober" / "shipped" / "smollm2"


def test_the_shipped_one_is_found_by_name(tmp_path: Path, monkeypatch: MonkeyPatch, caplog: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert io.shipped("smollm2") == "smollm2" and io.locate("smollm2") == SHIPPED
    assert {io.shipped(name) for name in ("testbed", "../shipped/smollm2", "")} == {None}
    cfg = compose("rag", ["model.name=smollm2"])
    for kind in ("answers", "tokens"):
        assert find_prober(cfg, kind) == "smollm2"
        assert "prober: smollm2 (comes with probers" in caplog.text
    for config in ((cfg, "entities"), (compose("rag", []),)):
        with fails("no-artifact"):
            find_prober(*config)
    (tmp_path / "smollm2").mkdir()
    assert io.locate("smollm2") == Path("smollm2")


def test_the_shipped_one_scores_tokens_and_is_a_trigger() -> None:
    bank = Prober.from_pretrained("smollm2")
    assert bank.spec.pool == "tokens" and bank.spec.model.id == "smollm2" and bank.spec.width == 576
    assert bank.recogniser == "auto" and bank.seen is not None and bank.metrics and "# " in bank.card
    states = np.random.default_rng(0).normal(size=(5, len(bank.layers), 576)).astype(np.float32)
    chances = bank.probability(bank.score_spans(states, [(0, 2), (1, 5)]))
    assert chances.min() > 0 and chances.max() < 1
    assert Probing("smollm2").record["threshold"] == bank.threshold


@pytest.mark.parametrize("name", ["smollm2", "smollm2-chat", "smollm2-grounding"])
def test_shipped_ones_know_their_writer_and_that_of_grounding_takes_any(name: str) -> None:
    """Text of another writer is unlike the training texts by its surprise, the model's own is not."""
    prober = Prober.from_pretrained(name)
    domain, grounding = prober.domain, name == "smollm2-grounding"
    assert domain is not None and domain.rate == 0.05 and domain.unlike(1.01 * domain.limit, 0.0)
    assert not domain.unlike(0.99 * domain.limit, 0.0)  # greedy text surprises nobody
    assert domain.unlike(0.99 * domain.limit, 3.0 if grounding else 0.63) != grounding
    assert (prober.needs.of_passages and prober.pointer is not None) == grounding


@pytest.mark.parametrize("name", sorted(folder.name for folder in SHIPPED.parent.iterdir()))
def test_shipped_ones_are_small_and_say_nothing_of_a_machine(name: str) -> None:
    files = list((SHIPPED.parent / name).rglob("*"))
    assert {file.name for file in files} <= set(io.FILES)
    assert sum(file.stat().st_size for file in files) <= 3_000_000
    for text in (file.read_text() for file in files if file.suffix != ".safetensors"):
        assert not any(word in text for word in ("/tmp", "/work", "/home", "/root"))
