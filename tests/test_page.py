"""The server's page in a real browser, against a server of prepared answers."""

import math
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.fake_serving import MODEL, PAGE, FakeServer, Prepared, Token

from probers.cli.components import component_node
from probers.rag.protocol import State, Trigger
from probers.rag.triggers import DTR, Entropy, FixedSentence, Flare, Never
from probers.serve.http import ApiError
from probers.serve.retrieval import Replay, replay
from probers.types import Generation, Question

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
EVIL = "<img src=x onerror=document.title='run'>"


def tokens(*each: tuple[str, float | None, float], entropy: float = 1.0) -> list[Token]:
    """(text, P(wrong), probability); the score is the log-odds."""
    return [
        (text, None if p is None else math.log(p / (1 - p)), p, math.log(chance), entropy)
        for text, p, chance in each
    ]


PLAIN = Prepared(
    tokens(
        ("Jane", 0.1, 0.9), (" Austen", 0.1, 0.95), (" was", 0.05, 0.9), (" born", 0.3, 0.8),
        (" in", 0.1, 0.9), (" 1775", 0.9, 0.15),
        (".", 0.1, 0.9), (" She", 0.2, 0.7), (" wrote", 0.1, 0.9), (" Emma", 0.5, 0.6),
        (".", None, 0.99),
    ),
    spans=[("Jane Austen", -2.2, 0.1), ("1775", 2.2, 0.9), ("Emma", 0.0, 0.5)],
)  # fmt: skip
SMILING = Prepared(
    tokens(("Ada", 0.1, 0.9), (" 🎈🎈", 0.2, 0.5), (" met", 0.1, 0.9), (" Bob", 0.9, 0.2)),
    [("Bob", 2.2, 0.9)],
)
PASSAGE = {"id": "7", "title": "Emma", "text": "Emma is of 1815.", "score": 12.5}
JUDGED = {"type": "judged", "fire": True, "token_scores": []}
HTML = Prepared(
    tokens((EVIL, 0.9, 0.5), (" <b>bold</b>", 0.2, 0.5)),
    events=[
        {"type": "draft", "text": EVIL},
        JUDGED | {"trigger": "probing", "score": 2.0, "threshold": 0.5, "position": None},
        {"type": "discarded", "text": EVIL},
        {"type": "query", "query": EVIL},
        {"type": "passages", "passages": [PASSAGE | {"title": EVIL, "text": EVIL}], "left_out": 0},
    ],
)  # fmt: skip
DRAFT = Prepared(
    tokens(
        ("Emma", 0.2, 0.9), (" came", 0.1, 0.9), (".", 0.1, 0.9),
        (" It", 0.2, 0.9), (" was", 0.1, 0.9), (" 1820", 0.9, 0.1), (".", 0.1, 0.9),
    )
)  # fmt: skip
_SCORED = {name.removeprefix("token_"): values for name, values in DRAFT.lists().items()}
RETRIEVED = Prepared(
    tokens(
        ("Emma", 0.2, 0.9), (" came", 0.1, 0.9), (".", 0.1, 0.9),
        (" In", 0.1, 0.8), (" 1815", 0.1, 0.9), (".", 0.1, 0.9),
    ),
    spans=[("1815", -2.2, 0.1)],
    events=[
        {"type": "draft", "text": "Emma came."},
        {"type": "draft", "text": DRAFT.text},
        {"type": "draft", "text": DRAFT.text} | _SCORED,
        JUDGED | {"trigger": "flare", "score": 0.9, "threshold": 0.2, "position": 11},
        {"type": "discarded", "text": "It was 1820."},
        {"type": "query", "query": "When did Emma come?"},
        {"type": "passages", "passages": [PASSAGE], "left_out": 2},
    ],
)  # fmt: skip
PREPARED = {
    "plain": PLAIN, "smiling": SMILING, EVIL: HTML, "retrieved": RETRIEVED,
    "slow": replace(PLAIN, pause=0.3), "unlike": replace(PLAIN, unlike=True),
    "refused": Prepared(status=400, error="max_tokens=0 must be 1 or more"),
    "broken": Prepared(PLAIN.tokens, error="the model stopped: <b>out of memory</b>"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not (BROWSER and DRIVER):
        pytest.skip("no browser here: apt-get install chromium chromium-driver runs the tests of the page")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1300,900"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer(PREPARED)
    yield fake
    fake.close()


class Page:
    """The page in the browser, by what a reader sees of it."""

    def __init__(self, browser: Any, server: FakeServer) -> None:
        self.browser, self.server = browser, server
        browser.get_log("browser")
        self.open()

    def open(self, fragment: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(self.server.url + fragment)
        self.until(lambda: "Asking" not in self.text("#about"))

    def js(self, code: str, *values: Any) -> Any:
        return self.browser.execute_script(code, *values)

    def find(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0]).textContent", selector))

    def shown(self, selector: str) -> bool:
        return bool(self.find(selector).is_displayed())

    def until(self, holds: Callable[[], Any]) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.browser, 10, poll_frequency=0.02).until(lambda _: holds())

    def ask(self, question: str, *, chat: bool = False, retrieve: bool = False) -> None:
        self.find(f"[name=form][value={'chat' if chat else 'completion'}]").click()
        if self.find("#retrieve").is_selected() != retrieve:
            self.find("#retrieve").click()
        self.find("#prompt").clear()
        self.find("#prompt").send_keys(question)
        self.find("#send").click()

    def answered(self, question: str, **how: Any) -> None:
        self.ask(question, **how)
        self.until(lambda: self.shown("#stop") is False and "Writing" not in self.text("#status"))

    def set(self, selector: str, value: str, event: str = "input") -> None:
        code = """const field = document.querySelector(arguments[0]); field.value = arguments[1];
            field.dispatchEvent(new Event(arguments[2], {bubbles: true}))"""
        self.js(code, selector, value, event)

    def texts(self, selector: str) -> list[str]:
        code = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return list(self.js(code, selector))

    def panel(self, name: str) -> dict[str, str]:
        self.until(lambda: not self.all("[aria-busy]"))
        root = f"fieldset.panel:nth-child({'AB'.index(name) + 1})"
        verdict, text = self.text(f"{root} .verdict"), self.text(f"{root} .tokens")
        return {"verdict": verdict, "text": text, "discarded": "".join(self.texts(f"{root} .discarded"))}

    def inspector(self) -> str:
        return self.text("#inspector") if self.shown("#inspector") else ""

    def linked(self) -> str:
        """The fragment of a link to what is shown."""
        self.find("#link").click()
        self.until(lambda: self.text("#linked"))
        return str(self.js("return location.hash"))


@pytest.fixture
def page(browser: Any, server: FakeServer) -> Iterator[Page]:
    page = Page(browser, server)
    yield page
    told = [entry["message"] for entry in browser.get_log("browser")]
    # no errors of scripts and of the content policy
    assert [each for each in told if "status of 4" not in each] == []


def test_tokens_appear_while_they_are_written(page: Page) -> None:
    page.ask("slow")
    page.until(lambda: 1 < len(page.all("#text [role=option]")) < len(PLAIN.tokens))
    page.find("#stop").click()
    page.until(lambda: "Stopped" in page.text("#status"))
    assert PLAIN.text.startswith(page.text("#text")) and page.text("#text") != PLAIN.text
    assert "Cannot be replayed" in page.panel("A")["verdict"]  # the prober's score came with the last chunk


def test_tokens_show_what_is_known_of_them(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.answered("plain")
    assert page.text("#text") == PLAIN.text  # marks and labels are no part of the text
    options = page.all("#text [role=option]")
    assert [option.get_attribute("class").split()[1] for option in options] == [
        "s0", "s0", "s0", "s1", "s0", "s4", "s0", "s1", "s0", "s2", "unread",
    ]  # fmt: skip
    ActionChains(page.browser).move_to_element(options[5]).perform()
    for row in ("P(wrong)90%", "Score2.2", "Probability15%", "Entropy1 nats", "Span1775: P(wrong) 90%"):
        assert row in page.inspector()
    ActionChains(page.browser).move_to_element(options[10]).perform()
    assert "not read" in page.inspector()
    assert [e.text for e in page.all("#text .span.ends")] == ["Austen", "1775", "Emma"]
    assert "P(wrong) 90%: score 2.2, above the threshold 0.5" in page.text("#status")
    assert not page.shown("#unlike")
    page.answered("unlike")
    assert "distance 9.5, limit 7.25" in page.text("#unlike")


def test_the_request_is_what_was_set(page: Page) -> None:
    page.set("#max-tokens", "7")
    page.set("#temperature", "0.5")
    page.answered("plain", chat=True)
    assert page.text("#text") == PLAIN.text
    page.find("#retrieve").click()
    page.set("#query", "question", "change")
    page.set("#threshold", "0.25")
    page.answered("plain", retrieve=True)
    chat, completion = page.server.asked
    said = [{"role": "user", "content": "plain"}]
    shared = {"model": "smollm2", "max_tokens": 7, "temperature": 0.5, "stream": True}
    assert chat == shared | {"messages": said, "path": "/v1/chat/completions"}
    retrieval = {"trigger": "probing", "query": "question", "threshold": 0.25}
    assert completion == shared | {"prompt": "plain", "retrieval": retrieval, "path": "/v1/completions"}


def test_a_text_of_ones_own_is_checked_and_nothing_is_written(page: Page) -> None:
    assert page.shown("#legend") and "likelier it is wrong" in page.text("#legend")
    page.server.prepared |= {PLAIN.text: PLAIN}
    page.find("[name=form][value=score]").click()
    assert page.shown("#checking") and not page.shown("#limits") and not page.shown("#switch")
    page.find("#send").click()  # without a text there is nothing to check
    assert not page.server.asked
    page.find("#checked").send_keys(PLAIN.text)
    page.find("#send").click()
    page.until(lambda: "P(wrong) 90%" in page.text("#status"))
    assert page.server.asked == [{"model": "smollm2", "answer": PLAIN.text, "path": "/v1/score"}]
    assert page.text("#text").startswith("Jane Austen") and page.all("#text .span.begins")
    page.find("#link").click()
    page.until(lambda: page.text("#linked"))
    page.open(page.js("return location.hash"))
    page.until(lambda: page.shown("#checking"))
    assert page.find("#checked").get_property("value") == PLAIN.text and "P(wrong) 90%" in page.text(
        "#status"
    )
    page.find("[name=form][value=completion]").click()
    assert not page.shown("#checking") and page.shown("#limits")


def test_replay_follows_the_threshold_both_ways_and_asks_nothing(page: Page) -> None:
    page.answered("plain")
    assert "Fires on the whole text: score 2.2, threshold 0.5" in page.panel("A")["verdict"]
    assert page.panel("A")["discarded"] == PLAIN.text
    page.set("#range-A", "2.5")
    assert "Does not fire" in page.panel("A")["verdict"] and page.panel("A")["discarded"] == ""
    page.set("#number-A", "0.4")
    page.set("#trigger-B", "flare", "change")
    assert "Fires at sentence 1 of 2: score 0.85, threshold 0.2" in page.panel("B")["verdict"]
    page.set("#number-B", "0.86")
    assert "Does not fire" in page.panel("B")["verdict"]
    page.set("#trigger-B", "fixed_sentence", "change")
    assert page.panel("B")["discarded"] == " She wrote Emma."
    assert "Fires" in page.panel("A")["verdict"]  # one moves without the other
    assert len(page.server.asked) == 1


def test_link_brings_the_same_view_back(page: Page) -> None:
    page.answered("smiling", chat=True)
    page.set("#trigger-B", "flare", "change")
    page.set("#number-B", "0.6")

    def view() -> dict[str, Any]:
        marks = page.js("return document.querySelector('#text').innerHTML.replace(/token-\\d+/g, '')")
        return {"status": page.text("#status"), "marks": marks, "a": page.panel("A"), "b": page.panel("B")}

    before = view()
    assert "Fires" in before["b"]["verdict"] and page.text("#text .span.ends") == "Bob"
    fragment = page.linked()
    page.open(fragment)
    page.until(lambda: page.shown("#text"))
    assert view() == before and len(page.server.asked) == 1
    assert page.find("#prompt").get_attribute("value") == "smiling"
    assert page.find("[value=chat]").is_selected()
    page.open(fragment[:-20])
    page.until(lambda: page.shown("#failure"))
    assert not page.shown("#text")


def test_retrieval_is_told_as_it_happened(page: Page) -> None:
    page.answered("retrieved", retrieve=True)
    assert page.text("#text") == RETRIEVED.text
    assert len(page.all("#rounds > li")) == 1
    for said in (
        "flare: score 0.9, threshold 0.2; fires at character 11", "Discarded: It was 1820.",
        "Query: When did Emma come?", "1 passage read, 2 more had no room in the prompt", "Emma is of 1815.",
    ):  # fmt: skip
        assert said in page.text("#rounds")
    # Replayed is the draft, of which no entities are known; and the answer as well.
    assert page.panel("A")["text"] == DRAFT.text and "Cannot be replayed" in page.panel("A")["verdict"]
    page.set("#trigger-A", "flare", "change")
    assert page.panel("A")["discarded"] == " It was 1820."
    page.set("#trigger-A", "probing", "change")
    page.set("#replayed", "1", "change")
    assert page.panel("A")["text"] == RETRIEVED.text and "Does not fire" in page.panel("A")["verdict"]
    page.answered("plain")
    assert not page.shown("#came")


def test_html_of_models_and_passages_stays_text(page: Page) -> None:
    page.answered(EVIL, retrieve=True)
    assert page.text("#text") == HTML.text and page.text("#asked") == EVIL
    assert page.text("#rounds").count(EVIL) == 5  # draft, what was discarded, query, title and text
    page.open(page.linked())
    page.until(lambda: page.shown("#text"))
    assert page.all("img, #text b") == [] and page.browser.title != "run"


def test_errors_are_in_the_servers_words(page: Page) -> None:
    page.answered("refused")
    assert page.text("#failure") == "max_tokens=0 must be 1 or more" and not page.shown("#text")
    page.answered("broken")
    assert page.text("#failure") == "the model stopped: <b>out of memory</b>"
    assert PLAIN.text.startswith(page.text("#text")) and "not finished" in page.text("#status")
    page.answered("plain")
    assert not page.shown("#failure")


def test_a_key_is_asked_for_and_not_kept(page: Page) -> None:
    page.server.key = "secret"
    page.answered("plain")
    assert "give an API key" in page.text("#failure") and page.js("return document.activeElement.id") == "key"
    page.find("#key").send_keys("secret", "\ue007")
    page.until(lambda: page.text("#text") == PLAIN.text)
    assert not page.shown("#locked") and "secret" not in page.linked()
    assert page.js("return JSON.stringify(localStorage) + document.cookie").count("secret") == 0
    page.open()
    assert page.shown("#locked")


def test_keyboard_alone(page: Page) -> None:
    from selenium.webdriver import ActionChains, Keys

    def press(*keys: str) -> None:
        ActionChains(page.browser).send_keys(*keys).perform()

    def tab_to(identity: str) -> None:
        for _ in range(40):
            press(Keys.TAB)
            if page.js("return document.activeElement.id") == identity:
                return
        raise AssertionError(f"the Tab key does not reach {identity}")

    tab_to("prompt")
    press("plain")
    ActionChains(page.browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.until(lambda: page.shown("#replay"))
    tab_to("text")
    press(Keys.END, Keys.ARROW_LEFT)
    assert "Token Emma" in page.inspector()
    press(Keys.ESCAPE)
    assert page.inspector() == ""
    tab_to("range-A")
    press(Keys.END)
    assert "Does not fire" in page.panel("A")["verdict"]
    press(Keys.HOME)
    assert "Fires" in page.panel("A")["verdict"]
    unnamed = """return [...document.querySelectorAll('input, select, textarea, button')]
        .filter(e => !e.labels?.length && !e.ariaLabel && !e.textContent.trim()).map(e => e.outerHTML)"""
    assert page.js(unnamed) == []


def test_queries_and_defaults_are_those_of_the_components(page: Page) -> None:
    assert page.texts("#query option") == ["default", *MODEL["queries"]]
    defaults = page.js("return import('/page/replay.js').then(m => ['entropy', 'flare'].map(m.defaults))")
    for found in defaults:
        options = component_node("trigger", found.pop("trigger"))
        assert len(found) > 1 and found == {key: options[key] for key in found}


# The replay that the page asks for


def generation(draw: random.Random) -> Generation:
    """A text of random tokens, some of which begin within words or hold a border of sentences."""
    parts = ["The", " cat", " sat", ".", " It", " was", " Dr", ". ", "5", "🎈", "\n", "!", " He", "", " U.S."]
    pieces = draw.choices([*parts, " mat. It"], k=draw.randrange(0, 24))
    ends = np.cumsum([0, *map(len, pieces)]).tolist()
    n = len(pieces)
    return Generation(
        "", (), (), tuple(range(n)), "".join(pieces), tuple(zip(ends, ends[1:], strict=False)),
        np.array([-draw.random() * 2 for _ in pieces], dtype=np.float32),
        np.array([draw.random() * 3 for _ in pieces], dtype=np.float32), "eos",
    )  # fmt: skip


KINDS: list[tuple[str, dict[str, Any], Callable[[dict[str, Any]], Trigger]]] = [
    *(("entropy", {"scope": scope, "reduction": by}, lambda o: Entropy(**o))
      for scope in ("answer", "sentence") for by in ("mean", "max")),
    *(("flare", {"variant": variant}, lambda o: Flare(**o)) for variant in ("paper", "dragin")),
    ("dtr", {}, lambda o: DTR(**o)),
    ("fixed_sentence", {}, lambda o: FixedSentence()), ("never", {}, lambda o: Never()),
]  # fmt: skip


def test_replayed_decisions_are_those_of_the_triggers() -> None:
    draw, fired = random.Random(1), []
    for _ in range(100):
        made, fresh = generation(draw), draw.random() < 0.3
        state = State(Question("q", "?"), None, None, (0, 0), fresh=fresh)  # type: ignore[arg-type]
        lists = {"logprobs": made.logprobs.tolist(), "entropies": made.entropies.tolist()}
        for name, options, build in KINDS:
            settings = dict(options)
            if name in ("entropy", "flare", "dtr"):
                settings["threshold"] = draw.random() * {"entropy": 3, "flare": 1, "dtr": 2}[name]
            decision = build(settings)(made, state)
            body = {"trigger": name, "options": settings, "text": made.text, "offsets": made.offsets}
            found = replay(Replay.model_validate({**body, **lists, "fresh": fresh}))
            assert (found["fire"], found["score"]) == (decision.fire, decision.score)
            assert found["tokens"] == decision.tokens
            assert found["whole"] == (decision.fire and decision.position is None)
            kept = made.text[: 0 if found["whole"] else decision.position].rstrip()
            assert found["kept"] == len(kept if decision.fire else made.text)
            first = next((part["start"] for part in found["judged"] if part["fires"]), None)
            assert first in (None, decision.position)
            scores = [part["score"] for part in found["judged"]]
            assert not scores or max(scores) == pytest.approx(decision.score)
            fired.append(found["fire"])
    assert 0.2 < np.mean(fired) < 0.8


def test_replayed_probing_fires_above_the_threshold_only() -> None:
    """Equal does not fire; nothing to judge does not; an answer without a token is no answer."""
    for score, threshold, n, fire in (
        (0.6, 0.5, 3, True), (0.5, 0.5, 3, False), (-1, -2, 3, True), (None, -5, 3, False),
        (None, 0.5, 0, True),
    ):  # fmt: skip
        body = {"trigger": "probing", "options": {"threshold": threshold}, "text": "a" * n, "score": score}
        body |= {"offsets": [(i, i + 1) for i in range(n)], "p_wrong": [0.5] * n}
        body |= {
            "spans": [{"start": 1, "end": 2, "score": score or 0, "p_wrong": 0.5}] if score and n else []
        }
        found = replay(Replay.model_validate(body))
        assert found["fire"] == fire and (found["score"] is None) == (score is None and n > 0)
        assert found["tokens"] == ([1] if fire and n else []) and found["kept"] == (0 if fire else n)


@pytest.mark.parametrize("name", ["probing", "entropy", "flare", "dtr"])
def test_what_was_not_recorded_is_named(name: str) -> None:
    body = {"trigger": name, "text": "a", "offsets": [(0, 1)], "entropies": [None], "logprobs": [None]}
    with pytest.raises(ApiError, match="does not carry"):
        replay(Replay.model_validate(body))


def test_nothing_is_fetched_from_elsewhere_or_made_of_markup() -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    for path in PAGE.iterdir():
        assert not re.search(rf"https?://|['\"]//|{markup}", path.read_text()), path
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", html)
