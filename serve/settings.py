"""Settings of ``probers-serve``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from probers.cli.components import Component, choice
from probers.cli.settings import BatchSize, Model, OnBadLine, Screen, Settings
from probers.options import Count, Limits, Name, Natural, NotNegative, Seed


@dataclass(frozen=True, kw_only=True)
class Serve(Settings):
    """Serve a model through OpenAI's API, with the scores of a prober beside every answer, and a page to look
    at.

    POST /v1/completions, /v1/chat/completions and /v1/score; /v1/models, /health and /metrics; the page at /
    (docs/serving.md).
    """

    screen = Screen(
        "probers-serve corpus=testbed", "about 10 seconds until it listens",
        "model.name prober backend host port api_key corpus k thinking max_tokens rows queue model.device "
        "model.dtype allow_other",
    )  # fmt: skip

    model: Model = field(default_factory=Model)
    host: Name = "127.0.0.1"
    """address to listen at; 0.0.0.0 is open to other machines: give an api_key then"""
    port: Annotated[int, Limits(ge=0, le=65535)] = 8000
    """port; 0 takes a free one and prints it"""
    backend: Literal["transformers", "vllm"] = "transformers"
    """transformers is our own engine; vllm is plain vllm serve with our plugins (pip install
    "probers[vllm]")"""
    print_command: bool = False
    """true prints the command of backend=vllm and ends"""
    served_name: Name | None = None
    """name of the model in requests; null is model.name"""
    api_key: Name | None = None
    """key that requests must send; as Authorization: Bearer KEY. PROBERS_API_KEY in the environment sets
    it too"""
    prober: Name | None = None
    """prober folder or hub id; null is the newest of this model, or the one that comes with the package; none
    scores nothing"""
    scorer: Name | None = None
    """prober of POST /v1/score, which scores finished answers; null is the one for answers from passages that
    comes with the package, else prober"""
    abstention: Name = "I am not sure enough to answer this."
    """sentence that a request with on_high=abstain gets in place of an answer with too high a score"""
    thinking: Name = "auto"
    """marks around the thinking of the model; chats return it apart as reasoning_content. auto takes
    known ones that the tokenizer has, none looks for none, or both with a comma between them"""
    corpus: Name | None = None
    """passages for requests with retrieval; testbed, FILE.jsonl[.gz] or FILE.tsv[.gz]; null offers
    none"""
    passage_words: Count | None = None
    """cut the texts of the corpus into passages of so many words"""
    corpus_cache: Name | None = None
    """folder for converted large corpora; null is in the user's cache folder"""
    k: Count = 3
    """passages per retrieval; a request may say otherwise"""
    max_new_tokens: Count = 64
    """most tokens of an answer with retrieval, unless the request says otherwise"""
    max_retrievals: Natural = 3
    """most retrievals per question, unless the request says otherwise"""
    answer_tokens: Natural = 16
    """further tokens for the final answer if the text ended without one"""
    rows: Count = 16
    """texts written at the same time"""
    threads: Count | None = None
    """torch threads on the CPU; null is one fewer than torch would take, so that requests need not wait for a
    free core"""
    queue: Natural = 64
    """texts that may wait; further requests get 429"""
    max_tokens: Count = 1024
    """most tokens that a request may ask for"""
    cache_megabytes: NotNegative = 512
    """memory for keys and values of earlier texts, reused by texts that begin alike"""
    log_requests: bool = False
    """true prints every request as one line of JSON"""
    allow_other: bool = False
    """true takes a prober of other weights; with a warning, and only of the same shape, such as another
    quantization of its model"""
    on_bad_line: OnBadLine = "error"
    """what a malformed line of the corpus does: stop before the model is loaded, or be left out"""
    batch_size: BatchSize = "auto"
    """prompts per forward pass outside the running batch"""
    seed: Seed = 0
    """unused: answers follow the seed of the request"""
    prompt: Component = choice("auto")
    query: Component = choice("answer")
    retriever: Component = choice("bm25")

    @property
    def unread(self) -> Mapping[str, str]:
        unread = {"seed": "answers follow the seed of the request"}
        if self.corpus is None and not self.retriever.get("existing"):
            unread |= dict.fromkeys(_OF_RETRIEVAL, "there is no retrieval; give corpus=FILE")
        return unread


_OF_RETRIEVAL = (
    "passage_words", "corpus_cache", "k", "max_new_tokens", "max_retrievals", "answer_tokens", "on_bad_line",
    "prompt", "query", "retriever",
)  # fmt: skip
