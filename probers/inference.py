"""Running trained heads on any number of states, a bounded number at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .heads import ProbeHead
from .types import RunError

#: States the heads take at once; more would need memory and gain nothing.
CHUNK = 1024


def run_heads(head: ProbeHead, states: Any, mask: Any = None) -> np.ndarray:
    """Float32 logits (n, H, 2), [wrong, correct].

    Args:
        head: H heads.
        states: (n, H, d); (n, T, H, d) for heads that pool tokens themselves.
        mask: (n, T) bool, which tokens there are, for those heads; None is all.

    Raises:
        RunError: states or logits that are not finite.
        ValueError: another shape.
    """
    inputs = [torch.as_tensor(states)]
    if mask is not None:
        inputs.append(torch.as_tensor(mask, dtype=torch.bool))
    elif head.tokens:
        inputs.append(torch.ones(inputs[0].shape[:2], dtype=torch.bool))
    rows = max(1, CHUNK // max(1, inputs[0].shape[1])) if head.tokens else CHUNK
    parts = []
    with torch.inference_mode():
        for x, *masks in zip(*(tensor.split(rows) for tensor in inputs), strict=True):
            if len(x):
                masks = [part.to(head.device) for part in masks]
                parts.append(head(x.to(head.device, torch.float32), *masks).cpu())
    found = torch.cat(parts).numpy() if parts else np.empty((0, len(head.streams), 2), np.float32)
    if not np.isfinite(found).all():
        raise RunError("the prober's logits are not finite: the states hold NaN or infinite values")
    return found


def run_heads_on_spans(head: ProbeHead, states: Any, spans: np.ndarray) -> np.ndarray:
    """Float32 logits (n, H, 2) of spans, by heads that pool tokens themselves.

    Args:
        head: H heads.
        states: (t, H, d) of a text's tokens.
        spans: (n, 2) first token and the one after the last.

    Raises:
        RunError, ValueError: as :func:`run_heads`.
    """
    x = torch.as_tensor(states)
    parts = [np.empty((0, len(head.streams), 2), np.float32)]
    step = max(1, CHUNK // int((spans[:, 1] - spans[:, 0]).max(initial=1)))  # never all spans' states at once
    for start in range(0, len(spans), step):
        first, end = spans[start : start + step].T[:, :, None]
        place = first + np.arange((end - first).max())
        mask = place < end
        # Where a span is shorter than the longest, its first token stands in, unread.
        parts.append(run_heads(head, x[torch.from_numpy(np.where(mask, place, first))], mask))
    return np.concatenate(parts)


def half_precision(head: ProbeHead) -> ProbeHead:
    """Round the learned weights to what half precision can hold, in place.

    Done before thresholds and test figures are computed, so that they hold for the
    saved prober. Standardisation statistics keep single precision.

    Raises:
        RunError: weights beyond half precision.
    """
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            rounded = parameter.half().float()
            if not torch.isfinite(rounded).all():
                raise RunError(f"the trained weights {name} are not finite in half precision: lower lr")
            parameter.copy_(rounded)
    return head
