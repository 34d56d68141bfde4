"""The page to read verdicts: the right ones drawn, every text inert, and a file of what was read."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.html_pages import Page as Parsed
from helpers.html_pages import digest
from test_agreement import text, write
from test_page import Page as Shown
from test_page import browser  # noqa: F401
from test_sample import PAYLOAD

from probers.cli.main import run
from probers.data.texts import Text, TextSource
from probers.datagen.judges.page import draw_verdicts, reading_page

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

    def __init__(self, driver: Any, folder: Path, texts: list[dict[str, Any]], **how: int) -> None:
        self.browser, self.folder, self.judged = driver, folder, read(folder, texts)
        self.drawn = draw_verdicts(self.judged, **how)
        page = reading_page(self.judged, about={"Judge": "article"}, **how)
        (folder / "reading.html").write_text(page, encoding="utf-8")
        self.emulate("Emulation.clearDeviceMetricsOverride")
        self.emulate("Emulation.setEmulatedMedia", features=[])
        self.emulate("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder / "saved"))
        driver.get_log("browser")
        self.open()

    def open(self, fragment: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get((self.folder / "reading.html").as_uri())

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def current(self) -> int:
        code = "return [...document.querySelectorAll('.case')].findIndex(e => e.matches('.current'))"
        return int(self.js(code))

    @property
    def counts(self) -> list[int]:
        """Read, agreed and corrected."""
        found = re.fullmatch(r"(\d+) of \d+ read · (\d+) agreed · (\d+) corrected", self.text("#counts"))
        assert found
        return list(map(int, found.groups()))

    def saved(self) -> Path:
        path = self.folder / "saved" / "hand.jsonl"
        self.until(path.exists)
        return path


@pytest.fixture
def reading(browser: Any, tmp_path: Path) -> Iterator[Reading]:  # noqa: F811
    page = Reading(browser, tmp_path, [*judged(12), text(20, year=False, sentence=True)], count=9)
    page.js("localStorage.clear()")  # which all files share
    page.open()
    yield page
    # no errors of scripts and of the content policy
    assert browser.get_log("browser") == []


def test_what_was_read_outlives_a_reload_and_is_saved_for_the_comparison(reading: Reading) -> None:
    choices: dict[int, bool | None] = {}
    other = {"supported": ("c", True), "contradicted": ("u", None), "unknown": ("s", False)}
    for place, each in enumerate(reading.drawn[:6]):
        key, choices[place] = other[each.verdict] if place % 2 else (ENTER, each.mark.wrong)
        reading.press(key)
    assert reading.counts == [6, 3, 3]
    reading.open()
    assert reading.counts == [6, 3, 3] and reading.current == 6
    reading.find(f".case:nth-child(8) [data-verdict={reading.drawn[7].verdict}]").click()
    choices[7] = reading.drawn[7].mark.wrong
    assert reading.counts == [7, 4, 3]
    reading.press("d")
    path = reading.saved()
    hand = {one.id: one for one in TextSource(str(path)).all()}
    chosen = [(reading.drawn[place], wrong) for place, wrong in choices.items()]
    expected = {(each.text.id, each.kind, each.mark.ranges, wrong) for each, wrong in chosen}
    found = {
        (one.id, kind, mark.ranges, mark.wrong)
        for one in hand.values()
        for kind, marks in (("spans", one.spans), ("sentences", one.sentences))
        for mark in marks
    }
    assert found == expected
    before = {one.id: one for one in reading.judged}
    for one in hand.values():
        same = before[one.id]
        assert (one.answer, one.messages, one.group) == (same.answer, same.messages, same.group)
    run("judge", ["agreement", str(reading.folder / "run"), str(path), f"out={reading.folder}"])
    figures = json.loads((reading.folder / "agreement.json").read_text())
    assert sum(figures["pairs"].values()) == 7 and figures["b"]["alone"]["spans"] == 0
    assert figures["figures"]["equal"]["value"] == pytest.approx(4 / 7)


def test_choices_are_those_of_a_page_of_the_same_content(reading: Reading) -> None:
    reading.press(ENTER)
    texts = [json.loads(line) for line in (reading.folder / "run" / "judged.jsonl").open()]
    other = Reading(reading.browser, reading.folder, [*texts, text(40, place=True)], count=9)
    assert other.counts == [0, 0, 0]
    same = Reading(reading.browser, reading.folder, texts, count=9)
    assert same.counts == [1, 1, 0]
    for damaged in ("{]", '[["length", "unknown"], [1, "toString"], [99, "unknown"]]'):
        same.js("localStorage.setItem(Object.keys(localStorage)[0], arguments[0])", damaged)
        same.open()
        assert same.counts == [0, 0, 0]
