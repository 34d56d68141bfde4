"""Answers with and without retrieved passages, labelled right or wrong (Probing-RAG, section 3).

Every question gives two examples, which share its split. The states are those of rationale and answer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from probers.checksums import draw_key
from probers.commands.inputs import load_matcher, load_passages, question_source, wordnet_found
from probers.data.questions import QuestionSet, open_questions
from probers.engine.language_model import Decoding, GenerationRequest
from probers.engine.model import CausalLM
from probers.evaluation.answers import Rule, accuracy_contains, exact_match, f1_score, final_answer, right_by
from probers.prompts import PromptTemplate, passages_that_fit
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Question, Retriever, UserError
from probers.uncertainty.detectors import Asked, Detectors
from probers.uncertainty.meaning import by_matcher
from probers.uncertainty.rarity import Counts, lowest_frequencies
from probers.uncertainty.samples import Draws
from probers.uncertainty.semantic_entropy import best_cut
from probers.words import EntityMatcher, Recogniser, tokens_of
from probers.words.thinking import Part, answer_in, part_of, position_of

from ..settings import Datagen
from .base import (
    NO_ROOM,
    TOO_LONG,
    Examples,
    LabelBuilder,
    Prepared,
    recorded,
    recorded_needs,
    span_needs,
    span_rows,
)  # fmt: skip

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
    if right is not None and rule != "acc_substring":
        return right
    choices = f"em, acc, match, f1>=0.8 (any bound from 0 to 1) or {BY_ENTROPY}"
    raise UserError(f"label={rule} is no label rule: choose {choices}", "unknown-choice")


#: Columns with the scores of an answer, whichever rule labels it.
_SCORES = ("em", "acc", "f1")
#: Conditions: without and with passages.
_CONDITIONS = ("closed_book", "with_passages")
#: Cells of Probing-RAG's figure 3, by right answers without and with passages.
_CELLS = {"both": (1, 1), "only_with": (0, 1), "only_without": (1, 0), "neither": (0, 0)}


@dataclass
class CotBuilder(LabelBuilder):
    """Builder of labelled chains of thought for questions with at least one gold answer each.

    ``k`` passages are retrieved in the second condition. A seed ``shuffle`` draws the order of the questions,
    whatever order they come in.
    """

    lm: CausalLM | None
    asked: QuestionSet
    retriever: Retriever | None
    prompt: PromptTemplate
    needs: Needs
    label: str = "em"
    acc: Acc = "tokens"
    matcher: EntityMatcher | None = None
    k: int = 3
    max_new_tokens: int = 48
    shuffle: int | None = None
    draws: Draws | None = None
    part: Part = "both"

    item_name = unit_name = "question"
    wrong_name = "wrong"
    pools = ("mean", "last", "mind", "prompt")
    balance_by = ("split", "condition")
    parts = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.position = position_of(self.part)
        # Labels by entropy are exact match until all entropies are known.
        unlabelled = self.label == BY_ENTROPY
        self._right = parse_label("em" if unlabelled else self.label, self.acc, self.matcher)
        # Heads trained without gold answers are also ranked by gold answers, if all questions have some.
        self._gold = unlabelled and all(question.answers for question in self.asked.questions)
        self._detectors = None
        if self.draws is not None:
            same = by_matcher(self.matcher or EntityMatcher())
            self._detectors = Detectors(self.draws, same, self.prompt, self.max_new_tokens)
        for question in self.asked.questions:
            if not unlabelled and not any(a.strip() for a in question.answers):
                why = "has no gold answer, so it cannot be labelled"
                raise UserError(f"question {question.id} {why}", "labels")

    @classmethod
    def prepare(cls, settings: Datagen) -> Prepared:
        """Check the settings and read the questions and passages."""
        draws = cls._draws(settings)
        if settings.reads != "both" and "prompt" in settings.pool:
            told = f"reads={settings.reads} has no pool=prompt, the state before the whole text"
            raise UserError(f"{told}: give reads=both, or another pool", "conflict")
        matcher = load_matcher(settings) if settings.label == "match" or draws else None
        if settings.label != BY_ENTROPY:
            parse_label(settings.label, settings.acc, matcher)
        if matcher is not None:
            log.info("%s", matcher.told())
        source = question_source(settings)
        asked = open_questions(
            source, limit=settings.limit, seed=settings.seed, on_bad_line=settings.on_bad_line
        )
        for line in asked.lines():
            log.info("%s", line)
        corpus = load_passages(settings)
        prompt = settings.prompt.make()

        def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
            return cls(
                lm, asked, None if lm is None else settings.retriever.make(corpus), prompt, needs,
                label=settings.label, acc=settings.acc, matcher=matcher, k=settings.k,
                max_new_tokens=settings.max_new_tokens,
                shuffle=settings.seed if settings.balance_to else None, draws=draws, part=settings.reads,
            )  # fmt: skip

        named = (settings.corpus, settings.matcher.options["aliases"], settings.matcher.options["vectors"])
        record = wordnet_found(settings) if matcher is not None else {}
        return Prepared(make, [*source.files, *filter(None, named)], record)

    @staticmethod
    def _draws(settings: Datagen) -> Draws | None:
        """Return settings of the samples; None without samples (UserError: too few, or no use for them)."""
        if settings.label == BY_ENTROPY:
            if settings.balance_to:
                told = f"label={BY_ENTROPY} is known only when all examples are made"
                raise UserError(f"{told}: give balance=true in place of balance_to", "conflict")
            if settings.samples < 2:
                told = f"label={BY_ENTROPY} compares samples, and samples={settings.samples}"
                raise UserError(f"{told}: draw two or more, as samples=10", "missing-value")
        if not settings.samples:
            return None
        draws = Draws(samples=settings.samples, temperature=settings.temperature, seed=settings.seed)
        draws.at_least(2, "the signals of samples")
        if settings.engine != "transformers":
            told = f"samples={settings.samples}: engine={settings.engine} cannot draw"
            raise UserError(f"{told}: give engine=transformers, or samples=0", "unsupported")
        return draws

    @property
    def total(self) -> int:
        return len(self.asked.questions)

    def units(self) -> Iterator[Question]:
        questions = self.asked.questions
        if (seed := self.shuffle) is not None:
            questions = sorted(questions, key=lambda q: draw_key("balance", seed, q.id))
        for question in questions:
            self._read += 1
            yield question

    def names(self, units: Sequence[Question]) -> list[str]:
        return [f"{question.id}/{condition}" for condition in _CONDITIONS for question in units]

    def build(self, units: Sequence[Question], known: Mapping[str, int | None]) -> Iterator[Examples]:
        assert self.lm is not None and self.retriever is not None
        frequencies: list[int | None] = [None] * len(units)
        if isinstance(self.retriever, Counts):
            texts = [q.question for q in units]
            frequencies = lowest_frequencies(texts, self.retriever, Recogniser("rules", quiet=True))
        found = self.retriever.search([q.question for q in units], self.k)
        asked = [(q.question, [p.text for p in ps], "") for q, ps in zip(units, found, strict=True)]
        shown = passages_that_fit(self.lm.fits, self.prompt, asked, [self.max_new_tokens] * len(units))
        prompts = [self.prompt.question(q.question) for q in units]
        for (text, texts, _), count in zip(asked, shown, strict=True):
            prompts.append(self.prompt.question(text, texts[:count]))
        names = self.names(units)
        requests = [
            GenerationRequest(text, self.max_new_tokens, question.id)
            for text, question in zip(prompts, [*units, *units], strict=True)
        ]
        record = recorded_needs if self.part == "both" else span_needs
        needs = record(self.needs, attention=self.lm.attends)
        batches = self.lm.generate_each(
            requests, Decoding(needs, self.prompt.prefix, self.prompt.stop),
            known={index for index, name in enumerate(names) if name in known},
        )  # fmt: skip
        for made in batches:
            examples = Examples()
            judged = self._judged(units, names, made)
            for index, generation in made.items():
                examples.tokens += len(generation.token_ids)
                opens, place = divmod(index, len(units))
                passages = shown[place] if opens else 0
                if opens and found[place] and not passages:
                    examples.leave_out(names[index], NO_ROOM)
                    continue
                if not generation.token_ids:  # no state exists
                    skipped = generation.stop == "skipped"
                    examples.leave_out(names[index], TOO_LONG if skipped else "empty answer")
                    continue
                if (read := self._read_part(generation)) is None:
                    examples.leave_out(names[index], f"no {self.part}")
                    continue
                signals, states = read
                row = self._row(units[place], _CONDITIONS[opens], generation) | signals
                row |= {"passages": passages, "question_frequency": frequencies[place]}
                row |= judged.get(index, {})
                examples.tokens += row.get("sample_tokens", 0) + row.get("verbalised_tokens", 0)
                examples.add(row, states)
            yield examples

    def _read_part(self, generation: Generation) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        """Compute signals and states of the read part of a text; None if it has no token."""
        if self.part == "both":
            return recorded(generation), list(generation.states.values())
        span = part_of(generation.text, self.part)
        tokens = [] if span is None else tokens_of(generation.offsets, *span)
        if not tokens:
            return None
        ((_, signals, states),) = span_rows(generation, tokens, self.needs)
        return signals, states

    def _judged(
        self, units: Sequence[Question], names: Sequence[str], made: Mapping[int, Generation]
    ) -> dict[int, dict[str, Any]]:
        """Compute columns of the detectors that draw or ask, by place of each answer with a token."""
        written = [index for index, generation in made.items() if generation.token_ids]
        if self._detectors is None or not written:
            return {}
        assert self.lm is not None
        asked = []
        for index in written:
            question = units[index % len(units)]
            answer = final_answer(made[index].text, self.prompt.answer_cue, question.dataset)
            asked.append(Asked(names[index], question.question, question.dataset, made[index].prompt, answer))
        return dict(zip(written, self._detectors.columns(self.lm, asked), strict=True))

    def conclude(self, store: FeatureStore) -> list[str]:
        """Label answers by the best cut of the training texts' entropies if ``label=semantic_entropy``."""
        if self.label != BY_ENTROPY:
            return []
        tables = list(store.tables(["split", BY_ENTROPY]))
        known = np.concatenate([t.loc[t["split"] == "train", BY_ENTROPY].to_numpy(float) for t in tables])
        if not len(known):
            told = f"label={BY_ENTROPY} chooses its cut on training texts, and there are none"
            raise UserError(f"{told}: raise limit", "labels")
        cut = best_cut(known)
        for index in range(store.next_shard):
            rows, states, units, left_out = store.read_shard(index)
            for row in rows:
                row["correct"] = int(row[BY_ENTROPY] <= cut)
            store.write_shard(index, rows, *states, units=units, left_out=left_out)
        share = float((known > cut).mean())
        return [
            f"labels: right is a semantic entropy up to {cut:.3f} nats, which divides {len(known)} training "
            f"texts into the groups of least variance ({share:.3f} of them are above it)"
        ]

    def _row(self, question: Question, condition: str, generation: Generation) -> dict[str, Any]:
        answer = final_answer(generation.text, self.prompt.answer_cue, question.dataset)
        said, gold = answer_in(generation.text), question.answers
        return {
            "id": f"{question.id}/{condition}", "group": question.group, "split": question.split,
            "correct": int(self._right(said, answer, gold)),
            "dataset": question.dataset, "condition": condition, "question": question.question,
            "answer": answer, "gold": gold[0] if gold else "",
            "em": exact_match(answer, gold) if gold else None,
            "f1": f1_score(answer, gold).f1 if gold else None,
            "acc": accuracy_contains(said, gold, mode=self.acc) if gold else None,
            **({"gold_right": int(exact_match(answer, gold))} if self._gold else {}),
            "question_type": str(question.truth.get("type", "")),
            "answer_kind": str(question.truth.get("answer_kind", "")),
            "knowledge": str(question.truth.get("kind", "")),
        }  # fmt: skip

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Compute scores per data set and condition, and the shares that retrieval helps, hurts or leaves."""
        scores: dict[tuple[str, str], list[tuple[float, ...]]] = {}
        known: dict[tuple[str, str], list[int]] = {}
        both: dict[str, dict[str, int]] = {}
        columns = ["id", "dataset", "condition", "knowledge", "passages", "correct", *_SCORES]
        cut = 0
        for table in store.tables(columns):
            for id, dataset, condition, knowledge, passages, correct, *rest in table.itertuples(index=False):
                cut += condition == "with_passages" and passages < self.k
                scores.setdefault((dataset or "questions", condition), []).append((correct, *rest))
                known.setdefault((condition, knowledge), []).append(correct)
                both.setdefault(id.rpartition("/")[0], {})[condition] = correct
        figures: dict[str, Any] = {"questions": self.asked.record, "scores": {}}
        lines: list[str] = []
        for (dataset, condition), found in sorted(scores.items()):
            averages = np.array(found, dtype=float).mean(axis=0)
            means = {
                name: round(float(mean), 6)
                for name, mean in zip(("correct", *_SCORES), averages, strict=True)
                if not np.isnan(mean)  # without gold answers
            }
            figures["scores"].setdefault(dataset, {})[condition] = {"n": len(found), **means}
            kinds = [(k, v) for (c, k), v in sorted(known.items()) if c == condition and k]
            shown = ", ".join(f"{kind} {sum(v) / len(v):.2f} (n={len(v)})" for kind, v in kinds)
            lines.append(
                f"{dataset}, {condition}: {means['correct']:.3f} of {len(found)} right"
                + "".join(f"; {n.upper()} {means[n]:.3f}" for n in ("em", "acc", "f1") if n in means)
                + (f" | {shown}" if shown else "")
            )
        if cut:
            figures["fewer_passages"] = int(cut)
            lines.append(f"{cut} prompts show fewer than k={self.k} passages: no more were found, or fit")
        pairs = Counter(tuple(found[c] for c in _CONDITIONS) for found in both.values() if len(found) == 2)
        if pairs:
            shares = {name: round(pairs[cell] / pairs.total(), 6) for name, cell in _CELLS.items()}
            shares |= {
                "helps": shares["only_with"], "hurts": shares["only_without"],
                "leaves": round(shares["both"] + shares["neither"], 6),
            }  # fmt: skip
            figures["retrieval"] = shares
            lines.append(
                "right both ways {both:.3f}, only with passages {only_with:.3f}, only without "
                "{only_without:.3f}, neither way {neither:.3f}: retrieval helps {helps:.3f}, hurts "
                "{hurts:.3f}, leaves {leaves:.3f} of the questions".format(**shares)
            )
        return figures, lines
