"""What the model writes in the loop: the continuation of every open question, and final answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from probers.known import Recent
from probers.types import Question

from .rounds import Listener, Open, Pass
from .triggers.base import LookAhead, look_ahead

if TYPE_CHECKING:
    from .loop import RAG


class Writer:
    """Writes for the questions of one call of :meth:`probers.rag.loop.RAG.answer`.

    What it has computed of a question it need not compute again where the question goes on
    from there (:class:`probers.known.Recent`).
    """

    def __init__(self, rag: RAG) -> None:
        self._rag = rag
        self._recent = Recent()

    def generate(self, active: Sequence[Open], listener: Listener | None) -> list[Pass]:
        """The continuation of every open question, each within what is left of its token limit."""
        rag = self._rag
        alike: dict[int | None, list[int]] = {}  # by what can end a text early
        aheads = [self._ahead(run) for run in active]
        for index, ahead in enumerate(aheads):
            alike.setdefault(None if ahead is None else ahead.sentences, []).append(index)
        passes: dict[int, Pass] = {}
        for indices in alike.values():
            first = aheads[indices[0]]
            over = None if first is None else first.over(rag.prompt.stop)
            stop: list[str | Callable[[str], bool]] = list(rag.prompt.stop)
            if over is not None:
                stop.append(over)
            if listener is not None and len(indices) == 1:
                stop.append(_tell(listener, active[indices[0]].question))
            budgets = [rag.max_new_tokens - active[i].partial_tokens for i in indices]
            limits = [
                budget if ahead is None else ahead.limit(budget, rag.prompt.stop)
                for budget, ahead in zip(budgets, (aheads[i] for i in indices), strict=True)
            ]
            made = rag.lm.generate(
                [active[i].prompt(rag.prompt, active[i].partial) for i in indices], max_new_tokens=limits,
                needs=rag.needs, stop=stop, prefix=rag.prompt.prefix,
                names=[active[i].question.id for i in indices], recent=self._recent, draft=rag.draft,
            )  # fmt: skip
            for i, budget, limit, generation in zip(indices, budgets, limits, made, strict=True):
                early = generation.stop == "length" and limit < budget
                early |= generation.stop == "stop" and over is not None and over(generation.text)
                passes[i] = Pass(active[i], generation, cut=early and len(generation.token_ids) < budget)
                active[i].counters.add(generation)
        return [passes[i] for i in range(len(active))]

    def _ahead(self, run: Open) -> LookAhead | None:
        """How much of the next text the trigger looks at; None where it cannot fire any more."""
        rag = self._rag
        if run.counters.retrievals >= rag.max_retrievals or getattr(rag.trigger, "judges_answer", False):
            return None
        return look_ahead(rag.trigger, run.question)

    def complete(self, passes: Sequence[Pass]) -> None:
        """Append the announcing words to texts that ended without an answer, and let the model go on."""
        rag = self._rag
        cue = rag.prompt.answer_cue
        short = [p for p in passes if cue.lower() not in p.text.lower() and rag.answer_tokens]
        if not short:
            return
        heads = [("" if p.text[-1:].isspace() else " ") + cue for p in short]
        prompts = [p.run.prompt(rag.prompt, p.text + head) for p, head in zip(short, heads, strict=True)]
        made = rag.lm.generate(
            prompts, max_new_tokens=rag.answer_tokens, stop=rag.prompt.stop, prefix=rag.prompt.prefix,
            names=[p.run.question.id for p in short], recent=self._recent, draft=rag.draft,
        )  # fmt: skip
        for each, head, generation in zip(short, heads, made, strict=True):
            each.run.counters.add(generation)
            each.run.counters.forced = True
            each.ending = head + generation.text


def _tell(listener: Listener, question: Question) -> Callable[[str], bool]:
    def watch(text: str) -> bool:
        listener.text(question, text)
        return False

    return watch
