"""The imitation of a server answers what the retriever sends in the form of a real node."""

import json
import re

import pytest
from helpers.fake_elasticsearch import FakeElasticsearch
from helpers.refusals import fails

from probers.rag.retrievers import Elasticsearch
from probers.types import Passage

PASSAGES = [Passage(f"p{i}", "Title", f"word{i} amber " + "basil " * i) for i in range(5)]
#: Keys whose names are those of indexes and aliases, or that only one node's settings have.
NAMED = re.compile(r"^(probers|index)-")


def form(value):
    """The keys of an answer, and the types of its values."""
    if isinstance(value, dict):
        return {("NAME" if NAMED.match(key) else key): form(each) for key, each in value.items()}
    if isinstance(value, list):
        return [form(each) for each in value[:1]]
    return (
        "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
    )


def lacks(own, real, place=""):
    """Places where the imitation has what the real one has not, or of another kind."""
    if isinstance(own, dict) and isinstance(real, dict):
        missing = [f"{place}/{key}" for key in own if key not in real]
        return missing + [
            m for key in own.keys() & real for m in lacks(own[key], real[key], f"{place}/{key}")
        ]
    if isinstance(own, list) and isinstance(real, list):
        return [m for a, b in zip(own, real, strict=False) for m in lacks(a, b, f"{place}[]")]
    return [] if own == real else [f"{place}: {own} for {real}"]


@pytest.fixture(scope="module")
def requests():
    """Everything that the retriever sends, with the imitation's answers."""
    with FakeElasticsearch() as fake:
        fake.version("2.19.6", product="OpenSearch")
        answers = []
        answer = fake.answer

        def noted(method, path, body):
            endpoint, act = answer(method, path, body)

            def acted():
                made = act()
                answers.append((endpoint, method, path, body, json.loads(json.dumps(made))))
                return made

            return endpoint, acted

        fake.answer = noted
        retriever = Elasticsearch(PASSAGES, url=fake.url, index="index-a", fields="separate")
        retriever.search(["amber basil", "word3"], 5)
        retriever.frequency(["amber basil", "title"])
        retriever.together([("title", "word1")])
        Elasticsearch(PASSAGES, url=fake.url, index="index-a", fields="separate", rebuild=True)
        retriever.drop()
        with fails("server", "no such index"):
            retriever.search(["amber"], 1)
        yield answers


def test_the_same_requests_get_answers_of_the_same_form(one, requests):
    endpoints = {endpoint for endpoint, *_ in requests}
    assert endpoints >= {
        "root",
        "get",
        "create",
        "bulk",
        "refresh",
        "count",
        "aliases",
        "health",
        "search",
        "delete",
    }
    for endpoint, method, path, body, own in requests:
        kind = "application/x-ndjson" if endpoint in ("bulk", "search") else "application/json"
        real = one.send(method, path, body.decode() or None, kind)
        assert lacks(form(own), form(real)) == [], (endpoint, json.dumps(real)[:600])
        if endpoint == "search" and "hits" in own["responses"][0]:
            for mine, theirs in zip(own["responses"], real["responses"], strict=True):
                assert mine["hits"].get("total") == theirs["hits"].get("total")
                assert {hit["_id"] for hit in mine["hits"]["hits"]} == {
                    hit["_id"] for hit in theirs["hits"]["hits"]
                }
