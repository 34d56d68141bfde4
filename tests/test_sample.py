"""The sample page: the right cases drawn, every text inert, the written entity marked."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from helpers.html_pages import Page, digest

from probers.datagen.audit import draw, draw_undecided, sample_html
from probers.datagen.audit.labels import MOST_UNDECIDED
from probers.store.spec import FeatureSpec, ModelSpec
from probers.store.store import FeatureStore
from probers.words import EntityMatcher

PAYLOAD = "</b><script>alert('x')</script><img src=x onerror=\"alert(1)\">&\"'\x00"
SPEC = FeatureSpec(ModelSpec("testbed", "synthetic", 1, 2, "float32"), (1,), 2, prompt="p")
#: Share of faithful rows and of each stage: "vectors" is rare, and never decides for "faithful".
STAGES = ("string", "string", "string", "name", "name", "date", "number")


def make_rows(n: int = 400) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for i in range(n):
        correct = int(rng.random() < 0.3)
        stage = STAGES[rng.integers(len(STAGES))]
        if not correct and i % 100 == 0:
            stage = "vectors"
        written = f"Entity {i}"
        text = f" in {written}, and went on."
        rows.append({
            "id": f"Title {i // 2}/{i}", "group": f"Title {i // 2}", "split": "train", "correct": correct,
            "condition": "generated", "span": f"s{i}", "token": -1,
            "question": f"Title {i // 2} is a place. It was founded", "answer": written, "gold": f"Gold {i}",
            "question_type": ("person", "place")[i % 2], "match_stage": stage, "match_evidence": f"e{i} / f",
            "entity_start": 4, "entity_end": 4 + len(written), "text": text, "mean_entropy": i / 100,
        })  # fmt: skip
    return rows


def make_store(path: Path, rows: list[dict[str, Any]], shard: int) -> FeatureStore:
    parts = [rows[start : start + shard] for start in range(0, len(rows), shard)]
    store = FeatureStore.create(path, [SPEC], config={}, shards=len(parts))
    for index, part in enumerate(parts):
        store.write_shard(index, part, np.zeros((len(part), 1, 2), np.float32))
    return store


def test_the_draw_has_both_labels_and_every_stage(tmp_path: Path) -> None:
    rows = make_rows()
    chosen = draw(make_store(tmp_path / "s", rows, 30), 50, 0)
    assert len(chosen) == len({row["id"] for row in chosen}) == 50
    assert Counter(row["correct"] for row in chosen) == {0: 25, 1: 25}
    there = {(row["correct"], row["match_stage"]) for row in rows}
    assert {(row["correct"], row["match_stage"]) for row in chosen} == there and (0, "vectors") in there
    assert (1, "vectors") not in there
    stages = Counter(row["match_stage"] for row in chosen if row["correct"])
    assert stages["string"] > stages["name"] > stages["date"]  # 3 : 2 : 1
    by_id = {row["id"]: row for row in rows}
    assert all({k: row[k] for k in by_id[row["id"]]} == by_id[row["id"]] for row in chosen)


def test_the_draw_is_seeded_and_the_same_from_any_shards(tmp_path: Path) -> None:
    few, many = (make_store(tmp_path / f"s{size}", make_rows(), size) for size in (400, 70))
    ids, same, other = (
        [row["id"] for row in draw(*of)] for of in ((few, 40, 3), (many, 40, 3), (few, 40, 4))
    )
    assert same == ids and set(ids) != set(other)


def test_a_draw_from_few_rows_one_label_or_tokens_takes_what_there_is_once() -> None:
    def labels(rows: list[dict[str, Any]], most: int) -> list[int]:
        return [row["correct"] for row in draw([pd.DataFrame(rows)], most, 0)]

    assert len(labels(make_rows(12), 50)) == 12 and draw([], 50, 0) == []
    wrong = [row for row in make_rows(80) if not row["correct"]]
    few = [row for row in make_rows(200) if row["correct"]][:3] + wrong
    assert len(labels(wrong, 20)) == 20 and Counter(labels(few, 20)) == {1: 3, 0: 17}
    rows = [row | {"id": f"{row['id']}/{i}", "token": i} for row in make_rows(30) for i in (2, 0, 1)]
    chosen = draw([pd.DataFrame(rows)], 90, 0)
    assert len(chosen) == 30 and {row["token"] for row in chosen} == {2}


def test_every_case_shows_its_label_texts_and_marked_entity(tmp_path: Path) -> None:
    rows = draw(make_store(tmp_path / "s", make_rows(), 50), 50, 0)
    page = Page(sample_html(rows, about={"Model": "testbed@1", "Labels": "123 spans"}))
    parts = (page.within("p", "label"), page.within("mark"), page.within("article"))
    for row, label, mark, shown in zip(rows, *parts, strict=True):
        assert label == ("✗ hallucinated", "✓ faithful")[row["correct"]] and mark == row["answer"]
        for text in (row["group"], row["question"], row["gold"], row["match_stage"], row["match_evidence"],
                     row["question_type"], f"in {row['answer']}, and went on."):  # fmt: skip
            assert text in shown, text


def test_whatever_was_written_is_inert() -> None:
    row = make_rows(1)[0]
    nasty = {k: PAYLOAD if isinstance(v, str) else v for k, v in row.items()} | {"entity_end": 20}
    lost = dict.fromkeys(("id", "reason", "gold", "written", "stage", "evidence"), PAYLOAD)
    page = sample_html([nasty], about={PAYLOAD: PAYLOAD}, undecided=[lost])
    parsed = Page(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "img", "link", "iframe", "a")]
    assert not [attrs for _, attrs in parsed.tags if any(k.startswith("on") or k == "style" for k in attrs)]
    assert "\x00" not in page and page.count("alert(") > 8 and "<script" not in page
    style = re.search("<style>(.*)</style>", page, re.S)
    assert style and parsed.policy.startswith("default-src 'none'") and digest(style[1]) in parsed.policy


def test_undecided_cases_are_shown_without_a_label_up_to_a_number() -> None:
    case = {"reason": "undecided", "gold": "Vienna", "stage": "vectors", "evidence": "no vector for Wien"}
    cases = [case | {"id": f"T{i}/9", "written": f"Wien {i}"} for i in range(20)]
    page = Page(sample_html(make_rows(4), about={}, undecided=cases))
    shown = page.within("article", "undecided")
    assert len(shown) == MOST_UNDECIDED == 15 and len(page.of_class("case")) == 19
    assert "Wien 0" in shown[0] and "vectors: no vector for Wien" in shown[0] and "? undecided" in shown[0]


def test_undecided_cases_are_drawn_by_seed_from_what_was_left_out() -> None:
    cases = [{"id": f"T{i}", "reason": ("undecided", "no entity at the head")[i % 2]} for i in range(100)]
    chosen = draw_undecided(iter(cases), 15, 0)
    assert len(chosen) == len({case["id"] for case in chosen}) == 15
    assert {case["reason"] for case in chosen} == {"undecided"} and chosen != cases[:30:2]
    assert chosen == draw_undecided(reversed(cases), 15, 0) != draw_undecided(cases, 15, 1)
    assert len(draw_undecided(cases[:6])) == 3


READ = Path(__file__).parents[1] / "docs" / "label_sample.jsonl"


def test_the_labels_read_by_hand_are_still_the_matchers() -> None:
    """A change of the comparison that turned a label which was read shows here; vectors only tell apart."""
    rows = [json.loads(line) for line in READ.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 100
    judged = Counter(row["judged"] for row in rows)
    assert judged["right"] >= 95 and set(judged) <= {"right", "wrong", "unclear"}
    assert all("why" in row for row in rows if row["judged"] != "right")
    matcher = EntityMatcher()
    for row in rows:
        same = matcher.match(row["article"], row["written"]).verdict == "equivalent"
        assert same == (row["label"] == "faithful"), row["id"]
