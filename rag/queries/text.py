"""Queries made of text: the question, the answer so far, its last sentence or tokens, FLARE's sentence."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from typing import Literal

from probers.types import Decision, Generation, Needs, Question, UserError
from probers.words.text import split_sentences

from ..protocol import State, at_least, one_of
from ..retrievers.lexical import tokenize

#: Number of the last tokens for the retriever that a query keeps (DRAGIN).
QUERY_TOKENS = 64


@dataclass(frozen=True)
class QuestionQuery:
    """The question itself, in every round."""

    needs = Needs()

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return question.question


@dataclass(frozen=True)
class AnswerQuery:
    """Question, rationale and answer, without the words that announce the answer (Probing-RAG).

    A wrong answer still tends to name the subject of the question, and the first hop of a two-hop question.

    Attributes:
        question_first: ask with the question alone the first time, as the released code does.
        with_passages: from the second retrieval on, put the passages seen so far
            between question and rationale, as in algorithm 1 of Probing-RAG.
        whole_output: from the second retrieval on, ask with the prompt, exemplars included, and all
            text written after it, as the released code of Probing-RAG does.
    """

    question_first: bool = False
    with_passages: bool = False
    whole_output: bool = False

    needs = Needs()

    def __post_init__(self) -> None:
        if self.with_passages and self.whole_output:
            message = "query.with_passages=true and query.whole_output=true exclude each other"
            raise UserError(f"{message}: the whole output contains the passages already", "conflict")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if self.question_first and not state.retrievals:
            return question.question
        if self.whole_output and state.retrievals:
            return " ".join((generation.prompt + generation.text[: decision.position]).split())
        cue = re.escape(state.prompt.answer_cue.strip())
        passages = [p.text for p in state.passages] if self.with_passages else []
        texts = re.split(cue, text_so_far(generation, decision, state), flags=re.IGNORECASE)
        return " ".join(" ".join([question.question, *passages, *texts]).split())


@dataclass(frozen=True)
class LimitedQuery(ABC):
    """A text cut to its last words; the question if the retriever would find no word in it.

    Attributes:
        max_tokens: number of last words for the retriever that are kept.
    """

    max_tokens: int = field(default=QUERY_TOKENS, kw_only=True)

    def __post_init__(self) -> None:
        at_least("query.max_tokens", self.max_tokens)

    @property
    def needs(self) -> Needs:
        return Needs()

    @abstractmethod
    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        """Return the query before it is cut."""

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        words = self.text(question, generation, decision, state).split()
        sizes = accumulate(len(tokenize(word)) for word in reversed(words))
        fitting = len(list(takewhile(self.max_tokens.__ge__, sizes)))
        query = " ".join(words[len(words) - fitting :])
        return query if tokenize(query) else question.question


@dataclass(frozen=True)
class FullContextQuery(LimitedQuery):
    """The question and the answer so far (a DRAGIN ablation); a long answer displaces the question."""

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return f"{question.question} {text_so_far(generation, decision, state)}"


@dataclass(frozen=True)
class LastSentenceQuery(LimitedQuery):
    """The last sentence of the answer so far, or the question if nothing is accepted yet (IRCoT)."""

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        text = text_so_far(generation, decision, state)
        sentences = split_sentences(text)
        return text[slice(*sentences[-1])] if sentences else ""


@dataclass(frozen=True)
class LastTokensQuery(LimitedQuery):
    """The last ``n`` tokens of the answer so far, or the question if nothing is accepted (RETRO, IC-RALM).

    The query may begin within a word, because a token may.

    Attributes:
        n: number of last tokens of the model.
    """

    n: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("query.n", self.n)

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        shift = len(generation.prompt)
        begin = shift - len(state.partial)
        text, offsets = whole_text(generation)
        end = len(text) if decision.position is None else shift + decision.position
        # The part of a token after the cut counts.
        starts = [max(a, begin) for a, b in offsets if max(a, begin) < min(b, end)]
        return text[starts[-self.n :][0] : end] if starts else ""


@dataclass(frozen=True)
class FlareQuery(LimitedQuery):
    """The sentence that fired, without the tokens of probability below ``beta`` (FLARE, Jiang et al. 2023).

    This is the paper's implicit query; with ``masks="fired"`` the tokens that fired are left out instead. The
    sentence is the one of the first token that fired. For a trigger that names no token it is the one at the
    trigger's position; for a verdict on the whole answer it is all of the answer. Text of the sentence that
    was accepted earlier stays whatever its probability. Spaces before omitted tokens stay, so that no two
    words become one. The question is asked if nothing is left.

    Attributes:
        beta: tokens of smaller probability are left out; 0 leaves none out.
        masks: leave out "improbable" tokens, or those that "fired" whatever their probability.
    """

    beta: float = 0.4
    masks: Literal["improbable", "fired"] = "improbable"

    reads_tokens = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise UserError(f"query.beta={self.beta} is not a probability: give one from 0 to 1")
        one_of("query.masks", self.masks, "improbable", "fired")

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        text, shift = state.partial + generation.text, len(state.partial)
        start, end = 0, len(text)
        if decision.tokens:
            # Compare the token's last character: its first may be the space before the sentence.
            start, end = sentence_at(text, shift + max(generation.offsets[decision.tokens[0]][1] - 1, 0))
        elif decision.position is not None:
            start, end = sentence_at(text, shift + decision.position)
        characters, fired = list(text), self.masks == "fired"
        for i, (a, b) in enumerate(generation.offsets):
            if i in decision.tokens if fired else math.exp(float(generation.logprobs[i])) < self.beta:
                token = slice(a + shift, b + shift)
                characters[token] = [c if c.isspace() else "" for c in characters[token]]
        return "".join(characters[start:end])


def sentence_at(text: str, place: int) -> tuple[int, int]:
    """Find [start, end) of the sentence around a character or after it; else the last, (0, 0) without any."""
    spans = split_sentences(text)
    return next((span for span in spans if span[1] > place), spans[-1] if spans else (0, 0))


def text_so_far(generation: Generation, decision: Decision, state: State) -> str:
    """Return the answer up to where the trigger fired; all of it for a verdict on the whole answer."""
    return state.partial + generation.text[: decision.position]


def whole_text(generation: Generation) -> tuple[str, list[tuple[int, int]]]:
    """Join prompt and generation to one text; return it with [start, end) in it of every token of both."""
    shift = len(generation.prompt)
    behind = ((a + shift, b + shift) for a, b in generation.offsets)
    return generation.prompt + generation.text, [*generation.prompt_offsets, *behind]
