"""A question on its way through the loop, and one pass of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, Passage, Question, Round

from .traces import Counters


class Listener(Protocol):
    """Told what happens while questions are answered; the terminal's view of the loop."""

    def text(self, question: Question, text: str) -> None:
        """The text of the running generation has grown to ``text``."""

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """A round is over.

        Args:
            question: whose round it was.
            done: what was written, decided and asked.
            passages: those that were fetched and are shown from now on.
            left_out: how many more were found, for which the context has no room.
        """


@dataclass(slots=True)
class Open:
    """A question that is being answered.

    Attributes:
        partial: answer text accepted so far; the next prompt ends with it.
        partial_tokens: how many generated tokens that is.
        passages: what the next prompt shows.
        fresh: they were fetched for the place where ``partial`` ends.
    """

    question: Question
    partial: str = ""
    partial_tokens: int = 0
    passages: tuple[Passage, ...] = ()
    fresh: bool = False
    rounds: list[Round] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    _told: int = field(default=0, init=False, repr=False)  # of counters.passages_cut

    @property
    def passage_ids(self) -> tuple[str, ...]:
        return tuple(p.id for p in self.passages)

    def prompt(self, template: PromptTemplate, partial: str) -> str:
        """The prompt with the passages at hand, ending with ``partial`` of the answer."""
        return template.question(self.question.question, [p.text for p in self.passages], partial=partial)

    def record(self, done: Round, listener: Listener | None) -> None:
        """Add a round to the trace and tell the listener."""
        self.rounds.append(done)
        left_out = self.counters.passages_cut - self._told
        self._told = self.counters.passages_cut
        if listener is not None:
            passages = self.passages if done.query is not None else ()
            listener.round(self.question, done, passages, left_out)


@dataclass(slots=True)
class Pass:
    """What came of one question in one round.

    Attributes:
        ending: announcing words and final answer that had to be appended, or "".
        query: what was asked; None when nothing was retrieved.
        cut: the text was ended where the trigger had seen enough, and would have gone on.
    """

    run: Open
    generation: Generation
    decision: Decision | None = None
    ending: str = ""
    query: str | None = None
    cut: bool = False

    @property
    def text(self) -> str:
        """The answer if this pass is accepted, without ``ending``."""
        return self.run.partial + self.generation.text

    @property
    def kept(self) -> str:
        """The part of the generation that stays when the trigger fires: what is before the hit."""
        if self.decision is None or self.decision.position is None:
            return ""
        # A trailing space would keep the next word from being tokenised together with its own.
        return self.generation.text[: self.decision.position].rstrip()

    @property
    def next_partial(self) -> str:
        """The accepted text when the trigger fires; nothing when the whole answer is discarded."""
        whole = self.decision is None or self.decision.position is None
        return "" if whole else self.run.partial + self.kept

    @property
    def next_tokens(self) -> int:
        """Generated tokens in :attr:`next_partial`."""
        if self.decision is None or self.decision.position is None:
            return 0
        return self.run.partial_tokens + sum(a < len(self.kept) for a, _ in self.generation.offsets)

    def accept(self, listener: Listener | None) -> None:
        """The text stays as it is and the question is answered."""
        self._record(self.generation.text, listener)
        if self.ending:
            self.run.record(Round(self.ending, None, None, (), self.ending), listener)
        self.run.partial = self.text + self.ending

    def extend(self, listener: Listener | None) -> None:
        """The text stays as it is, and the question goes on from its end."""
        accepted = self.generation.text.rstrip()
        self._record(accepted, listener)
        self.run.partial += accepted
        self.run.partial_tokens += len(self.generation.token_ids)
        self.run.fresh = False

    def truncate(self, listener: Listener | None) -> None:
        """The text before the hit stays, and the question goes on from there."""
        assert self.decision is not None
        self._record(self.kept, listener)
        self.run.partial, self.run.partial_tokens = self.next_partial, self.next_tokens
        self.run.fresh = self.decision.position is not None

    def _record(self, accepted: str, listener: Listener | None) -> None:
        generation = self.generation
        ids = () if self.query is None else self.run.passage_ids
        done = Round(generation.text, self.decision, self.query, ids, accepted, generation.offsets)
        self.run.record(done, listener)
