"""Scores of texts: those that exist already, read in one pass, and those that a model writes.

A text that is written can be acted on where its score is above the threshold (:class:`Action`).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from ..checksums import Journal
from ..data.rows import unread_fields
from ..data.texts import Text, TextSource
from ..model.causal_lm import CausalLM
from ..model.language_model import Decoding, Sampling, ScoreRequest, Scoring
from ..model.passages import request
from ..model.tokens import encode_answer, without_end
from ..options import refuse_unknown, shown
from ..prompts import chat_text, form_with, turn_ends
from ..signals.grounding import ground
from ..types import EndToken, Generation, UserError, count
from ..words.text import tokenize
from .assessment import Assessor, WrittenText
from .response import Acted, Response, Scored, ScoredSpan, ScoredTexts
from .token_scores import Scorer, check_growing, reads_passages, text_needs, text_scores

log = logging.getLogger(__name__)


def readable(source: TextSource, texts: Sequence[Text], prober: Scorer, tokenizer: Any) -> list[Text]:
    """Return the texts that the model can write after their prompts, each without its end marker.

    Others are left out and noted in ``source``, or with its ``on_bad_line="error"`` a UserError.
    """
    written, form = [], form_with(prober.spec.prompt)
    for one in texts:
        prompt = one.prompt_for(tokenizer, source.file or one.dataset, form)
        answer = without_end(tokenizer, one.answer)
        try:
            encode_answer(tokenizer, prompt, answer, one.id)
            written.append(replace(one, answer=answer))
        except UserError as error:
            source.left_out.refuse(one.where, str(error))
    source.check_found(written)
    names = dict.fromkeys(name for one in written for name in one.record)
    reads = prober.spec.needs.of_passages and not any(one.passages or one.passages_at for one in written)
    fields = ["passages"] * reads + ["prompt"] * (not any(one.messages for one in written))
    if hint := unread_fields(fields, names):
        log.warning(hint)
    return written


def score_texts(
    lm: CausalLM, prober: Scorer, texts: Sequence[Text], *, threshold: float | None = None,
    unit: str | None = None, journal: Journal | None = None,
) -> list[Response | None]:  # fmt: skip
    """Score answers that exist already, each after its prompt; None for one too long for the model's context.

    Args:
        texts: answers with their prompts, read by :class:`probers.data.texts.TextSource` or made by hand.
        threshold: a score in place of the prober's threshold.
        unit: what is judged by itself (:func:`.assessment.units_of`); None is the prober's own.
        journal: file of finished batches; a call with the same texts reads it and continues.

    UserError for a prober that cannot score whole texts or was trained on another model, a unit that it
    cannot judge, or an answer that no tokens of the model read as.
    """
    check_growing(prober, whole=True)
    prober.check_model(lm.spec)
    assess = Assessor(prober, threshold, unit)
    needs, form = text_needs(prober), form_with(prober.spec.prompt)
    requests = [request(lm, one, form, one.dataset, needs) for one in texts]
    responses = {} if journal is None else _resumed(journal, texts)
    before = lm.on_too_long
    lm.skip_too_long()
    try:
        for new in assessed_each(lm, assess, requests, known=responses):
            if journal is not None:
                journal.append(_records(new, texts))
            responses |= new
    finally:
        lm.on_too_long = before
    if long := sum(each is None for each in responses.values()):
        log.info("%s left out, too long for the model's context", count(long, "text"))
    return [responses[place] for place in range(len(texts))]


def score_rows(lm: CausalLM, prober: Scorer, source: TextSource, **how: Any) -> ScoredTexts:
    """Read texts of a source, log what was left out, and score them (:func:`score_texts`)."""
    texts = readable(source, list(source.all()), prober, lm.tokenizer)
    for line in source.lines():
        log.warning(line)
    scored, form = [], form_with(prober.spec.prompt)
    for one, response in zip(texts, score_texts(lm, prober, texts, **how), strict=True):
        shown = len(one.passages) - len(response.left_out if response else ())
        prompt = one.prompt_for(lm.tokenizer, one.dataset, form, most=shown)
        scored.append(Scored(one.id, prompt, one.answer, response))
    return ScoredTexts(scored)


def assessed_each(
    lm: CausalLM, assess: Assessor, requests: Sequence[ScoreRequest], *, known: Container[int] = ()
) -> Iterator[dict[int, Response | None]]:
    """Read texts and assess them; yield responses by place, batch by batch, None for one too long."""
    for batch in lm.score_each(requests, Scoring(text_needs(assess.bank)), known=known):
        each = ((i, made, requests[i]) for i, made in batch.items())
        yield {i: _assessed(assess, made, reading) if made.token_ids else None for i, made, reading in each}


def _assessed(assess: Assessor, written: Generation, reading: ScoreRequest) -> Response:
    """Assess a text that was read, and ground it in its passages if the prober reads these."""
    more = {"left_out": reading.left_out} if reading.left_out else {}
    if reads_passages(assess.bank) and (reading.passages is None or not tokenize(written.text)):
        why = "the prompt shows no passage" if reading.passages is None else "the answer has no word"
        empty = assess(WrittenText(written.prompt, ""))
        return empty.model_copy(update={"grounds": (), "not_scored": why, **more})
    response, pointer = assess(_scored(assess, written)).model_copy(update=more), assess.bank.pointer
    if pointer is None or reading.passages is None:
        return response
    spans = {(span.start, span.end): span.score <= assess.threshold for span in response.spans}
    return response.model_copy(update={"grounds": ground(pointer, written, reading.passages, spans)})


def _scored(assess: Assessor, written: Generation) -> WrittenText:
    """Score the tokens of a text, read or written with the states of :func:`text_needs`."""
    if not written.token_ids:
        return WrittenText(written.prompt, written.text)
    assert written.state is not None
    pieces = assess.pieces(written.prompt, written.text, written.offsets)
    scores = text_scores(assess.bank, written.state, None if pieces is None else list(pieces.values()))
    return WrittenText.of(written, *scores)


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
        {"place": place, "id": texts[place].id, "hallucination": response and response.wire()}
        for place, response in responses.items()
    ]


#: What is done with a text whose score is above the threshold.
OnHigh = Literal["warn", "stop", "abstain", "retry"]


@dataclass(frozen=True, slots=True)
class Action:
    """Treatment of a text whose score is above the threshold.

    Attributes:
        on_high: "warn" changes nothing; "stop" ends the text before its first such part, where whole answers
            are judged at the first token from which the text so far is above; "abstain" replaces it by a
            sentence; "retry" draws again and takes the text with the lowest score.
        draws: most texts that "retry" draws for a prompt.
        temperature, seed: of these draws.
        abstention: the sentence of "abstain".
    """

    on_high: OnHigh = "warn"
    draws: int = 3
    temperature: float = 0.7
    seed: int = 0
    abstention: str = "I am not sure."

    def __post_init__(self) -> None:
        if self.on_high not in get_args(OnHigh):
            choices = ", ".join(get_args(OnHigh))
            raise UserError(f"on_high={self.on_high} is unknown: choose {choices}", "unknown-choice")
        if self.draws < 1:
            raise UserError(f"draws={self.draws} must be at least 1")


#: A prompt, and what ends an answer to it besides the model's end tokens and the user's stops.
_Asked: TypeAlias = tuple[str, tuple[str | EndToken, ...]]


class JudgedWriter:
    """Writer whose texts a prober judges, by ``threshold`` and ``unit`` in place of its own."""

    def __init__(
        self, lm: CausalLM, prober: Scorer, action: Action, threshold: float | None, unit: str | None
    ) -> None:
        check_growing(prober, whole=True)
        prober.check_model(lm.spec)
        self._lm, self._action = lm, action
        self._assess = Assessor(prober, threshold, unit)

    def __call__(self, prompts: Any, max_new_tokens: int, **how: Any) -> Scored | ScoredTexts:
        """Continue a text or answer a chat, or several; ``how`` is of :class:`.language_model.Decoding`."""
        if hasattr(prompts, "columns") or not isinstance(prompts, Iterable) or isinstance(prompts, Mapping):
            fix = "give a text, or a list of texts, as list(rows['prompt'])"
            raise UserError(f"prompts are of the kind {type(prompts).__name__}: {fix}")
        known = ["max_new_tokens", *(field.name for kind in (Action, Decoding) for field in fields(kind))]
        refuse_unknown("generate", how, [*known, "threshold", "unit"])
        how = {name: value for name, value in how.items() if value is not None}
        prompts = [prompts] if (one := isinstance(prompts, str)) else list(prompts)
        if prompts and all(isinstance(each, Mapping) for each in prompts):
            prompts, one = [prompts], True
        texts = [self._prompt(each) for each in prompts]
        if not texts:
            raise UserError("there is no prompt: give a text, or several", "empty")
        retries = self._action.on_high == "retry"
        how = how | {"max_new_tokens": max_new_tokens}
        written = self._write(texts, how, 0 if retries else None)
        if retries:
            self._retry(texts, written, how)
        scored = ScoredTexts(self._acted(number, generation) for number, generation in enumerate(written, 1))
        return scored[0] if one else scored

    def _prompt(self, given: Any) -> _Asked:
        """Read a prompt: a text, or the messages of a chat."""
        if isinstance(given, str):
            return given, ()
        messages = list(given) if isinstance(given, Sequence) else []
        known = [
            each for each in messages if isinstance(each, Mapping) and {"role", "content"} <= each.keys()
        ]
        if not known or len(known) < len(messages):
            message = f"a prompt is a text or a list of messages with role and content, found {shown(given)}"
            raise UserError(message)
        return chat_text(self._lm.tokenizer, given, "a prompt of messages"), turn_ends(self._lm.tokenizer)

    def _write(self, prompts: Sequence[_Asked], how: dict[str, Any], draw: int | None) -> list[Generation]:
        """Write a text for each prompt; a ``draw`` has its own random numbers."""
        if draw is not None:
            how = {**how, "sampling": Sampling(self._action.temperature, seed=self._action.seed + draw)}
        needs, stop = text_needs(self._assess.bank), how.get("stop", ())
        written: dict[int, Generation] = {}
        for ends in {ends for _, ends in prompts}:
            places = [i for i, prompt in enumerate(prompts) if prompt[1] == ends]
            how = {**how, "stop": [*stop, *ends] if ends and not isinstance(stop, str) else stop}
            each = self._lm.generate([prompts[i][0] for i in places], needs=needs, **how)
            written |= zip(places, each, strict=True)
        return [written[place] for place in range(len(prompts))]

    def _retry(self, prompts: Sequence[_Asked], written: list[Generation], how: dict[str, Any]) -> None:
        """Draw texts that fire again, a round together; keep the lowest score, or one without any."""
        best = [self._assess(_scored(self._assess, generation)) for generation in written]
        for draw in range(1, self._action.draws):
            high = [place for place, response in enumerate(best) if response.fires]
            if not high:
                break
            more = self._write([prompts[place] for place in high], how, draw)
            for place, generation in zip(high, more, strict=True):
                response, least = self._assess(_scored(self._assess, generation)), best[place].score
                if response.score is None or (least is not None and response.score < least):
                    written[place], best[place] = generation, response

    def _acted(self, number: int, written: Generation) -> Scored:
        record = _scored(self._assess, written)
        response, text = self._assess(record), written.text
        on_high = self._action.on_high
        high, kept = self._first_high(record, response), None
        if on_high == "stop" and high is not None:
            text = text[: high.start].rstrip()
            kept = record.first(sum(end <= high.start for _, end in written.offsets), text)
        elif on_high == "abstain" and response.fires:
            text, kept = self._action.abstention, WrittenText(written.prompt, "")
        if kept is not None:
            discarded = len(written.token_ids) - len(kept.offsets)
            acted = Acted(action=on_high, span=high, discarded_tokens=discarded)
            response = self._assess(kept).model_copy(update={"acted": acted})
        return Scored(f"prompt {number}", written.prompt, text, response)

    def _first_high(self, record: WrittenText, response: Response) -> ScoredSpan | None:
        """Find the first part above the threshold; of whole answers the token that brings them above it."""
        spans = response.spans
        if self._assess.unit == "answer":
            each = zip(record.offsets, record.scores, response.token_p_wrong, strict=True)
            spans = tuple(ScoredSpan(*place, score or 0.0, p or 0.0) for place, score, p in each)
        return next((span for span in spans if span.score > self._assess.threshold), None)
