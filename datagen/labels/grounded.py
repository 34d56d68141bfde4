"""Labels of support: answers from passages that were changed so that it is known what they support.

Every question is asked with ``k`` passages in up to five conditions. "gold" shows the passages that answer
it; in "changed" another answer of the same kind stands there in place of the right one, in "memory" the one
that the model was taught; "removed" leaves out the sentences with the answer; "missing" shows distractors
alone. The model answers, and reads its answer again after the passages. An answer is supported if it is the
value that the passages about the subject give. Many that are not are values of somebody else's passage.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from probers.checksums import draw_key
from probers.data.texts import Mark, Text
from probers.evaluation.answers import exact_match, final_answer, normalize_answer
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Decoding, GenerationRequest, Scoring
from probers.model.passages import request
from probers.store.store import FeatureStore
from probers.types import Needs, Passage, Question, UserError
from probers.words.text import split_sentences, tokenize

from ..settings import Condition, OfGrounded
from .base import NO_ROOM, TOO_LONG, AsksQuestions, Inputs, state, unit_for
from .rows import Examples, MarkedRows

log = logging.getLogger(__name__)

#: Conditions in the order of a shard.
CONDITIONS: tuple[Condition, ...] = get_args(Condition)


@dataclass(frozen=True, slots=True)
class Case:
    """A question with the passages of one condition; ``value`` is the answer that they give, "" for none."""

    question: Question
    condition: Condition
    passages: tuple[str, ...]
    value: str

    @property
    def id(self) -> str:
        return f"{self.question.id}/{self.condition}"


@dataclass(frozen=True)
class Grounded(AsksQuestions, OfGrounded):
    """Questions with gold answers, answered from passages that support one value, or none.

    Gold passages are those of the question, or those of the corpus that ``truth["gold"]`` names.
    """

    others: Mapping[str, Sequence[str]] = state()
    marked: MarkedRows = state()

    name = "grounded"
    wrong_name = "unsupported"
    pools = ("mean", "last", "tokens")
    balance_by = ("split", "condition")
    parts = len(CONDITIONS)
    position = "answer"

    def inputs(self) -> Inputs:
        unit_for(self.options, None, "answer")
        read = self.open_questions()
        kinds: dict[str, set[str]] = {}
        for question in self.chosen.questions:
            if any(map(tokenize, question.answers)):
                kinds.setdefault(_kind(question), set()).add(question.answers[0])
        if not kinds:
            raise UserError("source=grounded changes gold answers, and no question has one", "labels")
        others = {kind: sorted(values) for kind, values in kinds.items()}
        self.keep(others=others, open_passages=self.open_retriever(self.options))
        return read

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        super().begin(lm, needs, folder)
        self.keep(marked=MarkedRows(unit_for(self.options, None, "answer"), needs))

    def place(self, span: str) -> tuple[int, str]:
        return 0, span.partition("#")[0].rpartition("/")[0]

    def examples(self, lm: CausalLM, units: Sequence[Question]) -> Iterator[Examples]:
        hits = self.retrieve.search([question.question for question in units], 2 * self.k)
        cases = [case for each in zip(units, hits, strict=True) for case in self.cases(*each)]
        texts = [self.prompt.question(case.question.question, case.passages) for case in cases]
        limit = self.options.max_new_tokens
        examples, fitting, requests = Examples(), [], []
        fits = lm.fits(texts, [limit] * len(texts))
        for case, text, fit in zip(cases, texts, fits, strict=True):
            if fit:
                fitting.append(case)
                requests.append(GenerationRequest(text, limit, case.id))
            else:
                examples.leave_out(case.id, NO_ROOM)
        written: dict[int, tuple[Case, Text]] = {}
        how = Decoding(prefix=self.prompt.prefix, stop=self.prompt.stop)
        for batch in lm.generate_each(requests, how):
            for number, generation in batch.items():
                case = fitting[number]
                examples.tokens += len(generation.token_ids)
                answer = final_answer(generation.text, self.prompt.answer_cue, case.question.dataset)
                if generation.token_ids and tokenize(answer):
                    written[number] = case, _text(case, generation.text, answer)
                else:
                    skipped = generation.stop == "skipped"
                    examples.leave_out(case.id, TOO_LONG if skipped else "empty answer")
        yield examples
        yield from self._read(lm, [written[number] for number in sorted(written)])

    def _read(self, lm: CausalLM, texts: Sequence[tuple[Case, Text]]) -> Iterator[Examples]:
        needs = self.marked.recording
        requests = [request(lm, one, self.prompt, "answer", needs) for _, one in texts]
        for batch in lm.score_each(requests, Scoring(needs)):
            examples = Examples()
            for place, generation in batch.items():
                case, one = texts[place]
                about = {
                    "condition": case.condition, "knowledge": str(case.question.truth.get("kind", "")),
                    "gold": case.question.answers[0], "source": one.record["source"],
                }  # fmt: skip
                self.marked.add(one, one.id, generation, about, examples)
            yield examples

    def cases(self, question: Question, hits: Sequence[Passage]) -> Iterator[Case]:
        """Yield the conditions that a question's passages allow; ``hits`` are distractors, best first."""
        named = question.truth.get("gold") or ()
        gold = [p for p in question.passages if p.is_gold] or [p for p in hits if p.id in named]
        texts, names = [p.text for p in gold[: self.k]], {p.id for p in gold[: self.k]}
        stated = (a for a in question.answers if tokenize(a) and any(_holds(text, a) for text in texts))
        if not (answer := next(stated, "")):
            return
        new = (p.text for p in hits if p.id not in names and p.text not in texts)
        distractors = [text for text in new if not _holds(text, answer)]
        shown: dict[Condition, tuple[list[str], str]] = {"gold": (texts, answer), "missing": ([], "")}
        others: dict[Condition, str] = {"changed": self._other(question), "memory": _believed(question)}
        for condition, value in others.items():
            changed = [_replaced(text, answer, value) for text in texts]
            differs = value and not exact_match(value, question.answers)
            if differs and not any(_holds(text, answer) for text in changed):
                shown[condition] = changed, value
        removed = [_without(text, answer) for text in texts]
        if all(removed):
            shown["removed"] = removed, ""
        for condition in CONDITIONS:
            if condition in shown and condition in self.conditions:
                passages, value = shown[condition]
                rest = distractors[: max(0, self.k - len(passages))]
                if passages or rest:
                    together = [*passages, *rest][: self.k]
                    together.sort(key=lambda text: draw_key("place", self.options.seed, question.id + text))
                    yield Case(question, condition, tuple(together), value)

    def _other(self, question: Question) -> str:
        """Draw the answer of another question of the same kind, "" if there is none."""
        taken = [*question.answers, _believed(question)]
        values = [v for v in self.others.get(_kind(question), ()) if not exact_match(v, taken)]
        return min(values, key=lambda v: draw_key("other", self.options.seed, question.id + v), default="")

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Count support by condition, and what unsupported answers rest on."""
        figures, line = self.marked.summarise(store, len(self.chosen.questions))
        table = Counter[tuple[str, str]]()
        for rows in store.tables(["condition", "source"]):
            table.update(rows.itertuples(index=False, name=None))
        sources = sorted({source for _, source in table})
        figures["source"] = {
            condition: {source: table[condition, source] for source in sources}
            for condition in CONDITIONS if any(table[condition, source] for source in sources)
        }  # fmt: skip
        lines = [
            f"{condition}: " + ", ".join(f"{n:,} {source}" for source, n in counts.items() if n)
            for condition, counts in figures["source"].items()
        ]
        return figures, [line, *lines]


def _text(case: Case, written: str, answer: str) -> Text:
    supported = bool(case.value) and exact_match(answer, [case.value])
    believed = _believed(case.question)
    remembered = bool(believed) and exact_match(answer, [believed])
    source = "both" if supported and remembered else "passage" if supported else "memory"
    if not supported and not remembered:
        source = "other_passage" if any(_holds(p, answer) for p in case.passages) else "invented"
    start = written.find(answer)
    spans = (Mark(((start, start + len(answer)),), not supported),) if start >= 0 else ()
    question = case.question
    return Text(
        case.id, case.id, question.question, (), written, not supported, {"source": source}, case.passages,
        spans=spans, group=question.group or question.id, split=question.split, dataset=question.dataset,
    )  # fmt: skip


def _kind(question: Question) -> str:
    """Name what is asked for, so that another answer of the same kind can be put in its place."""
    return str(question.truth.get("type") or question.truth.get("answer_kind") or "")


def _believed(question: Question) -> str:
    return str(question.truth.get("believed") or "")


def _holds(text: str, answer: str) -> bool:
    return f" {normalize_answer(answer)} " in f" {normalize_answer(text)} "


def _replaced(text: str, answer: str, value: str) -> str:
    return re.sub(re.escape(answer), lambda _: value, text, flags=re.IGNORECASE)


def _without(text: str, answer: str) -> str:
    sentences = [text[start:end] for start, end in split_sentences(text)]
    return " ".join(sentence for sentence in sentences if not _holds(sentence, answer))
