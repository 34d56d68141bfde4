"""Labels of others: texts that exist are read by the model, and their judged parts become examples.

The unit says what an example is: a marked span, a sentence, a claim or the whole answer, pooled over its
tokens; with pool "tokens" every token of the answer is stored with its own label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probers.commands.settings import plain
from probers.data.texts import Mark, Text, TextSource, Unit, token_labels
from probers.engine.language_model import ScoreRequest, Scoring
from probers.engine.model import CausalLM
from probers.engine.tokens import encode_answer
from probers.entities import tokens_of
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.text import count
from probers.types import Generation, Needs, UserError

from .base import (
    TOO_LONG,
    Examples,
    LabelBuilder,
    Prepared,
    recorded,
    recorded_needs,
    span_needs,
    span_rows,
    token_states,
)

if TYPE_CHECKING:
    from ..settings import Datagen

_BEYOND = "beyond max_tokens"
#: Texts whose characters per token tell how large a store of tokens becomes.
_MEASURED = 100


def _name(one: Text) -> str:
    """Name a text among those of several files, whose ids may be the same."""
    return f"{one.dataset}/{one.id}"


@dataclass
class TextsBuilder(LabelBuilder):
    """Reads labelled texts in one pass each; features are pooled over the tokens of a unit.

    Attributes:
        unit: what an example is; "token" stores every token of an answer.
        max_tokens: most tokens of an answer that are read; None reads all.
    """

    lm: CausalLM | None
    source: TextSource
    prompt: PromptTemplate
    needs: Needs
    unit: Unit = "answer"
    max_tokens: int | None = None
    _read: int = field(default=0, init=False)
    _shared: int = field(default=0, init=False)

    item_name = unit_name = "text"
    wrong_name = "wrong"
    pools = ("mean", "last", "mind", "tokens")
    balance_by = ("split",)
    parts = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.position = "generated" if self.unit == "answer" else self.unit

    @classmethod
    def prepare(cls, settings: Datagen) -> Prepared:
        tokens = "tokens" in ([settings.pool] if isinstance(settings.pool, str) else settings.pool)
        unit: Unit = settings.unit or ("token" if tokens else "answer")
        if (unit == "token") != tokens:
            told = f"unit={unit} and pool={settings.pool}: unit=token goes with pool=tokens, and only with it"
            raise UserError(told, "conflict")
        if unit == "token" and (settings.balance or settings.balance_to):
            told = "balance is for units with one label: leave it out with unit=token, and set span_weight"
            raise UserError(told, "conflict")
        if isinstance(settings.limit, Mapping):
            told = "give one number: whole groups are drawn before they are split"
            raise UserError(f"limit by split is for source=cot: {told}", "conflict")
        source = TextSource(
            **plain(settings.texts), on_bad_line=settings.on_bad_line,
            limit=settings.limit, seed=settings.seed,
        )  # fmt: skip
        source.survey(unit)

        def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
            if lm is not None:
                lm.skip_too_long()
            return cls(lm, source, settings.prompt.make(), needs, unit, settings.max_tokens)

        return Prepared(make, (str(settings.texts.path),))

    @property
    def items(self) -> int:
        return self._read

    @property
    def total(self) -> int:
        return self.source.survey(self.unit).texts

    def rows(self) -> int:
        survey = self.source.survey(self.unit)
        if self.unit != "token":
            return survey.units
        assert self.lm is not None
        first = [one.answer for one in islice(self.source.all(), _MEASURED)]
        tokens = sum(map(len, self.lm.tokenizer(first, verbose=False)["input_ids"]))
        return round(survey.characters * tokens / sum(map(len, first)))

    def units(self) -> Iterator[Text]:
        for one in self.source.labelled(self.unit):
            self._read += 1
            yield one

    def names(self, units: Sequence[Text]) -> list[str]:
        return [name for one in units for name, _ in self._marks(one)]

    def _marks(self, one: Text) -> list[tuple[str, Mark]]:
        """Id and mark of each labelled unit of a text; the whole text stands for its tokens."""
        if self.unit in ("answer", "token"):
            return [(_name(one), Mark(((0, len(one.answer)),), one.wrong))]
        marks = enumerate(one.units(self.unit), 1)
        return [(f"{_name(one)}/{self.unit}{n}", mark) for n, mark in marks if mark.wrong is not None]

    def build(self, units: Sequence[Text], known: Mapping[str, int | None]) -> Iterator[Examples]:
        lm = self.lm
        assert lm is not None
        if self.unit == "answer":
            needs = recorded_needs(self.needs, attention=False)
        else:
            needs = span_needs(self.needs, attention=False)
        requests, readable, problems = [], [], Examples()
        for one in units:
            try:
                requests.append(self._request(lm, one))
                readable.append(one)
            except UserError as error:
                self._leave_out(one, f"unreadable: {error}", known, problems)
        if problems.left_out:
            yield problems
        done = {i for i, one in enumerate(readable) if all(name in known for name in self.names([one]))}
        for made in lm.score_each(requests, Scoring(needs), known=done):
            examples = Examples(tokens=sum(len(g.token_ids) for g in made.values()))
            for place, generation in made.items():
                if generation.stop == "skipped":
                    self._leave_out(readable[place], TOO_LONG, known, examples)
                else:
                    self._add(readable[place], generation, examples)
            yield examples

    def _request(self, lm: CausalLM, one: Text) -> ScoreRequest:
        name = f"of {self.source.file} {one.where}"
        prompt = one.prompt_for(lm.tokenizer, self.source.file, self.prompt)
        tokens = encode_answer(lm.tokenizer, prompt, one.answer, name)
        return ScoreRequest(prompt, tokens[: self.max_tokens], name)

    def _leave_out(self, one: Text, why: str, known: Mapping[str, int | None], examples: Examples) -> None:
        for name in self.names([one]):
            if name not in known:
                examples.leave_out(name, why)

    def _add(self, one: Text, generation: Generation, examples: Examples) -> None:
        about = {
            "group": one.group, "split": one.split, "dataset": one.dataset, "condition": "read",
            "question": one.asked, "gold": "", "question_type": "", "knowledge": "", "writer": one.writer,
        }  # fmt: skip
        if self.unit == "token":
            self._add_tokens(one, generation, about, examples)
            return
        for number, (name, mark) in enumerate(self._marks(one)):
            read = len(generation.text)
            row = {
                "id": name, "span": name, "token": -1, "correct": int(not mark.wrong), **about,
                "answer": " ".join(one.answer[start:end] for start, end in mark.ranges),
                "answer_kind": mark.type, "cut_at": mark.start, "sentence": number,
            }  # fmt: skip
            if self.unit == "answer":
                examples.add(row | recorded(generation), list(generation.states.values()))
            elif mark.end > max(read, len(one.answer.rstrip()) if self.max_tokens is None else 0):
                examples.leave_out(name, _BEYOND)
            else:
                tokens = [t for start, end in mark.ranges for t in tokens_of(generation.offsets, start, end)]
                for _, columns, states in span_rows(generation, sorted(set(tokens)), self.needs):
                    examples.add(row | columns, states)

    def _add_tokens(
        self, one: Text, generation: Generation, about: Mapping[str, Any], examples: Examples
    ) -> None:
        labels = token_labels(one, generation.offsets)
        self._shared += labels.shared
        states = token_states(generation, self.needs)
        wrong = int((labels.wrong == 1).any())
        members = {mark: np.flatnonzero(labels.mark == mark) for mark in set(labels.mark.tolist())}
        for token, (start, _) in enumerate(generation.offsets):
            same = members[int(labels.mark[token])]
            first, last = generation.offsets[same[0]][0], generation.offsets[same[-1]][1]
            row = {
                "id": f"{_name(one)}#{token}", "span": _name(one), "token": token, "correct": 1 - wrong,
                **about, "answer": one.answer[first:last], "answer_kind": "",
                "cut_at": start, "sentence": int(labels.sentence[token]),
                "token_wrong": int(labels.wrong[token]), "mark": int(labels.mark[token]),
                "inside": int(labels.inside[token]),
            }  # fmt: skip
            signals = recorded(generation, [token], first=int(same[0])) | {"n_tokens": len(same)}
            examples.add(row | signals, [each[token] for each in states])

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Labels by split and writer, how splits were made, and what could not be read."""
        labels: Counter[int] = Counter()
        tokens: Counter[int] = Counter()
        of_tokens = ["token_wrong"] if self.unit == "token" else []
        for table in store.tables(["correct", "token", *of_tokens]):
            labels.update(table["correct"][table["token"] <= 0].tolist())
            tokens.update(table[of_tokens].to_numpy().ravel().tolist())
        reasons = Counter(found["reason"].partition(":")[0] for found in store.left_out())
        survey, n = self.source.survey(self.unit), sum(labels.values())
        figures: dict[str, Any] = {
            "unit": self.unit, "texts": survey.texts, "units": n, "wrong": round(labels[0] / n, 6),
            "left_out": dict(sorted(reasons.items())), "lines_left_out": dict(self.source.left_out.counts),
        }  # fmt: skip
        what = "answer" if self.unit == "token" else self.unit
        line = f"{count(survey.texts, 'text')}, {count(n, f'labelled {what}')}, {labels[0] / n:.3f} wrong"
        if self.unit == "token":
            judged = tokens[0] + tokens[1]
            figures["tokens"] = {"wrong": tokens[1], "right": tokens[0], "undecided": tokens[-1]}
            line += f"; {judged:,} tokens, {tokens[1] / judged:.3f} of them wrong"
            if self._shared:
                line += f" ({self._shared:,} in spans of both kinds, counted where most of it lies)"
        if shown := ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common()):
            line += f"; left out: {shown}"
        return figures, [line, *survey.notes, *self.source.left_out.lines()]
