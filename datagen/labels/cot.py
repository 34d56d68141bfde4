"""Answers with and without retrieved passages, labelled right or wrong (Probing-RAG, section 3).

Every question gives two examples, which share its split. The states are those of rationale and answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from probers.checksums import draw_key
from probers.cli.inputs import load_matcher, wordnet_found
from probers.data.corpus import search
from probers.evaluation.answers import Rule, accuracy_contains, exact_match, f1_score, final_answer, right_by
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Decoding, GenerationRequest
from probers.prompts import passages_that_fit
from probers.signals.agreement import best_cut
from probers.signals.detectors import Asked, detector_columns
from probers.signals.meaning import by_matcher
from probers.signals.rarity import Counts, lowest_frequencies, retriever_ranks
from probers.signals.samples import Draws
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Question, UserError
from probers.words import EntityMatcher, Recogniser, tokens_of
from probers.words.thinking import answer_in, part_of, position_of

from ..settings import OfCot
from .base import NO_ROOM, TOO_LONG, AsksQuestions, Inputs, Source, state
from .rows import Examples, recorded, recorded_needs, span_needs, span_rows

log = logging.getLogger(__name__)

Acc = Literal["tokens", "substring"]
#: Label that needs no gold answers.
BY_ENTROPY = "semantic_entropy"


def parse_label(rule: str, acc: Acc = "tokens", matcher: EntityMatcher | None = None) -> Rule:
    """Make the label rule ``(text, answer, gold answers) -> right or wrong``; UserError for an unknown one.

    "em", "acc" (a gold answer stands in the text, as :func:`probers.evaluation.answers.accuracy_contains`
    says), "match" (the answer means the same) or "f1>=x".
    """
    if acc not in get_args(Acc):
        raise UserError(f"acc={acc} is unknown: choose {' or '.join(get_args(Acc))}", "unknown-choice")
    right = right_by("acc_substring" if (rule, acc) == ("acc", "substring") else rule, matcher)
    if right is None or rule == "acc_substring":
        choices = f"em, acc, match, f1>=0.8 (any bound from 0 to 1) or {BY_ENTROPY}"
        raise UserError(f"label={rule} is no label rule: choose {choices}", "unknown-choice")
    return right


_SHOWN = 120  # characters of a text in a message
#: Columns with the scores of an answer, whichever rule labels it.
_SCORES = ("em", "acc", "f1")
#: Conditions: without and with passages.
_CONDITIONS = ("closed_book", "with_passages")
#: Cells of Probing-RAG's figure 3, by right answers without and with passages.
_CELLS = {"both": (1, 1), "only_with": (0, 1), "only_without": (1, 0), "neither": (0, 0)}


@dataclass(frozen=True)
class Questions(AsksQuestions, OfCot):
    """Questions with at least one gold answer each, answered without and with ``k`` retrieved passages."""

    matcher: EntityMatcher | None = state()
    right: Rule = state()
    all_gold: bool = state()
    detectors: Callable[..., list[dict[str, Any]]] | None = state()

    __repr__ = Source.__repr__
    name = "cot"
    wrong_name = "wrong"
    pools = ("mean", "last", "mind", "prompt")
    balance_by = ("split", "condition")
    parts = 2

    def inputs(self) -> Inputs:
        options, by_entropy = self.options, self.label == BY_ENTROPY
        self._check_draws()
        if self.reads != "both" and "prompt" in options.pools:
            message = f"reads={self.reads} has no pool=prompt, the state before the whole text"
            raise UserError(f"{message}: give reads=both, or another pool", "conflict")
        matcher = load_matcher(options) if self.label == "match" or self.samples else None
        # Labels by entropy are exact match until all entropies are known.
        right = parse_label("em" if by_entropy else self.label, self.acc, matcher)
        if matcher is not None:
            log.info("%s", matcher.described())
        read, questions = self.open_questions(), self.chosen.questions
        for question in questions:
            if not by_entropy and not any(a.strip() for a in question.answers):
                raise UserError(f"question {question.id} has no gold answer to be labelled by", "labels")
        self.keep(
            matcher=matcher, right=right, open_passages=self.open_retriever(options),
            position=position_of(self.reads),
            # Heads trained without gold answers are also ranked by gold answers, if all questions have some.
            all_gold=by_entropy and all(question.answers for question in questions),
        )  # fmt: skip
        named = (options.matcher.options["aliases"], options.matcher.options["vectors"])
        record = dict(wordnet_found(options)) if matcher is not None else {}
        return Inputs([*read.files, *filter(None, named)], record | dict(read.record))

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        super().begin(lm, needs, folder)
        detectors = None
        if self.samples:
            draws = Draws(samples=self.samples, temperature=self.temperature, seed=self.options.seed)
            same = by_matcher(self.matcher or EntityMatcher())
            limit = self.options.max_new_tokens
            detectors = partial(
                detector_columns, how=draws, same=same, template=self.prompt, max_new_tokens=limit
            )
        self.keep(detectors=detectors)

    def _check_draws(self) -> None:
        """Refuse samples that are too few or cannot be drawn, and a label by entropy without any."""
        if self.label == BY_ENTROPY:
            if self.options.balance_to:
                raise UserError(f"label={BY_ENTROPY} needs balance=true in place of balance_to", "conflict")
            if self.samples < 2:
                raise UserError(f"label={BY_ENTROPY} needs samples>=2, not {self.samples}", "missing-value")
        if self.samples:
            Draws(samples=self.samples, temperature=self.temperature).at_least(2, "the signals of samples")
        if self.samples and self.options.engine != "transformers":
            message = f"samples={self.samples}: engine={self.options.engine} cannot draw"
            raise UserError(f"{message}: give engine=transformers, or samples=0", "unsupported")

    def units(self) -> Iterator[Question]:
        if not self.options.balance_to:
            return super().units()
        # The same in whatever order they come.
        return iter(sorted(self.chosen.questions, key=lambda q: draw_key("balance", self.options.seed, q.id)))

    def place(self, span: str) -> tuple[int, str]:
        unit, _, condition = span.rpartition("/")
        return _CONDITIONS.index(condition), unit

    def examples(self, lm: CausalLM, units: Sequence[Question]) -> Iterator[Examples]:
        limit = self.options.max_new_tokens
        frequencies: list[int | None] = [None] * len(units)
        texts = [q.question for q in units]
        if isinstance(self.retrieve, Counts):
            frequencies = lowest_frequencies(texts, self.retrieve, Recogniser("rules", quiet=True))
        hits_of = search(self.retrieve, texts, max(self.k, 2))
        passages = [[p.text for p in hits[: self.k]] for hits in hits_of]
        ranks = [retriever_ranks(hits) for hits in hits_of]
        parts = [(text, hits, "") for text, hits in zip(texts, passages, strict=True)]
        shown = passages_that_fit(lm.fits, self.prompt, parts, [limit] * len(units))
        prompts = [self.prompt.question(text) for text in texts]
        cut = zip(texts, passages, shown, strict=True)
        prompts += [self.prompt.question(text, hits[:n]) for text, hits, n in cut]
        names = [f"{question.id}/{condition}" for condition in _CONDITIONS for question in units]
        ids = [question.id for question in (*units, *units)]
        requests = [GenerationRequest(text, limit, id) for text, id in zip(prompts, ids, strict=True)]
        record = recorded_needs if self.reads == "both" else span_needs
        needs = record(self.needs, attention=lm.attends)
        rows: list[dict[str, Any]] = []
        for batch in lm.generate_each(requests, Decoding(needs, self.prompt.prefix, self.prompt.ends)):
            examples = Examples()
            judged = self._judged(lm, units, names, batch)
            for index, generation in batch.items():
                examples.tokens += len(generation.token_ids)
                opens, place = divmod(index, len(units))
                shows = shown[place] if opens else 0
                if opens and passages[place] and not shows:
                    examples.leave_out(names[index], NO_ROOM)
                    continue
                if not generation.token_ids:  # no state exists
                    reason = TOO_LONG if generation.stop == "skipped" else "empty answer"
                    examples.leave_out(names[index], reason)
                    continue
                if (read := self._read_part(generation)) is None:
                    examples.leave_out(names[index], f"no {self.reads}")
                    continue
                signals, states = read
                row = self._row(units[place], _CONDITIONS[opens], generation) | signals
                row |= {"passages": shows, "question_frequency": frequencies[place], **ranks[place]}
                row |= {"helps": None, **judged.get(index, {})}
                examples.tokens += row.get("sample_tokens", 0) + row.get("verbalised_tokens", 0)
                examples.add(row, states)
            rows += examples.rows
            yield examples
        self._compare(rows)  # a shard is written once all of it is made

    def _read_part(self, generation: Generation) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        if self.reads == "both":
            return recorded(generation), list(generation.states.values())
        span = part_of(generation.text, self.reads)
        tokens = [] if span is None else tokens_of(generation.offsets, *span)
        if not tokens:
            return None
        ((_, signals, states),) = span_rows(generation, tokens, self.needs)
        return signals, states

    def _judged(
        self, lm: CausalLM, units: Sequence[Question], names: Sequence[str], batch: Mapping[int, Generation]
    ) -> dict[int, dict[str, Any]]:
        """Compute columns of the detectors that draw or ask, by place of each answer with a token."""
        written = [index for index, generation in batch.items() if generation.token_ids]
        if self.detectors is None or not written:
            return {}
        answers = []
        for index in written:
            question, generation = units[index % len(units)], batch[index]
            answer = final_answer(generation.text, self.prompt.answer_cue, question.dataset)
            about = names[index], question.question, question.dataset
            answers.append(Asked(*about, generation.prompt, answer))
        return dict(zip(written, self.detectors(lm, answers), strict=True))

    def conclude(self, store: FeatureStore) -> list[str]:
        """Label answers by the best cut of the training texts' entropies if ``label=semantic_entropy``."""
        if self.label != BY_ENTROPY:
            return []
        tables = list(store.tables(["split", BY_ENTROPY]))
        known = np.concatenate([t.loc[t["split"] == "train", BY_ENTROPY].to_numpy(float) for t in tables])
        if not len(known):
            raise UserError(f"label={BY_ENTROPY} is chosen on training texts: raise limit", "labels")
        cut = best_cut(known)
        for index in range(store.next_shard):
            rows, states, units, left_out = store.read_shard(index)
            for row in rows:
                row["correct"] = int(row[BY_ENTROPY] <= cut)
            self._compare(rows)
            store.write_shard(index, rows, *states, units=units, left_out=left_out)
        return [
            f"labels: right is a semantic entropy up to {cut:.3f} nats, which divides {len(known)} training "
            f"texts into the groups of least variance ({np.mean(known > cut):.3f} of them are above it)"
        ]

    def _compare(self, rows: Sequence[dict[str, Any]]) -> None:
        """Set ``helps`` of each answer without passages by the answer with passages, if both are there."""
        read = {self.place(row["id"]): row["correct"] for row in rows if row["passages"]}
        for row in rows:
            opens, unit = self.place(row["id"])
            there = read.get((1, unit))
            row["helps"] = None if opens or there is None else float(there - row["correct"])

    def _row(self, question: Question, condition: str, generation: Generation) -> dict[str, Any]:
        answer = final_answer(generation.text, self.prompt.answer_cue, question.dataset)
        text, gold = answer_in(generation.text), question.answers
        return {
            "id": f"{question.id}/{condition}", "group": question.group, "split": question.split,
            "correct": int(self.right(text, answer, gold)),
            "dataset": question.dataset, "condition": condition, "question": question.question,
            "answer": answer, "gold": gold[0] if gold else "",
            "em": exact_match(answer, gold) if gold else None,
            "f1": f1_score(answer, gold).f1 if gold else None,
            "acc": accuracy_contains(text, gold, mode=self.acc) if gold else None,
            **({"gold_right": int(exact_match(answer, gold))} if self.all_gold else {}),
            "question_type": str(question.truth.get("type", "")),
            "answer_kind": str(question.truth.get("answer_kind", "")),
            "knowledge": str(question.truth.get("kind", "")),
        }  # fmt: skip

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Compute scores per data set and condition, and the shares that retrieval helps, hurts or leaves."""
        columns = ["id", "dataset", "condition", "knowledge", "passages", "correct", *_SCORES]
        tables, silent, example, written = [], 0, "", 0
        for table in store.tables([*columns, "answer", "text"]):
            unanswered = table["text"][table["answer"] == ""]
            example = example or next(iter(unanswered), "")
            silent, written = silent + len(unanswered), written + len(table)
            tables.append(table[columns])
        answers = pd.concat(tables)
        answers["dataset"] = answers["dataset"].replace("", "questions")
        known = answers[answers["knowledge"] != ""]
        figures: dict[str, Any] = {"questions": self.chosen.record, "scores": {}}
        lines: list[str] = []
        for (dataset, condition), rows in answers.groupby(["dataset", "condition"]):
            averages = rows[["correct", *_SCORES]].astype(float).mean(skipna=False)
            means = averages.dropna().round(6).to_dict()  # NaN without gold answers
            figures["scores"].setdefault(dataset, {})[condition] = {"n": len(rows), **means}
            kinds = known[known["condition"] == condition].groupby("knowledge")["correct"]
            shown = ", ".join(f"{kind} {right.mean():.2f} (n={len(right)})" for kind, right in kinds)
            lines.append(
                f"{dataset}, {condition}: {means['correct']:.3f} of {len(rows)} right"
                + "".join(f"; {n.upper()} {means[n]:.3f}" for n in _SCORES if n in means)
                + (f" | {shown}" if shown else "")
            )
        opens = answers["condition"] == _CONDITIONS[1]
        if cut := int((opens & (answers["passages"] < self.k)).sum()):
            figures["fewer_passages"] = cut
            lines.append(f"{cut} prompts show fewer than k={self.k} passages: no more were found, or fit")
        if silent:
            figures["no_final_answer"] = silent
            lines.append(self._unanswered(silent, written, example))
        units = answers.assign(id=answers["id"].str.rpartition("/")[0])
        both = units.pivot(index="id", columns="condition", values="correct").reindex(columns=_CONDITIONS)
        pairs = Counter(both.dropna().itertuples(index=False, name=None))
        if pairs:
            shares = {name: round(pairs[cell] / pairs.total(), 6) for name, cell in _CELLS.items()}
            shares |= {"helps": shares["only_with"], "hurts": shares["only_without"]}
            shares["leaves"] = round(shares["both"] + shares["neither"], 6)
            figures["retrieval"] = shares
            lines.append(
                "right both ways {both:.3f}, only with passages {only_with:.3f}, only without "
                "{only_without:.3f}, neither way {neither:.3f}: retrieval helps {helps:.3f}, hurts "
                "{hurts:.3f}, leaves {leaves:.3f} of the questions".format(**shares)
            )
        return figures, lines

    def _unanswered(self, silent: int, written: int, example: str) -> str:
        """Say what was looked for in answers without a final one, and what the model wrote instead."""
        cue, text = self.prompt.answer_cue, " ".join(example.split())
        what = f'the words "{cue}" (prompt.answer_cue)' if cue else "a name, date or number at the beginning"
        line = f"{silent:,} of {written:,} answers have no final answer, so that EM and F1 are 0"
        line = f"{line}: {what} not found"
        shown = f'; one ends ".. {text[-_SHOWN:]}"' if text else ""
        if not cue:
            return line + shown
        other = "prompt.answer_cue='' takes the first name, date or number of an answer"
        return f"{line}{shown}. Give the words that the model uses, exemplars or more max_new_tokens; {other}"
