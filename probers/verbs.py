"""Verbs that join rooms: a prober from rows, by labelled states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .bank.bank import Prober
from .data.rows import FIELDS
from .datagen.label import OPTIONS, label
from .datagen.sources.texts import Texts
from .engine.language_model import LanguageModel
from .train.fit import fit as fit_stores
from .types import UserError


def fit(
    data: Any, rows: Any = None, *, head: Any = "probing_rag", layers: Any = "all",
    out: str | Path | None = None, **options: Any,
) -> Prober:  # fmt: skip
    """Train a calibrated prober, and measure it on held-out texts beside controls.

    ::

        prober = probers.fit(lm, frame, prompt="question", answer="output", wrong="is_wrong")
        prober = probers.fit(store, head="linear", layers=[10])

    Args:
        data: a model, which reads ``rows``; or a store of labelled states, its folder, or several of these.
        rows: labelled texts: a DataFrame, a list of dictionaries, a ``datasets.Dataset`` or a file.
        head: name of a head, or a class of your own.
        layers: "all", a number, or a list of numbers from 1.
        out: folder that keeps the prober, and ``<out>.states`` that keeps its states; both resume. None keeps
            nothing.
        options: names of columns (``answer="output"``), options of ``Texts``, of :func:`label` and of
            probers-train, under the names of the commands' keys.

    Raises:
        UserError: rows that cannot be used, one class only, an unknown option, layers that are not there.
    """
    if not isinstance(data, LanguageModel):
        if rows is not None:
            message = f"fit takes a model and rows, or stores alone, found {type(data).__name__} and rows"
            raise UserError(f"{message}: wrap a model as CausalLM(model, tokenizer)", "bad-value")
        return fit_stores(data, head=head, layers=layers, out=out, **options)
    if rows is None:
        raise UserError("fit(lm, rows) needs rows: texts with answer and wrong", "missing-value")
    columns = {name: options.pop(name) for name in FIELDS if name in options}
    reading = {name: options.pop(name) for name in Texts.options() if name in options}
    labelling = {name: options.pop(name) for name in OPTIONS if name in options}
    source = Texts(rows, columns=columns or None, **reading)
    store = label(data, source, layers=layers, out=None if out is None else f"{out}.states", **labelling)
    return fit_stores(store, head=head, layers=layers, out=out, **options)
