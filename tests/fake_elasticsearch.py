"""A server that speaks the part of Elasticsearch's and OpenSearch's REST API the retriever uses.

It satisfies their official clients, holds documents, scores them with BM25 computed from scratch, is as
strict as the real ones about what it is sent (unknown keys, content types, documents that are not
refreshed), and fails on request.
"""

import json
import math
import re
import threading
from collections import Counter, defaultdict
from urllib.parse import parse_qs, unquote, urlsplit

from http_fakes import Handler, Server

STOP_WORDS = re.findall(  # Lucene's
    r"\w+",
    "a an and are as at be but by for if in into is it no not of on or such that the their then there "
    "these they this to was will with",
)
FULL = (
    "index [{}] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark, index has "
    "read-only-allow-delete block];"
)
JSON = "application/json"
SHARDS = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}


class RefusedError(Exception):
    def __init__(self, status, kind, reason, **more):
        super().__init__(reason)
        first = {"type": kind, "reason": reason}
        self.status, self.error = status, {"root_cause": [first], **first, **more}


def only(given, *allowed):
    if unknown := set(given) - set(allowed):
        raise RefusedError(400, "parsing_exception", f"unknown key {sorted(unknown)}")


class FakeIndex:
    """Documents, and the postings of those that have been refreshed."""

    def __init__(self, name, body):
        only(body, "settings", "mappings")
        self.name = name
        self.settings = body["settings"]
        shapes = ("number_of_shards", "number_of_replicas", "refresh_interval")
        only(self.settings, *shapes, "similarity", "analysis")
        self.mappings = body["mappings"]
        only(self.mappings, "dynamic", "_meta", "properties")
        self.searched = {f: p for f, p in self.mappings["properties"].items() if p.get("analyzer")}
        for field, properties in self.searched.items():
            self.analyze(field, "")
            assert properties["similarity"] in self.settings["similarity"]
        self.docs, self.visible, self.postings, self.lengths = {}, {}, {}, {}

    def analyze(self, field, text):
        name = self.searched[field]["analyzer"]
        custom = self.settings.get("analysis", {})
        if name in custom.get("analyzer", {}):
            analyzer = custom["analyzer"][name]
            tokenizer = custom["tokenizer"][analyzer["tokenizer"]]
            assert tokenizer == {"type": "pattern", "pattern": r"[\p{L}\p{N}_]+", "group": 0}
            lower, cut = analyzer["filter"]
            assert lower == "lowercase" and custom["filter"][cut]["type"] == "truncate"
            return [w[: custom["filter"][cut]["length"]] for w in re.findall(r"\w+", text.lower())]
        if name not in ("standard", "english"):
            inner = {"type": "x", "reason": f"analyzer [{name}] has not been configured in mappings"}
            raise RefusedError(400, "mapper_parsing_exception", "Failed to parse mapping", caused_by=inner)
        words = re.findall(r"\w+", text.lower())
        # No stemmer: enough to tell an analyzer with stop words from one without.
        return [w for w in words if w not in STOP_WORDS] if name == "english" else words

    def create(self, name, source):
        """Status of the new document, with its error or None."""
        if name in self.docs:
            reason = f"[{name}]: document already exists"
            return 409, {"type": "version_conflict_engine_exception", "reason": reason}
        only(source, *self.mappings["properties"])
        for field in self.searched:
            long = [w for w in self.analyze(field, source[field]) if len(w.encode()) > 32766]
            assert not long, "Document contains at least one immense term"
        self.docs[name] = source
        if self.settings.get("refresh_interval") != "-1":
            self.refresh()
        return 201, None

    def refresh(self):

        self.visible = dict(self.docs)
        self.postings = {f: defaultdict(dict) for f in self.searched}
        self.lengths = {f: {} for f in self.searched}
        for name, source in self.visible.items():
            for field in self.searched:
                tokens = self.analyze(field, source[field])
                self.lengths[field][name] = len(tokens)
                for token, count in Counter(tokens).items():
                    self.postings[field][token][name] = count
        return {"_shards": SHARDS}

    def holding(self, query):
        """Documents with all words of each text."""
        only(query, "bool")
        only(query["bool"], "filter")
        found = set(self.visible)
        for part in query["bool"]["filter"]:
            only(part, "multi_match")
            body = part["multi_match"]
            only(body, "query", "type", "fields", "operator")
            assert (body["type"], body["operator"]) == ("cross_fields", "and")
            tokens = {t for field in body["fields"] for t in self.analyze(field, body["query"])}
            if not tokens:  # as servers do by default
                return set()
            for token in tokens:
                found &= set().union(*(self.postings[field].get(token, {}) for field in body["fields"]))
        return found

    def scores(self, query, most_clauses):
        """Document -> score for those that match."""
        only(query, "multi_match")
        body = query["multi_match"]
        only(body, "query", "type", "fields", "tie_breaker")
        assert body["type"] == "best_fields"
        parts = [self.bm25(f, body["query"], most_clauses) for f in body["fields"]]
        found = {}
        for name in set().union(*parts):
            values = [part.get(name, 0.0) for part in parts]
            found[name] = max(values) + body["tie_breaker"] * (sum(values) - max(values))
        return found

    def bm25(self, field, text, most_clauses):
        tokens = self.analyze(field, text)
        if len(tokens) > most_clauses:
            inner = {"type": "too_many_clauses", "reason": f"maxClauseCount is set to {most_clauses}"}
            raise RefusedError(400, "query_shard_exception", "failed to create query", caused_by=inner)
        options = self.settings["similarity"][self.searched[field]["similarity"]]
        k1, b, lengths = options["k1"], options["b"], self.lengths.get(field, {})
        mean = sum(lengths.values()) / max(1, len(lengths))
        total = defaultdict(float)
        for token in tokens if lengths else ():
            holding = self.postings[field].get(token, {})
            idf = math.log(1 + (len(lengths) - len(holding) + 0.5) / (len(holding) + 0.5))
            for name, tf in holding.items():
                length = lengths[name]
                total[name] += (k1 + 1) * idf * tf / (tf + k1 * (1 - b + b * length / mean))
        return total


class FakeElasticsearch(Server):
    """The server; a context manager. Attributes say how it behaves, and may be changed at any time.

    Attributes:
        greeting: what GET / answers.
        faults: endpoint -> faults of its next requests: (status, headers, body), "reset" (nothing is
            done), "lost" (done, the answer never comes), "cut" (done, half of the answer comes), or "hang".
        put_off: document -> how often a bulk request answers 429 for it.
        refuse: document -> why a bulk request refuses it.
        lose: documents that are acknowledged and dropped.
        room: documents after which every write is blocked; None for no end.
        authorization: the header that every request needs.
    """

    def __init__(self, *, tls=None):
        self.version("8.13.4")
        self.indices, self.faults, self.requests = {}, defaultdict(list), []
        self.put_off, self.refuse, self.lose = {}, {}, set()
        self.room = None
        self.most_clauses, self.largest_body = 1024, 100_000_000
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
        asked = parse_qs(urlsplit(path).query)
        parts = [unquote(p) for p in urlsplit(path.removeprefix(self.path)).path.split("/") if p]
        if method == "GET" and not parts:
            return "root", lambda: self.greeting
        name, *rest = parts
        bulk = "bulk", lambda: self.bulk(name, body)
        return {
            ("HEAD", ""): ("exists", lambda: self.index(name) and {}),
            ("PUT", ""): ("create", lambda: self.create(name, json.loads(body))),
            ("DELETE", ""): ("delete", lambda: self.delete(name, asked)),
            ("GET", "_mapping"): ("mapping", lambda: {name: {"mappings": self.index(name).mappings}}),
            ("POST", "_search"): ("search", lambda: self.search(name, json.loads(body), asked)),
            ("POST", "_msearch"): ("msearch", lambda: self.searches(name, body)),
            ("PUT", "_bulk"): bulk, ("POST", "_bulk"): bulk,
            ("POST", "_refresh"): ("refresh", lambda: self.index(name).refresh()),
            ("POST", "_count"): ("count", lambda: {"count": len(self.index(name).visible)}),
        }[method, "".join(rest)]  # fmt: skip

    @property
    def elastic(self):
        """Whether the client of Elasticsearch 8 is to be used, which says so in its content types."""
        number = self.greeting["version"]["number"]
        return "for Search" in self.greeting["tagline"] and number.startswith(("8.", "9."))

    def index(self, name):
        if name not in self.indices:
            raise RefusedError(404, "index_not_found_exception", f"no such index [{name}]")
        return self.indices[name]

    def create(self, name, body):
        if name in self.indices:
            raise RefusedError(400, "resource_already_exists_exception", f"index [{name}] already exists")
        if name.startswith(("_", "-", "+")) or name != name.lower() or re.search(r'[\\/*?"<>| ,#:]', name):
            raise RefusedError(400, "invalid_index_name_exception", f"Invalid index name [{name}]")
        self.indices[name] = FakeIndex(name, body)
        return {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def delete(self, name, asked):
        if name in self.indices or asked.get("ignore_unavailable") != ["true"]:
            del self.indices[self.index(name).name]
        return {"acknowledged": True}

    def bulk(self, name, body):
        index = self.index(name)
        assert body.endswith(b"\n")
        lines = [json.loads(line) for line in body.decode().split("\n")[:-1]]
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            ((operation, target),) = action.items()
            assert operation == "create"
            status, error = self.one(index, target["_id"], source)
            item = {"_index": name, "_id": target["_id"], "status": status}
            items.append({"create": item | ({"error": error} if error else {})})
        return {"took": 1, "errors": any("error" in i["create"] for i in items), "items": items}

    def one(self, index, name, source):
        if self.room is not None and len(index.docs) >= self.room:
            return 429, {"type": "cluster_block_exception", "reason": FULL.format(index.name)}
        if self.put_off.get(name, 0):
            self.put_off[name] -= 1
            return 429, {"type": "es_rejected_execution_exception", "reason": "rejected execution"}
        if name in self.refuse:
            cause = {"type": "illegal_argument_exception", "reason": self.refuse[name]}
            return 400, {"type": "mapper_parsing_exception", "reason": "failed to parse", "caused_by": cause}
        if name in self.lose:
            return 201, None
        return index.create(name, source)

    def search(self, name, body, asked):
        assert asked["search_type"] == ["dfs_query_then_fetch"]
        index = self.index(name)
        only(body, "query", "size", "sort", "track_total_hits", "_source")
        if body["size"] > 10_000:
            raise RefusedError(400, "illegal_argument_exception", "Result window is too large")
        found = index.scores(body["query"], self.most_clauses)
        assert body["sort"] == [{"_score": "desc"}, {"n": "asc"}]
        ranked = sorted(found, key=lambda d: (-found[d], index.visible[d]["n"]))[: body["size"]]
        hits = [
            {"_index": name, "_id": d, "_score": None, "sort": [found[d], index.visible[d]["n"]]}
            for d in ranked
        ]
        return {"took": 1, "timed_out": False, "_shards": SHARDS, "hits": {"max_score": None, "hits": hits}}

    def searches(self, name, body):
        assert body.endswith(b"\n")
        index, lines = self.index(name), [json.loads(line) for line in body.decode().split("\n")[:-1]]
        answers = []
        for header, asked in zip(lines[::2], lines[1::2], strict=True):
            assert header == {}
            only(asked, "query", "size", "track_total_hits", "_source")
            found = sorted(index.holding(asked["query"]), key=int)
            hits = [{"_index": name, "_id": d, "_score": 0.0} for d in found[: asked["size"]]]
            total = {"value": len(found), "relation": "eq"}
            assert asked["track_total_hits"] is True
            answers.append({"took": 1, "timed_out": False, "_shards": SHARDS, "status": 200,
                            "hits": {"total": total, "max_score": None, "hits": hits}})  # fmt: skip
        return {"took": 1, "responses": answers}

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
                    return 413, {"Content-Type": "text/html"}, b"<html>too large</html>"
                try:  # some servers do say so much
                    if fake.authorization and sent != fake.authorization:
                        raise RefusedError(401, "security_exception", f"unable to authenticate with {sent}")
                    if endpoint in fake.forbidden:
                        raise RefusedError(403, "security_exception", f"action is unauthorized for {sent}")
                    return 200, {}, act()
                except RefusedError as error:
                    return error.status, {}, {"error": error.error, "status": error.status}

        return Speaking
