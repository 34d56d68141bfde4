"""The command ``probers-check``: are an engine's hidden states those that a prober was trained on?

Engines number layers from 0 or 1, count the embedding or not, and hand out the last state before or after
the final norm. A prober reads a wrong layer without an error, and its scores then mean nothing; here the
states, or the scores of a server, are held against our own of the same tokens, and the mistake is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import torch
from omegaconf import DictConfig

from probers.bank.bank import ProbeBank
from probers.commands.parts import load_model, plain_value
from probers.data.records import what_is_wrong
from probers.online.scores import check_growing, text_needs, text_scores
from probers.rag.build import find_prober
from probers.types import Feature, Generation, Needs, RunError, UserError, first_line

if TYPE_CHECKING:
    from probers.engine.model import CausalLM

#: Relative differences that order and size of batches explain, by number format, and another format does.
#: Of SmolLM2 they are up to .015 in bfloat16, and .06 between it and float32; of neighbouring layers from .5.
_TOLERANCES = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.1}
_ROUNDED = 0.15
#: What another layer's match must be below, of the mismatch with the layer's own.
_CLEARLY = 0.5


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """How an engine's states of one layer differ from ours.

    Attributes:
        layer: as the engine calls it.
        absolute: largest difference of a number.
        relative: root mean square of the differences, each in standard deviations of its coordinate.
        same: the relative difference is within the tolerance.
        is_layer: our layer that the states are much nearer to, if it is another.
        normed: they are those after the final norm.
    """

    layer: int
    absolute: float
    relative: float
    same: bool
    is_layer: int | None = None
    normed: bool = False

    @property
    def told(self) -> str:
        """The verdict in words."""
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
    """Root mean square of the differences of (n, d), each by the standard deviation of its coordinate.

    A few coordinates of a residual stream are thousands of times as large as others and nearly the same at
    every token and layer, so that differences of plain vectors would hardly show another layer.
    """
    spread = ours.std(axis=0)
    spread = np.maximum(spread, 1e-3 * np.median(spread) + 1e-12)
    return float(np.sqrt(np.mean(np.square((theirs - ours) / spread))))


def compare_states(
    ours: Mapping[int, np.ndarray],
    theirs: Mapping[int, np.ndarray],
    *,
    tolerance: float,
    normed: np.ndarray | None = None,
) -> list[LayerDifference]:
    """Compare an engine's states with ours, layer by layer, of the same tokens in the same order.

    Args:
        ours: by layer (0 the embedding, k the residual stream after block k) (n, d); those of layers that are
            not asked for too, so that they can be recognised.
        theirs: by layer as the engine calls it, (n, d).
        tolerance: relative difference up to which states are the same.
        normed: (n, d) ours of the last layer after the final norm.

    Raises:
        ValueError: arrays of different shapes, or a layer that ours lacks.
    """
    found = []
    wide = {layer: np.asarray(states, dtype=np.float64) for layer, states in ours.items()}
    for layer, given in theirs.items():
        if layer not in wide or np.shape(given) != wide[layer].shape:
            raise ValueError(f"layer {layer} of the engine, of shape {np.shape(given)}, is not among ours")
        states = np.asarray(given, dtype=np.float64)
        relative = relative_difference(wide[layer], states)
        absolute = float(np.abs(states - wide[layer]).max())
        others = {k: relative_difference(own, states) for k, own in wide.items() if k != layer}
        after = np.inf if normed is None else relative_difference(np.asarray(normed, np.float64), states)
        nearest = min(others, key=lambda k: others[k], default=None)
        least = np.inf if nearest is None else others[nearest]
        same = relative <= tolerance and np.isfinite(relative)
        clear = not same and min(least, after) < _CLEARLY * relative
        found.append(
            LayerDifference(
                layer, absolute, relative, bool(same),
                is_layer=nearest if clear and least <= after else None, normed=bool(clear and after < least),
            )
        )  # fmt: skip
    return found


def run(cfg: DictConfig) -> None:
    """Check ``cfg.engine``; prints what was found.

    Raises:
        RunError: its states or scores differ from ours, or it cannot be asked.
        UserError: before anything is compared, for whatever is wrong with the request.
    """
    url = cfg.engine if str(cfg.engine).startswith(("http://", "https://")) else None
    if url is None and cfg.engine not in ("transformers", "vllm"):
        raise UserError(
            f"engine={cfg.engine} is unknown: give transformers, vllm, or a server's address, http://.."
        )
    bank = None
    if url is not None or cfg.prober is not None:
        bank = ProbeBank.from_pretrained(find_prober(cfg, asks="probers-check"), allow_other=cfg.allow_other)
    other = load_model(cfg, engine="vllm") if cfg.engine == "vllm" else None
    lm = load_model(cfg)
    if bank is not None:
        bank.check_model(lm.spec)
        if bank.spec.site != "resid_post" or bank.spec.pool == "mind":
            raise UserError(
                f"the prober reads {bank.spec.site}/{bank.spec.pool}, and only states after blocks "
                "(site=resid_post) are checked"
            )
    tolerance = cfg.tolerance or _TOLERANCES.get(lm.spec.dtype, 0.1)
    prompts = plain_value(cfg.prompts)
    if url is not None:
        assert bank is not None
        _check_server(url, lm, bank, prompts, cfg.max_new_tokens, tolerance)
        return
    written = [g for g in lm.generate(prompts, max_new_tokens=cfg.max_new_tokens) if g.token_ids]
    if other is not None:
        theirs, _ = our_states(other, written)
    else:
        # The last layer transformers gives after the final norm only.
        theirs = _plain_states(lm, range(lm.num_layers) if bank is None else bank.layers, written)
    ours, normed = our_states(lm, written)
    asked = {k: theirs[k] for k in (theirs if bank is None else bank.layers)}
    found = compare_states(ours, asked, tolerance=tolerance, normed=normed)
    print(
        f"{sum(len(g.token_ids) for g in written)} tokens of {len(written)} texts, {lm.spec}, {lm.spec.dtype}"
    )
    print("layer  largest difference  relative")
    for each in found:
        print(f"{each.layer:5}  {each.absolute:18.3g}  {each.relative:8.2g}  {each.told}")
    tell(found, f"engine={cfg.engine}", tolerance)


def _plain_states(
    lm: CausalLM, layers: Sequence[int], written: Sequence[Generation]
) -> dict[int, np.ndarray]:
    """Plain transformers' ``output_hidden_states``, a text at a time: by layer (n, d) of all texts."""
    parts: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
    for text in written:
        ids = torch.tensor([[*text.prompt_ids, *text.token_ids]], device=lm.device)
        with torch.inference_mode():
            states = lm.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        for layer in layers:
            parts[layer].append(states[layer][0, len(text.prompt_ids) :].float().cpu().numpy())
    return {layer: np.concatenate(part) for layer, part in parts.items()}


def tell(found: Sequence[LayerDifference], engine: str, tolerance: float) -> None:
    """Say that all layers are the same (RunError where they are not)."""
    wrong = [each for each in found if not each.same]
    if wrong:
        first = wrong[0]
        raise RunError(
            f"{engine} differs from what probers are trained on in {len(wrong)} of {len(found)} layers "
            f"(relative difference above {tolerance:g}); its layer {first.layer}: {first.told}"
        )
    print(f"{engine} gives the states that probers are trained on: {len(found)} layers are the same")


def our_states(lm: CausalLM, written: Sequence[Generation]) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Our states of written tokens, (n, d) of all texts: of every layer, and after the final norm."""
    last = Feature((lm.num_layers,), pool="mind_tokens")
    every = Feature(tuple(range(lm.num_layers + 1)), pool="tokens")
    needs = Needs((every, last))
    read = lm.score([g.prompt for g in written], [g.token_ids for g in written], needs=needs)
    states, after = (np.concatenate([g.states[each] for g in read if g.states]) for each in (every, last))
    return {layer: states[:, layer] for layer in every.layers}, after[:, 0, lm.width :]


def _check_server(
    url: str, lm: CausalLM, bank: ProbeBank, prompts: Sequence[str], length: int, tolerance: float
) -> None:
    """A probers server's scores of what it writes against ours of the same tokens."""
    check_growing(bank)
    answers = [_asked(url, prompt, length) for prompt in prompts]
    known = [(p, a) for p, a in zip(prompts, answers, strict=True) if a["text"]]
    read = lm.score([p for p, _ in known], [a["text"] for _, a in known], needs=_neighbours(lm, bank))
    alike = [
        (g, a["scores"])
        for g, (_, a) in zip(read, known, strict=True)
        if [list(span) for span in g.offsets] == a["offsets"]
    ]
    if not alike:
        raise RunError(f"engine={url} wrote nothing that our tokenizer cuts alike: give other prompts")
    theirs = np.concatenate([scores for _, scores in alike])
    ours = {place: np.concatenate([_scores(g, bank, place) for g, _ in alike]) for place in (0, 1, -1)}
    usual = relative_difference(ours[0][:, None], theirs[:, None])
    largest = float(np.abs(theirs - ours[0]).max())
    print(
        f"{len(theirs)} tokens of {len(alike)} texts, {lm.spec}: largest difference of a score "
        f"{largest:.3g}, relative {usual:.2g}"
    )
    if usual <= tolerance:
        print(f"engine={url} gives the scores that this prober has here")
        return
    near = {f"layers one too {'high' if place > 0 else 'low'}": ours[place] for place in (1, -1)}
    near |= {"the token after": np.roll(ours[0], -1), "the token before": np.roll(ours[0], 1)}
    distances = {name: relative_difference(scores[:, None], theirs[:, None]) for name, scores in near.items()}
    name = min(distances, key=lambda key: distances[key])
    what = "another prober, other weights, or states after the final norm"
    if distances[name] < _CLEARLY * usual:
        what = f"they are those of {name}"
    raise RunError(
        f"engine={url} scores tokens otherwise than this prober does here (relative difference {usual:.2g}, "
        f"above {tolerance:g}): {what}"
    )


def _neighbours(lm: CausalLM, bank: ProbeBank) -> Needs:
    """The prober's layers, and those one above and below each as far as there are any."""
    (feature,) = text_needs(bank).features
    moved = [tuple(min(max(k + by, 0), lm.num_layers) for k in bank.layers) for by in (1, -1)]
    return Needs((replace(feature, layers=tuple(sorted({*bank.layers, *moved[0], *moved[1]}))),))


def _scores(read: Generation, bank: ProbeBank, by: int) -> np.ndarray:
    """(n,) scores of a text by the states of layers so many too high."""
    ((feature, states),) = read.states.items()
    first, *_, last = feature.layers
    layers = [feature.layers.index(min(max(k + by, first), last)) for k in bank.layers]
    return np.array(text_scores(bank, states[:, layers])[0])


def _asked(url: str, prompt: str, length: int) -> dict[str, Any]:
    """Text, offsets and scores of what a server writes greedily after a prompt (RunError)."""
    address = url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(timeout=120, follow_redirects=False) as client:
            listed = client.get(f"{address}/v1/models")
            listed.raise_for_status()
            body = {"model": listed.json()["data"][0]["id"], "prompt": prompt, "max_tokens": length}
            answer = client.post(f"{address}/v1/completions", json=body | {"temperature": 0})
            answer.raise_for_status()
            choice = answer.json()["choices"][0]
        told = choice["hallucination"]
        scores = np.array([float(score) for score in told["token_scores"]])
        offsets = [[int(a), int(b)] for a, b in told["token_offsets"]]
        if (
            len(scores) != len(offsets)
            or not np.isfinite(scores).all()
            or not isinstance(choice["text"], str)
        ):
            raise ValueError("scores and tokens do not fit")
    except httpx.HTTPError as error:
        raise RunError(f"engine={url} cannot be asked: {first_line(error)}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"engine={url} does not answer as a server with a prober does ({what_is_wrong(error)})"
        ) from error
    return {"text": choice["text"], "offsets": offsets, "scores": scores}
