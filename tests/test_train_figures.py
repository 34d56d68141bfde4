"""Figures, pictures, card and table of a training run, from scores whose quality is known."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from helpers.planted import make_rows
from helpers.refusals import fails
from sklearn import metrics as sk

from probers.evaluation import metrics as m
from probers.evaluation.bootstrap import Bootstrap
from probers.heads import LinearHead
from probers.prober import figures as schema
from probers.prober.calibration import fit_calibration
from probers.prober.decision import ThresholdRule
from probers.prober.figures import ENSEMBLE, SHUFFLED, WITH_ENTROPY, Figures
from probers.prober.report import Report, warnings
from probers.store.spec import FeatureSpec, ModelSpec
from probers.train import plots as draw
from probers.train.assemble import Detector, control_detectors
from probers.train.before_after import COMBINED, WITH_SIGNALS, moment_figures
from probers.train.data import Column
from probers.train.evaluate import Evaluator, summarise
from probers.train.examples import Examples
from probers.train.report import write_card
from probers.types import RunError

pytestmark = pytest.mark.usefixtures("pictures")


def make_examples(*, datasets: int = 1) -> Examples:
    """Planted texts of 400 groups; entropies and texts know a little of the labels."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(make_rows(1600, rng, rng.integers(0, 2, 1600), rng.integers(0, 2, 1600)))
    group = np.arange(1600) // 4
    table["group"] = [f"g{g}" for g in group]
    table["split"] = np.array(["train", "validation", "test", "test"])[group % 4]
    table["dataset"] = [f"set{g // 4 % datasets}" for g in group]
    rows = {split: np.flatnonzero(table["split"] == split) for split in ("train", "validation", "test")}
    return Examples(table, rows)


def evaluator_of(examples: Examples) -> Evaluator:
    return Evaluator(examples, ThresholdRule(), resamples=100, seed=0)


def plain(parts: Any) -> dict[str, Any]:
    """Figures by name as JSON has them."""
    if isinstance(parts, schema.Part):
        return parts.to_dict()
    return {name: plain(part) for name, part in parts.items()}


def noisy(examples: Examples, distance: float, seed: int) -> np.ndarray:
    """Normal scores of both classes, so many standard deviations apart: AUROC Phi(distance / sqrt 2)."""
    rng = np.random.default_rng(seed)
    return distance * (examples.wrong - 0.5) + rng.standard_normal(len(examples.table))


def make_trained(
    examples: Examples, *, curve: bool = True, leak: bool = False, position: str = "generated"
) -> Any:
    wrong, validation = examples.wrong, examples.rows["validation"]
    columns = [Column("resid_post", k) for k in (1, 2, 3)]
    layers = {c: Detector(str(c), 3 * noisy(examples, 0.4 + 0.1 * c.layer, c.layer), "") for c in columns}
    auroc = {k: float(m.auroc(wrong[validation], d.scores[validation])) for k, d in layers.items()}
    margins = np.stack([d.scores for d in layers.values()], axis=1)
    score = margins.sum(axis=1)
    known = wrong[validation], score[validation]
    calibrations = {kind: fit_calibration(kind, *known) for kind in ("temperature", "isotonic")}
    saved = calibrations["temperature"]
    ensembles = {
        "logits": Detector("sum", score, "", saved, 0.0),
        "probabilities": Detector("p", np.tanh(margins / 2).sum(axis=1), ""),
        "best": Detector("b", margins[:, 0], ""),
        "stacked": Detector("s", margins.mean(axis=1), ""),
    }
    permuted = wrong.copy()
    for rows in examples.rows.values():
        permuted[rows] = np.random.default_rng(1).permutation(wrong[rows])
    controls, notes = control_detectors(examples)
    scale = 0.1 if leak else 1e9
    controls.append(Detector(SHUFFLED, permuted + noisy(examples, 0, 8) * scale, "", wrong=permuted))
    model = ModelSpec("testbed", "abc", 40, 12, "float32")
    spec = FeatureSpec(model, (1, 2, 3), 12, position=position, prompt="p")
    bank = SimpleNamespace(
        promise=None, pointer=None, label="wrong",
        spec=spec, layers=spec.layers, head=LinearHead(list(map(str, spec.layers)), 4), threshold=0.0,
        calibration=saved, combine="logits", aggregate=None, entropy_model=None, domain=None, adapter=None,
    )  # fmt: skip
    points = [
        SimpleNamespace(
            share=share, n=int(share * 400), groups=int(share * 100),
            layer=Detector("l", noisy(examples, share, 5), ""),
            ensemble=Detector("e", noisy(examples, 1.2 * share, 6), ""),
        )
        for share in (0.1, 0.5, 1.0)
    ]  # fmt: skip
    return SimpleNamespace(
        bank=bank, layers=layers, ensembles=ensembles, saved=ensembles["logits"], controls=controls,
        notes=notes, seeds={}, calibrations=calibrations, distances=None,
        token_scores=None, members=(), adapter=None,
        validation={k: {"accuracy": 0.6, "loss": 0.6, "auroc": value} for k, value in auroc.items()},
        with_entropy=Detector("we", score / score.std() + 2 * examples.table["mean_entropy"].to_numpy(), ""),
        person=np.where(examples.table["answer_kind"] == "person", -1.0, 1.0),
        best=max(auroc, key=auroc.__getitem__), curve=points if curve else [],
    )  # fmt: skip


@pytest.fixture(scope="module")
def examples() -> Examples:
    return make_examples()


@pytest.fixture(scope="module")
def run(examples: Examples) -> Any:
    """A whole run: what was trained, and its figures."""
    trained = make_trained(examples)
    evaluator = evaluator_of(examples)
    summary = summarise(trained, evaluator, {"steps": 7})
    return SimpleNamespace(trained=trained, evaluator=evaluator, summary=summary, figures=summary.to_dict())


def test_many_figures_at_once_are_those_of_one_at_a_time(examples: Examples) -> None:
    """Value and interval of each of the nine, over blocks of resamples that do not come out even."""
    rows = examples.rows["test"]
    wrong, groups = examples.wrong[rows], examples.table["group"].to_numpy()[rows]
    scores = np.round(noisy(examples, 1.0, 0), 1)
    evaluator = Evaluator(examples, ThresholdRule(), resamples=203, seed=0)
    detector = evaluator.calibrated(Detector("x", scores, ""))
    assert detector.probability is not None and detector.threshold is not None
    figures = evaluator.figures(detector).to_dict()
    one = Bootstrap(groups, resamples=203, seed=0)
    fired, probability = (scores[rows] > detector.threshold).astype(float), detector.probability(scores[rows])
    for name, metric, values in (
        ("auroc", m.auroc, scores[rows]), ("auprc", m.auprc, scores[rows]), ("prr", m.prr, scores[rows]),
        ("recall_at_fpr10", m.recall_at_fpr, scores[rows]), ("accuracy", m.accuracy, fired),
        ("balanced_accuracy", m.balanced_accuracy, fired), ("f1", m.f1_detection, fired),
        ("brier", m.brier, probability), ("ece", None, probability),
    ):  # fmt: skip
        expected = (
            one.interval(values, partial(metric, wrong)) if metric else m.ece_interval(one, wrong, values)
        )
        assert figures[name] == pytest.approx(expected.value, abs=1e-12), name
        assert figures[f"{name}_ci"] == pytest.approx([expected.low, expected.high], abs=1e-6), name
    assert figures["base_rate"] == wrong.mean() and figures["fired"] == fired.mean()


def test_a_constant_ranks_nothing_and_a_score_that_is_no_number_is_an_error(examples: Examples) -> None:
    scores = np.zeros(len(examples.table))
    figures = evaluator_of(examples).figures(Detector("x", scores, "", lambda s: s + 0.5, 0.0)).to_dict()
    assert figures["auroc"] is None and figures["prr_ci"] is None and figures["accuracy"] is not None
    json.dumps(figures, allow_nan=False)
    scores[examples.rows["test"][3]] = np.nan
    with fails("failed", "1 of 800", kind=RunError):
        evaluator_of(examples).figures(Detector("x", scores, "", lambda s: s, 0.0))


def test_figures_within_a_condition_are_those_of_its_texts(examples: Examples) -> None:
    evaluator = evaluator_of(examples)
    # Ranks well only within a condition.
    scores = noisy(examples, 1.0, 0) + 5.0 * (examples.table["condition"] == "with_passages").to_numpy()
    detector = Detector("x", scores, "")
    overall = {"x": evaluator.figures(detector)}
    figures = plain(evaluator.by("condition", [detector], overall))
    assert set(figures) == {"closed_book", "with_passages"} and overall["x"].auroc < 0.7
    for condition, entry in figures.items():
        rows = examples.rows["test"][examples.column("condition", "test") == condition]
        wrong, inside = examples.wrong[rows], entry["detectors"]["x"]
        assert entry["n"] == len(rows) and entry["base_rate"] == wrong.mean()
        assert 0.7 < inside["auroc"] == pytest.approx(sk.roc_auc_score(wrong, scores[rows]))
        # The threshold is that of all texts: no condition is calibrated for itself.
        assert inside["threshold"] == overall["x"].threshold
        assert inside["accuracy"] == pytest.approx(np.mean((scores[rows] > inside["threshold"]) == wrong))


def test_pairs_are_paired_differences(examples: Examples) -> None:
    evaluator, rows = evaluator_of(examples), examples.rows["test"]
    kinds = (("g", 1.5, 0), ("s", 1.5, 0), ("p", 0.2, 1))
    good, same, poor = (Detector(n, noisy(examples, d, s), "") for n, d, s in kinds)
    constant = Detector("constant", np.ones(len(examples.table)), "")
    pairs = plain(evaluator.pairs([good], [same, poor, constant]))
    assert set(pairs) == {"g vs s", "g vs p"}
    assert pairs["g vs s"]["auroc"] == {"diff": 0.0, "ci95": [0.0, 0.0]}
    metric = partial(m.auroc, examples.wrong[rows])
    expected = evaluator.bootstrap.difference(good.scores[rows], poor.scores[rows], metric)
    assert pairs["g vs p"]["auroc"]["diff"] == pytest.approx(expected.value)
    assert pairs["g vs p"]["auroc"]["ci95"] == pytest.approx([expected.low, expected.high], abs=1e-6)


def test_the_summary_has_every_part_and_is_json(run: Any, examples: Examples) -> None:
    figures = run.figures
    json.dumps(figures, allow_nan=False)
    controls, columns = {d.name: d.scores for d in run.trained.controls}, examples.table
    log_prob = -(columns["mean_logprob"] * columns["n_tokens"])
    np.testing.assert_allclose(controls["sequence log-prob"], log_prob)
    trained, rows = run.trained, examples.rows["test"]
    assert Column(figures["best_site"], figures["best_layer"]) == trained.best
    assert [Column(e["site"], e["layer"]) for e in figures["layers"]] == list(trained.layers)
    for entry in figures["layers"]:
        column = Column(entry["site"], entry["layer"])
        scores = trained.layers[column].scores[rows]
        assert entry["auroc"] == pytest.approx(sk.roc_auc_score(examples.wrong[rows], scores))
        assert entry["validation"] == trained.validation[column]
    assert set(figures["ensembles"]) == {"logits", "probabilities", "best", "stacked"}
    assert figures["ensemble"] == figures["ensembles"]["logits"] and figures["combine"] == "logits"
    assert figures["with_entropy"]["auroc"] > figures["ensemble"]["auroc"]
    assert figures["positive_control"]["auroc"] == 1.0
    assert set(figures["conditions"]["closed_book"]["detectors"]) >= {ENSEMBLE, WITH_ENTROPY, "mean entropy"}
    assert SHUFFLED not in figures["conditions"]["closed_book"]["detectors"]  # has labels of its own
    assert not any(SHUFFLED in name for name in figures["pairs"])
    curve = figures["learning_curve"]
    assert [p["groups"] for p in curve] == [10, 50, 100]
    assert curve[0]["ensemble"]["auroc"] < curve[-1]["ensemble"]["auroc"]


def test_calibration_before_and_after(run: Any, examples: Examples) -> None:
    """The sum of three margins is far too sure; a score of true log-odds needs nothing."""
    entry = run.figures["calibration"]
    rows = examples.rows["test"]
    wrong, score = examples.wrong[rows], run.trained.ensembles["logits"].scores[rows]
    assert entry["method"] == "temperature" and set(entry["other"]) == {"isotonic"}
    assert entry["before"]["brier"] == pytest.approx(np.mean((1 / (1 + np.exp(-score)) - wrong) ** 2))
    assert entry["before"]["ece"] > 0.15 > 0.08 > entry["after"]["ece"]
    assert entry["after"]["brier"] < entry["before"]["brier"]
    assert entry["after"]["brier_ci"][0] < entry["after"]["brier"] < entry["after"]["brier_ci"][1]
    log_odds = 1.5 * noisy(examples, 1.5, 4)  # d' times the score is the log-odds of normal classes
    assert run.evaluator.probabilities(1 / (1 + np.exp(-log_odds[rows]))).ece < 0.08


def test_shuffled_labels_off_chance_are_flagged(run: Any, examples: Examples) -> None:
    assert run.figures["controls"][SHUFFLED]["at_chance"] is True and warnings(run.summary) == []
    leaky = make_trained(examples, leak=True)
    summary = summarise(leaky, run.evaluator, {})
    assert summary.controls[SHUFFLED].at_chance is False and "not 0.5" in warnings(summary)[0]
    leaky.controls[-1] = replace(leaky.controls[-1], scores=-leaky.controls[-1].scores)
    assert summarise(leaky, run.evaluator, {}).controls[SHUFFLED].at_chance is False


def test_training_on_other_data_sets_is_said(run: Any) -> None:
    mixed = make_examples(datasets=3)
    sets = mixed.table["dataset"].to_numpy()
    apart = {split: rows[(sets[rows] == "set2") == (split == "test")] for split, rows in mixed.rows.items()}
    assert warnings(run.summary.model_copy(update={"splits": mixed.sizes()})) == []
    other = run.summary.model_copy(update={"splits": Examples(mixed.table, apart).sizes()})
    assert warnings(other) == ["out of domain: trained on set0, set1, tested on set2"]


def test_a_report_says_whether_the_prober_is_better_than_words(run: Any) -> None:
    for interval, said in (((0.1, 0.2), "is better"), ((-0.1, 0.1), "is not shown to be better")):
        pair = {"auroc": schema.Difference(diff=0.0, ci95=interval)}
        figures = run.summary.model_copy(update={"pairs": dict.fromkeys(run.summary.pairs, pair)})
        assert f"It {said} than words alone" in str(Report(figures))
    entry = run.summary.ensemble.model_copy(update={"auroc_ci": (0.4, 0.9)})
    one = Report(run.summary.model_copy(update={"ensemble": entry, "notes": ["control 'x' left out: y"]}))
    assert all(x in str(one) and x in one._repr_html_() for x in ("chance", "test:", "1 control", "prober:"))


def test_what_is_written_is_what_the_schema_reads(run: Any) -> None:
    assert Figures.read(run.figures).to_dict() == run.figures
    shipped = sorted((Path(__file__).parents[1] / "probers/prober/shipped").glob("*/metrics.json"))
    for file in shipped:  # of earlier versions
        text = str(Report(Figures.read(json.loads(file.read_text()))))
        assert "It is better than words alone" in text and "chance" not in text
    assert len(shipped) == 3


NAMES = [
    "auroc_by_layer.png", "coverage_risk.png", "learning_curve.png", "logit_density.png", "reliability.png",
    "roc_pr.png",
]  # fmt: skip


def test_every_picture_is_written(run: Any) -> None:
    pictures = draw.Pictures(run.summary, run.trained, run.evaluator)
    assert [*pictures] == NAMES and all(len(png) > 10_000 for png in pictures.values())


def card_of(trained: Any, figures: Any) -> str:
    return write_card(trained.bank, figures, [Path("runs/datagen/cot")], Path("runs/train/cot"), source="cot")


def of_model(bank: Any, name: str) -> Any:
    """The prober as one of a model of this name."""
    spec = replace(bank.spec, model=replace(bank.spec.model, id=name))
    return SimpleNamespace(**vars(bank) | {"spec": spec})


@pytest.mark.parametrize("name", ["a/b", "/home/me/b", "~/models/b"])
def test_the_card_names_the_model_and_not_where_it_lay(run: Any, tmp_path: Path, name: str) -> None:
    bank, shown = of_model(run.trained.bank, name), "a/b" if name == "a/b" else "b"
    card = write_card(bank, run.summary, [tmp_path / "cot"], tmp_path / "p", source="cot")
    assert f"\n# Prober for {shown}\n" in card and f"hidden states of `{shown}@" in card
    assert yaml.safe_load(card.split("---\n")[1]).get("base_model") == ("a/b" if name == "a/b" else None)
    assert str(tmp_path) not in card and "/home/me" not in card and "~" not in card


def test_markup_in_names_is_text_in_the_card(run: Any) -> None:
    hostile = "x\n\n# Heading\n---\nlicense: mit\n| a | `b` <img src=x> ![i](http://e/v) [l][m] \x1b[2J\u202e"
    figures = json.loads(json.dumps(run.figures))
    figures["splits"]["train"]["datasets"] = {hostile: 400}
    figures["conditions"] = dict(zip([hostile, "b"], run.figures["conditions"].values(), strict=True))
    figures["notes"] = [hostile]
    bank = of_model(run.trained.bank, hostile)
    card = write_card(bank, Figures.read(figures), [Path(hostile)], Path('x"); y'), source=hostile)
    parts, plain = card.split("\n---\n"), card_of(run.trained, run.summary)
    assert len(parts) == 2 and yaml.safe_load(parts[0]) == yaml.safe_load(plain.split("---\n")[1])
    assert not any(mark in card for mark in ("\n# Heading", "\x1b", "\u202e"))
    assert 'from_pretrained("PROBER")' in card and "Feature store `STORE`" in card
    outside = re.sub("`[^`\n]*`", "", card.replace("\\`", ""))  # what is not within code
    assert not re.search(r"(?<!\\)<img|(?<!\\)\]\(http|(?<!\\)\]\[", outside)


# Known before a text and after it: which detectors stand where, and what they are compared with.

AFTER = {"mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum"}
OF_BEFORE = {"entropy before", "probability before", "margin before"}


def with_signals(examples: Examples, *, read: bool = False) -> Examples:
    """Examples of entities of 1 to 8 tokens, the longer the likelier wrong, and signals from before them.

    Args:
        examples: without them.
        read: texts need not begin with the likeliest token.
    """
    rng = np.random.default_rng(5)
    n, wrong = len(examples.table), examples.wrong
    highest = 1 / (1 + np.exp(-rng.normal(1.0 - 0.6 * wrong, 1.0)))
    first = highest * np.where(rng.random(n) < 0.5, 0.5, 1.0) if read else highest
    return replace(examples, table=examples.table.assign(
        n_tokens=rng.integers(1, 6, n) + 3 * wrong * (rng.random(n) < 0.5),
        entropy_before=-np.log(highest) * (1 + rng.random(n)), max_prob_before=highest,
        logprob_before=np.log(first), margin_before=highest * rng.random(n),
    ))  # fmt: skip


def figures_of(examples: Examples, pool: str, position: str = "entity") -> tuple[Any, Evaluator, dict]:
    trained = make_trained(examples, position=position, curve=False)
    trained.bank.spec = replace(trained.bank.spec, pool=pool)
    evaluator = evaluator_of(examples)
    return trained, evaluator, moment_figures(trained, examples, evaluator.bootstrap).to_dict()


@pytest.fixture(scope="module")
def signalled() -> Examples:
    return with_signals(make_examples())


def names(figures: dict, kind: str) -> set[str]:
    return {name for name, entry in figures["detectors"].items() if entry["kind"] == kind}


def test_a_head_stands_beside_the_signals_of_its_moment(signalled: Examples) -> None:
    _, _, early = figures_of(signalled, "predicting")
    assert early["before"]["head"] == early["after"]["head"] == "all layers"  # still known afterwards
    assert names(early["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert names(early["after"], "signal") == {*AFTER, "length", COMBINED}
    assert names(early["before"], "joined") == names(early["after"], "joined") == {WITH_SIGNALS}
    _, _, late = figures_of(signalled, "mean")
    # A head that reads written tokens is not known before them, and nothing is joined with it.
    assert late["before"]["head"] is None and names(late["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert not names(late["before"], "head") and not names(late["before"], "joined")
    assert not late["before"]["pairs"] and late["after"]["head"] == "all layers"
    assert any("pool=predicting" in note for note in late["notes"])


def test_a_head_of_the_prompt_stands_in_the_table_before_the_answer(signalled: Examples) -> None:
    _, _, early = figures_of(signalled, "prompt", "generated")
    assert early["position"] == "answer" and early["before"]["head"] == early["after"]["head"] == "all layers"
    assert names(early["before"], "joined") == {WITH_SIGNALS} and early["before"]["pairs"]
    _, _, late = figures_of(signalled, "mean", "generated")
    assert late["before"]["head"] is None and any("pool=prompt" in note for note in late["notes"])


def test_figures_and_differences_are_those_of_the_scores(signalled: Examples) -> None:
    """Within length, length itself is worth nothing."""
    trained, evaluator, figures = figures_of(signalled, "predicting")
    rows, wrong, before = evaluator.test, evaluator.wrong, figures["before"]
    lengths = np.minimum(signalled.column("n_tokens", "test"), 5)
    head, entropy = trained.saved.scores[rows], signalled.column("entropy_before", "test")
    measures = {"all": partial(m.auroc, wrong), "length": lambda s, w: m.pooled_auroc(wrong, s, lengths, w)}
    for key, measure in measures.items():
        for name, scores in (("all layers", head), ("entropy before", entropy)):
            actual = before["detectors"][name][key]
            interval = evaluator.bootstrap.interval(scores, measure)
            assert actual["auroc"] == pytest.approx(interval.value)
            assert actual["ci95"] == pytest.approx(interval.limits, abs=1e-6)
        actual = before["pairs"]["all layers vs entropy before"][key]
        expected = evaluator.bootstrap.difference(head, entropy, measure)
        assert actual["diff"] == pytest.approx(expected.value)
        assert actual["ci95"] == pytest.approx(expected.limits, abs=1e-6)
    assert before["pairs"][f"{WITH_SIGNALS} vs all layers"]["all"]["ci95"][0] > 0
    assert set(figures["strata"]) == {"length", "type", "length and type"}
    strata = figures["strata"]["length"]["strata"]
    assert list(strata) == ["1", "2", "3", "4", "5+"]
    assert sum(entry["n"] for entry in strata.values()) == len(signalled.rows["test"])
    length = figures["after"]["detectors"]["length"]
    assert length["all"]["auroc"] > 0.6
    assert abs(length["length"]["auroc"] - 0.5) < abs(length["all"]["auroc"] - 0.5)


def test_the_first_tokens_probability_of_a_text_that_was_read_is_known_after_it() -> None:
    _, _, figures = figures_of(with_signals(make_examples(), read=True), "mean")
    assert names(figures["before"], "signal") == {*OF_BEFORE, COMBINED}
    assert names(figures["after"], "signal") == {*AFTER, "length", "first log-prob", COMBINED}


def test_a_store_without_signals_from_before_is_read_as_it_was() -> None:
    trained = make_trained(make_examples(), curve=False)
    moments = summarise(trained, evaluator_of(make_examples()), {}).to_dict()["moments"]
    assert not moments["before"]["detectors"]
    assert names(moments["after"], "signal") == {*AFTER, "length", COMBINED}
