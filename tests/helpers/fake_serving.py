"""A server that speaks docs/serving.md with prepared answers, for tests of the page."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.http_fakes import Handler, Server
from probers.serve.http import ApiError
from probers.serve.retrieval import Replay, replay

PAGE = Path(__file__).parents[2] / "serve" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
MODEL: dict[str, Any] = {
    "id": "smollm2", "object": "model", "chat": True, "corpus": "passages.jsonl",
    "triggers": ["probing", "entropy", "fixed_sentence"],
    "queries": ["answer", "last_sentence", "question"],
    "prober": {"name": "smollm2", "pool": "tokens", "layers": [15, 22, 30], "threshold": 0.5},
}  # fmt: skip

#: A token and what is known of it: text, score, P(wrong), log-probability, entropy.
Token = tuple[str, float | None, float | None, float, float]


@dataclass
class Prepared:
    """What the server says to one question.

    Attributes:
        tokens: of the answer.
        spans: (mention, score, P(wrong)) in the answer.
        events: of retrieval, sent before the answer's tokens.
        status, error: what it answers instead, or sends after half of the tokens where the status is 200.
        pause: seconds between chunks.
    """

    tokens: list[Token] = field(default_factory=list)
    spans: list[tuple[str, float, float]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    unlike: bool = False
    status: int = 200
    error: str = ""
    pause: float = 0.0

    @property
    def text(self) -> str:
        return "".join(token[0] for token in self.tokens)

    def lists(self, start: int = 0, end: int | None = None) -> dict[str, Any]:
        ends = [sum(len(t[0]) for t in self.tokens[: i + 1]) for i in range(len(self.tokens))]
        places = [[end - len(token[0]), end] for token, end in zip(self.tokens, ends, strict=True)]
        chosen = self.tokens[start:end]
        return {
            "token_scores": [t[1] for t in chosen], "token_p_wrong": [t[2] for t in chosen],
            "token_offsets": places[start:end], "token_logprobs": [t[3] for t in chosen],
            "token_entropies": [t[4] for t in chosen],
        }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        found = [(self.text.index(mention), mention, score, p) for mention, score, p in self.spans]
        worst = max(self.spans, key=lambda span: span[1], default=("", None, None))
        return self.lists() | {
            "score": worst[1], "p_wrong": worst[2], "threshold": 0.5,
            "fires": worst[1] is not None and worst[1] > 0.5,
            "spans": [
                {"start": start, "end": start + len(mention), "score": score, "p_wrong": p}
                for start, mention, score, p in found
            ],
            "domain": {"distance": 9.5, "limit": 7.25, "unlike": self.unlike},
        }  # fmt: skip

    def chunks(self, chat: bool) -> Iterator[dict[str, Any]]:
        def chunk(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
            said = {"delta": {"content": content} if content else {}} if chat else {"text": content}
            return {"choices": [{"index": 0, "finish_reason": finish, **said, **more}]}

        for event in self.events:
            yield chunk("", retrieval=event)
        for i, token in enumerate(self.tokens):
            if self.error and i >= len(self.tokens) // 2:
                yield {"error": {"message": self.error, "type": "server_error"}}
                return
            yield chunk(token[0], hallucination=self.lists(i, i + 1))
        last = {"retrieval": {"answer": self.text, "retrievals": 1}} if self.events else {}
        yield chunk("", "stop", hallucination=self.whole() | self.lists(len(self.tokens)), **last)


class FakeServer(Server):
    """Serves the page and prepared answers by question; notes what it was asked.

    Attributes:
        key: what it wants as an API key, if anything.
    """

    def __init__(self, prepared: dict[str, Prepared]) -> None:
        self.prepared, self.asked, self.key = prepared, list[dict[str, Any]](), ""
        self.model = dict(MODEL)
        fake = self

        class Serving(Handler):
            def refused(self) -> bool:
                refused = fake.key != "" and self.headers.get("Authorization") != f"Bearer {fake.key}"
                if refused:
                    self.send(401, {"error": {"message": "give an API key: Authorization: Bearer KEY"}})
                return refused

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    if not self.refused():
                        self.send(200, {"object": "list", "data": [fake.model]})
                    return
                file = PAGE / ("index.html" if self.path == "/" else self.path.removeprefix("/page/"))
                headers = {"Content-Type": TYPES[file.suffix], "Content-Security-Policy": POLICY}
                self.send(200, file.read_bytes(), headers)

            def do_POST(self) -> None:
                body = json.loads(self.body())
                if self.refused():
                    return
                if self.path == "/v1/replay":
                    try:
                        self.send(200, replay(Replay.model_validate(body)))
                    except ApiError as error:
                        self.send(error.status, error.body())
                    return
                fake.asked.append(body | {"path": self.path})
                if self.path == "/v1/score":
                    scored = fake.prepared[body["answer"]]
                    self.send(200, {"text": body["answer"], "hallucination": scored.whole()})
                    return
                chat = self.path == "/v1/chat/completions"
                found = fake.prepared[body["messages"][-1]["content"] if chat else body["prompt"]]
                if found.status != 200:
                    self.send(found.status, {"error": {"message": found.error}})
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # the page stopped listening
                    for chunk in found.chunks(chat):
                        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                        self.wfile.flush()
                        time.sleep(found.pause)
                    self.wfile.write(b"data: [DONE]\n\n")

        super().__init__(Serving)
        self.url += "/"
