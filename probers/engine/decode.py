"""Decoding of one batch, with everything that was asked for read on the way.

Conventions, shared with :mod:`probers.engine.score`:

- Logits that produced token i come from the position before it; states and attention
  of token i are read when token i itself is forwarded. The last token is forwarded too.
- Text, offsets, log-probabilities, states and attention all describe the tokens that
  are kept (:mod:`probers.engine.stopping`).
- A row that has ended leaves the batch; nothing is computed for it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..capture.hidden_states import named_layer
from ..capture.recorder import Reading, Recorder
from ..types import Generation, Needs, RunError
from .batch import Row, Running, Sampler, closed
from .forward import Decoder, token_scores
from .kv_cache import Known, Recent
from .speculative import finish_alone
from .stopping import Stops
from .tokens import Prompt, TextStream, token_offsets


@torch.inference_mode()
def generate_batch(
    decoder: Decoder,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    limits: Sequence[int],
    needs: Needs,
    stops: Stops,
    sampler: Sampler | None = None,
    known: Sequence[Known] | None = None,
    recent: Recent | None = None,
    draft: int = 0,
    use_cache: bool = True,
) -> list[Generation]:
    """Continue each of ``prompts`` by at most so many >= 1 tokens as ``limits`` has for it, in their order.

    Args:
        sampler: draws the tokens; None takes the likeliest.
        known: of each prompt, keys and values of what it may begin with.
        recent: is left what was computed.
        draft: most tokens guessed at once for a text that is alone in the batch, or the last
            that runs (:mod:`probers.engine.speculative`).
        use_cache: False does without keys and values, for models whose cache is broken.

    Raises:
        RunError: a logit or a recorded state is NaN or infinite.
    """
    rows = [
        Row(p, TextStream(tokenizer, p.ids) if stops.read_text else None, n)
        for p, n in zip(prompts, limits, strict=True)
    ]
    limit = max(limits)
    width = max(len(prompt.ids) for prompt in prompts)
    logprobs = torch.zeros(2, len(rows), limit, device=decoder.device)  # and entropies
    with Reading(decoder.model, needs, len(rows), width, limit, decoder.device) as reading:
        recorder = reading.recorder
        batch = Running(decoder, prompts, limit, known=known, use_cache=use_cache)
        reading.prefilled()
        alone = draft > 0 and sampler is None and batch.can_drop
        for index in range(limit):
            if alone and len(batch.active) == 1 and rows[batch.active[0]].stop is None:
                number = batch.active[0]
                last = recent.get(prompts[number].name) if recent is not None else None
                earlier = () if last is None else last.ids[last.start :]
                finish_alone(
                    batch, rows[number], logprobs[:, number], reading,
                    stops=stops, most=draft, earlier=earlier,
                )  # fmt: skip
                batch.leave(recent, rows, [0])
                break
            logits = batch.logits[:, -1]
            tokens = logits.argmax(dim=-1) if sampler is None else sampler(logits, batch.active)
            logprobs[0, batch.rows, index], logprobs[1, batch.rows, index] = token_scores(logits, tokens)
            slots = []
            for slot, (number, token) in enumerate(zip(batch.active, tokens.tolist(), strict=True)):
                row = rows[number]
                if row.stop is not None:  # its last token has been forwarded
                    continue
                row.accept(token, stops)
                if row.stop is not None:
                    recorder.finish(number, row.kept)
                # A text that ends with this token runs once more, only to be read.
                if row.stop is None or (reading.reads and row.kept > index):
                    slots.append(slot)
            batch.leave(recent, rows, set(range(len(tokens))) - set(slots))
            if not slots:
                break
            if len(slots) < len(tokens):
                slots = closed(slots)
                tokens = tokens[torch.tensor(slots, device=tokens.device)]
                batch.select(slots)
            reading.expect(1)
            batch.step(tokens[:, None])
            if reading.reads:
                reading.push(index, batch.rows, 1)
                safe = [rows[i].safe(stops) for i in batch.active if rows[i].stop is None]
                recorder.commit(min(safe, default=limit))
            if all(rows[i].stop is not None for i in batch.active):
                batch.leave(recent, rows, range(len(slots)))
                break
    recorder.close()
    _refuse_broken(rows, needs, recorder, logprobs)
    return _generations(tokenizer, rows, needs, recorder, logprobs)


def _refuse_broken(rows: Sequence[Row], needs: Needs, recorder: Recorder, scores: Tensor) -> None:
    """RunError for the first kept token whose state or logits are not finite."""
    broken = recorder.broken()
    if broken is not None:
        row, token, layer = broken
        raise RunError(
            f"the state of {named_layer(needs, layer)} is NaN or infinite at generated token {token} "
            f"of {rows[row].prompt.name}; try dtype=float32 or bfloat16"
        )
    for row, token in (~scores.isfinite().all(dim=0)).nonzero().tolist():
        if token < max(rows[row].kept, 1):
            raise RunError(
                f"the logits are NaN or infinite at generated token {token} of "
                f"{rows[row].prompt.name}; try dtype=float32 or bfloat16"
            )


def _generations(
    tokenizer: Any, rows: Sequence[Row], needs: Needs, recorder: Recorder, scores: Tensor
) -> list[Generation]:
    logprobs, entropies = scores.cpu().numpy()
    generations = []
    for number, row in enumerate(rows):
        assert row.stop is not None
        ids, prompt = tuple(row.ids[: row.kept]), row.prompt
        text, offsets = token_offsets(tokenizer, ids, prompt.ids)
        generations.append(
            Generation(
                prompt=prompt.text,
                prompt_ids=prompt.ids,
                prompt_offsets=prompt.offsets,
                token_ids=ids,
                text=text,
                offsets=offsets,
                logprobs=logprobs[number, : row.kept].copy(),
                entropies=entropies[number, : row.kept].copy(),
                stop=row.stop,
                needs=needs,
                states=recorder.states(number),
                attention=recorder.attention(number, len(prompt.ids)),
            )
        )
    return generations
