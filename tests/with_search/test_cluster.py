"""``retriever=opensearch`` on a cluster of three real nodes, of which any may be killed."""

import time
from contextlib import suppress

import httpx
import pytest
from helpers.refusals import fails
from search_nodes import cluster

from probers.rag.retrievers import BM25, Elasticsearch
from probers.types import Passage, RunError

PASSAGES = [Passage(f"p{i}", "", f"word{i} amber " + "basil " * (i % 7)) for i in range(600)]
ASKED = ["amber word7", "basil", "word17 word599", "amber basil"]


@pytest.fixture(scope="module")
def three(startable, tmp_path_factory):
    nodes = cluster(tmp_path_factory.mktemp("cluster"))
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()
        settled(nodes, 3)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def settled(nodes, count, index="", status="green"):
    """Wait until so many nodes know each other and every copy of a shard has its place."""
    end, health = time.monotonic() + 90, {}
    while time.monotonic() < end:
        for node in nodes:
            with suppress(httpx.TransportError):
                health = node.get(f"/_cluster/health/{index}")
            if health.get("number_of_nodes") == count and health.get("status") == status:
                return
        time.sleep(0.3)
    raise AssertionError(health)


def connect(nodes, passages=PASSAGES, **options):
    given = {"url": [node.url for node in nodes], "timeout": 20, "shards": 3, **options}
    return Elasticsearch(passages, **given)


def results(retriever):
    passages = retriever.search(ASKED, 10)
    return [[(p.id, p.score) for p in row] for row in passages], retriever.frequency(["amber", "amber basil"])


def test_the_loss_of_each_node_in_turn_changes_nothing(three):
    retriever = connect(three, index="safe")
    settled(three, 3, retriever._name)
    whole = results(retriever)
    ours = BM25(PASSAGES)
    assert [[name for name, _ in row] for row in whole[0]] == [
        [p.id for p in r] for r in ours.search(ASKED, 10)
    ]
    assert whole[1] == ours.frequency(["amber", "amber basil"])
    for node in three:
        node.kill()
        assert results(retriever) == whole
        assert results(connect(three, index="safe")) == whole
        node.start()
        node.wait()
        settled(three, 3, retriever._name)
    assert results(retriever) == whole


def test_a_lost_shard_without_a_copy_is_told_and_comes_back(three):
    retriever = connect(three, index="single", replicas=0, retries=3)
    settled(three, 3, retriever._name)
    whole, lost = results(retriever), three[1]
    lost.kill()
    start = time.monotonic()
    with fails("server", "2 of the index's 3 shards", "retriever.replicas", kind=RunError):
        retriever.search(["amber"], 10)
    with fails("server", "shards", kind=RunError):
        retriever.frequency(["amber"])
    # A new retriever says so too, and writes nothing into the shard.
    with fails("server", "not assigned", kind=RunError):
        connect(three, index="single", replicas=0, retries=3)
    assert time.monotonic() - start < 45
    lost.start()  # and what waits goes on
    patient = connect(three, index="single", replicas=0)
    assert results(patient) == whole == results(retriever)


def test_replicas_are_as_many_as_asked_for(three):
    for replicas, expected in (("auto", "1"), (0, "0"), (2, "2")):
        retriever = connect(three, index=f"copies-{replicas}", replicas=replicas, shards=1)
        (settings,) = three[0].get(f"/{retriever._name}/_settings").values()
        assert settings["settings"]["index"]["number_of_replicas"] == expected
        retriever.drop()
