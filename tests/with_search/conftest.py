"""Tests on real OpenSearch nodes (``make test-search``); elsewhere they are skipped by name."""

import pytest
import search_nodes


@pytest.fixture(autouse=True)
def no_server_of_the_user(monkeypatch):
    for name in ("ES_URL", "ES_API_KEY", "ES_USERNAME", "ES_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def startable():
    if reason := search_nodes.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def one(startable, tmp_path_factory):
    """One node, for all tests that do not end it."""
    node = search_nodes.alone(tmp_path_factory.mktemp("search"))
    try:
        node.start()
        node.wait()
        yield node
    finally:
        node.kill()
