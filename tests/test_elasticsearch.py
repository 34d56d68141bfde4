"""Search servers that fail on request, through both clients; ``tests/with_search`` asks real ones."""

import logging
import shutil
import subprocess
import time

import pytest
from helpers.fake_elasticsearch import FakeElasticsearch
from helpers.refusals import fails

from probers.cli.components import Component
from probers.rag.retrievers import server as connection
from probers.rag.retrievers import server_index
from probers.rag.retrievers.elasticsearch import Elasticsearch
from probers.types import Passage, ProbersError, RunError, UserError

for client in ("elasticsearch", "opensearchpy"):
    pytest.importorskip(client, reason=f"{client} is not installed: pip install 'probers[search]'")

FAST = {"timeout": 5, "retries": 3}
WORDS = "amber basil cedar dune ember fjord grove heron inlet juniper kelp larch moss nettle osier".split()  # noqa: SIM905


def by(monkeypatch, count):
    monkeypatch.setitem(server_index.BULK, "passages", count)


@pytest.fixture
def elastic(monkeypatch):
    for name in ("ES_URL", "ES_API_KEY", "ES_USERNAME", "ES_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(server_index, "QUIET", 0.01)
    monkeypatch.setattr(server_index, "LOOK", 0.005)
    with FakeElasticsearch() as fake:
        yield fake


@pytest.fixture(params=["Elasticsearch", "OpenSearch"])
def server(elastic, request):
    """A server that is asked by the one client, and then by the other."""
    if request.param == "OpenSearch":
        elastic.version("2.19.1", product="OpenSearch")
    return elastic


def corpus(*texts):
    return [Passage(f"p{i}", "", text) for i, text in enumerate(texts)]


ALL = corpus(*WORDS)


def connect(server, passages, **options):
    return Elasticsearch(passages, **{"url": server.url, **FAST, **options})


def ids(rows):
    return [[p.id for p in row] for row in rows]


def test_searches_and_passages_are_sent_in_batches_of_bounded_size(server, monkeypatch):
    retriever = connect(server, ALL)
    assert ids(retriever.search(["basil", " ", *["osier"] * 150], 1)) == [["p1"], [], *[["p14"]] * 150]
    sizes = [len(body.splitlines()) // 2 for body in server.asked("search")]
    assert sizes == [64, 64, 23]  # none for a blank
    assert retriever.together([("basil", "basil")] * 150) == [1] * 150 and len(server.asked("search")) == 4
    passages = corpus(*("amber " * 200 for _ in range(40)), "x " * 30_000)
    server.requests.clear()
    monkeypatch.setitem(server_index.BULK, "bytes", 10_000)
    connect(server, passages)
    bodies = server.asked("bulk")
    assert all(len(b) <= 10_000 or len(b.splitlines()) == 2 for b in bodies) and len(bodies) == 6
    # A proxy that takes less gets less, of passages and of searches.
    server.largest_body = 3000
    retriever = connect(server, passages[:40])
    assert len(server.indices[f"{retriever._name}-1"].docs) == 40
    assert ids(retriever.search(["amber"] * 64, 1)) == [["p0"]] * 64
    with fails("too-long", "'p40'", "60,0", "HTTP 413", "passage_words"):
        connect(server, passages, rebuild=True)


def test_a_node_that_is_dead_or_dies_meanwhile_is_passed_over(server, monkeypatch):
    """Two nodes of one cluster: both are asked, and from some request on one answers no more."""
    gone = "http://127.0.0.1:9"  # where nobody listens
    with fails("network", gone, "Connection refused", kind=RunError):
        connect(server, corpus("amber"), url=gone)
    by(monkeypatch, 2)
    monkeypatch.setattr(time, "sleep", None)  # nothing is waited for
    for endpoint in ("bulk", "search"):
        server.indices.clear()
        server.requests.clear()
        with FakeElasticsearch() as other:
            other.greeting, other.indices = server.greeting, server.indices
            for name in ENDPOINTS:
                other.faults[name] = [None] * (1 if name == endpoint else 99) + ["reset"] * 99
            retriever = connect(server, ALL, url=[other.url, server.url])
            for i, word in enumerate(WORDS):
                assert ids(retriever.search([word], 1)) == [[f"p{i}"]]
            assert len(other.asked(endpoint)) > 1 and len(server.asked(endpoint)) >= 4
            assert len(server.only_index.docs) == len(WORDS)
        assert ids(retriever.search(["heron"], 1)) == [["p7"]]  # the dead one is gone altogether
    monkeypatch.setenv("ES_URL", f"{gone} {server.url}")
    assert f"{gone}, {server.url})" in repr(connect(server, ALL, url=None))


def test_passages_put_off_are_sent_again_alone_and_those_refused_or_lost_are_listed(server, monkeypatch):
    server.put_off = {"3": 2, "5": 1}
    connect(server, ALL, index="one")
    assert [len(b.splitlines()) // 2 for b in server.asked("bulk")] == [15, 2, 1]
    hold = lambda name: max((i for n, i in server.indices.items() if n.startswith(name)), key=id).docs  # noqa: E731
    server.refuse = {"4": "no such thing", "7": "nor this"}
    by(monkeypatch, 5)
    reason = "mapper_parsing_exception: failed to parse no such thing"
    with fails("server", "2 passages", "'p4' (", "'p7' (", reason, kind=RunError):
        connect(server, ALL, index="two")
    assert len(hold("two")) == 13  # the others are loaded
    server.refuse = {}
    connect(server, ALL, index="two")
    assert len(hold("two")) == 15
    server.put_off = {"3": 99}
    with fails("server", "'p3' (es_rejected_execution_exception", kind=RunError):
        connect(server, ALL, index="three")
    # Many that are refused stop the loading.
    server.put_off, server.refuse = {}, {str(i): "no" for i in range(200)}
    server.requests.clear()
    by(monkeypatch, 10)
    with fails("server", "10 passages", "'p9'", kind=RunError):
        connect(server, corpus(*(f"word{i}" for i in range(200))))
    assert len(server.asked("bulk")) == 1
    # Those that vanish in silence are missed.
    server.refuse, server.lose = {}, {"9"}
    with fails("server", "corpus has 15", "holds 14", kind=RunError):
        connect(server, ALL)
    server.lose = set()
    assert ids(connect(server, ALL).search([WORDS[9]], 2)) == [["p9"]]


ERROR = {"type": "es_rejected_execution_exception", "reason": "queue is full"}
BUSY = (429, {"Retry-After": "0"}, {"error": ERROR})
GONE = (503, {"Content-Type": "text/html"}, b"<html>no backend</html>")
ENDPOINTS = ["root", "get", "create", "bulk", "refresh", "count", "aliases", "health", "search"]


def named(value):
    """The name of a fault in the name of a test."""
    return str(value[0] if isinstance(value, tuple) else value)


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [(e, GONE) for e in ENDPOINTS]
    + [(e, f) for e in ("bulk", "search") for f in (BUSY, "cut", "lost", "hang")],
    ids=named,
)
def test_a_passing_fault_is_tried_again_and_nothing_is_twice_there(server, endpoint, fault):
    server.faults[endpoint] = [fault]
    retriever = connect(server, ALL, timeout=0.5)
    assert ids(retriever.search(["heron", "moss"], 3)) == [["p7"], ["p12"]]
    assert not server.faults[endpoint] and len(server.asked(endpoint)) >= 2
    assert len(server.only_index.docs) == len(WORDS)


@pytest.mark.parametrize(("fault", "reason"), [
    (BUSY, "HTTP 429 es_rejected_execution_exception: queue is full"), (GONE, "HTTP 503 a page: no backend"),
    ("cut", "IncompleteRead"), ("hang", "timed out"),
], ids=named)  # fmt: skip
def test_a_lasting_fault_in_a_search_is_one_clear_sentence_and_then_it_goes_on(server, fault, reason):
    retriever = connect(server, corpus("amber", "basil"), retries=1, timeout=0.5)
    server.faults["search"] = [fault] * 2
    with fails("server" if "HTTP" in reason else "network", reason, server.url, kind=RunError):
        retriever.search(["amber"], 1)
    assert ids(retriever.search(["amber"], 1)) == [["p0"]]


def test_pauses_double_and_one_line_says_for_whom(server, monkeypatch, caplog):
    pauses = []
    monkeypatch.setattr(connection, "FIRST_PAUSE", 0.25)
    monkeypatch.setattr(time, "sleep", pauses.append)
    retriever = connect(server, corpus("amber"), retries=8)
    after = (503, {"Retry-After": "7"}, {"error": ERROR})
    server.faults["search"] = [BUSY, after, BUSY, "reset", BUSY]
    assert ids(retriever.search(["amber"], 1)) == [["p0"]]
    assert pauses == [0.25, 7, 1, 2, 4]
    waiting = [r.getMessage() for r in caplog.records if "waiting" in r.getMessage()]
    assert len(waiting) == 1 and server.url in waiting[0] and "64 s" in waiting[0]


FAILED = {"root_cause": [{"type": "query_shard_exception", "reason": "bad field"}], "reason": "all failed"}
WHOLE = {"timed_out": False, "_shards": {"total": 3, "successful": 3, "failed": 0}, "hits": {"hits": []}}
LOST = {"total": 3, "successful": 2, "skipped": 0, "failed": 0}
REJECTED = {"type": "search_phase_execution_exception", "reason": "", "root_cause": [], "caused_by": {
    "type": "search_phase_execution_exception", "reason": "due to missing shards"}}  # fmt: skip


@pytest.mark.parametrize(("answer", "said", "kind"), [
    (WHOLE | {"timed_out": True}, "timed out", RunError),
    (WHOLE | {"_shards": LOST}, "2 of the index's 3 shards", RunError),
    ({"error": REJECTED, "status": 503}, "missing shards", RunError),
    ({"error": FAILED, "status": 400}, "HTTP 400 query_shard_exception: bad field", UserError),
], ids=["late", "lost", "rejected", "error"])  # fmt: skip
@pytest.mark.parametrize("verb", ["search", "frequency"])
def test_an_answer_in_part_or_none_is_refused(server, answer, said, kind, verb):
    retriever, words = connect(server, corpus("amber", "basil", "cedar")), ["amber", "basil", "cedar"]
    ask = lambda: retriever.search(words, 2) if verb == "search" else retriever.frequency(words)  # noqa: E731
    whole = WHOLE | {"hits": {"hits": [], "total": {"value": 0}}}
    fault = (200, {}, {"responses": [whole, answer, whole]})
    server.faults["search"] = [fault] * 9
    with fails("server", said, *(["basil"] if kind is UserError else []), kind=kind):
        ask()
    server.faults["search"] = [fault]
    if kind is RunError:  # it may have passed
        assert len(ask()) == 3


@pytest.mark.parametrize(
    "answer", [{}, ["a"], {"responses": [WHOLE | {"hits": None}]}, {"responses": [WHOLE] * 2}]
)
@pytest.mark.parametrize("endpoint", ["search", "bulk", "count"])
def test_garbage_is_one_sentence(server, answer, endpoint):
    retriever = connect(server, corpus("amber", "basil"))
    server.faults[endpoint] = [(200, {}, answer)]
    with fails("server", server.url, kind=ProbersError):
        retriever.search(["amber"], 2) if endpoint == "search" else connect(server, corpus("cedar"))


def test_a_redirection_is_not_followed(server, monkeypatch):
    monkeypatch.setenv("ES_API_KEY", "a2V5")
    with FakeElasticsearch() as other:
        for status in (301, 302, 307, 308):
            server.faults["root"] = [(status, {"Location": f"{other.url}/"}, b"")]
            with fails("server", f"HTTP {status}"):
                connect(server, corpus("amber"))
        assert not other.requests


@pytest.mark.parametrize(("product", "numbers"), [
    ("Elasticsearch", "7.0.0 9.1.2"), ("OpenSearch", "1.3.20 3.0.0"),
])  # fmt: skip
def test_servers_that_speak_it_are_taken_and_no_others(elastic, product, numbers):
    for number in numbers.split():
        elastic.version(number, product=product)
        elastic.indices.clear()
        client = type(connect(elastic, corpus("amber"))._server.client)
        assert client.__module__.startswith("elasticsearch" if elastic.elastic else "opensearch")
    for other, number in (("Elasticsearch", "6.8.23"), ("Another engine", "4.1")):
        elastic.version(number, product=other)
        elastic.requests.clear()
        with fails("server", "HTTP 200", "retriever.url"):
            connect(elastic, corpus("amber"))
        assert {name for name, _ in elastic.requests} == {"root"}
    for answer, message in (
        ((200, {"Content-Type": "text/html"}, b"<html>hello</html>"), "text/html"),
        ((200, {}, b'{"version": {"num'), "JSONDecodeError"), ((200, {}, {"version": 3}), "Error"),
    ):  # fmt: skip
        elastic.faults["root"] = [answer]
        with fails("server", message, "retriever.url"):
            connect(elastic, corpus("amber"))


@pytest.mark.parametrize(("options", "named"), [
    ({"url": None}, ["ES_URL"]), ({"url": "localhost:9200"}, ["'localhost:9200'"]),
    ({"url": ["http://x:1", "ftp://x:1"]}, ["'http://x:1 ftp://x:1'"]),
    ({"url": "http://x:1/?pretty"}, ["retriever.url"]), ({"b": 2}, ["b=2"]),
    ({"existing": True, "k1": 2}, ["k1=2", "existing"]), ({"existing": True}, ["passages"]),
    ({"text": "txt"}, ["text=txt"]), ({"ca_file": __file__}, [f"ca_file={__file__}", "verify=true"]),
])  # fmt: skip
def test_a_mistaken_request_is_told_before_anything_is_made(elastic, options, named):
    with fails(None, *named):
        connect(elastic, corpus("amber"), **options)
    assert not elastic.indices


KEY, USER, PASSWORD = "aWQ6c2VjcmV0LWtleS0xMjM=", "reader", "pa ss:word@1/2"
BASIC = "Basic cmVhZGVyOnBhIHNzOndvcmRAMS8y"
WAYS = {
    "key": ({"ES_API_KEY": KEY}, f"ApiKey {KEY}"),
    "user": ({"ES_USERNAME": USER, "ES_PASSWORD": PASSWORD}, BASIC),
}


@pytest.mark.parametrize("way", WAYS)
def test_credentials_come_from_the_environment_and_go_nowhere_else(server, way, monkeypatch, caplog, capfd):
    """Into the header, and into no log, representation, message, output or saved configuration."""
    environ, header = WAYS[way]
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    server.authorization = header
    caplog.set_level(logging.INFO)
    component = Component.of("retriever", "elasticsearch", **FAST, url=server.url)
    server.faults["root"] = [(503, {}, {"error": f"{header} cannot be served"})]  # which a log may quote
    retriever = component.make(corpus("amber", "basil"))
    assert ids(retriever.search(["basil"], 1)) == [["p1"]]
    texts = [repr(each) for each in (component, component.node, retriever, retriever._server.client)]
    texts += [str(server.only_index.mappings), str(server.requests)]

    def refused(*named, kind=UserError):
        """Search, and note what the error says and what a traceback would say of those it came from."""
        with fails("server", *named, kind=kind) as error:
            retriever.search(["basil"], 1)
        seen = error.value
        while seen is not None:
            texts.append(f"{seen!r} {seen}")
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)

    server.faults["search"] = [(503, {}, {"error": f"{header} cannot be served"})] * 9
    refused("*** cannot be served", kind=RunError)
    server.faults.clear()
    server.forbidden = {"search"}
    refused("HTTP 403", "'manage', 'read'")
    server.authorization = "another"
    refused("HTTP 401", "ES_API_KEY", "ES_USERNAME and ES_PASSWORD")
    assert any(record.name.startswith(("elastic_transport", "opensearch")) for record in caplog.records)
    texts += [caplog.text, *capfd.readouterr()]
    for secret in (KEY, "secret-key-123", PASSWORD, BASIC.split()[1], "pa%20ss", "pa ss"):
        assert not any(secret in text for text in texts), [text for text in texts if secret in text]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("the certificate of this test is made by openssl, which is not here")
    folder = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(["openssl", "req", "-x509", *kind, *files, *names], check=True, capture_output=True)
    return f"{folder}/cert.pem", f"{folder}/key.pem"


def test_certificates_are_checked_unless_told_otherwise(elastic, certificate):
    with FakeElasticsearch(tls=certificate) as secure:
        with fails("network", "certificate verify failed", "retriever.ca_file"):
            connect(secure, corpus("amber"))
        for no_file, code in (("/no/such.pem", "no-file"), (__file__, "network")):
            with fails(code, "PEM file", "retriever.ca_file"):
                connect(secure, corpus("amber"), ca_file=no_file)
        assert not secure.requests
        for options in ({"ca_file": certificate[0]}, {"verify": False}):
            assert ids(connect(secure, corpus("amber"), **options).search(["amber"], 1)) == [["p0"]]
        with fails("network", "HTTPS port", "give retriever.url as https://"):
            connect(secure, corpus("amber"), url=secure.url.replace("https", "http"))
    with fails("network", "give retriever.url as http://"):
        connect(elastic, corpus("amber"), url=elastic.url.replace("http", "https"))
