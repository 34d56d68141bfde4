"""The server's page in a real browser: what it shows is what the server says."""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.serving import PROMPT, QUESTION, Running, bank_for, running

from probers import CausalLM
from probers.cli.components import component_node
from probers.data import load_corpus
from probers.rag.protocol import State, Trigger
from probers.rag.retrievers.bm25 import BM25
from probers.rag.triggers import DTR, Entropy, FixedSentence, Flare, Never
from probers.serve.continuous import ContinuousBatch
from probers.serve.http import ApiError
from probers.serve.retrieval import Replay, replay
from probers.types import Generation, Passage, Question

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
PAGE = Path(__file__).parents[1] / "serve" / "page"
EVIL = "<img src=x onerror=document.title='run'>"


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


class Page:
    """The page in the browser, by what a reader sees of it."""

    def __init__(self, browser: Any, server: Running) -> None:
        self.browser, self.server = browser, server
        browser.get_log("browser")
        self.open()

    def open(self, fragment: str = "") -> None:
        self.browser.get("about:blank")
        self.browser.get(f"{self.server.url}/{fragment}")
        self.until(lambda: "Asking" not in self.text("#about"))
        # Keep what is asked of the server from now on.
        self.js("""window.sent = []; const fetched = window.fetch; window.fetch = (path, options) => {
            window.sent.push([path, JSON.parse(options.body ?? null)]); return fetched(path, options); }""")

    def sent(self) -> list[tuple[str, Any]]:
        """Paths and bodies of the requests, but for replays."""
        return [(path, body) for path, body in self.js("return window.sent") if path != "v1/replay"]

    def answer(self) -> Any:
        """What the server says to the last request, sent again."""
        path, body = self.sent()[-1]
        body.pop("stream", None)
        said = httpx.post(f"{self.server.url}/{path}", json=body, timeout=60).json()
        return said if path == "v1/score" else said["choices"][0]

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
        self.set("#prompt", question)
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


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    lm.tokenizer.chat_template = "{% for m in messages %}Question: {{ m.content }}\nAnswer:{% endfor %}"
    with running(lm, bank_for(lm), corpus=True) as server:
        evil = Passage("evil", EVIL, f"<b>{EVIL} onerror</b>")
        passages = BM25([*load_corpus("testbed"), evil])
        assert server.served.retrieving is not None
        server.served.retrieving = replace(server.served.retrieving, retriever=passages)
        yield server


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Page]:
    page = Page(browser, server)
    yield page
    messages = [entry["message"] for entry in browser.get_log("browser")]
    # no errors of scripts and of the content policy
    assert [each for each in messages if not re.search("status of [45]", each)] == []


def percent(p: float) -> str:
    return "<1%" if p < 0.005 else ">99%" if p > 0.995 else f"{round(100 * p)}%"


def test_tokens_appear_while_they_are_written(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalLM, "_eos", frozenset())  # it writes on and on
    page.set("#max-tokens", "400")
    page.ask(PROMPT)
    page.until(lambda: len(page.all("#text [role=option]")) > 3)
    page.find("#stop").click()
    page.until(lambda: "Stopped" in page.text("#status"))
    assert page.server.idle()
    assert page.answer()["text"].startswith(page.text("#text")) and page.text("#text")
    assert "Cannot be replayed" in page.panel("A")["verdict"]  # the prober's score came with the last chunk


def test_tokens_show_what_is_known_of_them(page: Page) -> None:
    from selenium.webdriver import ActionChains

    page.answered(PROMPT)
    said = page.answer()
    scored = said["hallucination"]
    assert page.text("#text") == said["text"]  # marks and labels are no part of the text
    options = page.all("#text [role=option]")
    chances = scored["token_p_wrong"]
    steps = ["unread" if p is None else f"s{min(4, int(5 * p))}" for p in chances]
    assert [option.get_attribute("class").split()[1] for option in options] == steps and len({*steps}) > 2
    ends = page.all("#text .span.ends")
    assert [e.get_attribute("data-chance") for e in ends] == [percent(s["p_wrong"]) for s in scored["spans"]]
    (span, *_) = scored["spans"]
    inside = next(i for i, (_, end) in enumerate(scored["token_offsets"]) if end > span["start"])
    ActionChains(page.browser).move_to_element(options[inside]).perform()
    text = said["text"][span["start"] : span["end"]]
    for row in (
        f"P(wrong){percent(chances[inside])}",
        f"Probability{percent(np.exp(scored['token_logprobs'][inside]))}",
        f"Span{text}: P(wrong) {percent(span['p_wrong'])}",
    ):  # fmt: skip
        assert row in page.inspector()
    assert f"P(wrong) {percent(scored['p_wrong'])}" in page.text("#status")


def test_the_request_is_what_was_set(page: Page) -> None:
    page.set("#max-tokens", "7")
    page.set("#temperature", "0.5")
    page.answered(QUESTION, chat=True)
    page.find("#retrieve").click()
    page.set("#query", "question", "change")
    page.set("#threshold", "0.25")
    page.set("#temperature", "0")
    page.answered(QUESTION, retrieve=True)
    shared = {"model": "testbed", "max_tokens": 7, "stream": True}
    retrieval = {"trigger": "probing", "query": "question", "threshold": 0.25}
    assert page.sent() == [
        ("v1/chat/completions",
         shared | {"temperature": 0.5, "messages": [{"role": "user", "content": QUESTION}]}),
        ("v1/completions", shared | {"temperature": 0, "prompt": QUESTION, "retrieval": retrieval}),
    ]  # fmt: skip


def test_a_text_of_ones_own_is_checked_and_nothing_is_written(page: Page) -> None:
    text = "Lena Zaser works for Rekman Labs."
    page.find("[name=form][value=score]").click()
    page.find("#send").click()  # without a text there is nothing to check
    assert not page.sent()
    page.find("#checked").send_keys(text)
    page.find("#send").click()
    page.until(lambda: "P(wrong)" in page.text("#status"))
    assert page.sent() == [("v1/score", {"model": "testbed", "answer": text})]
    before = percent(page.answer()["hallucination"]["p_wrong"]), page.text("#status")
    assert before[0] in before[1] and page.all("#text .span.begins")
    page.open(page.linked())
    page.until(lambda: page.shown("#checking"))
    assert page.find("#checked").get_property("value") == text and page.text("#status") == before[1]
    with running(page.server.served.scheduler.lm, None) as bare:  # nothing can be checked without a prober
        assert not Page(page.browser, bare).find("[name=form][value=score]").is_enabled()


def test_replay_follows_the_threshold_both_ways_and_asks_nothing(page: Page) -> None:
    page.answered(PROMPT)
    text, score = page.text("#text"), page.answer()["hallucination"]["score"]
    first = text.index(".") + 1
    assert text[first:].strip()
    for threshold, fires in ((score - 1, True), (score + 1, False)):
        page.set("#number-A", str(threshold))
        assert ("Fires on the whole text" in page.panel("A")["verdict"]) == fires
        assert page.panel("A")["discarded"] == (text if fires else "")
    page.set("#trigger-B", "flare", "change")
    for threshold, verdict in ((0, "Fires at sentence"), (1, "Does not fire")):
        page.set("#number-B", str(threshold))
        assert verdict in page.panel("B")["verdict"]
    page.set("#trigger-B", "fixed_sentence", "change")
    assert page.panel("B")["discarded"] == text[first:]
    assert "Does not fire" in page.panel("A")["verdict"]  # one moves without the other
    assert len(page.sent()) == 1


def test_link_brings_the_same_view_back(page: Page) -> None:
    page.answered("Wo 🎈🎈 ist Lena Zaser?", chat=True)
    page.set("#trigger-B", "flare", "change")
    page.set("#number-B", "0")

    def view() -> dict[str, Any]:
        marks = page.js("return document.querySelector('#text').innerHTML.replace(/token-\\d+/g, '')")
        return {"status": page.text("#status"), "marks": marks, "a": page.panel("A"), "b": page.panel("B")}

    before, fragment = view(), page.linked()
    page.open(fragment)
    page.until(lambda: page.shown("#text"))
    assert view() == before and not page.sent()
    assert page.find("#prompt").get_attribute("value") == "Wo 🎈🎈 ist Lena Zaser?"
    assert page.find("[value=chat]").is_selected()
    page.open(fragment[:-20])
    page.until(lambda: page.shown("#failure"))
    assert not page.shown("#text")


def test_retrieval_is_told_as_it_happened(page: Page) -> None:
    page.set("#threshold", "-100000")
    page.answered(QUESTION, retrieve=True)
    said = page.answer()
    rounds, events = page.text("#rounds"), said["retrieval"]["events"]
    for event in events:
        if event["type"] in ("discarded", "query"):
            assert event.get("text", event.get("query")) in rounds
        for passage in event.get("passages", ()):
            assert passage["text"] in rounds and passage["title"] in rounds
    assert len(page.all("#rounds > li")) == sum(event["type"] == "judged" for event in events) > 1
    assert "probing: score" in rounds and "fires on the whole draft" in rounds
    # Replayed are the drafts, and the answer.
    drafts = [event["text"] for event in events if event["type"] == "draft"]
    assert page.panel("A")["text"] == drafts[0]
    page.set("#replayed", str(len(drafts)), "change")
    assert page.panel("A")["text"] == page.text("#text") == said["text"]
    page.answered(PROMPT)
    assert not page.shown("#came")


def test_html_of_models_and_passages_stays_text(page: Page) -> None:
    page.set("#threshold", "-100000")
    page.set("#query", "question", "change")
    page.answered(EVIL, retrieve=True)
    assert page.text("#asked") == EVIL
    assert page.text("#rounds").count(EVIL) >= 3  # query, title and text
    page.open(page.linked())
    page.until(lambda: page.shown("#text"))
    assert page.all("img, #text b, #rounds b b") == [] and page.browser.title != "run"


def test_errors_are_in_the_servers_words(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.answered("word " * 3000)
    assert "maximum context length" in page.text("#failure") and not page.shown("#text")
    original, steps = ContinuousBatch._write, []

    def broken(batch: Any, *given: Any) -> Any:
        steps.append(1)
        if len(steps) > 6:
            raise RuntimeError("<b>out of memory</b>")
        return original(batch, *given)

    monkeypatch.setattr(ContinuousBatch, "_write", broken)
    page.answered(PROMPT)
    monkeypatch.undo()
    assert "<b>out of memory</b>" in page.text("#failure") and "not finished" in page.text("#status")
    assert page.answer()["text"].startswith(page.text("#text")) and page.text("#text")
    page.answered(PROMPT)
    assert not page.shown("#failure")


def test_a_key_is_asked_for_and_not_kept(browser: Any, server: Running) -> None:
    with running(server.served.scheduler.lm, None, api_key="secret") as locked:
        page = Page(browser, locked)
        page.until(lambda: page.shown("#locked"))
        page.find("#key").send_keys("secret", "\ue007")
        page.until(lambda: not page.shown("#locked"))
        page.answered(PROMPT)
        assert page.text("#text") and "secret" not in page.linked()
        assert page.js("return JSON.stringify(localStorage) + document.cookie").count("secret") == 0
        page.open()
        page.until(lambda: page.shown("#locked"))


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
    press("Lena Zaser was born in")
    ActionChains(page.browser).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.until(lambda: page.shown("#replay"))
    tab_to("text")
    press(Keys.END, Keys.ARROW_LEFT)
    assert f"Token{page.texts('#text [role=option]')[-2]}" in page.inspector()
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
    assert page.texts("#query option") == ["default", *page.server.client.models.list().data[0].queries]
    defaults = page.js("return import('/page/replay.js').then(m => ['entropy', 'flare'].map(m.defaults))")
    for entry in defaults:
        options = component_node("trigger", entry.pop("trigger"))
        assert len(entry) > 1 and entry == {key: options[key] for key in entry}


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
            result = replay(Replay.model_validate({**body, **lists, "fresh": fresh}))
            assert (result["fire"], result["score"]) == (decision.fire, decision.score)
            assert result["tokens"] == decision.tokens
            assert result["whole"] == (decision.fire and decision.position is None)
            accepted = made.text[: 0 if result["whole"] else decision.position].rstrip()
            assert result["kept"] == len(accepted if decision.fire else made.text)
            first = next((part["start"] for part in result["judged"] if part["fires"]), None)
            assert first in (None, decision.position)
            scores = [part["score"] for part in result["judged"]]
            assert not scores or max(scores) == pytest.approx(decision.score)
            fired.append(result["fire"])
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
        result = replay(Replay.model_validate(body))
        assert result["fire"] == fire and (result["score"] is None) == (score is None and n > 0)
        assert result["tokens"] == ([1] if fire and n else []) and result["kept"] == (0 if fire else n)


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
