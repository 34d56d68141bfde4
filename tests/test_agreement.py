"""Verdicts of judges and of people: probers-judge agreement, and the page on which they are read by hand."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.html_pages import Page as Parsed
from helpers.html_pages import digest
from helpers.refusals import fails
from sklearn.metrics import cohen_kappa_score
from test_audit import PAYLOAD
from test_page import Page as Shown
from test_page import browser  # noqa: F401

from probers.cli.main import run
from probers.data.texts import Text, TextSource
from probers.datagen.judges.agreement import Pair, Part, cohen_kappa, measure
from probers.datagen.judges.page import draw_verdicts, reading_page

ANSWER = "She was born in 1815 in Paris. She wrote notes."
RANGES = {"year": (16, 20), "place": (24, 29)}


def text(number: int, group: str = "", answer: str = ANSWER, **spans: Any) -> dict[str, Any]:
    """A labelled text with verdicts by name of span; ``sentence`` is of the last sentence."""
    whole = spans.pop("sentence", ...)
    sentences = [] if whole is ... else [{"start": 31, "end": 47, "wrong": whole}]
    marks = [
        {"start": start, "end": end, "wrong": spans[name], "type": name, "evidence": "e"}
        for name, (start, end) in RANGES.items()
        if name in spans
    ]
    messages = [{"role": "user", "content": f"Tell me something about {number}."}]
    return {
        "id": f"t/{number}", "messages": messages, "answer": answer, "spans": marks, "sentences": sentences,
        "group": group or f"g{number}", "outside": "unknown",
    }  # fmt: skip


def write(path: Path, texts: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_lines(path, texts)


def compared(folder: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], *typed: str) -> dict[str, Any]:
    files = [write(folder / "run" / "judged.jsonl", a), write(folder / "hand.jsonl", b)]
    out = run("judge", ["agreement", *files, f"out={folder / 'out'}", *typed])
    return json.loads((Path(out) / "agreement.json").read_text())


def planted(table: list[list[int]], per_group: int = 1) -> list[Pair]:
    cells = [(a, b) for a in range(3) for b in range(3) for _ in range(table[a][b])]
    part = Part("spans", ((0, 1),))
    return [Pair(str(i), part, str(i // per_group), a, b) for i, (a, b) in enumerate(cells)]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_kappa_is_that_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    for n in (3, 40, 500):
        a = rng.integers(classes, size=n)
        b = np.where(rng.random(n) < 0.6, a, rng.integers(classes, size=n))
        table = np.zeros((classes, classes))
        np.add.at(table, (a, b), 1)
        expected = cohen_kappa_score(a, b, labels=range(classes))
        assert float(cohen_kappa(table)) == pytest.approx(expected, abs=1e-12, nan_ok=True)


TABLE = [[50, 6, 4], [10, 20, 5], [2, 3, 7]]


def test_figures_are_those_of_the_table() -> None:
    result = measure(planted(TABLE))
    values = {name: each.value for name, each in result.items()}
    decided = [(p.a, p.b) for p in planted(TABLE) if 2 not in (p.a, p.b)]
    assert values.pop("kappa_decided") == pytest.approx(cohen_kappa_score(*zip(*decided, strict=True)))
    rows = [(p.a, p.b) for p in planted(TABLE)]
    assert values.pop("kappa") == pytest.approx(cohen_kappa_score(*zip(*rows, strict=True)))
    assert values == pytest.approx({
        "equal": 77 / 107, "coverage": 95 / 107,
        "supported_precision": 50 / 56, "contradicted_precision": 20 / 30, "decided_precision": 70 / 86,
        "recall": 20 / 29, "false_positive_rate": 10 / 62,
    })  # fmt: skip
    assert all(each.low <= each.value <= each.high for each in result.values())


def test_intervals_are_those_of_a_share_and_wider_over_groups() -> None:
    table = [[240, 160, 0], [0, 0, 0], [0, 0, 0]]  # of A's supported, B finds 60% right
    alone = measure(planted(table))["supported_precision"]
    spread = 1.96 * math.sqrt(0.6 * 0.4 / 400)
    assert alone.value == pytest.approx(0.6)
    assert (alone.low, alone.high) == pytest.approx((0.6 - spread, 0.6 + spread), abs=0.012)
    grouped = measure(planted(table, per_group=10))["supported_precision"]  # all of a group are equal
    ratio = (grouped.high - grouped.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(math.sqrt(10), rel=0.15)
    assert measure(planted(table))["equal"] == alone != measure(planted(table), seed=1)["equal"]


def test_pairs_are_of_the_same_text_kind_and_characters(tmp_path: Path) -> None:
    a = [text(1, year=False, place=True, sentence=False), text(2, year=None), text(3, year=False)]
    b = [text(1, year=False, sentence=True), text(2, year=True, place=True), text(4, year=False)]
    a[1]["sentences"] = [{"start": 16, "end": 20, "wrong": True}]  # the characters of a span of B
    result = compared(tmp_path, a, b)
    assert result["pairs"] == {"spans": 2, "sentences": 1} and (result["texts"], result["groups"]) == (2, 2)
    assert result["a"]["alone"] == {"texts": 1, "spans": 2, "sentences": 1}
    assert result["b"]["alone"] == {"texts": 1, "spans": 2, "sentences": 0}
    assert result["table"]["supported"] == {"supported": 1, "contradicted": 1, "unknown": 0}
    assert result["table"]["unknown"] == {"supported": 0, "contradicted": 1, "unknown": 0}
    assert result["a"]["verdicts"] == {"supported": 3, "contradicted": 2, "unknown": 1}
    assert result["figures"]["coverage"]["value"] == pytest.approx(2 / 3)
    assert result["figures"]["contradicted_precision"] == {"value": None, "ci95": None, "n": 0}


def test_one_class_has_no_kappa_and_one_group_no_interval(tmp_path: Path, caplog: Any) -> None:
    same = [text(n, "one", year=False) for n in range(5)]
    figures = compared(tmp_path, same, same)["figures"]
    assert figures["kappa"] == {"value": None, "ci95": None, "n": 5}
    assert figures["equal"] == {"value": 1.0, "ci95": None, "n": 5}
    assert "nan" not in caplog.text


def test_what_is_refused(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", [text(1, year=False), text(2, year=False)])
    other = write(tmp_path / "b.jsonl", [text(9), text(2, year=False, answer=f"{ANSWER} Then she left.")])
    apart = write(tmp_path / "c.jsonl", [text(1, place=True), text(7, year=True)])
    for typed, code, *named in (
        (["agreement", a, other], "mismatch", "line 2", "a.jsonl", "b.jsonl", "t/2"),
        (["agreement", a, apart], "empty"), (["agreement", a], "missing-value"),
        (["compare", a, a], "bad-value", "action=compare"),
        (["agreement", a, str(tmp_path / "nothing.jsonl")], "no-file", "nothing.jsonl"),
        (["agreement", a, str(tmp_path)], "no-file", "judged.jsonl"),
    ):  # fmt: skip
        with fails(code, *named):
            run("judge", typed)


def test_figures_of_other_files_are_not_replaced(tmp_path: Path) -> None:
    texts = [text(n, year=False) for n in range(3)]
    first = compared(tmp_path, texts, texts)
    assert compared(tmp_path, texts, texts[:2])["a"] != first["a"]  # of the same two files
    other = write(tmp_path / "other.jsonl", texts)
    with fails("out-taken", "agreement.json"):
        run("judge", ["agreement", other, other, f"out={tmp_path / 'out'}"])


ENTER = "\ue007"
LONG = "\U0001f388 Ada was a Countess. She met Bob in 1833. She left Paris. " + "It rained all day. " * 60


def read(folder: Path, texts: list[dict[str, Any]]) -> list[Text]:
    return list(TextSource(write(folder / "run" / "judged.jsonl", texts)).all())


def judged(n: int) -> list[dict[str, Any]]:
    """Each with a supported year, every fourth with a wrong place, every tenth with an unknown one."""
    return [
        text(i, year=False, **({"place": True} if i % 4 == 0 else {"place": None} if i % 10 == 1 else {}))
        for i in range(n)
    ]


def test_half_of_each_verdict_is_drawn_by_seed_in_any_order_and_some_unknown_ones(tmp_path: Path) -> None:
    texts = read(tmp_path, judged(200))  # 200 supported, 50 contradicted, 20 unknown

    def drawn(texts: list[Text], *how: int) -> list[Any]:
        return [(d.text.id, d.kind, d.mark.ranges) for d in draw_verdicts(texts, *how)]

    for count, supported, contradicted in ((40, 20, 20), (41, 21, 20), (120, 70, 50), (900, 200, 50)):
        expected = {"supported": supported, "contradicted": contradicted, "unknown": 15}
        assert Counter(d.verdict for d in draw_verdicts(texts, count)) == expected
    first, other = drawn(texts, 40), drawn(texts, 40, 1)
    assert len(set(first)) == 55 and first == drawn(texts[::-1], 40) and len({*first} & {*other}) < 40
    ids = [id for id, *_ in drawn(texts, 120)]
    runs = [id for place, id in enumerate(ids) if place == 0 or ids[place - 1] != id]
    assert len(runs) == len(set(runs))  # parts of a text stand together


def test_of_parts_that_overlap_one_is_drawn(tmp_path: Path) -> None:
    """The reader could give them different verdicts, and no labelled text may have these."""
    one = text(1, year=False, sentence=True)
    one["spans"] += [{"start": 13, "end": 20, "wrong": False}, {"start": 18, "end": 22, "wrong": False}]
    drawn = draw_verdicts(read(tmp_path, [one]))
    assert [(d.kind, d.mark.start) for d in drawn] == [("spans", 13), ("sentences", 31)]


def test_a_case_shows_prompt_sentences_mark_verdict_and_evidence(tmp_path: Path) -> None:
    one = text(1, answer=LONG, sentence=None)
    year = LONG.index("1833")
    one["spans"] = [{"start": year, "end": year + 4, "wrong": True, "type": "year", "evidence": "In 1834."}]
    page = Parsed(reading_page(read(tmp_path, [one, text(2, year=None)]), about={"Judge": "article"}))
    shown = next(each for each in page.within("article") if "contradicted" in each and "In 1834." in each)
    assert "Tell me something about 1." in shown and "year" in shown
    assert "\U0001f388 Ada was a Countess. She met Bob in 1833. …" in shown  # and not what comes later
    assert "Whole answer, " in shown and shown.count("It rained all day.") == 60
    assert {"1833", "1815"} <= set(page.within("mark"))


def test_whatever_was_written_is_inert(tmp_path: Path) -> None:
    start = len("Hers is ")
    mark = {"start": start, "end": start + len(PAYLOAD), "wrong": True, "type": PAYLOAD, "evidence": PAYLOAD}
    nasty = {
        "id": f"a{PAYLOAD}", "prompt": PAYLOAD, "answer": f"Hers is {PAYLOAD} and </script><!--\u2028.",
        "group": PAYLOAD, "writer": PAYLOAD, "outside": "right", "spans": [mark],
    }  # fmt: skip
    page = reading_page(read(tmp_path, [nasty]), about={PAYLOAD: PAYLOAD})
    parsed = Parsed(page)
    assert not [tag for tag, _ in parsed.tags if tag in ("img", "link", "iframe", "a")]
    assert not [a for _, a in parsed.tags if any(k.startswith("on") or k == "style" for k in a)]
    scripts = re.findall("<script([^>]*)>(.*?)</script>", page, re.S)
    assert len(scripts) == 2 == page.count("</script>") and scripts[1][0] == ""
    assert "\x00" not in page and page.count("alert(") > 8
    assert json.loads(scripts[0][1])["texts"][0]["answer"] == nasty["answer"]  # as it was, for the file
    style = re.search("<style>(.*)</style>", page, re.S)
    assert style and parsed.policy.startswith("default-src 'none'") and "unsafe" not in parsed.policy
    assert all(digest(inline) in parsed.policy for inline in (style[1], scripts[1][1]))


# In a browser.


class Reading(Shown):
    """The page in the browser, opened as a file, and the folder that it saves to."""

    def __init__(self, driver: Any, folder: Path, texts: list[dict[str, Any]]) -> None:
        self.browser, self.folder, self.judged = driver, folder, read(folder, texts)
        self.drawn = draw_verdicts(self.judged, count=9)
        page = reading_page(self.judged, about={"Judge": "article"}, count=9)
        (folder / "reading.html").write_text(page, encoding="utf-8")
        saved = {"behavior": "allow", "downloadPath": str(folder / "saved")}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", saved)
        driver.get_log("browser")
        self.open()

    def open(self, fragment: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get((self.folder / "reading.html").as_uri())

    @property
    def counts(self) -> list[int]:
        """Read, agreed and corrected."""
        match = re.fullmatch(r"(\d+) of \d+ read · (\d+) agreed · (\d+) corrected", self.text("#counts"))
        assert match
        return list(map(int, match.groups()))


def test_what_was_read_is_kept_and_saved_for_the_comparison(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    from selenium.webdriver import ActionChains

    texts = [*judged(12), text(20, year=False, sentence=True)]
    reading = Reading(browser, tmp_path, texts)
    reading.js("localStorage.clear()")  # which all files share
    reading.open()
    choices: dict[int, bool | None] = {}
    other = {"supported": ("c", True), "contradicted": ("u", None), "unknown": ("s", False)}
    for place, each in enumerate(reading.drawn[:6]):
        key, choices[place] = other[each.verdict] if place % 2 else (ENTER, each.mark.wrong)
        ActionChains(browser).send_keys(key).perform()
    assert reading.counts == [6, 3, 3]
    assert Reading(browser, tmp_path, [*texts, text(40, place=True)]).counts == [0, 0, 0]  # another page
    reading = Reading(browser, tmp_path, texts)
    assert reading.counts == [6, 3, 3]
    reading.find(f".case:nth-child(8) [data-verdict={reading.drawn[7].verdict}]").click()
    choices[7] = reading.drawn[7].mark.wrong
    assert reading.counts == [7, 4, 3]
    ActionChains(browser).send_keys("d").perform()
    path = tmp_path / "saved" / "hand.jsonl"
    reading.until(path.exists)
    hand = {one.id: one for one in TextSource(str(path)).all()}
    chosen = [(reading.drawn[place], wrong) for place, wrong in choices.items()]
    expected = {(each.text.id, each.kind, each.mark.ranges, wrong) for each, wrong in chosen}
    corrections = {
        (one.id, kind, mark.ranges, mark.wrong)
        for one in hand.values()
        for kind, marks in (("spans", one.spans), ("sentences", one.sentences))
        for mark in marks
    }
    assert corrections == expected
    before = {one.id: one for one in reading.judged}
    for one in hand.values():
        same = before[one.id]
        assert (one.answer, one.messages, one.group) == (same.answer, same.messages, same.group)
    run("judge", ["agreement", str(tmp_path / "run"), str(path), f"out={tmp_path}"])
    figures = json.loads((tmp_path / "agreement.json").read_text())
    assert sum(figures["pairs"].values()) == 7 and figures["b"]["alone"]["spans"] == 0
    assert figures["figures"]["equal"]["value"] == pytest.approx(4 / 7)
    assert browser.get_log("browser") == []  # no errors of scripts and of the content policy
