"""The audit on stores with a planted leak, a planted signal, both or neither, and the page of a sample."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.artefacts import read_lines
from helpers.html_pages import Page, digest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from probers.datagen.audit import Audit, audit, draw, sample_html
from probers.datagen.audit.sampling import draw_rows
from probers.store.spec import FeatureSpec, ModelSpec
from probers.store.store import FeatureStore
from probers.words import EntityMatcher

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


def warned(report: Audit) -> set[str]:
    said = [w.split(": ")[1].split(" predict")[0] for w in report.figures["warnings"] if " predict" in w]
    return {name for names in said for name in names.split(" and ")}


def test_data_without_a_leak_gives_no_warning_and_the_probe_finds_the_signal(tmp_path: Path) -> None:
    report = audited(tmp_path / "s")
    figures = report.figures
    assert figures["warnings"] == [] and not [line for line in report.lines if "warning" in line]
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


@pytest.mark.parametrize(("column", "value", "names"), LEAKS)
def test_a_planted_leak_is_named_with_its_numbers_and_no_other(tmp_path: Path, column, value, names) -> None:
    report = audited(tmp_path / "s", leak(column, value))
    assert warned(report) == names
    for leaking in names:
        auroc = report.figures["detectors"][leaking]["auroc"]
        (line,) = [w for w in report.figures["warnings"] if leaking in w]
        assert auroc > 0.7 and f"AUROC {auroc:.2f} (" in line and line in report.lines
    assert report.lines[-1].startswith("what may help: ") and "more articles" in report.lines[-1]


def test_words_of_training_articles_are_no_leak(tmp_path: Path) -> None:
    """Every article has its own word and one label: learned by heart, worth nothing on others."""
    report = audited(
        tmp_path / "s", strength=0,
        edit=lambda row, _: row | {"question": row["group"], "correct": int(row["group"][1:]) // 5 % 2},
    )  # fmt: skip
    low, high = report.figures["detectors"]["bag of words, question"]["auroc_ci95"] or (0.5, 0.5)
    assert low <= 0.5 <= high and "bag of words, question" not in warned(report)


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
    values = audit(store, seed=0).figures
    table = store.table()
    train, test = (np.flatnonzero(table["split"] == s) for s in ("train", "test"))
    wrong = 1 - table["correct"].to_numpy()
    layer = store.layer(values["probe"]["layer"]).astype(np.float32)
    scaled = StandardScaler().fit(layer[train]).transform(layer)
    models = [LogisticRegression(C=c).fit(scaled[train], wrong[train]) for c in (1e-3, 1e-2, 1e-1)]
    candidates = [roc_auc_score(wrong[test], model.decision_function(scaled[test])) for model in models]
    assert any(values["detectors"]["linear probe"]["auroc"] == pytest.approx(c, abs=1e-3) for c in candidates)
    share = wrong[test].mean()
    majority = share if wrong[train].mean() > 0.5 else 1 - share
    assert values["detectors"]["majority"]["accuracy"] == pytest.approx(majority, abs=1e-4)
    assert values["labels"]["question_type"] == {
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


@pytest.mark.parametrize(("edit", "message"), [
    (lambda row, _: row | {"correct": 0}, "360 train .* wrong"),
    (lambda row, _: row | ({"correct": 1} if row["split"] == "test" else {}), "120 test .* right"),
    (lambda row, _: row | {"split": {"test": "train"}.get(row["split"], row["split"])}, "no test"),
    (lambda row, _: row | ({"split": "train"} if int(row["group"][1:]) > 19 else {}),
     "12 test examples of 4 groups"),
])  # fmt: skip
def test_where_nothing_can_be_measured_a_line_says_so(tmp_path: Path, edit: Edit, message: str) -> None:
    report = audited(tmp_path / "s", edit)
    (note,) = report.figures["notes"]
    assert re.search(message, note) and f"note: {note}" in report.lines
    assert report.figures["detectors"] == {} and report.figures["probe"] is None
    assert report.figures["labels"]["question_type"]  # the counts are there all the same


def test_rows_of_other_sources_are_audited_by_what_they_have(tmp_path: Path) -> None:
    lacking = ("cut_at", "sentence", "span", "token", "match_stage", "match_evidence", "entity_start")
    twice = lambda row, _: row | ({"split": "test"} if row["id"] == "a0/0" else {})  # noqa: E731
    other = audited(tmp_path / "s", twice, drop=lacking, config={"source": "cot"})
    assert "position left out: the store has no column cut_at or sentence" in other.figures["notes"]
    assert set(other.figures["labels"]) == {"question_type"} and "position" not in other.figures["detectors"]
    assert other.figures["detectors"]["linear probe"]["auroc"] > 0.95
    assert any("1 group" in w and "'a0'" in w for w in other.lines)  # on two sides


def test_a_span_with_a_row_per_token_counts_once_with_its_last_token(tmp_path: Path) -> None:
    """The label can be read in the last token only; first tokens are noise."""
    rows, rng = make_rows(200, 2, 0), np.random.default_rng(0)
    tokens = [row | {"id": f"{row['id']}/{i}", "token": i} for row in rows for i in range(4)]
    states = rng.standard_normal((len(tokens), 4, WIDTH))
    states[3::4, :, 0] += 4.0 * (2 * np.array([row["correct"] for row in rows]) - 1)[:, None]
    # Spans in any order, and the tokens of each backwards.
    places = np.concatenate([np.arange(4 * i, 4 * i + 4)[::-1] for i in rng.permutation(400)])
    report = audit(write(tmp_path / "s", [tokens[i] for i in places], states[places], shard=80), seed=0)
    assert (report.figures["rows"], report.figures["spans"], report.figures["drawn"]) == (1600, 400, 400)
    assert sum(v["n"] for v in report.figures["labels"]["question_type"].values()) == 400
    assert report.figures["detectors"]["linear probe"]["auroc"] > 0.99
    assert report.figures["splits"]["test"]["n"] == sum(row["split"] == "test" for row in rows)


def test_labelled_tokens_count_by_their_marks(tmp_path: Path) -> None:
    """Each judged mark counts with its own label and its last token, and balancing is not advised."""
    rng, tokens, signal = np.random.default_rng(0), [], []
    for row in make_rows(300, 1, 0):
        for mark, wrong in enumerate((int(rng.random() < 0.2), 0, -1, 1)):
            columns = {"mark": mark, "token_wrong": wrong, "inside": -1 if mark == 3 else 1, "correct": 0}
            leak = {"answer": "told" if wrong == 1 and rng.random() < 0.7 else "even"}
            for token in (2 * mark, 2 * mark + 1):
                about = {"id": f"{row['id']}#{token}", "token": token, "n_tokens": 2}
                tokens.append(row | columns | about | leak)
                signal.append(4.0 * wrong if token == 2 * mark + 1 else 0.0)
    states = rng.standard_normal((len(tokens), 4, WIDTH))
    states[:, :, 0] += np.array(signal)[:, None]
    store = write(tmp_path / "s", tokens, states, shard=240)
    report = audit(store, seed=0)
    figures, labels = report.figures, [row["token_wrong"] for row in tokens if row["mark"] < 2]
    assert (figures["rows"], figures["spans"]) == (2400, 600)
    assert figures["wrong"] == round(float(np.mean(labels)), 4) < 0.2
    assert figures["detectors"]["linear probe"]["auroc"] > 0.95
    assert warned(report) == {"bag of words, answer"} and "balance=true" not in report.lines[-1]
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
    remaining = [row for row in draw_rows(large, seed=0, most=600).rows if row < 450]
    np.testing.assert_array_equal(draw_rows(fewer, seed=0, most=600).rows, remaining)


# The page on which a sample of the labels is read.

PAYLOAD = "</b><script>alert('x')</script><img src=x onerror=\"alert(1)\">&\"'\x00"
#: Stages by how often they decide.
STAGES = ("string", "string", "string", "name", "name", "date")
READ = Path(__file__).parents[1] / "docs" / "label_sample.jsonl"


def staged(articles: int = 133) -> list[dict[str, Any]]:
    """Rows of every stage; "vectors" is rare, and never decides for "faithful"."""
    rng = np.random.default_rng(0)
    rows = [row | {"match_stage": STAGES[rng.integers(6)]} for row in make_rows(articles, 3, 0)]
    for row in [row for row in rows if not row["correct"]][::50]:
        row["match_stage"] = "vectors"
    return rows


def stored(path: Path, rows: list[dict[str, Any]], shard: int) -> FeatureStore:
    return write(path, rows, np.zeros((len(rows), len(LAYERS), WIDTH)), shard=shard)


def test_the_sample_has_both_labels_and_every_stage(tmp_path: Path) -> None:
    rows = staged()
    chosen = draw(stored(tmp_path / "s", rows, 30), 50, 0)
    assert len(chosen) == len({row["id"] for row in chosen}) == 50
    assert Counter(row["correct"] for row in chosen) == {0: 25, 1: 25}
    there = {(row["correct"], row["match_stage"]) for row in rows}
    assert {(row["correct"], row["match_stage"]) for row in chosen} == there
    assert (0, "vectors") in there and (1, "vectors") not in there
    stages = Counter(row["match_stage"] for row in chosen if row["correct"])
    assert stages["string"] > stages["name"] > stages["date"]  # 3 : 2 : 1


def test_the_sample_is_seeded_and_the_same_from_any_shards(tmp_path: Path) -> None:
    few, many = (stored(tmp_path / f"s{size}", staged(), size) for size in (400, 70))
    drawn = (draw(few, 40, 3), draw(many, 40, 3), draw(few, 40, 4))
    ids, same, other = ([row["id"] for row in rows] for rows in drawn)
    assert same == ids and set(ids) != set(other)


def test_a_sample_of_few_rows_one_label_or_tokens_takes_what_there_is_once() -> None:
    def labels(rows: list[dict[str, Any]], most: int) -> list[int]:
        return [row["correct"] for row in draw([pd.DataFrame(rows)], most, 0)]

    assert len(labels(staged(4), 50)) == 12 and draw([], 50, 0) == []
    wrong = [row for row in staged() if not row["correct"]]
    few = [row for row in staged() if row["correct"]][:3] + wrong
    assert len(labels(wrong, 20)) == 20 and Counter(labels(few, 20)) == {1: 3, 0: 17}
    rows = [row | {"id": f"{row['id']}/{i}", "token": i} for row in staged(10) for i in (2, 0, 1)]
    chosen = draw([pd.DataFrame(rows)], 90, 0)
    assert len(chosen) == 30 and {row["token"] for row in chosen} == {2}


def test_every_case_shows_its_label_texts_and_marked_entity(tmp_path: Path) -> None:
    rows = draw(stored(tmp_path / "s", staged(), 50), 50, 0)
    page = Page(sample_html(rows, about={"Model": "testbed@1", "Labels": "123 spans"}))
    parts = (page.within("p", "label"), page.within("mark"), page.within("article"))
    for row, label, mark, shown in zip(rows, *parts, strict=True):
        assert label == ("✗ hallucinated", "✓ faithful")[row["correct"]] and mark == row["answer"]
        for name in ("group", "question", "gold", "match_stage", "match_evidence", "question_type"):
            assert row[name] in shown, name
        assert row["text"].strip() in shown


def test_whatever_was_written_is_inert() -> None:
    row = staged(1)[0]
    nasty = {k: PAYLOAD if isinstance(v, str) else v for k, v in row.items()} | {"entity_end": 20}
    lost = dict.fromkeys(("id", "reason", "gold", "written", "stage", "evidence"), PAYLOAD)
    page = sample_html([nasty], about={PAYLOAD: PAYLOAD}, undecided=[lost])
    parsed = Page(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "img", "link", "iframe", "a")]
    assert not [attrs for _, attrs in parsed.tags if any(k.startswith("on") or k == "style" for k in attrs)]
    assert "\x00" not in page and page.count("alert(") > 8 and "<script" not in page
    style = re.search("<style>(.*)</style>", page, re.S)
    assert style and parsed.policy.startswith("default-src 'none'") and digest(style[1]) in parsed.policy


def test_the_labels_read_by_hand_are_still_the_matchers() -> None:
    """A change of the comparison that turned a label which was read shows here; vectors only tell apart."""
    rows, matcher = read_lines(READ), EntityMatcher()
    assert len({row["id"] for row in rows}) == 100
    judged = Counter(row["judged"] for row in rows)
    assert judged["right"] >= 95 and set(judged) <= {"right", "wrong", "unclear"}
    assert all("why" in row for row in rows if row["judged"] != "right")
    for row in rows:
        same = matcher.match(row["article"], row["written"]).verdict == "equivalent"
        assert same == (row["label"] == "faithful"), row["id"]
