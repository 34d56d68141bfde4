"""The command ``probers-rag``: one question on the terminal, or many into a trace file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from probers.files import write_text
from probers.metrics import exact_match
from probers.parts import build, inputs, load_model, load_passages, plain
from probers.questions import QuestionSource, open_questions
from probers.runs import RunFolder, canonical_json
from probers.types import Question, UserError

from .figures import Comparison, Outcomes, table_lines
from .loop import RAG
from .parts import find_classifier, find_prober, prober_kind, with_bank
from .terminal import Terminal, counted
from .traces import Answer, TraceFile
from .triggers import Always, FixedLength, FixedSentence, Never
from .triggers.base import check_questions, name_of

#: Triggers that follow a rule: their scores say nothing.
_RULES = (Always, FixedLength, FixedSentence, Never)


def run(cfg: DictConfig) -> Path | None:
    """Answer ``cfg.question`` or ``cfg.questions``; returns the folder written, if any.

    Raises:
        UserError: before any model runs, for whatever is wrong with the request.
    """
    if cfg.question is not None and not str(cfg.question).strip():
        raise UserError("question is empty: write a question in words")
    one = cfg.question is not None
    asked = build(cfg.questions)
    questions, record = ([_known(cfg, asked)], {}) if one else _many(cfg, asked)
    corpus = load_passages(cfg)
    trained = [str(cfg.trigger[k]) for k in ("bank", "classifier") if cfg.trigger.get(k) is not None]

    def read(found: str) -> str:
        trained.append(found)
        return found

    given = with_bank(
        cfg.trigger,
        lambda: read(find_prober(cfg, prober_kind(cfg.trigger))),
        lambda: read(find_classifier(cfg)),
    )
    trigger = build(cfg.trigger, **given)
    name = name_of(trigger)
    if cfg.prober is not None and "bank" not in given:
        print(f"note: prober={cfg.prober} is not used: trigger={name} takes none, or was given another")
    check_questions(trigger, questions)
    out = cfg.out if cfg.out is not None else (None if one else f"runs/rag/{name}")
    config = plain(cfg) | {"inputs": inputs(*asked.files, cfg.corpus, *trained), "asked": record}
    folder = None if out is None else RunFolder(Path(out), "rag", config)
    if folder is not None and not folder.begin(overwrite=cfg.overwrite):
        return folder.path
    what = "the question typed" if one else asked.spec
    print(f"{what}, corpus: {cfg.corpus}, {counted(len(corpus), 'passage')}")
    rag = RAG(
        load_model(cfg),
        build(cfg.retriever, corpus),
        trigger,
        query=build(cfg.query),
        prompt=build(cfg.prompt),
        k=cfg.k,
        max_new_tokens=cfg.max_new_tokens,
        max_retrievals=cfg.max_retrievals,
        answer_tokens=cfg.answer_tokens,
        draft=cfg.draft,
    )
    if one:
        answers = [_show(rag, questions[0])]
        if folder is not None:
            (folder.path / "traces.jsonl").unlink(missing_ok=True)
            TraceFile(folder.path / "traces.jsonl").append(answers)
    else:
        assert folder is not None
        answers = rag.run(questions, folder.path / "traces.jsonl", progress=name)
    if folder is not None:
        _write(folder, name, asked, questions, answers)
        return folder.path
    return None


def _known(cfg: DictConfig, asked: QuestionSource) -> Question:
    """The typed question; with its gold answers if it is one of ``cfg.questions`` on this machine."""
    text = " ".join(str(cfg.question).split())
    if not asked.files and asked.name != "testbed":  # a whole set is not fetched for one question
        return Question("question", text)
    known = open_questions(asked, seed=cfg.seed, on_bad_line=cfg.on_bad_line).questions
    return next((q for q in known if q.question == text), Question("question", text))


def _many(cfg: DictConfig, asked: QuestionSource) -> tuple[list[Question], dict[str, Any]]:
    """The questions asked for, and the record of how they were chosen."""
    found = open_questions(
        asked, limit=cfg.limit, split=cfg.split, seed=cfg.seed, on_bad_line=cfg.on_bad_line
    )
    for line in found.lines():
        print(line)
    return found.questions, found.record


def _show(rag: RAG, question: Question) -> Answer:
    trigger = rag.trigger
    of_question = hasattr(trigger, "decide_before")
    terminal = Terminal(
        name_of(trigger),
        of="question" if of_question else "rule" if isinstance(trigger, _RULES) else "text",
        before=of_question or bool(getattr(trigger, "before", False)),
    )
    print(f"\nQuestion: {question.question}", flush=True)
    answer = rag(question, terminal)
    right = bool(exact_match(answer.answer, question.answers)) if question.answers else None
    terminal.final(answer, question.answers, right)
    return answer


def _write(
    folder: RunFolder,
    name: str,
    asked: QuestionSource,
    questions: Sequence[Question],
    answers: Sequence[Answer],
) -> None:
    """``results.json`` with one method, and what was written where."""
    entry = Comparison(questions, None).figures(Outcomes(questions, answers))
    config = dict(folder.config)
    results = {"schema": 1, "config": config, "n": len(questions), "methods": {name: entry}, "pairs": {}}
    write_text(folder.path / "results.json", canonical_json(results))
    folder.finish({"trigger": name, "n": len(questions), "em": entry["em"]})
    if config["question"] is None:
        print(*table_lines({name: entry}), sep="\n")
        empty = sum(a.counters.empty_retrievals for a in answers)
        if empty:
            print(f"{counted(empty, 'retrieval')} found nothing; those answers went on without passages")
        cut = sum(a.counters.passages_cut for a in answers)
        if cut:
            print(f"{counted(cut, 'passage')} left out for want of room in the model's context")
        missing = sum(not q.answers for q in questions)
        if missing:
            print(f"{missing} of {len(questions)} questions have no gold answer and count in no score")
    traces, figures = folder.path / "traces.jsonl", folder.path / "results.json"
    print(f"wrote {counted(len(answers), 'trace')} to {traces}, figures to {figures}")
    print("next: probers-compare" + ("" if asked.name == "testbed" else f" {asked.typed}"))
