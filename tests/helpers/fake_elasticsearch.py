"""A server that speaks the part of Elasticsearch's and OpenSearch's REST API the retriever uses, and fails.

It is for what a real server cannot be made to do on request: answers that are garbage, cut, late or a lie,
and the other product; ``tests/with_search`` asks real ones. It satisfies the official clients and holds
documents; a document's score is the number of the query's words that it has.
"""

import json
import threading
from collections import Counter, defaultdict
from fnmatch import fnmatch
from urllib.parse import parse_qs, unquote, urlsplit

from helpers.http_fakes import Handler, Server

JSON = "application/json"
SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
GREEN = {"cluster_name": "fake", "status": "green", "timed_out": False, "unassigned_shards": 0}


class RefusedError(Exception):
    def __init__(self, status, kind, reason):
        super().__init__(reason)
        first = {"type": kind, "reason": reason}
        self.status, self.error = status, {"root_cause": [first], **first}


class FakeIndex:
    """Documents, and those of them that have been refreshed."""

    def __init__(self, name, body):
        self.name, self.mappings = name, body["mappings"]
        self.fields = [f for f, p in self.mappings["properties"].items() if p.get("analyzer")]
        self.docs, self.visible, self.aliases, self.indexing = {}, {}, {}, Counter()

    def create(self, name, source):
        """Status of the new document, with its error or None."""
        if name in self.docs:
            self.indexing["index_failed"] += 1
            reason = f"[{name}]: document already exists"
            return 409, {"type": "version_conflict_engine_exception", "reason": reason}
        self.docs[name] = source
        self.indexing["index_total"] += 1
        return 201, None

    def refresh(self):
        self.visible = dict(self.docs)
        return {"_shards": {"total": 2, "successful": 1, "failed": 0}}  # the copy is not anywhere yet

    def count(self):
        return {"count": len(self.visible), "_shards": SHARDS}

    def matches(self, query):
        """Document -> score: words in common, or 0 where it holds every phrase in one of its fields."""

        def count(document, words):
            texts = [f" {document[field]} " for field in self.fields]
            return float(sum(any(f" {each} " in text for text in texts) for each in words))

        if "bool" in query:
            phrases = [part["multi_match"]["query"] for part in query["bool"]["filter"]]
            return {d: 0.0 for d, each in self.visible.items() if count(each, phrases) == len(phrases)}
        scores = {d: count(each, query["multi_match"]["query"].split()) for d, each in self.visible.items()}
        return {d: score for d, score in scores.items() if score}


class FakeElasticsearch(Server):
    """The server; a context manager. Attributes say how it behaves, and may be changed at any time.

    Attributes:
        greeting: what GET / answers.
        faults: endpoint -> faults of its next requests: (status, headers, body), "reset" (nothing is
            done), "lost" (done, the answer never comes), "cut" (done, half of the answer comes), or "hang".
        put_off: document -> how often a bulk request answers 429 for it.
        refuse: document -> why a bulk request refuses it.
        lose: documents that are acknowledged and dropped.
        authorization: the header that every request needs.
    """

    def __init__(self, *, tls=None):
        self.version("8.13.4")
        self.indices, self.faults, self.requests = {}, defaultdict(list), []
        self.put_off, self.refuse, self.lose = {}, {}, set()
        self.largest_body = 100_000_000
        self.authorization = None
        self.forbidden = set()
        self.path = ""  # before that of every request
        self._stop = threading.Event()
        super().__init__(self._handler(), tls)

    def close(self):
        self._stop.set()
        super().close()

    def version(self, number, *, product="Elasticsearch"):
        known = {"Elasticsearch": "You Know, for Search", "OpenSearch": "The OpenSearch Project"}
        version = {"number": number} | ({"distribution": "opensearch"} if product == "OpenSearch" else {})
        tagline = known.get(product, product)
        self.greeting = {"name": "node", "cluster_name": "fake", "version": version, "tagline": tagline}

    def asked(self, endpoint):
        """Bodies of the requests that reached an endpoint."""
        return [body for name, body in self.requests if name == endpoint]

    def answer(self, method, path, body):
        """(endpoint, function that does it)."""
        assert path.startswith(self.path)
        parts = [unquote(p) for p in urlsplit(path.removeprefix(self.path)).path.split("/") if p]
        options = parse_qs(urlsplit(path).query)
        if method == "GET" and not parts:
            return "root", lambda: self.greeting
        if parts == ["_aliases"]:
            return "aliases", lambda: self.move(json.loads(body)["actions"])
        if parts[:2] == ["_cluster", "health"]:
            return "health", lambda: self.index(parts[2]) and GREEN
        name, *rest = parts
        bulk = "bulk", lambda: self.bulk(name, body)
        return {
            ("GET", ""): ("get", lambda: self.get(name, options)),
            ("PUT", ""): ("create", lambda: self.create(name, json.loads(body))),
            ("DELETE", ""): ("delete", lambda: self.delete(name)),
            ("GET", "_stats/indexing"): ("stats", lambda: self.stats(self.index(name))),
            ("POST", "_msearch"): ("search", lambda: self.searches(name, body)),
            ("PUT", "_bulk"): bulk, ("POST", "_bulk"): bulk,
            ("POST", "_refresh"): ("refresh", lambda: self.index(name).refresh()),
            ("POST", "_count"): ("count", lambda: self.index(name).count()),
        }[method, "/".join(rest)]  # fmt: skip

    @property
    def elastic(self):
        """Whether the client of Elasticsearch 8 is to be used, which says so in its content types."""
        number = self.greeting["version"]["number"]
        return "for Search" in self.greeting["tagline"] and number.startswith(("8.", "9."))

    @property
    def only_index(self):
        (index,) = self.indices.values()
        return index

    def index(self, name):
        """The index of a name or alias."""
        for index in self.indices.values():
            if name in (index.name, *index.aliases):
                return index
        raise RefusedError(404, "index_not_found_exception", f"no such index [{name}]")

    def get(self, names, options):
        assert options["ignore_unavailable"] == ["true"]
        listed = [
            index for index in self.indices.values()
            if any(fnmatch(a, name) for name in names.split(",") for a in (index.name, *index.aliases))
        ]  # fmt: skip
        return {each.name: {"aliases": each.aliases, "mappings": each.mappings} for each in listed}

    def create(self, name, body):
        if name in self.indices:
            raise RefusedError(400, "resource_already_exists_exception", f"index [{name}] already exists")
        self.indices[name] = FakeIndex(name, body)
        return {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def move(self, actions):
        for action in actions:
            if given := action.get("add"):
                self.indices[given["index"]].aliases[given["alias"]] = {}
            else:
                del self.indices[action["remove_index"]["index"]]
        return {"acknowledged": True}

    def stats(self, index):
        counts = {"index_total": 0, "index_failed": 0, **index.indexing}
        return {"_shards": SHARDS, "_all": {"primaries": {"indexing": counts}}}

    def delete(self, names):
        for name in names.split(","):
            self.indices.pop(name, None)
        return {"acknowledged": True}

    def bulk(self, name, body):
        index = self.index(name)
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.decode().split("\n")[:-1]]
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            document = action["create"]["_id"]
            status, error = self.one(index, document, source)
            item = {"_index": name, "_id": document, "status": status}
            items.append({"create": item | ({"error": error} if error else {})})
        return {"took": 1, "errors": any("error" in i["create"] for i in items), "items": items}

    def one(self, index, name, source):
        if self.put_off.get(name, 0):
            self.put_off[name] -= 1
            return 429, {"type": "es_rejected_execution_exception", "reason": "rejected execution"}
        if name in self.refuse:
            cause = {"type": "illegal_argument_exception", "reason": self.refuse[name]}
            return 400, {"type": "mapper_parsing_exception", "reason": "failed to parse", "caused_by": cause}
        if name in self.lose:
            return 201, None
        return index.create(name, source)

    def searches(self, name, body):
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.decode().split("\n")[:-1]]
        return {"took": 1, "responses": [self.search(name, query) for query in lines[1::2]]}

    def search(self, name, body):
        try:
            index = self.index(name)
            matches = index.matches(body["query"])
        except RefusedError as error:
            return {"error": error.error, "status": error.status}
        hits = {"max_score": None, "hits": []}
        if body["track_total_hits"]:
            hits["total"] = {"value": len(matches), "relation": "eq"}
        else:
            order = sorted((-score, index.visible[d]["n"], d) for d, score in matches.items())
            hits["hits"] = [
                {"_index": index.name, "_id": d, "_score": -score, "sort": [-score, n]}
                for score, n, d in order[: body["size"]]
            ]
        return {"took": 1, "timed_out": False, "_shards": SHARDS, "status": 200, "hits": hits}

    def _handler(fake):
        class Speaking(Handler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                body = self.body()
                endpoint, act = fake.answer(self.command, self.path, body)
                kind = self.headers.get("Content-Type", "") + self.headers.get("Accept", "")
                # OpenSearch's client asks what the server is, and that of Elasticsearch makes sure.
                assert endpoint == "root" or ("compatible-with=8" in kind) == fake.elastic, kind
                fake.requests.append((endpoint, body))
                fault = fake.faults[endpoint].pop(0) if fake.faults[endpoint] else None
                if fault == "hang":
                    fake._stop.wait(5)
                if fault in ("hang", "reset"):
                    return self.hang_up()
                status, headers, answer = self.judged(endpoint, act, len(body))
                if isinstance(fault, tuple):
                    status, headers, answer = fault
                if fault == "lost":
                    return self.hang_up()
                common = {"Content-Type": self.headers.get("Accept") or JSON}
                if fake.elastic:
                    common["X-Elastic-Product"] = "Elasticsearch"
                self.send(status, answer, common | headers, half=fault == "cut")
                if fault == "cut":
                    self.hang_up()

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_one

            def judged(self, endpoint, act, size):
                sent = self.headers.get("Authorization")
                if size > fake.largest_body:
                    page = b"<html><head><title>413 Request Entity Too Large</title></head></html>"
                    return 413, {"Content-Type": "text/html"}, page
                try:  # some servers do say so much
                    if fake.authorization and sent != fake.authorization:
                        raise RefusedError(401, "security_exception", f"unable to authenticate with {sent}")
                    if endpoint in fake.forbidden:
                        raise RefusedError(403, "security_exception", f"action is unauthorized for {sent}")
                    return 200, {}, act()
                except RefusedError as error:
                    return error.status, {}, {"error": error.error, "status": error.status}

        return Speaking
