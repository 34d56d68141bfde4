"""Scores of finished texts: one pass of the model over each, pooling, judgement, domain and promise."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..checksums import Journal
from ..data.texts import Text, TextSource
from ..model.causal_lm import CausalLM
from ..model.language_model import ScoreRequest, Scoring
from ..model.tokens import encode_answer, without_end
from ..prompts import form_with
from ..types import Generation, UserError, count
from .assessment import Assessor, Bank, WrittenText
from .online.scores import check_growing, text_needs, text_scores
from .response import Response

log = logging.getLogger(__name__)


def prompt_of(prober: Bank, one: Text, tokenizer: Any, file: str = "") -> str:
    """Put a text's prompt, with passages in the form of the prober's training where that is a known one.

    ``file`` is its file, for messages.
    """
    return one.prompt_for(tokenizer, file or one.dataset, form_with(prober.spec.prompt))


def readable(source: TextSource, texts: Sequence[Text], prober: Bank, tokenizer: Any) -> list[Text]:
    """Return the texts that the model can write after their prompts, each without its end marker.

    Others are left out and noted in ``source``, or with its ``on_bad_line="error"`` a UserError.
    """
    written = []
    for one in texts:
        prompt, answer = prompt_of(prober, one, tokenizer, source.file), without_end(tokenizer, one.answer)
        try:
            encode_answer(tokenizer, prompt, answer, one.id)
            written.append(replace(one, answer=answer))
        except UserError as error:
            source.refuse(one.where, str(error))
    source.check_found(written)
    return written


def score_texts(
    lm: CausalLM, prober: Bank, texts: Sequence[Text], *, threshold: float | None = None,
    unit: str | None = None, journal: Journal | None = None,
) -> list[Response | None]:  # fmt: skip
    """Score answers that exist already, each after its prompt; None for one too long for the model's context.

    Args:
        lm: the model whose states the prober reads.
        prober: heads of tokens, or of pooled texts, sentences, claims or entities.
        texts: answers with their prompts, read by :class:`probers.data.texts.TextSource` or made by hand.
        threshold: a score in place of the prober's threshold.
        unit: what is judged by itself (:func:`.assessment.units_of`); None is the prober's own.
        journal: file of finished batches; a call with the same texts reads it and continues.

    Raises:
        UserError: a prober that cannot score whole texts or was trained on another model, a unit that it
            cannot judge, or an answer that no tokens of the model read as.
    """
    check_growing(prober, whole=True)
    prober.check_model(lm.spec)
    assess = Assessor(prober, threshold, unit)
    requests = [
        ScoreRequest(prompt_of(prober, one, lm.tokenizer), one.answer, f"of {one.where}") for one in texts
    ]
    responses = {} if journal is None else _resumed(journal, texts)
    before = lm.on_too_long
    lm.skip_too_long()
    try:
        for batch in lm.score_each(requests, Scoring(text_needs(prober)), known=responses):
            new = {place: _response(prober, assess, written) for place, written in batch.items()}
            if journal is not None:
                journal.append(_records(new, texts))
            responses |= new
    finally:
        lm.on_too_long = before
    if long := sum(each is None for each in responses.values()):
        log.info("%s left out, too long for the model's context", count(long, "text"))
    return [responses[place] for place in range(len(texts))]


def _response(prober: Bank, assess: Assessor, written: Generation) -> Response | None:
    if not written.token_ids:
        return None
    assert written.state is not None
    pieces = assess.pieces(written.prompt, written.text, written.offsets)
    scores = text_scores(prober, written.state, None if pieces is None else list(pieces.values()))
    return assess(WrittenText.of(written, *scores))


def _resumed(journal: Journal, texts: Sequence[Text]) -> dict[int, Response | None]:
    """Read the responses of an earlier call; texts whose line is damaged are read again."""
    responses: dict[int, Response | None] = {}
    if not journal.path.exists():
        return responses
    for record in journal.read().records.values():
        with suppress(LookupError, TypeError, ValueError):
            if record["id"] == texts[record["place"]].id:
                given = record["hallucination"]
                responses[record["place"]] = None if given is None else Response.model_validate(given)
    log.info("resuming: %s of %s are scored already", f"{len(responses):,}", count(len(texts), "text"))
    journal.rewrite(_records(responses, texts))
    return responses


def _records(responses: Mapping[int, Response | None], texts: Sequence[Text]) -> list[dict[str, Any]]:
    return [
        {"place": place, "id": texts[place].id, "hallucination": each and each.wire()}
        for place, each in responses.items()
    ]
