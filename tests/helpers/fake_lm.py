"""A scripted language model: writes what a function of the prompt says, one token per word."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from probers.datagen.labels.base import Source
from probers.datagen.settings import Options
from probers.heads import HEADS, WRONG
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT, PromptTemplate
from probers.store.spec import FeatureSpec, ModelSpec
from probers.testbed.assets import model_path
from probers.types import AttentionRows, Feature, Generation, Needs, Passage

NONE = Needs()
SPEC = ModelSpec("fake", "r1", 2, 4, "float32")


def linear_bank(
    layers: tuple[int, ...] = (1, 2), threshold: float = 0.0, *, weight: float = 1.0, **options: Any
) -> Prober:
    """Heads whose margin (wrong minus correct) is ``weight`` times the first component of a state (4,).

    ``options`` are those of the bank or of its features.
    """
    head = HEADS["linear"]([f"layer{k}" for k in layers], 4)
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.zero_()
        head.linear.weight[:, 0, WRONG] = weight
    spec = FeatureSpec(SPEC, layers, 4, prompt=TESTBED_PROMPT.fingerprint)
    options_of_spec = {name: options.pop(name) for name in list(options) if hasattr(spec, name)}
    spec = replace(spec, **options_of_spec)
    return Prober(spec, head, threshold, aggregate="max" if spec.pool == "tokens" else None, **options)


def tokens(text: str) -> list[str]:
    """Words with the space before them, as byte-level tokenizers cut."""
    return re.findall(r"\s*\S+|\s+$", text)


def offsets(parts: list[str]) -> tuple[tuple[int, int], ...]:
    ends = np.cumsum([0, *map(len, parts)]).tolist()
    return tuple(pairwise(ends))


@dataclass(eq=False)
class FakeLM:
    """Stands in for CausalLM.

    Attributes:
        write: the continuation of a prompt, before limits and stops.
        entropy: of each word.
        state: the pooled state, (4,), of a text, for every layer; of pool "prompt" that of the prompt.
        context: tokens that a prompt and what is written after it may have together.
        batch: texts that :meth:`generate_each` makes at once.
    """

    write: Callable[[str], str]
    entropy: Callable[[str], float] = lambda word: 0.1
    state: Callable[[str], list[float]] = lambda text: [0.0] * 4
    context: int = 1_000_000
    prompts: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)

    attends, spec, width, batch = True, SPEC, SPEC.width, 1_000_000
    tokenizer = SimpleNamespace(name_or_path=str(model_path()), chat_template=None)

    def generate(
        self, prompts, *, max_new_tokens, needs=NONE, stop=(), prefix="", names=None, **ignored: object
    ):
        assert all(prompt.startswith(prefix) for prompt in prompts)
        assert names is None or len(names) == len(prompts)
        self.prefixes.add(prefix)
        self.prompts += prompts
        self.batches.append(len(prompts))
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
        return [self._one(p, n, needs, stop) for p, n in zip(prompts, limits, strict=True)]

    def generate_each(self, requests, how, *, known=()):
        """In batches of ``batch`` texts in order, of which those that are known are left out."""
        options = {each.name: getattr(how, each.name) for each in fields(how) if each.name != "sampling"}
        for start in range(0, len(requests), self.batch):
            new = [i for i in range(start, min(start + self.batch, len(requests))) if i not in known]
            if new:
                made = self.generate(
                    [requests[i].prompt for i in new], names=[requests[i].name for i in new],
                    max_new_tokens=[requests[i].max_new_tokens for i in new], **options,
                )  # fmt: skip
                yield dict(zip(new, made, strict=True))

    def fits(self, prompts, more):
        return [len(tokens(p)) + n <= self.context for p, n in zip(prompts, more, strict=True)]

    def attention_alone(self, generations):
        return [self._attention(0, len(g.token_ids)) for g in generations]

    def attention_of(self, texts):
        parts = [tokens(text) for text in texts]
        return [(offsets(each), self._attention(0, len(each))) for each in parts]

    def _one(self, prompt, limit, needs, stop) -> Generation:
        text, reason = self.write(prompt), "eos"
        for string in (s for s in stop if isinstance(s, str)):
            if string in text:
                text, reason = text[: text.index(string)], "stop"
        parts = tokens(text)
        if len(parts) > limit:
            parts, reason = parts[:limit], "length"
        for watch in (s for s in stop if callable(s)):
            for i in range(len(parts)):
                if watch("".join(parts[: i + 1])):
                    parts, reason = parts[: i + 1], "stop"
                    break
        before = tokens(prompt)
        entropies = np.array([self.entropy(p.strip()) for p in parts], dtype=np.float32)
        text = "".join(parts)
        return Generation(
            prompt, tuple(range(len(before))), offsets(before),
            tuple(range(len(parts))), text, offsets(parts),
            logprobs=-entropies, entropies=entropies, stop=reason, needs=needs,
            states={
                each: self._states(prompt if each.pool == "prompt" else text, each, len(parts))
                for each in needs.features if parts or each.pool == "prompt"
            },
            attention=self._attention(len(before), len(parts)) if needs.attention else None,
            top=np.exp(-entropies) * np.float32([[1], [0.5]]) if needs.top else None,
        )  # fmt: skip

    def _states(self, text: str, feature: Feature, n: int) -> np.ndarray:
        pooled = np.tile(self.state(text), (len(feature.layers), 1))
        count = {"tokens": n, "predicting": n, "positions": n + 1}.get(feature.pool)
        return pooled if count is None else np.tile(pooled, (count, 1, 1))

    def _attention(self, p: int, n: int) -> AttentionRows:
        """Every position attends evenly to all up to itself."""
        rows = np.zeros((n + 1, p + n), dtype=np.float32)
        for i in range(n + 1):
            rows[i, : p + i] = 1 / max(1, p + i)
        return AttentionRows(rows, rows[1:, p:].max(axis=0) if n else np.zeros(0, dtype=np.float32))


class FakeRetriever:
    """Finds for every query what a function says; remembers what it was asked."""

    def __init__(self, find: Callable[[str], list[Passage]]) -> None:
        self.find = find
        self.queries: list[str] = []

    def search(self, queries, k):
        self.queries += queries
        return [self.find(q)[:k] for q in queries]


def passage(text: str, title: str = "") -> Passage:
    return Passage(f"p-{text}", title or f"title of {text}", text, 1.0)


def begun(source: Source, lm: Any, needs: Needs, *, prompt: Any = None, **options: Any) -> Source:
    """A source that has read its inputs, for a model to label; names are compared without WordNet."""
    matcher = Options().matcher.with_options(wordnet="", vectors="")
    source.plan(Options(matcher=matcher, **options))
    source.begin(lm, needs, Path())
    source.keep(prompt=prompt or PromptTemplate("plain"))
    return source
