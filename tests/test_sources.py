"""Article sources: a live Wikipedia (a local server that speaks its API), files, datasets, bad articles."""

import json
import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from urllib.parse import parse_qs, urlsplit

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.artefacts import write_lines
from helpers.http_fakes import Handler, Server
from helpers.refusals import fails

from probers.data.articles import Rules, open_articles
from probers.data.articles.wikipedia import GIVE_UP
from probers.types import RunError

PROSE = (
    "{0} is a town on the river. It was founded in 1204 by a bishop.\n\n\n== History ==\n"
    "The castle burned in 1402. It was built again.\n\n=== Mayors ===\nAda Lovelace\nOtto Hahn\n\n\n"
    "== References ==\nA reference is here.\n\n=== Books ===\nA book is here.\n\n"
    "== Culture ==\nThere is a museum."
)
SENTENCES = (
    "{0} is a town on the river.", "It was founded in 1204 by a bishop.", "The castle burned in 1402.",
    "It was built again.", "There is a museum.",
)  # fmt: skip


class Wiki:
    """A MediaWiki: pages by title, category members, and faults to answer with first."""

    def __init__(self):
        self.pages = {}  # title -> extract
        self.props = {}  # title -> pageprops
        self.redirects = {}
        self.categories = {}  # title -> member titles
        self.faults = []  # what the next requests get instead of an answer
        self.broken = {}  # title -> the fault every request for it gets
        self.requests = []
        self.agents = set()
        self.drawn = 0

    def answer(self, request):
        if request.get("list") == "categorymembers":
            members = self.categories.get(request["cmtitle"], [])
            at = int(request.get("cmcontinue", 0))
            part = members[at : at + 2]  # pages of two, so that every listing continues
            made = [{"pageid": 1, "ns": self.space(t), "title": t} for t in part]
            more = {"continue": {"cmcontinue": str(at + 2)}} if at + 2 < len(members) else {}
            return {"query": {"categorymembers": made}, **more}
        if request.get("list") == "random":
            titles = list(self.pages)
            chosen = [titles[(self.drawn + i) % len(titles)] for i in range(int(request["rnlimit"]))]
            self.drawn += len(chosen)
            return {"query": {"random": [{"id": 1, "ns": 0, "title": t} for t in chosen]}}
        assert request["explaintext"] and "extracts" in request["prop"] and request["redirects"] == "1"
        title = self.redirects.get(request["titles"], request["titles"])
        if title not in self.pages:
            return {"query": {"pages": {"-1": {"ns": 0, "title": title, "missing": ""}}}}
        number = 1 + list(self.pages).index(title)
        page = {"pageid": number, "ns": 0, "title": title, "lastrevid": 7, "extract": self.pages[title]}
        if title in self.props:
            page["pageprops"] = self.props[title]
        return {"query": {"pages": {str(number): page}}}

    @staticmethod
    def space(title):
        return {"Category": 14, "File": 6}.get(title.partition(":")[0], 0)


@pytest.fixture
def wiki(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Wiki()
    stop = threading.Event()

    class Speaking(Handler):
        def do_GET(self):
            query = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
            state.requests.append(query)
            state.agents.add(self.headers["User-Agent"])
            fault = state.faults.pop(0) if state.faults else state.broken.get(query.get("titles"))

            if fault == "hang":
                stop.wait(5)
                return
            if fault == "reset":
                return self.hang_up()
            status, headers, answer = fault if isinstance(fault, tuple) else (200, {}, state.answer(query))

            self.send(status, answer, headers, half=fault == "half")

    with Server(Speaking) as server:
        state.options = {
            "api_url": f"{server.url}/w/api.php", "cache": str(tmp_path / "cache"), "rate": 1000.0,
            "backoff": 0.01, "timeout": 0.3,
        }  # fmt: skip
        yield state
        stop.set()


def towns(*names):
    return {name: PROSE.format(name) for name in names}


def fetch(wiki, limit=None, seed=0, **options):
    """(articles, problems) of one run."""
    source = open_articles("wikipedia", limit=limit, seed=seed, wikipedia={**wiki.options, **options})
    return list(source), list(source.problems)


def test_a_page_becomes_prose_without_headings_lists_and_references(wiki, tmp_path):
    wiki.pages = towns("New Aston", "Bexley", "Calder")
    (tmp_path / "titles.txt").write_text("New_Aston\n\nNew Aston\n")
    (article,), problems = fetch(wiki, titles=str(tmp_path / "titles.txt"), contact="someone@example.org")
    assert article.title == "New Aston" and article.split in ("train", "validation", "test")
    assert article.sentences == tuple(s.format("New Aston") for s in SENTENCES)
    assert not problems and len(wiki.requests) == 1
    (agent,) = wiki.agents
    assert agent.startswith("probers/") and "someone@example.org" in agent
    # A second run asks nothing, and a changed one only what is new.
    titles = ["Nowhere", "Bexley"]
    first = fetch(wiki, titles=titles)
    assert [t for t, _ in first[1]] == ["Nowhere"]
    wiki.requests.clear()
    assert fetch(wiki, titles=titles) == first and not wiki.requests
    fetch(wiki, titles=[*titles, "Calder"])
    assert [r["titles"] for r in wiki.requests] == ["Calder"]


def test_a_category_is_followed_to_its_depth_once_round_a_circle_and_cached(wiki):
    wiki.pages = towns("Aston", "Bexley", "Calder", "Dunmore")
    wiki.categories = {
        "Category:Towns": ["Aston", "File:Map.png", "Category:Ports", "Bexley", "Category:Towns"],
        "Category:Ports": ["Bexley", "Category:Towns", "Calder", "Category:Deep"],
        "Category:Deep": ["Dunmore"],
    }
    names = {d: [a.title for a in fetch(wiki, category="Towns", depth=d)[0]] for d in (0, 1, 2)}
    assert names == {d: ["Aston", "Bexley", "Calder", "Dunmore"][: d + 2] for d in (0, 1, 2)}
    wiki.requests.clear()
    assert [a.title for a in fetch(wiki, category="Category:Towns", depth=2)[0]] == names[2]
    assert not wiki.requests


def test_random_pages_are_kept_under_their_seed(wiki):
    wiki.pages = towns(*(f"Town {i}" for i in range(60)))
    first = fetch(wiki, random=True, limit=12)
    assert len(first[0]) == 12
    wiki.requests.clear()
    assert fetch(wiki, random=True, limit=12) == first and not wiki.requests
    assert fetch(wiki, random=True, limit=20)[0][:12] == first[0]
    assert fetch(wiki, random=True, limit=12, seed=1)[0] != first[0]


def test_each_problem_is_listed_with_its_reason_and_the_others_are_delivered(wiki):
    wiki.pages = towns("Aston") | {"Mercury": "It may refer to: a planet.", "Bare": "", "Stub": "A stub."}
    wiki.props = {"Mercury": {"disambiguation": ""}, "Aston": {"wikibase_item": "Q1"}}
    wiki.redirects = {"Astonville": "Aston"}
    wiki.broken = {"Locked": (403, {}, {})}
    titles = ["Nowhere", "Mercury", "Bare", "Stub", "Locked", "a|b", "Aston", "Astonville"]
    articles, problems = fetch(wiki, titles=titles)
    assert [a.title for a in articles] == ["Aston"]
    wanted = ["missing", "disambiguation", "empty", "too short: 1", "HTTP 403", "missing", "the same article"]
    assert [t for t, _ in problems] == [t for t in titles if t != "Aston"]
    assert all(w in reason for w, (_, reason) in zip(wanted, problems, strict=True)), problems
    assert len(wiki.requests) == len(titles) - 1  # "a|b" would ask for two pages


def test_429_and_503_wait_as_told_and_requests_are_spaced_by_the_rate(wiki, monkeypatch):
    noted = []
    monkeypatch.setattr(time, "sleep", noted.append)
    wiki.pages = towns("Aston", "Bexley", "Calder")
    date = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=40), usegmt=True)
    wiki.faults = [(429, {"Retry-After": "7"}, {}), (503, {"Retry-After": date}, {}), (429, {}, {})]
    articles, problems = fetch(wiki, titles=["Aston"], backoff=0.5)
    assert len(articles) == 1 and not problems and len(wiki.requests) == 4
    first, second, third = [wait for wait in noted if wait > 0.1]
    assert first == 7 and 30 < second <= 40 and third == 0.5 * 4  # the third failure, doubled twice
    noted.clear()
    fetch(wiki, titles=["Aston", "Bexley", "Calder"], rate=0.1, cache=wiki.options["cache"] + "2")
    assert len(noted) == 2 and 9 < noted[0] <= 10 and 18 < noted[1] <= 20


MAXLAG = {"error": {"code": "maxlag", "info": "3 s"}}


@pytest.mark.parametrize("fault", ["half", "hang", (500, {}, {}), (200, {}, b"<html>"), (200, {}, MAXLAG)])
def test_a_passing_fault_is_tried_again_and_a_lasting_one_is_listed(wiki, fault):
    wiki.pages = towns("Aston", "Bexley")
    wiki.faults, wiki.broken = [fault], {"Calder": fault}
    articles, ((title, reason),) = fetch(wiki, titles=["Aston", "Calder", "Bexley"], retries=1)
    assert [a.title for a in articles] == ["Aston", "Bexley"] and len(wiki.requests) == 5
    assert title == "Calder" and reason.startswith("not fetched") and "tried 2 times" in reason
    wiki.broken, wiki.pages = {}, wiki.pages | towns("Calder")
    assert len(fetch(wiki, titles=["Calder", "Bexley"])[0]) == 2  # a failure is not kept


def test_a_dead_network_is_left_alone_and_the_cache_still_serves(wiki):
    wiki.pages = towns("Aston")
    fetch(wiki, titles=["Aston"])
    wiki.requests.clear()
    wiki.faults = ["reset"] * 1000
    titles = [f"Town {i}" for i in range(30)]
    articles, problems = fetch(wiki, titles=[*titles, "Aston"], retries=0)
    assert [a.title for a in articles] == ["Aston"]
    assert len(wiki.requests) == GIVE_UP and len(problems) == 30 and "in a row" in problems[-1][1]
    with fails("network", kind=RunError):
        fetch(wiki, titles=titles, retries=0)
    with fails("network", kind=RunError):
        fetch(wiki, category="Towns", retries=0)


def records(n):
    return [{"title": f"Town {i}", "text": f"Town {i} is here. It is old."} for i in range(n)]


def test_the_articles_of_a_file_have_exact_shares_and_limits_are_nested(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", records(200))
    articles = list(open_articles(path))
    names = [f"Town {i}" for i in range(200)]
    wanted = [(name, name, (f"{name} is here.", "It is old.")) for name in names]
    assert [(a.id, a.title, a.sentences) for a in articles] == wanted
    assert Counter(a.split for a in articles) == {"train": 120, "validation": 30, "test": 50}
    assert [a.split for a in open_articles(path, seed=1)] != [a.split for a in articles]
    drawn = {n: list(open_articles(path, limit=n)) for n in (10, 30, 500)}
    assert [len(d) for d in drawn.values()] == [10, 30, 200] and all(a in drawn[30] for a in drawn[10])
    assert [a.title for a in open_articles(path, limit=10, seed=1)] != [a.title for a in drawn[10]]


@pytest.mark.parametrize(("line", "reason"), [
    ('{"title": "x", "text": ', "Expecting"), ('{"title": "x"}', "no 'text' and no 'sentences'"),
    ('{"title": "x", "sentences": "y"}', "list of strings"), ("[" * 100_000, ""),
    ('{"id": "n", "title": "x", "text": "It is. It was."}', "already on line 1"),
])  # fmt: skip
def test_a_malformed_line_stops_before_the_first_article_or_is_listed(tmp_path, line, reason):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "n", **records(1)[0]}) + "\n\n" + line + "\n")
    with fails("bad-line", "a.jsonl line 3: ", reason):
        open_articles(str(path))
    source = open_articles(str(path), on_bad_line="skip")
    assert len(list(source)) == 1 and [t for t, _ in source.problems] == ["line 3"]
    with fails("empty"):
        open_articles(str(path), on_bad_line="skip", rules=Rules(min_sentences=9))


def test_a_repeated_title_without_ids_is_listed_and_with_ids_kept_on_one_side(tmp_path):
    source = open_articles(write_lines(tmp_path / "a.jsonl", [*records(4), records(4)[1]]))
    assert [a.title for a in source] == [r["title"] for r in records(4)]
    assert list(source.problems) == [("line 5", "repeated title: also on line 2")]
    twice = [{"id": i, **r} for i, r in enumerate([*records(40), *records(40)])]
    sides = {}
    for article in open_articles(write_lines(tmp_path / "b.jsonl", twice)):
        sides.setdefault(article.title, []).append(article.split)
    assert all(len(s) == 2 and s[0] == s[1] for s in sides.values()) and len(sides) == 40


ODD = {
    "Control": ("The\x00 town\x07 is\there.\r\nIt is\x1b old.\ud800", ("The town is here.", "It is old.")),
    "One": ("A single sentence.", "too short: 1 of at least 2"), "Empty": ("", "empty"),
    "Blank": (" \n\x00\n ", "empty"), "Large": ("It is a town. " * 75_000, 100_000),
    "Endless": ("word " * 210_000, "too long"),
    "مدينة": ("تقع المدينة على النهر. هل هي قديمة؟ نعم.", ("تقع المدينة على النهر.", "هل هي قديمة؟", "نعم.")),
    "城市": ("这座城市位于河边。它建于1204年！", ("这座城市位于河边。", "它建于1204年！")),
    "": ("It has no title. It is odd.", "no title"),
}  # fmt: skip


def test_odd_articles_are_cleaned_or_listed(tmp_path):
    made = [{"title": title, "text": text} for title, (text, _) in ODD.items()]
    source = open_articles(write_lines(tmp_path / "odd.jsonl", made))
    got = {a.title: a.sentences for a in source}
    refused = dict(source.problems)
    for number, (title, (_, wanted)) in enumerate(ODD.items(), 1):
        if isinstance(wanted, str):
            assert wanted in refused.pop(title or f"line {number}")
        elif isinstance(wanted, tuple):
            assert got.pop(title) == wanted
        else:
            size = len(" ".join(got.pop(title)))
            assert wanted - 20 < size <= wanted
    assert not got and not refused


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    datasets.disable_progress_bars()
    # The library sleeps for five seconds whenever a shuffled stream is not read to its end.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)


def test_a_dataset_is_streamed_from_parquet_with_its_splits(tmp_path):
    rows = [{"id": f"x{i}", "title": f"Town {i}", "text": PROSE.format(f"Town {i}")} for i in range(50)]
    rows[3]["text"], rows[4]["title"] = None, None
    for split, part in (("train", rows[:40]), ("test", rows[40:])):
        pq.write_table(pa.Table.from_pylist(part), tmp_path / f"{split}.parquet")
    source = open_articles(f"hf:{tmp_path}")
    articles = list(source)
    assert len(articles) == 38 and articles[0].id == "x0"
    assert articles[0].sentences == tuple(s.format("Town 0") for s in SENTENCES)
    assert list(source.problems) == [("Town 3", "empty"), ("row 5", "no title")]
    assert len(list(open_articles(f"hf:{tmp_path}::test"))) == 10
    few = [[a.id for a in open_articles(f"hf:{tmp_path}", limit=n, seed=1)] for n in (5, 9)]
    assert len(few[1]) == 9 and few[0] == few[1][:5] != [a.id for a in articles[:5]]
    with fails("unknown-choice"):
        open_articles(f"hf:{tmp_path}::validation")
    (tmp_path / "other").mkdir()
    write_lines(tmp_path / "other/train.jsonl", [{"name": "Aston", "text": "It is here."}])
    with fails("bad-file"):
        list(open_articles(f"hf:{tmp_path}/other"))


def test_a_stream_that_breaks_off_keeps_what_it_gave(monkeypatch):
    def rows():
        yield {"title": "Aston", "text": PROSE.format("Aston")}
        raise OSError("connection lost")

    made = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **o: {"train": made})
    source = open_articles("hf:a/b")
    assert [a.title for a in source] == ["Aston"]
    ((_, reason),) = source.problems
    assert "broke off" in reason and "connection lost" in reason
