"""The command ``probers-rag``: one question on the terminal, or many into a trace file."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from probers.checksums import inputs
from probers.cli.command_lines import command_line, for_reading, merge_line
from probers.cli.compose import key_value
from probers.cli.inputs import (
    ProberKind,
    find_classifier,
    find_prober,
    load_matcher,
    load_model,
    load_passages,
    prompt_files,
    question_source,
)
from probers.cli.merge import PartRuns
from probers.cli.runs import RunFolder
from probers.cli.settings import Answering
from probers.data.questions import QuestionSource, open_questions
from probers.evaluation.answers import exact_match
from probers.files import canonical_json, write_text
from probers.types import Decision, Passage, Question, Round, UserError, count

from .build import Contamination, for_engine, for_other, loop_options, remote, resumed, unsupported, with_bank
from .comparison.outcomes import Evaluation, Outcomes, table_lines
from .loop import RAG
from .protocol import Trigger, as_trigger, check_counts, filter_of
from .traces import Answer, TraceFile, join_traces, questions_of

if TYPE_CHECKING:
    from .settings import Rag

log = logging.getLogger(__name__)

_TRACES = "traces.jsonl"
_DISCARDED = 4  # words shown of a discarded text
_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Terminal:
    """Printer of a question's rounds as they happen, in colours on a terminal unless NO_COLOR is set.

    ``of`` is the source of the trigger's score: text, question, rule or chance. A rule's score is never
    printed, a question's only once. A trigger with ``before`` may retrieve before any text is written.
    """

    def __init__(
        self, trigger: str, out: TextIO | None = None, *, of: str = "text", before: bool = False
    ) -> None:
        self._trigger, self._of, self._before = trigger, of, before
        self._out = out or sys.stdout
        self._colours = self._out.isatty() and "NO_COLOR" not in os.environ
        self._shown = ""  # text shown of the running generation
        self._begun = False  # True once its first line has been started
        self._rounds = 0
        self._partial = False  # True if the running generation continues accepted text
        self._searched = False  # True once a query was sent
        self._judged = False  # True once a score was printed

    def text(self, question: Question, text: str) -> None:
        """Print the new text of the running generation; line ends wait until more follows."""
        ready = text.rstrip()
        if ready.startswith(self._shown) and len(ready) > len(self._shown):
            self._start(ready)
            self._write(_safe(ready[len(self._shown) :]))
            self._shown = ready

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """Finish the round's text and print decision, query and passages."""
        first = self._before and not self._rounds and not done.text and done.query is not None
        if done.text.strip() or (done.decision is not None and not first):
            self.text(question, done.text)
            self._start(done.text)
            self._write("\n")
        self._shown, self._begun = "", False
        if first:
            compared = "" if done.decision is None else self._compared(done.decision)
            self._line("red", f"▲ {self._trigger} fired before the text{compared}")
        elif done.decision is not None:
            self._line(*self._verdict(done, done.decision))
            if done.decision.position is not None and done.query is not None and done.accepted != done.text:
                self._line("dim", _kept(done))
        if done.query is not None:
            self._searched = True
            self._line("cyan", f"query: {done.query}")
            self._line("green" if passages else "yellow", _fetched(passages, left_out))
        anew = done.query is not None and (done.decision is None or done.decision.position is None)
        self._partial = bool(done.accepted.strip()) or (self._partial and not anew)

    def final(self, answer: Answer, gold: Sequence[str] = (), right: bool | None = None) -> None:
        """Print the final answer and the counters, and the whole text where parts of one were discarded."""
        if any(r.accepted.strip() and r.accepted.rstrip() != r.text.rstrip() for r in answer.rounds):
            self._write(f"{self._paint('bold', 'Text:')} {_safe(answer.text)}\n")
        self._write(f"{self._paint('bold', 'Answer:')} {_safe(answer.answer) or '(none)'}")
        if right is not None and not answer.abstained:
            mark = self._paint("green", "right") if right else self._paint("red", "wrong")
            self._write(f"  ({mark}; gold: {_safe(' or '.join(gold))})")
        c = answer.counters
        cut = f"{count(c.passages_cut, 'passage')} left out for want of room, " if c.passages_cut else ""
        read = f" written, {c.read_tokens:,} read" if c.read_known else ""
        calls = f"{count(c.retrievals, 'retrieval')}, {count(c.generations, 'generation')}"
        counts = f"{calls}, {cut}{count(c.tokens, 'token')}{read}, {c.seconds:.2f} s"
        self._write(f"\n{self._paint('dim', counts)}\n")

    def _verdict(self, done: Round, decision: Decision) -> tuple[str, str]:
        compared = self._compared(decision)
        if not decision.fire:
            again = " again" if self._searched and not compared else ""
            return "dim", f"{self._trigger} did not fire{again}{compared}"
        end = "" if done.query is not None else "; no retrieval is left"
        end = "; it abstains" if decision.abstain else end
        return "red", f"▲ {self._trigger} fired {_place(done, decision)}{compared}{end}"

    def _compared(self, decision: Decision) -> str:
        """Format score and threshold; empty if they say nothing new."""
        if self._of == "rule" or (self._of == "question" and self._judged):
            return ""
        self._judged = True
        return f": score {decision.score:.3g}, threshold {decision.threshold:.3g}"

    def _start(self, text: str) -> None:
        """Begin a round's line; three dots stand for the accepted text before it."""
        if not self._begun:
            self._rounds, self._begun = self._rounds + 1, True
            space = "" if text[:1].isspace() else " "
            self._write(self._paint("dim", f"[{self._rounds}]{' …' if self._partial else space}"))

    def _line(self, colour: str, text: str) -> None:
        self._write(f"    {self._paint(colour, text)}\n")

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{_CODES[colour]}m{_safe(text)}\x1b[0m" if self._colours else _safe(text)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _safe(text: str) -> str:
    """Remove control characters from a text: models and corpora must not steer the terminal."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _fetched(passages: Sequence[Passage], left_out: int) -> str:
    """Format the titles of the passages in the prompt, and the number of other passages found."""
    if not passages and left_out:
        return f"fetched: {count(left_out, 'passage')}, left out because none fits the model's context"
    titles = [(p.title or p.id) + ("" if p.score is None else f" ({p.score:.2f})") for p in passages]
    more = f"; {left_out} more left out for want of room" if left_out else ""
    return f"fetched: {'; '.join(titles) or 'nothing'}{more}"


def _kept(done: Round) -> str:
    """Format a round's kept text, and the beginning of its discarded text."""
    text, gone = done.accepted.strip(), done.text[len(done.accepted) :].split()
    first = " ".join(gone[:_DISCARDED]) + (" …" if len(gone) > _DISCARDED else "")
    discarded = f" | discarded: {first}" if gone else ""
    return f"kept: {text}{discarded}" if text else "kept: nothing of it"


def _place(done: Round, decision: Decision) -> str:
    """Describe where the trigger fired: the words of the tokens that fired, and the first one's position."""
    if decision.position is None:
        return "on the whole answer"
    spans: list[tuple[int, int]] = []
    for token in decision.tokens:
        start, end = _word(done.text, *done.tokens[token])
        if done.tokens[token][1] <= decision.position:  # a rule cuts after a token, even within a word
            end = min(end, decision.position)
        if spans and not done.text[spans[-1][1] : start].strip():  # the same or the next word
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    if not spans:
        return f"at character {decision.position}"
    words = " … ".join(done.text[slice(*span)] for span in spans)
    if decision.position >= spans[-1][1]:  # a rule fires after the words it names
        return f"after “{words}”, character {spans[-1][1]}"
    return f"at “{words}”, character {spans[0][0]}"


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    """Find the span of the words that a token belongs to, by white space."""
    start = end - len(text[start:end].lstrip())
    begun, rest = re.split(r"\s", text[:start])[-1], re.split(r"\s", text[end:], maxsplit=1)[0]
    return start - len(begun), end + len(rest)


def run(settings: Rag, parts: PartRuns | None = None) -> Path | None:
    """Answer the questions, or join the finished parts of a split run; return the folder written, if any."""
    one, part = settings.question is not None, settings.partition
    if settings.question is not None and not settings.question.strip():
        raise UserError("question is empty: write a question in words", "empty")
    if one and part is not None:
        message = f"part={part} splits many questions, but question= gives one: leave part out"
        raise UserError(message, "conflict")
    source, corpus = question_source(settings), load_passages(settings)
    trigger, trained = _trigger(settings)
    name, query, server = trigger.name, settings.query.make(), settings.engine if trigger.served else None
    contamination = Contamination.of(trained, allowed=settings.allow_overlap or one, server=server)
    questions, record = ([_known(settings, source)], {}) if one else _many(settings, source, contamination)
    for note in [*contamination.notes(questions), *trigger.notes(questions)]:
        log.info("%s", note)
    trigger.check_questions(questions)
    check_counts(trigger, settings.retriever.kind)
    files = inputs(*source.files, settings.searched, *prompt_files(settings), *trained)
    folder = None
    if settings.out is not None or not one:
        config = settings.record | {"inputs": files, "asked": record}
        out = Path(settings.out or f"runs/rag/{name}")
        folder = RunFolder(out if part is None else part.folder(out), "rag", config)
        if not (folder.begin() if parts is None else parts.begin(folder)):
            return folder.path
    what = "the question typed" if one else source.spec
    passages = f", {count(len(corpus), 'passage')}" if corpus else ""
    log.info("%s, corpus: %s%s", what, settings.searched, passages)
    if folder is not None and parts is not None:
        answers = join_traces(parts, questions, _TRACES, folder.path)
    else:
        lm = resumed(remote(settings), folder) or load_model(
            settings, folder, engine=settings.engine, adapter=trigger.adapter
        )
        rag = RAG(lm, settings.retriever.make(corpus), trigger, query, **loop_options(settings))
        answers = [_show(rag, questions[0])] if one else []
        if folder is None:
            return None
        if one:
            TraceFile(folder.path / _TRACES).rewrite(answers)
        else:
            answers = rag.run(questions_of(questions, part), folder.path / _TRACES, progress=name)
    if part is not None:
        folder.finish({"trigger": name, "n": len(answers), "part": settings.part})
        log.info("wrote %s of part %s to %s", count(len(answers), "trace"), part, folder.path / _TRACES)
        log.info("when every part is there: %s", merge_line(folder.path.parent))
    else:
        _write(settings, folder, trigger, source, questions, answers)
    return folder.path


def _trigger(settings: Rag) -> tuple[Trigger, list[str]]:
    """Make the trigger with its prober, classifier and matcher; also name the trained parts that it reads."""
    if why := unsupported(settings.engine, settings.trigger, settings.query):
        raise UserError(f"{why}: choose another, or engine=transformers", "unsupported")
    chosen = for_engine(settings.engine, settings.trigger)
    kind: ProberKind = getattr(chosen.kind, "prober", None) or "answers"
    parts = with_bank(
        chosen, bank=lambda: find_prober(settings, kind), classifier=lambda: find_classifier(settings)
    )
    takes_matcher = "matcher" in getattr(chosen.kind, "__dataclass_fields__", ())
    if chosen.get("wrong", "match") == "match" and takes_matcher:
        parts["matcher"] = load_matcher(settings)
    named = [parts.get(key, chosen.get(key)) for key in ("bank", "classifier")]
    other = for_other(named[0]) if settings.allow_other else {}
    trigger = as_trigger(chosen.make(**(parts | other)))
    if settings.prober is not None and "bank" not in parts:
        message = "note: prober=%s is not used: trigger=%s takes none, or was given another"
        log.info(message, settings.prober, trigger.name)
    return trigger, [str(part) for part in named if part is not None]


def _known(settings: Rag, source: QuestionSource) -> Question:
    """Return the typed question, with gold answers if it is one of ``settings.questions`` on this machine."""
    text = " ".join(str(settings.question).split())
    local, known = bool(source.files) or source.name == "testbed", list[Question]()
    if local:  # no download of a whole set for one question
        known = open_questions(source, seed=settings.seed, on_bad_line=settings.on_bad_line).questions
    question = next((q for q in known if q.question == text), Question("question", text))
    if not question.answers and any(typed.partition("=")[0] == "questions" for typed in settings._typed):
        among = f"it is not among them ({count(len(known), 'question')})"
        why = among if local else "it is not downloaded for one"
        log.info("note: questions=%s says nothing of this question: %s", source.name, why)
    return question


def _many(
    settings: Rag, source: QuestionSource, contamination: Contamination
) -> tuple[list[Question], dict[str, Any]]:
    """Return the questions to ask, and the record of how they were chosen."""
    # All questions of a set without splits are test questions, except those a prober was trained or tuned on.
    deal_splits = bool(contamination.silent) or settings.split not in ("test", None)
    chosen = open_questions(
        source, limit=settings.limit, split=settings.split, seed=settings.seed,
        on_bad_line=settings.on_bad_line, deal_splits=deal_splits, unfit=contamination.not_asked,
    )  # fmt: skip
    for line in chosen.lines():
        log.info("%s", line)
    if chosen.record["dealt"] and settings.split is not None:
        log.info(
            "%s names no splits: the %s questions are dealt by seed=%d, as probers-datagen deals them "
            "(split=null asks all)", source.spec, settings.split, settings.seed,
        )  # fmt: skip
    return chosen.questions, chosen.record


def _show(rag: RAG, question: Question) -> Answer:
    terminal = Terminal(rag.trigger.name, of=rag.trigger.decides_by, before=rag.trigger.before)
    print(f"\nQuestion: {question.question}", flush=True)
    answer = rag(question, terminal)
    right = bool(exact_match(answer.answer, question.answers)) if question.answers else None
    terminal.final(answer, question.answers, right)
    return answer


def _write(
    settings: Rag, folder: RunFolder, trigger: Trigger, source: QuestionSource,
    questions: Sequence[Question], answers: Sequence[Answer],
) -> None:  # fmt: skip
    """Write ``results.json`` with one method, and report the files."""
    name, filter = trigger.name, filter_of(trigger, settings.query.make())
    matcher = load_matcher(settings) if source.mentions else None
    entry = Evaluation(questions, None).figures(Outcomes(questions, answers, matcher=matcher))
    stages = {} if matcher is None else {"match_stages": list(matcher.active)}
    results = {"schema": 1, "config": dict(folder.config), "filter": filter, **stages, "n": len(questions)}
    results |= {"methods": {name: entry}, "pairs": {}}
    write_text(folder.path / "results.json", canonical_json(results))
    folder.finish({"trigger": name, "n": len(questions), "em": entry["em"]})
    if settings.question is None:
        log.info("%s", "\n".join(table_lines({name: entry})))
        if empty := sum(a.counters.empty_retrievals for a in answers):
            log.info("%s found nothing; those answers went on without passages", count(empty, "retrieval"))
        if cut := sum(a.counters.passages_cut for a in answers):
            log.info("%s left out for want of room in the model's context", count(cut, "passage"))
        if missing := sum(not q.answers for q in questions):
            log.info("%d of %d questions have no gold answer and count in no score", missing, len(questions))
    files = folder.path / _TRACES, folder.path / "results.json"
    log.info("wrote %s to %s, figures to %s", count(len(answers), "trace"), *files)
    shared = {field.name for field in fields(Answering)}
    typed = [o for o in for_reading(settings._typed) if key_value(o)[0].partition(".")[0] in shared]
    log.info("next: %s", command_line("compare", *typed))
