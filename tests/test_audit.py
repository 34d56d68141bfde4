"""The audit on stores with a planted leak, a planted signal, both or neither."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from probers.datagen.audit import Audit, audit, draw
from probers.datagen.audit import labels as audit_module
from probers.datagen.audit.sampling import draw_rows
from probers.store.spec import FeatureSpec, ModelSpec
from probers.store.store import FeatureStore

WIDTH, LAYERS = 8, (0, 2, 4, 6)
SPEC = FeatureSpec(ModelSpec("testbed", "synthetic", 6, WIDTH, "float32"), LAYERS, WIDTH, prompt="p")
#: How far the labels lie apart in each layer; layer 4 tells most.
STRENGTH = np.array([0.0, 0.3, 1.0, 0.5])
TYPES = ("person", "place", "date")
Edit = Callable[[dict[str, Any], np.random.Generator], dict[str, Any]]


def make_rows(articles: int, per_article: int, seed: int) -> list[dict[str, Any]]:
    """Rows whose columns say nothing about the label; article and label are independent."""
    rng = np.random.default_rng(seed)
    rows = []
    for article in range(articles):
        split = ("train", "train", "validation", "test", "train")[article % 5]
        for place in range(per_article):
            correct = int(rng.random() < 0.5)
            written = f"Name{rng.integers(40)} Sur{rng.integers(40)}"
            rows.append({
                "id": f"a{article}/{place}", "group": f"a{article}", "split": split, "correct": correct,
                "dataset": "wiki", "condition": "generated", "span": f"a{article}/{place}", "token": -1,
                "question": " ".join(f"w{rng.integers(60)}" for _ in range(12)), "answer": written,
                "gold": f"Name{rng.integers(40)}", "question_type": TYPES[rng.integers(3)],
                "cut_at": int(rng.integers(50, 900)), "sentence": int(rng.integers(6)),
                "match_stage": ("name", "string")[rng.integers(2)], "match_evidence": "a / b",
                "entity_start": 1, "entity_end": 1 + len(written),
                "text": f" {written} went v{rng.integers(30)}.", "n_tokens": int(rng.integers(2, 9)),
                "mean_entropy": float(rng.random()),
            })  # fmt: skip
    return rows


def make_store(
    path: Path, *, articles: int = 200, edit: Edit | None = None, strength: float = 1.0, shard: int = 100,
    config: dict[str, Any] | None = None, drop: tuple[str, ...] = (),
) -> FeatureStore:  # fmt: skip
    rng = np.random.default_rng(1)
    rows = make_rows(articles, 3, 0)
    labels = np.array([row["correct"] for row in rows])
    if edit is not None:
        rows = [edit(row, rng) for row in rows]
    rows = [{k: v for k, v in row.items() if k not in drop} for row in rows]
    states = rng.standard_normal((len(rows), len(LAYERS), WIDTH))
    states[:, :, 0] += strength * STRENGTH * (2 * labels - 1)[:, None] * 2
    return write(path, rows, states, shard=shard, config=config)


def write(path: Path, rows: list, states: np.ndarray, *, shard=100, config: Any = None) -> FeatureStore:
    starts = range(0, len(rows), shard)
    given = {"source": "wiki", "balance": False} if config is None else config
    store = FeatureStore.create(path, [SPEC], config=given, shards=len(starts))
    for index, start in enumerate(starts):
        chosen = slice(start, start + shard)
        store.write_shard(index, rows[chosen], states[chosen].astype(np.float32))
    return store  # not finished: the audit's figures go into the summary


def audited(path: Path, edit: Edit | None = None, **options: Any) -> Audit:
    return audit(make_store(path, edit=edit, **options), seed=0)


def warned(found: Audit) -> set[str]:
    """Names of the baselines that are warned of."""
    return {w.split(": ")[1].split(" predicts")[0] for w in found.figures["warnings"] if " predicts " in w}


def test_data_without_a_leak_gives_no_warning_and_the_probe_finds_the_signal(tmp_path: Path) -> None:
    found = audited(tmp_path / "s")
    figures = found.figures
    assert figures["warnings"] == [] and not [line for line in found.lines if "warning" in line]
    assert figures["probe"]["layer"] == 4 and figures["probe"]["tried"] == [2, 4, 6]
    assert figures["detectors"]["linear probe"]["auroc"] > 0.95
    baselines_found = set(figures["detectors"]) - {"linear probe", "majority"}
    assert baselines_found == {
        "bag of words, answer", "bag of words, text", "bag of words, question", "length", "position", "type",
    }  # fmt: skip
    for name in baselines_found:
        entry = figures["detectors"][name]
        low, high = entry["auroc_ci95"]
        assert low < 0.5 < high or 0.4 < entry["auroc"] < 0.6, (name, entry)
        assert figures["differences"][name]["auroc_ci95"][0] > 0
    majority = figures["detectors"]["majority"]
    assert majority["auroc"] is None and 0.4 < majority["accuracy"] < 0.6
    assert figures["notes"] == []  # one condition is nothing to note
    json.dumps(figures, allow_nan=False)


#: A column, what stands in it once it leaks, and the baselines that see it.
LEAKS: list[tuple[str, Callable[[dict[str, Any], np.random.Generator], Any], set[str]]] = [
    ("text", lambda row, _: row["text"] + " Namely." * (1 - row["correct"]), {"bag of words, text"}),
    ("answer", lambda row, _: "the " * row["correct"] + row["answer"], {"bag of words, answer", "length"}),
    ("question", lambda row, _: row["question"] + " born" * row["correct"], {"bag of words, question"}),
    # Neither the short nor the long ones are right: no straight line tells them apart.
    ("n_tokens", lambda row, rng: 5 if row["correct"] else int((2, 8)[rng.integers(2)]), {"length"}),
    ("cut_at", lambda row, rng: int(rng.integers(50, 500) + 300 * row["correct"]), {"position"}),
    ("question_type", lambda row, rng: "date" if row["correct"] * rng.random() > 0.2 else "person", {"type"}),
    # MIND's negatives: what is right was not generated.
    ("condition", lambda row, _: "untouched" if row["correct"] else "generated", {"condition"}),
]  # fmt: skip


def leak(column: str, value: Callable[[dict[str, Any], np.random.Generator], Any]) -> Edit:
    return lambda row, rng: row | {column: value(row, rng)}


phrase = leak(*LEAKS[0][:2])


@pytest.mark.parametrize(("column", "value", "names"), LEAKS)
def test_a_planted_leak_is_named_with_its_numbers_and_no_other(tmp_path: Path, column, value, names) -> None:
    found = audited(tmp_path / "s", leak(column, value))
    assert warned(found) == names
    for leaking in names:
        auroc = found.figures["detectors"][leaking]["auroc"]
        (line,) = [w for w in found.figures["warnings"] if f" {leaking} predicts" in w]
        assert auroc > 0.7 and f"AUROC {auroc:.2f} (" in line and line in found.lines
    assert found.lines[-1].startswith("what may help: ") and "more articles" in found.lines[-1]


def test_words_of_training_articles_are_no_leak(tmp_path: Path) -> None:
    """Every article has its own word and one label: learned by heart, worth nothing on others."""
    found = audited(
        tmp_path / "s", strength=0,
        edit=lambda row, _: row | {"question": row["group"], "correct": int(row["group"][1:]) // 5 % 2},
    )  # fmt: skip
    low, high = found.figures["detectors"]["bag of words, question"]["auroc_ci95"] or (0.5, 0.5)
    assert low <= 0.5 <= high and "bag of words, question" not in warned(found)


def test_within_reach_of_a_weak_probe_and_states_that_tell_nothing(tmp_path: Path) -> None:
    words = ("seldom", "often")
    mild = leak("answer", lambda row, rng: row["answer"] + words[rng.random() < 0.35 + 0.3 * row["correct"]])
    weak = audited(tmp_path / "w", mild, strength=0.15, articles=300)
    name = "bag of words, answer"
    assert 0.5 < weak.figures["detectors"][name]["auroc"] < audit_module.FAR  # not far above chance
    (line,) = [w for w in weak.figures["warnings"] if f" {name} " in w]
    difference = weak.figures["differences"][name]
    assert "within reach" in line and f"{difference['auroc']:+.2f} (" in line
    assert difference["auroc_ci95"][0] <= 0
    strong = audited(tmp_path / "s", mild, articles=300)
    assert warned(strong) == set()  # the same words, but the probe is clearly above them
    blind = audited(tmp_path / "b", strength=0)
    assert any("not above chance" in w for w in blind.figures["warnings"]) and not warned(blind)


def test_advice_is_what_is_not_in_force_and_would_change_something(tmp_path: Path) -> None:
    def uneven(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return phrase(row | ({"correct": 0} if rng.random() < 0.3 else {}), rng)

    def advice(name: str, edit: Edit, **config: Any) -> str:
        return audited(tmp_path / name, edit, config=config).lines[-1]

    assert "balance=true" in advice("a", uneven, balance=False)
    balanced = advice("b", uneven, balance=True, negatives="untouched")
    assert "balance=true" not in balanced and "negatives=generated" in balanced
    even = advice("c", phrase, balance=False, negatives="generated")
    assert "balance=true" not in even and "negatives=generated" not in even


def test_intervals_are_clustered_by_article(tmp_path: Path) -> None:
    """Every span ten times says no more than once; taken as independent it would look surer."""
    rows = make_rows(100, 1, 0)
    states = np.random.default_rng(0).standard_normal((100, 4, WIDTH))
    states[:, :, 0] += 0.5 * (2 * np.array([r["correct"] for r in rows]) - 1)[:, None]
    many = [row | {"id": f"{row['id']}-{i}", "span": f"{row['span']}-{i}"} for row in rows for i in range(10)]
    once = audit(write(tmp_path / "o", rows, states), seed=0).figures["detectors"]["linear probe"]
    tenfold = audit(write(tmp_path / "t", many, np.repeat(states, 10, 0)), seed=0).figures
    width = np.ptp(tenfold["detectors"]["linear probe"]["auroc_ci95"])
    assert 0.6 < width / np.ptp(once["auroc_ci95"]) < 1.6  # and not 1 / sqrt(10)
    assert (tenfold["splits"]["test"]["n"], tenfold["splits"]["test"]["groups"]) == (200, 20)


def test_the_figures_are_those_of_scikit_learn_on_the_same_split(tmp_path: Path) -> None:
    store = make_store(tmp_path / "s", strength=0.3)
    found = audit(store, seed=0).figures
    table = store.table()
    train, test = (np.flatnonzero(table["split"] == s) for s in ("train", "test"))
    wrong = 1 - table["correct"].to_numpy()
    layer = store.layer(found["probe"]["layer"]).astype(np.float32)
    scaled = StandardScaler().fit(layer[train]).transform(layer)
    models = [LogisticRegression(C=c).fit(scaled[train], wrong[train]) for c in (1e-3, 1e-2, 1e-1)]
    candidates = [roc_auc_score(wrong[test], model.decision_function(scaled[test])) for model in models]
    assert any(found["detectors"]["linear probe"]["auroc"] == pytest.approx(c, abs=1e-3) for c in candidates)
    share = wrong[test].mean()
    majority = share if wrong[train].mean() > 0.5 else 1 - share
    assert found["detectors"]["majority"]["accuracy"] == pytest.approx(majority, abs=1e-4)
    assert found["labels"]["question_type"] == {
        str(kind): {"n": len(part), "wrong": round(1 - part.mean(), 4)}
        for kind, part in table.groupby("question_type")["correct"]
    }


def test_the_share_undecided_is_counted_by_stage(tmp_path: Path) -> None:
    rows, stages = make_rows(40, 2, 0), ("partial", *["vectors"] * 4)
    left_out = [{"id": f"u{i}", "reason": "undecided", "stage": stage} for i, stage in enumerate(stages)]
    left_out.append({"id": "n", "reason": "no entity at the head"})
    store = FeatureStore.create(tmp_path / "s", [SPEC], config={}, shards=1)
    units = [each["id"] for each in [*rows, *left_out]]
    store.write_shard(0, rows, np.zeros((80, 4, WIDTH), np.float32), units=units, left_out=left_out)
    expected = {"n": 5, "share": round(5 / 86, 4), "by_stage": {"partial": 1, "vectors": 4}}
    assert audit(store, seed=0).figures["undecided"] == expected


def moved(row: dict[str, Any], **to: str) -> dict[str, Any]:
    """A row with its split replaced by another."""
    return row | {"split": to.get(row["split"], row["split"])}


@pytest.mark.parametrize(("edit", "message"), [
    (lambda row, _: row | {"correct": 0}, "360 train .* wrong"),
    (lambda row, _: row | ({"correct": 1} if row["split"] == "test" else {}), "120 test .* right"),
    (lambda row, _: moved(row, test="train"), "no test"),
    (lambda row, _: row | ({"split": "train"} if int(row["group"][1:]) > 19 else {}),
     "12 test examples of 4 groups"),
])  # fmt: skip
def test_where_nothing_can_be_measured_a_line_says_so(tmp_path: Path, edit: Edit, message: str) -> None:
    found = audited(tmp_path / "s", edit)
    (note,) = found.figures["notes"]
    assert re.search(message, note) and f"note: {note}" in found.lines
    assert found.figures["detectors"] == {} and found.figures["probe"] is None
    assert found.figures["labels"]["question_type"]  # the counts are there all the same
    json.dumps(found.figures, allow_nan=False)


def test_a_split_without_both_labels_and_a_group_on_two_sides_are_told(tmp_path: Path) -> None:
    found = audited(tmp_path / "s", lambda row, _: moved(row, validation="train"))
    assert found.figures["probe"] == {"layer": 4, "tried": [2, 4, 6], "validation_auroc": None}
    assert any("validation" in note for note in found.figures["notes"])
    assert found.figures["detectors"]["linear probe"]["auroc"] > 0.9
    found = audited(tmp_path / "t", lambda row, _: row | ({"split": "test"} if row["id"] == "a0/0" else {}))
    assert any("1 group" in w and "'a0'" in w for w in found.lines)


def test_rows_of_other_sources_are_audited_by_what_they_have(tmp_path: Path) -> None:
    lacking = ("cut_at", "sentence", "span", "token", "match_stage", "match_evidence", "entity_start")
    found = audited(tmp_path / "s", drop=lacking, config={"source": "cot"})
    assert "position left out: the store has no column cut_at or sentence" in found.figures["notes"]
    assert set(found.figures["labels"]) == {"question_type"} and "position" not in found.figures["detectors"]
    assert found.figures["detectors"]["linear probe"]["auroc"] > 0.95


def test_a_span_with_a_row_per_token_counts_once_with_its_last_token(tmp_path: Path) -> None:
    """The label can be read in the last token only; first tokens are noise."""
    rows = make_rows(200, 2, 0)
    rng = np.random.default_rng(0)
    tokens = [row | {"id": f"{row['id']}/{i}", "token": i} for row in rows for i in range(4)]
    states = rng.standard_normal((len(tokens), 4, WIDTH))
    labels = np.array([row["correct"] for row in tokens])
    last = np.array([row["token"] == 3 for row in tokens])
    states[:, :, 0] += np.where(last, 4.0, 0.0)[:, None] * (2 * labels - 1)[:, None]
    order = rng.permutation(400)  # spans in any order, and the tokens of each backwards
    places = np.concatenate([np.arange(4 * i, 4 * i + 4)[::-1] for i in order])
    store = write(tmp_path / "s", [tokens[i] for i in places], states[places], shard=80)
    found = audit(store, seed=0)
    assert (found.figures["rows"], found.figures["spans"], found.figures["drawn"]) == (1600, 400, 400)
    assert sum(v["n"] for v in found.figures["labels"]["question_type"].values()) == 400
    assert found.figures["detectors"]["linear probe"]["auroc"] > 0.99

    assert found.figures["splits"]["test"]["n"] == sum(row["split"] == "test" for row in rows)


def test_labelled_tokens_count_by_their_marks(tmp_path: Path) -> None:
    """Each judged mark counts with its own label and its last token, and balancing is not advised."""
    rng, tokens, signal = np.random.default_rng(0), [], []
    for row in make_rows(300, 1, 0):
        for mark, wrong in enumerate((int(rng.random() < 0.2), 0, -1, 1)):
            told = {"mark": mark, "token_wrong": wrong, "inside": -1 if mark == 3 else 1, "correct": 0}
            leak = {"answer": "told" if wrong == 1 and rng.random() < 0.7 else "even"}
            for token in (2 * mark, 2 * mark + 1):
                about = {"id": f"{row['id']}#{token}", "token": token, "n_tokens": 2}
                tokens.append(row | told | about | leak)
                signal.append(4.0 * wrong if token == 2 * mark + 1 else 0.0)
    states = rng.standard_normal((len(tokens), 4, WIDTH))
    states[:, :, 0] += np.array(signal)[:, None]
    store = write(tmp_path / "s", tokens, states, shard=240)
    found = audit(store, seed=0)
    figures, own = found.figures, [row["token_wrong"] for row in tokens if row["mark"] < 2]
    assert (figures["rows"], figures["spans"]) == (2400, 600)
    assert figures["wrong"] == round(float(np.mean(own)), 4) < 0.2
    assert figures["detectors"]["linear probe"]["auroc"] > 0.95
    assert warned(found) == {"bag of words, answer"} and "balance=true" not in found.lines[-1]
    shown = draw(store, count=40)
    assert {row["correct"] for row in shown} == {0, 1} and {row["mark"] for row in shown} == {0, 1}


def test_the_draw_is_seeded_and_does_not_depend_on_shards_or_other_rows(tmp_path: Path) -> None:
    small, large = (make_store(tmp_path / f"s{size}", shard=size) for size in (70, 600))
    a, b = (draw_rows(s, seed=0, most=90) for s in (small, large))
    np.testing.assert_array_equal(a.rows, b.rows)
    assert len(a.rows) == 90 and a.stored == a.spans == 600
    assert set(draw_rows(small, seed=1, most=90).rows) != set(a.rows)
    assert set(draw_rows(small, seed=0, most=50).rows) < set(a.rows)
    first, other = (audit(s, seed=0, most=300) for s in (small, large))
    assert first == other and first.figures["drawn"] == 300
    assert sum(s["n"] for s in first.figures["splits"].values()) == 300
    fewer = make_store(tmp_path / "f", articles=150)  # the first 450 of the same rows
    kept = [row for row in draw_rows(large, seed=0, most=600).rows if row < 450]
    np.testing.assert_array_equal(draw_rows(fewer, seed=0, most=600).rows, kept)
