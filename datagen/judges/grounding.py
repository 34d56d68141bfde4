"""Verdicts by a grounding prober, for which the reference article of a question is what an answer rests on.

The prober's model reads each answer after the parts of the article that share most words with it. A sentence
whose score is low enough is supported, one whose score is high enough contradicted, and an entity gets the
verdict of its sentence. Both limits are chosen on labelled texts with passages, so that of each verdict at
least the share ``precision`` is right there; with a confidence this is promised of other texts like them
(:mod:`probers.prober.risk_control`). A verdict for which no limit does this is never given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from probers.data.corpus_formats import whole_sentences
from probers.data.texts.base import Mark, Text
from probers.data.texts.source import TextSource
from probers.prober.response import Response
from probers.prober.risk_control import certify
from probers.types import UserError, count
from probers.words.text import is_stop_word, tokenize

from .base import Answer, Grounds, Judge, Ruling, Verdict

#: Fewest validation sentences that a limit without a promise rests on.
_LEAST = 20


@dataclass
class GroundingJudge(Judge):
    """Judge that reads an answer with its article by a grounding prober.

    Attributes:
        grounds: its model is taken if it is the prober's; else the prober's model is loaded.
        prober: folder or hub id of a prober of sentences that reads passages.
        validation: labelled texts with passages to choose the limits on; those that the prober was trained on
            are left out.
        precision: share of each verdict that must be right.
        confidence: probability with which that holds of further texts; None asks for it on the validation
            texts alone.
        parts: most parts of an article that are shown, each of about 100 words.
    """

    grounds: Grounds
    prober: str | None = None
    validation: str | None = None
    precision: float = 0.9
    confidence: float | None = None
    parts: int = 3
    verdicts: Counter[str] = field(default_factory=Counter, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        for name, what in (("prober", "prober"), ("validation", "file of labelled texts")):
            if getattr(self, name) is None:
                raise UserError(f"judge=grounding needs a {what}: give judge.{name}=..", "missing-value")
        for name in ("precision", "confidence"):
            if not 0 < (getattr(self, name) or 0.5) < 1:
                raise UserError(f"judge.{name}={getattr(self, name)} must be between 0 and 1", "bad-value")
        if not self._bank.needs.of_passages or self._bank.spec.position != "sentence":
            message = f"judge.prober={self.prober} judges no sentences by their passages"
            raise UserError(f"{message}: train one with unit=sentence on texts with passages", "mismatch")

    @cached_property
    def _bank(self) -> Any:
        from probers.prober.prober import Prober

        return Prober.from_pretrained(str(self.prober))

    @cached_property
    def _lm(self) -> Any:
        from probers.model.causal_lm import CausalLM

        given, model = self.grounds.lm, self._bank.spec.model
        if isinstance(given, CausalLM) and (given.spec.id, given.spec.revision) == (model.id, model.revision):
            return given
        return CausalLM.from_pretrained(model.id, dtype=model.dtype)

    @cached_property
    def _limits(self) -> dict[Verdict, float]:
        """Highest score of a supported sentence, and lowest of a contradicted one."""
        wrong, scores, groups = self._validated()
        limits: dict[Verdict, float] = {"supported": -np.inf, "contradicted": np.inf}
        # A verdict passes if the score, turned for "contradicted", is low enough.
        for verdict, turn, amiss in (("supported", 1, wrong), ("contradicted", -1, 1 - wrong)):
            try:
                limit, note = self._limit(amiss, turn * scores, groups)
            except UserError as error:
                self.notes.append(f"never {verdict}: {error}")
                continue
            limits[verdict] = turn * limit  # type: ignore[index]
            self.notes.append(f"{verdict}: {note}")
        if limits["contradicted"] <= limits["supported"]:  # what both claim is told by neither
            limits = {"supported": limits["contradicted"], "contradicted": limits["supported"]}
        return limits

    def _limit(self, wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray) -> tuple[float, str]:
        """Find the laxest limit up to which a verdict is right often enough, and what is known of it.

        ``wrong`` (n,) tells where the verdict would be wrong. UserError: no limit does.
        """
        if self.confidence is not None:
            limit, promise = certify(1 - self.precision, self.confidence, wrong, scores, groups)
            return limit, str(promise)
        order = np.argsort(scores, kind="stable")
        right = np.cumsum(1 - wrong[order])
        n = np.arange(1, len(order) + 1)
        enough = np.flatnonzero((right >= self.precision * n) & (n >= _LEAST))
        if not len(enough):
            message = f"of no {_LEAST} or more validation sentences with the clearest scores"
            raise UserError(f"{message} {self.precision:.0%} are right", "labels")
        last = int(enough[-1])
        note = f"{int(right[last])} of {n[last]} validation sentences right, with no promise for others"
        return float(scores[order][last]), note

    def _validated(self) -> tuple[np.ndarray, ...]:
        """Score the labelled sentences of the validation texts: labels, scores and groups, (n,) each."""
        from probers.prober.scoring import score_texts

        seen, texts = self._bank.seen, []
        for one in TextSource(str(self.validation)).all():
            question = one.question or one.answer
            if one.passages and (seen is None or seen.side(one.dataset, one.group, question) != "train"):
                texts.append(one)
        if not texts:
            message = f"judge.validation={self.validation} has no text with passages that the prober"
            raise UserError(f"{message} was not trained on: give other texts", "labels")
        sentences = []
        for one, response in zip(texts, score_texts(self._lm, self._bank, texts), strict=True):
            labels = {mark.ranges[0]: mark.wrong for mark in one.units("sentence")}
            for span in () if response is None else response.spans:
                if (wrong := labels.get((span.start, span.end))) is not None:
                    sentences.append((float(wrong), span.score, one.group))
        if not sentences:
            raise UserError(f"judge.validation={self.validation} labels no sentence or span", "labels")
        return tuple(map(np.array, zip(*sentences, strict=True)))

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        from probers.prober.scoring import score_texts

        texts = [_text(answer, self.parts) for answer in answers if answer.reference]
        scored = zip(texts, score_texts(self._lm, self._bank, texts), strict=True)
        responses = {text.id: response for text, response in scored}
        rulings = [[self._ruling(unit, responses.get(one.id), one) for unit in one.units] for one in answers]
        self.verdicts.update(ruling.verdict for each in rulings for ruling in each)
        return rulings

    def _ruling(self, unit: Mark, response: Response | None, answer: Answer) -> Ruling:
        if not answer.reference:
            return Ruling("unknown", "no reference article")
        spans = () if response is None else response.spans
        span = next((span for span in spans if span.start <= unit.start < span.end), None)
        if span is None:
            return Ruling("unknown", "not judged by the prober")
        supported, contradicted = self._limits["supported"], self._limits["contradicted"]
        verdict: Verdict = "contradicted" if span.score >= contradicted else "unknown"
        verdict = "supported" if span.score <= supported else verdict
        return Ruling(verdict, f"P(unsupported) {span.p_wrong:.2f}", "grounding")

    def lines(self) -> list[str]:
        """Report how many verdicts were given, and what is promised of them."""
        every = sum(self.verdicts.values())
        decided = every - self.verdicts["unknown"]
        share = f" ({decided / every:.0%})" if every else ""
        return [f"judge grounding decided {decided:,} of {count(every, 'unit')}{share}", *self.notes]


def _text(answer: Answer, most: int) -> Text:
    """Make the text that the prober reads: the answer after the nearest parts of its article."""
    passages = nearest(list(whole_sentences(answer.reference)), answer.text, most)
    return Text(
        answer.id, answer.id, answer.prompt, (), answer.text, None, {}, tuple(passages), dataset="judged"
    )


def nearest(parts: Sequence[str], text: str, most: int) -> list[str]:
    """Choose the first part, which says what an article is about, and those that share most words."""
    wanted = {word for word in tokenize(text) if not is_stop_word(word)}
    shared = [len(wanted & set(tokenize(part))) for part in parts]
    best = sorted(range(1, len(parts)), key=lambda place: -shared[place])[: max(0, most - 1)]
    return [parts[place] for place in (*range(min(1, len(parts))), *sorted(best))]
