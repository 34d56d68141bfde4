"""The command ``probers-rag``: one question on the terminal, or many into a trace file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from omegaconf import DictConfig

from probers.checksums import inputs
from probers.commands.artifacts import find_classifier, find_prober
from probers.commands.merge import PartRuns, part_of
from probers.commands.parts import (
    build,
    load_matcher,
    load_model,
    load_passages,
    prompt_files,
    question_source,
    record_of,
)
from probers.commands.runs import RunFolder
from probers.data.questions import QuestionSource, open_questions
from probers.evaluation.metrics import exact_match
from probers.files import canonical_json, write_text
from probers.types import Decision, Passage, Question, Round, UserError

from .answered_parts import join_traces, own
from .build import (
    for_engine,
    for_other,
    loop_options,
    prober_kind,
    remote,
    unserved,
    with_bank,
)
from .compare.outcomes import Comparison, Outcomes, table_lines
from .contamination import Contamination
from .loop import RAG
from .protocol import as_trigger, filter_of
from .traces import Answer, TraceFile

_TRACES = "traces.jsonl"
_DISCARDED = 4  # words shown of a text that is discarded
_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Terminal:
    """Prints a question's rounds as they happen.

    Args:
        trigger: what to call the trigger.
        out: where to print; colours only if it is a terminal and NO_COLOR is not set.
        of: what its score is of. That of a rule says nothing, and is not printed; that of a
            question is printed once.
        before: it may retrieve before anything is written.
    """

    def __init__(
        self,
        trigger: str,
        out: TextIO | None = None,
        *,
        of: Literal["text", "question", "rule", "chance"] = "text",
        before: bool = False,
    ) -> None:
        self._trigger, self._of, self._before = trigger, of, before
        self._out = out or sys.stdout
        self._colours = self._out.isatty() and "NO_COLOR" not in os.environ
        self._shown = ""  # of the running generation
        self._begun = False  # whether its first line has been started
        self._rounds = 0
        self._partial = False  # whether the running generation goes on from accepted text
        self._searched = False  # whether anything was asked for
        self._judged = False  # whether a score was printed

    def text(self, question: Question, text: str) -> None:
        """Print what the running generation has gained; ends of lines wait until more follows."""
        ready = text.rstrip()
        if ready.startswith(self._shown) and len(ready) > len(self._shown):
            self._start(ready)
            self._write(_safe(ready[len(self._shown) :]))
            self._shown = ready

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """Finish the round's text and print what was decided, asked and fetched."""
        first = self._before and not self._rounds and not done.text and done.query is not None
        if done.text.strip() or (done.decision is not None and not first):
            self.text(question, done.text)
            self._start(done.text)
            self._write("\n")
        self._shown, self._begun = "", False
        if first:
            compared = "" if done.decision is None else self._compared(done.decision)
            self._line(self._paint("red", f"▲ {self._trigger} fired before the text{compared}"))
        elif done.decision is not None:
            self._line(self._verdict(done, done.decision))
            if done.decision.position is not None and done.query is not None and done.accepted != done.text:
                self._line(self._paint("dim", _kept(done)))
        if done.query is not None:
            self._searched = True
            self._line(self._paint("cyan", f"query: {done.query}"))
            self._line(self._paint("green" if passages else "yellow", _fetched(passages, left_out)))
        anew = done.query is not None and (done.decision is None or done.decision.position is None)
        self._partial = bool(done.accepted.strip()) or (self._partial and not anew)

    def final(self, answer: Answer, gold: Sequence[str] = (), right: bool | None = None) -> None:
        """Print the final answer and the counters, and the whole text where parts of one were discarded."""
        if any(r.accepted.strip() and r.accepted.rstrip() != r.text.rstrip() for r in answer.rounds):
            self._write(f"{self._paint('bold', 'Text:')} {_safe(answer.text)}\n")
        self._write(f"{self._paint('bold', 'Answer:')} {_safe(answer.answer) or '(none)'}")
        if right is not None:
            mark = self._paint("green", "right") if right else self._paint("red", "wrong")
            self._write(f"  ({mark}; gold: {_safe(' or '.join(gold))})")
        c = answer.counters
        counts = f"{counted(c.retrievals, 'retrieval')}, {counted(c.generations, 'generation')}, "
        if c.passages_cut:
            counts += f"{counted(c.passages_cut, 'passage')} left out for want of room, "
        self._write(
            "\n" + self._paint("dim", f"{counts}{counted(c.tokens, 'token')}, {c.seconds:.2f} s") + "\n"
        )

    def _verdict(self, done: Round, decision: Decision) -> str:
        compared = self._compared(decision)
        if not decision.fire:
            again = " again" if self._searched and not compared else ""
            return self._paint("dim", f"{self._trigger} did not fire{again}{compared}")
        end = "" if done.query is not None else "; no retrieval is left"
        return self._paint("red", f"▲ {self._trigger} fired {_place(done, decision)}{compared}{end}")

    def _compared(self, decision: Decision) -> str:
        """Score and threshold, where they say something that was not said yet."""
        if self._of == "rule" or (self._of == "question" and self._judged):
            return ""
        self._judged = True
        return f": score {decision.score:.3g}, threshold {decision.threshold:.3g}"

    def _start(self, text: str) -> None:
        """Begin a round's line; three dots stand for the accepted text that it goes on from."""
        if not self._begun:
            self._rounds += 1
            space = "" if text[:1].isspace() else " "
            mark = f"[{self._rounds}]" + (" …" if self._partial else space)
            self._write(self._paint("dim", mark))
            self._begun = True

    def _line(self, text: str) -> None:
        self._write(f"    {text}\n")

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{_CODES[colour]}m{_safe(text)}\x1b[0m" if self._colours else _safe(text)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _safe(text: str) -> str:
    """Text without control characters: what a model or corpus wrote must not steer the terminal."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def counted(n: int, noun: str) -> str:
    """``1 passage``, ``2 passages``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _fetched(passages: Sequence[Passage], left_out: int) -> str:
    """Titles of the passages that are shown, and how many more were found."""
    if not passages and left_out:
        return f"fetched: {counted(left_out, 'passage')}, left out because none fits the model's context"
    titles = [(p.title or p.id) + ("" if p.score is None else f" ({p.score:.2f})") for p in passages] or [
        "nothing"
    ]
    more = f"; {left_out} more left out for want of room" if left_out else ""
    return f"fetched: {'; '.join(titles)}{more}"


def _kept(done: Round) -> str:
    """What stays of a round's text, and how what goes begins."""
    kept, gone = done.accepted.strip(), done.text[len(done.accepted) :].split()
    first = " ".join(gone[:_DISCARDED]) + (" …" if len(gone) > _DISCARDED else "")
    discarded = f" | discarded: {first}" if gone else ""
    return f"kept: {kept}{discarded}" if kept else "kept: nothing of it"


def _place(done: Round, decision: Decision) -> str:
    """Where in the text it fired: the words of the tokens that did, and the first's place."""
    if decision.position is None:
        return "on the whole answer"
    spans: list[tuple[int, int]] = []
    for token in decision.tokens:
        start, end = _word(done.text, *done.tokens[token])
        if done.tokens[token][1] <= decision.position:  # a rule cuts behind a token, be it within a word
            end = min(end, decision.position)
        if spans and not done.text[spans[-1][1] : start].strip():  # the same word, or its neighbour
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    if not spans:
        return f"at character {decision.position}"
    words = " … ".join(done.text[slice(*span)] for span in spans)
    # A rule fires behind what it names, everything else at its beginning or before.
    where = "after" if decision.position >= spans[-1][1] else "at"
    return f"{where} “{words}”, character {spans[0][0] if where == 'at' else spans[-1][1]}"


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    """The word or words that a token belongs to, by white space."""
    while start < end and text[start].isspace():
        start += 1
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


def run(cfg: DictConfig, parts: PartRuns | None = None) -> Path | None:
    """Answer ``cfg.question`` or ``cfg.questions``; returns the folder written, if any.

    Args:
        cfg: the request.
        parts: the whole run is made of these, which have answered every question.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    if cfg.question is not None and not str(cfg.question).strip():
        raise UserError("question is empty: write a question in words")
    one, part = cfg.question is not None, part_of(cfg)
    if one and part is not None:
        raise UserError(f"part={part} is of many questions, and question= gives one: leave part out")
    asked = question_source(cfg)
    corpus = load_passages(cfg)
    if why := unserved(cfg.engine, cfg.trigger, cfg.query):
        raise UserError(f"{why}: choose another, or engine=transformers")
    node = for_engine(cfg.engine, cfg.trigger)
    given = with_bank(node, lambda: find_prober(cfg, prober_kind(node)), lambda: find_classifier(cfg))
    if node.get("wrong") == "match" and "matcher" in node:
        given["matcher"] = load_matcher(cfg)
    chosen = [given.get(key, node.get(key)) for key in ("bank", "classifier")]
    trained = [str(part) for part in chosen if part is not None]
    other = for_other(chosen[0]) if cfg.allow_other else {}
    trigger = as_trigger(build(node, **(given | other)))
    name = trigger.name
    if cfg.prober is not None and "bank" not in given:
        print(f"note: prober={cfg.prober} is not used: trigger={name} takes none, or was given another")
    contamination = Contamination.of(trained, allowed=cfg.allow_overlap or one)
    if trigger.served:
        contamination = contamination.beside(f"the prober of {cfg.engine}")
    questions, record = ([_known(cfg, asked)], {}) if one else _many(cfg, asked, contamination)
    for note in contamination.notes(questions):
        print(note)
    trigger.check_questions(questions)
    out = cfg.out if cfg.out is not None else (None if one else f"runs/rag/{name}")
    read = inputs(*asked.files, cfg.corpus, *prompt_files(cfg), *trained)
    config = record_of(cfg) | {"inputs": read, "asked": record}
    place = None if out is None else Path(out) if part is None else part.folder(Path(out))
    folder = None if place is None else RunFolder(place, "rag", config)
    if folder is not None and not (folder.begin() if parts is None else parts.begin(folder)):
        return folder.path
    what = "the question typed" if one else asked.spec
    print(f"{what}, corpus: {cfg.corpus}, {counted(len(corpus), 'passage')}")
    query = build(cfg.query)
    if folder is not None and parts is not None:
        answers = join_traces(parts, questions, _TRACES, folder.path)
        _write(cfg, folder, name, filter_of(trigger, query), asked, questions, answers)
        return folder.path
    lm = remote(cfg, folder) or load_model(cfg, folder, engine=cfg.engine)
    retriever = build(cfg.retriever, corpus)
    rag = RAG(lm, retriever, trigger, query, **loop_options(cfg))
    answers = [_show(rag, questions[0])] if one else []
    if folder is None:
        return None
    traces = folder.path / _TRACES
    if one:
        traces.unlink(missing_ok=True)
        TraceFile(traces).append(answers)
    else:
        answers = rag.run(own(questions, part), traces, progress=name)
    if part is not None:
        folder.finish({"trigger": name, "n": len(answers), "part": cfg.part})
        print(f"wrote {counted(len(answers), 'trace')} of part {part} to {traces}")
        print(f"when every part is there: probers-merge {folder.path.parent}/*")
        return folder.path
    _write(cfg, folder, name, rag.filter, asked, questions, answers)
    return folder.path


def _known(cfg: DictConfig, asked: QuestionSource) -> Question:
    """The typed question; with its gold answers if it is one of ``cfg.questions`` on this machine."""
    text = " ".join(str(cfg.question).split())
    if not asked.files and asked.name != "testbed":  # a whole set is not fetched for one question
        return Question("question", text)
    known = open_questions(asked, seed=cfg.seed, on_bad_line=cfg.on_bad_line).questions
    return next((q for q in known if q.question == text), Question("question", text))


def _many(
    cfg: DictConfig, asked: QuestionSource, contamination: Contamination
) -> tuple[list[Question], dict[str, Any]]:
    """The questions asked for, and the record of how they were chosen.

    A set that names no splits is all test questions, but for those that a part was trained or tuned on.
    """
    found = open_questions(
        asked, limit=cfg.limit, split=cfg.split, seed=cfg.seed, on_bad_line=cfg.on_bad_line,
        deal_splits=bool(contamination.silent) or cfg.split not in ("test", None),
        unfit=contamination.not_asked,
    )  # fmt: skip
    for line in found.lines():
        print(line)
    if found.record["dealt"] and cfg.split is not None:
        print(
            f"{asked.spec} names no splits: the {cfg.split} questions are dealt by seed={cfg.seed}, as "
            "probers-datagen deals them (split=null asks all)"
        )
    return found.questions, found.record


def _show(rag: RAG, question: Question) -> Answer:
    trigger = rag.trigger
    terminal = Terminal(trigger.name, of=trigger.decides_by, before=trigger.before)
    print(f"\nQuestion: {question.question}", flush=True)
    answer = rag(question, terminal)
    right = bool(exact_match(answer.answer, question.answers)) if question.answers else None
    terminal.final(answer, question.answers, right)
    return answer


def _write(
    cfg: DictConfig,
    folder: RunFolder,
    name: str,
    filter: str | None,
    asked: QuestionSource,
    questions: Sequence[Question],
    answers: Sequence[Answer],
) -> None:
    """``results.json`` with one method, and what was written where."""
    matcher = load_matcher(cfg) if asked.mentions else None
    entry = Comparison(questions, None).figures(Outcomes(questions, answers, matcher=matcher))
    config = dict(folder.config)
    results = {
        "schema": 1,
        "config": config,
        "filter": filter,
        **({} if matcher is None else {"match_stages": list(matcher.active)}),
        "n": len(questions),
        "methods": {name: entry},
        "pairs": {},
    }
    write_text(folder.path / "results.json", canonical_json(results))
    folder.finish({"trigger": name, "n": len(questions), "em": entry["em"]})
    if config["question"] is None:
        print(*table_lines({name: entry}), sep="\n")
        if empty := sum(a.counters.empty_retrievals for a in answers):
            print(f"{counted(empty, 'retrieval')} found nothing; those answers went on without passages")
        if cut := sum(a.counters.passages_cut for a in answers):
            print(f"{counted(cut, 'passage')} left out for want of room in the model's context")
        if missing := sum(not q.answers for q in questions):
            print(f"{missing} of {len(questions)} questions have no gold answer and count in no score")
    traces, figures = folder.path / _TRACES, folder.path / "results.json"
    print(f"wrote {counted(len(answers), 'trace')} to {traces}, figures to {figures}")
    print("next: probers-compare" + ("" if asked.name == "testbed" else f" {asked.typed}"))
