"""A server on a thread of the tests' own process, and a prober for it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn

from probers import CausalLM, Prober
from probers.data import load_corpus
from probers.heads import LinearHead, ProbeHead, SequenceHead
from probers.prober.calibration import Platt
from probers.prompts import TESTBED_PROMPT
from probers.rag.queries import AnswerQuery
from probers.rag.retrievers.bm25 import BM25
from probers.serve.app import make_app
from probers.serve.endpoint import Served
from probers.serve.http import config
from probers.serve.retrieval import Retrieving
from probers.serve.scheduler import Scheduler
from probers.store.spec import FeatureSpec
from probers.types import Pool

QUESTION = "Who does Lena Zaser work for?"
PROMPT = f"Question: {QUESTION}\nAnswer:"


def bank_for(lm: CausalLM, pool: Pool = "tokens", *, sequence: bool = False) -> Prober:
    """Random heads on two layers; what they say means nothing, but must be the same everywhere."""
    layers = (6, 12)
    head: ProbeHead = LinearHead([f"3/{k}" for k in layers], lm.width)
    if sequence:
        head = SequenceHead(["3"], lm.width, 2, size=16, blocks=2, window=4)
    position = "entity" if pool == "predicting" else "generated"
    spec = FeatureSpec(lm.spec, layers, lm.width, "resid_post", pool, position=position, dtype="float32")
    return Prober(
        spec, head, threshold=0.05, calibration=Platt(1.5, 0.2), aggregate="max" if pool == "tokens" else None
    )


@dataclass
class Running:
    """A server that listens."""

    url: str
    served: Served

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.served.api_key or "-", max_retries=0)

    def idle(self, seconds: float = 10) -> bool:
        """Whether nothing is written or waits, within a while."""
        until = time.monotonic() + seconds
        while (busy := self.served.scheduler.pending != 0) and time.monotonic() < until:
            time.sleep(0.01)
        return not busy


@contextmanager
def running(
    lm: CausalLM, bank: Prober | None, *, rows: int = 4, waiting: int = 8, corpus: bool = False, **own: Any
) -> Iterator[Running]:
    """Serve until the block ends; with ``corpus``, also retrieval over the testbed's passages."""
    scheduler = Scheduler(lm, bank, rows=rows, most_waiting=waiting, cache_megabytes=16)
    prober = None
    if bank:
        settings = {"pool": bank.spec.pool, "layers": bank.layers, "threshold": bank.threshold}
        prober = {"name": "random", **settings}
    served = Served(scheduler, "testbed", prober=prober, **own)
    if corpus:
        loop = {"k": 2, "max_new_tokens": 48, "max_retrievals": 2, "answer_tokens": 16}
        served.retrieving = Retrieving(
            scheduler, BM25(load_corpus("testbed")), TESTBED_PROMPT, loop, AnswerQuery()
        )
    server = uvicorn.Server(config(make_app(served), port=0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", served)
    finally:
        server.should_exit = True
        thread.join(20)
