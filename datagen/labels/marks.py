"""Rows of the judged parts of texts: spans, sentences, claims, whole answers, or every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probers.data.texts import Mark, Text, token_labels
from probers.options import shown
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Unit, UserError, count
from probers.words import tokens_of
from probers.words.thinking import Part, part_of

from ..settings import Datagen
from .base import Examples, recorded, recorded_needs, span_needs, span_rows, token_states

#: Reason for leaving out units that ``max_tokens`` cut off.
_BEYOND = "beyond max_tokens"


def unit_for(settings: Datagen, default: Unit) -> Unit:
    """Choose the unit of the examples, by default ``default`` (UserError: another pool, or balanced)."""
    tokens = "tokens" in ([settings.pool] if isinstance(settings.pool, str) else settings.pool)
    unit: Unit = settings.unit or ("token" if tokens else default)
    if (unit == "token") != tokens:
        told = "unit=token goes with pool=tokens, and only with it"
        raise UserError(f"unit={unit} and pool={shown(settings.pool)}: {told}", "conflict")
    if unit == "token" and (settings.balance or settings.balance_to):
        told = "balance is for units with one label: leave it out with unit=token, and set span_weight"
        raise UserError(told, "conflict")
    return unit


@dataclass
class MarkedRows:
    """Maker of rows from texts that the model has read or written.

    Attributes:
        unit: unit of an example; "token" stores every token of an answer.
        needs: features of the store.
        part: part that is read of texts with thinking.
        shared: number of tokens so far that belonged to marks of different label.
    """

    unit: Unit
    needs: Needs
    part: Part = "both"
    shared: int = field(default=0, init=False)

    def text_of(self, name: str) -> str:
        """Name the text that one of the ids of :meth:`marks` belongs to."""
        text, _, part = name.rpartition("/")
        return text if part.startswith(self.unit) else name

    @property
    def recording(self) -> Needs:
        """Needs of a text whose rows are to be made."""
        if self._whole:
            return recorded_needs(self.needs, attention=False)
        return span_needs(self.needs, attention=False)

    def marks(self, one: Text, name: str) -> list[tuple[str, Mark]]:
        """List id and mark of each labelled unit of a text; the whole text stands for its tokens."""
        part = part_of(one.answer, self.part)
        if self.unit in ("answer", "token"):
            return [(name, Mark((part or (0, 0),), one.wrong))]
        marks = enumerate(one.units(self.unit), 1)
        known = [(f"{name}/{self.unit}{n}", mark) for n, mark in marks if mark.wrong is not None]
        return [(id, m) for id, m in known if part and part[0] <= m.start and m.end <= part[1]]

    @property
    def _whole(self) -> bool:
        """Tell whether a whole text is one example, whose states are pooled while it is read."""
        return self.unit == "answer" and self.part == "both"

    def add(
        self, one: Text, name: str, generation: Generation, about: Mapping[str, Any], examples: Examples,
        *, whole: bool = True,
    ) -> None:  # fmt: skip
        """Add the rows of a text with the columns ``about``; without ``whole`` its end may be unread."""
        columns = {
            "group": one.group, "split": one.split, "dataset": one.dataset, "question": one.asked, "gold": "",
            "question_type": "", "knowledge": "", **about,
        }  # fmt: skip
        if self.unit == "token":
            self._add_tokens(one, name, generation, columns, examples)
            return
        least = len(one.answer.rstrip()) if whole else 0
        for number, (id, mark) in enumerate(self.marks(one, name)):
            row = {
                "id": id, "span": id, "token": -1, "correct": int(not mark.wrong), **columns,
                "answer": " ".join(one.answer[start:end] for start, end in mark.ranges),
                "question_type": mark.type, "answer_kind": mark.type, "cut_at": mark.start,
                "sentence": number, "entity_start": mark.start, "entity_end": mark.end,
            }  # fmt: skip
            if mark.evidence:
                row |= {"match_stage": mark.rule, "match_evidence": mark.evidence}
            if mark.end <= mark.start:
                examples.leave_out(id, f"no {self.part}")
            elif self._whole:
                examples.add(row | recorded(generation), list(generation.states.values()))
            elif mark.end > max(len(generation.text), least):
                examples.leave_out(id, _BEYOND)
            else:
                tokens = [t for start, end in mark.ranges for t in tokens_of(generation.offsets, start, end)]
                for _, columns_, states in span_rows(generation, sorted(set(tokens)), self.needs):
                    examples.add(row | columns_, states)

    def _add_tokens(
        self, one: Text, name: str, generation: Generation, about: Mapping[str, Any], examples: Examples
    ) -> None:
        labels = token_labels(one, generation.offsets)
        self.shared += labels.shared
        states = token_states(generation, self.needs)
        wrong = int((labels.wrong == 1).any())
        members = {mark: np.flatnonzero(labels.mark == mark) for mark in set(labels.mark.tolist())}
        part = part_of(one.answer, self.part) or (0, 0)
        inside = set(tokens_of(generation.offsets, *part))
        if not inside:
            examples.leave_out(name, f"no {self.part}")
        for token, (start, _) in enumerate(generation.offsets):
            if token not in inside:
                continue
            same = members[int(labels.mark[token])]
            first, last = generation.offsets[same[0]][0], generation.offsets[same[-1]][1]
            row = {
                "id": f"{name}#{token}", "span": name, "token": token, "correct": 1 - wrong,
                **about, "answer": one.answer[first:last], "answer_kind": "",
                "cut_at": start, "sentence": int(labels.sentence[token]),
                "token_wrong": int(labels.wrong[token]), "mark": int(labels.mark[token]),
                "inside": int(labels.inside[token]),
            }  # fmt: skip
            signals = recorded(generation, [token], first=int(same[0])) | {"n_tokens": len(same)}
            examples.add(row | signals, [each[token] for each in states])

    def summarise(self, store: FeatureStore, texts: int) -> tuple[dict[str, Any], str]:
        """Compute figures of the labels of a store of so many texts; format them, with what is left out."""
        labels: Counter[int] = Counter()
        tokens: Counter[int] = Counter()
        of_tokens = ["token_wrong"] if self.unit == "token" else []
        for table in store.tables(["correct", "token", *of_tokens]):
            labels.update(table["correct"][table["token"] <= 0].tolist())
            tokens.update(table[of_tokens].to_numpy().ravel().tolist())
        reasons = Counter(found["reason"].partition(":")[0] for found in store.left_out())
        n = sum(labels.values())
        figures: dict[str, Any] = {
            "unit": self.unit, "texts": texts, "units": n, "wrong": round(labels[0] / n, 6),
            "left_out": dict(sorted(reasons.items())),
        }  # fmt: skip
        what = "answer" if self.unit == "token" else self.unit
        line = f"{count(texts, 'text')}, {count(n, f'labelled {what}')}, {labels[0] / n:.3f} wrong"
        if self.unit == "token":
            judged = tokens[0] + tokens[1]
            figures["tokens"] = {"wrong": tokens[1], "right": tokens[0], "undecided": tokens[-1]}
            line += f"; {judged:,} tokens, {tokens[1] / judged:.3f} of them wrong"
            if self.shared:
                line += f" ({self.shared:,} in spans of both kinds, counted where most of it lies)"
        if shown := ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common()):
            line += f"; left out: {shown}"
        return figures, line
