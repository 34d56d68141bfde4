"""Queries made of text: the question, the answer so far or part of it, a passage that the model writes."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, groupby, takewhile
from typing import TYPE_CHECKING, Literal

from probers.data.corpus import search
from probers.options import Count, Share
from probers.signals.agreement import EigenVariant
from probers.signals.samples import Draws
from probers.types import Decision, Generation, Needs, Passage, Question, Retriever, UserError
from probers.words.text import split_sentences

from ..protocol import Checked, QueryFormulator, State, has_places
from ..retrievers.lexical import tokenize

if TYPE_CHECKING:
    from ..triggers.sampled import Eigenscore

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
            raise UserError(f"{message}: leave one out", "conflict")

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
class LimitedQuery(Checked, ABC):
    """A text cut to its last words; the question if the retriever would find no word in it.

    Attributes:
        max_tokens: number of last words for the retriever that are kept.
    """

    max_tokens: Count = field(default=QUERY_TOKENS, kw_only=True)

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

    n: Count = 25

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

    beta: Share = 0.4
    masks: Literal["improbable", "fired"] = "improbable"

    reads_tokens = True

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


@dataclass(frozen=True)
class DTRQuery(Checked):
    """A passage that the model writes for the question; it and the question are both searched for.

    The passages of both searches with the highest sum of both scores are shown (Decide Then Retrieve, Chen et
    al. 2026). Scores that no cosine reaches, such as BM25's, are divided by the best of their search, and a
    passage that one search does not find has its lowest score, or 0 if it finds fewer than ``depth``. The two
    searches count as one retrieval.

    Attributes:
        form: asks for the passage, with ``{question}``; null searches for the answer so far, which costs no
            call of the model.
        passage_tokens: most tokens of the passage.
        n: passages that each search proposes.
        depth: passages of a search whose scores are known.
    """

    form: str | None = "Write a short passage that answers this question.\nQuestion: {question}\nPassage:"
    passage_tokens: Count = 64
    n: Count = 5
    depth: Count = 100

    needs = Needs()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form is not None:
            has_places("query.form", self.form, "question")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if self.form is None:
            return text_so_far(generation, decision, state).strip() or question.question
        bare, limit = state.prompt.bare(state.lm), self.passage_tokens
        prompt = bare.question(self.form.replace("{question}", question.question))
        (passage,) = state.generate([prompt], max_new_tokens=limit, stop=bare.ends, names=[question.id])
        state.spend(passage)
        return " ".join(passage.text.split()) or question.question

    def find(
        self, queries: Sequence[str], states: Sequence[State], retriever: Retriever, k: int
    ) -> list[list[Passage]]:
        """Find up to ``k`` passages for each question and its passage, best first."""
        depth, questions = max(self.depth, self.n, k), [state.question.question for state in states]
        searches = [search(retriever, texts, depth) for texts in (questions, queries)]
        return [self._best(both, depth)[:k] for both in zip(*searches, strict=True)]

    def _best(self, both: Sequence[Sequence[Passage]], depth: int) -> list[Passage]:
        """Rank what both searches propose by the sum of their scores; of equal ones the first."""
        passages = {p.id: p for hits in both for p in hits[: self.n]}
        scores = [_scores_of(passages, hits, depth) for hits in both]
        summed = [replace(p, score=sum(pair)) for p, *pair in zip(passages.values(), *scores, strict=True)]
        return sorted(summed, key=lambda passage: -(passage.score or 0.0))


def _scores_of(passages: Iterable[str], hits: Sequence[Passage], depth: int) -> list[float]:
    """Look up the scores of passages by their ids among those that a search has found."""
    scores = {p.id: p.score or 0.0 for p in hits}
    best, lowest = max(1.0, *scores.values(), 0.0), min(scores.values(), default=0.0)
    return [scores.get(name, lowest if len(hits) == depth else 0.0) / best for name in passages]


@dataclass(frozen=True)
class SeakrQuery(Draws):
    """The passage of another query's search after which the model is surest (SeaKR, Yao et al. 2024).

    Each passage is read behind those that the prompt shows: the model answers and draws answers, and the
    passage with the lowest EigenScore joins the ones shown. One after which nothing is written comes last.
    The texts count as calls of the model, the search as one retrieval.

    Attributes:
        of: name of the query that is searched for.
        variant: as in ``trigger=eigenscore``, of the middle layer.
    """

    of: str = "answer"
    variant: EigenVariant = "seakr"
    _of: QueryFormulator = field(init=False, repr=False)
    _trigger: Eigenscore = field(init=False, repr=False)

    reads_states = draws = True

    def __post_init__(self) -> None:
        from probers.cli.components import Component

        from ..triggers.sampled import Eigenscore

        options = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        object.__setattr__(self, "_of", Component.of("query", options.pop("of")).make())
        object.__setattr__(self, "_trigger", Eigenscore(**options))

    @property
    def needs(self) -> Needs:
        return self._of.needs

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return self._of(question, generation, decision, state)

    def find(
        self, queries: Sequence[str], states: Sequence[State], retriever: Retriever, k: int
    ) -> list[list[Passage]]:
        """Put the best of the ``k`` passages that each search finds behind those that are shown."""
        pairs = [(s, p) for s, hits in zip(states, search(retriever, queries, k), strict=True) for p in hits]
        read = [(state, p) for state, p in pairs if p.id not in {shown.id for shown in state.passages}]
        written = self._read(read) if read else []
        for (state, _), generation in zip(read, written, strict=True):
            state.spend(generation)
        decisions = self._trigger.decide(written, [state for state, _ in read])
        best = {
            name: read[min(group, key=lambda i: decisions[i].score)][1]
            for name, group in groupby(range(len(read)), key=lambda i: read[i][0].question.id)
        }
        chosen = [(*state.passages, best.get(state.question.id)) for state in states]
        return [list(filter(None, passages))[-k:] for passages in chosen]

    def _read(self, read: Sequence[tuple[State, Passage]]) -> list[Generation]:
        prompt, prompts = read[0][0].prompt, []
        for state, passage in read:
            shown = [p.text for p in (*state.passages, passage)]
            prompts.append(prompt.question(state.question.question, shown, partial=state.partial))
        return read[0][0].generate(
            prompts, max_new_tokens=[state.budget for state, _ in read], stop=prompt.ends,
            prefix=prompt.prefix, names=[state.question.id for state, _ in read],
        )  # fmt: skip


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
