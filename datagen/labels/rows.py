"""Rows of a store, with their states: of whole texts, of spans and judged parts, or of every token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from probers.data.texts import Mark, Text, token_labels
from probers.data.texts.shown import overlap
from probers.model.language_model import LanguageModel
from probers.model.pooling import pool_tokens, span_of, token_pool
from probers.signals import rind_scores, signals, signals_before, surprise
from probers.store.store import FeatureStore
from probers.types import Feature, Generation, Needs, Pool, Unit, count
from probers.words import tokens_of
from probers.words.thinking import Part, part_of

#: Reason for leaving out units that ``max_tokens`` cut off.
_BEYOND = "beyond max_tokens"


@dataclass(slots=True)
class Examples:
    """Rows for the store with their states, a (layers, width) array of each feature, and work without rows.

    ``tokens`` counts the tokens that the model wrote for them.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    states: list[Sequence[np.ndarray]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0

    def add(self, row: dict[str, Any], states: Sequence[np.ndarray]) -> None:
        self.rows.append(row)
        self.states.append(states)

    def leave_out(self, id: str, reason: str, **evidence: str) -> None:
        """Note work that gave no row; reasons are counted by their words before a colon."""
        self.left_out.append({"id": id, "reason": reason, **evidence})

    def extend(self, more: Examples) -> None:
        self.rows += more.rows
        self.states += more.states
        self.left_out += more.left_out
        self.tokens += more.tokens

    def labels(self) -> dict[str, int]:
        """Map the id of each span to its label."""
        return {span_name(row): row["correct"] for row in self.rows}


def span_name(row: Mapping[str, Any]) -> str:
    """Name the span of a row, which rows of pool "tokens" share; by default it is the row itself."""
    return str(row.get("span", row["id"]))


def span_needs(needs: Needs, *, attention: bool = True) -> Needs:
    """Choose needs of a generation from which the features of ``needs`` can be computed for any span."""
    features = tuple(dict.fromkeys(_recorded_features(needs).values()))
    return recorded_needs(replace(needs, features=features), attention=attention)


def _recorded_features(needs: Needs) -> dict[Feature, Feature]:
    """Map each feature to the recorded one; features read at the same places are recorded once for all."""

    def places(feature: Feature) -> tuple[Any, ...]:
        return feature.layers, feature.site, feature.of_mind

    alike: dict[tuple[Any, ...], list[Pool]] = {}
    for feature in needs.features:
        alike.setdefault(places(feature), []).append(feature.pool)
    return {f: replace(f, pool=token_pool(*alike[places(f)])) for f in needs.features}


def span_rows(
    generation: Generation, tokens: Sequence[int], needs: Needs
) -> Iterator[tuple[int, dict[str, Any], list[np.ndarray]]]:
    """Yield one row for ascending ``tokens``, or with pool "tokens" (of all features or none) one for each.

    A row is the token's index in the span (-1 when pooled), its columns with ``n_tokens`` and the signals of
    the whole span and of the moment before it, and for each feature states (layers, d), or (1, 2 d) for
    "mind". The generation was recorded with :func:`span_needs`.
    """
    spans = [
        (feature.pool, span_of(generation.states[source], tokens, source.pool, feature.pool))
        for feature, source in _recorded_features(needs).items()
    ]
    if needs.features[0].pool != "tokens":
        yield -1, recorded(generation, tokens), [pool_tokens(span, pool) for pool, span in spans]
        return
    for index, token in enumerate(tokens):
        columns = recorded(generation, [token], first=tokens[0]) | {"n_tokens": len(tokens)}
        yield index, columns, [span[index] for _, span in spans]


def token_states(generation: Generation, needs: Needs) -> list[np.ndarray]:
    """Return states (n, layers, d) of every token, for each feature of pool "tokens"."""
    return [
        span_of(generation.states[source], range(len(generation.token_ids)), source.pool, feature.pool)
        for feature, source in _recorded_features(needs).items()
    ]


def recorded_needs(needs: Needs, *, attention: bool = True) -> Needs:
    """Choose the needs of :func:`recorded`; without ``attention`` its signals are missing."""
    return replace(needs, attention=attention, top=True)


def recorded(
    generation: Generation, tokens: Sequence[int] | None = None, *, first: int | None = None
) -> dict[str, Any]:
    """Make the columns that describe a generation itself: its text, length and token signals.

    The signals are those of the ascending ``tokens``, by default of all, and of the moment before ``first``,
    by default the first of them. ``surprise`` is of the whole text. The generation was recorded with
    :func:`recorded_needs`.
    """
    part = list(range(len(generation.token_ids)) if tokens is None else tokens)
    if first is None:
        first = part[0] if part else 0
    ids, offsets = tuple(generation.token_ids[i] for i in part), tuple(generation.offsets[i] for i in part)
    logprobs, entropies = generation.logprobs[part], generation.entropies[part]
    span = replace(generation, token_ids=ids, offsets=offsets, logprobs=logprobs, entropies=entropies)
    rind, gain = None, {}
    if generation.needs.attention:
        scores = rind_scores(generation, variant="paper").scores
        rind = float(max(scores[i] for i in part))
    if generation.needs.of_passages:  # how much the passages raised the log-probability, 0 without any
        gains = None if generation.passages is None else generation.passages.gains
        gain = {"context_gain": 0.0 if gains is None or not part else float(gains[part].mean())}
    return {
        "text": generation.text, "n_tokens": len(span.token_ids), **signals(span), "rind_max": rind,
        **signals_before(generation, first),
        "surprise": surprise(generation.logprobs, generation.entropies), **gain,
    }  # fmt: skip


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
        return text if part.startswith(self.unit) and self.unit not in ("answer", "token") else name

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
            "group": one.group, "split": one.split, "dataset": one.dataset, "question": one.question,
            "gold": "", "question_type": "", "knowledge": "", **about,
        }  # fmt: skip
        if self.unit == "token":
            self._add_tokens(one, name, generation, columns, examples)
            return
        least = len(one.answer.rstrip()) if whole else 0
        passages = [*one.passages, *((one.prompt or "")[start:end] for start, end in one.passages_at)]
        for number, (id, mark) in enumerate(self.marks(one, name)):
            row = {
                "id": id, "span": id, "token": -1, "correct": int(not mark.wrong), **columns,
                "answer": " ".join(one.answer[start:end] for start, end in mark.ranges),
                "question_type": mark.type, "answer_kind": mark.type, "cut_at": mark.start,
                "sentence": number, "entity_start": mark.start, "entity_end": mark.end,
            }  # fmt: skip
            if self.needs.of_passages:
                row |= overlap(row["answer"], passages)
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
        for token in sorted(inside):
            start = generation.offsets[token][0]
            same = members[int(labels.mark[token])]
            first, last = generation.offsets[same[0]][0], generation.offsets[same[-1]][1]
            row = {
                "id": f"{name}#{token}", "span": name, "token": token, "correct": 1 - wrong,
                **about, "answer": one.answer[first:last], "answer_kind": "", "cut_at": start,
                "sentence": int(labels.sentence[token]), "token_wrong": int(labels.wrong[token]),
                "mark": int(labels.mark[token]), "inside": int(labels.inside[token]),
            }  # fmt: skip
            signals = recorded(generation, [token], first=int(same[0])) | {"n_tokens": len(same)}
            examples.add(row | signals, [layers[token] for layers in states])

    def summarise(self, store: FeatureStore, texts: int) -> tuple[dict[str, Any], str]:
        """Compute figures of the labels of a store of so many texts; format them, with what is left out."""
        labels, reasons = counted(store)
        n = labels.total()
        figures: dict[str, Any] = {
            "unit": self.unit, "texts": texts, "units": n, "wrong": round(labels[0] / n, 6),
            "left_out": dict(sorted(reasons.items())),
        }  # fmt: skip
        noun = "labelled answer" if self.unit == "token" else f"labelled {self.unit}"
        line = f"{count(texts, 'text')}, {count(n, noun)}, {labels[0] / n:.3f} wrong"
        if self.unit == "token":
            tables = store.tables(["token_wrong"])
            tokens = Counter(verdict for table in tables for verdict in table["token_wrong"].tolist())
            judged = tokens[0] + tokens[1]
            figures["tokens"] = {"wrong": tokens[1], "right": tokens[0], "undecided": tokens[-1]}
            line += f"; {judged:,} tokens, {tokens[1] / judged:.3f} of them wrong"
            if self.shared:
                line += f" ({self.shared:,} in spans of both kinds, counted where most of it lies)"
        if shown := ", ".join(f"{number:,} {reason}" for reason, number in reasons.most_common()):
            line += f"; left out: {shown}"
        return figures, line


def counted(store: FeatureStore) -> tuple[Counter[int], Counter[str]]:
    """Count the labels of the spans of a store, and the reasons for leaving out others."""
    tables = store.tables(["correct", "token"])
    labels = Counter(label for table in tables for label in table["correct"][table["token"] <= 0].tolist())
    return labels, Counter(record["reason"].partition(":")[0] for record in store.left_out())


class WrittenSpan(NamedTuple):
    """Labelled span: its columns, the generation that wrote it, and its ascending tokens there."""

    columns: Mapping[str, Any]
    generation: Generation
    tokens: Sequence[int]


def read_again(
    lm: LanguageModel, spans: Sequence[WrittenSpan], needs: Needs, before: int
) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
    """Yield a row and its states (layers, d) for each token of spans and of up to ``before`` tokens ahead.

    All spans are read in one call of the model, each from the beginning of its row to the span's last token.
    The rows are those of labelled tokens: in the span ``mark`` and ``inside`` are 1 and ``token_wrong`` is
    the span's label; tokens before it are undecided (-1). States of written tokens are those of the
    generation, whose prompt ends where the article was cut. Tokens of the prompt attend to the prompt only.
    """
    prompts, texts, added = zip(*[_request(span, before) for span in spans], strict=True)
    attention = spans[0].generation.needs.attention
    read = lm.score(prompts, texts, needs=span_needs(needs, attention=attention))
    for span, generation, ahead in zip(spans, read, added, strict=True):
        inside = {token + ahead for token in span.tokens}
        both = zip(token_states(generation, needs), token_states(span.generation, needs), strict=True)
        states = [
            np.concatenate([np.ones_like(again[:ahead]) if of.site == "lookback" else again[:ahead], written])
            for of, (again, written) in zip(needs.features, both, strict=True)
        ]
        undecided = {"token_wrong": -1, "mark": 0, "inside": -1}
        judged = {"token_wrong": 1 - span.columns["correct"], "mark": 1, "inside": 1}
        for token in range(max(inside) + 1):
            label = judged if token in inside else undecided
            signals = recorded(generation, [token], first=min(inside)) | {"n_tokens": len(inside)}
            row = {**span.columns, "id": f"{span.columns['span']}#{token}", "token": token, **label}
            yield row | signals, [layers[token] for layers in states]


def _request(span: WrittenSpan, before: int) -> tuple[str, list[int], int]:
    """Return prompt, token ids to read after it, and the number of these before the generation's own."""
    written = span.generation
    ids, offsets = written.prompt_ids, written.prompt_offsets
    # An empty prompt cannot be read from.
    first = next((i for i, (start, _) in enumerate(offsets) if start > 0), len(ids))
    start = max(first, len(ids) - max(0, before - span.tokens[0]))
    prompt = written.prompt if start == len(ids) else written.prompt[: offsets[start][0]]
    return prompt, [*ids[start:], *written.token_ids[: span.tokens[-1] + 1]], len(ids) - start
