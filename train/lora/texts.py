"""Texts of a store of labelled tokens, read again from their file: tokens, and the spans to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probers.commands.components import Component
from probers.commands.runs import read_state
from probers.commands.settings import Model, TextFile, plain
from probers.data.texts import Text, TextSource
from probers.engine.language_model import ScoreRequest
from probers.engine.model import CausalLM
from probers.engine.tokens import Prompt, encode_answer, encode_prompts, token_offsets
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import UserError

from ..examples import Examples

#: Where a run of source=judged keeps its texts.
_JUDGED = "judged.jsonl"


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text of a store.

    Attributes:
        prompt: its prompt, encoded.
        ids: tokens of the answer that were stored.
        request: to read both in one pass.
        rows: (n,) number in the store of each token's row; -1 where a token has none.
        spans: by number among the examples, the tokens of each span.
        group: as of the store.
    """

    prompt: Prompt
    ids: tuple[int, ...]
    request: ScoreRequest
    rows: np.ndarray
    spans: Mapping[int, np.ndarray]
    group: str

    @property
    def length(self) -> int:
        return len(self.prompt.ids) + len(self.ids)


def load_model(store: FeatureStore, device: str) -> CausalLM:
    """Load the model of a store as it was loaded for the store, on a device (UserError: another one)."""
    known = plain(Model())
    told = {key: value for key, value in (store.config.get("model") or {}).items() if key in known}
    chosen = (read_state(store.path) or {}).get("chosen", {})
    options = {
        **known, "name": store.spec.model.id, **told, "dtype": store.spec.model.dtype, "device": device,
        "chat_date": chosen.get("model.chat_date", told.get("chat_date")),
    }  # fmt: skip
    lm = CausalLM.from_pretrained(**options)
    store.spec.check_model(lm.spec, what=f"data={store.path}")
    return lm


def source_of(store: FeatureStore, given: TextFile) -> TextSource:
    """Find the texts of a store: the file given, or that of its configuration (UserError: none)."""
    if store.spec.pool != "tokens" or store.spec.position != "token":
        told = f"head=lora learns from labelled tokens, and data={store.path} has none"
        fix = "make it with probers-datagen --source texts pool=tokens"
        raise UserError(f"{told}: {fix}", "mismatch")
    kept = dict(store.config.get("texts") or {})
    if store.config.get("source") == "judged":
        kept = {"path": str(store.path / _JUDGED)}
    if given.path is not None:
        kept = plain(given)
    path = kept.get("path")
    if path is None or not (path.startswith("hf:") or Path(path).is_file()):
        there = "does not say where they are" if path is None else f"says they are in {path}, which is gone"
        told = f"head=lora reads the texts again, and data={store.path} {there}"
        raise UserError(f"{told}: give texts=FILE", "missing-value")
    return TextSource(**kept, on_bad_line="skip")


def read_texts(
    store: FeatureStore, examples: Examples, source: TextSource, tokenizer: Any
) -> list[StoredText]:
    """Read the texts of a store's rows, in its order (UserError: one that the file lacks or has otherwise).

    Spans without a split are left out; a text without any is in the list, since its rows need states. A text
    that the model has written in other tokens than those it is read in is not.
    """
    table = store.table()
    tokens, names, starts = (table[name].to_numpy() for name in ("token", "span", "cut_at"))
    first = {name: row for row, name in reversed([*enumerate(names.tolist())])}
    found = {name: one for one in source.all() if (name := _name_of(one, first)) is not None}
    node = store.config.get("prompt")
    template = Component.read("prompt", node).make() if node else PromptTemplate()
    assert examples.members is not None
    spans: dict[str, dict[int, np.ndarray]] = {}
    for number in np.concatenate([*examples.rows.values()]).tolist():
        rows = examples.members[number]
        spans.setdefault(names[rows[0]], {})[number] = tokens[rows]
    made = []
    for name, row in first.items():
        own = np.flatnonzero(names == name)
        asked = f"of {source.file} {name}"
        if (one := found.get(name)) is None or _squeezed(table["text"][row]) not in _squeezed(one.answer):
            told = f"texts={source.path} lacks the text {name} of data={store.path}, or has another answer"
            raise UserError(f"{told}: give the file that the store was made from", "mismatch")
        prompt = one.prompt_for(tokenizer, source.file, template)
        ids = encode_answer(tokenizer, prompt, one.answer, asked)[: tokens[own].max() + 1]
        (encoded,) = encode_prompts(tokenizer, [prompt], [asked], start=True)
        _, offsets = token_offsets(tokenizer, ids, encoded.ids)
        if [offsets[token][0] for token in tokens[own] if token < len(ids)] != starts[own].tolist():
            continue
        rows = np.full(len(ids), -1)
        rows[tokens[own]] = own
        request = ScoreRequest(prompt, ids, asked)
        made.append(StoredText(encoded, ids, request, rows, spans.get(name, {}), str(table["group"][row])))
    return made


def _name_of(one: Text, known: Mapping[str, int]) -> str | None:
    """Look up the name of a text in the store; None where it has none."""
    return next((name for name in (f"{one.dataset}/{one.id}", one.id) if name in known), None)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def passes(texts: Sequence[StoredText], most: int) -> Iterator[list[StoredText]]:
    """Cut texts, longest first, into passes of at most so many tokens with padding; one text at least."""
    batch: list[StoredText] = []
    for text in sorted(texts, key=lambda text: -text.length):
        if batch and batch[0].length * (len(batch) + 1) > most:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
