"""Completions of which a share is known to a model, so that retrieving may harm as well as help.

A small model knows few of the entities that it is asked for, and then always retrieving wins whatever a
trigger says. Here all completions that the model writes right without passages are asked, with so many
others that they make up the wanted share; both are the same for every method, as they depend on model, set
and seed alone.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from ..checksums import Journal, draw_key
from ..data.cache import build_once
from ..data.questions.completion import Chosen, Completion
from ..evaluation.answers import exact_match, final_answer
from ..files import cache_folder, digest, write_text
from ..model.causal_lm import CausalLM
from ..model.language_model import Decoding, GenerationRequest
from ..types import Needs, Question, UserError
from .components import Component

log = logging.getLogger(__name__)

#: File of the verdicts, a record ``{"id", "right"}`` for each completion.
_VERDICTS = "right.jsonl"
#: Tokens of a continuation, and completions that are written to the file together.
_TOKENS, _TOGETHER = 16, 256


def known_share(source: Completion, seed: int = 0) -> Completion:
    """Choose the completions of a set of which ``source.known`` is known to the model ``source.known_to``.

    Args:
        seed: draws the others, and articles and entities where the source names no seed.

    Returns:
        The source that asks them.

    Raises:
        UserError: the model knows none of them, or there are too few others.
    """
    assert source.known is not None
    share = source.known
    source = source.seeded(seed)
    questions = [row.record for row in source.every_row() if isinstance(row.record, Question)]
    right = _right(source, questions)
    chosen = _chosen(questions, right, share, source.seed or 0)
    known = sum(right[question.id] for question in chosen)
    how = (
        f"The questions were selected by what {source.known_to} knows: all {known} of {len(questions):,} "
        f"completions that it writes right without passages, and {len(chosen) - known} others, drawn by seed "
        f"(questions.known={share})."
    )
    log.info("%s", how)
    if source.corpus_to is not None:
        written = [q for q in chosen if draw_key("own", source.seed or 0, q.id) < source.own_passages * 2**64]
        lines = [
            json.dumps({"id": p.id, "title": p.title, "text": p.text}, ensure_ascii=False)
            for question in written for p in question.passages
        ]  # fmt: skip
        write_text(Path(source.corpus_to), "".join(f"{line}\n" for line in lines))
        log.info("wrote the passages of %d of them to %s", len(written), source.corpus_to)
    values = {f.name: getattr(source, f.name) for f in fields(source)}
    return Chosen(**values, ids=frozenset(question.id for question in chosen), selected=how)


def _chosen(questions: Sequence[Question], right: dict[str, bool], share: float, seed: int) -> list[Question]:
    """Take all that is known, and others by a draw, so that the share holds in every split."""
    by_split: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_split[question.split].append(question)
    taken = set[str]()
    for split, of_split in by_split.items():
        known = [q.id for q in of_split if right[q.id]]
        others = sorted((q.id for q in of_split if not right[q.id]), key=lambda i: draw_key("other", seed, i))
        needed = round(len(known) * (1 - share) / share)
        if needed > len(others):
            message = f"questions.known={share} needs {needed} completions of the {split} split "
            raise UserError(f"{message}, and there are {len(others)}: give a larger share", "labels")
        taken |= {*known, *others[:needed]}
    if not any(right.values()):
        message = f"none of {len(questions)} completions is known to the model"
        raise UserError(f"{message}: give more articles, or another questions.known_to", "labels")
    return [question for question in questions if question.id in taken]


def _right(source: Completion, questions: Sequence[Question]) -> dict[str, bool]:
    """Answer all completions greedily without passages, once; tell of each id whether that is right."""
    content = repr((source.known_to, _TOKENS, _VERDICTS, [(q.id, q.question, q.answers) for q in questions]))
    folder = cache_folder("known") / digest(content)
    build_once(folder, "answers without passages", partial(_answer, source, questions), lambda: None)
    return {record["id"]: record["right"] for record in Journal(folder / _VERDICTS).read().records.values()}


def _answer(source: Completion, questions: Sequence[Question], folder: Path) -> dict[str, Any]:
    """Append the verdict of each question that the file has none of."""
    lm, journal = CausalLM.from_pretrained(source.known_to), Journal(folder / _VERDICTS)
    prompt = Component.of("prompt", source.prompt or "completion").make().bind(lm.tokenizer)
    done = {record["id"] for record in journal.resume()}
    left = [question for question in questions if question.id not in done]
    log.info("%s answers %d completions without passages, to see which it knows", source.known_to, len(left))
    requests = [GenerationRequest(prompt.question(q.question), _TOKENS, q.id) for q in left]
    for start in range(0, len(left), _TOGETHER):
        records = []
        some = slice(start, start + _TOGETHER)
        for batch in lm.generate_each(requests[some], Decoding(Needs(), prompt.prefix, prompt.ends)):
            for place, generation in batch.items():
                question = left[some][place]
                answer = final_answer(generation.text, prompt.answer_cue, question.dataset)
                records.append({"id": question.id, "right": bool(exact_match(answer, question.answers))})
        journal.append(records)
    return {"completions": len(questions)}
