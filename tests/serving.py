"""A server on a thread of the tests' own process, and a prober for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn

from probers import CausalLM, ProbeBank
from probers.bank.calibration import Platt
from probers.data import load_corpus
from probers.heads.linear import Linear
from probers.prompts import TESTBED_PROMPT
from probers.rag.queries.answer import AnswerQuery
from probers.rag.retrievers.bm25 import BM25
from probers.serve.app import Served, make_app
from probers.serve.guard import Limits
from probers.serve.metrics import Metrics
from probers.serve.retrieval import Retrieving
from probers.serve.scheduler import Scheduler
from probers.store.spec import FeatureSpec


@dataclass
class Running:
    url: str
    served: Served

    @property
    def scheduler(self) -> Scheduler:
        return self.served.scheduler
