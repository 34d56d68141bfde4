"""The command ``probers-check``: comparison of an engine's hidden states with those that train probers.

Engines number layers from 0 or 1, count the embedding or not, and return the last state before or after the
final norm. A prober reads a wrong layer without an error, and its scores then mean nothing. The check
compares states, or the scores of a server, with ours for the same tokens and names the mistake.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx
import numpy as np
import torch

from ..cli.inputs import find_prober, load_model
from ..cli.openai_client import Server, api_key
from ..data.records import what_is_wrong
from ..prober.prober import Prober
from ..prober.token_scores import check_growing, text_needs, text_scores
from ..rag.completions import Completion
from ..types import Feature, Generation, Needs, RunError, UserError, first_line

if TYPE_CHECKING:
    from ..model.causal_lm import CausalLM
    from .settings import Check

#: Relative differences due to the order and size of batches, by number format, and due to another format.
#: On SmolLM2: up to .015 in bfloat16, .06 between bfloat16 and float32, from .5 between neighbouring layers.
_TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.1}
_ROUNDED = 0.15
#: Another layer matches clearly if its difference is below this share of the layer's own.
_CLEARLY = 0.5
_NORMED = -1  # in place of a layer's number: the last state after the final norm

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """The difference between an engine's states of one layer, by its number, and ours.

    ``absolute`` is the largest difference. The states may match another of our layers clearly better,
    ``is_layer``, or those after the final norm, ``normed``.
    """

    layer: int
    absolute: float
    relative: float
    same: bool
    is_layer: int | None = None
    normed: bool = False

    @property
    def verdict(self) -> str:
        """Verdict in words."""
        if self.same:
            return "same"
        if self.normed:
            return "the last layer after the final norm: read it before the norm"
        if self.is_layer is not None:
            off = "off by one: " if abs(self.is_layer - self.layer) == 1 else ""
            return f"{off}these are the states of layer {self.is_layer}"
        if self.relative < _ROUNDED:
            return "nearly the same, as in another number format"
        return "different: other weights, other tokens, or no state after a block"


def relative_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Compute the root mean square of the differences of (n, ...), each in deviations of its coordinate.

    A few coordinates of a residual stream are thousands of times larger than others and nearly constant over
    tokens and layers, so plain differences would hardly reveal another layer.
    """
    spread = ours.std(axis=0)
    spread = np.maximum(spread, 1e-3 * np.median(spread) + 1e-12)
    return float(np.sqrt(np.mean(np.square((theirs - ours) / spread))))


def compare_states(
    ours: Mapping[int, np.ndarray], theirs: Mapping[int, np.ndarray], *, tolerance: float,
    normed: np.ndarray | None = None,
) -> list[LayerDifference]:  # fmt: skip
    """Compare an engine's states (n, d) of the same tokens with ours, by layer.

    Ours are those of layer 0, the embedding, to k, the residual stream after block k, and ``normed``, the
    last after the final norm; layers that the engine lacks can be recognised in its states. ValueError for
    other shapes or a layer that ours lack.
    """
    differences = []
    wide = {layer: np.asarray(states, dtype=np.float64) for layer, states in ours.items()}
    for layer, given in theirs.items():
        if layer not in wide or np.shape(given) != wide[layer].shape:
            raise ValueError(f"layer {layer} of the engine, of shape {np.shape(given)}, is not among ours")
        states = np.asarray(given, dtype=np.float64)
        absolute = float(np.abs(states - wide[layer]).max())
        distances = {k: relative_difference(expected, states) for k, expected in wide.items()}
        relative = distances.pop(layer)
        if normed is not None:
            distances[_NORMED] = relative_difference(np.asarray(normed, dtype=np.float64), states)
        nearest = min(distances, key=lambda k: distances[k], default=layer)
        same = bool(relative <= tolerance)
        clear = not same and distances.get(nearest, np.inf) < _CLEARLY * relative
        is_layer = nearest if clear and nearest != _NORMED else None
        after_norm = clear and nearest == _NORMED
        differences.append(LayerDifference(layer, absolute, relative, same, is_layer, after_norm))
    return differences


def run(settings: Check) -> None:
    """Check an engine and log the result; RunError if it differs from ours or cannot be reached."""
    engine, bank = settings.engine, None
    is_server = engine.startswith(("http://", "https://"))
    if not is_server and engine not in ("transformers", "vllm"):
        message = f"engine={engine} is unknown: give transformers, vllm, or a server's address, http://.."
        raise UserError(message, "unknown-choice")
    if is_server or settings.prober is not None:
        prober = find_prober(settings, asks="probers-check")
        bank = Prober.from_pretrained(prober, allow_other=settings.allow_other)
    adapter = None if bank is None else bank.adapter
    other = load_model(settings, engine="vllm", adapter=adapter) if engine == "vllm" else None
    lm = load_model(settings, adapter=adapter)
    if bank is not None:
        bank.check_model(lm.spec)
        if bank.spec.site != "resid_post" or bank.spec.pool == "mind":
            reads = f"the prober reads {bank.spec.site}/{bank.spec.pool}"
            raise UserError(f"{reads}, and only site=resid_post can be checked", "unsupported")
    tolerance = settings.tolerance or _TOLERANCES.get(lm.spec.dtype, 0.1)
    if is_server:
        assert bank is not None
        _check_server(settings, lm, bank, tolerance)
        return
    texts = lm.generate(settings.prompts, max_new_tokens=settings.max_new_tokens)
    written = [text for text in texts if text.token_ids]
    if other is not None:
        every, _ = our_states(other, written)
        theirs = every if bank is None else {k: every[k] for k in bank.layers}
    else:
        # transformers returns the last layer only after the final norm.
        theirs = _plain_states(lm, range(lm.num_layers) if bank is None else bank.layers, written)
    ours, normed = our_states(lm, written)
    differences = compare_states(ours, theirs, tolerance=tolerance, normed=normed)
    tokens = sum(len(g.token_ids) for g in written)
    log.info("%d tokens of %d texts, %s, %s", tokens, len(written), lm.spec, lm.spec.dtype)
    log.info("layer  largest difference  relative")
    for each in differences:
        log.info("%5d  %18.3g  %8.2g  %s", each.layer, each.absolute, each.relative, each.verdict)
    if wrong := [difference for difference in differences if not difference.same]:
        first = f"(relative difference above {tolerance:g}); its layer {wrong[0].layer}: {wrong[0].verdict}"
        why = f"differs from the states probers are trained on in {len(wrong)} of {len(differences)} layers"
        raise RunError(f"engine={engine} {why} {first}", "mismatch")
    why = "engine=%s gives the states that probers are trained on: %d layers are the same"
    log.info(why, engine, len(differences))


def _plain_states(
    lm: CausalLM, layers: Sequence[int], written: Sequence[Generation]
) -> dict[int, np.ndarray]:
    """Read ``output_hidden_states`` of plain transformers, text by text: (n, d) of all texts by layer."""
    parts: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
    for text in written:
        ids = torch.tensor([[*text.prompt_ids, *text.token_ids]], device=lm.device)
        with torch.inference_mode():
            states = lm.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        for layer in layers:
            parts[layer].append(states[layer][0, len(text.prompt_ids) :].float().cpu().numpy())
    return {layer: np.concatenate(part) for layer, part in parts.items()}


def our_states(lm: CausalLM, written: Sequence[Generation]) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Read our states of written tokens: (n, d) of all texts by layer, and those after the final norm."""
    last = Feature((lm.num_layers,), pool="mind_tokens")
    every = Feature(tuple(range(lm.num_layers + 1)), pool="tokens")
    read = lm.score([g.prompt for g in written], [g.token_ids for g in written], needs=Needs((every, last)))
    states, after = (np.concatenate([g.states[each] for g in read if g.states]) for each in (every, last))
    return {layer: states[:, layer] for layer in every.layers}, after[:, 0, lm.width :]


def _check_server(settings: Check, lm: CausalLM, bank: Prober, tolerance: float) -> None:
    """Compare the scores of a server with ours of the same tokens."""
    check_growing(bank)
    url, length = settings.engine, settings.max_new_tokens
    # The prober's layers, and the ones above and below each.
    moved = {by: [min(max(k + by, 0), lm.num_layers) for k in bank.layers] for by in (0, 1, -1)}
    layers = sorted(set().union(*moved.values()))
    (feature,) = text_needs(bank).features
    answers = [(p, *answer) for p in settings.prompts if (answer := _completion(url, p, length))[0]]
    needs = Needs((replace(feature, layers=tuple(layers)),))
    read = lm.score([answer[0] for answer in answers], [answer[1] for answer in answers], needs=needs)
    alike = [
        (states, scores)
        for text, (_, _, offsets, scores) in zip(read, answers, strict=True)
        if list(text.offsets) == offsets and (states := text.state) is not None
    ]
    if not alike:
        raise RunError(f"engine={url} splits no text like our tokenizer: give other prompts", "mismatch")
    theirs = np.concatenate([scores for _, scores in alike])
    ours = {}
    for by, near in moved.items():
        columns = [layers.index(k) for k in near]
        ours[by] = np.concatenate([text_scores(bank, states[:, columns])[0] for states, _ in alike])
    usual = relative_difference(ours[0], theirs)
    largest = float(np.abs(theirs - ours[0]).max())
    message = "%d tokens of %d texts, %s: largest difference of a score %.3g, relative %.2g"
    log.info(message, len(theirs), len(alike), lm.spec, largest, usual)
    if usual <= tolerance:
        log.info("engine=%s gives the scores that this prober gives here", url)
        return
    mistakes = {
        "layers one too high": ours[1], "layers one too low": ours[-1],
        "the token after": np.roll(ours[0], -1), "the token before": np.roll(ours[0], 1),
    }  # fmt: skip
    least, name = min((relative_difference(scores, theirs), name) for name, scores in mistakes.items())
    other = "another prober, other weights, or states after the final norm"
    what = f"they are those of {name}" if least < _CLEARLY * usual else other
    far = f"(relative difference {usual:.2g}, above {tolerance:g})"
    raise RunError(f"engine={url} gives scores other than this prober's here {far}: {what}", "mismatch")


def _completion(url: str, prompt: str, length: int) -> tuple[str, list[tuple[int, int]], np.ndarray]:
    """Have a server continue a prompt greedily; return text, offsets and scores of its tokens (RunError)."""
    address = Server("engine", url, "").address
    try:
        key = api_key()
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with httpx.Client(timeout=120, follow_redirects=False, headers=headers) as client:
            listed = client.get(f"{address}/models")
            listed.raise_for_status()
            body = {"model": listed.json()["data"][0]["id"], "prompt": prompt, "max_tokens": length}
            answer = client.post(f"{address}/completions", json=body | {"temperature": 0})
            answer.raise_for_status()
        choice = Completion.model_validate(answer.json()).choices[0]
        if (response := choice.hallucination) is None or None in response.token_scores:
            raise ValueError("some tokens have no score")
    except httpx.HTTPError as error:
        raise RunError(f"engine={url} cannot be reached: {first_line(error)}", "network") from error
    except (ValueError, LookupError, TypeError) as error:
        why = what_is_wrong(error).splitlines()[0]
        message = f"engine={url} does not answer as a server with a prober does ({why})"
        raise RunError(message, "server") from error
    return choice.text, list(response.token_offsets), np.array(response.token_scores, dtype=np.float64)
